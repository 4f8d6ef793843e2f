//! Resource managers: their names, their operations' names, and which decoder reads which record
//! (`access/rmgrlist.h`, `access/rmgrdesc`).

pub mod heap;
pub mod heap2;
mod index;
pub mod logicalmsg;
pub mod relmap;
pub mod smgr;
pub mod standby;
pub mod xact;
pub mod xlog;

use std::borrow::Cow;

use pg_types::RecordBody;

use crate::blocks::RecordParts;
use crate::error::Malformed;
use crate::profile::WalProfile;
use crate::record::RecordHeader;

/// `RM_XLOG_ID`.
pub const RM_XLOG: u8 = 0;
/// `RM_XACT_ID`.
pub const RM_XACT: u8 = 1;
/// `RM_SMGR_ID`.
pub const RM_SMGR: u8 = 2;
/// `RM_CLOG_ID`.
const RM_CLOG: u8 = 3;
/// `RM_DBASE_ID`.
const RM_DBASE: u8 = 4;
/// `RM_TBLSPC_ID`.
const RM_TBLSPC: u8 = 5;
/// `RM_MULTIXACT_ID`.
const RM_MULTIXACT: u8 = 6;
/// `RM_RELMAP_ID`.
pub const RM_RELMAP: u8 = 7;
/// `RM_STANDBY_ID`.
pub const RM_STANDBY: u8 = 8;
/// `RM_HEAP2_ID`.
pub const RM_HEAP2: u8 = 9;
/// `RM_HEAP_ID`.
pub const RM_HEAP: u8 = 10;
/// `RM_BTREE_ID`.
const RM_BTREE: u8 = 11;
/// `RM_HASH_ID`.
const RM_HASH: u8 = 12;
/// `RM_GIN_ID`.
const RM_GIN: u8 = 13;
/// `RM_GIST_ID`.
const RM_GIST: u8 = 14;
/// `RM_SEQ_ID`.
const RM_SEQ: u8 = 15;
/// `RM_SPGIST_ID`.
const RM_SPGIST: u8 = 16;
/// `RM_BRIN_ID`.
const RM_BRIN: u8 = 17;
/// `RM_COMMIT_TS_ID`.
const RM_COMMIT_TS: u8 = 18;
/// `RM_REPLORIGIN_ID`.
const RM_REPLORIGIN: u8 = 19;
/// `RM_GENERIC_ID`.
const RM_GENERIC: u8 = 20;
/// `RM_LOGICALMSG_ID`.
pub const RM_LOGICALMSG: u8 = 21;
/// How many are built in, the same in 13 to 18.
const BUILTIN: usize = 22;
/// `RM_MIN_CUSTOM_ID`: 15 and later.
const MIN_CUSTOM: u8 = 128;

/// Names by id.
const NAMES: [&str; BUILTIN] = [
    "XLOG",
    "Transaction",
    "Storage",
    "CLOG",
    "Database",
    "Tablespace",
    "MultiXact",
    "RelMap",
    "Standby",
    "Heap2",
    "Heap",
    "Btree",
    "Hash",
    "Gin",
    "Gist",
    "Sequence",
    "SPGist",
    "BRIN",
    "CommitTs",
    "ReplicationOrigin",
    "Generic",
    "LogicalMessage",
];

/// Operation names by resource manager and by the high half of `xl_info`; empty where there is none.
pub type Operations = [[&'static str; 16]; BUILTIN];

/// First and last major that has a name.
type Span = (u32, u32);
/// In every version that is read.
const ALL: Span = (13, 18);

/// Every operation: resource manager, high half of `xl_info`, name, versions.
const OPERATION_NAMES: &[(u8, u8, &str, Span)] = &[
    (RM_XLOG, 0x00, "CHECKPOINT_SHUTDOWN", ALL),
    (RM_XLOG, 0x10, "CHECKPOINT_ONLINE", ALL),
    (RM_XLOG, 0x20, "NOOP", ALL),
    (RM_XLOG, 0x30, "NEXTOID", ALL),
    (RM_XLOG, 0x40, "SWITCH", ALL),
    (RM_XLOG, 0x50, "BACKUP_END", ALL),
    (RM_XLOG, 0x60, "PARAMETER_CHANGE", ALL),
    (RM_XLOG, 0x70, "RESTORE_POINT", ALL),
    (RM_XLOG, 0x80, "FPW_CHANGE", ALL),
    (RM_XLOG, 0x90, "END_OF_RECOVERY", ALL),
    (RM_XLOG, 0xA0, "FPI_FOR_HINT", ALL),
    (RM_XLOG, 0xB0, "FPI", ALL),
    (RM_XLOG, 0xD0, "OVERWRITE_CONTRECORD", ALL),
    (RM_XLOG, 0xE0, "CHECKPOINT_REDO", (17, 18)),
    (RM_XACT, 0x00, "COMMIT", ALL),
    (RM_XACT, 0x10, "PREPARE", ALL),
    (RM_XACT, 0x20, "ABORT", ALL),
    (RM_XACT, 0x30, "COMMIT_PREPARED", ALL),
    (RM_XACT, 0x40, "ABORT_PREPARED", ALL),
    (RM_XACT, 0x50, "ASSIGNMENT", ALL),
    (RM_XACT, 0x60, "INVALIDATION", (14, 18)),
    (RM_SMGR, 0x10, "CREATE", ALL),
    (RM_SMGR, 0x20, "TRUNCATE", ALL),
    (RM_CLOG, 0x00, "ZEROPAGE", ALL),
    (RM_CLOG, 0x10, "TRUNCATE", ALL),
    (RM_DBASE, 0x00, "CREATE", (13, 14)),
    (RM_DBASE, 0x10, "DROP", (13, 14)),
    (RM_DBASE, 0x00, "CREATE_FILE_COPY", (15, 18)),
    (RM_DBASE, 0x10, "CREATE_WAL_LOG", (15, 18)),
    (RM_DBASE, 0x20, "DROP", (15, 18)),
    (RM_TBLSPC, 0x00, "CREATE", ALL),
    (RM_TBLSPC, 0x10, "DROP", ALL),
    (RM_MULTIXACT, 0x00, "ZERO_OFF_PAGE", ALL),
    (RM_MULTIXACT, 0x10, "ZERO_MEM_PAGE", ALL),
    (RM_MULTIXACT, 0x20, "CREATE_ID", ALL),
    (RM_MULTIXACT, 0x30, "TRUNCATE_ID", ALL),
    (RM_RELMAP, 0x00, "UPDATE", ALL),
    (RM_STANDBY, 0x00, "LOCK", ALL),
    (RM_STANDBY, 0x10, "RUNNING_XACTS", ALL),
    (RM_STANDBY, 0x20, "INVALIDATIONS", ALL),
    (RM_HEAP2, 0x00, "REWRITE", ALL),
    (RM_HEAP2, 0x10, "CLEAN", (13, 13)),
    (RM_HEAP2, 0x20, "FREEZE_PAGE", (13, 13)),
    (RM_HEAP2, 0x30, "CLEANUP_INFO", (13, 13)),
    (RM_HEAP2, 0x10, "PRUNE", (14, 16)),
    (RM_HEAP2, 0x20, "VACUUM", (14, 16)),
    (RM_HEAP2, 0x30, "FREEZE_PAGE", (14, 16)),
    (RM_HEAP2, 0x10, "PRUNE_ON_ACCESS", (17, 18)),
    (RM_HEAP2, 0x20, "PRUNE_VACUUM_SCAN", (17, 18)),
    (RM_HEAP2, 0x30, "PRUNE_VACUUM_CLEANUP", (17, 18)),
    (RM_HEAP2, 0x40, "VISIBLE", ALL),
    (RM_HEAP2, 0x50, "MULTI_INSERT", ALL),
    (RM_HEAP2, 0x60, "LOCK_UPDATED", ALL),
    (RM_HEAP2, 0x70, "NEW_CID", ALL),
    (RM_HEAP2, 0xD0, "MULTI_INSERT+INIT", ALL),
    (RM_HEAP, 0x00, "INSERT", ALL),
    (RM_HEAP, 0x10, "DELETE", ALL),
    (RM_HEAP, 0x20, "UPDATE", ALL),
    (RM_HEAP, 0x30, "TRUNCATE", ALL),
    (RM_HEAP, 0x40, "HOT_UPDATE", ALL),
    (RM_HEAP, 0x50, "HEAP_CONFIRM", ALL),
    (RM_HEAP, 0x60, "LOCK", ALL),
    (RM_HEAP, 0x70, "INPLACE", ALL),
    (RM_HEAP, 0x80, "INSERT+INIT", ALL),
    (RM_HEAP, 0xA0, "UPDATE+INIT", ALL),
    (RM_HEAP, 0xC0, "HOT_UPDATE+INIT", ALL),
    (RM_BTREE, 0x00, "INSERT_LEAF", ALL),
    (RM_BTREE, 0x10, "INSERT_UPPER", ALL),
    (RM_BTREE, 0x20, "INSERT_META", ALL),
    (RM_BTREE, 0x30, "SPLIT_L", ALL),
    (RM_BTREE, 0x40, "SPLIT_R", ALL),
    (RM_BTREE, 0x50, "INSERT_POST", ALL),
    (RM_BTREE, 0x60, "DEDUP", ALL),
    (RM_BTREE, 0x70, "DELETE", ALL),
    (RM_BTREE, 0x80, "UNLINK_PAGE", ALL),
    (RM_BTREE, 0x90, "UNLINK_PAGE_META", ALL),
    (RM_BTREE, 0xA0, "NEWROOT", ALL),
    (RM_BTREE, 0xB0, "MARK_PAGE_HALFDEAD", ALL),
    (RM_BTREE, 0xC0, "VACUUM", ALL),
    (RM_BTREE, 0xD0, "REUSE_PAGE", ALL),
    (RM_BTREE, 0xE0, "META_CLEANUP", ALL),
    (RM_HASH, 0x00, "INIT_META_PAGE", ALL),
    (RM_HASH, 0x10, "INIT_BITMAP_PAGE", ALL),
    (RM_HASH, 0x20, "INSERT", ALL),
    (RM_HASH, 0x30, "ADD_OVFL_PAGE", ALL),
    (RM_HASH, 0x40, "SPLIT_ALLOCATE_PAGE", ALL),
    (RM_HASH, 0x50, "SPLIT_PAGE", ALL),
    (RM_HASH, 0x60, "SPLIT_COMPLETE", ALL),
    (RM_HASH, 0x70, "MOVE_PAGE_CONTENTS", ALL),
    (RM_HASH, 0x80, "SQUEEZE_PAGE", ALL),
    (RM_HASH, 0x90, "DELETE", ALL),
    (RM_HASH, 0xA0, "SPLIT_CLEANUP", ALL),
    (RM_HASH, 0xB0, "UPDATE_META_PAGE", ALL),
    (RM_HASH, 0xC0, "VACUUM_ONE_PAGE", ALL),
    (RM_GIN, 0x10, "CREATE_PTREE", ALL),
    (RM_GIN, 0x20, "INSERT", ALL),
    (RM_GIN, 0x30, "SPLIT", ALL),
    (RM_GIN, 0x40, "VACUUM_PAGE", ALL),
    (RM_GIN, 0x50, "DELETE_PAGE", ALL),
    (RM_GIN, 0x60, "UPDATE_META_PAGE", ALL),
    (RM_GIN, 0x70, "INSERT_LISTPAGE", ALL),
    (RM_GIN, 0x80, "DELETE_LISTPAGE", ALL),
    (RM_GIN, 0x90, "VACUUM_DATA_LEAF_PAGE", ALL),
    (RM_GIST, 0x00, "PAGE_UPDATE", ALL),
    (RM_GIST, 0x10, "DELETE", ALL),
    (RM_GIST, 0x20, "PAGE_REUSE", ALL),
    (RM_GIST, 0x30, "PAGE_SPLIT", ALL),
    (RM_GIST, 0x60, "PAGE_DELETE", ALL),
    (RM_GIST, 0x70, "ASSIGN_LSN", ALL),
    (RM_SEQ, 0x00, "LOG", ALL),
    (RM_SPGIST, 0x10, "ADD_LEAF", ALL),
    (RM_SPGIST, 0x20, "MOVE_LEAFS", ALL),
    (RM_SPGIST, 0x30, "ADD_NODE", ALL),
    (RM_SPGIST, 0x40, "SPLIT_TUPLE", ALL),
    (RM_SPGIST, 0x50, "PICKSPLIT", ALL),
    (RM_SPGIST, 0x60, "VACUUM_LEAF", ALL),
    (RM_SPGIST, 0x70, "VACUUM_ROOT", ALL),
    (RM_SPGIST, 0x80, "VACUUM_REDIRECT", ALL),
    (RM_BRIN, 0x00, "CREATE_INDEX", ALL),
    (RM_BRIN, 0x10, "INSERT", ALL),
    (RM_BRIN, 0x20, "UPDATE", ALL),
    (RM_BRIN, 0x30, "SAMEPAGE_UPDATE", ALL),
    (RM_BRIN, 0x40, "REVMAP_EXTEND", ALL),
    (RM_BRIN, 0x50, "DESUMMARIZE", ALL),
    (RM_BRIN, 0x90, "INSERT+INIT", ALL),
    (RM_BRIN, 0xA0, "UPDATE+INIT", ALL),
    (RM_COMMIT_TS, 0x00, "ZEROPAGE", ALL),
    (RM_COMMIT_TS, 0x10, "TRUNCATE", ALL),
    (RM_COMMIT_TS, 0x20, "SETTS", (13, 13)),
    (RM_REPLORIGIN, 0x00, "SET", ALL),
    (RM_REPLORIGIN, 0x10, "DROP", ALL),
    (RM_LOGICALMSG, 0x00, "MESSAGE", ALL),
];

/// The operation names of one major version, laid out for look-up. Run at compile time.
#[allow(clippy::indexing_slicing, reason = "run at compile time on the table above only")]
pub(crate) const fn operations(major: u32) -> Operations {
    let mut table: Operations = [[""; 16]; BUILTIN];
    let mut i = 0;
    while i < OPERATION_NAMES.len() {
        let (rmid, op, name, (first, last)) = OPERATION_NAMES[i];
        if first <= major && major <= last {
            table[rmid as usize][(op >> 4) as usize] = name;
        }
        i += 1;
    }
    // The top bit of XACT operations says that more follows, and every Generic record is one.
    let mut op = 0;
    while op < 16 {
        table[RM_XACT as usize][op] = table[RM_XACT as usize][op & 7];
        table[RM_GENERIC as usize][op] = "Generic";
        op += 1;
    }
    table
}

/// Whether a version can have this resource manager (`RmgrIdIsValid`).
#[must_use]
#[inline]
pub fn is_valid(profile: &WalProfile, rmid: u8) -> bool {
    usize::from(rmid) < BUILTIN || (profile.has_custom_rmgrs && rmid >= MIN_CUSTOM)
}

/// A resource manager's name; an extension's is `custom` and its id.
#[must_use]
pub fn name(rmid: u8) -> Cow<'static, str> {
    match NAMES.get(usize::from(rmid)) {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned(format!("custom{rmid:03}")),
    }
}

/// The id of a resource manager, by its name in any case.
#[must_use]
pub fn by_name(name: &str) -> Option<u8> {
    if let Some(id) = NAMES.iter().position(|n| n.eq_ignore_ascii_case(name)) {
        return u8::try_from(id).ok();
    }
    let digits = name.strip_prefix("custom").filter(|d| d.len() == 3)?;
    digits.parse().ok().filter(|id| *id >= MIN_CUSTOM)
}

/// The names of all built-in resource managers, by id.
#[must_use]
pub fn names() -> &'static [&'static str] {
    &NAMES
}

/// An operation's name; nothing if the version has no such operation.
#[must_use]
#[inline]
pub fn known_operation(profile: &WalProfile, rmid: u8, info: u8) -> Option<&'static str> {
    let name = profile.operations.get(usize::from(rmid))?.get(usize::from(info >> 4))?;
    (!name.is_empty()).then_some(*name)
}

/// An operation's name, for one that the version does not have `UNKNOWN (bits)`.
#[must_use]
pub fn operation_name(profile: &WalProfile, rmid: u8, info: u8) -> Cow<'static, str> {
    match known_operation(profile, rmid, info) {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned(format!("UNKNOWN ({:x})", info & 0xF0)),
    }
}

/// Whether a record ends its segment.
#[must_use]
#[inline]
pub fn is_switch(header: &RecordHeader) -> bool {
    header.rmid == RM_XLOG && header.operation() == xlog::SWITCH
}

/// A record that no decoder knows.
#[cold]
fn other(header: &RecordHeader) -> RecordBody {
    RecordBody::Other { rmid: header.rmid, info: header.operation() }
}

/// Decodes a record's contents; what no decoder knows is [`RecordBody::Other`].
#[inline]
pub(crate) fn decode_body(
    header: &RecordHeader,
    parts: &RecordParts<'_>,
    profile: &WalProfile,
) -> Result<RecordBody, Malformed> {
    match header.rmid {
        RM_XLOG => xlog::decode(header, parts, profile),
        RM_XACT => xact::decode(header, parts, profile),
        RM_SMGR => smgr::decode(header, parts),
        RM_RELMAP => relmap::decode(header, parts, profile),
        RM_STANDBY => standby::decode(header, parts, profile),
        RM_HEAP2 => heap2::decode(header, parts, profile),
        RM_HEAP => heap::decode(header, parts, profile),
        RM_LOGICALMSG => logicalmsg::decode(header, parts),
        RM_BTREE | RM_HASH | RM_GIST | RM_SPGIST => index::decode(header, parts, profile),
        _ => Ok(RecordBody::Other { rmid: header.rmid, info: header.operation() }),
    }
}

#[cfg(test)]
mod tests {
    use pg_types::PgVersion;

    use super::*;

    #[test]
    fn heap2_operations_changed_at_14_and_17() {
        let name = |v, info| operation_name(WalProfile::of(v), RM_HEAP2, info);
        assert_eq!(name(PgVersion::V13, 0x20), "FREEZE_PAGE");
        assert_eq!(name(PgVersion::V14, 0x20), "VACUUM");
        assert_eq!(name(PgVersion::V16, 0x30), "FREEZE_PAGE");
        assert_eq!(name(PgVersion::V17, 0x30), "PRUNE_VACUUM_CLEANUP");
        assert_eq!(name(PgVersion::V18, 0xD0), "MULTI_INSERT+INIT");
        assert_eq!(name(PgVersion::V18, 0x80), "UNKNOWN (80)");
    }

    #[test]
    fn names_are_found_in_any_case() {
        assert_eq!(by_name("heap2"), Some(RM_HEAP2));
        assert_eq!(by_name("LogicalMessage"), Some(RM_LOGICALMSG));
        assert_eq!(by_name("custom128"), Some(128));
        assert_eq!(by_name("custom12"), None);
        assert_eq!(by_name("nothing"), None);
        for (id, n) in NAMES.iter().enumerate() {
            assert_eq!(by_name(n), u8::try_from(id).ok());
        }
    }
}
