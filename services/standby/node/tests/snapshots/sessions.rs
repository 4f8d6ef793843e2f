//! Sessions that read catalogs: their snapshots and caches, and a thousand of them at once.

use std::time::Duration;

use pg_types::record::CommitRecord;
use pg_types::{InvalidationMessage, Lsn, Oid, RecordBody};
use service_kit::status::{Reason, reason_of};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use walstorm_proto::standby::v1::cache_lookup::Key;
use walstorm_proto::standby::v1::hold_snapshot_request::Kind as Hold;
use walstorm_proto::standby::v1::hold_snapshot_response::Kind as Held;
use walstorm_proto::standby::v1::open_catalog_session_request::Kind as Act;
use walstorm_proto::standby::v1::standby_service_client::StandbyServiceClient;
use walstorm_proto::standby::v1::{
    CacheLookup, CatalogScan, CatalogSnapshotDropReason, CatalogSnapshotRule, CheckVisibility, GetRecoveryStateRequest,
    HoldSnapshotRequest, OpenCatalogSessionRequest, OpenCatalogSessionResponse, SessionConnect, SessionSnapshot, SessionStart,
    SyscacheKey,
};

use crate::held::Reader;
use crate::support::scripted_primary::ScriptedPrimary;
use crate::support::{Wal, client, commit, config, running_xacts, snapshot, start};
use crate::{lsn, number, real_stops};

/// Commands of a session that reads no answers: they come to more than HTTP/2 lets wait for it.
const MUTE_COMMANDS: usize = 100_000;

/// Questions of 10,000 xids of a reader that reads no answers: 4 MB.
pub(crate) const MUTE_QUESTIONS: usize = 400;

/// A session's two directions.
type Session = (mpsc::Sender<OpenCatalogSessionRequest>, Streaming<OpenCatalogSessionResponse>);

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
        sessions.push(open_session(&mut client).await.unwrap());
    }
    let Err(status) = open_session(&mut client).await else { panic!("a session too many") };
    assert_eq!((reason_of(&status), status.code()), (Some(Reason::StreamLimit), Code::ResourceExhausted), "{status}");
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

/// Opens a session.
async fn open_session(client: &mut StandbyServiceClient<Channel>) -> Result<Session, Status> {
    let (requests, receiver) = mpsc::channel(64);
    requests.send(OpenCatalogSessionRequest { kind: Some(Act::Start(SessionStart::default())) }).await.unwrap();
    let mut responses = client.open_catalog_session(ReceiverStream::new(receiver)).await?.into_inner();
    responses.message().await?;
    Ok((requests, responses))
}

/// HTTP/2 bounds what waits for a client: a window for bytes, and for small messages a budget whose end is that of the connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_asks_and_asks_and_reads_nothing_is_bounded_and_slows_nobody() {
    let wal = Wal::standby("pg16");
    let stops = real_stops("pg16", "snapshots.jsonl.zst");
    let (first, last) = (lsn(&stops[0]), lsn(&stops[stops.len() - 1]));
    let primary = ScriptedPrimary::start(wal, first).await;
    let node = start(config(&primary)).await;
    let (mut mute, mut client) = (client(&node).await, client(&node).await);
    snapshot(&mut client, first).await;
    let (requests, mut answers) = open_session(&mut mute).await.unwrap();
    let (taken, mut taken_so_far) = tokio::sync::watch::channel(0);
    let asking = tokio::spawn(async move {
        let command = OpenCatalogSessionRequest { kind: Some(Act::Snapshot(SessionSnapshot {})) };
        while *taken.borrow() < MUTE_COMMANDS && requests.send(command).await.is_ok() {
            taken.send_modify(|taken| *taken += 1);
        }
        // Its side stays open.
        std::future::pending::<()>().await;
    });
    // It comes to a stand; a machine that is busy elsewhere may look like that, but not for so few.
    let taken = loop {
        let moved = tokio::time::timeout(Duration::from_millis(500), taken_so_far.changed()).await;
        let taken = *taken_so_far.borrow_and_update();
        if taken > 1000 && !matches!(moved, Ok(Ok(()))) {
            break taken;
        }
    };
    assert!(taken < MUTE_COMMANDS, "{taken} commands were taken");
    primary.open_gate(last);
    assert_eq!(Lsn(snapshot(&mut client, last).await.replay_lsn), last);
    let (other, mut others) = open_session(&mut client).await.unwrap();
    assert_eq!(act(&other, &mut others, Act::Snapshot(SessionSnapshot {})).await.replay_lsn, last.0);
    // What it reads at last is in order, to the end of its connection or of its commands.
    let (mut read, mut replay_lsn) = (0, 0);
    while read < MUTE_COMMANDS
        && let Ok(Some(answer)) = answers.message().await
    {
        assert!(answer.replay_lsn >= replay_lsn, "{read}: {answer:?}");
        (read, replay_lsn) = (read + 1, answer.replay_lsn);
    }
    assert!(read > 0);
    asking.abort();
    node.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_never_start_end_by_themselves_and_keep_nobody_out() {
    let wal = Wal::standby("pg16");
    let first_ready = lsn(&real_stops("pg16", "snapshots.jsonl.zst")[0]);
    let primary = ScriptedPrimary::start(wal, first_ready).await;
    let mut config = config(&primary);
    config.settings.max_connections = 2;
    config.snapshot_wait_max = Duration::from_secs(2);
    let node = start(config).await;
    let mut client = client(&node).await;
    snapshot(&mut client, first_ready).await;
    // More than there is room for of those that start.
    let (mut silent, mut held, mut sessions) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..20 {
        let (requests, receiver) = mpsc::channel(1);
        held.push(client.hold_snapshot(ReceiverStream::new(receiver)).await.unwrap().into_inner());
        silent.push(requests);
        let (requests, receiver) = mpsc::channel::<OpenCatalogSessionRequest>(1);
        sessions.push((client.open_catalog_session(ReceiverStream::new(receiver)).await.unwrap().into_inner(), requests));
    }
    assert!(open_session(&mut client).await.is_ok() && Reader::start(&mut client, 1).await.is_ok());
    for (mut held, (mut session, _silent)) in held.into_iter().zip(sessions) {
        let ends = [held.message().await.unwrap_err(), session.message().await.unwrap_err()];
        assert_eq!(ends.map(|status| reason_of(&status)), [Some(Reason::FeedbackTimeout); 2]);
    }
    drop(silent);
    // One that is silent when the node stops is told so.
    let (_silent, receiver) = mpsc::channel::<HoldSnapshotRequest>(1);
    let mut held = client.hold_snapshot(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    let stopping = tokio::spawn(node.shutdown());
    assert_eq!(reason_of(&held.message().await.unwrap_err()), Some(Reason::Draining));
    stopping.await.unwrap().unwrap();
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
async fn what_a_session_has_cached_is_read_once_until_a_message_says_otherwise() {
    let (cache_id, hash) = (0, 7);
    let row = Act::Lookup(CacheLookup { key: Some(Key::Syscache(SyscacheKey { cache_id, hash })) });
    let relation = Act::Lookup(CacheLookup { key: Some(Key::Relation(16_384)) });
    let message = InvalidationMessage::Catcache { cache_id: 0, db: Oid(5), hash };
    let change = CommitRecord { messages: vec![message], ..CommitRecord::default() };
    let wal = Wal::written(&[(0, running_xacts(100, 100, 99, &[])), commit(100), (101, RecordBody::Commit(Box::new(change)))]);
    let [before, end] = [1, 0].map(|back| wal.records[wal.records.len() - 1 - back].end_lsn);
    let primary = ScriptedPrimary::start(wal, before).await;
    let node = start(config(&primary)).await;
    let mut client = client(&node).await;
    snapshot(&mut client, before).await;
    let (requests, receiver) = mpsc::channel(4);
    requests.send(OpenCatalogSessionRequest { kind: Some(Act::Start(SessionStart::default())) }).await.unwrap();
    let mut responses = client.open_catalog_session(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    responses.message().await.unwrap().unwrap();
    act(&requests, &mut responses, Act::Connect(SessionConnect { database: 5 })).await;
    for (what, hit, snapshots, entries) in [(&row, false, 1, 1), (&relation, false, 0, 2), (&row, true, 0, 2)] {
        let got = act(&requests, &mut responses, *what).await;
        assert_eq!((got.hit, got.snapshots, got.entries, Lsn(got.replay_lsn)), (hit, snapshots, entries, before), "{what:?}");
    }
    primary.open_gate(end);
    snapshot(&mut client, end).await;
    let scanned = act(&requests, &mut responses, Act::Scan(CatalogScan { relation: 1259, scans: 1 })).await;
    assert_eq!((scanned.messages, scanned.entries), (1, 1), "the row is dropped, the relation stays");
    for (what, hit, read_at) in [(&relation, true, before), (&row, false, end), (&row, true, end)] {
        let got = act(&requests, &mut responses, *what).await;
        assert_eq!((got.hit, Lsn(got.replay_lsn)), (hit, read_at), "{what:?}");
    }
    for cache_id in [-1, 127, 128] {
        let unknown = Act::Lookup(CacheLookup { key: Some(Key::Syscache(SyscacheKey { cache_id, hash })) });
        let (requests, receiver) = mpsc::channel(4);
        for kind in [Act::Start(SessionStart::default()), unknown] {
            requests.send(OpenCatalogSessionRequest { kind: Some(kind) }).await.unwrap();
        }
        let mut responses = client.open_catalog_session(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        responses.message().await.unwrap().unwrap();
        let status = responses.message().await.unwrap_err();
        assert_eq!(reason_of(&status), Some(Reason::RequestInvalid), "{cache_id}");
    }
}
