//! Model check of readers against the writer: whatever the interleaving and whatever the relaxed loads return, a snapshot is the
//! state at the one replay position that it names.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p standby-core --release --test loom`

#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a panic is how the model reports")]

use std::collections::BTreeMap;
use std::sync::Arc;

use loom::thread;
use pg_types::record::{CheckpointRecord, CommitRecord, PruneRecord, RecordBody, RunningXactsRecord, StandbyLock};
use pg_types::{FullXid, InvalidationMessage, Lsn, Oid, PgVersion, WalRecord, Xid};
use standby_core::catalog_session::{CacheKey, CatalogSnapshotRule};
use standby_core::held::{ConflictKind, HeldSnapshot};
use standby_core::{RecoveryReader, RecoveryWriter, StandbyProfile, StandbySettings};

/// The first xid of the models.
const FIRST: u32 = 100;

/// A record at position `n`.
fn record(n: u64, xid: u32, body: RecordBody) -> WalRecord {
    WalRecord { lsn: Lsn(n * 8), end_lsn: Lsn(n * 8 + 8), xid: Xid(xid), top_xid: Xid::INVALID, origin: 0, body }
}

/// A commit with subtransactions.
fn commit(n: u64, xid: u32, subxids: &[u32]) -> WalRecord {
    let subxids = subxids.iter().copied().map(Xid).collect();
    record(n, xid, RecordBody::Commit(Box::new(CommitRecord { subxids, ..CommitRecord::default() })))
}

/// A record that only shows its xid.
fn write(n: u64, xid: u32) -> WalRecord {
    record(n, xid, RecordBody::XlogOther)
}

/// A standby where `FIRST` … `last` run, after records 0 and 1.
fn standby(profile: &str, last: u32) -> RecoveryWriter {
    let profile: StandbyProfile = profile.parse().unwrap();
    let mut writer = RecoveryWriter::new(&StandbySettings::default(), profile).unwrap();
    let checkpoint = CheckpointRecord { next_xid: FullXid(u64::from(FIRST)), ..CheckpointRecord::default() };
    writer.start_at_checkpoint(&checkpoint, Lsn(0)).unwrap();
    let running = RunningXactsRecord {
        next_xid: Xid(FIRST),
        oldest_running_xid: Xid(FIRST),
        latest_completed_xid: Xid(FIRST - 1),
        ..RunningXactsRecord::default()
    };
    writer.apply(&record(0, 0, RecordBody::RunningXacts(Box::new(running)))).unwrap();
    writer.apply(&write(1, last)).unwrap();
    writer
}

/// Snapshot contents by replay position, from a run without concurrency.
type Truth = BTreeMap<Lsn, (Xid, Xid, Vec<Xid>)>;

/// What every snapshot during `records` may be.
fn truth(last: u32, records: &[WalRecord]) -> Truth {
    let mut writer = standby("pg16", last);
    let reader = writer.reader();
    let mut truth = Truth::new();
    let mut note = |reader: &RecoveryReader| {
        let s = reader.snapshot().unwrap().snapshot;
        truth.insert(s.replay_lsn, (s.xmin, s.xmax, s.xip));
    };
    note(&reader);
    for r in records {
        writer.apply(r).unwrap();
        note(&reader);
    }
    truth
}

/// Takes `n` snapshots; each must be the truth at its position, and positions must not go back.
fn read(reader: &RecoveryReader, truth: &Truth, n: usize) {
    let mut before = Lsn(0);
    for _ in 0..n {
        let s = reader.snapshot().unwrap().snapshot;
        assert!(s.replay_lsn >= before);
        before = s.replay_lsn;
        assert_eq!(truth[&s.replay_lsn], (s.xmin, s.xmax, s.xip), "at {}", s.replay_lsn);
    }
}

/// Checks one writer that replays `records` while each reader takes as many snapshots as it is told.
fn check(profile: &'static str, last: u32, records: Vec<WalRecord>, readers: &'static [usize]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    let records = Arc::new(records);
    model.check(move || {
        let truth = Arc::new(truth(last, &records));
        let mut writer = standby(profile, last);
        let threads: Vec<_> = readers
            .iter()
            .map(|&n| {
                let (reader, truth) = (writer.reader(), Arc::clone(&truth));
                thread::spawn(move || read(&reader, &truth, n))
            })
            .collect();
        for r in records.iter() {
            writer.apply(r).unwrap();
        }
        for t in threads {
            t.join().unwrap();
        }
        read(&writer.reader(), &truth, 1);
    });
}

#[test]
fn i5_no_reader_sees_a_later_end_without_an_earlier_one() {
    check("pg15.1", 102, vec![commit(2, 101, &[]), commit(3, 100, &[])], &[2]);
}

#[test]
fn i5_a_commit_and_its_subtransactions_end_together() {
    check("pg15.1", 103, vec![commit(2, 103, &[101, 102])], &[1, 1]);
}

#[test]
fn i5_compression_and_reset_leave_older_views_alone() {
    // The counted rule compresses at the first end; then all end, the array starts at 0 anew and takes new xids.
    let records = vec![commit(2, 101, &[102]), commit(3, 100, &[103]), write(4, 105)];
    check("pg16", 103, records, &[1]);
}

#[test]
fn i6_skip_offsets_of_a_newer_reader_do_not_mislead_an_older_one() {
    // A view after the first commit still has 103 in the gap that a reader after the second one sees from 100 to 104; 105 puts xmax
    // past it.
    check("pg15.1+skip-offset", 105, vec![commit(2, 105, &[101, 102]), commit(3, 103, &[])], &[1, 1]);
}

#[test]
fn i6_skip_offsets_hold_while_xids_are_added() {
    check("pg15.1+skip-offset", 103, vec![commit(2, 102, &[101]), write(3, 105)], &[2]);
}

#[test]
fn s5_segments_that_change_leave_older_views_alone() {
    // Segments of 4 xids: one is copied at the first commit, dropped at the second, and a new one comes.
    let records = vec![commit(2, 101, &[104]), commit(3, 103, &[100, 102, 105]), write(4, 109)];
    check("indexed", 105, records, &[1, 1]);
}

/// Checks one writer that replays `records` while another thread does `read`; `check` gets what came of it, when both are done.
fn check_reader<T: 'static>(
    records: Vec<WalRecord>,
    read: impl Fn(RecoveryReader) -> T + Copy + Sync + Send + 'static,
    check: impl Fn(T) + Sync + Send + 'static,
) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let mut writer = standby("indexed", 102);
        let reader = writer.reader();
        let thread = thread::spawn(move || read(reader));
        for r in &records {
            writer.apply(r).unwrap();
        }
        check(thread.join().unwrap());
    });
}

#[test]
fn h1_h2_a_snapshot_held_when_rows_go_does_not_see_them_or_is_cancelled() {
    let rows = PruneRecord { conflict_horizon: Xid(FIRST), ..PruneRecord::default() };
    let records = vec![commit(2, FIRST, &[]), record(3, 0, RecordBody::Prune(rows))];
    check_reader(
        records,
        |reader| reader.hold_snapshot(Oid(5)).unwrap(),
        |held: HeldSnapshot| {
            let sees = held.taken().snapshot.xmin.precedes_or_equals(Xid(FIRST));
            assert_eq!(held.cancelled(), sees.then_some(ConflictKind::Snapshot), "{:?}", held.taken());
        },
    );
}

#[test]
fn h1_a_lock_is_refused_or_its_holder_is_cancelled() {
    let relation = (Oid(5), Oid(16_384));
    let lock = StandbyLock { xid: Xid(FIRST), db: relation.0, rel: relation.1 };
    let records = vec![record(2, FIRST, RecordBody::StandbyLocks(vec![lock]))];
    let read = move |reader: RecoveryReader| {
        let held = reader.hold_snapshot(relation.0).unwrap();
        let granted = held.lock(relation.0, relation.1).unwrap();
        (held, granted)
    };
    check_reader(records, read, |(held, granted): (HeldSnapshot, bool)| {
        assert_eq!(held.cancelled(), granted.then_some(ConflictKind::Lock));
    });
}

#[test]
fn c1_c2_what_a_session_caches_is_never_older_than_the_messages_it_has_read() {
    let (cache_id, hash) = (0, 7);
    let key = CacheKey::Catcache { cache_id, hash };
    let message = InvalidationMessage::Catcache { cache_id, db: Oid(5), hash };
    let change = CommitRecord { messages: vec![message], ..CommitRecord::default() };
    let records = vec![record(2, 101, RecordBody::Commit(Box::new(change)))];
    let changed = records[0].end_lsn;
    let read = move |reader: RecoveryReader| {
        let mut session = reader.open_session(PgVersion::V18, CatalogSnapshotRule::TODAY).unwrap();
        session.connect(Oid(5));
        session.lookup(key).unwrap();
        let told = session.accept_invalidation_messages().messages > 0;
        let (read_at, _) = session.lookup(key).unwrap();
        assert!(!told || read_at >= changed, "read at {read_at}, told of {changed}");
        session
    };
    check_reader(records, read, move |mut session| {
        session.accept_invalidation_messages();
        assert!(session.lookup(key).unwrap().0 >= changed, "in the end");
    });
}
