//! One cache of catalog tuples: `utils/cache/catcache.c`.
//!
//! A cache keeps tuples found by key and, as negative entries, keys that were not found; lists keep the answers to partial
//! keys. A message names a cache and the hash of a key: every list of the cache dies, since it might have held the tuple, and
//! every entry in the hash's bucket with that hash, positive or negative. Nothing else is looked at, so a message costs one
//! bucket and all lists.
//!
//! Who looks something up holds it until he releases it. What a message finds held is marked dead: nobody finds it any more, and
//! its last holder frees it. What is being built meanwhile is built again, since it may have been read before the change.
//!
//! ```text
//!   search ─┬─ found ──────────────────────────► held ─► release ─► freed if dead
//!           └─ build ─► scan ─► message meanwhile? again : create ─┘
//! ```
//!
//! Invariants: I1 an entry is in bucket `hash & (buckets − 1)`; I2 buckets are a power of two, doubled when an insert leaves
//! more than two entries a bucket (`RehashCatCache`), never halved; I3 after a message no live entry has its hash and no list is
//! live; I4 what is held stays until it is released, and nothing dead outlives its last holder.
//!
//! | operation | cost |
//! |---|---|
//! | lookup | O(1), a chain of ≤ 2 on average |
//! | message | lists + entries of one bucket |
//! | reset | lists + entries |
//!
//! Differences from PostgreSQL: a key is its hash; lists are found by a map, which stands for hashed buckets of lists (17 and
//! later; one chain before).

use pg_types::Work;
use rustc_hash::FxHashMap;

/// Entries a bucket may have on average (`CatalogCacheCreateEntry`).
const FILL_MAX: usize = 2;

/// No entry, no list.
const NIL: u32 = u32::MAX;

/// A cached tuple, or the knowledge that there is none (`CatCTup`).
#[derive(Clone, Copy, Debug)]
struct CatCTup {
    /// Hash of its key.
    hash: u32,
    /// Next in the bucket or in the free list.
    next: u32,
    /// The list that it is a member of (`c_list`).
    list: u32,
    /// Who holds it.
    refcount: u16,
    /// There is no such tuple.
    negative: bool,
    /// Nobody may find it any more.
    dead: bool,
}

/// The tuples of a partial key (`CatCList`).
#[derive(Clone, Debug, Default)]
struct CatCList {
    /// Hash of the partial key.
    hash: u32,
    /// Its tuples.
    members: Vec<u32>,
    /// Who holds it.
    refcount: u16,
    /// Nobody may find it any more.
    dead: bool,
}

/// An entry or list that is being built (`CatCInProgress`).
#[derive(Clone, Copy, Debug)]
struct CatCInProgress {
    /// Hash of its key.
    hash: u32,
    /// It is a list.
    list: bool,
    /// A message came that may concern it.
    dead: bool,
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
    /// Entries, dead ones included (`cc_ntup`).
    len: usize,
    /// Lists ever needed at once (`cc_lists`).
    lists: Vec<CatCList>,
    /// Free ones among them.
    free_lists: Vec<u32>,
    /// Live lists by the hash of their partial key.
    list_index: FxHashMap<u32, u32>,
    /// What is being built, outermost first (`catcache_in_progress_stack`).
    in_progress: Vec<CatCInProgress>,
}

impl CatCache {
    /// An empty cache (`InitCatCache`); it heads the list of caches, before the one made last.
    pub(crate) fn new(id: i8, initial_buckets: u32) -> Self {
        let buckets = initial_buckets.max(1).next_power_of_two() as usize;
        let next = u8::try_from(id).ok().and_then(|id| id.checked_sub(1));
        Self {
            id,
            next,
            buckets: vec![NIL; buckets],
            entries: Vec::new(),
            free: NIL,
            len: 0,
            lists: Vec::new(),
            free_lists: Vec::new(),
            list_index: FxHashMap::default(),
            in_progress: Vec::new(),
        }
    }

    /// Entries, dead ones included.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Live lists.
    #[cfg(test)]
    pub(crate) fn lists(&self) -> usize {
        self.list_index.len()
    }

    /// The bucket of a hash.
    fn bucket(&self, hash: u32) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    /// Entries of a bucket's chain.
    fn chain(&self, bucket: usize) -> impl Iterator<Item = (u32, &CatCTup)> {
        let mut at = self.buckets[bucket];
        std::iter::from_fn(move || {
            let entry = self.entries.get(at as usize)?;
            Some((std::mem::replace(&mut at, entry.next), entry))
        })
    }

    /// The live entry with this hash.
    fn find(&self, hash: u32) -> Option<u32> {
        self.chain(self.bucket(hash)).find(|(_, entry)| entry.hash == hash && !entry.dead).map(|(at, _)| at)
    }

    /// Whether there is a live entry with this hash.
    pub(crate) fn has(&self, hash: u32) -> bool {
        self.find(hash).is_some()
    }

    /// `SearchCatCache`: holds the entry with this hash until [`CatCache::release`]. A missing one is built: `scan` reads the
    /// catalog and says whether there is such a tuple, and is asked again if a message came meanwhile.
    pub(crate) fn search(&mut self, hash: u32, mut scan: impl FnMut(&mut Self) -> bool) -> u32 {
        let at = match self.find(hash) {
            Some(at) => at,
            None => {
                let exists = self.build(hash, false, &mut scan);
                self.insert(hash, !exists)
            }
        };
        self.entries[at as usize].refcount += 1;
        at
    }

    /// Reads the catalog until no message that may concern it came meanwhile.
    fn build<T>(&mut self, hash: u32, list: bool, scan: &mut impl FnMut(&mut Self) -> T) -> T {
        loop {
            self.in_progress.push(CatCInProgress { hash, list, dead: false });
            let found = scan(self);
            if self.in_progress.pop().is_none_or(|build| !build.dead) {
                return found;
            }
        }
    }

    /// `CatalogCacheCreateEntry`: remembers a tuple, or that there is none; nobody holds it.
    fn insert(&mut self, hash: u32, negative: bool) -> u32 {
        let bucket = self.bucket(hash);
        let entry = CatCTup { hash, next: self.buckets[bucket], list: NIL, refcount: 0, negative, dead: false };
        let at = if self.free == NIL {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        } else {
            let at = self.free;
            self.free = self.entries[at as usize].next;
            self.entries[at as usize] = entry;
            at
        };
        self.buckets[bucket] = at;
        self.len += 1;
        if self.len > FILL_MAX * self.buckets.len() {
            self.rehash();
        }
        at
    }

    /// `ReleaseCatCache`: whoever held it does no longer.
    pub(crate) fn release(&mut self, at: u32) {
        let entry = &mut self.entries[at as usize];
        entry.refcount -= 1;
        let (dead, list) = (entry.dead && entry.refcount == 0, entry.list);
        if dead && self.lists.get(list as usize).is_none_or(|list| list.refcount == 0) {
            self.remove(at);
        }
    }

    /// `SearchCatCacheList`: holds the list of a partial key until [`CatCache::release_list`]. `scan` gives the hashes of its tuples.
    pub(crate) fn search_list(&mut self, hash: u32, mut scan: impl FnMut(&mut Self) -> Vec<u32>) -> u32 {
        let at = match self.list_index.get(&hash) {
            Some(at) => *at,
            None => {
                let hashes = self.build(hash, true, &mut scan);
                self.insert_list(hash, &hashes)
            }
        };
        self.lists[at as usize].refcount += 1;
        at
    }

    /// A list with its tuples; those that another list has are cached once more, as each is in one list at most.
    fn insert_list(&mut self, hash: u32, hashes: &[u32]) -> u32 {
        let at = self.free_lists.pop().unwrap_or(self.lists.len() as u32);
        let mut members = Vec::with_capacity(hashes.len());
        for hash in hashes {
            let free = |entry: &CatCTup| entry.hash == *hash && !entry.dead && !entry.negative && entry.list == NIL;
            let found = self.chain(self.bucket(*hash)).find(|(_, entry)| free(entry)).map(|(at, _)| at);
            let member = found.unwrap_or_else(|| self.insert(*hash, false));
            self.entries[member as usize].list = at;
            members.push(member);
        }
        let list = CatCList { hash, members, refcount: 0, dead: false };
        match self.lists.get_mut(at as usize) {
            Some(free) => *free = list,
            None => self.lists.push(list),
        }
        self.list_index.insert(hash, at);
        at
    }

    /// `ReleaseCatCacheList`.
    pub(crate) fn release_list(&mut self, at: u32) {
        let list = &mut self.lists[at as usize];
        list.refcount -= 1;
        if list.dead && list.refcount == 0 {
            self.remove_list(at);
        }
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

    /// `CatCacheInvalidate`: kills every list, every entry with this hash, and what is being built with it.
    pub(crate) fn invalidate(&mut self, hash: u32, work: &mut Work) {
        let lists = self.kill_lists();
        let (mut visited, mut dropped) = (lists, lists);
        let mut at = self.buckets[self.bucket(hash)];
        while let Some(entry) = self.entries.get(at as usize).copied() {
            visited += 1;
            if entry.hash == hash && !entry.dead {
                dropped += 1;
                self.kill(at);
            }
            at = entry.next;
        }
        self.in_progress.iter_mut().for_each(|build| build.dead |= build.list || build.hash == hash);
        work.catcache_entries_visited += visited;
        work.entries_dropped += dropped;
    }

    /// `ResetCatalogCache`: forgets everything but what is held, which is dead.
    pub(crate) fn reset(&mut self, work: &mut Work) {
        let all = self.kill_lists() + self.len as u64;
        work.catcache_entries_visited += all;
        work.entries_dropped += all;
        for bucket in 0..self.buckets.len() {
            let mut at = self.buckets[bucket];
            while let Some(next) = self.entries.get(at as usize).map(|entry| entry.next) {
                self.kill(at);
                at = next;
            }
        }
        self.in_progress.iter_mut().for_each(|build| build.dead = true);
    }

    /// Kills all live lists and gives how many there were.
    fn kill_lists(&mut self) -> u64 {
        if self.list_index.is_empty() {
            return 0;
        }
        let index = std::mem::take(&mut self.list_index);
        for at in index.values() {
            self.lists[*at as usize].dead = true;
            if self.lists[*at as usize].refcount == 0 {
                self.remove_list(*at);
            }
        }
        index.len() as u64
    }

    /// Removes an entry, or marks it dead while somebody holds it or its list.
    fn kill(&mut self, at: u32) {
        let entry = self.entries[at as usize];
        if entry.refcount > 0 || self.lists.get(entry.list as usize).is_some_and(|list| list.refcount > 0) {
            self.entries[at as usize].dead = true;
        } else {
            self.remove(at);
        }
    }

    /// `CatCacheRemoveCTup`: takes entry `at` out of its bucket; no list has it any more,
    /// since what kills an entry has killed all lists.
    fn remove(&mut self, at: u32) {
        let entry = self.entries[at as usize];
        let bucket = self.bucket(entry.hash);
        let before = self.chain(bucket).find(|(_, before)| before.next == at).map(|(before, _)| before);
        match before {
            Some(before) => self.entries[before as usize].next = entry.next,
            None => self.buckets[bucket] = entry.next,
        }
        self.entries[at as usize].next = std::mem::replace(&mut self.free, at);
        self.len -= 1;
    }

    /// `CatCacheRemoveCList`: frees a list that nobody holds, and those of its entries that died with it.
    fn remove_list(&mut self, at: u32) {
        let list = std::mem::take(&mut self.lists[at as usize]);
        if self.list_index.get(&list.hash) == Some(&at) {
            self.list_index.remove(&list.hash);
        }
        self.free_lists.push(at);
        for member in list.members {
            let entry = &mut self.entries[member as usize];
            entry.list = NIL;
            if entry.dead && entry.refcount == 0 {
                self.remove(member);
            }
        }
    }

    /// Whether a message with this hash would kill anything.
    pub(crate) fn concerned(&self, hash: u32) -> bool {
        !self.list_index.is_empty() || self.find(hash).is_some()
    }

    /// Hashes of the partial keys of live lists, sorted.
    pub(crate) fn list_contents(&self) -> Vec<u32> {
        let mut all: Vec<u32> = self.list_index.keys().copied().collect();
        all.sort_unstable();
        all
    }

    /// Hashes and signs of the live entries, sorted.
    pub(crate) fn contents(&self) -> Vec<(u32, bool)> {
        let live = (0..self.buckets.len()).flat_map(|bucket| self.chain(bucket)).filter(|(_, entry)| !entry.dead);
        let mut all: Vec<(u32, bool)> = live.map(|(_, entry)| (entry.hash, entry.negative)).collect();
        all.sort_unstable();
        all
    }

    /// Checks I1, I2 and I4.
    #[cfg(test)]
    fn check_invariants(&self) {
        assert!(self.buckets.len().is_power_of_two() && self.len <= FILL_MAX * self.buckets.len(), "I2");
        let mut counted = 0;
        for bucket in 0..self.buckets.len() {
            for (at, entry) in self.chain(bucket) {
                assert_eq!(self.bucket(entry.hash), bucket, "I1");
                let list = self.lists.get(entry.list as usize);
                assert!(list.is_none_or(|list| list.members.contains(&at)));
                assert!(!entry.dead || entry.refcount > 0 || list.is_some_and(|list| list.refcount > 0), "I4");
                counted += 1;
            }
        }
        assert_eq!(counted, self.len);
        let dead = self.lists.iter().filter(|list| list.dead);
        dead.for_each(|list| assert!(list.refcount > 0, "I4"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A cache of four buckets with these entries, which nobody holds.
    fn cache(entries: impl IntoIterator<Item = (u32, bool)>) -> CatCache {
        let mut cache = CatCache::new(0, 4);
        for (hash, negative) in entries {
            cache.insert(hash, negative);
        }
        cache
    }

    #[test]
    fn i2_buckets_double_past_two_entries_each() {
        let mut cache = cache((0..8).map(|hash| (hash, false)));
        assert_eq!(cache.buckets.len(), 4);
        cache.insert(8, false);
        assert_eq!(cache.buckets.len(), 8);
        cache.check_invariants();
        assert!((0..9).all(|hash| cache.find(hash).is_some()));
    }

    #[test]
    fn i3_a_message_kills_all_lists_and_its_hash_of_either_sign() {
        let (mut cache, mut work) = (cache([(1, false), (5, true), (5, false), (9, false), (2, false)]), Work::default());
        cache.insert_list(77, &[]);
        cache.invalidate(5, &mut work);
        assert_eq!((work.catcache_entries_visited, work.entries_dropped), (1 + 4, 1 + 2));
        assert_eq!((cache.contents(), cache.lists()), (vec![(1, false), (2, false), (9, false)], 0));
        cache.check_invariants();
        cache.insert(5, false);
        cache.check_invariants();
        cache.reset(&mut work);
        assert_eq!((cache.len(), cache.find(1)), (0, None));
        cache.check_invariants();
    }

    #[test]
    fn i4_what_is_held_is_dead_until_it_is_released() {
        let (mut cache, mut work) = (cache([]), Work::default());
        let held = cache.search(5, |_| true);
        cache.invalidate(5, &mut work);
        assert_eq!((cache.find(5), cache.len(), work.entries_dropped), (None, 1, 1), "dead, not freed");
        cache.invalidate(5, &mut work);
        assert_eq!(work.entries_dropped, 1, "dead once");
        let again = cache.search(5, |_| true);
        assert_ne!(held, again, "what is dead is built anew");
        cache.release(held);
        assert_eq!((cache.len(), cache.find(5)), (1, Some(again)));
        cache.release(again);
        assert_eq!(cache.len(), 1, "alive, it stays");
        cache.check_invariants();
    }

    #[test]
    fn i4_a_list_and_its_tuples_live_as_long_as_somebody_holds_it() {
        let (mut cache, mut work) = (cache([]), Work::default());
        let held = cache.search_list(70, |_| vec![1, 2]);
        assert_eq!((cache.len(), cache.lists()), (2, 1));
        cache.search_list(70, |_| panic!("found"));
        cache.release_list(held);
        cache.invalidate(1, &mut work);
        assert_eq!((cache.lists(), cache.contents(), cache.len()), (0, vec![(2, false)], 2), "tuple 1 is dead with its list");
        cache.check_invariants();
        cache.release_list(held);
        assert_eq!((cache.contents(), cache.len()), (vec![(2, false)], 1));
        cache.check_invariants();
        let other = cache.search_list(71, |_| vec![2]);
        let third = cache.search_list(72, |_| vec![2]);
        assert_eq!(cache.len(), 2, "a tuple is in one list at most, the second list has its own");
        cache.release_list(other);
        cache.release_list(third);
        cache.invalidate(1000, &mut work);
        assert_eq!((cache.lists(), cache.len()), (0, 2), "any message kills all lists, and not their tuples");
        cache.check_invariants();
    }

    #[test]
    fn what_is_being_built_is_built_again_after_a_message() {
        for (message, entry_scans, list_scans) in [(Some(5), 2, 2), (Some(6), 1, 2), (None, 2, 2)] {
            let (mut cache, mut work) = (CatCache::new(0, 4), Work::default());
            let mut once = |cache: &mut CatCache, scans: u32| match message {
                Some(hash) if scans == 1 => cache.invalidate(hash, &mut work),
                None if scans == 1 => cache.reset(&mut work),
                _ => {}
            };
            let (mut scans, mut of_list) = (0, 0);
            cache.search(5, |cache| {
                scans += 1;
                once(cache, scans);
                scans == 1
            });
            let list = cache.search_list(5, |cache| {
                of_list += 1;
                once(cache, of_list);
                vec![]
            });
            assert_eq!((scans, of_list), (entry_scans, list_scans), "{message:?}");
            assert_eq!(cache.entries[0].negative, entry_scans == 2, "the last answer counts");
            cache.release_list(list);
        }
    }

    proptest! {
        /// Against a model that keeps what is live in sorted lists.
        #[test]
        fn i3_i4_what_can_be_found_is_what_a_naive_model_has(steps in prop::collection::vec((0u8..8, 0u32..24), 1..200)) {
            let (mut cache, mut work) = (CatCache::new(0, 2), Work::default());
            let (mut model, mut lists) = (Vec::<(u32, bool)>::new(), std::collections::BTreeSet::new());
            let (mut held, mut held_lists) = (Vec::new(), Vec::new());
            for (what, hash) in steps {
                match what {
                    0..=2 => {
                        let mut scanned = false;
                        held.push(cache.search(hash, |_| { scanned = true; hash % 3 > 0 }));
                        prop_assert_eq!(scanned, !model.iter().any(|(h, _)| *h == hash));
                        if scanned { model.push((hash, hash % 3 == 0)); }
                    }
                    3 => {
                        let mut scanned = false;
                        held_lists.push(cache.search_list(hash, |_| { scanned = true; vec![] }));
                        prop_assert_eq!(scanned, lists.insert(hash));
                    }
                    4 => {
                        cache.invalidate(hash, &mut work);
                        model.retain(|(h, _)| *h != hash);
                        lists.clear();
                    }
                    5 if hash == 0 => {
                        cache.reset(&mut work);
                        model.clear();
                        lists.clear();
                    }
                    6 => held_lists.pop().into_iter().for_each(|at| cache.release_list(at)),
                    _ => held.pop().into_iter().for_each(|at| cache.release(at)),
                }
                model.sort_unstable();
                prop_assert_eq!(cache.contents(), model.clone());
                prop_assert_eq!(cache.lists(), lists.len());
                cache.check_invariants();
            }
            held.into_iter().for_each(|at| cache.release(at));
            held_lists.into_iter().for_each(|at| cache.release_list(at));
            prop_assert_eq!(cache.len(), model.len(), "I4: nothing dead is left");
        }
    }
}
