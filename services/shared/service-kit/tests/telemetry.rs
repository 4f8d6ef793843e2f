//! Spans from tracer to file and to a collector.

use std::path::Path;
use std::time::{Duration, SystemTime};

use opentelemetry::trace::SpanContext;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::trace::v1::Span;
use service_kit::telemetry::{self, Export, Guard, Protocol, Role, SpanFile, TelemetryConfig, Tracer, WalId, names};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status};

const WAL: WalId = WalId { system_id: 42, timeline: 1 };

/// A moment `seconds` after 1970.
fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// Starts tracing for a role.
fn start(name: &str, export: Export, config: &TelemetryConfig) -> (Tracer, Guard) {
    let role = Role { service_name: format!("walstorm-{name}"), instance_id: format!("{name}-0") };
    telemetry::start(&role, config, export).expect("started")
}

/// The requests in a file, each line parsed.
fn requests(path: &Path) -> Vec<ExportTraceServiceRequest> {
    let text = std::fs::read_to_string(path).expect("the file is there");
    text.lines().map(|line| serde_json::from_str(line).expect("a line is a request")).collect()
}

/// All spans with the service that made them.
fn spans(requests: &[ExportTraceServiceRequest]) -> Vec<(String, Span)> {
    let mut found = Vec::new();
    for resource in requests.iter().flat_map(|r| &r.resource_spans) {
        let attributes = &resource.resource.as_ref().expect("a resource").attributes;
        let service = attributes.iter().find(|a| a.key == "service.name").and_then(|a| a.value.clone());
        let service = serde_json::to_value(service).expect("json")["stringValue"].as_str().expect("text").to_owned();
        found.extend(resource.scope_spans.iter().flat_map(|s| &s.spans).map(|s| (service.clone(), s.clone())));
    }
    found
}

/// One transaction through all three roles; gives the transaction's context.
fn pass_through(primary: &Tracer, decoder: &Tracer, standby: &Tracer, commit_lsn: u64) -> SpanContext {
    let context = WAL.transaction_context(commit_lsn, true);
    let mut span = primary.transaction(&context, None, at(10)).expect("sampled");
    span.number(names::XID, 742).lsn(names::COMMIT_LSN, commit_lsn);
    span.end(at(11));
    let batch = primary.send_wal([&context], at(12)).expect("a sampled transaction is in it");
    let sender = telemetry::context::parse_context(&telemetry::context::format_traceparent(batch.context()), "").expect("ours");
    batch.end(at(13));

    let received = telemetry::context::from_message(&telemetry::context::to_message(742, commit_lsn, &context)).expect("ours");
    decoder.process_wal(Some(&sender), [&received], at(14)).expect("sampled").end(at(20));
    let decode = decoder.decode_transaction(&received, at(15)).expect("sampled");
    decoder.execute_invalidations(decode.context(), at(16)).expect("sampled").end(at(17));
    decode.end(at(18));
    standby.apply(&received, at(15)).expect("sampled").end(at(16));
    context
}

#[tokio::test]
async fn three_roles_of_one_process_write_one_trace_into_one_file() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("traces.jsonl");
    let file = SpanFile::open(&path).expect("ours");
    let config = TelemetryConfig { export_interval: Duration::from_millis(1), ..TelemetryConfig::default() };
    let started = ["primary", "decoder", "standby"].map(|name| start(name, Export::File(file.clone()), &config));
    let [(primary, p), (decoder, d), (standby, s)] = started;
    let context = pass_through(&primary, &decoder, &standby, 0x16_B374_D848);
    for (guard, expected) in [(p, 2), (d, 3), (s, 1)] {
        let counts = guard.shutdown().await;
        assert_eq!((counts.exported, counts.dropped, counts.failed), (expected, 0, 0));
    }

    let spans = spans(&requests(&path));
    let span = |name: &str| &spans.iter().find(|(_, s)| s.name == name).unwrap_or_else(|| panic!("no {name}")).1;
    let (trace, root) = (context.trace_id().to_bytes().to_vec(), context.span_id().to_bytes().to_vec());
    assert_eq!((&span("transaction").trace_id, &span("transaction").span_id), (&trace, &root));
    assert!(span("transaction").parent_span_id.is_empty());
    for child in ["decode transaction", "apply"] {
        assert_eq!((&span(child).trace_id, &span(child).parent_span_id), (&trace, &root), "{child}");
    }
    assert_eq!(span("execute invalidations").parent_span_id, span("decode transaction").span_id);
    assert_eq!(span("process wal").parent_span_id, span("send wal").span_id);
    for batch in ["send wal", "process wal"] {
        assert_eq!((&span(batch).links[0].trace_id, &span(batch).links[0].span_id), (&trace, &root), "{batch}");
    }
    let services: Vec<_> = ["transaction", "decode transaction", "apply"]
        .map(|name| spans.iter().find(|(_, s)| s.name == name).map(|(service, _)| service.as_str()))
        .into();
    assert_eq!(services, [Some("walstorm-primary"), Some("walstorm-decoder"), Some("walstorm-standby")]);
    assert_eq!((span("apply").start_time_unix_nano, span("apply").end_time_unix_nano), (15_000_000_000, 16_000_000_000));
}

#[tokio::test]
async fn lines_are_in_otlps_json_encoding() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("traces.jsonl");
    let export = Export::File(SpanFile::open(&path).expect("ours"));
    let (tracer, guard) = start("primary", export, &TelemetryConfig::default());
    let context = WAL.transaction_context(0x1000, true);
    let mut span = tracer.transaction(&context, None, at(1)).expect("sampled");
    span.number(names::XID, u64::MAX).text(names::SLOT, "a\u{1b}[2J").flag(names::MARKED).fail("no\nway");
    span.end(at(0));
    guard.shutdown().await;

    let text = std::fs::read_to_string(&path).expect("written");
    assert_eq!(text.lines().count(), 1);
    let line: serde_json::Value = serde_json::from_str(&text).expect("json");
    let span = &line["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
    assert_eq!(span["traceId"], context.trace_id().to_string());
    assert_eq!(span["spanId"], context.span_id().to_string());
    assert_eq!(span["startTimeUnixNano"], "1000000000");
    assert_eq!(span["endTimeUnixNano"], "1000000000", "a span does not end before it begins");
    assert_eq!(span["attributes"][0]["key"], "walstorm.xid");
    assert_eq!(span["attributes"][0]["value"]["intValue"], i64::MAX.to_string());
    assert_eq!(span["attributes"][1]["value"]["stringValue"], "a\\u{1b}[2J");
    assert_eq!(span["attributes"][2]["value"]["boolValue"], true);
    assert_eq!(span["status"]["code"], 2);
    assert_eq!(span["status"]["message"], "no\\nway");
    assert_eq!(line["resourceSpans"][0]["scopeSpans"][0]["scope"]["name"], "walstorm");
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn what_is_not_sampled_makes_no_span() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("traces.jsonl");
    let (tracer, guard) = start("primary", Export::File(SpanFile::open(&path).expect("ours")), &TelemetryConfig::default());
    let (no, yes) = (WAL.transaction_context(8, false), WAL.transaction_context(16, true));
    assert!(tracer.transaction(&no, None, at(1)).is_none());
    assert!(tracer.send_wal([&no, &no], at(1)).is_none());
    assert!(tracer.process_wal(None, [&no], at(1)).is_none());
    assert!(tracer.decode_transaction(&no, at(1)).is_none());
    assert!(tracer.apply(&no, at(1)).is_none());
    assert!(tracer.take_snapshot(None, at(1)).is_none());
    assert!(tracer.take_snapshot(Some(&no), at(1)).is_none());
    assert!(Tracer::off().transaction(&yes, None, at(1)).is_none());
    drop(tracer.transaction(&yes, None, at(1)).expect("sampled"));
    assert_eq!(guard.shutdown().await.exported, 0);
    assert_eq!(std::fs::read_to_string(&path).expect("there"), "");
}

#[tokio::test]
async fn the_application_is_the_parent_of_a_continued_trace() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("traces.jsonl");
    let (tracer, guard) = start("primary", Export::File(SpanFile::open(&path).expect("ours")), &TelemetryConfig::default());
    let application =
        telemetry::context::parse_context("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "a=b").expect("good");
    let context = WAL.continued_context(0x2000, &application, true);
    tracer.transaction(&context, Some(&application), at(1)).expect("sampled").end(at(2));
    guard.shutdown().await;
    let (_, span) = spans(&requests(&path)).remove(0);
    assert_eq!(span.trace_id, application.trace_id().to_bytes());
    assert_eq!(span.parent_span_id, application.span_id().to_bytes());
    assert_eq!(span.span_id, WAL.transaction_ids(0x2000).1.to_bytes());
    assert_eq!(span.trace_state, "a=b");
}

#[tokio::test]
async fn links_are_capped_and_the_rest_counted() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("traces.jsonl");
    let (tracer, guard) = start("primary", Export::File(SpanFile::open(&path).expect("ours")), &TelemetryConfig::default());
    let contexts: Vec<_> = (1..=200).map(|i| WAL.transaction_context(i * 8, i % 20 != 0)).collect();
    tracer.send_wal(&contexts, at(1)).expect("sampled").end(at(2));
    guard.shutdown().await;
    let (_, span) = spans(&requests(&path)).remove(0);
    assert_eq!((span.links.len(), span.dropped_links_count), (128, 190 - 128));
}

#[tokio::test]
async fn a_full_queue_drops_and_counts_and_never_waits() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("traces.jsonl");
    let config = TelemetryConfig { queue_spans: 10, ..TelemetryConfig::default() };
    let (tracer, guard) = start("primary", Export::File(SpanFile::open(&path).expect("ours")), &config);
    // One thread, and no await: the exporting task cannot run in between.
    for lsn in 1..=25 {
        tracer.transaction(&WAL.transaction_context(lsn * 8, true), None, at(1)).expect("sampled").end(at(2));
    }
    assert_eq!(tracer.counts().dropped, 15);
    let counts = guard.shutdown().await;
    assert_eq!((counts.exported, counts.dropped), (10, 15));
    tracer.transaction(&WAL.transaction_context(8, true), None, at(1)).expect("sampled").end(at(2));
    assert_eq!(tracer.counts().dropped, 16, "after the end spans are dropped and counted");
    assert_eq!(spans(&requests(&path)).len(), 10);
}

/// A collector that passes on what it gets.
struct Collector(mpsc::UnboundedSender<ExportTraceServiceRequest>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        self.0.send(request.into_inner()).map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_gets_the_spans_over_grpc() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port 0 is free");
    let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
    let (tx, mut rx) = mpsc::unbounded_channel();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let router = tonic::transport::Server::builder().add_service(TraceServiceServer::new(Collector(tx)));
    let collector = tokio::spawn(router.serve_with_incoming(incoming));

    let config = TelemetryConfig { shutdown_timeout: Duration::from_secs(60), ..TelemetryConfig::default() };
    let (tracer, guard) = start("decoder", Export::Collector { endpoint, protocol: Protocol::Grpc }, &config);
    let context = WAL.transaction_context(0x3000, true);
    tracer.decode_transaction(&context, at(5)).expect("sampled").end(at(6));
    assert_eq!(guard.shutdown().await.exported, 1);
    let request = rx.recv().await.expect("a request came");
    let found = spans(&[request]);
    assert_eq!(found[0].0, "walstorm-decoder");
    assert_eq!(found[0].1.trace_id, context.trace_id().to_bytes());
    collector.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_away_costs_spans_but_not_the_end() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port 0 is free");
    // Listens, but nobody ever answers.
    let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
    let config = TelemetryConfig { shutdown_timeout: Duration::from_millis(50), ..TelemetryConfig::default() };
    let (tracer, guard) = start("decoder", Export::Collector { endpoint, protocol: Protocol::Grpc }, &config);
    tracer.decode_transaction(&WAL.transaction_context(8, true), at(5)).expect("sampled").end(at(6));
    let counts = tokio::time::timeout(Duration::from_secs(60), guard.shutdown()).await.expect("the end hangs");
    assert_eq!(counts.exported, 0);
}
