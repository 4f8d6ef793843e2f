//! CREATE INDEX, indexes of constraints and TOAST tables, and what a build writes back (`catalog/index.c`: `index_create`,
//! `index_build`, `index_update_stats`; `commands/indexcmds.c`).

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::column::Column;
use super::rows;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{CatalogTuple, PG_TOAST, PUBLIC, RelKind, RelStats, Relation};

/// What one new index is made of.
struct NewIndex<'a> {
    /// Its oid.
    oid: Oid,
    /// Its name.
    name: Arc<str>,
    /// The table.
    table: Oid,
    /// Its columns.
    columns: &'a [Arc<str>],
    /// What it is for, which decides what it depends on.
    purpose: Purpose,
}

/// What an index is for.
#[derive(Clone, Copy, PartialEq)]
enum Purpose {
    /// CREATE INDEX.
    Plain,
    /// The constraint with this oid.
    Constraint(Oid),
    /// A TOAST table.
    Toast,
}

/// Pages of a new index over an empty table: the metapage.
const EMPTY_INDEX_PAGES: u32 = 1;

impl Backend<'_> {
    /// CREATE INDEX on one column. Gives the index's oid.
    pub(crate) fn create_index(&mut self, table: Oid, name: &Arc<str>, column: &str) -> Result<Oid> {
        if self.cluster.catalog.relation_named(name).is_some() {
            return Err(StatementError::Refused(format!("relation '{name}' is there already")));
        }
        if self.relation(table)?.kind != RelKind::Table {
            return Err(StatementError::Refused(format!("'{}' is no plain table", self.relation(table)?.name)));
        }
        let oid = self.new_oid()?;
        let columns = [column.into()];
        self.new_index(&NewIndex { oid, name: Arc::clone(name), table, columns: &columns, purpose: Purpose::Plain })?;
        Ok(oid)
    }

    /// The index of PRIMARY KEY.
    pub(super) fn create_primary_key(&mut self, table: Oid, table_name: &str, column: &Column) -> Result<()> {
        let oid = self.new_oid()?;
        let constraint = self.new_oid()?;
        let columns = [Arc::clone(&column.name)];
        let name = format!("{table_name}_pkey").into();
        self.new_index(&NewIndex { oid, name, table, columns: &columns, purpose: Purpose::Constraint(constraint) })
    }

    /// The index of a TOAST table.
    pub(super) fn create_toast_index(&mut self, oid: Oid, table: Oid, name: &Arc<str>, columns: &[Arc<str>]) -> Result<()> {
        self.new_index(&NewIndex { oid, name: Arc::clone(name), table, columns, purpose: Purpose::Toast })
    }

    /// `index_create`, then the build as a command of its own.
    fn new_index(&mut self, new: &NewIndex<'_>) -> Result<()> {
        let filenode = new.oid.0;
        self.create_storage(filenode)?;
        self.log_access_exclusive_lock(new.oid)?;
        let namespace = if new.purpose == Purpose::Toast { PG_TOAST } else { PUBLIC };
        let class_row = self.catalog_insert(rows::class(new.oid, &new.name, namespace, filenode))?;
        let attributes = (1..).zip(new.columns).map(|(attnum, name)| rows::attribute(new.oid, name, attnum)).collect();
        let attribute_rows = self.catalog_multi_insert(attributes)?;
        let mut other_rows = vec![self.catalog_insert(rows::index(new.oid, new.table))?];
        self.invalidate_relcache(new.table);
        if let Purpose::Constraint(constraint) = new.purpose {
            other_rows.push(self.catalog_insert(rows::constraint(constraint, new.table, b'p'))?);
        }
        for depends in dependencies(new) {
            other_rows.extend(self.catalog_multi_insert(depends)?);
        }
        // Unlike a table's, an index's row says 0 tuples from the start, in every version.
        let stats = RelStats { pages: 0, tuples: Some(0), has_index: false };
        self.put_relation(Relation {
            oid: new.oid,
            name: Arc::clone(&new.name),
            namespace,
            kind: RelKind::Index,
            filenode,
            toast: None,
            indexes: Vec::new(),
            partitions: Vec::new(),
            natts: new.columns.len() as u16,
            row_len: 0,
            stats,
            grantees: Vec::new(),
            class_row,
            attribute_rows,
            other_rows,
        });
        self.change_relation(new.table, |table| table.indexes.push(new.oid))?;
        self.command_counter_increment()?;
        self.index_build(new.table, new.oid)
    }

    /// `index_build`: the sizes that it found go to the pg_class rows of the table and of the index.
    pub(super) fn index_build(&mut self, table: Oid, index: Oid) -> Result<()> {
        let filenode = self.relation(table)?.filenode;
        let pages = self.cluster.catalog.heap(filenode).pages();
        let tuples = self.cluster.catalog.rows(filenode).count;
        self.index_update_stats(table, RelStats { pages, tuples: Some(tuples), has_index: true })?;
        let index_pages = EMPTY_INDEX_PAGES + u32::try_from(tuples / 300).unwrap_or(u32::MAX - 1);
        self.index_update_stats(index, RelStats { pages: index_pages, tuples: Some(tuples), has_index: false })?;
        self.command_counter_increment()
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

/// Rows of pg_depend that a new index needs, one group for each call of the server.
fn dependencies(new: &NewIndex<'_>) -> Vec<Vec<CatalogTuple>> {
    let (index, table) = ((catalog::CLASS, new.oid), (catalog::CLASS, new.table));
    match new.purpose {
        Purpose::Plain => vec![vec![rows::depend(index, table)]],
        Purpose::Constraint(oid) => {
            let constraint = (catalog::CONSTRAINT, oid);
            vec![vec![rows::depend(constraint, table)], vec![rows::depend(index, constraint)]]
        }
        Purpose::Toast => vec![vec![rows::depend(index, table); 2]],
    }
}
