//! Streams that break, lie or end for good, and what the primary hears about it.
#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod support;

use std::sync::Arc;

use pg_types::Lsn;
use service_kit::status::{Reason, failure, reason_of};
use standby_node::Halt;
use support::scripted_primary::{Ending, ScriptedPrimary};
use support::{Wal, channel, client, config, snapshot, start, wait_for};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use walstorm_proto::standby::v1::{OpenCatalogSessionRequest, SessionStart, TakeSnapshotRequest, open_catalog_session_request};

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
    assert!(node.upstream().borrow().last_error.contains("LSN_AHEAD"), "{:?}", node.upstream().borrow());
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
