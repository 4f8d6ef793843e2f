//! What a run found, in two files: `report.json` holds what depends on the input alone, so that the same seed gives the same bytes;
//! `timings.json` holds what was measured. Tables on the terminal are made from both.

use std::collections::BTreeMap;

use decoder_core::SnapBuildCounts;
use pg_types::{Lsn, Work};
use primary_core::ParameterValue;
use serde::{Serialize, Serializer};

use super::subscriber::{Counts, InProgress};

/// Layout number of both files.
pub const FORMAT: u32 = 1;

/// `report.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// [`FORMAT`].
    pub format: u32,
    /// Version of walstorm.
    pub walstorm: &'static str,
    /// Seed of the scenarios; none: each its own.
    pub seed: Option<u64>,
    /// How time passed.
    pub clock: &'static str,
    /// What was played, in order.
    pub sources: Vec<SourceReport>,
}

/// One source.
#[derive(Clone, Debug, Serialize)]
pub struct SourceReport {
    /// Its name in this run.
    pub source: String,
    /// `sample`, `wal` or `scenario`.
    pub kind: &'static str,
    /// What it is, in a line.
    pub about: String,
    /// The scale at which a ladder was played, empty otherwise.
    pub scale: String,
    /// Seed of a scenario; none for WAL that was there.
    pub seed: Option<u64>,
    /// Parameters of a scenario that were not its own.
    pub parameters: BTreeMap<String, ParameterValue>,
    /// It is a point of a sweep.
    pub is_point: bool,
    /// The WAL.
    pub wal: WalReport,
    /// What went through the nodes.
    pub pipeline: PipelineReport,
    /// Who decodes: live or catch-up.
    pub consumer: String,
    /// Profile under which transactions are ranked by the steps of decoding them.
    pub ranked_by: String,
    /// Steps of all transactions under that profile.
    pub steps_all: u64,
    /// Publications that were asked for and are not there: nothing of them is given out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_publications: Vec<String>,
    /// The costliest transactions, dearest first.
    pub costliest: Vec<TransactionReport>,
    /// The decoder under each profile.
    pub decoder_profiles: Vec<DecoderProfileReport>,
    /// Readers of the standby under each profile.
    pub standby_profiles: Vec<StandbyProfileReport>,
}

/// The WAL of a source.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WalReport {
    /// Major version of PostgreSQL.
    pub version: u32,
    /// `system_identifier`, as text: it does not fit into a number of JSON.
    pub system_id: String,
    /// Timeline.
    pub timeline: u32,
    /// Start of the first record.
    #[serde(serialize_with = "lsn")]
    pub start_lsn: Lsn,
    /// End of the last record.
    #[serde(serialize_with = "lsn")]
    pub end_lsn: Lsn,
    /// Records.
    pub records: u64,
    /// Bytes from start to end.
    pub bytes: u64,
    /// Commits, those of prepared transactions included.
    pub commits: u64,
    /// Rollbacks.
    pub aborts: u64,
    /// Invalidation messages in commit records.
    pub messages: u64,
    /// It says that wal_level is below logical: a server would decode nothing of it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub below_logical: bool,
}

/// What the three nodes made of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PipelineReport {
    /// Profile of the decoder.
    pub decoder_profile: String,
    /// Profile of the standby.
    pub standby_profile: String,
    /// Transactions that the decoder gave out.
    pub transactions_decoded: u64,
    /// What a subscriber received.
    pub subscriber: Counts,
    /// What another one received that gets transactions before their commit, if the scenario asks for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before_commit: Option<InProgress>,
    /// What decoding did.
    #[serde(serialize_with = "work")]
    pub decoder_work: Work,
    /// Transactions whose end the standby replayed.
    pub transactions_replayed: u64,
    /// Records that the standby replayed.
    pub records_replayed: u64,
    /// State of the standby at the end.
    pub standby_state: String,
    /// Why a node stopped before the end, in its words; empty if none did.
    pub stopped: Vec<String>,
}

/// A costly transaction.
#[derive(Clone, Debug, Serialize)]
pub struct TransactionReport {
    /// Top-level xid.
    pub xid: u32,
    /// Start of its commit record.
    #[serde(serialize_with = "lsn")]
    pub commit_lsn: Lsn,
    /// What it looks like, from its changes and messages.
    pub looks_like: String,
    /// Rows changed.
    pub rows: u64,
    /// Its messages by kind.
    pub messages: BTreeMap<&'static str, u64>,
    /// Its catcache messages by cache, most first.
    pub caches: Vec<CacheCount>,
    /// What decoding it did, by profile.
    #[serde(serialize_with = "works")]
    pub work: Vec<(String, Work)>,
}

/// Messages of one catcache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CacheCount {
    /// PostgreSQL's name of the cache, or its number.
    pub cache: String,
    /// How many.
    pub messages: u64,
}

/// A decoder under one profile.
#[derive(Clone, Debug, Serialize)]
pub struct DecoderProfileReport {
    /// The profile.
    pub profile: String,
    /// Who decodes: live or catch-up.
    pub consumer: String,
    /// The published figure, if the profile is on a ladder.
    pub published: &'static str,
    /// What a real server of that version took at this scale, if it was measured.
    pub real_server: &'static str,
    /// What decoding did.
    #[serde(serialize_with = "work")]
    pub work: Work,
    /// What building snapshots took.
    #[serde(serialize_with = "snapshots")]
    pub snapshots: SnapBuildCounts,
    /// The decoded stream is that of the first profile.
    pub identical_output: bool,
}

/// Readers of a standby under one profile.
#[derive(Clone, Debug, Serialize)]
pub struct StandbyProfileReport {
    /// The profile.
    pub profile: String,
    /// The published figure, if the profile is on a ladder.
    pub published: &'static str,
    /// What a real server of that version took at this scale, if it was measured.
    pub real_server: &'static str,
    /// Snapshots taken, by the WAL's own time.
    pub snapshots: u64,
    /// Most slots from tail to head that a snapshot found.
    pub span_max: u32,
    /// Most live xids that a snapshot found.
    pub live_max: u32,
    /// Compressions of the array.
    pub compressions: u64,
    /// What the snapshots did.
    #[serde(serialize_with = "work")]
    pub work: Work,
    /// The snapshots show as many xids as those of the first profile.
    pub identical_snapshots: bool,
}

/// `timings.json`: measured, so never the same twice.
#[derive(Clone, Debug, Serialize)]
pub struct Timings {
    /// [`FORMAT`].
    pub format: u32,
    /// Wall time of the whole run, in nanoseconds.
    pub wall_ns: u64,
    /// By source, in the order of the report.
    pub sources: Vec<SourceTimings>,
}

/// What was measured of one source.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SourceTimings {
    /// Its name in this run.
    pub source: String,
    /// From the start of the nodes until both followers had everything, in nanoseconds.
    pub pipeline_wall_ns: u64,
    /// What the readers of the running standby saw.
    pub readers: super::readers::ReaderCounts,
    /// The decoder under each profile.
    pub decoder_profiles: Vec<DecoderProfileTimings>,
    /// Readers of the standby under each profile.
    pub standby_profiles: Vec<StandbyProfileTimings>,
}

/// What was measured of a decoder.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DecoderProfileTimings {
    /// The profile.
    pub profile: String,
    /// CPU time in all, in nanoseconds.
    pub cpu_ns: u64,
    /// CPU time by function, in nanoseconds, by PostgreSQL's names.
    pub functions_cpu_ns: BTreeMap<&'static str, u64>,
    /// Wall time, in nanoseconds.
    pub wall_ns: u64,
}

/// What was measured of a standby's readers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct StandbyProfileTimings {
    /// The profile.
    pub profile: String,
    /// CPU time of the snapshots, in nanoseconds.
    pub snapshot_cpu_ns: u64,
    /// CPU time of reading and replaying the WAL, in nanoseconds.
    pub replay_cpu_ns: u64,
}

/// A position as `X/Y`.
fn lsn<S: Serializer>(lsn: &Lsn, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(lsn)
}

/// Counters by name.
fn work<S: Serializer>(work: &Work, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(work.entries())
}

/// Counters of snapshots, by the names that `walstorm compare` gives them.
fn snapshots<S: Serializer>(counts: &SnapBuildCounts, serializer: S) -> Result<S::Ok, S::Error> {
    let SnapBuildCounts { built, copied, shared, compared, moved, .. } = *counts;
    serializer.collect_map([("built", built), ("copied", copied), ("shared", shared), ("compared", compared), ("moved", moved)])
}

/// Counters by profile and name.
fn works<S: Serializer>(works: &[(String, Work)], serializer: S) -> Result<S::Ok, S::Error> {
    struct Counters<'a>(&'a Work);
    impl Serialize for Counters<'_> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            work(self.0, serializer)
        }
    }
    serializer.collect_map(works.iter().map(|(profile, work)| (profile, Counters(work))))
}
