//! The standby's walreceiver (`replication/walreceiver.c`): opens the stream, hands batches to replay, reports positions, and
//! opens it again where it ended.
//!
//! ```text
//!  connect ──► started ──► batch ──► queue ──► replay        feedback: received (here), applied and flushed (replay's)
//!     ▲           │          │ queue full: nothing is read, HTTP/2 holds the primary back
//!     │           └──────────┴── stream lost ──► wait, doubling ──┐
//!     └───────────────────────────────────────────────────────────┘
//! ```
//!
//! A stream that ends is taken up again at the end of what was received; what is already queued stays queued. Some ends are
//! final ([`Halt`]): they travel through the queue, so that everything before them is replayed first.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pg_types::Lsn;
use service_kit::Clock;
use service_kit::client::{Backoff, describe};
use service_kit::error_text;
use service_kit::server::MESSAGE_BYTES_MAX;
use service_kit::status::{Reason, reason_of};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};
use walstorm_proto::admin::v1::GetServerInfoRequest;
use walstorm_proto::admin::v1::admin_service_client::AdminServiceClient;
use walstorm_proto::primary::v1::primary_service_client::PrimaryServiceClient;
use walstorm_proto::primary::v1::stream_wal_request::Kind as Up;
use walstorm_proto::primary::v1::stream_wal_response::Kind as Down;
use walstorm_proto::primary::v1::{
    Encoding, Feedback, HotStandbyFeedback, StreamStart, StreamStarted, StreamWalRequest, StreamWalResponse, TraceContexts,
};

use crate::batch::{Batch, BatchAssembler};
use crate::config::{Checked, StartAt};
use crate::error::Halt;
use crate::progress::{Progress, Upstream};
use crate::restart_point::RestartPoint;

/// Credit that we give the primary, in bytes. It comes back with what we report as flushed, and that is the restart point, which
/// moves only with the primary's checkpoints: a small credit would stall the stream between two of them. What really waits here
/// is bounded by the queue; when that is full we stop reading, and HTTP/2's window stops the primary.
const CREDIT_BYTES: i64 = i64::MAX;
/// The same in batches.
const CREDIT_BATCHES: i32 = i32::MAX;
/// Shortest time between two reports that nobody asked for.
const FEEDBACK_SPACING: Duration = Duration::from_millis(20);
/// Reports that may wait to be sent: one is written while the next is made.
const FEEDBACK_QUEUE: usize = 4;
/// Longest wait for the stream's first word, which needs nothing from the primary but that it lives.
const STARTED_TIMEOUT: Duration = Duration::from_secs(10);

/// The cluster that is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// `system_identifier`.
    pub system_id: u64,
    /// Timeline.
    pub timeline: u32,
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cluster {} on timeline {}", self.system_id, self.timeline)
    }
}

/// What goes to replay, in order.
#[derive(Debug)]
pub enum Item {
    /// A stream began; before the first batch, and again after each loss.
    Started(StreamStarted),
    /// Records.
    Batch(Batch),
    /// Nothing more lies before this position.
    NothingBefore(Lsn),
    /// Nothing more will come.
    Halt(Halt),
}

/// How a stream ended.
#[derive(Debug)]
enum End {
    /// The node is stopping, or replay has stopped.
    Stopped,
    /// Worth another try.
    Lost(String),
    /// Not worth another try.
    Final(Halt),
}

impl From<Halt> for End {
    fn from(halt: Halt) -> Self {
        Self::Final(halt)
    }
}

/// The task that follows the primary.
#[derive(Debug)]
pub struct Follower {
    /// Primary, slot, name and intervals.
    checked: Checked,
    /// What was received, across streams.
    assembler: BatchAssembler,
    /// The cluster, once known: from the restart point or the first stream.
    identity: Option<Identity>,
    /// To replay; its room is the node's only buffer of WAL.
    queue: mpsc::Sender<Item>,
    /// What replay has done.
    progress: watch::Receiver<Progress>,
    /// What we tell the rest of the node.
    upstream: watch::Sender<Upstream>,
    /// When things arrive.
    clock: Arc<dyn Clock>,
    /// Ends the task.
    stop: CancellationToken,
}

/// What a follower is connected with.
#[derive(Debug)]
pub struct Ends {
    /// To replay; its room is the node's only buffer of WAL.
    pub queue: mpsc::Sender<Item>,
    /// What replay has done.
    pub progress: watch::Receiver<Progress>,
    /// What the follower tells the rest of the node.
    pub upstream: watch::Sender<Upstream>,
    /// When things arrive.
    pub clock: Arc<dyn Clock>,
    /// Ends the task.
    pub stop: CancellationToken,
}

impl Follower {
    /// A follower that begins at the restart point, or where the configuration says.
    #[must_use]
    pub fn new(checked: &Checked, restart_point: Option<&RestartPoint>, ends: Ends) -> Self {
        let Ends { queue, progress, upstream, clock, stop } = ends;
        let from = match (restart_point, checked.start) {
            (Some(point), _) => point.redo_lsn,
            (None, StartAt::Lsn(lsn)) => lsn,
            (None, _) => Lsn::INVALID,
        };
        Self {
            checked: checked.clone(),
            assembler: BatchAssembler::new(from),
            identity: restart_point.map(|p| Identity { system_id: p.system_id, timeline: p.timeline }),
            queue,
            progress,
            upstream,
            clock,
            stop,
        }
    }

    /// Follows until the node stops or an end is final.
    pub async fn run(mut self) {
        let client = self.checked.config.primary.clone();
        let mut backoff = Backoff::new(client.backoff_min, client.backoff_max);
        loop {
            let before = self.assembler.received();
            let end = self.one_stream().await;
            self.upstream.send_modify(|u| u.connected = false);
            match end {
                End::Stopped => return,
                End::Final(halt) => {
                    self.upstream.send_modify(|u| u.last_error = halt.to_string());
                    // A closed queue means that replay has stopped by itself.
                    let _ = self.queue.send(Item::Halt(halt)).await;
                    return;
                }
                End::Lost(reason) => {
                    tracing::warn!(primary = %client.endpoint, received = %self.assembler.received(), "no stream: {reason}");
                    self.upstream.send_modify(|u| u.last_error = reason);
                }
            }
            if self.assembler.received() > before {
                backoff = Backoff::new(client.backoff_min, client.backoff_max);
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(backoff.next_delay()) => {}
            }
        }
    }

    /// Opens one stream and reads it to its end.
    async fn one_stream(&mut self) -> End {
        let stop = self.stop.clone();
        let opened = tokio::select! {
            () = stop.cancelled() => return End::Stopped,
            opened = self.open() => opened,
        };
        match opened {
            Ok((up, down)) => match self.read(&up, down).await {
                Ok(()) => End::Stopped,
                Err(end) => end,
            },
            Err(end) => end,
        }
    }

    /// Connects and opens the stream at the end of what was received.
    async fn open(&mut self) -> Result<(mpsc::Sender<StreamWalRequest>, Streaming<StreamWalResponse>), End> {
        let at = self.assembler.received();
        let channel = self.checked.primary.connect().await.map_err(|e| End::Lost(format!("connect: {}", error_text(&e))))?;
        let (up, requests) = mpsc::channel(FEEDBACK_QUEUE);
        let start = StreamStart {
            slot: self.checked.config.slot.clone(),
            from_lsn: at.0,
            encoding: Encoding::Raw.into(),
            max_outstanding_bytes: CREDIT_BYTES,
            max_outstanding_batches: CREDIT_BATCHES,
            client_id: self.checked.config.client_id.clone(),
            trace_contexts: TraceContexts::Sampled.into(),
            physical_slot: true,
            ..StreamStart::default()
        };
        up.try_send(StreamWalRequest { kind: Some(Up::Start(start)) })
            .map_err(|_| End::Lost("send the stream's start".to_owned()))?;
        let opening = async {
            let mut client = PrimaryServiceClient::new(channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
            let mut down = client.stream_wal(ReceiverStream::new(requests)).await?.into_inner();
            let first = down.message().await?;
            Ok::<_, Status>((down, first))
        };
        let opened = tokio::time::timeout(STARTED_TIMEOUT, opening).await;
        let opened = opened.map_err(|_| End::Lost(format!("no answer within {STARTED_TIMEOUT:?}")))?;
        let (down, first) = match opened {
            Ok(opened) => opened,
            Err(status) => return Err(self.explain(ended_by(&status, at), channel).await),
        };
        let Some(StreamWalResponse { kind: Some(Down::Started(started)) }) = first else {
            return Err(End::Lost("the primary did not begin with its start message".to_owned()));
        };
        self.check_identity(Identity { system_id: started.system_id, timeline: started.timeline })?;
        self.assembler.stream_started();
        let now = self.clock.monotonic();
        self.upstream.send_modify(|u| {
            u.connected = true;
            u.wal_end_lsn = Lsn(started.wal_end_lsn);
            u.heard = Some(now);
            u.last_error.clear();
        });
        tracing::info!(start = %Lsn(started.start_lsn), wal_end = %Lsn(started.wal_end_lsn), "following the primary");
        self.queue.send(Item::Started(started)).await.map_err(|_| End::Stopped)?;
        Ok((up, down))
    }

    /// Why the primary refuses what it gave before. Of another cluster's WAL, slots and positions tell nothing: that is said first.
    async fn explain(&mut self, end: End, channel: Channel) -> End {
        if self.identity.is_none() || !matches!(end, End::Final(_)) {
            return end;
        }
        let mut client = AdminServiceClient::new(channel);
        let info = tokio::time::timeout(STARTED_TIMEOUT, client.get_server_info(GetServerInfoRequest {})).await;
        let Ok(Ok(info)) = info.map(|answer| answer.map(tonic::Response::into_inner)) else { return end };
        match self.check_identity(Identity { system_id: info.system_id, timeline: info.timeline }) {
            Ok(()) => end,
            Err(other) => End::Final(other),
        }
    }

    /// Positions mean something within one cluster and timeline only.
    fn check_identity(&mut self, found: Identity) -> Result<(), Halt> {
        let expected = *self.identity.get_or_insert(found);
        if expected == found {
            return Ok(());
        }
        let (expected, found) = (expected.to_string(), found.to_string());
        Err(Halt::OtherCluster { lsn: self.assembler.received(), expected, found })
    }

    /// Reads a stream: a batch that finds the queue full stops the reading, never the reporting.
    async fn read(&mut self, up: &mpsc::Sender<StreamWalRequest>, mut down: Streaming<StreamWalResponse>) -> Result<(), End> {
        let stop = self.stop.clone();
        let queue = self.queue.clone();
        let mut progress = self.progress.clone();
        let mut waiting: Option<Item> = None;
        let mut reported = Feedback::default();
        let mut report_at = Instant::now() + self.checked.config.feedback_interval;
        loop {
            tokio::select! {
                () = stop.cancelled() => {
                    self.report(up, &mut reported, true);
                    return Ok(());
                }
                permit = queue.reserve(), if waiting.is_some() => {
                    let permit = permit.map_err(|_| End::Stopped)?;
                    if let Some(item) = waiting.take() {
                        permit.send(item);
                    }
                }
                message = down.message(), if waiting.is_none() => {
                    let message = message.map_err(|status| ended_by(&status, self.assembler.received()))?;
                    let Some(message) = message else {
                        return Err(End::Lost("the primary ended the stream".to_owned()));
                    };
                    let (item, report_now) = self.take(message)?;
                    waiting = item;
                    if report_now {
                        self.report(up, &mut reported, true);
                        report_at = Instant::now() + self.checked.config.feedback_interval;
                    }
                }
                changed = progress.changed() => {
                    changed.map_err(|_| End::Stopped)?;
                    report_at = report_at.min(Instant::now() + FEEDBACK_SPACING);
                }
                () = tokio::time::sleep_until(report_at) => {
                    self.report(up, &mut reported, false);
                    report_at = Instant::now() + self.checked.config.feedback_interval;
                }
            }
        }
    }

    /// Takes one message; gives what replay must know, and whether the primary wants a report at once.
    fn take(&mut self, message: StreamWalResponse) -> Result<(Option<Item>, bool), End> {
        let mut item = None;
        let mut report_now = false;
        let before = self.assembler.received();
        let now = self.clock.monotonic();
        let transport_lag = sent_at(&message).map(|sent| self.clock.now().duration_since(sent).unwrap_or_default());
        match message.kind {
            Some(Down::Batch(wire)) => {
                let batch = self.assembler.take(wire).map_err(Halt::from)?;
                item = batch.map(|batch| Item::Batch(Batch { received: now, ..batch }));
            }
            Some(Down::Keepalive(keepalive)) => {
                self.assembler.progressed(Lsn(keepalive.progress_lsn));
                let received = self.assembler.received();
                item = (received > before).then_some(Item::NothingBefore(received));
                self.upstream.send_modify(|u| u.wal_end_lsn = Lsn(keepalive.wal_end_lsn));
                report_now = keepalive.reply_requested;
            }
            Some(Down::Draining(_)) => {
                tracing::info!("the primary drains; the stream will be opened again where it ends");
                report_now = true;
            }
            // A kind of a newer primary, or a second start: nothing that concerns replay.
            Some(Down::Started(_)) | None => {}
        }
        let received = self.assembler.received();
        self.upstream.send_modify(|u| {
            u.received_lsn = received;
            u.wal_end_lsn = u.wal_end_lsn.max(received);
            u.heard = Some(now);
            u.transport_lag = transport_lag.or(u.transport_lag);
        });
        Ok((item, report_now))
    }

    /// Sends positions if they changed, or in any case when `always`. A full queue of reports means that newer ones follow soon.
    fn report(&self, up: &mpsc::Sender<StreamWalRequest>, reported: &mut Feedback, always: bool) {
        let feedback = positions(self.assembler.received(), &self.progress.borrow(), reported);
        if (always || feedback != *reported) && up.try_send(StreamWalRequest { kind: Some(Up::Feedback(feedback)) }).is_ok() {
            *reported = feedback;
        }
    }
}

/// When the primary sent a message, by its clock, if it tells.
fn sent_at(message: &StreamWalResponse) -> Option<SystemTime> {
    let time = match &message.kind {
        Some(Down::Batch(batch)) => batch.send_time,
        Some(Down::Keepalive(keepalive)) => keepalive.server_time,
        _ => None,
    };
    time.and_then(|time| SystemTime::try_from(time).ok())
}

/// What is reported: applied never above received, flushed never above applied, and none ever back.
fn positions(received: Lsn, progress: &Progress, reported: &Feedback) -> Feedback {
    let applied = progress.replay_lsn.min(received);
    let flushed = progress.flushed_lsn.min(applied);
    Feedback {
        received_lsn: received.0.max(reported.received_lsn),
        flushed_lsn: flushed.0.max(reported.flushed_lsn),
        applied_lsn: applied.0.max(reported.applied_lsn),
        reply_requested: false,
        hot_standby: progress.feedback_xmin.is_valid().then(|| HotStandbyFeedback {
            xmin: progress.feedback_xmin.numeric(),
            // For slots of the standby, of which there are none.
            catalog_xmin: 0,
        }),
        restart_lsn: 0,
    }
}

/// What the end of a stream means for a standby that has everything before `at`.
fn ended_by(status: &Status, at: Lsn) -> End {
    let reason = reason_of(status);
    let remedy = match reason {
        Some(Reason::SlotNotFound) => {
            "; make the slot on the primary, which must still have the WAL from there on, or set no slot"
        }
        Some(Reason::SlotActive) => "; stop who uses the slot, or give this standby a slot of its own",
        _ => "",
    };
    let said = format!("{}{remedy}", describe(status));
    match (status.code(), reason) {
        (Code::DataLoss, _) => End::Final(Halt::DataLoss { lsn: at, reason: said }),
        (_, Some(Reason::LsnRemoved)) => End::Final(Halt::Removed { lsn: at, reason: said }),
        (_, Some(Reason::SlotInvalidated)) | (Code::InvalidArgument | Code::Unimplemented, _) => {
            End::Final(Halt::Refused { lsn: at, reason: said })
        }
        // LSN_AHEAD: a primary that lost its tail in a crash may write up to here again. No slot: somebody may make it.
        // Slot in use: its holder may leave.
        _ => End::Lost(said),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_ordered_and_never_go_back() {
        let progress =
            |replay: u64, flushed: u64| Progress { replay_lsn: Lsn(replay), flushed_lsn: Lsn(flushed), ..Progress::default() };
        let first = positions(Lsn(100), &progress(80, 40), &Feedback::default());
        assert_eq!((first.received_lsn, first.applied_lsn, first.flushed_lsn), (100, 80, 40));
        // Replay restarted behind what was reported, and a flush beyond what this stream brought.
        let second = positions(Lsn(90), &progress(200, 200), &first);
        assert_eq!((second.received_lsn, second.applied_lsn, second.flushed_lsn), (100, 90, 90));
        let third = positions(Lsn(50), &progress(10, 0), &second);
        assert_eq!((third.received_lsn, third.applied_lsn, third.flushed_lsn), (100, 90, 90));
    }

    #[test]
    fn only_ends_that_repeating_does_not_cure_are_final() {
        let at = Lsn(0x1000);
        let is_final = |status: &Status| matches!(ended_by(status, at), End::Final(_));
        assert!(is_final(&Status::data_loss("bad crc")));
        assert!(is_final(&Status::invalid_argument("credit")));
        assert!(is_final(&Status::unimplemented("WAL of version 19")));
        for cured in
            [Status::unavailable("down"), Status::not_found("slot"), Status::out_of_range("ahead"), Status::internal("?")]
        {
            assert!(!is_final(&cured), "{cured}");
        }
        let End::Final(halt) = ended_by(&Status::data_loss("bad crc"), at) else { panic!("not final") };
        assert!(halt.to_string().contains("0/1000") && halt.to_string().contains("bad crc"), "{halt}");
    }
}
