//! The array as PostgreSQL has it: gaps stay until a compression, or readers jump over them.
//!
//! ```text
//!   index   0    1    2    3    4    5    6    7
//!   xid     700  701  702  703  704  705  706        sorted, gaps keep their xid
//!   runs    –    –    yes  –    –    yes  yes
//!                     ▲tail                    ▲head        live = 3, span = 5
//! ```
//!
//! **Invariants** (checked after each change in debug builds, and by the property tests that name them)
//! - I1 `tail ≤ head ≤ max`; an empty array has `tail = head = 0`.
//! - I2 `live` slots of `tail … head` run.
//! - I3 the slot at the tail runs, so every gap has a live slot before it.
//! - I4 xids ascend in the circular order, gaps included.
//! - I5 a published view never changes: a slot's position is used once, its xid is written before and its end stamp after, with a
//!   number above the view's.
//! - I6 a walk with skip offsets gives what a plain walk gives.
//!
//! | operation (N live, S span) | PostgreSQL | here |
//! |---|---|---|
//! | add | O(1), compresses when full | O(1); a new chunk each 1024 slots costs O(S / 1024) |
//! | remove | O(log S), O(S) from the tail | same |
//! | prune | O(S) | same |
//! | compress | O(S), readers wait | O(S), readers keep the old slots |
//! | snapshot, plain | O(S) | same |
//! | snapshot, skip offsets | – | O(N + gaps + removals since the last one) |
//!
//! **Differences from PostgreSQL.** There readers share `ProcArrayLock` with the writer; here they take no lock: a removal stamps
//! the slot instead of clearing it, and compression and the reset of an empty array open a new stretch of slots
//! ([`super::slots`]). The indices a caller sees (`tail`, `head`) are PostgreSQL's. Memory is taken by the chunk as it is used, not
//! M slots at start.

use std::sync::Arc;

use pg_types::{Lsn, Xid};

use crate::error::RecoveryError;

use super::compress::{CompressCall, CompressReason, CompressionRule, Compressor};
use super::slots::{CHUNK_SLOTS, SlotLog};
use super::view::ArrayView;
use super::xids_between;

/// The writer's side of the array. Readers get clones of [`KnownAssignedArray::view`], published by the owner.
#[derive(Debug)]
pub(crate) struct KnownAssignedArray {
    /// The array as it is now; what a published view is cloned from.
    view: ArrayView,
    /// `maxKnownAssignedXids`: slots.
    max: u32,
    /// When to compress.
    compressor: Compressor,
    /// Time that the owner told last, milliseconds.
    now_ms: u64,
    /// Calls of compression since [`KnownAssignedArray::clear_calls`].
    calls: Vec<CompressCall>,
    /// Slots that searches looked at.
    searched: u64,
    /// Xids that a compression moves; kept for its room.
    moving: Vec<Xid>,
}

impl KnownAssignedArray {
    /// An empty array of `max` slots that serves `max_procs` processes.
    pub(crate) fn new(max: u32, max_procs: u32, rule: CompressionRule) -> Self {
        Self {
            view: ArrayView::new(),
            max,
            compressor: Compressor::new(rule, max_procs),
            now_ms: 0,
            calls: Vec::new(),
            searched: 0,
            moving: Vec::new(),
        }
    }

    /// The array as it is now. Until the next change it stays exact; publish it only between records.
    pub(crate) fn view(&self) -> &ArrayView {
        &self.view
    }

    /// Slots that binary searches have looked at so far.
    pub(crate) fn slots_searched(&self) -> u64 {
        self.searched
    }

    /// `transactionEndsCounter`.
    pub(crate) fn transaction_ends_counter(&self) -> u32 {
        self.compressor.counter
    }

    /// The calls of compression since they were cleared.
    pub(crate) fn calls(&self) -> &[CompressCall] {
        &self.calls
    }

    /// Forgets the calls; the owner does so at each record, which bounds them.
    pub(crate) fn clear_calls(&mut self) {
        self.calls.clear();
    }

    /// Tells the time, in milliseconds of any clock that does not run backwards.
    pub(crate) fn set_now(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// `KnownAssignedXidsAdd`: appends `from` … `to`, both included. Record `lsn` is for messages.
    ///
    /// # Errors
    /// [`RecoveryError::OutOfOrderXid`] unless `from` follows the last slot; [`RecoveryError::TooManyKnownAssignedXids`] if
    /// they do not fit even after compression.
    pub(crate) fn add(&mut self, from: Xid, to: Xid, lsn: Lsn) -> Result<(), RecoveryError> {
        debug_assert!(from.precedes_or_equals(to));
        if self.view.span() > 0 {
            let last = self.view.log.xid(self.view.head_position() - 1);
            if last.follows_or_equals(from) {
                return Err(RecoveryError::OutOfOrderXid { lsn, xid: from, last });
            }
        }
        let wanted = xids_between(from, to);
        if u64::from(self.view.head) + wanted > u64::from(self.max) {
            self.consider_compression(CompressReason::NoSpace);
            if u64::from(self.view.head) + wanted > u64::from(self.max) {
                let live = self.view.live;
                return Err(RecoveryError::TooManyKnownAssignedXids { lsn, live, wanted, max: self.max });
            }
        }
        self.reserve(wanted);
        let mut xid = from;
        for position in self.view.head_position()..self.view.head_position() + wanted {
            self.view.log.put(position, xid);
            xid = xid.next();
        }
        let wanted = wanted as u32;
        self.view.head += wanted;
        self.view.live += wanted;
        self.check_invariants();
        Ok(())
    }

    /// `KnownAssignedXidsRemoveTree`: removes a transaction, if valid, and subtransactions; then considers compression. Absent ones
    /// are no error: they may have been removed by an assignment or never seen.
    pub(crate) fn remove_tree(&mut self, xid: Xid, subxids: &[Xid]) {
        if xid.is_valid() {
            self.remove(xid);
        }
        for &subxid in subxids {
            self.remove(subxid);
        }
        self.consider_compression(CompressReason::TransactionEnd);
        self.check_invariants();
    }

    /// `KnownAssignedXidsRemove`.
    fn remove(&mut self, xid: Xid) {
        let Some(position) = self.search(xid) else { return };
        if !self.view.runs_at(position) {
            return;
        }
        self.end(position);
        if position == self.view.tail_position() {
            self.advance_tail();
        }
    }

    /// `KnownAssignedXidsRemovePreceding`: removes what is older than `limit`, sparing prepared transactions, then considers
    /// compression.
    pub(crate) fn prune(&mut self, limit: Xid, is_prepared: impl Fn(Xid) -> bool) {
        for position in self.view.tail_position()..self.view.head_position() {
            if self.view.runs_at(position) {
                let xid = self.view.log.xid(position);
                if xid.follows_or_equals(limit) {
                    break;
                }
                if !is_prepared(xid) {
                    self.end(position);
                }
            }
        }
        self.advance_tail();
        self.consider_compression(CompressReason::Prune);
        self.check_invariants();
    }

    /// `KnownAssignedXidsReset`: empties the array.
    pub(crate) fn reset(&mut self) {
        self.open_stretch();
        self.view.live = 0;
        self.check_invariants();
    }

    /// `KnownAssignedTransactionIdsIdleMaintenance`: replay waits for WAL.
    pub(crate) fn idle(&mut self) {
        self.consider_compression(CompressReason::StartupProcessIdle);
        self.check_invariants();
    }

    /// `KnownAssignedXidsSearch`: the position of `xid`, live or dead.
    fn search(&mut self, xid: Xid) -> Option<u64> {
        let (mut low, mut high) = (self.view.tail_position(), self.view.head_position());
        while low < high {
            let middle = low + (high - low) / 2;
            let found = self.view.log.xid(middle);
            self.searched += 1;
            if found == xid {
                return Some(middle);
            }
            if xid.precedes(found) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        None
    }

    /// Stamps a running slot.
    fn end(&mut self, position: u64) {
        self.view.ends += 1;
        self.view.live -= 1;
        self.view.log.end_slot(position, self.view.ends);
    }

    /// Moves the tail to the oldest live slot; empties the array if there is none.
    fn advance_tail(&mut self) {
        if self.view.live == 0 {
            return self.open_stretch();
        }
        while !self.view.runs_at(self.view.tail_position()) {
            self.view.tail += 1;
        }
    }

    /// Puts index 0 at the next unused position. Views published before keep the slots that they know.
    fn open_stretch(&mut self) {
        self.view.base = self.view.head_position();
        self.view.tail = 0;
        self.view.head = 0;
        self.view.ends = 0;
    }

    /// `KnownAssignedXidsCompress`.
    fn consider_compression(&mut self, reason: CompressReason) {
        let ArrayView { tail, head, live, .. } = self.view;
        let counter = self.compressor.counter;
        let compressed = self.compressor.decide(reason, self.view.span(), live, self.now_ms);
        self.calls.push(CompressCall { reason, live, tail, head, counter, compressed });
        if compressed {
            self.compress();
        }
    }

    /// Copies the live xids to a new stretch, index 0 on.
    fn compress(&mut self) {
        let mut moving = std::mem::take(&mut self.moving);
        moving.clear();
        let positions = self.view.tail_position()..self.view.head_position();
        moving.extend(positions.filter(|&p| self.view.runs_at(p)).map(|p| self.view.log.xid(p)));
        self.open_stretch();
        self.reserve(moving.len() as u64);
        for (index, &xid) in moving.iter().enumerate() {
            self.view.log.put(self.view.base + index as u64, xid);
        }
        self.view.head = self.view.live;
        self.moving = moving;
    }

    /// Makes room for `wanted` slots after the head; chunks before the tail are let go.
    fn reserve(&mut self, wanted: u64) {
        let end = self.view.head_position() + wanted;
        if end > self.view.log.end() {
            self.view.log = Arc::new(SlotLog::extended(&self.view.log, self.view.tail_position(), end));
        }
    }

    /// I1 to I4, in debug builds; the walk over the slots only up to a size that keeps tests linear.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) || cfg!(loom) {
            return;
        }
        let view = &self.view;
        assert!(view.tail <= view.head && view.head <= self.max, "I1: {view:?}");
        assert!(view.live > 0 || (view.tail == 0 && view.head == 0), "I1: an empty array is at 0: {view:?}");
        if view.span() as usize > CHUNK_SLOTS {
            return;
        }
        let positions = view.tail_position()..view.head_position();
        assert_eq!(positions.clone().filter(|&p| view.runs_at(p)).count(), view.live as usize, "I2: {view:?}");
        assert!(view.live == 0 || view.runs_at(view.tail_position()), "I3: {view:?}");
        let ascend = positions.clone().skip(1).all(|p| view.log.xid(p - 1).precedes(view.log.xid(p)));
        assert!(ascend, "I4: {view:?}");
    }
}
