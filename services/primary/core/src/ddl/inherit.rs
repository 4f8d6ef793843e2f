//! ALTER TABLE … INHERIT, NO INHERIT, SET SCHEMA (`commands/tablecmds.c`: `CreateInheritance`, `RemoveInheritance`,
//! `AlterTableNamespaceInternal`).
//!
//! Differences from PostgreSQL: what is done to a parent is not passed on to such children; all schemas share one set of names.

use pg_types::{Oid, catalog};

use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{CatalogTuple, Datum, Dependency, DependencyType, ObjectAddress, PUBLIC, RelKind};

impl Backend<'_> {
    /// INHERIT: the child's columns count as inherited, too.
    pub(crate) fn add_inheritance(&mut self, child: Oid, parent: Oid) -> Result<()> {
        for table in [child, parent] {
            self.check_kind(table, RelKind::Table, "plain table")?;
            self.refuse_temporary(table, "inheritance of temporary tables is not modelled")?;
        }
        if child == parent || self.inherits_row(child, parent).is_some() {
            let name = &self.relation(child)?.name;
            return Err(StatementError::Refused(format!("'{name}' is the same table, or inherits from it already")));
        }
        if let Some(constraint) = self.relation(parent)?.constraints.iter().find(|known| matches!(known.kind, b'c' | b'n')) {
            let why = "it would be merged, which is not modelled: drop it first";
            return Err(StatementError::Refused(format!("the parent has the constraint '{}': {why}", constraint.name)));
        }
        self.log_access_exclusive_lock(child)?;
        self.update_inherited_columns(child, parent)?;
        self.catalog_insert(super::rows::inherits(child, parent))?;
        self.depend(ObjectAddress::relation(child), ObjectAddress::relation(parent), DependencyType::Normal)?;
        self.set_relation_has_subclass(parent)?;
        self.command_counter_increment()
    }

    /// NO INHERIT.
    pub(crate) fn remove_inheritance(&mut self, child: Oid, parent: Oid) -> Result<()> {
        let refused = || StatementError::Refused("it does not inherit from that table".to_owned());
        let row = self.inherits_row(child, parent).ok_or_else(refused)?;
        self.log_access_exclusive_lock(child)?;
        self.catalog_delete(row)?;
        self.update_inherited_columns(child, parent)?;
        for (id, row) in self.cluster.catalog.dependencies_of(ObjectAddress::relation(child)) {
            if row.on == ObjectAddress::relation(parent) && row.kind == DependencyType::Normal {
                self.catalog_delete(id)?;
            }
        }
        self.command_counter_increment()
    }

    /// The row of pg_inherits of a child that is no partition.
    fn inherits_row(&self, child: Oid, parent: Oid) -> Option<crate::catalog::TupleId> {
        let catalog = &self.cluster.catalog;
        let of_parent = |id: &crate::catalog::TupleId| {
            catalog.tuple(*id).is_some_and(|row| row.tuple.oid_column("inhparent") == Some(parent))
        };
        catalog.rows_of(catalog::INHERITS, child).into_iter().find(of_parent)
    }

    /// `attinhcount` of the child's columns that the parent has, in the parent's order.
    fn update_inherited_columns(&mut self, child: Oid, parent: Oid) -> Result<()> {
        let columns = self.relation(parent)?.columns.clone();
        for column in columns.iter().filter(|column| !column.dropped) {
            let row = self.attribute_row(child, self.attnum(child, &column.name)?)?;
            self.catalog_update(row, |_| ())?;
        }
        Ok(())
    }

    /// SET SCHEMA: the table with its types, indexes, sequences and constraints, in one command. A TOAST table stays where it is.
    pub(crate) fn set_schema(&mut self, table: Oid, schema: &str) -> Result<()> {
        self.refuse_temporary(table, "it stays in its session's schema")?;
        if !self.relation(table)?.kind.is_table() {
            return Err(StatementError::Refused(format!("'{}' is no table", self.relation(table)?.name)));
        }
        let schema = self.schema_named(schema)?;
        if self.relation(table)?.namespace == schema {
            return Ok(());
        }
        self.log_access_exclusive_lock(table)?;
        self.set_relation_namespace(table, schema)?;
        for index in self.relation(table)?.indexes.clone() {
            self.set_relation_namespace(index, schema)?;
        }
        for (_, row) in self.cluster.catalog.dependents_on(ObjectAddress::relation(table)) {
            let owned = self.cluster.catalog.relation(row.object.object).is_some_and(|rel| rel.kind == RelKind::Sequence);
            if owned && row.object.class == catalog::CLASS && row.kind != DependencyType::Normal {
                self.log_access_exclusive_lock(row.object.object)?;
                self.set_relation_namespace(row.object.object, schema)?;
            }
        }
        for constraint in self.relation(table)?.constraints.clone() {
            let row = self.row_of(catalog::CONSTRAINT, constraint.oid)?;
            self.catalog_update(row, |_| ())?;
        }
        self.command_counter_increment()
    }

    /// `AlterRelationNamespaceInternal`, with the types that belong to the relation.
    fn set_relation_namespace(&mut self, rel: Oid, schema: Oid) -> Result<()> {
        let class_row = self.relation(rel)?.class_row;
        self.catalog_update(class_row, |tuple| tuple.set("relnamespace", Datum::Oid(schema)))?;
        for (id, row) in self.cluster.catalog.dependencies_of(ObjectAddress::relation(rel)) {
            if row.on.class == catalog::NAMESPACE {
                let on = ObjectAddress::new(catalog::NAMESPACE, schema);
                self.catalog_update(id, |tuple| *tuple = CatalogTuple::depend(Dependency { on, ..row }))?;
            }
        }
        if let Some(rowtype) = self.part_of(ObjectAddress::relation(rel), catalog::TYPE) {
            let array = self.part_of(ObjectAddress::new(catalog::TYPE, rowtype), catalog::TYPE);
            for r#type in std::iter::once(rowtype).chain(array) {
                let row = self.row_of(catalog::TYPE, r#type)?;
                self.catalog_update(row, |tuple| tuple.set("typnamespace", Datum::Oid(schema)))?;
            }
        }
        self.change_relation(rel, |relation| relation.namespace = schema)
    }

    /// A schema by name.
    pub(super) fn schema_named(&self, name: &str) -> Result<Oid> {
        if name == "public" { Ok(PUBLIC) } else { self.object_named(catalog::NAMESPACE, "schema", name) }
    }
}
