//! What readers get: the real standby's snapshots at every position, their own writes, and a refusal before there is a snapshot.
#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod support;

#[path = "snapshots/held.rs"]
mod held;
#[path = "snapshots/sessions.rs"]
mod sessions;

use std::time::Duration;

use pg_types::Lsn;
use serde_json::Value;
use service_kit::status::{Reason, metadata_of, reason_of, retry_delay_of};
use standby_core::StandbyState;
use support::scripted_primary::ScriptedPrimary;
use support::{Wal, channel, client, config, snapshot, standby_fixture, start, wait_for};
use tonic::Request;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use walstorm_proto::standby::v1::{GetRecoveryStateRequest, RecoveryState, TakeSnapshotRequest};

/// The states of a real standby in which it could give snapshots.
fn real_stops(version: &str, file: &str) -> Vec<Value> {
    let text = zstd::decode_all(std::fs::File::open(standby_fixture(version).join(file)).unwrap()).unwrap();
    let stops = serde_json::Deserializer::from_slice(&text).into_iter::<Value>().map(Result::unwrap);
    stops.filter(|stop| stop.get("xip").is_some()).collect()
}

/// A stop's position.
fn lsn(stop: &Value) -> Lsn {
    stop["replay_lsn"].as_str().unwrap().parse().unwrap()
}

/// A stop's number.
fn number(stop: &Value, key: &str) -> u32 {
    u32::try_from(stop[key].as_u64().unwrap()).unwrap()
}

/// Plays a fixture stop by stop, every `step`th of them, and compares each snapshot with the real one.
async fn check_against_real_standby(version: &str, file: &str, start_lsn: Option<&str>, step: usize) {
    let wal = Wal::standby(version);
    let primary = ScriptedPrimary::start(wal, Lsn(0)).await;
    let mut config = config(&primary);
    if let Some(start_lsn) = start_lsn {
        config.start = start_lsn.to_owned();
    }
    let node = start(config).await;
    let mut client = client(&node).await;
    let mut compared = 0;
    for stop in real_stops(version, file).iter().step_by(step) {
        let at = lsn(stop);
        primary.open_gate(at);
        let ours = snapshot(&mut client, at).await;
        let valid = stop["valid"].as_array().unwrap().iter().map(|xid| u32::try_from(xid.as_u64().unwrap()).unwrap());
        // The array itself, since a reader of 14 and later may have shown a list that it kept.
        let below_xmax: Vec<u32> = valid.filter(|&xid| xid < ours.xmax).collect();
        assert_eq!(Lsn(ours.replay_lsn), at);
        assert_eq!((ours.xmin, ours.xmax), (number(stop, "xmin"), number(stop, "xmax")), "{at}");
        assert_eq!((ours.xip, ours.xip_count as usize), (below_xmax.clone(), below_xmax.len()), "{at}");
        assert_eq!(ours.last_overflowed_xid, number(stop, "last_overflowed_xid"), "{at}");
        assert_eq!(ours.array_live, number(stop, "num"), "{at}");
        compared += 1;
    }
    assert!(compared >= 40, "{compared}");
    node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_those_of_a_real_standby_18() {
    check_against_real_standby("pg18", "snapshots.jsonl.zst", None, 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_those_of_a_real_standby_13() {
    check_against_real_standby("pg13", "snapshots.jsonl.zst", None, 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_those_of_a_real_standby_that_began_overflowed() {
    check_against_real_standby("pg16", "snapshots_16.14_b2.jsonl.zst", Some("0/900028"), 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_its_own_writes_waits_for_them_and_not_for_ever() {
    let wal = Wal::standby("pg15");
    let (half, end) = (wal.records[wal.records.len() / 2].end_lsn, wal.end());
    let primary = ScriptedPrimary::start(wal, half).await;
    let node = start(config(&primary)).await;
    let mut reader = client(&node).await;
    assert_eq!(Lsn(snapshot(&mut reader, half).await.replay_lsn), half);

    // Replay stands still: the wait ends with the call's deadline, and says how far replay was.
    let mut request = Request::new(TakeSnapshotRequest { min_lsn: end.0, ..TakeSnapshotRequest::default() });
    request.set_timeout(Duration::from_millis(200));
    let status = reader.take_snapshot(request).await.unwrap_err();
    assert_eq!(reason_of(&status), Some(Reason::ReplayTimeout), "{status}");
    assert_eq!(metadata_of(&status, "replayLsn"), Some(half.to_string()));

    let mut waiting_reader = reader.clone();
    let waiting = tokio::spawn(async move { snapshot(&mut waiting_reader, end).await });
    primary.open_gate(end);
    assert_eq!(Lsn(waiting.await.unwrap().replay_lsn), end);

    // The list is sent on request only, and as much of it as was asked for.
    let none = reader.take_snapshot(TakeSnapshotRequest::default()).await.unwrap().into_inner();
    let two = TakeSnapshotRequest { include_xip: true, max_xip: 2, min_lsn: 0 };
    let two = reader.take_snapshot(two).await.unwrap().into_inner();
    assert!(none.xip.is_empty() && none.xip_count == two.xip_count && two.xip.len() == two.xip_count.min(2) as usize);
    assert_eq!(node.snapshots_taken(), 4);
    assert!(node.work().xid_slots_visited >= none.slots_visited);
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_running_transactions_are_known_there_is_a_reason_and_no_snapshot() {
    let wal = Wal::standby("pg18");
    let (first_end, end) = (wal.records[0].end_lsn, wal.end());
    let primary = ScriptedPrimary::start(wal, Lsn(0)).await;
    let node = start(config(&primary)).await;
    let mut reader = client(&node).await;
    let mut health = HealthClient::new(channel(node.addr()).await);
    let service = HealthCheckRequest { service: walstorm_proto::service_names::STANDBY.to_owned() };

    primary.open_gate(first_end);
    let status = reader.take_snapshot(TakeSnapshotRequest::default()).await.unwrap_err();
    assert_eq!(reason_of(&status), Some(Reason::NotReady), "{status}");
    assert!(retry_delay_of(&status).is_some() && status.message().contains("running-transactions record"), "{status}");
    let mut watch = health.watch(service.clone()).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert_eq!(health.check(HealthCheckRequest::default()).await.unwrap().into_inner().status(), ServingStatus::Serving);

    primary.open_gate(end);
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    reader.take_snapshot(TakeSnapshotRequest::default()).await.unwrap();
    node.drain().start();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    node.joined().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_that_began_overflowed_is_pending_and_says_until_when() {
    let wal = Wal::standby("pg13");
    let begins: Lsn = "0/A00028".parse().unwrap();
    let pending_until: Lsn = "0/A00090".parse().unwrap();
    let end = wal.end();
    let primary = ScriptedPrimary::start(wal, pending_until).await;
    let mut config = config(&primary);
    config.start = begins.to_string();
    let node = start(config).await;
    wait_for(&node, |p| p.replay_lsn == pending_until).await;
    let mut reader = client(&node).await;
    let request = TakeSnapshotRequest { min_lsn: pending_until.0, ..TakeSnapshotRequest::default() };
    let status = reader.take_snapshot(request).await.unwrap_err();
    assert_eq!(reason_of(&status), Some(Reason::NotReady), "{status}");
    assert_eq!(metadata_of(&status, "pendingXmin").as_deref(), Some("1640"), "{status}");
    let state = reader.get_recovery_state(GetRecoveryStateRequest {}).await.unwrap().into_inner();
    assert_eq!((state.state(), state.pending_xmin), (RecoveryState::Pending, 1640));
    assert!(state.connected && state.profile == "pg13" && state.array_size == 4680, "{state:?}");

    primary.open_gate(end);
    let ready = wait_for(&node, |p| p.state == Some(StandbyState::SnapshotReady)).await;
    assert!(ready.halt.is_none(), "{:?}", ready.halt);
    snapshot(&mut reader, end).await;
    let state = reader.get_recovery_state(GetRecoveryStateRequest {}).await.unwrap().into_inner();
    assert_eq!((state.state(), state.replay_lsn), (RecoveryState::Ready, end.0));
    assert!(state.transactions_ended > 100 && state.records_replayed > state.transactions_ended, "{state:?}");
}
