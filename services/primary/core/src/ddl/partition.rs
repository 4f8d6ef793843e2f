//! Partitions: PARTITION OF, ATTACH and DETACH PARTITION (`commands/tablecmds.c`: `DefineRelation`, `StorePartitionBound`,
//! `StoreCatalogInheritance`, `ATExecAttachPartition`, `ATExecDetachPartition`).
//!
//! What a statement does to a partitioned table goes on to its partitions; here is who they are.

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::create_table::TableSpec;
use super::rows;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{Attribute, Constraint, Datum, DependencyType, ObjectAddress, RelKind};

impl Backend<'_> {
    /// A table with all its partitions and theirs (`find_all_inheritors`): level by level, each by oid.
    pub(super) fn with_partitions(&self, table: Oid) -> Result<Vec<Oid>> {
        let mut all = vec![table];
        let mut next = 0;
        while let Some(parent) = all.get(next).copied() {
            all.extend(self.relation(parent)?.partitions.iter().copied());
            next += 1;
        }
        Ok(all)
    }

    /// Locks a table's partitions. Gives them.
    pub(super) fn lock_partitions(&mut self, table: Oid) -> Result<Vec<Oid>> {
        let partitions = self.relation(table)?.partitions.clone();
        partitions.iter().try_for_each(|partition| self.log_access_exclusive_lock(*partition))?;
        Ok(partitions)
    }

    /// The columns of a new partition are its parent's. Those that a statement repeats must be the same.
    pub(super) fn columns_of_partition(&self, spec: &TableSpec, parent: Oid) -> Result<Vec<Attribute>> {
        let of = self.relation(parent)?;
        if of.kind != RelKind::Partitioned {
            return Err(StatementError::Refused(format!("'{}' is not partitioned", of.name)));
        }
        let columns: Vec<Attribute> =
            of.columns.iter().filter(|column| !column.dropped).map(|c| Attribute { missing: false, ..c.clone() }).collect();
        let same = |column: &super::column::Column| {
            let known = columns.iter().find(|known| known.name == column.name);
            known.is_some_and(|known| known.type_name == column.type_name && (known.not_null || !column.not_null))
        };
        match spec.columns.iter().find(|column| !same(column)) {
            Some(column) => Err(StatementError::Refused(format!(
                "'{}' has no column such as '{}': a partition has its parent's columns, leave 'columns' out",
                of.name, column.name
            ))),
            None => Ok(columns),
        }
    }

    /// What `MergeAttributes` found: defaults and check constraints of the parent.
    pub(super) fn inherit_from(&mut self, table: Oid, parent: Oid) -> Result<()> {
        for (attnum, column) in (1..).zip(self.relation(table)?.columns.clone()) {
            if let Some(default) = self.default_of(parent, self.attnum(parent, &column.name)?) {
                self.store_attribute_default(table, attnum, self.sequence_of(default))?;
            }
        }
        let checks: Vec<_> = self.relation(parent)?.constraints.iter().filter(|known| known.kind == b'c').cloned().collect();
        for check in &checks {
            let attnum = self.attnum_as_in(table, parent, check.attnum)?;
            self.store_check(table, &check.name, attnum)?;
        }
        if !checks.is_empty() {
            let class_row = self.relation(table)?.class_row;
            self.catalog_update(class_row, |_| ())?;
        }
        self.command_counter_increment()
    }

    /// The number in a table of a column that another table has under its name.
    pub(super) fn attnum_as_in(&self, table: Oid, other: Oid, attnum: i16) -> Result<i16> {
        let name = self.relation(other)?.attribute(attnum).map(|column| Arc::clone(&column.name)).unwrap_or_default();
        self.attnum(table, &name)
    }

    /// The bound, then the inheritance; the parent's relcache entry lists its partitions, so it must go.
    pub(super) fn store_partition_bound(&mut self, child: Oid, parent: Oid) -> Result<()> {
        let class_row = self.relation(child)?.class_row;
        self.catalog_update(class_row, |_| ())?;
        self.command_counter_increment()?;
        self.invalidate_relcache(parent);
        self.store_catalog_inheritance(child, parent)
    }

    /// `StoreCatalogInheritance1`; a parent's first child is noted in its own row.
    pub(super) fn store_catalog_inheritance(&mut self, child: Oid, parent: Oid) -> Result<()> {
        self.store_single_inheritance(child, parent)?;
        self.depend(ObjectAddress::relation(child), ObjectAddress::relation(parent), DependencyType::Auto)?;
        self.set_relation_has_subclass(parent)
    }

    /// `StoreSingleInheritance`.
    pub(super) fn store_single_inheritance(&mut self, child: Oid, parent: Oid) -> Result<()> {
        self.catalog_insert(rows::inherits(child, parent))?;
        self.change_relation(child, |table| table.parent = Some(parent))?;
        self.change_relation(parent, |table| {
            let place = table.partitions.partition_point(|known| *known < child);
            table.partitions.insert(place, child);
        })
    }

    /// `SetRelationHasSubclass`.
    pub(super) fn set_relation_has_subclass(&mut self, parent: Oid) -> Result<()> {
        let (class_row, known) = (self.relation(parent)?.class_row, self.relation(parent)?.has_subclass);
        if known {
            self.invalidate_relcache(parent);
            return Ok(());
        }
        self.catalog_update(class_row, |_| ())?;
        self.change_relation(parent, |table| table.has_subclass = true)
    }

    /// A new partition gets its part of each index, trigger and foreign key of its parent.
    pub(super) fn clone_parts(&mut self, parent: Oid, partition: Oid) -> Result<()> {
        for index in self.relation(parent)?.indexes.clone() {
            self.define_partition_index(partition, index, self.constraint_of_index(index), true)?;
        }
        self.clone_triggers(parent, partition)?;
        self.clone_foreign_keys(parent, partition)
    }

    /// ATTACH PARTITION: the child's columns and constraints are inherited now, then the inheritance and the bound; then each
    /// index of the parent gets its part.
    pub(crate) fn attach_partition(&mut self, parent: Oid, child: Oid) -> Result<()> {
        self.refuse_temporary(child, "it cannot become a partition of a permanent table")?;
        let (of, relation) = (self.relation(parent)?, self.relation(child)?);
        let same = of.columns.len() == relation.columns.len();
        if of.kind != RelKind::Partitioned || !relation.kind.is_table() || relation.parent.is_some() || !same {
            let message = format!("'{}' cannot become a partition of '{}'", relation.name, of.name);
            return Err(StatementError::Refused(message));
        }
        self.log_access_exclusive_lock(child)?;
        self.update_inherited(parent, child)?;
        self.store_catalog_inheritance(child, parent)?;
        let class_row = self.relation(child)?.class_row;
        self.catalog_update(class_row, |_| ())?;
        self.command_counter_increment()?;
        self.invalidate_relcache(parent);
        self.clone_parts(parent, child)?;
        self.command_counter_increment()
    }

    /// DETACH PARTITION.
    pub(crate) fn detach_partition(&mut self, parent: Oid, child: Oid) -> Result<()> {
        if self.relation(child)?.parent != Some(parent) {
            let (child, parent) = (&self.relation(child)?.name, &self.relation(parent)?.name);
            return Err(StatementError::Refused(format!("'{child}' is no partition of '{parent}'")));
        }
        let of = self.relation(parent)?;
        if !of.triggers.is_empty() || of.constraints.iter().any(|known| known.kind == b'f') {
            let message = format!("'{}' has triggers or foreign keys: what becomes of a partition's is not modelled", of.name);
            return Err(StatementError::Refused(message));
        }
        self.log_access_exclusive_lock(parent)?;
        if self.cluster.catalog.traits.detach_locks_partition {
            self.log_access_exclusive_lock(child)?;
        }
        self.catalog_delete_rows_of(catalog::INHERITS, child)?;
        self.update_inherited(parent, child)?;
        for (id, row) in self.cluster.catalog.dependencies_of(ObjectAddress::relation(child)) {
            if row.on == ObjectAddress::relation(parent) {
                self.catalog_delete(id)?;
            }
        }
        let class_row = self.relation(child)?.class_row;
        if self.cluster.catalog.traits.detach_locks_partition {
            self.command_counter_increment()?;
            self.detach_indexes(child)?;
            self.catalog_update(class_row, |_| ())?;
        } else {
            self.catalog_update(class_row, |_| ())?;
            self.detach_indexes(child)?;
            self.command_counter_increment()?;
        }
        self.invalidate_relcache(parent);
        self.change_relation(child, |table| table.parent = None)?;
        self.change_relation(parent, |table| table.partitions.retain(|known| *known != child))?;
        self.command_counter_increment()
    }

    /// Indexes of a partition that goes are parts of nothing any more.
    fn detach_indexes(&mut self, child: Oid) -> Result<()> {
        for index in self.relation(child)?.indexes.clone() {
            let Some(parent) = self.relation(index)?.parent else { continue };
            self.log_access_exclusive_lock(index)?;
            self.catalog_delete_rows_of(catalog::INHERITS, index)?;
            let class_row = self.relation(index)?.class_row;
            self.catalog_update(class_row, |_| ())?;
            self.delete_partition_dependencies(ObjectAddress::relation(index))?;
            self.change_relation(index, |index| index.parent = None)?;
            self.change_relation(parent, |parent| parent.partitions.retain(|known| *known != index))?;
            self.command_counter_increment()?;
            if let Some(constraint) = self.constraint_of_index(index) {
                let row = self.row_of(catalog::CONSTRAINT, constraint)?;
                self.catalog_update(row, |tuple| tuple.set("conparentid", Datum::Oid(Oid::INVALID)))?;
                self.delete_partition_dependencies(ObjectAddress::new(catalog::CONSTRAINT, constraint))?;
            }
        }
        Ok(())
    }

    /// What made an object a partition's part of another goes.
    fn delete_partition_dependencies(&mut self, object: ObjectAddress) -> Result<()> {
        for kind in [DependencyType::PartitionPrimary, DependencyType::PartitionSecondary] {
            for (id, row) in self.cluster.catalog.dependencies_of(object) {
                if row.kind == kind {
                    self.catalog_delete(id)?;
                }
            }
        }
        Ok(())
    }

    /// Each column's count of parents changes (`attinhcount`), so does that of constraints that the parent has, too.
    fn update_inherited(&mut self, parent: Oid, child: Oid) -> Result<()> {
        let columns = self.relation(child)?.columns.len() as i16;
        for attnum in 1..=columns {
            if self.relation(child)?.attribute(attnum).is_some_and(|column| !column.dropped) {
                let row = self.attribute_row(child, attnum)?;
                self.catalog_update(row, |_| ())?;
            }
        }
        for known in self.relation(parent)?.constraints.clone() {
            if !matches!(known.kind, b'c' | b'n') {
                continue;
            }
            let attnum = self.attnum_as_in(child, parent, known.attnum)?;
            let alike = |other: &&Constraint| {
                other.kind == known.kind && other.attnum == attnum && (known.kind == b'n' || other.name == known.name)
            };
            let Some(other) = self.relation(child)?.constraints.iter().find(alike).map(|other| other.oid) else {
                let (child, parent) = (&self.relation(child)?.name, &self.relation(parent)?.name);
                let message = format!("'{child}' lacks the constraint '{}' of '{parent}'", known.name);
                return Err(StatementError::Refused(message));
            };
            let row = self.row_of(catalog::CONSTRAINT, other)?;
            self.catalog_update(row, |_| ())?;
        }
        Ok(())
    }
}
