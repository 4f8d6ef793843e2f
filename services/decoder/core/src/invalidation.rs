//! What a backend does with an invalidation message: `LocalExecuteInvalidationMessage` of `utils/cache/inval.c`.
//!
//! A message may name a tuple of a syscache, a catalog, a relation, a file, the relation map or the catalog snapshot. It is
//! executed only if it is of the decoder's database or of shared objects. Syscache messages then call that cache's callbacks,
//! relcache messages call every relcache callback, the relfilenode map's among them.
//!
//! ```text
//!   catcache ─► syscaches ─► syscache callbacks          relcache ─► relcache ─► plan cache, type cache, relfilenode map
//!   catalog  ─► every syscache on it ─► their callbacks  snapshot, smgr, relmap, relsync ─► nothing kept here
//! ```
//!
//! Invariants: I1 each message given to [`Caches::execute`] counts as executed, whatever its database; I2 after it, nothing it
//! names is cached ([`Caches::concerned`] is false), unless it is of another database; I3 `loads` grows with everything put in.
//!
//! | message | cost |
//! |---|---|
//! | catcache | cache search + one bucket + callbacks |
//! | relcache | O(1) + 3 callbacks, the map's being a scan or a chain |
//!
//! Differences from PostgreSQL: no catalog snapshot, relation map and open files are kept, so their messages cost the dispatch
//! alone. Unknown syscache ids are refused when a record is read ([`Caches::knows`]), not here.

use pg_types::{InvalidationMessage, Oid, PgVersion, RelFileLocator, Work};

use crate::attribution::{Attribution, RelationTallies, RelationTally, share};
use crate::profile::Profile;
use crate::relations::Relations;
use crate::relcache::Relcache;
use crate::relfilenode_map::RelfilenodeMap;
use crate::sampling::{CurrentFunction, Function};
use crate::syscache::SysCaches;
use crate::syscache_callbacks::{SyscacheCallbacks, WALSENDER_CALLBACKS};

/// Relcache callbacks of a walsender: plan cache, type cache, relfilenode map. The last one is modelled, see the map.
const RELCACHE_CALLBACKS: u64 = 3;

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
    /// Syscache callbacks; PostgreSQL has room for 64.
    pub syscache: Option<u8>,
    /// Relcache callbacks, with that of the relfilenode map; PostgreSQL has room for 10.
    pub relcache: Option<u8>,
}

/// What the caches hold, sorted, for comparing two decoders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheContents {
    /// Catcache entries: syscache id, hash, negative.
    pub catcaches: Vec<(i8, u32, bool)>,
    /// Loaded relations.
    pub relcache: Vec<Oid>,
    /// Relfilenode map: tablespace (0 the default), file, relation (0 none).
    pub map: Vec<(Oid, u32, Oid)>,
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
    /// How many relcache callbacks are registered.
    relcache_callbacks: u64,
    /// Relations.
    relcache: Relcache,
    /// File → relation.
    map: RelfilenodeMap,
    /// For which relations work was done.
    relations: RelationTallies,
    /// Everything done so far, by whomever.
    pub(crate) work: Work,
    /// Entries put into any cache so far.
    pub(crate) loads: u64,
    /// The file that was opened last, its relation, and [`Caches::executed`] then: as long as nothing was executed since, the
    /// caches would say the same.
    last_opened: Option<(RelFileLocator, u32, u64)>,
    /// What runs now.
    pub(crate) marker: CurrentFunction,
}

impl Caches {
    /// Empty caches.
    pub(crate) fn new(version: PgVersion, database: Oid, profile: &Profile, marker: CurrentFunction) -> Self {
        let syscaches = SysCaches::new(version, profile.catcache_search);
        let names = WALSENDER_CALLBACKS.iter().copied();
        let callbacks = SyscacheCallbacks::new(syscaches.table(), names, profile.callback_search);
        Self {
            database,
            syscaches,
            callbacks,
            relcache_callbacks: RELCACHE_CALLBACKS,
            relcache: Relcache::new(),
            map: RelfilenodeMap::new(profile),
            relations: RelationTallies::default(),
            work: Work::default(),
            loads: 0,
            last_opened: None,
            marker,
        }
    }

    /// Registers so many callbacks instead of a walsender's; those of syscaches are on the same caches in turn.
    pub(crate) fn register(&mut self, registered: RegisteredCallbacks, profile: &Profile) {
        if let Some(count) = registered.syscache {
            let names = WALSENDER_CALLBACKS.iter().copied().cycle().take(count.into());
            self.callbacks = SyscacheCallbacks::new(self.syscaches.table(), names, profile.callback_search);
        }
        self.relcache_callbacks = registered.relcache.map_or(RELCACHE_CALLBACKS, u64::from);
    }

    /// Whether a message's syscache id exists in this version.
    pub(crate) fn knows(&self, message: &InvalidationMessage) -> bool {
        match message {
            InvalidationMessage::Catcache { cache_id, .. } => self.syscaches.table().id(*cache_id).is_some(),
            _ => true,
        }
    }

    /// Messages and resets so far, which is how often the caches may have lost something.
    fn executed(&self) -> u64 {
        self.work.messages_executed
    }

    /// Executes messages in order.
    pub(crate) fn execute_all(&mut self, messages: &[InvalidationMessage]) {
        for ahead in messages.chunks(TOUCHED_AHEAD) {
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
        if message.concerns(self.database) {
            match *message {
                InvalidationMessage::Catcache { cache_id, hash, .. } => {
                    self.syscaches.invalidate(cache_id, hash, &mut self.work, &self.marker);
                    self.callbacks.call(cache_id, &mut self.work, &self.marker);
                }
                InvalidationMessage::Catalog { catalog, .. } => {
                    for id in self.syscaches.flush_catalog(catalog, &mut self.work) {
                        self.callbacks.call(id, &mut self.work, &self.marker);
                    }
                }
                InvalidationMessage::Relcache { rel, .. } => self.execute_relcache(rel, 1),
                InvalidationMessage::Smgr { .. }
                | InvalidationMessage::Relmap { .. }
                | InvalidationMessage::Snapshot { .. }
                | InvalidationMessage::Relsync { .. } => {}
            }
        }
        self.marker.leave(outer);
    }

    /// A relcache message: the entry, then the callbacks. `messages` is 0 for what a reset does.
    fn execute_relcache(&mut self, rel: Oid, messages: u64) {
        let (dropped, slots, map_dropped) =
            (self.work.entries_dropped, self.work.map_slots_visited, self.work.map_entries_dropped);
        self.relcache.invalidate(rel, &mut self.work, &self.marker);
        self.work.callbacks_visited += self.relcache_callbacks;
        self.work.callbacks_called += self.relcache_callbacks;
        self.map.invalidate(rel, &mut self.work, &self.marker);
        let tally = RelationTally {
            messages,
            rounds: 1,
            dropped: self.work.entries_dropped - dropped,
            map_slots: self.work.map_slots_visited - slots,
            map_dropped: self.work.map_entries_dropped - map_dropped,
            ..RelationTally::default()
        };
        self.relations.add(rel, tally);
    }

    /// `InvalidateSystemCaches`: everything goes, every callback is called.
    pub(crate) fn reset(&mut self) {
        self.syscaches.reset(&mut self.work);
        self.execute_relcache(Oid::INVALID, 0);
        self.callbacks.call_all(&mut self.work);
        self.last_opened = None;
    }

    /// Whether executing `message` would drop anything.
    pub(crate) fn concerned(&self, message: &InvalidationMessage) -> bool {
        message.concerns(self.database)
            && match *message {
                InvalidationMessage::Catcache { cache_id, hash, .. } => self.syscaches.concerned(cache_id, hash),
                InvalidationMessage::Catalog { .. } => self.syscaches.len() > 0,
                InvalidationMessage::Relcache { rel, .. } => self.relcache.concerned(rel) || self.map.concerned(rel),
                _ => false,
            }
    }

    /// Opens the relation of a changed file, loading what is missing: `RelidByRelfilenode`, then `RelationIdGetRelation`.
    /// Gives its number in `relations`, or [`None`] if the file has no relation (`absent` says that it has none now).
    pub(crate) fn open_file(&mut self, file: RelFileLocator, absent: bool, relations: &mut Relations) -> Option<u32> {
        if let Some((last, relation, executed)) = self.last_opened
            && last == file
            && executed == self.executed()
        {
            return Some(relation);
        }
        let outer = self.marker.enter(Function::RelidByRelfilenode);
        let (oid, relation) = self.map.get(file).unwrap_or_else(|| {
            let relation = relations.of_file(file);
            let oid = if absent { Oid::INVALID } else { relations.get(relation).oid };
            self.work.catalog_scans += 1;
            self.loads += 1;
            self.map.insert(file, oid, relation);
            self.relations.mapped(oid);
            (oid, relation)
        });
        let found = oid.is_valid().then_some(relation);
        if found.is_some() {
            self.open_relation(oid, relations.get(relation).namespace);
            self.last_opened = Some((file, relation, self.executed()));
        }
        self.marker.leave(outer);
        found
    }

    /// Whether opening the relation of a changed file would read the catalogs.
    pub(crate) fn must_load_file(&self, file: RelFileLocator) -> bool {
        self.map.get(file).is_none_or(|(oid, _)| oid.is_valid() && !self.relcache.contains(oid))
    }

    /// Whether a relation is loaded.
    pub(crate) fn has_relation(&self, oid: Oid) -> bool {
        self.relcache.contains(oid)
    }

    /// `RelationIdGetRelation`: loads the relation if it is not.
    pub(crate) fn open_relation(&mut self, oid: Oid, namespace: Oid) {
        if self.relcache.contains(oid) {
            return;
        }
        let outer = self.marker.enter(Function::RelationBuildDesc);
        self.relcache.insert(oid);
        self.work.relations_loaded += 1;
        let elsewhere = self.syscaches.load_relation(oid, namespace);
        self.work.catalog_scans += SCANS_TO_BUILD + elsewhere;
        self.relations.loaded(oid, SCANS_TO_BUILD + elsewhere, elsewhere);
        self.loads += 1;
        self.marker.leave(outer);
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
        let (table, rounds) = (self.syscaches.table(), self.relcache_callbacks);
        let syscaches = table.iter().zip(self.syscaches.tallies()).map(|((id, cache), tally)| {
            let mut work = tally.work();
            work += self.callbacks.work_of_cache(id.index());
            share(cache.name, work)
        });
        let name = |oid: Oid| match oid {
            Oid::INVALID => "all relations".into(),
            oid => relations.name_of(oid).unwrap_or_else(|| oid.to_string().into()),
        };
        let mut attribution = Attribution {
            total: self.work,
            caches: syscaches.chain(self.relations.caches(rounds)).collect(),
            relations: self.relations.relations(rounds, name),
            callbacks: self.callbacks.shares(table).into_iter().chain(self.relations.callbacks(rounds)).collect(),
        };
        for shares in [&mut attribution.caches, &mut attribution.relations, &mut attribution.callbacks] {
            shares.retain(|share| share.work != Work::default());
        }
        attribution
    }

    /// Contents now.
    pub(crate) fn contents(&self) -> CacheContents {
        CacheContents { catcaches: self.syscaches.contents(), relcache: self.relcache.contents(), map: self.map.contents() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::NoCatalog;
    use std::sync::Arc;

    fn caches(profile: &str) -> (Caches, Relations) {
        let profile = profile.parse().unwrap();
        let caches = Caches::new(PgVersion::V18, Oid(5), &profile, CurrentFunction::default());
        (caches, Relations::new(Arc::new(NoCatalog), Oid(5)))
    }

    fn file(rel: u32) -> RelFileLocator {
        RelFileLocator { spc: Oid(1663), db: Oid(5), rel }
    }

    #[test]
    fn i2_a_relcache_message_drops_the_relation_and_its_file_and_negatives() {
        for profile in ["pg96", "pg18", "indexed"] {
            let (mut caches, mut relations) = caches(profile);
            assert_eq!(caches.open_file(file(20000), false, &mut relations), Some(0));
            assert_eq!(caches.open_file(file(20000), false, &mut relations), Some(0));
            assert_eq!(caches.open_file(file(20001), true, &mut relations), None);
            assert_eq!((caches.work.relations_loaded, caches.work.catalog_scans), (1, 1 + 2 + 2 + 1));
            let other = InvalidationMessage::Relcache { db: Oid(6), rel: Oid(20000) };
            assert!(!caches.concerned(&other));
            caches.execute(&other);
            assert_eq!(caches.sizes().map_entries, 2, "another database's message does nothing");
            let mine = InvalidationMessage::Relcache { db: Oid(5), rel: Oid(20000) };
            caches.execute(&mine);
            assert!(!caches.concerned(&mine) || profile != "indexed", "I2");
            assert_eq!((caches.sizes().map_entries, caches.sizes().relcache_entries), (0, 0));
            assert_eq!((caches.work.messages_executed, caches.work.callbacks_called), (2, 3), "I1");
            caches.open_file(file(20000), false, &mut relations);
            assert_eq!(caches.work.relations_loaded, 2);
        }
    }

    #[test]
    fn registered_callbacks_are_those_that_are_looked_at() {
        let work = |profile: &str, registered| {
            let (mut caches, _) = caches(profile);
            caches.register(registered, &profile.parse().unwrap());
            caches.execute(&InvalidationMessage::Catcache { db: Oid(5), cache_id: 0, hash: 1 });
            caches.execute(&InvalidationMessage::Relcache { db: Oid(5), rel: Oid(20000) });
            caches.work.callbacks_visited
        };
        let some = |syscache, relcache| RegisteredCallbacks { syscache: Some(syscache), relcache: Some(relcache) };
        // Up to 9.6.3 each message looked at all of them; more than there is room for are not registered.
        assert_eq!(work("pg96", some(30, 2)), 32);
        assert_eq!(work("pg96", some(5, 10)), 15);
        assert_eq!(work("pg96", some(255, 1)), 64 + 1);
        assert_eq!(work("pg14", some(64, 2)), 2, "nobody asked for that cache");
        assert_eq!(work("pg96", RegisteredCallbacks::default()), WALSENDER_CALLBACKS.len() as u64 + RELCACHE_CALLBACKS);
    }

    #[test]
    fn a_reset_empties_everything() {
        let (mut caches, mut relations) = caches("pg14");
        for n in 0..100 {
            caches.open_file(file(20000 + n), false, &mut relations);
        }
        caches.reset();
        let empty = CacheSizes { map_buckets: 100, ..CacheSizes::default() };
        assert_eq!(caches.sizes(), empty, "the map keeps its buckets");
        caches.open_file(file(20099), false, &mut relations);
        assert_eq!(caches.sizes().relcache_entries, 1, "the shortcut of the last file is forgotten too");
    }
}
