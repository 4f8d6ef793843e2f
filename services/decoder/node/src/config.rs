//! Settings of the decoder, and what of them was checked.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use decoder_core::{Catalog, CsvCatalog, NoCatalog, OriginFilter, PluginOptions, Profile, WorkMem};
use pg_types::Oid;
use serde::{Deserialize, Serialize};
use service_kit::client::ClientConfig;
use service_kit::logs::LogConfig;
use service_kit::server::ServerConfig;
use service_kit::telemetry::TelemetryConfig;

use crate::error::NodeError;
use crate::output_log;
use crate::spill::SpillSettings;

/// Settings, as file, environment and flags give them. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DecoderConfig {
    /// Where the node listens.
    pub server: ServerConfig,
    /// The primary that it follows.
    pub primary: ClientConfig,
    /// Log lines of the program.
    pub log: LogConfig,
    /// Traces.
    pub telemetry: TelemetryConfig,
    /// Folder for output log, checkpoint and positions. The node must be alone in it.
    pub data_dir: PathBuf,
    /// Slot at the primary, without `slots/`. Empty: none; then the primary keeps no WAL for this node.
    pub slot: String,
    /// Makes the slot if the primary has none of that name and this node has not begun yet.
    pub create_slot: bool,
    /// Names the node at the primary: the same id may take the slot over from its own lost stream.
    pub client_id: String,
    /// What decoding costs: a profile as `indexed`, `pg18` or `pg96+small-map`.
    pub profile: String,
    /// Who decodes: `catch-up`, or `live`, which reads the shared invalidation queue too and is reset when it lags. Unset: what the
    /// profile says, where `+live` may stand.
    pub consumer: Option<String>,
    /// Folder with `pg_class.csv`, from which relations get their names. Unset: they are shown by their files.
    pub catalog: Option<PathBuf>,
    /// Oid of the database that is decoded. 0: that of the first change in the WAL.
    pub database: u32,
    /// What changes of unfinished transactions may count for in memory, as `64MB`: `logical_decoding_work_mem`.
    pub work_mem: String,
    /// Large transactions are given out in blocks while they are in progress (`streaming` of a subscription), from WAL of 14 and later.
    pub streaming: bool,
    /// Prepared transactions are given out when they are prepared (`two_phase` of a slot), from WAL of 14 and later.
    pub two_phase: bool,
    /// Gives out only what these publications have, as `pgoutput` does (`publication_names`). What is published must be in the catalog's
    /// folder. Empty: everything.
    pub publications: Vec<String>,
    /// Changes from where are decoded: `any`, or `none`, which passes over what was replayed by sessions that named an origin.
    pub origin: String,
    /// Files for what does not fit.
    pub spill: SpillConfig,
    /// The output log.
    pub output_log: OutputLogConfig,
    /// Subscriptions.
    pub subscriptions: SubscriptionsConfig,
    /// Limits of decoding again for ExplainTransaction and CompareProfiles.
    pub analysis: AnalysisConfig,
    /// Transactions kept in each list: the costliest by CPU time, by work and by each counter of work, and the latest.
    pub costliest: usize,
    /// How long it may take until what was decoded is durable and reported upstream.
    #[serde(with = "humantime_serde")]
    pub flush_interval: Duration,
    /// How often the checkpoint is written: bounds what is decoded again after a crash.
    #[serde(with = "humantime_serde")]
    pub checkpoint_interval: Duration,
}

/// Settings of spill files, in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpillConfig {
    /// All of them together at most: beyond it the node stops decoding.
    pub bytes_max: u64,
}

/// Settings of the output log, in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OutputLogConfig {
    /// A segment file.
    pub segment_bytes: u64,
    /// Newest output kept in memory for subscribers that keep up.
    pub memory_bytes: usize,
    /// Output kept even when every named subscription has it.
    pub keep_bytes: u64,
    /// Output kept at most: beyond it the oldest goes, even if a named subscription needs it.
    pub bytes_max: u64,
}

/// Limits of subscriptions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SubscriptionsConfig {
    /// Open streams.
    pub streams_max: usize,
    /// Names.
    pub names_max: usize,
}

/// Limits of decoding again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AnalysisConfig {
    /// WAL of one call, in bytes; it is held in memory.
    pub wal_bytes_max: u64,
    /// Records of a scenario.
    pub scenario_records_max: usize,
    /// Profiles of one call.
    pub profiles_max: usize,
    /// Calls at the same time. 0: none is answered.
    pub concurrent_max: usize,
}

impl Default for AnalysisConfig {
    fn default() -> Self {
        Self { wal_bytes_max: 64 << 20, scenario_records_max: 1_000_000, profiles_max: 16, concurrent_max: 2 }
    }
}

impl Default for DecoderConfig {
    fn default() -> Self {
        Self {
            server: ServerConfig { listen: "127.0.0.1:5501".to_owned(), ..ServerConfig::default() },
            primary: ClientConfig::default(),
            log: LogConfig::default(),
            telemetry: TelemetryConfig::default(),
            data_dir: PathBuf::from("walstorm-decoder"),
            slot: "decoder".to_owned(),
            create_slot: true,
            client_id: "walstorm-decoder".to_owned(),
            profile: "indexed".to_owned(),
            consumer: None,
            catalog: None,
            database: 0,
            work_mem: WorkMem::default().to_string(),
            streaming: false,
            two_phase: false,
            publications: Vec::new(),
            origin: OriginFilter::Any.to_string(),
            spill: SpillConfig::default(),
            output_log: OutputLogConfig::default(),
            subscriptions: SubscriptionsConfig::default(),
            analysis: AnalysisConfig::default(),
            costliest: 1000,
            flush_interval: Duration::from_millis(20),
            checkpoint_interval: Duration::from_millis(500),
        }
    }
}

impl Default for SpillConfig {
    fn default() -> Self {
        Self { bytes_max: 16 << 30 }
    }
}

impl Default for OutputLogConfig {
    fn default() -> Self {
        Self { segment_bytes: 64 << 20, memory_bytes: 16 << 20, keep_bytes: 1 << 30, bytes_max: 16 << 30 }
    }
}

impl Default for SubscriptionsConfig {
    fn default() -> Self {
        Self { streams_max: 1000, names_max: 1000 }
    }
}

/// What of the settings had to be checked or read.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    /// The profile.
    pub(crate) profile: Profile,
    /// Names of relations.
    pub(crate) catalog: Arc<dyn Catalog>,
    /// The database, if it was set.
    pub(crate) database: Option<Oid>,
    /// The memory limit.
    pub(crate) work_mem: WorkMem,
    /// Large transactions come in blocks.
    pub(crate) streaming: bool,
    /// Prepared ones come at PREPARE.
    pub(crate) two_phase: bool,
    /// What the output plugin is asked for.
    pub(crate) options: PluginOptions,
    /// Spill files'.
    pub(crate) spill: SpillSettings,
    /// The output log's.
    pub(crate) log: output_log::LogConfig,
}

impl DecoderConfig {
    /// Checks names and numbers and reads the catalog. Blocks on the disk.
    ///
    /// # Errors
    ///
    /// [`NodeError`] naming the setting, what it is and what it may be.
    pub(crate) fn check(&self) -> Result<Checked, NodeError> {
        let consumer = self.consumer.as_deref().map(str::parse).transpose()?;
        let profile = self.profile.parse::<Profile>()?.consumed_by(consumer);
        let options = PluginOptions { publication_names: self.publications.clone(), origin: self.origin.parse()? };
        let profile = if self.publications.is_empty() { profile } else { profile.with_pgoutput() };
        if !self.publications.is_empty() && self.catalog.is_none() {
            return Err(NodeError::Setting {
                name: "publications",
                must: "be empty without `catalog`: WAL alone does not tell what is published",
            });
        }
        let work_mem: WorkMem = self.work_mem.parse()?;
        if self.streaming && !profile.streams() {
            return Err(NodeError::Setting {
                name: "streaming",
                must: "be off under this profile, whose server gives out whole transactions: take pg14 or a later one",
            });
        }
        let is_name = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
        if self.slot.len() > 63 || !self.slot.bytes().all(is_name) {
            return Err(NodeError::Setting { name: "slot", must: "be 1 to 63 of a-z, 0-9 and _, or empty" });
        }
        if self.client_id.len() > 256 {
            return Err(NodeError::Setting { name: "client_id", must: "be at most 256 bytes long" });
        }
        if self.output_log.segment_bytes < 4096 {
            return Err(NodeError::Setting { name: "output_log.segment_bytes", must: "be at least 4096" });
        }
        if self.output_log.bytes_max < self.output_log.segment_bytes {
            return Err(NodeError::Setting { name: "output_log.bytes_max", must: "be at least output_log.segment_bytes" });
        }
        if self.subscriptions.streams_max == 0 {
            return Err(NodeError::Setting { name: "subscriptions.streams_max", must: "be at least 1" });
        }
        let catalog: Arc<dyn Catalog> = match &self.catalog {
            Some(dir) => Arc::new(CsvCatalog::load(dir)?),
            None => Arc::new(NoCatalog),
        };
        let log = output_log::LogConfig {
            dir: self.data_dir.join("output"),
            segment_bytes: self.output_log.segment_bytes,
            memory_bytes: self.output_log.memory_bytes,
            keep_bytes: self.output_log.keep_bytes,
            bytes_max: self.output_log.bytes_max,
        };
        let database = (self.database != 0).then_some(Oid(self.database));
        let spill = SpillSettings { dir: self.data_dir.join("spill"), bytes_max: self.spill.bytes_max };
        let (streaming, two_phase) = (self.streaming, self.two_phase);
        Ok(Checked { profile, catalog, database, work_mem, streaming, two_phase, options, spill, log })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_settings_are_named() {
        let check = |change: fn(&mut DecoderConfig)| {
            let mut config = DecoderConfig::default();
            change(&mut config);
            config.check().map(|_| ()).unwrap_err().to_string()
        };
        assert!(check(|c| c.profile = "pg99".to_owned()).contains("indexed"));
        assert!(check(|c| c.consumer = Some("slow".to_owned())).contains("consumer: 'slow' is no consumer mode: live"));
        assert!(check(|c| c.origin = "here".to_owned()).contains("origin: 'here' is no choice of origins: any"));
        assert!(check(|c| c.publications = vec!["p".to_owned()]).contains("publications must be empty without `catalog`"));
        assert!(check(|c| c.slot = "Orders".to_owned()).contains("slot must be 1 to 63"));
        assert!(check(|c| c.work_mem = "63kB".to_owned()).contains("work_mem: '63kB' must be a number with B, kB"));
        assert!(check(|c| (c.streaming, c.profile) = (true, "pg13".to_owned())).contains("streaming must be off under"));
        assert!(check(|c| c.output_log.segment_bytes = 0).contains("output_log.segment_bytes"));
        assert!(check(|c| c.output_log.bytes_max = 5000).contains("output_log.bytes_max"));
        assert!(check(|c| c.subscriptions.streams_max = 0).contains("subscriptions.streams_max"));
        assert!(check(|c| c.catalog = Some("/no/such/folder".into())).contains("/no/such/folder"));
        let live = DecoderConfig { consumer: Some("live".to_owned()), ..DecoderConfig::default() };
        assert_eq!(live.check().unwrap().profile.name, "indexed+live", "so that clients and traces see it");
        assert_eq!(DecoderConfig::default().check().unwrap().profile.name, "indexed");
    }
}
