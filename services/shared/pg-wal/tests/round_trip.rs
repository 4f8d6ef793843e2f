//! What is encoded is decoded again, for every version: `decode(encode(body)) == body`.

use pg_types::record::*;
use pg_types::{CommandId, FullXid, InvalidationMessage, Lsn, Oid, PgVersion, RecordBody, RelFileLocator, Tid, Timestamp, Xid};
use pg_wal::encode::Encoder;
use pg_wal::writer::{WalWriter, WriterConfig};
use pg_wal::{Crc, EndReason, WalDir, WalProfile, WalReader, decode_bytes};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::every_kind;

fn xid() -> impl Strategy<Value = Xid> {
    any::<u32>().prop_map(Xid)
}

fn oid() -> impl Strategy<Value = Oid> {
    any::<u32>().prop_map(Oid)
}

fn locator() -> impl Strategy<Value = RelFileLocator> {
    (oid(), oid(), any::<u32>()).prop_map(|(spc, db, rel)| RelFileLocator { spc, db, rel })
}

fn tid() -> impl Strategy<Value = Tid> {
    (any::<u32>(), any::<u16>()).prop_map(|(block, offset)| Tid { block, offset })
}

fn message() -> impl Strategy<Value = InvalidationMessage> {
    prop_oneof![
        (0..78i8, oid(), any::<u32>()).prop_map(|(cache_id, db, hash)| InvalidationMessage::Catcache { cache_id, db, hash }),
        (oid(), oid()).prop_map(|(db, rel)| InvalidationMessage::Relcache { db, rel }),
        (oid(), oid()).prop_map(|(db, rel)| InvalidationMessage::Snapshot { db, rel }),
        (oid(), oid()).prop_map(|(db, catalog)| InvalidationMessage::Catalog { db, catalog }),
    ]
}

/// A name without NUL, as the format wants it.
fn name() -> impl Strategy<Value = Vec<u8>> {
    vec(1..=255u8, 1..40)
}

prop_compose! {
    fn commit()(
        time: i64, ae_locks: bool, db in 1..u32::MAX, spc in oid(), subxids in vec(xid(), 0..70),
        dropped_locators in vec(locator(), 0..5), messages in vec(message(), 0..40),
        prepared in proptest::option::of((1..u32::MAX, name())), origin in proptest::option::of((any::<u64>(), any::<i64>())),
    ) -> CommitRecord {
        let (prepared_xid, gid) = prepared.map_or((Xid::INVALID, Vec::new()), |(xid, gid)| (Xid(xid), gid));
        let origin = origin.map(|(lsn, time)| (Lsn(lsn), Timestamp(time)));
        let flags = [
            (true, xinfo::HAS_DBINFO), (!subxids.is_empty(), xinfo::HAS_SUBXACTS), (ae_locks, xinfo::HAS_AE_LOCKS),
            (!dropped_locators.is_empty(), xinfo::HAS_RELFILELOCATORS), (!messages.is_empty(), xinfo::HAS_INVALS),
            (prepared_xid.is_valid(), xinfo::HAS_TWOPHASE), (prepared_xid.is_valid(), xinfo::HAS_GID),
            (origin.is_some(), xinfo::HAS_ORIGIN),
        ];
        let xinfo = flags.iter().filter(|(on, _)| *on).map(|(_, bit)| bit).sum();
        CommitRecord {
            time: Timestamp(time), prepared_xid, xinfo, db: Oid(db), spc, subxids, dropped_locators, dropped_stats: 0, messages,
            gid, origin,
        }
    }
}

/// The abort that would have been instead.
fn abort(commit: CommitRecord) -> AbortRecord {
    AbortRecord {
        time: commit.time,
        prepared_xid: commit.prepared_xid,
        xinfo: commit.xinfo & !xinfo::HAS_INVALS,
        db: commit.db,
        spc: commit.spc,
        subxids: commit.subxids,
        dropped_locators: commit.dropped_locators,
        dropped_stats: 0,
        gid: commit.gid,
        origin: commit.origin,
    }
}

prop_compose! {
    fn insert()(target in locator(), tid in tid(), logical: bool, speculative: bool, init_page: bool, tuple_len in 6..9000u32)
    -> HeapInsert {
        HeapInsert { target, tid, logical, speculative, toast: false, init_page, tuple_len }
    }
}

prop_compose! {
    fn multi_insert()(target in locator(), block: u32, ntuples in 1..200u16, more in 0..2000u32, flags: [bool; 3])
    -> HeapMultiInsert {
        let [logical, last_in_multi, init_page] = flags;
        let tuples_len = u32::from(ntuples) * 8 + more;
        HeapMultiInsert { target, block, ntuples, logical, toast: false, last_in_multi, init_page, tuples_len }
    }
}

fn old() -> impl Strategy<Value = (OldTuple, u32)> {
    let kept = prop_oneof![Just(OldTuple::Key), Just(OldTuple::Full)];
    prop_oneof![Just((OldTuple::None, 0)), (kept, 6..9000u32)]
}

prop_compose! {
    fn update()(
        target in locator(), old_tid in tid(), new_tid in tid(), xmax in (xid(), xid()), flags: [bool; 3], old in old(),
        tuple_len in 6..9000u32,
    ) -> HeapUpdate {
        let [hot, logical, init_page] = flags;
        HeapUpdate { target, old_tid, new_tid, old_xmax: xmax.0, new_xmax: xmax.1, hot, logical, old: old.0, old_len: old.1, init_page, tuple_len }
    }
}

prop_compose! {
    fn delete()(target in locator(), tid in tid(), xmax in xid(), old in old(), super_deletion: bool, partition_move: bool)
    -> HeapDelete {
        HeapDelete { target, tid, xmax, old: old.0, old_len: old.1, super_deletion, partition_move, no_logical: false }
    }
}

prop_compose! {
    fn running()(x in (xid(), xid(), xid()), subxid_overflow: bool, xids in vec(xid(), 0..50), subxids in vec(xid(), 0..50))
    -> RunningXactsRecord {
        let subxids = if subxid_overflow { Vec::new() } else { subxids };
        RunningXactsRecord {
            next_xid: x.0, oldest_running_xid: x.1, latest_completed_xid: x.2, subxid_overflow, xids, subxids,
        }
    }
}

prop_compose! {
    fn prepare()(
        time: i64, db in oid(), owner in oid(), gid in name(), subxids in vec(xid(), 0..70), messages in vec(message(), 0..9),
        commit_locators in vec(locator(), 0..4), abort_locators in vec(locator(), 0..4),
        origin in proptest::option::of((1..u64::MAX, any::<i64>())), stats in (0..4u32, 0..4u32),
    ) -> PrepareRecord {
        PrepareRecord {
            time: Timestamp(time), db, owner, gid, subxids, messages, commit_locators, abort_locators,
            commit_stats: stats.0, abort_stats: stats.1, origin: origin.map(|(lsn, time)| (Lsn(lsn), Timestamp(time))),
        }
    }
}

prop_compose! {
    fn new_cid()(top_xid in xid(), cids: [u32; 3], target in locator(), tid in tid()) -> NewCidRecord {
        let [cmin, cmax, combocid] = cids.map(CommandId);
        NewCidRecord { top_xid, cmin, cmax, combocid, target, tid }
    }
}

prop_compose! {
    fn checkpoint()(shutdown: bool, redo: u64, words: [u32; 11], next_xid: u64, time: i64, full_page_writes: bool)
    -> CheckpointRecord {
        let [this_timeline, prev_timeline, oid, next_multi, offset, oldest, oldest_db, multi, multi_db, commit_ts, active] = words;
        CheckpointRecord {
            shutdown, redo: Lsn(redo), this_timeline, prev_timeline, full_page_writes, wal_level: 0,
            next_xid: FullXid(next_xid), next_oid: Oid(oid), next_multi, next_multi_offset: offset, oldest_xid: Xid(oldest),
            oldest_xid_db: Oid(oldest_db), oldest_multi: multi, oldest_multi_db: Oid(multi_db), time,
            oldest_commit_ts_xid: Xid(commit_ts), newest_commit_ts_xid: Xid(commit_ts ^ 1), oldest_active_xid: Xid(active),
        }
    }
}

/// Bodies that every version can write.
fn body() -> impl Strategy<Value = RecordBody> {
    prop_oneof![
        commit().prop_map(|r| RecordBody::Commit(Box::new(r))),
        commit().prop_map(|r| RecordBody::Abort(Box::new(abort(r)))),
        prepare().prop_map(|r| RecordBody::Prepare(Box::new(r))),
        (xid(), vec(xid(), 1..65))
            .prop_map(|(top_xid, subxids)| { RecordBody::Assignment(Box::new(AssignmentRecord { top_xid, subxids })) }),
        vec((xid(), oid(), oid()).prop_map(|(xid, db, rel)| StandbyLock { xid, db, rel }), 0..9)
            .prop_map(RecordBody::StandbyLocks),
        running().prop_map(|r| RecordBody::RunningXacts(Box::new(r))),
        insert().prop_map(RecordBody::Insert),
        multi_insert().prop_map(RecordBody::MultiInsert),
        update().prop_map(RecordBody::Update),
        delete().prop_map(RecordBody::Delete),
        (oid(), any::<[bool; 2]>(), vec(oid(), 0..300)).prop_map(|(db, [cascade, restart_seqs], relids)| {
            RecordBody::Truncate(Box::new(TruncateRecord { db, cascade, restart_seqs, relids }))
        }),
        new_cid().prop_map(|r| RecordBody::NewCid(Box::new(r))),
        (locator(), any::<u32>(), xid()).prop_map(|(target, block, conflict_horizon)| {
            RecordBody::Prune(PruneRecord { target, block, conflict_horizon, ..PruneRecord::default() })
        }),
        checkpoint().prop_map(|r| RecordBody::Checkpoint(Box::new(r))),
        (oid(), any::<bool>(), name(), vec(any::<u8>(), 0..3000)).prop_map(|(db, transactional, prefix, message)| {
            RecordBody::LogicalMessage(Box::new(LogicalMessageRecord { db, transactional, prefix, message }))
        }),
    ]
}

/// Encodes and decodes one record.
fn round_trip(version: PgVersion, xid: Xid, top_xid: Xid, origin: u16, body: &RecordBody) -> WalRecord {
    let mut bytes = Vec::new();
    Encoder::new(version).encode(xid, top_xid, origin, body, &mut bytes).unwrap();
    decode_bytes(WalProfile::of(version), Lsn(0x28), Lsn(0x28 + bytes.len() as u64), &bytes, Crc::Trust).unwrap()
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(body in body(), major in 0..6usize, xid in xid(), top: u32, origin: u16) {
        let version = PgVersion::ALL[major];
        let body = without_unknown(version, body);
        let top_xid = if version == PgVersion::V13 { Xid::INVALID } else { Xid(top) };
        let record = round_trip(version, xid, top_xid, origin, &body);
        prop_assert_eq!((record.xid, record.top_xid, record.origin), (xid, top_xid, origin));
        prop_assert_eq!(record.body, body);
    }
}

/// Leaves out what a version does not have.
fn without_unknown(version: PgVersion, mut body: RecordBody) -> RecordBody {
    if let (RecordBody::Prepare(prepare), PgVersion::V13 | PgVersion::V14) = (&mut body, version) {
        (prepare.commit_stats, prepare.abort_stats) = (0, 0);
    }
    body
}

#[test]
fn every_kind_of_18_is_decoded() {
    for body in every_kind() {
        let record = round_trip(PgVersion::V18, Xid(800), Xid(790), 3, &body);
        assert_eq!(record.body, body);
        assert_eq!((record.xid, record.top_xid, record.origin), (Xid(800), Xid(790), 3));
    }
}

/// Records of every kind over page and segment ends, for each version: the reader finds what the writer said.
#[test]
fn logs_read_back_equal_in_every_version() {
    for version in PgVersion::ALL {
        let folder = tempfile::tempdir().unwrap();
        let config = WriterConfig { version, ..WriterConfig::new(42).with_segment_size(1 << 20) };
        let mut writer = WalWriter::create(folder.path(), config).unwrap();
        let mut written = Vec::new();
        for round in 0..40usize {
            let filler = LogicalMessageRecord { message: vec![7; round * 1237 % 40_000], ..LogicalMessageRecord::default() };
            for body in every_kind().into_iter().chain([RecordBody::LogicalMessage(Box::new(filler))]) {
                // Older versions lack some kinds; what they have must come back.
                let Ok((lsn, end_lsn)) = writer.append(Xid(805), Xid::INVALID, 0, &body) else { continue };
                written.push(WalRecord { lsn, end_lsn, xid: Xid(805), top_xid: Xid::INVALID, origin: 0, body });
            }
            if round % 7 == 0 {
                let (lsn, end_lsn) = writer.switch().unwrap();
                let body = RecordBody::Switch;
                written.push(WalRecord { lsn, end_lsn, xid: Xid::INVALID, top_xid: Xid::INVALID, origin: 0, body });
            }
        }
        writer.finish().unwrap();
        let dir = WalDir::open(folder.path(), None).unwrap();
        assert_eq!((dir.identity().version, dir.identity().system_id), (version, 42));
        let mut reader = WalReader::open(&dir, None).unwrap();
        let mut read = written.iter();
        while let Some(record) = reader.next().unwrap() {
            assert_eq!(Some(&record.decode(WalProfile::of(version)).unwrap()), read.next(), "PostgreSQL {version}");
        }
        assert_eq!(read.next(), None, "PostgreSQL {version}");
        assert_eq!(reader.end().unwrap().reason, EndReason::ZeroedTail);
        assert!(written.len() > 40 * 25, "PostgreSQL {version} writes most kinds");
    }
}

/// Pruning has other operations and layouts in 13, 14, 16 and 17; what each can say comes back.
#[test]
fn pruning_in_every_version() {
    let target = RelFileLocator { spc: Oid(1663), db: Oid(5), rel: 16_384 };
    let prune = |reason, (dead, unused, frozen)| PruneRecord {
        target,
        block: 7,
        conflict_horizon: Xid(790),
        is_catalog: false,
        reason,
        redirected: 0,
        dead,
        unused,
        frozen,
    };
    use PruneReason::{CleanupInfo, Freeze, OnAccess, VacuumCleanup, VacuumScan};
    for version in PgVersion::ALL {
        let old = version < PgVersion::V17;
        let no_horizon = |record: PruneRecord| PruneRecord { conflict_horizon: Xid::INVALID, ..record };
        let said = [
            (prune(OnAccess, (4, 2, 0)), true),
            (prune(VacuumScan, (4, 0, 5)), !old),
            (prune(VacuumCleanup, (0, 3, 0)), !old || version == PgVersion::V13),
            (no_horizon(prune(VacuumCleanup, (0, 3, 0))), true),
            (prune(Freeze, (0, 0, 6)), old),
            (PruneRecord { block: 0, ..prune(CleanupInfo, (0, 0, 0)) }, version == PgVersion::V13),
        ];
        for (said, known) in said {
            let mut bytes = Vec::new();
            let encoded = Encoder::new(version).encode(Xid(0), Xid(0), 0, &RecordBody::Prune(said), &mut bytes);
            assert_eq!(encoded.is_ok(), known, "{version}: {said:?}");
            if known {
                let record = round_trip(version, Xid(0), Xid(0), 0, &RecordBody::Prune(said));
                assert_eq!(record.body, RecordBody::Prune(said), "{version}");
            }
        }
    }
}
