//! One session at work: what it writes, and in which order (`access/transam/xact.c`, `access/heap/heapam.c`,
//! `utils/cache/inval.c`, `catalog/indexing.c`).
//!
//! ```text
//!  statement (ddl, dml) ─► catalog rows change ─► NEW_CID, heap record ─► messages queue up
//!                        └► command ends ─► XACT_INVALIDATIONS, command id rises
//!  commit ─► commit record with all messages ─► proc array forgets the xid
//! ```
//!
//! | file | what |
//! |---|---|
//! | `mod` | xids, records, subtransactions' assignment |
//! | `catalog_change` | rows of catalogs and the messages that follow |
//! | `end` | commit, abort, savepoints |
//! | `prepared` | PREPARE TRANSACTION, COMMIT PREPARED, ROLLBACK PREPARED |
//! | `temp` | temporary schemas, what becomes of temporary tables |
//! | `vacuum`, `analyze` | VACUUM, ANALYZE |
//!
//! Differences from PostgreSQL: no page images are written, and no records of catalogs' indexes (no decoder or standby path that we
//! model reads them).

mod analyze;
mod catalog_change;
mod end;
mod prepared;
mod temp;
mod vacuum;
mod vacuum_traits;
mod wal_level;

use std::collections::{BTreeMap, BTreeSet};

use pg_types::record::{AssignmentRecord, StandbyLock};
use pg_types::{Oid, RecordBody, Tid, Timestamp, Xid};

use crate::backend_numbers::BackendNumbers;
use crate::catalog::{Catalog, DATABASE, Relation, TupleId};
use crate::consumer::oldest;
use crate::error::PrimaryError;
use crate::proc_array::ProcArray;
use crate::scenario::WalLevel;
use crate::sink::{Placed, WalSink};
use crate::twophase::TwoPhaseState;
use crate::xact::Transaction;
use wal_level::at_level;

pub(crate) use end::Ended;

/// `PGPROC_MAX_CACHED_SUBXIDS`: so many unreported subtransactions make an assignment record due.
const MAX_UNREPORTED: usize = 64;
/// `VAR_OID_PREFETCH`: object ids that one record reserves.
const OID_PREFETCH: u32 = 8192;

/// What all sessions share.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Catalogs and relations.
    pub(crate) catalog: Catalog,
    /// Running transactions and the xid counter.
    pub(crate) procs: ProcArray,
    /// Object ids that may be taken before the next record that reserves some.
    oids_reserved: u32,
    /// Something was logged since the last record of running transactions.
    pub(crate) wrote_since_snapshot: bool,
    /// Prepared transactions.
    pub(crate) twophase: TwoPhaseState,
    /// Chunks of rows with values outside of them, by file and row.
    pub(crate) toasted: BTreeMap<(u32, Tid), Vec<Tid>>,
    /// Values of sequences that are reserved in the log and not given yet.
    pub(crate) sequence_values: BTreeMap<Oid, u64>,
    /// `AutoVacuumingActive`.
    pub(crate) autovacuum: bool,
    /// How much is logged.
    pub(crate) wal_level: WalLevel,
    /// pg_statistic rows by table and column.
    pub(crate) statistics: BTreeMap<(Oid, i16), TupleId>,
    /// The oldest xid that consumers of the log still need to see as running; invalid if they need none.
    pub(crate) consumers_xmin: Xid,
    /// The same of those that need rows of catalogs alone (`replication_slot_catalog_xmin`).
    pub(crate) consumers_catalog_xmin: Xid,
    /// Which backend each session is.
    pub(crate) backends: BackendNumbers,
    /// Relations that running and prepared transactions hold an AccessExclusive lock on, by slot of the proc array.
    pub(crate) exclusive_locks: BTreeMap<usize, BTreeSet<Oid>>,
}

impl Cluster {
    /// Rows that a transaction before this xid deleted are of no use to anybody (`GetOldestNonRemovableTransactionId`): neither to
    /// a running transaction nor to a consumer that told so by feedback, nor, if they are a catalog's, to one that decodes.
    pub(crate) fn oldest_xmin(&self, is_catalog: bool) -> Xid {
        let data = oldest(self.procs.oldest_running(), self.consumers_xmin);
        if is_catalog { oldest(data, self.consumers_catalog_xmin) } else { data }
    }

    /// What a crash makes the server forget, for no record tells it: object ids that were reserved and not given. Transactions must
    /// have been undone.
    pub(crate) fn forget_at_crash(&mut self) {
        self.catalog.next_oid = Oid(self.catalog.next_oid.0.saturating_add(self.oids_reserved));
    }

    /// What the server does not know when it is started, however it ended: which object ids and values of sequences it may give
    /// without a record, who ran, and since when nothing was logged.
    pub(crate) fn forget_at_start(&mut self) {
        self.oids_reserved = 0;
        self.sequence_values.clear();
        self.procs.recovered();
        self.backends.restarted();
        self.wrote_since_snapshot = true;
    }

    /// Whether a record of a replicated transaction carries its origin (`XLOG_INCLUDE_ORIGIN`): those that decoding looks at.
    fn tells_origin(&self, body: &RecordBody) -> bool {
        use RecordBody as B;
        match body {
            B::Insert(_) | B::MultiInsert(_) | B::Update(_) | B::Truncate(_) | B::Confirm(_) => true,
            B::Delete(delete) => !delete.super_deletion,
            B::Commit(_) | B::Prepare(_) | B::LogicalMessage(_) => true,
            B::Abort(abort) => self.catalog.traits.abort_tells_origin || abort.prepared_xid.is_valid(),
            _ => false,
        }
    }

    /// A cluster with this catalog.
    #[must_use]
    pub(crate) fn new(catalog: Catalog, procs: ProcArray) -> Cluster {
        Cluster {
            catalog,
            procs,
            oids_reserved: 0,
            wrote_since_snapshot: false,
            twophase: TwoPhaseState::default(),
            toasted: BTreeMap::new(),
            sequence_values: BTreeMap::new(),
            autovacuum: true,
            wal_level: WalLevel::Logical,
            statistics: BTreeMap::new(),
            consumers_xmin: Xid::INVALID,
            consumers_catalog_xmin: Xid::INVALID,
            backends: BackendNumbers::default(),
            exclusive_locks: BTreeMap::new(),
        }
    }
}

/// A session with its transaction, for the length of one statement.
pub(crate) struct Backend<'a> {
    /// What all sessions share.
    pub(crate) cluster: &'a mut Cluster,
    /// The session's transaction.
    pub(crate) xact: &'a mut Transaction,
    /// The log.
    pub(crate) sink: &'a mut dyn WalSink,
    /// The time that commits are given.
    pub(crate) now: Timestamp,
}

/// Why a statement cannot be run; the engine adds who and what.
#[derive(Debug)]
pub(crate) enum StatementError {
    /// The log refused, or the like.
    Primary(PrimaryError),
    /// The statement makes no sense here.
    Refused(String),
}

impl From<PrimaryError> for StatementError {
    fn from(error: PrimaryError) -> StatementError {
        StatementError::Primary(error)
    }
}

/// Result of a part of a statement.
pub(crate) type Result<T> = std::result::Result<T, StatementError>;

impl Backend<'_> {
    /// Inserts a record with the innermost xid, assigning it if need be.
    pub(crate) fn log(&mut self, body: &RecordBody) -> Result<Placed> {
        self.xid()?;
        self.insert(body)
    }

    /// Inserts a record with whatever xid there is (`XLogInsert`). The first record of a subtransaction tells the top-level xid.
    /// What is in a temporary relation's file is not logged (`RelationNeedsWAL`).
    pub(crate) fn insert(&mut self, body: &RecordBody) -> Result<Placed> {
        if self.cluster.is_about_temp_file(body) {
            self.xact.used_temp = true;
            return Ok(self.nothing());
        }
        let (top_xid, xid) = (self.xact.top_xid(), self.xact.current_xid());
        let is_sub = self.xact.levels.len() > 1;
        let is_logical = self.cluster.wal_level == WalLevel::Logical;
        let Some(body) = at_level(self.cluster.wal_level, body) else { return Ok(self.nothing()) };
        let body = body.as_ref();
        let tells_top = is_logical && self.cluster.catalog.traits.logs_command_messages;
        let level = self.xact.level();
        let tell = is_sub && tells_top && xid.is_valid() && !level.top_xid_logged;
        level.top_xid_logged |= tell;
        let top = if tell { top_xid } else { Xid::INVALID };
        let origin = self.xact.origin.filter(|_| self.cluster.tells_origin(body)).map_or(0, |origin| origin.id);
        let placed = self.sink.append(xid, top, origin, body).map_err(PrimaryError::Sink)?;
        self.xact.top_logged |= !is_sub && xid.is_valid();
        self.xact.records += 1;
        self.cluster.wrote_since_snapshot = true;
        Ok(placed)
    }

    /// The place of a record that is not logged.
    fn nothing(&self) -> Placed {
        let here = self.sink.next_lsn();
        Placed { start: here, end: here }
    }

    /// The innermost xid; it and its parents' are assigned if need be (`AssignTransactionId`).
    ///
    /// A subtransaction's xid is made known by an assignment record once 64 are unknown, and at once if nothing named the
    /// top-level xid yet: with wal_level = logical a decoder could not tell otherwise which transaction begins here.
    pub(crate) fn xid(&mut self) -> Result<Xid> {
        let current = self.xact.current_xid();
        if current.is_valid() {
            return Ok(current);
        }
        for depth in 0..self.xact.levels.len() {
            if self.xact.levels[depth].xid.is_valid() {
                continue;
            }
            let session = self.xact.session;
            if depth == 0 {
                self.xact.levels[0].xid = self.cluster.procs.begin(session);
                continue;
            }
            let xid = self.cluster.procs.begin_sub(session);
            self.xact.levels[depth].xid = xid;
            self.xact.unreported.push(xid);
            let is_top_unknown = self.cluster.wal_level == WalLevel::Logical && !self.xact.top_logged;
            if self.xact.unreported.len() >= MAX_UNREPORTED || is_top_unknown {
                let subxids = std::mem::take(&mut self.xact.unreported);
                let body = RecordBody::Assignment(Box::new(AssignmentRecord { top_xid: self.xact.top_xid(), subxids }));
                self.insert(&body)?;
                self.xact.top_logged = true;
            }
        }
        Ok(self.xact.current_xid())
    }

    /// `LogAccessExclusiveLock`: a standby must hold the lock, too. One that is held already is not logged again.
    pub(crate) fn log_access_exclusive_lock(&mut self, rel: Oid) -> Result<()> {
        let xid = self.xid()?;
        self.xact.access_exclusive = true;
        self.xact.used_temp |= self.cluster.catalog.relation(rel).is_some_and(|relation| relation.temporary);
        if !self.cluster.exclusive_locks.entry(self.xact.session).or_default().insert(rel) {
            return Ok(());
        }
        self.xact.level().exclusive_locks.push(rel);
        self.insert(&RecordBody::StandbyLocks(vec![StandbyLock { xid, db: DATABASE, rel }]))?;
        Ok(())
    }

    /// `GetNewObjectId`: object ids are reserved in the log by thousands.
    pub(crate) fn new_oid(&mut self) -> Result<Oid> {
        if self.cluster.oids_reserved == 0 {
            let reserved = Oid(self.cluster.catalog.next_oid.0.saturating_add(OID_PREFETCH));
            self.insert(&RecordBody::NextOid(reserved))?;
            self.cluster.oids_reserved = OID_PREFETCH;
        }
        self.cluster.oids_reserved -= 1;
        Ok(self.cluster.catalog.take_oid())
    }

    /// A relation, which must be there.
    pub(crate) fn relation(&self, oid: Oid) -> Result<&Relation> {
        self.cluster.catalog.relation(oid).ok_or_else(|| StatementError::Refused(format!("relation {oid} is not there")))
    }
}
