//! Segments that go while a log is compared.

use pg_types::record::LogicalMessageRecord;
use tempfile::TempDir;

use super::*;

/// Bytes of a segment.
const SEGMENT: u32 = 1 << 20;

/// A sink on the log in the data directory `dir`.
fn open(dir: &TempDir) -> LogSink {
    LogSink::open(dir.path().join("wal"), WriterConfig::new(7).with_segment_size(SEGMENT)).unwrap()
}

/// Appends the same record as every time.
fn append(sink: &mut LogSink) -> Result<Placed, SinkError> {
    let message = LogicalMessageRecord { prefix: b"p".to_vec(), message: vec![7; 40_000], ..Default::default() };
    sink.append(Xid(0), Xid(0), 0, &RecordBody::LogicalMessage(Box::new(message)))
}

/// The segments in the data directory `dir`, oldest first.
fn segments(dir: &TempDir) -> Vec<PathBuf> {
    WalDir::open(dir.path().join("wal"), None).unwrap().segments().map(|(_, segment)| segment.path.clone()).collect()
}

/// A log whose last segment has the end of a long record and nothing else, and how many records there are.
fn log_with_a_tail(segment_count: usize) -> (TempDir, Vec<Placed>) {
    let dir = TempDir::new().unwrap();
    std::fs::create_dir(dir.path().join("wal")).unwrap();
    let mut sink = open(&dir);
    let mut placed = Vec::new();
    while placed.last().is_none_or(|last: &Placed| last.end.0 <= u64::from(SEGMENT) * segment_count as u64) {
        placed.push(append(&mut sink).unwrap());
    }
    sink.flush().unwrap();
    assert_eq!(segments(&dir).len(), segment_count);
    (dir, placed)
}

/// Whoever has acknowledged all of it lets everything be removed but the segment in which the log ends.
#[test]
fn a_log_of_which_only_the_end_of_a_record_is_left_is_gone_on_with() {
    let (dir, placed) = log_with_a_tail(4);
    let mut sink = open(&dir);
    assert!(sink.is_replaying());
    let segments = segments(&dir);
    for segment in &segments[..3] {
        std::fs::remove_file(segment).unwrap();
    }
    let again: Vec<Placed> = placed.iter().map(|_| append(&mut sink).unwrap()).collect();
    assert_eq!(again, placed);
    assert!(!sink.is_replaying(), "everything that was there was compared");
    assert_eq!(append(&mut sink).unwrap().start, placed.last().unwrap().end);
}

#[test]
fn a_segment_that_is_missing_behind_older_ones_is_an_error_that_names_it() {
    let (dir, placed) = log_with_a_tail(4);
    let mut sink = open(&dir);
    let missing = &segments(&dir)[2];
    std::fs::remove_file(missing).unwrap();
    let error = placed.iter().find_map(|_| append(&mut sink).err()).expect("it is missed").to_string();
    let name = missing.file_name().unwrap().to_str().unwrap();
    assert!(error.contains(name) && error.contains("Restore that file"), "{error}");
}
