//! Runs between the domain and the contract.

use std::collections::{BTreeMap, HashMap};

use pg_types::Lsn;
use primary_core::scenario::PlanSize;
use walstorm_proto::primary::v1 as pb;

use super::convert::timestamp_ms;
use crate::config::ClockMode;
use crate::error::{Error, Result};
use crate::runs::{Counts, Finding, FindingKind, NewRun, PointFile, RunFile, RunPhase};

/// How time passes.
///
/// # Errors
/// A mode that this server does not know.
pub(super) fn time_mode(mode: i32) -> Result<ClockMode> {
    match pb::TimeMode::try_from(mode) {
        Ok(pb::TimeMode::Unspecified | pb::TimeMode::Virtual) => Ok(ClockMode::Virtual),
        Ok(pb::TimeMode::Real) => Ok(ClockMode::Real),
        Ok(pb::TimeMode::AsFastAsPossible) => Ok(ClockMode::Max),
        Err(_) => Err(Error::field("time_mode", "VIRTUAL, REAL or AS_FAST_AS_POSSIBLE")),
    }
}

/// The inverse.
fn time_mode_message(mode: ClockMode) -> pb::TimeMode {
    match mode {
        ClockMode::Virtual => pb::TimeMode::Virtual,
        ClockMode::Real => pb::TimeMode::Real,
        ClockMode::Max => pb::TimeMode::AsFastAsPossible,
    }
}

/// Parameters in the order of their names, without control characters.
///
/// # Errors
/// A name or value has one.
pub(super) fn names_of(asked: HashMap<String, String>) -> Result<BTreeMap<String, String>> {
    let plain = |text: &str| !text.chars().any(char::is_control);
    match asked.iter().find(|(name, value)| !plain(name) || !plain(value)) {
        Some(_) => Err(Error::field("parameters", "names and values have no control characters")),
        None => Ok(asked.into_iter().collect()),
    }
}

/// The larger of a point's size and what was found before.
pub(super) fn size(size: &PlanSize, sweep_points: usize, before: &pb::ScenarioSize) -> pb::ScenarioSize {
    let micros = |d: &prost_types::Duration| d.seconds as u64 * 1_000_000 + d.nanos as u64 / 1000;
    let longest = size.duration_us.max(before.duration.as_ref().map(micros));
    pb::ScenarioSize {
        tables: size.tables.max(before.tables),
        rows: size.rows.max(before.rows),
        message_bytes: size.message_bytes.max(before.message_bytes),
        sessions: size.sessions.max(before.sessions),
        sweep_points: sweep_points as u64,
        duration: longest.map(micros_message),
    }
}

/// Microseconds as protobuf's duration.
fn micros_message(us: u64) -> prost_types::Duration {
    prost_types::Duration { seconds: (us / 1_000_000) as i64, nanos: (us % 1_000_000 * 1000) as i32 }
}

/// What was written.
fn counts(counts: Counts) -> pb::RunCounts {
    pb::RunCounts {
        committed: counts.committed,
        rolled_back: counts.rolled_back,
        records: counts.records,
        messages: counts.messages,
        wal_bytes: counts.wal_bytes,
        simulated: Some(micros_message(counts.simulated_us)),
    }
}

/// How far a run is.
pub(super) fn progress(run: &RunFile) -> pb::RunProgress {
    pb::RunProgress {
        point: run.points.len().saturating_sub(1) as u32,
        points: run.sweep.len() as u32,
        counts: Some(counts(run.counts())),
    }
}

/// Something to know.
pub(super) fn finding(found: &Finding) -> pb::RunFinding {
    let kind = match found.kind {
        FindingKind::ScenarioFailed => pb::FindingKind::ScenarioFailed,
        FindingKind::LimitReached => pb::FindingKind::LimitReached,
        FindingKind::Cancelled => pb::FindingKind::Cancelled,
        FindingKind::Resumed => pb::FindingKind::Resumed,
        FindingKind::ExpectationHeld => pb::FindingKind::ExpectationHeld,
        FindingKind::ExpectationFailed => pb::FindingKind::ExpectationFailed,
    };
    pb::RunFinding { kind: kind.into(), text: found.text.clone(), lsn: found.lsn.0, point: found.point as u32 }
}

/// A point.
fn point(point: &PointFile) -> pb::RunPoint {
    pb::RunPoint {
        seed: point.setting.seed,
        parameters: point.setting.parameters.iter().map(|(name, value)| (name.clone(), value.to_string())).collect(),
        start_lsn: point.begin.lsn.0,
        end_lsn: point.end.map_or(Lsn(point.begin.lsn.0 + point.counts.wal_bytes), |end| end.lsn).0,
        counts: Some(counts(point.counts)),
    }
}

/// A run as it would be.
pub(super) fn planned(new: &NewRun) -> pb::Run {
    pb::Run {
        request_id: new.wish.request_id.clone(),
        scenario: new.scenario.clone(),
        parameters: new.wish.parameters.clone().into_iter().collect(),
        seed: new.sweep.first().map_or(0, |point| point.seed),
        time_mode: time_mode_message(new.wish.clock).into(),
        max_txn_rate: new.wish.max_txn_rate,
        point_count: new.sweep.len() as u32,
        ..pb::Run::default()
    }
}

/// A run without its points and findings.
pub(super) fn run_summary(run: &RunFile, pg_version: u32) -> pb::Run {
    let state = match run.phase {
        RunPhase::Running => pb::RunState::Running,
        RunPhase::Succeeded => pb::RunState::Succeeded,
        RunPhase::Cancelled => pb::RunState::Cancelled,
        RunPhase::Failed => pb::RunState::Failed,
    };
    pb::Run {
        name: run.name(),
        request_id: run.wish.request_id.clone(),
        scenario: run.scenario.clone(),
        parameters: run.wish.parameters.clone().into_iter().collect(),
        seed: run.seed,
        time_mode: time_mode_message(run.wish.clock).into(),
        max_txn_rate: run.wish.max_txn_rate,
        pg_version,
        state: state.into(),
        cancel_requested: run.cancel_requested,
        counts: Some(counts(run.counts())),
        points: Vec::new(),
        point_count: run.sweep.len() as u32,
        findings: Vec::new(),
        error: run.error.clone(),
        create_time: Some(timestamp_ms(run.created_at_ms)),
        end_time: run.ended_at_ms.map(timestamp_ms),
    }
}

/// A whole run.
pub(super) fn run_message(run: &RunFile, pg_version: u32) -> pb::Run {
    pb::Run {
        points: run.points.iter().map(point).collect(),
        findings: run.findings.iter().map(finding).collect(),
        ..run_summary(run, pg_version)
    }
}
