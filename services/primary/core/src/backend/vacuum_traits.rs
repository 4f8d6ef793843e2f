//! What VACUUM does differently in the versions, besides the layout of records: one row a version.

use pg_types::PgVersion;

/// Habits of one version.
#[derive(Clone, Copy, Debug)]
pub(super) struct VacuumTraits {
    /// One record prunes, freezes and (without indexes) gives line pointers free (17 and later).
    pub(super) combined: bool,
    /// The second pass is announced by a record that tells whom it conflicts with (13).
    pub(super) cleanup_info: bool,
    /// The second pass tells once more whom it conflicts with (13).
    pub(super) cleanup_conflicts: bool,
    /// Freezing tells the cutoff (15 and before), not the newest xid that it froze.
    pub(super) freeze_tells_cutoff: bool,
    /// `relfrozenxid` follows the oldest xid that is left, asked or not (15 and later).
    pub(super) frozen_follows: bool,
    /// Records about rows of catalogs say that they are (16 and later): a conflict ends logical slots of a standby, too.
    pub(super) tells_catalog: bool,
    /// Few dead line pointers are left alone (14 and later).
    pub(super) bypass: bool,
}

/// PostgreSQL 13.
const V13: VacuumTraits = VacuumTraits {
    combined: false,
    cleanup_info: true,
    cleanup_conflicts: true,
    freeze_tells_cutoff: true,
    frozen_follows: false,
    bypass: false,
    tells_catalog: false,
};

/// PostgreSQL 14.
const V14: VacuumTraits = VacuumTraits { cleanup_info: false, cleanup_conflicts: false, bypass: true, ..V13 };

/// PostgreSQL 15.
const V15: VacuumTraits = VacuumTraits { frozen_follows: true, ..V14 };

/// PostgreSQL 16.
const V16: VacuumTraits = VacuumTraits { freeze_tells_cutoff: false, tells_catalog: true, ..V15 };

/// PostgreSQL 17 and 18.
const V17: VacuumTraits = VacuumTraits { combined: true, ..V16 };

impl VacuumTraits {
    /// The row of `version`.
    pub(super) fn of(version: PgVersion) -> &'static VacuumTraits {
        match version {
            PgVersion::V13 => &V13,
            PgVersion::V14 => &V14,
            PgVersion::V15 => &V15,
            PgVersion::V16 => &V16,
            PgVersion::V17 | PgVersion::V18 => &V17,
        }
    }
}
