//! Triggers (`commands/trigger.c`: `CreateTrigger`).

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::dependency::DropBehavior;
use super::rows;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{Datum, DependencyType, ObjectAddress, Trigger};

impl Backend<'_> {
    /// CREATE TRIGGER.
    pub(crate) fn create_trigger(&mut self, table: Oid, name: &Arc<str>, function: &str) -> Result<()> {
        let relation = self.relation(table)?;
        if relation.triggers.iter().any(|known| known.name == *name) {
            return Err(StatementError::Refused(format!("'{}' has a trigger '{name}' already", relation.name)));
        }
        let function = self.object_named(catalog::PROC, "function", function)?;
        self.create_trigger_firing_on(table, name, function, None)?;
        self.command_counter_increment()
    }

    /// A trigger of one table, and then of its partitions, whose triggers are parts of it.
    fn create_trigger_firing_on(&mut self, table: Oid, name: &Arc<str>, function: Oid, parent: Option<Oid>) -> Result<()> {
        let of_table = ObjectAddress::relation(table);
        let mut on =
            vec![(ObjectAddress::new(catalog::PROC, function), DependencyType::Normal), (of_table, DependencyType::Auto)];
        if let Some(parent) = parent {
            on.push((ObjectAddress::new(catalog::TRIGGER, parent), DependencyType::PartitionPrimary));
            on.push((of_table, DependencyType::PartitionSecondary));
        }
        let oid = self.insert_trigger(table, &on)?;
        self.change_relation(table, |table| table.triggers.push(Trigger { oid, name: Arc::clone(name), enabled: true }))?;
        for partition in self.relation(table)?.partitions.clone() {
            self.create_trigger_firing_on(partition, name, function, Some(oid))?;
        }
        Ok(())
    }

    /// A new partition gets its part of each trigger of its parent (`CloneRowTriggersToPartition`).
    pub(super) fn clone_triggers(&mut self, parent: Oid, partition: Oid) -> Result<()> {
        for trigger in self.relation(parent)?.triggers.clone() {
            let on = self.cluster.catalog.dependencies_of(ObjectAddress::new(catalog::TRIGGER, trigger.oid));
            if let Some((_, row)) = on.iter().find(|(_, row)| row.on.class == catalog::PROC) {
                self.create_trigger_firing_on(partition, &trigger.name, row.on.object, Some(trigger.oid))?;
            }
        }
        Ok(())
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

    /// ENABLE or DISABLE TRIGGER.
    pub(crate) fn set_trigger(&mut self, table: Oid, name: &str, enabled: bool) -> Result<()> {
        let oid = self.trigger_named(table, name)?;
        let is_it = |known: &&Trigger| known.oid == oid && known.enabled == enabled;
        if self.relation(table)?.triggers.iter().any(|known| is_it(&known)) {
            return Ok(());
        }
        let row = self.row_of(catalog::TRIGGER, oid)?;
        self.catalog_update(row, |_| ())?;
        self.invalidate_relcache(table);
        self.change_trigger(table, oid, |trigger| trigger.enabled = enabled)?;
        self.command_counter_increment()
    }

    /// ALTER TRIGGER … RENAME.
    pub(crate) fn rename_trigger(&mut self, table: Oid, name: &str, to: &Arc<str>) -> Result<()> {
        self.lock_table(table)?;
        let oid = self.trigger_named(table, name)?;
        let row = self.row_of(catalog::TRIGGER, oid)?;
        self.catalog_update(row, |tuple| tuple.set("tgname", Datum::Name(Arc::clone(to))))?;
        self.invalidate_relcache(table);
        self.change_trigger(table, oid, |trigger| trigger.name = Arc::clone(to))?;
        self.command_counter_increment()
    }

    /// A trigger by name.
    fn trigger_named(&self, table: Oid, name: &str) -> Result<Oid> {
        let relation = self.relation(table)?;
        let refused = || StatementError::Refused(format!("'{}' has no trigger '{name}'", relation.name));
        relation.triggers.iter().find(|known| *known.name == *name).map(|known| known.oid).ok_or_else(refused)
    }

    /// Keeps what the catalog says.
    fn change_trigger(&mut self, table: Oid, oid: Oid, change: impl FnOnce(&mut Trigger)) -> Result<()> {
        self.change_relation(table, |table| {
            if let Some(trigger) = table.triggers.iter_mut().find(|known| known.oid == oid) {
                change(trigger);
            }
        })
    }

    /// DROP TRIGGER.
    pub(crate) fn drop_trigger(&mut self, table: Oid, name: &str) -> Result<()> {
        let oid = self.trigger_named(table, name)?;
        self.perform_deletion(ObjectAddress::new(catalog::TRIGGER, oid), DropBehavior::Restrict)
    }
}
