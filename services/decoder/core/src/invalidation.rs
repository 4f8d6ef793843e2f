//! What a backend does with an invalidation message: `LocalExecuteInvalidationMessage` of `utils/cache/inval.c`.
//!
//! A message may name a tuple of a syscache, a catalog, a relation, a file, the relation map or the catalog snapshot. It is
//! executed only if it is of the decoder's database or of shared objects. Syscache messages then call that cache's callbacks,
//! relcache messages call every relcache callback, the relfilenode map's among them.
//!
//! ```text
//!   catcache ─► syscaches ─► syscache callbacks          relcache ─► relcache ─► plan cache, type cache, relfilenode map
//!   catalog  ─► every syscache on it ─► their callbacks  relsync ─► what pgoutput keeps (relcache messages and callbacks too)
//!   catcache, catalog, snapshot ─► the catalog snapshot  smgr, relmap ─► nothing kept here
//! ```
//!
//! Invariants: I1 each message given to [`Caches::execute`] counts as executed, whatever its database; I2 after it, nothing it
//! names is cached ([`Caches::concerned`] is false), unless it is of another database, or in use and therefore built anew; I3 `loads` grows with everything put in.
//!
//! | message | cost |
//! |---|---|
//! | catcache | cache search + one bucket + callbacks |
//! | relcache | O(1) + 3 callbacks, the map's being a scan or a chain |
//!
//! Differences from PostgreSQL: no relation map and open files are kept, so their messages cost the dispatch
//! alone. Unknown syscache ids are refused when a record is read ([`Caches::knows`]), not here.

mod lookups;

use std::sync::Arc;

use pg_types::sinvaladt::{Got, MAXINVALMSGS, QueueReader};
use pg_types::{
    CatalogSnapshot, DropReason, InvalidationMessage, Oid, PgVersion, QueueCounts, RelFileLocator, SharedInvalQueue, Work,
};
use rustc_hash::FxHashSet;

use self::lookups::Looked;
use crate::attribution::{Attribution, CacheTally, RelationTallies, share};
use crate::historic_catalog::{AsOf, HistoricCatalog};
use crate::interrupt::Interrupt;
use crate::profile::{Consumer, OutputPlugin, Profile};
use crate::relations::Relations;
use crate::relcache::Relcache;
use crate::relcache_callbacks::{RelcacheCallbacks, WALSENDER_RELCACHE_CALLBACKS};
use crate::relfilenode_map::RelfilenodeMap;
use crate::relsync::{RelationSyncCache, RelsyncCounts};
use crate::reorder_buffer::tuple_cids::TupleCidCounts;
use crate::sampling::{CurrentFunction, Function};
use crate::syscache::SysCaches;
use crate::syscache_callbacks::{CallbackCounts, SyscacheCallbacks, TooManyCallbacks, WALSENDER_CALLBACKS, fits};

/// Catalogs scanned to build a relation: `pg_class` and `pg_attribute` (`RelationBuildDesc`).
const SCANS_TO_BUILD: u64 = 2;

/// Messages whose entries are read together before they are executed.
pub(crate) const TOUCHED_AHEAD: usize = 16;

/// Entries of the map from which on that is worth its price.
const TOUCH_FROM: usize = 4096;

/// Sizes of the caches, for metrics and tests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheSizes {
    /// Entries of all catcaches.
    pub catcache_entries: usize,
    /// Loaded relations.
    pub relcache_entries: usize,
    /// Entries of the relfilenode map, negatives included.
    pub map_entries: usize,
    /// Its buckets.
    pub map_buckets: usize,
}

/// How many callbacks a backend has registered; a walsender's where nothing is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegisteredCallbacks {
    /// Syscache callbacks; PostgreSQL has room for 32 or 64, by release.
    pub syscache: Option<u8>,
    /// Relcache callbacks, with that of the relfilenode map; PostgreSQL has room for 10.
    pub relcache: Option<u8>,
    /// Entries of the map of each callback beyond a walsender's that walks over one.
    pub entries: u32,
}

/// What the caches hold, sorted, for comparing two decoders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheContents {
    /// Catcache entries: syscache id, hash, negative.
    pub catcaches: Vec<(i8, u32, bool)>,
    /// Loaded relations.
    pub relcache: Vec<Oid>,
    /// Relfilenode map: tablespace (0 the default), file, relation (0 none).
    pub map: Vec<(Oid, u32, Oid)>,
    /// Lists of catcaches: syscache id, hash of the partial key.
    pub lists: Vec<(i8, u32)>,
    /// Loaded catalogs and indexes of them that are not nailed.
    pub catalogs: Vec<Oid>,
    /// Relations of which `pgoutput` knows how they are published.
    pub published: Vec<Oid>,
    /// It knows the publications.
    pub publications: bool,
}

/// All caches of one decoder, and the counters of what was done to them.
#[derive(Debug)]
pub(crate) struct Caches {
    /// The decoder's database (`MyDatabaseId`).
    database: Oid,
    /// Catcaches.
    syscaches: SysCaches,
    /// Their callbacks.
    callbacks: SyscacheCallbacks,
    /// Callbacks on relcache messages.
    relcache_callbacks: RelcacheCallbacks,
    /// Relations.
    relcache: Relcache,
    /// File → relation.
    map: RelfilenodeMap,
    /// For which relations work was done.
    relations: RelationTallies,
    /// A wish to stop.
    pub(crate) interrupt: Interrupt,
    /// What the output plugin keeps, if it is `pgoutput`.
    relsync: Option<RelationSyncCache>,
    /// Messages of commits, for a decoder that follows live.
    queue: Option<(SharedInvalQueue, QueueReader)>,
    /// All caches are dropped whenever messages might come.
    discard: bool,
    /// Everything done so far, by whomever.
    pub(crate) work: Work,
    /// Entries put into any cache so far.
    pub(crate) loads: u64,
    /// What was done for catalog rows of transactions that are replayed.
    pub(crate) tuple_cids: TupleCidCounts,
    /// Relations of which the transaction that is replayed wrote catalog rows.
    pub(crate) own_relations: FxHashSet<Oid>,
    /// The snapshot with which catalogs are read.
    pub(crate) as_of: AsOf,
    /// Catalogs that know what they were then, if there are such.
    pub(crate) historic: Option<Arc<dyn HistoricCatalog>>,
    /// What is looked up, where.
    looked: Looked,
    /// The snapshot for catalogs as they are now.
    catalog_snapshot: CatalogSnapshot<()>,
    /// Messages and resets so far, which is how often the caches may have lost something.
    generation: u64,
    /// By number of a relation, the generation in which everything was there that its rows need.
    known: Vec<u64>,
    /// Rows of which everything was known without a lookup.
    rows_known: u64,
    /// The file that was opened last, its relation, and the generation: as long as it is the same, the caches would say the same.
    last_opened: Option<(RelFileLocator, u32, u64)>,
    /// What runs now.
    pub(crate) marker: CurrentFunction,
}

impl Caches {
    /// Empty caches.
    pub(crate) fn new(version: PgVersion, database: Oid, profile: &Profile, marker: CurrentFunction) -> Self {
        let syscaches = SysCaches::new(version, profile.catcache_search);
        let looked = Looked::new(&syscaches, profile.output_plugin);
        let names = WALSENDER_CALLBACKS.iter().copied();
        let callbacks = SyscacheCallbacks::new(syscaches.table(), names, profile, 0);
        let relsync = (profile.output_plugin == OutputPlugin::PgOutput)
            .then(|| RelationSyncCache::new(syscaches.table(), profile.publication_flush));
        Self {
            database,
            syscaches,
            callbacks,
            relcache_callbacks: RelcacheCallbacks::new(WALSENDER_RELCACHE_CALLBACKS, profile, 0),
            relcache: Relcache::new(),
            map: RelfilenodeMap::new(profile),
            relations: RelationTallies::default(),
            interrupt: Interrupt::default(),
            relsync,
            discard: profile.discard_caches,
            queue: (profile.consumer == Consumer::Live).then(queue_of_one),
            work: Work::default(),
            loads: 0,
            tuple_cids: TupleCidCounts::default(),
            own_relations: FxHashSet::default(),
            as_of: AsOf::default(),
            historic: None,
            looked,
            catalog_snapshot: CatalogSnapshot::new(profile.catalog_snapshot),
            generation: 0,
            known: Vec::new(),
            rows_known: 0,
            last_opened: None,
            marker,
        }
    }

    /// Registers so many callbacks instead of a walsender's; those of syscaches are on the same caches in turn.
    ///
    /// # Errors
    /// There is no room for so many.
    pub(crate) fn register(&mut self, registered: RegisteredCallbacks, profile: &Profile) -> Result<(), TooManyCallbacks> {
        fits("MAX_SYSCACHE_CALLBACKS", profile.syscache_callbacks_max, registered.syscache.unwrap_or(0))?;
        fits("MAX_RELCACHE_CALLBACKS", profile.relcache_callbacks_max, registered.relcache.unwrap_or(0))?;
        let count = registered.syscache.map_or(WALSENDER_CALLBACKS.len(), usize::from);
        let names = WALSENDER_CALLBACKS.iter().copied().cycle().take(count);
        self.callbacks = SyscacheCallbacks::new(self.syscaches.table(), names, profile, registered.entries);
        let count = registered.relcache.unwrap_or(WALSENDER_RELCACHE_CALLBACKS);
        self.relcache_callbacks = RelcacheCallbacks::new(count, profile, registered.entries);
        Ok(())
    }

    /// Whether a message's syscache id exists in this version.
    pub(crate) fn knows(&self, message: &InvalidationMessage) -> bool {
        match message {
            InvalidationMessage::Catcache { cache_id, .. } => self.syscaches.table().id(*cache_id).is_some(),
            _ => true,
        }
    }

    /// `SendSharedInvalidMessages` of a backend that commits, for a decoder that follows live.
    pub(crate) fn send_shared(&mut self, messages: &[InvalidationMessage]) {
        if let Some((queue, _)) = &mut self.queue {
            queue.insert(messages);
        }
    }

    /// `AcceptInvalidationMessages`, at the start of a transaction: what others sent since, or a reset if some of it is lost.
    pub(crate) fn accept_invalidation_messages(&mut self) {
        self.discard();
        let Some((mut queue, reader)) = self.queue.take() else { return };
        let mut messages = Vec::with_capacity(MAXINVALMSGS);
        loop {
            messages.clear();
            match queue.get(reader, &mut messages) {
                Got::Reset => self.reset(),
                Got::Messages(_) => self.execute_all(&messages),
            }
            if messages.len() < MAXINVALMSGS {
                break;
            }
        }
        self.queue = Some((queue, reader));
    }

    /// `debug_discard_caches`: a full reset wherever messages are accepted, which is at the start of a transaction and whenever a
    /// lock is taken to read a catalog.
    fn discard(&mut self) {
        if self.discard {
            self.reset();
        }
    }

    /// What the shared queue did; nothing for a decoder that catches up.
    pub(crate) fn queue_counts(&self) -> QueueCounts {
        self.queue.as_ref().map(|(queue, reader)| queue.counts(*reader)).unwrap_or_default()
    }

    /// Work is no longer shared out.
    pub(crate) fn without_attribution(&mut self) {
        self.syscaches.counts = false;
        self.relations.off = true;
    }

    /// Executes messages in order.
    pub(crate) fn execute_all(&mut self, messages: &[InvalidationMessage]) {
        for ahead in messages.chunks(TOUCHED_AHEAD) {
            if self.interrupt.is_raised() {
                return;
            }
            self.touch(ahead);
            ahead.iter().for_each(|message| self.execute(message));
        }
    }

    /// Reads what some relcache messages will need. One after another each would wait for memory several times; read together
    /// the waits overlap. Worth it only with more entries than the CPU's first caches hold, and without a scan.
    pub(crate) fn touch(&self, ahead: &[InvalidationMessage]) {
        if self.map.len() < TOUCH_FROM || !self.map.is_indexed() {
            return;
        }
        let mut read = 0;
        for message in ahead {
            if let InvalidationMessage::Relcache { rel, .. } = message {
                read ^= self.map.touch(*rel) ^ self.relcache.touch(*rel);
            }
        }
        std::hint::black_box(read);
    }

    /// `LocalExecuteInvalidationMessage`.
    pub(crate) fn execute(&mut self, message: &InvalidationMessage) {
        let outer = self.marker.enter(Function::LocalExecuteInvalidationMessage);
        self.work.messages_executed += 1;
        self.generation += 1;
        if message.concerns(self.database) {
            self.catalog_snapshot.execute(message);
            match *message {
                InvalidationMessage::Catcache { cache_id, hash, .. } => {
                    self.syscaches.invalidate(cache_id, hash, &mut self.work, &self.marker);
                    self.call_syscache_callbacks(cache_id);
                }
                InvalidationMessage::Catalog { catalog, .. } => {
                    for id in self.syscaches.flush_catalog(catalog, &mut self.work) {
                        self.call_syscache_callbacks(id);
                    }
                }
                InvalidationMessage::Relcache { rel, .. } => self.execute_relcache(rel),
                InvalidationMessage::Smgr { .. }
                | InvalidationMessage::Relmap { .. }
                | InvalidationMessage::Snapshot { .. } => {}
                InvalidationMessage::Relsync { rel, .. } => {
                    self.relsync.iter_mut().for_each(|relsync| relsync.relation_changed(rel));
                }
            }
        }
        self.marker.leave(outer);
    }

    /// Executes those messages in order that would drop something.
    pub(crate) fn execute_concerned(&mut self, messages: &[InvalidationMessage]) {
        for ahead in messages.chunks(TOUCHED_AHEAD) {
            if self.interrupt.is_raised() {
                return;
            }
            self.touch(ahead);
            for message in ahead {
                if self.concerned(message) {
                    self.execute(message);
                }
            }
        }
    }

    /// `CallSyscacheCallbacks`, with what those of `pgoutput` do.
    fn call_syscache_callbacks(&mut self, cache: i8) {
        self.callbacks.call(cache, &mut self.work, &self.marker);
        self.relsync.iter_mut().for_each(|relsync| relsync.syscache_changed(cache));
    }

    /// A relcache message: the entry, then the callbacks.
    fn execute_relcache(&mut self, rel: Oid) {
        let before = self.dropped();
        let rebuild = self.relcache.invalidate(rel, &mut self.work, &self.marker);
        self.call_relcache_callbacks(rel);
        self.tally(rel, 1, before);
        self.rebuild(rebuild);
    }

    /// Of all work what a relcache message does to caches: entries dropped, slots of the map looked at, its entries dropped.
    fn dropped(&self) -> [u64; 3] {
        [self.work.entries_dropped, self.work.map_slots_visited, self.work.map_entries_dropped]
    }

    /// Notes what was dropped since `before` for a relation; `messages` is 0 for what a reset does.
    fn tally(&mut self, rel: Oid, messages: u64, before: [u64; 3]) {
        let [dropped, map_slots, map_dropped] = self.dropped();
        self.relations.dropped(rel, messages, [dropped - before[0], map_slots - before[1], map_dropped - before[2]]);
    }

    /// The relcache callbacks, in the order of their registration: the map's and, of `pgoutput`, its entries'.
    fn call_relcache_callbacks(&mut self, rel: Oid) {
        self.work.callbacks_visited += self.relcache_callbacks.len();
        self.work.callbacks_called += self.relcache_callbacks.len();
        self.relcache_callbacks.call(rel);
        self.map.invalidate(rel, &mut self.work, &self.marker);
        self.relsync.iter_mut().for_each(|relsync| relsync.relation_changed(rel));
    }

    /// `InvalidateSystemCaches`: everything goes, every callback is called; caches first, so that no callback finds anything stale.
    pub(crate) fn reset(&mut self) {
        self.generation += 1;
        self.catalog_snapshot.invalidate(DropReason::QueueReset);
        self.syscaches.reset(&mut self.work);
        let before = self.dropped();
        let rebuild = self.relcache.invalidate(Oid::INVALID, &mut self.work, &self.marker);
        self.callbacks.call_all(&mut self.work);
        self.call_relcache_callbacks(Oid::INVALID);
        self.tally(Oid::INVALID, 0, before);
        self.rebuild(rebuild);
        self.relsync.iter_mut().for_each(RelationSyncCache::reset);
    }

    /// The replay's transaction ends (`AtEOXact_Snapshot`).
    pub(crate) fn end_transaction(&mut self) {
        self.catalog_snapshot.invalidate(DropReason::TransactionEnd);
    }

    /// Whether executing `message` would drop anything.
    pub(crate) fn concerned(&self, message: &InvalidationMessage) -> bool {
        message.concerns(self.database)
            && match *message {
                InvalidationMessage::Catcache { cache_id, hash, .. } => {
                    let published = |relsync: &RelationSyncCache| relsync.concerned_by(cache_id);
                    self.syscaches.concerned(cache_id, hash) || self.relsync.as_ref().is_some_and(published)
                }
                InvalidationMessage::Catalog { .. } => self.syscaches.len() > 0 || self.relsync.is_some(),
                InvalidationMessage::Relcache { rel, .. } => {
                    self.relcache.concerned(rel) || self.map.concerned(rel) || self.publishes(rel)
                }
                InvalidationMessage::Relsync { rel, .. } => self.publishes(rel),
                _ => false,
            }
    }

    /// Syscache callbacks called so far.
    pub(crate) fn callback_counts(&self) -> CallbackCounts {
        self.callbacks.counts()
    }

    /// The same of relcache callbacks.
    pub(crate) fn relcache_callback_counts(&self) -> CallbackCounts {
        self.relcache_callbacks.counts(self.map.walked)
    }

    /// What was done to the entries of `pgoutput`.
    pub(crate) fn relsync_counts(&self) -> RelsyncCounts {
        self.relsync.as_ref().map(|relsync| relsync.counts).unwrap_or_default()
    }

    /// Sizes now.
    pub(crate) fn sizes(&self) -> CacheSizes {
        CacheSizes {
            catcache_entries: self.syscaches.len(),
            relcache_entries: self.relcache.len(),
            map_entries: self.map.len(),
            map_buckets: self.map.buckets(),
        }
    }

    /// All work so far, shared out; names of relations are those of `relations`.
    pub(crate) fn attribution(&self, relations: &Relations) -> Attribution {
        let (table, rounds) = (self.syscaches.table(), self.relcache_callbacks.len());
        let syscaches = table.iter().zip(self.syscaches.tallies()).map(|((id, cache), tally)| {
            let hits = tally.hits + self.looked.hits(id, self.rows_known);
            let mut work = CacheTally { hits, ..*tally }.work();
            work += self.callbacks.work_of_cache(id.index());
            share(cache.name, work)
        });
        let name = |oid: Oid| match oid {
            Oid::INVALID => "all relations".into(),
            oid => relations.name_of(oid).unwrap_or_else(|| oid.to_string().into()),
        };
        let mut attribution = Attribution {
            total: self.work,
            caches: syscaches.chain(self.relations.caches(rounds, &self.work)).collect(),
            relations: self.relations.relations(rounds, name),
            callbacks: self
                .callbacks
                .shares(table)
                .into_iter()
                .chain(self.relations.callbacks(self.relcache_callbacks.names(), rounds))
                .collect(),
        };
        for shares in [&mut attribution.caches, &mut attribution.relations, &mut attribution.callbacks] {
            shares.retain(|share| share.work != Work::default());
        }
        attribution
    }

    /// Contents now.
    pub(crate) fn contents(&self) -> CacheContents {
        let (published, publications) = self.relsync.as_ref().map(RelationSyncCache::contents).unwrap_or_default();
        CacheContents {
            catcaches: self.syscaches.contents(),
            relcache: self.relcache.contents(),
            map: self.map.contents(),
            lists: self.syscaches.lists(),
            catalogs: self.relcache.catalogs(),
            published,
            publications,
        }
    }

    /// Whoever has the catalogs looks at what is cached.
    pub(crate) fn look(&self) {
        if let Some(historic) = &self.historic {
            historic.look(self.as_of, &|| self.contents());
        }
    }
}

/// A shared queue with the decoder as its one reader: all others keep up, and a walsender that waits for WAL does not answer signals.
fn queue_of_one() -> (SharedInvalQueue, QueueReader) {
    let mut queue = SharedInvalQueue::new();
    let reader = queue.attach();
    (queue, reader)
}

#[cfg(test)]
mod tests;
