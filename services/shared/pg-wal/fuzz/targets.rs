//! What is fuzzed: functions from any bytes, that must not panic and whose results must be consistent.
//!
//! The fuzz targets and the smoke test on the stable toolchain (`tests/fuzz_smoke.rs`) run the same functions.

#![allow(dead_code, reason = "each fuzz target runs one of them")]

use std::fs::File;
use std::io::Write;

use pg_types::{Lsn, PgVersion};
use pg_wal::page::PageHeader;
use pg_wal::stats::WalStats;
use pg_wal::text::Text;
use pg_wal::{RawRecord, WalDir, WalProfile, WalReader, describe, message};

/// Invalidation messages: what is read is written and read again.
pub(crate) fn message(data: &[u8]) {
    for bytes in data.as_chunks::<{ message::MESSAGE_LEN }>().0 {
        if let Ok(first) = message::read_message(bytes) {
            assert_eq!(message::read_message(&message::write_message(&first)), Ok(first));
        }
    }
}

/// A page header, and a record's parts, contents and description: the first byte chooses the version, the rest is the record.
/// Its length field is set right, so that the fuzzer need not guess it.
pub(crate) fn record(data: &[u8]) {
    let _ = PageHeader::read(data);
    let Some((choice, bytes)) = data.split_first() else { return };
    let profile = WalProfile::of(PgVersion::ALL[usize::from(*choice) % PgVersion::ALL.len()]);
    let mut bytes = bytes.to_vec();
    let len = bytes.len() as u32;
    let Some(field) = bytes.first_chunk_mut::<4>() else { return };
    *field = len.to_le_bytes();
    let lsn = Lsn(0x10_0028);
    let Ok(record) = RawRecord::new(lsn, Lsn(lsn.0 + u64::from(len)).align(), &bytes) else { return };
    let mut text = Text::new();
    let described = describe::line(&record, profile, &mut text);
    assert_eq!(described.is_ok(), !text.is_empty(), "a line that failed is taken back");
    assert!(!text.as_bytes().iter().any(|b| *b < b' ' && *b != b'\n'), "a control character in {:?}", text.since(0));
    assert!(text.as_bytes().iter().filter(|b| **b == b'\n').count() <= 1);
    assert!(described.is_err() || std::str::from_utf8(text.as_bytes()).is_ok());
    let decoded = record.decode(profile);
    let Ok(parts) = record.parts(profile) else {
        assert!(decoded.is_err() && described.is_err());
        return;
    };
    let blocks: usize = parts.blocks().map(|b| b.data.len() + b.image.map_or(0, |i| i.bytes.len())).sum();
    assert!(blocks + parts.main.len() <= bytes.len());
    let mut stats = WalStats::new(profile);
    assert_eq!(stats.add(&record), Ok(()));
    assert_eq!(stats.total().total_len(), u64::from(len));
}

/// Bytes of a segment in [`log`].
const SEGMENT: usize = 1 << 20;

/// A whole log: the bytes are the start of a segment, zeroes follow. Every record that is given is a right one, they follow one
/// another, and there is an end with a reason.
pub(crate) fn log(data: &[u8]) {
    let data = data.get(..SEGMENT).unwrap_or(data);
    let folder = tempfile::tempdir().expect("make a folder");
    let path = folder.path().join("000000010000000000000001");
    let mut file = File::create(path).expect("make a segment");
    file.write_all(data).and_then(|()| file.set_len(SEGMENT as u64)).expect("write a segment");
    let Ok(dir) = WalDir::open(folder.path(), None) else { return };
    let mut reader = WalReader::open(&dir, None).expect("the first segment is there");
    let mut before: Option<(Lsn, Lsn)> = None;
    while let Some(record) = reader.next().expect("files can be read") {
        assert_eq!(record.check_crc(), Ok(()));
        assert_eq!(record.bytes.len(), record.header.total_len as usize);
        assert!(before.is_none_or(|(lsn, end)| record.header.prev == lsn && record.lsn >= end));
        before = Some((record.lsn, record.end_lsn));
        let _ = record.decode(dir.profile());
    }
    assert!(reader.end().is_some());
}
