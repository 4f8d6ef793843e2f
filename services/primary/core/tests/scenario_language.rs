//! What a scenario can say about when, how often and on what: rates, distributions, mixes, loops, patterns.

use std::collections::BTreeMap;

use pg_types::PgVersion;
use primary_core::rng::seeded;
use primary_core::scenario::{ConsumerKind, ConsumerPlan, FaultKind, FaultPlan, PausedPlan};
use primary_core::{MemorySink, Overrides, Scenario, Step, TransactionTruth, VirtualClock};

/// Plays a text that begins with what all of them need.
fn play(text: &str) -> Vec<TransactionTruth> {
    let text = format!("name = 'test'\nstory = 'A test.'\nseed = 1\n{text}");
    let scenario = Scenario::parse("test", &text).unwrap();
    let mut truths = Vec::new();
    let ended = |_: &primary_core::Engine, step: &Step| {
        if let Step::Ended(truth) = step {
            truths.push((**truth).clone());
        }
    };
    let mut sink = MemorySink::new(PgVersion::V18);
    scenario.run(&Overrides::new(), &mut VirtualClock::default(), &mut seeded(3), &mut sink, ended).unwrap();
    truths
}

/// Microseconds from the start at which transactions ended.
fn times(truths: &[TransactionTruth]) -> Vec<i64> {
    truths.iter().map(|truth| truth.time.0 - VirtualClock::EPOCH.0).collect()
}

#[test]
fn a_rate_is_of_all_sessions_together() {
    let truths = play(
        "duration = '2s'\n[[tables]]\nname = 't'\ncolumns = ['a int']\n\
         [[actors]]\nname = 'a'\nsessions = 4\nrate = '100/s'\nsteps = [{ insert = { table = 't' } }]",
    );
    assert_eq!(times(&truths), (0..200).map(|n| n * 10_000).collect::<Vec<_>>());
    let truths = play(
        "duration = '20s'\n[[tables]]\nname = 't'\ncolumns = ['a int']\n\
         [[actors]]\nname = 'a'\nsessions = 4\nrate = { poisson = '100/s' }\nsteps = [{ insert = { table = 't' } }]",
    );
    assert!((1_850..2_150).contains(&truths.len()), "{}", truths.len());
    let gaps: Vec<i64> = times(&truths).windows(2).map(|pair| pair[1] - pair[0]).collect();
    let short = gaps.iter().filter(|gap| **gap < 6_931).count();
    assert!(short * 10 > gaps.len() * 4 && short * 10 < gaps.len() * 6, "half of the gaps are below ln 2 of the mean: {short}");
}

#[test]
fn think_time_counts_from_the_end() {
    let truths = play(
        "[[tables]]\nname = 't'\ncolumns = ['a int']\n[[actors]]\nname = 'a'\ntransactions = 3\nevery = '2ms'\nthink = '5ms'\n\
         steps = [{ insert = { table = 't' } }, { wait = '1ms' }]",
    );
    assert_eq!(times(&truths), [1_000, 7_000, 13_000]);
}

#[test]
fn kinds_of_transactions_are_chosen_by_weight() {
    let truths = play(
        "[[tables]]\nname = 't'\ncolumns = ['a int']\n[[actors]]\nname = 'a'\ntransactions = 4000\n\
         mix = [{ weight = 3, steps = [{ insert = { table = 't' } }] }, { steps = [{ truncate = { table = 't' } }] }, \
         { weight = 0, steps = [{ message = { prefix = 'never' } }] }]",
    );
    let mut kinds = BTreeMap::new();
    truths.iter().for_each(|truth| *kinds.entry(truth.did[0].split(' ').next().unwrap()).or_insert(0) += 1);
    assert_eq!(kinds.keys().copied().collect::<Vec<_>>(), ["INSERT", "TRUNCATE"]);
    assert!((2_850..3_150).contains(&kinds["INSERT"]), "{kinds:?}");
}

#[test]
fn loops_and_patterns_name_many_objects() {
    let truths = play(
        "[parameters]\nlast = 3\n[[tables]]\nname = 'orders_{2..$last}'\ncolumns = ['a int']\n\
         [[actors]]\nname = 'a'\ntransactions = 1\nsteps = [\n\
         { create_table = { table = 'new_{1..2}', columns = ['a int'] } },\n\
         { repeat = { times = 2, steps = [{ grant = { table = 'orders_{2..3}', role = 'r' } }, { repeat = { times = 2, steps = [\n\
         { insert = { table = 'new_{i}', rows = 1 } }, { create_table = { table = 'x_{j}{i}', columns = ['a int'] } } ] } }] } },\n\
         { repeat = { times = 0, steps = [{ truncate = { table = 'new_1' } }] } },\n\
         { insert = { table = 'orders_{2..$last}' } }]",
    );
    let inner = |j: u8| {
        let turns = (1..=2).flat_map(move |i| [format!("INSERT of 1 row into new_{i}"), format!("CREATE TABLE x_{j}{i}")]);
        ["GRANT on orders_2 to r".to_owned(), "GRANT on orders_3 to r".to_owned()].into_iter().chain(turns)
    };
    let mut expected = vec!["CREATE TABLE new_1".to_owned(), "CREATE TABLE new_2".to_owned()];
    expected.extend(inner(1).chain(inner(2)));
    expected.extend(["INSERT of 1 row into orders_2".to_owned(), "INSERT of 1 row into orders_3".to_owned()]);
    assert_eq!(truths[0].did, expected);
}

#[test]
fn consumers_and_faults_are_planned() {
    let text = "name = 'test'\nstory = 'A test.'\nseed = 1\n[parameters]\nslow = 1000\n\
                [[consumers]]\nslot = 'slow'\nkind = 'logical'\nbytes_per_second = '$slow'\n\
                paused = [{ from = '2s', to = '3s' }, { from = '1min', to = '1h' }]\ndead_at = '2h'\n[[consumers]]\nslot = 'idle'\n\
                [[faults]]\nat = '9s'\nkind = 'clock_jump'\nback = '1h'\n[[faults]]\nat = '5s'\nkind = 'crash'\n\
                [[tables]]\nname = 't'\ncolumns = ['a int']\n\
                [[actors]]\nname = 'a'\ntransactions = 1\nsteps = [{ insert = { table = 't' } }]";
    let plan = Scenario::parse("test", text).unwrap().plan(&Overrides::new()).unwrap();
    let slow = ConsumerPlan {
        slot: "slow".to_owned(),
        kind: ConsumerKind::Logical,
        bytes_per_second: Some(1000),
        paused: vec![
            PausedPlan { from_us: 2_000_000, to_us: 3_000_000 },
            PausedPlan { from_us: 60_000_000, to_us: 3_600_000_000 },
        ],
        dead_at_us: Some(7_200_000_000),
    };
    let idle = ConsumerPlan { slot: "idle".to_owned(), ..ConsumerPlan::default() };
    assert_eq!(plan.consumers, [slow, idle]);
    assert_eq!(
        plan.faults,
        [
            FaultPlan { at_us: 5_000_000, kind: FaultKind::Crash },
            FaultPlan { at_us: 9_000_000, kind: FaultKind::ClockJump { by_us: -3_600_000_000 } },
        ]
    );
    for (piece, replacement, expected) in [
        ("slot = 'idle'", "slot = 'slow'", "one slot"),
        ("from = '1min'", "from = '2s'", "follow each other"),
        ("from = '2s'", "from = '4s'", "end after it begins"),
        ("dead_at = '2h'", "dead_at = '2s'", "cannot die before"),
        ("kind = 'crash'", "kind = 'crash'\nback = '2s'", "crash and restart nothing"),
        ("kind = 'crash'", "kind = 'disk_full'", "disk_full"),
        ("slot = 'idle'", "slot = 'Idle'", "no slot name"),
    ] {
        let error = Scenario::parse("test", &text.replacen(piece, replacement, 1)).unwrap_err();
        assert!(error.message.contains(expected) && error.line > 0, "{replacement}: {error}");
    }
}

#[test]
fn publications_that_are_there_before_the_log_leave_no_word_in_it() {
    let tables = "[[tables]]\nname = 't_{1..3}'\ncolumns = ['a int']\n";
    let change = |actor: &str| {
        format!(
            "[[actors]]\nname = 'b'\n{actor}transactions = 1\nsteps = [{{ alter_publication = {{ publication = 'p', options = true }} }}]\n"
        )
    };
    let made = "[[actors]]\nname = 'a'\ntransactions = 1\nsteps = [{ create_publication = { publication = 'p', tables = ['t_1', 't_2', 't_3'] } }]\n";
    let by_step = play(&format!("{tables}{made}{}", change("after = ['a']\n")));
    let there = play(&format!("{tables}[[publications]]\nname = 'p'\ntables = ['t_{{1..3}}']\n{}", change("")));
    assert_eq!((by_step.len(), there.len()), (2, 1));
    assert_eq!(
        (there[0].messages, there[0].records),
        (by_step[1].messages, by_step[1].records),
        "the same tables are published"
    );
    assert!(there[0].messages > 3);
    assert_eq!(there[0].xid.0, 731, "nothing was written before");
}

#[test]
fn publications_come_by_pattern_for_all_tables_and_for_a_schema() {
    let does = |publication: &str, steps: &str| {
        play(&format!(
            "[[tables]]\nname = 't_{{1..3}}'\ncolumns = ['a int']\n[[publications]]\n{publication}\n\
             [[actors]]\nname = 'a'\ntransactions = 1\nsteps = [{steps}]\n"
        ))
    };
    let drop = "{ alter_publication = { publication = 'p_2', drop = ['t_2'] } }";
    let truths = does("name = 'p_{1..3}'\ntables = ['t_{1..3}']", drop);
    assert!(truths[0].committed, "the second one has the second table");
    for what in ["all_tables = true", "schema = 'public'"] {
        let truths = does(&format!("name = 'p'\n{what}"), "{ drop_publication = { publication = 'p' } }");
        assert!(truths[0].messages > 0, "{what}");
    }
    let text = "name = 'test'\nstory = 'A test.'\nseed = 1\nactors = []\n[[publications]]\nname = 'p'\nschema = 'public'\n";
    let plan = Scenario::parse("test", text).unwrap().plan(&Overrides::new()).unwrap();
    let error = primary_core::Engine::new(plan, PgVersion::V14).unwrap_err().to_string();
    assert!(error.contains("CREATE PUBLICATION"), "{error}");
}
