//! `StreamWal`: one task a stream, around the state machine of [`WalSender`].
//!
//! ```text
//!   log ──fill (blocking task)──► ready ──credit, room in the channel──► client
//!                                             ▲ flushed
//!   client ──feedback──► WalSender ───────────┘──► slot
//! ```
//!
//! At most one batch is being filled, one is ready and two wait in the channel, so a stream holds a bounded amount of memory
//! however slow its consumer is. Nothing blocks a thread while a stream is idle.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use pg_types::{Lsn, Xid};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::{Status, Streaming};
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::wal::v1 as wal;

use pb::stream_wal_request::Kind as RequestKind;
use pb::stream_wal_response::Kind as ResponseKind;

use super::State;
use super::batch_reader::{BatchReader, BatchSettings, Filled, Outgoing, PIECE_BYTES};
use super::queue::{QueuePermit, QueueSender};
use super::streams::{Blocked, OpenStream, StreamStats};
use super::{convert, spans};
use crate::error::{Error, Result};
use crate::slots::{Held, SlotFile, SlotKind};
use crate::wal_log::LogEnd;
use crate::wal_sender::{Due, Positions, SenderSettings, WalSender};

/// Messages that wait between the stream's task and the connection.
pub(super) const CHANNEL_MESSAGES: usize = 2;
/// How long a client may take to send `start`.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Bounds of the two durations that a client chooses.
const KEEPALIVE_RANGE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(3600));
/// Longest name of a client.
const CLIENT_ID_BYTES_MAX: usize = 256;
/// Smallest size at which a batch is closed, however small the credit is.
const TARGET_BYTES_MIN: usize = 4 << 10;
/// Below, a timeout would end streams whose client is only busy. Zero switches it off, as `wal_sender_timeout = 0` does.
const FEEDBACK_RANGE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(24 * 3600));

/// Where responses go.
pub(super) type Responses = QueueSender<pb::StreamWalResponse>;

/// Runs one stream to its end, and tells the client how it ended.
pub(super) async fn run(state: Arc<State>, requests: Streaming<pb::StreamWalRequest>, responses: Responses) {
    let mut entry = None;
    if let Err(error) = stream(&state, requests, &responses, &mut entry).await {
        tracing::debug!(%error, "stream of WAL ended");
        // A client that is gone needs no answer. One that does not read keeps its place among the streams, and what waits for it,
        // until it reads or its connection ends; its slot is free already.
        if let Some(OpenStream { stats, .. }) = &entry {
            stats.ready_bytes.store(0, Relaxed);
            stats.set_blocked(Blocked::Window);
        }
        let _ = responses.send(Err(error)).await;
    }
}

/// The life of a stream; `Ok` when the client ended it.
async fn stream(
    state: &State,
    mut requests: Streaming<pb::StreamWalRequest>,
    responses: &Responses,
    entry: &mut Option<OpenStream>,
) -> Result<(), Status> {
    let first = tokio::select! {
        biased;
        first = tokio::time::timeout(START_TIMEOUT, requests.message()) => first,
        () = state.drain.draining() => return Err(Error::Draining.into()),
        () = responses.closed() => return Ok(()),
    };
    let start = match first {
        Err(_) => return Err(Error::field("start", "was not sent in time").into()),
        Ok(message) => match message? {
            Some(pb::StreamWalRequest { kind: Some(RequestKind::Start(start)) }) => start,
            Some(_) => return Err(Error::field("start", "must be the first message").into()),
            None => return Ok(()),
        },
    };
    let (mut session, started) = Session::start(state, &start, responses, entry).await?;
    tracing::info!(slot = session.held.name(), start = %Lsn(started.start_lsn), "stream of WAL started");
    if !responses.send(Ok(response(ResponseKind::Started(started)))).await {
        return Ok(());
    }
    session.run(requests, responses).await
}

/// Wraps a response.
fn response(kind: ResponseKind) -> pb::StreamWalResponse {
    pb::StreamWalResponse { kind: Some(kind) }
}

/// Checks what the client calls itself.
fn check_client_id(start: &pb::StreamStart) -> Result<()> {
    if start.client_id.len() > CLIENT_ID_BYTES_MAX {
        return Err(Error::field("start.client_id", format!("must have at most {CLIENT_ID_BYTES_MAX} bytes")));
    }
    Ok(())
}

/// Checks the numbers of `start`.
fn settings(start: &pb::StreamStart) -> Result<SenderSettings> {
    let positive = |field, value: i64| {
        u64::try_from(value).ok().filter(|v| *v > 0).ok_or_else(|| Error::field(field, "must be greater than 0"))
    };
    let credit_bytes = positive("start.max_outstanding_bytes", start.max_outstanding_bytes)?;
    let credit_batches = positive("start.max_outstanding_batches", i64::from(start.max_outstanding_batches))?;
    let (min, max) = KEEPALIVE_RANGE;
    let keepalive_interval =
        convert::duration_field("start.keepalive_interval", start.keepalive_interval, Duration::from_secs(10), min, max)?;
    let feedback_timeout = match start.feedback_timeout {
        Some(prost_types::Duration { seconds: 0, nanos: 0 }) => Duration::ZERO,
        told => {
            let (min, max) = FEEDBACK_RANGE;
            convert::duration_field("start.feedback_timeout", told, Duration::from_secs(60), min, max)?
        }
    };
    Ok(SenderSettings { credit_bytes, credit_batches: credit_batches as u32, keepalive_interval, feedback_timeout })
}

/// The encoding asked for.
fn encoding(start: &pb::StreamStart) -> Result<pb::Encoding> {
    match pb::Encoding::try_from(start.encoding) {
        Ok(pb::Encoding::Unspecified | pb::Encoding::Raw) => Ok(pb::Encoding::Raw),
        Ok(pb::Encoding::Typed) => Ok(pb::Encoding::Typed),
        Err(_) => Err(Error::field("start.encoding", "must be ENCODING_RAW or ENCODING_TYPED")),
    }
}

/// The size at which batches are closed: as configured, but a quarter of the credit at most, so that sending and flushing overlap.
fn target_bytes(configured: usize, credit_bytes: u64) -> usize {
    let quarter = usize::try_from(credit_bytes / 4).unwrap_or(usize::MAX);
    configured.min(quarter).clamp(TARGET_BYTES_MIN, PIECE_BYTES)
}

/// Takes the slot that `start` names, or makes an ephemeral one, and finds where to begin.
///
/// The last value is the slot's confirmed position, invalid without slot.
fn hold(state: &State, start: &pb::StreamStart) -> Result<(Held, Lsn, Lsn)> {
    let now_ms = state.now_ms();
    let asked = convert::optional_lsn(start.from_lsn);
    if start.slot.is_empty() {
        let from = asked.unwrap_or_else(|| state.log.oldest());
        state.log.check_start(from)?;
        let file = SlotFile::new("", &state.log.identity(), from, now_ms);
        return Ok((state.slots.hold_ephemeral(file, &start.client_id, now_ms)?, from, Lsn::INVALID));
    }
    let name = convert::slot_name("start.slot", &start.slot)?;
    crate::slots::validate_name(name)?;
    // Before the slot is taken: a wrong start must not end the stream that has it, nor a temporary slot.
    asked.map_or(Ok(()), |from| state.log.check_start(from))?;
    check_kind(start, state.slots.table().get(name)?.state.kind)?;
    let held = state.slots.hold(name, &start.client_id, now_ms)?;
    let slot = state.slots.table().get(name)?.state;
    let from = asked.unwrap_or(slot.restart_lsn);
    state.log.check_start(from)?;
    Ok((held, from, slot.confirmed_flush_lsn))
}

/// That a client that needs a physical slot names one ("cannot use a logical replication slot for physical replication").
fn check_kind(start: &pb::StreamStart, kind: SlotKind) -> Result<()> {
    if start.physical_slot && kind == SlotKind::Logical {
        let problem = format!("{} is a logical slot: name a physical one, or make one with CreateSlot", start.slot);
        return Err(Error::field("start.slot", problem));
    }
    Ok(())
}

/// A batch that is being read: the reader comes back with it.
type Filling = JoinHandle<(BatchReader, Result<Filled>)>;

/// A started stream.
struct Session<'a> {
    /// The node.
    state: &'a State,
    /// The slot, held as long as the stream lives.
    held: Held,
    /// The stream in numbers, for `ListStreams`.
    stats: Arc<StreamStats>,
    /// Positions, credits, deadlines.
    sender: WalSender,
    /// The reader while it rests.
    reader: Option<BatchReader>,
    /// The reader at work.
    filling: Option<Filling>,
    /// The next to be sent.
    ready: Option<Box<Outgoing>>,
    /// Since when it waits.
    ready_at: SystemTime,
    /// Everything before was read, and nothing of it is left to send but `ready`.
    read_to: Lsn,
    /// The reader has come to the end of the log.
    caught_up: bool,
    /// End of the log.
    end: watch::Receiver<LogEnd>,
    /// When the stream started; the state machine's time counts from here.
    started: Instant,
    /// A keepalive is owed: asked for by the client, or to say that the end is reached.
    keepalive_owed: bool,
    /// Shutdown has begun.
    draining: bool,
    /// The client has said that it will not speak again.
    half_closed: bool,
}

/// What to send next.
#[derive(Clone, Copy)]
enum Next {
    /// `ready`.
    Batch,
    /// A keepalive.
    Keepalive {
        /// With the wish for feedback.
        reply_requested: bool,
    },
}

impl<'a> Session<'a> {
    /// Checks `start`, takes the slot, opens the log.
    async fn start(
        state: &'a State,
        start: &pb::StreamStart,
        responses: &Responses,
        entry: &mut Option<OpenStream>,
    ) -> Result<(Self, pb::StreamStarted)> {
        let (settings, encoding) = (settings(start)?, encoding(start)?);
        check_client_id(start)?;
        let contexts = pb::TraceContexts::try_from(start.trace_contexts)
            .map_err(|_| Error::field("start.trace_contexts", "must be TRACE_CONTEXTS_ALL or TRACE_CONTEXTS_SAMPLED"))?;
        let (held, from, confirmed) = hold(state, start)?;
        let end = state.log.subscribe();
        let wal_end = end.borrow().lsn;
        let batches = BatchSettings {
            encoding,
            sampled_only: contexts == pb::TraceContexts::Sampled,
            target_bytes: target_bytes(state.limits.batch_bytes, settings.credit_bytes),
        };
        let reader = state.batch_reader(from, batches).await?;
        let identity = state.log.identity();
        let started = pb::StreamStarted {
            system_id: identity.system_id,
            timeline: identity.timeline,
            pg_version: identity.version.major(),
            segment_size: identity.segment_size,
            start_lsn: reader.position().0,
            wal_end_lsn: wal_end.0,
            encoding: encoding.into(),
            slot: if start.slot.is_empty() { String::new() } else { start.slot.clone() },
            keepalive_interval: Some(convert::duration(settings.keepalive_interval)),
            feedback_timeout: Some(convert::duration(settings.feedback_timeout)),
            confirmed_flush_lsn: confirmed.0,
        };
        let read_to = reader.position();
        let opened = state.registry.open(&start.client_id, &start.slot, state.now_ms(), responses.bytes());
        let stats = Arc::clone(&entry.insert(opened).stats);
        stats.sent.store(read_to.0, Relaxed);
        let session = Self {
            state,
            held,
            stats,
            sender: WalSender::new(settings, read_to),
            reader: Some(reader),
            filling: None,
            ready: None,
            ready_at: state.clock.now(),
            read_to,
            caught_up: false,
            end,
            started: Instant::now(),
            keepalive_owed: false,
            draining: false,
            half_closed: false,
        };
        Ok((session, started))
    }

    /// Runs until the client ends the stream, or an error does.
    async fn run(&mut self, mut requests: Streaming<pb::StreamWalRequest>, responses: &Responses) -> Result<(), Status> {
        loop {
            let due = self.sender.due(self.started.elapsed())?;
            self.fill_if_wanted();
            if self.half_closed && self.ready.is_none() && self.filling.is_none() && self.caught_up && !self.keepalive_owed {
                return Ok(());
            }
            if self.half_closed && self.ready.is_some() && !self.sender.may_send() {
                return Ok(());
            }
            let next = self.next(due);
            self.tell_numbers(next, responses);
            let wake = match due {
                Due::At(at) => self.started + at,
                // It waits for room in the channel, which is watched below; look again for the timeout.
                Due::Keepalive { .. } => Instant::now() + Duration::from_millis(100),
            };
            tokio::select! {
                // In this order, so that the same events always have the same effect. What a client says comes before what it
                // is sent: whoever floods the stream with feedback slows only itself.
                biased;
                error = self.held.lost() => return Err(error.into()),
                () = self.state.drain.stopping() => return Err(Error::Draining.into()),
                () = self.state.drain.draining(), if !self.draining => {
                    if self.announce_draining(responses).await? { return Err(Error::Draining.into()) }
                }
                filled = join(&mut self.filling), if self.filling.is_some() => self.on_filled(filled?)?,
                request = requests.message(), if !self.half_closed => {
                    match request? {
                        Some(request) => self.on_request(&request)?,
                        None => self.half_closed = true,
                    }
                    if self.draining && self.nothing_to_wait_for() { return Err(Error::Draining.into()) }
                }
                permit = responses.reserve(), if next.is_some() => {
                    let Some(permit) = permit else { return Ok(()) };
                    if let Some(next) = next { self.send(next, permit) }
                }
                () = responses.closed(), if next.is_none() => return Ok(()),
                // The log outlives its streams, so this cannot fail.
                Ok(()) = self.end.changed(), if self.caught_up && !self.draining => self.on_log_moved(),
                () = tokio::time::sleep_until(wake) => {}
            }
        }
    }

    /// Starts to read the next batch if there is room for it and WAL to read.
    fn fill_if_wanted(&mut self) {
        if self.ready.is_some() || self.caught_up || self.draining {
            return;
        }
        if let Some(mut reader) = self.reader.take() {
            self.filling = Some(service_kit::blocking::spawn(move || {
                let filled = reader.fill();
                (reader, filled)
            }));
        }
    }

    /// What to send now, if there is room in the channel.
    fn next(&self, due: Due) -> Option<Next> {
        match due {
            Due::Keepalive { reply_requested: true } => Some(Next::Keepalive { reply_requested: true }),
            _ if self.ready.is_some() && self.sender.may_send() && !self.draining => Some(Next::Batch),
            Due::Keepalive { reply_requested } => Some(Next::Keepalive { reply_requested }),
            Due::At(_) if self.keepalive_owed && self.filling.is_none() => Some(Next::Keepalive { reply_requested: false }),
            Due::At(_) => None,
        }
    }

    /// Notes how far the stream is and what it waits for.
    fn tell_numbers(&self, next: Option<Next>, responses: &Responses) {
        let stats = &self.stats;
        let positions = self.sender.positions();
        stats.sent.store(self.sender.sent().0, Relaxed);
        stats.received.store(positions.received.0, Relaxed);
        stats.flushed.store(positions.flushed.0, Relaxed);
        stats.applied.store(positions.applied.0, Relaxed);
        stats.outstanding_bytes.store(self.sender.bytes_in_flight(), Relaxed);
        stats.ready_bytes.store(self.ready.as_ref().map_or(0, |ready| ready.bytes), Relaxed);
        stats.set_blocked(match next {
            Some(_) if responses.is_full() => Blocked::Window,
            None if self.ready.is_some() => Blocked::Credit,
            _ => Blocked::Source,
        });
    }

    /// Sends.
    fn send(&mut self, next: Next, permit: QueuePermit<'_, pb::StreamWalResponse>) {
        let now = self.started.elapsed();
        match next {
            Next::Batch => {
                let Some(mut outgoing) = self.ready.take() else { return };
                spans::trace_batch(self.state, self.held.name(), &mut outgoing, self.ready_at);
                let Outgoing { mut batch, end, bytes, .. } = *outgoing;
                batch.send_time = Some(convert::timestamp_ms(self.state.now_ms()));
                self.sender.on_sent(now, end, bytes);
                permit.send(response(ResponseKind::Batch(batch)), bytes);
            }
            Next::Keepalive { reply_requested } => {
                let progress = if self.ready.is_none() { self.read_to.max(self.sender.sent()) } else { self.sender.sent() };
                self.sender.on_keepalive(now, progress, reply_requested);
                self.keepalive_owed = false;
                let end = *self.end.borrow();
                let keepalive = pb::Keepalive {
                    wal_end_lsn: end.lsn.0,
                    progress_lsn: progress.0,
                    reply_requested,
                    server_time: Some(convert::timestamp_ms(self.state.now_ms())),
                    end_of_source: end.closed && progress >= end.lsn,
                };
                permit.send(response(ResponseKind::Keepalive(keepalive)), 0);
            }
        }
    }

    /// Takes what the reader brought.
    fn on_filled(&mut self, (reader, filled): (BatchReader, Result<Filled>)) -> Result<()> {
        // Whose slot is lost finds its WAL removed; the loss is what it must hear of.
        match filled.map_err(|error| self.held.why_void().unwrap_or(error))? {
            Filled::Batch(outgoing) => {
                self.ready = Some(outgoing);
                self.ready_at = self.state.clock.now();
            }
            Filled::Progress => {}
            Filled::CaughtUp => {
                self.caught_up = true;
                // One who waits for the end should not have to wait for the next keepalive as well.
                self.keepalive_owed |= self.end.borrow().closed;
            }
        }
        self.read_to = self.read_to.max(reader.position());
        self.reader = Some(reader);
        Ok(())
    }

    /// The log has grown, or its source has ended.
    fn on_log_moved(&mut self) {
        self.caught_up = false;
        if let Some(reader) = &mut self.reader {
            reader.set_end(*self.end.borrow_and_update());
        }
    }

    /// Takes a message of the client.
    fn on_request(&mut self, request: &pb::StreamWalRequest) -> Result<()> {
        let feedback = match &request.kind {
            Some(RequestKind::Feedback(feedback)) => feedback,
            Some(RequestKind::Start(_)) => return Err(Error::field("start", "must be sent once only")),
            None => return Err(Error::field("kind", "must be set")),
        };
        let told = Positions {
            received: Lsn(feedback.received_lsn),
            flushed: Lsn(feedback.flushed_lsn),
            applied: Lsn(feedback.applied_lsn),
            restart: Lsn(feedback.restart_lsn),
        };
        if let Some(confirmed) = self.sender.on_feedback(self.started.elapsed(), told)? {
            self.held.confirm(confirmed);
        }
        // Who sees a position applied may rely on the xids that were told with it.
        if let Some(told) = &feedback.hot_standby {
            self.held.report_xmins(Xid(told.xmin), Xid(told.catalog_xmin));
        }
        let positions = self.sender.positions();
        self.held.report(positions.received, positions.applied);
        self.keepalive_owed |= feedback.reply_requested;
        Ok(())
    }

    /// Says that the stream will end. True if there is nothing to wait for.
    async fn announce_draining(&mut self, responses: &Responses) -> Result<bool, Status> {
        self.draining = true;
        let draining =
            wal::Draining { grace: Some(convert::duration(self.state.limits.grace)), resume_lsn: self.sender.sent().0 };
        tokio::select! {
            biased;
            sent = responses.send(Ok(response(ResponseKind::Draining(draining)))) => Ok(!sent || self.nothing_to_wait_for()),
            () = self.state.drain.stopping() => Ok(true),
        }
    }

    /// The client has flushed everything, or will not say so any more.
    fn nothing_to_wait_for(&self) -> bool {
        self.half_closed || self.sender.bytes_in_flight() == 0
    }
}

/// Waits for the reader.
async fn join(filling: &mut Option<Filling>) -> Result<(BatchReader, Result<Filled>)> {
    let Some(task) = filling else { return std::future::pending().await };
    let joined = task.await;
    *filling = None;
    joined.map_err(|error| Error::Internal(format!("the reader of WAL failed: {error}")))
}
