//! CREATE INDEX, indexes of constraints and TOAST tables, and what a build writes back (`catalog/index.c`: `index_create`,
//! `index_build`, `index_update_stats`; `commands/indexcmds.c`).

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::heap::plain_attribute;
use super::rows;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{
    Constraint, DependencyType, IndexInfo, ObjectAddress, OnCommit, RelKind, RelStats, Relation, ReplicaIdentity, is_system,
};

/// What one new index is made of.
struct NewIndex<'a> {
    /// Its oid.
    oid: Oid,
    /// Its name.
    name: Arc<str>,
    /// What it is over.
    info: IndexInfo,
    /// Its columns' names.
    columns: &'a [Arc<str>],
    /// What it is for, which decides what it depends on.
    purpose: Purpose,
}

/// What an index is for.
#[derive(Clone, Copy, PartialEq)]
enum Purpose {
    /// CREATE INDEX.
    Plain,
    /// A constraint: its oid and `contype`.
    Constraint(Oid, u8),
    /// A TOAST table.
    Toast,
}

/// Rows that a catalog has from the beginning; each has another number, which nobody can tell.
const CATALOG_ROWS: u64 = 400;
/// Pages of a new index over an empty table: the metapage.
const EMPTY_INDEX_PAGES: u32 = 1;

impl Backend<'_> {
    /// CREATE INDEX on one column. Gives the index's oid.
    pub(crate) fn create_index(&mut self, table: Oid, name: &Arc<str>, column: &str, unique: bool) -> Result<Oid> {
        let relation = self.relation(table)?;
        self.check_new_name(relation.namespace, name)?;
        if !matches!(relation.kind, RelKind::Table | RelKind::MaterializedView) {
            return Err(StatementError::Refused(format!("'{}' is no plain table", relation.name)));
        }
        let attnum = self.attnum(table, column)?;
        self.create_plain_index(table, name, attnum, unique)
    }

    /// A column's number.
    pub(super) fn attnum(&self, table: Oid, column: &str) -> Result<i16> {
        let relation = self.relation(table)?;
        let refused = || StatementError::Refused(format!("'{}' has no column '{column}'", relation.name));
        relation.attnum(column).ok_or_else(refused)
    }

    /// The index of CREATE INDEX.
    pub(super) fn create_plain_index(&mut self, table: Oid, name: &Arc<str>, attnum: i16, unique: bool) -> Result<Oid> {
        let oid = self.new_oid()?;
        let columns =
            [self.relation(table)?.attribute(attnum).map_or_else(|| "expr".into(), |column| Arc::clone(&column.name))];
        let info = IndexInfo { table, key: vec![attnum], unique, ..IndexInfo::default() };
        self.new_index(&NewIndex { oid, name: Arc::clone(name), info, columns: &columns, purpose: Purpose::Plain })?;
        Ok(oid)
    }

    /// An index that is built later (`INDEX_CREATE_SKIP_BUILD`): its table is only marked as having one.
    pub(super) fn create_unbuilt_index(&mut self, table: Oid, name: &Arc<str>, attnum: i16, unique: bool) -> Result<()> {
        let oid = self.new_oid()?;
        let columns =
            [self.relation(table)?.attribute(attnum).map_or_else(|| "expr".into(), |column| Arc::clone(&column.name))];
        let info = IndexInfo { table, key: vec![attnum], unique, ..IndexInfo::default() };
        self.store_index(&NewIndex { oid, name: Arc::clone(name), info, columns: &columns, purpose: Purpose::Plain })?;
        let known = self.relation(table)?.stats;
        self.index_update_stats(table, RelStats { has_index: true, ..known })?;
        self.command_counter_increment()
    }

    /// The index of PRIMARY KEY or UNIQUE, with its constraint.
    pub(super) fn create_constraint_index(
        &mut self,
        table: Oid,
        name: &Arc<str>,
        (attnum, column): (i16, &Arc<str>),
        kind: u8,
    ) -> Result<()> {
        let oid = self.new_oid()?;
        let constraint = self.new_oid()?;
        let columns = [Arc::clone(column)];
        let info = IndexInfo { table, key: vec![attnum], unique: true, primary: kind == b'p', ..IndexInfo::default() };
        let purpose = Purpose::Constraint(constraint, kind);
        self.new_index(&NewIndex { oid, name: Arc::clone(name), info, columns: &columns, purpose })?;
        let constraint = Constraint { oid: constraint, name: Arc::clone(name), kind, attnum };
        self.change_relation(table, |table| table.constraints.push(constraint))
    }

    /// The index of a TOAST table, over its first two columns.
    pub(super) fn create_toast_index(&mut self, oid: Oid, table: Oid, name: &Arc<str>) -> Result<()> {
        let columns: Vec<Arc<str>> = self.relation(table)?.columns.iter().take(2).map(|c| Arc::clone(&c.name)).collect();
        let info = IndexInfo { table, key: vec![1, 2], unique: true, primary: true, ..IndexInfo::default() };
        self.new_index(&NewIndex { oid, name: Arc::clone(name), info, columns: &columns, purpose: Purpose::Toast })
    }

    /// `index_create`, then the build as a command of its own.
    fn new_index(&mut self, new: &NewIndex<'_>) -> Result<()> {
        self.store_index(new)?;
        self.index_build(new.info.table, new.oid)
    }

    /// `index_create` up to the build.
    fn store_index(&mut self, new: &NewIndex<'_>) -> Result<()> {
        let (filenode, table) = (new.oid.0, new.info.table);
        let (namespace, temporary) = (self.relation(table)?.namespace, self.relation(table)?.temporary);
        self.create_storage(filenode, temporary)?;
        self.log_access_exclusive_lock(new.oid)?;
        let class_row = self.catalog_insert(rows::class(new.oid, &new.name, namespace, filenode))?;
        let attributes = (1..).zip(new.columns).map(|(attnum, name)| rows::attribute(new.oid, name, attnum)).collect();
        self.catalog_multi_insert(attributes)?;
        self.catalog_insert(rows::index(new.oid, table))?;
        self.invalidate_relcache(table);
        if let Purpose::Constraint(constraint, kind) = new.purpose {
            self.catalog_insert(rows::constraint(constraint, table, kind))?;
        }
        self.depend_index(new)?;
        // Unlike a table's, an index's row says 0 tuples from the start, in every version.
        let stats = RelStats { pages: 0, tuples: Some(0), has_index: false };
        self.put_relation(Relation {
            oid: new.oid,
            name: Arc::clone(&new.name),
            namespace,
            temporary,
            on_commit: OnCommit::default(),
            kind: RelKind::Index,
            filenode,
            toast: None,
            indexes: Vec::new(),
            partitions: Vec::new(),
            parent: None,
            index: Some(new.info.clone()),
            columns: new.columns.iter().map(|name| plain_attribute(name)).collect(),
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
        self.change_relation(table, |table| table.indexes.push(new.oid))?;
        self.command_counter_increment()
    }

    /// What a new index depends on: its constraint, or the columns that it is over.
    fn depend_index(&mut self, new: &NewIndex<'_>) -> Result<()> {
        let index = ObjectAddress::relation(new.oid);
        let columns = new.info.key.iter().map(|attnum| ObjectAddress::column(new.info.table, *attnum));
        match new.purpose {
            Purpose::Constraint(oid, _) => {
                let constraint = ObjectAddress::new(catalog::CONSTRAINT, oid);
                let rows: Vec<_> = columns.map(|column| (constraint, column, DependencyType::Auto)).collect();
                self.depend_all(&rows)?;
                self.depend(index, constraint, DependencyType::Internal)
            }
            Purpose::Plain | Purpose::Toast => {
                let rows: Vec<_> = columns.map(|column| (index, column, DependencyType::Auto)).collect();
                self.depend_all(&rows)
            }
        }
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
    pub(super) fn size_of(&mut self, table: Oid) -> Result<(u32, u64)> {
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
    fn index_update_stats(&mut self, rel: Oid, found: RelStats) -> Result<()> {
        let (class_row, known) = (self.relation(rel)?.class_row, self.relation(rel)?.stats);
        let counted = known.tuples.is_some() || found.tuples.is_some_and(|tuples| tuples > 0);
        let now = if counted { found } else { RelStats { has_index: found.has_index, ..known } };
        if now == known {
            self.invalidate_relcache(rel);
            return Ok(());
        }
        self.catalog_inplace_update(class_row)?;
        self.change_relation(rel, |relation| relation.stats = now)
    }
}
