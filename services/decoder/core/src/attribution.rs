//! For what the work was done: by cache, by relation, by callback.
//!
//! Counters of work say how much a decoder did; this says which caches, relations and callbacks caused it. It is always on: each
//! message adds to one row that its execution has at hand anyway, and what follows from the number of calls (callbacks looked at
//! and called) is worked out when somebody asks.
//!
//! Each grouping is a partition of [`crate::Decoder::work`]: its rows and [`Attribution::rest`] add up to all of it. In the rest are
//! messages of other databases and those that name no cache of ours, hits of single relations, snapshots, distribution, spilling and, of callbacks, all that
//! calling them is not.
//!
//! Invariants: I1 no row has more of a counter than the total; I2 at most [`RELATIONS_MAX`] rows of relations are given, at most twice
//! as many are kept.
//!
//! | operation | cost |
//! |---|---|
//! | message | a few additions, one search by oid for a relcache message |
//! | asking | O(rows · log rows) |
//!
//! Differences from PostgreSQL: it has nothing of the kind.

use std::sync::Arc;

use pg_types::{Oid, Work};
use rustc_hash::FxHashMap;

/// Rows of relations given out: those with the most work. When twice as many are kept, the lesser half is forgotten and falls to the
/// rest; a relation that comes again begins anew.
pub const RELATIONS_MAX: usize = 1024;

/// Name of the row of loaded relations, among caches.
pub const RELCACHE: &str = "relcache";

/// Name of the row of the relfilenode map, among caches and among callbacks.
pub const RELFILENODE_MAP: &str = "relfilenode map";

/// Work done for one thing.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// What: a syscache, [`RELCACHE`] or [`RELFILENODE_MAP`]; a relation; a callback as `CACHE/n COST` or `relcache/n COST`,
    /// n being its place in the order of registration and the cost `constant`, `bucket` or `walk`.
    pub name: Arc<str>,
    /// Oid of the relation, [`Oid::INVALID`] for all relations at once and for what is none.
    pub oid: Oid,
    /// The work.
    pub work: Work,
}

/// All work so far, three times shared out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attribution {
    /// All of it.
    pub total: Work,
    /// By cache.
    pub caches: Vec<Share>,
    /// By relation, at most [`RELATIONS_MAX`].
    pub relations: Vec<Share>,
    /// By callback.
    pub callbacks: Vec<Share>,
}

impl Attribution {
    /// What is in no row of `shares`, one of its three lists.
    #[must_use]
    pub fn rest(&self, shares: &[Share]) -> Work {
        let mut rows = Work::default();
        shares.iter().for_each(|share| rows += share.work);
        self.total - rows
    }

    /// Adds what another decoder did. Of relations, those with the most work stay.
    pub fn add(&mut self, other: &Attribution) {
        self.total += other.total;
        add_shares(&mut self.caches, &other.caches);
        add_shares(&mut self.relations, &other.relations);
        add_shares(&mut self.callbacks, &other.callbacks);
        self.relations.sort_by_key(|share| (std::cmp::Reverse(share.work.steps()), share.oid));
        self.relations.truncate(RELATIONS_MAX);
    }
}

/// Adds rows to those of the same name and oid.
fn add_shares(to: &mut Vec<Share>, other: &[Share]) {
    let places: FxHashMap<(Arc<str>, Oid), usize> =
        to.iter().enumerate().map(|(at, share)| ((Arc::clone(&share.name), share.oid), at)).collect();
    for share in other {
        match places.get(&(Arc::clone(&share.name), share.oid)) {
            Some(at) => to[*at].work += share.work,
            None => to.push(share.clone()),
        }
    }
}

/// Counters of one syscache.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CacheTally {
    /// Messages for it that were executed.
    pub(crate) messages: u64,
    /// Caches looked at to find it.
    pub(crate) searched: u64,
    /// Its entries looked at.
    pub(crate) visited: u64,
    /// Its entries thrown away.
    pub(crate) dropped: u64,
    /// Lookups that found an entry or a list.
    pub(crate) hits: u64,
    /// Those that did not, and scanned.
    pub(crate) misses: u64,
}

impl CacheTally {
    /// As work, without callbacks.
    pub(crate) fn work(self) -> Work {
        Work {
            messages_executed: self.messages,
            caches_searched: self.searched,
            catcache_entries_visited: self.visited,
            entries_dropped: self.dropped,
            catalog_scans: self.misses,
            catcache_hits: self.hits,
            catcache_misses: self.misses,
            ..Work::default()
        }
    }
}

/// Counters of one relation, or of all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RelationTally {
    /// Messages for it that were executed.
    pub(crate) messages: u64,
    /// Rounds of relcache callbacks: one a message, and one a reset.
    pub(crate) rounds: u64,
    /// Entries of the relcache thrown away.
    pub(crate) dropped: u64,
    /// Slots of the relfilenode map looked at.
    pub(crate) map_slots: u64,
    /// Entries of that map thrown away.
    pub(crate) map_dropped: u64,
    /// Times loaded because a change needed it.
    pub(crate) misses: u64,
    /// Times rebuilt in its place.
    pub(crate) rebuilt: u64,
    /// Times that it, a catalog, or its index was loaded.
    pub(crate) catalogs: u64,
    /// Scans for it, those into syscaches included.
    pub(crate) scans: u64,
}

impl RelationTally {
    /// Adds another.
    fn add(&mut self, other: RelationTally) {
        self.messages += other.messages;
        self.rounds += other.rounds;
        self.dropped += other.dropped;
        self.map_slots += other.map_slots;
        self.map_dropped += other.map_dropped;
        self.misses += other.misses;
        self.rebuilt += other.rebuilt;
        self.catalogs += other.catalogs;
        self.scans += other.scans;
    }

    /// As work, with so many relcache callbacks registered.
    fn work(self, callbacks: u64) -> Work {
        Work {
            messages_executed: self.messages,
            callbacks_visited: self.rounds * callbacks,
            callbacks_called: self.rounds * callbacks,
            entries_dropped: self.dropped,
            map_slots_visited: self.map_slots,
            map_entries_dropped: self.map_dropped,
            relations_loaded: self.misses + self.rebuilt,
            relcache_misses: self.misses,
            relations_rebuilt: self.rebuilt,
            catalogs_loaded: self.catalogs,
            catalog_scans: self.scans,
            ..Work::default()
        }
    }

    /// What it is ranked by.
    fn steps(&self) -> u64 {
        let loads = self.misses + self.rebuilt + self.catalogs;
        self.messages + self.rounds + self.dropped + self.map_slots + self.map_dropped + loads + self.scans
    }
}

/// Counters by relation.
#[derive(Debug, Default)]
pub(crate) struct RelationTallies {
    /// Nothing is counted.
    pub(crate) off: bool,
    /// Of all of them.
    all: RelationTally,
    /// Scans for relations that went to syscaches or the relfilenode map, not to the relcache.
    scans_elsewhere: u64,
    /// Scans for the relfilenode map.
    map_scans: u64,
    /// Of those that are kept.
    by_oid: FxHashMap<Oid, RelationTally>,
}

impl RelationTallies {
    /// Adds to a relation's counters.
    pub(crate) fn add(&mut self, rel: Oid, tally: RelationTally) {
        if self.off {
            return;
        }
        self.all.add(tally);
        if self.by_oid.len() >= 2 * RELATIONS_MAX && !self.by_oid.contains_key(&rel) {
            self.forget_half();
        }
        self.by_oid.entry(rel).or_default().add(tally);
    }

    /// Adds what messages for a relation, or a reset, dropped: relations, slots of the map looked at, entries of the map.
    pub(crate) fn dropped(&mut self, rel: Oid, messages: u64, [dropped, map_slots, map_dropped]: [u64; 3]) {
        if self.off {
            return;
        }
        if self.by_oid.len() >= 2 * RELATIONS_MAX && !self.by_oid.contains_key(&rel) {
            self.forget_half();
        }
        for tally in [&mut self.all, self.by_oid.entry(rel).or_default()] {
            tally.messages += messages;
            tally.rounds += 1;
            tally.dropped += dropped;
            tally.map_slots += map_slots;
            tally.map_dropped += map_dropped;
        }
    }

    /// Catcaches lacked so much of what a relation's rows need.
    pub(crate) fn missed(&mut self, rel: Oid, scans: u64) {
        self.scans_elsewhere += scans;
        self.add(rel, RelationTally { scans, ..RelationTally::default() });
    }

    /// The catalogs were asked for a file's relation; [`Oid::INVALID`] if there is none: that scan is the map's alone.
    pub(crate) fn mapped(&mut self, rel: Oid) {
        self.map_scans += 1;
        if rel.is_valid() {
            self.scans_elsewhere += 1;
            self.add(rel, RelationTally { scans: 1, ..RelationTally::default() });
        }
    }

    /// Keeps the half with the most work (I2).
    fn forget_half(&mut self) {
        let mut ranks: Vec<(u64, Oid)> = self.by_oid.iter().map(|(oid, tally)| (tally.steps(), *oid)).collect();
        let half = ranks.len() / 2;
        ranks.select_nth_unstable(half);
        for (_, oid) in &ranks[..half] {
            self.by_oid.remove(oid);
        }
    }

    /// Rows of relations, most work first; `name` gives the name of one.
    pub(crate) fn relations(&self, callbacks: u64, name: impl Fn(Oid) -> Arc<str>) -> Vec<Share> {
        let works = self.by_oid.iter().map(|(oid, tally)| (*oid, tally.work(callbacks)));
        let mut rows: Vec<(Oid, Work)> = works.collect();
        rows.sort_by_key(|(oid, work)| (std::cmp::Reverse(work.steps()), *oid));
        rows.truncate(RELATIONS_MAX);
        rows.into_iter().map(|(oid, work)| Share { name: name(oid), oid, work }).collect()
    }

    /// The rows of relcache and relfilenode map among caches; `total` is all work.
    pub(crate) fn caches(&self, callbacks: u64, total: &Work) -> [Share; 2] {
        let map = self.map();
        let (map_hits, map_misses) = (total.map_hits, total.map_misses);
        let map_scans = Work { catalog_scans: self.map_scans, map_hits, map_misses, ..map };
        let elsewhere = Work { catalog_scans: self.scans_elsewhere, ..map };
        let relcache = Work { relcache_hits: total.relcache_hits, ..self.all.work(callbacks) - elsewhere };
        [share(RELCACHE, relcache), share(RELFILENODE_MAP, map_scans)]
    }

    /// What messages did to the relfilenode map.
    fn map(&self) -> Work {
        let RelationTally { map_slots, map_dropped, .. } = self.all;
        Work { map_slots_visited: map_slots, map_entries_dropped: map_dropped, ..Work::default() }
    }

    /// The rows of relcache callbacks: `others` are their names, the last of so many `callbacks` is the relfilenode map's.
    pub(crate) fn callbacks(&self, others: impl Iterator<Item = String>, callbacks: u64) -> Vec<Share> {
        let rounds = Work { callbacks_visited: self.all.rounds, callbacks_called: self.all.rounds, ..Work::default() };
        let others = others.map(|name| share(name, rounds));
        let mut map = self.map();
        if callbacks > 0 {
            map += rounds;
        }
        others.chain([share(RELFILENODE_MAP, map)]).collect()
    }
}

/// A row of what is no relation.
pub(crate) fn share(name: impl Into<Arc<str>>, work: Work) -> Share {
    Share { name: name.into(), oid: Oid::INVALID, work }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(n: u64) -> RelationTally {
        RelationTally { messages: n, rounds: n, ..RelationTally::default() }
    }

    #[test]
    fn i2_the_relations_with_the_most_work_are_kept() {
        let mut tallies = RelationTallies::default();
        for oid in 1..=10_000 {
            tallies.add(Oid(oid), messages(1));
            tallies.add(Oid(20_000 + oid % 10), messages(5));
            assert!(tallies.by_oid.len() <= 2 * RELATIONS_MAX);
        }
        let rows = tallies.relations(3, |oid| oid.to_string().into());
        assert_eq!(rows.len(), RELATIONS_MAX);
        let oids: Vec<u32> = rows[..10].iter().map(|row| row.oid.0).collect();
        assert_eq!(oids, (20_000..20_010).collect::<Vec<u32>>());
        assert_eq!(
            (rows[0].work.messages_executed, rows[0].work.callbacks_called),
            (5000, 15_000),
            "nothing of them was forgotten"
        );
        let [relcache, _] = tallies.caches(3, &Work::default());
        assert_eq!(relcache.work.messages_executed, 60_000, "the sum of all has also what was forgotten");
    }

    #[test]
    fn rows_of_two_decoders_add_up() {
        let of = |rows: &[(&str, u32, u64)]| {
            let rows = rows.iter().map(|(name, oid, n)| {
                let work = Work { messages_executed: *n, ..Work::default() };
                Share { name: (*name).into(), oid: Oid(*oid), work }
            });
            let relations: Vec<Share> = rows.collect();
            let total = Work { messages_executed: 100, ..Work::default() };
            Attribution { total, relations, ..Attribution::default() }
        };
        let mut sum = of(&[("a", 1, 5), ("b", 2, 7)]);
        sum.add(&of(&[("b", 2, 1), ("c", 3, 90)]));
        let rows: Vec<_> = sum.relations.iter().map(|row| (&*row.name, row.work.messages_executed)).collect();
        assert_eq!(rows, [("c", 90), ("b", 8), ("a", 5)]);
        assert_eq!(sum.rest(&sum.relations).messages_executed, 200 - 103);
    }
}
