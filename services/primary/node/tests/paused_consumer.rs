//! A consumer that sleeps for an hour of virtual time: its slot keeps everything, or is lost by the limit and says so. Consumers of
//! the scenario itself have slots, too; and a scenario waits for those of clients.

use std::path::Path;
use std::time::Duration;

use pg_types::{Lsn, PgVersion, WalIdentity};
use primary_core::ConsumerSummary;
use primary_core::scenario::ConsumerKind;
use primary_node::slots::{Persistency, SlotFile, Slots};
use primary_node::{Error, PrimaryConfig, PrimaryNode};
use service_kit::status::{Reason, reason_of};
use tonic::Code;
use walstorm_proto::admin::v1::{self as admin, SlotKind, SlotState};
use walstorm_proto::primary::v1 as pb;

use crate::support::{self, Node, Stream, from_slot, millis, raw_records, records};

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

/// Consumers of the hour: one that keeps up, one that sleeps through it, a slow decoder, one that dies, and one that is lost. Half
/// of what all of it comes to is too much to keep.
const CONSUMERS: &str = r#"
[[consumers]]
slot = "awake"

[[consumers]]
slot = "asleep"
paused = [{ from = "1200s", to = "2h" }]

[[consumers]]
slot = "slow"
kind = "logical"
bytes_per_second = 1000

[[consumers]]
slot = "dead"
dead_at = "1500s"

[[consumers]]
slot = "lost"
dead_at = "1s"

[server]
max_slot_wal_keep_size = 3600000
"#;

/// A primary that plays the hour with more sections.
fn hour(data: &Path, sections: &str) -> PrimaryConfig {
    let scenario = data.join("hour.toml");
    std::fs::write(&scenario, format!("{HOUR}{sections}")).unwrap();
    let mut config = PrimaryConfig { data_dir: data.to_owned(), ..PrimaryConfig::default() };
    config.server.listen = "127.0.0.1:0".to_owned();
    config.server.grace = Duration::from_millis(300);
    config.source.scenario = Some(scenario.display().to_string());
    config.source.system_id = Some(SYSTEM_ID);
    config.source.segment_bytes = SEGMENT;
    config.source.fsync = false;
    config.retention.keep_bytes = Some(u64::from(SEGMENT));
    config.retention.interval = Duration::from_millis(1);
    config
}

/// A primary whose slot `orders` was there before the first record, so that what follows needs no luck with time.
fn prepare(data: &Path) -> PrimaryConfig {
    let config = hour(data, "");
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

/// All slots, as ListSlots gives them.
async fn list(node: &Node) -> Vec<admin::Slot> {
    node.admin().list_slots(admin::ListSlotsRequest::default()).await.unwrap().into_inner().slots
}

/// A slot's positions and horizons.
fn positions(slot: &admin::Slot) -> (String, u64, u64, u32, u32) {
    let name = slot.name.strip_prefix("slots/").unwrap().to_owned();
    (name, slot.confirmed_flush_lsn, slot.restart_lsn, slot.xmin, slot.catalog_xmin)
}

/// What the engine says of its consumers, in the order of ListSlots.
fn expected(node: &Node) -> Vec<ConsumerSummary> {
    let mut consumers = node.node.summary().unwrap().borrow().consumers.clone();
    consumers.sort_by(|a, b| a.slot.cmp(&b.slot));
    consumers
}

#[tokio::test]
async fn consumers_of_the_scenario_are_slots_that_keep_wal_and_are_where_the_engine_says() {
    let data = tempfile::tempdir().unwrap();
    let config = hour(data.path(), CONSUMERS);
    let node = Node::start(config.clone(), data).await;
    let end = wait_for_the_hour(&node).await;
    let slots = list(&node).await;
    let consumers = expected(&node);
    let told = |c: &ConsumerSummary| (c.slot.clone(), c.flushed.0, c.restart.0, c.xmin.0, c.catalog_xmin.0);
    assert_eq!(slots.iter().map(positions).collect::<Vec<_>>(), consumers.iter().map(told).collect::<Vec<_>>());
    for (slot, consumer) in slots.iter().zip(&consumers) {
        let logical = consumer.kind == ConsumerKind::Logical;
        assert_eq!(slot.kind(), if logical { SlotKind::Logical } else { SlotKind::Physical });
        let lost = consumer.lost_at.is_some();
        assert_eq!(slot.state(), if lost { SlotState::Invalidated } else { SlotState::Free }, "its run is over: {slot:?}");
        assert_eq!(slot.invalidation_cause.contains("max_slot_wal_keep_size"), lost, "{}", slot.invalidation_cause);
        assert_eq!(lost, consumer.slot == "lost", "{consumer:?}");
    }
    let oldest_needed = consumers.iter().filter(|c| c.lost_at.is_none()).map(|c| c.restart).min().unwrap();
    assert!(end.0 - oldest_needed.0 > 2 * u64::from(SEGMENT), "more than is kept without slots: {oldest_needed} {end}");
    // What nobody needs goes; what one of them needs stays however often it is looked.
    while node.node.log().oldest().0 + u64::from(SEGMENT) <= oldest_needed.0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(node.node.log().oldest() <= oldest_needed);
    let data = node.stop().await;

    // Killed before it was half done: the slots are further than its log, and never go back.
    let wal = data.path().join("wal");
    let middle = records(&wal).0[1000].lsn.0;
    for path in support::segments(&wal) {
        let start = u64::from_str_radix(&path.file_name().unwrap().to_str().unwrap()[16..], 16).unwrap() * u64::from(SEGMENT);
        let mut bytes = std::fs::read(&path).unwrap();
        let keep = usize::try_from(middle.saturating_sub(start)).unwrap().min(bytes.len());
        bytes[keep..].fill(0);
        std::fs::write(&path, bytes).unwrap();
    }
    let node = Node::start(config, data).await;
    let mut closed = node.node.log().subscribe();
    loop {
        assert_eq!(
            list(&node).await.iter().map(positions).collect::<Vec<_>>(),
            slots.iter().map(positions).collect::<Vec<_>>()
        );
        if closed.borrow_and_update().closed {
            break;
        }
        closed.changed().await.unwrap();
    }
    node.stop().await;
}

#[tokio::test]
async fn a_scenario_waits_for_slots_and_its_consumers_are_active_meanwhile() {
    let data = tempfile::tempdir().unwrap();
    let mut config = hour(data.path(), CONSUMERS);
    config.source.wait_for_slots = vec!["mine".to_owned()];
    let node = Node::start(config, data).await;
    let first = node.node.log().end();
    let awake = node.slot("awake").await;
    assert_eq!((awake.state(), awake.active_client_id.as_str()), (SlotState::Active, "scenario"));
    for result in [
        node.refused(from_slot("awake")).await,
        node.admin()
            .delete_slot(admin::DeleteSlotRequest { name: "slots/awake".into(), force: true, ..Default::default() })
            .await
            .unwrap_err(),
        node.admin()
            .advance_slot(admin::AdvanceSlotRequest {
                name: "slots/awake".into(),
                target_lsn: first.lsn.0,
                ..Default::default()
            })
            .await
            .unwrap_err(),
    ] {
        assert_eq!((result.code(), reason_of(&result)), (Code::FailedPrecondition, Some(Reason::SlotActive)), "{result}");
        assert!(result.message().contains("CopySlot"), "{}", result.message());
    }
    assert_eq!(node.node.log().end().lsn, first.lsn, "nothing is played yet");
    let copy = admin::CopySlotRequest { name: "slots/awake".into(), slot_id: "mine".into(), ..Default::default() };
    node.admin().copy_slot(copy).await.unwrap();
    wait_for_the_hour(&node).await;
    let (batches, ended) = node.open(from_slot("mine")).await.drain().await;
    ended.unwrap();
    let all = raw_records(&batches);
    assert!(all.len() > 7260 * 4, "all of it: {}", all.len());
    node.stop().await;
}

#[tokio::test]
async fn slots_that_do_not_come_and_names_that_clash_are_told() {
    let data = tempfile::tempdir().unwrap();
    let mut config = hour(data.path(), CONSUMERS);
    config.source.wait_for_slots = vec!["awake".to_owned(), "never".to_owned()];
    config.source.wait_for_slots_timeout = Duration::from_millis(1);
    let error = PrimaryNode::start(config.clone()).await.unwrap().joined().await.unwrap_err().to_string();
    assert!(error.contains("no slot \"never\"") && error.contains("wait_for_slots_timeout"), "{error}");
    assert!(error.contains("There are: \"asleep\", \"awake\""), "{error}");

    let data = tempfile::tempdir().unwrap();
    let config = PrimaryConfig { data_dir: data.path().to_owned(), ..prepare(data.path()) };
    std::fs::write(data.path().join("hour.toml"), format!("{HOUR}[[consumers]]\nslot = \"orders\"\n")).unwrap();
    match PrimaryNode::start(config).await {
        Err(Error::ConsumerSlotTaken { name }) => assert_eq!(name, "orders"),
        other => panic!("{other:?}"),
    }
}
