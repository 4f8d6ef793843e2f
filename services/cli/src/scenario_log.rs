//! A scenario played into a directory of WAL that is deleted afterwards.

use std::path::Path;

use anyhow::Context;
use decoder_core::{Profile, RegisteredCallbacks};
use decoder_node::ScenarioDecoder;
use pg_types::{Lsn, PgVersion, RecordBody, Xid};
use pg_wal::writer::{LogEnd, RecordPlacer, WalWriter, WriterConfig};
use primary_core::rng::seeded;
use primary_core::{Engine, Overrides, Placed, Scenario, SinkError, Step, VirtualClock, WalSink};
use tempfile::TempDir;

/// The directory, and the engine that filled it.
#[derive(Debug)]
pub struct ScenarioLog {
    /// Deleted when this goes.
    folder: TempDir,
    /// At the end of the scenario.
    engine: Engine,
}

/// The scenario that `source` is a file of or the name of; [`None`] if `source` is a file of something else.
///
/// # Errors
/// There is no such scenario, or it is wrong.
pub fn scenario_of(source: &str) -> anyhow::Result<Option<Scenario>> {
    let path = Path::new(source);
    if !path.is_file() {
        return Ok(Some(Scenario::load(source).with_context(|| format!("{} is no file", source.escape_debug()))?));
    }
    if path.extension().is_none_or(|extension| extension != "toml") {
        return Ok(None);
    }
    let text = service_kit::config::read_text(path).with_context(|| format!("read {source}"))?;
    Ok(Some(Scenario::parse(source, &text)?))
}

impl ScenarioLog {
    /// Plays the scenario that `source` is a file of or the name of; [`None`] if `source` is a file of WAL. All `profiles` decode this one
    /// log, so that what they give out can be compared: it is that of the newest of them, or of the one.
    ///
    /// # Errors
    /// There is no such scenario, or it cannot be played or written.
    pub fn of(source: &str, seed: Option<u64>, profiles: &[Profile]) -> anyhow::Result<Option<ScenarioLog>> {
        let Some(scenario) = scenario_of(source)? else { return Ok(None) };
        let seed = seed.unwrap_or(scenario.seed());
        let newest = profiles.iter().map(|profile| profile.wal_version).max();
        ScenarioLog::play(&scenario, &Overrides::new(), seed, newest.unwrap_or(WriterConfig::new(1).version)).map(Some)
    }

    /// Plays a scenario with these parameters into WAL of this version.
    ///
    /// # Errors
    /// It cannot be played or written.
    pub fn play(scenario: &Scenario, overrides: &Overrides, seed: u64, version: PgVersion) -> anyhow::Result<ScenarioLog> {
        let folder = tempfile::tempdir().context("make a directory for the scenario's WAL")?;
        let config = WriterConfig { version, ..WriterConfig::new(1) };
        let mut log = Log(WalWriter::create(folder.path(), config)?);
        let mut engine = Engine::new(scenario.plan(overrides)?, version)?;
        play_to_end(&mut engine, seed, &mut log)?;
        log.0.switch()?;
        log.0.finish()?;
        Ok(ScenarioLog { folder, engine })
    }

    /// Where it is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// The engine that played it.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// How a decoder that plays it is set up.
    #[must_use]
    pub fn decoder(&self) -> ScenarioDecoder {
        self.engine.plan().decoder.into()
    }

    /// What it has registered.
    #[must_use]
    pub fn callbacks(&self) -> RegisteredCallbacks {
        self.decoder().callbacks
    }
}

/// Everything that the engine has to do, in virtual time.
fn play_to_end(engine: &mut Engine, seed: u64, sink: &mut dyn WalSink) -> anyhow::Result<()> {
    let (mut clock, mut rng) = (VirtualClock::default(), seeded(seed));
    while engine.step(&mut clock, &mut rng, sink)? != Step::Done {}
    Ok(())
}

/// Plays a scenario as a primary with segments of this size does in virtual time, but writes nothing: the engine knows then what is made
/// on the way.
///
/// # Errors
/// It cannot be played.
pub fn rehearse(engine: &mut Engine, seed: u64, version: PgVersion, segment_bytes: u32) -> anyhow::Result<()> {
    let start = WriterConfig { version, ..WriterConfig::new(1) }.with_segment_size(segment_bytes).start;
    let at = LogEnd { end: start, prev: Lsn::INVALID };
    let mut places = Places { version, placer: RecordPlacer::new(version, segment_bytes, at) };
    play_to_end(engine, seed, &mut places)
}

/// Gives records their places in the log, and forgets them.
struct Places {
    /// Format of the log.
    version: PgVersion,
    /// Knows where the next one comes.
    placer: RecordPlacer,
}

impl WalSink for Places {
    fn version(&self) -> PgVersion {
        self.version
    }

    fn next_lsn(&self) -> Lsn {
        self.placer.next_lsn()
    }

    fn append(&mut self, xid: Xid, top_xid: Xid, origin: u16, body: &RecordBody) -> Result<Placed, SinkError> {
        let placed = self.placer.place(xid, top_xid, origin, body)?;
        Ok(Placed { start: placed.start, end: placed.end })
    }
}

/// Writes what the engine makes.
struct Log(WalWriter);

impl WalSink for Log {
    fn version(&self) -> PgVersion {
        self.0.config().version
    }

    fn next_lsn(&self) -> Lsn {
        self.0.next_lsn()
    }

    fn append(&mut self, xid: Xid, top_xid: Xid, origin: u16, body: &RecordBody) -> Result<Placed, SinkError> {
        let (start, end) = self.0.append(xid, top_xid, origin, body)?;
        Ok(Placed { start, end })
    }
}
