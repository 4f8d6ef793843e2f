//! A run on disk: `runs/ID.run` is what is known of it (JSON with its CRC-32C), `runs/ID.toml` the scenario's text.
//!
//! The text is stored first, so a run that is there has its text. Both are for their owner only: a scenario is user data.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pg_types::{FullXid, Lsn, Oid, Timestamp};
use primary_core::{Continuation, ParameterValue, RunSummary};
use serde::{Deserialize, Serialize};

use crate::config::ClockMode;
use crate::error::{Error, Result};
use crate::state_file::{self, lsn_text};

/// Format of the file; another one is refused.
const FORMAT: u32 = 1;
/// Largest file that is read: thousands of points and a hundred findings.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Largest text that is read back; a smaller limit was kept when it came.
const TEXT_BYTES_MAX: u64 = 64 << 20;
/// Findings that are kept.
const FINDINGS_MAX: usize = 100;

/// Where a run is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum RunPhase {
    /// Being played, or to be gone on with.
    Running,
    /// Played to its end.
    Succeeded,
    /// Ended by a client.
    Cancelled,
    /// It could not go on, or hit a limit.
    Failed,
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FindingKind {
    /// The scenario could not go on.
    ScenarioFailed,
    /// A limit ended the run.
    LimitReached,
    /// A client ended the run.
    Cancelled,
    /// The run was gone on with after a stop.
    Resumed,
    /// What the scenario expects came out.
    ExpectationHeld,
    /// Something else came out.
    ExpectationFailed,
}

/// Something to know about a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Finding {
    /// What it is about.
    pub(crate) kind: FindingKind,
    /// In words.
    pub(crate) text: String,
    /// Where WAL ended then.
    #[serde(with = "lsn_text")]
    pub(crate) lsn: Lsn,
    /// Point of the sweep.
    pub(crate) point: usize,
}

/// What a run, or one point of it, wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Counts {
    /// Transactions that committed.
    pub(crate) committed: u64,
    /// Transactions that rolled back.
    pub(crate) rolled_back: u64,
    /// WAL records.
    pub(crate) records: u64,
    /// Invalidation messages in commit records.
    pub(crate) messages: u64,
    /// Bytes of WAL.
    pub(crate) wal_bytes: u64,
    /// Simulated microseconds.
    pub(crate) simulated_us: u64,
}

impl Counts {
    /// Those of an engine.
    pub(crate) fn of(summary: &RunSummary) -> Counts {
        Counts {
            committed: summary.committed,
            rolled_back: summary.rolled_back,
            records: summary.records,
            messages: summary.messages,
            wal_bytes: summary.end_lsn.0.saturating_sub(summary.start_lsn.0),
            simulated_us: summary.simulated_us,
        }
    }

    /// Both together.
    pub(crate) fn plus(self, other: Counts) -> Counts {
        Counts {
            committed: self.committed + other.committed,
            rolled_back: self.rolled_back + other.rolled_back,
            records: self.records + other.records,
            messages: self.messages + other.messages,
            wal_bytes: self.wal_bytes + other.wal_bytes,
            simulated_us: self.simulated_us + other.simulated_us,
        }
    }
}

/// A place between two runs, from which the log is gone on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogPlace {
    /// Where the next record will start, or a little before.
    #[serde(with = "lsn_text")]
    pub(crate) lsn: Lsn,
    /// Start of the last record.
    #[serde(with = "lsn_text")]
    pub(crate) prev: Lsn,
    /// The next xid, with its epoch.
    pub(crate) next_xid: u64,
    /// The next object id.
    pub(crate) next_oid: u32,
    /// The time of the simulated clock, in PostgreSQL's microseconds.
    pub(crate) time_us: i64,
}

impl LogPlace {
    /// Where an engine goes on.
    pub(crate) fn continuation(&self) -> Continuation {
        Continuation { next_xid: FullXid(self.next_xid), next_oid: Oid(self.next_oid) }
    }

    /// The time there.
    pub(crate) fn time(&self) -> Timestamp {
        Timestamp(self.time_us)
    }
}

/// What a sweep sets at one of its points; a run without sweep has one point that sets nothing but the seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Setting {
    /// Seed.
    pub(crate) seed: u64,
    /// Parameters, on top of the request's.
    pub(crate) parameters: BTreeMap<String, ParameterValue>,
}

/// One point of a sweep; a run without sweep has one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PointFile {
    /// What it sets.
    pub(crate) setting: Setting,
    /// Where it began.
    pub(crate) begin: LogPlace,
    /// What it wrote; while it is played known in memory only.
    pub(crate) counts: Counts,
    /// It ended here.
    pub(crate) end: Option<LogPlace>,
}

/// What a client asked for, without the scenario's text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wish {
    /// The client's name for it; empty if it has none.
    pub(crate) request_id: String,
    /// The scenario is a shipped one and was asked for by its name.
    pub(crate) by_name: bool,
    /// Parameters.
    pub(crate) parameters: BTreeMap<String, String>,
    /// Seed, if one was asked for.
    pub(crate) seed: Option<u64>,
    /// How time passes.
    pub(crate) clock: ClockMode,
    /// Most transactions that begin in a second, 0 for no limit.
    pub(crate) max_txn_rate: u32,
}

/// Bounds that were in force when the run was accepted: a run that is gone on with must end where it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Bounds {
    /// Most simulated microseconds of a point.
    pub(crate) duration_us: u64,
    /// Most bytes of WAL of the run.
    pub(crate) wal_bytes: u64,
    /// Most invalidation messages of the run.
    pub(crate) messages: u64,
}

/// What is stored of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunFile {
    /// [`FORMAT`].
    format: u32,
    /// Its number, also the file's name.
    pub(crate) id: u64,
    /// System identifier of the log that it is in.
    pub(crate) system_id: u64,
    /// What was asked for.
    pub(crate) wish: Wish,
    /// Name of the scenario.
    pub(crate) scenario: String,
    /// Seed of the first point.
    pub(crate) seed: u64,
    /// Bounds.
    pub(crate) bounds: Bounds,
    /// Where it is in its life.
    pub(crate) phase: RunPhase,
    /// A client wants it to end.
    pub(crate) cancel_requested: bool,
    /// Steps of the last point after which it is, or was, ended for that.
    pub(crate) cancel_at_step: Option<u64>,
    /// What is set at each point.
    pub(crate) sweep: Vec<Setting>,
    /// The points that were begun. All but the last have ended.
    pub(crate) points: Vec<PointFile>,
    /// What there is to know, oldest first.
    pub(crate) findings: Vec<Finding>,
    /// Why it did not succeed.
    pub(crate) error: String,
    /// When it was accepted, in milliseconds since 1970.
    pub(crate) created_at_ms: u64,
    /// When it ended.
    pub(crate) ended_at_ms: Option<u64>,
}

/// What a new run is made of.
#[derive(Clone, Debug)]
pub(crate) struct NewRun {
    /// System identifier of the log.
    pub(crate) system_id: u64,
    /// What was asked for.
    pub(crate) wish: Wish,
    /// Name of the scenario.
    pub(crate) scenario: String,
    /// Its text.
    pub(crate) text: String,
    /// Points.
    pub(crate) sweep: Vec<Setting>,
    /// Bounds.
    pub(crate) bounds: Bounds,
    /// Now, in milliseconds since 1970.
    pub(crate) created_at_ms: u64,
}

impl RunFile {
    /// A run that is about to begin.
    pub(super) fn new(id: u64, new: &NewRun) -> RunFile {
        RunFile {
            format: FORMAT,
            id,
            system_id: new.system_id,
            wish: new.wish.clone(),
            scenario: new.scenario.clone(),
            seed: new.sweep.first().map_or(0, |point| point.seed),
            bounds: new.bounds,
            phase: RunPhase::Running,
            cancel_requested: false,
            cancel_at_step: None,
            sweep: new.sweep.clone(),
            points: Vec::new(),
            findings: Vec::new(),
            error: String::new(),
            created_at_ms: new.created_at_ms,
            ended_at_ms: None,
        }
    }

    /// Its resource name.
    pub(crate) fn name(&self) -> String {
        format!("runs/{}", self.id)
    }

    /// What was written, over all points.
    pub(crate) fn counts(&self) -> Counts {
        self.points.iter().fold(Counts::default(), |sum, point| sum.plus(point.counts))
    }

    /// The log behind its last point that has ended.
    pub(crate) fn end(&self) -> Option<LogPlace> {
        self.points.iter().rev().find_map(|point| point.end)
    }

    /// Notes something; past the limit the newest is left out.
    pub(crate) fn find(&mut self, kind: FindingKind, text: String, lsn: Lsn) {
        if self.findings.len() < FINDINGS_MAX {
            let point = self.points.len().saturating_sub(1);
            self.findings.push(Finding { kind, text, lsn, point });
        }
    }
}

/// What is kept of runs that were deleted: numbers are not given twice, and the log goes on behind them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Deleted {
    /// The greatest number of a deleted run.
    pub(super) last_id: u64,
    /// Where the log went on behind the newest of them.
    pub(super) end: Option<LogPlace>,
}

/// Where that is kept.
fn deleted_path(dir: &Path) -> PathBuf {
    dir.join("deleted")
}

/// Stores it.
pub(super) fn store_deleted(dir: &Path, deleted: &Deleted) -> Result<()> {
    state_file::store(&deleted_path(dir), &state_file::encode(deleted)?)
}

/// Reads it.
pub(super) fn load_deleted(dir: &Path) -> Result<Deleted> {
    let path = deleted_path(dir);
    if !path.exists() {
        return Ok(Deleted::default());
    }
    let text = state_file::read(&path, FILE_BYTES_MAX)?;
    text.and_then(|text| state_file::decode(&text)).map_err(|reason| Error::RunFile { path, reason })
}

/// Where the state of run `id` is.
pub(super) fn path_of(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id}.run"))
}

/// Where its text is.
fn text_path(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id}.toml"))
}

/// Stores a new run with its text.
pub(super) fn create(dir: &Path, run: &RunFile, text: &str) -> Result<()> {
    state_file::store(&text_path(dir, run.id), text.as_bytes())?;
    store(dir, run)
}

/// Stores a run's state.
pub(super) fn store(dir: &Path, run: &RunFile) -> Result<()> {
    state_file::store(&path_of(dir, run.id), &state_file::encode(run)?)
}

/// Removes a run.
pub(super) fn remove(dir: &Path, id: u64) -> Result<()> {
    state_file::remove(&path_of(dir, id))?;
    state_file::remove(&text_path(dir, id))
}

/// The scenario's text of run `id`.
pub(super) fn text(dir: &Path, id: u64) -> Result<String> {
    let path = text_path(dir, id);
    state_file::read(&path, TEXT_BYTES_MAX)?.map_err(|reason| Error::RunFile { path, reason })
}

/// Reads all runs, by number; removes what a crash in mid-write left.
pub(super) fn load_all(dir: &Path) -> Result<Vec<RunFile>> {
    let mut runs: Vec<RunFile> = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(Error::io("read directory", dir))? {
        let path = entry.map_err(Error::io("read directory", dir))?.path();
        match path.extension().and_then(|e| e.to_str()) {
            Some(state_file::TEMPORARY) => state_file::remove(&path)?,
            Some("run") => runs.push(load(&path)?),
            Some("toml") => {}
            None if path == deleted_path(dir) => {}
            _ => tracing::warn!(path = %path.display(), "ignoring a file that is no run"),
        }
    }
    runs.sort_by_key(|run| run.id);
    Ok(runs)
}

/// Reads one run.
fn load(path: &Path) -> Result<RunFile> {
    let damaged = |reason: String| Error::RunFile { path: path.to_owned(), reason };
    let text = state_file::read(path, FILE_BYTES_MAX)?.map_err(damaged)?;
    let run: RunFile = state_file::decode(&text).map_err(damaged)?;
    if run.format != FORMAT {
        return Err(damaged(format!("it has format {}, this program reads {FORMAT}", run.format)));
    }
    if path.file_stem().and_then(|s| s.to_str()) != Some(run.id.to_string().as_str()) {
        return Err(damaged(format!("it holds run {}, which is not its file name", run.id)));
    }
    Ok(run)
}
