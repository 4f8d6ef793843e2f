//! What each message drops, what it costs, and caches against a naive model that reads afresh.

use super::*;
use crate::catalog::NoCatalog;
use proptest::prelude::*;
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
        assert_eq!(
            (caches.work.relations_loaded, caches.work.catalog_scans),
            (1, 1 + 2 + 2 + 1 + 1),
            "two files, the index for them, the relation, its access method"
        );
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
        caches.register(registered, &profile.parse().unwrap()).unwrap();
        caches.execute(&InvalidationMessage::Catcache { db: Oid(5), cache_id: 0, hash: 1 });
        caches.execute(&InvalidationMessage::Relcache { db: Oid(5), rel: Oid(20000) });
        caches.work.callbacks_visited
    };
    let some = |syscache, relcache| RegisteredCallbacks { syscache: Some(syscache), relcache: Some(relcache), entries: 0 };
    // Up to 9.6.3 each message looked at all of them.
    assert_eq!(work("pg96", some(30, 2)), 32);
    assert_eq!(work("pg96", some(5, 10)), 15);
    assert_eq!(work("indexed", some(255, 100)), 100, "ours has room, and looks at none in vain");
    assert_eq!(work("pg14", some(64, 2)), 2, "nobody asked for that cache");
    assert_eq!(
        work("pg96", RegisteredCallbacks::default()),
        WALSENDER_CALLBACKS.len() as u64 + u64::from(WALSENDER_RELCACHE_CALLBACKS)
    );
}

#[test]
fn callbacks_that_do_not_fit_in_are_refused_by_release() {
    let refused = |profile: &str, syscache, relcache| {
        let registered = RegisteredCallbacks { syscache: Some(syscache), relcache: Some(relcache), entries: 0 };
        caches(profile).0.register(registered, &profile.parse().unwrap()).err().map(|error| (error.limit, error.max))
    };
    for (profile, max) in
        [("pg96+callbacks-of-2008", 20), ("pg96", 32), ("pg96+callback-chains", 64), ("pg10", 64), ("pg18", 64)]
    {
        assert_eq!(refused(profile, max, 10), None, "{profile}");
        assert_eq!(refused(profile, max + 1, 10), Some(("MAX_SYSCACHE_CALLBACKS", max)), "{profile}");
        assert_eq!(refused(profile, max, 11), Some(("MAX_RELCACHE_CALLBACKS", 10)), "{profile}");
    }
    assert_eq!(refused("indexed", 255, 255), None);
}

/// Catalogs that change: which relation has which file now. File `1000 r + n` is the n-th of relation r.
#[derive(Clone, Debug, Default)]
struct Now(std::collections::BTreeMap<u32, u32>);

impl Now {
    /// Whether some relation has this file.
    fn has(&self, file: u32) -> bool {
        self.0.get(&(file / 1000)) == Some(&file)
    }

    /// What DDL on `rel` makes of its file, and the message that it sends.
    fn change(&mut self, rel: u32, drop: bool) -> InvalidationMessage {
        let next = self.0.get(&rel).map_or(1000 * rel, |file| file + 1);
        if drop {
            self.0.remove(&rel)
        } else {
            self.0.insert(rel, next)
        };
        InvalidationMessage::Relcache { db: Oid(5), rel: Oid(rel) }
    }
}

/// Names every file's relation, as a catalog copy does.
#[derive(Debug)]
struct AllFiles;

impl crate::catalog::Catalog for AllFiles {
    fn by_file(&self, file: RelFileLocator) -> Option<crate::catalog::RelationInfo> {
        self.by_oid(Oid(file.rel / 1000))
    }

    fn by_oid(&self, oid: Oid) -> Option<crate::catalog::RelationInfo> {
        Some(crate::catalog::RelationInfo { oid, namespace: Oid(2200), name: oid.0.to_string().into(), logged: true })
    }
}

/// What caches hold that forget exactly what they must: relations loaded, and which files were found.
#[derive(Debug, Default)]
struct Naive {
    loaded: std::collections::BTreeSet<u32>,
    files: std::collections::BTreeMap<u32, bool>,
    held: Option<u32>,
}

impl Naive {
    /// A message for one relation: it and its files go, and every file without relation; what is held is built anew.
    fn message(&mut self, rel: u32) {
        self.loaded.retain(|loaded| *loaded != rel || self.held == Some(rel));
        self.files.retain(|file, found| *found && file / 1000 != rel);
    }

    /// Everything goes.
    fn reset(&mut self) {
        self.loaded.retain(|loaded| self.held == Some(*loaded));
        self.files.clear();
    }

    /// A file is opened that has a relation or has none.
    fn open(&mut self, file: u32, found: bool) {
        let found = *self.files.entry(file).or_insert(found);
        self.loaded.extend(found.then_some(file / 1000));
    }

    /// The same as the caches show it.
    fn contents(&self) -> (Vec<Oid>, Vec<(Oid, u32, Oid)>) {
        let oid = |(file, found): (&u32, &bool)| (Oid::INVALID, *file, if *found { Oid(file / 1000) } else { Oid::INVALID });
        (self.loaded.iter().copied().map(Oid).collect(), self.files.iter().map(oid).collect())
    }
}

proptest! {
    /// A naive model reads the catalogs afresh: every file that is cached belongs to whom they say, or to nobody; and but for a live
    /// decoder, which hears of changes when it accepts messages alone, be they lost, nothing else is cached or forgotten.
    #[test]
    fn what_is_cached_is_what_a_fresh_reading_gives(steps in prop::collection::vec((0u8..8, 1u32..8, 0u32..3), 1..120)) {
        for profile in ["pg96", "pg18", "indexed", "pg18+pgoutput", "pg96+live", "pg18+live", "indexed+live", "pg18+discard-caches"] {
            let (mut caches, _) = caches(profile);
            let (live, discards) = (caches.queue.is_some(), caches.discard);
            let (mut relations, mut now) = (Relations::new(Arc::new(AllFiles), Oid(5)), Now::default());
            let mut naive = Naive::default();
            for (what, rel, n) in &steps {
                match what {
                    0..=2 => {
                        if let Some(held) = naive.held.take() {
                            caches.release(Oid(held));
                        }
                        caches.accept_invalidation_messages();
                        let asked = 1000 * rel + n;
                        if discards { naive.reset() }
                        let opened = caches.open_file(file(asked), !now.has(asked), &mut relations);
                        // With a reset between its two lookups, the map forgets what it just learned.
                        naive.open(asked, now.has(asked));
                        if discards && now.has(asked) { naive.files.clear() }
                        prop_assert_eq!(opened.is_some(), now.has(asked), "{}", profile);
                        if *what == 0 && opened.is_some() {
                            naive.held = Some(*rel);
                            caches.hold(Oid(*rel));
                        }
                        caches.publish(Oid(*rel), Oid(2200));
                    }
                    3 | 4 => {
                        let message = now.change(*rel, *what == 4);
                        if live { caches.send_shared(&[message]) } else { caches.execute(&message) }
                        naive.message(*rel);
                    }
                    5 => {
                        let foreign = InvalidationMessage::Smgr { backend: -1, locator: file(1) };
                        caches.send_shared(&vec![foreign; 1500 * (*n as usize + 1)]);
                    }
                    6 => {
                        caches.execute(&InvalidationMessage::Relcache { db: Oid(5), rel: Oid::INVALID });
                        naive.reset();
                    }
                    _ => {
                        caches.reset();
                        naive.reset();
                    }
                }
                if *what > 2 && live {
                    continue;
                }
                let contents = caches.contents();
                for (_, cached, oid) in &contents.map {
                    prop_assert_eq!(oid.is_valid(), now.has(*cached), "{} {}", profile, cached);
                }
                if !live {
                    prop_assert_eq!((contents.relcache, contents.map), naive.contents(), "{} after {} of {}", profile, what, rel);
                }
            }
            let (work, read) = (caches.work, caches.catalog_snapshot_counts());
            prop_assert_eq!(work.relcache_misses + work.relations_rebuilt, work.relations_loaded, "{}", profile);
            let snapshots = (work.historic_scans, work.catalog_snapshots_taken, work.catalog_snapshots_reused);
            prop_assert_eq!((read.historic, read.taken, read.reused), snapshots, "{}", profile);
            prop_assert_eq!(read.historic + read.taken + read.reused, work.catalog_scans, "L1 {}", profile);
        }
    }
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
