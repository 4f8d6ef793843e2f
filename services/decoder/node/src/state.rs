//! What the node is doing, for people and for whoever waits for it.

use decoder_core::{DecoderSizes, SnapBuildState};
use pg_types::{Lsn, Oid, Work, Xid};

/// The node's state, published through a watch channel after every batch.
#[derive(Clone, Debug)]
pub struct NodeState {
    /// The stream from the primary is open.
    pub connected: bool,
    /// How far the snapshot builder is.
    pub snapshot: SnapBuildState,
    /// Before it is consistent: the xid that the oldest running transaction must reach; invalid at first.
    pub waits_for: Xid,
    /// Whom that means, oldest first.
    pub waiting: Vec<Xid>,
    /// Why the node does not decode; empty if it does.
    pub last_error: String,
    /// The node has given up: only a person can help.
    pub halted: bool,
    /// The limit of spill files, in bytes, if that is why.
    pub spill_limit: Option<u64>,
    /// Everything before it has arrived.
    pub received_lsn: Lsn,
    /// Every record before it is decoded.
    pub decoded_lsn: Lsn,
    /// End of the output that subscribers can read.
    pub output_end: Lsn,
    /// Everything before it is decoded, and the output is durable.
    pub applied_lsn: Lsn,
    /// WAL before it is no longer needed; reported upstream as flushed.
    pub flushed_lsn: Lsn,
    /// Catalog rows from before it are no longer needed; reported upstream, and invalid before the first list of running transactions.
    pub catalog_xmin: Xid,
    /// End of WAL at the primary, as last heard.
    pub wal_end_lsn: Lsn,
    /// The primary's source has ended, and everything of it has arrived.
    pub source_ended: bool,
    /// Transactions decoded since the start.
    pub transactions: u64,
    /// Rows in them.
    pub rows: u64,
    /// What decoding did since the start, transactions that were not given out included.
    pub work: Work,
    /// The database that is decoded; invalid until it is known.
    pub database: Oid,
    /// How full the decoder is.
    pub sizes: DecoderSizes,
}

impl Default for NodeState {
    fn default() -> Self {
        Self {
            connected: false,
            snapshot: SnapBuildState::Start,
            waits_for: Xid::INVALID,
            waiting: Vec::new(),
            last_error: String::new(),
            halted: false,
            spill_limit: None,
            received_lsn: Lsn::INVALID,
            decoded_lsn: Lsn::INVALID,
            output_end: Lsn::INVALID,
            applied_lsn: Lsn::INVALID,
            flushed_lsn: Lsn::INVALID,
            catalog_xmin: Xid::INVALID,
            wal_end_lsn: Lsn::INVALID,
            source_ended: false,
            transactions: 0,
            rows: 0,
            work: Work::default(),
            database: Oid::INVALID,
            sizes: DecoderSizes::default(),
        }
    }
}

impl NodeState {
    /// Whether subscribers get what the primary writes: the node is connected and consistent, and nothing failed.
    #[must_use]
    pub fn is_serving(&self) -> bool {
        self.connected && self.snapshot == SnapBuildState::Consistent && self.last_error.is_empty() && !self.halted
    }
}

/// What subscribers watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputProgress {
    /// End of the output that can be read.
    pub end: Lsn,
    /// Every record before it is decoded: nothing that ends at or before it is missing in the output.
    pub decoded: Lsn,
}
