//! The program while it plays runs: killed at any moment or told to stop, it goes on with the run when it is started again, and the
//! log is the one of a run that nobody disturbed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support;
use tonic::transport::Channel;
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::primary::v1::primary_service_client::PrimaryServiceClient;

use pb::run_scenario_request::Scenario;
use pb::run_scenario_response::Kind;

/// Sessions with savepoints and rows, for as long as it takes to be killed some times.
const BUSY: &str = r#"
name = "busy"
story = "Sessions that write."
seed = 11
duration = "$duration"
[parameters]
duration = "20s"
[[tables]]
name = "t"
columns = ["id int", "note text"]
[[actors]]
name = "writer"
sessions = 8
every = { from = "1ms", to = "9ms" }
rollback_percent = 5
steps = [{ insert = { table = "t" } }, { savepoint = "s" }, { update = { table = "t" } }, { wait = { from = "0s", to = "5ms" } }]
[sweep]
seeds = [1, 2]
"#;

/// A running program; killed when it goes out of scope.
struct Program {
    /// The process.
    child: Child,
    /// A client.
    client: PrimaryServiceClient<Channel>,
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Program {
    /// Starts it with its state in `data`.
    async fn start(data: &Path) -> Program {
        let mut command = Command::new(env!("CARGO_BIN_EXE_walstorm-primary"));
        for (name, _) in std::env::vars().filter(|(n, _)| n.starts_with("WALSTORM_") || n.starts_with("OTEL_")) {
            command.env_remove(name);
        }
        command.args(["--runs", "--listen", "127.0.0.1:0", "--log-filter", "warn", "--data-dir"]).arg(data);
        command.env("WALSTORM_PRIMARY__SOURCE__SEGMENT_BYTES", "1048576").env("WALSTORM_PRIMARY__SOURCE__FSYNC", "false");
        command.env("WALSTORM_PRIMARY__SOURCE__FLUSH_BYTES", "20000").env("WALSTORM_PRIMARY__SERVER__GRACE", "300ms");
        let mut child = command.stdin(Stdio::null()).stderr(Stdio::inherit()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let addr = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("said {line:?}"));
        let channel = Channel::from_shared(format!("http://{addr}")).unwrap().connect().await.unwrap();
        Program { child, client: PrimaryServiceClient::new(channel) }
    }

    /// Asks for the run, and waits until it has written `records` or has ended; the report if it has.
    async fn play(&mut self, wish: &pb::RunScenarioRequest, records: u64) -> Option<pb::Run> {
        let mut stream = self.client.run_scenario(wish.clone()).await.unwrap().into_inner();
        while let Some(message) = stream.message().await.unwrap() {
            match message.kind.unwrap() {
                Kind::Progress(progress) if progress.counts.unwrap().records >= records => return None,
                Kind::Report(report) => return report.run,
                _ => {}
            }
        }
        panic!("the stream ended without a report");
    }

    /// The run.
    async fn run(&mut self) -> pb::Run {
        let get = pb::GetRunRequest { name: "runs/1".to_owned() };
        self.client.get_run(get).await.unwrap().into_inner().run.unwrap()
    }

    /// kill -9.
    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// SIGTERM; it must end well.
    fn terminate(mut self) {
        let sent = Command::new("kill").arg("-TERM").arg(self.child.id().to_string()).status().unwrap();
        assert!(sent.success());
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

/// The wish for a run of `duration`.
fn wish(duration: &str) -> pb::RunScenarioRequest {
    pb::RunScenarioRequest {
        request_id: "busy-1".to_owned(),
        scenario: Some(Scenario::ScenarioText(BUSY.to_owned())),
        parameters: [("duration".to_owned(), duration.to_owned())].into(),
        progress_interval: Some(prost_types::Duration { seconds: 0, nanos: 10_000_000 }),
        ..pb::RunScenarioRequest::default()
    }
}

/// The log's bytes.
fn log_bytes(data: &Path) -> Vec<Vec<u8>> {
    support::segments(&data.join("wal")).iter().map(|path| std::fs::read(path).unwrap()).collect()
}

#[tokio::test]
async fn killed_and_told_to_stop_a_run_goes_on_and_its_log_is_that_of_an_undisturbed_one() {
    let wish = wish("20s");
    let quiet = tempfile::tempdir().unwrap();
    let mut program = Program::start(quiet.path()).await;
    let undisturbed = program.play(&wish, u64::MAX).await.unwrap();
    program.terminate();
    let all = undisturbed.counts.unwrap().records;

    let data = tempfile::tempdir().unwrap();
    let mut restarts = 0;
    let report = loop {
        let mut program = Program::start(data.path()).await;
        // A little further each time, through both points.
        let Some(report) = program.play(&wish, all * (restarts + 1) / 8).await else {
            restarts += 1;
            if restarts % 3 == 0 {
                program.terminate();
            } else {
                program.kill();
            }
            continue;
        };
        program.terminate();
        break report;
    };
    assert!(restarts >= 3, "only {restarts} restarts");
    assert_eq!(report.state(), pb::RunState::Succeeded);
    assert!(report.findings.iter().any(|f| f.kind() == pb::FindingKind::Resumed), "{:?}", report.findings);
    assert_eq!((report.counts, report.points), (undisturbed.counts, undisturbed.points));
    assert!(log_bytes(data.path()) == log_bytes(quiet.path()), "the log differs");
}

#[tokio::test]
async fn a_cancelled_run_that_is_killed_ends_where_it_was_to_end() {
    let data = tempfile::tempdir().unwrap();
    let endless = pb::RunScenarioRequest { time_mode: pb::TimeMode::Real.into(), ..wish("1h") };
    let mut program = Program::start(data.path()).await;
    assert!(program.play(&endless, 200).await.is_none());
    program.client.cancel_run(pb::CancelRunRequest { name: "runs/1".to_owned() }).await.unwrap();
    program.kill();

    let mut program = Program::start(data.path()).await;
    let report = program.play(&endless, u64::MAX).await.unwrap();
    assert_eq!(report.state(), pb::RunState::Cancelled);
    assert_eq!(program.run().await, report);
    let next = pb::RunScenarioRequest { request_id: "next".to_owned(), ..wish("100ms") };
    let next = program.play(&next, u64::MAX).await.unwrap();
    assert_eq!(next.points[0].start_lsn, report.points.last().unwrap().end_lsn, "the log goes on");
    program.terminate();
    let (_, end) = support::records(&data.path().join("wal"));
    assert!(end.is_complete(), "{end}");
}

#[tokio::test]
async fn killed_while_idle_nothing_is_lost() {
    let data = tempfile::tempdir().unwrap();
    for _ in 0..3 {
        Program::start(data.path()).await.kill();
    }
    let mut program = Program::start(data.path()).await;
    assert_eq!(program.play(&wish("50ms"), u64::MAX).await.unwrap().state(), pb::RunState::Succeeded);
    program.kill();
    let mut program = Program::start(data.path()).await;
    assert_eq!(program.run().await.state(), pb::RunState::Succeeded);
    program.terminate();
}
