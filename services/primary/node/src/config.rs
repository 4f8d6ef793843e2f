//! Configuration of a primary: built-in defaults < file < environment (`WALSTORM_PRIMARY__…`) < flags.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use pg_wal::writer::WalSync;
use primary_core::ParameterValue;
use serde::{Deserialize, Serialize};
use service_kit::logs::LogConfig;
use service_kit::server::ServerConfig;
use service_kit::telemetry::TelemetryConfig;

use crate::error::{Error, Result};
use crate::retention::Retention;
use crate::runs::RunsConfig;
use crate::server::PIECE_BYTES;

/// All settings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PrimaryConfig {
    /// Where slots, and the WAL of a simulated source, are kept. Made if missing; one primary at a time.
    pub data_dir: PathBuf,
    /// Where WAL comes from.
    pub source: SourceConfig,
    /// How an archive is read.
    pub archive: ArchiveConfig,
    /// Streams.
    pub streams: StreamsConfig,
    /// Most slots with a name (`max_replication_slots`); streams without one are bounded by `streams.max`.
    pub max_slots: usize,
    /// What is kept of the WAL of a simulated source.
    pub retention: RetentionConfig,
    /// Limits on runs that clients ask for.
    pub runs: RunsConfig,
    /// The gRPC server.
    pub server: ServerConfig,
    /// Traces.
    pub telemetry: TelemetryConfig,
    /// Logs.
    pub log: LogConfig,
}

impl Default for PrimaryConfig {
    fn default() -> Self {
        Self {
            data_dir: PathBuf::from("walstorm-primary"),
            source: SourceConfig::default(),
            archive: ArchiveConfig::default(),
            streams: StreamsConfig::default(),
            max_slots: 64,
            retention: RetentionConfig::default(),
            runs: RunsConfig::default(),
            server: ServerConfig { listen: "127.0.0.1:5500".to_owned(), ..ServerConfig::default() },
            telemetry: TelemetryConfig::default(),
            log: LogConfig::default(),
        }
    }
}

/// Where WAL comes from: exactly one of `wal_dir`, `archive`, `scenario` and `runs` is set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SourceConfig {
    /// A directory of WAL segments, a data directory, or one segment file. It is only read.
    pub wal_dir: Option<PathBuf>,
    /// An archive of WAL segments: `file:///folder`, `s3://bucket/folder`, `gs://bucket/folder` or `az://container/folder`. It is
    /// only read. Credentials come from the environment.
    pub archive: Option<String>,
    /// Timeline to read in either; unset: the newest, with its ancestors.
    pub timeline: Option<u32>,
    /// Go on looking for new WAL in either, as for an archive that grows.
    pub follow: bool,
    /// How often to look.
    #[serde(with = "humantime_serde")]
    pub follow_interval: Duration,
    /// Name of a scenario, or a scenario file, to play.
    pub scenario: Option<String>,
    /// Wait for runs that clients ask for with RunScenario, in a log of one's own.
    pub runs: bool,
    /// Values of the scenario's parameters, instead of its own.
    pub parameters: BTreeMap<String, ParameterValue>,
    /// Major version of PostgreSQL whose format the scenario writes.
    pub pg_version: u32,
    /// Bytes of a segment that it writes.
    pub segment_bytes: u32,
    /// `system_identifier` of its log; unset: follows from the scenario's name and the seed.
    pub system_id: Option<u64>,
    /// The scenario does not begin before there are these slots, as of a decoder or a standby that is to see all of it.
    pub wait_for_slots: Vec<String>,
    /// Longest wait for them; after that the node stops.
    #[serde(with = "humantime_serde")]
    pub wait_for_slots_timeout: Duration,
    /// VACUUM of the scenario heeds the xids that clients' slots need (`hot_standby_feedback`, `catalog_xmin`). Unset: unless the clock
    /// is virtual, where nobody may influence the run. Set there, the run waits at each barrier until the slots of `wait_for_slots` have
    /// applied everything; runs of clients, which wait for no slots, heed none on that clock.
    pub heed_slots: Option<bool>,
    /// The scenario waits when the oldest slot is so many bytes behind; unset: it never does.
    pub ahead_bytes_max: Option<u64>,
    /// Seed of the scenario; unset: the scenario's own.
    pub seed: Option<u64>,
    /// How the scenario's time passes.
    pub clock: ClockMode,
    /// Bytes of WAL that are flushed together, at most (simulated source).
    pub flush_bytes: u64,
    /// Longest time between two flushes (simulated source, real clock).
    #[serde(with = "humantime_serde")]
    pub flush_interval: Duration,
    /// Wait for the disk at each flush (simulated source; `fsync`). Without it WAL outlives this program, not the machine.
    pub fsync: bool,
    /// How to wait for the disk (simulated source; `wal_sync_method`).
    pub wal_sync_method: WalSyncMethod,
}

impl Default for SourceConfig {
    fn default() -> Self {
        Self {
            wal_dir: None,
            archive: None,
            timeline: None,
            follow: false,
            follow_interval: Duration::from_secs(1),
            scenario: None,
            runs: false,
            parameters: BTreeMap::new(),
            pg_version: 18,
            segment_bytes: 16 << 20,
            system_id: None,
            wait_for_slots: Vec::new(),
            wait_for_slots_timeout: Duration::from_secs(60),
            heed_slots: None,
            ahead_bytes_max: None,
            seed: None,
            clock: ClockMode::Virtual,
            flush_bytes: 1 << 20,
            flush_interval: Duration::from_millis(10),
            fsync: true,
            wal_sync_method: WalSyncMethod::Fdatasync,
        }
    }
}

impl SourceConfig {
    /// Whether VACUUM of a scenario heeds what clients' slots need.
    pub(crate) fn heeds_slots(&self) -> bool {
        let virtually = self.clock == ClockMode::Virtual;
        self.heed_slots.unwrap_or(!virtually) && (!virtually || !self.wait_for_slots.is_empty())
    }

    /// What a flush of the simulated source waits for.
    #[must_use]
    pub fn wal_sync(&self) -> WalSync {
        match (self.fsync, self.wal_sync_method) {
            (false, _) => WalSync::Off,
            (true, WalSyncMethod::Fdatasync) => WalSync::Fdatasync,
            (true, WalSyncMethod::Fsync) => WalSync::Fsync,
        }
    }
}

/// How a flush waits for the disk (`wal_sync_method`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WalSyncMethod {
    /// Until the bytes are there. Segments have all their blocks before they are used, so no more is needed.
    #[default]
    Fdatasync,
    /// Until everything that the file system says of the file is there, too.
    Fsync,
}

/// How simulated time passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ClockMode {
    /// As fast as the machine goes, with simulated times: the same seed gives the same bytes.
    #[default]
    Virtual,
    /// At the scenario's pace, with the times of the wall clock.
    Real,
    /// As fast as the machine goes, with the times of the wall clock.
    Max,
}

/// How an archive is read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ArchiveConfig {
    /// Segments that are brought ahead of each reader; as many downloads and one more run at a time.
    pub prefetch: usize,
    /// Most bytes of segments that are kept below the data directory.
    pub cache_bytes: u64,
    /// How long a missing segment is waited for while later ones are there (`source.follow`): archivers work in parallel.
    #[serde(with = "humantime_serde")]
    pub gap_grace: Duration,
    /// How long the store is asked again for the same thing before it counts as unreachable.
    #[serde(with = "humantime_serde")]
    pub retry_timeout: Duration,
}

impl Default for ArchiveConfig {
    fn default() -> Self {
        let (gap_grace, retry_timeout) = (Duration::from_secs(60), Duration::from_secs(60));
        Self { prefetch: 4, cache_bytes: 1 << 30, gap_grace, retry_timeout }
    }
}

/// Limits of streams.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StreamsConfig {
    /// Streams of WAL and of invalidations at a time (`max_wal_senders`).
    pub max: usize,
    /// Bytes at which a batch is closed.
    pub batch_bytes: usize,
}

impl Default for StreamsConfig {
    fn default() -> Self {
        Self { max: 1024, batch_bytes: 384 << 10 }
    }
}

/// Retention of a simulated source's WAL.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RetentionConfig {
    /// Bytes of WAL that are kept in any case (`wal_keep_size`); unset: all.
    pub keep_bytes: Option<u64>,
    /// Most bytes that slots may keep (`max_slot_wal_keep_size`); unset: no limit. Past it a slot is lost.
    pub slot_keep_bytes_max: Option<u64>,
    /// How often it is looked whether WAL may go.
    #[serde(with = "humantime_serde")]
    pub interval: Duration,
}

impl Default for RetentionConfig {
    fn default() -> Self {
        Self { keep_bytes: None, slot_keep_bytes_max: None, interval: Duration::from_secs(1) }
    }
}

impl RetentionConfig {
    /// The policy; none if everything is kept.
    #[must_use]
    pub fn policy(&self) -> Option<Retention> {
        let slot_keep_bytes_max = self.slot_keep_bytes_max;
        self.keep_bytes.map(|keep_bytes| Retention { keep_bytes, slot_keep_bytes_max })
    }
}

impl SourceConfig {
    /// Checks that there is one source, and that nothing is set that only another one has.
    fn validate(&self) -> Result<()> {
        let wrong = |text: &str| Err(Error::Config(text.to_owned()));
        let set = [self.wal_dir.is_some(), self.archive.is_some(), self.scenario.is_some(), self.runs];
        match set.into_iter().filter(|is_set| *is_set).count() {
            0 => {
                return wrong(
                    "nothing to serve: set source.wal_dir (--wal-dir), source.archive (--archive), source.scenario (--scenario) or \
                     source.runs (--runs)",
                );
            }
            1 => {}
            _ => {
                return wrong(
                    "source.wal_dir, source.archive, source.scenario and source.runs exclude each other: set one of them",
                );
            }
        }
        if self.runs && (self.follow || self.timeline.is_some() || !self.parameters.is_empty()) {
            return wrong(
                "source.follow, source.timeline and source.parameters are not for source.runs: clients give parameters",
            );
        }
        let is_there = self.wal_dir.is_some() || self.archive.is_some();
        if is_there && (self.seed.is_some() || self.system_id.is_some() || !self.parameters.is_empty()) {
            return wrong("source.seed (--seed), source.system_id and source.parameters are a scenario's, and none is set");
        }
        if self.scenario.is_none() && !self.wait_for_slots.is_empty() {
            return wrong("source.wait_for_slots (--wait-for-slots) is for a scenario, and none is set");
        }
        if self.scenario.is_none() && !self.runs && self.heed_slots.is_some() {
            return wrong("source.heed_slots (--heed-slots) is for a scenario or for source.runs, and none is set");
        }
        if self.heed_slots == Some(true) && self.clock == ClockMode::Virtual && self.scenario.is_some() && !self.heeds_slots() {
            return wrong(
                "source.heed_slots (--heed-slots) on the virtual clock is for the slots of source.wait_for_slots, and none is named: \
                 slots that come and go would change the bytes of the run; name them, or set source.clock to real or max",
            );
        }
        if let Some(name) = self.wait_for_slots.iter().find(|name| crate::slots::validate_name(name).is_err()) {
            let name = name.escape_debug();
            return wrong(&format!(
                "source.wait_for_slots: \"{name}\" is no slot's name: 1 to 63 of the characters a-z, 0-9 and _"
            ));
        }
        if self.scenario.is_some() && (self.follow || self.timeline.is_some()) {
            return wrong(
                "source.follow (--follow) and source.timeline (--timeline) are for WAL that is there, but a scenario is set",
            );
        }
        self.archive.as_deref().map_or(Ok(()), crate::sources::archive::check_url)
    }
}

impl PrimaryConfig {
    /// Checks what types alone do not.
    ///
    /// # Errors
    /// The field, what is wrong, and what would be right.
    pub fn validate(&self) -> Result<()> {
        let wrong = |text: &str| Err(Error::Config(text.to_owned()));
        self.source.validate()?;
        let bounded = |name: &str, value: usize, min: usize, max: usize| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(Error::Config(format!("{name} is {value}, and must be {min} to {max}")))
            }
        };
        bounded("max_slots", self.max_slots, 1, 10_000)?;
        bounded("streams.max", self.streams.max, 1, 100_000)?;
        bounded("streams.batch_bytes", self.streams.batch_bytes, 4 << 10, PIECE_BYTES)?;
        if self.retention.slot_keep_bytes_max.is_some() && self.retention.keep_bytes.is_none() {
            return wrong(
                "retention.slot_keep_bytes_max limits nothing while everything is kept: set retention.keep_bytes, too",
            );
        }
        bounded("archive.prefetch", self.archive.prefetch, 0, 64)?;
        let source = &self.source;
        if source.flush_bytes == 0 {
            return wrong("source.flush_bytes must be greater than 0");
        }
        for (name, value) in [
            ("source.follow_interval", source.follow_interval),
            ("source.flush_interval", source.flush_interval),
            ("retention.interval", self.retention.interval),
            ("archive.retry_timeout", self.archive.retry_timeout),
        ] {
            if value < Duration::from_millis(1) {
                return Err(Error::Config(format!("{name} must be at least 1 ms")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_one_source_is_set() {
        let mut config = PrimaryConfig::default();
        assert!(config.validate().unwrap_err().to_string().contains("--wal-dir"));
        config.source.scenario = Some("catalog-churn".to_owned());
        config.validate().unwrap();
        config.source.wal_dir = Some(PathBuf::from("/x"));
        assert!(config.validate().unwrap_err().to_string().contains("exclude each other"));
        config.source = SourceConfig { runs: true, ..SourceConfig::default() };
        config.validate().unwrap();
        config.source.scenario = Some("catalog-churn".to_owned());
        assert!(config.validate().unwrap_err().to_string().contains("exclude each other"));
    }

    #[test]
    fn settings_of_the_other_source_are_refused() {
        let refused = |change: fn(&mut SourceConfig)| {
            let mut config = PrimaryConfig::default();
            change(&mut config.source);
            config.validate().unwrap_err().to_string()
        };
        let error =
            refused(|s| *s = SourceConfig { wal_dir: Some(PathBuf::from("/x")), seed: Some(1), ..SourceConfig::default() });
        assert!(error.contains("--seed"), "{error}");
        let error = refused(|s| {
            *s = SourceConfig { scenario: Some("catalog-churn".to_owned()), follow: true, ..SourceConfig::default() }
        });
        assert!(error.contains("--follow"), "{error}");
        let error = refused(|s| {
            *s = SourceConfig { scenario: Some("catalog-churn".to_owned()), timeline: Some(1), ..SourceConfig::default() }
        });
        assert!(error.contains("--timeline"), "{error}");
    }

    #[test]
    fn a_limit_that_limits_nothing_is_refused() {
        let mut config = PrimaryConfig::default();
        config.source.scenario = Some("catalog-churn".to_owned());
        config.retention.slot_keep_bytes_max = Some(1);
        assert!(config.validate().unwrap_err().to_string().contains("set retention.keep_bytes"));
        config.retention.keep_bytes = Some(1);
        config.validate().unwrap();
    }

    #[test]
    fn numbers_have_bounds_and_errors_name_them() {
        let mut config = PrimaryConfig::default();
        config.source.wal_dir = Some(PathBuf::from("/x"));
        config.streams.batch_bytes = 1 << 30;
        assert!(config.validate().unwrap_err().to_string().contains("streams.batch_bytes"));
        config.streams = StreamsConfig::default();
        config.max_slots = 0;
        assert!(config.validate().unwrap_err().to_string().contains("max_slots"));
    }
}
