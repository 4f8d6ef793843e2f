//! Streams that break, lie or end for good, and what the primary hears about it.
#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod support;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pg_types::Lsn;
use service_kit::Drain;
use service_kit::clock::ManualClock;
use service_kit::status::{Reason, failure, reason_of};
use service_kit::telemetry::Export;
use standby_node::{Config, Halt, StandbyNode};
use support::scripted_primary::{Ending, ScriptedPrimary};
use support::{Wal, channel, client, commit, config, running_xacts, snapshot, start, wait_for};
use tonic::Status;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use walstorm_proto::standby::v1::{
    GetRecoveryStateRequest, OpenCatalogSessionRequest, ReplayLag, ReplayRate, SessionStart, TakeSnapshotRequest,
    open_catalog_session_request,
};

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_break_anywhere_lose_and_repeat_nothing() {
    let wal = Wal::standby("pg18");
    let end = wal.end();
    let quiet = ScriptedPrimary::start(wal.clone(), end).await;
    let undisturbed = start(config(&quiet)).await;
    let expected = snapshot(&mut client(&undisturbed).await, end).await;
    let expected_progress = wait_for(&undisturbed, |p| p.replay_lsn == end).await;

    let primary = ScriptedPrimary::start(wal, end).await;
    // Records above 400 bytes come in pieces, and each stream brings seven batches.
    primary.change(|s| (s.batch_records, s.piece_bytes, s.ending) = (97, 400, Ending::LostAfter(7)));
    let node = start(config(&primary)).await;
    let mut reader = client(&node).await;
    // Another connection each seven batches, until none is left.
    assert_eq!(snapshot(&mut reader, end).await, expected);
    let progress = wait_for(&node, |p| p.replay_lsn == end).await;
    assert_eq!(progress.records_replayed, expected_progress.records_replayed);
    assert_eq!(progress.transactions_ended, expected_progress.transactions_ended);
    let starts = primary.seen().starts;
    assert!(starts.len() > 5, "{}", starts.len());
    assert!(starts.is_sorted_by(|a, b| a.from_lsn < b.from_lsn), "{starts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_data_directory_all_that_is_applied_is_flushed() {
    let wal = Wal::standby("pg16");
    let end = wal.end();
    let primary = ScriptedPrimary::start(wal, end).await;
    let node = start(config(&primary)).await;
    let seen = primary.wait_seen(|seen| seen.feedback.last().is_some_and(|f| f.flushed_lsn == end.0)).await;
    for pair in seen.feedback.windows(2) {
        let positions = |f: &walstorm_proto::primary::v1::Feedback| [f.received_lsn, f.applied_lsn, f.flushed_lsn];
        let (before, after) = (positions(&pair[0]), positions(&pair[1]));
        assert!(before.iter().zip(&after).all(|(b, a)| b <= a), "{pair:?}");
        assert!(after.is_sorted_by(|a, b| a >= b), "{pair:?}");
    }
    assert_eq!(seen.starts[0].client_id, "standby");
    node.shutdown().await.unwrap();
}

/// A standby whose replay has halted: NOT_SERVING, and every reader is told why.
async fn assert_halted(node: &standby_node::StandbyNode, says: &str) -> Halt {
    let halt = wait_for(node, |_| false).await.halt.unwrap();
    assert!(halt.to_string().contains(says), "{halt} should say {says}");
    let status = client(node).await.take_snapshot(TakeSnapshotRequest::default()).await.unwrap_err();
    assert_eq!(reason_of(&status), Some(Reason::ReplayHalted), "{status}");
    assert!(status.message().contains(says), "{status}");
    let start = open_catalog_session_request::Kind::Start(SessionStart::default());
    let session = tokio_stream::iter([OpenCatalogSessionRequest { kind: Some(start) }]);
    let status = client(node).await.open_catalog_session(session).await.unwrap().into_inner().message().await.unwrap_err();
    assert_eq!(reason_of(&status), Some(Reason::ReplayHalted), "{status}");
    let mut health = HealthClient::new(channel(node.addr()).await);
    let service = HealthCheckRequest { service: walstorm_proto::service_names::STANDBY.to_owned() };
    let mut watch = health.watch(service).await.unwrap().into_inner();
    while watch.message().await.unwrap().unwrap().status() != ServingStatus::NotServing {}
    halt
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_wal_at_the_primary_halts_replay_after_all_that_is_sound() {
    let wal = Wal::standby("pg15");
    let sound = wal.records[3000].end_lsn;
    let primary = ScriptedPrimary::start(wal, sound).await;
    let damaged = failure(Reason::WalCorrupt, "000000010000000000000008: checksum wrong").into_status();
    primary.change(|s| s.ending = Ending::Error(damaged));
    let node = start(config(&primary)).await;
    let halt = assert_halted(&node, "checksum wrong").await;
    assert!(matches!(halt, Halt::DataLoss { lsn, .. } if lsn == sound), "{halt:?}");
    assert_eq!(node.progress().borrow().replay_lsn, sound);
    assert_eq!(primary.seen().starts.len(), 1, "nobody asks again for WAL that is damaged");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_on_the_way_halts_replay_at_its_record() {
    let mut wal = Wal::standby("pg18");
    let record = &mut wal.records[2000];
    let (at, last) = (record.lsn, record.bytes.len() - 1);
    record.bytes[last] ^= 4;
    let end = wal.end();
    let primary = ScriptedPrimary::start(wal, end).await;
    let node = start(config(&primary)).await;
    let halt = assert_halted(&node, &at.to_string()).await;
    assert!(matches!(halt, Halt::Record { lsn, .. } if lsn == at), "{halt:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_is_missing_is_noticed() {
    let mut wal = Wal::standby("pg13");
    let missing = wal.records.remove(1234);
    let end = wal.end();
    let primary = ScriptedPrimary::start(wal, end).await;
    let node = start(config(&primary)).await;
    let halt = assert_halted(&node, &format!("follows a record at {}", missing.lsn)).await;
    assert!(matches!(halt, Halt::Record { lsn, .. } if lsn == missing.end_lsn), "{halt:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_and_xids_that_cannot_be_halt_replay_at_their_record() {
    for (bad, says) in [
        ((0, running_xacts(104, 100, 99, &[])), "was seen before"),
        ((0, running_xacts(110, 111, 99, &[])), "is not before its next id"),
        ((0, running_xacts(110, 102, 99, &[101])), "not between the oldest and the next"),
        (commit(1 << 20), "too many KnownAssignedXids"),
    ] {
        let wal = Wal::written(&[(0, running_xacts(100, 100, 99, &[])), commit(104), bad, commit(105)]);
        // The writer begins its log with records of its own.
        let [.., sound, bad, _] = &wal.records[..] else { panic!("{wal:?}") };
        let (sound, at, end) = (sound.end_lsn, bad.lsn, wal.end());
        let primary = ScriptedPrimary::start(wal, end).await;
        let node = start(config(&primary)).await;
        let halt = assert_halted(&node, says).await;
        let remedies = ["bring it anew", "raise max_connections or max_prepared_transactions"];
        assert!(remedies.iter().any(|remedy| halt.to_string().contains(remedy)), "{halt}");
        assert!(
            matches!(halt, Halt::Record { lsn, .. } if lsn == at) && halt.to_string().contains(&at.to_string()),
            "{halt:?}"
        );
        assert_eq!(node.progress().borrow().replay_lsn, sound, "all that came before is there");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_transaction_that_nobody_saw_begin_changes_nothing_for_readers() {
    let wal = Wal::written(&[(0, running_xacts(100, 100, 99, &[])), commit(101), commit(50), commit(101)]);
    let end = wal.end();
    let primary = ScriptedPrimary::start(wal, end).await;
    let node = start(config(&primary)).await;
    let taken = snapshot(&mut client(&node).await, end).await;
    assert_eq!((taken.xmin, taken.xmax, taken.xip), (100, 102, vec![100]));
}

#[tokio::test(flavor = "multi_thread")]
async fn another_cluster_at_the_same_address_is_refused() {
    let wal = Wal::standby("pg18");
    let (some, end) = (wal.records[1000].end_lsn, wal.end());
    let primary = ScriptedPrimary::start(wal.clone(), some).await;
    let node = start(config(&primary)).await;
    wait_for(&node, |p| p.replay_lsn == some).await;
    let mut other = wal;
    other.identity.system_id += 1;
    primary.change(|s| (s.wal, s.ending) = (Arc::new(other), Ending::LostAfter(0)));
    primary.open_gate(end);
    let halt = assert_halted(&node, "this standby follows cluster").await;
    assert!(matches!(halt, Halt::OtherCluster { .. }), "{halt:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn removed_wal_halts_and_a_primary_that_is_behind_is_waited_for() {
    let wal = Wal::standby("pg16");
    let end = wal.end();
    let primary = ScriptedPrimary::start(wal, Lsn(0)).await;
    let ahead = failure(Reason::LsnAhead, "the WAL ends before that").into_status();
    primary.change(|s| s.ending = Ending::Error(ahead));
    let node = start(config(&primary)).await;
    primary.wait_seen(|seen| seen.starts.len() > 3).await;
    assert!(node.progress().borrow().halt.is_none());
    node.upstream().wait_for(|u| u.last_error.contains("LSN_AHEAD")).await.unwrap();
    let removed = failure(Reason::LsnRemoved, "the oldest WAL is at 0/9000000").into_status();
    primary.change(|s| s.ending = Ending::Error(removed));
    primary.open_gate(end);
    assert_halted(&node, "has removed the WAL").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_waits_for_a_primary_that_is_not_there_yet() {
    let wal = Wal::standby("pg15");
    let end = wal.end();
    let gone = ScriptedPrimary::start(wal.clone(), end).await;
    let mut config = config(&gone);
    config.primary.endpoint = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    drop(gone);
    let node = start(config).await;
    node.upstream().wait_for(|u| u.last_error.contains("connect")).await.unwrap();
    assert!(!node.upstream().borrow().connected);
    node.shutdown().await.unwrap();
}

/// The service's health, as it changes.
async fn health(node: &standby_node::StandbyNode) -> tonic::Streaming<tonic_health::pb::HealthCheckResponse> {
    let mut health = HealthClient::new(channel(node.addr()).await);
    let service = HealthCheckRequest { service: walstorm_proto::service_names::STANDBY.to_owned() };
    health.watch(service).await.unwrap().into_inner()
}

/// Waits until health says this.
async fn until(watch: &mut tonic::Streaming<tonic_health::pb::HealthCheckResponse>, status: ServingStatus) {
    while watch.message().await.unwrap().unwrap().status() != status {}
}

/// Seconds of a duration.
fn seconds(duration: Option<prost_types::Duration>) -> i64 {
    duration.unwrap().seconds
}

#[tokio::test(flavor = "multi_thread")]
async fn with_its_primary_gone_for_an_hour_a_standby_serves_on_and_says_how_stale_it_is() {
    let wal = Wal::standby("pg16");
    let (half, end) = (wal.records[wal.records.len() / 2].end_lsn, wal.end());
    let primary = ScriptedPrimary::start(wal, half).await;
    let clock = Arc::new(ManualClock::new(SystemTime::UNIX_EPOCH));
    let config = Config { max_primary_silence: Some(Duration::from_secs(600)), ..config(&primary) };
    let node = StandbyNode::start_with(config, Export::Off, Arc::<ManualClock>::clone(&clock), Drain::new()).await.unwrap();
    let mut reader = client(&node).await;
    let mut health = health(&node).await;
    until(&mut health, ServingStatus::Serving).await;
    let before = snapshot(&mut reader, half).await;

    // The primary's machine is gone: its streams end, and there are no others.
    let gone = Status::unavailable("connection refused");
    primary.change(|s| (s.refuse, s.ending) = (Some(gone.clone()), Ending::Error(gone)));
    // The stream that is open sees it at the gate's next move.
    primary.open_gate(half);
    node.upstream().wait_for(|u| !u.connected).await.unwrap();
    clock.advance(Duration::from_secs(600));
    let ask = TakeSnapshotRequest { include_xip: true, ..TakeSnapshotRequest::default() };
    let stale = reader.take_snapshot(ask).await.unwrap().into_inner();
    assert_eq!(seconds(stale.primary_silence), 600);
    let state = reader.get_recovery_state(GetRecoveryStateRequest {}).await.unwrap().into_inner();
    assert_eq!((state.not_serving.as_str(), state.connected), ("", false), "just at the limit");

    clock.advance(Duration::from_secs(3000));
    until(&mut health, ServingStatus::NotServing).await;
    let stale = reader.take_snapshot(ask).await.unwrap().into_inner();
    assert_eq!(seconds(stale.primary_silence), 3600);
    assert!(stale.last_transaction_time.is_some_and(|time| time.seconds > 1_700_000_000), "{stale:?}");
    assert_eq!((stale.xmin, stale.xmax, &stale.xip), (before.xmin, before.xmax, &before.xip), "the same as ever");
    let state = reader.get_recovery_state(GetRecoveryStateRequest {}).await.unwrap().into_inner();
    assert_eq!((seconds(state.primary_silence), state.last_transaction_time), (3600, stale.last_transaction_time));
    let says = ["3600s ago", "max_primary_silence is 600s", "connection refused"];
    assert!(says.iter().all(|part| state.not_serving.contains(part)), "{}", state.not_serving);

    primary.change(|s| (s.refuse, s.ending) = (None, Ending::Open));
    primary.open_gate(end);
    until(&mut health, ServingStatus::Serving).await;
    snapshot(&mut reader, end).await;
    let fresh = reader.take_snapshot(ask).await.unwrap().into_inner();
    assert_eq!((seconds(fresh.primary_silence), fresh.replay_lsn), (0, end.0));
    let state = reader.get_recovery_state(GetRecoveryStateRequest {}).await.unwrap().into_inner();
    assert_eq!((state.not_serving.as_str(), state.last_error.as_str(), state.connected), ("", "", true));
    node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_is_noticed_when_its_time_has_come_though_nothing_happens() {
    let wal = Wal::standby("pg18");
    let end = wal.end();
    let primary = ScriptedPrimary::start(wal, end).await;
    // It says nothing more once everything is sent, and stays connected.
    let node = start(Config { max_primary_silence: Some(Duration::from_millis(20)), ..config(&primary) }).await;
    let mut reader = client(&node).await;
    snapshot(&mut reader, end).await;
    loop {
        let state = reader.get_recovery_state(GetRecoveryStateRequest {}).await.unwrap().into_inner();
        if state.connected && state.not_serving.contains("connected, but silent") {
            break;
        }
        tokio::task::yield_now().await;
    }
    until(&mut health(&node).await, ServingStatus::NotServing).await;
    node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn lag_is_told_by_its_parts_and_replay_by_its_rate() {
    let wal = Wal::standby("pg18");
    let end = wal.end();
    let (records, bytes) = (wal.records.len() as u64, wal.records.iter().map(|r| r.bytes.len() as u64).sum::<u64>());
    let primary = ScriptedPrimary::start(wal, Lsn(0)).await;
    let clock = Arc::new(ManualClock::new(SystemTime::UNIX_EPOCH + Duration::from_secs(1000)));
    primary.change(|s| s.send_time = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(995)));
    let node =
        StandbyNode::start_with(config(&primary), Export::Off, Arc::<ManualClock>::clone(&clock), Drain::new()).await.unwrap();
    let mut reader = client(&node).await;
    let lag = reader.get_recovery_state(GetRecoveryStateRequest {}).await.unwrap().into_inner().lag.unwrap();
    assert_eq!(lag, ReplayLag::default(), "nothing came yet");
    primary.open_gate(end);
    snapshot(&mut reader, end).await;
    wait_for(&node, |p| p.replay_lsn == end && p.lag.in_work_since.is_none()).await;
    let state = reader.get_recovery_state(GetRecoveryStateRequest {}).await.unwrap().into_inner();
    let lag = state.lag.unwrap();
    assert_eq!([lag.transport, lag.queue, lag.replay].map(seconds), [5, 0, 0], "the clock stood still but for the way");
    let rate = state.replay_rate.unwrap();
    assert_eq!((rate.records_per_second, rate.bytes_per_second), (records / 10, bytes / 10));
    clock.advance(Duration::from_secs(60));
    let state = reader.get_recovery_state(GetRecoveryStateRequest {}).await.unwrap().into_inner();
    assert_eq!((state.replay_rate.unwrap(), state.lag.unwrap()), (ReplayRate::default(), lag), "idle");
    node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_is_missing_is_named_with_its_remedy_wherever_somebody_may_look() {
    let wal = Wal::standby("pg18");
    let end = wal.end();
    let primary = ScriptedPrimary::start(wal, end).await;
    let missing = failure(Reason::SlotNotFound, "there is no slot slots/orders").into_status();
    primary.change(|s| s.refuse = Some(missing));
    let node = start(Config { slot: "slots/orders".to_owned(), ..config(&primary) }).await;
    node.upstream().wait_for(|u| !u.last_error.is_empty()).await.unwrap();
    let says = ["SLOT_NOT_FOUND", "slots/orders", "make the slot on the primary"];
    let mut reader = client(&node).await;
    let state = reader.get_recovery_state(GetRecoveryStateRequest {}).await.unwrap().into_inner();
    let status = reader.take_snapshot(TakeSnapshotRequest::default()).await.unwrap_err();
    assert_eq!(reason_of(&status), Some(Reason::NotReady));
    for text in [&state.last_error, &state.not_serving, status.message()] {
        assert!(says.iter().all(|part| text.contains(part)), "{text}");
    }
    // Somebody makes it.
    primary.change(|s| s.refuse = None);
    let mut health = health(&node).await;
    until(&mut health, ServingStatus::Serving).await;
    snapshot(&mut reader, end).await;
    node.shutdown().await.unwrap();
}
