//! A decoder that begins with a serialised snapshot gives out what one gives out that never stopped, and builds the same snapshots.

use std::collections::BTreeSet;
use std::sync::Arc;

use decoder_core::{
    DecodeError, Decoder, DecoderConfig, HistoricSnapshot, MemorySnapshots, NoCatalog, NoOutput, SnapBuildState,
    SnapshotFailure, WorkMem,
};
use pg_types::record::{CheckpointRecord, RunningXactsRecord};
use pg_types::{Lsn, PgVersion, RecordBody, WalRecord, Xid};
use proptest::prelude::*;

use crate::support::history::{workload, write};
use crate::support::{Log, Remember, catcache, config, relcache};

/// A profile that sorts committed xids for each snapshot, and one that keeps them sorted.
const PROFILES: [&str; 2] = ["pg18", "indexed"];

/// Decoders that go on where others stopped: their folder, what was given out by all, and how far that is confirmed.
struct Chain {
    version: PgVersion,
    profile: &'static str,
    store: MemorySnapshots,
    given: Remember,
    confirmed: Lsn,
}

impl Chain {
    fn new(version: PgVersion, profile: &'static str) -> Self {
        let (store, given) = (MemorySnapshots::default(), Remember::default());
        Self { version, profile, store, given, confirmed: Lsn::INVALID }
    }

    /// The next decoder, after `before`.
    fn next(&self, before: Option<&Decoder>) -> Decoder {
        let config = config(self.version, self.profile, WorkMem::default());
        let config = DecoderConfig { confirmed_lsn: self.confirmed, ..config };
        let store = Box::new(self.store.clone());
        match before.is_some_and(Decoder::restarts_from_snapshot) {
            true => Decoder::restore(config, Arc::new(NoCatalog), store),
            false => Decoder::new(config, Arc::new(NoCatalog)).serialize_to(store),
        }
    }

    /// Gives a record to a decoder, and notes a commit that comes out as confirmed.
    fn process(&mut self, decoder: &mut Decoder, record: &WalRecord) {
        let before = self.given.work.len();
        decoder.process(record, &mut self.given).unwrap();
        if self.given.work.len() > before {
            self.confirmed = record.end_lsn;
        }
    }

    /// Goes on from where `first`, which stopped before `rest`, says; gives the new decoder before it takes any of `rest`.
    fn restart(&mut self, first: &Decoder, log: &[WalRecord], stop: usize) -> Decoder {
        let mut second = self.next(Some(first));
        let again = log[..stop].iter().filter(|record| record.lsn >= first.restart_lsn());
        again.for_each(|record| self.process(&mut second, record));
        second
    }
}

/// What was given out, without what tells how far a decoder had read: from where on, and how many relations it had met.
fn shown(given: &Remember) -> Vec<String> {
    let without = |line: String, key: &str| {
        let mut parts = line.split(key);
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |all, part| all + part.trim_start_matches(|c: char| c.is_ascii_digit()))
    };
    let keys = [", restart_lsn: Lsn(", ", number: "];
    given.stream.iter().map(|line| keys.iter().fold(line.clone(), |line, key| without(line, key))).collect()
}

/// Places behind RUNNING_XACTS records.
fn stops(log: &Log) -> Vec<usize> {
    let lists = log.records.iter().enumerate().filter(|(_, r)| matches!(r.body, RecordBody::RunningXacts(_)));
    lists.map(|(at, _)| at + 1).collect()
}

/// Whether two snapshots show the same: what lies below the later `xmin` has ended for both.
fn same(a: &HistoricSnapshot, b: &HistoricSnapshot) -> bool {
    let xmin = if a.xmin.precedes(b.xmin) { b.xmin } else { a.xmin };
    let from_there = |s: &HistoricSnapshot| s.xip.iter().copied().filter(|xid| !xid.precedes(xmin)).collect::<Vec<_>>();
    from_there(a) == from_there(b)
}

/// Subtransactions of all commits.
fn subtransactions(log: &Log) -> BTreeSet<u32> {
    let commits = log.records.iter().filter_map(|record| match &record.body {
        RecordBody::Commit(commit) => Some(commit.subxids.iter().map(|xid| xid.0)),
        _ => None,
    });
    commits.flatten().collect()
}

#[test]
fn catalog_rows_are_needed_from_the_oldest_base_snapshot_on_or_from_the_oldest_running_transaction() {
    let mut log = Log::consistent(700);
    log.insert(700, 0, 20_000);
    log.catalog_row(701, 0);
    log.commit(701, &[], vec![relcache(20_000)]);
    log.running(700, 702);
    // Its snapshot is of a time when 700 ran.
    log.insert(702, 0, 20_000);
    log.commit(700, &[], vec![]);
    log.running(702, 703);
    log.commit(702, &[], vec![]);
    // Only a change of catalogs makes a new snapshot, which has the xmin of the last list (a server of 18 does the same).
    log.catalog_row(703, 0);
    log.commit(703, &[], vec![relcache(20_000)]);
    log.insert(710, 0, 20_000);
    log.running(710, 711);
    log.insert(712, 0, 20_000);
    log.running(710, 713);
    log.catalog_row(713, 0);
    log.commit(713, &[], vec![relcache(20_000)]);
    log.commit(710, &[], vec![]);
    log.running(711, 714);
    // Once 712 is known to be a subtransaction, its older snapshot serves both.
    log.insert(711, 0, 20_000);
    log.insert(712, 711, 20_000);
    log.running(711, 714);
    log.commit(711, &[712], vec![]);
    log.running(720, 720);
    for (version, profile) in [(PgVersion::V13, "pg13"), (PgVersion::V18, "indexed")] {
        let mut chain = Chain::new(version, profile);
        let (mut decoder, mut xmins) = (chain.next(None), vec![]);
        assert_eq!(decoder.catalog_xmin(), Xid::INVALID);
        for record in &log.records {
            chain.process(&mut decoder, record);
            if matches!(record.body, RecordBody::RunningXacts(_)) {
                xmins.push(decoder.catalog_xmin().0);
            }
        }
        assert_eq!(xmins, [700, 700, 700, 702, 702, 702, 702, 720], "{version}");
    }
}

#[test]
fn a_real_servers_snapshot_is_restored_and_one_flipped_bit_is_an_error_with_file_and_remedy() {
    let folder = format!("{}/tests/fixtures/snapshots", env!("CARGO_MANIFEST_DIR"));
    let mut files = 0;
    for (version, profile) in PgVersion::ALL.into_iter().zip(["pg13", "pg14", "pg15", "pg16", "pg17", "pg18"]) {
        for entry in std::fs::read_dir(format!("{folder}/pg{version}")).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let lsn = Lsn(u64::from_str_radix(name.trim_start_matches("0-").trim_end_matches(".snap"), 16).unwrap());
            let bytes = std::fs::read(&path).unwrap();
            let restore = |bytes: Vec<u8>| {
                let store = MemorySnapshots::default();
                store.files.lock().unwrap().insert(lsn, bytes);
                let mut decoder =
                    Decoder::restore(config(version, profile, WorkMem::default()), Arc::new(NoCatalog), Box::new(store));
                let list =
                    RunningXactsRecord { next_xid: Xid(900), oldest_running_xid: Xid(800), ..RunningXactsRecord::default() };
                let body = RecordBody::RunningXacts(Box::new(list));
                let (xid, top_xid, end_lsn) = (Xid::INVALID, Xid::INVALID, Lsn(lsn.0 + 64));
                decoder.process(&WalRecord { lsn, end_lsn, xid, top_xid, origin: 0, body }, &mut NoOutput).map(|()| decoder)
            };
            let decoder = restore(bytes.clone()).unwrap();
            assert_eq!((decoder.state(), decoder.restart_lsn()), (SnapBuildState::Consistent, lsn), "{}", path.display());
            assert!(!decoder.historic_snapshot().xip.is_empty() && decoder.catalog_xmin() == decoder.historic_snapshot().xmin);
            for bit in (0..bytes.len() * 8).step_by(37) {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let error = restore(flipped).unwrap_err().to_string();
                assert!(
                    error.contains(&name) && error.contains("move it away, drop the slot and start anew"),
                    "bit {bit}: {error}"
                );
            }
            files += 1;
        }
    }
    assert_eq!(files, 12);
}

#[test]
fn until_the_consistent_point_all_that_ran_at_the_first_list_is_needed() {
    let mut log = Log::default();
    for (oldest, next) in [(690, 700), (695, 705), (701, 710), (712, 730), (725, 735)] {
        log.running(oldest, next);
    }
    let mut decoder = Chain::new(PgVersion::V18, "pg18").next(None);
    let mut xmins = vec![];
    for record in &log.records {
        decoder.process(record, &mut NoOutput).unwrap();
        xmins.push((decoder.catalog_xmin().0, decoder.state() == SnapBuildState::Consistent));
    }
    assert_eq!(xmins, [(690, false), (690, false), (690, false), (712, true), (725, true)]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    #[test]
    fn i1_resumed_at_any_list_of_running_transactions_nothing_differs(steps in workload(true)) {
        for (version, profile) in [(PgVersion::V13, "pg13"), (PgVersion::V15, "pg15"), (PgVersion::V16, "pg16"), (PgVersion::V18, "indexed")] {
            let log = write(&steps, version, 4);
            let (mut whole, mut snapshots) = (Chain::new(version, profile), Vec::new());
            let mut decoder = whole.next(None);
            for record in &log.records {
                whole.process(&mut decoder, record);
                snapshots.push(decoder.historic_snapshot());
            }
            let subs = subtransactions(&log);
            for stop in stops(&log) {
                let mut chain = Chain::new(version, profile);
                let mut first = chain.next(None);
                log.records[..stop].iter().for_each(|record| chain.process(&mut first, record));
                let mut second = chain.restart(&first, &log.records, stop);
                prop_assert_eq!(second.state(), SnapBuildState::Consistent);
                for (record, expected) in log.records.iter().zip(&snapshots).skip(stop) {
                    chain.process(&mut second, record);
                    let mut found = second.historic_snapshot();
                    if version.major() < 16 {
                        // Which subtransactions changed catalogs is not known there: all of an unseen one's do.
                        found.xip.retain(|xid| expected.xip.contains(xid) || !subs.contains(&xid.0));
                    }
                    prop_assert!(same(&found, expected), "{} after {}: {:?} {:?}", version, record.lsn, found, expected);
                    if matches!(record.body, RecordBody::RunningXacts(_)) {
                        prop_assert_eq!((found.xmin, found.xip), (expected.xmin, expected.xip.clone()));
                    }
                }
                prop_assert_eq!(shown(&chain.given), shown(&whole.given), "{} stopped at {}", version, stop);
            }
        }
    }

    #[test]
    fn i1_resumed_again_and_again_nothing_differs_and_the_restart_position_never_goes_back(steps in workload(true)) {
        for profile in PROFILES {
            let log = write(&steps, PgVersion::V18, 4);
            let mut whole = Chain::new(PgVersion::V18, profile);
            let mut decoder = whole.next(None);
            log.records.iter().for_each(|record| whole.process(&mut decoder, record));
            let never_stopped = decoder.historic_snapshot();
            let mut chain = Chain::new(PgVersion::V18, profile);
            let (mut decoder, mut from, mut at) = (chain.next(None), Lsn::INVALID, 0);
            for stop in stops(&log) {
                for record in &log.records[at..stop] {
                    let before = decoder.catalog_xmin();
                    chain.process(&mut decoder, record);
                    let (after, oldest) = (decoder.catalog_xmin(), decoder.historic_snapshot().xmin);
                    prop_assert!(!after.precedes(before) && !after.follows(oldest), "I2: {before} {after}, snapshots need {oldest}");
                }
                prop_assert!(decoder.restart_lsn() >= from, "I2");
                (from, at) = (decoder.restart_lsn(), stop);
                chain.store.files.lock().unwrap().retain(|lsn, _| *lsn >= from);
                decoder = chain.restart(&decoder, &log.records, stop);
            }
            log.records[at..].iter().for_each(|record| chain.process(&mut decoder, record));
            prop_assert_eq!(shown(&chain.given), shown(&whole.given));
            prop_assert!(same(&decoder.historic_snapshot(), &never_stopped));
        }
    }
}

/// A log in which one transaction with catalog changes in a subtransaction runs across two lists, and another begins later.
fn long_one() -> Log {
    let mut log = Log::consistent(1000);
    log.insert(1000, 0, 20_000);
    log.new_cid(1001, 1000, 1);
    log.invalidations(1001, 1000, &[relcache(20_000), catcache(57, 5)]);
    log.running_list(vec![Xid(1000)], vec![Xid(1001)], 1002);
    log.insert(1002, 0, 20_001);
    log.commit(1000, &[1001], vec![relcache(20_000), catcache(57, 5)]);
    log.running_list(vec![Xid(1002)], vec![], 1003);
    log.insert(1002, 0, 20_001);
    log
}

/// Gives the first `n` records of a log to a decoder that serialises to `store`.
fn decoded(log: &Log, n: usize, store: &MemorySnapshots) -> Decoder {
    let config = config(PgVersion::V16, "pg16", WorkMem::default());
    let mut decoder = Decoder::new(config, Arc::new(NoCatalog)).serialize_to(Box::new(store.clone()));
    log.records[..n].iter().for_each(|record| decoder.process(record, &mut NoOutput).unwrap());
    decoder
}

/// What a decoder says that must begin at `record`.
fn resumed(record: &WalRecord, store: &MemorySnapshots) -> Result<Decoder, DecodeError> {
    let config = config(PgVersion::V16, "pg16", WorkMem::default());
    let mut decoder = Decoder::restore(config, Arc::new(NoCatalog), Box::new(store.clone()));
    decoder.process(record, &mut NoOutput).map(|()| decoder)
}

#[test]
fn the_restart_position_is_the_snapshot_before_the_oldest_unfinished_transaction() {
    let (log, store) = (long_one(), MemorySnapshots::default());
    let lsn = |at: usize| log.records[at].lsn;
    let at = |n| {
        let decoder = decoded(&log, n, &store);
        (decoder.restart_lsn(), decoder.restarts_from_snapshot())
    };
    assert_eq!(at(1), (lsn(0), false), "consistent, but nothing is serialised before the next list");
    assert_eq!(at(5), (lsn(0), false), "the oldest transaction began before anything was serialised");
    assert_eq!(at(8), (lsn(4), true), "what is unfinished began after the first list but one");
    assert_eq!(store.files.lock().unwrap().keys().copied().collect::<Vec<_>>(), [lsn(4), lsn(7)]);
}

#[test]
fn a_transaction_that_changed_catalogs_before_is_known_by_the_file() {
    let (log, store) = (long_one(), MemorySnapshots::default());
    decoded(&log, 9, &store);
    let mut second = resumed(&log.records[4], &store).unwrap();
    log.records[5..].iter().for_each(|record| second.process(record, &mut NoOutput).unwrap());
    assert_eq!(second.historic_snapshot().xip, [], "the last list has purged them");
    let mut second = resumed(&log.records[4], &store).unwrap();
    log.records[5..7].iter().for_each(|record| second.process(record, &mut NoOutput).unwrap());
    assert_eq!(second.historic_snapshot().xip, [Xid(1000), Xid(1001)]);
}

#[test]
fn a_server_that_stops_leaves_a_snapshot_too() {
    let (mut log, store) = (Log::consistent(1000), MemorySnapshots::default());
    log.insert(1000, 0, 20_000);
    let checkpoint = CheckpointRecord { shutdown: true, ..CheckpointRecord::default() };
    log.push(0, 0, RecordBody::Checkpoint(Box::new(checkpoint)));
    decoded(&log, 3, &store);
    assert_eq!(resumed(&log.records[2], &store).unwrap().state(), SnapBuildState::Consistent);
    let online = WalRecord { body: RecordBody::Checkpoint(Box::default()), ..log.records[2].clone() };
    assert!(resumed(&online, &store).is_err(), "a checkpoint of a server that goes on is none");
}

#[test]
fn what_is_missing_or_damaged_is_refused_with_file_and_remedy() {
    let (log, store) = (long_one(), MemorySnapshots::default());
    decoded(&log, 9, &store);
    let list = &log.records[4];
    let refused = |store: &MemorySnapshots| match resumed(list, store) {
        Err(DecodeError::Snapshot(error)) => (error.failure, error.to_string()),
        other => panic!("{other:?}"),
    };
    let change = |change: &dyn Fn(&mut Vec<u8>)| {
        let store = MemorySnapshots::default();
        *store.files.lock().unwrap() = decoded_files(&log);
        change(store.files.lock().unwrap().get_mut(&list.lsn).unwrap());
        store
    };
    for (store, failure, why) in [
        (MemorySnapshots::default(), SnapshotFailure::Missing, "it is not there"),
        (change(&|file| file.truncate(100)), SnapshotFailure::Damaged, "too few"),
        (change(&|file| file[33] ^= 4), SnapshotFailure::Damaged, "its checksum is wrong"),
        (change(&|file| file[1] = 0), SnapshotFailure::Damaged, "its magic number is 51A10001"),
        (change(&|file| file[8] = 6), SnapshotFailure::Damaged, "its format is version 6, and PostgreSQL 16 reads version 5"),
    ] {
        let (found, text) = refused(&store);
        assert_eq!(found, failure, "{text}");
        assert!(text.contains("0-1100.snap") && text.contains(why) && text.contains("move it away"), "{text}");
    }
    // Rule (a) needs no file, so that a damaged one does no harm.
    let mut idle = list.clone();
    let RecordBody::RunningXacts(running) = &mut idle.body else { unreachable!() };
    running.oldest_running_xid = running.next_xid;
    assert!(resumed(&idle, &change(&|file| file.clear())).is_ok());
    // A decoder that need not begin with a file is not served a damaged one either.
    let config = config(PgVersion::V16, "pg16", WorkMem::default());
    let mut decoder = Decoder::new(config, Arc::new(NoCatalog)).serialize_to(Box::new(change(&|file| file[33] ^= 4)));
    assert!(decoder.process(list, &mut NoOutput).is_err());
}

/// What a decoder leaves behind.
fn decoded_files(log: &Log) -> std::collections::BTreeMap<Lsn, Vec<u8>> {
    let store = MemorySnapshots::default();
    decoded(log, 9, &store);
    store.files.lock().unwrap().clone()
}

#[test]
fn whom_a_decoder_waits_for_is_named_oldest_first_until_they_end() {
    let mut log = Log::default();
    log.running_list(vec![Xid(702), Xid(701), Xid(u32::MAX - 3)], vec![], 704);
    log.commit(702, &[], vec![]);
    // A list may name whom WAL has ended already.
    log.running_list(vec![Xid(701), Xid(702), Xid(703), Xid(704), Xid(u32::MAX - 3)], vec![], 706);
    log.commit(u32::MAX - 3, &[], vec![]);
    log.commit(701, &[], vec![]);
    log.commit(703, &[], vec![]);
    log.running_list(vec![Xid(704), Xid(706)], vec![], 707);
    log.running_list(vec![Xid(704), Xid(706)], vec![], 708);
    log.commit(704, &[], vec![]);
    log.commit(706, &[], vec![]);
    log.running_list(vec![Xid(707)], vec![], 709);
    let config = config(PgVersion::V16, "pg16", WorkMem::default());
    let mut decoder = Decoder::new(config, Arc::new(NoCatalog));
    let mut seen = Vec::new();
    for record in &log.records {
        decoder.process(record, &mut NoOutput).unwrap();
        seen.push((decoder.state(), decoder.waiting().iter().map(|xid| xid.0).collect::<Vec<_>>()));
    }
    use SnapBuildState::{Building, Consistent, FullSnapshot};
    let old = u32::MAX - 3;
    let expected = [
        (Building, vec![old, 701, 702]),
        (Building, vec![old, 701]),
        (Building, vec![old, 701, 703]),
        (Building, vec![701, 703]),
        (Building, vec![703]),
        (Building, vec![]),
        (FullSnapshot, vec![704, 706]),
        (FullSnapshot, vec![704, 706]),
        (FullSnapshot, vec![706]),
        (FullSnapshot, vec![]),
        (Consistent, vec![]),
    ];
    assert_eq!(seen, expected);
}
