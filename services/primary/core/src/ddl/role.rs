//! Roles and what they own or are granted (`commands/user.c`; `catalog/aclchk.c`: `ExecGrant_common`; `commands/tablecmds.c`:
//! `ATExecChangeOwner`). All databases share pg_authid and pg_shdepend.
//!
//! Difference from PostgreSQL: GRANT and OWNER TO take any name for a role, made or not.

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::rows;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{Datum, DependencyType, ObjectAddress, RelKind};

/// `SHARED_DEPENDENCY_OWNER`.
const OWNER: i64 = b'o' as i64;

impl Backend<'_> {
    /// CREATE ROLE.
    pub(crate) fn create_role(&mut self, name: &Arc<str>) -> Result<()> {
        self.check_new_object(catalog::AUTHID, "role", name)?;
        let oid = self.new_oid()?;
        self.catalog_insert(rows::authid(oid, name))?;
        self.name_object(catalog::AUTHID, name, Some(oid));
        self.command_counter_increment()
    }

    /// ALTER ROLE.
    pub(crate) fn alter_role(&mut self, name: &str) -> Result<()> {
        let row = self.row_of(catalog::AUTHID, self.object_named(catalog::AUTHID, "role", name)?)?;
        self.catalog_update(row, |_| ())?;
        self.command_counter_increment()
    }

    /// DROP ROLE.
    pub(crate) fn drop_role(&mut self, name: &str) -> Result<()> {
        let oid = self.object_named(catalog::AUTHID, "role", name)?;
        self.remove_named(catalog::AUTHID, "rolname", oid)?;
        self.command_counter_increment()
    }

    /// GRANT on a schema or a function. A role's first grant makes the object depend on it.
    pub(crate) fn grant_on_object(&mut self, class: Oid, what: &str, name: &str, role: &Arc<str>) -> Result<()> {
        let oid = self.object_named(class, what, name)?;
        let row = self.row_of(class, oid)?;
        self.catalog_update(row, |_| ())?;
        let is_of_role = |id: &crate::catalog::TupleId| {
            self.cluster
                .catalog
                .tuple(*id)
                .is_some_and(|row| row.tuple.column("refobjid") == Some(&Datum::Name(Arc::clone(role))))
        };
        if !self.cluster.catalog.rows_of(catalog::SHDEPEND, oid).iter().any(is_of_role) {
            self.catalog_insert(rows::shdepend(oid, role))?;
        }
        self.command_counter_increment()
    }

    /// GRANT on a column. A role's first grant makes the column depend on it.
    pub(crate) fn grant_on_column(&mut self, table: Oid, column: &str, role: &Arc<str>) -> Result<()> {
        let attnum = self.attnum(table, column)?;
        let row = self.attribute_row(table, attnum)?;
        self.catalog_update(row, |_| ())?;
        let mut dependency = rows::shdepend(table, role);
        dependency.set("objsubid", Datum::Int(i64::from(attnum)));
        let catalog = &self.cluster.catalog;
        let is_it = |id: &crate::catalog::TupleId| catalog.tuple(*id).is_some_and(|row| row.tuple == dependency);
        if !catalog.rows_of(catalog::SHDEPEND, table).iter().any(is_it) {
            self.catalog_insert(dependency)?;
        }
        self.command_counter_increment()
    }

    /// OWNER TO: the table with its types, indexes, TOAST table and sequences.
    pub(crate) fn change_owner(&mut self, table: Oid, role: &Arc<str>) -> Result<()> {
        if !self.relation(table)?.kind.is_table() {
            return Err(StatementError::Refused(format!("'{}' is no table", self.relation(table)?.name)));
        }
        self.change_owner_of(table, role)?;
        self.command_counter_increment()
    }

    /// `ATExecChangeOwner` of one relation and of what belongs to it.
    fn change_owner_of(&mut self, rel: Oid, role: &Arc<str>) -> Result<()> {
        self.log_access_exclusive_lock(rel)?;
        let relation = self.relation(rel)?;
        let (kind, class_row) = (relation.kind, relation.class_row);
        let belonging: Vec<Oid> = relation.indexes.iter().copied().chain(relation.toast).collect();
        self.catalog_update(class_row, |_| ())?;
        if !kind.is_index() && kind != RelKind::Toast {
            self.change_owner_dependency(rel, role)?;
        }
        if let Some(rowtype) = self.part_of(ObjectAddress::relation(rel), catalog::TYPE) {
            let array = self.part_of(ObjectAddress::new(catalog::TYPE, rowtype), catalog::TYPE);
            for r#type in std::iter::once(rowtype).chain(array) {
                let row = self.row_of(catalog::TYPE, r#type)?;
                self.catalog_update(row, |_| ())?;
            }
        }
        belonging.into_iter().try_for_each(|part| self.change_owner_of(part, role))?;
        for (_, row) in self.cluster.catalog.dependents_on(ObjectAddress::relation(rel)) {
            let owned = self.cluster.catalog.relation(row.object.object).is_some_and(|rel| rel.kind == RelKind::Sequence);
            if owned && row.object.class == catalog::CLASS && row.kind == DependencyType::Auto {
                self.change_owner_of(row.object.object, role)?;
            }
        }
        Ok(())
    }

    /// `changeDependencyOnOwner`: the first owner, who is the system's, is pinned.
    pub(super) fn change_owner_dependency(&mut self, rel: Oid, role: &Arc<str>) -> Result<()> {
        let of_owner = |id: &crate::catalog::TupleId| {
            self.cluster.catalog.tuple(*id).is_some_and(|row| row.tuple.int_column("deptype") == Some(OWNER))
        };
        let known = self.cluster.catalog.rows_of(catalog::SHDEPEND, rel).into_iter().find(of_owner);
        let role = Datum::Name(Arc::clone(role));
        match known {
            Some(row) => self.catalog_update(row, |tuple| tuple.set("refobjid", role)),
            None => {
                let Datum::Name(name) = &role else { return Ok(()) };
                let mut row = rows::shdepend(rel, name);
                row.set("deptype", Datum::Int(OWNER));
                self.catalog_insert(row).map(drop)
            }
        }
    }
}
