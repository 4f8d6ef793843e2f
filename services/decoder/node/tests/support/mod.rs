//! What the tests of a running decoder share: real WAL, a primary in this process, decoders, a subscriber, and the decoder's core
//! as the oracle.

#![allow(dead_code, clippy::unwrap_used, reason = "every test file uses its part; a panic here is a test's report")]

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use decoder_core::output::{DecodedChange, DecodedTransaction};
use decoder_core::{Action, Decoder, NoCatalog, OutputSink, Profile, Relation};
use decoder_node::{DecoderConfig, DecoderNode};
use pg_types::record::{LogicalMessageRecord, TruncateRecord};
use pg_types::{Lsn, Oid, RecordBody, Xid};
use pg_wal::{WalDir, WalProfile, WalReader};
use primary_node::{PrimaryConfig, PrimaryNode};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use walstorm_proto::decoder::v1 as pb;
use walstorm_proto::decoder::v1::decoder_service_client::DecoderServiceClient;
use walstorm_proto::decoder::v1::event;

pub(crate) use pb::subscribe_response::Kind;

/// Real WAL of a version, unpacked.
pub(crate) fn fixture(version: u32) -> TempDir {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../shared/pg-wal/tests/fixtures/pg{version}/wal.tar.zst"));
    let dir = tempfile::tempdir().unwrap();
    let packed = std::fs::File::open(&path).unwrap();
    tar::Archive::new(zstd::Decoder::new(packed).unwrap()).unpack(dir.path()).unwrap();
    dir
}

/// One thing that the decoder gives out, in words that the oracle and a subscriber share. The key is what subscribers
/// deduplicate by: end LSN of the commit, and number in the transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Item {
    /// End of the commit record, or of a message outside transactions.
    pub(crate) end_lsn: Lsn,
    /// Number in its transaction.
    pub(crate) sequence: u64,
    /// What it is.
    pub(crate) what: String,
}

/// Collects what a decoder gives out.
#[derive(Debug, Default)]
struct Oracle {
    items: Vec<Item>,
    open: Vec<String>,
    record_end: Lsn,
}

/// How a change is written.
fn change(relation: &str, lsn: Lsn, action: i32, rows: u32) -> String {
    format!("{relation} {lsn} {action} {rows}")
}

impl OutputSink for Oracle {
    fn begin(&mut self, xid: Xid, first_lsn: Lsn, commit_lsn: Lsn) {
        self.open = vec![format!("begin {xid} {first_lsn} {commit_lsn}")];
    }

    fn change(&mut self, c: &DecodedChange<'_>) {
        let action = match c.action {
            Action::Insert => 1,
            Action::Update => 2,
            Action::Delete => 3,
        };
        self.open.push(change(&c.relation.name, c.lsn, action, c.rows.into()));
    }

    fn truncate(&mut self, lsn: Lsn, _: Xid, relations: &[&Relation], record: &TruncateRecord) {
        let names: Vec<_> = relations.iter().map(|r| r.name.to_string()).collect();
        self.open.push(format!("truncate {lsn} {names:?} {} {}", record.cascade, record.restart_seqs));
    }

    fn message(&mut self, lsn: Lsn, _: Xid, m: &LogicalMessageRecord) {
        let what = format!("message {lsn} {:?} {:?}", m.prefix, m.message);
        match m.transactional {
            true => self.open.push(what),
            false => self.items.push(Item { end_lsn: self.record_end, sequence: 0, what }),
        }
    }

    fn commit(&mut self, t: &DecodedTransaction) {
        let subxids: Vec<_> = t.subxids.iter().map(|x| x.0).collect();
        self.open.push(format!("commit {} {} {} {subxids:?}", t.xid, t.commit_lsn, t.end_lsn));
        let open = std::mem::take(&mut self.open);
        let item = |(sequence, what)| Item { end_lsn: t.end_lsn, sequence, what };
        self.items.extend((0..).zip(open).map(item));
    }
}

/// What the decoder's core gives out for a directory of WAL, and where the WAL ends.
pub(crate) fn expected(wal: &Path) -> (Vec<Item>, Lsn) {
    let dir = WalDir::open(wal, None).unwrap();
    let mut reader = WalReader::open(&dir, None).unwrap();
    let version = reader.identity().version;
    let (mut records, mut database) = (Vec::new(), None);
    while let Some(raw) = reader.next().unwrap() {
        let record = raw.decode(WalProfile::of(version)).unwrap();
        if let RecordBody::Insert(insert) = &record.body {
            database = database.or(Some(insert.target.db).filter(|db| *db != Oid::INVALID));
        }
        records.push(record);
    }
    let config = decoder_core::DecoderConfig::new(version, Profile::indexed(), database.unwrap());
    let mut decoder = Decoder::new(config, Arc::new(NoCatalog));
    let mut oracle = Oracle::default();
    for record in &records {
        oracle.record_end = record.end_lsn;
        decoder.process(record, &mut oracle).unwrap();
    }
    (oracle.items, records.last().unwrap().end_lsn)
}

/// A primary in this process that serves `wal`, with slots in `data`, on `addr` (port 0: any).
pub(crate) async fn primary(wal: &Path, data: &Path, addr: SocketAddr) -> PrimaryNode {
    let mut config = PrimaryConfig { data_dir: data.to_owned(), ..PrimaryConfig::default() };
    config.source.wal_dir = Some(wal.to_owned());
    config.server.listen = addr.to_string();
    config.server.grace = Duration::from_millis(300);
    PrimaryNode::start(config).await.unwrap()
}

/// Any port of this machine.
pub(crate) fn any() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// Settings of a decoder that follows `primary`.
pub(crate) fn config(primary: SocketAddr, data: &Path) -> DecoderConfig {
    let mut config = DecoderConfig { data_dir: data.to_owned(), ..DecoderConfig::default() };
    config.primary.endpoint = format!("http://{primary}");
    config.primary.backoff_max = Duration::from_millis(100);
    config.checkpoint_interval = Duration::from_millis(20);
    config.flush_interval = Duration::from_millis(2);
    config.server.grace = Duration::from_millis(300);
    config.server.listen = "127.0.0.1:0".to_owned();
    config
}

/// A connection to a server.
pub(crate) async fn connect(addr: SocketAddr) -> Channel {
    Channel::from_shared(format!("http://{addr}")).unwrap().connect().await.unwrap()
}

/// A start with large credit.
pub(crate) fn start() -> pb::SubscribeStart {
    pb::SubscribeStart { max_outstanding_bytes: 64 << 20, client_id: "test".to_owned(), ..pb::SubscribeStart::default() }
}

/// An open subscription.
pub(crate) struct Subscription {
    /// Upstream; none after half-closing.
    pub(crate) requests: Option<mpsc::Sender<pb::SubscribeRequest>>,
    /// Downstream.
    pub(crate) responses: Streaming<pb::SubscribeResponse>,
    /// What was read.
    pub(crate) items: Vec<Item>,
    /// The transaction that is being read.
    open: Vec<String>,
    /// Everything up to here was read.
    pub(crate) position: Lsn,
}

impl Subscription {
    /// Opens one and sends `start`.
    pub(crate) async fn open(channel: Channel, start: pb::SubscribeStart) -> Self {
        let (requests, receiver) = mpsc::channel(64);
        let first = pb::SubscribeRequest { kind: Some(pb::subscribe_request::Kind::Start(start)) };
        requests.send(first).await.unwrap();
        let mut client = DecoderServiceClient::new(channel).max_decoding_message_size(4 << 20);
        let responses = client.subscribe(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        Self { requests: Some(requests), responses, items: Vec::new(), open: Vec::new(), position: Lsn::INVALID }
    }

    /// Opens one as soon as the decoder is ready for it; gives it with what it says first.
    pub(crate) async fn open_when_ready(addr: SocketAddr, start: pb::SubscribeStart) -> (Self, pb::SubscribeStarted) {
        loop {
            let mut subscription = Self::open(connect(addr).await, start.clone()).await;
            match subscription.next().await {
                Ok(Some(Kind::Started(started))) => return (subscription, started),
                Err(status) if status.code() == tonic::Code::Unavailable => {}
                other => panic!("{other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The next response.
    pub(crate) async fn next(&mut self) -> Result<Option<Kind>, Status> {
        Ok(self.responses.message().await?.map(|response| response.kind.unwrap()))
    }

    /// Confirms a position.
    pub(crate) async fn flush(&self, lsn: Lsn, reply_requested: bool) {
        let feedback = pb::SubscribeFeedback { flushed_lsn: lsn.0, reply_requested };
        let feedback = pb::SubscribeRequest { kind: Some(pb::subscribe_request::Kind::Feedback(feedback)) };
        self.requests.as_ref().unwrap().send(feedback).await.unwrap();
    }

    /// Takes a response: events become items, heartbeats move the position.
    pub(crate) fn take(&mut self, kind: Kind) {
        match kind {
            Kind::Batch(batch) => self.take_batch(&batch),
            Kind::Heartbeat(heartbeat) => self.position = self.position.max(Lsn(heartbeat.progress_lsn)),
            other => panic!("{other:?}"),
        }
    }

    /// Reads, confirming as it goes, until the decoder says that it is at `end`.
    pub(crate) async fn read_to(&mut self, end: Lsn) {
        while self.position < end {
            self.flush(self.position, true).await;
            let kind = self.next().await.unwrap().expect("the server ended the stream");
            self.take(kind);
        }
        self.flush(self.position, false).await;
    }

    /// Takes the events of a batch.
    fn take_batch(&mut self, batch: &walstorm_proto::EventBatch) {
        let mut names: HashMap<u32, String> = HashMap::new();
        for event in batch.events() {
            match event.unwrap().kind.unwrap() {
                event::Kind::Relation(r) => {
                    let l = r.locator.unwrap();
                    let file = format!("{}/{}/{}", l.tablespace_oid, l.database_oid, l.file_number);
                    let name = if r.name.is_empty() { file } else { format!("{}.{}", r.schema, r.name) };
                    names.insert(r.relation_id, name);
                }
                event::Kind::Begin(b) => {
                    assert!(self.open.is_empty(), "a transaction's events are consecutive");
                    let (first, commit) = (Lsn(b.first_lsn), Lsn(b.commit_lsn));
                    self.open.push(format!("begin {} {first} {commit}", b.xid));
                }
                event::Kind::Change(c) => {
                    let columns = c.columns.unwrap();
                    for ((kind, offset), rows) in columns.kinds.iter().zip(columns.lsn_offsets).zip(columns.row_counts) {
                        let lsn = Lsn(c.lsn + u64::from(offset));
                        self.open.push(change(&names[&c.relation_id], lsn, *kind, rows));
                    }
                }
                event::Kind::Truncate(t) => {
                    let names: Vec<_> = t.relation_ids.iter().map(|id| names[id].clone()).collect();
                    self.open.push(format!("truncate {} {names:?} {} {}", Lsn(t.lsn), t.cascade, t.restart_identity));
                }
                event::Kind::Message(m) => {
                    let what = format!("message {} {:?} {:?}", Lsn(m.lsn), m.prefix.to_vec(), m.content.to_vec());
                    match m.transactional {
                        true => self.open.push(what),
                        false => self.end_item(Lsn(m.end_lsn), vec![what]),
                    }
                }
                event::Kind::Commit(c) => {
                    let mut open = std::mem::take(&mut self.open);
                    open.push(format!("commit {} {} {} {:?}", c.xid, Lsn(c.commit_lsn), Lsn(c.end_lsn), c.subxids));
                    self.end_item(Lsn(c.end_lsn), open);
                }
            }
        }
    }

    /// A transaction or message is complete.
    fn end_item(&mut self, end_lsn: Lsn, whats: Vec<String>) {
        assert!(end_lsn > self.position, "{end_lsn} comes after {}", self.position);
        self.position = end_lsn;
        let item = |(sequence, what)| Item { end_lsn, sequence, what };
        self.items.extend((0..).zip(whats).map(item));
    }
}

/// Compares what came with what should, naming the first difference.
pub(crate) fn assert_same(found: &[Item], expected: &[Item]) {
    let different = found.iter().zip(expected).position(|(a, b)| a != b);
    if let Some(i) = different {
        panic!("item {i} is {:?}, not {:?}", found[i], expected[i]);
    }
    assert_eq!(
        found.len(),
        expected.len(),
        "{:?} is where they end",
        found.iter().chain(expected).nth(found.len().min(expected.len()))
    );
}

/// Waits for a decoder's node to be at `end`.
pub(crate) async fn decoded(node: &DecoderNode, end: Lsn) {
    node.decoded_to(end).await.unwrap();
}

/// A folder.
pub(crate) fn folder() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    (dir, path)
}
