//! ALTER TABLE … COLUMN (`commands/tablecmds.c`: `ATExecAddColumn`, `ATExecDropColumn`, `ATExecColumnDefault`,
//! `ATExecSetNotNull`, `ATExecDropNotNull`, `ATExecSetStorage`, `ATExecSetStatistics`, `renameatt`).
//!
//! What changes a partitioned table's columns changes those of its partitions, too.

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::column::Column;
use super::dependency::DropBehavior;
use super::rows;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{Attribute, Datum, ObjectAddress, RelKind};

/// `MaxHeapAttributeNumber`.
const COLUMNS_MAX: usize = 1600;

impl Backend<'_> {
    /// ADD COLUMN: a new pg_attribute row, and the number of columns in pg_class; a default is kept as the value of rows that are
    /// there, so they are not rewritten. Each table's columns come first, then NOT NULL constraints, then TOAST tables.
    pub(crate) fn add_column(&mut self, table: Oid, column: &Column) -> Result<()> {
        if column.serial || column.primary_key {
            return Err(StatementError::Refused("a serial or key column cannot be added here".to_owned()));
        }
        self.refuse_partition(table)?;
        self.lock_table(table)?;
        let attribute = self.resolved_attribute(column)?;
        let constraint = format!("{}_{}_not_null", self.relation(table)?.name, column.name).into();
        let altered = self.add_column_to(table, column, &attribute)?;
        if column.not_null && self.cluster.catalog.traits.not_null_constraints {
            for (table, attnum) in &altered {
                self.store_not_null_constraint(*table, *attnum, &constraint)?;
                self.invalidate_relcache(*table);
                self.command_counter_increment()?;
            }
        }
        altered.into_iter().try_for_each(|(table, _)| self.create_missing_toast_table(table))
    }

    /// `ATExecAddColumn` of one table and then of its partitions. Gives the tables with the column's numbers.
    fn add_column_to(&mut self, table: Oid, column: &Column, attribute: &Attribute) -> Result<Vec<(Oid, i16)>> {
        let relation = self.relation(table)?;
        if relation.attnum(&column.name).is_some() {
            return Err(StatementError::Refused(format!("'{}' has a column '{}' already", relation.name, column.name)));
        }
        let (class_row, kind) = (relation.class_row, relation.kind);
        let attnum = i16::try_from(relation.columns.len() + 1).ok().filter(|_| relation.columns.len() < COLUMNS_MAX);
        let attnum = attnum.ok_or_else(|| StatementError::Refused(format!("a table has at most {COLUMNS_MAX} columns")))?;
        self.catalog_multi_insert(vec![rows::attribute(table, &column.name, attnum)])?;
        self.catalog_update(class_row, |_| ())?;
        self.change_relation(table, |table| {
            table.columns.push(attribute.clone());
            table.row_len += attribute.width;
        })?;
        if !column.default {
            self.depend_on_type(table, attnum, attribute)?;
        }
        self.command_counter_increment()?;
        if column.default {
            self.store_attribute_default(table, attnum, None)?;
            self.command_counter_increment()?;
            if kind.has_storage() {
                self.set_missing(table, attnum)?;
            }
            self.depend_on_type(table, attnum, attribute)?;
            self.command_counter_increment()?;
        }
        let mut altered = vec![(table, attnum)];
        for partition in self.lock_partitions(table)? {
            altered.extend(self.add_column_to(partition, column, attribute)?);
        }
        Ok(altered)
    }

    /// The value that a column has in rows that were there before it (`StoreAttrMissingVal`).
    fn set_missing(&mut self, table: Oid, attnum: i16) -> Result<()> {
        let attribute = self.attribute_row(table, attnum)?;
        self.catalog_update(attribute, |_| ())?;
        self.change_relation(table, |table| {
            if let Some(column) = table.attribute_mut(attnum) {
                column.missing = true;
            }
        })
    }

    /// `AlterTableCreateToastTable`: if a column needs one and there is none.
    pub(super) fn create_missing_toast_table(&mut self, table: Oid) -> Result<()> {
        let relation = self.relation(table)?;
        let needs = relation.columns.iter().any(|column| column.toastable && !column.dropped);
        if needs && relation.toast.is_none() && relation.kind == RelKind::Table {
            self.create_toast_table(table)
        } else {
            Ok(())
        }
    }

    /// DROP COLUMN, with everything that depends on it; those of partitions go first.
    pub(crate) fn drop_column(&mut self, table: Oid, column: &str, behavior: DropBehavior) -> Result<()> {
        self.refuse_partition(table)?;
        self.lock_table(table)?;
        let mut columns = Vec::new();
        self.columns_to_drop(table, column, &mut columns)?;
        self.perform_multiple_deletions(&columns, behavior)
    }

    /// `ATExecDropColumn`: a column after those of the partitions.
    fn columns_to_drop(&mut self, table: Oid, column: &str, columns: &mut Vec<ObjectAddress>) -> Result<()> {
        let attnum = self.attnum(table, column)?;
        for partition in self.lock_partitions(table)? {
            self.columns_to_drop(partition, column, columns)?;
        }
        columns.push(ObjectAddress::column(table, attnum));
        Ok(())
    }

    /// SET DEFAULT: an old default goes first, as a command of its own.
    pub(crate) fn set_default(&mut self, table: Oid, column: &str) -> Result<()> {
        for table in self.lock_with_partitions(table)? {
            let attnum = self.attnum(table, column)?;
            if let Some(default) = self.default_of(table, attnum) {
                self.perform_deletion(default, DropBehavior::Restrict)?;
            }
            self.store_attribute_default(table, attnum, None)?;
            self.command_counter_increment()?;
        }
        Ok(())
    }

    /// DROP DEFAULT.
    pub(crate) fn drop_default(&mut self, table: Oid, column: &str) -> Result<()> {
        for table in self.lock_with_partitions(table)? {
            let attnum = self.attnum(table, column)?;
            if let Some(default) = self.default_of(table, attnum) {
                self.perform_deletion(default, DropBehavior::Restrict)?;
            }
        }
        Ok(())
    }

    /// A column's default (`GetAttrDefaultOid`).
    pub(super) fn default_of(&self, table: Oid, attnum: i16) -> Option<ObjectAddress> {
        let column = ObjectAddress::column(table, attnum);
        let dependents = self.cluster.catalog.dependents_on(column);
        dependents.into_iter().map(|(_, row)| row.object).find(|object| object.class == catalog::ATTRDEF)
    }

    /// The sequence that a default takes its values from.
    pub(super) fn sequence_of(&self, default: ObjectAddress) -> Option<Oid> {
        let rows = self.cluster.catalog.dependencies_of(default);
        rows.into_iter().map(|(_, row)| row.on).find(|on| on.class == catalog::CLASS && on.sub == 0).map(|on| on.object)
    }

    /// SET NOT NULL: a constraint of its own from 18 on.
    pub(crate) fn set_not_null(&mut self, table: Oid, column: &str) -> Result<()> {
        self.lock_for_not_null(table)?;
        let constraint = format!("{}_{column}_not_null", self.relation(table)?.name).into();
        self.set_not_null_with_partitions(table, column, &constraint)
    }

    /// A table's column, then those of its partitions.
    fn set_not_null_with_partitions(&mut self, table: Oid, column: &str, constraint: &Arc<str>) -> Result<()> {
        let attnum = self.attnum(table, column)?;
        self.set_column_not_null(table, attnum, constraint)?;
        self.command_counter_increment()?;
        for partition in self.lock_partitions(table)? {
            self.set_not_null_with_partitions(partition, column, constraint)?;
        }
        Ok(())
    }

    /// The same of one table. Whether something had to be done comes back.
    pub(super) fn set_column_not_null(&mut self, table: Oid, attnum: i16, constraint: &Arc<str>) -> Result<bool> {
        let relation = self.relation(table)?;
        if relation.attribute(attnum).is_none_or(|column| column.not_null) {
            return Ok(false);
        }
        if self.cluster.catalog.traits.not_null_constraints {
            self.store_not_null_constraint(table, attnum, constraint)?;
        }
        let attribute = self.attribute_row(table, attnum)?;
        self.catalog_update(attribute, |_| ())?;
        self.mark_not_null(table, attnum, true)?;
        Ok(true)
    }

    /// DROP NOT NULL.
    pub(crate) fn drop_not_null(&mut self, table: Oid, column: &str) -> Result<()> {
        self.lock_for_not_null(table)?;
        self.drop_not_null_with_partitions(table, column)
    }

    /// Where NOT NULL is no constraint, all partitions are locked ahead; else each table's when its parent is done.
    fn lock_for_not_null(&mut self, table: Oid) -> Result<()> {
        if self.cluster.catalog.traits.not_null_constraints {
            self.lock_table(table)
        } else {
            self.lock_with_partitions(table).map(drop)
        }
    }

    /// A table's column, then those of its partitions.
    fn drop_not_null_with_partitions(&mut self, table: Oid, column: &str) -> Result<()> {
        let attnum = self.attnum(table, column)?;
        let relation = self.relation(table)?;
        if relation.constraints.iter().any(|known| known.kind == b'p' && known.attnum == attnum) {
            return Err(StatementError::Refused(format!("column '{column}' is the primary key")));
        }
        if relation.attribute(attnum).is_some_and(|column| column.not_null) {
            let constraint = self.not_null_constraint(table, column)?;
            let attribute = self.attribute_row(table, attnum)?;
            self.catalog_update(attribute, |_| ())?;
            self.mark_not_null(table, attnum, false)?;
            match constraint {
                Some(known) => {
                    let constraint = ObjectAddress::new(catalog::CONSTRAINT, known.oid);
                    self.perform_deletion(constraint, DropBehavior::Restrict)?;
                }
                None => self.command_counter_increment()?,
            }
        }
        for partition in self.lock_partitions(table)? {
            self.drop_not_null_with_partitions(partition, column)?;
        }
        Ok(())
    }

    /// Keeps what the catalog says.
    fn mark_not_null(&mut self, table: Oid, attnum: i16, not_null: bool) -> Result<()> {
        self.change_relation(table, |table| {
            if let Some(column) = table.attribute_mut(attnum) {
                column.not_null = not_null;
            }
        })
    }

    /// SET STORAGE: indexes over the column say the same.
    pub(crate) fn set_storage(&mut self, table: Oid, column: &str) -> Result<()> {
        for table in self.lock_with_partitions(table)? {
            let attnum = self.attnum(table, column)?;
            let attribute = self.attribute_row(table, attnum)?;
            self.catalog_update(attribute, |_| ())?;
            for index in self.relation(table)?.indexes.clone() {
                let info = self.relation(index)?.index.as_ref();
                if let Some(position) = info.and_then(|info| info.key.iter().position(|key| *key == attnum)) {
                    self.log_access_exclusive_lock(index)?;
                    let attribute = self.attribute_row(index, position as i16 + 1)?;
                    self.catalog_update(attribute, |_| ())?;
                }
            }
            self.command_counter_increment()?;
        }
        Ok(())
    }

    /// SET STATISTICS: nobody is locked out.
    pub(crate) fn set_statistics(&mut self, table: Oid, column: &str) -> Result<()> {
        for table in self.with_partitions(table)? {
            let attnum = self.attnum(table, column)?;
            let attribute = self.attribute_row(table, attnum)?;
            self.catalog_update(attribute, |_| ())?;
            self.command_counter_increment()?;
        }
        Ok(())
    }

    /// RENAME COLUMN: those of partitions first, all in one command. Indexes keep the old name.
    pub(crate) fn rename_column(&mut self, table: Oid, column: &str, to: &Arc<str>) -> Result<()> {
        self.refuse_partition(table)?;
        self.lock_with_partitions(table)?;
        self.rename_column_of(table, column, to)?;
        self.command_counter_increment()
    }

    /// `renameatt_internal`.
    fn rename_column_of(&mut self, table: Oid, column: &str, to: &Arc<str>) -> Result<()> {
        for partition in self.relation(table)?.partitions.clone() {
            self.rename_column_of(partition, column, to)?;
        }
        let attnum = self.attnum(table, column)?;
        if self.relation(table)?.attnum(to).is_some() {
            return Err(StatementError::Refused(format!("'{}' has a column '{to}' already", self.relation(table)?.name)));
        }
        let attribute = self.attribute_row(table, attnum)?;
        self.catalog_update(attribute, |tuple| tuple.set("attname", Datum::Name(Arc::clone(to))))?;
        self.change_relation(table, |table| {
            if let Some(column) = table.attribute_mut(attnum) {
                column.name = Arc::clone(to);
            }
        })
    }

    /// ALTER TABLE locks its table.
    pub(super) fn lock_table(&mut self, table: Oid) -> Result<()> {
        if !self.relation(table)?.kind.is_table() {
            return Err(StatementError::Refused(format!("'{}' is no table", self.relation(table)?.name)));
        }
        self.log_access_exclusive_lock(table)
    }

    /// The same with all its partitions, which come back behind the table.
    pub(super) fn lock_with_partitions(&mut self, table: Oid) -> Result<Vec<Oid>> {
        self.lock_table(table)?;
        let all = self.with_partitions(table)?;
        all.iter().try_for_each(|table| self.log_access_exclusive_lock(*table))?;
        Ok(all)
    }

    /// A partition has its parent's columns.
    pub(super) fn refuse_partition(&self, table: Oid) -> Result<()> {
        let relation = self.relation(table)?;
        match relation.parent {
            Some(parent) => {
                let (name, of) = (&relation.name, &self.relation(parent)?.name);
                Err(StatementError::Refused(format!("'{name}' is a partition of '{of}': alter the columns of '{of}'")))
            }
            None => Ok(()),
        }
    }
}
