//! Segments that are no files of a directory: an archive brings each one when the reader comes to it.

use std::fmt;
use std::fs::File;
use std::io;

use pg_types::Lsn;

use crate::dir::Segment;

/// Where the segments of a [`crate::WalDir`] come from that are not beside each other in a directory.
///
/// Calls come from the reader and may block. What is missing is `None`; an error is for what is there and cannot be had.
pub trait SegmentStore: fmt::Debug + Send + Sync {
    /// The segment that starts at `start`, as far as is known now.
    fn find(&self, start: Lsn) -> Option<Segment>;

    /// The first segment after `start`, as far as is known now.
    fn find_after(&self, start: Lsn) -> Option<(Lsn, Segment)>;

    /// Opens a segment; nothing if it is gone. The file has the segment's bytes from offset 0 on and stays good while it is open.
    ///
    /// # Errors
    /// The segment is there and cannot be had.
    fn open(&self, segment: &Segment) -> io::Result<Option<File>>;
}
