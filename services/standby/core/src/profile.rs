//! Profiles: named rows of what PostgreSQL changed over time, and what we improve. Data, no code.

use std::fmt;
use std::str::FromStr;

use pg_types::PgVersion;

use crate::error::RecoveryError;
use crate::known_assigned_xids::KnownAssignedLayout;
use crate::known_assigned_xids::compress::CompressionRule;
use crate::known_assigned_xids::skip_offset::ScanStrategy;
use crate::settings::BackendSizing;
use crate::slru::SubtransBuffers;

/// One row: how a standby of that version behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandbyProfile {
    /// Name of the base row.
    pub base: &'static str,
    /// How the known-assigned xids are kept, and when an array of them is compressed.
    pub layout: KnownAssignedLayout,
    /// How a snapshot walks an array.
    pub scan: ScanStrategy,
    /// A reader may keep its snapshot while no transaction completed (`GetSnapshotDataReuse`, 14 and later).
    pub reuse_snapshot: bool,
    /// A start at a shutdown checkpoint counts subtransactions of prepared transactions as missing (June 2024: 17, 16.4, 15.8,
    /// 14.13, 13.16).
    pub shutdown_start_overflows: bool,
    /// What a running-transactions record proves to be over counts as completed: it moves `latestCompletedXid` and
    /// `xactCompletionCount` (seen in 15.18, 16.14 and 18.4, not in 15.1).
    pub prune_completes: bool,
    /// A running-transactions record moves `nextXid` in every state (17 and later), not only when it is loaded.
    pub list_moves_next_xid: bool,
    /// How the settings add up.
    pub sizing: BackendSizing,
    /// How `pg_subtrans` is buffered.
    pub subtrans: SubtransBuffers,
    /// `+skip-offset` was given.
    switched: bool,
}

/// Up to 11: walsenders are connections.
const SIZING_96: BackendSizing = BackendSizing { autovacuum_by_slots: false, wal_senders: false, special_workers: 1 };
/// 12 to 16 (and 17.0 to 17.2).
const SIZING_12: BackendSizing = BackendSizing { wal_senders: true, ..SIZING_96 };
/// 17.3 and later: the slot synchroniser has a place of its own.
const SIZING_17: BackendSizing = BackendSizing { special_workers: 2, ..SIZING_12 };
/// 18.
const SIZING_18: BackendSizing = BackendSizing { autovacuum_by_slots: true, ..SIZING_17 };

/// The array of current minors.
const COUNTED: KnownAssignedLayout = KnownAssignedLayout::Array(CompressionRule::Counted);

/// Rows of the last minors before the round of fixes that brought the counted rule.
const OLD: StandbyProfile = StandbyProfile {
    base: "",
    layout: KnownAssignedLayout::Array(CompressionRule::Span),
    scan: ScanStrategy::Plain,
    reuse_snapshot: false,
    shutdown_start_overflows: false,
    prune_completes: false,
    list_moves_next_xid: false,
    sizing: SIZING_12,
    subtrans: SubtransBuffers { configurable: false, banked: false },
    switched: false,
};
/// Rows of current minors.
const NEW: StandbyProfile =
    StandbyProfile { layout: COUNTED, reuse_snapshot: true, shutdown_start_overflows: true, prune_completes: true, ..OLD };
/// 17 and later.
const NEW_17: StandbyProfile = StandbyProfile {
    list_moves_next_xid: true,
    sizing: SIZING_17,
    subtrans: SubtransBuffers { configurable: true, banked: true },
    ..NEW
};

/// All rows, oldest first. The counted rule (commit 8242752f9c) shipped with 16, 15.2, 14.7 and the same round of 13; the last
/// minors of 9.6 and 10 came before it. 17.5 and 17.6 differ from 17 in decoding only.
pub const PROFILES: &[StandbyProfile] = &[
    StandbyProfile { base: "pg96", sizing: SIZING_96, ..OLD },
    StandbyProfile { base: "pg10", sizing: SIZING_96, ..OLD },
    StandbyProfile { base: "pg13.6", ..OLD },
    StandbyProfile { base: "pg13", reuse_snapshot: false, ..NEW },
    StandbyProfile { base: "pg14.5", reuse_snapshot: true, ..OLD },
    StandbyProfile { base: "pg14", ..NEW },
    StandbyProfile { base: "pg15.1", reuse_snapshot: true, ..OLD },
    StandbyProfile { base: "pg15", ..NEW },
    StandbyProfile { base: "pg16", ..NEW },
    StandbyProfile { base: "pg17", ..NEW_17 },
    StandbyProfile { base: "pg17.5", ..NEW_17 },
    StandbyProfile { base: "pg17.6", ..NEW_17 },
    StandbyProfile { base: "pg18", sizing: SIZING_18, ..NEW_17 },
    StandbyProfile { base: "indexed", layout: KnownAssignedLayout::Segments, sizing: SIZING_18, ..NEW_17 },
];

/// The switch that any row takes; it takes `indexed` back to the array of current minors.
const SKIP_OFFSET: &str = "skip-offset";

impl StandbyProfile {
    /// The row of the current minor of a major version.
    #[must_use]
    pub fn of_version(version: PgVersion) -> Self {
        let name = match version {
            PgVersion::V13 => "pg13",
            PgVersion::V14 => "pg14",
            PgVersion::V15 => "pg15",
            PgVersion::V16 => "pg16",
            PgVersion::V17 => "pg17",
            PgVersion::V18 => "pg18",
        };
        PROFILES.iter().copied().find(|p| p.base == name).unwrap_or(PROFILES[PROFILES.len() - 1])
    }
}

impl FromStr for StandbyProfile {
    type Err = RecoveryError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let unknown = || RecoveryError::UnknownProfile {
            name: name.to_owned(),
            valid: PROFILES.iter().map(|p| p.base).collect::<Vec<_>>().join(", "),
        };
        let mut parts = name.split('+');
        let base = parts.next().unwrap_or_default();
        let mut profile = PROFILES.iter().copied().find(|p| p.base == base).ok_or_else(unknown)?;
        for switch in parts {
            if switch != SKIP_OFFSET || profile.switched {
                return Err(unknown());
            }
            profile.switched = true;
            profile.scan = ScanStrategy::SkipOffset;
            if profile.layout == KnownAssignedLayout::Segments {
                profile.layout = COUNTED;
            }
        }
        Ok(profile)
    }
}

impl fmt::Display for StandbyProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.base)?;
        if self.switched { write!(f, "+{SKIP_OFFSET}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_list_the_valid() {
        for p in PROFILES {
            for name in [p.base.to_owned(), format!("{}+skip-offset", p.base)] {
                assert_eq!(name.parse::<StandbyProfile>().unwrap().to_string(), name);
            }
        }
        for bad in ["", "pg12", "pg13+", "pg13+reverse-index", "pg13+skip-offset+skip-offset", "PG13"] {
            let message = bad.parse::<StandbyProfile>().unwrap_err().to_string();
            assert!(message.contains("pg13.6") && message.contains("indexed"), "{message}");
        }
    }

    #[test]
    fn every_version_has_its_row() {
        for v in PgVersion::ALL {
            assert_eq!(StandbyProfile::of_version(v).base, format!("pg{v}"));
        }
    }
}
