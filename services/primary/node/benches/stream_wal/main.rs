//! What the log and StreamWal cost over loopback, in one run: how fast a scenario is written, how fast WAL goes to one consumer by
//! encoding, what a record costs as consumers grow, and how long a commit takes to arrive. Transactions of two inserts and a
//! commit, three records; consumers count and flush.
//!
//! `cargo bench -p primary-node`; `TRANSACTIONS=n` sets the size, a word (`writing`, `encodings`, `consumers`, `latency`) runs one
//! part only.

#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark that cannot run has nothing to say")]

mod consumer;
mod latency;
mod writing;

use std::path::Path;
use std::time::{Duration, Instant};

use pg_types::record::HeapInsert;
use pg_types::{Oid, RecordBody, RelFileLocator, Tid, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use primary_node::{PrimaryConfig, PrimaryNode};
use walstorm_proto::primary::v1 as pb;

use consumer::{Consumer, channel};

/// Consumers at a time, of records as they are.
const RAW_CONSUMERS: [u32; 5] = [1, 4, 16, 64, 256];
/// Consumers at a time, of typed records.
const TYPED_CONSUMERS: [u32; 3] = [1, 4, 16];
/// So many times as many transactions are streamed as written in each run.
const WRITTEN_SHARE: u32 = 5;
/// So many times as many raw records as typed ones are sent.
const TYPED_SHARE: u32 = 8;

/// Writes the log.
fn write(dir: &Path, transactions: u32) {
    let mut writer = WalWriter::create(dir, WriterConfig::new(42)).unwrap();
    let target = RelFileLocator { spc: Oid::DEFAULT_TABLESPACE, db: Oid(5), rel: 16_400 };
    for i in 0..transactions {
        let xid = Xid(1000 + i);
        for row in 0..2 {
            let tid = Tid { block: i / 50, offset: (i % 50 * 2 + row) as u16 + 1 };
            let insert = HeapInsert { target, tid, logical: true, tuple_len: 24, ..HeapInsert::default() };
            writer.append(xid, Xid::INVALID, 0, &RecordBody::Insert(insert)).unwrap();
        }
        writer.append(xid, Xid::INVALID, 0, &RecordBody::Commit(Box::default())).unwrap();
    }
    writer.switch().unwrap();
    writer.finish().unwrap();
}

/// What `consumers` cost that read all of `wal` at the same time, each over a connection of its own.
struct Measured {
    /// Until the last one was at the end.
    wall: Duration,
    /// CPU seconds of both sides.
    cpu: f64,
    /// Records that all of them got.
    records: u64,
    /// Bytes of batches that all of them got.
    bytes: u64,
}

/// One run.
async fn measure(wal: &Path, consumers: u32, encoding: pb::Encoding, contexts: pb::TraceContexts) -> Measured {
    let data = tempfile::tempdir().unwrap();
    let mut config = PrimaryConfig { data_dir: data.path().to_owned(), ..PrimaryConfig::default() };
    config.source.wal_dir = Some(wal.to_owned());
    config.server.listen = "127.0.0.1:0".to_owned();
    let node = PrimaryNode::start(config).await.unwrap();
    let mut channels = Vec::new();
    for _ in 0..consumers {
        channels.push(channel(node.addr()).await);
    }
    let (began, cpu_before) = (Instant::now(), cpu());
    let tasks: Vec<_> = channels
        .into_iter()
        .map(|channel| tokio::spawn(async move { Consumer::open(channel, encoding, contexts).await.drain().await }))
        .collect();
    let (mut records, mut bytes) = (0, 0);
    for task in tasks {
        let (r, b) = task.await.unwrap();
        (records, bytes) = (records + r, bytes + b);
    }
    let measured = Measured { wall: began.elapsed(), cpu: cpu() - cpu_before, records, bytes };
    node.shutdown().await.unwrap();
    measured
}

/// CPU seconds of this process, both sides of the connections.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

/// One consumer, by encoding and contexts.
fn encodings(runtime: &tokio::runtime::Runtime, transactions: u32) {
    let wal = tempfile::tempdir().unwrap();
    write(wal.path(), transactions);
    println!("\none consumer, {transactions} transactions of three records");
    println!("{:>8} {:>9} {:>14} {:>10} {:>20}", "encoding", "contexts", "transactions/s", "MB/s", "CPU us/transaction");
    for (encoding, name) in [(pb::Encoding::Raw, "raw"), (pb::Encoding::Typed, "typed")] {
        for (contexts, which) in [(pb::TraceContexts::All, "all"), (pb::TraceContexts::Sampled, "sampled")] {
            let m = runtime.block_on(measure(wal.path(), 1, encoding, contexts));
            println!(
                "{name:>8} {which:>9} {:>14.0} {:>10.1} {:>20.3}",
                f64::from(transactions) / m.wall.as_secs_f64(),
                m.bytes as f64 / 1e6 / m.wall.as_secs_f64(),
                m.cpu * 1e6 / f64::from(transactions),
            );
        }
    }
}

/// As consumers grow; each run sends about as much in all.
fn consumers(runtime: &tokio::runtime::Runtime, transactions: u32) {
    println!("\nsampled contexts, as consumers grow; every consumer gets every record");
    println!(
        "{:>8} {:>9} {:>12} {:>14} {:>12} {:>10} {:>14}",
        "encoding", "consumers", "transactions", "records/s all", "each", "MB/s all", "CPU us/record"
    );
    let raw = RAW_CONSUMERS.map(|count| ("raw", pb::Encoding::Raw, count, transactions));
    let typed = TYPED_CONSUMERS.map(|count| ("typed", pb::Encoding::Typed, count, transactions / TYPED_SHARE));
    for (name, encoding, count, transactions) in raw.into_iter().chain(typed) {
        let each = (transactions / count).max(20_000);
        let wal = tempfile::tempdir().unwrap();
        write(wal.path(), each);
        let m = runtime.block_on(measure(wal.path(), count, encoding, pb::TraceContexts::Sampled));
        let per_s = m.records as f64 / m.wall.as_secs_f64();
        println!(
            "{name:>8} {count:>9} {each:>12} {per_s:>14.0} {:>12.0} {:>10.1} {:>14.4}",
            per_s / f64::from(count),
            m.bytes as f64 / 1e6 / m.wall.as_secs_f64(),
            m.cpu * 1e6 / m.records as f64,
        );
    }
}

fn main() {
    let transactions = std::env::var("TRANSACTIONS").ok().and_then(|t| t.parse().ok()).unwrap_or(1_000_000);
    // Cargo gives `--bench` to every benchmark.
    let parts: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|p| p == part);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    if wanted("writing") {
        writing::table(&runtime, transactions / WRITTEN_SHARE);
    }
    if wanted("encodings") {
        encodings(&runtime, transactions);
    }
    if wanted("consumers") {
        consumers(&runtime, transactions);
    }
    if wanted("latency") {
        latency::table(&runtime);
    }
}
