//! What decoding looks up, and what loading costs: `RelidByRelfilenode`, `RelationIdGetRelation`, `SearchSysCache`, and the snapshot that
//! catalogs are read with.
//!
//! ```text
//!   file ─► relfilenode map ─► relcache ─► AMOID        row shown ─► RELOID, NAMESPACEOID, TYPEOID of each column
//!              └──────────────────┴───────────┴─ miss ────┴─► open the catalog ─► scan ─┬─ historic snapshot: no other is taken
//!                                                                └─ where is its file? ─┴─ catalog snapshot: reused, or taken
//! ```
//!
//! While a transaction is decoded, catalogs are read with its historic snapshot, which takes no other. The exception: where the file of a
//! catalog is must be known as of now, so that building a catalog that the relation map does not tell reads pg_class once more with a
//! catalog snapshot (`ScanPgRelation` with `force_non_historic`), kept by [`pg_types::catalog_snapshot`]'s rule and dropped when the
//! replay ends. So a reset costs more than what it threw away of relations.
//!
//! Invariants: L1 each scan is counted once, with its snapshot: historic scans + taken + reused = scans; L2 [`Caches::loads`] grows with
//! everything put in; L3 what is noted as known needs no lookup: nothing was executed since all of it was found.
//!
//! | operation | cost |
//! |---|---|
//! | row of a relation shown since the last message | O(1) |
//! | row of another | a lookup in each catcache that it needs |
//! | load | its scans |
//!
//! Differences from PostgreSQL: WAL tells neither how many columns a row has nor their types; each is taken to be of the two types of
//! [`TYPES`]. Lookups that one build repeats count once. Not looked up: defaults, constraints, rules, triggers and the replica identity,
//! of which nothing is known; what a session looks up when it starts, as [`pg_types::catalog_snapshot`]'s other owner shows.

use std::convert::Infallible;
use std::sync::Arc;

use pg_types::{CatalogSnapshotCounts, Oid, RelFileLocator, SysCacheId, catalog};

use super::{Caches, SCANS_TO_BUILD};
use crate::attribution::RelationTally;
use crate::historic_catalog::{AsOf, CatalogRead, HistoricCatalog};
use crate::profile::OutputPlugin;
use crate::relations::Relations;
use crate::relcache::{CLASS_FILE_INDEX, RelcacheCounts};
use crate::sampling::Function;
use crate::syscache::SysCaches;

/// The access method of tables (`HEAP_TABLE_AM_OID`).
const HEAP_TABLE_AM: Oid = Oid(2);

/// Types that the columns of each row are taken to have: int4 and text.
const TYPES: [Oid; 2] = [Oid(23), Oid(25)];

/// Whose row in a catalog is looked up.
#[derive(Clone, Copy, Debug)]
enum Key {
    /// The relation's.
    Relation,
    /// Its schema's.
    Namespace,
    /// A type's.
    Type(Oid),
}

impl Key {
    /// Its oid.
    fn of(self, rel: Oid, namespace: Oid) -> Oid {
        match self {
            Self::Relation => rel,
            Self::Namespace => namespace,
            Self::Type(oid) => oid,
        }
    }
}

/// What is looked up, by cache.
#[derive(Debug)]
pub(super) struct Looked {
    /// For the access method of a relation that is built (`RelationInitTableAccessMethod`).
    am: Option<SysCacheId>,
    /// For a relation's row.
    reloid: Option<SysCacheId>,
    /// For a schema's name.
    namespaceoid: Option<SysCacheId>,
    /// For a publication by name.
    publicationname: Option<SysCacheId>,
    /// Lists of the publications of a relation, and of a schema.
    publication_maps: [Option<SysCacheId>; 2],
    /// For each row shown, and how often.
    row: Vec<(SysCacheId, Key, u64)>,
    /// How many lookups these are.
    a_row: u64,
}

impl Looked {
    /// Those of a version for an output plugin: `test_decoding` writes schema, relation and, for each column, its type, and asks for the
    /// type's output function; `pgoutput` only the latter.
    pub(super) fn new(syscaches: &SysCaches, plugin: OutputPlugin) -> Self {
        let id = |name| syscaches.table().id_of(name);
        let (reloid, namespaceoid, typeoid) = (id("RELOID"), id("NAMESPACEOID"), id("TYPEOID"));
        let (names, types) = match plugin {
            OutputPlugin::TestDecoding => (vec![(reloid, Key::Relation, 1), (namespaceoid, Key::Namespace, 1)], 2),
            OutputPlugin::PgOutput => (Vec::new(), 1),
        };
        let all = names.into_iter().chain(TYPES.map(|oid| (typeoid, Key::Type(oid), types)));
        let row: Vec<_> = all.filter_map(|(id, key, n)| Some((id?, key, n))).collect();
        let a_row = row.iter().map(|(.., n)| n).sum();
        let publication_maps = [id("PUBLICATIONRELMAP"), id("PUBLICATIONNAMESPACEMAP")];
        Self { am: id("AMOID"), reloid, namespaceoid, publicationname: id("PUBLICATIONNAME"), publication_maps, row, a_row }
    }

    /// Hits of each cache for so many rows of which everything was known.
    pub(super) fn hits(&self, id: SysCacheId, rows: u64) -> u64 {
        rows * self.row.iter().filter(|(of, ..)| *of == id).map(|(.., n)| n).sum::<u64>()
    }
}

/// Reads catalogs that know what they were, if there are such: [`None`] if not, else the oid of the row if there is one.
fn read(historic: &Option<Arc<dyn HistoricCatalog>>, what: CatalogRead, as_of: AsOf) -> Option<Option<Oid>> {
    historic.as_ref().map(|historic| historic.read(what, as_of))
}

/// Scans and lookups.
impl Caches {
    /// Reads `what` as of now.
    fn read(&self, what: CatalogRead) -> Option<Option<Oid>> {
        read(&self.historic, what, self.as_of)
    }

    /// So many scans with the historic snapshot.
    fn scan_historic(&mut self, scans: u64) {
        self.work.catalog_scans += scans;
        self.work.historic_scans += scans;
        self.catalog_snapshot.scan_historic(scans);
    }

    /// A scan of pg_class as it is now (`GetNonHistoricCatalogSnapshot`).
    fn scan_class_of_now(&mut self) {
        let Ok((taken, _)) = self.catalog_snapshot.scan(catalog::CLASS, 1, self.syscaches.table(), || Ok::<(), Infallible>(()));
        self.work.catalog_scans += 1;
        self.work.catalog_snapshots_taken += u64::from(taken);
        self.work.catalog_snapshots_reused += u64::from(1 - taken);
    }

    /// What catalog snapshots were taken, reused and dropped.
    pub(crate) fn catalog_snapshot_counts(&self) -> CatalogSnapshotCounts {
        *self.catalog_snapshot.counts()
    }

    /// What was done to relations beside what is work.
    pub(crate) fn relcache_counts(&self) -> RelcacheCounts {
        self.relcache.counts
    }

    /// Opens what is needed to read `catalog`, building what was thrown away.
    fn open_catalog(&mut self, catalog: Oid) {
        let (historic, as_of) = (&self.historic, self.as_of);
        let done = self.relcache.open_catalog(catalog, |rel| {
            read(historic, CatalogRead::Relation(rel), as_of);
        });
        if done.loaded == 0 {
            return;
        }
        let scans = done.loaded * SCANS_TO_BUILD;
        self.scan_historic(scans);
        (0..done.by_file).for_each(|_| self.scan_class_of_now());
        self.work.catalogs_loaded += done.loaded;
        self.loads += done.loaded;
        let scans = scans + done.by_file;
        self.relations.add(catalog, RelationTally { catalogs: done.loaded, scans, ..RelationTally::default() });
    }

    /// A catcache lacked something: its catalog is scanned. Gives the scans for it.
    fn missed(&mut self, cache: SysCacheId) -> u64 {
        self.open_catalog(self.syscaches.table().cache(cache).catalog);
        self.scan_historic(1);
        self.work.catcache_misses += 1;
        self.loads += 1;
        1
    }

    /// Counts a lookup in `cache` that `found` something or scans; gives the scans.
    fn looked_up(&mut self, cache: SysCacheId, found: bool) -> u64 {
        self.work.catcache_hits += u64::from(found);
        if found { 0 } else { self.missed(cache) }
    }

    /// `SearchSysCache1`; gives the scans that it took. A version without the cache looks nothing up.
    fn look_up(&mut self, cache: Option<SysCacheId>, key: Oid) -> u64 {
        let Some(cache) = cache else { return 0 };
        let (historic, as_of) = (&self.historic, self.as_of);
        let exists = || read(historic, CatalogRead::Row(cache, key), as_of) != Some(None);
        let found = self.syscaches.look_up(cache, key, exists);
        self.looked_up(cache, found)
    }

    /// `SearchSysCacheList1`, the same.
    fn look_up_list(&mut self, cache: Option<SysCacheId>, key: Oid) -> u64 {
        let Some(cache) = cache else { return 0 };
        let found = self.syscaches.look_up_list(cache, key);
        if !found {
            self.read(CatalogRead::List(cache, key));
        }
        self.looked_up(cache, found)
    }

    /// The same for a relation's own row, which the transaction itself may have written.
    fn look_up_relation(&mut self, rel: Oid) -> u64 {
        let scans = self.look_up(self.looked.reloid, rel);
        self.own_rows(rel, scans);
        scans
    }

    /// So many rows of `rel` were read in catalogs; those that the transaction wrote itself are looked up.
    fn own_rows(&mut self, rel: Oid, rows: u64) {
        if rows > 0 && self.own_relations.contains(&rel) {
            self.work.tuple_cid_lookups += rows;
        }
    }
}

/// What is opened.
impl Caches {
    /// Opens the relation of a changed file, loading what is missing: `RelidByRelfilenode`, then `RelationIdGetRelation`.
    /// Gives its number in `relations`, or [`None`] if the file has no relation (`absent` says that it has none now).
    pub(crate) fn open_file(&mut self, file: RelFileLocator, absent: bool, relations: &mut Relations) -> Option<u32> {
        self.discard();
        if let Some((last, relation, generation)) = self.last_opened
            && last == file
            && generation == self.generation
        {
            self.look_up_again(1);
            return Some(relation);
        }
        let outer = self.marker.enter(Function::RelidByRelfilenode);
        let known = self.map.get(file);
        self.work.map_hits += u64::from(known.is_some());
        let (oid, relation) = known.unwrap_or_else(|| self.map_file(file, absent, relations));
        let found = oid.is_valid().then_some(relation);
        if found.is_some() {
            self.open_relation(oid, relations.get(relation).namespace);
            self.last_opened = Some((file, relation, self.generation));
        }
        self.marker.leave(outer);
        found
    }

    /// The map does not know `file`: pg_class does.
    fn map_file(&mut self, file: RelFileLocator, absent: bool, relations: &mut Relations) -> (Oid, u32) {
        let (oid, relation) = match self.read(CatalogRead::File(file)) {
            Some(Some(oid)) => (oid, relations.of_oid(oid)),
            Some(None) => (Oid::INVALID, relations.of_file(file)),
            None => {
                let relation = relations.of_file(file);
                (if absent { Oid::INVALID } else { relations.get(relation).oid }, relation)
            }
        };
        self.work.map_misses += 1;
        self.open_catalog(CLASS_FILE_INDEX);
        self.scan_historic(1);
        self.loads += 1;
        self.map.insert(file, oid, relation);
        self.relations.mapped(oid);
        self.own_rows(oid, 1);
        (oid, relation)
    }

    /// Whether opening the relation of a changed file would read the catalogs.
    pub(crate) fn must_load_file(&self, file: RelFileLocator) -> bool {
        self.map.get(file).is_none_or(|(oid, _)| oid.is_valid() && !self.relcache.contains(oid))
    }

    /// Whether showing a row of an open relation would: number, oid and schema.
    pub(crate) fn must_load_names(&self, (number, rel, namespace): (u32, Oid, Oid)) -> bool {
        let lacks = |(cache, key, _): &(SysCacheId, Key, u64)| !self.syscaches.has(*cache, key.of(rel, namespace));
        !self.is_known(number) && self.looked.row.iter().any(lacks)
    }

    /// Whether a message for `rel` would flush something of `pgoutput`.
    pub(super) fn publishes(&self, rel: Oid) -> bool {
        self.relsync.as_ref().is_some_and(|relsync| relsync.concerned(rel))
    }

    /// The relation opened last is looked up `n` times more, as for each row of a record, and found.
    pub(crate) fn look_up_again(&mut self, n: u64) {
        self.work.map_hits += n;
        self.work.relcache_hits += n;
    }

    /// A relation that is open is used: what is said of it meanwhile rebuilds it.
    pub(crate) fn hold(&mut self, oid: Oid) {
        self.relcache.hold(oid);
    }

    /// `RelationClose`.
    pub(crate) fn release(&mut self, oid: Oid) {
        self.relcache.release(oid);
    }

    /// Whether a relation is loaded.
    pub(crate) fn has_relation(&self, oid: Oid) -> bool {
        self.relcache.contains(oid)
    }

    /// `RelationIdGetRelation`: loads the relation if it is not.
    pub(crate) fn open_relation(&mut self, oid: Oid, namespace: Oid) {
        self.discard();
        if self.relcache.contains(oid) {
            self.work.relcache_hits += 1;
            return;
        }
        self.work.relcache_misses += 1;
        let scans = self.build(oid, namespace);
        self.relations.add(oid, RelationTally { misses: 1, scans, ..RelationTally::default() });
    }

    /// Builds relations that are in use anew, in this order (`RelationRebuildRelation`).
    pub(super) fn rebuild(&mut self, rels: Vec<Oid>) {
        for rel in rels {
            let scans = self.build(rel, self.relcache.namespace_of(rel));
            self.relations.add(rel, RelationTally { rebuilt: 1, scans, ..RelationTally::default() });
        }
    }

    /// `RelationBuildDesc`: pg_class and pg_attribute are scanned, its access method is looked up. Gives the scans of the former.
    fn build(&mut self, oid: Oid, namespace: Oid) -> u64 {
        let (outer, mut reads) = (self.marker.enter(Function::RelationBuildDesc), 0);
        let (historic, as_of) = (&self.historic, self.as_of);
        self.relcache.build(oid, namespace, |_| {
            read(historic, CatalogRead::Relation(oid), as_of);
            reads += 1;
        });
        let scans = reads * SCANS_TO_BUILD;
        self.scan_historic(scans);
        self.own_rows(oid, scans);
        let missed = self.look_up(self.looked.am, HEAP_TABLE_AM);
        self.relations.missed(oid, missed);
        self.work.relations_loaded += 1;
        self.loads += 1;
        self.marker.leave(outer);
        scans
    }
}

/// What is shown.
impl Caches {
    /// Whether everything that a row of relation `number` needs is known to be there (L3).
    fn is_known(&self, number: u32) -> bool {
        self.known.get(number as usize) == Some(&self.generation)
    }

    /// What the output plugin looks up for so many rows of an open relation.
    pub(crate) fn show_rows(&mut self, number: u32, rel: Oid, namespace: Oid, rows: u64) {
        self.publish(rel, namespace);
        if !self.is_known(number) {
            self.look_up_row(rel, namespace);
            if self.known.len() <= number as usize {
                self.known.resize(number as usize + 1, u64::MAX);
            }
            self.known[number as usize] = self.generation;
        } else {
            self.rows_known += 1;
            self.work.catcache_hits += self.looked.a_row;
        }
        let more = rows.saturating_sub(1);
        self.rows_known += more;
        self.work.catcache_hits += more * self.looked.a_row;
    }

    /// Everything that the first of some rows needs.
    fn look_up_row(&mut self, rel: Oid, namespace: Oid) {
        let mut scans = 0;
        for at in 0..self.looked.row.len() {
            let (cache, key, n) = self.looked.row[at];
            scans += match key {
                Key::Relation => self.look_up_relation(rel),
                _ => self.look_up(Some(cache), key.of(rel, namespace)),
            };
            self.syscaches.hit(cache, n - 1);
            self.work.catcache_hits += n - 1;
        }
        self.relations.missed(rel, scans);
    }

    /// What it looks up for an open relation that is truncated.
    pub(crate) fn show_truncate(&mut self, rel: Oid, namespace: Oid) {
        self.publish(rel, namespace);
        if self.relsync.is_none() {
            let scans = self.look_up_relation(rel) + self.look_up(self.looked.namespaceoid, namespace);
            self.relations.missed(rel, scans);
        }
    }

    /// What `pgoutput` looks up before it sends something of a relation (`get_rel_sync_entry`, `maybe_send_schema`).
    pub(crate) fn publish(&mut self, rel: Oid, namespace: Oid) {
        if self.relsync.is_none() {
            return;
        }
        self.discard();
        let Some(reload) = self.relsync.as_mut().and_then(|relsync| relsync.open(rel)) else { return };
        let mut scans = 0;
        if let Some(cache) = self.looked.publicationname.filter(|_| reload) {
            self.syscaches.miss(cache);
            self.read(CatalogRead::Publications);
            scans += self.missed(cache);
        }
        self.read(CatalogRead::Published(rel));
        let [of_relation, of_schema] = self.looked.publication_maps;
        scans += self.look_up_relation(rel);
        scans += self.look_up_list(of_relation, rel) + self.look_up_list(of_schema, namespace);
        scans += self.look_up(self.looked.namespaceoid, namespace);
        self.loads += 1;
        self.relations.missed(rel, scans);
    }
}
