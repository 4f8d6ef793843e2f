//! Whom a snapshot builder waits for, by name.
//!
//! PostgreSQL's builder goes by one number and logs the xids of each list; who reads that log only later wants to know who holds a slot
//! up *now*. A list may name transactions whose end is already in WAL, so ends are remembered until no list can name them.
//!
//! Invariants: I1 each was in the last list, precedes the boundary and was not seen to end; I2 oldest first; I3 at most
//! [`REMEMBERED_MAX`] ends are remembered: of more, some may be named that have ended.

use pg_types::Xid;
use pg_types::record::RunningXactsRecord;
use rustc_hash::FxHashSet;

/// Most ended transactions that are remembered.
const REMEMBERED_MAX: usize = 65_536;

/// Whom the state waits for.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// They (I1, I2).
    xids: Vec<Xid>,
    /// Ends that were read (I3).
    ended: FxHashSet<u32>,
}

impl Waiting {
    /// Oldest first.
    pub(super) fn xids(&self) -> &[Xid] {
        &self.xids
    }

    /// Nobody any more.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// The end of a transaction was read.
    pub(super) fn ended(&mut self, xid: Xid) {
        self.xids.retain(|waiting| *waiting != xid);
        if self.ended.len() < REMEMBERED_MAX {
            self.ended.insert(xid.0);
        }
    }

    /// The next state comes when all before `boundary` have ended; `running` is what runs now.
    pub(super) fn take_list(&mut self, boundary: Xid, running: &RunningXactsRecord) {
        self.ended.retain(|xid| !Xid(*xid).precedes(running.oldest_running_xid));
        let holds = |xid: &Xid| boundary.is_valid() && xid.precedes(boundary) && !self.ended.contains(&xid.0);
        self.xids = running.xids.iter().copied().filter(holds).collect();
        // Their distance from the boundary, which all of them precede, orders them across the wraparound.
        self.xids.sort_unstable_by_key(|xid| std::cmp::Reverse(boundary.0.wrapping_sub(xid.0)));
    }
}
