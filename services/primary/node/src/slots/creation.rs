//! What a logical slot waits for while it is made: the states of `SnapBuildFindSnapshot` (`replication/logical/snapbuild.c`), and
//! who holds them up.
//!
//! A decoder that starts somewhere in WAL has not seen the transactions that run there from their begin. It can decode every
//! commit only from the point on where all of those have ended, and RUNNING_XACTS records tell when. A slot whose creation does
//! not say which transaction it waits for leaves people guessing for hours, so this names them, oldest first.
//!
//! ```text
//!            nothing runs
//!      ┌──────────────────────────────────────────────────────────────────────┐
//!   START ──first record──► BUILDING ──all that ran then ended──► FULL ──the same again──► CONSISTENT
//! ```
//!
//! Invariants:
//! * I1 The state never goes back, and a decoder that starts at `restart_lsn` is consistent after the same record.
//! * I2 A transaction that is said to be waited for was in the last list, precedes the boundary, and was not seen to end. The state
//!   itself goes by the boundary alone: a list may name transactions whose end is already in WAL.
//! * I3 At most [`REMEMBERED_MAX`] transactions are remembered; of more, only the begin is unknown.
//!
//! Cost: a record with a new xid one insertion, an end a few removals, a RUNNING_XACTS record O(n log n) in its length.
//!
//! Differences from PostgreSQL: no serialised snapshots, as WAL comes without them; PostgreSQL waits for the listed transactions
//! with locks, this by reading on.

use std::collections::{HashMap, HashSet};

use pg_types::record::RunningXactsRecord;
use pg_types::{Lsn, RecordBody, Timestamp, WalRecord, Xid};
use pg_wal::{DecodeError, RawRecord, RecordClass, WalProfile};

/// Most transactions of which begin or end is remembered.
const REMEMBERED_MAX: usize = 65_536;
/// Most transactions that a report names.
const REPORTED_MAX: usize = 1000;

/// How far a creation is (`SnapBuildState`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum BuildState {
    /// No RUNNING_XACTS record was seen.
    #[default]
    Start,
    /// Waits for the transactions that ran at the first one to end.
    Building,
    /// Waits for those that began before this state to end.
    FullSnapshot,
    /// Every commit from here on can be decoded.
    Consistent,
}

impl BuildState {
    /// For messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "START",
            Self::Building => "BUILDING",
            Self::FullSnapshot => "FULL",
            Self::Consistent => "CONSISTENT",
        }
    }
}

/// A transaction that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningTransaction {
    /// Top-level xid.
    pub xid: Xid,
    /// First record of it that was read, or the first list that named it.
    pub since_lsn: Lsn,
    /// Time of the last commit or abort before that, if there was one.
    pub since: Option<Timestamp>,
    /// It began before what was read.
    pub began_earlier: bool,
}

/// How far a creation is, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreationReport {
    /// State.
    pub state: BuildState,
    /// Start of the RUNNING_XACTS record that led to it; invalid in START.
    pub state_lsn: Lsn,
    /// The state advances when no older transaction runs; invalid in START and CONSISTENT.
    pub waits_for: Xid,
    /// The transactions that hold it up, oldest first, at most [`REPORTED_MAX`]. None: the next RUNNING_XACTS record decides.
    pub running: Vec<RunningTransaction>,
    /// How many there are in all.
    pub running_count: usize,
    /// Everything before was read.
    pub read_to: Lsn,
    /// WAL that a decoder will need.
    pub restart_lsn: Lsn,
    /// Once consistent: commits that end after this are decoded.
    pub consistent_lsn: Option<Lsn>,
    /// Why it cannot go on; empty if it can.
    pub failure: String,
}

/// When a transaction was first met.
#[derive(Clone, Copy, Debug)]
struct Met {
    /// Position.
    lsn: Lsn,
    /// Time of WAL there.
    time: Option<Timestamp>,
    /// Met in a list, not by its first record.
    listed: bool,
}

/// The creation of one slot.
#[derive(Debug)]
pub struct SlotCreation {
    /// State.
    state: BuildState,
    /// Record that led to it.
    state_lsn: Lsn,
    /// Boundary (`next_phase_at`).
    boundary: Xid,
    /// Where a decoder has to start.
    restart_lsn: Lsn,
    /// End of the record that made it consistent.
    consistent_lsn: Option<Lsn>,
    /// Everything before was looked at.
    read_to: Lsn,
    /// Running transactions, by xid (I3).
    met: HashMap<Xid, Met>,
    /// Transactions of the last list that the state waits for, less those that ended since.
    waited: HashSet<Xid>,
    /// Transactions that were seen to end and may still be listed (I3).
    ended: HashSet<Xid>,
    /// Time of the last commit or abort.
    time: Option<Timestamp>,
}

impl SlotCreation {
    /// Reads WAL from `start` on.
    #[must_use]
    pub fn new(start: Lsn) -> Self {
        Self {
            state: BuildState::Start,
            state_lsn: Lsn::INVALID,
            boundary: Xid::INVALID,
            restart_lsn: start,
            consistent_lsn: None,
            read_to: start,
            met: HashMap::new(),
            waited: HashSet::new(),
            ended: HashSet::new(),
            time: None,
        }
    }

    /// How far it is.
    #[must_use]
    pub fn state(&self) -> BuildState {
        self.state
    }

    /// Looks at the next record; only those that matter are decoded.
    ///
    /// # Errors
    /// A record that matters contradicts its layout.
    pub fn observe(&mut self, record: &RawRecord<'_>, profile: &'static WalProfile) -> Result<(), DecodeError> {
        let xid = record.header.xid;
        if xid.is_normal() && self.met.len() < REMEMBERED_MAX && !self.ended.contains(&xid) {
            self.met.entry(xid).or_insert(Met { lsn: record.lsn, time: self.time, listed: false });
        }
        if matches!(record.class(), RecordClass::Commit | RecordClass::Abort | RecordClass::RunningXacts) {
            self.apply(&record.decode(profile)?);
        }
        self.read_to = record.end_lsn;
        Ok(())
    }

    /// Nothing before `lsn` is left to read.
    pub fn skip_to(&mut self, lsn: Lsn) {
        self.read_to = self.read_to.max(lsn);
    }

    /// Takes a decoded end of a transaction or list.
    fn apply(&mut self, record: &WalRecord) {
        match &record.body {
            RecordBody::Commit(r) => self.end(record.xid, r.prepared_xid, &r.subxids, r.time),
            RecordBody::Abort(r) => self.end(record.xid, r.prepared_xid, &r.subxids, r.time),
            RecordBody::RunningXacts(running) => self.running_xacts(record.lsn, record.end_lsn, running),
            _ => {}
        }
    }

    /// Transactions end.
    fn end(&mut self, xid: Xid, prepared_xid: Xid, subxids: &[Xid], time: Timestamp) {
        self.time = Some(time);
        let ended = if prepared_xid.is_valid() { prepared_xid } else { xid };
        for xid in subxids.iter().copied().chain([ended]) {
            self.met.remove(&xid);
            self.waited.remove(&xid);
            if xid.is_normal() && self.ended.len() < REMEMBERED_MAX {
                self.ended.insert(xid);
            }
        }
    }

    /// `SnapBuildFindSnapshot`.
    pub(super) fn running_xacts(&mut self, lsn: Lsn, end_lsn: Lsn, running: &RunningXactsRecord) {
        if self.state == BuildState::Consistent {
            return;
        }
        let oldest = running.oldest_running_xid;
        let passed = self.boundary.is_valid() && self.boundary.precedes_or_equals(oldest);
        let next = match self.state {
            _ if oldest == running.next_xid => {
                // A decoder that starts at this record needs nothing before it.
                self.restart_lsn = lsn;
                BuildState::Consistent
            }
            BuildState::Start => {
                self.restart_lsn = lsn;
                BuildState::Building
            }
            BuildState::Building if passed => BuildState::FullSnapshot,
            BuildState::FullSnapshot if passed => BuildState::Consistent,
            same => same,
        };
        if next != self.state {
            (self.state, self.state_lsn, self.boundary) = (next, lsn, running.next_xid);
        }
        if next == BuildState::Consistent {
            (self.boundary, self.consistent_lsn) = (Xid::INVALID, Some(end_lsn));
        }
        self.take_list(lsn, running);
    }

    /// Notes who of a list is waited for (I2).
    fn take_list(&mut self, lsn: Lsn, running: &RunningXactsRecord) {
        let oldest = running.oldest_running_xid;
        self.ended.retain(|xid| !xid.precedes(oldest));
        self.met.retain(|xid, _| !xid.precedes(oldest));
        let boundary = self.boundary;
        let holds = |xid: &Xid| boundary.is_valid() && xid.precedes(boundary);
        self.waited = running.xids.iter().copied().filter(|xid| holds(xid) && !self.ended.contains(xid)).collect();
        for xid in &self.waited {
            if self.met.len() < REMEMBERED_MAX {
                self.met.entry(*xid).or_insert(Met { lsn, time: self.time, listed: true });
            }
        }
    }

    /// How far it is, for people.
    #[must_use]
    pub fn report(&self) -> CreationReport {
        let mut xids: Vec<Xid> = self.waited.iter().copied().collect();
        let boundary = self.boundary;
        // Their distance from the boundary, which all of them precede, orders them across the wraparound.
        xids.sort_unstable_by_key(|xid| std::cmp::Reverse(boundary.0.wrapping_sub(xid.0)));
        let transaction = |xid: Xid| {
            let met = self.met.get(&xid);
            RunningTransaction {
                xid,
                since_lsn: met.map_or(self.state_lsn, |met| met.lsn),
                since: met.and_then(|met| met.time),
                began_earlier: met.is_none_or(|met| met.listed),
            }
        };
        CreationReport {
            state: self.state,
            state_lsn: self.state_lsn,
            waits_for: self.boundary,
            running_count: xids.len(),
            running: xids.into_iter().take(REPORTED_MAX).map(transaction).collect(),
            read_to: self.read_to,
            restart_lsn: self.restart_lsn,
            consistent_lsn: self.consistent_lsn,
            failure: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use pg_types::record::CommitRecord;
    use proptest::prelude::*;

    use super::*;

    /// A record of `xid` at `lsn`.
    fn record(lsn: u64, xid: u32, body: RecordBody) -> WalRecord {
        WalRecord { lsn: Lsn(lsn), end_lsn: Lsn(lsn + 8), xid: Xid(xid), top_xid: Xid::INVALID, origin: 0, body }
    }

    fn running(lsn: u64, oldest: u32, next: u32, xids: &[u32]) -> WalRecord {
        let list = RunningXactsRecord {
            next_xid: Xid(next),
            oldest_running_xid: Xid(oldest),
            xids: xids.iter().copied().map(Xid).collect(),
            ..RunningXactsRecord::default()
        };
        record(lsn, 0, RecordBody::RunningXacts(Box::new(list)))
    }

    fn commit(lsn: u64, xid: u32) -> WalRecord {
        record(lsn, xid, RecordBody::Commit(Box::new(CommitRecord { time: Timestamp(lsn as i64), ..CommitRecord::default() })))
    }

    fn waited(creation: &SlotCreation) -> Vec<u32> {
        creation.report().running.iter().map(|r| r.xid.0).collect()
    }

    #[test]
    fn nothing_runs() {
        let mut c = SlotCreation::new(Lsn(8));
        c.apply(&running(100, 700, 700, &[]));
        let report = c.report();
        assert_eq!(
            (report.state, report.restart_lsn, report.consistent_lsn),
            (BuildState::Consistent, Lsn(100), Some(Lsn(108)))
        );
    }

    #[test]
    fn one_state_a_generation_of_transactions_and_each_names_who_holds_it_up() {
        let mut c = SlotCreation::new(Lsn(8));
        c.apply(&commit(50, 600));
        c.apply(&running(100, 690, 700, &[695, 690, 698]));
        assert_eq!((c.state(), waited(&c)), (BuildState::Building, vec![690, 695, 698]));
        let oldest = c.report().running[0];
        assert_eq!((oldest.since_lsn, oldest.since, oldest.began_earlier), (Lsn(100), Some(Timestamp(50)), true));
        c.apply(&commit(110, 690));
        c.apply(&record(120, 698, RecordBody::Abort(Box::default())));
        assert_eq!(waited(&c), [695], "ends are seen at once");
        c.apply(&running(130, 690, 705, &[690, 695, 702]));
        assert_eq!(
            (c.state(), waited(&c)),
            (BuildState::Building, vec![695]),
            "690 has ended, 702 is none of this generation (I2)"
        );
        c.apply(&commit(140, 695));
        assert_eq!((c.state(), waited(&c).len()), (BuildState::Building, 0), "the next list decides");
        c.apply(&running(150, 702, 710, &[702, 706]));
        assert_eq!((c.state(), c.report().waits_for, waited(&c)), (BuildState::FullSnapshot, Xid(710), vec![702, 706]));
        c.apply(&running(160, 711, 720, &[711]));
        let report = c.report();
        assert_eq!((report.state, report.running_count), (BuildState::Consistent, 0));
        assert_eq!((report.restart_lsn, report.consistent_lsn), (Lsn(100), Some(Lsn(168))));
    }

    #[test]
    fn prepared_transactions_end_with_the_second_phase_and_order_survives_the_wraparound() {
        let mut c = SlotCreation::new(Lsn(8));
        c.apply(&running(100, u32::MAX - 1, 9, &[5, u32::MAX - 1, 4]));
        assert_eq!(waited(&c), [u32::MAX - 1, 4, 5]);
        let commit = CommitRecord { prepared_xid: Xid(u32::MAX - 1), subxids: vec![Xid(4)], ..CommitRecord::default() };
        c.apply(&record(110, 0, RecordBody::Commit(Box::new(commit))));
        assert_eq!(waited(&c), [5]);
    }

    #[test]
    fn a_list_longer_than_what_is_remembered_is_counted_in_whole() {
        let mut c = SlotCreation::new(Lsn(8));
        let xids: Vec<u32> = (1000..101_000).collect();
        c.apply(&running(100, 1000, 200_000, &xids));
        let report = c.report();
        assert_eq!((report.running_count, report.running.len(), report.running[0].xid), (100_000, REPORTED_MAX, Xid(1000)));
        for xid in xids {
            c.apply(&commit(200, xid));
        }
        assert_eq!((c.waited.len(), c.ended.len()), (0, REMEMBERED_MAX), "I3");
    }

    proptest! {
        /// I1 for any sequence of lists: never back, and the same end from the restart position.
        #[test]
        fn i1_a_restart_ends_at_the_same_record(steps in proptest::collection::vec((0u32..9, 0u32..30), 1..40)) {
            let mut records = Vec::new();
            let (mut oldest, mut next) = (700, 710);
            for (i, (ahead, span)) in steps.into_iter().enumerate() {
                oldest += ahead;
                next = next.max(oldest + span);
                records.push(running(100 + 8 * i as u64, oldest.min(next), next, &[]));
            }
            let mut c = SlotCreation::new(Lsn(8));
            for record in &records {
                let before = c.state();
                c.apply(record);
                prop_assert!(c.state() >= before);
            }
            let report = c.report();
            let mut again = SlotCreation::new(report.restart_lsn);
            records.iter().filter(|r| r.lsn >= report.restart_lsn).for_each(|r| again.apply(r));
            prop_assert_eq!(again.report().consistent_lsn, report.consistent_lsn);
        }
    }
}
