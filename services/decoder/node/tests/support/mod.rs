//! What the tests of a running decoder share: real WAL, a primary in this process, decoders, a subscriber, and the decoder's core
//! as the oracle.

#![allow(dead_code, clippy::unwrap_used, reason = "every test file uses its part; a panic here is a test's report")]

use std::collections::{BTreeMap, HashMap};
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
    primary_with(wal, data, addr, |_| ()).await
}

/// The same with other settings.
pub(crate) async fn primary_with(
    wal: &Path,
    data: &Path,
    addr: SocketAddr,
    change: impl FnOnce(&mut PrimaryConfig),
) -> PrimaryNode {
    let mut config = PrimaryConfig { data_dir: data.to_owned(), ..PrimaryConfig::default() };
    config.source.wal_dir = Some(wal.to_owned());
    config.server.listen = addr.to_string();
    config.server.grace = Duration::from_millis(300);
    change(&mut config);
    loop {
        match PrimaryNode::start(config.clone()).await {
            // A port that a primary had before may be taken for a moment, by a connection of somebody else.
            Err(primary_node::Error::Server(service_kit::server::ServerError::PortTaken { .. })) if addr.port() != 0 => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            started => return started.unwrap(),
        }
    }
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
    /// The block that is being read.
    block: Option<u32>,
    /// Transactions in progress: who did what, in blocks so far.
    streamed: BTreeMap<u32, Vec<(u32, String)>>,
    /// What is prepared: what it did, with its sums.
    prepared: BTreeMap<u32, (Vec<String>, Box<pb::Commit>)>,
    /// Blocks that were read.
    pub(crate) blocks: usize,
    /// `event_count` of the commits of whole transactions.
    pub(crate) event_counts: Vec<u64>,
    /// Ends of parts, in words.
    pub(crate) ends: Vec<String>,
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
        Self {
            requests: Some(requests),
            responses,
            items: Vec::new(),
            open: Vec::new(),
            block: None,
            streamed: BTreeMap::new(),
            prepared: BTreeMap::new(),
            blocks: 0,
            event_counts: Vec::new(),
            ends: Vec::new(),
            position: Lsn::INVALID,
        }
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

    /// Goes on for a subscription whose stream is lost: what is prepared is kept, blocks are not.
    pub(crate) fn go_on_for(&mut self, before: Self) {
        (self.prepared, self.position) = (before.prepared, before.position);
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
                        self.part(c.xid, change(&names[&c.relation_id], lsn, *kind, rows));
                    }
                }
                event::Kind::Truncate(t) => {
                    let names: Vec<_> = t.relation_ids.iter().map(|id| names[id].clone()).collect();
                    self.part(t.xid, format!("truncate {} {names:?} {} {}", Lsn(t.lsn), t.cascade, t.restart_identity));
                }
                event::Kind::Message(m) => {
                    let what = format!("message {} {:?} {:?}", Lsn(m.lsn), m.prefix.to_vec(), m.content.to_vec());
                    match m.transactional {
                        true => self.part(m.xid, what),
                        false => self.end_item(Lsn(m.end_lsn), vec![what]),
                    }
                }
                event::Kind::Commit(c) => {
                    let open = std::mem::take(&mut self.open);
                    self.event_counts.push(c.event_count);
                    self.committed(open, &c);
                }
                other => self.take_part(other),
            }
        }
    }

    /// Something that a transaction did; `xid` is told in blocks.
    fn part(&mut self, xid: u32, what: String) {
        match self.block {
            Some(top) => self.streamed.get_mut(&top).unwrap().push((xid, what)),
            None => self.open.push(what),
        }
    }

    /// A transaction that did this has committed.
    fn committed(&mut self, mut open: Vec<String>, c: &pb::Commit) {
        open.push(format!("commit {} {} {} {:?}", c.xid, Lsn(c.commit_lsn), Lsn(c.end_lsn), c.subxids));
        self.end_item(Lsn(c.end_lsn), open);
    }

    /// What blocks held of a transaction that commits or is prepared, as if it had come whole.
    fn put_together(&mut self, xid: u32, first_lsn: u64, commit_lsn: u64) -> Vec<String> {
        let begin = format!("begin {xid} {} {}", Lsn(first_lsn), Lsn(commit_lsn));
        let parts = self.streamed.remove(&xid).unwrap();
        std::iter::once(begin).chain(parts.into_iter().map(|(_, what)| what)).collect()
    }

    /// Takes an event of a transaction that is given out before its commit.
    fn take_part(&mut self, kind: event::Kind) {
        match kind {
            event::Kind::StreamStart(s) => {
                assert!(self.block.is_none() && self.open.is_empty(), "blocks do not come within each other");
                match s.first {
                    true => drop(self.streamed.insert(s.xid, Vec::new())),
                    false => assert!(self.streamed.contains_key(&s.xid), "the first block comes first"),
                }
                self.block = Some(s.xid);
                self.blocks += 1;
            }
            event::Kind::StreamStop(s) => {
                assert_eq!(self.block.take(), Some(s.xid));
                self.reached(s.end_lsn);
            }
            event::Kind::StreamAbort(a) => {
                match a.xid == a.subxid {
                    true => drop(self.streamed.remove(&a.xid).unwrap()),
                    false => self.streamed.get_mut(&a.xid).unwrap().retain(|(xid, _)| *xid != a.subxid),
                }
                self.ends.push(format!("abort {}", a.subxid));
                self.reached(a.end_lsn);
            }
            event::Kind::StreamCommit(s) => {
                let commit = s.commit.unwrap();
                let parts = self.put_together(commit.xid, s.first_lsn, commit.commit_lsn);
                self.committed(parts, &commit);
            }
            event::Kind::Prepare(p) => {
                let sums = p.transaction.unwrap();
                let parts = match p.streamed {
                    true => self.put_together(sums.xid, p.first_lsn, sums.commit_lsn),
                    false => std::mem::take(&mut self.open),
                };
                self.ends.push(format!("prepare {}", String::from_utf8_lossy(&p.gid)));
                self.prepared.insert(sums.xid, (parts, sums));
                self.reached(p.end_lsn);
            }
            event::Kind::CommitPrepared(end) => {
                self.ends.push(format!("commit {}", end.xid));
                let Some((mut parts, sums)) = self.prepared.remove(&end.xid) else { return self.reached(end.end_lsn) };
                parts[0] = format!("begin {} {} {}", end.xid, Lsn(end.first_lsn), Lsn(end.commit_lsn));
                let (commit_lsn, end_lsn) = (end.commit_lsn, end.end_lsn);
                self.committed(parts, &pb::Commit { commit_lsn, end_lsn, ..*sums });
            }
            event::Kind::RollbackPrepared(end) => {
                self.ends.push(format!("rollback {}", end.xid));
                self.prepared.remove(&end.xid);
                self.reached(end.end_lsn);
            }
            other => panic!("{other:?}"),
        }
    }

    /// Everything up to here was read, unless it is 0.
    fn reached(&mut self, end_lsn: u64) {
        self.position = self.position.max(Lsn(end_lsn));
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
