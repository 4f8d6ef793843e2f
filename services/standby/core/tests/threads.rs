//! Readers on threads while a recorded log is replayed: every snapshot is the one that belongs to its position.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a recording that cannot be read fails the test")]

#[allow(dead_code, reason = "each test binary uses its part")]
mod support;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use pg_types::record::RecordBody;
use pg_types::{Lsn, Snapshot, WalRecord};
use standby_core::{RecoveryReader, RecoveryWriter};
use support::RUNS;

/// A standby at the start of the recorded log.
fn standby(records: &[WalRecord], profile: &str) -> RecoveryWriter {
    let run = RUNS[0];
    let (redo, at) = run.backup_label();
    let Some(RecordBody::Checkpoint(checkpoint)) = records.iter().find(|r| r.lsn == at).map(|r| &r.body) else {
        panic!("no checkpoint at {at}")
    };
    let mut writer = RecoveryWriter::new(&run.settings(), profile.parse().unwrap()).unwrap();
    writer.start_at_checkpoint(checkpoint, redo).unwrap();
    writer
}

/// Takes snapshots until told to stop, at least one; gives how many were not like the truth, and how many there were.
fn read(reader: &RecoveryReader, truth: &BTreeMap<Lsn, Snapshot>, stop: &AtomicBool) -> (usize, usize) {
    let (mut wrong, mut taken, mut last) = (0, 0, Lsn::INVALID);
    while !stop.load(Ordering::Acquire) || taken == 0 {
        if let Ok(got) = reader.snapshot() {
            let lsn = got.snapshot.replay_lsn;
            wrong += usize::from(lsn < last || truth.get(&lsn) != Some(&got.snapshot));
            taken += 1;
            last = lsn;
        }
        std::thread::yield_now();
    }
    (wrong, taken)
}

#[test]
fn snapshots_taken_during_replay_are_the_states_at_their_positions() {
    let records = RUNS[0].records();
    let mut truth = BTreeMap::new();
    let mut writer = standby(&records, "pg13");
    let reader = writer.reader();
    for record in &records {
        writer.apply(record).unwrap();
        if let Ok(taken) = reader.snapshot() {
            truth.insert(taken.snapshot.replay_lsn, taken.snapshot);
        }
    }
    for profile in ["pg13", "pg13+skip-offset", "pg13.6+skip-offset", "indexed"] {
        let mut writer = standby(&records, profile);
        let (reader, stop) = (writer.reader(), AtomicBool::new(false));
        let results: Vec<(usize, usize)> = std::thread::scope(|scope| {
            let spawn = |_| scope.spawn(|| read(&reader.clone(), &truth, &stop));
            let threads: Vec<_> = (0..2).map(spawn).collect();
            for chunk in records.chunks(50) {
                chunk.iter().for_each(|record| writer.apply(record).unwrap());
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Release);
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(results.iter().all(|(wrong, taken)| *wrong == 0 && *taken > 0), "{profile}: {results:?}");
    }
}
