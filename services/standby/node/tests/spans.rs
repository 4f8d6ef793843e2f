//! Traces: every sampled transaction has its `apply` span in its own trace, and every batch links to the transactions in it.
#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use pg_types::RecordBody;
use pg_wal::profile::WalProfile;
use pg_wal::record::{Crc, decode_bytes};
use serde_json::Value;
use service_kit::telemetry::context::{format_traceparent, to_message};
use service_kit::telemetry::{Export, SpanFile, WalId};
use service_kit::{Drain, SystemClock};
use standby_node::StandbyNode;
use support::scripted_primary::ScriptedPrimary;
use support::{Wal, channel, config, wait_for};
use tonic::Request;
use walstorm_proto::standby::v1::TakeSnapshotRequest;
use walstorm_proto::standby::v1::standby_service_client::StandbyServiceClient;
use walstorm_proto::wal::v1::TransactionContext;

/// A context for every commit; every third one is sampled.
fn contexts(wal: &Wal) -> Vec<TransactionContext> {
    let id = WalId { system_id: wal.identity.system_id, timeline: wal.identity.timeline };
    let profile = WalProfile::of(wal.identity.version);
    let records = wal.records.iter().map(|r| decode_bytes(profile, r.lsn, r.end_lsn, &r.bytes, Crc::Check).unwrap());
    let commits = records.filter(|r| matches!(r.body, RecordBody::Commit(_)));
    let context = |(i, r): (usize, pg_types::WalRecord)| {
        to_message(r.xid.numeric(), r.lsn.0, &id.transaction_context(r.lsn.0, i.is_multiple_of(3)))
    };
    commits.enumerate().map(context).collect()
}

/// All spans of a file of OTLP JSON lines, with the name of their service.
fn spans(text: &str) -> Vec<(String, Value)> {
    let mut spans = Vec::new();
    for line in text.lines() {
        let request: Value = serde_json::from_str(line).unwrap();
        for resource in request["resourceSpans"].as_array().unwrap() {
            let attributes = resource["resource"]["attributes"].as_array().unwrap();
            let service = attributes.iter().find(|a| a["key"] == "service.name").unwrap();
            let service = service["value"]["stringValue"].as_str().unwrap();
            for scope in resource["scopeSpans"].as_array().unwrap() {
                spans.extend(scope["spans"].as_array().unwrap().iter().map(|s| (service.to_owned(), s.clone())));
            }
        }
    }
    spans
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sampled_transaction_has_its_apply_span_and_every_batch_its_links() {
    let wal = Wal::standby("pg18");
    let end = wal.end();
    let contexts = contexts(&wal);
    let sampled: BTreeMap<String, String> = contexts
        .iter()
        .filter(|c| c.traceparent.ends_with("-01"))
        .map(|c| (c.traceparent[3..35].to_owned(), c.traceparent[36..52].to_owned()))
        .collect();
    assert!(sampled.len() > 100 && sampled.len() < contexts.len() / 2);

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("traces.jsonl");
    let export = Export::File(SpanFile::open(&path).unwrap());
    let primary = ScriptedPrimary::start(wal, end).await;
    primary.change(|s| s.contexts = contexts.clone());
    let mut config = config(&primary);
    config.telemetry.shutdown_timeout = Duration::from_secs(60);
    let node = StandbyNode::start_with(config, export, Arc::new(SystemClock::new()), Drain::new()).await.unwrap();
    wait_for(&node, |p| p.replay_lsn == end).await;

    // A caller with a sampled context gets a span in its own trace; one without gets none.
    let mut client = StandbyServiceClient::new(channel(node.addr()).await);
    client.take_snapshot(TakeSnapshotRequest::default()).await.unwrap();
    let caller = WalId { system_id: 1, timeline: 1 }.transaction_context(8, true);
    let mut request = Request::new(TakeSnapshotRequest::default());
    request.metadata_mut().insert("traceparent", format_traceparent(&caller).parse().unwrap());
    client.take_snapshot(request).await.unwrap();
    node.shutdown().await.unwrap();

    let spans = spans(&std::fs::read_to_string(path).unwrap());
    assert!(spans.iter().all(|(service, _)| service == "walstorm-standby"));
    let named = |name: &str| spans.iter().map(|(_, s)| s).filter(|s| s["name"] == name).collect::<Vec<_>>();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let applied: BTreeMap<_, _> = named("apply").iter().map(|s| (text(&s["traceId"]), text(&s["parentSpanId"]))).collect();
    assert_eq!(applied, sampled);
    let linked: BTreeSet<_> = named("process wal")
        .iter()
        .flat_map(|s| s["links"].as_array().unwrap())
        .map(|link| (text(&link["traceId"]), text(&link["spanId"])))
        .collect();
    assert_eq!(linked, sampled.into_iter().collect());
    let snapshots = named("take snapshot");
    assert_eq!(snapshots.len(), 1);
    assert_eq!(text(&snapshots[0]["traceId"]), caller.trace_id().to_string());
}
