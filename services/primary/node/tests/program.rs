//! The program: it says where it listens, answers health and reflection, drains on SIGTERM, keeps positions over kill -9, and
//! refuses wrong input in words.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use walstorm_proto::admin::v1 as admin;
use walstorm_proto::admin::v1::admin_service_client::AdminServiceClient;
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::primary::v1::primary_service_client::PrimaryServiceClient;

use crate::support::{self, fixture};
use pb::stream_wal_request::Kind as RequestKind;
use pb::stream_wal_response::Kind;

/// A running program; killed when it goes out of scope.
struct Program {
    /// The process.
    child: Child,
    /// Where it listens.
    addr: String,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command, without variables of ours in its environment.
fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_walstorm-primary"));
    for (name, _) in std::env::vars().filter(|(n, _)| n.starts_with("WALSTORM_") || n.starts_with("OTEL_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::null()).stderr(Stdio::piped()).stdout(Stdio::piped());
    command
}

impl Program {
    /// Starts it and waits for its address.
    fn start(command: &mut Command) -> Program {
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let addr = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("said {line:?}")).to_owned();
        Program { child, addr }
    }

    /// Serves `wal`, with its state in `data`.
    fn serve(wal: &Path, data: &Path) -> Program {
        let listen = ["--listen", "127.0.0.1:0", "--log-filter", "warn"];
        Self::start(command().arg("--wal-dir").arg(wal).arg("--data-dir").arg(data).args(listen))
    }

    /// A connection.
    async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.addr)).unwrap().connect().await.unwrap()
    }

    /// Sends a signal.
    fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(sent.success());
    }
}

/// Runs it to its end; it must fail.
fn fails(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    assert_eq!(status.code(), Some(1));
    String::from_utf8(stderr).unwrap()
}

#[tokio::test]
async fn health_and_reflection_answer_and_sigterm_ends_it_well() {
    let (wal, data) = (fixture(18), tempfile::tempdir().unwrap());
    let mut program = Program::serve(wal.path(), data.path());
    let channel = program.channel().await;
    for service in ["", "walstorm.primary.v1.PrimaryService", "walstorm.admin.v1.AdminService"] {
        let request = HealthCheckRequest { service: service.to_owned() };
        let status = HealthClient::new(channel.clone()).check(request).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::Serving, "{service}");
    }
    let list =
        ServerReflectionRequest { message_request: Some(MessageRequest::ListServices(String::new())), ..Default::default() };
    let mut answers =
        ServerReflectionClient::new(channel.clone()).server_reflection_info(tokio_stream::once(list)).await.unwrap();
    let Some(MessageResponse::ListServicesResponse(services)) =
        answers.get_mut().message().await.unwrap().unwrap().message_response
    else {
        panic!()
    };
    assert!(services.service.iter().any(|s| s.name == "walstorm.primary.v1.PrimaryService"));

    // An open stream does not keep it: it ends within the grace.
    let (requests, receiver) = tokio::sync::mpsc::channel(4);
    requests.send(pb::StreamWalRequest { kind: Some(RequestKind::Start(support::start())) }).await.unwrap();
    let receiver = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut stream = PrimaryServiceClient::new(channel).stream_wal(receiver).await.unwrap().into_inner();
    assert!(matches!(stream.message().await.unwrap().unwrap().kind, Some(Kind::Started(_))));
    program.signal("TERM");
    assert_eq!(program.child.wait().unwrap().code(), Some(0));
}

#[tokio::test]
async fn a_slots_position_survives_kill_9() {
    let (wal, data) = (fixture(18), tempfile::tempdir().unwrap());
    let mut program = Program::serve(wal.path(), data.path());
    let channel = program.channel().await;
    let create = admin::CreateSlotRequest { slot_id: "orders".to_owned(), start_lsn: 0, ..Default::default() };
    AdminServiceClient::new(channel.clone()).create_slot(create).await.unwrap();
    let (requests, receiver) = tokio::sync::mpsc::channel(4);
    let start = support::from_slot("orders");
    requests.send(pb::StreamWalRequest { kind: Some(RequestKind::Start(start)) }).await.unwrap();
    let receiver = tokio_stream::wrappers::ReceiverStream::new(receiver);
    let mut stream = PrimaryServiceClient::new(channel).stream_wal(receiver).await.unwrap().into_inner();
    let end = loop {
        if let Some(Kind::Batch(batch)) = stream.message().await.unwrap().unwrap().kind {
            break batch.end_lsn;
        }
    };
    let flushed = pb::Feedback { flushed_lsn: end, ..Default::default() };
    requests.send(pb::StreamWalRequest { kind: Some(RequestKind::Feedback(flushed)) }).await.unwrap();
    let file = data.path().join("slots/orders.slot");
    let position = format!("{:X}/{:X}", end >> 32, end & 0xFFFF_FFFF);
    while !std::fs::read_to_string(&file).unwrap().contains(&position) {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    }
    program.child.kill().unwrap();
    program.child.wait().unwrap();

    let again = Program::serve(wal.path(), data.path());
    let get = admin::GetSlotRequest { name: "slots/orders".to_owned() };
    let slot = AdminServiceClient::new(again.channel().await).get_slot(get).await.unwrap().into_inner().slot.unwrap();
    assert_eq!(slot.confirmed_flush_lsn, end);
}

#[tokio::test]
async fn settings_come_from_file_environment_and_flags_in_this_order() {
    let (wal, data) = (fixture(18), tempfile::tempdir().unwrap());
    let file = data.path().join("primary.toml");
    let text = format!("data_dir = {:?}\nmax_slots = 1\n[source]\nwal_dir = \"/nowhere\"\n", data.path().join("state"));
    std::fs::write(&file, text).unwrap();
    let program = Program::start(
        command()
            .arg("--config")
            .arg(&file)
            .env("WALSTORM_PRIMARY__MAX_SLOTS", "2")
            .env("WALSTORM_PRIMARY__SERVER__LISTEN", "127.0.0.1:1")
            .args(["--listen", "127.0.0.1:0", "--wal-dir"])
            .arg(wal.path()),
    );
    let mut client = AdminServiceClient::new(program.channel().await);
    for name in ["a", "b"] {
        client
            .create_slot(admin::CreateSlotRequest { slot_id: name.to_owned(), start_lsn: 0, ..Default::default() })
            .await
            .unwrap();
    }
    let third = client
        .create_slot(admin::CreateSlotRequest { slot_id: "c".to_owned(), start_lsn: 0, ..Default::default() })
        .await
        .unwrap_err();
    assert_eq!(third.code(), tonic::Code::ResourceExhausted);
    assert!(data.path().join("state/slots/a.slot").exists());
}

#[test]
fn wrong_input_is_refused_with_place_and_remedy() {
    let (wal, data) = (fixture(18), tempfile::tempdir().unwrap());
    let run = |dir: &Path, more: &[&str]| {
        let listen = if more.contains(&"--listen") { &[][..] } else { &["--listen", "127.0.0.1:0"] };
        fails(command().arg("--wal-dir").arg(dir).arg("--data-dir").arg(data.path()).args(listen).args(more))
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = run(wal.path(), &["--listen", &taken.local_addr().unwrap().to_string()]);
    assert!(error.contains("is taken by another process"), "{error}");

    let error = run(Path::new("/no/such/directory"), &[]);
    assert!(error.contains("/no/such/directory") && error.contains("does not exist"), "{error}");
    let empty = tempfile::tempdir().unwrap();
    assert!(run(empty.path(), &[]).contains("holds no WAL segments"));
    std::fs::write(empty.path().join("000000010000000000000001"), b"no WAL at all").unwrap();
    assert!(run(empty.path(), &[]).contains("is no WAL"), "{}", run(empty.path(), &[]));
    let error = run(wal.path(), &["--timeline", "7"]);
    assert!(error.contains("timeline 7"), "{error}");

    let error = fails(command().args(["--listen", "127.0.0.1:0"]).arg("--data-dir").arg(data.path()));
    assert!(error.contains("--wal-dir") && error.contains("--scenario"), "{error}");
    let error = fails(command().env("WALSTORM_PRIMARY__SERVER__LISTN", "x"));
    assert!(error.contains("WALSTORM_PRIMARY__SERVER__LISTN") && error.contains("listen"), "{error}");

    std::fs::create_dir_all(data.path().join("slots")).unwrap();
    std::fs::write(data.path().join("slots/orders.slot"), b"{}").unwrap();
    let error = run(wal.path(), &[]);
    assert!(error.contains("orders.slot") && error.contains("damaged"), "{error}");
}

#[test]
fn a_log_that_nobody_reads_any_more_stops_nobody() {
    let (wal, data) = (fixture(18), tempfile::tempdir().unwrap());
    let args = ["--listen", "127.0.0.1:0", "--log-filter", "info"];
    let mut child = command().arg("--wal-dir").arg(wal.path()).arg("--data-dir").arg(data.path()).args(args).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on "), "{line:?}");
    // As in `walstorm-primary … 2>&1 | head -1`, or when a log shipper dies.
    drop(child.stderr.take().unwrap());
    let sent = Command::new("kill").arg("-TERM").arg(child.id().to_string()).status().unwrap();
    assert!(sent.success());
    assert_eq!(child.wait().unwrap().code(), Some(0), "it says that it stops, which goes nowhere, and stops");
}

#[test]
fn one_primary_at_a_time_uses_a_data_directory() {
    let (wal, data) = (fixture(18), tempfile::tempdir().unwrap());
    let _first = Program::serve(wal.path(), data.path());
    let second =
        fails(command().arg("--wal-dir").arg(wal.path()).arg("--data-dir").arg(data.path()).args(["--listen", "127.0.0.1:0"]));
    assert!(second.contains("in use by another primary"), "{second}");
}
