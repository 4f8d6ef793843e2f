//! What a client does wrong is answered with a typed status, and a decoder that cannot go on says why.

#![allow(clippy::unwrap_used, reason = "a panic here is a test's report")]

#[path = "errors/analysis.rs"]
mod analysis;
mod support;

use std::time::Duration;

use decoder_node::{DecoderConfig, DecoderNode, NodeError};
use pg_types::Lsn;
use primary_node::PrimaryNode;
use service_kit::client::describe;
use service_kit::status::{Reason, metadata_of, reason_of};
use support::{Item, Kind, Subscription, any, assert_same, config, connect, expected, fixture, primary, start};
use tempfile::TempDir;
use tonic::Status;
use walstorm_proto::admin::v1 as admin;
use walstorm_proto::admin::v1::admin_service_client::AdminServiceClient;
use walstorm_proto::decoder::v1 as pb;
use walstorm_proto::decoder::v1::decoder_service_client::DecoderServiceClient;
use walstorm_proto::decoder::v1::event;

/// A decoder that has decoded all of a fixture.
struct Ready {
    primary: PrimaryNode,
    node: DecoderNode,
    wal: TempDir,
    data: TempDir,
    items: Vec<Item>,
    end: Lsn,
}

impl Ready {
    async fn new(version: u32, change: fn(&mut DecoderConfig)) -> Self {
        let (wal, data) = (fixture(version), tempfile::tempdir().unwrap());
        let (items, end) = expected(wal.path());
        let primary = primary(wal.path(), &data.path().join("primary"), any()).await;
        let mut config = config(primary.addr(), &data.path().join("decoder"));
        change(&mut config);
        let node = DecoderNode::start(config).await.unwrap();
        support::decoded(&node, end).await;
        Self { primary, node, wal, data, items, end }
    }

    /// How a stream that begins so ends.
    async fn refused(&self, start: pb::SubscribeStart) -> Status {
        let mut subscription = Subscription::open(connect(self.node.addr()).await, start).await;
        match subscription.next().await {
            Err(status) => status,
            other => panic!("{other:?}"),
        }
    }

    async fn stop(self) -> (TempDir, TempDir) {
        self.node.shutdown().await.unwrap();
        self.primary.shutdown().await.unwrap();
        (self.wal, self.data)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_starts_are_refused_with_their_reason() {
    let ready = Ready::new(16, |_| ()).await;
    let cases = [
        (pb::SubscribeStart { max_outstanding_bytes: 0, ..start() }, Reason::RequestInvalid, "start.max_outstanding_bytes"),
        (
            pb::SubscribeStart { max_outstanding_batches: -1, ..start() },
            Reason::RequestInvalid,
            "start.max_outstanding_batches",
        ),
        (pb::SubscribeStart { subscription: "Orders".to_owned(), ..start() }, Reason::RequestInvalid, "start.subscription"),
        (pb::SubscribeStart { client_id: "x".repeat(300), ..start() }, Reason::RequestInvalid, "start.client_id"),
        (pb::SubscribeStart { from_lsn: 1, ..start() }, Reason::LsnRemoved, "oldestLsn"),
        (pb::SubscribeStart { from_lsn: ready.end.0 + (1 << 30), ..start() }, Reason::LsnAhead, "endLsn"),
    ];
    for (start, reason, names) in cases {
        let status = ready.refused(start).await;
        assert_eq!(reason_of(&status), Some(reason), "{status:?}");
        assert!(describe(&status).contains(names), "{}", describe(&status));
    }
    let negative = prost_types::Duration { seconds: i64::MIN, nanos: i32::MIN };
    let status = ready.refused(pb::SubscribeStart { heartbeat_interval: Some(negative), ..start() }).await;
    assert_eq!(reason_of(&status), Some(Reason::RequestInvalid), "{status:?}");
    ready.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscription_has_one_reader_and_its_own_client_may_take_it_over() {
    let ready = Ready::new(16, |c| c.subscriptions.streams_max = 2).await;
    let named =
        |client: &str| pb::SubscribeStart { subscription: "orders".to_owned(), client_id: client.to_owned(), ..start() };
    let (mut first, _) = Subscription::open_when_ready(ready.node.addr(), named("a")).await;
    let status = ready.refused(named("b")).await;
    assert_eq!((reason_of(&status), metadata_of(&status, "holder").as_deref()), (Some(Reason::SlotActive), Some("a")));
    let (second, _) = Subscription::open_when_ready(ready.node.addr(), named("a")).await;
    let status = loop {
        match first.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("it ended without a status"),
            Err(status) => break status,
        }
    };
    assert_eq!(reason_of(&status), Some(Reason::StreamTakenOver), "{status:?}");
    let (third, _) = Subscription::open_when_ready(ready.node.addr(), start()).await;
    let status = ready.refused(start()).await;
    assert_eq!(reason_of(&status), Some(Reason::StreamLimit), "{status:?}");
    drop((second, third));
    ready.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impossible_positions_and_silence_end_the_stream() {
    let ready = Ready::new(16, |_| ()).await;
    let addr = ready.node.addr();
    let end_of = async |mut subscription: Subscription| loop {
        if let Err(status) = subscription.next().await {
            return status;
        }
    };
    let (mut beyond, _) = Subscription::open_when_ready(addr, start()).await;
    beyond.read_to(ready.end).await;
    beyond.flush(Lsn(ready.end.0 + (1 << 30)), false).await;
    let status = end_of(beyond).await;
    assert_eq!(reason_of(&status), Some(Reason::AckOutOfOrder), "{status:?}");
    let (mut back, _) = Subscription::open_when_ready(addr, start()).await;
    back.read_to(ready.end).await;
    back.flush(ready.items[0].end_lsn, false).await;
    assert_eq!(reason_of(&end_of(back).await), Some(Reason::AckOutOfOrder));
    let timeout = Some(prost_types::Duration { seconds: 0, nanos: 200_000_000 });
    let (silent, _) = Subscription::open_when_ready(addr, pb::SubscribeStart { feedback_timeout: timeout, ..start() }).await;
    assert_eq!(reason_of(&end_of(silent).await), Some(Reason::FeedbackTimeout));
    ready.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_closing_ends_the_stream_after_what_there_is() {
    let ready = Ready::new(15, |_| ()).await;
    let (mut subscription, _) = Subscription::open_when_ready(ready.node.addr(), start()).await;
    subscription.requests = None;
    while let Some(kind) = subscription.next().await.unwrap() {
        subscription.take(kind);
    }
    assert_same(&subscription.items, &ready.items);
    ready.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_was_asked_for_is_sent() {
    let ready = Ready::new(16, |_| ()).await;
    let commits = pb::SubscribeStart { commits_only: true, ..start() };
    let (mut subscription, _) = Subscription::open_when_ready(ready.node.addr(), commits).await;
    subscription.requests = None;
    let mut found = Vec::new();
    while let Some(kind) = subscription.next().await.unwrap() {
        let Kind::Batch(batch) = kind else { continue };
        for event in batch.events() {
            let Some(event::Kind::Commit(commit)) = event.unwrap().kind else { panic!("commits only") };
            found.push(Lsn(commit.end_lsn));
        }
    }
    let expected: Vec<Lsn> = ready.items.iter().filter(|i| i.what.starts_with("commit")).map(|i| i.end_lsn).collect();
    assert_eq!(found, expected);

    let touched = ready.items.iter().filter(|i| i.what.starts_with("1663/")).map(|i| i.what.split(' ').next().unwrap());
    let relation = touched.max().unwrap();
    let filtered = pb::SubscribeStart { relations: vec![relation.to_owned()], ..start() };
    let (mut subscription, _) = Subscription::open_when_ready(ready.node.addr(), filtered).await;
    subscription.read_to(ready.end).await;
    let changes = |items: &[Item]| -> Vec<String> {
        items.iter().filter(|i| i.what.starts_with(&format!("{relation} "))).map(|i| i.what.clone()).collect()
    };
    assert_eq!(changes(&subscription.items), changes(&ready.items));
    assert!(subscription.items.iter().all(|i| !i.what.starts_with("1663/") || i.what.starts_with(relation)));
    ready.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn costliest_transactions_and_state_are_told() {
    let ready = Ready::new(16, |c| c.profile = "pg13".to_owned()).await;
    let mut client = DecoderServiceClient::new(connect(ready.node.addr()).await);
    let commits: Vec<Lsn> = ready.items.iter().filter(|i| i.what.starts_with("commit")).map(|i| i.end_lsn).collect();

    let mut request = pb::ListTransactionsRequest { page_size: 100, order_by: "commit_lsn".to_owned(), ..Default::default() };
    let mut found = Vec::new();
    loop {
        let page = client.list_transactions(request.clone()).await.unwrap().into_inner();
        found.extend(page.transactions.iter().map(|t| Lsn(t.end_lsn)));
        assert_eq!((&*page.profile, &*page.consumer), ("pg13", "catch-up"), "figures say whose they are");
        request.page_token = page.next_page_token;
        if request.page_token.is_empty() {
            break;
        }
    }
    assert_eq!(found, commits);

    let work = pb::ListTransactionsRequest { order_by: "messages_executed desc".to_owned(), ..Default::default() };
    let top = client.list_transactions(work).await.unwrap().into_inner().transactions;
    let executed: Vec<u64> = top.iter().map(|t| t.work.unwrap().messages_executed).collect();
    assert!(executed.len() == 10 && executed[0] > 100 && executed.is_sorted_by(|a, b| a >= b), "{executed:?}");
    let catcache: u64 = top[0].caches.iter().map(|c| c.count).sum();
    assert_eq!(catcache, top[0].messages.as_ref().unwrap().catcache);
    assert!(top[0].caches.iter().any(|c| c.cache_name == "RELOID"), "{:?}", top[0].caches);

    for (order_by, page_token) in [("cost", ""), ("", "here")] {
        let wrong = pb::ListTransactionsRequest { order_by: order_by.into(), page_token: page_token.into(), page_size: 1 };
        let status = client.list_transactions(wrong).await.unwrap_err();
        assert_eq!(reason_of(&status), Some(Reason::RequestInvalid), "{status:?}");
    }

    let state = client.get_decoder_state(pb::GetDecoderStateRequest {}).await.unwrap().into_inner();
    assert_eq!((state.profile.as_str(), state.connected, state.last_error.as_str()), ("pg13", true, ""));
    assert_eq!((state.transactions_decoded, Lsn(state.decoded_lsn)), (commits.len() as u64, ready.end));
    assert!(state.work.unwrap().messages_executed > 0 && state.map_buckets >= 64);
    ready.stop().await;
}

/// Work of all pages of a grouping, and the answer of the last page.
async fn shared_out(
    client: &mut DecoderServiceClient<tonic::transport::Channel>,
    group: pb::AttributionGroup,
) -> (Vec<pb::AttributionRow>, pb::GetAttributionResponse) {
    let mut request = pb::GetAttributionRequest { group_by: group.into(), page_size: 7, ..Default::default() };
    let mut rows = Vec::new();
    loop {
        let page = client.get_attribution(request.clone()).await.unwrap().into_inner();
        rows.extend(page.rows.clone());
        assert!(!page.profile.is_empty() && page.consumer == "catch-up", "figures say whose they are: {page:?}");
        if page.next_page_token.is_empty() {
            return (rows, page);
        }
        request.page_token = page.next_page_token;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_work_is_shared_out_by_cache_relation_callback_and_transaction() {
    let ready = Ready::new(16, |c| c.profile = "pg96".to_owned()).await;
    ready.node.state().wait_for(|state| state.decoded_lsn >= ready.end).await.unwrap();
    let mut client = DecoderServiceClient::new(connect(ready.node.addr()).await);
    let state = client.get_decoder_state(pb::GetDecoderStateRequest {}).await.unwrap().into_inner();
    let groups = [
        (pb::AttributionGroup::Cache, "relfilenode map"),
        (pb::AttributionGroup::Relation, "16434"),
        (pb::AttributionGroup::Callback, "ATTNUM/"),
        (pb::AttributionGroup::Transaction, " 0/"),
    ];
    for (group, name) in groups {
        let (rows, last) = shared_out(&mut client, group).await;
        assert_eq!(last.total, state.work, "{group:?}: the node's totals");
        let sum = |of: fn(&walstorm_proto::wal::v1::Work) -> u64| {
            rows.iter().filter_map(|row| row.work.as_ref()).chain(&last.rest).map(of).sum::<u64>()
        };
        let total = last.total.unwrap();
        assert_eq!(sum(|w| w.messages_executed), total.messages_executed, "{group:?}");
        assert_eq!(sum(|w| w.callbacks_visited), total.callbacks_visited, "{group:?}");
        assert_eq!(sum(|w| w.map_slots_visited), total.map_slots_visited, "{group:?}");
        assert_eq!(sum(|w| w.catalog_scans), total.catalog_scans, "{group:?}");
        assert!(rows.len() > 7 && rows.iter().any(|row| row.name.contains(name)), "{group:?}: {rows:?}");
    }
    for (group_by, order_by, page_token, page_size, names) in [
        (0, "", "", 0, "group_by"),
        (9, "", "", 0, "group_by"),
        (1, "cpu_ns", "", 0, "order_by"),
        (4, "cost", "", 0, "order_by"),
        (1, "", "here", 0, "page_token"),
        (1, "", "", -1, "page_size"),
    ] {
        let (order_by, page_token) = (order_by.to_owned(), page_token.to_owned());
        let wrong = pb::GetAttributionRequest { group_by, order_by, page_token, page_size };
        let status = client.get_attribution(wrong).await.unwrap_err();
        assert_eq!(reason_of(&status), Some(Reason::RequestInvalid), "{status:?}");
        assert!(describe(&status).contains(names), "{}", describe(&status));
    }
    let by_cpu = pb::GetAttributionRequest { group_by: 4, order_by: "cpu_ns desc".to_owned(), ..Default::default() };
    let rows = client.get_attribution(by_cpu).await.unwrap().into_inner().rows;
    assert!(rows.len() == 10 && rows.is_sorted_by(|a, b| a.cpu_ns >= b.cpu_ns));
    ready.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_is_gone_and_other_wal_halt_the_decoder() {
    let ready = Ready::new(16, |_| ()).await;
    let (_wal, data) = ready.stop().await;
    let decoder = data.path().join("decoder");

    // The same WAL, but the primary has forgotten its slots.
    let wal = fixture(16);
    let forgetful = primary(wal.path(), &data.path().join("other"), any()).await;
    let node = DecoderNode::start(config(forgetful.addr(), &decoder)).await.unwrap();
    let error = node.decoded_to(Lsn(u64::MAX)).await.unwrap_err().to_string();
    assert!(error.contains("no slot \"decoder\"") && error.contains("start_lsn"), "{error}");
    assert!(!node.state().borrow().is_serving());
    node.shutdown().await.unwrap();

    // Another cluster: without the slot, then with one of that name.
    let wal = fixture(15);
    let other = primary(wal.path(), &data.path().join("another"), any()).await;
    let node = DecoderNode::start(config(other.addr(), &decoder)).await.unwrap();
    let error = node.decoded_to(Lsn(u64::MAX)).await.unwrap_err().to_string();
    assert!(error.contains("system id") && error.contains("another data_dir"), "{error}");
    node.shutdown().await.unwrap();
    let slot = admin::CreateSlotRequest { slot_id: "decoder".to_owned(), start_lsn: 0, ..Default::default() };
    AdminServiceClient::new(connect(other.addr()).await).create_slot(slot).await.unwrap();
    let node = DecoderNode::start(config(other.addr(), &decoder)).await.unwrap();
    let error = node.decoded_to(Lsn(u64::MAX)).await.unwrap_err();
    assert!(matches!(error, NodeError::Halted(_)) && error.to_string().contains("system id"), "{error}");
    node.shutdown().await.unwrap();
    forgetful.shutdown().await.unwrap();
    other.shutdown().await.unwrap();
}

#[tokio::test]
async fn output_without_its_checkpoint_halts_the_decoder() {
    let ready = Ready::new(16, |_| ()).await;
    let (wal, data) = ready.stop().await;
    let decoder = data.path().join("decoder");
    std::fs::remove_file(decoder.join("checkpoint")).unwrap();
    let again = primary(wal.path(), &data.path().join("again"), any()).await;
    let node = DecoderNode::start(config(again.addr(), &decoder)).await.unwrap();
    let error = node.decoded_to(Lsn(u64::MAX)).await.unwrap_err().to_string();
    assert!(error.contains("no checkpoint") && error.contains(decoder.to_str().unwrap()), "{error}");
    node.shutdown().await.unwrap();
    again.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_in_the_output_log_is_told_to_its_reader() {
    let ready = Ready::new(16, |c| {
        c.output_log.segment_bytes = 4096;
        c.flush_interval = Duration::ZERO;
    })
    .await;
    let items = ready.items.clone();
    let (_wal, data) = ready.stop().await;
    let output = data.path().join("decoder/output");
    let mut segments: Vec<_> = std::fs::read_dir(&output).unwrap().map(|f| f.unwrap().path()).collect();
    segments.sort();
    assert!(segments.len() > 2, "{} segments", segments.len());
    let mut bytes = std::fs::read(&segments[0]).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&segments[0], bytes).unwrap();
    let node = DecoderNode::start(config(any(), &data.path().join("decoder"))).await.unwrap();
    let behind = pb::SubscribeStart { from_lsn: items.last().unwrap().end_lsn.0, ..start() };
    let (good, _) = Subscription::open_when_ready(node.addr(), behind).await;
    drop(good);
    let mut subscription = Subscription::open(connect(node.addr()).await, start()).await;
    let status = loop {
        if let Err(status) = subscription.next().await {
            break status;
        }
    };
    assert_eq!(reason_of(&status), Some(Reason::WalCorrupt), "{status:?}");
    assert_eq!(metadata_of(&status, "file").unwrap(), segments[0].display().to_string());
    node.shutdown().await.unwrap();
}
