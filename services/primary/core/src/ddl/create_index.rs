//! CREATE INDEX, indexes of constraints and TOAST tables, and what a build writes back (`catalog/index.c`: `index_create`,
//! `index_build`, `index_update_stats`; `commands/indexcmds.c`: `DefineIndex`).
//!
//! An index of a partitioned table is a catalog entry only. Each partition gets an index of its own, or one that it has is
//! attached.

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::heap::plain_attribute;
use super::rows;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{
    Constraint, DependencyType, IndexInfo, ObjectAddress, OnCommit, RelKind, RelStats, Relation, ReplicaIdentity, is_system,
};

/// What one new index is made of.
pub(super) struct NewIndex {
    /// Its name.
    pub(super) name: Arc<str>,
    /// What it is over.
    pub(super) info: IndexInfo,
    /// What it is for, which decides what it depends on.
    pub(super) purpose: Purpose,
    /// The index of the partitioned table that it is a part of.
    pub(super) parent: Option<Oid>,
    /// It is filled at once, not when its table is written anew (`INDEX_CREATE_SKIP_BUILD`).
    pub(super) build: bool,
}

/// What an index is for.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Purpose {
    /// CREATE INDEX.
    Plain,
    /// A constraint: its `contype`.
    Constraint(u8),
    /// A TOAST table.
    Toast,
}

/// Rows that a catalog has from the beginning; each has another number, which nobody can tell.
const CATALOG_ROWS: u64 = 400;
/// Pages of a new index over an empty table: the metapage.
const EMPTY_INDEX_PAGES: u32 = 1;

impl Backend<'_> {
    /// CREATE INDEX. Gives the index's oid.
    pub(crate) fn create_index(&mut self, table: Oid, name: &Arc<str>, columns: &[String], unique: bool) -> Result<Oid> {
        let relation = self.relation(table)?;
        self.check_new_name(relation.namespace, name)?;
        if !relation.kind.is_table() && relation.kind != RelKind::MaterializedView {
            return Err(StatementError::Refused(format!("'{}' is no table", relation.name)));
        }
        let key = columns.iter().map(|column| self.attnum(table, column)).collect::<Result<Vec<_>>>()?;
        let info = IndexInfo { table, key, unique, ..IndexInfo::default() };
        self.define_index(&NewIndex { name: Arc::clone(name), info, purpose: Purpose::Plain, parent: None, build: true })
    }

    /// A column's number.
    pub(super) fn attnum(&self, table: Oid, column: &str) -> Result<i16> {
        let relation = self.relation(table)?;
        let refused = || StatementError::Refused(format!("'{}' has no column '{column}'", relation.name));
        relation.attnum(column).ok_or_else(refused)
    }

    /// The index of PRIMARY KEY or UNIQUE, with its constraint.
    pub(super) fn create_constraint_index(&mut self, table: Oid, name: &Arc<str>, attnum: i16, kind: u8) -> Result<()> {
        let info = IndexInfo { table, key: vec![attnum], unique: true, primary: kind == b'p', ..IndexInfo::default() };
        let purpose = Purpose::Constraint(kind);
        self.define_index(&NewIndex { name: Arc::clone(name), info, purpose, parent: None, build: true }).map(drop)
    }

    /// The index of a TOAST table, over its first two columns.
    pub(super) fn create_toast_index(&mut self, table: Oid, name: &Arc<str>) -> Result<()> {
        let info = IndexInfo { table, key: vec![1, 2], unique: true, primary: true, ..IndexInfo::default() };
        let new = NewIndex { name: Arc::clone(name), info, purpose: Purpose::Toast, parent: None, build: true };
        self.define_index(&new).map(drop)
    }

    /// `DefineIndex`: the index, then those of the table's partitions.
    pub(super) fn define_index(&mut self, new: &NewIndex) -> Result<Oid> {
        let table = new.info.table;
        let (index, constraint) = self.store_index(new)?;
        if new.build && self.relation(table)?.kind != RelKind::Partitioned {
            self.index_build(table, index)?;
            return Ok(index);
        }
        let known = self.relation(table)?.stats;
        self.index_update_stats(table, RelStats { has_index: true, ..known })?;
        self.command_counter_increment()?;
        for partition in self.relation(table)?.partitions.clone() {
            self.define_partition_index(partition, index, constraint, new.build)?;
        }
        Ok(index)
    }

    /// A partition gets its part of an index, made anew unless it has one that will do.
    pub(super) fn define_partition_index(
        &mut self,
        partition: Oid,
        parent: Oid,
        parent_constraint: Option<Oid>,
        build: bool,
    ) -> Result<()> {
        let info = self.index_info_for(partition, parent)?;
        let of_constraint = parent_constraint.is_some();
        if let Some(found) = self.index_alike(partition, &info, of_constraint)? {
            self.index_set_parent(found, parent)?;
            return match (parent_constraint, self.constraint_of_index(found)) {
                (Some(parent), Some(constraint)) => self.constraint_set_parent(constraint, parent, partition),
                _ => Ok(()),
            };
        }
        let purpose = match (of_constraint, info.primary) {
            (false, _) => Purpose::Plain,
            (true, true) => Purpose::Constraint(b'p'),
            (true, false) => Purpose::Constraint(b'u'),
        };
        let name = self.choose_index_name(partition, &info, purpose)?;
        self.define_index(&NewIndex { name, info, purpose, parent: Some(parent), build }).map(drop)
    }

    /// What a partition's part of an index is over.
    fn index_info_for(&self, partition: Oid, parent: Oid) -> Result<IndexInfo> {
        let refused = || StatementError::Refused("an index is none".to_owned());
        let of = self.relation(parent)?.index.clone().ok_or_else(refused)?;
        let parent_table = self.relation(of.table)?;
        let mut key = Vec::new();
        for attnum in of.key {
            let name = parent_table.attribute(attnum).map(|column| Arc::clone(&column.name)).unwrap_or_default();
            key.push(self.attnum(partition, &name)?);
        }
        Ok(IndexInfo { table: partition, key, unique: of.unique, primary: of.primary, ..IndexInfo::default() })
    }

    /// An index of a table that is as another one would be and no part of one yet (`CompareIndexInfo`).
    fn index_alike(&self, table: Oid, wanted: &IndexInfo, of_constraint: bool) -> Result<Option<Oid>> {
        for index in &self.relation(table)?.indexes {
            let relation = self.relation(*index)?;
            let alike = relation.index.as_ref().is_some_and(|info| info.key == wanted.key && info.unique == wanted.unique);
            if alike && relation.parent.is_none() && (!of_constraint || self.constraint_of_index(*index).is_some()) {
                return Ok(Some(*index));
            }
        }
        Ok(None)
    }

    /// The constraint that an index is part of.
    pub(super) fn constraint_of_index(&self, index: Oid) -> Option<Oid> {
        let rows = self.cluster.catalog.dependencies_of(ObjectAddress::relation(index));
        let is_it =
            |row: &crate::catalog::Dependency| row.on.class == catalog::CONSTRAINT && row.kind == DependencyType::Internal;
        rows.into_iter().map(|(_, row)| row).find(is_it).map(|row| row.on.object)
    }

    /// `ChooseIndexName`: of the table and its columns, with a number if that is taken.
    fn choose_index_name(&self, table: Oid, info: &IndexInfo, purpose: Purpose) -> Result<Arc<str>> {
        let relation = self.relation(table)?;
        let column = |attnum: &i16| relation.attribute(*attnum).map_or("expr", |column| &*column.name);
        let columns = info.key.iter().map(column).collect::<Vec<_>>().join("_");
        let base = match purpose {
            Purpose::Constraint(b'p') => format!("{}_pkey", relation.name),
            Purpose::Constraint(_) => format!("{}_{columns}_key", relation.name),
            _ => format!("{}_{columns}_idx", relation.name),
        };
        let mut name = base.clone();
        let mut number = 0;
        while self.check_new_name(relation.namespace, &name).is_err() {
            number += 1;
            name = format!("{base}{number}");
        }
        Ok(name.into())
    }

    /// `IndexSetParentIndex`: an index that is there becomes a part of the parent's.
    pub(super) fn index_set_parent(&mut self, index: Oid, parent: Oid) -> Result<()> {
        let table = self.relation(index)?.index.as_ref().map_or(Oid::INVALID, |info| info.table);
        self.store_single_inheritance(index, parent)?;
        self.set_relation_has_subclass(parent)?;
        let class_row = self.relation(index)?.class_row;
        self.catalog_update(class_row, |_| ())?;
        self.depend_as_partition(ObjectAddress::relation(index), ObjectAddress::relation(parent), table)?;
        self.command_counter_increment()
    }

    /// `ConstraintSetParentConstraint`: the same of its constraint.
    pub(super) fn constraint_set_parent(&mut self, constraint: Oid, parent: Oid, table: Oid) -> Result<()> {
        let row = self.row_of(catalog::CONSTRAINT, constraint)?;
        self.catalog_update(row, |tuple| tuple.set("conparentid", crate::catalog::Datum::Oid(parent)))?;
        let of = |oid| ObjectAddress::new(catalog::CONSTRAINT, oid);
        self.depend_as_partition(of(constraint), of(parent), table)
    }

    /// What makes an object a partition's part of another.
    pub(super) fn depend_as_partition(&mut self, object: ObjectAddress, parent: ObjectAddress, table: Oid) -> Result<()> {
        self.depend(object, parent, DependencyType::PartitionPrimary)?;
        self.depend(object, ObjectAddress::relation(table), DependencyType::PartitionSecondary)
    }

    /// `index_create` up to the build. Gives the index and its constraint.
    pub(super) fn store_index(&mut self, new: &NewIndex) -> Result<(Oid, Option<Oid>)> {
        let table = new.info.table;
        let oid = self.new_oid()?;
        let partitioned = self.relation(table)?.kind == RelKind::Partitioned;
        let filenode = if partitioned { 0 } else { oid.0 };
        let (namespace, temporary) = (self.relation(table)?.namespace, self.relation(table)?.temporary);
        if !partitioned {
            self.create_storage(filenode, temporary)?;
        }
        self.log_access_exclusive_lock(oid)?;
        let over = self.relation(table)?;
        let column = |attnum: &i16| over.attribute(*attnum).map_or_else(|| "expr".into(), |column| Arc::clone(&column.name));
        let columns: Vec<Arc<str>> = new.info.key.iter().map(column).collect();
        let class_row = self.catalog_insert(rows::class(oid, &new.name, namespace, filenode))?;
        let attributes = (1..).zip(&columns).map(|(attnum, name)| rows::attribute(oid, name, attnum)).collect();
        self.catalog_multi_insert(attributes)?;
        self.catalog_insert(rows::index(oid, table))?;
        self.invalidate_relcache(table);
        // Unlike a table's, an index's row says 0 tuples from the start, in every version.
        let stats = RelStats { pages: 0, tuples: Some(0), has_index: false };
        self.put_relation(Relation {
            oid,
            name: Arc::clone(&new.name),
            namespace,
            temporary,
            transient: false,
            on_commit: OnCommit::default(),
            kind: if partitioned { RelKind::PartitionedIndex } else { RelKind::Index },
            filenode,
            toast: None,
            indexes: Vec::new(),
            partitions: Vec::new(),
            parent: None,
            index: Some(new.info.clone()),
            columns: columns.iter().map(|name| plain_attribute(name)).collect(),
            constraints: Vec::new(),
            triggers: Vec::new(),
            has_triggers: false,
            has_subclass: false,
            populated: false,
            row_len: 0,
            stats,
            replica_identity: ReplicaIdentity::Nothing,
            grantees: Vec::new(),
            class_row,
        });
        self.change_relation(table, |table| table.indexes.push(oid))?;
        if let Some(parent) = new.parent {
            self.store_single_inheritance(oid, parent)?;
            self.set_relation_has_subclass(parent)?;
        }
        let constraint = self.depend_index(new, oid)?;
        self.command_counter_increment()?;
        Ok((oid, constraint))
    }

    /// What a new index depends on: its constraint, which is made here, or the columns that it is over; and the parent's index.
    fn depend_index(&mut self, new: &NewIndex, oid: Oid) -> Result<Option<Oid>> {
        let (index, table) = (ObjectAddress::relation(oid), new.info.table);
        let made = match new.purpose {
            Purpose::Constraint(kind) => Some(self.create_index_constraint(new, oid, kind)?),
            Purpose::Plain | Purpose::Toast => {
                let columns = new.info.key.iter().map(|attnum| ObjectAddress::column(table, *attnum));
                let rows: Vec<_> = columns.map(|column| (index, column, DependencyType::Auto)).collect();
                self.depend_all(&rows)?;
                None
            }
        };
        if let Some(parent) = new.parent {
            self.depend_as_partition(index, ObjectAddress::relation(parent), table)?;
        }
        Ok(made)
    }

    /// `index_constraint_create`.
    fn create_index_constraint(&mut self, new: &NewIndex, index: Oid, kind: u8) -> Result<Oid> {
        let table = new.info.table;
        let oid = self.new_oid()?;
        let parent = new.parent.and_then(|parent| self.constraint_of_index(parent));
        self.catalog_insert(rows::constraint(oid, table, kind))?;
        let constraint = ObjectAddress::new(catalog::CONSTRAINT, oid);
        let columns = new.info.key.iter().map(|attnum| ObjectAddress::column(table, *attnum));
        let rows: Vec<_> = columns.map(|column| (constraint, column, DependencyType::Auto)).collect();
        self.depend_all(&rows)?;
        self.depend(ObjectAddress::relation(index), constraint, DependencyType::Internal)?;
        if let Some(parent) = parent {
            self.depend_as_partition(constraint, ObjectAddress::new(catalog::CONSTRAINT, parent), table)?;
        }
        let attnum = new.info.key.first().copied().unwrap_or_default();
        let known = Constraint { oid, name: Arc::clone(&new.name), kind, attnum, valid: true };
        self.change_relation(table, |table| table.constraints.push(known))?;
        Ok(oid)
    }

    /// `index_build`: the sizes that it found go to the pg_class rows of the table and of the index.
    pub(super) fn index_build(&mut self, table: Oid, index: Oid) -> Result<()> {
        let (pages, tuples) = self.size_of(table)?;
        self.index_update_stats(table, RelStats { pages, tuples: Some(tuples), has_index: true })?;
        let index_pages = EMPTY_INDEX_PAGES + u32::try_from(tuples.div_ceil(300)).unwrap_or(u32::MAX - 1);
        self.index_update_stats(index, RelStats { pages: index_pages, tuples: Some(tuples), has_index: false })?;
        self.command_counter_increment()
    }

    /// Pages and rows of a table.
    pub(crate) fn size_of(&mut self, table: Oid) -> Result<(u32, u64)> {
        let filenode = self.relation(table)?.filenode;
        let pages = self.cluster.catalog.heap(filenode).pages();
        let tuples = if is_system(table) {
            CATALOG_ROWS + self.cluster.catalog.rows_in(table).len() as u64
        } else {
            self.cluster.catalog.rows(filenode).count
        };
        Ok((pages, tuples))
    }

    /// `index_update_stats`: updates the row in place if something differs; else only asks the relcache entry to go. An
    /// unknown number of tuples stays unknown when none was found, and then the pages are left alone, too.
    pub(super) fn index_update_stats(&mut self, rel: Oid, found: RelStats) -> Result<()> {
        let (class_row, known) = (self.relation(rel)?.class_row, self.relation(rel)?.stats);
        let left_alone = self.cluster.catalog.traits.index_build_heeds_autovacuum && !self.cluster.autovacuum;
        let counts = !left_alone || self.relation(rel)?.kind.is_index();
        let counted = counts && (known.tuples.is_some() || found.tuples.is_some_and(|tuples| tuples > 0));
        let now = if counted { found } else { RelStats { has_index: found.has_index, ..known } };
        if now == known {
            self.invalidate_relcache(rel);
            return Ok(());
        }
        self.catalog_inplace_update(class_row)?;
        self.change_relation(rel, |relation| relation.stats = now)
    }
}
