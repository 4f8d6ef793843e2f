//! The node put together: stream, replay and server, started and stopped as one.

use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use pg_types::Work;
use service_kit::server::{Bound, Drained, ServerError, base_routes, bind, serve};
use service_kit::telemetry::{self, Export, Guard, Role};
use service_kit::{Clock, Drain, Health, SystemClock};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use walstorm_proto::service_names::STANDBY;
use walstorm_proto::standby::v1::standby_service_server::StandbyServiceServer;

use crate::config::{Checked, Config};
use crate::error::Error;
use crate::follow::{Ends, Follower};
use crate::progress::{Progress, Upstream};
use crate::readiness::Readiness;
use crate::replay::{Outputs, Readable, Replay};
use crate::restart_point;
use crate::server::{SnapshotTotals, StandbyServer};
use crate::spans::Spans;

/// `service.name` of its spans.
const SERVICE_NAME: &str = "walstorm-standby";

/// The services that this node serves.
const SERVICES: &[&str] = &[STANDBY];

/// A running standby. Dropping it stops it without grace.
#[derive(Debug)]
pub struct StandbyNode {
    /// Where it serves.
    addr: SocketAddr,
    /// How far replay is.
    progress: watch::Receiver<Progress>,
    /// How the stream is.
    upstream: watch::Receiver<Upstream>,
    /// What snapshots cost.
    totals: Arc<SnapshotTotals>,
    /// Stops all of it.
    drain: Drain,
    /// The server.
    serving: JoinHandle<Result<Drained, ServerError>>,
    /// The stream's task.
    following: JoinHandle<()>,
    /// The replay thread, until it is joined.
    replay: Option<thread::JoinHandle<()>>,
    /// Exports the last spans, until it has.
    traces: Option<Guard>,
    /// Keeps others out of the data directory, if there is one.
    _lock: Option<File>,
}

impl StandbyNode {
    /// Starts a node: binds, reads the restart point, follows, replays and serves. Traces go where the configuration says.
    ///
    /// # Errors
    /// The configuration cannot run, the port is taken, or the restart point is damaged. The primary need not be there yet.
    pub async fn start(config: Config) -> Result<Self, Error> {
        let export = telemetry::choose_export(&config.telemetry, |name| std::env::var(name).ok())?;
        Self::start_with(config, export, Arc::new(SystemClock::new()), Drain::new()).await
    }

    /// As [`StandbyNode::start`], with an export of traces, a clock and a drain of the caller's choice.
    ///
    /// # Errors
    /// As [`StandbyNode::start`].
    pub async fn start_with(config: Config, export: Export, clock: Arc<dyn Clock>, drain: Drain) -> Result<Self, Error> {
        let checked = config.check()?;
        let (lock, restart_point) = match &checked.config.data_dir {
            None => (None, None),
            Some(dir) => {
                make_dir(dir)?;
                (Some(lock_dir(dir)?), restart_point::read(dir)?)
            }
        };
        let bound = bind(&checked.config.server).await?;
        let role = Role { service_name: SERVICE_NAME.to_owned(), instance_id: checked.config.client_id.clone() };
        let (tracer, traces) = telemetry::start(&role, &checked.config.telemetry, export)?;
        let spans = Spans::new(tracer, Arc::clone(&clock));
        let (progress, progress_seen) = watch::channel(Progress::default());
        let (readable, readable_seen) = watch::channel(None::<Readable>);
        let (upstream, upstream_seen) = watch::channel(Upstream::default());
        let (queue, queued) = mpsc::channel(checked.config.queue_batches);
        let ends = Ends { queue, progress: progress_seen.clone(), upstream, clock: Arc::clone(&clock), stop: drain.token() };
        let follower = Follower::new(&checked, restart_point.as_ref(), ends);
        let readiness = Readiness {
            progress: progress_seen.clone(),
            upstream: upstream_seen.clone(),
            clock: Arc::clone(&clock),
            max_silence: checked.config.max_primary_silence,
        };
        let totals = Arc::new(SnapshotTotals::default());
        let outputs = Outputs { progress, readable, totals: Arc::clone(&totals) };
        let replay = Replay::new(checked.clone(), restart_point, clock, spans.clone(), outputs);
        let replay = replay.spawn(queued, tokio::runtime::Handle::current())?;
        let server = StandbyServer {
            progress: progress_seen.clone(),
            readable: readable_seen,
            upstream: upstream_seen.clone(),
            readiness: readiness.clone(),
            totals: Arc::clone(&totals),
            spans,
            drain: drain.clone(),
            wait_max: checked.config.snapshot_wait_max,
        };
        let addr = bound.addr();
        let serving = start_server(bound, &checked, server, readiness, drain.clone()).await?;
        let following = tokio::spawn(follower.run());
        let (progress, upstream) = (progress_seen, upstream_seen);
        let (replay, traces) = (Some(replay), Some(traces));
        Ok(Self { addr, progress, upstream, totals, drain, serving, following, replay, traces, _lock: lock })
    }

    /// Where the node serves.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Prints `listening on ADDRESS:PORT` on standard output: for people and for programs that start this one.
    pub fn announce(&self) {
        use std::io::Write;
        let mut out = std::io::stdout().lock();
        // A closed standard output is no reason not to serve.
        let _ = writeln!(out, "listening on {}", self.addr).and_then(|()| out.flush());
    }

    /// How far replay is: watch it to wait for a position or a state.
    #[must_use]
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.clone()
    }

    /// How the stream from the primary is.
    #[must_use]
    pub fn upstream(&self) -> watch::Receiver<Upstream> {
        self.upstream.clone()
    }

    /// What replay and snapshots did since the start.
    #[must_use]
    pub fn work(&self) -> Work {
        let mut work = self.totals.work();
        work += self.progress.borrow().work;
        work
    }

    /// Snapshots taken since the start.
    #[must_use]
    pub fn snapshots_taken(&self) -> u64 {
        self.totals.taken()
    }

    /// The node's way to stop, for signals.
    #[must_use]
    pub fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Stops in order: calls end, the last positions go to the primary, replay finishes what is queued.
    ///
    /// # Errors
    /// The server had failed.
    pub async fn shutdown(self) -> Result<(), Error> {
        self.drain.start();
        self.joined().await
    }

    /// Waits until the node has stopped: by [`Drain::start`], or because its server failed.
    ///
    /// # Errors
    /// The server failed.
    pub async fn joined(mut self) -> Result<(), Error> {
        let served = (&mut self.serving).await;
        self.drain.start();
        // A task that panicked has said so already.
        let _ = (&mut self.following).await;
        if let Some(replay) = self.replay.take() {
            let _ = tokio::task::spawn_blocking(move || replay.join()).await;
        }
        if let Some(traces) = self.traces.take() {
            traces.shutdown().await;
        }
        match served {
            Ok(result) => Ok(result.map(|_| ())?),
            Err(_) => Ok(()),
        }
    }
}

impl Drop for StandbyNode {
    fn drop(&mut self) {
        self.drain.stop();
        self.serving.abort();
        self.following.abort();
    }
}

/// Serves in a task, and keeps the service's health equal to its readiness.
async fn start_server(
    bound: Bound,
    checked: &Checked,
    server: StandbyServer,
    readiness: Readiness,
    drain: Drain,
) -> Result<JoinHandle<Result<Drained, ServerError>>, Error> {
    let config = checked.config.server.clone();
    let health = Health::new(SERVICES).await;
    let routes = base_routes(&config, &health, SERVICES)?.add_service(StandbyServiceServer::new(server));
    tokio::spawn(readiness.report(health.clone(), drain.clone()));
    Ok(tokio::spawn(async move { serve(bound, &config, routes, health, drain).await }))
}

/// Makes the data directory, for its owner alone.
fn make_dir(dir: &Path) -> Result<(), Error> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|source| Error::DataDir { path: dir.to_owned(), source })
}

/// Makes sure that no other standby uses the data directory (PostgreSQL: `postmaster.pid`), and that files can be made in it. Held
/// until the file is closed, so it cannot outlive a crash.
fn lock_dir(dir: &Path) -> Result<File, Error> {
    let path = dir.join("lock");
    let failed = |source| Error::Lock { path: path.clone(), source };
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Error::DataDirInUse(dir.to_owned())),
        Err(std::fs::TryLockError::Error(source)) => Err(failed(source)),
    }
}
