//! What the writer's tests share: records of every kind, and the real `pg_waldump` 18.

pub(crate) mod fixtures;
pub(crate) mod raw_log;

use std::path::{Path, PathBuf};
use std::process::Command;

use pg_types::record::*;
use pg_types::{CommandId, FullXid, InvalidationMessage, Lsn, Oid, RecordBody, RelFileLocator, Tid, Timestamp, Xid};

/// The folder with PostgreSQL 18's programs: `$WALSTORM_PG18_BIN`, else `.tools/pg18/bin` of the repository.
///
/// Without it a test cannot run: that is a failure where `CI` is set, elsewhere it is said aloud and [`None`] comes back.
pub(crate) fn pg18_bin() -> Option<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let bin = std::env::var_os("WALSTORM_PG18_BIN").map_or_else(|| repository.join(".tools/pg18/bin"), PathBuf::from);
    if bin.join("pg_waldump").exists() {
        return Some(bin);
    }
    let reason = format!("no pg_waldump in {}; set WALSTORM_PG18_BIN, or run `make test`, which installs it", bin.display());
    assert!(std::env::var_os("CI").is_none(), "{reason}");
    eprintln!("SKIPPED: {reason}");
    None
}

/// Runs `pg_waldump` 18 over a range; its standard output, when it succeeded and complained of nothing.
pub(crate) fn pg_waldump(bin: &Path, dir: &Path, from: Lsn, to: Lsn, args: &[&str]) -> String {
    let mut command = Command::new(bin.join("pg_waldump"));
    command.arg("-p").arg(dir).args(["-s", &from.to_string(), "-e", &to.to_string()]).args(args);
    let output = command.output().expect("run pg_waldump");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "pg_waldump: {} {stderr}", output.status);
    String::from_utf8(output.stdout).expect("pg_waldump writes UTF-8")
}

/// A table's file.
pub(crate) const TABLE: RelFileLocator = RelFileLocator { spc: Oid(1663), db: Oid(5), rel: 16_384 };

/// Messages of every kind that a commit may carry.
pub(crate) fn messages() -> Vec<InvalidationMessage> {
    let db = Oid(5);
    vec![
        InvalidationMessage::Catcache { cache_id: 57, db, hash: 0xDEAD_BEEF },
        InvalidationMessage::Catalog { db, catalog: Oid(1259) },
        InvalidationMessage::Relcache { db, rel: Oid(16_384) },
        InvalidationMessage::Snapshot { db, rel: Oid(2608) },
        InvalidationMessage::Smgr { backend: -1, locator: TABLE },
        InvalidationMessage::Relmap { db },
        InvalidationMessage::Relsync { db, rel: Oid(16_384) },
    ]
}

/// XACT and STANDBY records with all their chunks.
fn transactions() -> Vec<RecordBody> {
    let subxids = vec![Xid(801), Xid(802)];
    let commit = CommitRecord {
        time: Timestamp(840_000_000_000_000),
        xinfo: xinfo::CHUNKS & !(xinfo::HAS_TWOPHASE | xinfo::HAS_GID) | xinfo::HAS_AE_LOCKS,
        db: Oid(5),
        spc: Oid(1663),
        subxids: subxids.clone(),
        dropped_locators: vec![TABLE],
        dropped_stats: 1,
        messages: messages(),
        origin: Some((Lsn(0x1234), Timestamp(7))),
        ..CommitRecord::default()
    };
    let two_phase = |has: u32| has | xinfo::HAS_TWOPHASE | xinfo::HAS_GID;
    let prepared = CommitRecord {
        prepared_xid: Xid(800),
        xinfo: two_phase(commit.xinfo & !xinfo::HAS_ORIGIN),
        gid: b"gid \x1b[31m".to_vec(),
        origin: None,
        ..commit.clone()
    };
    let abort = AbortRecord {
        time: commit.time,
        xinfo: xinfo::HAS_DBINFO | xinfo::HAS_SUBXACTS | xinfo::HAS_RELFILELOCATORS,
        db: Oid(5),
        spc: Oid(1663),
        subxids: subxids.clone(),
        dropped_locators: vec![TABLE],
        ..AbortRecord::default()
    };
    let abort_prepared =
        AbortRecord { prepared_xid: Xid(800), gid: b"gid".to_vec(), xinfo: two_phase(abort.xinfo), ..abort.clone() };
    vec![
        RecordBody::Commit(Box::new(CommitRecord { time: commit.time, ..CommitRecord::default() })),
        RecordBody::Commit(Box::new(commit)),
        RecordBody::Commit(Box::new(prepared)),
        RecordBody::Abort(Box::default()),
        RecordBody::Abort(Box::new(abort)),
        RecordBody::Abort(Box::new(abort_prepared)),
        RecordBody::Prepare(Box::new(PrepareRecord {
            time: Timestamp(840_000_000_000_000),
            db: Oid(5),
            owner: Oid(10),
            gid: b"gid".to_vec(),
            subxids: subxids.clone(),
            messages: messages(),
            commit_locators: vec![TABLE],
            abort_locators: vec![TABLE, TABLE],
            commit_stats: 1,
            abort_stats: 2,
            origin: Some((Lsn(0x1234), Timestamp(7))),
        })),
        RecordBody::Assignment(Box::new(AssignmentRecord { top_xid: Xid(800), subxids })),
        RecordBody::XactInvalidations(messages()),
        RecordBody::StandbyLocks(vec![StandbyLock { xid: Xid(800), db: Oid(5), rel: Oid(16_384) }; 2]),
        RecordBody::RunningXacts(Box::new(RunningXactsRecord {
            next_xid: Xid(803),
            oldest_running_xid: Xid(800),
            latest_completed_xid: Xid(799),
            subxid_overflow: false,
            xids: vec![Xid(800)],
            subxids: vec![Xid(801), Xid(802)],
        })),
        RecordBody::StandbyInvalidations(Box::new(StandbyInvalidationsRecord {
            db: Oid(5),
            spc: Oid(1663),
            relcache_init_file_inval: true,
            messages: messages(),
        })),
    ]
}

/// HEAP and HEAP2 records.
fn heap() -> Vec<RecordBody> {
    let (target, tid) = (TABLE, Tid { block: 70_000, offset: 3 });
    let insert = HeapInsert { target, tid, logical: true, tuple_len: 47, ..HeapInsert::default() };
    let multi = HeapMultiInsert {
        target,
        block: 3,
        ntuples: 3,
        logical: true,
        last_in_multi: true,
        tuples_len: 101,
        ..HeapMultiInsert::default()
    };
    let delete = HeapDelete { target, tid, xmax: Xid(800), ..HeapDelete::default() };
    let update = HeapUpdate {
        target,
        old_tid: tid,
        new_tid: Tid { block: tid.block, offset: 4 },
        old_xmax: Xid(800),
        hot: true,
        logical: true,
        tuple_len: 47,
        ..HeapUpdate::default()
    };
    let moved = HeapUpdate { new_tid: Tid { block: 71_000, offset: 1 }, hot: false, init_page: true, ..update };
    let lock = HeapLock { target, tid, xmax: Xid(800), infobits: 6 };
    let prune = PruneRecord {
        target,
        block: 9,
        conflict_horizon: Xid(790),
        is_catalog: true,
        redirected: 1,
        dead: 3,
        unused: 2,
        ..PruneRecord::default()
    };
    vec![
        RecordBody::Insert(insert),
        RecordBody::Insert(HeapInsert { init_page: true, tid: Tid { block: 1, offset: 1 }, ..insert }),
        RecordBody::Insert(HeapInsert { speculative: true, ..insert }),
        RecordBody::Insert(HeapInsert { toast: true, tuple_len: 2036, ..insert }),
        RecordBody::MultiInsert(multi),
        RecordBody::MultiInsert(HeapMultiInsert { init_page: true, toast: true, last_in_multi: false, ..multi }),
        RecordBody::Delete(delete),
        RecordBody::Delete(HeapDelete { old: OldTuple::Key, old_len: 14, partition_move: true, ..delete }),
        RecordBody::Delete(HeapDelete { old: OldTuple::Full, old_len: 80, super_deletion: true, ..delete }),
        RecordBody::Update(update),
        RecordBody::Update(HeapUpdate { old: OldTuple::Key, old_len: 9, ..update }),
        RecordBody::Update(HeapUpdate { old: OldTuple::Full, old_len: 47, ..moved }),
        RecordBody::Truncate(Box::new(TruncateRecord {
            db: Oid(5),
            cascade: true,
            restart_seqs: true,
            relids: vec![Oid(16_384), Oid(16_390)],
        })),
        RecordBody::Confirm(HeapPlace { target, tid }),
        RecordBody::Lock(lock),
        RecordBody::LockUpdated(lock),
        RecordBody::Inplace(Box::new(InplaceRecord {
            target,
            tid,
            db: Oid(5),
            spc: Oid(1663),
            relcache_init_file_inval: true,
            messages: messages(),
        })),
        RecordBody::NewCid(Box::new(NewCidRecord {
            top_xid: Xid(800),
            cmin: CommandId(3),
            cmax: CommandId::INVALID,
            combocid: CommandId(1),
            target,
            tid,
        })),
        RecordBody::Prune(prune),
        RecordBody::Prune(PruneRecord { conflict_horizon: Xid::INVALID, is_catalog: false, ..prune }),
        RecordBody::Prune(PruneRecord { reason: PruneReason::VacuumScan, frozen: 9, ..prune }),
        RecordBody::Prune(PruneRecord { reason: PruneReason::VacuumCleanup, redirected: 0, dead: 0, ..prune }),
        RecordBody::Visible(PruneRecord { redirected: 0, dead: 0, unused: 0, frozen: 1, ..prune }),
        RecordBody::Rewrite(Box::new(RewriteRecord {
            mapped_xid: Xid(800),
            mapped_db: Oid(5),
            mapped_rel: Oid(1259),
            offset: 72,
            num_mappings: 2,
            start_lsn: Lsn(0x1_0000_0028),
        })),
    ]
}

/// XLOG (without a switch), SMGR, RELMAP and LOGICALMSG records.
fn control() -> Vec<RecordBody> {
    let checkpoint = CheckpointRecord {
        shutdown: true,
        redo: Lsn(0x10_0028),
        this_timeline: 1,
        prev_timeline: 1,
        full_page_writes: true,
        wal_level: 2,
        next_xid: FullXid(800),
        next_oid: Oid(24_576),
        next_multi: 1,
        oldest_xid: Xid(731),
        oldest_xid_db: Oid(1),
        oldest_multi: 1,
        oldest_multi_db: Oid(1),
        time: 1_780_000_000,
        ..CheckpointRecord::default()
    };
    vec![
        RecordBody::Checkpoint(Box::new(checkpoint.clone())),
        RecordBody::Checkpoint(Box::new(CheckpointRecord { shutdown: false, oldest_active_xid: Xid(800), ..checkpoint })),
        RecordBody::CheckpointRedo,
        RecordBody::NextOid(Oid(32_768)),
        RecordBody::EndOfRecovery { this_timeline: 2, prev_timeline: 1 },
        RecordBody::ParameterChange(Box::new(ParameterChangeRecord {
            max_connections: 100,
            max_worker_processes: 8,
            max_wal_senders: 10,
            max_prepared_xacts: 10,
            max_locks_per_xact: 64,
            wal_level: 2,
            wal_log_hints: false,
            track_commit_timestamp: true,
        })),
        RecordBody::OverwriteContrecord(Lsn(0x10_0028)),
        RecordBody::BackupEnd(Lsn(0x10_0028)),
        RecordBody::XlogOther,
        RecordBody::SmgrCreate { target: TABLE, fork: 0 },
        RecordBody::SmgrTruncate { target: TABLE, blocks: 7, flags: 7 },
        RecordBody::Relmap(Box::new(RelmapRecord {
            db: Oid(5),
            spc: Oid(1663),
            mappings: vec![(Oid(1259), 16_500), (Oid(1249), 1249)],
        })),
        RecordBody::LogicalMessage(Box::new(LogicalMessageRecord {
            db: Oid(5),
            transactional: true,
            prefix: b"traceparent".to_vec(),
            message: vec![b'x'; 300],
        })),
    ]
}

/// One or more records of every kind that version 18 can write, but the switch.
pub(crate) fn every_kind() -> Vec<RecordBody> {
    [transactions(), heap(), control()].concat()
}
