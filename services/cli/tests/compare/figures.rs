//! Incidents of which real servers' figures are known: that the simulated log of each costs what a real one does, step by step, and
//! that the work grows, and falls from version to version, as the servers' CPU time did.
//!
//! The real logs are made by `data/figures/record.py`, which tells what each case is; servers: 13.23, 15.18, 18.6.

use std::path::Path;

use decoder_core::{Profile, RegisteredCallbacks, WorkMem};
use pg_types::{PgVersion, Work};
use primary_core::{Overrides, ParameterValue, Scenario};
use walstorm_cli::compare;
use walstorm_cli::scenario_log::ScenarioLog;
use walstorm_cli::wal_input::{Decoding, WalInput};

use super::relsync::unpack;

/// Versions whose logs are recorded.
const VERSIONS: [PgVersion; 3] = [PgVersion::V13, PgVersion::V15, PgVersion::V18];

/// A case of `record.py`, and the scenario that is the same at its size.
type Case = (&'static str, &'static str, &'static [(&'static str, u64)]);
/// All of them.
const CASES: [Case; 3] = [
    ("truncate", "truncate-partitions", &[("partitions", 40), ("rows", 2)]),
    ("full", "schema-storm", &[("tables", 20), ("transactions", 5)]),
    ("empty", "schema-storm", &[("tables", 20), ("transactions", 5), ("decoded", 0)]),
];

/// Plays a scenario.
pub(crate) fn play(text: &str, sizes: &[(&str, u64)], version: PgVersion) -> ScenarioLog {
    let scenario = Scenario::load(text).unwrap();
    let overrides: Overrides = sizes.iter().map(|(name, value)| ((*name).to_owned(), ParameterValue::Number(*value))).collect();
    ScenarioLog::play(&scenario, &overrides, scenario.seed(), version).unwrap()
}

/// The work of decoding a directory under each profile.
fn work(dir: &Path, callbacks: RegisteredCallbacks, profiles: &[Profile]) -> Vec<Work> {
    let mut input = WalInput::open(dir, None, None).unwrap();
    input.callbacks = callbacks;
    let (rows, _) = compare::compare(&input, profiles, WorkMem::default()).unwrap();
    assert!(rows.iter().all(|row| row.identical_output));
    rows.iter().map(|row| row.outcome.work).collect()
}

/// The work of decoding a scenario's log.
fn simulated(log: &ScenarioLog, profiles: &[Profile]) -> Vec<Work> {
    work(log.dir(), log.callbacks(), profiles)
}

/// The fixed profiles.
fn all_profiles() -> Vec<Profile> {
    Profile::names().map(|name| name.parse().unwrap()).collect()
}

#[test]
fn a_simulated_log_costs_what_the_real_one_does() {
    let profiles = all_profiles();
    for version in VERSIONS {
        let folder = unpack("figures", version);
        for (case, scenario, sizes) in CASES {
            let log = play(scenario, sizes, version);
            let real = work(&folder.path().join(case), log.callbacks(), &profiles);
            for ((profile, mut real), simulated) in profiles.iter().zip(real).zip(simulated(&log, &profiles)) {
                assert!(real.messages_executed > 0 && real.relations_loaded > 0 || case == "empty");
                // Which entries share a bucket with a message's depends on oids and names.
                real.catcache_entries_visited = simulated.catcache_entries_visited;
                assert_eq!(real, simulated, "{version} {case} {}", profile.name);
            }
            // What the rule of 13 executes of the real log to what that of 14 does: each at three commands a partition or at eleven or twelve a
            // transaction, and at the end, instead of twice.
            let of = |profile: &str| {
                work(&folder.path().join(case), log.callbacks(), &[profile.parse().unwrap()])[0].messages_executed
            };
            let (least, most) = if case == "truncate" { (3.0 * 40.0 / 2.0, 3.0 * 40.0 / 2.0 + 0.5) } else { (6.0, 6.5) };
            let ratio = of("pg13") as f64 / of("pg14") as f64;
            assert!((least..=most).contains(&ratio), "{version} {case}: {ratio}");
        }
    }
}

/// Messages of one commit on 13, on 14 to 17, and on 18, as servers logged them.
fn messages_per_commit(version: PgVersion) -> u64 {
    match version {
        PgVersion::V13 => 144,
        PgVersion::V14 | PgVersion::V15 | PgVersion::V16 | PgVersion::V17 => 139,
        PgVersion::V18 => 142,
    }
}

/// The exponent of growth when a size doubled.
fn exponent(before: u64, after: u64) -> f64 {
    (after as f64 / before as f64).log2()
}

/// TRUNCATE of N of 2,000 partitions on servers: CPU grew with N to the power of 2.02 on 13.23, of at most 1.2 on 18.4. There the map had
/// been emptied, since 13·N messages were more than the shared queue holds: each relcache message walked over its buckets.
#[test]
fn truncate_grows_with_the_square_up_to_13_and_in_line_with_n_after() {
    let text = Scenario::load("truncate-partitions").unwrap().text().to_owned();
    // N of 2 × 50 partitions: half of a parent's, all of one's, all of both.
    let of = |truncated: u64, version, profile: &str| {
        let n = truncated.min(50);
        let both =
            if truncated > n { format!(", {{ truncate = {{ table = \"readings_{{1..{n}}}\" }} }}") } else { String::new() };
        let steps = format!("steps = [{{ truncate = {{ table = \"measurements_{{1..{n}}}\" }} }}{both}]");
        let text = text.replace("steps = [{ truncate = { table = \"measurements\" } }]", &steps);
        // What the shipped file expects is about all partitions of one parent.
        let text = &text[..text.find("# Per partition six").unwrap()];
        let log = play(text, &[("partitions", 50), ("rows", 1)], version);
        simulated(&log, &[profile.parse().unwrap()])[0]
    };
    for (version, profile, times, least, most) in [
        (PgVersion::V13, "pg13", 13, 1.95, 2.02),
        (PgVersion::V13, "pg10", 13, 1.95, 2.02),
        (PgVersion::V14, "pg14", 11, 1.0, 1.0),
        (PgVersion::V18, "pg18", 11, 1.0, 1.0),
        (PgVersion::V18, "indexed", 11, 1.0, 1.0),
    ] {
        let [half, one, two] = [25, 50, 100].map(|n| of(n, version, profile));
        for (before, after) in [(&half, &one), (&one, &two)] {
            let exponent = exponent(before.messages_executed, after.messages_executed);
            assert!((least..=most).contains(&exponent), "{profile} on {version}: {exponent:.3}");
        }
        for work in [half, one, two] {
            let walked = work.map_slots_visited as f64 / (work.messages_executed * 5 / times) as f64;
            let scans = profile != "indexed";
            assert!(
                !scans || (100.0..=200.0).contains(&walked),
                "{profile} on {version}: 100 buckets, 0 to 100 entries, {walked}"
            );
            assert!(scans || walked <= 4.0, "{profile} on {version}: {walked}");
        }
    }
}

/// The same of logs that servers wrote: TRUNCATE of 20, 40 and 80 of two parents' 40 partitions each, every row of which was decoded before.
#[test]
fn real_truncates_grow_as_simulated_ones() {
    for version in VERSIONS {
        let folder = unpack("figures", version);
        let input = WalInput::open(&folder.path().join("growth"), None, None).unwrap();
        let per_partition = if version == PgVersion::V13 { 13 } else { 11 };
        // At how many commands of each partition all messages are executed, and how often besides.
        for (profile, exponents, commands, besides) in
            [("pg13", 1.95..=2.02, 3, 1), ("pg14", 1.0..=1.0, 0, 2), ("pg18", 1.0..=1.0, 0, 2), ("indexed", 1.0..=1.2, 0, 1)]
        {
            let mut truncates: Vec<Work> = Vec::new();
            let decoding = Decoding::at_commit(&profile.parse().unwrap(), WorkMem::default());
            let keep = &mut |t: &decoder_core::DecodedTransaction| {
                if t.messages.invalidations() >= 200 {
                    truncates.push(t.work);
                }
            };
            compare::measure(&input, &decoding, None, keep).unwrap();
            assert_eq!(truncates.len(), 3, "{profile} on {version}");
            let messages: Vec<u64> = truncates.iter().map(|work| work.messages_executed).collect();
            println!(
                "{version} {profile} {messages:?} {:?}",
                truncates.iter().map(|w| w.map_slots_visited).collect::<Vec<_>>()
            );
            for (n, executed) in [20, 40, 80].into_iter().zip(&messages) {
                let all = per_partition * n * (commands * n + besides);
                // `indexed` leaves out those of what is not loaded.
                let least = if profile == "indexed" { 9 * n } else { all };
                assert!((least..=all).contains(executed), "{profile} on {version}: {n} partitions, {executed}");
            }
            for pair in messages.windows(2) {
                let exponent = exponent(pair[0], pair[1]);
                assert!(exponents.contains(&exponent), "{profile} on {version}: {exponent:.3}");
            }
        }
    }
}

/// Schema changes beside a decoder with N tables in its map: on servers the full map of 10,000 cost 40 (13.23) and 10 (18.4) times the
/// empty one, 13.23 cost 4.7 times what 14.23 did, and `hash_seq_search` led in every version.
#[test]
fn a_storm_of_schema_changes_costs_by_messages_and_map() {
    let transactions = 10;
    let storm = |tables, decoded, version, profile: &str| {
        let sizes = [("tables", tables), ("transactions", transactions), ("decoded", decoded)];
        let log = play("schema-storm", &sizes, version);
        simulated(&log, &[profile.parse().unwrap()])[0]
    };
    for version in PgVersion::ALL {
        let messages = messages_per_commit(version) * transactions;
        for (profile, times) in [("pg13", 12..=13), ("pg14", 2..=2), ("pg18", 2..=2)] {
            let empty = storm(100, 0, version, profile);
            let full = [128, 256, 512].map(|tables| storm(tables, 1, version, profile));
            // At each of eleven or twelve commands and at the end, or at its place and at the end; whatever the map holds.
            for work in full.iter().chain([&empty]) {
                assert_eq!(work.messages_executed % messages, 0, "{profile} on {version}");
                assert!(times.contains(&(work.messages_executed / messages)), "{profile} on {version}: {work:?}");
            }
            // A map of 64 buckets is walked over when it is empty; one of N entries has N buckets at least.
            let [a, b, c] = full.map(|work| work.map_slots_visited as f64);
            for (before, after) in [(a, b), (b, c)] {
                assert!((1.95..=2.05).contains(&(after / before)), "{profile} on {version}: {before} {after}");
            }
            assert!(a >= 3.5 * empty.map_slots_visited as f64, "{profile} on {version}: 128 of 256 against 64");
        }
        let indexed = [128, 512].map(|tables| storm(tables, 1, version, "indexed").map_slots_visited);
        assert_eq!(indexed[0], indexed[1], "{version}: what is in the map costs nothing");
    }
}

/// CPU seconds of walsenders that decoded 500 transactions of schema changes with a map of 10,000 relations, and with an empty one: 12.22,
/// 13.23, 14.23, 15.18, 16.14, 17.10, 18.4. Of 12 there is no log; its rule is that of 13.
const STORM_SECONDS: [(PgVersion, &str, f64, f64); 7] = [
    (PgVersion::V13, "pg10", 4.30, 0.11),
    (PgVersion::V13, "pg13", 4.07, 0.10),
    (PgVersion::V14, "pg14", 0.86, 0.08),
    (PgVersion::V15, "pg15", 0.78, 0.08),
    (PgVersion::V16, "pg16", 0.78, 0.09),
    (PgVersion::V17, "pg17", 0.78, 0.08),
    (PgVersion::V18, "pg18", 0.93, 0.09),
];

/// Slots of the map that the storm walks over at the size that was measured. Counted at a small one: each transaction adds as many, and they
/// grow in line with the tables.
fn storm_slots(version: PgVersion, profile: &str) -> f64 {
    let of = |tables, transactions| {
        let log = play("schema-storm", &[("tables", tables), ("transactions", transactions)], version);
        simulated(&log, &[profile.parse().unwrap()])[0].map_slots_visited as f64
    };
    let [a, b, c] = [128, 256, 512].map(|tables| of(tables, 4));
    assert!(((c - b) / (b - a) - 2.0).abs() < 0.02, "{version}: in line with the tables: {a} {b} {c}");
    assert!((of(128, 8) / a - 2.0).abs() < 0.02, "{version}: in line with the transactions");
    (c + (c - b) / 256.0 * (10_000.0 - 512.0)) * 500.0 / 4.0
}

/// From one server's time, 15.18's, what a slot takes; from counters then the times of all, and their ratios.
#[test]
fn what_servers_took_for_a_storm_follows_from_slots_within_15_per_cent() {
    let slots = STORM_SECONDS.map(|(version, profile, ..)| storm_slots(version, profile));
    let (_, _, full, empty) = STORM_SECONDS[3];
    let of_slot = (full - empty) / slots[3];
    assert!((1.5e-9..1.8e-9).contains(&of_slot), "{of_slot}");
    let predicted: Vec<f64> = STORM_SECONDS.iter().zip(slots).map(|((.., empty), slots)| empty + slots * of_slot).collect();
    for ((version, profile, full, empty), predicted) in STORM_SECONDS.iter().zip(&predicted) {
        let near = |a: f64, b: f64| (0.85..=1.15).contains(&(a / b));
        assert!(near(*predicted, *full), "{profile} on {version}: {predicted:.2} s, the server {full}");
        assert!(near(predicted / empty, full / empty), "{profile} on {version}: full to empty");
    }
    // 40 and 10 times the empty map on 13.23 and 18.4; 13.23 took 4.7 times what 14.23 did, and walks over six times the slots: the same ones
    // again soon after, out of the CPU's caches.
    assert!((34.0..=47.0).contains(&(predicted[1] / 0.10)) && (8.5..=11.5).contains(&(predicted[6] / 0.09)), "{predicted:?}");
    assert!((4.7..=4.7 * 1.3).contains(&(predicted[1] / predicted[2])), "{predicted:?}");
    assert!((5.99..=6.01).contains(&(slots[1] / slots[2])), "at eleven commands and at the end, or twice: {slots:?}");
}

/// CPU seconds of walsenders from before the TRUNCATE of N of 2,000 partitions to its COMMIT, each of them with a row that had been decoded.
const TRUNCATE_SECONDS: [(PgVersion, &str, u64, f64); 10] = [
    (PgVersion::V13, "pg13", 500, 4.48),
    (PgVersion::V13, "pg13", 1000, 18.2),
    (PgVersion::V13, "pg13", 2000, 74.2),
    (PgVersion::V14, "pg14", 1000, 0.044),
    (PgVersion::V15, "pg15", 1000, 0.048),
    (PgVersion::V16, "pg16", 1000, 0.046),
    (PgVersion::V17, "pg17", 1000, 0.046),
    (PgVersion::V18, "pg18", 500, 0.033),
    (PgVersion::V18, "pg18", 1000, 0.049),
    (PgVersion::V18, "pg18", 2000, 0.111),
];

/// Slots of an emptied map of 2,048 buckets that a TRUNCATE walks over: counted at 64 of 128 partitions, messages and buckets apart.
fn truncate_slots(version: PgVersion, profile: &str, truncated: u64) -> f64 {
    let log = play("truncate-partitions", &[("partitions", 64), ("rows", 1)], version);
    let work = simulated(&log, &[profile.parse().unwrap()])[0];
    // Five messages of each partition are of relations. What is executed is counted in one that is as large as the server's.
    let per_partition = if version == PgVersion::V13 { 13 } else { 11 };
    let at_64 = work.messages_executed / (64 * per_partition);
    let executions = if at_64 == 2 { 2 } else { 3 * truncated + 1 };
    assert!(at_64 == 2 || at_64 == 3 * 64 + 1, "{profile} on {version}: {at_64}");
    (5 * truncated * executions * 2048) as f64
}

/// From 13.23's time at N = 1,000 what a bucket takes, from 14.23's what is not the map's of a partition; from counters then the times of all.
#[test]
fn what_servers_took_for_truncate_follows_from_slots() {
    let slots = TRUNCATE_SECONDS.map(|(version, profile, n, _)| truncate_slots(version, profile, n));
    let of_bucket = TRUNCATE_SECONDS[1].3 / slots[1];
    let of_partition = (TRUNCATE_SECONDS[3].3 - slots[3] * of_bucket) / 1000.0;
    assert!((0.5e-9..0.7e-9).contains(&of_bucket) && (25e-6..40e-6).contains(&of_partition), "{of_bucket} {of_partition}");
    let predicted: Vec<f64> =
        TRUNCATE_SECONDS.iter().zip(slots).map(|((_, _, n, _), slots)| *n as f64 * of_partition + slots * of_bucket).collect();
    for ((version, profile, n, measured), predicted) in TRUNCATE_SECONDS.iter().zip(&predicted) {
        // Those of 18 grow by 1.5 and 2.3 times where N doubles, and slots and partitions twofold.
        let least = if *n != 1000 && *profile == "pg18" { 0.65 } else { 0.85 };
        assert!(
            (least..=1.15).contains(&(predicted / measured)),
            "{profile} on {version}, {n}: {predicted:.3} s, the server {measured}"
        );
    }
    // 18.2 s to 46 ms.
    let ratio = predicted[1] / predicted[5];
    assert!((0.85..=1.15).contains(&(ratio / (18.2 / 0.046))), "{ratio}");
}

/// A walsender that is idle while 11 messages for each of N partitions pass through a queue of 4,096 is reset: its map is emptied and keeps its
/// buckets, so that each scan walks over N of each parent. Before N = 373 it walks over what is in it, too.
#[test]
fn a_walsender_that_was_reset_walks_over_empty_buckets() {
    for (n, resets) in [(256, 0), (512, 1)] {
        let log = play("truncate-partitions", &[("partitions", n), ("rows", 1)], PgVersion::V18);
        let mut input = WalInput::open(log.dir(), None, None).unwrap();
        input.callbacks = log.callbacks();
        let profiles = ["pg18", "pg18+live"].map(|profile| profile.parse().unwrap());
        let (rows, _) = compare::compare(&input, &profiles, WorkMem::default()).unwrap();
        assert_eq!(rows[1].outcome.queue.resets, resets, "{n}");
        let scans = (2 * 5 * n) as f64;
        let [catch_up, live] = [0, 1].map(|at: usize| rows[at].outcome.work.map_slots_visited as f64 / scans / (2 * n) as f64);
        assert!((1.5..=1.9).contains(&catch_up), "{n}: 2 N buckets, and entries that become N: {catch_up}");
        assert!(if resets > 0 { (1.0..=1.01).contains(&live) } else { live > 1.5 }, "{n}: {live}");
    }
}
