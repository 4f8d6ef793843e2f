//! HEAP records: rows inserted, deleted, updated, locked; truncations; in-place updates (`access/heapam_xlog.h`).

use pg_types::record::{HeapDelete, HeapInsert, HeapLock, HeapPlace, HeapUpdate, InplaceRecord, OldTuple, TruncateRecord};
use pg_types::{Oid, RecordBody, Tid, Xid};

use super::standby::{Invalidations, messages};
use crate::blocks::RecordParts;
use crate::cursor::Cursor;
use crate::error::Malformed;
use crate::profile::WalProfile;
use crate::record::RecordHeader;

/// `XLOG_HEAP_INSERT`.
pub const INSERT: u8 = 0x00;
/// `XLOG_HEAP_DELETE`.
pub const DELETE: u8 = 0x10;
/// `XLOG_HEAP_UPDATE`.
pub const UPDATE: u8 = 0x20;
/// `XLOG_HEAP_TRUNCATE`.
pub const TRUNCATE: u8 = 0x30;
/// `XLOG_HEAP_HOT_UPDATE`.
pub const HOT_UPDATE: u8 = 0x40;
/// `XLOG_HEAP_CONFIRM`.
pub const CONFIRM: u8 = 0x50;
/// `XLOG_HEAP_LOCK`.
pub const LOCK: u8 = 0x60;
/// `XLOG_HEAP_INPLACE`.
pub const INPLACE: u8 = 0x70;
/// `XLOG_HEAP_OPMASK`.
pub const OPMASK: u8 = 0x70;
/// `XLOG_HEAP_INIT_PAGE`.
pub const INIT_PAGE: u8 = 0x80;

/// `XLH_INSERT_LAST_IN_MULTI`.
pub(crate) const INSERT_LAST_IN_MULTI: u8 = 1 << 1;
/// `XLH_INSERT_IS_SPECULATIVE`.
const INSERT_IS_SPECULATIVE: u8 = 1 << 2;
/// `XLH_INSERT_CONTAINS_NEW_TUPLE`.
pub(crate) const INSERT_CONTAINS_NEW_TUPLE: u8 = 1 << 3;
/// `XLH_INSERT_ON_TOAST_RELATION`, 14 and later.
pub(crate) const INSERT_ON_TOAST_RELATION: u8 = 1 << 4;
/// `XLH_UPDATE_CONTAINS_OLD_TUPLE`.
const UPDATE_CONTAINS_OLD_TUPLE: u8 = 1 << 2;
/// `XLH_UPDATE_CONTAINS_OLD_KEY`.
const UPDATE_CONTAINS_OLD_KEY: u8 = 1 << 3;
/// `XLH_UPDATE_CONTAINS_NEW_TUPLE`.
const UPDATE_CONTAINS_NEW_TUPLE: u8 = 1 << 4;
/// `XLH_DELETE_CONTAINS_OLD_TUPLE`.
const DELETE_CONTAINS_OLD_TUPLE: u8 = 1 << 1;
/// `XLH_DELETE_CONTAINS_OLD_KEY`.
const DELETE_CONTAINS_OLD_KEY: u8 = 1 << 2;
/// `XLH_DELETE_IS_SUPER`.
const DELETE_IS_SUPER: u8 = 1 << 3;
/// `XLH_DELETE_IS_PARTITION_MOVE`.
const DELETE_IS_PARTITION_MOVE: u8 = 1 << 4;
/// `XLH_DELETE_NO_LOGICAL`; no version from 13 to 18 sets it in a record, later ones do.
const DELETE_NO_LOGICAL: u8 = 1 << 5;
/// `SizeOfHeapDelete`.
const DELETE_LEN: usize = 8;
/// `SizeOfHeapUpdate`.
const UPDATE_LEN: usize = 14;
/// `XLH_TRUNCATE_CASCADE`.
pub(crate) const TRUNCATE_CASCADE: u8 = 1 << 0;
/// `XLH_TRUNCATE_RESTART_SEQS`.
pub(crate) const TRUNCATE_RESTART_SEQS: u8 = 1 << 1;

/// `xl_heap_insert`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XlHeapInsert {
    /// Line pointer.
    pub(crate) offnum: u16,
    /// `XLH_INSERT_*`.
    pub(crate) flags: u8,
}

/// `xl_heap_delete`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XlHeapDelete {
    /// The new xmax.
    pub(crate) xmax: Xid,
    /// Line pointer.
    pub(crate) offnum: u16,
    /// `XLHL_*`.
    pub(crate) infobits: u8,
    /// `XLH_DELETE_*`.
    pub(crate) flags: u8,
}

/// `xl_heap_update`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XlHeapUpdate {
    /// xmax of the old version.
    pub(crate) old_xmax: Xid,
    /// Line pointer of the old version.
    pub(crate) old_offnum: u16,
    /// `XLHL_*` of the old version.
    pub(crate) old_infobits: u8,
    /// `XLH_UPDATE_*`.
    pub(crate) flags: u8,
    /// xmax of the new version.
    pub(crate) new_xmax: Xid,
    /// Line pointer of the new version.
    pub(crate) new_offnum: u16,
}

/// `xl_heap_lock`, and `xl_heap_lock_updated`, which is the same.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XlHeapLock {
    /// The locker.
    pub(crate) xmax: Xid,
    /// Line pointer.
    pub(crate) offnum: u16,
    /// `XLHL_*`.
    pub(crate) infobits: u8,
    /// `XLH_LOCK_*`.
    pub(crate) flags: u8,
}

/// `xl_heap_truncate`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XlHeapTruncate<'a> {
    /// Database.
    pub(crate) db: Oid,
    /// `XLH_TRUNCATE_*`.
    pub(crate) flags: u8,
    /// Relations.
    pub(crate) relids: &'a [[u8; 4]],
}

/// `xl_heap_inplace`; messages from 18 on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XlHeapInplace<'a> {
    /// Line pointer.
    pub(crate) offnum: u16,
    /// Messages, none before 18.
    pub(crate) inval: Invalidations<'a>,
}

impl XlHeapInsert {
    /// Reads one.
    #[inline]
    pub(crate) fn read(main: &[u8]) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        Ok(Self { offnum: c.u16()?, flags: c.u8()? })
    }
}

impl XlHeapDelete {
    /// Reads one.
    pub(crate) fn read(main: &[u8]) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        Ok(Self { xmax: Xid(c.u32()?), offnum: c.u16()?, infobits: c.u8()?, flags: c.u8()? })
    }
}

impl XlHeapUpdate {
    /// Reads one.
    pub(crate) fn read(main: &[u8]) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        Ok(Self {
            old_xmax: Xid(c.u32()?),
            old_offnum: c.u16()?,
            old_infobits: c.u8()?,
            flags: c.u8()?,
            new_xmax: Xid(c.u32()?),
            new_offnum: c.u16()?,
        })
    }
}

impl XlHeapLock {
    /// Reads one.
    pub(crate) fn read(main: &[u8]) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        Ok(Self { xmax: Xid(c.u32()?), offnum: c.u16()?, infobits: c.u8()?, flags: c.u8()? })
    }
}

impl<'a> XlHeapTruncate<'a> {
    /// Reads one.
    pub(crate) fn read(main: &'a [u8]) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        let (db, count, flags) = (Oid(c.u32()?), c.u32()?, c.u8()?);
        c.take(3)?;
        Ok(Self { db, flags, relids: c.items(i64::from(count))? })
    }
}

impl<'a> XlHeapInplace<'a> {
    /// Reads one.
    pub(crate) fn read(main: &'a [u8], profile: &WalProfile) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        let offnum = c.u16()?;
        if !profile.has_inplace_messages {
            return Ok(Self { offnum, inval: Invalidations::default() });
        }
        c.take(2)?;
        Ok(Self { offnum, inval: Invalidations::read(&mut c)? })
    }
}

/// Line pointer of `confirm` and of the older `inplace`: all that they hold.
pub(crate) fn offnum(main: &[u8]) -> Result<u16, Malformed> {
    Cursor::new(main).u16()
}

/// What is kept of the old row.
fn old_tuple(flags: u8, full: u8, key: u8) -> OldTuple {
    match (flags & full != 0, flags & key != 0) {
        (true, _) => OldTuple::Full,
        (false, true) => OldTuple::Key,
        (false, false) => OldTuple::None,
    }
}

/// Bytes of it: all that follows the `fixed` ones of the main data.
fn old_len(old: OldTuple, main: &[u8], fixed: usize) -> u32 {
    if old == OldTuple::None { 0 } else { main.len().saturating_sub(fixed) as u32 }
}

/// Decodes a HEAP record.
pub(super) fn decode(header: &RecordHeader, parts: &RecordParts<'_>, profile: &WalProfile) -> Result<RecordBody, Malformed> {
    let main = parts.main;
    let init_page = header.info & INIT_PAGE != 0;
    Ok(match header.info & OPMASK {
        INSERT => RecordBody::Insert(insert(parts, init_page, profile)?),
        DELETE => RecordBody::Delete(delete(parts)?),
        op @ (UPDATE | HOT_UPDATE) => RecordBody::Update(update(parts, op == HOT_UPDATE, init_page)?),
        TRUNCATE => {
            let truncate = XlHeapTruncate::read(main)?;
            RecordBody::Truncate(Box::new(TruncateRecord {
                db: truncate.db,
                cascade: truncate.flags & TRUNCATE_CASCADE != 0,
                restart_seqs: truncate.flags & TRUNCATE_RESTART_SEQS != 0,
                relids: truncate.relids.iter().map(|b| Oid(u32::from_le_bytes(*b))).collect(),
            }))
        }
        CONFIRM => {
            let (block, offset) = (parts.block(0)?, offnum(main)?);
            RecordBody::Confirm(HeapPlace { target: block.locator, tid: Tid { block: block.block, offset } })
        }
        LOCK => RecordBody::Lock(lock(parts)?),
        _ => RecordBody::Inplace(Box::new(inplace(parts, profile)?)),
    })
}

/// Decodes an insert. The row's header takes 5 bytes of the block's data.
fn insert(parts: &RecordParts<'_>, init_page: bool, profile: &WalProfile) -> Result<HeapInsert, Malformed> {
    let xl = XlHeapInsert::read(parts.main)?;
    let block = parts.block(0)?;
    Ok(HeapInsert {
        target: block.locator,
        tid: Tid { block: block.block, offset: xl.offnum },
        logical: xl.flags & INSERT_CONTAINS_NEW_TUPLE != 0,
        speculative: xl.flags & INSERT_IS_SPECULATIVE != 0,
        toast: profile.has_toast_flag && xl.flags & INSERT_ON_TOAST_RELATION != 0,
        init_page,
        tuple_len: block.data.len() as u32,
    })
}

/// Decodes a delete.
fn delete(parts: &RecordParts<'_>) -> Result<HeapDelete, Malformed> {
    let xl = XlHeapDelete::read(parts.main)?;
    let block = parts.block(0)?;
    let old = old_tuple(xl.flags, DELETE_CONTAINS_OLD_TUPLE, DELETE_CONTAINS_OLD_KEY);
    Ok(HeapDelete {
        target: block.locator,
        tid: Tid { block: block.block, offset: xl.offnum },
        xmax: xl.xmax,
        old,
        old_len: old_len(old, parts.main, DELETE_LEN),
        super_deletion: xl.flags & DELETE_IS_SUPER != 0,
        partition_move: xl.flags & DELETE_IS_PARTITION_MOVE != 0,
        no_logical: xl.flags & DELETE_NO_LOGICAL != 0,
    })
}

/// Decodes an update. Block 0 is the new page, block 1 the old one if it is another.
fn update(parts: &RecordParts<'_>, hot: bool, init_page: bool) -> Result<HeapUpdate, Malformed> {
    let xl = XlHeapUpdate::read(parts.main)?;
    let new = parts.block(0)?;
    let old = parts.block(1).unwrap_or(new);
    let kept = old_tuple(xl.flags, UPDATE_CONTAINS_OLD_TUPLE, UPDATE_CONTAINS_OLD_KEY);
    Ok(HeapUpdate {
        target: new.locator,
        old_tid: Tid { block: old.block, offset: xl.old_offnum },
        new_tid: Tid { block: new.block, offset: xl.new_offnum },
        old_xmax: xl.old_xmax,
        new_xmax: xl.new_xmax,
        hot,
        logical: xl.flags & UPDATE_CONTAINS_NEW_TUPLE != 0,
        old: kept,
        old_len: old_len(kept, parts.main, UPDATE_LEN),
        init_page,
        tuple_len: new.data.len() as u32,
    })
}

/// Decodes a row lock.
pub(super) fn lock(parts: &RecordParts<'_>) -> Result<HeapLock, Malformed> {
    let xl = XlHeapLock::read(parts.main)?;
    let block = parts.block(0)?;
    let tid = Tid { block: block.block, offset: xl.offnum };
    Ok(HeapLock { target: block.locator, tid, xmax: xl.xmax, infobits: xl.infobits })
}

/// Decodes an in-place update.
fn inplace(parts: &RecordParts<'_>, profile: &WalProfile) -> Result<InplaceRecord, Malformed> {
    let xl = XlHeapInplace::read(parts.main, profile)?;
    let block = parts.block(0)?;
    Ok(InplaceRecord {
        target: block.locator,
        tid: Tid { block: block.block, offset: xl.offnum },
        db: xl.inval.db,
        spc: xl.inval.spc,
        relcache_init_file_inval: xl.inval.init_file,
        messages: messages(xl.inval.messages, profile)?,
    })
}
