//! The primary's spans: one `transaction` for each sampled commit however many streams read it, `send wal` linked to them.

use std::collections::BTreeSet;
use std::sync::Arc;

use primary_node::PrimaryNode;
use serde_json::Value;
use service_kit::telemetry::{Export, SpanFile, WalId};
use service_kit::{Drain, SystemClock};
use walstorm_proto::primary::v1 as pb;

use crate::support::{self, Node, fixture, start};

/// All spans of a file of OTLP JSON lines.
fn spans(path: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let list = |v: &Value, key: &str| v[key].as_array().cloned().unwrap_or_default();
    lines
        .flat_map(|line| list(&line, "resourceSpans"))
        .flat_map(|r| list(&r, "scopeSpans"))
        .flat_map(|s| list(&s, "spans"))
        .collect()
}

/// The value of an attribute, as text.
fn attribute(span: &Value, key: &str) -> Option<String> {
    let attribute = span["attributes"].as_array()?.iter().find(|a| a["key"] == key)?;
    let value = attribute["value"].as_object()?.values().next()?;
    Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

#[tokio::test]
async fn every_commit_has_one_span_and_every_batch_links_to_its_own() {
    let (wal, data) = (fixture(18), tempfile::tempdir().unwrap());
    let file = data.path().join("traces.jsonl");
    let mut config = support::config(wal.path(), data.path());
    config.telemetry.sampling.ratio = 1.0;
    let export = Export::File(SpanFile::open(&file).unwrap());
    let node = PrimaryNode::start_with(config, export, Arc::new(SystemClock::new()), Drain::new()).await.unwrap();
    let channel = tonic::transport::Channel::from_shared(format!("http://{}", node.addr())).unwrap().connect().await.unwrap();
    let node = Node { node, data, channel };
    let (raw, typed) = (start(), pb::StreamStart { encoding: pb::Encoding::Typed.into(), ..start() });
    let (mut first, mut second) = (node.open(raw).await, node.open(typed).await);
    let ((batches, a), (_, b)) = tokio::join!(first.drain(), second.drain());
    a.and(b).unwrap();
    let system_id = node.node.log().identity().system_id;
    let _data = node.stop().await;

    let spans = spans(&file);
    let commits: Vec<u64> = batches.iter().flat_map(|b| b.contexts.iter().map(|c| c.commit_lsn)).collect();
    let roots: Vec<&Value> = spans.iter().filter(|s| s["name"] == "transaction").collect();
    assert_eq!(roots.len(), commits.len());
    let expected: BTreeSet<(String, String)> = commits
        .iter()
        .map(|lsn| WalId { system_id, timeline: 1 }.transaction_ids(*lsn))
        .map(|(trace, span)| (trace.to_string(), span.to_string()))
        .collect();
    let ids = |v: &Value| (v["traceId"].as_str().unwrap().to_owned(), v["spanId"].as_str().unwrap().to_owned());
    assert_eq!(roots.iter().map(|s| ids(s)).collect::<BTreeSet<_>>(), expected);
    assert!(roots.iter().all(|s| attribute(s, "walstorm.xid").is_some() && attribute(s, "walstorm.commit_lsn").is_some()));

    let sends: Vec<&Value> = spans.iter().filter(|s| s["name"] == "send wal").collect();
    let sent: BTreeSet<String> = sends.iter().map(|s| format!("00-{}-{}-01", ids(s).0, ids(s).1)).collect();
    for batch in batches.iter().filter(|b| !b.contexts.is_empty()) {
        assert!(sent.contains(&batch.traceparent), "the batch carries its span's context");
    }
    for send in sends {
        let links = send["links"].as_array().unwrap();
        assert!(!links.is_empty() && links.iter().all(|l| expected.contains(&ids(l))));
    }
}
