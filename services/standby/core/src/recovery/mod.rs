//! Replay as far as snapshots depend on it (`access/transam/xlogrecovery.c`, `xact.c`, `standby.c`, `procarray.c`).
//!
//! A standby that starts at a checkpoint does not know which transactions run. It waits for a running-transactions record; if that
//! record lacks subtransactions, until everything that it lacks has ended. From then on the ids in the records themselves keep the
//! list right.
//!
//! ```text
//!                       running-xacts, complete ┌──────────────────────────────┐
//!   ┌─────────────┐  or a shutdown checkpoint   ▼                              │
//!   │ INITIALIZED ├──────────────────────► SNAPSHOT_READY                      │
//!   └──────┬──────┘                             ▲   a later complete or empty  │
//!          │ running-xacts,        oldest running xid > pending xmin           │ one, after a reset
//!          │ overflowed                         │                              │
//!          └─────────────────────────► SNAPSHOT_PENDING ───────────────────────┘
//! ```
//!
//! **Invariants**
//! - R1 every id in a record, and every one below it, is observed before the record's effect: nothing ends that did not run.
//! - R2 one [`ReplayedState`] is published per record, after its whole effect: commits are visible in WAL order, each at once with
//!   its subtransactions.
//! - R3 `next_xid`, `latest_completed_xid` and `latest_observed_xid` only move forward while replay goes on.
//!
//! | operation | cost |
//! |---|---|
//! | record without an xid, or with a known one | O(1) |
//! | end of a transaction with k subtransactions | O((k + 1) log S) |
//! | running-transactions record | O(S), before READY also O(n log n) |
//!
//! **Differences from PostgreSQL.** No commit log from before the start ([`crate::clog`]). Prepared transactions are known from the
//! records replayed or from a [`RestartPoint`], not from files. The consistency point of a base backup is the caller's concern.
//! A primary's setting above the standby's is an error at once (13 stops too; 14 and later pause first). A list of running
//! transactions that contradicts itself or the records before it is refused; PostgreSQL takes it as it is.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use pg_types::record::CheckpointRecord;
use pg_types::{FullXid, Lsn, WalRecord, Work, Xid};

use crate::clog::CompletedXids;
use crate::error::RecoveryError;
use crate::known_assigned_xids::compress::CompressCall;
use crate::known_assigned_xids::{KnownAssignedView, KnownAssignedXids};
use crate::profile::StandbyProfile;
use crate::settings::{ArraySizes, StandbySettings};
use crate::snapshot::{RecoveryReader, ReplayedState, Shared, SnapshotMeter, Taking};
use crate::subtrans::Subtrans;
use crate::sync::{Mutex, Published};

mod conflict;
mod redo;
mod running_xacts;
mod send_shared;

use conflict::Conflicts;
pub use conflict::{ConflictCounts, HotStandbyFeedback, ReceiptClock, Resolution, StandbyDelays};

#[cfg(test)]
mod conflict_tests;
#[cfg(test)]
mod histories;
#[cfg(test)]
mod tests;

/// `HotStandbyState`. The number is PostgreSQL's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StandbyState {
    /// `STANDBY_INITIALIZED` (1): started, no running transactions known yet. Shown as `initialized`.
    Initialized = 1,
    /// `STANDBY_SNAPSHOT_PENDING` (2): known but for some subtransactions. Shown as `pending`.
    SnapshotPending = 2,
    /// `STANDBY_SNAPSHOT_READY` (3): snapshots can be taken. Shown as `ready`.
    SnapshotReady = 3,
}

impl fmt::Display for StandbyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Initialized => "initialized",
            Self::SnapshotPending => "pending",
            Self::SnapshotReady => "ready",
        })
    }
}

/// Where replay could start again: the last checkpoint replayed. Keep it on disk, and WAL from its redo position on.
#[derive(Clone, Debug, PartialEq)]
pub struct RestartPoint {
    /// The checkpoint's own position.
    pub checkpoint_lsn: Lsn,
    /// First record to replay again.
    pub redo: Lsn,
    /// The checkpoint.
    pub checkpoint: CheckpointRecord,
    /// Transactions prepared before the redo position and not finished when the checkpoint was replayed (the files that a
    /// restart point leaves in `pg_twophase`).
    pub prepared: Vec<PreparedXact>,
}

/// A prepared transaction, as far as a standby needs it (`TwoPhaseFileHeader`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedXact {
    /// Its xid.
    pub xid: Xid,
    /// Its subtransactions, which a later shutdown checkpoint of the primary does not list.
    pub subxids: Vec<Xid>,
}

/// Replays records. The one writer; hand out [`RecoveryReader`]s.
#[derive(Debug)]
pub struct RecoveryWriter {
    /// The known-assigned xids.
    kax: KnownAssignedXids,
    /// The state to be published at the end of the record. Its view is a copy, taken then.
    state: ReplayedState,
    /// Prepared transactions: xid and position of the record that prepared it, with the subtransactions.
    prepared: BTreeMap<(u32, Lsn), Vec<Xid>>,
    /// Newest xid that a record showed since the start.
    newest_seen: Xid,
    /// Transactions seen to end since the start; kept until READY.
    completed: CompletedXids,
    /// Conflicts with readers, and exclusive locks.
    conflicts: Conflicts,
    /// The last checkpoint replayed.
    restart_point: Option<RestartPoint>,
    /// The settings, to be compared with the primary's.
    settings: StandbySettings,
    /// What they come to.
    sizes: ArraySizes,
    /// The profile.
    profile: StandbyProfile,
    /// Started, and no error since.
    running: bool,
    /// What readers see.
    shared: Arc<Shared>,
    /// A published state that nobody reads any more, to be filled again.
    spare: Option<Arc<ReplayedState>>,
}

impl RecoveryWriter {
    /// A standby that has not started.
    ///
    /// # Errors
    /// [`RecoveryError::InvalidSettings`] above PostgreSQL's limits.
    pub fn new(settings: &StandbySettings, profile: StandbyProfile) -> Result<Self, RecoveryError> {
        Self::metered(settings, profile, None)
    }

    /// The same; `meter` measures what its readers take.
    ///
    /// # Errors
    /// As [`RecoveryWriter::new`].
    pub fn metered(
        settings: &StandbySettings,
        profile: StandbyProfile,
        meter: Option<Arc<dyn SnapshotMeter>>,
    ) -> Result<Self, RecoveryError> {
        let sizes = settings.sizes(&profile)?;
        let state = initial_state();
        let published = Published::new(Arc::new(state.clone()));
        Ok(Self {
            kax: KnownAssignedXids::new(sizes.max_known_assigned_xids, sizes.max_procs, profile.layout),
            state,
            prepared: BTreeMap::new(),
            newest_seen: Xid::INVALID,
            completed: CompletedXids::default(),
            conflicts: Conflicts::default(),
            restart_point: None,
            settings: *settings,
            sizes,
            profile,
            running: false,
            shared: Arc::new(Shared {
                state: published,
                taking: Taking { scan: profile.scan, meter },
                reuse: profile.reuse_snapshot,
                queue: Mutex::default(),
                held: Mutex::default(),
                subtrans_buffers: Mutex::new(profile.subtrans.with_setting(settings.subtransaction_buffers)),
                max_sessions: sizes.max_backends,
            }),
            spare: None,
        })
    }

    /// Starts, or starts again, at a checkpoint whose redo position is `redo`; the next record must be the first from there on.
    /// An online checkpoint gives state INITIALIZED; a shutdown checkpoint says that nothing runs, so READY at once.
    ///
    /// Readers see the new state as they saw the old: between two records.
    ///
    /// # Errors
    /// [`RecoveryError::InvalidCheckpoint`] if its next xid is none.
    pub fn start_at_checkpoint(&mut self, checkpoint: &CheckpointRecord, redo: Lsn) -> Result<(), RecoveryError> {
        self.start(checkpoint, redo, &[])
    }

    /// Starts again where [`RecoveryWriter::restart_point`] said, with the transactions that were prepared then.
    ///
    /// # Errors
    /// As [`RecoveryWriter::start_at_checkpoint`].
    pub fn start_at_restart_point(&mut self, point: &RestartPoint) -> Result<(), RecoveryError> {
        self.start(&point.checkpoint, point.redo, &point.prepared)
    }

    /// Both starts (`StartupXLOG`, `ProcArrayInitRecovery`).
    fn start(&mut self, checkpoint: &CheckpointRecord, redo: Lsn, prepared: &[PreparedXact]) -> Result<(), RecoveryError> {
        self.running = false;
        if !checkpoint.next_xid.xid().is_normal() {
            return Err(RecoveryError::InvalidCheckpoint { redo });
        }
        let (max, max_procs) = (self.sizes.max_known_assigned_xids, self.sizes.max_procs);
        self.kax = KnownAssignedXids::new(max, max_procs, self.profile.layout);
        self.state = ReplayedState {
            replay_lsn: redo,
            next_xid: checkpoint.next_xid,
            latest_observed_xid: checkpoint.next_xid.xid().prev(),
            ..initial_state()
        };
        self.prepared = prepared.iter().map(|p| ((p.xid.numeric(), Lsn::INVALID), p.subxids.clone())).collect();
        self.newest_seen = Xid::INVALID;
        self.completed.clear();
        self.restart_point = None;
        self.release_all_locks();
        if checkpoint.shutdown {
            self.apply_shutdown_checkpoint(checkpoint, redo)?;
        }
        self.running = true;
        self.publish();
        self.shared.queue().reset_all();
        Ok(())
    }

    /// Replays one record and publishes the state after it.
    ///
    /// # Errors
    /// Readers keep the state before the record, and replay must be started again:
    /// [`RecoveryError::NotStarted`], [`RecoveryError::RecordOutOfOrder`] (these two change nothing),
    /// [`RecoveryError::OutOfOrderXid`], [`RecoveryError::TooManyKnownAssignedXids`], [`RecoveryError::MalformedRecord`],
    /// [`RecoveryError::InsufficientSetting`].
    pub fn apply(&mut self, record: &WalRecord) -> Result<(), RecoveryError> {
        if !self.running {
            return Err(RecoveryError::NotStarted);
        }
        let replay_lsn = self.state.replay_lsn;
        if record.lsn < replay_lsn || record.end_lsn < record.lsn {
            return Err(RecoveryError::RecordOutOfOrder { lsn: record.lsn, replay_lsn });
        }
        self.kax.clear_calls();
        self.cancel_conflicting(record);
        // Stays false if the record fails half done.
        self.running = false;
        self.redo(record)?;
        self.running = true;
        self.state.replay_lsn = record.end_lsn;
        self.publish();
        self.send_shared(&record.body);
        Ok(())
    }

    /// Tells the time without doing anything; compressions remember it. Milliseconds of any clock that does not run backwards.
    pub fn set_now(&mut self, now_ms: u64) {
        self.kax.set_now(now_ms);
    }

    /// `KnownAssignedTransactionIdsIdleMaintenance`: call it when replay waits for WAL, with the time as in
    /// [`RecoveryWriter::set_now`].
    pub fn idle(&mut self, now_ms: u64) {
        self.kax.set_now(now_ms);
        self.kax.clear_calls();
        if self.running && self.state.standby_state >= StandbyState::SnapshotPending {
            self.kax.idle();
            self.publish();
        }
    }

    /// A new reader.
    #[must_use]
    pub fn reader(&self) -> RecoveryReader {
        RecoveryReader { shared: Arc::clone(&self.shared) }
    }

    /// The state after the last record. While replay is stopped on an error, readers have the state before that record.
    #[must_use]
    pub fn state(&self) -> Arc<ReplayedState> {
        self.shared.state.load()
    }

    /// Where replay could start again; none before the first checkpoint.
    #[must_use]
    pub fn restart_point(&self) -> Option<&RestartPoint> {
        self.restart_point.as_ref()
    }

    /// The profile.
    #[must_use]
    pub fn profile(&self) -> StandbyProfile {
        self.profile
    }

    /// What the settings come to.
    #[must_use]
    pub fn sizes(&self) -> ArraySizes {
        self.sizes
    }

    /// The calls of compression by the last record or idle call, with the state each found.
    #[must_use]
    pub fn compress_calls(&self) -> &[CompressCall] {
        self.kax.calls()
    }

    /// `transactionEndsCounter` of the counted rule.
    #[must_use]
    pub fn transaction_ends_counter(&self) -> u32 {
        self.kax.transaction_ends_counter()
    }

    /// Replay's own work since the start: slots that searches looked at. Readers count theirs.
    #[must_use]
    pub fn work(&self) -> Work {
        Work { xid_slots_visited: self.kax.slots_searched(), ..Work::default() }
    }

    /// Bytes of the known-assigned slots in use now.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.kax.view().memory_bytes()
    }

    /// Publishes the state (R2), in the memory of an earlier one if its readers are gone.
    fn publish(&mut self) {
        self.state.known_assigned = self.kax.view();
        let mut next = self.spare.take().unwrap_or_else(|| Arc::new(self.state.clone()));
        match Arc::get_mut(&mut next) {
            Some(unread) => unread.clone_from(&self.state),
            None => next = Arc::new(self.state.clone()),
        }
        self.spare = Some(self.shared.state.swap(next));
    }
}

/// The state before a start.
fn initial_state() -> ReplayedState {
    ReplayedState {
        replay_lsn: Lsn::INVALID,
        standby_state: StandbyState::Initialized,
        next_xid: FullXid(0),
        latest_completed_xid: Xid::INVALID,
        latest_observed_xid: Xid::INVALID,
        last_overflowed_xid: Xid::INVALID,
        pending_xmin: Xid::INVALID,
        xact_completion_count: 1,
        known_assigned: KnownAssignedView::empty(),
        subtrans: Subtrans::default(),
    }
}
