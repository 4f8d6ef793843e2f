//! What goes when one object goes (`catalog/dependency.c`: `doDeletion`, and what it calls in `catalog/heap.c`,
//! `catalog/index.c`, `catalog/pg_constraint.c`, `catalog/pg_attrdef.c`, `commands/trigger.c`, `rewrite/rewriteRemove.c`,
//! `commands/typecmds.c`, `commands/publicationcmds.c`).

use pg_types::{Oid, catalog};

use crate::backend::{Backend, Result};
use crate::catalog::{Datum, RelKind, TupleId, user_locator};

impl Backend<'_> {
    /// A relation.
    pub(super) fn drop_relation(&mut self, oid: Oid) -> Result<()> {
        if self.relation(oid)?.kind.is_index() { self.index_drop(oid) } else { self.heap_drop_with_catalog(oid) }
    }

    /// `index_drop`: the table's relcache entry lists its indexes, so it must go.
    fn index_drop(&mut self, oid: Oid) -> Result<()> {
        let (kind, parent) = (self.relation(oid)?.kind, self.relation(oid)?.parent);
        if kind.has_storage() {
            self.drop_storage(oid)?;
        }
        self.catalog_delete_rows_of(catalog::INDEX, oid)?;
        self.delete_relation_rows(oid)?;
        self.catalog_delete_rows_of(catalog::INHERITS, oid)?;
        if let Some(parent) = parent {
            self.change_relation(parent, |index| index.partitions.retain(|known| *known != oid))?;
        }
        let table = self.relation(oid)?.index.as_ref().map(|index| index.table);
        if let Some(table) = table {
            self.invalidate_relcache(table);
            self.change_relation(table, |table| table.indexes.retain(|known| *known != oid))?;
        }
        self.remove_relation(oid);
        Ok(())
    }

    /// `heap_drop_with_catalog`: a partition's parent lists its partitions, so its relcache entry must go.
    fn heap_drop_with_catalog(&mut self, oid: Oid) -> Result<()> {
        let (kind, parent) = (self.relation(oid)?.kind, self.relation(oid)?.parent);
        self.catalog_delete_rows_of(catalog::PARTITIONED_TABLE, oid)?;
        if kind.has_storage() {
            self.drop_storage(oid)?;
        }
        self.catalog_delete_rows_of(catalog::INHERITS, oid)?;
        self.delete_relation_rows(oid)?;
        if kind == RelKind::Sequence {
            self.catalog_delete_rows_of(catalog::SEQUENCE, oid)?;
        }
        if let Some(parent) = parent {
            self.invalidate_relcache(parent);
            self.change_relation(parent, |table| table.partitions.retain(|known| *known != oid))?;
        }
        self.remove_relation(oid);
        Ok(())
    }

    /// `RelationDropStorage`: the file goes at commit.
    pub(super) fn drop_storage(&mut self, oid: Oid) -> Result<()> {
        let file = user_locator(self.relation(oid)?.filenode);
        self.xact.level().drop_at_commit.push(file);
        Ok(())
    }

    /// `RemoveStatistics`, `DeleteAttributeTuples`, `DeleteRelationTuple`.
    fn delete_relation_rows(&mut self, oid: Oid) -> Result<()> {
        self.catalog_delete_rows_of(catalog::STATISTIC, oid)?;
        let mut columns: Vec<(i64, TupleId)> = Vec::new();
        for id in self.cluster.catalog.rows_of(catalog::ATTRIBUTE, oid) {
            let attnum = self.cluster.catalog.tuple(id).and_then(|row| row.tuple.int_column("attnum"));
            columns.push((attnum.unwrap_or_default(), id));
        }
        // They are found by an index on the number: system columns come first.
        columns.sort_unstable();
        columns.into_iter().try_for_each(|(_, id)| self.catalog_delete(id))?;
        self.catalog_delete(self.relation(oid)?.class_row)
    }

    /// `RemoveAttributeById`: the row stays under another name.
    pub(super) fn remove_attribute(&mut self, table: Oid, attnum: i16) -> Result<()> {
        let row = self.attribute_row(table, attnum)?;
        let name = format!("........pg.dropped.{attnum}........").into();
        self.catalog_update(row, |tuple| tuple.set("attname", Datum::Name(name)))?;
        self.change_relation(table, |table| {
            if let Some(column) = table.attribute_mut(attnum) {
                column.dropped = true;
            }
        })
    }

    /// `RemoveTypeById`: an enum's values go with it.
    pub(super) fn remove_type(&mut self, oid: Oid) -> Result<()> {
        self.remove_named(catalog::TYPE, "typname", oid)?;
        self.catalog_delete_rows_of(catalog::ENUM, oid)
    }

    /// Deletes the row of an object that has a name.
    pub(super) fn remove_named(&mut self, class: Oid, column: &str, oid: Oid) -> Result<()> {
        let row = self.row_of(class, oid)?;
        let name = match self.cluster.catalog.tuple(row).and_then(|row| row.tuple.column(column)) {
            Some(Datum::Name(name)) => Some(std::sync::Arc::clone(name)),
            _ => None,
        };
        self.catalog_delete(row)?;
        if let Some(name) = name.filter(|name| self.cluster.catalog.object_named(class, name) == Some(oid)) {
            self.name_object(class, &name, None);
        }
        Ok(())
    }

    /// `RemoveConstraintById`: pg_class counts check constraints.
    pub(super) fn remove_constraint(&mut self, oid: Oid) -> Result<()> {
        let row = self.row_of(catalog::CONSTRAINT, oid)?;
        let table = self.cluster.catalog.tuple(row).and_then(|row| row.tuple.oid_column("conrelid"));
        if let Some(table) = table.filter(|table| table.is_valid()) {
            let is_check = self.relation(table)?.constraints.iter().any(|known| known.oid == oid && known.kind == b'c');
            if is_check {
                let class_row = self.relation(table)?.class_row;
                self.catalog_update(class_row, |_| ())?;
            }
            self.change_relation(table, |table| table.constraints.retain(|known| known.oid != oid))?;
        }
        self.catalog_delete(row)
    }

    /// `RemoveAttrDefaultById`.
    pub(super) fn remove_attribute_default(&mut self, oid: Oid) -> Result<()> {
        let row = self.row_of(catalog::ATTRDEF, oid)?;
        let tuple = self.cluster.catalog.tuple(row).map(|row| row.tuple.clone());
        self.catalog_delete(row)?;
        let column = tuple.and_then(|tuple| Some((tuple.oid_column("adrelid")?, tuple.int_column("adnum")?)));
        let Some((table, attnum)) = column else { return Ok(()) };
        let attribute = self.attribute_row(table, i16::try_from(attnum).unwrap_or_default())?;
        self.catalog_update(attribute, |_| ())
    }

    /// `RemoveRewriteRuleById`.
    pub(super) fn remove_rule(&mut self, oid: Oid) -> Result<()> {
        self.remove_part_of_relation(catalog::REWRITE, "ev_class", oid).map(drop)
    }

    /// `RemovePolicyById`.
    pub(super) fn remove_policy(&mut self, oid: Oid) -> Result<()> {
        self.remove_part_of_relation(catalog::POLICY, "polrelid", oid).map(drop)
    }

    /// `RemoveTriggerById`.
    pub(super) fn remove_trigger(&mut self, oid: Oid) -> Result<()> {
        let table = self.remove_part_of_relation(catalog::TRIGGER, "tgrelid", oid)?;
        match table {
            Some(table) => self.change_relation(table, |table| table.triggers.retain(|known| known.oid != oid)),
            None => Ok(()),
        }
    }

    /// Deletes the row of something that a relcache entry holds. Gives the relation.
    fn remove_part_of_relation(&mut self, class: Oid, column: &str, oid: Oid) -> Result<Option<Oid>> {
        let row = self.row_of(class, oid)?;
        let relation = self.cluster.catalog.tuple(row).and_then(|row| row.tuple.oid_column(column));
        if let Some(relation) = relation {
            self.log_access_exclusive_lock(relation)?;
        }
        self.catalog_delete(row)?;
        if let Some(relation) = relation {
            self.invalidate_relcache(relation);
        }
        Ok(relation)
    }
}
