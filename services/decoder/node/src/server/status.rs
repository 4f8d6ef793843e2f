//! Errors of subscribers' streams as typed statuses: the one place where they are made.

use std::time::Duration;

use pg_types::Lsn;
use service_kit::status::{Failure, Reason, failure, invalid_field};
use tonic::Status;

use crate::output_log::LogError;
use crate::subscriber::{FeedbackError, FeedbackTimeout};
use crate::subscriptions::OpenError;

/// What clients wait before they try again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The same where a person has to help first.
const RETRY_AFTER_HALT: Duration = Duration::from_secs(30);

/// There is no output log yet, or a new one takes its place.
pub(super) fn not_ready(why: &str) -> Status {
    failure(Reason::NotReady, why).retry_after(RETRY_AFTER).into_status()
}

/// The decoder has halted before it served anything. `error` says why, and what would help.
pub(super) fn halted(error: &str) -> Status {
    failure(Reason::NotReady, format!("the decoder has halted: {error}")).retry_after(RETRY_AFTER_HALT).into_status()
}

/// A stream cannot be opened.
pub(super) fn open(error: &OpenError) -> Status {
    let text = error.to_string();
    match error {
        OpenError::Name => invalid_field("start.subscription", text).into_status(),
        OpenError::Active { name, holder, since_ms } => failure(Reason::SlotActive, text)
            .metadata("holder", holder)
            .metadata("sinceMs", since_ms)
            .resource("subscription", name, holder)
            .into_status(),
        OpenError::Streams { limit } => limited(&text, "streams", *limit),
        OpenError::Names { limit } => limited(&text, "subscriptions", *limit),
    }
}

/// A limit is reached.
fn limited(text: &str, subject: &str, limit: usize) -> Status {
    failure(Reason::StreamLimit, text).quota(subject, format!("at most {limit}")).retry_after(RETRY_AFTER).into_status()
}

/// The limit of spill files has halted the decoder. `error` says so.
pub(super) fn spill_limit(error: &str, bytes_max: u64) -> Status {
    failure(Reason::SpillLimit, error)
        .metadata("bytesMax", bytes_max)
        .quota("spill.bytes_max", format!("at most {bytes_max} bytes"))
        .retry_after(RETRY_AFTER_HALT)
        .into_status()
}

/// The output log cannot be read.
pub(super) fn log(error: &LogError) -> Status {
    let text = error.to_string();
    match error {
        LogError::Removed { requested, oldest } => {
            failure(Reason::LsnRemoved, text).metadata("requestedLsn", requested).metadata("oldestLsn", oldest).into_status()
        }
        LogError::Damaged { path, offset, reason, .. } => failure(Reason::WalCorrupt, &text)
            .metadata("file", path.display())
            .metadata("offset", offset)
            .metadata("cause", reason)
            .into_status(),
        _ => failure(Reason::Internal, text).into_status(),
    }
}

/// The position asked for lies in the future.
pub(super) fn ahead(requested: Lsn, end: Lsn) -> Status {
    failure(Reason::LsnAhead, format!("{requested} lies beyond {end}, the end of WAL"))
        .metadata("requestedLsn", requested)
        .metadata("endLsn", end)
        .into_status()
}

/// The decoder gives nothing out before the commit.
pub(super) fn not_in_progress() -> Status {
    let must = "must be DELIVERY_ON_COMMIT: this decoder has neither `streaming` nor `two_phase`, or its WAL cannot tell";
    failure(Reason::NotInProgress, format!("start.delivery {must}")).field("start.delivery", must).into_status()
}

/// A feedback cannot be true.
pub(super) fn feedback(error: &FeedbackError) -> Status {
    let (ack, sent) = match error {
        FeedbackError::Back { told, before } => (told, before),
        FeedbackError::Beyond { told, sent } => (told, sent),
    };
    failure(Reason::AckOutOfOrder, error.to_string())
        .metadata("ackLsn", ack)
        .metadata("sentLsn", sent)
        .field("feedback.flushed_lsn", error.to_string())
        .into_status()
}

/// The client was silent for too long.
pub(super) fn timeout(error: &FeedbackTimeout, flushed: Lsn) -> Status {
    failure(Reason::FeedbackTimeout, error.to_string())
        .metadata("lastFeedback", flushed)
        .metadata("timeoutMs", error.timeout.as_millis())
        .into_status()
}

/// The same client opened the subscription again.
pub(super) fn taken_over(name: &str) -> Status {
    failure(Reason::StreamTakenOver, format!("subscription \"{name}\" was taken over by a newer stream of the same client"))
        .resource("subscription", name, "")
        .into_status()
}

/// A message that must not come now.
pub(super) fn unexpected(field: &str, must: &str) -> Failure {
    invalid_field(field, must)
}
