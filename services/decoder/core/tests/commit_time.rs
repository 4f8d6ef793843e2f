//! Which of its two times a transaction from a replication origin is given out with.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod support;

use pg_types::record::CommitRecord;
use pg_types::{Lsn, PgVersion, RecordBody, Timestamp, Xid};
use support::{Log, decode};

/// `DecodeCommit` takes the time at the origin, if the record has one, for plain commits and for prepared ones.
#[test]
fn the_time_at_the_origin_wins() {
    let (here, there) = (Timestamp(7_000_000), Timestamp(5_000_000));
    for (xid, prepared_xid) in [(1000, Xid::INVALID), (0, Xid(1000))] {
        for (origin, expected) in [(None, here), (Some((Lsn(0x123), there)), there)] {
            let mut log = Log::consistent(1000);
            log.insert(1000, 0, 20_000);
            let commit = CommitRecord { time: here, prepared_xid, origin, ..CommitRecord::default() };
            log.push(xid, 0, RecordBody::Commit(Box::new(commit)));
            let (_, sink) = decode(&log, PgVersion::V18, "indexed");
            assert_eq!(sink.work.len(), 1);
            let end = sink.stream.last().unwrap();
            assert!(end.contains(&format!("commit_time: {expected:?}")), "{end}");
        }
    }
}
