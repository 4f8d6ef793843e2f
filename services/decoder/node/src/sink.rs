//! The decoder's sink: turns what it gives out into encoded events, and cuts them into output log entries.
//!
//! Everything is encoded once, into the buffer that is written to disk and sent to subscribers. Relation numbers hold for one
//! entry, so each is explained in the entry that uses it. Nothing is allocated for a transaction without subtransactions and
//! messages.
//!
//! What is given out while one record is processed is a unit, and ends where the record ends: a transaction, as a rule. A decoder that
//! streams gives out blocks, too, several at a record, or before the commit. So a position of the log always means: all that records
//! up to there have given out.
//!
//! # Invariants
//!
//! * **I1** A finished entry holds whole units, or a part of one unit and nothing else.
//! * **I2** What the log has already is not written again: units that end at or before `resume_at`, and of a transaction in progress all
//!   changes that blocks before it hold. A decoder that goes on for another gives those out once more, since it has read them again.
//! * **I3** An entry stays below the limit of a message, by the size of one event.
//! * **I4** The last event of a unit tells where it ends; the others that could tell say 0.

use decoder_core::output::{Action, DecodedChange, DecodedTransaction, OutputSink, PreparedEnd, Relation};
use pg_types::record::{LogicalMessageRecord, TruncateRecord};
use pg_types::{Lsn, Work, Xid};
use rustc_hash::FxHashMap;
use walstorm_proto::decoder::v1::{
    Begin, Change, CommitPrepared, Message, RollbackPrepared, StreamAbort, StreamCommit, StreamStart, StreamStop, Truncate,
    event,
};
use walstorm_proto::wal::v1 as wal;

use crate::costliest::TransactionCost;
use crate::measure::Meter;
use crate::output_log::{EntryBuffer, OpenTransactions, Streamed};
use crate::server::convert;
use crate::trace::TransactionSpans;

mod entries;
mod parts;

use entries::{Explained, RelationKey};
use parts::Block;

/// An entry that has grown to this many bytes is finished at the next boundary between units.
const ENTRY_BYTES: usize = 192 << 10;

/// A unit that makes an entry this large is cut into fragments.
const FRAGMENT_BYTES: usize = 512 << 10;

/// Changes in one event at most: keeps an event small against an entry.
const RUN_CHANGES_MAX: usize = 4096;

/// Relations in one TRUNCATE event at most, for the same reason; more come in several events.
const TRUNCATE_RELATIONS_MAX: usize = 1000;

/// Bytes of a logical message's content that are kept; of its prefix too.
const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// An entry to be appended to the output log.
#[derive(Debug)]
pub(crate) struct Finished {
    /// Its payload.
    pub(crate) buffer: EntryBuffer,
    /// Where everything in it has ended; `None` for a part of a transaction that goes on.
    pub(crate) end: Option<Lsn>,
    /// Units that end in it.
    pub(crate) items: u32,
}

/// The sink.
#[derive(Debug)]
pub(crate) struct EventSink {
    /// An entry that has grown to this many bytes is finished at the next boundary between units.
    entry_bytes: usize,
    /// A unit that makes an entry this large is cut into fragments.
    fragment_bytes: usize,
    /// Events of the entry that is being filled.
    buffer: EntryBuffer,
    /// Bytes of the payload up to the end of its last whole unit.
    whole_len: usize,
    /// Where that unit ended.
    whole_end: Lsn,
    /// Units up to there.
    items: u32,
    /// The unit that is being given out began in an earlier entry.
    in_fragments: bool,
    /// Entries that are full.
    finished: Vec<Finished>,
    /// The entry's relations.
    relations: FxHashMap<RelationKey, Explained>,
    /// Relations that the unit being given out refers to.
    used: Vec<RelationKey>,
    /// Counts units, to know what is in `used`.
    serial: u64,
    /// The last number that was given to a relation; begins anew with each entry that begins between transactions.
    next_number: u32,
    /// What is being given out is in the log already (I2).
    muted: bool,
    /// The block that is being given out.
    block: Option<Block>,
    /// Something was given out of the unit.
    given: bool,
    /// The end of a block or of a part, which may be the unit's last event (I4).
    pending: Option<event::Kind>,
    /// Transactions that the log holds a part of, with all that was given out.
    open: OpenTransactions,
    /// Those in progress of which this decoder has given out nothing yet, but one before it.
    before: FxHashMap<Xid, Streamed>,
    /// CPU time of blocks by transaction, in nanoseconds.
    block_cpu_ns: FxHashMap<Xid, u64>,
    /// Start of the record that is being processed.
    record_lsn: Lsn,
    /// It is a PREPARE record.
    prepares: bool,
    /// The run of changes that is being collected, as an event whose columns are used again and again.
    run: Change,
    /// The relation that `run` is about.
    run_relation: Option<RelationKey>,
    /// Rows of the transaction so far.
    row_count: u64,
    /// End of the record that is being processed.
    record_end: Lsn,
    /// Output that ends at or before this is in the log (I2).
    resume_at: Lsn,
    /// Transactions given out, for the node's list of costliest ones.
    pub(crate) costs: Vec<TransactionCost>,
    /// Sums since the last [`EventSink::take_totals`].
    totals: Totals,
    /// Measures transactions.
    meter: Meter,
    /// Makes spans of sampled transactions.
    pub(crate) spans: TransactionSpans,
}

/// Sums over transactions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Totals {
    /// Transactions.
    pub(crate) transactions: u64,
    /// Their changes.
    pub(crate) rows: u64,
    /// Their work.
    pub(crate) work: Work,
}

impl EventSink {
    /// A sink for a log that ends at `resume_at` and holds parts of `open` transactions there.
    #[must_use]
    pub(crate) fn new(resume_at: Lsn, open: OpenTransactions, spans: TransactionSpans) -> Self {
        Self {
            entry_bytes: ENTRY_BYTES,
            fragment_bytes: FRAGMENT_BYTES,
            buffer: EntryBuffer::default(),
            whole_len: 0,
            whole_end: resume_at,
            items: 0,
            in_fragments: false,
            finished: Vec::new(),
            relations: FxHashMap::default(),
            used: Vec::new(),
            serial: 0,
            next_number: 0,
            muted: false,
            block: None,
            given: false,
            pending: None,
            before: open.streamed.clone(),
            open,
            block_cpu_ns: FxHashMap::default(),
            record_lsn: resume_at,
            prepares: false,
            run: Change { columns: Some(wal::ChangeColumns::default()), ..Change::default() },
            run_relation: None,
            row_count: 0,
            record_end: resume_at,
            resume_at,
            costs: Vec::new(),
            totals: Totals::default(),
            meter: Meter::default(),
            spans,
        }
    }

    /// Transactions in progress of which an earlier decoder gave out blocks, each with the last change in them.
    pub(crate) fn streamed_before(&self) -> impl Iterator<Item = (Xid, Lsn)> {
        self.before.iter().map(|(xid, streamed)| (*xid, streamed.to))
    }

    /// Output that ends at or before this is in the log (I2).
    pub(crate) fn resume_at(&self) -> Lsn {
        self.resume_at
    }

    /// A record is processed next.
    pub(crate) fn begin_record(&mut self, lsn: Lsn, end_lsn: Lsn, prepares: bool) {
        (self.record_lsn, self.record_end, self.prepares) = (lsn, end_lsn, prepares);
        self.muted = end_lsn <= self.resume_at;
        self.serial += 1;
        self.used.clear();
    }

    /// The record is processed: what it gave out is complete.
    pub(crate) fn end_record(&mut self) {
        if let Some(mut pending) = self.pending.take() {
            match &mut pending {
                event::Kind::StreamStop(stop) => stop.end_lsn = self.record_end.0,
                event::Kind::StreamAbort(abort) => abort.end_lsn = self.record_end.0,
                event::Kind::Prepare(prepare) => prepare.end_lsn = self.record_end.0,
                _ => {}
            }
            self.put(pending);
        }
        if std::mem::take(&mut self.given) {
            self.unit_ended(self.record_end);
        }
    }

    /// The same with smaller entries, so that a test has many.
    #[cfg(test)]
    pub(crate) fn with_sizes(self, entry_bytes: usize, fragment_bytes: usize) -> Self {
        Self { entry_bytes, fragment_bytes, ..self }
    }

    /// Entries that are full, in order.
    pub(crate) fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    /// Whether there are any.
    #[must_use]
    pub(crate) fn has_finished(&self) -> bool {
        !self.finished.is_empty()
    }

    /// Finishes the entry that is being filled, if it holds anything. Between records only.
    pub(crate) fn finish(&mut self) {
        if self.items > 0 {
            self.next_number = 0;
            self.finish_entry(Some(self.whole_end));
        }
    }

    /// The sums since the last call.
    pub(crate) fn take_totals(&mut self) -> Totals {
        std::mem::take(&mut self.totals)
    }
}

impl OutputSink for EventSink {
    fn begin(&mut self, xid: Xid, first_lsn: Lsn, commit_lsn: Lsn) {
        if self.muted {
            return;
        }
        // One that was prepared before `two_phase` began is given out with its PREPARE at the commit; if it was given out then, it is not.
        let prepared = self.prepares || commit_lsn != self.record_lsn;
        self.muted = prepared && self.open.prepared.contains_key(&xid);
        if self.muted {
            return;
        }
        self.begin_part();
        self.spans.begin(commit_lsn);
        self.put(event::Kind::Begin(Begin { xid: xid.0, first_lsn: first_lsn.0, commit_lsn: commit_lsn.0, prepared }));
    }

    fn change(&mut self, change: &DecodedChange<'_>) {
        if self.muted {
            return;
        }
        let rows = self.left_of(change.lsn, change.rows.into());
        if rows == 0 {
            return;
        }
        self.in_block(change.lsn, rows);
        let key = (change.relation.oid, change.relation.file);
        let xid = self.block_xid(change.xid);
        let columns_len = self.run.columns.as_ref().map_or(0, |c| c.kinds.len());
        let far = u32::try_from(change.lsn.0.wrapping_sub(self.run.lsn)).is_err();
        if self.run_relation != Some(key) || self.run.xid != xid || columns_len >= RUN_CHANGES_MAX || far {
            self.flush_run();
            self.run.relation_id = self.number(change.relation);
            (self.run.lsn, self.run.xid) = (change.lsn.0, xid);
            self.run_relation = Some(key);
        }
        let kind = match change.action {
            Action::Insert => wal::ChangeKind::Insert,
            Action::Update => wal::ChangeKind::Update,
            Action::Delete => wal::ChangeKind::Delete,
        };
        let offset = (change.lsn.0 - self.run.lsn) as u32;
        let columns = self.run.columns.get_or_insert_default();
        columns.kinds.push(kind.into());
        columns.lsn_offsets.push(offset);
        columns.row_counts.push(rows);
        self.row_count += u64::from(rows);
    }

    fn truncate(&mut self, lsn: Lsn, xid: Xid, relations: &[&Relation], record: &TruncateRecord) {
        if self.muted || self.left_of(lsn, 1) == 0 {
            return;
        }
        self.flush_run();
        self.in_block(lsn, 1);
        let (cascade, restart_identity, xid) = (record.cascade, record.restart_seqs, self.block_xid(xid));
        for relations in relations.chunks(TRUNCATE_RELATIONS_MAX) {
            let relation_ids = relations.iter().map(|relation| self.number(relation)).collect();
            self.put_and_cut(event::Kind::Truncate(Truncate { lsn: lsn.0, relation_ids, cascade, restart_identity, xid }));
        }
    }

    fn message(&mut self, lsn: Lsn, xid: Xid, message: &LogicalMessageRecord) {
        let outside = !message.transactional;
        if self.muted || !outside && self.left_of(lsn, 1) == 0 {
            return;
        }
        self.flush_run();
        self.put_pending();
        if !outside {
            self.in_block(lsn, 1);
        }
        let cut = |bytes: &[u8]| bytes::Bytes::copy_from_slice(&bytes[..bytes.len().min(MESSAGE_BYTES_MAX)]);
        let kind = event::Kind::Message(Message {
            lsn: lsn.0,
            transactional: message.transactional,
            prefix: cut(&message.prefix),
            content: cut(&message.message),
            content_bytes: message.message.len() as u64,
            end_lsn: if outside { self.record_end.0 } else { 0 },
            xid: self.block_xid(xid),
        });
        match outside {
            true => self.put(kind),
            false => self.put_and_cut(kind),
        }
    }

    fn commit(&mut self, transaction: &DecodedTransaction) {
        if self.muted {
            return;
        }
        self.flush_run();
        let cpu_ns = self.meter.end();
        let context = self.spans.commit(transaction, cpu_ns);
        let commit = self.finish_transaction(transaction, context, cpu_ns);
        self.put(event::Kind::Commit(commit));
    }

    fn stream_start(&mut self, xid: Xid, lsn: Lsn, _: bool) {
        // What was given out at PREPARE is not given out again, even if the memory of a decoder after a restart is too small for it.
        self.muted |= self.open.prepared.contains_key(&xid);
        if self.muted {
            return;
        }
        self.begin_part();
        let (before, known) = (self.before.remove(&xid), self.open.streamed.get(&xid));
        let last = known.map_or((Lsn::INVALID, 0), |streamed| (streamed.to, streamed.rows));
        let first = known.is_none();
        let skipped = before.map(|streamed| (streamed.to, streamed.rows));
        self.block = Some(Block { xid, started: before.is_none(), skipped, last });
        if before.is_none() {
            self.put(event::Kind::StreamStart(StreamStart { xid: xid.0, first, lsn: lsn.0 }));
        }
    }

    fn stream_stop(&mut self, xid: Xid, lsn: Lsn) {
        self.flush_run();
        if let Some(block) = self.block.take() {
            *self.block_cpu_ns.entry(xid).or_default() += self.meter.end();
            if block.started {
                let rows = if block.last.0 == lsn { block.last.1 } else { 0 };
                self.pending = Some(event::Kind::StreamStop(StreamStop { xid: xid.0, lsn: lsn.0, rows, end_lsn: 0 }));
            }
        }
        self.muted = self.record_end <= self.resume_at;
    }

    fn stream_abort(&mut self, top_xid: Xid, xid: Xid, _: Lsn) {
        if self.muted {
            return;
        }
        self.put_pending();
        if xid == top_xid {
            self.block_cpu_ns.remove(&xid);
            self.before.remove(&xid);
        }
        if self.open.streamed.contains_key(&top_xid) {
            let abort = StreamAbort { xid: top_xid.0, subxid: xid.0, end_lsn: 0 };
            self.pending = Some(event::Kind::StreamAbort(abort));
        }
    }

    fn stream_commit(&mut self, transaction: &DecodedTransaction) {
        if self.muted {
            return;
        }
        self.put_pending();
        self.spans.begin(transaction.commit_lsn);
        let context = self.spans.commit(transaction, self.block_cpu_ns.get(&transaction.xid).copied().unwrap_or(0));
        let commit = self.finish_streamed(transaction, context);
        let start = self.open.streamed.get(&transaction.xid).map_or(self.whole_end, |streamed| streamed.start);
        self.put(event::Kind::StreamCommit(StreamCommit {
            commit: Some(Box::new(commit)),
            first_lsn: transaction.first_lsn.0,
            start_lsn: start.0,
        }));
    }

    fn prepare(&mut self, transaction: &DecodedTransaction) {
        if std::mem::replace(&mut self.muted, self.record_end <= self.resume_at) {
            return;
        }
        self.flush_run();
        let cpu_ns = self.meter.end();
        let sums = self.finish_transaction(transaction, None, cpu_ns);
        self.prepared(transaction, sums, false);
    }

    fn stream_prepare(&mut self, transaction: &DecodedTransaction) {
        if self.muted || self.open.prepared.contains_key(&transaction.xid) {
            return;
        }
        self.put_pending();
        let sums = self.finish_streamed(transaction, None);
        self.prepared(transaction, sums, true);
    }

    fn commit_prepared(&mut self, end: &PreparedEnd) {
        if self.muted {
            return;
        }
        self.put_pending();
        // Only of what was given out: one without changes was not.
        let Some(start) = self.open.prepared.get(&end.xid).copied() else { return };
        self.spans.begin(end.lsn);
        let transaction = DecodedTransaction {
            xid: end.xid,
            first_lsn: end.first_lsn,
            commit_lsn: end.lsn,
            end_lsn: end.end_lsn,
            subxids: end.subxids.clone(),
            ..DecodedTransaction::default()
        };
        let context = self.spans.commit(&transaction, 0);
        self.put(event::Kind::CommitPrepared(Box::new(CommitPrepared {
            xid: end.xid.0,
            gid: end.gid.clone().into(),
            commit_lsn: end.lsn.0,
            end_lsn: end.end_lsn.0,
            commit_time: Some(convert::timestamp(end.time)),
            prepare_end_lsn: end.prepare_end_lsn.0,
            prepare_time: Some(convert::timestamp(end.prepare_time)),
            subxids: end.subxids.iter().map(|xid| xid.0).collect(),
            start_lsn: start.0,
            context: context.map(|context| convert::transaction_context(end.xid, end.lsn, &context)),
            first_lsn: end.first_lsn.0,
            origin: convert::origin(end.origin),
        })));
    }

    fn rollback_prepared(&mut self, end: &PreparedEnd) {
        if self.muted {
            return;
        }
        self.put_pending();
        if self.open.prepared.contains_key(&end.xid) {
            self.put(event::Kind::RollbackPrepared(RollbackPrepared {
                xid: end.xid.0,
                gid: end.gid.clone().into(),
                rollback_lsn: end.lsn.0,
                end_lsn: end.end_lsn.0,
                rollback_time: Some(convert::timestamp(end.time)),
                prepare_end_lsn: end.prepare_end_lsn.0,
                prepare_time: Some(convert::timestamp(end.prepare_time)),
                origin: convert::origin(end.origin),
            }));
        }
    }
}

#[cfg(test)]
mod tests;
