//! `wal_level = replica`: a standby gets what it needs, and nothing that only decoding would.

use pg_types::{PgVersion, RecordBody, WalRecord};
use primary_core::rng::seeded;
use primary_core::{Engine, MemorySink, Overrides, Scenario, Step, VirtualClock};

/// A bit of everything that the level changes.
const SCENARIO: &str = "name = 'level'\nstory = 'DDL, rows, savepoints, TRUNCATE, a catalog vacuumed.'\nseed = 1\n\
    [server]\nwal_level = 'LEVEL'\n\
    [[tables]]\nname = 't'\ncolumns = ['id int']\nrows = 20\n\
    [[actors]]\nname = 'a'\ntransactions = 1\nsteps = [\
    { savepoint = 's' }, { insert = { table = 't' } }, { release = 's' }, { commit = {} }, \
    { update = { table = 't' } }, { delete = { table = 't' } }, { copy = { table = 't', rows = 3 } }, { commit = {} }, \
    { create_table = { table = 'd', columns = ['id int'] } }, { truncate = { table = 't' } }, { commit = {} }, \
    { drop_table = { table = 'd' } }, { commit = {} }, { vacuum = { table = 'pg_class' } }]\n";

/// The records of the scenario at a level.
fn records(level: &str, version: PgVersion) -> Vec<WalRecord> {
    let plan = Scenario::parse("level", &SCENARIO.replace("LEVEL", level)).unwrap().plan(&Overrides::new()).unwrap();
    let mut engine = Engine::new(plan, version).unwrap();
    let (mut clock, mut rng, mut sink) = (VirtualClock::default(), seeded(1), MemorySink::new(version));
    while engine.step(&mut clock, &mut rng, &mut sink).unwrap() != Step::Done {}
    sink.records
}

/// Whether a record, or something in it, is there for decoding alone.
fn is_for_decoding(record: &WalRecord) -> bool {
    use RecordBody as B;
    record.top_xid.is_valid()
        || match &record.body {
            B::XactInvalidations(_) | B::NewCid(_) | B::Truncate(_) | B::Assignment(_) => true,
            B::Insert(insert) => insert.logical,
            B::MultiInsert(insert) => insert.logical,
            B::Update(update) => update.logical,
            B::Prune(prune) => prune.is_catalog,
            B::Commit(commit) => commit.messages.is_empty() && commit.db.is_valid(),
            B::ParameterChange(change) => change.wal_level > 1,
            B::Checkpoint(checkpoint) => checkpoint.wal_level > 1,
            _ => false,
        }
}

#[test]
fn at_replica_nothing_is_logged_for_decoding_alone_and_nothing_else_is_missing() {
    for version in [PgVersion::V13, PgVersion::V14, PgVersion::V16, PgVersion::V18] {
        let (logical, replica) = (records("logical", version), records("replica", version));
        let left = replica.iter().find(|record| is_for_decoding(record));
        assert!(left.is_none(), "{version}: {left:?}");
        assert!(logical.iter().filter(|record| is_for_decoding(record)).count() > 20, "{version}");
        // The same records in the same order but for those; their kinds tell, for some are shorter, so that pages differ.
        let kinds = |records: &[WalRecord]| {
            let kept = records.iter().filter(|record| {
                use RecordBody as B;
                !matches!(record.body, B::XactInvalidations(_) | B::NewCid(_) | B::Truncate(_) | B::Assignment(_))
            });
            kept.map(|record| (record.xid, std::mem::discriminant(&record.body))).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&logical), kinds(&replica), "{version}");
        let messages = |records: &[WalRecord]| {
            let commits = records
                .iter()
                .map(|record| if let RecordBody::Commit(commit) = &record.body { commit.messages.len() } else { 0 });
            commits.sum::<usize>()
        };
        assert!(messages(&replica) > 0 && messages(&replica) == messages(&logical), "a standby's sessions need them, too");
    }
}

#[test]
fn a_level_that_there_is_not_and_a_logical_consumer_at_replica_are_told_with_their_place() {
    let wrong = SCENARIO.replace("LEVEL", "minimal");
    let error = Scenario::parse("level", &wrong).unwrap_err().to_string();
    assert!(error.contains("minimal") && error.contains("replica"), "{error}");
    let consumed = format!("{}[[consumers]]\nslot = 'c'\nkind = 'logical'\n", SCENARIO.replace("LEVEL", "replica"));
    let error = Scenario::parse("level", &consumed).and_then(|s| s.plan(&Overrides::new())).unwrap_err().to_string();
    assert!(error.contains("nothing can be decoded") && error.contains("wal_level"), "{error}");
}
