//! `walstorm trace` on traces of a recorded run: 60 transactions of `catalog-churn` at its small size, on the wall clock.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// What a command gave.
struct Output {
    /// Exit code.
    code: i32,
    /// Standard output.
    out: String,
    /// Standard error.
    notes: String,
}

/// A file of recorded traces or of what is expected of it.
fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/traces").join(name)
}

/// The recorded traces.
fn recorded() -> String {
    data("catalog-churn.jsonl.zst").display().to_string()
}

/// Runs the command with these bytes on standard input.
fn fed(arguments: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_walstorm"));
    command.arg("trace").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = std::io::Write::write_all(&mut stdin, input);
        });
        let done = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Output { code: done.status.code().unwrap(), out: text(done.stdout), notes: text(done.stderr) }
    })
}

/// Runs the command.
fn run(arguments: &[&str]) -> Output {
    fed(arguments, b"")
}

/// Compares with a kept output; `UPDATE_GOLDEN=1` writes it anew.
fn check_golden(name: &str, out: &str) {
    let path = data(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, out).unwrap();
    }
    assert_eq!(out, std::fs::read_to_string(&path).unwrap(), "{}: UPDATE_GOLDEN=1 writes it anew", path.display());
    assert!(out.lines().all(|line| line.chars().count() <= 100), "{name} is wider than 100 columns");
}

#[test]
fn the_critical_path_is_as_recorded() {
    let done = run(&["critical-path", &recorded()]);
    assert_eq!((done.code, done.notes.as_str()), (0, ""));
    check_golden("critical-path.txt", &done.out);
}

#[test]
fn a_transaction_is_explained_by_xid_position_and_trace() {
    let by_xid = run(&["explain", "740", &recorded()]);
    assert_eq!((by_xid.code, by_xid.notes.as_str()), (0, ""));
    check_golden("explain.txt", &by_xid.out);
    let trace = "2d5174c32072c61da0cf75c53faf7d5b";
    assert!(by_xid.out.contains(trace));
    for wanted in ["0/115928", trace] {
        assert_eq!(run(&["explain", wanted, &recorded()]).out, by_xid.out, "{wanted}");
    }
    let unpacked = zstd::decode_all(std::fs::File::open(recorded()).unwrap()).unwrap();
    assert_eq!(fed(&["explain", "740", "-"], &unpacked).out, by_xid.out);
    let attributes = run(&["explain", "740", &recorded(), "--attributes"]);
    assert!(attributes.out.contains("walstorm.messages_executed = 99"), "{}", attributes.out);
}

#[test]
fn json_shares_are_whole_and_agree_with_one_path() {
    let done = run(&["critical-path", "--json", &recorded()]);
    let all: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&all["transactions"], &all["batches"]), (&60.into(), &49.into()));
    let sum: f64 = all["stages"].as_array().unwrap().iter().map(|stage| stage["share"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{sum}");
    let one: Value = serde_json::from_str(
        &run(&["critical-path", "--json", "--trace", "2d5174c32072c61da0cf75c53faf7d5b", &recorded()]).out,
    )
    .unwrap();
    let parts = one["parts"].as_array().unwrap();
    let sum: u64 = parts.iter().map(|part| part["duration_ns"].as_u64().unwrap()).sum();
    assert_eq!(one["total_ns"], sum);
    assert_eq!(parts.last().unwrap()["span"], "execute invalidations");
    let decoder: Value =
        serde_json::from_str(&run(&["critical-path", "--json", "--to", "walstorm-decoder", &recorded()]).out).unwrap();
    assert!(decoder["stages"].as_array().unwrap().iter().all(|stage| stage["service"] != "walstorm-standby"));
}

#[test]
fn top_ranks_spans_and_transactions_by_anything() {
    let first = |arguments: &[&str]| -> Value {
        let done = run(&[&["top", "--json", "-n", "3"], arguments, &[&recorded()]].concat());
        assert_eq!((done.code, done.out.lines().count()), (0, 3), "{}", done.notes);
        serde_json::from_str(done.out.lines().next().unwrap()).unwrap()
    };
    let by_messages = first(&["--by", "walstorm.messages"]);
    assert_eq!((&by_messages["value"], &by_messages["attributes"]["walstorm.xid"]), (&142.0.into(), &"766".into()));
    let by_duration = first(&["--name", "decode transaction"]);
    assert_eq!((&by_duration["value"], &by_duration["attributes"]["walstorm.xid"]), (&284_424.0.into(), &"778".into()));
    // Its messages are executed in a span of their own.
    let by_self = first(&["--name", "decode transaction", "--by", "self"]);
    assert!(by_self["value"].as_f64().unwrap() < 284_424.0);
    let by_sum = first(&["--per", "transaction", "--by", "walstorm.messages_executed"]);
    assert_eq!(by_sum["span"], "transaction");
    let path = first(&["--per", "transaction"]);
    assert_eq!(path["duration_ns"], 0, "a commit takes no time, but {} pass to its last end", path["value"]);
    let done = run(&["top", &recorded()]);
    assert!(done.out.contains("primary: send wal") || done.out.contains("process wal"), "{}", done.out);
}

#[test]
fn what_cannot_be_answered_names_place_and_remedy() {
    let recorded = recorded();
    let cases: [(&[&str], &str); 9] = [
        (&["explain", "1", &recorded], "no span of transaction 1"),
        (&["explain", "00000000000000000000000000000001", &recorded], "no span of trace"),
        (&["critical-path", "--to", "nobody", &recorded], "there are walstorm-decoder, walstorm-primary, walstorm-standby"),
        (&["critical-path", "--root", "nothing", &recorded], "no span has this name"),
        (&["top", "--by", "walstorm.message", &recorded], "walstorm.messages_executed"),
        (&["top", "--by", "self", "--per", "transaction", &recorded], "leave out --per"),
        (&["critical-path", "/nowhere/traces.jsonl"], "/nowhere/traces.jsonl"),
        (&["critical-path", "--memory-mib", "1", "--sample", "2", &recorded], "at most 1"),
        (&["critical-path", "--jaeger", "127.0.0.1:16686"], "is no URL"),
    ];
    for (arguments, expected) in cases {
        let done = run(arguments);
        assert!(done.code != 0 && done.notes.contains(expected), "{arguments:?}: {}", done.notes);
        assert!(!done.notes.contains("panicked"), "{}", done.notes);
    }
    for (input, expected) in [(&b""[..], "no spans"), (b"\x7fELF\x02\x01", "7f 45 4c 46"), (b"{\"a\":1}", "give OTLP")] {
        let done = fed(&["critical-path", "-"], input);
        assert!(done.code == 1 && done.notes.contains(expected), "{}", done.notes);
    }
}

#[test]
fn a_file_that_is_cut_off_is_analysed_up_to_there() {
    let whole = zstd::decode_all(std::fs::File::open(recorded()).unwrap()).unwrap();
    let done = fed(&["critical-path", "-"], &whole[..whole.len() - 3000]);
    assert_eq!(done.code, 0);
    let lines = whole.split(|byte| *byte == b'\n').count() - 1;
    assert!(done.notes.contains(&format!("standard input:{lines}: the last line is cut off")), "{}", done.notes);
    assert!(done.out.contains("transactions, critical path of each"), "{}", done.out);
}

/// A folder with a file of each.
fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

/// The recorded traces with a change of every span: its service comes first.
fn changed(change: impl Fn(&str, &mut Value)) -> Vec<u8> {
    let text = String::from_utf8(zstd::decode_all(std::fs::File::open(recorded()).unwrap()).unwrap()).unwrap();
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut request: Value = serde_json::from_str(line).unwrap();
        for group in request["resourceSpans"].as_array_mut().unwrap() {
            let names = group["resource"]["attributes"].as_array().unwrap().iter();
            let service = names.filter(|name| name["key"] == "service.name").map(|name| name["value"]["stringValue"].clone());
            let service = service.collect::<Vec<_>>().remove(0);
            let scopes = group["scopeSpans"].as_array_mut().unwrap().iter_mut();
            let spans = scopes.flat_map(|scope| scope["spans"].as_array_mut().unwrap());
            spans.for_each(|span| change(service.as_str().unwrap(), span));
        }
        lines.push(request.to_string());
    }
    lines.join("\n").into_bytes()
}

/// Moves a time of a span.
fn add(span: &mut Value, key: &str, by: i64) {
    let time: i64 = span[key].as_str().unwrap().parse().unwrap();
    span[key] = (time + by).to_string().into();
}

#[test]
fn diff_names_the_stage_that_got_slower() {
    let slower = changed(|_, span| {
        if span["name"] == "execute invalidations" {
            add(span, "endTimeUnixNano", 900_000);
        }
    });
    let dir = folder(&[("after.jsonl", &slower)]);
    let after = dir.path().join("after.jsonl").display().to_string();
    let done = run(&["diff", "--json", "--to", "walstorm-decoder", &recorded(), &after]);
    assert_eq!(done.code, 0, "{}", done.notes);
    let changes: Vec<Value> = done.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let stage = |name: &str| changes.iter().find(|change| change["stage"] == name).unwrap();
    let slower = stage("walstorm-decoder: execute invalidations");
    assert_eq!((&slower["verdict"], &slower["mixed"]), (&"slower".into(), &false.into()));
    assert_eq!(stage("waiting for walstorm-primary: send wal")["verdict"], "not significant");
    let table = run(&["diff", "--to", "walstorm-decoder", &recorded(), &after]).out;
    assert!(table.contains("60 transactions before, 60 after") && table.contains("  slower, "), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    let same = run(&["diff", "--json", &recorded(), &recorded()]);
    assert!(same.out.lines().all(|line| line.contains("not significant")), "{}", same.out);
}

#[test]
fn assert_exits_with_0_1_and_2() {
    let rules = "[[count]]\nname = 'decoded once'\nper = 'transaction'\nspan = 'walstorm-decoder: decode transaction'\nexactly = 1\n\
        [[limit]]\nname = 'quick'\nstage = 'total'\nmax = '1h'\n[structure]\norphans_max = 0\nunresolved_links_max = 0\n";
    let broken = "[[forbid]]\nname = 'indexed executes nothing'\nspan = 'decode transaction'\n\
        where = { 'walstorm.profile' = 'indexed' }\nabove = { 'walstorm.messages_executed' = 0 }\n";
    let slow = "[[limit]]\nname = 'quick'\nstage = 'total'\np50_max = '1us'\n";
    let files = [("rules", rules), ("broken", broken), ("slow", slow), ("wrong", "[[count]]\nnames = 'x'\n")];
    let dir = folder(&files.map(|(name, text)| (name, text.as_bytes())));
    let check = |name: &str, traces: &str| run(&["assert", &dir.path().join(name).display().to_string(), traces]);
    let done = check("rules", &recorded());
    assert_eq!((done.code, done.notes.as_str()), (0, ""), "{}", done.out);
    assert_eq!(done.out.lines().filter(|line| line.starts_with("holds ")).count(), 4, "{}", done.out);
    let done = check("broken", &recorded());
    assert_eq!(done.code, 1);
    assert!(done.out.contains("BROKEN") && done.out.contains("walstorm.messages_executed = "), "{}", done.out);
    assert!(done.out.contains("and 35 more") && done.out.contains("1 of 1 rules broken"), "{}", done.out);
    let done = check("slow", &recorded());
    assert!(done.code == 1 && done.out.contains("p50 is 1.66 ms, more than 1.00 µs"), "{}", done.out);
    let done = check("wrong", &recorded());
    assert!(done.code == 2 && done.notes.contains("line 2") && done.notes.contains("unknown field `names`"), "{}", done.notes);
    for (rules, traces) in [("rules", "/nowhere"), ("nowhere", &*recorded())] {
        let done = check(rules, traces);
        assert!(done.code == 2 && done.notes.contains("nowhere"), "{}", done.notes);
    }
}

#[test]
fn flame_draws_own_time() {
    let dir = folder(&[]);
    let file = dir.path().join("flame.svg").display().to_string();
    let done = run(&["flame", "-o", &file, &recorded()]);
    assert_eq!((done.code, done.out.as_str()), (0, ""), "{}", done.notes);
    let svg = std::fs::read_to_string(&file).unwrap();
    assert!(svg.contains("<svg") && svg.contains("walstorm-decoder: execute invalidations"));
    let mut reader = quick_xml::Reader::from_str(&svg);
    while !matches!(reader.read_event().unwrap(), quick_xml::events::Event::Eof) {}
    let again = run(&["flame", "-o", &file, &recorded()]);
    assert!(again.code == 1 && again.notes.contains("is there already"), "{}", again.notes);
    assert_eq!(run(&["flame", &recorded()]).out, svg);
    let folded = run(&["flame", "--folded", &recorded()]);
    let path = "walstorm-primary: transaction;walstorm-decoder: decode transaction;walstorm-decoder: execute invalidations ";
    assert!(folded.out.lines().any(|line| line.starts_with(path)), "{}", folded.out);
}

#[test]
fn a_clock_that_is_behind_is_told_and_set_right() {
    let moved = changed(|service, span| {
        if service == "walstorm-decoder" {
            add(span, "startTimeUnixNano", -2_000_000_000);
            add(span, "endTimeUnixNano", -2_000_000_000);
        }
    });
    let told = "the clock of walstorm-decoder is 2.00 s behind that of walstorm-primary at least";
    let done = fed(&["critical-path", "-"], &moved);
    assert!(done.notes.contains(told) && done.notes.contains("set forward by that"), "{}", done.notes);
    assert!(done.out.contains("decoder: decode transaction") && !done.notes.contains("negative"), "{}", done.notes);
    let decoder = fed(&["critical-path", "--no-skew-correction", "--to", "walstorm-decoder", "-"], &moved);
    assert!(decoder.notes.contains(told) && decoder.notes.contains("left as it is"), "{}", decoder.notes);
    assert!(decoder.notes.contains("gaps were negative"), "{}", decoder.notes);
}
