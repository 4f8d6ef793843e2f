//! How fast records are read, counted, decoded and described.
//!
//! Reads the log in `WALSTORM_BENCH_WAL` (a directory), or a recorded one of PostgreSQL 18. Put `pg_waldump --stats=record` and
//! `pg_waldump` beside it on the same directory to compare.

#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark's panic is its report")]

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/support/fixtures.rs"]
mod fixtures;

use std::path::PathBuf;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use pg_types::PgVersion;
use pg_wal::stats::WalStats;
use pg_wal::text::Text;
use pg_wal::{RawRecord, WalDir, WalProfile, WalReader, describe};

fn main() {
    divan::main();
}

/// The log to read, and what keeps it.
fn log() -> (WalDir, Option<tempfile::TempDir>) {
    match std::env::var_os("WALSTORM_BENCH_WAL") {
        Some(path) => (WalDir::open(PathBuf::from(path), None).unwrap(), None),
        None => {
            let folder = fixtures::unpack(PgVersion::V18);
            (WalDir::open(folder.path(), None).unwrap(), Some(folder))
        }
    }
}

/// Reads the whole log and does something with each record; counts records and bytes.
fn bench(bencher: Bencher<'_, '_>, mut work: impl FnMut(&RawRecord<'_>, &'static WalProfile)) {
    let (dir, _folder) = log();
    let (mut records, mut bytes) = (0u64, 0u64);
    let mut reader = WalReader::open(&dir, None).unwrap();
    while let Some(record) = reader.next().unwrap() {
        records += 1;
        bytes += u64::from(record.header.total_len);
    }
    let bencher = bencher.counter(ItemsCount::new(records)).counter(BytesCount::new(bytes));
    bencher.bench_local(|| {
        let mut reader = WalReader::open(&dir, None).unwrap();
        while let Some(record) = reader.next().unwrap() {
            work(&record, dir.profile());
        }
    });
}

#[divan::bench]
fn read(bencher: Bencher<'_, '_>) {
    bench(bencher, |record, _| _ = divan::black_box(record.lsn));
}

#[divan::bench]
fn stats(bencher: Bencher<'_, '_>) {
    let mut stats = WalStats::new(WalProfile::of(PgVersion::V18));
    bench(bencher, |record, _| stats.add(record).unwrap());
}

#[divan::bench]
fn decode(bencher: Bencher<'_, '_>) {
    bench(bencher, |record, profile| _ = divan::black_box(record.decode(profile).unwrap()));
}

#[divan::bench]
fn dump(bencher: Bencher<'_, '_>) {
    let mut text = Text::new();
    bench(bencher, |record, profile| {
        describe::line(record, profile, &mut text).unwrap();
        if text.len() > 1 << 16 {
            text.clear();
        }
    });
}
