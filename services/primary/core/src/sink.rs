//! The seam to the log: the engine hands typed records on, in the order in which a server would insert them.

use pg_types::{Lsn, PgVersion, RecordBody, WalRecord, Xid};

/// Why a sink refused; the engine passes it on unread.
pub type SinkError = Box<dyn std::error::Error + Send + Sync>;

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its first byte.
    pub start: Lsn,
    /// The first byte after it, aligned.
    pub end: Lsn,
}

/// Takes records. The log's writer is one; [`MemorySink`] is one for tests.
pub trait WalSink {
    /// The format that this sink writes: the engine makes only records that the version has.
    fn version(&self) -> PgVersion;

    /// Where the next record will start. A checkpoint's redo position is told in the checkpoint itself.
    fn next_lsn(&self) -> Lsn;

    /// Appends one record. `top_xid` is invalid and `origin` 0 where the record does not carry them.
    ///
    /// # Errors
    /// Whatever keeps the record from being written; the run then ends.
    fn append(&mut self, xid: Xid, top_xid: Xid, origin: u16, body: &RecordBody) -> Result<Placed, SinkError>;
}

/// Keeps the typed records. Its positions are made up: 64 bytes a record.
#[derive(Debug)]
pub struct MemorySink {
    /// The version whose records are wanted.
    version: PgVersion,
    /// What came, in order.
    pub records: Vec<WalRecord>,
}

impl MemorySink {
    /// An empty sink for records of `version`.
    #[must_use]
    pub fn new(version: PgVersion) -> MemorySink {
        MemorySink { version, records: Vec::new() }
    }
}

impl WalSink for MemorySink {
    fn version(&self) -> PgVersion {
        self.version
    }

    fn next_lsn(&self) -> Lsn {
        Lsn(0x100_0028 + 64 * self.records.len() as u64)
    }

    fn append(&mut self, xid: Xid, top_xid: Xid, origin: u16, body: &RecordBody) -> Result<Placed, SinkError> {
        let start = self.next_lsn();
        let end = Lsn(start.0 + 64);
        self.records.push(WalRecord { lsn: start, end_lsn: end, xid, top_xid, origin, body: body.clone() });
        Ok(Placed { start, end })
    }
}

/// Forgets everything: what happened before the log begins.
#[derive(Debug)]
pub(crate) struct NullSink(pub(crate) PgVersion);

impl WalSink for NullSink {
    fn version(&self) -> PgVersion {
        self.0
    }

    fn next_lsn(&self) -> Lsn {
        Lsn::INVALID
    }

    fn append(&mut self, _: Xid, _: Xid, _: u16, _: &RecordBody) -> Result<Placed, SinkError> {
        Ok(Placed { start: Lsn::INVALID, end: Lsn::INVALID })
    }
}
