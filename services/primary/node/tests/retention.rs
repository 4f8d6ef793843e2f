//! Retention by slots and by size: a slot that keeps more WAL than it may is lost, its stream is told at once and why, and the run
//! goes on.

use std::path::Path;
use std::time::Duration;

use crate::support::{Node, from_slot, raw_records, records};
use primary_node::PrimaryConfig;
use service_kit::status::{Reason, reason_of};
use walstorm_proto::admin::v1 as admin;
use walstorm_proto::primary::v1 as pb;

/// Several segments of WAL, of which slots may keep one.
fn config(data: &Path) -> PrimaryConfig {
    let mut config = PrimaryConfig { data_dir: data.to_owned(), ..PrimaryConfig::default() };
    config.server.listen = "127.0.0.1:0".to_owned();
    config.server.grace = Duration::from_millis(300);
    config.source.scenario = Some("catalog-churn".to_owned());
    for (name, value) in [("tables", "200"), ("transactions", "600"), ("grants", "20"), ("altered", "20")] {
        config.source.parameters.insert(name.to_owned(), value.into());
    }
    config.source.segment_bytes = 1 << 20;
    config.source.fsync = false;
    config.source.flush_bytes = 20_000;
    config.retention.interval = Duration::from_millis(1);
    config.retention.keep_bytes = Some(1);
    config
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_keeps_too_much_is_lost_and_its_stream_is_told_why() {
    // One reads on without ever flushing, one stops at its credit.
    for credit in [1 << 30, 50_000] {
        let data = tempfile::tempdir().unwrap();
        let mut config = config(data.path());
        config.retention.slot_keep_bytes_max = Some(1 << 20);
        // The run waits for the oldest slot: it goes on when that slot is lost.
        config.source.ahead_bytes_max = Some(5 << 20);
        let node = Node::start(config.clone(), data).await;
        node.create_slot("slow", 0).await;
        let slow = pb::StreamStart { max_outstanding_bytes: credit, ..from_slot("slow") };
        let mut slow = node.open(slow).await;
        let status = slow.ended().await;
        assert_eq!(reason_of(&status), Some(Reason::SlotInvalidated), "credit {credit}: {status:?}");
        assert!(status.message().contains("the WAL that it needs was removed"), "{status:?}");
        node.node.log().subscribe().wait_for(|log| log.closed).await.unwrap();

        let slot = node.slot("slow").await;
        assert_eq!(slot.state(), admin::SlotState::Invalidated);
        assert!(slot.invalidation_cause.contains("removed"));
        let data = node.stop().await;
        let node = Node::start(config, data).await;
        let refused = node.refused(from_slot("slow")).await;
        assert_eq!(reason_of(&refused), Some(Reason::SlotInvalidated), "also after a restart: {refused:?}");
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_limit_a_slot_keeps_its_segment_and_all_behind_and_nothing_else() {
    let data = tempfile::tempdir().unwrap();
    let retaining = config(data.path());
    // The whole run first, of which nothing is removed.
    let mut keeping = retaining.clone();
    keeping.retention.keep_bytes = None;
    let node = Node::start(keeping, data).await;
    node.node.log().subscribe().wait_for(|log| log.closed).await.unwrap();
    let (all, _) = records(&node.data.path().join("wal"));
    let position = all[all.len() / 2].lsn;
    let segment = position.0 - position.0 % (1 << 20);
    let (first, last) = (all[0].lsn.0, all[all.len() - 1].lsn.0);
    assert!(segment > first + (1 << 20) && last > segment + (2 << 20), "several segments on both sides");
    node.create_slot("idle", position.0).await;
    node.create_slot("oldest", 0).await;
    let data = node.stop().await;

    let node = Node::start(retaining, data).await;
    node.node.log().subscribe().wait_for(|log| log.closed).await.unwrap();
    assert_eq!(node.node.log().oldest().0, 1 << 20, "the oldest slot keeps everything");
    let delete = admin::DeleteSlotRequest { name: "slots/oldest".to_owned(), ..Default::default() };
    node.admin().delete_slot(delete).await.unwrap();
    while node.node.log().oldest().0 == 1 << 20 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(node.node.log().oldest().0, segment);
    let (batches, end) = node.open(from_slot("idle")).await.drain().await;
    end.unwrap();
    assert_eq!(batches[0].start_lsn, position.0);
    assert!(raw_records(&batches) == all[all.len() / 2..], "exactly what is behind its position");
    node.stop().await;
}
