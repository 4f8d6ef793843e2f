//! ATTACH and DETACH PARTITION (`commands/tablecmds.c`: `ATExecAttachPartition`, `ATExecDetachPartition`).

use pg_types::{Oid, catalog};

use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{ObjectAddress, RelKind};

impl Backend<'_> {
    /// ATTACH PARTITION: the child's columns are inherited now, then the inheritance and the bound.
    pub(crate) fn attach_partition(&mut self, parent: Oid, child: Oid) -> Result<()> {
        self.refuse_temporary(child, "it cannot become a partition of a permanent table")?;
        let (of, relation) = (self.relation(parent)?, self.relation(child)?);
        let same = of.columns.len() == relation.columns.len();
        if of.kind != RelKind::Partitioned || relation.kind != RelKind::Table || relation.parent.is_some() || !same {
            let message = format!("'{}' cannot become a partition of '{}'", relation.name, of.name);
            return Err(StatementError::Refused(message));
        }
        self.log_access_exclusive_lock(child)?;
        self.update_inherited_columns(child)?;
        self.store_catalog_inheritance(child, parent)?;
        let class_row = self.relation(child)?.class_row;
        self.catalog_update(class_row, |_| ())?;
        self.command_counter_increment()?;
        self.invalidate_relcache(parent);
        self.command_counter_increment()
    }

    /// DETACH PARTITION.
    pub(crate) fn detach_partition(&mut self, parent: Oid, child: Oid) -> Result<()> {
        if self.relation(child)?.parent != Some(parent) {
            let (child, parent) = (&self.relation(child)?.name, &self.relation(parent)?.name);
            return Err(StatementError::Refused(format!("'{child}' is no partition of '{parent}'")));
        }
        self.log_access_exclusive_lock(parent)?;
        if self.cluster.catalog.traits.detach_locks_partition {
            self.log_access_exclusive_lock(child)?;
        }
        self.catalog_delete_rows_of(catalog::INHERITS, child)?;
        if !self.cluster.catalog.traits.detach_locks_partition {
            self.invalidate_relcache(parent);
        }
        self.update_inherited_columns(child)?;
        for (id, row) in self.cluster.catalog.dependencies_of(ObjectAddress::relation(child)) {
            if row.on == ObjectAddress::relation(parent) {
                self.catalog_delete(id)?;
            }
        }
        if self.cluster.catalog.traits.detach_locks_partition {
            self.command_counter_increment()?;
        }
        let class_row = self.relation(child)?.class_row;
        self.catalog_update(class_row, |_| ())?;
        self.invalidate_relcache(parent);
        self.change_relation(child, |table| table.parent = None)?;
        self.change_relation(parent, |table| table.partitions.retain(|known| *known != child))?;
        self.command_counter_increment()
    }

    /// Each column's count of parents changes (`attinhcount`).
    fn update_inherited_columns(&mut self, child: Oid) -> Result<()> {
        let columns = self.relation(child)?.columns.len() as i16;
        for attnum in 1..=columns {
            if self.relation(child)?.attribute(attnum).is_some_and(|column| !column.dropped) {
                let row = self.attribute_row(child, attnum)?;
                self.catalog_update(row, |_| ())?;
            }
        }
        Ok(())
    }
}
