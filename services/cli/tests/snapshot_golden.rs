//! `walstorm snapshot` against real standbys of 13, 15, 16 and 18.
#![allow(clippy::unwrap_used, reason = "a recording that cannot be read fails the test")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use clap::Parser;
use pg_types::record::{CheckpointRecord, CommitRecord, ParameterChangeRecord, RecordBody};
use pg_types::{FullXid, Xid};
use pg_wal::writer::{WalWriter, WriterConfig};
use serde_json::{Value, json};
use tempfile::TempDir;
use walstorm_cli::{Cli, Command, snapshot};

/// A file of a recording.
fn recorded(version: &str, name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../standby/core/tests/fixtures/standby/pg{version}/{name}"))
}

/// A recording's WAL, unpacked.
fn unpack(version: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let file = File::open(recorded(version, "wal.tar.zst")).unwrap();
    tar::Archive::new(zstd::Decoder::new(file).unwrap()).unpack(dir.path()).unwrap();
    dir
}

/// The stops of a recording.
fn stops(version: &str, suffix: &str) -> Vec<Value> {
    let file = File::open(recorded(version, &format!("snapshots{suffix}.jsonl.zst"))).unwrap();
    let text = String::from_utf8(zstd::decode_all(file).unwrap()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A position in a backup label.
fn label(version: &str, backup: u32, key: &str) -> String {
    let label = fs::read_to_string(recorded(version, &format!("backup_label_{backup}.txt"))).unwrap();
    let line = label.lines().find_map(|l| l.strip_prefix(key)).unwrap();
    line.split_whitespace().next().unwrap().to_owned()
}

/// What the command prints and remarks, or its error.
fn walstorm(dir: &Path, args: &[&str]) -> (String, String, Option<String>) {
    let line = ["walstorm", "snapshot", dir.to_str().unwrap()];
    let cli = Cli::try_parse_from(line.iter().chain(args)).unwrap();
    let Command::Snapshot(args) = cli.command else { panic!("another command") };
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let result = snapshot::run(&args, &mut out, &mut notes);
    let error = result.err().map(|e| format!("{e:#}"));
    (String::from_utf8(out).unwrap(), String::from_utf8(notes).unwrap(), error)
}

/// The flags of the recorded servers.
const SETTINGS: [&str; 4] = ["--max-connections", "40", "--max-prepared", "10"];

/// The keys, exactly.
const KEYS: [&str; 11] =
    ["lsn", "state", "xmin", "xmax", "xip", "suboverflowed", "last_overflowed_xid", "live", "head", "tail", "slots_visited"];

/// What a stop says under our keys. A new reader's snapshot where the recorded one was reused.
fn expected(stop: &Value, ready: bool) -> BTreeMap<&'static str, Value> {
    let state = ["", "initialized", "pending", "ready"][stop["state"].as_u64().unwrap() as usize];
    let mut want = BTreeMap::from([
        ("lsn", stop["replay_lsn"].clone()),
        ("state", json!(state)),
        ("last_overflowed_xid", stop["last_overflowed_xid"].clone()),
        ("live", stop["num"].clone()),
        ("head", stop["head"].clone()),
        ("tail", stop["tail"].clone()),
    ]);
    for key in ["xmin", "xmax", "xip", "suboverflowed"] {
        if !ready {
            want.insert(key, Value::Null);
        } else if let Some(value) = stop.get(key) {
            let fresh = stop["fresh_backend"].get(key);
            want.insert(key, fresh.unwrap_or(value).clone());
        }
    }
    want
}

#[test]
fn every_stop_of_the_real_standbys_is_printed_as_it_was() {
    let runs = [
        ("13", "", 1, None),
        ("13", "_13.23_b2", 2, None),
        ("13", "_13.6_b1", 1, Some("pg13.6")),
        ("15", "", 1, None),
        ("15", "_15.18_b2", 2, None),
        ("15", "_15.1_b1", 1, Some("pg15.1")),
        ("16", "", 1, None),
        ("16", "_16.14_b2", 2, Some("pg16+skip-offset")),
        ("18", "", 1, None),
        ("18", "_18.4_b2", 2, Some("pg18")),
    ];
    let mut snapshots = 0;
    for (version, suffix, backup, profile) in runs {
        let dir = unpack(version);
        let stops = stops(version, suffix);
        let at: Vec<&str> = stops.iter().map(|s| s["replay_lsn"].as_str().unwrap()).collect();
        let at = at.join(",");
        let start = label(version, backup, "CHECKPOINT LOCATION: ");
        let mut args = vec!["--json", "--at", &at];
        args.extend(SETTINGS);
        // The first checkpoint in the directory is the first backup's.
        if backup > 1 {
            args.extend(["--start", &start]);
        }
        if let Some(profile) = profile {
            args.extend(["--profile", profile]);
        }
        let (out, notes, error) = walstorm(dir.path(), &args);
        assert_eq!((notes.as_str(), error), ("", None));
        assert_eq!(out.lines().count(), stops.len());
        for (line, stop) in out.lines().zip(&stops) {
            let line: Value = serde_json::from_str(line).unwrap();
            let mut keys: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
            keys.sort_unstable();
            let mut want_keys = KEYS;
            want_keys.sort_unstable();
            assert_eq!(keys, want_keys);
            let ready = line["state"] == "ready";
            for (key, want) in expected(stop, ready) {
                assert_eq!(line[key], want, "{key} of {stop} in {version}{suffix}");
            }
            if ready && profile.is_none_or(|p| !p.contains("skip")) {
                assert!(line["slots_visited"].as_u64() <= Some(stop["array_span"].as_u64().unwrap()));
            }
            snapshots += u32::from(ready);
        }
    }
    assert!(snapshots > 4000, "{snapshots}");
}

#[test]
fn a_start_may_be_named_by_its_checkpoint_or_its_redo_position() {
    let dir = unpack("16");
    let redo = label("16", 2, "START WAL LOCATION: ");
    let checkpoint = label("16", 2, "CHECKPOINT LOCATION: ");
    let one = walstorm(dir.path(), &["--at", "0/A05E00,0/900028", "--start", &redo]);
    assert_eq!(one, walstorm(dir.path(), &["--at", "0/A05E00,0/900028", "--start", &checkpoint]));
    let lines: Vec<&str> = one.0.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].starts_with("0/A05E00 pending: 14 live, slots 0 to 40, last overflowed 1797"), "{lines:?}");
    assert!(lines[1].starts_with("0/900028 initialized: 0 live"), "in the order asked for: {lines:?}");
}

#[test]
fn positions_outside_are_errors_that_say_where_the_wal_is() {
    let dir = unpack("16");
    let error = |args: &[&str]| walstorm(dir.path(), args).2.unwrap_or_default();
    let before = error(&["--at", "0/700020"]);
    assert!(before.contains("0/700020") && before.contains("0/700028"), "{before}");
    let (out, _, after) = walstorm(dir.path(), &["--at", "0/F00000,0/815D68"]);
    let after = after.unwrap();
    assert!(out.starts_with("0/815D68 ready: 1 live") && out.lines().count() == 1, "what is there is printed: {out}");
    assert!(after.contains("--at 0/F00000 is not reached: WAL ends at 0/"), "{after}");
    let no_checkpoint = error(&["--at", "0/A00000", "--start", "0/815D68"]);
    assert!(no_checkpoint.contains("no checkpoint is or starts at 0/815D68; the next one is at 0/856"), "{no_checkpoint}");
    let outside = error(&["--at", "0/A00000", "--start", "0/100000"]);
    assert!(outside.contains("0/100000 is in no WAL segment"), "{outside}");
    fs::remove_file(dir.path().join("000000010000000000000007")).unwrap();
    fs::remove_file(dir.path().join("000000010000000000000008")).unwrap();
    let cut = error(&["--at", "0/A00000", "--start", "0/A00000"]);
    assert!(cut.contains("no checkpoint is or starts at 0/A00000"), "{cut}");
}

#[test]
fn bad_profiles_and_settings_are_refused() {
    let parse = |args: &[&str]| {
        let line = ["walstorm", "snapshot", ".", "--at", "0/1"];
        Cli::try_parse_from(line.iter().chain(args)).map(|_| ()).unwrap_err().to_string()
    };
    let message = parse(&["--profile", "pg12"]);
    assert!(message.contains("pg13.6") && message.contains("indexed"), "{message}");
    assert!(parse(&["--max-connections", "many"]).contains("max-connections"));
    let dir = unpack("16");
    let huge = walstorm(dir.path(), &["--at", "0/A00000", "--max-connections", "4000000000"]).2.unwrap();
    assert!(huge.contains("above PostgreSQL's limit of 262143"), "{huge}");
    let small = walstorm(
        dir.path(),
        &[
            "--at",
            "0/A00000",
            "--max-connections",
            "0",
            "--max-worker-processes",
            "0",
            "--max-wal-senders",
            "0",
            "--autovacuum-max-workers",
            "0",
        ],
    )
    .2
    .unwrap();
    assert!(small.contains("too many KnownAssignedXids") && small.contains("65 slots"), "{small}");
}

/// Writes a log of version 18 whose first record is a shutdown checkpoint, and says where each record ends.
fn written(next_xid: u64, records: &[(u32, RecordBody)]) -> (TempDir, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let mut wal = WalWriter::create(dir.path(), WriterConfig::new(7)).unwrap();
    let redo = wal.next_lsn();
    let checkpoint = CheckpointRecord {
        shutdown: true,
        redo,
        this_timeline: 1,
        prev_timeline: 1,
        next_xid: FullXid(next_xid),
        ..CheckpointRecord::default()
    };
    let mut append = |xid, body: &RecordBody| wal.append(Xid(xid), Xid::INVALID, 0, body).unwrap().1.to_string();
    let mut ends = vec![append(0, &RecordBody::Checkpoint(Box::new(checkpoint)))];
    ends.extend(records.iter().map(|(xid, body)| append(*xid, body)));
    wal.finish().unwrap();
    (dir, ends)
}

/// A commit with subtransactions.
fn commit(xid: u32, subxids: &[u32]) -> (u32, RecordBody) {
    let subxids = subxids.iter().copied().map(Xid).collect();
    (xid, RecordBody::Commit(Box::new(CommitRecord { subxids, ..CommitRecord::default() })))
}

#[test]
fn xids_wrap_around_at_2_to_the_32() {
    let last = u32::MAX;
    let (dir, ends) = written((5 << 32) | u64::from(last - 1), &[commit(4, &[]), commit(last, &[5]), commit(3, &[])]);
    let (out, notes, error) = walstorm(dir.path(), &["--json", "--at", &ends.join(",")]);
    assert_eq!((notes.as_str(), error), ("", None));
    let got: Vec<Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let seen = |n: usize| (got[n]["xmin"].clone(), got[n]["xmax"].clone(), got[n]["xip"].clone());
    assert_eq!(seen(0), (json!(last - 1), json!(last - 1), json!([])));
    assert_eq!(seen(1), (json!(last - 1), json!(5), json!([last - 1, last, 3])));
    assert_eq!(seen(2), (json!(last - 1), json!(6), json!([last - 1, 3])));
    assert_eq!(seen(3), (json!(last - 1), json!(6), json!([last - 1])));
}

#[test]
fn settings_that_are_not_given_follow_the_primary_and_given_ones_must_suffice() {
    let change = ParameterChangeRecord { max_connections: 500, max_prepared_xacts: 20, ..ParameterChangeRecord::default() };
    let (dir, ends) = written(1000, &[commit(1000, &[]), (0, RecordBody::ParameterChange(Box::new(change)))]);
    let at = ends.last().unwrap().as_str();
    let (out, notes, error) = walstorm(dir.path(), &["--at", at]);
    assert_eq!(error, None);
    assert!(notes.contains("max_connections = 500") && notes.contains("max_prepared_transactions = 20"), "{notes}");
    assert!(out.contains("ready: 0 live"), "{out}");
    let error = walstorm(dir.path(), &["--at", at, "--max-connections", "100"]).2.unwrap();
    assert!(error.contains("the primary has max_connections = 500, the standby 100"), "{error}");
    assert_eq!(walstorm(dir.path(), &["--at", at, "--max-connections", "500", "--max-prepared", "20"]).1, "");
}
