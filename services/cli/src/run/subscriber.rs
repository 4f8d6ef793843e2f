//! A subscriber of the decoder that counts what it gets: the consumer at the end of the pipeline.

use std::time::SystemTime;

use anyhow::{Context, bail};
use pg_types::Lsn;
use service_kit::client::describe;
use service_kit::server::MESSAGE_BYTES_MAX;
use service_kit::status::{Reason, reason_of};
use service_kit::telemetry::context::from_message;
use service_kit::telemetry::{Tracer, names};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::Endpoint;
use walstorm_proto::EventBatch;
use walstorm_proto::decoder::v1::decoder_service_client::DecoderServiceClient;
use walstorm_proto::decoder::v1::event::Kind as EventKind;
use walstorm_proto::decoder::v1::subscribe_request::Kind as Up;
use walstorm_proto::decoder::v1::subscribe_response::Kind as Down;
use walstorm_proto::decoder::v1::{Commit, Delivery, SubscribeFeedback, SubscribeRequest, SubscribeResponse, SubscribeStart};
use walstorm_proto::wal::v1::ChangeKind;

/// Credit given to the decoder, in bytes.
const CREDIT_BYTES: i64 = 8 << 20;

/// Longest silence of the decoder: its heartbeats tell that nothing more comes.
const HEARTBEAT_INTERVAL: prost_types::Duration = prost_types::Duration { seconds: 0, nanos: 50_000_000 };

/// Pause before a decoder that is not ready is asked again.
const RETRY_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// What was received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Transactions, by their commits.
    pub transactions: u64,
    /// Rows inserted.
    pub inserts: u64,
    /// Rows updated.
    pub updates: u64,
    /// Rows deleted.
    pub deletes: u64,
    /// TRUNCATEs of relations.
    pub truncates: u64,
    /// Logical messages.
    pub messages: u64,
}

/// What was received before its commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct InProgress {
    /// Transactions that came when they were prepared.
    pub prepared: u64,
    /// Of them, those that committed.
    pub commits_prepared: u64,
    /// Of them, those that were rolled back.
    pub rollbacks_prepared: u64,
    /// Longest time from a PREPARE to its COMMIT PREPARED, in seconds: so much earlier it came than at its commit.
    pub ahead_s_max: u64,
    /// Blocks of transactions in progress.
    pub blocks: u64,
    /// Transactions that committed after they had come in blocks.
    pub commits_streamed: u64,
}

/// How far a subscriber is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Received {
    /// What it got.
    pub counts: Counts,
    /// What of it before the commit.
    pub in_progress: InProgress,
    /// Everything that ends at or before it was received.
    pub end: Lsn,
}

/// A subscriber at work.
#[derive(Debug)]
pub struct Subscriber {
    /// How far it is.
    received: watch::Receiver<Received>,
    /// Its end.
    task: JoinHandle<anyhow::Result<()>>,
}

impl Subscriber {
    /// Subscribes to everything that the decoder at `address` has and will have; sampled transactions have spans by `tracer`.
    ///
    /// # Errors
    /// No connection.
    pub async fn start(address: std::net::SocketAddr, tracer: Tracer) -> anyhow::Result<Self> {
        Self::start_with(address, Delivery::OnCommit, tracer).await
    }

    /// The same; what the decoder gives out before the commit comes as it is.
    ///
    /// # Errors
    /// No connection.
    pub async fn start_in_progress(address: std::net::SocketAddr) -> anyhow::Result<Self> {
        Self::start_with(address, Delivery::InProgress, Tracer::off()).await
    }

    /// See above.
    async fn start_with(address: std::net::SocketAddr, delivery: Delivery, tracer: Tracer) -> anyhow::Result<Self> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true).connect().await;
        let channel = channel.context("connect to the decoder")?;
        let client = DecoderServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let (sender, received) = watch::channel(Received::default());
        Ok(Self { received, task: tokio::spawn(subscribe(client, delivery, Receipts::new(tracer), sender)) })
    }

    /// How far it is.
    #[must_use]
    pub fn received(&self) -> Received {
        *self.received.borrow()
    }

    /// Waits until it has everything up to `end`.
    ///
    /// # Errors
    /// Its stream ended before.
    pub async fn finished(self, end: Lsn) -> anyhow::Result<Counts> {
        Ok(self.received_to(end).await?.counts)
    }

    /// The same; gives what came before its commit.
    ///
    /// # Errors
    /// Its stream ended before.
    pub async fn finished_in_progress(self, end: Lsn) -> anyhow::Result<InProgress> {
        Ok(self.received_to(end).await?.in_progress)
    }

    /// See above.
    async fn received_to(mut self, end: Lsn) -> anyhow::Result<Received> {
        if let Ok(received) = self.received.wait_for(|r| r.end >= end).await {
            let received = *received;
            self.task.abort();
            return Ok(received);
        }
        match self.task.await {
            Ok(Err(error)) => Err(error),
            Ok(Ok(())) => bail!("the decoder ended the subscription before {end}"),
            Err(error) => Err(error).context("the subscriber failed"),
        }
    }
}

/// Reads the stream to its end, counting and acknowledging. A decoder that has not reached its primary yet is asked again.
async fn subscribe(
    mut client: DecoderServiceClient<tonic::transport::Channel>,
    delivery: Delivery,
    mut receipts: Receipts,
    progress: watch::Sender<Received>,
) -> anyhow::Result<()> {
    let mut received = Received::default();
    loop {
        let (up, requests) = mpsc::channel(16);
        let start = SubscribeStart {
            from_lsn: received.end.0,
            max_outstanding_bytes: CREDIT_BYTES,
            heartbeat_interval: Some(HEARTBEAT_INTERVAL),
            client_id: "walstorm-run".to_owned(),
            delivery: delivery.into(),
            ..SubscribeStart::default()
        };
        up.send(SubscribeRequest { kind: Some(Up::Start(start)) }).await.context("subscribe")?;
        let opened = client.subscribe(ReceiverStream::new(requests)).await;
        let ended = match opened {
            Ok(down) => read(down.into_inner(), &up, &mut received, &mut receipts, &progress).await,
            Err(status) => Err(status.into()),
        };
        match ended {
            Err(Ended::Status(status)) if reason_of(&status) == Some(Reason::NotReady) => tokio::time::sleep(RETRY_PAUSE).await,
            Err(Ended::Status(status)) => bail!("the subscription ended: {}", describe(&status)),
            Err(Ended::Event(error)) => return Err(error).context("read an event of the decoder"),
            Ok(()) => return Ok(()),
        }
    }
}

/// Makes the spans of sampled transactions that are received.
#[derive(Debug)]
struct Receipts {
    /// Makes them.
    tracer: Tracer,
    /// When the batch at hand came.
    batch: SystemTime,
    /// When the transaction at hand began to come.
    begun: SystemTime,
}

impl Receipts {
    /// Nothing received.
    fn new(tracer: Tracer) -> Self {
        Self { tracer, batch: SystemTime::UNIX_EPOCH, begun: SystemTime::UNIX_EPOCH }
    }

    /// A transaction is there.
    fn commit(&self, commit: &Commit) {
        let context = commit.context.as_deref().and_then(|context| from_message(context).ok());
        if let Some(mut span) = context.and_then(|context| self.tracer.receive_transaction(&context, self.begun)) {
            span.number(names::XID, u64::from(commit.xid)).lsn(names::COMMIT_LSN, commit.commit_lsn);
            span.number(names::CHANGES, commit.event_count);
            span.end(SystemTime::now());
        }
    }
}

/// Why a stream ended.
#[derive(Debug)]
enum Ended {
    /// The decoder said so.
    Status(Box<tonic::Status>),
    /// An event cannot be read.
    Event(prost::DecodeError),
}

impl From<tonic::Status> for Ended {
    fn from(status: tonic::Status) -> Self {
        Self::Status(Box::new(status))
    }
}

impl From<prost::DecodeError> for Ended {
    fn from(error: prost::DecodeError) -> Self {
        Self::Event(error)
    }
}

/// Reads one stream.
async fn read(
    mut down: Streaming<SubscribeResponse>,
    up: &mpsc::Sender<SubscribeRequest>,
    received: &mut Received,
    receipts: &mut Receipts,
    progress: &watch::Sender<Received>,
) -> Result<(), Ended> {
    loop {
        let response = down.message().await?;
        match response.map(|response| response.kind) {
            Some(Some(Down::Batch(batch))) => {
                receipts.batch = SystemTime::now();
                count(&batch, received, receipts)?;
            }
            Some(Some(Down::Heartbeat(heartbeat))) => received.end = received.end.max(Lsn(heartbeat.progress_lsn)),
            Some(Some(Down::Started(_)) | None) => continue,
            Some(Some(Down::Draining(_))) | None => return Ok(()),
        }
        progress.send_replace(*received);
        let feedback = SubscribeFeedback { flushed_lsn: received.end.0, reply_requested: false };
        // A closed stream says why on its other half.
        let _ = up.send(SubscribeRequest { kind: Some(Up::Feedback(feedback)) }).await;
    }
}

/// Adds a batch.
fn count(batch: &EventBatch, received: &mut Received, receipts: &mut Receipts) -> Result<(), prost::DecodeError> {
    let (counts, in_progress) = (&mut received.counts, &mut received.in_progress);
    for event in batch.events() {
        match event?.kind {
            Some(EventKind::Begin(_)) => receipts.begun = receipts.batch,
            Some(EventKind::Change(change)) => {
                let columns = change.columns.unwrap_or_default();
                for (&kind, &rows) in columns.kinds.iter().zip(&columns.row_counts) {
                    let counter = match ChangeKind::try_from(kind) {
                        Ok(ChangeKind::Insert) => &mut counts.inserts,
                        Ok(ChangeKind::Update) => &mut counts.updates,
                        Ok(ChangeKind::Delete) => &mut counts.deletes,
                        Ok(ChangeKind::Unspecified) | Err(_) => continue,
                    };
                    *counter += u64::from(rows);
                }
            }
            Some(EventKind::Truncate(truncate)) => counts.truncates += truncate.relation_ids.len() as u64,
            Some(EventKind::Message(_)) => counts.messages += 1,
            Some(EventKind::Commit(commit)) => {
                counts.transactions += 1;
                received.end = received.end.max(Lsn(commit.end_lsn));
                receipts.commit(&commit);
            }
            Some(EventKind::StreamStart(_)) => in_progress.blocks += 1,
            Some(EventKind::StreamCommit(_)) => {
                counts.transactions += 1;
                in_progress.commits_streamed += 1;
            }
            Some(EventKind::Prepare(_)) => in_progress.prepared += 1,
            Some(EventKind::CommitPrepared(commit)) => {
                counts.transactions += 1;
                in_progress.commits_prepared += 1;
                let seconds = |time: Option<prost_types::Timestamp>| time.unwrap_or_default().seconds;
                let ahead = seconds(commit.commit_time).saturating_sub(seconds(commit.prepare_time));
                in_progress.ahead_s_max = in_progress.ahead_s_max.max(u64::try_from(ahead).unwrap_or(0));
            }
            Some(EventKind::RollbackPrepared(_)) => in_progress.rollbacks_prepared += 1,
            _ => {}
        }
    }
    Ok(())
}
