//! Statistics objects (`commands/statscmds.c`: `CreateStatistics`, `RemoveStatisticsById`). What ANALYZE finds for them is not
//! kept.

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::rows;
use crate::backend::{Backend, Result};
use crate::catalog::{DependencyType, ObjectAddress, PUBLIC};

impl Backend<'_> {
    /// CREATE STATISTICS over columns; up to 14 with an empty row of data.
    pub(crate) fn create_statistics(&mut self, name: &Arc<str>, table: Oid, columns: &[String]) -> Result<()> {
        self.check_new_object(catalog::STATISTIC_EXT, "statistics object", name)?;
        let attnums = columns.iter().map(|column| self.attnum(table, column)).collect::<Result<Vec<_>>>()?;
        let oid = self.new_oid()?;
        self.catalog_insert(rows::statistic_ext(oid, name, table))?;
        if self.cluster.catalog.traits.statistics_data_at_once {
            self.catalog_insert(rows::statistic_ext_data(oid))?;
        }
        self.invalidate_relcache(table);
        let statistics = ObjectAddress::new(catalog::STATISTIC_EXT, oid);
        for attnum in attnums {
            self.depend(statistics, ObjectAddress::column(table, attnum), DependencyType::Auto)?;
        }
        self.depend(statistics, ObjectAddress::new(catalog::NAMESPACE, PUBLIC), DependencyType::Normal)?;
        self.name_object(catalog::STATISTIC_EXT, name, Some(oid));
        self.command_counter_increment()
    }

    /// `RemoveStatisticsById`.
    pub(super) fn remove_statistics(&mut self, oid: Oid) -> Result<()> {
        let row = self.row_of(catalog::STATISTIC_EXT, oid)?;
        let table = self.cluster.catalog.tuple(row).and_then(|row| row.tuple.oid_column("stxrelid"));
        self.catalog_delete_rows_of(catalog::STATISTIC_EXT_DATA, oid)?;
        self.remove_named(catalog::STATISTIC_EXT, "stxname", oid)?;
        if let Some(table) = table {
            self.invalidate_relcache(table);
        }
        Ok(())
    }
}
