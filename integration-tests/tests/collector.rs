//! Traces of programs that run by themselves: primary, decoder and standby send their spans to a real collector, which hands them on to a store
//! with Jaeger's query API, and there they are looked for. The decoder is stopped in the middle of a transaction and started again.
#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use integration_tests::Subscriber;
use integration_tests::jaeger::{self, Span, count, spans};
use integration_tests::program::Program;
use service_kit::telemetry::names::SPANS;
use service_kit::telemetry::{self, Export, Guard, Protocol, Role, Sampler, SamplingConfig, TelemetryConfig, Tracer};
use walstorm_cli::run::readers::{ReaderTrace, Readers};
use walstorm_cli::trace_ui::TraceUi;

/// 64 transactions, one of them open nearly all the time.
const SCENARIO: &str = r#"
name = "traced"
story = "Small transactions, schema changes, and one that is open beside them."
seed = 1

[[tables]]
name = "t"
columns = ["id int", "v text"]

[[actors]]
name = "long"
transactions = 1
steps = [{ insert = { table = "t" } }, { wait = "6s" }, { insert = { table = "t" } }]

[[actors]]
name = "writers"
sessions = 2
transactions = 30
every = "200ms"
steps = [{ insert = { table = "t" } }]

[[actors]]
name = "changer"
transactions = 3
every = "1s"
steps = [{ add_column = { table = "t", column = "c_{n} int" } }]
"#;

/// Its transactions.
const TRANSACTIONS: usize = 64;

/// How long to wait for what must come.
const LIMIT: Duration = Duration::from_secs(60);

/// The collector's program, which `make test` installs. Where it is missing that is a failure if `CI` is set, else it is said aloud.
fn collector() -> Option<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let libraries = repository.join(".tools/venv/lib");
    let installed = std::fs::read_dir(&libraries).ok().into_iter().flatten().flatten();
    let found = installed.map(|python| python.path().join("site-packages/rotel/rotel-agent")).find(|path| path.exists());
    if found.is_none() {
        let reason = format!("no collector below {}; `make test` installs it", libraries.display());
        assert!(std::env::var_os("CI").is_none(), "{reason}");
        eprintln!("SKIPPED: {reason}");
    }
    found
}

/// What somebody who uses the nodes is traced by.
fn consumer(service_name: &str, collector: &str) -> (Tracer, Guard) {
    let role = Role { service_name: service_name.to_owned(), instance_id: service_name.to_owned() };
    let export = Export::Collector { endpoint: collector.to_owned(), protocol: Protocol::Grpc };
    telemetry::start(&role, &TelemetryConfig::default(), export).unwrap()
}

/// Every transaction's spans, one each.
const OF_EACH: [(&str, &str); 5] = [
    ("walstorm-primary", "transaction"),
    ("walstorm-decoder", "decode transaction"),
    ("walstorm-decoder", "publish transaction"),
    ("walstorm-subscriber", "receive transaction"),
    ("walstorm-standby", "apply"),
];

/// Waits until the store has them.
fn wait_for_spans(store: &str) -> BTreeMap<String, Span> {
    let begun = Instant::now();
    loop {
        let spans = spans(store).unwrap();
        let counts = OF_EACH.map(|(service, name)| count(&spans, service, name));
        if counts == [TRANSACTIONS; 5] {
            return spans;
        }
        assert!(begun.elapsed() < LIMIT, "{OF_EACH:?}: {counts:?} of {TRANSACTIONS}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn spans_of_programs_are_whole_traces_behind_a_collector_and_a_restart() {
    let Some(collector) = collector() else { return };
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("traced.toml"), SCENARIO).unwrap();
    let store = TraceUi::start(0).await.unwrap();
    let (_collector, endpoint) = start_collector(&collector, &store, dir.path()).await;
    let scenario = dir.path().join("traced.toml");
    let source = ["--scenario", scenario.to_str().unwrap(), "--clock", "real", "--wait-for-slots", "decoder"];
    let node = |name, args: &[&str]| Program::node(name, args, dir.path(), &endpoint).unwrap();
    let (primary, at) = node("walstorm-primary", &source);
    let at = format!("http://{at}");
    let decoder_args = ["--primary", &at, "--slot", "decoder"];
    let (decoder, decoder_at) = node("walstorm-decoder", &decoder_args);
    let (standby, standby_at) = node("walstorm-standby", &["--primary", &at]);
    let (reader, reader_guard) = consumer("walstorm-reader", &endpoint);
    let sampler = Sampler::new(&SamplingConfig { ratio: 1.0, ..SamplingConfig::default() }).unwrap();
    let server = standby_at.parse().unwrap();
    let readers = Readers::start(server, 2, 20, ReaderTrace { tracer: reader, sampler, server }).await.unwrap();

    // While the long one is open, whoever stops and starts again goes on with it.
    let untraced = Subscriber::start(decoder_at.parse().unwrap(), Tracer::off()).await.unwrap();
    wait_for_transactions(&untraced, 10).await;
    tokio::task::spawn_blocking(move || decoder.stop()).await.unwrap().unwrap();
    let (decoder, decoder_at) = node("walstorm-decoder", &decoder_args);
    let (tracer, subscriber_guard) = consumer("walstorm-subscriber", &endpoint);
    let subscriber = Subscriber::start(decoder_at.parse().unwrap(), tracer).await.unwrap();
    wait_for_transactions(&subscriber, TRANSACTIONS as u64).await;
    let taken = readers.finish().await;
    assert!(taken.snapshots > 0, "{taken:?}");
    subscriber_guard.shutdown().await;
    reader_guard.shutdown().await;
    for node in [decoder, standby, primary] {
        tokio::task::spawn_blocking(move || node.stop()).await.unwrap().unwrap();
    }

    let url = store.url();
    let spans = tokio::task::spawn_blocking(move || wait_for_spans(&url)).await.unwrap();
    check(&spans);
    let services = jaeger::get(&store.url(), "services").unwrap()["data"].clone();
    assert_eq!(services, serde_json::json!(["walstorm-primary", "walstorm-reader"]), "who begins traces");
}

/// Starts the collector between the nodes and the store; gives where it receives.
async fn start_collector(program: &Path, store: &TraceUi, dir: &Path) -> (Program, String) {
    // It takes no port 0: two that were free a moment ago.
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (grpc, http) = (free(), free());
    let log = std::fs::File::create(dir.join("collector.log")).unwrap();
    let mut command = Command::new(program);
    command.args(["start", "--otlp-grpc-endpoint", &grpc.to_string(), "--otlp-http-endpoint", &http.to_string()]);
    command.args([
        "--exporter",
        "otlp",
        "--otlp-exporter-protocol",
        "http",
        "--batch-timeout",
        "100ms",
        "--otlp-exporter-endpoint",
    ]);
    command
        .arg(store.url().trim_end_matches('/'))
        .env_clear()
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log);
    let collector = Program::spawn(&mut command).unwrap();
    let begun = Instant::now();
    while tokio::net::TcpStream::connect(grpc).await.is_err() {
        assert!(begun.elapsed() < LIMIT, "{}", std::fs::read_to_string(dir.join("collector.log")).unwrap());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    (collector, format!("http://{grpc}"))
}

/// Waits until a subscriber has so many transactions.
async fn wait_for_transactions(subscriber: &Subscriber, transactions: u64) {
    let begun = Instant::now();
    while subscriber.received().counts.transactions < transactions {
        assert!(begun.elapsed() < LIMIT, "{:?} of {transactions}", subscriber.received());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Edges between services, links, roots and kinds.
fn check(spans: &BTreeMap<String, Span>) {
    let mut edges = BTreeSet::new();
    for span in spans.values() {
        let registered = SPANS.iter().find(|registered| registered.name == span.name);
        let kind = format!("{:?}", registered.unwrap_or_else(|| panic!("{span:?} has no name of ours")).kind).to_lowercase();
        assert_eq!(span.kind, kind, "{span:?}");
        for link in &span.links {
            let linked = spans.get(link).unwrap_or_else(|| panic!("{span:?} links to {link}, which is nowhere"));
            assert_eq!(linked.name, "transaction");
        }
        let Some(parent) = &span.parent else {
            let roots = ["transaction", "send wal", "walstorm.standby.v1.StandbyService/TakeSnapshot"];
            assert!(roots.contains(&span.name.as_str()), "{span:?} is a root");
            continue;
        };
        let parent = spans.get(parent).unwrap_or_else(|| panic!("{span:?} is an orphan"));
        assert_eq!(parent.trace, span.trace);
        if parent.service != span.service {
            edges.insert((parent.service.as_str(), span.service.as_str(), span.name.as_str()));
        }
    }
    let wanted = [
        ("walstorm-decoder", "walstorm-subscriber", "receive transaction"),
        ("walstorm-primary", "walstorm-decoder", "decode transaction"),
        ("walstorm-primary", "walstorm-decoder", "process wal"),
        ("walstorm-primary", "walstorm-standby", "apply"),
        ("walstorm-primary", "walstorm-standby", "process wal"),
        // Who reads calls the standby.
        ("walstorm-reader", "walstorm-standby", "take snapshot"),
    ];
    assert_eq!(edges, wanted.into());
}
