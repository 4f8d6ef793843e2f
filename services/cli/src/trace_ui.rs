//! A trace store in memory with the page and the query API of Jaeger: what `walstorm run --ui` serves.
//!
//! Page, API and an OTLP/HTTP receiver share one port; OTLP/gRPC has another. The store is bounded; what was not touched for the longest time goes.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State as Shared};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use flate2::read::GzDecoder;
use otlp_embedded::proto::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use otlp_embedded::proto::common::v1::{AnyValue, KeyValue, any_value};
use otlp_embedded::proto::trace::v1::{Span, span::SpanKind, status::StatusCode as SpanStatus};
use otlp_embedded::{Config, State, StateRef, TraceService, TraceServiceImpl, TraceServiceServer, ui_app};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Status};

/// Traces that are kept.
const TRACES_MAX: u32 = 20_000;

/// Bytes that they may take.
const MEMORY_MAX: usize = 256 << 20;

/// Bytes of one export, packed or not.
const EXPORT_BYTES_MAX: usize = 16 << 20;

/// A store at work; it ends with this.
#[derive(Debug)]
pub struct TraceUi {
    /// Where the page is.
    page: SocketAddr,
    /// Where spans come in over gRPC.
    grpc: SocketAddr,
    /// The two servers.
    tasks: [JoinHandle<anyhow::Result<()>>; 2],
}

impl TraceUi {
    /// Serves on the loopback interface, the page on `port` (0: one that is free).
    ///
    /// # Errors
    /// The port is taken.
    pub async fn start(port: u16) -> anyhow::Result<TraceUi> {
        let page =
            listen(port).await.with_context(|| format!("serve the trace UI on port {port}: choose another with --ui-port"))?;
        let grpc = listen(0).await.context("receive spans")?;
        let (page_addr, grpc_addr) = (page.local_addr()?, grpc.local_addr()?);
        let state = State::new(Config { max_length: TRACES_MAX, max_memory_usage: MEMORY_MAX });
        let service = TraceServiceServer::new(Store::new(StateRef::clone(&state))).max_decoding_message_size(EXPORT_BYTES_MAX);
        let receiver = Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(grpc));
        let router = Router::new()
            .route("/v1/traces", post(receive))
            .layer(DefaultBodyLimit::max(EXPORT_BYTES_MAX))
            .with_state(StateRef::clone(&state))
            .fallback_service(ui_app(state, "/"));
        let served = async move { axum::serve(page, router).await.context("serve the trace UI") };
        let received = async move { receiver.await.context("receive spans") };
        Ok(TraceUi { page: page_addr, grpc: grpc_addr, tasks: [tokio::spawn(served), tokio::spawn(received)] })
    }

    /// The page, the query API below `/api`, and OTLP/HTTP at `/v1/traces`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/", self.page)
    }

    /// Where exporters of OTLP/gRPC send to.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.grpc)
    }
}

impl Drop for TraceUi {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// A listener on the loopback interface: there is no password.
async fn listen(port: u16) -> std::io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await
}

/// Spans over HTTP, in protobuf, packed with gzip or not.
async fn receive(Shared(state): Shared<StateRef>, headers: HeaderMap, body: Bytes) -> Response {
    let says =
        |name: header::HeaderName, what: &str| headers.get(name).is_some_and(|value| value.as_bytes() == what.as_bytes());
    if !says(header::CONTENT_TYPE, "application/x-protobuf") {
        let remedy = "send OTLP as application/x-protobuf (http/protobuf), or over gRPC";
        return (StatusCode::UNSUPPORTED_MEDIA_TYPE, remedy).into_response();
    }
    let unpacked = if says(header::CONTENT_ENCODING, "gzip") { unpack(&body) } else { Ok(body.to_vec()) };
    let request = unpacked
        .map_err(|error| format!("the body is no gzip of at most {EXPORT_BYTES_MAX} bytes: {error}"))
        .and_then(|bytes| ExportTraceServiceRequest::decode(bytes.as_slice()).map_err(|e| format!("the body is no OTLP: {e}")));
    let request = match request {
        Ok(request) => request,
        Err(error) => return (StatusCode::BAD_REQUEST, error).into_response(),
    };
    match Store::new(state).export(Request::new(request)).await {
        Ok(answer) => ([(header::CONTENT_TYPE, "application/x-protobuf")], answer.into_inner().encode_to_vec()).into_response(),
        Err(status) => (StatusCode::INTERNAL_SERVER_ERROR, status.message().to_owned()).into_response(),
    }
}

/// Unpacks a body, which must not grow past all bounds.
fn unpack(body: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    GzDecoder::new(body).take(EXPORT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > EXPORT_BYTES_MAX {
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, "it is larger unpacked"));
    }
    Ok(bytes)
}

/// The library's store, which is told what Jaeger shows of a span beyond its attributes.
struct Store(TraceServiceImpl);

impl Store {
    /// A receiver for a store.
    fn new(state: StateRef) -> Self {
        Self(TraceServiceImpl::new(state))
    }
}

#[tonic::async_trait]
impl TraceService for Store {
    async fn export(
        &self,
        mut request: Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, Status> {
        for resource in &mut request.get_mut().resource_spans {
            for scope in &mut resource.scope_spans {
                // Neither has a place in a trace.
                scope.spans.retain(|span| span.trace_id.len() == 16 && span.span_id.len() == 8);
                scope.spans.iter_mut().for_each(as_jaeger_shows);
            }
        }
        self.0.export(request).await
    }
}

/// Says kind and status by Jaeger's tags, which the library leaves out, and that no span ends before it begins.
fn as_jaeger_shows(span: &mut Span) {
    span.end_time_unix_nano = span.end_time_unix_nano.max(span.start_time_unix_nano);
    let kind = match span.kind() {
        SpanKind::Unspecified => None,
        SpanKind::Internal => Some("internal"),
        SpanKind::Server => Some("server"),
        SpanKind::Client => Some("client"),
        SpanKind::Producer => Some("producer"),
        SpanKind::Consumer => Some("consumer"),
    };
    if let Some(kind) = kind {
        tag(span, "span.kind", any_value::Value::StringValue(kind.to_owned()));
    }
    if let Some(status) = span.status.clone().filter(|status| status.code() == SpanStatus::Error) {
        tag(span, "error", any_value::Value::BoolValue(true));
        tag(span, "otel.status_description", any_value::Value::StringValue(status.message));
    }
}

/// Adds an attribute.
fn tag(span: &mut Span, key: &str, value: any_value::Value) {
    span.attributes.push(KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) });
}
