//! A running primary: opens the log, serves it, and stops in order. Used by the program and by everything that hosts a primary
//! in its own process.

use std::fs::{File, OpenOptions};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use primary_core::RunSummary;
use service_kit::server::{Bound, Drained, Listener, base_routes, bind, serve};
use service_kit::telemetry::{self, Export, Role, Sampler};
use service_kit::{Clock, Drain, Health, SystemClock};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::{ClockMode, PrimaryConfig};
use crate::contexts::ContextDecider;
use crate::error::{Error, Result};
use crate::runs::Runs;
use crate::server::{self, Limits, SERVICES, State};
use crate::slots::{SlotBuilder, Slots};
use crate::sources;
use crate::wal_log::{LogSource, WalLog};

/// Why a slot is lost.
const LOST_CAUSE: &str = "the WAL that it needs was removed";

/// A primary that runs. Dropping it does not stop it; [`PrimaryNode::shutdown`] does.
#[derive(Debug)]
pub struct PrimaryNode {
    /// Where it listens.
    addr: SocketAddr,
    /// Stops it.
    drain: Drain,
    /// Its log.
    log: WalLog,
    /// How far its scenario is.
    summary: Option<watch::Receiver<RunSummary>>,
    /// Ends when the node has stopped.
    task: JoinHandle<Result<Drained>>,
}

impl PrimaryNode {
    /// Starts a primary; it answers when this returns. Traces go where the configuration says.
    ///
    /// # Errors
    /// The configuration, the WAL, a slot file, the scenario or the address is wrong.
    pub async fn start(config: PrimaryConfig) -> Result<Self> {
        let export = telemetry::choose_export(&config.telemetry, |name| std::env::var(name).ok())
            .map_err(|e| Error::Config(e.to_string()))?;
        Self::start_with(config, export, Arc::new(SystemClock::new()), Drain::new()).await
    }

    /// Starts a primary with an export of traces, a clock and a drain of the caller's choice.
    ///
    /// # Errors
    /// As [`PrimaryNode::start`].
    pub async fn start_with(config: PrimaryConfig, export: Export, clock: Arc<dyn Clock>, drain: Drain) -> Result<Self> {
        config.validate()?;
        let bound = bind(&config.server).await?;
        Self::start_on(bound, config, export, clock, drain).await
    }

    /// Starts a primary that answers on a listener of the caller's, as on a simulated network.
    ///
    /// # Errors
    /// As [`PrimaryNode::start`].
    pub async fn start_on<L: Listener>(
        bound: Bound<L>,
        config: PrimaryConfig,
        export: Export,
        clock: Arc<dyn Clock>,
        drain: Drain,
    ) -> Result<Self> {
        config.validate()?;
        let addr = bound.addr();
        let sampler = Sampler::new(&config.telemetry.sampling).map_err(|e| Error::Config(e.to_string()))?;
        let times = Arc::clone(&clock);
        let stop = drain.clone();
        let (opened, config) = blocking(move || Opened::open(&config, &times, &stop).map(|opened| (opened, config))).await?;
        let Opened { lock, log, slots, source, runs } = opened;
        let identity = log.identity();

        let role = Role { service_name: "walstorm-primary".to_owned(), instance_id: addr.to_string() };
        let (tracer, guard) = telemetry::start(&role, &config.telemetry, export).map_err(|e| Error::Config(e.to_string()))?;
        let limits =
            Limits { max_streams: config.streams.max, batch_bytes: config.streams.batch_bytes, grace: config.server.grace };
        let decider = ContextDecider::new(&identity, sampler, Arc::clone(&clock));
        let state = State::new(log.clone(), slots.clone(), drain.clone(), clock, limits, decider, tracer);
        let state = Arc::new(state.with_runs(runs.clone(), config.runs.clone()));
        let health = Health::new(SERVICES).await;
        let routes = server::routes(base_routes(&config.server, &health, SERVICES)?, &state);
        health.serving().await;

        let background = [
            tokio::spawn(save_slots(slots.clone())),
            tokio::spawn(retain(log.clone(), slots.clone(), runs, config.clone())),
            tokio::spawn(tell_health(log.clone(), health.clone(), drain.clone())),
        ];
        SlotBuilder::resume_all(&slots, &log, &drain);
        let summary = source.summary();
        let source = tokio::spawn(source.run(log.clone(), slots.clone(), drain.clone()));
        let stopping = drain.clone();
        let task = tokio::spawn(async move {
            let served = serve(bound, &config.server, routes, health, stopping.clone()).await;
            stopping.stop();
            background.iter().for_each(JoinHandle::abort);
            let played = source.await.map_err(|e| Error::Internal(format!("the source failed: {e}")))?;
            let saved = blocking(move || slots.save_moved()).await;
            let _ = guard.shutdown().await;
            drop(lock);
            let drained = served?;
            played.and(saved).map(|()| drained)
        });
        tracing::info!(
            %addr, system_id = identity.system_id, timeline = identity.timeline, version = %identity.version,
            oldest = %log.oldest(), end = %log.end().lsn, "primary started"
        );
        Ok(Self { addr, drain, log, summary, task })
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Prints `listening on ADDRESS:PORT` on standard output, for people and for programs that start this one.
    pub fn announce(&self) {
        use std::io::Write;
        let mut out = std::io::stdout().lock();
        // A closed standard output is no reason not to serve.
        let _ = writeln!(out, "listening on {}", self.addr).and_then(|()| out.flush());
    }

    /// Its log: how far it is, and when that moves.
    #[must_use]
    pub fn log(&self) -> &WalLog {
        &self.log
    }

    /// The scenario in numbers so far, and when that moves; none for a directory.
    #[must_use]
    pub fn summary(&self) -> Option<watch::Receiver<RunSummary>> {
        self.summary.clone()
    }

    /// What stops it.
    #[must_use]
    pub fn drain(&self) -> &Drain {
        &self.drain
    }

    /// Stops it: streams get their grace, slots are stored.
    ///
    /// # Errors
    /// What went wrong while it ran or stopped.
    pub async fn shutdown(self) -> Result<Drained> {
        self.drain.start();
        self.joined().await
    }

    /// Waits until it has stopped.
    ///
    /// # Errors
    /// What went wrong while it ran or stopped.
    pub async fn joined(self) -> Result<Drained> {
        self.task.await.map_err(|e| Error::Internal(e.to_string()))?
    }
}

/// What a node has open on the disk.
struct Opened {
    /// Keeps other primaries away from the data directory.
    lock: File,
    /// The log.
    log: WalLog,
    /// The slots.
    slots: Slots,
    /// What writes or follows the log.
    source: sources::Source,
    /// The runs of a log that is for them.
    runs: Option<Runs>,
}

impl Opened {
    /// Opens everything. Blocks on the disk.
    fn open(config: &PrimaryConfig, clock: &Arc<dyn Clock>, drain: &Drain) -> Result<Self> {
        crate::slots::create_private_dir(&config.data_dir)?;
        let lock = lock_data_dir(&config.data_dir)?;
        let (log, source, runs) = sources::open(config, Arc::clone(clock), drain)?;
        let slots = Slots::open(&config.data_dir, &log.identity(), config.max_slots)?;
        source.adopt_consumers(&log, &slots, clock.as_ref())?;
        if log.source() == LogSource::Simulated {
            for name in slots.invalidate_before(log.oldest(), LOST_CAUSE) {
                tracing::warn!(slot = name, "slot is lost: {LOST_CAUSE}");
            }
        }
        // A run that a client asked for has a clock of its own, and what may be lost is of the run that is played.
        let playing = runs.as_ref().and_then(|runs| runs.next(Duration::ZERO));
        check_slots(playing.map_or(config.source.clock, |run| run.wish.clock), &log, &slots)?;
        Ok(Self { lock, log, slots, source, runs })
    }
}

/// A run on a wall clock that goes on writes other times than those that were lost. So if a consumer has confirmed WAL that is no
/// longer there (after a loss of power, without fsync), it must be told, not given other WAL at positions that it has passed.
fn check_slots(clock: ClockMode, log: &WalLog, slots: &Slots) -> Result<()> {
    let end = log.end().lsn;
    let times_repeat = clock == ClockMode::Virtual;
    let table = slots.table();
    match table.furthest_confirmed().filter(|(_, confirmed)| *confirmed > end) {
        Some((name, confirmed)) if log.source() == LogSource::Simulated && !times_repeat => {
            Err(Error::SlotAhead { name: name.to_owned(), confirmed, end })
        }
        _ => Ok(()),
    }
}

/// Makes sure that no other primary uses the data directory (PostgreSQL: `postmaster.pid`). Held until the file is closed, so it
/// cannot outlive a crash.
fn lock_data_dir(dir: &Path) -> Result<File> {
    let path = dir.join("lock");
    let open = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = open.map_err(Error::io("open", &path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(Error::DataDirInUse { dir: dir.to_owned() }),
        Err(std::fs::TryLockError::Error(source)) => Err(Error::Io { action: "lock", path, source }),
    }
}

/// Runs something that blocks on the disk.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    service_kit::blocking::spawn(work).await.map_err(|e| Error::Internal(e.to_string()))?
}

/// While no WAL can be written the primary's service is NOT_SERVING; what is flushed is served nevertheless.
async fn tell_health(log: WalLog, health: Health, drain: Drain) {
    let Some(mut writer) = log.writer() else { return };
    let mut told = true;
    while writer.changed().await.is_ok() {
        let serving = writer.borrow_and_update().fault.is_none();
        if serving != told && !drain.is_draining() {
            health.set(walstorm_proto::service_names::PRIMARY, serving).await;
            told = serving;
        }
    }
}

/// Stores slots whenever one has moved. While one save runs, further moves wait for the next: the disk sets the pace.
async fn save_slots(slots: Slots) {
    loop {
        slots.moved().await;
        let saver = slots.clone();
        if let Err(error) = blocking(move || saver.save_moved()).await {
            tracing::error!(%error, "cannot store slots; trying again");
            tokio::time::sleep(Duration::from_secs(1)).await;
            slots.retry();
        }
    }
}

/// Removes WAL that nobody needs any more, of a log that is ours.
async fn retain(log: WalLog, slots: Slots, runs: Option<Runs>, config: PrimaryConfig) {
    let Some(policy) = config.retention.policy() else { return };
    loop {
        tokio::time::sleep(config.retention.interval).await;
        let (log, slots, runs) = (log.clone(), slots.clone(), runs.clone());
        let removed = blocking(move || {
            let end = log.end().lsn;
            let (removal, lost) =
                slots.plan_removal(log.identity().segment_size, LOST_CAUSE, |oldest| policy.removal(end, oldest));
            for name in lost {
                tracing::warn!(slot = name, "slot is lost: it kept more WAL than retention.slot_keep_bytes_max");
            }
            // A slot that is lost must not look whole after a crash.
            slots.save_moved()?;
            // A run that is played must be there from its beginning on, to be gone on with after a crash.
            let needed = runs.map_or(removal.remove_before, |runs| runs.needs().min(removal.remove_before));
            log.remove_before(needed)
        });
        match removed.await {
            Ok(0) => {}
            Ok(segments) => tracing::debug!(segments, "removed WAL"),
            Err(error) => tracing::error!(%error, "cannot remove WAL"),
        }
    }
}
