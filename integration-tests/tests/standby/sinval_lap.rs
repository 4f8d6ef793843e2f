//! `sinval-lap`: who is a ring behind is reset, who answers the catch-up signal is not, and nobody goes on with what is stale.

use pg_types::{InvalidationMessage, RecordBody, WalRecord};
use walstorm_proto::standby::v1::cache_lookup::Key;
use walstorm_proto::standby::v1::open_catalog_session_request::Kind as Act;
use walstorm_proto::standby::v1::{CacheLookup, CatalogSnapshotRule, OpenCatalogSessionResponse, SessionEndTransaction};

use crate::played::Played;
use crate::rig::{Rig, Session};

/// Messages that the ring holds; a session half of them behind is signalled.
const RING: usize = 4096;
/// Messages that are replayed at once: few enough that all sessions can be signalled in turn.
const STEP: usize = 250;
/// Sessions of each kind.
const SESSIONS: usize = 3;
/// pg_class.
const CLASS: u32 = 1259;
/// pg_proc, of which no message speaks.
const PROC: u32 = 1255;

/// Messages of a commit.
fn messages(record: &WalRecord) -> usize {
    match &record.body {
        RecordBody::Commit(commit) => commit.messages.len(),
        _ => 0,
    }
}

/// The relation of a record's last relcache message.
fn relation(record: &WalRecord) -> u32 {
    let RecordBody::Commit(commit) = &record.body else { panic!("{record:?}") };
    let relation = commit.messages.iter().rev().find_map(|message| match message {
        InvalidationMessage::Relcache { rel, .. } => Some(rel.0),
        _ => None,
    });
    relation.expect("a relation was altered")
}

/// Looks a relation up in a session's caches.
async fn look_up(session: &mut Session, relation: u32) -> OpenCatalogSessionResponse {
    session.act(Act::Lookup(CacheLookup { key: Some(Key::Relation(relation)) })).await
}

/// Connected sessions that have scanned pg_class, and have `changed` and pg_proc in their caches.
async fn sessions(rig: &Rig, busy: bool, changed: u32) -> Vec<Session> {
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        let mut session = Session::open(rig.client.clone(), CatalogSnapshotRule::Today, busy).await.unwrap();
        session.connect().await;
        assert_eq!(session.scan(CLASS, 1).await.snapshots, 1);
        assert_eq!(session.scan(CLASS, 1).await.snapshots, 0, "it reuses its snapshot");
        for relation in [changed, PROC] {
            assert!(!look_up(&mut session, relation).await.hit && look_up(&mut session, relation).await.hit, "{relation}");
        }
        sessions.push(session);
    }
    sessions
}

/// What was done to a session so far; asking reads no messages.
async fn counts(session: &mut Session) -> OpenCatalogSessionResponse {
    session.act(Act::EndTransaction(SessionEndTransaction {})).await
}

#[tokio::test(flavor = "multi_thread")]
async fn busy_sessions_are_reset_idle_ones_catch_up_and_all_see_the_last_change() {
    let played = Played::small("sinval-lap", &[]);
    let first = played.records.iter().position(|record| messages(record) > 0).unwrap();
    let changed = relation(played.records.iter().rev().find(|record| messages(record) > 0).unwrap());
    let mut rig = Rig::start(&played, |_| ()).await;
    rig.grow(played.records[first - 1].end_lsn).await;
    let (mut busy, mut idle) = (sessions(&rig, true, changed).await, sessions(&rig, false, changed).await);

    let (mut sent, mut in_step, mut last_change) = (0, 0, played.records[first].end_lsn);
    let mut signalled_at = None;
    for record in &played.records[first..] {
        let of_record = messages(record);
        if of_record == 0 {
            continue;
        }
        (sent, in_step, last_change) = (sent + of_record, in_step + of_record, record.end_lsn);
        if in_step < STEP {
            continue;
        }
        in_step = 0;
        rig.grow(last_change).await;
        // Replay has published; an idle session answers its signal before it reads its next command.
        for session in &mut idle {
            assert_eq!(counts(session).await.resets_total, 0, "after {sent} messages");
        }
        let mut signals = 0;
        for session in &mut busy {
            signals += counts(session).await.signals_total;
        }
        if signals > 0 {
            signalled_at.get_or_insert(sent);
        }
    }
    rig.grow(last_change).await;
    assert!(sent > RING, "{sent}");
    let signalled_at = signalled_at.unwrap();
    assert!((RING / 2..=RING / 2 + 2 * STEP).contains(&signalled_at), "the first signal was seen after {signalled_at}");

    for session in &mut busy {
        let scan = session.scan(CLASS, 1).await;
        assert!(scan.reset && scan.snapshots == 1 && scan.resets_total == 1 && scan.signals_total == 1, "{scan:?}");
        assert!(scan.replay_lsn >= last_change.0, "it sees the last change");
        for relation in [changed, PROC] {
            let entry = look_up(session, relation).await;
            assert!(!entry.hit && entry.replay_lsn >= last_change.0, "a reset leaves nothing cached: {entry:?}");
        }
    }
    for session in &mut idle {
        let scan = session.scan(CLASS, 1).await;
        assert!(!scan.reset && scan.snapshots == 1 && scan.resets_total == 0 && scan.signals_total >= 1, "{scan:?}");
        assert!(scan.replay_lsn >= last_change.0, "it sees the last change");
        let entry = look_up(session, changed).await;
        assert!(!entry.hit && entry.replay_lsn >= last_change.0, "what was changed is read again: {entry:?}");
        assert!(look_up(session, PROC).await.hit, "what was not stays");
    }
    rig.stop().await;
}
