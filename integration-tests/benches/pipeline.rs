//! The three nodes on loopback, in one process of two worker threads: transactions a second, with and without traces, records that a
//! standby replays, the time from a commit to its subscriber, and from the start of a node to SERVING.
//!
//! `cargo bench -p integration-tests`; `WALSTORM_BENCH_TRANSACTIONS` sets how many go through at full speed (default 1,000,000).
//!
//! A transaction is one insert and a commit, 103 bytes of WAL. A PostgreSQL 18 walsender does 47,000 of these a second on one core with
//! test_decoding, 53,000 with pgoutput.

#![allow(clippy::unwrap_used, reason = "a panic here is a report")]

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use decoder_node::{DecoderConfig, DecoderNode};
use pg_types::record::{CommitRecord, HeapInsert, RunningXactsRecord};
use pg_types::{Lsn, Oid, RecordBody, RelFileLocator, Tid, Timestamp, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use primary_node::config::ClockMode;
use primary_node::{PrimaryConfig, PrimaryNode};
use rustix::time::{ClockId, clock_gettime};
use standby_node::{Config as StandbyConfig, StandbyNode};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use walstorm_proto::decoder::v1 as pb;
use walstorm_proto::decoder::v1::decoder_service_client::DecoderServiceClient;
use walstorm_proto::decoder::v1::event::Kind;

/// Relations that are written to, one after the other.
const RELATIONS: u32 = 20;
/// Any free port of loopback.
const ANY_PORT: &str = "127.0.0.1:0";
/// Between two looks at something that comes soon.
const SOON: Duration = Duration::from_millis(1);
/// Rate and time of the transactions whose latency is measured.
const PACED: (u32, u32) = (20_000, 10);

/// Writes `count` transactions of one insert each; gives the end of WAL.
fn write_wal(dir: &Path, count: u32) -> Lsn {
    let mut writer = WalWriter::create(dir, WriterConfig::new(1)).unwrap();
    let first = Xid(1000);
    let running = RunningXactsRecord {
        next_xid: first,
        oldest_running_xid: first,
        latest_completed_xid: Xid(first.0 - 1),
        ..RunningXactsRecord::default()
    };
    writer.append(Xid::INVALID, Xid::INVALID, 0, &RecordBody::RunningXacts(Box::new(running))).unwrap();
    for i in 0..count {
        let xid = Xid(first.0 + i);
        let target = RelFileLocator { spc: Oid(1663), db: Oid(5), rel: 20_000 + i % RELATIONS };
        let tid = Tid { block: i / 100, offset: (i % 100 + 1) as u16 };
        let insert = HeapInsert { target, tid, logical: true, tuple_len: 15, ..HeapInsert::default() };
        writer.append(xid, Xid::INVALID, 0, &RecordBody::Insert(insert)).unwrap();
        let commit = CommitRecord { time: Timestamp(i64::from(i)), db: Oid(5), ..CommitRecord::default() };
        writer.append(xid, Xid::INVALID, 0, &RecordBody::Commit(Box::new(commit))).unwrap();
    }
    writer.finish().unwrap()
}

/// A scenario of the same transactions, so many a second for so many seconds.
fn paced_scenario((rate, seconds): (u32, u32)) -> String {
    format!(
        "name = \"paced\"\nseed = 1\nstory = \"One insert a transaction, at a steady rate.\"\nduration = \"{seconds}s\"\n\n\
         [[tables]]\nname = \"t\"\ncolumns = [\"id int\"]\nrow_bytes = 15\n\n\
         [[actors]]\nname = \"writer\"\nsessions = 10\nrate = \"{rate}/s\"\nsteps = [{{ insert = {{ table = \"t\" }} }}]\n"
    )
}

/// A connection to a node that has begun to listen or soon will.
async fn connect(addr: SocketAddr) -> Channel {
    loop {
        match Channel::from_shared(format!("http://{addr}")).unwrap().connect().await {
            Ok(channel) => return channel,
            Err(_) => tokio::time::sleep(SOON).await,
        }
    }
}

/// Subscribes, and calls `seen` with each commit until it is false; gives the changes.
async fn subscribe(node: &DecoderNode, mut seen: impl FnMut(&pb::Commit) -> bool) -> u64 {
    let channel = connect(node.addr()).await;
    loop {
        let (requests, receiver) = mpsc::channel(16);
        let start = pb::SubscribeStart { max_outstanding_bytes: 16 << 20, ..pb::SubscribeStart::default() };
        let request = |kind| pb::SubscribeRequest { kind: Some(kind) };
        requests.send(request(pb::subscribe_request::Kind::Start(start))).await.unwrap();
        let mut client = DecoderServiceClient::new(channel.clone()).max_decoding_message_size(4 << 20);
        let mut responses = client.subscribe(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        let (mut wanted, mut changes) = (true, 0);
        while let Ok(Some(response)) = responses.message().await {
            let Some(pb::subscribe_response::Kind::Batch(batch)) = response.kind else { continue };
            let mut end = 0;
            for event in batch.events() {
                match event.unwrap().kind {
                    Some(Kind::Commit(commit)) => {
                        wanted = seen(&commit);
                        end = commit.end_lsn;
                    }
                    Some(Kind::Change(change)) => changes += change.columns.map_or(0, |c| c.kinds.len() as u64),
                    _ => {}
                }
            }
            if !wanted {
                return changes;
            }
            let feedback = pb::SubscribeFeedback { flushed_lsn: end, reply_requested: false };
            requests.send(request(pb::subscribe_request::Kind::Feedback(feedback))).await.unwrap();
        }
        // The decoder is not there yet.
        tokio::time::sleep(SOON).await;
    }
}

/// CPU time that this process has used.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// A primary's configuration, with all that it keeps in `dir`.
fn primary_config(dir: &Path) -> PrimaryConfig {
    let mut config = PrimaryConfig { data_dir: dir.join("primary"), ..PrimaryConfig::default() };
    config.server.listen = ANY_PORT.to_owned();
    config
}

/// A decoder's configuration, likewise.
fn decoder_config(dir: &Path, primary: &PrimaryNode, profile: &str) -> DecoderConfig {
    let mut config = DecoderConfig { data_dir: dir.join("decoder"), ..DecoderConfig::default() };
    config.primary.endpoint = format!("http://{}", primary.addr());
    config.server.listen = ANY_PORT.to_owned();
    config.profile = profile.to_owned();
    config
}

/// Transactions a second through primary, decoder and one counting subscriber; `traced` says whether 1 % are traced, to a file. Gives the
/// CPU time of all.
async fn throughput(wal: &Path, end: Lsn, transactions: u32, profile: &str, traced: bool) -> f64 {
    let data = tempfile::tempdir().unwrap();
    let file = traced.then(|| data.path().join("spans.jsonl"));
    let mut config = primary_config(data.path());
    config.source.wal_dir = Some(wal.to_owned());
    config.telemetry.file.clone_from(&file);
    let primary = PrimaryNode::start(config).await.unwrap();
    let mut config = decoder_config(data.path(), &primary, profile);
    config.telemetry.file.clone_from(&file);
    let (began, cpu_before) = (Instant::now(), cpu());
    let node = DecoderNode::start(config).await.unwrap();
    let mut commits = 0;
    let all = |_: &pb::Commit| {
        commits += 1;
        commits < transactions
    };
    let changes = subscribe(&node, all).await;
    let (took, used) = (began.elapsed(), cpu() - cpu_before);
    assert_eq!(changes, u64::from(transactions));
    node.decoded_to(end).await.unwrap();
    let rate = f64::from(transactions) / took.as_secs_f64();
    let cpu_each = used.as_nanos() / u128::from(transactions);
    let traces = if traced { "1 %" } else { "none" };
    println!("{profile:<8} {traces:>6} {rate:>14.0} {:>6.2} {cpu_each:>6}", used.as_secs_f64());
    node.shutdown().await.unwrap();
    primary.shutdown().await.unwrap();
    used.as_secs_f64()
}

/// Times from commits to the decoder and to its subscriber, each sorted: transactions of a scenario on the wall clock, flushed each
/// millisecond, to the disk if `fsync`.
async fn latencies(fsync: bool) -> [Vec<Duration>; 2] {
    let data = tempfile::tempdir().unwrap();
    let scenario = data.path().join("paced.toml");
    std::fs::write(&scenario, paced_scenario(PACED)).unwrap();
    let mut config = primary_config(data.path());
    config.source.scenario = Some(scenario.to_string_lossy().into_owned());
    config.source.clock = ClockMode::Real;
    config.source.flush_interval = SOON;
    config.source.fsync = fsync;
    let primary = PrimaryNode::start(config).await.unwrap();
    let node = DecoderNode::start(decoder_config(data.path(), &primary, "indexed")).await.unwrap();
    let mut state = node.state();
    let decoded = tokio::spawn(async move {
        let mut decoded = Vec::new();
        while state.changed().await.is_ok() {
            decoded.push((state.borrow_and_update().decoded_lsn.0, SystemTime::now()));
        }
        decoded
    });
    let mut commits = Vec::new();
    // What the scenario sets up is dated before.
    let began = SystemTime::now();
    // Not to the scenario's end: whoever waits for one more commit then is silent for too long, and gets the last ones twice.
    let until = began + Duration::from_secs(u64::from(PACED.1) - 1);
    subscribe(&node, |commit| {
        let now = SystemTime::now();
        let committed = SystemTime::try_from(commit.commit_time.unwrap()).unwrap();
        if committed >= began {
            commits.push((commit.end_lsn, committed, now));
        }
        now < until
    })
    .await;
    node.shutdown().await.unwrap();
    primary.shutdown().await.unwrap();
    let decoded = decoded.await.unwrap();
    let since = |committed: SystemTime, then: SystemTime| then.duration_since(committed).unwrap_or_default();
    let decoded_at = |lsn: u64| decoded[decoded.partition_point(|(to, _)| *to < lsn)].1;
    let mut to_decoder: Vec<_> = commits.iter().map(|(lsn, committed, _)| since(*committed, decoded_at(*lsn))).collect();
    let mut to_subscriber: Vec<_> = commits.iter().map(|(_, committed, now)| since(*committed, *now)).collect();
    to_decoder.sort_unstable();
    to_subscriber.sort_unstable();
    [to_decoder, to_subscriber]
}

/// Records a second through primary and standby, and bytes, to the last one's replay.
async fn replay(wal: &Path, end: Lsn, transactions: u32, profile: &str) {
    let data = tempfile::tempdir().unwrap();
    let mut config = primary_config(data.path());
    config.source.wal_dir = Some(wal.to_owned());
    let primary = PrimaryNode::start(config).await.unwrap();
    let (began, cpu_before) = (Instant::now(), cpu());
    let standby = StandbyNode::start(standby_config(&primary, profile)).await.unwrap();
    let ended =
        standby.progress().wait_for(|progress| progress.replay_lsn >= end || progress.halt.is_some()).await.unwrap().clone();
    assert_eq!(ended.halt, None);
    let (took, used) = (began.elapsed().as_secs_f64(), cpu() - cpu_before);
    let records = ended.records_replayed;
    assert!(records >= 2 * u64::from(transactions), "{records}");
    let bytes = (end.0 - primary.log().oldest().0) as f64 / 1e6;
    println!(
        "{profile:<20} {:>12.0} {:>6.0} {:>6}",
        records as f64 / took,
        bytes / took,
        used.as_nanos() / u128::from(records)
    );
    standby.shutdown().await.unwrap();
    primary.shutdown().await.unwrap();
}

/// A standby's configuration.
fn standby_config(primary: &PrimaryNode, profile: &str) -> StandbyConfig {
    let mut config = StandbyConfig { profile: Some(profile.to_owned()), ..StandbyConfig::default() };
    config.server.listen = ANY_PORT.to_owned();
    config.primary.endpoint = format!("http://{}", primary.addr());
    config
}

/// Waits until the health service says SERVING.
async fn serving(addr: SocketAddr) {
    let mut health = HealthClient::new(connect(addr).await);
    loop {
        let answer = health.check(HealthCheckRequest::default()).await;
        if answer.is_ok_and(|answer| answer.into_inner().status() == ServingStatus::Serving) {
            return;
        }
        tokio::time::sleep(SOON).await;
    }
}

/// Milliseconds from the start of each node, one after the other, until it serves.
async fn starts(wal: &Path) -> [Duration; 3] {
    let data = tempfile::tempdir().unwrap();
    let began = Instant::now();
    let mut config = primary_config(data.path());
    config.source.wal_dir = Some(wal.to_owned());
    let primary = PrimaryNode::start(config).await.unwrap();
    serving(primary.addr()).await;
    let primary_took = began.elapsed();

    let began = Instant::now();
    let decoder = DecoderNode::start(decoder_config(data.path(), &primary, "indexed")).await.unwrap();
    serving(decoder.addr()).await;
    let decoder_took = began.elapsed();

    let began = Instant::now();
    let standby = StandbyNode::start(standby_config(&primary, "indexed")).await.unwrap();
    serving(standby.addr()).await;
    let standby_took = began.elapsed();

    standby.shutdown().await.unwrap();
    decoder.shutdown().await.unwrap();
    primary.shutdown().await.unwrap();
    [primary_took, decoder_took, standby_took]
}

fn main() {
    let transactions: u32 = std::env::var("WALSTORM_BENCH_TRANSACTIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let wal = tempfile::tempdir().unwrap();
    let end = write_wal(wal.path(), transactions);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        println!("profile  traces transactions/s  CPU s  ns of CPU a transaction, primary and subscriber included");
        // In turns, since others use the machine, too.
        for _ in 0..2 {
            let untraced = throughput(wal.path(), end, transactions, "indexed", false).await;
            let traced = throughput(wal.path(), end, transactions, "indexed", true).await;
            println!("traces of 1 % take {:.1} % of CPU time", 100.0 * (traced / untraced - 1.0));
        }
        throughput(wal.path(), end, transactions, "pg18", false).await;

        println!("\nstandby as              records/s   MB/s  ns of CPU a record, primary included");
        for profile in ["pg13.6", "pg13.6+skip-offset", "pg18", "indexed"] {
            replay(wal.path(), end, transactions, profile).await;
        }

        println!("\nfrom commit, at {} transactions/s  p50  p99  p99.9  max", PACED.0);
        for fsync in [true, false] {
            for (to, times) in ["decoder", "subscriber"].into_iter().zip(latencies(fsync).await) {
                let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
                let flushed = if fsync { "fsync" } else { "none" };
                println!("to {to:<10} {flushed:<5} {:?}  {:?}  {:?}  {:?}", at(0.5), at(0.99), at(0.999), at(1.0));
            }
        }

        let [primary, decoder, standby] = starts(wal.path()).await;
        println!("\nstart to SERVING: primary {primary:?}, decoder {decoder:?}, standby {standby:?}");
    });
}
