//! Scenario files: what is wrong is said with its place, sizes can be overridden, nothing is too large.

use std::collections::BTreeSet;

use pg_types::{FullXid, Oid, PgVersion, RecordBody};
use primary_core::rng::seeded;
use primary_core::{
    Clock, Continuation, Engine, MemorySink, Overrides, ParameterValue, PrimaryError, Scenario, ScenarioError, Step,
    VirtualClock,
};

const GOOD: &str = r#"name = "good"
story = "A test."
seed = 1
duration = "1s"
[parameters]
rows = 3
[[tables]]
name = "t_{i}"
count = 2
columns = ["id int"]
[[actors]]
name = "a"
transactions = 2
every = "10ms"
steps = [{ insert = { table = "t_1", rows = "$rows" } }]
"#;

/// The error of the good text with one piece replaced.
fn error(piece: &str, replacement: &str) -> ScenarioError {
    assert!(GOOD.contains(piece), "{piece}");
    Scenario::load(&GOOD.replacen(piece, replacement, 1)).unwrap_err()
}

#[test]
fn errors_say_where_and_what_would_be_right() {
    let cases = [
        ("seed = 1", "sed = 1", 3, 1, "did you mean 'seed'?"),
        ("story = \"A test.\"\n", "", 1, 1, "the key 'story' is missing"),
        ("seed = 1", "seed = -1", 3, 8, "negative or too large"),
        ("columns = [\"id int\"]", "columns = [1]", 10, 12, "a whole number where a text belongs"),
        ("steps = [{", "steps = [1, {", 15, 10, "a whole number where a table as { insert = … } belongs"),
        ("{ insert = {", "{ wait = \"1s\", insert = {", 15, 10, "one key"),
        ("[[actors]]", "[[expect]]\nthat = \"recrods == 1\"\n[[actors]]", 12, 9, "did you mean 'records'?"),
        ("[[actors]]", "[[expect]]\nthat = \"rows == messages('b')\"\n[[actors]]", 12, 17, "no actor is named 'b'"),
        ("[[actors]]", "[[expect]]\nthat = \"1 == 1\"\nto_version = 12\n[[actors]]", 13, 14, "13 to 18"),
        ("[[actors]]", "[small]\nrow = 1\n[[actors]]", 1, 8, "did you mean 'rows'?"),
        ("[[actors]]", "[sweep.parameters]\nrow = [1]\n[[actors]]", 11, 2, "did you mean 'rows'?"),
        ("[[actors]]", "[sweep.parameters]\nrows = { from = 1, to = 5000, step = 1 }\n[[actors]]", 11, 2, "1001 points"),
        ("[[actors]]", "[sweep.parameters]\nrows = { from = 0, to = 5, times = 2 }\n[[actors]]", 11, 2, "needs 'step'"),
        ("seed = 1", "seed = \"x\"", 3, 8, "a text where a whole number belongs"),
        ("name = \"good\"", "name = \"Good One\"", 1, 8, "lower-case"),
        ("count = 2", "count = 0", 9, 9, "1 to 200000"),
        ("count = 2", "count = 500000", 9, 9, "1 to 200000"),
        ("count = 2", "count = -1", 9, 9, "negative"),
        ("t_{i}", "t", 8, 8, "put '{i}' into it"),
        ("[[actors]]", "[[tables]]\nname = \"t_2\"\ncolumns = [\"id int\"]\n[[actors]]", 12, 8, "a table named 't_2' above"),
        (
            "[[actors]]",
            "[[tables]]\nname = \"t\"\ncolumns = [\"id int\"]\npartitions = 2\n[[actors]]",
            12,
            8,
            "named 't_1' above",
        ),
        ("id int", "id money", 10, 12, "use one of smallint"),
        ("\"10ms\"", "\"10\"", 14, 9, "no length of time"),
        ("\"10ms\"", "{ from = \"2s\", to = \"1s\" }", 14, 9, "longer than"),
        ("\"10ms\"", "{ from = \"2s\", up = \"1s\" }", 14, 24, "up"),
        ("\"10ms\"", "{ exponential = \"2s\", shape = 2.0 }", 14, 9, "a distribution is"),
        ("\"10ms\"", "{ pareto = \"2s\", shape = 0.0 }", 14, 9, "0.01 to 100"),
        ("every =", "rate = \"0/s\"\nthink =", 14, 8, "no rate"),
        ("every =", "rate = \"2/s\"\nevery =", 12, 8, "use one of them"),
        ("steps = [{", "steps = [{ repeat = { times = 0, steps = [] } }, {", 15, 10, "nothing to repeat"),
        ("steps = [{", "steps = [{ repeat = { times = 99999999, steps = [{ wait = \"1s\" }] } }, {", 15, 10, "0 to 10000000"),
        ("\"t_1\"", "\"t_{1..9999999}\"", 15, 10, "more than 1000000 objects"),
        ("\"t_1\"", "\"u_1\"", 15, 10, "there are: t_{i}"),
        ("\"$rows\"", "\"$row\"", 15, 10, "did you mean 'rows'?"),
        ("name = \"a\"", "name = \"a\"\nmix = [{ weight = 0, steps = [] }]", 12, 8, "use one of them"),
        ("[[actors]]", "[[consumers]]\nslot = \"A\"\n[[actors]]", 12, 8, "no slot name"),
        ("[[actors]]", "[[consumers]]\nslot = \"decoder\"\n[[actors]]", 12, 8, "the slot of the decoder node"),
        ("[[actors]]", "[[expect]]\nthat = \"\"\"\n1 == tow\"\"\"\n[[actors]]", 13, 6, "nothing is called 'tow'"),
        ("[[actors]]", "[[expect]]\nthat = \"\\u00e9\\u00e9 == 1\"\n[[actors]]", 12, 8, "here must be a number"),
        ("[[actors]]", "[[faults]]\nkind = \"crash\"\nback = \"1s\"\n[[actors]]", 12, 8, "disk_full needs"),
        ("transactions = 2\nevery = \"10ms\"", "", 12, 8, "needs 'every'"),
        ("\"$rows\"", "\"$row\"", 15, 10, "no parameter 'row'"),
        ("\"$rows\"", "\"many\"", 15, 10, "no number"),
        ("table = \"t_1\", ", "", 15, 10, "either 'table' or 'partitions_of'"),
        ("insert =", "upsert =", 15, 12, "upsert"),
        ("\"1s\"", "\"9999h\"", 4, 12, "longer than a year"),
        ("steps = [{", "steps = [{ prepare = { gid = \"a\" } }, {", 15, 10, "set max_prepared_transactions"),
        (
            "steps = [{",
            "steps = [{ savepoint = \"a\" }, { commit_prepared = { gid = \"a\" } }, {",
            15,
            31,
            "inside a transaction",
        ),
        ("steps = [{", "steps = [{ rollback = { to = \"a\" } }, {", 15, 25, "there is no key 'to'"),
        ("every =", "connects = \"twice\"\nevery =", 14, 12, "'twice' is unknown here"),
        ("every =", "connects = 2\nevery =", 14, 12, "a whole number where a text or a table belongs"),
        ("every =", "connects = { every = 0 }\nevery =", 14, 12, "1 to 100000000"),
        (
            "steps = [{",
            "steps = [{ create_table = { table = \"u\", columns = [\"a int\"], on_commit = \"drop\" } }, {",
            15,
            10,
            "say 'temporary = true'",
        ),
        ("[[actors]]", "[[publications]]\nname = \"p\"\ntables = [\"x\"]\n[[actors]]", 13, 11, "makes a relation named 'x'"),
        ("[[actors]]", "[[publications]]\nname = \"p_{i}\"\n[[actors]]", 12, 8, "by a pattern"),
        (
            "[[actors]]",
            "[[publications]]\nname = \"p\"\nall_tables = true\nschema = \"public\"\n[[actors]]",
            12,
            8,
            "one of 'tables'",
        ),
        ("[[actors]]", "[[publications]]\nname = \"p\"\nschema = \"s\"\n[[actors]]", 13, 10, "is 'public'"),
        (
            "[[actors]]",
            "[[publications]]\nname = \"p_{1..2}\"\ntables = [\"t_{1..3}\"]\n[[actors]]",
            13,
            11,
            "the table of its number",
        ),
        ("[[actors]]", "[[publications]]\nname = \"p\"\ntabels = []\n[[actors]]", 13, 1, "did you mean 'tables'?"),
        ("every =", "origin = 65535\nevery =", 14, 10, "1 to 65534"),
        ("every =", "after = [\"b\"]\nevery =", 14, 10, "no actor above is named 'b'"),
        ("name = \"a\"", "name = \"a\u{1b}[31m\"", 12, 0, ""),
    ];
    for (piece, replacement, line, column, expected) in cases {
        let error = error(piece, replacement);
        assert!(error.message.contains(expected), "{replacement}: {error}");
        assert_eq!(error.line, line, "{replacement}: {error}");
        if column > 0 {
            assert_eq!(error.column, column, "{replacement}: {error}");
        }
        assert!(!error.to_string().contains('\u{1b}'), "{error:?}");
    }
}

#[test]
fn all_errors_of_a_file_are_found() {
    let text = GOOD.replace("count = 2", "count = 0").replace("\"10ms\"", "\"10\"").replace("t_1", "u_1");
    let errors = Scenario::check("mine.toml", &text).unwrap_err();
    let places: Vec<usize> = errors.iter().map(|error| error.line).collect();
    assert_eq!(places, [9, 14, 15], "{errors:?}");
    assert!(errors.iter().all(|error| error.scenario == "mine.toml"), "{errors:?}");
}

#[test]
fn a_sweep_is_every_combination() {
    let sweep =
        "[sweep]\nseeds = [5, 6]\n[sweep.parameters]\nrows = { from = 1, to = 9, times = 3 }\nmore = ['1s']\n[[actors]]";
    let text = GOOD.replace("rows = 3", "rows = 3\nmore = '2s'").replace("[[actors]]", sweep);
    let points = Scenario::load(&text).unwrap().sweep().unwrap();
    let shown: Vec<String> =
        points.iter().map(|p| format!("{} {} {}", p.seed, p.overrides["rows"], p.overrides["more"])).collect();
    assert_eq!(shown, ["5 1 1s", "6 1 1s", "5 3 1s", "6 3 1s", "5 9 1s", "6 9 1s"]);
    let one = Scenario::load(GOOD).unwrap().sweep().unwrap();
    assert!(one.len() == 1 && one[0].seed == 1 && one[0].overrides.is_empty());
}

#[test]
fn texts_that_are_too_long_are_not_read() {
    let errors = Scenario::check("long", &format!("{GOOD}#{}", "x".repeat(1 << 20))).unwrap_err();
    assert!(errors.len() == 1 && errors[0].message.contains("at most 1048576"), "{errors:?}");
}

#[test]
fn the_published_schema_is_that_of_the_structures() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../scenarios/scenario.schema.json");
    let published: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(&published, primary_core::scenario::schema(), "`walstorm scenarios schema > scenario.schema.json` renews it");
}

#[test]
fn every_file_in_the_folder_ships() {
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../scenarios")).unwrap();
    let mut files: Vec<String> =
        folder.filter_map(|entry| Some(entry.unwrap().file_name().to_str()?.strip_suffix(".toml")?.to_owned())).collect();
    files.sort();
    assert_eq!(Scenario::names().collect::<Vec<_>>(), files);
}

#[test]
fn more_sessions_than_connections_are_refused() {
    let error = error("transactions = 2", "sessions = 101\ntransactions = 2");
    assert!(error.message.contains("actor 'a' 101 sessions are more than max_connections = 100: raise it"), "{error}");
    assert_eq!((error.line, error.column), (12, 8), "the actor's name");
}

#[test]
fn unknown_names_list_the_known_ones() {
    let error = Scenario::load("no-such").unwrap_err();
    assert!(error.message.contains("truncate-partitions"), "{error}");
    assert!(error.to_string().starts_with("scenario 'no-such': "), "there is no place to name: {error}");
    let error = Scenario::load("truncate-partition").unwrap_err();
    assert!(error.message.ends_with("did you mean 'truncate-partitions'?"), "{error}");
    let overrides = Overrides::from([("row".to_owned(), ParameterValue::Number(1))]);
    let error = Scenario::load(GOOD).unwrap().plan(&overrides).unwrap_err();
    assert!(error.message.contains("did you mean 'rows'?"), "{error}");
}

#[test]
fn overrides_are_checked_where_they_are_used() {
    let scenario = Scenario::load(GOOD).unwrap();
    assert!(scenario.plan(&Overrides::from([("rows".to_owned(), "5".into())])).is_ok());
    let error = scenario.plan(&Overrides::from([("rows".to_owned(), "5s".into())])).unwrap_err();
    assert!(error.message.contains("'5s' is no number") && error.line == 15, "{error}");
}

#[test]
fn shipped_scenarios_tell_their_story() {
    for name in Scenario::names() {
        let scenario = Scenario::load(name).unwrap();
        assert_eq!(scenario.name(), name);
        assert!(scenario.story().lines().count() >= 3 && !scenario.published().is_empty() && !scenario.parameters().is_empty());
    }
}

/// Runs a text to its end.
fn run(text: &str) -> Result<(MemorySink, Engine), PrimaryError> {
    let mut sink = MemorySink::new(PgVersion::V18);
    let mut engine = Engine::new(Scenario::load(text)?.plan(&Overrides::new())?, PgVersion::V18)?;
    let (mut clock, mut rng) = (VirtualClock::default(), seeded(1));
    while engine.step(&mut clock, &mut rng, &mut sink)? != Step::Done {}
    Ok((sink, engine))
}

#[test]
fn a_statement_on_nothing_says_who_and_what() {
    let error = run(&GOOD.replace("\"t_1\"", "\"t_3\"")).unwrap_err().to_string();
    assert_eq!(error, "actor 'a' cannot run INSERT in line 15: there is no relation named 't_3'");
}

#[test]
fn sessions_that_wait_for_each_other_for_ever_are_found() {
    let actor = |name: &str, first: &str, second: &str| {
        format!(
            "[[actors]]\nname = '{name}'\ntransactions = 1\nsteps = [{{ truncate = {{ table = '{first}' }} }}, {{ wait = '1s' }}, \
             {{ truncate = {{ table = '{second}' }} }}]\n"
        )
    };
    let head = GOOD.split("[[actors]]").next().unwrap();
    let error = run(&format!("{head}{}{}", actor("x", "t_1", "t_2"), actor("y", "t_2", "t_1"))).unwrap_err();
    assert!(matches!(&error, PrimaryError::Deadlock { actors } if actors == "x, y"), "{error}");
    // In one order they take turns, and the second waits for the first to commit.
    let (sink, _) = run(&format!("{head}{}{}", actor("x", "t_1", "t_2"), actor("y", "t_1", "t_2"))).unwrap();
    let xids: Vec<u32> = sink.records.iter().map(|record| record.xid.0).filter(|xid| *xid != 0).collect();
    assert!(xids.is_sorted(), "{xids:?}");
}

#[test]
fn what_is_rolled_back_leaves_no_trace_in_the_catalog() {
    let text = GOOD.replace("steps = [", "rollback_percent = 100\nsteps = [{ truncate = { table = 't_2' } }, ").replace(
        "{ insert = {",
        "{ create_table = { table = 'new', columns = ['a int', 'b text'] } }, { add_column = { table = 't_1', column = 'b int' } }, \
         { insert = {",
    );
    let before = Engine::new(Scenario::load(&text).unwrap().plan(&Overrides::new()).unwrap(), PgVersion::V18).unwrap();
    let (_, after) = run(&text).unwrap();
    assert_eq!(before.catalog().pg_class_csv(), after.catalog().pg_class_csv());
    assert_eq!(after.summary().rolled_back, 2);
}

#[test]
fn names_oids_and_files_are_exported_as_csv() {
    let (_, engine) = run(&GOOD.replace("steps = [", "steps = [{ truncate = { table = 't_2' } }, ")).unwrap();
    let csv = engine.catalog().pg_class_csv();
    let line = |name: &str| csv.lines().find(|line| line.starts_with(&format!("{name},"))).unwrap().to_owned();
    assert!(csv.starts_with("relname,oid,relfilenode,reltablespace,nsp,relkind,relpersistence,relisshared,relreplident,"));
    assert_eq!(line("pg_class"), "pg_class,1259,1259,0,pg_catalog,r,p,f,n,0,1259");
    assert_eq!(line("pg_database"), "pg_database,1262,1262,1664,pg_catalog,r,p,t,n,0,1262");
    assert_eq!(line("t_1"), "t_1,16384,16384,0,public,r,p,f,d,0,16384");
    let t2: Vec<String> = line("t_2").split(',').map(str::to_owned).collect();
    assert!(t2[1] != t2[2] && t2[2] == t2[10], "a new file after TRUNCATE: {t2:?}");
}

#[test]
fn the_history_names_every_file_but_for_a_heap_that_a_rewrite_fills() {
    let steps = "steps = [{ alter_column_type = { table = 't_1', column = 'id', type = 'bigint' } }, { truncate = { table = 't_2' } }, ";
    let (sink, engine) = run(&GOOD.replace("steps = [", steps)).unwrap();
    let csv = engine.catalog().pg_class_history_csv();
    let now = engine.catalog().pg_class_csv();
    let former = csv.strip_prefix(&now).expect("what is there now comes first");
    assert!(csv.lines().all(|line| !line.starts_with("pg_temp_")), "{csv}");
    let files: BTreeSet<&str> = csv.lines().map(|line| line.split(',').nth(2).unwrap()).collect();
    for record in &sink.records {
        let RecordBody::SmgrCreate { target, .. } = &record.body else { continue };
        assert!(files.contains(&*target.rel.to_string()), "{target:?} of {}", record.xid);
    }
    let table = |line: &str| line.split(',').next().unwrap().to_owned();
    let tables: Vec<String> = former.lines().map(table).filter(|name| name.starts_with("t_")).collect();
    assert!(tables.contains(&"t_1".to_owned()) && tables.contains(&"t_2".to_owned()), "{former}");
}

#[test]
fn the_engine_says_what_is_due_and_can_be_paced() {
    let mut engine = Engine::new(Scenario::load(GOOD).unwrap().plan(&Overrides::new()).unwrap(), PgVersion::V18).unwrap();
    let (mut clock, mut rng, mut sink) = (VirtualClock::default(), seeded(1), MemorySink::new(PgVersion::V18));
    assert_eq!(engine.next_due(), None);
    let start = clock.now();
    let mut dues = Vec::new();
    while engine.step(&mut clock, &mut rng, &mut sink).unwrap() != Step::Done {
        dues.extend(engine.next_due().map(|due| due.0 - start.0));
    }
    assert!(dues.is_sorted() && dues.contains(&0) && dues.contains(&10_000), "{dues:?}");
    assert_eq!(engine.step(&mut clock, &mut rng, &mut sink).unwrap(), Step::Done, "for ever");
    assert_eq!(engine.next_due(), None);
}

#[test]
fn a_second_scenario_goes_on_where_the_first_stopped() {
    let (_, first) = run(GOOD).unwrap();
    let from = first.continuation();
    assert!(from.next_xid > FullXid(731) && from.next_oid > Oid(16_384));
    let plan = Scenario::load(GOOD).unwrap().plan(&Overrides::new()).unwrap();
    let second = Engine::continuing(plan, PgVersion::V18, from).unwrap();
    assert!(second.catalog().relations().all(|relation| relation.oid >= from.next_oid));
    let Continuation { next_xid, .. } = second.continuation();
    assert_eq!(next_xid, from.next_xid);
}
