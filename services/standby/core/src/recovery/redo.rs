//! The effect of each record (`xact_redo`, `standby_redo`, `xlog_redo`).

use pg_types::record::{CheckpointRecord, ParameterChangeRecord, RecordBody};
use pg_types::{FullXid, Lsn, WalRecord, Xid};

use super::running_xacts::{RunningXacts, Subxids};
use super::{PreparedXact, RecoveryWriter, RestartPoint, StandbyState};
use crate::error::RecoveryError;

impl RecoveryWriter {
    /// Replays a record: first its own xid (R1), then what it says.
    pub(super) fn redo(&mut self, record: &WalRecord) -> Result<(), RecoveryError> {
        let lsn = record.lsn;
        if record.xid.is_valid() {
            self.observe(record.xid, lsn)?;
        }
        match &record.body {
            RecordBody::Commit(commit) => self.finish(finished(record.xid, commit.prepared_xid), &commit.subxids, lsn),
            RecordBody::Abort(abort) => self.finish(finished(record.xid, abort.prepared_xid), &abort.subxids, lsn),
            RecordBody::Prepare(prepare) => {
                self.prepared.insert((record.xid.numeric(), lsn), prepare.subxids.clone());
                Ok(())
            }
            RecordBody::Assignment(assignment) => self.assign(assignment.top_xid, &assignment.subxids, lsn),
            RecordBody::RunningXacts(running) => self.apply_recovery_info(&RunningXacts::from(&**running), lsn),
            RecordBody::Checkpoint(checkpoint) => self.checkpoint(checkpoint, lsn),
            RecordBody::StandbyLocks(locks) => self.acquire_locks(locks, lsn),
            RecordBody::ParameterChange(primary) => self.check_required_settings(primary, lsn),
            _ => Ok(()),
        }
    }

    /// `AdvanceNextFullTransactionIdPastXid` and `RecordKnownAssignedTransactionIds`: `xid` and all before it were assigned; those
    /// not seen yet run from now on.
    fn observe(&mut self, xid: Xid, lsn: Lsn) -> Result<(), RecoveryError> {
        if !xid.is_normal() {
            return Err(RecoveryError::MalformedRecord { lsn, what: "a transaction id below 3" });
        }
        self.advance_next_xid_past(xid);
        if self.newest_seen.precedes(xid) {
            self.newest_seen = xid;
        }
        let latest = self.state.latest_observed_xid;
        if xid.follows(latest) {
            if self.state.standby_state >= StandbyState::SnapshotPending {
                self.kax.add(latest.next(), xid, lsn)?;
            }
            self.state.latest_observed_xid = xid;
        }
        Ok(())
    }

    /// `AdvanceNextFullTransactionIdPastXid`.
    pub(super) fn advance_next_xid_past(&mut self, xid: Xid) {
        let next = self.state.next_xid;
        if xid.follows_or_equals(next.xid()) {
            let new = xid.next();
            let epoch = u64::from(next.epoch()) + u64::from(new.numeric() < next.xid().numeric());
            self.state.next_xid = FullXid(epoch << 32 | u64::from(new.numeric()));
        }
    }

    /// `xact_redo_commit`, `xact_redo_abort`, as far as transaction ids go: observe all, then `ExpireTreeKnownAssignedTransactionIds`.
    fn finish(&mut self, xid: Xid, subxids: &[Xid], lsn: Lsn) -> Result<(), RecoveryError> {
        let newest = latest(xid, subxids);
        self.observe(newest, lsn)?;
        if self.state.standby_state < StandbyState::SnapshotReady {
            for &ended in subxids.iter().chain([&xid]) {
                self.completed.insert(self.full_xid(ended));
            }
        }
        self.forget_prepared(xid);
        self.kax.remove_tree(xid, subxids);
        self.maintain_latest_completed(newest);
        self.state.xact_completion_count += 1;
        self.release_locks(xid, subxids);
        Ok(())
    }

    /// Whether a transaction is prepared (`StandbyTransactionIdIsPrepared`).
    pub(super) fn is_prepared(&self, xid: Xid) -> bool {
        let x = xid.numeric();
        self.prepared.range((x, Lsn(0))..=(x, Lsn(u64::MAX))).next().is_some()
    }

    /// `ProcArrayApplyXidAssignment`: the subtransactions are found through their top from now on.
    fn assign(&mut self, top_xid: Xid, subxids: &[Xid], lsn: Lsn) -> Result<(), RecoveryError> {
        let newest = latest(top_xid, subxids);
        self.observe(newest, lsn)?;
        for &subxid in subxids {
            self.state.subtrans.set_parent(subxid, top_xid, lsn)?;
        }
        if self.state.standby_state == StandbyState::Initialized {
            return Ok(());
        }
        self.kax.remove_tree(Xid::INVALID, subxids);
        if self.state.last_overflowed_xid.precedes(newest) {
            self.state.last_overflowed_xid = newest;
        }
        Ok(())
    }

    /// A checkpoint record met in replay.
    fn checkpoint(&mut self, checkpoint: &CheckpointRecord, lsn: Lsn) -> Result<(), RecoveryError> {
        if !checkpoint.next_xid.xid().is_normal() {
            return Err(RecoveryError::MalformedRecord { lsn, what: "a checkpoint without a next transaction id" });
        }
        if checkpoint.shutdown {
            self.state.next_xid = checkpoint.next_xid;
            self.apply_shutdown_checkpoint(checkpoint, lsn)?;
        } else {
            self.state.next_xid = self.state.next_xid.max(checkpoint.next_xid);
        }
        let before_redo = self.prepared.iter().filter(|((_, prepared_at), _)| *prepared_at < checkpoint.redo);
        let prepared = before_redo.map(|(&(xid, _), subxids)| PreparedXact { xid: Xid(xid), subxids: subxids.clone() });
        self.restart_point = Some(RestartPoint {
            checkpoint_lsn: lsn,
            redo: checkpoint.redo,
            checkpoint: checkpoint.clone(),
            prepared: prepared.collect(),
        });
        Ok(())
    }

    /// A shutdown checkpoint proves that only prepared transactions are left: as good as a running-transactions record. Their
    /// subtransactions count as found through their tops.
    pub(super) fn apply_shutdown_checkpoint(&mut self, checkpoint: &CheckpointRecord, lsn: Lsn) -> Result<(), RecoveryError> {
        let next_xid = checkpoint.next_xid.xid();
        for (&(xid, _), subxids) in &self.prepared {
            for &subxid in subxids {
                self.state.subtrans.set_parent(subxid, Xid(xid), lsn)?;
            }
        }
        let xids: Vec<Xid> = self.prepared.keys().map(|&(xid, _)| Xid(xid)).collect();
        let oldest = xids.iter().copied().fold(next_xid, |oldest, xid| if xid.precedes(oldest) { xid } else { oldest });
        let running = RunningXacts {
            tops: &xids,
            subs: &[],
            subxids: if self.profile.shutdown_start_overflows { Subxids::InSubtrans } else { Subxids::InArray },
            next_xid,
            oldest_running_xid: oldest,
            latest_completed_xid: next_xid.prev(),
        };
        self.apply_recovery_info(&running, lsn)
    }

    /// `CheckRequiredParameterValues`.
    fn check_required_settings(&self, primary: &ParameterChangeRecord, lsn: Lsn) -> Result<(), RecoveryError> {
        let ours = &self.settings;
        for (setting, theirs, standby) in [
            ("max_connections", primary.max_connections, ours.max_connections),
            ("max_worker_processes", primary.max_worker_processes, ours.max_worker_processes),
            ("max_wal_senders", primary.max_wal_senders, ours.max_wal_senders),
            ("max_prepared_transactions", primary.max_prepared_xacts, ours.max_prepared_transactions),
        ] {
            let what = "a setting below zero";
            let primary = u32::try_from(theirs).map_err(|_| RecoveryError::MalformedRecord { lsn, what })?;
            if primary > standby {
                return Err(RecoveryError::InsufficientSetting { lsn, setting, primary, standby });
            }
        }
        Ok(())
    }

    /// `MaintainLatestCompletedXidRecovery`.
    pub(super) fn maintain_latest_completed(&mut self, xid: Xid) {
        let current = self.state.latest_completed_xid;
        if !current.is_valid() || current.precedes(xid) {
            self.state.latest_completed_xid = xid;
        }
    }

    /// The 64-bit form of an id at most 2^31 from the next one (`FullTransactionIdFromAllowableAt`).
    pub(super) fn full_xid(&self, xid: Xid) -> FullXid {
        let next = self.state.next_xid;
        let before = u64::from(xid.numeric() > next.xid().numeric());
        FullXid(u64::from(next.epoch()).saturating_sub(before) << 32 | u64::from(xid.numeric()))
    }

    /// Ends the prepared state of a transaction, if it was prepared.
    fn forget_prepared(&mut self, xid: Xid) {
        let x = xid.numeric();
        while let Some((&entry, _)) = self.prepared.range((x, Lsn(0))..=(x, Lsn(u64::MAX))).next() {
            self.prepared.remove(&entry);
        }
    }
}

/// Whose end it is: the prepared transaction's, or that of the record's own.
fn finished(record_xid: Xid, prepared_xid: Xid) -> Xid {
    if prepared_xid.is_valid() { prepared_xid } else { record_xid }
}

/// `TransactionIdLatest`: the newest of a transaction and its subtransactions.
fn latest(xid: Xid, subxids: &[Xid]) -> Xid {
    subxids.iter().copied().fold(xid, |newest, sub| if sub.follows(newest) { sub } else { newest })
}
