//! One flipped bit anywhere: found, with position, file and reason, or in bytes that nothing covers.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::support::fixtures;
use crate::support::raw_log::RawLog;
use pg_types::{Lsn, PgVersion};
use pg_wal::text::Text;
use pg_wal::{WalDir, WalEnd, WalReader, describe};
use rand::{RngExt, SeedableRng};

/// What reading a directory gave: each record's position and checksum, and the end. Nothing if it could not be opened.
type Reading = Option<(Vec<(Lsn, u32)>, WalEnd)>;

/// Reads, decodes and describes everything.
fn read(dir: &Path) -> Reading {
    let dir = WalDir::open(dir, None).ok()?;
    let mut reader = WalReader::open(&dir, None).unwrap();
    let mut records = Vec::new();
    let mut text = Text::new();
    while let Some(record) = reader.next().unwrap() {
        record.decode(dir.profile()).unwrap();
        text.clear();
        describe::line(&record, dir.profile(), &mut text).unwrap();
        records.push((record.lsn, record.header.crc));
    }
    Some((records, reader.end().unwrap().clone()))
}

/// The segment files of a directory.
fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

/// Flips a bit, reads, flips it back, and compares.
fn check(dir: &Path, good: &Reading, path: &Path, bit: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, bit / 8).unwrap();
    file.write_all_at(&[byte[0] ^ (1 << (bit % 8))], bit / 8).unwrap();
    let bad = read(dir);
    file.write_all_at(&byte, bit / 8).unwrap();
    let (Some((good_records, _)), Some((records, end))) = (good, bad) else { return };
    let same = records == *good_records;
    assert!(same || !end.is_complete(), "bit {} of byte {:#x} in {}: {end}", bit % 8, bit / 8, path.display());
    assert!(records.len() <= good_records.len(), "no record appears");
}

#[test]
fn random_flips_in_a_real_log() {
    let folder = fixtures::unpack(PgVersion::V18);
    let good = read(folder.path());
    assert!(good.as_ref().unwrap().1.is_complete());
    let files = segments(folder.path());
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(18);
    for _ in 0..200 {
        let path = &files[rng.random_range(0..files.len())];
        // Half of them in page headers, which no checksum covers.
        let in_page = if rng.random_bool(0.5) { rng.random_range(0..40 * 8) } else { rng.random_range(0..8192 * 8) };
        check(folder.path(), &good, path, rng.random_range(0..128u64) * 8192 * 8 + in_page);
    }
}

#[test]
fn every_flip_in_headers_of_a_small_log() {
    let mut log = RawLog::new();
    log.message(9_000);
    log.message(100);
    log.switch();
    log.message(8_100);
    log.message(40_000);
    let dir = tempfile::tempdir().unwrap();
    log.write(dir.path());
    let good = read(dir.path());
    assert!(good.as_ref().unwrap().1.is_complete());
    for path in segments(dir.path()) {
        // The first pages' headers and what begins on them.
        for page in [0, 1, 2] {
            for bit in 0..96 * 8 {
                check(dir.path(), &good, &path, page * 8192 * 8 + bit);
            }
        }
    }
}
