//! One statement with all its numbers: what a step of the file becomes.

use crate::catalog::OnCommit;
use crate::ddl::column::Column;
use crate::ddl::object::ObjectStatement;
use crate::dml::row_lock::RowLock;

use super::{Pause, Template};

/// Which tables a statement means.
#[derive(Clone, Debug)]
pub enum Target {
    /// One.
    Table(Template),
    /// All partitions of one.
    PartitionsOf(Template),
}

/// How a prepared transaction is ended.
#[derive(Clone, Debug)]
pub struct FinishPrepared {
    /// Its name.
    pub gid: Template,
    /// COMMIT PREPARED, not ROLLBACK PREPARED.
    pub commit: bool,
    /// That there is none is no error.
    pub if_exists: bool,
}

/// VACUUM of a table.
#[derive(Clone, Debug)]
pub struct VacuumPlan {
    /// The table.
    pub table: Template,
    /// FREEZE.
    pub freeze: bool,
    /// ANALYZE, too.
    pub analyze: bool,
}

/// How a statement relates to the transaction that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// It is part of a transaction, and begins one if none is open.
    Inside,
    /// It ends the open transaction.
    Ends,
    /// It must not run inside a transaction.
    Alone,
    /// It has nothing to do with transactions.
    Neither,
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
    /// TRUNCATE of one table, whose partitions are counted.
    Truncate(Template),
    /// CREATE TABLE.
    CreateTable {
        /// Its name.
        table: Template,
        /// Its columns.
        columns: Vec<Column>,
        /// It is a partition of this one.
        parent: Option<Template>,
        /// It is partitioned itself.
        partitioned: bool,
        /// It is temporary, and this becomes of it at commit.
        temporary: Option<OnCommit>,
    },
    /// CREATE INDEX on columns.
    CreateIndex {
        /// The table.
        table: Template,
        /// The columns.
        columns: Vec<String>,
        /// The index's name, if not made from those.
        name: Option<Template>,
        /// UNIQUE.
        unique: bool,
    },
    /// Any other statement on objects.
    Object(Box<ObjectStatement<Template>>),
    /// ALTER TABLE ADD COLUMN: the table, the column and its name, which may have blanks.
    AddColumn(Template, Column, Template),
    /// GRANT to a role.
    Grant(Template, String),
    /// SAVEPOINT.
    Savepoint(String),
    /// RELEASE SAVEPOINT.
    Release(String),
    /// ROLLBACK TO SAVEPOINT.
    RollbackTo(String),
    /// COMMIT.
    Commit,
    /// ROLLBACK.
    Rollback,
    /// PREPARE TRANSACTION under a name.
    Prepare(Template),
    /// COMMIT PREPARED or ROLLBACK PREPARED.
    FinishPrepared(FinishPrepared),
    /// INSERT … ON CONFLICT DO UPDATE of rows, of which so many are there.
    InsertOnConflict(Template, u64, u64),
    /// INSERT of rows with a value of so many bytes outside of each.
    InsertLong(Template, u64, u64),
    /// UPDATE of rows, each with a new such value.
    UpdateLong(Template, u64, u64),
    /// Row locks.
    LockRows(Template, u64, RowLock),
    /// `nextval` of a sequence, so many times.
    Nextval(Template, u64),
    /// VACUUM.
    Vacuum(VacuumPlan),
    /// ANALYZE.
    Analyze(Template),
    /// CHECKPOINT.
    Checkpoint,
    /// `pg_log_standby_snapshot()`.
    LogStandbySnapshot,
    /// `pg_switch_wal()`.
    SwitchWal,
    /// A logical message: prefix, bytes of content, and whether it is part of the transaction.
    Message(String, u64, bool),
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
            StatementPlan::CreateTable { .. } => "CREATE TABLE",
            StatementPlan::CreateIndex { .. } => "CREATE INDEX",
            StatementPlan::Object(statement) => statement.name(),
            StatementPlan::AddColumn(..) => "ALTER TABLE ADD COLUMN",
            StatementPlan::Grant(..) => "GRANT",
            StatementPlan::Savepoint(..) => "SAVEPOINT",
            StatementPlan::Release(..) => "RELEASE SAVEPOINT",
            StatementPlan::RollbackTo(..) => "ROLLBACK TO SAVEPOINT",
            StatementPlan::Commit => "COMMIT",
            StatementPlan::Rollback => "ROLLBACK",
            StatementPlan::Prepare(_) => "PREPARE TRANSACTION",
            StatementPlan::FinishPrepared(finish) if finish.commit => "COMMIT PREPARED",
            StatementPlan::FinishPrepared(_) => "ROLLBACK PREPARED",
            StatementPlan::InsertOnConflict(..) => "INSERT ON CONFLICT",
            StatementPlan::InsertLong(..) => "INSERT",
            StatementPlan::UpdateLong(..) => "UPDATE",
            StatementPlan::LockRows(_, _, lock) => lock.sql(),
            StatementPlan::Nextval(..) => "nextval",
            StatementPlan::Vacuum(_) => "VACUUM",
            StatementPlan::Analyze(_) => "ANALYZE",
            StatementPlan::Checkpoint => "CHECKPOINT",
            StatementPlan::LogStandbySnapshot => "pg_log_standby_snapshot",
            StatementPlan::SwitchWal => "pg_switch_wal",
            StatementPlan::Message(..) => "pg_logical_emit_message",
            StatementPlan::Wait(..) => "wait",
            StatementPlan::Repeat { .. } => "repeat",
        }
    }
    /// How it relates to transactions.
    #[must_use]
    pub fn scope(&self) -> Scope {
        match self {
            StatementPlan::Commit | StatementPlan::Rollback | StatementPlan::Prepare(_) => Scope::Ends,
            StatementPlan::FinishPrepared(_) | StatementPlan::Vacuum(_) => Scope::Alone,
            StatementPlan::Object(statement) if statement.is_concurrent() => Scope::Alone,
            StatementPlan::Wait(_)
            | StatementPlan::Repeat { .. }
            | StatementPlan::Checkpoint
            | StatementPlan::LogStandbySnapshot
            | StatementPlan::SwitchWal => Scope::Neither,
            _ => Scope::Inside,
        }
    }
}
