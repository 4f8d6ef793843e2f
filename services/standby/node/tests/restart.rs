//! Standbys that stop and start again: nothing is lost, nothing is acknowledged that is not safe.
#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

mod support;

use pg_types::{Lsn, RecordBody};
use pg_wal::profile::WalProfile;
use pg_wal::record::{Crc, decode_bytes};
use standby_node::{StandbyNode, restart_point};
use support::scripted_primary::ScriptedPrimary;
use support::{Wal, client, config, snapshot, start, wait_for};

/// The redo positions of the checkpoints in a WAL, with where their records end.
fn checkpoints(wal: &Wal) -> Vec<(Lsn, Lsn)> {
    let profile = WalProfile::of(wal.identity.version);
    let decoded = wal.records.iter().map(|r| decode_bytes(profile, r.lsn, r.end_lsn, &r.bytes, Crc::Check).unwrap());
    decoded
        .filter_map(|r| match r.body {
            RecordBody::Checkpoint(checkpoint) => Some((checkpoint.redo, r.end_lsn)),
            _ => None,
        })
        .collect()
}

/// Stops a standby at several places and starts it again each time; in the end it must be as one that never stopped.
async fn check_restarts(version: &str) {
    let wal = Wal::standby(version);
    let end = wal.end();
    let checkpoints = checkpoints(&wal);
    assert!(checkpoints.len() >= 2, "{}", checkpoints.len());
    let dir = tempfile::tempdir().unwrap();
    let primary = ScriptedPrimary::start(wal.clone(), Lsn(0)).await;
    let mut flushed = 0;
    for part in 1..=6 {
        let stop = wal.records[(wal.records.len() - 1) * part / 6].end_lsn;
        primary.open_gate(stop);
        let mut config = config(&primary);
        config.data_dir = Some(dir.path().join("standby"));
        let node = start(config).await;
        wait_for(&node, |p| p.replay_lsn == stop).await;
        let redo = checkpoints.iter().filter(|(_, end)| *end <= stop).map(|(redo, _)| *redo).max();
        // What the primary heard last is what a restart begins at.
        let seen = primary.wait_seen(|seen| seen.feedback.last().is_some_and(|f| f.applied_lsn == stop.0)).await;
        let last = seen.feedback.last().unwrap();
        let kept = restart_point::read(&dir.path().join("standby")).unwrap();
        assert_eq!(kept.as_ref().map(|p| p.redo_lsn), redo, "at {stop}");
        assert!(last.flushed_lsn >= flushed, "{last:?}");
        flushed = last.flushed_lsn;
        match redo {
            Some(redo) => assert_eq!(Lsn(flushed), redo),
            None => assert!(Lsn(flushed) <= wal.records[0].lsn),
        }
        if part == 6 {
            let undisturbed = ScriptedPrimary::start(wal.clone(), end).await;
            let other = start(support::config(&undisturbed)).await;
            let expected = snapshot(&mut client(&other).await, end).await;
            let ours = snapshot(&mut client(&node).await, end).await;
            assert_eq!((ours.xmin, ours.xmax, ours.xip), (expected.xmin, expected.xmax, expected.xip));
            assert_eq!(ours.suboverflowed, expected.suboverflowed);
        }
        let next_start = redo.map_or(0, |redo| redo.0);
        node.shutdown().await.unwrap();
        let starts = primary.seen().starts;
        assert!(starts.last().unwrap().from_lsn <= next_start);
    }
    let starts: Vec<u64> = primary.seen().starts.iter().map(|s| s.from_lsn).collect();
    assert!(starts.is_sorted() && starts[0] == 0 && starts[5] > 0, "{starts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_restarts_from_its_restart_point_18() {
    check_restarts("pg18").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_restarts_from_its_restart_point_13() {
    check_restarts("pg13").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_point_of_another_cluster_is_not_used() {
    let wal = Wal::standby("pg18");
    let end = wal.end();
    let dir = tempfile::tempdir().unwrap();
    let primary = ScriptedPrimary::start(wal.clone(), end).await;
    let mut config = config(&primary);
    config.data_dir = Some(dir.path().to_owned());
    let node = start(config.clone()).await;
    let second = StandbyNode::start(config.clone()).await.unwrap_err().to_string();
    assert!(second.contains("in use by another standby"), "{second}");
    wait_for(&node, |p| p.replay_lsn == end).await;
    node.shutdown().await.unwrap();

    let mut other = wal;
    other.identity.system_id += 1;
    let elsewhere = ScriptedPrimary::start(other, end).await;
    config.primary.endpoint = elsewhere.endpoint();
    let node = start(config.clone()).await;
    let halt = wait_for(&node, |_| false).await.halt.unwrap().to_string();
    assert!(halt.contains("remove the restart point"), "{halt}");
    node.shutdown().await.unwrap();

    std::fs::write(dir.path().join(restart_point::FILE_NAME), "{}").unwrap();
    let error = StandbyNode::start(config).await.unwrap_err().to_string();
    assert!(error.contains("damaged") && error.contains(restart_point::FILE_NAME), "{error}");
}
