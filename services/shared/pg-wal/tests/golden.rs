//! Every record of the recorded logs, against what the server's own pg_waldump said.

use crate::support::fixtures::{Line, parse, unpack, waldump};
use pg_types::PgVersion;
use pg_wal::describe;
use pg_wal::text::Text;
use pg_wal::{EndReason, RawRecord, WalDir, WalProfile, WalReader, rmgr};

/// Compares position, back link, resource manager, operation, both lengths and transaction of every record, and decodes it.
fn check_sequence(version: PgVersion) {
    let folder = unpack(version);
    let dir = WalDir::open(folder.path(), None).unwrap();
    dir.verify().unwrap();
    assert_eq!(dir.identity().version, version);
    let profile = dir.profile();
    let text = waldump(version);
    let mut lines = text.lines();
    let mut reader = WalReader::open(&dir, None).unwrap();
    let mut count = 0;
    let mut ours = Text::new();
    while let Some(record) = reader.next().unwrap() {
        let line = parse(lines.next().unwrap_or_else(|| panic!("pg_waldump has no record at {}", record.lsn)));
        let parts = record.parts(profile).unwrap();
        let header = record.header;
        assert_eq!((record.lsn, header.prev, header.xid.0), (line.lsn, line.prev, line.xid));
        let lens = (header.total_len - parts.images_len, header.total_len);
        assert_eq!(lens, line.len, "lengths at {}", record.lsn);
        assert_eq!(rmgr::name(header.rmid), line.rmgr, "at {}", record.lsn);
        let operation = rmgr::operation_name(profile, header.rmid, header.info);
        assert_eq!(Some(&*operation), line.desc.split_whitespace().next(), "at {}", record.lsn);
        let decoded = record.decode(profile).unwrap();
        assert!(decoded.end_lsn > decoded.lsn);
        check_text(&record, profile, &line, &mut ours);
        count += 1;
    }
    assert!(count > 9_000, "{count}");
    let end = reader.end().unwrap();
    assert_eq!(end.reason, EndReason::Switch, "{end}");
    assert_eq!(lines.next(), None, "pg_waldump goes on");
}

/// Resource managers that are described in full.
const DESCRIBED: [&str; 8] = ["XLOG", "Transaction", "Storage", "RelMap", "Standby", "Heap2", "Heap", "LogicalMessage"];

/// Compares the whole line, or for resource managers that are not described all but the description's middle.
fn check_text(record: &RawRecord<'_>, profile: &'static WalProfile, line: &Line<'_>, ours: &mut Text) {
    ours.clear();
    describe::line(record, profile, ours).unwrap();
    let ours = parse(ours.since(0).strip_suffix('\n').unwrap());
    if DESCRIBED.contains(&line.rmgr) {
        assert_eq!(&ours, line);
        return;
    }
    assert_eq!(Line { desc: "", ..ours }, Line { desc: "", ..*line });
    let blocks = |desc: &str| desc.find(", blkref").map(|at| desc[at..].to_owned());
    assert_eq!(blocks(ours.desc), blocks(line.desc), "{}", line.desc);
}

#[test]
fn every_record_of_13() {
    check_sequence(PgVersion::V13);
}

#[test]
fn every_record_of_15() {
    check_sequence(PgVersion::V15);
}

#[test]
fn every_record_of_16() {
    check_sequence(PgVersion::V16);
}

#[test]
fn every_record_of_18() {
    check_sequence(PgVersion::V18);
}
