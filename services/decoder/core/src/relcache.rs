//! Loaded relations: `utils/cache/relcache.c`, as far as a decoder needs it.
//!
//! Decoding a change needs the relation's descriptor, built from several catalogs. A relcache message drops one descriptor, or
//! all; the next change of that relation builds it again. Each message also calls the relcache callbacks, and one of them is
//! the relfilenode map's ([`crate::relfilenode_map`]), which is where the time goes.
//!
//! Who reads a relation holds it. What a message finds held cannot be dropped and is rebuilt in its place, at once. The catalogs with
//! which everything else is built are nailed: they are there from the beginning, are marked when a message names them, and read again
//! when something is to be built with them.
//!
//! ```text
//!   message for one ─► held? rebuild : drop            message for all ─► drop what nobody holds
//!                      nailed? mark                                       then rebuild: pg_class, its index, nailed ones, the rest
//! ```
//!
//! Invariants: I1 a relation is here at most once; I2 after a message for a relation it is not here, unless it is held: then whoever
//! executed the message rebuilds it before anything else is done; I3 what is held is here; I4 a build during which a message for
//! its relation came is done again.
//!
//! | operation | cost |
//! |---|---|
//! | lookup, message for one | O(1), and the relations held, which are one or none |
//! | message for all | buckets + entries + nailed ones |
//!
//! Other catalogs that are read meanwhile, and the index with which they are, are loaded from the beginning too, as the init file has them;
//! what a message drops of them is built again when something is to be read in them.
//!
//! Differences from PostgreSQL: nailed relations and catalogs stand beside the table and are not counted with it; that nailed ones are read
//! again is counted ([`RelcacheCounts`]) and is no scan of [`pg_types::Work`]; what building an index looks up beside pg_class and
//! pg_attribute is left out. Lists of entries to be looked at when a transaction ends (`eoxact_list`) are
//! left out: a decoder creates nothing.

use pg_types::syscache_id::catalog;
use pg_types::{Oid, Work};

use crate::dynahash::{DynaHash, HashKey, murmurhash32};
use crate::sampling::{CurrentFunction, Function};

/// `INITRELCACHESIZE`.
const INITIAL_SIZE: u32 = 400;

/// `pg_class_oid_index`.
const CLASS_OID_INDEX: Oid = Oid(2662);

/// `pg_attribute_relid_attnum_index`.
const ATTRIBUTE_INDEX: Oid = Oid(2659);

/// Nailed relations in the order in which a reset rebuilds them: pg_class, its oid index, then the others
/// (`RelationCacheInitializePhase2`, `RelationCacheInitializePhase3`).
pub(crate) const NAILED: [Oid; 22] = [
    catalog::CLASS,
    CLASS_OID_INDEX,
    catalog::ATTRIBUTE,
    catalog::PROC,
    catalog::TYPE,
    ATTRIBUTE_INDEX,
    // pg_index, pg_opclass, pg_amproc, pg_rewrite and pg_trigger: the index with which each is read.
    Oid(2679),
    Oid(2687),
    Oid(2655),
    Oid(2693),
    Oid(2701),
    catalog::DATABASE,
    catalog::AUTHID,
    catalog::AUTH_MEMBERS,
    catalog::SHSECLABEL,
    catalog::SUBSCRIPTION,
    // The indexes of the shared ones.
    Oid(2671),
    Oid(2672),
    Oid(2676),
    Oid(2677),
    Oid(2695),
    Oid(3593),
];

/// The index of pg_class with which the relation of a file is looked up (`pg_class_tblspc_relfilenode_index`).
pub(crate) const CLASS_FILE_INDEX: Oid = Oid(3455);

/// A catalog that is read while changes are decoded, or an index of it, which may have to be loaded first.
struct CatalogRelation {
    /// What it is loaded to read: the catalog, or the index itself.
    to_read: Oid,
    /// Its oid.
    rel: Oid,
    /// The relation map tells its file; otherwise pg_class does, as it is now (`RelationInitPhysicalAddr`).
    mapped: bool,
    /// It is there from the beginning, as all are that syscaches read (`load_relcache_init_file`).
    preloaded: bool,
}

/// A catalog or its index with which a syscache reads it.
const fn of_syscache(to_read: Oid, rel: Oid) -> CatalogRelation {
    CatalogRelation { to_read, rel, mapped: false, preloaded: true }
}

/// Those that are not nailed; of pg_publication the index on names.
const CATALOGS: [CatalogRelation; 11] = [
    CatalogRelation { to_read: CLASS_FILE_INDEX, rel: CLASS_FILE_INDEX, mapped: true, preloaded: false },
    of_syscache(catalog::NAMESPACE, catalog::NAMESPACE),
    of_syscache(catalog::NAMESPACE, Oid(2685)),
    of_syscache(catalog::AM, catalog::AM),
    of_syscache(catalog::AM, Oid(2652)),
    of_syscache(catalog::PUBLICATION, catalog::PUBLICATION),
    of_syscache(catalog::PUBLICATION, Oid(6111)),
    of_syscache(catalog::PUBLICATION_REL, catalog::PUBLICATION_REL),
    of_syscache(catalog::PUBLICATION_REL, Oid(6113)),
    of_syscache(catalog::PUBLICATION_NAMESPACE, catalog::PUBLICATION_NAMESPACE),
    of_syscache(catalog::PUBLICATION_NAMESPACE, Oid(6239)),
];

/// Catalogs and indexes that were loaded to read one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CatalogsLoaded {
    /// How many.
    pub(crate) loaded: u64,
    /// How many of them looked up in pg_class where their file is now.
    pub(crate) by_file: u64,
}

/// What building a relation reads, of those.
const TO_BUILD: [Oid; 4] = [catalog::CLASS, CLASS_OID_INDEX, catalog::ATTRIBUTE, ATTRIBUTE_INDEX];

impl HashKey for Oid {
    fn hash(&self) -> u32 {
        murmurhash32(self.0)
    }
}

/// What was done beside what [`Work`] counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelcacheCounts {
    /// Builds done again, because a message came meanwhile.
    pub built_again: u64,
    /// Nailed relations marked as no longer valid.
    pub nailed_invalidated: u64,
    /// Nailed relations read again.
    pub nailed_reloaded: u64,
}

/// The loaded relations.
#[derive(Debug)]
pub(crate) struct Relcache {
    /// Their schemas, by oid.
    table: DynaHash<Oid, Oid>,
    /// Who is held, as often as it is (`rd_refcnt`).
    held: Vec<Oid>,
    /// Which of [`NAILED`] are valid.
    nailed_valid: [bool; NAILED.len()],
    /// Which of [`CATALOGS`] are loaded.
    catalogs: [bool; CATALOGS.len()],
    /// Relations being built, outermost first, and whether a message for them came (`in_progress_list`).
    in_progress: Vec<(Oid, bool)>,
    /// What was done.
    pub(crate) counts: RelcacheCounts,
}

impl Relcache {
    /// Nothing loaded but what is nailed.
    pub(crate) fn new() -> Self {
        Self {
            table: DynaHash::new(INITIAL_SIZE),
            held: Vec::new(),
            nailed_valid: [true; NAILED.len()],
            catalogs: CATALOGS.map(|catalog| catalog.preloaded),
            in_progress: Vec::new(),
            counts: RelcacheCounts::default(),
        }
    }

    /// Loaded relations.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether `rel` is loaded.
    pub(crate) fn contains(&self, rel: Oid) -> bool {
        self.table.get(&rel).is_some()
    }

    /// The schema of a loaded relation.
    pub(crate) fn namespace_of(&self, rel: Oid) -> Oid {
        self.table.get(&rel).copied().unwrap_or_default()
    }

    /// `RelationIncrementReferenceCount`.
    pub(crate) fn hold(&mut self, rel: Oid) {
        debug_assert!(self.contains(rel), "I3");
        self.held.push(rel);
    }

    /// `RelationClose`.
    pub(crate) fn release(&mut self, rel: Oid) {
        if let Some(at) = self.held.iter().rposition(|held| *held == rel) {
            self.held.swap_remove(at);
        }
    }

    /// `RelationBuildDesc`: `read` reads the catalogs for `rel`, again if a message came for it meanwhile (I4); then it is loaded.
    pub(crate) fn build(&mut self, rel: Oid, namespace: Oid, mut read: impl FnMut(&mut Self)) {
        self.reload_nailed();
        loop {
            self.in_progress.push((rel, false));
            read(self);
            if self.in_progress.pop().is_none_or(|(_, invalidated)| !invalidated) {
                break;
            }
            self.counts.built_again += 1;
        }
        if !self.contains(rel) {
            self.table.insert(rel, namespace);
        }
    }

    /// Reads those nailed relations again that are needed to build others, if they are not valid (`RelationReloadNailed`).
    fn reload_nailed(&mut self) {
        for (rel, valid) in NAILED.iter().zip(&mut self.nailed_valid) {
            if !*valid && TO_BUILD.contains(rel) {
                *valid = true;
                self.counts.nailed_reloaded += 1;
            }
        }
    }

    /// Loads what is needed to read `catalog` and was thrown away; `load` is told each.
    pub(crate) fn open_catalog(&mut self, catalog: Oid, mut load: impl FnMut(Oid)) -> CatalogsLoaded {
        let mut done = CatalogsLoaded::default();
        for (relation, there) in CATALOGS.iter().zip(&mut self.catalogs) {
            if relation.to_read == catalog && !std::mem::replace(there, true) {
                load(relation.rel);
                done.loaded += 1;
                done.by_file += u64::from(!relation.mapped);
            }
        }
        done
    }

    /// The place of `rel` in [`CATALOGS`].
    fn catalog_at(rel: Oid) -> Option<usize> {
        let is_catalog = rel.0 < Oid::FIRST_NORMAL.0;
        is_catalog.then(|| CATALOGS.iter().position(|catalog| catalog.rel == rel)).flatten()
    }

    /// `RelationCacheInvalidateEntry`, or `RelationCacheInvalidate` for [`Oid::INVALID`]. Gives what is held and must be rebuilt now, in
    /// that order (I2).
    pub(crate) fn invalidate(&mut self, rel: Oid, work: &mut Work, marker: &CurrentFunction) -> Vec<Oid> {
        let outer = marker.enter(Function::RelationCacheInvalidateEntry);
        let rebuild = if rel.is_valid() { self.flush(rel, work) } else { self.flush_all(work) };
        marker.leave(outer);
        rebuild
    }

    /// `RelationFlushRelation`.
    fn flush(&mut self, rel: Oid, work: &mut Work) -> Vec<Oid> {
        for (building, invalidated) in &mut self.in_progress {
            *invalidated |= *building == rel;
        }
        if rel.0 < Oid::FIRST_NORMAL.0
            && let Some(at) = NAILED.iter().position(|nailed| *nailed == rel)
        {
            self.mark_nailed(at);
        }
        if let Some(at) = Self::catalog_at(rel) {
            work.entries_dropped += u64::from(std::mem::take(&mut self.catalogs[at]));
        }
        if self.held.contains(&rel) {
            work.relations_rebuilt += 1;
            return vec![rel];
        }
        work.entries_dropped += u64::from(self.table.remove(&rel).is_some());
        Vec::new()
    }

    /// `RelationCacheInvalidate`: first everything that nobody holds goes, then the rest is rebuilt.
    fn flush_all(&mut self, work: &mut Work) -> Vec<Oid> {
        let (_, dropped) = self.table.scan(|rel, _| !self.held.contains(rel));
        let catalogs = std::mem::replace(&mut self.catalogs, [false; CATALOGS.len()]);
        work.entries_dropped += dropped + catalogs.into_iter().map(u64::from).sum::<u64>();
        self.in_progress.iter_mut().for_each(|(_, invalidated)| *invalidated = true);
        (0..NAILED.len()).for_each(|at| self.mark_nailed(at));
        let mut rebuild = self.held.clone();
        rebuild.sort_unstable_by_key(|rel| (NAILED.iter().position(|nailed| nailed == rel).unwrap_or(NAILED.len()), rel.0));
        rebuild.dedup();
        work.relations_rebuilt += rebuild.len() as u64;
        rebuild
    }

    /// A nailed relation is no longer valid; who holds only itself is read again when it is needed.
    fn mark_nailed(&mut self, at: usize) {
        self.counts.nailed_invalidated += u64::from(std::mem::take(&mut self.nailed_valid[at]));
    }

    /// Reads what a message for `rel` will need; see [`crate::relfilenode_map::RelfilenodeMap::touch`].
    pub(crate) fn touch(&self, rel: Oid) -> u32 {
        self.table.touch(&rel)
    }

    /// Whether a message for `rel` would drop anything.
    pub(crate) fn concerned(&self, rel: Oid) -> bool {
        if rel.is_valid() {
            self.contains(rel) || Self::catalog_at(rel).is_some_and(|at| self.catalogs[at])
        } else {
            self.table.len() > 0 || self.catalogs.contains(&true)
        }
    }

    /// Oids of the loaded catalogs and indexes that are not nailed, sorted.
    pub(crate) fn catalogs(&self) -> Vec<Oid> {
        let loaded = CATALOGS.iter().zip(self.catalogs).filter(|(_, loaded)| *loaded);
        let mut all: Vec<Oid> = loaded.map(|(catalog, _)| catalog.rel).collect();
        all.sort_unstable();
        all
    }

    /// Oids of the loaded relations, sorted.
    pub(crate) fn contents(&self) -> Vec<Oid> {
        let mut all: Vec<Oid> = self.table.iter().map(|(oid, _)| *oid).collect();
        all.sort_unstable();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache with some relations.
    fn loaded(rels: impl IntoIterator<Item = u32>) -> (Relcache, Work, CurrentFunction) {
        let mut cache = Relcache::new();
        rels.into_iter().for_each(|rel| cache.build(Oid(rel), Oid(2200), |_| ()));
        (cache, Work::default(), CurrentFunction::default())
    }

    #[test]
    fn i2_messages_drop_one_or_all() {
        let (mut cache, mut work, marker) = loaded(1..=10);
        assert!(cache.concerned(Oid(3)) && !cache.concerned(Oid(30)) && cache.concerned(Oid::INVALID));
        cache.invalidate(Oid(3), &mut work, &marker);
        cache.invalidate(Oid(3), &mut work, &marker);
        assert_eq!((work.entries_dropped, cache.len(), cache.contains(Oid(3))), (1, 9, false));
        cache.invalidate(Oid::INVALID, &mut work, &marker);
        assert_eq!(
            (work.entries_dropped, cache.contents()),
            (10 + 10, vec![]),
            "and the catalogs that are there from the beginning"
        );
        assert!(!cache.concerned(Oid::INVALID));
    }

    #[test]
    fn i2_what_is_held_is_rebuilt_until_its_last_holder_lets_go() {
        let (mut cache, mut work, marker) = loaded([20_000, 20_001, 20_002]);
        [20_001, 20_000, 20_000].into_iter().for_each(|rel| cache.hold(Oid(rel)));
        assert_eq!(cache.invalidate(Oid(20_000), &mut work, &marker), [Oid(20_000)]);
        assert_eq!(cache.invalidate(Oid::INVALID, &mut work, &marker), [Oid(20_000), Oid(20_001)]);
        assert_eq!((work.entries_dropped, cache.contents()), (1 + 10, vec![Oid(20_000), Oid(20_001)]), "I3");
        cache.release(Oid(20_000));
        assert_eq!(cache.invalidate(Oid(20_000), &mut work, &marker), [Oid(20_000)], "held once more");
        cache.release(Oid(20_000));
        assert_eq!(cache.invalidate(Oid(20_000), &mut work, &marker), []);
        assert_eq!((work.entries_dropped, cache.contents(), work.relations_rebuilt), (2 + 10, vec![Oid(20_001)], 4));
    }

    #[test]
    fn a_reset_rebuilds_pg_class_then_its_index_then_nailed_ones_then_the_rest() {
        let held = [20_000, catalog::TYPE.0, CLASS_OID_INDEX.0, 16_384, catalog::CLASS.0];
        let (mut cache, mut work, marker) = loaded(held);
        held.into_iter().for_each(|rel| cache.hold(Oid(rel)));
        let order = cache.invalidate(Oid::INVALID, &mut work, &marker);
        assert_eq!(order, [catalog::CLASS, CLASS_OID_INDEX, catalog::TYPE, Oid(16_384), Oid(20_000)]);
    }

    #[test]
    fn nailed_relations_are_marked_and_read_again_when_something_is_built() {
        let (mut cache, mut work, marker) = loaded([20_000]);
        cache.invalidate(catalog::CLASS, &mut work, &marker);
        cache.invalidate(catalog::CLASS, &mut work, &marker);
        assert_eq!((cache.counts.nailed_invalidated, cache.counts.nailed_reloaded), (1, 0));
        cache.build(Oid(20_001), Oid(2200), |_| ());
        assert_eq!(cache.counts.nailed_reloaded, 1);
        cache.invalidate(Oid::INVALID, &mut work, &marker);
        assert_eq!(cache.counts.nailed_invalidated, 1 + NAILED.len() as u64);
        cache.build(Oid(20_002), Oid(2200), |_| ());
        cache.build(Oid(20_003), Oid(2200), |_| ());
        assert_eq!(cache.counts.nailed_reloaded, 1 + TO_BUILD.len() as u64, "the others when they are needed");
    }

    #[test]
    fn catalogs_are_there_until_a_message_and_loaded_when_they_are_read() {
        let (mut cache, mut work, marker) = loaded([]);
        let loads = |loaded, by_file| CatalogsLoaded { loaded, by_file };
        assert_eq!(cache.open_catalog(catalog::NAMESPACE, |_| ()), loads(0, 0));
        assert_eq!(
            cache.open_catalog(CLASS_FILE_INDEX, |_| ()),
            loads(1, 0),
            "no syscache has this index, and the relation map tells its file"
        );
        for (message, again, of_another) in
            [(catalog::NAMESPACE, 1, 0), (Oid(2685), 1, 0), (Oid::INVALID, 2, 2), (catalog::CLASS, 0, 0)]
        {
            assert_eq!(cache.concerned(message), again > 0);
            cache.invalidate(message, &mut work, &marker);
            assert!(!cache.concerned(message), "I2");
            assert_eq!(cache.open_catalog(catalog::NAMESPACE, |_| ()), loads(again, again), "{message}");
            assert_eq!(cache.open_catalog(catalog::NAMESPACE, |_| ()), loads(0, 0), "{message}");
            assert_eq!(cache.open_catalog(catalog::AM, |_| ()), loads(of_another, of_another), "{message}");
        }
        assert_eq!(work.entries_dropped, 1 + 1 + CATALOGS.len() as u64);
    }

    #[test]
    fn i4_a_build_is_done_again_if_a_message_comes_meanwhile() {
        let (mut cache, mut work, marker) = loaded([]);
        let mut messages = vec![Oid(20_001), Oid(20_000), Oid::INVALID].into_iter();
        let mut reads = 0;
        cache.build(Oid(20_000), Oid(2200), |cache| {
            reads += 1;
            if let Some(rel) = messages.next() {
                cache.invalidate(rel, &mut work, &marker);
            }
        });
        assert_eq!(
            (reads, cache.counts.built_again, cache.contains(Oid(20_000))),
            (1, 0, true),
            "another's message is nothing"
        );
        cache.invalidate(Oid(20_000), &mut Work::default(), &CurrentFunction::default());
        cache.build(Oid(20_000), Oid(2200), |cache| {
            reads += 1;
            if let Some(rel) = messages.next() {
                cache.invalidate(rel, &mut Work::default(), &CurrentFunction::default());
            }
        });
        assert_eq!((reads, cache.counts.built_again), (4, 2), "its own, and one for all");
    }
}
