//! `overflowed-start`: a standby that starts while subtransactions are missing serves nobody before it is sure.

use pg_types::record::RunningXactsRecord;
use pg_types::{Lsn, RecordBody, WalRecord};
use service_kit::status::{Reason, metadata_of, reason_of};
use tonic::Status;
use walstorm_proto::standby::v1::{CatalogSnapshotRule, GetRecoveryStateRequest, RecoveryState};

use crate::played::Played;
use crate::rig::{Reader, Rig, Session};

/// Where a base backup's standby begins: the redo position of the checkpoint that was taken while the transaction was open.
fn redo(played: &Played) -> Lsn {
    let online = played.records.iter().find_map(|record| match &record.body {
        RecordBody::Checkpoint(checkpoint) if !checkpoint.shutdown => Some(checkpoint.redo),
        _ => None,
    });
    online.unwrap()
}

/// The lists of running transactions from a position on.
fn lists(played: &Played, from: Lsn) -> Vec<(&WalRecord, &RunningXactsRecord)> {
    let mut lists = Vec::new();
    for record in played.records.iter().filter(|record| record.lsn >= from) {
        if let RecordBody::RunningXacts(list) = &record.body {
            lists.push((record, &**list));
        }
    }
    lists
}

/// All ways to a snapshot are closed, and say until when.
async fn refused(rig: &mut Rig, pending_xmin: u32) {
    let check = |status: Status| {
        assert_eq!(reason_of(&status), Some(Reason::NotReady), "{status}");
        assert_eq!(metadata_of(&status, "pendingXmin"), Some(pending_xmin.to_string()), "{status}");
    };
    check(rig.snapshot().await.unwrap_err());
    check(Reader::start(rig.client.clone()).await.err().unwrap());
    let mut session = match Session::open(rig.client.clone(), CatalogSnapshotRule::Today, false).await {
        Ok(session) => session,
        Err(status) => return check(status),
    };
    check(session.try_scan(1259).await.unwrap_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_pending_until_its_xmin_has_passed_and_then_as_one_that_was_there_before() {
    let played = Played::small("overflowed-start", &[]);
    let redo = redo(&played);
    let lists = lists(&played, redo);
    let pending_xmin = lists[0].1.next_xid.prev();
    assert!(lists[0].1.subxid_overflow);
    let sure = |list: &RunningXactsRecord| {
        !list.subxid_overflow || list.xids.is_empty() || pending_xmin.precedes(list.oldest_running_xid)
    };
    let ready = lists.iter().position(|(_, list)| sure(list)).unwrap();
    assert!(ready >= 3, "the transaction stays open for some lists, {ready}");

    let mut rig = Rig::start(&played, |config| config.start = redo.to_string()).await;
    for (n, (record, _)) in lists.iter().enumerate().take(ready + 1) {
        if n > 0 {
            // Everything before the list, so that only the list can change something.
            rig.grow(record.lsn).await;
            refused(&mut rig, pending_xmin.numeric()).await;
        }
        rig.grow(record.end_lsn).await;
        if n < ready {
            refused(&mut rig, pending_xmin.numeric()).await;
        }
        let state = rig.client.get_recovery_state(GetRecoveryStateRequest {}).await.unwrap().into_inner();
        assert_eq!(state.state(), if n < ready { RecoveryState::Pending } else { RecoveryState::Ready }, "list {n}");
    }
    let ours = rig.snapshot().await.unwrap();
    let mut other = played.standby("pg18");
    played.records.iter().filter(|r| r.lsn <= lists[ready].0.lsn).for_each(|record| other.apply(record).unwrap());
    let theirs = other.reader().snapshot().unwrap().snapshot;
    assert_eq!((ours.xmin, ours.xmax), (theirs.xmin.numeric(), theirs.xmax.numeric()));
    assert_eq!(ours.xip, theirs.xip.iter().map(|xid| xid.numeric()).collect::<Vec<_>>());
    rig.stop().await;
}
