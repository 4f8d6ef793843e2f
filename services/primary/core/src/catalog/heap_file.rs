//! Where rows lie: pages and line pointers of one heap (`access/heap/hio.c`, `storage/page/bufpage.c`), and what VACUUM needs to
//! know of them (`access/heap/vacuumlazy.c`, `access/heap/visibilitymap.c`).
//!
//! Rows themselves are not kept: of a page it is known how much room it has, which line pointers are dead or free again, which
//! xids touched it, and its two bits in the visibility map. That is enough to say which block and line pointer a new row gets,
//! whether it starts a page, whether a new version fits beside the old one, and what a VACUUM finds.
//!
//! **Invariants**
//! - I1: a line pointer is free, dead or in use, never two of them.
//! - I2: a page that is all-frozen is all-visible; a row that comes or goes clears both.
//!
//! Cost: placing and killing a row O(log of the page's free line pointers); a VACUUM O(pages + dead rows).
//!
//! Difference from PostgreSQL: a statement reads the pages of the rows that it changes or locks, and no others.

use std::collections::{BTreeMap, BTreeSet};

use pg_types::{Tid, Xid};

use crate::xact::RowChange;

/// `BLCKSZ` − `SizeOfPageHeaderData`.
const PAGE_ROOM: u32 = 8192 - 24;
/// `sizeof(ItemIdData)`.
const LINE_POINTER: u32 = 4;
/// `MaxHeapTuplesPerPage`.
const LINES_MAX: u16 = 291;
/// `heap_page_prune_opt`: a page with less room is pruned when it is read (a tenth; no table has a fill factor).
const PRUNE_BELOW: u32 = 8192 / 10;
/// `SizeofHeapTupleHeader` − `SizeOfHeapHeader`: what a row on a page has more than in a record.
const HEADER_MORE: u32 = 23 - 5;

/// A row that nobody needs once its killer is old enough.
#[derive(Clone, Copy, Debug)]
struct DeadRow {
    /// Its line pointer.
    offset: u16,
    /// Bytes that it takes.
    room: u32,
    /// Who deleted it, invalid if its inserter rolled back.
    xmax: Xid,
}

/// What pruning does to line pointers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pruned {
    /// They lead to a heap-only row from now on.
    pub(crate) redirected: u16,
    /// Indexes may point to them: they are dead.
    pub(crate) dead: u16,
    /// Nothing points to them: they are free.
    pub(crate) unused: u16,
}

/// One page.
#[derive(Clone, Debug)]
struct Page {
    /// Free bytes.
    free: u32,
    /// Line pointers that there are.
    lines: u16,
    /// Those that are free again.
    unused: BTreeSet<u16>,
    /// Those of dead rows that were not pruned yet.
    dead: Vec<DeadRow>,
    /// Those that are dead: pruned, but indexes may point to them.
    dead_items: BTreeSet<u16>,
    /// Those that lead to heap-only rows.
    redirects: BTreeSet<u16>,
    /// Those of heap-only rows, each with the one that its chain begins with.
    heap_only: BTreeMap<u16, u16>,
    /// Pruning may find something once this xid is gone (`pd_prune_xid`).
    prune_xid: Xid,
    /// A new version did not fit beside the old one (`PD_PAGE_FULL`).
    full: bool,
    /// Rows that are frozen.
    frozen_rows: u16,
    /// Oldest and newest xid that inserted a row, committed, and is not frozen.
    inserters: Option<(Xid, Xid)>,
    /// Newest xid that put a row here or marked one deleted.
    newest_xid: Xid,
    /// `VISIBILITYMAP_ALL_VISIBLE`.
    all_visible: bool,
    /// `VISIBILITYMAP_ALL_FROZEN`.
    all_frozen: bool,
}

/// What VACUUM finds on a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PageScan {
    /// Rows to prune.
    pub(crate) removable: u16,
    /// Dead line pointers.
    pub(crate) dead_items: u16,
    /// The newest deleter among them: snapshots that are as old as it conflict.
    pub(crate) conflict_horizon: Xid,
    /// Rows that are not frozen, were it frozen now.
    pub(crate) unfrozen: u16,
    /// The newest xid of its rows, invalid if all are frozen.
    pub(crate) newest_inserter: Xid,
    /// Everybody that touched it is older than the horizon.
    pub(crate) settled: bool,
    /// Its bit is set.
    pub(crate) all_visible: bool,
    /// Its bit is set.
    pub(crate) all_frozen: bool,
}

/// The pages of one heap.
#[derive(Clone, Debug, Default)]
pub struct HeapFile {
    /// All pages.
    pages: Vec<Page>,
    /// Pages with room that VACUUM found (the free space map).
    with_room: BTreeSet<u32>,
    /// `relallvisible` and `relfrozenxid` as pg_class has them.
    pub(crate) told: (u32, Xid),
}

impl Page {
    /// An empty page, or a full one of which nothing else is known.
    fn with(free: u32) -> Page {
        Page {
            free,
            lines: 0,
            unused: BTreeSet::new(),
            dead: Vec::new(),
            dead_items: BTreeSet::new(),
            redirects: BTreeSet::new(),
            heap_only: BTreeMap::new(),
            prune_xid: Xid::INVALID,
            full: false,
            frozen_rows: 0,
            inserters: None,
            newest_xid: Xid::INVALID,
            all_visible: false,
            all_frozen: false,
        }
    }

    /// Line pointers with a row that is not known dead.
    fn live(&self) -> u16 {
        let others = self.unused.len() + self.dead.len() + self.dead_items.len() + self.redirects.len();
        self.lines.saturating_sub(others as u16)
    }

    /// Prunes rows (`heap_prune_chain`): a chain that has rows left is found through its first line pointer from now on.
    fn prune(&mut self, gone: &[DeadRow]) -> Pruned {
        let (mut pruned, mut begun) = (Pruned::default(), BTreeSet::new());
        for row in gone {
            self.free += row.room;
            if let Some(first) = self.heap_only.remove(&row.offset) {
                self.unused.insert(row.offset);
                pruned.unused += 1;
                // One that was rolled back was the last of its chain.
                begun.extend(Some(first).filter(|_| row.xmax.is_valid()));
            } else {
                self.free = self.free.saturating_sub(LINE_POINTER);
                begun.insert(row.offset);
            }
        }
        for first in begun {
            if self.heap_only.values().any(|of| *of == first) {
                self.redirects.insert(first);
                pruned.redirected += 1;
            } else {
                self.redirects.remove(&first);
                self.dead_items.insert(first);
                pruned.dead += 1;
            }
        }
        self.full = false;
        self.prune_xid = self.dead.iter().map(|row| row.xmax).filter(|xid| xid.is_valid()).reduce(older).unwrap_or_default();
        pruned
    }

    /// Whether reading it prunes it, if everybody before `horizon` is gone (`heap_page_prune_opt`).
    fn wants_pruning(&self, horizon: Xid) -> bool {
        let line_pointers = LINE_POINTER * (self.unused.len() as u32 + 1);
        let short_of_room = self.full || self.free.saturating_sub(line_pointers) < PRUNE_BELOW;
        self.prune_xid.is_valid() && self.prune_xid.precedes(horizon) && short_of_room
    }

    /// Pruning may find something once this xid is gone (`PageSetPrunable`).
    fn note_prunable(&mut self, xid: Xid) {
        if xid.is_normal() {
            self.prune_xid = if self.prune_xid.is_valid() { older(self.prune_xid, xid) } else { xid };
        }
    }

    /// Whether it takes `need` more bytes.
    fn fits(&self, need: u32) -> bool {
        self.free >= need && (self.lines < LINES_MAX || !self.unused.is_empty())
    }

    /// A row came for good.
    fn insert_committed(&mut self, xid: Xid) {
        if !xid.is_normal() {
            self.frozen_rows += 1;
            return;
        }
        let (oldest, newest) = self.inserters.unwrap_or((xid, xid));
        self.inserters = Some((older(oldest, xid), newer(newest, xid)));
    }
}

/// The older of two xids.
fn older(a: Xid, b: Xid) -> Xid {
    if b.precedes(a) { b } else { a }
}

/// The newer of two xids, either of which may be invalid.
fn newer(a: Xid, b: Xid) -> Xid {
    if !a.is_valid() || (b.is_valid() && a.precedes(b)) { b } else { a }
}

impl HeapFile {
    /// A heap whose first `full` pages have no room: what was there before the log began, and was frozen (`initdb` does so).
    #[must_use]
    pub fn with_full_pages(full: usize) -> HeapFile {
        let frozen = Page { all_visible: true, all_frozen: true, ..Page::with(0) };
        HeapFile { pages: vec![frozen; full], told: (full as u32, Xid::INVALID), ..HeapFile::default() }
    }

    /// Places a row of which a record has `record_len` bytes into a page that VACUUM found room on, else the last page or a new
    /// one. The second value says that it is the first of its page.
    pub fn place(&mut self, record_len: u32) -> (Tid, bool) {
        let need = on_page(record_len);
        while let Some(block) = self.with_room.first().copied() {
            if self.pages[block as usize].fits(need) {
                return self.take(block as usize, need);
            }
            // The rows to come are as long as this one.
            self.with_room.remove(&block);
        }
        if !self.pages.last().is_some_and(|page| page.fits(need)) {
            self.pages.push(Page::with(PAGE_ROOM));
        }
        self.take(self.pages.len() - 1, need)
    }

    /// Places a new version beside the old one, if its page has room.
    pub fn place_beside(&mut self, old: Tid, record_len: u32) -> Option<Tid> {
        let (index, need) = (old.block as usize, on_page(record_len));
        let page = self.pages.get_mut(index)?;
        page.full |= !page.fits(need);
        page.fits(need).then(|| self.take(index, need).0)
    }

    /// Number of pages.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.pages.len() as u32
    }

    /// A transaction put a row into the heap, marked one deleted, or both.
    pub(crate) fn touch_row(&mut self, change: &RowChange) {
        [change.at_commit, change.at_abort].into_iter().flatten().for_each(|tid| self.touch(tid, change.xid));
        let Some(old) = change.at_abort else { return };
        if let Some(new) = change.at_commit.filter(|_| change.hot) {
            self.note_heap_only(old, new);
        }
        if let Some(page) = self.pages.get_mut(old.block as usize) {
            page.note_prunable(change.xid);
        }
    }

    /// A transaction put a row here, or marked one deleted.
    pub(crate) fn touch(&mut self, tid: Tid, xid: Xid) {
        if let Some(page) = self.pages.get_mut(tid.block as usize) {
            (page.all_visible, page.all_frozen) = (false, false);
            page.newest_xid = newer(page.newest_xid, xid);
        }
    }

    /// The transaction that put a row here committed.
    pub(crate) fn insert_committed(&mut self, tid: Tid, xid: Xid) {
        if let Some(page) = self.pages.get_mut(tid.block as usize) {
            page.insert_committed(xid);
        }
    }

    /// A new version that no index points to came beside the old one.
    fn note_heap_only(&mut self, old: Tid, new: Tid) {
        if let Some(page) = self.pages.get_mut(new.block as usize) {
            let first = page.heap_only.get(&old.offset).copied().unwrap_or(old.offset);
            page.heap_only.insert(new.offset, first);
        }
    }

    /// A row is dead for good: its deleter committed, or (`xmax` invalid) its inserter rolled back.
    pub(crate) fn kill(&mut self, tid: Tid, record_len: u32, xmax: Xid) {
        if let Some(page) = self.pages.get_mut(tid.block as usize) {
            page.dead.push(DeadRow { offset: tid.offset, room: on_page(record_len), xmax });
            page.note_prunable(xmax);
        }
    }

    /// Rows that are not known dead.
    pub(crate) fn live_rows(&self) -> u64 {
        self.pages.iter().map(|page| u64::from(page.live())).sum()
    }

    /// Pages whose all-visible bit is set.
    pub(crate) fn all_visible_pages(&self) -> u32 {
        self.pages.iter().filter(|page| page.all_visible).count() as u32
    }

    /// What VACUUM finds on a page when everybody before `horizon` is gone. A row whose inserter rolled back is always removable.
    pub(crate) fn scan(&self, block: u32, horizon: Xid) -> PageScan {
        let Some(page) = self.pages.get(block as usize) else { return PageScan::default() };
        let mut scan = PageScan { all_visible: page.all_visible, all_frozen: page.all_frozen, ..PageScan::default() };
        scan.dead_items = page.dead_items.len() as u16;
        for row in page.dead.iter().filter(|row| removable(row, horizon)) {
            scan.removable += 1;
            scan.conflict_horizon = newer(scan.conflict_horizon, row.xmax);
        }
        scan.newest_inserter = page.inserters.map_or(Xid::INVALID, |(_, newest)| newest);
        scan.settled = !page.newest_xid.is_normal() || page.newest_xid.precedes(horizon);
        scan.unfrozen = page.live().saturating_sub(page.frozen_rows);
        scan
    }

    /// Removes removable rows, as VACUUM does: what there is room for may come to this page.
    pub(crate) fn prune(&mut self, block: u32, horizon: Xid) -> Pruned {
        let pruned = self.prune_page(block, horizon);
        if pruned != Pruned::default() {
            self.with_room.insert(block);
        }
        pruned
    }

    /// A page is read: if it is short of room, what is removable goes (`heap_page_prune_opt`). Gives what pruning did and the
    /// newest deleter among the rows that went.
    pub(crate) fn prune_on_access(&mut self, block: u32, horizon: Xid) -> Option<(Pruned, Xid)> {
        self.pages.get(block as usize).filter(|page| page.wants_pruning(horizon))?;
        let conflict_horizon = self.scan(block, horizon).conflict_horizon;
        Some((self.prune_page(block, horizon), conflict_horizon)).filter(|(pruned, _)| *pruned != Pruned::default())
    }

    /// Removes a page's removable rows.
    fn prune_page(&mut self, block: u32, horizon: Xid) -> Pruned {
        let Some(page) = self.pages.get_mut(block as usize) else { return Pruned::default() };
        let (gone, rest) =
            std::mem::take(&mut page.dead).into_iter().partition::<Vec<DeadRow>, _>(|row| removable(row, horizon));
        page.dead = rest;
        let pruned = page.prune(&gone);
        if pruned != Pruned::default() {
            page.frozen_rows = page.frozen_rows.min(page.live());
        }
        pruned
    }

    /// Gives dead line pointers free; the number of them comes back.
    pub(crate) fn reclaim(&mut self, block: u32) -> u16 {
        let Some(page) = self.pages.get_mut(block as usize) else { return 0 };
        let items = std::mem::take(&mut page.dead_items);
        let count = items.len() as u16;
        page.unused.extend(items);
        page.free += LINE_POINTER * u32::from(count);
        count
    }

    /// Freezes all rows of a page.
    pub(crate) fn freeze(&mut self, block: u32) {
        if let Some(page) = self.pages.get_mut(block as usize) {
            page.frozen_rows = page.live();
            page.inserters = None;
        }
    }

    /// Sets a page's bits in the visibility map, if no dead line pointer stands in the way; whether it is all-frozen comes back.
    pub(crate) fn set_visible(&mut self, block: u32) -> Option<bool> {
        let page = self.pages.get_mut(block as usize).filter(|page| page.dead.is_empty() && page.dead_items.is_empty())?;
        page.all_visible = true;
        page.all_frozen = page.frozen_rows >= page.live();
        Some(page.all_frozen)
    }

    /// The oldest xid that is not frozen, if there is one.
    pub(crate) fn oldest_unfrozen(&self) -> Option<Xid> {
        self.pages.iter().filter_map(|page| page.inserters.map(|(oldest, _)| oldest)).reduce(older)
    }

    /// Empty pages at the end.
    pub(crate) fn empty_at_end(&self) -> u32 {
        self.pages
            .iter()
            .rev()
            // One without a free byte is full of rows that were there before the log began.
            .take_while(|page| page.free > 0 && page.live() == 0 && page.dead.is_empty() && page.dead_items.is_empty())
            .count() as u32
    }

    /// Cuts pages off at the end.
    pub(crate) fn truncate(&mut self, pages: u32) {
        self.pages.truncate(pages as usize);
        self.with_room.retain(|block| *block < pages);
    }

    /// Takes room on a page that has it.
    fn take(&mut self, index: usize, need: u32) -> (Tid, bool) {
        let page = &mut self.pages[index];
        let offset = page.unused.pop_first().unwrap_or_else(|| {
            page.lines += 1;
            page.lines
        });
        page.free = page.free.saturating_sub(need);
        (Tid { block: index as u32, offset }, page.lines == 1)
    }
}

/// Whether nobody can see the row any more.
fn removable(row: &DeadRow, horizon: Xid) -> bool {
    !row.xmax.is_valid() || row.xmax.precedes(horizon)
}

/// Bytes of a row on its page, with its line pointer.
fn on_page(record_len: u32) -> u32 {
    (record_len + HEADER_MORE).next_multiple_of(8) + LINE_POINTER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fill_page_after_page() {
        let mut heap = HeapFile::with_full_pages(3);
        assert_eq!(heap.place(158), (Tid { block: 3, offset: 1 }, true));
        assert_eq!(heap.place(158), (Tid { block: 3, offset: 2 }, false));
        let beside = heap.place_beside(Tid { block: 3, offset: 1 }, 158);
        assert_eq!(beside, Some(Tid { block: 3, offset: 3 }));
        assert_eq!(heap.place_beside(Tid { block: 1, offset: 1 }, 158), None, "that page is full");
        let next = std::iter::repeat_with(|| heap.place(158)).find(|(_, first)| *first);
        assert_eq!(next, Some((Tid { block: 4, offset: 1 }, true)));
        // 8168 bytes take 45 rows of 176 bytes and a line pointer.
        assert_eq!(heap.pages(), 5);
    }

    #[test]
    fn a_page_has_at_most_291_rows() {
        let mut heap = HeapFile::default();
        let blocks: Vec<u32> = (0..292).map(|_| heap.place(6).0.block).collect();
        assert_eq!((blocks[290], blocks[291]), (0, 1));
    }

    #[test]
    fn i1_dead_rows_are_pruned_reclaimed_and_used_again() {
        let mut heap = HeapFile::default();
        let rows: Vec<Tid> = (0..50).map(|_| heap.place(158).0).collect();
        rows.iter().for_each(|tid| heap.touch(*tid, Xid(700)));
        heap.kill(rows[3], 158, Xid(710));
        heap.kill(rows[4], 158, Xid(720));
        heap.kill(rows[5], 158, Xid::INVALID);
        let scan = heap.scan(0, Xid(715));
        assert_eq!((scan.removable, scan.conflict_horizon), (2, Xid(710)), "710 is gone, 720 is not, and one rolled back");
        assert_eq!(heap.prune(0, Xid(715)), Pruned { dead: 2, ..Pruned::default() });
        assert_eq!(heap.scan(0, Xid(715)).dead_items, 2);
        assert_eq!(heap.set_visible(0), None, "dead line pointers stand in the way");
        assert_eq!(heap.reclaim(0), 2);
        assert_eq!(heap.place(158).0, rows[3], "the lowest free line pointer of a page with room");
        assert_eq!(heap.live_rows(), 50 - 3 + 1);
    }

    #[test]
    fn heap_only_rows_come_and_go_behind_one_line_pointer() {
        let mut heap = HeapFile::default();
        let root = heap.place(40).0;
        let mut row = root;
        for xid in 700..703 {
            let next = heap.place_beside(row, 40).expect("room for it");
            heap.note_heap_only(row, next);
            heap.kill(row, 40, Xid(xid));
            row = next;
        }
        let pruned = heap.prune(0, Xid(710));
        assert_eq!(
            pruned,
            Pruned { redirected: 1, dead: 0, unused: 2 },
            "the root leads to the last row, those between are free"
        );
        assert_eq!(heap.live_rows(), 1);
        heap.kill(row, 40, Xid(704));
        assert_eq!(heap.prune(0, Xid(710)), Pruned { redirected: 0, dead: 1, unused: 1 }, "the root is dead with the chain");
        assert_eq!((heap.reclaim(0), heap.live_rows(), heap.empty_at_end()), (1, 0, 1));
    }

    #[test]
    fn a_page_that_is_short_of_room_is_pruned_when_it_is_read() {
        let mut heap = HeapFile::default();
        let rows: Vec<Tid> = (0..41).map(|_| heap.place(158).0).collect();
        let hot = |heap: &mut HeapFile, row: Tid, xid: u32| {
            let next = heap.place_beside(row, 158)?;
            heap.note_heap_only(row, next);
            heap.kill(row, 158, Xid(xid));
            Some(next)
        };
        assert_eq!(heap.prune_on_access(0, Xid(900)), None, "nothing is dead");
        let second = hot(&mut heap, rows[7], 700).expect("room for it");
        assert_eq!(heap.prune_on_access(0, Xid(700)), None, "700 may be seen as running");
        let once = Pruned { redirected: 1, ..Pruned::default() };
        assert_eq!(heap.prune_on_access(0, Xid(701)), Some((once, Xid(700))));
        hot(&mut heap, second, 701).expect("room for it");
        let again = Pruned { redirected: 1, unused: 1, ..Pruned::default() };
        assert_eq!(
            heap.prune_on_access(0, Xid(702)),
            Some((again, Xid(701))),
            "the line pointer leads on to the third version"
        );
        heap.kill(rows[8], 158, Xid(702));
        heap.kill(rows[9], 158, Xid(703));
        assert_eq!(heap.prune_on_access(0, Xid(704)).map(|(pruned, _)| pruned.dead), Some(2));
        heap.kill(rows[12], 158, Xid(704));
        assert_eq!(heap.prune_on_access(0, Xid(800)), None, "there is room enough");
        assert_eq!(heap.place(158).0.block, 0, "it is the last page");
    }

    #[test]
    fn i2_bits_of_the_visibility_map() {
        let mut heap = HeapFile::default();
        let (tid, _) = heap.place(158);
        heap.touch(tid, Xid(700));
        heap.insert_committed(tid, Xid(700));
        assert!(!heap.scan(0, Xid(700)).settled && heap.scan(0, Xid(701)).settled);
        assert_eq!(heap.set_visible(0), Some(false));
        assert_eq!((heap.all_visible_pages(), heap.oldest_unfrozen()), (1, Some(Xid(700))));
        heap.freeze(0);
        assert_eq!((heap.set_visible(0), heap.oldest_unfrozen()), (Some(true), None));
        heap.touch(tid, Xid(705));
        assert!(!heap.scan(0, Xid(706)).all_visible && !heap.scan(0, Xid(706)).all_frozen);
        heap.truncate(0);
        assert_eq!(heap.pages(), 0);
    }
}
