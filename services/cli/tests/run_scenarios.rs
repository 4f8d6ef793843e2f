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

/// The report of one scenario at its small size.
fn report(scenario: &str, more: &[&str]) -> serde_json::Value {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), &[&["--small", "--out", "o", scenario], more].concat());
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(dir.path().join("o/report.json")).unwrap()).unwrap();
    report["sources"][0].clone()
}

#[test]
fn prepared_transactions_come_at_prepare_to_who_asks_for_it_and_at_their_commit_to_the_others() {
    let plan = Scenario::load("prepared").unwrap();
    let plan = plan.plan(plan.small()).unwrap();
    assert!(plan.decoder.two_phase);
    let source = report("prepared", &["--profiles", "pg13,pg14,pg18,indexed"]);
    let pipeline = &source["pipeline"];
    // Small: five are prepared with three rows each, beside a hundred of one row, and committed two seconds later.
    let (at_commit, before) = (&pipeline["subscriber"], &pipeline["before_commit"]);
    assert_eq!((&at_commit["transactions"], &at_commit["inserts"]), (&105.into(), &115.into()));
    assert_eq!(
        (&before["prepared"], &before["commits_prepared"], &before["rollbacks_prepared"]),
        (&5.into(), &5.into(), &0.into())
    );
    assert_eq!((&before["blocks"], &before["commits_streamed"]), (&0.into(), &0.into()));
    let ahead = before["ahead_s_max"].as_u64().unwrap();
    assert!((1..=2).contains(&ahead), "{before}");
    // What decoding does is the same under both, and under all versions the same is given out.
    let profiles = source["decoder_profiles"].as_array().unwrap();
    assert!(profiles.len() == 4 && profiles.iter().all(|profile| profile["identical_output"] == true));
    let off = report("truncate-partitions", &["--profiles", "indexed"]);
    assert_eq!(off["pipeline"].get("before_commit"), None, "nobody asked for it");
}

#[test]
fn a_publication_that_is_not_there_is_told() {
    let options = ["--profiles", "indexed", "--publication", "nobodys"];
    let source = report("matview-refresh", &options);
    assert_eq!(
        (&source["pipeline"]["subscriber"]["inserts"], &source["missing_publications"][0]),
        (&0.into(), &"nobodys".into())
    );
    let dir = tempfile::tempdir().unwrap();
    let shown = run(dir.path(), &[&["--small", "matview-refresh"], &options[..]].concat());
    assert!(shown.contains("there is no publication 'nobodys', so nothing of it is given out"), "{shown}");
}

#[test]
fn rows_of_a_heap_that_a_refresh_fills_reach_no_subscriber() {
    let source = report("matview-refresh", &["--profiles", "pg13,pg18,indexed"]);
    let subscriber = &source["pipeline"]["subscriber"];
    // Small: a view of 200 rows is made and refreshed four times, beside four inserts of one row.
    assert_eq!((&subscriber["transactions"], &subscriber["inserts"]), (&9.into(), &4.into()), "{subscriber}");
    let profiles = source["decoder_profiles"].as_array().unwrap();
    assert!(profiles.len() == 3 && profiles.iter().all(|profile| profile["identical_output"] == true));
}

#[test]
fn what_a_scenario_says_of_its_decoder_is_what_run_compare_and_check_do() {
    let dir = tempfile::tempdir().unwrap();
    let text = r#"
name = "large"
story = "One transaction of two hundred kilobytes, within 64 kB."
seed = 1
[decoder]
work_mem = 65536
streaming = true
consumer = "live"
[[tables]]
name = "t"
columns = ["id int", "v text"]
row_bytes = 200
[[actors]]
name = "a"
transactions = 1
steps = [{ insert = { table = "t", rows = 1000 } }]
[[expect]]
that = 'stream_txns("pg18") == 1'
[[expect]]
that = 'stream_count("pg18") >= 3'
[[expect]]
that = 'spill_bytes("pg18") == 0'
[[expect]]
that = 'stream_txns("pg13") == 0'
[[expect]]
that = 'spill_txns("pg13") == 1'
"#;
    std::fs::write(dir.path().join("large.toml"), text).unwrap();
    let program = |args: &[&str]| {
        let output =
            Command::new(env!("CARGO_BIN_EXE_walstorm")).args(args).current_dir(dir.path()).env_clear().output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, out, err) = program(&["scenarios", "check", "large.toml"]);
    assert_eq!(code, Some(0), "{out}{err}");
    let spilled = |args: &[&str]| {
        let (code, out, err) = program(&[&["compare", "large.toml", "--profiles", "pg18", "--json"], args].concat());
        assert_eq!(code, Some(0), "{err}");
        let row: serde_json::Value = serde_json::from_str(&out).unwrap();
        (row["profile"].as_str().unwrap().to_owned(), row["work"]["spill_txns"].as_u64().unwrap())
    };
    assert_eq!(spilled(&[]), ("pg18+live".to_owned(), 1), "blocks cannot be compared with what 13 does");
    assert_eq!(
        spilled(&["--work-mem", "1MB", "--consumer", "catch-up"]),
        ("pg18".to_owned(), 0),
        "what is asked for comes first"
    );
    let (code, out, err) = program(&["run", "large.toml", "--profiles", "pg18", "--json"]);
    assert_eq!(code, Some(0), "{err}");
    let lines: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let before = &lines[0]["before_commit"];
    assert!(before["commits_streamed"] == 1 && before["blocks"].as_u64() >= Some(3), "{before}");
    let decoder = lines.iter().find(|line| line["kind"] == "decoder").unwrap();
    assert_eq!((&decoder["profile"], &decoder["work"]["spill_txns"]), (&"pg18+live".into(), &1.into()));
    let (code, _, err) = program(&["scenarios", "validate", "large.toml"]);
    assert_eq!(code, Some(0), "{err}");
    std::fs::write(dir.path().join("large.toml"), text.replace("65536", "1000")).unwrap();
    let (code, out, err) = program(&["scenarios", "validate", "large.toml"]);
    assert!(code != Some(0) && (out + &err).contains("65536"), "out of bounds");
}
