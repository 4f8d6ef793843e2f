//! `walstorm scenarios`: what ships comes out as it expects, files are checked whole, a new file is right.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::process::ExitCode;

use clap::Parser;
use pg_types::PgVersion;
use primary_core::{Overrides, Scenario};
use serde_json::Value;
use walstorm_cli::{Cli, Command, scenarios};

/// Runs the command; gives exit code, output and remarks.
fn run(arguments: &[&str]) -> anyhow::Result<(ExitCode, String, String)> {
    let arguments = ["walstorm", "scenarios"].iter().chain(arguments);
    let Command::Scenarios(args) = Cli::try_parse_from(arguments)?.command else { panic!("not scenarios") };
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let code = scenarios::run(&args, &mut out, &mut notes)?;
    Ok((code, String::from_utf8(out).unwrap(), String::from_utf8(notes).unwrap()))
}

/// The lines of an output as JSON.
fn lines(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn what_ships_comes_out_as_it_expects_in_every_version() {
    for name in Scenario::names() {
        let scenario = Scenario::load(name).unwrap();
        let mut evaluated = 0;
        for version in PgVersion::ALL {
            let outcomes = scenarios::check::check(&scenario, scenario.small(), scenario.seed(), version).unwrap();
            let unexpected: Vec<_> = outcomes.iter().filter(|outcome| !outcome.holds).collect();
            assert!(unexpected.is_empty(), "{name} in PostgreSQL {version}: {unexpected:#?}");
            evaluated += outcomes.len();
        }
        assert!(evaluated > 0, "{name} expects nothing");
    }
}

#[test]
fn what_ships_is_listed_and_shown() {
    let (_, out, _) = run(&["list", "--json"]).unwrap();
    let names: Vec<String> = lines(&out).iter().map(|line| line["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, Scenario::names().collect::<Vec<_>>());
    let (_, table, _) = run(&["list"]).unwrap();
    assert!(table.contains("truncate-partitions") && table.contains("partitions=1000"), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 120), "{table}");
    let (_, out, _) = run(&["show", "truncate-partitions", "--set", "partitions=7", "--json"]).unwrap();
    let shown = &lines(&out)[0];
    assert_eq!(shown["parameters"]["partitions"], 7);
    assert_eq!((&shown["size"]["tables"], &shown["size"]["transactions"]), (&16.into(), &3.into()));
    let (_, text, _) = run(&["show", "truncate-partitions"]).unwrap();
    assert!(text.contains("story = ") && text.contains("at most: 2002 tables"), "{text}");
}

#[test]
fn all_errors_of_all_files_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let good = Scenario::load("truncate-partitions").unwrap().text().to_owned();
    let keys = file("keys.toml", &good.replace("seed =", "sed =").replace("relcache_callbacks", "relcash_callbacks"));
    let values =
        file("values.toml", &good.replace("after = [\"loader\"]", "after = [\"loadr\"]").replace("\"pg14\"", "\"pg41\""));
    let small = file("small.toml", &good.replace("rows = 3\n", "rows = \"3s\"\n"));
    let (code, out, _) = run(&["validate", "catalog-churn", "--json", &keys, &values, &small, "no-such.toml"]).unwrap();
    assert_eq!(code, ExitCode::FAILURE);
    let said = lines(&out);
    assert!(said[0]["ok"].as_bool().unwrap(), "{out}");
    let of = |file: &str| -> Vec<&str> {
        said.iter().filter(|line| line["file"] == file).map(|line| line["message"].as_str().unwrap()).collect()
    };
    assert_eq!(of(&keys).len(), 2, "{out}");
    assert!(of(&keys).iter().all(|message| message.contains("did you mean")), "{out}");
    assert!(of(&values)[0].contains("did you mean 'loader'?"), "{out}");
    assert!(of(&small)[0].starts_with("with [small]: ") && of(&small)[0].contains("no number"), "{out}");
    assert!(of("no-such.toml")[0].contains("no scenario has this name"), "{out}");
    // Profiles are known here alone.
    let profile = file("profile.toml", &good.replace("\"pg14\"", "\"pg41\""));
    let (_, out, _) = run(&["validate", &profile]).unwrap();
    let line = good.lines().position(|line| line.contains("\"pg14\"")).unwrap() + 1;
    assert!(out.starts_with(&format!("{profile}:{line}:9: ")) && out.contains("pg41"), "{out}");
}

#[test]
fn a_new_file_is_right_and_is_never_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    let path = path.to_str().unwrap();
    let (_, _, notes) = run(&["new", "mine", "--out", path]).unwrap();
    assert!(notes.contains("scenarios validate"), "{notes}");
    assert_eq!(run(&["validate", path]).unwrap().0, ExitCode::SUCCESS);
    let (code, out, _) = run(&["check", path, "--small"]).unwrap();
    assert_eq!(code, ExitCode::SUCCESS, "{out}");
    let error = format!("{:#}", run(&["new", "mine", "--out", path]).unwrap_err());
    assert!(error.contains("mine.toml") && error.contains("exists"), "{error}");
    assert!(run(&["new", "Not A Name", "--out", path]).unwrap_err().to_string().contains("lower-case"));
}

#[test]
fn a_sweep_is_checked_point_by_point_and_what_does_not_come_out_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("swept.toml");
    let text = Scenario::load("truncate-partitions").unwrap().text().to_owned();
    let sweep = "[sweep]\nseeds = [1, 2]\n[sweep.parameters]\npartitions = { from = 2, to = 8, times = 2 }\n\n[decoder]";
    let wrong = "[[expect]]\nthat = 'truncates == partitions - 1'\n";
    std::fs::write(&path, format!("{}{wrong}", text.replace("[decoder]", sweep))).unwrap();
    let (code, out, _) = run(&["check", path.to_str().unwrap(), "--json"]).unwrap();
    assert_eq!(code, ExitCode::from(3));
    let outcomes = lines(&out);
    let points: std::collections::BTreeSet<String> =
        outcomes.iter().map(|o| format!("{} {}", o["parameters"]["partitions"], o["seed"])).collect();
    assert_eq!(points.into_iter().collect::<Vec<_>>(), ["2 1", "2 2", "4 1", "4 2", "8 1", "8 2"]);
    let failed: Vec<&Value> = outcomes.iter().filter(|o| o["holds"] == false).collect();
    assert!(failed.iter().all(|o| o["that"] == "truncates == partitions - 1" && o["left"] == 1.0), "{failed:?}");
    assert_eq!(failed.len(), 4, "1 TRUNCATE is what it expects of two partitions");
}

#[test]
fn the_schema_is_printed() {
    let (_, out, _) = run(&["schema"]).unwrap();
    let schema: Value = serde_json::from_str(&out).unwrap();
    assert!(schema["properties"]["actors"].is_object());
}

#[test]
fn parameters_that_there_are_not_are_refused() {
    let error = |arguments: &[&str]| format!("{:#}", run(arguments).unwrap_err());
    assert!(error(&["show", "truncate-partitions", "--set", "partition=7"]).contains("did you mean 'partitions'?"));
    assert!(error(&["show", "truncate-partitions", "--set", "7"]).contains("PARAMETER=VALUE"));
    assert!(error(&["check", "truncate-partitions", "--pg-version", "12"]).contains("13 to 18"));
    let scenario = Scenario::load("truncate-partitions").unwrap();
    assert!(scenario.plan(&Overrides::new()).is_ok());
}
