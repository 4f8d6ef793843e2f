//! The program `walstorm-standby`: layers of configuration, the address it prints, errors at the start, SIGTERM.
#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use support::Wal;
use support::scripted_primary::ScriptedPrimary;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use walstorm_proto::standby::v1::GetRecoveryStateRequest;
use walstorm_proto::standby::v1::standby_service_client::StandbyServiceClient;

/// The program, with an environment of its own.
fn program(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_walstorm-standby"));
    command.args(args).env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A program that was started; it is killed if the test fails.
struct Running {
    child: Child,
    address: String,
}

impl Running {
    /// Starts it and reads the address that it prints.
    fn start(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("printed {line:?}")).to_owned();
        Self { child, address }
    }

    /// Sends SIGTERM; gives the exit code.
    fn terminate(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs to the end; must fail and say something.
fn fails(mut command: Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    assert_eq!(status.code(), Some(1));
    String::from_utf8(stderr).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn it_serves_answers_health_and_reflection_and_drains_on_sigterm() {
    let wal = Wal::standby("pg18");
    let end = wal.end();
    let primary = ScriptedPrimary::start(wal, end).await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("standby.toml");
    std::fs::write(&file, "profile = 'pg13.6'\nclient_id = 'from-file'\n[settings]\nmax_connections = 40\n").unwrap();
    let endpoint = primary.endpoint();
    let mut command = program(&["--config", file.to_str().unwrap(), "--primary", &endpoint, "--profile", "pg14+skip-offset"]);
    command.env("WALSTORM_STANDBY__CLIENT_ID", "from-environment");
    command.env("WALSTORM_STANDBY__SETTINGS__MAX_PREPARED_TRANSACTIONS", "10");
    let running = Running::start(command);
    let channel = support::channel(&running.address).await;

    let mut health = HealthClient::new(channel.clone());
    let service = HealthCheckRequest { service: walstorm_proto::service_names::STANDBY.to_owned() };
    let mut watch = health.watch(service).await.unwrap().into_inner();
    while watch.message().await.unwrap().unwrap().status() != ServingStatus::Serving {}
    let mut client = StandbyServiceClient::new(channel.clone());
    support::snapshot(&mut client, end).await;
    let state = client.get_recovery_state(GetRecoveryStateRequest {}).await.unwrap().into_inner();
    assert_eq!(state.profile, "pg14+skip-offset", "a flag wins over the file");
    assert_eq!(primary.seen().starts[0].client_id, "from-environment", "the environment wins over the file");
    assert_eq!(state.array_size, 65 * (40 + 3 + 1 + 8 + 10 + 10), "settings of file and environment");

    let mut reflection = ServerReflectionClient::new(channel);
    let message_request = Some(MessageRequest::ListServices(String::new()));
    let ask = tokio_stream::once(ServerReflectionRequest { host: String::new(), message_request });
    let mut answers = reflection.server_reflection_info(ask).await.unwrap().into_inner();
    let Some(MessageResponse::ListServicesResponse(list)) = answers.message().await.unwrap().unwrap().message_response else {
        panic!("no list of services");
    };
    let names: Vec<_> = list.service.iter().map(|s| s.name.as_str()).collect();
    assert!(names.contains(&"walstorm.standby.v1.StandbyService") && names.contains(&"grpc.health.v1.Health"), "{names:?}");

    assert_eq!(running.terminate(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_at_any_place_it_goes_on_from_its_restart_point() {
    let wal = Wal::standby("pg16");
    let (end, records) = (wal.end(), wal.records.clone());
    let dir = tempfile::tempdir().unwrap();
    let data_dir = dir.path().join("standby");
    let undisturbed = ScriptedPrimary::start(wal.clone(), end).await;
    let other = support::start(support::config(&undisturbed)).await;
    let expected = support::snapshot(&mut support::client(&other).await, end).await;

    let primary = ScriptedPrimary::start(wal, pg_types::Lsn(0)).await;
    let endpoint = primary.endpoint();
    let args = ["--primary", &endpoint, "--data-dir", data_dir.to_str().unwrap(), "--max-connections", "40"];
    let mut from = 0;
    for part in 1..=5 {
        let stop = records[(records.len() - 1) * part / 5].end_lsn;
        let mut command = program(&args);
        command.env("WALSTORM_STANDBY__SETTINGS__MAX_PREPARED_TRANSACTIONS", "10");
        let mut running = Running::start(command);
        primary.open_gate(stop);
        let mut client = StandbyServiceClient::new(support::channel(&running.address).await);
        let snapshot = support::snapshot(&mut client, stop).await;
        let seen = primary.seen();
        assert_eq!(seen.starts.len(), part);
        assert_eq!(seen.starts[part - 1].from_lsn, from, "it begins where its restart point says");
        if part == 5 {
            assert_eq!((snapshot.xmin, snapshot.xmax, snapshot.xip), (expected.xmin, expected.xmax, expected.xip.clone()));
        }
        running.child.kill().unwrap();
        running.child.wait().unwrap();
        let kept = standby_node::restart_point::read(&data_dir).unwrap();
        from = kept.map_or(0, |point| point.redo_lsn.0);
        let flushed = primary.seen().feedback.iter().map(|f| f.flushed_lsn).max().unwrap_or(0);
        assert!(flushed <= from.max(records[0].lsn.0), "{flushed} was told as flushed, and a restart begins at {from}");
    }
    assert!(from > records[0].lsn.0, "there was a checkpoint on the way");
}

#[test]
fn what_cannot_start_says_why() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = fails(program(&["--listen", &address]));
    assert!(error.contains(&format!("{address} is taken")), "{error}");
    let error = fails(program(&["--profile", "pg12"]));
    assert!(error.contains("profile") && error.contains("pg13.6"), "{error}");
    let error = fails(program(&["--config", "/nonexistent/standby.toml"]));
    assert!(error.contains("/nonexistent/standby.toml"), "{error}");
    let mut command = program(&[]);
    command.env("WALSTORM_STANDBY__QUEUE_BATCHES", "none");
    let error = fails(command);
    assert!(error.contains("WALSTORM_STANDBY__QUEUE_BATCHES"), "{error}");
}

#[test]
fn sigterm_is_obeyed_while_there_is_no_primary() {
    let running = Running::start(program(&["--primary", "http://127.0.0.1:9"]));
    assert_eq!(running.terminate(), Some(0));
}
