//! The relations a decoder has met: number, oid and shown name of each file.
//!
//! The caches ([`crate::invalidation`]) model which of them PostgreSQL would have loaded; this list only spares resolving and
//! formatting a name for each change. Its answers depend on the catalog copy alone, never on the caches, so what is decoded is
//! the same under every profile.
//!
//! Invariants: I1 a file and an oid have one number each, for good, all files of a relation that the catalog names the same;
//! I2 numbers are positions in the list.

use std::sync::Arc;

use pg_types::{Oid, RelFileLocator};
use rustc_hash::FxHashMap;

use crate::catalog::{Catalog, RelationInfo};
use crate::publications::RelationFacts;

/// A relation as changes name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// Its oid; without a catalog that knows it, its file number.
    pub oid: Oid,
    /// Its schema, [`Oid::INVALID`] if not known.
    pub namespace: Oid,
    /// The file through which it was met first; for one met by oid, a guess.
    pub file: RelFileLocator,
    /// `schema.name` or, if no catalog names it, `tablespace/database/file`.
    pub name: Arc<str>,
    /// The catalog names it and says whether its rows are decoded; [`None`] if no catalog knows it.
    pub logged: Option<bool>,
}

/// The list.
#[derive(Debug)]
pub(crate) struct Relations {
    /// Names.
    catalog: Arc<dyn Catalog>,
    /// The decoder's database.
    database: Oid,
    /// All met so far.
    list: Vec<Relation>,
    /// Numbers by file.
    by_file: FxHashMap<RelFileLocator, u32>,
    /// Numbers of relations that the catalog names.
    by_oid: FxHashMap<Oid, u32>,
}

impl Relations {
    /// None met.
    pub(crate) fn new(catalog: Arc<dyn Catalog>, database: Oid) -> Self {
        Self { catalog, database, list: Vec::new(), by_file: FxHashMap::default(), by_oid: FxHashMap::default() }
    }

    /// The decoder's database.
    pub(crate) fn database(&self) -> Oid {
        self.database
    }

    /// The relation with a number from this list.
    pub(crate) fn get(&self, number: u32) -> &Relation {
        &self.list[number as usize]
    }

    /// The name of the relation with this oid, if the catalog knows it.
    pub(crate) fn name_of(&self, oid: Oid) -> Option<Arc<str>> {
        self.catalog.by_oid(oid).map(|info| info.name)
    }

    /// `is_publishable_class`: whether a relation is of a kind that can be published, as far as is known; a materialized view is not.
    pub(crate) fn is_publishable(&self, rel: Oid) -> bool {
        self.catalog.kind(rel).is_none_or(|kind| matches!(kind, 'r' | 'p'))
    }

    /// The catalog that has, or had, a file of this number, if the copy knows it: of this database, or one that all share.
    pub(crate) fn catalog_of(&self, file: u32) -> Option<Oid> {
        let places = [(Oid::DEFAULT_TABLESPACE, self.database), (Oid::GLOBAL_TABLESPACE, Oid::INVALID)];
        let found = places.into_iter().find_map(|(spc, db)| self.catalog.by_file(RelFileLocator { spc, db, rel: file }));
        found.map(|info| info.oid)
    }

    /// The number of a file's relation.
    pub(crate) fn of_file(&mut self, file: RelFileLocator) -> u32 {
        if let Some(number) = self.by_file.get(&file) {
            return *number;
        }
        let number = match self.catalog.by_file(file) {
            Some(info) => self.known(info, file),
            None => self.push(Relation {
                oid: Oid(file.rel),
                namespace: Oid::INVALID,
                file,
                name: file.to_string().into(),
                logged: None,
            }),
        };
        self.by_file.insert(file, number);
        number
    }

    /// The number of the relation with this oid.
    pub(crate) fn of_oid(&mut self, oid: Oid) -> u32 {
        if let Some(number) = self.by_oid.get(&oid) {
            return *number;
        }
        let guess = RelFileLocator { spc: Oid::DEFAULT_TABLESPACE, db: self.database, rel: oid.0 };
        match self.catalog.by_oid(oid) {
            Some(info) => self.known(info, guess),
            None => self.of_file(guess),
        }
    }

    /// The number of a relation that the catalog names: one for all its files.
    fn known(&mut self, info: RelationInfo, file: RelFileLocator) -> u32 {
        if let Some(number) = self.by_oid.get(&info.oid) {
            return *number;
        }
        let RelationInfo { oid, namespace, name, logged } = info;
        let number = self.push(Relation { oid, namespace, file, name, logged: Some(logged) });
        self.by_oid.insert(oid, number);
        number
    }

    /// Appends.
    fn push(&mut self, relation: Relation) -> u32 {
        self.list.push(relation);
        (self.list.len() - 1) as u32
    }
}

impl RelationFacts for Relations {
    fn namespace(&self, rel: Oid) -> Oid {
        self.catalog.by_oid(rel).map(|info| info.namespace).unwrap_or_default()
    }

    fn kind(&self, rel: Oid) -> Option<char> {
        self.catalog.kind(rel)
    }
}
