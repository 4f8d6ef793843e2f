//! Who is running (`storage/ipc/procarray.c`): transaction ids of the sessions, and the record that tells a standby of them.
//!
//! Every session has one slot with its top-level xid and at most 64 of its subtransactions; with the 65th the slot is
//! *overflowed*, and a record of running transactions then names no subtransactions at all. A prepared transaction has a slot of
//! its own, which belongs to no session and comes behind those of all sessions.
//!
//! **Invariants**
//! - I1: a slot has subtransactions only if it has a top-level xid.
//! - I2: `latest_completed` is the newest xid that ended; `next_xid` is newer than every xid in a slot.
//!
//! Cost: begin and end O(1); a running-xacts record O(sessions + subtransactions).

use std::collections::BTreeMap;

use pg_types::record::RunningXactsRecord;
use pg_types::{FullXid, Xid};

/// `PGPROC_MAX_CACHED_SUBXIDS`.
const MAX_CACHED_SUBXIDS: usize = 64;

/// One session's running transaction.
#[derive(Clone, Debug, Default)]
struct Slot {
    /// Its top-level xid.
    xid: Xid,
    /// Its running or committed subtransactions, oldest first.
    subxids: Vec<Xid>,
    /// More than 64 subtransactions had ids at some time in this transaction.
    overflowed: bool,
}

/// All sessions' slots and the counter of xids.
#[derive(Clone, Debug)]
pub struct ProcArray {
    /// Slots of the sessions that have an xid, by session: the order in which a record lists them.
    slots: BTreeMap<usize, Slot>,
    /// The next xid to be given.
    next_xid: FullXid,
    /// The newest xid that ended.
    latest_completed: Xid,
}

impl ProcArray {
    /// Nothing runs; `next_xid` will be the first.
    #[must_use]
    pub fn new(next_xid: FullXid) -> ProcArray {
        ProcArray { slots: BTreeMap::new(), next_xid, latest_completed: next_xid.xid().prev() }
    }

    /// The next xid to be given.
    #[must_use]
    pub fn next_xid(&self) -> FullXid {
        self.next_xid
    }

    /// Gives a session its top-level xid (`GetNewTransactionId`).
    pub fn begin(&mut self, session: usize) -> Xid {
        let xid = self.take_xid();
        self.slots.insert(session, Slot { xid, ..Slot::default() });
        xid
    }

    /// Gives a session an xid for a subtransaction; its top level must have one.
    pub fn begin_sub(&mut self, session: usize) -> Xid {
        let xid = self.take_xid();
        let slot = self.slots.entry(session).or_default();
        debug_assert!(slot.xid.is_valid(), "I1");
        if slot.subxids.len() < MAX_CACHED_SUBXIDS {
            slot.subxids.push(xid);
        } else {
            slot.overflowed = true;
        }
        xid
    }

    /// Subtransactions rolled back while their transaction goes on (`XidCacheRemoveRunningXids`).
    pub fn abort_sub(&mut self, session: usize, xids: &[Xid]) {
        if let Some(slot) = self.slots.get_mut(&session) {
            slot.subxids.retain(|xid| !xids.contains(xid));
        }
        xids.iter().for_each(|xid| self.completed(*xid));
    }

    /// The session's transaction ended (`ProcArrayEndTransaction`); `newest` is the newest of its xids.
    pub fn end(&mut self, session: usize, newest: Xid) {
        if self.slots.remove(&session).is_some() {
            self.completed(newest);
        }
    }

    /// The session's transaction is prepared (`MarkAsPrepared`, `ProcArrayClearTransaction`): its xid and the subtransactions
    /// that it committed stay running in the slot `dummy`, which lists at most 64 of them, too (`GXactLoadSubxactData`).
    pub fn prepare(&mut self, session: usize, dummy: usize, children: &[Xid]) {
        let Some(slot) = self.slots.remove(&session) else { return };
        let overflowed = children.len() > MAX_CACHED_SUBXIDS;
        let subxids = children.iter().take(MAX_CACHED_SUBXIDS).copied().collect();
        self.slots.insert(dummy, Slot { xid: slot.xid, subxids, overflowed });
    }

    /// Oldest running xid, the next one if nothing runs (`GetOldestActiveTransactionId`).
    #[must_use]
    pub fn oldest_running(&self) -> Xid {
        self.slots.values().fold(self.next_xid.xid(), |oldest, slot| if slot.xid.precedes(oldest) { slot.xid } else { oldest })
    }

    /// The top-level xid in a slot, invalid if it has none.
    #[must_use]
    pub fn xid_of(&self, slot: usize) -> Xid {
        self.slots.get(&slot).map_or(Xid::INVALID, |slot| slot.xid)
    }

    /// How many transactions run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.slots.len()
    }

    /// `GetRunningTransactionData`.
    #[must_use]
    pub fn running_xacts(&self) -> RunningXactsRecord {
        let subxid_overflow = self.slots.values().any(|slot| slot.overflowed);
        let subxids = if subxid_overflow { Vec::new() } else { self.slots.values().flat_map(|s| s.subxids.clone()).collect() };
        RunningXactsRecord {
            next_xid: self.next_xid.xid(),
            oldest_running_xid: self.oldest_running(),
            latest_completed_xid: self.latest_completed,
            subxid_overflow,
            xids: self.slots.values().map(|slot| slot.xid).collect(),
            subxids,
        }
    }

    /// After recovery every xid that was given has ended, but for prepared ones (`StartupXLOG`: `latestCompletedXid`).
    pub fn recovered(&mut self) {
        self.latest_completed = self.next_xid.xid().prev();
    }

    /// Takes the next xid.
    fn take_xid(&mut self) -> Xid {
        let xid = self.next_xid.xid();
        self.next_xid = self.next_xid.next();
        xid
    }

    /// I2.
    fn completed(&mut self, xid: Xid) {
        if self.latest_completed.precedes(xid) {
            self.latest_completed = xid;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_lists_tops_then_subs() {
        let mut procs = ProcArray::new(FullXid(700));
        assert_eq!(procs.begin(3), Xid(700));
        assert_eq!(procs.begin(1), Xid(701));
        assert_eq!(procs.begin_sub(3), Xid(702));
        let record = procs.running_xacts();
        assert_eq!((record.xids, record.subxids), (vec![Xid(701), Xid(700)], vec![Xid(702)]));
        assert_eq!((record.next_xid, record.oldest_running_xid, record.latest_completed_xid), (Xid(703), Xid(700), Xid(699)));
        procs.end(1, Xid(701));
        procs.abort_sub(3, &[Xid(702)]);
        let record = procs.running_xacts();
        assert_eq!((record.xids, record.subxids, record.latest_completed_xid), (vec![Xid(700)], vec![], Xid(702)));
        procs.end(3, Xid(700));
        assert_eq!(procs.running_xacts().oldest_running_xid, Xid(703));
        assert_eq!(procs.running_xacts().latest_completed_xid, Xid(702));
    }

    #[test]
    fn the_65th_subtransaction_overflows() {
        let mut procs = ProcArray::new(FullXid(700));
        procs.begin(0);
        for _ in 0..64 {
            procs.begin_sub(0);
        }
        assert!(!procs.running_xacts().subxid_overflow);
        assert_eq!(procs.running_xacts().subxids.len(), 64);
        procs.begin_sub(0);
        let record = procs.running_xacts();
        assert!(record.subxid_overflow && record.subxids.is_empty());
    }

    #[test]
    fn a_prepared_transaction_keeps_running_with_its_committed_subtransactions() {
        let mut procs = ProcArray::new(FullXid(700));
        procs.begin(0);
        let subs: Vec<Xid> = (0..70).map(|_| procs.begin_sub(0)).collect();
        procs.abort_sub(0, &subs[..10]);
        assert!(procs.running_xacts().subxid_overflow, "once overflowed, always");
        procs.prepare(0, 1 << 20, &subs[10..]);
        procs.begin(0);
        let record = procs.running_xacts();
        assert_eq!((record.xids, record.subxids.len()), (vec![Xid(771), Xid(700)], 60), "the prepared one comes last");
        assert!(!record.subxid_overflow, "60 of its subtransactions are left");
        procs.end(1 << 20, Xid(770));
        procs.end(0, Xid(771));
        assert_eq!(procs.running_xacts().oldest_running_xid, Xid(772));
    }

    #[test]
    fn xids_wrap() {
        let mut procs = ProcArray::new(FullXid(0xFFFF_FFFF));
        assert_eq!((procs.begin(0), procs.begin(1)), (Xid(u32::MAX), Xid(3)));
        assert_eq!(procs.oldest_running(), Xid(u32::MAX));
    }
}
