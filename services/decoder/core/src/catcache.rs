//! One cache of catalog tuples: `utils/cache/catcache.c`.
//!
//! A cache keeps tuples found by key and, as negative entries, keys that were not found; lists keep the answers to partial
//! keys. A message names a cache and the hash of a key: every list of the cache dies, since it might have held the tuple, and
//! every entry in the hash's bucket with that hash, positive or negative. Nothing else is looked at, so a message costs one
//! bucket and all lists.
//!
//! Invariants: I1 an entry is in bucket `hash & (buckets − 1)`; I2 buckets are a power of two, doubled when an insert leaves
//! more than two entries a bucket (`RehashCatCache`), never halved; I3 after a message no entry has its hash and no list is left.
//!
//! | operation | cost |
//! |---|---|
//! | lookup | O(1), a chain of ≤ 2 on average |
//! | message | lists + entries of one bucket |
//! | reset | lists + entries |
//!
//! Differences from PostgreSQL: no reference counts (nothing is held between records) and no builds in progress.

use pg_types::Work;

/// Entries a bucket may have on average (`CatalogCacheCreateEntry`).
const FILL_MAX: usize = 2;

/// No entry.
const NIL: u32 = u32::MAX;

/// A cached tuple, or the knowledge that there is none (`CatCTup`).
#[derive(Clone, Copy, Debug)]
struct CatCTup {
    /// Hash of its key.
    hash: u32,
    /// There is no such tuple.
    negative: bool,
    /// Next in the bucket or in the free list.
    next: u32,
}

/// One cache.
#[derive(Debug)]
pub(crate) struct CatCache {
    /// Its syscache id.
    pub(crate) id: i8,
    /// Next in the list of all caches (`cc_next`), by index; [`None`] ends it.
    pub(crate) next: Option<u8>,
    /// First entry of each bucket.
    buckets: Vec<u32>,
    /// Entries ever needed at once.
    entries: Vec<CatCTup>,
    /// First free entry.
    free: u32,
    /// Live entries (`cc_ntup`).
    len: usize,
    /// Hashes of the partial keys of its lists (`cc_lists`).
    lists: Vec<u32>,
}

impl CatCache {
    /// An empty cache (`InitCatCache`); it heads the list of caches, before the one made last.
    pub(crate) fn new(id: i8, initial_buckets: u32) -> Self {
        let buckets = initial_buckets.max(1).next_power_of_two() as usize;
        let next = u8::try_from(id).ok().and_then(|id| id.checked_sub(1));
        Self { id, next, buckets: vec![NIL; buckets], entries: Vec::new(), free: NIL, len: 0, lists: Vec::new() }
    }

    /// Live entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Lists.
    #[cfg(test)]
    pub(crate) fn lists(&self) -> usize {
        self.lists.len()
    }

    /// The bucket of a hash.
    fn bucket(&self, hash: u32) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// `SearchCatCache`: whether a tuple (or its absence) with this hash is known.
    pub(crate) fn search(&self, hash: u32) -> bool {
        let mut at = self.buckets[self.bucket(hash)];
        while let Some(entry) = self.entries.get(at as usize) {
            if entry.hash == hash {
                return true;
            }
            at = entry.next;
        }
        false
    }

    /// `CatalogCacheCreateEntry`: remembers a tuple, or that there is none.
    pub(crate) fn insert(&mut self, hash: u32, negative: bool) {
        let bucket = self.bucket(hash);
        let entry = CatCTup { hash, negative, next: self.buckets[bucket] };
        self.buckets[bucket] = if self.free == NIL {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        } else {
            let at = self.free;
            self.free = self.entries[at as usize].next;
            self.entries[at as usize] = entry;
            at
        };
        self.len += 1;
        if self.len > FILL_MAX * self.buckets.len() {
            self.rehash();
        }
    }

    /// Remembers the answer to a partial key (`SearchCatCacheList`).
    #[cfg(test)]
    pub(crate) fn insert_list(&mut self, hash: u32) {
        self.lists.push(hash);
    }

    /// `RehashCatCache`: twice the buckets.
    fn rehash(&mut self) {
        let old = std::mem::take(&mut self.buckets);
        self.buckets = vec![NIL; old.len() * 2];
        for mut at in old {
            while let Some(entry) = self.entries.get(at as usize).copied() {
                let bucket = self.bucket(entry.hash);
                self.entries[at as usize].next = std::mem::replace(&mut self.buckets[bucket], at);
                at = entry.next;
            }
        }
    }

    /// `CatCacheInvalidate`: kills every list, and every entry with this hash.
    pub(crate) fn invalidate(&mut self, hash: u32, work: &mut Work) {
        let lists = self.lists.len() as u64;
        self.lists.clear();
        let bucket = self.bucket(hash);
        let (mut visited, mut dropped) = (lists, lists);
        let (mut before, mut at) = (NIL, self.buckets[bucket]);
        while let Some(entry) = self.entries.get(at as usize).copied() {
            visited += 1;
            if entry.hash == hash {
                dropped += 1;
                self.unlink(bucket, before, at);
            } else {
                before = at;
            }
            at = entry.next;
        }
        work.catcache_entries_visited += visited;
        work.entries_dropped += dropped;
    }

    /// Takes entry `at`, which follows `before`, out of its bucket.
    fn unlink(&mut self, bucket: usize, before: u32, at: u32) {
        let next = std::mem::replace(&mut self.entries[at as usize].next, self.free);
        if before == NIL {
            self.buckets[bucket] = next;
        } else {
            self.entries[before as usize].next = next;
        }
        self.free = at;
        self.len -= 1;
    }

    /// `ResetCatalogCache`: forgets everything.
    pub(crate) fn reset(&mut self, work: &mut Work) {
        let all = (self.len + self.lists.len()) as u64;
        work.catcache_entries_visited += all;
        work.entries_dropped += all;
        self.lists.clear();
        self.buckets.fill(NIL);
        self.entries.clear();
        (self.free, self.len) = (NIL, 0);
    }

    /// Whether a message with this hash would kill anything.
    pub(crate) fn concerned(&self, hash: u32) -> bool {
        !self.lists.is_empty() || self.search(hash)
    }

    /// Hashes and signs of the live entries, sorted.
    pub(crate) fn contents(&self) -> Vec<(u32, bool)> {
        let mut all = Vec::with_capacity(self.len);
        for head in &self.buckets {
            let mut at = *head;
            while let Some(entry) = self.entries.get(at as usize) {
                all.push((entry.hash, entry.negative));
                at = entry.next;
            }
        }
        all.sort_unstable();
        all
    }

    /// Checks I1 and I2.
    #[cfg(test)]
    fn check_invariants(&self) {
        assert!(self.buckets.len().is_power_of_two() && self.len <= FILL_MAX * self.buckets.len(), "I2");
        let mut counted = 0;
        for (bucket, head) in self.buckets.iter().enumerate() {
            let mut at = *head;
            while let Some(entry) = self.entries.get(at as usize) {
                assert_eq!(self.bucket(entry.hash), bucket, "I1");
                counted += 1;
                at = entry.next;
            }
        }
        assert_eq!(counted, self.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i2_buckets_double_past_two_entries_each() {
        let mut cache = CatCache::new(0, 4);
        for hash in 0..8 {
            cache.insert(hash, false);
        }
        assert_eq!(cache.buckets.len(), 4);
        cache.insert(8, false);
        assert_eq!(cache.buckets.len(), 8);
        cache.check_invariants();
        assert!((0..9).all(|hash| cache.search(hash)));
    }

    #[test]
    fn i3_a_message_kills_all_lists_and_its_hash_of_either_sign() {
        let (mut cache, mut work) = (CatCache::new(0, 4), Work::default());
        for (hash, negative) in [(1, false), (5, true), (5, false), (9, false), (2, false)] {
            cache.insert(hash, negative);
        }
        cache.insert_list(77);
        cache.invalidate(5, &mut work);
        assert_eq!((work.catcache_entries_visited, work.entries_dropped), (1 + 4, 1 + 2));
        assert_eq!((cache.contents(), cache.lists()), (vec![(1, false), (2, false), (9, false)], 0));
        cache.check_invariants();
        cache.insert(5, false);
        cache.check_invariants();
        cache.reset(&mut work);
        assert_eq!((cache.len(), cache.search(1)), (0, false));
        cache.check_invariants();
    }
}
