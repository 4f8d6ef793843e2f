//! One statement with all its numbers: what a step of the file becomes.

use crate::ddl::column::Column;

use super::{Pause, Template};

/// Which tables a statement means.
#[derive(Clone, Debug)]
pub enum Target {
    /// One.
    Table(Template),
    /// All partitions of one.
    PartitionsOf(Template),
}

/// One statement.
#[derive(Clone, Debug)]
pub enum StatementPlan {
    /// INSERT of rows.
    Insert(Target, u64),
    /// COPY of rows.
    Copy(Target, u64),
    /// UPDATE of rows.
    Update(Target, u64),
    /// DELETE of rows.
    Delete(Target, u64),
    /// TRUNCATE.
    Truncate(Template),
    /// CREATE TABLE, perhaps as a partition of another.
    CreateTable(Template, Vec<Column>, Option<Template>),
    /// CREATE INDEX on a column.
    CreateIndex(Template, String),
    /// ALTER TABLE ADD COLUMN.
    AddColumn(Template, Column),
    /// GRANT to a role.
    Grant(Template, String),
    /// SAVEPOINT.
    Savepoint(String),
    /// RELEASE SAVEPOINT.
    Release(String),
    /// ROLLBACK TO SAVEPOINT.
    RollbackTo(String),
    /// A logical message: prefix and bytes of content.
    Message(String, u64),
    /// Wait with the transaction open.
    Wait(Pause),
    /// The next `statements` statements once for each number from `first` to `last`.
    Repeat {
        /// Number of the first turn.
        first: u64,
        /// Number of the last turn; below `first` for none.
        last: u64,
        /// How many statements the loop has, inner loops with theirs.
        statements: usize,
    },
}

impl StatementPlan {
    /// Its name in messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            StatementPlan::Insert(..) => "INSERT",
            StatementPlan::Copy(..) => "COPY",
            StatementPlan::Update(..) => "UPDATE",
            StatementPlan::Delete(..) => "DELETE",
            StatementPlan::Truncate(..) => "TRUNCATE",
            StatementPlan::CreateTable(..) => "CREATE TABLE",
            StatementPlan::CreateIndex(..) => "CREATE INDEX",
            StatementPlan::AddColumn(..) => "ALTER TABLE ADD COLUMN",
            StatementPlan::Grant(..) => "GRANT",
            StatementPlan::Savepoint(..) => "SAVEPOINT",
            StatementPlan::Release(..) => "RELEASE SAVEPOINT",
            StatementPlan::RollbackTo(..) => "ROLLBACK TO SAVEPOINT",
            StatementPlan::Message(..) => "pg_logical_emit_message",
            StatementPlan::Wait(..) => "wait",
            StatementPlan::Repeat { .. } => "repeat",
        }
    }
}
