//! Every statement on objects gives the records that PostgreSQL 13 to 18 wrote for it: `tests/golden/statements.toml` says them
//! as SQL and as steps, `tests/golden/statements` has what real servers logged (by `record.py`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::support::statement_lines::StatementLines;
use pg_types::{InvalidationKind, PgVersion, RecordBody, WalRecord};
use pg_wal::{WalDir, WalReader};
use primary_core::rng::seeded;
use primary_core::{MemorySink, Overrides, Scenario, VirtualClock};
use serde::Deserialize;

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

/// The DDL of the recorded logs, transaction by transaction: commands, messages, locks, files and rows of those that change the
/// catalog, as servers of 13, 15, 16 and 18 wrote them.
#[test]
fn recorded_logs_come_out_of_their_statements() {
    let scenario = std::fs::read_to_string(folder().join("fixture.toml")).unwrap();
    for version in [PgVersion::V13, PgVersion::V15, PgVersion::V16, PgVersion::V18] {
        let mut real = catalog_transactions(version, &recorded_log(version));
        // The logs begin before: CREATE TYPE … AS ENUM comes first.
        real.drain(..real.iter().position(|lines| lines.contains("INSERT pg_enum")).unwrap());
        let ours = catalog_transactions(version, &play(&scenario, version).unwrap());
        for (number, (ours, real)) in (1..).zip(ours.iter().zip(&real)) {
            if let Some((line, ours, real)) = difference(ours, real) {
                panic!("transaction {number} of {version}, line {line}:\n  ours {ours}\n  real {real}");
            }
        }
        assert_eq!(ours.len(), real.len(), "transactions of {version}");
    }
}

/// The lines of each transaction that changed the catalog, in the order of their ends. Not compared are rows of pg_statistic, which
/// depend on values.
fn catalog_transactions(version: PgVersion, records: &[WalRecord]) -> Vec<String> {
    let mut tops: BTreeMap<u32, u32> = BTreeMap::new();
    for record in records {
        if let RecordBody::Commit(commit) = &record.body {
            tops.extend(commit.subxids.iter().map(|sub| (sub.0, record.xid.0)));
        }
    }
    let mut open: BTreeMap<u32, Vec<&WalRecord>> = BTreeMap::new();
    let (mut lines, mut transactions) = (StatementLines::new(version), Vec::new());
    for record in records {
        let top = tops.get(&record.xid.0).copied().unwrap_or(record.xid.0);
        open.entry(top).or_default().push(record);
        let is_end = matches!(record.body, RecordBody::Commit(_) | RecordBody::Abort(_) | RecordBody::Prepare(_));
        if is_end && top == record.xid.0 && record.xid.is_valid() {
            open.remove(&top).unwrap_or_default().into_iter().for_each(|record| lines.push(record));
            let text = lines.take();
            if text.contains(" pg_") && !text.contains("pg_statistic") {
                transactions.push(comparable(&text));
            }
        }
    }
    transactions
}

/// Lines without what is not modelled: mappings that a rewritten catalog keeps for slots; and, for a simulated transaction changes
/// no rows of its own, whether a user's row is new or changed, and the combo command ids that such rows take (those of catalog rows
/// are numbered anew).
fn comparable(text: &str) -> String {
    let (mut combos, mut lines) = (Vec::new(), String::new());
    for line in text.lines().filter(|line| !line.starts_with("REWRITE")) {
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        if words.len() > 4 && words[2..5].iter().all(|word| word.parse::<u32>().is_ok()) {
            let known = combos.iter().position(|combo| *combo == words[4]);
            words[4] = known.unwrap_or(combos.len()).to_string();
            if known.is_none() {
                combos.push(line.split(' ').nth(4).unwrap().to_owned());
            }
        }
        if line.starts_with("UPDATE r") {
            words[0] = "INSERT".to_owned();
        }
        lines.push_str(&(words.join(" ") + "\n"));
    }
    lines
}

/// All records of a recorded log.
fn recorded_log(version: PgVersion) -> Vec<WalRecord> {
    let fixture = format!("../../shared/pg-wal/tests/fixtures/pg{version}/wal.tar.zst");
    let file = std::fs::File::open(Path::new(env!("CARGO_MANIFEST_DIR")).join(fixture)).unwrap();
    let dir = tempfile::tempdir().unwrap();
    zstd::Decoder::new(file).and_then(|tar| tar::Archive::new(tar).unpack(dir.path())).unwrap();
    let wal = WalDir::open(dir.path(), None).unwrap();
    let mut reader = WalReader::open(&wal, None).unwrap();
    let mut records = Vec::new();
    while let Some(record) = reader.next().unwrap() {
        records.push(record.decode(wal.profile()).unwrap());
    }
    records
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

/// Messages of commit records by kind, NEW_CID records, INVALIDATIONS records; as in the lines, what has no xid is left out.
fn counts(records: &[WalRecord]) -> [usize; 6] {
    let mut counts = [0; 6];
    for record in records {
        match &record.body {
            RecordBody::NewCid(_) => counts[4] += 1,
            RecordBody::XactInvalidations(_) if record.xid.is_valid() => counts[5] += 1,
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

/// What a savepoint took away is there again, rows of all catalogs and names: it can be taken away once more, with the same
/// messages.
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
