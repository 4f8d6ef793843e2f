//! Runs a statement on objects: names become objects, the statement's own code does the work.

use std::sync::Arc;

use pg_types::Oid;

use super::dependency::DropBehavior;
use super::object::{ColumnAction, ConstraintSpec, ObjectKind, ObjectStatement, PublicationChange};
use super::publication::PublicationFor;
use super::truncate::TruncateOptions;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{ObjectAddress, PUBLIC, RelKind};
use pg_types::catalog;

/// What a statement did in words, and the relation that it made.
pub(crate) type Done = (String, Option<Oid>);

impl Backend<'_> {
    /// Runs a statement.
    pub(crate) fn run_object(&mut self, statement: &ObjectStatement<Arc<str>>) -> Result<Done> {
        use ObjectStatement as S;
        match statement {
            S::Drop { what, name, cascade } => self.run_drop(*what, name, *cascade),
            S::Rename { what, name, to } => self.run_rename(*what, name, to),
            S::CreateView { .. }
            | S::CreateMaterializedView { .. }
            | S::CreateEnum { .. }
            | S::CreateCompositeType { .. }
            | S::CreateFunction { .. }
            | S::CreateSchema { .. }
            | S::CreateSequence { .. }
            | S::CreatePublication { .. }
            | S::CreateTrigger { .. } => self.run_create(statement),
            S::RefreshMaterializedView { name } => {
                self.refresh_materialized_view(self.named(name)?)?;
                done(format!("REFRESH MATERIALIZED VIEW {name}"))
            }
            S::AddEnumValue { name, label } => {
                self.add_enum_value(name, label)?;
                done(format!("ALTER TYPE {name} ADD VALUE {label}"))
            }
            S::AlterPublication { name, change, tables } => self.run_alter_publication(name, *change, tables),
            S::AlterSequence { name } => {
                self.alter_sequence(self.named(name)?)?;
                done(format!("ALTER SEQUENCE {name}"))
            }
            S::Reindex { name } => {
                self.reindex(self.named(name)?)?;
                done(format!("REINDEX {name}"))
            }
            S::Cluster { table, index } => {
                self.cluster_relation(self.named(table)?, Some(self.named(index)?))?;
                done(format!("CLUSTER {table}"))
            }
            S::VacuumFull { table } => {
                self.cluster_relation(self.named(table)?, None)?;
                done(format!("VACUUM FULL {table}"))
            }
            S::Truncate { tables, cascade, restart_identity } => {
                let relids = tables.iter().map(|table| self.named(table)).collect::<Result<Vec<_>>>()?;
                self.truncate(&relids, TruncateOptions { cascade: *cascade, restart_identity: *restart_identity })?;
                done(format!("TRUNCATE of {}", tables.join(", ")))
            }
            S::Part { .. }
            | S::Table { .. }
            | S::RenamePart { .. }
            | S::CreateDomain { .. }
            | S::AddDomainCheck { .. }
            | S::CreateStatistics { .. }
            | S::OwnSequence { .. }
            | S::Setval { .. }
            | S::CreateTableAs { .. }
            | S::Role { .. }
            | S::PublicationOwner { .. }
            | S::Inherit { .. }
            | S::GrantOn { .. } => self.run_part(statement),
            other => self.run_alter_table(other),
        }
    }

    /// ALTER TABLE and what else changes one table.
    fn run_alter_table(&mut self, statement: &ObjectStatement<Arc<str>>) -> Result<Done> {
        use ObjectStatement as S;
        match statement {
            S::Column { action, table, column, cascade } => self.run_column(*action, table, column, *cascade),
            S::RenameColumn { table, column, to } => {
                self.rename_column(self.named(table)?, column, to)?;
                done(format!("ALTER TABLE {table} RENAME COLUMN {column}"))
            }
            S::AlterColumnType { table, column } => {
                self.alter_column_type(self.named(table)?, &column.name, column)?;
                done(format!("ALTER TABLE {table} ALTER COLUMN {} TYPE {}", column.name, column.type_name))
            }
            S::AddConstraint { table, name, constraint, not_valid } => {
                let rel = self.named(table)?;
                match constraint {
                    ConstraintSpec::PrimaryKey(column) => self.add_primary_key(rel, name, column)?,
                    ConstraintSpec::Unique(column) => self.add_unique(rel, name, column)?,
                    ConstraintSpec::Check(column) => self.add_check(rel, name, column)?,
                    ConstraintSpec::ForeignKey(column, other) => {
                        self.add_foreign_key(rel, name, column, self.named(other)?)?;
                    }
                }
                if *not_valid {
                    self.mark_not_valid(rel, name)?;
                }
                done(format!("ALTER TABLE {table} ADD CONSTRAINT {name}"))
            }
            S::DropConstraint { table, name, cascade } => {
                self.drop_constraint(self.named(table)?, name, behavior(*cascade))?;
                done(format!("ALTER TABLE {table} DROP CONSTRAINT {name}"))
            }
            S::SetReloptions { table } => {
                self.set_reloptions(self.named(table)?)?;
                done(format!("ALTER TABLE {table} SET"))
            }
            S::ReplicaIdentity { table, identity, index } => {
                let index = index.as_ref().map(|index| self.named(index)).transpose()?;
                self.replica_identity(self.named(table)?, *identity, index)?;
                done(format!("ALTER TABLE {table} REPLICA IDENTITY"))
            }
            S::AttachPartition { table, partition } => {
                self.attach_partition(self.named(table)?, self.named(partition)?)?;
                done(format!("ALTER TABLE {table} ATTACH PARTITION {partition}"))
            }
            S::DetachPartition { table, partition } => {
                self.detach_partition(self.named(table)?, self.named(partition)?)?;
                done(format!("ALTER TABLE {table} DETACH PARTITION {partition}"))
            }
            S::Revoke { table, role } => {
                self.revoke(self.named(table)?, &role.as_str().into())?;
                done(format!("REVOKE on {table} from {role}"))
            }
            S::Comment { table, column, remove } => {
                let rel = self.named(table)?;
                let attnum = column.as_ref().map(|column| self.attnum(rel, column)).transpose()?;
                self.comment(attnum.map_or(ObjectAddress::relation(rel), |n| ObjectAddress::column(rel, n)), *remove)?;
                done(format!("COMMENT on {table}"))
            }
            S::DropTrigger { table, name } => {
                self.drop_trigger(self.named(table)?, name)?;
                done(format!("DROP TRIGGER {name} on {table}"))
            }
            other => Err(StatementError::Refused(format!("{} cannot be run here", other.name()))),
        }
    }

    /// Statements that make something.
    fn run_create(&mut self, statement: &ObjectStatement<Arc<str>>) -> Result<Done> {
        use ObjectStatement as S;
        match statement {
            S::CreateView { name, table, replace } => {
                let table = self.named(table)?;
                match self.named(name) {
                    Ok(view) if *replace => {
                        self.replace_view(view, table)?;
                        done(format!("CREATE OR REPLACE VIEW {name}"))
                    }
                    _ => Ok((format!("CREATE VIEW {name}"), Some(self.create_view(name, table)?))),
                }
            }
            S::CreateMaterializedView { name, table } => {
                let view = self.create_materialized_view(name, self.named(table)?)?;
                Ok((format!("CREATE MATERIALIZED VIEW {name}"), Some(view)))
            }
            S::CreateEnum { name, labels } => {
                self.create_enum(name, labels)?;
                done(format!("CREATE TYPE {name}"))
            }
            S::CreateCompositeType { name, columns } => {
                self.create_composite_type(name, columns)?;
                done(format!("CREATE TYPE {name}"))
            }
            S::CreateFunction { name, replace } => {
                self.create_function(name, *replace)?;
                done(format!("CREATE FUNCTION {name}"))
            }
            S::CreateSchema { name } => {
                check_schema_name(name)?;
                self.create_schema(name)?;
                done(format!("CREATE SCHEMA {name}"))
            }
            S::CreateSequence { name } => Ok((format!("CREATE SEQUENCE {name}"), Some(self.create_sequence(PUBLIC, name)?))),
            S::CreatePublication { name, tables, all_tables, schema, reads } => {
                let what = match (all_tables, schema) {
                    (true, _) => PublicationFor::AllTables,
                    (false, Some(schema)) => PublicationFor::Schema(Arc::clone(schema)),
                    (false, None) => {
                        PublicationFor::Tables(tables.iter().map(|table| self.named(table)).collect::<Result<_>>()?)
                    }
                };
                self.create_publication(name, &what, reads)?;
                done(format!("CREATE PUBLICATION {name}"))
            }
            S::CreateTrigger { table, name, function } => {
                self.create_trigger(self.named(table)?, name, function)?;
                done(format!("CREATE TRIGGER {name} on {table}"))
            }
            other => Err(StatementError::Refused(format!("{} cannot be run here", other.name()))),
        }
    }

    /// DROP.
    fn run_drop(&mut self, what: ObjectKind, name: &str, cascade: bool) -> Result<Done> {
        let object = match what {
            ObjectKind::Type | ObjectKind::Domain => {
                ObjectAddress::new(catalog::TYPE, self.object_named(catalog::TYPE, "type", name)?)
            }
            ObjectKind::Statistics => {
                let class = catalog::STATISTIC_EXT;
                ObjectAddress::new(class, self.object_named(class, "statistics object", name)?)
            }
            ObjectKind::Function => ObjectAddress::new(catalog::PROC, self.object_named(catalog::PROC, "function", name)?),
            ObjectKind::Schema => {
                ObjectAddress::new(catalog::NAMESPACE, self.object_named(catalog::NAMESPACE, "schema", name)?)
            }
            ObjectKind::Publication => {
                self.drop_publication(name)?;
                return done(format!("DROP PUBLICATION {name}"));
            }
            _ => {
                let rel = self.named(name)?;
                self.check_is(rel, what)?;
                self.lock_before_drop(rel)?;
                ObjectAddress::relation(rel)
            }
        };
        self.perform_deletion(object, behavior(cascade))?;
        done(format!("DROP {} {name}", what.sql()))
    }

    /// An index's table and a partition's parent are locked before them, behind a partitioned index the table's partitions.
    fn lock_before_drop(&mut self, rel: Oid) -> Result<()> {
        let relation = self.relation(rel)?;
        let (kind, table) = (relation.kind, relation.index.as_ref().map(|info| info.table));
        if let Some(table) = table.or(relation.parent) {
            self.log_access_exclusive_lock(table)?;
        }
        match table {
            Some(table) if kind == RelKind::PartitionedIndex => {
                self.log_access_exclusive_lock(rel)?;
                self.lock_with_partitions(table).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// A relation must be of the kind that the statement says.
    fn check_is(&self, rel: Oid, what: ObjectKind) -> Result<()> {
        let relation = self.relation(rel)?;
        let fits = match what {
            ObjectKind::Table => relation.kind.is_table(),
            ObjectKind::Index => relation.kind.is_index(),
            ObjectKind::View => relation.kind == RelKind::View,
            ObjectKind::MaterializedView => relation.kind == RelKind::MaterializedView,
            ObjectKind::Sequence => relation.kind == RelKind::Sequence,
            _ => false,
        };
        if fits {
            return Ok(());
        }
        let article = if what == ObjectKind::Index { "no index" } else { &format!("no {}", what.sql().to_lowercase()) };
        Err(StatementError::Refused(format!("'{}' is {article}", relation.name)))
    }

    /// RENAME.
    fn run_rename(&mut self, what: ObjectKind, name: &Arc<str>, to: &Arc<str>) -> Result<Done> {
        match what {
            ObjectKind::Type => self.rename_type(name, to)?,
            ObjectKind::Schema => {
                check_schema_name(to)?;
                self.rename_schema(name, to)?;
            }
            ObjectKind::Publication => self.rename_publication(name, to)?,
            ObjectKind::Function | ObjectKind::Domain | ObjectKind::Statistics => {
                return Err(StatementError::Refused(format!("a {} cannot be renamed here", what.sql().to_lowercase())));
            }
            _ => {
                let rel = self.named(name)?;
                self.check_is(rel, what)?;
                self.rename_relation(rel, to)?;
            }
        }
        done(format!("ALTER {} {name} RENAME TO {to}", what.sql()))
    }

    /// ALTER TABLE … COLUMN.
    fn run_column(&mut self, action: ColumnAction, table: &str, column: &str, cascade: bool) -> Result<Done> {
        let rel = self.named(table)?;
        match action {
            ColumnAction::Drop => self.drop_column(rel, column, behavior(cascade))?,
            ColumnAction::SetDefault => self.set_default(rel, column)?,
            ColumnAction::DropDefault => self.drop_default(rel, column)?,
            ColumnAction::SetNotNull => self.set_not_null(rel, column)?,
            ColumnAction::DropNotNull => self.drop_not_null(rel, column)?,
            ColumnAction::SetStorage => self.set_storage(rel, column)?,
            ColumnAction::SetStatistics => self.set_statistics(rel, column)?,
        }
        done(format!("ALTER TABLE {table} {} {column}", action.sql()))
    }

    /// ALTER PUBLICATION.
    fn run_alter_publication(&mut self, name: &str, change: PublicationChange, tables: &[Arc<str>]) -> Result<Done> {
        let tables = tables.iter().map(|table| self.named(table)).collect::<Result<Vec<_>>>()?;
        match change {
            PublicationChange::AddTable => self.publication_add_tables(name, &tables)?,
            PublicationChange::DropTable => self.publication_drop_tables(name, &tables)?,
            PublicationChange::SetTable => self.publication_set_tables(name, &tables)?,
            PublicationChange::SetOptions => self.publication_set_options(name)?,
        }
        done(format!("ALTER PUBLICATION {name}"))
    }

    /// A relation by name.
    pub(super) fn named(&self, name: &str) -> Result<Oid> {
        let found = self.cluster.relation_seen(self.xact.session, name).map(|relation| relation.oid);
        found.ok_or_else(|| StatementError::Refused(format!("there is no relation named '{name}'")))
    }
}

/// What was done, where no relation was made.
#[allow(clippy::unnecessary_wraps)] // Reads well behind the statement.
pub(super) fn done(what: String) -> Result<Done> {
    Ok((what, None))
}

/// `IsReservedName`: names of the system's schemas, temporary ones too.
fn check_schema_name(name: &str) -> Result<()> {
    if name.starts_with("pg_") {
        return Err(StatementError::Refused(format!("the name '{name}' begins with 'pg_', as only the system's schemas do")));
    }
    Ok(())
}

/// What happens to dependents.
fn behavior(cascade: bool) -> DropBehavior {
    if cascade { DropBehavior::Cascade } else { DropBehavior::Restrict }
}
