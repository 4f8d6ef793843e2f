//! The records of a statement are those that PostgreSQL wrote for it: 18 by the files of `tests/golden`, 13 to 18 by recorded logs.

use std::collections::BTreeMap;
use std::path::Path;

use pg_types::{CommandId, InvalidationMessage, Oid, PgVersion, RecordBody, WalRecord, Xid};
use pg_wal::{WalDir, WalReader};
use primary_core::rng::seeded;
use primary_core::{MemorySink, Overrides, Scenario, VirtualClock};

/// Numbers things in the order in which they appear.
#[derive(Default)]
struct Names(BTreeMap<u32, usize>);

impl Names {
    /// The name of an oid or file number: itself if it is the system's.
    fn oid(&mut self, oid: u32) -> String {
        if oid < Oid::FIRST_NORMAL.0 { oid.to_string() } else { self.number('r', oid) }
    }

    /// The name of an xid.
    fn xid(&mut self, xid: Xid) -> String {
        if xid.is_valid() { self.number('x', xid.0) } else { "-".to_owned() }
    }

    fn number(&mut self, letter: char, id: u32) -> String {
        let next = self.0.len() + 1;
        format!("{letter}{}", self.0.entry(id).or_insert(next))
    }

    /// Messages with commas.
    fn messages(&mut self, messages: &[InvalidationMessage]) -> String {
        let texts = messages.iter().map(|message| match *message {
            InvalidationMessage::Catcache { cache_id, .. } => format!("catcache {cache_id}"),
            InvalidationMessage::Relcache { rel, .. } => format!("relcache {}", self.oid(rel.0)),
            InvalidationMessage::Snapshot { rel, .. } => format!("snapshot {}", self.oid(rel.0)),
            other => panic!("{other:?}"),
        });
        texts.collect::<Vec<_>>().join(", ")
    }
}

fn cid(cid: CommandId) -> String {
    if cid.is_valid() { cid.0.to_string() } else { "-".to_owned() }
}

/// A record's line, if the golden files have one for its kind.
fn line(record: &WalRecord, oids: &mut Names, xids: &mut Names) -> Option<String> {
    use RecordBody as B;
    let dropped = |oids: &mut Names, files: &[pg_types::RelFileLocator]| {
        files.iter().map(|file| oids.oid(file.rel)).collect::<Vec<_>>().join(" ")
    };
    let subs = |xids: &mut Names, subs: &[Xid]| subs.iter().map(|xid| xids.xid(*xid)).collect::<Vec<_>>().join(" ");
    let text = match &record.body {
        B::StandbyLocks(locks) => format!("STANDBY_LOCK {}", oids.oid(locks[0].rel.0)),
        B::SmgrCreate { target, .. } => format!("SMGR_CREATE {}", oids.oid(target.rel)),
        B::NewCid(r) => format!("NEW_CID {} {} {} {}", oids.oid(r.target.rel), cid(r.cmin), cid(r.cmax), cid(r.combocid)),
        B::Insert(r) => format!("INSERT {}", oids.oid(r.target.rel)),
        B::Update(r) => format!("UPDATE {}", oids.oid(r.target.rel)),
        B::Inplace(r) => format!("INPLACE {}: {}", oids.oid(r.target.rel), oids.messages(&r.messages)),
        B::Truncate(r) => {
            let relids: Vec<String> = r.relids.iter().map(|oid| oids.oid(oid.0)).collect();
            format!("TRUNCATE {}", relids.join(" "))
        }
        B::XactInvalidations(messages) => format!("INVALIDATIONS {}", oids.messages(messages)),
        B::Assignment(r) => format!("ASSIGNMENT {}: {}", xids.xid(r.top_xid), subs(xids, &r.subxids)),
        B::Commit(r) => {
            let (files, subs) = (dropped(oids, &r.dropped_locators), subs(xids, &r.subxids));
            format!("COMMIT drops {files}; subs {subs}; {}", oids.messages(&r.messages))
        }
        B::Abort(r) => format!("ABORT drops {}; subs {};", dropped(oids, &r.dropped_locators), subs(xids, &r.subxids)),
        _ => return None,
    };
    // The golden lines name their own xid last, as the script that made them did.
    Some(format!("{} {}", xids.xid(record.xid), text.trim_end()))
}

/// Runs a scenario on 18.
fn run(scenario: &str) -> Vec<WalRecord> {
    run_as(PgVersion::V18, scenario)
}

/// Runs a scenario.
fn run_as(version: PgVersion, scenario: &str) -> Vec<WalRecord> {
    let mut sink = MemorySink::new(version);
    let scenario = Scenario::parse("test", scenario).expect("a scenario");
    scenario.run(&Overrides::new(), &mut VirtualClock::default(), &mut seeded(1), &mut sink, |_, _| ()).expect("a run");
    sink.records
}

/// The lines of some records.
fn lines_of<'a>(records: impl Iterator<Item = &'a WalRecord>) -> String {
    let (mut oids, mut xids) = (Names::default(), Names::default());
    records.filter_map(|record| line(record, &mut oids, &mut xids)).map(|line| line + "\n").collect()
}

/// Runs a scenario and gives its lines.
fn lines(scenario: &str) -> String {
    lines_of(run(scenario).iter())
}

/// A scenario with one actor that runs one transaction.
fn transaction(tables: &str, steps: &str) -> String {
    format!(
        "name = 'test'\nstory = 'A statement.'\nseed = 1\n{tables}\n[[actors]]\nname = 'a'\ntransactions = 1\nsteps = [{steps}]\n"
    )
}

/// Runs a scenario and compares.
fn check(golden: &str, scenario: &str) {
    check_lines(golden, &lines(scenario));
}

/// Compares line by line, naming the first that differs.
fn check_lines(golden: &str, ours: &str) {
    for (number, (ours, real)) in (1..).zip(ours.lines().zip(golden.lines())) {
        assert_eq!(ours, real, "line {number}");
    }
    assert_eq!(ours.lines().count(), golden.lines().count());
}

const PARTITIONED: &str = "[[tables]]\nname = 'pt'\npartitions = 1\ncolumns = ['k int', 'part int', 'c1 text', 'c2 text', \
                           'c3 text', 'c4 int', 'c5 int', 'c6 int', 'c7 int', 'c8 text', 'c9 text', 'c10 text', 'c11 int']\n";

#[test]
fn create_table_with_sequence_key_and_two_indexes_in_every_version() {
    let steps = "{ create_table = { table = 'w9', columns = ['id serial primary key', 'a int', 'b text', \
                 'c timestamptz default now()'] } }, { create_index = { table = 'w9', column = 'a' } }, \
                 { create_index = { table = 'w9', column = 'c' } }";
    let golden = [
        (PgVersion::V13, include_str!("golden/create_13.txt")),
        (PgVersion::V14, include_str!("golden/create_14.txt")),
        (PgVersion::V15, include_str!("golden/create_15.txt")),
        (PgVersion::V16, include_str!("golden/create_16.txt")),
        (PgVersion::V17, include_str!("golden/create_17.txt")),
        (PgVersion::V18, include_str!("golden/create_18.txt")),
    ];
    for (version, golden) in golden {
        check_lines(golden, &lines_of(run_as(version, &transaction("", steps)).iter()));
    }
}

#[test]
fn create_partition() {
    let columns = "['k int', 'part int', 'c1 text', 'c2 text', 'c3 text', 'c4 int', 'c5 int', 'c6 int', 'c7 int', 'c8 text', \
                   'c9 text', 'c10 text', 'c11 int']";
    let steps = format!("{{ create_table = {{ table = 'new', partition_of = 'pt', columns = {columns} }} }}");
    check(include_str!("golden/partition.txt"), &transaction(PARTITIONED, &steps));
}

#[test]
fn truncate_of_partitions() {
    let tables = PARTITIONED.replace("partitions = 1", "partitions = 2");
    check(include_str!("golden/truncate.txt"), &transaction(&tables, "{ truncate = { table = 'pt' } }"));
}

#[test]
fn truncate_with_a_key() {
    let tables = "[[tables]]\nname = 'pk'\ncolumns = ['id int primary key', 'b text']\n";
    check(include_str!("golden/truncate_key.txt"), &transaction(tables, "{ truncate = { table = 'pk' } }"));
}

#[test]
fn grants_and_a_new_column() {
    let tables = "[[tables]]\nname = 't'\ncolumns = ['id int', 'a int']\n";
    let steps = "{ grant = { table = 't', role = 'bob' } }, { grant = { table = 't', role = 'bob' } }, \
                 { add_column = { table = 't', column = 'd int' } }";
    check(include_str!("golden/grant_alter.txt"), &transaction(tables, steps));
}

#[test]
fn savepoints_released_and_rolled_back() {
    let tables = "[[tables]]\nname = 'warm'\ncolumns = ['a int']\n[[tables]]\nname = 'granted'\ncolumns = ['a int']\n";
    let columns = "['a int', 'b int']";
    let steps = format!(
        "{{ insert = {{ table = 'warm' }} }}, {{ savepoint = 'a' }}, {{ grant = {{ table = 'granted', role = 'bob' }} }}, \
         {{ savepoint = 'b' }}, {{ create_table = {{ table = 's2', columns = {columns} }} }}, {{ rollback_to = 'b' }}, \
         {{ create_table = {{ table = 's3', columns = {columns} }} }}, {{ release = 'b' }}, {{ savepoint = 'c' }}, \
         {{ insert = {{ table = 'warm' }} }}, {{ rollback_to = 'a' }}, {{ insert = {{ table = 'warm' }} }}"
    );
    // In the real one bob had a grant before, so that no row of pg_shdepend was added.
    let first = "[[actors]]\nname = 'before'\ntransactions = 1\nsteps = [{ grant = { table = 'granted', role = 'bob' } }]\n";
    let scenario = transaction(&format!("{tables}{first}"), &steps).replace("name = 'a'\n", "name = 'a'\nafter = ['before']\n");
    check_lines(include_str!("golden/savepoints.txt"), &lines_after_first_commit(&scenario));
}

/// Lines behind the first commit, numbered anew.
fn lines_after_first_commit(scenario: &str) -> String {
    let records = run(scenario);
    lines_of(records.iter().skip_while(|record| !matches!(record.body, RecordBody::Commit(_))).skip(1))
}

#[test]
fn a_first_xid_inside_a_savepoint_is_assigned_at_once() {
    let steps = "{ savepoint = 'a' }, { insert = { table = 'warm' } }, { savepoint = 'b' }, { insert = { table = 'warm' } }";
    let tables = "[[tables]]\nname = 'warm'\ncolumns = ['a int']\n";
    check(include_str!("golden/first_xid_in_savepoint.txt"), &transaction(tables, steps));
}

#[test]
fn every_64_subtransactions_are_assigned() {
    let insert = "{ insert = { table = 'warm' } }";
    let nested: String = (0..130).map(|n| format!(", {{ savepoint = 's{n}' }}, {insert}")).collect();
    let tables = "[[tables]]\nname = 'warm'\ncolumns = ['a int']\n";
    check(include_str!("golden/many_savepoints.txt"), &transaction(tables, &format!("{insert}{nested}")));
}

/// The recorded logs of 13, 15, 16 and 18 have a TRUNCATE of a parent of 20 partitions with TOAST tables and keys.
#[test]
fn truncate_of_twenty_partitions_in_every_recorded_version() {
    for version in [PgVersion::V13, PgVersion::V15, PgVersion::V16, PgVersion::V18] {
        let mut recorded = recorded_log(version);
        let is_it = |record: &&WalRecord| matches!(&record.body, RecordBody::Truncate(r) if r.relids.len() == 21);
        let xid = recorded.iter().find(is_it).expect("the TRUNCATE").xid;
        let ours = run_as(version, &truncate_of_twenty());
        let ours_xid = ours.iter().find(is_it).expect("our TRUNCATE").xid;
        let of = |records: &[WalRecord], xid| lines_of(records.iter().filter(|record| record.xid == xid));
        // VACUUM FULL had given pg_class a new file there, and all catalog rows that TRUNCATE changes are pg_class's.
        let first = recorded.iter().find(|record| record.xid == xid && matches!(record.body, RecordBody::NewCid(_)));
        let Some(RecordBody::NewCid(first)) = first.map(|record| &record.body) else { panic!("no NEW_CID") };
        let file = first.target.rel;
        for record in &mut recorded {
            match &mut record.body {
                RecordBody::NewCid(r) if r.target.rel == file => r.target.rel = 1259,
                RecordBody::Update(r) if r.target.rel == file => r.target.rel = 1259,
                RecordBody::Inplace(r) if r.target.rel == file => r.target.rel = 1259,
                _ => {}
            }
        }
        check_lines(&of(&recorded, xid), &of(&ours, ours_xid));
    }
}

/// The same where there is no recorded log.
#[test]
fn truncate_of_twenty_partitions_in_the_other_versions() {
    let golden = [
        (PgVersion::V14, include_str!("golden/truncate_20_14.txt")),
        (PgVersion::V17, include_str!("golden/truncate_20_17.txt")),
    ];
    for (version, golden) in golden {
        check_lines(golden, &lines_of(run_as(version, &truncate_of_twenty()).iter()));
    }
}

/// TRUNCATE of a parent of 20 partitions with TOAST tables and keys.
fn truncate_of_twenty() -> String {
    let tables = "[[tables]]\nname = 'part'\npartitions = 20\ncolumns = ['id int primary key', 'note text']\n";
    transaction(tables, "{ truncate = { table = 'part' } }")
}

/// All records of a recorded log.
fn recorded_log(version: PgVersion) -> Vec<WalRecord> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../shared/pg-wal/tests/fixtures/pg{version}"));
    let dir = tempfile::tempdir().expect("make a folder");
    let file = std::fs::File::open(folder.join("wal.tar.zst")).expect("open the archive");
    let unpacked = zstd::Decoder::new(file).and_then(|tar| tar::Archive::new(tar).unpack(dir.path()));
    unpacked.expect("unpack the archive");
    let wal = WalDir::open(dir.path(), None).expect("open the log");
    let mut reader = WalReader::open(&wal, None).expect("open the reader");
    let mut records = Vec::new();
    while let Some(record) = reader.next().expect("read a record") {
        records.push(record.decode(wal.profile()).expect("decode a record"));
    }
    records
}
