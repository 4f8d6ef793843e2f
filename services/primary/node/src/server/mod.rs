//! The gRPC services of the primary.
//!
//! Generated types live in this folder only: `convert` and `typed` are the edge. Each stream is a task of its own around a
//! synchronous state machine; reading WAL is done in blocking tasks, a batch at a time.

mod admin;
mod batch_reader;
mod convert;
mod queue;
mod raw;
mod runs;
mod runs_convert;
mod slot_filter;
mod spans;
mod status;
mod stream_invalidations;
mod stream_wal;
mod streams;
mod typed;

use std::sync::Arc;
use std::time::UNIX_EPOCH;

use pg_types::Lsn;
use service_kit::server::MESSAGE_BYTES_MAX;
use service_kit::telemetry::Tracer;
use service_kit::{Clock, Drain};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::{Request, Response, Status, Streaming};
use walstorm_proto::admin::v1::admin_service_server::AdminServiceServer;
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::primary::v1::primary_service_server::{PrimaryService, PrimaryServiceServer};

use batch_reader::{BatchReader, BatchSettings};
use spans::SpanClaims;
use streams::StreamRegistry;

use crate::contexts::{ContextDecider, TransactionContexts};
use crate::error::{Error, Result};
use crate::runs::{Runs, RunsConfig};
use crate::slots::Slots;
use crate::wal_log::WalLog;

pub(crate) use batch_reader::PIECE_BYTES;

/// Names of the services that the primary serves, for health and reflection.
pub(crate) const SERVICES: &[&str] = &[walstorm_proto::service_names::PRIMARY, walstorm_proto::service_names::ADMIN];

/// Limits of the services, from the configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Streams of WAL and of invalidations at a time.
    pub(crate) max_streams: usize,
    /// Size at which a batch is closed.
    pub(crate) batch_bytes: usize,
    /// Time that streams get when the node stops.
    pub(crate) grace: std::time::Duration,
}

/// What all services of a node share.
#[derive(Debug)]
pub(crate) struct State {
    /// The log.
    pub(crate) log: WalLog,
    /// The slots.
    pub(crate) slots: Slots,
    /// The runs, if the log is for them.
    pub(crate) runs: Option<Runs>,
    /// Limits on scenarios.
    pub(crate) runs_config: RunsConfig,
    /// Stopping.
    pub(crate) drain: Drain,
    /// Wall time for people, monotonic time for the cap on wishes.
    pub(crate) clock: Arc<dyn Clock>,
    /// Limits.
    pub(crate) limits: Limits,
    /// Decides which transactions are traced.
    pub(crate) decider: Arc<ContextDecider>,
    /// Makes spans.
    pub(crate) tracer: Tracer,
    /// Which transactions have their span already.
    pub(crate) claims: SpanClaims,
    /// A permit a stream.
    streams: Arc<Semaphore>,
    /// The streams of WAL in numbers.
    registry: Arc<StreamRegistry>,
    /// When the node started, in milliseconds since 1970.
    started_ms: u64,
}

impl State {
    /// The shared state of a node.
    pub(crate) fn new(
        log: WalLog,
        slots: Slots,
        drain: Drain,
        clock: Arc<dyn Clock>,
        limits: Limits,
        decider: ContextDecider,
        tracer: Tracer,
    ) -> Self {
        let started_ms = epoch_ms(clock.as_ref());
        let streams = Arc::new(Semaphore::new(limits.max_streams));
        let (decider, claims) = (Arc::new(decider), SpanClaims::default());
        let (registry, runs, runs_config) = (Arc::default(), None, RunsConfig::default());
        Self { log, slots, runs, runs_config, drain, clock, limits, decider, tracer, claims, streams, registry, started_ms }
    }

    /// The same with the runs of its log, if it is for them, and with limits on scenarios.
    pub(crate) fn with_runs(self, runs: Option<Runs>, runs_config: RunsConfig) -> Self {
        Self { runs, runs_config, ..self }
    }

    /// Milliseconds since 1970.
    fn now_ms(&self) -> u64 {
        epoch_ms(self.clock.as_ref())
    }

    /// A place for one more stream.
    fn admit(&self) -> Result<OwnedSemaphorePermit> {
        let streams = Arc::clone(&self.streams);
        streams.try_acquire_owned().map_err(|_| Error::TooManyStreams { limit: self.limits.max_streams })
    }

    /// Streams that are open now.
    fn open_streams(&self) -> usize {
        self.limits.max_streams - self.streams.available_permits()
    }

    /// Opens the log at `from` for one stream.
    async fn batch_reader(&self, from: Lsn, settings: BatchSettings) -> Result<BatchReader> {
        let log = self.log.clone();
        let contexts = TransactionContexts::new(Arc::clone(&self.decider), log.identity());
        let open = move || BatchReader::open(log.reader(from)?, from, log.end(), settings, contexts);
        service_kit::blocking::spawn(open).await.map_err(|e| Error::Internal(format!("opening WAL failed: {e}")))?
    }
}

/// Milliseconds since 1970 by `clock`.
fn epoch_ms(clock: &dyn Clock) -> u64 {
    clock.now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// Adds the primary's services to `routes`.
pub(crate) fn routes(routes: Routes, state: &Arc<State>) -> Routes {
    let primary = PrimaryServiceServer::new(Primary { state: Arc::clone(state) })
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let admin = AdminServiceServer::new(admin::Admin { state: Arc::clone(state) })
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    routes.add_service(primary).add_service(admin)
}

/// `PrimaryService`.
struct Primary {
    /// The node.
    state: Arc<State>,
}

#[tonic::async_trait]
impl PrimaryService for Primary {
    type StreamWalStream = queue::QueueStream<pb::StreamWalResponse>;
    type StreamInvalidationsStream = ReceiverStream<Result<pb::StreamInvalidationsResponse, Status>>;
    type RunScenarioStream = ReceiverStream<Result<pb::RunScenarioResponse, Status>>;

    async fn stream_wal(
        &self,
        request: Request<Streaming<pb::StreamWalRequest>>,
    ) -> Result<Response<Self::StreamWalStream>, Status> {
        let (guard, permit) = (self.state.drain.open_stream()?, self.state.admit()?);
        let (responses, stream) = queue::queue(stream_wal::CHANNEL_MESSAGES);
        let (state, requests) = (Arc::clone(&self.state), request.into_inner());
        tokio::spawn(async move {
            stream_wal::run(state, requests, responses).await;
            drop((guard, permit));
        });
        Ok(Response::new(stream))
    }

    async fn stream_invalidations(
        &self,
        request: Request<pb::StreamInvalidationsRequest>,
    ) -> Result<Response<Self::StreamInvalidationsStream>, Status> {
        let (guard, permit) = (self.state.drain.open_stream()?, self.state.admit()?);
        let (responses, receiver) = mpsc::channel(stream_wal::CHANNEL_MESSAGES);
        let (state, request) = (Arc::clone(&self.state), request.into_inner());
        tokio::spawn(async move {
            stream_invalidations::run(state, request, responses).await;
            drop((guard, permit));
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
    async fn run_scenario(
        &self,
        request: Request<pb::RunScenarioRequest>,
    ) -> Result<Response<Self::RunScenarioStream>, Status> {
        let (guard, permit) = (self.state.drain.open_stream()?, self.state.admit()?);
        let (responses, receiver) = mpsc::channel(stream_wal::CHANNEL_MESSAGES);
        let (state, request) = (Arc::clone(&self.state), request.into_inner());
        tokio::spawn(async move {
            if let Err(error) = runs::run_scenario(&state, request, responses.clone()).await {
                tracing::debug!(%error, "stream of a run ended");
                let _ = responses.send(Err(error.into())).await;
            }
            drop((guard, permit));
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn get_run(&self, request: Request<pb::GetRunRequest>) -> Result<Response<pb::GetRunResponse>, Status> {
        let run = runs::get(&self.state, &request.into_inner().name)?;
        Ok(Response::new(pb::GetRunResponse { run: Some(run) }))
    }

    async fn list_runs(&self, request: Request<pb::ListRunsRequest>) -> Result<Response<pb::ListRunsResponse>, Status> {
        Ok(Response::new(runs::list(&self.state, &request.into_inner())?))
    }

    async fn cancel_run(&self, request: Request<pb::CancelRunRequest>) -> Result<Response<pb::CancelRunResponse>, Status> {
        let run = runs::cancel(&self.state, &request.into_inner().name).await?;
        Ok(Response::new(pb::CancelRunResponse { run: Some(run) }))
    }

    async fn delete_run(&self, request: Request<pb::DeleteRunRequest>) -> Result<Response<pb::DeleteRunResponse>, Status> {
        runs::delete(&self.state, &request.into_inner().name).await?;
        Ok(Response::new(pb::DeleteRunResponse {}))
    }

    async fn validate_scenario(
        &self,
        request: Request<pb::ValidateScenarioRequest>,
    ) -> Result<Response<pb::ValidateScenarioResponse>, Status> {
        let config = self.state.runs_config.clone();
        let checking = move || runs::validate(&config, request.into_inner());
        let checked = service_kit::blocking::spawn(checking).await;
        Ok(Response::new(checked.map_err(|e| Error::Internal(format!("checking a scenario failed: {e}")))??))
    }
}
