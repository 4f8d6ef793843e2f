//! Spill files of a running node: private, empty again at the end, harmless after a crash, and limited.

#![allow(clippy::unwrap_used, reason = "a panic here is a test's report")]

mod support;

use std::path::Path;

use decoder_node::{DecoderNode, NodeError};
use pg_types::record::{CommitRecord, HeapInsert, RunningXactsRecord};
use pg_types::{Oid, RecordBody, RelFileLocator, Tid, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use support::{Subscription, any, assert_same, config, expected, primary, start};
use tempfile::TempDir;

/// WAL with two transactions of 4000 rows each, mixed, the second of which rolls back, and a small one behind them.
fn large_transactions() -> TempDir {
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
    for i in 0..4000 {
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
