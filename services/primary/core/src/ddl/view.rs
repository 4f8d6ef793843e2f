//! Views and materialized views (`commands/view.c`, `commands/matview.c`, `commands/createas.c`; `rewrite/rewriteDefine.c`).
//!
//! A view is `SELECT * FROM table`: its columns are the table's, and its rule depends on each of them.

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::heap::NewRelation;
use super::rewrite::{Copied, SwapToast};
use super::rows;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{Attribute, DependencyType, ObjectAddress, PUBLIC, RelKind};

/// `ViewSelectRuleName`.
const RULE: &str = "_RETURN";

impl Backend<'_> {
    /// CREATE VIEW. Gives its oid.
    pub(crate) fn create_view(&mut self, name: &Arc<str>, table: Oid) -> Result<Oid> {
        let view = self.create_view_relation(name, table, RelKind::View)?;
        self.insert_rule(view, table)?;
        self.command_counter_increment()?;
        Ok(view)
    }

    /// CREATE OR REPLACE VIEW of a view that is there: its rule is another one now.
    pub(crate) fn replace_view(&mut self, view: Oid, table: Oid) -> Result<()> {
        self.check_kind(view, RelKind::View, "view")?;
        self.log_access_exclusive_lock(view)?;
        let refused = || StatementError::Refused("a view without a rule cannot be replaced".to_owned());
        let rule = self.part_of(ObjectAddress::relation(view), catalog::REWRITE).ok_or_else(refused)?;
        let row = self.row_of(catalog::REWRITE, rule)?;
        self.catalog_update(row, |_| ())?;
        self.delete_dependency_rows_of(ObjectAddress::new(catalog::REWRITE, rule))?;
        self.depend_rule(rule, view, table)?;
        self.invalidate_relcache(view);
        self.command_counter_increment()?;
        let class_row = self.relation(view)?.class_row;
        self.catalog_update(class_row, |_| ())?;
        self.command_counter_increment()
    }

    /// CREATE MATERIALIZED VIEW, filled: at once up to 16, as by REFRESH later. Gives its oid.
    pub(crate) fn create_materialized_view(&mut self, name: &Arc<str>, table: Oid) -> Result<Oid> {
        let view = self.create_view_relation(name, table, RelKind::MaterializedView)?;
        if self.relation(view)?.columns.iter().any(|column| column.toastable) {
            self.create_toast_table(view)?;
        }
        self.insert_rule(view, table)?;
        self.command_counter_increment()?;
        self.set_populated(view)?;
        if self.cluster.catalog.traits.matview_filled_by_refresh {
            self.fill_by_transient_heap(view, table)?;
        } else {
            let rows = self.cluster.catalog.rows(self.relation(table)?.filenode).count;
            self.fill_heap(view, rows, Copied::Inserted)?;
        }
        Ok(view)
    }

    /// REFRESH MATERIALIZED VIEW: into a transient table, whose file becomes the view's.
    pub(crate) fn refresh_materialized_view(&mut self, view: Oid) -> Result<()> {
        self.check_kind(view, RelKind::MaterializedView, "materialized view")?;
        self.log_access_exclusive_lock(view)?;
        self.set_populated(view)?;
        let table = self.table_of_view(view)?;
        self.fill_by_transient_heap(view, table)
    }

    /// `RefreshMatViewByOid` from the transient table on.
    fn fill_by_transient_heap(&mut self, view: Oid, table: Oid) -> Result<()> {
        let transient = self.make_new_heap(view)?;
        self.copy_heap(table, transient, Copied::Inserted)?;
        self.finish_heap_swap(view, transient, SwapToast::ByLinks)
    }

    /// `SetMatViewPopulatedState`.
    fn set_populated(&mut self, view: Oid) -> Result<()> {
        let class_row = self.relation(view)?.class_row;
        self.catalog_update(class_row, |_| ())?;
        self.change_relation(view, |view| view.populated = true)?;
        self.command_counter_increment()
    }

    /// The relation of a view.
    fn create_view_relation(&mut self, name: &Arc<str>, table: Oid, kind: RelKind) -> Result<Oid> {
        self.refuse_temporary(table, "views of temporary tables are not modelled")?;
        self.check_new_name(PUBLIC, name)?;
        let (columns, row_len) = {
            let table = self.relation(table)?;
            let columns: Vec<Attribute> = table.columns.iter().filter(|column| !column.dropped).cloned().collect();
            (columns, table.row_len)
        };
        let oid = self.new_oid()?;
        let new = NewRelation { oid, name: Arc::clone(name), namespace: PUBLIC, kind, columns: &columns, row_len };
        self.create_relation(&new)?;
        self.command_counter_increment()?;
        Ok(oid)
    }

    /// `InsertRule`; `SetRelationRuleStatus` notes it in pg_class.
    fn insert_rule(&mut self, view: Oid, table: Oid) -> Result<()> {
        let oid = self.new_oid()?;
        self.catalog_insert(rows::rewrite(oid, view, &RULE.into()))?;
        self.depend_rule(oid, view, table)?;
        let class_row = self.relation(view)?.class_row;
        self.catalog_update(class_row, |_| ())
    }

    /// What a rule depends on: its view, the columns that it reads; up to 15 the view once more, for OLD and NEW.
    fn depend_rule(&mut self, rule: Oid, view: Oid, table: Oid) -> Result<()> {
        let rule = ObjectAddress::new(catalog::REWRITE, rule);
        let columns = (1..).zip(&self.relation(table)?.columns).filter(|(_, column)| !column.dropped);
        let read: Vec<_> =
            columns.map(|(attnum, _)| (rule, ObjectAddress::column(table, attnum), DependencyType::Normal)).collect();
        let view = ObjectAddress::relation(view);
        self.depend(rule, view, DependencyType::Internal)?;
        if self.cluster.catalog.traits.rule_depends_on_view {
            self.depend(rule, view, DependencyType::Normal)?;
        }
        self.depend_all(&read)
    }

    /// The table that a view's rule reads.
    fn table_of_view(&self, view: Oid) -> Result<Oid> {
        let refused = || StatementError::Refused("the view's table is not there".to_owned());
        let rule = self.part_of(ObjectAddress::relation(view), catalog::REWRITE).ok_or_else(refused)?;
        let read = self.cluster.catalog.dependencies_of(ObjectAddress::new(catalog::REWRITE, rule));
        read.into_iter().find(|(_, row)| row.on.sub != 0).map(|(_, row)| row.on.object).ok_or_else(refused)
    }

    /// A relation must be of a kind.
    pub(super) fn check_kind(&self, rel: Oid, kind: RelKind, what: &str) -> Result<()> {
        let relation = self.relation(rel)?;
        if relation.kind == kind { Ok(()) } else { Err(StatementError::Refused(format!("'{}' is no {what}", relation.name))) }
    }
}
