//! What the decoder gives out: transactions in commit order, as an output plugin gets them (`replication/output_plugin.h`).
//!
//! A sink is called `begin`, then for each change, TRUNCATE and message in LSN order, then `commit` with the transaction's
//! sums. Nothing is given out of transactions that were rolled back. All of it happens while the commit record is processed.
//!
//! A decoder that streams gives large transactions out in blocks before it knows their end: `stream_start`, changes, `stream_stop`,
//! blocks of several transactions and whole transactions in between, then `stream_commit`. Changes tell their subtransaction, so
//! that what `stream_abort` names can be forgotten.

use std::fmt;
use std::sync::Arc;

use pg_types::record::{LogicalMessageRecord, TruncateRecord};
use pg_types::{InvalidationKind, InvalidationMessage, Lsn, Oid, Timestamp, Work, Xid};

use crate::footprint::Footprint;
pub use crate::relations::Relation;
pub use crate::reorder_buffer::change::Action;

/// A row change, or several of one record.
#[derive(Clone, Copy, Debug)]
pub struct DecodedChange<'a> {
    /// Where its record starts.
    pub lsn: Lsn,
    /// The transaction or subtransaction that did it.
    pub xid: Xid,
    /// The relation.
    pub relation: &'a Relation,
    /// What happened.
    pub action: Action,
    /// To how many rows.
    pub rows: u16,
}

/// Where decoded transactions go. Every method may be left out.
pub trait OutputSink {
    /// A committed transaction starts; `first_lsn` is where its first record starts.
    fn begin(&mut self, xid: Xid, first_lsn: Lsn, commit_lsn: Lsn) {
        let _ = (xid, first_lsn, commit_lsn);
    }

    /// Rows changed.
    fn change(&mut self, change: &DecodedChange<'_>) {
        let _ = change;
    }

    /// Relations were truncated by `record` of the (sub)transaction `xid`; those of them that are decoded.
    fn truncate(&mut self, lsn: Lsn, xid: Xid, relations: &[&Relation], record: &TruncateRecord) {
        let _ = (lsn, xid, relations, record);
    }

    /// A logical message, in its transaction or, if it is not transactional, as soon as it is read; then `xid` is invalid.
    fn message(&mut self, lsn: Lsn, xid: Xid, message: &LogicalMessageRecord) {
        let _ = (lsn, xid, message);
    }

    /// The transaction is complete.
    fn commit(&mut self, transaction: &DecodedTransaction) {
        let _ = transaction;
    }

    /// A block of changes of the transaction in progress `xid` starts, whose first is at `lsn`; `first`: none came before.
    fn stream_start(&mut self, xid: Xid, lsn: Lsn, first: bool) {
        let _ = (xid, lsn, first);
    }

    /// The block ends; its last change was at `lsn`.
    fn stream_stop(&mut self, xid: Xid, lsn: Lsn) {
        let _ = (xid, lsn);
    }

    /// What blocks held of `xid` is to be forgotten: it was rolled back by the record that ends at `lsn`. It is a subtransaction
    /// of `top_xid`, or that one itself.
    fn stream_abort(&mut self, top_xid: Xid, xid: Xid, lsn: Lsn) {
        let _ = (top_xid, xid, lsn);
    }

    /// A transaction that was given out in blocks is complete; its sums are those of all blocks.
    fn stream_commit(&mut self, transaction: &DecodedTransaction) {
        let _ = transaction;
    }

    /// In place of `commit`: the transaction is complete and prepared; its `commit_lsn`, `end_lsn` and `commit_time` are those of PREPARE.
    fn prepare(&mut self, transaction: &DecodedTransaction) {
        let _ = transaction;
    }

    /// The same of a transaction that was given out in blocks.
    fn stream_prepare(&mut self, transaction: &DecodedTransaction) {
        let _ = transaction;
    }

    /// A prepared transaction that was given out has committed.
    fn commit_prepared(&mut self, end: &PreparedEnd) {
        let _ = end;
    }

    /// A prepared transaction that was given out, at least if it was prepared since the consumer has `two_phase`, is rolled back.
    fn rollback_prepared(&mut self, end: &PreparedEnd) {
        let _ = end;
    }
}

/// COMMIT PREPARED or ROLLBACK PREPARED of a transaction that was given out at PREPARE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedEnd {
    /// The transaction.
    pub xid: Xid,
    /// Its name, bytes from outside.
    pub gid: Vec<u8>,
    /// Where the record starts.
    pub lsn: Lsn,
    /// Where it ends; a consumer that has this confirms it.
    pub end_lsn: Lsn,
    /// When.
    pub time: Timestamp,
    /// Where the PREPARE record ended.
    pub prepare_end_lsn: Lsn,
    /// When it was prepared.
    pub prepare_time: Timestamp,
    /// Where its first record starts.
    pub first_lsn: Lsn,
    /// Its subtransactions that count.
    pub subxids: Vec<Xid>,
    /// Where this end came from.
    pub origin: Origin,
}

/// Throws everything away.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoOutput;

impl OutputSink for NoOutput {}

/// What a transaction did to one relation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationChanges {
    /// `schema.name`, or the file if no catalog names it.
    pub name: Arc<str>,
    /// The relation's oid, or its file number if no catalog names it.
    pub oid: Oid,
    /// Rows inserted.
    pub insert: u64,
    /// Rows updated.
    pub update: u64,
    /// Rows deleted.
    pub delete: u64,
    /// Times truncated.
    pub truncate: u64,
    /// Its number in the decoder's list.
    pub(crate) number: u32,
}

impl RelationChanges {
    /// A count by its column: that of an [`Action`], or behind them of TRUNCATE.
    pub(crate) fn column(&mut self, column: usize) -> &mut u64 {
        match column {
            0 => &mut self.insert,
            1 => &mut self.update,
            2 => &mut self.delete,
            _ => &mut self.truncate,
        }
    }
}

/// A transaction's own invalidation messages by kind, and its logical messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageCounts {
    /// By kind, in the order of [`InvalidationKind::ALL`].
    kinds: [u64; InvalidationKind::ALL.len()],
    /// Transactional logical messages (`pg_logical_emit_message`).
    pub logical: u64,
}

impl MessageCounts {
    /// Counts messages.
    pub fn add(&mut self, messages: &[InvalidationMessage]) {
        for message in messages {
            self.kinds[message.kind() as usize] += 1;
        }
    }

    /// How many of one kind.
    #[must_use]
    pub fn of(&self, kind: InvalidationKind) -> u64 {
        self.kinds[kind as usize]
    }

    /// Invalidation messages of all kinds.
    #[must_use]
    pub fn invalidations(&self) -> u64 {
        self.kinds.iter().sum()
    }

    /// Names and counts, invalidation messages by kind first, `logical` last.
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        InvalidationKind::ALL.iter().map(|kind| (kind.name(), self.of(*kind))).chain([("logical", self.logical)])
    }
}

/// Where a transaction was made, if the session that replayed it here told (`pg_replication_origin_session_setup`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Number of the origin (`roident` of `pg_replication_origin`), 0 if it was made here.
    pub id: u16,
    /// Where it ended there; invalid if that is not told.
    pub lsn: Lsn,
}

impl Origin {
    /// That of a record, and what its commit tells (`origin_lsn` of `DecodeCommit`).
    pub(crate) fn of(id: u16, told: Option<(Lsn, Timestamp)>) -> Self {
        Self { id, lsn: told.map_or(Lsn::INVALID, |(lsn, _)| lsn) }
    }
}

/// A committed transaction, decoded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DecodedTransaction {
    /// Its top-level xid; for a prepared transaction its own, not that of whoever committed it.
    pub xid: Xid,
    /// Where its first record starts.
    pub first_lsn: Lsn,
    /// Where a decoder must begin to read that shall see all that this one's cost depends on, but for what caches hold: the start of the
    /// oldest transaction that was unfinished when this one began.
    pub restart_lsn: Lsn,
    /// Where its commit record starts.
    pub commit_lsn: Lsn,
    /// Where that record ends; a consumer that has this transaction confirms this.
    pub end_lsn: Lsn,
    /// When it committed.
    pub commit_time: Timestamp,
    /// Name of a prepared transaction, bytes from outside; empty for others.
    pub gid: Vec<u8>,
    /// Its committed subtransactions.
    pub subxids: Vec<Xid>,
    /// Where it came from.
    pub origin: Origin,
    /// What it did, by relation, in the order of the first change of each.
    pub relations: Vec<RelationChanges>,
    /// The invalidation messages of its commit record, and its logical messages.
    pub messages: MessageCounts,
    /// What it did beside changing rows.
    pub footprint: Footprint,
    /// What decoding it cost.
    pub work: Work,
}

impl DecodedTransaction {
    /// Rows changed and relations truncated.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.relations.iter().map(|r| r.insert + r.update + r.delete + r.truncate).sum()
    }

    /// Empties it and keeps its buffers.
    pub(crate) fn clear(&mut self) {
        self.gid.clear();
        self.subxids.clear();
        self.relations.clear();
        self.messages = MessageCounts::default();
        self.footprint.clear();
    }
}

/// A timestamp as `timestamptz_out` writes it in ISO style and UTC: `2026-11-30 08:32:10.84366+00`, fractions without
/// trailing zeros.
#[derive(Clone, Copy, Debug)]
pub struct TimestampText(pub Timestamp);

impl fmt::Display for TimestampText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.0 {
            i64::MAX => return f.write_str("infinity"),
            i64::MIN => return f.write_str("-infinity"),
            _ => {}
        }
        const DAY_US: i64 = 86_400_000_000;
        let (days, us) = (self.0.0.div_euclid(DAY_US), self.0.0.rem_euclid(DAY_US));
        let (year, month, day) = civil_from_days(days);
        let (shown, era) = if year > 0 { (year, "") } else { (1 - year, " BC") };
        let (seconds, fraction) = (us / 1_000_000, us % 1_000_000);
        let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(f, "{shown:04}-{month:02}-{day:02} {h:02}:{m:02}:{s:02}")?;
        if fraction != 0 {
            write!(f, ".{}", format!("{fraction:06}").trim_end_matches('0'))?;
        }
        write!(f, "+00{era}")
    }
}

/// Year (0 = 1 BC), month and day of a number of days since 2000-01-01 in the proleptic Gregorian calendar.
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    // Count from 0000-03-01, so that a leap day ends its year; 400 years have 146,097 days.
    let z = days + 730_425;
    let (era, day_of_era) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_written_as_test_decoding_does() {
        let text = |us| TimestampText(Timestamp(us)).to_string();
        assert_eq!(text(0), "2000-01-01 00:00:00+00");
        assert_eq!(text(849_342_730_843_660), "2026-11-30 08:32:10.84366+00");
        assert_eq!(text(-1), "1999-12-31 23:59:59.999999+00");
        assert_eq!(text(5_097_600_000_000), "2000-02-29 00:00:00+00");
        assert_eq!(text(-63_082_368_000_000_000), "0001-12-31 00:00:00+00 BC");
        assert_eq!(text(i64::MAX), "infinity");
        for extreme in [i64::MIN + 1, i64::MAX - 1] {
            assert!(text(extreme).ends_with('C') || text(extreme).ends_with("+00"));
        }
    }
}
