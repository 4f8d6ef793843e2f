//! Replays a committed transaction, or a part of one in progress: `ReorderBufferProcessTXN` of `replication/logical/reorderbuffer.c`.
//!
//! Its changes are taken in LSN order; each row's relation is opened through the caches, and what an output plugin would show
//! is handed to the sink. Invalidation messages are executed on the way and at the end, so that rows are decoded with the
//! catalogs of their moment and nothing stale stays behind for the next transaction. *When* they are executed is the rule that
//! 14 changed ([`MessageRule`]); with the old one, cost grows with commands × messages.
//!
//! Which rows are shown: those of tables. A catalog copy says which relations are tables; for one that it does not know, the
//! record decides: rows without data and rows that a new-cid record announced are a catalog's, flagged ones a TOAST table's.
//! Rows that ALTER TABLE writes into a new heap are not shown either; such a heap is recognised by the relcache message for
//! the oid that equals its file number, while the copy gives the file to another relation; it ends with the next command id.
//!
//! Invariants: I1 what the sink is given depends on the changes and the catalog copy alone, never on profile or caches; I2 after
//! the replay no cached entry is named by one of the transaction's messages.
//!
//! | rule | messages executed, m own ones of which d differ, c command-id increases |
//! |---|---|
//! | at each command | (c + 1)·m |
//! | per record | 2·m |
//! | … executed once ([`EndMessages::OfLoaded`]) | at each command c·m, per record m; and those of what is loaded again |
//! | … collapsed ([`RepeatedMessages::Collapsed`]) | on the way and at the end d each, and those loaded again in between |
//!
//! Differences from PostgreSQL: where no records with single commands' messages are in WAL (13), the commit's messages stand in
//! for them under the newer rules.

mod sent;

use std::collections::BTreeMap;
use std::sync::Arc;

use pg_types::record::{CommitRecord, TruncateRecord};
use pg_types::{InvalidationMessage, Lsn, Oid, RelFileLocator, Work, Xid};
use rustc_hash::FxHashMap;

use crate::historic_catalog::AsOf;
use crate::invalidation::{Caches, TOUCHED_AHEAD};
use crate::output::{DecodedChange, DecodedTransaction, OutputSink, Relation, RelationChanges};
use crate::profile::{EndMessages, MessageRule, RepeatedMessages};
use crate::reorder_buffer::change::{Change, ChangeKind, RowKind};
use crate::reorder_buffer::memory::Memory;
use crate::reorder_buffer::merge::MergedChanges;
use crate::reorder_buffer::streaming::{Dropped, Replayer, Shown};
use crate::reorder_buffer::tuple_cids::TupleCidHash;
use crate::reorder_buffer::txn::Txn;
use crate::sampling::Function;
use crate::spill::{SpillError, TransactionStatus};

/// Place of TRUNCATE among the counts of a relation, behind the actions.
const TRUNCATE: usize = 3;

/// Relations of one transaction that are searched one by one; with more, an index is used.
const LINEAR_RELATIONS_MAX: usize = 12;

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
    /// Heaps that a rewrite fills, in this transaction.
    transient: Vec<TransientHeap>,
    /// Catalog rows that it wrote.
    tuple_cids: TupleCidHash,
    /// What a block shows, by place in the tree and relation.
    shown: BTreeMap<(usize, u32), Shown>,
}

/// A file that began as the heap of a rewrite.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TransientHeap {
    /// The file.
    file: RelFileLocator,
    /// The command id while it is filled; at a later one the file belongs to the rewritten table.
    command_id: u32,
    /// It is such a heap at all; remembered either way.
    transient: bool,
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
        let state = std::mem::take(&mut tree[0].streaming);
        self.with.buffers.transient.clone_from(&state.transient);
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
        for (place, txn) in tree.iter_mut().enumerate() {
            txn.streaming.streamed |= place == 0 || txn.entries > 0;
            memory.forget(txn)?;
        }
        let top = &mut tree[0];
        (top.total_size, top.base_commit) = (0, self.caught_up);
        top.streaming.command_id = self.command_id;
        top.streaming.snapshot_lsn = self.with.caches.as_of.committed;
        top.streaming.dropped = Dropped { own: top.messages.len(), commits: self.newest, loads: self.with.caches.loads };
        top.streaming.transient = std::mem::take(&mut self.with.buffers.transient);
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
            self.apply(&mut tree[place], &change);
            if reads || !matches!(change.kind, ChangeKind::Snapshot | ChangeKind::CommandId(_)) {
                self.with.caches.look();
            }
            if self.aborted {
                tree[place].aborted = true;
                break;
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

    /// One change.
    fn apply(&mut self, txn: &mut Txn, change: &Change) {
        match change.kind {
            ChangeKind::Rows { kind, rows, spc, rel } => {
                let file = RelFileLocator { spc, db: self.with.relations.database(), rel };
                if kind == RowKind::InsertSpeculative {
                    self.speculative = Some((change.lsn, file));
                } else {
                    let rows = rows + std::mem::take(&mut self.rows_before);
                    self.rows(change.lsn, kind, rows, file);
                }
            }
            ChangeKind::RowsBefore(rows) => self.rows_before += rows,
            ChangeKind::Snapshot => self.with.caches.as_of.committed = change.lsn,
            ChangeKind::SpeculativeConfirm => {
                if let Some((lsn, file)) = self.speculative.take() {
                    self.rows(lsn, RowKind::Insert, 1, file);
                }
            }
            ChangeKind::SpeculativeAbort => self.speculative = None,
            ChangeKind::Truncate(index) => self.truncate(change.lsn, &txn.truncates[index as usize]),
            ChangeKind::CommandId(id) => self.command_id(id),
            ChangeKind::Invalidations { start, len } => {
                if self.with.rule != MessageRule::AtEachCommand {
                    self.own_executed += len as usize;
                    self.execute(&txn.messages[start as usize..(start + len) as usize]);
                }
            }
            ChangeKind::Inherited(index) => {
                let inherited = &txn.inherited[index as usize];
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
                match self.block {
                    true => txn.streaming.logical += 1,
                    false => self.with.buffers.out.messages.logical += 1,
                }
                let (message, xid) = (&txn.logical[index as usize], txn.xid);
                self.output(|replay| replay.sink.message(change.lsn, xid, message));
            }
        }
    }

    /// A row change: opens its relation and shows it.
    fn rows(&mut self, lsn: Lsn, kind: RowKind, rows: u16, file: RelFileLocator) {
        let known = self.with.relations.of_file(file);
        // A mapped catalog's old file has no relation any more: its map is not historic.
        let unknown = self.with.relations.get(known).logged.is_none();
        let absent = unknown && kind.of_catalog() && file.rel >= Oid::FIRST_NORMAL.0;
        if self.status.is_some() && self.with.caches.must_load_file(file) && self.aborted_meanwhile(lsn) {
            return;
        }
        let Some(number) = self.with.caches.open_file(file, absent, &mut self.with.relations) else { return };
        self.with.caches.look_up_again(u64::from(rows.saturating_sub(1)));
        let relation = self.with.relations.get(number);
        if !relation.logged.unwrap_or(kind.looks_logged() && file.rel >= Oid::FIRST_NORMAL.0) {
            return;
        }
        let (oid, namespace) = (relation.oid, relation.namespace);
        let names = (number, oid, namespace);
        let told = self.with.caches.historic.is_some();
        if !told && relation.logged.is_some() && relation.oid.0 != file.rel && self.is_transient(file) {
            return;
        }
        if self.status.is_some() && self.with.caches.must_load_names(names) && self.aborted_meanwhile(lsn) {
            return;
        }
        let action = kind.action();
        let outer = self.with.caches.marker.enter(Function::OutputPlugin);
        self.with.caches.hold(oid);
        let sent_as = self.sent_as(number, lsn, action as usize).filter(|_| !self.filters() || kind.has_row());
        match sent_as {
            Some(sent_as) => {
                self.count(lsn, sent_as, action as usize, rows.into());
                self.with.caches.show_rows(number, oid, namespace, rows.into());
                let relation = self.with.relations.get(sent_as);
                self.sink.change(&DecodedChange { lsn, xid: self.current.0, relation, action, rows });
            }
            None => self.with.caches.work.rows_filtered += u64::from(rows),
        }
        self.with.caches.release(oid);
        self.with.caches.marker.leave(outer);
    }

    /// Whether `file` is being filled by a rewrite now.
    fn is_transient(&mut self, file: RelFileLocator) -> bool {
        let heap = match self.with.buffers.transient.iter().find(|heap| heap.file == file) {
            Some(heap) => *heap,
            None => {
                let own_oid =
                    |m: &InvalidationMessage| matches!(m, InvalidationMessage::Relcache { rel, .. } if rel.0 == file.rel);
                let transient = self.messages.iter().any(own_oid);
                let heap = TransientHeap { file, command_id: self.command_id, transient };
                self.with.buffers.transient.push(heap);
                heap
            }
        };
        heap.transient && heap.command_id == self.command_id
    }

    /// A TRUNCATE.
    fn truncate(&mut self, lsn: Lsn, record: &TruncateRecord) {
        let mut shown = Vec::with_capacity(record.relids.len());
        for (open, oid) in record.relids.iter().enumerate() {
            let number = self.with.relations.of_oid(*oid);
            let relation = self.with.relations.get(number);
            let (namespace, logged) = (relation.namespace, relation.logged);
            if self.status.is_some() && !self.with.caches.has_relation(*oid) && self.aborted_meanwhile(lsn) {
                record.relids[..open].iter().for_each(|oid| self.with.caches.release(*oid));
                return;
            }
            self.with.caches.open_relation(*oid, namespace);
            self.with.caches.hold(*oid);
            if logged.unwrap_or(true) {
                shown.push(number);
            }
        }
        let outer = self.with.caches.marker.enter(Function::OutputPlugin);
        self.wanted_truncates(lsn, &mut shown);
        if shown.is_empty() && self.filters() {
            record.relids.iter().for_each(|oid| self.with.caches.release(*oid));
            self.with.caches.marker.leave(outer);
            return;
        }
        let shown: Vec<&Relation> = shown.into_iter().map(|number| self.with.relations.get(number)).collect();
        shown.iter().for_each(|relation| self.with.caches.show_truncate(relation.oid, relation.namespace));
        self.sink.truncate(lsn, self.current.0, &shown, record);
        record.relids.iter().for_each(|oid| self.with.caches.release(*oid));
        self.with.caches.marker.leave(outer);
    }

    /// Counts `n` rows, or a TRUNCATE, of a relation.
    fn count(&mut self, lsn: Lsn, number: u32, column: usize, n: u64) {
        if !self.block {
            *self.counts(number).column(column) += n;
            return;
        }
        let shown = &mut self.with.buffers.shown;
        let first = (lsn, shown.len());
        let sum = shown.entry((self.current.1, number)).or_insert(Shown { first, ..Shown::default() });
        sum.counts[column] += n;
    }

    /// The sums of one relation, at their end.
    fn counts(&mut self, number: u32) -> &mut RelationChanges {
        let buffers = &mut self.with.buffers;
        let list = &mut buffers.out.relations;
        let known = if list.last().is_some_and(|last| last.number == number) {
            Some(list.len() - 1)
        } else if list.len() <= LINEAR_RELATIONS_MAX {
            list.iter().position(|r| r.number == number)
        } else {
            buffers.positions.get(&number).map(|at| *at as usize)
        };
        let at = known.unwrap_or_else(|| {
            let relation = self.with.relations.get(number);
            let name = Arc::clone(&relation.name);
            list.push(RelationChanges { name, oid: relation.oid, insert: 0, update: 0, delete: 0, truncate: 0, number });
            buffers.positions.insert(number, (list.len() - 1) as u32);
            list.len() - 1
        });
        &mut list[at]
    }

    /// The command id rises; up to 13 all messages are executed again. Where they stand in for those of single commands, `indexed`
    /// drops what was loaded since the last one.
    fn command_id(&mut self, id: u32) {
        if id <= self.command_id {
            return;
        }
        (self.command_id, self.with.caches.as_of.command_id) = (id, id);
        if self.with.rule == MessageRule::AtEachCommand {
            self.own_executed = self.messages.len();
            self.execute(self.messages);
        } else if self.stands_in && self.with.at_end == EndMessages::OfLoaded && self.stood_in != Some(self.with.caches.loads) {
            for message in self.messages {
                if self.with.caches.concerned(message) {
                    self.execute(std::slice::from_ref(message));
                }
            }
            self.stood_in = Some(self.with.caches.loads);
        }
    }

    /// On demand: commits that its snapshot does not see yet may have been given out already, and what they changed be loaded as they
    /// left it. PostgreSQL decodes with that.
    fn go_back(&mut self, top: &Txn) {
        let dropped = &top.streaming.dropped;
        let since = if dropped.loads == self.with.caches.loads { dropped.commits } else { 0 };
        for messages in self.with.commits.between(top.base_commit.max(since), self.newest) {
            match messages {
                Some(messages) => self.with.caches.execute_concerned(messages),
                None => self.with.caches.reset(),
            }
        }
    }

    /// What others have loaded since the last block lacks what earlier blocks changed. PostgreSQL decodes with that too.
    fn go_on(&mut self, top: &Txn) {
        let Dropped { own, loads, .. } = top.streaming.dropped;
        if self.with.at_end == EndMessages::OfLoaded && loads != self.with.caches.loads {
            self.with.caches.execute_concerned(top.messages.get(..own).unwrap_or_default());
        }
    }

    /// On demand: executes the messages of the commits up to number `to`.
    fn catch_up(&mut self, to: u32) {
        let to = to.max(self.caught_up);
        let from = std::mem::replace(&mut self.caught_up, to);
        let commits = std::mem::take(&mut self.with.commits);
        for messages in commits.between(from, to) {
            match messages {
                Some(messages) => self.execute(messages),
                None => self.with.caches.reset(),
            }
        }
        self.with.commits = commits;
    }

    /// `ReorderBufferExecuteInvalidations`, but for those left out that were executed before.
    fn execute(&mut self, messages: &[InvalidationMessage]) {
        let Replayer { caches, buffers, repeated, .. } = &mut *self.with;
        if *repeated == RepeatedMessages::Executed {
            caches.execute_all(messages);
            return;
        }
        for ahead in messages.chunks(TOUCHED_AHEAD) {
            if caches.interrupt.is_raised() {
                return;
            }
            caches.touch(ahead);
            for message in ahead {
                let loads = caches.loads;
                let before = buffers.executed.insert(*message, loads);
                if before.is_none_or(|before| before != loads && caches.concerned(message)) {
                    caches.execute(message);
                }
            }
        }
    }

    /// Messages at the end (I2).
    fn finish(&mut self, top: &Txn) {
        self.with.caches.end_transaction();
        let own = match self.with.rule {
            MessageRule::AtEachCommand => self.messages,
            MessageRule::PerRecord if top.messages.is_empty() => {
                self.own_executed = self.messages.len();
                self.execute(self.messages);
                self.messages
            }
            MessageRule::PerRecord => &top.messages,
        };
        if self.with.at_end == EndMessages::OfLoaded && self.is_done(own, top) {
            return;
        }
        let commits = std::mem::take(&mut self.with.commits);
        let newest = self.newest;
        let to_catch_up = || commits.between(top.base_commit, newest);
        if top.inherited_overflowed || to_catch_up().any(|messages| messages.is_none()) {
            self.with.caches.reset();
        } else {
            self.with.buffers.executed.clear();
            self.execute_at_end(own);
            for inherited in &top.inherited {
                inherited.for_each(&mut |message| self.execute_at_end(std::slice::from_ref(message)));
            }
            to_catch_up().flatten().for_each(|messages| self.execute_at_end(messages));
        }
        self.with.commits = commits;
    }

    /// Nothing is left to be executed: all messages were, and nothing was loaded by this replay. What other transactions loaded is not
    /// made stale by a block of one in progress.
    fn is_done(&self, own: &[InvalidationMessage], top: &Txn) -> bool {
        let executed = self.own_executed >= own.len() && self.caught_up >= self.newest && !top.inherited_overflowed;
        let in_progress = self.block && self.messages.is_empty();
        (executed || in_progress) && self.loads_before == self.with.caches.loads
    }

    /// Executes messages at the end: all, or those of what is loaded.
    fn execute_at_end(&mut self, messages: &[InvalidationMessage]) {
        if self.with.at_end == EndMessages::All {
            return self.execute(messages);
        }
        self.with.caches.execute_concerned(messages);
    }
}

impl ReplayBuffers {
    /// Empties them for the next replay.
    fn begin(&mut self) {
        self.shown.clear();
        self.executed.clear();
        self.positions.clear();
        self.transient.clear();
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
