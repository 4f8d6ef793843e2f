//! All syscaches of a backend and the way from a message to its cache: `utils/cache/syscache.c` and, up to 9.6.3,
//! `CatalogCacheIdInvalidate` of `catcache.c`.
//!
//! A message carries a syscache id. Up to 9.6.3 the backend walked the list of all caches until it met that id; since 9.6.4
//! it indexes an array. With some eighty caches that walk was half of a busy decoder's time.
//!
//! Invariants: I1 the cache at index i has id i; I2 both searches find the same cache.
//!
//! | search | caches looked at |
//! |---|---|
//! | list | caches − id (the list starts with the last one made) |
//! | direct | 1 |
//!
//! Differences from PostgreSQL: the caches are those of the WAL's version also under a profile of an older release.

use pg_types::{Oid, PgVersion, SysCacheId, SysCacheTable, Work};

use crate::attribution::CacheTally;
use crate::catcache::CatCache;
use crate::dynahash::murmurhash32;
use crate::profile::CatcacheSearch;
use crate::sampling::{CurrentFunction, Function};

/// The caches.
#[derive(Debug)]
pub(crate) struct SysCaches {
    /// Which there are.
    table: &'static SysCacheTable,
    /// One per id.
    caches: Vec<CatCache>,
    /// What was done to each.
    tallies: Vec<CacheTally>,
    /// Messages are counted by cache.
    pub(crate) counts: bool,
    /// How a message finds its cache.
    search: CatcacheSearch,
}

impl SysCaches {
    /// The empty caches of `version`.
    pub(crate) fn new(version: PgVersion, search: CatcacheSearch) -> Self {
        let table = SysCacheTable::of(version);
        let caches = table.iter().map(|(id, cache)| CatCache::new(id.message_id(), cache.initial_buckets)).collect();
        let tallies = vec![CacheTally::default(); table.len()];
        Self { table, caches, tallies, counts: true, search }
    }

    /// The table of ids.
    pub(crate) fn table(&self) -> &'static SysCacheTable {
        self.table
    }

    /// Finds a message's cache by this profile's search; [`None`] for an id that no cache has.
    fn find(&self, id: i8, work: &mut Work) -> Option<usize> {
        let index = self.table.id(id)?.index();
        match self.search {
            CatcacheSearch::Direct => {
                work.caches_searched += 1;
                Some(index)
            }
            CatcacheSearch::List => self.walk(id, work),
        }
    }

    /// The walk over the list of caches, whose head is the one made last: a chain of loads, each waiting for the one before.
    fn walk(&self, id: i8, work: &mut Work) -> Option<usize> {
        let mut at = self.caches.len().checked_sub(1)?;
        loop {
            let cache = self.caches.get(at)?;
            work.caches_searched += 1;
            if cache.id == id {
                return Some(at);
            }
            at = usize::from(cache.next?);
        }
    }

    /// `SysCacheInvalidate`: kills what one message names. False for an id that no cache has.
    pub(crate) fn invalidate(&mut self, id: i8, hash: u32, work: &mut Work, marker: &CurrentFunction) -> bool {
        let outer = marker.enter(Function::CatalogCacheIdInvalidate);
        let (searched, visited, dropped) = (work.caches_searched, work.catcache_entries_visited, work.entries_dropped);
        let found = self.find(id, work);
        if let Some(index) = found {
            let inner = marker.enter(Function::CatCacheInvalidate);
            self.caches[index].invalidate(hash, work);
            if self.counts {
                let tally = &mut self.tallies[index];
                tally.messages += 1;
                tally.searched += work.caches_searched - searched;
                tally.visited += work.catcache_entries_visited - visited;
                tally.dropped += work.entries_dropped - dropped;
            }
            marker.leave(inner);
        }
        marker.leave(outer);
        found.is_some()
    }

    /// `CatalogCacheFlushCatalog`: empties every cache on `catalog` and gives their ids.
    pub(crate) fn flush_catalog(&mut self, catalog: Oid, work: &mut Work) -> Vec<i8> {
        let ids = self.table.caches_on(catalog);
        for id in ids {
            self.reset_one(id.index(), work);
        }
        ids.iter().map(|id| id.message_id()).collect()
    }

    /// `ResetCatalogCaches`.
    pub(crate) fn reset(&mut self, work: &mut Work) {
        (0..self.caches.len()).for_each(|index| self.reset_one(index, work));
    }

    /// Empties one cache.
    fn reset_one(&mut self, index: usize, work: &mut Work) {
        let (visited, dropped) = (work.catcache_entries_visited, work.entries_dropped);
        self.caches[index].reset(work);
        self.tallies[index].visited += work.catcache_entries_visited - visited;
        self.tallies[index].dropped += work.entries_dropped - dropped;
    }

    /// What was done to each cache, in the order of ids.
    pub(crate) fn tallies(&self) -> &[CacheTally] {
        &self.tallies
    }

    /// `SearchSysCache1` for an oid; gives whether it was there, and loads it if not, `exists` saying whether there is such a row.
    pub(crate) fn look_up(&mut self, id: SysCacheId, key: Oid, exists: impl Fn() -> bool) -> bool {
        let (cache, tally) = (&mut self.caches[id.index()], &mut self.tallies[id.index()]);
        let misses = tally.misses;
        let held = cache.search(murmurhash32(key.0), |_| {
            tally.misses += 1;
            exists()
        });
        cache.release(held);
        tally.hits += u64::from(tally.misses == misses);
        tally.misses == misses
    }

    /// `SearchSysCacheList1` for an oid, with an empty list if it is loaded; gives whether it was there.
    pub(crate) fn look_up_list(&mut self, id: SysCacheId, key: Oid) -> bool {
        let (cache, tally) = (&mut self.caches[id.index()], &mut self.tallies[id.index()]);
        let misses = tally.misses;
        let held = cache.search_list(murmurhash32(key.0), |_| {
            tally.misses += 1;
            Vec::new()
        });
        cache.release_list(held);
        tally.hits += u64::from(tally.misses == misses);
        tally.misses == misses
    }

    /// So many lookups more that found what the last one did.
    pub(crate) fn hit(&mut self, id: SysCacheId, n: u64) {
        self.tallies[id.index()].hits += n;
    }

    /// A lookup that is known to find nothing.
    pub(crate) fn miss(&mut self, id: SysCacheId) {
        self.tallies[id.index()].misses += 1;
    }

    /// Whether a lookup of `key` would find it.
    pub(crate) fn has(&self, id: SysCacheId, key: Oid) -> bool {
        self.caches[id.index()].has(murmurhash32(key.0))
    }

    /// Whether a message would kill anything.
    pub(crate) fn concerned(&self, id: i8, hash: u32) -> bool {
        self.table.id(id).is_some_and(|id| self.caches[id.index()].concerned(hash))
    }

    /// Live entries of all caches.
    pub(crate) fn len(&self) -> usize {
        self.caches.iter().map(CatCache::len).sum()
    }

    /// Live lists as (cache, hash of the partial key), sorted.
    pub(crate) fn lists(&self) -> Vec<(i8, u32)> {
        self.caches.iter().flat_map(|c| c.list_contents().into_iter().map(|hash| (c.id, hash))).collect()
    }

    /// Live entries as (cache, hash, negative), sorted.
    pub(crate) fn contents(&self) -> Vec<(i8, u32, bool)> {
        let used = self.caches.iter().filter(|c| c.len() > 0);
        used.flat_map(|c| c.contents().into_iter().map(|(hash, negative)| (c.id, hash, negative))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i2_both_searches_find_the_cache_and_the_list_walks_from_its_end() {
        let (list, direct) =
            (SysCaches::new(PgVersion::V18, CatcacheSearch::List), SysCaches::new(PgVersion::V18, CatcacheSearch::Direct));
        for id in 0..85i8 {
            let (mut a, mut b) = (Work::default(), Work::default());
            assert_eq!(list.find(id, &mut a), Some(id as usize), "I1");
            assert_eq!(direct.find(id, &mut b), Some(id as usize));
            assert_eq!((a.caches_searched, b.caches_searched), (85 - id as u64, 1));
        }
        assert_eq!(list.find(85, &mut Work::default()), None);
    }

    #[test]
    fn loading_fills_two_caches_once_and_a_message_empties_one() {
        let mut caches = SysCaches::new(PgVersion::V13, CatcacheSearch::Direct);
        let [reloid, namespaceoid] = ["RELOID", "NAMESPACEOID"].map(|name| caches.table().id_of(name).unwrap());
        let mut load = |rel: u32| (caches.look_up(reloid, Oid(rel), || true), caches.look_up(namespaceoid, Oid(2200), || true));
        assert_eq!([load(16384), load(16385), load(16384)], [(false, false), (false, true), (true, true)]);
        assert_eq!((caches.tallies()[reloid.index()].hits, caches.tallies()[reloid.index()].misses), (1, 2));
        assert!(caches.has(reloid, Oid(16385)) && !caches.has(reloid, Oid(16386)));
        let (mut work, marker) = (Work::default(), CurrentFunction::default());
        assert!(caches.concerned(50, murmurhash32(16384)));
        assert!(caches.invalidate(50, murmurhash32(16384), &mut work, &marker));
        assert_eq!((work.entries_dropped, caches.len()), (1, 2));
        assert_eq!(caches.flush_catalog(pg_types::syscache_id::catalog::NAMESPACE, &mut work), vec![35, 36]);
        assert_eq!(caches.len(), 1);
    }
}
