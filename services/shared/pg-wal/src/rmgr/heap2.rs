//! HEAP2 records: multi-inserts, command ids, rewrites, pruning, freezing, visibility (`access/heapam_xlog.h`).
//!
//! The operations 10 to 30 changed their meaning at 14 and at 17, and some changed their layout at 16:
//! [`WalProfile::heap2`] names the layout of each.

use pg_types::record::{HeapMultiInsert, NewCidRecord, PruneReason, PruneRecord, RewriteRecord};
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
pub(crate) const PRUNE_IS_CATALOG_REL: u8 = 1 << 1;
/// `XLHP_HAS_CONFLICT_HORIZON`.
pub(crate) const PRUNE_HAS_CONFLICT_HORIZON: u8 = 1 << 3;
/// `XLHP_HAS_FREEZE_PLANS`.
pub(crate) const PRUNE_HAS_FREEZE_PLANS: u8 = 1 << 4;
/// `XLHP_HAS_REDIRECTIONS`.
pub(crate) const PRUNE_HAS_REDIRECTIONS: u8 = 1 << 5;
/// `XLHP_HAS_DEAD_ITEMS`.
pub(crate) const PRUNE_HAS_DEAD_ITEMS: u8 = 1 << 6;
/// `XLHP_HAS_NOW_UNUSED_ITEMS`.
pub(crate) const PRUNE_HAS_NOW_UNUSED_ITEMS: u8 = 1 << 7;
/// `VISIBILITYMAP_ALL_FROZEN`.
const VISIBLE_ALL_FROZEN: u8 = 0x02;
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
    Ok(match layout {
        Heap2Layout::MultiInsert => RecordBody::MultiInsert(multi_insert(parts, init_page, profile)?),
        Heap2Layout::NewCid => RecordBody::NewCid(Box::new(new_cid(main)?)),
        Heap2Layout::Rewrite => RecordBody::Rewrite(Box::new(rewrite(main)?)),
        Heap2Layout::LockUpdated => RecordBody::LockUpdated(heap::lock(parts)?),
        Heap2Layout::CleanupInfo => {
            let (target, conflict_horizon) = cleanup_info(main)?;
            let reason = PruneReason::CleanupInfo;
            RecordBody::Prune(PruneRecord { target, conflict_horizon, reason, ..PruneRecord::default() })
        }
        Heap2Layout::Visible => {
            let xl = XlHeapVisible::read(main)?;
            let heap = parts.block(1)?;
            RecordBody::Visible(PruneRecord {
                target: heap.locator,
                block: heap.block,
                conflict_horizon: xl.horizon,
                is_catalog: xl.flags & VISIBLE_CATALOG_REL != 0,
                frozen: u16::from(xl.flags & VISIBLE_ALL_FROZEN != 0),
                ..PruneRecord::default()
            })
        }
        _ => RecordBody::Prune(prune(header, parts, layout)?),
    })
}

/// Decodes what changes line pointers or freezes rows of one page.
fn prune(header: &RecordHeader, parts: &RecordParts<'_>, layout: Heap2Layout) -> Result<PruneRecord, Malformed> {
    let (main, block) = (parts.main, parts.block(0)?);
    let record = PruneRecord { target: block.locator, block: block.block, ..PruneRecord::default() };
    Ok(match layout {
        Heap2Layout::Clean | Heap2Layout::Prune | Heap2Layout::PruneCatalog => {
            let xl = XlHeapPrune::read(main, layout == Heap2Layout::PruneCatalog)?;
            // What is neither redirected (two numbers each) nor dead is unused; an image leaves no data.
            let told = usize::from(xl.nredirected) * 2 + usize::from(xl.ndead);
            let unused = (block.data.len() / 2).saturating_sub(told) as u16;
            let second_pass = layout == Heap2Layout::Clean && told == 0 && unused > 0;
            PruneRecord {
                conflict_horizon: xl.horizon,
                is_catalog: xl.is_catalog,
                reason: if second_pass { PruneReason::VacuumCleanup } else { PruneReason::OnAccess },
                redirected: xl.nredirected,
                dead: xl.ndead,
                unused,
                ..record
            }
        }
        Heap2Layout::PruneFreeze => prune_freeze(header, main, block.data, record)?,
        // Replay takes the newest xid below the cutoff for the horizon.
        Heap2Layout::FreezeCutoff => {
            let xl = XlHeapFreezePage::read(main, false)?;
            PruneRecord { conflict_horizon: xl.xid.prev(), reason: PruneReason::Freeze, frozen: xl.count, ..record }
        }
        Heap2Layout::FreezeHorizon => {
            let xl = XlHeapFreezePage::read(main, true)?;
            let (conflict_horizon, is_catalog) = (xl.xid, xl.is_catalog);
            let frozen = frozen_by(&mut Cursor::new(block.data), xl.count)?;
            PruneRecord { conflict_horizon, is_catalog, reason: PruneReason::Freeze, frozen, ..record }
        }
        _ => PruneRecord { reason: PruneReason::VacuumCleanup, unused: Cursor::new(main).u16()?, ..record },
    })
}

/// Rows that freeze plans (`xl_heap_freeze_plan`) are about; without data (an image replaced it) none are known.
fn frozen_by(data: &mut Cursor<'_>, plans: u16) -> Result<u16, Malformed> {
    if data.left() == 0 {
        return Ok(0);
    }
    let plans = data.items::<12>(i64::from(plans))?;
    Ok(plans.iter().fold(0u16, |sum, plan| sum.saturating_add(u16::from_le_bytes([plan[10], plan[11]]))))
}

/// Decodes the record that prunes and freezes (17 and later).
fn prune_freeze(header: &RecordHeader, main: &[u8], data: &[u8], record: PruneRecord) -> Result<PruneRecord, Malformed> {
    let xl = XlHeapPruneFreeze::read(main)?;
    let reason = match header.info & OPMASK {
        0x10 => PruneReason::OnAccess,
        0x20 => PruneReason::VacuumScan,
        _ => PruneReason::VacuumCleanup,
    };
    let (conflict_horizon, is_catalog) = (xl.horizon.unwrap_or(Xid::INVALID), xl.is_catalog);
    let mut record = PruneRecord { conflict_horizon, is_catalog, reason, ..record };
    let mut data = Cursor::new(data);
    let has = |flag| xl.flags & flag != 0;
    if data.left() == 0 {
        return Ok(record);
    }
    if has(PRUNE_HAS_FREEZE_PLANS) {
        let plans = data.u16()?;
        data.take(2)?;
        record.frozen = frozen_by(&mut data, plans)?;
    }
    if has(PRUNE_HAS_REDIRECTIONS) {
        record.redirected = data.u16()?;
        data.items::<4>(i64::from(record.redirected))?;
    }
    if has(PRUNE_HAS_DEAD_ITEMS) {
        record.dead = data.u16()?;
        data.items::<2>(i64::from(record.dead))?;
    }
    if has(PRUNE_HAS_NOW_UNUSED_ITEMS) {
        record.unused = data.u16()?;
    }
    Ok(record)
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
