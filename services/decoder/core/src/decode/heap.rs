//! Records of rows: `heap_decode` and `heap2_decode` of `replication/logical/decode.c`.
//!
//! Each row change waits in the reorder buffer, if its transaction is collected and its file is of the decoder's database.

use pg_types::record::{HeapDelete, HeapInsert, HeapMultiInsert, HeapUpdate, NewCidRecord, OldTuple, TruncateRecord};
use pg_types::{Lsn, RecordBody, RelFileLocator, WalRecord, Xid};

use crate::DecodeError;
use crate::decode::Decoder;
use crate::footprint::Footprint;
use crate::output::OutputSink;
use crate::profile::Distribution;
use crate::reorder_buffer::change::{ChangeKind, RowKind};
use crate::reorder_buffer::change_size;
use crate::reorder_buffer::distribution::catch_up;
use crate::reorder_buffer::tuple_cids::TupleCid;
use crate::sampling::Function;

/// Whose change a record is.
#[derive(Clone, Copy)]
pub(super) struct Of {
    /// Its transaction.
    pub(super) xid: Xid,
    /// That one's slot.
    pub(super) at: u32,
    /// Where the record starts.
    pub(super) lsn: Lsn,
    /// Where it came from, 0 from here.
    pub(super) origin: u16,
}

impl Decoder {
    /// `heap_decode` and `heap2_decode`; other resource managers only say that their transaction exists.
    pub(super) fn heap(&mut self, record: &WalRecord, sink: &mut dyn OutputSink) -> Result<(), DecodeError> {
        if !record.xid.is_valid() {
            return Ok(());
        }
        let at = self.reorder_buffer.find_or_begin(record.xid, record.lsn);
        let of = Of { xid: record.xid, at, lsn: record.lsn, origin: record.origin };
        if self.attributes && Footprint::concerns(&record.body) {
            self.note_footprint(at, &record.body);
        }
        match &record.body {
            RecordBody::Insert(insert) => self.insert(of, insert, sink),
            RecordBody::MultiInsert(insert) => self.multi_insert(of, insert, sink),
            RecordBody::Update(update) => self.update(of, update, sink),
            RecordBody::Delete(delete) => self.delete(of, delete, sink),
            RecordBody::Confirm(place) => {
                self.row(of, place.target, Some((ChangeKind::SpeculativeConfirm, change_size::CHANGE)), sink)
            }
            RecordBody::Truncate(truncate) => self.truncate(of, truncate, sink),
            RecordBody::Inplace(_) if self.rules.inplace_changes_catalog => {
                self.reorder_buffer.set_catalog_changes(at);
                Ok(())
            }
            RecordBody::NewCid(new_cid) => self.new_cid(of, new_cid, sink),
            _ => Ok(()),
        }
    }

    /// `DecodeInsert`.
    fn insert(&mut self, of: Of, insert: &HeapInsert, sink: &mut dyn OutputSink) -> Result<(), DecodeError> {
        let kind = match (insert.speculative, insert.toast) {
            (true, _) => RowKind::InsertSpeculative,
            (false, true) => RowKind::InsertToast,
            (false, false) => RowKind::Insert,
        };
        if insert.logical {
            self.note_rows(of.at, insert.target.rel, 1);
        }
        let row = ChangeKind::rows(kind, 1, insert.target);
        self.row(of, insert.target, insert.logical.then(|| (row, change_size::insert(insert))), sink)
    }

    /// `DecodeMultiInsert`.
    fn multi_insert(&mut self, of: Of, insert: &HeapMultiInsert, sink: &mut dyn OutputSink) -> Result<(), DecodeError> {
        let (mut rows, mut bytes) = (insert.ntuples, change_size::multi_insert(insert));
        if !insert.logical || rows == 0 {
            return self.row(of, insert.target, None, sink);
        }
        if !self.may_queue(of, insert.target, sink)? {
            return Ok(());
        }
        self.note_rows(of.at, insert.target.rel, rows);
        // PostgreSQL looks at the limit after each row.
        while let Some((fit, fit_bytes)) = self.reorder_buffer.rows_that_fit(of.at, rows, bytes) {
            // Rows that may be given out now must tell their relation; others are shown with the rest.
            let before = match self.config.streaming {
                true => ChangeKind::rows(RowKind::InsertOfMany, fit, insert.target),
                false => ChangeKind::RowsBefore(fit),
            };
            self.reorder_buffer.queue(of.at, of.lsn, before, fit_bytes, &mut self.replayer.room(sink))?;
            (rows, bytes) = (rows - fit, bytes - fit_bytes);
        }
        let kind = match (insert.toast, insert.last_in_multi) {
            (true, _) => RowKind::InsertToast,
            (false, true) => RowKind::Insert,
            (false, false) => RowKind::InsertOfMany,
        };
        let rows = ChangeKind::rows(kind, rows, insert.target);
        Ok(self.reorder_buffer.queue(of.at, of.lsn, rows, bytes, &mut self.replayer.room(sink))?)
    }

    /// `DecodeUpdate`.
    fn update(&mut self, of: Of, update: &HeapUpdate, sink: &mut dyn OutputSink) -> Result<(), DecodeError> {
        let kind = if update.logical { RowKind::Update } else { RowKind::UpdateWithoutRow };
        let row = ChangeKind::rows(kind, 1, update.target);
        self.row(of, update.target, Some((row, change_size::update(update))), sink)
    }

    /// `DecodeDelete`.
    fn delete(&mut self, of: Of, delete: &HeapDelete, sink: &mut dyn OutputSink) -> Result<(), DecodeError> {
        let kind = match delete.old {
            OldTuple::Key | OldTuple::Full => RowKind::Delete,
            OldTuple::None if self.reorder_buffer.get(of.at).new_cid_file == delete.target => RowKind::DeleteOfCatalog,
            OldTuple::None => RowKind::DeleteWithoutRow,
        };
        let change =
            if delete.super_deletion { ChangeKind::SpeculativeAbort } else { ChangeKind::rows(kind, 1, delete.target) };
        let change = (!delete.no_logical).then(|| (change, change_size::delete(delete.old_len)));
        self.row(of, delete.target, change, sink)
    }

    /// `DecodeTruncate`.
    fn truncate(&mut self, of: Of, truncate: &TruncateRecord, sink: &mut dyn OutputSink) -> Result<(), DecodeError> {
        let file = RelFileLocator { db: truncate.db, ..RelFileLocator::default() };
        if self.may_queue(of, file, sink)? {
            self.reorder_buffer.queue_truncate(of.at, of.lsn, truncate, &mut self.replayer.room(sink))?;
        }
        Ok(())
    }

    /// `ReorderBufferQueueChange` of a change and the bytes that it counts for, if there is one to queue.
    fn row(
        &mut self,
        of: Of,
        file: RelFileLocator,
        change: Option<(ChangeKind, u64)>,
        sink: &mut dyn OutputSink,
    ) -> Result<(), DecodeError> {
        let Some((kind, bytes)) = change else {
            self.process_change(of);
            return Ok(());
        };
        if self.may_queue(of, file, sink)? {
            self.reorder_buffer.queue(of.at, of.lsn, kind, bytes, &mut self.replayer.room(sink))?;
        }
        Ok(())
    }

    /// `SnapBuildProcessChange`; gives whether changes of this transaction are collected.
    fn process_change(&mut self, of: Of) -> bool {
        let collects = self.snap_build.collects(of.xid);
        if collects {
            self.set_base_snapshot(of.at, of.lsn);
        }
        collects
    }

    /// The same before a change of `file`, which is queued if the file is of this database and its origin is wanted; on demand, the
    /// transaction catches up first.
    fn may_queue(&mut self, of: Of, file: RelFileLocator, sink: &mut dyn OutputSink) -> Result<bool, DecodeError> {
        if !self.process_change(of) || file.db != self.config.database {
            return Ok(false);
        }
        if self.filter_by_origin(of.origin) {
            return Ok(false);
        }
        if self.config.profile.distribution == Distribution::OnDemand {
            self.build_snapshot();
            let (newest, bytes) = (self.replayer.commits.newest(), self.snapshot_bytes());
            catch_up(&mut self.reorder_buffer, newest, of.at, of.lsn, bytes, &mut self.replayer.room(sink))?;
        }
        Ok(true)
    }

    /// Gives the transaction's top-level one a base snapshot if it has none (`ReorderBufferSetBaseSnapshot`).
    pub(super) fn set_base_snapshot(&mut self, at: u32, lsn: Lsn) {
        let top = self.reorder_buffer.top_of(at);
        if self.reorder_buffer.get(top).has_base_snapshot() {
            return;
        }
        self.build_snapshot();
        let (newest, xmin) = (self.replayer.commits.newest(), self.snap_build.base_xmin());
        let txn = self.reorder_buffer.get_mut(top);
        (txn.base_snapshot_lsn, txn.base_xmin) = (Some(lsn), xmin);
        (txn.base_commit, txn.first_commit, txn.caught_up) = (newest, newest, newest);
    }

    /// Builds the snapshot of now, unless there is one (`SnapBuildBuildSnapshot`).
    pub(super) fn build_snapshot(&mut self) {
        if self.snap_build.must_build() {
            let marker = &self.replayer.caches.marker;
            let outer = marker.enter(Function::SnapBuildBuildSnapshot);
            self.snap_build.build();
            marker.leave(outer);
        }
    }

    /// `SnapBuildProcessNewCid`.
    fn new_cid(&mut self, of: Of, new_cid: &NewCidRecord, sink: &mut dyn OutputSink) -> Result<(), DecodeError> {
        self.reorder_buffer.set_catalog_changes(of.at);
        let valid = [new_cid.cmin, new_cid.cmax].into_iter().filter(|cid| cid.is_valid());
        let next = valid.map(|cid| cid.0.saturating_add(1)).max().unwrap_or(0);
        self.reorder_buffer.get_mut(of.at).new_cid_file = new_cid.target;
        let top = self.reorder_buffer.top_of(of.at);
        let row = (new_cid.target, new_cid.tid);
        self.reorder_buffer.get_mut(top).tuple_cids.push(TupleCid { row, cmin: new_cid.cmin, cmax: new_cid.cmax });
        let room = &mut self.replayer.room(sink);
        Ok(self.reorder_buffer.queue(of.at, of.lsn, ChangeKind::CommandId(next), change_size::CHANGE, room)?)
    }
}
