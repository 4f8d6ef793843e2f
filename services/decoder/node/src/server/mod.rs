//! The gRPC server: `DecoderService`.

pub(crate) mod convert;
mod filter;
mod status;
mod subscribe;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pg_types::PgVersion;
use service_kit::server::MESSAGE_BYTES_MAX;
use service_kit::status::{Reason, failure, invalid_field};
use service_kit::{Clock, Drain};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};
use walstorm_proto::decoder::v1 as pb;
use walstorm_proto::decoder::v1::decoder_service_server::{DecoderService, DecoderServiceServer};

use crate::costliest::{Costliest, Order, Place};
use crate::output_log::OutputLog;
use crate::state::{NodeState, OutputProgress};
use crate::subscriptions::{Session, Subscriptions};

/// Messages that wait between a stream's task and its connection.
const CHANNEL_MESSAGES: usize = 2;

/// Transactions on a page unless asked otherwise, and at most.
const PAGE_SIZE: (usize, usize) = (10, 1000);

/// One run of the decoder, as subscribers need it. After an error that the node recovers from, another takes its place.
#[derive(Debug)]
pub(crate) struct Serving {
    /// What they read.
    pub(crate) log: Arc<OutputLog>,
    /// Their positions.
    pub(crate) subscriptions: Arc<Mutex<Subscriptions>>,
    /// How streams are ended that were taken over.
    pub(crate) takeovers: Mutex<BTreeMap<Session, CancellationToken>>,
    /// Cancelled when another run takes its place.
    pub(crate) over: CancellationToken,
    /// The cluster.
    pub(crate) system_id: u64,
    /// Its timeline.
    pub(crate) timeline: u32,
    /// Its version.
    pub(crate) version: PgVersion,
}

impl Serving {
    /// The subscriptions; the guard must not live across an await.
    pub(crate) fn subscriptions(&self) -> MutexGuard<'_, Subscriptions> {
        self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The streams that can be taken over; as above.
    fn takeovers(&self) -> MutexGuard<'_, BTreeMap<Session, CancellationToken>> {
        self.takeovers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What all calls share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The run at hand; none until there is an output log.
    pub(crate) serving: watch::Receiver<Option<Arc<Serving>>>,
    /// The node's state.
    pub(crate) state: watch::Receiver<NodeState>,
    /// How far output is.
    pub(crate) output: watch::Receiver<OutputProgress>,
    /// The costliest transactions.
    pub(crate) costliest: Arc<Mutex<Costliest>>,
    /// When the node stops.
    pub(crate) drain: Drain,
    /// Wall time.
    pub(crate) clock: Arc<dyn Clock>,
    /// Name of the profile.
    pub(crate) profile: String,
    /// Time that streams get when the node stops.
    pub(crate) grace: std::time::Duration,
}

/// The service.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    /// Shared with the streams' tasks.
    shared: Arc<Shared>,
}

impl Service {
    /// The service as tonic wants it.
    pub(crate) fn server(shared: Arc<Shared>) -> DecoderServiceServer<Self> {
        DecoderServiceServer::new(Self { shared })
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    }
}

#[tonic::async_trait]
impl DecoderService for Service {
    type SubscribeStream = ReceiverStream<Result<pb::SubscribeResponse, Status>>;

    async fn subscribe(
        &self,
        request: Request<Streaming<pb::SubscribeRequest>>,
    ) -> Result<Response<Self::SubscribeStream>, Status> {
        let guard = self.shared.drain.open_stream()?;
        let (responses, receiver) = mpsc::channel(CHANNEL_MESSAGES);
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            subscribe::run(&shared, request.into_inner(), responses).await;
            drop(guard);
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn list_transactions(
        &self,
        request: Request<pb::ListTransactionsRequest>,
    ) -> Result<Response<pb::ListTransactionsResponse>, Status> {
        let request = request.into_inner();
        let order: Order = request
            .order_by
            .parse()
            .map_err(|e: crate::costliest::UnknownOrder| invalid_field("order_by", e.to_string()).into_status())?;
        let after = match request.page_token.as_str() {
            "" => None,
            token => Some(token.parse::<Place>().map_err(|e| invalid_field("page_token", e.to_string()).into_status())?),
        };
        let (default, max) = PAGE_SIZE;
        let size = match usize::try_from(request.page_size) {
            Ok(0) => default,
            Ok(size) => size.min(max),
            Err(_) => return Err(invalid_field("page_size", "must not be negative").into()),
        };
        let costliest = Arc::clone(&self.shared.costliest);
        let page = move || costliest.lock().unwrap_or_else(PoisonError::into_inner).page(order, after, size);
        let (transactions, end) = tokio::task::spawn_blocking(page).await.map_err(|e| internal(&e))?;
        let version = self.shared.serving.borrow().as_ref().map(|s| s.version);
        Ok(Response::new(pb::ListTransactionsResponse {
            transactions: transactions.iter().map(|cost| convert::to_transaction_cost(cost, version)).collect(),
            next_page_token: end.map(Place::token).unwrap_or_default(),
        }))
    }

    async fn get_decoder_state(
        &self,
        _: Request<pb::GetDecoderStateRequest>,
    ) -> Result<Response<pb::GetDecoderStateResponse>, Status> {
        let subscriptions = self.shared.serving.borrow().as_ref().map_or(0, |s| s.subscriptions().streams());
        let state = self.shared.state.borrow().clone();
        Ok(Response::new(convert::decoder_state(&state, &self.shared.profile, subscriptions)))
    }
}

/// A defect of ours.
fn internal(error: &dyn std::error::Error) -> Status {
    failure(Reason::Internal, error.to_string()).into_status()
}
