//! How fast StreamWal goes over loopback: transactions of two inserts and a commit (three records) to one consumer that counts and
//! flushes. Prints one JSON object a line. Run with `cargo bench -p primary-node`; `TRANSACTIONS=n` sets the size.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot run has nothing to say")]

use std::path::Path;
use std::time::Instant;

use pg_types::record::HeapInsert;
use pg_types::{Oid, RecordBody, RelFileLocator, Tid, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use primary_node::{PrimaryConfig, PrimaryNode};
use tokio_stream::wrappers::ReceiverStream;
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::primary::v1::primary_service_client::PrimaryServiceClient;

use pb::stream_wal_request::Kind as RequestKind;
use pb::stream_wal_response::Kind;

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

/// One run; prints what it measured.
async fn run(wal: &Path, transactions: u32, encoding: pb::Encoding, contexts: pb::TraceContexts) {
    let data = tempfile::tempdir().unwrap();
    let mut config = PrimaryConfig { data_dir: data.path().to_owned(), ..PrimaryConfig::default() };
    config.source.wal_dir = Some(wal.to_owned());
    config.server.listen = "127.0.0.1:0".to_owned();
    let node = PrimaryNode::start(config).await.unwrap();
    let channel = tonic::transport::Channel::from_shared(format!("http://{}", node.addr())).unwrap().connect().await.unwrap();
    let (requests, receiver) = tokio::sync::mpsc::channel(16);
    let start = pb::StreamStart {
        encoding: encoding.into(),
        trace_contexts: contexts.into(),
        max_outstanding_bytes: 8 << 20,
        max_outstanding_batches: 64,
        ..pb::StreamStart::default()
    };
    requests.send(pb::StreamWalRequest { kind: Some(RequestKind::Start(start)) }).await.unwrap();
    let began = Instant::now();
    let cpu_before = cpu();
    let mut stream = PrimaryServiceClient::new(channel).stream_wal(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    let (mut batches, mut bytes) = (0u64, 0u64);
    loop {
        match stream.message().await.unwrap().unwrap().kind.unwrap() {
            Kind::Batch(batch) => {
                batches += 1;
                bytes += prost::Message::encoded_len(&batch) as u64;
                let feedback = pb::Feedback { flushed_lsn: batch.end_lsn, ..pb::Feedback::default() };
                requests.send(pb::StreamWalRequest { kind: Some(RequestKind::Feedback(feedback)) }).await.unwrap();
            }
            Kind::Keepalive(keepalive) if keepalive.end_of_source => break,
            _ => {}
        }
    }
    let (wall, cpu) = (began.elapsed(), cpu() - cpu_before);
    println!(
        "{{\"encoding\":\"{}\",\"contexts\":\"{}\",\"transactions\":{transactions},\"per_s\":{:.0},\"cpu_us_per_transaction\":{:.2},\
         \"batches\":{batches},\"mb_per_s\":{:.0}}}",
        encoding.as_str_name(),
        contexts.as_str_name(),
        f64::from(transactions) / wall.as_secs_f64(),
        cpu * 1e6 / f64::from(transactions),
        bytes as f64 / 1e6 / wall.as_secs_f64(),
    );
    drop(stream);
    node.shutdown().await.unwrap();
}

/// CPU seconds of this process, both sides of the connection.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    (fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap()) / 100.0
}

fn main() {
    let transactions = std::env::var("TRANSACTIONS").ok().and_then(|t| t.parse().ok()).unwrap_or(1_000_000);
    let wal = tempfile::tempdir().unwrap();
    write(wal.path(), transactions);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for encoding in [pb::Encoding::Raw, pb::Encoding::Typed] {
        for contexts in [pb::TraceContexts::All, pb::TraceContexts::Sampled] {
            runtime.block_on(run(wal.path(), transactions, encoding, contexts));
        }
    }
}
