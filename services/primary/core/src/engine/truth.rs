//! What really happened, for tests and reports: a consumer of the log should find out the same.

use pg_types::{FullXid, Lsn, Oid, Timestamp, Xid};

/// One transaction that ended.
#[derive(Clone, Debug, PartialEq)]
pub struct TransactionTruth {
    /// The actor whose session ran it.
    pub actor: String,
    /// Its xid, invalid if it wrote nothing.
    pub xid: Xid,
    /// It committed.
    pub committed: bool,
    /// When it ended.
    pub time: Timestamp,
    /// Position of its commit or abort record, invalid without one.
    pub lsn: Lsn,
    /// First byte after that record.
    pub end_lsn: Lsn,
    /// Its committed subtransactions.
    pub subxids: usize,
    /// Messages in its commit record.
    pub messages: usize,
    /// Times that its command id rose.
    pub commands: u32,
    /// Its records.
    pub records: u64,
    /// What it did, a sentence a statement.
    pub did: Vec<String>,
}

/// Where a later scenario in the same log must go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// The next xid.
    pub next_xid: FullXid,
    /// The next object id.
    pub next_oid: Oid,
}

/// A run in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunSummary {
    /// Transactions that committed, without those that wrote nothing.
    pub committed: u64,
    /// Transactions that rolled back.
    pub rolled_back: u64,
    /// Records.
    pub records: u64,
    /// Messages in commit records.
    pub messages: u64,
    /// Snapshots that readers were to take.
    pub snapshots: u64,
    /// Position of the first record.
    pub start_lsn: Lsn,
    /// First byte after the last record.
    pub end_lsn: Lsn,
    /// Simulated time from the first to the last step, in microseconds.
    pub simulated_us: u64,
}
