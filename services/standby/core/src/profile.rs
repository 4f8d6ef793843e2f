//! Profiles: named rows of what PostgreSQL changed over time, and what we improve. Data, no code.

use std::fmt;
use std::str::FromStr;

use pg_types::PgVersion;

use crate::error::RecoveryError;
use crate::known_assigned_xids::compress::CompressionRule;
use crate::known_assigned_xids::skip_offset::ScanStrategy;
use crate::settings::BackendSizing;

/// One row: how a standby of that version behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandbyProfile {
    /// Name of the base row.
    pub base: &'static str,
    /// When the array is compressed.
    pub compression: CompressionRule,
    /// How a snapshot walks the array.
    pub scan: ScanStrategy,
    /// A reader may keep its snapshot while no transaction completed (`GetSnapshotDataReuse`, 14 and later).
    pub reuse_snapshot: bool,
    /// A start at a shutdown checkpoint counts subtransactions of prepared transactions as missing (June 2024: 17, 16.4, 15.8,
    /// 14.13, 13.16).
    pub shutdown_start_overflows: bool,
    /// How the settings add up.
    pub sizing: BackendSizing,
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

/// A row of the table.
const fn row(
    base: &'static str,
    compression: CompressionRule,
    scan: ScanStrategy,
    reuse_snapshot: bool,
    shutdown_start_overflows: bool,
    sizing: BackendSizing,
) -> StandbyProfile {
    StandbyProfile { base, compression, scan, reuse_snapshot, shutdown_start_overflows, sizing, switched: false }
}

use CompressionRule::{Counted, Span};
use ScanStrategy::{Plain, SkipOffset};

/// All rows, oldest first. The counted rule (commit 8242752f9c) shipped with 16, 15.2, 14.7 and the same round of 13; the last
/// minors of 9.6 and 10 came before it. 17.5 and 17.6 differ from 17 in decoding only.
pub const PROFILES: &[StandbyProfile] = &[
    row("pg96", Span, Plain, false, false, SIZING_96),
    row("pg10", Span, Plain, false, false, SIZING_96),
    row("pg13.6", Span, Plain, false, false, SIZING_12),
    row("pg13", Counted, Plain, false, true, SIZING_12),
    row("pg14.5", Span, Plain, true, false, SIZING_12),
    row("pg14", Counted, Plain, true, true, SIZING_12),
    row("pg15.1", Span, Plain, true, false, SIZING_12),
    row("pg15", Counted, Plain, true, true, SIZING_12),
    row("pg16", Counted, Plain, true, true, SIZING_12),
    row("pg17", Counted, Plain, true, true, SIZING_17),
    row("pg17.5", Counted, Plain, true, true, SIZING_17),
    row("pg17.6", Counted, Plain, true, true, SIZING_17),
    row("pg18", Counted, Plain, true, true, SIZING_18),
    row("indexed", Counted, SkipOffset, true, true, SIZING_18),
];

/// The switch that any row takes.
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
            profile.scan = SkipOffset;
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
