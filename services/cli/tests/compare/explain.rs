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

/// WAL of databases 5 and 7: in 5, 1000 commits with the subtransactions 1001 and 1002, of which the latter was rolled back before; 1003 is
/// rolled back with its subtransaction 1004, 1005 is prepared and committed by 1007. In 7, 1006 commits.
fn several_databases() -> tempfile::TempDir {
    use pg_types::record::{AbortRecord, CommitRecord, HeapInsert, PrepareRecord, RunningXactsRecord};
    use pg_types::{Oid, RecordBody, RelFileLocator, Xid};
    let dir = tempfile::tempdir().unwrap();
    let mut writer =
        pg_wal::writer::WalWriter::create(dir.path(), pg_wal::writer::WriterConfig::new(1).with_segment_size(1 << 20)).unwrap();
    let mut append = |xid: u32, top: u32, body: RecordBody| writer.append(Xid(xid), Xid(top), 0, &body).map(drop).unwrap();
    let list = RunningXactsRecord { next_xid: Xid(1000), oldest_running_xid: Xid(1000), ..RunningXactsRecord::default() };
    append(0, 0, RecordBody::RunningXacts(Box::new(list)));
    let insert = |db: u32| {
        let target = RelFileLocator { spc: Oid(1663), db: Oid(db), rel: 20_000 };
        RecordBody::Insert(HeapInsert { target, logical: true, tuple_len: 45, ..HeapInsert::default() })
    };
    let commit = |db: u32, subxids: &[u32], prepared: u32| {
        let (db, subxids) = (Oid(db), subxids.iter().copied().map(Xid).collect());
        let (prepared_xid, gid) = (Xid(prepared), if prepared == 0 { "".into() } else { "early".into() });
        RecordBody::Commit(Box::new(CommitRecord { db, subxids, prepared_xid, gid, ..CommitRecord::default() }))
    };
    let abort = |subxids: &[u32]| {
        let subxids = subxids.iter().copied().map(Xid).collect();
        RecordBody::Abort(Box::new(AbortRecord { subxids, ..AbortRecord::default() }))
    };
    for (xid, top) in [(1000, 0), (1001, 1000), (1002, 1000), (1003, 0), (1004, 1003), (1005, 0)] {
        append(xid, top, insert(5));
    }
    append(1006, 0, insert(7));
    append(1002, 0, abort(&[]));
    append(1000, 0, commit(5, &[1001], 0));
    append(1003, 0, abort(&[1004]));
    append(1006, 0, commit(7, &[], 0));
    append(
        1005,
        0,
        RecordBody::Prepare(Box::new(PrepareRecord { db: Oid(5), gid: "early".into(), ..PrepareRecord::default() })),
    );
    append(1007, 0, commit(5, &[], 1005));
    writer.switch().unwrap();
    writer.finish().unwrap();
    dir
}

#[test]
fn subtransactions_lead_to_their_parent_and_other_databases_and_rollbacks_are_named() {
    let folder = several_databases();
    let wal = folder.path().to_str().unwrap();
    let told =
        |arguments: &[&str]| serde_json::from_str::<Value>(&run(&[&[wal, "--json"], arguments].concat()).unwrap()).unwrap();
    assert_eq!(told(&["1000"])["xid"], 1000);
    assert_eq!(told(&["1001"])["xid"], 1000, "a subtransaction's parent");
    let Command::Explain(args) = Cli::try_parse_from(["walstorm", "explain", wal, "1001"]).unwrap().command else { panic!() };
    let mut notes = Vec::new();
    explain::run(&args, &mut Vec::new(), &mut notes).unwrap();
    assert!(String::from_utf8(notes).unwrap().contains("1001 is a subtransaction of 1000, which is explained"));
    assert_eq!(told(&["1005"])["gid"], "early", "a prepared one by its own xid");
    assert!(error(&[wal, "1007"]).contains("no transaction with xid 1007"), "not by that of who committed it");
    assert_eq!(error(&[wal, "1002"]), "xid 1002 was rolled back, so it is never decoded");
    assert_eq!(error(&[wal, "1003"]), "xid 1003 was rolled back, so it is never decoded");
    assert_eq!(error(&[wal, "1004"]), "it is a subtransaction of 1003, which was rolled back, so it is never decoded");
    let elsewhere = "xid 1006 committed in database 7, and 5 is decoded: --database 7";
    assert_eq!(error(&[wal, "1006"]), elsewhere);
    let other = told(&["1006", "--database", "7"]);
    assert_eq!(other["xid"], 1006);
    for lsn in ["commit_lsn", "end_lsn"] {
        let lsn = other[lsn].as_str().unwrap();
        let said = run(&[wal, lsn]);
        // Where it ends another record may begin that is told first.
        assert!(said.is_err_and(|e| e.to_string() == elsewhere), "{lsn}");
    }
    assert!(
        error(&[wal, "1000", "--database", "7"]).contains("xid 1000 committed in database 5, and 7 is decoded: --database 5")
    );
}
