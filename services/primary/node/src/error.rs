//! What can go wrong in the primary, as one type: what a client is told is derived from it in one place (`server::status`).

use std::path::PathBuf;

use pg_types::{Lsn, Xid};

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the primary. Messages name the place and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request field is missing or out of its range.
    #[error("{field}: {description}")]
    InvalidField {
        /// Path of the field in the request, as in the `.proto` file.
        field: &'static str,
        /// What is wrong and what would be right.
        description: String,
    },
    /// No slot of that name.
    #[error("slot \"{name}\" does not exist: create it with CreateSlot, or leave the slot empty for an ephemeral stream")]
    SlotNotFound {
        /// Its name.
        name: String,
    },
    /// The name is taken.
    #[error("slot \"{name}\" already exists: stream from it, choose another name, or delete it with DeleteSlot")]
    SlotExists {
        /// Its name.
        name: String,
    },
    /// Another client streams from the slot.
    #[error("slot \"{name}\" is in use by client \"{holder}\": wait until its stream ends, or use a slot of your own")]
    SlotActive {
        /// Its name.
        name: String,
        /// `client_id` of the stream that holds it.
        holder: String,
        /// When that stream took it, in milliseconds since 1970.
        since_ms: u64,
    },
    /// The slot is a scenario's consumer's.
    #[error("slot \"{name}\" belongs to a consumer of the scenario that is played: copy it with CopySlot, and use the copy")]
    SlotOfScenario {
        /// Its name.
        name: String,
    },
    /// A consumer of the scenario would have the slot of a client.
    #[error(
        "the scenario has a consumer with slot \"{name}\", and a client has a slot of that name already: rename one of them, or \
         delete the client's with DeleteSlot"
    )]
    ConsumerSlotTaken {
        /// Its name.
        name: String,
    },
    /// Slots that the scenario is to wait for did not come.
    #[error(
        "source.wait_for_slots: after {waited_s} s there is no slot {missing}: start the nodes that make them, correct the names, \
         or raise source.wait_for_slots_timeout. There are: {there}"
    )]
    SlotsAwaited {
        /// Those that did not come, in quotes.
        missing: String,
        /// Those that are there, in quotes.
        there: String,
        /// How long it waited, in seconds.
        waited_s: u64,
    },
    /// A newer stream of the same client took the slot over.
    #[error(
        "slot \"{name}\" was taken over by a newer stream of the same client: if that was another consumer, give each a client_id \
         of its own"
    )]
    SlotTakenOver {
        /// Its name.
        name: String,
    },
    /// The slot lost the WAL it needs, for good.
    #[error("slot \"{name}\" can no longer be used: {cause}; delete it and create a new one")]
    SlotInvalidated {
        /// Its name.
        name: String,
        /// Why.
        cause: String,
    },
    /// The slot is a logical one whose starting point is not found yet.
    #[error("slot \"{name}\" is still being built (state {state}): GetSlot tells which transactions it waits for")]
    SlotBuilding {
        /// Its name.
        name: String,
        /// State of its creation.
        state: &'static str,
        /// All transactions before must have ended; invalid at the beginning.
        waits_for: Xid,
        /// How many have not.
        running: usize,
    },
    /// The slot is not in the state that the request's etag names.
    #[error("slot \"{name}\" has changed since it was read (its etag is now {etag})")]
    SlotChanged {
        /// Its name.
        name: String,
        /// Its present etag.
        etag: String,
    },
    /// No more slots fit.
    #[error("all {limit} slots are in use: delete one or raise max_slots")]
    TooManySlots {
        /// The configured limit.
        limit: usize,
    },
    /// No more streams fit.
    #[error("all {limit} streams are in use: try again later or raise streams.max")]
    TooManyStreams {
        /// The configured limit.
        limit: usize,
    },
    /// The asked WAL is no longer kept.
    #[error(
        "WAL at {requested} has been removed; the oldest kept is {oldest}: start there, and use a slot, which keeps what its \
         consumer needs"
    )]
    LsnRemoved {
        /// What was asked for.
        requested: Lsn,
        /// What is there.
        oldest: Lsn,
    },
    /// The asked WAL has not been written.
    #[error(
        "WAL at {requested} is ahead of the end of WAL at {end}: start there at the latest, and check that the position is of this \
         cluster's WAL"
    )]
    LsnAhead {
        /// What was asked for.
        requested: Lsn,
        /// Where WAL ends.
        end: Lsn,
    },
    /// A feedback went back, or beyond what was sent.
    #[error("{field}: {lsn} is {problem}")]
    AckOutOfOrder {
        /// Field of the feedback.
        field: &'static str,
        /// What it said.
        lsn: Lsn,
        /// Everything before was sent.
        sent: Lsn,
        /// How it is wrong.
        problem: String,
    },
    /// The client did not send feedback in time.
    #[error(
        "no feedback for {silent_ms} ms (feedback_timeout is {timeout_ms} ms): answer keepalives that ask for it, or start the \
         stream with a longer timeout (0 switches it off)"
    )]
    FeedbackTimeout {
        /// Time since the last feedback, or since the start.
        silent_ms: u64,
        /// What was agreed.
        timeout_ms: u64,
        /// Flushed position of the last feedback.
        last_flushed: Lsn,
    },
    /// The node is shutting down.
    #[error("the primary is shutting down: connect again later and resume at your flushed position")]
    Draining,
    /// The WAL ends in something that is not the end of WAL.
    #[error("WAL is damaged at {lsn} in {file}: {reason}")]
    DataLoss {
        /// First byte that is not good.
        lsn: Lsn,
        /// Segment file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// WAL of a version that is not read.
    #[error("{file} has page magic {magic:04X}; known are {known}")]
    WalMagicUnknown {
        /// Segment file.
        file: String,
        /// The magic.
        magic: u16,
        /// The known magics, for people.
        known: String,
    },
    /// The directory cannot be served as WAL.
    #[error("WAL directory {dir}: {reason}")]
    WalDirectory {
        /// Which.
        dir: PathBuf,
        /// Why not, and what to do.
        reason: String,
    },
    /// An object of an archive cannot be had now.
    #[error("cannot read {}: {reason}", object.display())]
    ArchiveUnavailable {
        /// Which, as a URL.
        object: PathBuf,
        /// What the store said.
        reason: String,
    },
    /// An object of an archive came and is of no use.
    #[error("{} cannot be used: {reason}", object.display())]
    ArchiveUnreadable {
        /// Which, as a URL.
        object: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The cluster of an archive was promoted, or recovered to a point in time.
    #[error(
        "timeline {to} appeared, which left timeline {from} at {left}: start the primary again to serve it, or name timeline \
         {from} (--timeline)"
    )]
    TimelineSwitched {
        /// What was served.
        from: u32,
        /// What is there now.
        to: u32,
        /// Where the new one goes on.
        left: Lsn,
    },
    /// A slot file is damaged.
    #[error(
        "slot file {path} is damaged: {reason}. Restore it from a backup, or delete it: the slot is then gone and its consumer \
         has to name its own start LSN"
    )]
    SlotFile {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A slot belongs to other WAL.
    #[error(
        "slot file {path} belongs to WAL of system {slot_system_id}, but the WAL served is of system {wal_system_id}: use another \
         data directory, or delete the file"
    )]
    SlotForeign {
        /// Which.
        path: PathBuf,
        /// System identifier in the file.
        slot_system_id: u64,
        /// System identifier of the WAL.
        wal_system_id: u64,
    },
    /// A slot's consumer has WAL that the log has lost.
    #[error(
        "slot \"{name}\" has confirmed WAL up to {confirmed}, but WAL ends at {end}: some of it was lost (with source.fsync off, \
         or removed by hand). Restore it, or use another data directory and let the consumer start anew"
    )]
    SlotAhead {
        /// The slot.
        name: String,
        /// Up to where its consumer has flushed.
        confirmed: Lsn,
        /// Where WAL ends.
        end: Lsn,
    },
    /// Another process uses the data directory.
    #[error("data directory {dir} is in use by another primary: stop it, or use another directory")]
    DataDirInUse {
        /// Which.
        dir: PathBuf,
    },
    /// This primary plays no runs.
    #[error("{0}: start a primary with source.runs = true (--runs) for runs")]
    RunsRefused(String),
    /// No run of that number.
    #[error("run {id} does not exist: ListRuns tells which do")]
    RunNotFound {
        /// Its number.
        id: u64,
    },
    /// A run is played, and another cannot begin, or it cannot be deleted.
    #[error("run {id} is being played: wait for its end, or cancel it with CancelRun")]
    RunActive {
        /// Its number.
        id: u64,
    },
    /// The request id names another wish.
    #[error("request_id \"{request_id}\" was used for run {id}, which is another wish: use a new id")]
    RequestIdReused {
        /// The id.
        request_id: String,
        /// The run that it names.
        id: u64,
    },
    /// A run is larger than this primary allows.
    #[error("{asked} {what} are too many: {key} is {max}")]
    RunLimit {
        /// What there is too much of.
        what: &'static str,
        /// The setting.
        key: &'static str,
        /// How much was asked for.
        asked: u64,
        /// How much is allowed.
        max: u64,
    },
    /// A scenario that a client sent is wrong.
    #[error("{error}")]
    ScenarioField {
        /// The field of the request.
        field: &'static str,
        /// What is wrong, and where.
        error: primary_core::ScenarioError,
    },
    /// A run's file is damaged, or of another log.
    #[error("run file {path} cannot be used: {reason}. Restore it from a backup, or use another data directory")]
    RunFile {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A file operation failed.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was tried, as a verb: "write", "rename".
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A disk has no room for WAL.
    #[error(
        "{0}: free some space there, or allow more, and start again: what was flushed is kept, and the run goes on from there"
    )]
    NoSpace(#[source] pg_wal::writer::WriteError),
    /// The scenario cannot be run.
    #[error("scenario: {0}")]
    Scenario(String),
    /// The configuration is wrong.
    #[error("configuration: {0}")]
    Config(String),
    /// The gRPC server does not start or does not go on.
    #[error(transparent)]
    Server(#[from] service_kit::server::ServerError),
    /// A part of the node died.
    #[error("internal: {0}")]
    Internal(String),
}

impl Error {
    /// Wraps what the system said about `path`; for `map_err`.
    pub fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { action, path, source }
    }

    /// A wrong request field.
    pub fn field(field: &'static str, description: impl Into<String>) -> Error {
        Error::InvalidField { field, description: description.into() }
    }
}
