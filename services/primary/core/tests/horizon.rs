//! VACUUM leaves what a consumer of the log still needs: the engine is told by `Engine::set_horizon`.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use pg_types::{PgVersion, RecordBody, Xid};
use primary_core::rng::seeded;
use primary_core::{Engine, MemorySink, Overrides, Scenario, Step, VirtualClock};

const SCENARIO: &str = "name = 'horizon'\nstory = 'Rows that a standby still reads.'\nseed = 1\n\
    [[tables]]\nname = 't'\ncolumns = ['id int']\nrows = 20\n\
    [[actors]]\nname = 'a'\ntransactions = 1\nsteps = [{ delete = { table = 't', rows = 5 } }, { commit = {} }, \
    { vacuum = { table = 't' } }]\n";

/// Rows that VACUUM removed while a consumer needed everything from `xmin` on.
fn removed(xmin: Xid) -> u16 {
    let plan = Scenario::parse("horizon", SCENARIO).unwrap().plan(&Overrides::new()).unwrap();
    let mut engine = Engine::new(plan, PgVersion::V18).unwrap();
    let (mut clock, mut rng, mut sink) = (VirtualClock::default(), seeded(1), MemorySink::new(PgVersion::V18));
    engine.set_horizon(xmin);
    while engine.step(&mut clock, &mut rng, &mut sink).unwrap() != Step::Done {}
    let pruned = sink.records.iter().filter_map(|record| match &record.body {
        RecordBody::Prune(prune) => Some(prune.unused),
        _ => None,
    });
    pruned.sum()
}

#[test]
fn a_consumer_holds_vacuum_back() {
    let deleter = Xid(731);
    assert_eq!(removed(Xid::INVALID), 5, "nobody told anything");
    assert_eq!(removed(deleter), 0, "the deleter itself may be running for the consumer");
    assert_eq!(removed(deleter.next()), 5);
    assert_eq!(removed(Xid(700)), 0);
}
