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
//! Differences from PostgreSQL: the callbacks themselves do nothing here, as in a walsender, whose plan and type caches are
//! nearly empty; calling is counted.

use pg_types::Work;
use pg_types::syscache_id::SysCacheTable;

use crate::attribution::{Share, share};
use crate::profile::CallbackSearch;
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
    /// It sets a flag or compares a hash.
    Flag,
    /// It walks over all that its owner has cached.
    Walk,
}

use CallbackCost::{Flag, Walk};

/// What a walsender with an output plugin registers, in that order, by syscache: role membership and search path, plan cache
/// (`InitPlanCache`), type cache, attribute and table space options, text search, publications (`pgoutput`), operator lookups. A
/// cache that a version lacks is skipped.
pub(crate) const WALSENDER_CALLBACKS: &[(&str, CallbackCost)] = &[
    ("AUTHMEMROLEMEM", Flag),
    ("AUTHOID", Flag),
    ("DATABASEOID", Flag),
    ("NAMESPACEOID", Flag),
    ("AUTHOID", Flag),
    ("PROCOID", Walk),
    ("TYPEOID", Walk),
    ("NAMESPACEOID", Walk),
    ("OPEROID", Walk),
    ("AMOPOPID", Walk),
    ("FOREIGNSERVEROID", Walk),
    ("FOREIGNDATAWRAPPEROID", Walk),
    ("CLAOID", Walk),
    ("CONSTROID", Walk),
    ("TYPEOID", Walk),
    ("ATTNUM", Walk),
    ("TABLESPACEOID", Walk),
    ("TSCONFIGOID", Walk),
    ("TSCONFIGMAP", Walk),
    ("PUBLICATIONOID", Flag),
    ("PUBLICATIONRELMAP", Walk),
    ("PUBLICATIONNAMESPACEMAP", Walk),
    ("NAMESPACEOID", Walk),
    ("OPEROID", Walk),
];

/// Syscache callbacks called so far, by what each costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallbackCounts {
    /// Those that set a flag.
    pub flags: u64,
    /// Those that walk over all that their owner has cached.
    pub walks: u64,
}

impl CallbackCounts {
    /// Counts one.
    fn add(&mut self, cost: CallbackCost) {
        match cost {
            Flag => self.flags += 1,
            Walk => self.walks += 1,
        }
    }

    /// All of them.
    fn sum(self) -> u64 {
        self.flags + self.walks
    }
}

/// A registered callback (`SYSCACHECALLBACK`).
#[derive(Clone, Copy, Debug)]
struct Callback {
    /// The cache it wants to hear of.
    cache: i8,
    /// What it costs.
    cost: CallbackCost,
    /// Next callback of the same cache, index + 1; 0 ends the chain.
    link: u16,
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
    /// Called so far.
    pub(crate) counts: CallbackCounts,
}

impl SyscacheCallbacks {
    /// Registers what is `wanted`; those of unknown caches are skipped. Whoever asks for a number checks that it fits in.
    pub(crate) fn new<'a>(
        table: &SysCacheTable,
        wanted: impl IntoIterator<Item = (&'a str, CallbackCost)>,
        search: CallbackSearch,
    ) -> SyscacheCallbacks {
        let mut callbacks = Self {
            list: Vec::new(),
            links: vec![0; table.len()],
            search,
            calls: vec![0; table.len()],
            resets: 0,
            counts: CallbackCounts::default(),
        };
        for (id, cost) in wanted.into_iter().filter_map(|(name, cost)| Some((table.id_of(name)?, cost))) {
            callbacks.register(id.message_id(), id.index(), cost);
        }
        callbacks
    }

    /// `CacheRegisterSyscacheCallback`: the new one goes to the tail of its cache's chain.
    fn register(&mut self, cache: i8, index: usize, cost: CallbackCost) {
        self.list.push(Callback { cache, cost, link: 0 });
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
        let before = self.counts;
        match self.search {
            CallbackSearch::Scan => {
                work.callbacks_visited += self.list.len() as u64;
                let wanted = self.list.iter().filter(|c| std::hint::black_box(c.cache) == cache);
                wanted.for_each(|callback| self.counts.add(callback.cost));
            }
            CallbackSearch::Chain => {
                let mut at = usize::try_from(cache).ok().and_then(|i| self.links.get(i)).copied().unwrap_or(0);
                while at != 0 {
                    let callback = self.list[usize::from(at) - 1];
                    self.counts.add(callback.cost);
                    at = callback.link;
                }
                work.callbacks_visited += self.counts.sum() - before.sum();
            }
        }
        work.callbacks_called += self.counts.sum() - before.sum();
        marker.leave(outer);
    }

    /// Calls every callback once, as a full reset does.
    pub(crate) fn call_all(&mut self, work: &mut Work) {
        self.resets += 1;
        self.list.iter().for_each(|callback| self.counts.add(callback.cost));
        work.callbacks_visited += self.list.len() as u64;
        work.callbacks_called += self.list.len() as u64;
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
            let index = usize::try_from(callback.cache).unwrap_or(usize::MAX);
            let called = self.calls.get(index).copied().unwrap_or(0);
            let visited = if self.search == CallbackSearch::Scan { all } else { called };
            let name = table.id(callback.cache).map_or("", |id| table.cache(id).name);
            let work =
                Work { callbacks_visited: visited + self.resets, callbacks_called: called + self.resets, ..Work::default() };
            share(format!("{name}/{}", at + 1), work)
        };
        self.list.iter().enumerate().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pg_types::PgVersion;

    #[test]
    fn i2_both_strategies_call_the_same_and_the_chain_visits_no_more() {
        for version in PgVersion::ALL {
            let table = SysCacheTable::of(version);
            let mut scan = SyscacheCallbacks::new(table, WALSENDER_CALLBACKS.iter().copied(), CallbackSearch::Scan);
            let mut chain = SyscacheCallbacks::new(table, WALSENDER_CALLBACKS.iter().copied(), CallbackSearch::Chain);
            let mut total = 0;
            for id in 0..table.len() as i8 {
                let (mut a, mut b, marker) = (Work::default(), Work::default(), CurrentFunction::default());
                scan.call(id, &mut a, &marker);
                chain.call(id, &mut b, &marker);
                assert_eq!((a.callbacks_called, scan.counts), (b.callbacks_called, chain.counts));
                assert_eq!((a.callbacks_visited, b.callbacks_visited), (scan.list.len() as u64, b.callbacks_called));
                total += b.callbacks_called;
            }
            assert_eq!(total, chain.list.len() as u64, "I1: each is in exactly one chain");
        }
    }

    #[test]
    fn a_callback_has_its_cost() {
        let (table, mut work) = (SysCacheTable::of(PgVersion::V18), Work::default());
        let mut callbacks = SyscacheCallbacks::new(table, WALSENDER_CALLBACKS.iter().copied(), CallbackSearch::Chain);
        for (name, flags, walks) in [("NAMESPACEOID", 1, 2), ("AUTHOID", 2, 0), ("RELOID", 0, 0), ("TYPEOID", 0, 2)] {
            callbacks.counts = CallbackCounts::default();
            callbacks.call(table.id_of(name).unwrap().message_id(), &mut work, &CurrentFunction::default());
            assert_eq!(callbacks.counts, CallbackCounts { flags, walks }, "{name}");
        }
        callbacks.counts = CallbackCounts::default();
        callbacks.call_all(&mut work);
        assert_eq!(callbacks.counts, CallbackCounts { flags: 6, walks: 18 });
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
        let mut callbacks = SyscacheCallbacks::new(table, std::iter::repeat_n(("RELOID", Flag), 300), CallbackSearch::Chain);
        callbacks.call(table.id_of("RELOID").unwrap().message_id(), &mut work, &CurrentFunction::default());
        assert_eq!(work.callbacks_called, 300);
        let links: Vec<u16> = callbacks.list.iter().map(|callback| callback.link).collect();
        assert_eq!(links, (2..=300).chain([0]).collect::<Vec<u16>>(), "each leads to the next one registered");
    }
}
