//! Transactions that the node gives out before their commit: what subscribers get, whenever they come, and what is kept for them.

use decoder_node::output_log::{LogConfig, OutputLog};
use decoder_node::subscriptions::SavedPositions;
use decoder_node::{DecoderConfig, DecoderNode};
use pg_types::Lsn;
use service_kit::status::{Reason, reason_of};
use walstorm_proto::decoder::v1 as pb;

use super::mixed::{mixed, mixed_up_to};
use super::support::{Item, Subscription, any, assert_same, config, connect, expected, primary, start};

/// A start that wants transactions in progress.
fn in_progress() -> pb::SubscribeStart {
    pb::SubscribeStart { delivery: pb::Delivery::InProgress.into(), ..start() }
}

/// Settings of a node that gives out what it can before the commit.
fn early(mut config: DecoderConfig) -> DecoderConfig {
    (config.streaming, config.two_phase, config.work_mem, config.profile) = (true, true, "64kB".into(), "pg17".into());
    config
}

/// Everything up to `end`, as one subscriber gets it.
async fn read(node: &DecoderNode, start: pb::SubscribeStart, end: Lsn) -> Subscription {
    let (mut subscription, _) = Subscription::open_when_ready(node.addr(), start).await;
    subscription.read_to(end).await;
    subscription
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_deliveries_give_the_same_commits_and_what_is_asked_wrongly_is_refused() {
    let (wal, data) = (mixed(1200), tempfile::tempdir().unwrap());
    let (items, end) = expected(wal.path());
    let primary = primary(wal.path(), &data.path().join("primary"), any()).await;
    let mut off = config(primary.addr(), &data.path().join("off"));
    off.slot = "off".to_owned();
    let off = DecoderNode::start(off).await.unwrap();
    off.decoded_to(end).await.unwrap();
    let mut settings = early(config(primary.addr(), &data.path().join("early")));
    settings.output_log.memory_bytes = 0;
    let node = DecoderNode::start(settings).await.unwrap();
    let work = node.decoded_to(end).await.unwrap().work;
    assert_eq!((work.stream_txns, work.spill_count), (4, 0), "{work:?}");
    assert!(work.stream_count > 8, "{work:?}");

    let whole = read(&off, start(), end).await;
    assert_same(&whole.items, &items);
    let put_together = read(&node, start(), end).await;
    assert_same(&put_together.items, &items);
    assert_eq!(put_together.event_counts, whole.event_counts, "blocks cut runs of rows elsewhere");
    assert!(whole.event_counts.contains(&2401) && whole.event_counts.contains(&1), "{:?}", whole.event_counts);
    let all = read(&node, in_progress(), end).await;
    assert_same(&all.items, &items);
    assert!(all.blocks > 8, "{} blocks", all.blocks);
    let ends: Vec<_> = all.ends.iter().map(String::as_str).collect();
    assert_eq!(ends, ["abort 1002", "abort 1003", "prepare kept", "prepare dropped", "commit 1004", "rollback 1005"]);

    // From the end of every small transaction on: blocks come again, what is prepared there does not.
    for at in items.iter().filter(|item| item.what.starts_with("commit 2")).map(|item| item.end_lsn).step_by(5) {
        let rest: Vec<Item> = items.iter().filter(|item| item.end_lsn > at).cloned().collect();
        let from = |start: pb::SubscribeStart| pb::SubscribeStart { from_lsn: at.0, ..start };
        assert_same(&read(&node, from(start()), end).await.items, &rest);
        assert_same(&read(&node, from(in_progress()), end).await.items, &rest);
    }
    // With little credit, and of one relation alone.
    let little =
        |start: pb::SubscribeStart| pb::SubscribeStart { max_outstanding_bytes: 1, max_outstanding_batches: 1, ..start };
    assert_same(&read(&node, little(start()), end).await.items, &items);
    assert_same(&read(&node, little(in_progress()), end).await.items, &items);
    let relation = "1663/5/20001";
    let of_it = |items: &[Item]| -> Vec<String> {
        items.iter().filter(|item| item.what.starts_with(relation)).map(|item| item.what.clone()).collect()
    };
    for wish in [start(), in_progress()] {
        let some = read(&node, pb::SubscribeStart { relations: vec![relation.to_owned()], ..wish }, end).await;
        assert_eq!(of_it(&some.items), of_it(&items));
        assert!(some.items.iter().all(|item| !item.what.starts_with("1663/") || item.what.starts_with(relation)));
    }
    let commits = read(&node, pb::SubscribeStart { commits_only: true, ..start() }, end).await;
    let expected_ends: Vec<Lsn> = items.iter().filter(|i| i.what.starts_with("commit")).map(|i| i.end_lsn).collect();
    assert_eq!(commits.items.iter().map(|item| item.end_lsn).collect::<Vec<_>>(), expected_ends);

    let refused = async |addr, start: pb::SubscribeStart| {
        let mut subscription = Subscription::open(connect(addr).await, start).await;
        reason_of(&subscription.next().await.unwrap_err())
    };
    assert_eq!(refused(off.addr(), in_progress()).await, Some(Reason::NotInProgress));
    let both = pb::SubscribeStart { commits_only: true, ..in_progress() };
    assert_eq!(refused(node.addr(), both).await, Some(Reason::RequestInvalid));
    assert_eq!(refused(node.addr(), pb::SubscribeStart { delivery: 9, ..start() }).await, Some(Reason::RequestInvalid));
    off.shutdown().await.unwrap();
    node.shutdown().await.unwrap();
    primary.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_are_kept_as_long_as_somebody_will_need_them() {
    let (wal, data) = (mixed(1200), tempfile::tempdir().unwrap());
    let (items, end) = expected(wal.path());
    let primary = primary(wal.path(), &data.path().join("primary"), any()).await;
    let mut settings = early(config(primary.addr(), &data.path().join("early")));
    (settings.output_log.segment_bytes, settings.output_log.keep_bytes) = (4096, 0);
    settings.flush_interval = std::time::Duration::ZERO;
    let node = DecoderNode::start(settings.clone()).await.unwrap();
    // It has all that was committed before the large ones, and will want their commits.
    let small = items.iter().rfind(|item| item.what.starts_with("commit 2")).unwrap().end_lsn;
    let named = || pb::SubscribeStart { subscription: "behind".to_owned(), ..start() };
    let (mut behind, _) = Subscription::open_when_ready(node.addr(), named()).await;
    while behind.position < small {
        let kind = behind.next().await.unwrap().unwrap();
        behind.take(kind);
        behind.flush(behind.position.min(small), false).await;
    }
    node.decoded_to(end).await.unwrap();
    let saved = || SavedPositions::load(&data.path().join("early/positions"), 1).unwrap().confirmed;
    while saved().get("behind") != Some(&small.0) {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    node.shutdown().await.unwrap();
    let output = LogConfig {
        dir: data.path().join("early/output"),
        segment_bytes: 4096,
        memory_bytes: 0,
        keep_bytes: 0,
        bytes_max: u64::MAX,
    };
    let oldest = |system_id| OutputLog::open(output.clone(), system_id, Lsn(1), None).unwrap().1.oldest();
    let kept_from = oldest(1);
    assert!(kept_from < small, "their first blocks came long before");
    let node = DecoderNode::start(settings.clone()).await.unwrap();
    let (mut behind, started) = Subscription::open_when_ready(node.addr(), named()).await;
    assert_eq!(Lsn(started.start_lsn), small);
    let first_file = || std::fs::read_dir(&output.dir).unwrap().map(|file| file.unwrap().file_name()).min();
    // Before anything is confirmed: reading confirms, too.
    let needed = first_file();
    behind.read_to(end).await;
    let rest: Vec<Item> = items.iter().filter(|item| item.end_lsn > small).cloned().collect();
    assert_same(&behind.items, &rest);
    behind.flush(end, true).await;
    // Nobody needs them any more.
    while first_file() == needed {
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    drop(behind);
    node.shutdown().await.unwrap();
    assert!(oldest(1) > kept_from);
    // Who comes without a position gets what is there as a whole.
    let node = DecoderNode::start(settings).await.unwrap();
    for wish in [start(), in_progress()] {
        let late = read(&node, wish, end).await;
        assert!(late.items.iter().all(|item| items.contains(item)) && late.items.last() == items.last());
        assert!(late.items.len() < items.len());
    }
    node.shutdown().await.unwrap();
    primary.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_phase_begins_where_it_is_switched_on_and_cannot_end_while_something_is_prepared() {
    let (wal, data) = (mixed(100), tempfile::tempdir().unwrap());
    let (items, end) = expected(wal.path());
    // The WAL ends behind the first PREPARE; the rest comes later.
    let cut = mixed_up_to(100, false);
    let (_, prepared) = expected(cut.path());
    for two_phase_at_first in [false, true] {
        let folder = data.path().join(format!("first_{two_phase_at_first}"));
        let first = primary(cut.path(), &folder.join("primary"), any()).await;
        let mut settings = config(first.addr(), &folder.join("decoder"));
        settings.two_phase = two_phase_at_first;
        let node = DecoderNode::start(settings.clone()).await.unwrap();
        node.decoded_to(prepared).await.unwrap();
        node.shutdown().await.unwrap();
        let addr = first.addr();
        first.shutdown().await.unwrap();
        let second = primary(wal.path(), &folder.join("primary"), addr).await;
        settings.two_phase = !two_phase_at_first;
        let node = DecoderNode::start(settings.clone()).await.unwrap();
        if two_phase_at_first {
            let error = node.decoded_to(end).await.unwrap_err().to_string();
            assert!(error.contains("two_phase is off") && error.contains("were given out (1)"), "{error}");
            node.shutdown().await.unwrap();
            settings.two_phase = true;
            let node = DecoderNode::start(settings).await.unwrap();
            let all = read(&node, in_progress(), end).await;
            assert_same(&all.items, &items);
            assert_eq!(all.ends, ["prepare kept", "prepare dropped", "commit 1004", "rollback 1005"]);
            node.shutdown().await.unwrap();
        } else {
            let all = read(&node, in_progress(), end).await;
            assert_same(&all.items, &items);
            assert_eq!(all.ends, ["prepare dropped", "prepare kept", "commit 1004", "rollback 1005"], "late, at its commit");
            assert_same(&read(&node, start(), end).await.items, &items);
            node.shutdown().await.unwrap();
        }
        second.shutdown().await.unwrap();
    }
}

/// What the core makes of the transaction that is given out by the record at `lsn`, with 64 kB of memory.
fn decoded_again(wal: &std::path::Path, profile: &str, lsn: Lsn, two_phase: bool) -> pg_types::Work {
    let dir = pg_wal::WalDir::open(wal, None).unwrap();
    let (version, profile) = (dir.identity().version, profile.parse().unwrap());
    let config = decoder_core::DecoderConfig {
        work_mem: decoder_core::WorkMem::MIN,
        two_phase: two_phase.then(decoder_core::TwoPhase::default),
        ..decoder_core::DecoderConfig::new(version, profile, pg_types::Oid(5))
    };
    let decoder = decoder_core::Decoder::new(config, std::sync::Arc::new(decoder_core::NoCatalog));
    let mut contender = decoder_core::Contender::new(decoder).looking_for(lsn);
    let mut reader = pg_wal::WalReader::open(&dir, None).unwrap();
    while let Some(raw) = reader.next().unwrap() {
        contender.process(&raw.decode(dir.profile()).unwrap()).unwrap();
    }
    contender.found().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prepared_and_streamed_transactions_are_explained_under_other_profiles() {
    let (wal, data) = (mixed(700), tempfile::tempdir().unwrap());
    let (_, end) = expected(wal.path());
    let primary = primary(wal.path(), &data.path().join("primary"), any()).await;
    let node = DecoderNode::start(early(config(primary.addr(), &data.path().join("early")))).await.unwrap();
    node.decoded_to(end).await.unwrap();
    let mut client = pb::decoder_service_client::DecoderServiceClient::new(super::connect(node.addr()).await);
    // 1000 came in blocks, 1004 and 1005 were prepared, 8000 is as any other.
    for (xid, rows, prepared) in [(1000, 1401, false), (1004, 700, true), (1005, 700, true), (8000, 1, false)] {
        let request = pb::ExplainTransactionRequest {
            transaction: Some(pb::explain_transaction_request::Transaction::Xid(xid)),
            profiles: ["pg13", "pg17", "indexed"].map(str::to_owned).to_vec(),
            story_only: false,
        };
        let told = client.explain_transaction(request).await.unwrap().into_inner();
        let cost = told.transaction.unwrap();
        assert_eq!((cost.xid, told.not_replayed.as_str()), (xid, ""));
        let inserted: u64 = told.relations.iter().map(|relation| relation.inserted).sum();
        assert_eq!(inserted, rows, "xid {xid}");
        let names: Vec<_> = told.profiles.iter().map(|row| row.profile.as_str()).collect();
        assert_eq!(names, ["pg17", "pg13", "indexed"], "xid {xid}: its own first, and every other one");
        for row in &told.profiles[1..] {
            let again = decoded_again(wal.path(), &row.profile, Lsn(cost.commit_lsn), prepared);
            let work = row.work.unwrap();
            assert_eq!(
                (work.spill_txns, work.changes_restored),
                (again.spill_txns, again.changes_restored),
                "xid {xid} {}",
                row.profile
            );
            assert_eq!(again.changes_restored > 0, rows > 1, "what does not fit is read back");
        }
    }
    node.shutdown().await.unwrap();
    primary.shutdown().await.unwrap();
}
