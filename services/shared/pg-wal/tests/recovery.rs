//! What a crash leaves at the end of a log: wherever it is cut, zeroed or overwritten with something else, exactly the records
//! before the damage are found again, and the log goes on behind them as PostgreSQL's would.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use pg_types::record::LogicalMessageRecord;
use pg_types::{Lsn, RecordBody, Xid};
use pg_wal::writer::{LogTail, WalWriter, WriterConfig};
use pg_wal::{WalDir, WalReader};

use crate::support::{pg_waldump, pg18_bin};

/// Bytes of a segment.
const SEGMENT: u64 = 1 << 20;

fn config() -> WriterConfig {
    WriterConfig::new(77).with_segment_size(SEGMENT as u32)
}

/// A message of `len` bytes in all, none of them zero.
fn message(len: usize) -> RecordBody {
    RecordBody::LogicalMessage(Box::new(LogicalMessageRecord {
        message: vec![0xA5; len - 54],
        ..LogicalMessageRecord::default()
    }))
}

/// First and last byte of each record.
fn records(dir: &Path) -> Vec<(Lsn, Lsn)> {
    let mut reader = WalReader::open(&WalDir::open(dir, None).unwrap(), None).unwrap();
    let mut found = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        found.push((record.lsn, record.end_lsn));
    }
    assert!(reader.end().unwrap().is_complete(), "{}", reader.end().unwrap());
    found
}

/// Damage from an offset of the log on.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// The file ends there, and later ones are gone.
    Cut,
    /// Zeroes follow.
    Zero,
    /// Something else follows, up to the end of its page.
    Garbage,
    /// One byte is another.
    Flip,
}

/// A log and its files' bytes, to be damaged again and again.
struct Log {
    /// Where it is.
    dir: tempfile::TempDir,
    /// The segments' bytes, up to `end`.
    bytes: Vec<u8>,
    /// Its records.
    records: Vec<(Lsn, Lsn)>,
    /// The first segment's start.
    start: u64,
}

impl Log {
    /// A log with records of these lengths.
    fn new(lengths: &[usize]) -> Log {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = WalWriter::create(dir.path(), config()).unwrap();
        let start = writer.config().start.0;
        for len in lengths {
            writer.append(Xid(3), Xid::INVALID, 0, &message(*len)).unwrap();
        }
        let end = writer.finish().unwrap();
        let mut bytes = Vec::new();
        for segment in start / SEGMENT..=end.0 / SEGMENT {
            bytes.extend(std::fs::read(Self::path(dir.path(), segment * SEGMENT)).unwrap_or_default());
        }
        bytes.truncate((end.0 - start) as usize);
        let records = records(dir.path());
        assert_eq!(records.len(), lengths.len());
        Log { dir, bytes, records, start }
    }

    /// The file that holds a position.
    fn path(dir: &Path, at: u64) -> std::path::PathBuf {
        dir.join(format!("{:08X}{:08X}{:08X}", 1, 0, at / SEGMENT))
    }

    /// Restores the files and damages them from `offset` on.
    fn damage(&self, offset: usize, damage: Damage) {
        let mut bytes = self.bytes.clone();
        let page_end = (offset / 8192 * 8192 + 8192).min(bytes.len());
        match damage {
            Damage::Cut => bytes.truncate(offset),
            Damage::Zero => bytes[offset..].fill(0),
            Damage::Garbage => bytes[offset..page_end].iter_mut().for_each(|b| *b ^= 0x3C),
            Damage::Flip => bytes[offset] ^= 0x10,
        }
        for entry in std::fs::read_dir(self.dir.path()).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        for (i, part) in bytes.chunks(SEGMENT as usize).enumerate() {
            let path = Self::path(self.dir.path(), self.start + i as u64 * SEGMENT);
            let file = OpenOptions::new().write(true).create_new(true).open(path).unwrap();
            if !matches!(damage, Damage::Cut) {
                file.set_len(SEGMENT).unwrap();
            }
            file.write_all_at(part, 0).unwrap();
        }
    }

    /// Whether a byte belongs to a record or a page header; else it is padding, which nobody looks at.
    fn matters(&self, offset: usize) -> bool {
        self.bytes[offset] != 0
    }

    /// Recovers, appends, reads; `offset` is where the damage begins.
    fn check(&self, offset: usize, damage: Damage) {
        self.damage(offset, damage);
        let at = Lsn(self.start + offset as u64);
        let tail = LogTail::find(self.dir.path());
        // Without a whole page there is nothing that says whose log it is.
        let Ok(Some(tail)) = tail else {
            assert!(offset < 40, "{offset} {damage:?}");
            return;
        };
        let mut writer = WalWriter::open(self.dir.path(), config()).unwrap();
        let (start, end) = writer.append(Xid(3), Xid::INVALID, 0, &message(300)).unwrap();
        writer.finish().unwrap();
        let found = records(self.dir.path());
        let kept: Vec<_> = found.iter().copied().filter(|(lsn, _)| *lsn < tail.end).collect();
        assert_eq!(kept, self.records[..kept.len()], "{offset} {damage:?}: old records, in order");
        // A page that is not whole is not read.
        let at = if matches!(damage, Damage::Cut) { Lsn(at.0 / 8192 * 8192) } else { at };
        let before = self.records.iter().filter(|(_, end)| *end <= at).count();
        assert!(kept.len() >= before, "{offset} {damage:?}: {} of {before} records before the damage", kept.len());
        if self.matters(offset) {
            // The record that the byte belongs to is not among them; a page header's is the one that goes on there, or the next.
            let hit = self.records.iter().filter(|(_, end)| *end < at).count() + 1;
            assert!(kept.len() <= hit, "{offset} {damage:?}: {} records, damaged is {hit}", kept.len());
        }
        let new: Vec<_> = found[kept.len()..].to_vec();
        let overwritten = usize::from(tail.lost_page.is_some());
        assert_eq!((new.len(), new.last()), (1 + overwritten, Some(&(start, end))), "{offset} {damage:?}");
        if let Some(page) = tail.lost_page {
            assert_eq!(new[0].0.0 / 8192 * 8192, page.0, "{offset} {damage:?}: the page says so first");
        }
    }
}

/// Damages a log of a few pages: at every byte near borders of pages and records, and at others here and there.
fn damage_anywhere(damage: Damage) {
    // Records inside a page, over one border and over two.
    let log = Log::new(&[100, 3000, 200, 4700, 512, 9000, 60, 17_000, 333, 800]);
    let len = log.bytes.len();
    assert!(len > 4 * 8192);
    let pages = (0..=len).step_by(8192).flat_map(|page| [page, page + 24]);
    let borders: Vec<usize> = pages.chain(log.records.iter().map(|(start, _)| (start.0 - log.start) as usize)).collect();
    // What is said of the cluster on the first page has no checksum, so it is not damaged here.
    for offset in 40..len {
        if offset % 211 == 0 || borders.iter().any(|border| offset.abs_diff(*border) < 10) {
            log.check(offset, damage);
        }
    }
}

#[test]
fn a_log_that_is_cut_off_anywhere_goes_on_behind_its_last_good_record() {
    damage_anywhere(Damage::Cut);
}

#[test]
fn a_log_that_is_zero_from_anywhere_on_goes_on_behind_its_last_good_record() {
    damage_anywhere(Damage::Zero);
}

#[test]
fn a_log_with_something_else_in_a_page_goes_on_behind_its_last_good_record() {
    damage_anywhere(Damage::Garbage);
}

#[test]
fn a_log_with_another_byte_goes_on_behind_its_last_good_record() {
    damage_anywhere(Damage::Flip);
}

#[test]
fn a_segment_that_was_begun_and_never_written_is_no_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = Log::path(dir.path(), SEGMENT);
    std::fs::write(&path, vec![0; SEGMENT as usize]).unwrap();
    let mut writer = WalWriter::open(dir.path(), config()).unwrap();
    writer.append(Xid(3), Xid::INVALID, 0, &message(300)).unwrap();
    writer.finish().unwrap();
    assert_eq!(records(dir.path()).len(), 1);
}

#[test]
fn a_log_that_is_damaged_around_a_segments_border_goes_on() {
    // The last but one record goes over the border, and ends 1 kB behind it.
    let filler = 8100;
    let mut lengths = vec![filler; 128];
    lengths.extend([4000, 5200, 100]);
    let log = Log::new(&lengths);
    let border = SEGMENT as usize;
    let (first, last) = log.records[lengths.len() - 2];
    assert!(first.0 < log.start + SEGMENT && last.0 > log.start + SEGMENT, "{first} {last}");
    for damage in [Damage::Cut, Damage::Zero] {
        for offset in (border - 8230..log.bytes.len()).step_by(397).chain(border - 12..border + 60) {
            log.check(offset, damage);
        }
    }
    for damage in [Damage::Garbage, Damage::Flip] {
        for offset in (border + 40..log.bytes.len()).step_by(97) {
            log.check(offset, damage);
        }
    }
}

#[test]
fn the_real_pg_waldump_reads_over_an_overwritten_record() {
    let Some(bin) = pg18_bin() else { return };
    let log = Log::new(&[100, 3000, 20_000, 60]);
    let torn = log.records[2].0;
    // The record's third page is missing.
    log.damage(2 * 8192 + 5, Damage::Zero);
    let mut writer = WalWriter::open(log.dir.path(), config()).unwrap();
    writer.append(Xid(3), Xid::INVALID, 0, &message(300)).unwrap();
    let end = writer.finish().unwrap();
    let text = pg_waldump(&bin, log.dir.path(), log.records[0].0, end, &[]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[2].contains("OVERWRITE_CONTRECORD") && lines[2].contains(&format!("lsn {torn}")), "{text}");
    assert!(lines[3].contains(&format!("prev {}", "0/00104018")), "{text}");
}
