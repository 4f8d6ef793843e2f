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
    CommitRecord, HeapDelete, HeapInsert, HeapUpdate, LogicalMessageRecord, NewCidRecord, OldTuple, TruncateRecord,
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
use crate::reorder_buffer::distribution::{CatalogCommits, Committing, catch_up, distribute};
use crate::reorder_buffer::replay::{Replay, ReplayBuffers, ended_xid, forget, has_something};
use crate::reorder_buffer::txn::Txn;
use crate::sampling::{CurrentFunction, Function};
use crate::snap_build::{SnapBuild, SnapBuildState};

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
            reorder_buffer: ReorderBuffer::default(),
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
        if self.reorder_buffer.len() < 1000 {
            self.reorder_buffer.check_invariants();
        }
        done
    }

    /// By state and kind of record.
    fn dispatch(&mut self, record: &WalRecord, sink: &mut dyn OutputSink) -> Result<(), DecodeError> {
        if let RecordBody::RunningXacts(running) = &record.body {
            self.snap_build.running_xacts(record.lsn, running);
            self.reorder_buffer.abort_old(running.oldest_running_xid, &mut self.tree);
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
                    self.reorder_buffer.abort(*xid, &mut self.tree);
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
            RecordBody::LogicalMessage(message) => {
                self.logical_message(record, message, sink);
                Ok(())
            }
            _ => {
                self.heap(record);
                Ok(())
            }
        }
    }

    /// `heap_decode` and `heap2_decode`; other resource managers only say that their transaction exists.
    fn heap(&mut self, record: &WalRecord) {
        if !record.xid.is_valid() {
            return;
        }
        let at = self.reorder_buffer.find_or_begin(record.xid, record.lsn);
        match &record.body {
            RecordBody::Insert(insert) => self.insert(record, at, insert),
            RecordBody::MultiInsert(insert) => {
                let kind = if insert.toast { RowKind::InsertToast } else { RowKind::Insert };
                let rows = ChangeKind::Rows { kind, rows: insert.ntuples, file: insert.target };
                self.rows(record, at, insert.target, insert.logical.then_some(rows));
            }
            RecordBody::Update(update) => self.update(record, at, update),
            RecordBody::Delete(delete) => self.delete(record, at, delete),
            RecordBody::Confirm(place) => self.rows(record, at, place.target, Some(ChangeKind::SpeculativeConfirm)),
            RecordBody::Truncate(truncate) => {
                let index = self.reorder_buffer.get(at).truncates.len() as u32;
                let file = RelFileLocator { db: truncate.db, ..RelFileLocator::default() };
                if truncate.db == self.config.database && self.snap_build.collects(record.xid) {
                    self.reorder_buffer.get_mut(at).truncates.push(TruncateRecord::clone(truncate));
                }
                self.rows(record, at, file, Some(ChangeKind::Truncate(index)));
            }
            RecordBody::Inplace(_) if self.rules.inplace_changes_catalog => self.reorder_buffer.set_catalog_changes(at),
            RecordBody::NewCid(new_cid) => self.new_cid(record, at, new_cid),
            _ => {}
        }
    }

    /// `DecodeInsert`.
    fn insert(&mut self, record: &WalRecord, at: u32, insert: &HeapInsert) {
        let kind = match (insert.speculative, insert.toast) {
            (true, _) => RowKind::InsertSpeculative,
            (false, true) => RowKind::InsertToast,
            (false, false) => RowKind::Insert,
        };
        let rows = ChangeKind::Rows { kind, rows: 1, file: insert.target };
        self.rows(record, at, insert.target, insert.logical.then_some(rows));
    }

    /// `DecodeUpdate`.
    fn update(&mut self, record: &WalRecord, at: u32, update: &HeapUpdate) {
        let kind = if update.logical { RowKind::Update } else { RowKind::UpdateWithoutRow };
        self.rows(record, at, update.target, Some(ChangeKind::Rows { kind, rows: 1, file: update.target }));
    }

    /// `DecodeDelete`.
    fn delete(&mut self, record: &WalRecord, at: u32, delete: &HeapDelete) {
        let kind = match delete.old {
            OldTuple::Key | OldTuple::Full => RowKind::Delete,
            OldTuple::None if self.reorder_buffer.get(at).new_cid_file == delete.target => RowKind::DeleteOfCatalog,
            OldTuple::None => RowKind::DeleteWithoutRow,
        };
        let change = if delete.super_deletion {
            ChangeKind::SpeculativeAbort
        } else {
            ChangeKind::Rows { kind, rows: 1, file: delete.target }
        };
        self.rows(record, at, delete.target, (!delete.no_logical).then_some(change));
    }

    /// `SnapBuildProcessChange`, then `ReorderBufferQueueChange` if there is something to queue and it is of this database.
    fn rows(&mut self, record: &WalRecord, at: u32, file: RelFileLocator, change: Option<ChangeKind>) {
        if !self.snap_build.collects(record.xid) {
            return;
        }
        self.set_base_snapshot(at, record.lsn);
        let Some(change) = change.filter(|_| file.db == self.config.database) else { return };
        if self.config.profile.distribution == Distribution::OnDemand {
            let bytes = self.snapshot_bytes();
            catch_up(&mut self.reorder_buffer, &self.commits, at, record.lsn, bytes, &mut self.caches.work);
        }
        self.reorder_buffer.get_mut(at).push(record.lsn, change);
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
    fn new_cid(&mut self, record: &WalRecord, at: u32, new_cid: &NewCidRecord) {
        self.reorder_buffer.set_catalog_changes(at);
        let valid = [new_cid.cmin, new_cid.cmax].into_iter().filter(|cid| cid.is_valid());
        let next = valid.map(|cid| cid.0.saturating_add(1)).max().unwrap_or(0);
        let txn = self.reorder_buffer.get_mut(at);
        txn.new_cid_file = new_cid.target;
        if next > txn.command_id {
            txn.command_id = next;
            txn.push(record.lsn, ChangeKind::CommandId(next));
        }
    }

    /// XLOG_XACT_INVALIDATIONS (14 and later).
    fn xact_invalidations(&mut self, record: &WalRecord, messages: &[InvalidationMessage]) -> Result<(), DecodeError> {
        self.check(record, messages)?;
        if record.xid.is_valid() {
            let at = self.reorder_buffer.find_or_begin(record.xid, record.lsn);
            self.reorder_buffer.add_invalidations(at, record.lsn, messages);
            self.reorder_buffer.set_catalog_changes(at);
        } else {
            self.caches.execute_all(messages);
        }
        Ok(())
    }

    /// `logicalmsg_decode`.
    fn logical_message(&mut self, record: &WalRecord, message: &LogicalMessageRecord, sink: &mut dyn OutputSink) {
        let at = record.xid.is_valid().then(|| self.reorder_buffer.find_or_begin(record.xid, record.lsn));
        if message.db != self.config.database {
            return;
        }
        let consistent = self.snap_build.state() == SnapBuildState::Consistent;
        match at {
            Some(at) if message.transactional && self.snap_build.collects(record.xid) => {
                self.set_base_snapshot(at, record.lsn);
                let txn = self.reorder_buffer.get_mut(at);
                txn.push(record.lsn, ChangeKind::Message(txn.logical.len() as u32));
                txn.logical.push(message.clone());
            }
            _ if !message.transactional && consistent && !self.snap_build.skips(record.lsn) => {
                sink.message(record.lsn, message);
            }
            _ => {}
        }
    }

    /// `DecodeCommit`.
    fn commit(&mut self, record: &WalRecord, commit: &CommitRecord, sink: &mut dyn OutputSink) -> Result<(), DecodeError> {
        self.check(record, &commit.messages)?;
        let xid = ended_xid(commit.prepared_xid, record.xid);
        let before = self.caches.work;
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
        let other_database = commit.db.is_valid() && commit.db != self.config.database;
        if self.snap_build.skips(record.lsn) || other_database {
            forget(&mut self.caches, &tree, commit);
        } else if has_something(&tree) {
            self.replay(record, commit, &tree, (base_commit, newest), sink);
            self.buffers.out.work = self.caches.work - before;
            let outer = self.caches.marker.enter(Function::OutputPlugin);
            sink.commit(&self.buffers.out);
            self.caches.marker.leave(outer);
        }
        self.reorder_buffer.give_back(&mut tree);
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
        tree: &[Txn],
        (caught_up, newest): (u32, u32),
        sink: &mut dyn OutputSink,
    ) {
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
        };
        replay.run(tree, record.lsn);
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
