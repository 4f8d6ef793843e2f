//! Makes a record and gives it its place, without a file (`ReserveXLogInsertLocation` in `access/transam/xlog.c`).
//!
//! Where a record lies follows from the records before it alone. So whoever makes the same records again, because a crash cut a
//! run off, knows where each lies without reading the log, whose beginning may no longer be there.

use pg_types::{Lsn, PgVersion, RecordBody, Xid};

use super::log_end::LogEnd;
use crate::encode::{EncodeError, Encoder, seal};
use crate::page::{next_record_start, record_end, segment_end};

/// Places records one behind the other.
#[derive(Debug)]
pub struct RecordPlacer {
    /// Makes the bytes.
    encoder: Encoder,
    /// The bytes of the record placed last.
    record: Vec<u8>,
    /// Bytes of a segment.
    segment_size: u32,
    /// Behind the record placed last.
    at: LogEnd,
}

/// A record with its place.
#[derive(Clone, Copy, Debug)]
pub struct PlacedRecord<'a> {
    /// First byte.
    pub start: Lsn,
    /// First byte after it, aligned; for a switch, after its segment.
    pub end: Lsn,
    /// Its bytes, without the headers of pages that interrupt them. Empty for a switch where there is nothing to end.
    pub bytes: &'a [u8],
}

impl RecordPlacer {
    /// Goes on behind `at`, in the format of `version`.
    #[must_use]
    pub fn new(version: PgVersion, segment_size: u32, at: LogEnd) -> Self {
        let at = LogEnd { end: at.end.align(), ..at };
        Self { encoder: Encoder::new(version), record: Vec::new(), segment_size, at }
    }

    /// Where the next record starts.
    #[must_use]
    pub fn next_lsn(&self) -> Lsn {
        next_record_start(self.at.end, self.segment_size)
    }

    /// Behind the record placed last.
    #[must_use]
    pub fn end(&self) -> LogEnd {
        self.at
    }

    /// Makes a record and gives it the next place. A switch at the start of a segment is nothing.
    ///
    /// # Errors
    /// [`EncodeError`]; nothing is placed then.
    pub fn place(&mut self, xid: Xid, top_xid: Xid, origin: u16, body: &RecordBody) -> Result<PlacedRecord<'_>, EncodeError> {
        let end = self.at.end;
        let switch = matches!(body, RecordBody::Switch);
        if switch && end.0.is_multiple_of(u64::from(self.segment_size)) {
            return Ok(PlacedRecord { start: end, end, bytes: &[] });
        }
        self.encoder.encode(xid, top_xid, origin, body, &mut self.record)?;
        seal(&mut self.record, self.at.prev);
        let start = self.next_lsn();
        let end = record_end(start, self.record.len() as u32, self.segment_size);
        let end = if switch { segment_end(end, self.segment_size) } else { end };
        self.at = LogEnd { end, prev: start };
        Ok(PlacedRecord { start, end, bytes: &self.record })
    }
}
