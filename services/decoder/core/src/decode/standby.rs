//! Lists of running transactions: `standby_decode` of `replication/logical/decode.c`, `SnapBuildProcessRunningXacts`,
//! `SnapBuildSerialize` and `SnapBuildRestore` of `snapbuild.c`.
//!
//! A consistent decoder leaves a file of its snapshot builder at each such record, and at the end of each server's life. From the file
//! that was the newest when the oldest unfinished transaction began, another decoder sees all of that and every later one:
//! so up to there WAL may be forgotten (`LogicalIncreaseRestartDecodingForSlot`). Catalog rows that no snapshot of an unfinished or a later
//! transaction sees are not needed either: their `xmin` becomes the slot's `catalog_xmin` (`LogicalIncreaseXminForSlot`).
//!
//! ```text
//!   RUNNING_XACTS ─┬─ not consistent ─┬─ nothing runs ──────────► consistent
//!                  │                  ├─ file at this position ─► restored: consistent
//!                  │                  └─ else ──────────────────► START, BUILDING, FULL …
//!                  └─ consistent ──► file ─► purge ─► restart position, catalog_xmin ─► abort old
//! ```
//!
//! Invariants: I1 whoever begins at the restart position, with what was given out before now as confirmed, gives out the rest; I2 that
//! position and `catalog_xmin` never go back; I3 a file that is not what was written ends decoding.
//!
//! Differences from PostgreSQL: a restart position and a `catalog_xmin` count at once, not when the consumer has confirmed the position where they
//! were found, since the shell stores them together with what was given out; the first `catalog_xmin` is that of the first list, where a
//! server has one from the slot's creation on; a decoder that must begin with a file refuses to do without, where a
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
        let nothing_runs = !was_consistent && SnapBuild::is_consistent_without_file(running);
        let restored = match was_consistent {
            true => self.serialize(record.lsn).map(|()| false)?,
            false if nothing_runs => false,
            false => self.restore_at(record.lsn, Some(running))?,
        };
        if !restored {
            self.snap_build.running_xacts(record.lsn, running);
        }
        if !was_consistent && self.is_consistent() {
            self.consistent_at = record.end_lsn;
        }
        self.advance_restart_lsn();
        self.advance_catalog_xmin(running, restored || nothing_runs);
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

    /// `LogicalIncreaseXminForSlot` of the oldest base snapshot (`ReorderBufferGetOldestXmin`) or, without one, of the list. `made_consistent`:
    /// the builder needs nothing of it but that, where PostgreSQL leaves the xmin as it is.
    fn advance_catalog_xmin(&mut self, running: &RunningXactsRecord, made_consistent: bool) {
        if !self.catalog_xmin.is_valid() {
            // A restored builder knows of an older one.
            let (own, oldest) = (self.snap_build.xmin(), running.oldest_running_xid);
            self.catalog_xmin = if own.is_valid() && own.precedes(oldest) { own } else { oldest };
        }
        if made_consistent || !self.is_consistent() {
            return;
        }
        let buffer = &self.reorder_buffer;
        let transactions = buffer.toplevel().map(|at| buffer.get(at));
        let bases = transactions.filter_map(|txn| txn.base_snapshot_lsn.map(|lsn| (lsn, txn.base_xmin)));
        let xmin = bases.min_by_key(|(lsn, _)| *lsn).map_or(running.oldest_running_xid, |(_, xmin)| xmin);
        if xmin.follows(self.catalog_xmin) {
            self.catalog_xmin = xmin;
        }
    }

    /// `SnapBuildXidHasCatalogChanges`, or up to 15 `SnapBuildXidSetCatalogChanges`, of transactions that were not seen from their begin:
    /// whether `xid` of the transaction `top` counts as changing catalogs.
    pub(super) fn is_unseen_changer(&self, xid: Xid, top: Xid, commit: &CommitRecord) -> bool {
        let named = if self.rules.names_catalog_changers { xid } else { top };
        !commit.messages.is_empty() && self.snap_build.is_unseen_changer(named)
    }
}
