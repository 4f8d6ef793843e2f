//! What the tests of a running primary share: a fixture on disk, a node in this process, and a client.

pub(crate) mod program;
pub(crate) mod proxy;
pub(crate) mod s3;

use std::path::{Path, PathBuf};

use pg_types::Lsn;
use pg_wal::{WalDir, WalReader};
use primary_node::{PrimaryConfig, PrimaryNode};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use walstorm_proto::admin::v1::admin_service_client::AdminServiceClient;
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::primary::v1::primary_service_client::PrimaryServiceClient;

pub(crate) use pb::stream_wal_response::Kind;

/// Real WAL of a version, unpacked.
pub(crate) fn fixture(version: u32) -> TempDir {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../shared/pg-wal/tests/fixtures/pg{version}/wal.tar.zst"));
    let dir = tempfile::tempdir().unwrap();
    let packed = std::fs::File::open(&path).unwrap();
    tar::Archive::new(zstd::Decoder::new(packed).unwrap()).unpack(dir.path()).unwrap();
    dir
}

/// The segments of a directory, in order.
pub(crate) fn segments(dir: &Path) -> Vec<PathBuf> {
    WalDir::open(dir, None).unwrap().segments().map(|(_, s)| s.path.clone()).collect()
}

/// Zeroes what is at or behind a position, in segments of 1 MiB.
pub(crate) fn truncate(wal: &Path, at: u64) {
    for path in segments(wal) {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let start = u64::from_str_radix(&name[16..], 16).unwrap() << 20;
        let mut bytes = std::fs::read(&path).unwrap();
        let keep = usize::try_from(at.saturating_sub(start)).unwrap().min(bytes.len());
        bytes[keep..].fill(0);
        std::fs::write(&path, bytes).unwrap();
    }
}

/// A record as it stands in a directory.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    /// Its start.
    pub(crate) lsn: Lsn,
    /// Its end.
    pub(crate) end_lsn: Lsn,
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
}

/// All records of a directory, and where it ends.
pub(crate) fn records(dir: &Path) -> (Vec<Record>, pg_wal::WalEnd) {
    let mut reader = WalReader::open(&WalDir::open(dir, None).unwrap(), None).unwrap();
    let mut records = Vec::new();
    while let Some(r) = reader.next().unwrap() {
        records.push(Record { lsn: r.lsn, end_lsn: r.end_lsn, bytes: r.bytes.to_vec() });
    }
    (records, reader.end().unwrap().clone())
}

/// Start of the first record of a directory at or after `lsn`.
pub(crate) fn first_at(dir: &Path, lsn: u64) -> u64 {
    records(dir).0.iter().find(|r| r.lsn.0 >= lsn).unwrap().lsn.0
}

/// A node in this process with its directories.
pub(crate) struct Node {
    /// The node.
    pub(crate) node: PrimaryNode,
    /// Its data directory.
    pub(crate) data: TempDir,
    /// A connection.
    pub(crate) channel: Channel,
}

/// A configuration that serves `wal` from `data`.
pub(crate) fn config(wal: &Path, data: &Path) -> PrimaryConfig {
    let mut config = PrimaryConfig { data_dir: data.to_owned(), ..PrimaryConfig::default() };
    config.source.wal_dir = Some(wal.to_owned());
    config.server.listen = "127.0.0.1:0".to_owned();
    // Most tests leave their streams open; nothing is gained by waiting for their last feedback.
    config.server.grace = std::time::Duration::from_millis(300);
    config
}

impl Node {
    /// Serves `wal`.
    pub(crate) async fn serve(wal: &Path) -> Node {
        let data = tempfile::tempdir().unwrap();
        let config = config(wal, data.path());
        Self::start(config, data).await
    }

    /// Starts a node with `config`, whose data directory is `data`.
    pub(crate) async fn start(config: PrimaryConfig, data: TempDir) -> Node {
        let node = PrimaryNode::start(config).await.unwrap();
        let channel = Channel::from_shared(format!("http://{}", node.addr())).unwrap().connect().await.unwrap();
        Node { node, data, channel }
    }

    /// Stops it and gives its data directory back.
    pub(crate) async fn stop(self) -> TempDir {
        drop(self.channel);
        self.node.shutdown().await.unwrap();
        self.data
    }

    /// A client of the primary service.
    pub(crate) fn primary(&self) -> PrimaryServiceClient<Channel> {
        PrimaryServiceClient::new(self.channel.clone())
    }

    /// A client of the admin service.
    pub(crate) fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel.clone())
    }

    /// Makes a slot.
    pub(crate) async fn create_slot(&self, slot_id: &str, start_lsn: u64) {
        let request =
            walstorm_proto::admin::v1::CreateSlotRequest { slot_id: slot_id.to_owned(), start_lsn, ..Default::default() };
        self.admin().create_slot(request).await.unwrap();
    }

    /// Reads a slot.
    pub(crate) async fn slot(&self, slot_id: &str) -> walstorm_proto::admin::v1::Slot {
        let request = walstorm_proto::admin::v1::GetSlotRequest { name: format!("slots/{slot_id}") };
        self.admin().get_slot(request).await.unwrap().into_inner().slot.unwrap()
    }

    /// Opens a stream and sends `start`.
    pub(crate) async fn open(&self, start: pb::StreamStart) -> Stream {
        Stream::open(self.channel.clone(), start).await
    }

    /// Opens a stream that is expected to be refused, and returns why.
    pub(crate) async fn refused(&self, start: pb::StreamStart) -> Status {
        self.open(start).await.next().await.unwrap_err()
    }
}

/// Opens a stream and sends `start`.
pub(crate) async fn open(channel: &Channel, start: pb::StreamStart) -> Stream {
    Stream::open(channel.clone(), start).await
}

/// A start with large credits.
pub(crate) fn start() -> pb::StreamStart {
    pb::StreamStart {
        max_outstanding_bytes: 64 << 20,
        max_outstanding_batches: 1000,
        client_id: "test".to_owned(),
        ..pb::StreamStart::default()
    }
}

/// A start from a slot.
pub(crate) fn from_slot(name: &str) -> pb::StreamStart {
    pb::StreamStart { slot: format!("slots/{name}"), ..start() }
}

/// A protobuf duration.
pub(crate) fn millis(ms: u64) -> Option<prost_types::Duration> {
    Some(prost_types::Duration { seconds: (ms / 1000) as i64, nanos: (ms % 1000 * 1_000_000) as i32 })
}

/// An open StreamWal.
pub(crate) struct Stream {
    /// Upstream; none after half-closing.
    pub(crate) requests: Option<mpsc::Sender<pb::StreamWalRequest>>,
    /// Downstream.
    pub(crate) responses: Streaming<pb::StreamWalResponse>,
}

impl Stream {
    /// Opens a stream over `channel` and sends `start`.
    pub(crate) async fn open(channel: Channel, start: pb::StreamStart) -> Stream {
        let (requests, receiver) = mpsc::channel(16);
        let first = pb::StreamWalRequest { kind: Some(pb::stream_wal_request::Kind::Start(start)) };
        requests.send(first).await.unwrap();
        let mut client = PrimaryServiceClient::new(channel);
        let responses = client.stream_wal(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        Stream { requests: Some(requests), responses }
    }

    /// The next response.
    pub(crate) async fn next(&mut self) -> Result<Kind, Status> {
        let message = self.responses.message().await?;
        Ok(message.expect("the server ended the stream").kind.unwrap())
    }

    /// The first response.
    pub(crate) async fn started(&mut self) -> pb::StreamStarted {
        match self.next().await.unwrap() {
            Kind::Started(started) => started,
            other => panic!("{other:?}"),
        }
    }

    /// The next batch; keepalives are passed over.
    pub(crate) async fn batch(&mut self) -> pb::WalBatch {
        loop {
            match self.next().await.unwrap() {
                Kind::Batch(batch) => return batch,
                Kind::Keepalive(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// The next keepalive; there must be no batch before it.
    pub(crate) async fn keepalive(&mut self) -> pb::Keepalive {
        match self.next().await.unwrap() {
            Kind::Keepalive(keepalive) => keepalive,
            other => panic!("{other:?}"),
        }
    }

    /// Reports everything before `lsn` as flushed.
    pub(crate) async fn flushed(&self, lsn: u64) {
        self.feedback(pb::Feedback { flushed_lsn: lsn, ..pb::Feedback::default() }).await;
    }

    /// Sends a feedback. If the server has ended the stream meanwhile, its responses tell.
    pub(crate) async fn feedback(&self, feedback: pb::Feedback) {
        let request = pb::StreamWalRequest { kind: Some(pb::stream_wal_request::Kind::Feedback(feedback)) };
        let _ = self.requests.as_ref().unwrap().send(request).await;
    }

    /// Waits for the answer to a feedback that asked for one; batches before it are passed over.
    pub(crate) async fn answered(&mut self) {
        while !matches!(self.next().await.unwrap(), Kind::Keepalive(_)) {}
    }

    /// How the server ends the stream, whatever it sends before.
    pub(crate) async fn ended(&mut self) -> Status {
        loop {
            if let Err(status) = self.next().await {
                return status;
            }
        }
    }

    /// Says that no more feedback will come.
    pub(crate) fn half_close(&mut self) {
        self.requests = None;
    }

    /// All batches up to the end of the source, or the error that came before it. Flushes each at once.
    pub(crate) async fn drain(&mut self) -> (Vec<pb::WalBatch>, Result<pb::Keepalive, Status>) {
        let mut batches = Vec::new();
        loop {
            match self.next().await {
                Ok(Kind::Started(_)) => {}
                Ok(Kind::Batch(batch)) => {
                    if !batch.fragment {
                        self.flushed(batch.end_lsn).await;
                    }
                    batches.push(batch);
                }
                Ok(Kind::Keepalive(keepalive)) if keepalive.end_of_source => return (batches, Ok(keepalive)),
                Ok(Kind::Keepalive(_)) => {}
                Ok(other) => panic!("{other:?}"),
                Err(status) => return (batches, Err(status)),
            }
        }
    }
}

/// The records of raw batches, fragments joined.
pub(crate) fn raw_records(batches: &[pb::WalBatch]) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    let mut in_fragment = false;
    for batch in batches {
        let Some(pb::wal_batch::Body::Raw(raw)) = &batch.body else { panic!("not raw") };
        if in_fragment {
            records.last_mut().unwrap().bytes.extend_from_slice(&raw.records);
            assert!(raw.offsets.is_empty());
        }
        for (i, offset) in raw.offsets.iter().enumerate() {
            let to = raw.offsets.get(i + 1).map_or(raw.records.len(), |next| *next as usize);
            records.push(Record {
                lsn: Lsn(batch.start_lsn + u64::from(raw.lsn_offsets[i])),
                end_lsn: Lsn(batch.start_lsn + u64::from(raw.end_lsn_offsets[i])),
                bytes: raw.records[*offset as usize..to].to_vec(),
            });
        }
        in_fragment = batch.fragment;
    }
    records
}

/// A start from an LSN.
pub(crate) fn pb_from(from_lsn: u64) -> pb::StreamStart {
    pb::StreamStart { from_lsn, ..start() }
}
