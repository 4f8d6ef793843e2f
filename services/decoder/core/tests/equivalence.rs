//! Every profile decodes the same, and those that hand out the same messages leave the same caches.
//!
//! Two groups leave different caches by design, as the servers do: a profile that hands a concurrent transaction no messages
//! keeps entries that others drop, and the messages of a rolled-back savepoint are executed at the end under the rule of 14
//! alone. On logs without either, all profiles leave the same relations loaded and the same files mapped. Catcaches of the rule
//! of 13 may hold more: it drops and loads relations in the middle of a transaction, and each load looks its schema up again.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "equivalence/naive.rs"]
mod naive;
#[path = "equivalence/resume.rs"]
mod resume;
mod support;

use decoder_core::profile::INDEXED_SWITCHES;
use decoder_core::{Decoder, Profile, Share};
use pg_types::{PgVersion, Work};
use proptest::prelude::*;
use support::history::{workload, write};
use support::{Log, decode};

/// Decodes under each profile and wants the same stream and the same caches from all.
fn same_caches(log: &Log, version: PgVersion, profiles: &[&str]) -> Result<(), TestCaseError> {
    let (first, reference) = decode(log, version, profiles[0]);
    for profile in &profiles[1..] {
        let (decoder, given) = decode(log, version, profile);
        prop_assert_eq!(&given.stream, &reference.stream, "{}", profile);
        prop_assert_eq!(decoder.cache_contents(), first.cache_contents(), "{} {}", profiles[0], profile);
    }
    Ok(())
}

/// Wants the rows of each grouping to add up to all work, and leaves to the rest only what no row does.
fn shared_out(decoder: &Decoder, profile: &str) -> Result<(), TestCaseError> {
    let attribution = decoder.attribution();
    prop_assert_eq!(attribution.total, decoder.work());
    let sum = |shares: &[Share]| {
        let mut sum = Work::default();
        shares.iter().for_each(|share| sum += share.work);
        sum
    };
    let (total, caches) = (attribution.total, sum(&attribution.caches));
    for shares in [&attribution.caches, &attribution.relations, &attribution.callbacks] {
        let mut whole = sum(shares);
        whole += attribution.rest(shares);
        prop_assert_eq!(whole, total, "I1 {}", profile);
    }
    // Of these histories every message names a cache or a relation of the database.
    let of_caches = |w: Work| {
        let callbacks = (w.callbacks_visited, w.callbacks_called);
        let entries = (w.caches_searched, w.catcache_entries_visited, w.entries_dropped);
        (
            w.messages_executed,
            callbacks,
            entries,
            (w.map_slots_visited, w.map_entries_dropped, w.map_hits, w.map_misses),
            (w.relations_loaded, w.relations_rebuilt, w.relcache_hits, w.relcache_misses),
            (w.catcache_hits, w.catcache_misses, w.catalogs_loaded),
            w.catalog_scans,
        )
    };
    prop_assert_eq!(of_caches(caches), of_caches(total), "{}", profile);
    let callbacks = sum(&attribution.callbacks);
    let of_callbacks = |w: Work| (w.callbacks_visited, w.callbacks_called, w.map_slots_visited, w.map_entries_dropped);
    prop_assert_eq!(of_callbacks(callbacks), of_callbacks(total), "{}", profile);
    let relations = sum(&attribution.relations);
    let of_relations = |w: Work| (w.relations_loaded, w.relcache_misses, w.map_slots_visited, w.map_entries_dropped);
    prop_assert_eq!(of_relations(relations), of_relations(total), "{}", profile);
    let of_relcache =
        attribution.caches.iter().find(|share| &*share.name == "relcache").map_or(0, |s| s.work.messages_executed);
    prop_assert_eq!(relations.messages_executed, of_relcache, "{}", profile);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn i3_what_is_given_out_does_not_depend_on_the_profile(steps in workload(true)) {
        for version in [PgVersion::V13, PgVersion::V18] {
            let log = write(&steps, version, 4);
            let (_, reference) = decode(&log, version, "indexed");
            for profile in Profile::names().chain(["pg96+small-map", "pg17+on-demand-snapshots", "pg10+collapse-messages", "pg17+pgoutput", "indexed+pgoutput",
                "pg18+discard-caches", "pg18+discard-caches+always-new-snapshots", "pg96+always-new-snapshots+live", "indexed+discard-caches+pgoutput+live"]) {
                let (decoder, given) = decode(&log, version, profile);
                prop_assert_eq!(&given.stream, &reference.stream, "{}", profile);
                let (work, read) = (decoder.work(), decoder.catalog_snapshot_counts());
                prop_assert_eq!(read.historic + read.taken + read.reused, work.catalog_scans, "{}", profile);
                let sum = given.work.iter().map(|(_, work)| work.messages_executed).sum::<u64>();
                prop_assert!(sum <= decoder.work().messages_executed, "I4");
                shared_out(&decoder, profile)?;
            }
        }
    }

    #[test]
    fn a_live_consumer_is_given_the_same_and_caches_no_more(steps in workload(true)) {
        for version in [PgVersion::V13, PgVersion::V18] {
            let log = write(&steps, version, 4);
            for profile in ["pg96", "pg13", "pg14.5", "pg18", "indexed"] {
                let (catch_up, reference) = decode(&log, version, profile);
                let (live, given) = decode(&log, version, &format!("{profile}+live"));
                prop_assert_eq!(&given.stream, &reference.stream, "{}", profile);
                prop_assert!(live.queue_counts().messages > 0 || live.work() == catch_up.work());
                let (few, many) = (live.cache_contents(), catch_up.cache_contents());
                prop_assert!(few.map.iter().all(|entry| many.map.contains(entry)), "{}", profile);
            }
        }
    }

    #[test]
    fn the_five_profiles_leave_the_same_relations(steps in workload(false)) {
        for version in [PgVersion::V13, PgVersion::V18] {
            let log = write(&steps, version, 1);
            same_caches(&log, version, &["pg14", "indexed", "pg14.5", "pg17.5", "pg18+reverse-index"])?;
            same_caches(&log, version, &["pg13", "pg96", "pg10", "pg13.6", "pg96+small-map"])?;
            let contents = |profile| decode(&log, version, profile).0.cache_contents();
            let (old, new) = (contents("pg13"), contents("pg14"));
            prop_assert_eq!((&old.relcache, &old.map), (&new.relcache, &new.map));
            prop_assert!(new.catcaches.iter().all(|entry| old.catcaches.contains(entry)));
        }
    }

    #[test]
    fn profiles_that_hand_out_the_same_leave_the_same_caches(steps in workload(true)) {
        for version in [PgVersion::V13, PgVersion::V18] {
            let log = write(&steps, version, 4);
            same_caches(&log, version, &["pg14", "pg15", "pg16", "pg17", "pg18", "indexed"])?;
            same_caches(&log, version, &["pg96", "pg96+direct-syscache", "pg96+small-map", "pg10", "pg13.6", "pg10+reverse-index"])?;
            same_caches(&log, version, &["pg14.5", "pg15.1", "pg14.5+reverse-index", "pg14.5+collapse-messages", "pg14.5+execute-once"])?;
        }
    }

    /// Ideas of `indexed`, each switched on or not, whatever of the others: the same output and the same caches.
    #[test]
    fn every_combination_of_indexed_ideas_is_given_the_same_and_caches_the_same(steps in workload(true), which in 0..1_u32 << 7) {
        let ideas = INDEXED_SWITCHES.into_iter().chain(["victim-heap"]).enumerate();
        let chosen = ideas.filter(|(i, _)| which >> i & 1 == 1).fold(String::new(), |all, (_, idea)| all + "+" + idea);
        for version in [PgVersion::V13, PgVersion::V18] {
            let log = write(&steps, version, 4);
            for base in ["pg16", "pg13"] {
                same_caches(&log, version, &[base, &format!("{base}{chosen}")])?;
            }
        }
    }
}
