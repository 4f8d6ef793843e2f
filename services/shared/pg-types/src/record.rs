//! WAL records as the cores see them: typed, version-free, without offsets (`access/rmgrdesc`, `access/heapam_xlog.h`, …).
//!
//! `pg-wal` decodes bytes into these and encodes these into bytes; nobody else knows the layouts. Bodies that are rare and
//! large are boxed, so that a [`WalRecord`] of an insert is small and costs no allocation.

use crate::command_id::CommandId;
use crate::invalidation::InvalidationMessage;
use crate::lsn::Lsn;
use crate::oid::{Oid, RelFileLocator, Tid};
use crate::version::PgVersion;
use crate::xid::{FullXid, Xid};

/// Microseconds since 2000-01-01 UTC (`TimestampTz`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub i64);

/// One WAL record.
#[derive(Clone, Debug, PartialEq)]
pub struct WalRecord {
    /// First byte of the record (`ReadRecPtr`).
    pub lsn: Lsn,
    /// First byte after it, aligned (`EndRecPtr`); for a switch record the end of its segment.
    pub end_lsn: Lsn,
    /// Transaction that wrote it, [`Xid::INVALID`] if none.
    pub xid: Xid,
    /// Top-level transaction, where the record carries it (14 and later, block id 252), else [`Xid::INVALID`].
    pub top_xid: Xid,
    /// Replication origin, 0 if none.
    pub origin: u16,
    /// What it says.
    pub body: RecordBody,
}

/// The contents of a record, by resource manager.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordBody {
    /// XACT: commit, or commit of a prepared transaction.
    Commit(Box<CommitRecord>),
    /// XACT: abort, or abort of a prepared transaction.
    Abort(Box<AbortRecord>),
    /// XACT: prepare.
    Prepare(Box<PrepareRecord>),
    /// XACT: subtransactions and their top-level transaction.
    Assignment(Box<AssignmentRecord>),
    /// XACT (14 and later): messages of one command.
    XactInvalidations(Vec<InvalidationMessage>),
    /// STANDBY: AccessExclusive locks taken.
    StandbyLocks(Vec<StandbyLock>),
    /// STANDBY: running transactions.
    RunningXacts(Box<RunningXactsRecord>),
    /// STANDBY: messages of a commit without xid.
    StandbyInvalidations(Box<StandbyInvalidationsRecord>),
    /// HEAP: insert.
    Insert(HeapInsert),
    /// HEAP2: several inserts into one page.
    MultiInsert(HeapMultiInsert),
    /// HEAP: delete.
    Delete(HeapDelete),
    /// HEAP: update or HOT update.
    Update(HeapUpdate),
    /// HEAP: TRUNCATE, for logical decoding.
    Truncate(Box<TruncateRecord>),
    /// HEAP: confirmation of a speculative insert.
    Confirm(HeapPlace),
    /// HEAP: row lock.
    Lock(HeapLock),
    /// HEAP: in-place update.
    Inplace(Box<InplaceRecord>),
    /// HEAP2: lock of an updated row version.
    LockUpdated(HeapLock),
    /// HEAP2: command ids of a catalog tuple, for logical decoding.
    NewCid(Box<NewCidRecord>),
    /// HEAP2: pruning, vacuuming, freezing: what may conflict with a standby's snapshots.
    Prune(PruneRecord),
    /// HEAP2: pages marked all-visible; conflicts like pruning.
    Visible(PruneRecord),
    /// HEAP2: mappings of a rewritten catalog.
    Rewrite(Box<RewriteRecord>),
    /// XLOG: checkpoint.
    Checkpoint(Box<CheckpointRecord>),
    /// XLOG (17 and later): where an online checkpoint's redo starts.
    CheckpointRedo,
    /// XLOG: an object id range was reserved.
    NextOid(Oid),
    /// XLOG: the rest of the segment is unused.
    Switch,
    /// XLOG: end of recovery: timelines before and after.
    EndOfRecovery {
        /// New timeline.
        this_timeline: u32,
        /// Timeline before.
        prev_timeline: u32,
    },
    /// XLOG: settings that a standby needs.
    ParameterChange(Box<ParameterChangeRecord>),
    /// XLOG: a contrecord was overwritten (14 and later); position of the missing one.
    OverwriteContrecord(Lsn),
    /// XLOG: the end of a base backup; where it started.
    BackupEnd(Lsn),
    /// XLOG: page images, no-op, restore point, full-page-writes change.
    XlogOther,
    /// SMGR: a file was made.
    SmgrCreate {
        /// The file.
        target: RelFileLocator,
        /// 0 main, 1 fsm, 2 vm, 3 init.
        fork: u32,
    },
    /// SMGR: a file was cut.
    SmgrTruncate {
        /// The file.
        target: RelFileLocator,
        /// New length in blocks.
        blocks: u32,
        /// Which forks.
        flags: u32,
    },
    /// RELMAP: a new map of the mapped catalogs' files.
    Relmap(Box<RelmapRecord>),
    /// LOGICALMSG: `pg_logical_emit_message`.
    LogicalMessage(Box<LogicalMessageRecord>),
    /// BTREE: an entry was put into a leaf page. Written only: read, it is one of [`RecordBody::Other`].
    IndexInsert(IndexInsert),
    /// BTREE, HASH, GIST, SPGIST: entries of removed rows are removed; conflicts like pruning. Read only.
    IndexPrune(IndexPruneRecord),
    /// SEQUENCE: values of a sequence were reserved; its file. Written only, like the above.
    SequenceLog(RelFileLocator),
    /// Any other resource manager or operation.
    Other {
        /// Resource manager id.
        rmid: u8,
        /// Its four info bits (high half of `xl_info`).
        info: u8,
    },
}

/// Flags of [`CommitRecord::xinfo`] and [`AbortRecord::xinfo`] (`access/xact.h`).
pub mod xinfo {
    /// Database and tablespace are told.
    pub const HAS_DBINFO: u32 = 1;
    /// Subtransactions are told.
    pub const HAS_SUBXACTS: u32 = 1 << 1;
    /// Dropped files are told.
    pub const HAS_RELFILELOCATORS: u32 = 1 << 2;
    /// Invalidation messages are told.
    pub const HAS_INVALS: u32 = 1 << 3;
    /// The xid of a prepared transaction is told.
    pub const HAS_TWOPHASE: u32 = 1 << 4;
    /// The origin's position and time are told.
    pub const HAS_ORIGIN: u32 = 1 << 5;
    /// The transaction held AccessExclusive locks.
    pub const HAS_AE_LOCKS: u32 = 1 << 6;
    /// The name of a prepared transaction is told.
    pub const HAS_GID: u32 = 1 << 7;
    /// Dropped statistics entries are told (15 and later).
    pub const HAS_DROPPED_STATS: u32 = 1 << 8;
    /// The relcache init file must go (`XACT_COMPLETION_UPDATE_RELCACHE_FILE`).
    pub const UPDATE_RELCACHE_FILE: u32 = 1 << 30;
    /// All flags that announce a chunk; the others stand for themselves.
    pub const CHUNKS: u32 =
        HAS_DBINFO | HAS_SUBXACTS | HAS_RELFILELOCATORS | HAS_INVALS | HAS_TWOPHASE | HAS_ORIGIN | HAS_GID | HAS_DROPPED_STATS;
}

/// Commit of a transaction or of a prepared one (`xl_xact_commit`, parsed).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CommitRecord {
    /// When.
    pub time: Timestamp,
    /// The prepared transaction that this commits; [`Xid::INVALID`] for a plain commit, whose xid is the record's.
    pub prepared_xid: Xid,
    /// `xinfo` in whole, flags as in PostgreSQL.
    pub xinfo: u32,
    /// Database, 0 if not told.
    pub db: Oid,
    /// Tablespace, 0 if not told.
    pub spc: Oid,
    /// Committed subtransactions.
    pub subxids: Vec<Xid>,
    /// Files dropped at commit.
    pub dropped_locators: Vec<RelFileLocator>,
    /// How many statistics entries are dropped (15 and later).
    pub dropped_stats: u32,
    /// Invalidation messages.
    pub messages: Vec<InvalidationMessage>,
    /// Name of the prepared transaction, as bytes from outside; empty if none.
    pub gid: Vec<u8>,
    /// Origin's position and commit time, if it came from elsewhere.
    pub origin: Option<(Lsn, Timestamp)>,
}

/// Abort of a transaction or of a prepared one (`xl_xact_abort`, parsed).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AbortRecord {
    /// When.
    pub time: Timestamp,
    /// The prepared transaction that this rolls back; [`Xid::INVALID`] for a plain abort.
    pub prepared_xid: Xid,
    /// `xinfo` in whole.
    pub xinfo: u32,
    /// Database, 0 if not told.
    pub db: Oid,
    /// Tablespace, 0 if not told.
    pub spc: Oid,
    /// Aborted subtransactions.
    pub subxids: Vec<Xid>,
    /// Files dropped at abort.
    pub dropped_locators: Vec<RelFileLocator>,
    /// How many statistics entries are dropped (15 and later).
    pub dropped_stats: u32,
    /// Name of the prepared transaction; empty if none.
    pub gid: Vec<u8>,
    /// Origin's position and time.
    pub origin: Option<(Lsn, Timestamp)>,
}

/// Prepare of a transaction (`xl_xact_prepare` and what follows it). Its xid is the record's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PrepareRecord {
    /// When.
    pub time: Timestamp,
    /// Database.
    pub db: Oid,
    /// Owner role.
    pub owner: Oid,
    /// Name.
    pub gid: Vec<u8>,
    /// Subtransactions.
    pub subxids: Vec<Xid>,
    /// Messages that its commit will send.
    pub messages: Vec<InvalidationMessage>,
    /// Files that its commit will drop.
    pub commit_locators: Vec<RelFileLocator>,
    /// Files that its abort will drop.
    pub abort_locators: Vec<RelFileLocator>,
    /// How many statistics entries its commit will drop (15 and later).
    pub commit_stats: u32,
    /// How many statistics entries its abort will drop (15 and later).
    pub abort_stats: u32,
    /// Origin's position and time, if it came from elsewhere.
    pub origin: Option<(Lsn, Timestamp)>,
}

/// `xl_xact_assignment`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AssignmentRecord {
    /// Top-level transaction.
    pub top_xid: Xid,
    /// Its subtransactions.
    pub subxids: Vec<Xid>,
}

/// `xl_standby_lock`: an AccessExclusive lock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StandbyLock {
    /// Holder.
    pub xid: Xid,
    /// Database.
    pub db: Oid,
    /// Relation.
    pub rel: Oid,
}

/// `xl_running_xacts`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunningXactsRecord {
    /// Next xid to be given.
    pub next_xid: Xid,
    /// Oldest running one.
    pub oldest_running_xid: Xid,
    /// Newest completed one.
    pub latest_completed_xid: Xid,
    /// Subtransactions are missing because some backend had too many.
    pub subxid_overflow: bool,
    /// Running top-level transactions.
    pub xids: Vec<Xid>,
    /// Running subtransactions, none if overflowed.
    pub subxids: Vec<Xid>,
}

/// `xl_invalidations`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StandbyInvalidationsRecord {
    /// Database.
    pub db: Oid,
    /// Tablespace.
    pub spc: Oid,
    /// The relcache init file must go.
    pub relcache_init_file_inval: bool,
    /// The messages.
    pub messages: Vec<InvalidationMessage>,
}

/// What a heap record keeps of the old row for logical decoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OldTuple {
    /// Nothing.
    #[default]
    None,
    /// Its replica identity key.
    Key,
    /// The whole row (REPLICA IDENTITY FULL).
    Full,
}

/// A row's place: file and tuple address.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeapPlace {
    /// File.
    pub target: RelFileLocator,
    /// Address.
    pub tid: Tid,
}

/// `xl_heap_insert`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeapInsert {
    /// File.
    pub target: RelFileLocator,
    /// Address.
    pub tid: Tid,
    /// The row is there for logical decoding (`XLH_INSERT_CONTAINS_NEW_TUPLE`).
    pub logical: bool,
    /// Speculative (ON CONFLICT): confirmed or super-deleted later.
    pub speculative: bool,
    /// Into a TOAST table (flag exists from 14 on).
    pub toast: bool,
    /// First row of a fresh page.
    pub init_page: bool,
    /// Bytes of tuple data in the record (0 if an image replaced it).
    pub tuple_len: u32,
}

/// `xl_btree_insert` into a leaf page.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IndexInsert {
    /// The index's file.
    pub target: RelFileLocator,
    /// Address of the entry.
    pub tid: Tid,
    /// Bytes of the entry.
    pub tuple_len: u16,
}

/// `xl_heap_multi_insert`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeapMultiInsert {
    /// File.
    pub target: RelFileLocator,
    /// Block.
    pub block: u32,
    /// Rows.
    pub ntuples: u16,
    /// The rows are there for logical decoding.
    pub logical: bool,
    /// Into a TOAST table (flag exists from 14 on).
    pub toast: bool,
    /// Last record of one `heap_multi_insert` call.
    pub last_in_multi: bool,
    /// First rows of a fresh page.
    pub init_page: bool,
    /// Bytes of tuple data in the record.
    pub tuples_len: u32,
}

/// `xl_heap_delete`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeapDelete {
    /// File.
    pub target: RelFileLocator,
    /// Address.
    pub tid: Tid,
    /// The new xmax.
    pub xmax: Xid,
    /// What is kept of the row.
    pub old: OldTuple,
    /// Bytes of that, its header of 5 included. 0 in a record to be written: as many as its writer chooses.
    pub old_len: u32,
    /// Undoes a speculative insert (`XLH_DELETE_IS_SUPER`).
    pub super_deletion: bool,
    /// Part of a move between partitions.
    pub partition_move: bool,
    /// Not to be decoded (`XLH_DELETE_NO_LOGICAL`).
    pub no_logical: bool,
}

/// `xl_heap_update`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeapUpdate {
    /// File.
    pub target: RelFileLocator,
    /// Address of the old version.
    pub old_tid: Tid,
    /// Address of the new version.
    pub new_tid: Tid,
    /// xmax of the old version.
    pub old_xmax: Xid,
    /// xmax of the new version.
    pub new_xmax: Xid,
    /// Heap-only tuple.
    pub hot: bool,
    /// The new row is there for logical decoding (`XLH_UPDATE_CONTAINS_NEW_TUPLE`).
    pub logical: bool,
    /// What is kept of the old row.
    pub old: OldTuple,
    /// Bytes of that, its header of 5 included. 0 in a record to be written: as many as its writer chooses.
    pub old_len: u32,
    /// The new version is the first row of a fresh page.
    pub init_page: bool,
    /// Bytes of new tuple data in the record.
    pub tuple_len: u32,
}

/// `xl_heap_lock` and `xl_heap_lock_updated`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeapLock {
    /// File.
    pub target: RelFileLocator,
    /// Address.
    pub tid: Tid,
    /// The locker, possibly a multixact.
    pub xmax: Xid,
    /// Lock bits (`XLHL_*`).
    pub infobits: u8,
}

/// `xl_heap_truncate`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TruncateRecord {
    /// Database.
    pub db: Oid,
    /// CASCADE.
    pub cascade: bool,
    /// RESTART IDENTITY.
    pub restart_seqs: bool,
    /// The relations, by oid.
    pub relids: Vec<Oid>,
}

/// `xl_heap_inplace`; its messages ride in WAL from 18 on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct InplaceRecord {
    /// File.
    pub target: RelFileLocator,
    /// Address.
    pub tid: Tid,
    /// Database (18 and later).
    pub db: Oid,
    /// Tablespace (18 and later).
    pub spc: Oid,
    /// The relcache init file must go (18 and later).
    pub relcache_init_file_inval: bool,
    /// The messages (18 and later).
    pub messages: Vec<InvalidationMessage>,
}

/// `xl_heap_new_cid`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NewCidRecord {
    /// Top-level transaction.
    pub top_xid: Xid,
    /// Inserting command.
    pub cmin: CommandId,
    /// Deleting command.
    pub cmax: CommandId,
    /// The combo command id, if any.
    pub combocid: CommandId,
    /// File of the catalog.
    pub target: RelFileLocator,
    /// Address.
    pub tid: Tid,
}

/// What a page is pruned for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PruneReason {
    /// Somebody read it, or (up to 16, where records do not tell) VACUUM's first pass.
    #[default]
    OnAccess,
    /// VACUUM's first pass (17 and later), with freezing.
    VacuumScan,
    /// VACUUM's second pass: line pointers are given free.
    VacuumCleanup,
    /// Freezing (up to 16).
    Freeze,
    /// No page: VACUUM is about to remove rows (13).
    CleanupInfo,
}

/// Pruning, freezing, marking visible: what a standby needs to know for conflicts.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PruneRecord {
    /// File.
    pub target: RelFileLocator,
    /// Block.
    pub block: u32,
    /// Snapshots older than this conflict; [`Xid::INVALID`] if none do.
    pub conflict_horizon: Xid,
    /// The relation is a catalog (known from 16 on).
    pub is_catalog: bool,
    /// What for; nothing where a page is marked visible.
    pub reason: PruneReason,
    /// Line pointers that lead to others from now on.
    pub redirected: u16,
    /// Line pointers that become dead.
    pub dead: u16,
    /// Line pointers that are given free.
    pub unused: u16,
    /// Rows that are frozen; where a page is marked visible, whether all of its are (1).
    pub frozen: u16,
}

/// Removal of index entries, or reuse of a page that held some, as far as a standby's snapshots are concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IndexPruneRecord {
    /// File of the index.
    pub target: RelFileLocator,
    /// Snapshots older than this conflict; [`Xid::INVALID`] if none do.
    pub conflict_horizon: Xid,
    /// `EpochFromFullTransactionId` of the horizon, where it is one of 64 bits: a page's is recorded when it is emptied, and may be older
    /// than 2^31 transactions when the page is used again. Then nobody can be in the way.
    pub horizon_epoch: Option<u32>,
    /// The index is a catalog's (known from 16 on).
    pub is_catalog: bool,
}

/// `xl_heap_rewrite_mapping`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RewriteRecord {
    /// Transaction that might need the mapping.
    pub mapped_xid: Xid,
    /// Database, 0 for shared.
    pub mapped_db: Oid,
    /// Relation.
    pub mapped_rel: Oid,
    /// Bytes in the mapping file before this record's.
    pub offset: u64,
    /// Mappings in this record.
    pub num_mappings: u32,
    /// Where in WAL the rewrite started.
    pub start_lsn: Lsn,
}

/// `CheckPoint` (`catalog/pg_control.h`), shutdown or online.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CheckpointRecord {
    /// Written at shutdown (nothing runs).
    pub shutdown: bool,
    /// Where redo starts.
    pub redo: Lsn,
    /// Timeline.
    pub this_timeline: u32,
    /// Timeline before.
    pub prev_timeline: u32,
    /// full_page_writes.
    pub full_page_writes: bool,
    /// wal_level as a number (17 and later, else 0).
    pub wal_level: u32,
    /// Next transaction id.
    pub next_xid: FullXid,
    /// Next object id.
    pub next_oid: Oid,
    /// Next multixact.
    pub next_multi: u32,
    /// Next multixact offset.
    pub next_multi_offset: u32,
    /// Oldest unfrozen xid.
    pub oldest_xid: Xid,
    /// Its database.
    pub oldest_xid_db: Oid,
    /// Oldest multixact.
    pub oldest_multi: u32,
    /// Its database.
    pub oldest_multi_db: Oid,
    /// Seconds since 1970.
    pub time: i64,
    /// Oldest xid with a commit timestamp.
    pub oldest_commit_ts_xid: Xid,
    /// Newest xid with a commit timestamp.
    pub newest_commit_ts_xid: Xid,
    /// Oldest running xid, for online checkpoints.
    pub oldest_active_xid: Xid,
}

/// `xl_parameter_change`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ParameterChangeRecord {
    /// max_connections.
    pub max_connections: i32,
    /// max_worker_processes.
    pub max_worker_processes: i32,
    /// max_wal_senders.
    pub max_wal_senders: i32,
    /// max_prepared_transactions.
    pub max_prepared_xacts: i32,
    /// max_locks_per_transaction.
    pub max_locks_per_xact: i32,
    /// wal_level: 0 minimal, 1 replica, 2 logical.
    pub wal_level: i32,
    /// wal_log_hints.
    pub wal_log_hints: bool,
    /// track_commit_timestamp.
    pub track_commit_timestamp: bool,
}

/// `xl_relmap_update`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RelmapRecord {
    /// Database, 0 for the shared map.
    pub db: Oid,
    /// Tablespace.
    pub spc: Oid,
    /// Catalog oid → file number.
    pub mappings: Vec<(Oid, u32)>,
}

/// `xl_logical_message`. Prefix and content are bytes from outside.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LogicalMessageRecord {
    /// Database.
    pub db: Oid,
    /// Part of its transaction.
    pub transactional: bool,
    /// Prefix, without its NUL.
    pub prefix: Vec<u8>,
    /// Content.
    pub message: Vec<u8>,
}

/// What a directory of WAL says of itself on its first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalIdentity {
    /// Major version, from the page magic.
    pub version: PgVersion,
    /// `system_identifier` of the cluster.
    pub system_id: u64,
    /// Timeline.
    pub timeline: u32,
    /// Segment size in bytes.
    pub segment_size: u32,
}
