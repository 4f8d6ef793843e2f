//! ALTER TABLE … COLUMN (`commands/tablecmds.c`: `ATExecAddColumn`, `ATExecDropColumn`, `ATExecColumnDefault`,
//! `ATExecSetNotNull`, `ATExecDropNotNull`, `ATExecSetStorage`, `ATExecSetStatistics`, `renameatt`).

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::column::Column;
use super::dependency::DropBehavior;
use super::rows;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{Datum, ObjectAddress, RelKind};

/// `MaxHeapAttributeNumber`.
const COLUMNS_MAX: usize = 1600;

impl Backend<'_> {
    /// ADD COLUMN: a new pg_attribute row, and the number of columns in pg_class; a default is kept as the value of rows that are
    /// there, so they are not rewritten.
    pub(crate) fn add_column(&mut self, table: Oid, column: &Column) -> Result<()> {
        if column.serial || column.primary_key {
            return Err(StatementError::Refused("a serial or key column cannot be added here".to_owned()));
        }
        self.lock_plain_table(table)?;
        let relation = self.relation(table)?;
        if relation.attnum(&column.name).is_some() {
            return Err(StatementError::Refused(format!("'{}' has a column '{}' already", relation.name, column.name)));
        }
        let (class_row, name) = (relation.class_row, Arc::clone(&relation.name));
        let attnum = i16::try_from(relation.columns.len() + 1).ok().filter(|_| relation.columns.len() < COLUMNS_MAX);
        let attnum = attnum.ok_or_else(|| StatementError::Refused(format!("a table has at most {COLUMNS_MAX} columns")))?;
        self.catalog_multi_insert(vec![rows::attribute(table, &column.name, attnum)])?;
        self.catalog_update(class_row, |_| ())?;
        let width = column.width;
        self.change_relation(table, |table| {
            table.columns.push(column.attribute());
            table.row_len += width;
        })?;
        self.command_counter_increment()?;
        if column.default {
            self.store_attribute_default(table, attnum, None)?;
            self.command_counter_increment()?;
            // The missing value.
            let attribute = self.attribute_row(table, attnum)?;
            self.catalog_update(attribute, |_| ())?;
            self.change_relation(table, |table| {
                if let Some(column) = table.attribute_mut(attnum) {
                    column.missing = true;
                }
            })?;
            self.command_counter_increment()?;
        }
        if column.not_null && self.cluster.catalog.traits.not_null_constraints {
            self.store_not_null_constraint(table, attnum, &format!("{name}_{}_not_null", column.name).into())?;
            self.invalidate_relcache(table);
            self.command_counter_increment()?;
        }
        self.create_missing_toast_table(table)
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

    /// DROP COLUMN, with everything that depends on it.
    pub(crate) fn drop_column(&mut self, table: Oid, column: &str, behavior: DropBehavior) -> Result<()> {
        self.lock_plain_table(table)?;
        let attnum = self.attnum(table, column)?;
        self.perform_deletion(ObjectAddress::column(table, attnum), behavior)
    }

    /// SET DEFAULT: an old default goes first, as a command of its own.
    pub(crate) fn set_default(&mut self, table: Oid, column: &str) -> Result<()> {
        self.lock_plain_table(table)?;
        let attnum = self.attnum(table, column)?;
        if let Some(default) = self.default_of(table, attnum) {
            self.perform_deletion(default, DropBehavior::Restrict)?;
        }
        self.store_attribute_default(table, attnum, None)?;
        self.command_counter_increment()
    }

    /// DROP DEFAULT.
    pub(crate) fn drop_default(&mut self, table: Oid, column: &str) -> Result<()> {
        self.lock_plain_table(table)?;
        let attnum = self.attnum(table, column)?;
        match self.default_of(table, attnum) {
            Some(default) => self.perform_deletion(default, DropBehavior::Restrict),
            None => Ok(()),
        }
    }

    /// A column's default (`GetAttrDefaultOid`).
    pub(super) fn default_of(&self, table: Oid, attnum: i16) -> Option<ObjectAddress> {
        let column = ObjectAddress::column(table, attnum);
        let dependents = self.cluster.catalog.dependents_on(column);
        dependents.into_iter().map(|(_, row)| row.object).find(|object| object.class == catalog::ATTRDEF)
    }

    /// SET NOT NULL: a constraint of its own from 18 on.
    pub(crate) fn set_not_null(&mut self, table: Oid, column: &str) -> Result<()> {
        self.lock_plain_table(table)?;
        let attnum = self.attnum(table, column)?;
        self.set_column_not_null(table, attnum)?;
        self.command_counter_increment()
    }

    /// The same as part of a statement. Whether something had to be done comes back.
    pub(super) fn set_column_not_null(&mut self, table: Oid, attnum: i16) -> Result<bool> {
        let relation = self.relation(table)?;
        let Some(column) = relation.attribute(attnum).filter(|column| !column.not_null) else { return Ok(false) };
        if self.cluster.catalog.traits.not_null_constraints {
            let name = format!("{}_{}_not_null", relation.name, column.name).into();
            self.store_not_null_constraint(table, attnum, &name)?;
        }
        let attribute = self.attribute_row(table, attnum)?;
        self.catalog_update(attribute, |_| ())?;
        self.mark_not_null(table, attnum, true)?;
        Ok(true)
    }

    /// DROP NOT NULL.
    pub(crate) fn drop_not_null(&mut self, table: Oid, column: &str) -> Result<()> {
        self.lock_plain_table(table)?;
        let attnum = self.attnum(table, column)?;
        let relation = self.relation(table)?;
        if relation.constraints.iter().any(|known| known.kind == b'p' && known.attnum == attnum) {
            return Err(StatementError::Refused(format!("column '{column}' is the primary key")));
        }
        if relation.attribute(attnum).is_none_or(|column| !column.not_null) {
            return Ok(());
        }
        let constraint = relation.constraints.iter().find(|known| known.kind == b'n' && known.attnum == attnum);
        let constraint = constraint.map(|known| ObjectAddress::new(catalog::CONSTRAINT, known.oid));
        let attribute = self.attribute_row(table, attnum)?;
        self.catalog_update(attribute, |_| ())?;
        self.mark_not_null(table, attnum, false)?;
        match constraint {
            Some(constraint) => self.perform_deletion(constraint, DropBehavior::Restrict),
            None => self.command_counter_increment(),
        }
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
        self.lock_plain_table(table)?;
        let attnum = self.attnum(table, column)?;
        let attribute = self.attribute_row(table, attnum)?;
        self.catalog_update(attribute, |_| ())?;
        for index in self.relation(table)?.indexes.clone() {
            let position = self.relation(index)?.index.as_ref().and_then(|info| info.key.iter().position(|key| *key == attnum));
            if let Some(position) = position {
                self.log_access_exclusive_lock(index)?;
                let attribute = self.attribute_row(index, position as i16 + 1)?;
                self.catalog_update(attribute, |_| ())?;
            }
        }
        self.command_counter_increment()
    }

    /// SET STATISTICS: nobody is locked out.
    pub(crate) fn set_statistics(&mut self, table: Oid, column: &str) -> Result<()> {
        let attnum = self.attnum(table, column)?;
        let attribute = self.attribute_row(table, attnum)?;
        self.catalog_update(attribute, |_| ())?;
        self.command_counter_increment()
    }

    /// RENAME COLUMN. Indexes keep the old name.
    pub(crate) fn rename_column(&mut self, table: Oid, column: &str, to: &Arc<str>) -> Result<()> {
        self.lock_plain_table(table)?;
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
        })?;
        self.command_counter_increment()
    }

    /// ALTER TABLE locks its table. What concerns a table's columns would go on to all its partitions, which is not modelled.
    pub(super) fn lock_plain_table(&mut self, table: Oid) -> Result<()> {
        let relation = self.relation(table)?;
        match relation.kind {
            RelKind::Table => self.log_access_exclusive_lock(table),
            RelKind::Partitioned if relation.partitions.is_empty() => self.log_access_exclusive_lock(table),
            RelKind::Partitioned => {
                Err(StatementError::Refused(format!("'{}' has partitions: alter one of them instead", relation.name)))
            }
            _ => Err(StatementError::Refused(format!("'{}' is no table", relation.name))),
        }
    }
}
