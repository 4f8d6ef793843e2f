//! Readers that hold a snapshot: in replay's way or not, their locks, how many there may be.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pg_types::record::StandbyLock;
use pg_types::{Lsn, Oid, RecordBody, Xid};
use pg_wal::profile::WalProfile;
use pg_wal::record::RawRecord;
use service_kit::Drain;
use service_kit::clock::ManualClock;
use service_kit::status::{Reason, metadata_of, reason_of, retry_delay_of};
use service_kit::telemetry::Export;
use standby_node::{Config, StandbyNode};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use walstorm_proto::standby::v1::hold_snapshot_request::Kind as Hold;
use walstorm_proto::standby::v1::hold_snapshot_response::Kind as Held;
use walstorm_proto::standby::v1::standby_service_client::StandbyServiceClient;
use walstorm_proto::standby::v1::{
    CheckVisibility, GetRecoveryStateRequest, HoldSnapshotRequest, HoldSnapshotResponse, HoldStart, LockRelation,
    TakeSnapshotRequest,
};

use crate::support::scripted_primary::ScriptedPrimary;
use crate::support::{Wal, client, commit, config, running_xacts, snapshot, start, wait_for};
use crate::{lsn, number, real_stops};

/// A reader that holds a snapshot.
pub(crate) struct Reader {
    pub(crate) requests: mpsc::Sender<HoldSnapshotRequest>,
    responses: Streaming<HoldSnapshotResponse>,
}

impl Reader {
    /// Starts in `database`; gives the xmin, too.
    pub(crate) async fn start(client: &mut StandbyServiceClient<Channel>, database: u32) -> Result<(Self, u32), Status> {
        let (requests, receiver) = mpsc::channel(crate::sessions::MUTE_QUESTIONS);
        let start = HoldStart { snapshot: Some(TakeSnapshotRequest::default()), database };
        requests.send(HoldSnapshotRequest { kind: Some(Hold::Start(start)) }).await.unwrap();
        let responses = client.hold_snapshot(ReceiverStream::new(receiver)).await?.into_inner();
        let mut reader = Self { requests, responses };
        let Some(Held::Snapshot(snapshot)) = reader.answer().await? else { panic!("no snapshot") };
        Ok((reader, snapshot.xmin))
    }

    /// The next answer.
    pub(crate) async fn answer(&mut self) -> Result<Option<Held>, Status> {
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
async fn time_that_replay_waits_for_a_reader_is_replays_and_then_the_queues() {
    let wal = Wal::standby("pg18");
    let stops = real_stops("pg18", "snapshots.jsonl.zst");
    let first_ready = lsn(&stops[0]);
    let mut conflicts = wal.records.iter().map(|r| first_conflict(&wal, r.lsn));
    let (conflict, database, _) = conflicts.find(|(.., horizon)| *horizon >= number(&stops[0], "xmin")).unwrap();
    let at = wal.records.iter().position(|r| r.lsn == conflict).unwrap();
    let (with_conflict, behind) = (wal.records[at].end_lsn, wal.records[at + 10].end_lsn);
    let primary = ScriptedPrimary::start(wal, first_ready).await;
    let sent = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    let clock = Arc::new(ManualClock::new(sent + Duration::from_secs(3)));
    primary.change(|s| s.send_time = Some(sent));
    let settings = Config { max_standby_streaming_delay_ms: -1, ..config(&primary) };
    let node = StandbyNode::start_with(settings, Export::Off, Arc::<ManualClock>::clone(&clock), Drain::new()).await.unwrap();
    let mut client = client(&node).await;
    snapshot(&mut client, first_ready).await;
    let (reader, _) = Reader::start(&mut client, database).await.unwrap();
    // The batch with the conflict, and when replay waits at it, one behind it.
    for (gate, waits) in [(with_conflict, 1), (behind, 1)] {
        primary.open_gate(gate);
        node.upstream().wait_for(|upstream| upstream.received_lsn == gate).await.unwrap();
        wait_for(&node, |p| p.waits_for_readers == waits).await;
    }
    clock.advance(Duration::from_secs(7));
    let parts = async |client: &mut StandbyServiceClient<Channel>| {
        let state = client.get_recovery_state(GetRecoveryStateRequest {}).await.unwrap().into_inner();
        let lag = state.lag.unwrap();
        [lag.transport, lag.queue, lag.replay].map(|part| part.unwrap().seconds)
    };
    assert_eq!(parts(&mut client).await, [3, 0, 7], "the batch in work takes so long already");
    drop(reader);
    wait_for(&node, |p| p.replay_lsn == behind && p.lag.in_work_since.is_none()).await;
    assert_eq!(parts(&mut client).await, [3, 7, 0], "the one behind it has waited in the queue");
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

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_whose_table_is_locked_exclusively_is_cancelled_and_no_other_may_lock_it_until_the_end() {
    const TABLE: u32 = 16_384;
    let locks = RecordBody::StandbyLocks(vec![StandbyLock { xid: Xid(100), db: Oid(5), rel: Oid(TABLE) }]);
    let wal = Wal::written(&[(0, running_xacts(100, 100, 99, &[])), (101, RecordBody::XlogOther), (100, locks), commit(100)]);
    let [.., ready, locked, end] = [0, 1, 2].map(|n| wal.records[wal.records.len() - 3 + n].end_lsn);
    let primary = ScriptedPrimary::start(wal, ready).await;
    let node = start(Config { max_standby_streaming_delay_ms: 0, ..config(&primary) }).await;
    let mut client = client(&node).await;
    snapshot(&mut client, ready).await;
    let lock = async |reader: &mut Reader, relation| {
        let request = HoldSnapshotRequest { kind: Some(Hold::Lock(LockRelation { relation, shared: false })) };
        reader.requests.send(request).await.unwrap();
        reader.answer().await.map(|answer| matches!(answer, Some(Held::Lock(result)) if result.granted))
    };
    let (mut reads_it, _) = Reader::start(&mut client, 5).await.unwrap();
    let (mut reads_another, _) = Reader::start(&mut client, 5).await.unwrap();
    let (mut elsewhere, _) = Reader::start(&mut client, 6).await.unwrap();
    assert!(lock(&mut reads_it, TABLE).await.unwrap());
    assert!(lock(&mut reads_another, TABLE + 1).await.unwrap());
    assert!(lock(&mut elsewhere, TABLE).await.unwrap(), "the same number in another database");
    primary.open_gate(locked);
    let status = reads_it.answer().await.unwrap_err();
    assert_eq!(reason_of(&status), Some(Reason::RecoveryConflict), "{status}");
    assert_eq!(metadata_of(&status, "conflict").as_deref(), Some("lock"));
    snapshot(&mut client, locked).await;
    assert!(!lock(&mut reads_another, TABLE).await.unwrap(), "replay has it");
    assert!(lock(&mut elsewhere, TABLE).await.unwrap());
    primary.open_gate(end);
    snapshot(&mut client, end).await;
    assert!(lock(&mut reads_another, TABLE).await.unwrap(), "its holder has ended");
    node.shutdown().await.unwrap();
}
