//! Constraints (`commands/tablecmds.c`: `ATAddCheckNNConstraint`, `ATExecAddIndex`, `ATExecDropConstraint`;
//! `catalog/pg_constraint.c`). Foreign keys are in `foreign_key.rs`.

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::dependency::DropBehavior;
use super::rows;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{Constraint, Datum, DependencyType, ObjectAddress};

impl Backend<'_> {
    /// ADD PRIMARY KEY, whose column becomes NOT NULL first.
    pub(crate) fn add_primary_key(&mut self, table: Oid, name: &Arc<str>, column: &str) -> Result<()> {
        self.begin_constraint(table, name)?;
        let attnum = self.attnum(table, column)?;
        if self.relation(table)?.constraints.iter().any(|known| known.kind == b'p') {
            return Err(StatementError::Refused(format!("'{}' has a primary key already", self.relation(table)?.name)));
        }
        let not_null = format!("{}_{column}_not_null", self.relation(table)?.name).into();
        for table in self.lock_with_partitions(table)? {
            let attnum = self.attnum(table, column)?;
            self.set_column_not_null(table, attnum, &not_null)?;
            self.command_counter_increment()?;
        }
        self.create_constraint_index(table, name, attnum, b'p')
    }

    /// ADD UNIQUE.
    pub(crate) fn add_unique(&mut self, table: Oid, name: &Arc<str>, column: &str) -> Result<()> {
        self.begin_constraint(table, name)?;
        let attnum = self.attnum(table, column)?;
        self.create_constraint_index(table, name, attnum, b'u')
    }

    /// ADD CHECK on one column, in each table a command.
    pub(crate) fn add_check(&mut self, table: Oid, name: &Arc<str>, column: &str) -> Result<()> {
        self.begin_constraint(table, name)?;
        self.add_check_with_partitions(table, name, column)
    }

    /// `ATAddCheckNNConstraint` of one table and then of its partitions.
    fn add_check_with_partitions(&mut self, table: Oid, name: &Arc<str>, column: &str) -> Result<()> {
        let attnum = self.attnum(table, column)?;
        self.store_check(table, name, attnum)?;
        let class_row = self.relation(table)?.class_row;
        self.catalog_update(class_row, |_| ())?;
        self.command_counter_increment()?;
        for partition in self.lock_partitions(table)? {
            self.add_check_with_partitions(partition, name, column)?;
        }
        Ok(())
    }

    /// `StoreRelCheck`: it depends on the column as a part of its table, and once more for its expression.
    pub(super) fn store_check(&mut self, table: Oid, name: &Arc<str>, attnum: i16) -> Result<()> {
        let oid = self.new_oid()?;
        self.catalog_insert(rows::constraint(oid, table, b'c'))?;
        let (check, column) = (ObjectAddress::new(catalog::CONSTRAINT, oid), ObjectAddress::column(table, attnum));
        self.depend(check, column, DependencyType::Auto)?;
        self.depend(check, column, DependencyType::Normal)?;
        self.keep_constraint(table, oid, name, b'c', attnum)
    }

    /// DROP CONSTRAINT. Parts of a key or foreign key in partitions depend on it; a check constraint's are dropped after it.
    pub(crate) fn drop_constraint(&mut self, table: Oid, name: &str, behavior: DropBehavior) -> Result<()> {
        self.lock_with_partitions(table)?;
        let constraint = self.constraint_named(table, name)?;
        if constraint.kind == b'f' {
            // The other table is locked first, for its triggers go.
            let others = self.cluster.catalog.dependencies_of(ObjectAddress::new(catalog::CONSTRAINT, constraint.oid));
            let other = others.iter().find(|(_, row)| row.kind == DependencyType::Normal && row.on.sub != 0);
            if let Some((_, row)) = other {
                self.log_access_exclusive_lock(row.on.object)?;
            }
        }
        self.perform_deletion(ObjectAddress::new(catalog::CONSTRAINT, constraint.oid), behavior)?;
        if constraint.kind == b'c' {
            for partition in self.relation(table)?.partitions.clone() {
                self.drop_constraint(partition, name, behavior)?;
            }
        }
        Ok(())
    }

    /// VALIDATE CONSTRAINT of a check or foreign key that was added without looking at the rows. Nobody is locked out of writing.
    pub(crate) fn validate_constraint(&mut self, table: Oid, name: &str) -> Result<()> {
        let known = self.constraint_named(table, name)?;
        if !matches!(known.kind, b'c' | b'f') {
            return Err(StatementError::Refused(format!("constraint '{name}' is no check and no foreign key")));
        }
        if known.valid {
            return Ok(());
        }
        let row = self.row_of(catalog::CONSTRAINT, known.oid)?;
        self.catalog_update(row, |_| ())?;
        self.invalidate_relcache(table);
        self.change_constraint(table, known.oid, |known| known.valid = true)?;
        self.command_counter_increment()
    }

    /// RENAME CONSTRAINT: an index is renamed with it.
    pub(crate) fn rename_constraint(&mut self, table: Oid, name: &str, to: &Arc<str>) -> Result<()> {
        self.lock_table(table)?;
        self.check_new_constraint(table, to)?;
        let known = self.constraint_named(table, name)?;
        match self.part_of(ObjectAddress::new(catalog::CONSTRAINT, known.oid), catalog::CLASS) {
            Some(index) => self.rename_relation_internal(index, to)?,
            None => {
                let row = self.row_of(catalog::CONSTRAINT, known.oid)?;
                self.catalog_update(row, |tuple| tuple.set("conname", Datum::Name(Arc::clone(to))))?;
            }
        }
        self.invalidate_relcache(table);
        self.change_constraint(table, known.oid, |known| known.name = Arc::clone(to))?;
        self.command_counter_increment()
    }

    /// NOT VALID: the rows that are there were not looked at.
    pub(crate) fn mark_not_valid(&mut self, table: Oid, name: &str) -> Result<()> {
        let known = self.constraint_named(table, name)?;
        self.change_constraint(table, known.oid, |known| known.valid = false)
    }

    /// A constraint by name.
    fn constraint_named(&self, table: Oid, name: &str) -> Result<Constraint> {
        let relation = self.relation(table)?;
        let refused = || StatementError::Refused(format!("'{}' has no constraint '{name}'", relation.name));
        relation.constraints.iter().find(|known| *known.name == *name).cloned().ok_or_else(refused)
    }

    /// Keeps what the catalog says.
    fn change_constraint(&mut self, table: Oid, oid: Oid, change: impl FnOnce(&mut Constraint)) -> Result<()> {
        self.change_relation(table, |table| {
            if let Some(constraint) = table.constraints.iter_mut().find(|known| known.oid == oid) {
                change(constraint);
            }
        })
    }

    /// The index and the column of a primary key.
    pub(super) fn primary_key_of(&self, table: Oid) -> Result<(Oid, i16)> {
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
        if self.cluster.catalog.traits.constraint_locks_partitions {
            self.lock_with_partitions(table).map(drop)
        } else {
            self.lock_table(table)
        }
    }

    /// A constraint's name must be new to its table.
    pub(super) fn check_new_constraint(&self, table: Oid, name: &str) -> Result<()> {
        let relation = self.relation(table)?;
        if relation.constraints.iter().any(|known| *known.name == *name) {
            return Err(StatementError::Refused(format!("'{}' has a constraint '{name}' already", relation.name)));
        }
        Ok(())
    }

    /// Keeps what the catalog says.
    pub(super) fn keep_constraint(&mut self, table: Oid, oid: Oid, name: &Arc<str>, kind: u8, attnum: i16) -> Result<()> {
        let constraint = Constraint { oid, name: Arc::clone(name), kind, attnum, valid: true };
        self.change_relation(table, |table| table.constraints.push(constraint))
    }
}
