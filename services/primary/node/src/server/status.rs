//! The one place where an [`Error`] becomes what a client is told.

use std::time::Duration;

use service_kit::status::{Failure, Reason, failure, invalid_field};
use tonic::Status;

use crate::error::Error;
use crate::slots::SCENARIO;

/// What clients are told to wait before they try again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        failure_of(&error).into_status()
    }
}

/// Reason, metadata and details of an error.
fn failure_of(error: &Error) -> Failure {
    let text = error.to_string();
    match error {
        Error::InvalidField { field, description } => invalid_field(field, description),
        Error::AckOutOfOrder { field, lsn, sent, problem } => failure(Reason::AckOutOfOrder, text)
            .metadata("ackLsn", lsn)
            .metadata("sentLsn", sent)
            .field(*field, format!("{lsn} is {problem}")),
        Error::SlotNotFound { .. }
        | Error::SlotExists { .. }
        | Error::SlotActive { .. }
        | Error::SlotOfScenario { .. }
        | Error::SlotTakenOver { .. }
        | Error::SlotInvalidated { .. }
        | Error::SlotBuilding { .. }
        | Error::SlotChanged { .. } => slot_failure(error, text),
        Error::TooManySlots { limit } => failure(Reason::SlotLimit, text).quota("slots", format!("at most {limit}")),
        Error::TooManyStreams { limit } => {
            failure(Reason::StreamLimit, text).quota("streams", format!("at most {limit}")).retry_after(RETRY_AFTER)
        }
        Error::LsnRemoved { requested, oldest } => {
            failure(Reason::LsnRemoved, text).metadata("requestedLsn", requested).metadata("oldestLsn", oldest)
        }
        Error::LsnAhead { requested, end } => {
            failure(Reason::LsnAhead, text).metadata("requestedLsn", requested).metadata("endLsn", end)
        }
        Error::FeedbackTimeout { silent_ms, timeout_ms, last_flushed } => failure(Reason::FeedbackTimeout, text)
            .metadata("silentMs", silent_ms)
            .metadata("timeoutMs", timeout_ms)
            .metadata("lastFlushedLsn", last_flushed),
        Error::Draining => failure(Reason::Draining, text).retry_after(RETRY_AFTER),
        Error::DataLoss { lsn, file, reason } => {
            failure(Reason::WalCorrupt, text).metadata("lsn", lsn).metadata("file", file).metadata("cause", reason)
        }
        Error::WalMagicUnknown { file, magic, known } => failure(Reason::WalMagicUnknown, text)
            .metadata("file", file)
            .metadata("magic", format!("{magic:04X}"))
            .metadata("known", known),
        Error::RunsRefused(_)
        | Error::RunNotFound { .. }
        | Error::RunActive { .. }
        | Error::RequestIdReused { .. }
        | Error::RunLimit { .. } => run_failure(error, text),
        Error::ScenarioField { field, error } => failure(Reason::ScenarioInvalid, text)
            .metadata("scenario", &error.scenario)
            .metadata("line", error.line)
            .metadata("column", error.column)
            .field(*field, error.to_string()),
        Error::ArchiveUnavailable { object, .. } => {
            failure(Reason::NotReady, text).metadata("file", object.display()).retry_after(RETRY_AFTER)
        }
        Error::ArchiveUnreadable { object, reason } => {
            failure(Reason::WalCorrupt, text).metadata("file", object.display()).metadata("cause", reason)
        }
        Error::Scenario(_) => failure(Reason::ScenarioInvalid, text),
        Error::WalDirectory { .. }
        | Error::TimelineSwitched { .. }
        | Error::SlotFile { .. }
        | Error::SlotForeign { .. }
        | Error::SlotAhead { .. }
        | Error::ConsumerSlotTaken { .. }
        | Error::SlotsAwaited { .. }
        | Error::DataDirInUse { .. }
        | Error::RunFile { .. }
        | Error::Io { .. }
        | Error::NoSpace(_)
        | Error::Config(_)
        | Error::Server(_)
        | Error::Internal(_) => {
            // Nobody else will: the client can do nothing about it.
            tracing::error!(error = %text, "call failed");
            failure(Reason::Internal, text)
        }
    }
}

/// What [`failure_of`] says of an error of a slot.
fn slot_failure(error: &Error, text: String) -> Failure {
    match error {
        Error::SlotNotFound { name } => slot(failure(Reason::SlotNotFound, text), name, ""),
        Error::SlotExists { name } => slot(failure(Reason::SlotExists, text), name, ""),
        Error::SlotActive { name, holder, since_ms } => slot(failure(Reason::SlotActive, text), name, holder)
            .metadata("holder", holder)
            .metadata("since", prost_types::Timestamp::to_string(&super::convert::timestamp_ms(*since_ms))),
        Error::SlotOfScenario { name } => slot(failure(Reason::SlotActive, text), name, SCENARIO),
        Error::SlotTakenOver { name } => slot(failure(Reason::StreamTakenOver, text), name, ""),
        Error::SlotInvalidated { name, cause } => {
            slot(failure(Reason::SlotInvalidated, text), name, "").metadata("cause", cause)
        }
        Error::SlotBuilding { name, state, waits_for, running } => slot(failure(Reason::NotReady, text), name, "")
            .metadata("state", state)
            .metadata("waitsForXid", waits_for)
            .metadata("transactions", running)
            .retry_after(RETRY_AFTER),
        Error::SlotChanged { name, etag } => slot(failure(Reason::EtagMismatch, text), name, "").metadata("etag", etag),
        _ => failure(Reason::Internal, text),
    }
}

/// What [`failure_of`] says of an error of a run.
fn run_failure(error: &Error, text: String) -> Failure {
    match error {
        Error::RunsRefused(_) => failure(Reason::RunsRefused, text),
        Error::RunNotFound { id } => run(failure(Reason::RunNotFound, text), *id),
        Error::RunActive { id } => run(failure(Reason::RunActive, text), *id).metadata("run", format!("runs/{id}")),
        Error::RequestIdReused { request_id, id } => run(failure(Reason::RequestIdReused, text), *id)
            .metadata("requestId", request_id)
            .metadata("run", format!("runs/{id}")),
        Error::RunLimit { what, key, asked, max } => failure(Reason::RunLimit, text)
            .metadata("key", key)
            .metadata("asked", asked)
            .metadata("max", max)
            .quota(key, format!("at most {max} {what}")),
        _ => failure(Reason::Internal, text),
    }
}

/// Names the slot that an error is about.
fn slot(failure: Failure, name: &str, owner: &str) -> Failure {
    failure.resource("slot", &format!("slots/{name}"), owner)
}

/// Names the run that an error is about.
fn run(failure: Failure, id: u64) -> Failure {
    failure.resource("run", &format!("runs/{id}"), "")
}
