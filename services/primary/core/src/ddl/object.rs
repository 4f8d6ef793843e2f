//! Statements on objects by name, as a scenario has them.
//!
//! A name is a pattern in the plan and a text when the statement runs; [`ObjectStatement::try_map`] goes from one to the other.

use std::sync::Arc;

use super::column::Column;
pub(crate) use super::object_action::{PartAction, TableAction};
use crate::catalog::ReplicaIdentity;

/// What kind of object a name means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A table.
    Table,
    /// An index.
    Index,
    /// A view.
    View,
    /// A materialized view.
    MaterializedView,
    /// A sequence.
    Sequence,
    /// A type.
    Type,
    /// A domain.
    Domain,
    /// A statistics object.
    Statistics,
    /// A function.
    Function,
    /// A schema.
    Schema,
    /// A publication.
    Publication,
}

impl ObjectKind {
    /// Its name in SQL.
    #[must_use]
    pub fn sql(self) -> &'static str {
        match self {
            ObjectKind::Table => "TABLE",
            ObjectKind::Index => "INDEX",
            ObjectKind::View => "VIEW",
            ObjectKind::MaterializedView => "MATERIALIZED VIEW",
            ObjectKind::Sequence => "SEQUENCE",
            ObjectKind::Type => "TYPE",
            ObjectKind::Domain => "DOMAIN",
            ObjectKind::Statistics => "STATISTICS",
            ObjectKind::Function => "FUNCTION",
            ObjectKind::Schema => "SCHEMA",
            ObjectKind::Publication => "PUBLICATION",
        }
    }

    /// Whether such an object has a row in pg_class.
    #[must_use]
    pub fn is_relation(self) -> bool {
        matches!(
            self,
            ObjectKind::Table | ObjectKind::Index | ObjectKind::View | ObjectKind::MaterializedView | ObjectKind::Sequence
        )
    }
}

/// What ALTER TABLE … COLUMN does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnAction {
    /// DROP COLUMN.
    Drop,
    /// SET DEFAULT.
    SetDefault,
    /// DROP DEFAULT.
    DropDefault,
    /// SET NOT NULL.
    SetNotNull,
    /// DROP NOT NULL.
    DropNotNull,
    /// SET STORAGE.
    SetStorage,
    /// SET STATISTICS.
    SetStatistics,
}

impl ColumnAction {
    /// Its name in SQL.
    #[must_use]
    pub fn sql(self) -> &'static str {
        match self {
            ColumnAction::Drop => "DROP COLUMN",
            ColumnAction::SetDefault => "SET DEFAULT of",
            ColumnAction::DropDefault => "DROP DEFAULT of",
            ColumnAction::SetNotNull => "SET NOT NULL of",
            ColumnAction::DropNotNull => "DROP NOT NULL of",
            ColumnAction::SetStorage => "SET STORAGE of",
            ColumnAction::SetStatistics => "SET STATISTICS of",
        }
    }
}

/// What a new constraint is, with its column.
#[derive(Clone, Debug, PartialEq)]
pub enum ConstraintSpec<N> {
    /// PRIMARY KEY.
    PrimaryKey(String),
    /// UNIQUE.
    Unique(String),
    /// CHECK.
    Check(String),
    /// FOREIGN KEY to the primary key of another table.
    ForeignKey(String, N),
}

/// What happens to a role, which all databases share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleAction {
    /// CREATE ROLE.
    Create,
    /// ALTER ROLE.
    Alter,
    /// DROP ROLE.
    Drop,
}

/// What ALTER PUBLICATION does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublicationChange {
    /// ADD TABLE.
    AddTable,
    /// DROP TABLE.
    DropTable,
    /// SET TABLE.
    SetTable,
    /// SET (publish = …).
    SetOptions,
}

/// A statement.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // Fields are what their names say.
pub enum ObjectStatement<N> {
    /// DROP of anything.
    Drop { what: ObjectKind, name: N, cascade: bool },
    /// RENAME of anything.
    Rename { what: ObjectKind, name: N, to: N },
    /// ALTER TABLE … COLUMN.
    Column { action: ColumnAction, table: N, column: String, cascade: bool },
    /// RENAME COLUMN.
    RenameColumn { table: N, column: String, to: Arc<str> },
    /// ALTER COLUMN TYPE.
    AlterColumnType { table: N, column: Column },
    /// ADD CONSTRAINT.
    AddConstraint { table: N, name: N, constraint: ConstraintSpec<N>, not_valid: bool },
    /// DROP CONSTRAINT.
    DropConstraint { table: N, name: N, cascade: bool },
    /// ALTER TABLE … SET (…).
    SetReloptions { table: N },
    /// REPLICA IDENTITY.
    ReplicaIdentity { table: N, identity: ReplicaIdentity, index: Option<N> },
    /// ATTACH PARTITION.
    AttachPartition { table: N, partition: N },
    /// DETACH PARTITION.
    DetachPartition { table: N, partition: N },
    /// REVOKE.
    Revoke { table: N, role: String },
    /// COMMENT ON a table or a column.
    Comment { table: N, column: Option<String>, remove: bool },
    /// CREATE VIEW.
    CreateView { name: N, table: N, replace: bool },
    /// CREATE MATERIALIZED VIEW.
    CreateMaterializedView { name: N, table: N },
    /// REFRESH MATERIALIZED VIEW.
    RefreshMaterializedView { name: N },
    /// CREATE TYPE … AS ENUM.
    CreateEnum { name: N, labels: Vec<Arc<str>> },
    /// CREATE TYPE … AS (…).
    CreateCompositeType { name: N, columns: Vec<Column> },
    /// ALTER TYPE … ADD VALUE.
    AddEnumValue { name: N, label: N },
    /// CREATE FUNCTION.
    CreateFunction { name: N, replace: bool },
    /// CREATE SCHEMA.
    CreateSchema { name: N },
    /// CREATE PUBLICATION.
    CreatePublication { name: N, tables: Vec<N>, all_tables: bool, schema: Option<N>, reads: Vec<String> },
    /// ALTER PUBLICATION … OWNER TO.
    PublicationOwner { name: N, role: String },
    /// INHERIT, or NO INHERIT.
    Inherit { table: N, parent: N, add: bool },
    /// ALTER PUBLICATION.
    AlterPublication { name: N, change: PublicationChange, tables: Vec<N> },
    /// CREATE SEQUENCE.
    CreateSequence { name: N },
    /// ALTER SEQUENCE.
    AlterSequence { name: N },
    /// CREATE TRIGGER.
    CreateTrigger { table: N, name: N, function: N },
    /// DROP TRIGGER.
    DropTrigger { table: N, name: N },
    /// REINDEX of a table or an index.
    Reindex { name: N },
    /// CREATE INDEX CONCURRENTLY.
    CreateIndexConcurrently { table: N, name: N, columns: Vec<String>, unique: bool },
    /// DROP INDEX CONCURRENTLY.
    DropIndexConcurrently { index: N },
    /// REINDEX CONCURRENTLY of a table or an index.
    ReindexConcurrently { name: N },
    /// CLUSTER by an index.
    Cluster { table: N, index: N },
    /// VACUUM FULL.
    VacuumFull { table: N },
    /// A part of a table.
    Part { action: PartAction, table: N, name: N },
    /// A table as a whole.
    Table { action: TableAction, table: N },
    /// RENAME of a constraint, or of a trigger.
    RenamePart { trigger: bool, table: N, name: N, to: N },
    /// CREATE DOMAIN over a column's type.
    CreateDomain { name: N, base: Column, check: bool },
    /// ALTER DOMAIN ADD CONSTRAINT.
    AddDomainCheck { name: N },
    /// CREATE STATISTICS.
    CreateStatistics { name: N, table: N, columns: Vec<String> },
    /// ALTER SEQUENCE OWNED BY a column, or by none.
    OwnSequence { sequence: N, owner: Option<(N, String)> },
    /// `setval` of a sequence.
    Setval { sequence: N },
    /// CREATE TABLE AS.
    CreateTableAs { name: N, table: N },
    /// CREATE, ALTER, DROP ROLE.
    Role { action: RoleAction, name: N },
    /// GRANT on something that is no relation.
    GrantOn { what: ObjectKind, name: N, role: String },
    /// TRUNCATE of tables.
    Truncate { tables: Vec<N>, cascade: bool, restart_identity: bool },
}

impl<N> ObjectStatement<N> {
    /// Its name in messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        use ObjectStatement as S;
        match self {
            S::Drop { .. } => "DROP",
            S::Rename { .. } => "RENAME",
            S::Column { .. } => "ALTER TABLE ALTER COLUMN",
            S::RenameColumn { .. } => "ALTER TABLE RENAME COLUMN",
            S::AlterColumnType { .. } => "ALTER COLUMN TYPE",
            S::AddConstraint { .. } => "ADD CONSTRAINT",
            S::DropConstraint { .. } => "DROP CONSTRAINT",
            S::SetReloptions { .. } => "ALTER TABLE SET",
            S::ReplicaIdentity { .. } => "REPLICA IDENTITY",
            S::AttachPartition { .. } => "ATTACH PARTITION",
            S::DetachPartition { .. } => "DETACH PARTITION",
            S::Revoke { .. } => "REVOKE",
            S::Comment { .. } => "COMMENT",
            S::CreateView { .. } => "CREATE VIEW",
            S::CreateMaterializedView { .. } => "CREATE MATERIALIZED VIEW",
            S::RefreshMaterializedView { .. } => "REFRESH MATERIALIZED VIEW",
            S::CreateEnum { .. } | S::CreateCompositeType { .. } => "CREATE TYPE",
            S::AddEnumValue { .. } => "ALTER TYPE ADD VALUE",
            S::CreateFunction { .. } => "CREATE FUNCTION",
            S::CreateSchema { .. } => "CREATE SCHEMA",
            S::CreatePublication { .. } => "CREATE PUBLICATION",
            S::AlterPublication { .. } | S::PublicationOwner { .. } => "ALTER PUBLICATION",
            S::Inherit { add: true, .. } => "INHERIT",
            S::Inherit { add: false, .. } => "NO INHERIT",
            S::CreateSequence { .. } => "CREATE SEQUENCE",
            S::AlterSequence { .. } => "ALTER SEQUENCE",
            S::CreateTrigger { .. } => "CREATE TRIGGER",
            S::DropTrigger { .. } => "DROP TRIGGER",
            S::Reindex { .. } => "REINDEX",
            S::CreateIndexConcurrently { .. } => "CREATE INDEX CONCURRENTLY",
            S::DropIndexConcurrently { .. } => "DROP INDEX CONCURRENTLY",
            S::ReindexConcurrently { .. } => "REINDEX CONCURRENTLY",
            S::Cluster { .. } => "CLUSTER",
            S::VacuumFull { .. } => "VACUUM FULL",
            S::Part { action, .. } => action.sql(),
            S::Table { action, .. } => action.sql(),
            S::RenamePart { .. } => "ALTER TABLE RENAME",
            S::CreateDomain { .. } => "CREATE DOMAIN",
            S::AddDomainCheck { .. } => "ALTER DOMAIN",
            S::CreateStatistics { .. } => "CREATE STATISTICS",
            S::OwnSequence { .. } => "ALTER SEQUENCE OWNED BY",
            S::Setval { .. } => "setval",
            S::CreateTableAs { .. } => "CREATE TABLE AS",
            S::Role { .. } => "ROLE",
            S::GrantOn { .. } => "GRANT",
            S::Truncate { .. } => "TRUNCATE",
        }
    }

    /// Whether it is several transactions, each of which lets others change rows.
    #[must_use]
    pub fn is_concurrent(&self) -> bool {
        use ObjectStatement as S;
        matches!(self, S::CreateIndexConcurrently { .. } | S::DropIndexConcurrently { .. } | S::ReindexConcurrently { .. })
    }

    /// Names of relations that are there and that the statement locks.
    #[must_use]
    pub fn locked(&self) -> Vec<&N> {
        use ObjectStatement as S;
        match self {
            S::Drop { what, name, .. } | S::Rename { what, name, .. } if what.is_relation() => vec![name],
            S::Column { table, .. }
            | S::RenameColumn { table, .. }
            | S::AlterColumnType { table, .. }
            | S::DropConstraint { table, .. }
            | S::SetReloptions { table }
            | S::ReplicaIdentity { table, .. }
            | S::Revoke { table, .. }
            | S::Comment { table, .. }
            | S::CreateTrigger { table, .. }
            | S::DropTrigger { table, .. }
            | S::VacuumFull { table }
            | S::Part { table, .. }
            | S::Table { table, .. }
            | S::RenamePart { table, .. }
            | S::CreateStatistics { table, .. }
            | S::CreateTableAs { table, .. }
            | S::CreateIndexConcurrently { table, .. }
            | S::Cluster { table, .. } => vec![table],
            S::OwnSequence { sequence, owner } => {
                std::iter::once(sequence).chain(owner.iter().map(|(table, _)| table)).collect()
            }
            S::Setval { sequence } => vec![sequence],
            S::AddConstraint { table, constraint: ConstraintSpec::ForeignKey(_, other), .. } => vec![table, other],
            S::AddConstraint { table, .. } => vec![table],
            S::AttachPartition { table, partition } | S::DetachPartition { table, partition } => vec![table, partition],
            S::Inherit { table, parent, .. } => vec![table, parent],
            S::RefreshMaterializedView { name } | S::AlterSequence { name } | S::Reindex { name } => vec![name],
            S::ReindexConcurrently { name } | S::DropIndexConcurrently { index: name } => vec![name],
            S::CreatePublication { tables, .. } | S::AlterPublication { tables, .. } | S::Truncate { tables, .. } => {
                tables.iter().collect()
            }
            _ => Vec::new(),
        }
    }

    /// The same statement with other names: one arm a statement.
    ///
    /// # Errors
    /// The first of `to`.
    #[allow(clippy::too_many_lines)] // One arm a statement.
    pub fn try_map<M, E>(&self, to: &mut dyn FnMut(&N) -> Result<M, E>) -> Result<ObjectStatement<M>, E> {
        use ObjectStatement as S;
        Ok(match self {
            S::Drop { what, name, cascade } => S::Drop { what: *what, name: to(name)?, cascade: *cascade },
            S::Rename { what, name, to: new } => S::Rename { what: *what, name: to(name)?, to: to(new)? },
            S::Column { action, table, column, cascade } => {
                S::Column { action: *action, table: to(table)?, column: column.clone(), cascade: *cascade }
            }
            S::RenameColumn { table, column, to: new } => {
                S::RenameColumn { table: to(table)?, column: column.clone(), to: Arc::clone(new) }
            }
            S::AlterColumnType { table, column } => S::AlterColumnType { table: to(table)?, column: column.clone() },
            S::AddConstraint { table, name, constraint, not_valid } => S::AddConstraint {
                table: to(table)?,
                name: to(name)?,
                constraint: constraint.try_map(to)?,
                not_valid: *not_valid,
            },
            S::DropConstraint { table, name, cascade } => {
                S::DropConstraint { table: to(table)?, name: to(name)?, cascade: *cascade }
            }
            S::SetReloptions { table } => S::SetReloptions { table: to(table)? },
            S::ReplicaIdentity { table, identity, index } => {
                S::ReplicaIdentity { table: to(table)?, identity: *identity, index: index.as_ref().map(to).transpose()? }
            }
            S::AttachPartition { table, partition } => S::AttachPartition { table: to(table)?, partition: to(partition)? },
            S::DetachPartition { table, partition } => S::DetachPartition { table: to(table)?, partition: to(partition)? },
            S::Revoke { table, role } => S::Revoke { table: to(table)?, role: role.clone() },
            S::Comment { table, column, remove } => S::Comment { table: to(table)?, column: column.clone(), remove: *remove },
            S::CreateTrigger { table, name, function } => {
                S::CreateTrigger { table: to(table)?, name: to(name)?, function: to(function)? }
            }
            S::DropTrigger { table, name } => S::DropTrigger { table: to(table)?, name: to(name)? },
            S::Cluster { table, index } => S::Cluster { table: to(table)?, index: to(index)? },
            S::VacuumFull { table } => S::VacuumFull { table: to(table)? },
            S::Reindex { name } => S::Reindex { name: to(name)? },
            S::CreateIndexConcurrently { table, name, columns, unique } => {
                S::CreateIndexConcurrently { table: to(table)?, name: to(name)?, columns: columns.clone(), unique: *unique }
            }
            S::DropIndexConcurrently { index } => S::DropIndexConcurrently { index: to(index)? },
            S::ReindexConcurrently { name } => S::ReindexConcurrently { name: to(name)? },
            S::Part { action, table, name } => S::Part { action: *action, table: to(table)?, name: to(name)? },
            S::Table { action, table } => S::Table { action: action.clone(), table: to(table)? },
            S::RenamePart { trigger, table, name, to: new } => {
                S::RenamePart { trigger: *trigger, table: to(table)?, name: to(name)?, to: to(new)? }
            }
            S::CreateDomain { name, base, check } => S::CreateDomain { name: to(name)?, base: base.clone(), check: *check },
            S::AddDomainCheck { name } => S::AddDomainCheck { name: to(name)? },
            S::CreateStatistics { name, table, columns } => {
                S::CreateStatistics { name: to(name)?, table: to(table)?, columns: columns.clone() }
            }
            S::OwnSequence { sequence, owner } => {
                let owner = owner.as_ref().map(|(table, column)| Ok((to(table)?, column.clone()))).transpose()?;
                S::OwnSequence { sequence: to(sequence)?, owner }
            }
            S::Setval { sequence } => S::Setval { sequence: to(sequence)? },
            S::CreateTableAs { name, table } => S::CreateTableAs { name: to(name)?, table: to(table)? },
            S::Role { action, name } => S::Role { action: *action, name: to(name)? },
            S::GrantOn { what, name, role } => S::GrantOn { what: *what, name: to(name)?, role: role.clone() },
            S::Truncate { tables, cascade, restart_identity } => {
                S::Truncate { tables: all(tables, to)?, cascade: *cascade, restart_identity: *restart_identity }
            }
            S::CreateView { name, table, replace } => S::CreateView { name: to(name)?, table: to(table)?, replace: *replace },
            S::CreateMaterializedView { name, table } => S::CreateMaterializedView { name: to(name)?, table: to(table)? },
            S::RefreshMaterializedView { name } => S::RefreshMaterializedView { name: to(name)? },
            S::CreateEnum { name, labels } => S::CreateEnum { name: to(name)?, labels: labels.clone() },
            S::CreateCompositeType { name, columns } => S::CreateCompositeType { name: to(name)?, columns: columns.clone() },
            S::AddEnumValue { name, label } => S::AddEnumValue { name: to(name)?, label: to(label)? },
            S::CreateFunction { name, replace } => S::CreateFunction { name: to(name)?, replace: *replace },
            S::CreateSchema { name } => S::CreateSchema { name: to(name)? },
            S::PublicationOwner { name, role } => S::PublicationOwner { name: to(name)?, role: role.clone() },
            S::Inherit { table, parent, add } => S::Inherit { table: to(table)?, parent: to(parent)?, add: *add },
            S::CreatePublication { name, tables, all_tables, schema, reads } => S::CreatePublication {
                name: to(name)?,
                tables: all(tables, to)?,
                all_tables: *all_tables,
                schema: schema.as_ref().map(to).transpose()?,
                reads: reads.clone(),
            },
            S::AlterPublication { name, change, tables } => {
                S::AlterPublication { name: to(name)?, change: *change, tables: all(tables, to)? }
            }
            S::CreateSequence { name } => S::CreateSequence { name: to(name)? },
            S::AlterSequence { name } => S::AlterSequence { name: to(name)? },
        })
    }
}

impl<N> ConstraintSpec<N> {
    /// The same with other names.
    fn try_map<M, E>(&self, to: &mut dyn FnMut(&N) -> Result<M, E>) -> Result<ConstraintSpec<M>, E> {
        Ok(match self {
            ConstraintSpec::PrimaryKey(column) => ConstraintSpec::PrimaryKey(column.clone()),
            ConstraintSpec::Unique(column) => ConstraintSpec::Unique(column.clone()),
            ConstraintSpec::Check(column) => ConstraintSpec::Check(column.clone()),
            ConstraintSpec::ForeignKey(column, other) => ConstraintSpec::ForeignKey(column.clone(), to(other)?),
        })
    }
}

/// All names of a list.
fn all<N, M, E>(names: &[N], to: &mut dyn FnMut(&N) -> Result<M, E>) -> Result<Vec<M>, E> {
    names.iter().map(to).collect()
}
