//! A real server on loopback: health, reflection, limits, and stopping while peers do not cooperate.

use std::pin::Pin;
use std::time::Duration;

use service_kit::client::{self, ClientConfig, ConnectError};
use service_kit::server::{self, Bound, Drained, MESSAGE_BYTES_MAX, ServerConfig, ServerError};
use service_kit::status::{Reason, reason_of};
use service_kit::{Drain, Health};
use tokio::task::JoinHandle;
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use walstorm_proto::primary::v1 as pb;
use walstorm_proto::primary::v1::primary_service_client::PrimaryServiceClient;
use walstorm_proto::primary::v1::primary_service_server::{PrimaryService, PrimaryServiceServer};
use walstorm_proto::primary::v1::{
    Invalidations, StreamInvalidationsRequest, StreamInvalidationsResponse, StreamWalRequest, StreamWalResponse,
    stream_invalidations_response,
};
use walstorm_proto::service_names;

/// How a test's stream behaves when the server stops.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    /// Ends when stopping begins.
    Polite,
    /// Ends when the grace is over.
    Late,
    /// Never ends.
    Deaf,
}

/// A primary that sends one message, then nothing.
struct Quiet {
    drain: Drain,
    manner: Manner,
    message_bytes: usize,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl PrimaryService for Quiet {
    type StreamWalStream = Answers<StreamWalResponse>;
    type StreamInvalidationsStream = Answers<StreamInvalidationsResponse>;
    type RunScenarioStream = Answers<pb::RunScenarioResponse>;

    async fn stream_wal(
        &self,
        _request: Request<Streaming<StreamWalRequest>>,
    ) -> Result<Response<Self::StreamWalStream>, Status> {
        Err(Status::unimplemented("not needed here"))
    }

    async fn stream_invalidations(
        &self,
        _request: Request<StreamInvalidationsRequest>,
    ) -> Result<Response<Self::StreamInvalidationsStream>, Status> {
        let guard = self.drain.open_stream()?;
        // A packed number takes at least a byte, so this is close to the size asked for.
        let slots = vec![1; self.message_bytes];
        let messages = walstorm_proto::wal::v1::InvalidationColumns {
            relmap: Some(walstorm_proto::wal::v1::RelmapInvalidations { database_oids: slots }),
            ..Default::default()
        };
        let kind = stream_invalidations_response::Kind::Invalidations(Invalidations {
            messages: Some(messages),
            ..Default::default()
        });
        let first = StreamInvalidationsResponse { kind: Some(kind) };
        let (drain, manner) = (self.drain.clone(), self.manner);
        let last = tokio_stream::once(()).then(move |()| end(drain.clone(), manner));
        let stream = tokio_stream::once(Ok(first)).chain(last).map(move |item| {
            let _held = &guard;
            item
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn run_scenario(
        &self,
        _request: Request<pb::RunScenarioRequest>,
    ) -> Result<Response<Self::RunScenarioStream>, Status> {
        Err(Status::unimplemented("not needed here"))
    }

    async fn get_run(&self, _request: Request<pb::GetRunRequest>) -> Result<Response<pb::GetRunResponse>, Status> {
        Err(Status::unimplemented("not needed here"))
    }

    async fn list_runs(&self, _request: Request<pb::ListRunsRequest>) -> Result<Response<pb::ListRunsResponse>, Status> {
        Err(Status::unimplemented("not needed here"))
    }

    async fn cancel_run(&self, _request: Request<pb::CancelRunRequest>) -> Result<Response<pb::CancelRunResponse>, Status> {
        Err(Status::unimplemented("not needed here"))
    }

    async fn delete_run(&self, _request: Request<pb::DeleteRunRequest>) -> Result<Response<pb::DeleteRunResponse>, Status> {
        Err(Status::unimplemented("not needed here"))
    }

    async fn validate_scenario(
        &self,
        _request: Request<pb::ValidateScenarioRequest>,
    ) -> Result<Response<pb::ValidateScenarioResponse>, Status> {
        Err(Status::unimplemented("not needed here"))
    }
}

/// The end of a stream.
async fn end(drain: Drain, manner: Manner) -> Result<StreamInvalidationsResponse, Status> {
    match manner {
        Manner::Polite => drain.draining().await,
        Manner::Late => drain.stopping().await,
        Manner::Deaf => std::future::pending().await,
    }
    Err(Drain::status())
}

/// A server in this process, and a connection to it.
struct Node {
    drain: Drain,
    health: Health,
    serving: JoinHandle<Result<Drained, ServerError>>,
    channel: Channel,
    config: ServerConfig,
}

const SERVICES: &[&str] = &[service_names::PRIMARY];

/// Starts one. Streams that end by themselves get all the time they need; the others a short grace, for the test's sake.
async fn node(manner: Manner, message_bytes: usize) -> Node {
    let grace = if manner == Manner::Polite { Duration::from_secs(3600) } else { Duration::from_millis(50) };
    let config = ServerConfig { grace, ..ServerConfig::default() };
    let bound: Bound = server::bind(&config).await.expect("port 0 is free");
    let addr = bound.addr();
    assert_ne!(addr.port(), 0);
    let (drain, health) = (Drain::new(), Health::new(SERVICES).await);
    let service = PrimaryServiceServer::new(Quiet { drain: drain.clone(), manner, message_bytes });
    let routes = server::base_routes(&config, &health, SERVICES).expect("descriptors load").add_service(service);
    let (config_, health_, drain_) = (config.clone(), health.clone(), drain.clone());
    let serving = tokio::spawn(async move { server::serve(bound, &config_, routes, health_, drain_).await });
    let client = ClientConfig { endpoint: format!("http://{addr}"), ..ClientConfig::default() };
    let channel = client::connect(&client, &Drain::new()).await.expect("the server listens");
    Node { drain, health, serving, channel, config: ServerConfig { listen: addr.to_string(), ..config } }
}

impl Node {
    /// Asks for the health of `service`.
    async fn check(&self, service: &str) -> Result<ServingStatus, Status> {
        let request = HealthCheckRequest { service: service.to_owned() };
        Ok(HealthClient::new(self.channel.clone()).check(request).await?.into_inner().status())
    }

    /// Opens the quiet stream and takes its first message.
    async fn open(&self) -> Streaming<StreamInvalidationsResponse> {
        let mut client = PrimaryServiceClient::new(self.channel.clone());
        let request = StreamInvalidationsRequest::default();
        let mut stream = client.stream_invalidations(request).await.expect("it is served").into_inner();
        stream.message().await.expect("no error").expect("a message");
        stream
    }

    /// Begins to stop and waits for the end. The limit is far beyond what stopping takes: it only keeps a failed test from hanging.
    async fn stop(self) -> Drained {
        self.drain.start();
        let ended = tokio::time::timeout(Duration::from_secs(60), self.serving).await.expect("stopping hangs");
        ended.expect("no panic").expect("served")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_answers_by_name_and_watchers_hear_the_end() {
    let node = node(Manner::Polite, 1).await;
    assert_eq!(node.check("").await.expect("known"), ServingStatus::Serving);
    assert_eq!(node.check(service_names::PRIMARY).await.expect("known"), ServingStatus::NotServing);
    node.health.serving().await;
    assert_eq!(node.check(service_names::PRIMARY).await.expect("known"), ServingStatus::Serving);
    assert_eq!(node.check("no.such.Service").await.expect_err("unknown").code(), tonic::Code::NotFound);

    let request = HealthCheckRequest { service: service_names::PRIMARY.to_owned() };
    let mut watch = HealthClient::new(node.channel.clone()).watch(request).await.expect("watched").into_inner();
    let status =
        |answer: Result<Option<_>, Status>| answer.ok().flatten().map(|r: tonic_health::pb::HealthCheckResponse| r.status());
    assert_eq!(status(watch.message().await), Some(ServingStatus::Serving));
    let stopping = tokio::spawn(node.stop());
    assert_eq!(status(watch.message().await), Some(ServingStatus::NotServing));
    assert_eq!(stopping.await.expect("no panic"), Drained::Clean);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_listens_ends_cleanly() {
    let node = node(Manner::Polite, 1).await;
    let mut stream = node.open().await;
    let stopping = tokio::spawn(node.stop());
    let end = stream.message().await.expect_err("the server stops");
    assert_eq!(reason_of(&end), Some(Reason::Draining));
    assert_eq!(stopping.await.expect("no panic"), Drained::Clean);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_streams_drain_health_says_so_and_new_streams_are_refused() {
    let config = ServerConfig { grace: Duration::from_secs(3600), ..ServerConfig::default() };
    let bound = server::bind(&config).await.expect("port 0 is free");
    let endpoint = format!("http://{}", bound.addr());
    let (drain, health) = (Drain::new(), Health::new(SERVICES).await);
    health.serving().await;
    let service = PrimaryServiceServer::new(Quiet { drain: drain.clone(), manner: Manner::Late, message_bytes: 1 });
    let routes = server::base_routes(&config, &health, SERVICES).expect("descriptors load").add_service(service);
    let (health_, drain_) = (health.clone(), drain.clone());
    let serving = tokio::spawn(async move { server::serve(bound, &config, routes, health_, drain_).await });
    let client = ClientConfig { endpoint, ..ClientConfig::default() };
    let channel = client::connect(&client, &Drain::new()).await.expect("the server listens");
    let mut primary = PrimaryServiceClient::new(channel.clone());
    let request = StreamInvalidationsRequest::default();
    let mut stream = primary.stream_invalidations(request).await.expect("served").into_inner();
    stream.message().await.expect("no error").expect("a message");

    let watch = HealthCheckRequest { service: service_names::PRIMARY.to_owned() };
    let mut watch = HealthClient::new(channel).watch(watch).await.expect("watched").into_inner();
    watch.message().await.expect("no error").expect("serving");
    drain.start();
    watch.message().await.expect("no error").expect("not serving");
    // Somebody who connects only now is told, too.
    let late = client::connect(&client, &Drain::new()).await.expect("still listening");
    let check = HealthCheckRequest { service: String::new() };
    let answer = HealthClient::new(late.clone()).check(check).await.expect("known").into_inner();
    assert_eq!(answer.status(), ServingStatus::NotServing);
    let refused = PrimaryServiceClient::new(late).stream_invalidations(request).await.expect_err("draining");
    assert_eq!(reason_of(&refused), Some(Reason::Draining));

    drain.stop();
    let end = stream.message().await.expect_err("the grace is over");
    assert_eq!(reason_of(&end), Some(Reason::Draining));
    let outcome = tokio::time::timeout(Duration::from_secs(60), serving).await.expect("stopping hangs");
    assert_eq!(outcome.expect("no panic").expect("served"), Drained::Cut);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_deaf_is_cut() {
    let node = node(Manner::Deaf, 1).await;
    let mut stream = node.open().await;
    assert_eq!(node.stop().await, Drained::Cut);
    stream.message().await.expect_err("the connection was cut");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_never_reads_does_not_keep_the_server() {
    let node = node(Manner::Late, 3 << 20).await;
    let mut client = PrimaryServiceClient::new(node.channel.clone());
    let stream = client.stream_invalidations(StreamInvalidationsRequest::default()).await.expect("served");
    assert_eq!(node.stop().await, Drained::Cut);
    drop(stream);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_up_to_the_limit_pass_and_larger_ones_do_not() {
    async fn receive(bytes: usize) -> Result<(), Status> {
        let node = node(Manner::Polite, bytes).await;
        let mut client = PrimaryServiceClient::new(node.channel.clone()).max_decoding_message_size(MESSAGE_BYTES_MAX);
        let mut stream = client.stream_invalidations(StreamInvalidationsRequest::default()).await?.into_inner();
        let received = stream.message().await.map(|m| assert!(m.is_some()));
        drop(stream);
        node.stop().await;
        received
    }
    receive(MESSAGE_BYTES_MAX - 64).await.expect("below the limit");
    let refused = receive(MESSAGE_BYTES_MAX).await.expect_err("above the limit");
    assert_eq!(refused.code(), tonic::Code::OutOfRange, "{refused}");
}

#[tokio::test]
async fn a_taken_port_is_named_with_a_remedy() {
    let first = server::bind(&ServerConfig::default()).await.expect("port 0 is free");
    let config = ServerConfig { listen: first.addr().to_string(), ..ServerConfig::default() };
    let error = server::bind(&config).await.expect_err("taken").to_string();
    assert!(error.starts_with(&format!("{} is taken by another process", first.addr())), "{error}");
    assert!(error.contains("server.listen") && error.contains("port 0"), "{error}");
}

#[tokio::test]
async fn an_address_that_is_none_is_named() {
    for listen in ["", "nonsense", "127.0.0.1", "127.0.0.1:99999", "192.0.2.1:0"] {
        let config = ServerConfig { listen: listen.to_owned(), ..ServerConfig::default() };
        let error = server::bind(&config).await.expect_err(listen).to_string();
        assert!(error.contains(&format!("'{listen}'")) && error.contains("server.listen must be"), "{error}");
    }
}

#[tokio::test]
async fn settings_that_make_no_sense_are_named() {
    let default = ServerConfig::default;
    let configs = [
        ("max_concurrent_streams", ServerConfig { max_concurrent_streams: 0, ..default() }),
        ("keepalive_interval", ServerConfig { keepalive_interval: Duration::ZERO, ..default() }),
        ("keepalive_timeout", ServerConfig { keepalive_timeout: Duration::MAX, ..default() }),
    ];
    for (field, config) in configs {
        let error = server::bind(&config).await.expect_err(field).to_string();
        assert!(error.starts_with(&format!("server.{field} must be ")), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reflection_lists_what_is_served_in_both_versions() {
    use tonic_reflection::pb::{v1, v1alpha};
    let node = node(Manner::Polite, 1).await;
    let expected = ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", service_names::PRIMARY];

    let request = v1::ServerReflectionRequest {
        message_request: Some(v1::server_reflection_request::MessageRequest::ListServices(String::new())),
        ..Default::default()
    };
    let mut client = v1::server_reflection_client::ServerReflectionClient::new(node.channel.clone());
    let mut answers = client.server_reflection_info(tokio_stream::once(request)).await.expect("served").into_inner();
    let answer = answers.message().await.expect("no error").expect("an answer").message_response;
    let Some(v1::server_reflection_response::MessageResponse::ListServicesResponse(list)) = answer else {
        panic!("{answer:?}");
    };
    let mut names: Vec<_> = list.service.iter().map(|s| s.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, expected);

    let symbol = service_names::PRIMARY.to_owned();
    let request = v1alpha::ServerReflectionRequest {
        message_request: Some(v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(symbol)),
        ..Default::default()
    };
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(node.channel.clone());
    let mut answers = client.server_reflection_info(tokio_stream::once(request)).await.expect("served").into_inner();
    let answer = answers.message().await.expect("no error").expect("an answer").message_response;
    let found = v1alpha::server_reflection_response::MessageResponse::FileDescriptorResponse;
    assert!(matches!(answer, Some(ref a) if std::mem::discriminant(a) == std::mem::discriminant(&found(Default::default()))));
    drop(answers);
    node.stop().await;
}

#[tokio::test]
async fn a_missing_server_is_reported_with_the_attempts() {
    // A port that was free a moment ago.
    let gone = server::bind(&ServerConfig::default()).await.expect("port 0 is free").addr();
    let config = ClientConfig {
        endpoint: format!("http://{gone}"),
        wait_for_ready: Duration::from_millis(100),
        backoff_min: Duration::from_millis(10),
        ..ClientConfig::default()
    };
    let error = client::connect(&config, &Drain::new()).await.expect_err("nobody listens");
    assert!(matches!(error, ConnectError::Unreachable { attempts: 2.., .. }), "{error}");

    let drain = Drain::new();
    drain.start();
    let config = ClientConfig { wait_for_ready: Duration::from_secs(3600), ..config };
    let error = client::connect(&config, &drain).await.expect_err("this node stops");
    assert!(matches!(error, ConnectError::Stopped { .. }), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_waits_for_a_server_that_comes_late() {
    let first = node(Manner::Polite, 1).await;
    let config = first.config.clone();
    first.stop().await;
    let client = ClientConfig {
        endpoint: format!("http://{}", config.listen),
        backoff_min: Duration::from_millis(5),
        ..ClientConfig::default()
    };
    let connecting = tokio::spawn(async move { client::connect(&client, &Drain::new()).await.map(drop) });
    tokio::task::yield_now().await;
    let bound = server::bind(&config).await.expect("its own port, free again");
    let (drain, health) = (Drain::new(), Health::new(SERVICES).await);
    let routes = server::base_routes(&config, &health, SERVICES).expect("descriptors load");
    let stop = drain.clone();
    let serving = tokio::spawn(async move { server::serve(bound, &config, routes, health, drain).await });
    connecting.await.expect("no panic").expect("connected at last");
    stop.start();
    assert!(serving.await.expect("no panic").is_ok());
}
