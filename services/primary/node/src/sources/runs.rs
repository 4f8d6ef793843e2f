//! The source that waits for runs: a log that begins with a checkpoint of an idle server, and what clients ask to be played behind
//! it.
//!
//! Each point of a run is an engine of its own that goes on in the log where the one before it ended. Where it begins is on disk
//! before its first record is (`runs` I1): after a crash it is played again from there and compared, as a scenario of the
//! configuration is, and where the log ends writing goes on.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use pg_types::PgVersion;
use pg_wal::writer::{LogEnd, WriterConfig};
use primary_core::scenario::{Counter, CounterSource};
use primary_core::{Engine, Overrides, PrimaryError, RunSummary, Scenario, VirtualClock, rng};
use service_kit::{Clock, Drain};

use super::log_sink::LogSink;
use super::player::{Conductor, EarlyEnd, Played, Player, Stage};
use super::player_clock::PlayerClock;
use super::simulated::{derived_system_id, scenario_error, version};
use crate::config::{PrimaryConfig, SourceConfig};
use crate::error::{Error, Result};
use crate::runs::{Bounds, Counts, FindingKind, LogPlace, PointFile, RunFile, RunPhase, Runs, Setting, Snapshot};
use crate::slots::{ConsumerRun, Slots, create_private_dir};
use crate::wal_log::{LogSource, WalLog};

/// Longest wait for a run between two looks at whether the node stops.
const NAP: Duration = Duration::from_millis(50);
/// Name of the idle server's scenario; it makes the log's system identifier.
const IDLE_NAME: &str = "idle";
/// A scenario in which nobody does anything: what a log begins with.
const IDLE: &str = "name = \"idle\"\nstory = \"A server that waits for runs.\"\nseed = 0\nactors = []\n";

/// Waits for runs and plays them.
pub(crate) struct RunsSource {
    /// The runs.
    runs: Runs,
    /// The log; none while a player has it.
    sink: Option<LogSink>,
    /// Where the log goes on.
    place: LogPlace,
    /// Settings.
    config: SourceConfig,
    /// The log's version.
    version: PgVersion,
    /// What time it is.
    clock: Arc<dyn Clock>,
    /// Number of a run that was begun by an earlier process.
    inherited: Option<u64>,
}

/// Opens the log for runs below the data directory, or begins one. Blocks on the disk.
///
/// # Errors
/// The log or a run's file is damaged or of another log.
pub(super) fn open(config: &PrimaryConfig, clock: Arc<dyn Clock>) -> Result<(WalLog, Runs, RunsSource)> {
    let source = &config.source;
    let version = version(source.pg_version)?;
    let dir = config.data_dir.join("wal");
    create_private_dir(&dir)?;
    let system_id = source.system_id.unwrap_or_else(|| derived_system_id(IDLE_NAME, source.seed.unwrap_or(0)));
    let base = WriterConfig { version, sync: source.wal_sync(), ..WriterConfig::new(system_id) };
    let writer = base.with_segment_size(source.segment_bytes);
    let runs = Runs::open(&config.data_dir, system_id, config.runs.clone())?;
    let active = runs.next(Duration::ZERO);
    let begun = active.as_ref().and_then(|run| run.points.last()).map(|point| point.end.unwrap_or(point.begin));
    let (sink, place) = match begun.or_else(|| runs.log_end()) {
        Some(place) => (LogSink::open_behind(dir.clone(), writer, LogEnd { end: place.lsn, prev: place.prev })?, place),
        None => begin(dir.clone(), writer)?,
    };
    if sink.is_replaying() && begun.is_none() {
        let reason =
            "it goes on behind the last run that is known: files of runs were removed; use another data directory".to_owned();
        return Err(Error::WalDirectory { dir, reason });
    }
    let log = WalLog::open(&dir, None, LogSource::Simulated, false)?.with_writer(sink.state());
    let inherited = active.map(|run| run.id);
    let source = RunsSource { runs: runs.clone(), sink: Some(sink), place, config: source.clone(), version, clock, inherited };
    Ok((log, runs, source))
}

/// Begins a log with what a server writes at its start; what is there of it already is only compared.
fn begin(dir: PathBuf, writer: WriterConfig) -> Result<(LogSink, LogPlace)> {
    let version = writer.version;
    let mut sink = LogSink::open(dir, writer)?;
    let plan = Scenario::parse(IDLE_NAME, IDLE).and_then(|idle| idle.plan(&Overrides::new())).map_err(scenario_error)?;
    let mut engine = Engine::new(plan, version).map_err(scenario_error)?;
    let mut clock = VirtualClock::default();
    engine.step(&mut clock, &mut rng::seeded(0), &mut sink).map_err(scenario_error)?;
    sink.flush()?;
    let place = place(&engine, &sink, VirtualClock::EPOCH.0);
    Ok((sink, place))
}

/// Where the log goes on behind an engine.
fn place(engine: &Engine, sink: &LogSink, time_us: i64) -> LogPlace {
    let continuation = engine.continuation();
    LogPlace {
        lsn: engine.summary().end_lsn,
        prev: sink.last(),
        next_xid: continuation.next_xid.0,
        next_oid: continuation.next_oid.0,
        time_us,
    }
}

impl RunsSource {
    /// Plays runs as they come, until the node stops. Blocks.
    ///
    /// # Errors
    /// The log or a run's file cannot be written.
    pub(crate) fn play(mut self, log: &WalLog, slots: &Slots, drain: &Drain) -> Result<()> {
        let stage = Stage { log, slots, drain };
        if self.inherited.is_none() {
            // A crash between a run's end and that of its slots.
            slots.drop_consumers()?;
        }
        while !drain.is_draining() {
            let Some(run) = self.runs.next(NAP) else { continue };
            if self.inherited.take() == Some(run.id) && !run.points.is_empty() {
                let text = "the primary was stopped, and the run went on from its log".to_owned();
                let lsn = log.end().lsn;
                self.runs.change(run.id, |run| run.find(FindingKind::Resumed, text, lsn))?;
            }
            self.play_run(&run, stage)?;
        }
        Ok(())
    }

    /// Plays a run, from the point where it is, to its end or until the node stops.
    fn play_run(&mut self, run: &Snapshot, stage: Stage<'_>) -> Result<()> {
        tracing::info!(run = run.id, scenario = run.scenario, seed = run.seed, "playing");
        let text = self.runs.text(run.id)?;
        let ended = run.points.iter().filter(|point| point.end.is_some()).count();
        for (index, setting) in run.sweep.iter().enumerate().skip(ended) {
            if run.points.len() <= index {
                let point = PointFile { setting: setting.clone(), begin: self.place, counts: Counts::default(), end: None };
                self.runs.change(run.id, |run| run.points.push(point))?;
            }
            let last = index + 1 == run.sweep.len();
            let engine = self.engine(run, &text, setting).map_err(|error| error.to_string());
            let ready = engine.and_then(|engine| self.adopt_consumers(&engine, stage).map(|()| engine));
            let goes_on = match ready {
                Ok(engine) => self.play_point(run, engine, setting.seed, last, stage)?,
                Err(why) => self.end(run, EarlyEnd::Failed(why)).map(|()| false)?,
            };
            if !goes_on {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The engine of a point.
    fn engine(&self, run: &Snapshot, text: &str, setting: &Setting) -> Result<Engine, PrimaryError> {
        let scenario = Scenario::parse(&run.scenario, text)?;
        let asked = run.wish.parameters.iter().map(|(name, value)| (name.clone(), value.as_str().into()));
        let parameters: Overrides = asked.chain(setting.parameters.clone()).collect();
        Engine::continuing(scenario.plan(&parameters)?, self.version, self.place.continuation())
    }

    /// Makes the slots of a point's consumers, or finds those that it had before a restart; else why it cannot be played.
    fn adopt_consumers(&self, engine: &Engine, stage: Stage<'_>) -> Result<(), String> {
        let run = ConsumerRun { identity: stage.log.identity(), start: self.place.lsn, now_ms: self.now_ms() };
        stage.slots.adopt_consumers(run, &engine.plan().consumers).map_err(|error| error.to_string())
    }

    /// Plays a point; false if the run does not go on behind it.
    fn play_point(&mut self, run: &Snapshot, engine: Engine, seed: u64, last: bool, stage: Stage<'_>) -> Result<bool> {
        let sink = self.sink.take().ok_or_else(|| Error::Internal("the log is not open for writing".to_owned()))?;
        let config = SourceConfig { clock: run.wish.clock, ..self.config.clone() };
        let clock = PlayerClock::following(config.clock, Arc::clone(&self.clock), self.place.time());
        let mut player = Player::new(engine, seed, sink, &config, clock);
        player.limit_rate(run.wish.max_txn_rate);
        let mut conductor = RunConductor::new(&self.runs, run)?;
        let played = player.play(stage, &mut conductor)?;
        if played == Played::Stopped {
            return Ok(false);
        }
        stage.slots.drop_consumers()?;
        let counts = Counts::of(player.engine().summary());
        let place = place(player.engine(), player.sink(), player.now().0.max(self.place.time_us));
        let (why, expected) = match played {
            Played::Early(why) => (Some(why), Vec::new()),
            _ => (None, expectations(player.engine(), self.version)),
        };
        self.place = place;
        self.sink = Some(player.into_sink());
        let goes_on = why.is_none() && !last;
        let ended_at_ms = (!goes_on).then(|| self.now_ms());
        self.runs.change(run.id, |run| {
            if let Some(point) = run.points.last_mut() {
                (point.counts, point.end) = (counts, Some(place));
            }
            expected.into_iter().for_each(|(kind, text)| run.find(kind, text, place.lsn));
            if !goes_on {
                run.end_with(why, place.lsn);
                run.ended_at_ms = ended_at_ms;
            }
        })?;
        Ok(goes_on)
    }

    /// Ends a run whose next point wrote nothing.
    fn end(&mut self, run: &Snapshot, why: EarlyEnd) -> Result<()> {
        let (place, ended_at_ms) = (self.place, self.now_ms());
        self.runs.change(run.id, |run| {
            if let Some(point) = run.points.last_mut() {
                point.end = Some(place);
            }
            run.end_with(Some(why), place.lsn);
            run.ended_at_ms = Some(ended_at_ms);
        })?;
        Ok(())
    }

    /// Milliseconds since 1970.
    fn now_ms(&self) -> u64 {
        self.clock.now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
    }
}

/// What the scenario expects of the primary, and whether it came out. What it expects of a decoder or a standby is for those who
/// have one.
fn expectations(engine: &Engine, version: PgVersion) -> Vec<(FindingKind, String)> {
    let version = u64::from(version.major());
    let about = engine.plan().expect.iter().filter(|expectation| expectation.is_about(version));
    let ours = about.filter(|e| e.counters().iter().all(|counter| counter.source() == CounterSource::Primary));
    let judged = ours.map(|expectation| {
        let mut value = |counter: &Counter| engine.tally(counter.of.as_deref())?.get(&counter.name).map(|count| count as f64);
        match expectation.evaluate(version, &mut value) {
            Ok(verdict) => {
                let kind = if verdict.holds { FindingKind::ExpectationHeld } else { FindingKind::ExpectationFailed };
                (kind, format!("{}: {} and {}", expectation.text, verdict.left, verdict.right))
            }
            Err(counter) => {
                let text = format!("{}: the primary does not count '{}'", expectation.text, counter.name);
                (FindingKind::ExpectationFailed, text)
            }
        }
    });
    judged.collect()
}

impl RunFile {
    /// It ends: whole, or early for a reason.
    fn end_with(&mut self, why: Option<EarlyEnd>, lsn: pg_types::Lsn) {
        let (phase, found) = match why {
            None => (RunPhase::Succeeded, None),
            Some(EarlyEnd::Cancelled) => (RunPhase::Cancelled, Some((FindingKind::Cancelled, "it was cancelled".to_owned()))),
            Some(EarlyEnd::Limit(text)) => (RunPhase::Failed, Some((FindingKind::LimitReached, text))),
            Some(EarlyEnd::Failed(text)) => (RunPhase::Failed, Some((FindingKind::ScenarioFailed, text))),
        };
        self.phase = phase;
        if let Some((kind, text)) = found {
            self.error.clone_from(&text);
            self.find(kind, text, lsn);
        }
    }
}

/// Ends a run early if a client or a limit says so, and tells how far it is.
struct RunConductor<'a> {
    /// The runs.
    runs: &'a Runs,
    /// The run.
    id: u64,
    /// How it changes.
    state: tokio::sync::watch::Receiver<Snapshot>,
    /// Limits that were in force when it was accepted.
    bounds: Bounds,
    /// What its earlier points wrote.
    before: Counts,
    /// The step before which it was ended, when it was played the first time.
    ended_before: Option<u64>,
    /// A client wants it to end.
    hurried: bool,
}

impl<'a> RunConductor<'a> {
    /// For the last point of a run.
    fn new(runs: &'a Runs, run: &Snapshot) -> Result<Self> {
        let state = runs.watch(run.id)?;
        let (bounds, before, ended_before, hurried) = {
            let now = state.borrow();
            let ended = now.points.iter().filter(|point| point.end.is_some());
            let before = ended.fold(Counts::default(), |sum, point| sum.plus(point.counts));
            (now.bounds, before, now.cancel_at_step, now.cancel_requested)
        };
        Ok(Self { runs, id: run.id, state, bounds, before, ended_before, hurried })
    }

    /// The limit that the run has reached. It follows from what was played, so it is the same when it is played again.
    fn limit(&self, summary: &RunSummary) -> Option<String> {
        let bounds = self.bounds;
        let all = self.before.plus(Counts::of(summary));
        let over = |what: &str, key: &str, is: u64, max: u64| (is > max).then(|| format!("{is} {what}: {key} is {max}"));
        over("microseconds of simulated time", "runs.duration_max", summary.simulated_us, bounds.duration_us)
            .or_else(|| over("bytes of WAL", "runs.wal_bytes_max", all.wal_bytes, bounds.wal_bytes))
            .or_else(|| over("invalidation messages", "runs.messages_max", all.messages, bounds.messages))
    }
}

impl Conductor for RunConductor<'_> {
    fn ends_before(&mut self, step: u64, live: bool, summary: &RunSummary) -> Result<Option<EarlyEnd>> {
        if let Some(text) = self.limit(summary) {
            return Ok(Some(EarlyEnd::Limit(text)));
        }
        if let Some(at) = self.ended_before {
            return Ok((step >= at).then_some(EarlyEnd::Cancelled));
        }
        if !live || step == 0 || !self.is_hurried() {
            return Ok(None);
        }
        // On disk before the log shows it (`runs` I4).
        self.runs.change(self.id, |run| run.cancel_at_step = Some(step))?;
        Ok(Some(EarlyEnd::Cancelled))
    }

    fn is_hurried(&self) -> bool {
        self.hurried || self.state.borrow().cancel_requested
    }

    fn refused(&mut self, error: PrimaryError) -> Result<EarlyEnd> {
        match error {
            PrimaryError::Sink(_) => Err(scenario_error(error)),
            error => Ok(EarlyEnd::Failed(error.to_string())),
        }
    }

    fn published(&mut self, live: bool, summary: &RunSummary) {
        if live {
            self.runs.progress(self.id, Counts::of(summary));
        }
    }
}
