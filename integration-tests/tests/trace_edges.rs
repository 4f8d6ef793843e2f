//! Walks the spans of a run: every committed transaction has its spans of primary, decoder and standby in one trace.
#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use integration_tests::otlp::{self, Span};
use integration_tests::wal_fixture::{WalFixture, ends};
use integration_tests::{Cluster, ClusterConfig, Subscriber};
use pg_wal::WalDir;
use primary_node::config::SourceConfig;
use service_kit::telemetry::{Export, SamplingConfig, SpanFile, WalId};
use standby_node::config::SizeSettings;

/// Plays a source with every transaction traced; gives the spans and how many transactions the decoder gave out.
async fn spans_of(source: SourceConfig, data_dir: &Path, catalog: Option<&Path>) -> (Vec<Span>, u64) {
    let path = data_dir.join("traces.jsonl");
    std::fs::create_dir_all(data_dir).unwrap();
    let config = ClusterConfig {
        options: decoder_core::PluginOptions::default(),
        source,
        data_dir: data_dir.to_owned(),
        decoder_profile: "indexed".to_owned(),
        standby_profile: None,
        standby_settings: SizeSettings { max_prepared_transactions: 10, max_connections: 5000, ..SizeSettings::default() },
        catalog: catalog.map(Path::to_owned),
        sampling: SamplingConfig { ratio: 1.0, ..SamplingConfig::default() },
        export: Export::File(SpanFile::open(&path).unwrap()),
    };
    let cluster = Cluster::start(config).await.unwrap();
    let subscriber = Subscriber::start(cluster.decoder.addr(), cluster.subscriber.clone()).await.unwrap();
    let reached = cluster.finished().await.unwrap();
    assert_eq!(reached.stopped, Vec::<String>::new());
    let transactions = subscriber.finished(reached.end).await.unwrap().transactions;
    cluster.shutdown().await.unwrap();
    (otlp::read(&path).unwrap(), transactions)
}

/// Checks the edges for every transaction that commits in `wal`.
fn check_edges(spans: &[Span], wal: &Path, decoded: u64) {
    let identity = WalDir::open(wal, None).unwrap().identity();
    let id = WalId { system_id: identity.system_id, timeline: identity.timeline };
    let mut by_trace: BTreeMap<&str, Vec<&Span>> = BTreeMap::new();
    spans.iter().for_each(|span| by_trace.entry(&span.trace_id).or_default().push(span));
    let mut transactions = BTreeSet::new();
    let mut decode_spans = 0;
    let commits: Vec<_> = ends(wal).unwrap().into_iter().filter(|end| end.committed).collect();
    for commit in &commits {
        let (trace, root) = id.transaction_ids(commit.lsn.0);
        let (trace, root) = (trace.to_string(), root.to_string());
        let of_trace = by_trace.get(trace.as_str()).unwrap_or_else(|| panic!("no span of {} at {}", commit.xid, commit.lsn));
        let named = |service: &str, name: &str| {
            let mut found = of_trace.iter().filter(|span| span.service == service && span.name == name);
            let span = found.next();
            assert!(found.next().is_none(), "two spans '{name}' of {} at {}", commit.xid, commit.lsn);
            span
        };
        let transaction = named("walstorm-primary", "transaction").unwrap();
        assert_eq!((transaction.span_id.as_str(), transaction.parent.as_str()), (root.as_str(), ""));
        let apply = named("walstorm-standby", "apply").unwrap_or_else(|| panic!("{} is not applied", commit.xid));
        assert_eq!(apply.parent, root);
        assert_eq!(apply.attribute("walstorm.xid"), commit.xid.to_string());
        assert_eq!(apply.attribute("walstorm.commit_lsn"), commit.lsn.to_string());
        if let Some(decode) = named("walstorm-decoder", "decode transaction") {
            assert_eq!(decode.parent, root);
            assert_eq!(decode.attribute("walstorm.commit_lsn"), commit.lsn.to_string());
            let publish = named("walstorm-decoder", "publish transaction").unwrap();
            let receive = named("walstorm-subscriber", "receive transaction").unwrap();
            assert_eq!((&publish.parent, &receive.parent), (&decode.span_id, &publish.span_id));
            decode_spans += 1;
        }
        // Whenever it committed, its trace is of the run that it is played in.
        let begun = of_trace.iter().map(|span| span.end_ns).min().unwrap();
        let ended = of_trace.iter().map(|span| span.end_ns).max().unwrap();
        assert!(ended - begun < 3600 * 1_000_000_000, "{} to {}", begun, ended);
        assert!(!transaction.attribute("walstorm.commit_time").is_empty(), "it was moved");
        transactions.insert((trace, root));
    }
    // A batch has at most 128 links, so not every transaction of a large one is linked; but every batch links, to what commits in it.
    for (who, name) in
        [("walstorm-primary", "send wal"), ("walstorm-decoder", "process wal"), ("walstorm-standby", "process wal")]
    {
        let batches: Vec<_> = spans.iter().filter(|span| span.service == who && span.name == name).collect();
        assert!(batches.iter().all(|batch| !batch.links.is_empty()), "{who} has a batch without links");
        let links: BTreeSet<_> = batches.iter().flat_map(|batch| batch.links.iter().cloned()).collect();
        assert!(links.len() >= transactions.len().min(128), "{who} links to {} of {}", links.len(), transactions.len());
        assert!(links.is_subset(&transactions), "{who} links to something else");
    }
    assert_eq!(decode_spans, decoded, "every transaction that was given out has its decode span");
    assert!(decoded > 0 && decoded as usize <= commits.len());

    let senders: BTreeSet<_> = spans.iter().filter(|s| s.name == "send wal").map(|s| s.span_id.as_str()).collect();
    let mut receivers = spans.iter().filter(|s| s.name == "process wal").peekable();
    assert!(
        receivers.peek().is_some() && receivers.all(|s| senders.contains(s.parent.as_str())),
        "batches are received as sent"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_transaction_of_real_wal_is_one_trace_through_three_nodes() {
    let fixture = WalFixture::unpack("pg18").unwrap();
    let source = SourceConfig { wal_dir: Some(fixture.wal()), ..SourceConfig::default() };
    let (spans, decoded) = spans_of(source, &fixture.scratch(), Some(&fixture.catalog())).await;
    assert_eq!(decoded, 279);
    check_edges(&spans, &fixture.wal(), decoded);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_transaction_of_a_scenario_is_one_trace_through_three_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let parameters = [("duration", "1s"), ("longest", "1s")].map(|(name, value)| (name.to_owned(), value.into()));
    let source = SourceConfig {
        scenario: Some("standby-gaps".to_owned()),
        parameters: parameters.into(),
        fsync: false,
        ..SourceConfig::default()
    };
    let (spans, decoded) = spans_of(source, dir.path(), None).await;
    check_edges(&spans, &dir.path().join("primary/wal"), decoded);
}

/// WAL of 18.6 in which applications handed their traces over (`data/traceparent.sql`).
#[tokio::test(flavor = "multi_thread")]
async fn traces_of_applications_go_on_through_the_wal_of_a_real_server() {
    let dir = tempfile::tempdir().unwrap();
    let packed = std::fs::File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/traceparent.tar.zst")).unwrap();
    let wal = dir.path().join("wal");
    tar::Archive::new(zstd::Decoder::new(packed).unwrap()).unpack(&wal).unwrap();
    let source = SourceConfig { wal_dir: Some(wal), ..SourceConfig::default() };
    let (spans, decoded) = spans_of(source, &dir.path().join("run"), None).await;
    assert_eq!(decoded, 3);
    let handed_over =
        [("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"), ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")];
    for (trace, parent) in handed_over {
        let mut names: Vec<_> = spans.iter().filter(|span| span.trace_id == trace).map(|span| span.name.as_str()).collect();
        names.sort_unstable();
        let wanted = ["apply", "decode transaction", "publish transaction", "receive transaction", "transaction"];
        assert_eq!(names, wanted, "{trace}");
        let root = spans.iter().find(|span| span.trace_id == trace && span.name == "transaction").unwrap();
        assert_eq!((root.parent.as_str(), root.attribute("walstorm.application_trace")), (parent, "true"));
    }
    let own = spans.iter().filter(|span| span.name == "transaction" && span.parent.is_empty());
    assert!(own.clone().count() > 0 && own.clone().all(|span| span.attribute("walstorm.application_trace").is_empty()));
}
