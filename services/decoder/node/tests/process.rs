//! The program `walstorm-decoder` as others see it: its messages, its signals, and that kill -9 loses and repeats nothing.

#![allow(clippy::unwrap_used, reason = "a panic here is a test's report")]

#[path = "process/catalog_xmin.rs"]
mod catalog_xmin;
#[path = "process/damage.rs"]
mod damage;
#[path = "process/kills.rs"]
mod kills;
#[path = "support/mixed.rs"]
mod mixed;
mod support;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use pg_types::record::{CommitRecord, HeapInsert, RunningXactsRecord};
use pg_types::{Lsn, Oid, RecordBody, RelFileLocator, Tid, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use support::{Item, Kind, Subscription, any, assert_same, connect, expected, fixture, folder, primary, start};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use walstorm_proto::decoder::v1 as pb;
use walstorm_proto::decoder::v1::decoder_service_client::DecoderServiceClient;

/// A running program; killed when it goes out of scope.
struct Program {
    child: Child,
    addr: SocketAddr,
}

/// The program with a folder and a primary.
fn command(data: &Path, primary: SocketAddr) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_walstorm-decoder"));
    command.arg("--data-dir").arg(data).arg("--primary").arg(format!("http://{primary}"));
    command.args(["--listen", "127.0.0.1:0", "--log-filter", "warn"]);
    command.env("WALSTORM_DECODER__CHECKPOINT_INTERVAL", "30ms").env("WALSTORM_DECODER__PRIMARY__BACKOFF_MAX", "100ms");
    command
}

impl Program {
    /// Starts it and waits until it listens.
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let addr = line.trim_end().strip_prefix("listening on ").expect("it says where it listens").parse().unwrap();
        Self { child, addr }
    }

    /// kill -9.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM.
    fn terminate(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a program says that is expected not to start.
fn refused(mut command: Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    assert_eq!(status.code(), Some(1), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stderr).unwrap()
}

/// A program whose files may not grow beyond so many bytes, which it sees as an error like that of a full disk, not as a signal.
fn without_room(program: &Command, bytes: u64) -> Program {
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"]).arg(program.get_program()).args(program.get_args());
    shell.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let program = Program::start(shell);
    limit_files(&program, Some(bytes));
    program
}

/// From now on its files may grow up to so many bytes.
fn limit_files(program: &Program, bytes: Option<u64>) {
    let limit = rustix::process::Rlimit { current: bytes, maximum: None };
    let pid = rustix::process::Pid::from_child(&program.child);
    rustix::process::prlimit(Some(pid), rustix::process::Resource::Fsize, limit).unwrap();
}

/// Whether the decoder's service is healthy.
async fn is_serving(addr: SocketAddr) -> bool {
    let mut client = HealthClient::new(connect(addr).await);
    let request = HealthCheckRequest { service: walstorm_proto::service_names::DECODER.to_owned() };
    client.check(request).await.unwrap().into_inner().status() == tonic_health::ServingStatus::Serving.into()
}

#[test]
fn what_is_wrong_is_said_before_it_serves() {
    let (_dir, data) = folder();
    let nobody = any();
    let with = |args: &[&str]| {
        let mut command = command(&data, nobody);
        command.args(args);
        refused(command)
    };
    let profile = with(&["--profile", "pg99"]);
    assert!(profile.contains("'pg99' is no profile") && profile.contains("indexed"), "{profile}");
    let holder = std::net::TcpListener::bind(any()).unwrap();
    let taken = holder.local_addr().unwrap().to_string();
    let mut port = Command::new(env!("CARGO_BIN_EXE_walstorm-decoder"));
    port.arg("--data-dir").arg(&data).env("WALSTORM_DECODER__SERVER__LISTEN", &taken);
    let port = refused(port);
    assert!(port.contains(&taken) && port.contains("taken by another process"), "{port}");
    let mut unknown = command(&data, nobody);
    unknown.env("WALSTORM_DECODER__OUTPUT_LOG__SIZE", "5");
    let unknown = refused(unknown);
    assert!(unknown.contains("WALSTORM_DECODER__OUTPUT_LOG__SIZE") && unknown.contains("bytes_max"), "{unknown}");
    let catalog = with(&["--catalog", "/no/such/folder"]);
    assert!(catalog.contains("/no/such/folder"), "{catalog}");
    let first = Program::start(command(&data, nobody));
    let second = refused(command(&data, nobody));
    assert!(second.contains("in use by another decoder"), "{second}");
    drop(first);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_follows_the_primary_and_sigterm_drains() {
    let wal = fixture(16);
    let (items, end) = expected(wal.path());
    let ((_a, primary_data), (_b, data)) = (folder(), folder());
    let probe = primary(wal.path(), &primary_data, any()).await;
    let addr = probe.addr();
    probe.shutdown().await.unwrap();
    let mut program = Program::start(command(&data, addr));
    assert!(!is_serving(program.addr).await, "there is no primary yet");
    let status = Subscription::open(connect(program.addr).await, start()).await.next().await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");

    let primary = primary(wal.path(), &primary_data, addr).await;
    let (mut subscription, _) = Subscription::open_when_ready(program.addr, start()).await;
    subscription.read_to(end).await;
    assert_same(&subscription.items, &items);
    assert!(is_serving(program.addr).await);

    program.terminate();
    loop {
        match subscription.next().await {
            Ok(Some(Kind::Heartbeat(_))) => {}
            Ok(Some(Kind::Draining(draining))) => assert_eq!(draining.resume_lsn, end.0),
            Ok(other) => panic!("{other:?}"),
            Err(status) => {
                assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
                break;
            }
        }
    }
    assert_eq!(program.child.wait().unwrap().code(), Some(0));
    primary.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_checkpoint_stops_the_node_with_file_and_remedy() {
    let wal = fixture(16);
    let (_, end) = expected(wal.path());
    let ((_a, primary_data), (_b, data)) = (folder(), folder());
    let primary = primary(wal.path(), &primary_data, any()).await;
    let mut program = Program::start(command(&data, primary.addr()));
    let (mut subscription, _) = Subscription::open_when_ready(program.addr, start()).await;
    subscription.read_to(end).await;
    program.terminate();
    program.child.wait().unwrap();
    let path = data.join("checkpoint");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[30] ^= 1;
    std::fs::write(&path, bytes).unwrap();

    let program = Program::start(command(&data, primary.addr()));
    let mut client = DecoderServiceClient::new(connect(program.addr).await);
    let state = loop {
        let state = client.get_decoder_state(pb::GetDecoderStateRequest {}).await.unwrap().into_inner();
        if !state.last_error.is_empty() {
            break state;
        }
    };
    let named = state.last_error.contains(path.to_str().unwrap()) && state.last_error.contains("move it away");
    assert!(named && !state.connected, "{}", state.last_error);
    assert!(!is_serving(program.addr).await);
    primary.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_or_missing_snapshot_stops_the_node_with_file_and_remedy() {
    let wal = tempfile::tempdir().unwrap();
    write_wal(wal.path(), 9000);
    let (items, end) = expected(wal.path());
    let ((_a, primary_data), (_b, data)) = (folder(), folder());
    let primary = primary(wal.path(), &primary_data, any()).await;
    let run = || async {
        let mut program = Program::start(command(&data, primary.addr()));
        let (mut subscription, _) = Subscription::open_when_ready(program.addr, start()).await;
        subscription.read_to(end).await;
        assert_same(&subscription.items, &items);
        program.terminate();
        program.child.wait().unwrap();
    };
    run().await;
    let snapshots: Vec<_> = std::fs::read_dir(data.join("snapshots")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let path = snapshots.iter().min().unwrap();
    // The oldest transaction that is open at the last list, that of the 8500th, began after that of the 2500th.
    assert_eq!(snapshots.len(), 13, "those before the checkpoint are gone: {snapshots:?}");
    let whole = std::fs::read(path).unwrap();
    let mut flipped = whole.clone();
    flipped[34] ^= 1;
    for (contents, why) in [(Some(flipped), "checksum is wrong"), (Some(vec![]), "too few"), (None, "not there")] {
        match contents {
            Some(contents) => std::fs::write(path, contents).unwrap(),
            None => std::fs::remove_file(path).unwrap(),
        }
        let program = Program::start(command(&data, primary.addr()));
        let mut client = DecoderServiceClient::new(connect(program.addr).await);
        let state = loop {
            let state = client.get_decoder_state(pb::GetDecoderStateRequest {}).await.unwrap().into_inner();
            if !state.last_error.is_empty() {
                break state;
            }
        };
        let named = state.last_error.contains(path.to_str().unwrap()) && state.last_error.contains("move it away");
        assert!(named && state.last_error.contains(why), "{}", state.last_error);
    }
    std::fs::write(path, whole).unwrap();
    run().await;
    primary.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whom_the_snapshot_builder_waits_for_is_told_oldest_first() {
    let wal = tempfile::tempdir().unwrap();
    let mut writer = WalWriter::create(wal.path(), WriterConfig::new(1).with_segment_size(1 << 20)).unwrap();
    let mut append = |xid: u32, body: RecordBody| writer.append(Xid(xid), Xid::INVALID, 0, &body).map(drop).unwrap();
    let list = |next: u32, xids: &[u32]| {
        let xids: Vec<Xid> = xids.iter().map(|xid| Xid(*xid)).collect();
        let oldest_running_xid = xids.iter().copied().min_by_key(|xid| xid.0).unwrap_or(Xid(next));
        RecordBody::RunningXacts(Box::new(RunningXactsRecord {
            next_xid: Xid(next),
            oldest_running_xid,
            xids,
            ..Default::default()
        }))
    };
    append(0, list(1000, &[997, 991, 994]));
    append(994, RecordBody::Commit(Box::default()));
    append(0, list(1003, &[997, 991, 1002]));
    writer.switch().unwrap();
    writer.finish().unwrap();
    let ((_a, primary_data), (_b, data)) = (folder(), folder());
    let primary = primary(wal.path(), &primary_data, any()).await;
    let mut command = command(&data, primary.addr());
    command.env("WALSTORM_DECODER__DATABASE", "5");
    let program = Program::start(command);
    let mut client = DecoderServiceClient::new(connect(program.addr).await);
    let state = loop {
        let state = client.get_decoder_state(pb::GetDecoderStateRequest {}).await.unwrap().into_inner();
        if state.waiting_count == 2 {
            break state;
        }
    };
    assert_eq!(state.snapshot_state(), pb::SnapshotState::Building);
    assert_eq!((state.waits_for_xid, state.waiting_xids), (1000, vec![991, 997]), "1002 began after the first list");
    assert!(!is_serving(program.addr).await);
    primary.shutdown().await.unwrap();
}

/// WAL with `count` transactions, of which always some are open, a few for long; gives nothing else.
fn write_wal(dir: &Path, count: u32) {
    let mut writer = WalWriter::create(dir, WriterConfig::new(1).with_segment_size(1 << 20)).unwrap();
    let first = Xid(1000);
    let running = |next: u32, oldest: u32| {
        let running = RunningXactsRecord { next_xid: Xid(next), oldest_running_xid: Xid(oldest), ..Default::default() };
        RecordBody::RunningXacts(Box::new(running))
    };
    let insert = |i: u32| {
        let target = RelFileLocator { spc: Oid(1663), db: Oid(5), rel: 20_000 + i % 7 };
        let tid = Tid { block: i / 100, offset: (i % 100 + 1) as u16 };
        RecordBody::Insert(HeapInsert { target, tid, logical: true, tuple_len: 15, ..HeapInsert::default() })
    };
    let commit = || RecordBody::Commit(Box::new(CommitRecord { db: Oid(5), ..CommitRecord::default() }));
    let mut append = |xid: u32, body: RecordBody| writer.append(Xid(xid), Xid::INVALID, 0, &body).map(drop).unwrap();
    append(0, running(first.0, first.0));
    // A transaction is open for as many others as this says; multiples of 997 for long, multiples of 13 roll back.
    let open_for = |i: u32| if i.is_multiple_of(997) { 6000 } else { i * 7919 % 17 };
    let mut ends: BTreeSet<(u32, u32)> = BTreeSet::new();
    for i in 0..count {
        let xid = first.0 + i;
        append(xid, insert(i));
        ends.insert((i + open_for(i), i));
        while let Some((due, ended)) = ends.first().copied().filter(|(due, _)| *due <= i || i + 1 == count) {
            ends.remove(&(due, ended));
            append(first.0 + ended, insert(ended + 1));
            let aborts = ended.is_multiple_of(13) && !ended.is_multiple_of(997);
            append(first.0 + ended, if aborts { RecordBody::Abort(Box::default()) } else { commit() });
        }
        if i.is_multiple_of(500) {
            let oldest = ends.iter().map(|(_, i)| *i).min().unwrap_or(i + 1);
            append(0, running(xid + 1, first.0 + oldest));
        }
    }
    writer.switch().unwrap();
    writer.finish().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_loses_and_repeats_nothing() {
    let wal = tempfile::tempdir().unwrap();
    write_wal(wal.path(), 30_000);
    let (items, end) = expected(wal.path());
    assert!(items.len() > 80_000);
    let ((_a, primary_data), (_b, data)) = (folder(), folder());
    let primary = primary(wal.path(), &primary_data, any()).await;

    const KILLS: usize = 8;
    let mut found: Vec<Item> = Vec::new();
    let mut named: Vec<Item> = Vec::new();
    for round in 1..=KILLS + 1 {
        let mut program = Program::start(command(&data, primary.addr()));
        // One subscriber keeps its position itself; the other has it kept, and drops what it has already.
        let position = found.last().map_or(Lsn::INVALID, |item| item.end_lsn);
        let own = pb::SubscribeStart { from_lsn: position.0, ..start() };
        let kept = pb::SubscribeStart { subscription: "kept".to_owned(), ..start() };
        let (mut own, _) = Subscription::open_when_ready(program.addr, own).await;
        let (mut kept, kept_started) = Subscription::open_when_ready(program.addr, kept).await;
        let last = named.last().map_or(Lsn::INVALID, |item| item.end_lsn);
        assert!(Lsn(kept_started.start_lsn) <= last.max(items[0].end_lsn), "nothing that was not confirmed is skipped");
        if round > KILLS {
            own.read_to(end).await;
            kept.read_to(end).await;
        }
        // Killed when the subscriber has got its share: while WAL comes in, output is written and checkpoints are made.
        while round <= KILLS && found.len() + own.items.len() < items.len() * round / (KILLS + 1) {
            own.flush(own.position, false).await;
            let kind = own.next().await.unwrap().expect("the server ended the stream");
            own.take(kind);
            if let Ok(kind) = tokio::time::timeout(std::time::Duration::from_millis(1), kept.next()).await {
                kept.take(kind.unwrap().expect("the server ended the stream"));
                kept.flush(kept.position, false).await;
            }
        }
        program.kill();
        found.append(&mut own.items);
        named.extend(kept.items.drain(..).filter(|item| item.end_lsn > last));
    }
    assert_same(&found, &items);
    assert_same(&named, &items);
    let checkpoint = std::fs::read(data.join("checkpoint")).unwrap();
    let checkpoint: serde_json::Value = serde_json::from_slice(&checkpoint[16..]).unwrap();
    assert_eq!(checkpoint["consistent"], true, "restarts began with serialised snapshots: {checkpoint}");
    let restart: Lsn = checkpoint["restart_lsn"].as_str().unwrap().parse().unwrap();
    assert!(data.join("snapshots").join(decoder_core::snapshot_file_name(restart)).exists(), "{checkpoint}");
    primary.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_stops_acknowledging_and_the_decoder_goes_on_when_there_is_room() {
    let wal = fixture(16);
    let (items, end) = expected(wal.path());
    let ((_a, primary_data), (_b, data)) = (folder(), folder());
    let first = primary(wal.path(), &primary_data, any()).await;
    let addr = first.addr();
    first.shutdown().await.unwrap();
    let program = without_room(&command(&data, addr), 8192);
    let primary = primary(wal.path(), &primary_data, addr).await;
    let mut client = DecoderServiceClient::new(connect(program.addr).await);
    let state = loop {
        let state = client.get_decoder_state(pb::GetDecoderStateRequest {}).await.unwrap().into_inner();
        if state.last_error.contains("no room") {
            break state;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    assert!(state.last_error.contains("outlog") && state.flushed_lsn < end.0, "{state:?}");
    assert!(!is_serving(program.addr).await);
    limit_files(&program, None);
    let mut found = Vec::new();
    while found.len() < items.len() {
        let position = found.last().map_or(0, |item: &Item| item.end_lsn.0);
        let own = pb::SubscribeStart { from_lsn: position, ..start() };
        let (mut subscription, _) = Subscription::open_when_ready(program.addr, own).await;
        // A stream that began before there was room ends when the decoder starts anew.
        while subscription.position < end {
            match subscription.next().await {
                Ok(Some(kind)) => subscription.take(kind),
                Ok(None) => panic!("the server ended the stream"),
                Err(status) if status.code() == tonic::Code::Unavailable => break,
                Err(status) => panic!("{status:?}"),
            }
            subscription.flush(subscription.position, true).await;
        }
        found.append(&mut subscription.items);
    }
    assert_same(&found, &items);
    while !is_serving(program.addr).await {}
    primary.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reflection_names_the_service() {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    let (_dir, data) = folder();
    let program = Program::start(command(&data, any()));
    let request = tonic_reflection::pb::v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(connect(program.addr).await);
    let mut responses = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap().into_inner();
    let response = responses.message().await.unwrap().unwrap().message_response;
    let Some(MessageResponse::ListServicesResponse(list)) = response else { panic!("{response:?}") };
    assert!(list.service.iter().any(|s| s.name == walstorm_proto::service_names::DECODER), "{list:?}");
}

#[test]
fn the_configuration_in_effect_is_printed_with_its_origins() {
    let (_dir, data) = folder();
    let file = data.join("decoder.toml");
    std::fs::write(&file, "slot = \"orders\"\nprofile = \"pg18\"\n").unwrap();
    let mut command = command(&data, any());
    command.arg("--print-config").arg("--config").arg(&file).args(["--profile", "pg13"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success());
    for line in ["slot = \"orders\" (configuration file", "profile = \"pg13\" (flag --profile)", "WALSTORM_DECODER__CHECKPOINT"]
    {
        assert!(text.contains(line), "{line} in {text}");
    }
}
