//! `walstorm compare` on a recorded log and on a scenario.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

#[path = "compare/explain.rs"]
mod explain;
#[path = "compare/figures.rs"]
mod figures;
#[path = "compare/incidents.rs"]
mod incidents;
#[path = "compare/ladder.rs"]
mod ladder;
#[path = "compare/origins.rs"]
mod origins;
#[path = "compare/profile.rs"]
mod profile;
#[path = "compare/relsync.rs"]
mod relsync;
mod support;

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::Parser;
use serde_json::Value;
use support::Fixture;
use walstorm_cli::{Cli, Command, compare};

/// Runs the command; gives exit code and output.
fn run(arguments: &[&str]) -> anyhow::Result<(ExitCode, String)> {
    let Command::Compare(args) = Cli::try_parse_from(["walstorm", "compare"].iter().chain(arguments))?.command else {
        panic!("not compare")
    };
    let mut out = Vec::new();
    let code = compare::run(&args, &mut out, &mut Vec::new())?;
    Ok((code, String::from_utf8(out).unwrap()))
}

/// The rows as JSON.
fn rows(arguments: &[&str]) -> Vec<Value> {
    let (code, out) = run(&[&["--json"], arguments].concat()).unwrap();
    assert_eq!(code, ExitCode::SUCCESS);
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn work(row: &Value, key: &str) -> u64 {
    row["work"][key].as_u64().unwrap()
}

#[test]
fn a_recorded_log_costs_less_under_newer_profiles() {
    let fixture = Fixture::unpack("pg18");
    let rows = rows(&["--profiles", "pg96,pg10,pg14,indexed", fixture.wal().to_str().unwrap()]);
    let names: Vec<&str> = rows.iter().map(|row| row["profile"].as_str().unwrap()).collect();
    assert_eq!(names, ["pg96", "pg10", "pg14", "indexed"]);
    for row in &rows {
        let keys: BTreeSet<&str> = row.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            BTreeSet::from([
                "profile",
                "consumer",
                "shared_queue",
                "pgoutput",
                "syscache_callbacks",
                "relcache_callbacks",
                "snapshots",
                "work",
                "cpu_ns",
                "wall_ns",
                "identical_output"
            ])
        );
        assert_eq!(row["identical_output"], true);
        let called = |on: &str, cost: &str| row[on][cost].as_u64().unwrap();
        let costs =
            ["constant", "bucket", "walk"].map(|cost| called("syscache_callbacks", cost) + called("relcache_callbacks", cost));
        assert_eq!(costs.iter().sum::<u64>(), work(row, "callbacks_called"), "{row}");
        assert_eq!(called("syscache_callbacks", "walked"), 0, "a walsender's other maps are empty");
        let (scans, slots) = (row["profile"] != "indexed", work(row, "map_slots_visited"));
        assert!(
            if scans {
                called("relcache_callbacks", "walked") == slots
            } else {
                called("relcache_callbacks", "walked") < slots
            },
            "{row}"
        );
        assert_eq!(row["work"].as_object().unwrap().len(), pg_types::Work::KEYS.len());
        assert!(row["wall_ns"].as_u64().unwrap() > 0);
        assert!(row["cpu_ns"].as_object().unwrap().values().all(Value::is_u64));
    }
    for key in ["caches_searched", "callbacks_visited", "map_slots_visited"] {
        assert!(work(&rows[0], key) > work(&rows[1], key), "{key}");
        assert!(work(&rows[1], key) > work(&rows[2], key), "{key}");
        assert!(work(&rows[2], key) > work(&rows[3], key), "{key}");
    }
}

#[test]
fn figures_say_whose_they_are() {
    let fixture = Fixture::unpack("pg18");
    let wal = fixture.wal();
    let wal = wal.to_str().unwrap();
    let both = rows(&["--profiles", "pg18,pg18+live", wal]);
    let queue = |row: &Value, key: &str| row["shared_queue"][key].as_u64().unwrap();
    assert_eq!((both[0]["consumer"].as_str(), both[1]["consumer"].as_str()), (Some("catch-up"), Some("live")));
    assert_eq!(queue(&both[0], "messages"), 0);
    assert!(queue(&both[1], "messages") > 0);
    assert_eq!(work(&both[1], "messages_executed"), work(&both[0], "messages_executed") + queue(&both[1], "messages"));
    assert_eq!(both[1]["identical_output"], true);
    let live = rows(&["--profiles", "pg18", "--consumer", "live", wal]);
    assert_eq!((&live[0]["work"], live[0]["profile"].as_str()), (&both[1]["work"], Some("pg18+live")));
    let (_, text) = run(&["--profiles", "pg18", "--consumer", "live", wal]).unwrap();
    assert!(text.contains("consumer") && text.contains("live") && text.contains("queue resets"), "{text}");
    let error = format!("{:#}", run(&["--consumer", "slow", wal]).unwrap_err());
    assert!(error.contains("'slow' is no consumer mode: live"), "{error}");
}

#[test]
fn a_scenario_is_played_first() {
    let rows = rows(&["--profiles", "pg96,pg96+direct-syscache,pg14,indexed", "catalog-churn"]);
    assert!(rows.iter().all(|row| row["identical_output"] == true));
    assert_eq!(work(&rows[0], "messages_executed"), work(&rows[1], "messages_executed"));
    assert!(work(&rows[0], "caches_searched") > 10 * work(&rows[1], "caches_searched"));
    assert!(work(&rows[2], "messages_executed") >= 2 * work(&rows[3], "messages_executed"));
    let (_, text) = run(&["--profiles", "pg14,indexed", "catalog-churn"]).unwrap();
    assert!(text.contains("indexed") && text.contains("same output"), "{text}");
}

#[test]
fn what_is_no_source_is_refused() {
    let error = format!("{:#}", run(&["no-such-scenario"]).unwrap_err());
    assert!(error.contains("no scenario has this name") && error.contains("catalog-churn"), "{error}");
    let error = format!("{:#}", run(&["--profiles", "pg14,pg99", "x"]).unwrap_err());
    assert!(error.contains("'pg99' is not known"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let wrong = folder.path().join("wrong.toml");
    std::fs::write(&wrong, "name = 5\n").unwrap();
    assert!(run(&[wrong.to_str().unwrap()]).is_err());
}

#[test]
fn standard_output_without_room_is_an_error_that_says_so_and_one_that_nobody_reads_is_none() {
    let fixture = Fixture::unpack("pg16");
    let wal = fixture.wal().to_str().unwrap().to_owned();
    let at = "0/A00000".to_owned();
    let commands: [&[&str]; 8] = [
        &["decode", &wal],
        &["decode", &wal, "--json"],
        &["wal", "dump", &wal],
        &["wal", "stats", &wal],
        &["compare", &wal, "--profiles", "indexed", "--json"],
        &["scenarios", "schema"],
        &["scenarios", "list", "--json"],
        &["snapshot", &wal, "--at", &at],
    ];
    for arguments in commands {
        let program = || {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_walstorm"));
            command.args(arguments).env_clear().stderr(std::process::Stdio::piped());
            command
        };
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = program().stdout(full).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("cannot write to standard output: No space left on device"), "{arguments:?}: {said}");
        assert!(said.contains("give it room, or lead it elsewhere"), "{arguments:?}: {said}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = program().stdout(writer).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.success() && !said.contains("standard output") && !said.contains("pipe"),
            "{arguments:?}: {said}"
        );
    }
    let directory =
        std::process::Command::new(env!("CARGO_BIN_EXE_walstorm")).args(["scenarios", "validate", "/"]).output().unwrap();
    let said = String::from_utf8_lossy(&directory.stderr).into_owned() + &String::from_utf8_lossy(&directory.stdout);
    assert!(!directory.status.success() && said.contains("a directory") && said.contains("file"), "{said}");
}
