//! Every committed transaction that the primary samples has its decode span in its own trace.

#![allow(clippy::unwrap_used, reason = "a panic here is a test's report")]

mod support;

use std::collections::{HashMap, HashSet};
use std::path::Path;

use decoder_node::DecoderNode;
use pg_types::Lsn;
use serde_json::Value;
use service_kit::telemetry::WalId;
use support::{Subscription, config, expected, fixture, folder, start};

/// The spans in a file of OTLP JSON lines.
fn spans(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    let mut spans = Vec::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        for resource in line["resourceSpans"].as_array().unwrap() {
            for scope in resource["scopeSpans"].as_array().unwrap() {
                spans.extend(scope["spans"].as_array().unwrap().iter().cloned());
            }
        }
    }
    spans
}

/// A text attribute of a span.
fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let attributes = span["attributes"].as_array().unwrap();
    &attributes.iter().find(|a| a["key"] == key).unwrap_or_else(|| panic!("{key} in {span}"))["value"]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_sampled_transaction_has_its_decode_span_in_its_trace() {
    let wal = fixture(16);
    let (items, end) = expected(wal.path());
    let ((_a, primary_data), (_b, data)) = (folder(), folder());
    let mut settings = primary_node::PrimaryConfig { data_dir: primary_data.clone(), ..Default::default() };
    settings.source.wal_dir = Some(wal.path().to_owned());
    settings.server.listen = "127.0.0.1:0".to_owned();
    settings.telemetry.sampling.ratio = 1.0;
    let primary = primary_node::PrimaryNode::start(settings).await.unwrap();
    let mut settings = config(primary.addr(), &data);
    let file = data.join("traces.jsonl");
    settings.telemetry.file = Some(file.clone());
    let node = DecoderNode::start(settings).await.unwrap();
    let (mut subscription, started) = Subscription::open_when_ready(node.addr(), start()).await;
    subscription.read_to(end).await;
    drop(subscription);
    node.shutdown().await.unwrap();
    primary.shutdown().await.unwrap();

    let spans = spans(&file);
    let named = |name: &str| spans.iter().filter(|s| s["name"] == name).collect::<Vec<_>>();
    let decoded: HashMap<&str, &Value> =
        named("decode transaction").into_iter().map(|s| (s["traceId"].as_str().unwrap(), s)).collect();
    let wal_id = WalId { system_id: started.system_id, timeline: started.timeline };
    let commits: Vec<&str> = items.iter().filter(|i| i.what.starts_with("commit")).map(|i| i.what.as_str()).collect();
    assert!(commits.len() > 200);
    for commit in &commits {
        let parts: Vec<&str> = commit.split(' ').collect();
        let commit_lsn: Lsn = parts[2].parse().unwrap();
        let (trace, root) = wal_id.transaction_ids(commit_lsn.0);
        let span = decoded.get(trace.to_string().as_str()).unwrap_or_else(|| panic!("{commit} has no decode span"));
        assert_eq!(span["parentSpanId"], root.to_string());
        assert_eq!(attribute(span, "walstorm.commit_lsn")["stringValue"], commit_lsn.to_string());
        assert_eq!(attribute(span, "walstorm.xid")["intValue"], parts[1]);
    }
    assert_eq!(decoded.len(), commits.len());

    let ids: HashSet<&str> = decoded.values().map(|s| s["spanId"].as_str().unwrap()).collect();
    let executed = named("execute invalidations");
    assert!(executed.len() > 10 && executed.iter().all(|s| ids.contains(s["parentSpanId"].as_str().unwrap())));

    let linked: HashSet<&str> = named("process wal")
        .iter()
        .flat_map(|s| s["links"].as_array().unwrap())
        .map(|link| link["traceId"].as_str().unwrap())
        .collect();
    // Batches also link to commits that gave nothing out; beyond a limit a span's links are only counted.
    assert!(linked.iter().filter(|trace| decoded.contains_key(*trace)).count() > 100);
}
