//! Decoding of WAL files, from bytes to transactions: recorded logs of real servers, a large one of small transactions, and
//! one incident, step by step from the oldest profile to the newest.
//!
//! `cargo bench -p decoder-core --bench wal [PART]`. Reading, the check of every CRC and decoding are in the time.

#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may stop at a defect; its functions are their questions")]

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use decoder_core::{DecodedTransaction, Decoder, DecoderConfig, NoCatalog, OutputSink, Profile, RegisteredCallbacks};
use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use pg_types::{Lsn, Oid, PgVersion, RecordBody, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use pg_wal::{WalDir, WalReader};
use primary_core::rng::seeded;
use primary_core::{Engine, Overrides, Placed, Scenario, SinkError, Step, VirtualClock, WalSink};
use tempfile::TempDir;

fn main() {
    divan::main();
}

/// Counts transactions.
#[derive(Default)]
struct Transactions(u64);

impl OutputSink for Transactions {
    fn commit(&mut self, _: &DecodedTransaction) {
        self.0 += 1;
    }
}

/// Decodes a directory; gives its transactions.
fn decode(folder: &Path, profile: &str, database: u32, callbacks: RegisteredCallbacks) -> u64 {
    let dir = WalDir::open(folder, None).unwrap();
    let config = DecoderConfig::new(dir.identity().version, profile.parse().unwrap(), Oid(database));
    let mut decoder = Decoder::new(config, Arc::new(NoCatalog));
    decoder.register_callbacks(callbacks).unwrap();
    let mut reader = WalReader::open(&dir, None).unwrap();
    let mut sink = Transactions::default();
    while let Some(raw) = reader.next().unwrap() {
        decoder.process(&raw.decode(dir.profile()).unwrap(), &mut sink).unwrap();
    }
    sink.0
}

/// Bytes of the files in a folder.
fn bytes(folder: &Path) -> u64 {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

/// Three segments of 1 MB that a real server wrote: rows of 279 transactions and schema changes of every kind.
#[divan::bench(args = [("pg13", "pg13", 13_383), ("pg15", "pg15", 5), ("pg16", "pg16", 5), ("pg18", "pg18", 5), ("pg18", "indexed", 5)])]
fn recorded(bencher: Bencher, (name, profile, database): (&str, &str, u32)) {
    let folder = tempfile::tempdir().unwrap();
    let packed = format!("{}/../../shared/pg-wal/tests/fixtures/{name}/wal.tar.zst", env!("CARGO_MANIFEST_DIR"));
    tar::Archive::new(zstd::Decoder::new(File::open(packed).unwrap()).unwrap()).unpack(folder.path()).unwrap();
    let callbacks = RegisteredCallbacks::default();
    let transactions = decode(folder.path(), profile, database, callbacks);
    assert!(transactions >= 279, "{transactions}");
    bencher
        .counter(BytesCount::new(bytes(folder.path())))
        .counter(ItemsCount::new(transactions))
        .bench_local(|| decode(folder.path(), profile, database, callbacks));
}

/// 200,000 transactions of one insert each, by eight sessions.
const SMALL_TRANSACTIONS: &str = r#"
name = "small-transactions"
story = "Many sessions, each with small transactions."
seed = 1
[[tables]]
name = "t_{1..10}"
columns = ["id bigint", "v text"]
row_bytes = 60
[[actors]]
name = "writers"
sessions = 8
transactions = 25000
every = "1ms"
steps = [{ insert = { table = "t_{random:10}" } }]
"#;

/// Writes what the engine makes.
struct Log(WalWriter);

impl WalSink for Log {
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

/// Plays a scenario at its published size, into WAL of the profile's own version: its log, and what a decoder has registered.
fn play(scenario: &str, profile: &str) -> (TempDir, RegisteredCallbacks) {
    let folder = tempfile::tempdir().unwrap();
    let version = profile.parse::<Profile>().unwrap().wal_version;
    let config = WriterConfig { version, ..WriterConfig::new(1) };
    let mut log = Log(WalWriter::create(folder.path(), config).unwrap());
    let plan = Scenario::load(scenario).unwrap().plan(&Overrides::new()).unwrap();
    let hints = plan.decoder;
    let (syscache, relcache) = (hints.syscache_callbacks, hints.relcache_callbacks);
    let callbacks = RegisteredCallbacks { syscache, relcache, entries: hints.callback_entries };
    let mut engine = Engine::new(plan, version).unwrap();
    let (mut clock, mut rng) = (VirtualClock::default(), seeded(1));
    while engine.step(&mut clock, &mut rng, &mut log).unwrap() != Step::Done {}
    log.0.switch().unwrap();
    log.0.finish().unwrap();
    (folder, callbacks)
}

/// From `pg13` over `pg18` to `indexed`, one idea after another, on `schema-storm` at its published size: its 500 transactions, decoded from
/// records in memory by a decoder that has decoded a row of each of 10,000 tables. All of the WAL of 18, so that steps compare.
#[divan::bench(args = [
    "pg13", "pg14", "pg18", "pg18+reverse-index", "pg18+reverse-index+execute-once", "pg18+reverse-index+execute-once+collapse-messages",
    "pg18+reverse-index+execute-once+collapse-messages+on-demand-snapshots",
    "pg18+reverse-index+execute-once+collapse-messages+on-demand-snapshots+sorted-committed", "indexed",
], sample_count = 3, sample_size = 1)]
fn steps_to_indexed(bencher: Bencher, profile: &str) {
    let (folder, callbacks) = play("schema-storm", "pg18");
    let dir = WalDir::open(folder.path(), None).unwrap();
    let mut reader = WalReader::open(&dir, None).unwrap();
    let mut records = Vec::new();
    while let Some(raw) = reader.next().unwrap() {
        records.push(raw.decode(dir.profile()).unwrap());
    }
    let first = records.iter().position(|record| matches!(record.body, RecordBody::XactInvalidations(_))).unwrap();
    let (before, storm) = records.split_at(first);
    let full = || {
        let config = DecoderConfig::new(PgVersion::V18, profile.parse().unwrap(), Oid(5));
        let mut decoder = Decoder::new(config, Arc::new(NoCatalog));
        decoder.register_callbacks(callbacks).unwrap();
        before.iter().for_each(|record| decoder.process(record, &mut Transactions::default()).unwrap());
        decoder
    };
    bencher.counter(ItemsCount::new(500u32)).with_inputs(full).bench_local_values(|mut decoder| {
        storm.iter().for_each(|record| decoder.process(record, &mut Transactions::default()).unwrap());
        decoder
    });
}

/// A large simulated log of small transactions.
#[divan::bench(args = ["pg18", "indexed"], sample_count = 5, sample_size = 1)]
fn simulated(bencher: Bencher, profile: &str) {
    let (folder, callbacks) = play(SMALL_TRANSACTIONS, profile);
    assert_eq!(decode(folder.path(), profile, 5, callbacks), 200_000);
    bencher
        .counter(BytesCount::new(bytes(folder.path())))
        .counter(ItemsCount::new(200_000u32))
        .bench_local(|| decode(folder.path(), profile, 5, callbacks));
}
