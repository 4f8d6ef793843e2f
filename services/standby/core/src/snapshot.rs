//! Snapshots on a standby (`GetSnapshotData` in recovery, `storage/ipc/procarray.c`), and the readers that take them.
//!
//! Replay publishes one [`ReplayedState`] per record. A reader picks the published one up and works on it alone: it takes no lock,
//! is never made to try again and makes nobody wait. What it returns is the state at that record's end and no other, whatever
//! replay does meanwhile.
//!
//! In recovery `xmax` is one past the newest completed transaction, `xmin` the oldest running one (or `xmax`), and all running
//! ids below `xmax`, top-level and subtransactions alike, go into one list.

use std::fmt;
use std::sync::{Arc, PoisonError};

use pg_types::{FullXid, Lsn, SharedInvalQueue, Snapshot, Xid};

use crate::error::RecoveryError;
use crate::held::HeldSnapshots;
use crate::known_assigned_xids::skip_offset::{ScanStrategy, SlotCount};
use crate::known_assigned_xids::view::KnownAssignedView;
use crate::recovery::StandbyState;
use crate::slru::{SlruBuffers, SlruCounts};
use crate::subtrans::Subtrans;
use crate::sync::{Mutex, MutexGuard, Published};

/// What replay publishes after a record. Never changes.
#[derive(Clone, Debug)]
pub struct ReplayedState {
    /// End of the last record replayed (`lastReplayedEndRecPtr`).
    pub replay_lsn: Lsn,
    /// `standbyState`.
    pub standby_state: StandbyState,
    /// `nextXid`.
    pub next_xid: FullXid,
    /// `latestCompletedXid`; invalid until a running-transactions record or an end told it.
    pub latest_completed_xid: Xid,
    /// `latestObservedXid`: newest id known to have been assigned.
    pub latest_observed_xid: Xid,
    /// `lastOverflowedXid`: newest id whose subtransactions may be missing; invalid if none.
    pub last_overflowed_xid: Xid,
    /// `standbySnapshotPendingXmin`: the snapshot is complete once this id is older than all running ones; invalid if the
    /// list was complete at once.
    pub pending_xmin: Xid,
    /// `xactCompletionCount` (14 and later): a reader's snapshot stays good while it does not move.
    pub xact_completion_count: u64,
    /// The known-assigned xids.
    pub known_assigned: KnownAssignedView,
    /// `pg_subtrans`.
    pub subtrans: Subtrans,
}

/// A snapshot with what it cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenSnapshot {
    /// The snapshot.
    pub snapshot: Snapshot,
    /// Slots that taking it looked at and jumped over.
    pub slots: SlotCount,
    /// It was taken before, and given again because no transaction completed since.
    pub reused: bool,
    /// `snapXactCompletionCount`: the count when it was taken.
    pub xact_completion_count: u64,
}

/// Measures snapshots. The core owns no clock: whoever wants to know what they take brings his own.
pub trait SnapshotMeter: fmt::Debug + Send + Sync {
    /// What his clock says, in nanoseconds of CPU time of this thread.
    fn now_ns(&self) -> u64;

    /// A new snapshot was taken, for a transaction or for catalogs.
    fn took(&self, cost: SnapshotCost);
}

/// What taking one snapshot cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotCost {
    /// Nanoseconds of all of it (`GetSnapshotData`). The clock was looked at twice in between.
    pub ns: u64,
    /// In it: those of the walk over the known-assigned xids (`KnownAssignedXidsGetAndSetXmin`).
    pub walk_ns: u64,
    /// Slots that the walk looked at and jumped over.
    pub slots: SlotCount,
}

/// How snapshots are taken.
#[derive(Clone, Debug)]
pub(crate) struct Taking {
    /// How they walk.
    pub(crate) scan: ScanStrategy,
    /// Who measures them, if anybody does.
    pub(crate) meter: Option<Arc<dyn SnapshotMeter>>,
}

impl ReplayedState {
    /// That all running transactions are known.
    pub(crate) fn ready(&self) -> Result<(), RecoveryError> {
        match self.standby_state {
            StandbyState::SnapshotReady => Ok(()),
            state => Err(RecoveryError::NotReady { replay_lsn: self.replay_lsn, state }),
        }
    }

    /// The snapshot of a state that is [`ready`](Self::ready).
    pub(crate) fn snapshot_when_ready(&self, taking: &Taking) -> TakenSnapshot {
        let now = || taking.meter.as_ref().map_or(0, |meter| meter.now_ns());
        let begun = now();
        let (xmin, xmax) = (self.xmin(), self.xmax());
        let mut xip = Vec::with_capacity(self.known_assigned.live as usize);
        let walks = now();
        let slots = self.known_assigned.live_below(xmax, taking.scan, &mut xip);
        let walked = now();
        let suboverflowed = xmin.precedes_or_equals(self.last_overflowed_xid);
        let snapshot = Snapshot { replay_lsn: self.replay_lsn, xmin, xmax, xip, suboverflowed };
        let taken = TakenSnapshot { snapshot, slots, reused: false, xact_completion_count: self.xact_completion_count };
        if let Some(meter) = &taking.meter {
            let (ns, walk_ns) = (meter.now_ns().saturating_sub(begun), walked.saturating_sub(walks));
            meter.took(SnapshotCost { ns, walk_ns, slots });
        }
        taken
    }

    /// `xmin` of this state's snapshot, known without a walk: the tail runs.
    pub(crate) fn xmin(&self) -> Xid {
        let xmax = self.xmax();
        self.known_assigned.oldest().filter(|oldest| oldest.precedes(xmax)).unwrap_or(xmax)
    }

    /// `xmax` of this state's snapshot.
    fn xmax(&self) -> Xid {
        self.latest_completed_xid.next()
    }
}

/// What writer and readers share.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The state after the last record.
    pub(crate) state: Published<ReplayedState>,
    /// How snapshots are taken.
    pub(crate) taking: Taking,
    /// Snapshots may be reused.
    pub(crate) reuse: bool,
    /// Invalidation messages for sessions. No snapshot takes this lock.
    pub(crate) queue: Mutex<SharedInvalQueue>,
    /// What readers hold. No plain snapshot takes this lock.
    pub(crate) held: Mutex<HeldSnapshots>,
    /// `pg_subtrans`' buffers, shared by all who look parents up. No snapshot takes this lock.
    pub(crate) subtrans_buffers: Mutex<SlruBuffers>,
    /// Sessions there can be, and held snapshots: `MaxBackends`.
    pub(crate) max_sessions: u32,
}

impl Shared {
    /// The queue. Who panicked while holding it has broken nothing: between its calls the queue is whole.
    pub(crate) fn queue(&self) -> MutexGuard<'_, SharedInvalQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The buffers; whole between their calls, like the queue.
    pub(crate) fn subtrans_buffers(&self) -> MutexGuard<'_, SlruBuffers> {
        self.subtrans_buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What readers hold; whole between its calls, like the queue.
    pub(crate) fn held(&self) -> MutexGuard<'_, HeldSnapshots> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader of the standby: clone it for each session, use it from any thread.
#[derive(Clone, Debug)]
pub struct RecoveryReader {
    pub(crate) shared: Arc<Shared>,
}

impl RecoveryReader {
    /// The state after the last record, whole and unchanging.
    #[must_use]
    pub fn state(&self) -> Arc<ReplayedState> {
        self.shared.state.load()
    }

    /// What lookups of parents came to so far, and how many buffers there are.
    #[must_use]
    pub fn subtrans_counts(&self) -> (SlruCounts, usize) {
        let buffers = self.shared.subtrans_buffers();
        (buffers.counts(), buffers.len())
    }

    /// A new snapshot: the state at exactly the `replay_lsn` that it carries.
    ///
    /// # Errors
    /// [`RecoveryError::NotReady`] before there can be one.
    pub fn snapshot(&self) -> Result<TakenSnapshot, RecoveryError> {
        self.snapshot_of(&self.state())
    }

    /// The snapshot of a state that this reader or another of the same standby picked up.
    ///
    /// # Errors
    /// [`RecoveryError::NotReady`] if not all running transactions were known then.
    pub fn snapshot_of(&self, state: &ReplayedState) -> Result<TakenSnapshot, RecoveryError> {
        state.ready()?;
        Ok(state.snapshot_when_ready(&self.shared.taking))
    }

    /// `GetSnapshotDataReuse`: the session's `last` snapshot if the profile reuses and no transaction completed since, else a new
    /// one. The reused one is still the state at its own, older, `replay_lsn`: subtransactions that an assignment has removed since
    /// are in it, which changes no answer.
    ///
    /// # Errors
    /// [`RecoveryError::NotReady`] before there can be one.
    pub fn snapshot_or_reuse(&self, last: Option<TakenSnapshot>) -> Result<TakenSnapshot, RecoveryError> {
        let state = self.state();
        match last {
            Some(last) if self.shared.reuse && last.xact_completion_count == state.xact_completion_count => {
                Ok(TakenSnapshot { slots: SlotCount::default(), reused: true, ..last })
            }
            _ => self.snapshot_of(&state),
        }
    }
}
