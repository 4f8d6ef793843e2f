//! Commit → received: a scenario at a given rate on the real clock, and the time from each commit record's own time to its arrival
//! at a consumer in this process. Includes the engine's lag, the flush to disk, reading back, gRPC and loopback.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pg_types::{Lsn, PgVersion, RecordBody};
use pg_wal::{RawRecord, RecordClass, WalProfile};
use primary_node::config::ClockMode;
use primary_node::{PrimaryConfig, PrimaryNode};
use walstorm_proto::primary::v1 as pb;

use pb::stream_wal_response::Kind;

use crate::consumer::{Consumer, channel};

/// How long each rate is held.
const SECONDS: u64 = 4;
/// Rates in transactions a second.
const RATES: [u64; 4] = [1_000, 5_000, 20_000, 50_000];
/// Seconds from 1970 to 2000.
const POSTGRES_EPOCH_S: u64 = 946_684_800;

/// A scenario that inserts and commits at `rate`.
fn scenario(rate: u64) -> String {
    let transactions = rate * SECONDS / 50;
    format!(
        "name = \"latency\"\nstory = \"Small transactions at a steady rate.\"\nseed = 1\n\
         [[tables]]\nname = \"t_{{i}}\"\ncount = 4\ncolumns = [\"id int\", \"a int\"]\n\
         [[actors]]\nname = \"writer\"\nsessions = 50\nrate = \"{rate}/s\"\ntransactions = {transactions}\n\
         steps = [{{ insert = {{ table = \"t_{{random:4}}\" }} }}]\n"
    )
}

/// One rate; its row of the table.
async fn run(rate: u64, fsync: bool) -> String {
    let data = tempfile::tempdir().unwrap();
    let file = data.path().join("latency.toml");
    std::fs::write(&file, scenario(rate)).unwrap();
    let mut config = PrimaryConfig { data_dir: data.path().to_owned(), ..PrimaryConfig::default() };
    config.source.scenario = Some(file.display().to_string());
    config.source.clock = ClockMode::Real;
    config.source.fsync = fsync;
    config.server.listen = "127.0.0.1:0".to_owned();
    let node = PrimaryNode::start(config).await.unwrap();
    let mut consumer = Consumer::open(channel(node.addr()).await, pb::Encoding::Raw, pb::TraceContexts::Sampled).await;
    let mut micros: Vec<u64> = Vec::new();
    let mut first = None;
    loop {
        match consumer.next().await {
            Kind::Batch(batch) => {
                first = first.or(Some(std::time::Instant::now()));
                consumer.flushed(batch.end_lsn).await;
                let now = SystemTime::now().duration_since(UNIX_EPOCH + Duration::from_secs(POSTGRES_EPOCH_S)).unwrap();
                each_commit(&batch, |time| micros.push((now.as_micros() as u64).saturating_sub(time)));
            }
            Kind::Keepalive(keepalive) if keepalive.end_of_source => break,
            _ => {}
        }
    }
    let seconds = first.map_or(0.0, |first| first.elapsed().as_secs_f64());
    node.shutdown().await.unwrap();
    micros.sort_unstable();
    let quantile = |q: f64| micros[((micros.len() - 1) as f64 * q) as usize] as f64 / 1000.0;
    format!(
        "{rate:>8} {:>10.0} {:>6} {:>9.2} {:>9.2} {:>9.2} {:>9.2}",
        micros.len() as f64 / seconds,
        if fsync { "yes" } else { "no" },
        quantile(0.5),
        quantile(0.9),
        quantile(0.99),
        quantile(1.0),
    )
}

/// Calls `each` with the time of every commit of a raw batch, in microseconds since 2000.
fn each_commit(batch: &pb::WalBatch, mut each: impl FnMut(u64)) {
    let Some(pb::wal_batch::Body::Raw(raw)) = &batch.body else { return };
    let profile = WalProfile::of(PgVersion::V18);
    for (i, offset) in raw.offsets.iter().enumerate() {
        let to = raw.offsets.get(i + 1).map_or(raw.records.len(), |next| *next as usize);
        let record = RawRecord::new(Lsn(0), Lsn(0), &raw.records[*offset as usize..to]).unwrap();
        if record.class() == RecordClass::Commit
            && let RecordBody::Commit(commit) = record.decode(profile).unwrap().body
        {
            each(commit.time.0 as u64);
        }
    }
}

/// All rates, with the disk and without.
pub(crate) fn table(runtime: &tokio::runtime::Runtime) {
    println!("\nlatency commit -> received (ms), real clock, {SECONDS} s a rate");
    println!("{:>8} {:>10} {:>6} {:>9} {:>9} {:>9} {:>9}", "asked/s", "reached/s", "fsync", "p50", "p90", "p99", "max");
    for fsync in [true, false] {
        for rate in RATES {
            println!("{}", runtime.block_on(run(rate, fsync)));
        }
    }
}
