//! Triggers (`commands/trigger.c`: `CreateTrigger`).

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::dependency::DropBehavior;
use super::rows;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{DependencyType, ObjectAddress, Trigger};

impl Backend<'_> {
    /// CREATE TRIGGER.
    pub(crate) fn create_trigger(&mut self, table: Oid, name: &Arc<str>, function: &str) -> Result<()> {
        let relation = self.relation(table)?;
        if relation.triggers.iter().any(|known| known.name == *name) {
            return Err(StatementError::Refused(format!("'{}' has a trigger '{name}' already", relation.name)));
        }
        let function = self.object_named(catalog::PROC, "function", function)?;
        let on = [
            (ObjectAddress::new(catalog::PROC, function), DependencyType::Normal),
            (ObjectAddress::relation(table), DependencyType::Auto),
        ];
        let oid = self.insert_trigger(table, &on)?;
        self.change_relation(table, |table| table.triggers.push(Trigger { oid, name: Arc::clone(name) }))?;
        self.command_counter_increment()
    }

    /// `CreateTriggerFiringOn`: a table's first trigger is noted in pg_class, as a command of its own; the relcache entry must go
    /// anyway.
    pub(super) fn insert_trigger(&mut self, table: Oid, on: &[(ObjectAddress, DependencyType)]) -> Result<Oid> {
        let oid = self.new_oid()?;
        self.catalog_insert(rows::trigger(oid, table))?;
        let (class_row, known) = (self.relation(table)?.class_row, self.relation(table)?.has_triggers);
        if known {
            self.invalidate_relcache(table);
        } else {
            self.catalog_update(class_row, |_| ())?;
            self.change_relation(table, |table| table.has_triggers = true)?;
            self.command_counter_increment()?;
        }
        let trigger = ObjectAddress::new(catalog::TRIGGER, oid);
        let rows: Vec<_> = on.iter().map(|(on, kind)| (trigger, *on, *kind)).collect();
        self.depend_all(&rows)?;
        Ok(oid)
    }

    /// DROP TRIGGER.
    pub(crate) fn drop_trigger(&mut self, table: Oid, name: &str) -> Result<()> {
        self.log_access_exclusive_lock(table)?;
        let relation = self.relation(table)?;
        let refused = || StatementError::Refused(format!("'{}' has no trigger '{name}'", relation.name));
        let oid = relation.triggers.iter().find(|known| *known.name == *name).map(|known| known.oid).ok_or_else(refused)?;
        self.perform_deletion(ObjectAddress::new(catalog::TRIGGER, oid), DropBehavior::Restrict)
    }
}
