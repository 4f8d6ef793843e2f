//! A scenario, played at its small size.

use pg_types::{PgVersion, RecordBody, WalRecord, Xid};
use pg_wal::{WalDir, WalReader};
use primary_core::{Overrides, ParameterValue, Scenario};
use standby_core::{RecoveryWriter, StandbySettings};
use walstorm_cli::scenario_log::ScenarioLog;

/// The version whose WAL is played.
pub(crate) const VERSION: PgVersion = PgVersion::V18;

/// A scenario's WAL.
pub(crate) struct Played {
    /// Where it is, and the engine that wrote it.
    pub(crate) log: ScenarioLog,
    /// Its records.
    pub(crate) records: Vec<WalRecord>,
}

impl Played {
    /// Plays one that ships at its small size, with some parameters of the test's own.
    pub(crate) fn small(name: &str, parameters: &[(&str, ParameterValue)]) -> Self {
        Self::small_of(&Scenario::load(name).unwrap(), parameters)
    }

    /// Plays one that ships as `wal_level = replica` has it, likewise.
    pub(crate) fn small_at_replica(name: &str, parameters: &[(&str, ParameterValue)]) -> Self {
        let text =
            Scenario::load(name).unwrap().text().replacen("[[tables]]", "[server]\nwal_level = \"replica\"\n\n[[tables]]", 1);
        Self::small_of(&Scenario::parse(name, &text).unwrap(), parameters)
    }

    /// Plays a scenario at its small size.
    fn small_of(scenario: &Scenario, parameters: &[(&str, ParameterValue)]) -> Self {
        let mut overrides: Overrides = scenario.small().clone();
        overrides.extend(parameters.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        let log = ScenarioLog::play(scenario, &overrides, scenario.seed(), VERSION).unwrap();
        let dir = WalDir::open(log.dir(), None).unwrap();
        let mut reader = WalReader::open(&dir, None).unwrap();
        let mut records = Vec::new();
        while let Some(raw) = reader.next().unwrap() {
            records.push(raw.decode(dir.profile()).unwrap());
        }
        Self { log, records }
    }

    /// The settings of its server.
    pub(crate) fn settings(&self) -> StandbySettings {
        let server = &self.log.engine().plan().server;
        StandbySettings {
            max_connections: server.max_connections,
            max_prepared_transactions: server.max_prepared_transactions,
            ..StandbySettings::default()
        }
    }

    /// A standby that has replayed nothing yet, started at the first record, which is a checkpoint.
    pub(crate) fn standby(&self, profile: &str) -> RecoveryWriter {
        let mut writer = RecoveryWriter::new(&self.settings(), profile.parse().unwrap()).unwrap();
        let RecordBody::Checkpoint(checkpoint) = &self.records[0].body else { panic!("a log begins with a checkpoint") };
        writer.start_at_checkpoint(checkpoint, checkpoint.redo).unwrap();
        writer
    }
}

/// All ids that end with a record: the transaction, prepared or not, and its subtransactions.
pub(crate) fn ended(record: &WalRecord) -> Vec<Xid> {
    let (prepared_xid, subxids) = match &record.body {
        RecordBody::Commit(commit) => (commit.prepared_xid, &commit.subxids),
        RecordBody::Abort(abort) => (abort.prepared_xid, &abort.subxids),
        _ => return Vec::new(),
    };
    let top = if prepared_xid.is_valid() { prepared_xid } else { record.xid };
    subxids.iter().copied().chain([top]).collect()
}

/// A whole number as a parameter.
pub(crate) fn number(n: u64) -> ParameterValue {
    ParameterValue::Number(n)
}

/// A duration or rate as a parameter.
pub(crate) fn text(text: &str) -> ParameterValue {
    ParameterValue::Text(text.to_owned())
}
