//! One transaction or subtransaction that has not ended yet (`ReorderBufferTXN`).

use std::sync::Arc;

use pg_types::record::{LogicalMessageRecord, TruncateRecord};
use pg_types::{InvalidationMessage, Lsn, RelFileLocator, Timestamp, Work, Xid};

use crate::footprint::Footprint;
use crate::reorder_buffer::change::{Change, ChangeKind};
use crate::reorder_buffer::memory::CHANGES_IN_MEMORY_MAX;
use crate::reorder_buffer::streaming::StreamState;
use crate::reorder_buffer::tuple_cids::TupleCid;
use crate::spill::SpillFile;

/// Buffers larger than this many elements are given back to the allocator with their transaction.
const KEPT_CAPACITY: usize = 256;

/// Messages handed over by another transaction's commit. Shared, since every running transaction gets them.
#[derive(Debug)]
pub(crate) struct Inherited {
    /// The committing transaction's own.
    pub(crate) own: Arc<[InvalidationMessage]>,
    /// Those it had been handed itself, if they are fed back.
    pub(crate) fed_back: Vec<Arc<Inherited>>,
    /// How many that is in all.
    pub(crate) total: u64,
}

impl Inherited {
    /// Calls `f` for every message, as often as it was handed over.
    pub(crate) fn for_each(&self, f: &mut impl FnMut(&InvalidationMessage)) {
        self.own.iter().for_each(&mut *f);
        for inherited in &self.fed_back {
            inherited.for_each(f);
        }
    }
}

/// A transaction.
#[derive(Debug, Default)]
pub(crate) struct Txn {
    /// Its id.
    pub(crate) xid: Xid,
    /// Its top-level transaction, once known to be a subtransaction (`toptxn`).
    pub(crate) top: Option<u32>,
    /// Start of its first record.
    pub(crate) first_lsn: Lsn,
    /// Start of the first record of it and of its subtransactions: what a restarted decoder must read again.
    pub(crate) oldest_lsn: Lsn,
    /// The newest serialised snapshot when it began, or of its subtransactions the oldest such: whoever begins there sees all of it;
    /// invalid if there was none (`restart_decoding_lsn`).
    pub(crate) restart_decoding_lsn: Lsn,
    /// Subtransactions as (slot, xid); those that ended meanwhile are skipped by comparing the xid.
    pub(crate) subtxns: Vec<(u32, Xid)>,
    /// Where a decoder must begin to read that shall see all that this one's cost depends on: the start of the oldest transaction that
    /// was unfinished when this one began.
    pub(crate) restart_lsn: Lsn,
    /// What it did beside changing rows, if anything.
    pub(crate) footprint: Option<Box<Footprint>>,
    /// Changes in the order of their LSNs.
    pub(crate) changes: Vec<Change>,
    /// Its TRUNCATEs.
    pub(crate) truncates: Vec<TruncateRecord>,
    /// Logical messages.
    pub(crate) logical: Vec<LogicalMessageRecord>,
    /// Own invalidation messages from records (14 and later); a top-level transaction's include its subtransactions'.
    pub(crate) messages: Vec<InvalidationMessage>,
    /// Messages handed over by other commits.
    pub(crate) inherited: Vec<Arc<Inherited>>,
    /// How many messages those are, as PostgreSQL counts them.
    pub(crate) inherited_total: u64,
    /// They were too many and are forgotten (`RBTXN_DISTR_INVAL_OVERFLOWED`).
    pub(crate) inherited_overflowed: bool,
    /// On demand: number of the newest catalog-changing commit when the base snapshot was set.
    pub(crate) base_commit: u32,
    /// On demand: the same of its own first change, whosever base snapshot it has got since.
    pub(crate) first_commit: u32,
    /// On demand: number of the newest such commit that its changes catch up with.
    pub(crate) caught_up: u32,
    /// Where its base snapshot was set; [`None`] as long as it changed nothing (`base_snapshot_lsn`).
    pub(crate) base_snapshot_lsn: Option<Lsn>,
    /// The oldest xid that mattered to it (`base_snapshot->xmin`).
    pub(crate) base_xmin: Xid,
    /// It changed a catalog (`RBTXN_HAS_CATALOG_CHANGES`).
    pub(crate) has_catalog_changes: bool,
    /// Catalog rows that it and its subtransactions wrote; kept by the top-level one (`tuplecids`).
    pub(crate) tuple_cids: Vec<TupleCid>,
    /// The file of its latest new-cid record: the catalog that its next record changes.
    pub(crate) new_cid_file: RelFileLocator,
    /// Bytes that its changes in memory count for.
    pub(crate) size: u64,
    /// As how many changes PostgreSQL queued those (`nentries_mem`).
    pub(crate) entries_in_memory: u64,
    /// And all, files included (`nentries`).
    pub(crate) entries: u64,
    /// The same with its subtransactions', if it is top-level (`total_size`).
    pub(crate) total_size: u64,
    /// Changes of it are in files (`RBTXN_IS_SERIALIZED`).
    pub(crate) serialized: bool,
    /// It was written out at least once, whatever became of it (`RBTXN_IS_SERIALIZED_CLEAR`).
    pub(crate) ever_serialized: bool,
    /// It is known to be rolled back, so nothing more is collected (`RBTXN_IS_ABORTED`).
    pub(crate) aborted: bool,
    /// Its spill files and their lengths, oldest first; removed with it.
    pub(crate) files: Vec<(SpillFile, u64)>,
    /// Where reading back goes on: file and offset.
    pub(crate) cursor: (usize, u64),
    /// Changes read back so far.
    pub(crate) restored: u64,
    /// What was done for its memory, and to give it out in blocks.
    pub(crate) noted: Work,
    /// It is prepared, to be given out before its commit (`RBTXN_IS_PREPARED`).
    pub(crate) prepared: Option<Prepared>,
    /// What of it was given out before its end.
    pub(crate) streaming: StreamState,
    /// Neighbours in the list of top-level transactions; the list's owner keeps them.
    pub(crate) links: Links,
}

/// What the end of a prepared transaction needs of its PREPARE.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prepared {
    /// Where the record starts.
    pub(crate) lsn: Lsn,
    /// Where it ends.
    pub(crate) end_lsn: Lsn,
    /// When; at the origin if that is told.
    pub(crate) time: Timestamp,
}

/// Links of the list of top-level transactions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Links {
    /// The transaction is in the list.
    pub(crate) linked: bool,
    /// The one that began before.
    pub(crate) before: Option<u32>,
    /// The one that began after.
    pub(crate) after: Option<u32>,
}

impl Txn {
    /// Makes a used or new one ready for `xid`.
    pub(crate) fn begin(&mut self, xid: Xid, lsn: Lsn, restart_decoding_lsn: Lsn) {
        (self.xid, self.first_lsn, self.oldest_lsn, self.restart_lsn) = (xid, lsn, lsn, lsn);
        self.restart_decoding_lsn = restart_decoding_lsn;
    }

    /// Empties it for the next transaction and keeps small buffers.
    pub(crate) fn recycle(&mut self) {
        fn emptied<T>(buffer: &mut Vec<T>) -> Vec<T> {
            let mut taken = std::mem::take(buffer);
            taken.clear();
            if taken.capacity() > KEPT_CAPACITY { Vec::new() } else { taken }
        }
        let (subtxns, changes) = (emptied(&mut self.subtxns), emptied(&mut self.changes));
        let (messages, inherited) = (emptied(&mut self.messages), emptied(&mut self.inherited));
        *self = Txn { subtxns, changes, messages, inherited, ..Txn::default() };
    }

    /// Appends a change.
    pub(crate) fn push(&mut self, lsn: Lsn, kind: ChangeKind, bytes: u64) {
        debug_assert!(self.changes.last().is_none_or(|last| last.lsn <= lsn), "changes come in LSN order");
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.size += u64::from(bytes);
        self.entries += u64::from(kind.entries());
        self.entries_in_memory += u64::from(kind.entries());
        self.changes.push(Change { lsn, bytes, kind });
    }

    /// Empties the lists of changes in memory.
    pub(crate) fn clear_changes(&mut self) {
        self.changes.clear();
        self.truncates.clear();
        self.logical.clear();
        self.changes.shrink_to(CHANGES_IN_MEMORY_MAX as usize);
        self.entries_in_memory = 0;
    }

    /// A part of it was given out (`RBTXN_IS_STREAMED`).
    pub(crate) fn streamed(&self) -> bool {
        self.streaming.streamed
    }

    /// It has a base snapshot.
    pub(crate) fn has_base_snapshot(&self) -> bool {
        self.base_snapshot_lsn.is_some()
    }
}
