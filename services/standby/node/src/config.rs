//! What an operator can set: defaults < file < environment (`WALSTORM_STANDBY__…`) < flags, checked before anything starts.
//!
//! [`Config`] is what was written; [`Config::check`] turns it into [`Checked`], which is all that the rest of the node sees.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use pg_types::{Lsn, PgVersion};
use serde::{Deserialize, Serialize};
use service_kit::client::{ClientConfig, endpoint};
use service_kit::logs::LogConfig;
use service_kit::server::ServerConfig;
use service_kit::telemetry::TelemetryConfig;
use standby_core::{StandbyProfile, StandbySettings};
use tonic::transport::Endpoint;

use crate::error::Error;

/// Most batches in the queue: 4 GiB of WAL at most, though a batch is far below 1 MiB as a rule.
const QUEUE_BATCHES_MAX: usize = 4096;

/// Where a standby without restart point begins to replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartAt {
    /// At the first checkpoint or running-transactions record, whichever comes first: either tells which xids are still to come.
    /// A checkpoint's redo position is followed by a running-transactions record, so on WAL that begins at a base backup's
    /// redo position this is where a server begins, too.
    RunningXacts,
    /// At the first checkpoint record; ready at the first running-transactions record after it.
    Checkpoint,
    /// At the first checkpoint or running-transactions record at or after this position.
    Lsn(Lsn),
}

impl FromStr for StartAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "checkpoint" => Ok(Self::Checkpoint),
            "running-xacts" => Ok(Self::RunningXacts),
            lsn => lsn
                .parse()
                .map(Self::Lsn)
                .map_err(|_| format!("'{lsn}' is none of: checkpoint, running-xacts, an LSN such as 0/16B3748")),
        }
    }
}

/// What was written in file, environment and flags.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The gRPC server.
    pub server: ServerConfig,
    /// The connection to the primary. `wait_for_ready` is not used: a standby waits for its primary for ever.
    pub primary: ClientConfig,
    /// Slot on the primary, as `slots/NAME`; empty: none, and the primary keeps nothing for this standby while it is away.
    pub slot: String,
    /// Name by which the primary knows this standby; the same name may take its slot over from a connection that died.
    pub client_id: String,
    /// Directory for the restart point; none: nothing is kept, and every start is a first one.
    pub data_dir: Option<PathBuf>,
    /// Behaviour to model, as `pg14` or `pg13.6+skip-offset`; none: that of the version which wrote the WAL.
    pub profile: Option<String>,
    /// Where to begin without restart point: `running-xacts`, `checkpoint`, or an LSN (the first of either from there on).
    pub start: String,
    /// The settings that size the known-assigned array.
    pub settings: SizeSettings,
    /// Batches that may wait between the stream and replay; below 1 MiB each.
    pub queue_batches: usize,
    /// Longest time without feedback to the primary. Progress is reported sooner.
    #[serde(with = "humantime_serde")]
    pub feedback_interval: Duration,
    /// Longest time that TakeSnapshot waits for `min_lsn`, whatever the call's deadline.
    #[serde(with = "humantime_serde")]
    pub snapshot_wait_max: Duration,
    /// `max_standby_streaming_delay`, milliseconds: how long replay may lag for the sake of readers that hold snapshots, from the
    /// arrival of the WAL on; −1: for ever.
    pub max_standby_streaming_delay_ms: i64,
    /// `hot_standby_feedback`: tell the primary which rows readers still need.
    pub hot_standby_feedback: bool,
    /// Longest silence of the primary, after which health says NOT_SERVING until it is heard of again; unset: for ever, as PostgreSQL
    /// has it. Snapshots are given all the same. Set it well above the 10 s within which a primary says something.
    #[serde(with = "humantime_serde")]
    pub max_primary_silence: Option<Duration>,
    /// Compress the array when replay has been idle, as PostgreSQL's startup process does.
    pub idle_compression: bool,
    /// Log lines.
    pub log: LogConfig,
    /// Where traces go and how many.
    pub telemetry: TelemetryConfig,
}

/// PostgreSQL's settings of the same names, with its defaults.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SizeSettings {
    /// `max_connections`.
    pub max_connections: u32,
    /// `autovacuum_max_workers`: counts up to 17.
    pub autovacuum_max_workers: u32,
    /// `autovacuum_worker_slots`: counts from 18 on.
    pub autovacuum_worker_slots: u32,
    /// `max_worker_processes`.
    pub max_worker_processes: u32,
    /// `max_wal_senders`.
    pub max_wal_senders: u32,
    /// `max_prepared_transactions`.
    pub max_prepared_transactions: u32,
    /// `subtransaction_buffers`, pages: counts from 17 on; 0 for what a server chooses with 128 MB of shared buffers, 32.
    pub subtransaction_buffers: u32,
}

impl Default for SizeSettings {
    fn default() -> Self {
        let core = StandbySettings::default();
        Self {
            max_connections: core.max_connections,
            autovacuum_max_workers: core.autovacuum_max_workers,
            autovacuum_worker_slots: core.autovacuum_worker_slots,
            max_worker_processes: core.max_worker_processes,
            max_wal_senders: core.max_wal_senders,
            max_prepared_transactions: core.max_prepared_transactions,
            subtransaction_buffers: core.subtransaction_buffers,
        }
    }
}

impl From<SizeSettings> for StandbySettings {
    fn from(s: SizeSettings) -> Self {
        Self {
            max_connections: s.max_connections,
            autovacuum_max_workers: s.autovacuum_max_workers,
            autovacuum_worker_slots: s.autovacuum_worker_slots,
            max_worker_processes: s.max_worker_processes,
            max_wal_senders: s.max_wal_senders,
            max_prepared_transactions: s.max_prepared_transactions,
            subtransaction_buffers: s.subtransaction_buffers,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            server: ServerConfig::default(),
            primary: ClientConfig::default(),
            slot: String::new(),
            client_id: "standby".to_owned(),
            data_dir: None,
            profile: None,
            start: "running-xacts".to_owned(),
            settings: SizeSettings::default(),
            queue_batches: 64,
            feedback_interval: Duration::from_secs(1),
            snapshot_wait_max: Duration::from_secs(60),
            max_standby_streaming_delay_ms: 30_000,
            hot_standby_feedback: false,
            max_primary_silence: None,
            idle_compression: true,
            log: LogConfig::default(),
            telemetry: TelemetryConfig::default(),
        }
    }
}

/// A configuration that can run.
#[derive(Clone, Debug)]
pub struct Checked {
    /// As written; what needs no checking is taken from here.
    pub config: Config,
    /// The primary.
    pub primary: Endpoint,
    /// The profile, none for that of the primary's version.
    pub profile: Option<StandbyProfile>,
    /// Where a first start begins.
    pub start: StartAt,
}

impl Config {
    /// Checks everything that can be checked without the primary.
    ///
    /// # Errors
    /// Names the key, what is wrong with its value and what would do.
    pub fn check(self) -> Result<Checked, Error> {
        let bad = |key: &'static str, reason: String| Error::Config { key, reason };
        let profile = self.profile.as_deref().filter(|name| !name.is_empty());
        let profile = profile.map(str::parse::<StandbyProfile>).transpose().map_err(|e| bad("profile", e.to_string()))?;
        let start = self.start.parse().map_err(|e| bad("start", e))?;
        let primary = endpoint(&self.primary).map_err(|e| bad("primary.endpoint", e.to_string()))?;
        let sized = profile.unwrap_or(StandbyProfile::of_version(PgVersion::V18));
        StandbySettings::from(self.settings).sizes(&sized).map_err(|e| bad("settings", e.to_string()))?;
        if !(1..=QUEUE_BATCHES_MAX).contains(&self.queue_batches) {
            return Err(bad("queue_batches", format!("{} is not between 1 and {QUEUE_BATCHES_MAX}", self.queue_batches)));
        }
        if self.feedback_interval.is_zero() {
            return Err(bad("feedback_interval", "it must be above zero, as 1s".to_owned()));
        }
        if self.max_primary_silence.is_some_and(|max| max.is_zero()) {
            return Err(bad("max_primary_silence", "it must be above zero, as 5m; leave it out for no limit".to_owned()));
        }
        let slot_name = self.slot.strip_prefix("slots/").unwrap_or(&self.slot);
        let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        let is_name = (1..=63).contains(&slot_name.len()) && slot_name.bytes().all(allowed);
        if !is_name && !self.slot.is_empty() {
            return Err(bad("slot", "a slot is slots/ and 1 to 63 of a-z, 0-9 and _".to_owned()));
        }
        let slot = if self.slot.is_empty() { String::new() } else { format!("slots/{slot_name}") };
        let data_dir = self.data_dir.filter(|dir| !dir.as_os_str().is_empty());
        Ok(Checked { primary, profile, start, config: Self { slot, data_dir, ..self } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_sound() {
        let checked = Config::default().check().unwrap();
        assert_eq!((checked.profile, checked.start), (None, StartAt::RunningXacts));
    }

    #[test]
    fn what_cannot_run_is_refused_by_key_and_remedy() {
        type Spoil = fn(&mut Config);
        let bad: [(Spoil, &str, &str); 8] = [
            (|c| c.profile = Some("pg12".to_owned()), "profile", "pg13.6"),
            (|c| c.start = "0/G".to_owned(), "start", "running-xacts"),
            (|c| c.primary.endpoint = "not an address".to_owned(), "primary.endpoint", "http://ADDRESS:PORT"),
            (|c| c.settings.max_connections = u32::MAX, "settings", "limit"),
            (|c| c.queue_batches = 0, "queue_batches", "between 1 and"),
            (|c| c.feedback_interval = Duration::ZERO, "feedback_interval", "above zero"),
            (|c| c.max_primary_silence = Some(Duration::ZERO), "max_primary_silence", "above zero"),
            (|c| c.slot = "slots/Or ders".to_owned(), "slot", "a-z"),
        ];
        for (spoil, key, says) in bad {
            let mut config = Config::default();
            spoil(&mut config);
            let error = config.check().unwrap_err().to_string();
            assert!(error.contains(key) && error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_slot_may_be_written_with_or_without_its_collection() {
        for slot in ["orders_1", "slots/orders_1"] {
            let config = Config { slot: slot.to_owned(), ..Config::default() };
            assert_eq!(config.check().unwrap().config.slot, "slots/orders_1");
        }
    }

    #[test]
    fn a_start_is_a_word_or_a_position() {
        assert_eq!("checkpoint".parse(), Ok(StartAt::Checkpoint));
        assert_eq!("running-xacts".parse(), Ok(StartAt::RunningXacts));
        assert_eq!("0/16B3748".parse(), Ok(StartAt::Lsn(Lsn(0x16B_3748))));
    }
}
