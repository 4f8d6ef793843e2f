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
        self.change_relation(table, |table| table.triggers.push(Trigger { oid, name: Arc::clone(name) }))?;
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

    /// DROP TRIGGER.
    pub(crate) fn drop_trigger(&mut self, table: Oid, name: &str) -> Result<()> {
        let relation = self.relation(table)?;
        let refused = || StatementError::Refused(format!("'{}' has no trigger '{name}'", relation.name));
        let oid = relation.triggers.iter().find(|known| *known.name == *name).map(|known| known.oid).ok_or_else(refused)?;
        self.perform_deletion(ObjectAddress::new(catalog::TRIGGER, oid), DropBehavior::Restrict)
    }
}
