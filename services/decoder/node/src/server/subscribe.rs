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

use super::assemble::{Piece, Splitter};
use super::filter::{Filter, Wanted};
use super::in_progress::InProgress;
use super::{Serving, Shared, convert, internal, status};
use crate::output_log::{Cursor, Entry, LogError};
use crate::state::OutputProgress;
use crate::subscriber::{Due, Subscriber, SubscriberSettings};
use crate::subscriptions::{Opened, Session};

mod reading;

use reading::{Back, begin_in_progress};

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
    let serving = serving.ok_or_else(|| {
        let state = shared.state.borrow();
        match state.halted {
            true => status::halted(&state.last_error),
            false => status::not_ready("the decoder has not reached its primary yet"),
        }
    })?;
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
type Reading = JoinHandle<Result<(Cursor, Vec<Entry>), LogError>>;

/// When transactions go out.
#[derive(Debug)]
enum Delivery {
    /// Whole, at their commit.
    OnCommit(Splitter, Filter),
    /// As the log has them.
    InProgress(Box<InProgress>),
}

/// A started stream.
#[derive(Debug)]
struct Stream<'a> {
    /// The node.
    shared: &'a Shared,
    /// Its registration.
    registered: Registered,
    /// Positions, credit, deadlines.
    subscriber: Subscriber,
    /// What the client wants, and when.
    delivery: Delivery,
    /// The next entry to be read; absent while a task reads.
    cursor: Option<Cursor>,
    /// That task.
    reading: Option<Reading>,
    /// Entries that were read.
    queue: VecDeque<Entry>,
    /// Parts of the entry at hand, with whether the client wants all of it.
    pieces: VecDeque<(Piece, bool)>,
    /// Transactions with parts before it are left out: the stream begins here because nothing before is kept.
    whole_from: Lsn,
    /// The transaction that is read back, with the same.
    back: Option<(Back, bool)>,
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
        mut start: pb::SubscribeStart,
    ) -> Result<(Self, pb::SubscribeStarted), Status> {
        let settings = settings(&start)?;
        let (registered, opened) = register(shared, &serving, &start)?;
        let oldest = serving.log.oldest();
        let asked = (start.from_lsn != 0).then_some(Lsn(start.from_lsn));
        let position = asked.or(opened.confirmed).unwrap_or(oldest);
        let is_new = asked.is_none() && opened.is_new;
        let (known, connected) = {
            let state = shared.state.borrow();
            (state.wal_end_lsn.max(state.decoded_lsn).max(serving.log.end()), state.connected)
        };
        if position > known && connected {
            return Err(status::ahead(position, known));
        }
        let in_progress = is_in_progress(&serving, &start)?;
        let (log, wanted) = (Arc::clone(&serving.log), Wanted::new(std::mem::take(&mut start.relations)));
        let commits_only = start.commits_only;
        let found = tokio::task::spawn_blocking(move || match in_progress {
            false => {
                Ok((log.seek(position)?, Delivery::OnCommit(Splitter::default(), Filter::new(position, wanted, commits_only))))
            }
            true => begin_in_progress(&log, position, is_new, wanted),
        });
        let (cursor, delivery) = found.await.map_err(|e| internal(&e))?.map_err(|error| status::log(&error))?;
        match is_new {
            true => serving.subscriptions().begin(registered.session, position),
            false => drop(serving.subscriptions().confirm(registered.session, position)),
        }
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
            delivery,
            cursor: Some(cursor),
            reading: None,
            queue: VecDeque::new(),
            pieces: VecDeque::new(),
            whole_from: if is_new { position } else { Lsn::INVALID },
            back: None,
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
fn register(shared: &Shared, serving: &Arc<Serving>, start: &pb::SubscribeStart) -> Result<(Registered, Opened), Status> {
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
    Ok((Registered { serving, session: opened.session, name, taken_over }, opened))
}

/// Whether a client wants transactions in progress, and can have them.
fn is_in_progress(serving: &Serving, start: &pb::SubscribeStart) -> Result<bool, Status> {
    match pb::Delivery::try_from(start.delivery) {
        Ok(pb::Delivery::Unspecified | pb::Delivery::OnCommit) => Ok(false),
        Ok(pb::Delivery::InProgress) if start.commits_only => {
            Err(invalid_field("start.commits_only", "must not be set with DELIVERY_IN_PROGRESS").into())
        }
        Ok(pb::Delivery::InProgress) if serving.in_progress => Ok(true),
        Ok(pb::Delivery::InProgress) => Err(status::not_in_progress()),
        Err(_) => Err(invalid_field("start.delivery", "must be DELIVERY_ON_COMMIT or DELIVERY_IN_PROGRESS").into()),
    }
}

/// Waits for the reading task.
async fn join(reading: &mut Option<Reading>) -> Result<Result<(Cursor, Vec<Entry>), LogError>, Status> {
    let Some(task) = reading else { return std::future::pending().await };
    let joined = task.await;
    *reading = None;
    joined.map_err(|error| internal(&error))
}
