//! Logical slots: CreateSlot waits until WAL can be decoded from somewhere, or says for which transactions it waits.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pg_types::record::{CommitRecord, HeapInsert, RunningXactsRecord};
use pg_types::{Lsn, Oid, RecordBody, RelFileLocator, Tid, Timestamp, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use primary_node::PrimaryConfig;
use primary_node::config::ClockMode;
use service_kit::status::{Reason, reason_of};
use tonic::Code;
use tonic::transport::Channel;
use tonic_types::StatusExt;
use walstorm_proto::admin::v1 as pb;
use walstorm_proto::admin::v1::admin_service_client::AdminServiceClient;

use crate::support::program::{Program, clean, primary};
use crate::support::{self, Node, config, fixture, from_slot, millis, records};

/// A scenario that writes a little, and lists what runs once an hour.
const QUIET: &str = r#"
name = "quiet"
story = "A server on which little happens."
seed = 1

[server]
running_xacts_every = "1h"
checkpoint_every = "1h"

[[tables]]
name = "t_1"
columns = ["id int"]

[[actors]]
name = "writer"
transactions = 100000
every = "20ms"
steps = [{ insert = { table = "t_1" } }]
"#;

/// A log that a test writes while it is served.
struct Log {
    /// Its writer.
    writer: WalWriter,
}

impl Log {
    /// Begins one.
    fn create(dir: &Path) -> Self {
        let mut this = Self { writer: WalWriter::create(dir, WriterConfig::new(9)).unwrap() };
        // A directory without a whole record is none.
        this.insert(690);
        this
    }

    /// Appends a record.
    fn append(&mut self, xid: u32, body: &RecordBody) -> Lsn {
        self.writer.append(Xid(xid), Xid::INVALID, 0, body).unwrap().0
    }

    /// The first record of a transaction.
    fn insert(&mut self, xid: u32) -> Lsn {
        let target = RelFileLocator { spc: Oid::DEFAULT_TABLESPACE, db: Oid(5), rel: 16_400 };
        let tid = Tid { block: 0, offset: 1 };
        self.append(xid, &RecordBody::Insert(HeapInsert { target, tid, tuple_len: 24, ..HeapInsert::default() }))
    }

    /// Its end.
    fn commit(&mut self, xid: u32) -> Lsn {
        let commit = CommitRecord { time: Timestamp(i64::from(xid) * 1_000_000), ..CommitRecord::default() };
        self.append(xid, &RecordBody::Commit(Box::new(commit)))
    }

    /// A list of what runs; the start of the record.
    fn list(&mut self, next: u32, xids: &[u32]) -> Lsn {
        let list = RunningXactsRecord {
            next_xid: Xid(next),
            oldest_running_xid: Xid(xids.iter().copied().min().unwrap_or(next)),
            latest_completed_xid: Xid(next - 1),
            subxid_overflow: false,
            xids: xids.iter().copied().map(Xid).collect(),
            subxids: Vec::new(),
        };
        self.append(0, &RecordBody::RunningXacts(Box::new(list)))
    }

    /// Makes what was appended visible.
    fn flush(&mut self) {
        self.writer.flush().unwrap();
    }
}

/// A configuration that follows `wal`.
fn following(wal: &Path, data: &Path) -> PrimaryConfig {
    let mut config = config(wal, data);
    config.source.follow = true;
    config.source.follow_interval = Duration::from_millis(5);
    config
}

/// A request for a logical slot.
fn logical(slot_id: &str, wait_ms: u64) -> pb::CreateSlotRequest {
    let kind = pb::SlotKind::Logical.into();
    pb::CreateSlotRequest { slot_id: slot_id.to_owned(), kind, wait_timeout: millis(wait_ms), ..Default::default() }
}

/// Makes a slot.
async fn create(node: &Node, request: pb::CreateSlotRequest) -> pb::Slot {
    node.admin().create_slot(request).await.unwrap().into_inner().slot.unwrap()
}

/// Waits until the slot is as wanted.
async fn wait(node: &Node, name: &str, wanted: impl Fn(&pb::Slot) -> bool) -> pb::Slot {
    loop {
        let slot = node.slot(name).await;
        if wanted(&slot) {
            return slot;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_creation_names_whom_it_waits_for_survives_a_restart_and_ends_when_they_end() {
    let (wal, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut log = Log::create(wal.path());
    log.commit(690);
    let began = log.insert(695);
    let list = log.list(700, &[698, 695]);
    log.flush();
    let node = Node::start(following(wal.path(), data.path()), data).await;
    let slot = create(&node, logical("orders", 0)).await;
    assert_eq!((slot.state(), slot.kind()), (pb::SlotState::Building, pb::SlotKind::Logical));

    let slot = wait(&node, "orders", |s| s.creation.as_ref().is_some_and(|c| c.transaction_count == 2)).await;
    let creation = slot.creation.unwrap();
    assert_eq!((creation.state(), creation.state_lsn), (pb::SlotCreationState::Building, list.0));
    assert_eq!((creation.waits_for_xid, slot.restart_lsn), (700, list.0), "WAL is kept for a decoder that starts here");
    let [oldest, other] = &creation.transactions[..] else { panic!("{creation:?}") };
    assert_eq!((oldest.xid, oldest.since_lsn, oldest.began_earlier), (695, began.0, false));
    assert_eq!((other.xid, other.since_lsn, other.began_earlier), (698, list.0, true));
    assert_eq!(oldest.since.unwrap().seconds, 946_684_800 + 690, "the time of the commit before it");

    let status = node.refused(from_slot("orders")).await;
    assert_eq!((status.code(), reason_of(&status)), (Code::Unavailable, Some(Reason::NotReady)));
    let info = status.get_details_error_info().unwrap();
    assert_eq!((info.metadata["state"].as_str(), info.metadata["waitsForXid"].as_str()), ("BUILDING", "700"));
    let advance = pb::AdvanceSlotRequest { name: "slots/orders".to_owned(), target_lsn: list.0, etag: String::new() };
    assert_eq!(reason_of(&node.admin().advance_slot(advance).await.unwrap_err()), Some(Reason::NotReady));
    let listed = pb::ListSlotsRequest { filter: "state = BUILDING AND kind = LOGICAL".to_owned(), ..Default::default() };
    assert_eq!(node.admin().list_slots(listed).await.unwrap().into_inner().slots.len(), 1);

    // 695 ends while the node is down; 698 is still waited for after the restart.
    let data = node.stop().await;
    log.commit(695);
    log.list(705, &[698, 702]);
    log.flush();
    let node = Node::start(following(wal.path(), data.path()), data).await;
    let xids = |slot: &pb::Slot| slot.creation.as_ref().map(|c| c.transactions.iter().map(|t| t.xid).collect::<Vec<_>>());
    let slot = wait(&node, "orders", |slot| xids(slot).is_some_and(|xids| xids == [698])).await;
    assert_eq!(slot.restart_lsn, list.0);

    log.commit(698);
    log.list(710, &[702]);
    log.flush();
    let slot = wait(&node, "orders", |slot| xids(slot).is_some_and(|xids| xids == [702])).await;
    assert_eq!(slot.creation.unwrap().state(), pb::SlotCreationState::Full);
    log.commit(702);
    log.list(711, &[710]);
    let end = log.commit(710);
    log.flush();
    let slot = wait(&node, "orders", |slot| slot.state() == pb::SlotState::Free).await;
    assert_eq!((slot.restart_lsn, slot.confirmed_flush_lsn, slot.creation), (list.0, end.0, None));
    let mut stream = node.open(from_slot("orders")).await;
    let started = stream.started().await;
    assert_eq!((started.start_lsn, started.confirmed_flush_lsn), (list.0, end.0));
    drop(stream);
    let data = node.stop().await;
    let node = Node::start(following(wal.path(), data.path()), data).await;
    assert_eq!(node.slot("orders").await.state(), pb::SlotState::Free, "done is done");
    node.stop().await;
}

#[tokio::test]
async fn create_slot_waits_for_the_end_of_the_transactions() {
    let (wal, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut log = Log::create(wal.path());
    log.list(700, &[698]);
    log.flush();
    let node = Node::start(following(wal.path(), data.path()), data).await;
    let (mut admin, mut other) = (node.admin(), node.admin());
    let waiting = tokio::spawn(async move { admin.create_slot(logical("orders", 3_600_000)).await });
    wait_listed(&mut other).await;
    log.commit(698);
    let list = log.list(701, &[]);
    let end = log.insert(701);
    log.flush();
    let slot = waiting.await.unwrap().unwrap().into_inner().slot.unwrap();
    assert_eq!((slot.state(), slot.restart_lsn, slot.confirmed_flush_lsn), (pb::SlotState::Free, list.0, end.0));
    node.stop().await;
}

/// Waits until some slot is being built and was told a list.
async fn wait_listed(admin: &mut AdminServiceClient<Channel>) {
    loop {
        let slots = admin.list_slots(pb::ListSlotsRequest::default()).await.unwrap().into_inner().slots;
        if slots.iter().any(|s| s.creation.as_ref().is_some_and(|c| c.transaction_count > 0)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_creation_that_cannot_end_says_so_at_once_and_one_that_is_given_up_ends() {
    let wal = tempfile::tempdir().unwrap();
    let mut log = Log::create(wal.path());
    log.list(700, &[698]);
    log.flush();
    let node = Node::serve(wal.path()).await;
    let slot = create(&node, logical("orders", 3_600_000)).await;
    let creation = slot.creation.unwrap();
    assert!(creation.failure.contains("no more will come"), "{}", creation.failure);
    assert_eq!(creation.transactions[0].xid, 698);
    let copy = pb::CopySlotRequest { name: "slots/orders".to_owned(), slot_id: "copy".to_owned(), temporary: false };
    assert_eq!(reason_of(&node.admin().copy_slot(copy).await.unwrap_err()), Some(Reason::NotReady));
    node.stop().await;

    let data = tempfile::tempdir().unwrap();
    let node = Node::start(following(wal.path(), data.path()), data).await;
    let (mut admin, mut other) = (node.admin(), node.admin());
    let waiting = tokio::spawn(async move { admin.create_slot(logical("orders", 3_600_000)).await });
    wait_listed(&mut other).await;
    let delete = pb::DeleteSlotRequest { name: "slots/orders".to_owned(), ..Default::default() };
    other.delete_slot(delete).await.unwrap();
    assert_eq!(reason_of(&waiting.await.unwrap().unwrap_err()), Some(Reason::SlotNotFound));
    node.stop().await;
}

#[tokio::test]
async fn wrong_fields_are_named() {
    let wal = fixture(18);
    let node = Node::serve(wal.path()).await;
    for (field, request) in [
        ("kind", pb::CreateSlotRequest { kind: 9, ..logical("a", 0) }),
        ("wait_timeout", pb::CreateSlotRequest { wait_timeout: millis(3_600_001), ..logical("a", 0) }),
        (
            "wait_timeout",
            pb::CreateSlotRequest { wait_timeout: Some(prost_types::Duration { seconds: -1, nanos: 0 }), ..logical("a", 0) },
        ),
    ] {
        let status = node.admin().create_slot(request).await.unwrap_err();
        assert_eq!(status.get_details_bad_request().unwrap().field_violations[0].field, field);
    }
    node.stop().await;
}

#[tokio::test]
async fn real_wal_and_damaged_wal() {
    let wal = fixture(16);
    let node = Node::serve(wal.path()).await;
    let slot = create(&node, logical("orders", 60_000)).await;
    assert_eq!(slot.state(), pb::SlotState::Free);
    assert!(slot.restart_lsn < slot.confirmed_flush_lsn);
    node.stop().await;

    // Damage in the second segment, before which the log of a server that was busy has no list.
    let wal = tempfile::tempdir().unwrap();
    let mut log = Log::create(wal.path());
    for xid in 700..1000 {
        log.insert(xid);
    }
    let damaged = log.insert(1000);
    log.list(1001, &[]);
    log.flush();
    let file = support::segments(wal.path()).remove(0);
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[(damaged.0 % (1 << 24)) as usize + 30] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let node = Node::serve(wal.path()).await;
    let failure = create(&node, logical("orders", 60_000)).await.creation.unwrap().failure;
    assert!(failure.contains(&damaged.to_string()) && failure.contains("damaged"), "{failure}");
    node.stop().await;
}

#[tokio::test]
async fn a_live_engine_is_asked_for_a_list_but_not_on_the_virtual_clock() {
    let data = tempfile::tempdir().unwrap();
    let mut config = PrimaryConfig { data_dir: data.path().to_owned(), ..PrimaryConfig::default() };
    config.server.listen = "127.0.0.1:0".to_owned();
    config.server.grace = Duration::from_millis(300);
    // Its own lists come once in an hour: only one that is asked for helps.
    let scenario = data.path().join("quiet.toml");
    std::fs::write(&scenario, QUIET).unwrap();
    config.source.scenario = Some(scenario.display().to_string());
    config.source.clock = ClockMode::Real;
    config.source.fsync = false;
    let node = Node::start(config.clone(), data).await;
    let end = node.node.log().end().lsn;
    let slot = create(&node, pb::CreateSlotRequest { start_lsn: end.0, ..logical("orders", 600_000) }).await;
    assert_eq!(slot.state(), pb::SlotState::Free, "the scenario itself lists nothing for an hour");
    // The extra list is in the log, and a run that is played again passes over it.
    let data = node.stop().await;
    let node = Node::start(config, data).await;
    let mut log = node.node.log().subscribe();
    let before = log.borrow_and_update().lsn;
    log.wait_for(|log| log.lsn > before).await.unwrap();
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_was_asked_for_is_there_again_after_kill_9() {
    let folder = tempfile::tempdir().unwrap();
    let (scenario, data) = (folder.path().join("quiet.toml"), folder.path().join("data"));
    std::fs::write(&scenario, QUIET).unwrap();
    let start = async || {
        let mut command = clean(Command::new(primary()), &folder.path().join("log"));
        command.arg("--scenario").arg(&scenario).arg("--data-dir").arg(&data);
        command.args(["--clock", "real", "--listen", "127.0.0.1:0"]).env("WALSTORM_PRIMARY__SOURCE__FSYNC", "false");
        let mut program = Program::spawn(&mut command);
        let listens = tokio::task::block_in_place(|| program.wait_for_address());
        assert!(listens, "{}", std::fs::read_to_string(folder.path().join("log")).unwrap());
        let admin = AdminServiceClient::new(program.channel().await);
        (program, admin)
    };
    let written_past = async |admin: &mut AdminServiceClient<Channel>, lsn: u64| {
        while admin.get_server_info(pb::GetServerInfoRequest {}).await.unwrap().into_inner().wal_end_lsn <= lsn {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let (mut program, mut admin) = start().await;
    let end = admin.get_server_info(pb::GetServerInfoRequest {}).await.unwrap().into_inner().wal_end_lsn;
    let request = pb::CreateSlotRequest { start_lsn: end, ..logical("orders", 600_000) };
    let slot = admin.create_slot(request).await.unwrap().into_inner().slot.unwrap();
    assert_eq!(slot.state(), pb::SlotState::Free);
    written_past(&mut admin, slot.confirmed_flush_lsn).await;
    program.child.kill().unwrap();
    program.child.wait().unwrap();
    let (before, _) = records(&data.join("wal"));
    assert!(
        before.iter().any(|record| record.lsn.0 == slot.restart_lsn && record.end_lsn > Lsn(end)),
        "the list is in the log"
    );

    let (mut program, mut admin) = start().await;
    written_past(&mut admin, before[before.len() - 1].end_lsn.0).await;
    program.child.kill().unwrap();
    program.child.wait().unwrap();
    let (after, _) = records(&data.join("wal"));
    assert!(after.len() > before.len() && after[..before.len()] == before, "and nothing before the kill is another");
}

#[tokio::test]
async fn advancing_moves_the_restart_position_to_where_a_decoder_is_consistent_in_time() {
    let (wal, data) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let mut log = Log::create(wal.path());
    log.commit(690);
    log.list(700, &[]);
    let mut lists = Vec::new();
    // One transaction runs at every list, and has ended at the next but one.
    for xid in 700..710 {
        log.insert(xid);
        lists.push(log.list(xid + 1, &[xid.max(701) - 1, xid][usize::from(xid == 700)..]));
        if xid > 700 {
            log.commit(xid - 1);
        }
    }
    log.flush();
    let node = Node::start(following(wal.path(), data.path()), data).await;
    let slot = create(&node, logical("orders", 60_000)).await;
    assert_eq!(slot.state(), pb::SlotState::Free);
    let advance = async |target_lsn| {
        let request = pb::AdvanceSlotRequest { name: "slots/orders".to_owned(), target_lsn, etag: String::new() };
        node.admin().advance_slot(request).await.unwrap().into_inner().slot.unwrap()
    };
    // 700 runs at the first list, and at the second; 701 at the second and third; and so on.
    let near = advance(lists[3].0).await;
    assert_eq!((near.restart_lsn, near.confirmed_flush_lsn), (slot.restart_lsn, lists[3].0), "no list is old enough yet");
    let end = node.node.log().end().lsn.0;
    let far = advance(end).await;
    assert_eq!((far.restart_lsn, far.confirmed_flush_lsn), (lists[5].0, end));

    // A slot that is made at that list is consistent by then, and one at the next is not.
    for (start, state) in [(lists[5], pb::SlotState::Free), (lists[6], pb::SlotState::Building)] {
        let name = format!("made_{}", start.0);
        create(&node, pb::CreateSlotRequest { start_lsn: start.0, ..logical(&name, 0) }).await;
        let all_read = |slot: &pb::Slot| slot.creation.as_ref().is_none_or(|creation| creation.read_lsn >= end);
        assert_eq!(wait(&node, &name, all_read).await.state(), state);
    }
    let mut stream = node.open(from_slot("orders")).await;
    assert_eq!(stream.started().await.start_lsn, far.restart_lsn);
    node.stop().await;
}
