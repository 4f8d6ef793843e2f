//! A scenario played into a directory of WAL that is deleted afterwards.

use std::path::Path;

use anyhow::Context;
use pg_types::{Lsn, PgVersion, RecordBody, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use primary_core::rng::seeded;
use primary_core::{Overrides, Placed, Scenario, SinkError, VirtualClock, WalSink};
use tempfile::TempDir;

/// The directory.
#[derive(Debug)]
pub struct ScenarioLog(TempDir);

impl ScenarioLog {
    /// Plays the scenario that `source` is a file of or the name of; [`None`] if `source` is a file of WAL.
    ///
    /// # Errors
    /// There is no such scenario, or it cannot be played or written.
    pub fn of(source: &str, seed: Option<u64>) -> anyhow::Result<Option<ScenarioLog>> {
        let path = Path::new(source);
        let scenario = if !path.is_file() {
            Scenario::load(source).with_context(|| format!("{} is neither a directory nor a file", source.escape_debug()))?
        } else if path.extension().is_some_and(|extension| extension == "toml") {
            let text = service_kit::config::read_text(path).with_context(|| format!("read {source}"))?;
            Scenario::parse(source, &text)?
        } else {
            return Ok(None);
        };
        let folder = tempfile::tempdir().context("make a directory for the scenario's WAL")?;
        let mut log = Log(WalWriter::create(folder.path(), WriterConfig::new(1))?);
        let mut rng = seeded(seed.unwrap_or(scenario.seed()));
        scenario.run(&Overrides::new(), &mut VirtualClock::default(), &mut rng, &mut log, |_, _| ())?;
        log.0.switch()?;
        log.0.finish()?;
        Ok(Some(ScenarioLog(folder)))
    }

    /// Where it is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.0.path()
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
