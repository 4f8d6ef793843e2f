//! The client's side of StreamWal: opens the stream, hands batches on, and reports positions.
//!
//! What it reports: `received` = what arrived; `applied` and `flushed` = what is decoded and durable in the output log; `restart` =
//! what may be asked for again, which is the checkpoint's restart position: a transaction that began there may still be open here.
//! The primary keeps WAL from `restart` on, and catalog rows from the checkpoint's `catalog_xmin` on. Backpressure comes from the bounded channel to the decoding thread, through HTTP/2's
//! windows, so the node gives all the credit there is.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::trace::SpanContext;
use pg_types::{Lsn, Xid};
use service_kit::client::{self, ClientConfig};
use service_kit::server::MESSAGE_BYTES_MAX;
use service_kit::status::{Reason, reason_of};
use service_kit::telemetry::context;
use service_kit::{Drain, printable};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use walstorm_proto::admin::v1::admin_service_client::AdminServiceClient;
use walstorm_proto::admin::v1::{CreateSlotRequest, GetServerInfoRequest, GetServerInfoResponse};
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::primary::v1::primary_service_client::PrimaryServiceClient;
use walstorm_proto::primary::v1::stream_wal_request::Kind as RequestKind;
use walstorm_proto::primary::v1::stream_wal_response::Kind as ResponseKind;

use crate::error::NodeError;
use crate::pipeline::{Arrival, Batch, Joiner};
use crate::received_ends::ReceivedEnds;
use crate::server::convert;
use crate::state::NodeState;

/// Feedback follows a change of positions after at most this.
const FEEDBACK_DELAY: Duration = Duration::from_millis(100);

/// Feedback is sent at least so often, however busy the decoding thread is.
const FEEDBACK_INTERVAL: Duration = Duration::from_secs(5);

/// Asked of the primary: its longest silence, and ours.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// See [`KEEPALIVE_INTERVAL`].
const FEEDBACK_TIMEOUT: Duration = Duration::from_secs(60);

/// How long the primary may take to say what it is, when it has refused the stream.
const SERVER_INFO_TIMEOUT: Duration = Duration::from_secs(5);

/// Whom to follow, and as whom.
#[derive(Clone, Debug)]
pub(crate) struct Upstream {
    /// The primary.
    pub(crate) client: ClientConfig,
    /// Slot, without `slots/`; empty for none.
    pub(crate) slot: String,
    /// Our name.
    pub(crate) client_id: String,
    /// Makes the slot if it is not there and this node has not begun.
    pub(crate) create_slot: bool,
    /// When this node stops.
    pub(crate) drain: Drain,
    /// The node's state.
    pub(crate) state: watch::Sender<NodeState>,
}

/// An open stream.
#[derive(Debug)]
pub(crate) struct Opened {
    /// What the primary says of it.
    pub(crate) started: pb::StreamStarted,
    /// From the primary.
    responses: Streaming<pb::StreamWalResponse>,
    /// To the primary.
    requests: mpsc::Sender<pb::StreamWalRequest>,
}

/// Why a stream ended, if not by an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// This node stops.
    Stopped,
    /// The decoding thread ended: it has the reason.
    DecoderGone,
}

impl Upstream {
    /// Opens the stream at `from`; 0 is the slot's own position. `fresh`: this node has not begun, so that a slot may be made.
    pub(crate) async fn open(&self, from: Lsn, fresh: bool) -> Result<Opened, NodeError> {
        let channel = client::connect(&self.client, &self.drain).await?;
        match self.start(channel.clone(), from).await {
            Ok(opened) => Ok(opened),
            Err(status) if reason_of(&status) != Some(Reason::SlotNotFound) => Err(self.error(&status)),
            Err(_) if fresh && self.create_slot => {
                self.make_slot(channel.clone(), from).await.map_err(|status| self.error(&status))?;
                self.start(channel, from).await.map_err(|status| self.error(&status))
            }
            Err(_) => Err(NodeError::NoSlot { slot: self.slot.clone() }),
        }
    }

    /// Sends `start` and waits for `started`.
    async fn start(&self, channel: Channel, from: Lsn) -> Result<Opened, Status> {
        let slot = if self.slot.is_empty() { String::new() } else { format!("slots/{}", self.slot) };
        let start = pb::StreamStart {
            slot,
            from_lsn: from.0,
            encoding: pb::Encoding::Raw.into(),
            max_outstanding_bytes: i64::MAX,
            max_outstanding_batches: i32::MAX,
            keepalive_interval: Some(convert::to_duration(KEEPALIVE_INTERVAL)),
            feedback_timeout: Some(convert::to_duration(FEEDBACK_TIMEOUT)),
            client_id: self.client_id.clone(),
            trace_contexts: pb::TraceContexts::Sampled.into(),
            ..pb::StreamStart::default()
        };
        let (requests, receiver) = mpsc::channel(4);
        let start = pb::StreamWalRequest { kind: Some(RequestKind::Start(start)) };
        // The channel is new and empty.
        drop(requests.try_send(start));
        let mut client = PrimaryServiceClient::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let mut responses = client.stream_wal(ReceiverStream::new(receiver)).await?.into_inner();
        match responses.message().await?.and_then(|response| response.kind) {
            Some(ResponseKind::Started(started)) => Ok(Opened { started, responses, requests }),
            Some(ResponseKind::Draining(_)) | None => Err(Drain::status()),
            Some(_) => Err(Status::internal("the stream did not begin with `started`")),
        }
    }

    /// The same for reading WAL again, beside the node's own stream and without its slot.
    #[must_use]
    pub(crate) fn for_reading_again(&self) -> Self {
        let (state, _) = watch::channel(NodeState::default());
        let client_id = format!("{} (analysis)", self.client_id);
        Self {
            slot: String::new(),
            create_slot: false,
            state,
            client_id,
            client: self.client.clone(),
            drain: self.drain.clone(),
        }
    }

    /// Opens a stream that reads again from `from`; 0 is the oldest WAL that the primary has.
    ///
    /// # Errors
    ///
    /// As the primary says it.
    pub(crate) async fn open_again(&self, from: Lsn) -> Result<Opened, Status> {
        let channel = client::connect(&self.client, &self.drain).await.map_err(|e| Status::unavailable(e.to_string()))?;
        self.start(channel, from).await
    }

    /// The next whole batch; `None` if nothing more comes before `to`.
    ///
    /// # Errors
    ///
    /// As the primary says it, or it sent something malformed.
    pub(crate) async fn next_again(&self, opened: &mut Opened, joiner: &mut Joiner, to: Lsn) -> Result<Option<Batch>, Status> {
        while let Some(response) = opened.responses.message().await? {
            match response.kind {
                Some(ResponseKind::Batch(batch)) => {
                    let batch = self.on_batch(batch, joiner).map_err(|e| Status::data_loss(e.to_string()))?;
                    if batch.is_some() {
                        return Ok(batch);
                    }
                }
                Some(ResponseKind::Keepalive(keepalive)) => {
                    if keepalive.end_of_source || keepalive.progress_lsn >= to.0 {
                        return Ok(None);
                    }
                    let feedback = pb::Feedback { received_lsn: keepalive.progress_lsn, ..Default::default() };
                    // A full channel has one on its way.
                    drop(opened.requests.try_send(pb::StreamWalRequest { kind: Some(RequestKind::Feedback(feedback)) }));
                }
                Some(ResponseKind::Draining(_)) => return Err(Drain::status()),
                Some(ResponseKind::Started(_)) | None => {}
            }
        }
        Ok(None)
    }

    /// What the primary is; `None` if it does not say.
    pub(crate) async fn server_info(&self) -> Option<GetServerInfoResponse> {
        let channel = client::connect(&self.client, &self.drain).await.ok()?;
        let mut client = AdminServiceClient::new(channel);
        let info = client.get_server_info(GetServerInfoRequest {});
        Some(tokio::time::timeout(SERVER_INFO_TIMEOUT, info).await.ok()?.ok()?.into_inner())
    }

    /// Makes the slot.
    async fn make_slot(&self, channel: Channel, from: Lsn) -> Result<(), Status> {
        let request = CreateSlotRequest { slot_id: self.slot.clone(), start_lsn: from.0, ..Default::default() };
        match AdminServiceClient::new(channel).create_slot(request).await {
            Err(status) if reason_of(&status) != Some(Reason::SlotExists) => Err(status),
            _ => {
                tracing::info!(slot = self.slot, "made the slot at the primary");
                Ok(())
            }
        }
    }

    /// Hands batches on and reports positions until the stream ends.
    pub(crate) async fn follow(
        &self,
        opened: Opened,
        arrivals: &mpsc::Sender<Arrival>,
        ahead: &ReceivedEnds,
    ) -> Result<Ended, NodeError> {
        let Opened { started, mut responses, requests } = opened;
        let mut joiner = Joiner::default();
        let mut pending: Option<Arrival> = None;
        let mut changes = self.state.subscribe();
        let mut feedback = Feedback { requests, state: self.state.subscribe(), sent: None, due: Instant::now() };
        self.state.send_modify(|state| {
            state.connected = true;
            state.last_error.clear();
            state.wal_end_lsn = Lsn(started.wal_end_lsn);
        });
        loop {
            tokio::select! {
                () = self.drain.draining() => {
                    feedback.send(false);
                    return Ok(Ended::Stopped);
                }
                permit = arrivals.reserve(), if pending.is_some() => match (permit, pending.take()) {
                    (Ok(permit), Some(arrival)) => {
                        if let Arrival::Batch(batch) = &arrival {
                            ahead.received(Arc::clone(batch));
                        }
                        permit.send(arrival);
                    }
                    _ => return Ok(Ended::DecoderGone),
                },
                () = arrivals.closed(), if pending.is_none() => return Ok(Ended::DecoderGone),
                response = responses.message(), if pending.is_none() => {
                    let response = response.map_err(|status| self.error(&status))?;
                    let Some(response) = response else {
                        return Err(NodeError::StreamLost("the primary closed it".to_owned()));
                    };
                    pending = self.on_response(response, &mut joiner, &mut feedback)?;
                }
                _ = changes.changed() => feedback.schedule(),
                () = sleep_until(feedback.due) => feedback.send(false),
            }
        }
    }

    /// Takes a response; gives what it means for the decoding thread.
    fn on_response(
        &self,
        response: pb::StreamWalResponse,
        joiner: &mut Joiner,
        feedback: &mut Feedback,
    ) -> Result<Option<Arrival>, NodeError> {
        match response.kind {
            Some(ResponseKind::Batch(batch)) => {
                self.on_batch(batch, joiner).map(|batch| batch.map(|batch| Arrival::Batch(Arc::new(batch))))
            }
            Some(ResponseKind::Keepalive(keepalive)) => {
                let progress = Lsn(keepalive.progress_lsn);
                self.state.send_modify(|state| {
                    state.wal_end_lsn = Lsn(keepalive.wal_end_lsn);
                    state.received_lsn = state.received_lsn.max(progress);
                });
                if keepalive.reply_requested {
                    feedback.send(false);
                }
                Ok(Some(Arrival::Progress { received: progress, source_ended: keepalive.end_of_source }))
            }
            Some(ResponseKind::Draining(_)) => {
                // The last positions; the primary then ends the stream, and the node comes back for more.
                feedback.send(false);
                Ok(None)
            }
            Some(ResponseKind::Started(_)) | None => {
                Err(NodeError::StreamLost("the primary sent something unexpected".to_owned()))
            }
        }
    }

    /// Takes a batch; gives it when it is whole.
    fn on_batch(&self, batch: pb::WalBatch, joiner: &mut Joiner) -> Result<Option<Batch>, NodeError> {
        let (start, end) = (Lsn(batch.start_lsn), Lsn(batch.end_lsn));
        let Some(pb::wal_batch::Body::Raw(raw)) = batch.body else {
            return Err(NodeError::Batch { lsn: start, reason: "it is not encoded raw".to_owned() });
        };
        let Some(raw) = joiner.join(raw, batch.fragment) else { return Ok(None) };
        let sampled = |c: &SpanContext| c.is_sampled();
        let contexts = batch.contexts.iter().filter_map(|message| {
            let context = context::from_message(message).ok().filter(sampled)?;
            Some((Lsn(message.commit_lsn), context))
        });
        let contexts = contexts.collect();
        let sender = context::parse_context(&batch.traceparent, "").ok().filter(sampled);
        self.state.send_modify(|state| {
            state.received_lsn = state.received_lsn.max(end);
            state.wal_end_lsn = state.wal_end_lsn.max(end);
        });
        Ok(Some(Batch { start, end, raw, contexts, sender, arrived: std::time::Instant::now() }))
    }

    /// What a status means: gone for a while, or refused for good.
    fn error(&self, status: &Status) -> NodeError {
        let description = client::describe(status);
        let passing = match reason_of(status) {
            Some(Reason::Draining | Reason::NotReady | Reason::FeedbackTimeout | Reason::StreamLimit) => true,
            Some(_) => false,
            None => matches!(
                status.code(),
                Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal | Code::DeadlineExceeded
            ),
        };
        if passing {
            return NodeError::StreamLost(description);
        }
        NodeError::Refused { endpoint: printable(&self.client.endpoint).into_owned(), description }
    }
}

/// What is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    /// Everything before it has arrived.
    received: Lsn,
    /// WAL from here on may be asked for again.
    restart: Lsn,
    /// Everything before it is decoded, and durable.
    applied: Lsn,
    /// Catalog rows that it or a later xid sees are needed; invalid: nothing is said of it.
    catalog_xmin: Xid,
}

/// The node's side of feedback.
#[derive(Debug)]
struct Feedback {
    /// To the primary.
    requests: mpsc::Sender<pb::StreamWalRequest>,
    /// Where the positions are.
    state: watch::Receiver<NodeState>,
    /// Positions as they were last sent.
    sent: Option<Told>,
    /// When the next one is due.
    due: Instant,
}

impl Feedback {
    /// Positions have changed, or may have.
    fn schedule(&mut self) {
        if self.sent != Some(self.positions()) {
            self.due = self.due.min(Instant::now() + FEEDBACK_DELAY);
        }
    }

    /// The positions to report.
    fn positions(&self) -> Told {
        let state = self.state.borrow();
        let (received, applied) = (state.received_lsn, state.applied_lsn.min(state.received_lsn));
        Told { received, applied, restart: state.flushed_lsn.min(applied), catalog_xmin: state.catalog_xmin }
    }

    /// Reports now.
    fn send(&mut self, reply_requested: bool) {
        let told = self.positions();
        let catalog_xmin = told.catalog_xmin;
        let feedback = pb::Feedback {
            received_lsn: told.received.0,
            flushed_lsn: told.applied.0,
            applied_lsn: told.applied.0,
            reply_requested,
            hot_standby: catalog_xmin.is_valid().then_some(pb::HotStandbyFeedback { xmin: 0, catalog_xmin: catalog_xmin.0 }),
            restart_lsn: told.restart.0,
        };
        // If the channel is full, the one before is on its way still, and the next one follows soon.
        let sent = self.requests.try_send(pb::StreamWalRequest { kind: Some(RequestKind::Feedback(feedback)) }).is_ok();
        self.sent = sent.then_some(told);
        self.due = Instant::now() + if sent { FEEDBACK_INTERVAL } else { FEEDBACK_DELAY };
    }
}
