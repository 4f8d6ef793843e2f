//! What a subscriber of transactions in progress gets: what the log has, as it has it; at its start, blocks that come again; less what it
//! did not ask for.
//!
//! ```text
//!   oldest block of what is open at the start ──again: those blocks alone──► start ──everything──►
//! ```

use std::collections::{HashMap, HashSet};

use pg_types::{Lsn, Xid};
use prost::DecodeError;
use walstorm_proto::EventBatch;
use walstorm_proto::decoder::v1::Commit;
use walstorm_proto::decoder::v1::event::Kind;

use super::assemble::Filling;
use super::filter::Wanted;
use crate::output_log::{Entry, end_of};

/// The wishes of one subscriber, and where its stream is.
#[derive(Debug)]
pub(crate) struct InProgress {
    /// What ends at or before it is the subscriber's, but for blocks of `again`.
    start: Lsn,
    /// The first entry that holds anything behind `start`.
    live_from: u64,
    /// Transactions that are in progress at `start`.
    again: HashSet<Xid>,
    /// Transactions whose first blocks are no longer kept: nothing of them goes out.
    gone: HashSet<Xid>,
    /// Events are those of a block of such a transaction.
    inside_gone: bool,
    /// Relations wanted.
    wanted: Wanted,
    /// In the batch at hand: whether a relation's number is wanted.
    numbers: HashMap<u32, bool>,
    /// Events are those of a block that comes again.
    inside_again: bool,
    /// The start of a transaction or block of which nothing was sent so far.
    held: Option<Kind>,
    /// With a choice of relations: transactions in progress of which something was sent.
    shown: HashSet<u32>,
}

impl InProgress {
    /// For a stream that begins after `start`, where `again` and `gone` are in progress.
    pub(crate) fn new(start: Lsn, live_from: u64, again: HashSet<Xid>, gone: HashSet<Xid>, wanted: Wanted) -> Self {
        Self {
            start,
            live_from,
            again,
            gone,
            inside_gone: false,
            wanted,
            numbers: HashMap::new(),
            inside_again: false,
            held: None,
            shown: HashSet::new(),
        }
    }

    /// Whether an entry goes out as it is stored.
    pub(crate) fn passes_whole(&self, entry: &Entry) -> bool {
        let everything = self.wanted.is_all() && self.gone.is_empty() && !self.inside_gone;
        everything && entry.ordinal >= self.live_from && (entry.prev_end >= self.start || entry.is_fragment())
    }

    /// Whether an entry holds nothing but what comes again: it takes no credit.
    pub(crate) fn is_again(&self, entry: &Entry) -> bool {
        entry.ordinal < self.live_from
    }

    /// What is left of an entry; [`None`] if nothing is.
    ///
    /// # Errors
    ///
    /// It holds no events.
    pub(crate) fn apply(&mut self, entry: &Entry) -> Result<Option<EventBatch>, DecodeError> {
        self.numbers.clear();
        let (mut filling, mut unit) = (Filling::default(), Vec::new());
        for event in EventBatch::from_encoded(entry.payload.clone()).events() {
            let Some(kind) = event?.kind.filter(|kind| !self.is_gone(kind)) else { continue };
            let ends_at = end_of(&kind);
            match kind {
                Kind::Relation(relation) => {
                    self.numbers.insert(relation.relation_id, self.wanted.wants(&relation));
                    filling.explain(relation);
                }
                kind if entry.ordinal < self.live_from => self.again(kind, &mut filling),
                kind if entry.is_fragment() || entry.prev_end >= self.start => self.live(kind, &mut filling),
                kind => unit.push(kind),
            }
            if let Some(end) = ends_at {
                for kind in unit.drain(..) {
                    match end <= self.start {
                        true => self.again(kind, &mut filling),
                        false => self.live(kind, &mut filling),
                    }
                }
            }
        }
        unit.into_iter().for_each(|kind| self.live(kind, &mut filling));
        Ok(filling.finish())
    }

    /// Whether an event is of a transaction whose first blocks are no longer kept; its end makes that pass.
    fn is_gone(&mut self, kind: &Kind) -> bool {
        let xid_of = |commit: &Option<Box<Commit>>| Xid(commit.as_ref().map_or(0, |commit| commit.xid));
        match kind {
            Kind::StreamStart(start) => {
                self.inside_gone = self.gone.contains(&Xid(start.xid));
                self.inside_gone
            }
            Kind::StreamStop(_) => std::mem::take(&mut self.inside_gone),
            Kind::Change(_) | Kind::Truncate(_) | Kind::Message(_) => self.inside_gone,
            Kind::StreamAbort(abort) if abort.xid == abort.subxid => self.gone.remove(&Xid(abort.xid)),
            Kind::StreamAbort(abort) => self.gone.contains(&Xid(abort.xid)),
            Kind::StreamCommit(end) => self.gone.remove(&xid_of(&end.commit)),
            Kind::Prepare(prepare) => self.gone.remove(&xid_of(&prepare.transaction)),
            _ => false,
        }
    }

    /// An event from before the start: blocks of what is in progress there come again, and are not to be acknowledged.
    fn again(&mut self, mut kind: Kind, filling: &mut Filling) {
        let comes = match &mut kind {
            Kind::StreamStart(start) => {
                self.inside_again = self.again.contains(&Xid(start.xid));
                self.inside_again
            }
            Kind::StreamStop(stop) => {
                stop.end_lsn = 0;
                std::mem::take(&mut self.inside_again)
            }
            Kind::StreamAbort(abort) => {
                abort.end_lsn = 0;
                self.again.contains(&Xid(abort.xid))
            }
            Kind::Change(_) | Kind::Truncate(_) | Kind::Message(_) => self.inside_again,
            _ => false,
        };
        if comes {
            self.live(kind, filling);
        }
    }

    /// An event that the subscriber gets if it wants it.
    fn live(&mut self, mut kind: Kind, filling: &mut Filling) {
        if self.wanted.is_all() {
            return filling.push(kind);
        }
        let is_wanted = |number: &u32| self.numbers.get(number).copied().unwrap_or(false);
        let goes_out = match &mut kind {
            Kind::Begin(_) | Kind::StreamStart(_) => {
                self.held = Some(kind);
                return;
            }
            Kind::Change(change) => is_wanted(&change.relation_id),
            Kind::Truncate(truncate) => truncate.relation_ids.iter().any(is_wanted),
            Kind::Message(_) | Kind::Relation(_) => false,
            // Of whatever nothing was sent, no end is.
            Kind::Commit(_) | Kind::StreamStop(_) => self.held.take().is_none(),
            Kind::Prepare(prepare) if !prepare.streamed => self.held.take().is_none(),
            Kind::Prepare(prepare) => prepare.transaction.as_ref().is_some_and(|sums| self.shown.remove(&sums.xid)),
            Kind::StreamAbort(abort) if abort.xid == abort.subxid => self.shown.remove(&abort.xid),
            Kind::StreamAbort(abort) => self.shown.contains(&abort.xid),
            Kind::StreamCommit(end) => end.commit.as_ref().is_some_and(|commit| self.shown.remove(&commit.xid)),
            Kind::CommitPrepared(_) | Kind::RollbackPrepared(_) => true,
        };
        if !goes_out {
            return;
        }
        if let Some(mut begin) = self.held.take() {
            if let Kind::StreamStart(start) = &mut begin {
                start.first = self.shown.insert(start.xid);
            }
            filling.push(begin);
        }
        filling.push(kind);
    }
}
