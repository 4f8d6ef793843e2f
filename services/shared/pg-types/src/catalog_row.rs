//! Rows of catalogs that say what is published: `pg_publication`, `pg_publication_rel`, `pg_publication_namespace`, and `pg_inherits`, which
//! says whose partition a table is.

use std::sync::Arc;

use crate::oid::{Oid, RelFileLocator, Tid};

/// What may be published of a relation, in the order of `publish` (`PublicationActions`).
pub const PUBLISHED_ACTIONS: [&str; 4] = ["insert", "update", "delete", "truncate"];

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CatalogRow {
    /// A publication.
    Publication(PublicationRow),
    /// A table of a publication (`FOR TABLE`).
    PublicationRel {
        /// The publication.
        publication: Oid,
        /// The table.
        rel: Oid,
    },
    /// A schema whose tables are of a publication (`FOR TABLES IN SCHEMA`, 15 and later).
    PublicationNamespace {
        /// The publication.
        publication: Oid,
        /// The schema.
        namespace: Oid,
    },
    /// A table and what it inherits of: its partitioned table, if that is one.
    Inherits {
        /// The table.
        child: Oid,
        /// What it inherits of.
        parent: Oid,
    },
}

/// Where a row is.
pub type RowPlace = (RelFileLocator, Tid);

/// What a record does to a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogRowChange {
    /// Where the row was that it deletes or changes.
    pub old: Option<RowPlace>,
    /// Where the row is that it makes, or the changed one.
    pub new: Option<RowPlace>,
    /// That one, if the record tells all of it.
    pub row: Option<CatalogRow>,
}

/// A row of `pg_publication`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicationRow {
    /// Its oid.
    pub oid: Oid,
    /// Its name.
    pub name: Arc<str>,
    /// `FOR ALL TABLES`.
    pub all_tables: bool,
    /// Which of [`PUBLISHED_ACTIONS`] (`publish`).
    pub actions: [bool; 4],
    /// Changes of partitions are sent as those of their partitioned table (`publish_via_partition_root`).
    pub via_root: bool,
}
