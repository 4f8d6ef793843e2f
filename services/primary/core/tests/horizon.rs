//! VACUUM leaves what a consumer of the log still needs: the engine is told by `Engine::set_horizon` and, of catalogs alone, by
//! `Engine::set_catalog_horizon`.

use pg_types::{PgVersion, RecordBody, Xid};
use primary_core::rng::seeded;
use primary_core::{Engine, MemorySink, Overrides, Scenario, Step, VirtualClock};

const SCENARIO: &str = "name = 'horizon'\nstory = 'Rows that a standby still reads.'\nseed = 1\n\
    [[tables]]\nname = 't'\ncolumns = ['id int']\nrows = 20\n\
    [[actors]]\nname = 'a'\ntransactions = 1\nsteps = [{ delete = { table = 't', rows = 5 } }, { commit = {} }, \
    { vacuum = { table = 't' } }]\n";

const CATALOG: &str = "name = 'horizon'\nstory = 'Rows that a decoder still reads.'\nseed = 1\n\
    [[actors]]\nname = 'a'\ntransactions = 1\nsteps = [{ create_table = { table = 'd', columns = ['id int'] } }, { commit = {} }, \
    { drop_table = { table = 'd' } }, { commit = {} }, { vacuum = { table = 'pg_class' } }]\n";

/// Rows that VACUUM removed while consumers needed everything from `xmin` on, and rows of catalogs from `catalog_xmin` on.
fn removed(scenario: &str, xmin: Xid, catalog_xmin: Xid) -> u16 {
    let plan = Scenario::parse("horizon", scenario).unwrap().plan(&Overrides::new()).unwrap();
    let mut engine = Engine::new(plan, PgVersion::V18).unwrap();
    let (mut clock, mut rng, mut sink) = (VirtualClock::default(), seeded(1), MemorySink::new(PgVersion::V18));
    engine.set_horizon(xmin);
    engine.set_catalog_horizon(catalog_xmin);
    while engine.step(&mut clock, &mut rng, &mut sink).unwrap() != Step::Done {}
    let pruned = sink.records.iter().filter_map(|record| match &record.body {
        RecordBody::Prune(prune) => Some(prune.unused),
        _ => None,
    });
    pruned.sum()
}

#[test]
fn a_consumer_holds_vacuum_back() {
    let (deleter, removed) = (Xid(731), |xmin| removed(SCENARIO, xmin, Xid::INVALID));
    assert_eq!(removed(Xid::INVALID), 5, "nobody told anything");
    assert_eq!(removed(deleter), 0, "the deleter itself may be running for the consumer");
    assert_eq!(removed(deleter.next()), 5);
    assert_eq!(removed(Xid(700)), 0);
}

#[test]
fn a_decoder_holds_back_rows_of_catalogs_alone() {
    let (none, dropper) = (Xid::INVALID, Xid(732));
    assert_eq!(removed(CATALOG, none, none), 1, "the row of the table");
    assert_eq!(removed(CATALOG, none, dropper), 0, "the dropper may be running where the decoder is");
    assert_eq!(removed(CATALOG, none, dropper.next()), 1);
    assert_eq!(removed(CATALOG, dropper, none), 0, "a standby reads catalogs, too");
    assert_eq!(removed(SCENARIO, none, Xid(700)), 5, "rows of users' tables are not held");
}
