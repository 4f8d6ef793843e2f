//! What differs between the versions, as data: one [`WalProfile`] per major.
//!
//! Code that reads WAL asks the profile and never the version. A value here is a fact of the shipped headers
//! (`access/xlog_internal.h`, `access/xlogrecord.h`, `access/heapam_xlog.h`, `access/xact.h`, `catalog/catversion.h`).

use pg_types::PgVersion;

use crate::rmgr::heap2::Heap2Layout;
use crate::rmgr::{Operations, operations};

/// What one major version writes.
#[derive(Debug)]
pub struct WalProfile {
    /// Which.
    pub version: PgVersion,
    /// `XLOG_PAGE_MAGIC`.
    pub page_magic: u16,
    /// `CATALOG_VERSION_NO`: part of the paths of files in tablespaces.
    pub catalog_version: u32,
    /// Longest record: `XLogRecordMaxSize` from 16 on, before that what one allocation could hold.
    pub record_len_max: u32,
    /// Bits of `bimg_info`.
    pub image_bits: ImageBits,
    /// Records may carry their top-level transaction (block id 252).
    pub has_top_xid: bool,
    /// Resource managers 128 to 255 belong to extensions.
    pub has_custom_rmgrs: bool,
    /// Names of the operations.
    pub operations: Operations,
    /// Meaning of each HEAP2 operation, by its code shifted right by four.
    pub heap2: [Heap2Layout; 8],
    /// HEAP INPLACE carries invalidation messages.
    pub has_inplace_messages: bool,
    /// HEAP inserts say whether they go to a TOAST table.
    pub has_toast_flag: bool,
    /// XACT has operation 60, messages of one command.
    pub has_xact_invalidations: bool,
    /// BTREE REUSE_PAGE has a horizon of 64 bits, as GIST PAGE_REUSE has everywhere.
    pub has_full_xid_of_btree_page: bool,
    /// Records of indexes that may conflict with snapshots say whether a catalog's is meant.
    pub has_catalog_flag: bool,
    /// Invalidation messages of tag −6 exist.
    pub has_relsync_messages: bool,
    /// Bytes of a dropped statistics entry in commit, abort and prepare; 0 if there are none.
    pub dropped_stats_item_len: usize,
    /// Checkpoints, CHECKPOINT_REDO and END_OF_RECOVERY carry wal_level, and CHECKPOINT_REDO exists.
    pub has_checkpoint_wal_level: bool,
    /// Entries of a relation map file (`MAX_MAPPINGS`).
    pub relmap_entries_max: u32,
    /// How pg_waldump of this version words things.
    pub text: TextStyle,
}

/// `BKPIMAGE_*` beyond `HAS_HOLE`, which is 1 everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageBits {
    /// The image is to be restored, not only to be compared.
    pub apply: u8,
    /// Compressed with pglz.
    pub pglz: u8,
    /// Compressed with LZ4 (0: cannot be).
    pub lz4: u8,
    /// Compressed with Zstandard (0: cannot be).
    pub zstd: u8,
}

/// Wording of pg_waldump where it changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TextStyle {
    /// HEAP and HEAP2 as `key: value` pairs and lists in brackets.
    pub keyed_heap: bool,
    /// RUNNING_XACTS says "subxid overflowed" and lists subtransactions.
    pub running_subxacts: bool,
    /// Logical messages with prefix and payload.
    pub message_payload: bool,
}

/// 13 and 14: one compression method.
const IMAGE_BITS_13: ImageBits = ImageBits { apply: 4, pglz: 2, lz4: 0, zstd: 0 };
/// 15 and later: three.
const IMAGE_BITS_15: ImageBits = ImageBits { apply: 2, pglz: 4, lz4: 8, zstd: 16 };
/// Wording up to 13.
const TEXT_13: TextStyle = TextStyle { keyed_heap: false, running_subxacts: false, message_payload: false };
/// Wording of 14 and 15.
const TEXT_14: TextStyle = TextStyle { message_payload: true, ..TEXT_13 };
/// Wording from 16 on.
const TEXT_16: TextStyle = TextStyle { keyed_heap: true, running_subxacts: true, message_payload: true };
/// `MaxAllocSize`, which bounded a record before 16.
const MAX_ALLOC: u32 = 0x3FFF_FFFF;
/// `XLogRecordMaxSize`: 1020 MiB.
const RECORD_LEN_MAX_16: u32 = 1020 << 20;

/// 13.
static V13: WalProfile = WalProfile {
    version: PgVersion::V13,
    page_magic: 0xD106,
    catalog_version: 202_007_201,
    record_len_max: MAX_ALLOC,
    image_bits: IMAGE_BITS_13,
    has_top_xid: false,
    has_custom_rmgrs: false,
    operations: operations(13),
    heap2: [
        Heap2Layout::Rewrite,
        Heap2Layout::Clean,
        Heap2Layout::FreezeCutoff,
        Heap2Layout::CleanupInfo,
        Heap2Layout::Visible,
        Heap2Layout::MultiInsert,
        Heap2Layout::LockUpdated,
        Heap2Layout::NewCid,
    ],
    has_inplace_messages: false,
    has_toast_flag: false,
    has_xact_invalidations: false,
    has_full_xid_of_btree_page: false,
    has_catalog_flag: false,
    has_relsync_messages: false,
    dropped_stats_item_len: 0,
    has_checkpoint_wal_level: false,
    relmap_entries_max: 62,
    text: TEXT_13,
};

/// HEAP2 of 14 and 15.
const HEAP2_14: [Heap2Layout; 8] = [
    Heap2Layout::Rewrite,
    Heap2Layout::Prune,
    Heap2Layout::Vacuum,
    Heap2Layout::FreezeCutoff,
    Heap2Layout::Visible,
    Heap2Layout::MultiInsert,
    Heap2Layout::LockUpdated,
    Heap2Layout::NewCid,
];

/// 14.
static V14: WalProfile = WalProfile {
    version: PgVersion::V14,
    page_magic: 0xD10D,
    catalog_version: 202_107_181,
    record_len_max: MAX_ALLOC,
    image_bits: IMAGE_BITS_13,
    has_top_xid: true,
    has_custom_rmgrs: false,
    operations: operations(14),
    heap2: HEAP2_14,
    has_inplace_messages: false,
    has_toast_flag: true,
    has_xact_invalidations: true,
    has_full_xid_of_btree_page: true,
    has_catalog_flag: false,
    has_relsync_messages: false,
    dropped_stats_item_len: 0,
    has_checkpoint_wal_level: false,
    relmap_entries_max: 62,
    text: TEXT_14,
};

/// 15.
static V15: WalProfile = WalProfile {
    version: PgVersion::V15,
    page_magic: 0xD110,
    catalog_version: 202_209_061,
    record_len_max: MAX_ALLOC,
    image_bits: IMAGE_BITS_15,
    has_top_xid: true,
    has_custom_rmgrs: true,
    operations: operations(15),
    heap2: HEAP2_14,
    has_inplace_messages: false,
    has_toast_flag: true,
    has_xact_invalidations: true,
    has_full_xid_of_btree_page: true,
    has_catalog_flag: false,
    has_relsync_messages: false,
    dropped_stats_item_len: 12,
    has_checkpoint_wal_level: false,
    relmap_entries_max: 62,
    text: TEXT_14,
};

/// 16.
static V16: WalProfile = WalProfile {
    version: PgVersion::V16,
    page_magic: 0xD113,
    catalog_version: 202_307_071,
    record_len_max: RECORD_LEN_MAX_16,
    image_bits: IMAGE_BITS_15,
    has_top_xid: true,
    has_custom_rmgrs: true,
    operations: operations(16),
    heap2: [
        Heap2Layout::Rewrite,
        Heap2Layout::PruneCatalog,
        Heap2Layout::Vacuum,
        Heap2Layout::FreezeHorizon,
        Heap2Layout::Visible,
        Heap2Layout::MultiInsert,
        Heap2Layout::LockUpdated,
        Heap2Layout::NewCid,
    ],
    has_inplace_messages: false,
    has_toast_flag: true,
    has_xact_invalidations: true,
    has_full_xid_of_btree_page: true,
    has_catalog_flag: true,
    has_relsync_messages: false,
    dropped_stats_item_len: 12,
    has_checkpoint_wal_level: false,
    relmap_entries_max: 64,
    text: TEXT_16,
};

/// HEAP2 from 17 on.
const HEAP2_17: [Heap2Layout; 8] = [
    Heap2Layout::Rewrite,
    Heap2Layout::PruneFreeze,
    Heap2Layout::PruneFreeze,
    Heap2Layout::PruneFreeze,
    Heap2Layout::Visible,
    Heap2Layout::MultiInsert,
    Heap2Layout::LockUpdated,
    Heap2Layout::NewCid,
];

/// 17.
static V17: WalProfile = WalProfile {
    version: PgVersion::V17,
    page_magic: 0xD116,
    catalog_version: 202_406_281,
    record_len_max: RECORD_LEN_MAX_16,
    image_bits: IMAGE_BITS_15,
    has_top_xid: true,
    has_custom_rmgrs: true,
    operations: operations(17),
    heap2: HEAP2_17,
    has_inplace_messages: false,
    has_toast_flag: true,
    has_xact_invalidations: true,
    has_full_xid_of_btree_page: true,
    has_catalog_flag: true,
    has_relsync_messages: false,
    dropped_stats_item_len: 12,
    has_checkpoint_wal_level: true,
    relmap_entries_max: 64,
    text: TEXT_16,
};

/// 18.
static V18: WalProfile = WalProfile {
    version: PgVersion::V18,
    page_magic: 0xD118,
    catalog_version: 202_506_291,
    record_len_max: RECORD_LEN_MAX_16,
    image_bits: IMAGE_BITS_15,
    has_top_xid: true,
    has_custom_rmgrs: true,
    operations: operations(18),
    heap2: HEAP2_17,
    has_inplace_messages: true,
    has_toast_flag: true,
    has_xact_invalidations: true,
    has_full_xid_of_btree_page: true,
    has_catalog_flag: true,
    has_relsync_messages: true,
    dropped_stats_item_len: 16,
    has_checkpoint_wal_level: true,
    relmap_entries_max: 64,
    text: TEXT_16,
};

/// Page magics that are known but not read, with who writes them.
const REFUSED: &[(u16, &str)] = &[
    (0xD115, "a beta of PostgreSQL 17"),
    (0xD120, "PostgreSQL 19"),
    (0xD121, "a development version of PostgreSQL 20"),
    (0xD101, "PostgreSQL 12"),
    (0xD098, "PostgreSQL 11"),
    (0xD097, "PostgreSQL 10"),
    (0xD093, "PostgreSQL 9.6"),
];

impl WalProfile {
    /// The profile of a version.
    #[must_use]
    pub fn of(version: PgVersion) -> &'static WalProfile {
        match version {
            PgVersion::V13 => &V13,
            PgVersion::V14 => &V14,
            PgVersion::V15 => &V15,
            PgVersion::V16 => &V16,
            PgVersion::V17 => &V17,
            PgVersion::V18 => &V18,
        }
    }

    /// The profile of a page magic.
    #[must_use]
    pub fn of_magic(magic: u16) -> Option<&'static WalProfile> {
        PgVersion::ALL.into_iter().map(Self::of).find(|p| p.page_magic == magic)
    }

    /// Who writes a magic that [`WalProfile::of_magic`] does not know; nothing if it is no page magic of PostgreSQL's at all.
    #[must_use]
    pub fn refused_product(magic: u16) -> Option<&'static str> {
        let named = REFUSED.iter().find(|(m, _)| *m == magic).map(|(_, product)| *product);
        named.or((magic >> 8 == 0xD0 || magic >> 8 == 0xD1).then_some("a version of PostgreSQL that walstorm does not know"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_has_its_own_magic() {
        for version in PgVersion::ALL {
            let profile = WalProfile::of(version);
            assert_eq!(profile.version, version);
            assert_eq!(WalProfile::of_magic(profile.page_magic).map(|p| p.version), Some(version));
            assert!(REFUSED.iter().all(|(m, _)| *m != profile.page_magic));
        }
        assert_eq!(WalProfile::refused_product(0xD120), Some("PostgreSQL 19"));
        assert!(WalProfile::refused_product(0x7F45).is_none());
    }
}
