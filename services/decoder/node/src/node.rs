//! The node as a whole: server, stream from the primary, decoding thread, flusher, and what happens when one of them fails.
//!
//! ```text
//!  primary ──StreamWal──► upstream task ──bounded channel──► decoding thread ──► output log ──► Subscribe
//!             ◄─positions─┘                                        │ offers
//!                     ▲ state                                 flusher thread: fsync, checkpoint, positions
//!                     └────────────────────────────────────────────┘
//! ```
//!
//! A lost stream is opened again where it ended; the decoder's memory is still good. An error of decoding thread or flusher ends
//! the run: if its cause may pass (a full disk), another begins from the checkpoint; if not, the node halts: it stays up and says
//! why, is NOT_SERVING, acknowledges nothing, and still serves what its output log has.

use std::fs::{DirBuilder, File, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex};

use pg_types::Lsn;
use service_kit::telemetry::{self, Export, Role};
use service_kit::{Clock, Drain, Health, SystemClock, client, server};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use walstorm_proto::service_names;

use crate::analysis::Analyst;
use crate::config::DecoderConfig;
use crate::costliest::Costliest;
use crate::durable_file::PRIVATE_MODE;
use crate::error::NodeError;
use crate::follower::{Follower, blocking};
use crate::server::{Service, Shared};
use crate::state::{NodeState, OutputProgress};
use crate::upstream::Upstream;

/// Services that health and reflection know.
const SERVICES: &[&str] = &[service_names::DECODER];

/// What a program that runs several nodes gives to each.
#[derive(Debug)]
pub struct NodeParts {
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Where spans go; `None`: as the settings and the environment say.
    pub export: Option<Export>,
}

impl Default for NodeParts {
    fn default() -> Self {
        Self { clock: Arc::new(SystemClock::new()), export: None }
    }
}

/// A running decoder.
#[derive(Debug)]
pub struct DecoderNode {
    /// Where it listens.
    addr: SocketAddr,
    /// Stops it.
    drain: Drain,
    /// Its state.
    state: watch::Receiver<NodeState>,
    /// Its list of costliest transactions.
    costliest: Arc<Mutex<Costliest>>,
    /// Its end.
    ended: JoinHandle<Result<(), NodeError>>,
}

impl DecoderNode {
    /// Starts a node: it listens when this returns, and connects and decodes in the background.
    ///
    /// # Errors
    ///
    /// A setting is wrong, the port is taken, or the folder is in use.
    pub async fn start(config: DecoderConfig) -> Result<Self, NodeError> {
        Self::start_with(config, NodeParts::default(), Drain::new()).await
    }

    /// As [`DecoderNode::start`], with parts that a program shares among nodes.
    ///
    /// # Errors
    ///
    /// As [`DecoderNode::start`].
    pub async fn start_with(config: DecoderConfig, parts: NodeParts, drain: Drain) -> Result<Self, NodeError> {
        client::endpoint(&config.primary)?;
        let (config, checked) = blocking(move || config.check().map(|checked| (config, checked))).await?;
        let bound = server::bind(&config.server).await?;
        let lock = lock_data_dir(&config)?;
        let addr = bound.addr();
        let export = match parts.export {
            Some(export) => export,
            None => telemetry::choose_export(&config.telemetry, |name| std::env::var(name).ok())?,
        };
        let role = Role { service_name: "walstorm-decoder".to_owned(), instance_id: config.client_id.clone() };
        let (tracer, guard) = telemetry::start(&role, &config.telemetry, export)?;
        let health = Health::new(SERVICES).await;
        let (state, _) = watch::channel(NodeState::default());
        let (output, _) = watch::channel(OutputProgress::default());
        let (serving, _) = watch::channel(None);
        let costliest = Arc::new(Mutex::new(Costliest::new(config.costliest)));
        let upstream = Upstream {
            client: config.primary.clone(),
            slot: config.slot.clone(),
            client_id: config.client_id.clone(),
            create_slot: config.create_slot,
            drain: drain.clone(),
            state: state.clone(),
        };
        let analyst = Analyst {
            upstream: upstream.for_reading_again(),
            checked: checked.clone(),
            limits: config.analysis.clone(),
            permits: Semaphore::new(config.analysis.concurrent_max.min(Semaphore::MAX_PERMITS)),
        };
        let shared = Shared {
            serving: serving.subscribe(),
            state: state.subscribe(),
            output: output.subscribe(),
            costliest: Arc::clone(&costliest),
            drain: drain.clone(),
            clock: Arc::clone(&parts.clock),
            consumer: checked.profile.consumer.to_string(),
            profile: checked.profile.to_string(),
            analyst: Arc::new(analyst),
            grace: config.server.grace,
        };
        let routes = server::base_routes(&config.server, &health, SERVICES)?.add_service(Service::server(Arc::new(shared)));
        let server_config = config.server.clone();
        let watching = tokio::spawn(watch_health(health.clone(), state.subscribe(), drain.clone()));
        let follower = Follower {
            config,
            checked,
            upstream,
            tracer,
            clock: parts.clock,
            state: state.clone(),
            output,
            serving,
            costliest: Arc::clone(&costliest),
        };
        let following = tokio::spawn(follower.run());
        let serve_drain = drain.clone();
        let ended = tokio::spawn(async move {
            let served = server::serve(bound, &server_config, routes, health, serve_drain.clone()).await;
            serve_drain.stop();
            let followed = following.await;
            drop(watching.await);
            guard.shutdown().await;
            drop(lock);
            served?;
            followed.map_err(|error| NodeError::Internal(error.to_string()))
        });
        Ok(Self { addr, drain, state: state.subscribe(), costliest, ended })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Prints `listening on ADDRESS:PORT`, for people and for programs that start this one.
    pub fn announce(&self) {
        use std::io::Write;
        let mut out = std::io::stdout().lock();
        // A closed standard output is no reason not to serve.
        drop(writeln!(out, "listening on {}", self.addr).and_then(|()| out.flush()));
    }

    /// Its state, to be watched.
    #[must_use]
    pub fn state(&self) -> watch::Receiver<NodeState> {
        self.state.clone()
    }

    /// Its list of costliest transactions.
    #[must_use]
    pub fn costliest(&self) -> Arc<Mutex<Costliest>> {
        Arc::clone(&self.costliest)
    }

    /// Waits until everything before `lsn` is decoded and durable; gives the state then.
    ///
    /// # Errors
    ///
    /// The node halted or stopped before.
    pub async fn decoded_to(&self, lsn: Lsn) -> Result<NodeState, NodeError> {
        let mut state = self.state();
        // What is durable is told by another thread than what was counted, and may be told first.
        let done = |state: &NodeState| state.applied_lsn.min(state.decoded_lsn) >= lsn;
        let reached = state.wait_for(|state| done(state) || state.halted).await;
        let reached = reached.map_err(|_| NodeError::Internal("the node has stopped".to_owned()))?.clone();
        if done(&reached) { Ok(reached) } else { Err(NodeError::Halted(reached.last_error)) }
    }

    /// Waits until the primary's source has ended and everything of it is decoded and durable; gives the state then.
    ///
    /// # Errors
    ///
    /// The node halted or stopped before.
    pub async fn source_decoded(&self) -> Result<NodeState, NodeError> {
        let mut state = self.state();
        let done = |state: &NodeState| state.source_ended && state.applied_lsn.min(state.decoded_lsn) >= state.received_lsn;
        let reached = state.wait_for(|state| done(state) || state.halted).await;
        let reached = reached.map_err(|_| NodeError::Internal("the node has stopped".to_owned()))?.clone();
        if done(&reached) { Ok(reached) } else { Err(NodeError::Halted(reached.last_error)) }
    }

    /// Stops in order: subscribers are told, what arrived is decoded and made durable, the last position is reported.
    ///
    /// # Errors
    ///
    /// Serving had failed.
    pub async fn shutdown(self) -> Result<(), NodeError> {
        self.drain.start();
        self.join().await
    }

    /// Waits until the node has stopped.
    ///
    /// # Errors
    ///
    /// Serving failed.
    pub async fn join(self) -> Result<(), NodeError> {
        self.ended.await.map_err(|error| NodeError::Internal(error.to_string()))?
    }
}

/// Makes the folder and holds it for this process.
fn lock_data_dir(config: &DecoderConfig) -> Result<File, NodeError> {
    let dir = &config.data_dir;
    let io = |action, path: &Path| {
        let path = path.to_owned();
        move |source| NodeError::Io { action, path, source }
    };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io("create", dir))?;
    let path = dir.join("lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(PRIVATE_MODE).open(&path);
    let file = file.map_err(io("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(NodeError::DataDirInUse(dir.clone())),
        Err(std::fs::TryLockError::Error(source)) => Err(io("lock", &path)(source)),
    }
}

/// Sets the service's health by the node's state.
async fn watch_health(health: Health, mut state: watch::Receiver<NodeState>, drain: Drain) {
    let mut was = false;
    loop {
        let is = state.borrow_and_update().is_serving();
        if is != was && !drain.is_draining() {
            health.set(service_names::DECODER, is).await;
            was = is;
        }
        tokio::select! {
            () = drain.draining() => return,
            changed = state.changed() => if changed.is_err() { return },
        }
    }
}
