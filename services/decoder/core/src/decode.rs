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
//! Differences from PostgreSQL: nothing is kept before the builder reaches FULL, since it would not be decoded.

mod footprint;
mod heap;
mod published;
mod standby;
mod two_phase;
mod xact;

use std::sync::Arc;

use pg_types::record::LogicalMessageRecord;
use pg_types::{
    CatalogSnapshotCounts, InvalidationMessage, Lsn, Oid, PgVersion, QueueCounts, RecordBody, WalRecord, Work, Xid,
};
use rustc_hash::FxHashMap;

use crate::DecodeError;
use crate::attribution::Attribution;
use crate::catalog::Catalog;
use crate::footprint::Footprint;
use crate::historic_catalog::{AsOf, HistoricCatalog};
use crate::interrupt::Interrupt;
use crate::invalidation::{CacheContents, CacheSizes, Caches, RegisteredCallbacks};
use crate::output::OutputSink;
use crate::plugin_options::PluginOptions;
use crate::profile::Profile;
use crate::publications::{Moment, Publications};
use crate::relations::Relations;
use crate::relcache::RelcacheCounts;
use crate::relsync::RelsyncCounts;
use crate::reorder_buffer::ReorderBuffer;
use crate::reorder_buffer::memory::Memory;
use crate::reorder_buffer::streaming::Replayer;
use crate::reorder_buffer::tuple_cids::{TupleCidCounts, TupleCidHash};
use crate::reorder_buffer::txn::Txn;
use crate::sampling::{CurrentFunction, Function};
use crate::snap_build::{HistoricSnapshot, SnapBuild, SnapBuildCounts, SnapBuildState, SnapshotStore};
use crate::spill::{SpillStore, TransactionStatus};
use crate::syscache_callbacks::{CallbackCounts, TooManyCallbacks};
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
    /// Transactions in progress are given out in blocks when the memory is full, if WAL and profile can tell (14 and later).
    pub streaming: bool,
    /// Prepared transactions are given out when they are prepared, if the WAL can tell (14 and later); [`None`]: when they commit.
    pub two_phase: Option<TwoPhase>,
    /// What the output plugin is asked for.
    pub options: PluginOptions,
}

impl DecoderConfig {
    /// WAL of `version`, decoded from its beginning with PostgreSQL's memory limit; transactions are given out at their commit.
    #[must_use]
    pub fn new(version: PgVersion, profile: Profile, database: Oid) -> Self {
        let (confirmed_lsn, work_mem) = (Lsn::INVALID, WorkMem::default());
        let options = PluginOptions::default();
        Self { version, profile, database, confirmed_lsn, work_mem, streaming: false, two_phase: None, options }
    }
}

/// Which prepared transactions are given out before they commit, and from when on (`two_phase` of a slot).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TwoPhase {
    /// What was prepared before is given out at its commit (`two_phase_at`). Invalid: the point where this decoder is consistent.
    pub at: Lsn,
    /// Whose names contain this are given out at their commit, as test_decoding does with `_nodecode`.
    pub except: Option<Vec<u8>>,
}

/// What WAL of one version means to a decoder.
#[derive(Clone, Copy, Debug)]
struct WalRules {
    /// An in-place update marks its transaction as catalog-changing.
    inplace_changes_catalog: bool,
    /// Messages of a commit without xid are executed from the STANDBY record (later they come in an XACT record too).
    standby_invalidations: bool,
    /// Records tell top-level transactions from the first on, so that transactions can be given out before their commit.
    before_commit: bool,
    /// TOAST tables and sequences have row types.
    storage_types: bool,
    /// Serialised snapshots name the running transactions that had changed catalogs (16 and later).
    names_catalog_changers: bool,
}

/// By version.
const WAL_RULES: [WalRules; PgVersion::ALL.len()] = {
    let of_13 = WalRules {
        inplace_changes_catalog: true,
        standby_invalidations: true,
        before_commit: false,
        storage_types: true,
        names_catalog_changers: false,
    };
    let from_14 = WalRules { standby_invalidations: false, before_commit: true, storage_types: false, ..of_13 };
    let from_16 = WalRules { names_catalog_changers: true, ..from_14 };
    [of_13, from_14, from_14, from_16, from_16, WalRules { inplace_changes_catalog: false, ..from_16 }]
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
    /// Where the builder is serialised, if anywhere.
    snapshots: Option<Box<dyn SnapshotStore>>,
    /// The first record must make it consistent.
    must_restore: bool,
    /// A snapshot with which decoding may begin again; invalid if there is none yet.
    restart_lsn: Lsn,
    /// Catalog rows that this xid or a later one sees are needed; invalid before the first list of running transactions.
    catalog_xmin: Xid,
    /// Unfinished transactions.
    reorder_buffer: ReorderBuffer,
    /// The caches, names and buffers of replays.
    replayer: Replayer,
    /// Reused: the transaction that ends, with its subtransactions.
    tree: Vec<Txn>,
    /// Reused: catalog changers of a commit.
    changers: Vec<Xid>,
    /// Files of mapped catalogs, as relation maps told.
    mapped_files: FxHashMap<u32, Oid>,
    /// Footprints to be used again.
    #[allow(clippy::vec_box, reason = "they move into transactions as boxes")]
    spare_footprints: Vec<Box<Footprint>>,
    /// Work is shared out, and footprints are taken.
    attributes: bool,
    /// End of the record that made this decoder consistent.
    consistent_at: Lsn,
    /// Start of the first record seen.
    first_lsn: Lsn,
    /// End of the last one.
    end_lsn: Lsn,
}

impl Decoder {
    /// A decoder that must find its consistent point first.
    #[must_use]
    pub fn new(config: DecoderConfig, catalog: Arc<dyn Catalog>) -> Decoder {
        let snap_build = SnapBuild::new(config.confirmed_lsn, config.profile.committed_order);
        Self::with(config, catalog, snap_build)
    }

    /// A decoder that goes on where another stopped that has no store for snapshots: WAL must be given from that one's
    /// [`Decoder::restart_lsn`] on, and `config.confirmed_lsn` must be the end of the last commit that was given out. What had changed
    /// catalogs before is not known to it, so that what it counts for snapshots is less.
    #[must_use]
    pub fn resume(config: DecoderConfig, catalog: Arc<dyn Catalog>) -> Decoder {
        let snap_build = SnapBuild::resumed(config.confirmed_lsn, config.profile.committed_order);
        Self::with(config, catalog, snap_build)
    }

    /// A decoder that goes on where another stopped that [`Decoder::restarts_from_snapshot`]: as [`Decoder::resume`], with what that one
    /// wrote in `store`.
    #[must_use]
    pub fn restore(config: DecoderConfig, catalog: Arc<dyn Catalog>, store: Box<dyn SnapshotStore>) -> Decoder {
        Decoder { must_restore: true, ..Self::new(config, catalog).serialize_to(store) }
    }

    /// Serialises its snapshot builder to `store`, and begins with what is there; otherwise nothing is serialised.
    #[must_use]
    pub fn serialize_to(self, store: Box<dyn SnapshotStore>) -> Self {
        Self { snapshots: Some(store), ..self }
    }

    /// The rest of both.
    fn with(config: DecoderConfig, catalog: Arc<dyn Catalog>, snap_build: SnapBuild) -> Decoder {
        let names = config.options.publication_names.clone();
        let publications = (!names.is_empty()).then(|| Publications::new(names, published::rows(&*catalog, config.database)));
        let caches = Caches::new(config.version, config.database, &config.profile, CurrentFunction::default());
        Decoder {
            rules: WAL_RULES[config.version as usize],
            snap_build,
            snapshots: None,
            must_restore: false,
            restart_lsn: Lsn::INVALID,
            catalog_xmin: Xid::INVALID,
            reorder_buffer: ReorderBuffer::new(Memory::new(config.work_mem, &config.profile)),
            replayer: Replayer {
                publications,
                ..Replayer::new(caches, Relations::new(catalog, config.database), &config.profile)
            },
            tree: Vec::new(),
            changers: Vec::new(),
            mapped_files: FxHashMap::default(),
            spare_footprints: Vec::new(),
            attributes: true,
            consistent_at: Lsn::INVALID,
            first_lsn: Lsn::INVALID,
            end_lsn: Lsn::INVALID,
            config,
        }
    }

    /// Whether transactions can be given out before their commit, in blocks or when they are prepared, from WAL of a version.
    #[must_use]
    pub fn knows_before_commit(version: PgVersion) -> bool {
        WAL_RULES[version as usize].before_commit
    }

    /// Writes changes that do not fit the memory to `store`, which must be empty; otherwise they stay in memory in another form.
    #[must_use]
    pub fn spill_to(mut self, store: Box<dyn SpillStore>) -> Self {
        self.reorder_buffer.memory.store = store;
        self
    }

    /// Reads catalogs that know what they were whenever something is loaded; otherwise everything is the same at any time.
    #[must_use]
    pub fn read_historic(mut self, catalog: Arc<dyn HistoricCatalog>) -> Self {
        self.replayer.caches.historic = Some(catalog);
        self
    }

    /// Asks `status` which transactions are rolled back already; otherwise all count as running until their end is read.
    #[must_use]
    pub fn know_status(mut self, status: Box<dyn TransactionStatus>) -> Self {
        self.reorder_buffer.memory.status = Some(status);
        self
    }

    /// Ends with [`DecodeError::Interrupted`] soon after `interrupt` is raised; what was given out of the transaction at hand and
    /// its work are not whole then.
    #[must_use]
    pub fn stopped_by(mut self, interrupt: Interrupt) -> Self {
        self.replayer.caches.interrupt = interrupt;
        self
    }

    /// Tells of transactions in progress of which the consumer keeps blocks, from a decoder before this one: each, and the last change
    /// in them. Their ends are told, and what was rolled back of them; their next block is not the first, though it begins with
    /// what the consumer has. Before anything is decoded.
    #[must_use]
    pub fn streamed_before(mut self, transactions: impl IntoIterator<Item = (Xid, Lsn)>) -> Self {
        self.reorder_buffer.streamed_before.extend(transactions.into_iter().map(|(xid, to)| (xid.0, to)));
        self
    }

    /// `LogicalDecodingProcessRecord`: takes the next record; what commits with it goes to `sink`.
    ///
    /// # Errors
    /// The record contradicts its version, or PostgreSQL itself could not have decoded it. Nothing further can be decoded.
    pub fn process(&mut self, record: &WalRecord, sink: &mut dyn OutputSink) -> Result<(), DecodeError> {
        let outer = self.replayer.caches.marker.enter(Function::LogicalDecodingProcessRecord);
        if !self.first_lsn.is_valid() {
            self.first_lsn = record.lsn;
        }
        let mut done = self.dispatch(record, sink).and_then(|()| self.restored(record));
        self.note_published(record);
        if self.replayer.caches.interrupt.is_raised() {
            done = Err(DecodeError::Interrupted { lsn: record.lsn });
        }
        self.end_lsn = record.end_lsn;
        self.replayer.caches.as_of = AsOf { committed: record.lsn, ..AsOf::default() };
        self.replayer.caches.look();
        self.replayer.caches.marker.leave(outer);
        #[cfg(debug_assertions)]
        if done.is_ok() && self.reorder_buffer.len() < 1000 {
            self.reorder_buffer.check_invariants();
        }
        done
    }

    /// By state and kind of record.
    fn dispatch(&mut self, record: &WalRecord, sink: &mut dyn OutputSink) -> Result<(), DecodeError> {
        match &record.body {
            RecordBody::RunningXacts(running) => return self.running_xacts(record, running, sink),
            RecordBody::Checkpoint(checkpoint) if checkpoint.shutdown => return self.serialization_point(record),
            RecordBody::EndOfRecovery { .. } => return self.serialization_point(record),
            _ => self.note_end(record),
        }
        self.send_to_queue(record);
        if self.snap_build.state() < SnapBuildState::FullSnapshot {
            return Ok(());
        }
        self.replayer.may_start = self.config.streaming
            && self.rules.before_commit
            && self.snap_build.state() == SnapBuildState::Consistent
            && !self.snap_build.skips(record.lsn);
        if record.top_xid.is_valid() && record.xid.is_valid() {
            self.reorder_buffer.assign_child(record.top_xid, record.xid, record.lsn);
        }
        match &record.body {
            RecordBody::Commit(commit) => self.commit(record, commit, sink),
            RecordBody::Abort(abort) => self.abort(record, abort, sink),
            RecordBody::Prepare(prepare) => self.prepare(record, prepare, sink),
            RecordBody::Assignment(assignment) => {
                for xid in assignment.subxids.iter().filter(|xid| xid.is_valid() && assignment.top_xid.is_valid()) {
                    self.reorder_buffer.assign_child(assignment.top_xid, *xid, record.lsn);
                }
                Ok(())
            }
            RecordBody::XactInvalidations(messages) => self.xact_invalidations(record, messages, sink),
            RecordBody::StandbyInvalidations(invalidations) if self.rules.standby_invalidations => {
                self.check(record, &invalidations.messages)?;
                self.replayer.caches.execute_all(&invalidations.messages);
                Ok(())
            }
            RecordBody::StandbyInvalidations(invalidations) => self.check(record, &invalidations.messages),
            RecordBody::LogicalMessage(message) => self.logical_message(record, message, sink),
            _ => self.heap(record, sink),
        }
    }

    /// For a decoder that follows live: puts what a backend sends with this record into the shared queue, from the decoder's start on, whether
    /// anything of it is decoded or not. In-place updates send at once (18).
    fn send_to_queue(&mut self, record: &WalRecord) {
        let messages = match &record.body {
            RecordBody::Commit(commit) => &commit.messages,
            RecordBody::StandbyInvalidations(invalidations) => &invalidations.messages,
            RecordBody::Inplace(inplace) => &inplace.messages,
            _ => return,
        };
        let known = messages.iter().all(|message| self.replayer.caches.knows(message));
        if known {
            self.replayer.caches.send_shared(messages);
        }
    }

    /// XLOG_XACT_INVALIDATIONS (14 and later).
    fn xact_invalidations(
        &mut self,
        record: &WalRecord,
        messages: &[InvalidationMessage],
        sink: &mut dyn OutputSink,
    ) -> Result<(), DecodeError> {
        self.check(record, messages)?;
        if record.xid.is_valid() {
            let at = self.reorder_buffer.find_or_begin(record.xid, record.lsn);
            self.reorder_buffer.add_invalidations(at, record.lsn, messages, &mut self.replayer.room(sink))?;
            self.reorder_buffer.set_catalog_changes(at);
        } else {
            self.replayer.caches.execute_all(messages);
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
        if message.db != self.config.database || self.filter_by_origin(record.origin) {
            return Ok(());
        }
        let consistent = self.snap_build.state() == SnapBuildState::Consistent;
        match at {
            Some(at) if message.transactional && self.snap_build.collects(record.xid) => {
                self.set_base_snapshot(at, record.lsn);
                self.reorder_buffer.queue_message(at, record.lsn, message, &mut self.replayer.room(sink))?;
            }
            _ if !message.transactional && consistent && !self.snap_build.skips(record.lsn) => {
                sink.message(record.lsn, Xid::INVALID, message);
            }
            _ => {}
        }
        Ok(())
    }

    /// `FilterByOrigin`: whether what is of this origin is passed over, which is counted.
    fn filter_by_origin(&mut self, origin: u16) -> bool {
        let passed_over = self.config.options.origin.passes_over(origin);
        self.replayer.caches.work.origin_skips += u64::from(passed_over);
        passed_over
    }

    /// Refuses messages whose syscache the version does not have.
    fn check(&self, record: &WalRecord, messages: &[InvalidationMessage]) -> Result<(), DecodeError> {
        match messages.iter().find(|message| !self.replayer.caches.knows(message)) {
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
        if self.replayer.commits.len() > 0 {
            self.replayer.commits.trim(self.reorder_buffer.oldest().map_or(Lsn(u64::MAX), |txn| txn.oldest_lsn));
        }
    }

    /// The `catalog_xmin` of a slot whose consumer has what was given out so far: the oldest xid whose catalog rows this decoder, or one that
    /// begins at [`Decoder::restart_lsn`], may still look at. Invalid before the first list of running transactions; never goes back.
    #[must_use]
    pub fn catalog_xmin(&self) -> Xid {
        self.catalog_xmin
    }

    /// Where WAL must be read from by a decoder that goes on now. With a store: a serialised snapshot older than every unfinished
    /// transaction, which that one [`Decoder::restore`]s, or, if this does not [`Decoder::restarts_from_snapshot`] yet, its first record,
    /// from which another finds the same consistent point. Without: the start of the oldest unfinished transaction, or the end of what
    /// was processed, where that one [`Decoder::resume`]s; before this decoder is consistent, its first record.
    #[must_use]
    pub fn restart_lsn(&self) -> Lsn {
        if self.restarts_from_snapshot() {
            return self.restart_lsn;
        }
        if self.snapshots.is_some() || self.snap_build.state() < SnapBuildState::Consistent {
            return self.first_lsn;
        }
        let unfinished = self.reorder_buffer.toplevel().map(|at| self.reorder_buffer.get(at).oldest_lsn).min();
        unfinished.unwrap_or(self.end_lsn)
    }

    /// Whether [`Decoder::restart_lsn`] has a serialised snapshot.
    #[must_use]
    pub fn restarts_from_snapshot(&self) -> bool {
        self.restart_lsn.is_valid()
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

    /// Before it is consistent: the transactions that it waits for, as far as the last list tells, oldest first. None: the next
    /// RUNNING_XACTS record decides.
    #[must_use]
    pub fn waiting(&self) -> &[Xid] {
        self.snap_build.waiting()
    }

    /// The snapshot that a transaction beginning now would get, built for the asker alone. O(n log n).
    #[must_use]
    pub fn historic_snapshot(&self) -> HistoricSnapshot {
        self.snap_build.would_be()
    }

    /// All work so far, that of skipped and rolled-back transactions included.
    #[must_use]
    pub fn work(&self) -> Work {
        self.replayer.caches.work
    }

    /// All work so far by cache, by relation and by callback.
    #[must_use]
    pub fn attribution(&self) -> Attribution {
        self.replayer.caches.attribution(&self.replayer.relations)
    }

    /// What the shared invalidation queue did to it: nothing unless it follows live ([`crate::Consumer`]).
    #[must_use]
    pub fn queue_counts(&self) -> QueueCounts {
        self.replayer.caches.queue_counts()
    }

    /// What `pgoutput` did: nothing unless rows are given to it ([`crate::profile::OutputPlugin`]).
    #[must_use]
    pub fn relsync_counts(&self) -> RelsyncCounts {
        self.replayer.caches.relsync_counts()
    }

    /// What relations took beside being loaded.
    #[must_use]
    pub fn relcache_counts(&self) -> RelcacheCounts {
        self.replayer.caches.relcache_counts()
    }

    /// Which snapshots catalogs were read with, and why those of now were dropped.
    #[must_use]
    pub fn catalog_snapshot_counts(&self) -> CatalogSnapshotCounts {
        self.replayer.caches.catalog_snapshot_counts()
    }

    /// What catalog rows of transactions that change catalogs cost.
    #[must_use]
    pub fn tuple_cid_counts(&self) -> TupleCidCounts {
        self.replayer.caches.tuple_cids
    }

    /// Syscache callbacks called so far, by what each costs.
    #[must_use]
    pub fn callback_counts(&self) -> CallbackCounts {
        self.replayer.caches.callback_counts()
    }

    /// Relcache callbacks called so far, by what each costs.
    #[must_use]
    pub fn relcache_callback_counts(&self) -> CallbackCounts {
        self.replayer.caches.relcache_callback_counts()
    }

    /// What building snapshots took.
    #[must_use]
    pub fn snap_build_counts(&self) -> SnapBuildCounts {
        self.snap_build.counts()
    }

    /// How full it is.
    #[must_use]
    pub fn sizes(&self) -> DecoderSizes {
        DecoderSizes {
            transactions: self.reorder_buffer.len(),
            committed_xids: self.snap_build.committed_len(),
            catalog_commits: self.replayer.commits.len(),
            memory_bytes: self.reorder_buffer.memory.total,
            memory_bytes_peak: self.reorder_buffer.memory.peak,
            spill_file_bytes: self.reorder_buffer.memory.store.bytes(),
            caches: self.replayer.caches.sizes(),
        }
    }

    /// What the caches hold, for comparing decoders. O(n log n).
    #[must_use]
    pub fn cache_contents(&self) -> CacheContents {
        self.replayer.caches.contents()
    }

    /// Registers so many callbacks; before anything is decoded.
    ///
    /// # Errors
    /// A server of this profile has no room for so many.
    pub fn register_callbacks(&mut self, registered: RegisteredCallbacks) -> Result<(), TooManyCallbacks> {
        self.replayer.caches.register(registered, &self.config.profile)
    }

    /// The byte that says which function runs; a sampler may read it from another thread.
    #[must_use]
    pub fn current_function(&self) -> CurrentFunction {
        self.replayer.caches.marker.clone()
    }

    /// Publications that are asked for and not there now.
    #[must_use]
    pub fn missing_publications(&self) -> Vec<String> {
        let (lsn, own) = (Lsn(u64::MAX), &TupleCidHash::default());
        let missing = |publications: &Publications| publications.missing(Moment { lsn, own, command_id: 0 });
        self.replayer.publications.as_ref().map(missing).unwrap_or_default()
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }
}
