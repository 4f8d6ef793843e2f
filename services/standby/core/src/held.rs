//! The snapshots that readers hold, as replay sees them (`GetConflictingVirtualXIDs`, `GetLockConflicts`, `ComputeXidHorizons`;
//! `storage/ipc/procarray.c`).
//!
//! A query on a standby holds a snapshot. The primary does not know it, and removes rows that the snapshot still sees; or it locks
//! a table exclusively that the query reads. Then replay waits for the query, and in the end cancels it. With
//! `hot_standby_feedback` the standby tells the primary the oldest xmin held, so that rows stay.
//!
//! **Invariants**
//! - H1 once a record is replayed, no snapshot that it conflicts with is held without being cancelled.
//! - H2 a snapshot taken now conflicts with nothing replayed before: whatever a horizon covers has ended for it.
//!
//! | operation (R held) | cost |
//! |---|---|
//! | hold | O(log R); then a snapshot, which nobody waits for |
//! | give back, lock | O(log R) |
//! | victims of a record | O(R) |
//! | feedback | O(R) |
//!
//! **Differences from PostgreSQL.** One mutex instead of ProcArrayLock and the lock manager, which no plain snapshot ever takes; a
//! reader holds it to say which xmin it has, before it walks. A lock that is not to be had is refused, not waited for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pg_types::record::IndexPruneRecord;
use pg_types::{FullXid, Oid, RecordBody, Xid};

use crate::error::RecoveryError;
use crate::slru::SlruCounts;
use crate::snapshot::{RecoveryReader, ReplayedState, TakenSnapshot};
use crate::subtrans::{Subtrans, page_of};
use crate::visibility::xid_in_mvcc_snapshot;

/// Relations that a reader may have locked at a time. A server has room for 64 for each process, in a table that all share.
pub const READER_LOCKS_MAX: usize = 1024;

/// Why replay cancels a reader (`ProcSignalReason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConflictKind {
    /// Rows that its snapshot may see are removed (`PROCSIG_RECOVERY_CONFLICT_SNAPSHOT`).
    Snapshot,
    /// A relation that it has locked is locked exclusively (`PROCSIG_RECOVERY_CONFLICT_LOCK`).
    Lock,
}

/// What a record must not find held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// Snapshots with an xmin up to the horizon, in one database, or in all for 0.
    Snapshot { horizon: Xid, database: Oid },
    /// Locks on relations, as (database, relation).
    Lock { relations: Vec<(Oid, Oid)> },
}

impl Conflict {
    /// The conflict of a record, if it can have one; `next_xid` is that of the state before it.
    pub(crate) fn of(body: &RecordBody, next_xid: FullXid) -> Option<Self> {
        match body {
            RecordBody::IndexPrune(prune) if prune.conflict_horizon.is_normal() && !long_ago(prune, next_xid) => {
                Some(Self::Snapshot { horizon: prune.conflict_horizon, database: prune.target.db })
            }
            RecordBody::Prune(prune) | RecordBody::Visible(prune) if prune.conflict_horizon.is_normal() => {
                Some(Self::Snapshot { horizon: prune.conflict_horizon, database: prune.target.db })
            }
            RecordBody::StandbyLocks(locks) => Some(Self::Lock { relations: locks.iter().map(|l| (l.db, l.rel)).collect() }),
            _ => None,
        }
    }

    /// Its kind.
    pub(crate) fn kind(&self) -> ConflictKind {
        match self {
            Self::Snapshot { .. } => ConflictKind::Snapshot,
            Self::Lock { .. } => ConflictKind::Lock,
        }
    }

    /// Whether a reader is in the way.
    fn hits(&self, held: &Held) -> bool {
        match self {
            Self::Snapshot { horizon, database } => {
                (!database.is_valid() || held.database == *database) && held.xmin.precedes_or_equals(*horizon)
            }
            Self::Lock { relations } => relations.iter().any(|relation| held.locks.contains(relation)),
        }
    }
}

/// Whether a page's horizon is so old that no snapshot can be (`ResolveRecoveryConflictWithSnapshotFullXid`). No horizon is ahead of the
/// next xid, so where it seems to be, that one's epoch is not known yet: a list of running transactions has none.
fn long_ago(prune: &IndexPruneRecord, next_xid: FullXid) -> bool {
    prune.horizon_epoch.is_some_and(|epoch| {
        let low = prune.conflict_horizon.numeric();
        let behind = next_xid.0.checked_sub(u64::from(epoch) << 32 | u64::from(low));
        let behind_at_least = || u64::from(next_xid.xid().numeric().wrapping_sub(low));
        behind.unwrap_or_else(behind_at_least) >= u64::from(u32::MAX / 2)
    })
}

/// A reader that holds a snapshot (`PGPROC`).
#[derive(Debug)]
struct Held {
    /// `xmin` of its snapshot.
    xmin: Xid,
    /// Its database.
    database: Oid,
    /// Relations that it has locked (AccessShareLock).
    locks: BTreeSet<(Oid, Oid)>,
    /// Replay has cancelled it.
    cancelled: Option<ConflictKind>,
}

/// All that readers hold, and what replay has locked.
#[derive(Debug, Default)]
pub(crate) struct HeldSnapshots {
    /// By number.
    held: BTreeMap<u64, Held>,
    /// Snapshots held so far.
    opened: u64,
    /// Relations locked exclusively by replay, with the number of locks.
    exclusive: BTreeMap<(Oid, Oid), u32>,
}

impl HeldSnapshots {
    /// Who is in the way and not cancelled yet, oldest first.
    pub(crate) fn victims(&self, conflict: &Conflict) -> Vec<u64> {
        let hit = self.held.iter().filter(|(_, held)| held.cancelled.is_none() && conflict.hits(held));
        hit.map(|(&id, _)| id).collect()
    }

    /// `CancelVirtualTransaction`.
    fn cancel(&mut self, victims: &[u64], kind: ConflictKind) {
        for id in victims {
            if let Some(held) = self.held.get_mut(id) {
                held.cancelled = Some(kind);
                held.locks.clear();
            }
        }
    }

    /// Replay locks a relation. Whoever has locked it since replay looked for victims is one, too (H1); gives how many.
    pub(crate) fn lock_exclusively(&mut self, relation: (Oid, Oid)) -> usize {
        *self.exclusive.entry(relation).or_default() += 1;
        self.cancel_conflicting(&Conflict::Lock { relations: vec![relation] })
    }

    /// Cancels who is in the way; gives how many.
    pub(crate) fn cancel_conflicting(&mut self, conflict: &Conflict) -> usize {
        let victims = self.victims(conflict);
        self.cancel(&victims, conflict.kind());
        victims.len()
    }

    /// Replay gives a lock back.
    pub(crate) fn unlock(&mut self, relation: (Oid, Oid)) {
        if let Some(locks) = self.exclusive.get_mut(&relation) {
            *locks -= 1;
            if *locks == 0 {
                self.exclusive.remove(&relation);
            }
        }
    }

    /// Oldest xmin held, of those not cancelled.
    pub(crate) fn oldest_xmin(&self) -> Option<Xid> {
        let live = self.held.values().filter(|held| held.cancelled.is_none()).map(|held| held.xmin);
        live.reduce(|oldest, xmin| if xmin.precedes(oldest) { xmin } else { oldest })
    }
}

/// A snapshot that a reader holds, in one database. Given back when it is dropped.
#[derive(Debug)]
pub struct HeldSnapshot {
    /// The standby.
    reader: RecoveryReader,
    /// Its number.
    id: u64,
    /// The snapshot.
    taken: TakenSnapshot,
    /// The parents as of the snapshot: replay cuts off those that no newer snapshot needs.
    subtrans: Subtrans,
}

/// Whether transactions run for a snapshot, and what it cost to know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visibility {
    /// In the order of the question.
    pub running: Vec<bool>,
    /// Pages of parents that were looked up.
    pub lookups: SlruCounts,
}

impl RecoveryReader {
    /// Takes a snapshot and holds it, for a query in `database`. Its xmin is known to replay before the walk begins, and the state
    /// that is walked never changes, so the walk makes nobody wait.
    ///
    /// # Errors
    /// [`RecoveryError::NotReady`]; [`RecoveryError::TooManySessions`] if as many are held as the settings have room for.
    pub fn hold_snapshot(&self, database: Oid) -> Result<HeldSnapshot, RecoveryError> {
        let (id, state) = self.register(database)?;
        let taken = state.snapshot_when_ready(&self.shared.taking);
        Ok(HeldSnapshot { reader: self.clone(), id, taken, subtrans: state.subtrans.clone() })
    }

    /// Tells replay of a snapshot in `database` of the state that is current: its number, and that state.
    fn register(&self, database: Oid) -> Result<(u64, Arc<ReplayedState>), RecoveryError> {
        let mut readers = self.shared.held();
        let max = self.shared.max_sessions;
        if readers.held.len() >= max as usize {
            return Err(RecoveryError::TooManySessions { max });
        }
        // H1, H2: picked up under the lock, so it has all that was replayed before a conflict that did not find this reader.
        let state = self.state();
        state.ready()?;
        let id = readers.opened;
        readers.opened += 1;
        let held = Held { xmin: state.xmin(), database, locks: BTreeSet::new(), cancelled: None };
        readers.held.insert(id, held);
        Ok((id, state))
    }
}

impl HeldSnapshot {
    /// The snapshot.
    #[must_use]
    pub fn taken(&self) -> &TakenSnapshot {
        &self.taken
    }

    /// Why it was cancelled, if it was: it must not be used any more.
    #[must_use]
    pub fn cancelled(&self) -> Option<ConflictKind> {
        self.reader.shared.held().held.get(&self.id).and_then(|held| held.cancelled)
    }

    /// Locks a relation (AccessShareLock), database 0 for a shared one. False if replay has it locked, or has cancelled this.
    ///
    /// # Errors
    /// [`RecoveryError::TooManyReaderLocks`] at [`READER_LOCKS_MAX`].
    pub fn lock(&self, database: Oid, relation: Oid) -> Result<bool, RecoveryError> {
        let mut readers = self.reader.shared.held();
        let free = !readers.exclusive.contains_key(&(database, relation));
        match readers.held.get_mut(&self.id) {
            Some(held) if free && held.cancelled.is_none() => {
                if held.locks.len() >= READER_LOCKS_MAX && !held.locks.contains(&(database, relation)) {
                    return Err(RecoveryError::TooManyReaderLocks { max: READER_LOCKS_MAX });
                }
                held.locks.insert((database, relation));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Which of `xids` run for the snapshot (`XidInMVCCSnapshot`); false says nothing about how they ended.
    #[must_use]
    pub fn visibility(&self, xids: impl IntoIterator<Item = Xid>) -> Visibility {
        let shared = &self.reader.shared;
        shared.subtrans_buffers().set_latest(page_of(self.reader.state().latest_observed_xid));
        let mut lookups = SlruCounts::default();
        // The buffers are locked for one page at a time, so that a long question does not make others wait.
        let mut read = |page| lookups.count(shared.subtrans_buffers().read(page));
        let snapshot = &self.taken.snapshot;
        let running = xids.into_iter().map(|xid| xid_in_mvcc_snapshot(xid, snapshot, &self.subtrans, &mut read)).collect();
        Visibility { running, lookups }
    }
}

impl Drop for HeldSnapshot {
    fn drop(&mut self) {
        self.reader.shared.held().held.remove(&self.id);
    }
}
