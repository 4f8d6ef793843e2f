//! Row level security, policies and rules (`commands/policy.c`: `CreatePolicy`, `RemovePolicyById`; `rewrite/rewriteDefine.c`:
//! `DefineQueryRewrite`; `commands/tablecmds.c`: `ATExecSetRowSecurity`).

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::dependency::DropBehavior;
use super::rows;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{Datum, DependencyType, ObjectAddress};

impl Backend<'_> {
    /// ENABLE or DISABLE ROW LEVEL SECURITY.
    pub(crate) fn set_row_level_security(&mut self, table: Oid) -> Result<()> {
        self.lock_table(table)?;
        let class_row = self.relation(table)?.class_row;
        self.catalog_update(class_row, |_| ())?;
        self.command_counter_increment()
    }

    /// CREATE POLICY for everybody, whose expression reads the first column.
    pub(crate) fn create_policy(&mut self, table: Oid, name: &Arc<str>) -> Result<()> {
        self.check_new_part(table, catalog::POLICY, "policy", name)?;
        self.lock_table(table)?;
        let oid = self.new_oid()?;
        self.catalog_insert(rows::policy(oid, table, name))?;
        let policy = ObjectAddress::new(catalog::POLICY, oid);
        self.depend(policy, ObjectAddress::relation(table), DependencyType::Auto)?;
        self.depend(policy, ObjectAddress::column(table, 1), DependencyType::Normal)?;
        self.invalidate_relcache(table);
        self.command_counter_increment()
    }

    /// CREATE RULE … ON INSERT DO ALSO NOTHING: it depends on the table, and once more for its NEW.
    pub(crate) fn create_rule(&mut self, table: Oid, name: &Arc<str>) -> Result<()> {
        self.check_new_part(table, catalog::REWRITE, "rule", name)?;
        self.lock_table(table)?;
        let oid = self.new_oid()?;
        self.catalog_insert(rows::rewrite(oid, table, name))?;
        let (rule, table_address) = (ObjectAddress::new(catalog::REWRITE, oid), ObjectAddress::relation(table));
        self.depend(rule, table_address, DependencyType::Auto)?;
        self.depend(rule, table_address, DependencyType::Normal)?;
        let class_row = self.relation(table)?.class_row;
        self.catalog_update(class_row, |_| ())?;
        self.command_counter_increment()
    }

    /// DROP POLICY, DROP RULE.
    pub(crate) fn drop_table_part(&mut self, table: Oid, class: Oid, what: &str, name: &str) -> Result<()> {
        let refused = || StatementError::Refused(format!("there is no {what} named '{name}' on that table"));
        let oid = self.part_named(table, class, name).ok_or_else(refused)?;
        self.perform_deletion(ObjectAddress::new(class, oid), DropBehavior::Restrict)
    }

    /// A table's policy or rule must have a new name.
    fn check_new_part(&self, table: Oid, class: Oid, what: &str, name: &str) -> Result<()> {
        match self.part_named(table, class, name) {
            Some(_) => Err(StatementError::Refused(format!("{what} '{name}' is there already"))),
            None => Ok(()),
        }
    }

    /// A table's policy or rule by name.
    fn part_named(&self, table: Oid, class: Oid, name: &str) -> Option<Oid> {
        let column = if class == catalog::POLICY { "polname" } else { "rulename" };
        let rows = self.cluster.catalog.dependents_on(ObjectAddress::relation(table)).into_iter();
        let parts = rows.map(|(_, row)| row.object).filter(|object| object.class == class).map(|object| object.object);
        let is_it = |oid: &Oid| {
            let row = self.row_of(class, *oid).ok().and_then(|row| self.cluster.catalog.tuple(row));
            row.is_some_and(|row| matches!(row.tuple.column(column), Some(Datum::Name(known)) if **known == *name))
        };
        parts.into_iter().find(is_it)
    }
}
