//! Transactions of every kind write what PostgreSQL 13 to 18 wrote: recorded logs in `tests/golden_xact`, step by step.

use crate::support::{Lines, Recorded, compare};
use pg_types::record::{PruneReason, xinfo};
use pg_types::{InvalidationMessage, PgVersion, RecordBody, WalRecord, Xid};
use primary_core::rng::seeded;
use primary_core::{MemorySink, Overrides, Scenario, VirtualClock};

/// Tables as the recording's, and a server with prepared transactions.
const SETUP: &str = "name = 'test'\nstory = 'A step.'\nseed = 1\n[server]\nmax_prepared_transactions = 10\n\
    [[tables]]\nname = 't'\ncolumns = ['id int', 'note text']\nrows = 20\n\
    [[tables]]\nname = 'k'\ncolumns = ['id int primary key', 'note text']\nrows = 20\n\
    [[tables]]\nname = 'w'\ncolumns = ['id int', 'note text']\nrows = 20\n";

/// One actor that does these steps once.
fn actor(name: &str, fields: &str, steps: &str) -> String {
    format!("[[actors]]\nname = '{name}'\ntransactions = 1\n{fields}\nsteps = [{steps}]\n")
}

/// Runs actors and gives the records between the first ones and the end of the log.
fn run(version: PgVersion, actors: &str) -> Vec<WalRecord> {
    let mut sink = MemorySink::new(version);
    let scenario = Scenario::parse("test", &format!("{SETUP}{actors}")).unwrap();
    scenario.run(&Overrides::new(), &mut VirtualClock::default(), &mut seeded(1), &mut sink, |_, _| ()).unwrap();
    let records = sink.records;
    let last = records.len() - 2;
    assert!(matches!(records[last].body, RecordBody::RunningXacts(_)) || matches!(records[last + 1].body, RecordBody::Switch));
    records[3..last].to_vec()
}

/// Compares steps with what an actor does, for every version.
fn check(steps: &[&str], fields: &str, does: &str) {
    for version in PgVersion::ALL {
        let ours = Lines::of(run(version, &actor("a", fields, does)).iter());
        let real = Lines::of(Recorded::read(version).steps(steps).iter());
        compare(&format!("PostgreSQL {version}, {steps:?}"), &ours, &real);
    }
}

const INSERT: &str = "{ insert = { table = 't' } }";

#[test]
fn prepared_rows() {
    let does = "{ insert = { table = 't', rows = 2 } }, { insert = { table = 't' } }, { prepare = { gid = 'tx 1' } }, \
                { commit_prepared = { gid = 'tx 1' } }";
    check(&["prepare_rows", "prepare_rows_commit"], "", does);
}

#[test]
fn prepared_table_rolled_back() {
    let does = "{ create_table = { table = 'p2', columns = ['id serial primary key', 'a text'] } }, \
                { prepare = { gid = 'tx 3' } }, { rollback_prepared = { gid = 'tx 3' } }";
    check(&["prepare_ddl2", "prepare_ddl2_rollback"], "", does);
}

#[test]
fn prepared_subtransactions() {
    let does = format!(
        "{INSERT}, {{ savepoint = 'a' }}, {INSERT}, {{ release = 'a' }}, {{ savepoint = 'b' }}, {INSERT}, {{ rollback_to = 'b' }}, \
         {{ savepoint = 'c' }}, {INSERT}, {{ prepare = {{ gid = 'tx_4' }} }}, {{ commit_prepared = {{ gid = 'tx_4' }} }}"
    );
    check(&["prepare_subs", "prepare_subs_commit"], "", &does);
}

#[test]
fn prepared_truncate() {
    let truncate = "{ truncate = { table = 'k' } }, { prepare = { gid = 'tx_N' } }";
    let rolled_back = format!("{truncate}, {{ rollback_prepared = {{ gid = 'tx_N' }} }}");
    check(&["prepare_truncate", "prepare_truncate_rollback"], "", &rolled_back.replace('N', "5"));
    let committed = format!("{truncate}, {{ commit_prepared = {{ gid = 'tx_N' }} }}");
    check(&["prepare_truncate2", "prepare_truncate2_commit"], "", &committed.replace('N', "6"));
}

#[test]
fn prepared_without_having_written() {
    check(&["prepare_nothing"], "", "{ prepare = { gid = 'tx_7' } }, { commit_prepared = { gid = 'tx_7' } }");
}

/// Running transactions are told with the AccessExclusive locks that a prepared one holds, prepared ones last.
#[test]
fn a_prepared_table_beside_a_running_transaction() {
    for version in PgVersion::ALL {
        let create = "{ create_table = { table = 'p1', columns = ['id serial primary key', 'a text'] } }, \
                      { prepare = { gid = 'tx 2' } }, { wait = '10s' }, { commit_prepared = { gid = 'tx 2' } }";
        let tells = if version < PgVersion::V16 { "{ checkpoint = {} }" } else { "{ log_standby_snapshot = {} }" };
        let insert = format!("{INSERT}, {{ wait = '2s' }}");
        let actors = [
            actor("a", "", create),
            actor("b", "start = '1s'", &insert),
            actor("c", "start = '2s'", &format!("{tells}, {{ rollback = {{}} }}")),
        ];
        let ours = Lines::of(run(version, &actors.concat()).iter());
        let real = Recorded::read(version).steps(&["prepare_ddl", "prepare_running", "prepare_ddl_commit"]);
        compare(&format!("PostgreSQL {version}"), &ours, &Lines::of(real.iter()));
    }
}

#[test]
fn an_overflowed_transaction_is_prepared() {
    for version in PgVersion::ALL {
        let tells = if version < PgVersion::V16 { "{ checkpoint = {} }" } else { "{ log_standby_snapshot = {} }" };
        let subs: String = (0..70).map(|n| format!("{{ savepoint = 's{n}' }}, {INSERT}, {{ release = 's{n}' }}, ")).collect();
        let does = format!(
            "{INSERT}, {subs}{tells}, {{ prepare = {{ gid = 'tx_9' }} }}, {tells}, {{ commit_prepared = {{ gid = 'tx_9' }} }}"
        );
        let ours = Lines::of(run(version, &actor("a", "", &does)).iter());
        let steps = ["overflow", "overflow_running", "overflow_prepare", "overflow_prepare_running"];
        let real = Recorded::read(version).steps(&steps);
        compare(&format!("PostgreSQL {version}"), &ours, &Lines::of(real.iter()));
    }
}

#[test]
fn replicated_transactions_tell_their_origin() {
    let origin = "origin = 1";
    check(&["origin"], origin, INSERT);
    check(&["origin_none"], origin, &format!("{INSERT}, {{ savepoint = 'a' }}, {INSERT}"));
    let table = "{ create_table = { table = 'o1', columns = ['a int'] } }, { insert = { table = 'o1' } }";
    check(&["origin_ddl"], origin, table);
    check(&["origin_abort"], origin, &format!("{INSERT}, {{ savepoint = 'a' }}, {INSERT}, {{ rollback = {{}} }}"));
    let prepare = |gid| format!("{INSERT}, {{ prepare = {{ gid = '{gid}' }} }}");
    let committed = format!("{}, {{ commit_prepared = {{ gid = 'o_1' }} }}", prepare("o_1"));
    check(&["origin_prepare"], origin, &committed);
    let rolled_back = format!("{}, {{ rollback_prepared = {{ gid = 'o_2' }} }}", prepare("o_2"));
    check(&["origin_prepare_rollback"], origin, &rolled_back);
}

#[test]
fn rolled_back_at_all_levels() {
    let does = format!("{INSERT}, {{ savepoint = 'a' }}, {INSERT}, {{ savepoint = 'b' }}, {INSERT}, {{ rollback = {{}} }}");
    check(&["rollback_all"], "", &does);
    let does = format!("{{ savepoint = 'a' }}, {INSERT}, {{ rollback_to = 'a' }}, {INSERT}");
    check(&["first_xid_rolled_back"], "", &does);
}

/// Tables whose rows were inserted and vacuumed within the log, as in the recording.
const VACUUMED: &str = "name = 'test'\nstory = 'A step.'\nseed = 1\n\
    [[tables]]\nname = 'x'\ncolumns = ['id int primary key', 'note text']\n\
    [[tables]]\nname = 'y'\ncolumns = ['id int', 'note text']\n\
    [[tables]]\nname = 't'\ncolumns = ['id int', 'note text']\n\
    [[actors]]\nname = 'setup'\ntransactions = 1\nsteps = [{ insert = { table = 'x', rows = 20 } }, { commit = {} }, \
    { insert = { table = 'y', rows = 20 } }, { commit = {} }, { vacuum = { table = 'x' } }, { vacuum = { table = 'y' } }]\n";

/// A seed with which no delete draws a heap-only row, as none was in the recording.
const SEED: u64 = 2;

/// Runs actors after the setup and gives the records by step: each begins with a message `step` that is part of no transaction.
fn run_steps(version: PgVersion, actors: &str) -> Vec<Vec<WalRecord>> {
    let mut sink = MemorySink::new(version);
    let scenario = Scenario::parse("test", &format!("{VACUUMED}{actors}")).unwrap();
    scenario.run(&Overrides::new(), &mut VirtualClock::default(), &mut seeded(SEED), &mut sink, |_, _| ()).unwrap();
    let last = sink.records.len() - 2;
    let is_step = |r: &WalRecord| matches!(&r.body, RecordBody::LogicalMessage(m) if m.prefix == b"step");
    sink.records[..last].split(is_step).skip(1).map(<[WalRecord]>::to_vec).collect()
}

const STEP: &str = "{ message = { prefix = 'step', transactional = false } }, { commit = {} }";

#[test]
fn vacuum_and_analyze_of_a_table_with_a_key() {
    let does = format!(
        "{{ delete = {{ table = 'x', rows = 5 }} }}, {{ commit = {{}} }}, {{ update = {{ table = 'x', rows = 3 }} }}, {{ commit = {{}} }}, \
         {STEP}, {{ vacuum = {{ table = 'x' }} }}, {STEP}, {{ vacuum = {{ table = 'x', freeze = true }} }}, \
         {{ delete = {{ table = 'x', rows = 2 }} }}, {{ commit = {{}} }}, {STEP}, {{ vacuum = {{ table = 'x', analyze = true }} }}, \
         {STEP}, {{ vacuum = {{ table = 'x', analyze = true }} }}"
    );
    for version in PgVersion::ALL {
        let ours = run_steps(version, &actor("a", "after = ['setup']", &does));
        let real = Recorded::read(version);
        for (ours, step) in ours.iter().zip(["small_vacuum", "small_freeze", "small_analyze", "small_analyze_again"]) {
            compare(&format!("PostgreSQL {version}, {step}"), &vacuum_lines(ours), &vacuum_lines(&real.steps(&[step])));
        }
    }
}

/// Lines of what VACUUM and ANALYZE do, without the transactions that prepare the next step.
fn vacuum_lines(records: &[WalRecord]) -> Vec<String> {
    let is_preparation = |r: &&WalRecord| match &r.body {
        RecordBody::Insert(i) => i.logical,
        RecordBody::Update(u) => u.logical,
        RecordBody::Delete(_) => true,
        _ => false,
    };
    let preparation: Vec<_> = records.iter().filter(is_preparation).map(|r| r.xid).collect();
    Lines::of(records.iter().filter(|r| !preparation.contains(&r.xid)))
}

#[test]
fn vacuum_of_a_table_without_index_and_under_a_running_transaction() {
    let does = format!(
        "{{ update = {{ table = 'y', rows = 3 }} }}, {{ commit = {{}} }}, {{ delete = {{ table = 'y', rows = 4 }} }}, {{ commit = {{}} }}, \
         {{ insert = {{ table = 'y', rows = 2 }} }}, {{ rollback = {{}} }}, {STEP}, {{ vacuum = {{ table = 'y' }} }}, {{ wait = '2s' }}, \
         {{ delete = {{ table = 'y', rows = 2 }} }}, {{ commit = {{}} }}, {STEP}, {{ vacuum = {{ table = 'y' }} }}, {{ wait = '2s' }}, \
         {STEP}, {{ vacuum = {{ table = 'y' }} }}, {STEP}, {{ analyze = {{ table = 'y' }} }}"
    );
    let holds = "{ insert = { table = 't' } }, { wait = '2s' }";
    for version in PgVersion::ALL {
        let actors = [actor("a", "after = ['setup']", &does), actor("b", "after = ['setup']\nstart = '1s'", holds)].concat();
        let ours = run_steps(version, &actors);
        let real = Recorded::read(version);
        let without_b = |records: &[WalRecord]| {
            let of_t = |r: &&WalRecord| matches!(&r.body, RecordBody::Insert(i) if i.logical);
            let xids: Vec<_> = records.iter().filter(of_t).map(|r| r.xid).collect();
            let is_commit = |r: &WalRecord| matches!(&r.body, RecordBody::Commit(c) if c.messages.is_empty());
            vacuum_lines(&records.iter().filter(|r| !xids.contains(&r.xid) && !is_commit(r)).cloned().collect::<Vec<_>>())
        };
        for (ours, step) in ours.iter().zip(["plain_vacuum", "held_back", "held_back_end", "plain_analyze"]) {
            compare(&format!("PostgreSQL {version}, {step}"), &without_b(ours), &without_b(&real.steps(&[step])));
        }
    }
}

#[test]
fn row_locks() {
    for (step, mode) in
        [("lock_update", "update"), ("lock_nokey", "no_key_update"), ("lock_share", "share"), ("lock_keyshare", "key_share")]
    {
        check(&[step], "", &format!("{{ lock_rows = {{ table = 't', rows = 2, mode = '{mode}' }} }}"));
    }
}

#[test]
fn insert_on_conflict() {
    check(&["upsert_new"], "", "{ insert_on_conflict = { table = 'k' } }");
    check(&["upsert_update"], "", "{ insert_on_conflict = { table = 'k', conflicts = 1 } }");
}

#[test]
fn values_outside_of_their_rows() {
    // The recording's table is older than the log: its TOAST table has no rows before, either.
    let steps = ["toast_insert2", "toast_update", "toast_keep", "toast_delete"];
    let does = "{ insert_long = { table = 'empty', bytes = 5000 } }, { commit = {} }, { update_long = { table = 'empty', bytes = 7000 } }, \
                { commit = {} }, { update = { table = 'empty' } }, { commit = {} }, { delete = { table = 'empty' } }";
    let empty = "[[tables]]\nname = 'empty'\ncolumns = ['id int', 'note text']\n";
    for version in PgVersion::ALL {
        let ours = Lines::of(run(version, &format!("{empty}{}", actor("a", "", does))).iter());
        let real = Lines::of(Recorded::read(version).steps(&steps).iter());
        compare(&format!("PostgreSQL {version}"), &ours, &real);
    }
}

/// Index entries (INSERT_LEAF) and reserved values of sequences, of which a real log tells the kind of record.
fn entries_and_values(records: &[WalRecord]) -> (usize, usize) {
    let count = |is: &dyn Fn(&RecordBody) -> bool| records.iter().filter(|r| is(&r.body)).count();
    (
        count(&|body| matches!(body, RecordBody::IndexInsert(_) | RecordBody::Other { rmid: 11, info: 0 })),
        count(&|body| matches!(body, RecordBody::SequenceLog(_) | RecordBody::Other { rmid: 15, .. })),
    )
}

#[test]
fn index_entries_and_sequence_values() {
    let cases = [
        ("key_insert", "{ insert = { table = 'k', rows = 4 } }"),
        ("key_copy", "{ copy = { table = 'k', rows = 10 } }"),
        ("key_delete", "{ delete = { table = 'k' } }"),
        ("key_update_hot", "{ update = { table = 'k' } }"),
        ("upsert_new", "{ insert_on_conflict = { table = 'k' } }"),
        ("upsert_update", "{ insert_on_conflict = { table = 'k', conflicts = 1 } }"),
        ("toast_update", "{ insert_long = { table = 't', bytes = 7000 } }"),
        ("sequence", "{ nextval = { sequence = 'made_id_seq', times = 70 } }"),
    ];
    let made = "[[tables]]\nname = 'made'\ncolumns = ['id serial primary key', 'a int']\n";
    for version in PgVersion::ALL {
        let real = Recorded::read(version);
        for (step, does) in &cases {
            let ours = run(version, &format!("{made}{}", actor("a", "", does)));
            let real = entries_and_values(&real.steps(&[step]));
            assert_eq!(entries_and_values(&ours), real, "PostgreSQL {version}, {step}");
        }
    }
}

/// The table of the recording's steps with temporary tables.
const TEMP: &str = "{ create_table = { table = 'tt', columns = ['id int', 'b text'], temporary = true } }";

/// All steps with temporary tables, in one run of two sessions, by their names.
#[test]
fn temporary_tables() {
    let (commit, insert) = ("{ commit = {} }", |table: &str| format!("{{ insert = {{ table = '{table}' }} }}"));
    let create = |table: &str, columns: &str, more: &str| {
        format!("{{ create_table = {{ table = '{table}', columns = [{columns}], temporary = true{more} }} }}")
    };
    let drop = |table: &str| format!("{{ drop_table = {{ table = '{table}' }} }}");
    let steps = [
        ("temp_first", TEMP.to_owned()),
        ("temp_insert", insert("tt")),
        ("temp_second", create("tt2", "'id serial primary key', 'a int'", "")),
        ("temp_drop", drop("tt2")),
        ("temp_on_commit", format!("{}, {}", create("tt3", "'a int'", ", on_commit = 'drop'"), insert("tt3"))),
        ("temp_both", format!("{}, {INSERT}, {}, {}", create("tt4", "'a int'", ""), insert("tt4"), drop("tt4"))),
        ("temp_rollback", format!("{}, {}, {{ rollback = {{}} }}", create("tt5", "'a int'", ""), insert("tt5"))),
        ("temp_truncate", "{ truncate = { table = 'tt' } }".to_owned()),
        ("temp_index", "{ create_index = { table = 'tt', column = 'id' } }".to_owned()),
    ];
    let first: Vec<String> = steps.iter().map(|(_, does)| format!("{STEP}, {does}, {commit}")).collect();
    let first = format!("{}, {STEP}", first.join(", "));
    let actors = [
        actor("a", "after = ['setup']\nconnects = 'per transaction'", &first),
        actor("b", "after = ['a']", &format!("{STEP}, {TEMP}, {commit}, {STEP}")),
        actor("c", "after = ['b']", STEP),
    ];
    let names: Vec<&str> = steps.iter().map(|(name, _)| *name).chain(["temp_exit", "temp_again", "temp_again_exit"]).collect();
    for version in PgVersion::ALL {
        let ours = run_steps(version, &actors.concat());
        let real = Recorded::read(version);
        assert_eq!(ours.len(), names.len() + 1);
        for (ours, step) in ours.iter().zip(&names) {
            compare(&format!("PostgreSQL {version}, {step}"), &Lines::of(ours.iter()), &Lines::of(real.steps(&[step]).iter()));
        }
        assert!(real.steps(&["temp_only", "temp_only_exit"]).iter().all(|r| Lines::of([r].into_iter()).is_empty()));
        assert!(Lines::of(ours[names.len()].iter()).is_empty(), "a session without temporary tables leaves without a word");
    }
}

/// A crash, then a restart, both beside open and prepared transactions and temporary tables; `step` messages as in the recording.
fn crash_and_restart() -> String {
    let temp = |table: &str, columns: &str| {
        format!("{{ create_table = {{ table = '{table}', columns = [{columns}], temporary = true }} }}")
    };
    let (commit, insert) = ("{ commit = {} }", |table: &str| format!("{{ insert = {{ table = '{table}' }} }}"));
    let (text, number) = ("'id int', 'b text'", "'a int'");
    let add = |column: &str| format!("{{ add_column = {{ table = 'k', column = '{column} int' }} }}");
    let at = |start: &str, name: &str, does: &str| actor(name, &format!("start = '{start}'"), does);
    let open = "{ wait = '1h' }";
    let heir = [
        "{ nextval = { sequence = 's_id_seq' } }".to_owned(),
        format!("{commit}, {STEP}, {{ commit_prepared = {{ gid = 'p' }} }}, {}", insert("k")),
        format!("{commit}, {STEP}, {}, {{ rollback = {{}} }}", temp("tx", number)),
        format!("{STEP}, {}, {commit}, {STEP}, {}, {commit}, {STEP}", temp("tx", number), temp("ty", number)),
    ];
    let first = format!(
        "{}, {commit}, {}, {commit}, {}, {commit}, {}, {INSERT}, {open}",
        temp("tt", text),
        insert("tt"),
        temp("ts", "'id serial primary key', 'a int'"),
        temp("tu", number)
    );
    let actors = [
        at("0s", "a", &first),
        at("1s", "b", &format!("{}, {{ prepare = {{ gid = 'p' }} }}", add("more"))),
        at("2s", "c", &format!("{{ delete = {{ table = 't', rows = 2 }} }}, {{ savepoint = 's' }}, {INSERT}, {open}")),
        at("3s", "crash", &format!("{STEP}, {}", insert("w"))),
        at("6s", "heir", &heir.join(", ")),
        at("7s", "snapshot", STEP),
        at("25s", "restart_load", STEP),
        at("26s", "d", &format!("{INSERT}, {{ savepoint = 's' }}, {INSERT}, {open}")),
        at("26s", "e", &format!("{}, {commit}, {open}", temp("tt", text))),
        at("26s", "f", &format!("{}, {{ prepare = {{ gid = 'q' }} }}", add("further"))),
        at("26s", "idle", &format!("{{ savepoint = 's' }}, {open}")),
        at(
            "26s",
            "g",
            &format!("{}, {commit}, {}, {{ truncate = {{ table = 'w' }} }}, {open}", temp("tv", number), temp("tw", number)),
        ),
        at("27s", "before", "{ create_table = { table = 'before', columns = ['a int'] } }"),
        at("28s", "restart", STEP),
        at(
            "31s",
            "restarted",
            &format!(
                "{STEP}, {{ nextval = {{ sequence = 's_id_seq' }} }}, {commit}, {{ create_table = {{ table = 'after', columns = ['a int'] }} }}, \
             {commit}, {STEP}, {{ commit_prepared = {{ gid = 'q' }} }}, {STEP}"
            ),
        ),
        at("50s", "end", STEP),
    ];
    let faults = "[[tables]]\nname = 's'\ncolumns = ['id serial']\n\
        [[faults]]\nat = '5s'\nkind = 'crash'\n[[faults]]\nat = '30s'\nkind = 'restart'\n";
    format!("{SETUP}{faults}{}", actors.concat())
}

/// Lines by transaction, in any order: the sessions of a server that stops end at the same time.
fn by_transaction(records: &[WalRecord]) -> Vec<Vec<String>> {
    let mut xids: Vec<_> = records.iter().map(|record| record.xid).collect();
    xids.sort_unstable_by_key(|xid| xid.0);
    xids.dedup();
    let of = |xid| Lines::of(records.iter().filter(|record| record.xid == xid));
    let mut lines: Vec<_> = xids.into_iter().map(of).collect();
    lines.sort();
    lines
}

/// Object ids of shutdown checkpoints and of records that reserve some.
fn object_ids(records: &[WalRecord]) -> Vec<(u32, bool)> {
    let id = |record: &WalRecord| match &record.body {
        RecordBody::Checkpoint(checkpoint) => Some((checkpoint.next_oid.0, true)),
        RecordBody::NextOid(oid) => Some((oid.0, false)),
        _ => None,
    };
    records.iter().filter_map(id).collect()
}

#[test]
fn a_crash_and_a_restart() {
    let text = crash_and_restart();
    for version in PgVersion::ALL {
        let mut sink = MemorySink::new(version);
        let scenario = Scenario::parse("test", &text).unwrap();
        let summary =
            scenario.run(&Overrides::new(), &mut VirtualClock::default(), &mut seeded(1), &mut sink, |_, _| ()).unwrap();
        assert_eq!((summary.crashes, summary.restarts, summary.vanished), (1, 1, 2));
        let is_step = |r: &WalRecord| matches!(&r.body, RecordBody::LogicalMessage(m) if m.prefix == b"step");
        let ours: Vec<&[WalRecord]> = sink.records.split(is_step).skip(1).collect();
        let real = Recorded::read_from("golden_crash", version);
        let names = [
            "crash",
            "crash_commit_prepared",
            "crash_orphans_rolled_back",
            "crash_orphans",
            "crash_orphans_again",
            "crash_orphans_exit",
            "crash_snapshot",
            "restart_load",
            "restart",
            "restarted",
            "restart_commit_prepared",
            "restart_snapshot",
        ];
        assert_eq!(ours.len(), names.len() + 1);
        for (ours, name) in ours.iter().zip(names).filter(|(_, name)| *name != "restart_load") {
            let what = format!("PostgreSQL {version}, {name}");
            let real = real.steps(&[name]);
            if name == "restart" {
                assert_eq!(by_transaction(ours), by_transaction(&real), "{what}");
                assert!(matches!(&ours.last().unwrap().body, RecordBody::Checkpoint(checkpoint) if checkpoint.shutdown));
            } else {
                compare(&what, &Lines::of(ours.iter()), &Lines::of(real.iter()));
            }
        }
        // After a crash object ids begin behind those that were reserved, after a restart behind those that were given.
        let (ours, real) = (object_ids(&sink.records), object_ids(&real.steps(&names)));
        let gaps = |ids: &[(u32, bool)]| -> Vec<(u32, bool)> {
            let starts = ids.iter().position(|(_, checkpoint)| *checkpoint).unwrap();
            ids[starts..].windows(2).map(|pair| (pair[1].0.abs_diff(pair[0].0), pair[1].1)).collect()
        };
        let ours = gaps(&ours[1..]);
        assert_eq!((ours[0], ours[2]), ((8192, false), (8192, false)), "{ours:?}");
        let real = gaps(&real);
        assert_eq!((real[0], real[2]), (ours[0], ours[2]), "PostgreSQL {version}: {real:?}");
    }
}

/// Sessions that make temporary tables beside a decoder that is paused, VACUUM of catalogs then, and again when it has moved.
const CHURN: &str = "name = 'churn'\nstory = 'Dead rows of catalogs.'\nseed = 1\n\
    [[consumers]]\nslot = 's'\nkind = 'logical'\npaused = [{ from = '0s', to = '60s' }]\n\
    [[actors]]\nname = 'a'\ntransactions = 1\nsteps = [{ repeat = { times = 20, steps = [\
    { create_table = { table = 'w', columns = ['id int', 'n int'], temporary = true } }, { commit = {} }, \
    { drop_table = { table = 'w' } }, { commit = {} }] } }, VACUUMS, { wait = '100s' }, { commit = {} }, VACUUMS, STEP]\n";

/// What VACUUM of a catalog says: rows by pass, whether records say that it is a catalog, whether `last` is the newest that
/// conflicts, whether pages became all-visible, and whether others are told that the catalog and the relcache init file changed.
fn catalog_vacuum(records: &[WalRecord], catalog: u32, last: Xid) -> String {
    let prunes = |second: bool| {
        let of_pass = move |r: &&WalRecord| match &r.body {
            RecordBody::Prune(p) => p.target.rel == catalog && (p.reason == PruneReason::VacuumCleanup) == second,
            _ => false,
        };
        let prunes = records.iter().filter(of_pass).filter_map(|r| match &r.body {
            RecordBody::Prune(p) => Some((p.redirected, p.dead, p.unused, u16::from(p.is_catalog), p.conflict_horizon)),
            _ => None,
        });
        prunes.collect::<Vec<_>>()
    };
    let rows =
        |pass: &[(u16, u16, u16, u16, Xid)]| pass.iter().fold((0, 0, 0), |sum, p| (sum.0 + p.0, sum.1 + p.1, sum.2 + p.2));
    let (first, second) = (prunes(false), prunes(true));
    let said = |pass: &[(u16, u16, u16, u16, Xid)]| (pass.iter().any(|p| p.3 == 1), pass.iter().all(|p| p.3 == 1));
    let newest = first.iter().any(|p| p.4 == last);
    let visible = records.iter().any(|r| matches!(&r.body, RecordBody::Visible(v) if v.target.rel == catalog));
    let told = records.iter().any(|r| match &r.body {
        RecordBody::Commit(c) => {
            is_told(&c.messages, catalog) && (c.xinfo & xinfo::UPDATE_RELCACHE_FILE != 0 || catalog == 2608)
        }
        RecordBody::StandbyInvalidations(s) => is_told(&s.messages, catalog) && s.relcache_init_file_inval == (catalog != 2608),
        _ => false,
    });
    let (by_first, by_second) = (rows(&first), rows(&second));
    format!(
        "{by_first:?} {:?} then {by_second:?} {:?} newest {newest} visible {visible} told {told}",
        said(&first),
        said(&second)
    )
}

/// Whether a relation is among the messages.
fn is_told(messages: &[InvalidationMessage], rel: u32) -> bool {
    messages.iter().any(|message| matches!(message, InvalidationMessage::Relcache { rel: told, .. } if told.0 == rel))
}

/// The newest xid that committed.
fn last_commit(records: &[WalRecord]) -> Xid {
    let commits = records.iter().filter(|r| matches!(&r.body, RecordBody::Commit(_)));
    commits.map(|r| r.xid).max_by_key(|xid| xid.0).unwrap()
}

#[test]
fn rows_of_catalogs_are_held_until_the_catalog_xmin_of_a_decoder_moves() {
    let catalogs = [("pg_class", 1259), ("pg_attribute", 1249), ("pg_type", 1247), ("pg_depend", 2608)];
    let vacuums: Vec<String> =
        catalogs.iter().map(|(name, _)| format!("{STEP}, {{ vacuum = {{ table = '{name}' }} }}")).collect();
    let text = CHURN.replace("VACUUMS", &vacuums.join(", ")).replace("STEP", STEP);
    for version in PgVersion::ALL {
        let mut sink = MemorySink::new(version);
        let scenario = Scenario::parse("churn", &text).unwrap();
        scenario.run(&Overrides::new(), &mut VirtualClock::default(), &mut seeded(1), &mut sink, |_, _| ()).unwrap();
        let is_step = |r: &WalRecord| matches!(&r.body, RecordBody::LogicalMessage(m) if m.prefix == b"step");
        let ours: Vec<_> = sink.records.split(is_step).collect();
        let real = Recorded::read_from("golden_rows", version);
        let (our_last, real_last) = (last_commit(ours[0]), last_commit(&real.steps(&["churn"])));
        for (index, (name, oid)) in catalogs.into_iter().enumerate() {
            for (when, first) in [("held", 1), ("moved", 5)] {
                let our = catalog_vacuum(ours[first + index], oid, our_last);
                let their = catalog_vacuum(&real.steps(&[&format!("{when}_{name}")]), oid, real_last);
                assert_eq!(our, their, "PostgreSQL {version}, {name}, {when}");
                assert_eq!(our.starts_with("(0, 0, 0)"), when == "held", "{our}");
            }
        }
    }
}

/// What pruning of a page says: records, line pointers that lead on, dead ones, and whether each is conflicting with the
/// transaction before.
fn prunings(records: &[WalRecord]) -> Vec<(u16, u16, u32, Xid)> {
    let newest = |upto: usize| records[..upto].iter().rev().find(|r| r.xid.is_valid()).map_or(Xid::INVALID, |r| r.xid);
    let prunes = records.iter().enumerate().filter_map(|(at, r)| match &r.body {
        RecordBody::Prune(p) => Some((p.redirected, p.dead, p.conflict_horizon.0.wrapping_sub(newest(at).0), r.xid)),
        _ => None,
    });
    // The first one is about what was done in the step before.
    prunes.skip(1).collect()
}

#[test]
fn a_page_without_room_is_pruned_at_each_update() {
    let update = "{ update = { table = 'o' } }, { commit = {} }";
    let does = format!(
        "{STEP}, {{ repeat = {{ times = 30, steps = [{update}] }} }}, {STEP}, {{ repeat = {{ times = 40, steps = [{update}] }} }}, {STEP}"
    );
    let table = "[[tables]]\nname = 'o'\ncolumns = ['id int primary key', 'n int']\nrow_bytes = 100\n\
        [[actors]]\nname = 'fill'\nafter = ['setup']\ntransactions = 1\nsteps = [{ insert = { table = 'o', rows = 60 } }]\n";
    for version in PgVersion::ALL {
        let ours = run_steps(version, &format!("{table}{}", actor("a", "after = ['fill']", &does)));
        let real = Recorded::read_from("golden_rows", version);
        for (ours, step) in ours.iter().zip(["prune_updates", "prune_one_row"]) {
            let (ours, theirs) = (prunings(ours), prunings(&real.steps(&[step])));
            assert_eq!(ours, theirs, "PostgreSQL {version}, {step}");
            assert!(ours.len() >= 28, "{}", ours.len());
        }
    }
}
