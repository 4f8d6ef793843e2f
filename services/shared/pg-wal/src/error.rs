//! What can go wrong: [`WalError`] for a directory or file, [`DecodeError`] for one record's contents.

use std::io;
use std::path::PathBuf;

use pg_types::Lsn;

/// A directory or a file of WAL cannot be read at all. How a WAL that can be read *ends* is a [`crate::end::WalEnd`].
#[derive(Debug, thiserror::Error)]
pub enum WalError {
    /// The operating system refused.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// Which file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Nothing there.
    #[error("{} does not exist: give a directory with WAL segments, a data directory or one segment", path.display())]
    NotFound {
        /// What was asked for.
        path: PathBuf,
    },
    /// No file in the directory has the name of a segment.
    #[error("{} holds no WAL segments (files named like 00000001000000000000000A)", path.display())]
    NoSegments {
        /// The directory.
        path: PathBuf,
    },
    /// No file in the directory holds WAL.
    #[error("{} is no WAL: {reason}", path.display())]
    NotWal {
        /// The file.
        path: PathBuf,
        /// What its first page says instead.
        reason: String,
    },
    /// A version that walstorm does not read.
    #[error("{} was written by {product} (page magic {magic:04X}); walstorm reads PostgreSQL 13 to 18", path.display())]
    UnsupportedVersion {
        /// The file.
        path: PathBuf,
        /// The magic found.
        magic: u16,
        /// What writes it, as far as known.
        product: &'static str,
    },
    /// The asked timeline is not there.
    #[error("{} holds no WAL of timeline {timeline}; it has: {present}", path.display())]
    NoSuchTimeline {
        /// The directory.
        path: PathBuf,
        /// What was asked for.
        timeline: u32,
        /// The timelines that are there.
        present: String,
    },
    /// A segment contradicts the others.
    #[error("{} at {lsn}: {reason}", path.display())]
    Disagreement {
        /// The file.
        path: PathBuf,
        /// Where its first page should be.
        lsn: Lsn,
        /// Which field differs, and how.
        reason: String,
    },
    /// The asked start is in no segment.
    #[error("{start} is in no WAL segment of {}: it has {first} to {end}", path.display())]
    StartOutside {
        /// The directory.
        path: PathBuf,
        /// What was asked for.
        start: Lsn,
        /// First position that is there.
        first: Lsn,
        /// First position after what is there.
        end: Lsn,
    },
}

/// A record's bytes contradict its layout.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record at {lsn} ({rmgr}/{operation}): {reason}")]
pub struct DecodeError {
    /// Which record.
    pub lsn: Lsn,
    /// Its resource manager's name.
    pub rmgr: String,
    /// Its operation's name.
    pub operation: String,
    /// What is wrong.
    pub reason: Malformed,
}

/// What is wrong with a piece of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The bytes end too early.
    #[error("{needed} bytes are needed, {left} are there")]
    Short {
        /// How many bytes the layout asks for.
        needed: usize,
        /// How many are left.
        left: usize,
    },
    /// A count is negative or says more than the record can hold.
    #[error("a count says {count} items of {size} bytes, {left} bytes are there")]
    Count {
        /// The count.
        count: i64,
        /// Bytes of one item.
        size: usize,
        /// Bytes left.
        left: usize,
    },
    /// A text without its end.
    #[error("a text lacks its terminating NUL")]
    NoNul,
    /// An invalidation message of no known kind.
    #[error("unknown invalidation message tag {0}")]
    MessageTag(i8),
    /// A block reference's id is none, or not above the one before.
    #[error("block id {0} is invalid or out of order")]
    BlockId(u8),
    /// A block reference's flags contradict its lengths.
    #[error("block {0} has flags that contradict its data length")]
    BlockData(u8),
    /// A page image's fields contradict each other.
    #[error("block {0} has an image whose hole, compression and length contradict each other")]
    BlockImage(u8),
    /// A block reference continues a relation that was never named.
    #[error("block {0} refers to the relation of a block before it, and there is none")]
    NoRelation(u8),
    /// The operation needs this block reference.
    #[error("block reference {0} is missing")]
    NoBlock(u8),
    /// Lengths in the headers and the record's length differ.
    #[error("the headers describe {described} bytes of data, the record has {present}")]
    Length {
        /// Sum of the lengths in the headers.
        described: usize,
        /// What the record has.
        present: usize,
    },
    /// The record's own length field differs from the bytes given.
    #[error("the record says that it has {said} bytes, {present} are there")]
    TotalLength {
        /// `xl_tot_len`.
        said: u32,
        /// Bytes given.
        present: usize,
    },
    /// The checksum is wrong.
    #[error("checksum is {computed:08X}, the record says {said:08X}")]
    Crc {
        /// From the bytes.
        computed: u32,
        /// From the header.
        said: u32,
    },
}
