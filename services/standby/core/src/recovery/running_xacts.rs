//! Running-transactions records (`ProcArrayApplyRecoveryInfo`).

use pg_types::record::RunningXactsRecord;
use pg_types::{Lsn, Xid};

use super::{RecoveryWriter, StandbyState};
use crate::error::RecoveryError;

/// Where the subtransactions of the running transactions are (`subxids_array_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Subxids {
    /// All in the record.
    InArray,
    /// Some are nowhere (`subxid_overflow`).
    Missing,
    /// To be found through their tops: a start at a shutdown checkpoint.
    InSubtrans,
}

/// `RunningTransactionsData`.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunningXacts<'a> {
    /// Running top-level transactions.
    pub(super) tops: &'a [Xid],
    /// Running subtransactions.
    pub(super) subs: &'a [Xid],
    /// Are these all?
    pub(super) subxids: Subxids,
    /// Next id.
    pub(super) next_xid: Xid,
    /// Oldest running id.
    pub(super) oldest_running_xid: Xid,
    /// Newest completed id.
    pub(super) latest_completed_xid: Xid,
}

impl<'a> From<&'a RunningXactsRecord> for RunningXacts<'a> {
    fn from(r: &'a RunningXactsRecord) -> Self {
        Self {
            tops: &r.xids,
            subs: &r.subxids,
            subxids: if r.subxid_overflow { Subxids::Missing } else { Subxids::InArray },
            next_xid: r.next_xid,
            oldest_running_xid: r.oldest_running_xid,
            latest_completed_xid: r.latest_completed_xid,
        }
    }
}

impl RecoveryWriter {
    /// `ProcArrayApplyRecoveryInfo`: prunes, then does what the state asks for.
    pub(super) fn apply_recovery_info(&mut self, running: &RunningXacts<'_>, lsn: Lsn) -> Result<(), RecoveryError> {
        if let Some(what) = self.contradiction(running) {
            return Err(RecoveryError::MalformedRecord { lsn, what });
        }
        self.expire_old(running.oldest_running_xid);
        if self.profile.list_moves_next_xid {
            self.advance_next_xid_past(running.next_xid.prev());
        }
        match self.state.standby_state {
            StandbyState::SnapshotReady => return Ok(()),
            StandbyState::SnapshotPending if running.subxids == Subxids::Missing && !running.tops.is_empty() => {
                if self.state.pending_xmin.precedes(running.oldest_running_xid) {
                    self.become_ready();
                }
                return Ok(());
            }
            StandbyState::SnapshotPending => {
                self.kax.reset();
                self.state.standby_state = StandbyState::Initialized;
            }
            StandbyState::Initialized => {}
        }
        self.load(running, lsn)
    }

    /// What a list says against itself or against the records before it. The primary draws it up under the lock that gives ids out,
    /// and logs it before it lets go: no id from the next one on can have been seen.
    fn contradiction(&self, running: &RunningXacts<'_>) -> Option<&'static str> {
        let RunningXacts { tops, subs, next_xid: next, oldest_running_xid: oldest, latest_completed_xid: completed, .. } =
            *running;
        if ![next, oldest, completed].into_iter().all(Xid::is_normal) {
            return Some("a list of running transactions with an invalid next, oldest or latest completed id");
        }
        if oldest.follows(next) || completed.follows_or_equals(next) {
            return Some("a list of running transactions whose oldest or latest completed id is not before its next id");
        }
        if self.newest_seen.follows_or_equals(next) {
            return Some("a list of running transactions whose next id was seen before");
        }
        let listed = |xid: &Xid| xid.is_normal() && xid.follows_or_equals(oldest) && xid.precedes(next);
        let all = tops.iter().chain(subs).all(listed);
        (!all).then_some("a running transaction that is not between the oldest and the next transaction id")
    }

    /// `ExpireOldKnownAssignedTransactionIds`: nothing older than `oldest` runs.
    fn expire_old(&mut self, oldest: Xid) {
        if self.profile.prune_completes {
            self.maintain_latest_completed(oldest.prev());
            self.state.xact_completion_count += 1;
        }
        if self.state.last_overflowed_xid.precedes(oldest) {
            self.state.last_overflowed_xid = Xid::INVALID;
        }
        self.release_old_locks(oldest);
        let prepared = &self.prepared;
        self.kax.prune(oldest, |xid| {
            let x = xid.numeric();
            prepared.range((x, Lsn(0))..=(x, Lsn(u64::MAX))).next().is_some()
        });
        self.state.subtrans.truncate(self.oldest_needed(oldest));
        if self.state.standby_state < StandbyState::SnapshotReady {
            self.completed.forget_before(self.full_xid(oldest));
        }
    }

    /// The oldest xid whose parent somebody could ask for: the oldest running one, prepared ones included.
    fn oldest_needed(&self, oldest: Xid) -> Xid {
        self.prepared
            .keys()
            .map(|&(xid, _)| Xid(xid))
            .fold(oldest, |oldest, xid| if xid.precedes(oldest) { xid } else { oldest })
    }

    /// Takes the list over: without those that have ended meanwhile, sorted, each once.
    fn load(&mut self, running: &RunningXacts<'_>, lsn: Lsn) -> Result<(), RecoveryError> {
        let listed = running.tops.iter().chain(running.subs).copied();
        let mut xids: Vec<Xid> = listed.filter(|&xid| !self.completed.contains(self.full_xid(xid))).collect();
        // In the circular order, which is one because all are at most 2^31 before the next id.
        xids.sort_unstable_by_key(|xid| std::cmp::Reverse(running.next_xid.numeric().wrapping_sub(xid.numeric())));
        xids.dedup();
        for &xid in &xids {
            self.kax.add(xid, xid, lsn)?;
        }
        if running.next_xid.prev().follows(self.state.latest_observed_xid) {
            self.state.latest_observed_xid = running.next_xid.prev();
        }
        match running.subxids {
            Subxids::Missing => {
                self.state.standby_state = StandbyState::SnapshotPending;
                self.state.pending_xmin = self.state.latest_observed_xid;
                self.state.last_overflowed_xid = self.state.latest_observed_xid;
            }
            Subxids::InArray => {
                self.become_ready();
                self.state.pending_xmin = Xid::INVALID;
                self.state.last_overflowed_xid = Xid::INVALID;
            }
            Subxids::InSubtrans => {
                self.become_ready();
                self.state.pending_xmin = Xid::INVALID;
                self.state.last_overflowed_xid = self.state.latest_observed_xid;
            }
        }
        self.maintain_latest_completed(running.latest_completed_xid);
        self.advance_next_xid_past(running.next_xid.prev());
        Ok(())
    }

    /// All running transactions are known.
    fn become_ready(&mut self) {
        self.state.standby_state = StandbyState::SnapshotReady;
        self.completed.clear();
    }
}
