//! Which transactions the log holds a part of: blocks of those in progress, and prepared ones whose end has not come.
//!
//! Whoever goes on from a place of the log has to know them: the decoder after a restart, so that it gives nothing out again; a
//! subscriber, to get blocks again from the first; retention, to keep them. So a segment begins with the list as it is there, and
//! events tell how it changes.
//!
//! ```text
//!   stream_stop ──► streamed ─┬─ stream_commit, stream_abort of the whole ──► gone
//!                             └─ prepare ──► prepared ─── commit_prepared, rollback_prepared ──► gone
//! ```

use rustc_hash::FxHashMap;

use pg_types::{Lsn, Xid};
use prost::DecodeError;
use walstorm_proto::EventBatch;
use walstorm_proto::decoder::v1::event::Kind;

use super::entry::Entry;

/// A transaction in progress, some blocks of which are in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streamed {
    /// All its blocks came after this position.
    pub start: Lsn,
    /// Its last change in them.
    pub to: Lsn,
    /// Rows of that record in them.
    pub rows: u32,
}

/// Transactions that the log holds a part of at some place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenTransactions {
    /// Those in progress.
    pub streamed: FxHashMap<Xid, Streamed>,
    /// Prepared ones: all that was given out of each came after this position.
    pub prepared: FxHashMap<Xid, Lsn>,
}

/// How an event changes the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Not; but it is none that everybody gets.
    Unchanged,
    /// A block has ended at this change, of whose record so many rows are there.
    Block(Xid, Lsn, u32),
    /// A transaction that came in blocks has ended.
    Ended(Xid),
    /// A transaction is prepared.
    Prepared(Xid),
    /// It has ended.
    PreparedEnded(Xid),
}

impl Mark {
    /// That of an event; [`None`] for events that a transaction given out at its commit has, too.
    #[must_use]
    pub fn of(kind: &Kind) -> Option<Self> {
        match kind {
            Kind::StreamStart(_) => Some(Self::Unchanged),
            Kind::Begin(begin) => begin.prepared.then_some(Self::Unchanged),
            Kind::StreamStop(stop) => Some(Self::Block(Xid(stop.xid), Lsn(stop.lsn), stop.rows)),
            Kind::StreamAbort(abort) if abort.xid != abort.subxid => Some(Self::Unchanged),
            Kind::StreamAbort(abort) => Some(Self::Ended(Xid(abort.xid))),
            Kind::StreamCommit(commit) => Some(Self::Ended(Xid(commit.commit.as_ref()?.xid))),
            Kind::Prepare(prepare) => Some(Self::Prepared(Xid(prepare.transaction.as_ref()?.xid))),
            Kind::CommitPrepared(end) => Some(Self::PreparedEnded(Xid(end.xid))),
            Kind::RollbackPrepared(end) => Some(Self::PreparedEnded(Xid(end.xid))),
            Kind::Relation(_) | Kind::Change(_) | Kind::Truncate(_) | Kind::Message(_) | Kind::Commit(_) => None,
        }
    }
}

/// The position that an event ends with, if nothing more follows there.
#[must_use]
pub fn end_of(kind: &Kind) -> Option<Lsn> {
    let end = match kind {
        Kind::Commit(commit) => commit.end_lsn,
        Kind::Message(message) => message.end_lsn,
        Kind::StreamStop(stop) => stop.end_lsn,
        Kind::StreamAbort(abort) => abort.end_lsn,
        Kind::StreamCommit(commit) => commit.commit.as_ref()?.end_lsn,
        Kind::Prepare(prepare) => prepare.end_lsn,
        Kind::CommitPrepared(end) => end.end_lsn,
        Kind::RollbackPrepared(end) => end.end_lsn,
        Kind::Relation(_) | Kind::Begin(_) | Kind::Change(_) | Kind::Truncate(_) | Kind::StreamStart(_) => 0,
    };
    Some(Lsn(end)).filter(|end| end.is_valid())
}

impl OpenTransactions {
    /// Takes the mark of an event that came after `position`.
    pub fn apply(&mut self, mark: Mark, position: Lsn) {
        match mark {
            Mark::Unchanged => {}
            Mark::Block(xid, to, rows) => {
                let start = self.streamed.get(&xid).map_or(position, |streamed| streamed.start);
                self.streamed.insert(xid, Streamed { start, to, rows });
            }
            Mark::Ended(xid) => drop(self.streamed.remove(&xid)),
            Mark::Prepared(xid) => {
                let start = self.streamed.remove(&xid).map_or(position, |streamed| streamed.start);
                self.prepared.insert(xid, start);
            }
            Mark::PreparedEnded(xid) => drop(self.prepared.remove(&xid)),
        }
    }

    /// Takes the events of `entry`, as far as they end at or before `upto`. `marks` are those of a part that goes on.
    ///
    /// # Errors
    ///
    /// They are no events.
    pub(super) fn read(&mut self, marks: &mut Vec<Mark>, entry: &Entry, upto: Lsn) -> Result<(), DecodeError> {
        for event in EventBatch::from_encoded(entry.payload.clone()).events() {
            let Some(kind) = event?.kind else { continue };
            marks.extend(Mark::of(&kind));
            match end_of(&kind) {
                Some(end) if end > upto => return Ok(()),
                Some(_) => marks.drain(..).for_each(|mark| self.apply(mark, entry.prev_end)),
                None => {}
            }
        }
        Ok(())
    }

    /// The position after which everything came that the log holds of them; [`None`] if there are none.
    #[must_use]
    pub fn start(&self) -> Option<Lsn> {
        self.streamed.values().map(|streamed| streamed.start).chain(self.prepared.values().copied()).min()
    }

    /// As bytes: the number of those in progress, each of them, and the prepared ones; little-endian.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if *self == Self::default() {
            return bytes;
        }
        bytes.extend_from_slice(&(self.streamed.len() as u32).to_le_bytes());
        for (xid, Streamed { start, to, rows }) in &self.streamed {
            bytes.extend_from_slice(&xid.0.to_le_bytes());
            bytes.extend_from_slice(&start.0.to_le_bytes());
            bytes.extend_from_slice(&to.0.to_le_bytes());
            bytes.extend_from_slice(&rows.to_le_bytes());
        }
        for (xid, start) in &self.prepared {
            bytes.extend_from_slice(&xid.0.to_le_bytes());
            bytes.extend_from_slice(&start.0.to_le_bytes());
        }
        bytes
    }

    /// From these bytes; [`None`] if they are none.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut open = Self::default();
        if bytes.is_empty() {
            return Some(open);
        }
        for _ in 0..u32_from(&mut bytes)? {
            let xid = Xid(u32_from(&mut bytes)?);
            let (start, to) = (Lsn(u64_from(&mut bytes)?), Lsn(u64_from(&mut bytes)?));
            open.streamed.insert(xid, Streamed { start, to, rows: u32_from(&mut bytes)? });
        }
        while !bytes.is_empty() {
            let xid = Xid(u32_from(&mut bytes)?);
            open.prepared.insert(xid, Lsn(u64_from(&mut bytes)?));
        }
        Some(open)
    }
}

/// Takes four bytes.
fn u32_from(bytes: &mut &[u8]) -> Option<u32> {
    let (value, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*value))
}

/// Takes eight bytes.
fn u64_from(bytes: &mut &[u8]) -> Option<u64> {
    let (value, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_survives_as_bytes_and_cut_bytes_are_none() {
        let mut open = OpenTransactions::default();
        assert!(open.encode().is_empty());
        open.apply(Mark::Block(Xid(7), Lsn(50), 3), Lsn(10));
        open.apply(Mark::Block(Xid(7), Lsn(1 << 40), 1), Lsn(60));
        open.apply(Mark::Block(Xid(8), Lsn(70), 1), Lsn(65));
        open.apply(Mark::Prepared(Xid(8)), Lsn(80));
        open.apply(Mark::Prepared(Xid(9)), Lsn(90));
        assert_eq!(open.streamed[&Xid(7)], Streamed { start: Lsn(10), to: Lsn(1 << 40), rows: 1 });
        assert_eq!((open.prepared[&Xid(8)], open.prepared[&Xid(9)], open.start()), (Lsn(65), Lsn(90), Some(Lsn(10))));
        let bytes = open.encode();
        assert_eq!(OpenTransactions::decode(&bytes), Some(open.clone()));
        for cut in 1..bytes.len() {
            assert_ne!(OpenTransactions::decode(&bytes[..cut]), Some(open.clone()), "{cut}");
        }
        open.apply(Mark::Ended(Xid(7)), Lsn(100));
        open.apply(Mark::PreparedEnded(Xid(8)), Lsn(110));
        open.apply(Mark::PreparedEnded(Xid(9)), Lsn(120));
        assert_eq!((&open, open.start()), (&OpenTransactions::default(), None));
    }
}
