//! Replays a committed transaction: `ReorderBufferProcessTXN` of `replication/logical/reorderbuffer.c`.
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
//! | rule | messages executed, m own ones, c command-id increases |
//! |---|---|
//! | at each command | (c + 1)·m |
//! | per record | 2·m |
//! | once unless loaded | distinct ones + those loaded again |
//!
//! Differences from PostgreSQL: where no records with single commands' messages are in WAL (13), the commit's messages stand in
//! for them under the newer rules.

use std::sync::Arc;

use pg_types::record::{CommitRecord, TruncateRecord};
use pg_types::{InvalidationMessage, Lsn, Oid, RelFileLocator, Xid};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::invalidation::{Caches, TOUCHED_AHEAD};
use crate::output::{Action, DecodedChange, DecodedTransaction, OutputSink, Relation, RelationChanges};
use crate::profile::MessageRule;
use crate::relations::Relations;
use crate::reorder_buffer::change::{Change, ChangeKind, RowKind};
use crate::reorder_buffer::distribution::CatalogCommits;
use crate::reorder_buffer::memory::Memory;
use crate::reorder_buffer::merge::MergedChanges;
use crate::reorder_buffer::txn::Txn;
use crate::sampling::Function;
use crate::spill::SpillError;

/// Relations of one transaction that are searched one by one; with more, an index is used.
const LINEAR_RELATIONS_MAX: usize = 12;

/// Buffers that replays use one after another, and the transaction that is being given out.
#[derive(Debug, Default)]
pub(crate) struct ReplayBuffers {
    /// The transaction as the sink gets it.
    pub(crate) out: DecodedTransaction,
    /// Messages executed in this replay, under [`MessageRule::OnceUnlessLoaded`].
    executed: FxHashSet<InvalidationMessage>,
    /// The same in the order of their first execution.
    executed_order: Vec<InvalidationMessage>,
    /// What had been loaded when the first of them was executed.
    loads_before: u64,
    /// Own messages of records that were executed so far.
    own_executed: usize,
    /// On demand: messages had to be forgotten, so everything must be dropped in their place.
    forgotten: bool,
    /// Positions in `out.relations` by number, once there are many.
    positions: FxHashMap<u32, u32>,
    /// Heaps that a rewrite fills, in this transaction.
    transient: Vec<TransientHeap>,
}

/// A file that began as the heap of a rewrite.
#[derive(Clone, Copy, Debug)]
struct TransientHeap {
    /// The file.
    file: RelFileLocator,
    /// The command id while it is filled; at a later one the file belongs to the rewritten table.
    command_id: u32,
    /// It is such a heap at all; remembered either way.
    transient: bool,
}

/// A replay.
pub(crate) struct Replay<'a> {
    /// What decoding looks up and messages drop.
    pub(crate) caches: &'a mut Caches,
    /// Names.
    pub(crate) relations: &'a mut Relations,
    /// Commits to catch up with, on demand.
    pub(crate) commits: &'a CatalogCommits,
    /// When messages are executed.
    pub(crate) rule: MessageRule,
    /// Where rows go.
    pub(crate) sink: &'a mut dyn OutputSink,
    /// The commit record.
    pub(crate) commit: &'a CommitRecord,
    /// Reused memory.
    pub(crate) buffers: &'a mut ReplayBuffers,
    /// On demand: the transaction has caught up to here.
    pub(crate) caught_up: u32,
    /// On demand: the newest commit before its own.
    pub(crate) newest: u32,
    /// The command id so far.
    pub(crate) command_id: u32,
    /// A speculative insert that waits for its confirmation.
    pub(crate) speculative: Option<(Lsn, RelFileLocator)>,
    /// Rows of the record at hand that were written out before the rest.
    pub(crate) rows_before: u16,
}

impl Replay<'_> {
    /// Replays `tree`, whose first is the top-level transaction, and gives the sum of it to the sink, apart from its work,
    /// which the caller knows.
    ///
    /// # Errors
    /// What had been written out could not be read back.
    pub(crate) fn run(&mut self, tree: &mut [Txn], memory: &mut Memory, commit_lsn: Lsn) -> Result<(), SpillError> {
        let (xid, first_lsn) = (tree[0].xid, tree[0].first_lsn);
        let outer = self.caches.marker.enter(Function::ReorderBufferProcessTxn);
        self.buffers.begin();
        self.output(|replay| replay.sink.begin(xid, first_lsn, commit_lsn));
        memory.begin_replay(tree, &mut self.caches.work)?;
        let mut merged = MergedChanges::new(tree);
        while let Some((stream, change)) = merged.next(tree, memory, &mut self.caches.work)? {
            self.apply(&tree[stream], &change);
        }
        self.finish(&tree[0]);
        self.caches.marker.leave(outer);
        Ok(())
    }

    /// Runs a call of the sink under its own name.
    fn output(&mut self, call: impl FnOnce(&mut Self)) {
        let outer = self.caches.marker.enter(Function::OutputPlugin);
        call(self);
        self.caches.marker.leave(outer);
    }

    /// One change.
    fn apply(&mut self, txn: &Txn, change: &Change) {
        match change.kind {
            ChangeKind::Rows { kind, rows, spc, rel } => {
                let file = RelFileLocator { spc, db: self.relations.database(), rel };
                if kind == RowKind::InsertSpeculative {
                    self.speculative = Some((change.lsn, file));
                } else {
                    let rows = rows + std::mem::take(&mut self.rows_before);
                    self.rows(change.lsn, kind, rows, file);
                }
            }
            ChangeKind::RowsBefore(rows) => self.rows_before += rows,
            ChangeKind::Snapshot => {}
            ChangeKind::SpeculativeConfirm => {
                if let Some((lsn, file)) = self.speculative.take() {
                    self.rows(lsn, RowKind::Insert, 1, file);
                }
            }
            ChangeKind::SpeculativeAbort => self.speculative = None,
            ChangeKind::Truncate(index) => self.truncate(change.lsn, &txn.truncates[index as usize]),
            ChangeKind::CommandId(id) => self.command_id(id),
            ChangeKind::Invalidations { start, len } => {
                if self.rule != MessageRule::AtEachCommand {
                    self.buffers.own_executed += len as usize;
                    self.execute(&txn.messages[start as usize..(start + len) as usize]);
                }
            }
            ChangeKind::Inherited(index) => {
                let inherited = &txn.inherited[index as usize];
                inherited.for_each(&mut |message| self.execute(std::slice::from_ref(message)));
            }
            ChangeKind::CatchUp(to) => self.catch_up(to),
            ChangeKind::Message(index) => {
                self.buffers.out.messages.logical += 1;
                let message = &txn.logical[index as usize];
                self.output(|replay| replay.sink.message(change.lsn, message));
            }
        }
    }

    /// A row change: opens its relation and shows it.
    fn rows(&mut self, lsn: Lsn, kind: RowKind, rows: u16, file: RelFileLocator) {
        let known = self.relations.of_file(file);
        // A mapped catalog's old file has no relation any more: its map is not historic.
        let unknown = self.relations.get(known).logged.is_none();
        let absent = unknown && kind.of_catalog() && file.rel >= Oid::FIRST_NORMAL.0;
        let Some(number) = self.caches.open_file(file, absent, self.relations) else { return };
        let relation = self.relations.get(number);
        if !relation.logged.unwrap_or(kind.looks_logged() && file.rel >= Oid::FIRST_NORMAL.0) {
            return;
        }
        if relation.logged.is_some() && relation.oid.0 != file.rel && self.is_transient(file) {
            return;
        }
        let action = kind.action();
        let counts = self.counts(number);
        let count = match action {
            Action::Insert => &mut counts.insert,
            Action::Update => &mut counts.update,
            Action::Delete => &mut counts.delete,
        };
        *count += u64::from(rows);
        let outer = self.caches.marker.enter(Function::OutputPlugin);
        self.sink.change(&DecodedChange { lsn, relation: self.relations.get(number), action, rows });
        self.caches.marker.leave(outer);
    }

    /// Whether `file` is being filled by a rewrite now.
    fn is_transient(&mut self, file: RelFileLocator) -> bool {
        let heap = match self.buffers.transient.iter().find(|heap| heap.file == file) {
            Some(heap) => *heap,
            None => {
                let own_oid =
                    |m: &InvalidationMessage| matches!(m, InvalidationMessage::Relcache { rel, .. } if rel.0 == file.rel);
                let transient = self.commit.messages.iter().any(own_oid);
                let heap = TransientHeap { file, command_id: self.command_id, transient };
                self.buffers.transient.push(heap);
                heap
            }
        };
        heap.transient && heap.command_id == self.command_id
    }

    /// A TRUNCATE.
    fn truncate(&mut self, lsn: Lsn, record: &TruncateRecord) {
        let mut shown = Vec::with_capacity(record.relids.len());
        for oid in &record.relids {
            let number = self.relations.of_oid(*oid);
            let relation = self.relations.get(number);
            let (namespace, logged) = (relation.namespace, relation.logged);
            self.caches.open_relation(*oid, namespace);
            if logged.unwrap_or(true) {
                self.counts(number).truncate += 1;
                shown.push(number);
            }
        }
        let outer = self.caches.marker.enter(Function::OutputPlugin);
        let shown: Vec<&Relation> = shown.into_iter().map(|number| self.relations.get(number)).collect();
        self.sink.truncate(lsn, &shown, record);
        self.caches.marker.leave(outer);
    }

    /// The sums of one relation.
    fn counts(&mut self, number: u32) -> &mut RelationChanges {
        let buffers = &mut *self.buffers;
        let list = &mut buffers.out.relations;
        let known = if list.last().is_some_and(|last| last.number == number) {
            Some(list.len() - 1)
        } else if list.len() <= LINEAR_RELATIONS_MAX {
            list.iter().position(|r| r.number == number)
        } else {
            buffers.positions.get(&number).map(|at| *at as usize)
        };
        let at = known.unwrap_or_else(|| {
            let relation = self.relations.get(number);
            let name = Arc::clone(&relation.name);
            list.push(RelationChanges { name, oid: relation.oid, insert: 0, update: 0, delete: 0, truncate: 0, number });
            buffers.positions.insert(number, (list.len() - 1) as u32);
            list.len() - 1
        });
        &mut list[at]
    }

    /// The command id rises; up to 13 all messages are executed again.
    fn command_id(&mut self, id: u32) {
        if id <= self.command_id {
            return;
        }
        self.command_id = id;
        if self.rule == MessageRule::AtEachCommand {
            self.execute(&self.commit.messages);
        }
    }

    /// On demand: executes the messages of the commits up to number `to`.
    fn catch_up(&mut self, to: u32) {
        let to = to.max(self.caught_up);
        let from = std::mem::replace(&mut self.caught_up, to);
        for messages in self.commits.between(from, to) {
            match messages {
                Some(messages) => self.execute(messages),
                None => {
                    self.caches.reset();
                    self.buffers.forgotten = true;
                }
            }
        }
    }

    /// `ReorderBufferExecuteInvalidations`, as the rule wants it.
    fn execute(&mut self, messages: &[InvalidationMessage]) {
        if self.rule != MessageRule::OnceUnlessLoaded {
            self.caches.execute_all(messages);
            return;
        }
        if self.buffers.executed_order.is_empty() {
            self.buffers.loads_before = self.caches.loads;
        }
        for ahead in messages.chunks(TOUCHED_AHEAD) {
            self.caches.touch(ahead);
            for message in ahead {
                let first = self.buffers.executed.insert(*message);
                if first {
                    self.buffers.executed_order.push(*message);
                }
                if first || self.caches.concerned(message) {
                    self.caches.execute(message);
                }
            }
        }
    }

    /// Messages at the end (I2).
    fn finish(&mut self, top: &Txn) {
        let stand_in = top.messages.is_empty();
        let own = if stand_in { &self.commit.messages } else { &top.messages };
        match self.rule {
            MessageRule::AtEachCommand => self.end(&self.commit.messages, top),
            MessageRule::PerRecord => {
                if stand_in {
                    self.execute(own);
                }
                self.end(own, top);
            }
            MessageRule::OnceUnlessLoaded => self.end_once(own, top),
        }
    }

    /// Executes own and inherited messages, or resets everything if those were too many.
    fn end(&mut self, own: &[InvalidationMessage], top: &Txn) {
        if top.inherited_overflowed {
            self.caches.reset();
            return;
        }
        self.execute(own);
        for inherited in &top.inherited {
            inherited.for_each(&mut |message| self.execute(std::slice::from_ref(message)));
        }
    }

    /// Executes what was not yet executed, and again what was loaded since it was.
    fn end_once(&mut self, own: &[InvalidationMessage], top: &Txn) {
        self.catch_up(self.newest.max(self.caught_up));
        if self.buffers.own_executed < own.len() {
            self.execute(own);
        }
        if top.inherited_overflowed || self.buffers.forgotten {
            self.caches.reset();
            return;
        }
        if self.buffers.executed_order.is_empty() || self.buffers.loads_before == self.caches.loads {
            return;
        }
        let order = std::mem::take(&mut self.buffers.executed_order);
        for message in &order {
            if self.caches.concerned(message) {
                self.caches.execute(message);
            }
        }
        self.buffers.executed_order = order;
    }
}

impl ReplayBuffers {
    /// Empties them for the next replay.
    fn begin(&mut self) {
        if !self.executed_order.is_empty() {
            self.executed.clear();
            self.executed_order.clear();
        }
        self.positions.clear();
        self.transient.clear();
        (self.own_executed, self.forgotten) = (0, false);
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
