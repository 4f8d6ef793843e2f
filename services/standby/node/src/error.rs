//! What can go wrong in a standby node.

use pg_types::Lsn;

use crate::batch::BatchError;
use crate::restart_point::RestartPointError;

/// An error of the node.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A configured value that cannot run.
    #[error("configuration key {key}: {reason}")]
    Config {
        /// Which key.
        key: &'static str,
        /// What is wrong with its value.
        reason: String,
    },
    /// The server cannot start or go on.
    #[error(transparent)]
    Server(#[from] service_kit::server::ServerError),
    /// Traces cannot be exported.
    #[error(transparent)]
    Telemetry(#[from] service_kit::telemetry::TelemetryError),
    /// The restart point cannot be read or written.
    #[error(transparent)]
    RestartPoint(#[from] RestartPointError),
    /// The data directory cannot be made.
    #[error("make the data directory {path}", path = path.display())]
    DataDir {
        /// Which.
        path: std::path::PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Another process uses the data directory.
    #[error("data directory {path} is in use by another standby: stop it, or use another directory", path = .0.display())]
    DataDirInUse(std::path::PathBuf),
    /// Nothing can be written in the data directory.
    #[error("lock {path}", path = path.display())]
    Lock {
        /// The file of the lock.
        path: std::path::PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Replay's thread cannot be started.
    #[error("start the replay thread")]
    Thread(#[source] std::io::Error),
}

/// Why replay stopped for good. A person must act: going on would show readers a state that never was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Halt {
    /// A record that cannot be read or replayed.
    #[error("replay stopped at {lsn}: {reason}")]
    Record {
        /// Where.
        lsn: Lsn,
        /// Why.
        reason: String,
    },
    /// A batch that contradicts itself.
    #[error("replay stopped: {0}")]
    Batch(#[from] BatchError),
    /// The primary's WAL is damaged.
    #[error("replay stopped at {lsn}, where the primary's WAL is damaged: {reason}")]
    DataLoss {
        /// Everything before it is replayed.
        lsn: Lsn,
        /// What the primary says.
        reason: String,
    },
    /// The primary no longer has the WAL that comes next.
    #[error(
        "replay stopped at {lsn}: the primary has removed the WAL from there on ({reason}); remove the restart point to begin anew, \
         and give the standby a slot so that its WAL is kept"
    )]
    Removed {
        /// Where replay is.
        lsn: Lsn,
        /// What the primary says.
        reason: String,
    },
    /// The primary at this address is another cluster, or on another timeline.
    #[error(
        "replay stopped at {lsn}: the primary is {found}, this standby follows {expected}; point it at its primary, or remove the \
         restart point to begin anew"
    )]
    OtherCluster {
        /// Where replay is.
        lsn: Lsn,
        /// Cluster and timeline followed so far.
        expected: String,
        /// Cluster and timeline found.
        found: String,
    },
    /// The primary refuses the stream in a way that repeating does not cure.
    #[error("replay stopped at {lsn}: the primary refuses the stream: {reason}")]
    Refused {
        /// Where replay is.
        lsn: Lsn,
        /// What the primary says.
        reason: String,
    },
    /// The restart point cannot be written.
    #[error("replay stopped at {lsn}: {reason}")]
    RestartPoint {
        /// Where replay is.
        lsn: Lsn,
        /// Why.
        reason: String,
    },
}
