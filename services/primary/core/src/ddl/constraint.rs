//! Constraints (`commands/tablecmds.c`: `ATAddCheckNNConstraint`, `ATExecAddIndex`, `ATAddForeignKeyConstraint`,
//! `ATExecDropConstraint`; `catalog/pg_constraint.c`).

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::dependency::DropBehavior;
use super::rows;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{Constraint, DependencyType, ObjectAddress};

impl Backend<'_> {
    /// ADD PRIMARY KEY, whose column becomes NOT NULL first.
    pub(crate) fn add_primary_key(&mut self, table: Oid, name: &Arc<str>, column: &str) -> Result<()> {
        self.begin_constraint(table, name)?;
        let attnum = self.attnum(table, column)?;
        if self.relation(table)?.constraints.iter().any(|known| known.kind == b'p') {
            return Err(StatementError::Refused(format!("'{}' has a primary key already", self.relation(table)?.name)));
        }
        self.set_column_not_null(table, attnum)?;
        self.command_counter_increment()?;
        self.create_constraint_index(table, name, (attnum, &column.into()), b'p')
    }

    /// ADD UNIQUE.
    pub(crate) fn add_unique(&mut self, table: Oid, name: &Arc<str>, column: &str) -> Result<()> {
        self.begin_constraint(table, name)?;
        let attnum = self.attnum(table, column)?;
        self.create_constraint_index(table, name, (attnum, &column.into()), b'u')
    }

    /// ADD CHECK on one column: it depends on the column as a part of its table, and once more for its expression.
    pub(crate) fn add_check(&mut self, table: Oid, name: &Arc<str>, column: &str) -> Result<()> {
        self.begin_constraint(table, name)?;
        let attnum = self.attnum(table, column)?;
        let oid = self.new_oid()?;
        self.catalog_insert(rows::constraint(oid, table, b'c'))?;
        let (check, column) = (ObjectAddress::new(catalog::CONSTRAINT, oid), ObjectAddress::column(table, attnum));
        self.depend(check, column, DependencyType::Auto)?;
        self.depend(check, column, DependencyType::Normal)?;
        let class_row = self.relation(table)?.class_row;
        self.catalog_update(class_row, |_| ())?;
        self.keep_constraint(table, oid, name, b'c', attnum)?;
        self.command_counter_increment()
    }

    /// ADD FOREIGN KEY from one column to another table's primary key: two triggers there, two here. Nobody is locked out of
    /// reading.
    pub(crate) fn add_foreign_key(&mut self, table: Oid, name: &Arc<str>, column: &str, references: Oid) -> Result<()> {
        self.refuse_temporary(table, "foreign keys of temporary tables are not modelled")?;
        self.refuse_temporary(references, "a permanent table cannot refer to it")?;
        self.check_new_constraint(table, name)?;
        let attnum = self.attnum(table, column)?;
        let key = self.primary_key_of(references)?;
        let oid = self.new_oid()?;
        self.catalog_insert(rows::constraint(oid, table, b'f'))?;
        let constraint = ObjectAddress::new(catalog::CONSTRAINT, oid);
        self.depend(constraint, ObjectAddress::column(table, attnum), DependencyType::Auto)?;
        let on = [ObjectAddress::column(references, key.1), ObjectAddress::relation(key.0)];
        self.depend_all(&on.map(|on| (constraint, on, DependencyType::Normal)))?;
        self.keep_constraint(table, oid, name, b'f', attnum)?;
        self.command_counter_increment()?;
        // RI_FKey_noaction_del, …_upd on the other table; RI_FKey_check_ins, …_upd on this one.
        self.insert_trigger(references, &[(constraint, DependencyType::Internal)])?;
        self.command_counter_increment()?;
        self.insert_trigger(references, &[(constraint, DependencyType::Internal)])?;
        self.insert_trigger(table, &[(constraint, DependencyType::Internal)])?;
        self.command_counter_increment()?;
        self.insert_trigger(table, &[(constraint, DependencyType::Internal)])?;
        self.command_counter_increment()
    }

    /// DROP CONSTRAINT.
    pub(crate) fn drop_constraint(&mut self, table: Oid, name: &str, behavior: DropBehavior) -> Result<()> {
        self.log_access_exclusive_lock(table)?;
        let relation = self.relation(table)?;
        let refused = || StatementError::Refused(format!("'{}' has no constraint '{name}'", relation.name));
        let constraint = relation.constraints.iter().find(|known| *known.name == *name).cloned().ok_or_else(refused)?;
        if constraint.kind == b'f' {
            // The other table is locked first, for its triggers go.
            let others = self.cluster.catalog.dependencies_of(ObjectAddress::new(catalog::CONSTRAINT, constraint.oid));
            let other = others.iter().find(|(_, row)| row.kind == DependencyType::Normal && row.on.sub != 0);
            if let Some((_, row)) = other {
                self.log_access_exclusive_lock(row.on.object)?;
            }
        }
        self.perform_deletion(ObjectAddress::new(catalog::CONSTRAINT, constraint.oid), behavior)
    }

    /// The index and the column of a primary key.
    fn primary_key_of(&self, table: Oid) -> Result<(Oid, i16)> {
        let relation = self.relation(table)?;
        for index in &relation.indexes {
            if let Some(info) = self.relation(*index)?.index.as_ref().filter(|info| info.primary) {
                return Ok((*index, info.key.first().copied().unwrap_or(1)));
            }
        }
        Err(StatementError::Refused(format!("'{}' has no primary key to refer to", relation.name)))
    }

    /// Locks the table of a new constraint.
    fn begin_constraint(&mut self, table: Oid, name: &str) -> Result<()> {
        self.check_new_constraint(table, name)?;
        self.lock_plain_table(table)
    }

    /// A constraint's name must be new to its table.
    fn check_new_constraint(&self, table: Oid, name: &str) -> Result<()> {
        let relation = self.relation(table)?;
        if relation.constraints.iter().any(|known| *known.name == *name) {
            return Err(StatementError::Refused(format!("'{}' has a constraint '{name}' already", relation.name)));
        }
        Ok(())
    }

    /// Keeps what the catalog says.
    fn keep_constraint(&mut self, table: Oid, oid: Oid, name: &Arc<str>, kind: u8, attnum: i16) -> Result<()> {
        let constraint = Constraint { oid, name: Arc::clone(name), kind, attnum };
        self.change_relation(table, |table| table.constraints.push(constraint))
    }
}
