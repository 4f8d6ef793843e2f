//! The file's structure, as serde reads it. Every field that may be wrong later keeps its place in the text.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::amount::{Amount, PauseFile};
use super::step::StepFile;

/// A parameter's value.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
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
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScenarioFile {
    /// Name: lower-case letters, digits, `-`, `_`.
    pub(super) name: Spanned<String>,
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
    /// When actors without a number of transactions stop.
    pub(super) duration: Option<Spanned<Amount>>,
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
    /// Who does something.
    pub(super) actors: Vec<ActorFile>,
}

/// `[server]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ServerFile {
    /// max_connections.
    pub(super) max_connections: Option<Spanned<Amount>>,
    /// max_prepared_transactions.
    pub(super) max_prepared_transactions: Option<Spanned<Amount>>,
    /// checkpoint_timeout.
    pub(super) checkpoint_every: Option<Spanned<Amount>>,
    /// How often running transactions are logged.
    pub(super) running_xacts_every: Option<Spanned<Amount>>,
    /// The first xid.
    pub(super) first_xid: Option<Spanned<Amount>>,
}

/// `[decoder]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DecoderFile {
    /// Syscache callbacks that are registered.
    pub(super) syscache_callbacks: Option<Spanned<Amount>>,
    /// Relcache callbacks that are registered.
    pub(super) relcache_callbacks: Option<Spanned<Amount>>,
    /// Caches that were used at least once.
    pub(super) caches_in_use: Option<Spanned<Amount>>,
}

/// `[readers]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadersFile {
    /// Snapshots taken on a standby, in simulated time.
    pub(super) snapshots_per_second: Option<Spanned<Amount>>,
}

/// `[[tables]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TableFile {
    /// Name; `{i}` counts if there are several.
    pub(super) name: Spanned<String>,
    /// How many.
    pub(super) count: Option<Spanned<Amount>>,
    /// Column definitions.
    pub(super) columns: Vec<Spanned<String>>,
    /// Partitions of each, named `name_1` and so on.
    pub(super) partitions: Option<Spanned<Amount>>,
    /// Rows in each (in each partition) before the log begins.
    pub(super) rows: Option<Spanned<Amount>>,
    /// Bytes of a row in a record, if not what its columns take.
    pub(super) row_bytes: Option<Spanned<Amount>>,
}

/// `[[actors]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ActorFile {
    /// Name.
    pub(super) name: Spanned<String>,
    /// How many sessions do the same.
    pub(super) sessions: Option<Spanned<Amount>>,
    /// When the first transaction begins.
    pub(super) start: Option<Spanned<PauseFile>>,
    /// Actors that must have finished before.
    #[serde(default)]
    pub(super) after: Vec<Spanned<String>>,
    /// From one transaction's begin to the next.
    pub(super) every: Option<Spanned<PauseFile>>,
    /// Transactions of each session.
    pub(super) transactions: Option<Spanned<Amount>>,
    /// Transactions of a hundred that roll back.
    pub(super) rollback_percent: Option<Spanned<Amount>>,
    /// What one transaction does.
    pub(super) steps: Vec<Spanned<StepFile>>,
}
