//! The real `pg_waldump` of PostgreSQL 18 reads what the writer writes and finds the same records.

use std::collections::BTreeMap;

use pg_types::record::LogicalMessageRecord;
use pg_types::{Lsn, RecordBody, Xid};
use pg_wal::writer::{LogEnd, WalWriter, WriterConfig};

use crate::support::{every_kind, pg_waldump, pg18_bin};

/// 1 MiB segments, so that a test crosses many.
fn config() -> WriterConfig {
    WriterConfig::new(7_713_879_503_513_625_746).with_segment_size(1 << 20)
}

/// `lsn → prev` of each line that pg_waldump printed.
fn positions(text: &str) -> Vec<(Lsn, Lsn)> {
    let field = |line: &str, name: &str| {
        let value = line.split_once(name).and_then(|(_, rest)| rest.split_once(',')).expect("a record's line").0;
        value.trim().parse().expect("an LSN")
    };
    text.lines().map(|line| (field(line, "lsn: "), field(line, "prev "))).collect()
}

#[test]
fn every_kind_of_record_is_read_by_the_real_one() {
    let Some(bin) = pg18_bin() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut writer = WalWriter::create(dir.path(), config()).unwrap();
    let start = writer.next_lsn();
    let mut starts = Vec::new();
    // Long messages push the others over page and segment ends at ever new offsets; every 3rd round ends its segment.
    for round in 0..60usize {
        let filler = LogicalMessageRecord { message: vec![7; round * 1237 % 40_000], ..LogicalMessageRecord::default() };
        let bodies = every_kind().into_iter().chain([RecordBody::LogicalMessage(Box::new(filler))]);
        for body in bodies {
            let expected = writer.next_lsn();
            let top = if round % 2 == 0 { Xid(800) } else { Xid::INVALID };
            let (at, end) = writer.append(Xid(805), top, (round % 3) as u16, &body).unwrap();
            assert!(at == expected && end > at && end == end.align());
            starts.push(at);
        }
        if round % 3 == 0 {
            starts.push(writer.switch().unwrap().0);
        }
    }
    let end = writer.finish().unwrap();
    assert!(end.0 - start.0 > 15 << 20, "the log spans many segments");

    let read = positions(&pg_waldump(&bin, dir.path(), start, end, &[]));
    let prevs = std::iter::once(Lsn::INVALID).chain(starts.iter().copied());
    assert_eq!(read, starts.iter().copied().zip(prevs).collect::<Vec<_>>());
}

#[test]
fn descriptions_say_what_was_written() {
    let Some(bin) = pg18_bin() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut writer = WalWriter::create(dir.path(), config()).unwrap();
    let start = writer.next_lsn();
    for body in every_kind() {
        writer.append(Xid(805), Xid::INVALID, 0, &body).unwrap();
    }
    let end = writer.finish().unwrap();
    let text = pg_waldump(&bin, dir.path(), start, end, &[]);
    let facts = [
        "COMMIT 2026-08-14 05:20:00.000000 UTC; rels: base/5/16384; subxacts: 801 802; dropped stats: 2/5/16384; inval msgs: \
         catcache 57 catalog 1259 relcache 16384 snapshot 2608 smgr relmap db 5 relsync 16384; origin: node 0, lsn 0/1234",
        "PREPARE gid gid:",
        "rels(commit): base/5/16384; rels(abort): base/5/16384 base/5/16384",
        "ASSIGNMENT xtop 800: subxacts: 801 802",
        "LOCK xid 800 db 5 rel 16384",
        "RUNNING_XACTS nextXid 803 latestCompletedXid 799 oldestRunningXid 800; 1 xacts: 800; 2 subxacts: 801 802",
        "INSERT+INIT off: 1, flags: 0x08, blkref #0: rel 1663/5/16384 blk 1",
        "MULTI_INSERT ntuples: 3, flags: 0x0A, offsets: [1, 2, 3], blkref #0: rel 1663/5/16384 blk 3",
        "HOT_UPDATE old_xmax: 800, old_off: 3, old_infobits: [], flags: 0x10, new_xmax: 0, new_off: 4",
        "UPDATE+INIT old_xmax: 800, old_off: 3, old_infobits: [], flags: 0x14, new_xmax: 0, new_off: 1, blkref #0: rel \
         1663/5/16384 blk 71000, blkref #1: rel 1663/5/16384 blk 70000",
        "TRUNCATE flags: [CASCADE, RESTART_SEQS], nrelids: 2, relids: [16384, 16390]",
        "NEW_CID rel: 1663/5/16384, tid: 70000/3, cmin: 3, cmax: 4294967295, combo: 1",
        "PRUNE_ON_ACCESS snapshotConflictHorizon: 790, isCatalogRel: T",
        "CHECKPOINT_SHUTDOWN redo 0/100028; tli 1; prev tli 1; fpw true; wal_level logical; xid 0:800; oid 24576",
        "PARAMETER_CHANGE max_connections=100 max_worker_processes=8 max_wal_senders=10 max_prepared_xacts=10",
        "MESSAGE transactional, prefix \"traceparent\"; payload (300 bytes)",
    ];
    for fact in facts {
        assert!(text.contains(fact), "pg_waldump does not say: {fact}\n{text}");
    }
}

#[test]
fn a_resumed_log_reads_as_one() {
    let Some(bin) = pg18_bin() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut writer = WalWriter::create(dir.path(), config()).unwrap();
    let start = writer.next_lsn();
    let bodies = every_kind();
    let mut count = 0;
    for _ in 0..5 {
        for body in bodies.iter().cycle().take(401) {
            writer.append(Xid(805), Xid::INVALID, 0, body).unwrap();
            count += 1;
        }
        let (prev, end) = writer.append(Xid(805), Xid::INVALID, 0, &bodies[0]).unwrap();
        count += 1;
        // What is written after the last record that counts is erased.
        writer.append(Xid(806), Xid::INVALID, 0, &bodies[1]).unwrap();
        writer.finish().unwrap();
        writer = WalWriter::resume(dir.path(), config(), LogEnd { end, prev }).unwrap();
    }
    let end = writer.finish().unwrap();
    assert_eq!(positions(&pg_waldump(&bin, dir.path(), start, end, &[])).len(), count);
}

#[test]
fn statistics_of_the_real_one_are_ours() {
    let Some(bin) = pg18_bin() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut writer = WalWriter::create(dir.path(), config()).unwrap();
    let start = writer.next_lsn();
    let commits = 1000u32;
    let mut lens = BTreeMap::from([("Transaction/COMMIT", 0u64), ("Heap/INSERT", 0)]);
    for body in every_kind().iter().filter(|b| matches!(b, RecordBody::Insert(i) if !i.init_page && !i.toast && !i.speculative))
    {
        for _ in 0..commits {
            writer.append(Xid(805), Xid::INVALID, 0, body).unwrap();
            // Header 24, block reference 4 + 12 + 4, data header 2, row, main data 3.
            *lens.get_mut("Heap/INSERT").unwrap() += 24 + 20 + 2 + 47 + 3;
            writer.append(Xid(805), Xid::INVALID, 0, &RecordBody::Commit(Box::default())).unwrap();
            *lens.get_mut("Transaction/COMMIT").unwrap() += 24 + 2 + 8;
        }
    }
    let end = writer.finish().unwrap();
    let stats = pg_waldump(&bin, dir.path(), start, end, &["--stats=record"]);
    for (kind, len) in lens {
        let line = stats.lines().find(|l| l.starts_with(kind)).expect("a line for the kind");
        let numbers: Vec<&str> = line.split_whitespace().filter(|w| w.bytes().all(|b| b.is_ascii_digit())).collect();
        assert_eq!(numbers, [commits.to_string(), len.to_string(), "0".to_owned(), len.to_string()], "{line}");
    }
}
