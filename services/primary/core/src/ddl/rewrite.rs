//! Tables written anew (`commands/cluster.c`: `make_new_heap`, `swap_relation_files`, `finish_heap_swap`, `cluster_rel`;
//! `commands/tablecmds.c`: `ATExecAlterColumnType`, `ATRewriteTable`).
//!
//! A transient table `pg_temp_<oid>` gets the rows, then both swap their files, and the transient one is dropped with the old
//! file. A TOAST table changes its owner (ALTER, REFRESH) or swaps its own file, too (VACUUM FULL, CLUSTER).

use std::sync::Arc;

use pg_types::record::HeapInsert;
use pg_types::{Oid, RecordBody, catalog};

use super::column::Column;
use super::create_index::{NewIndex, Purpose};
use super::dependency::DropBehavior;
use super::heap::NewRelation;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{Attribute, Datum, DependencyType, ObjectAddress, RelKind, RelStats, is_mapped, is_system, user_locator};
use crate::xact::Told;

/// What happens to TOAST tables when files are swapped.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum SwapToast {
    /// They change their owners.
    ByLinks,
    /// They swap their files.
    ByContent,
}

/// How rows come into the transient table.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Copied {
    /// As inserts.
    Inserted,
    /// As whole pages, whose images are not modelled.
    Pages,
}

impl Backend<'_> {
    /// ALTER COLUMN TYPE: rows are written anew unless the type is the same. Indexes over the column are made anew, too.
    pub(crate) fn alter_column_type(&mut self, table: Oid, column: &str, new: &Column) -> Result<()> {
        self.refuse_partition(table)?;
        let tables = self.lock_with_partitions(table)?;
        let now = self.resolved_attribute(new)?;
        let attnum = self.attnum(table, column)?;
        let same = self.relation(table)?.attribute(attnum).is_some_and(|known| known.type_name == now.type_name);
        let mut indexes = Vec::new();
        for table in &tables {
            let attnum = self.attnum(*table, column)?;
            self.check_no_constraints_on(*table, attnum)?;
            self.alter_type_of(*table, attnum, &now, same)?;
            if !same {
                indexes.extend(self.drop_indexes_on(*table, attnum)?);
            }
        }
        if same {
            return Ok(());
        }
        indexes.iter().try_for_each(|index| self.define_index(index).map(drop))?;
        tables.iter().try_for_each(|table| self.create_missing_toast_table(*table))?;
        for table in tables {
            if self.relation(table)?.kind.has_storage() {
                let transient = self.make_new_heap(table)?;
                self.copy_heap(table, transient, Copied::Inserted)?;
                self.finish_heap_swap(table, transient, SwapToast::ByLinks)?;
            }
        }
        Ok(())
    }

    /// `ATExecAlterColumnType`: the column's row and its default.
    fn alter_type_of(&mut self, table: Oid, attnum: i16, now: &Attribute, same: bool) -> Result<()> {
        if !same {
            self.clear_missing(table)?;
            self.command_counter_increment()?;
        }
        let column = ObjectAddress::column(table, attnum);
        for (id, row) in self.cluster.catalog.dependencies_of(column) {
            if row.on.class == catalog::TYPE {
                self.catalog_delete(id)?;
            }
        }
        let attribute = self.attribute_row(table, attnum)?;
        self.catalog_update(attribute, |_| ())?;
        self.depend_on_type(table, attnum, now)?;
        let now = now.clone();
        self.change_relation(table, |table| {
            let Some(known) = table.attribute_mut(attnum) else { return };
            let width = now.width;
            let before = std::mem::replace(known, Attribute { name: Arc::clone(&known.name), not_null: known.not_null, ..now });
            table.row_len = (table.row_len + width).saturating_sub(before.width);
        })?;
        self.command_counter_increment()?;
        if let Some(default) = self.default_of(table, attnum) {
            self.perform_deletion(default, DropBehavior::Restrict)?;
            self.store_attribute_default(table, attnum, None)?;
            self.command_counter_increment()?;
        }
        Ok(())
    }

    /// Constraints on a column whose type changes would be made anew, which is not modelled.
    fn check_no_constraints_on(&self, table: Oid, attnum: i16) -> Result<()> {
        let relation = self.relation(table)?;
        match relation.constraints.iter().find(|known| known.attnum == attnum && known.kind != b'n') {
            Some(known) => {
                Err(StatementError::Refused(format!("constraint '{}' is on that column: drop it first", known.name)))
            }
            None => Ok(()),
        }
    }

    /// Drops the indexes over a column, with their parts in partitions. They come back to be made anew, and are built when the
    /// table has its new file.
    fn drop_indexes_on(&mut self, table: Oid, attnum: i16) -> Result<Vec<NewIndex>> {
        let (mut over, mut objects) = (Vec::new(), Vec::new());
        for index in &self.relation(table)?.indexes {
            let relation = self.relation(*index)?;
            if let Some(info) = relation.index.as_ref().filter(|info| info.key.contains(&attnum)) {
                let (name, info) = (Arc::clone(&relation.name), info.clone());
                over.push(NewIndex { name, info, purpose: Purpose::Plain, parent: None, build: false });
                objects.push(ObjectAddress::relation(*index));
            }
        }
        self.perform_multiple_deletions(&objects, DropBehavior::Restrict)?;
        Ok(over)
    }

    /// `make_new_heap`: an empty table like another, with a TOAST table if that has one.
    pub(super) fn make_new_heap(&mut self, table: Oid) -> Result<Oid> {
        let oid = self.new_oid()?;
        let old = self.relation(table)?.clone();
        let name = format!("pg_temp_{table}").into();
        let (namespace, row_len) = (old.namespace, old.row_len);
        let new = NewRelation { oid, name, namespace, kind: RelKind::Table, columns: &old.columns, row_len };
        self.create_relation(&new)?;
        self.change_relation(oid, |relation| relation.transient = true)?;
        self.command_counter_increment()?;
        if old.toast.is_some() {
            self.create_toast_table(oid)?;
        }
        Ok(oid)
    }

    /// Puts as many rows into a transient table as another one has.
    pub(super) fn copy_heap(&mut self, from: Oid, to: Oid, how: Copied) -> Result<()> {
        let rows = self.cluster.catalog.rows(self.relation(from)?.filenode).count;
        self.fill_heap(to, rows, how)
    }

    /// Puts rows into a table.
    pub(super) fn fill_heap(&mut self, to: Oid, rows: u64, how: Copied) -> Result<()> {
        let (filenode, tuple_len) = (self.relation(to)?.filenode, self.relation(to)?.row_len);
        for _ in 0..rows {
            let (tid, init_page) = self.cluster.catalog.heap(filenode).place(tuple_len);
            if how == Copied::Inserted {
                let target = user_locator(filenode);
                let insert = HeapInsert { target, tid, logical: true, init_page, tuple_len, ..HeapInsert::default() };
                self.log(&RecordBody::Insert(insert))?;
            }
            self.note_insert(filenode, tuple_len, tid);
        }
        Ok(())
    }

    /// `finish_heap_swap`: files are swapped, indexes built, the transient table goes; its TOAST table that stayed gets its name.
    pub(super) fn finish_heap_swap(&mut self, table: Oid, transient: Oid, toast: SwapToast) -> Result<()> {
        self.swap_relation_files(table, transient, toast)?;
        self.tell(self.relation(table)?.filenode, Told::Readers);
        self.command_counter_increment()?;
        self.reindex_relation(table)?;
        if table == catalog::CLASS {
            // Its own row says when it was frozen, in the command that begins to drop the transient table.
            let class_row = self.relation(table)?.class_row;
            self.catalog_update(class_row, |_| ())?;
        }
        self.perform_deletion(ObjectAddress::relation(transient), DropBehavior::Restrict)?;
        if let Some(stayed) = self.relation(table)?.toast.filter(|_| toast == SwapToast::ByLinks) {
            self.rename_toast_table(table, stayed)?;
        }
        self.clear_missing(table)
    }

    /// `RelationClearMissing`: all rows are written anew, so none lacks a column.
    fn clear_missing(&mut self, table: Oid) -> Result<()> {
        let columns = (1..).zip(&self.relation(table)?.columns);
        let missing: Vec<i16> = columns.filter(|(_, column)| column.missing).map(|(attnum, _)| attnum).collect();
        for attnum in missing {
            let row = self.attribute_row(table, attnum)?;
            self.catalog_update(row, |_| ())?;
            self.change_relation(table, |table| {
                if let Some(column) = table.attribute_mut(attnum) {
                    column.missing = false;
                }
            })?;
        }
        Ok(())
    }

    /// A TOAST table that stayed gets its owner's number in its name.
    fn rename_toast_table(&mut self, table: Oid, stayed: Oid) -> Result<()> {
        self.rename_relation_internal(stayed, &format!("pg_toast_{table}").into())?;
        for index in self.relation(stayed)?.indexes.clone() {
            self.rename_relation_internal(index, &format!("pg_toast_{table}_index").into())?;
        }
        self.command_counter_increment()?;
        // It is no transient table's any more (`ResetRelRewrite`).
        let class_row = self.relation(stayed)?.class_row;
        self.catalog_update(class_row, |_| ())
    }

    /// `swap_relation_files`, in one command.
    fn swap_relation_files(&mut self, one: Oid, other: Oid, toast: SwapToast) -> Result<()> {
        let (a, b) = (self.relation(one)?.clone(), self.relation(other)?.clone());
        if one == catalog::CLASS {
            // Its rows cannot say where they are themselves.
            self.invalidate_relcache(one);
            self.invalidate_relcache(other);
        } else {
            for (row, filenode) in [(a.class_row, b.filenode), (b.class_row, a.filenode)] {
                self.catalog_update(row, |tuple| tuple.set("relfilenode", Datum::Int(i64::from(filenode))))?;
            }
        }
        for (oid, from, has_index) in [(one, &b, a.stats.has_index), (other, &a, b.stats.has_index)] {
            self.change_relation(oid, |relation| {
                relation.filenode = from.filenode;
                if one != catalog::CLASS {
                    relation.stats = RelStats { has_index, ..from.stats };
                }
                if toast == SwapToast::ByLinks {
                    relation.toast = from.toast;
                }
            })?;
        }
        if is_system(one) {
            self.invalidate_catalog(one);
            self.move_catalog_rows(one);
            self.keep_size_of(one)?;
            self.xact.level().relation_map_changed |= is_mapped(one);
        }
        match (toast, a.toast.zip(b.toast)) {
            (SwapToast::ByContent, Some((first, second))) => {
                self.swap_relation_files(first, second, toast)?;
                let index_of =
                    |backend: &Self, toast| Ok::<_, StatementError>(backend.relation(toast)?.indexes.first().copied());
                if let Some((index, transient)) = index_of(self, first)?.zip(index_of(self, second)?) {
                    self.log_access_exclusive_lock(index)?;
                    self.swap_relation_files(index, transient, toast)?;
                }
                Ok(())
            }
            (SwapToast::ByLinks, Some((first, second))) => self.swap_toast_owners((one, second), (other, first)),
            _ => Ok(()),
        }
    }

    /// A catalog's row says how large it is now; pg_class's own is told by the first index that is built.
    fn keep_size_of(&mut self, catalog: Oid) -> Result<()> {
        if catalog == catalog::CLASS {
            return Ok(());
        }
        let (pages, tuples) = self.size_of(catalog)?;
        self.change_relation(catalog, |relation| {
            relation.stats = RelStats { pages, tuples: Some(tuples), ..relation.stats };
        })
    }

    /// TOAST tables depend on their new owners.
    fn swap_toast_owners(&mut self, (one, toast): (Oid, Oid), (other, other_toast): (Oid, Oid)) -> Result<()> {
        self.delete_dependency_rows_of(ObjectAddress::relation(toast))?;
        self.delete_dependency_rows_of(ObjectAddress::relation(other_toast))?;
        for (toast, owner) in [(toast, one), (other_toast, other)] {
            self.depend(ObjectAddress::relation(toast), ObjectAddress::relation(owner), DependencyType::Internal)?;
        }
        Ok(())
    }

    /// VACUUM FULL; CLUSTER if an index says the order (`cluster_rel`).
    pub(crate) fn cluster_relation(&mut self, table: Oid, index: Option<Oid>) -> Result<()> {
        if !matches!(self.relation(table)?.kind, RelKind::Table | RelKind::MaterializedView) {
            return Err(StatementError::Refused(format!("'{}' is no plain table", self.relation(table)?.name)));
        }
        if is_system(table) && self.relation(table)?.toast.is_some() {
            let name = &self.relation(table)?.name;
            return Err(StatementError::Refused(format!(
                "'{name}' has a TOAST table: VACUUM FULL of such a catalog is not modelled"
            )));
        }
        self.log_access_exclusive_lock(table)?;
        if let Some(index) = index {
            self.log_access_exclusive_lock(index)?;
            self.mark_index_clustered(table, index)?;
        }
        let transient = self.make_new_heap(table)?;
        if let Some(toast) = self.relation(table)?.toast {
            self.log_access_exclusive_lock(toast)?;
        }
        self.copy_heap(table, transient, Copied::Pages)?;
        let (class_row, filenode) = (self.relation(transient)?.class_row, self.relation(transient)?.filenode);
        let (pages, tuples) = (self.cluster.catalog.heap(filenode).pages(), self.cluster.catalog.rows(filenode).count);
        if table == catalog::CLASS {
            self.invalidate_relcache(transient);
        } else {
            self.catalog_update(class_row, |_| ())?;
        }
        self.change_relation(transient, |relation| {
            relation.stats = RelStats { pages, tuples: Some(tuples), ..relation.stats };
        })?;
        self.command_counter_increment()?;
        self.finish_heap_swap(table, transient, SwapToast::ByContent)
    }

    /// `mark_index_clustered`: at most one index of a table is.
    fn mark_index_clustered(&mut self, table: Oid, chosen: Oid) -> Result<()> {
        for index in self.relation(table)?.indexes.clone() {
            let clustered = index == chosen;
            if self.relation(index)?.index.as_ref().is_none_or(|info| info.clustered == clustered) {
                continue;
            }
            let row = self.row_of(catalog::INDEX, index)?;
            self.catalog_update(row, |_| ())?;
            self.change_relation(index, |relation| {
                if let Some(info) = &mut relation.index {
                    info.clustered = clustered;
                }
            })?;
        }
        Ok(())
    }
}
