//! Sessions that connect and leave: what they leave behind, which temporary schemas they find, and how many there may be.

use pg_types::{Oid, PgVersion, RecordBody, catalog};
use primary_core::rng::seeded;
use primary_core::{Engine, MemorySink, Overrides, PrimaryError, RunSummary, Scenario, Step, TransactionTruth, VirtualClock};

/// What a run came to.
struct Ran {
    summary: RunSummary,
    truths: Vec<TransactionTruth>,
    sink: MemorySink,
    /// Rows of pg_namespace that were made.
    schemas: usize,
    /// Relations that are there at the end.
    relations: Vec<String>,
}

/// A scenario's text.
fn text(actors: &str) -> String {
    format!(
        "name = 'test'\nstory = 'Sessions.'\nseed = 1\nduration = '1s'\n[server]\nmax_connections = 5\nmax_prepared_transactions = 5\n\
         [[tables]]\nname = 't'\ncolumns = ['id int']\n{actors}"
    )
}

fn run(version: PgVersion, actors: &str) -> Result<Ran, PrimaryError> {
    let plan = Scenario::parse("test", &text(actors)).unwrap().plan(&Overrides::new()).unwrap();
    let mut engine = Engine::new(plan, version).unwrap();
    let (mut sink, mut truths) = (MemorySink::new(version), Vec::new());
    loop {
        match engine.step(&mut VirtualClock::default(), &mut seeded(1), &mut sink)? {
            Step::Done => break,
            Step::Ended(truth) => truths.push(*truth),
            _ => {}
        }
    }
    let is_schema = |body: &RecordBody| matches!(body, RecordBody::Insert(r) if r.target.rel == catalog::NAMESPACE.0);
    let schemas = sink.records.iter().filter(|record| is_schema(&record.body)).count();
    let relations = engine.catalog().relations().map(|relation| relation.name.to_string()).collect();
    Ok(Ran { summary: engine.summary().clone(), truths, sink, schemas, relations })
}

const TEMP: &str =
    "{ create_table = { table = 'w', columns = ['id int'], temporary = true } }, { insert = { table = 'w', rows = 3 } }";

#[test]
fn a_temporary_table_is_its_sessions_own_and_goes_with_it() {
    let actors = format!(
        "[[actors]]\nname = 'a'\nsessions = 3\ntransactions = 1\nsteps = [{TEMP}, {{ commit = {{}} }}, {{ wait = '5ms' }}, \
         {{ update = {{ table = 'w', rows = 3 }} }}, {{ insert = {{ table = 't' }} }}]\n"
    );
    for version in PgVersion::ALL {
        let ran = run(version, &actors).unwrap();
        assert_eq!(ran.summary.connections, 3);
        assert_eq!(ran.relations, ["t"], "PostgreSQL {version}");
        assert_eq!(ran.schemas, 6, "two for each of three that are there at the same time");
        let rows: Vec<usize> = ran.truths.iter().map(|truth| truth.rows.len()).collect();
        assert_eq!(rows, [0, 0, 0, 1, 1, 1, 0, 0, 0], "what is in them is nobody's business");
        let is_row = |body: &RecordBody| match body {
            RecordBody::Insert(r) => r.logical,
            RecordBody::Update(r) => r.logical,
            _ => false,
        };
        assert_eq!(ran.sink.records.iter().filter(|record| is_row(&record.body)).count(), 3, "only those of t");
        assert_eq!(ran.truths[8].did, ["DROP of 1 temporary table at the session's end"]);
        assert!(ran.truths[..6].iter().all(|truth| truth.xid.is_valid()), "rows of temporary tables need an xid, too");
    }
}

#[test]
fn later_backends_find_the_schemas_of_earlier_ones() {
    // One after the other, eight connections; there may be five at a time.
    let actors = format!(
        "[[actors]]\nname = 'a'\ntransactions = 16\nthink = '1ms'\nconnects = {{ every = 2 }}\nsteps = [{TEMP}, {{ drop_table = {{ table = 'w' }} }}]\n"
    );
    for version in PgVersion::ALL {
        let ran = run(version, &actors).unwrap();
        assert_eq!(ran.summary.connections, 8);
        // The lowest number each time, or all five in turn.
        let backends = if version < PgVersion::V17 { 1 } else { 5 };
        assert_eq!(ran.schemas, 2 * backends, "PostgreSQL {version}");
        assert_eq!(ran.truths.len(), 16, "nothing is left to drop");
    }
}

#[test]
fn schemas_of_a_first_use_that_is_rolled_back_are_made_again() {
    let actors = format!(
        "[[actors]]\nname = 'a'\ntransactions = 1\nsteps = [{TEMP}, {{ rollback = {{}} }}, {{ savepoint = 's' }}, {TEMP}, \
         {{ rollback_to = 's' }}, {TEMP}, {{ commit = {{}} }}, {{ drop_table = {{ table = 'w' }} }}, {{ commit = {{}} }}, {TEMP}]\n"
    );
    let ran = run(PgVersion::V18, &actors).unwrap();
    assert_eq!(ran.schemas, 6, "twice in vain");
    assert_eq!(ran.relations, ["t"]);
}

#[test]
fn open_ended_sessions_leave_when_time_is_up() {
    let actors =
        format!("[[actors]]\nname = 'a'\nsessions = 2\nevery = '300ms'\nconnects = 'per transaction'\nsteps = [{TEMP}]\n");
    let ran = run(PgVersion::V16, &actors).unwrap();
    assert_eq!((ran.summary.connections, ran.truths.len()), (8, 16), "each transaction, and each session's end");
    assert_eq!(ran.relations, ["t"]);
}

#[test]
fn a_run_that_is_ended_leaves_no_temporary_table() {
    let actors =
        format!("[[actors]]\nname = 'a'\ntransactions = 1\nsteps = [{TEMP}, {{ commit = {{}} }}, {{ wait = '1h' }}]\n");
    let plan = Scenario::parse("test", &text(&actors)).unwrap().plan(&Overrides::new()).unwrap();
    let mut engine = Engine::new(plan, PgVersion::V17).unwrap();
    let (mut clock, mut rng, mut sink) = (VirtualClock::default(), seeded(1), MemorySink::new(PgVersion::V17));
    while !matches!(engine.step(&mut clock, &mut rng, &mut sink).unwrap(), Step::Ended(_)) {}
    assert!(engine.catalog().relations().any(|relation| relation.temporary && relation.oid >= Oid::FIRST_NORMAL));
    assert!(engine.catalog().pg_class_csv().contains(",pg_temp,r,t,"), "{}", engine.catalog().pg_class_csv());
    engine.end_early(&mut clock, &mut rng, &mut sink).unwrap();
    assert!(!engine.catalog().relations().any(|relation| relation.temporary));
    assert!(matches!(sink.records.last().unwrap().body, RecordBody::Switch));
}

#[test]
fn what_temporary_tables_cannot_do_is_refused_with_a_reason() {
    let cases = [
        ("{ prepare = { gid = 'x' } }", "cannot be prepared"),
        ("{ create_view = { view = 'v', table = 'w' } }", "views of temporary tables"),
        ("{ create_publication = { publication = 'p', tables = ['w'] } }", "cannot be published"),
        (TEMP, "relation 'w' is there already"),
        ("{ create_schema = { schema = 'pg_temp_1' } }", "begins with 'pg_'"),
    ];
    for (step, reason) in cases {
        let actors = format!("[[actors]]\nname = 'a'\ntransactions = 1\nsteps = [{TEMP}, {step}]\n");
        let error = run(PgVersion::V18, &actors).err().unwrap().to_string();
        assert!(error.contains(reason) && error.contains("'a'"), "{step}: {error}");
    }
    // Nobody else's are to be seen.
    let actors = format!(
        "[[actors]]\nname = 'a'\ntransactions = 1\nsteps = [{TEMP}, {{ commit = {{}} }}, {{ wait = '1s' }}]\n\
         [[actors]]\nname = 'b'\nstart = '1ms'\ntransactions = 1\nsteps = [{{ drop_table = {{ table = 'w' }} }}]\n"
    );
    let error = run(PgVersion::V18, &actors).err().unwrap().to_string();
    assert!(error.contains("there is no relation named 'w'"), "{error}");
}

#[test]
fn more_clients_than_connections_are_refused_by_name() {
    let actors = "[[actors]]\nname = 'few'\nsessions = 4\ntransactions = 1\nsteps = [{ insert = { table = 't' } }]\n\
                  [[actors]]\nname = 'more'\nsessions = 2\ntransactions = 1\nsteps = [{ insert = { table = 't' } }]\n";
    let error = Scenario::parse("test", &text(actors)).unwrap_err().to_string();
    assert!(error.contains("'more' 6 sessions are more than max_connections = 5: raise it under [server]"), "{error}");
}

/// What the two scenarios of sessions that come and go promise, at small sizes in every version.
#[test]
fn their_scenarios_keep_their_promises() {
    for name in ["temp-table-churn", "connection-storm"] {
        let scenario = Scenario::load(name).unwrap();
        for version in PgVersion::ALL {
            let plan = scenario.plan(scenario.small()).unwrap();
            let expected = plan.expect.clone();
            let mut engine = Engine::new(plan, version).unwrap();
            let (mut clock, mut rng, mut sink) = (VirtualClock::default(), seeded(7), MemorySink::new(version));
            while engine.step(&mut clock, &mut rng, &mut sink).unwrap() != Step::Done {}
            let major = u64::from(version.major());
            for expectation in expected.iter().filter(|expectation| expectation.is_about(major)) {
                let of = |counter: &primary_core::scenario::Counter| {
                    engine.tally(counter.of.as_deref())?.get(&counter.name).map(|count| count as f64)
                };
                let verdict = expectation.evaluate(major, &mut |counter| of(counter)).unwrap();
                let (left, right) = (verdict.left, verdict.right);
                assert!(verdict.holds, "{name}, PostgreSQL {version}: {}, {left} and {right}", expectation.text);
            }
        }
    }
}

/// A long writer, a table with an index, and an actor that does something to the index at 1 ms.
fn beside_a_writer(step: &str) -> String {
    format!(
        "[[actors]]\nname = 'maker'\ntransactions = 1\nsteps = [{{ create_index = {{ table = 't', column = 'id', name = 't_old' }} }}]\n\
         [[actors]]\nname = 'writer'\nafter = ['maker']\ntransactions = 1\nsteps = [{{ insert = {{ table = 't', rows = 5 }} }}, \
         {{ wait = '10ms' }}, {{ insert = {{ table = 't', rows = 1 }} }}]\n\
         [[actors]]\nname = 'dba'\nafter = ['maker']\nstart = '1ms'\ntransactions = 1\nsteps = [{step}]\n\
         [[actors]]\nname = 'later'\nafter = ['maker']\nstart = '2ms'\ntransactions = 1\nsteps = [{{ insert = {{ table = 't', rows = 1 }} }}, \
         {{ wait = '20ms' }}]\n"
    )
}

#[test]
fn concurrent_statements_wait_for_older_writers_and_let_rows_change() {
    let create = "{ create_index = { table = 't', column = 'id', name = 't_new', concurrently = true } }";
    let drop = "{ drop_index = { index = 't_old', concurrently = true } }";
    let reindex = "{ reindex_index = { index = 't_old', concurrently = true } }";
    // The second transaction waits for whoever used the table when it was to begin, the third one for who came since.
    for (step, transactions, index_entries) in [(create, 3, 7), (drop, 3, 7), (reindex, 5, 7)] {
        let ran = run(PgVersion::V18, &beside_a_writer(step)).unwrap();
        let ends: Vec<&str> = ran.truths.iter().map(|truth| truth.actor.as_str()).collect();
        let mut expected = vec!["maker", "dba", "writer", "dba", "later"];
        expected.extend(vec!["dba"; transactions - 2]);
        assert_eq!(ends, expected, "{step}");
        let entries = ran.sink.records.iter().filter(|record| matches!(record.body, RecordBody::IndexInsert(_))).count();
        assert_eq!(entries, index_entries, "{step}: an index that is not filled yet gets no entries");
        assert_eq!(ran.relations.contains(&"t_old".to_owned()), step != drop);
    }
}

#[test]
fn concurrent_statements_stand_outside_of_transactions() {
    let steps = "{ insert = { table = 't' } }, { create_index = { table = 't', column = 'id', concurrently = true } }";
    let actors = format!("[[actors]]\nname = 'a'\ntransactions = 1\nsteps = [{steps}]\n");
    let error = Scenario::parse("test", &text(&actors)).unwrap_err().to_string();
    assert!(error.contains("CREATE INDEX CONCURRENTLY cannot run inside a transaction"), "{error}");
}
