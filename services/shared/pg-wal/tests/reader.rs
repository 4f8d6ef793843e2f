//! Where records start, how logs end, and that growing ones are followed.

use std::fs;
use std::path::Path;

use crate::support::raw_log::{self, PAGE, RawLog, SEGMENT, name};
use pg_types::{Lsn, RecordBody};
use pg_wal::{EndReason, WalDir, WalEnd, WalError, WalReader};

/// Positions of all records from `start` on, and the end.
fn read_from(dir: &Path, start: Option<Lsn>) -> (Vec<Lsn>, WalEnd) {
    let dir = WalDir::open(dir, None).unwrap();
    let mut reader = WalReader::open(&dir, start).unwrap();
    let mut lsns = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        record.check_crc().unwrap();
        record.decode(dir.profile()).unwrap();
        lsns.push(record.lsn);
    }
    (lsns, reader.end().unwrap().clone())
}

/// Writes a log and reads it.
fn read(log: &RawLog) -> (Vec<Lsn>, WalEnd) {
    let dir = tempfile::tempdir().unwrap();
    log.write(dir.path());
    read_from(dir.path(), None)
}

/// A log of records of all lengths around page and segment ends, and their positions.
fn mixed() -> (RawLog, Vec<Lsn>) {
    let mut log = RawLog::new();
    let lens = [0, 1, 7000, 1000, 8100, 8200, 20_000, 3, 1_500_000, 5, 2_400_000, 100, 8107, 8113];
    let lsns = lens.into_iter().map(|len| log.message(len)).collect();
    (log, lsns)
}

#[test]
fn records_run_over_pages_and_segments() {
    let (log, lsns) = mixed();
    let dir = tempfile::tempdir().unwrap();
    log.write(dir.path());
    let (read, end) = read_from(dir.path(), None);
    assert_eq!(read, lsns);
    assert_eq!((end.lsn, &end.reason), (log.position(), &EndReason::ZeroedTail));
    let wal = WalDir::open(dir.path(), None).unwrap();
    let mut reader = WalReader::open(&wal, None).unwrap();
    let mut expected = None;
    while let Some(record) = reader.next().unwrap() {
        let size = wal.identity().segment_size;
        assert_eq!(pg_wal::page::record_end(record.lsn, record.header.total_len, size), record.end_lsn);
        assert_eq!(record.lsn, expected.unwrap_or(record.lsn));
        expected = Some(pg_wal::page::next_record_start(record.end_lsn, size));
    }
}

#[test]
fn every_record_header_place_in_a_page_is_read() {
    // The header of the second record starts at every 8-byte place before the page's end, split or not.
    for len in (8040..8130).step_by(8) {
        let mut log = RawLog::new();
        let lsns = vec![log.message(len - 60), log.message(10), log.message(9000)];
        let (read, end) = read(&log);
        assert_eq!(read, lsns, "{len}");
        assert_eq!(end.reason, EndReason::ZeroedTail);
    }
}

#[test]
fn a_start_in_mid_record_finds_the_next_one() {
    let (log, lsns) = mixed();
    let dir = tempfile::tempdir().unwrap();
    log.write(dir.path());
    for start in [lsns[0], lsns[2], Lsn(lsns[3].0 + 8), Lsn(lsns[8].0 + 16), Lsn(lsns[8].0 + 700_000), lsns[9], lsns[13]] {
        let (read, _) = read_from(dir.path(), Some(start));
        let expected: Vec<Lsn> = lsns.iter().copied().filter(|l| *l >= start).collect();
        assert_eq!(read, expected, "{start}");
    }
    // The first segments are gone: the log begins inside a record that began in one of them.
    fs::remove_file(dir.path().join(name(1, 1))).unwrap();
    fs::remove_file(dir.path().join(name(1, 2))).unwrap();
    let (read, _) = read_from(dir.path(), None);
    assert_eq!(read.first(), lsns.iter().find(|l| l.0 >= 3 * SEGMENT));
}

#[test]
fn a_wrong_remaining_length_at_the_start_is_found() {
    let (log, lsns) = mixed();
    let begin = lsns.iter().rposition(|l| l.0 < 2 * SEGMENT).unwrap();
    assert!(lsns[begin + 1].0 > 2 * SEGMENT, "the record at the segment's start is a continued one");
    let dir = tempfile::tempdir().unwrap();
    log.write(dir.path());
    fs::remove_file(dir.path().join(name(1, 1))).unwrap();
    let path = dir.path().join(name(1, 2));
    let good = fs::read(&path).unwrap();
    for bit in 0..32 {
        let mut bad = good.clone();
        bad[16 + bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, bad).unwrap();
        let (read, end) = read_from(dir.path(), None);
        // The lowest bits may vanish in the alignment; then the records are the same.
        let same = read == lsns.iter().copied().filter(|l| l.0 > 2 * SEGMENT).collect::<Vec<_>>();
        assert!(same || !end.is_complete(), "bit {bit}: {end}");
    }
}

#[test]
fn an_overwritten_contrecord_is_left_out() {
    let mut log = RawLog::new();
    let first = log.message(100);
    let second = log.message(100);
    let lost = log.message(30_000);
    let page = Lsn((lost.0 / PAGE + 2) * PAGE);
    let mut unsaid = log.clone();
    let mut other = log.clone();
    let says = log.overwrite(second, page, Some(lost));
    let last = log.message(50);
    let (records, end) = read(&log);
    assert_eq!(records, [first, second, says, last]);
    assert_eq!(end.reason, EndReason::ZeroedTail);
    // Beginning on the page itself.
    let dir = tempfile::tempdir().unwrap();
    log.write(dir.path());
    assert_eq!(read_from(dir.path(), Some(page)).0, [says, last]);
    // The record that follows must name the lost one.
    unsaid.overwrite(second, page, None);
    let (records, end) = read(&unsaid);
    assert_eq!(records, [first, second]);
    assert!(matches!(end.reason, EndReason::BadRecord(_)), "{end}");
    other.overwrite(second, page, Some(second));
    assert!(matches!(read(&other).1.reason, EndReason::BadRecord(_)));
}

#[test]
fn a_switch_ends_its_segment() {
    let mut log = RawLog::new();
    let first = log.message(100);
    let switch = log.switch();
    let complete = log.clone();
    let second = log.message(10);
    assert_eq!(second, Lsn(2 * SEGMENT + 40));
    assert_eq!(read(&log).0, [first, switch, second]);
    let (records, end) = read(&complete);
    assert_eq!((records, end.lsn, end.reason), (vec![first, switch], Lsn(2 * SEGMENT), EndReason::Switch));
    // The next segment is there and empty.
    let dir = tempfile::tempdir().unwrap();
    complete.write(dir.path());
    fs::write(dir.path().join(name(1, 2)), vec![0; SEGMENT as usize]).unwrap();
    assert_eq!(read_from(dir.path(), None).1.reason, EndReason::Switch);
    // The next segment is an old one, renamed to be used again.
    fs::copy(dir.path().join(name(1, 1)), dir.path().join(name(1, 2))).unwrap();
    assert_eq!(read_from(dir.path(), None).1.reason, EndReason::Switch);
    // The next segment is missing, a later one is not.
    fs::remove_file(dir.path().join(name(1, 2))).unwrap();
    let mut later = log.clone();
    later.message(2 * SEGMENT as usize);
    let bytes = later.bytes[2 * SEGMENT as usize..3 * SEGMENT as usize].to_vec();
    fs::write(dir.path().join(name(1, 3)), bytes).unwrap();
    let (_, end) = read_from(dir.path(), None);
    assert_eq!(end.reason, EndReason::Gap { missing: name(1, 2), next: name(1, 3) });
    // It was cut to nothing, a later one was not.
    fs::write(dir.path().join(name(1, 2)), []).unwrap();
    let expected = SEGMENT;
    assert_eq!(read_from(dir.path(), None).1.reason, EndReason::TruncatedSegment { len: 0, expected });
    fs::remove_file(dir.path().join(name(1, 3))).unwrap();
    assert_eq!(read_from(dir.path(), None).1.reason, EndReason::Switch, "it was made and not written yet");
    fs::remove_file(dir.path().join(name(1, 2))).unwrap();
    assert!(!end.is_complete());
}

#[test]
fn a_switch_that_ends_with_its_segment() {
    let mut log = RawLog::new();
    // Fill the segment so that the switch record takes its last 24 bytes.
    let room = SEGMENT - 40 - 127 * 24;
    log.message((room - 24 - 56) as usize);
    log.switch();
    assert_eq!(log.position(), Lsn(2 * SEGMENT));
    let after = log.message(1);
    let (records, end) = read(&log);
    assert_eq!((records.len(), records[2], end.reason), (3, after, EndReason::ZeroedTail));
}

#[test]
fn missing_and_truncated_segments_are_named() {
    let (log, lsns) = mixed();
    let dir = tempfile::tempdir().unwrap();
    log.write(dir.path());
    let third = dir.path().join(name(1, 3));
    let good = fs::read(&third).unwrap();
    fs::remove_file(&third).unwrap();
    let (records, end) = read_from(dir.path(), None);
    assert!(records.len() < lsns.len());
    assert!(end.to_string().contains(&name(1, 3)) && end.to_string().contains(&name(1, 4)), "{end}");
    assert!(!end.is_complete());
    for len in [0, 1, 39, 40, 8191, 8192, 8200, 100_000, SEGMENT as usize - 1] {
        fs::write(&third, &good[..len]).unwrap();
        let (records, end) = read_from(dir.path(), None);
        assert!(!end.is_complete() && records.len() < lsns.len(), "{len}: {end}");
        assert!(end.to_string().contains("truncated"), "{len}: {end}");
    }
    // A log whose last segment was cut in its zeroed tail.
    fs::write(&third, &good).unwrap();
    let last = dir.path().join(name(1, log.position().0 / SEGMENT));
    let bytes = fs::read(&last).unwrap();
    fs::write(&last, &bytes[..bytes.len() - 1]).unwrap();
    let (records, end) = read_from(dir.path(), None);
    assert_eq!(records, lsns);
    let (len, expected) = (SEGMENT - 1, SEGMENT);
    assert_eq!((end.lsn, end.reason), (log.position(), EndReason::TruncatedSegment { len, expected }));
}

#[test]
fn a_torn_record_is_told_from_an_end() {
    let mut log = RawLog::new();
    let first = log.message(100);
    let second = log.message(20_000);
    let full = log.bytes.clone();
    for cut in (second.0 - SEGMENT + 8..full.len() as u64).step_by(1000) {
        log.bytes = full[..cut as usize].to_vec();
        let (records, end) = read(&log);
        assert_eq!(records, [first]);
        assert!(!end.is_complete() && end.lsn == second, "{cut}: {end}");
    }
}

#[test]
fn zeroes_are_an_end_only_if_nothing_follows() {
    let mut log = RawLog::new();
    let first = log.message(100);
    let end = log.position();
    let bytes = log.bytes.clone();
    for at in [end.0 + 16, end.0 + 5000, end.0 + 3 * PAGE, 2 * SEGMENT - 1] {
        log.bytes = bytes.clone();
        log.bytes.resize(SEGMENT as usize, 0);
        log.bytes[(at - SEGMENT) as usize] = 1;
        let (records, end) = read(&log);
        assert_eq!(records, [first]);
        assert!(!end.is_complete(), "{at:X}: {end}");
    }
    // A later segment goes on.
    let (log, lsns) = mixed();
    let dir = tempfile::tempdir().unwrap();
    log.write(dir.path());
    let second = lsns[1];
    let mut first = fs::read(dir.path().join(name(1, 1))).unwrap();
    first[(second.0 - SEGMENT) as usize..].fill(0);
    fs::write(dir.path().join(name(1, 1)), first).unwrap();
    let (records, end) = read_from(dir.path(), None);
    assert_eq!((records, end.lsn), (vec![lsns[0]], second));
    assert!(matches!(end.reason, EndReason::Hole { at: Lsn(at), .. } if at == 2 * SEGMENT), "{end}");
}

#[test]
fn a_recycled_segment_is_told_from_a_damaged_page() {
    // The second segment is the first one renamed, and its first page written anew.
    let mut log = RawLog::new();
    while log.position().0 < 2 * SEGMENT {
        log.message(1000);
    }
    let begun = log.position();
    let old = log.bytes[..SEGMENT as usize].to_vec();
    let written = log.bytes.len().next_multiple_of(PAGE as usize);
    log.bytes.resize(written, 0);
    log.bytes.extend(&old[written - SEGMENT as usize..]);
    let (_, end) = read(&log);
    assert_eq!(end.lsn, begun);
    let page = Lsn(SEGMENT + written as u64);
    assert_eq!(end.reason, EndReason::RecycledTail { page, address: Lsn(page.0 - SEGMENT) });
}

#[test]
fn a_partial_segment_is_read_last() {
    let mut log = RawLog::new();
    let first = log.message(100);
    let dir = tempfile::tempdir().unwrap();
    log.write(dir.path());
    let partial = dir.path().join(format!("{}.partial", name(1, 1)));
    fs::rename(dir.path().join(name(1, 1)), &partial).unwrap();
    let (records, end) = read_from(dir.path(), None);
    assert_eq!((records, &end.reason, &end.file), (vec![first], &EndReason::ZeroedTail, &partial));
    // Beside a complete one it is left out.
    log.message(7);
    log.write(dir.path());
    let wal = WalDir::open(dir.path(), None).unwrap();
    assert_eq!(wal.left_out(), [partial]);
    assert_eq!(read_from(dir.path(), None).0.len(), 2);
}

#[test]
fn the_newest_timeline_is_read_with_its_ancestors() {
    let (mut log, lsns) = mixed();
    let dir = tempfile::tempdir().unwrap();
    log.write(dir.path());
    // Timeline 2 leaves timeline 1 where that one ends, in the middle of a segment, whose content it copies.
    let left = log.position();
    let segment = left.0 / SEGMENT;
    log.timeline = 2;
    let mut new = vec![log.append(0, 0x90, &[&[0; 8][..], &[2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]].concat())];
    new.extend((0..300).map(|_| log.message(8000)));
    let copied = tempfile::tempdir().unwrap();
    log.write(copied.path());
    for number in segment..=log.position().0 / SEGMENT {
        fs::copy(copied.path().join(name(2, number)), dir.path().join(name(2, number))).unwrap();
    }
    // Without a history only the newest one's own segments.
    let wal = WalDir::open(dir.path(), None).unwrap();
    assert_eq!((wal.identity().timeline, wal.first()), (2, Lsn(segment * SEGMENT)));
    assert_eq!(wal.left_out().len() as u64, segment);
    let in_copy = lsns.iter().filter(|l| l.0 > segment * SEGMENT).count();
    assert_eq!(read_from(dir.path(), None).0.len(), in_copy + new.len());
    // With its history all of it.
    fs::write(dir.path().join("00000002.history"), format!("1\t{left}\tno recovery target specified\n")).unwrap();
    let (records, end) = read_from(dir.path(), None);
    assert_eq!(records, [lsns.clone(), new].concat());
    assert_eq!(end.reason, EndReason::ZeroedTail);
    let wal = WalDir::open(dir.path(), None).unwrap();
    assert_eq!(wal.left_out(), [dir.path().join(name(1, segment))], "the old timeline's part of the shared segment");
    // Asked for, the old one.
    let wal = WalDir::open(dir.path(), Some(1)).unwrap();
    let mut reader = WalReader::open(&wal, None).unwrap();
    let mut count = 0;
    while reader.next().unwrap().is_some() {
        count += 1;
    }
    assert_eq!((count, &reader.end().unwrap().reason), (lsns.len(), &EndReason::ZeroedTail));
    let error = WalDir::open(dir.path(), Some(3)).unwrap_err();
    assert!(error.to_string().contains("it has: 1, 2"), "{error}");
}

#[test]
fn a_page_of_an_older_timeline_is_no_continuation() {
    let mut log = RawLog::new();
    log.timeline = 2;
    log.message(100);
    log.message(8080);
    let page = log.bytes.len() / PAGE as usize * PAGE as usize;
    log.message(100);
    log.bytes[page + 4] = 1;
    let (_, end) = read(&log);
    assert!(!end.is_complete() && end.to_string().contains("timeline"), "{end}");
}

#[test]
fn a_segment_of_another_cluster_is_named() {
    let (log, _) = mixed();
    let dir = tempfile::tempdir().unwrap();
    log.write(dir.path());
    let other = tempfile::tempdir().unwrap();
    let mut foreign = RawLog { system_id: 42, ..RawLog::new() };
    while foreign.position().0 < 4 * SEGMENT {
        foreign.message(1000);
    }
    foreign.write(other.path());
    fs::copy(other.path().join(name(1, 3)), dir.path().join(name(1, 3))).unwrap();
    let (_, end) = read_from(dir.path(), None);
    assert!(!end.is_complete() && end.to_string().contains("another cluster"), "{end}");
    let error = WalDir::open(dir.path(), None).unwrap().verify().unwrap_err();
    assert!(matches!(&error, WalError::Disagreement { lsn, .. } if *lsn == Lsn(3 * SEGMENT)), "{error}");
    assert!(error.to_string().contains("system identifier 42"), "{error}");
}

#[test]
fn what_is_no_wal_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let missing = WalDir::open(dir.path().join("nowhere"), None).unwrap_err();
    assert!(matches!(missing, WalError::NotFound { .. }), "{missing}");
    let empty = WalDir::open(dir.path(), None).unwrap_err();
    assert!(matches!(empty, WalError::NoSegments { .. }), "{empty}");
    let path = dir.path().join(name(1, 1));
    let mut log = RawLog::new();
    log.message(1);
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        WalDir::open(dir.path(), None).unwrap_err().to_string()
    };
    assert!(refused(b"").contains("cut off"));
    assert!(refused(&[0; 8192]).contains("zeroes"));
    assert!(refused(&b"#!/bin/sh\n".repeat(900)).contains("no page magic"));
    for (magic, product) in [(0xD120, "PostgreSQL 19"), (0xD101, "PostgreSQL 12"), (0xD1FF, "does not know")] {
        log.bytes[..2].copy_from_slice(&u16::to_le_bytes(magic));
        assert!(refused(&log.bytes).contains(product), "{magic:X}");
    }
    log.bytes[..2].copy_from_slice(&raw_log::MAGIC.to_le_bytes());
    log.bytes[32..36].copy_from_slice(&(3u32 << 20).to_le_bytes());
    assert!(refused(&log.bytes).contains("segment size"));
    let other = dir.path().join("file");
    fs::write(&other, "x").unwrap();
    assert!(WalDir::open(&other, None).unwrap_err().to_string().contains("name"));
}

#[test]
fn one_file_and_a_data_directory_are_opened() {
    let (log, lsns) = mixed();
    let data = tempfile::tempdir().unwrap();
    let wal = data.path().join("pg_wal");
    fs::create_dir(&wal).unwrap();
    log.write(&wal);
    assert_eq!(read_from(data.path(), None).0, lsns);
    let (records, end) = read_from(&wal.join(name(1, 1)), None);
    assert_eq!(records, lsns[..records.len()]);
    assert!(records.len() < lsns.len() && !end.is_complete(), "{end}");
}

#[test]
fn a_limit_is_where_the_caller_asked() {
    let (log, lsns) = mixed();
    let dir = tempfile::tempdir().unwrap();
    log.write(dir.path());
    let wal = WalDir::open(dir.path(), None).unwrap();
    let mut reader = WalReader::open(&wal, None).unwrap();
    let mut records = Vec::new();
    // On a record's start; inside one; on the end of the one before it; and one past everything.
    let inside = Lsn(lsns[2].0 + 10);
    for (limit, count) in [(lsns[1], 1), (inside, 2), (lsns[3], 3), (lsns[9], 9), (Lsn(u64::MAX), lsns.len())] {
        reader.set_limit(limit);
        while let Some(record) = reader.next().unwrap() {
            records.push(record.lsn);
        }
        assert_eq!(records.len(), count, "{limit}");
        let reached = reader.end().unwrap().reason == EndReason::Limit(limit);
        assert_eq!(reached, count < lsns.len(), "{limit}");
    }
    assert_eq!(records, lsns);
    let error = WalReader::open(&wal, Some(Lsn(5))).unwrap_err();
    assert!(matches!(error, WalError::StartOutside { .. }), "{error}");
    assert!(WalReader::open(&wal, Some(wal.end())).is_ok());
    assert!(WalReader::open(&wal, Some(Lsn(wal.end().0 + 1))).is_err());
}

#[test]
fn a_growing_log_is_followed() {
    let (log, lsns) = mixed();
    let dir = tempfile::tempdir().unwrap();
    let mut part = RawLog { bytes: log.bytes[..100].to_vec(), ..log.clone() };
    part.write(dir.path());
    let wal = WalDir::open(dir.path(), None).unwrap();
    let mut reader = WalReader::open(&wal, None).unwrap();
    let mut records = Vec::new();
    // Bytes arrive in pieces of odd length; no record is seen before it is whole, none is lost, none is seen twice.
    let mut len = 100;
    while len < log.bytes.len() {
        len = (len + 21_321 + len % 977).min(log.bytes.len());
        part.bytes = log.bytes[..len].to_vec();
        part.write(dir.path());
        while let Some(record) = reader.next().unwrap() {
            records.push(record.lsn);
        }
        assert!(records.len() <= lsns.len());
        assert_eq!(records, lsns[..records.len()]);
    }
    assert_eq!(records, lsns);
    let again = (reader.next().unwrap().is_none(), reader.end().unwrap().reason.clone());
    assert_eq!(again, (true, EndReason::ZeroedTail));
    assert_eq!(reader.position(), log.position());
}

#[test]
fn decoding_is_told_the_kind() {
    let mut log = RawLog::new();
    log.message(3);
    let dir = tempfile::tempdir().unwrap();
    log.write(dir.path());
    let wal = WalDir::open(dir.path(), None).unwrap();
    let mut reader = WalReader::open(&wal, None).unwrap();
    let record = reader.next().unwrap().unwrap();
    let decoded = record.decode(wal.profile()).unwrap();
    let RecordBody::LogicalMessage(message) = &decoded.body else { panic!("{decoded:?}") };
    assert_eq!((&message.prefix[..], &message.message[..]), (&b"p"[..], &[0u8, 1, 2][..]));
    // The same record from its bytes alone, as it comes over a wire; then with a byte of its checksum changed.
    let mut bytes = record.bytes.to_vec();
    let again = |bytes: &[u8]| pg_wal::decode_bytes(wal.profile(), record.lsn, record.end_lsn, bytes, pg_wal::Crc::Check);
    assert_eq!(again(&bytes), Ok(decoded));
    bytes[21] ^= 1;
    assert!(again(&bytes).unwrap_err().to_string().contains("checksum"));
    assert!(again(&bytes[..30]).is_err() && again(&[]).is_err());
}
