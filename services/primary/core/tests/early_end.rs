//! A run that is ended early leaves a log as good as any: open transactions rolled back, nothing running, a switch; and another
//! follows.

use pg_types::{PgVersion, RecordBody, WalRecord};
use primary_core::{Engine, MemorySink, Overrides, PrimaryError, Scenario, Step, VirtualClock, rng};

/// Ten sessions with transactions that stay open.
const LONG: &str = r#"
name = "long"
story = "s"
seed = 3
duration = "10s"
[server]
max_connections = 50
[[tables]]
name = "t"
columns = ["id int"]
[[actors]]
name = "long"
sessions = 10
every = "10ms"
steps = [{ insert = { table = "t" } }, { savepoint = "s" }, { insert = { table = "t" } }, { wait = { from = "0s", to = "1s" } }]
"#;

/// Plays `steps` steps and ends; the engine and what it wrote.
fn ended_after(scenario: &Scenario, steps: usize, sink: &mut MemorySink) -> Engine {
    let mut engine = Engine::new(scenario.plan(&Overrides::new()).unwrap(), PgVersion::V18).unwrap();
    let (mut clock, mut rng) = (VirtualClock::default(), rng::seeded(1));
    for _ in 0..steps {
        if !matches!(engine.step(&mut clock, &mut rng, sink), Ok(step) if step != Step::Done) {
            break;
        }
    }
    engine.end_early(&mut clock, &mut rng, sink).unwrap();
    engine
}

/// Begun and not ended transactions at the end of `records`.
fn open_at_end(records: &[WalRecord]) -> Vec<u32> {
    let mut open = std::collections::BTreeSet::new();
    for record in records {
        match &record.body {
            RecordBody::Commit(_) | RecordBody::Abort(_) => drop(open.remove(&record.xid.0)),
            RecordBody::Assignment(_) => {}
            _ if record.xid.is_valid() && !record.top_xid.is_valid() => drop(open.insert(record.xid.0)),
            _ => {}
        }
    }
    // Subtransactions end with their top.
    let subs: std::collections::BTreeSet<u32> = records.iter().filter(|r| r.top_xid.is_valid()).map(|r| r.xid.0).collect();
    open.difference(&subs).copied().collect()
}

#[test]
fn wherever_a_run_is_ended_its_transactions_are_rolled_back_and_another_goes_on() {
    let scenario = Scenario::parse("text", LONG).unwrap();
    for steps in [1, 2, 15, 40, 41, 42, 200, 1000] {
        let mut sink = MemorySink::new(PgVersion::V18);
        let first = ended_after(&scenario, steps, &mut sink);
        assert_eq!(open_at_end(&sink.records), Vec::<u32>::new(), "after {steps}");
        let [.., running, switch] = sink.records.as_slice() else { panic!("nothing was written") };
        assert!(matches!(&running.body, RecordBody::RunningXacts(r) if r.xids.is_empty() && !r.subxid_overflow));
        assert!(matches!(switch.body, RecordBody::Switch));

        let mut again = MemorySink::new(PgVersion::V18);
        ended_after(&scenario, steps, &mut again);
        assert_eq!(sink.records, again.records, "the end is repeatable");

        let plan = scenario.plan(&Overrides::new()).unwrap();
        let mut next = Engine::continuing(plan, PgVersion::V18, first.continuation()).unwrap();
        next.step(&mut VirtualClock::default(), &mut rng::seeded(1), &mut sink).unwrap();
        let checkpoint = sink.records.iter().rev().find_map(|r| match &r.body {
            RecordBody::Checkpoint(checkpoint) => Some(checkpoint),
            _ => None,
        });
        let newest = sink.records.iter().map(|r| r.xid.0).max().unwrap();
        assert!(checkpoint.unwrap().next_xid.0 > u64::from(newest), "xids go on");
    }
}

#[test]
fn a_refused_statement_leaves_its_transaction_to_be_rolled_back() {
    let text = LONG.replace(r#"{ savepoint = "s" }"#, r#"{ rollback_to = "nowhere" }"#);
    let scenario = Scenario::parse("text", &text).unwrap();
    let mut engine = Engine::new(scenario.plan(&Overrides::new()).unwrap(), PgVersion::V18).unwrap();
    let mut sink = MemorySink::new(PgVersion::V18);
    let (mut clock, mut rng) = (VirtualClock::default(), rng::seeded(1));
    let error = loop {
        if let Err(error) = engine.step(&mut clock, &mut rng, &mut sink) {
            break error;
        }
    };
    assert!(matches!(error, PrimaryError::Statement { .. }), "{error}");
    assert!(!open_at_end(&sink.records).is_empty());
    engine.end_early(&mut clock, &mut rng, &mut sink).unwrap();
    assert_eq!(open_at_end(&sink.records), Vec::<u32>::new());
    assert_eq!(engine.step(&mut clock, &mut rng, &mut sink).unwrap(), Step::Done);
}

#[test]
fn a_limit_spreads_transactions_over_simulated_time() {
    let scenario = Scenario::load("standby-gaps").unwrap();
    let small = [("duration", "3s"), ("long", "1"), ("longest", "1s")];
    let overrides: Overrides = small.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
    let ends = |limit: u32| {
        let mut engine = Engine::new(scenario.plan(&overrides).unwrap(), PgVersion::V18).unwrap();
        engine.limit_rate(limit);
        let mut sink = MemorySink::new(PgVersion::V18);
        let (mut clock, mut rng) = (VirtualClock::default(), rng::seeded(1));
        while engine.step(&mut clock, &mut rng, &mut sink).unwrap() != Step::Done {}
        engine.summary().committed + engine.summary().rolled_back
    };
    let (free, limited) = (ends(0), ends(100));
    assert!(free > 3000, "{free}");
    assert!((290..=312).contains(&limited), "{limited}");
}
