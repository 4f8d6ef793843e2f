//! How fast is WAL replayed that was decoded already? `cargo bench -p standby-core --bench replay`
//!
//! The recording of a standby of 18 (twelve busy sessions), by profile; nobody reads, one reader takes a snapshot after each end of a
//! transaction.

#![allow(clippy::unwrap_used, reason = "a recording that cannot be read ends the benchmark")]

#[path = "../tests/support/mod.rs"]
#[allow(dead_code, unreachable_pub, reason = "each program uses its part of the recordings")]
mod support;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use pg_types::record::{CheckpointRecord, RecordBody};
use pg_types::{Lsn, WalRecord};
use standby_core::RecoveryWriter;
use support::{RUNS, Run};

/// What is compared.
const PROFILES: [&str; 5] = ["pg13.6", "pg13.6+skip-offset", "pg16", "pg18", "indexed"];

fn main() {
    divan::main();
}

/// A recording with its beginning.
struct Recording {
    run: &'static Run,
    redo: Lsn,
    checkpoint: CheckpointRecord,
    records: Vec<WalRecord>,
}

impl Recording {
    /// That of 18.
    fn of_18() -> Self {
        let run = RUNS.iter().find(|run| run.profile == "pg18").unwrap();
        let (records, (redo, lsn)) = (run.records(), run.backup_label());
        let checkpoint = records.iter().find_map(|record| match &record.body {
            RecordBody::Checkpoint(checkpoint) if record.lsn == lsn => Some((**checkpoint).clone()),
            _ => None,
        });
        Self { run, redo, checkpoint: checkpoint.unwrap(), records }
    }

    /// A standby that has replayed nothing yet.
    fn standby(&self, profile: &str) -> RecoveryWriter {
        let profile = profile.parse().unwrap();
        let mut writer = RecoveryWriter::new(&self.run.settings(), profile).unwrap();
        writer.start_at_checkpoint(&self.checkpoint, self.redo).unwrap();
        writer
    }

    /// Replays it; the reader, if there is one, takes a snapshot after each end.
    fn replay(&self, mut writer: RecoveryWriter, reads: bool) -> RecoveryWriter {
        let reader = writer.reader();
        for record in &self.records {
            writer.apply(record).unwrap();
            let ends = matches!(record.body, RecordBody::Commit(_) | RecordBody::Abort(_));
            if reads && ends {
                let _ = black_box(reader.snapshot());
            }
        }
        writer
    }
}

#[divan::bench(args = PROFILES)]
fn records(bencher: Bencher, profile: &str) {
    measure(bencher, profile, false);
}

#[divan::bench(args = PROFILES)]
fn records_beside_a_reader(bencher: Bencher, profile: &str) {
    measure(bencher, profile, true);
}

/// Replays the recording again and again.
fn measure(bencher: Bencher, profile: &str, reads: bool) {
    let recording = Recording::of_18();
    bencher
        .counter(ItemsCount::new(recording.records.len()))
        .with_inputs(|| recording.standby(profile))
        .bench_values(|writer| recording.replay(writer, reads));
}
