//! `Subscribe`: one task a stream, around the state machine of [`Subscriber`].
//!
//! ```text
//!   output log ──memory, or files on a blocking task──► queue ──credit, room in the channel──► client
//!                                                                  ▲ flushed
//!   client ──feedback──► Subscriber ───────────────────────────────┘──► named position
//! ```
//!
//! A stream holds one read's worth of entries, which it shares with all others that read the same from memory; a slow client
//! holds nothing but its place. Nobody waits for anybody.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pg_types::Lsn;
use service_kit::Drain;
use service_kit::status::invalid_field;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};
use walstorm_proto::EventBatch;
use walstorm_proto::decoder::v1 as pb;
use walstorm_proto::decoder::v1::subscribe_request::Kind as RequestKind;
use walstorm_proto::decoder::v1::subscribe_response::Kind as ResponseKind;
use walstorm_proto::wal::v1 as wal;

use super::filter::Filter;
use super::{Serving, Shared, convert, internal, status};
use crate::output_log::{Cursor, Entry, LogError, Recent};
use crate::state::OutputProgress;
use crate::subscriber::{Due, Subscriber, SubscriberSettings};
use crate::subscriptions::Session;

/// How long a client may take to send `start`.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// Bounds of the heartbeat interval that a client asks for.
const HEARTBEAT_RANGE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(3600));
/// Bounds of the feedback timeout; zero switches it off.
const FEEDBACK_RANGE: (Duration, Duration) = (Duration::ZERO, Duration::from_secs(24 * 3600));
/// Relations that a client may name.
const RELATIONS_MAX: usize = 10_000;
/// Bytes of a client's name.
const CLIENT_ID_BYTES_MAX: usize = 256;
/// Bytes read from the log at a time.
const READ_BYTES: usize = 256 << 10;

/// Where responses go.
type Responses = mpsc::Sender<Result<pb::SubscribeResponse, Status>>;

/// Runs one stream to its end, and tells the client how it ended.
pub(super) async fn run(shared: &Shared, requests: Streaming<pb::SubscribeRequest>, responses: Responses) {
    if let Err(error) = stream(shared, requests, &responses).await {
        tracing::debug!(%error, "subscription ended");
        // A client that is gone needs no answer; one that does not read is cut with its connection.
        tokio::select! {
            _ = responses.send(Err(error)) => {}
            () = shared.drain.stopping() => {}
        }
    }
}

/// The life of a stream; `Ok` when the client ended it.
async fn stream(shared: &Shared, mut requests: Streaming<pb::SubscribeRequest>, responses: &Responses) -> Result<(), Status> {
    let first = tokio::select! {
        first = tokio::time::timeout(START_TIMEOUT, requests.message()) => first,
        () = shared.drain.draining() => return Err(Drain::status()),
        () = responses.closed() => return Ok(()),
    };
    let must_be_first = || status::unexpected("start", "must be the first message").into_status();
    let start = match first {
        Err(_) => return Err(status::unexpected("start", "must be sent within 30 s").into_status()),
        Ok(message) => match message?.map(|request| request.kind) {
            Some(Some(RequestKind::Start(start))) => start,
            Some(_) => return Err(must_be_first()),
            None => return Ok(()),
        },
    };
    let serving = shared.serving.borrow().clone();
    let serving = serving.ok_or_else(|| status::not_ready("the decoder has not reached its primary yet"))?;
    let (mut stream, started) = Stream::open(shared, serving, start).await?;
    if responses.send(Ok(response(ResponseKind::Started(started)))).await.is_err() {
        return Ok(());
    }
    stream.run(requests, responses).await
}

/// Wraps a response.
fn response(kind: ResponseKind) -> pb::SubscribeResponse {
    pb::SubscribeResponse { kind: Some(kind) }
}

/// Checks the numbers of `start`.
fn settings(start: &pb::SubscribeStart) -> Result<SubscriberSettings, Status> {
    let credit_bytes = u64::try_from(start.max_outstanding_bytes).ok().filter(|bytes| *bytes > 0);
    let credit_bytes = credit_bytes.ok_or_else(|| invalid_field("start.max_outstanding_bytes", "must be greater than 0"))?;
    let credit_batches = match usize::try_from(start.max_outstanding_batches) {
        Ok(0) => usize::MAX,
        Ok(batches) => batches,
        Err(_) => return Err(invalid_field("start.max_outstanding_batches", "must not be negative").into()),
    };
    if start.relations.len() > RELATIONS_MAX {
        return Err(invalid_field("start.relations", format!("must be at most {RELATIONS_MAX}")).into());
    }
    if start.client_id.len() > CLIENT_ID_BYTES_MAX {
        return Err(invalid_field("start.client_id", format!("must be at most {CLIENT_ID_BYTES_MAX} bytes")).into());
    }
    let (heartbeat, timeout) = (start.heartbeat_interval, start.feedback_timeout);
    let ten_seconds = Duration::from_secs(10);
    Ok(SubscriberSettings {
        credit_bytes,
        credit_batches,
        heartbeat_interval: convert::duration("start.heartbeat_interval", heartbeat, ten_seconds, HEARTBEAT_RANGE)?,
        feedback_timeout: convert::duration("start.feedback_timeout", timeout, 6 * ten_seconds, FEEDBACK_RANGE)?,
    })
}

/// A registered stream; its end frees its subscription.
#[derive(Debug)]
struct Registered {
    /// Where it is registered.
    serving: Arc<Serving>,
    /// Its number.
    session: Session,
    /// Its subscription, empty if none.
    name: String,
    /// Cancelled when the same client opens the subscription again.
    taken_over: CancellationToken,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.serving.takeovers().remove(&self.session);
        self.serving.subscriptions().close(self.session);
    }
}

/// Entries read from files, and the cursor behind them.
type Reading = JoinHandle<(Cursor, Result<Vec<Entry>, LogError>)>;

/// A started stream.
#[derive(Debug)]
struct Stream<'a> {
    /// The node.
    shared: &'a Shared,
    /// Its registration.
    registered: Registered,
    /// Positions, credit, deadlines.
    subscriber: Subscriber,
    /// What the client does not want.
    filter: Filter,
    /// The next entry to be read; absent while a task reads.
    cursor: Option<Cursor>,
    /// That task.
    reading: Option<Reading>,
    /// Entries that were read.
    queue: VecDeque<Entry>,
    /// The batch that goes out next, and where everything has ended with it, unless it is a part of a transaction.
    next: Option<(EventBatch, Option<Lsn>)>,
    /// Where the output is.
    output: watch::Receiver<OutputProgress>,
    /// When the stream started; times of the state machine count from here.
    started: Instant,
    /// The client asked for a heartbeat.
    heartbeat_owed: bool,
    /// The node stops; the client was told.
    draining: bool,
    /// The client will not speak again.
    half_closed: bool,
    /// The last position that the client confirmed.
    flushed: Lsn,
}

impl<'a> Stream<'a> {
    /// Checks `start`, registers the stream and finds its place.
    async fn open(
        shared: &'a Shared,
        serving: Arc<Serving>,
        start: pb::SubscribeStart,
    ) -> Result<(Self, pb::SubscribeStarted), Status> {
        let settings = settings(&start)?;
        let (registered, confirmed) = register(shared, &serving, &start)?;
        let oldest = serving.log.oldest();
        let asked = (start.from_lsn != 0).then_some(Lsn(start.from_lsn));
        let position = asked.or(confirmed).unwrap_or(oldest);
        let (known, connected) = {
            let state = shared.state.borrow();
            (state.wal_end_lsn.max(state.decoded_lsn).max(serving.log.end()), state.connected)
        };
        if position > known && connected {
            return Err(status::ahead(position, known));
        }
        let log = Arc::clone(&serving.log);
        let cursor = tokio::task::spawn_blocking(move || log.seek(position)).await.map_err(|e| internal(&e))?;
        let cursor = cursor.map_err(|error| status::log(&error))?;
        serving.subscriptions().confirm(registered.session, position);
        let started = pb::SubscribeStarted {
            system_id: serving.system_id,
            timeline: serving.timeline,
            pg_version: serving.version.major(),
            start_lsn: position.0,
            profile: shared.profile.clone(),
            subscription: start.subscription,
        };
        let stream = Self {
            shared,
            registered,
            subscriber: Subscriber::new(settings, position),
            filter: Filter::new(position, start.relations, start.commits_only),
            cursor: Some(cursor),
            reading: None,
            queue: VecDeque::new(),
            next: None,
            output: shared.output.clone(),
            started: Instant::now(),
            heartbeat_owed: false,
            draining: false,
            half_closed: false,
            flushed: position,
        };
        Ok((stream, started))
    }

    /// Runs until the client ends the stream, or an error does.
    async fn run(&mut self, mut requests: Streaming<pb::SubscribeRequest>, responses: &Responses) -> Result<(), Status> {
        let registered = Arc::clone(&self.registered.serving);
        let taken_over = self.registered.taken_over.clone();
        loop {
            let due = self.subscriber.due(self.started.elapsed()).map_err(|e| status::timeout(&e, self.flushed))?;
            let caught_up = self.prepare()?;
            if caught_up && self.next.is_none() {
                self.check_halt()?;
            }
            if self.half_closed && self.is_done(caught_up) {
                return Ok(());
            }
            let heartbeat = self.heartbeat(due, caught_up);
            let send_batch = self.next.is_some() && self.subscriber.may_send() && !self.draining;
            let wake = match due {
                Due::At(at) => self.started + at,
                // It waits for room in the channel; look again for the timeout.
                Due::Heartbeat { .. } => Instant::now() + Duration::from_millis(100),
            };
            tokio::select! {
                () = taken_over.cancelled() => return Err(status::taken_over(&self.registered.name)),
                () = registered.over.cancelled() => return Err(status::not_ready("the decoder starts anew from its checkpoint")),
                () = self.shared.drain.stopping() => return Err(Drain::status()),
                () = self.shared.drain.draining(), if !self.draining => {
                    if self.announce_draining(responses).await { return Err(Drain::status()) }
                }
                request = requests.message(), if !self.half_closed => {
                    match request? {
                        Some(request) => self.on_request(&request)?,
                        None => self.half_closed = true,
                    }
                    if self.draining && self.nothing_to_wait_for() { return Err(Drain::status()) }
                }
                permit = responses.reserve(), if send_batch || heartbeat.is_some() => {
                    let Ok(permit) = permit else { return Ok(()) };
                    permit.send(Ok(match heartbeat {
                        Some(reply_requested) => self.send_heartbeat(reply_requested),
                        None => self.send_batch(),
                    }));
                }
                () = responses.closed() => return Ok(()),
                read = join(&mut self.reading), if self.reading.is_some() => self.on_read(read?)?,
                changed = self.output.changed(), if caught_up && !self.draining => {
                    if changed.is_err() { return Err(Drain::status()) }
                }
                () = sleep_until(wake) => {}
            }
        }
    }

    /// Nothing more will come from a decoder that a limit has halted.
    fn check_halt(&self) -> Result<(), Status> {
        let state = self.shared.state.borrow();
        state.spill_limit.map_or(Ok(()), |bytes_max| Err(status::spill_limit(&state.last_error, bytes_max)))
    }

    /// Makes the next batch ready if there is one. True if everything that can be read was.
    fn prepare(&mut self) -> Result<bool, Status> {
        while self.next.is_none() {
            if let Some(entry) = self.queue.pop_front() {
                self.take(entry)?;
                continue;
            }
            if self.reading.is_some() || self.draining || self.half_closed && !self.subscriber.may_send() {
                return Ok(false);
            }
            let Some(mut cursor) = self.cursor.take() else { return Ok(false) };
            let progress = *self.output.borrow_and_update();
            let log = &self.registered.serving.log;
            match log.recent(&mut cursor, READ_BYTES) {
                Recent::Entries(entries) if entries.is_empty() => {
                    // What `progress` promises was readable before it was promised, so nothing up to there is left out.
                    if cursor.position() >= progress.end {
                        self.subscriber.on_passed(progress.decoded);
                    }
                    self.cursor = Some(cursor);
                    return Ok(true);
                }
                Recent::Entries(entries) => {
                    self.queue.extend(entries);
                    self.cursor = Some(cursor);
                }
                Recent::OnDisk => {
                    let log = Arc::clone(log);
                    self.reading = Some(tokio::task::spawn_blocking(move || {
                        let read = log.read(&mut cursor, READ_BYTES);
                        (cursor, read)
                    }));
                    return Ok(false);
                }
            }
        }
        Ok(false)
    }

    /// Makes a batch of an entry, or passes it over.
    fn take(&mut self, entry: Entry) -> Result<(), Status> {
        let end = (!entry.is_fragment()).then_some(entry.end);
        let stored = EventBatch::from_encoded(entry.payload);
        if self.filter.passes_whole(entry.prev_end) {
            self.next = Some((stored, end));
            return Ok(());
        }
        let left = self.filter.apply(&stored).map_err(|error| internal(&error))?;
        match (left, end) {
            (Some(batch), end) => self.next = Some((batch, end)),
            (None, Some(end)) => self.subscriber.on_passed(end),
            (None, None) => {}
        }
        Ok(())
    }

    /// Takes what was read from files.
    fn on_read(&mut self, (cursor, read): (Cursor, Result<Vec<Entry>, LogError>)) -> Result<(), Status> {
        self.queue.extend(read.map_err(|error| status::log(&error))?);
        self.cursor = Some(cursor);
        Ok(())
    }

    /// Whether a heartbeat goes out now, and whether it asks for a reply.
    fn heartbeat(&mut self, due: Due, caught_up: bool) -> Option<bool> {
        match due {
            Due::Heartbeat { reply_requested } => Some(reply_requested),
            // One that was asked for tells of the end if it can; a client that waits for credit gets it at once.
            Due::At(_) => (self.heartbeat_owed && (caught_up || !self.subscriber.may_send() || self.draining)).then_some(false),
        }
    }

    /// The heartbeat.
    fn send_heartbeat(&mut self, reply_requested: bool) -> pb::SubscribeResponse {
        self.subscriber.on_heartbeat(self.started.elapsed(), reply_requested);
        self.heartbeat_owed = false;
        response(ResponseKind::Heartbeat(pb::Heartbeat {
            progress_lsn: self.subscriber.sent().0,
            received_lsn: self.shared.state.borrow().received_lsn.0,
            reply_requested,
            server_time: Some(convert::wall_time(self.shared.clock.now())),
        }))
    }

    /// The batch.
    fn send_batch(&mut self) -> pb::SubscribeResponse {
        let (batch, end) = self.next.take().unwrap_or_default();
        self.subscriber.on_sent(self.started.elapsed(), end, prost::Message::encoded_len(&batch) as u64);
        response(ResponseKind::Batch(batch))
    }

    /// Takes a message of the client.
    fn on_request(&mut self, request: &pb::SubscribeRequest) -> Result<(), Status> {
        let feedback = match &request.kind {
            Some(RequestKind::Feedback(feedback)) => feedback,
            Some(RequestKind::Start(_)) => return Err(status::unexpected("start", "must be sent once only").into()),
            None => return Err(status::unexpected("kind", "must be set").into()),
        };
        let told = self.subscriber.on_feedback(self.started.elapsed(), Lsn(feedback.flushed_lsn));
        if let Some(flushed) = told.map_err(|error| status::feedback(&error))? {
            self.flushed = flushed;
            self.registered.serving.subscriptions().confirm(self.registered.session, flushed);
        }
        self.heartbeat_owed |= feedback.reply_requested;
        Ok(())
    }

    /// Says that the stream will end. True if there is nothing to wait for.
    async fn announce_draining(&mut self, responses: &Responses) -> bool {
        self.draining = true;
        let grace = Some(convert::to_duration(self.shared.grace));
        let draining = wal::Draining { grace, resume_lsn: self.subscriber.sent().0 };
        tokio::select! {
            sent = responses.send(Ok(response(ResponseKind::Draining(draining)))) => sent.is_err() || self.nothing_to_wait_for(),
            () = self.shared.drain.stopping() => true,
        }
    }

    /// The client has confirmed everything, or will not say so any more.
    fn nothing_to_wait_for(&self) -> bool {
        self.half_closed || self.subscriber.bytes_in_flight() == 0
    }

    /// A client that half-closed gets what there is, as far as its credit goes.
    fn is_done(&self, caught_up: bool) -> bool {
        let nothing_left = caught_up && self.next.is_none() && !self.heartbeat_owed;
        nothing_left || !self.subscriber.may_send()
    }
}

/// Registers a stream, and ends the one of the same client that it replaces.
fn register(shared: &Shared, serving: &Arc<Serving>, start: &pb::SubscribeStart) -> Result<(Registered, Option<Lsn>), Status> {
    let now = shared.clock.now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let opened = serving.subscriptions().open(&start.subscription, &start.client_id, now.as_millis() as u64);
    let opened = opened.map_err(|error| status::open(&error))?;
    if let Some(replaced) = opened.replaced
        && let Some(token) = serving.takeovers().remove(&replaced)
    {
        token.cancel();
    }
    let taken_over = CancellationToken::new();
    serving.takeovers().insert(opened.session, taken_over.clone());
    let (serving, name) = (Arc::clone(serving), start.subscription.clone());
    Ok((Registered { serving, session: opened.session, name, taken_over }, opened.confirmed))
}

/// Waits for the reading task.
async fn join(reading: &mut Option<Reading>) -> Result<(Cursor, Result<Vec<Entry>, LogError>), Status> {
    let Some(task) = reading else { return std::future::pending().await };
    let joined = task.await;
    *reading = None;
    joined.map_err(|error| internal(&error))
}
