//! CREATE TABLE (`commands/tablecmds.c`: `DefineRelation`; `catalog/heap.c`: `AddRelationNewConstraints`).
//!
//! A statement is cut into commands where the server raises the command id; each block below ends with one.

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::column::Column;
use super::heap::NewRelation;
use super::rewrite::Copied;
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
        let columns = match spec.parent {
            Some(parent) => self.columns_of_partition(spec, parent)?,
            None => self.attributes(&spec.columns)?,
        };
        let own = if spec.parent.is_none() { &spec.columns[..] } else { &[] };
        let sequences = self.create_sequences(&spec.name, own, namespace)?;
        let table = self.create_heap(spec, &columns, namespace)?;
        match spec.parent {
            Some(parent) => {
                self.inherit_from(table, parent)?;
                self.store_partition_bound(table, parent)?;
            }
            None => self.add_defaults(table, own, &sequences)?,
        }
        if spec.partitioned {
            self.store_partition_key(table)?;
        }
        if let Some(parent) = spec.parent {
            self.clone_parts(parent, table)?;
        }
        self.add_not_null_constraints(table, spec.parent)?;
        self.command_counter_increment()?;
        if !spec.partitioned && columns.iter().any(|column| column.toastable) {
            self.create_toast_table(table)?;
        }
        for (attnum, _) in attnums(own).filter(|(_, column)| column.primary_key) {
            self.create_constraint_index(table, &format!("{}_pkey", spec.name).into(), attnum, b'p')?;
        }
        for (sequence, attnum) in sequences {
            self.own_sequence(sequence, table, attnum)?;
        }
        Ok(table)
    }

    /// CREATE TABLE … AS SELECT * FROM another table: its columns without what belongs to them, then its rows.
    pub(crate) fn create_table_as(&mut self, namespace: Oid, name: &Arc<str>, from: Oid) -> Result<Oid> {
        self.check_new_name(namespace, name)?;
        let of = self.relation(from)?;
        let plain = |column: &Attribute| Attribute { not_null: false, missing: false, ..column.clone() };
        let columns: Vec<Attribute> = of.columns.iter().filter(|column| !column.dropped).map(plain).collect();
        let (row_len, filenode) = (of.row_len, of.filenode);
        let oid = self.new_oid()?;
        let (name, kind, columns) = (Arc::clone(name), RelKind::Table, &columns[..]);
        self.create_relation(&NewRelation { oid, name, namespace, kind, columns, row_len })?;
        self.command_counter_increment()?;
        self.create_missing_toast_table(oid)?;
        let rows = self.cluster.catalog.rows(filenode).count;
        self.fill_heap(oid, rows, Copied::Inserted)?;
        Ok(oid)
    }

    /// Columns with their types, which must be there.
    pub(super) fn attributes(&self, columns: &[Column]) -> Result<Vec<Attribute>> {
        columns.iter().map(|column| self.resolved_attribute(column)).collect()
    }

    /// A column with its type: an enum's values are short, a composite type's may be long, a domain's are those of its base type.
    pub(super) fn resolved_attribute(&self, column: &Column) -> Result<Attribute> {
        let attribute = column.attribute();
        let Some(name) = &column.made_type else { return Ok(attribute) };
        let oid = self.object_named(catalog::TYPE, "type", name)?;
        let r#type = ObjectAddress::new(catalog::TYPE, oid);
        if column.type_name.ends_with("[]") {
            return Ok(Attribute { type_oid: self.part_of(r#type, catalog::TYPE), ..attribute });
        }
        if let Some((width, toastable)) = self.domain_storage(oid) {
            return Ok(Attribute { type_oid: Some(oid), width, toastable, ..attribute });
        }
        let composite = self.part_of(r#type, catalog::CLASS).is_some();
        Ok(Attribute { type_oid: Some(oid), toastable: attribute.toastable || composite, ..attribute })
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
    fn create_sequences(&mut self, table: &str, columns: &[Column], namespace: Oid) -> Result<Vec<(Oid, i16)>> {
        let serial = attnums(columns).filter(|(_, column)| column.serial);
        let sequences = serial.map(|(attnum, column)| {
            let name = format!("{table}_{}_seq", column.name).into();
            Ok((self.create_sequence(namespace, &name)?, attnum))
        });
        sequences.collect()
    }

    /// The table itself: types, pg_class, pg_attribute, its dependency on the schema.
    fn create_heap(&mut self, spec: &TableSpec, columns: &[Attribute], namespace: Oid) -> Result<Oid> {
        if let Some(parent) = spec.parent {
            self.log_access_exclusive_lock(parent)?;
        }
        let oid = self.new_oid()?;
        let kind = if spec.partitioned { RelKind::Partitioned } else { RelKind::Table };
        let row_len = spec.row_len.unwrap_or_else(|| Attribute::row_len(columns));
        self.create_relation(&NewRelation { oid, name: Arc::clone(&spec.name), namespace, kind, columns, row_len })?;
        if let Some(on_commit) = spec.temporary {
            self.change_relation(oid, |table| table.on_commit = on_commit)?;
        }
        self.command_counter_increment()?;
        Ok(oid)
    }

    /// `StorePartitionKey`: the key's column (the first) cannot go but with the table.
    fn store_partition_key(&mut self, table: Oid) -> Result<()> {
        self.catalog_insert(rows::partitioned_table(table))?;
        self.depend(ObjectAddress::column(table, 1), ObjectAddress::relation(table), DependencyType::Internal)?;
        self.invalidate_relcache(table);
        self.command_counter_increment()
    }

    /// `AddRelationNewConstraints`: defaults, in one command.
    fn add_defaults(&mut self, table: Oid, columns: &[Column], sequences: &[(Oid, i16)]) -> Result<()> {
        for (attnum, _) in attnums(columns).filter(|(_, column)| column.default) {
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
    /// relcache entry to go (`SetRelationNumChecks`). A partition's have the names of its parent's.
    fn add_not_null_constraints(&mut self, table: Oid, parent: Option<Oid>) -> Result<()> {
        let relation = self.relation(table)?;
        let wanted: Vec<(i16, Arc<str>)> =
            (1..).zip(&relation.columns).filter(|(_, c)| c.not_null).map(|(n, c)| (n, Arc::clone(&c.name))).collect();
        if !self.cluster.catalog.traits.not_null_constraints || wanted.is_empty() {
            return Ok(());
        }
        let table_name = Arc::clone(&relation.name);
        for (attnum, column) in wanted {
            let inherited = parent.map(|parent| self.not_null_constraint(parent, &column)).transpose()?.flatten();
            let name = inherited.map_or_else(|| format!("{table_name}_{column}_not_null").into(), |known| known.name);
            self.store_not_null_constraint(table, attnum, &name)?;
        }
        self.invalidate_relcache(table);
        self.command_counter_increment()
    }

    /// The NOT NULL constraint of a column.
    pub(super) fn not_null_constraint(&self, table: Oid, column: &str) -> Result<Option<Constraint>> {
        let attnum = self.attnum(table, column)?;
        let constraints = &self.relation(table)?.constraints;
        Ok(constraints.iter().find(|known| known.kind == b'n' && known.attnum == attnum).cloned())
    }

    /// `StoreRelNotNull`: one constraint.
    pub(super) fn store_not_null_constraint(&mut self, table: Oid, attnum: i16, name: &Arc<str>) -> Result<()> {
        let oid = self.new_oid()?;
        self.catalog_insert(rows::constraint(oid, table, b'n'))?;
        self.depend(ObjectAddress::new(catalog::CONSTRAINT, oid), ObjectAddress::column(table, attnum), DependencyType::Auto)?;
        let constraint = Constraint { oid, name: Arc::clone(name), kind: b'n', attnum, valid: true };
        self.change_relation(table, |table| table.constraints.push(constraint))
    }
}

/// Columns with their numbers.
fn attnums(columns: &[Column]) -> impl Iterator<Item = (i16, &Column)> {
    (1..).zip(columns)
}
