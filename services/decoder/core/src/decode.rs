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
mod state;
mod two_phase;
mod xact;

use std::sync::Arc;

use pg_types::record::LogicalMessageRecord;
use pg_types::{InvalidationMessage, Lsn, Oid, PgVersion, RecordBody, WalRecord, Xid};
use rustc_hash::FxHashMap;

use crate::DecodeError;
use crate::catalog::Catalog;
use crate::footprint::Footprint;
use crate::historic_catalog::{AsOf, HistoricCatalog};
use crate::interrupt::Interrupt;
use crate::invalidation::{CacheSizes, Caches};
use crate::output::OutputSink;
use crate::plugin_options::PluginOptions;
use crate::profile::Profile;
use crate::publications::Publications;
use crate::relations::Relations;
use crate::reorder_buffer::ReorderBuffer;
use crate::reorder_buffer::memory::Memory;
use crate::reorder_buffer::streaming::Replayer;
use crate::reorder_buffer::txn::Txn;
use crate::sampling::{CurrentFunction, Function};
use crate::snap_build::{SnapBuild, SnapBuildState, SnapshotStore};
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
    /// Blocks are given out at records that end behind it.
    streams_behind: Lsn,
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
            streams_behind: Lsn::INVALID,
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

    /// Gives out no block at a record that ends at or before `lsn`: up to there the consumer keeps what it was given. Which blocks those
    /// were follows from what was in memory then, so that another decoder would give out others. Before anything is decoded.
    #[must_use]
    pub fn streams_behind(mut self, lsn: Lsn) -> Self {
        self.streams_behind = lsn;
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
            && !self.snap_build.skips(record.lsn)
            && record.end_lsn > self.streams_behind;
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
}
