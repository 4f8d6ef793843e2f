//! The decoder's sink: turns what it gives out into encoded events, and cuts them into output log entries.
//!
//! Everything is encoded once, into the buffer that is written to disk and sent to subscribers. Relation numbers hold for one
//! entry, so each is explained in the entry that uses it. Nothing is allocated for a transaction without subtransactions and
//! messages.
//!
//! # Invariants
//!
//! * **I1** A finished entry holds whole transactions, or a part of one transaction and nothing else.
//! * **I2** What the log has already (it ends at or before `resume_at`) is not written again.
//! * **I3** An entry stays below the limit of a message, by the size of one event.

use decoder_core::output::{Action, DecodedChange, DecodedTransaction, OutputSink, Relation};
use pg_types::record::{LogicalMessageRecord, TruncateRecord};
use pg_types::{Lsn, Oid, RelFileLocator, Work, Xid};
use rustc_hash::FxHashMap;
use walstorm_proto::EventBatch;
use walstorm_proto::decoder::v1::{Begin, Change, Commit, Event, Message, Relation as PbRelation, Truncate, event};
use walstorm_proto::wal::v1 as wal;

use crate::costliest::TransactionCost;
use crate::measure::Meter;
use crate::output_log::EntryBuffer;
use crate::server::convert;
use crate::trace::TransactionSpans;

/// An entry that has grown to this many bytes is finished at the next boundary between transactions.
const ENTRY_BYTES: usize = 192 << 10;

/// A transaction that makes an entry this large is cut into fragments.
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
    /// Transactions and messages outside transactions that end in it.
    pub(crate) items: u32,
}

/// What tells relations apart.
type RelationKey = (Oid, RelFileLocator);

/// A relation that the entry explains.
#[derive(Clone, Copy, Debug)]
struct Explained {
    /// Its number.
    number: u32,
    /// Where in the payload the event that explains it is.
    at: usize,
    /// Bytes of that event.
    len: usize,
    /// Serial of the last transaction that referred to it.
    used_by: u64,
}

/// The sink.
#[derive(Debug)]
pub(crate) struct EventSink {
    /// Events of the entry that is being filled.
    buffer: EntryBuffer,
    /// Bytes of the payload up to the end of its last whole transaction.
    whole_len: usize,
    /// Where that transaction ended.
    whole_end: Lsn,
    /// Transactions up to there.
    items: u32,
    /// The transaction that is being given out began in an earlier entry.
    in_fragments: bool,
    /// Entries that are full.
    finished: Vec<Finished>,
    /// The entry's relations.
    relations: FxHashMap<RelationKey, Explained>,
    /// Relations that the transaction being given out refers to.
    used: Vec<RelationKey>,
    /// Counts transactions, to know what is in `used`.
    serial: u64,
    /// The last number that was given to a relation; begins anew with each entry that begins between transactions.
    next_number: u32,
    /// The transaction being given out is in the log already (I2).
    muted: bool,
    /// The run of changes that is being collected, as an event whose columns are used again and again.
    run: Change,
    /// The relation that `run` is about.
    run_relation: Option<RelationKey>,
    /// Events of the transaction so far.
    event_count: u64,
    /// Rows of the transaction so far.
    row_count: u64,
    /// End of the record that is being processed.
    pub(crate) record_end: Lsn,
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
    /// A sink for a log that ends at `resume_at`.
    #[must_use]
    pub(crate) fn new(resume_at: Lsn, spans: TransactionSpans) -> Self {
        Self {
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
            run: Change { columns: Some(wal::ChangeColumns::default()), ..Change::default() },
            run_relation: None,
            event_count: 0,
            row_count: 0,
            record_end: resume_at,
            resume_at,
            costs: Vec::new(),
            totals: Totals::default(),
            meter: Meter::default(),
            spans,
        }
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

    /// Moves the buffer to the finished entries and begins another.
    fn finish_entry(&mut self, end: Option<Lsn>) {
        let capacity = self.buffer.payload_len().min(FRAGMENT_BYTES) + 4096;
        let buffer = std::mem::replace(&mut self.buffer, EntryBuffer::with_capacity(capacity));
        let items = std::mem::take(&mut self.items);
        self.finished.push(Finished { buffer, end, items });
        self.whole_len = 0;
        self.relations.clear();
    }

    /// Appends an event.
    fn put(&mut self, kind: event::Kind) {
        EventBatch::put(&Event { kind: Some(kind) }, self.buffer.tail());
    }

    /// Appends an event of the transaction, cutting the entry if it has grown too large.
    fn put_in_transaction(&mut self, kind: event::Kind) {
        self.event_count += 1;
        self.put(kind);
        if self.buffer.payload_len() >= FRAGMENT_BYTES {
            self.cut();
        }
    }

    /// Finishes the whole transactions of the entry, or, if there are none, the part of the one that goes on (I1).
    fn cut(&mut self) {
        if self.items == 0 {
            self.in_fragments = true;
            self.finish_entry(None);
            return;
        }
        // The part moves to an entry of its own, behind the relations that it needs from this one.
        let (whole_len, relations) = (self.whole_len, std::mem::take(&mut self.relations));
        let part = self.buffer.split_off(whole_len);
        let mut next = EntryBuffer::with_capacity(part.len() + 4096);
        let used = || self.used.iter().filter_map(|key| Some((*key, *relations.get(key)?)));
        let mut moved = FxHashMap::default();
        for (key, explained) in used().filter(|(_, explained)| explained.at < whole_len) {
            moved.insert(key, Explained { at: next.payload_len(), ..explained });
            next.tail().extend_from_slice(&self.buffer.payload()[explained.at..explained.at + explained.len]);
        }
        let part_at = next.payload_len();
        for (key, explained) in used().filter(|(_, explained)| explained.at >= whole_len) {
            moved.insert(key, Explained { at: part_at + explained.at - whole_len, ..explained });
        }
        next.tail().extend_from_slice(&part);
        self.finish_entry(Some(self.whole_end));
        self.buffer = next;
        self.relations = moved;
    }

    /// The entry's number of a relation, explained if it is new.
    fn number(&mut self, relation: &Relation) -> u32 {
        let key = (relation.oid, relation.file);
        let serial = self.serial;
        if let Some(explained) = self.relations.get_mut(&key) {
            if std::mem::replace(&mut explained.used_by, serial) != serial {
                self.used.push(key);
            }
            return explained.number;
        }
        self.next_number += 1;
        let number = self.next_number;
        let (schema, name) = match relation.logged {
            Some(_) => relation.name.split_once('.').unwrap_or(("", &relation.name)),
            None => ("", ""),
        };
        let at = self.buffer.payload_len();
        self.put(event::Kind::Relation(PbRelation {
            relation_id: number,
            locator: Some(convert::locator(relation.file)),
            oid: if relation.logged.is_some() { relation.oid.0 } else { 0 },
            schema: schema.to_owned(),
            name: name.to_owned(),
        }));
        let len = self.buffer.payload_len() - at;
        self.relations.insert(key, Explained { number, at, len, used_by: serial });
        self.used.push(key);
        number
    }

    /// Appends the collected run of changes.
    fn flush_run(&mut self) {
        if self.run_relation.take().is_none() {
            return;
        }
        let kind = event::Kind::Change(std::mem::take(&mut self.run));
        let event = Event { kind: Some(kind) };
        EventBatch::put(&event, self.buffer.tail());
        self.event_count += 1;
        if let Some(event::Kind::Change(run)) = event.kind {
            self.run = run;
        }
        if let Some(columns) = &mut self.run.columns {
            columns.kinds.clear();
            columns.lsn_offsets.clear();
            columns.row_counts.clear();
        }
        if self.buffer.payload_len() >= FRAGMENT_BYTES {
            self.cut();
        }
    }

    /// A transaction or a message outside transactions has ended.
    fn item_ended(&mut self, end: Lsn) {
        self.items += 1;
        self.whole_len = self.buffer.payload_len();
        self.whole_end = end;
        if self.in_fragments || self.whole_len >= ENTRY_BYTES {
            self.in_fragments = false;
            self.next_number = 0;
            self.finish_entry(Some(end));
        }
    }
}

impl OutputSink for EventSink {
    fn begin(&mut self, xid: Xid, first_lsn: Lsn, commit_lsn: Lsn) {
        self.muted = commit_lsn < self.resume_at;
        if self.muted {
            return;
        }
        self.serial += 1;
        self.used.clear();
        self.event_count = 0;
        self.row_count = 0;
        self.meter.begin();
        self.spans.begin(commit_lsn);
        self.put(event::Kind::Begin(Begin { xid: xid.0, first_lsn: first_lsn.0, commit_lsn: commit_lsn.0 }));
    }

    fn change(&mut self, change: &DecodedChange<'_>) {
        if self.muted {
            return;
        }
        let key = (change.relation.oid, change.relation.file);
        let columns_len = self.run.columns.as_ref().map_or(0, |c| c.kinds.len());
        let far = u32::try_from(change.lsn.0.wrapping_sub(self.run.lsn)).is_err();
        if self.run_relation != Some(key) || columns_len >= RUN_CHANGES_MAX || far {
            self.flush_run();
            self.run.relation_id = self.number(change.relation);
            self.run.lsn = change.lsn.0;
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
        columns.row_counts.push(u32::from(change.rows));
        self.row_count += u64::from(change.rows);
    }

    fn truncate(&mut self, lsn: Lsn, _: Xid, relations: &[&Relation], record: &TruncateRecord) {
        if self.muted {
            return;
        }
        self.flush_run();
        let (cascade, restart_identity) = (record.cascade, record.restart_seqs);
        for relations in relations.chunks(TRUNCATE_RELATIONS_MAX) {
            let relation_ids = relations.iter().map(|relation| self.number(relation)).collect();
            self.put_in_transaction(event::Kind::Truncate(Truncate { lsn: lsn.0, relation_ids, cascade, restart_identity }));
        }
    }

    fn message(&mut self, lsn: Lsn, _: Xid, message: &LogicalMessageRecord) {
        let outside = !message.transactional;
        let known = if outside { self.record_end <= self.resume_at } else { self.muted };
        if known {
            return;
        }
        self.flush_run();
        let cut = |bytes: &[u8]| bytes::Bytes::copy_from_slice(&bytes[..bytes.len().min(MESSAGE_BYTES_MAX)]);
        let kind = event::Kind::Message(Message {
            lsn: lsn.0,
            transactional: message.transactional,
            prefix: cut(&message.prefix),
            content: cut(&message.message),
            content_bytes: message.message.len() as u64,
            end_lsn: if outside { self.record_end.0 } else { 0 },
        });
        if outside {
            self.put(kind);
            self.item_ended(self.record_end);
        } else {
            self.put_in_transaction(kind);
        }
    }

    fn commit(&mut self, transaction: &DecodedTransaction) {
        if self.muted {
            return;
        }
        self.flush_run();
        let cpu_ns = self.meter.end();
        let context = self.spans.commit(transaction);
        let trace_id = context.as_ref().map(|c| u128::from_be_bytes(c.trace_id().to_bytes()));
        let nonzero = |work: Work| (work != Work::default()).then(|| Box::new(convert::work(&work)));
        let counts = convert::invalidation_counts(transaction);
        self.put(event::Kind::Commit(Commit {
            xid: transaction.xid.0,
            commit_lsn: transaction.commit_lsn.0,
            end_lsn: transaction.end_lsn.0,
            commit_time: Some(convert::timestamp(transaction.commit_time)),
            subxids: transaction.subxids.iter().map(|xid| xid.0).collect(),
            event_count: self.event_count,
            messages: counts.map(Box::new),
            work: nonzero(transaction.work),
            cpu_ns,
            context: context
                .map(|context| Box::new(convert::transaction_context(transaction.xid, transaction.commit_lsn, &context))),
        }));
        self.totals.transactions += 1;
        self.totals.rows += self.row_count;
        self.totals.work += transaction.work;
        self.costs.push(convert::transaction_cost(transaction, self.row_count, cpu_ns, trace_id));
        self.item_ended(transaction.end_lsn);
    }
}

#[cfg(test)]
mod tests;
