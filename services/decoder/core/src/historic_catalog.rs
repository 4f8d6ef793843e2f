//! Catalogs that know their rows as of any historic snapshot, and who looks at what the caches serve meanwhile.
//!
//! PostgreSQL fills its caches from catalogs that it reads with the snapshot of the transaction that it decodes. A copy of the catalogs
//! ([`crate::catalog`]) is of one moment, so that what is loaded is the same whenever it is. Whoever has every version of every row can say
//! what a load finds, so that a cache that kept too much serves something else than what a new reading gives.
//!
//! ```text
//!   cache lacks something ─► HistoricCatalog::read(what, as of) ─► an entry, negative if there is no such row
//!   change decoded, messages executed ─► HistoricCatalog::look(as of, contents)
//! ```
//!
//! Differences from PostgreSQL: where the file of a catalog is, is read like anything else, not as of now.

use std::fmt;

use pg_types::{Lsn, Oid, RelFileLocator, SysCacheId, Xid};

use crate::invalidation::CacheContents;

/// As of when catalogs are read: a historic snapshot (`SnapshotData` of type `SNAPSHOT_HISTORIC_MVCC`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AsOf {
    /// What committed with a record that starts here or before is seen.
    pub committed: Lsn,
    /// The transaction that is replayed: it and its subtransactions are seen too. Invalid between replays.
    pub xid: Xid,
    /// But nothing of this command and later ones (`curcid`).
    pub command_id: u32,
}

/// What is read to fill an entry of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CatalogRead {
    /// The relation of a file, for the relfilenode map.
    File(RelFileLocator),
    /// A relation's rows of pg_class and pg_attribute, for the relcache; the relation may be a catalog.
    Relation(Oid),
    /// The row of a syscache with an oid as key.
    Row(SysCacheId, Oid),
    /// The list of a syscache for an oid as partial key.
    List(SysCacheId, Oid),
    /// The publications that `pgoutput` sends.
    Publications,
    /// How one relation is published.
    Published(Oid),
}

/// Catalogs with all versions of their rows.
pub trait HistoricCatalog: fmt::Debug + Send + Sync {
    /// Reads the catalogs as of a snapshot: the oid of the row, or [`None`] if there is no such row.
    fn read(&self, what: CatalogRead, as_of: AsOf) -> Option<Oid>;

    /// May look at what the caches hold: a change was decoded, messages were executed, a replay begins, or a record is done with.
    fn look(&self, as_of: AsOf, contents: &dyn Fn() -> CacheContents);
}
