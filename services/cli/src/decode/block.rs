//! Blocks of transactions in progress, as `walstorm decode --streaming` shows them.

use std::io::{self, Write};
use std::sync::Arc;

use decoder_core::{DecodedChange, Relation};
use pg_types::{Lsn, Xid};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{Counts, printable, write_counts};

/// Titles of a relation's counts.
const COLUMNS: [&str; 4] = ["insert", "update", "delete", "truncate"];

/// What a block holds. Outside of blocks it collects what nobody reads.
#[derive(Debug, Default)]
pub(super) struct Block {
    /// The top-level transaction.
    xid: Xid,
    /// None of that transaction came before.
    first: bool,
    /// Its first change.
    start_lsn: Lsn,
    /// Its last.
    pub(super) end_lsn: Lsn,
    /// Inserts, updates, deletes and truncates of each relation, in the order of the first change of each.
    relations: Vec<(Arc<str>, [u64; 4])>,
    /// TRUNCATEs.
    truncates: u64,
    /// Logical messages.
    pub(super) messages: u64,
}

impl Block {
    /// An empty one.
    pub(super) fn new(xid: Xid, start_lsn: Lsn, first: bool) -> Self {
        Self { xid, start_lsn, first, ..Self::default() }
    }

    /// Counts.
    fn count(&mut self, relation: &Relation, column: usize, n: u64) {
        let same = |(name, _): &(Arc<str>, _)| *name == relation.name;
        let at = self.relations.iter().rposition(same).unwrap_or_else(|| {
            self.relations.push((Arc::clone(&relation.name), [0; 4]));
            self.relations.len() - 1
        });
        self.relations[at].1[column] += n;
    }

    /// Rows changed.
    pub(super) fn change(&mut self, change: &DecodedChange<'_>) {
        if self.xid.is_valid() {
            self.count(change.relation, change.action as usize, change.rows.into());
        }
    }

    /// Relations were truncated.
    pub(super) fn truncate(&mut self, relations: &[&Relation]) {
        if self.xid.is_valid() {
            relations.iter().for_each(|relation| self.count(relation, 3, 1));
            self.truncates += 1;
        }
    }

    /// A line for people.
    pub(super) fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        let which = if self.first { "first block" } else { "block" };
        write!(out, "xid {} {which} from {} to {}", self.xid, self.start_lsn, self.end_lsn)?;
        for (name, counts) in &self.relations {
            write!(out, " | {}", printable(name))?;
            write_counts(out, COLUMNS.into_iter().zip(*counts))?;
        }
        if self.messages > 0 {
            write!(out, " | messages {}", self.messages)?;
        }
        writeln!(out)
    }
}

impl Serialize for &Block {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let relations =
            self.relations.iter().map(|(name, counts)| (&**name, Counts(COLUMNS.into_iter().zip(*counts).collect())));
        let mut map = serializer.serialize_map(Some(7))?;
        map.serialize_entry("block", &self.xid.0)?;
        map.serialize_entry("first", &self.first)?;
        map.serialize_entry("start_lsn", &self.start_lsn.to_string())?;
        map.serialize_entry("end_lsn", &self.end_lsn.to_string())?;
        map.serialize_entry("relations", &Map(relations))?;
        map.serialize_entry("truncates", &self.truncates)?;
        map.serialize_entry("messages", &self.messages)?;
        map.end()
    }
}

/// An object of what an iterator gives.
struct Map<I>(I);

impl<'a, I: Iterator<Item = (&'a str, Counts)> + Clone> Serialize for Map<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.clone())
    }
}

/// A transaction or subtransaction that was rolled back after a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aborted {
    /// Which.
    pub(super) xid: Xid,
    /// Its top-level transaction.
    pub(super) top_xid: Xid,
    /// End of the record that says so.
    pub(super) lsn: Lsn,
}

impl Aborted {
    /// A line for people.
    pub(super) fn write_text(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "xid {} rolled back {} at {}: its changes in blocks are void", self.top_xid, self.xid, self.lsn)
    }
}

impl Serialize for &Aborted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("aborted", &self.xid.0)?;
        map.serialize_entry("top_xid", &self.top_xid.0)?;
        map.serialize_entry("lsn", &self.lsn.to_string())?;
        map.end()
    }
}
