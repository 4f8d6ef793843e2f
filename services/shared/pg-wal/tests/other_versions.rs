//! 14 and 17, whose logs were recorded without a pg_waldump beside them: everything decodes as something, what belongs together
//! agrees, and a line of each operation is the one that was checked by hand (`described.txt`).

use std::collections::{BTreeMap, BTreeSet};

use crate::support::fixtures;
use pg_types::record::PrepareRecord;
use pg_types::{PgVersion, RecordBody, Xid};
use pg_wal::text::Text;
use pg_wal::{EndReason, WalDir, WalReader, describe, rmgr};

/// Resource managers whose records are typed.
const TYPED: [u8; 8] = [
    rmgr::RM_XLOG,
    rmgr::RM_XACT,
    rmgr::RM_SMGR,
    rmgr::RM_RELMAP,
    rmgr::RM_STANDBY,
    rmgr::RM_HEAP2,
    rmgr::RM_HEAP,
    rmgr::RM_LOGICALMSG,
];

/// What must agree between a prepare and its end.
fn check_prepared(body: &RecordBody, xid: Xid, open: &mut BTreeMap<u32, PrepareRecord>) {
    match body {
        RecordBody::Prepare(p) => assert!(open.insert(xid.0, (**p).clone()).is_none()),
        RecordBody::Commit(c) if c.prepared_xid.is_valid() => {
            let p = open.remove(&c.prepared_xid.0).unwrap();
            assert_eq!((&c.gid, &c.subxids, &c.messages), (&p.gid, &p.subxids, &p.messages));
            assert_eq!((c.db, &c.dropped_locators), (p.db, &p.commit_locators));
        }
        RecordBody::Abort(a) if a.prepared_xid.is_valid() => {
            let p = open.remove(&a.prepared_xid.0).unwrap();
            assert_eq!((&a.gid, &a.subxids, &a.dropped_locators), (&p.gid, &p.subxids, &p.abort_locators));
        }
        _ => {}
    }
}

/// Reads a version's log.
fn check(version: PgVersion) {
    let folder = fixtures::unpack(version);
    let dir = WalDir::open(folder.path(), None).unwrap();
    dir.verify().unwrap();
    assert_eq!(dir.identity().version, version);
    let profile = dir.profile();
    let described = std::fs::read_to_string(fixtures::folder(version).join("described.txt")).unwrap();
    let mut described: BTreeSet<&str> = described.lines().collect();
    let mut prepared = BTreeMap::new();
    // Since 14 the messages of each command are logged, and all of them again with the commit.
    let mut messages: BTreeMap<u32, usize> = BTreeMap::new();
    let mut text = Text::new();
    let mut commits_with_messages = 0;
    let mut reader = WalReader::open(&dir, None).unwrap();
    while let Some(record) = reader.next().unwrap() {
        let header = record.header;
        let operation = rmgr::known_operation(profile, header.rmid, header.info);
        assert!(operation.is_some(), "{} {:02X} at {}", rmgr::name(header.rmid), header.info, record.lsn);
        let decoded = record.decode(profile).unwrap();
        let other = matches!(decoded.body, RecordBody::Other { .. });
        let index = matches!(decoded.body, RecordBody::IndexPrune(_));
        assert_eq!(other || index, !TYPED.contains(&header.rmid), "{:?} at {}", decoded.body, record.lsn);
        text.clear();
        describe::line(&record, profile, &mut text).unwrap();
        described.remove(text.since(0).trim_end_matches('\n'));
        check_prepared(&decoded.body, decoded.xid, &mut prepared);
        match &decoded.body {
            RecordBody::XactInvalidations(m) => *messages.entry(decoded.xid.0).or_default() += m.len(),
            RecordBody::Commit(c) if !c.messages.is_empty() && !c.prepared_xid.is_valid() && c.subxids.is_empty() => {
                commits_with_messages += 1;
                let logged = messages.get(&decoded.xid.0).copied().unwrap_or(0);
                assert!(logged <= c.messages.len(), "{logged} messages before {:?}", record.lsn);
            }
            _ => {}
        }
    }
    assert_eq!(reader.end().unwrap().reason, EndReason::Switch);
    assert!(described.is_empty(), "not found: {described:#?}");
    assert!(prepared.is_empty() && commits_with_messages > 40);
}

#[test]
fn a_log_of_14_is_read() {
    check(PgVersion::V14);
}

#[test]
fn a_log_of_17_is_read() {
    check(PgVersion::V17);
}
