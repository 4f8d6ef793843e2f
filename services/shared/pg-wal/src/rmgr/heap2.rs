//! HEAP2 records: multi-inserts, command ids, rewrites, pruning, freezing, visibility (`access/heapam_xlog.h`).
//!
//! The operations 10 to 30 changed their meaning at 14 and at 17, and some changed their layout at 16:
//! [`WalProfile::heap2`] names the layout of each.

use pg_types::record::{HeapMultiInsert, NewCidRecord, PruneRecord, RewriteRecord};
use pg_types::{CommandId, Lsn, Oid, RecordBody, RelFileLocator, Tid, Xid};

use super::heap::{self, INIT_PAGE, INSERT_CONTAINS_NEW_TUPLE, INSERT_LAST_IN_MULTI, INSERT_ON_TOAST_RELATION, OPMASK};
use crate::blocks::{RecordParts, read_locator};
use crate::cursor::Cursor;
use crate::error::Malformed;
use crate::profile::WalProfile;
use crate::record::RecordHeader;

/// What a HEAP2 operation holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heap2Layout {
    /// `xl_heap_rewrite_mapping`.
    Rewrite,
    /// `xl_heap_clean` (13): newest removed xid, two counts; the rest of the line pointers is unused ones.
    Clean,
    /// `xl_heap_cleanup_info` (13): file and newest removed xid.
    CleanupInfo,
    /// `xl_heap_prune` of 14 and 15: newest removed xid, two counts.
    Prune,
    /// `xl_heap_prune` of 16: the same, then whether it is a catalog.
    PruneCatalog,
    /// `xl_heap_vacuum` (14 to 16): a count. It removes what pruning left; nothing conflicts.
    Vacuum,
    /// `xl_heap_freeze_page` up to 15: the xid below which all is frozen, a count of tuples.
    FreezeCutoff,
    /// `xl_heap_freeze_page` of 16: conflict horizon, a count of plans, whether it is a catalog.
    FreezeHorizon,
    /// `xl_heap_prune` from 17 on: flags, and the conflict horizon if they say so.
    PruneFreeze,
    /// `xl_heap_visible`.
    Visible,
    /// `xl_heap_multi_insert`.
    MultiInsert,
    /// `xl_heap_lock_updated`.
    LockUpdated,
    /// `xl_heap_new_cid`.
    NewCid,
}

/// `XLHP_IS_CATALOG_REL`.
const PRUNE_IS_CATALOG_REL: u8 = 1 << 1;
/// `XLHP_HAS_CONFLICT_HORIZON`.
const PRUNE_HAS_CONFLICT_HORIZON: u8 = 1 << 3;
/// `XLHP_HAS_FREEZE_PLANS`.
pub(crate) const PRUNE_HAS_FREEZE_PLANS: u8 = 1 << 4;
/// `XLHP_HAS_REDIRECTIONS`.
pub(crate) const PRUNE_HAS_REDIRECTIONS: u8 = 1 << 5;
/// `XLHP_HAS_DEAD_ITEMS`.
pub(crate) const PRUNE_HAS_DEAD_ITEMS: u8 = 1 << 6;
/// `XLHP_HAS_NOW_UNUSED_ITEMS`.
pub(crate) const PRUNE_HAS_NOW_UNUSED_ITEMS: u8 = 1 << 7;
/// `VISIBILITYMAP_XLOG_CATALOG_REL`, 16 and later.
const VISIBLE_CATALOG_REL: u8 = 0x04;

/// The layout of an operation in a version.
#[inline]
pub(crate) fn layout(header: &RecordHeader, profile: &WalProfile) -> Heap2Layout {
    let code = usize::from((header.info & OPMASK) >> 4);
    profile.heap2.get(code).copied().unwrap_or(Heap2Layout::NewCid)
}

/// `xl_heap_multi_insert`, without its array of line pointers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XlHeapMultiInsert<'a> {
    /// `XLH_INSERT_*`.
    pub(crate) flags: u8,
    /// Rows.
    pub(crate) ntuples: u16,
    /// Line pointers; none on a fresh page.
    pub(crate) offsets: &'a [[u8; 2]],
}

/// `xl_heap_prune` of 13 to 16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XlHeapPrune {
    /// Conflict horizon.
    pub(crate) horizon: Xid,
    /// Redirected line pointers.
    pub(crate) nredirected: u16,
    /// Dead line pointers.
    pub(crate) ndead: u16,
    /// A catalog (16).
    pub(crate) is_catalog: bool,
}

/// `xl_heap_prune` from 17 on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XlHeapPruneFreeze {
    /// `XLHP_*`.
    pub(crate) flags: u8,
    /// Conflict horizon, if there is one.
    pub(crate) horizon: Option<Xid>,
    /// A catalog.
    pub(crate) is_catalog: bool,
}

/// `xl_heap_freeze_page`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XlHeapFreezePage {
    /// Up to 15 the cutoff, in 16 the conflict horizon.
    pub(crate) xid: Xid,
    /// Up to 15 tuples, in 16 plans.
    pub(crate) count: u16,
    /// A catalog (16).
    pub(crate) is_catalog: bool,
}

/// `xl_heap_visible`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct XlHeapVisible {
    /// Conflict horizon.
    pub(crate) horizon: Xid,
    /// `VISIBILITYMAP_*`.
    pub(crate) flags: u8,
}

impl<'a> XlHeapMultiInsert<'a> {
    /// Reads one.
    pub(crate) fn read(main: &'a [u8], init_page: bool) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        let flags = c.u8()?;
        c.take(1)?;
        let ntuples = c.u16()?;
        let offsets = if init_page { &[] } else { c.items(i64::from(ntuples))? };
        Ok(Self { flags, ntuples, offsets })
    }
}

impl XlHeapPrune {
    /// Reads one.
    pub(crate) fn read(main: &[u8], has_catalog: bool) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        let (horizon, nredirected, ndead) = (Xid(c.u32()?), c.u16()?, c.u16()?);
        Ok(Self { horizon, nredirected, ndead, is_catalog: has_catalog && c.bool()? })
    }
}

impl XlHeapPruneFreeze {
    /// Reads one; its first byte, the reason, says no more than the operation.
    pub(crate) fn read(main: &[u8]) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        let (_reason, flags) = (c.u8()?, c.u8()?);
        let horizon = if flags & PRUNE_HAS_CONFLICT_HORIZON == 0 { None } else { Some(Xid(c.u32()?)) };
        Ok(Self { flags, horizon, is_catalog: flags & PRUNE_IS_CATALOG_REL != 0 })
    }
}

impl XlHeapFreezePage {
    /// Reads one.
    pub(crate) fn read(main: &[u8], has_catalog: bool) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        let (xid, count) = (Xid(c.u32()?), c.u16()?);
        Ok(Self { xid, count, is_catalog: has_catalog && c.bool()? })
    }
}

impl XlHeapVisible {
    /// Reads one.
    pub(crate) fn read(main: &[u8]) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        Ok(Self { horizon: Xid(c.u32()?), flags: c.u8()? })
    }
}

/// Reads an `xl_heap_new_cid`.
pub(crate) fn new_cid(main: &[u8]) -> Result<NewCidRecord, Malformed> {
    let mut c = Cursor::new(main);
    let (top_xid, cmin) = (Xid(c.u32()?), CommandId(c.u32()?));
    let (cmax, combocid) = (CommandId(c.u32()?), CommandId(c.u32()?));
    let target = read_locator(&mut c)?;
    // ItemPointerData: the block number as two halves, the high one first.
    let (high, low, offset) = (c.u16()?, c.u16()?, c.u16()?);
    let tid = Tid { block: u32::from(high) << 16 | u32::from(low), offset };
    Ok(NewCidRecord { top_xid, cmin, cmax, combocid, target, tid })
}

/// Reads an `xl_heap_rewrite_mapping`.
fn rewrite(main: &[u8]) -> Result<RewriteRecord, Malformed> {
    let mut c = Cursor::new(main);
    let (mapped_xid, mapped_db, mapped_rel) = (Xid(c.u32()?), Oid(c.u32()?), Oid(c.u32()?));
    c.take(4)?;
    let (offset, num_mappings) = (c.u64()?, c.u32()?);
    c.take(4)?;
    Ok(RewriteRecord { mapped_xid, mapped_db, mapped_rel, offset, num_mappings, start_lsn: Lsn(c.u64()?) })
}

/// Decodes a HEAP2 record.
pub(super) fn decode(header: &RecordHeader, parts: &RecordParts<'_>, profile: &WalProfile) -> Result<RecordBody, Malformed> {
    let main = parts.main;
    let init_page = header.info & INIT_PAGE != 0;
    let layout = layout(header, profile);
    if init_page && layout != Heap2Layout::MultiInsert {
        return Ok(super::other(header));
    }
    let prune = |horizon: Xid, is_catalog: bool| -> Result<RecordBody, Malformed> {
        let block = parts.block(0)?;
        let (target, block) = (block.locator, block.block);
        Ok(RecordBody::Prune(PruneRecord { target, block, conflict_horizon: horizon, is_catalog }))
    };
    Ok(match layout {
        Heap2Layout::MultiInsert => RecordBody::MultiInsert(multi_insert(parts, init_page, profile)?),
        Heap2Layout::NewCid => RecordBody::NewCid(Box::new(new_cid(main)?)),
        Heap2Layout::Rewrite => RecordBody::Rewrite(Box::new(rewrite(main)?)),
        Heap2Layout::LockUpdated => RecordBody::LockUpdated(heap::lock(parts)?),
        Heap2Layout::Clean | Heap2Layout::Prune => prune(XlHeapPrune::read(main, false)?.horizon, false)?,
        Heap2Layout::PruneCatalog => {
            let xl = XlHeapPrune::read(main, true)?;
            prune(xl.horizon, xl.is_catalog)?
        }
        Heap2Layout::PruneFreeze => {
            let xl = XlHeapPruneFreeze::read(main)?;
            prune(xl.horizon.unwrap_or(Xid::INVALID), xl.is_catalog)?
        }
        Heap2Layout::Vacuum => prune(Xid::INVALID, false)?,
        // Replay takes the newest xid below the cutoff for the horizon.
        Heap2Layout::FreezeCutoff => prune(XlHeapFreezePage::read(main, false)?.xid.prev(), false)?,
        Heap2Layout::FreezeHorizon => {
            let xl = XlHeapFreezePage::read(main, true)?;
            prune(xl.xid, xl.is_catalog)?
        }
        Heap2Layout::CleanupInfo => {
            let (target, conflict_horizon) = cleanup_info(main)?;
            RecordBody::Prune(PruneRecord { target, block: 0, conflict_horizon, is_catalog: false })
        }
        Heap2Layout::Visible => {
            let xl = XlHeapVisible::read(main)?;
            let heap = parts.block(1)?;
            let (target, block, conflict_horizon) = (heap.locator, heap.block, xl.horizon);
            let is_catalog = xl.flags & VISIBLE_CATALOG_REL != 0;
            RecordBody::Visible(PruneRecord { target, block, conflict_horizon, is_catalog })
        }
    })
}

/// Reads an `xl_heap_cleanup_info`.
pub(crate) fn cleanup_info(main: &[u8]) -> Result<(RelFileLocator, Xid), Malformed> {
    let mut c = Cursor::new(main);
    Ok((read_locator(&mut c)?, Xid(c.u32()?)))
}

/// Decodes a multi-insert.
fn multi_insert(parts: &RecordParts<'_>, init_page: bool, profile: &WalProfile) -> Result<HeapMultiInsert, Malformed> {
    let xl = XlHeapMultiInsert::read(parts.main, init_page)?;
    let block = parts.block(0)?;
    Ok(HeapMultiInsert {
        target: block.locator,
        block: block.block,
        ntuples: xl.ntuples,
        logical: xl.flags & INSERT_CONTAINS_NEW_TUPLE != 0,
        toast: profile.has_toast_flag && xl.flags & INSERT_ON_TOAST_RELATION != 0,
        last_in_multi: xl.flags & INSERT_LAST_IN_MULTI != 0,
        init_page,
        tuples_len: block.data.len() as u32,
    })
}
