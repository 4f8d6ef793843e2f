//! The page of traces that `walstorm run --ui` serves: what comes in over gRPC and HTTP, what is refused, and the command's end.
#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use integration_tests::jaeger::{ask, get, spans};
use integration_tests::program::{self, Program};
use rustix::process::Signal;
use service_kit::telemetry::{self, Protocol, Role, TelemetryConfig, WalId, choose_export, names};
use walstorm_cli::trace_ui::TraceUi;

#[tokio::test(flavor = "multi_thread")]
async fn spans_come_in_over_grpc_and_over_http() {
    let ui = TraceUi::start(0).await.unwrap();
    let wal = WalId { system_id: 7, timeline: 1 };
    for (lsn, protocol, endpoint) in [(8, Protocol::Grpc, ui.endpoint()), (16, Protocol::HttpProtobuf, ui.url())] {
        let wait = Duration::from_secs(60);
        let config =
            TelemetryConfig { endpoint: Some(endpoint), protocol, shutdown_timeout: wait, ..TelemetryConfig::default() };
        let role = Role { service_name: format!("over-{lsn}"), instance_id: "0".to_owned() };
        let export = choose_export(&config, |_| None).unwrap();
        let (tracer, guard) = telemetry::start(&role, &config, export).unwrap();
        let mut span = tracer.transaction(&wal.transaction_context(lsn, true), None, SystemTime::now()).unwrap();
        span.number(names::XID, lsn).fail("it was refused");
        // A clock that goes back makes no span that ends before it begins.
        span.end(SystemTime::UNIX_EPOCH);
        assert_eq!(guard.shutdown().await.exported, 1, "{protocol:?}");
    }
    let url = ui.url();
    let found = tokio::task::spawn_blocking(move || {
        let traces = get(&url, "traces?limit=10").unwrap();
        (spans(&url).unwrap(), traces.to_string())
    });
    let (found, text) = found.await.unwrap();
    let mut services: Vec<_> = found.values().map(|span| (span.service.as_str(), span.kind.as_str())).collect();
    services.sort_unstable();
    assert_eq!(services, [("over-16", "internal"), ("over-8", "internal")]);
    assert!(text.contains("it was refused") && text.contains(r#""key":"error""#), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_span_is_refused_with_a_reason() {
    let ui = TraceUi::start(0).await.unwrap();
    let url = ui.url();
    let refused = tokio::task::spawn_blocking(move || {
        let post = |headers: &str, body: &[u8]| {
            let (status, body) = ask(&url, "POST /v1/traces", headers, body).unwrap();
            (status, String::from_utf8(body).unwrap())
        };
        let protobuf = "content-type: application/x-protobuf\r\n";
        let packed = format!("{protobuf}content-encoding: gzip\r\n");
        let bomb = zip(&vec![0; 17 << 20]);
        let answers = [post("", b"{}"), post(protobuf, b"nonsense"), post(&packed, b"nonsense"), post(&packed, &bomb)];
        let well = post(&packed, &zip(b""));
        let page = ask(&url, "GET /", "", b"").unwrap();
        (answers, well, String::from_utf8_lossy(&page.1).into_owned())
    });
    let (answers, well, page) = refused.await.unwrap();
    for ((status, text), (wanted, why)) in answers.iter().zip([
        ("415", "application/x-protobuf"),
        ("400", "no OTLP"),
        ("400", "no gzip"),
        ("400", "larger unpacked"),
    ]) {
        assert!(status.contains(wanted) && text.contains(why), "{status}: {text}");
    }
    assert!(well.0.contains("200"), "{well:?}");
    assert!(page.contains("<html"), "{page}");
    let taken = ui.url().trim_end_matches('/').rsplit_once(':').unwrap().1.parse().unwrap();
    let error = format!("{:#}", TraceUi::start(taken).await.unwrap_err());
    assert!(error.contains("--ui-port"), "{error}");
}

/// Packs bytes.
fn zip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = flate2::read::GzEncoder::new(bytes, flate2::Compression::fast());
    let mut all = Vec::new();
    std::io::Read::read_to_end(&mut packed, &mut all).unwrap();
    all
}

#[test]
fn a_run_is_served_until_it_is_interrupted() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(program::path("walstorm").unwrap());
    command.args(["run", "truncate-partitions", "--small", "--ui", "--sampling", "1", "--out"]).arg(dir.path().join("report"));
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let run = Program::from(child);
    let line = lines.map(Result::unwrap).find(|line| line.contains("until Ctrl-C")).expect("the run ends and says so");
    let url = line.split_whitespace().find(|word| word.starts_with("http://")).unwrap().to_owned();
    let found = spans(&url).unwrap();
    for (service, name) in
        [("walstorm-primary", "transaction"), ("walstorm-subscriber", "receive transaction"), ("walstorm-standby", "apply")]
    {
        assert!(integration_tests::jaeger::count(&found, service, name) > 0, "{service} {name}");
    }
    let mut ask = Command::new(program::path("walstorm").unwrap());
    let answer = ask.args(["trace", "critical-path", "--jaeger", &url]).env_clear().output().unwrap();
    let [out, notes] = [&answer.stdout, &answer.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(answer.status.success() && out.contains("decode transaction"), "{out} {notes}");
    assert!(!notes.contains("rest of the line"), "{notes}");
    run.signal(Signal::INT).unwrap();
    assert!(run.wait().unwrap().success());
}
