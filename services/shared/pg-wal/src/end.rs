//! How a WAL ends, and why (`ReadRecord` in `access/transam/xlogreader.c` has the same rules and one message for each).
//!
//! PostgreSQL takes whatever is wrong with the next record for the end of WAL. Whoever analyses an archive must know which it
//! was: a log that ends where its writer stopped, or one that lost something.

use std::fmt;
use std::path::PathBuf;

use pg_types::Lsn;

/// Where and why reading stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalEnd {
    /// The first position that was not read as part of a record.
    pub lsn: Lsn,
    /// The file that the reason is about.
    pub file: PathBuf,
    /// Why.
    pub reason: EndReason,
}

/// Why reading stopped. The first three are complete ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The last record is a switch, and the segment after it was not begun.
    Switch,
    /// Only zeroes follow, to the end of the last segment.
    ZeroedTail,
    /// The next record does not end at or before the position that was asked for.
    Limit(Lsn),
    /// The segment that should follow is not there, nor any later one.
    MissingSegment {
        /// Its name.
        name: String,
    },
    /// The segment that should follow is not there, but a later one is.
    Gap {
        /// The first missing name.
        missing: String,
        /// The next name that is there.
        next: String,
    },
    /// The file is shorter than a segment.
    TruncatedSegment {
        /// Its bytes.
        len: u64,
        /// What it should have.
        expected: u64,
    },
    /// A record starts here and its rest is missing.
    TornRecord {
        /// Where the rest should be.
        at: Lsn,
        /// What is there instead.
        why: String,
        /// Nothing is: the segment that should go on there is missing.
        missing: bool,
    },
    /// A record's checksum is wrong.
    BadCrc {
        /// From its bytes.
        computed: u32,
        /// From its header.
        said: u32,
    },
    /// A record's header cannot be.
    BadRecord(String),
    /// A page's header cannot be.
    BadPage {
        /// The page.
        page: Lsn,
        /// What is wrong with it.
        why: String,
    },
    /// From here on the segment holds an older one's pages: it was recycled and not overwritten yet.
    RecycledTail {
        /// The first old page.
        page: Lsn,
        /// The address it bears.
        address: Lsn,
    },
    /// Zeroes follow, and then more.
    Hole {
        /// Where the zeroes end.
        at: Lsn,
        /// What is there.
        why: String,
    },
}

impl WalEnd {
    /// The writer stopped here, or the caller asked for no more: nothing is missing.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        matches!(self.reason, EndReason::Switch | EndReason::ZeroedTail | EndReason::Limit(_))
    }

    /// A whole segment is missing where WAL should go on: so ends every archive whose last segment is full.
    #[must_use]
    pub fn is_missing_segment(&self) -> bool {
        use EndReason::{Gap, MissingSegment, TornRecord};
        matches!(self.reason, MissingSegment { .. } | Gap { .. } | TornRecord { missing: true, .. })
    }
}

impl fmt::Display for WalEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WAL ends at {} in {}: {}", self.lsn, self.file.display(), self.reason)
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch => f.write_str("switch to the next segment"),
            Self::ZeroedTail => f.write_str("only zeroes follow"),
            Self::Limit(lsn) => write!(f, "the asked end {lsn} is reached"),
            Self::MissingSegment { name } => write!(f, "segment {name} is missing"),
            Self::Gap { missing, next } => write!(f, "segment {missing} is missing; the next one there is {next}"),
            Self::TruncatedSegment { len, expected } => {
                write!(f, "the segment is truncated: it has {len} bytes of {expected}")
            }
            Self::TornRecord { at, why, .. } => write!(f, "the record is torn: at {at} {why}"),
            Self::BadCrc { computed, said } => {
                write!(f, "the record's checksum is {computed:08X}, its header says {said:08X}")
            }
            Self::BadRecord(why) => write!(f, "no record can start here: {why}"),
            Self::BadPage { page, why } => write!(f, "invalid page at {page}: {why}"),
            Self::RecycledTail { page, address } => {
                write!(f, "the segment was recycled: the page at {page} is an old one of {address}")
            }
            Self::Hole { at, why } => write!(f, "zeroes follow, but at {at} {why}"),
        }
    }
}
