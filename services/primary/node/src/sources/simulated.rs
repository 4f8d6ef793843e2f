//! The simulated source: plays a scenario and writes the WAL that a server would have written.
//!
//! Records go through the writer into `wal` below the data directory and are published in groups once they are flushed. A run that
//! was cut off is played again from its beginning, as `log_sink.rs` says, so the finished log is the same, byte for byte in virtual
//! time.

use std::path::Path;
use std::sync::Arc;

use pg_types::PgVersion;
use pg_wal::writer::WriterConfig;
use primary_core::{Engine, PrimaryError, RunSummary, Scenario};
use service_kit::{Clock, Drain};
use tokio::sync::watch;

use super::log_sink::LogSink;
use super::player::{Conductor, EarlyEnd, Played, Player, Stage};
use super::player_clock::PlayerClock;
use crate::config::SourceConfig;
use crate::error::{Error, Result};
use crate::slots::{Slots, create_private_dir};
use crate::wal_log::{LogSource, WalLog};

/// Opens the log of a scenario below `data_dir` and plays the first step, so that there is WAL to serve. Blocks on the disk.
///
/// # Errors
/// The scenario is wrong, or the log is of another run.
pub(super) fn open(data_dir: &Path, name: &str, config: &SourceConfig, clock: Arc<dyn Clock>) -> Result<(WalLog, Simulated)> {
    let scenario = load(name)?;
    let seed = config.seed.unwrap_or_else(|| scenario.seed());
    let plan = scenario.plan(&config.parameters).map_err(scenario_error)?;
    let version = version(config.pg_version)?;
    let dir = data_dir.join("wal");
    create_private_dir(&dir)?;
    let system_id = config.system_id.unwrap_or_else(|| derived_system_id(scenario.name(), seed));
    let base = WriterConfig { version, sync: config.wal_sync(), ..WriterConfig::new(system_id) };
    let sink = LogSink::open(dir.clone(), base.with_segment_size(config.segment_bytes))?;
    let writer = sink.state();
    let engine = Engine::new(plan, version).map_err(scenario_error)?;
    let mut player = Player::new(engine, seed, sink, config, PlayerClock::new(config.clock, clock));
    player.begin()?;
    let log = WalLog::open(&dir, None, LogSource::Simulated, false)?.with_writer(writer);
    Ok((log, Simulated { player, summary: watch::channel(RunSummary::default()).0 }))
}

/// The scenario of the configuration while it is played.
pub(crate) struct Simulated {
    /// Plays it.
    player: Player,
    /// Tells how far it is.
    summary: watch::Sender<RunSummary>,
}

impl Simulated {
    /// Tells how far it is.
    pub(crate) fn summary(&self) -> watch::Receiver<RunSummary> {
        self.summary.subscribe()
    }

    /// Makes the slots of its consumers, or finds them. Blocks on the disk.
    ///
    /// # Errors
    /// As [`Player::adopt_consumers`].
    pub(crate) fn adopt_consumers(&self, log: &WalLog, slots: &Slots, clock: &dyn Clock) -> Result<()> {
        self.player.adopt_consumers(&log.identity(), slots, clock)
    }

    /// Plays to the end, or until the node stops. Blocks.
    ///
    /// # Errors
    /// The log cannot be written, the scenario cannot go on, or slots that it waits for do not come.
    pub(crate) fn play(mut self, log: &WalLog, slots: &Slots, drain: &Drain) -> Result<()> {
        let stage = Stage { log, slots, drain };
        self.player.wait_for_slots(stage)?;
        let played = self.player.play(stage, &mut Teller(&self.summary))?;
        if played != Played::Stopped {
            self.player.sink().finish()?;
            slots.release_consumers();
            log.close();
            tracing::info!(end = %log.end().lsn, "the scenario is over");
        }
        Ok(())
    }
}

/// A conductor that only tells how far it is.
struct Teller<'a>(&'a watch::Sender<RunSummary>);

impl Conductor for Teller<'_> {
    fn ends_before(&mut self, _: u64, _: bool, _: &RunSummary) -> Result<Option<EarlyEnd>> {
        Ok(None)
    }

    fn is_hurried(&self) -> bool {
        false
    }

    fn refused(&mut self, error: PrimaryError) -> Result<EarlyEnd> {
        Err(scenario_error(error))
    }

    fn published(&mut self, _: bool, summary: &RunSummary) {
        self.0.send_replace(summary.clone());
    }
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
pub(super) fn version(major: u32) -> Result<PgVersion> {
    let found = PgVersion::ALL.into_iter().find(|version| version.major() == major);
    found.ok_or_else(|| Error::Config(format!("source.pg_version is {major}, and must be 13 to 18")))
}

/// A system identifier that is the same in every run of a scenario and seed, so that trace ids are, too.
pub(super) fn derived_system_id(name: &str, seed: u64) -> u64 {
    // FNV-1a; never 0, which would be no identifier.
    let bytes = name.bytes().chain(seed.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)) | 1
}

/// An error of the scenario or its engine.
pub(super) fn scenario_error(error: impl std::error::Error) -> Error {
    Error::Scenario(error.to_string())
}
