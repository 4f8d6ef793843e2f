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
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pg_types::{Lsn, Oid};
use pg_wal::WalProfile;
use service_kit::client::{self, Backoff, ConnectError};
use service_kit::telemetry::{self, Export, Role, Tracer};
use service_kit::{Clock, Drain, Health, SystemClock, server};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use walstorm_proto::primary::v1::StreamStarted;
use walstorm_proto::service_names;

use crate::checkpoint::Checkpoint;
use crate::config::{Checked, DecoderConfig};
use crate::costliest::Costliest;
use crate::durable_file::PRIVATE_MODE;
use crate::error::{NodeError, Remedy};
use crate::flusher::{FlushQueue, Flusher};
use crate::output_log::OutputLog;
use crate::pipeline::{Arrival, Outlets, Pipeline};
use crate::server::{Service, Serving, Shared};
use crate::sink::EventSink;
use crate::state::{NodeState, OutputProgress};
use crate::subscriptions::{SavedPositions, Subscriptions};
use crate::trace::TransactionSpans;
use crate::upstream::{Ended, Opened, Upstream};

/// Batches that wait for the decoding thread, at most; each is below 1 MiB but for one huge record.
const ARRIVALS: usize = 8;

/// Pauses between attempts after a failed run.
const RESTART_PAUSE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(10));

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
        let shared = Shared {
            serving: serving.subscribe(),
            state: state.subscribe(),
            output: output.subscribe(),
            costliest: Arc::clone(&costliest),
            drain: drain.clone(),
            clock: Arc::clone(&parts.clock),
            profile: checked.profile.to_string(),
            grace: config.server.grace,
        };
        let routes = server::base_routes(&config.server, &health, SERVICES)?.add_service(Service::server(Arc::new(shared)));
        let server_config = config.server.clone();
        let upstream = Upstream {
            client: config.primary.clone(),
            slot: config.slot.clone(),
            client_id: config.client_id.clone(),
            create_slot: config.create_slot,
            drain: drain.clone(),
            state: state.clone(),
        };
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
        let reached = state.wait_for(|state| state.applied_lsn >= lsn || state.halted).await;
        let reached = reached.map_err(|_| NodeError::Internal("the node has stopped".to_owned()))?.clone();
        if reached.applied_lsn >= lsn { Ok(reached) } else { Err(NodeError::Halted(reached.last_error)) }
    }

    /// Waits until the primary's source has ended and everything of it is decoded and durable; gives the state then.
    ///
    /// # Errors
    ///
    /// The node halted or stopped before.
    pub async fn source_decoded(&self) -> Result<NodeState, NodeError> {
        let mut state = self.state();
        let done = |state: &NodeState| state.source_ended && state.applied_lsn >= state.received_lsn;
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
    let io = |action, path: &std::path::Path| {
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

/// Runs something that blocks, off the async threads.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, NodeError> + Send + 'static) -> Result<T, NodeError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| NodeError::Internal(error.to_string()))?
}

/// Runs `work` on a thread of its own; gives its end.
fn on_thread(
    name: &str,
    work: impl FnOnce() -> Result<(), NodeError> + Send + 'static,
) -> Result<oneshot::Receiver<Result<(), NodeError>>, NodeError> {
    let (done, ended) = oneshot::channel();
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        // Nobody waiting any more is no error.
        drop(done.send(work()));
    });
    match spawned {
        Ok(_) => Ok(ended),
        Err(error) => Err(NodeError::Internal(format!("cannot start the thread {name}: {error}"))),
    }
}

/// The end of a thread.
async fn thread_end(ended: &mut oneshot::Receiver<Result<(), NodeError>>) -> Result<(), NodeError> {
    ended.await.unwrap_or_else(|_| Err(NodeError::Internal("a thread panicked; its message is on standard error".to_owned())))
}

/// Follows the primary for the life of the node.
struct Follower {
    /// Settings.
    config: DecoderConfig,
    /// What of them was checked.
    checked: Checked,
    /// The client's side of the stream.
    upstream: Upstream,
    /// Makes spans.
    tracer: Tracer,
    /// Time.
    clock: Arc<dyn Clock>,
    /// The node's state.
    state: watch::Sender<NodeState>,
    /// What subscribers watch.
    output: watch::Sender<OutputProgress>,
    /// The run at hand.
    serving: watch::Sender<Option<Arc<Serving>>>,
    /// The costliest transactions.
    costliest: Arc<Mutex<Costliest>>,
}

/// The threads of one run.
struct Run {
    /// To the decoding thread.
    arrivals: mpsc::Sender<Arrival>,
    /// The decoding thread's end.
    decoded: oneshot::Receiver<Result<(), NodeError>>,
    /// To the flusher.
    flusher: Arc<FlushQueue>,
    /// The flusher's end.
    flushed: oneshot::Receiver<Result<(), NodeError>>,
}

impl Follower {
    /// Runs until the node stops.
    async fn run(self) {
        let drain = self.upstream.drain.clone();
        let mut backoff = Backoff::new(RESTART_PAUSE.0, RESTART_PAUSE.1);
        loop {
            let Err(error) = self.run_once().await else { return };
            let halted = error.remedy() == Remedy::Halt;
            self.state.send_modify(|state| {
                state.connected = false;
                state.halted = halted;
                state.last_error = error.to_string();
            });
            if halted {
                tracing::error!(%error, "the decoder has stopped; it serves what it has decoded, and needs help to go on");
                drain.draining().await;
                return;
            }
            let pause = backoff.next_delay();
            tracing::warn!(%error, ?pause, "the decoder starts anew from its checkpoint");
            tokio::select! {
                () = drain.draining() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// One run: from the checkpoint until the node stops or something fails.
    async fn run_once(&self) -> Result<(), NodeError> {
        let path = self.config.data_dir.join("checkpoint");
        let loaded = blocking(move || Ok(Checkpoint::load(&path)?)).await?;
        let mut opened = None;
        let checkpoint = match loaded {
            Some(checkpoint) => self.check_settings(checkpoint)?,
            None => {
                let Some(first) = self.open(Lsn::INVALID, None).await? else { return Ok(()) };
                let checkpoint = self.first_checkpoint(&first.started)?;
                opened = Some(first);
                checkpoint
            }
        };
        let mut run = self.begin(checkpoint.clone()).await?;
        let followed = tokio::select! {
            followed = self.follow(&checkpoint, opened, &run.arrivals) => followed,
            flushed = thread_end(&mut run.flushed) => flushed.and(Err(NodeError::Internal("the flusher ended".to_owned()))),
        };
        self.state.send_modify(|state| state.connected = false);
        drop(run.arrivals);
        let decoded = thread_end(&mut run.decoded).await;
        run.flusher.close();
        let flushed = match &followed {
            Err(_) if run.flushed.is_terminated() => Ok(()),
            _ => thread_end(&mut run.flushed).await,
        };
        if followed.is_err() || decoded.is_err() || flushed.is_err() {
            // The cause first: an ended thread ends the others.
            decoded.and(flushed).and(followed)
        } else {
            Ok(())
        }
    }

    /// The checkpoint, if it fits the settings.
    fn check_settings(&self, checkpoint: Checkpoint) -> Result<Checkpoint, NodeError> {
        let data_dir = &self.config.data_dir;
        let changed = |name, found: String, expected: String| {
            Err(NodeError::Changed { name, found, expected, data_dir: data_dir.clone() })
        };
        if checkpoint.slot != self.config.slot {
            return changed("slot", self.config.slot.clone(), checkpoint.slot);
        }
        match self.checked.database {
            Some(database) if checkpoint.database != Oid::INVALID && database != checkpoint.database => {
                changed("database", database.0.to_string(), checkpoint.database.0.to_string())
            }
            _ => Ok(checkpoint),
        }
    }

    /// Where a node that has nothing begins.
    fn first_checkpoint(&self, started: &StreamStarted) -> Result<Checkpoint, NodeError> {
        let start = Lsn(started.start_lsn);
        let version = pg_types::PgVersion::ALL.into_iter().find(|version| version.major() == started.pg_version);
        Ok(Checkpoint {
            slot: self.config.slot.clone(),
            system_id: started.system_id,
            timeline: started.timeline,
            version: version.ok_or(NodeError::Version(started.pg_version))?,
            database: self.checked.database.unwrap_or(Oid::INVALID),
            consistent: false,
            restart_lsn: start,
            output_end: start,
            decoded_lsn: start,
        })
    }

    /// Opens log and positions, starts the threads and lets subscribers in.
    async fn begin(&self, checkpoint: Checkpoint) -> Result<Run, NodeError> {
        let data_dir = self.config.data_dir.clone();
        let log_config = self.checked.log.clone();
        let (system_id, restart, output_end) = (checkpoint.system_id, checkpoint.restart_lsn, checkpoint.output_end);
        let positions_path = data_dir.join("positions");
        let saved_path = positions_path.clone();
        let (writer, log, saved) = blocking(move || {
            let (writer, log) = OutputLog::open(log_config, system_id, restart, output_end)?;
            Ok((writer, log, SavedPositions::load(&saved_path, system_id)?))
        })
        .await?;
        let limits = &self.config.subscriptions;
        let subscriptions = Subscriptions::new(&saved, limits.streams_max, limits.names_max);
        let subscriptions = Arc::new(Mutex::new(subscriptions));
        self.state.send_modify(|state| {
            state.received_lsn = restart;
            state.decoded_lsn = checkpoint.decoded_lsn;
            state.output_end = writer.end();
            state.applied_lsn = checkpoint.decoded_lsn;
            state.flushed_lsn = restart;
            state.source_ended = false;
        });
        let queue = Arc::new(FlushQueue::default());
        let flusher = Flusher {
            queue: Arc::clone(&queue),
            log: Arc::clone(&log),
            subscriptions: Arc::clone(&subscriptions),
            state: self.state.clone(),
            checkpoint_path: data_dir.join("checkpoint"),
            positions_path,
            flush_interval: self.config.flush_interval,
            checkpoint_interval: self.config.checkpoint_interval,
            system_id,
        };
        let outlets = Outlets {
            state: self.state.clone(),
            output: self.output.clone(),
            flusher: Arc::clone(&queue),
            costliest: Arc::clone(&self.costliest),
        };
        let serving = Serving {
            log,
            subscriptions,
            takeovers: Mutex::default(),
            over: CancellationToken::new(),
            system_id,
            timeline: checkpoint.timeline,
            version: checkpoint.version,
        };
        let (arrivals, receiver) = mpsc::channel(ARRIVALS);
        let spans = TransactionSpans::new(self.tracer.clone(), Arc::clone(&self.clock), &self.checked.profile.name);
        let (checked, interval) = (self.checked.clone(), self.config.flush_interval);
        let wal = WalProfile::of(checkpoint.version);
        // What is in the log already is the end of output, even beyond the checkpoint: it is not given out again.
        let resumed = Checkpoint { output_end: writer.end(), ..checkpoint };
        let decoded = on_thread("decode", move || {
            let sink = EventSink::new(writer.end(), spans);
            Pipeline::new(checked, wal, resumed, writer, sink, interval, outlets).run(receiver)
        })?;
        let flushed = on_thread("flush", move || flusher.run())?;
        if let Some(before) = self.serving.send_replace(Some(Arc::new(serving))) {
            before.over.cancel();
        }
        Ok(Run { arrivals, decoded, flusher: queue, flushed })
    }

    /// Opens the stream at `from` until it opens; `None` if the node stops before.
    async fn open(&self, from: Lsn, checkpoint: Option<&Checkpoint>) -> Result<Option<Opened>, NodeError> {
        let mut backoff = Backoff::new(self.config.primary.backoff_min, self.config.primary.backoff_max);
        loop {
            let error = match self.upstream.open(from, checkpoint.is_none()).await {
                Ok(opened) => return Ok(Some(opened)),
                Err(NodeError::Connect(ConnectError::Stopped { .. })) => return Ok(None),
                Err(error) => error,
            };
            let error = match (error, checkpoint) {
                (NodeError::NoSlot { slot }, Some(checkpoint)) => NodeError::SlotGone {
                    slot,
                    data_dir: self.config.data_dir.clone(),
                    decoded: checkpoint.decoded_lsn,
                    restart: checkpoint.restart_lsn,
                },
                (error, _) => error,
            };
            if error.remedy() == Remedy::Halt {
                return Err(error);
            }
            let pause = backoff.next_delay();
            tracing::warn!(%error, ?pause, "no stream from the primary");
            self.state.send_modify(|state| state.last_error = error.to_string());
            tokio::select! {
                () = self.upstream.drain.draining() => return Ok(None),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Keeps the stream open until the node stops or something fails that is not the stream's loss.
    async fn follow(
        &self,
        checkpoint: &Checkpoint,
        mut opened: Option<Opened>,
        arrivals: &mpsc::Sender<Arrival>,
    ) -> Result<(), NodeError> {
        loop {
            let from = self.state.borrow().received_lsn;
            let stream = match opened.take() {
                Some(stream) => stream,
                None => match self.open(from, Some(checkpoint)).await? {
                    Some(stream) => stream,
                    None => return Ok(()),
                },
            };
            self.check_wal(checkpoint, &stream.started)?;
            tracing::info!(from = %Lsn(stream.started.start_lsn), primary = %self.config.primary.endpoint, "following");
            match self.upstream.follow(stream, arrivals).await {
                Ok(Ended::Stopped | Ended::DecoderGone) => return Ok(()),
                Err(error) if error.remedy() == Remedy::Halt => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "the stream from the primary is lost");
                    self.state.send_modify(|state| {
                        state.connected = false;
                        state.last_error = error.to_string();
                    });
                }
            }
        }
    }

    /// Whether the primary serves the WAL that this node decoded before.
    fn check_wal(&self, checkpoint: &Checkpoint, started: &StreamStarted) -> Result<(), NodeError> {
        let facts = [
            ("system id", checkpoint.system_id, started.system_id),
            ("timeline", checkpoint.timeline.into(), started.timeline.into()),
            ("major version", checkpoint.version.major().into(), started.pg_version.into()),
        ];
        match facts.into_iter().find(|(_, expected, found)| expected != found) {
            None => Ok(()),
            Some((what, expected, found)) => Err(NodeError::OtherWal {
                what,
                found: found.to_string(),
                expected: expected.to_string(),
                data_dir: self.config.data_dir.clone(),
            }),
        }
    }
}
