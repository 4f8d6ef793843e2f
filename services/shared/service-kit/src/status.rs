//! The one place where `tonic::Status` is made: a stable reason, metadata and `google.rpc` details for every error.
//!
//! The table of reasons is documented for clients in the README of the contract; code and reason always go together.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::printable::{clip, printable};

/// The domain of our `ErrorInfo`s.
pub const DOMAIN: &str = "walstorm";

/// Bytes of a message, a metadata value or a description at most: details travel in an HTTP/2 header block, which is small.
const TEXT_MAX: usize = 1024;

/// Field violations and metadata entries at most, for the same reason.
const ENTRIES_MAX: usize = 16;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $code:ident;)*) => {
        /// Why a call failed. Clients act on this, never on the message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $($(#[$doc])* $name,)*
        }

        impl Reason {
            /// All reasons.
            pub const ALL: &'static [Reason] = &[$(Reason::$name),*];

            /// The text on the wire.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// The gRPC code that goes with it.
            #[must_use]
            pub fn code(self) -> Code {
                match self { $(Self::$name => Code::$code,)* }
            }
        }
    };
}

reasons! {
    /// A field of the request is wrong; BadRequest names it.
    RequestInvalid = "REQUEST_INVALID", InvalidArgument;
    /// A position goes back, or beyond what was sent.
    AckOutOfOrder = "ACK_OUT_OF_ORDER", InvalidArgument;
    /// The LSN is older than what is kept. Do not retry as is.
    LsnRemoved = "LSN_REMOVED", OutOfRange;
    /// The LSN lies in the future.
    LsnAhead = "LSN_AHEAD", OutOfRange;
    /// No such slot.
    SlotNotFound = "SLOT_NOT_FOUND", NotFound;
    /// There is a slot of that name.
    SlotExists = "SLOT_EXISTS", AlreadyExists;
    /// Another client holds the slot.
    SlotActive = "SLOT_ACTIVE", FailedPrecondition;
    /// WAL that the slot needs is gone.
    SlotInvalidated = "SLOT_INVALIDATED", FailedPrecondition;
    /// The decoder gives nothing out before the commit.
    NotInProgress = "NOT_IN_PROGRESS", FailedPrecondition;
    /// The resource changed since its etag was read.
    EtagMismatch = "ETAG_MISMATCH", Aborted;
    /// The same client opened the slot again; this stream is the old one.
    StreamTakenOver = "STREAM_TAKEN_OVER", Aborted;
    /// The client was silent for too long.
    FeedbackTimeout = "FEEDBACK_TIMEOUT", DeadlineExceeded;
    /// The position was not replayed in time.
    ReplayTimeout = "REPLAY_TIMEOUT", DeadlineExceeded;
    /// No more slots.
    SlotLimit = "SLOT_LIMIT", ResourceExhausted;
    /// No more streams.
    StreamLimit = "STREAM_LIMIT", ResourceExhausted;
    /// No more locks for this reader.
    LockLimit = "LOCK_LIMIT", ResourceExhausted;
    /// The budget for memory or spill files is used up.
    SpillLimit = "SPILL_LIMIT", ResourceExhausted;
    /// A modelled allocation is larger than PostgreSQL could make.
    AllocTooLarge = "ALLOC_TOO_LARGE", ResourceExhausted;
    /// The server is about to stop.
    Draining = "DRAINING", Unavailable;
    /// The server cannot answer yet.
    NotReady = "NOT_READY", Unavailable;
    /// Replay needs what a reader holds: start again.
    RecoveryConflict = "RECOVERY_CONFLICT", Aborted;
    /// Replay has stopped for good: a person must act.
    ReplayHalted = "REPLAY_HALTED", FailedPrecondition;
    /// The WAL is of a version that this build does not read.
    WalMagicUnknown = "WAL_MAGIC_UNKNOWN", Unimplemented;
    /// The WAL ends in something that is no end of WAL.
    WalCorrupt = "WAL_CORRUPT", DataLoss;
    /// A scenario is wrong; BadRequest has path, line and column.
    ScenarioInvalid = "SCENARIO_INVALID", InvalidArgument;
    /// This server plays no runs.
    RunsRefused = "RUNS_REFUSED", FailedPrecondition;
    /// No such run.
    RunNotFound = "RUN_NOT_FOUND", NotFound;
    /// A run is played: another cannot begin, and it cannot be deleted.
    RunActive = "RUN_ACTIVE", FailedPrecondition;
    /// The request id names another wish.
    RequestIdReused = "REQUEST_ID_REUSED", AlreadyExists;
    /// The transaction is not among those that are kept.
    TransactionNotFound = "TRANSACTION_NOT_FOUND", NotFound;
    /// An analysis is larger than the server allows, or others are running; metadata have the key of the setting.
    AnalysisLimit = "ANALYSIS_LIMIT", ResourceExhausted;
    /// A run is larger than the server allows; metadata have the key of the setting.
    RunLimit = "RUN_LIMIT", ResourceExhausted;
    /// A defect of ours.
    Internal = "INTERNAL", Internal;
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text is no reason of ours: an older or newer server, or another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown reason")]
pub struct UnknownReason;

impl FromStr for Reason {
    type Err = UnknownReason;

    fn from_str(text: &str) -> Result<Self, UnknownReason> {
        Self::ALL.iter().copied().find(|r| r.as_str() == text).ok_or(UnknownReason)
    }
}

/// An error in the making; turn it into a [`Status`] with `?`, `.into()` or [`Failure::into_status`].
#[derive(Clone, Debug)]
#[must_use = "an error that is not returned is lost"]
pub struct Failure {
    reason: Reason,
    message: String,
    metadata: Vec<(&'static str, String)>,
    details: ErrorDetails,
    fields: usize,
}

/// Starts an error: what happened, and what to do about it, as one sentence for people.
pub fn failure(reason: Reason, message: impl AsRef<str>) -> Failure {
    Failure { reason, message: shown(message.as_ref()), metadata: Vec::new(), details: ErrorDetails::new(), fields: 0 }
}

/// Text for people, who may look at it in a terminal: what came from outside cannot write to it.
fn shown(text: &str) -> String {
    printable(&clip(text, TEXT_MAX)).into_owned()
}

/// A wrong field of a request: its path (`start.max_outstanding_bytes`) and what it must be.
pub fn invalid_field(path: &str, must: impl AsRef<str>) -> Failure {
    let must = must.as_ref();
    failure(Reason::RequestInvalid, format!("{path}: {must}")).field(path, must)
}

impl Failure {
    /// Adds a fact for programs; `key` in lowerCamel.
    #[expect(clippy::needless_pass_by_value, reason = "callers pass numbers and positions, which are copied anyway")]
    pub fn metadata(mut self, key: &'static str, value: impl ToString) -> Self {
        debug_assert!(key.starts_with(|c: char| c.is_ascii_lowercase()) && key.bytes().all(|b| b.is_ascii_alphanumeric()));
        if self.metadata.len() < ENTRIES_MAX {
            self.metadata.push((key, clip(&value.to_string(), TEXT_MAX).into_owned()));
        }
        self
    }

    /// Adds a field violation (`BadRequest`).
    pub fn field(mut self, path: impl AsRef<str>, description: impl AsRef<str>) -> Self {
        if self.fields < ENTRIES_MAX {
            self.details.add_bad_request_violation(shown(path.as_ref()), shown(description.as_ref()));
            self.fields += 1;
        }
        self
    }

    /// Says when to try again (`RetryInfo`).
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.details.set_retry_info(Some(delay));
        self
    }

    /// Names the resource (`ResourceInfo`): its kind (`slot`), its name (`slots/orders`), who holds it (or empty).
    pub fn resource(mut self, kind: &str, name: &str, owner: &str) -> Self {
        self.details.set_resource_info(kind, clip(name, TEXT_MAX), clip(owner, TEXT_MAX), self.message.as_str());
        self
    }

    /// Names the limit that was hit (`QuotaFailure`).
    pub fn quota(mut self, subject: &str, description: impl AsRef<str>) -> Self {
        self.details.add_quota_failure_violation(subject, clip(description.as_ref(), TEXT_MAX));
        self
    }

    /// The finished status.
    #[must_use]
    pub fn into_status(mut self) -> Status {
        let metadata: std::collections::HashMap<String, String> =
            self.metadata.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        self.details.set_error_info(self.reason.as_str(), DOMAIN, metadata);
        Status::with_error_details(self.reason.code(), self.message, self.details)
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        failure.into_status()
    }
}

/// The reason of a status that one of our servers sent; none for others.
#[must_use]
pub fn reason_of(status: &Status) -> Option<Reason> {
    let info = status.get_details_error_info()?;
    if info.domain == DOMAIN { info.reason.parse().ok() } else { None }
}

/// One metadata value of a status that one of our servers sent.
#[must_use]
pub fn metadata_of(status: &Status, key: &str) -> Option<String> {
    status.get_details_error_info()?.metadata.remove(key)
}

/// How long the server asks to wait before trying again.
#[must_use]
pub fn retry_delay_of(status: &Status) -> Option<Duration> {
    status.get_details_retry_info()?.retry_delay
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_from_outside_cannot_write_to_a_terminal() {
        let status = invalid_field("name", "not \u{1b}[2Jthis").into_status();
        assert_eq!(status.message(), "name: not \\u{1b}[2Jthis");
    }

    #[test]
    fn every_reason_has_its_text_and_comes_back_from_it() {
        for &reason in Reason::ALL {
            assert_eq!(reason.as_str().parse(), Ok(reason));
            assert!(reason.as_str().bytes().all(|b| b.is_ascii_uppercase() || b == b'_'));
            assert_ne!(reason.code(), Code::Ok);
        }
        assert_eq!("NO_SUCH_REASON".parse::<Reason>(), Err(UnknownReason));
    }

    #[test]
    fn details_survive_the_wire_form() {
        let status = failure(Reason::SlotActive, "slot slots/orders is in use by reader-1")
            .metadata("holder", "reader-1")
            .metadata("since", 12)
            .resource("slot", "slots/orders", "reader-1")
            .retry_after(Duration::from_secs(1))
            .into_status();
        // What the client sees is made from the same bytes.
        let status = Status::with_details(status.code(), status.message(), bytes::Bytes::copy_from_slice(status.details()));
        assert_eq!(status.code(), Code::FailedPrecondition);
        assert_eq!(reason_of(&status), Some(Reason::SlotActive));
        assert_eq!(metadata_of(&status, "holder").as_deref(), Some("reader-1"));
        assert_eq!(metadata_of(&status, "since").as_deref(), Some("12"));
        assert_eq!(retry_delay_of(&status), Some(Duration::from_secs(1)));
        let resource = status.get_details_resource_info().expect("was set");
        assert_eq!((resource.resource_name.as_str(), resource.owner.as_str()), ("slots/orders", "reader-1"));
    }

    #[test]
    fn the_reason_of_another_domain_is_not_ours() {
        let details = ErrorDetails::with_error_info("DRAINING", "elsewhere", std::collections::HashMap::new());
        assert_eq!(reason_of(&Status::with_error_details(Code::Unavailable, "no", details)), None);
        assert_eq!(reason_of(&Status::unavailable("plain")), None);
    }

    #[test]
    fn text_from_outside_cannot_blow_up_the_header_block() {
        let huge = "x".repeat(1 << 20);
        let mut failure = failure(Reason::RequestInvalid, &huge).resource("slot", &huge, &huge);
        for _ in 0..100 {
            failure = failure.field(&huge, &huge).metadata("value", &huge);
        }
        assert!(failure.into_status().details().len() < 64 << 10);
    }
}
