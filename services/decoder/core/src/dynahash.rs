//! PostgreSQL's own hash table, `utils/hash/dynahash.c`, as far as its size and its scans go.
//!
//! The table uses linear hashing: when an insert finds as many entries as buckets, one bucket is split, so the table grows by
//! one bucket at a time; it never shrinks. A sequential scan (`hash_seq_search`) walks over every bucket and every entry, so a
//! table that once was large stays slow to scan when it is empty.
//!
//! Invariants: I1 buckets = max(initial size, highest number of entries so far); I2 every entry is in the chain of the bucket
//! its hash names; I3 length = sum of the chains.
//!
//! | operation | cost |
//! |---|---|
//! | get, insert, remove | O(1), a chain of 1 on average |
//! | scan | buckets + entries |
//!
//! Differences from PostgreSQL: no partitions, no segments of a directory; the hash function is a plain mixer.

/// No entry.
const NIL: u32 = u32::MAX;

/// A key of a [`DynaHash`].
pub(crate) trait HashKey: Copy + Eq {
    /// Its hash; all bits count.
    fn hash(&self) -> u32;
}

/// Mixes a 32-bit word (the finaliser of murmur3, PostgreSQL's `murmurhash32`).
#[must_use]
pub(crate) fn murmurhash32(word: u32) -> u32 {
    let mut h = word;
    h ^= h >> 16;
    h = h.wrapping_mul(0x85eb_ca6b);
    h ^= h >> 13;
    h = h.wrapping_mul(0xc2b2_ae35);
    h ^ h >> 16
}

/// One entry and its link in the chain.
#[derive(Clone, Debug)]
struct Slot<K, V> {
    /// The key.
    key: K,
    /// Its hash, kept so that a split need not compute it.
    hash: u32,
    /// Next entry of the chain, or of the free list; [`NIL`] at the end.
    next: u32,
    /// The value; absent while the slot is free.
    value: Option<V>,
}

/// A linear-hashing table that counts what a scan visits.
#[derive(Clone, Debug)]
pub(crate) struct DynaHash<K, V> {
    /// First entry of each bucket's chain.
    buckets: Vec<u32>,
    /// Mask before the current doubling (`low_mask`).
    low_mask: u32,
    /// Mask of the current doubling (`high_mask`).
    high_mask: u32,
    /// All entries ever needed at once; free ones are chained.
    slots: Vec<Slot<K, V>>,
    /// First free slot.
    free: u32,
    /// Live entries.
    len: usize,
}

impl<K: HashKey, V> DynaHash<K, V> {
    /// An empty table for `initial` entries, rounded up to a power of two.
    pub(crate) fn new(initial: u32) -> Self {
        let buckets = initial.max(1).next_power_of_two();
        Self {
            buckets: vec![NIL; buckets as usize],
            low_mask: buckets - 1,
            high_mask: (buckets << 1) - 1,
            slots: Vec::new(),
            free: NIL,
            len: 0,
        }
    }

    /// Live entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Buckets now.
    pub(crate) fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// `calc_bucket`.
    fn bucket(&self, hash: u32) -> usize {
        let bucket = hash & self.high_mask;
        if bucket as usize >= self.buckets.len() { (bucket & self.low_mask) as usize } else { bucket as usize }
    }

    /// The slot of `key`.
    pub(crate) fn find(&self, key: &K) -> Option<u32> {
        let mut at = self.buckets[self.bucket(key.hash())];
        while at != NIL {
            let slot = &self.slots[at as usize];
            if slot.key == *key {
                return Some(at);
            }
            at = slot.next;
        }
        None
    }

    /// Reads the head of `key`'s chain, as [`DynaHash::find`] will; gives something that depends on it.
    pub(crate) fn touch(&self, key: &K) -> u32 {
        let head = self.buckets[self.bucket(key.hash())];
        self.slots.get(head as usize).map_or(0, |slot| slot.hash)
    }

    /// The value of `key`.
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.find(key).and_then(|at| self.slots[at as usize].value.as_ref())
    }

    /// Key and value in a slot that [`DynaHash::find`] or [`DynaHash::insert`] gave.
    pub(crate) fn slot(&self, at: u32) -> Option<(&K, &V)> {
        let slot = self.slots.get(at as usize)?;
        slot.value.as_ref().map(|v| (&slot.key, v))
    }

    /// The value in such a slot, to be changed.
    pub(crate) fn slot_mut(&mut self, at: u32) -> Option<&mut V> {
        self.slots.get_mut(at as usize)?.value.as_mut()
    }

    /// Adds `key`, which must not be there, and gives its slot; splits a bucket first when the table is full.
    pub(crate) fn insert(&mut self, key: K, value: V) -> u32 {
        debug_assert!(self.find(&key).is_none(), "a key is inserted once");
        if self.len >= self.buckets.len() {
            self.expand();
        }
        let hash = key.hash();
        let bucket = self.bucket(hash);
        let slot = Slot { key, hash, next: self.buckets[bucket], value: Some(value) };
        let at = if self.free == NIL {
            self.slots.push(slot);
            (self.slots.len() - 1) as u32
        } else {
            let at = self.free;
            self.free = self.slots[at as usize].next;
            self.slots[at as usize] = slot;
            at
        };
        self.buckets[bucket] = at;
        self.len += 1;
        at
    }

    /// `expand_table`: one bucket more, and the entries that belong there move from the bucket they shared.
    fn expand(&mut self) {
        let new = self.buckets.len() as u32;
        if new > self.high_mask {
            self.low_mask = self.high_mask;
            self.high_mask |= new;
        }
        let old = (new & self.low_mask) as usize;
        self.buckets.push(NIL);
        let mut at = std::mem::replace(&mut self.buckets[old], NIL);
        while at != NIL {
            let next = self.slots[at as usize].next;
            let bucket = self.bucket(self.slots[at as usize].hash);
            self.slots[at as usize].next = std::mem::replace(&mut self.buckets[bucket], at);
            at = next;
        }
    }

    /// Takes `key` out.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let bucket = self.bucket(key.hash());
        let (mut before, mut at) = (NIL, self.buckets[bucket]);
        while at != NIL {
            let next = self.slots[at as usize].next;
            if self.slots[at as usize].key == *key {
                return self.unlink(bucket, before, at);
            }
            (before, at) = (at, next);
        }
        None
    }

    /// Takes slot `at` out of its chain, where it follows `before`, and frees it.
    fn unlink(&mut self, bucket: usize, before: u32, at: u32) -> Option<V> {
        let next = std::mem::replace(&mut self.slots[at as usize].next, self.free);
        if before == NIL {
            self.buckets[bucket] = next;
        } else {
            self.slots[before as usize].next = next;
        }
        self.free = at;
        self.len -= 1;
        self.slots[at as usize].value.take()
    }

    /// `hash_seq_search` over the whole table: takes out every entry that `drop` picks. Gives (visited, dropped).
    pub(crate) fn scan(&mut self, mut drop: impl FnMut(&K, &V) -> bool) -> (u64, u64) {
        let (mut visited, mut dropped) = (self.buckets.len() as u64, 0);
        for bucket in 0..self.buckets.len() {
            let (mut before, mut at) = (NIL, self.buckets[bucket]);
            while at != NIL {
                visited += 1;
                let slot = &self.slots[at as usize];
                let next = slot.next;
                if slot.value.as_ref().is_some_and(|v| drop(&slot.key, v)) {
                    self.unlink(bucket, before, at);
                    dropped += 1;
                } else {
                    before = at;
                }
                at = next;
            }
        }
        (visited, dropped)
    }

    /// All entries, in no order that means anything.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.slots.iter().filter_map(|s| s.value.as_ref().map(|v| (&s.key, v)))
    }

    /// Checks I2 and I3.
    #[cfg(test)]
    pub(crate) fn check_invariants(&self) {
        let mut counted = 0;
        for (bucket, head) in self.buckets.iter().enumerate() {
            let mut at = *head;
            while at != NIL {
                let slot = &self.slots[at as usize];
                assert_eq!(self.bucket(slot.hash), bucket, "I2");
                assert!(slot.value.is_some(), "I2: a free slot is in no chain");
                counted += 1;
                at = slot.next;
            }
        }
        assert_eq!(counted, self.len, "I3");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl HashKey for u32 {
        fn hash(&self) -> u32 {
            murmurhash32(*self)
        }
    }

    #[test]
    fn i1_grows_by_one_bucket_and_never_shrinks() {
        let mut table = DynaHash::<u32, ()>::new(64);
        for n in 0..200u32 {
            table.insert(n, ());
            assert_eq!(table.buckets(), 64.max(n as usize + 1), "I1");
            table.check_invariants();
        }
        assert_eq!(table.scan(|_, ()| true), (400, 200));
        assert_eq!((table.len(), table.buckets()), (0, 200));
        assert_eq!(table.scan(|_, ()| true), (200, 0), "empty buckets are walked too");
        table.check_invariants();
    }

    #[test]
    fn agrees_with_a_plain_map() {
        let mut table = DynaHash::<u32, u32>::new(4);
        let mut model = std::collections::BTreeMap::new();
        let mut x = 7u32;
        for step in 0..5000 {
            x = x.wrapping_mul(1_103_515_245).wrapping_add(12345);
            let key = (x >> 16) % 300;
            if model.remove(&key).is_some() {
                assert!(table.remove(&key).is_some());
            } else {
                model.insert(key, step);
                table.insert(key, step);
            }
        }
        table.check_invariants();
        assert!(model.iter().all(|(k, v)| table.get(k) == Some(v)));
        assert_eq!(table.len(), model.len());
        assert_eq!(table.iter().count(), model.len());
    }
}
