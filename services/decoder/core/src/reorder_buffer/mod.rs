//! Collects the changes of interleaved transactions until they end: `replication/logical/reorderbuffer.c`.
//!
//! WAL holds the changes of all transactions mixed, in the order in which they were written; consumers want whole transactions
//! in the order of their commits, and none that was rolled back. So changes wait here by xid. Subtransactions have xids and
//! changes of their own; who their top-level transaction is becomes known by an assignment record, by the top-level xid on a
//! record (14 and later) or by the commit record at the latest, and at the commit all are merged by LSN.
//!
//! ```text
//!   record(xid) ─► by_xid ─► Txn{changes} ◄─subtxns─ Txn (top) ─ take_tree ─► MergedChanges ─► replay
//!                            list of top-level ones, oldest first ─► abort_old, distribution, restart LSN
//! ```
//!
//! Invariants: I1 `by_xid` names exactly the live transactions; I2 the list holds exactly those not known as subtransactions,
//! in the order of their creation; I3 a subtransaction's `top` is a top-level one, which has no `top`; I4 changes of one
//! transaction are in LSN order.
//!
//! | operation | cost |
//! |---|---|
//! | find, create, queue, assign, end | O(1) |
//! | merge of n changes of k subtransactions | O(n log k) |
//!
//! Differences from PostgreSQL: a subtransaction that ends leaves a stale place in its parent's list, which later readers
//! recognise by the xid; a parent takes over the messages of a subtransaction that it learns of late, so that its end drops
//! what they name; rows are not kept, only where they are.

pub(crate) mod change;
pub(crate) mod change_size;
pub(crate) mod distribution;
pub(crate) mod memory;
pub(crate) mod merge;
pub(crate) mod replay;
mod spill_format;
pub(crate) mod streaming;
pub(crate) mod tuple_cids;
pub(crate) mod txn;
mod txn_heap;

use pg_types::{InvalidationMessage, Lsn, Xid};
use rustc_hash::FxHashMap;

use crate::reorder_buffer::change::ChangeKind;
use crate::reorder_buffer::memory::Memory;
use crate::reorder_buffer::streaming::Room;
use crate::reorder_buffer::txn::{Links, Txn};
use crate::spill::SpillError;

/// The buffer.
#[derive(Debug, Default)]
pub(crate) struct ReorderBuffer {
    /// Transactions and free slots.
    txns: Vec<Txn>,
    /// Free slots.
    free: Vec<u32>,
    /// Live transactions.
    by_xid: FxHashMap<u32, u32>,
    /// The one looked up last (`by_txn_last_txn`).
    last: Option<(Xid, u32)>,
    /// Oldest and newest of the list of top-level transactions (`toplevel_by_lsn`).
    ends: (Option<u32>, Option<u32>),
    /// The newest serialised snapshot (`current_restart_decoding_lsn`).
    pub(crate) restart_point: Lsn,
    /// What changes count for, and where those go that are too many.
    pub(crate) memory: Memory,
    /// Transactions, not seen yet, of which an earlier decoder has given out blocks: the last change in them.
    pub(crate) streamed_before: FxHashMap<u32, Lsn>,
}

/// A transaction that is being given out, and will go on.
#[derive(Debug)]
pub(crate) struct Lent {
    /// Its slots.
    slots: Vec<u32>,
    /// It and its subtransactions, the top-level one first.
    pub(crate) tree: Vec<Txn>,
}

impl ReorderBuffer {
    /// An empty one.
    pub(crate) fn new(memory: Memory) -> Self {
        Self { memory, ..Self::default() }
    }

    /// Live transactions, subtransactions included.
    pub(crate) fn len(&self) -> usize {
        self.by_xid.len()
    }

    /// `ReorderBufferTXNByXid` without creating.
    pub(crate) fn find(&mut self, xid: Xid) -> Option<u32> {
        if let Some((last, at)) = self.last
            && last == xid
        {
            return Some(at);
        }
        let at = *self.by_xid.get(&xid.0)?;
        self.last = Some((xid, at));
        Some(at)
    }

    /// `ReorderBufferTXNByXid`: the slot of `xid`, begun at `lsn` if it is new.
    pub(crate) fn find_or_begin(&mut self, xid: Xid, lsn: Lsn) -> u32 {
        if let Some(at) = self.find(xid) {
            return at;
        }
        let at = self.free.pop().unwrap_or_else(|| {
            self.txns.push(Txn::default());
            (self.txns.len() - 1) as u32
        });
        self.txns[at as usize].begin(xid, lsn, self.restart_point);
        if let Some(oldest) = self.ends.0 {
            self.txns[at as usize].restart_lsn = self.txns[oldest as usize].oldest_lsn;
        }
        if !self.streamed_before.is_empty()
            && let Some(to) = self.streamed_before.remove(&xid.0)
        {
            let streaming = &mut self.txns[at as usize].streaming;
            (streaming.streamed, streaming.streamed_before) = (true, to);
        }
        self.by_xid.insert(xid.0, at);
        self.last = Some((xid, at));
        self.link(at);
        at
    }

    /// The transaction in a slot.
    pub(crate) fn get(&self, at: u32) -> &Txn {
        &self.txns[at as usize]
    }

    /// The transaction in a slot, to be changed.
    pub(crate) fn get_mut(&mut self, at: u32) -> &mut Txn {
        &mut self.txns[at as usize]
    }

    /// The slot of the top-level transaction, as far as known.
    pub(crate) fn top_of(&self, at: u32) -> u32 {
        self.txns[at as usize].top.unwrap_or(at)
    }

    /// `ReorderBufferAssignChild`: `sub_xid` is a subtransaction of `top_xid`.
    pub(crate) fn assign_child(&mut self, top_xid: Xid, sub_xid: Xid, lsn: Lsn) {
        let sub = self.find_or_begin(sub_xid, lsn);
        let named = self.find_or_begin(top_xid, lsn);
        let top = self.top_of(named);
        if top == sub || self.txns[sub as usize].top.is_some() {
            return;
        }
        self.unlink(sub);
        let child = &mut self.txns[sub as usize];
        child.top = Some(top);
        let (oldest, base, base_xmin) = (child.oldest_lsn, child.base_snapshot_lsn.take(), child.base_xmin);
        let (restart, restart_decoding) = (child.restart_lsn, child.restart_decoding_lsn);
        let (catalog, base_commit) = (child.has_catalog_changes, child.base_commit);
        let total_size = std::mem::take(&mut child.total_size);
        let (grandchildren, tuple_cids) = (std::mem::take(&mut child.subtxns), std::mem::take(&mut child.tuple_cids));
        let (messages, inherited) = (child.messages.clone(), child.inherited.clone());
        let (inherited_total, overflowed) = (child.inherited_total, child.inherited_overflowed);
        for (at, xid) in &grandchildren {
            if self.txns[*at as usize].xid == *xid {
                self.txns[*at as usize].top = Some(top);
            }
        }
        let parent = &mut self.txns[top as usize];
        parent.subtxns.push((sub, sub_xid));
        parent.subtxns.extend(grandchildren);
        parent.tuple_cids.extend(tuple_cids);
        parent.oldest_lsn = parent.oldest_lsn.min(oldest);
        parent.restart_lsn = parent.restart_lsn.min(restart);
        parent.restart_decoding_lsn = parent.restart_decoding_lsn.min(restart_decoding);
        parent.has_catalog_changes |= catalog;
        parent.total_size += total_size;
        parent.messages.extend(messages);
        parent.inherited.extend(inherited);
        parent.inherited_total += inherited_total;
        parent.inherited_overflowed |= overflowed;
        // `ReorderBufferTransferSnapToParent`: the older of the two base snapshots serves both.
        if let Some(base) = base
            && parent.base_snapshot_lsn.is_none_or(|own| base < own)
        {
            (parent.base_snapshot_lsn, parent.base_xmin) = (Some(base), base_xmin);
            // What the child caught up with is the child's, which may be rolled back.
            (parent.base_commit, parent.caught_up) = (base_commit, base_commit);
        }
    }

    /// `ReorderBufferCommitChild`: a subtransaction named by the commit record, if it left anything here.
    pub(crate) fn commit_child(&mut self, top_xid: Xid, sub_xid: Xid, lsn: Lsn) {
        if self.find(sub_xid).is_some() {
            self.assign_child(top_xid, sub_xid, lsn);
        }
    }

    /// `ReorderBufferXidSetCatalogChanges`: marks the transaction and its top-level one.
    pub(crate) fn set_catalog_changes(&mut self, at: u32) {
        self.txns[at as usize].has_catalog_changes = true;
        let top = self.top_of(at);
        self.txns[top as usize].has_catalog_changes = true;
    }

    /// `ReorderBufferXidHasCatalogChanges`.
    pub(crate) fn has_catalog_changes(&mut self, xid: Xid) -> bool {
        self.find(xid).is_some_and(|at| self.txns[at as usize].has_catalog_changes)
    }

    /// `ReorderBufferGetCatalogChangesXacts`: transactions and subtransactions that changed catalogs so far, in plain numeric order.
    pub(crate) fn catalog_changers(&self) -> Vec<Xid> {
        let changed = self.by_xid.values().map(|at| self.get(*at)).filter(|txn| txn.has_catalog_changes);
        let mut xids: Vec<Xid> = changed.map(|txn| txn.xid).collect();
        xids.sort_unstable_by_key(|xid| xid.numeric());
        xids
    }

    /// `ReorderBufferAddInvalidations` of 14 and later: remembers messages for the end and queues them at their LSN.
    ///
    /// # Errors
    /// As [`ReorderBuffer::queue`].
    pub(crate) fn add_invalidations(
        &mut self,
        at: u32,
        lsn: Lsn,
        messages: &[InvalidationMessage],
        room: &mut dyn Room,
    ) -> Result<(), SpillError> {
        let top = self.top_of(at);
        let txn = &mut self.txns[at as usize];
        let (start, len) = (txn.messages.len() as u32, messages.len() as u32);
        txn.messages.extend_from_slice(messages);
        if top != at {
            self.txns[top as usize].messages.extend_from_slice(messages);
        }
        self.queue(at, lsn, ChangeKind::Invalidations { start, len }, change_size::invalidations(u64::from(len)), room)
    }

    /// Top-level transactions, oldest first.
    pub(crate) fn toplevel(&self) -> impl Iterator<Item = u32> {
        std::iter::successors(self.ends.0, |at| self.txns[*at as usize].links.after)
    }

    /// The oldest top-level transaction.
    pub(crate) fn oldest(&self) -> Option<&Txn> {
        self.ends.0.map(|at| self.get(at))
    }

    /// Takes a transaction and its subtransactions out, the given one first, into `tree`, which must be empty.
    pub(crate) fn take_tree(&mut self, at: u32, tree: &mut Vec<Txn>) {
        debug_assert!(tree.is_empty());
        if let Some(top) = self.txns[at as usize].top {
            self.txns[top as usize].total_size -= self.txns[at as usize].size;
        }
        tree.push(self.take(at));
        let subtxns = std::mem::take(&mut tree[0].subtxns);
        for (sub, xid) in &subtxns {
            if self.txns[*sub as usize].xid == *xid && self.txns[*sub as usize].top == Some(at) {
                tree.push(self.take(*sub));
            }
        }
        tree[0].subtxns = subtxns;
    }

    /// Takes one transaction out of index, list and slot.
    fn take(&mut self, at: u32) -> Txn {
        self.unlink(at);
        self.memory.leave(at);
        let txn = std::mem::take(&mut self.txns[at as usize]);
        self.by_xid.remove(&txn.xid.0);
        if self.last.is_some_and(|(_, last)| last == at) {
            self.last = None;
        }
        self.free.push(at);
        txn
    }

    /// `ReorderBufferCleanupTXN`: removes the files of ended transactions and gives their buffers back for the next ones.
    ///
    /// # Errors
    /// A file could not be removed.
    pub(crate) fn give_back(&mut self, tree: &mut Vec<Txn>) -> Result<(), SpillError> {
        let mut done = Ok(());
        for (mut txn, at) in tree.drain(..).zip(self.free.iter().rev()) {
            done = done.and(self.memory.forget(&mut txn));
            txn.recycle();
            self.txns[*at as usize] = txn;
        }
        done
    }

    /// `ReorderBufferAbort`: forgets a transaction and its subtransactions.
    ///
    /// # Errors
    /// As [`ReorderBuffer::give_back`].
    pub(crate) fn abort(&mut self, xid: Xid, tree: &mut Vec<Txn>) -> Result<(), SpillError> {
        let Some(at) = self.find(xid) else { return Ok(()) };
        self.take_tree(at, tree);
        self.give_back(tree)
    }

    /// The head of the list, if it is older than the oldest running transaction: it ended without saying so
    /// (`ReorderBufferAbortOld` stops at the first live one).
    pub(crate) fn older_than(&self, oldest_running: Xid) -> Option<Xid> {
        self.oldest().map(|txn| txn.xid).filter(|xid| xid.precedes(oldest_running))
    }

    /// Takes a top-level transaction and its subtransactions out for a while; they stay listed.
    pub(crate) fn lend(&mut self, top: u32) -> Lent {
        let slots = self.slots_of(top);
        let tree = slots.iter().map(|at| std::mem::take(self.get_mut(*at))).collect();
        Lent { slots, tree }
    }

    /// Takes them back, without changes in memory.
    pub(crate) fn take_back(&mut self, lent: Lent) {
        for (txn, at) in lent.tree.into_iter().zip(lent.slots) {
            self.memory.leave(at);
            *self.get_mut(at) = txn;
        }
    }

    /// Slots of a top-level transaction and of its live subtransactions.
    fn slots_of(&self, top: u32) -> Vec<u32> {
        let of_it = |(at, xid): &(u32, Xid)| {
            let sub = &self.txns[*at as usize];
            (sub.xid == *xid && sub.top == Some(top)).then_some(*at)
        };
        std::iter::once(top).chain(self.txns[top as usize].subtxns.iter().filter_map(of_it)).collect()
    }

    /// Appends to the list of top-level transactions.
    fn link(&mut self, at: u32) {
        let before = self.ends.1.replace(at);
        self.txns[at as usize].links = Links { linked: true, before, after: None };
        match before {
            Some(before) => self.txns[before as usize].links.after = Some(at),
            None => self.ends.0 = Some(at),
        }
    }

    /// Takes out of that list, if it is there.
    fn unlink(&mut self, at: u32) {
        let links = std::mem::take(&mut self.txns[at as usize].links);
        if !links.linked {
            return;
        }
        match links.before {
            Some(before) => self.txns[before as usize].links.after = links.after,
            None => self.ends.0 = links.after,
        }
        match links.after {
            Some(after) => self.txns[after as usize].links.before = links.before,
            None => self.ends.1 = links.before,
        }
    }

    /// Checks I1–I3, and those of the memory.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn check_invariants(&self) {
        self.check_memory();
        let listed: Vec<u32> = self.toplevel().collect();
        let (mut tops, mut live) = (0, 0);
        for (xid, at) in &self.by_xid {
            let txn = self.get(*at);
            assert_eq!(txn.xid, Xid(*xid), "I1");
            live += 1;
            match txn.top {
                None => tops += 1,
                Some(top) => {
                    assert!(self.get(top).top.is_none(), "I3");
                    assert!(!txn.links.linked, "I2");
                }
            }
        }
        assert_eq!((tops, live + self.free.len()), (listed.len(), self.txns.len()), "I2");
    }
}

#[cfg(test)]
mod tests {
    use pg_types::Work;

    use super::*;

    fn buffer(xids: &[u32]) -> ReorderBuffer {
        let mut rb = ReorderBuffer::default();
        for (i, xid) in xids.iter().enumerate() {
            rb.find_or_begin(Xid(*xid), Lsn(100 + i as u64));
        }
        rb.check_invariants();
        rb
    }

    fn xids(rb: &ReorderBuffer) -> Vec<u32> {
        rb.toplevel().map(|at| rb.get(at).xid.0).collect()
    }

    #[test]
    fn i2_the_list_is_in_order_of_creation_without_subtransactions() {
        let mut rb = buffer(&[10, 11, 12, 13]);
        rb.assign_child(Xid(10), Xid(12), Lsn(200));
        rb.assign_child(Xid(20), Xid(11), Lsn(201));
        rb.check_invariants();
        assert_eq!(xids(&rb), [10, 13, 20]);
        let top = rb.find(Xid(20)).unwrap();
        assert_eq!(rb.get(top).oldest_lsn, Lsn(101), "the subtransaction began before");
    }

    #[test]
    fn i3_nested_and_circular_assignments_stay_flat() {
        let mut rb = buffer(&[10, 11, 12]);
        rb.assign_child(Xid(11), Xid(12), Lsn(200));
        rb.assign_child(Xid(10), Xid(11), Lsn(201));
        rb.assign_child(Xid(12), Xid(10), Lsn(202));
        rb.assign_child(Xid(10), Xid(10), Lsn(203));
        rb.check_invariants();
        assert_eq!(xids(&rb), [10]);
        let mut tree = Vec::new();
        let at = rb.find(Xid(10)).unwrap();
        rb.take_tree(at, &mut tree);
        assert_eq!(tree.iter().map(|t| t.xid.0).collect::<Vec<_>>(), [10, 11, 12]);
        rb.give_back(&mut tree).unwrap();
        rb.check_invariants();
        assert_eq!(rb.len(), 0);
    }

    #[test]
    fn an_aborted_subtransaction_is_gone_and_its_slot_may_be_another_s() {
        let (mut rb, mut tree) = (buffer(&[10, 11]), Vec::new());
        rb.assign_child(Xid(10), Xid(11), Lsn(200));
        rb.abort(Xid(11), &mut tree).unwrap();
        let other = rb.find_or_begin(Xid(12), Lsn(201));
        rb.queue(other, Lsn(201), ChangeKind::SpeculativeAbort, 80, &mut Work::default()).unwrap();
        let at = rb.find(Xid(10)).unwrap();
        rb.take_tree(at, &mut tree);
        assert_eq!(tree.len(), 1, "the stale place is not mistaken for xid 12");
        rb.give_back(&mut tree).unwrap();
        rb.check_invariants();
        assert_eq!(xids(&rb), [12]);
    }

    #[test]
    fn old_transactions_are_aborted_up_to_the_first_live_one() {
        let (mut rb, mut tree) = (buffer(&[10, 12, 11, 5]), Vec::new());
        while let Some(xid) = rb.older_than(Xid(12)) {
            rb.abort(xid, &mut tree).unwrap();
        }
        assert_eq!(xids(&rb), [12, 11, 5], "5 and 11 are old too, but stand behind a live one");
        rb.check_invariants();
    }

    #[test]
    fn the_older_base_snapshot_serves_both() {
        let mut rb = buffer(&[10, 11]);
        let (top, sub) = (rb.find(Xid(10)).unwrap(), rb.find(Xid(11)).unwrap());
        rb.get_mut(top).base_snapshot_lsn = Some(Lsn(150));
        rb.get_mut(sub).base_snapshot_lsn = Some(Lsn(140));
        rb.assign_child(Xid(10), Xid(11), Lsn(200));
        assert_eq!((rb.get(top).base_snapshot_lsn, rb.get(sub).base_snapshot_lsn), (Some(Lsn(140)), None));
    }
}
