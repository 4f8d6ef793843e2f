//! The gRPC server: `DecoderService`.

mod analysis;
pub(crate) mod assemble;
pub(crate) mod convert;
pub(crate) mod filter;
pub(crate) mod in_progress;
mod status;
mod subscribe;

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pg_types::PgVersion;
use service_kit::server::MESSAGE_BYTES_MAX;
use service_kit::status::{Reason, failure, invalid_field, reason_of};
use service_kit::{Clock, Drain};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};
use walstorm_proto::decoder::v1 as pb;
use walstorm_proto::decoder::v1::decoder_service_server::{DecoderService, DecoderServiceServer};

use crate::analysis::Analyst;
use crate::attribution::{self, GroupBy, Mark};
use crate::costliest::{BadToken, Costliest, Order, Place, UnknownOrder};
use crate::output_log::OutputLog;
use crate::state::{NodeState, OutputProgress};
use crate::subscriptions::{Session, Subscriptions};

/// Messages that wait between a stream's task and its connection.
const CHANNEL_MESSAGES: usize = 2;

/// Transactions or rows on a page unless asked otherwise, and at most.
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
    /// Something may be given out before its commit.
    pub(crate) in_progress: bool,
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
    /// Whose figures it gives: `live` or `catch-up`.
    pub(crate) consumer: String,
    /// Decodes again.
    pub(crate) analyst: Arc<Analyst>,
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
    type CompareProfilesStream = ReceiverStream<Result<pb::CompareProfilesResponse, Status>>;

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
        let order = order(&request.order_by)?;
        let after: Option<Place> = page_token(&request.page_token)?;
        let size = page_size(request.page_size)?;
        let costliest = Arc::clone(&self.shared.costliest);
        let page = move || costliest.lock().unwrap_or_else(PoisonError::into_inner).page(order, after, size);
        let (transactions, end) = tokio::task::spawn_blocking(page).await.map_err(|e| internal(&e))?;
        let version = self.shared.serving.borrow().as_ref().map(|s| s.version);
        Ok(Response::new(pb::ListTransactionsResponse {
            transactions: transactions.iter().map(|cost| convert::to_transaction_cost(cost, version)).collect(),
            next_page_token: end.map(Place::token).unwrap_or_default(),
            profile: self.shared.profile.clone(),
            consumer: self.shared.consumer.clone(),
        }))
    }

    async fn get_attribution(
        &self,
        request: Request<pb::GetAttributionRequest>,
    ) -> Result<Response<pb::GetAttributionResponse>, Status> {
        let request = request.into_inner();
        let by = match request.group_by() {
            pb::AttributionGroup::Unspecified => {
                return Err(invalid_field("group_by", "must be cache, relation, callback or transaction").into());
            }
            pb::AttributionGroup::Cache => GroupBy::Cache,
            pb::AttributionGroup::Relation => GroupBy::Relation,
            pb::AttributionGroup::Callback => GroupBy::Callback,
            pb::AttributionGroup::Transaction => GroupBy::Transaction,
        };
        let order = order(if request.order_by.is_empty() { "work desc" } else { &request.order_by })?;
        let after: Option<Mark> = page_token(&request.page_token)?;
        let size = page_size(request.page_size)?;
        let costliest = Arc::clone(&self.shared.costliest);
        let page = move || {
            let costliest = costliest.lock().unwrap_or_else(PoisonError::into_inner);
            attribution::page(&costliest, by, order, after.as_ref(), size)
        };
        let page = tokio::task::spawn_blocking(page).await.map_err(|e| internal(&e))?;
        let page = page.map_err(|e| invalid_field("order_by", e.to_string()).into_status())?;
        Ok(Response::new(pb::GetAttributionResponse {
            profile: self.shared.profile.clone(),
            consumer: self.shared.consumer.clone(),
            ..convert::attribution_page(&page)
        }))
    }

    async fn explain_transaction(
        &self,
        request: Request<pb::ExplainTransactionRequest>,
    ) -> Result<Response<pb::ExplainTransactionResponse>, Status> {
        analysis::explain(&self.shared, request.into_inner()).await.map(Response::new)
    }

    async fn compare_profiles(
        &self,
        request: Request<pb::CompareProfilesRequest>,
    ) -> Result<Response<Self::CompareProfilesStream>, Status> {
        let comparison = analysis::Comparison::new(&self.shared.analyst, request)?;
        let guard = self.shared.drain.open_stream()?;
        let (responses, receiver) = mpsc::channel(CHANNEL_MESSAGES);
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move {
            comparison.run(shared, responses).await;
            drop(guard);
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn get_decoder_state(
        &self,
        _: Request<pb::GetDecoderStateRequest>,
    ) -> Result<Response<pb::GetDecoderStateResponse>, Status> {
        let subscriptions = self.shared.serving.borrow().as_ref().map_or(0, |s| s.subscriptions().streams());
        let state = self.shared.state.borrow().clone();
        let limit = state.spill_limit.map(|bytes_max| status::spill_limit(&state.last_error, bytes_max));
        Ok(Response::new(pb::GetDecoderStateResponse {
            last_reason: limit.as_ref().and_then(reason_of).map_or("", Reason::as_str).to_owned(),
            last_status: limit.map(|status| status.details().to_vec().into()).unwrap_or_default(),
            ..convert::decoder_state(&state, &self.shared.profile, subscriptions)
        }))
    }
}

/// The order that a client asks for.
fn order(text: &str) -> Result<Order, Status> {
    text.parse().map_err(|e: UnknownOrder| invalid_field("order_by", e.to_string()).into_status())
}

/// Where the page before ended; [`None`] for the first.
fn page_token<T: FromStr<Err = BadToken>>(token: &str) -> Result<Option<T>, Status> {
    if token.is_empty() {
        return Ok(None);
    }
    token.parse().map(Some).map_err(|e: BadToken| invalid_field("page_token", e.to_string()).into_status())
}

/// How many rows a page has.
fn page_size(asked: i32) -> Result<usize, Status> {
    let (default, max) = PAGE_SIZE;
    match usize::try_from(asked) {
        Ok(0) => Ok(default),
        Ok(size) => Ok(size.min(max)),
        Err(_) => Err(invalid_field("page_size", "must not be negative").into_status()),
    }
}

/// A defect of ours.
fn internal(error: &dyn std::error::Error) -> Status {
    failure(Reason::Internal, error.to_string()).into_status()
}
