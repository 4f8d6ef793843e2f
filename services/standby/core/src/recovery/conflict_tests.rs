//! Readers in the way of replay, in virtual time.

use pg_types::record::{CommitRecord, IndexPruneRecord, PruneRecord, RunningXactsRecord, StandbyLock};
use pg_types::{Oid, RecordBody, RelFileLocator, WalRecord};
use proptest::prelude::*;

use super::*;
use crate::RecoveryReader;
use crate::held::{ConflictKind, HeldSnapshot};

/// Two databases.
const DB: Oid = Oid(5);
const OTHER: Oid = Oid(6);

fn standby(profile: &str) -> RecoveryWriter {
    let mut writer = RecoveryWriter::new(&StandbySettings::default(), profile.parse().unwrap()).unwrap();
    let checkpoint = CheckpointRecord { shutdown: true, next_xid: FullXid((2 << 32) + 100), ..CheckpointRecord::default() };
    writer.start_at_checkpoint(&checkpoint, Lsn(8)).unwrap();
    writer
}

fn record(writer: &RecoveryWriter, xid: u32, body: RecordBody) -> WalRecord {
    let lsn = writer.state().replay_lsn;
    WalRecord { lsn, end_lsn: Lsn(lsn.0 + 8), xid: Xid(xid), top_xid: Xid::INVALID, origin: 0, body }
}

fn apply(writer: &mut RecoveryWriter, xid: u32, body: RecordBody) {
    let record = record(writer, xid, body);
    writer.apply(&record).unwrap();
}

fn commit(writer: &mut RecoveryWriter, xid: u32) {
    apply(writer, xid, RecordBody::Commit(Box::default()));
}

fn prune(db: Oid, horizon: u32) -> RecordBody {
    let target = RelFileLocator { db, ..RelFileLocator::default() };
    RecordBody::Prune(PruneRecord { target, conflict_horizon: Xid(horizon), ..PruneRecord::default() })
}

fn lock(xid: u32, rel: u32) -> RecordBody {
    RecordBody::StandbyLocks(vec![StandbyLock { xid: Xid(xid), db: DB, rel: Oid(rel) }])
}

fn hold(reader: &RecoveryReader, db: Oid) -> HeldSnapshot {
    reader.hold_snapshot(db).unwrap()
}

fn at(now_ms: u64) -> ReceiptClock {
    ReceiptClock { now_ms, received_ms: 1000, from_stream: true }
}

#[test]
fn replay_waits_longer_and_longer_then_cancels_those_in_that_database_with_an_old_xmin() {
    let mut w = standby("pg16");
    commit(&mut w, 102);
    let reader = w.reader();
    let (old, elsewhere) = (hold(&reader, DB), hold(&reader, OTHER));
    assert_eq!(old.taken().snapshot.xmin, Xid(100));
    commit(&mut w, 100);
    commit(&mut w, 101);
    let young = hold(&reader, DB);
    let r = record(&w, 0, prune(DB, 102));
    let delays = StandbyDelays::default();
    let (mut now, mut waits) = (1000, Vec::new());
    let cancelled = loop {
        match w.resolve_conflicts(&r, delays, at(now)) {
            Resolution::Wait { victims: 1, for_ms } => {
                waits.push(for_ms);
                now += for_ms;
            }
            Resolution::Clear { cancelled } => break cancelled,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((&waits[..5], waits.iter().max(), cancelled), (&[1, 2, 4, 8, 16][..], Some(&1000), 1));
    assert!((31_000..32_000).contains(&now), "{now}");
    w.apply(&r).unwrap();
    let states = [&old, &elsewhere, &young].map(HeldSnapshot::cancelled);
    assert_eq!(states, [Some(ConflictKind::Snapshot), None, None]);
    assert_eq!(w.conflict_counts(), ConflictCounts { snapshot: 1, lock: 0 });
    // A shared relation's rows concern all databases.
    apply(&mut w, 0, prune(Oid::INVALID, 102));
    assert_eq!(elsewhere.cancelled(), Some(ConflictKind::Snapshot));
}

#[test]
fn a_page_of_an_index_that_is_used_again_is_in_nobodys_way_if_it_was_emptied_too_long_ago() {
    let mut w = standby("pg16");
    let reader = w.reader();
    let target = RelFileLocator { db: DB, ..RelFileLocator::default() };
    let page = |epoch, horizon| {
        let prune = IndexPruneRecord { target, conflict_horizon: Xid(horizon), horizon_epoch: epoch, is_catalog: false };
        RecordBody::IndexPrune(prune)
    };
    // The next xid is 100 of epoch 2. 2^31 before it the horizon's low half would be ahead of every xmin.
    for (epoch, horizon, conflicts) in [
        (None, 99, false),
        (None, 100, true),
        (Some(2), 99, false),
        (Some(2), 100, true),
        (Some(1), 100, false),
        (Some(1), (1 << 31) + 50, false),
        (Some(1), (1 << 31) + 150, false),
        (Some(0), (1 << 31) - 50, false),
    ] {
        let held = hold(&reader, DB);
        apply(&mut w, 0, page(epoch, horizon));
        assert_eq!(held.cancelled().is_some(), conflicts, "{epoch:?} {horizon}");
    }
    let long_ago = page(Some(1), (1 << 31) + 50);
    let RecordBody::IndexPrune(prune) = &long_ago else { unreachable!() };
    let as_if_it_had_no_epoch = RecordBody::IndexPrune(IndexPruneRecord { horizon_epoch: None, ..*prune });
    let held = hold(&reader, DB);
    apply(&mut w, 0, long_ago);
    assert_eq!(held.cancelled(), None);
    apply(&mut w, 0, as_if_it_had_no_epoch);
    assert_eq!(held.cancelled(), Some(ConflictKind::Snapshot), "the low half alone is in the future");
}

#[test]
fn a_horizon_of_an_epoch_that_is_not_known_yet_is_judged_by_how_far_behind_it_must_be() {
    let mut w = standby("pg16");
    // Begun at a list of running transactions: no record has told the epoch.
    let FullXid(next) = w.state().next_xid;
    let checkpoint =
        CheckpointRecord { next_xid: FullXid(next & u64::from(u32::MAX)), shutdown: true, ..CheckpointRecord::default() };
    w.start_at_checkpoint(&checkpoint, Lsn(0x1000)).unwrap();
    let reader = w.reader();
    let target = RelFileLocator { db: DB, ..RelFileLocator::default() };
    for (epoch, horizon, conflicts) in
        [(2, 99, false), (2, 100, true), (1, (1 << 31) + 50, false), (1, (1 << 31) + 150, false), (7, (1 << 31) - 50, false)]
    {
        let held = hold(&reader, DB);
        let prune = IndexPruneRecord { target, conflict_horizon: Xid(horizon), horizon_epoch: Some(epoch), is_catalog: false };
        apply(&mut w, 0, RecordBody::IndexPrune(prune));
        assert_eq!(held.cancelled().is_some(), conflicts, "{epoch} {horizon}");
    }
}

#[test]
fn a_reader_that_leaves_lets_replay_go_on_and_the_next_one_is_waited_for_anew() {
    let mut w = standby("indexed");
    let reader = w.reader();
    let (a, b) = (hold(&reader, DB), hold(&reader, DB));
    let r = record(&w, 0, prune(DB, 100));
    let forever = StandbyDelays { streaming_ms: None, archive_ms: Some(0) };
    let ask = |w: &mut RecoveryWriter| w.resolve_conflicts(&r, forever, at(u64::MAX));
    assert_eq!(ask(&mut w), Resolution::Wait { victims: 2, for_ms: 1 });
    assert_eq!(ask(&mut w), Resolution::Wait { victims: 2, for_ms: 2 });
    drop(a);
    assert_eq!(ask(&mut w), Resolution::Wait { victims: 1, for_ms: 1 });
    let archive = ReceiptClock { from_stream: false, ..at(1000) };
    assert_eq!(w.resolve_conflicts(&r, forever, archive), Resolution::Clear { cancelled: 1 });
    assert!(b.cancelled().is_some());
    assert_eq!(ask(&mut w), Resolution::Clear { cancelled: 0 });
    let none = record(&w, 0, prune(DB, 0));
    let _c = hold(&reader, DB);
    assert_eq!(w.resolve_conflicts(&none, forever, archive), Resolution::Clear { cancelled: 0 }, "no horizon, no conflict");
}

#[test]
fn exclusive_locks_cancel_who_reads_the_relation_and_keep_others_out_until_the_end() {
    let mut w = standby("pg16");
    let reader = w.reader();
    let (reads, idle) = (hold(&reader, DB), hold(&reader, DB));
    assert!(reads.lock(DB, Oid(9)).unwrap());
    apply(&mut w, 100, lock(100, 9));
    apply(&mut w, 100, lock(100, 9));
    assert_eq!((reads.cancelled(), idle.cancelled(), w.exclusive_locks()), (Some(ConflictKind::Lock), None, 1));
    let locks = |held: &HeldSnapshot, db, rel| held.lock(db, Oid(rel)).unwrap();
    assert!(!locks(&idle, DB, 9) && locks(&idle, OTHER, 9) && locks(&idle, DB, 10) && !locks(&reads, DB, 10));
    commit(&mut w, 100);
    assert!(locks(&idle, DB, 9) && w.exclusive_locks() == 0);
    // Without an end record a shutdown or a list releases it; prepared transactions keep theirs.
    apply(&mut w, 101, lock(101, 11));
    apply(&mut w, 102, lock(102, 12));
    apply(&mut w, 102, RecordBody::Prepare(Box::default()));
    apply(
        &mut w,
        0,
        RecordBody::Checkpoint(Box::new(CheckpointRecord {
            shutdown: true,
            next_xid: FullXid((2 << 32) + 104),
            ..CheckpointRecord::default()
        })),
    );
    assert_eq!(w.exclusive_locks(), 1);
    apply(
        &mut w,
        0,
        RecordBody::RunningXacts(Box::new(RunningXactsRecord {
            next_xid: Xid(104),
            oldest_running_xid: Xid(102),
            latest_completed_xid: Xid(103),
            xids: vec![Xid(102)],
            ..Default::default()
        })),
    );
    assert_eq!(w.exclusive_locks(), 1);
    let commit_prepared = CommitRecord { prepared_xid: Xid(102), ..Default::default() };
    apply(&mut w, 0, RecordBody::Commit(Box::new(commit_prepared)));
    assert_eq!(w.exclusive_locks(), 0);
    let bad = record(&w, 0, lock(0, 9));
    assert!(matches!(w.apply(&bad), Err(RecoveryError::MalformedRecord { .. })));
}

#[test]
fn locks_have_a_bound_that_the_settings_give() {
    let mut w = standby("pg16");
    let max = 64 * w.sizes().max_procs;
    let locks = |n| RecordBody::StandbyLocks((0..n).map(|rel| StandbyLock { xid: Xid(100), db: DB, rel: Oid(rel) }).collect());
    let r = record(&w, 100, locks(max + 1));
    let err = w.apply(&r).unwrap_err();
    assert_eq!(err, RecoveryError::TooManyStandbyLocks { lsn: r.lsn, max: max as usize });
}

#[test]
fn feedback_is_the_oldest_of_what_runs_and_what_is_held() {
    for profile in ["pg16", "indexed"] {
        let mut w = standby(profile);
        let xmin = |w: &RecoveryWriter| w.hot_standby_feedback().xmin.0 - (2 << 32);
        assert_eq!(xmin(&w), 100, "nothing runs: the next one");
        apply(&mut w, 103, RecordBody::XlogOther);
        let held = hold(&w.reader(), DB);
        for xid in [100, 101, 103] {
            commit(&mut w, xid);
        }
        assert_eq!((xmin(&w), w.hot_standby_feedback().catalog_xmin), (100, None), "held");
        drop(held);
        assert_eq!(xmin(&w), 102, "runs");
        commit(&mut w, 102);
        assert_eq!(xmin(&w), 104, "{profile}");
    }
}

#[test]
fn held_snapshots_are_limited() {
    let w = standby("pg16");
    let (reader, max) = (w.reader(), w.sizes().max_backends);
    let mut held: Vec<HeldSnapshot> = (0..max).map(|_| hold(&reader, DB)).collect();
    assert_eq!(reader.hold_snapshot(DB).unwrap_err(), RecoveryError::TooManySessions { max });
    held.pop();
    hold(&reader, DB);
}

proptest! {
    /// H1 and H2 against a list of who holds what.
    #[test]
    fn h1_h2_who_is_in_the_way_is_cancelled_and_nobody_else(
        steps in prop::collection::vec((0u8..4, any::<prop::sample::Index>(), any::<bool>()), 1..80),
    ) {
        let mut w = standby("indexed");
        let reader = w.reader();
        let mut running: Vec<u32> = Vec::new();
        let mut next = 100;
        let mut held: Vec<(HeldSnapshot, Oid)> = Vec::new();
        for (step, index, which) in steps {
            let db = if which { DB } else { OTHER };
            match step {
                0 => {
                    apply(&mut w, next, RecordBody::XlogOther);
                    running.push(next);
                    next += 1;
                }
                1 if !running.is_empty() => commit(&mut w, running.remove(index.index(running.len()))),
                2 => held.push((hold(&reader, db), db)),
                // The primary removes what nobody sees there: rows that ended before the oldest running transaction.
                _ => {
                    let horizon = running.iter().min().copied().unwrap_or(next) - 1;
                    let before: Vec<bool> = held.iter().map(|(h, _)| h.cancelled().is_some()).collect();
                    apply(&mut w, 0, prune(db, horizon));
                    for ((h, of), before) in held.iter().zip(before) {
                        let hit = *of == db && h.taken().snapshot.xmin.0 <= horizon;
                        prop_assert_eq!(h.cancelled().is_some(), before || hit, "H1");
                    }
                    prop_assert!(hold(&reader, db).taken().snapshot.xmin.0 > horizon, "H2");
                }
            }
        }
    }
}
