//! Relations as the simulated server knows them: what statements need of a relcache entry, and the way to their catalog rows.

use std::collections::VecDeque;
use std::sync::Arc;

use pg_types::{Oid, Tid};

/// `relkind`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelKind {
    /// A table.
    Table,
    /// A partitioned table: no storage of its own.
    Partitioned,
    /// An index.
    Index,
    /// A sequence.
    Sequence,
    /// A TOAST table.
    Toast,
}

impl RelKind {
    /// The letter in pg_class.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            RelKind::Table => 'r',
            RelKind::Partitioned => 'p',
            RelKind::Index => 'i',
            RelKind::Sequence => 'S',
            RelKind::Toast => 't',
        }
    }
}

/// A row of some catalog, kept in the catalog's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TupleId(pub(super) u32);

/// What pg_class says of a relation's size. An index build compares it and updates the row in place if it differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelStats {
    /// `relpages`.
    pub pages: u32,
    /// `reltuples`, [`None`] for −1, never counted.
    pub tuples: Option<u64>,
    /// `relhasindex`.
    pub has_index: bool,
}

/// One relation.
#[derive(Clone, Debug)]
pub struct Relation {
    /// Its oid.
    pub oid: Oid,
    /// Its name.
    pub name: Arc<str>,
    /// Its schema.
    pub namespace: Oid,
    /// What it is.
    pub kind: RelKind,
    /// Its file, 0 if it has none.
    pub filenode: u32,
    /// Its TOAST table.
    pub toast: Option<Oid>,
    /// Its indexes, oldest first.
    pub indexes: Vec<Oid>,
    /// Its partitions, oldest first.
    pub partitions: Vec<Oid>,
    /// Number of user columns.
    pub natts: u16,
    /// Bytes of a row in a record (with `xl_heap_header`).
    pub row_len: u32,
    /// Size as pg_class has it.
    pub stats: RelStats,
    /// Roles that were granted something.
    pub grantees: Vec<Arc<str>>,
    /// Its pg_class row.
    pub class_row: TupleId,
    /// Its pg_attribute rows, user columns first.
    pub attribute_rows: Vec<TupleId>,
    /// All its other rows.
    pub other_rows: Vec<TupleId>,
}

/// Rows of a user table, as far as the simulation remembers them.
#[derive(Clone, Debug, Default)]
pub struct TableRows {
    /// Rows that a statement may update or delete: committed, not taken by a running transaction. The newest
    /// [`TableRows::REMEMBERED`] only.
    visible: VecDeque<Tid>,
    /// Rows in all (committed or not, without the deleted ones).
    pub count: u64,
}

impl TableRows {
    /// How many rows are remembered for updates and deletes.
    const REMEMBERED: usize = 1024;

    /// A row became visible to everybody.
    pub fn publish(&mut self, tid: Tid) {
        if self.visible.len() == Self::REMEMBERED {
            self.visible.pop_front();
        }
        self.visible.push_back(tid);
    }

    /// Takes the visible row number `draw` modulo their number, so that no other transaction takes it.
    pub fn take(&mut self, draw: u64) -> Option<Tid> {
        if self.visible.is_empty() {
            return None;
        }
        let index = (draw % self.visible.len() as u64) as usize;
        self.visible.swap_remove_back(index)
    }
}
