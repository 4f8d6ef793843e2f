//! `subxact-cliff`: subtransactions cost nothing until they are assigned; then each xid that a reader meets is looked up.

use std::collections::BTreeSet;
use std::sync::Arc;

use pg_types::{RecordBody, WalRecord, Xid};
use primary_core::ParameterValue;
use standby_core::slru::{SUBTRANS_BUFFERS, SlruBuffers, SlruCounts};
use standby_core::subtrans::page_of;
use standby_core::visibility::xid_in_mvcc_snapshot;
use standby_core::{ReplayedState, StandbyState, TakenSnapshot};
use walstorm_proto::standby::v1::{GetRecoveryStateRequest, SubtransPages, VisibilityResult};

use crate::played::{Played, ended, number, text};
use crate::rig::{Reader, Rig};

/// `PGPROC_MAX_CACHED_SUBXIDS`: so many subtransactions are assigned together.
const CACHED: u64 = 64;

/// What readers met.
#[derive(Debug, Default)]
struct Met {
    snapshots: u64,
    suboverflowed: u64,
    lookups: u64,
}

/// Replays records; after each end a reader asks of the ended transaction's ids whether they run.
fn read(played: &Played, records: &[&WalRecord]) -> Met {
    let (mut writer, mut met) = (played.standby("pg18"), Met::default());
    let mut buffers = SlruBuffers::new(SUBTRANS_BUFFERS, false);
    for record in records {
        writer.apply(record).unwrap();
        let ended = ended(record);
        if ended.is_empty() || writer.state().standby_state != StandbyState::SnapshotReady {
            continue;
        }
        let taken = writer.reader().snapshot().unwrap();
        met.snapshots += 1;
        met.suboverflowed += u64::from(taken.snapshot.suboverflowed);
        for xid in ended {
            assert!(
                !xid_in_mvcc_snapshot(xid, &taken.snapshot, &writer.state().subtrans, &mut |page| _ = buffers.read(page)),
                "{xid} has ended"
            );
        }
    }
    met.lookups = buffers.counts().lookups();
    met
}

/// The subtransactions of each assignment.
fn assigned(played: &Played) -> Vec<usize> {
    let assignment = |record: &WalRecord| match &record.body {
        RecordBody::Assignment(assignment) => Some(assignment.subxids.len()),
        _ => None,
    };
    played.records.iter().filter_map(assignment).collect()
}

/// The scenario with so many savepoints, and rows before the first.
fn cliff(savepoints: u64, first: u64) -> Played {
    Played::small("subxact-cliff", &[("savepoints", number(savepoints)), ("first", number(first))])
}

#[test]
fn three_savepoints_overflow_a_standby_of_a_logical_primary_only() {
    let played = cliff(3, 0);
    let all: Vec<&WalRecord> = played.records.iter().collect();
    let assigned = assigned(&played);
    assert!(assigned.len() > 300 && assigned.iter().all(|&subxids| subxids == 1), "one subtransaction overflows");
    let logical = read(&played, &all);
    assert!(logical.suboverflowed * 2 > logical.snapshots && logical.lookups > logical.suboverflowed, "{logical:?}");
    // With wal_level = replica nothing but 64 subtransactions are assigned.
    let at_replica = Played::small_at_replica("subxact-cliff", &[("savepoints", number(3)), ("first", number(0))]);
    assert_eq!(self::assigned(&at_replica), [0; 0]);
    let replica = read(&at_replica, &at_replica.records.iter().collect::<Vec<_>>());
    assert_eq!((replica.snapshots, replica.suboverflowed, replica.lookups), (logical.snapshots, 0, 0));
    // As with an xid before the first savepoint.
    let before = cliff(3, 1);
    let met = read(&before, &before.records.iter().collect::<Vec<_>>());
    assert!(met.snapshots > 300 && met.suboverflowed == 0 && met.lookups == 0, "{met:?}");
}

#[test]
fn lookups_start_with_the_64th_subtransaction() {
    for (savepoints, of_each) in [(CACHED - 1, 0), (CACHED, 1), (2 * CACHED, 2)] {
        let played = Played::small(
            "subxact-cliff",
            &[("savepoints", number(savepoints)), ("first", number(1)), ("rate", text("40/s")), ("length", text("1s"))],
        );
        let committed = played.log.engine().tally(Some("short")).unwrap().get("committed").unwrap();
        let assigned = assigned(&played);
        assert_eq!(assigned.len() as u64, of_each * committed, "{savepoints}");
        assert!(assigned.iter().all(|&subxids| subxids as u64 == CACHED), "{savepoints}");
        let met = read(&played, &played.records.iter().collect::<Vec<_>>());
        assert!(met.snapshots > 20, "{met:?}");
        assert_eq!((met.suboverflowed > 0, met.lookups > 0), (of_each > 0, of_each > 0), "{savepoints}: {met:?}");
    }
}

/// The state and snapshot with the most xids between xmin and xmax.
fn widest(played: &Played) -> (Arc<ReplayedState>, TakenSnapshot) {
    let mut writer = played.standby("pg18");
    let mut widest: Option<(u32, Arc<ReplayedState>, TakenSnapshot)> = None;
    for record in &played.records {
        writer.apply(record).unwrap();
        if ended(record).is_empty() || writer.state().standby_state != StandbyState::SnapshotReady {
            continue;
        }
        let taken = writer.reader().snapshot().unwrap();
        let width = taken.snapshot.xmax.numeric() - taken.snapshot.xmin.numeric();
        if widest.as_ref().is_none_or(|(most, ..)| width > *most) {
            widest = Some((width, writer.state(), taken));
        }
    }
    let (_, state, taken) = widest.unwrap();
    (state, taken)
}

#[test]
fn pages_are_read_again_and_again_past_32_of_them() {
    let played = |length: &str| {
        let parameters: [(&str, ParameterValue); 4] =
            [("savepoints", number(CACHED)), ("first", number(1)), ("rate", text("2000/s")), ("length", text(length))];
        Played::small("subxact-cliff", &parameters)
    };
    for (length, cliff) in [("1s", false), ("4s", true)] {
        let (state, taken) = widest(&played(length));
        let snapshot = &taken.snapshot;
        let (first, last) = (snapshot.xmin.numeric(), snapshot.xmax.numeric() - 1);
        let pages = u64::from(page_of(Xid(last)) - page_of(Xid(first)) + 1);
        assert!(snapshot.suboverflowed && (pages > 32) == cliff, "{pages} pages");
        let mut buffers = SlruBuffers::new(SUBTRANS_BUFFERS, false);
        for round in 1..=2 {
            for xid in first..=last {
                // The pages are what counts here.
                let _ = xid_in_mvcc_snapshot(Xid(xid), snapshot, &state.subtrans, &mut |page| _ = buffers.read(page));
            }
            let SlruCounts { hits, misses } = buffers.counts();
            assert_eq!(misses, if cliff { round * pages } else { pages }, "round {round} of {length}");
            assert!(hits + misses >= round * u64::from(last - first + 1), "each xid is looked up");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_over_grpc_get_suboverflowed_snapshots_where_an_assignment_came() {
    for first in [0, 1] {
        let played = cliff(3, first);
        let mut rig = Rig::start(&played, |_| ()).await;
        let (mut snapshots, mut suboverflowed) = (0, 0);
        let ends: Vec<&WalRecord> = played.records.iter().filter(|record| !ended(record).is_empty()).collect();
        for record in ends.iter().step_by(ends.len() / 40) {
            let at = rig.grow(record.end_lsn).await;
            let snapshot = rig.snapshot().await.unwrap();
            assert_eq!(snapshot.replay_lsn, record.end_lsn.0);
            assert_eq!(snapshot.last_overflowed_xid, at.last_overflowed_xid.numeric());
            assert_eq!(snapshot.suboverflowed, snapshot.last_overflowed_xid >= snapshot.xmin);
            snapshots += 1;
            suboverflowed += u64::from(snapshot.suboverflowed);
        }
        assert!(if first == 0 { suboverflowed * 2 > snapshots } else { suboverflowed == 0 }, "{suboverflowed} of {snapshots}");
        rig.stop().await;
    }
}

/// What a reader over gRPC asks when everything up to a record is replayed, twice: each xid between xmin and xmax, many at a time.
async fn ask_all(rig: &mut Rig, running: &dyn Fn(u32) -> bool) -> (u64, [VisibilityResult; 2]) {
    let mut reader = Reader::start(rig.client.clone()).await.unwrap();
    let (xmin, xmax) = (reader.snapshot.xmin, reader.snapshot.xmax);
    let mut rounds = [VisibilityResult::default(), VisibilityResult::default()];
    for round in &mut rounds {
        for first in (xmin..xmax).step_by(5000) {
            let xids: Vec<u32> = (first..xmax.min(first + 5000)).collect();
            let result = reader.check(xids.clone()).await;
            for (xid, runs) in xids.into_iter().zip(result.running) {
                assert_eq!(runs, running(xid), "{xid}");
            }
            (round.hits, round.misses) = (round.hits + result.hits, round.misses + result.misses);
            round.lookups += result.lookups;
        }
    }
    let pages = page_of(Xid(xmax - 1)) - page_of(Xid(xmin)) + 1;
    (u64::from(pages), rounds)
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_over_grpc_ask_what_runs_and_pay_for_pages_by_version_and_setting() {
    let played = Played::small(
        "subxact-cliff",
        &[("savepoints", number(CACHED)), ("first", number(1)), ("rate", text("2000/s")), ("length", text("4s"))],
    );
    // Before the long transaction ends, which is the first that wrote.
    let long = played.records.iter().find(|record| record.xid.is_valid()).unwrap().xid;
    let last = played.records.iter().position(|record| ended(record).contains(&long)).unwrap();
    let mut ends = BTreeSet::new();
    played.records[..last].iter().for_each(|record| ends.extend(ended(record).iter().map(|xid| xid.numeric())));
    for (profile, setting, buffers, cliff) in [("pg16", 256, 32, true), ("pg18", 0, 32, true), ("pg18", 256, 256, false)] {
        let mut rig = Rig::start(&played, |config| {
            config.profile = Some(profile.to_owned());
            config.settings.subtransaction_buffers = setting;
        })
        .await;
        rig.grow(played.records[last - 1].end_lsn).await;
        let (pages, [first, second]) = ask_all(&mut rig, &|xid| !ends.contains(&xid)).await;
        assert!(pages > 32, "{pages}");
        assert!(first.misses >= pages && first.lookups == first.hits + first.misses, "{first:?} of {pages} pages");
        // The newest page is never replaced.
        assert_eq!(second.misses + 1 >= pages, cliff, "{profile} with {setting}: {second:?} of {pages} pages");
        assert!(cliff || second.misses == 0, "{second:?}");
        let state = rig.client.get_recovery_state(GetRecoveryStateRequest {}).await.unwrap().into_inner();
        let total = SubtransPages { buffers, hits: first.hits + second.hits, misses: first.misses + second.misses };
        assert_eq!(state.subtrans_pages, Some(total), "{profile}");
        rig.stop().await;
    }
}
