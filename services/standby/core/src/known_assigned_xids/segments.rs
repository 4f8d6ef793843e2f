//! The layout of profile `indexed`: live xids alone, in sorted segments that are copied when they change.
//!
//! An array with gaps makes readers pay for what has ended, so every cure walks, jumps or compresses. Here there are no gaps: an
//! end takes its xid out of one short segment. What is published shares all segments with the writer; to change one, the writer
//! copies it and the list of its neighbours first, once a record. The newest, where most ends are, stands open outside of the
//! lists. Readers copy whole segments and write nothing.
//!
//! ```text
//!   groups    [ 700 … 1530 ]              [ 1533 … 1551 ]               ≤ 64 segments each, the list copied when one changes
//!               │                                            open
//!   segments  [700 702 705 …] [… 1530]    [1533 …] [… 1551]  [1560 …]   ≤ 128 xids each, copied when they change
//! ```
//!
//! **Invariants** (checked after each change in debug builds)
//! - S1 no segment but the open one, and no group, is empty.
//! - S2 xids ascend in the circular order, within segments and across.
//! - S3 `live` is the number of xids.
//! - S4 neighbouring segments of a group hold together more than half a segment, neighbouring groups more than half a group, so
//!   memory follows the live xids.
//! - S5 a published view never changes: what two owners share is copied before it is written.
//!
//! | operation (N live) | cost |
//! |---|---|
//! | add | copies a segment, once a record; each 128 xids a new one |
//! | remove | O(log N) to find; copies a segment and, unless it is the open one, 64 pointers to segments and N / 4096 to groups |
//! | prune | O(what goes) |
//! | snapshot | O(N), by copying memory |
//!
//! **Difference from PostgreSQL.** There is no span: `tail` is 0 and `head` the number of live xids, as right after a compression,
//! and nothing ever needs one. The array is full at the same number of live xids.

use std::sync::Arc;

use pg_types::{Lsn, Xid};

use super::skip_offset::SlotCount;
use super::xids_between;
use crate::error::RecoveryError;

/// Xids of a segment: half a kilobyte.
#[cfg(not(any(loom, test)))]
const SEGMENT_XIDS: usize = 128;
/// Few, so that small tests see segments come and go.
#[cfg(any(loom, test))]
const SEGMENT_XIDS: usize = 4;

/// Segments of a group, half a kilobyte of pointers.
#[cfg(not(any(loom, test)))]
const GROUP_SEGMENTS: usize = 64;
/// Few, so that small tests see groups come and go.
#[cfg(any(loom, test))]
const GROUP_SEGMENTS: usize = 4;

/// A run of live xids.
#[derive(Clone, Debug)]
struct Segment {
    /// Xids in use.
    len: u32,
    /// The xids, the first `len` of them in use.
    xids: [Xid; SEGMENT_XIDS],
}

impl Segment {
    /// The xids.
    fn live(&self) -> &[Xid] {
        &self.xids[..self.len as usize]
    }

    /// Appends xids, for which there must be room.
    fn append(&mut self, from: &[Xid]) {
        let len = self.len as usize;
        self.xids[len..len + from.len()].copy_from_slice(from);
        self.len += from.len() as u32;
    }

    /// Takes out the xid at `index`.
    fn remove(&mut self, index: usize) {
        self.xids.copy_within(index + 1..self.len as usize, index);
        self.len -= 1;
    }
}

impl Default for Segment {
    fn default() -> Self {
        Self { len: 0, xids: [Xid::INVALID; SEGMENT_XIDS] }
    }
}

/// Neighbouring segments.
type Group = Arc<Vec<Arc<Segment>>>;

/// The live xids: the writer's, or a view of them. Cloning costs one reference count.
#[derive(Clone, Debug, Default)]
pub struct LiveXids {
    /// The groups, oldest first.
    groups: Arc<Vec<Group>>,
    /// The newest segment.
    open: Arc<Segment>,
    /// Live xids.
    live: u32,
}

impl LiveXids {
    /// Live xids.
    #[must_use]
    pub fn live(&self) -> u32 {
        self.live
    }

    /// The segments, oldest first.
    fn segments(&self) -> impl Iterator<Item = &[Xid]> {
        self.groups.iter().flat_map(|group| group.iter()).chain([&self.open]).map(|segment| segment.live())
    }

    /// Appends the live xids before `xmax` to `out`, oldest first; each counts as visited, and so does one that ends the walk.
    pub(crate) fn live_below(&self, xmax: Xid, out: &mut Vec<Xid>) -> SlotCount {
        let before = out.len();
        let mut stopped = 0;
        for xids in self.segments() {
            if xids.last().is_none_or(|last| last.precedes(xmax)) {
                out.extend_from_slice(xids);
            } else {
                out.extend_from_slice(&xids[..xids.partition_point(|xid| xid.precedes(xmax))]);
                stopped = 1;
                break;
            }
        }
        SlotCount { visited: (out.len() - before) as u64 + stopped, skipped: 0 }
    }

    /// The oldest live xid.
    pub(crate) fn oldest(&self) -> Option<Xid> {
        self.segments().find_map(|segment| segment.first().copied())
    }

    /// All live xids, oldest first.
    pub(crate) fn live_xids(&self) -> Vec<Xid> {
        let mut xids = Vec::with_capacity(self.live as usize);
        self.segments().for_each(|segment| xids.extend_from_slice(segment));
        xids
    }

    /// Bytes of the segments and of the lists of them.
    pub(crate) fn memory_bytes(&self) -> usize {
        /// Counts of an `Arc` and its pointer.
        const SHARED: usize = 3 * size_of::<usize>();
        let segment = size_of::<Segment>() + SHARED;
        let groups = self.groups.iter().map(|group| group.len() * segment + size_of::<Vec<Segment>>() + SHARED);
        groups.sum::<usize>() + size_of::<Vec<Group>>() + SHARED + segment
    }
}

/// The writer's side.
#[derive(Debug)]
pub(crate) struct LiveSegments {
    /// The live xids as they are now.
    view: LiveXids,
    /// Newest xid added since there was none.
    newest: Xid,
    /// Live xids there can be.
    max: u32,
    /// Xids that searches looked at.
    pub(crate) searched: u64,
}

impl LiveSegments {
    /// No xid yet, room for `max`.
    pub(crate) fn new(max: u32) -> Self {
        Self { view: LiveXids::default(), newest: Xid::INVALID, max, searched: 0 }
    }

    /// The live xids as they are now.
    pub(crate) fn view(&self) -> &LiveXids {
        &self.view
    }

    /// `KnownAssignedXidsAdd`: appends `from` … `to`, both included.
    pub(crate) fn add(&mut self, from: Xid, to: Xid, lsn: Lsn) -> Result<(), RecoveryError> {
        let (live, max, last) = (self.view.live, self.max, self.newest);
        if live > 0 && last.follows_or_equals(from) {
            return Err(RecoveryError::OutOfOrderXid { lsn, xid: from, last });
        }
        let wanted = xids_between(from, to);
        if u64::from(live) + wanted > u64::from(max) {
            return Err(RecoveryError::TooManyKnownAssignedXids { lsn, live, wanted, max });
        }
        let mut next = from;
        for _ in 0..wanted {
            if self.view.open.len as usize == SEGMENT_XIDS {
                self.close();
            }
            let open = Arc::make_mut(&mut self.view.open);
            open.xids[open.len as usize] = next;
            open.len += 1;
            next = next.next();
        }
        self.view.live += wanted as u32;
        self.newest = to;
        self.check_invariants();
        Ok(())
    }

    /// Puts the open segment into the last group, and opens another.
    fn close(&mut self) {
        let segment = std::mem::take(&mut self.view.open);
        let groups = Arc::make_mut(&mut self.view.groups);
        match groups.last_mut() {
            Some(group) if group.len() < GROUP_SEGMENTS => Arc::make_mut(group).push(segment),
            _ => groups.push(Arc::new(vec![segment])),
        }
    }

    /// `KnownAssignedXidsRemoveTree`: a transaction, if valid, and subtransactions. Absent ones are no error.
    pub(crate) fn remove_tree(&mut self, xid: Xid, subxids: &[Xid]) {
        for &xid in [xid].iter().filter(|xid| xid.is_valid()).chain(subxids) {
            self.remove(xid);
        }
        self.check_invariants();
    }

    /// `KnownAssignedXidsRemove`.
    fn remove(&mut self, xid: Xid) {
        if let Some(index) = position(&self.view.open, xid, &mut self.searched) {
            Arc::make_mut(&mut self.view.open).remove(index);
            self.view.live -= 1;
        } else if let Some((group, segment, index)) = self.search(xid) {
            self.remove_closed(group, segment, index);
            self.view.live -= 1;
        }
    }

    /// Takes a xid out of a closed segment, and the segment out of its group if it was the last.
    fn remove_closed(&mut self, group: usize, segment: usize, index: usize) {
        let groups = Arc::make_mut(&mut self.view.groups);
        let segments = Arc::make_mut(&mut groups[group]);
        if segments[segment].len > 1 {
            Arc::make_mut(&mut segments[segment]).remove(index);
        } else {
            segments.remove(segment);
        }
        merge(segments, segment);
        if segments.len() <= GROUP_SEGMENTS / 2 {
            merge_groups(groups, group);
        }
    }

    /// Where `xid` is among the closed segments, if it runs.
    fn search(&mut self, xid: Xid) -> Option<(usize, usize, usize)> {
        let searched = &mut self.searched;
        let mut not_after = |segment: Option<&Arc<Segment>>| {
            *searched += 1;
            segment.is_some_and(|segment| segment.xids[0].precedes_or_equals(xid))
        };
        let groups = &self.view.groups;
        let group = groups.partition_point(|group| not_after(group.first())).checked_sub(1)?;
        let segments = &groups[group];
        let segment = segments.partition_point(|segment| not_after(Some(segment))).checked_sub(1)?;
        let index = position(&segments[segment], xid, searched)?;
        Some((group, segment, index))
    }

    /// `KnownAssignedXidsRemovePreceding`: removes what is older than `limit`, sparing prepared transactions.
    pub(crate) fn prune(&mut self, limit: Xid, is_prepared: impl Fn(Xid) -> bool) {
        let old = self.view.segments().flat_map(|xids| xids.iter().copied()).take_while(|xid| xid.precedes(limit));
        let gone: Vec<Xid> = old.filter(|&xid| !is_prepared(xid)).collect();
        for xid in gone {
            self.remove(xid);
        }
        self.check_invariants();
    }

    /// `KnownAssignedXidsReset`: empties it.
    pub(crate) fn reset(&mut self) {
        self.view = LiveXids::default();
    }

    /// S1 to S4, in debug builds, up to a size that keeps tests linear.
    fn check_invariants(&self) {
        if !cfg!(debug_assertions) || cfg!(loom) || self.view.live > 1024 {
            return;
        }
        let view = &self.view;
        let groups = &view.groups;
        assert!(groups.iter().all(|g| !g.is_empty() && g.iter().all(|s| s.len > 0)), "S1: {view:?}");
        let xids = view.live_xids();
        assert!(xids.is_sorted_by(|a, b| a.precedes(*b)), "S2: {view:?}");
        assert_eq!(xids.len(), view.live as usize, "S3: {view:?}");
        let sparse = |pair: &[Arc<Segment>]| (pair[0].len + pair[1].len) as usize <= SEGMENT_XIDS / 2;
        assert!(!groups.iter().any(|g| g.windows(2).any(sparse)), "S4: {view:?}");
        assert!(!groups.windows(2).any(|g| g[0].len() + g[1].len() <= GROUP_SEGMENTS / 2), "S4: {view:?}");
    }
}

/// Where `xid` is in a segment; counts the xids looked at.
fn position(segment: &Segment, xid: Xid, searched: &mut u64) -> Option<usize> {
    let at = segment.live().partition_point(|x| {
        *searched += 1;
        x.precedes(xid)
    });
    (segment.live().get(at) == Some(&xid)).then_some(at)
}

/// Joins the segment at `index` with a neighbour if both together fill at most half a segment (S4).
fn merge(segments: &mut Vec<Arc<Segment>>, index: usize) {
    for left in [index.checked_sub(1), Some(index)].into_iter().flatten() {
        if let [a, b, ..] = &segments[left.min(segments.len())..]
            && (a.len + b.len) as usize <= SEGMENT_XIDS / 2
        {
            let right = segments.remove(left + 1);
            Arc::make_mut(&mut segments[left]).append(right.live());
            return;
        }
    }
}

/// The same for the group at `index`; drops it if it is empty.
fn merge_groups(groups: &mut Vec<Group>, index: usize) {
    if groups[index].is_empty() {
        groups.remove(index);
    }
    for left in [index.checked_sub(1), Some(index)].into_iter().flatten() {
        if let [a, b, ..] = &groups[left.min(groups.len())..]
            && a.len() + b.len() <= GROUP_SEGMENTS / 2
        {
            let right = groups.remove(left + 1);
            let segments = Arc::make_mut(&mut groups[left]);
            let seam = segments.len();
            segments.extend(right.iter().cloned());
            merge(segments, seam);
            return;
        }
    }
}
