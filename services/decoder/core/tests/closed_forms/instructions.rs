//! Instructions that hot paths take, counted by callgrind: what CI gates on beside the counters of work, since a step that became
//! slower leaves those as they were.
//!
//! Each workload runs once under `valgrind --tool=callgrind`, which collects inside of [`measured`] only. Of what it says we count
//! the instructions of this program's own code and leave out those of libc, so that machines agree: a toolchain is pinned, a libc
//! is not. The counts of x86-64 are in `instructions.txt`; other machines compare the ratios alone. To renew them after a change
//! that was meant to cost or save something:
//!
//!     CARGO_INCREMENTAL=0 WALSTORM_RENEW_INSTRUCTIONS=1 cargo nextest run -p decoder-core --test closed_forms instructions

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use decoder_core::{Decoder, NoOutput, WorkMem};
use pg_types::{PgVersion, RecordBody, WalRecord, Work};

use crate::support::{Log, catcache, decoder, decoder_within, relcache};
use crate::{FIRST, truncate_partitions};

/// Names the workload that a program under callgrind runs.
const WORKLOAD: &str = "WALSTORM_WORKLOAD";
/// Set to have `instructions.txt` written.
const RENEW: &str = "WALSTORM_RENEW_INSTRUCTIONS";
/// How far a count may be from the committed one, in per cent. The tests are built with little optimisation, where the split of a
/// crate into units of code decides what is inlined, so that a new function elsewhere may move a count by some per cent. An
/// incremental build splits otherwise than CI's, which the counts are of.
const TOLERANCE: f64 = if is_incremental() { 40.0 } else { 15.0 };
/// Relations in a full map.
const RELATIONS: u32 = 1000;
/// Messages that are executed.
const MESSAGES: u32 = 1000;
/// Its name, how it runs, and one counter of its work with the value that must come out, so that nobody measures something else.
type Workload = (&'static str, fn() -> Work, fn(&Work) -> u64, u64);
/// What is measured.
const WORKLOADS: [Workload; 6] = [
    ("messages, scan", || messages("pg18"), |work| work.messages_executed, MESSAGES as u64),
    ("messages, index", || messages("indexed"), |work| work.messages_executed, MESSAGES as u64),
    ("schema changes", schema_changes, |work| work.messages_executed, 2 * 50 * 140),
    ("truncate", truncate, |work| work.messages_executed, (3 * 20 + 1) * 13 * 20),
    ("small transactions", small_transactions, |work| work.map_slots_visited, 0),
    ("spill", spill, |work| work.changes_restored, 5000),
];

/// Whether this build was made otherwise than CI's.
const fn is_incremental() -> bool {
    match option_env!("CARGO_INCREMENTAL") {
        Some(set) => !matches!(set.as_bytes(), b"0"),
        None => true,
    }
}

/// Decodes what is measured. Not inlined, so that callgrind finds it by name.
#[inline(never)]
fn measured(decoder: &mut Decoder, records: &[WalRecord]) -> Work {
    let before = decoder.work();
    records.iter().for_each(|record| decoder.process(record, &mut NoOutput).unwrap());
    decoder.work() - before
}

/// A decoder with a full map.
fn full(profile: &str) -> Decoder {
    let mut log = Log::consistent(1000);
    (0..RELATIONS).for_each(|i| log.insert(1000, 0, FIRST + i));
    log.commit(1000, &[], vec![]);
    let mut decoder = decoder(PgVersion::V18, profile);
    log.records.iter().for_each(|record| decoder.process(record, &mut NoOutput).unwrap());
    decoder
}

/// Relcache messages of relations that are not cached, executed at once.
fn messages(profile: &str) -> Work {
    let mut log = Log::default();
    let all = (0..MESSAGES).map(|i| relcache(FIRST + RELATIONS + i * 7919)).collect();
    log.push(0, 0, RecordBody::XactInvalidations(all));
    measured(&mut full(profile), &log.records)
}

/// Transactions of 140 messages, 21 of them of relations.
fn schema_changes() -> Work {
    let mut log = Log::default();
    for xid in 2000..2050u32 {
        let all: Vec<_> =
            (0..119).map(|i| catcache((i % 80) as i8, xid * 31 + i)).chain((0..21).map(|i| relcache(xid * 50 + i))).collect();
        log.new_cid(xid, 0, 0);
        all.chunks(9).for_each(|messages| log.invalidations(xid, 0, messages));
        log.commit(xid, &[], all);
    }
    measured(&mut decoder_at(&mut log, "pg18"), &log.records)
}

/// A decoder that is consistent before the first record of `log`.
fn decoder_at(log: &mut Log, profile: &str) -> Decoder {
    let start = Log::consistent(1000);
    let mut decoder = decoder(PgVersion::V18, profile);
    start.records.iter().for_each(|record| decoder.process(record, &mut NoOutput).unwrap());
    log.records.iter_mut().for_each(|record| (record.lsn.0, record.end_lsn.0) = (record.lsn.0 + 64, record.end_lsn.0 + 64));
    decoder
}

/// TRUNCATE of 20 partitions under 13: 61 times 260 messages. The rows before it are measured too.
fn truncate() -> Work {
    measured(&mut decoder(PgVersion::V13, "pg13"), &truncate_partitions(20, PgVersion::V13).records)
}

/// Transactions of one insert each.
fn small_transactions() -> Work {
    let mut log = Log::default();
    for xid in 2000..3000 {
        log.insert(xid, 0, FIRST + xid % 10);
        log.commit(xid, &[], vec![]);
    }
    measured(&mut full("pg18"), &log.records)
}

/// A transaction that is written out and read back.
fn spill() -> Work {
    let mut log = Log::consistent(1000);
    (0..5000).for_each(|i| log.insert(1000, 0, FIRST + i % 10));
    log.commit(1000, &[], vec![]);
    measured(&mut decoder_within(PgVersion::V18, "pg18", WorkMem::MIN), &log.records)
}

/// Runs the workload that is named, or all; under callgrind it is the program.
#[test]
fn workloads_do_what_they_say() {
    let named = std::env::var(WORKLOAD).ok();
    for (name, run, counter, expected) in WORKLOADS.iter().filter(|(name, ..)| named.as_ref().is_none_or(|n| n == name)) {
        assert_eq!(counter(&run()), *expected, "{name}");
    }
}

/// Instructions of this program inside of [`measured`] while it runs a workload.
fn instructions(name: &str, folder: &Path) -> u64 {
    let program = std::env::current_exe().unwrap();
    let out = folder.join("callgrind.out");
    let valgrind = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--toggle-collect=*instructions*measured*", "--compress-strings=no"])
        .args(["--compress-pos=no", "--dump-instr=no"])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(&program)
        .args(["--exact", "instructions::workloads_do_what_they_say", "--test-threads=1"])
        .env(WORKLOAD, name)
        .output()
        .unwrap();
    assert!(valgrind.status.success(), "{name}: {}", String::from_utf8_lossy(&valgrind.stderr));
    own_instructions(&std::fs::read_to_string(out).unwrap(), &program.canonicalize().unwrap())
}

/// Adds up the lines of a callgrind file that are about `program`'s own code: `ob=` says whose code follows, a line of two numbers is a
/// source line and its instructions, and the line after `calls=` is what was called, which is counted where it is told itself.
fn own_instructions(file: &str, program: &Path) -> u64 {
    let (mut own, mut skip, mut sum) = (false, false, 0);
    for line in file.lines() {
        if let Some(object) = line.strip_prefix("ob=") {
            own = Path::new(object) == program;
        } else if line.starts_with("calls=") {
            skip = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit()) {
            let cost: u64 = line.split(' ').nth(1).unwrap_or("0").parse().unwrap();
            sum += if own && !skip { cost } else { 0 };
            skip = false;
        }
    }
    sum
}

#[test]
fn hot_paths_take_the_instructions_that_they_took() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        let reason = "valgrind is missing, so no instruction is counted: install it (Debian: apt-get install valgrind)";
        assert!(std::env::var_os("CI").is_none(), "{reason}");
        eprintln!("SKIPPED: {reason}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let counted: BTreeMap<&str, u64> = WORKLOADS.iter().map(|(name, ..)| (*name, instructions(name, folder.path()))).collect();
    let (scan, index) = (counted["messages, scan"], counted["messages, index"]);
    assert!(scan >= 20 * index, "a scan of {RELATIONS} against an index: {scan} and {index} instructions");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/closed_forms/instructions.txt");
    if std::env::var_os(RENEW).is_some() {
        let lines: String = counted.iter().map(|(name, count)| format!("{count:>12} {name}\n")).collect();
        std::fs::write(&path, lines).unwrap();
    }
    if cfg!(target_arch = "x86_64") {
        let committed = std::fs::read_to_string(&path).unwrap();
        for line in committed.lines() {
            let (before, name) = line.trim().split_once(' ').unwrap();
            let (before, now) = (before.parse::<f64>().unwrap(), counted[name] as f64);
            let off = 100.0 * (now / before - 1.0);
            assert!(
                off.abs() <= TOLERANCE,
                "'{name}' takes {off:+.1} % instructions ({now} for {before}): see the head of this file"
            );
        }
        assert_eq!(committed.lines().count(), WORKLOADS.len(), "every workload has its count");
    }
}
