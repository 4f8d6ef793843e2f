//! Every scenario that ships, through three nodes, twice: on the virtual clock the WAL and the report are the same byte for byte, although
//! decoder, standby, subscriber and readers are attached; on the other clocks all but the times is the same.
#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pg_types::{RecordBody, Timestamp};
use pg_wal::{WalDir, WalReader};
use primary_core::Scenario;

/// Runs the program in a folder, without the environment's wishes; its standard output.
fn run(dir: &Path, args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_walstorm")).arg("run").args(args).current_dir(dir).env_clear().output();
    let Output { status, stdout, stderr } = output.unwrap();
    assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// The segments of a scenario in a report's folder, by name.
fn segments(report: &Path, scenario: &str) -> Vec<PathBuf> {
    let dir = report.join(scenario).join("primary").join("wal");
    let mut found: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

/// What a log says, without the times.
fn contents(report: &Path, scenario: &str) -> Vec<String> {
    let dir = WalDir::open(report.join(scenario).join("primary").join("wal"), None).unwrap();
    let mut reader = WalReader::open(&dir, None).unwrap();
    let mut contents = Vec::new();
    while let Some(raw) = reader.next().unwrap() {
        let mut record = raw.decode(dir.profile()).unwrap();
        match &mut record.body {
            RecordBody::Commit(commit) => commit.time = Timestamp(0),
            RecordBody::Abort(abort) => abort.time = Timestamp(0),
            RecordBody::Checkpoint(checkpoint) => checkpoint.time = 0,
            _ => {}
        }
        contents.push(format!("{record:?}"));
    }
    contents
}

#[test]
fn each_scenario_gives_the_same_wal_and_report_twice_with_nodes_attached() {
    let dir = tempfile::tempdir().unwrap();
    let names: Vec<&str> = Scenario::names().collect();
    for out in ["a", "b"] {
        run(dir.path(), &[&["--small", "--profiles", "indexed", "--out", out], names.as_slice()].concat());
    }
    let report = |out: &str| std::fs::read_to_string(dir.path().join(out).join("report.json")).unwrap();
    assert_eq!(report("a"), report("b"));
    for name in names {
        let (first, second) = (segments(&dir.path().join("a"), name), segments(&dir.path().join("b"), name));
        assert!(!first.is_empty() && first.len() == second.len(), "{name}");
        for (a, b) in first.iter().zip(&second) {
            assert_eq!(a.file_name(), b.file_name(), "{name}");
            assert!(std::fs::read(a).unwrap() == std::fs::read(b).unwrap(), "{name}: {} differs", a.display());
        }
    }
}

#[test]
fn on_clocks_of_the_wall_a_seed_gives_the_same_but_for_the_times() {
    let dir = tempfile::tempdir().unwrap();
    let small = ["standby-gaps", "--profiles", "indexed", "--set", "duration=300ms", "--set", "longest=100ms"];
    for (clock, out) in [("max", "a"), ("max", "b"), ("real", "c"), ("virtual", "d")] {
        run(dir.path(), &[&["--time-mode", clock, "--out", out], small.as_slice()].concat());
    }
    let [max, again, real, simulated] = ["a", "b", "c", "d"].map(|out| contents(&dir.path().join(out), "standby-gaps"));
    assert!(max.len() > 100);
    assert_eq!(max, again);
    assert_eq!(max, real);
    assert_eq!(max, simulated);
    let other = [&["--seed", "1", "--out", "e"], small.as_slice()].concat();
    run(dir.path(), &other);
    assert_ne!(contents(&dir.path().join("e"), "standby-gaps"), simulated);
}

#[test]
fn a_sweep_is_a_source_for_each_point_and_a_table() {
    let dir = tempfile::tempdir().unwrap();
    let text = "name = \"swept\"\nstory = \"s\"\nseed = 1\n[parameters]\nrows = 1\n[[tables]]\nname = \"t\"\ncolumns = [\"id int\"]\n\
                [[actors]]\nname = \"a\"\ntransactions = 5\nsteps = [{ insert = { table = \"t\", rows = \"$rows\" } }]\n\
                [sweep.parameters]\nrows = [1, 10]\n";
    std::fs::write(dir.path().join("swept.toml"), text).unwrap();
    let shown = run(dir.path(), &["swept.toml", "--sweep", "--profiles", "indexed", "--out", "out"]);
    assert!(shown.contains("the points beside each other") && shown.contains("rows = 10, seed = 1"), "{shown}");
    let report = std::fs::read_to_string(dir.path().join("out/report.json")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let points = report["sources"].as_array().unwrap();
    let inserts: Vec<_> = points.iter().map(|p| p["pipeline"]["subscriber"]["inserts"].as_u64().unwrap()).collect();
    assert_eq!(inserts, [5, 50]);
    assert_eq!(points[1]["parameters"]["rows"], 10);
    assert!(contents(&dir.path().join("out"), "swept@2").len() > 50);
    let set = run(dir.path(), &["swept.toml", "--set", "rows=3", "--profiles", "indexed", "--out", "set"]);
    assert!(!set.contains("beside each other"));
    let wrong = Command::new(env!("CARGO_BIN_EXE_walstorm"))
        .args(["run", "swept.toml", "--set", "row=3"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("there are: rows"));
}
