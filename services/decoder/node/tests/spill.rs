//! Spill files of a running node: private, empty again at the end, harmless after a crash, and limited.

#![allow(clippy::unwrap_used, reason = "a panic here is a test's report")]

#[path = "support/mixed.rs"]
mod mixed;
#[path = "spill/streaming.rs"]
mod streaming;
mod support;

use std::path::Path;
use std::time::Duration;

use decoder_node::{DecoderNode, NodeError};
use pg_types::record::{CommitRecord, HeapInsert, RunningXactsRecord};
use pg_types::{Oid, RecordBody, RelFileLocator, Tid, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use service_kit::status::{Reason, metadata_of, reason_of, retry_delay_of};
use support::{Subscription, any, assert_same, config, connect, expected, primary, start};
use tempfile::TempDir;
use tonic::Status;
use tonic_types::StatusExt;
use walstorm_proto::decoder::v1 as pb;
use walstorm_proto::decoder::v1::decoder_service_client::DecoderServiceClient;

/// WAL with two transactions of 4000 rows each, mixed, the second of which rolls back, and a small one behind them.
fn large_transactions() -> TempDir {
    transactions_of(4000)
}

/// The same with so many rows.
fn transactions_of(rows: u32) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = WalWriter::create(dir.path(), WriterConfig::new(1).with_segment_size(1 << 20)).unwrap();
    let mut append = |xid: u32, body: RecordBody| writer.append(Xid(xid), Xid::INVALID, 0, &body).map(drop).unwrap();
    let running = RunningXactsRecord { next_xid: Xid(1000), oldest_running_xid: Xid(1000), ..Default::default() };
    append(0, RecordBody::RunningXacts(Box::new(running)));
    let insert = |i: u32| {
        let target = RelFileLocator { spc: Oid(1663), db: Oid(5), rel: 20_000 };
        let tid = Tid { block: i / 100, offset: (i % 100 + 1) as u16 };
        RecordBody::Insert(HeapInsert { target, tid, logical: true, tuple_len: 45, ..HeapInsert::default() })
    };
    let commit = || RecordBody::Commit(Box::new(CommitRecord { db: Oid(5), ..CommitRecord::default() }));
    for i in 0..rows {
        append(1000, insert(2 * i));
        append(1001, insert(2 * i + 1));
    }
    append(1001, RecordBody::Abort(Box::default()));
    append(1000, commit());
    append(1002, insert(9000));
    append(1002, commit());
    writer.switch().unwrap();
    writer.finish().unwrap();
    dir
}

/// Names of the spill files in a node's folder.
fn spill_files(data: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(data.join("spill")).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn little_memory_changes_no_output_and_leftovers_are_harmless() {
    let (wal, data) = (large_transactions(), tempfile::tempdir().unwrap());
    let (items, end) = expected(wal.path());
    let primary = primary(wal.path(), &data.path().join("primary"), any()).await;
    let decoder = data.path().join("decoder");
    // As a crash leaves it: the file of a transaction that will be written out again, with other contents.
    std::fs::create_dir_all(decoder.join("spill")).unwrap();
    for xid in [1000, 1001] {
        std::fs::write(decoder.join("spill").join(format!("xid-{xid}-lsn-0-1000000.spill")), b"from before").unwrap();
    }
    let mut config = config(primary.addr(), &decoder);
    config.work_mem = "64kB".to_owned();
    config.profile = "pg13".to_owned();
    let node = DecoderNode::start(config).await.unwrap();
    let state = node.decoded_to(end).await.unwrap();
    let work = state.work;
    assert!(work.evictions > 10 && work.spill_txns == 2 && work.spill_bytes > 1 << 20, "{work:?}");
    assert_eq!(work.changes_restored, 4000, "what is rolled back is not read again");
    assert!(state.sizes.memory_bytes_peak < 65 << 10, "{:?}", state.sizes);
    assert_eq!((state.sizes.spill_file_bytes, spill_files(&decoder)), (0, vec![]));
    let (mut subscription, _) = Subscription::open_when_ready(node.addr(), start()).await;
    subscription.read_to(end).await;
    assert_same(&subscription.items, &items);
    node.shutdown().await.unwrap();
    primary.shutdown().await.unwrap();
}

/// Subscribers and whoever asks for the state are told that 1000 bytes of spill files were too few.
async fn assert_spill_limit(node: &DecoderNode) {
    let (mut subscription, _) = Subscription::open_when_ready(node.addr(), start()).await;
    let ended = loop {
        match subscription.next().await {
            Ok(kind) => subscription.take(kind.expect("it ends with a status")),
            Err(status) => break status,
        }
    };
    let mut client = DecoderServiceClient::new(connect(node.addr()).await);
    let state = client.get_decoder_state(pb::GetDecoderStateRequest {}).await.unwrap().into_inner();
    assert_eq!(state.last_reason, "SPILL_LIMIT");
    let told = Status::with_details(tonic::Code::ResourceExhausted, state.last_error, state.last_status);
    for status in [ended, told] {
        assert_eq!((status.code(), reason_of(&status)), (tonic::Code::ResourceExhausted, Some(Reason::SpillLimit)));
        assert!(status.message().contains("spill.bytes_max"), "{status:?}");
        assert!(retry_delay_of(&status).is_some_and(|delay| delay > Duration::from_secs(1)), "a person has to help");
        let quota = status.get_details_quota_failure().unwrap().violations;
        assert_eq!((quota.len(), quota[0].subject.as_str()), (1, "spill.bytes_max"));
        assert_eq!(metadata_of(&status, "bytesMax").as_deref(), Some("1000"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_received_tells_of_rollbacks_and_they_are_not_written_out() {
    for (profile, spilled) in [("pg17", 2), ("pg18", 1)] {
        let (wal, data) = (transactions_of(700), tempfile::tempdir().unwrap());
        let (items, end) = expected(wal.path());
        let primary = primary(wal.path(), &data.path().join("primary"), any()).await;
        let mut config = config(primary.addr(), &data.path().join("decoder"));
        (config.work_mem, config.profile) = ("64kB".to_owned(), profile.to_owned());
        let node = DecoderNode::start(config).await.unwrap();
        let work = node.decoded_to(end).await.unwrap().work;
        assert_eq!(work.spill_txns, spilled, "{profile}: all of it is one batch, so the rollback is known: {work:?}");
        let (mut subscription, _) = Subscription::open_when_ready(node.addr(), start()).await;
        subscription.read_to(end).await;
        assert_same(&subscription.items, &items);
        node.shutdown().await.unwrap();
        primary.shutdown().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_is_reached_stops_the_node_and_a_higher_one_lets_it_go_on() {
    let (wal, data) = (large_transactions(), tempfile::tempdir().unwrap());
    let (items, end) = expected(wal.path());
    let primary = primary(wal.path(), &data.path().join("primary"), any()).await;
    let decoder = data.path().join("decoder");
    let mut settings = config(primary.addr(), &decoder);
    settings.work_mem = "64kB".to_owned();
    settings.spill.bytes_max = 1000;
    let node = DecoderNode::start(settings.clone()).await.unwrap();
    let error = node.decoded_to(end).await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, NodeError::Halted(_)) && text.contains("spill.bytes_max") && text.contains("raise"), "{text}");
    assert!(text.contains(".spill"), "it names the file: {text}");
    assert!(!node.state().borrow().is_serving() && node.state().borrow().halted);
    assert_spill_limit(&node).await;
    node.shutdown().await.unwrap();
    assert!(spill_files(&decoder).is_empty());

    settings.spill.bytes_max = 1 << 30;
    let node = DecoderNode::start(settings).await.unwrap();
    node.decoded_to(end).await.unwrap();
    let (mut subscription, _) = Subscription::open_when_ready(node.addr(), start()).await;
    subscription.read_to(end).await;
    assert_same(&subscription.items, &items);
    node.shutdown().await.unwrap();
    primary.shutdown().await.unwrap();
}
