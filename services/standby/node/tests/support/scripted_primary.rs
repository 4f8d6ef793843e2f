//! A primary of which a test decides how far it serves, how it cuts its batches, and how its streams end.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use bytes::Bytes;
use pg_types::Lsn;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::primary::v1::primary_service_server::{PrimaryService, PrimaryServiceServer};
use walstorm_proto::primary::v1::stream_wal_request::Kind as Up;
use walstorm_proto::primary::v1::stream_wal_response::Kind as Down;
use walstorm_proto::primary::v1::{
    Encoding, Feedback, Keepalive, RawRecords, StreamInvalidationsRequest, StreamInvalidationsResponse, StreamStart,
    StreamStarted, StreamWalRequest, StreamWalResponse, WalBatch, wal_batch,
};
use walstorm_proto::wal::v1::TransactionContext;

use super::{Record, Wal};

/// How a stream ends when it has served what it may.
#[derive(Clone, Debug, Default)]
pub enum Ending {
    /// It does not: keepalives go on and more is served when the gate opens.
    #[default]
    Open,
    /// The primary goes away after so many batches.
    LostAfter(usize),
    /// An error.
    Error(Status),
}

/// What the primary does; a test may change it between streams.
#[derive(Clone, Debug)]
pub struct Script {
    /// The WAL.
    pub wal: Arc<Wal>,
    /// Records in a batch.
    pub batch_records: usize,
    /// Records longer than this are sent in pieces of this length.
    pub piece_bytes: usize,
    /// How streams end.
    pub ending: Ending,
    /// Trace contexts by commit LSN.
    pub contexts: Vec<TransactionContext>,
    /// It is not there: streams are refused with this before their first word.
    pub refuse: Option<Status>,
    /// When its messages say that they were sent.
    pub send_time: Option<SystemTime>,
}

/// What the primary has seen.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// The starts of its streams.
    pub starts: Vec<StreamStart>,
    /// All feedback.
    pub feedback: Vec<Feedback>,
}

/// The primary.
#[derive(Debug)]
pub struct ScriptedPrimary {
    addr: SocketAddr,
    script: Arc<Mutex<Script>>,
    gate: watch::Sender<Lsn>,
    seen: watch::Receiver<Seen>,
    serving: tokio::task::JoinHandle<()>,
}

impl ScriptedPrimary {
    /// Serves `wal` up to `gate`, in batches of 50 records.
    pub async fn start(wal: Wal, gate: Lsn) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let script = Script {
            wal: Arc::new(wal),
            batch_records: 50,
            piece_bytes: 1 << 19,
            ending: Ending::default(),
            contexts: Vec::new(),
            refuse: None,
            send_time: None,
        };
        let script = Arc::new(Mutex::new(script));
        let (gate, gate_seen) = watch::channel(gate);
        let (seen_tx, seen) = watch::channel(Seen::default());
        let service = Service { script: Arc::clone(&script), gate: gate_seen, seen: Arc::new(seen_tx) };
        let serving = tokio::spawn(async move {
            let server = tonic::transport::Server::builder().add_service(PrimaryServiceServer::new(service));
            server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
        });
        Self { addr, script, gate, seen, serving }
    }

    /// Where it is.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Changes what streams do from their next batch on.
    pub fn change(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock().unwrap());
    }

    /// Serves up to `lsn`.
    pub fn open_gate(&self, lsn: Lsn) {
        self.gate.send_replace(lsn);
    }

    /// What it has seen so far.
    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// Waits until it has seen something.
    pub async fn wait_seen(&self, wanted: impl Fn(&Seen) -> bool) -> Seen {
        self.seen.clone().wait_for(|seen| wanted(seen)).await.unwrap().clone()
    }
}

impl Drop for ScriptedPrimary {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// The gRPC side.
struct Service {
    script: Arc<Mutex<Script>>,
    gate: watch::Receiver<Lsn>,
    seen: Arc<watch::Sender<Seen>>,
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl PrimaryService for Service {
    type StreamWalStream = Responses<StreamWalResponse>;
    type StreamInvalidationsStream = Responses<StreamInvalidationsResponse>;
    type RunScenarioStream = Responses<pb::RunScenarioResponse>;

    async fn stream_wal(
        &self,
        request: Request<Streaming<StreamWalRequest>>,
    ) -> Result<Response<Self::StreamWalStream>, Status> {
        let mut up = request.into_inner();
        let Some(Ok(StreamWalRequest { kind: Some(Up::Start(start)) })) = up.next().await else {
            return Err(Status::invalid_argument("no start"));
        };
        if let Some(status) = self.script.lock().unwrap().refuse.clone() {
            return Err(status);
        }
        let from = Lsn(start.from_lsn);
        self.seen.send_modify(|seen| seen.starts.push(start));
        let seen = Arc::clone(&self.seen);
        tokio::spawn(async move {
            while let Some(Ok(request)) = up.next().await {
                if let Some(Up::Feedback(feedback)) = request.kind {
                    seen.send_modify(|seen| seen.feedback.push(feedback));
                }
            }
        });
        let (down, responses) = tokio::sync::mpsc::channel(4);
        tokio::spawn(serve_stream(from, Arc::clone(&self.script), self.gate.clone(), down));
        Ok(Response::new(Box::pin(ReceiverStream::new(responses))))
    }

    async fn stream_invalidations(
        &self,
        _request: Request<StreamInvalidationsRequest>,
    ) -> Result<Response<Self::StreamInvalidationsStream>, Status> {
        Err(Status::unimplemented("not in this play"))
    }

    async fn run_scenario(
        &self,
        _request: Request<pb::RunScenarioRequest>,
    ) -> Result<Response<Self::RunScenarioStream>, Status> {
        Err(Status::unimplemented("not in this play"))
    }

    async fn get_run(&self, _request: Request<pb::GetRunRequest>) -> Result<Response<pb::GetRunResponse>, Status> {
        Err(Status::unimplemented("not in this play"))
    }

    async fn list_runs(&self, _request: Request<pb::ListRunsRequest>) -> Result<Response<pb::ListRunsResponse>, Status> {
        Err(Status::unimplemented("not in this play"))
    }

    async fn cancel_run(&self, _request: Request<pb::CancelRunRequest>) -> Result<Response<pb::CancelRunResponse>, Status> {
        Err(Status::unimplemented("not in this play"))
    }

    async fn delete_run(&self, _request: Request<pb::DeleteRunRequest>) -> Result<Response<pb::DeleteRunResponse>, Status> {
        Err(Status::unimplemented("not in this play"))
    }

    async fn validate_scenario(
        &self,
        _request: Request<pb::ValidateScenarioRequest>,
    ) -> Result<Response<pb::ValidateScenarioResponse>, Status> {
        Err(Status::unimplemented("not in this play"))
    }
}

/// Where a stream's messages go.
type DownStream = tokio::sync::mpsc::Sender<Result<StreamWalResponse, Status>>;

/// Serves one stream; ends when its client is gone.
async fn serve_stream(from: Lsn, script: Arc<Mutex<Script>>, mut gate: watch::Receiver<Lsn>, down: DownStream) -> Option<()> {
    let say = async |kind: Down| down.send(Ok(StreamWalResponse { kind: Some(kind) })).await.ok();
    let first = script.lock().unwrap().clone();
    let records = &first.wal.records;
    let mut next = records.partition_point(|r| r.lsn < from);
    say(Down::Started(StreamStarted {
        system_id: first.wal.identity.system_id,
        timeline: first.wal.identity.timeline,
        pg_version: first.wal.identity.version.major(),
        segment_size: first.wal.identity.segment_size,
        start_lsn: records.get(next).map_or(from, |r| r.lsn).0,
        wal_end_lsn: first.wal.end().0,
        encoding: Encoding::Raw.into(),
        ..StreamStarted::default()
    }))
    .await?;
    let mut sent = 0;
    loop {
        let script = script.lock().unwrap().clone();
        let open = *gate.borrow_and_update();
        let end = records.partition_point(|r| r.end_lsn <= open).min(next + script.batch_records);
        if next < end {
            if matches!(script.ending, Ending::LostAfter(batches) if batches == sent) {
                return None;
            }
            for message in batches(&records[next..end], &script) {
                say(Down::Batch(message)).await?;
            }
            (next, sent) = (end, sent + 1);
            continue;
        }
        match script.ending {
            Ending::Error(status) => return down.send(Err(status)).await.ok(),
            Ending::LostAfter(0) => return None,
            _ => {}
        }
        let progress = records[..next].last().map_or(from, |r| r.end_lsn);
        let keepalive = Keepalive { wal_end_lsn: first.wal.end().0, progress_lsn: progress.0, ..Keepalive::default() };
        say(Down::Keepalive(Keepalive { reply_requested: true, ..keepalive })).await?;
        tokio::select! {
            changed = gate.changed() => changed.ok()?,
            () = down.closed() => return None,
        }
    }
}

/// Records as batches: whole ones together, long ones alone in pieces.
fn batches(records: &[Record], script: &Script) -> Vec<WalBatch> {
    let mut batches = Vec::new();
    for group in records.chunk_by(|a, b| a.bytes.len().max(b.bytes.len()) <= script.piece_bytes) {
        let (start, end) = (group[0].lsn, group[group.len() - 1].end_lsn);
        let distance = |lsn: Lsn| u32::try_from(lsn.0 - start.0).unwrap();
        let mut raw = RawRecords::default();
        let mut bytes: Vec<u8> = Vec::new();
        for r in group {
            raw.offsets.push(u32::try_from(bytes.len()).unwrap());
            raw.lsn_offsets.push(distance(r.lsn));
            raw.end_lsn_offsets.push(distance(r.end_lsn));
            bytes.extend(&r.bytes);
        }
        let contexts = |c: &&TransactionContext| group.iter().any(|r| r.lsn.0 == c.commit_lsn);
        let mut contexts: Vec<_> = script.contexts.iter().filter(contexts).cloned().collect();
        let piece_bytes = if group.len() == 1 { script.piece_bytes } else { bytes.len() };
        let pieces: Vec<_> = bytes.chunks(piece_bytes.max(1)).collect();
        for (i, piece) in pieces.iter().enumerate() {
            let raw = RawRecords { records: Bytes::copy_from_slice(piece), ..std::mem::take(&mut raw) };
            batches.push(WalBatch {
                start_lsn: start.0,
                end_lsn: end.0,
                fragment: i + 1 < pieces.len(),
                body: Some(wal_batch::Body::Raw(raw)),
                contexts: std::mem::take(&mut contexts),
                traceparent: String::new(),
                send_time: script.send_time.map(Into::into),
            });
        }
    }
    batches
}
