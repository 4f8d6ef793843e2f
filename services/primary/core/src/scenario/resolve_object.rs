//! From the file's steps on objects to statements.

use std::sync::Arc;

use super::Template;
use super::object_step::{AddConstraintFile, AlterPublicationFile, CreateTypeFile, IdentityFile, ReplicaIdentityFile};
use super::resolve::{Resolver, Said, name};
use super::statement::StatementPlan;
use super::step::{CreateIndexFile, CreateTableFile, OnCommitFile, StepFile, TruncateFile};
use crate::catalog::{OnCommit, ReplicaIdentity};
use crate::ddl::column::Column;
use crate::ddl::object::{ColumnAction, ConstraintSpec, ObjectKind, ObjectStatement, PublicationChange};

/// A statement of the plan.
type Statement = ObjectStatement<Template>;

impl Resolver<'_> {
    /// TRUNCATE: of one table alone it tells how many partitions it emptied.
    pub(super) fn truncate(&self, file: &TruncateFile) -> Said<StatementPlan> {
        match (&file.table, file.tables.is_empty()) {
            (Some(table), true) if !file.cascade && !file.restart_identity => {
                return Ok(StatementPlan::Truncate(self.relation(table)?));
            }
            (Some(_), false) | (None, true) => return Err("say either 'table' or 'tables'".to_owned()),
            _ => {}
        }
        let tables = self.relations(file.table.iter().chain(&file.tables))?;
        let statement = Statement::Truncate { tables, cascade: file.cascade, restart_identity: file.restart_identity };
        Ok(StatementPlan::Object(Box::new(statement)))
    }

    /// CREATE TABLE, with the names of what it brings along.
    pub(super) fn create_table(&self, file: &CreateTableFile) -> Said<StatementPlan> {
        let columns = file.columns.iter().map(|text| self.column(text)).collect::<Said<Vec<Column>>>()?;
        self.know_parts_of(&file.table, &columns);
        let temporary = match (file.temporary, file.on_commit) {
            (false, None) => None,
            (false, Some(_)) => return Err("'on_commit' is for temporary tables: say 'temporary = true', too".to_owned()),
            (true, Some(OnCommitFile::Drop)) => Some(OnCommit::Drop),
            (true, Some(OnCommitFile::DeleteRows)) => Some(OnCommit::DeleteRows),
            (true, None | Some(OnCommitFile::PreserveRows)) => Some(OnCommit::PreserveRows),
        };
        if file.temporary && (file.partitioned || file.partition_of.is_some()) {
            return Err("a temporary table cannot be partitioned, nor be a partition, here".to_owned());
        }
        Ok(StatementPlan::CreateTable {
            table: self.template(&file.table)?,
            columns,
            parent: file.partition_of.as_ref().map(|parent| self.relation(parent)).transpose()?,
            partitioned: file.partitioned,
            temporary,
        })
    }

    /// A column, whose type is there or is made by a step.
    pub(super) fn column(&self, text: &str) -> Said<Column> {
        let column = Column::parse(text)?;
        if let Some(made) = &column.made_type {
            self.refer(made, "type");
        }
        Ok(column)
    }

    /// Names of a table's key and sequences.
    pub(super) fn know_parts_of(&self, table: &str, columns: &[Column]) {
        let mut known = self.known.borrow_mut();
        known.extend(columns.iter().filter(|column| column.primary_key).map(|_| format!("{table}_pkey")));
        known.extend(columns.iter().filter(|column| column.serial).map(|column| format!("{table}_{}_seq", column.name)));
    }

    /// CREATE INDEX.
    pub(super) fn create_index(&self, file: &CreateIndexFile) -> Said<StatementPlan> {
        let columns = file.column.iter().chain(&file.columns).map(|column| name(column)).collect::<Said<Vec<String>>>()?;
        if columns.is_empty() || (file.column.is_some() && !file.columns.is_empty()) {
            return Err("say either 'column' or 'columns'".to_owned());
        }
        if file.name.is_none() {
            self.known.borrow_mut().push(format!("{}_{}_idx", file.table, columns.join("_")));
        }
        if file.concurrently {
            let made_up = || format!("{}_{}_idx", file.table, columns.join("_"));
            let name = self.template(&file.name.clone().unwrap_or_else(made_up))?;
            let (table, unique) = (self.relation(&file.table)?, file.unique);
            let statement = Statement::CreateIndexConcurrently { table, name, columns, unique };
            return Ok(StatementPlan::Object(Box::new(statement)));
        }
        Ok(StatementPlan::CreateIndex {
            table: self.relation(&file.table)?,
            columns,
            name: file.name.as_ref().map(|index| self.template(index)).transpose()?,
            unique: file.unique,
        })
    }

    /// Any other statement on objects.
    pub(super) fn object_statement(&self, step: &StepFile) -> Said<Statement> {
        use ObjectKind as K;
        use StepFile as F;
        Ok(match step {
            F::DropTable(f) => Statement::Drop { what: K::Table, name: self.relation(&f.table)?, cascade: f.cascade },
            F::DropIndex(f) if f.concurrently => Statement::DropIndexConcurrently { index: self.relation(&f.index)? },
            F::DropIndex(f) => self.drop(K::Index, &f.index)?,
            F::DropView(f) => self.drop(K::View, &f.view)?,
            F::DropMaterializedView(f) => self.drop(K::MaterializedView, &f.view)?,
            F::DropSequence(f) => self.drop(K::Sequence, &f.sequence)?,
            F::DropType(f) => self.drop(K::Type, &f.r#type)?,
            F::DropFunction(f) => self.drop(K::Function, &f.function)?,
            F::DropSchema(f) => self.drop(K::Schema, &f.schema)?,
            F::DropDomain(f) => self.drop(K::Domain, &f.domain)?,
            F::DropStatistics(f) => self.drop(K::Statistics, &f.statistics)?,
            F::RenameSequence(f) => self.rename(K::Sequence, &f.sequence, &f.to)?,
            F::DropPublication(f) => self.drop(K::Publication, &f.publication)?,
            F::RenameTable(f) => self.rename(K::Table, &f.table, &f.to)?,
            F::RenameIndex(f) => self.rename(K::Index, &f.index, &f.to)?,
            F::RenameView(f) => self.rename(K::View, &f.view, &f.to)?,
            F::RenameType(f) => self.rename(K::Type, &f.r#type, &f.to)?,
            F::RenameSchema(f) => self.rename(K::Schema, &f.schema, &f.to)?,
            F::AlterPublication(f) => self.alter_publication(f)?,
            F::CreateView(f) => {
                Statement::CreateView { table: self.relation(&f.table)?, name: self.template(&f.view)?, replace: f.replace }
            }
            F::CreateMaterializedView(f) => {
                Statement::CreateMaterializedView { table: self.relation(&f.table)?, name: self.template(&f.view)? }
            }
            F::RefreshMaterializedView(f) => Statement::RefreshMaterializedView { name: self.relation(&f.view)? },
            F::CreateType(f) => self.create_type(f)?,
            F::AddEnumValue(f) => Statement::AddEnumValue { name: self.relation(&f.r#type)?, label: self.template(&f.value)? },
            F::CreateFunction(f) => Statement::CreateFunction { name: self.template(&f.function)?, replace: f.replace },
            F::CreateSchema(f) => Statement::CreateSchema { name: self.template(&f.schema)? },
            F::CreatePublication(f) if f.tables.is_empty() && !(f.columns.is_empty() && f.filter.is_empty()) => {
                return Err("'columns' and 'filter' are of 'tables'".to_owned());
            }
            F::CreatePublication(f) => Statement::CreatePublication {
                reads: f.columns.iter().chain(&f.filter).map(|column| name(column)).collect::<Said<_>>()?,
                tables: self.relations(&f.tables)?,
                all_tables: f.all_tables,
                schema: f.schema.as_ref().map(|schema| self.schema(schema)).transpose()?,
                name: self.template(&f.publication)?,
            },
            F::CreateSequence(f) => Statement::CreateSequence { name: self.template(&f.sequence)? },
            F::AlterSequence(f) => Statement::AlterSequence { name: self.relation(&f.sequence)? },
            F::ReindexTable(f) if f.concurrently => Statement::ReindexConcurrently { name: self.relation(&f.table)? },
            F::ReindexIndex(f) if f.concurrently => Statement::ReindexConcurrently { name: self.relation(&f.index)? },
            F::ReindexTable(f) => Statement::Reindex { name: self.relation(&f.table)? },
            F::ReindexIndex(f) => Statement::Reindex { name: self.relation(&f.index)? },
            F::Cluster(f) => Statement::Cluster { table: self.relation(&f.table)?, index: self.relation(&f.index)? },
            F::VacuumFull(f) => Statement::VacuumFull { table: self.relation(&f.table)? },
            other => self.alter_table(other)?,
        })
    }

    /// What changes one table.
    fn alter_table(&self, step: &StepFile) -> Said<Statement> {
        use StepFile as F;
        let column = |action, table: &String, column: &String, cascade| -> Said<Statement> {
            Ok(Statement::Column { action, table: self.relation(table)?, column: name(column)?, cascade })
        };
        Ok(match step {
            F::DropColumn(f) => column(ColumnAction::Drop, &f.table, &f.column, f.cascade)?,
            F::SetDefault(f) => column(ColumnAction::SetDefault, &f.table, &f.column, false)?,
            F::DropDefault(f) => column(ColumnAction::DropDefault, &f.table, &f.column, false)?,
            F::SetNotNull(f) => column(ColumnAction::SetNotNull, &f.table, &f.column, false)?,
            F::DropNotNull(f) => column(ColumnAction::DropNotNull, &f.table, &f.column, false)?,
            F::SetStorage(f) => column(ColumnAction::SetStorage, &f.table, &f.column, false)?,
            F::SetStatistics(f) => column(ColumnAction::SetStatistics, &f.table, &f.column, false)?,
            F::RenameColumn(f) => {
                Statement::RenameColumn { table: self.relation(&f.table)?, column: name(&f.column)?, to: name(&f.to)?.into() }
            }
            F::AlterColumnType(f) => Statement::AlterColumnType {
                table: self.relation(&f.table)?,
                column: self.column(&format!("{} {}", name(&f.column)?, f.r#type))?,
            },
            F::AddConstraint(f) => self.add_constraint(f)?,
            F::DropConstraint(f) => Statement::DropConstraint {
                table: self.relation(&f.table)?,
                name: self.template(&f.constraint)?,
                cascade: f.cascade,
            },
            F::SetReloptions(f) => Statement::SetReloptions { table: self.relation(&f.table)? },
            F::ReplicaIdentity(f) => self.replica_identity(f)?,
            F::AttachPartition(f) => {
                Statement::AttachPartition { table: self.relation(&f.table)?, partition: self.relation(&f.partition)? }
            }
            F::DetachPartition(f) => {
                Statement::DetachPartition { table: self.relation(&f.table)?, partition: self.relation(&f.partition)? }
            }
            F::Revoke(f) => Statement::Revoke { table: self.relation(&f.table)?, role: name(&f.role)? },
            F::Comment(f) => Statement::Comment {
                table: self.relation(&f.table)?,
                column: f.column.as_ref().map(|column| name(column)).transpose()?,
                remove: f.remove,
            },
            F::CreateTrigger(f) => Statement::CreateTrigger {
                table: self.relation(&f.table)?,
                name: self.template(&f.trigger)?,
                function: self.relation(&f.function)?,
            },
            F::DropTrigger(f) => Statement::DropTrigger { table: self.relation(&f.table)?, name: self.relation(&f.trigger)? },
            other => self.part_statement(other)?,
        })
    }

    /// DROP without dependents.
    fn drop(&self, what: ObjectKind, name: &str) -> Said<Statement> {
        Ok(Statement::Drop { what, name: self.relation(name)?, cascade: false })
    }

    /// RENAME.
    fn rename(&self, what: ObjectKind, name: &str, to: &str) -> Said<Statement> {
        Ok(Statement::Rename { what, name: self.relation(name)?, to: self.template(to)? })
    }

    /// A schema that is there.
    fn schema(&self, name: &str) -> Said<Template> {
        if name == "public" { self.template(name) } else { self.relation(name) }
    }

    /// Several relations.
    fn relations<'a>(&self, names: impl IntoIterator<Item = &'a String>) -> Said<Vec<Template>> {
        names.into_iter().map(|name| self.relation(name)).collect()
    }

    /// CREATE TYPE.
    fn create_type(&self, f: &CreateTypeFile) -> Said<Statement> {
        match (f.r#enum.is_empty(), f.columns.is_empty()) {
            (false, true) => {
                let labels = f.r#enum.iter().map(|label| name(label).map(Arc::from)).collect::<Said<_>>()?;
                Ok(Statement::CreateEnum { name: self.template(&f.r#type)?, labels })
            }
            (true, false) => {
                let columns = f.columns.iter().map(|text| self.column(text)).collect::<Said<_>>()?;
                Ok(Statement::CreateCompositeType { name: self.template(&f.r#type)?, columns })
            }
            _ => Err("a type has either 'enum' with its labels or 'columns'".to_owned()),
        }
    }

    /// ADD CONSTRAINT.
    fn add_constraint(&self, f: &AddConstraintFile) -> Said<Statement> {
        let (spec, column, suffix) = match (&f.primary_key, &f.unique, &f.check, &f.foreign_key) {
            (Some(column), None, None, None) => (ConstraintSpec::PrimaryKey(name(column)?), None, "pkey"),
            (None, Some(column), None, None) => (ConstraintSpec::Unique(name(column)?), Some(column), "key"),
            (None, None, Some(column), None) => (ConstraintSpec::Check(name(column)?), Some(column), "check"),
            (None, None, None, Some(column)) => {
                let other = f.references.as_ref().ok_or("a foreign key needs 'references', the other table")?;
                (ConstraintSpec::ForeignKey(name(column)?, self.relation(other)?), Some(column), "fkey")
            }
            _ => return Err("say one of 'primary_key', 'unique', 'check', 'foreign_key', each with a column".to_owned()),
        };
        let table = self.relation(&f.table)?;
        let made = column.map_or_else(|| format!("{}_{suffix}", f.table), |c| format!("{}_{c}_{suffix}", f.table));
        if f.not_valid && !matches!(spec, ConstraintSpec::Check(_) | ConstraintSpec::ForeignKey(..)) {
            return Err("'not_valid' is for checks and foreign keys".to_owned());
        }
        let name = self.template(f.name.as_ref().unwrap_or(&made))?;
        Ok(Statement::AddConstraint { table, name, constraint: spec, not_valid: f.not_valid })
    }

    /// REPLICA IDENTITY.
    fn replica_identity(&self, f: &ReplicaIdentityFile) -> Said<Statement> {
        let identity = match (f.identity, &f.index) {
            (Some(IdentityFile::Default), None) => ReplicaIdentity::Default,
            (Some(IdentityFile::Full), None) => ReplicaIdentity::Full,
            (Some(IdentityFile::Nothing), None) => ReplicaIdentity::Nothing,
            (None, Some(_)) => ReplicaIdentity::Index,
            _ => return Err("say either 'identity' or 'index'".to_owned()),
        };
        let index = f.index.as_ref().map(|index| self.relation(index)).transpose()?;
        Ok(Statement::ReplicaIdentity { table: self.relation(&f.table)?, identity, index })
    }

    /// ALTER PUBLICATION.
    fn alter_publication(&self, f: &AlterPublicationFile) -> Said<Statement> {
        let changes = [
            (PublicationChange::AddTable, &f.add),
            (PublicationChange::DropTable, &f.drop),
            (PublicationChange::SetTable, &f.set),
        ];
        let said: Vec<_> = changes.into_iter().filter(|(_, tables)| !tables.is_empty()).collect();
        let publication = self.relation(&f.publication)?;
        if let Some(role) = &f.owner {
            let alone = said.is_empty() && !f.options && f.to.is_none();
            if !alone {
                return Err("say 'owner' alone".to_owned());
            }
            return Ok(Statement::PublicationOwner { name: publication, role: name(role)? });
        }
        match (&said[..], f.options, &f.to) {
            ([(change, tables)], false, None) => {
                Ok(Statement::AlterPublication { name: publication, change: *change, tables: self.relations(*tables)? })
            }
            ([], true, None) => {
                let change = PublicationChange::SetOptions;
                Ok(Statement::AlterPublication { name: publication, change, tables: Vec::new() })
            }
            ([], false, Some(to)) => {
                Ok(Statement::Rename { what: ObjectKind::Publication, name: publication, to: self.template(to)? })
            }
            _ => Err("say one of 'add', 'drop', 'set', 'options', 'to', 'owner'".to_owned()),
        }
    }
}
