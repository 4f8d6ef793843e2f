//! Memory, spilling and victims: the output never depends on the limit, the memory stays below it, and counters have their closed
//! forms.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "memory/bad_input.rs"]
mod bad_input;
#[path = "memory/streaming.rs"]
mod streaming;
mod support;
#[path = "memory/two_phase.rs"]
mod two_phase;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use decoder_core::{
    DISTRIBUTED_MESSAGES_MAX, DecodeError, Decoder, NoOutput, Profile, SpillError, SpillFailure, SpillFile, SpillStore,
    TransactionStatus, WorkMem,
};
use pg_types::record::{HeapInsert, HeapMultiInsert, LogicalMessageRecord, OldTuple};
use pg_types::{Lsn, PgVersion, RecordBody, WalRecord, Work, Xid};
use proptest::prelude::*;
use support::history::{workload, write};
use support::{DATABASE, Log, Remember, decode, decode_within, decoder_within, file, relcache};

/// Bytes of a row of the tests: struct, tuple header and 13 of data.
const ROW: u64 = 80 + 24 + 23 + 13;

/// Inserts `n` rows of [`ROW`] bytes.
fn rows(log: &mut Log, xid: u32, top: u32, n: usize) {
    for _ in 0..n {
        let insert = HeapInsert { target: file(20_000), logical: true, tuple_len: 5 + 13, ..HeapInsert::default() };
        log.push(xid, top, RecordBody::Insert(insert));
    }
}

/// Decodes and gives the peak of the memory as well.
fn within(log: &Log, profile: &str, bytes: u64) -> (Work, u64, Remember) {
    let (decoder, sink) = decode_within(log, PgVersion::V18, profile, WorkMem::from_bytes(bytes));
    assert_eq!((decoder.sizes().memory_bytes, decoder.sizes().spill_file_bytes), (0, 0), "nothing is left behind");
    (decoder.work(), decoder.sizes().memory_bytes_peak, sink)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(50) })]

    #[test]
    fn what_is_given_out_does_not_depend_on_the_limit(steps in workload(true), tiny in 1u64..3000) {
        for version in [PgVersion::V13, PgVersion::V18] {
            let log = write(&steps, version, 4);
            let (_, reference) = decode(&log, version, "indexed");
            let switched = ["pg96+work-mem", "pg10+victim-heap", "pg13+drop-aborted", "pg17+on-demand-snapshots"];
            for profile in Profile::names().chain(switched) {
                for limit in [tiny, 64 << 10] {
                    let (decoder, given) = decode_within(&log, version, profile, WorkMem::from_bytes(limit));
                    prop_assert_eq!(&given.stream, &reference.stream, "{} with {} bytes", profile, limit);
                    let sizes = decoder.sizes();
                    prop_assert!(sizes.transactions > 0 || (sizes.memory_bytes, sizes.spill_file_bytes) == (0, 0));
                    let spilled = given.work.iter().map(|(_, work)| work.spill_bytes).sum::<u64>();
                    prop_assert!(spilled <= decoder.work().spill_bytes, "I4");
                }
            }
        }
    }

    #[test]
    fn dropping_rolled_back_victims_changes_nothing_else(steps in workload(true), tiny in 1u64..1500) {
        let log = write(&steps, PgVersion::V18, 4);
        let (_, reference) = decode(&log, PgVersion::V18, "pg17");
        for profile in ["pg18", "indexed"] {
            let decoder = decoder_within(PgVersion::V18, profile, WorkMem::from_bytes(tiny));
            let mut decoder = decoder.know_status(Box::new(Known::of(&log)));
            let mut sink = Remember::default();
            log.records.iter().for_each(|record| decoder.process(record, &mut sink).unwrap());
            prop_assert_eq!(&sink.stream, &reference.stream, "{}", profile);
        }
    }
}

/// Knows all rollbacks of a log.
#[derive(Debug)]
struct Known(BTreeMap<u32, Lsn>);

impl Known {
    fn of(log: &Log) -> Self {
        let mut ends = BTreeMap::new();
        for record in &log.records {
            if let RecordBody::Abort(abort) = &record.body {
                let own = if abort.prepared_xid.is_valid() { abort.prepared_xid } else { record.xid };
                ends.extend(abort.subxids.iter().chain([&own]).map(|xid| (xid.0, record.lsn)));
            }
        }
        Self(ends)
    }
}

impl TransactionStatus for Known {
    fn is_aborted(&mut self, xid: Xid, lsn: Lsn) -> bool {
        self.0.get(&xid.0).is_some_and(|end| *end > lsn)
    }
}

#[test]
fn a_large_transaction_is_written_out_each_time_it_reaches_the_limit() {
    let mut log = Log::consistent(1000);
    rows(&mut log, 1000, 0, 100_000);
    log.commit(1000, &[], vec![]);
    let limit = 64u64 << 10;
    let each = limit.div_ceil(ROW);
    let evictions = 100_000 / each;
    for profile in ["pg13", "pg14", "pg16", "pg17", "pg18", "indexed"] {
        let (work, peak, sink) = within(&log, profile, limit);
        assert_eq!(
            (work.evictions, work.spill_txns, work.spill_count),
            (evictions, 1, evictions + 1),
            "{profile}: the rest at the end"
        );
        assert_eq!((work.spill_bytes, work.changes_restored), (100_000 * ROW, 100_000));
        assert_eq!(sink.work[0].1.spill_bytes, work.spill_bytes, "it is the transaction's work");
        assert_eq!(sink.work[0].1.evictions, evictions);
        // Read back: 4096 changes at a time, and at most the limit and the change that reaches it.
        assert!(peak <= limit + ROW, "{profile}: {peak}");
    }
    let (work, peak, _) = within(&log, "pg18", 1 << 20);
    assert!(peak <= (1 << 20) + ROW && work.spill_count == 100_000 / (1u64 << 20).div_ceil(ROW) + 1);
    let (work, peak, _) = within(&log, "pg18", 64 << 20);
    assert_eq!((work.evictions, work.spill_bytes, peak), (0, 0, 100_000 * ROW), "it fits");
}

#[test]
fn up_to_12_a_subtransaction_is_written_out_at_4096_changes() {
    let mut log = Log::consistent(1000);
    rows(&mut log, 1000, 0, 10_000);
    rows(&mut log, 1001, 1000, 4095);
    rows(&mut log, 1002, 1000, 4096);
    log.commit(1000, &[1001, 1002], vec![]);
    for profile in ["pg96", "pg10"] {
        let (work, _, sink) = within(&log, profile, 1);
        // The rest of the top-level one and its first subtransaction follow at the end.
        assert_eq!((work.evictions, work.spill_txns, work.spill_count), (3, 3, 5), "{profile}");
        assert_eq!((work.spill_bytes, work.changes_restored), (18_191 * ROW, 18_191));
        assert_eq!(sink.stream.len(), 18_191 + 2);
    }
}

/// `subxact-eviction` (2024): S savepoints with a small change each, above the limit together.
fn subxact_eviction(savepoints: u32) -> Log {
    let mut log = Log::consistent(1000);
    for sub in 1..=savepoints {
        rows(&mut log, 1000 + sub, 1000, 1);
    }
    log.commit(1000, &(1..=savepoints).map(|sub| 1000 + sub).collect::<Vec<_>>(), vec![]);
    log
}

#[test]
fn victims_cost_a_scan_of_all_or_a_few_comparisons() {
    let limit = 64u64 << 10;
    let fit = limit.div_ceil(ROW);
    for savepoints in [1000u32, 4000] {
        let log = subxact_eviction(savepoints);
        let (scan, _, given) = within(&log, "pg16", limit);
        let (heap, _, same) = within(&log, "pg17", limit);
        assert_eq!(given.stream, same.stream);
        let s = u64::from(savepoints);
        let evictions = s - fit + 1;
        // The top-level transaction is looked at too. At the end the others follow it, one by one.
        assert_eq!(scan.evictions, evictions);
        assert_eq!(scan.transactions_visited, (fit..=s).map(|live| live + 1).sum::<u64>(), "quadratic");
        assert_eq!((heap.evictions, heap.spill_bytes), (evictions, scan.spill_bytes));
        let log2 = u64::from(s.ilog2());
        assert!(heap.transactions_visited <= evictions * (2 + 2 * log2), "near-linear: {}", heap.transactions_visited);
    }
    let visited = |profile: &str| within(&subxact_eviction(8000), profile, limit).0.transactions_visited;
    assert!(visited("pg16") > 30 * visited("pg18+victim-heap"));
}

/// `rolled-back-bulk`: much rolled back in front of small commits.
#[test]
fn what_is_known_to_be_rolled_back_is_dropped_from_18_on() {
    let mut log = Log::consistent(1000);
    rows(&mut log, 1000, 0, 50_000);
    log.push(1000, 0, RecordBody::Abort(Box::default()));
    for xid in 1001..1011 {
        rows(&mut log, xid, 0, 1);
        log.commit(xid, &[], vec![]);
    }
    let run = |profile: &str, known: bool| {
        let mut decoder = decoder_within(PgVersion::V18, profile, WorkMem::MIN);
        if known {
            decoder = decoder.know_status(Box::new(Known::of(&log)));
        }
        let mut sink = Remember::default();
        log.records.iter().for_each(|record| decoder.process(record, &mut sink).unwrap());
        assert_eq!(sink.work.len(), 10);
        decoder.work()
    };
    let each = WorkMem::MIN.bytes().div_ceil(ROW);
    let evictions = 50_000 / each;
    for profile in ["pg18", "indexed", "pg17+drop-aborted"] {
        let work = run(profile, true);
        assert_eq!((work.evictions, work.spill_count, work.spill_bytes), (1, 0, 0), "{profile}: nothing is collected after it");
        assert_eq!(run(profile, false).spill_bytes, evictions * each * ROW, "{profile}: live, nothing is known");
    }
    for profile in ["pg13", "pg16", "pg17"] {
        let work = run(profile, true);
        assert_eq!(
            (work.evictions, work.spill_count, work.spill_bytes),
            (evictions, evictions, evictions * each * ROW),
            "{profile}"
        );
        assert_eq!(work.changes_restored, 0, "rolled back, it is not read again");
    }
}

#[test]
fn a_commit_of_what_was_said_to_be_rolled_back_is_refused() {
    let mut log = Log::consistent(1000);
    rows(&mut log, 1000, 0, 1000);
    log.commit(1000, &[], vec![]);
    let liar = Known(BTreeMap::from([(1000, Lsn(u64::MAX))]));
    let mut decoder = decoder_within(PgVersion::V18, "pg18", WorkMem::MIN).know_status(Box::new(liar));
    let done: Result<(), DecodeError> = log.records.iter().try_for_each(|record| decoder.process(record, &mut NoOutput));
    let error = done.unwrap_err();
    assert!(matches!(error, DecodeError::AbortedCommits { xid: Xid(1000), .. }), "{error}");
}

/// `long-writer-ddl` (2026): snapshots fill the open writer's memory quadratically, and its spill files with it.
#[test]
fn distributed_snapshots_count_in_the_spill_of_a_long_writer() {
    let n = 600u64;
    let mut log = Log::consistent(1000);
    rows(&mut log, 1000, 0, 1);
    for i in 0..n as u32 {
        log.new_cid(1001 + i, 0, 0);
        log.commit(1001 + i, &[], vec![relcache(30_000 + i)]);
    }
    rows(&mut log, 1000, 0, 1);
    log.commit(1000, &[], vec![]);
    for (profile, header) in [("pg13.6", 192), ("pg14.5", 208), ("pg15.1", 208), ("pg18", 192), ("pg17", 208)] {
        let (work, _, sink) = within(&log, profile, 64 << 10);
        let writer = sink.work.iter().find(|(xid, _)| *xid == Xid(1000)).unwrap().1;
        // Snapshot i holds i xids and takes 8 bytes less in memory than in a file; messages are copied by some.
        let copied = if profile.contains('.') { 0 } else { n * (80 + 16) };
        let snapshots: u64 = (1..=n).map(|i| header - 8 + 4 * i).sum();
        assert_eq!(writer.spill_bytes, 2 * ROW + snapshots + copied, "{profile}");
        assert_eq!(work.spill_txns, 1);
    }
    let (work, ..) = within(&log, "indexed", 64 << 10);
    assert_eq!(work.spill_bytes, 0, "on demand the writer gets one snapshot");
}

/// `inval-feedback` (2025): what is handed over counts as if it were copied, so it is written out; the cap still holds.
#[test]
fn messages_handed_over_are_written_out_and_capped() {
    let (k, m) = (9u32, 50u64);
    let mut log = Log::consistent(1000);
    (0..k).for_each(|i| rows(&mut log, 1000 + i, 0, 1));
    for i in 0..k {
        log.new_cid(1000 + i, 0, 0);
        log.commit(1000 + i, &[], vec![relcache(30_000 + i); m as usize]);
    }
    let (apart, _, sink) = within(&log, "pg17.6", 64 << 10);
    let (fed_back, _, same) = within(&log, "pg17.5", 64 << 10);
    assert_eq!(sink.stream, same.stream);
    let last = |sink: &Remember| sink.work.last().unwrap().1;
    // The last one executes what it was handed at its place and at the end, its own (a commit record's) twice.
    assert_eq!(last(&sink).messages_executed, 2 * m * u64::from(k));
    assert_eq!(last(&same).messages_executed, 2 * (m * ((1 << (k - 1)) - 1) + m));
    assert!(fed_back.spill_bytes > m * 16 * (1 << (k - 2)) && fed_back.spill_bytes > 3 * apart.spill_bytes);
    let (own, ..) = within(&log, "indexed", 64 << 10);
    assert_eq!(own.spill_bytes, 0);
}

/// `inval-feedback` (2025): past the cap what was handed over is forgotten, and everything is dropped instead, which nobody can find stale.
#[test]
fn more_messages_than_may_be_handed_over_drop_everything() {
    for (profile, messages, at_the_end) in [
        ("pg17.6", DISTRIBUTED_MESSAGES_MAX, true),
        ("pg17.6", DISTRIBUTED_MESSAGES_MAX - 1, false),
        ("indexed", DISTRIBUTED_MESSAGES_MAX, true),
        ("indexed", DISTRIBUTED_MESSAGES_MAX - 1, false),
    ] {
        let mut log = Log::consistent(1000);
        rows(&mut log, 1000, 0, 1);
        // Loads what the test looks at.
        rows(&mut log, 1001, 0, 1);
        log.commit(1001, &[], vec![]);
        // Messages of a relation that nobody has loaded.
        log.new_cid(1002, 0, 0);
        log.commit(1002, &[], vec![relcache(30_000); messages as usize]);
        rows(&mut log, 1000, 0, 1);
        log.commit(1000, &[], vec![]);
        rows(&mut log, 1003, 0, 1);
        log.commit(1003, &[], vec![]);
        let (_, sink) = decode(&log, PgVersion::V18, profile);
        let loaded =
            |xid: u32| sink.work.iter().filter(|(x, _)| *x == Xid(xid)).map(|(_, work)| work.relations_loaded).sum::<u64>();
        assert_eq!(loaded(1001), 1, "{profile}");
        assert_eq!(loaded(1000) + loaded(1003) > 0, at_the_end, "{profile} with {messages}: {} {}", loaded(1000), loaded(1003));
    }
}

#[test]
fn rows_of_one_record_are_shown_together_even_if_they_did_not_fit() {
    let mut log = Log::consistent(1000);
    for _ in 0..20 {
        let tuples_len = 300 * (7 + 13);
        let insert =
            HeapMultiInsert { target: file(20_000), ntuples: 300, logical: true, tuples_len, ..HeapMultiInsert::default() };
        log.push(1000, 0, RecordBody::MultiInsert(insert));
    }
    log.commit(1000, &[], vec![]);
    let (_, reference) = decode(&log, PgVersion::V18, "pg18");
    assert!(reference.stream[1].ends_with("x300"), "{}", reference.stream[1]);
    let (work, peak, given) = within(&log, "pg18", 64 << 10);
    assert_eq!(given.stream, reference.stream);
    let each = (64u64 << 10).div_ceil(ROW);
    assert_eq!((work.spill_count, work.changes_restored), (6000 / each + 1, 6000));
    assert!(peak <= (64 << 10) + 300 * ROW);
    let (work, _, given) = within(&log, "pg10", 1);
    assert_eq!(given.stream, reference.stream);
    assert_eq!((work.evictions, work.spill_count), (1, 2), "at 4096 changes, not at the end of the record");
}

#[test]
fn logical_messages_and_truncates_come_back() {
    let mut log = Log::consistent(1000);
    for i in 0..100u8 {
        let message = LogicalMessageRecord { db: DATABASE, transactional: true, prefix: vec![b'p'; 3], message: vec![i; 2000] };
        log.push(1000, 0, RecordBody::LogicalMessage(Box::new(message)));
        log.truncate(1000, [20_000, 20_001 + u32::from(i)]);
    }
    log.commit(1000, &[], vec![]);
    let (work, _, _) = within(&log, "pg18", 64 << 10);
    assert_eq!(work.spill_bytes, 100 * (80 + 3 + 1 + 2000 + 16) + 100 * (80 + 8));
    assert_eq!(
        decode_within(&log, PgVersion::V18, "pg18", WorkMem::MIN).1.stream,
        decode(&log, PgVersion::V18, "pg18").1.stream
    );
}

/// Keeps bytes where the test can reach them.
#[derive(Clone, Debug, Default)]
struct Reachable(Arc<Mutex<Files>>);

/// Files by name, and how large they may be together.
type Files = (BTreeMap<String, Vec<u8>>, Option<u64>);

impl SpillStore for Reachable {
    fn append(&mut self, file: SpillFile, bytes: &[u8]) -> Result<(), SpillError> {
        let mut inner = self.0.lock().unwrap();
        let total = inner.0.values().map(Vec::len).sum::<usize>() + bytes.len();
        if let Some(bytes_max) = inner.1.filter(|max| total as u64 > *max) {
            let failure = SpillFailure::Limit { bytes_max };
            return Err(SpillError { action: "write", file: file.to_string(), reason: "too many".to_owned(), failure });
        }
        inner.0.entry(file.to_string()).or_default().extend_from_slice(bytes);
        Ok(())
    }

    fn read(&mut self, file: SpillFile, offset: u64, into: &mut [u8]) -> Result<usize, SpillError> {
        let inner = self.0.lock().unwrap();
        let rest = inner.0.get(&file.to_string()).and_then(|all| all.get(offset as usize..)).unwrap_or_default();
        let n = rest.len().min(into.len());
        into[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn remove(&mut self, file: SpillFile) -> Result<(), SpillError> {
        self.0.lock().unwrap().0.remove(&file.to_string());
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.0.lock().unwrap().0.values().map(|all| all.len() as u64).sum()
    }
}

/// Decodes 3000 rows into `store`; `harm` comes before the commit.
fn harmed(store: &Reachable, harm: impl FnOnce(&mut BTreeMap<String, Vec<u8>>)) -> Result<(), DecodeError> {
    let mut log = Log::consistent(1000);
    rows(&mut log, 1000, 0, 3000);
    log.commit(1000, &[], vec![]);
    let mut decoder: Decoder = decoder_within(PgVersion::V18, "pg18", WorkMem::MIN).spill_to(Box::new(store.clone()));
    let (commit, others): (&WalRecord, _) = log.records.split_last().unwrap();
    others.iter().try_for_each(|record| decoder.process(record, &mut NoOutput))?;
    harm(&mut store.0.lock().unwrap().0);
    decoder.process(commit, &mut NoOutput)
}

#[test]
fn damage_and_a_limit_are_told_with_file_and_place() {
    let refused = |harm: fn(&mut Vec<u8>)| {
        let done = harmed(&Reachable::default(), |files| files.values_mut().for_each(harm));
        let Err(DecodeError::Spill(error)) = done else { panic!("{done:?}") };
        assert_eq!(error.failure, SpillFailure::Damaged);
        assert!(error.to_string().starts_with("read spill file xid-1000-lsn-0-0.spill: "), "{error}");
        error.reason
    };
    assert!(refused(|bytes| bytes[5000] ^= 1).contains("checksum"));
    // What is written out at the commit follows the cut: in the middle of a change, or of nothing.
    assert!(refused(|bytes| bytes.truncate(70_000)).contains("checksum"));
    assert!(refused(|bytes| bytes.truncate(0)).contains("0 bytes are too few"));
    assert!(refused(|bytes| bytes[3] = 0xff).contains("beyond the end"));
    assert!(harmed(&Reachable::default(), |_| ()).is_ok());
    let full = Reachable::default();
    full.0.lock().unwrap().1 = Some(50_000);
    let error = harmed(&full, |_| ()).unwrap_err();
    assert!(matches!(&error, DecodeError::Spill(SpillError { failure: SpillFailure::Limit { .. }, .. })), "{error}");
}

#[test]
fn many_subtransactions_are_read_back_in_small_parts() {
    let mut log = Log::consistent(1000);
    let subs: Vec<u32> = (1001..1201).collect();
    for _ in 0..100 {
        subs.iter().for_each(|sub| rows(&mut log, *sub, 1000, 2));
    }
    log.commit(1000, &subs, vec![]);
    let (_, reference) = decode(&log, PgVersion::V18, "pg18");
    let limit = 64u64 << 10;
    let (work, peak, given) = within(&log, "pg18", limit);
    assert_eq!(given.stream, reference.stream);
    assert_eq!(work.changes_restored, 40_000);
    assert!(peak <= limit + (200 + 1) * ROW, "every part is at most its share and a row: {peak}");
}

#[test]
fn the_sink_sees_the_same_calls_whatever_the_limit() {
    let calls = Rc::new(RefCell::new(0u64));
    let mut log = Log::consistent(1000);
    rows(&mut log, 1000, 0, 500);
    let delete = pg_types::record::HeapDelete {
        target: file(20_000),
        old: OldTuple::Key,
        old_len: 9,
        ..pg_types::record::HeapDelete::default()
    };
    log.push(1000, 0, RecordBody::Delete(delete));
    log.commit(1000, &[], vec![]);
    for limit in [1, 1000, 1 << 20] {
        let (_, _, sink) = within(&log, "pg14", limit);
        *calls.borrow_mut() += sink.stream.len() as u64;
    }
    assert_eq!(*calls.borrow(), 3 * 503);
}
