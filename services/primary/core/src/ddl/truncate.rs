//! TRUNCATE and REINDEX (`commands/tablecmds.c`: `ExecuteTruncateGuts`; `utils/cache/relcache.c`:
//! `RelationSetNewRelfilenumber`; `catalog/index.c`: `reindex_relation`; `catalog/heap.c`: `heap_truncate_one_rel`).
//!
//! Per table: a new file for it, one for its TOAST table, one for each index of both. Every new file updates a pg_class row in
//! a command of its own, every index is built and counted in another. So a table with a TOAST table and no index of its own
//! changes three rows (six NEW_CID records) in three commands that decoding sees, and its end of command is logged four times
//! from 14 on: three times two catcache messages and one relcache message, then the two relcache messages of the build.
//!
//! A file that this very subtransaction made is simply cut.

use pg_types::record::TruncateRecord;
use pg_types::{Oid, RecordBody, catalog};

use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{DATABASE, Datum, DependencyType, ObjectAddress, RelKind, is_mapped, user_locator};
use crate::xact::Told;

/// What TRUNCATE is told besides its tables.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TruncateOptions {
    /// CASCADE: tables with foreign keys to these, too.
    pub(crate) cascade: bool,
    /// RESTART IDENTITY: sequences of these, too.
    pub(crate) restart_identity: bool,
}

/// `SMGR_TRUNCATE_ALL`.
const ALL_FORKS: u32 = 7;

impl Backend<'_> {
    /// TRUNCATE of tables, with their partitions. Gives the number of relations emptied.
    pub(crate) fn truncate(&mut self, tables: &[Oid], options: TruncateOptions) -> Result<usize> {
        let mut relids: Vec<Oid> = Vec::new();
        for table in tables {
            self.add_to_truncate(*table, &mut relids)?;
            for partition in self.relation(*table)?.partitions.clone() {
                self.add_to_truncate(partition, &mut relids)?;
            }
        }
        self.add_referencing(&mut relids, options.cascade)?;
        let sequences = if options.restart_identity { self.lock_sequences_of(&relids)? } else { Vec::new() };
        let mut emptied = 0;
        for rel in &relids {
            if self.relation(*rel)?.kind != RelKind::Partitioned {
                self.truncate_one(*rel)?;
                emptied += 1;
            }
        }
        for sequence in sequences {
            self.set_new_relfilenumber(sequence)?;
        }
        let (cascade, restart_seqs) = (options.cascade, options.restart_identity);
        relids.retain(|rel| self.relation(*rel).is_ok_and(|relation| !relation.temporary));
        if !relids.is_empty() {
            let record = TruncateRecord { db: DATABASE, cascade, restart_seqs, relids };
            self.log(&RecordBody::Truncate(Box::new(record)))?;
        }
        Ok(emptied)
    }

    /// Locks one more table.
    fn add_to_truncate(&mut self, table: Oid, relids: &mut Vec<Oid>) -> Result<()> {
        if !self.relation(table)?.kind.is_table() {
            return Err(StatementError::Refused(format!("'{}' is no table", self.relation(table)?.name)));
        }
        self.log_access_exclusive_lock(table)?;
        relids.push(table);
        Ok(())
    }

    /// Tables with foreign keys to these (`heap_truncate_find_FKs`).
    fn add_referencing(&mut self, relids: &mut Vec<Oid>, cascade: bool) -> Result<()> {
        let mut next = 0;
        while let Some(table) = relids.get(next).copied() {
            next += 1;
            for (_, row) in self.cluster.catalog.dependents_on(ObjectAddress::relation(table)) {
                if row.object.class != catalog::CONSTRAINT || row.kind != DependencyType::Normal {
                    continue;
                }
                let constraint = self.row_of(catalog::CONSTRAINT, row.object.object)?;
                let referencing = self.cluster.catalog.tuple(constraint).and_then(|row| row.tuple.oid_column("conrelid"));
                let Some(referencing) = referencing.filter(|rel| !relids.contains(rel)) else { continue };
                if !cascade {
                    let (name, from) = (&self.relation(table)?.name, &self.relation(referencing)?.name);
                    let message = format!("a foreign key of '{from}' refers to '{name}': truncate both, or say cascade");
                    return Err(StatementError::Refused(message));
                }
                self.add_to_truncate(referencing, relids)?;
            }
        }
        Ok(())
    }

    /// Sequences that columns of these tables own.
    fn lock_sequences_of(&mut self, relids: &[Oid]) -> Result<Vec<Oid>> {
        let mut sequences = Vec::new();
        for table in relids {
            for (_, row) in self.cluster.catalog.dependents_on(ObjectAddress::relation(*table)) {
                let owned = self.cluster.catalog.relation(row.object.object).is_some_and(|rel| rel.kind == RelKind::Sequence);
                if owned && row.object.class == catalog::CLASS && row.kind == DependencyType::Auto {
                    self.log_access_exclusive_lock(row.object.object)?;
                    sequences.push(row.object.object);
                }
            }
        }
        Ok(sequences)
    }

    /// One table with everything that belongs to it.
    fn truncate_one(&mut self, table: Oid) -> Result<()> {
        let file = user_locator(self.relation(table)?.filenode);
        let toast = self.relation(table)?.toast;
        if self.xact.level().drop_at_abort.contains(&file) {
            return std::iter::once(table).chain(toast).try_for_each(|rel| self.cut_relation(rel));
        }
        self.set_new_relfilenumber(table)?;
        if let Some(toast) = toast {
            self.log_access_exclusive_lock(toast)?;
            self.set_new_relfilenumber(toast)?;
        }
        self.reindex_with_toast(table)
    }

    /// `reindex_relation` of a table and its TOAST table (`REINDEX_REL_PROCESS_TOAST`).
    fn reindex_with_toast(&mut self, table: Oid) -> Result<()> {
        let Some(toast) = self.relation(table)?.toast else { return self.reindex_relation(table) };
        let toast_first = self.cluster.catalog.traits.toast_index_first;
        let (first, second) = if toast_first { (toast, table) } else { (table, toast) };
        self.reindex_relation(first)?;
        self.reindex_relation(second)
    }

    /// `heap_truncate`: temporary tables whose rows go at commit.
    pub(crate) fn heap_truncate(&mut self, tables: &[Oid]) -> Result<()> {
        tables.iter().try_for_each(|table| self.log_access_exclusive_lock(*table))?;
        for table in tables {
            let toast = self.relation(*table)?.toast;
            std::iter::once(*table).chain(toast).try_for_each(|rel| self.cut_relation(rel))?;
        }
        Ok(())
    }

    /// `heap_truncate_one_rel`: files of a relation and its indexes are cut to nothing.
    fn cut_relation(&mut self, rel: Oid) -> Result<()> {
        self.log_access_exclusive_lock(rel)?;
        let filenode = self.relation(rel)?.filenode;
        self.cut_file(filenode)?;
        for index in self.relation(rel)?.indexes.clone() {
            self.log_access_exclusive_lock(index)?;
            let filenode = self.relation(index)?.filenode;
            self.cut_file(filenode)?;
            self.index_build(rel, index)?;
        }
        Ok(())
    }

    /// `RelationTruncate` to no block.
    fn cut_file(&mut self, filenode: u32) -> Result<()> {
        let target = user_locator(filenode);
        self.insert(&RecordBody::SmgrTruncate { target, blocks: 0, flags: ALL_FORKS })?;
        self.cluster.catalog.empty_file(filenode);
        self.tell(filenode, Told::Decoders);
        Ok(())
    }

    /// Who is told of all rows of a file that this subtransaction changed so far.
    pub(super) fn tell(&mut self, filenode: u32, told: Told) {
        self.xact.level().rows.iter_mut().filter(|row| row.filenode == filenode).for_each(|row| row.told = told);
    }

    /// REINDEX of a table or of one index. The table is not locked against reading.
    pub(crate) fn reindex(&mut self, rel: Oid) -> Result<()> {
        match self.relation(rel)?.index.as_ref().map(|info| info.table) {
            Some(table) if self.relation(rel)?.kind == RelKind::Index => self.reindex_index(table, rel),
            None if self.relation(rel)?.kind != RelKind::Partitioned => self.reindex_with_toast(rel),
            _ => {
                let name = &self.relation(rel)?.name;
                Err(StatementError::Refused(format!("'{name}' is partitioned: reindex its partitions instead")))
            }
        }
    }

    /// `reindex_relation`: every index gets a new file and is built anew.
    pub(super) fn reindex_relation(&mut self, table: Oid) -> Result<()> {
        let indexes = self.relation(table)?.indexes.clone();
        indexes.into_iter().try_for_each(|index| self.reindex_index(table, index))
    }

    /// `reindex_index`.
    fn reindex_index(&mut self, table: Oid, index: Oid) -> Result<()> {
        self.log_access_exclusive_lock(index)?;
        self.set_new_relfilenumber(index)?;
        self.index_build(table, index)
    }

    /// `RelationSetNewRelfilenumber`: the old file goes at commit, the new one at abort; the pg_class row says so at once.
    pub(super) fn set_new_relfilenumber(&mut self, rel: Oid) -> Result<()> {
        let filenode = self.new_oid()?.0;
        let class_row = self.relation(rel)?.class_row;
        let temporary = self.relation(rel)?.temporary;
        self.create_storage(filenode, temporary)?;
        self.drop_storage(rel)?;
        if is_mapped(rel) {
            self.invalidate_relcache(rel);
            self.xact.level().relation_map_changed = true;
            self.change_relation(rel, |relation| relation.filenode = filenode)?;
            return self.command_counter_increment();
        }
        self.catalog_update(class_row, |tuple| tuple.set("relfilenode", Datum::Int(i64::from(filenode))))?;
        let has_index = self.relation(rel)?.stats.has_index;
        let stats = crate::catalog::RelStats { has_index, ..self.stats_of_new_table() };
        self.change_relation(rel, |relation| {
            relation.filenode = filenode;
            relation.stats = stats;
        })?;
        self.command_counter_increment()
    }
}
