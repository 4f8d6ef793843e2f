//! What readers get: the real standby's snapshots at every position, their own writes, and a refusal before there is a snapshot.
#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod support;

use std::time::Duration;

use pg_types::{Lsn, RecordBody};
use pg_wal::profile::WalProfile;
use pg_wal::record::RawRecord;
use serde_json::Value;
use service_kit::status::{Reason, metadata_of, reason_of, retry_delay_of};
use standby_core::StandbyState;
use standby_node::Config;
use support::scripted_primary::ScriptedPrimary;
use support::{Wal, channel, client, config, snapshot, standby_fixture, start, wait_for};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use walstorm_proto::standby::v1::hold_snapshot_request::Kind as Hold;
use walstorm_proto::standby::v1::hold_snapshot_response::Kind as Held;
use walstorm_proto::standby::v1::open_catalog_session_request::Kind as Act;
use walstorm_proto::standby::v1::standby_service_client::StandbyServiceClient;
use walstorm_proto::standby::v1::{
    CatalogScan, CatalogSnapshotDropReason, CatalogSnapshotRule, CheckVisibility, GetRecoveryStateRequest, HoldSnapshotRequest,
    HoldSnapshotResponse, HoldStart, LockRelation, OpenCatalogSessionRequest, OpenCatalogSessionResponse, RecoveryState,
    SessionConnect, SessionSnapshot, SessionStart, TakeSnapshotRequest,
};

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

/// A reader that holds a snapshot.
struct Reader {
    requests: mpsc::Sender<HoldSnapshotRequest>,
    responses: Streaming<HoldSnapshotResponse>,
}

impl Reader {
    /// Starts in `database`; gives the xmin, too.
    async fn start(client: &mut StandbyServiceClient<Channel>, database: u32) -> Result<(Self, u32), Status> {
        let (requests, receiver) = mpsc::channel(MUTE_QUESTIONS);
        let start = HoldStart { snapshot: Some(TakeSnapshotRequest::default()), database };
        requests.send(HoldSnapshotRequest { kind: Some(Hold::Start(start)) }).await.unwrap();
        let responses = client.hold_snapshot(ReceiverStream::new(receiver)).await?.into_inner();
        let mut reader = Self { requests, responses };
        let Some(Held::Snapshot(snapshot)) = reader.answer().await? else { panic!("no snapshot") };
        Ok((reader, snapshot.xmin))
    }

    /// The next answer.
    async fn answer(&mut self) -> Result<Option<Held>, Status> {
        Ok(self.responses.message().await?.and_then(|response| response.kind))
    }
}

/// Database and horizon of the first record that conflicts with an old snapshot at or after `lsn`.
fn first_conflict(wal: &Wal, lsn: Lsn) -> (Lsn, u32, u32) {
    let profile = WalProfile::of(wal.identity.version);
    let conflict = wal.records.iter().filter(|r| r.lsn >= lsn).find_map(|r| {
        match RawRecord::new(r.lsn, r.end_lsn, &r.bytes).unwrap().decode(profile).unwrap().body {
            RecordBody::Prune(prune) if prune.conflict_horizon.is_normal() && prune.target.db.is_valid() => {
                Some((r.lsn, prune.target.db.0, prune.conflict_horizon.numeric()))
            }
            _ => None,
        }
    });
    conflict.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_is_in_replays_way_is_cancelled_and_one_in_another_database_is_not() {
    let wal = Wal::standby("pg16");
    let first_ready = lsn(&real_stops("pg16", "snapshots.jsonl.zst")[0]);
    let (_, database, _) = first_conflict(&wal, wal.records[wal.records.len() / 2].lsn);
    let end = wal.end();
    let primary = ScriptedPrimary::start(wal, first_ready).await;
    let node = start(Config { max_standby_streaming_delay_ms: 0, ..config(&primary) }).await;
    let mut client = client(&node).await;
    snapshot(&mut client, first_ready).await;
    let (mut reader, xmin) = Reader::start(&mut client, database).await.unwrap();
    let (mut other, _) = Reader::start(&mut client, database + 1).await.unwrap();
    primary.open_gate(end);
    let status = reader.answer().await.unwrap_err();
    assert_eq!(reason_of(&status), Some(Reason::RecoveryConflict), "{status}");
    assert_eq!(metadata_of(&status, "conflict").as_deref(), Some("snapshot"));
    assert!(snapshot(&mut client, end).await.xmin > xmin);
    let lock = LockRelation { relation: 16_384, shared: false };
    other.requests.send(HoldSnapshotRequest { kind: Some(Hold::Lock(lock)) }).await.unwrap();
    assert!(matches!(other.answer().await, Ok(Some(Held::Lock(result))) if result.granted), "it still holds its snapshot");
    node.shutdown().await.unwrap();
    assert_eq!(reason_of(&other.answer().await.unwrap_err()), Some(Reason::Draining));
}

#[tokio::test(flavor = "multi_thread")]
async fn replay_waits_for_a_reader_as_long_as_it_may_and_goes_on_when_it_leaves() {
    let wal = Wal::standby("pg18");
    let first_ready = lsn(&real_stops("pg18", "snapshots.jsonl.zst")[0]);
    let (_, database, _) = first_conflict(&wal, wal.records[wal.records.len() / 2].lsn);
    let end = wal.end();
    let primary = ScriptedPrimary::start(wal, first_ready).await;
    let settings = Config { max_standby_streaming_delay_ms: -1, hot_standby_feedback: true, ..config(&primary) };
    let node = start(settings).await;
    let mut client = client(&node).await;
    snapshot(&mut client, first_ready).await;
    let (reader, xmin) = Reader::start(&mut client, database).await.unwrap();
    primary.open_gate(end);
    let waiting = wait_for(&node, |p| p.waits_for_readers > 0).await;
    assert!(waiting.replay_lsn < end && waiting.feedback_xmin.numeric() == xmin, "{waiting:?}");
    drop(reader);
    assert_eq!(Lsn(snapshot(&mut client, end).await.replay_lsn), end);
    let after = wait_for(&node, |p| p.replay_lsn == end).await;
    assert!(after.waits_for_readers == 0 && after.feedback_xmin.numeric() > xmin, "{after:?}");
    // A reader that never leaves does not keep the node from stopping.
    let _held = Reader::start(&mut client, database).await.unwrap();
    node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_and_sessions_are_as_many_as_the_settings_have_room_for() {
    let wal = Wal::standby("pg16");
    let first_ready = lsn(&real_stops("pg16", "snapshots.jsonl.zst")[0]);
    let primary = ScriptedPrimary::start(wal, first_ready).await;
    let mut config = config(&primary);
    config.settings.max_connections = 2;
    (config.settings.autovacuum_max_workers, config.settings.max_worker_processes, config.settings.max_wal_senders) = (0, 0, 0);
    let node = start(config).await;
    let mut client = client(&node).await;
    snapshot(&mut client, first_ready).await;
    // Two connections and the autovacuum launcher.
    let mut readers = Vec::new();
    for _ in 0..3 {
        readers.push(Reader::start(&mut client, 5).await.unwrap());
    }
    let Err(status) = Reader::start(&mut client, 5).await else { panic!("a reader too many") };
    assert_eq!(reason_of(&status), Some(Reason::StreamLimit), "{status}");
    assert!(retry_delay_of(&status).is_some());
    readers.pop();
    while Reader::start(&mut client, 5).await.is_err() {
        tokio::task::yield_now().await;
    }
    let (requests, receiver) = mpsc::channel(4);
    requests.send(HoldSnapshotRequest { kind: Some(Hold::Lock(LockRelation::default())) }).await.unwrap();
    let mut no_start = client.hold_snapshot(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    assert_eq!(reason_of(&no_start.message().await.unwrap_err()), Some(Reason::RequestInvalid));
}

/// Questions of 10,000 xids of a reader that reads no answers: 4 MB.
const MUTE_QUESTIONS: usize = 400;

/// Readers that hold snapshots, and as many sessions.
const EACH: usize = 500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_sessions_on_one_connection_are_served_while_replay_goes_on() {
    let wal = Wal::standby("pg16");
    let stops = real_stops("pg16", "snapshots.jsonl.zst");
    let (first, middle, last) = (&stops[0], &stops[stops.len() / 2], &stops[stops.len() - 1]);
    let primary = ScriptedPrimary::start(wal, lsn(first)).await;
    let mut config = config(&primary);
    // Connections and the autovacuum launcher.
    config.settings.max_connections = EACH as u32 - 1;
    (config.settings.autovacuum_max_workers, config.settings.max_worker_processes, config.settings.max_wal_senders) = (0, 0, 0);
    let node = start(config).await;
    let mut client = client(&node).await;
    snapshot(&mut client, lsn(first)).await;
    let (mut readers, mut sessions) = (Vec::new(), Vec::new());
    for _ in 0..EACH {
        // Nothing is removed in this database, so nobody is in replay's way.
        let (reader, xmin) = Reader::start(&mut client, 1).await.unwrap();
        assert_eq!(xmin, number(first, "xmin"));
        readers.push(reader);
        let (requests, receiver) = mpsc::channel(64);
        requests.send(OpenCatalogSessionRequest { kind: Some(Act::Start(SessionStart::default())) }).await.unwrap();
        let mut responses = client.open_catalog_session(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        responses.message().await.unwrap().unwrap();
        sessions.push((requests, responses));
    }
    let Err(status) = Reader::start(&mut client, 1).await else { panic!("a reader too many") };
    assert_eq!(reason_of(&status), Some(Reason::StreamLimit), "{status}");

    // One asks and asks and reads nothing: what it is answered, a byte a xid, is more than HTTP/2 lets wait for it, 2 MiB, and a bit.
    let mut mute = readers.pop().unwrap();
    let asked = HoldSnapshotRequest { kind: Some(Hold::Check(CheckVisibility { xids: vec![1; 10_000] })) };
    for _ in 0..MUTE_QUESTIONS {
        mute.requests.try_send(asked.clone()).unwrap();
    }
    for stop in [middle, last] {
        primary.open_gate(lsn(stop));
        let ours = snapshot(&mut client, lsn(stop)).await;
        assert_eq!((ours.xmin, ours.xmax), (number(stop, "xmin"), number(stop, "xmax")));
        for (requests, responses) in &mut sessions {
            let taken = act(requests, responses, Act::Snapshot(SessionSnapshot {})).await;
            assert_eq!((Lsn(taken.replay_lsn), taken.snapshots), (lsn(stop), 1));
        }
    }
    // What is held stands still: what ran at the first stop runs for every reader, and what has ended since, too.
    let valid = first["valid"].as_array().unwrap().iter().map(|xid| u32::try_from(xid.as_u64().unwrap()).unwrap());
    let xids: Vec<u32> = valid.filter(|&xid| xid < number(first, "xmax")).chain([number(first, "xmax")]).collect();
    for reader in &mut readers {
        let check = CheckVisibility { xids: xids.clone() };
        reader.requests.send(HoldSnapshotRequest { kind: Some(Hold::Check(check)) }).await.unwrap();
        let Some(Held::Visibility(answer)) = reader.answer().await.unwrap() else { panic!("no answer") };
        assert_eq!(answer.running, vec![true; xids.len()], "{xids:?}");
    }
    // It finds all its answers when it reads at last.
    for _ in 0..MUTE_QUESTIONS {
        assert!(matches!(mute.answer().await, Ok(Some(Held::Visibility(answer))) if answer.running.len() == 10_000));
    }
    drop((readers, sessions, mute));
    while Reader::start(&mut client, 1).await.is_err() {
        tokio::task::yield_now().await;
    }
    node.shutdown().await.unwrap();
}

/// Sends what a session does and gives the answer.
async fn act(
    requests: &mpsc::Sender<OpenCatalogSessionRequest>,
    responses: &mut Streaming<OpenCatalogSessionResponse>,
    kind: Act,
) -> OpenCatalogSessionResponse {
    requests.send(OpenCatalogSessionRequest { kind: Some(kind) }).await.unwrap();
    responses.message().await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_says_of_each_scan_whether_it_took_a_snapshot_and_why() {
    use CatalogSnapshotDropReason as Why;
    let wal = Wal::standby("pg15");
    let end = wal.end();
    let primary = ScriptedPrimary::start(wal, end).await;
    let node = start(config(&primary)).await;
    let mut client = client(&node).await;
    snapshot(&mut client, end).await;
    for (rule, total) in [
        (CatalogSnapshotRule::Unspecified, 2),
        (CatalogSnapshotRule::Today, 2),
        (CatalogSnapshotRule::Mail2013, 2),
        (CatalogSnapshotRule::KeptAtConnect, 1),
        (CatalogSnapshotRule::AlwaysNew, 6),
    ] {
        let (requests, receiver) = mpsc::channel(4);
        let start = SessionStart { rule: rule.into(), busy: false };
        requests.send(OpenCatalogSessionRequest { kind: Some(Act::Start(start)) }).await.unwrap();
        let mut responses = client.open_catalog_session(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        assert_eq!(responses.message().await.unwrap(), Some(OpenCatalogSessionResponse::default()));
        let scan = |relation, scans| Act::Scan(CatalogScan { relation, scans });
        // pg_authid, pg_db_role_setting four times, pg_class.
        let first = act(&requests, &mut responses, scan(1260, 0)).await;
        let always_new = rule == CatalogSnapshotRule::AlwaysNew;
        assert_eq!((first.snapshots, first.reason(), Lsn(first.replay_lsn)), (1, Why::First, end));
        act(&requests, &mut responses, Act::Connect(SessionConnect { database: 5 })).await;
        let settings = act(&requests, &mut responses, scan(2964, 4)).await;
        let why = match rule {
            CatalogSnapshotRule::Unspecified | CatalogSnapshotRule::Today => Why::Connected,
            CatalogSnapshotRule::Mail2013 => Why::NoMessages,
            CatalogSnapshotRule::KeptAtConnect => Why::Unspecified,
            CatalogSnapshotRule::AlwaysNew => Why::AlwaysNew,
        };
        // Under the rule that always takes a new one, the drop at connect came first.
        let why = if always_new { Why::Connected } else { why };
        assert_eq!(settings.reason(), why, "{rule:?}");
        let last = act(&requests, &mut responses, scan(1259, 1)).await;
        assert_eq!((last.snapshots, last.snapshots_total), (u32::from(always_new), total), "{rule:?}");
        let taken = act(&requests, &mut responses, Act::Snapshot(SessionSnapshot {})).await;
        assert_eq!((taken.snapshots, taken.snapshots_total), (1, total + 1));
        // Nothing completed since the last one.
        assert_eq!((taken.reused, taken.slots_visited), (true, 0));
        requests.send(OpenCatalogSessionRequest { kind: Some(scan(1259, 1001)) }).await.unwrap();
        assert_eq!(reason_of(&responses.message().await.unwrap_err()), Some(Reason::RequestInvalid));
    }
    let state = client.get_recovery_state(GetRecoveryStateRequest {}).await.unwrap().into_inner();
    // Slots of 16 bytes, and a chunk more at each end.
    assert!((1..=u64::from(state.array_size) * 16 + (2 << 15)).contains(&state.xids_bytes), "{}", state.xids_bytes);
    let cpu = state.cpu_time.unwrap();
    let [serving, snapshots] = [cpu.serving, cpu.snapshots].map(|time| Duration::try_from(time.unwrap()).unwrap());
    assert!(Duration::ZERO < snapshots && snapshots <= serving);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_has_bounds_for_locks_and_for_what_it_asks_at_once() {
    let wal = Wal::standby("pg16");
    let first_ready = lsn(&real_stops("pg16", "snapshots.jsonl.zst")[0]);
    let primary = ScriptedPrimary::start(wal, first_ready).await;
    let node = start(config(&primary)).await;
    let mut client = client(&node).await;
    snapshot(&mut client, first_ready).await;
    let (mut reader, xmin) = Reader::start(&mut client, 5).await.unwrap();
    let ask = async |reader: &mut Reader, kind| {
        reader.requests.send(HoldSnapshotRequest { kind: Some(kind) }).await.unwrap();
        reader.answer().await
    };
    let check = |xids| Hold::Check(CheckVisibility { xids });
    let Ok(Some(Held::Visibility(result))) = ask(&mut reader, check(vec![xmin - 1, u32::MAX / 2])).await else { panic!() };
    assert_eq!(
        (result.running, result.lookups),
        (vec![false, true], 0),
        "what is older has ended, what is to come has not begun"
    );
    for relation in 0..1024 {
        let lock = ask(&mut reader, Hold::Lock(LockRelation { relation, shared: false })).await;
        assert!(matches!(lock, Ok(Some(Held::Lock(result))) if result.granted), "{relation}");
    }
    let status = ask(&mut reader, Hold::Lock(LockRelation { relation: 1024, shared: false })).await.unwrap_err();
    assert_eq!((status.code(), reason_of(&status)), (tonic::Code::ResourceExhausted, Some(Reason::LockLimit)), "{status}");
    assert!(status.message().contains("1024 relations"), "{status}");
    let (mut reader, _) = Reader::start(&mut client, 5).await.unwrap();
    let status = ask(&mut reader, check(vec![xmin; 10_001])).await.unwrap_err();
    assert_eq!(reason_of(&status), Some(Reason::RequestInvalid), "{status}");
    node.shutdown().await.unwrap();
}
