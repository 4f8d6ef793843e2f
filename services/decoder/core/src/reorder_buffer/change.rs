//! One change of a transaction (`ReorderBufferChange`), kept small: a transaction may have hundreds of millions.

use pg_types::{Lsn, Oid, RelFileLocator};

/// What a change does to rows, as decoding shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// Rows were inserted.
    Insert,
    /// Rows were updated.
    Update,
    /// Rows were deleted.
    Delete,
}

/// A row change as the record told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowKind {
    /// Insert with the row.
    Insert,
    /// Insert into a TOAST table.
    InsertToast,
    /// Insert that is confirmed or undone later.
    InsertSpeculative,
    /// Update with the new row.
    Update,
    /// Update without: a catalog's.
    UpdateWithoutRow,
    /// Delete with the old row or its key.
    Delete,
    /// Delete without: of a table without replica identity, of a TOAST table.
    DeleteWithoutRow,
    /// Delete without, told to be a catalog's by the new-cid record before it.
    DeleteOfCatalog,
    /// Insert with the row, of a multi-insert that goes on.
    InsertOfMany,
}

impl RowKind {
    /// All, each at the place of its number.
    pub(crate) const ALL: [RowKind; 9] = [
        Self::Insert,
        Self::InsertToast,
        Self::InsertSpeculative,
        Self::Update,
        Self::UpdateWithoutRow,
        Self::Delete,
        Self::DeleteWithoutRow,
        Self::DeleteOfCatalog,
        Self::InsertOfMany,
    ];

    /// What decoding shows.
    pub(crate) fn action(self) -> Action {
        match self {
            Self::Insert | Self::InsertToast | Self::InsertSpeculative | Self::InsertOfMany => Action::Insert,
            Self::Update | Self::UpdateWithoutRow => Action::Update,
            Self::Delete | Self::DeleteWithoutRow | Self::DeleteOfCatalog => Action::Delete,
        }
    }

    /// The record itself shows that the relation is a catalog.
    pub(crate) fn of_catalog(self) -> bool {
        matches!(self, Self::UpdateWithoutRow | Self::DeleteOfCatalog)
    }

    /// The row or its key is in the record; `pgoutput` sends no DELETE without.
    pub(crate) fn has_row(self) -> bool {
        !matches!(self, Self::DeleteWithoutRow | Self::DeleteOfCatalog)
    }

    /// Without a catalog copy that knows the relation: whether its rows are decoded, as far as the record shows.
    pub(crate) fn looks_logged(self) -> bool {
        !self.of_catalog() && self != Self::InsertToast
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChangeKind {
    /// Rows of one file of the decoder's database, several for a multi-insert.
    Rows {
        /// How.
        kind: RowKind,
        /// How many.
        rows: u16,
        /// The file's tablespace.
        spc: Oid,
        /// The file's number.
        rel: u32,
    },
    /// So many of the rows that come next: some rows of their record are here, since the others did not fit the memory.
    RowsBefore(u16),
    /// The speculative insert before this is confirmed.
    SpeculativeConfirm,
    /// The speculative insert before this is undone.
    SpeculativeAbort,
    /// TRUNCATE; index into the transaction's lists.
    Truncate(u32),
    /// The command id rose to this.
    CommandId(u32),
    /// Own messages of one record: a range of the transaction's messages.
    Invalidations {
        /// First.
        start: u32,
        /// How many.
        len: u32,
    },
    /// Messages that another transaction's commit handed over; index into the transaction's list.
    Inherited(u32),
    /// On demand: catch up with the catalog-changing commits up to this number.
    CatchUp(u32),
    /// A logical message; index into the transaction's list.
    Message(u32),
    /// A historic snapshot that another transaction's commit handed over.
    Snapshot,
}

impl ChangeKind {
    /// Rows of `file`, whose database must be the decoder's.
    pub(crate) fn rows(kind: RowKind, rows: u16, file: RelFileLocator) -> Self {
        Self::Rows { kind, rows, spc: file.spc, rel: file.rel }
    }

    /// What it says of the changes around it (`ReorderBufferProcessPartialChange`).
    pub(crate) fn completeness(self) -> Completeness {
        match self {
            Self::Rows { kind: RowKind::InsertToast | RowKind::InsertSpeculative, .. } => Completeness::Partial,
            Self::Rows { kind: RowKind::Insert | RowKind::Update | RowKind::UpdateWithoutRow, .. }
            | Self::SpeculativeConfirm
            | Self::SpeculativeAbort => Completeness::Completes,
            _ => Completeness::Neutral,
        }
    }

    /// A consumer may be shown it (`RBTXN_HAS_STREAMABLE_CHANGE`).
    pub(crate) fn is_streamable(self) -> bool {
        matches!(self, Self::Rows { .. } | Self::RowsBefore(_) | Self::Truncate(_) | Self::Message(_))
    }

    /// As how many changes PostgreSQL queues it: one per row.
    pub(crate) fn entries(self) -> u32 {
        match self {
            Self::Rows { rows, .. } | Self::RowsBefore(rows) => u32::from(rows),
            _ => 1,
        }
    }
}

/// Whether a transaction can be given out as far as it is collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completeness {
    /// Something must follow: the row of TOAST chunks, the end of a speculative insert.
    Partial,
    /// What had to follow is this.
    Completes,
    /// Neither.
    Neutral,
}

/// One change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    /// Where its record starts.
    pub(crate) lsn: Lsn,
    /// Bytes that PostgreSQL counts for it (`change_size`).
    pub(crate) bytes: u32,
    /// What it is.
    pub(crate) kind: ChangeKind,
}

// The size is part of the design: a tenth more of it is a tenth fewer changes in memory.
const _: () = assert!(size_of::<Change>() <= 24);
