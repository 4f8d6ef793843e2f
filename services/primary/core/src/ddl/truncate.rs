//! TRUNCATE (`commands/tablecmds.c`: `ExecuteTruncateGuts`; `utils/cache/relcache.c`: `RelationSetNewRelfilenumber`).
//!
//! Per table: a new file for it, one for its TOAST table, one for each index of both. Every new file updates a pg_class row in
//! a command of its own, every index is built and counted in another. So a table with a TOAST table and no index of its own
//! changes three rows (six NEW_CID records) in three commands that decoding sees, and its end of command is logged four times
//! from 14 on: three times two catcache messages and one relcache message, then the two relcache messages of the build.

use pg_types::record::TruncateRecord;
use pg_types::{Oid, RecordBody};

use crate::backend::{Backend, Result};
use crate::catalog::{DATABASE, Datum, RelKind, user_locator};

impl Backend<'_> {
    /// TRUNCATE of a table, with its partitions. Gives the number of relations emptied.
    pub(crate) fn truncate(&mut self, table: Oid) -> Result<usize> {
        let mut relids = vec![table];
        relids.extend(self.relation(table)?.partitions.iter().copied());
        for rel in &relids {
            self.log_access_exclusive_lock(*rel)?;
        }
        let mut emptied = 0;
        for rel in &relids {
            if self.relation(*rel)?.kind != RelKind::Partitioned {
                self.truncate_one(*rel)?;
                emptied += 1;
            }
        }
        let record = TruncateRecord { db: DATABASE, cascade: false, restart_seqs: false, relids };
        self.log(&RecordBody::Truncate(Box::new(record)))?;
        Ok(emptied)
    }

    /// One table with everything that belongs to it.
    fn truncate_one(&mut self, table: Oid) -> Result<()> {
        self.set_new_relfilenumber(table)?;
        let Some(toast) = self.relation(table)?.toast else { return self.reindex_relation(table) };
        self.log_access_exclusive_lock(toast)?;
        self.set_new_relfilenumber(toast)?;
        let toast_first = self.cluster.catalog.traits.toast_index_first;
        let (first, second) = if toast_first { (toast, table) } else { (table, toast) };
        self.reindex_relation(first)?;
        self.reindex_relation(second)
    }

    /// `reindex_relation`: every index gets a new file and is built anew.
    fn reindex_relation(&mut self, table: Oid) -> Result<()> {
        for index in self.relation(table)?.indexes.clone() {
            self.log_access_exclusive_lock(index)?;
            self.set_new_relfilenumber(index)?;
            self.index_build(table, index)?;
        }
        Ok(())
    }

    /// `RelationSetNewRelfilenumber`: the old file goes at commit, the new one at abort; the pg_class row says so at once.
    fn set_new_relfilenumber(&mut self, rel: Oid) -> Result<()> {
        let filenode = self.new_oid()?.0;
        let (class_row, old) = (self.relation(rel)?.class_row, self.relation(rel)?.filenode);
        self.create_storage(filenode)?;
        self.xact.level().drop_at_commit.push(user_locator(old));
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
