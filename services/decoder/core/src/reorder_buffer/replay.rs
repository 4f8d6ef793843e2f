//! Replays a committed transaction, or a part of one in progress: `ReorderBufferProcessTXN` of `replication/logical/reorderbuffer.c`.
//!
//! Its changes are taken in LSN order; each row's relation is opened through the caches, and what an output plugin would show
//! is handed to the sink. Invalidation messages are executed on the way and at the end, so that rows are decoded with the
//! catalogs of their moment and nothing stale stays behind for the next transaction. *When* they are executed is the rule that
//! 14 changed (`messages`); with the old one, cost grows with commands × messages.
//!
//! Which rows are shown: those of tables. A catalog copy says which relations are tables; for one that it does not know, the
//! record decides: rows without data and rows that a new-cid record announced are a catalog's, flagged ones a TOAST table's.
//! Rows that ALTER TABLE writes into a new heap are not shown either; such a heap is recognised by the relcache message for
//! the oid that equals its file number, while the copy gives the file to another relation; it ends with the next command id.
//!
//! Invariants: I1 what the sink is given depends on the changes and the catalog copy alone, never on profile or caches; I2 after
//! the replay no cached entry is named by one of the transaction's messages.
//!
//! Differences from PostgreSQL: where no records with single commands' messages are in WAL (13), the commit's messages stand in
//! for them under the newer rules.

mod messages;
mod rows;
mod sent;
mod transient_heap;

use std::collections::BTreeMap;
use std::ops::Range;

use pg_types::record::CommitRecord;
use pg_types::{InvalidationMessage, Lsn, Oid, RelFileLocator, Work, Xid};
use rustc_hash::FxHashMap;

use crate::historic_catalog::AsOf;
use crate::invalidation::Caches;
use crate::output::{DecodedTransaction, OutputSink};
use crate::profile::MessageRule;
use crate::reorder_buffer::change::{Change, ChangeKind, RowKind};
use crate::reorder_buffer::memory::Memory;
use crate::reorder_buffer::merge::MergedChanges;
use crate::reorder_buffer::streaming::{Dropped, Replayer, Shown};
use crate::reorder_buffer::tuple_cids::TupleCidHash;
use crate::reorder_buffer::txn::Txn;
use crate::sampling::Function;
use crate::spill::{SpillError, TransactionStatus};

pub(crate) use transient_heap::TransientHeaps;

/// Buffers that replays use one after another, and the transaction that is being given out.
#[derive(Debug, Default)]
pub(crate) struct ReplayBuffers {
    /// The transaction as the sink gets it.
    pub(crate) out: DecodedTransaction,
    /// If repeated ones are collapsed, messages executed so far, and what had been loaded when each was last.
    executed: FxHashMap<InvalidationMessage, u64>,
    /// Reused: relations that a commit record's messages name.
    pub(crate) named: Vec<Oid>,
    /// Positions in `out.relations` by number, once there are many.
    positions: FxHashMap<u32, u32>,
    /// Own messages that records told so far, by place in the tree and among its messages.
    told: Vec<(usize, Range<usize>)>,
    /// Heaps that a rewrite fills, in this transaction.
    heaps: TransientHeaps,
    /// Catalog rows that it wrote.
    tuple_cids: TupleCidHash,
    /// What a block shows, by place in the tree and relation.
    shown: BTreeMap<(usize, u32), Shown>,
}

/// A replay.
pub(crate) struct Replay<'a> {
    /// Caches, names and buffers.
    with: &'a mut Replayer,
    /// Where rows go.
    sink: &'a mut dyn OutputSink,
    /// The commit record's messages; none while the transaction is in progress.
    messages: &'a [InvalidationMessage],
    /// On demand: the newest commit before its own.
    newest: u32,
    /// On demand: the transaction has caught up to here.
    caught_up: u32,
    /// The command id so far.
    command_id: u32,
    /// No record told single commands' messages, so that the commit's stand in.
    stands_in: bool,
    /// How much had been loaded when they were executed last, if they were.
    stood_in: Option<u64>,
    /// A speculative insert that waits for its confirmation.
    speculative: Option<(Lsn, RelFileLocator)>,
    /// Rows of the record at hand that were written out before the rest.
    rows_before: u16,
    /// The (sub)transaction of the change at hand, and its place in the tree.
    current: (Xid, usize),
    /// The transaction is in progress, and this is a part of it.
    block: bool,
    /// Loads so far, when the replay began.
    loads_before: u64,
    /// Own messages that were executed so far.
    own_executed: usize,
    /// Of one that has not committed: tells whether it is rolled back meanwhile.
    status: Option<Box<dyn TransactionStatus>>,
    /// It is: nothing more can be decoded.
    aborted: bool,
}

impl<'a> Replay<'a> {
    /// One that gives to `sink`. `messages` are the commit record's, `newest` the last commit before it.
    pub(crate) fn new(
        with: &'a mut Replayer,
        sink: &'a mut dyn OutputSink,
        messages: &'a [InvalidationMessage],
        newest: u32,
    ) -> Self {
        with.buffers.begin();
        let loads_before = with.caches.loads;
        Self {
            with,
            sink,
            messages,
            newest,
            caught_up: 0,
            command_id: 0,
            stands_in: false,
            stood_in: None,
            speculative: None,
            rows_before: 0,
            current: (Xid::INVALID, 0),
            block: false,
            loads_before,
            own_executed: 0,
            status: None,
            aborted: false,
        }
    }

    /// Replays `tree`, whose first is the top-level transaction, and gives the sum of it to the sink, apart from its work,
    /// which the caller knows.
    ///
    /// # Errors
    /// What had been written out could not be read back.
    pub(crate) fn whole(mut self, tree: &mut [Txn], memory: &mut Memory, commit_lsn: Lsn) -> Result<(), SpillError> {
        let (xid, first_lsn) = (tree[0].xid, tree[0].first_lsn);
        let outer = self.with.caches.marker.enter(Function::ReorderBufferProcessTxn);
        self.begin_snapshot(&tree[0]);
        // A prepared one may be rolled back meanwhile; then it is given out as far as it can be.
        self.status = if tree[0].prepared.is_some() { memory.status.take() } else { None };
        self.with.caches.accept_invalidation_messages();
        self.go_back(&tree[0]);
        self.with.caches.look();
        self.output(|replay| replay.sink.begin(xid, first_lsn, commit_lsn));
        let done = self.changes(tree, memory);
        memory.status = self.status.take().or_else(|| memory.status.take());
        self.finish(&tree[0]);
        self.with.caches.marker.leave(outer);
        done
    }

    /// `ReorderBufferStreamTXN`: gives out what there is of `tree` as a block, and forgets it. Its counters are noted with the
    /// transaction.
    ///
    /// # Errors
    /// As [`Replay::whole`].
    pub(crate) fn block(&mut self, tree: &mut [Txn], memory: &mut Memory) -> Result<(), SpillError> {
        let outer = self.with.caches.marker.enter(Function::ReorderBufferProcessTxn);
        let (before, noted) = (self.with.caches.work, memory.noted);
        self.begin_snapshot(&tree[0]);
        self.with.caches.accept_invalidation_messages();
        self.go_back(&tree[0]);
        self.go_on(&tree[0]);
        let mut state = std::mem::take(&mut tree[0].streaming);
        self.with.buffers.heaps = std::mem::take(&mut state.heaps);
        (self.block, self.status) = (true, memory.status.take());
        let work = Work {
            stream_txns: u64::from(!state.streamed),
            stream_count: 1,
            stream_bytes: tree.iter().map(|txn| txn.size).sum(),
            ..Work::default()
        };
        tree[0].streaming = state;
        let done = self.changes(tree, memory);
        memory.status = self.status.take();
        self.finish(&tree[0]);
        self.end_block(tree, memory)?;
        self.with.caches.work += work;
        let done_here = self.with.caches.work - before - (memory.noted - noted);
        tree[0].noted += done_here;
        memory.noted += done_here;
        self.with.caches.marker.leave(outer);
        done
    }

    /// `SetupHistoricSnapshot`, with the base snapshot or that of the last block's end.
    fn begin_snapshot(&mut self, top: &Txn) {
        (self.caught_up, self.command_id) = (top.base_commit, top.streaming.command_id);
        let committed = top.base_snapshot_lsn.unwrap_or_default().max(top.streaming.snapshot_lsn);
        self.with.caches.as_of = AsOf { committed, xid: top.xid, command_id: self.command_id };
    }

    /// Remembers with what the next block begins, and forgets what was given out (`ReorderBufferTruncateTXN`).
    fn end_block(&mut self, tree: &mut [Txn], memory: &mut Memory) -> Result<(), SpillError> {
        for ((place, number), shown) in std::mem::take(&mut self.with.buffers.shown) {
            let sums = &mut tree[place].streaming.shown;
            sums.entry(number).and_modify(|sum| sum.add(shown)).or_insert(shown);
        }
        tree[0].streaming.heaps = self.end_of_heaps(tree);
        for (place, txn) in tree.iter_mut().enumerate() {
            txn.streaming.streamed |= place == 0 || txn.entries > 0;
            memory.forget(txn)?;
        }
        let top = &mut tree[0];
        (top.total_size, top.base_commit) = (0, self.caught_up);
        top.streaming.command_id = self.command_id;
        top.streaming.snapshot_lsn = self.with.caches.as_of.committed;
        top.streaming.dropped = Dropped { own: top.messages.len(), commits: self.newest, loads: self.with.caches.loads };
        Ok(())
    }

    /// Sums up what all blocks have shown of `tree`, for the transaction's end.
    pub(crate) fn sum_up(&mut self, tree: &[Txn]) {
        let mut sums = BTreeMap::<u32, Shown>::new();
        for (number, shown) in tree.iter().flat_map(|txn| &txn.streaming.shown) {
            let sum = sums.entry(*number).or_insert(Shown { first: shown.first, ..Shown::default() });
            sum.add(*shown);
            sum.first = sum.first.min(shown.first);
        }
        let mut sums: Vec<(u32, Shown)> = sums.into_iter().collect();
        sums.sort_by_key(|(_, sum)| sum.first);
        for (number, Shown { counts, .. }) in sums {
            let changes = self.counts(number);
            counts.into_iter().enumerate().for_each(|(column, n)| *changes.column(column) = n);
        }
        self.with.buffers.out.messages.logical = tree.iter().map(|txn| txn.streaming.logical).sum();
    }

    /// All changes of `tree` in order; in a block, between its start and its stop.
    fn changes(&mut self, tree: &mut [Txn], memory: &mut Memory) -> Result<(), SpillError> {
        let (xid, first_block, mut last) = (tree[0].xid, !tree[0].streamed(), None);
        self.build_tuple_cids(&tree[0]);
        self.stands_in = tree[0].messages.is_empty();
        memory.begin_replay(tree, &mut self.with.caches.work)?;
        let mut merged = MergedChanges::new(tree);
        while let Some((place, change)) = merged.next(tree, memory, &mut self.with.caches.work)? {
            if self.block && tree[place].aborted {
                continue;
            }
            if self.block && last.is_none() {
                self.output(|replay| replay.sink.stream_start(xid, change.lsn, first_block));
            }
            last = Some(change.lsn);
            self.current = (tree[place].xid, place);
            // A subtransaction that was not known as such began with a later snapshot.
            if tree[place].first_commit > self.caught_up {
                self.with.caches.as_of.committed = change.lsn;
                self.catch_up(tree[place].first_commit);
            }
            // What a new snapshot makes stale, the messages behind it drop before anything is read.
            let reads = matches!(change.kind, ChangeKind::Rows { .. } | ChangeKind::Truncate(_));
            if reads {
                self.with.caches.look();
            }
            self.apply(tree, place, &change);
            if reads || !matches!(change.kind, ChangeKind::Snapshot | ChangeKind::CommandId(_)) {
                self.with.caches.look();
            }
            if std::mem::take(&mut self.aborted) {
                tree[place].aborted = true;
                // A block goes on without a subtransaction that was rolled back: the others' changes are still wanted.
                if place == 0 || !self.block {
                    break;
                }
            }
            if self.with.caches.interrupt.is_raised() {
                break;
            }
        }
        if let Some(lsn) = last.filter(|_| self.block) {
            self.output(|replay| replay.sink.stream_stop(xid, lsn));
        }
        Ok(())
    }

    /// `ReorderBufferBuildTupleCidHash`, and which relations have rows in it.
    fn build_tuple_cids(&mut self, top: &Txn) {
        let caches = &mut self.with.caches;
        caches.own_relations.clear();
        self.with.buffers.tuple_cids.clear();
        if top.tuple_cids.is_empty() {
            return;
        }
        caches.tuple_cids.build(&top.tuple_cids, &mut self.with.buffers.tuple_cids);
        let own = if top.messages.is_empty() { self.messages } else { &top.messages };
        caches.own_relations.extend(own.iter().filter_map(|message| match message {
            InvalidationMessage::Relcache { rel, .. } => Some(*rel),
            _ => None,
        }));
    }

    /// Whether the (sub)transaction of the change at hand was rolled back meanwhile; asked before anything of its time is loaded
    /// (`HandleConcurrentAbort`).
    fn aborted_meanwhile(&mut self, lsn: Lsn) -> bool {
        let xid = self.current.0;
        self.aborted = self.status.as_mut().is_some_and(|status| status.is_aborted(xid, lsn));
        self.aborted
    }

    /// Runs a call of the sink under its own name.
    fn output(&mut self, call: impl FnOnce(&mut Self)) {
        let outer = self.with.caches.marker.enter(Function::OutputPlugin);
        call(self);
        self.with.caches.marker.leave(outer);
    }

    /// One change, of the (sub)transaction at `place` of `tree`.
    fn apply(&mut self, tree: &mut [Txn], place: usize, change: &Change) {
        match change.kind {
            ChangeKind::Rows { kind, rows, spc, rel } => {
                let file = RelFileLocator { spc, db: self.with.relations.database(), rel };
                if kind == RowKind::InsertSpeculative {
                    self.speculative = Some((change.lsn, file));
                } else {
                    let rows = rows + std::mem::take(&mut self.rows_before);
                    self.rows(change.lsn, kind, rows, file, tree);
                }
            }
            ChangeKind::RowsBefore(rows) => self.rows_before += rows,
            ChangeKind::Snapshot => self.with.caches.as_of.committed = change.lsn,
            ChangeKind::SpeculativeConfirm => {
                if let Some((lsn, file)) = self.speculative.take() {
                    self.rows(lsn, RowKind::Insert, 1, file, tree);
                }
            }
            ChangeKind::SpeculativeAbort => self.speculative = None,
            ChangeKind::Truncate(index) => self.truncate(change.lsn, &tree[place].truncates[index as usize]),
            ChangeKind::CommandId(id) => self.command_id(id),
            ChangeKind::Invalidations { start, len } => {
                self.with.buffers.told.push((place, start as usize..(start + len) as usize));
                if self.with.rule != MessageRule::AtEachCommand {
                    self.own_executed += len as usize;
                    self.execute(&tree[place].messages[start as usize..(start + len) as usize]);
                }
            }
            ChangeKind::Inherited(index) => {
                let inherited = &tree[place].inherited[index as usize];
                // Up to 13 at the end alone.
                if self.with.rule == MessageRule::AtEachCommand {
                    return;
                }
                inherited.for_each(&mut |message| self.execute(std::slice::from_ref(message)));
            }
            ChangeKind::CatchUp(to) => {
                self.with.caches.as_of.committed = change.lsn;
                self.catch_up(to);
            }
            ChangeKind::Message(index) => {
                let txn = &mut tree[place];
                match self.block {
                    true => txn.streaming.logical += 1,
                    false => self.with.buffers.out.messages.logical += 1,
                }
                let (message, xid) = (&txn.logical[index as usize], txn.xid);
                self.output(|replay| replay.sink.message(change.lsn, xid, message));
            }
        }
    }
}

impl ReplayBuffers {
    /// Empties them for the next replay.
    fn begin(&mut self) {
        self.shown.clear();
        self.executed.clear();
        self.positions.clear();
        self.told.clear();
        self.heaps.clear();
    }
}

/// `ReorderBufferForget`: a transaction that is not given out still drops what its messages name, if it changed anything.
pub(crate) fn forget(caches: &mut Caches, tree: &[Txn], commit: &CommitRecord) {
    let top = &tree[0];
    if top.has_base_snapshot() {
        let own = if top.messages.is_empty() { &commit.messages } else { &top.messages };
        caches.execute_all(own);
    }
}

/// Whether the transaction changed anything, so that it is given out, be it empty.
pub(crate) fn has_something(tree: &[Txn]) -> bool {
    tree.first().is_some_and(Txn::has_base_snapshot)
}

/// The xid under which a commit or abort record ends a transaction: a prepared one's own, or the record's.
pub(crate) fn ended_xid(prepared: Xid, record: Xid) -> Xid {
    if prepared.is_valid() { prepared } else { record }
}
