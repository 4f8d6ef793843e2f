//! Every statement on objects gives the records that PostgreSQL 13 to 18 wrote for it: `tests/golden/statements.toml` says them
//! as SQL and as steps, `tests/golden/statements` has what real servers logged (by `record.py`).

#![allow(clippy::unwrap_used)] // Tests may unwrap: a panic there is the report.

#[path = "support/statement_lines.rs"]
mod statement_lines;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pg_types::{InvalidationKind, PgVersion, RecordBody, WalRecord};
use primary_core::rng::seeded;
use primary_core::{MemorySink, Overrides, Scenario, VirtualClock};
use serde::Deserialize;
use statement_lines::StatementLines;

/// The file of statements.
#[derive(Deserialize)]
struct File {
    statement: Vec<Statement>,
}

/// One statement; what the recorder alone needs is not read.
#[derive(Deserialize)]
struct Statement {
    name: String,
    #[serde(default)]
    given: String,
    steps: String,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn statements() -> Vec<Statement> {
    let text = std::fs::read_to_string(folder().join("statements.toml")).unwrap();
    toml::from_str::<File>(&text).unwrap().statement
}

/// What real servers wrote, by version.
fn recorded(name: &str) -> BTreeMap<PgVersion, String> {
    let text = std::fs::read_to_string(folder().join(format!("statements/{name}.txt"))).unwrap();
    let mut by_version = BTreeMap::new();
    for part in text.split("== ").skip(1) {
        let (versions, lines) = part.split_once('\n').unwrap();
        for version in versions.split_whitespace() {
            let version = PgVersion::ALL.into_iter().find(|known| known.to_string() == version).unwrap();
            by_version.insert(version, lines.to_owned());
        }
    }
    by_version
}

/// A scenario of one transaction, perhaps after another one of the same session, and a message behind it, since the session's end
/// takes its temporary tables along.
fn scenario_of(given: &str, steps: &str) -> String {
    let before = if given.is_empty() { String::new() } else { format!("{given},\n{{ commit = {{}} }},\n") };
    format!(
        "name = 'test'\nstory = 'A statement.'\nseed = 1\n[[actors]]\nname = 'a'\ntransactions = 1\nsteps = [\n{before}{steps},\n\
         {{ commit = {{}} }}, {{ message = {{ prefix = 'end', transactional = false }} }}]\n"
    )
}

/// Plays a scenario.
fn play(text: &str, version: PgVersion) -> Result<Vec<WalRecord>, String> {
    let scenario = Scenario::parse("test", text).unwrap_or_else(|error| panic!("{error:?}\n{text}"));
    let mut sink = MemorySink::new(version);
    let run = scenario.run(&Overrides::new(), &mut VirtualClock::default(), &mut seeded(1), &mut sink, |_, _| ());
    let is_end = |record: &WalRecord| matches!(record.body, RecordBody::LogicalMessage(_));
    let upto = |mut records: Vec<WalRecord>| {
        records.truncate(records.iter().position(is_end).unwrap_or(records.len()));
        records
    };
    run.map(|_| upto(sink.records)).map_err(|error| error.to_string())
}

/// What we write: all records, and the place of the first of the statement.
fn simulated(statement: &Statement, version: PgVersion) -> (Vec<WalRecord>, usize) {
    let records = play(&scenario_of(&statement.given, &statement.steps), version);
    let records = records.unwrap_or_else(|error| panic!("{}: {error}", statement.name));
    let is_commit = |record: &WalRecord| matches!(record.body, RecordBody::Commit(_));
    let first = if statement.given.is_empty() { 0 } else { records.iter().position(is_commit).unwrap() + 1 };
    (records, first)
}

/// Its lines.
fn lines_of(statement: &Statement, version: PgVersion) -> String {
    let mut lines = StatementLines::new(version);
    let (records, first) = simulated(statement, version);
    records[..first].iter().for_each(|record| lines.pass(record));
    records[first..].iter().for_each(|record| lines.push(record));
    lines.take()
}

/// Compares line by line.
#[test]
fn statements_write_what_real_servers_wrote() {
    let only = std::env::var("STATEMENT").ok();
    let mut wrong = Vec::new();
    for statement in statements().iter().filter(|statement| only.as_ref().is_none_or(|only| *only == statement.name)) {
        for (version, real) in recorded(&statement.name) {
            let ours = lines_of(statement, version);
            if let Some((number, ours, real)) = difference(&ours, &real) {
                wrong.push(format!("{} on {version}, line {number}:\n  ours {ours}\n  real {real}", statement.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// The first line that differs.
fn difference<'a>(ours: &'a str, real: &'a str) -> Option<(usize, &'a str, &'a str)> {
    let (mut ours, mut real) = (ours.lines(), real.lines());
    for number in 1.. {
        match (ours.next(), real.next()) {
            (None, None) => return None,
            (ours, real) if ours == real => {}
            (ours, real) => return Some((number, ours.unwrap_or("nothing"), real.unwrap_or("nothing"))),
        }
    }
    None
}

/// The readable table: statement × version, with what a commit record's messages and the other records add up to.
#[test]
fn statements_add_up_as_in_the_table() {
    let mut table = "statement\tversions\tcatcache\trelcache\tsnapshot\trelsync\tNEW_CID\tINVALIDATIONS\n".to_owned();
    for statement in statements() {
        let mut groups: Vec<([usize; 6], Vec<String>)> = Vec::new();
        for version in recorded(&statement.name).into_keys() {
            let (records, first) = simulated(&statement, version);
            let counts = counts(&records[first..]);
            match groups.iter_mut().find(|(known, _)| *known == counts) {
                Some((_, versions)) => versions.push(version.to_string()),
                None => groups.push((counts, vec![version.to_string()])),
            }
        }
        for (counts, versions) in groups {
            let counts = counts.map(|count| count.to_string()).join("\t");
            table.push_str(&format!("{}\t{}\t{counts}\n", statement.name, versions.join(" ")));
        }
    }
    let golden = std::fs::read_to_string(folder().join("statements.tsv")).unwrap();
    if let Some((number, ours, real)) = difference(&table, &golden) {
        panic!("line {number}:\n  ours {ours}\n  real {real}");
    }
}

/// Messages of commit records by kind, NEW_CID records, INVALIDATIONS records.
fn counts(records: &[WalRecord]) -> [usize; 6] {
    let mut counts = [0; 6];
    for record in records {
        match &record.body {
            RecordBody::NewCid(_) => counts[4] += 1,
            RecordBody::XactInvalidations(_) => counts[5] += 1,
            RecordBody::Commit(commit) => {
                for message in &commit.messages {
                    match message.kind() {
                        InvalidationKind::Catcache | InvalidationKind::Catalog => counts[0] += 1,
                        InvalidationKind::Relcache => counts[1] += 1,
                        InvalidationKind::Snapshot => counts[2] += 1,
                        InvalidationKind::Relsync => counts[3] += 1,
                        other => panic!("{other:?} in a commit record"),
                    }
                }
            }
            _ => {}
        }
    }
    counts
}

const TABLE: &str = "{ create_table = { table = 't', columns = ['id int primary key', 'b text', 'c int default 5'] } },\n\
                     { create_view = { view = 'v', table = 't' } },\n{ create_publication = { publication = 'p', tables = ['t'] } },\n\
                     { comment = { table = 't' } },\n{ grant = { table = 't', role = 'bob' } },\n\
                     { create_type = { type = 'e', enum = ['x'] } }\n";

/// What a savepoint took away is there again, rows of all catalogs and names: it can be taken away once more, with the same messages.
#[test]
fn what_was_rolled_back_is_there_again() {
    let drops = "{ drop_table = { table = 't', cascade = true } }, { drop_publication = { publication = 'p' } }, \
                 { drop_type = { type = 'e' } }";
    let changes = format!(
        "{{ alter_column_type = {{ table = 't', column = 'c', type = 'bigint' }} }}, {{ rename_table = {{ table = 't', to = 't2' }} }}, \
         {{ vacuum_full = {{ table = 'pg_class' }} }}, {{ savepoint = 'b' }}, {{ rename_table = {{ table = 't2', to = 't' }} }}, {drops}"
    );
    let twice = format!("{{ savepoint = 'a' }}, {changes}, {{ rollback_to = 'a' }}, {drops}\n");
    for version in PgVersion::ALL {
        let of = |steps: &str| {
            let records = play(&scenario_of(TABLE, steps), version).unwrap();
            let last = records.iter().rev().find_map(|record| match &record.body {
                RecordBody::Commit(commit) => Some((commit.messages.clone(), commit.dropped_locators.clone())),
                _ => None,
            });
            last.unwrap()
        };
        assert_eq!(of(&twice), of(&format!("{drops}\n")), "PostgreSQL {version}");
    }
}

/// Statements that PostgreSQL refuses are refused, with what to do.
#[test]
fn refusals_say_why() {
    let refused = [
        ("{ drop_table = { table = 't' } }", "depends on"),
        ("{ drop_index = { index = 't_pkey' } }", "drop that instead"),
        ("{ drop_view = { view = 't' } }", "'t' is no view"),
        ("{ drop_column = { table = 't', column = 'z' } }", "no column 'z'"),
        ("{ create_view = { view = 'v', table = 't' } }", "there already"),
        ("{ add_constraint = { table = 't', primary_key = 'b' } }", "already"),
        ("{ drop_not_null = { table = 't', column = 'id' } }", "primary key"),
        ("{ rename_column = { table = 't', column = 'b', to = 'c' } }", "already"),
        ("{ drop_constraint = { table = 't', constraint = 'x' } }", "no constraint 'x'"),
        ("{ revoke = { table = 't', role = 'eve' } }", "granted nothing"),
        ("{ alter_publication = { publication = 'p', add = ['t'] } }", "in the publication already"),
        ("{ detach_partition = { table = 't', partition = 't' } }", "no partition of"),
        ("{ refresh_materialized_view = { view = 'v' } }", "no materialized view"),
    ];
    for (step, why) in refused {
        let error = play(&scenario_of(TABLE, &format!("{step}\n")), PgVersion::V18).expect_err(step);
        assert!(error.contains(why), "{step}: {error}");
    }
}
