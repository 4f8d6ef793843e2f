//! A scenario with every kind of transaction as a real log: PostgreSQL's own pg_waldump reads it and words every record as ours
//! does, each version can write it, and the same seed gives the same bytes.

use std::collections::BTreeSet;
use std::path::Path;

use pg_types::{Lsn, PgVersion, RecordBody, WalRecord, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use pg_wal::{WalDir, WalReader};
use primary_core::rng::seeded;
use primary_core::{Overrides, Placed, RunSummary, Scenario, SinkError, VirtualClock, WalSink};

use crate::support::pg_waldump::{Log, PgWaldump};

const SCENARIO: &str = include_str!("support/every_kind.toml");

/// A log on disk, and the typed records that went into it.
struct LogSink(WalWriter, Vec<WalRecord>);

impl WalSink for LogSink {
    fn version(&self) -> PgVersion {
        self.0.config().version
    }

    fn next_lsn(&self) -> Lsn {
        self.0.next_lsn()
    }

    fn append(&mut self, xid: Xid, top_xid: Xid, origin: u16, body: &RecordBody) -> Result<Placed, SinkError> {
        let (lsn, end_lsn) = self.0.append(xid, top_xid, origin, body)?;
        self.1.push(WalRecord { lsn, end_lsn, xid, top_xid, origin, body: body.clone() });
        Ok(Placed { start: lsn, end: end_lsn })
    }
}

/// Plays the scenario into a directory.
fn play(version: PgVersion, seed: u64, dir: &Path) -> (RunSummary, Vec<WalRecord>) {
    let config = WriterConfig { version, ..WriterConfig::new(7).with_segment_size(1 << 20) };
    let mut sink = LogSink(WalWriter::create(dir, config).unwrap(), Vec::new());
    let scenario = Scenario::parse("every-kind", SCENARIO).unwrap();
    let mut clock = VirtualClock::default();
    let summary = scenario.run(&Overrides::new(), &mut clock, &mut seeded(seed), &mut sink, |_, _| ()).unwrap();
    sink.0.finish().unwrap();
    (summary, sink.1)
}

/// The kind of a line of pg_waldump: resource manager and first word of its description.
fn kinds(dump: &str) -> BTreeSet<String> {
    let kind = |line: &str| {
        let (_, rest) = line.split_once("rmgr: ")?;
        let (_, desc) = rest.split_once("desc: ")?;
        Some(format!("{} {}", rest.split_whitespace().next()?, desc.split_whitespace().next()?))
    };
    dump.lines().filter_map(kind).collect()
}

#[test]
fn pg_waldump_reads_every_kind_and_words_it_as_we_do() {
    for tool in PgWaldump::all() {
        let dir = tempfile::tempdir().unwrap();
        let (_, records) = play(tool.version, 1, dir.path());
        let log = Log::read(dir.path());
        assert_eq!(log.lines.len(), records.len());
        tool.check(&log, "every-kind");
        if tool.version == PgVersion::V18 {
            check_kinds(&log.lines.join("\n"));
        }
    }
}

/// Nothing is missing in a log of 18.
fn check_kinds(text: &str) {
    let kinds = kinds(text);
    for kind in [
        "Transaction PREPARE",
        "Transaction COMMIT_PREPARED",
        "Transaction ABORT_PREPARED",
        "Transaction ASSIGNMENT",
        "Heap HEAP_CONFIRM",
        "Heap LOCK",
        "Heap INPLACE",
        "Heap2 PRUNE_VACUUM_SCAN",
        "Heap2 PRUNE_VACUUM_CLEANUP",
        "Heap2 VISIBLE",
        "Btree INSERT_LEAF",
        "Sequence LOG",
        "Standby LOCK",
        "Standby INVALIDATIONS",
        "Storage TRUNCATE",
        "XLOG SWITCH",
        "XLOG CHECKPOINT_ONLINE",
        "LogicalMessage MESSAGE",
    ] {
        assert!(kinds.contains(kind), "no {kind} among {kinds:?}");
    }
    for told in
        ["; origin: node 7", "gid made 3: ", "dropped stats: ", "subxid overflowed", "plans: [{ xmax: 0", "redirected: ["]
    {
        assert!(text.contains(told), "pg_waldump does not tell '{told}'");
    }
    assert!(text.contains("xid 1:") && text.contains("xid 0:42949672"), "checkpoints tell the epoch");
}

#[test]
fn what_was_written_is_read_in_every_version() {
    for version in PgVersion::ALL {
        let dir = tempfile::tempdir().unwrap();
        let (_, records) = play(version, 2, dir.path());
        let wal = WalDir::open(dir.path(), None).unwrap();
        let mut reader = WalReader::open(&wal, None).unwrap();
        let mut written = records.iter();
        while let Some(record) = reader.next().unwrap() {
            let mut record = record.decode(wal.profile()).unwrap();
            // The writer chooses how long an old row or key is.
            match &mut record.body {
                RecordBody::Delete(delete) => delete.old_len = 0,
                RecordBody::Update(update) => update.old_len = 0,
                _ => {}
            }
            let expected = written.next().unwrap();
            match (&mut record.body, &expected.body) {
                // 13 does not say whether line pointers are given free by the first pass or by the second.
                (RecordBody::Prune(read), RecordBody::Prune(written)) if version == PgVersion::V13 => {
                    read.reason = written.reason;
                }
                _ => {}
            }
            match (&record.body, &expected.body) {
                // Their lengths are known from the bytes alone.
                (RecordBody::MultiInsert(_), RecordBody::MultiInsert(_)) => {}
                // These are written, and read as opaque.
                (RecordBody::Other { .. }, RecordBody::IndexInsert(_) | RecordBody::SequenceLog(_)) => {}
                _ => assert_eq!(&record, expected, "PostgreSQL {version}"),
            }
        }
        assert_eq!(written.next(), None, "PostgreSQL {version}");
    }
}

#[test]
fn a_seed_repeats_a_run() {
    let run = |seed| play(PgVersion::V16, seed, tempfile::tempdir().unwrap().path()).1;
    let first = run(5);
    assert!(first == run(5));
    assert!(first != run(6));
}
