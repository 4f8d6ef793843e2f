//! `walstorm run` as a program: what it writes, prints and refuses.
#![allow(clippy::unwrap_used, reason = "a panic in a test is its report")]

#[path = "run/bench.rs"]
mod bench;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// A scenario of every kind of statement that the ladders have, in a second.
const SMALL: &str = r#"
name = "small"
story = "A little of everything."
seed = 7

[server]
max_connections = 50

[readers]
snapshots_per_second = 1000

[[tables]]
name = "plain_{i}"
count = 5
columns = ["id int", "a int"]

[[tables]]
name = "parted"
columns = ["id int", "part int"]
partitions = 20

[[actors]]
name = "writer"
sessions = 3
transactions = 40
every = { from = "1ms", to = "9ms" }
rollback_percent = 10
steps = [{ insert = { table = "plain_{random:5}" } }, { wait = { from = "0ms", to = "5ms" } }]

[[actors]]
name = "changer"
transactions = 8
every = "20ms"
steps = [
    { create_table = { table = "made_{n}", columns = ["id serial primary key", "a int"] } },
    { insert = { table = "plain_1" } },
    { add_column = { table = "plain_{random:5}", column = "extra_{n} int" } },
]

[[actors]]
name = "truncater"
after = ["changer"]
transactions = 1
steps = [{ insert = { partitions_of = "parted" } }, { truncate = { table = "parted" } }]
"#;

/// The program in a folder of its own, without the environment's wishes about colours and traces.
fn program(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_walstorm"));
    command.args(args).current_dir(dir).env_clear();
    command.output().unwrap()
}

/// `walstorm run` so.
fn walstorm(dir: &Path, args: &[&str]) -> Output {
    program(dir, &[&["run"], args].concat())
}

/// The same, which must succeed; its standard output.
fn succeeds(dir: &Path, args: &[&str]) -> String {
    let Output { status, stdout, stderr } = walstorm(dir, args);
    assert!(status.success(), "{status}: {}", String::from_utf8_lossy(&stderr));
    assert_eq!(String::from_utf8_lossy(&stderr), "", "a run that succeeds has nothing to complain about");
    String::from_utf8(stdout).unwrap()
}

/// A folder with the small scenario in `small.toml`.
fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("small.toml"), SMALL).unwrap();
    dir
}

/// All files below a folder.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

#[test]
fn the_same_seed_gives_the_same_report_and_wal_and_another_seed_gives_others() {
    let dir = folder();
    let run = |out: &str, seed: &str| {
        succeeds(dir.path(), &["small.toml", "sample-wal", "--seed", seed, "--out", out]);
        let out = dir.path().join(out);
        let wal = std::fs::read(out.join("small/primary/wal/000000010000000000000001")).unwrap();
        (std::fs::read_to_string(out.join("report.json")).unwrap(), wal)
    };
    let (first, second, other) = (run("a", "1"), run("b", "1"), run("c", "2"));
    assert_eq!(first.0, second.0);
    assert!(first.1 == second.1, "the WAL differs");
    assert_ne!(first.1, other.1);
    let report: Value = serde_json::from_str(&first.0).unwrap();
    let small = &report["sources"][0];
    let decoded = small["pipeline"]["transactions_decoded"].as_u64().unwrap();
    assert_eq!(small["pipeline"]["subscriber"]["transactions"], decoded);
    assert_eq!(small["wal"]["commits"], decoded);
    assert_eq!(small["pipeline"]["standby_state"], "ready");
    assert_eq!(small["pipeline"]["subscriber"]["truncates"], 21, "a parent and its partitions");
    // The server's own logical decoding of the sample: 279 transactions, 604 updates, 13 deletes, 3 messages.
    let sample = &report["sources"][1]["pipeline"]["subscriber"];
    let counted = ["transactions", "updates", "deletes", "messages"].map(|key| sample[key].as_u64().unwrap());
    assert_eq!(counted, [279, 604, 13, 3]);
}

#[test]
fn the_report_is_for_its_owner_and_replaces_an_earlier_one_only() {
    let dir = folder();
    let out = dir.path().join("walstorm-report");
    succeeds(dir.path(), &["small.toml", "--profiles", "indexed"]);
    for file in files(&out) {
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o077, 0, "{}", file.display());
    }
    let names = || -> BTreeSet<String> {
        std::fs::read_dir(&out).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    };
    let expected = [".walstorm-report", "report.json", "small", "timings.json", "traces.jsonl"];
    assert_eq!(names(), expected.map(str::to_owned).into());
    succeeds(dir.path(), &["sample-wal", "--profiles", "indexed"]);
    assert!(names().contains("sample-wal") && !names().contains("small"));

    std::fs::create_dir(dir.path().join("mine")).unwrap();
    std::fs::write(dir.path().join("mine/notes.txt"), "mine").unwrap();
    let refused = walstorm(dir.path(), &["small.toml", "--out", "mine"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("mine is not empty"));
}

#[test]
fn tables_fit_and_nothing_steers_the_terminal() {
    let dir = folder();
    let text = succeeds(dir.path(), &["small.toml", "sample-wal"]);
    for line in text.lines() {
        assert!(line.chars().count() <= 120, "{} columns: {line}", line.chars().count());
        assert!(!line.chars().any(char::is_control), "{line:?}");
    }
    for says in ["TRUNCATE of 21 tables", "0/B7A2A8", "pg96", "indexed", "The 10 costliest", "report.json"] {
        assert!(text.contains(says), "{says} is not in\n{text}");
    }
    assert!(!text.contains("DIFFERS"), "{text}");
}

#[test]
fn wal_of_a_level_below_logical_is_said_to_be_that() {
    let dir = folder();

    assert!(!succeeds(dir.path(), &["small.toml"]).contains("wal_level"));
    let replica = SMALL.replacen("[server]", "[server]\nwal_level = \"replica\"", 1);
    std::fs::write(dir.path().join("replica.toml"), replica).unwrap();
    let text = succeeds(dir.path(), &["replica.toml"]);
    assert!(text.contains("wal_level was below logical: a server decodes nothing of this WAL"), "{text}");
}

#[test]
fn json_lines_have_the_documented_keys() {
    let dir = folder();
    let text = succeeds(dir.path(), &["small.toml", "--json", "--profiles", "pg13,pg18,indexed,pg14.5+skip-offset"]);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let help = String::from_utf8(walstorm(dir.path(), &["--help"]).stdout).unwrap();
    let mut kinds = BTreeSet::new();
    for line in &lines {
        let kind = line["kind"].as_str().unwrap();
        kinds.insert(kind);
        for key in line.as_object().unwrap().keys() {
            assert!(help.contains(key.as_str()), "{key} of {kind} is not in --help");
        }
    }
    assert_eq!(kinds, ["decoder", "source", "standby", "transaction"].into());
    let of = |kind: &str| lines.iter().filter(|line| line["kind"] == kind).collect::<Vec<_>>();
    let profiles: Vec<_> = of("decoder").iter().map(|line| line["profile"].as_str().unwrap()).collect();
    assert_eq!(profiles, ["pg13", "pg18", "indexed"], "only those that are profiles of a decoder");
    assert_eq!(of("standby").len(), 4);
    assert!(of("decoder").iter().all(|line| line["identical_output"] == true));
    assert!(of("standby").iter().all(|line| line["identical_snapshots"] == true && line["snapshots"].as_u64() > Some(50)));
    let transactions = of("transaction");
    assert_eq!(transactions[0]["rank"], 1);
    let truncate = transactions.iter().find(|t| t["looks_like"].as_str().unwrap().starts_with("TRUNCATE of 21 tables"));
    let truncate = truncate.unwrap_or_else(|| panic!("{transactions:?}"));
    let executed = |profile: &str| truncate["work"][profile]["messages_executed"].as_u64().unwrap();
    assert!(executed("pg13") > executed("pg18") && executed("pg18") > executed("indexed"), "{truncate}");
    assert!(text.contains("public.plain_"), "relations of a scenario have their names");
}

#[test]
fn time_may_be_real_and_traces_may_go_elsewhere() {
    let dir = folder();
    for clock in ["real", "max"] {
        // Nobody listens at that endpoint: spans are lost, the run is not.
        let args = ["small.toml", "--clock", clock, "--profiles", "indexed", "--otlp-endpoint", "http://127.0.0.1:9", "--json"];
        let Output { status, stdout, stderr } = walstorm(dir.path(), &args);
        let said = String::from_utf8(stderr).unwrap();
        assert!(status.success() && said.lines().count() == 1 && said.contains("spans are lost"), "{status}: {said}");
        let text = String::from_utf8(stdout).unwrap();
        let source: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(source["decoded"], source["commits"], "{source}");
        assert!(source["decoded"].as_u64() > Some(50), "{source}");
        assert!(!dir.path().join("walstorm-report/traces.jsonl").exists());
    }
}

/// A scenario that can be played up to its third transaction.
const MIDWAY: &str = r#"
name = "midway"
story = "It forgets a table."
seed = 1

[[tables]]
name = "t_{1..2}"
columns = ["id int"]

[[actors]]
name = "a"
transactions = 5
think = "1s"
steps = [{ insert = { table = "t_{n}" } }]
"#;

#[test]
fn what_cannot_run_is_refused_with_the_remedy() {
    let dir = folder();
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    std::fs::write(dir.path().join("notes.txt"), "no WAL at all").unwrap();
    std::fs::write(dir.path().join("midway.toml"), MIDWAY).unwrap();
    let cases: [(&[&str], &str); 7] = [
        (&["midway.toml", "--profiles", "indexed"], "cannot run INSERT in line 14: there is no relation named 't_3'"),
        (&["nonsense"], "truncate-partitions"),
        (&["notes.txt"], "notes.txt"),
        (&["small.toml", "--profiles", "pg7"], "pg17.6"),
        (&["small.toml", "--sampling", "2"], "between 0 and 1"),
        (&["empty"], "empty"),
        (&["small.toml", "--catalog", "nowhere"], "nowhere"),
    ];
    for (args, says) in cases {
        let output = walstorm(dir.path(), args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {error}");
        assert!(error.starts_with("walstorm: ") && error.contains(says), "{args:?}: {error}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_waited_for_aloud() {
    use std::io::BufRead;
    let dir = folder();
    let root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    let namespace = if root { &["--mount"][..] } else { &["--mount", "--map-root-user"] };
    // A file system of its own, which ends with the program.
    let script =
        "mkdir small; mount -t tmpfs -o size=1500k none small; exec \"$0\" run standby-gaps --small --out small/report";
    let mut command = Command::new("unshare");
    command.args(namespace).args(["sh", "-ec", script, env!("CARGO_BIN_EXE_walstorm")]).current_dir(dir.path());
    let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let lines: Vec<String> =
        std::io::BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok).take(1).collect();
    child.kill().unwrap();
    child.wait().unwrap();
    let said = lines.concat();
    if said.contains("unshare:") || said.contains("mount:") {
        assert!(std::env::var_os("CI").is_none(), "{said}");
        return eprintln!("SKIPPED: a small file system cannot be mounted here: {said}");
    }
    assert!(said.starts_with("walstorm: waiting: ") && said.contains("primary/wal"), "{said}");
}

#[test]
fn damaged_wal_is_played_up_to_the_damage_and_the_exit_says_so() {
    let dir = folder();
    succeeds(dir.path(), &["sample-wal", "--profiles", "indexed", "--out", "whole"]);
    let wal = dir.path().join("whole/sample-wal/wal");
    let middle = wal.join("00000001000000000000000B");
    let mut bytes = std::fs::read(&middle).unwrap();
    bytes[500_000] ^= 1;
    std::fs::write(&middle, bytes).unwrap();
    let output = walstorm(dir.path(), &[wal.to_str().unwrap(), "--out", "damaged", "--profiles", "indexed"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("stopped: the decoder") && text.contains("stopped: the standby"), "{text}");
    assert!(text.contains("00000001000000000000000B") && text.contains("0/B"), "{text}");
}
