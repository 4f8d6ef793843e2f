//! Whole transactions for subscribers that want them at their commit, of a node that gives some out before.
//!
//! Such a node's log has blocks of transactions in progress and prepared transactions, mixed with whole ones. At the end of one of those
//! its parts are read back from where the first is: entry by entry, so that memory does not depend on its size. What a rolled-back
//! subtransaction did is left out.
//!
//! ```text
//!   log ─► Splitter ─┬─ whole transactions ───────────────────────────────► out
//!                    └─ stream_commit, commit_prepared ─► ReadBack ─► begin, changes of its parts, commit ─► out
//! ```
//!
//! | operation | cost |
//! |---|---|
//! | an entry without such parts | goes out as it is stored |
//! | a transaction that came in parts | what the log holds from its first part to its end, once |

use std::collections::{HashMap, HashSet};

use pg_types::Lsn;
use prost::DecodeError;
use walstorm_proto::EventBatch;
use walstorm_proto::decoder::v1::{
    Begin, Change, Commit, CommitPrepared, Event, Message, Prepare, Relation, StreamCommit, Truncate, event::Kind,
};

use crate::output_log::{Entry, end_of};

/// A batch being filled, which explains the relations that it refers to.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    /// Relations that were explained, and whether the batch does so.
    relations: HashMap<u32, (Relation, bool)>,
    /// The batch.
    batch: EventBatch,
    /// It holds anything.
    any: bool,
}

impl Filling {
    /// A relation is explained.
    pub(crate) fn explain(&mut self, relation: Relation) {
        self.relations.insert(relation.relation_id, (relation, false));
    }

    /// Appends an event, behind the relations that it needs.
    pub(crate) fn push(&mut self, kind: Kind) {
        let numbers = match &kind {
            Kind::Change(change) => std::slice::from_ref(&change.relation_id),
            Kind::Truncate(truncate) => &truncate.relation_ids,
            _ => &[],
        };
        for number in numbers {
            if let Some((relation, told @ false)) = self.relations.get_mut(number) {
                *told = true;
                self.batch.push(&Event { kind: Some(Kind::Relation(relation.clone())) });
            }
        }
        self.batch.push(&Event { kind: Some(kind) });
        self.any = true;
    }

    /// The batch, if it holds anything; another begins.
    pub(crate) fn finish(&mut self) -> Option<EventBatch> {
        self.relations.values_mut().for_each(|(_, told)| *told = false);
        let batch = std::mem::take(&mut self.batch);
        std::mem::take(&mut self.any).then_some(batch)
    }
}

/// What an entry gives.
#[derive(Debug)]
pub(crate) enum Piece {
    /// Whole transactions up to this position, or a part of one.
    Batch(Option<EventBatch>, Option<Lsn>),
    /// A transaction that has to be read back.
    Back(Box<ReadBack>),
}

/// What the events at hand are part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Of nothing.
    #[default]
    Between,
    /// Of a transaction that is given out whole.
    Whole,
    /// Of a block or of a prepared transaction.
    Part,
}

/// Takes entries apart.
#[derive(Debug, Default)]
pub(crate) struct Splitter {
    /// Where it is.
    place: Place,
}

impl Splitter {
    /// Whether an entry goes out as it is, but for the wishes of the subscriber.
    pub(crate) fn passes_whole(&self, entry: &Entry) -> bool {
        !entry.in_progress && self.place != Place::Part
    }

    /// Takes an entry's events, which end at `end`, unless they are a part of something.
    ///
    /// # Errors
    ///
    /// They are no events.
    pub(crate) fn split(&mut self, stored: &EventBatch, end: Option<Lsn>) -> Result<Vec<Piece>, DecodeError> {
        let (mut pieces, mut filling, mut passed) = (Vec::new(), Filling::default(), None);
        for event in stored.events() {
            let Some(kind) = event?.kind else { continue };
            let ends_at = end_of(&kind);
            let back = match kind {
                Kind::Relation(relation) => {
                    filling.explain(relation);
                    continue;
                }
                Kind::StreamCommit(commit) => ReadBack::of_streamed(commit),
                Kind::CommitPrepared(end) => Some(ReadBack::of_prepared(end)),
                kind => {
                    self.event(kind, &mut filling);
                    passed = ends_at.or(passed);
                    continue;
                }
            };
            pieces.push(Piece::Batch(filling.finish(), passed));
            pieces.extend(back.map(|back| Piece::Back(Box::new(back))));
            passed = ends_at;
        }
        pieces.push(Piece::Batch(filling.finish(), end));
        Ok(pieces)
    }

    /// Takes one event that ends no transaction of several parts.
    fn event(&mut self, kind: Kind, filling: &mut Filling) {
        let goes_out = match &kind {
            Kind::Begin(begin) => {
                self.place = if begin.prepared { Place::Part } else { Place::Whole };
                !begin.prepared
            }
            Kind::Commit(_) => {
                self.place = Place::Between;
                true
            }
            Kind::StreamStart(_) => {
                self.place = Place::Part;
                false
            }
            Kind::StreamStop(_) | Kind::Prepare(_) => {
                self.place = Place::Between;
                false
            }
            Kind::Message(message) => !message.transactional || self.place == Place::Whole,
            Kind::Change(_) | Kind::Truncate(_) => self.place == Place::Whole,
            _ => false,
        };
        if goes_out {
            filling.push(kind);
        }
    }
}

/// How the transaction that is read back ended.
#[derive(Debug)]
enum Ending {
    /// It came in blocks.
    Streamed(Commit),
    /// It was prepared; its sums come with `prepare`.
    Prepared(Box<CommitPrepared>),
}

/// A transaction that is read back.
#[derive(Debug)]
pub(crate) struct ReadBack {
    /// Its id.
    xid: u32,
    /// All its parts came after this position.
    pub(crate) start: Lsn,
    /// It and its subtransactions that count.
    counts: HashSet<u32>,
    /// Its first record.
    first_lsn: u64,
    /// How it ended.
    ending: Ending,
    /// The events at hand are its.
    inside: bool,
    /// `begin` was given out.
    begun: bool,
    /// Rows changed, relations truncated and messages that were.
    event_count: u64,
}

impl ReadBack {
    /// One that came in blocks.
    fn of_streamed(end: StreamCommit) -> Option<Self> {
        let commit = *end.commit?;
        let counts = commit.subxids.iter().copied().chain([commit.xid]).collect();
        Some(Self::new(commit.xid, Lsn(end.start_lsn), counts, end.first_lsn, Ending::Streamed(commit)))
    }

    /// A prepared one.
    fn of_prepared(end: Box<CommitPrepared>) -> Self {
        let counts = end.subxids.iter().copied().chain([end.xid]).collect();
        Self::new(end.xid, Lsn(end.start_lsn), counts, end.first_lsn, Ending::Prepared(end))
    }

    /// Nothing of it was read yet.
    fn new(xid: u32, start: Lsn, counts: HashSet<u32>, first_lsn: u64, ending: Ending) -> Self {
        Self { xid, start, counts, first_lsn, ending, inside: false, begun: false, event_count: 0 }
    }

    /// Where its commit record starts.
    pub(crate) fn commit_lsn(&self) -> Lsn {
        match &self.ending {
            Ending::Streamed(commit) => Lsn(commit.commit_lsn),
            Ending::Prepared(end) => Lsn(end.commit_lsn),
        }
    }

    /// Where it ends.
    pub(crate) fn end_lsn(&self) -> Lsn {
        match &self.ending {
            Ending::Streamed(commit) => Lsn(commit.end_lsn),
            Ending::Prepared(end) => Lsn(end.end_lsn),
        }
    }

    /// The commit alone, for those who want nothing else; known at once of one that came in blocks.
    pub(crate) fn commit_alone(&self) -> Option<EventBatch> {
        let Ending::Streamed(commit) = &self.ending else { return None };
        Some([Event { kind: Some(Kind::Commit(commit.clone())) }].iter().collect())
    }

    /// Takes the events of an entry; gives what goes out, and whether that was all.
    ///
    /// # Errors
    ///
    /// They are no events.
    pub(crate) fn take(&mut self, stored: &EventBatch) -> Result<(Option<EventBatch>, bool), DecodeError> {
        let mut filling = Filling::default();
        for event in stored.events() {
            let Some(kind) = event?.kind else { continue };
            match kind {
                Kind::Relation(relation) => filling.explain(relation),
                kind => {
                    if self.event(kind, &mut filling) {
                        return Ok((filling.finish(), true));
                    }
                }
            }
        }
        Ok((filling.finish(), false))
    }

    /// Takes one event; true if it is the last.
    fn event(&mut self, kind: Kind, filling: &mut Filling) -> bool {
        match kind {
            Kind::StreamStart(start) => self.inside = start.xid == self.xid,
            Kind::StreamStop(_) => self.inside = false,
            Kind::Begin(begin) => self.inside = begin.prepared && begin.xid == self.xid,
            Kind::Change(change) if self.counts_now(change.xid) => self.put(Kind::Change(Change { xid: 0, ..change }), filling),
            Kind::Truncate(truncate) if self.counts_now(truncate.xid) => {
                self.put(Kind::Truncate(Truncate { xid: 0, ..truncate }), filling);
            }
            Kind::Message(message) if message.transactional && self.counts_now(message.xid) => {
                self.put(Kind::Message(Message { xid: 0, ..message }), filling);
            }
            Kind::Prepare(prepare) => return self.prepared(prepare, filling),
            Kind::StreamCommit(end) => return self.committed(end, filling),
            _ => {}
        }
        false
    }

    /// Whether an event of this (sub)transaction goes out, as one of the transaction as a whole.
    fn counts_now(&self, xid: u32) -> bool {
        self.inside && (xid == 0 || self.counts.contains(&xid))
    }

    /// Gives an event out, behind `begin`.
    fn put(&mut self, kind: Kind, filling: &mut Filling) {
        self.begin(filling);
        self.event_count += match &kind {
            Kind::Change(change) => change.columns.iter().flat_map(|columns| &columns.row_counts).copied().map(u64::from).sum(),
            Kind::Truncate(truncate) => truncate.relation_ids.len() as u64,
            _ => 1,
        };
        filling.push(kind);
    }

    /// Gives `begin` out, once.
    fn begin(&mut self, filling: &mut Filling) {
        if !std::mem::replace(&mut self.begun, true) {
            let (first_lsn, commit_lsn) = (self.first_lsn, self.commit_lsn().0);
            filling.push(Kind::Begin(Begin { xid: self.xid, first_lsn, commit_lsn, prepared: false }));
        }
    }

    /// A transaction is prepared: if it is this one, its commit is due.
    fn prepared(&mut self, prepare: Prepare, filling: &mut Filling) -> bool {
        self.inside = false;
        let sums = prepare.transaction.filter(|sums| sums.xid == self.xid);
        let (Ending::Prepared(end), Some(sums)) = (&self.ending, sums) else { return false };
        let commit = Commit {
            commit_lsn: end.commit_lsn,
            end_lsn: end.end_lsn,
            commit_time: end.commit_time,
            context: end.context.clone().map(Box::new),
            origin: end.origin,
            ..*sums
        };
        self.end(commit, filling)
    }

    /// One that came in blocks has committed.
    fn committed(&mut self, end: StreamCommit, filling: &mut Filling) -> bool {
        match end.commit.filter(|commit| commit.xid == self.xid) {
            Some(commit) => self.end(*commit, filling),
            None => false,
        }
    }

    /// Gives the commit out.
    fn end(&mut self, commit: Commit, filling: &mut Filling) -> bool {
        self.begin(filling);
        filling.push(Kind::Commit(Commit { event_count: self.event_count, ..commit }));
        true
    }
}
