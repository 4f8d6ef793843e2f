//! Transactions in progress against what real servers gave out: each block of `test_decoding` with its place and its number of
//! changes, what was rolled back after a block, and the counters of `pg_stat_replication_slots`.
//!
//! The logs are made by `data/streaming/record.py`, which tells what each case is.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use decoder_core::{DecodedChange, DecodedTransaction, OutputSink, PreparedEnd, Relation, TwoPhase, WorkMem};
use pg_types::record::{LogicalMessageRecord, TruncateRecord};
use pg_types::{Lsn, Work, Xid};
use serde_json::Value;
use tempfile::TempDir;
use walstorm_cli::wal_input::{Decoding, WalInput};
use walstorm_cli::{Cli, Command, decode};

/// The servers, each with its profile's name: 14.23, 15.1, 16.14, 17.10 and 18.6.
const SERVERS: [&str; 5] = ["pg14", "pg15.1", "pg16", "pg17", "pg18"];

/// What a server did with a case.
struct Case {
    name: String,
    /// spill_txns, spill_count, spill_bytes, stream_txns, stream_count, stream_bytes.
    stats: [u64; 6],
    /// Lines of `test_decoding`, equal ones counted.
    said: Vec<String>,
}

/// The logs of a server, and what it did with each.
fn recorded(server: &str) -> (TempDir, Vec<Case>) {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/streaming");
    let folder = tempfile::tempdir().unwrap();
    let packed = File::open(data.join(format!("{server}.tar.zst"))).unwrap();
    tar::Archive::new(zstd::Decoder::new(packed).unwrap()).unpack(folder.path()).unwrap();
    let mut cases: Vec<Case> = Vec::new();
    for line in std::fs::read_to_string(data.join(format!("{server}.txt"))).unwrap().lines() {
        if let Some(case) = line.strip_prefix("case ") {
            let (name, stats) = case.split_once(' ').unwrap();
            let stats: Vec<u64> = stats.split(' ').map(|n| n.parse().unwrap()).collect();
            cases.push(Case { name: name.to_owned(), stats: stats.try_into().unwrap(), said: Vec::new() });
        } else {
            cases.last_mut().unwrap().said.push(line.to_owned());
        }
    }
    assert_eq!(cases.len(), 18, "{server}");
    (folder, cases)
}

/// Says what `test_decoding` says.
#[derive(Default)]
struct Said {
    lines: Vec<(String, u64)>,
    /// The block's transaction, or the whole one at hand.
    block: Option<Xid>,
    whole: Xid,
}

impl Said {
    fn say(&mut self, line: String, n: u64) {
        match self.lines.last_mut().filter(|last| last.0 == line) {
            Some(last) => last.1 += n,
            None => self.lines.push((line, n)),
        }
    }

    fn rows(&mut self, streaming: &str, whole: &str, n: u64) {
        match self.block {
            Some(xid) => self.say(format!("streaming {streaming} {xid}"), n),
            None => self.say(format!("{whole} {}", self.whole), n),
        }
    }
}

impl OutputSink for Said {
    fn begin(&mut self, xid: Xid, _: Lsn, _: Lsn) {
        self.whole = xid;
        self.say(format!("begin {xid}"), 1);
    }

    fn change(&mut self, change: &DecodedChange<'_>) {
        let what = format!("rows {}", format!("{:?}", change.action).to_lowercase());
        self.rows("change", &what, change.rows.into());
    }

    fn truncate(&mut self, _: Lsn, _: Xid, _: &[&Relation], _: &TruncateRecord) {
        self.rows("truncate", "rows truncate", 1);
    }

    fn message(&mut self, _: Lsn, _: Xid, message: &LogicalMessageRecord) {
        match message.transactional {
            true => self.rows("message", "message", 1),
            false => self.say("message outside".to_owned(), 1),
        }
    }

    fn commit(&mut self, t: &DecodedTransaction) {
        self.say(format!("commit {} {}", t.end_lsn, t.xid), 1);
    }

    fn stream_start(&mut self, xid: Xid, lsn: Lsn, _: bool) {
        self.block = Some(xid);
        self.say(format!("opening {lsn} {xid}"), 1);
    }

    fn stream_stop(&mut self, xid: Xid, lsn: Lsn) {
        self.block = None;
        self.say(format!("closing {lsn} {xid}"), 1);
    }

    fn stream_abort(&mut self, _: Xid, xid: Xid, lsn: Lsn) {
        self.say(format!("aborting {lsn} {xid}"), 1);
    }

    fn prepare(&mut self, t: &DecodedTransaction) {
        self.say(format!("prepare {} {}", t.end_lsn, t.xid), 1);
    }

    fn stream_prepare(&mut self, t: &DecodedTransaction) {
        self.say(format!("preparing {} {}", t.end_lsn, t.xid), 1);
    }

    fn commit_prepared(&mut self, end: &PreparedEnd) {
        self.say(format!("commit_prepared {} {}", end.end_lsn, end.xid), 1);
    }

    fn rollback_prepared(&mut self, end: &PreparedEnd) {
        self.say(format!("rollback_prepared {} {}", end.end_lsn, end.xid), 1);
    }

    fn stream_commit(&mut self, t: &DecodedTransaction) {
        self.say(format!("committing {} {}", t.end_lsn, t.xid), 1);
    }
}

/// Decodes a case's log; what is said, and the work.
fn decoded(wal: &Path, profile: &str) -> (Vec<String>, Work) {
    let input = WalInput::open(wal, wal.parent(), None).unwrap();
    let (profile, work_mem) = (profile.parse().unwrap(), WorkMem::MIN);
    let is_two_phase = wal.file_name().unwrap().to_str().unwrap().starts_with("two_phase");
    let two_phase = is_two_phase.then(|| TwoPhase { at: Lsn::INVALID, except: Some(b"_nodecode".to_vec()) });
    let mut decoder = input.decoder(Decoding { profile, work_mem, streaming: true, two_phase }).unwrap();
    let mut said = Said::default();
    input.decode(&mut decoder, &mut said).unwrap();
    (said.lines.into_iter().map(|(line, n)| format!("{line} x{n}")).collect(), decoder.work())
}

/// A line as both sides say it: a server's message outside of transactions names one, and messages are placed at their records'
/// ends there, so that places of blocks differ in the case of messages.
fn comparable(case: &str, line: &str) -> String {
    let mut words: Vec<&str> = line.split(' ').collect();
    if words[..2] == ["message", "outside"] {
        words.truncate(2);
    } else if case == "msg" && ["opening", "closing"].contains(&words[0]) {
        words.remove(1);
    }
    words.join(" ")
}

#[test]
fn blocks_and_counters_are_those_of_the_server() {
    for server in SERVERS {
        let (folder, cases) = recorded(server);
        for case in &cases {
            let (said, work) = decoded(&folder.path().join(&case.name), server);
            let got =
                [work.spill_txns, work.spill_count, work.spill_bytes, work.stream_txns, work.stream_count, work.stream_bytes];
            let comparable = |lines: &[String]| lines.iter().map(|line| comparable(&case.name, line)).collect::<Vec<_>>();
            assert_eq!(comparable(&said), comparable(&case.said), "{server} {}", case.name);
            assert_eq!(got, case.stats, "{server} {}", case.name);
        }
    }
}

/// Runs the command.
fn command(arguments: &[&str]) -> anyhow::Result<(ExitCode, String)> {
    let Command::Decode(args) = Cli::try_parse_from(["walstorm", "decode"].iter().chain(arguments)).unwrap().command else {
        panic!("not decode")
    };
    let mut out = Vec::new();
    let code = decode::run(&args, &mut out, &mut Vec::new())?;
    Ok((code, String::from_utf8(out).unwrap()))
}

/// The path of a case.
fn path(folder: &TempDir, case: &str) -> PathBuf {
    folder.path().join(case)
}

#[test]
fn lines_of_blocks_have_the_documented_keys_and_the_others_are_those_without() {
    let (folder, _) = recorded("pg17");
    for case in ["rollback_to", "msg", "rolled_back", "between"] {
        let wal = path(&folder, case);
        let run = |more: &[&str]| {
            let arguments = [&["--json", "--profile", "pg17", "--work-mem", "64kB", wal.to_str().unwrap()], more].concat();
            let lines = command(&arguments).unwrap().1;
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
        };
        let (mut whole, streamed) = (run(&[]), run(&["--streaming"]));
        let (blocks, mut ends): (Vec<Value>, Vec<Value>) = streamed.into_iter().partition(|line| line["commit_lsn"].is_null());
        for line in whole.iter_mut().chain(&mut ends) {
            line.as_object_mut().unwrap().remove("work");
        }
        assert_eq!(ends, whole, "{case}");
        let mut opened = std::collections::BTreeSet::new();
        for line in &blocks {
            let keys: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
            if line["block"].is_null() {
                assert_eq!(keys, ["aborted", "lsn", "top_xid"], "{case}");
                continue;
            }
            assert_eq!(keys, ["block", "end_lsn", "first", "messages", "relations", "start_lsn", "truncates"], "{case}");
            assert_eq!(line["first"], opened.insert(line["block"].as_u64()), "{case}");
        }
        assert!(blocks.len() > 4, "{case}");
    }
    let wal = path(&folder, "rollback_to");
    let (_, text) = command(&["--streaming", "--profile", "pg17", "--work-mem", "64kB", wal.to_str().unwrap()]).unwrap();
    assert!(text.contains(" first block from 0/") && text.contains(" | 1663/5/") && text.contains(" insert 465"), "{text}");
}

#[test]
fn prepared_transactions_have_lines_of_their_own() {
    let (folder, _) = recorded("pg16");
    let wal = path(&folder, "two_phase");
    let run = |more: &[&str]| {
        let arguments = [&["--json", "--catalog", folder.path().to_str().unwrap(), wal.to_str().unwrap()], more].concat();
        command(&arguments).unwrap().1.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    let (off, on) = (run(&[]), run(&["--two-phase", "--two-phase-except", "nodecode"]));
    let gids =
        |key: &str| on.iter().filter(|line| !line[key].is_null()).map(|line| line["gid"].as_str().unwrap()).collect::<Vec<_>>();
    assert_eq!(gids("prepare"), ["kept", "dropped", "ddl", "open"]);
    assert_eq!((gids("commit_prepared"), gids("rollback_prepared")), (vec!["kept", "ddl"], vec!["dropped"]));
    let relations = |lines: &[Value], xid: &Value, key: &str| {
        lines.iter().find(|line| line[key] == *xid).map(|line| line["relations"].clone()).unwrap()
    };
    for line in on.iter().filter(|line| !line["commit_prepared"].is_null()) {
        let xid = &line["commit_prepared"];
        assert_eq!(relations(&on, xid, "prepare"), relations(&off, xid, "xid"));
        assert!(off.iter().any(|whole| whole["xid"] == *xid && whole["end_lsn"] == line["end_lsn"]));
    }
    let (_, text) = command(&["--two-phase", wal.to_str().unwrap()]).unwrap();
    assert!(text.contains("\ncommit prepared xid ") && text.contains("\nrollback prepared xid "), "{text}");
    let alone = Cli::try_parse_from(["walstorm", "decode", "--two-phase-except", "x", "y"]).unwrap_err().to_string();
    assert!(alone.contains("--two-phase"), "{alone}");
}

#[test]
fn what_cannot_be_given_out_in_blocks_is_refused_with_the_reason() {
    let (folder, _) = recorded("pg17");
    let wal = path(&folder, "small");
    let error = command(&["--streaming", "--profile", "pg13", wal.to_str().unwrap()]).unwrap_err().to_string();
    assert!(error.contains("pg13 gives out whole transactions") && error.contains("pg14"), "{error}");
    let old = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/pg-wal/tests/fixtures/pg13/wal.tar.zst");
    let wal = tempfile::tempdir().unwrap();
    tar::Archive::new(zstd::Decoder::new(File::open(old).unwrap()).unwrap()).unpack(wal.path()).unwrap();
    let error = command(&["--streaming", wal.path().to_str().unwrap()]).unwrap_err().to_string();
    assert!(error.contains("WAL of PostgreSQL 13 cannot be decoded before commits"), "{error}");
}
