//! From `pg18` to `indexed`, one idea after another: what each lowers, and that nothing rises.

use std::collections::BTreeMap;

use pg_types::PgVersion;
use walstorm_cli::compare;
use walstorm_cli::run::ladder::{INDEXED_STEPS, Ladder};
use walstorm_cli::wal_input::WalInput;

use crate::figures::play;

/// All counters of decoding a scenario at a size, under each profile.
fn counters(scenario: &str, sizes: &[(&str, u64)], profiles: &[&str]) -> Vec<BTreeMap<&'static str, u64>> {
    let log = play(scenario, sizes, PgVersion::V18);
    let mut input = WalInput::open(log.dir(), None, None).unwrap();
    input.callbacks = log.callbacks();
    let profiles: Vec<_> = profiles.iter().map(|profile| profile.parse().unwrap()).collect();
    let (rows, _) = compare::compare(&input, &profiles, log.decoder().work_mem.unwrap_or_default()).unwrap();
    let all = |row: &compare::Row| {
        let built = &row.outcome.snap_build;
        let snapshots =
            [("built", built.built), ("copied", built.copied), ("compared", built.compared), ("moved", built.moved)];
        row.outcome.work.entries().chain(snapshots).collect()
    };
    assert!(rows.iter().all(|row| row.identical_output));
    rows.iter().map(all).collect()
}

/// What messages cost.
const OF_MESSAGES: &[&str] = &[
    "messages_executed",
    "caches_searched",
    "catcache_entries_visited",
    "callbacks_visited",
    "callbacks_called",
    "map_slots_visited",
];

/// What snapshots cost that are handed out.
const OF_SNAPSHOTS: &[&str] =
    &["snapshots_distributed", "snapshot_bytes", "transactions_visited", "built", "copied", "compared"];

/// What each step lowers in `schema-storm`, in the order of the ladder.
const LOWERED: [&[&str]; 6] = [&["map_slots_visited"], OF_MESSAGES, OF_MESSAGES, OF_SNAPSHOTS, &["compared", "copied"], &[]];

#[test]
fn each_step_to_indexed_lowers_what_it_claims_to_and_nothing_rises() {
    let steps: Vec<&str> = ["pg18"].into_iter().chain(INDEXED_STEPS).chain(["indexed"]).collect();
    let rungs: Vec<&str> = Ladder::of("schema-storm").unwrap().rungs.iter().map(|rung| rung.profile).collect();
    assert!(rungs.ends_with(&steps), "the ladder climbs them all: {rungs:?}");
    for (scenario, sizes) in [
        ("schema-storm", &[("tables", 100), ("transactions", 20)][..]),
        ("truncate-partitions", &[("partitions", 20)]),
        ("alter-many", &[("tables", 50)]),
        ("grant-all", &[("tables", 50)]),
        ("long-writer-ddl", &[("changes", 50)]),
        ("catalog-churn", &[("tables", 50), ("transactions", 20), ("grants", 10), ("altered", 10)]),
        ("inval-feedback", &[]),
    ] {
        let works = counters(scenario, sizes, &steps);
        for ((pair, lowered), step) in works.windows(2).zip(LOWERED).zip(&steps[1..]) {
            for (key, before) in &pair[0] {
                let after = pair[1][key];
                // What is kept in order moves others to make room for one that committed late.
                let explained = *key == "moved" && step.ends_with("sorted-committed") && after <= pair[1]["built"];
                assert!(after <= *before || explained, "{scenario}, {step}: {key} rises from {before} to {after}");
                let claimed = lowered.contains(key);
                // One who is not handed a snapshot is not handed its messages; who catches up executes them.
                let with_it = step.ends_with("on-demand-snapshots") && OF_MESSAGES.contains(key);
                assert!(after == *before || claimed || with_it || explained, "{scenario}, {step}: {key}, {before} to {after}");
                assert!(scenario != "schema-storm" || (after < *before) == claimed, "{step}: {key}, {before} to {after}");
            }
        }
        let of = |step: usize, key: &str| works[step][key];
        assert!(of(0, "map_slots_visited") >= 20 * of(1, "map_slots_visited"), "{scenario}");
        let (all, once) = (of(1, "messages_executed"), of(2, "messages_executed"));
        assert!(2 * once >= all && 10 * once <= 6 * all, "{scenario}: each once instead of twice, {all} to {once}");
        let commits = of(0, "built");
        assert!(of(5, "compared") <= commits * (1 + u64::from(commits.ilog2())), "{scenario}: a binary search each");
    }
}
