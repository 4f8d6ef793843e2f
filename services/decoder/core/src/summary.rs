//! What is kept of a transaction for who asks for its story later: bounded, whatever it was.

use std::sync::Arc;

use pg_types::Lsn;

use crate::footprint::Footprint;
use crate::footprint::story::Story;
use crate::output::{DecodedTransaction, MessageCounts, RelationChanges};

/// Relations that are kept: those with the most changes.
pub const RELATIONS_KEPT_MAX: usize = 32;

/// Rows changed in all relations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowSums {
    /// Inserted.
    pub insert: u64,
    /// Updated.
    pub update: u64,
    /// Deleted.
    pub delete: u64,
    /// Relations in which.
    pub relations: u64,
}

/// A transaction as it is kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Where its first record starts.
    pub first_lsn: Lsn,
    /// As [`DecodedTransaction::restart_lsn`].
    pub restart_lsn: Lsn,
    /// What it did beside changing rows, if anything.
    pub footprint: Option<Box<Footprint>>,
    /// Rows by relation, at most [`RELATIONS_KEPT_MAX`], in the order of the first change of each or, of more, most changes first.
    pub relations: Vec<RelationChanges>,
    /// Relations that are not among these.
    pub relations_left_out: u64,
    /// Rows of all relations.
    pub rows: RowSums,
    /// Its messages by kind.
    pub messages: MessageCounts,
    /// It was prepared.
    pub prepared: bool,
    /// Its subtransactions that count.
    pub subxids: u64,
}

impl DecodedTransaction {
    /// What is kept of it.
    #[must_use]
    pub fn summary(&self) -> Summary {
        let mut rows = RowSums::default();
        for relation in self.relations.iter().filter(|r| r.insert + r.update + r.delete > 0) {
            rows.insert += relation.insert;
            rows.update += relation.update;
            rows.delete += relation.delete;
            rows.relations += 1;
        }
        let left_out = self.relations.len().saturating_sub(RELATIONS_KEPT_MAX);
        let relations = if left_out == 0 { self.relations.clone() } else { most_changed(&self.relations) };
        Summary {
            first_lsn: self.first_lsn,
            restart_lsn: self.restart_lsn,
            footprint: (!self.footprint.is_empty()).then(|| Box::new(self.footprint.clone())),
            relations,
            relations_left_out: left_out as u64,
            rows,
            messages: self.messages,
            prepared: !self.gid.is_empty(),
            subxids: self.subxids.len() as u64,
        }
    }

    /// What it looks like.
    #[must_use]
    pub fn story(&self) -> Story {
        self.summary().story()
    }
}

impl Summary {
    /// The name of the only relation whose rows changed.
    #[must_use]
    pub fn only_relation(&self) -> Option<&Arc<str>> {
        let changed = self.relations.iter().find(|r| r.insert + r.update + r.delete > 0);
        changed.filter(|_| self.rows.relations == 1).map(|r| &r.name)
    }
}

/// The relations with the most changes, most first.
fn most_changed(relations: &[RelationChanges]) -> Vec<RelationChanges> {
    let changes = |r: &RelationChanges| r.insert + r.update + r.delete + r.truncate;
    let mut order: Vec<&RelationChanges> = relations.iter().collect();
    order.sort_by_key(|r| std::cmp::Reverse(changes(r)));
    order.into_iter().take(RELATIONS_KEPT_MAX).cloned().collect()
}

#[cfg(test)]
mod tests {
    use pg_types::Oid;

    use super::*;

    #[test]
    fn of_many_relations_those_with_the_most_changes_stay_and_sums_are_of_all() {
        let relation = |i: u64| {
            let (name, oid) = (format!("t{i}").into(), Oid(i as u32));
            RelationChanges { name, oid, insert: i, update: 0, delete: 1, truncate: 0, number: i as u32 }
        };
        let t = DecodedTransaction { relations: (0..100).map(relation).collect(), ..DecodedTransaction::default() };
        let summary = t.summary();
        assert_eq!((summary.relations.len(), summary.relations_left_out), (RELATIONS_KEPT_MAX, 68));
        assert_eq!((&*summary.relations[0].name, &*summary.relations[31].name), ("t99", "t68"));
        assert_eq!(summary.rows, RowSums { insert: 4950, update: 0, delete: 100, relations: 100 });
        assert_eq!(summary.story().to_string(), "4,950 inserts, 100 deletes in 100 relations");
    }
}
