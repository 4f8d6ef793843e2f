//! `prepared`: a standby keeps prepared transactions, their locks too, whatever a list of running transactions says.

use std::collections::BTreeSet;

use pg_types::record::RunningXactsRecord;
use pg_types::{Lsn, RecordBody, WalRecord, Xid};

use crate::played::{Played, ended};
use crate::rig::{DATABASE, Reader, Rig};

/// Prepared transactions, by the place of their record.
fn prepares(played: &Played) -> Vec<&WalRecord> {
    played.records.iter().filter(|record| matches!(record.body, RecordBody::Prepare(_))).collect()
}

/// A relation that a transaction has locked exclusively.
fn locked_by(played: &Played, xid: Xid) -> u32 {
    let locks = played.records.iter().filter_map(|record| match &record.body {
        RecordBody::StandbyLocks(locks) => Some(locks),
        _ => None,
    });
    let lock = locks.flatten().find(|lock| lock.xid == xid && lock.db.0 == DATABASE);
    lock.unwrap().rel.0
}

#[tokio::test(flavor = "multi_thread")]
async fn prepared_transactions_run_and_keep_their_locks_until_they_are_committed() {
    let played = Played::small("prepared", &[]);
    let prepared = prepares(&played);
    assert_eq!(prepared.len(), 5);
    let mut rig = Rig::start(&played, |_| ()).await;
    let mut running: BTreeSet<u32> = prepared.iter().map(|record| record.xid.numeric()).collect();
    rig.grow(prepared.last().unwrap().end_lsn).await;
    for record in played.records.iter().filter(|record| record.lsn > prepared.last().unwrap().lsn) {
        let of_prepared = ended(record).iter().any(|xid| running.contains(&xid.numeric()));
        let is_list = matches!(record.body, RecordBody::RunningXacts(_));
        if !of_prepared && !is_list {
            continue;
        }
        rig.grow(record.lsn).await;
        let mut reader = Reader::start(rig.client.clone()).await.unwrap();
        let xip: BTreeSet<u32> = reader.snapshot.xip.iter().copied().collect();
        assert!(running.is_subset(&xip), "{running:?} of {xip:?} before {}", record.lsn);
        for &xid in &running {
            assert!(!reader.lock(locked_by(&played, Xid(xid))).await, "{xid} holds its lock");
        }
        rig.grow(record.end_lsn).await;
        for xid in ended(record) {
            if running.remove(&xid.numeric()) {
                assert!(!rig.snapshot().await.unwrap().xip.contains(&xid.numeric()), "{xid} has ended");
                assert!(reader.lock(locked_by(&played, xid)).await, "{xid} has given its lock back");
            }
        }
    }
    assert!(running.is_empty(), "{running:?}");
    rig.stop().await;
}

#[test]
fn a_list_that_passes_them_prunes_all_others() {
    let played = Played::small("prepared", &[]);
    let prepared = prepares(&played);
    for profile in ["pg13.6", "pg13", "pg18", "pg18+skip-offset", "indexed"] {
        let mut writer = played.standby(profile);
        let replayed = played.records.iter().take_while(|record| record.lsn <= prepared.last().unwrap().lsn);
        replayed.for_each(|record| writer.apply(record).unwrap());
        let end = writer.state().replay_lsn;
        let next = writer.state().next_xid.xid();
        // One more that runs, and a list without it and the prepared ones.
        let record =
            |lsn: Lsn, xid, body| WalRecord { lsn, end_lsn: Lsn(lsn.0 + 8), xid, top_xid: Xid::INVALID, origin: 0, body };
        writer.apply(&record(end, next, RecordBody::XlogOther)).unwrap();
        assert!(writer.state().known_assigned.live_xids().contains(&next), "{profile}");
        let list = RunningXactsRecord {
            next_xid: next.next(),
            oldest_running_xid: next.next(),
            latest_completed_xid: next,
            ..RunningXactsRecord::default()
        };
        writer.apply(&record(Lsn(end.0 + 8), Xid::INVALID, RecordBody::RunningXacts(Box::new(list)))).unwrap();
        let kept: Vec<Xid> = prepared.iter().map(|record| record.xid).collect();
        assert_eq!(writer.state().known_assigned.live_xids(), kept, "{profile}");
        let snapshot = writer.reader().snapshot().unwrap().snapshot;
        let below_xmax: Vec<Xid> = kept.iter().copied().filter(|xid| xid.precedes(snapshot.xmax)).collect();
        assert_eq!((snapshot.xmin, snapshot.xip), (kept[0], below_xmax), "{profile}");
    }
}
