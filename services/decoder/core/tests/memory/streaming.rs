//! Transactions in progress: put together again they are what is given out otherwise, no block ends in the middle of a change, and
//! counters have their closed forms.

use std::collections::BTreeMap;
use std::sync::Arc;

use decoder_core::{
    DecodedChange, DecodedTransaction, Decoder, DecoderConfig, NoCatalog, OutputSink, PreparedEnd, Relation, RelationChanges,
    WorkMem,
};
use pg_types::record::{HeapInsert, HeapMultiInsert, LogicalMessageRecord, TruncateRecord};
use pg_types::{Lsn, PgVersion, RecordBody, Work, Xid};
use proptest::prelude::*;

use super::support::history::{workload, write};
use super::support::{Log, config, file, relcache};
use super::{Known, ROW, rows};

/// Profiles whose servers give out transactions in progress.
const PROFILES: [&str; 8] = ["pg14.5", "pg14", "pg15.1", "pg16", "pg17.5", "pg17", "pg18", "indexed"];

/// A change: whose, where, and what.
type Change = (Xid, Lsn, String, u64);

/// Puts blocks together.
#[derive(Default)]
pub(super) struct Reassembled {
    /// Transactions in progress.
    open: BTreeMap<u32, Vec<Change>>,
    /// The block at hand.
    block: Option<Xid>,
    /// The transaction at hand.
    whole: Vec<Change>,
    /// What is prepared.
    pub(super) prepared: BTreeMap<u32, (Vec<Change>, DecodedTransaction)>,
    /// Calls that concern prepared ones.
    pub(super) calls: Vec<String>,
    /// What is complete.
    pub(super) done: Vec<(Vec<Change>, String)>,
    /// Rows inserted by the transactions that are complete.
    pub(super) inserted: Vec<u64>,
    /// Blocks, and rolled-back transactions after a block.
    pub(super) counts: (u64, u64),
}

impl Reassembled {
    fn push(&mut self, xid: Xid, lsn: Lsn, what: String, n: u64) {
        let list = match self.block {
            Some(top) => self.open.get_mut(&top.0).unwrap(),
            None => &mut self.whole,
        };
        // Rows of one record may come in parts.
        match list.last_mut().filter(|last| (last.0, last.1) == (xid, lsn) && last.2 == what) {
            Some(last) => last.3 += n,
            None => list.push((xid, lsn, what, n)),
        }
    }

    fn end(&mut self, changes: Vec<Change>, t: &DecodedTransaction) {
        let sums = |r: &RelationChanges| format!("{} {} {} {} {} {}", r.name, r.oid, r.insert, r.update, r.delete, r.truncate);
        let relations: Vec<String> = t.relations.iter().map(sums).collect();
        let times = (t.first_lsn, t.commit_lsn, t.end_lsn, t.commit_time);
        self.done.push((changes, format!("{} {times:?} {:?} {relations:?} {:?}", t.xid, t.subxids, t.messages)));
        self.inserted.push(t.relations.iter().map(|r| r.insert).sum());
    }
}

impl OutputSink for Reassembled {
    fn change(&mut self, change: &DecodedChange<'_>) {
        self.push(change.xid, change.lsn, format!("{:?} {}", change.action, change.relation.name), change.rows.into());
    }

    fn truncate(&mut self, lsn: Lsn, xid: Xid, relations: &[&Relation], _: &TruncateRecord) {
        self.push(xid, lsn, format!("{:?}", relations.iter().map(|r| &r.name).collect::<Vec<_>>()), 1);
    }

    fn message(&mut self, lsn: Lsn, xid: Xid, message: &LogicalMessageRecord) {
        self.push(xid, lsn, format!("{message:?}"), 1);
    }

    fn commit(&mut self, t: &DecodedTransaction) {
        assert!(self.block.is_none() && !self.open.contains_key(&t.xid.0));
        let changes = std::mem::take(&mut self.whole);
        self.end(changes, t);
    }

    fn stream_start(&mut self, xid: Xid, _: Lsn, first: bool) {
        assert!(self.block.is_none() && self.whole.is_empty());
        assert_eq!(first, self.open.insert(xid.0, self.open.get(&xid.0).cloned().unwrap_or_default()).is_none());
        self.block = Some(xid);
        self.counts.0 += 1;
    }

    fn stream_stop(&mut self, xid: Xid, lsn: Lsn) {
        assert_eq!(self.block.take(), Some(xid));
        assert!(self.open[&xid.0].last().is_none_or(|change| change.1 <= lsn));
    }

    fn stream_abort(&mut self, top_xid: Xid, xid: Xid, _: Lsn) {
        self.counts.1 += 1;
        if xid == top_xid {
            assert!(self.open.remove(&xid.0).is_some());
        } else {
            self.open.get_mut(&top_xid.0).unwrap().retain(|change| change.0 != xid);
        }
    }

    fn stream_commit(&mut self, t: &DecodedTransaction) {
        let changes = self.open.remove(&t.xid.0).unwrap();
        self.end(changes, t);
    }

    fn prepare(&mut self, t: &DecodedTransaction) {
        self.calls.push(format!("prepare {}", t.xid));
        let changes = std::mem::take(&mut self.whole);
        self.prepared.insert(t.xid.0, (changes, t.clone()));
    }

    fn stream_prepare(&mut self, t: &DecodedTransaction) {
        self.calls.push(format!("stream prepare {}", t.xid));
        let changes = self.open.remove(&t.xid.0).unwrap();
        self.prepared.insert(t.xid.0, (changes, t.clone()));
    }

    fn commit_prepared(&mut self, end: &PreparedEnd) {
        self.calls.push(format!("commit {}", end.xid));
        // One without changes is not shown when it is prepared, as in PostgreSQL.
        let Some((changes, mut t)) = self.prepared.remove(&end.xid.0) else { return };
        assert_eq!((t.end_lsn, t.commit_time), (end.prepare_end_lsn, end.prepare_time));
        (t.commit_lsn, t.end_lsn, t.commit_time) = (end.lsn, end.end_lsn, end.time);
        self.end(changes, &t);
    }

    fn rollback_prepared(&mut self, end: &PreparedEnd) {
        self.calls.push(format!("rollback {}", end.xid));
        self.prepared.remove(&end.xid.0);
    }
}

/// Decodes with blocks, or without.
pub(super) fn decode(log: &Log, config: DecoderConfig, status: Option<Known>) -> (Decoder, Reassembled) {
    let mut decoder = Decoder::new(config, Arc::new(NoCatalog));
    if let Some(status) = status {
        decoder = decoder.know_status(Box::new(status));
    }
    let mut sink = Reassembled::default();
    log.records.iter().for_each(|record| decoder.process(record, &mut sink).unwrap());
    (decoder, sink)
}

/// The same of a profile within a limit.
fn streamed(log: &Log, profile: &str, bytes: u64) -> (Work, Reassembled) {
    let config = DecoderConfig { streaming: true, ..config(PgVersion::V18, profile, WorkMem::from_bytes(bytes)) };
    let (decoder, sink) = decode(log, config, None);
    assert!(decoder.sizes().memory_bytes_peak < bytes + (64 << 10), "{profile}: {:?}", decoder.sizes());
    (decoder.work(), sink)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(80) })]

    #[test]
    fn i1_blocks_put_together_are_what_is_given_out_otherwise(steps in workload(true), tiny in 1u64..1500) {
        let log = write(&steps, PgVersion::V18, 4);
        let (_, reference) = decode(&log, config(PgVersion::V18, "indexed", WorkMem::default()), None);
        for profile in PROFILES.into_iter().chain(["pg13", "pg96"]) {
            for known in [false, true] {
                let config = config(PgVersion::V18, profile, WorkMem::from_bytes(tiny));
                let status = known.then(|| Known::of(&log));
                let (decoder, given) = decode(&log, DecoderConfig { streaming: true, ..config }, status);
                prop_assert_eq!(&given.done, &reference.done, "{} known {}", profile, known);
                prop_assert_eq!(given.counts.0 > 0, decoder.work().stream_count > 0 && decoder.work().stream_bytes > 0);
                prop_assert!(given.counts.0 <= decoder.work().stream_count);
                prop_assert!(decoder.sizes().transactions > 0 || decoder.sizes().spill_file_bytes == 0);
            }
        }
    }

    #[test]
    fn i3_after_blocks_the_same_is_cached_by_all_that_choose_the_same_victims(steps in workload(false), tiny in 1u64..1500) {
        let log = write(&steps, PgVersion::V18, 1);
        let after = |profile: &str| {
            let config = config(PgVersion::V18, profile, WorkMem::from_bytes(tiny));
            decode(&log, DecoderConfig { streaming: true, ..config }, None).0.cache_contents()
        };
        // Other victims end other blocks, and what an aborted transaction looked up before its abort depends on them.
        prop_assert_eq!(after("pg14.5"), after("pg14"));
        prop_assert_eq!(after("pg17"), after("pg18"));
        prop_assert_eq!(after("indexed"), after("pg18"));
    }
}

#[test]
fn a_large_transaction_is_given_out_each_time_it_reaches_the_limit() {
    let mut log = Log::consistent(1000);
    rows(&mut log, 1000, 0, 5_000);
    rows(&mut log, 1001, 1000, 5_000);
    log.commit(1000, &[1001], vec![]);
    let limit = 64u64 << 10;
    let blocks = 10_000 / limit.div_ceil(ROW);
    for profile in PROFILES {
        let (work, sink) = streamed(&log, profile, limit);
        assert_eq!((work.stream_txns, work.stream_count, work.stream_bytes), (1, blocks + 1, 10_000 * ROW), "{profile}");
        assert_eq!((work.spill_count, work.evictions, sink.counts), (0, 0, (blocks + 1, 0)));
        assert_eq!(work.transactions_visited, blocks, "only top-level ones are looked at");
        assert_eq!(sink.done[0].0.iter().map(|change| change.3).sum::<u64>(), 10_000);
    }
    for profile in ["pg10", "pg13"] {
        let (work, sink) = (streamed(&log, profile, 64 << 20).0, streamed(&log, "pg13", limit).1);
        assert_eq!((work.stream_count, sink.counts), (0, (0, 0)), "{profile} gives out whole transactions");
    }
}

#[test]
fn i2_toast_and_speculative_inserts_are_spilled_until_they_are_complete() {
    let toast = HeapInsert { target: file(30_000), logical: true, toast: true, tuple_len: 5 + 2000, ..HeapInsert::default() };
    let mut log = Log::consistent(1000);
    for _ in 0..3 {
        (0..100).for_each(|_| log.push(1000, 0, RecordBody::Insert(toast)));
        rows(&mut log, 1000, 0, 1);
    }
    log.commit(1000, &[], vec![]);
    for profile in PROFILES {
        let (work, sink) = streamed(&log, profile, 64 << 10);
        // Each row is given out with its chunks as soon as it is there, and nothing is left for the end.
        assert_eq!((work.stream_txns, work.stream_count, sink.counts.0), (1, 4, 3), "{profile}");
        assert!(work.spill_txns == 1 && work.spill_count >= 9 && work.changes_restored == 303, "{profile}: {work:?}");
    }
    let speculative = HeapInsert { target: file(20_000), logical: true, speculative: true, ..HeapInsert::default() };
    let mut log = Log::consistent(1000);
    log.push(1000, 0, RecordBody::Insert(speculative));
    log.push(1000, 0, RecordBody::Confirm(pg_types::record::HeapPlace { target: file(20_000), ..Default::default() }));
    log.commit(1000, &[], vec![]);
    let (work, sink) = streamed(&log, "pg18", 1);
    assert_eq!((work.spill_count, work.stream_count, sink.counts.0), (2, 2, 1), "the insert alone is no block");
}

#[test]
fn rows_of_one_record_may_be_in_two_blocks() {
    let tuples_len = 300 * (7 + 13);
    let insert =
        HeapMultiInsert { target: file(20_000), ntuples: 300, logical: true, tuples_len, ..HeapMultiInsert::default() };
    let mut log = Log::consistent(1000);
    (0..20).for_each(|_| log.push(1000, 0, RecordBody::MultiInsert(insert)));
    log.commit(1000, &[], vec![]);
    let (work, sink) = streamed(&log, "pg18", 64 << 10);
    let each = (64u64 << 10).div_ceil(ROW);
    assert_eq!((work.stream_count, sink.counts.0), (6000 / each + 1, 6000 / each + 1));
    assert!(sink.done[0].0.iter().all(|change| change.3 == 300), "and are 300 again when put together");
}

#[test]
fn what_was_given_out_and_rolled_back_is_told() {
    let mut log = Log::consistent(1000);
    rows(&mut log, 1000, 0, 600);
    rows(&mut log, 1001, 1000, 600);
    log.push(1001, 0, RecordBody::Abort(Box::default()));
    rows(&mut log, 1000, 0, 10);
    log.commit(1000, &[], vec![]);
    rows(&mut log, 1002, 0, 600);
    log.push(1002, 0, RecordBody::Abort(Box::default()));
    rows(&mut log, 1003, 0, 600);
    log.running(1004, 1004);
    let (_, sink) = streamed(&log, "pg17", 64 << 10);
    assert_eq!(sink.counts.1, 3, "a subtransaction, a transaction, and one that a crash ended");
    assert_eq!((&sink.inserted, sink.open.len()), (&vec![610], 0));
    // Known beforehand: what must be loaded for it shows that it is rolled back, but not where the relation is cached.
    let config = DecoderConfig { streaming: true, ..config(PgVersion::V18, "pg17", WorkMem::MIN) };
    let (decoder, known) = decode(&log, config, Some(Known::of(&log)));
    assert_eq!(known.done, sink.done);
    assert_eq!(decoder.work().stream_txns, 3);
    let mut first = Log::consistent(1000);
    first.records.extend(log.records[1..].iter().filter(|record| record.xid == Xid(1002)).cloned());
    let config = DecoderConfig { streaming: true, ..super::support::config(PgVersion::V18, "pg17", WorkMem::MIN) };
    let (decoder, known) = decode(&first, config, Some(Known::of(&first)));
    assert_eq!(
        (decoder.work().stream_count, known.counts, decoder.work().relations_loaded),
        (1, (1, 1), 0),
        "nothing more is collected"
    );
}

#[test]
fn blocks_begin_where_the_one_before_ended() {
    // A schema change in the first block: the second one is decoded after it, and what it loads is dropped again.
    let mut log = Log::consistent(1000);
    log.new_cid(1000, 0, 0);
    log.invalidations(1000, 0, &[relcache(20_000)]);
    rows(&mut log, 1000, 0, 1200);
    log.commit(1000, &[], vec![relcache(20_000)]);
    for (profile, executed) in [("pg14", 1 + 3), ("pg18", 1 + 3), ("indexed", 4)] {
        let (work, sink) = streamed(&log, profile, 64 << 10);
        assert_eq!((sink.counts.0, work.relations_loaded), (3, 3), "{profile}: each block loads it");
        assert_eq!(work.messages_executed, executed, "{profile}: at its place, and after each block");
    }
}

#[test]
fn nothing_is_given_out_that_was_before() {
    let mut log = Log::consistent(1000);
    rows(&mut log, 1000, 0, 3000);
    log.commit(1000, &[], vec![]);
    let end = log.records.last().unwrap().end_lsn;
    let base = DecoderConfig { streaming: true, ..config(PgVersion::V18, "pg18", WorkMem::MIN) };
    let (decoder, sink) = decode(&log, DecoderConfig { confirmed_lsn: end, ..base.clone() }, None);
    assert_eq!((decoder.work().stream_count, sink.counts.0, sink.done.len()), (0, 0, 0));
    assert!(decoder.work().spill_count > 0, "it is written out instead");
    // Confirmed in its middle: from there on all of it is given out.
    let middle = log.records[2000].lsn;
    let (decoder, sink) = decode(&log, DecoderConfig { confirmed_lsn: middle, ..base }, None);
    assert_eq!(sink.inserted, [3000]);
    assert!(decoder.work().spill_count > 0 && decoder.work().stream_count > 1);
}

/// Notes the calls that concern blocks, but not their contents.
#[derive(Default)]
struct Calls(Vec<String>);

impl OutputSink for Calls {
    fn stream_start(&mut self, xid: Xid, _: Lsn, first: bool) {
        self.0.push(format!("start {xid} {first}"));
    }

    fn stream_abort(&mut self, top_xid: Xid, xid: Xid, _: Lsn) {
        self.0.push(format!("abort {xid} of {top_xid}"));
    }

    fn stream_commit(&mut self, t: &DecodedTransaction) {
        self.0.push(format!("commit {} {}", t.xid, t.relations[0].insert));
    }

    fn commit(&mut self, t: &DecodedTransaction) {
        self.0.push(format!("whole {}", t.xid));
    }
}

/// What is read ahead tells of a rollback before a block comes to its subtransaction, of which nothing can be read any more.
#[test]
fn a_subtransaction_rolled_back_meanwhile_takes_nothing_of_others_with_it() {
    let mut log = Log::consistent(1000);
    log.insert(1000, 0, 20_000);
    log.insert(1001, 1000, 20_001);
    log.insert(1001, 1000, 20_002);
    log.insert(1002, 1000, 20_003);
    rows(&mut log, 1000, 0, 600);
    log.insert(1001, 1000, 20_001);
    log.push(1001, 0, RecordBody::Abort(Box::default()));
    log.commit(1000, &[1002], vec![]);
    for profile in PROFILES {
        let with = |streaming| DecoderConfig { streaming, ..config(PgVersion::V18, profile, WorkMem::MIN) };
        let (_, whole) = decode(&log, with(false), None);
        let (decoder, blocks) = decode(&log, with(true), Some(Known::of(&log)));
        assert!(decoder.work().stream_count > 1, "{profile}");
        assert_eq!(whole.done[0].0.len(), 602, "{profile}");
        assert_eq!(blocks.done, whole.done, "{profile}");
    }
}

/// Up to there its consumer keeps what another decoder gave out, whose blocks were others.
#[test]
fn blocks_come_behind_what_the_consumer_keeps() {
    let mut log = Log::consistent(1000);
    rows(&mut log, 1000, 0, 2000);
    let kept = log.records[1500].end_lsn;
    log.commit(1000, &[], vec![]);
    /// Where blocks begin and end.
    #[derive(Default)]
    struct Stops(Vec<Lsn>);
    impl OutputSink for Stops {
        fn stream_stop(&mut self, _: Xid, lsn: Lsn) {
            self.0.push(lsn);
        }
    }
    let stops = |behind: Lsn| {
        let config = DecoderConfig { streaming: true, ..config(PgVersion::V18, "pg17", WorkMem::MIN) };
        let (mut decoder, mut stops) = (Decoder::new(config, Arc::new(NoCatalog)).streams_behind(behind), Stops::default());
        log.records.iter().for_each(|record| decoder.process(record, &mut stops).unwrap());
        stops.0
    };
    let (all, late) = (stops(Lsn::INVALID), stops(kept));
    assert!(all.iter().filter(|&&lsn| lsn < kept).count() > 2, "{all:?}");
    assert!(!late.is_empty() && late.iter().all(|&lsn| lsn >= kept), "{late:?} behind {kept}");
}

#[test]
fn a_decoder_that_goes_on_for_another_tells_the_ends_of_what_that_one_gave_out() {
    let mut log = Log::consistent(1000);
    rows(&mut log, 1000, 0, 600);
    rows(&mut log, 1001, 1000, 600);
    rows(&mut log, 1002, 0, 600);
    let stopped = log.records.len();
    rows(&mut log, 1003, 1000, 1);
    log.push(1001, 0, RecordBody::Abort(Box::default()));
    log.push(1003, 0, RecordBody::Abort(Box::default()));
    log.push(1002, 0, RecordBody::Abort(Box::default()));
    rows(&mut log, 1004, 0, 1);
    log.commit(1004, &[], vec![]);
    log.commit(1000, &[], vec![]);
    let base = DecoderConfig { streaming: true, ..config(PgVersion::V18, "pg18", WorkMem::MIN) };
    let mut first = Decoder::new(base.clone(), Arc::new(NoCatalog));
    let mut calls = Calls::default();
    log.records[..stopped].iter().for_each(|record| first.process(record, &mut calls).unwrap());
    assert_eq!(
        calls.0.iter().filter(|call| call.ends_with("true")).collect::<Vec<_>>(),
        ["start 1000 true", "start 1002 true"]
    );
    let confirmed_lsn = log.records[stopped - 1].end_lsn;
    let goes_on = |before: Vec<(Xid, Lsn)>| {
        let decoder = Decoder::resume(DecoderConfig { confirmed_lsn, ..base.clone() }, Arc::new(NoCatalog));
        let (mut decoder, mut calls) = (decoder.streamed_before(before), Calls::default());
        log.records[1..].iter().for_each(|record| decoder.process(record, &mut calls).unwrap());
        assert_eq!(decoder.sizes().transactions, 0);
        calls.0
    };
    let to = log.records[stopped - 1].lsn;
    let told = goes_on(vec![(Xid(1000), to), (Xid(1002), to)]);
    // What was spilled until there is no block; the subtransaction that began since then is in none.
    assert_eq!(told, ["abort 1001 of 1000", "abort 1002 of 1002", "whole 1004", "start 1000 false", "commit 1000 600"]);
    assert_eq!(goes_on(vec![]), ["whole 1004", "whole 1000"], "without it their ends would be missed");
}
