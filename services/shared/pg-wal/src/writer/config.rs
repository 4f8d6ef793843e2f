//! What a log is to be, and what keeps it from being written.

use std::io;
use std::path::PathBuf;

use pg_types::{Lsn, PgVersion};

use crate::encode::EncodeError;
use crate::page::is_valid_segment_size;

/// The log cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The record has no bytes.
    #[error("encode a WAL record: {0}")]
    Encode(#[from] EncodeError),
    /// The configuration describes no log.
    #[error("cannot write a log with {what}: {remedy}")]
    BadConfig {
        /// What is wrong.
        what: String,
        /// What would be right.
        remedy: &'static str,
    },
    /// A segment is already there.
    #[error("{path} exists already: continue this log with resume, or choose an empty directory")]
    SegmentExists {
        /// The file.
        path: PathBuf,
    },
    /// The segment to continue belongs to another log.
    #[error("{path} cannot be continued: {what}")]
    WrongSegment {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// The operating system refused.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What is there cannot be read as a log, or ends in something broken.
    #[error("the log in {dir} cannot be continued: {what}")]
    Unreadable {
        /// The log's directory.
        dir: PathBuf,
        /// What the reader found.
        what: String,
    },
    /// The log failed before in a way that leaves open what its files hold.
    #[error("the log in {dir} is closed, because an earlier write or sync failed; open it again at its last valid record")]
    Closed {
        /// The log's directory.
        dir: PathBuf,
    },
}

impl WriteError {
    /// Whether the disk has no room (or the process or user is not allowed more). Nothing is lost then: what was to be written is
    /// kept, and writing it may be tried again. After a failed *sync* nothing can be: the system may have dropped what it could not
    /// write.
    #[must_use]
    pub fn is_no_space(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match self {
            Self::Io { action, source, .. } => {
                *action != "sync" && matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge)
            }
            _ => false,
        }
    }
}

/// What a flush waits for (`fsync` and `wal_sync_method`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WalSync {
    /// Nothing: the bytes are with the operating system. They outlive this process, not the machine.
    #[default]
    Off,
    /// The bytes are on disk (`fdatasync`). A segment has all its blocks when it is begun, so no more is needed to read them.
    Fdatasync,
    /// The bytes and everything that the file system says of the file are on disk (`fsync`).
    Fsync,
}

/// What a new log says of itself, and how it is kept.
#[derive(Clone, Copy, Debug)]
pub struct WriterConfig {
    /// Format. 18 is complete; for others see [`crate::encode`].
    pub version: PgVersion,
    /// `system_identifier` of the cluster.
    pub system_id: u64,
    /// Timeline, from 1.
    pub timeline: u32,
    /// Bytes of a segment: a power of two from 1 MiB to 1 GiB.
    pub segment_size: u32,
    /// Where the log begins: the start of a segment, not 0 (which is no LSN).
    pub start: Lsn,
    /// What a flush waits for.
    pub sync: WalSync,
}

impl WriterConfig {
    /// A log in the format of 18 with segments of 16 MiB, from the second segment on, as initdb makes it.
    #[must_use]
    pub fn new(system_id: u64) -> WriterConfig {
        let segment_size = 16 << 20;
        WriterConfig {
            version: PgVersion::V18,
            system_id,
            timeline: 1,
            segment_size,
            start: Lsn(u64::from(segment_size)),
            sync: WalSync::Off,
        }
    }

    /// Sets the segment size and begins with the second segment of that size.
    #[must_use]
    pub fn with_segment_size(self, segment_size: u32) -> WriterConfig {
        WriterConfig { segment_size, start: Lsn(u64::from(segment_size)), ..self }
    }

    /// The configuration, if it describes a log.
    pub(super) fn checked(self) -> Result<WriterConfig, WriteError> {
        let bad = |what: String, remedy| Err(WriteError::BadConfig { what, remedy });
        if !is_valid_segment_size(self.segment_size) {
            let remedy = "take a power of two from 1 MiB (1048576) to 1 GiB";
            return bad(format!("segments of {} bytes", self.segment_size), remedy);
        }
        if self.timeline == 0 {
            return bad("timeline 0".to_owned(), "timelines count from 1");
        }
        if !self.start.is_valid() || !self.start.0.is_multiple_of(u64::from(self.segment_size)) {
            return bad(format!("its start at {}", self.start), "start at a segment's first byte, but not at 0/0");
        }
        Ok(self)
    }
}
