//! A standby that begins to read at any record of real WAL comes to the state of one that replayed everything.
#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

#[path = "../../core/tests/support/running.rs"]
mod running;
mod support;

use std::collections::{BTreeMap, HashSet};

use pg_types::{Lsn, RecordBody, WalRecord};
use pg_wal::WalProfile;
use pg_wal::record::{Crc, decode_bytes};
use running::running;
use standby_core::{RecoveryWriter, StandbySettings, StandbyState};
use standby_node::begin::{BeginSearch, Beginning};
use standby_node::config::StartAt;
use support::Wal;

/// Records from one beginning to the next; it divides nothing that recurs in the fixtures.
const STEP: usize = 7;
/// Records between two comparisons of what runs, which asks for each xid.
const COMPARE: usize = 32;

/// A standby as the fixtures' was set up.
fn standby(profile: &str, beginning: &Beginning) -> RecoveryWriter {
    let settings = StandbySettings { max_connections: 40, max_prepared_transactions: 10, ..StandbySettings::default() };
    let mut writer = RecoveryWriter::new(&settings, profile.parse().unwrap()).unwrap();
    writer.start_at_checkpoint(&beginning.checkpoint, beginning.lsn).unwrap();
    writer
}

/// What a search from each position on begins at: beginnings by where they are, those that differ each once, and how many searches
/// came to an end of WAL instead.
fn beginnings(records: &[WalRecord]) -> (BTreeMap<Lsn, Vec<Beginning>>, usize) {
    let (mut found, mut none) = (BTreeMap::<Lsn, Vec<Beginning>>::new(), 0);
    for at in (0..records.len()).step_by(STEP) {
        // A stream brings what is from the position on; one that has it all looks past what is before.
        for (start, from) in [(StartAt::RunningXacts, at), (StartAt::Checkpoint, at), (StartAt::Lsn(records[at].lsn), 0)] {
            let mut search = BeginSearch::new(start);
            let Some(beginning) = records[from..].iter().find_map(|record| search.look(record)) else {
                none += 1;
                continue;
            };
            let there = found.entry(beginning.lsn).or_default();
            if !there.contains(&beginning) {
                there.push(beginning);
            }
        }
    }
    (found, none)
}

#[test]
fn a_standby_that_begins_at_any_record_comes_to_the_state_of_one_that_replayed_everything() {
    for (version, profiles) in
        [("13", ["pg13", "pg13.6"]), ("15", ["pg15", "pg15.1"]), ("16", ["pg16", "indexed"]), ("18", ["pg18", "indexed"])]
    {
        let wal = Wal::standby(&format!("pg{version}"));
        let profile = WalProfile::of(wal.identity.version);
        let decode = |r: &support::Record| decode_bytes(profile, r.lsn, r.end_lsn, &r.bytes, Crc::Trust).unwrap();
        let records: Vec<WalRecord> = wal.records.iter().map(decode).collect();
        for profile in profiles {
            compare(profile, &records);
        }
    }
}

/// Replays from the first beginning and, beside it, from each later one.
fn compare(profile: &str, records: &[WalRecord]) {
    let (mut found, none) = beginnings(records);
    assert!(none > 0 && found.len() > 3, "{profile}: {} beginnings, {none} searches without", found.len());
    let (mut whole, mut late) = (None::<RecoveryWriter>, Vec::<RecoveryWriter>::new());
    let (mut aborted, mut compared, mut pending, mut unlisted) = (HashSet::new(), 0, 0, 0);
    for (n, record) in records.iter().enumerate() {
        if let RecordBody::Abort(abort) = &record.body {
            aborted.extend(abort.subxids.iter().chain([&record.xid]));
        }
        for writer in late.iter_mut().chain(&mut whole) {
            writer.apply(record).unwrap();
        }
        for beginning in found.remove(&record.lsn).unwrap_or_default() {
            let mut writer = standby(profile, &beginning);
            writer.apply(&beginning.first).unwrap();
            pending += usize::from(writer.state().standby_state == StandbyState::SnapshotPending);
            if whole.is_none() { whole = Some(writer) } else { late.push(writer) }
        }
        let Some(whole) = whole.as_ref().filter(|_| n % COMPARE == 0) else { continue };
        let Ok(all) = whole.reader().snapshot() else { continue };
        for one in &late {
            let Ok(taken) = one.reader().snapshot() else { continue };
            let (a, b) = (&all.snapshot, &taken.snapshot);
            assert_eq!((a.replay_lsn, a.xmin, a.xmax), (b.replay_lsn, b.xmin, b.xmax), "{profile}");
            assert_eq!(running(whole, a, &aborted), running(one, b, &aborted), "{profile} at {}", record.lsn);
            compared += 1;
        }
    }
    let end = whole.unwrap().state();
    for one in &late {
        let one = one.state();
        if one.standby_state == StandbyState::Initialized {
            // It began at a checkpoint behind which there is no list.
            unlisted += 1;
            continue;
        }
        assert_eq!(one.standby_state, StandbyState::SnapshotReady, "{profile}");
        assert_eq!(one.known_assigned.live_xids(), end.known_assigned.live_xids(), "{profile}");
        assert_eq!((one.next_xid.xid(), one.latest_completed_xid), (end.next_xid.xid(), end.latest_completed_xid), "{profile}");
    }
    println!("{profile}: {} beginnings, {compared} comparisons, {pending} began pending, {unlisted} met no list", late.len());
    assert!(
        compared > 1_000 && pending > 0 && unlisted <= 1,
        "{profile}: {compared} comparisons, {unlisted} of {} met no list",
        late.len()
    );
}
