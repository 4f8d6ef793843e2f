//! The gRPC server of a node: bind, serve, stop in time.
//!
//! What goes wrong elsewhere and how it is met here: HTTP/2's default limit of concurrent streams hangs the session after the last
//! one, so the limit is explicit; dead peers keep streams open, so HTTP/2 pings find them; a graceful stop waits for every open
//! stream, for ever if a peer is dead, so each step of stopping has a limit and the last one closes the connections themselves
//! (`cut_io.rs`). Steps: see `drain.rs`.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::transport::server::Connected;

use crate::drain::Drain;
use crate::health::Health;
use crate::printable::error_text;

mod cut_io;

use cut_io::CutIo;

/// Limit of one message in each direction, in bytes. Give it to every generated server and client
/// (`max_decoding_message_size`, `max_encoding_message_size`); batches are built to stay below 1 MiB.
pub const MESSAGE_BYTES_MAX: usize = 4 << 20;

/// Bytes of requests that may wait on one stream. Less than on its connection, so that a client which reads none of a stream's answers
/// and goes on asking, so that nobody reads its questions, does not keep the connection's other streams from theirs. Requests are small.
const STREAM_WINDOW: u32 = 64 << 10;

/// The same on all streams of a connection together.
const CONNECTION_WINDOW: u32 = 4 << 20;

/// How long streams may take to send their last status once the grace is over.
const STATUS_TIME: Duration = Duration::from_millis(300);

/// How long connections may take to close by themselves, and again after they were cut.
const CLOSE_TIME: Duration = Duration::from_millis(400);

/// Pause after the operating system refused to accept a connection (mostly: no file descriptors left).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Settings of a node's gRPC server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerConfig {
    /// Address and port; port 0 takes any free one.
    pub listen: String,
    /// Streams and calls that one connection may have open at a time.
    pub max_concurrent_streams: u32,
    /// Silence on a connection after which it is pinged.
    #[serde(with = "humantime_serde")]
    pub keepalive_interval: Duration,
    /// Time in which a ping must be answered, else the connection is closed.
    #[serde(with = "humantime_serde")]
    pub keepalive_timeout: Duration,
    /// Time that streams get to end by themselves when the server stops.
    #[serde(with = "humantime_serde")]
    pub grace: Duration,
    /// Whether server reflection answers.
    pub reflection: bool,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:0".to_owned(),
            max_concurrent_streams: 4096,
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(10),
            grace: Duration::from_secs(2),
            reflection: true,
        }
    }
}

/// What intervals of keepalive may be: below, pings are an attack; above, clocks overflow.
pub(crate) const KEEPALIVE_RANGE: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(3600);

impl ServerConfig {
    /// Refuses settings under which nothing would be served.
    fn check(&self) -> Result<(), ServerError> {
        let refuse = |field, must| Err(ServerError::Setting { field, must });
        if self.max_concurrent_streams == 0 {
            return refuse("max_concurrent_streams", "greater than 0");
        }
        if !KEEPALIVE_RANGE.contains(&self.keepalive_interval) {
            return refuse("keepalive_interval", "between 100ms and 1h");
        }
        if !KEEPALIVE_RANGE.contains(&self.keepalive_timeout) {
            return refuse("keepalive_timeout", "between 100ms and 1h");
        }
        Ok(())
    }
}

/// Why a server does not start or does not go on.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The port belongs to another process.
    #[error(
        "{listen} is taken by another process: stop that one, or set server.listen to another port (port 0 takes any free one)"
    )]
    PortTaken {
        /// The address asked for.
        listen: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on '{listen}': {source}; server.listen must be ADDRESS:PORT with an address of this machine")]
    Bind {
        /// The address asked for.
        listen: String,
        /// What the operating system says.
        source: io::Error,
    },
    /// A setting makes no sense.
    #[error("server.{field} must be {must}")]
    Setting {
        /// The field.
        field: &'static str,
        /// What it must be.
        must: &'static str,
    },
    /// Serving failed.
    #[error("the gRPC server on {addr} failed: {message}")]
    Serve {
        /// Where it listened.
        addr: SocketAddr,
        /// What it says.
        message: String,
    },
    /// The contract's descriptors do not load.
    #[error("server reflection cannot be built: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// How a server ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Every stream ended within the grace.
    Clean,
    /// Some streams were ended by force.
    Cut,
}

/// What accepts connections: a socket, or a simulated one.
pub trait Listener: Send + Sync + 'static {
    /// A connection.
    type Io: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static;

    /// The next connection.
    fn accept(&self) -> impl Future<Output = io::Result<Self::Io>> + Send;
}

impl Listener for TcpListener {
    type Io = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = TcpListener::accept(self).await?;
        // Small messages (feedback, keepalives) must not wait for acknowledgements of large ones.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

/// A listening socket that does not accept yet: its address is known before the node is built.
#[derive(Debug)]
pub struct Bound<L = TcpListener> {
    listener: L,
    addr: SocketAddr,
}

impl<L> Bound<L> {
    /// A listener that is bound to `addr` already.
    pub fn new(listener: L, addr: SocketAddr) -> Self {
        Self { listener, addr }
    }

    /// Where it listens, with the port that was found if 0 was asked for.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Prints `listening on ADDRESS:PORT` on standard output: for people and for programs that start this one.
    pub fn announce(&self) {
        use io::Write;
        let mut out = io::stdout().lock();
        // A closed standard output is no reason not to serve.
        let _ = writeln!(out, "listening on {}", self.addr).and_then(|()| out.flush());
    }
}

/// Binds the address of `config`.
///
/// # Errors
/// A setting makes no sense, the port is taken, or the address is none of this machine.
pub async fn bind(config: &ServerConfig) -> Result<Bound, ServerError> {
    config.check()?;
    let listen = config.listen.clone();
    let bound = async {
        let listener = TcpListener::bind(&listen).await?;
        let addr = listener.local_addr()?;
        Ok(Bound { listener, addr })
    };
    bound.await.map_err(|source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ServerError::PortTaken { listen },
        _ => ServerError::Bind { listen, source },
    })
}

/// Health and, unless switched off, reflection (v1, and v1alpha for older clients): add the node's services to them.
/// `services` are those that the node serves; reflection lists these and no others of the contract.
///
/// # Errors
/// The descriptors do not load.
pub fn base_routes(config: &ServerConfig, health: &Health, services: &[&'static str]) -> Result<Routes, ServerError> {
    let routes = Routes::new(health.service());
    if !config.reflection {
        return Ok(routes);
    }
    let builder = |own: &str| {
        let builder = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(walstorm_proto::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .with_service_name("grpc.health.v1.Health")
            .with_service_name(own);
        services.iter().fold(builder, |builder, name| builder.with_service_name(*name))
    };
    let v1 = builder("grpc.reflection.v1.ServerReflection").build_v1()?;
    let v1alpha = builder("grpc.reflection.v1alpha.ServerReflection").build_v1alpha()?;
    Ok(routes.add_service(v1).add_service(v1alpha))
}

/// Serves until `drain` says so, then stops in steps: NOT_SERVING, the grace for streams, their end, the connections' end.
/// After `config.grace` plus at most 1.5 s it returns, whatever the peers do.
///
/// # Errors
/// The server failed before anybody wanted it to stop.
pub async fn serve<L: Listener>(
    bound: Bound<L>,
    config: &ServerConfig,
    routes: Routes,
    health: Health,
    drain: Drain,
) -> Result<Drained, ServerError> {
    let Bound { listener, addr } = bound;
    let (graceful, cut) = (CancellationToken::new(), CancellationToken::new());
    let _cut_on_return = cut.clone().drop_guard();
    let incoming = accept(listener, cut.clone());
    let router = Server::builder()
        .http2_keepalive_interval(Some(config.keepalive_interval))
        .http2_keepalive_timeout(Some(config.keepalive_timeout))
        .max_concurrent_streams(config.max_concurrent_streams)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .add_routes(routes.prepare());
    let mut serving = tokio::spawn(router.serve_with_incoming_shutdown(incoming, graceful.clone().cancelled_owned()));
    tracing::info!(%addr, "serving");

    tokio::select! {
        ended = &mut serving => {
            let message = match ended {
                Ok(Ok(())) => "it ended by itself".to_owned(),
                Ok(Err(error)) => error_text(&error),
                Err(error) => error.to_string(),
            };
            return Err(ServerError::Serve { addr, message });
        }
        () = drain.draining() => {}
    }

    health.drain().await;
    let outcome = end_streams(config.grace, &drain).await;
    health.end_watches().await;
    graceful.cancel();
    if tokio::time::timeout(CLOSE_TIME, &mut serving).await.is_err() {
        tracing::warn!(%addr, "connections do not close: cutting them");
        cut.cancel();
        if tokio::time::timeout(CLOSE_TIME, &mut serving).await.is_err() {
            serving.abort();
        }
    }
    tracing::info!(%addr, ?outcome, "stopped");
    Ok(outcome)
}

/// Waits for the streams, at most for `grace`; then tells them to end and waits a little for that.
async fn end_streams(grace: Duration, drain: &Drain) -> Drained {
    tokio::select! {
        // In this order: streams that end because they are told to stop have not ended by themselves.
        biased;
        () = drain.stopping() => {}
        () = drain.streams_ended() => return Drained::Clean,
        () = tokio::time::sleep(grace) => {}
    }
    tracing::warn!(streams = drain.open_streams(), "grace is over: ending streams");
    drain.stop();
    // Those that do not end now are cut with their connections.
    let _ = tokio::time::timeout(STATUS_TIME, drain.streams_ended()).await;
    Drained::Cut
}

/// Accepts connections until `cut` or until the server takes no more.
fn accept<L: Listener>(listener: L, cut: CancellationToken) -> ReceiverStream<io::Result<CutIo<L::Io>>> {
    let (tx, rx) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let permit = tokio::select! { p = tx.reserve() => p, () = cut.cancelled() => return };
            let Ok(permit) = permit else { return };
            let accepted = tokio::select! {
                a = listener.accept() => a,
                () = tx.closed() => return,
                () = cut.cancelled() => return,
            };
            match accepted {
                Ok(stream) => permit.send(Ok(CutIo::new(stream, cut.clone()))),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection; trying again");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    });
    ReceiverStream::new(rx)
}
