//! Large transactions: what spilling, reading back and giving out in blocks cost, how victims are found, and that memory stays
//! bounded however much a transaction holds.
//!
//! `cargo bench -p decoder-core --bench large_transaction [PART…]`, parts: `memory`, `rolled_back`, `spill`, `victims`, `streaming`. Records are made one by
//! one, so that none of a transaction's WAL is kept anywhere. A program and not a harness's functions: what is measured are the process's
//! memory and bytes a second of one long run, and 10 GB are decoded once.

#![allow(clippy::unwrap_used, reason = "a benchmark may stop at a defect")]

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use decoder_core::{
    Decoder, DecoderConfig, NoCatalog, NoOutput, SpillError, SpillFailure, SpillFile, SpillStore, TransactionStatus, WorkMem,
};
use pg_types::record::{CommitRecord, HeapInsert, RunningXactsRecord};
use pg_types::{Lsn, Oid, PgVersion, RecordBody, RelFileLocator, WalRecord, Xid};

/// Bytes of a row's data.
const ROW_DATA: u32 = 1000;

/// What such a row counts for.
const ROW: u64 = 80 + 24 + 23 + ROW_DATA as u64;

/// The top-level transaction.
const TOP: u32 = 1000;

/// Spill files of one transaction after another, in a folder.
#[derive(Debug)]
struct Files {
    dir: tempfile::TempDir,
    open: Option<(SpillFile, File)>,
    bytes: u64,
    written: Arc<AtomicU64>,
}

impl Files {
    fn path(&self, file: SpillFile) -> PathBuf {
        self.dir.path().join(file.to_string())
    }

    fn open(&mut self, file: SpillFile) -> Result<&mut File, SpillError> {
        if self.open.as_ref().is_none_or(|open| open.0 != file) {
            let path = self.path(file);
            let opened = OpenOptions::new().create(true).append(true).read(true).open(&path);
            let failed = |e: std::io::Error| SpillError {
                action: "open",
                file: path.display().to_string(),
                reason: e.to_string(),
                failure: SpillFailure::Io,
            };
            self.open = Some((file, opened.map_err(failed)?));
        }
        Ok(&mut self.open.as_mut().unwrap().1)
    }
}

impl SpillStore for Files {
    fn append(&mut self, file: SpillFile, bytes: &[u8]) -> Result<(), SpillError> {
        self.bytes += bytes.len() as u64;
        self.written.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.open(file)?.write_all(bytes).unwrap();
        Ok(())
    }

    fn read(&mut self, file: SpillFile, offset: u64, into: &mut [u8]) -> Result<usize, SpillError> {
        let file = self.open(file)?;
        let len = file.metadata().unwrap().len().saturating_sub(offset).min(into.len() as u64) as usize;
        file.read_exact_at(&mut into[..len], offset).unwrap();
        Ok(len)
    }

    fn remove(&mut self, file: SpillFile) -> Result<(), SpillError> {
        self.open.take_if(|open| open.0 == file);
        let path = self.path(file);
        self.bytes -= std::fs::metadata(&path).map_or(0, |m| m.len());
        let _ = std::fs::remove_file(path);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Settings.
fn config(profile: &str, work_mem: &str, streaming: bool) -> DecoderConfig {
    DecoderConfig {
        work_mem: work_mem.parse::<WorkMem>().unwrap(),
        streaming,
        ..DecoderConfig::new(PgVersion::V18, profile.parse().unwrap(), Oid(5))
    }
}

/// A decoder that spills to files, and how many bytes went there.
fn decoder(profile: &str, work_mem: &str, streaming: bool) -> (Decoder, Arc<AtomicU64>) {
    let written = Arc::<AtomicU64>::default();
    let store = Files { dir: tempfile::tempdir().unwrap(), open: None, bytes: 0, written: Arc::clone(&written) };
    let decoder = Decoder::new(config(profile, work_mem, streaming), Arc::new(NoCatalog));
    (decoder.spill_to(Box::new(store)), written)
}

/// A row.
fn row() -> RecordBody {
    let target = RelFileLocator { spc: Oid(1663), db: Oid(5), rel: 20_000 };
    RecordBody::Insert(HeapInsert { target, logical: true, tuple_len: 5 + ROW_DATA, ..HeapInsert::default() })
}

/// Gives records of (xid, top-level xid, body) one after another to a decoder, after a first that makes it consistent.
fn give_to(decoder: &mut Decoder) -> impl FnMut(u32, u32, RecordBody) {
    let mut lsn = 0x100_0000;
    let mut give = move |xid: u32, top: u32, body: RecordBody| {
        let record = WalRecord { lsn: Lsn(lsn), end_lsn: Lsn(lsn + ROW), xid: Xid(xid), top_xid: Xid(top), origin: 0, body };
        lsn += ROW;
        decoder.process(&record, &mut NoOutput).unwrap();
    };
    let running = RunningXactsRecord { next_xid: Xid(TOP), oldest_running_xid: Xid(TOP), ..RunningXactsRecord::default() };
    give(0, 0, RecordBody::RunningXacts(Box::new(running)));
    give
}

/// Decodes a transaction of `rows` rows, spread over `subs` subtransactions, up to its commit and then the rest; gives both times.
fn play(decoder: &mut Decoder, rows: u64, subs: u32) -> (Duration, Duration) {
    let mut give = give_to(decoder);
    let begun = Instant::now();
    for i in 0..rows {
        let sub = if subs == 0 { 0 } else { 1 + (i % u64::from(subs)) as u32 };
        give(TOP + sub, if sub == 0 { 0 } else { TOP }, row());
    }
    let collected = begun.elapsed();
    let subxids = (1..=subs).map(|sub| Xid(TOP + sub)).collect();
    give(TOP, 0, RecordBody::Commit(Box::new(CommitRecord { subxids, ..CommitRecord::default() })));
    (collected, begun.elapsed() - collected)
}

/// Counted megabytes a second.
fn rate(bytes: u64, time: Duration) -> f64 {
    bytes as f64 / 1e6 / time.as_secs_f64()
}

/// Spilling and reading back.
fn spill() {
    println!("spill: 2 GB of rows of {ROW_DATA} bytes, work_mem 64MB");
    for (profile, work_mem) in [("pg18", "4GB"), ("pg18", "64MB"), ("indexed", "64MB"), ("indexed", "64kB")] {
        let (mut decoder, written) = decoder(profile, work_mem, false);
        let (collect, replay) = play(&mut decoder, 2_000_000_000 / ROW, 0);
        let file = written.load(Ordering::Relaxed);
        let spilled = decoder.work().spill_bytes;
        println!(
            "  {profile:8} {work_mem:>5}  collect {:6.0} MB/s  replay {:6.0} MB/s  spilled {:4.0} MB as {:4.1} MB of files",
            rate(2_000_000_000, collect),
            rate(2_000_000_000, replay),
            spilled as f64 / 1e6,
            file as f64 / 1e6
        );
    }
}

/// Victims by scan and by heap.
fn victims() {
    println!("victims: savepoints of one row each, work_mem 64kB");
    for subs in [1_000u32, 4_000, 16_000] {
        for profile in ["pg16", "pg17"] {
            // Spilled to memory: making a file for each victim would hide how it is found.
            let mut decoder = Decoder::new(config(profile, "64kB", false), Arc::new(NoCatalog));
            let (collect, _) = play(&mut decoder, u64::from(subs), subs);
            let work = decoder.work();
            println!(
                "  {subs:6} subtransactions  {profile}: {:9.2} ms, {:6} victims, {:11} transactions looked at",
                collect.as_secs_f64() * 1e3,
                work.evictions,
                work.transactions_visited
            );
        }
    }
}

/// Blocks against spilling.
fn streaming() {
    println!("streaming: 2 GB of rows, work_mem 64MB and 64kB");
    for work_mem in ["64MB", "64kB"] {
        for streaming in [false, true] {
            let (mut decoder, _) = decoder("pg18", work_mem, streaming);
            let (collect, replay) = play(&mut decoder, 2_000_000_000 / ROW, 0);
            let work = decoder.work();
            println!(
                "  {work_mem:>5} streaming {:3}  {:6.0} MB/s, at the commit {:8.2} ms, {} blocks, {} MB spilled",
                if streaming { "on" } else { "off" },
                rate(2_000_000_000, collect + replay),
                replay.as_secs_f64() * 1e3,
                work.stream_count,
                work.spill_bytes / 1_000_000
            );
        }
    }
}

/// The most memory that this process had, in bytes.
fn peak_resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap_or(0) << 10
}

/// A transaction of 10 GB: peaks of what is counted and of the process.
fn memory() {
    println!("memory: one transaction of 10 GB, work_mem 64MB");
    let before = peak_resident();
    for (profile, streaming, subs) in [("indexed", true, 0), ("indexed", false, 0), ("indexed", false, 100)] {
        let (mut decoder, written) = decoder(profile, "64MB", streaming);
        let (collect, replay) = play(&mut decoder, 10_000_000_000 / ROW, subs);
        let peak = peak_resident();
        println!(
            "  {profile} streaming {streaming:5} {subs:3} subtransactions  {:5.1} s, counted at most {:3} MiB, process {:3} MiB (before {}), {:4} MB of files",
            (collect + replay).as_secs_f64(),
            decoder.sizes().memory_bytes_peak >> 20,
            peak >> 20,
            before >> 20,
            written.load(Ordering::Relaxed) / 1_000_000
        );
        assert!(peak - before <= (64 << 20) + (64 << 20), "more than work_mem and 64 MiB: {peak}");
    }
}

/// Says that the transaction is rolled back already.
#[derive(Debug)]
struct RolledBack;

impl TransactionStatus for RolledBack {
    fn is_aborted(&mut self, xid: Xid, _: Lsn) -> bool {
        xid == Xid(TOP)
    }
}

/// `rolled-back-bulk`: 10 GB that are rolled back, in front of ten small commits; the rollback is known at eviction, as to a walsender that is
/// behind, or not, as to one that keeps up.
fn rolled_back() {
    println!("rolled back: 10 GB and ten small commits, work_mem 64MB");
    for profile in ["pg17", "pg18", "indexed"] {
        for known in [true, false] {
            let (mut decoder, written) = decoder(profile, "64MB", false);
            if known {
                decoder = decoder.know_status(Box::new(RolledBack));
            }
            let begun = Instant::now();
            let mut give = give_to(&mut decoder);
            let rows = 10_000_000_000 / ROW;
            (0..rows).for_each(|_| give(TOP, 0, row()));
            give(TOP, 0, RecordBody::Abort(Box::default()));
            for xid in TOP + 1..=TOP + 10 {
                give(xid, 0, row());
                give(xid, 0, RecordBody::Commit(Box::default()));
            }
            drop(give);
            let (work, seconds) = (decoder.work(), begun.elapsed().as_secs_f64());
            println!(
                "  {profile:8} rollback {:7}  {seconds:5.1} s, {:3} victims, {:5} MB spilled, {:5} MB dropped early, {:4} MB of files",
                if known { "known" } else { "unknown" },
                work.evictions,
                work.spill_bytes / 1_000_000,
                (rows * ROW).saturating_sub(work.spill_bytes) / 1_000_000,
                written.load(Ordering::Relaxed) / 1_000_000
            );
            assert_eq!(work.spill_bytes == 0, known && profile != "pg17", "{profile}");
        }
    }
}

fn main() {
    let asked: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let parts: [(&str, fn()); 5] =
        [("memory", memory), ("rolled_back", rolled_back), ("spill", spill), ("victims", victims), ("streaming", streaming)];
    for (name, part) in parts {
        if asked.is_empty() || asked.iter().any(|part| part == name) {
            part();
        }
    }
}
