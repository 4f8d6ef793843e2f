//! Pruning, freezing, visibility (`access/heapam_xlog.h`: `xl_heap_prune`, `xl_heap_vacuum`, `xl_heap_freeze_page`,
//! `xl_heap_visible`; 13: `xl_heap_clean`, `xl_heap_cleanup_info`).
//!
//! A typed record tells how many line pointers change, not which: they count from 1 here.

use pg_types::record::{PruneReason, PruneRecord};

use super::assemble::{Block, Put, RmgrOp};
use super::heap::{flags, heap_block, heap2_op};
use super::{EncodeError, Encoder};
use crate::profile::WalProfile;
use crate::rmgr::heap2::{
    Heap2Layout, PRUNE_HAS_CONFLICT_HORIZON, PRUNE_HAS_DEAD_ITEMS, PRUNE_HAS_FREEZE_PLANS, PRUNE_HAS_NOW_UNUSED_ITEMS,
    PRUNE_HAS_REDIRECTIONS, PRUNE_IS_CATALOG_REL,
};

/// `HEAP_XMIN_COMMITTED | HEAP_XMIN_INVALID | HEAP_XMAX_INVALID`: a frozen row.
const FROZEN_INFOMASK: u16 = 0x0B00;
/// Heap blocks whose two bits one page of the map holds.
const HEAPBLOCKS_PER_PAGE: u32 = (8192 - 24) * 4;

/// The operation of a layout, as `xl_info`.
fn operation(profile: &WalProfile, layout: Heap2Layout) -> Option<u8> {
    profile.heap2.iter().position(|known| *known == layout).map(|code| (code as u8) << 4)
}

/// Line pointers from `first` on.
fn put_offsets(first: u16, count: u16, out: &mut Vec<u8>) {
    (0..count).for_each(|n| out.u16(first.saturating_add(n)));
}

/// One freeze plan (`xlhp_freeze_plan`, `xl_heap_freeze_plan`) for all rows.
fn put_plan(rows: u16, out: &mut Vec<u8>) {
    out.u32(0);
    out.u16(1);
    out.u16(FROZEN_INFOMASK);
    out.extend_from_slice(&[0, 0]);
    out.u16(rows);
}

impl Encoder {
    /// `heap_page_prune`, `lazy_vacuum_heap_page`, `heap_freeze_execute_prepared`; from 17 on `log_heap_prune_and_freeze`.
    pub(super) fn prune(&mut self, r: &PruneRecord) -> Result<RmgrOp, EncodeError> {
        if self.profile.heap2.contains(&Heap2Layout::PruneFreeze) {
            return self.prune_freeze(r);
        }
        let tells_catalog = self.profile.heap2.contains(&Heap2Layout::PruneCatalog);
        if r.is_catalog && !tells_catalog {
            return Err(self.not_in_version("that a pruned or visible table is a catalog"));
        }
        let wanted: &[Heap2Layout] = match r.reason {
            PruneReason::OnAccess => &[Heap2Layout::Clean, Heap2Layout::Prune, Heap2Layout::PruneCatalog],
            PruneReason::VacuumScan => &[],
            PruneReason::VacuumCleanup => &[Heap2Layout::Vacuum, Heap2Layout::Clean],
            PruneReason::Freeze => &[Heap2Layout::FreezeCutoff, Heap2Layout::FreezeHorizon],
            PruneReason::CleanupInfo => &[Heap2Layout::CleanupInfo],
        };
        let found = wanted.iter().find_map(|layout| operation(self.profile, *layout).map(|op| (op, *layout)));
        let (op, layout) = found.ok_or_else(|| self.not_in_version("what VACUUM does to pages in this way"))?;
        if layout == Heap2Layout::Vacuum && (r.conflict_horizon.is_valid() || r.is_catalog) {
            return Err(self.not_in_version("whom VACUUM's second pass conflicts with"));
        }
        match layout {
            Heap2Layout::CleanupInfo => {
                self.main().locator(r.target);
                self.main().u32(r.conflict_horizon.0);
                return Ok(heap2_op(op));
            }
            Heap2Layout::Vacuum => {
                self.main().u16(r.unused);
                self.assembler.block(heap_block(r.target, r.block, false), |data| {
                    put_offsets(1, r.unused, data);
                    Ok(())
                })?;
            }
            Heap2Layout::FreezeCutoff | Heap2Layout::FreezeHorizon => self.freeze(r, layout)?,
            _ => {
                self.main().u32(r.conflict_horizon.0);
                self.main().u16(r.redirected);
                self.main().u16(r.dead);
                if tells_catalog {
                    self.main().u8(u8::from(r.is_catalog));
                }
                self.assembler.block(heap_block(r.target, r.block, false), |data| {
                    put_offsets(1, r.redirected.saturating_mul(2).saturating_add(r.dead).saturating_add(r.unused), data);
                    Ok(())
                })?;
            }
        }
        Ok(heap2_op(op))
    }

    /// `heap_freeze_execute_prepared` up to 16: up to 15 an item for each row, in 16 one plan for all.
    fn freeze(&mut self, r: &PruneRecord, layout: Heap2Layout) -> Result<(), EncodeError> {
        let each = layout == Heap2Layout::FreezeCutoff;
        let xid = if each { r.conflict_horizon.next() } else { r.conflict_horizon };
        self.main().u32(xid.0);
        self.main().u16(if each { r.frozen } else { u16::from(r.frozen > 0) });
        if !each {
            self.main().u8(u8::from(r.is_catalog));
        }
        self.assembler.block(heap_block(r.target, r.block, false), |data| {
            if each {
                for offset in 1..=r.frozen {
                    data.u32(0);
                    data.u16(offset);
                    data.u16(1);
                    data.u16(FROZEN_INFOMASK);
                    data.extend_from_slice(&[0, 0]);
                }
            } else if r.frozen > 0 {
                put_plan(r.frozen, data);
                put_offsets(1, r.frozen, data);
            }
            Ok(())
        })
    }

    /// `log_heap_prune_and_freeze`, 17 and later. Its first byte, the reason, is the operation's number.
    fn prune_freeze(&mut self, r: &PruneRecord) -> Result<RmgrOp, EncodeError> {
        let (reason, op) = match r.reason {
            PruneReason::OnAccess => (0, 0x10),
            PruneReason::VacuumScan => (1, 0x20),
            PruneReason::VacuumCleanup => (2, 0x30),
            PruneReason::Freeze | PruneReason::CleanupInfo => {
                return Err(self.not_in_version("what VACUUM does to pages in this way"));
            }
        };
        let horizon = r.conflict_horizon;
        let bits = flags(&[
            (r.is_catalog, PRUNE_IS_CATALOG_REL),
            (horizon.is_valid(), PRUNE_HAS_CONFLICT_HORIZON),
            (r.frozen > 0, PRUNE_HAS_FREEZE_PLANS),
            (r.redirected > 0, PRUNE_HAS_REDIRECTIONS),
            (r.dead > 0, PRUNE_HAS_DEAD_ITEMS),
            (r.unused > 0, PRUNE_HAS_NOW_UNUSED_ITEMS),
        ]);
        self.main().extend_from_slice(&[reason, bits]);
        if horizon.is_valid() {
            self.main().u32(horizon.0);
        }
        self.assembler.block(heap_block(r.target, r.block, false), |data| {
            if r.frozen > 0 {
                data.u32(1);
                put_plan(r.frozen, data);
            }
            if r.redirected > 0 {
                data.u16(r.redirected);
                put_offsets(1, r.redirected.saturating_mul(2), data);
            }
            if r.dead > 0 {
                data.u16(r.dead);
                put_offsets(1, r.dead, data);
            }
            if r.unused > 0 {
                data.u16(r.unused);
                put_offsets(1u16.saturating_add(r.dead), r.unused, data);
            }
            put_offsets(1, r.frozen, data);
            Ok(())
        })?;
        Ok(heap2_op(op))
    }

    /// `log_heap_visible`: block 0 is the visibility map's page, block 1 the heap's.
    pub(super) fn visible(&mut self, r: &PruneRecord) -> Result<RmgrOp, EncodeError> {
        let heap2 = &self.profile.heap2;
        let tells_catalog = heap2.contains(&Heap2Layout::PruneCatalog) || heap2.contains(&Heap2Layout::PruneFreeze);
        if r.is_catalog && !tells_catalog {
            return Err(self.not_in_version("that a pruned or visible table is a catalog"));
        }
        self.main().u32(r.conflict_horizon.0);
        self.main().u8(1 | flags(&[(r.frozen > 0, 2), (r.is_catalog, 4)]));
        let map = Block { rel: r.target, fork: 2, block: r.block / HEAPBLOCKS_PER_PAGE, will_init: false };
        self.assembler.block(map, |_| Ok(()))?;
        self.assembler.block(heap_block(r.target, r.block, false), |_| Ok(()))?;
        Ok(heap2_op(0x40))
    }
}
