//! Callbacks on syscache changes: `CallSyscacheCallbacks` and `CacheRegisterSyscacheCallback` of `utils/cache/inval.c`.
//!
//! Parts of a backend (plan cache, type cache, output plugin) ask to be called when a syscache changes. Until 9.6.3 each
//! message walked over all registered callbacks to find those of its cache; since then the callbacks of a cache are chained.
//! A backend has 20–30 of them, most messages concern one or two.
//!
//! There is room for a fixed number; the callback that is one too many ends the backend. Ours has room for all that a count can name.
//!
//! Invariants: I1 a chain calls in the order of registration; I2 both strategies call the same callbacks in the same order.
//!
//! | strategy | slots looked at |
//! |---|---|
//! | scan | all registered |
//! | chain | those of the cache |
//!
//! What a callback does then is a matter of its owner: it sets a flag, looks at one bucket of a map, or walks over all of it. The last is what
//! makes one callback more in a backend dear (2025).
//!
//! Differences from PostgreSQL: the maps of these callbacks are empty, as a walsender's plan and type caches are. Callbacks beyond a walsender's,
//! which a plugin may register, each have a map with a number of entries that one asks for, none of which is meant by any message.
//! Calling is counted, by what it costs.

use pg_types::Work;
use pg_types::syscache_id::SysCacheTable;

use crate::attribution::{Share, share};
use crate::profile::{CallbackSearch, HashedCallbacks, Profile};
use crate::sampling::{CurrentFunction, Function};

/// A backend registers more callbacks than it has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "out of {limit} slots: {asked} callbacks are to be registered, and a server of this profile has room for {max} ({limit}), so its \
     backends end with a FATAL error; register fewer, or decode with a profile that has more room (pg10 and later: 64 syscache \
     callbacks; indexed: any number)"
)]
pub struct TooManyCallbacks {
    /// PostgreSQL's name of the limit.
    pub limit: &'static str,
    /// Its value.
    pub max: u8,
    /// How many were asked for.
    pub asked: u8,
}

/// Checks that `asked` callbacks fit in; no `max` means that there is always room.
///
/// # Errors
/// They do not.
pub(crate) fn fits(limit: &'static str, max: Option<u8>, asked: u8) -> Result<(), TooManyCallbacks> {
    match max {
        Some(max) if asked > max => Err(TooManyCallbacks { limit, max, asked }),
        _ => Ok(()),
    }
}

/// What a callback costs when it is called, apart from finding it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallbackCost {
    /// The same whatever its owner has: it sets a flag.
    Constant,
    /// It looks at the entries of its owner's map that have the message's hash.
    Bucket,
    /// It walks over all that its owner has cached.
    Walk,
}

impl CallbackCost {
    /// As it is shown.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Constant => "constant",
            Self::Bucket => "bucket",
            Self::Walk => "walk",
        }
    }
}

/// What a callback does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// It sets a flag.
    Flag,
    /// It looks for entries with the hash that it is given, by the profile's way.
    OfHash,
    /// It looks at all entries.
    All,
}

impl Reaction {
    /// Its cost.
    pub(crate) fn cost(self, of_hash: HashedCallbacks) -> CallbackCost {
        match (self, of_hash) {
            (Self::Flag, _) => CallbackCost::Constant,
            (Self::OfHash, HashedCallbacks::Bucket) => CallbackCost::Bucket,
            (Self::OfHash, HashedCallbacks::Walk) | (Self::All, _) => CallbackCost::Walk,
        }
    }
}

use Reaction::{All, Flag, OfHash};

/// What a walsender with an output plugin registers, in that order, by syscache. A cache that a version lacks is skipped.
pub(crate) const WALSENDER_CALLBACKS: &[(&str, Reaction)] = &[
    // Role membership (`utils/adt/acl.c`) and search path (`catalog/namespace.c`).
    ("AUTHMEMROLEMEM", Flag),
    ("AUTHOID", Flag),
    ("DATABASEOID", Flag),
    ("NAMESPACEOID", Flag),
    ("AUTHOID", Flag),
    // Saved plans (`PlanCacheObjectCallback`, `PlanCacheSysCallback`).
    ("PROCOID", All),
    ("TYPEOID", All),
    ("NAMESPACEOID", All),
    ("OPEROID", All),
    ("AMOPOPID", All),
    ("FOREIGNSERVEROID", All),
    ("FOREIGNDATAWRAPPEROID", All),
    // Types (`TypeCacheOpcCallback`, `TypeCacheConstrCallback`, `TypeCacheTypCallback`), options of attributes and of table spaces.
    ("CLAOID", All),
    ("CONSTROID", All),
    ("TYPEOID", OfHash),
    ("ATTNUM", OfHash),
    ("TABLESPACEOID", All),
    // Text search configurations.
    ("TSCONFIGOID", All),
    ("TSCONFIGMAP", All),
    // What `pgoutput` keeps of relations.
    ("PUBLICATIONOID", Flag),
    ("PUBLICATIONRELMAP", All),
    ("PUBLICATIONNAMESPACEMAP", All),
    ("NAMESPACEOID", All),
    // Operators by name.
    ("OPEROID", All),
];

/// Callbacks called so far, by what each costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallbackCounts {
    /// Those that cost the same whatever there is.
    pub constant: u64,
    /// Those that looked at one bucket of a map.
    pub bucket: u64,
    /// Those that walked over a whole map.
    pub walk: u64,
    /// Entries and empty buckets that those walked over.
    pub walked: u64,
}

impl CallbackCounts {
    /// Counts some.
    pub(crate) fn add(&mut self, cost: CallbackCost, called: u64) {
        match cost {
            CallbackCost::Constant => self.constant += called,
            CallbackCost::Bucket => self.bucket += called,
            CallbackCost::Walk => self.walk += called,
        }
    }
}

/// The map of each callback that no walsender has, with so many entries. The maps of a walsender's are empty or modelled.
#[derive(Debug, Default)]
pub(crate) struct ForeignMap(Vec<u32>);

impl ForeignMap {
    /// With so many entries.
    pub(crate) fn new(entries: u32) -> Self {
        Self((0..entries).collect())
    }

    /// Its entries.
    pub(crate) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// A callback walks over it; nothing in it is meant.
    pub(crate) fn walk(&self) {
        let wanted = std::hint::black_box(u32::MAX);
        std::hint::black_box(self.0.iter().filter(|entry| **entry == wanted).count());
    }
}

/// A registered callback (`SYSCACHECALLBACK`).
#[derive(Clone, Copy, Debug)]
struct Callback {
    /// The cache it wants to hear of.
    cache: i8,
    /// What it costs.
    cost: CallbackCost,
    /// It walks over a map of its own that no walsender has.
    foreign: bool,
    /// Next callback of the same cache, index + 1; 0 ends the chain.
    link: u16,
}

impl Callback {
    /// Calls it; `map` is what each foreign one walks over.
    fn call(&self, map: &ForeignMap) {
        if self.foreign {
            map.walk();
        }
    }
}

/// The registered callbacks.
#[derive(Debug)]
pub(crate) struct SyscacheCallbacks {
    /// In the order of registration.
    list: Vec<Callback>,
    /// First callback of each cache, index + 1; 0 for none (`syscache_callback_links`).
    links: Vec<u16>,
    /// How those of a cache are found.
    search: CallbackSearch,
    /// By cache, how often its callbacks were looked for.
    calls: Vec<u64>,
    /// How often all were called.
    resets: u64,
    /// What each foreign one walks over.
    map: ForeignMap,
}

impl SyscacheCallbacks {
    /// Registers what is `wanted`, with so many entries in the map of each beyond a walsender's; those of unknown caches are skipped. Whoever
    /// asks for a number checks that it fits in.
    pub(crate) fn new<'a>(
        table: &SysCacheTable,
        wanted: impl IntoIterator<Item = (&'a str, Reaction)>,
        profile: &Profile,
        entries: u32,
    ) -> SyscacheCallbacks {
        let mut callbacks = Self {
            list: Vec::new(),
            links: vec![0; table.len()],
            search: profile.callback_search,
            calls: vec![0; table.len()],
            resets: 0,
            map: ForeignMap::new(entries),
        };
        for (id, reaction) in wanted.into_iter().filter_map(|(name, reaction)| Some((table.id_of(name)?, reaction))) {
            callbacks.register(id.message_id(), id.index(), reaction.cost(profile.hashed_callbacks));
        }
        callbacks
    }

    /// `CacheRegisterSyscacheCallback`: the new one goes to the tail of its cache's chain.
    fn register(&mut self, cache: i8, index: usize, cost: CallbackCost) {
        let foreign = self.list.len() >= WALSENDER_CALLBACKS.len() && cost == CallbackCost::Walk;
        self.list.push(Callback { cache, cost, foreign, link: 0 });
        let number = self.list.len() as u16;
        let mut tail = usize::from(self.links[index]);
        if tail == 0 {
            self.links[index] = number;
            return;
        }
        while self.list[tail - 1].link != 0 {
            tail = usize::from(self.list[tail - 1].link);
        }
        self.list[tail - 1].link = number;
    }

    /// `CallSyscacheCallbacks`: looks the cache's callbacks up and calls each.
    pub(crate) fn call(&mut self, cache: i8, work: &mut Work, marker: &CurrentFunction) {
        let outer = marker.enter(Function::CallSyscacheCallbacks);
        if let Some(calls) = usize::try_from(cache).ok().and_then(|index| self.calls.get_mut(index)) {
            *calls += 1;
        }
        let mut called = 0;
        match self.search {
            CallbackSearch::Scan => {
                work.callbacks_visited += self.list.len() as u64;
                for callback in self.list.iter().filter(|c| std::hint::black_box(c.cache) == cache) {
                    callback.call(&self.map);
                    called += 1;
                }
            }
            CallbackSearch::Chain => {
                let mut at = usize::try_from(cache).ok().and_then(|i| self.links.get(i)).copied().unwrap_or(0);
                while at != 0 {
                    let callback = self.list[usize::from(at) - 1];
                    callback.call(&self.map);
                    called += 1;
                    at = callback.link;
                }
                work.callbacks_visited += called;
            }
        }
        work.callbacks_called += called;
        marker.leave(outer);
    }

    /// Calls every callback once, as a full reset does.
    pub(crate) fn call_all(&mut self, work: &mut Work) {
        self.resets += 1;
        self.list.iter().for_each(|callback| callback.call(&self.map));
        work.callbacks_visited += self.list.len() as u64;
        work.callbacks_called += self.list.len() as u64;
    }

    /// How often a callback was called.
    fn called(&self, callback: &Callback) -> u64 {
        let calls = usize::try_from(callback.cache).ok().and_then(|index| self.calls.get(index));
        calls.copied().unwrap_or(0) + self.resets
    }

    /// All that were called so far.
    pub(crate) fn counts(&self) -> CallbackCounts {
        let mut counts = CallbackCounts::default();
        for callback in &self.list {
            let called = self.called(callback);
            counts.add(callback.cost, called);
            counts.walked += if callback.foreign { called * self.map.len() } else { 0 };
        }
        counts
    }

    /// What callbacks of one cache were looked at and called so far, those that a scan passed by included.
    pub(crate) fn work_of_cache(&self, index: usize) -> Work {
        let calls = self.calls.get(index).copied().unwrap_or(0);
        let own = self.list.iter().filter(|callback| usize::try_from(callback.cache) == Ok(index)).count() as u64;
        let looked_at = match self.search {
            CallbackSearch::Scan => self.list.len() as u64,
            CallbackSearch::Chain => own,
        };
        let reset = self.resets * own;
        Work { callbacks_visited: calls * looked_at + reset, callbacks_called: calls * own + reset, ..Work::default() }
    }

    /// A row per callback, in the order of registration.
    pub(crate) fn shares(&self, table: &SysCacheTable) -> Vec<Share> {
        let all: u64 = self.calls.iter().sum();
        let row = |(at, callback): (usize, &Callback)| {
            let called = self.called(callback);
            let visited = if self.search == CallbackSearch::Scan { all + self.resets } else { called };
            let name = table.id(callback.cache).map_or("", |id| table.cache(id).name);
            let work = Work { callbacks_visited: visited, callbacks_called: called, ..Work::default() };
            share(format!("{name}/{} {}", at + 1, callback.cost.name()), work)
        };
        self.list.iter().enumerate().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pg_types::PgVersion;

    fn profile(name: &str) -> Profile {
        name.parse().unwrap()
    }

    #[test]
    fn i2_both_strategies_call_the_same_and_the_chain_visits_no_more() {
        for version in PgVersion::ALL {
            let table = SysCacheTable::of(version);
            let mut scan = SyscacheCallbacks::new(table, WALSENDER_CALLBACKS.iter().copied(), &profile("pg96"), 0);
            let mut chain = SyscacheCallbacks::new(table, WALSENDER_CALLBACKS.iter().copied(), &profile("pg10"), 0);
            let mut total = 0;
            for id in 0..table.len() as i8 {
                let (mut a, mut b, marker) = (Work::default(), Work::default(), CurrentFunction::default());
                scan.call(id, &mut a, &marker);
                chain.call(id, &mut b, &marker);
                assert_eq!((a.callbacks_called, scan.counts()), (b.callbacks_called, chain.counts()));
                assert_eq!((a.callbacks_visited, b.callbacks_visited), (scan.list.len() as u64, b.callbacks_called));
                total += b.callbacks_called;
            }
            assert_eq!(total, chain.list.len() as u64, "I1: each is in exactly one chain");
        }
    }

    #[test]
    fn a_callback_has_its_cost() {
        let table = SysCacheTable::of(PgVersion::V18);
        let counts = |profile_name: &str, times, name: Option<&str>| {
            let (wanted, mut work) = (WALSENDER_CALLBACKS.iter().copied().cycle(), Work::default());
            let wanted = wanted.take(times * WALSENDER_CALLBACKS.len());
            let mut callbacks = SyscacheCallbacks::new(table, wanted, &profile(profile_name), 7);
            match name {
                Some(name) => callbacks.call(table.id_of(name).unwrap().message_id(), &mut work, &CurrentFunction::default()),
                None => callbacks.call_all(&mut work),
            }
            let CallbackCounts { constant, bucket, walk, walked } = callbacks.counts();
            assert_eq!(constant + bucket + walk, work.callbacks_called);
            (constant, bucket, walk, walked)
        };
        for (name, constant, of_hash, all) in
            [("NAMESPACEOID", 1, 0, 2), ("AUTHOID", 2, 0, 0), ("RELOID", 0, 0, 0), ("TYPEOID", 0, 1, 1)]
        {
            assert_eq!(counts("pg18", 1, Some(name)), (constant, of_hash, all, 0), "{name}");
            assert_eq!(counts("pg17", 1, Some(name)), (constant, 0, of_hash + all, 0), "{name} walks up to 17");
            let twice = (2 * constant, 2 * of_hash, 2 * all, 7 * all);
            assert_eq!(counts("pg18", 2, Some(name)), twice, "{name}: what no walsender has walks over its map");
        }
        assert_eq!((counts("pg18", 1, None), counts("pg96", 2, None)), ((6, 2, 16, 0), (12, 0, 36, 7 * 18)));
    }

    #[test]
    fn one_too_many_is_refused_with_the_limits_name() {
        assert_eq!(fits("MAX_SYSCACHE_CALLBACKS", Some(64), 64), Ok(()));
        let error = fits("MAX_SYSCACHE_CALLBACKS", Some(64), 65).unwrap_err().to_string();
        assert!(error.starts_with("out of MAX_SYSCACHE_CALLBACKS slots: 65 callbacks"), "{error}");
        assert_eq!(fits("MAX_SYSCACHE_CALLBACKS", None, 255), Ok(()));
    }

    #[test]
    fn i1_more_than_any_release_has_room_for_stay_in_order() {
        let (table, mut work) = (SysCacheTable::of(PgVersion::V18), Work::default());
        let mut callbacks = SyscacheCallbacks::new(table, std::iter::repeat_n(("RELOID", Flag), 300), &profile("indexed"), 0);
        callbacks.call(table.id_of("RELOID").unwrap().message_id(), &mut work, &CurrentFunction::default());
        assert_eq!(work.callbacks_called, 300);
        let links: Vec<u16> = callbacks.list.iter().map(|callback| callback.link).collect();
        assert_eq!(links, (2..=300).chain([0]).collect::<Vec<u16>>(), "each leads to the next one registered");
    }
}
