//! ANALYZE (`commands/analyze.c`: `do_analyze_rel`, `update_attstats`): a row of pg_statistic for each column, in one command;
//! then pg_class in place, if its numbers changed.
//!
//! Difference from PostgreSQL: statistics of expressions and extended statistics are not kept.

use pg_types::{Oid, catalog};

use super::{Backend, Result, StatementError};
use crate::catalog::{CatalogTuple, Datum, RelKind, RelStats};

impl Backend<'_> {
    /// ANALYZE of a plain table.
    pub(crate) fn analyze(&mut self, table: Oid) -> Result<()> {
        let relation = self.relation(table)?;
        if relation.kind != RelKind::Table {
            return Err(StatementError::Refused(format!("'{}' is no plain table", relation.name)));
        }
        let (filenode, indexes) = (relation.filenode, relation.indexes.clone());
        let columns = (1i16..).zip(&relation.columns).filter(|(_, column)| !column.dropped);
        let columns: Vec<i16> = columns.map(|(attnum, _)| attnum).collect();
        let heap = self.cluster.catalog.heap(filenode);
        let (pages, tuples, all_visible) = (heap.pages(), heap.live_rows(), heap.all_visible_pages());
        if tuples > 0 {
            for attnum in columns {
                self.update_attstats(table, attnum)?;
            }
            self.command_counter_increment()?;
        }
        let heap = self.cluster.catalog.heap(filenode);
        let more = heap.told.0 != all_visible;
        heap.told.0 = all_visible;
        let known = self.relation(table)?.stats;
        self.update_relstats(table, RelStats { pages, tuples: Some(tuples), ..known }, more)?;
        for index in indexes {
            let known = self.relation(index)?.stats;
            self.update_relstats(index, RelStats { pages: known.pages.max(1), tuples: Some(tuples), ..known }, false)?;
        }
        self.command_counter_increment()
    }

    /// The pg_statistic row of a column, new or updated.
    fn update_attstats(&mut self, table: Oid, attnum: i16) -> Result<()> {
        let known = self.cluster.statistics.get(&(table, attnum)).copied();
        match known.filter(|row| self.cluster.catalog.tuple(*row).is_some()) {
            Some(row) => self.catalog_update(row, |_| ()),
            None => {
                let columns = vec![
                    ("starelid", Datum::Oid(table)),
                    ("staattnum", Datum::Int(i64::from(attnum))),
                    ("stainherit", Datum::Int(0)),
                ];
                let row = self.catalog_insert(CatalogTuple::new(catalog::STATISTIC, columns))?;
                self.cluster.statistics.insert((table, attnum), row);
                Ok(())
            }
        }
    }
}
