//! The shipped scenarios as real logs: PostgreSQL's own pg_waldump 15 and 18 read every segment of them and find the same records,
//! statistics and words as we do, each version can write them, and the same seed gives the same bytes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pg_types::{Lsn, PgVersion, RecordBody, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use primary_core::rng::seeded;
use primary_core::{Placed, RunSummary, Scenario, SinkError, VirtualClock, WalSink};

use crate::support::pg_waldump::{Log, PgWaldump};

/// A log on disk.
struct LogSink(WalWriter);

impl WalSink for LogSink {
    fn version(&self) -> PgVersion {
        self.0.config().version
    }

    fn next_lsn(&self) -> Lsn {
        self.0.next_lsn()
    }

    fn append(&mut self, xid: Xid, top_xid: Xid, origin: u16, body: &RecordBody) -> Result<Placed, SinkError> {
        let (start, end) = self.0.append(xid, top_xid, origin, body)?;
        Ok(Placed { start, end })
    }
}

/// Scenarios that draw nothing which would show in the log: every seed gives the same.
const DRAW_NOTHING: &[&str] = &[
    "alter-many",
    "grant-all",
    "inval-feedback",
    "long-writer-ddl",
    "matview-refresh",
    "overflowed-start",
    "prepared",
    "rolled-back-bulk",
    "schema-storm",
    "slot-creation-wait",
    "subxact-eviction",
    "truncate-partitions",
];

/// A server that crashes, is asked to switch segments, and writes records that go on over one segment's end or two.
const ROUGH: &str = r#"
name = "rough"
story = "What a log can go through."
seed = 1
[[tables]]
name = "t"
columns = ["id int", "note text"]
rows = 20
[[faults]]
at = "500ms"
kind = "crash"
[[actors]]
name = "writer"
sessions = 3
transactions = 60
every = "20ms"
rollback_percent = 20
steps = [{ insert = { table = "t", rows = 3 } }, { savepoint = "s" }, { update = { table = "t" } }]
[[actors]]
name = "talker"
transactions = 5
every = "150ms"
steps = [{ message = { prefix = "p", bytes = 2200000 } }, { insert = { table = "t" } }]
[[actors]]
name = "switcher"
transactions = 8
every = "90ms"
steps = [{ switch_wal = {} }]
[[actors]]
name = "caught"
transactions = 1
steps = [{ delete = { table = "t", rows = 20 } }, { wait = "2s" }]
"#;

/// Plays a scenario into a directory.
fn play(scenario: &Scenario, version: PgVersion, seed: u64, dir: &Path) -> RunSummary {
    let config = WriterConfig { version, ..WriterConfig::new(7).with_segment_size(1 << 20) };
    let mut sink = LogSink(WalWriter::create(dir, config).unwrap());
    let mut clock = VirtualClock::default();
    let summary = scenario.run(scenario.small(), &mut clock, &mut seeded(seed), &mut sink, |_, _| ()).unwrap();
    assert_eq!(sink.0.finish().unwrap(), summary.end_lsn);
    summary
}

/// The bytes of all files, by name.
fn bytes(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    files.map(|file| (file.file_name().into(), std::fs::read(file.path()).unwrap())).collect()
}

#[test]
fn pg_waldump_reads_every_scenario_segment_by_segment_and_says_what_we_say() {
    for tool in PgWaldump::all() {
        for name in Scenario::names() {
            let dir = tempfile::tempdir().unwrap();
            let summary = play(&Scenario::load(name).unwrap(), tool.version, 1, dir.path());
            let log = Log::read(dir.path());
            assert_eq!(log.lines.len() as u64, summary.records, "{name}");
            assert_eq!(log.all.range(), (summary.start_lsn, summary.end_lsn), "{name}");
            tool.check(&log, name);
        }
    }
}

#[test]
fn pg_waldump_reads_over_a_crash_switches_and_records_longer_than_a_segment() {
    for tool in PgWaldump::all() {
        let dir = tempfile::tempdir().unwrap();
        let summary = play(&Scenario::parse("rough", ROUGH).unwrap(), tool.version, 1, dir.path());
        assert_eq!((summary.crashes, summary.vanished), (1, 1));
        let log = Log::read(dir.path());
        tool.check(&log, "rough");
        let count = |what: &str| log.lines.iter().filter(|line| line.contains(what)).count();
        // One when the server starts, one after the crash.
        assert_eq!(count("CHECKPOINT_SHUTDOWN"), 2);
        assert!(count("SWITCH") > 5 && log.crossing >= 5 && log.without > 0, "{} of {}", log.crossing, log.lines.len());
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
    for name in Scenario::names() {
        let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
        for (dir, seed) in dirs.iter().zip([5, 5, 6]) {
            play(&Scenario::load(name).unwrap(), PgVersion::V18, seed, dir.path());
        }
        let [first, again, other] = dirs.map(|dir| bytes(dir.path()));
        assert!(first == again, "{name}: seed 5 twice");
        assert!((first == other) == DRAW_NOTHING.contains(&name), "{name}: seeds 5 and 6");
    }
}

#[test]
fn every_version_writes_every_scenario() {
    for version in PgVersion::ALL {
        for name in Scenario::names() {
            let dir = tempfile::tempdir().unwrap();
            let summary = play(&Scenario::load(name).unwrap(), version, 1, dir.path());
            let log = Log::read(dir.path());
            assert_eq!(log.lines.len() as u64, summary.records, "{name} in PostgreSQL {version}");
            assert_eq!(log.all.total().count, summary.records, "{name} in PostgreSQL {version}");
        }
    }
}
