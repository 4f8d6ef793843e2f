//! Callbacks on syscache changes: `CallSyscacheCallbacks` and `CacheRegisterSyscacheCallback` of `utils/cache/inval.c`.
//!
//! Parts of a backend (plan cache, type cache, output plugin) ask to be called when a syscache changes. Until 9.6.3 each
//! message walked over all registered callbacks to find those of its cache; since then the callbacks of a cache are chained.
//! A backend has 20–30 of them, most messages concern one or two.
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

/// `MAX_SYSCACHE_CALLBACKS`: 20 (2008), 32 (2012), 64 since May 2017 (10, and back to 9.4).
pub(crate) const MAX_SYSCACHE_CALLBACKS: usize = 64;

/// What a walsender with an output plugin registers, in that order, by syscache: relation and type lookups, roles, search
/// path, plan cache (`InitPlanCache`), type cache, attribute and table space options, text search, publications (`pgoutput`).
/// A cache that a version lacks is skipped.
pub(crate) const WALSENDER_CALLBACKS: &[&str] = &[
    "AUTHMEMROLEMEM",
    "AUTHOID",
    "DATABASEOID",
    "NAMESPACEOID",
    "AUTHOID",
    "PROCOID",
    "TYPEOID",
    "NAMESPACEOID",
    "OPEROID",
    "AMOPOPID",
    "FOREIGNSERVEROID",
    "FOREIGNDATAWRAPPEROID",
    "CLAOID",
    "CONSTROID",
    "TYPEOID",
    "ATTNUM",
    "TABLESPACEOID",
    "TSCONFIGOID",
    "TSCONFIGMAP",
    "PUBLICATIONOID",
    "PUBLICATIONRELMAP",
    "PUBLICATIONNAMESPACEMAP",
    "NAMESPACEOID",
    "OPEROID",
];

/// A registered callback (`SYSCACHECALLBACK`).
#[derive(Clone, Copy, Debug)]
struct Callback {
    /// The cache it wants to hear of.
    cache: i8,
    /// Next callback of the same cache, index + 1; 0 ends the chain.
    link: u8,
}

/// The registered callbacks.
#[derive(Debug)]
pub(crate) struct SyscacheCallbacks {
    /// In the order of registration.
    list: Vec<Callback>,
    /// First callback of each cache, index + 1; 0 for none (`syscache_callback_links`).
    links: Vec<u8>,
    /// How those of a cache are found.
    search: CallbackSearch,
    /// By cache, how often its callbacks were looked for.
    calls: Vec<u64>,
    /// How often all were called.
    resets: u64,
}

impl SyscacheCallbacks {
    /// Registers `names`, at most [`MAX_SYSCACHE_CALLBACKS`]; those of unknown caches are skipped.
    pub(crate) fn new<'a>(
        table: &SysCacheTable,
        names: impl IntoIterator<Item = &'a str>,
        search: CallbackSearch,
    ) -> SyscacheCallbacks {
        let mut callbacks =
            Self { list: Vec::new(), links: vec![0; table.len()], search, calls: vec![0; table.len()], resets: 0 };
        for id in names.into_iter().filter_map(|name| table.id_of(name)).take(MAX_SYSCACHE_CALLBACKS) {
            callbacks.register(id.message_id(), id.index());
        }
        callbacks
    }

    /// `CacheRegisterSyscacheCallback`: the new one goes to the tail of its cache's chain.
    fn register(&mut self, cache: i8, index: usize) {
        self.list.push(Callback { cache, link: 0 });
        let number = self.list.len() as u8;
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
                called += self.list.iter().filter(|c| std::hint::black_box(c.cache) == cache).count() as u64;
            }
            CallbackSearch::Chain => {
                let mut at = usize::try_from(cache).ok().and_then(|i| self.links.get(i)).copied().unwrap_or(0);
                while at != 0 {
                    called += 1;
                    at = self.list[usize::from(at) - 1].link;
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
                assert_eq!(a.callbacks_called, b.callbacks_called);
                assert_eq!((a.callbacks_visited, b.callbacks_visited), (scan.list.len() as u64, b.callbacks_called));
                total += b.callbacks_called;
            }
            assert_eq!(total, chain.list.len() as u64, "I1: each is in exactly one chain");
        }
    }

    #[test]
    fn no_more_than_the_array_holds() {
        let table = SysCacheTable::of(PgVersion::V18);
        let many = std::iter::repeat_n("RELOID", 100);
        assert_eq!(SyscacheCallbacks::new(table, many, CallbackSearch::Chain).list.len(), MAX_SYSCACHE_CALLBACKS);
    }
}
