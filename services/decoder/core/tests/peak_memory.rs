//! The memory that a large transaction takes, counted by the allocator: `work_mem` and a constant, however much it holds.
//!
//! Alone in its program, since it counts what the whole program takes.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use decoder_core::{Decoder, DecoderConfig, NoCatalog, NoOutput, SpillError, SpillFile, SpillStore, WorkMem};
use peak_alloc::PeakAlloc;
use pg_types::record::{CommitRecord, HeapInsert, RunningXactsRecord};
use pg_types::{Lsn, Oid, PgVersion, RecordBody, RelFileLocator, WalRecord, Xid};

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// What a row counts for: struct, tuple header and 1000 bytes.
const ROW: u64 = 80 + 24 + 23 + 1000;
/// What the transaction counts for.
const TRANSACTION: u64 = 256 << 20;
/// What the decoder may take beside the limit.
const CONSTANT: u64 = 2 << 20;

/// The spill files of transactions, in a folder, opened for each use.
#[derive(Debug)]
struct Files(tempfile::TempDir);

impl Files {
    fn open(&self, file: SpillFile) -> File {
        OpenOptions::new().create(true).append(true).read(true).open(self.0.path().join(file.to_string())).unwrap()
    }
}

impl SpillStore for Files {
    fn append(&mut self, file: SpillFile, bytes: &[u8]) -> Result<(), SpillError> {
        self.open(file).write_all(bytes).unwrap();
        Ok(())
    }

    fn read(&mut self, file: SpillFile, offset: u64, into: &mut [u8]) -> Result<usize, SpillError> {
        let file = self.open(file);
        let len = file.metadata().unwrap().len().saturating_sub(offset).min(into.len() as u64) as usize;
        file.read_exact_at(&mut into[..len], offset).unwrap();
        Ok(len)
    }

    fn remove(&mut self, file: SpillFile) -> Result<(), SpillError> {
        std::fs::remove_file(self.0.path().join(file.to_string())).unwrap();
        Ok(())
    }

    fn bytes(&self) -> u64 {
        std::fs::read_dir(self.0.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
    }
}

/// Decodes one transaction of [`TRANSACTION`] bytes in rows that are made one by one; gives the decoder.
fn decode(profile: &str, work_mem: u64, streaming: bool, subs: u32) -> Decoder {
    let config = DecoderConfig {
        work_mem: WorkMem::from_bytes(work_mem),
        streaming,
        ..DecoderConfig::new(PgVersion::V18, profile.parse().unwrap(), Oid(5))
    };
    let mut decoder = Decoder::new(config, Arc::new(NoCatalog)).spill_to(Box::new(Files(tempfile::tempdir().unwrap())));
    let mut lsn = 0x100_0000;
    let mut give = |xid: u32, top: u32, body: RecordBody| {
        let record = WalRecord { lsn: Lsn(lsn), end_lsn: Lsn(lsn + ROW), xid: Xid(xid), top_xid: Xid(top), origin: 0, body };
        lsn += ROW;
        decoder.process(&record, &mut NoOutput).unwrap();
    };
    let running = RunningXactsRecord { next_xid: Xid(1000), oldest_running_xid: Xid(1000), ..RunningXactsRecord::default() };
    give(0, 0, RecordBody::RunningXacts(Box::new(running)));
    for i in 0..TRANSACTION / ROW {
        let target = RelFileLocator { spc: Oid(1663), db: Oid(5), rel: 20_000 };
        let insert = HeapInsert { target, logical: true, tuple_len: 5 + 1000, ..HeapInsert::default() };
        let sub = if subs == 0 { 0 } else { 1 + (i % u64::from(subs)) as u32 };
        give(1000 + sub, if sub == 0 { 0 } else { 1000 }, RecordBody::Insert(insert));
    }
    let subxids = (1..=subs).map(|sub| Xid(1000 + sub)).collect();
    give(1000, 0, RecordBody::Commit(Box::new(CommitRecord { subxids, ..CommitRecord::default() })));
    decoder
}

#[test]
fn a_large_transaction_takes_the_limit_and_a_constant() {
    for (profile, streaming, subs) in [("pg13", false, 0), ("pg18", false, 0), ("pg18", true, 0), ("indexed", false, 50)] {
        let mut peaks = Vec::new();
        for work_mem in [64 << 10, 4 << 20] {
            ALLOCATOR.reset_peak_usage();
            let before = ALLOCATOR.current_usage() as u64;
            let decoder = decode(profile, work_mem, streaming, subs);
            let (peak, sizes) = (ALLOCATOR.peak_usage() as u64 - before, decoder.sizes());
            let what = format!("{profile} streaming {streaming} {subs} subtransactions within {work_mem}");
            assert!(sizes.memory_bytes_peak <= work_mem + CONSTANT, "{what}: {} are counted", sizes.memory_bytes_peak);
            assert!(peak <= work_mem + CONSTANT, "{what}: {peak} bytes at most");
            assert_eq!((sizes.memory_bytes, sizes.spill_file_bytes), (0, 0), "{what}: nothing is left");
            let work = decoder.work();
            assert!(work.spill_bytes.max(work.stream_bytes) > TRANSACTION - (8 << 20), "{what}: it went through");
            peaks.push(peak);
        }
        println!("{profile} streaming {streaming} {subs}: {peaks:?} bytes within 64 kB and 4 MB");
    }
}
