//! Callbacks on relcache messages: `CacheRegisterRelcacheCallback` of `utils/cache/inval.c`.
//!
//! Every relcache message calls all of them, whatever relation it names. A walsender has three: saved plans, the type cache, and the
//! relfilenode map, which is registered last and walks over all of itself. One more that walks over a map of its own costs as much
//! again: that was reported in 2025, where GRANT on many tables took hours instead of seconds.
//!
//! Invariants: I1 each round calls every callback once.
//!
//! | callback | a message for one relation | for all |
//! |---|---|---|
//! | saved plans, and any beyond a walsender's | walk | walk |
//! | type cache | walk; one bucket since 18 | walk |
//! | relfilenode map | walk; two chains with the reverse index | walk |
//!
//! Differences from PostgreSQL: as with [`crate::syscache_callbacks`].

use pg_types::Oid;

use crate::profile::{MapInvalidation, Profile};
use crate::syscache_callbacks::{CallbackCost, CallbackCounts, ForeignMap, Reaction};

/// Those of a walsender: plan cache, type cache, relfilenode map.
pub(crate) const WALSENDER_RELCACHE_CALLBACKS: u8 = 3;

/// The registered callbacks.
#[derive(Debug)]
pub(crate) struct RelcacheCallbacks {
    /// What each costs for one relation, in the order of registration; the last is the relfilenode map's.
    costs: Vec<CallbackCost>,
    /// Rounds for one relation, and for all.
    rounds: [u64; 2],
    /// What those walk over that are beyond a walsender's.
    map: ForeignMap,
}

impl RelcacheCallbacks {
    /// So many callbacks, with so many entries in the map of each beyond a walsender's.
    pub(crate) fn new(count: u8, profile: &Profile, entries: u32) -> Self {
        let of_map = match profile.map_invalidation {
            MapInvalidation::Scan => CallbackCost::Walk,
            MapInvalidation::ReverseIndex => CallbackCost::Bucket,
        };
        let others = [Reaction::All, Reaction::OfHash].into_iter().chain(std::iter::repeat(Reaction::All));
        let costs = others.take(usize::from(count).saturating_sub(1)).map(|reaction| reaction.cost(profile.hashed_callbacks));
        let costs = costs.chain((count > 0).then_some(of_map)).collect();
        Self { costs, rounds: [0; 2], map: ForeignMap::new(entries) }
    }

    /// How many.
    pub(crate) fn len(&self) -> u64 {
        self.costs.len() as u64
    }

    /// Those that are not the relfilenode map's.
    fn others(&self) -> &[CallbackCost] {
        self.costs.split_last().map_or(&[], |(_, others)| others)
    }

    /// How many are beyond a walsender's.
    fn foreign(&self) -> u64 {
        self.len().saturating_sub(WALSENDER_RELCACHE_CALLBACKS.into())
    }

    /// Calls all but the relfilenode map's, which whoever has that map calls.
    pub(crate) fn call(&mut self, rel: Oid) {
        self.rounds[usize::from(!rel.is_valid())] += 1;
        (0..self.foreign()).for_each(|_| self.map.walk());
    }

    /// All that were called so far; the relfilenode map's walked over `map_walked`.
    pub(crate) fn counts(&self, map_walked: u64) -> CallbackCounts {
        let (mut counts, [one, all]) = (CallbackCounts::default(), self.rounds);
        self.others().iter().for_each(|cost| counts.add(*cost, one));
        counts.add(CallbackCost::Walk, all * self.others().len() as u64);
        counts.walked = (one + all) * self.foreign() * self.map.len() + map_walked;
        if let Some(of_map) = self.costs.last() {
            counts.add(*of_map, one);
            counts.add(CallbackCost::Walk, all);
        }
        counts
    }

    /// Their names, in the order of registration, the relfilenode map's left out.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        self.others().iter().enumerate().map(|(at, cost)| format!("relcache/{} {}", at + 1, cost.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(count: u8, profile: &str) -> CallbackCounts {
        let mut callbacks = RelcacheCallbacks::new(count, &profile.parse().unwrap(), 10);
        (0..5).for_each(|rel| callbacks.call(Oid(rel)));
        assert_eq!(callbacks.len(), count.into());
        callbacks.counts(1000)
    }

    #[test]
    fn i1_each_is_called_and_counted_by_its_cost() {
        // Four messages for one relation, one for all.
        for (count, profile, bucket, walk, foreign) in [
            (3, "pg17", 0, 15, 0),
            (3, "pg18", 4, 11, 0),
            (3, "indexed", 8, 7, 0),
            (2, "indexed", 4, 6, 0),
            (4, "pg17", 0, 20, 5),
            (5, "pg18", 4, 21, 10),
            (1, "pg18", 0, 5, 0),
        ] {
            let expected = CallbackCounts { constant: 0, bucket, walk, walked: 10 * foreign + 1000 };
            assert_eq!(counts(count, profile), expected, "{count} {profile}");
        }
        assert_eq!(counts(0, "pg18").walk, 0);
        let callbacks = RelcacheCallbacks::new(4, &"pg18".parse().unwrap(), 0);
        assert_eq!(callbacks.names().collect::<Vec<_>>(), ["relcache/1 walk", "relcache/2 bucket", "relcache/3 walk"]);
    }
}
