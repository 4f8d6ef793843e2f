//! Counters whose value can be computed by hand, from incidents that were published.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "closed_forms/instructions.rs"]
mod instructions;
#[path = "closed_forms/lookups.rs"]
mod lookups;
#[path = "closed_forms/options.rs"]
mod options;
#[path = "closed_forms/published.rs"]
mod published;
mod support;
#[path = "closed_forms/transient_heap.rs"]
mod transient_heap;

use decoder_core::{QueueCounts, RelsyncCounts};
use pg_types::record::CommitRecord;
use pg_types::{InvalidationMessage, Oid, PgVersion, RecordBody, Work};
use support::{Log, catcache, decode, relcache};

/// Parents' partitions: relations 20000 … 20000 + 2N.
const FIRST: u32 = 20_000;

/// `truncate-partitions` (2020): rows decoded in all 2N partitions, then TRUNCATE of N. Per partition 13 logs 8 catcache and 5
/// relcache messages in the commit record, 18 logs 6 and 5, in four records; both 6 new-cid records with 3 new command ids.
fn truncate_partitions(n: u32, version: PgVersion) -> Log {
    let mut log = Log::consistent(1000);
    for partition in 0..2 * n {
        log.insert(1000, 0, FIRST + partition);
    }
    log.commit(1000, &[], vec![]);
    let logged = if version == PgVersion::V13 { 8 } else { 6 };
    let mut all = Vec::new();
    for partition in 0..n {
        let rel = FIRST + partition;
        let of_one: Vec<_> =
            (0..logged).map(|i| catcache(i, rel * 31 + i as u32)).chain((0..5).map(|i| relcache(rel + i * 100_000))).collect();
        for cid in 0..3 {
            log.new_cid(1001, 0, partition * 3 + cid);
            log.new_cid(1001, 0, partition * 3 + cid);
        }
        if version != PgVersion::V13 {
            of_one.chunks(3).for_each(|messages| log.invalidations(1001, 0, messages));
        }
        all.extend(of_one);
    }
    log.truncate(1001, FIRST..FIRST + n);
    log.commit(1001, &[], all);
    log
}

/// The work of the TRUNCATE.
fn truncate_work(n: u32, version: PgVersion, profile: &str) -> Work {
    let (decoder, sink) = decode(&truncate_partitions(n, version), version, profile);
    assert_eq!(sink.work.len(), 2);
    let sum = sink.work.iter().fold(Work::default(), |mut sum, (_, work)| {
        sum += *work;
        sum
    });
    assert_eq!(sum, decoder.work(), "every bit of work belongs to a transaction here");
    sink.work[1].1
}

#[test]
fn truncate_partitions_has_its_published_counts() {
    use PgVersion::{V13, V18};
    for n in [1, 10, 100] {
        let executed = |version, profile| truncate_work(n, version, profile).messages_executed;
        let n = u64::from(n);
        assert_eq!(executed(V13, "pg13"), (3 * n + 1) * 13 * n);
        assert_eq!(executed(V18, "pg14"), 2 * 11 * n);
        assert_eq!(executed(V18, "pg13"), (3 * n + 1) * 11 * n, "the commit record of 18 serves the rule of 13");
        assert_eq!(executed(V13, "pg14"), 2 * 13 * n, "the commit record of 13 stands in for single records");
        // TRUNCATE opens each partition after its messages, so one relcache message of each is executed again.
        assert_eq!(executed(V18, "indexed"), 11 * n + n);
        assert_eq!(executed(V13, "indexed"), 13 * n + n, "the same");
    }
}

/// A live walsender finds the messages of its own commit in the shared queue too, or is told that some are lost.
#[test]
fn a_live_consumer_reads_what_commits_and_is_reset_when_it_lags() {
    for (partitions, resets) in [(372, 0), (373, 1)] {
        let log = truncate_partitions(partitions, PgVersion::V18);
        let m = 11 * u64::from(partitions);
        assert_eq!(m > 4096, resets == 1);
        let (live, given) = decode(&log, PgVersion::V18, "pg18+live");
        let (catch_up, reference) = decode(&log, PgVersion::V18, "pg18");
        assert_eq!(given.stream, reference.stream);
        assert_eq!(catch_up.queue_counts(), QueueCounts::default(), "a decoder that catches up has no queue");
        let read = if resets == 0 { m } else { 0 };
        let counts = QueueCounts { messages: read, resets, signals: live.queue_counts().signals };
        assert_eq!((live.queue_counts(), counts.signals), (counts, 1), "more than 2048 behind");
        assert_eq!(live.work().messages_executed, catch_up.work().messages_executed + read);
        let sum: u64 = given.work.iter().map(|(_, work)| work.messages_executed).sum();
        assert_eq!(sum, live.work().messages_executed, "they count for the transaction that waited for them");
    }
}

/// What lies in the queue is executed before a row is decoded, also if nothing of it was decoded: commits of another database.
#[test]
fn commits_that_are_not_decoded_fill_the_queue_too() {
    let mut log = Log::consistent(1000);
    log.insert(1000, 0, FIRST);
    log.commit(1000, &[], vec![]);
    for xid in 1001..1101 {
        let messages = (0..50).map(|i| InvalidationMessage::Relcache { db: Oid(6), rel: Oid(i) }).collect();
        log.push(xid, 0, RecordBody::Commit(Box::new(CommitRecord { db: Oid(6), messages, ..CommitRecord::default() })));
    }
    log.insert(1200, 0, FIRST);
    log.commit(1200, &[], vec![]);
    let loads = |profile| decode(&log, PgVersion::V18, profile).0.work().relations_loaded;
    assert_eq!((loads("pg18"), loads("pg18+live")), (1, 2), "5,000 of others are more than the queue holds");
}

/// The queue lasts as long as the consumer: what is committed while nothing is replayed counts, from before it was consistent on, and
/// messages of in-place updates too. More than 4,096 behind it is reset, once, and reads on from there.
#[test]
fn a_live_consumer_s_lag_goes_on_from_replay_to_replay() {
    let relcaches = |n: u32| -> Vec<InvalidationMessage> {
        (0..n).map(|i| InvalidationMessage::Relcache { db: Oid(6), rel: Oid(FIRST + i) }).collect()
    };
    let elsewhere = |log: &mut Log, xid: u32, n: u32| {
        log.push(
            xid,
            0,
            RecordBody::Commit(Box::new(CommitRecord { db: Oid(6), messages: relcaches(n), ..CommitRecord::default() })),
        );
    };
    // Messages before each of our rows: in commits of another database or in-place updates, 16 each.
    for (in_place, before, resets, read) in [
        (false, [4096, 4096, 0, 4096], 0, 3 * 4096),
        (false, [4112, 16, 4112, 16], 2, 32),
        (true, [4112, 4096, 4112, 0], 2, 4096),
        (true, [0, 0, 0, 0], 0, 0),
    ] {
        let (mut log, mut xid) = (Log::default(), 1000);
        log.running(998, 1000);
        for (round, messages) in before.into_iter().enumerate() {
            for _ in 0..messages / 16 {
                match in_place {
                    true => {
                        let inplace = pg_types::record::InplaceRecord { messages: relcaches(16), ..Default::default() };
                        log.push(0, 0, RecordBody::Inplace(Box::new(inplace)));
                    }
                    false => elsewhere(&mut log, xid, 16),
                }
                xid += 1;
            }
            if round == 0 {
                // Only now it is consistent.
                log.running(xid, xid);
            }
            log.insert(xid, 0, FIRST);
            log.commit(xid, &[], vec![]);
            xid += 1;
        }
        let (live, given) = decode(&log, PgVersion::V18, "pg18+live");
        let (_, reference) = decode(&log, PgVersion::V18, "pg18");
        assert_eq!((given.stream.len(), &given.stream), (8 + 4, &reference.stream));
        let counts = live.queue_counts();
        assert_eq!((counts.resets, counts.messages), (resets, read), "{before:?}");
        // What was loaded is thrown away by each reset but the first, before which nothing was.
        let first = u64::from(before[0] > 4096);
        assert_eq!(live.work().relations_loaded, 1 + resets - first, "{before:?}");
    }
}

/// One table of N is added to a publication. Up to 17 `pgoutput` looks all N up again, since 18 that table alone.
#[test]
fn a_publication_that_gets_a_table_costs_all_of_them_up_to_17() {
    let n = 50;
    for (version, profile, again) in [
        (PgVersion::V17, "pg17+pgoutput", n),
        (PgVersion::V17, "indexed+pgoutput", 1),
        (PgVersion::V18, "pg18+pgoutput", 1),
        (PgVersion::V18, "pg17+pgoutput", n),
        (PgVersion::V18, "pg18", 0),
    ] {
        let publicationrelmap = pg_types::SysCacheTable::of(version).id_of("PUBLICATIONRELMAP").unwrap().message_id();
        let messages = vec![catcache(publicationrelmap, 4711), relcache(FIRST)];
        let mut log = Log::consistent(1000);
        for (xid, altered) in [(1000, false), (1001, true), (1002, false)] {
            if altered {
                log.new_cid(xid, 0, 0);
                log.invalidations(xid, 0, &messages);
                log.commit(xid, &[], messages.clone());
            } else {
                (0..n).for_each(|table| log.insert(xid, 0, FIRST + table));
                log.commit(xid, &[], vec![]);
            }
        }
        let counts = decode(&log, version, profile).0.relsync_counts();
        let built = if again == 0 { 0 } else { n + again };
        assert_eq!((counts.built, counts.flushed), (built.into(), again.into()), "{version} {profile}");
        assert_eq!(counts.visited > 0, again == n, "{version} {profile}: scans are of whole flushes");
        assert_eq!(counts == RelsyncCounts::default(), again == 0, "test_decoding keeps nothing");
    }
}

#[test]
fn scans_walk_over_buckets_and_entries_and_the_index_does_not() {
    let n = 100;
    let scan = truncate_work(n, PgVersion::V18, "pg14").map_slots_visited;
    let indexed = truncate_work(n, PgVersion::V18, "indexed").map_slots_visited;
    // The map holds 200 entries in 200 buckets; each of 2·5·100 relcache messages walks over all, at first 400, at last 300.
    assert!((2 * 500 * 300..=2 * 500 * 400).contains(&scan), "{scan}");
    assert!(indexed <= 3 * (500 + 100), "{indexed}");
    let small = truncate_work(n, PgVersion::V18, "pg18+reverse-index").map_slots_visited;
    assert_eq!(small, 2 * 2 * 500 + 100, "two steps a message, and the entries dropped");
}

#[test]
fn the_ladder_of_2017_falls_step_by_step() {
    let mut log = Log::consistent(1000);
    for xid in 1000..1100 {
        for command in 0..5 {
            log.new_cid(xid, 0, command);
        }
        log.commit(xid, &[], (0..10).map(|i| catcache(i, xid * 7)).chain([relcache(xid)]).collect());
    }
    let steps =
        ["pg96", "pg96+direct-syscache", "pg96+direct-syscache+small-map", "pg96+direct-syscache+small-map+callback-chains"];
    let work: Vec<Work> = steps.iter().map(|profile| decode(&log, PgVersion::V13, profile).0.work()).collect();
    let messages = 100 * 6 * 11;
    assert!(work.iter().all(|w| w.messages_executed == messages), "each at five commands and at the end");
    let searched: Vec<u64> = work.iter().map(|w| w.caches_searched).collect();
    // Caches 0 … 9 of 78, met from the last one backwards.
    assert_eq!(searched[0], 600 * (0..10).map(|id| 78 - id).sum::<u64>());
    assert_eq!(searched[1..], [6000; 3]);
    let slots: Vec<u64> = work.iter().map(|w| w.map_slots_visited).collect();
    assert_eq!(slots, [600 * 1024, 600 * 1024, 600 * 64, 600 * 64], "empty buckets are walked all the same");
    let callbacks: Vec<u64> = work.iter().map(|w| w.callbacks_visited).collect();
    assert_eq!(callbacks[0], callbacks[2]);
    assert!(callbacks[3] * 5 < callbacks[2], "{callbacks:?}");
    assert!(work.iter().all(|w| w.callbacks_called == work[0].callbacks_called));
}

/// `long-writer-ddl` (2026): one open transaction with data changes beside N autocommit DDL commits.
#[test]
fn snapshots_are_quadratic_at_once_and_few_on_demand() {
    let (n, later) = (200u32, 3);
    let mut log = Log::consistent(1000);
    log.insert(1000, 0, FIRST);
    for i in 0..n {
        log.new_cid(1001 + i, 0, 0);
        log.commit(1001 + i, &[], vec![relcache(30_000 + i)]);
        if i >= n - later {
            log.insert(1000, 0, FIRST);
        }
    }
    log.commit(1000, &[], vec![]);
    // The writer and the committing transaction get each snapshot; snapshot i holds i committed xids.
    let bytes = |header: u64| (1..=u64::from(n)).map(|i| 2 * (header + 4 * i)).sum::<u64>();
    for (profile, header) in [("pg13", 192), ("pg14", 208), ("pg16", 208), ("pg17", 208), ("pg18", 192)] {
        let decoder = decode(&log, PgVersion::V18, profile).0;
        let work = decoder.work();
        assert_eq!((work.snapshots_distributed, work.snapshot_bytes), (2 * u64::from(n), bytes(header)), "{profile}");
        assert_eq!(decoder.snap_build_counts().built, 1 + u64::from(n), "the writer's first and one a commit");
        assert_eq!(work.transactions_visited, 2 * u64::from(n));
    }
    let (decoder, sink) = decode(&log, PgVersion::V18, "indexed");
    assert_eq!(decoder.work().snapshots_distributed, u64::from(later));
    assert_eq!(decoder.snap_build_counts().built, 1 + u64::from(n), "whoever changes catalogs begins with one all the same");
    assert_eq!(decoder.sizes().catalog_commits, 0, "nobody is left who might need them");
    let (_, eager) = decode(&log, PgVersion::V18, "pg18");
    assert_eq!(sink.stream, eager.stream);
}

#[test]
fn work_of_the_skipped_is_not_given_to_others() {
    let mut log = Log::consistent(1000);
    log.insert(1000, 0, FIRST);
    log.invalidations(1000, 0, &[relcache(FIRST)]);
    log.push(1000, 0, pg_types::RecordBody::Abort(Box::default()));
    log.invalidations(0, 0, &[relcache(FIRST); 3]);
    log.insert(1001, 0, FIRST);
    log.commit(1001, &[], vec![]);
    let (decoder, sink) = decode(&log, PgVersion::V18, "pg18");
    assert_eq!(decoder.work().messages_executed, 3, "an aborted transaction executes nothing; messages without xid at once");
    assert_eq!((sink.work.len(), sink.work[0].1.messages_executed), (1, 0));
}

/// N commands of one transaction, each changing the same row of pg_class and messages of one relation, with a row of it in between: one
/// hash of one entry, N records; each row loads the relation again, of which every scan looks at a row of the transaction's own.
#[test]
fn own_catalog_rows_are_hashed_once_and_looked_up_at_each_load() {
    for (version, profile) in [(PgVersion::V16, "pg16"), (PgVersion::V18, "indexed")] {
        for n in [1, 7, 40] {
            let mut log = Log::consistent(1000);
            for command in 0..n {
                log.new_cid(1001, 1000, command);
                log.invalidations(1001, 1000, &[relcache(FIRST)]);
                log.insert(1000, 0, FIRST);
            }
            log.commit(1000, &[1001], vec![relcache(FIRST); n as usize]);
            let (decoder, _) = decode(&log, version, profile);
            let counts = decoder.tuple_cid_counts();
            let n = u64::from(n);
            assert_eq!((counts.records, counts.hashes, counts.entries), (n, 1, 1), "{profile}");
            assert_eq!(counts.hash_bytes, 48 + 8 * n.next_power_of_two());
            let work = decoder.work();
            assert_eq!((work.relcache_misses, work.map_misses, work.map_hits), (n, n, 0), "{profile}");
            // A row for its file and two for each load, and once its row and those of its schema, types and access method in the
            // catcaches, which no message here drops; of these the first is the transaction's own.
            assert_eq!((work.tuple_cid_lookups, work.catcache_misses), (3 * n + 1, 1 + 1 + 2 + 1), "{profile}");
            assert_eq!(work.catcache_hits + work.catcache_misses, n * (1 + 1 + 2 * 2 + 1), "{profile}");
        }
    }
}
