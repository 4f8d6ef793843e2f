//! What is looked up, what loading costs, and with which snapshots catalogs are read, counted by hand.

use decoder_core::Decoder;
use pg_types::record::HeapInsert;
use pg_types::{DropReason, InvalidationMessage, Oid, PgVersion, RecordBody, Work, catalog};

use crate::FIRST;
use crate::support::{DATABASE, Log, catcache, decode, file, relcache};

/// Work of the cache with this name.
fn of_cache(decoder: &Decoder, name: &str) -> Work {
    decoder.attribution().caches.iter().find(|share| &*share.name == name).map(|share| share.work).unwrap_or_default()
}

/// `n` rows of each of `tables`, one after the other.
fn rows(log: &mut Log, xid: u32, n: u32, tables: u32) {
    (0..n * tables).for_each(|row| log.insert(xid, 0, FIRST + row % tables));
}

/// `test_decoding` asks for relation, schema and, twice, each column's type; `pgoutput` for each column's type, and for names and
/// publications when it sends a schema.
#[test]
fn a_row_looks_up_what_its_output_plugin_writes() {
    let (n, tables) = (30u64, 7u64);
    let mut log = Log::consistent(1000);
    rows(&mut log, 1000, 20, 7);
    log.commit(1000, &[], vec![]);
    rows(&mut log, 1001, 10, 7);
    log.commit(1001, &[], vec![]);
    for (profile, of_row, of_table, misses) in [
        // Per table one access method when it is built; missing: that one, relations, the schema, two types.
        ("pg18", 2 + 2 * 2, 1, 1 + tables + 1 + 2),
        ("indexed", 2 + 2 * 2, 1, 1 + tables + 1 + 2),
        // And its row, publications, schema's publications and schema; missing: also the publication's name and the lists.
        ("pg18+pgoutput", 2, 1 + 4, 1 + tables + 1 + 2 + 1 + tables + 1),
    ] {
        let (decoder, _) = decode(&log, PgVersion::V18, profile);
        let work = decoder.work();
        let named = u64::from(profile.contains("pgoutput"));
        assert_eq!(work.catcache_hits + work.catcache_misses, n * tables * of_row + tables * of_table + named, "{profile}");
        assert_eq!(work.catcache_misses, misses, "{profile}");
        let found = (work.map_hits, work.map_misses, work.relcache_hits, work.relcache_misses);
        assert_eq!(found, ((n - 1) * tables, tables, (n - 1) * tables, tables), "{profile}");
        let types = of_cache(&decoder, "TYPEOID");
        let each = if named == 1 { 2 } else { 4 };
        assert_eq!((types.catcache_hits, types.catcache_misses), (n * tables * each - 2, 2), "{profile}");
        assert_eq!(of_cache(&decoder, "RELOID").catcache_misses, tables);
        let loaded = of_cache(&decoder, "relcache");
        assert_eq!((loaded.relcache_hits, loaded.relcache_misses), ((n - 1) * tables, tables));
        // Each table: its file, pg_class and pg_attribute; and the index for files, which no init file has.
        assert_eq!(work.catalog_scans, 3 * tables + misses + 2, "{profile}");
        assert_eq!((work.historic_scans, work.catalogs_loaded), (work.catalog_scans, 1), "no snapshot is taken: {profile}");
    }
}

#[test]
fn a_truncated_table_is_named_too() {
    let mut log = Log::consistent(1000);
    log.truncate(1000, FIRST..FIRST + 9);
    log.commit(1000, &[], vec![]);
    let looked_up = |profile| {
        let work = decode(&log, PgVersion::V18, profile).0.work();
        (work.catcache_hits + work.catcache_misses, work.catcache_misses)
    };
    assert_eq!(looked_up("pg18"), (9 * 3, 1 + 9 + 1), "access method, relation and schema of each");
    assert_eq!(looked_up("pg18+pgoutput"), (9 * 5 + 1, 1 + 1 + 9 + 9 + 1 + 1));
}

/// What a message throws away of the catcaches is loaded again by the next row, though its relation is still there.
#[test]
fn one_entry_thrown_away_is_one_scan() {
    let n = 50;
    let mut log = Log::consistent(1000);
    for command in 0..n {
        rows(&mut log, 1000, 1, 4);
        log.new_cid(1000, 0, command);
        log.invalidations(1000, 0, &[InvalidationMessage::Catalog { db: DATABASE, catalog: catalog::TYPE }]);
    }
    log.commit(1000, &[], vec![]);
    for profile in ["pg18", "indexed"] {
        let (decoder, _) = decode(&log, PgVersion::V18, profile);
        assert_eq!(of_cache(&decoder, "TYPEOID").catcache_misses, 2 * u64::from(n), "{profile}");
        assert_eq!((decoder.work().relations_loaded, of_cache(&decoder, "RELOID").catcache_misses), (4, 4), "{profile}");
    }
}

/// N times everything is thrown away, and each time a row reads pg_am and pg_namespace, which have to be found with their indexes
/// first, where they are now: four scans without historic snapshot.
#[test]
fn catalogs_that_are_loaded_again_share_a_catalog_snapshot() {
    let all = |catalog| InvalidationMessage::Catalog { db: DATABASE, catalog };
    let everything = [relcache(0), all(catalog::AM), all(catalog::NAMESPACE)];
    for (n, transactions) in [(1, 1), (20, 1), (20, 20)] {
        let mut log = Log::consistent(1000);
        for step in 0..n {
            let xid = 1000 + step % transactions;
            log.new_cid(xid, 0, step);
            log.invalidations(xid, 0, &everything);
            log.insert(xid, 0, FIRST);
            if transactions > 1 || step + 1 == n {
                log.commit(xid, &[], vec![]);
            }
        }
        let (n, transactions) = (u64::from(n), u64::from(transactions));
        for (profile, taken) in [("pg18", n), ("indexed", n), ("pg18+always-new-snapshots", 4 * n)] {
            let (decoder, _) = decode(&log, PgVersion::V18, profile);
            let (work, counts) = (decoder.work(), decoder.catalog_snapshot_counts());
            assert_eq!((work.catalog_snapshots_taken, work.catalog_snapshots_reused), (taken, 4 * n - taken), "{profile}");
            // Both with their index, and the index for files.
            assert_eq!(work.catalogs_loaded, 5 * n, "{profile}");
            assert_eq!(counts.dropped(DropReason::AlwaysNew), taken - n, "the first of each step has none to drop: {profile}");
            assert_eq!(counts.dropped(DropReason::CatalogChanged), n - transactions, "{profile}");
            assert_eq!(counts.dropped(DropReason::TransactionEnd), transactions, "{profile}");
        }
    }
}

/// A table's TOAST rows are read, then its row: the first builds a relation and reads pg_am, the second reads pg_namespace, and both are to
/// be found again. What comes between drops the catalog snapshot or does not.
#[test]
fn a_catalog_snapshot_outlives_messages_that_change_no_catalog_of_the_database() {
    let snapshot = |db| InvalidationMessage::Snapshot { db: Oid(db), rel: catalog::DEPEND };
    for (between, why) in [
        (relcache(FIRST + 1), None),
        (snapshot(6), None),
        (snapshot(DATABASE.0), Some(DropReason::SnapshotMessage)),
        (snapshot(0), Some(DropReason::SnapshotMessage)),
        (catcache(1, 4711), Some(DropReason::CatalogChanged)),
    ] {
        let mut log = Log::consistent(1000);
        let toast = HeapInsert { target: file(FIRST + 9), logical: true, toast: true, ..HeapInsert::default() };
        log.invalidations(1000, 0, &[relcache(catalog::AM.0), relcache(catalog::NAMESPACE.0)]);
        log.push(1000, 0, RecordBody::Insert(toast));
        log.invalidations(1000, 0, &[between]);
        log.insert(1000, 0, FIRST);
        log.commit(1000, &[], vec![]);
        for profile in ["pg18", "indexed"] {
            let (decoder, _) = decode(&log, PgVersion::V18, profile);
            let (work, counts) = (decoder.work(), decoder.catalog_snapshot_counts());
            let taken = 1 + u64::from(why.is_some());
            assert_eq!(
                (work.catalog_snapshots_taken, work.catalog_snapshots_reused),
                (taken, 2 - taken),
                "{profile} {between:?}"
            );
            assert_eq!(why.map_or(0, |why| counts.dropped(why)), taken - 1, "{profile} {between:?}");
        }
    }
}
