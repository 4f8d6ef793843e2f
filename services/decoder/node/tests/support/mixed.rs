//! WAL with everything that a node may give out before its commit.

#![allow(dead_code, reason = "each test program uses its part")]

use pg_types::record::{AbortRecord, CommitRecord, HeapInsert, PrepareRecord, RunningXactsRecord};
use pg_types::{Oid, RecordBody, RelFileLocator, Tid, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use tempfile::TempDir;

/// WAL with transactions of `rows` rows each, mixed: one with savepoints, one that is rolled back, two that are prepared, of which one
/// commits and one is rolled back. Small ones commit between and behind them.
pub(crate) fn mixed(rows: u32) -> TempDir {
    mixed_up_to(rows, true)
}

/// The same, or as it is on disk when the first was prepared and a small one has committed.
pub(crate) fn mixed_up_to(rows: u32, end: bool) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = WalWriter::create(dir.path(), WriterConfig::new(1).with_segment_size(1 << 20)).unwrap();
    let mut append = |xid: u32, top: u32, body: RecordBody| writer.append(Xid(xid), Xid(top), 0, &body).map(drop).unwrap();
    let running = |next: u32, oldest: u32| {
        let running = RunningXactsRecord { next_xid: Xid(next), oldest_running_xid: Xid(oldest), ..Default::default() };
        RecordBody::RunningXacts(Box::new(running))
    };
    let insert = |i: u32| {
        let target = RelFileLocator { spc: Oid(1663), db: Oid(5), rel: 20_000 + i % 3 };
        let tid = Tid { block: i / 100, offset: (i % 100 + 1) as u16 };
        RecordBody::Insert(HeapInsert { target, tid, logical: true, tuple_len: 45, ..HeapInsert::default() })
    };
    let commit = |subxids: &[u32], prepared: u32, gid: &str| {
        let subxids = subxids.iter().map(|xid| Xid(*xid)).collect();
        let (prepared_xid, gid) = (Xid(prepared), gid.into());
        RecordBody::Commit(Box::new(CommitRecord { db: Oid(5), subxids, prepared_xid, gid, ..CommitRecord::default() }))
    };
    let prepare =
        |gid: &str| RecordBody::Prepare(Box::new(PrepareRecord { db: Oid(5), gid: gid.into(), ..PrepareRecord::default() }));
    append(0, 0, running(1000, 1000));
    for i in 0..rows {
        append(1000, 0, insert(i));
        append(1001, 1000, insert(i + 1));
        append(1002, 1000, insert(i + 2));
        append(1003, 0, insert(i));
        append(1004, 0, insert(i + 1));
        append(1005, 0, insert(i + 2));
        if i % 50 == 0 {
            append(2000 + i, 0, insert(i));
            append(2000 + i, 0, commit(&[], 0, ""));
        }
    }
    append(1002, 0, RecordBody::Abort(Box::default()));
    append(1003, 0, RecordBody::Abort(Box::default()));
    append(1004, 0, prepare("kept"));
    append(8000, 0, insert(1));
    append(8000, 0, commit(&[], 0, ""));
    if !end {
        writer.finish().unwrap();
        return dir;
    }
    append(1005, 0, prepare("dropped"));
    append(0, 0, running(9000, 1000));
    append(1000, 0, insert(7));
    append(1000, 0, commit(&[1001], 0, ""));
    append(0, 0, commit(&[], 1004, "kept"));
    let abort = AbortRecord { prepared_xid: Xid(1005), gid: b"dropped".to_vec(), db: Oid(5), ..AbortRecord::default() };
    append(0, 0, RecordBody::Abort(Box::new(abort)));
    append(9000, 0, insert(1));
    append(9000, 0, commit(&[], 0, ""));
    writer.switch().unwrap();
    writer.finish().unwrap();
    dir
}
