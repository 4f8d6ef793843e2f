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
    /// An index of a partitioned table: no storage of its own.
    PartitionedIndex,
    /// A sequence.
    Sequence,
    /// A TOAST table.
    Toast,
    /// A view: no storage.
    View,
    /// A materialized view.
    MaterializedView,
    /// The columns of a composite type: no storage.
    CompositeType,
}

impl RelKind {
    /// The letter in pg_class.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            RelKind::Table => 'r',
            RelKind::Partitioned => 'p',
            RelKind::Index => 'i',
            RelKind::PartitionedIndex => 'I',
            RelKind::Sequence => 'S',
            RelKind::Toast => 't',
            RelKind::View => 'v',
            RelKind::MaterializedView => 'm',
            RelKind::CompositeType => 'c',
        }
    }

    /// Whether it has a file (`RELKIND_HAS_STORAGE`).
    #[must_use]
    pub fn has_storage(self) -> bool {
        !matches!(self, RelKind::Partitioned | RelKind::PartitionedIndex | RelKind::View | RelKind::CompositeType)
    }

    /// Whether it is a table that ALTER TABLE is for.
    #[must_use]
    pub fn is_table(self) -> bool {
        matches!(self, RelKind::Table | RelKind::Partitioned)
    }

    /// Whether it is an index.
    #[must_use]
    pub fn is_index(self) -> bool {
        matches!(self, RelKind::Index | RelKind::PartitionedIndex)
    }

    /// Whether it has system columns.
    #[must_use]
    pub fn has_system_columns(self) -> bool {
        !self.is_index() && !matches!(self, RelKind::View | RelKind::CompositeType)
    }
}

/// A row of some catalog, kept in the catalog's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TupleId(pub(in crate::catalog) u32);

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

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// Its name.
    pub name: Arc<str>,
    /// Its type's name.
    pub type_name: Arc<str>,
    /// Its type, if a statement made that.
    pub type_oid: Option<Oid>,
    /// Bytes of a value on average.
    pub width: u32,
    /// Long values go to a TOAST table.
    pub toastable: bool,
    /// NOT NULL.
    pub not_null: bool,
    /// Rows that were there before it have a default that only the catalog knows (`atthasmissing`).
    pub missing: bool,
    /// It was dropped: its row stays.
    pub dropped: bool,
}

impl Attribute {
    /// Bytes that a row of these columns has in a record: `xl_heap_header`, padding, values.
    #[must_use]
    pub fn row_len(columns: &[Attribute]) -> u32 {
        6 + columns.iter().map(|column| column.width).sum::<u32>()
    }
}

/// What a table's constraint is.
#[derive(Clone, Debug)]
pub struct Constraint {
    /// Its oid.
    pub oid: Oid,
    /// Its name.
    pub name: Arc<str>,
    /// `contype`: c, f, n, p, u.
    pub kind: u8,
    /// The column.
    pub attnum: i16,
    /// All rows are known to fulfil it (`convalidated`).
    pub valid: bool,
}

/// A trigger that a user made.
#[derive(Clone, Debug)]
pub struct Trigger {
    /// Its oid.
    pub oid: Oid,
    /// Its name.
    pub name: Arc<str>,
    /// It fires (`tgenabled`).
    pub enabled: bool,
}

/// `relreplident`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplicaIdentity {
    /// The primary key.
    #[default]
    Default,
    /// Nothing.
    Nothing,
    /// The whole row.
    Full,
    /// The columns of an index.
    Index,
}

impl ReplicaIdentity {
    /// The letter in pg_class.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            ReplicaIdentity::Default => 'd',
            ReplicaIdentity::Nothing => 'n',
            ReplicaIdentity::Full => 'f',
            ReplicaIdentity::Index => 'i',
        }
    }
}

/// What pg_index says of an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexInfo {
    /// Its table.
    pub table: Oid,
    /// Columns of the table that it is over.
    pub key: Vec<i16>,
    /// UNIQUE.
    pub unique: bool,
    /// Of a primary key.
    pub primary: bool,
    /// Chosen by REPLICA IDENTITY.
    pub replica_identity: bool,
    /// Chosen by CLUSTER.
    pub clustered: bool,
    /// It gets no entries: it is not filled yet, or is about to go (not `indisready`).
    pub unready: bool,
}

/// What becomes of a temporary table when the transaction commits (`OnCommitAction`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnCommit {
    /// Nothing.
    #[default]
    PreserveRows,
    /// Its rows are deleted.
    DeleteRows,
    /// It is dropped.
    Drop,
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
    /// It is a session's own, in its temporary schema: what is in its file is not logged (`RELPERSISTENCE_TEMP`).
    pub temporary: bool,
    /// A rewrite fills it, to give its file to another one (`relrewrite`).
    pub transient: bool,
    /// What becomes of it at commit, if it is temporary.
    pub on_commit: OnCommit,
    /// What it is.
    pub kind: RelKind,
    /// Its file, 0 if it has none.
    pub filenode: u32,
    /// Its TOAST table.
    pub toast: Option<Oid>,
    /// Its indexes, oldest first.
    pub indexes: Vec<Oid>,
    /// Its partitions, or an index's in those, by oid.
    pub partitions: Vec<Oid>,
    /// The table or index whose partition it is.
    pub parent: Option<Oid>,
    /// What an index is over.
    pub index: Option<IndexInfo>,
    /// Its columns, dropped ones too.
    pub columns: Vec<Attribute>,
    /// Its constraints, oldest first.
    pub constraints: Vec<Constraint>,
    /// Its triggers, oldest first.
    pub triggers: Vec<Trigger>,
    /// `relhastriggers`: it has or had triggers, a foreign key's too.
    pub has_triggers: bool,
    /// `relhassubclass`: it has or had partitions.
    pub has_subclass: bool,
    /// `relispopulated`, of a materialized view.
    pub populated: bool,
    /// Bytes of a row in a record (with `xl_heap_header`).
    pub row_len: u32,
    /// Size as pg_class has it.
    pub stats: RelStats,
    /// What updates and deletes tell of the old row.
    pub replica_identity: ReplicaIdentity,
    /// Roles that were granted something.
    pub grantees: Vec<Arc<str>>,
    /// Its pg_class row.
    pub class_row: TupleId,
}

impl Relation {
    /// A column's number by name.
    #[must_use]
    pub fn attnum(&self, column: &str) -> Option<i16> {
        let index = self.columns.iter().position(|known| !known.dropped && *known.name == *column)?;
        i16::try_from(index + 1).ok()
    }

    /// A column by its number.
    #[must_use]
    pub fn attribute(&self, attnum: i16) -> Option<&Attribute> {
        usize::try_from(attnum - 1).ok().and_then(|index| self.columns.get(index))
    }

    /// The same to change it.
    pub fn attribute_mut(&mut self, attnum: i16) -> Option<&mut Attribute> {
        usize::try_from(attnum - 1).ok().and_then(|index| self.columns.get_mut(index))
    }
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
