//! What is published of the known-assigned xids: a view, fixed at one replay position.

use std::sync::Arc;

use pg_types::Xid;

use super::segments::LiveXids;
use super::skip_offset::{ScanStrategy, SlotCount, live_below, runs};
use super::slots::SlotLog;

/// The known-assigned xids at one replay position. Cloning costs one reference count.
#[derive(Clone, Debug)]
pub struct KnownAssignedView {
    /// `tailKnownAssignedXids`: index of the oldest live xid.
    pub tail: u32,
    /// `headKnownAssignedXids`: one past the newest slot.
    pub head: u32,
    /// `numKnownAssignedXids`: live xids.
    pub live: u32,
    /// The xids.
    xids: Xids,
}

/// The xids of a view, by layout.
#[derive(Clone, Debug)]
enum Xids {
    Array(ArrayView),
    Segments(LiveXids),
}

impl From<ArrayView> for KnownAssignedView {
    fn from(view: ArrayView) -> Self {
        Self { tail: view.tail, head: view.head, live: view.live, xids: Xids::Array(view) }
    }
}

impl From<LiveXids> for KnownAssignedView {
    fn from(view: LiveXids) -> Self {
        Self { tail: 0, head: view.live(), live: view.live(), xids: Xids::Segments(view) }
    }
}

impl KnownAssignedView {
    /// No xids.
    pub(crate) fn empty() -> Self {
        LiveXids::default().into()
    }

    /// Slots from tail to head, live and dead: what a plain scan looks at.
    #[must_use]
    pub fn span(&self) -> u32 {
        self.head - self.tail
    }

    /// `KnownAssignedXidsGetAndSetXmin`: appends the live xids before `xmax` to `out`, oldest first; says what it cost. `scan` is
    /// how to walk an array; segments have one way.
    pub fn live_below(&self, xmax: Xid, scan: ScanStrategy, out: &mut Vec<Xid>) -> SlotCount {
        match &self.xids {
            Xids::Array(view) => live_below(view, xmax, scan, out),
            Xids::Segments(view) => view.live_below(xmax, out),
        }
    }

    /// `KnownAssignedXidsGetOldestXmin`: the oldest live xid.
    #[must_use]
    pub fn oldest(&self) -> Option<Xid> {
        match &self.xids {
            // I3: the tail runs.
            Xids::Array(view) => (view.live > 0).then(|| view.log.xid(view.tail_position())),
            Xids::Segments(view) => view.oldest(),
        }
    }

    /// All live xids, oldest first.
    #[must_use]
    pub fn live_xids(&self) -> Vec<Xid> {
        match &self.xids {
            Xids::Array(view) => view.live_xids(),
            Xids::Segments(view) => view.live_xids(),
        }
    }

    /// The newest xid, in an array live or not.
    #[cfg(test)]
    pub(crate) fn newest(&self) -> Option<Xid> {
        match &self.xids {
            Xids::Array(view) => (view.span() > 0).then(|| view.log.xid(view.head_position() - 1)),
            Xids::Segments(view) => view.live_xids().last().copied(),
        }
    }

    /// Bytes that this view holds on to, skip offsets and unused room included.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        match &self.xids {
            Xids::Array(view) => view.log.memory_bytes(),
            Xids::Segments(view) => view.memory_bytes(),
        }
    }
}

/// The array at one replay position.
///
/// A slot between tail and head runs in this view if it has no end stamp or one above [`ends`](Self::ends). The stamps that
/// count were written before the view was published, later ones do not count, so the view never changes.
#[derive(Clone, Debug)]
pub(crate) struct ArrayView {
    /// The slots.
    pub(crate) log: Arc<SlotLog>,
    /// Position of index 0.
    pub(crate) base: u64,
    /// Ends in this array since its index 0 was there: the stamp of the latest one.
    pub(crate) ends: u32,
    /// `tailKnownAssignedXids`: index of the oldest live xid.
    pub(crate) tail: u32,
    /// `headKnownAssignedXids`: one past the newest slot.
    pub(crate) head: u32,
    /// `numKnownAssignedXids`: live xids.
    pub(crate) live: u32,
}

impl ArrayView {
    /// An empty array.
    pub(crate) fn new() -> Self {
        Self { log: Arc::new(SlotLog::new()), base: 0, ends: 0, tail: 0, head: 0, live: 0 }
    }

    /// Slots from tail to head, live and dead: what a plain scan looks at.
    pub(crate) fn span(&self) -> u32 {
        self.head - self.tail
    }

    /// Position of the tail.
    pub(crate) fn tail_position(&self) -> u64 {
        self.base + u64::from(self.tail)
    }

    /// Position of the head.
    pub(crate) fn head_position(&self) -> u64 {
        self.base + u64::from(self.head)
    }

    /// True if the slot at this position runs.
    pub(crate) fn runs_at(&self, position: u64) -> bool {
        runs(self.log.ended(position), self.ends)
    }

    /// All live xids, oldest first.
    pub(crate) fn live_xids(&self) -> Vec<Xid> {
        let positions = self.tail_position()..self.head_position();
        positions.filter(|&p| self.runs_at(p)).map(|p| self.log.xid(p)).collect()
    }
}
