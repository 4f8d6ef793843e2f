//! Loaded relations: `utils/cache/relcache.c`, as far as a decoder needs it.
//!
//! Decoding a change needs the relation's descriptor, built from several catalogs. A relcache message drops one descriptor, or
//! all; the next change of that relation builds it again. Each message also calls the relcache callbacks, and one of them is
//! the relfilenode map's ([`crate::relfilenode_map`]), which is where the time goes.
//!
//! Invariants: I1 a relation is here at most once; I2 after a message for a relation it is not here.
//!
//! | operation | cost |
//! |---|---|
//! | lookup, message for one | O(1) |
//! | message for all | buckets + entries |
//!
//! Differences from PostgreSQL: no reference counts and no nailed relations, so that an invalidated entry is gone rather than
//! rebuilt in place.

use pg_types::{Oid, Work};

use crate::dynahash::{DynaHash, HashKey, murmurhash32};
use crate::sampling::{CurrentFunction, Function};

/// `INITRELCACHESIZE`.
const INITIAL_SIZE: u32 = 400;

impl HashKey for Oid {
    fn hash(&self) -> u32 {
        murmurhash32(self.0)
    }
}

/// The loaded relations.
#[derive(Debug)]
pub(crate) struct Relcache {
    /// By oid.
    table: DynaHash<Oid, ()>,
}

impl Relcache {
    /// Nothing loaded.
    pub(crate) fn new() -> Self {
        Self { table: DynaHash::new(INITIAL_SIZE) }
    }

    /// Loaded relations.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether `rel` is loaded.
    pub(crate) fn contains(&self, rel: Oid) -> bool {
        self.table.get(&rel).is_some()
    }

    /// Remembers that `rel`, which was not, is loaded (`RelationBuildDesc`).
    pub(crate) fn insert(&mut self, rel: Oid) {
        self.table.insert(rel, ());
    }

    /// `RelationCacheInvalidateEntry`, or `RelationCacheInvalidate` for [`Oid::INVALID`].
    pub(crate) fn invalidate(&mut self, rel: Oid, work: &mut Work, marker: &CurrentFunction) {
        let outer = marker.enter(Function::RelationCacheInvalidateEntry);
        if rel.is_valid() {
            work.entries_dropped += u64::from(self.table.remove(&rel).is_some());
        } else {
            let (_, dropped) = self.table.scan(|_, ()| true);
            work.entries_dropped += dropped;
        }
        marker.leave(outer);
    }

    /// Reads what a message for `rel` will need; see [`crate::relfilenode_map::RelfilenodeMap::touch`].
    pub(crate) fn touch(&self, rel: Oid) -> u32 {
        self.table.touch(&rel)
    }

    /// Whether a message for `rel` would drop anything.
    pub(crate) fn concerned(&self, rel: Oid) -> bool {
        if rel.is_valid() { self.contains(rel) } else { self.table.len() > 0 }
    }

    /// Oids of the loaded relations, sorted.
    pub(crate) fn contents(&self) -> Vec<Oid> {
        let mut all: Vec<Oid> = self.table.iter().map(|(oid, ())| *oid).collect();
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i2_messages_drop_one_or_all() {
        let (mut cache, mut work, marker) = (Relcache::new(), Work::default(), CurrentFunction::default());
        for oid in 1..=10 {
            cache.insert(Oid(oid));
        }
        assert!(cache.concerned(Oid(3)) && !cache.concerned(Oid(30)) && cache.concerned(Oid::INVALID));
        cache.invalidate(Oid(3), &mut work, &marker);
        cache.invalidate(Oid(3), &mut work, &marker);
        assert_eq!((work.entries_dropped, cache.len(), cache.contains(Oid(3))), (1, 9, false));
        cache.invalidate(Oid::INVALID, &mut work, &marker);
        assert_eq!((work.entries_dropped, cache.contents()), (10, vec![]));
    }
}
