//! Types, functions, schemas (`commands/typecmds.c`, `catalog/pg_enum.c`, `catalog/pg_proc.c`, `commands/schemacmds.c`).

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::column::Column;
use super::heap::NewRelation;
use super::rows;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{Attribute, Datum, DependencyType, ObjectAddress, PUBLIC, RelKind};

impl Backend<'_> {
    /// CREATE TYPE … AS ENUM.
    pub(crate) fn create_enum(&mut self, name: &Arc<str>, labels: &[Arc<str>]) -> Result<()> {
        self.check_new_object(catalog::TYPE, "type", name)?;
        let oid = self.new_oid()?;
        let array = self.new_oid()?;
        self.catalog_insert(rows::r#type(oid, name, PUBLIC))?;
        let (r#type, schema) = (ObjectAddress::new(catalog::TYPE, oid), ObjectAddress::new(catalog::NAMESPACE, PUBLIC));
        self.depend(r#type, schema, DependencyType::Normal)?;
        let values =
            labels.iter().map(|label| Ok(rows::enum_value(self.new_oid()?, oid, label))).collect::<Result<Vec<_>>>()?;
        if self.cluster.catalog.traits.enum_multi_insert {
            self.catalog_multi_insert(values)?;
        } else {
            values.into_iter().try_for_each(|value| self.catalog_insert(value).map(drop))?;
        }
        self.create_array_type(array, oid, name, PUBLIC)?;
        self.name_object(catalog::TYPE, name, Some(oid));
        self.command_counter_increment()
    }

    /// CREATE DOMAIN. Its values are stored as those of its base type.
    pub(crate) fn create_domain(&mut self, name: &Arc<str>, base: &Column, check: bool) -> Result<()> {
        self.check_new_object(catalog::TYPE, "type", name)?;
        let base = self.resolved_attribute(base)?;
        let array = self.new_oid()?;
        let oid = self.new_oid()?;
        let mut row = rows::r#type(oid, name, PUBLIC);
        row.set("typlen", Datum::Int(i64::from(base.width)));
        row.set("typtoast", Datum::Int(i64::from(base.toastable)));
        self.catalog_insert(row)?;
        let (domain, schema) = (ObjectAddress::new(catalog::TYPE, oid), ObjectAddress::new(catalog::NAMESPACE, PUBLIC));
        self.depend(domain, schema, DependencyType::Normal)?;
        if let Some(base) = base.type_oid {
            self.depend(domain, ObjectAddress::new(catalog::TYPE, base), DependencyType::Normal)?;
        }
        self.create_array_type(array, oid, name, PUBLIC)?;
        if check {
            self.store_domain_check(oid)?;
        }
        self.name_object(catalog::TYPE, name, Some(oid));
        self.command_counter_increment()
    }

    /// ALTER DOMAIN … ADD CONSTRAINT: whoever knows the type must look again.
    pub(crate) fn add_domain_check(&mut self, name: &str) -> Result<()> {
        let domain = self.object_named(catalog::TYPE, "type", name)?;
        self.store_domain_check(domain)?;
        let row = self.row_of(catalog::TYPE, domain)?;
        self.invalidate_row(row)?;
        self.command_counter_increment()
    }

    /// A check constraint of a domain.
    fn store_domain_check(&mut self, domain: Oid) -> Result<()> {
        let oid = self.new_oid()?;
        self.catalog_insert(rows::domain_constraint(oid, domain))?;
        let of = ObjectAddress::new(catalog::TYPE, domain);
        self.depend(ObjectAddress::new(catalog::CONSTRAINT, oid), of, DependencyType::Auto)
    }

    /// Bytes of a domain's values on average, and whether they may be stored outside; none if it is no domain.
    pub(super) fn domain_storage(&self, domain: Oid) -> Option<(u32, bool)> {
        let row = self.row_of(catalog::TYPE, domain).ok().and_then(|row| self.cluster.catalog.tuple(row))?;
        Some((u32::try_from(row.tuple.int_column("typlen")?).ok()?, row.tuple.int_column("typtoast") == Some(1)))
    }

    /// ALTER TYPE … ADD VALUE.
    pub(crate) fn add_enum_value(&mut self, name: &str, label: &Arc<str>) -> Result<()> {
        let r#type = self.object_named(catalog::TYPE, "type", name)?;
        if self.cluster.catalog.rows_of(catalog::ENUM, r#type).is_empty() {
            return Err(StatementError::Refused(format!("'{name}' is no enum")));
        }
        let oid = self.new_oid()?;
        self.catalog_insert(rows::enum_value(oid, r#type, label))?;
        self.command_counter_increment()
    }

    /// CREATE TYPE … AS (columns).
    pub(crate) fn create_composite_type(&mut self, name: &Arc<str>, columns: &[Column]) -> Result<()> {
        self.check_new_object(catalog::TYPE, "type", name)?;
        self.check_new_name(PUBLIC, name)?;
        let oid = self.new_oid()?;
        let attributes = self.attributes(columns)?;
        let (kind, row_len) = (RelKind::CompositeType, Attribute::row_len(&attributes));
        let new = NewRelation { oid, name: Arc::clone(name), namespace: PUBLIC, kind, columns: &attributes, row_len };
        self.create_relation(&new)?;
        self.command_counter_increment()
    }

    /// ALTER TYPE … RENAME.
    pub(crate) fn rename_type(&mut self, name: &Arc<str>, to: &Arc<str>) -> Result<()> {
        self.check_new_object(catalog::TYPE, "type", to)?;
        let r#type = self.object_named(catalog::TYPE, "type", name)?;
        if self.part_of(ObjectAddress::new(catalog::TYPE, r#type), catalog::CLASS).is_some() {
            return Err(StatementError::Refused(format!("'{name}' is a composite type: only enums can be renamed here")));
        }
        self.rename_type_internal(r#type, to)?;
        self.name_object(catalog::TYPE, name, None);
        self.name_object(catalog::TYPE, to, Some(r#type));
        self.command_counter_increment()
    }

    /// CREATE FUNCTION without arguments, written in SQL; OR REPLACE if it is there.
    pub(crate) fn create_function(&mut self, name: &Arc<str>, replace: bool) -> Result<()> {
        let schema = ObjectAddress::new(catalog::NAMESPACE, PUBLIC);
        match self.cluster.catalog.object_named(catalog::PROC, name) {
            Some(_) if !replace => return Err(StatementError::Refused(format!("function '{name}' is there already"))),
            Some(oid) => {
                let (row, function) = (self.row_of(catalog::PROC, oid)?, ObjectAddress::new(catalog::PROC, oid));
                self.catalog_update(row, |_| ())?;
                self.delete_dependency_rows_of(function)?;
                self.depend(function, schema, DependencyType::Normal)?;
            }
            None => {
                let oid = self.new_oid()?;
                self.catalog_insert(rows::proc(oid, name, PUBLIC))?;
                self.depend(ObjectAddress::new(catalog::PROC, oid), schema, DependencyType::Normal)?;
                self.name_object(catalog::PROC, name, Some(oid));
            }
        }
        self.command_counter_increment()
    }

    /// CREATE SCHEMA.
    pub(crate) fn create_schema(&mut self, name: &Arc<str>) -> Result<()> {
        self.check_new_object(catalog::NAMESPACE, "schema", name)?;
        let oid = self.new_oid()?;
        self.catalog_insert(rows::namespace(oid, name))?;
        self.name_object(catalog::NAMESPACE, name, Some(oid));
        self.command_counter_increment()
    }

    /// ALTER SCHEMA … RENAME.
    pub(crate) fn rename_schema(&mut self, name: &Arc<str>, to: &Arc<str>) -> Result<()> {
        self.check_new_object(catalog::NAMESPACE, "schema", to)?;
        let oid = self.object_named(catalog::NAMESPACE, "schema", name)?;
        let row = self.row_of(catalog::NAMESPACE, oid)?;
        self.catalog_update(row, |tuple| tuple.set("nspname", Datum::Name(Arc::clone(to))))?;
        self.name_object(catalog::NAMESPACE, name, None);
        self.name_object(catalog::NAMESPACE, to, Some(oid));
        self.command_counter_increment()
    }

    /// An object's name must be new.
    pub(super) fn check_new_object(&self, class: Oid, what: &str, name: &str) -> Result<()> {
        match self.cluster.catalog.object_named(class, name) {
            Some(_) => Err(StatementError::Refused(format!("{what} '{name}' is there already"))),
            None => Ok(()),
        }
    }
}
