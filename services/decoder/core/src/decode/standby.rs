//! Lists of running transactions: `standby_decode` of `replication/logical/decode.c`, `SnapBuildProcessRunningXacts`,
//! `SnapBuildSerialize` and `SnapBuildRestore` of `snapbuild.c`.
//!
//! A consistent decoder leaves a file of its snapshot builder at each such record, and at the end of each server's life. From the file
//! that was the newest when the oldest unfinished transaction began, another decoder sees all of that and every later one:
//! so up to there WAL may be forgotten (`LogicalIncreaseRestartDecodingForSlot`).
//!
//! ```text
//!   RUNNING_XACTS ─┬─ not consistent ─┬─ nothing runs ──────────► consistent
//!                  │                  ├─ file at this position ─► restored: consistent
//!                  │                  └─ else ──────────────────► START, BUILDING, FULL …
//!                  └─ consistent ──► file ─► purge ─► restart position ─► abort old
//! ```
//!
//! Invariants: I1 whoever begins at the restart position, with what was given out before now as confirmed, gives out the rest; I2 that
//! position never goes back; I3 a file that is not what was written ends decoding.
//!
//! Differences from PostgreSQL: a restart position counts at once, not when its consumer has confirmed the position where it was found,
//! since the shell stores it together with what was given out; a decoder that must begin with a file refuses to do without, where a
//! server looks for another consistent point and loses what commits before that.

use pg_types::record::{CommitRecord, RunningXactsRecord};
use pg_types::{Lsn, RecordBody, WalRecord, Xid};

use crate::DecodeError;
use crate::decode::Decoder;
use crate::output::OutputSink;
use crate::reorder_buffer::replay::ended_xid;
use crate::snap_build::{SnapBuild, SnapBuildOnDisk, SnapBuildState, SnapshotError, SnapshotFailure};

impl Decoder {
    /// Whether every commit is decoded from here on.
    fn is_consistent(&self) -> bool {
        self.snap_build.state() == SnapBuildState::Consistent
    }

    /// RUNNING_XACTS.
    pub(super) fn running_xacts(
        &mut self,
        record: &WalRecord,
        running: &RunningXactsRecord,
        sink: &mut dyn OutputSink,
    ) -> Result<(), DecodeError> {
        let was_consistent = self.is_consistent();
        let restored = match was_consistent {
            true => self.serialize(record.lsn).map(|()| false)?,
            false if SnapBuild::is_consistent_without_file(running) => false,
            false => self.restore_at(record.lsn, Some(running))?,
        };
        if !restored {
            self.snap_build.running_xacts(record.lsn, running);
        }
        if !was_consistent && self.is_consistent() {
            self.consistent_at = record.end_lsn;
        }
        self.advance_restart_lsn();
        self.abort_old(running.oldest_running_xid, record.lsn, sink)?;
        self.trim_commits();
        Ok(())
    }

    /// `SnapBuildSerializationPoint`: a server has stopped, or a standby was promoted.
    pub(super) fn serialization_point(&mut self, record: &WalRecord) -> Result<(), DecodeError> {
        if self.is_consistent() {
            return self.serialize(record.lsn);
        }
        if self.restore_at(record.lsn, None)? {
            self.consistent_at = record.end_lsn;
        }
        Ok(())
    }

    /// While it is not consistent: notes that a transaction has ended, for [`Decoder::waiting`].
    pub(super) fn note_end(&mut self, record: &WalRecord) {
        if self.is_consistent() {
            return;
        }
        match &record.body {
            RecordBody::Commit(commit) => self.snap_build.ended(ended_xid(commit.prepared_xid, record.xid)),
            RecordBody::Abort(abort) => self.snap_build.ended(ended_xid(abort.prepared_xid, record.xid)),
            _ => {}
        }
    }

    /// `SnapBuildSerialize`.
    fn serialize(&mut self, lsn: Lsn) -> Result<(), DecodeError> {
        let Some(store) = &mut self.snapshots else { return Ok(()) };
        let catchange = match self.rules.names_catalog_changers {
            true => self.reorder_buffer.catalog_changers(),
            false => Vec::new(),
        };
        let bytes = self.snap_build.serialize(catchange).encode(self.config.version);
        if store.write(lsn, &bytes)? {
            self.snap_build.serialized(lsn, bytes.len());
            self.reorder_buffer.restart_point = lsn;
        }
        Ok(())
    }

    /// `SnapBuildRestore`: gives whether there was a file that made it consistent. `running`: the list of the record at hand.
    fn restore_at(&mut self, lsn: Lsn, running: Option<&RunningXactsRecord>) -> Result<bool, DecodeError> {
        let Some(store) = &mut self.snapshots else { return Ok(false) };
        let Some(bytes) = store.read(lsn)? else { return Ok(false) };
        let file = SnapBuildOnDisk::decode(&bytes, self.config.version).map_err(|reason| {
            let (file, failure) = (store.name(lsn), SnapshotFailure::Damaged);
            SnapshotError { action: "restore", file, reason, failure }
        })?;
        let restored = self.snap_build.restore(file, running.filter(|_| !self.rules.names_catalog_changers));
        if restored {
            self.reorder_buffer.restart_point = lsn;
        }
        Ok(restored)
    }

    /// After the first record: whoever must begin with a file has.
    pub(super) fn restored(&mut self, record: &WalRecord) -> Result<(), DecodeError> {
        if !std::mem::take(&mut self.must_restore) {
            return Ok(());
        }
        if self.is_consistent() {
            (self.restart_lsn, self.reorder_buffer.restart_point) = (record.lsn, record.lsn);
            return Ok(());
        }
        let file = self.snapshots.as_ref().map(|store| store.name(record.lsn)).unwrap_or_default();
        let reason = "it is not there, or was not consistent".to_owned();
        Err(SnapshotError { action: "restore", file, reason, failure: SnapshotFailure::Missing }.into())
    }

    /// The end of `SnapBuildProcessRunningXacts`: from where another decoder would see all that is unfinished (I1, I2).
    fn advance_restart_lsn(&mut self) {
        let buffer = &self.reorder_buffer;
        let oldest = buffer.toplevel().map(|at| buffer.get(at).restart_decoding_lsn).min();
        if self.is_consistent() && self.snapshots.is_some() {
            self.restart_lsn = self.restart_lsn.max(oldest.unwrap_or(self.snap_build.last_serialized()));
        }
    }

    /// `SnapBuildXidHasCatalogChanges`, or up to 15 `SnapBuildXidSetCatalogChanges`, of transactions that were not seen from their begin:
    /// whether `xid` of the transaction `top` counts as changing catalogs.
    pub(super) fn is_unseen_changer(&self, xid: Xid, top: Xid, commit: &CommitRecord) -> bool {
        let named = if self.rules.names_catalog_changers { xid } else { top };
        !commit.messages.is_empty() && self.snap_build.is_unseen_changer(named)
    }
}
