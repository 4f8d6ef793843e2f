//! Incidents whose cost has a closed form, at small sizes: that form, by counters, in every version and under profiles that differ. N is a power
//! of two of 64 at least, so that a map of N entries has N buckets. Filling the map with N entries visits 4·N slots under a scan's profile.

use std::collections::BTreeMap;
use std::io::Write;

use decoder_core::{DecodedTransaction, Profile, RegisteredCallbacks, WorkMem};
use pg_types::{PgVersion, RecordBody, Work};
use primary_core::Scenario;
use walstorm_cli::compare;
use walstorm_cli::scenario_log::ScenarioLog;
use walstorm_cli::wal_input::{Decoding, WalInput};

use super::figures::play;

/// Decodes a log under a profile, with names from a folder; its work and transactions.
fn decode(
    log: &ScenarioLog,
    profile: &str,
    catalog: Option<&std::path::Path>,
    callbacks: RegisteredCallbacks,
) -> (Work, Vec<DecodedTransaction>) {
    let mut input = WalInput::open(log.dir(), catalog, None).unwrap();
    input.callbacks = callbacks;
    let profile: Profile = profile.parse().unwrap();
    let mut transactions = Vec::new();
    let decoding = Decoding::at_commit(&profile, WorkMem::default());
    let (row, _, _) = compare::measure(&input, &decoding, None, &mut |t| transactions.push(t.clone())).unwrap();
    (row.outcome.work, transactions)
}

/// The work alone.
fn work(log: &ScenarioLog, profile: &str) -> Work {
    decode(log, profile, None, log.callbacks()).0
}

/// Messages of a transaction's commit record.
fn messages(t: &DecodedTransaction) -> u64 {
    t.messages.invalidations()
}

#[test]
fn alter_many_walks_over_the_map_at_each_message_or_looks_up_what_goes() {
    for version in PgVersion::ALL {
        for n in [64, 128] {
            let log = play("alter-many", &[("tables", n)], version);
            // Five messages each: up to 13 all at each command and at the end, one command in each of N or N commands in one; from 14 on each at
            // its place and at the end, twice N of them.
            assert_eq!(work(&log, "pg13").messages_executed, 5 * n * (2 + n + 1), "{version}");
            for (profile, map_slots) in [
                // Separately: N entries and N buckets at the first message, one entry less at the second. Together: so for N first messages, and
                // N times empty buckets. And two fills.
                ("pg14", (2 * n * n + n * n) + (n * n + n * (n + 1) / 2 + n * n) + 8 * n),
                ("pg18", (2 * n * n + n * n) + (n * n + n * (n + 1) / 2 + n * n) + 8 * n),
                // A lookup a message, and the entry that goes.
                ("pg14+reverse-index", 2 * (2 * n + n) + 4 * n),
            ] {
                let w = work(&log, profile);
                assert_eq!((w.messages_executed, w.map_slots_visited), (20 * n, map_slots), "{version} {profile} {n}");
                assert_eq!(w.map_entries_dropped, 2 * n);
            }
            let indexed = work(&log, "indexed");
            assert_eq!((indexed.messages_executed, indexed.map_slots_visited), (10 * n, 6 * n), "{version}: nothing twice");
        }
    }
}

#[test]
fn grant_all_costs_messages_times_commands_up_to_13_and_a_callback_that_walks_costs_its_map() {
    for version in PgVersion::ALL {
        for n in [64, 128] {
            let log = play("grant-all", &[("tables", n)], version);
            let w = work(&log, "pg13");
            assert_eq!(w.messages_executed, (n + 1) * 4 * n, "{version}");
            let cubes = w.map_slots_visited as f64 / (n * n * n) as f64;
            assert!((1.0..1.05).contains(&cubes), "{version}: N + 1 times N scans of N empty buckets: {cubes}");
            let w = work(&log, "pg14");
            let map_slots = (n * n + n * (n + 1) / 2) + n * n + 4 * n;
            assert_eq!((w.messages_executed, w.map_slots_visited), (2 * 4 * n, map_slots), "{version}: full, then empty");
            let indexed = work(&log, "indexed");
            assert_eq!((indexed.messages_executed, indexed.map_slots_visited), (3 * n + 1, 3 * n), "{version}: the same once");
            // Each relcache message, executed twice, calls every callback that is registered for relations; the walsender's are three.
            for callbacks in [1, 2, 3, 4] {
                let registered = RegisteredCallbacks { relcache: Some(callbacks), ..RegisteredCallbacks::default() };
                let called = decode(&log, "pg14", None, registered).0.callbacks_called;
                assert_eq!(called, 2 * n * u64::from(callbacks), "{version}");
                assert!(callbacks != 3 || called == w.callbacks_called);
            }
            // One more that walks over a map of its own, as reported in 2025: as often as a relcache message is executed.
            for (profile, executed) in [("pg14", 2 * n), ("pg18", 2 * n), ("indexed", n)] {
                let walked = |callbacks| {
                    let log = play("grant-all", &[("tables", n), ("callbacks", callbacks), ("entries", 1000)], version);
                    let mut input = WalInput::open(log.dir(), None, None).unwrap();
                    input.callbacks = log.callbacks();
                    let (rows, _) = compare::compare(&input, &[profile.parse().unwrap()], WorkMem::default()).unwrap();
                    let counts = rows[0].outcome.relcache_callbacks;
                    assert_eq!(counts.constant + counts.bucket + counts.walk, executed * callbacks, "{version} {profile}");
                    counts.walked
                };
                assert_eq!(walked(4) - walked(3), 1000 * executed, "{version} {profile}");
            }
        }
    }
}

#[test]
fn a_change_that_nobody_wants_costs_the_load_of_its_relation_once() {
    for version in PgVersion::ALL {
        let of = |length: &str| {
            let scenario = Scenario::load("unpublished-flood").unwrap();
            let overrides = [("unpublished", "10"), ("length", length), ("rate", "500/s")];
            let overrides = overrides.map(|(name, value)| (name.to_owned(), value.into())).into();
            let log = ScenarioLog::play(&scenario, &overrides, scenario.seed(), version).unwrap();
            let (work, transactions) = decode(&log, "pg18", None, log.callbacks());
            let rows: u64 = transactions.iter().map(DecodedTransaction::changes).sum();
            (work, rows, transactions.len() as u64)
        };
        let ((short, rows, commits), (long, more, _)) = (of("2s"), of("4s"));
        assert!(rows == commits && more > 19 * rows / 10, "{rows} {more}");
        // Twice the changes find everything: the map's entry, the relation, and what its row, its schema and the types of two columns are.
        let found =
            Work { map_hits: more - rows, relcache_hits: more - rows, catcache_hits: 6 * (more - rows), ..Work::default() };
        assert_eq!(long - short, found, "{version}");
        // The ten and the published one: each is loaded once.
        // Missing were their own rows, and once their schema, their access method and two types.
        let expected = Work {
            relations_loaded: 11,
            catalogs_loaded: short.catalogs_loaded,
            catalog_scans: short.catalog_scans,
            historic_scans: short.catalog_scans,
            map_misses: 11,
            map_hits: rows - 11,
            relcache_misses: 11,
            relcache_hits: rows - 11,
            catcache_misses: 11 + 4,
            catcache_hits: 6 * rows + 11 - (11 + 4),
            ..Work::default()
        };
        assert_eq!(short, expected, "{version}");
    }
}

#[test]
fn a_refresh_of_a_view_gives_no_row_and_changes_its_file_once() {
    let refreshes = 4;
    for version in PgVersion::ALL {
        let log = play("matview-refresh", &[("rows", 200), ("refreshes", refreshes)], version);
        // As the catalogs were: each heap that a refresh fills becomes the view's file. It is the first that its transaction makes.
        let mut files: BTreeMap<u32, u32> = BTreeMap::new();
        let input = WalInput::open(log.dir(), None, None).unwrap();
        let mut inserted: BTreeMap<u32, u64> = BTreeMap::new();
        let each = |record: &pg_types::WalRecord| {
            match &record.body {
                RecordBody::SmgrCreate { target, .. } => drop(files.entry(record.xid.0).or_insert(target.rel)),
                RecordBody::Insert(insert) if insert.logical => *inserted.entry(record.xid.0).or_default() += 1,
                RecordBody::MultiInsert(insert) if insert.logical => {
                    *inserted.entry(record.xid.0).or_default() += u64::from(insert.ntuples);
                }
                _ => {}
            }
            Ok(std::ops::ControlFlow::Continue(()))
        };
        input.records_until(None, each).unwrap();
        assert_eq!(files.len() as u64, 1 + refreshes);
        let view = *files.values().min().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut csv = std::fs::File::create(folder.path().join("pg_class.csv")).unwrap();
        writeln!(csv, "relname,oid,relfilenode,reltablespace,nsp,relkind").unwrap();
        files.values().for_each(|file| writeln!(csv, "totals,{view},{file},0,public,m").unwrap());
        for profile in ["pg13", "pg14", "pg18", "indexed"] {
            let (work, transactions) = decode(&log, profile, Some(folder.path()), log.callbacks());
            let made = transactions.iter().filter(|t| files.contains_key(&t.xid.0)).collect::<Vec<_>>();
            let (create, refreshed) = made.split_first().unwrap();
            assert!(create.messages.invalidations() > 0 && refreshed.len() as u64 == refreshes);
            for t in refreshed {
                assert_eq!(
                    (inserted[&t.xid.0], t.changes(), t.relations.len()),
                    (200, 0, 0),
                    "{version} {profile}: {:?}",
                    t.relations
                );
                let counts: BTreeMap<_, _> = t.footprint.counts().collect();
                assert_eq!(
                    counts["files_created"], counts["files_dropped"],
                    "{version}: heap, TOAST table and its index for the old ones"
                );
                assert_eq!(messages(t), messages(refreshed[0]), "whatever the rows are");
            }
            assert!(work.map_entries_dropped >= refreshes, "{version} {profile}: the view's file goes from the map at each");
        }
    }
}

#[test]
fn a_pair_of_create_and_drop_of_a_temporary_table_has_its_fifty_messages() {
    let (sessions, visits) = (4, 3);
    let pairs = sessions * visits;
    for version in PgVersion::ALL {
        let log = play("temp-table-churn", &[("sessions", sessions), ("visits", visits)], version);
        let (_, transactions) = decode(&log, "pg14", None, log.callbacks());
        let rows: u64 = transactions.iter().map(DecodedTransaction::changes).sum();
        assert_eq!(rows, 0, "nobody else sees a temporary table");
        // Two for each row of pg_namespace that comes and stays: a schema and that of its TOAST tables, for each backend number that had none.
        let of = |created: std::ops::RangeInclusive<u64>| {
            transactions.iter().filter(|t| created.contains(&messages(t))).collect::<Vec<_>>()
        };
        let tally = |actor: &str, key: &str| log.engine().tally(Some(actor)).unwrap().get(key).unwrap();
        let schemas =
            ["dropping", "leaving", "at_commit"].map(|a| tally(a, "catalog_rows_made") - tally(a, "catalog_rows_dead"));
        let schemas: u64 = schemas.iter().sum();
        let all: u64 = of(24..=60).into_iter().map(messages).sum();
        assert_eq!(all, 50 * (2 * pairs + visits) + 2 * schemas, "{version}");
        let drops = of(26..=26).len() as u64;
        assert!(drops >= 2 * pairs, "{version}: a DROP, or the end of the session, for each");
        // From 14 on each message runs at its place and at the end.
        for t in of(24..=60) {
            assert_eq!(t.work.messages_executed, 2 * messages(t), "{version} {}", t.xid);
        }
    }
}

/// `rolled-back-bulk`: what is rolled back in front of ten small commits is written out up to 17, and dropped as the first victim since 18, by who
/// knows of the rollback because it is behind.
#[test]
fn a_bulk_load_that_is_rolled_back_is_dropped_from_18_on() {
    for version in [PgVersion::V17, PgVersion::V18] {
        let log = play("rolled-back-bulk", &[("rows", 5000), ("row_bytes", 100)], version);
        let input = WalInput::open(log.dir(), None, None).unwrap();
        let profiles = ["pg13", "pg17", "pg18", "indexed", "pg17+drop-aborted"];
        let parsed = profiles.map(|profile| profile.parse().unwrap());
        let (rows, _) = compare::compare(&input, &parsed, WorkMem::MIN).unwrap();
        for (row, profile) in rows.iter().zip(profiles) {
            let (outcome, w) = (&row.outcome, row.outcome.work);
            assert!(outcome.transactions == 10 && row.identical_output, "{version} {profile}");
            match profile {
                "pg13" | "pg17" => assert!(w.evictions > 5 && w.spill_bytes > 5 * WorkMem::MIN.bytes(), "{version} {profile}"),
                _ => assert_eq!((w.evictions, w.spill_count, w.spill_bytes), (1, 0, 0), "{version} {profile}"),
            }
            assert_eq!(w.changes_restored, 0, "{version} {profile}: nobody reads it again");
        }
    }
}
