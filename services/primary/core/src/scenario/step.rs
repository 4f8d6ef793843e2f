//! The steps of a transaction, as serde reads them: one variant and one structure each.

use schemars::JsonSchema;
use serde::Deserialize;

use super::amount::{Amount, PauseFile};
use super::at::At;

/// One step of a transaction.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum StepFile {
    /// Rows, a record each.
    Insert(RowsFile),
    /// Rows, a record a page.
    Copy(RowsFile),
    /// Rows changed.
    Update(RowsFile),
    /// Rows deleted.
    Delete(RowsFile),
    /// TRUNCATE of a table with its partitions.
    Truncate(OnFile),
    /// CREATE TABLE.
    CreateTable(CreateTableFile),
    /// CREATE INDEX.
    CreateIndex(CreateIndexFile),
    /// ALTER TABLE ADD COLUMN.
    AddColumn(AddColumnFile),
    /// GRANT.
    Grant(GrantFile),
    /// SAVEPOINT.
    Savepoint(String),
    /// RELEASE SAVEPOINT.
    Release(String),
    /// ROLLBACK TO SAVEPOINT.
    RollbackTo(String),
    /// COMMIT; the next step begins a transaction.
    Commit(NothingFile),
    /// ROLLBACK; the next step begins a transaction.
    Rollback(NothingFile),
    /// PREPARE TRANSACTION.
    Prepare(PrepareFile),
    /// COMMIT PREPARED.
    CommitPrepared(FinishPreparedFile),
    /// ROLLBACK PREPARED.
    RollbackPrepared(FinishPreparedFile),
    /// INSERT … ON CONFLICT DO UPDATE.
    InsertOnConflict(OnConflictFile),
    /// Rows with a value so long that it goes to the TOAST table.
    InsertLong(LongFile),
    /// Such a value of rows changed.
    UpdateLong(LongFile),
    /// SELECT … FOR UPDATE and the like.
    LockRows(LockRowsFile),
    /// VACUUM of a table.
    Vacuum(VacuumFile),
    /// ANALYZE of a table.
    Analyze(OnFile),
    /// CHECKPOINT.
    Checkpoint(NothingFile),
    /// `pg_log_standby_snapshot()`: running transactions are logged.
    LogStandbySnapshot(NothingFile),
    /// `pg_switch_wal()`: the rest of the segment stays unused.
    SwitchWal(NothingFile),
    /// A transactional logical message.
    Message(MessageFile),
    /// The transaction stays open.
    Wait(PauseFile),
    /// Steps several times over.
    Repeat(RepeatFile),
}

/// Where rows go and how many.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RowsFile {
    /// The table.
    pub(super) table: Option<String>,
    /// Or all partitions of this table, one after the other.
    pub(super) partitions_of: Option<String>,
    /// How many, in each. 1 if not said.
    pub(super) rows: Option<Amount>,
}

/// A table.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OnFile {
    /// The table.
    pub(super) table: String,
}

/// CREATE TABLE.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateTableFile {
    /// Its name.
    pub(super) table: String,
    /// Column definitions.
    pub(super) columns: Vec<String>,
    /// It is a partition of this table, whose columns it repeats.
    pub(super) partition_of: Option<String>,
}

/// CREATE INDEX.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateIndexFile {
    /// The table.
    pub(super) table: String,
    /// The column.
    pub(super) column: String,
}

/// ALTER TABLE ADD COLUMN.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct AddColumnFile {
    /// The table.
    pub(super) table: String,
    /// The column's definition.
    pub(super) column: String,
}

/// GRANT.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GrantFile {
    /// The table.
    pub(super) table: String,
    /// The role.
    pub(super) role: String,
}

/// A logical message.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct MessageFile {
    /// Its prefix.
    pub(super) prefix: String,
    /// Bytes of its content.
    pub(super) bytes: Option<Amount>,
    /// It is there only if its transaction commits; so it is if not said.
    pub(super) transactional: Option<bool>,
}

/// Steps several times over; `{i}` in their names is the turn, from 1, `{j}` that of the repeat around.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RepeatFile {
    /// How often.
    pub(super) times: Amount,
    /// What.
    pub(super) steps: Vec<At<StepFile>>,
}

/// Nothing needs to be said: `{}`.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NothingFile {}

/// PREPARE TRANSACTION.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PrepareFile {
    /// The name, which may have blanks.
    pub(super) gid: String,
}

/// COMMIT PREPARED or ROLLBACK PREPARED.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FinishPreparedFile {
    /// The name, which may have blanks.
    pub(super) gid: String,
    /// Nothing happens if none is prepared under that name; an error if not said.
    #[serde(default)]
    pub(super) if_exists: bool,
}

/// VACUUM.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct VacuumFile {
    /// The table.
    pub(super) table: String,
    /// FREEZE.
    #[serde(default)]
    pub(super) freeze: bool,
    /// ANALYZE, too.
    #[serde(default)]
    pub(super) analyze: bool,
}

/// INSERT … ON CONFLICT DO UPDATE.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OnConflictFile {
    /// The table, which has a key.
    pub(super) table: String,
    /// How many rows. 1 if not said.
    pub(super) rows: Option<Amount>,
    /// How many of them are there already. 0 if not said.
    pub(super) conflicts: Option<Amount>,
}

/// Rows with a long value.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LongFile {
    /// The table.
    pub(super) table: String,
    /// How many rows. 1 if not said.
    pub(super) rows: Option<Amount>,
    /// Bytes of each value.
    pub(super) bytes: Amount,
}

/// Rows to lock.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LockRowsFile {
    /// The table.
    pub(super) table: String,
    /// How many rows. 1 if not said.
    pub(super) rows: Option<Amount>,
    /// How strongly; for update if not said.
    #[serde(default)]
    pub(super) mode: RowLockFile,
}

/// How rows are locked.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum RowLockFile {
    /// FOR UPDATE.
    #[default]
    Update,
    /// FOR NO KEY UPDATE.
    NoKeyUpdate,
    /// FOR SHARE.
    Share,
    /// FOR KEY SHARE.
    KeyShare,
}
