//! The steps of a transaction, as serde reads them: one variant and one structure each.

use schemars::JsonSchema;
use serde::Deserialize;

use super::amount::{Amount, PauseFile};
use super::at::At;
use super::object_step::*;
use super::part_step::*;

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
    /// TRUNCATE of tables with their partitions.
    Truncate(TruncateFile),
    /// CREATE TABLE.
    CreateTable(CreateTableFile),
    /// CREATE INDEX.
    CreateIndex(CreateIndexFile),
    /// ALTER TABLE ADD COLUMN.
    AddColumn(AddColumnFile),
    /// GRANT.
    Grant(GrantOnTableFile),
    /// DROP TABLE.
    DropTable(DropTableFile),
    /// DROP INDEX.
    DropIndex(IndexFile),
    /// DROP VIEW.
    DropView(ViewFile),
    /// DROP MATERIALIZED VIEW.
    DropMaterializedView(ViewFile),
    /// DROP SEQUENCE.
    DropSequence(SequenceFile),
    /// DROP TYPE.
    DropType(TypeFile),
    /// DROP FUNCTION.
    DropFunction(FunctionFile),
    /// DROP SCHEMA.
    DropSchema(SchemaFile),
    /// DROP PUBLICATION.
    DropPublication(PublicationFile),
    /// ALTER TABLE RENAME.
    RenameTable(RenameTableFile),
    /// ALTER INDEX RENAME.
    RenameIndex(RenameIndexFile),
    /// ALTER VIEW RENAME.
    RenameView(RenameViewFile),
    /// ALTER TYPE RENAME, of an enum.
    RenameType(RenameTypeFile),
    /// ALTER SCHEMA RENAME.
    RenameSchema(RenameSchemaFile),
    /// ALTER TABLE RENAME COLUMN.
    RenameColumn(RenameColumnFile),
    /// ALTER TABLE DROP COLUMN.
    DropColumn(DropColumnFile),
    /// ALTER COLUMN SET DEFAULT.
    SetDefault(ColumnFile),
    /// ALTER COLUMN DROP DEFAULT.
    DropDefault(ColumnFile),
    /// ALTER COLUMN SET NOT NULL.
    SetNotNull(ColumnFile),
    /// ALTER COLUMN DROP NOT NULL.
    DropNotNull(ColumnFile),
    /// ALTER COLUMN SET STORAGE.
    SetStorage(ColumnFile),
    /// ALTER COLUMN SET STATISTICS.
    SetStatistics(ColumnFile),
    /// ALTER COLUMN TYPE: the table is written anew.
    AlterColumnType(AlterColumnTypeFile),
    /// ALTER TABLE ADD CONSTRAINT.
    AddConstraint(AddConstraintFile),
    /// ALTER TABLE DROP CONSTRAINT.
    DropConstraint(DropConstraintFile),
    /// ALTER TABLE SET (fillfactor = …).
    SetReloptions(TableNameFile),
    /// ALTER TABLE REPLICA IDENTITY.
    ReplicaIdentity(ReplicaIdentityFile),
    /// ALTER TABLE ATTACH PARTITION.
    AttachPartition(PartitionFile),
    /// ALTER TABLE DETACH PARTITION.
    DetachPartition(PartitionFile),
    /// REVOKE.
    Revoke(GrantFile),
    /// ALTER TABLE SET SCHEMA.
    SetSchema(SetSchemaFile),
    /// ALTER TABLE INHERIT.
    Inherit(InheritFile),
    /// ALTER TABLE NO INHERIT.
    NoInherit(InheritFile),
    /// COMMENT ON TABLE or COLUMN.
    Comment(CommentFile),
    /// CREATE VIEW of all columns of a table.
    CreateView(CreateViewFile),
    /// CREATE MATERIALIZED VIEW of all rows of a table.
    CreateMaterializedView(CreateMaterializedViewFile),
    /// REFRESH MATERIALIZED VIEW.
    RefreshMaterializedView(ViewFile),
    /// CREATE TYPE: an enum or a composite type.
    CreateType(CreateTypeFile),
    /// ALTER TYPE ADD VALUE.
    AddEnumValue(AddEnumValueFile),
    /// CREATE FUNCTION.
    CreateFunction(CreateFunctionFile),
    /// CREATE SCHEMA.
    CreateSchema(SchemaFile),
    /// CREATE PUBLICATION.
    CreatePublication(CreatePublicationFile),
    /// ALTER PUBLICATION: tables, options or name.
    AlterPublication(AlterPublicationFile),
    /// CREATE SEQUENCE.
    CreateSequence(SequenceFile),
    /// ALTER SEQUENCE.
    AlterSequence(SequenceFile),
    /// CREATE TRIGGER.
    CreateTrigger(CreateTriggerFile),
    /// DROP TRIGGER.
    DropTrigger(DropTriggerFile),
    /// REINDEX TABLE.
    ReindexTable(ReindexTableFile),
    /// REINDEX INDEX.
    ReindexIndex(IndexFile),
    /// CLUSTER by an index: the table is written anew.
    Cluster(ClusterFile),
    /// VACUUM FULL: the table is written anew.
    VacuumFull(TableNameFile),
    /// CREATE POLICY.
    CreatePolicy(PolicyFile),
    /// DROP POLICY.
    DropPolicy(PolicyFile),
    /// ALTER TABLE ENABLE or DISABLE ROW LEVEL SECURITY.
    RowLevelSecurity(TableNameFile),
    /// CREATE RULE ON INSERT DO ALSO NOTHING.
    CreateRule(RuleFile),
    /// DROP RULE.
    DropRule(RuleFile),
    /// ALTER TABLE ENABLE TRIGGER.
    EnableTrigger(DropTriggerFile),
    /// ALTER TABLE DISABLE TRIGGER.
    DisableTrigger(DropTriggerFile),
    /// ALTER TRIGGER RENAME.
    RenameTrigger(RenameTriggerFile),
    /// ALTER TABLE VALIDATE CONSTRAINT.
    ValidateConstraint(ConstraintFile),
    /// ALTER TABLE RENAME CONSTRAINT.
    RenameConstraint(RenameConstraintFile),
    /// ALTER TABLE OWNER TO.
    OwnerTo(OwnerFile),
    /// LOCK TABLE in AccessExclusive mode.
    LockTable(TableNameFile),
    /// CREATE DOMAIN.
    CreateDomain(CreateDomainFile),
    /// ALTER DOMAIN ADD CONSTRAINT, a check.
    AddDomainCheck(DomainFile),
    /// DROP DOMAIN.
    DropDomain(DomainFile),
    /// CREATE STATISTICS.
    CreateStatistics(CreateStatisticsFile),
    /// DROP STATISTICS.
    DropStatistics(StatisticsFile),
    /// ALTER SEQUENCE RENAME.
    RenameSequence(RenameSequenceFile),
    /// ALTER SEQUENCE OWNED BY.
    OwnSequence(OwnSequenceFile),
    /// `setval` of a sequence.
    Setval(SequenceFile),
    /// CREATE TABLE AS.
    CreateTableAs(CreateTableAsFile),
    /// CREATE ROLE.
    CreateRole(RoleFile),
    /// ALTER ROLE.
    AlterRole(RoleFile),
    /// DROP ROLE.
    DropRole(RoleFile),
    /// GRANT on a schema.
    GrantOnSchema(GrantOnSchemaFile),
    /// GRANT on a function.
    GrantOnFunction(GrantOnFunctionFile),
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
    /// `nextval` of a sequence.
    Nextval(NextvalFile),
    /// VACUUM of a table.
    Vacuum(VacuumFile),
    /// ANALYZE of a table.
    Analyze(TableNameFile),
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

/// TRUNCATE.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct TruncateFile {
    /// The table.
    pub(super) table: Option<String>,
    /// Or several tables.
    #[serde(default)]
    pub(super) tables: Vec<String>,
    /// Tables with foreign keys to these, too.
    #[serde(default)]
    pub(super) cascade: bool,
    /// Sequences of these, too.
    #[serde(default)]
    pub(super) restart_identity: bool,
}

/// CREATE TABLE.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateTableFile {
    /// Its name.
    pub(super) table: String,
    /// Column definitions. A partition has its parent's.
    #[serde(default)]
    pub(super) columns: Vec<String>,
    /// It is a partition of this table, whose columns it repeats.
    pub(super) partition_of: Option<String>,
    /// It is partitioned itself, by its first column.
    #[serde(default)]
    pub(super) partitioned: bool,
    /// It is the session's own, and goes when the session leaves.
    #[serde(default)]
    pub(super) temporary: bool,
    /// What becomes of a temporary table at commit. Its rows stay if not said.
    pub(super) on_commit: Option<OnCommitFile>,
}

/// ON COMMIT.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum OnCommitFile {
    /// Its rows stay.
    PreserveRows,
    /// Its rows go.
    DeleteRows,
    /// It goes.
    Drop,
}

/// CREATE INDEX.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CreateIndexFile {
    /// The table.
    pub(super) table: String,
    /// The column.
    pub(super) column: Option<String>,
    /// Or several columns.
    #[serde(default)]
    pub(super) columns: Vec<String>,
    /// Its name; `TABLE_COLUMN_idx` if not said.
    pub(super) name: Option<String>,
    /// UNIQUE.
    #[serde(default)]
    pub(super) unique: bool,
    /// CONCURRENTLY: outside of transactions, as several of its own.
    #[serde(default)]
    pub(super) concurrently: bool,
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

/// `nextval`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NextvalFile {
    /// The sequence; a serial column has `table_column_seq`.
    pub(super) sequence: String,
    /// How often. 1 if not said.
    pub(super) times: Option<Amount>,
}
