//! Replay against readers: waiting, cancelling, exclusive locks, feedback (`storage/ipc/standby.c`, `replication/walreceiver.c`).
//!
//! Before it replays a record, the caller asks [`RecoveryWriter::resolve_conflicts`], which tells it to go on or for how long to
//! wait; time is the caller's. Whoever does not ask gets `max_standby_streaming_delay = 0`: replaying the record cancels at once.
//!
//! **Differences from PostgreSQL.** Conflicts come from pruning, freezing, visibility and lock records, and from those that remove index
//! entries or use a page of an index again. Those of dropped databases and tablespaces, of buffer pins and deadlocks are not modelled:
//! there is nothing to drop or to pin.

use std::collections::BTreeMap;

use pg_types::record::StandbyLock;
use pg_types::{FullXid, Lsn, Oid, WalRecord, Xid};

use super::RecoveryWriter;
use crate::error::RecoveryError;
use crate::held::{Conflict, ConflictKind};

/// `STANDBY_INITIAL_WAIT_US`, in milliseconds: the first wait for a victim; each next one is twice as long.
const STANDBY_INITIAL_WAIT_MS: u64 = 1;
/// The longest wait between two looks.
const STANDBY_MAX_WAIT_MS: u64 = 1000;
/// `max_locks_per_transaction`: exclusive locks that replay may hold, for each process.
const LOCKS_PER_PROCESS: usize = 64;

/// How long replay may lag for its readers' sake. None: for ever (−1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandbyDelays {
    /// `max_standby_streaming_delay`, milliseconds.
    pub streaming_ms: Option<u64>,
    /// `max_standby_archive_delay`, milliseconds.
    pub archive_ms: Option<u64>,
}

impl Default for StandbyDelays {
    fn default() -> Self {
        Self { streaming_ms: Some(30_000), archive_ms: Some(30_000) }
    }
}

/// What time it is (`GetXLogReceiptTime`); milliseconds of any clock that does not run backwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiptClock {
    /// Now.
    pub now_ms: u64,
    /// When the WAL that is replayed arrived, which is when the delay begins.
    pub received_ms: u64,
    /// It came from a stream, not from an archive.
    pub from_stream: bool,
}

/// What replay may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Replay the record. So many readers had to be cancelled now.
    Clear {
        /// Cancelled.
        cancelled: usize,
    },
    /// Ask again after a while.
    Wait {
        /// Readers in the way.
        victims: usize,
        /// Milliseconds.
        for_ms: u64,
    },
}

/// Readers cancelled so far (`pg_stat_database_conflicts`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConflictCounts {
    /// `confl_snapshot`.
    pub snapshot: u64,
    /// `confl_lock`.
    pub lock: u64,
}

/// What a standby tells its primary with `hot_standby_feedback`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HotStandbyFeedback {
    /// Rows that ended at or after this xid must stay.
    pub xmin: FullXid,
    /// The same for catalogs, as slots of the standby need it: none, for it has no slots.
    pub catalog_xmin: Option<FullXid>,
}

/// What replay remembers of conflicts, and the locks that it holds.
#[derive(Debug, Default)]
pub(super) struct Conflicts {
    /// The record and the victim waited for, and for how long next.
    waiting: Option<(Lsn, u64, u64)>,
    /// Readers cancelled.
    counts: ConflictCounts,
    /// Exclusive locks by holder (`RecoveryLockXidHash`).
    locks: BTreeMap<u32, Vec<(Oid, Oid)>>,
    /// How many there are.
    held: usize,
}

impl RecoveryWriter {
    /// `ResolveRecoveryConflictWithSnapshot`, `ResolveRecoveryConflictWithLock`: whether `record` may be replayed. Readers in its
    /// way are waited for until the delay since the receipt of the WAL is over (`GetStandbyLimitTime`), then cancelled.
    pub fn resolve_conflicts(&mut self, record: &WalRecord, delays: StandbyDelays, clock: ReceiptClock) -> Resolution {
        let Some(conflict) = Conflict::of(&record.body, self.state.next_xid) else { return Resolution::Clear { cancelled: 0 } };
        let victims = self.shared.held().victims(&conflict);
        let Some(&first) = victims.first() else {
            self.conflicts.waiting = None;
            return Resolution::Clear { cancelled: 0 };
        };
        let delay = if clock.from_stream { delays.streaming_ms } else { delays.archive_ms };
        if delay.is_some_and(|delay| clock.now_ms >= clock.received_ms.saturating_add(delay)) {
            return Resolution::Clear { cancelled: self.cancel_conflicting(record) };
        }
        let for_ms = match self.conflicts.waiting {
            Some((lsn, victim, for_ms)) if (lsn, victim) == (record.lsn, first) => for_ms,
            _ => STANDBY_INITIAL_WAIT_MS,
        };
        self.conflicts.waiting = Some((record.lsn, first, (2 * for_ms).min(STANDBY_MAX_WAIT_MS)));
        Resolution::Wait { victims: victims.len(), for_ms }
    }

    /// Cancels whoever is still in the way of a record (H1); gives how many.
    pub(super) fn cancel_conflicting(&mut self, record: &WalRecord) -> usize {
        let Some(conflict) = Conflict::of(&record.body, self.state.next_xid) else { return 0 };
        self.conflicts.waiting = None;
        let cancelled = self.shared.held().cancel_conflicting(&conflict);
        self.count_cancelled(conflict.kind(), cancelled);
        cancelled
    }

    /// Adds to `pg_stat_database_conflicts`.
    fn count_cancelled(&mut self, kind: ConflictKind, cancelled: usize) {
        let count = match kind {
            ConflictKind::Snapshot => &mut self.conflicts.counts.snapshot,
            ConflictKind::Lock => &mut self.conflicts.counts.lock,
        };
        *count += cancelled as u64;
    }

    /// Readers cancelled so far.
    #[must_use]
    pub fn conflict_counts(&self) -> ConflictCounts {
        self.conflicts.counts
    }

    /// Exclusive locks that replay holds.
    #[must_use]
    pub fn exclusive_locks(&self) -> usize {
        self.conflicts.held
    }

    /// `XLogWalRcvSendHSFeedback`, `GetReplicationHorizons`: the oldest of what runs on the primary and what readers hold here.
    #[must_use]
    pub fn hot_standby_feedback(&self) -> HotStandbyFeedback {
        let state = &self.state;
        let next = if state.latest_completed_xid.is_valid() { state.latest_completed_xid.next() } else { state.next_xid.xid() };
        let candidates = [self.kax.view().oldest(), self.shared.held().oldest_xmin()];
        let oldest = candidates.into_iter().flatten().fold(next, |oldest, xid| if xid.precedes(oldest) { xid } else { oldest });
        HotStandbyFeedback { xmin: self.full_xid(oldest), catalog_xmin: None }
    }

    /// `StandbyAcquireAccessExclusiveLock`, for each lock of a record; one lock of a transaction on a relation counts once.
    pub(super) fn acquire_locks(&mut self, locks: &[StandbyLock], lsn: Lsn) -> Result<(), RecoveryError> {
        let max = LOCKS_PER_PROCESS * self.sizes.max_procs as usize;
        for lock in locks {
            if !lock.xid.is_normal() {
                return Err(RecoveryError::MalformedRecord { lsn, what: "an exclusive lock of no transaction" });
            }
            let relation = (lock.db, lock.rel);
            let held = self.conflicts.locks.entry(lock.xid.numeric()).or_default();
            if held.contains(&relation) {
                continue;
            }
            if self.conflicts.held >= max {
                return Err(RecoveryError::TooManyStandbyLocks { lsn, max });
            }
            held.push(relation);
            self.conflicts.held += 1;
            let cancelled = self.shared.held().lock_exclusively(relation);
            self.count_cancelled(ConflictKind::Lock, cancelled);
        }
        Ok(())
    }

    /// `StandbyReleaseLockTree`.
    pub(super) fn release_locks(&mut self, xid: Xid, subxids: &[Xid]) {
        if self.conflicts.held > 0 {
            for xid in subxids.iter().chain([&xid]) {
                self.release(xid.numeric());
            }
        }
    }

    /// `StandbyReleaseOldLocks`: of transactions before `oldest` that are not prepared.
    pub(super) fn release_old_locks(&mut self, oldest: Xid) {
        let old = self.conflicts.locks.keys().copied().filter(|&xid| Xid(xid).precedes(oldest) && !self.is_prepared(Xid(xid)));
        for xid in old.collect::<Vec<_>>() {
            self.release(xid);
        }
    }

    /// `StandbyReleaseAllLocks`: replay starts again.
    pub(super) fn release_all_locks(&mut self) {
        for xid in self.conflicts.locks.keys().copied().collect::<Vec<_>>() {
            self.release(xid);
        }
    }

    /// Gives the locks of one transaction back.
    fn release(&mut self, xid: u32) {
        let Some(relations) = self.conflicts.locks.remove(&xid) else { return };
        self.conflicts.held -= relations.len();
        let mut readers = self.shared.held();
        relations.into_iter().for_each(|relation| readers.unlock(relation));
    }
}
