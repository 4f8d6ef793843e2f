//! The decoder: takes WAL records one by one and gives out committed transactions (`replication/logical/decode.c`).
//!
//! Each record belongs to a transaction, or to none. Heap records become changes that wait in the reorder buffer; commits set
//! them free in order; RUNNING_XACTS records move the snapshot builder. The functions here decide, record by record, exactly
//! as `DecodeXLogRecord` and its helpers do, so that the sequence of transactions equals that of `test_decoding`.
//!
//! ```text
//!   WalRecord ─► Decoder::process ─┬─ heap, heap2 ─► reorder buffer ◄─┐
//!                                  ├─ xact commit ──► snap build, distribution ─► replay ─► OutputSink
//!                                  └─ running xacts ► snap build, abort old
//! ```
//!
//! Invariants: I1 transactions are given out in the order of their commit records; I2 a transaction is given out iff the decoder
//! was consistent when it began and committed, it has a base snapshot (it changed something), and it is of the decoder's
//! database; I3 what is given out does not depend on the profile; I4 the sum of all transactions' work never exceeds
//! [`Decoder::work`].
//!
//! | record | cost |
//! |---|---|
//! | of a row | O(1) |
//! | commit | its changes, and its messages by the profile's rules |
//!
//! Differences from PostgreSQL: nothing is kept before the builder reaches FULL, since it would not be decoded; two-phase
//! transactions are decoded at COMMIT PREPARED; nothing is streamed before its commit.

use std::sync::Arc;

use pg_types::record::{
    CommitRecord, HeapDelete, HeapInsert, HeapMultiInsert, HeapUpdate, LogicalMessageRecord, NewCidRecord, OldTuple,
    TruncateRecord,
};
use pg_types::{InvalidationMessage, Lsn, Oid, PgVersion, RecordBody, RelFileLocator, WalRecord, Work, Xid};

use crate::DecodeError;
use crate::catalog::Catalog;
use crate::invalidation::{CacheContents, CacheSizes, Caches, RegisteredCallbacks};
use crate::output::OutputSink;
use crate::profile::{Distribution, Profile};
use crate::relations::Relations;
use crate::reorder_buffer::ReorderBuffer;
use crate::reorder_buffer::change::{ChangeKind, RowKind};
use crate::reorder_buffer::change_size;
use crate::reorder_buffer::distribution::{CatalogCommits, Committing, catch_up, distribute};
use crate::reorder_buffer::memory::Memory;
use crate::reorder_buffer::replay::{Replay, ReplayBuffers, ended_xid, forget, has_something};
use crate::reorder_buffer::txn::Txn;
use crate::sampling::{CurrentFunction, Function};
use crate::snap_build::{SnapBuild, SnapBuildState};
use crate::spill::{SpillStore, TransactionStatus};
use crate::work_mem::WorkMem;

/// What a decoder is told at its start.
#[derive(Clone, Debug)]
pub struct DecoderConfig {
    /// Version of the WAL.
    pub version: PgVersion,
    /// What it costs.
    pub profile: Profile,
    /// The database whose rows are given out.
    pub database: Oid,
    /// Commits that end at or before this are not given out again.
    pub confirmed_lsn: Lsn,
    /// Bytes that changes in memory may count for (`logical_decoding_work_mem`).
    pub work_mem: WorkMem,
}

/// What WAL of one version means to a decoder.
#[derive(Clone, Copy, Debug)]
struct WalRules {
    /// An in-place update marks its transaction as catalog-changing.
    inplace_changes_catalog: bool,
    /// Messages of a commit without xid are executed from the STANDBY record (later they come in an XACT record too).
    standby_invalidations: bool,
}

/// By version.
const WAL_RULES: [WalRules; PgVersion::ALL.len()] = {
    let from_14 = WalRules { inplace_changes_catalog: true, standby_invalidations: false };
    [
        WalRules { inplace_changes_catalog: true, standby_invalidations: true },
        from_14,
        from_14,
        from_14,
        from_14,
        WalRules { inplace_changes_catalog: false, standby_invalidations: false },
    ]
};

/// How full a decoder is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderSizes {
    /// Unfinished transactions, subtransactions included.
    pub transactions: usize,
    /// Committed catalog changers that the next snapshot holds.
    pub committed_xids: usize,
    /// Catalog-changing commits kept for transactions that may have to catch up.
    pub catalog_commits: usize,
    /// Bytes that changes in memory count for.
    pub memory_bytes: u64,
    /// The most that they ever did.
    pub memory_bytes_peak: u64,
    /// Bytes of spill files.
    pub spill_file_bytes: u64,
    /// The caches.
    pub caches: CacheSizes,
}

/// A decoder.
#[derive(Debug)]
pub struct Decoder {
    /// Its settings.
    config: DecoderConfig,
    /// What the WAL's version means.
    rules: WalRules,
    /// When decoding may start, and snapshots.
    snap_build: SnapBuild,
    /// Unfinished transactions.
    reorder_buffer: ReorderBuffer,
    /// On demand: commits to catch up with.
    commits: CatalogCommits,
    /// The caches.
    caches: Caches,
    /// Names.
    relations: Relations,
    /// Reused memory of replays.
    buffers: ReplayBuffers,
    /// Reused: the transaction that ends, with its subtransactions.
    tree: Vec<Txn>,
    /// Reused: catalog changers of a commit.
    changers: Vec<Xid>,
    /// Start of the first record seen.
    first_lsn: Lsn,
    /// End of the last one.
    end_lsn: Lsn,
}

impl Decoder {
    /// A decoder that must find its consistent point first.
    #[must_use]
    pub fn new(config: DecoderConfig, catalog: Arc<dyn Catalog>) -> Decoder {
        let snap_build = SnapBuild::new(config.confirmed_lsn);
        Self::with(config, catalog, snap_build)
    }

    /// A decoder that goes on where another stopped: WAL must be given from that one's [`Decoder::restart_lsn`] on, and
    /// `config.confirmed_lsn` must be the end of the last commit that was given out.
    #[must_use]
    pub fn resume(config: DecoderConfig, catalog: Arc<dyn Catalog>) -> Decoder {
        let snap_build = SnapBuild::resumed(config.confirmed_lsn);
        Self::with(config, catalog, snap_build)
    }

    /// The rest of both.
    fn with(config: DecoderConfig, catalog: Arc<dyn Catalog>, snap_build: SnapBuild) -> Decoder {
        let caches = Caches::new(config.version, config.database, &config.profile, CurrentFunction::default());
        Decoder {
            rules: WAL_RULES[config.version as usize],
            snap_build,
            reorder_buffer: ReorderBuffer::new(Memory::new(config.work_mem, &config.profile)),
            commits: CatalogCommits::default(),
            caches,
            relations: Relations::new(catalog, config.database),
            buffers: ReplayBuffers::default(),
            tree: Vec::new(),
            changers: Vec::new(),
            first_lsn: Lsn::INVALID,
            end_lsn: Lsn::INVALID,
            config,
        }
    }

    /// Writes changes that do not fit the memory to `store`, which must be empty; otherwise they stay in memory in another form.
    #[must_use]
    pub fn spill_to(mut self, store: Box<dyn SpillStore>) -> Self {
        self.reorder_buffer.memory.store = store;
        self
    }

    /// Asks `status` which transactions are rolled back already; otherwise all count as running until their end is read.
    #[must_use]
    pub fn know_status(mut self, status: Box<dyn TransactionStatus>) -> Self {
        self.reorder_buffer.memory.status = Some(status);
        self
    }

    /// `LogicalDecodingProcessRecord`: takes the next record; what commits with it goes to `sink`.
    ///
    /// # Errors
    /// The record contradicts its version, or PostgreSQL itself could not have decoded it. Nothing further can be decoded.
    pub fn process(&mut self, record: &WalRecord, sink: &mut dyn OutputSink) -> Result<(), DecodeError> {
        let outer = self.caches.marker.enter(Function::LogicalDecodingProcessRecord);
        if !self.first_lsn.is_valid() {
            self.first_lsn = record.lsn;
        }
        let done = self.dispatch(record, sink);
        self.end_lsn = record.end_lsn;
        self.caches.marker.leave(outer);
        #[cfg(debug_assertions)]
        if done.is_ok() && self.reorder_buffer.len() < 1000 {
            self.reorder_buffer.check_invariants();
        }
        done
    }

    /// By state and kind of record.
    fn dispatch(&mut self, record: &WalRecord, sink: &mut dyn OutputSink) -> Result<(), DecodeError> {
        if let RecordBody::RunningXacts(running) = &record.body {
            self.snap_build.running_xacts(record.lsn, running);
            self.reorder_buffer.abort_old(running.oldest_running_xid, &mut self.tree)?;
            self.trim_commits();
            return Ok(());
        }
        if self.snap_build.state() < SnapBuildState::FullSnapshot {
            return Ok(());
        }
        if record.top_xid.is_valid() && record.xid.is_valid() {
            self.reorder_buffer.assign_child(record.top_xid, record.xid, record.lsn);
        }
        match &record.body {
            RecordBody::Commit(commit) => self.commit(record, commit, sink),
            RecordBody::Abort(abort) => {
                for xid in abort.subxids.iter().chain([&ended_xid(abort.prepared_xid, record.xid)]) {
                    self.reorder_buffer.abort(*xid, &mut self.tree)?;
                }
                self.trim_commits();
                Ok(())
            }
            RecordBody::Assignment(assignment) => {
                for xid in assignment.subxids.iter().filter(|xid| xid.is_valid() && assignment.top_xid.is_valid()) {
                    self.reorder_buffer.assign_child(assignment.top_xid, *xid, record.lsn);
                }
                Ok(())
            }
            RecordBody::XactInvalidations(messages) => self.xact_invalidations(record, messages),
            RecordBody::StandbyInvalidations(invalidations) if self.rules.standby_invalidations => {
                self.check(record, &invalidations.messages)?;
                self.caches.execute_all(&invalidations.messages);
                Ok(())
            }
            RecordBody::LogicalMessage(message) => self.logical_message(record, message, sink),
            _ => self.heap(record),
        }
    }

    /// `heap_decode` and `heap2_decode`; other resource managers only say that their transaction exists.
    fn heap(&mut self, record: &WalRecord) -> Result<(), DecodeError> {
        if !record.xid.is_valid() {
            return Ok(());
        }
        let at = self.reorder_buffer.find_or_begin(record.xid, record.lsn);
        match &record.body {
            RecordBody::Insert(insert) => self.insert(record, at, insert),
            RecordBody::MultiInsert(insert) => self.multi_insert(record, at, insert),
            RecordBody::Update(update) => self.update(record, at, update),
            RecordBody::Delete(delete) => self.delete(record, at, delete),
            RecordBody::Confirm(place) => {
                self.rows(record, at, place.target, Some((ChangeKind::SpeculativeConfirm, change_size::CHANGE)))
            }
            RecordBody::Truncate(truncate) => self.truncate(record, at, truncate),
            RecordBody::Inplace(_) if self.rules.inplace_changes_catalog => {
                self.reorder_buffer.set_catalog_changes(at);
                Ok(())
            }
            RecordBody::NewCid(new_cid) => self.new_cid(record, at, new_cid),
            _ => Ok(()),
        }
    }

    /// `DecodeInsert`.
    fn insert(&mut self, record: &WalRecord, at: u32, insert: &HeapInsert) -> Result<(), DecodeError> {
        let kind = match (insert.speculative, insert.toast) {
            (true, _) => RowKind::InsertSpeculative,
            (false, true) => RowKind::InsertToast,
            (false, false) => RowKind::Insert,
        };
        let rows = ChangeKind::rows(kind, 1, insert.target);
        self.rows(record, at, insert.target, insert.logical.then(|| (rows, change_size::insert(insert))))
    }

    /// `DecodeMultiInsert`.
    fn multi_insert(&mut self, record: &WalRecord, at: u32, insert: &HeapMultiInsert) -> Result<(), DecodeError> {
        let kind = if insert.toast { RowKind::InsertToast } else { RowKind::Insert };
        let (mut rows, mut bytes) = (insert.ntuples, change_size::multi_insert(insert));
        if !insert.logical || rows == 0 {
            return self.rows(record, at, insert.target, None);
        }
        if !self.may_queue(record, at, insert.target)? {
            return Ok(());
        }
        // PostgreSQL looks at the limit after each row.
        while let Some((fit, fit_bytes)) = self.reorder_buffer.rows_that_fit(at, rows, bytes) {
            let before = ChangeKind::RowsBefore(fit);
            self.reorder_buffer.queue(at, record.lsn, before, fit_bytes, &mut self.caches.work)?;
            (rows, bytes) = (rows - fit, bytes - fit_bytes);
        }
        let rows = ChangeKind::rows(kind, rows, insert.target);
        Ok(self.reorder_buffer.queue(at, record.lsn, rows, bytes, &mut self.caches.work)?)
    }

    /// `DecodeUpdate`.
    fn update(&mut self, record: &WalRecord, at: u32, update: &HeapUpdate) -> Result<(), DecodeError> {
        let kind = if update.logical { RowKind::Update } else { RowKind::UpdateWithoutRow };
        let rows = ChangeKind::rows(kind, 1, update.target);
        self.rows(record, at, update.target, Some((rows, change_size::update(update))))
    }

    /// `DecodeDelete`.
    fn delete(&mut self, record: &WalRecord, at: u32, delete: &HeapDelete) -> Result<(), DecodeError> {
        let kind = match delete.old {
            OldTuple::Key | OldTuple::Full => RowKind::Delete,
            OldTuple::None if self.reorder_buffer.get(at).new_cid_file == delete.target => RowKind::DeleteOfCatalog,
            OldTuple::None => RowKind::DeleteWithoutRow,
        };
        let change =
            if delete.super_deletion { ChangeKind::SpeculativeAbort } else { ChangeKind::rows(kind, 1, delete.target) };
        let change = (!delete.no_logical).then(|| (change, change_size::delete(delete.old_len)));
        self.rows(record, at, delete.target, change)
    }

    /// `DecodeTruncate`.
    fn truncate(&mut self, record: &WalRecord, at: u32, truncate: &TruncateRecord) -> Result<(), DecodeError> {
        let file = RelFileLocator { db: truncate.db, ..RelFileLocator::default() };
        if self.may_queue(record, at, file)? {
            self.reorder_buffer.queue_truncate(at, record.lsn, truncate, &mut self.caches.work)?;
        }
        Ok(())
    }

    /// `ReorderBufferQueueChange` of a change and the bytes that it counts for, if there is one to queue.
    fn rows(
        &mut self,
        record: &WalRecord,
        at: u32,
        file: RelFileLocator,
        change: Option<(ChangeKind, u64)>,
    ) -> Result<(), DecodeError> {
        let Some((kind, bytes)) = change else {
            self.process_change(record, at);
            return Ok(());
        };
        if self.may_queue(record, at, file)? {
            self.reorder_buffer.queue(at, record.lsn, kind, bytes, &mut self.caches.work)?;
        }
        Ok(())
    }

    /// `SnapBuildProcessChange`; gives whether changes of this transaction are collected.
    fn process_change(&mut self, record: &WalRecord, at: u32) -> bool {
        let collects = self.snap_build.collects(record.xid);
        if collects {
            self.set_base_snapshot(at, record.lsn);
        }
        collects
    }

    /// The same before a change of `file`, which is queued if the file is of this database; on demand, the transaction catches
    /// up first.
    fn may_queue(&mut self, record: &WalRecord, at: u32, file: RelFileLocator) -> Result<bool, DecodeError> {
        if !self.process_change(record, at) || file.db != self.config.database {
            return Ok(false);
        }
        if self.config.profile.distribution == Distribution::OnDemand {
            let bytes = self.snapshot_bytes();
            catch_up(&mut self.reorder_buffer, &self.commits, at, record.lsn, bytes, &mut self.caches.work)?;
        }
        Ok(true)
    }

    /// Gives the transaction's top-level one a base snapshot if it has none (`ReorderBufferSetBaseSnapshot`).
    fn set_base_snapshot(&mut self, at: u32, lsn: Lsn) {
        let top = self.reorder_buffer.top_of(at);
        let newest = self.commits.newest();
        let txn = self.reorder_buffer.get_mut(top);
        if !txn.has_base_snapshot() {
            (txn.base_snapshot_lsn, txn.base_commit, txn.caught_up) = (Some(lsn), newest, newest);
        }
    }

    /// `SnapBuildProcessNewCid`.
    fn new_cid(&mut self, record: &WalRecord, at: u32, new_cid: &NewCidRecord) -> Result<(), DecodeError> {
        self.reorder_buffer.set_catalog_changes(at);
        let valid = [new_cid.cmin, new_cid.cmax].into_iter().filter(|cid| cid.is_valid());
        let next = valid.map(|cid| cid.0.saturating_add(1)).max().unwrap_or(0);
        self.reorder_buffer.get_mut(at).new_cid_file = new_cid.target;
        let work = &mut self.caches.work;
        Ok(self.reorder_buffer.queue(at, record.lsn, ChangeKind::CommandId(next), change_size::CHANGE, work)?)
    }

    /// XLOG_XACT_INVALIDATIONS (14 and later).
    fn xact_invalidations(&mut self, record: &WalRecord, messages: &[InvalidationMessage]) -> Result<(), DecodeError> {
        self.check(record, messages)?;
        if record.xid.is_valid() {
            let at = self.reorder_buffer.find_or_begin(record.xid, record.lsn);
            self.reorder_buffer.add_invalidations(at, record.lsn, messages, &mut self.caches.work)?;
            self.reorder_buffer.set_catalog_changes(at);
        } else {
            self.caches.execute_all(messages);
        }
        Ok(())
    }

    /// `logicalmsg_decode`.
    fn logical_message(
        &mut self,
        record: &WalRecord,
        message: &LogicalMessageRecord,
        sink: &mut dyn OutputSink,
    ) -> Result<(), DecodeError> {
        let at = record.xid.is_valid().then(|| self.reorder_buffer.find_or_begin(record.xid, record.lsn));
        if message.db != self.config.database {
            return Ok(());
        }
        let consistent = self.snap_build.state() == SnapBuildState::Consistent;
        match at {
            Some(at) if message.transactional && self.snap_build.collects(record.xid) => {
                self.set_base_snapshot(at, record.lsn);
                self.reorder_buffer.queue_message(at, record.lsn, message, &mut self.caches.work)?;
            }
            _ if !message.transactional && consistent && !self.snap_build.skips(record.lsn) => {
                sink.message(record.lsn, message);
            }
            _ => {}
        }
        Ok(())
    }

    /// `DecodeCommit`.
    fn commit(&mut self, record: &WalRecord, commit: &CommitRecord, sink: &mut dyn OutputSink) -> Result<(), DecodeError> {
        self.check(record, &commit.messages)?;
        let xid = ended_xid(commit.prepared_xid, record.xid);
        let (before, noted) = (self.caches.work, self.reorder_buffer.memory.noted.work());
        if !commit.messages.is_empty() && xid.is_valid() {
            let at = self.reorder_buffer.find_or_begin(xid, record.lsn);
            self.reorder_buffer.set_catalog_changes(at);
        }
        let newest = self.commits.newest();
        self.catalog_commit(record.lsn, xid, commit)?;
        for sub in &commit.subxids {
            self.reorder_buffer.commit_child(xid, *sub, record.lsn);
        }
        let Some(at) = self.reorder_buffer.find(xid) else { return Ok(()) };
        let base_commit = self.reorder_buffer.get(at).base_commit;
        let mut tree = std::mem::take(&mut self.tree);
        self.reorder_buffer.take_tree(at, &mut tree);
        if let Some(txn) = tree.iter().find(|txn| txn.aborted) {
            return Err(DecodeError::AbortedCommits { xid: txn.xid, lsn: record.lsn });
        }
        let other_database = commit.db.is_valid() && commit.db != self.config.database;
        if self.snap_build.skips(record.lsn) || other_database {
            forget(&mut self.caches, &tree, commit);
        } else if has_something(&tree) {
            self.replay(record, commit, &mut tree, (base_commit, newest), sink)?;
            // What was done for the memory belongs to the victims, whenever it was.
            let noted = self.reorder_buffer.memory.noted.work() - noted;
            self.buffers.out.work = self.caches.work - before - noted;
            tree.iter().for_each(|txn| self.buffers.out.work += txn.evicted.work());
            let outer = self.caches.marker.enter(Function::OutputPlugin);
            sink.commit(&self.buffers.out);
            self.caches.marker.leave(outer);
        }
        self.reorder_buffer.give_back(&mut tree)?;
        self.tree = tree;
        self.trim_commits();
        Ok(())
    }

    /// `SnapBuildCommitTxn`: if catalogs changed, makes the new snapshot the running transactions' too.
    fn catalog_commit(&mut self, lsn: Lsn, xid: Xid, commit: &CommitRecord) -> Result<(), DecodeError> {
        self.changers.clear();
        for sub in commit.subxids.iter().chain([&xid]) {
            if self.reorder_buffer.has_catalog_changes(*sub) {
                self.changers.push(*sub);
            }
        }
        if !self.snap_build.commit(lsn, xid, &self.changers) {
            return Ok(());
        }
        let at = self.reorder_buffer.find_or_begin(xid, lsn);
        self.set_base_snapshot(at, lsn);
        let eager = self.config.profile.distribution != Distribution::OnDemand;
        if eager {
            let outer = self.caches.marker.enter(Function::SnapBuildBuildSnapshot);
            let _built = self.snap_build.snapshot();
            self.caches.marker.leave(outer);
        }
        let outer = self.caches.marker.enter(Function::SnapBuildDistributeSnapshotAndInval);
        let by = Committing { at, lsn, snapshot_bytes: self.snapshot_bytes() };
        let strategy = self.config.profile.distribution;
        let work = &mut self.caches.work;
        let done = distribute(&mut self.reorder_buffer, &mut self.commits, strategy, by, &commit.messages, work);
        self.caches.marker.leave(outer);
        done
    }

    /// `ReorderBufferCommit`: gives the transaction in `tree` to the sink, but for its end.
    fn replay(
        &mut self,
        record: &WalRecord,
        commit: &CommitRecord,
        tree: &mut [Txn],
        (caught_up, newest): (u32, u32),
        sink: &mut dyn OutputSink,
    ) -> Result<(), DecodeError> {
        let out = &mut self.buffers.out;
        out.clear();
        (out.xid, out.first_lsn) = (tree[0].xid, tree[0].first_lsn);
        let commit_time = commit.origin.map_or(commit.time, |(_, at_origin)| at_origin);
        (out.commit_lsn, out.end_lsn, out.commit_time) = (record.lsn, record.end_lsn, commit_time);
        out.gid.extend_from_slice(&commit.gid);
        out.subxids.extend_from_slice(&commit.subxids);
        out.messages.add(&commit.messages);
        let mut replay = Replay {
            caches: &mut self.caches,
            relations: &mut self.relations,
            commits: &self.commits,
            rule: self.config.profile.message_rule,
            sink,
            commit,
            buffers: &mut self.buffers,
            caught_up,
            newest,
            command_id: 0,
            speculative: None,
            rows_before: 0,
        };
        Ok(replay.run(tree, &mut self.reorder_buffer.memory, record.lsn)?)
    }

    /// Refuses messages whose syscache the version does not have.
    fn check(&self, record: &WalRecord, messages: &[InvalidationMessage]) -> Result<(), DecodeError> {
        match messages.iter().find(|message| !self.caches.knows(message)) {
            Some(InvalidationMessage::Catcache { cache_id, .. }) => Err(DecodeError::UnknownSyscache {
                id: *cache_id,
                version: self.config.version,
                lsn: record.lsn,
                xid: record.xid,
            }),
            _ => Ok(()),
        }
    }

    /// Bytes of the snapshot of now.
    fn snapshot_bytes(&self) -> u64 {
        self.config.profile.snapshot_header_bytes + 4 * self.snap_build.committed_len() as u64
    }

    /// On demand: forgets commits that no running transaction can need.
    fn trim_commits(&mut self) {
        if self.commits.len() > 0 {
            self.commits.trim(self.reorder_buffer.oldest().map_or(Lsn(u64::MAX), |txn| txn.oldest_lsn));
        }
    }

    /// Where WAL must be read from by a decoder that [`Decoder::resume`]s now: the start of the oldest unfinished transaction,
    /// or the end of what was processed if there is none; before this decoder is consistent, its first record.
    #[must_use]
    pub fn restart_lsn(&self) -> Lsn {
        if self.snap_build.state() < SnapBuildState::Consistent {
            return self.first_lsn;
        }
        let unfinished = self.reorder_buffer.toplevel().map(|at| self.reorder_buffer.get(at).oldest_lsn).min();
        unfinished.unwrap_or(self.end_lsn)
    }

    /// End of the last record processed.
    #[must_use]
    pub fn end_lsn(&self) -> Lsn {
        self.end_lsn
    }

    /// How far the snapshot builder is.
    #[must_use]
    pub fn state(&self) -> SnapBuildState {
        self.snap_build.state()
    }

    /// Before it is consistent: the xid that the oldest running transaction must reach for the next state.
    #[must_use]
    pub fn waits_for(&self) -> Option<Xid> {
        self.snap_build.waits_for()
    }

    /// All work so far, that of skipped and rolled-back transactions included.
    #[must_use]
    pub fn work(&self) -> Work {
        self.caches.work
    }

    /// How full it is.
    #[must_use]
    pub fn sizes(&self) -> DecoderSizes {
        DecoderSizes {
            transactions: self.reorder_buffer.len(),
            committed_xids: self.snap_build.committed_len(),
            catalog_commits: self.commits.len(),
            memory_bytes: self.reorder_buffer.memory.total,
            memory_bytes_peak: self.reorder_buffer.memory.peak,
            spill_file_bytes: self.reorder_buffer.memory.store.bytes(),
            caches: self.caches.sizes(),
        }
    }

    /// What the caches hold, for comparing decoders. O(n log n).
    #[must_use]
    pub fn cache_contents(&self) -> CacheContents {
        self.caches.contents()
    }

    /// Registers so many callbacks; before anything is decoded.
    pub fn register_callbacks(&mut self, registered: RegisteredCallbacks) {
        self.caches.register(registered, &self.config.profile);
    }

    /// The byte that says which function runs; a sampler may read it from another thread.
    #[must_use]
    pub fn current_function(&self) -> CurrentFunction {
        self.caches.marker.clone()
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }
}
