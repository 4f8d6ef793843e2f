//! Shared invalidation messages (`storage/sinval.h`): what a transaction tells everybody else's caches.
//!
//! On disk a message is a 16-byte union; only `pg-wal` knows those bytes. The order and meaning of the kinds are in
//! `utils/cache/inval.c`.

use crate::oid::{Oid, RelFileLocator};

/// `LocalExecuteInvalidationMessage` reads one of these. `db` 0 means a shared object: it concerns every database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InvalidationMessage {
    /// One tuple of one syscache, named by the hash of its key.
    Catcache {
        /// Syscache id, an ordinal that differs between versions.
        cache_id: i8,
        /// Database, 0 for shared catalogs.
        db: Oid,
        /// `hashValue` of the cache key.
        hash: u32,
    },
    /// Every syscache on one catalog (after its rewrite).
    Catalog {
        /// Database, 0 for shared catalogs.
        db: Oid,
        /// The catalog's oid.
        catalog: Oid,
    },
    /// One relation's relcache entry; [`Oid::INVALID`] means all.
    Relcache {
        /// Database, 0 for shared relations.
        db: Oid,
        /// The relation, or [`Oid::INVALID`] for all.
        rel: Oid,
    },
    /// An open file of one relation. Never filtered by database.
    Smgr {
        /// Backend (process) number of a temporary relation, −1 for none.
        backend: i32,
        /// The file.
        locator: RelFileLocator,
    },
    /// The relation map file of one database (0: the shared one).
    Relmap {
        /// Database, 0 for the shared map.
        db: Oid,
    },
    /// The catalog snapshot, because a catalog without syscache changed.
    Snapshot {
        /// Database, 0 for shared catalogs.
        db: Oid,
        /// The catalog.
        rel: Oid,
    },
    /// One relation's entry in the relation-sync caches (18 and later); [`Oid::INVALID`] means all.
    Relsync {
        /// Database; relsync messages concern their own database only.
        db: Oid,
        /// The relation, or [`Oid::INVALID`] for all.
        rel: Oid,
    },
}

/// The kind of an [`InvalidationMessage`], for counting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InvalidationKind {
    /// [`InvalidationMessage::Catcache`].
    Catcache,
    /// [`InvalidationMessage::Catalog`].
    Catalog,
    /// [`InvalidationMessage::Relcache`].
    Relcache,
    /// [`InvalidationMessage::Smgr`].
    Smgr,
    /// [`InvalidationMessage::Relmap`].
    Relmap,
    /// [`InvalidationMessage::Snapshot`].
    Snapshot,
    /// [`InvalidationMessage::Relsync`].
    Relsync,
}

impl InvalidationKind {
    /// All kinds, in the order of their tags.
    pub const ALL: [InvalidationKind; 7] =
        [Self::Catcache, Self::Catalog, Self::Relcache, Self::Smgr, Self::Relmap, Self::Snapshot, Self::Relsync];

    /// The word that pg_waldump and our reports use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Catcache => "catcache",
            Self::Catalog => "catalog",
            Self::Relcache => "relcache",
            Self::Smgr => "smgr",
            Self::Relmap => "relmap",
            Self::Snapshot => "snapshot",
            Self::Relsync => "relsync",
        }
    }
}

impl InvalidationMessage {
    /// Which kind this is.
    #[must_use]
    pub fn kind(&self) -> InvalidationKind {
        match self {
            Self::Catcache { .. } => InvalidationKind::Catcache,
            Self::Catalog { .. } => InvalidationKind::Catalog,
            Self::Relcache { .. } => InvalidationKind::Relcache,
            Self::Smgr { .. } => InvalidationKind::Smgr,
            Self::Relmap { .. } => InvalidationKind::Relmap,
            Self::Snapshot { .. } => InvalidationKind::Snapshot,
            Self::Relsync { .. } => InvalidationKind::Relsync,
        }
    }

    /// Whether a backend connected to `my_db` acts on this message (`LocalExecuteInvalidationMessage`).
    #[must_use]
    pub fn concerns(&self, my_db: Oid) -> bool {
        match *self {
            Self::Catcache { db, .. }
            | Self::Catalog { db, .. }
            | Self::Relcache { db, .. }
            | Self::Relmap { db }
            | Self::Snapshot { db, .. } => db == my_db || !db.is_valid(),
            Self::Relsync { db, .. } => db == my_db,
            Self::Smgr { .. } => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_messages_concern_all_but_relsync_only_its_own_database() {
        let mine = Oid(5);
        assert!(InvalidationMessage::Relcache { db: Oid(0), rel: Oid(1) }.concerns(mine));
        assert!(!InvalidationMessage::Relcache { db: Oid(6), rel: Oid(1) }.concerns(mine));
        assert!(!InvalidationMessage::Relsync { db: Oid(0), rel: Oid(1) }.concerns(mine));
        assert!(InvalidationMessage::Smgr { backend: -1, locator: RelFileLocator::default() }.concerns(mine));
    }
}
