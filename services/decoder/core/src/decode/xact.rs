//! Ends of transactions: `DecodeCommit` and `DecodeAbort` of `replication/logical/decode.c`.

use pg_types::record::{AbortRecord, CommitRecord};
use pg_types::{InvalidationMessage, Lsn, RelFileLocator, Timestamp, WalRecord, Work, Xid};

use crate::DecodeError;
use crate::decode::Decoder;
use crate::output::{Origin, OutputSink};
use crate::profile::Distribution;
use crate::reorder_buffer::distribution::{Committing, distribute};
use crate::reorder_buffer::replay::{Replay, ended_xid, forget, has_something};
use crate::reorder_buffer::txn::Txn;
use crate::sampling::Function;

/// What a record says of a transaction's end, or of its PREPARE.
#[derive(Clone, Copy)]
pub(super) struct Ending<'a> {
    /// Where it starts.
    pub(super) lsn: Lsn,
    /// Where it ends.
    pub(super) end_lsn: Lsn,
    /// When; at the origin if that is told.
    pub(super) time: Timestamp,
    /// Name of a prepared transaction.
    pub(super) gid: &'a [u8],
    /// Its subtransactions that count.
    pub(super) subxids: &'a [Xid],
    /// Its messages.
    pub(super) messages: &'a [InvalidationMessage],
    /// Files that its commit drops.
    pub(super) dropped: &'a [RelFileLocator],
    /// Where it came from.
    pub(super) origin: Origin,
}

impl<'a> Ending<'a> {
    /// A commit.
    fn of_commit(record: &WalRecord, commit: &'a CommitRecord) -> Self {
        Self {
            lsn: record.lsn,
            end_lsn: record.end_lsn,
            time: commit.origin.map_or(commit.time, |(_, at_origin)| at_origin),
            gid: &commit.gid,
            subxids: &commit.subxids,
            messages: &commit.messages,
            dropped: &commit.dropped_locators,
            origin: Origin::of(record.origin, commit.origin),
        }
    }
}

impl Decoder {
    /// `DecodeCommit`.
    pub(super) fn commit(
        &mut self,
        record: &WalRecord,
        commit: &CommitRecord,
        sink: &mut dyn OutputSink,
    ) -> Result<(), DecodeError> {
        self.check(record, &commit.messages)?;
        let xid = ended_xid(commit.prepared_xid, record.xid);
        let (before, noted) = (self.work(), self.reorder_buffer.memory.noted);
        if !commit.messages.is_empty() && xid.is_valid() {
            let at = self.reorder_buffer.find_or_begin(xid, record.lsn);
            self.reorder_buffer.set_catalog_changes(at);
        }
        let newest = self.replayer.commits.newest();
        self.catalog_commit(record.lsn, xid, commit, sink)?;
        for sub in &commit.subxids {
            self.reorder_buffer.commit_child(xid, *sub, record.lsn);
        }
        let Some(at) = self.reorder_buffer.find(xid) else { return Ok(()) };
        let other_database = commit.db.is_valid() && commit.db != self.config.database;
        let skipped = self.snap_build.skips(record.lsn) || other_database || self.filter_by_origin(record.origin);
        let ending = Ending::of_commit(record, commit);
        if !skipped && commit.prepared_xid.is_valid() && self.decodes_at_prepare(&commit.gid) {
            return self.commit_prepared(at, ending, before, noted, sink);
        }
        let mut tree = std::mem::take(&mut self.tree);
        self.reorder_buffer.take_tree(at, &mut tree);
        if let Some(txn) = tree.iter().find(|txn| txn.aborted) {
            return Err(DecodeError::AbortedCommits { xid: txn.xid, lsn: record.lsn });
        }
        if !tree[0].streamed() && skipped {
            forget(&mut self.replayer.caches, &tree, commit);
        } else if has_something(&tree) {
            self.replay(ending, &mut tree, newest, sink)?;
            self.sum_up_work(&mut tree, before, noted);
            let outer = self.replayer.caches.marker.enter(Function::OutputPlugin);
            match tree[0].streamed() {
                true => sink.stream_commit(&self.replayer.buffers.out),
                false => sink.commit(&self.replayer.buffers.out),
            }
            self.replayer.caches.marker.leave(outer);
        }
        self.reorder_buffer.give_back(&mut tree)?;
        self.tree = tree;
        self.trim_commits();
        Ok(())
    }

    /// `SnapBuildCommitTxn`: if catalogs changed, makes the new snapshot the running transactions' too.
    fn catalog_commit(
        &mut self,
        lsn: Lsn,
        xid: Xid,
        commit: &CommitRecord,
        sink: &mut dyn OutputSink,
    ) -> Result<(), DecodeError> {
        self.changers.clear();
        for sub in commit.subxids.iter().chain([&xid]) {
            if self.reorder_buffer.has_catalog_changes(*sub) || self.is_unseen_changer(*sub, xid, commit) {
                self.changers.push(*sub);
            }
        }
        if !self.snap_build.commit(lsn, xid, &self.changers) {
            return Ok(());
        }
        let at = self.reorder_buffer.find_or_begin(xid, lsn);
        self.set_base_snapshot(at, lsn);
        let strategy = self.config.profile.distribution;
        if strategy == Distribution::OnDemand {
            let committing = self.reorder_buffer.get(at);
            let own = if committing.messages.is_empty() { &commit.messages } else { &committing.messages };
            self.replayer.commits.push(lsn, own.as_slice().into());
            return Ok(());
        }
        self.build_snapshot();
        let marker = self.replayer.caches.marker.clone();
        let outer = marker.enter(Function::SnapBuildDistributeSnapshotAndInval);
        let by = Committing { at, lsn, snapshot_bytes: self.snapshot_bytes() };
        let room = &mut self.replayer.room(sink);
        let done = distribute(&mut self.reorder_buffer, strategy, by, &commit.messages, room);
        marker.leave(outer);
        done
    }

    /// What the transaction in `tree` cost: all since `before`, when `noted` was noted for memory and blocks, which belongs to whom it
    /// was done for, whenever it was.
    pub(super) fn sum_up_work(&mut self, tree: &mut [Txn], before: Work, noted: Work) {
        let noted = self.reorder_buffer.memory.noted - noted;
        let out = &mut self.replayer.buffers.out;
        out.work = self.replayer.caches.work - before - noted;
        tree.iter_mut().for_each(|txn| out.work += std::mem::take(&mut txn.noted));
    }

    /// `ReorderBufferReplay`: gives the transaction in `tree` to the sink, or what of it was not yet given, but for its end.
    pub(super) fn replay(
        &mut self,
        ending: Ending<'_>,
        tree: &mut [Txn],
        newest: u32,
        sink: &mut dyn OutputSink,
    ) -> Result<(), DecodeError> {
        let out = &mut self.replayer.buffers.out;
        out.clear();
        (out.xid, out.first_lsn) = (tree[0].xid, tree[0].first_lsn);
        (out.commit_lsn, out.end_lsn, out.commit_time) = (ending.lsn, ending.end_lsn, ending.time);
        out.gid.extend_from_slice(ending.gid);
        out.subxids.extend_from_slice(ending.subxids);
        out.messages.add(ending.messages);
        (out.restart_lsn, out.origin) = (tree[0].restart_lsn, ending.origin);
        self.give_footprint(ending, tree);
        let mut replay = Replay::new(&mut self.replayer, sink, ending.messages, newest);
        if tree[0].streamed() {
            replay.block(tree, &mut self.reorder_buffer.memory)?;
            replay.sum_up(tree);
        } else {
            replay.whole(tree, &mut self.reorder_buffer.memory, ending.lsn)?;
        }
        Ok(())
    }

    /// `DecodeAbort`.
    pub(super) fn abort(
        &mut self,
        record: &WalRecord,
        abort: &AbortRecord,
        sink: &mut dyn OutputSink,
    ) -> Result<(), DecodeError> {
        let other_database = abort.db.is_valid() && abort.db != self.config.database;
        let skipped =
            self.snap_build.skips(record.lsn) || other_database || self.config.options.origin.passes_over(record.origin);
        if !skipped && abort.prepared_xid.is_valid() && self.decodes_at_prepare(&abort.gid) {
            return self.rollback_prepared(record, abort, sink);
        }
        for xid in abort.subxids.iter().chain([&ended_xid(abort.prepared_xid, record.xid)]) {
            self.forget_aborted(*xid, record.end_lsn, sink)?;
        }
        self.trim_commits();
        Ok(())
    }

    /// `ReorderBufferAbortOld`: forgets transactions older than the oldest running one, from the head up to the first live.
    pub(super) fn abort_old(&mut self, oldest_running: Xid, lsn: Lsn, sink: &mut dyn OutputSink) -> Result<(), DecodeError> {
        while let Some(xid) = self.reorder_buffer.older_than(oldest_running) {
            self.forget_aborted(xid, lsn, sink)?;
        }
        Ok(())
    }

    /// `ReorderBufferAbort`: forgets a transaction and its subtransactions; whoever was given a part of it is told.
    fn forget_aborted(&mut self, xid: Xid, lsn: Lsn, sink: &mut dyn OutputSink) -> Result<(), DecodeError> {
        if let Some(publications) = &mut self.replayer.publications {
            publications.aborted(|of| of == xid);
        }
        let found = self.reorder_buffer.find(xid);
        let given = |at: &u32| {
            let (txn, top) = (self.reorder_buffer.get(*at), self.reorder_buffer.get(self.reorder_buffer.top_of(*at)));
            txn.streamed() || txn.first_lsn <= top.streaming.streamed_before
        };
        let Some(at) = found.filter(given) else {
            return Ok(self.reorder_buffer.abort(xid, &mut self.tree)?);
        };
        let top = self.reorder_buffer.top_of(at);
        sink.stream_abort(self.reorder_buffer.get(top).xid, xid, lsn);
        if top == at {
            self.replayer.caches.execute_all(&self.reorder_buffer.get(at).messages);
        }
        Ok(self.reorder_buffer.abort(xid, &mut self.tree)?)
    }
}
