//! ALTER TABLE as a whole, GRANT, COMMENT (`commands/tablecmds.c`: `RenameRelationInternal`, `ATExecSetRelOptions`,
//! `ATExecReplicaIdentity`; `catalog/aclchk.c`: `ExecGrant_Relation`; `commands/comment.c`).

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::rows;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{Datum, DependencyType, ObjectAddress, ReplicaIdentity};

impl Backend<'_> {
    /// RENAME of a table, index, view or sequence: its types are renamed with it. An index locks nobody out.
    pub(crate) fn rename_relation(&mut self, rel: Oid, to: &Arc<str>) -> Result<()> {
        self.check_new_name(self.relation(rel)?.namespace, to)?;
        if !self.relation(rel)?.kind.is_index() {
            self.log_access_exclusive_lock(rel)?;
        }
        self.rename_relation_internal(rel, to)?;
        self.command_counter_increment()
    }

    /// `RenameRelationInternal`.
    pub(super) fn rename_relation_internal(&mut self, rel: Oid, to: &Arc<str>) -> Result<()> {
        let class_row = self.relation(rel)?.class_row;
        self.catalog_update(class_row, |tuple| tuple.set("relname", Datum::Name(Arc::clone(to))))?;
        if let Some(rowtype) = self.part_of(ObjectAddress::relation(rel), catalog::TYPE) {
            self.rename_type_internal(rowtype, to)?;
        }
        let constraint = self
            .cluster
            .catalog
            .dependencies_of(ObjectAddress::relation(rel))
            .into_iter()
            .find(|(_, row)| row.on.class == catalog::CONSTRAINT && row.kind == DependencyType::Internal);
        if let Some((_, row)) = constraint {
            let row = self.row_of(catalog::CONSTRAINT, row.on.object)?;
            self.catalog_update(row, |tuple| tuple.set("conname", Datum::Name(Arc::clone(to))))?;
        }
        self.change_relation(rel, |relation| relation.name = Arc::clone(to))
    }

    /// `RenameTypeInternal`, with the array type.
    pub(super) fn rename_type_internal(&mut self, r#type: Oid, to: &Arc<str>) -> Result<()> {
        let row = self.row_of(catalog::TYPE, r#type)?;
        self.catalog_update(row, |tuple| tuple.set("typname", Datum::Name(Arc::clone(to))))?;
        match self.part_of(ObjectAddress::new(catalog::TYPE, r#type), catalog::TYPE) {
            Some(array) => {
                let (row, name) = (self.row_of(catalog::TYPE, array)?, format!("_{to}").into());
                self.catalog_update(row, |tuple| tuple.set("typname", Datum::Name(name)))
            }
            None => Ok(()),
        }
    }

    /// The object of a catalog that is part of another one.
    pub(super) fn part_of(&self, whole: ObjectAddress, class: Oid) -> Option<Oid> {
        let dependents = self.cluster.catalog.dependents_on(whole);
        let part = dependents.into_iter().find(|(_, row)| row.object.class == class && row.kind == DependencyType::Internal);
        part.map(|(_, row)| row.object.object)
    }

    /// SET (fillfactor = …): the TOAST table is told, too. Nobody is locked out.
    pub(crate) fn set_reloptions(&mut self, table: Oid) -> Result<()> {
        let (class_row, toast) = (self.relation(table)?.class_row, self.relation(table)?.toast);
        self.catalog_update(class_row, |_| ())?;
        if let Some(toast) = toast {
            let class_row = self.relation(toast)?.class_row;
            self.catalog_update(class_row, |_| ())?;
        }
        self.command_counter_increment()
    }

    /// REPLICA IDENTITY (`relation_mark_replica_identity`): pg_class if it says something else, pg_index for each index that was or
    /// is the chosen one.
    pub(crate) fn replica_identity(&mut self, table: Oid, identity: ReplicaIdentity, index: Option<Oid>) -> Result<()> {
        self.log_access_exclusive_lock(table)?;
        let (class_row, known) = (self.relation(table)?.class_row, self.relation(table)?.replica_identity);
        if known != identity {
            self.catalog_update(class_row, |_| ())?;
            self.change_relation(table, |table| table.replica_identity = identity)?;
        }
        for candidate in self.relation(table)?.indexes.clone() {
            let chosen = index == Some(candidate);
            if self.relation(candidate)?.index.as_ref().is_none_or(|info| info.replica_identity == chosen) {
                continue;
            }
            let row = self.row_of(catalog::INDEX, candidate)?;
            self.catalog_update(row, |_| ())?;
            self.invalidate_relcache(table);
            self.change_relation(candidate, |relation| {
                if let Some(info) = &mut relation.index {
                    info.replica_identity = chosen;
                }
            })?;
        }
        self.command_counter_increment()
    }

    /// GRANT to a role on a table. A role's first grant makes the table depend on it, in a catalog that all databases share.
    pub(crate) fn grant(&mut self, table: Oid, role: &Arc<str>) -> Result<()> {
        let relation = self.relation(table)?;
        let (class_row, known) = (relation.class_row, relation.grantees.contains(role));
        self.catalog_update(class_row, |_| ())?;
        if !known {
            self.catalog_insert(rows::shdepend(table, role))?;
            self.change_relation(table, |relation| relation.grantees.push(Arc::clone(role)))?;
        }
        self.command_counter_increment()
    }

    /// REVOKE of everything from a role.
    pub(crate) fn revoke(&mut self, table: Oid, role: &Arc<str>) -> Result<()> {
        let relation = self.relation(table)?;
        if !relation.grantees.contains(role) {
            return Err(StatementError::Refused(format!("role '{role}' was granted nothing on '{}'", relation.name)));
        }
        let class_row = relation.class_row;
        self.catalog_update(class_row, |_| ())?;
        for id in self.cluster.catalog.rows_of(catalog::SHDEPEND, table) {
            let value = self.cluster.catalog.tuple(id).and_then(|row| row.tuple.column("refobjid").cloned());
            if value == Some(Datum::Name(Arc::clone(role))) {
                self.catalog_delete(id)?;
            }
        }
        self.change_relation(table, |relation| relation.grantees.retain(|known| known != role))?;
        self.command_counter_increment()
    }

    /// COMMENT ON a table or column; no comment takes it away.
    pub(crate) fn comment(&mut self, on: ObjectAddress, remove: bool) -> Result<()> {
        let is_it = |id: &crate::catalog::TupleId| {
            self.cluster.catalog.tuple(*id).is_some_and(|row| {
                row.tuple.oid_column("classoid") == Some(on.class)
                    && row.tuple.int_column("objsubid") == Some(i64::from(on.sub))
            })
        };
        let known = self.cluster.catalog.rows_of(catalog::DESCRIPTION, on.object).into_iter().find(is_it);
        match (known, remove) {
            (Some(row), true) => self.catalog_delete(row)?,
            (Some(row), false) => self.catalog_update(row, |_| ())?,
            (None, true) => {}
            (None, false) => drop(self.catalog_insert(rows::description(on))?),
        }
        self.command_counter_increment()
    }
}
