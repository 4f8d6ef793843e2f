//! What decoding costs, by the questions of the design's table of numbers to reach.
//!
//! `cargo bench -p decoder-core`; name a part to run only it, as in `cargo bench -p decoder-core relcache_message`.

#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may stop at a defect; its functions are their questions")]

#[path = "../tests/support/mod.rs"]
mod support;

use decoder_core::{Decoder, NoOutput};
use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use pg_types::{InvalidationMessage, PgVersion, RecordBody, WalRecord};
use support::{Log, catcache, decoder, relcache};

/// First relation.
const FIRST: u32 = 20_000;

/// Messages of one record.
const BATCH: u32 = 1000;

/// How the map is searched, and how many relations are cached.
const CACHED: [(&str, u32); 12] = [
    ("pg18", 100),
    ("pg18", 1_000),
    ("pg18", 10_000),
    ("pg18", 50_000),
    ("pg18", 100_000),
    ("pg18", 1_000_000),
    ("indexed", 100),
    ("indexed", 1_000),
    ("indexed", 10_000),
    ("indexed", 50_000),
    ("indexed", 100_000),
    ("indexed", 1_000_000),
];

/// So many messages are measured at once: few where each scans a large map.
fn batch(profile: &str, relations: u32) -> u32 {
    if profile == "pg18" && relations >= 50_000 { 10 } else { BATCH.min(relations) }
}

fn main() {
    divan::main();
}

/// A decoder that has decoded a row of each of `relations` relations.
fn full(profile: &str, relations: u32) -> Decoder {
    let mut log = Log::consistent(1000);
    (0..relations).for_each(|i| log.insert(1000, 0, FIRST + i));
    log.commit(1000, &[], vec![]);
    let mut decoder = decoder(PgVersion::V18, profile);
    log.records.iter().for_each(|record| decoder.process(record, &mut NoOutput).unwrap());
    assert_eq!(decoder.sizes().caches.map_entries, relations as usize);
    decoder
}

/// A record of messages that are executed at once.
fn messages_record(messages: Vec<InvalidationMessage>) -> WalRecord {
    let mut log = Log::default();
    log.push(0, 0, RecordBody::XactInvalidations(messages));
    log.records.remove(0)
}

/// Time per relcache message as the map grows, for relations spread over all that are cached, and for ones that are not.
#[divan::bench(args = CACHED, sample_count = 20)]
fn relcache_message_of_others(bencher: Bencher, (profile, relations): (&str, u32)) {
    let mut decoder = full(profile, relations);
    let batch = batch(profile, relations);
    let record = messages_record((0..batch).map(|i| relcache(FIRST + relations + i * 7919)).collect());
    bencher.counter(ItemsCount::new(batch)).bench_local(|| decoder.process(black_box(&record), &mut NoOutput).unwrap());
}

/// As above, but each message drops a cached relation, which is loaded again outside of the time measured.
#[divan::bench(args = CACHED, sample_count = 20)]
fn relcache_message_of_cached(bencher: Bencher, (profile, relations): (&str, u32)) {
    let decoder = std::cell::RefCell::new(full(profile, relations));
    let batch = batch(profile, relations);
    let spread = (0..batch).map(|i| FIRST + (u64::from(i) * 7919 % u64::from(relations)) as u32).collect::<Vec<_>>();
    let record = messages_record(spread.iter().map(|rel| relcache(*rel)).collect());
    let mut reload = Log::default();
    spread.iter().for_each(|rel| reload.insert(2000, 0, *rel));
    reload.commit(2000, &[], vec![]);
    bencher
        .counter(ItemsCount::new(batch))
        .with_inputs(|| {
            reload.records.iter().for_each(|record| decoder.borrow_mut().process(record, &mut NoOutput).unwrap());
        })
        .bench_local_values(|()| decoder.borrow_mut().process(black_box(&record), &mut NoOutput).unwrap());
}

/// The same with attribution and footprints, or without: what they cost, in one run.
fn measured(profile: &str, attributes: bool) -> Decoder {
    let decoder = decoder(PgVersion::V18, profile);
    let mut decoder = if attributes { decoder } else { decoder.without_attribution() };
    let mut log = Log::consistent(1000);
    (0..100).for_each(|i| log.insert(1000, 0, FIRST + i));
    log.commit(1000, &[], vec![]);
    log.records.iter().for_each(|record| decoder.process(record, &mut NoOutput).unwrap());
    decoder
}

/// Attribution's price: transactions of one insert, with the index record between.
#[divan::bench(args = [true, false])]
fn price_on_small_transactions(bencher: Bencher, attributes: bool) {
    let mut log = Log::default();
    for xid in 2000..2000 + BATCH {
        log.insert(xid, 0, FIRST + xid % 10);
        log.push(xid, 0, RecordBody::Other { rmid: 11, info: 0 });
        log.commit(xid, &[], vec![]);
    }
    let run = |mut decoder: Decoder| {
        log.records.iter().for_each(|record| decoder.process(black_box(record), &mut NoOutput).unwrap());
        decoder
    };
    bencher.counter(ItemsCount::new(BATCH)).with_inputs(|| measured("pg18", attributes)).bench_local_values(run);
}

/// Attribution's price: schema changes of a few catalog rows and ten messages each, in transactions of their own.
#[divan::bench(args = [("pg18", true), ("pg18", false), ("indexed", true), ("indexed", false)])]
fn price_on_ddl(bencher: Bencher, (profile, attributes): (&str, bool)) {
    let mut log = Log::default();
    for i in 0..BATCH {
        let messages: Vec<_> =
            (0..7).map(|c| catcache(c * 9, i * 31)).chain((0..3).map(|r| relcache(FIRST + (i + r) % 100))).collect();
        for cid in 0..3 {
            log.new_cid(2000 + i, 0, cid);
            log.catalog_row(2000 + i, 0);
        }
        log.invalidations(2000 + i, 0, &messages);
        log.commit(2000 + i, &[], messages);
    }
    let run = |mut decoder: Decoder| {
        log.records.iter().for_each(|record| decoder.process(black_box(record), &mut NoOutput).unwrap());
        decoder
    };
    bencher.counter(ItemsCount::new(BATCH)).with_inputs(|| measured(profile, attributes)).bench_local_values(run);
}

/// Messages a second of a transaction with 7 catcache to 3 relcache messages, in records of ten.
#[divan::bench(args = ["pg18", "indexed"])]
fn messages_of_ddl(bencher: Bencher, profile: &str) {
    let mut log = Log::default();
    let mut all = Vec::new();
    for i in 0..BATCH {
        let of_one: Vec<_> =
            (0..7).map(|c| catcache(c * 9, i * 31)).chain((0..3).map(|r| relcache(i * 3 + r + FIRST))).collect();
        log.invalidations(2000, 0, &of_one);
        all.extend(of_one);
    }
    log.commit(2000, &[], all);
    let mut decoder = full(profile, 100);
    bencher.counter(ItemsCount::new(BATCH * 10)).bench_local(|| {
        log.records.iter().for_each(|record| decoder.process(black_box(record), &mut NoOutput).unwrap());
    });
}

/// Transactions a second of one insert each, with the index record between.
#[divan::bench(args = ["pg18", "indexed"])]
fn small_transactions(bencher: Bencher, profile: &str) {
    let mut log = Log::default();
    for xid in 2000..2000 + BATCH {
        log.insert(xid, 0, FIRST + xid % 10);
        log.push(xid, 0, RecordBody::Other { rmid: 11, info: 0 });
        log.commit(xid, &[], vec![]);
    }
    let mut decoder = full(profile, 100);
    bencher.counter(ItemsCount::new(BATCH)).bench_local(|| {
        log.records.iter().for_each(|record| decoder.process(black_box(record), &mut NoOutput).unwrap());
    });
}

/// Rows a second of one large transaction with savepoints.
#[divan::bench(args = [0, 100])]
fn rows_of_one_transaction(bencher: Bencher, savepoints: u32) {
    let mut log = Log::default();
    for i in 0..100 * BATCH {
        let sub = if savepoints == 0 { 0 } else { i % (savepoints + 1) };
        log.insert(2000 + sub, if sub == 0 { 0 } else { 2000 }, FIRST + i % 10);
    }
    log.commit(2000, &(1..=savepoints).map(|sub| 2000 + sub).collect::<Vec<_>>(), vec![]);
    let mut decoder = full("indexed", 100);
    bencher.counter(ItemsCount::new(100 * BATCH)).bench_local(|| {
        log.records.iter().for_each(|record| decoder.process(black_box(record), &mut NoOutput).unwrap());
    });
}

/// `alter-many`: a row in each of N tables, then a schema change of each in a transaction of its own.
#[divan::bench(args = [("pg18", 1_000), ("pg18", 10_000), ("indexed", 1_000), ("indexed", 10_000), ("indexed", 50_000)], sample_count = 3, sample_size = 1)]
fn alter_many(bencher: Bencher, (profile, relations): (&str, u32)) {
    alter_each(bencher, profile, relations);
}

/// The same where a scan takes half a minute.
#[divan::bench(sample_count = 1, sample_size = 1)]
fn alter_many_pg18_50_000(bencher: Bencher) {
    alter_each(bencher, "pg18", 50_000);
}

/// Decodes a schema change of each of N cached tables.
fn alter_each(bencher: Bencher, profile: &str, relations: u32) {
    let mut log = Log::default();
    for i in 0..relations {
        let messages: Vec<_> =
            (0..6).map(|c| catcache(c * 9, i * 31)).chain([relcache(FIRST + i), relcache(FIRST + i)]).collect();
        log.new_cid(2000 + i, 0, 0);
        log.invalidations(2000 + i, 0, &messages);
        log.commit(2000 + i, &[], messages);
    }
    bencher.counter(ItemsCount::new(relations)).with_inputs(|| full(profile, relations)).bench_local_values(|mut decoder| {
        log.records.iter().for_each(|record| decoder.process(black_box(record), &mut NoOutput).unwrap());
    });
}
