//! `walstorm decode` against what `test_decoding` said of the same WAL on the server that wrote it.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;

use clap::Parser;
use serde_json::Value;
use support::{FIXTURES, Fixture};
use walstorm_cli::{Cli, Command, decode};

/// Rows per relation and action.
type Rows = BTreeMap<(String, String), u64>;

/// A transaction as both sides tell it.
#[derive(Debug, PartialEq)]
struct Transaction {
    xid: u64,
    end_lsn: String,
    commit_time: String,
    rows: Rows,
}

/// Runs the command; gives exit code, lines and remarks.
fn decode(arguments: &[&str]) -> (ExitCode, String, String) {
    let Command::Decode(args) = Cli::try_parse_from(["walstorm", "decode"].iter().chain(arguments)).unwrap().command else {
        panic!("not decode")
    };
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let code = decode::run(&args, &mut out, &mut notes).unwrap();
    (code, String::from_utf8(out).unwrap(), String::from_utf8(notes).unwrap())
}

/// Decodes a fixture to JSON.
fn decode_fixture(fixture: &Fixture, profile: &str) -> Vec<Value> {
    decode_within(fixture, profile, "64MB")
}

/// The same with a memory limit.
fn decode_within(fixture: &Fixture, profile: &str, work_mem: &str) -> Vec<Value> {
    let (wal, catalog) = (fixture.wal(), fixture.catalog());
    let catalog = catalog.to_str().unwrap();
    let arguments = ["--json", "--profile", profile, "--work-mem", work_mem, "--catalog", catalog, wal.to_str().unwrap()];
    let (code, out, _) = decode(&arguments);
    assert_eq!(code, ExitCode::SUCCESS, "the fixtures end at a switch");
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What test_decoding said.
fn expected(fixture: &Fixture) -> Vec<Transaction> {
    let (mut all, mut rows) = (Vec::new(), Rows::new());
    let text = fixture.test_decoding();
    for line in text.split('\n').filter(|line| line.contains('\t')) {
        let [lsn, xid, data] = line.splitn(3, '\t').collect::<Vec<_>>().try_into().unwrap();
        if let Some(rest) = data.strip_prefix("table ") {
            let actions = ["INSERT", "UPDATE", "DELETE", "TRUNCATE"];
            let found = actions.iter().filter_map(|a| rest.find(&format!(": {a}:")).map(|at| (at, a))).min().unwrap();
            for name in rest[..found.0].split(", ") {
                *rows.entry((name.to_owned(), found.1.to_lowercase())).or_default() += 1;
            }
        } else if let Some(rest) = data.strip_prefix("COMMIT ") {
            let time = rest.split_once("(at ").unwrap().1.trim_end_matches(')').to_owned();
            let (xid, rows) = (xid.parse().unwrap(), std::mem::take(&mut rows));
            all.push(Transaction { xid, end_lsn: lsn.to_owned(), commit_time: time, rows });
        }
    }
    assert_eq!(all.len(), 279, "in every fixture");
    all
}

/// A line of `unnamed_relations.txt`.
struct Unnamed {
    file: String,
    relation: String,
    rewrite: (u64, u64),
}

/// The documented files of a fixture that no catalog copy names.
fn unnamed(fixture: &Fixture) -> Vec<Unnamed> {
    let lines = include_str!("data/unnamed_relations.txt").lines().filter(|line| !line.starts_with('#'));
    let fields = lines.map(|line| line.split(' ').collect::<Vec<_>>()).filter(|f| f[0] == fixture.name);
    fields
        .map(|f| Unnamed {
            file: f[1].to_owned(),
            relation: f[2].to_owned(),
            rewrite: (f[3].parse().unwrap(), f[4].parse().unwrap()),
        })
        .collect()
}

/// Our line with documented files given their relation's name, and without the rows of documented rewrites.
fn named(line: &Value, unnamed: &[Unnamed], used: &mut BTreeSet<String>) -> Transaction {
    let xid = line["xid"].as_u64().unwrap();
    let mut rows = Rows::new();
    for (name, counts) in line["relations"].as_object().unwrap() {
        let known = unnamed.iter().find(|u| u.file == *name);
        assert_eq!(known.is_none(), name.starts_with("public."), "{name} is neither named nor documented");
        used.extend(known.map(|u| u.file.clone()));
        for (action, n) in counts.as_object().unwrap() {
            let rewritten = known.filter(|u| u.rewrite.0 == xid && action == "insert").map_or(0, |u| u.rewrite.1);
            let n = n.as_u64().unwrap() - rewritten;
            if n > 0 {
                let relation = known.map_or(name, |u| &u.relation).clone();
                *rows.entry((relation, action.clone())).or_default() += n;
            }
        }
    }
    let text = |key: &str| line[key].as_str().unwrap().to_owned();
    Transaction { xid, end_lsn: text("end_lsn"), commit_time: text("commit_time"), rows }
}

#[test]
fn transactions_and_counts_are_those_of_test_decoding() {
    for name in FIXTURES {
        let fixture = Fixture::unpack(name);
        let unnamed = unnamed(&fixture);
        let mut used = BTreeSet::new();
        let got: Vec<_> = decode_fixture(&fixture, "indexed").iter().map(|l| named(l, &unnamed, &mut used)).collect();
        for (got, expected) in got.iter().zip(expected(&fixture)) {
            assert_eq!(*got, expected, "{name}");
        }
        assert_eq!(got.len(), 279, "{name}");
        assert_eq!(used, unnamed.into_iter().map(|u| u.file).collect(), "{name}: every documented file occurs");
    }
}

#[test]
fn transactions_and_counts_are_the_same_within_64_kb() {
    for name in FIXTURES {
        let fixture = Fixture::unpack(name);
        let unnamed = unnamed(&fixture);
        for profile in ["pg10", "pg13", "pg18", "indexed"] {
            let lines = decode_within(&fixture, profile, "64kB");
            let mut used = BTreeSet::new();
            let got: Vec<_> = lines.iter().map(|l| named(l, &unnamed, &mut used)).collect();
            assert_eq!(got, expected(&fixture), "{name} {profile}");
        }
    }
}

/// The lines of a fixture with streaming on, at the limit.
fn decode_streaming(fixture: &Fixture, profile: &str, work_mem: &str) -> Vec<Value> {
    let (wal, catalog) = (fixture.wal(), fixture.catalog());
    let arguments =
        ["--json", "--streaming", "--profile", profile, "--work-mem", work_mem, "--catalog", catalog.to_str().unwrap()];
    let (code, out, _) = decode(&[&arguments[..], &[wal.to_str().unwrap()]].concat());
    assert_eq!(code, ExitCode::SUCCESS);
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Rows of all relations of a line.
fn rows_of(line: &Value) -> u64 {
    let counts = line["relations"].as_object().unwrap().values().flat_map(|counts| counts.as_object().unwrap().values());
    counts.map(|n| n.as_u64().unwrap()).sum()
}

#[test]
fn transactions_and_counts_are_the_same_with_streaming() {
    for name in FIXTURES {
        let fixture = Fixture::unpack(name);
        if name == "pg13" {
            // A server of 13 cannot tell whose a change is before its transaction ends.
            let wal = fixture.wal();
            let arguments = ["walstorm", "decode", "--streaming", "--profile", "pg18", wal.to_str().unwrap()];
            let Command::Decode(args) = Cli::try_parse_from(arguments).unwrap().command else { panic!("not decode") };
            let error = decode::run(&args, &mut Vec::new(), &mut Vec::new()).unwrap_err();
            assert!(format!("{error:#}").contains("--streaming"), "{error:#}");
            continue;
        }
        let unnamed = unnamed(&fixture);
        for (profile, work_mem) in [(name, "64kB"), (name, "64MB"), ("indexed", "64kB"), ("indexed", "64MB")] {
            let what = format!("{name} {profile} {work_mem}");
            let lines = decode_streaming(&fixture, profile, work_mem);
            let (ends, others): (Vec<&Value>, Vec<&Value>) = lines.iter().partition(|line| !line["commit_lsn"].is_null());
            let mut used = BTreeSet::new();
            let got: Vec<_> = ends.iter().map(|line| named(line, &unnamed, &mut used)).collect();
            assert_eq!(got, expected(&fixture), "{what}");
            let blocks: Vec<&&Value> = others.iter().filter(|line| !line["block"].is_null()).collect();
            assert!(blocks.is_empty() || work_mem == "64kB", "{what}: all of it fits in");
            // What a transaction gave out in blocks is all that its end sums up, and what was rolled back meanwhile.
            for end in ends {
                let of_it: Vec<u64> =
                    blocks.iter().filter(|block| block["block"] == end["xid"]).map(|block| rows_of(block)).collect();
                assert!(of_it.is_empty() || of_it.iter().sum::<u64>() >= rows_of(end), "{what} {}", end["xid"]);
            }
        }
    }
}

#[test]
fn every_profile_decodes_the_same() {
    let without_work = |lines: Vec<Value>| -> Vec<Value> {
        let strip = |mut line: Value| {
            line.as_object_mut().unwrap().remove("work");
            line
        };
        lines.into_iter().map(strip).collect()
    };
    for name in ["pg13", "pg18"] {
        let fixture = Fixture::unpack(name);
        let reference = without_work(decode_fixture(&fixture, "indexed"));
        for profile in ["pg96", "pg10", "pg13", "pg14", "pg17.5", "pg18+reverse-index"] {
            assert_eq!(without_work(decode_fixture(&fixture, profile)), reference, "{name} {profile}");
        }
    }
}

#[test]
fn message_rules_have_their_closed_forms() {
    for name in FIXTURES {
        let fixture = Fixture::unpack(name);
        let executed = |profile: &str| -> Vec<(u64, u64)> {
            let sum = |m: &Value| {
                m.as_object().unwrap().iter().filter(|(k, _)| *k != "logical").map(|(_, n)| n.as_u64().unwrap()).sum()
            };
            let lines = decode_fixture(&fixture, profile);
            lines.iter().map(|l| (sum(&l["messages"]), l["work"]["messages_executed"].as_u64().unwrap())).collect()
        };
        let mut rolled_back = 0;
        for ((own, at_each), (_, per_record)) in executed("pg10").into_iter().zip(executed("pg14.5")) {
            // Each once at its place and once at the end; those of a rolled-back savepoint at the end alone.
            assert!(per_record >= 2 * own, "{name}");
            rolled_back += u64::from(per_record > 2 * own);
            assert!(own == 0 && at_each == 0 || at_each % own == 0 && at_each / own >= 1, "{name}: (increases + 1) times all");
        }
        assert_eq!(rolled_back, u64::from(name != "pg13"), "{name}: one transaction has such a savepoint");
        let once: u64 = executed("indexed").iter().map(|(_, n)| n).sum();
        let twice: u64 = executed("pg18").iter().map(|(_, n)| n).sum();
        assert!(once <= twice / 2 + twice / 50, "{name}: {once} of {twice}");
    }
}

#[test]
fn keys_are_the_documented_ones_in_their_order() {
    let fixture = Fixture::unpack("pg18");
    let wal = fixture.wal();
    let (_, out, notes) = decode(&["--json", wal.to_str().unwrap()]);
    let first = out.lines().next().unwrap();
    let mut at = 0;
    for key in ["xid", "commit_lsn", "end_lsn", "commit_time", "subxids", "consumer", "relations", "messages", "work"] {
        at += first[at..].find(&format!("\"{key}\":")).unwrap_or_else(|| panic!("{key} in its place: {first}"));
    }
    let keys: BTreeSet<String> = serde_json::from_str::<Value>(first).unwrap().as_object().unwrap().keys().cloned().collect();
    assert_eq!(keys.len(), 9);
    assert!(first.contains("\"consumer\":\"catch-up\""), "{first}");
    let (_, live, _) = decode(&["--consumer", "live", wal.to_str().unwrap()]);
    assert!(live.contains("| work (live): messages_executed "), "{live}");
    let work = serde_json::from_str::<Value>(first).unwrap()["work"].as_object().unwrap().len();
    assert_eq!(work, pg_types::Work::KEYS.len());
    assert!(first.contains("\"1663/5/16396\":{\"insert\":0,\"update\":1,\"delete\":0,\"truncate\":0}"), "{first}");
    assert!(notes.contains("decodes database 5"), "{notes}");
    let (_, text, _) = decode(&[wal.to_str().unwrap()]);
    assert!(text.lines().all(|line| line.starts_with("xid ") && !line.contains('\t')));
    let (_, none, _) = decode(&["--database", "1", wal.to_str().unwrap()]);
    let rows = none.lines().filter(|line| line.contains(" insert ") || line.contains(" update ")).count();
    assert_eq!(rows, 0, "rows of other databases are not shown");
}

#[test]
fn torn_wal_is_decoded_as_far_as_it_goes() {
    let fixture = Fixture::unpack("pg18");
    let whole = decode_fixture(&fixture, "indexed").len();
    let segment = fixture.wal().join("00000001000000000000000B");
    let bytes = std::fs::read(&segment).unwrap();
    std::fs::write(&segment, &bytes[..700_000]).unwrap();
    let (code, out, notes) = decode(&["--database", "5", fixture.wal().to_str().unwrap()]);
    assert_eq!(code, ExitCode::from(3));
    assert!(out.lines().count() > 100 && out.lines().count() < whole);
    assert!(notes.contains("WAL ends at 0/B") && notes.contains("00000001000000000000000B"), "{notes}");
}

#[test]
fn bad_arguments_are_answered() {
    let error =
        |arguments: &[&str]| Cli::try_parse_from(["walstorm", "decode"].iter().chain(arguments)).unwrap_err().to_string();
    let unknown = error(&["--profile", "pg19", "x"]);
    assert!(unknown.contains("'pg19' is not known") && unknown.contains("indexed"), "{unknown}");
    for (dir, part) in [("/nonexistent", "does not exist"), (env!("CARGO_MANIFEST_DIR"), "no WAL segments")] {
        let Command::Decode(args) = Cli::try_parse_from(["walstorm", "decode", dir]).unwrap().command else { panic!() };
        let error = decode::run(&args, &mut Vec::new(), &mut Vec::new()).unwrap_err();
        assert!(format!("{error:#}").contains(part), "{error:#}");
    }
}
