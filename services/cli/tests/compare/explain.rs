//! `walstorm explain` on recorded logs: stories, numbers that are those of a true decode, and what a decoder that begins at a
//! transaction's restart position tells of them.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use decoder_core::compare::depends_on_the_past;
use decoder_core::{Contender, DecodedTransaction, Decoder, DecoderConfig, Profile, WorkMem};
use pg_types::Work;
use serde_json::Value;
use walstorm_cli::wal_input::{Decoding, WalInput};
use walstorm_cli::{Cli, Command, decode, explain};

use super::support::{FIXTURES, Fixture};

/// Runs the command; gives its output.
fn run(arguments: &[&str]) -> anyhow::Result<String> {
    let Command::Explain(args) = Cli::try_parse_from(["walstorm", "explain"].iter().chain(arguments))?.command else {
        panic!("not explain")
    };
    let mut out = Vec::new();
    assert_eq!(explain::run(&args, &mut out, &mut Vec::new())?, ExitCode::SUCCESS);
    Ok(String::from_utf8(out).unwrap())
}

fn error(arguments: &[&str]) -> String {
    format!("{:#}", run(arguments).unwrap_err())
}

/// The work of a transaction as `walstorm decode` tells it.
fn decoded(wal: &str, profile: &str, xid: u64) -> Value {
    let arguments = ["walstorm", "decode", "--json", "--profile", profile, wal];
    let Command::Decode(args) = Cli::try_parse_from(arguments).unwrap().command else { panic!("not decode") };
    let mut out = Vec::new();
    decode::run(&args, &mut out, &mut Vec::new()).unwrap();
    let lines = String::from_utf8(out).unwrap();
    let mut lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.find(|line| line["xid"] == xid).unwrap()
}

/// All transactions of a log with what they cost under a profile.
fn transactions(input: &WalInput, profile: &Profile) -> Vec<DecodedTransaction> {
    let mut all = Vec::new();
    let mut contender = Contender::new(input.decoder(decoding(profile)).unwrap());
    let feed =
        |record: &_| Ok(contender.process_seen(record, &mut |t| all.push(t.clone())).map(|()| ControlFlow::Continue(()))?);
    input.records_until(None, feed).unwrap();
    all
}

fn decoding(profile: &Profile) -> Decoding {
    Decoding { profile: profile.clone(), work_mem: WorkMem::default(), streaming: false, two_phase: None }
}

#[test]
fn a_story_with_its_numbers_by_xid_and_by_lsn() {
    let fixture = Fixture::unpack("pg18");
    let (wal, catalog) = (fixture.wal(), fixture.catalog());
    let (wal, catalog) = (wal.to_str().unwrap(), catalog.to_str().unwrap());
    let input = WalInput::open(Path::new(wal), None, None).unwrap();
    let all = transactions(&input, &Profile::indexed());
    let truncate = all.iter().find(|t| t.footprint.truncated > 5).unwrap();
    let xid = truncate.xid.to_string();
    let text = run(&[wal, &xid, "--catalog", catalog]).unwrap();
    assert!(text.contains("TRUNCATE of"), "{text}");
    assert!(text.contains("pg_class ~") && text.contains("RELOID"), "{text}");
    let profiles = ["pg96", "pg13", "pg18", "indexed", "pg13+live"];
    let by_xid: Value = serde_json::from_str(&run(&["--json", "--profiles", &profiles.join(","), wal, &xid]).unwrap()).unwrap();
    for (lsn, name) in [(truncate.commit_lsn, "start"), (truncate.end_lsn, "end")] {
        let by_lsn: Value = serde_json::from_str(&run(&["--json", wal, &lsn.to_string()]).unwrap()).unwrap();
        assert_eq!(by_lsn["story"], by_xid["story"], "{name}");
    }
    // Where one ends and the next one's commit record starts, the next one is meant.
    let met = all.windows(2).find(|pair| pair[0].end_lsn == pair[1].commit_lsn).unwrap();
    let at_both: Value = serde_json::from_str(&run(&["--json", wal, &met[1].commit_lsn.to_string()]).unwrap()).unwrap();
    assert_eq!(at_both["xid"], met[1].xid.0);
    let keys: BTreeSet<&str> = by_xid.as_object().unwrap().keys().map(String::as_str).collect();
    let documented = "xid, commit_lsn, end_lsn, first_lsn, restart_lsn, commit_time, gid, subxids, story, relations, catalogs, \
                      footprint, messages, caches, decoded_from, profiles";
    assert_eq!(keys, documented.split(", ").collect());
    assert_eq!(by_xid["story"][0]["statements"][0], "TRUNCATE TABLE");
    assert_eq!(by_xid["catalogs"]["pg_class"]["updated"], by_xid["footprint"]["files_created"]);
    for (profile, row) in profiles.iter().zip(by_xid["profiles"].as_array().unwrap()) {
        assert_eq!(row["profile"], *profile);
        let line = decoded(wal, profile, u64::from(truncate.xid.0));
        assert_eq!(row["work"], line["work"], "as a true decode under {profile}");
        assert_eq!(row["consumer"], line["consumer"]);
    }
}

#[test]
fn what_is_not_there_is_told_with_what_is() {
    let fixture = Fixture::unpack("pg15");
    let wal = fixture.wal();
    let wal = wal.to_str().unwrap();
    let unknown = error(&[wal, "4000000000"]);
    assert!(unknown.starts_with("no transaction with xid 4000000000 is decoded of this WAL; there are 2"), "{unknown}");
    assert!(unknown.contains("from xid ") && unknown.contains("walstorm decode"), "{unknown}");
    assert!(error(&[wal, "F/1"]).starts_with("no transaction whose commit record starts or ends at F/1 is decoded"));
    for bad in ["0", "x", "-1", "1/", "1/2/3", "99999999999"] {
        assert!(error(&[wal, "--", bad]).contains("must be an xid as 763, or start or end of a commit record"), "{bad}");
    }
    let profile = error(&[wal, "1", "--profiles", "pg18,pg81"]);
    assert!(profile.contains("'pg81' is no profile") && profile.contains("did you mean 'pg18'"), "{profile}");
    assert!(error(&["/no/such/dir", "1"]).contains("/no/such/dir"));
}

/// The DDL of the recorded logs, which is the same in all versions.
#[test]
fn stories_of_recorded_ddl() {
    let mut told = String::new();
    for name in FIXTURES {
        let fixture = Fixture::unpack(name);
        let input = WalInput::open(&fixture.wal(), Some(&fixture.catalog()), None).unwrap();
        let stories = transactions(&input, &Profile::indexed()).into_iter().filter(|t| !t.footprint.is_empty());
        told.push_str(&format!("== {name}\n"));
        stories.for_each(|t| told.push_str(&format!("{}\n", t.story())));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compare/stories.txt");
    if std::env::var_os("UPDATE_STORIES").is_some() {
        std::fs::write(&path, &told).unwrap();
    }
    assert_eq!(told, std::fs::read_to_string(path).unwrap(), "UPDATE_STORIES=1 writes the file anew, to be read");
}

/// A decoder that begins where the oldest transaction began that was open with this one, with empty caches.
fn from_its_restart(input: &WalInput, profile: &Profile, t: &DecodedTransaction) -> Work {
    let config = DecoderConfig::new(input.dir().identity().version, profile.clone(), input.database);
    let mut contender =
        Contender::new(Decoder::resume(config, std::sync::Arc::new(decoder_core::NoCatalog))).looking_for(t.commit_lsn);
    let feed = |record: &pg_types::WalRecord| {
        contender.process(record)?;
        Ok(if contender.found().is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    };
    input.records_until(Some(t.restart_lsn), feed).unwrap();
    contender.found().unwrap()
}

#[test]
fn counters_that_do_not_depend_on_the_past_are_exact_from_the_restart_position_on() {
    for name in ["pg13", "pg18"] {
        let fixture = Fixture::unpack(name);
        let input = WalInput::open(&fixture.wal(), None, None).unwrap();
        let mut differ = BTreeSet::new();
        for profile in ["pg96", "pg13", "pg18", "indexed"] {
            let profile: Profile = profile.parse().unwrap();
            for t in transactions(&input, &profile) {
                let again = from_its_restart(&input, &profile, &t);
                for ((key, whole), (_, part)) in t.work.entries().zip(again.entries()).filter(|(a, b)| a.1 != b.1) {
                    assert!(
                        depends_on_the_past(&profile, key),
                        "{name} {profile} xid {} {key}: {whole} in all, {part} from {}",
                        t.xid,
                        t.restart_lsn
                    );
                    differ.insert(key);
                }
            }
        }
        assert!(differ.contains("relations_loaded") && differ.contains("map_slots_visited"), "{differ:?}");
    }
}
