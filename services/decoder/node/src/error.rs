//! What can go wrong in the decoder, as one type, and what it means for the node.

use std::path::PathBuf;

use decoder_core::{DecodeError, SnapshotError, SnapshotFailure, SpillError, SpillFailure};
use pg_types::{Lsn, PgVersion};

use crate::durable_file::DurableFileError;
use crate::output_log::LogError;

/// An error of the node. Messages name the place and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A setting is out of its range.
    #[error("{name} must {must}")]
    Setting {
        /// Its name.
        name: &'static str,
        /// What it must be.
        must: &'static str,
    },
    /// The profile is none.
    #[error("profile: {0}")]
    Profile(#[from] decoder_core::UnknownProfile),
    /// The consumer mode is none.
    #[error("consumer: {0}")]
    Consumer(#[from] decoder_core::UnknownConsumer),
    /// The origins are none that there are.
    #[error("origin: {0}")]
    Origin(#[from] decoder_core::UnknownOrigin),
    /// The memory limit is none.
    #[error("work_mem: {0}")]
    WorkMem(#[from] decoder_core::BadWorkMem),
    /// The catalog copy cannot be read.
    #[error("catalog: {0}")]
    Catalog(#[from] decoder_core::catalog_csv::CatalogError),
    /// The node cannot listen, or serving failed.
    #[error(transparent)]
    Server(#[from] service_kit::server::ServerError),
    /// Tracing does not start.
    #[error(transparent)]
    Telemetry(#[from] service_kit::telemetry::TelemetryError),
    /// The primary's endpoint is wrong, or it does not answer.
    #[error("primary: {0}")]
    Connect(#[from] service_kit::client::ConnectError),
    /// The primary ended or refused the stream.
    #[error("the primary at {endpoint} refuses the stream: {description}")]
    Refused {
        /// Where.
        endpoint: String,
        /// Its status, for people.
        description: String,
    },
    /// The stream ended and may be opened again.
    #[error("the stream from the primary ended: {0}")]
    StreamLost(String),
    /// The primary serves other WAL than this node decoded before.
    #[error(
        "the primary serves {what} {found}, but {data_dir} belongs to {what} {expected}: use another data_dir, or follow the \
         primary that it belongs to"
    )]
    OtherWal {
        /// What differs.
        what: &'static str,
        /// The primary's.
        found: String,
        /// This node's.
        expected: String,
        /// Its folder.
        data_dir: PathBuf,
    },
    /// There is no such slot.
    #[error("the primary has no slot \"{slot}\": make it, or set create_slot")]
    NoSlot {
        /// Its name.
        slot: String,
    },
    /// The slot is gone, but this node has begun.
    #[error(
        "the primary has no slot \"{slot}\", but {data_dir} was decoded from it up to {decoded}: make the slot again with \
         start_lsn {restart} if the primary still has that WAL, else move data_dir away and start anew"
    )]
    SlotGone {
        /// Its name.
        slot: String,
        /// This node's folder.
        data_dir: PathBuf,
        /// How far it was decoded.
        decoded: Lsn,
        /// Where decoding must begin again.
        restart: Lsn,
    },
    /// The checkpoint was made with other settings.
    #[error("{name} is {found}, but {data_dir} was begun with {expected}: keep it, or use another data_dir")]
    Changed {
        /// The setting.
        name: &'static str,
        /// Its value.
        found: String,
        /// The value in the checkpoint.
        expected: String,
        /// This node's folder.
        data_dir: PathBuf,
    },
    /// Output without the checkpoint that belongs to it: where WAL must be read again for it is not known.
    #[error(
        "{data_dir} has output, but no checkpoint, which tells where to go on: restore data_dir as a whole from a backup, or move it \
         away, drop the slot and start anew"
    )]
    NoCheckpoint {
        /// This node's folder.
        data_dir: PathBuf,
    },
    /// Prepared transactions were given out, and would be given out again at their commit.
    #[error(
        "two_phase is off, but prepared transactions were given out ({count}) whose COMMIT PREPARED or ROLLBACK PREPARED has not come to \
         {data_dir} yet: keep it on until it has, or use another data_dir"
    )]
    StillPrepared {
        /// How many.
        count: usize,
        /// This node's folder.
        data_dir: PathBuf,
    },
    /// Another process uses the folder.
    #[error("data_dir {0} is in use by another decoder: stop that one, or use another folder")]
    DataDirInUse(PathBuf),
    /// The folder cannot be used.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Checkpoint or positions.
    #[error(transparent)]
    DurableFile(#[from] DurableFileError),
    /// The output log.
    #[error(transparent)]
    Log(#[from] LogError),
    /// A batch is not what the contract says.
    #[error("the primary sent a malformed batch at {lsn}: {reason}")]
    Batch {
        /// Its start.
        lsn: Lsn,
        /// What is wrong.
        reason: String,
    },
    /// A record is damaged.
    #[error("WAL record cannot be read: {0}")]
    Record(#[from] pg_wal::DecodeError),
    /// A server of a profile has no room for the callbacks that are registered.
    #[error("{0}")]
    Callbacks(String),
    /// A record cannot be decoded.
    #[error(transparent)]
    Decode(#[from] decoder_core::DecodeError),
    /// The version is none that we read.
    #[error("the primary serves WAL of PostgreSQL {0}: walstorm reads {first} to {last}", first = PgVersion::ALL[0],
        last = PgVersion::ALL[PgVersion::ALL.len() - 1])]
    Version(u32),
    /// The node has given up, and this is why.
    #[error("the decoder has halted: {0}")]
    Halted(String),
    /// A part of the node died.
    #[error("internal: {0}")]
    Internal(String),
}

impl NodeError {
    /// The limit of spill files, if that was reached.
    #[must_use]
    pub fn spill_limit(&self) -> Option<u64> {
        match self {
            Self::Decode(DecodeError::Spill(SpillError { failure: SpillFailure::Limit { bytes_max }, .. })) => Some(*bytes_max),
            _ => None,
        }
    }
}

/// What the node does about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Goes on from its checkpoint after a pause: the cause may pass.
    Retry,
    /// Waits for a person: trying again would not help, or would do harm.
    Halt,
}

impl NodeError {
    /// What to do about it.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            Self::StreamLost(_) | Self::Connect(service_kit::client::ConnectError::Unreachable { .. }) => Remedy::Retry,
            Self::Log(LogError::Full { .. }) => Remedy::Retry,
            // Spill files are scratch: what was in a damaged one is read again from WAL.
            Self::Decode(DecodeError::Spill(SpillError {
                failure: SpillFailure::DiskFull | SpillFailure::Damaged, ..
            })) => Remedy::Retry,
            Self::Decode(DecodeError::Snapshot(SnapshotError { failure: SnapshotFailure::DiskFull, .. })) => Remedy::Retry,
            Self::DurableFile(DurableFileError::Io { source, .. }) if source.kind() == std::io::ErrorKind::StorageFull => {
                Remedy::Retry
            }
            _ => Remedy::Halt,
        }
    }
}
