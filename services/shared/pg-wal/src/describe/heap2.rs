//! HEAP2 (`access/rmgrdesc/heapdesc.c`).

use super::heap::{lock_keyed, lock_plain};
use super::{array, offsets};
use crate::blocks::RecordParts;
use crate::cursor::Cursor;
use crate::error::Malformed;
use crate::profile::WalProfile;
use crate::record::RecordHeader;
use crate::rmgr::heap::{INIT_PAGE, XlHeapLock};
use crate::rmgr::heap2::{
    self, Heap2Layout, PRUNE_HAS_DEAD_ITEMS, PRUNE_HAS_FREEZE_PLANS, PRUNE_HAS_NOW_UNUSED_ITEMS, PRUNE_HAS_REDIRECTIONS,
    XlHeapFreezePage, XlHeapMultiInsert, XlHeapPrune, XlHeapPruneFreeze, XlHeapVisible,
};
use crate::text::Text;

/// Line pointers as they stand in a record.
type RawOffsets<'a> = &'a [[u8; 2]];
/// Freeze plans as they stand in a record (`xlhp_freeze_plan`).
type RawPlans<'a> = &'a [[u8; 12]];

/// Writes a HEAP2 record's description.
pub(super) fn describe(
    header: &RecordHeader,
    parts: &RecordParts<'_>,
    profile: &WalProfile,
    out: &mut Text,
) -> Result<(), Malformed> {
    let keyed = profile.text.keyed_heap;
    let init_page = header.info & INIT_PAGE != 0;
    let main = parts.main;
    match heap2::layout(header, profile) {
        Heap2Layout::MultiInsert => multi_insert(parts, init_page, keyed, out)?,
        _ if init_page => {}
        Heap2Layout::NewCid => new_cid(main, keyed, out)?,
        Heap2Layout::LockUpdated => {
            let xl = XlHeapLock::read(main)?;
            if keyed { lock_keyed(&xl, out) } else { lock_plain("xmax", &xl, out) }
        }
        Heap2Layout::Visible => {
            let xl = XlHeapVisible::read(main)?;
            out.str(if keyed { "snapshotConflictHorizon: " } else { "cutoff xid " }).dec(xl.horizon.0);
            out.str(if keyed { ", flags: 0x" } else { " flags 0x" }).hex(u32::from(xl.flags), 2);
        }
        Heap2Layout::Rewrite => {}
        Heap2Layout::Clean => _ = out.str("remxid ").dec(XlHeapPrune::read(main, false)?.horizon.0),
        Heap2Layout::CleanupInfo => _ = out.str("remxid ").dec(heap2::cleanup_info(main)?.1.0),
        Heap2Layout::Prune => {
            let xl = XlHeapPrune::read(main, false)?;
            out.str("latestRemovedXid ").dec(xl.horizon.0).str(" nredirected ").dec(u32::from(xl.nredirected));
            out.str(" ndead ").dec(u32::from(xl.ndead));
        }
        Heap2Layout::PruneCatalog => prune_16(&XlHeapPrune::read(main, true)?, parts, out)?,
        Heap2Layout::Vacuum => vacuum(parts, keyed, out)?,
        Heap2Layout::FreezeCutoff => {
            let xl = XlHeapFreezePage::read(main, false)?;
            out.str("cutoff xid ").dec(xl.xid.0).str(" ntuples ").dec(u32::from(xl.count));
        }
        Heap2Layout::FreezeHorizon => freeze_16(&XlHeapFreezePage::read(main, true)?, parts, out)?,
        Heap2Layout::PruneFreeze => prune_freeze(&XlHeapPruneFreeze::read(main)?, parts, out)?,
    }
    Ok(())
}

/// The data of block 0, if it has any.
fn block_data<'a>(parts: &RecordParts<'a>) -> Option<Cursor<'a>> {
    parts.block(0).ok().filter(|b| b.has_data).map(|b| Cursor::new(b.data))
}

/// A multi-insert. Its line pointers are told only beside tuple data, and a fresh page needs none.
fn multi_insert(parts: &RecordParts<'_>, init_page: bool, keyed: bool, out: &mut Text) -> Result<(), Malformed> {
    let xl = XlHeapMultiInsert::read(parts.main, init_page)?;
    let count = u32::from(xl.ntuples);
    if !keyed {
        out.dec(count).str(" tuples flags 0x").hex(u32::from(xl.flags), 2);
        return Ok(());
    }
    out.str("ntuples: ").dec(count).str(", flags: 0x").hex(u32::from(xl.flags), 2);
    if !init_page && block_data(parts).is_some() {
        out.str(", offsets:");
        offsets(xl.offsets, out);
    }
    Ok(())
}

/// Command ids of a catalog row.
fn new_cid(main: &[u8], keyed: bool, out: &mut Text) -> Result<(), Malformed> {
    let xl = heap2::new_cid(main)?;
    out.str(if keyed { "rel: " } else { "rel " }).locator(xl.target);
    out.str(if keyed { ", tid: " } else { "; tid " }).dec(xl.tid.block).str("/").dec(u32::from(xl.tid.offset));
    out.str(if keyed { ", cmin: " } else { "; cmin: " }).dec(xl.cmin.0);
    out.str(", cmax: ").dec(xl.cmax.0).str(", combo: ").dec(xl.combocid.0);
    Ok(())
}

/// Pruning in 16: what is neither redirected nor dead is unused.
fn prune_16(xl: &XlHeapPrune, parts: &RecordParts<'_>, out: &mut Text) -> Result<(), Malformed> {
    out.str("snapshotConflictHorizon: ").dec(xl.horizon.0);
    out.str(", nredirected: ").dec(u32::from(xl.nredirected)).str(", ndead: ").dec(u32::from(xl.ndead));
    let Some(mut data) = block_data(parts) else { return Ok(()) };
    let redirected = data.items::<4>(i64::from(xl.nredirected))?;
    let dead = data.items::<2>(i64::from(xl.ndead))?;
    let (unused, _) = data.rest().as_chunks::<2>();
    out.str(", nunused: ").dec(unused.len() as u32).str(", redirected:");
    redirections(redirected, out);
    out.str(", dead:");
    offsets(dead, out);
    out.str(", unused:");
    offsets(unused, out);
    Ok(())
}

/// VACUUM's second pass, 14 to 16.
fn vacuum(parts: &RecordParts<'_>, keyed: bool, out: &mut Text) -> Result<(), Malformed> {
    let count = Cursor::new(parts.main).u16()?;
    out.str(if keyed { "nunused: " } else { "nunused " }).dec(u32::from(count));
    if keyed && let Some(mut data) = block_data(parts) {
        out.str(", unused:");
        offsets(data.items(i64::from(count))?, out);
    }
    Ok(())
}

/// Freezing in 16.
fn freeze_16(xl: &XlHeapFreezePage, parts: &RecordParts<'_>, out: &mut Text) -> Result<(), Malformed> {
    out.str("snapshotConflictHorizon: ").dec(xl.xid.0).str(", nplans: ").dec(u32::from(xl.count));
    if let Some(mut data) = block_data(parts) {
        let plans = data.items(i64::from(xl.count))?;
        out.str(", plans:");
        freeze_plans(plans, &mut data, out)?;
    }
    Ok(())
}

/// Pruning and freezing from 17 on (`heap_xlog_deserialize_prune_and_freeze`).
fn prune_freeze(xl: &XlHeapPruneFreeze, parts: &RecordParts<'_>, out: &mut Text) -> Result<(), Malformed> {
    if let Some(horizon) = xl.horizon {
        out.str("snapshotConflictHorizon: ").dec(horizon.0);
    }
    out.str(", isCatalogRel: ").str(if xl.is_catalog { "T" } else { "F" });
    let Some(mut data) = block_data(parts) else { return Ok(()) };
    let has = |flag| xl.flags & flag != 0;
    let mut plans: RawPlans<'_> = &[];
    let mut redirected: &[[u8; 4]] = &[];
    let (mut dead, mut unused): (RawOffsets<'_>, RawOffsets<'_>) = (&[], &[]);
    if has(PRUNE_HAS_FREEZE_PLANS) {
        let count = i64::from(data.u16()?);
        data.take(2)?;
        plans = data.items(count)?;
    }
    if has(PRUNE_HAS_REDIRECTIONS) {
        let count = i64::from(data.u16()?);
        redirected = data.items(count)?;
    }
    if has(PRUNE_HAS_DEAD_ITEMS) {
        let count = i64::from(data.u16()?);
        dead = data.items(count)?;
    }
    if has(PRUNE_HAS_NOW_UNUSED_ITEMS) {
        let count = i64::from(data.u16()?);
        unused = data.items(count)?;
    }
    out.str(", nplans: ").dec(plans.len() as u32).str(", nredirected: ").dec(redirected.len() as u32);
    out.str(", ndead: ").dec(dead.len() as u32).str(", nunused: ").dec(unused.len() as u32);
    if !plans.is_empty() {
        out.str(", plans:");
        freeze_plans(plans, &mut data, out)?;
    }
    if !redirected.is_empty() {
        out.str(", redirected:");
        redirections(redirected, out);
    }
    for (label, items) in [(", dead:", dead), (", unused:", unused)] {
        if !items.is_empty() {
            out.str(label);
            offsets(items, out);
        }
    }
    Ok(())
}

/// Pairs of line pointers: `[9->98, 48->99]`.
fn redirections(raw: &[[u8; 4]], out: &mut Text) {
    array(raw, out, |&[a, b, c, d], out| {
        let (from, to) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        out.dec(u32::from(from)).str("->").dec(u32::from(to));
    });
}

/// Freeze plans, each with its line pointers, which follow one another in `frozen`.
fn freeze_plans(plans: RawPlans<'_>, frozen: &mut Cursor<'_>, out: &mut Text) -> Result<(), Malformed> {
    let mut result = Ok(());
    array(plans, out, |plan, out| {
        let [x0, x1, x2, x3, m0, m1, i0, i1, _flags, _pad, n0, n1] = *plan;
        let number = |low, high| u32::from(u16::from_le_bytes([low, high]));
        out.str("{ xmax: ").dec(u32::from_le_bytes([x0, x1, x2, x3])).str(", infomask: ").dec(number(i0, i1));
        out.str(", infomask2: ").dec(number(m0, m1)).str(", ntuples: ").dec(number(n0, n1)).str(", offsets:");
        match frozen.items::<2>(i64::from(number(n0, n1))) {
            Ok(items) => offsets(items, out),
            Err(e) => result = Err(e),
        }
        out.str(" }");
    });
    result
}
