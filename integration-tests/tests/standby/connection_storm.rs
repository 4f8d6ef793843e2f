//! `connection-storm`: catalog snapshots of a session's start, by rule; and one more for each change that arrives meanwhile.

use pg_types::{InvalidationMessage, Oid, RecordBody, WalRecord};
use walstorm_proto::standby::v1::open_catalog_session_request::Kind as Act;
use walstorm_proto::standby::v1::{CatalogSnapshotRule, SessionSnapshot};

use crate::played::{Played, number, text};
use crate::rig::{DATABASE, Rig, Session};

/// pg_authid and pg_database, before the database is known.
const BEFORE: [u32; 2] = [1260, 1262];
/// pg_db_role_setting: scanned four times with one snapshot.
const SETTINGS: u32 = 2964;
/// pg_class, pg_attribute, pg_index, pg_am, pg_opclass, pg_proc, pg_type, pg_namespace: all have syscaches.
const AFTER: [u32; 8] = [1259, 1249, 2610, 2601, 2616, 1255, 1247, 2615];
/// Scans of a start.
const SCANS: u64 = (BEFORE.len() + 4 + AFTER.len()) as u64;

/// Whether a commit says to sessions of the database that a catalog changed.
fn changes_catalogs(record: &WalRecord) -> bool {
    let RecordBody::Commit(commit) = &record.body else { return false };
    let says = |message: &InvalidationMessage| match message {
        InvalidationMessage::Catcache { db, .. }
        | InvalidationMessage::Catalog { db, .. }
        | InvalidationMessage::Snapshot { db, .. } => !db.is_valid() || *db == Oid(DATABASE),
        _ => false,
    };
    commit.messages.iter().any(says)
}

/// The rules, and what a start takes in peace.
const RULES: [(CatalogSnapshotRule, u64); 4] = [
    (CatalogSnapshotRule::Mail2013, 2),
    (CatalogSnapshotRule::Today, 2),
    (CatalogSnapshotRule::KeptAtConnect, 1),
    (CatalogSnapshotRule::AlwaysNew, SCANS),
];

/// What comes between two scans of a start.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Between {
    /// Nothing.
    Nothing,
    /// Transactions are replayed: before every second scan up to the next change of a catalog, else the next one of whatever kind.
    Changes,
    /// A transaction snapshot is taken before every fourth.
    Statements,
}

/// A session's start; gives the snapshots that it took and the changes of catalogs that arrived before scans.
async fn start(
    rig: &mut Rig,
    ends: &mut std::slice::Iter<'_, WalRecord>,
    rule: CatalogSnapshotRule,
    between: Between,
) -> (u64, u64) {
    let mut session = Session::open(rig.client.clone(), rule, true).await.unwrap();
    for relation in BEFORE {
        session.scan(relation, 1).await;
    }
    session.connect().await;
    let mut total = session.scan(SETTINGS, 4).await.snapshots_total;
    let mut arrived = 0;
    for (n, relation) in AFTER.into_iter().enumerate() {
        if between == Between::Changes {
            let mut changed = false;
            let to = loop {
                let next = ends.next().expect("the scenario is long enough");
                changed |= changes_catalogs(next);
                if matches!(next.body, RecordBody::Commit(_)) && (changed || n % 2 == 1) {
                    break next.end_lsn;
                }
            };
            arrived += u64::from(changed);
            rig.grow(to).await;
        }
        if between == Between::Statements && n % 4 == 3 {
            session.act(Act::Snapshot(SessionSnapshot {})).await;
        }
        total = session.scan(relation, 1).await.snapshots_total;
    }
    (total, arrived)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_start_takes_what_its_rule_says_and_one_for_each_change_that_arrived() {
    let played = Played::small("connection-storm", &[("length", text("6s")), ("visits", number(40))]);
    let mut rig = Rig::start(&played, |_| ()).await;
    // The changer's transactions are few among those of the clients.
    let begin = played.records.iter().position(|record| matches!(record.body, RecordBody::RunningXacts(_))).unwrap();
    rig.grow(played.records[begin].end_lsn).await;
    let mut ends = played.records[begin + 1..].iter();
    let mut in_between = 0;
    for (rule, in_peace) in RULES {
        let reuses = u64::from(rule != CatalogSnapshotRule::AlwaysNew);
        assert_eq!(start(&mut rig, &mut ends, rule, Between::Nothing).await, (in_peace, 0), "{rule:?}");
        let (taken, arrived) = start(&mut rig, &mut ends, rule, Between::Changes).await;
        assert_eq!(taken, in_peace + reuses * arrived, "{rule:?}");
        assert!(arrived as usize >= AFTER.len() / 2, "{arrived} of {} scans", AFTER.len());
        in_between += AFTER.len() as u64 - arrived;
        // The statement's own, and the scan after it.
        let (taken, _) = start(&mut rig, &mut ends, rule, Between::Statements).await;
        assert_eq!(taken, in_peace + 2 + 2 * reuses, "{rule:?}");
    }
    assert!(in_between > 0, "commits that change no catalog came, too");
    rig.stop().await;
}
