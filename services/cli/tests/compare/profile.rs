//! `walstorm profile`: which function leads, by counted steps; the table, the lines of JSON, the flame graph.

use std::process::ExitCode;

use clap::Parser;
use decoder_core::{Function, Profile, WorkMem};
use primary_core::Scenario;
use serde_json::Value;
use walstorm_cli::profile::{self, lines};
use walstorm_cli::scenario_log::ScenarioLog;
use walstorm_cli::wal_input::{Decoding, WalInput};
use walstorm_cli::{Cli, Command, compare};

/// Runs the command; gives exit code, output and remarks.
fn run(arguments: &[&str]) -> anyhow::Result<(ExitCode, String, String)> {
    let Command::Profile(args) = Cli::try_parse_from(["walstorm", "profile"].iter().chain(arguments))?.command else {
        panic!("not profile")
    };
    let (mut out, mut notes) = (Vec::new(), Vec::new());
    let code = profile::run(&args, &mut out, &mut notes)?;
    Ok((code, String::from_utf8(out).unwrap(), String::from_utf8(notes).unwrap()))
}

/// `catalog-churn` at a small size, as a file.
fn small_churn(folder: &std::path::Path) -> String {
    let path = folder.join("<churn & co>.toml");
    let text = Scenario::load("catalog-churn").unwrap().text().to_owned();
    let text = text.replace("tables = 10000 ", "tables = 50 ").replace("transactions = 500 ", "transactions = 20 ");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The ladder of 2017, told in profiles of perf: 53 % CatalogCacheIdInvalidate and 31 % hash_seq_search; 59 % hash_seq_search; 23 %
/// callbacks; 23 % CatCacheInvalidate.
#[test]
fn the_leading_function_of_each_step_of_2017_is_the_published_one() {
    let scenario = Scenario::load("catalog-churn").unwrap();
    let log = ScenarioLog::play(&scenario, scenario.small(), scenario.seed(), pg_types::PgVersion::V13).unwrap();
    let mut input = WalInput::open(log.dir(), None, None).unwrap();
    input.callbacks = log.callbacks();
    let steps = [
        ("pg96", Function::CatalogCacheIdInvalidate, 53.0),
        ("pg96+direct-syscache", Function::HashSeqSearch, 59.0),
        ("pg96+direct-syscache+small-map", Function::CallSyscacheCallbacks, 23.0),
        ("pg96+direct-syscache+small-map+callback-chains", Function::CatCacheInvalidate, 23.0),
    ];
    for (name, function, published) in steps {
        let profile: Profile = name.parse().unwrap();
        let (row, _, _) =
            compare::measure(&input, &Decoding::at_commit(&profile, WorkMem::default()), None, &mut |_| ()).unwrap();
        let (leads, share) = lines::leading(&row.attribution);
        assert_eq!(leads, function, "{name}: {:?}", lines::lines(&row.attribution));
        assert!(share >= published - 10.0, "{name}: published {published} %, here {share:.0} %");
    }
}

#[test]
fn a_profile_is_a_table_lines_and_a_graph() {
    let folder = tempfile::tempdir().unwrap();
    let scenario = small_churn(folder.path());
    let svg = folder.path().join("out.svg");
    let graph = svg.to_str().unwrap();
    let (code, out, _) = run(&["--profile", "pg96", "--json", "--runs", "5", "--flamegraph", graph, &scenario]).unwrap();
    assert_eq!(code, ExitCode::SUCCESS);
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |function: &str| lines.iter().find(|line| line["function"] == function).unwrap();
    assert!(of("CatalogCacheIdInvalidate")["lines"].as_u64().unwrap() > of("hash_seq_search")["lines"].as_u64().unwrap());
    let samples = |line: &Value| line["samples"].as_u64().unwrap();
    assert!(lines.iter().map(samples).sum::<u64>() > 0 && lines.windows(2).all(|w| samples(&w[0]) >= samples(&w[1])), "{out}");
    let known = Function::ALL.iter().map(|function| function.name());
    assert!(lines.iter().all(|line| known.clone().any(|name| line["function"] == name)), "{out}");

    let text = std::fs::read_to_string(&svg).unwrap();
    let mut reader = quick_xml::Reader::from_str(&text);
    let mut titles = Vec::new();
    loop {
        match reader.read_event().unwrap() {
            quick_xml::events::Event::Eof => break,
            quick_xml::events::Event::Text(text) => titles.push(text.decode().unwrap().into_owned()),
            _ => {}
        }
    }
    assert!(titles.iter().any(|title| title.starts_with("walsender")), "{titles:?}");
    assert!(text.contains("&lt;churn &amp; co&gt;.toml under pg96") && !text.contains("<churn"), "the source's name is inert");

    let (_, table, _) = run(&["--profile", "pg14,indexed", &scenario]).unwrap();
    assert!(table.contains("share  samples  by lines  function") && table.matches("samples, ").count() == 2, "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 120), "{table}");
}

#[test]
fn what_cannot_be_shown_is_refused() {
    let error = |arguments: &[&str]| format!("{:#}", run(arguments).unwrap_err());
    let there = tempfile::NamedTempFile::new().unwrap();
    let path = there.path().to_str().unwrap();
    assert!(error(&["--flamegraph", path, "catalog-churn"]).contains("is there already"));
    assert_eq!(std::fs::read(path).unwrap(), b"", "and is left as it was");
    assert!(error(&["--flamegraph", "no/folder/x.svg", "catalog-churn"]).contains("no/folder is no folder"));
    assert!(error(&["--profile", "pg13,pg14", "--flamegraph", "x.svg", "catalog-churn"]).contains("one profile"));
    assert!(error(&["--seed", "1", env!("CARGO_MANIFEST_DIR")]).contains("--seed is for scenarios"));
    assert!(error(&["--profile", "pg19", "x"]).contains("'pg19' is not known"));
}
