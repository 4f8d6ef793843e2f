//! A consumer that sleeps for an hour of virtual time: its slot keeps everything, or is lost by the limit and says so.

#![allow(clippy::unwrap_used, reason = "a panic is the report")]

mod support;

use std::path::Path;
use std::time::Duration;

use pg_types::{Lsn, PgVersion, WalIdentity};
use primary_node::PrimaryConfig;
use primary_node::slots::{Persistency, SlotFile, Slots};
use service_kit::status::{Reason, reason_of};
use tonic::Code;
use walstorm_proto::admin::v1::SlotState;
use walstorm_proto::primary::v1 as pb;

use support::{Node, Stream, from_slot, millis, raw_records, records};

/// Half a minute more than an hour.
const HOUR: &str = r#"
name = "hour"
story = "A server with steady small transactions, for a little more than an hour."
seed = 7

[[tables]]
name = "t_{i}"
count = 4
columns = ["id int", "a int", "b text"]

[[actors]]
name = "writer"
sessions = 4
rate = "8/s"
transactions = 7260
steps = [{ insert = { table = "t_{random:4}" } }]
"#;

/// The cluster of the log.
const SYSTEM_ID: u64 = 4711;
/// Bytes of a segment.
const SEGMENT: u32 = 1 << 20;

/// A primary whose slot `orders` was there before the first record, so that what follows needs no luck with time.
fn prepare(data: &Path) -> PrimaryConfig {
    let scenario = data.join("hour.toml");
    std::fs::write(&scenario, HOUR).unwrap();
    let mut config = PrimaryConfig { data_dir: data.to_owned(), ..PrimaryConfig::default() };
    config.server.listen = "127.0.0.1:0".to_owned();
    config.server.grace = Duration::from_millis(300);
    config.source.scenario = Some(scenario.display().to_string());
    config.source.system_id = Some(SYSTEM_ID);
    config.source.segment_bytes = SEGMENT;
    config.source.fsync = false;
    config.retention.keep_bytes = Some(u64::from(SEGMENT));
    config.retention.interval = Duration::from_millis(1);
    let identity = WalIdentity { version: PgVersion::V18, system_id: SYSTEM_ID, timeline: 1, segment_size: SEGMENT };
    let start = pg_wal::writer::WriterConfig::new(SYSTEM_ID).with_segment_size(SEGMENT).start;
    let slot = SlotFile::new("orders", &identity, start, 1);
    Slots::open(data, &identity, 1).unwrap().create(slot, Persistency::Persistent).unwrap();
    config
}

/// A stream from the slot that may be silent for ever.
async fn open(node: &Node) -> Stream {
    let mut stream = node.open(pb::StreamStart { feedback_timeout: millis(0), ..from_slot("orders") }).await;
    stream.started().await;
    stream
}

/// Waits until the hour is over and the scenario with it.
async fn wait_for_the_hour(node: &Node) -> Lsn {
    let end = node.node.log().subscribe().wait_for(|end| end.closed).await.unwrap().lsn;
    assert!(node.node.summary().unwrap().borrow().simulated_us >= 3_600_000_000);
    end
}

#[tokio::test]
async fn what_a_slot_keeps_arrives_after_an_hour_in_order() {
    let data = tempfile::tempdir().unwrap();
    let node = Node::start(prepare(data.path()), data).await;
    let mut stream = open(&node).await;
    let first = stream.batch().await;
    stream.flushed(first.end_lsn).await;
    let end = wait_for_the_hour(&node).await;
    assert!(end.0 - first.end_lsn > 2 * u64::from(SEGMENT), "more than is kept without slots");
    while node.slot("orders").await.confirmed_flush_lsn != first.end_lsn {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let (expected, _) = records(&node.data.path().join("wal"));
    let (rest, ended) = stream.drain().await;
    ended.unwrap();
    let mut received = raw_records(&[first]);
    received.extend(raw_records(&rest));
    assert!(received.ends_with(&expected), "everything that was still there, and nothing is missing before it");
    assert!(received.windows(2).all(|pair| pair[0].end_lsn <= pair[1].lsn), "in order, none twice");
    stream.flushed(end.0).await;
    while node.node.log().oldest().0 + 2 * u64::from(SEGMENT) < end.0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    node.stop().await;
}

#[tokio::test]
async fn a_slot_that_keeps_more_than_the_limit_is_lost_by_name_also_after_a_restart() {
    let data = tempfile::tempdir().unwrap();
    let mut config = prepare(data.path());
    config.retention.slot_keep_bytes_max = Some(u64::from(SEGMENT));
    let node = Node::start(config.clone(), data).await;
    let mut stream = open(&node).await;
    let first = stream.batch().await;
    stream.flushed(first.end_lsn).await;
    wait_for_the_hour(&node).await;
    let status = stream.ended().await;
    assert_eq!((status.code(), reason_of(&status)), (Code::FailedPrecondition, Some(Reason::SlotInvalidated)));
    let slot = node.slot("orders").await;
    assert_eq!((slot.state(), slot.kept_bytes), (SlotState::Invalidated, 0));
    assert!(slot.invalidation_cause.contains("removed"), "{}", slot.invalidation_cause);
    let data = node.stop().await;
    let node = Node::start(config, data).await;
    assert_eq!(reason_of(&node.refused(from_slot("orders")).await), Some(Reason::SlotInvalidated));
    node.stop().await;
}
