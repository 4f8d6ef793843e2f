//! `walstorm bench standby`: what sessions come to, by counters; rates and latencies are whatever they are.

use std::collections::BTreeMap;
use std::process::Output;
use std::time::Instant;

use serde_json::Value;
use walstorm_cli::bench::standby::nodes::Nodes;
use walstorm_cli::run::sample_wal;

use super::program;

/// Runs it on nodes of its own, for a moment.
fn bench(args: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let moment = ["--warm-up", "200ms", "--duration", "300ms"];
    program(folder.path(), &[&["bench", "standby"], args, &moment[..]].concat())
}

/// The rows of a run that succeeded, by one of their keys.
fn rows(args: &[&str], key: &str) -> BTreeMap<String, Value> {
    let out = bench(&[args, &["--json"]].concat());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let rows = serde_json::Deserializer::from_slice(&out.stdout).into_iter::<Value>().map(Result::unwrap);
    rows.map(|row| (row[key].as_str().unwrap().to_owned(), row)).collect()
}

/// A counter.
fn number(row: &Value, key: &str) -> u64 {
    row[key].as_u64().unwrap_or_else(|| panic!("{key} in {row}"))
}

#[test]
fn a_snapshot_visits_the_span_or_little_more_than_what_is_live() {
    let profiles = ["pg13.6", "pg13.6+skip-offset", "indexed"];
    let rows = rows(&["standby-gaps", "--small", "--profiles", &profiles.join(",")], "profile");
    for (profile, row) in &rows {
        assert!(number(row, "done") > 0 && number(row, "failed") == 0, "{profile}: {row}");
        assert_eq!((number(row, "snapshots"), number(row, "sessions")), (number(row, "done"), 4), "{profile}");
        assert!(number(row, "live_max") >= 10 && number(row, "records_replayed") > 0, "{profile}: {row}");
        let latency = &row["latency_ns"];
        assert!(number(latency, "p50") <= number(latency, "p99") && number(latency, "p99") <= number(latency, "max"));
        let [serving, snapshots, walks] = ["cpu_serving_ns", "cpu_snapshots_ns", "cpu_walks_ns"].map(|key| number(row, key));
        assert!(walks <= snapshots && snapshots <= serving, "{profile}: {row}");
        assert!(number(row, "xids_bytes_max") > 0, "{profile}: {row}");
    }
    let visited = |profile: &str| number(&rows[profile], "slots_visited") / number(&rows[profile], "done");
    assert!(visited("pg13.6") >= 10 * visited("pg13.6+skip-offset"), "{rows:?}");
    assert!(visited("pg13.6+skip-offset") >= visited("indexed"), "{rows:?}");
    assert!(
        number(&rows["indexed"], "slots_visited")
            <= number(&rows["indexed"], "done") * number(&rows["indexed"], "live_max") * 2
    );
    assert_eq!(number(&rows["indexed"], "slots_skipped"), 0);
    // None of this version gives a snapshot again.
    assert_eq!(number(&rows["pg13.6"], "reused"), 0);
}

#[test]
fn a_session_start_takes_two_catalog_snapshots_or_one_a_scan() {
    let rows = rows(&["connection-storm", "--small", "--workload", "connection-storm"], "rule");
    for (rule, catalog_snapshots) in [("always-new", 15), ("mail-2013", 2), ("kept-at-connect", 1), ("today", 2)] {
        let row = &rows[rule];
        let done = number(row, "done");
        assert!(done > 0 && number(row, "failed") == 0, "{rule}: {row}");
        assert_eq!(number(row, "scans"), 15 * done, "{rule}");
        // Beside the statement's own; messages that arrive between scans drop the snapshot, each at most once.
        let least = (catalog_snapshots + 1) * done;
        assert!(
            number(row, "snapshots") >= least && number(row, "snapshots") <= least + number(row, "messages"),
            "{rule}: {row}"
        );
    }
}

#[test]
fn each_catalog_snapshot_walks_over_what_runs() {
    let rows = rows(&["standby-gaps", "--small", "--workload", "catalog-scans", "--profiles", "pg13.6"], "rule");
    let each = |rule: &str, key: &str| number(&rows[rule], key) as f64 / number(&rows[rule], "done") as f64;
    let (all, kept) = (each("always-new", "snapshots"), each("today", "snapshots"));
    assert!(all > 4.0 * kept, "{rows:?}");
    assert!(each("always-new", "slots_visited") > 2.0 * each("today", "slots_visited"), "{rows:?}");
}

#[test]
fn a_standby_that_runs_already_is_loaded_at_a_rate() {
    let folder = tempfile::tempdir().unwrap();
    let wal = folder.path().join("wal");
    sample_wal::unpack(&wal, &folder.path().join("catalog")).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let source = primary_node::config::SourceConfig { wal_dir: Some(wal), ..Default::default() };
    let settings = standby_node::config::SizeSettings { max_prepared_transactions: 100, ..Default::default() };
    let nodes = runtime.block_on(Nodes::start(source, "pg16", settings)).unwrap();
    let endpoint = nodes.endpoint();
    let run = |sessions: &str, rate: &str| {
        bench(&[
            "--standby",
            &endpoint,
            "--workload",
            "catalog-scans",
            "--sessions",
            sessions,
            "--rate",
            rate,
            "--rules",
            "today",
            "--json",
        ])
    };
    let begun = Instant::now();
    let out = run("3", "100");
    let row: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!((row["profile"].as_str(), row["source"].as_str()), (Some("pg16"), Some(endpoint.as_str())));
    // None begins before it is due: a hundred a second since the start, and the first of each.
    let due = 100.0 * begun.elapsed().as_secs_f64() + 3.0;
    assert!(number(&row, "done") > 0 && (number(&row, "done") as f64) <= due, "{row}");
    assert_eq!(number(&row, "snapshots"), 2 * number(&row, "done"), "the transaction's, and one for all its scans: {row}");

    // More than the standby has room for: those that got in go on, and what is refused is told, with its reason.
    let out = run("150", "10000");
    assert_eq!(out.status.code(), Some(3));
    let row: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(number(&row, "done") > 0 && number(&row, "failed") > 0, "{row}");
    runtime.block_on(nodes.stop()).unwrap();
    runtime.shutdown_background();
}

#[test]
fn what_cannot_be_is_refused_with_a_remedy() {
    for (args, says) in [
        (&["--standby", "http://127.0.0.1:1"][..], "connect to the standby at http://127.0.0.1:1"),
        (&["--standby", "127.0.0.1:50051"], "--standby: "),
        (&["--standby", "http://127.0.0.1:1", "--small"], "cannot be used with"),
        (&["nonsense"], "'nonsense' is no source"),
        (&["--profiles", "pg12"], "pg12"),
        (&["--set", "nothing=1"], "no scenario that is played has this parameter"),
        (&["overflowed-start", "--sessions", "5000"], "max_connections"),
        (&["--sessions", "0"], "0 is not in 1..=10000"),
        (&["--rate", "0"], "0 is not in 1..=1000000"),
        (&["--rate", "4000000000"], "4000000000 is not in 1..=1000000"),
        (&["--rules", "sometimes"], "kept-at-connect"),
    ] {
        let out = bench(args);
        let error = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && error.contains(says), "{args:?}: {error}");
        assert!(!error.contains("panicked"), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let out = program(folder.path(), &["bench", "standby", "--duration", "0s"]);
    assert!(!out.status.success() && String::from_utf8_lossy(&out.stderr).contains("too short"), "{out:?}");
}

#[test]
fn a_rate_out_of_reach_is_said() {
    let out = bench(&["overflowed-start", "--small", "--profiles", "pg18", "--sessions", "1", "--rate", "1000000"]);
    let notes = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && notes.contains("--rate 1000000 was not reached under pg18"), "{notes}");
}
