//! `walstorm wal dump` and `walstorm wal stats` as a user runs them.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::{FIXTURES, Fixture};

/// The program with arguments.
fn walstorm(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_walstorm"));
    command.arg("wal").args(args);
    command
}

/// Runs it over a directory.
fn run(what: &str, dir: &Path, args: &[&str]) -> Output {
    walstorm(&[&[what, dir.to_str().unwrap()], args].concat()).output().unwrap()
}

/// Its standard output, when it succeeded and complained of nothing.
fn quiet(output: Output) -> String {
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), complaint.as_str()), (Some(0), ""));
    String::from_utf8(output.stdout).unwrap()
}

/// A file of a fixture that is kept as it is.
fn kept(fixture: &str, file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/pg-wal/tests/fixtures").join(fixture);
    fs::read_to_string(folder.join(file)).unwrap()
}

#[test]
fn statistics_are_the_table_of_pg_waldump() {
    for name in FIXTURES {
        let fixture = Fixture::unpack(name);
        let manifest: Value = serde_json::from_str(&kept(name, "manifest.json")).unwrap();
        let end = manifest["wal_end_lsn"].as_str().unwrap();
        let ours = quiet(run("stats", &fixture.wal(), &["--end", end]));
        let theirs = kept(name, "waldump_stats.txt");
        // The pg_waldump of 13 did not say the range.
        let table = |text: &str| text.split_once("Type ").unwrap().1.to_owned();
        assert_eq!(table(&ours), table(&theirs), "{name}");
        let json = quiet(run("stats", &fixture.wal(), &["--end", end, "--json"]));
        let rows: Vec<Value> = json.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        let total = rows.last().unwrap();
        assert_eq!(total["type"], "Total");
        for key in ["count", "record_len", "fpi_len", "total_len"] {
            let sum: u64 = rows[..rows.len() - 1].iter().map(|r| r[key].as_u64().unwrap()).sum();
            assert_eq!(total[key].as_u64(), Some(sum), "{name} {key}");
        }
    }
}

#[test]
fn json_has_the_keys_and_the_text_says_the_same() {
    let fixture = Fixture::unpack("pg18");
    let text = quiet(run("dump", &fixture.wal(), &[]));
    let json = quiet(run("dump", &fixture.wal(), &["--json"]));
    assert_eq!(text.lines().count(), json.lines().count());
    for (line, object) in text.lines().zip(json.lines()) {
        let object: serde_json::Map<String, Value> = serde_json::from_str(object).unwrap();
        let keys: Vec<&str> = object.keys().map(String::as_str).collect();
        let mut expected = ["lsn", "prev", "rmgr", "total_len", "xid", "desc"];
        let order: Vec<usize> = expected.iter().map(|k| json.find(&format!("\"{k}\"")).unwrap()).collect();
        assert!(order.is_sorted());
        expected.sort_unstable();
        assert_eq!(keys, expected);
        let word = |key: &str| object[key].as_str().unwrap();
        let (high, low) = word("lsn").split_once('/').unwrap();
        assert!(line.contains(&format!("lsn: {high}/{low:0>8}, ")), "{line}");
        assert!(line.starts_with(&format!("rmgr: {} ", word("rmgr"))));
        assert_eq!(line.split_once(", desc: ").unwrap().1.trim_end(), word("desc"));
    }
}

#[test]
fn filters_leave_out() {
    let fixture = Fixture::unpack("pg18");
    let wal = fixture.wal();
    let all = quiet(run("dump", &wal, &[]));
    let kept = |keep: &dyn Fn(&str) -> bool| all.lines().filter(|l| keep(l)).map(|l| format!("{l}\n")).collect::<String>();
    let standby_or_relmap = |l: &str| l.starts_with("rmgr: Standby ") || l.starts_with("rmgr: RelMap ");
    assert_eq!(quiet(run("dump", &wal, &["--rmgr", "standby", "--rmgr", "RelMap"])), kept(&standby_or_relmap));
    let of_transaction = |l: &str| l.contains("tx:       1082,");
    let shown = quiet(run("dump", &wal, &["--xid", "1082"]));
    assert!(shown.lines().count() > 100);
    assert_eq!(shown, kept(&of_transaction));
    // From a position on, which need not be a record's, up to one.
    let positions: Vec<String> =
        all.lines().map(|l| l.split("lsn: ").nth(1).unwrap().split(',').next().unwrap().to_owned()).collect();
    let (start, end) = (&positions[500], &positions[700]);
    let inside = |l: &str| positions[500..700].iter().any(|p| l.contains(&format!("lsn: {p},")));
    assert_eq!(quiet(run("dump", &wal, &["--start", start, "--end", end])), kept(&inside));
    let unknown = run("dump", &wal, &["--rmgr", "nothing"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(String::from_utf8(unknown.stderr).unwrap().contains("LogicalMessage"));
}

#[test]
fn an_end_that_is_none_exits_with_3() {
    let fixture = Fixture::unpack("pg18");
    let wal = fixture.wal();
    let complete = quiet(run("dump", &wal, &[]));
    let last = wal.join("00000001000000000000000C");
    let middle = wal.join("00000001000000000000000B");
    let complaint = |what: &str| {
        let output = run(what, &wal, &[]);
        assert_eq!(output.status.code(), Some(3), "{what}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.is_empty());
        (text, String::from_utf8(output.stderr).unwrap())
    };
    // A flipped bit in a record of the middle segment.
    let good = fs::read(&middle).unwrap();
    let mut bad = good.clone();
    bad[500_000] ^= 1;
    fs::write(&middle, &bad).unwrap();
    let (text, said) = complaint("dump");
    assert!(complete.starts_with(&text) && text.len() < complete.len());
    assert!(said.contains("0/B7") && said.contains("00000001000000000000000B"), "{said}");
    complaint("stats");
    // A truncated segment; a missing one.
    fs::write(&middle, &good[..700_000]).unwrap();
    assert!(complaint("dump").1.contains("truncated: it has 700000 bytes"));
    fs::remove_file(&middle).unwrap();
    let said = complaint("dump").1;
    assert!(said.contains("00000001000000000000000B is missing; the next one there is 00000001000000000000000C"), "{said}");
    // Asked to stop before it, nothing is missing.
    quiet(run("dump", &wal, &["--end", "0/AF0000"]));
    fs::remove_file(&last).unwrap();
    assert!(complaint("dump").1.contains("00000001000000000000000B is missing"));
}

#[test]
fn what_cannot_be_read_exits_with_1() {
    let dir = tempfile::tempdir().unwrap();
    let refuse = |path: &Path, args: &[&str]| {
        let output = run("dump", path, args);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(refuse(&dir.path().join("nowhere"), &[]).contains("does not exist"));
    assert!(refuse(dir.path(), &[]).contains("holds no WAL segments"));
    let segment = dir.path().join("000000010000000000000001");
    fs::write(&segment, b"PK\x03\x04".repeat(4096)).unwrap();
    assert!(refuse(dir.path(), &[]).contains("no page magic"));
    fs::write(&segment, [&[0x20, 0xD1, 2, 0][..], &[0; 8188]].concat()).unwrap();
    assert!(refuse(&segment, &[]).contains("PostgreSQL 19 (page magic D120)"));
    let fixture = Fixture::unpack("pg13");
    assert!(refuse(&fixture.wal(), &["--timeline", "7"]).contains("it has: 1"));
    assert!(refuse(&fixture.wal(), &["--start", "0/1"]).contains("0/800000 to 0/B00000"));
}

#[test]
fn two_timelines_are_told_of() {
    let fixture = Fixture::unpack("pg18");
    let wal = fixture.wal();
    let copy = wal.join("00000002000000000000000C");
    fs::copy(wal.join("00000001000000000000000C"), &copy).unwrap();
    let output = run("dump", &wal, &[]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(said.contains("reading timeline 2; left out: ") && said.contains("--timeline"), "{said}");
    assert!(quiet(run("dump", &wal, &["--timeline", "1"])).lines().count() > 10_000);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let fixture = Fixture::unpack("pg18");
    let mut command = walstorm(&["dump", fixture.wal().to_str().unwrap()]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("rmgr: "));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!((child.wait().unwrap().code(), said.as_str()), (Some(0), ""));
}
