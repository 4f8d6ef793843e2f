//! Spilling against what real servers said of theirs: `pg_stat_replication_slots` of 14, 16, 17 and 18 at 64 kB, and the rows that
//! `test_decoding` gave out meanwhile.
//!
//! The cases: one transaction of 3000 rows (`plain`), of 9000 (`big`), of 150 savepoints (`subs`), of COPY (`copy`), of updates and
//! deletes with old rows and keys (`full`), of logical messages and TRUNCATE (`msg`); rolled-back ones and a rolled-back savepoint
//! (`abort`); an open writer beside 60 CREATE TABLEs (`ddl`).

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "spill_golden/streaming.rs"]
mod streaming;

use std::fs::File;
use std::path::{Path, PathBuf};

use clap::Parser;
use serde_json::Value;
use walstorm_cli::{Cli, Command, compare, decode};

/// Versions whose logs are recorded.
const VERSIONS: [&str; 4] = ["pg14", "pg16", "pg17", "pg18"];

/// A line of `servers.txt`.
struct Case {
    name: String,
    /// Transactions, times and bytes that the server wrote out.
    stats: [u64; 3],
    rows: u64,
}

/// The cases of one version.
fn cases(version: &str) -> Vec<Case> {
    let lines = include_str!("data/spill/servers.txt").lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let case = |f: Vec<&str>| {
        let number = |at: usize| f[at].parse().unwrap();
        Case { name: f[1].to_owned(), stats: [number(2), number(3), number(4)], rows: number(5) }
    };
    let cases: Vec<Case> = lines.filter(|f| f[0] == version).map(case).collect();
    assert_eq!(cases.len(), 8, "{version}");
    cases
}

/// Unpacks a version's logs: a folder with one per case.
fn unpack(version: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/spill").join(format!("{version}.tar.zst"));
    tar::Archive::new(zstd::Decoder::new(File::open(packed).unwrap()).unwrap()).unpack(folder.path()).unwrap();
    let path = folder.path().to_owned();
    (folder, path)
}

/// The rows of `compare` over some profiles.
fn compared(wal: &Path, profiles: &str, work_mem: &str) -> Vec<Value> {
    let arguments = ["walstorm", "compare", "--json", "--profiles", profiles, "--work-mem", work_mem, wal.to_str().unwrap()];
    let Command::Compare(args) = Cli::try_parse_from(arguments).unwrap().command else { panic!("not compare") };
    let mut out = Vec::new();
    compare::run(&args, &mut out, &mut Vec::new()).unwrap();
    String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A counter.
fn counter(row: &Value, key: &str) -> u64 {
    row["work"][key].as_u64().unwrap()
}

#[test]
fn transactions_times_and_bytes_are_those_of_the_server() {
    for version in VERSIONS {
        let (_folder, path) = unpack(version);
        for case in cases(version) {
            let rows = compared(&path.join(&case.name), version, "64kB");
            let got = ["spill_txns", "spill_count", "spill_bytes"].map(|key| counter(&rows[0], key));
            assert_eq!(got, case.stats, "{version} {}", case.name);
        }
    }
}

#[test]
fn every_profile_and_limit_gives_the_rows_that_the_server_gave() {
    for version in ["pg14", "pg18"] {
        let (_folder, path) = unpack(version);
        for case in cases(version) {
            let wal = path.join(&case.name);
            let mut outputs = Vec::new();
            for work_mem in ["64kB", "64MB"] {
                for row in compared(&wal, "pg96,pg13,pg16,pg17,pg18,indexed", work_mem) {
                    assert_eq!(row["identical_output"], true, "{version} {} {}", case.name, row["profile"]);
                    // On demand the open writer beside DDL is handed too little to be written out.
                    let little = row["profile"] == "pg96" || (row["profile"] == "indexed" && case.name == "ddl");
                    let evicted = counter(&row, "evictions") > 0;
                    assert!(little || evicted == (work_mem == "64kB"), "{version} {} {}", case.name, row["profile"]);
                }
                let arguments = ["walstorm", "decode", "--json", "--work-mem", work_mem, wal.to_str().unwrap()];
                let Command::Decode(args) = Cli::try_parse_from(arguments).unwrap().command else { panic!("not decode") };
                let mut out = Vec::new();
                decode::run(&args, &mut out, &mut Vec::new()).unwrap();
                let lines: Vec<Value> =
                    String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
                outputs.push(lines.iter().map(|line| line["relations"].clone()).collect::<Vec<_>>());
            }
            assert_eq!(outputs[0], outputs[1], "{version} {}", case.name);
            let counts = outputs[0].iter().flat_map(|relations| relations.as_object().unwrap().values());
            let shown: u64 =
                counts.flat_map(|counts| ["insert", "update", "delete"].map(|key| counts[key].as_u64().unwrap())).sum();
            // TRUNCATE of two tables is one line of test_decoding.
            let truncates = u64::from(case.name == "msg");
            assert_eq!(shown + truncates, case.rows, "{version} {}", case.name);
        }
    }
}

#[test]
fn limits_below_64_kb_are_refused_with_what_may_be_said() {
    let error = Cli::try_parse_from(["walstorm", "decode", "--work-mem", "63kB", "x"]).unwrap_err().to_string();
    assert!(error.contains("must be a number with B, kB (if none is given), MB, GB or TB, from 64kB to"), "{error}");
}
