//! The state machine, record by record. Golden tests against real servers are in `tests/`.

use pg_types::record::{
    AbortRecord, AssignmentRecord, CheckpointRecord, CommitRecord, ParameterChangeRecord, PrepareRecord, RecordBody,
    RunningXactsRecord,
};
use pg_types::{FullXid, Lsn, Oid, WalRecord, Xid};

use super::*;
use crate::CompressReason;
use crate::held::READER_LOCKS_MAX;
use crate::slru::{SUBTRANS_BUFFERS, SlruBuffers};
use crate::visibility::xid_in_mvcc_snapshot;

/// A standby and the end of its WAL.
struct Standby {
    writer: RecoveryWriter,
    end: Lsn,
}

fn xids(ids: &[u32]) -> Vec<Xid> {
    ids.iter().copied().map(Xid).collect()
}

impl Standby {
    /// Started at an online checkpoint with this next xid.
    fn online(profile: &str, next_xid: u64) -> Self {
        let settings = StandbySettings { max_prepared_transactions: 10, ..StandbySettings::default() };
        let mut writer = RecoveryWriter::new(&settings, profile.parse().unwrap()).unwrap();
        let checkpoint = CheckpointRecord { next_xid: FullXid(next_xid), redo: Lsn(1000), ..CheckpointRecord::default() };
        writer.start_at_checkpoint(&checkpoint, Lsn(1000)).unwrap();
        Self { writer, end: Lsn(1000) }
    }

    fn try_apply(&mut self, xid: u32, body: RecordBody) -> Result<(), RecoveryError> {
        let lsn = self.end;
        self.end = Lsn(lsn.0 + 40);
        let record = WalRecord { lsn, end_lsn: self.end, xid: Xid(xid), top_xid: Xid::INVALID, origin: 0, body };
        self.writer.apply(&record)
    }

    fn apply(&mut self, xid: u32, body: RecordBody) -> &mut Self {
        self.try_apply(xid, body).unwrap();
        self
    }

    fn write(&mut self, xid: u32) -> &mut Self {
        self.apply(xid, RecordBody::XlogOther)
    }

    fn commit(&mut self, xid: u32, subxids: &[u32]) -> &mut Self {
        self.apply(xid, RecordBody::Commit(Box::new(CommitRecord { subxids: xids(subxids), ..CommitRecord::default() })))
    }

    fn running(&mut self, next: u32, oldest: u32, completed: u32, tops: &[u32], subs: &[u32], overflow: bool) -> &mut Self {
        let running = RunningXactsRecord {
            next_xid: Xid(next),
            oldest_running_xid: Xid(oldest),
            latest_completed_xid: Xid(completed),
            subxid_overflow: overflow,
            xids: xids(tops),
            subxids: xids(subs),
        };
        self.apply(0, RecordBody::RunningXacts(Box::new(running)))
    }

    fn assign(&mut self, top: u32, subs: &[u32]) -> &mut Self {
        let assignment = AssignmentRecord { top_xid: Xid(top), subxids: xids(subs) };
        self.apply(0, RecordBody::Assignment(Box::new(assignment)))
    }

    fn checkpoint(&mut self, shutdown: bool, next_xid: u64, redo: Lsn) -> &mut Self {
        let next_xid = FullXid(next_xid);
        let checkpoint = CheckpointRecord { shutdown, next_xid, redo, ..CheckpointRecord::default() };
        self.apply(0, RecordBody::Checkpoint(Box::new(checkpoint)))
    }

    fn live(&self) -> Vec<u32> {
        self.writer.state().known_assigned.live_xids().iter().map(|x| x.0).collect()
    }

    fn standby_state(&self) -> StandbyState {
        self.writer.state().standby_state
    }

    /// xmin, xmax, xip, suboverflowed of a new reader's snapshot.
    fn snapshot(&self) -> (u32, u32, Vec<u32>, bool) {
        let s = self.writer.reader().snapshot().unwrap().snapshot;
        assert_eq!(s.replay_lsn, self.end);
        (s.xmin.0, s.xmax.0, s.xip.iter().map(|x| x.0).collect(), s.suboverflowed)
    }
}

#[test]
fn an_id_in_a_record_makes_all_below_it_run() {
    let mut s = Standby::online("pg16", 100);
    assert_eq!(s.standby_state(), StandbyState::Initialized);
    s.running(100, 100, 99, &[], &[], false).write(103);
    assert_eq!((s.live(), s.snapshot()), (vec![100, 101, 102, 103], (100, 100, vec![], false)));
    s.commit(102, &[]);
    assert_eq!(s.snapshot(), (100, 103, vec![100, 101], false));
    // A subtransaction that only the commit record names.
    s.commit(100, &[104]);
    assert_eq!((s.live(), s.snapshot()), (vec![101, 103], (101, 105, vec![101, 103], false)));
    assert_eq!(s.writer.state().next_xid, FullXid(105));
}

#[test]
fn ids_that_ended_before_the_list_was_logged_are_left_out_of_it() {
    let mut s = Standby::online("pg16", 100);
    s.write(102).commit(101, &[]);
    let abort = AbortRecord { subxids: xids(&[98]), ..AbortRecord::default() };
    s.apply(97, RecordBody::Abort(Box::new(abort)));
    assert!(matches!(s.writer.reader().snapshot(), Err(RecoveryError::NotReady { state: StandbyState::Initialized, .. })));
    // Unsorted, 102 listed twice because it is being prepared; 97, 98 and 101 are done.
    s.running(104, 96, 101, &[102, 101, 97, 102, 96], &[103, 98], false);
    assert_eq!(s.live(), [96, 102, 103]);
    assert_eq!(s.snapshot(), (96, 102, vec![96], false));
}

#[test]
fn an_overflowed_list_is_pending_until_what_it_lacks_has_passed() {
    let mut s = Standby::online("pg16", 200);
    s.running(200, 150, 198, &[150, 190], &[], true);
    let state = s.writer.state();
    assert_eq!(
        (state.standby_state, state.pending_xmin, state.last_overflowed_xid),
        (StandbyState::SnapshotPending, Xid(199), Xid(199))
    );
    assert!(s.writer.reader().snapshot().is_err(), "never a snapshot before READY");
    s.write(201).running(202, 190, 198, &[190, 200, 201], &[], true);
    assert_eq!(s.standby_state(), StandbyState::SnapshotPending, "199 is not older than 190");
    s.commit(190, &[]).running(202, 200, 198, &[200, 201], &[], true);
    assert_eq!(s.standby_state(), StandbyState::SnapshotReady);
    // 199 precedes the oldest running id, so nothing is overflowed any more.
    assert_eq!(s.snapshot(), (200, 200, vec![], false));
}

#[test]
fn a_complete_list_ends_the_pending_state_and_replaces_the_array() {
    for (tops, subs, overflow) in [(&[150][..], &[160, 161][..], false), (&[][..], &[][..], true)] {
        let mut s = Standby::online("pg16", 200);
        s.running(200, 150, 198, &[150, 190], &[], true).write(203).commit(190, &[]);
        let oldest = tops.first().copied().unwrap_or(204);
        s.running(204, oldest, 203, tops, subs, overflow);
        assert_eq!(s.live(), [tops, subs].concat());
        let want = if overflow { StandbyState::SnapshotPending } else { StandbyState::SnapshotReady };
        assert_eq!(s.standby_state(), want);
    }
}

#[test]
fn assigned_subtransactions_leave_the_array_and_overflow_snapshots_until_pruned() {
    let mut s = Standby::online("pg16", 100);
    s.running(100, 100, 99, &[], &[], false).write(100).assign(100, &[101, 102, 103]).write(104);
    assert_eq!(s.live(), [100, 104]);
    s.commit(104, &[]);
    assert_eq!(s.snapshot(), (100, 105, vec![100], true));
    let reasons: Vec<_> = s.writer.compress_calls().iter().map(|c| c.reason).collect();
    assert_eq!(reasons, [CompressReason::TransactionEnd]);
    // Ending 100 leaves 103 below xmin: not overflowed for new snapshots, but remembered until a list passes it.
    s.commit(100, &[101, 102, 103]);
    assert_eq!((s.snapshot(), s.writer.state().last_overflowed_xid), ((105, 105, vec![], false), Xid(103)));
    s.running(105, 103, 104, &[], &[], false);
    assert_eq!(s.writer.state().last_overflowed_xid, Xid(103), "103 does not precede 103");
    s.running(105, 104, 104, &[], &[], false);
    assert_eq!(s.writer.state().last_overflowed_xid, Xid::INVALID);
}

#[test]
fn assignments_before_the_first_list_only_move_the_observed_id() {
    let mut s = Standby::online("pg16", 100);
    s.assign(100, &[101, 102]);
    let state = s.writer.state();
    assert_eq!((state.latest_observed_xid, state.last_overflowed_xid, s.live().len()), (Xid(102), Xid::INVALID, 0));
}

#[test]
fn a_shutdown_checkpoint_is_as_good_as_a_list() {
    for (profile, overflowed) in [("pg15.1", Xid::INVALID), ("pg16", Xid(99))] {
        let mut writer = RecoveryWriter::new(&StandbySettings::default(), profile.parse().unwrap()).unwrap();
        let checkpoint = CheckpointRecord { shutdown: true, next_xid: FullXid(100), ..CheckpointRecord::default() };
        writer.start_at_checkpoint(&checkpoint, Lsn(1000)).unwrap();
        let state = writer.state();
        assert_eq!((state.standby_state, state.last_overflowed_xid), (StandbyState::SnapshotReady, overflowed), "{profile}");
        let taken = writer.reader().snapshot().unwrap();
        assert_eq!((taken.snapshot.xmin, taken.snapshot.xmax, taken.snapshot.suboverflowed), (Xid(100), Xid(100), false));
    }
}

#[test]
fn prepared_transactions_outlive_prunes_and_shutdowns_of_the_primary() {
    let mut s = Standby::online("pg18", 100);
    s.running(100, 100, 99, &[], &[], false).write(101);
    s.apply(101, RecordBody::Prepare(Box::default())).write(105);
    // What is younger than the oldest prepared one stays until a list passes it, as on a real standby.
    s.checkpoint(true, 106, Lsn(1000));
    assert_eq!((s.live(), s.snapshot()), (vec![101, 102, 103, 104, 105], (101, 101, vec![], false)));
    s.running(106, 106, 105, &[], &[], false);
    assert_eq!(s.live(), [101], "a prune spares it");
    let commit = CommitRecord { prepared_xid: Xid(101), ..CommitRecord::default() };
    s.apply(0, RecordBody::Commit(Box::new(commit)));
    assert_eq!((s.live(), s.snapshot()), (vec![], (106, 106, vec![], false)));
}

#[test]
fn next_xid_crosses_the_32_bit_boundary_into_a_new_epoch() {
    let start = (3u64 << 32) + u64::from(u32::MAX) - 1;
    let mut s = Standby::online("indexed", start);
    let low = u32::MAX - 1;
    s.running(low, low - 1, low - 2, &[low - 1], &[], false).write(5);
    assert_eq!(s.live(), [low - 1, low, u32::MAX, 3, 4, 5], "0, 1 and 2 are no transactions");
    assert_eq!(s.writer.state().next_xid, FullXid((4 << 32) + 6));
    s.commit(4, &[u32::MAX]);
    assert_eq!(s.snapshot(), (low - 1, 5, vec![low - 1, low, 3], false));
    s.assign(3, &[5]).commit(6, &[]);
    assert_eq!(s.snapshot(), (low - 1, 7, vec![low - 1, low, 3], true));
    s.commit(low - 1, &[low]).running(7, 3, 6, &[3], &[5], false);
    assert_eq!(s.snapshot(), (3, 7, vec![3], true));
    s.commit(3, &[5]).running(7, 7, 6, &[], &[], false);
    assert_eq!((s.snapshot(), s.writer.state().last_overflowed_xid), ((7, 7, vec![], false), Xid::INVALID));
    s.checkpoint(false, (4 << 32) + 9, Lsn(1000));
    assert_eq!(s.writer.state().next_xid, FullXid((4 << 32) + 9));
}

#[test]
fn a_list_that_starts_across_the_boundary_is_sorted_in_circular_order() {
    let mut s = Standby::online("pg16", (1 << 32) + 5);
    s.commit(u32::MAX - 5, &[]).running(6, u32::MAX - 9, 4, &[4, u32::MAX - 5, 3], &[u32::MAX, u32::MAX - 9], false);
    assert_eq!(s.live(), [u32::MAX - 9, u32::MAX, 3, 4]);
}

#[test]
fn a_reader_reuses_its_snapshot_while_nothing_completes() {
    for (profile, reuses) in [("pg13", false), ("pg14", true)] {
        let mut s = Standby::online(profile, 100);
        s.running(100, 100, 99, &[], &[], false).write(103).commit(102, &[]);
        let reader = s.writer.reader();
        let first = reader.snapshot().unwrap();
        s.assign(100, &[101]);
        let second = reader.snapshot_or_reuse(Some(first.clone())).unwrap();
        assert_eq!(second.snapshot == first.snapshot, reuses, "{profile}");
        assert_eq!(second.snapshot.suboverflowed, !reuses, "{profile}");
        s.commit(100, &[101]);
        let third = reader.snapshot_or_reuse(Some(second)).unwrap();
        assert_eq!(third.snapshot.replay_lsn, s.end, "{profile}");
    }
}

#[test]
fn errors_stop_replay_and_readers_keep_the_state_before() {
    let mut s = Standby::online("pg16", 100);
    s.running(100, 100, 99, &[], &[], false).write(101);
    let before = s.end;
    let err = s.try_apply(1 << 20, RecordBody::XlogOther).unwrap_err();
    assert!(matches!(err, RecoveryError::TooManyKnownAssignedXids { live: 2, .. }), "{err}");
    assert_eq!((s.writer.state().replay_lsn, s.live()), (before, vec![100, 101]));
    assert_eq!(s.try_apply(0, RecordBody::XlogOther), Err(RecoveryError::NotStarted));
    let checkpoint = CheckpointRecord { next_xid: FullXid(100), ..CheckpointRecord::default() };
    s.writer.start_at_checkpoint(&checkpoint, before).unwrap();
    s.end = before;
    s.write(101);
}

#[test]
fn damaged_records_are_errors_that_name_them() {
    let bodies = [
        RecordBody::RunningXacts(Box::default()),
        RecordBody::RunningXacts(Box::new(RunningXactsRecord {
            next_xid: Xid(100),
            oldest_running_xid: Xid(99),
            latest_completed_xid: Xid(98),
            xids: xids(&[100]),
            ..RunningXactsRecord::default()
        })),
        RecordBody::Commit(Box::default()),
        RecordBody::Checkpoint(Box::default()),
        RecordBody::Assignment(Box::default()),
        RecordBody::ParameterChange(Box::new(ParameterChangeRecord { max_connections: -1, ..Default::default() })),
    ];
    for body in bodies {
        let mut s = Standby::online("pg16", 100);
        let err = s.try_apply(0, body.clone()).unwrap_err();
        assert!(matches!(err, RecoveryError::MalformedRecord { lsn: Lsn(1000), .. }), "{body:?}: {err}");
    }
    let mut s = Standby::online("pg16", 100);
    let err = s.try_apply(2, RecordBody::XlogOther).unwrap_err();
    assert!(matches!(err, RecoveryError::MalformedRecord { .. }), "{err}");
}

#[test]
fn lists_that_contradict_themselves_or_what_was_seen_are_refused() {
    let list = |next, oldest, completed, tops: &[u32]| RunningXactsRecord {
        next_xid: Xid(next),
        oldest_running_xid: Xid(oldest),
        latest_completed_xid: Xid(completed),
        xids: xids(tops),
        ..RunningXactsRecord::default()
    };
    for (running, says) in [
        (list(110, 111, 99, &[]), "is not before its next id"),
        (list(110, 100, 110, &[]), "is not before its next id"),
        (list(104, 100, 99, &[]), "was seen before"),
        (list(110, 102, 99, &[101]), "not between the oldest and the next"),
        (list(110, 102, 99, &[110]), "not between the oldest and the next"),
    ] {
        // Refused when it is loaded, and by a standby that is ready.
        for ready in [false, true] {
            let mut s = Standby::online("pg16", 100);
            if ready {
                s.running(100, 100, 99, &[], &[], false);
            }
            s.write(104);
            let err = s.try_apply(0, RecordBody::RunningXacts(Box::new(running.clone()))).unwrap_err();
            assert!(err.to_string().contains(says), "{err}");
        }
    }
    let mut s = Standby::online("pg16", 100);
    s.running(100, 100, 99, &[], &[], false).write(104).running(105, 100, 99, &[100], &[], false);
    assert_eq!(s.live(), [100, 101, 102, 103, 104]);
}

#[test]
fn the_end_of_an_unknown_transaction_is_none_for_readers() {
    for profile in ["pg16", "indexed"] {
        let mut s = Standby::online(profile, 100);
        s.running(100, 100, 99, &[], &[], false).write(101);
        // Long over, never seen, and ended twice.
        s.commit(50, &[60]).commit(102, &[]).commit(102, &[]);
        assert_eq!(s.snapshot(), (100, 103, vec![100, 101], false), "{profile}");
    }
}

#[test]
fn subtransactions_of_prepared_transactions_are_found_after_a_shutdown_of_the_primary() {
    let mut s = Standby::online("pg18", 100);
    s.running(100, 100, 99, &[], &[], false).write(104);
    let prepare = PrepareRecord { subxids: xids(&[101, 103]), ..PrepareRecord::default() };
    s.apply(100, RecordBody::Prepare(Box::new(prepare)));
    assert_eq!(s.writer.state().subtrans.parent(Xid(103)), Xid::INVALID, "not at PREPARE");
    s.checkpoint(true, 105, Lsn(1000));
    assert_eq!(s.writer.state().subtrans.parent(Xid(103)), Xid(100));
}

#[test]
fn older_minors_that_become_ready_at_a_shutdown_take_subtransactions_of_prepared_ones_for_over() {
    for (profile, runs) in [("pg15.1", false), ("pg15", true)] {
        let mut s = Standby::online(profile, 104);
        // Overflowed: pending, until the primary is shut down.
        s.running(104, 100, 99, &[100], &[], true);
        let prepare = PrepareRecord { subxids: xids(&[101]), ..PrepareRecord::default() };
        s.apply(100, RecordBody::Prepare(Box::new(prepare))).checkpoint(true, 104, Lsn(1000));
        let taken = s.writer.reader().snapshot().unwrap();
        let mut buffers = SlruBuffers::new(SUBTRANS_BUFFERS, false);
        let state = s.writer.state();
        assert_eq!(
            xid_in_mvcc_snapshot(Xid(101), &taken.snapshot, &state.subtrans, &mut |page| _ = buffers.read(page)),
            runs,
            "{profile}"
        );
    }
}

#[test]
fn the_cliff_begins_with_an_assignment_and_not_with_subtransactions() {
    let in_progress = |s: &Standby, xid: u32, buffers: &mut SlruBuffers| {
        let taken = s.writer.reader().snapshot().unwrap();
        xid_in_mvcc_snapshot(Xid(xid), &taken.snapshot, &s.writer.state().subtrans, &mut |page| _ = buffers.read(page))
    };
    // A long transaction, another with k subtransactions, and one that commits after them: is each of them running?
    for (k, logical, lookups) in [(3, false, 0), (63, false, 0), (64, false, 1 + 1 + 2 * 64), (1, true, 1 + 1 + 2)] {
        let mut s = Standby::online("pg16", 100);
        s.running(100, 100, 99, &[], &[], false).write(100).write(101 + k);
        let subs: Vec<u32> = (102..102 + k).collect();
        // At 64 unreported ones; with wal_level = logical also when the first xid of a transaction is taken in a savepoint.
        if k == 64 || logical {
            s.assign(101, &subs);
        }
        s.commit(102 + k, &[]);
        let mut buffers = SlruBuffers::new(SUBTRANS_BUFFERS, false);
        for xid in 100..102 + k {
            assert!(in_progress(&s, xid, &mut buffers), "{xid} of {k}");
        }
        assert_eq!(buffers.counts().lookups(), u64::from(lookups as u32), "{k}");
    }
}

#[test]
fn parents_are_kept_until_a_list_passes_them() {
    let mut s = Standby::online("pg16", 100);
    s.running(100, 100, 99, &[], &[], false).write(100).assign(100, &[101, 5000]);
    assert_eq!(s.writer.state().subtrans.page_count(), 2);
    s.commit(100, &[101, 5000]).running(5001, 2048, 5000, &[2048], &[], false);
    assert_eq!(s.writer.state().subtrans.page_count(), 1);
    let err = s.try_apply(0, RecordBody::Assignment(Box::new(AssignmentRecord { top_xid: Xid(5001), subxids: xids(&[5001]) })));
    assert!(matches!(err, Err(RecoveryError::MalformedRecord { .. })), "{err:?}");
}

#[test]
fn a_held_snapshot_keeps_the_parents_that_a_list_cuts_off_for_others() {
    let mut s = Standby::online("pg18", 2040);
    s.running(2040, 2040, 2039, &[], &[], false).write(2040);
    s.assign(2040, &[2041, 2042]);
    s.commit(2043, &[]);
    let held = s.writer.reader().hold_snapshot(Oid(5)).unwrap();
    let asked = [2040, 2041, 2042, 2043].map(Xid);
    let runs = held.visibility(asked);
    assert_eq!(runs.running, [true, true, true, false], "{runs:?}");
    // Four xids, and the parents of two of them: one page, read once.
    assert_eq!((runs.lookups.hits, runs.lookups.misses), (5, 1));
    s.commit(2040, &[2041, 2042]).running(4100, 4100, 4099, &[], &[], false);
    assert_eq!(s.writer.state().subtrans.page_count(), 0, "nobody new needs them");
    assert_eq!(held.visibility(asked).running, [true, true, true, false], "nothing ends for a snapshot");
    assert_eq!(s.writer.reader().subtrans_counts().0.lookups(), 12);
    let new = s.writer.reader().hold_snapshot(Oid(5)).unwrap().visibility(asked);
    assert_eq!((new.running, new.lookups.lookups()), (vec![false; 4], 0));
}

#[test]
fn a_reader_locks_so_many_relations_and_no_more() {
    let mut s = Standby::online("pg18", 100);
    s.running(100, 100, 99, &[], &[], false);
    let held = s.writer.reader().hold_snapshot(Oid(5)).unwrap();
    for relation in 0..READER_LOCKS_MAX as u32 {
        assert_eq!(held.lock(Oid(5), Oid(relation)), Ok(true));
    }
    assert_eq!(held.lock(Oid(5), Oid(7)), Ok(true), "again");
    let error = held.lock(Oid(5), Oid(1 << 20)).unwrap_err();
    assert_eq!(error, RecoveryError::TooManyReaderLocks { max: READER_LOCKS_MAX });
    assert!(error.to_string().contains("1024 relations") && error.to_string().contains("lock fewer"), "{error}");
}

#[test]
fn records_out_of_order_are_refused_and_change_nothing() {
    let mut s = Standby::online("pg16", 100);
    s.write(101);
    s.end = Lsn(1000);
    assert!(matches!(s.try_apply(102, RecordBody::XlogOther), Err(RecoveryError::RecordOutOfOrder { .. })));
    s.write(102);
    assert_eq!(s.writer.state().next_xid, FullXid(103));
}

#[test]
fn a_primary_with_larger_settings_is_refused_by_name() {
    let mut s = Standby::online("pg16", 100);
    let ours = ParameterChangeRecord { max_connections: 100, max_prepared_xacts: 10, ..ParameterChangeRecord::default() };
    s.apply(0, RecordBody::ParameterChange(Box::new(ours)));
    let more = ParameterChangeRecord { max_connections: 101, ..ours };
    let err = s.try_apply(0, RecordBody::ParameterChange(Box::new(more))).unwrap_err();
    let want = RecoveryError::InsufficientSetting { lsn: Lsn(1040), setting: "max_connections", primary: 101, standby: 100 };
    assert_eq!(err, want);
}

#[test]
fn replay_can_start_again_at_the_last_checkpoint() {
    let mut s = Standby::online("pg16", 100);
    s.running(100, 100, 99, &[], &[], false).write(100);
    s.apply(100, RecordBody::Prepare(Box::default()));
    let redo = s.end;
    s.running(101, 100, 99, &[100], &[], false).write(101);
    s.apply(101, RecordBody::Prepare(Box::default()));
    s.checkpoint(false, 101, redo).write(103).commit(102, &[]);
    let point = s.writer.restart_point().unwrap().clone();
    assert_eq!(
        (point.redo, &point.prepared),
        (redo, &vec![PreparedXact { xid: Xid(100), subxids: vec![] }]),
        "101 was prepared after redo: its record comes again"
    );
    let want = (s.live(), s.snapshot());

    let mut again = Standby::online("pg16", 3);
    again.writer.start_at_restart_point(&point).unwrap();
    again.end = redo;
    again.running(101, 100, 99, &[100], &[], false).write(101);
    again.apply(101, RecordBody::Prepare(Box::default()));
    again.checkpoint(false, 101, redo).write(103).commit(102, &[]);
    assert_eq!((again.live(), again.snapshot()), want);
}

#[test]
fn idle_compression_waits_for_the_array_and_a_second() {
    let mut s = Standby::online("pg16", 100);
    s.writer.idle(5000);
    assert!(s.writer.compress_calls().is_empty(), "nothing to keep before the first list");
    s.running(100, 100, 99, &[], &[], false).write(104).commit(101, &[]);
    s.writer.idle(5000);
    assert_eq!((s.writer.state().known_assigned.head, s.writer.compress_calls()[0].compressed), (4, true));
    s.commit(102, &[]);
    s.writer.idle(5999);
    assert!(!s.writer.compress_calls()[0].compressed);
    s.writer.idle(6000);
    assert_eq!((s.writer.state().known_assigned.head, s.live()), (3, vec![100, 103, 104]));
}
