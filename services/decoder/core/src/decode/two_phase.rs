//! Prepared transactions: `DecodePrepare` of `replication/logical/decode.c`, `ReorderBufferPrepare` and `ReorderBufferFinishPrepared`
//! of `reorderbuffer.c`.
//!
//! A consumer with `two_phase` gets a transaction when it is prepared, and later only how it ended. What was prepared before the
//! slot had `two_phase`, or before the decoder was consistent, is given out with its PREPARE when it commits; what had been given
//! out before a restart is not given out again.
//!
//! ```text
//!   PREPARE ─┬─ consistent, not confirmed ──► begin, changes, prepare ─────────────────────► COMMIT PREPARED ─► commit_prepared
//!            └─ before that: remembered ─► COMMIT PREPARED, prepared before two_phase_at ─► begin, changes, prepare, commit_prepared
//! ```

use pg_types::record::{AbortRecord, PrepareRecord};
use pg_types::{Lsn, WalRecord, Work};

use crate::DecodeError;
use crate::decode::Decoder;
use crate::decode::xact::Ending;
use crate::output::{Origin, OutputSink, PreparedEnd};
use crate::reorder_buffer::txn::Prepared;
use crate::sampling::Function;
use crate::snap_build::SnapBuildState;

impl Decoder {
    /// `FilterPrepare`, the other way round: whether prepared transactions of this name are given out at PREPARE.
    pub(super) fn decodes_at_prepare(&self, gid: &[u8]) -> bool {
        self.rules.before_commit
            && self.config.two_phase.as_ref().is_some_and(|two_phase| {
                let except = two_phase.except.as_deref().filter(|text| !text.is_empty());
                !except.is_some_and(|text| gid.windows(text.len()).any(|part| part == text))
            })
    }

    /// What was prepared before is given out at its commit: what the settings say, or the point where this decoder became consistent if
    /// that is later. Whoever resumes keeps it in [`crate::TwoPhase::at`].
    #[must_use]
    pub fn two_phase_at(&self) -> Lsn {
        self.config.two_phase.as_ref().map_or(Lsn::INVALID, |two_phase| two_phase.at).max(self.consistent_at)
    }

    /// `DecodePrepare`.
    pub(super) fn prepare(
        &mut self,
        record: &WalRecord,
        prepare: &PrepareRecord,
        sink: &mut dyn OutputSink,
    ) -> Result<(), DecodeError> {
        self.check(record, &prepare.messages)?;
        if !self.decodes_at_prepare(&prepare.gid) {
            return self.heap(record, sink);
        }
        let Some(at) = self.reorder_buffer.find(record.xid) else { return Ok(()) };
        let time = prepare.origin.map_or(prepare.time, |(_, at_origin)| at_origin);
        let (lsn, end_lsn) = (record.lsn, record.end_lsn);
        self.reorder_buffer.get_mut(at).prepared = Some(Prepared { lsn, end_lsn, time });
        if self.snap_build.state() < SnapBuildState::Consistent {
            return Ok(());
        }
        let other_database = prepare.db.is_valid() && prepare.db != self.config.database;
        if self.snap_build.skips(lsn) || other_database || self.filter_by_origin(record.origin) {
            // `ReorderBufferSkipPrepare`, `ReorderBufferInvalidate`
            let txn = self.reorder_buffer.get(at);
            if txn.has_base_snapshot() {
                self.replayer.caches.execute_all(&txn.messages);
            }
            return Ok(());
        }
        for sub in &prepare.subxids {
            self.reorder_buffer.commit_child(record.xid, *sub, lsn);
        }
        let (before, noted) = (self.work(), self.reorder_buffer.memory.noted);
        let PrepareRecord { gid, subxids, messages, commit_locators: dropped, .. } = prepare;
        let origin = Origin::of(record.origin, prepare.origin);
        self.give_out_prepared(at, Ending { lsn, end_lsn, time, gid, subxids, messages, dropped, origin }, before, noted, sink)
    }

    /// `ReorderBufferPrepare`: gives a prepared transaction out and keeps what its end needs.
    fn give_out_prepared(
        &mut self,
        at: u32,
        ending: Ending<'_>,
        before: Work,
        noted: Work,
        sink: &mut dyn OutputSink,
    ) -> Result<(), DecodeError> {
        if !self.reorder_buffer.get(at).has_base_snapshot() {
            return Ok(());
        }
        let newest = self.replayer.commits.newest();
        let mut lent = self.reorder_buffer.lend(at);
        let streamed = lent.tree[0].streamed();
        let mut done = self.replay(ending, &mut lent.tree, newest, sink);
        if done.is_ok() {
            self.sum_up_work(&mut lent.tree, before, noted);
            let outer = self.replayer.caches.marker.enter(Function::OutputPlugin);
            match streamed {
                true => sink.stream_prepare(&self.replayer.buffers.out),
                false => sink.prepare(&self.replayer.buffers.out),
            }
            self.replayer.caches.marker.leave(outer);
        }
        for txn in &mut lent.tree {
            done = done.and(self.reorder_buffer.memory.forget(txn).map_err(DecodeError::from));
        }
        lent.tree[0].total_size = 0;
        // `ReorderBufferTruncateTXN` of a prepared one; its end needs them no more.
        lent.tree[0].tuple_cids = Vec::new();
        self.reorder_buffer.take_back(lent);
        done
    }

    /// `ReorderBufferFinishPrepared` of a commit.
    pub(super) fn commit_prepared(
        &mut self,
        at: u32,
        ending: Ending<'_>,
        before: Work,
        noted: Work,
        sink: &mut dyn OutputSink,
    ) -> Result<(), DecodeError> {
        let two_phase_at = self.two_phase_at();
        let late = |prepared: &Prepared| prepared.lsn < two_phase_at;
        if let Some(Prepared { lsn, end_lsn, time }) = self.reorder_buffer.get(at).prepared.filter(late) {
            self.give_out_prepared(at, Ending { lsn, end_lsn, time, ..ending }, before, noted, sink)?;
        }
        self.finish_prepared(at, ending, sink, |sink, end| sink.commit_prepared(end))
    }

    /// `ReorderBufferFinishPrepared` of a rollback.
    pub(super) fn rollback_prepared(
        &mut self,
        record: &WalRecord,
        abort: &AbortRecord,
        sink: &mut dyn OutputSink,
    ) -> Result<(), DecodeError> {
        let Some(at) = self.reorder_buffer.find(abort.prepared_xid) else { return Ok(()) };
        let ending = Ending {
            lsn: record.lsn,
            end_lsn: record.end_lsn,
            time: abort.origin.map_or(abort.time, |(_, at_origin)| at_origin),
            gid: &abort.gid,
            subxids: &abort.subxids,
            messages: &[],
            dropped: &[],
            origin: Origin::of(record.origin, abort.origin),
        };
        self.finish_prepared(at, ending, sink, |sink, end| sink.rollback_prepared(end))
    }

    /// Tells the end, drops what the transaction's messages name, and forgets it.
    fn finish_prepared(
        &mut self,
        at: u32,
        ending: Ending<'_>,
        sink: &mut dyn OutputSink,
        tell: impl FnOnce(&mut dyn OutputSink, &PreparedEnd),
    ) -> Result<(), DecodeError> {
        let txn = self.reorder_buffer.get(at);
        let prepared = txn.prepared.unwrap_or_default();
        let end = PreparedEnd {
            xid: txn.xid,
            gid: ending.gid.to_vec(),
            lsn: ending.lsn,
            end_lsn: ending.end_lsn,
            time: ending.time,
            prepare_end_lsn: prepared.end_lsn,
            prepare_time: prepared.time,
            first_lsn: txn.first_lsn,
            subxids: ending.subxids.to_vec(),
            origin: ending.origin,
        };
        tell(sink, &end);
        self.replayer.caches.execute_all(&txn.messages);
        self.reorder_buffer.abort(end.xid, &mut self.tree)?;
        self.trim_commits();
        Ok(())
    }
}
