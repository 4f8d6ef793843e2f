//! What really happened, for tests and reports: a consumer of the log should find out the same.

use std::collections::BTreeMap;

use pg_types::{FullXid, Lsn, Oid, Timestamp, Xid};

use crate::consumer::ConsumerSummary;

/// How a transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransactionEnd {
    /// COMMIT.
    Commit,
    /// ROLLBACK.
    Rollback,
    /// PREPARE TRANSACTION: its session is rid of it, but it is still to be committed or rolled back.
    Prepare,
    /// COMMIT PREPARED, perhaps by another session.
    CommitPrepared,
    /// ROLLBACK PREPARED, perhaps by another session.
    RollbackPrepared,
}

/// Rows of one user table that a transaction changed, without what savepoints took back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCounts {
    /// Inserted.
    pub inserted: u64,
    /// Updated.
    pub updated: u64,
    /// Deleted.
    pub deleted: u64,
}

/// One transaction that ended.
#[derive(Clone, Debug, PartialEq)]
pub struct TransactionTruth {
    /// The actor whose session ran it.
    pub actor: String,
    /// Its xid, invalid if it wrote nothing.
    pub xid: Xid,
    /// How it ended.
    pub end: TransactionEnd,
    /// Its name, if it was prepared.
    pub gid: Option<String>,
    /// It committed: what it did is there for everybody from here on.
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
    /// Rows of user tables that it changed, by file number, as decoders are told: those that a TRUNCATE of the same
    /// transaction took away again, too, but not those of a table that was written anew.
    pub rows: BTreeMap<u32, RowCounts>,
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
    /// Transactions that were prepared, however they ended later.
    pub prepared: u64,
    /// Records.
    pub records: u64,
    /// Messages in commit records.
    pub messages: u64,
    /// Snapshots that readers were to take.
    pub snapshots: u64,
    /// Sessions that connected.
    pub connections: u64,
    /// Position of the first record.
    pub start_lsn: Lsn,
    /// First byte after the last record.
    pub end_lsn: Lsn,
    /// Simulated time from the first to the last step, in microseconds.
    pub simulated_us: u64,
    /// Crashes.
    pub crashes: u64,
    /// Restarts in order.
    pub restarts: u64,
    /// Transactions with an xid that were open at a crash: no record tells their end.
    pub vanished: u64,
    /// Where the scenario's consumers were at the last barrier, by the order of the scenario.
    pub consumers: Vec<ConsumerSummary>,
}
