//! Traces made up for tests.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::borrow::Cow;
use std::io::Write;

use trace_analysis::store::{Attributes, StoreConfig};
use trace_analysis::{Link, Source, Span, SpanId, TraceId, TraceStore, Value, skew};

/// A span made up.
pub(crate) fn span(
    service: &'static str,
    name: &'static str,
    trace: u64,
    id: u64,
    parent: u64,
    start: u64,
    end: u64,
) -> Span<'static> {
    Span {
        service,
        instance: "",
        name: Cow::Borrowed(name),
        trace: TraceId { high: 0, low: trace },
        id: SpanId(id),
        parent: SpanId(parent),
        start,
        end,
        attributes: Vec::new(),
        links: Vec::new(),
        links_dropped: 0,
        error: None,
    }
}

/// The same with links to spans of other traces.
pub(crate) fn linked(mut span: Span<'static>, to: &[(u64, u64)]) -> Span<'static> {
    span.links = to.iter().map(|(trace, id)| Link { trace: TraceId { high: 0, low: *trace }, span: SpanId(*id) }).collect();
    span
}

/// The same with an attribute.
pub(crate) fn with(mut span: Span<'static>, key: &'static str, value: i64) -> Span<'static> {
    span.attributes.push((Cow::Borrowed(key), Value::Int(value)));
    span
}

/// A store of them, finished, with all attributes.
pub(crate) fn store(spans: &[Span<'_>]) -> TraceStore {
    let mut store = TraceStore::new(StoreConfig { attributes: Attributes::All, ..StoreConfig::default() });
    spans.iter().for_each(|span| store.push(span).unwrap());
    store.finish();
    skew::survey(&mut store);
    store
}

/// One transaction, number `n`, as walstorm's nodes trace it, in microseconds: committed at 0, sent from 10 to 12 after 2 of waiting for
/// credit, received at 15, decoded from 20 to 25.
pub(crate) fn transaction(n: u64) -> Vec<Span<'static>> {
    let at = |us: u64| 1_000_000_000 + n * 1_000_000 + us * 1000;
    let (own, batch) = (1000 + n, 900_000_000 + n);
    let send = span("primary", "send wal", batch, 1, 0, at(10), at(12));
    vec![
        span("primary", "transaction", own, 1, 0, at(0), at(0)),
        with(linked(send, &[(own, 1)]), "walstorm.credit_wait_ns", 2000),
        linked(span("decoder", "process wal", batch, 2, 1, at(15), at(30)), &[(own, 1)]),
        with(span("decoder", "decode transaction", own, 2, 1, at(20), at(25)), "walstorm.xid", n as i64),
    ]
}

/// Spans as one line of OTLP JSON, a group for each.
pub(crate) fn json_line(spans: &[Span<'_>]) -> String {
    let groups: Vec<serde_json::Value> = spans.iter().map(group).collect();
    serde_json::json!({ "resourceSpans": groups }).to_string() + "\n"
}

/// A span with its resource.
fn group(span: &Span<'_>) -> serde_json::Value {
    let parent = if span.parent.is_zero() { String::new() } else { span.parent.to_string() };
    let links: Vec<_> = span
        .links
        .iter()
        .map(|to| serde_json::json!({ "traceId": to.trace.to_string(), "spanId": to.span.to_string() }))
        .collect();
    let attributes: Vec<_> = span
        .attributes
        .iter()
        .map(|(key, value)| serde_json::json!({ "key": key, "value": { "intValue": value.to_string() } }))
        .collect();
    serde_json::json!({
        "resource": { "attributes": [{ "key": "service.name", "value": { "stringValue": span.service } }] },
        "scopeSpans": [{ "spans": [{
            "traceId": span.trace.to_string(), "spanId": span.id.to_string(), "parentSpanId": parent, "name": span.name, "kind": 1,
            "startTimeUnixNano": span.start.to_string(), "endTimeUnixNano": span.end.to_string(),
            "attributes": attributes, "links": links, "droppedLinksCount": span.links_dropped, "events": [], "status": {},
        }] }],
    })
}

/// A file with these bytes, as a source.
pub(crate) fn source(bytes: &[u8]) -> (tempfile::TempDir, Source) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in");
    std::fs::File::create(&path).unwrap().write_all(bytes).unwrap();
    let source = Source::files(&[path], false).unwrap();
    (dir, source)
}
