//! Model check of readers against the writer: whatever the interleaving and whatever the relaxed loads return, a snapshot is the
//! state at the one replay position that it names.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p standby-core --release --test loom`

#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "a panic is how the model reports")]

use std::collections::BTreeMap;
use std::sync::Arc;

use loom::thread;
use pg_types::record::{CheckpointRecord, CommitRecord, RecordBody, RunningXactsRecord};
use pg_types::{FullXid, Lsn, WalRecord, Xid};
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
