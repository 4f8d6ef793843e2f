//! The file's structure, as serde reads it. Every field that may be wrong later keeps its place in the text.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::amount::{Amount, PauseFile, RateFile};
use super::at::At;
use super::step::StepFile;

/// A parameter's value.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum ParameterValue {
    /// A count or size.
    Number(u64),
    /// A duration, as `"60s"`.
    Text(String),
}

impl fmt::Display for ParameterValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParameterValue::Number(number) => number.fmt(f),
            ParameterValue::Text(text) => text.fmt(f),
        }
    }
}

impl From<&str> for ParameterValue {
    /// A value as a command line gives it: a number if it looks like one.
    fn from(text: &str) -> ParameterValue {
        text.parse().map_or_else(|_| ParameterValue::Text(text.to_owned()), ParameterValue::Number)
    }
}

/// A whole file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ScenarioFile {
    /// Name: lower-case letters, digits, `-`, `_`.
    pub(super) name: At<String>,
    /// What it tells.
    pub(super) story: String,
    /// Seed of all draws.
    pub(super) seed: u64,
    /// Figures that others published.
    #[serde(default)]
    pub(super) published: Vec<String>,
    /// Parameters and their values.
    #[serde(default)]
    pub(super) parameters: BTreeMap<String, ParameterValue>,
    /// Values of parameters at which it is played in a second or two, for tests and first looks.
    #[serde(default)]
    pub(super) small: BTreeMap<String, ParameterValue>,
    /// Values of parameters and seeds to play it at, one after the other.
    pub(super) sweep: Option<At<SweepFile>>,
    /// What must come out.
    #[serde(default)]
    pub(super) expect: Vec<ExpectFile>,
    /// When actors without a number of transactions stop.
    pub(super) duration: Option<At<Amount>>,
    /// Settings of the server.
    #[serde(default)]
    pub(super) server: ServerFile,
    /// Hints for a decoder.
    #[serde(default)]
    pub(super) decoder: DecoderFile,
    /// Readers on a standby.
    #[serde(default)]
    pub(super) readers: ReadersFile,
    /// Tables that are there before the log begins.
    #[serde(default)]
    pub(super) tables: Vec<TableFile>,
    /// Publications that are there before the log begins.
    #[serde(default)]
    pub(super) publications: Vec<PublicationsFile>,
    /// Who does something.
    pub(super) actors: Vec<ActorFile>,
    /// Who reads the log.
    #[serde(default)]
    pub(super) consumers: Vec<ConsumerFile>,
    /// What goes wrong, and when.
    #[serde(default)]
    pub(super) faults: Vec<FaultFile>,
}

/// `[sweep]`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SweepFile {
    /// Seeds; the scenario's own if none is given.
    #[serde(default)]
    pub(super) seeds: Vec<u64>,
    /// Values of parameters; all combinations are played.
    #[serde(default)]
    pub(super) parameters: BTreeMap<String, SweepValuesFile>,
}

/// Values of a parameter in a sweep.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum SweepValuesFile {
    /// One after the other.
    List(Vec<ParameterValue>),
    /// A range.
    Range(SweepRangeFile),
}

/// A range of numbers: every `step`-th, or each `times` as large as the one before.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SweepRangeFile {
    /// The first.
    pub(super) from: u64,
    /// None above this.
    pub(super) to: u64,
    /// The difference between two.
    pub(super) step: Option<u64>,
    /// The ratio of two.
    pub(super) times: Option<u64>,
}

/// `[[expect]]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExpectFile {
    /// A comparison of two expressions, as `messages("a") == 11 * partitions`.
    pub(super) that: At<String>,
    /// Major version of the WAL from which on it holds.
    pub(super) from_version: Option<At<u64>>,
    /// Major version of the WAL up to which it holds.
    pub(super) to_version: Option<At<u64>>,
}

/// `[server]`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ServerFile {
    /// wal_level; logical if not said. With `replica` nothing can be decoded.
    pub(super) wal_level: Option<At<WalLevelFile>>,
    /// max_connections.
    pub(super) max_connections: Option<At<Amount>>,
    /// autovacuum; on if not said. It does no VACUUM here, but from 18 on an index that is built counts its table only where it is
    /// on.
    pub(super) autovacuum: Option<bool>,
    /// max_prepared_transactions.
    pub(super) max_prepared_transactions: Option<At<Amount>>,
    /// checkpoint_timeout.
    pub(super) checkpoint_every: Option<At<Amount>>,
    /// How often running transactions are logged.
    pub(super) running_xacts_every: Option<At<Amount>>,
    /// Most bytes of WAL that a consumer may keep; no limit if not said.
    pub(super) max_slot_wal_keep_size: Option<At<Amount>>,
    /// Time between barriers, at which consumers move and faults happen.
    pub(super) barrier_every: Option<At<Amount>>,
    /// The first xid.
    pub(super) first_xid: Option<At<Amount>>,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WalLevelFile {
    /// What a standby needs.
    Replica,
    /// What decoding needs besides.
    Logical,
}

/// `[decoder]`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DecoderFile {
    /// Syscache callbacks that are registered.
    pub(super) syscache_callbacks: Option<At<Amount>>,
    /// Relcache callbacks that are registered.
    pub(super) relcache_callbacks: Option<At<Amount>>,
    /// Entries of the map of each callback beyond a walsender's; none if not said.
    pub(super) callback_entries: Option<At<Amount>>,
    /// Who decodes; `catch-up` if not said.
    pub(super) consumer: Option<DecoderConsumerFile>,
    /// Bytes that changes in memory may count for (`logical_decoding_work_mem`); 64 MB if not said.
    pub(super) work_mem: Option<At<Amount>>,
    /// Large transactions are given out in blocks, by those who can (14 and later).
    pub(super) streaming: Option<bool>,
    /// Prepared transactions are given out when they are prepared (14 and later).
    pub(super) two_phase: Option<bool>,
}

/// Who decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum DecoderConsumerFile {
    /// A walsender that keeps up, and reads the shared queue of invalidation messages too.
    Live,
    /// One that decodes WAL whose messages everybody has read long ago.
    CatchUp,
}

/// `[readers]`.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadersFile {
    /// Snapshots taken on a standby, in simulated time.
    pub(super) snapshots_per_second: Option<At<Amount>>,
}

/// `[[tables]]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TableFile {
    /// Name; `{i}` counts if there are several, or a pattern as `orders_{1..1000}` says which there are.
    pub(super) name: At<String>,
    /// How many, if the name has no pattern.
    pub(super) count: Option<At<Amount>>,
    /// Column definitions.
    pub(super) columns: Vec<At<String>>,
    /// Partitions of each, named `name_1` and so on.
    pub(super) partitions: Option<At<Amount>>,
    /// Rows in each (in each partition) before the log begins.
    pub(super) rows: Option<At<Amount>>,
    /// Bytes of a row in a record, if not what its columns take.
    pub(super) row_bytes: Option<At<Amount>>,
}

/// `[[publications]]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PublicationsFile {
    /// Name; a pattern as `p_{1..10}` makes several.
    pub(super) name: At<String>,
    /// FOR TABLE: names; a pattern names several, or the one of each publication's number if the publications have one, too.
    #[serde(default)]
    pub(super) tables: Vec<At<String>>,
    /// FOR ALL TABLES.
    #[serde(default)]
    pub(super) all_tables: bool,
    /// FOR TABLES IN SCHEMA (15 and later); before the log begins there is `public`.
    pub(super) schema: Option<At<String>>,
}

/// `[[actors]]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ActorFile {
    /// Name.
    pub(super) name: At<String>,
    /// How many sessions do the same.
    pub(super) sessions: Option<At<Amount>>,
    /// When the first transaction begins.
    pub(super) start: Option<At<PauseFile>>,
    /// Actors that must have finished before.
    #[serde(default)]
    pub(super) after: Vec<At<String>>,
    /// From one transaction's begin to the next.
    pub(super) every: Option<At<PauseFile>>,
    /// Transactions of all its sessions together in a length of time, instead of `every`.
    pub(super) rate: Option<At<RateFile>>,
    /// From one transaction's end to the next one's begin, at least.
    pub(super) think: Option<At<PauseFile>>,
    /// Transactions of each session.
    pub(super) transactions: Option<At<Amount>>,
    /// When its sessions connect. Once if not said.
    pub(super) connects: Option<At<ConnectsFile>>,
    /// Transactions of a hundred that roll back.
    pub(super) rollback_percent: Option<At<Amount>>,
    /// The replication origin that its transactions come from.
    pub(super) origin: Option<At<Amount>>,
    /// What one transaction does.
    #[serde(default)]
    pub(super) steps: Vec<At<StepFile>>,
    /// Or one of several kinds of transactions, by weight.
    #[serde(default)]
    pub(super) mix: Vec<MixFile>,
}

/// When a session connects.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum ConnectsFile {
    /// Once, or for each transaction anew.
    Word(ConnectsWordFile),
    /// For so many transactions each time.
    Every(ConnectsEveryFile),
}

/// When a session connects, in words.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
pub(super) enum ConnectsWordFile {
    /// Before its first transaction, and it stays.
    #[serde(rename = "once")]
    Once,
    /// Before each transaction, and it leaves after it.
    #[serde(rename = "per transaction")]
    PerTransaction,
}

/// How many transactions a connection has.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ConnectsEveryFile {
    /// So many transactions.
    pub(super) every: Amount,
}

/// `[[actors.mix]]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MixFile {
    /// How often it is chosen, among the weights of all. 1 if not said.
    pub(super) weight: Option<At<Amount>>,
    /// What one such transaction does.
    pub(super) steps: Vec<At<StepFile>>,
}

/// `[[consumers]]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ConsumerFile {
    /// Name of its slot.
    pub(super) slot: At<String>,
    /// What its slot is for.
    #[serde(default)]
    pub(super) kind: ConsumerKindFile,
    /// Bytes that it reads in a second of simulated time; all that there are if not said.
    pub(super) bytes_per_second: Option<At<Amount>>,
    /// When it stays connected and reads nothing.
    #[serde(default)]
    pub(super) paused: Vec<At<SpanFile>>,
    /// When it goes away for good and leaves its slot.
    pub(super) dead_at: Option<At<Amount>>,
}

/// What a consumer's slot is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum ConsumerKindFile {
    /// A standby with hot_standby_feedback: it holds rows of all tables.
    #[default]
    Physical,
    /// A decoder: it holds rows of catalogs.
    Logical,
}

/// From a time to another.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SpanFile {
    /// From.
    pub(super) from: Amount,
    /// To.
    pub(super) to: Amount,
}

/// `[[faults]]`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FaultFile {
    /// When, from the beginning; at once if not said.
    pub(super) at: Option<At<Amount>>,
    /// What happens.
    pub(super) kind: At<FaultKindFile>,
    /// `disk_full`: how long.
    pub(super) r#for: Option<At<Amount>>,
    /// `clock_jump`: how far ahead.
    pub(super) forward: Option<At<Amount>>,
    /// `clock_jump`: how far back.
    pub(super) back: Option<At<Amount>>,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum FaultKindFile {
    /// The primary crashes and recovers: open transactions vanish.
    Crash,
    /// The primary is stopped in order and started again: open transactions roll back.
    Restart,
    /// The disk of the log has no room for a while: whoever would write waits.
    DiskFull,
    /// The clock that stamps commits jumps.
    ClockJump,
}
