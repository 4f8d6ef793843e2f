//! A decoder in this process behind a primary in this process, over real WAL.

#![allow(clippy::unwrap_used, reason = "a panic here is a test's report")]

mod support;

use decoder_node::DecoderNode;
use pg_types::Lsn;
use support::{Kind, Subscription, any, assert_same, config, expected, fixture, folder, primary, start};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscribers_get_what_the_core_gives_out_on_every_version() {
    for version in [13, 15, 16, 18] {
        let wal = fixture(version);
        let (items, end) = expected(wal.path());
        assert!(items.len() > 1000, "{} items", items.len());
        let ((_a, primary_data), (_b, data)) = (folder(), folder());
        let primary = primary(wal.path(), &primary_data, any()).await;
        let node = DecoderNode::start(config(primary.addr(), &data)).await.unwrap();
        let (mut subscription, started) = Subscription::open_when_ready(node.addr(), start()).await;
        assert_eq!((started.pg_version, started.profile.as_str()), (version, "indexed"));
        subscription.read_to(end).await;
        assert_same(&subscription.items, &items);
        let state = node.source_decoded().await.unwrap();
        assert_eq!(state.transactions, items.iter().filter(|i| i.what.starts_with("commit")).count() as u64);
        assert!(state.is_serving() && state.work.messages_executed > 0);
        drop(subscription);
        node.shutdown().await.unwrap();
        primary.shutdown().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_resumes_where_it_was_and_filters_work() {
    let wal = fixture(16);
    let (items, end) = expected(wal.path());
    let ((_a, primary_data), (_b, data)) = (folder(), folder());
    let primary = primary(wal.path(), &primary_data, any()).await;
    let node = DecoderNode::start(config(primary.addr(), &data)).await.unwrap();
    support::decoded(&node, end).await;
    let named = || walstorm_proto::decoder::v1::SubscribeStart { subscription: "orders".to_owned(), ..start() };

    // At every so-manieth commit: resume from it.
    let ends: Vec<Lsn> = items.iter().filter(|i| i.what.starts_with("commit")).map(|i| i.end_lsn).step_by(29).collect();
    for end_lsn in ends {
        let from = walstorm_proto::decoder::v1::SubscribeStart { from_lsn: end_lsn.0, ..start() };
        let (mut subscription, started) = Subscription::open_when_ready(node.addr(), from).await;
        assert_eq!(started.start_lsn, end_lsn.0);
        subscription.read_to(end).await;
        let rest: Vec<_> = items.iter().filter(|i| i.end_lsn > end_lsn).cloned().collect();
        assert_same(&subscription.items, &rest);
    }

    // By name: the second stream goes on where the first confirmed.
    let (mut first, _) = Subscription::open_when_ready(node.addr(), named()).await;
    let middle = items[items.len() / 2].end_lsn;
    while first.position < middle {
        let kind = first.next().await.unwrap().unwrap();
        first.take(kind);
    }
    first.flush(middle, true).await;
    while !matches!(first.next().await.unwrap().unwrap(), Kind::Heartbeat(_)) {}
    drop(first);
    let (mut second, started) = Subscription::open_when_ready(node.addr(), named()).await;
    assert_eq!(started.start_lsn, middle.0);
    second.read_to(end).await;
    let rest: Vec<_> = items.iter().filter(|i| i.end_lsn > middle).cloned().collect();
    assert_same(&second.items, &rest);

    node.shutdown().await.unwrap();
    primary.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_never_confirms_stops_at_its_credit_and_stalls_nobody() {
    let wal = fixture(15);
    let (items, end) = expected(wal.path());
    let ((_a, primary_data), (_b, data)) = (folder(), folder());
    let primary = primary(wal.path(), &primary_data, any()).await;
    let mut settings = config(primary.addr(), &data);
    settings.output_log.memory_bytes = 0;
    // Every batch of the primary becomes an entry, so that there are several.
    settings.flush_interval = std::time::Duration::ZERO;
    let node = DecoderNode::start(settings).await.unwrap();
    let small = walstorm_proto::decoder::v1::SubscribeStart { max_outstanding_bytes: 1, ..start() };
    let (mut slow, _) = Subscription::open_when_ready(node.addr(), small).await;
    let (mut quick, _) = Subscription::open_when_ready(node.addr(), start()).await;
    quick.read_to(end).await;
    assert_same(&quick.items, &items);

    let first = slow.next().await.unwrap().unwrap();
    slow.take(first);
    slow.flush(Lsn::INVALID, true).await;
    let Kind::Heartbeat(heartbeat) = slow.next().await.unwrap().unwrap() else { panic!("no second batch without credit") };
    let next = items.iter().find(|item| item.end_lsn > slow.position).unwrap();
    assert!(Lsn(heartbeat.progress_lsn) < next.end_lsn, "what was not sent ends after it");
    slow.read_to(end).await;
    assert_same(&slow.items, &items);

    node.shutdown().await.unwrap();
    primary.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundreds_of_subscribers_get_the_same() {
    let wal = fixture(13);
    let (items, end) = expected(wal.path());
    let ((_a, primary_data), (_b, data)) = (folder(), folder());
    let primary = primary(wal.path(), &primary_data, any()).await;
    let node = DecoderNode::start(config(primary.addr(), &data)).await.unwrap();
    let (mut first, _) = Subscription::open_when_ready(node.addr(), start()).await;
    let channel = support::connect(node.addr()).await;
    let mut others = Vec::new();
    for i in 0..300 {
        let named = walstorm_proto::decoder::v1::SubscribeStart { subscription: format!("reader_{i}"), ..start() };
        let mut subscription = Subscription::open(channel.clone(), named).await;
        let items = items.clone();
        others.push(tokio::spawn(async move {
            assert!(matches!(subscription.next().await, Ok(Some(Kind::Started(_)))));
            subscription.read_to(end).await;
            assert_same(&subscription.items, &items);
        }));
    }
    first.read_to(end).await;
    for other in others {
        other.await.unwrap();
    }
    drop((first, channel));
    node.shutdown().await.unwrap();
    primary.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decoder_and_primary_restart_and_nothing_is_lost_or_repeated() {
    let wal = fixture(18);
    let (items, end) = expected(wal.path());
    let ((_a, primary_data), (_b, data)) = (folder(), folder());
    let first_primary = primary(wal.path(), &primary_data, any()).await;
    let addr = first_primary.addr();
    let node = DecoderNode::start(config(addr, &data)).await.unwrap();
    support::decoded(&node, Lsn(end.0 - (1 << 20))).await;
    node.shutdown().await.unwrap();

    // The decoder comes back while the primary is away, and serves what it has.
    first_primary.shutdown().await.unwrap();
    let node = DecoderNode::start(config(addr, &data)).await.unwrap();
    let (mut subscription, _) = Subscription::open_when_ready(node.addr(), start()).await;
    let early = subscription.next().await.unwrap().unwrap();
    subscription.take(early);
    let second_primary = primary(wal.path(), &primary_data, addr).await;
    subscription.read_to(end).await;
    assert_same(&subscription.items, &items);

    // The primary restarts below an idle decoder.
    second_primary.shutdown().await.unwrap();
    let mut state = node.state();
    state.wait_for(|s| !s.connected).await.unwrap();
    let third_primary = primary(wal.path(), &primary_data, addr).await;
    state.wait_for(|s| s.is_serving()).await.unwrap();
    node.shutdown().await.unwrap();
    third_primary.shutdown().await.unwrap();
}
