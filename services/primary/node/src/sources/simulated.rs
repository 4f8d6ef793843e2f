//! The simulated source: plays a scenario and writes the WAL that a server would have written.
//!
//! Records go through the writer into `wal` below the data directory and are published in groups once they are flushed. A run that
//! a crash cut off is played again from its beginning: the engine is deterministic, so as long as the log has the records already
//! they are only compared, and where it ends writing goes on. So the finished log is the same, byte for byte in virtual time.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pg_types::{Lsn, PgVersion, RecordBody, Timestamp, Xid};
use pg_wal::writer::{LogEnd, WalWriter, WriteError, WriterConfig};
use pg_wal::{WalDir, WalError, WalReader};
use primary_core::{Clock, Engine, Placed, RunSummary, Scenario, SinkError, Step, VirtualClock, WalSink, rng};
use service_kit::Drain;
use tokio::sync::watch;

use crate::config::{ClockMode, SourceConfig};
use crate::error::{Error, Result};
use crate::slots::{Slots, create_private_dir};
use crate::wal_log::{LogSource, WalLog};

/// Longest sleep between two looks at whether the node stops.
const NAP: Duration = Duration::from_millis(50);
/// Steps between two looks at the clock and at whether the node stops.
const STEPS_PER_LOOK: u32 = 64;
/// Seconds from 1970 to 2000.
const POSTGRES_EPOCH_S: u64 = 946_684_800;

/// A scenario that is being played.
pub(crate) struct Player {
    /// The simulated server.
    engine: Engine,
    /// All draws.
    rng: Box<dyn rng::Rng + Send>,
    /// What time it is for the scenario.
    clock: PlayerClock,
    /// The log.
    sink: LogSink,
    /// Settings.
    config: SourceConfig,
    /// Tells how far the run is.
    summary: watch::Sender<RunSummary>,
}

/// Opens the log of a scenario below `data_dir` and plays the first step, so that there is WAL to serve. No player if the log can
/// only be served: its beginning is no longer kept. Blocks on the disk.
///
/// # Errors
/// The scenario is wrong, or the log is of another run.
pub(super) fn open(data_dir: &Path, name: &str, config: &SourceConfig) -> Result<(WalLog, Option<Player>)> {
    let scenario = load(name)?;
    let seed = config.seed.unwrap_or_else(|| scenario.seed());
    let plan = scenario.plan(&config.parameters).map_err(scenario_error)?;
    let version = version(config.pg_version)?;
    let dir = data_dir.join("wal");
    create_private_dir(&dir)?;
    let system_id = config.system_id.unwrap_or_else(|| derived_system_id(scenario.name(), seed));
    let base = WriterConfig { version, sync: config.fsync, ..WriterConfig::new(system_id) };
    let sink = match LogSink::open(dir.clone(), base.with_segment_size(config.segment_bytes))? {
        Some(sink) => sink,
        None => {
            tracing::warn!(dir = %dir.display(), "the beginning of this run is no longer kept: serving what is there");
            return Ok((WalLog::open(&dir, None, LogSource::Simulated, true)?, None));
        }
    };
    let engine = Engine::new(plan, version).map_err(scenario_error)?;
    let (summary, _) = watch::channel(RunSummary::default());
    let clock = PlayerClock::new(config.clock);
    let rng = Box::new(rng::seeded(seed));
    let mut player = Player { engine, rng, clock, sink, config: config.clone(), summary };
    player.step()?;
    player.sink.flush()?;
    let log = WalLog::open(&dir, None, LogSource::Simulated, false)?;
    Ok((log, Some(player)))
}

/// A shipped scenario by name, or one from a file.
fn load(name: &str) -> Result<Scenario> {
    if Scenario::names().any(|shipped| shipped == name) {
        return Scenario::load(name).map_err(scenario_error);
    }
    let path = Path::new(name);
    match service_kit::config::read_text(path) {
        Ok(text) => Scenario::parse(name, &text).map_err(scenario_error),
        Err(error) => {
            let shipped: Vec<&str> = Scenario::names().collect();
            let shipped = shipped.join(", ");
            Err(Error::Scenario(format!("'{name}' is no file that can be read ({error}) and none of: {shipped}")))
        }
    }
}

/// The version whose format is written.
fn version(major: u32) -> Result<PgVersion> {
    let found = PgVersion::ALL.into_iter().find(|version| version.major() == major);
    found.ok_or_else(|| Error::Config(format!("source.pg_version is {major}, and must be 13 to 18")))
}

/// A system identifier that is the same in every run of a scenario and seed, so that trace ids are, too.
fn derived_system_id(name: &str, seed: u64) -> u64 {
    // FNV-1a; never 0, which would be no identifier.
    let bytes = name.bytes().chain(seed.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)) | 1
}

/// An error of the scenario or its engine.
fn scenario_error(error: impl std::error::Error) -> Error {
    Error::Scenario(error.to_string())
}

impl Player {
    /// Tells how far the run is.
    pub(crate) fn summary(&self) -> watch::Receiver<RunSummary> {
        self.summary.subscribe()
    }

    /// Plays to the end, or until the node stops. Blocks.
    ///
    /// # Errors
    /// The log cannot be written, or the scenario cannot go on.
    pub(crate) fn play(mut self, log: &WalLog, slots: &Slots, drain: &Drain) -> Result<()> {
        let mut flushed_at = Instant::now();
        let mut done = false;
        while !done && !drain.is_draining() {
            let waited = self.wait_until_due(log, drain)?;
            for _ in 0..STEPS_PER_LOOK {
                done = self.step()?;
                let due = self.engine.next_due().is_some_and(|due| self.clock.is_due(due));
                if done || !due || self.sink.unflushed() >= self.config.flush_bytes {
                    break;
                }
            }
            let timely = self.config.clock != ClockMode::Virtual && flushed_at.elapsed() >= self.config.flush_interval;
            if waited || timely || self.sink.unflushed() >= self.config.flush_bytes {
                self.publish(log)?;
                flushed_at = Instant::now();
                self.wait_for_consumers(log, slots, drain);
            }
        }
        self.publish(log)?;
        if done {
            log.close();
            tracing::info!(end = %log.end().lsn, "the scenario is over");
        }
        Ok(())
    }

    /// One step; true if it was the last.
    fn step(&mut self) -> Result<bool> {
        let step = self.engine.step(&mut self.clock, self.rng.as_mut(), &mut self.sink).map_err(scenario_error)?;
        Ok(step == Step::Done)
    }

    /// Flushes what was written, and tells everybody.
    fn publish(&mut self, log: &WalLog) -> Result<()> {
        if let Some(end) = self.sink.flush()? {
            log.publish(end);
        }
        self.summary.send_replace(self.engine.summary().clone());
        Ok(())
    }

    /// On a real clock, waits for the next step; publishes first, so that nobody waits with us. True if it waited.
    fn wait_until_due(&mut self, log: &WalLog, drain: &Drain) -> Result<bool> {
        let Some(due) = self.engine.next_due() else { return Ok(false) };
        if self.sink.is_replaying() {
            self.clock.skip_to(due);
        }
        if self.clock.is_due(due) {
            return Ok(false);
        }
        self.publish(log)?;
        while !self.clock.is_due(due) && !drain.is_draining() {
            std::thread::sleep(self.clock.until(due).min(NAP));
        }
        Ok(true)
    }

    /// Does not run ahead of the slots by more than is configured.
    fn wait_for_consumers(&self, log: &WalLog, slots: &Slots, drain: &Drain) {
        let Some(ahead_max) = self.config.ahead_bytes_max else { return };
        let behind = || slots.table().oldest_saved().map_or(0, |slot| log.end().lsn.0.saturating_sub(slot.0));
        while behind() > ahead_max && !drain.is_draining() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// What time it is for a scenario.
enum PlayerClock {
    /// Simulated.
    Virtual(VirtualClock),
    /// The wall clock; steps wait for it.
    Real {
        /// How far a run that was cut off and goes on is ahead of the wall clock, in microseconds.
        ahead_us: i64,
    },
    /// The wall clock; steps do not wait.
    Max,
}

impl PlayerClock {
    /// For a mode.
    fn new(mode: ClockMode) -> Self {
        match mode {
            ClockMode::Virtual => Self::Virtual(VirtualClock::default()),
            ClockMode::Real => Self::Real { ahead_us: 0 },
            ClockMode::Max => Self::Max,
        }
    }

    /// Whether what is due then may run.
    fn is_due(&self, due: Timestamp) -> bool {
        !matches!(self, Self::Real { .. }) || due <= self.now()
    }

    /// Makes `due` due, without waiting.
    fn skip_to(&mut self, due: Timestamp) {
        let missing = due.0.saturating_sub(self.now().0);
        if let Self::Real { ahead_us } = self {
            *ahead_us = ahead_us.saturating_add(missing.max(0));
        }
    }

    /// How long to wait for it.
    fn until(&self, due: Timestamp) -> Duration {
        Duration::from_micros(u64::try_from(due.0.saturating_sub(self.now().0)).unwrap_or(0))
    }
}

/// The time of the system.
fn wall_clock() -> Timestamp {
    let epoch = UNIX_EPOCH + Duration::from_secs(POSTGRES_EPOCH_S);
    let since = SystemTime::now().duration_since(epoch).unwrap_or_default();
    Timestamp(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
}

impl Clock for PlayerClock {
    fn now(&self) -> Timestamp {
        match self {
            Self::Virtual(clock) => clock.now(),
            Self::Real { ahead_us } => Timestamp(wall_clock().0.saturating_add(*ahead_us)),
            Self::Max => wall_clock(),
        }
    }

    fn advance_to(&mut self, due: Timestamp) {
        if let Self::Virtual(clock) = self {
            clock.advance_to(due);
        }
    }
}

/// The log as the engine's sink: first what is there already, then the writer.
struct LogSink {
    /// Where the segments are.
    dir: PathBuf,
    /// What the log says of itself.
    config: WriterConfig,
    /// What is there, as long as there is more of it.
    existing: Option<Existing>,
    /// Writes behind it.
    writer: Option<WalWriter>,
}

/// The records of a log that was begun earlier.
struct Existing {
    /// Reads them.
    reader: WalReader,
    /// Start of the last one that was read.
    prev: Lsn,
    /// Where the next one starts, once it was asked for.
    next: Option<NextRecord>,
}

/// What is known of a record that was read ahead.
#[derive(Clone, Copy)]
struct NextRecord {
    /// Where it lies.
    placed: Placed,
    /// Who wrote it.
    xid: Xid,
}

impl LogSink {
    /// Opens the log in `dir`, or begins one. None if the log's beginning is no longer there.
    fn open(dir: PathBuf, config: WriterConfig) -> Result<Option<Self>> {
        let wal = match WalDir::open(&dir, None) {
            Ok(wal) => wal,
            Err(WalError::NoSegments { .. }) => {
                let writer = Some(WalWriter::create(&dir, config).map_err(write_error)?);
                return Ok(Some(Self { dir, config, existing: None, writer }));
            }
            Err(error) => return Err(crate::wal_log::directory_error(&dir, error)),
        };
        let found = wal.identity();
        let same =
            found.system_id == config.system_id && (found.version, found.segment_size) == (config.version, config.segment_size);
        if !same {
            let reason = "it holds the WAL of another run (scenario, seed, version or segment size differ): use another data \
                          directory, or remove it"
                .to_owned();
            return Err(Error::WalDirectory { dir, reason });
        }
        if wal.first() > config.start {
            return Ok(None);
        }
        let reader = WalReader::open(&wal, None).map_err(|e| crate::wal_log::directory_error(&dir, e))?;
        let existing = Some(Existing { reader, prev: Lsn::INVALID, next: None });
        let mut this = Self { dir, config, existing, writer: None };
        this.next_existing().map_err(|e| Error::Scenario(e.to_string()))?;
        Ok(Some(this))
    }

    /// Whether records are still only compared.
    fn is_replaying(&self) -> bool {
        self.existing.is_some()
    }

    /// Bytes that were appended and not flushed.
    fn unflushed(&self) -> u64 {
        self.writer.as_ref().map_or(0, |w| w.end_lsn().0 - w.flushed_lsn().0)
    }

    /// Flushes; where the flushed log ends, if anything was written here.
    fn flush(&mut self) -> Result<Option<Lsn>> {
        self.writer.as_mut().map(|w| w.flush().map_err(write_error)).transpose()
    }

    /// The next record that is there already; at their end the writer takes over.
    fn next_existing(&mut self) -> Result<Option<NextRecord>, SinkError> {
        let Some(existing) = &mut self.existing else { return Ok(None) };
        if existing.next.is_none() {
            existing.next = existing
                .reader
                .next()?
                .map(|record| NextRecord { placed: Placed { start: record.lsn, end: record.end_lsn }, xid: record.header.xid });
        }
        if existing.next.is_none() {
            let at = LogEnd { end: existing.reader.position(), prev: existing.prev };
            self.take_over(at)?;
        }
        Ok(self.existing.as_ref().and_then(|e| e.next))
    }

    /// Goes on behind what is there. Segments that a crash left behind the end hold nothing.
    fn take_over(&mut self, at: LogEnd) -> Result<(), SinkError> {
        let wal = WalDir::open(&self.dir, None)?;
        for (_, segment) in wal.segments().filter(|(start, _)| *start >= at.end) {
            std::fs::remove_file(&segment.path)?;
        }
        tracing::info!(at = %at.end, "the run goes on where it stopped");
        self.existing = None;
        self.writer = Some(WalWriter::resume(&self.dir, self.config, at)?);
        Ok(())
    }

    /// The writer, which there is whenever nothing is left to compare.
    fn writer(&mut self) -> Result<&mut WalWriter, SinkError> {
        self.writer.as_mut().ok_or_else(|| "the log is not open for writing".into())
    }
}

impl WalSink for LogSink {
    fn version(&self) -> PgVersion {
        self.config.version
    }

    fn next_lsn(&self) -> Lsn {
        let existing = self.existing.as_ref().and_then(|e| e.next).map(|next| next.placed.start);
        existing.or(self.writer.as_ref().map(WalWriter::next_lsn)).unwrap_or_default()
    }

    fn append(&mut self, xid: Xid, top_xid: Xid, origin: u16, body: &RecordBody) -> Result<Placed, SinkError> {
        let Some(next) = self.next_existing()? else {
            let (start, end) = self.writer()?.append(xid, top_xid, origin, body)?;
            return Ok(Placed { start, end });
        };
        if next.xid != xid {
            return Err(format!(
                "the log in {} has a record of transaction {} at {} where this run has one of {xid}: it is of another run, so use \
                 another data directory",
                self.dir.display(),
                next.xid,
                next.placed.start
            )
            .into());
        }
        if let Some(existing) = &mut self.existing {
            (existing.prev, existing.next) = (next.placed.start, None);
        }
        // The next one is looked up at once, so that its place can be told.
        self.next_existing()?;
        Ok(next.placed)
    }
}

/// An error of the writer.
fn write_error(error: WriteError) -> Error {
    match error {
        WriteError::Io { action, path, source } => Error::Io { action, path, source },
        error => Error::Scenario(error.to_string()),
    }
}
