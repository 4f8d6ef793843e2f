//! ALTER TABLE ADD COLUMN (`commands/tablecmds.c`: `ATExecAddColumn`) and GRANT (`catalog/aclchk.c`: `ExecGrant_Relation`).

use std::sync::Arc;

use pg_types::Oid;

use super::column::Column;
use super::rows;
use crate::backend::{Backend, Result, StatementError};

impl Backend<'_> {
    /// ALTER TABLE … ADD COLUMN without default: a new pg_attribute row, and the number of columns in pg_class.
    pub(crate) fn add_column(&mut self, table: Oid, column: &Column) -> Result<()> {
        if column.default || column.primary_key {
            return Err(StatementError::Refused("a column with a default or key cannot be added here".to_owned()));
        }
        self.log_access_exclusive_lock(table)?;
        let relation = self.relation(table)?;
        let (class_row, natts) = (relation.class_row, relation.natts);
        let attnum = i16::try_from(natts + 1).ok().filter(|attnum| *attnum <= 1600);
        let attnum = attnum.ok_or_else(|| StatementError::Refused("a table has at most 1600 columns".to_owned()))?;
        let added = self.catalog_multi_insert(vec![rows::attribute(table, &column.name, attnum)])?;
        self.catalog_update(class_row, |_| ())?;
        let width = column.width;
        self.change_relation(table, |relation| {
            // User columns come first among a relation's rows, for they are found by number.
            relation.attribute_rows.splice(usize::from(natts)..usize::from(natts), added);
            relation.natts += 1;
            relation.row_len += width;
        })?;
        self.command_counter_increment()
    }

    /// GRANT to a role on a table. A role's first grant makes the table depend on it, in a catalog that all databases share.
    pub(crate) fn grant(&mut self, table: Oid, role: &Arc<str>) -> Result<()> {
        let relation = self.relation(table)?;
        let (class_row, known) = (relation.class_row, relation.grantees.contains(role));
        self.catalog_update(class_row, |_| ())?;
        if !known {
            let row = self.catalog_insert(rows::shdepend(table, role))?;
            self.change_relation(table, |relation| {
                relation.grantees.push(Arc::clone(role));
                relation.other_rows.push(row);
            })?;
        }
        self.command_counter_increment()
    }
}
