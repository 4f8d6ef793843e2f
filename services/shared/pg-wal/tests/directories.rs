//! Directories that change, and files that are none.

use pg_types::record::LogicalMessageRecord;
use pg_types::{Lsn, RecordBody, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use pg_wal::{WalDir, WalError, WalReader};

const MIB: u64 = 1 << 20;

/// Writes a record and ends the segment.
fn fill_segment(writer: &mut WalWriter) -> Lsn {
    let body =
        RecordBody::LogicalMessage(Box::new(LogicalMessageRecord { message: vec![1; 100], ..LogicalMessageRecord::default() }));
    writer.append(Xid(3), Xid::INVALID, 0, &body).unwrap();
    writer.switch().unwrap();
    writer.flush().unwrap()
}

#[test]
fn a_reader_starts_where_the_wal_will_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = WalWriter::create(folder.path(), WriterConfig::new(1).with_segment_size(MIB as u32)).unwrap();
    fill_segment(&mut writer);
    let dir = WalDir::open(folder.path(), None).unwrap();
    let end = (0..3).map(|_| fill_segment(&mut writer)).last().unwrap();
    assert!(end > dir.end(), "the listing is older than the log");

    let mut reader = WalReader::open(&dir, Some(end)).unwrap();
    reader.set_limit(end);
    assert!(reader.next().unwrap().is_none());
    assert_eq!(reader.end().map(|e| e.lsn), Some(end));
    let next = fill_segment(&mut writer);
    reader.set_limit(next);
    assert!(reader.next().unwrap().is_some(), "the reader goes on there");

    let beyond = WalReader::open(&dir, Some(Lsn(next.0 + MIB)));
    assert!(matches!(beyond, Err(WalError::StartOutside { .. })), "a segment further is outside");
}

#[cfg(target_os = "linux")]
#[test]
fn what_is_no_regular_file_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let segment = folder.path().join("000000010000000000000001");
    std::os::unix::fs::symlink("/dev/zero", &segment).unwrap();
    for path in [folder.path(), &segment] {
        let error = WalDir::open(path, None).unwrap_err().to_string();
        assert!(error.contains("no regular file") && error.contains("000000010000000000000001"), "{error}");
    }
}
