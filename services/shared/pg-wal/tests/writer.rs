//! The writer without other tools: places, refusals, files.

use std::os::unix::fs::PermissionsExt;

use pg_types::record::{HeapInsert, LogicalMessageRecord};
use pg_types::{Lsn, PgVersion, RecordBody, Xid};
use pg_wal::encode::{EncodeError, Encoder};
use pg_wal::writer::{LogEnd, RecordPlacer, WalSync, WalWriter, WriteError, WriterConfig};

const MIB: u64 = 1 << 20;

fn config() -> WriterConfig {
    WriterConfig::new(1).with_segment_size(MIB as u32)
}

/// A record of `len` bytes in all.
fn message(len: usize) -> RecordBody {
    // Record header 24, main data header 5, message header 24, the NUL of the prefix.
    RecordBody::LogicalMessage(Box::new(LogicalMessageRecord { message: vec![1; len - 54], ..LogicalMessageRecord::default() }))
}

#[test]
fn records_start_behind_page_headers() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = WalWriter::create(dir.path(), config()).unwrap();
    let mut append = |len| writer.append(Xid(3), Xid::INVALID, 0, &message(len)).unwrap();
    assert_eq!(append(8192 - 40), (Lsn(MIB + 40), Lsn(MIB + 8192)), "fills its page to the last byte");
    assert_eq!(append(1000), (Lsn(MIB + 8192 + 24), Lsn(MIB + 8192 + 1024)));
    assert_eq!(append(20_001).1, Lsn(MIB + 8192 + 1024 + 20_008 + 2 * 24), "two page headers inside, then padding");
    let (start, end) = writer.switch().unwrap();
    assert_eq!((start.0 < end.0, end), (true, Lsn(2 * MIB)));
    assert_eq!(writer.switch().unwrap(), (end, end), "nothing to end at a segment's start");
    assert_eq!(writer.next_lsn(), Lsn(2 * MIB + 40));
    // A record longer than two segments.
    let (start, end) = writer.append(Xid(3), Xid::INVALID, 0, &message(3 * MIB as usize)).unwrap();
    assert_eq!(start, Lsn(2 * MIB + 40));
    assert_eq!(writer.finish().unwrap(), end);
    let names: Vec<String> = (1..=5).map(|n| format!("{:08X}{:08X}{n:08X}", 1, 0)).collect();
    for name in names {
        let meta = std::fs::metadata(dir.path().join(&name)).unwrap();
        assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (MIB, 0o600), "{name}");
    }
}

#[test]
fn what_is_not_flushed_is_not_in_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = WalWriter::create(dir.path(), config()).unwrap();
    writer.append(Xid(3), Xid::INVALID, 0, &message(100)).unwrap();
    assert!(writer.flushed_lsn() < writer.end_lsn());
    assert_eq!(writer.flush().unwrap(), writer.end_lsn());
    assert_eq!(writer.flushed_lsn(), writer.end_lsn());
    let bytes = std::fs::read(dir.path().join("000000010000000000000001")).unwrap();
    let end = (writer.end_lsn().0 - MIB) as usize;
    assert!(bytes[end..].iter().all(|b| *b == 0), "a zeroed tail");
    assert!(bytes[end - 8..end].iter().any(|b| *b != 0));
}

#[test]
fn the_same_records_give_the_same_bytes() {
    let write = || {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = WalWriter::create(dir.path(), config()).unwrap();
        for len in (100..9000).step_by(61) {
            writer.append(Xid(3), Xid::INVALID, 0, &message(len)).unwrap();
        }
        writer.finish().unwrap();
        std::fs::read(dir.path().join("000000010000000000000001")).unwrap()
    };
    assert!(write() == write());
}

#[test]
fn an_existing_log_is_not_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = WalWriter::create(dir.path(), config()).unwrap();
    let (prev, end) = first.append(Xid(3), Xid::INVALID, 0, &message(100)).unwrap();
    first.finish().unwrap();
    let mut second = WalWriter::create(dir.path(), config()).unwrap();
    second.append(Xid(3), Xid::INVALID, 0, &message(100)).unwrap();
    let refused = second.flush().unwrap_err();
    assert!(matches!(refused, WriteError::SegmentExists { .. }) && !refused.is_no_space(), "{refused}");
    let closed = second.append(Xid(3), Xid::INVALID, 0, &message(100)).unwrap_err();
    assert!(matches!(closed, WriteError::Closed { .. }), "{closed}");
    // Nor is the log of another cluster continued.
    let other = WriterConfig { system_id: 2, ..config() };
    let refused = WalWriter::resume(dir.path(), other, LogEnd { end, prev }).unwrap_err();
    assert!(matches!(refused, WriteError::WrongSegment { .. }), "{refused}");
    // Nor one that is shorter than said.
    std::fs::OpenOptions::new().write(true).open(dir.path().join("000000010000000000000001")).unwrap().set_len(64).unwrap();
    let refused = WalWriter::resume(dir.path(), config(), LogEnd { end, prev }).unwrap_err();
    assert!(refused.to_string().contains("64 bytes"), "{refused}");
}

#[test]
fn bad_configurations_are_refused() {
    let bad = [
        WriterConfig { segment_size: 3 << 20, ..config() },
        WriterConfig { segment_size: 1 << 19, ..config() },
        WriterConfig { timeline: 0, ..config() },
        WriterConfig { start: Lsn(0), ..config() },
        WriterConfig { start: Lsn(MIB + 8), ..config() },
    ];
    for config in bad {
        let refused = WalWriter::create("unused", config).unwrap_err();
        assert!(matches!(refused, WriteError::BadConfig { .. }), "{refused}");
    }
}

#[test]
fn what_the_format_cannot_say_is_refused_and_the_log_stays_open() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = WalWriter::create(dir.path(), config()).unwrap();
    let at = writer.next_lsn();
    let bad = [
        RecordBody::Insert(HeapInsert { tuple_len: 5, ..HeapInsert::default() }),
        RecordBody::Insert(HeapInsert { tuple_len: 65_536, ..HeapInsert::default() }),
        RecordBody::Other { rmid: 11, info: 0 },
    ];
    for body in bad {
        let refused = writer.append(Xid(3), Xid::INVALID, 0, &body).unwrap_err();
        assert!(matches!(refused, WriteError::Encode(_)), "{refused}");
    }
    assert_eq!(writer.append(Xid(3), Xid::INVALID, 0, &message(100)).unwrap().0, at);
}

#[test]
fn older_versions_lack_what_they_lack() {
    let refused = |version, top, body: &RecordBody| {
        let result = Encoder::new(version).encode(Xid(3), top, 0, body, &mut Vec::new());
        matches!(result, Err(EncodeError::NotInVersion { version: v, .. }) if v == version)
    };
    let insert = RecordBody::Insert(HeapInsert { tuple_len: 40, ..HeapInsert::default() });
    assert!(refused(PgVersion::V13, Xid(3), &insert) && !refused(PgVersion::V14, Xid(3), &insert));
    let invalidations = RecordBody::XactInvalidations(Vec::new());
    assert!(refused(PgVersion::V13, Xid::INVALID, &invalidations) && !refused(PgVersion::V14, Xid::INVALID, &invalidations));
    assert!(refused(PgVersion::V16, Xid::INVALID, &RecordBody::CheckpointRedo));
    assert!(!refused(PgVersion::V17, Xid::INVALID, &RecordBody::CheckpointRedo));
}

#[test]
fn a_log_is_opened_at_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let mut starts = Vec::new();
    for round in 0..6 {
        let mut writer = WalWriter::open(dir.path(), config()).unwrap();
        for _ in 0..3 {
            starts.push(writer.append(Xid(3), Xid::INVALID, 0, &message(5000 + round)).unwrap().0);
        }
        match round {
            // A record over three segments: none starts in the last but one.
            2 => starts.push(writer.append(Xid(3), Xid::INVALID, 0, &message(2 * MIB as usize)).unwrap().0),
            3 => starts.push(writer.switch().unwrap().0),
            _ => {}
        }
        writer.finish().unwrap();
    }
    let wal = pg_wal::WalDir::open(dir.path(), None).unwrap();
    let mut reader = pg_wal::WalReader::open(&wal, None).unwrap();
    let mut read = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        read.push(record.lsn);
    }
    assert_eq!(read, starts);
}

#[test]
fn a_flush_is_of_everything_and_counted() {
    for sync in [WalSync::Off, WalSync::Fdatasync, WalSync::Fsync] {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = WalWriter::create(dir.path(), WriterConfig { sync, ..config() }).unwrap();
        let begun = writer.flushed_lsn();
        // Larger than the buffer: parts are in the file before the flush, and do not count as flushed.
        for _ in 0..100 {
            writer.append(Xid(3), Xid::INVALID, 0, &message(8000)).unwrap();
        }
        assert!(writer.counters().bytes > 256 << 10 && writer.flushed_lsn() == begun);
        assert_eq!(writer.flush().unwrap(), writer.end_lsn());
        let first = writer.counters();
        assert_eq!((first.records, first.segments, first.bytes), (100, 1, writer.end_lsn().0 - MIB));
        assert_eq!(first.syncs, u64::from(sync != WalSync::Off), "one for all");
        writer.flush().unwrap();
        assert_eq!(writer.counters(), first, "nothing to flush, nothing done");
        // Over a segment's end: what is behind is on disk before the next begins.
        for _ in 0..100 {
            writer.append(Xid(3), Xid::INVALID, 0, &message(8000)).unwrap();
        }
        writer.flush().unwrap();
        let second = writer.counters();
        assert_eq!((second.segments, second.syncs), (2, 3 * u64::from(sync != WalSync::Off)));
    }
}

#[test]
fn a_file_with_a_segments_name_has_its_length_and_others_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let half_made = dir.path().join("xlogtemp.4711");
    std::fs::write(&half_made, [0; 100]).unwrap();
    let mut writer = WalWriter::create(dir.path(), WriterConfig { sync: WalSync::Fdatasync, ..config() }).unwrap();
    assert!(!half_made.exists());
    writer.append(Xid(3), Xid::INVALID, 0, &message(3 * MIB as usize)).unwrap();
    writer.flush().unwrap();
    let files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap()).collect();
    assert!(files.len() == 4 && files.iter().all(|f| f.metadata().unwrap().len() == MIB), "{files:?}");
    // Every block is there: nothing has to be allocated by a flush.
    use std::os::unix::fs::MetadataExt;
    assert!(files.iter().all(|f| f.metadata().unwrap().blocks() * 512 >= MIB));
}

#[test]
fn where_a_record_lies_follows_from_the_records_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = WalWriter::create(dir.path(), config()).unwrap();
    let at = LogEnd { end: writer.end_lsn(), prev: Lsn::INVALID };
    let mut placer = RecordPlacer::new(PgVersion::V18, MIB as u32, at);
    for len in (60..30_000).step_by(97).chain([2 * MIB as usize]) {
        let body = if len % 5 == 0 { RecordBody::Switch } else { message(len) };
        let next = placer.next_lsn();
        assert_eq!(next, writer.next_lsn());
        let placed = placer.place(Xid(3), Xid::INVALID, 0, &body).map(|p| (p.start, p.end)).unwrap();
        assert_eq!(placed, writer.append(Xid(3), Xid::INVALID, 0, &body).unwrap());
        assert_eq!(placer.end().end, writer.end_lsn());
    }
}
