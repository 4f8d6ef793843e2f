//! Random histories of a primary, replayed from every place where a standby could start, against what really ran.

use std::collections::BTreeMap;

use pg_types::record::{
    AbortRecord, AssignmentRecord, CheckpointRecord, CommitRecord, PrepareRecord, RecordBody, RunningXactsRecord,
};
use pg_types::{FullXid, Lsn, WalRecord, Xid};
use proptest::prelude::*;

use super::*;
use crate::slru::{SUBTRANS_BUFFERS, SlruBuffers};
use crate::visibility::xid_in_mvcc_snapshot;

/// The first xid: a little below 2^32, so that histories cross it.
const START: FullXid = FullXid((7 << 32) - 25);
/// Subtransactions that a backend shows, and that gather before an assignment is logged: few, so that they overflow.
const CACHED: usize = 3;
/// Profiles replayed: an old and a new rule of the array, and the segments.
const PROFILES: &[&str] = &["pg13.6", "pg15.1+skip-offset", "pg16", "pg18", "indexed"];

/// What the primary does. Numbers choose among what there is.
#[derive(Clone, Debug)]
enum Op {
    /// A transaction takes an id; it may log something at once.
    Begin(bool),
    /// A transaction takes ids for so many subtransactions; the last may log something.
    Subs(usize, usize, bool),
    /// Its newest subtransaction rolls back.
    AbortSub(usize),
    /// It logs something.
    Write(usize),
    /// It ends: true commits.
    End(usize, bool),
    /// It is prepared.
    Prepare(usize),
    /// A list of running transactions is logged.
    Running,
    /// An online checkpoint, with a list between its redo position and its record.
    Checkpoint,
    /// A fast shutdown (true) or a crash, and the start after it.
    Restart(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let any_of = || 0usize..64;
    prop_oneof![
        6 => any::<bool>().prop_map(Op::Begin),
        4 => (any_of(), 1usize..6, any::<bool>()).prop_map(|(t, n, w)| Op::Subs(t, n, w)),
        2 => any_of().prop_map(Op::AbortSub),
        3 => any_of().prop_map(Op::Write),
        6 => (any_of(), any::<bool>()).prop_map(|(t, c)| Op::End(t, c)),
        1 => any_of().prop_map(Op::Prepare),
        3 => Just(Op::Running),
        1 => Just(Op::Checkpoint),
        1 => any::<bool>().prop_map(Op::Restart),
    ]
}

/// What became of a transaction or subtransaction.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Running,
    Committed,
    /// Rolled back, which its record says.
    Aborted,
    /// Gone without a record. Standbys may take it for running: it will never be seen.
    Vanished,
}

/// A running top-level transaction.
#[derive(Clone, Debug)]
struct Top {
    xid: FullXid,
    subs: Vec<FullXid>,
    unreported: Vec<FullXid>,
    prepared: bool,
    logged: bool,
}

/// The primary: a naive model, and the WAL that it writes.
struct Primary {
    next: FullXid,
    completed: Xid,
    tops: Vec<Top>,
    fates: BTreeMap<FullXid, Fate>,
    wal: Vec<WalRecord>,
    /// What each xid was after each record.
    truth: Vec<BTreeMap<FullXid, Fate>>,
}

fn low(ids: &[FullXid]) -> Vec<Xid> {
    ids.iter().map(|id| id.xid()).collect()
}

impl Primary {
    fn new() -> Self {
        let (completed, tops, wal) = (START.xid().prev(), Vec::new(), Vec::new());
        Self { next: START, completed, tops, fates: BTreeMap::new(), wal, truth: Vec::new() }
    }

    fn end(&self) -> Lsn {
        self.wal.last().map_or(Lsn(8), |record| record.end_lsn)
    }

    fn log(&mut self, xid: Xid, body: RecordBody) {
        let lsn = self.end();
        self.wal.push(WalRecord { lsn, end_lsn: Lsn(lsn.0 + 8), xid, top_xid: Xid::INVALID, origin: 0, body });
        self.truth.push(self.fates.clone());
    }

    fn new_xid(&mut self) -> FullXid {
        let xid = self.next;
        self.next = xid.next();
        self.fates.insert(xid, Fate::Running);
        xid
    }

    /// The index of the n-th running transaction that is not prepared.
    fn open(&self, n: usize) -> Option<usize> {
        let open: Vec<usize> = (0..self.tops.len()).filter(|&i| !self.tops[i].prepared).collect();
        (!open.is_empty()).then(|| open[n % open.len()])
    }

    fn run(&mut self, op: &Op) {
        match *op {
            Op::Begin(write) => {
                let xid = self.new_xid();
                self.tops.push(Top { xid, subs: vec![], unreported: vec![], prepared: false, logged: write });
                if write {
                    self.log(xid.xid(), RecordBody::XlogOther);
                }
            }
            Op::Subs(n, count, write) => self.subtransactions(n, count, write),
            Op::AbortSub(n) => self.abort_subtransaction(n),
            Op::Write(n) => {
                if let Some(i) = self.open(n) {
                    self.tops[i].logged = true;
                    self.log(self.tops[i].xid.xid(), RecordBody::XlogOther);
                }
            }
            Op::End(n, commit) if !self.tops.is_empty() => self.finish(n % self.tops.len(), commit),
            Op::End(..) => {}
            Op::Prepare(n) => {
                if let Some(i) = self.open(n) {
                    (self.tops[i].prepared, self.tops[i].logged) = (true, true);
                    let body = PrepareRecord { subxids: low(&self.tops[i].subs), ..PrepareRecord::default() };
                    self.log(self.tops[i].xid.xid(), RecordBody::Prepare(Box::new(body)));
                }
            }
            Op::Running => self.running_xacts(),
            Op::Checkpoint => {
                let (redo, next_xid) = (self.end(), self.next);
                self.running_xacts();
                let checkpoint = CheckpointRecord { redo, next_xid, ..CheckpointRecord::default() };
                self.log(Xid::INVALID, RecordBody::Checkpoint(Box::new(checkpoint)));
            }
            Op::Restart(fast) => self.restart(fast),
        }
    }

    fn subtransactions(&mut self, n: usize, count: usize, write: bool) {
        let Some(i) = self.open(n) else { return };
        for _ in 0..count {
            let sub = self.new_xid();
            self.tops[i].subs.push(sub);
            self.tops[i].unreported.push(sub);
            if self.tops[i].unreported.len() == CACHED {
                let (top_xid, subxids) = (self.tops[i].xid.xid(), low(&std::mem::take(&mut self.tops[i].unreported)));
                self.tops[i].logged = true;
                self.log(Xid::INVALID, RecordBody::Assignment(Box::new(AssignmentRecord { top_xid, subxids })));
            }
        }
        if let (true, Some(sub)) = (write, self.tops[i].subs.last()) {
            let xid = sub.xid();
            self.tops[i].logged = true;
            self.log(xid, RecordBody::XlogOther);
        }
    }

    fn abort_subtransaction(&mut self, n: usize) {
        let Some(i) = self.open(n) else { return };
        if let Some(sub) = self.tops[i].subs.pop() {
            self.tops[i].unreported.retain(|&xid| xid != sub);
            self.fates.insert(sub, Fate::Aborted);
            self.complete(sub.xid());
            self.log(sub.xid(), RecordBody::Abort(Box::default()));
        }
    }

    fn complete(&mut self, xid: Xid) {
        if self.completed.precedes(xid) {
            self.completed = xid;
        }
    }

    /// Commits or rolls back, prepared or not.
    fn finish(&mut self, i: usize, commit: bool) {
        let top = self.tops.remove(i);
        for &xid in top.subs.iter().chain([&top.xid]) {
            self.fates.insert(xid, if commit { Fate::Committed } else { Fate::Aborted });
            self.complete(xid.xid());
        }
        let prepared_xid = if top.prepared { top.xid.xid() } else { Xid::INVALID };
        let xid = if top.prepared { Xid::INVALID } else { top.xid.xid() };
        let subxids = low(&top.subs);
        self.log(
            xid,
            if commit {
                RecordBody::Commit(Box::new(CommitRecord { prepared_xid, subxids, ..CommitRecord::default() }))
            } else {
                RecordBody::Abort(Box::new(AbortRecord { prepared_xid, subxids, ..AbortRecord::default() }))
            },
        );
    }

    fn running_xacts(&mut self) {
        let subxid_overflow = self.tops.iter().any(|top| top.subs.len() > CACHED);
        let oldest = self.tops.iter().map(|top| top.xid).min().unwrap_or(self.next);
        let subs = self.tops.iter().flat_map(|top| low(&top.subs));
        let running = RunningXactsRecord {
            next_xid: self.next.xid(),
            oldest_running_xid: oldest.xid(),
            latest_completed_xid: self.completed,
            subxid_overflow,
            xids: self.tops.iter().map(|top| top.xid.xid()).collect(),
            subxids: if subxid_overflow { vec![] } else { subs.collect() },
        };
        self.log(Xid::INVALID, RecordBody::RunningXacts(Box::new(running)));
    }

    /// Everything open ends, with records if the shutdown is a fast one and there is something to undo. Prepared ones stay.
    fn restart(&mut self, fast: bool) {
        while let Some(i) = self.open(0) {
            if fast && self.tops[i].logged {
                self.finish(i, false);
            } else {
                let top = self.tops.remove(i);
                for xid in top.subs.into_iter().chain([top.xid]) {
                    self.fates.insert(xid, Fate::Vanished);
                }
            }
        }
        self.completed = self.next.xid().prev();
        let checkpoint =
            CheckpointRecord { shutdown: true, redo: self.end(), next_xid: self.next, ..CheckpointRecord::default() };
        self.log(Xid::INVALID, RecordBody::Checkpoint(Box::new(checkpoint)));
    }
}

/// Transactions prepared before record `at` and not ended there: the files in a base backup's `pg_twophase`.
fn prepared_before(primary: &Primary, at: usize) -> Vec<PreparedXact> {
    let mut prepared: Vec<PreparedXact> = Vec::new();
    for record in &primary.wal[..at] {
        match &record.body {
            RecordBody::Prepare(p) => prepared.push(PreparedXact { xid: record.xid, subxids: p.subxids.clone() }),
            RecordBody::Commit(c) => prepared.retain(|p| p.xid != c.prepared_xid),
            RecordBody::Abort(a) => prepared.retain(|p| p.xid != a.prepared_xid),
            _ => {}
        }
    }
    prepared.sort_by_key(|p| p.xid.numeric());
    prepared
}

/// A standby that starts at the checkpoint or list at `at`, and the record that it replays first.
fn start_at(primary: &Primary, at: usize, profile: &str) -> Option<(RecoveryWriter, usize)> {
    let record = &primary.wal[at];
    let settings = StandbySettings { max_prepared_transactions: 50, ..StandbySettings::default() };
    let mut writer = RecoveryWriter::new(&settings, profile.parse().unwrap()).unwrap();
    let checkpoint = match &record.body {
        RecordBody::Checkpoint(checkpoint) => (**checkpoint).clone(),
        RecordBody::RunningXacts(r) => {
            let next_xid = FullXid(u64::from(r.next_xid.numeric()));
            CheckpointRecord { redo: record.lsn, next_xid, ..CheckpointRecord::default() }
        }
        _ => return None,
    };
    let first = primary.wal.iter().position(|r| r.lsn == checkpoint.redo)?;
    let prepared = prepared_before(primary, first);
    let point = RestartPoint { checkpoint_lsn: record.lsn, redo: checkpoint.redo, checkpoint, prepared };
    writer.start_at_restart_point(&point).ok()?;
    Some((writer, first))
}

/// Every id must be to the snapshot what it is; but for what `lacks_subxids` of a standby that has the bug of June 2024.
fn check_visibility(writer: &RecoveryWriter, truth: &BTreeMap<FullXid, Fate>, lacks_subxids: bool, what: &str) {
    let Ok(taken) = writer.reader().snapshot() else { return };
    let (state, mut buffers) = (writer.state(), SlruBuffers::new(SUBTRANS_BUFFERS, false));
    for (&id, &fate) in truth {
        let runs = xid_in_mvcc_snapshot(id.xid(), &taken.snapshot, &state.subtrans, &mut |page| _ = buffers.read(page));
        let right = match fate {
            Fate::Running => runs || lacks_subxids,
            Fate::Committed => !runs,
            Fate::Aborted | Fate::Vanished => true,
        };
        assert!(right, "{what}: {id:?} is {fate:?}, but {runs} in {taken:?}, {state:?}");
    }
    assert!(taken.snapshot.suboverflowed || buffers.counts().lookups() == 0, "{what}");
}

/// Replays from `at` on; gives the writer at the end, if it became ready.
fn replay(primary: &Primary, at: usize, profile: &str) -> Option<RecoveryWriter> {
    let (mut writer, first) = start_at(primary, at, profile)?;
    // Older minors that become ready at a shutdown checkpoint do not know that subtransactions of prepared ones are missing.
    let has_bug = !writer.profile().shutdown_start_overflows;
    let mut lacks_subxids = has_bug && writer.state().standby_state == StandbyState::SnapshotReady;
    for (record, truth) in primary.wal.iter().zip(&primary.truth).skip(first) {
        let before = writer.state().standby_state;
        writer.apply(record).unwrap_or_else(|e| panic!("{profile} from {at}: {e}"));
        let shutdown = matches!(&record.body, RecordBody::Checkpoint(c) if c.shutdown);
        lacks_subxids |= has_bug && shutdown && before < StandbyState::SnapshotReady;
        check_visibility(&writer, truth, lacks_subxids, &format!("{profile} from {at} at {}", record.end_lsn));
    }
    (writer.state().standby_state == StandbyState::SnapshotReady).then_some(writer)
}

/// A history that begins with a list, at which the first standby begins.
fn history(ops: &[Op]) -> Primary {
    let mut primary = Primary::new();
    primary.run(&Op::Running);
    ops.iter().for_each(|op| primary.run(op));
    primary
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn a_standby_started_anywhere_sees_what_runs(ops in prop::collection::vec(op(), 1..70), profile in prop::sample::select(PROFILES)) {
        let mut primary = history(&ops);
        // A last list without overflow: whoever has started is ready at it.
        while !primary.tops.is_empty() {
            primary.run(&Op::End(0, true));
        }
        primary.run(&Op::Running);
        let all = replay(&primary, 0, profile).expect("a list that lacks nothing makes ready");
        let writer_completes = all.profile().prune_completes;
        for at in 1..primary.wal.len() {
            if let Some(late) = replay(&primary, at, profile) {
                let (all, late) = (all.state(), late.state());
                prop_assert_eq!(all.known_assigned.live_xids(), late.known_assigned.live_xids(), "from {}", at);
                let of = |s: &ReplayedState| (s.next_xid.xid(), s.last_overflowed_xid, s.replay_lsn);
                prop_assert_eq!(of(&all), of(&late), "from {}", at);
                // Before, a list told it only to who loaded it: what vanished may count as running for the others.
                if writer_completes {
                    prop_assert_eq!(all.latest_completed_xid, late.latest_completed_xid, "from {}", at);
                }
            }
        }
    }

    #[test]
    fn a_restart_at_any_restart_point_comes_to_the_same_state(
        ops in prop::collection::vec(op(), 1..70), profile in prop::sample::select(PROFILES),
    ) {
        let mut primary = history(&ops);
        while !primary.tops.is_empty() {
            primary.run(&Op::End(0, true));
        }
        primary.run(&Op::Running);
        let (mut writer, _) = start_at(&primary, 0, profile).unwrap();
        let mut points: Vec<RestartPoint> = Vec::new();
        for record in &primary.wal {
            writer.apply(record).unwrap();
            let newest = writer.restart_point().filter(|point| points.last().is_none_or(|last| last.redo < point.redo));
            points.extend(newest.cloned());
        }
        for point in points {
            let first = primary.wal.iter().position(|record| record.lsn >= point.redo).unwrap();
            prop_assert_eq!(&point.prepared, &prepared_before(&primary, first), "at {}", point.redo);
            let (mut again, _) = start_at(&primary, 0, profile).unwrap();
            again.start_at_restart_point(&point).unwrap();
            let lacks_subxids = !again.profile().shutdown_start_overflows;
            for (record, truth) in primary.wal.iter().zip(&primary.truth).skip(first) {
                again.apply(record).unwrap();
                check_visibility(&again, truth, lacks_subxids, &format!("{profile} again from {} at {}", point.redo, record.end_lsn));
            }
            let of = |writer: &RecoveryWriter| {
                let state = writer.state();
                (state.standby_state, state.known_assigned.live_xids(), state.next_xid.xid(), state.replay_lsn)
            };
            prop_assert_eq!(of(&writer), of(&again), "from {}", point.redo);
        }
    }

    #[test]
    fn damaged_histories_are_errors_or_replay_and_never_panic(
        ops in prop::collection::vec(op(), 1..50),
        damage in prop::collection::vec((0usize..100, 0u32..9, any::<u32>()), 1..4),
        profile in prop::sample::select(PROFILES),
    ) {
        let mut primary = history(&ops);
        let records = primary.wal.len();
        for (at, field, value) in damage {
            let near = START.xid().numeric().wrapping_add(value % 64).wrapping_sub(16);
            let value = if value % 3 == 0 { value } else { near };
            damage_record(&mut primary.wal[at % records], field, Xid(value));
        }
        let Some((mut writer, _)) = start_at(&primary, 0, profile) else { return Ok(()) };
        for record in &primary.wal {
            let before = writer.state().replay_lsn;
            if writer.apply(record).is_err() {
                prop_assert_eq!(writer.state().replay_lsn, before, "readers keep the state before");
                break;
            }
            let _ = writer.reader().snapshot();
        }
    }
}

/// Puts an id where it does not belong.
fn damage_record(record: &mut WalRecord, field: u32, value: Xid) {
    match (&mut record.body, field % 5) {
        (RecordBody::RunningXacts(r), 0) => r.next_xid = value,
        (RecordBody::RunningXacts(r), 1) => r.oldest_running_xid = value,
        (RecordBody::RunningXacts(r), 2) => r.latest_completed_xid = value,
        (RecordBody::RunningXacts(r), 3) => r.xids.push(value),
        (RecordBody::RunningXacts(r), _) => r.subxids.push(value),
        (RecordBody::Assignment(a), 0) => a.top_xid = value,
        (RecordBody::Assignment(a), _) => a.subxids.push(value),
        (RecordBody::Commit(c), 0) => c.prepared_xid = value,
        (RecordBody::Commit(c), 1) => c.subxids.push(value),
        (RecordBody::Checkpoint(c), 0) => c.next_xid = FullXid(u64::from(value.numeric())),
        _ => record.xid = value,
    }
}
