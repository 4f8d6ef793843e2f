//! `hot_standby_feedback`: what a reader on the standby needs, the primary keeps, until the reader leaves.

use std::time::Duration;

use pg_types::RecordBody;
use pg_wal::{WalDir, WalReader};
use primary_node::config::ClockMode;
use primary_node::{PrimaryConfig, PrimaryNode};
use standby_node::{Config, StandbyNode};
use tonic::transport::Channel;
use walstorm_proto::admin::v1::admin_service_client::AdminServiceClient;
use walstorm_proto::admin::v1::{CreateSlotRequest, GetSlotRequest, Slot};
use walstorm_proto::standby::v1::standby_service_client::StandbyServiceClient;

use crate::rig::{Reader, channel};

/// Rows are deleted one at a time and vacuumed after each; what slots need is heeded at each barrier.
const SCENARIO: &str = include_str!("../../../services/primary/node/tests/held.toml");

/// The standby's slot, when it is as wanted.
async fn slot(admin: &mut AdminServiceClient<Channel>, wanted: impl Fn(&Slot) -> bool) -> Slot {
    loop {
        let request = GetSlotRequest { name: "slots/standby".to_owned() };
        let slot = admin.get_slot(request).await.unwrap().into_inner().slot.unwrap();
        if wanted(&slot) {
            return slot;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Makes a slot.
async fn create_slot(admin: &mut AdminServiceClient<Channel>, name: &str) {
    let request = CreateSlotRequest { slot_id: name.to_owned(), ..CreateSlotRequest::default() };
    admin.create_slot(request).await.unwrap();
}

/// Rows that VACUUM removed in a log.
fn removed(wal: &std::path::Path) -> u32 {
    let dir = WalDir::open(wal, None).unwrap();
    let (mut reader, mut removed) = (WalReader::open(&dir, None).unwrap(), 0);
    while let Some(record) = reader.next().unwrap() {
        if let RecordBody::Prune(prune) = record.decode(dir.profile()).unwrap().body {
            removed += u32::from(prune.unused);
        }
    }
    removed
}

#[tokio::test(flavor = "multi_thread")]
async fn a_readers_snapshot_holds_back_the_primarys_vacuum_until_it_leaves() {
    let data = tempfile::tempdir().unwrap();
    let scenario = data.path().join("held.toml");
    std::fs::write(&scenario, SCENARIO).unwrap();
    let mut config = PrimaryConfig { data_dir: data.path().to_owned(), ..PrimaryConfig::default() };
    config.server.listen = "127.0.0.1:0".to_owned();
    config.server.grace = Duration::from_millis(300);
    config.source.scenario = Some(scenario.display().to_string());
    config.source.parameters = [("begin", "200ms"), ("every", "50ms"), ("barrier", "50ms")]
        .map(|(name, value)| (name.to_owned(), value.into()))
        .into();
    config.source.clock = ClockMode::Real;
    config.source.fsync = false;
    config.source.wait_for_slots = vec!["standby".to_owned(), "begin".to_owned()];
    let primary = PrimaryNode::start(config).await.unwrap();
    let endpoint = format!("http://{}", primary.addr());
    let mut admin = AdminServiceClient::connect(endpoint.clone()).await.unwrap();
    create_slot(&mut admin, "standby").await;
    // It waits for its readers without end, so that a row that was removed too early would keep it from the end of the WAL.
    let mut standby = Config {
        slot: "slots/standby".to_owned(),
        hot_standby_feedback: true,
        max_standby_streaming_delay_ms: -1,
        feedback_interval: Duration::from_millis(20),
        ..Config::default()
    };
    standby.server.listen = "127.0.0.1:0".to_owned();
    standby.primary.endpoint = endpoint;
    let standby = StandbyNode::start(standby).await.unwrap();
    let mut progress = standby.progress();
    progress.wait_for(|p| p.is_ready()).await.unwrap();
    let reader = Reader::start(StandbyServiceClient::new(channel(&standby).await)).await.unwrap();
    let xmin = reader.snapshot.xmin;
    let held = slot(&mut admin, |slot| slot.xmin == xmin).await;
    assert_eq!(held.catalog_xmin, 0, "the standby has no slots of its own");

    // The scenario runs from its beginning to its end with the reader there.
    create_slot(&mut admin, "begin").await;
    let end = primary.log().subscribe().wait_for(|log| log.closed).await.unwrap().lsn;
    assert_eq!(slot(&mut admin, |_| true).await.xmin, xmin, "what the reader needs is kept, whatever ended");
    drop(reader);
    progress.wait_for(|p| p.replay_lsn >= end).await.unwrap();
    let free = slot(&mut admin, |slot| slot.xmin != xmin).await;
    let next = progress.borrow().latest_completed_xid.next().numeric();
    assert_eq!(free.xmin, next, "what runs on the primary, which is nothing");
    standby.shutdown().await.unwrap();
    primary.shutdown().await.unwrap();
    let removed = removed(&data.path().join("wal"));
    assert_eq!(removed, 0, "the reader may see all of the rows");
}
