//! CREATE TABLE (`commands/tablecmds.c`: `DefineRelation`; `catalog/heap.c`: `AddRelationNewConstraints`).
//!
//! A statement is cut into commands where the server raises the command id; each block below ends with one.

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::column::Column;
use super::heap::NewRelation;
use super::rows;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{Attribute, Constraint, DependencyType, ObjectAddress, OnCommit, PUBLIC, RelKind};

/// What CREATE TABLE is told.
#[derive(Clone, Debug)]
pub(crate) struct TableSpec {
    /// Its name.
    pub(crate) name: Arc<str>,
    /// Its columns.
    pub(crate) columns: Vec<Column>,
    /// It is a partition of this table.
    pub(crate) parent: Option<Oid>,
    /// It is partitioned itself.
    pub(crate) partitioned: bool,
    /// Bytes of a row in a record, if not what its columns take.
    pub(crate) row_len: Option<u32>,
    /// It is temporary, and this becomes of it at commit.
    pub(crate) temporary: Option<OnCommit>,
}

impl Backend<'_> {
    /// CREATE TABLE, with everything that it brings along. Gives the table's oid.
    pub(crate) fn create_table(&mut self, spec: &TableSpec) -> Result<Oid> {
        let namespace = if spec.temporary.is_some() { self.access_temp_namespace()? } else { PUBLIC };
        if spec.temporary.is_some() && (spec.partitioned || spec.parent.is_some()) {
            return Err(StatementError::Refused("a temporary table cannot be partitioned or a partition here".to_owned()));
        }
        self.check_new_name(namespace, &spec.name)?;
        let sequences = self.create_sequences(spec, namespace)?;
        let table = self.create_heap(spec, namespace)?;
        if let Some(parent) = spec.parent {
            self.store_partition_bound(table, parent)?;
        }
        if spec.partitioned {
            self.store_partition_key(table)?;
        }
        self.add_defaults(table, spec, &sequences)?;
        self.add_not_null_constraints(table, spec)?;
        if !spec.partitioned && spec.columns.iter().any(|column| column.toastable) {
            self.create_toast_table(table)?;
        }
        for (attnum, column) in attnums(spec).filter(|(_, column)| column.primary_key) {
            self.create_constraint_index(table, &format!("{}_pkey", spec.name).into(), (attnum, &column.name), b'p')?;
        }
        for (sequence, attnum) in sequences {
            self.own_sequence(sequence, table, attnum)?;
        }
        Ok(table)
    }

    /// A relation's name must be new in its schema.
    pub(super) fn check_new_name(&self, namespace: Oid, name: &str) -> Result<()> {
        let temp_namespace = if self.is_temp_namespace(namespace) { namespace } else { Oid::INVALID };
        match self.cluster.catalog.relation_in(temp_namespace, name) {
            Some(_) => Err(StatementError::Refused(format!("relation '{name}' is there already"))),
            None => Ok(()),
        }
    }

    /// A sequence for each serial column, made before the table.
    fn create_sequences(&mut self, spec: &TableSpec, namespace: Oid) -> Result<Vec<(Oid, i16)>> {
        let serial = attnums(spec).filter(|(_, column)| column.serial);
        let sequences = serial.map(|(attnum, column)| {
            let name = format!("{}_{}_seq", spec.name, column.name).into();
            Ok((self.create_sequence(namespace, &name)?, attnum))
        });
        sequences.collect()
    }

    /// The table itself: types, pg_class, pg_attribute, its dependency on the schema.
    fn create_heap(&mut self, spec: &TableSpec, namespace: Oid) -> Result<Oid> {
        if let Some(parent) = spec.parent {
            self.log_access_exclusive_lock(parent)?;
        }
        let oid = self.new_oid()?;
        let columns: Vec<Attribute> = spec.columns.iter().map(Column::attribute).collect();
        let kind = if spec.partitioned { RelKind::Partitioned } else { RelKind::Table };
        let row_len = spec.row_len.unwrap_or_else(|| Column::row_len(&spec.columns));
        self.create_relation(&NewRelation { oid, name: Arc::clone(&spec.name), namespace, kind, columns: &columns, row_len })?;
        if let Some(on_commit) = spec.temporary {
            self.change_relation(oid, |table| table.on_commit = on_commit)?;
        }
        self.command_counter_increment()?;
        Ok(oid)
    }

    /// PARTITION OF: the bound, then the inheritance; the parent's relcache entry lists its partitions, so it must go.
    fn store_partition_bound(&mut self, child: Oid, parent: Oid) -> Result<()> {
        let class_row = self.relation(child)?.class_row;
        self.catalog_update(class_row, |_| ())?;
        self.command_counter_increment()?;
        self.invalidate_relcache(parent);
        self.store_catalog_inheritance(child, parent)?;
        self.command_counter_increment()
    }

    /// `StoreCatalogInheritance1`; a parent's first child is noted in its own row.
    pub(super) fn store_catalog_inheritance(&mut self, child: Oid, parent: Oid) -> Result<()> {
        self.catalog_insert(rows::inherits(child, parent))?;
        self.depend(ObjectAddress::relation(child), ObjectAddress::relation(parent), DependencyType::Auto)?;
        self.set_relation_has_subclass(parent)?;
        self.change_relation(child, |table| table.parent = Some(parent))?;
        self.change_relation(parent, |table| table.partitions.push(child))
    }

    /// `SetRelationHasSubclass`.
    fn set_relation_has_subclass(&mut self, parent: Oid) -> Result<()> {
        let (class_row, known) = (self.relation(parent)?.class_row, self.relation(parent)?.has_subclass);
        if known {
            self.invalidate_relcache(parent);
            return Ok(());
        }
        self.catalog_update(class_row, |_| ())?;
        self.change_relation(parent, |table| table.has_subclass = true)
    }

    /// `StorePartitionKey`: the key's column (the first) cannot go but with the table.
    fn store_partition_key(&mut self, table: Oid) -> Result<()> {
        self.catalog_insert(rows::partitioned_table(table))?;
        self.depend(ObjectAddress::column(table, 1), ObjectAddress::relation(table), DependencyType::Internal)?;
        self.invalidate_relcache(table);
        self.command_counter_increment()
    }

    /// `AddRelationNewConstraints`: defaults, in one command.
    fn add_defaults(&mut self, table: Oid, spec: &TableSpec, sequences: &[(Oid, i16)]) -> Result<()> {
        for (attnum, _) in attnums(spec).filter(|(_, column)| column.default) {
            let sequence = sequences.iter().find(|(_, owner)| *owner == attnum).map(|(sequence, _)| *sequence);
            self.store_attribute_default(table, attnum, sequence)?;
        }
        self.command_counter_increment()
    }

    /// `StoreAttrDefault`; `sequence` is where the values come from.
    pub(super) fn store_attribute_default(&mut self, table: Oid, attnum: i16, sequence: Option<Oid>) -> Result<()> {
        let oid = self.new_oid()?;
        self.catalog_insert(rows::attrdef(oid, table, attnum))?;
        let attribute = self.attribute_row(table, attnum)?;
        self.catalog_update(attribute, |_| ())?;
        let default = ObjectAddress::new(catalog::ATTRDEF, oid);
        self.depend(default, ObjectAddress::column(table, attnum), DependencyType::Auto)?;
        match sequence {
            Some(sequence) => self.depend(default, ObjectAddress::relation(sequence), DependencyType::Normal),
            None => Ok(()),
        }
    }

    /// NOT NULL constraints as objects of their own; the count of check constraints is then set anew, which always asks the
    /// relcache entry to go (`SetRelationNumChecks`).
    fn add_not_null_constraints(&mut self, table: Oid, spec: &TableSpec) -> Result<()> {
        if !self.cluster.catalog.traits.not_null_constraints || !spec.columns.iter().any(|column| column.not_null) {
            return Ok(());
        }
        for (attnum, column) in attnums(spec).filter(|(_, column)| column.not_null) {
            self.store_not_null_constraint(table, attnum, &format!("{}_{}_not_null", spec.name, column.name).into())?;
        }
        self.invalidate_relcache(table);
        self.command_counter_increment()
    }

    /// `StoreRelNotNull`: one constraint.
    pub(super) fn store_not_null_constraint(&mut self, table: Oid, attnum: i16, name: &Arc<str>) -> Result<()> {
        let oid = self.new_oid()?;
        self.catalog_insert(rows::constraint(oid, table, b'n'))?;
        self.depend(ObjectAddress::new(catalog::CONSTRAINT, oid), ObjectAddress::column(table, attnum), DependencyType::Auto)?;
        let constraint = Constraint { oid, name: Arc::clone(name), kind: b'n', attnum };
        self.change_relation(table, |table| table.constraints.push(constraint))
    }
}

/// Columns with their numbers.
fn attnums(spec: &TableSpec) -> impl Iterator<Item = (i16, &Column)> {
    (1..).zip(&spec.columns)
}
