//! Many clients, slow ones, dead ones and hostile ones: none costs the others anything, and each is bounded and shown.

use std::path::Path;
use std::time::Duration;

use pg_types::record::{HeapInsert, LogicalMessageRecord};
use pg_types::{Oid, RecordBody, RelFileLocator, Tid, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use service_kit::status::{Reason, reason_of};
use tonic::transport::Channel;
use walstorm_proto::admin::v1 as admin;
use walstorm_proto::primary::v1 as pb;

use crate::support::{self, proxy::Proxy};
use crate::support::{Kind, Node, Stream, config, from_slot, millis, pb_from, raw_records, records, start};

/// Most that a stream may hold: a batch or piece that is ready, and two that wait for the connection.
const BUFFERED_MAX: u64 = 3 * (1 << 20);

/// A log of `transactions` of an insert and a commit.
fn write_small(dir: &Path, transactions: u32) {
    let mut writer = WalWriter::create(dir, WriterConfig::new(9)).unwrap();
    let target = RelFileLocator { spc: Oid::DEFAULT_TABLESPACE, db: Oid(5), rel: 16_400 };
    for i in 0..transactions {
        let tid = Tid { block: 0, offset: 1 };
        let insert = HeapInsert { target, tid, tuple_len: 24, ..HeapInsert::default() };
        writer.append(Xid(700 + i), Xid::INVALID, 0, &RecordBody::Insert(insert)).unwrap();
        writer.append(Xid(700 + i), Xid::INVALID, 0, &RecordBody::Commit(Box::default())).unwrap();
    }
    writer.switch().unwrap();
    writer.finish().unwrap();
}

/// A log of 48 MiB, more than sockets and windows hold.
fn write_large(dir: &Path) {
    let mut writer = WalWriter::create(dir, WriterConfig::new(9)).unwrap();
    for i in 0..768u32 {
        let message = vec![i as u8; 64 << 10];
        let record = LogicalMessageRecord { db: Oid(5), transactional: false, prefix: b"p".to_vec(), message };
        writer.append(Xid::INVALID, Xid::INVALID, 0, &RecordBody::LogicalMessage(Box::new(record))).unwrap();
    }
    writer.switch().unwrap();
    writer.finish().unwrap();
}

/// The streams that the server lists, and the bytes that it holds for them.
async fn streams(node: &Node) -> (Vec<admin::Stream>, u64) {
    let mut streams = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = admin::ListStreamsRequest { page_size: 200, page_token };
        let page = node.admin().list_streams(request).await.unwrap().into_inner();
        streams.extend(page.streams);
        page_token = page.next_page_token;
        if page_token.is_empty() {
            return (streams, page.buffered_bytes);
        }
    }
}

/// Waits until the server has `count` open streams.
async fn wait_for_streams(node: &Node, count: u32) {
    while node.admin().get_server_info(admin::GetServerInfoRequest {}).await.unwrap().into_inner().active_streams != count {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until the only stream of `client_id` waits for its connection.
async fn wait_until_stuck(node: &Node, client_id: &str) -> admin::Stream {
    loop {
        let found = streams(node).await.0.into_iter().find(|s| s.client_id == client_id).unwrap();
        if found.blocked_on() == admin::BlockedOn::Window {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A new connection.
async fn channel(node: &Node) -> Channel {
    Channel::from_shared(format!("http://{}", node.node.addr())).unwrap().connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_streams_at_a_time_get_everything_and_take_no_slots() {
    let wal = tempfile::tempdir().unwrap();
    write_small(wal.path(), 150);
    let (expected, _) = records(wal.path());
    let node = Node::serve(wal.path()).await;
    let mut open = Vec::new();
    for _ in 0..5 {
        let channel = channel(&node).await;
        for _ in 0..100 {
            let mut stream = Stream::open(channel.clone(), start()).await;
            stream.started().await;
            open.push(stream);
        }
    }
    let (listed, _) = streams(&node).await;
    assert_eq!(listed.len(), 500);
    assert!(listed.iter().all(|s| s.buffered_bytes <= BUFFERED_MAX));
    for i in 0..64 {
        node.create_slot(&format!("slot_{i}"), 0).await;
    }
    let tasks: Vec<_> = open.into_iter().map(|mut stream| tokio::spawn(async move { stream.drain().await.0 })).collect();
    for task in tasks {
        assert_eq!(raw_records(&task.await.unwrap()), expected);
    }
    wait_for_streams(&node, 0).await;
    assert_eq!(streams(&node).await, (Vec::new(), 0));
    node.stop().await;
}

#[tokio::test]
async fn a_client_that_reads_nothing_or_a_byte_at_a_time_is_bounded_and_slows_nobody() {
    let wal = tempfile::tempdir().unwrap();
    write_large(wal.path());
    let (expected, _) = records(wal.path());
    let node = Node::serve(wal.path()).await;
    let proxy = Proxy::start(node.node.addr()).await;
    let wish = pb::StreamStart { client_id: "slow".to_owned(), feedback_timeout: millis(0), ..start() };
    let mut slow = Stream::open(proxy.channel().await, wish).await;
    slow.started().await;
    let mut batches = vec![slow.batch().await];
    proxy.hold_down(0);
    let stuck = wait_until_stuck(&node, "slow").await;
    assert!(stuck.sent_lsn < expected.last().unwrap().end_lsn.0, "the log is larger than what the transport holds");
    for _ in 0..1000 {
        proxy.hold_down(1);
        tokio::task::yield_now().await;
    }
    let (others, end) = node.open(start()).await.drain().await;
    end.unwrap();
    assert_eq!(raw_records(&others), expected, "another one gets everything meanwhile");
    let still = wait_until_stuck(&node, "slow").await;
    assert!(still.buffered_bytes > 0 && still.buffered_bytes <= BUFFERED_MAX, "{} bytes", still.buffered_bytes);
    proxy.open_down();
    let (rest, end) = slow.drain().await;
    end.unwrap();
    batches.extend(rest);
    assert_eq!(raw_records(&batches), expected, "and the slow one in the end, in order");
    node.stop().await;
}

#[tokio::test]
async fn a_client_that_reads_nothing_loses_its_slot_to_its_timeout_and_stays_in_sight() {
    let wal = tempfile::tempdir().unwrap();
    write_large(wal.path());
    let node = Node::serve(wal.path()).await;
    node.create_slot("orders", 0).await;
    let proxy = Proxy::start(node.node.addr()).await;
    let wish = pb::StreamStart { client_id: "stuck".to_owned(), feedback_timeout: millis(300), ..from_slot("orders") };
    let mut stuck = Stream::open(proxy.channel().await, wish).await;
    stuck.started().await;
    proxy.hold_down(0);
    while node.slot("orders").await.state() != admin::SlotState::Free {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut next = node.open(from_slot("orders")).await;
    next.started().await;
    let shown = wait_until_stuck(&node, "stuck").await;
    assert!(shown.buffered_bytes <= BUFFERED_MAX, "the batch that was ready is given up");
    proxy.open_down();
    assert_eq!(reason_of(&stuck.ended().await), Some(Reason::FeedbackTimeout), "once it reads again it hears why");
    wait_for_streams(&node, 1).await;
    node.stop().await;
}

#[tokio::test]
async fn a_client_behind_a_pulled_cable_takes_its_slot_over_and_another_does_not() {
    let wal = tempfile::tempdir().unwrap();
    write_small(wal.path(), 5000);
    let node = Node::serve(wal.path()).await;
    node.create_slot("orders", 0).await;
    let proxy = Proxy::start(node.node.addr()).await;
    let mut old = Stream::open(proxy.channel().await, from_slot("orders")).await;
    old.started().await;
    let batch = old.batch().await;
    old.flushed(batch.end_lsn).await;
    while node.slot("orders").await.confirmed_flush_lsn != batch.end_lsn {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    proxy.pull_the_cable();
    let other = pb::StreamStart { client_id: "other".to_owned(), ..from_slot("orders") };
    assert_eq!(reason_of(&node.refused(other).await), Some(Reason::SlotActive));
    let mut new = node.open(from_slot("orders")).await;
    assert_eq!(new.started().await.start_lsn, support::first_at(wal.path(), batch.end_lsn), "nothing is lost, nothing twice");
    wait_for_streams(&node, 1).await;
    let second = new.batch().await;
    new.flushed(second.end_lsn).await;
    while node.slot("orders").await.confirmed_flush_lsn != second.end_lsn {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    node.stop().await;
}

#[tokio::test]
async fn pings_find_a_client_that_has_disappeared() {
    let wal = tempfile::tempdir().unwrap();
    write_small(wal.path(), 10);
    let data = tempfile::tempdir().unwrap();
    let mut config = config(wal.path(), data.path());
    config.server.keepalive_interval = Duration::from_millis(100);
    config.server.keepalive_timeout = Duration::from_millis(100);
    let node = Node::start(config, data).await;
    let proxy = Proxy::start(node.node.addr()).await;
    let mut gone = Stream::open(proxy.channel().await, pb::StreamStart { feedback_timeout: millis(0), ..start() }).await;
    gone.started().await;
    proxy.pull_the_cable();
    wait_for_streams(&node, 0).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_feedback_moves_the_slot_once_and_slows_nobody() {
    let wal = tempfile::tempdir().unwrap();
    write_large(wal.path());
    let (expected, _) = records(wal.path());
    let node = Node::serve(wal.path()).await;
    node.create_slot("orders", 0).await;
    let mut flooding = Stream::open(channel(&node).await, from_slot("orders")).await;
    flooding.started().await;
    let first = flooding.batch().await;
    let feedback = pb::Feedback { flushed_lsn: first.end_lsn, reply_requested: true, ..pb::Feedback::default() };
    let flood = async {
        for _ in 0..20_000 {
            flooding.feedback(feedback).await;
        }
    };
    let other = async { node.open(start()).await.drain().await };
    let ((), (batches, end)) = tokio::join!(flood, other);
    end.unwrap();
    assert_eq!(raw_records(&batches), expected);
    assert_eq!(node.slot("orders").await.confirmed_flush_lsn, first.end_lsn);
    let shown = streams(&node).await.0.into_iter().find(|s| s.slot == "slots/orders").unwrap();
    assert!(shown.buffered_bytes <= BUFFERED_MAX);
    let mut batches = vec![first];
    while batches.last().unwrap().end_lsn < expected.last().unwrap().end_lsn.0 {
        match flooding.next().await.unwrap() {
            Kind::Batch(batch) => batches.push(batch),
            Kind::Keepalive(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(raw_records(&batches), expected, "answers come between batches, not instead of them");
    node.stop().await;
}

#[tokio::test]
async fn streams_that_name_positions_far_apart_do_not_meet() {
    let wal = tempfile::tempdir().unwrap();
    write_small(wal.path(), 3000);
    let (expected, _) = records(wal.path());
    let node = Node::serve(wal.path()).await;
    let mut tasks = Vec::new();
    for part in 0..16 {
        let at = part * expected.len() / 16;
        let mut stream = node.open(pb_from(expected[at].lsn.0)).await;
        tasks.push((at, tokio::spawn(async move { stream.drain().await.0 })));
    }
    for (at, task) in tasks {
        assert_eq!(raw_records(&task.await.unwrap()), expected[at..]);
    }
    node.stop().await;
}
