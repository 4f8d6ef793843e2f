//! Closed forms of sessions' snapshots, and that no session is ever served anything stale.

use std::collections::BTreeMap;

use pg_types::record::{CheckpointRecord, CommitRecord, InplaceRecord, RecordBody, StandbyInvalidationsRecord};
use pg_types::sinvaladt::MAXNUMMESSAGES;
use pg_types::{FullXid, RelFileLocator, WalRecord, Xid};
use proptest::prelude::*;

use super::*;
use crate::{RecoveryWriter, StandbySettings};

/// The sessions' database, and another.
const DB: Oid = Oid(5);
const OTHER: Oid = Oid(6);
/// Version of the sessions.
const VERSION: PgVersion = PgVersion::V16;
/// A standby that is ready, and the end of its WAL.
struct Standby {
    writer: RecoveryWriter,
    end: Lsn,
    xid: u32,
}

impl Standby {
    fn new() -> Self {
        let mut writer = RecoveryWriter::new(&StandbySettings::default(), "pg16".parse().unwrap()).unwrap();
        let checkpoint = CheckpointRecord { shutdown: true, next_xid: FullXid(100), ..CheckpointRecord::default() };
        writer.start_at_checkpoint(&checkpoint, Lsn(8)).unwrap();
        Self { writer, end: Lsn(8), xid: 100 }
    }

    fn session(&self, rule: CatalogSnapshotRule) -> CatalogSession {
        self.writer.reader().open_session(VERSION, rule).unwrap()
    }

    fn apply(&mut self, xid: u32, body: RecordBody) -> Lsn {
        let lsn = self.end;
        self.end = Lsn(lsn.0 + 8);
        let record = WalRecord { lsn, end_lsn: self.end, xid: Xid(xid), top_xid: Xid::INVALID, origin: 0, body };
        self.writer.apply(&record).unwrap();
        self.end
    }

    fn commit(&mut self, messages: Vec<InvalidationMessage>) -> Lsn {
        self.xid += 1;
        self.apply(self.xid, RecordBody::Commit(Box::new(CommitRecord { messages, ..CommitRecord::default() })))
    }
}

/// One catcache message: a relation of `db` changed.
fn changed(db: Oid, hash: u32) -> InvalidationMessage {
    InvalidationMessage::Catcache { cache_id: cache("RELOID"), db, hash }
}

fn cache(name: &str) -> i8 {
    SysCacheTable::of(VERSION).id_of(name).unwrap().message_id()
}

/// A session's start: gives the snapshots it took; `between` comes before each scan after it connected.
fn start(
    standby: &mut Standby,
    rule: CatalogSnapshotRule,
    mut between: impl FnMut(&mut Standby, &mut CatalogSession, usize),
) -> u64 {
    let mut session = standby.session(rule);
    for (relation, scans) in startup::UNCONNECTED {
        session.scan_together(relation, scans).unwrap();
    }
    session.connect(DB);
    let [settings, others @ ..] = startup::CONNECTED;
    session.scan_together(settings.0, settings.1).unwrap();
    for (n, (relation, scans)) in others.into_iter().enumerate() {
        between(standby, &mut session, n);
        session.scan_together(relation, scans).unwrap();
    }
    session.snapshots_taken()
}

#[test]
fn connection_storm_takes_two_snapshots_a_start_and_one_a_scan_without_reuse() {
    let all = startup::UNCONNECTED.iter().chain(&startup::CONNECTED).map(|(_, scans)| u64::from(*scans)).sum();
    for (rule, snapshots) in [
        (CatalogSnapshotRule::MAIL_2013, 2),
        (CatalogSnapshotRule::TODAY, 2),
        (CatalogSnapshotRule::KEPT_AT_CONNECT, 1),
        (CatalogSnapshotRule::ALWAYS_NEW, all),
    ] {
        let mut s = Standby::new();
        assert_eq!(start(&mut s, rule, |_, _, _| {}), snapshots, "{rule:?}");
        // One more per invalidation that arrives before a scan, however many messages it is; none for other databases.
        let ddl = |s: &mut Standby, _: &mut CatalogSession, n: usize| {
            s.commit(vec![changed(if n.is_multiple_of(3) { DB } else { OTHER }, 1), changed(OTHER, 2)]);
        };
        let arrived = if rule.reuse { 3 } else { 0 };
        assert_eq!(start(&mut s, rule, ddl), snapshots + arrived, "{rule:?}");
        // And per transaction snapshot taken between, beside that itself.
        let statement = |_: &mut Standby, session: &mut CatalogSession, n: usize| {
            if n % 4 == 3 {
                session.transaction_snapshot().unwrap();
            }
        };
        let dropped = if rule.reuse { 2 } else { 0 };
        assert_eq!(start(&mut s, rule, statement), snapshots + 2 + dropped, "{rule:?}");
    }
}

#[test]
fn why_a_snapshot_was_taken() {
    let mut s = Standby::new();
    let mut session = s.session(CatalogSnapshotRule::TODAY);
    let reason = |session: &mut CatalogSession, relation| session.scan(relation).unwrap().reason;
    assert_eq!(reason(&mut session, catalog::AUTHID), Some(DropReason::First));
    assert_eq!(reason(&mut session, catalog::DATABASE), None);
    session.connect(DB);
    assert_eq!(reason(&mut session, catalog::CLASS), Some(DropReason::Connected));
    s.commit(vec![changed(Oid::INVALID, 1)]);
    assert_eq!(reason(&mut session, catalog::CLASS), Some(DropReason::CatalogChanged));
    s.apply(
        0,
        RecordBody::StandbyInvalidations(Box::new(StandbyInvalidationsRecord {
            messages: vec![InvalidationMessage::Snapshot { db: DB, rel: catalog::DEPEND }],
            ..StandbyInvalidationsRecord::default()
        })),
    );
    assert_eq!(reason(&mut session, catalog::DEPEND), Some(DropReason::SnapshotMessage));
    let messages = vec![InvalidationMessage::Relcache { db: DB, rel: Oid(1259) }, InvalidationMessage::Relmap { db: DB }];
    s.apply(0, RecordBody::Inplace(Box::new(InplaceRecord { messages, ..InplaceRecord::default() })));
    let scan = session.scan(catalog::CLASS).unwrap();
    assert_eq!((scan.reason, scan.accepted.messages), (None, 2), "relcache and relmap messages leave it alone");
    assert_eq!(reason(&mut session, catalog::INHERITS), Some(DropReason::NoMessages));
    assert_eq!(reason(&mut session, catalog::CLASS), None);
    session.idle();
    assert_eq!(reason(&mut session, catalog::CLASS), Some(DropReason::Idle));
    session.end_transaction();
    session.transaction_snapshot().unwrap();
    assert_eq!(reason(&mut session, catalog::CLASS), Some(DropReason::TransactionEnd), "the first reason stays");
}

#[test]
fn a_session_that_keeps_its_snapshot_at_connect_misses_what_changed_in_its_database_before() {
    for (rule, sees) in [(CatalogSnapshotRule::TODAY, true), (CatalogSnapshotRule::KEPT_AT_CONNECT, false)] {
        let mut s = Standby::new();
        let mut session = s.session(rule);
        session.scan(catalog::DATABASE).unwrap();
        let change = s.commit(vec![changed(DB, 1)]);
        session.accept_invalidation_messages();
        session.connect(DB);
        assert_eq!(session.scan(catalog::CLASS).unwrap().replay_lsn >= change, sees, "{rule:?}");
    }
}

#[test]
fn a_session_that_lags_by_a_ring_is_reset_and_one_that_answers_its_signal_is_not() {
    for (burst, reset) in [(MAXNUMMESSAGES, false), (MAXNUMMESSAGES + 1, true)] {
        let mut s = Standby::new();
        let (mut idle, mut answers) = (s.session(CatalogSnapshotRule::TODAY), s.session(CatalogSnapshotRule::TODAY));
        for session in [&mut idle, &mut answers] {
            session.connect(DB);
            session.lookup(CacheKey::Catcache { cache_id: cache("RELOID"), hash: 7 }).unwrap();
        }
        for hash in 0..burst {
            s.commit(vec![changed(DB, 1000 + hash as u32)]);
            answers.answer_signal();
        }
        assert_eq!((idle.queue_counts().signals, answers.queue_counts().signals > 0), (1, true));
        let accepted = idle.accept_invalidation_messages();
        assert_eq!((accepted.reset, idle.entry_count()), (reset, usize::from(!reset)), "{burst}");
        assert_eq!((answers.queue_counts().resets, answers.entry_count()), (0, 1));
    }
}

#[test]
fn files_that_go_and_maps_that_change_are_messages_too() {
    let mut s = Standby::new();
    let mut session = s.session(CatalogSnapshotRule::TODAY);
    let dropped_locators = vec![RelFileLocator::default(); 3];
    s.apply(100, RecordBody::Commit(Box::new(CommitRecord { dropped_locators, ..CommitRecord::default() })));
    s.apply(0, RecordBody::Relmap(Box::default()));
    s.apply(0, RecordBody::SmgrTruncate { target: RelFileLocator::default(), blocks: 0, flags: 7 });
    assert_eq!(session.accept_invalidation_messages(), Accepted { messages: 5, reset: false });
}

#[test]
fn sessions_are_limited_leave_and_are_reset_when_replay_starts_again() {
    let settings = StandbySettings { max_connections: 1, max_wal_senders: 0, max_worker_processes: 0, ..Default::default() };
    let mut writer = RecoveryWriter::new(&settings, "pg16".parse().unwrap()).unwrap();
    let max = writer.sizes().max_backends;
    let open = |writer: &RecoveryWriter| writer.reader().open_session(VERSION, CatalogSnapshotRule::TODAY);
    let mut sessions: Vec<CatalogSession> = (0..max).map(|_| open(&writer).unwrap()).collect();
    assert_eq!(open(&writer).unwrap_err(), RecoveryError::TooManySessions { max });
    assert!(matches!(sessions[0].scan(catalog::CLASS), Err(RecoveryError::NotReady { .. })));
    let unknown = sessions[0].lookup(CacheKey::Catcache { cache_id: -1, hash: 0 }).unwrap_err();
    assert_eq!(unknown, RecoveryError::UnknownSysCache { id: -1 });
    sessions.pop();
    sessions.push(open(&writer).unwrap());
    let checkpoint = CheckpointRecord { shutdown: true, next_xid: FullXid(100), ..CheckpointRecord::default() };
    writer.start_at_checkpoint(&checkpoint, Lsn(8)).unwrap();
    assert!(sessions[0].scan(catalog::CLASS).unwrap().accepted.reset);
}

/// A step of the property test.
#[derive(Clone, Debug)]
enum Step {
    /// A transaction changes so many relations from the n-th on, of the sessions' database, of another or of all.
    Change(u32, u32, Oid),
    /// A session looks the n-th relation up, in the catcache or the relcache.
    Lookup(usize, u32, bool),
    /// A session answers its signal.
    Answer(usize),
    /// A session ends, another comes.
    Replace(usize),
    /// All entries of a catalog go, as when it is rewritten.
    Rewrite,
}

/// Relations there are.
const RELATIONS: u32 = 60;

fn step() -> impl Strategy<Value = Step> {
    let db = prop::sample::select(vec![DB, OTHER, Oid::INVALID]);
    prop_oneof![
        4 => (0..RELATIONS, 1u32..4, db.clone()).prop_map(|(n, count, db)| Step::Change(n, count, db)),
        1 => (0..RELATIONS, 500u32..3000, db).prop_map(|(n, count, db)| Step::Change(n, count, db)),
        6 => (0usize..3, 0..RELATIONS, any::<bool>()).prop_map(|(s, n, relcache)| Step::Lookup(s, n, relcache)),
        1 => (0usize..3).prop_map(Step::Answer),
        1 => (0usize..3).prop_map(Step::Replace),
        1 => Just(Step::Rewrite),
    ]
}

proptest! {
    /// C1 against a table of when each relation changed last.
    #[test]
    fn c1_nothing_stale_is_served(steps in prop::collection::vec(step(), 1..120), always_new in any::<bool>()) {
        let rule = if always_new { CatalogSnapshotRule::ALWAYS_NEW } else { CatalogSnapshotRule::TODAY };
        let mut s = Standby::new();
        let connected = |s: &Standby| {
            let mut session = s.session(rule);
            session.connect(DB);
            session
        };
        let mut sessions: Vec<CatalogSession> = (0..3).map(|_| connected(&s)).collect();
        let mut changed_at: BTreeMap<u32, Lsn> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Change(first, count, db) => {
                    let hashes: Vec<u32> = (first..first + count).map(|n| n % RELATIONS).collect();
                    let messages = hashes.iter().flat_map(|&n| [changed(db, n), InvalidationMessage::Relcache { db, rel: Oid(n + 1) }]);
                    let end = s.commit(messages.collect());
                    if db != OTHER {
                        changed_at.extend(hashes.into_iter().map(|n| (n, end)));
                    }
                }
                Step::Lookup(session, n, relcache) => {
                    let session = &mut sessions[session];
                    session.accept_invalidation_messages();
                    let catcache = CacheKey::Catcache { cache_id: cache("RELOID"), hash: n };
                    let key = if relcache { CacheKey::Relcache { rel: Oid(n + 1) } } else { catcache };
                    let (read_at, _) = session.lookup(key).unwrap();
                    prop_assert!(read_at >= changed_at.get(&n).copied().unwrap_or(Lsn::INVALID), "{:?} read at {}", key, read_at);
                }
                Step::Answer(session) => {
                    sessions[session].answer_signal();
                }
                Step::Replace(session) => sessions[session] = connected(&s),
                Step::Rewrite => {
                    let end = s.commit(vec![InvalidationMessage::Catalog { db: DB, catalog: catalog::CLASS },
                        InvalidationMessage::Relcache { db: DB, rel: Oid::INVALID }]);
                    changed_at.extend((0..RELATIONS).map(|n| (n, end)));
                }
            }
        }
    }
}
