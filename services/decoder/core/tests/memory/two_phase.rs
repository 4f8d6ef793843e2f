//! Prepared transactions given out at PREPARE: what they hold, when they come, and what is told of their ends.

use decoder_core::{DecoderConfig, TwoPhase, WorkMem};
use pg_types::record::{AbortRecord, CommitRecord, PrepareRecord};
use pg_types::{Lsn, PgVersion, RecordBody, Xid};
use proptest::prelude::*;

use super::streaming::decode;
use super::support::history::{workload, write};
use super::support::{DATABASE, Log, config};
use super::{Known, ROW, rows};

/// Settings with `two_phase`.
fn two_phase(profile: &str, work_mem: WorkMem) -> DecoderConfig {
    DecoderConfig { two_phase: Some(TwoPhase::default()), ..config(PgVersion::V18, profile, work_mem) }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(80) })]

    #[test]
    fn what_is_given_out_at_prepare_is_what_is_given_out_at_the_commit(steps in workload(true), tiny in 1u64..1500) {
        let log = write(&steps, PgVersion::V18, 4);
        let (_, reference) = decode(&log, config(PgVersion::V18, "indexed", WorkMem::default()), None);
        for profile in ["pg13", "pg14", "pg17", "pg18", "indexed"] {
            for (streaming, known) in [(false, false), (false, true), (true, false), (true, true)] {
                let config = DecoderConfig { streaming, ..two_phase(profile, WorkMem::from_bytes(tiny)) };
                let (decoder, given) = decode(&log, config, known.then(|| Known::of(&log)));
                prop_assert_eq!(&given.done, &reference.done, "{} streaming {} known {}", profile, streaming, known);
                prop_assert!(decoder.sizes().transactions > 0 || decoder.sizes().spill_file_bytes == 0);
            }
        }
    }
}

/// Appends PREPARE TRANSACTION.
fn prepare(log: &mut Log, xid: u32, gid: &str) {
    let prepare = PrepareRecord { db: DATABASE, gid: gid.into(), ..PrepareRecord::default() };
    log.push(xid, 0, RecordBody::Prepare(Box::new(prepare)));
}

/// Appends COMMIT PREPARED.
fn commit(log: &mut Log, xid: u32, gid: &str) {
    let commit = CommitRecord { prepared_xid: Xid(xid), gid: gid.into(), db: DATABASE, ..CommitRecord::default() };
    log.push(0, 0, RecordBody::Commit(Box::new(commit)));
}

/// Three prepared transactions: one commits, one is rolled back, one has a name that is excepted.
fn three() -> Log {
    let mut log = Log::consistent(1000);
    rows(&mut log, 1000, 0, 3);
    prepare(&mut log, 1000, "kept");
    rows(&mut log, 1001, 0, 4);
    prepare(&mut log, 1001, "dropped");
    rows(&mut log, 1002, 0, 5);
    prepare(&mut log, 1002, "x_nodecode_y");
    commit(&mut log, 1000, "kept");
    let abort = AbortRecord { prepared_xid: Xid(1001), gid: "dropped".into(), db: DATABASE, ..AbortRecord::default() };
    log.push(0, 0, RecordBody::Abort(Box::new(abort)));
    commit(&mut log, 1002, "x_nodecode_y");
    log
}

#[test]
fn ends_are_told_and_excepted_names_come_at_their_commit() {
    let log = three();
    let (_, off) = decode(&log, config(PgVersion::V18, "pg18", WorkMem::default()), None);
    assert_eq!((off.calls.len(), &off.inserted), (0, &vec![3, 5]), "off: at COMMIT PREPARED");
    let (decoder, all) = decode(&log, two_phase("pg18", WorkMem::default()), None);
    assert_eq!(all.calls, ["prepare 1000", "prepare 1001", "prepare 1002", "commit 1000", "rollback 1001", "commit 1002"]);
    assert_eq!((&all.inserted, decoder.sizes().transactions), (&vec![3, 5], 0));
    let excepting = |text: &str| {
        let two_phase_of = TwoPhase { except: Some(text.into()), ..TwoPhase::default() };
        decode(&log, DecoderConfig { two_phase: Some(two_phase_of), ..two_phase("pg18", WorkMem::default()) }, None).1
    };
    let some = excepting("_nodecode");
    assert_eq!((some.calls.len(), &some.inserted), (4, &vec![3, 5]));
    assert!(!some.calls.iter().any(|call| call.ends_with("1002")), "{:?}", some.calls);
    assert_eq!(excepting("").calls.len(), 6, "no text is in no name");
    let old = DecoderConfig { version: PgVersion::V13, ..two_phase("pg13", WorkMem::default()) };
    assert_eq!(decode(&log, old, None).1.calls.len(), 0, "WAL of 13 cannot tell");
}

#[test]
fn two_phase_at_and_the_confirmed_position_say_what_was_given_out_before() {
    let log = three();
    let prepared = log.records.iter().find(|r| matches!(r.body, RecordBody::Prepare(_))).unwrap().end_lsn;
    let from = |confirmed_lsn, at| {
        let two_phase_of = TwoPhase { at, except: None };
        let base = two_phase("pg18", WorkMem::default());
        decode(&log, DecoderConfig { confirmed_lsn, two_phase: Some(two_phase_of), ..base }, None).1
    };
    // Confirmed behind the first PREPARE, which was given out then: of it only the end is told.
    let again = from(prepared, Lsn(1));
    assert_eq!(again.calls[..3], ["prepare 1001", "prepare 1002", "commit 1000"]);
    assert_eq!(again.inserted, [5]);
    // The same, but it was prepared before the slot had two_phase: it comes when it commits.
    let late = from(prepared, prepared);
    assert_eq!(late.calls[..4], ["prepare 1001", "prepare 1002", "prepare 1000", "commit 1000"]);
    assert_eq!(late.inserted, [3, 5]);
    let end = log.records.last().unwrap().end_lsn;
    assert_eq!(from(end, Lsn(1)).calls.len(), 0, "all was given out");
}

#[test]
fn large_ones_are_given_out_in_blocks_and_prepared_as_such() {
    let mut log = Log::consistent(1000);
    rows(&mut log, 1000, 0, 1000);
    prepare(&mut log, 1000, "large");
    rows(&mut log, 1001, 0, 1000);
    log.commit(1001, &[], vec![]);
    commit(&mut log, 1000, "large");
    let settings = DecoderConfig { streaming: true, ..two_phase("pg18", WorkMem::MIN) };
    let (decoder, sink) = decode(&log, settings, None);
    assert_eq!((sink.calls.join(", "), &sink.inserted), ("stream prepare 1000, commit 1000".to_owned(), &vec![1000, 1000]));
    let work = decoder.work();
    assert_eq!((work.stream_txns, work.stream_bytes, work.spill_count), (2, 2000 * ROW, 0));
}

#[test]
fn one_that_was_rolled_back_meanwhile_is_prepared_as_far_as_it_can_be_decoded() {
    let log = three();
    let (decoder, sink) = decode(&log, two_phase("pg18", WorkMem::default()), Some(Known::of(&log)));
    assert_eq!((sink.calls.len(), &sink.inserted), (6, &vec![3, 5]), "its relation is cached");
    assert_eq!(decoder.work().relations_loaded, 1);
    let mut alone = Log::consistent(1000);
    alone.records.extend(log.records.iter().filter(|r| r.xid == Xid(1001)).cloned());
    alone.records.extend(log.records.iter().filter(|r| matches!(&r.body, RecordBody::Abort(_))).cloned());
    let (decoder, sink) = decode(&alone, two_phase("pg18", WorkMem::default()), Some(Known::of(&alone)));
    assert_eq!((sink.calls.join(", "), decoder.work().relations_loaded), ("prepare 1001, rollback 1001".to_owned(), 0));
}
