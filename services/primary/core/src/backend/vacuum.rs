//! VACUUM (`commands/vacuum.c`, `access/heap/vacuumlazy.c`, `access/heap/pruneheap.c`): dead rows are pruned, their line pointers
//! given free once no index points to them, pages frozen and marked visible, and pg_class told in place.
//!
//! ```text
//!  page by page:  prune ─► freeze ─► all-visible      (with indexes: dead line pointers wait)
//!  then, with indexes and dead line pointers:  indexes ─► second pass: line pointers free ─► all-visible
//!  then:  empty pages at the end are cut off ─► pg_class of indexes and table in place
//! ```
//!
//! The transaction takes an xid only if it cuts pages off (for the AccessExclusive lock). Its messages go out at its end all the
//! same, as a commit without xid.
//!
//! Rows of catalogs are held back by one horizon more than those of users' tables: that of the decoders (`catalog_xmin`).
//!
//! Differences from PostgreSQL: every page is looked at, no page is frozen unasked, and index pages write no records, nor does
//! pg_class learn that an index has grown in pages alone.

use pg_types::record::{PruneReason, PruneRecord};
use pg_types::{Oid, RecordBody, RelFileLocator, Xid};

use super::vacuum_traits::VacuumTraits;
use super::{Backend, Result};
use crate::catalog::{PageScan, Pruned, RelKind, RelStats, is_system, user_locator};

/// `REL_TRUNCATE_FRACTION`: a sixteenth of the table must be empty at its end, or `REL_TRUNCATE_MINIMUM` pages.
const TRUNCATE_FRACTION: u32 = 16;
/// `REL_TRUNCATE_MINIMUM`.
const TRUNCATE_MINIMUM: u32 = 1000;
/// `BYPASS_THRESHOLD_PAGES`: below 2 % of pages with dead line pointers indexes are left alone (14 and later).
const BYPASS_PER_CENT: usize = 2;
/// `SMGR_TRUNCATE_ALL`.
const TRUNCATE_ALL_FORKS: u32 = 7;

/// One table's VACUUM.
struct Vacuum {
    /// The table.
    rel: Oid,
    /// Its file.
    filenode: u32,
    /// The same, as records name it.
    target: RelFileLocator,
    /// It is a catalog, and records say so.
    told_catalog: bool,
    /// Everybody before is gone (`OldestXmin`).
    horizon: Xid,
    /// FREEZE.
    freeze: bool,
    /// Indexes point to its rows.
    indexed: bool,
    /// How the version does it.
    traits: &'static VacuumTraits,
}

impl Backend<'_> {
    /// VACUUM of one table (or TOAST table), as a transaction of its own that the caller ends. Gives the rows that it removed.
    pub(crate) fn vacuum(&mut self, rel: Oid, freeze: bool) -> Result<u64> {
        let run = self.begin_vacuum(rel, freeze)?;
        let (mut removed, mut waiting, mut newest_removed) = (0, Vec::new(), Xid::INVALID);
        for block in 0..self.cluster.catalog.heap(run.filenode).pages() {
            let (dead, horizon) = self.vacuum_page(&run, block)?;
            removed += u64::from(dead);
            newest_removed =
                if newest_removed.precedes(horizon) || !newest_removed.is_valid() { horizon } else { newest_removed };
            if run.indexed && self.cluster.catalog.heap(run.filenode).scan(block, run.horizon).dead_items > 0 {
                waiting.push(block);
            }
        }
        let pages = self.cluster.catalog.heap(run.filenode).pages() as usize;
        let bypass = run.traits.bypass && waiting.len() * 100 < pages * BYPASS_PER_CENT;
        let indexes_vacuumed = !waiting.is_empty() && !bypass;
        if indexes_vacuumed {
            self.second_pass(&run, &waiting, newest_removed)?;
        }
        self.truncate_end(&run)?;
        self.tell_pg_class(&run, indexes_vacuumed)?;
        self.command_counter_increment()?;
        Ok(removed)
    }

    /// What a VACUUM of this relation is about.
    fn begin_vacuum(&self, rel: Oid, freeze: bool) -> Result<Vacuum> {
        let (relation, is_catalog) = (self.relation(rel)?, is_system(rel));
        let traits = VacuumTraits::of(self.cluster.catalog.traits.version);
        Ok(Vacuum {
            rel,
            filenode: relation.filenode,
            target: if is_catalog { self.cluster.catalog.catalog_locator(rel) } else { user_locator(relation.filenode) },
            told_catalog: is_catalog && traits.tells_catalog,
            horizon: self.cluster.oldest_xmin(is_catalog),
            freeze,
            // A TOAST table always has one.
            indexed: !relation.indexes.is_empty() || relation.kind == RelKind::Toast,
            traits,
        })
    }

    /// The first pass over one page: rows removed, and whom that conflicts with.
    fn vacuum_page(&mut self, run: &Vacuum, block: u32) -> Result<(u16, Xid)> {
        let heap = self.cluster.catalog.heap(run.filenode);
        let scan = heap.scan(block, run.horizon);
        let freezes = run.freeze && scan.settled && scan.unfrozen > scan.removable && !scan.all_frozen;
        let frozen = if freezes { scan.unfrozen } else { 0 };
        let pruned = heap.prune(block, run.horizon);
        // Without indexes nothing points to dead line pointers any more.
        let freed = if run.indexed { 0 } else { heap.reclaim(block) };
        if freezes {
            heap.freeze(block);
        }
        self.log_page(run, (block, &scan), pruned, (freed, frozen))?;
        self.log_visible(run, block, scan.all_visible && frozen == 0)?;
        Ok((scan.removable, scan.conflict_horizon))
    }

    /// The records of a page's first pass: one from 17 on, one for each thing done before.
    fn log_page(&mut self, run: &Vacuum, at: (u32, &PageScan), pruned: Pruned, (freed, frozen): (u16, u16)) -> Result<()> {
        let ((block, scan), traits) = (at, run.traits);
        let page = PruneRecord { target: run.target, block, is_catalog: run.told_catalog, ..PruneRecord::default() };
        let Pruned { redirected, dead, unused } = pruned;
        if traits.combined {
            if pruned == Pruned::default() && freed == 0 && frozen == 0 {
                return Ok(());
            }
            let both = [scan.conflict_horizon, if frozen > 0 { scan.newest_inserter } else { Xid::INVALID }];
            let newest = both.into_iter().filter(|xid| xid.is_valid()).reduce(|a, b| if a.precedes(b) { b } else { a });
            let record = PruneRecord {
                conflict_horizon: newest.unwrap_or(Xid::INVALID),
                reason: PruneReason::VacuumScan,
                redirected,
                dead: if run.indexed { dead } else { 0 },
                unused: unused + freed,
                frozen,
                ..page
            };
            return self.insert(&RecordBody::Prune(record)).map(drop);
        }
        if pruned != Pruned::default() {
            let conflict_horizon = scan.conflict_horizon;
            self.insert(&RecordBody::Prune(PruneRecord { conflict_horizon, redirected, dead, unused, ..page }))?;
        }
        if freed > 0 {
            self.log_unused(run, block, freed, scan.conflict_horizon)?;
        }
        if frozen > 0 {
            let conflict_horizon = if traits.freeze_tells_cutoff { run.horizon.prev() } else { scan.newest_inserter };
            let reason = PruneReason::Freeze;
            self.insert(&RecordBody::Prune(PruneRecord { conflict_horizon, reason, frozen, ..page }))?;
        }
        Ok(())
    }

    /// Line pointers are given free: nothing conflicts any more, though 13 says it again.
    fn log_unused(&mut self, run: &Vacuum, block: u32, unused: u16, horizon: Xid) -> Result<()> {
        let conflict_horizon = if run.traits.cleanup_conflicts { horizon } else { Xid::INVALID };
        let (target, reason) = (run.target, PruneReason::VacuumCleanup);
        // Before 17 this record has no room for it.
        let is_catalog = run.told_catalog && run.traits.combined;
        let record = PruneRecord { target, block, conflict_horizon, is_catalog, reason, unused, ..PruneRecord::default() };
        self.insert(&RecordBody::Prune(record))?;
        Ok(())
    }

    /// Marks a page all-visible if it is so now and was not.
    fn log_visible(&mut self, run: &Vacuum, block: u32, was_visible: bool) -> Result<()> {
        let heap = self.cluster.catalog.heap(run.filenode);
        let scan = heap.scan(block, run.horizon);
        if was_visible || !scan.settled {
            return Ok(());
        }
        let Some(all_frozen) = heap.set_visible(block) else { return Ok(()) };
        let conflict_horizon = if all_frozen { Xid::INVALID } else { scan.newest_inserter };
        let (target, is_catalog, frozen) = (run.target, run.told_catalog, u16::from(all_frozen));
        let record = PruneRecord { target, block, conflict_horizon, is_catalog, frozen, ..PruneRecord::default() };
        self.insert(&RecordBody::Visible(record))?;
        Ok(())
    }

    /// `lazy_vacuum_heap_rel`: no index points to the dead line pointers any more.
    fn second_pass(&mut self, run: &Vacuum, waiting: &[u32], newest_removed: Xid) -> Result<()> {
        if run.traits.cleanup_info {
            let (target, reason) = (run.target, PruneReason::CleanupInfo);
            let record = PruneRecord { target, conflict_horizon: newest_removed, reason, ..PruneRecord::default() };
            self.insert(&RecordBody::Prune(record))?;
        }
        for block in waiting {
            let unused = self.cluster.catalog.heap(run.filenode).reclaim(*block);
            self.log_unused(run, *block, unused, newest_removed)?;
            self.log_visible(run, *block, false)?;
        }
        Ok(())
    }

    /// `lazy_truncate_heap`: empty pages at the end go, if that is worth it and nobody is in the way.
    fn truncate_end(&mut self, run: &Vacuum) -> Result<()> {
        let heap = self.cluster.catalog.heap(run.filenode);
        let (pages, empty) = (heap.pages(), heap.empty_at_end());
        let worth = empty > 0 && (empty >= TRUNCATE_MINIMUM || empty >= pages / TRUNCATE_FRACTION);
        if !worth || self.cluster.procs.running() > 0 {
            return Ok(());
        }
        self.log_access_exclusive_lock(run.rel)?;
        let (target, blocks) = (run.target, pages - empty);
        self.insert(&RecordBody::SmgrTruncate { target, blocks, flags: TRUNCATE_ALL_FORKS })?;
        self.cluster.catalog.heap(run.filenode).truncate(blocks);
        Ok(())
    }

    /// `vac_update_relstats` of the indexes that were vacuumed and of the table.
    fn tell_pg_class(&mut self, run: &Vacuum, indexes_vacuumed: bool) -> Result<()> {
        let counted = if is_system(run.rel) { Some(self.size_of(run.rel)?.1) } else { None };
        let heap = self.cluster.catalog.heap(run.filenode);
        let (pages, tuples) = (heap.pages(), counted.unwrap_or_else(|| heap.live_rows()));
        let old_told = heap.told;
        let follows = run.freeze || run.traits.frozen_follows;
        let frozen = if follows { heap.oldest_unfrozen().unwrap_or(run.horizon) } else { old_told.1 };
        let told = (heap.all_visible_pages(), if old_told.1.precedes(frozen) { frozen } else { old_told.1 });
        heap.told = told;
        if indexes_vacuumed {
            for index in self.relation(run.rel)?.indexes.clone() {
                let known = self.relation(index)?.stats;
                self.update_relstats(index, RelStats { pages: known.pages.max(1), tuples: Some(tuples), ..known }, false)?;
            }
        }
        let known = self.relation(run.rel)?.stats;
        self.update_relstats(run.rel, RelStats { pages, tuples: Some(tuples), ..known }, told != old_told)
    }

    /// `vac_update_relstats`: pg_class is updated in place if something differs. Not undone by a rollback.
    pub(super) fn update_relstats(&mut self, rel: Oid, now: RelStats, more: bool) -> Result<()> {
        let (class_row, known) = (self.relation(rel)?.class_row, self.relation(rel)?.stats);
        if now == known && !more {
            return Ok(());
        }
        self.catalog_inplace_update(class_row)?;
        self.change_relation(rel, |relation| relation.stats = now)
    }
}
