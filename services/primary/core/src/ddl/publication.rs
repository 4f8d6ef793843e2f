//! Publications (`commands/publicationcmds.c`, `catalog/pg_publication.c`).
//!
//! Whoever decodes must look anew at what is published: relcache entries of the tables go, all of them for FOR ALL TABLES.

use std::sync::Arc;

use pg_types::{Oid, catalog};

use super::dependency::DropBehavior;
use super::rows;
use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{Datum, DependencyType, ObjectAddress};

/// What a publication is for.
#[derive(Clone, Debug)]
pub(crate) enum PublicationFor {
    /// These tables, perhaps none.
    Tables(Vec<Oid>),
    /// All tables.
    AllTables,
    /// The tables of this schema.
    Schema(Arc<str>),
}

impl Backend<'_> {
    /// CREATE PUBLICATION. `reads` are columns of its tables that a column list or a row filter names.
    pub(crate) fn create_publication(&mut self, name: &Arc<str>, what: &PublicationFor, reads: &[String]) -> Result<()> {
        self.check_new_object(catalog::PUBLICATION, "publication", name)?;
        let oid = self.new_oid()?;
        self.catalog_insert(rows::publication(oid, name, matches!(what, PublicationFor::AllTables)))?;
        self.name_object(catalog::PUBLICATION, name, Some(oid));
        self.command_counter_increment()?;
        match what {
            PublicationFor::AllTables => self.invalidate_relcache_all(),
            PublicationFor::Tables(tables) => {
                tables.iter().try_for_each(|table| self.publication_add_relation(oid, *table, reads))?;
            }
            PublicationFor::Schema(schema) => self.publication_add_schema(oid, schema)?,
        }
        self.command_counter_increment()
    }

    /// ALTER PUBLICATION … ADD TABLE.
    pub(crate) fn publication_add_tables(&mut self, name: &str, tables: &[Oid]) -> Result<()> {
        let publication = self.publication(name)?;
        tables.iter().try_for_each(|table| self.publication_add_relation(publication, *table, &[]))?;
        self.command_counter_increment()
    }

    /// ALTER PUBLICATION … DROP TABLE.
    pub(crate) fn publication_drop_tables(&mut self, name: &str, tables: &[Oid]) -> Result<()> {
        let publication = self.publication(name)?;
        for table in tables {
            let published = self.published(publication)?;
            let found = published.iter().find(|(_, known)| known == table).map(|(row, _)| *row);
            let refused = || StatementError::Refused(format!("table {table} is not in publication '{name}'"));
            let row = ObjectAddress::new(catalog::PUBLICATION_REL, found.ok_or_else(refused)?);
            self.perform_deletion(row, DropBehavior::Restrict)?;
        }
        Ok(())
    }

    /// ALTER PUBLICATION … SET TABLE: those that are not told go, new ones come.
    pub(crate) fn publication_set_tables(&mut self, name: &str, tables: &[Oid]) -> Result<()> {
        let publication = self.publication(name)?;
        let published = self.published(publication)?;
        for (row, _) in published.iter().filter(|(_, table)| !tables.contains(table)) {
            self.perform_deletion(ObjectAddress::new(catalog::PUBLICATION_REL, *row), DropBehavior::Restrict)?;
        }
        for table in tables.iter().filter(|table| !published.iter().any(|(_, known)| known == *table)) {
            self.publication_add_relation(publication, *table, &[])?;
        }
        self.command_counter_increment()
    }

    /// ALTER PUBLICATION … SET (publish = …).
    pub(crate) fn publication_set_options(&mut self, name: &str) -> Result<()> {
        let publication = self.publication(name)?;
        let row = self.row_of(catalog::PUBLICATION, publication)?;
        self.catalog_update(row, |_| ())?;
        self.command_counter_increment()?;
        if self.is_for_all_tables(publication)? {
            self.invalidate_relcache_all();
        } else {
            for (_, table) in self.published(publication)? {
                self.invalidate_published(table)?;
            }
        }
        self.command_counter_increment()
    }

    /// ALTER PUBLICATION … RENAME: from 18 on whoever decodes is told which tables it publishes, without rebuilding them.
    pub(crate) fn rename_publication(&mut self, name: &Arc<str>, to: &Arc<str>) -> Result<()> {
        self.check_new_object(catalog::PUBLICATION, "publication", to)?;
        let publication = self.publication(name)?;
        let row = self.row_of(catalog::PUBLICATION, publication)?;
        self.catalog_update(row, |tuple| tuple.set("pubname", Datum::Name(Arc::clone(to))))?;
        if self.cluster.catalog.traits.relsync_messages {
            if self.is_for_all_tables(publication)? {
                self.invalidate_relsync(Oid::INVALID);
            } else {
                for (_, table) in self.published(publication)? {
                    self.invalidate_relsync(table);
                    for partition in self.relation(table)?.partitions.clone() {
                        self.invalidate_relsync(partition);
                    }
                }
            }
        }
        self.name_object(catalog::PUBLICATION, name, None);
        self.name_object(catalog::PUBLICATION, to, Some(publication));
        self.command_counter_increment()
    }

    /// ALTER PUBLICATION … OWNER TO.
    pub(crate) fn publication_owner(&mut self, name: &str, role: &Arc<str>) -> Result<()> {
        let publication = self.publication(name)?;
        let row = self.row_of(catalog::PUBLICATION, publication)?;
        self.catalog_update(row, |_| ())?;
        self.change_owner_dependency(publication, role)?;
        self.command_counter_increment()
    }

    /// DROP PUBLICATION.
    pub(crate) fn drop_publication(&mut self, name: &str) -> Result<()> {
        let publication = self.publication(name)?;
        self.perform_deletion(ObjectAddress::new(catalog::PUBLICATION, publication), DropBehavior::Restrict)
    }

    /// `RemovePublicationById`.
    pub(super) fn remove_publication(&mut self, publication: Oid) -> Result<()> {
        let all_tables = self.is_for_all_tables(publication)?;
        self.remove_named(catalog::PUBLICATION, "pubname", publication)?;
        if all_tables {
            self.invalidate_relcache_all();
        }
        Ok(())
    }

    /// `RemovePublicationRelById`.
    pub(super) fn remove_publication_rel(&mut self, row: Oid) -> Result<()> {
        let id = self.row_of(catalog::PUBLICATION_REL, row)?;
        let table = self.cluster.catalog.tuple(id).and_then(|row| row.tuple.oid_column("prrelid"));
        if let Some(table) = table {
            self.invalidate_published(table)?;
        }
        self.catalog_delete(id)
    }

    /// `RemovePublicationSchemaById`.
    pub(super) fn remove_publication_namespace(&mut self, row: Oid) -> Result<()> {
        let id = self.row_of(catalog::PUBLICATION_NAMESPACE, row)?;
        let schema = self.cluster.catalog.tuple(id).and_then(|row| row.tuple.oid_column("pnnspid"));
        if let Some(schema) = schema {
            self.invalidate_schema(schema)?;
        }
        self.catalog_delete(id)
    }

    /// `publication_add_relation`.
    fn publication_add_relation(&mut self, publication: Oid, table: Oid, reads: &[String]) -> Result<()> {
        if !reads.is_empty() && !self.cluster.catalog.traits.publication_schemas {
            return Err(StatementError::Refused("column lists and row filters are there from 15 on".to_owned()));
        }
        self.refuse_temporary(table, "it cannot be published")?;
        let relation = self.relation(table)?;
        if !relation.kind.is_table() || self.published(publication)?.iter().any(|(_, known)| *known == table) {
            return Err(StatementError::Refused(format!("'{}' is no table, or in the publication already", relation.name)));
        }
        let oid = self.new_oid()?;
        self.catalog_insert(rows::publication_rel(oid, publication, table))?;
        let row = ObjectAddress::new(catalog::PUBLICATION_REL, oid);
        self.depend(row, ObjectAddress::new(catalog::PUBLICATION, publication), DependencyType::Auto)?;
        self.depend(row, ObjectAddress::relation(table), DependencyType::Auto)?;
        for column in reads {
            let column = ObjectAddress::column(table, self.attnum(table, column)?);
            self.depend(row, column, DependencyType::Normal)?;
        }
        self.invalidate_published(table)
    }

    /// `publication_add_schema` (15 and later).
    fn publication_add_schema(&mut self, publication: Oid, name: &str) -> Result<()> {
        if !self.cluster.catalog.traits.publication_schemas {
            return Err(StatementError::Refused("publications of a schema's tables are there from 15 on".to_owned()));
        }
        let schema = self.schema_named(name)?;
        let oid = self.new_oid()?;
        self.catalog_insert(rows::publication_namespace(oid, publication, schema))?;
        let row = ObjectAddress::new(catalog::PUBLICATION_NAMESPACE, oid);
        self.depend(row, ObjectAddress::new(catalog::PUBLICATION, publication), DependencyType::Auto)?;
        self.depend(row, ObjectAddress::new(catalog::NAMESPACE, schema), DependencyType::Auto)?;
        self.invalidate_schema(schema)
    }

    /// `InvalidatePublicationRels` of a table with its partitions.
    fn invalidate_published(&mut self, table: Oid) -> Result<()> {
        self.invalidate_relcache(table);
        self.relation(table)?.partitions.clone().into_iter().for_each(|partition| self.invalidate_relcache(partition));
        Ok(())
    }

    /// The same of all tables of a schema.
    fn invalidate_schema(&mut self, schema: Oid) -> Result<()> {
        let in_schema = |relation: &&crate::catalog::Relation| relation.namespace == schema && relation.kind.is_table();
        let tables: Vec<Oid> = self.cluster.catalog.relations().filter(in_schema).map(|relation| relation.oid).collect();
        tables.into_iter().for_each(|table| self.invalidate_relcache(table));
        Ok(())
    }

    /// Rows of pg_publication_rel of a publication with their tables, oldest first.
    fn published(&self, publication: Oid) -> Result<Vec<(Oid, Oid)>> {
        let mut published = Vec::new();
        for (_, row) in self.cluster.catalog.dependents_on(ObjectAddress::new(catalog::PUBLICATION, publication)) {
            if row.object.class == catalog::PUBLICATION_REL {
                let id = self.row_of(catalog::PUBLICATION_REL, row.object.object)?;
                let table = self.cluster.catalog.tuple(id).and_then(|row| row.tuple.oid_column("prrelid"));
                published.extend(table.map(|table| (row.object.object, table)));
            }
        }
        Ok(published)
    }

    /// Whether a publication is FOR ALL TABLES.
    fn is_for_all_tables(&self, publication: Oid) -> Result<bool> {
        let row = self.row_of(catalog::PUBLICATION, publication)?;
        Ok(self.cluster.catalog.tuple(row).is_some_and(|row| row.tuple.int_column("puballtables") == Some(1)))
    }

    /// A publication by name.
    fn publication(&self, name: &str) -> Result<Oid> {
        self.object_named(catalog::PUBLICATION, "publication", name)
    }
}
