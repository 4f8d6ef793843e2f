//! The shipped scenarios as real logs: PostgreSQL's own pg_waldump reads them, our reader finds the same records, and the same
//! seed gives the same bytes.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use pg_types::{Lsn, PgVersion, RecordBody, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use pg_wal::{EndReason, WalDir, WalReader, rmgr};
use primary_core::rng::seeded;
use primary_core::{Placed, RunSummary, Scenario, SinkError, VirtualClock, WalSink};

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
    "slot-creation-wait",
    "subxact-eviction",
    "truncate-partitions",
];

/// Plays a scenario into a directory.
fn play(name: &str, version: PgVersion, seed: u64, dir: &Path) -> RunSummary {
    let config = WriterConfig { version, ..WriterConfig::new(7).with_segment_size(1 << 20) };
    let mut sink = LogSink(WalWriter::create(dir, config).unwrap());
    let scenario = Scenario::load(name).unwrap();
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

/// `$WALSTORM_PG18_BIN`, else `.tools/pg18/bin` of the repository; missing, it is a failure in CI and said aloud elsewhere.
fn pg18_bin() -> Option<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let bin = std::env::var_os("WALSTORM_PG18_BIN").map_or_else(|| repository.join(".tools/pg18/bin"), PathBuf::from);
    if bin.join("pg_waldump").exists() {
        return Some(bin);
    }
    let reason = format!("no pg_waldump in {}; set WALSTORM_PG18_BIN, or run `make test`, which installs it", bin.display());
    assert!(std::env::var_os("CI").is_none(), "{reason}");
    eprintln!("SKIPPED: {reason}");
    None
}

/// Count and bytes of each kind of record, as our reader sees them.
fn our_stats(dir: &Path) -> BTreeMap<String, (u64, u64)> {
    let wal = WalDir::open(dir, None).unwrap();
    let mut reader = WalReader::open(&wal, None).unwrap();
    let mut stats = BTreeMap::new();
    while let Some(record) = reader.next().unwrap() {
        record.decode(wal.profile()).unwrap();
        let header = record.header;
        let kind = format!("{}/{}", rmgr::name(header.rmid), rmgr::operation_name(wal.profile(), header.rmid, header.info));
        let (count, len) = stats.entry(kind).or_insert((0, 0));
        *count += 1;
        *len += u64::from(header.total_len);
    }
    assert_eq!(reader.end().unwrap().reason, EndReason::Switch);
    stats
}

#[test]
fn pg_waldump_reads_every_scenario_and_counts_the_same() {
    let Some(bin) = pg18_bin() else { return };
    for name in Scenario::names() {
        let dir = tempfile::tempdir().unwrap();
        let summary = play(name, PgVersion::V18, 1, dir.path());
        let mut dump = Command::new(bin.join("pg_waldump"));
        dump.arg("-p").arg(dir.path()).args(["--stats=record", "-s"]).arg(summary.start_lsn.to_string());
        let output = dump.arg("-e").arg(summary.end_lsn.to_string()).output().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && complaint.is_empty(), "{name}: {complaint}");
        let mut theirs = BTreeMap::new();
        for line in String::from_utf8(output.stdout).unwrap().lines() {
            let Some((kind, rest)) = line.split_once(char::is_whitespace).filter(|(kind, _)| kind.contains('/')) else {
                continue;
            };
            let numbers: Vec<u64> = rest.split_whitespace().filter_map(|word| word.parse().ok()).collect();
            match numbers[..] {
                [count, len, ..] if count > 0 => drop(theirs.insert(kind.to_owned(), (count, len))),
                _ => {}
            }
        }
        assert_eq!(our_stats(dir.path()), theirs, "{name}");
        assert_eq!(theirs.values().map(|(count, _)| count).sum::<u64>(), summary.records, "{name}");
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_seed_others() {
    for name in Scenario::names() {
        let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
        for (dir, seed) in dirs.iter().zip([5, 5, 6]) {
            play(name, PgVersion::V18, seed, dir.path());
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
            let summary = play(name, version, 1, dir.path());
            let count: u64 = our_stats(dir.path()).values().map(|(count, _)| count).sum();
            assert_eq!(count, summary.records, "{name} in PostgreSQL {version}");
        }
    }
}
