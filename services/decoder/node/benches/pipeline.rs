//! Transactions a second through the whole pipeline on loopback: primary, decoder, one counting subscriber, in one process.
//! `cargo bench -p decoder-node`; `WALSTORM_BENCH_TRANSACTIONS` sets how many (default 1,000,000).
//!
//! A transaction is one insert and a commit, 103 bytes of WAL. A PostgreSQL 18 walsender does 47,000 of these a second on one
//! core with test_decoding, 53,000 with pgoutput.

#![allow(clippy::unwrap_used, reason = "a panic here is a report")]

use std::path::Path;
use std::time::{Duration, Instant};

use decoder_node::{DecoderConfig, DecoderNode};
use pg_types::record::{CommitRecord, HeapInsert, RunningXactsRecord};
use pg_types::{Lsn, Oid, RecordBody, RelFileLocator, Tid, Timestamp, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use primary_node::{PrimaryConfig, PrimaryNode};
use rustix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use walstorm_proto::decoder::v1 as pb;
use walstorm_proto::decoder::v1::decoder_service_client::DecoderServiceClient;
use walstorm_proto::decoder::v1::event::Kind;

/// Relations that are written to, one after the other.
const RELATIONS: u32 = 20;

/// Writes `count` transactions of one insert each; gives the end of WAL.
fn write_wal(dir: &Path, count: u32) -> Lsn {
    let mut writer = WalWriter::create(dir, WriterConfig::new(1)).unwrap();
    let first = Xid(1000);
    let running = RunningXactsRecord { next_xid: first, oldest_running_xid: first, ..RunningXactsRecord::default() };
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

/// Subscribes, and counts commits up to `count`, looking at every event; gives changes too.
async fn count(node: &DecoderNode, count: u64) -> u64 {
    let channel = loop {
        let endpoint = tonic::transport::Channel::from_shared(format!("http://{}", node.addr())).unwrap();
        match endpoint.connect().await {
            Ok(channel) => break channel,
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    };
    loop {
        let (requests, receiver) = mpsc::channel(16);
        let start = pb::SubscribeStart { max_outstanding_bytes: 16 << 20, ..pb::SubscribeStart::default() };
        let request = |kind| pb::SubscribeRequest { kind: Some(kind) };
        requests.send(request(pb::subscribe_request::Kind::Start(start))).await.unwrap();
        let mut client = DecoderServiceClient::new(channel.clone()).max_decoding_message_size(4 << 20);
        let mut responses = client.subscribe(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        let (mut commits, mut changes) = (0, 0);
        while let Ok(Some(response)) = responses.message().await {
            let Some(pb::subscribe_response::Kind::Batch(batch)) = response.kind else { continue };
            let mut end = 0;
            for event in batch.events() {
                match event.unwrap().kind {
                    Some(Kind::Commit(commit)) => {
                        commits += 1;
                        end = commit.end_lsn;
                    }
                    Some(Kind::Change(change)) => changes += change.columns.map_or(0, |c| c.kinds.len() as u64),
                    _ => {}
                }
            }
            if commits == count {
                return changes;
            }
            let feedback = pb::SubscribeFeedback { flushed_lsn: end, reply_requested: false };
            requests.send(request(pb::subscribe_request::Kind::Feedback(feedback))).await.unwrap();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// CPU time that this process has used.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

fn main() {
    let transactions: u32 = std::env::var("WALSTORM_BENCH_TRANSACTIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let wal = tempfile::tempdir().unwrap();
    let end = write_wal(wal.path(), transactions);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    println!("profile   transactions/s  CPU s  ns of CPU a transaction, primary and subscriber included");
    for profile in ["indexed", "pg18"] {
        runtime.block_on(async {
            let data = tempfile::tempdir().unwrap();
            let mut config = PrimaryConfig { data_dir: data.path().join("primary"), ..PrimaryConfig::default() };
            config.source.wal_dir = Some(wal.path().to_owned());
            config.server.listen = "127.0.0.1:0".to_owned();
            let primary = PrimaryNode::start(config).await.unwrap();
            let mut config = DecoderConfig { data_dir: data.path().join("decoder"), ..DecoderConfig::default() };
            config.primary.endpoint = format!("http://{}", primary.addr());
            config.server.listen = "127.0.0.1:0".to_owned();
            config.profile = profile.to_owned();
            let (began, cpu_before) = (Instant::now(), cpu());
            let node = DecoderNode::start(config).await.unwrap();
            let changes = count(&node, transactions.into()).await;
            let (took, used) = (began.elapsed(), cpu() - cpu_before);
            assert_eq!(changes, u64::from(transactions));
            node.decoded_to(end).await.unwrap();
            let rate = f64::from(transactions) / took.as_secs_f64();
            println!("{profile:<9} {rate:>14.0} {:>6.2} {:>6}", used.as_secs_f64(), used.as_nanos() / u128::from(transactions));
            node.shutdown().await.unwrap();
            primary.shutdown().await.unwrap();
        });
    }
}
