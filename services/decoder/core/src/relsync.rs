//! What `pgoutput` remembers of each relation: `RelationSyncCache` of `replication/pgoutput/pgoutput.c`.
//!
//! Before it sends a row, `pgoutput` must know whether and how the relation is published, and whether the subscriber has its
//! schema. It looks that up once and keeps it until a message says that it may have changed. A change of a publication may
//! concern any relation. Up to 17 it flushes all entries; but whatever adds a relation to a publication, or takes it out, sends
//! relcache messages for it too, and since 18 renaming a publication sends relsync messages, so that each relation's own suffice.
//!
//! ```text
//!   relcache or relsync message ─► one entry, or all     catcache message of pg_publication… (≤ 17), pg_namespace (≥ 16) ─► all
//! ```
//!
//! Invariants: I1 what is flushed stays, and is built again when the relation's next row is sent; I2 both strategies flush at least
//! what a message names; I3 `valid` counts the entries that need no building.
//!
//! | operation | cost |
//! |---|---|
//! | lookup, message for one | O(1) |
//! | message for all | buckets + entries |
//!
//! Differences from PostgreSQL: what an entry says is known beside the caches ([`crate::publications`]), so that only what building it costs
//! is here; the name of one publication is looked up again whenever `pg_publication` has changed, without a catcache.

use std::cell::Cell;

use pg_types::syscache_id::SysCacheTable;
use pg_types::{Oid, PgVersion};

use crate::dynahash::DynaHash;
use crate::profile::PublicationFlush;

/// Entries that the empty table has room for (`init_rel_sync_cache`).
const INITIAL_SIZE: u32 = 128;

/// WAL has relsync messages, by version.
const RELSYNC_MESSAGES: [bool; PgVersion::ALL.len()] = [false, false, false, false, false, true];

/// What was done to the entries of `pgoutput`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RelsyncCounts {
    /// Entries built, again or for the first time.
    pub built: u64,
    /// Entries flushed.
    pub flushed: u64,
    /// Buckets and entries that whole flushes walked over.
    pub visited: u64,
}

/// The cache.
#[derive(Debug)]
pub(crate) struct RelationSyncCache {
    /// By relation: the entry needs no building (`replicate_valid`).
    table: DynaHash<Oid, Cell<bool>>,
    /// How many need none.
    valid: usize,
    /// Syscaches whose messages flush all.
    flushing: Vec<i8>,
    /// The syscache of publications.
    publicationoid: Option<i8>,
    /// The publications are loaded (`publications_valid`).
    publications_valid: bool,
    /// What was done so far.
    pub(crate) counts: RelsyncCounts,
}

impl RelationSyncCache {
    /// An empty one for WAL of a version.
    pub(crate) fn new(table: &SysCacheTable, flush: PublicationFlush) -> Self {
        let told_apart = RELSYNC_MESSAGES[table.version() as usize];
        let flushing: &[&str] = match flush {
            PublicationFlush::WholeButSchemas => &["PUBLICATIONOID", "PUBLICATIONRELMAP", "PUBLICATIONNAMESPACEMAP"],
            PublicationFlush::Whole => &["NAMESPACEOID", "PUBLICATIONOID", "PUBLICATIONRELMAP", "PUBLICATIONNAMESPACEMAP"],
            PublicationFlush::PerRelation if told_apart => &["NAMESPACEOID"],
            PublicationFlush::PerRelation => &["NAMESPACEOID", "PUBLICATIONOID"],
        };
        let id = |name: &&str| table.id_of(name).map(|id| id.message_id());
        Self {
            table: DynaHash::new(INITIAL_SIZE),
            valid: 0,
            flushing: flushing.iter().filter_map(id).collect(),
            publicationoid: id(&"PUBLICATIONOID"),
            publications_valid: false,
            counts: RelsyncCounts::default(),
        }
    }

    /// `get_rel_sync_entry`: if the entry of `rel` has to be built, whether the publications have to be loaded before.
    pub(crate) fn open(&mut self, rel: Oid) -> Option<bool> {
        let at = self.table.find(&rel).unwrap_or_else(|| self.table.insert(rel, Cell::new(false)));
        let (_, valid) = self.table.slot(at)?;
        if valid.replace(true) {
            return None;
        }
        self.valid += 1;
        self.counts.built += 1;
        Some(!std::mem::replace(&mut self.publications_valid, true))
    }

    /// `rel_sync_cache_relation_cb`: a relcache or relsync message; [`Oid::INVALID`] flushes all.
    pub(crate) fn relation_changed(&mut self, rel: Oid) {
        if !rel.is_valid() {
            self.flush();
        } else if self.table.get(&rel).is_some_and(|valid| valid.replace(false)) {
            self.valid -= 1;
            self.counts.flushed += 1;
        }
    }

    /// `publication_invalidation_cb` and `rel_sync_cache_publication_cb`: a message of a syscache.
    pub(crate) fn syscache_changed(&mut self, cache: i8) {
        if self.publicationoid == Some(cache) {
            self.publications_valid = false;
        }
        if self.flushing.contains(&cache) {
            self.flush();
        }
    }

    /// Flushes all entries.
    fn flush(&mut self) {
        let (visited, _) = self.table.scan(|_, valid| {
            valid.set(false);
            false
        });
        self.counts.visited += visited;
        self.counts.flushed += std::mem::take(&mut self.valid) as u64;
    }

    /// A full reset.
    pub(crate) fn reset(&mut self) {
        self.publications_valid = false;
        self.flush();
    }

    /// Relations whose entries need no building, sorted, and whether the publications are loaded.
    pub(crate) fn contents(&self) -> (Vec<Oid>, bool) {
        let mut all: Vec<Oid> = self.table.iter().filter(|(_, valid)| valid.get()).map(|(rel, _)| *rel).collect();
        all.sort_unstable();
        (all, self.publications_valid)
    }

    /// Whether a message for `rel` would flush anything.
    pub(crate) fn concerned(&self, rel: Oid) -> bool {
        if rel.is_valid() { self.table.get(&rel).is_some_and(Cell::get) } else { self.valid > 0 }
    }

    /// The same for a message of a syscache.
    pub(crate) fn concerned_by(&self, cache: i8) -> bool {
        let publications = self.publications_valid && self.publicationoid == Some(cache);
        publications || self.valid > 0 && self.flushing.contains(&cache)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// The cache, and the id of a syscache of 18 or 17.
    fn cache(version: PgVersion, flush: PublicationFlush) -> (RelationSyncCache, impl Fn(&str) -> i8) {
        let table = SysCacheTable::of(version);
        (RelationSyncCache::new(table, flush), move |name: &str| table.id_of(name).unwrap().message_id())
    }

    #[test]
    fn a_publication_that_changes_flushes_all_or_what_its_messages_name() {
        for (version, flush, of_relmap, of_oid, of_schema) in [
            (PgVersion::V15, PublicationFlush::WholeButSchemas, 10, 10, 0),
            (PgVersion::V17, PublicationFlush::Whole, 10, 10, 10),
            (PgVersion::V17, PublicationFlush::PerRelation, 0, 10, 10),
            (PgVersion::V18, PublicationFlush::PerRelation, 0, 0, 10),
        ] {
            let (mut cache, id) = cache(version, flush);
            let open_all = |cache: &mut RelationSyncCache| (1..=10).filter(|rel| cache.open(Oid(*rel)).is_some()).count();
            assert_eq!(open_all(&mut cache), 10);
            assert_eq!(open_all(&mut cache), 0);
            for (name, built) in
                [("PUBLICATIONRELMAP", of_relmap), ("PUBLICATIONOID", of_oid), ("NAMESPACEOID", of_schema), ("PROCOID", 0)]
            {
                let publications = name == "PUBLICATIONOID";
                assert_eq!(cache.concerned_by(id(name)), built > 0 || publications, "{version} {name}");
                cache.syscache_changed(id(name));
                assert_eq!(cache.publications_valid, !publications, "{version} {name}");
                assert_eq!(open_all(&mut cache), built, "{version} {name}");
                cache.publications_valid = true;
            }
            cache.relation_changed(Oid(3));
            assert_eq!(open_all(&mut cache), 1, "of that relation alone");
            cache.reset();
            assert_eq!(open_all(&mut cache), 10);
        }
    }

    proptest! {
        #[test]
        fn i2_i3_flushes_are_those_of_a_naive_model(steps in prop::collection::vec((0u8..5, 0u32..12), 1..150)) {
            for flush in [PublicationFlush::Whole, PublicationFlush::PerRelation] {
                let (mut cache, id) = cache(PgVersion::V18, flush);
                let (mut model, mut publications) = (BTreeSet::new(), false);
                for (what, rel) in &steps {
                    match what {
                        0 | 1 => {
                            let built = cache.open(Oid(rel + 1));
                            let reload = !publications;
                            prop_assert_eq!(built, model.insert(rel + 1).then_some(reload));
                            publications |= built.is_some();
                        }
                        2 => {
                            cache.relation_changed(Oid(*rel));
                            if *rel == 0 { model.clear() } else { model.remove(rel); }
                        }
                        3 => {
                            cache.syscache_changed(id("PUBLICATIONNAMESPACEMAP"));
                            if flush == PublicationFlush::Whole { model.clear() }
                        }
                        _ => {
                            cache.syscache_changed(id("NAMESPACEOID"));
                            model.clear();
                        }
                    }
                    prop_assert_eq!(cache.valid, model.len(), "I3");
                    prop_assert_eq!(cache.concerned(Oid(rel + 1)), model.contains(&(rel + 1)));
                }
            }
        }
    }
}
