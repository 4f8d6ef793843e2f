//! File → relation: `utils/cache/relfilenodemap.c` (16 and later: `relfilenumbermap.c`).
//!
//! Decoding a change starts from a file and needs the relation's oid; this map remembers it. Its relcache callback must drop
//! every entry of a changed relation, and every negative entry, since the message may mean that the relation exists now. The
//! map is keyed by file, so PostgreSQL scans all of it for each message: with many cached relations that scan is most of what
//! decoding DDL costs. The reverse index keeps relation → entries beside it, and the negatives as the entries of "no relation".
//!
//! ```text
//!   (tablespace, file) ──► oid          message for oid: scan all   (PostgreSQL)
//!          ▲                │                         or chain of oid + chain of 0  (reverse index)
//!          └── chain ◄──────┘
//! ```
//!
//! Invariants: I1 a negative entry has oid 0; I2 with the reverse index, the chain of an oid holds exactly the entries with
//! that oid; I3 both strategies leave the same entries.
//!
//! | operation | scan | reverse index |
//! |---|---|---|
//! | lookup, insert | O(1) | O(1) |
//! | message for one relation | buckets + entries | 2 + entries dropped |
//! | message for all | buckets + entries | buckets + entries |
//!
//! Differences from PostgreSQL: the database's default tablespace is taken to be `pg_default`, since WAL does not say.

use pg_types::{Oid, RelFileLocator, Work};
use rustc_hash::FxHashMap;

use crate::dynahash::{DynaHash, HashKey, murmurhash32};
use crate::profile::{MapInvalidation, Profile};
use crate::sampling::{CurrentFunction, Function};

/// No entry.
const NIL: u32 = u32::MAX;

/// `RelfilenodeMapKey`: tablespace (0 for the default one) and file number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MapKey {
    /// Tablespace, 0 for the database's own.
    pub(crate) spc: Oid,
    /// File number.
    pub(crate) rel: u32,
}

impl From<RelFileLocator> for MapKey {
    fn from(locator: RelFileLocator) -> Self {
        let spc = if locator.spc == Oid::DEFAULT_TABLESPACE { Oid::INVALID } else { locator.spc };
        Self { spc, rel: locator.rel }
    }
}

impl HashKey for MapKey {
    fn hash(&self) -> u32 {
        murmurhash32(self.rel ^ self.spc.0.rotate_left(16))
    }
}

/// What the map says of a file (`RelfilenodeMapEntry`).
#[derive(Clone, Copy, Debug)]
struct MapEntry {
    /// The relation, [`Oid::INVALID`] for a negative entry.
    oid: Oid,
    /// Where the decoder keeps what it knows of the relation.
    relation: u32,
    /// Neighbours in the chain of the same oid; used by the reverse index alone.
    before: u32,
    /// As `before`.
    after: u32,
}

/// Where the chains begin.
#[derive(Debug)]
struct ReverseIndex {
    /// First entry of each relation's chain.
    heads: FxHashMap<Oid, u32>,
    /// First negative entry, [`NIL`] if there is none: every message asks for them, so it is not looked up.
    negatives: u32,
}

impl ReverseIndex {
    /// Puts an entry at the head of an oid's chain and gives the head so far.
    fn push(&mut self, oid: Oid, at: u32) -> Option<u32> {
        match oid.is_valid() {
            true => self.heads.insert(oid, at),
            false => Some(std::mem::replace(&mut self.negatives, at)).filter(|head| *head != NIL),
        }
    }

    /// Takes a chain out; gives its head.
    fn take(&mut self, oid: Oid) -> Option<u32> {
        match oid.is_valid() {
            true => self.heads.remove(&oid),
            false => Some(std::mem::replace(&mut self.negatives, NIL)).filter(|head| *head != NIL),
        }
    }
}

/// The map.
#[derive(Debug)]
pub(crate) struct RelfilenodeMap {
    /// The entries.
    table: DynaHash<MapKey, MapEntry>,
    /// The reverse index, if it is kept.
    index: Option<ReverseIndex>,
    /// Buckets and entries that scans walked over.
    pub(crate) walked: u64,
}

impl RelfilenodeMap {
    /// An empty map as `profile` makes it.
    pub(crate) fn new(profile: &Profile) -> Self {
        let index = match profile.map_invalidation {
            MapInvalidation::Scan => None,
            MapInvalidation::ReverseIndex => Some(ReverseIndex { heads: FxHashMap::default(), negatives: NIL }),
        };
        Self { table: DynaHash::new(profile.map_initial_size), index, walked: 0 }
    }

    /// Entries, negatives included.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Messages follow the reverse index.
    pub(crate) fn is_indexed(&self) -> bool {
        self.index.is_some()
    }

    /// Buckets.
    pub(crate) fn buckets(&self) -> usize {
        self.table.buckets()
    }

    /// `RelidByRelfilenode`, the part without catalogs: (oid, the decoder's number of the relation).
    pub(crate) fn get(&self, locator: RelFileLocator) -> Option<(Oid, u32)> {
        self.table.get(&locator.into()).map(|e| (e.oid, e.relation))
    }

    /// Remembers a file's relation; [`Oid::INVALID`] remembers that it has none.
    pub(crate) fn insert(&mut self, locator: RelFileLocator, oid: Oid, relation: u32) {
        let at = self.table.insert(locator.into(), MapEntry { oid, relation, before: NIL, after: NIL });
        let Some(index) = &mut self.index else { return };
        let Some(head) = index.push(oid, at) else { return };
        if let Some(entry) = self.table.slot_mut(at) {
            entry.after = head;
        }
        if let Some(entry) = self.table.slot_mut(head) {
            entry.before = at;
        }
    }

    /// `RelfilenodeMapInvalidateCallback`: forgets `rel`'s entries and all negative ones, or everything for [`Oid::INVALID`].
    pub(crate) fn invalidate(&mut self, rel: Oid, work: &mut Work, marker: &CurrentFunction) {
        let outer = marker.enter(Function::RelfilenodeMapInvalidateCallback);
        if !rel.is_valid() {
            self.scan(work, marker, |_| true);
            if let Some(index) = &mut self.index {
                index.heads.clear();
                index.negatives = NIL;
            }
        } else if self.index.is_some() {
            work.map_slots_visited += 2;
            self.drop_chain(rel, work);
            self.drop_chain(Oid::INVALID, work);
        } else {
            self.scan(work, marker, |oid| oid == rel || !oid.is_valid());
        }
        marker.leave(outer);
    }

    /// Walks the whole table and drops what `doomed` picks.
    fn scan(&mut self, work: &mut Work, marker: &CurrentFunction, doomed: impl Fn(Oid) -> bool) {
        let outer = marker.enter(Function::HashSeqSearch);
        let (visited, dropped) = self.table.scan(|_, e| doomed(e.oid));
        work.map_slots_visited += visited;
        self.walked += visited;
        work.map_entries_dropped += dropped;
        marker.leave(outer);
    }

    /// Drops the whole chain of one oid.
    fn drop_chain(&mut self, oid: Oid, work: &mut Work) {
        let Some(mut at) = self.index.as_mut().and_then(|index| index.take(oid)) else { return };
        while let Some((key, entry)) = self.table.slot(at).map(|(k, e)| (*k, *e)) {
            debug_assert_eq!(entry.oid, oid, "I2");
            self.table.remove(&key);
            work.map_slots_visited += 1;
            work.map_entries_dropped += 1;
            at = entry.after;
        }
    }

    /// Reads what a message for `rel` will need, so that it is in the CPU's caches then. Gives something that depends on it.
    pub(crate) fn touch(&self, rel: Oid) -> u32 {
        let head = self.index.as_ref().and_then(|index| index.heads.get(&rel));
        head.and_then(|at| self.table.slot(*at)).map_or(0, |(key, entry)| self.table.touch(key) ^ entry.after)
    }

    /// Whether a message for `rel` would drop anything. O(1) with the reverse index; without it, "maybe".
    pub(crate) fn concerned(&self, rel: Oid) -> bool {
        match &self.index {
            _ if !rel.is_valid() => self.table.len() > 0,
            Some(index) => index.negatives != NIL || index.heads.contains_key(&rel),
            None => true,
        }
    }

    /// All entries as (tablespace, file, oid), sorted.
    pub(crate) fn contents(&self) -> Vec<(Oid, u32, Oid)> {
        let mut all: Vec<_> = self.table.iter().map(|(k, e)| (k.spc, k.rel, e.oid)).collect();
        all.sort_unstable();
        all
    }

    /// Checks I2.
    #[cfg(test)]
    fn check_invariants(&self) {
        self.table.check_invariants();
        let Some(index) = &self.index else { return };
        let mut chained = 0;
        for (oid, head) in index.heads.iter().chain([(&Oid::INVALID, &index.negatives)]) {
            let (mut at, mut before) = (*head, NIL);
            while let Some((_, entry)) = self.table.slot(at) {
                assert_eq!((entry.oid, entry.before), (*oid, before), "I2");
                chained += 1;
                (before, at) = (at, entry.after);
            }
        }
        assert_eq!(chained, self.table.len(), "I2");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn map(profile: &str) -> RelfilenodeMap {
        RelfilenodeMap::new(&profile.parse().unwrap())
    }

    fn file(rel: u32) -> RelFileLocator {
        RelFileLocator { spc: Oid(1663), db: Oid(5), rel }
    }

    #[test]
    fn a_scan_visits_buckets_and_entries_and_drops_negatives_too() {
        let (mut map, mut work) = (map("pg14"), Work::default());
        for n in 1..=100 {
            map.insert(file(n), Oid(if n % 10 == 0 { 0 } else { n }), n);
        }
        map.invalidate(Oid(7), &mut work, &CurrentFunction::default());
        assert_eq!((work.map_slots_visited, work.map_entries_dropped), (200, 11));
        assert_eq!(map.len(), 89);
    }

    #[test]
    fn the_index_visits_two_and_what_it_drops() {
        let (mut map, mut work) = (map("indexed"), Work::default());
        for n in 1..=1000 {
            map.insert(file(n), Oid(n), n);
        }
        map.invalidate(Oid(5000), &mut work, &CurrentFunction::default());
        assert_eq!((work.map_slots_visited, work.map_entries_dropped), (2, 0));
        map.invalidate(Oid(7), &mut work, &CurrentFunction::default());
        assert_eq!((work.map_slots_visited, work.map_entries_dropped), (5, 1));
    }

    #[test]
    fn initial_sizes_are_those_of_the_releases() {
        assert_eq!((map("pg96").buckets(), map("pg10").buckets(), map("pg96+small-map").buckets()), (1024, 64, 64));
    }

    proptest! {
        #[test]
        fn i3_both_strategies_leave_the_same_entries(steps in prop::collection::vec((0..3u8, 1..40u32, 0..12u32), 1..200)) {
            let (mut scan, mut indexed) = (map("pg18"), map("pg18+reverse-index"));
            let (mut a, mut b, marker) = (Work::default(), Work::default(), CurrentFunction::default());
            for (what, number, oid) in steps {
                if what < 2 {
                    if scan.get(file(number)).is_none() {
                        scan.insert(file(number), Oid(oid), 0);
                        indexed.insert(file(number), Oid(oid), 0);
                    }
                } else {
                    scan.invalidate(Oid(oid), &mut a, &marker);
                    indexed.invalidate(Oid(oid), &mut b, &marker);
                }
                prop_assert_eq!(scan.contents(), indexed.contents(), "I3");
                indexed.check_invariants();
            }
            prop_assert_eq!(a.map_entries_dropped, b.map_entries_dropped);
        }
    }
}
