//! `StandbyService`: snapshots for readers, and how far recovery is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pg_types::{Lsn, Work};
use service_kit::Drain;
use service_kit::cpu::{namesakes_cpu_time, thread_clock_cost_ns, thread_cpu_ns};
use service_kit::status::{Failure, Reason, failure, invalid_field};
use standby_core::{RecoveryError, ReplayedState, SnapshotCost, SnapshotMeter};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use walstorm_proto::standby::v1::standby_service_server::StandbyService;
use walstorm_proto::standby::v1::{
    GetRecoveryStateRequest, GetRecoveryStateResponse, HoldSnapshotRequest, HoldSnapshotResponse, OpenCatalogSessionRequest,
    OpenCatalogSessionResponse, TakeSnapshotRequest, TakeSnapshotResponse,
};

use crate::progress::{Progress, Upstream};
use crate::readiness::Readiness;
use crate::replay::Readable;
use crate::spans::Spans;

mod catalog_session;
mod convert;
mod deadline;
mod hold_snapshot;

/// Answers that may wait for a client that does not read.
const CHANNEL_MESSAGES: usize = 4;

/// What a reader is told to wait before it asks a standby again that is not ready.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What all snapshots cost together, those for catalogs too.
#[derive(Debug)]
pub struct SnapshotTotals {
    /// Snapshots given to readers: by `TakeSnapshot`, held, and for transactions of sessions.
    taken: AtomicU64,
    /// Slots looked at.
    slots_visited: AtomicU64,
    /// Slots jumped over.
    slots_skipped: AtomicU64,
    /// CPU time that taking them took, in nanoseconds.
    cpu_ns: AtomicU64,
    /// In it: walks over the known-assigned xids.
    walk_cpu_ns: AtomicU64,
    /// What of it is looking at the clock, each time.
    clock_ns: u64,
}

impl Default for SnapshotTotals {
    fn default() -> Self {
        let zero = AtomicU64::default;
        let clock_ns = thread_clock_cost_ns();
        Self { taken: zero(), slots_visited: zero(), slots_skipped: zero(), cpu_ns: zero(), walk_cpu_ns: zero(), clock_ns }
    }
}

impl SnapshotTotals {
    /// One was given to a reader.
    fn given(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
    }

    /// Snapshots given to readers since the start.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// CPU time that taking them took, and of that walking.
    fn cpu_time(&self) -> [Duration; 2] {
        [&self.cpu_ns, &self.walk_cpu_ns].map(|ns| Duration::from_nanos(ns.load(Ordering::Relaxed)))
    }

    /// Their cost since the start.
    #[must_use]
    pub fn work(&self) -> Work {
        Work {
            xid_slots_visited: self.slots_visited.load(Ordering::Relaxed),
            xid_slots_skipped: self.slots_skipped.load(Ordering::Relaxed),
            ..Work::default()
        }
    }
}

impl SnapshotMeter for SnapshotTotals {
    fn now_ns(&self) -> u64 {
        thread_cpu_ns()
    }

    fn took(&self, cost: SnapshotCost) {
        let SnapshotCost { ns, walk_ns, slots } = cost;
        // Looking at the clock is no part of it: once in the walk's time, and twice more in that of all.
        self.cpu_ns.fetch_add(ns.saturating_sub(3 * self.clock_ns), Ordering::Relaxed);
        self.walk_cpu_ns.fetch_add(walk_ns.saturating_sub(self.clock_ns), Ordering::Relaxed);
        self.slots_visited.fetch_add(slots.visited, Ordering::Relaxed);
        self.slots_skipped.fetch_add(slots.skipped, Ordering::Relaxed);
    }
}

/// The service. It reads what replay and the stream publish; what readers hold, replay sees.
#[derive(Clone, Debug)]
pub struct StandbyServer {
    /// How far replay is.
    pub progress: watch::Receiver<Progress>,
    /// The recovery state, once there is one.
    pub readable: watch::Receiver<Option<Readable>>,
    /// How the stream is.
    pub upstream: watch::Receiver<Upstream>,
    /// Whether it may be used.
    pub readiness: Readiness,
    /// What snapshots cost.
    pub totals: Arc<SnapshotTotals>,
    /// Spans of calls.
    pub spans: Spans,
    /// Ends waiting calls.
    pub drain: Drain,
    /// Longest wait for a position, and for the start of a stream.
    pub wait_max: Duration,
}

#[tonic::async_trait]
impl StandbyService for StandbyServer {
    async fn take_snapshot(&self, request: Request<TakeSnapshotRequest>) -> Result<Response<TakeSnapshotResponse>, Status> {
        let _guard = self.drain.open_stream()?;
        let started = self.spans.now();
        let deadline = Instant::now() + deadline::of(request.metadata()).unwrap_or(self.wait_max).min(self.wait_max);
        let min_lsn = Lsn(request.get_ref().min_lsn);
        let state = self.state_at(min_lsn, deadline).await?;
        let taken = self.readable()?.reader.snapshot_of(&state).map_err(|_| self.not_ready())?;
        self.totals.given();
        let mut response = convert::snapshot(&state, &taken, min_lsn, request.get_ref());
        self.add_age(&mut response);
        self.spans.take_snapshot(request.metadata(), started, &response);
        Ok(Response::new(response))
    }

    type HoldSnapshotStream = ReceiverStream<Result<HoldSnapshotResponse, Status>>;
    type OpenCatalogSessionStream = ReceiverStream<Result<OpenCatalogSessionResponse, Status>>;

    async fn hold_snapshot(
        &self,
        request: Request<Streaming<HoldSnapshotRequest>>,
    ) -> Result<Response<Self::HoldSnapshotStream>, Status> {
        let guard = self.drain.open_stream()?;
        let wait = deadline::of(request.metadata()).unwrap_or(self.wait_max).min(self.wait_max);
        let deadline = Instant::now() + wait;
        let (responses, receiver) = mpsc::channel(CHANNEL_MESSAGES);
        let server = self.clone();
        tokio::spawn(async move {
            let ended = hold_snapshot::run(&server, request.into_inner(), &responses, deadline).await;
            end_stream(ended, &responses).await;
            drop(guard);
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn open_catalog_session(
        &self,
        request: Request<Streaming<OpenCatalogSessionRequest>>,
    ) -> Result<Response<Self::OpenCatalogSessionStream>, Status> {
        let guard = self.drain.open_stream()?;
        let (responses, receiver) = mpsc::channel(CHANNEL_MESSAGES);
        let server = self.clone();
        tokio::spawn(async move {
            let ended = catalog_session::run(&server, request.into_inner(), &responses).await;
            end_stream(ended, &responses).await;
            drop(guard);
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn get_recovery_state(
        &self,
        _request: Request<GetRecoveryStateRequest>,
    ) -> Result<Response<GetRecoveryStateResponse>, Status> {
        let mut work = self.totals.work();
        // Before anything is borrowed: it borrows the same.
        let why_not = self.readiness.why_not();
        let progress = self.progress.borrow();
        work += progress.work;
        let now = self.readiness.clock.monotonic();
        let mut state = convert::recovery_state(&progress, &self.upstream.borrow(), &work, now);
        state.not_serving = why_not.unwrap_or_default();
        state.subtrans_pages = self.readable.borrow().as_ref().map(|r| convert::subtrans_pages(r.reader.subtrans_counts()));
        state.cpu_time = namesakes_cpu_time().map(|serving| convert::cpu_time(serving, self.totals.cpu_time()));
        let readable = self.readable.borrow();
        state.xids_bytes = readable.as_ref().map_or(0, |r| r.reader.state().known_assigned.memory_bytes() as u64);
        Ok(Response::new(state))
    }
}

impl StandbyServer {
    /// The first message of a stream; none if its client has ended it. One that does not start holds nothing but its place on its
    /// connection, and that not for ever.
    async fn first_message<T>(&self, requests: &mut Streaming<T>) -> Result<Option<T>, Status> {
        tokio::select! {
            first = requests.message() => first,
            () = self.drain.draining() => Err(Self::stops().into()),
            () = tokio::time::sleep(self.wait_max) => {
                let text = format!("no start came within {:?}: send it with the call", self.wait_max);
                Err(failure(Reason::FeedbackTimeout, text).metadata("timeoutMs", self.wait_max.as_millis()).into())
            }
        }
    }

    /// The state once everything before `min_lsn` is replayed.
    async fn state_at(&self, min_lsn: Lsn, deadline: Instant) -> Result<Arc<ReplayedState>, Failure> {
        let mut progress = self.progress.clone();
        loop {
            let (halted, replayed) = {
                let progress = progress.borrow_and_update();
                (progress.halt.is_some(), progress.replay_lsn)
            };
            if halted {
                return Err(self.halted());
            }
            let state = self.readable.borrow().as_ref().map(|r| r.reader.state());
            let reached = state.as_ref().map_or(Lsn::INVALID, |s| s.replay_lsn).max(replayed);
            if let Some(state) = state.filter(|_| reached >= min_lsn) {
                return Ok(state);
            }
            if !min_lsn.is_valid() {
                return Err(self.not_ready());
            }
            tokio::select! {
                changed = progress.changed() => if changed.is_err() && progress.borrow().halt.is_none() {
                    return Err(failure(Reason::Draining, "replay has ended: the standby stops").retry_after(RETRY_AFTER));
                },
                () = self.drain.draining() => {
                    return Err(Self::stops());
                }
                () = tokio::time::sleep_until(deadline) => return Err(replay_timeout(min_lsn, reached)),
            }
        }
    }

    /// Says how old a snapshot may be.
    fn add_age(&self, response: &mut TakeSnapshotResponse) {
        let silence = self.upstream.borrow().silence(self.readiness.clock.monotonic());
        response.primary_silence = silence.and_then(convert::duration);
        response.last_transaction_time = self.progress.borrow().last_transaction_time.map(convert::timestamp);
    }

    /// The reader of the replayed state, once there is one.
    fn readable(&self) -> Result<Readable, Status> {
        self.readable.borrow().clone().ok_or_else(|| self.not_ready().into())
    }

    /// What the core refuses a reader, for clients.
    fn refusal(&self, error: &RecoveryError) -> Failure {
        match error {
            RecoveryError::TooManySessions { max } => failure(Reason::StreamLimit, error.to_string())
                .quota("readers of the standby", format!("{max} at once"))
                .retry_after(RETRY_AFTER),
            RecoveryError::TooManyReaderLocks { max } => {
                failure(Reason::LockLimit, error.to_string()).quota("locks of a reader", format!("{max} at once"))
            }
            RecoveryError::UnknownSysCache { .. } => invalid_field("lookup.syscache.cache_id", error.to_string()),
            _ => self.not_ready(),
        }
    }

    /// The node stops.
    fn stops() -> Failure {
        failure(Reason::Draining, "the standby stops: ask again elsewhere or later").retry_after(RETRY_AFTER)
    }

    /// There can be no snapshot yet.
    fn not_ready(&self) -> Failure {
        let why_not = self.readiness.why_not();
        let progress = self.progress.borrow();
        let state = progress.state.map_or_else(|| "waiting to begin".to_owned(), |s| s.to_string());
        let waits_for = why_not.unwrap_or_else(|| progress.waits_for());
        let mut refusal = failure(Reason::NotReady, format!("no snapshot yet ({state}): {waits_for}"))
            .metadata("state", state)
            .metadata("replayLsn", progress.replay_lsn)
            .retry_after(RETRY_AFTER);
        if progress.pending_xmin.is_valid() {
            refusal = refusal.metadata("pendingXmin", progress.pending_xmin);
        }
        refusal
    }

    /// Replay tells nothing more: it has stopped for good, or the node stops.
    fn ended(&self) -> Failure {
        if self.progress.borrow().halt.is_some() { self.halted() } else { Self::stops() }
    }

    /// Replay has stopped for good.
    fn halted(&self) -> Failure {
        let progress = self.progress.borrow();
        failure(Reason::ReplayHalted, progress.waits_for()).metadata("replayLsn", progress.replay_lsn)
    }
}

/// Tells a stream's client how it ended, unless the client ended it or is gone.
async fn end_stream<T>(ended: Result<(), Status>, responses: &mpsc::Sender<Result<T, Status>>) {
    if let Err(status) = ended {
        // A client that is gone needs no reason.
        let _ = responses.send(Err(status)).await;
    }
}

/// The position did not come in time.
fn replay_timeout(min_lsn: Lsn, reached: Lsn) -> Failure {
    failure(Reason::ReplayTimeout, format!("{min_lsn} was not replayed in time: replay is at {reached}"))
        .metadata("requestedLsn", min_lsn)
        .metadata("replayLsn", reached)
}
