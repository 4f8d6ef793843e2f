//! Consumers and faults of a scenario, at barriers of simulated time.

use pg_types::{Lsn, PgVersion, RecordBody, WalRecord, Xid};
use primary_core::rng::seeded;
use primary_core::{Engine, MemorySink, Overrides, RunSummary, Scenario, Step, TransactionTruth, VirtualClock};

/// What a run wrote and did.
struct Run {
    records: Vec<WalRecord>,
    truths: Vec<TransactionTruth>,
    barriers: Vec<Lsn>,
    summary: RunSummary,
}

/// Plays sections behind a table; a consumer loses its right to WAL when it keeps more than `keep` bytes.
fn play(version: PgVersion, sections: &str, keep: Option<u64>) -> Run {
    let keep = keep.map_or_else(String::new, |keep| format!("max_slot_wal_keep_size = {keep}\n"));
    let text = format!(
        "name = 'test'\nstory = 'A test.'\nseed = 1\n[server]\nmax_prepared_transactions = 5\nrunning_xacts_every = '3s'\n{keep}\
         [[tables]]\nname = 't'\ncolumns = ['id int', 'v text']\nrows = 20\n{sections}"
    );
    let plan = Scenario::parse("test", &text).unwrap().plan(&Overrides::new()).unwrap();
    let mut engine = Engine::new(plan, version).unwrap();
    let (mut clock, mut rng, mut sink) = (VirtualClock::default(), seeded(1), MemorySink::new(version));
    let (mut truths, mut barriers) = (Vec::new(), Vec::new());
    loop {
        match engine.step(&mut clock, &mut rng, &mut sink).unwrap() {
            Step::Done => break,
            Step::Ended(truth) => truths.push(*truth),
            Step::Barrier(lsn) => barriers.push(lsn),
            _ => {}
        }
    }
    Run { records: sink.records, truths, barriers, summary: engine.summary().clone() }
}

const WRITER: &str = "[[actors]]\nname = 'w'\nevery = '100ms'\ntransactions = 100\nsteps = [{ insert = { table = 't' } }]\n";

#[test]
fn barriers_come_only_where_somebody_needs_them() {
    let without = play(PgVersion::V18, WRITER, None);
    let with = play(PgVersion::V18, &format!("[[consumers]]\nslot = 'a'\n{WRITER}"), None);
    assert!(without.barriers.is_empty() && without.summary.consumers.is_empty());
    assert_eq!(with.barriers.len(), 10, "one a second");
    assert!(without.records == with.records, "a consumer that keeps up changes nothing");
    assert_eq!(with.summary.consumers[0].flushed, with.summary.end_lsn, "it reads to the end");
}

#[test]
fn consumers_end_where_their_behaviour_leaves_them_and_are_lost_by_size() {
    let sections = "[[consumers]]\nslot = 'all'\n[[consumers]]\nslot = 'slow'\nbytes_per_second = 200\n\
        [[consumers]]\nslot = 'paused'\npaused = [{ from = '2s', to = '1h' }]\n[[consumers]]\nslot = 'dead'\ndead_at = '5s'\n";
    let run = |keep| play(PgVersion::V16, &format!("{sections}{WRITER}"), keep);
    let kept = run(None);
    let [all, slow, paused, dead] = &kept.summary.consumers[..] else { panic!("four consumers") };
    assert_eq!((all.flushed, all.connected), (kept.summary.end_lsn, true));
    assert!(slow.flushed > kept.summary.start_lsn && slow.flushed.0 < kept.summary.start_lsn.0 + 200 * 11, "{slow:?}");
    assert_eq!((paused.flushed, paused.connected), (kept.barriers[0], true));
    assert_eq!((dead.flushed, dead.connected), (kept.barriers[3], false));
    assert!(paused.xmin.precedes(dead.xmin) && dead.xmin.precedes(all.xmin));

    let lost = run(Some(4_000));
    let at: Vec<Option<Lsn>> = lost.summary.consumers.iter().map(|consumer| consumer.lost_at).collect();
    let first_past = |from: Lsn| lost.barriers.iter().copied().find(|lsn| lsn.0.saturating_sub(from.0) > 4_000);
    assert_eq!((at[0], at[2], at[3]), (None, first_past(lost.barriers[0]), first_past(lost.barriers[3])));
    assert!(at[2].is_some() && lost.summary.consumers[2].xmin == Xid::INVALID);
    assert_eq!(run(Some(4_000)).summary, lost.summary, "and again");
}

#[test]
fn a_paused_standby_holds_vacuum_back_and_a_decoder_does_not() {
    let removed = |consumer: &str| -> u16 {
        let actors = "[[actors]]\nname = 'a'\ntransactions = 1\nsteps = [{ wait = '3s' }, { delete = { table = 't', rows = 5 } }, \
            { commit = {} }, { wait = '3s' }, { vacuum = { table = 't' } }]\n";
        let run = play(PgVersion::V18, &format!("{consumer}{actors}"), None);
        let pruned = run.records.iter().filter_map(|record| match &record.body {
            RecordBody::Prune(prune) => Some(prune.unused),
            _ => None,
        });
        pruned.sum()
    };
    let paused = |kind: &str| format!("[[consumers]]\nslot = 'a'\nkind = '{kind}'\npaused = [{{ from = '2s', to = '1h' }}]\n");
    assert_eq!([removed(""), removed(&paused("logical")), removed(&paused("physical"))], [5, 5, 0]);
}

#[test]
fn a_crash_takes_open_transactions_away_without_a_record() {
    for version in PgVersion::ALL {
        let sections = "[[faults]]\nat = '5s'\nkind = 'crash'\n\
            [[actors]]\nname = 'open'\ntransactions = 1\nsteps = [{ delete = { table = 't', rows = 20 } }, { wait = '8s' }]\n\
            [[actors]]\nname = 'prepared'\ntransactions = 1\nsteps = [{ insert = { table = 't' } }, { prepare = { gid = 'p' } }]\n\
            [[actors]]\nname = 'after'\nafter = ['open']\ntransactions = 1\n\
            steps = [{ commit_prepared = { gid = 'p' } }, { delete = { table = 't', rows = 20 } }]\n";
        let run = play(version, &format!("{sections}{WRITER}"), None);
        assert_eq!((run.summary.crashes, run.summary.vanished), (1, 1));
        assert_eq!(run.summary.connections, 4 + 1, "the writer connected again");
        assert!(run.truths.iter().all(|truth| truth.actor != "open"), "nobody is told how it ended");
        let crash = run.records.iter().rposition(|r| matches!(&r.body, RecordBody::Checkpoint(c) if c.shutdown)).unwrap();
        let lists = run.records[crash..].iter().filter_map(|record| match &record.body {
            RecordBody::RunningXacts(running) => Some(running),
            _ => None,
        });
        let running = lists.clone().next().unwrap();
        assert_eq!(lists.count(), 2, "{version}: one 3 s after the start, one at the end");
        let prepared = run.truths.iter().find(|truth| truth.gid.as_deref() == Some("p")).unwrap().xid;
        assert_eq!((running.xids.as_slice(), running.oldest_running_xid), (&[prepared][..], prepared), "{version}");
        let gone = run.records.iter().find(|r| matches!(r.body, RecordBody::Delete(_))).unwrap().xid;
        assert!(run.records[crash..].iter().all(|record| record.xid != gone), "{version}: nothing more of it");
        let after = run.truths.iter().filter(|truth| truth.actor == "after" && truth.committed).count();
        assert_eq!(after, 2, "{version}: the prepared one is still there, and so are the rows");
    }
}

#[test]
fn the_clock_of_commits_jumps_and_the_run_does_not() {
    let jump = |fault: &str| play(PgVersion::V17, &format!("{fault}{WRITER}"), None);
    let (steady, back) = (jump(""), jump("[[faults]]\nat = '4500ms'\nkind = 'clock_jump'\nback = '1h'\n"));
    let differences: Vec<i64> = steady.truths.iter().zip(&back.truths).map(|(a, b)| a.time.0 - b.time.0).collect();
    let jumped = differences.iter().position(|difference| *difference != 0).unwrap();
    assert!((50..=51).contains(&jumped), "at the barrier at 5 s: {jumped}");
    assert!(differences[jumped..].iter().all(|difference| *difference == 3_600_000_000));
    assert_eq!(steady.summary.simulated_us, back.summary.simulated_us);
}

#[test]
fn whoever_steps_may_ask_for_barriers() {
    let text =
        format!("name = 'test'\nstory = 'A test.'\nseed = 1\n[[tables]]\nname = 't'\ncolumns = ['id int', 'v text']\n{WRITER}");
    let plan = Scenario::parse("test", &text).unwrap().plan(&Overrides::new()).unwrap();
    let mut engine = Engine::new(plan, PgVersion::V18).unwrap();
    engine.want_barriers();
    let (mut clock, mut rng, mut sink) = (VirtualClock::default(), seeded(1), MemorySink::new(PgVersion::V18));
    let mut barriers = 0;
    loop {
        match engine.step(&mut clock, &mut rng, &mut sink).unwrap() {
            Step::Done => break,
            Step::Barrier(lsn) => {
                assert_eq!(lsn, sink.records.last().unwrap().end_lsn);
                barriers += 1;
            }
            _ => {}
        }
    }
    assert_eq!(barriers, 10);
}

/// Two sessions that are open at five seconds, one of them with a temporary table, and one that waits for a lock.
const LOAD: &str = "[[actors]]\nname = 'open'\ntransactions = 1\nsteps = [{ delete = { table = 't', rows = 20 } }, { savepoint = 's' }, \
    { insert = { table = 't' } }, { wait = '8s' }]\n\
    [[actors]]\nname = 'temp'\ntransactions = 1\nsteps = [{ create_table = { table = 'w', columns = ['id int'], temporary = true } }, \
    { commit = {} }, { wait = '8s' }]\n\
    [[actors]]\nname = 'waits'\ntransactions = 2\nstart = '1s'\nsteps = [{ truncate = { table = 't' } }]\n";

/// What comes before the shutdown checkpoint that is not the first record, and its place.
fn stopped_at(run: &Run) -> usize {
    run.records.iter().rposition(|r| matches!(&r.body, RecordBody::Checkpoint(c) if c.shutdown)).unwrap()
}

#[test]
fn a_restart_rolls_back_and_says_so() {
    for version in PgVersion::ALL {
        let run = play(version, &format!("[[faults]]\nat = '5s'\nkind = 'restart'\n{LOAD}"), None);
        assert_eq!((run.summary.restarts, run.summary.crashes, run.summary.vanished), (1, 0, 0));
        let stop = stopped_at(&run);
        assert_eq!(run.barriers[4], run.records[stop].end_lsn, "{version}: all of it at one barrier");
        let aborts = run.records[..stop].iter().filter(|r| matches!(r.body, RecordBody::Abort(_))).count();
        assert_eq!(aborts, 2, "{version}: the savepoint and its transaction; the one that waited has no xid");
        let ends: Vec<(&str, bool)> = run.truths.iter().map(|truth| (truth.actor.as_str(), truth.committed)).collect();
        let told = [("temp", true), ("open", false), ("temp", true), ("waits", false), ("waits", true)];
        assert_eq!(ends, told, "{version}: what was rolled back is not begun anew");
        assert_eq!(run.truths[2].did, ["DROP of 1 temporary table at the session's end"]);
        assert_eq!(run.summary.connections, 3 + 1);
        let between = &run.records[stop + 1];
        assert!(matches!(between.body, RecordBody::StandbyLocks(_)), "{version}: it starts without a word: {between:?}");
    }
}

#[test]
fn a_crash_leaves_temporary_tables_to_the_next_backend_of_that_number() {
    for version in PgVersion::ALL {
        // `other` takes the number of `temp` and makes nothing temporary at first.
        let other = "[[actors]]\nname = 'other'\ntransactions = 1\nstart = '6s'\nsteps = [{ insert = { table = 't' } }, { commit = {} }, \
            { create_table = { table = 'w', columns = ['id int'], temporary = true } }, { rollback = {} }, \
            { create_table = { table = 'w', columns = ['id int'], temporary = true } }, { commit = {} }]\n";
        let temp = "[[faults]]\nat = '5s'\nkind = 'crash'\n[[actors]]\nname = 'temp'\ntransactions = 1\n\
            steps = [{ create_table = { table = 'w', columns = ['id int'], temporary = true } }, { insert = { table = 'w' } }, { commit = {} }, \
            { create_table = { table = 'x', columns = ['id int'], temporary = true } }, { wait = '8s' }]\n";
        let run = play(version, &format!("{temp}{other}"), None);
        let deleted = |xid: Xid| {
            let rows = run.records.iter().filter(|r| r.xid == xid);
            rows.filter(|r| matches!(&r.body, RecordBody::Delete(d) if d.target.rel == pg_types::catalog::CLASS.0)).count()
        };
        let of_other: Vec<usize> =
            run.truths.iter().filter(|truth| truth.actor == "other").map(|truth| deleted(truth.xid)).collect();
        assert_eq!(
            of_other,
            [0, 1, 1, 1],
            "{version}: the orphan goes twice, the first time in vain; then its own table at its end"
        );
    }
}

#[test]
fn after_a_crash_prepared_transactions_keep_their_locks() {
    let sections = "[[faults]]\nat = '5s'\nkind = 'crash'\n\
        [[actors]]\nname = 'prepares'\ntransactions = 1\nsteps = [{ truncate = { table = 't' } }, { prepare = { gid = 'p' } }]\n\
        [[actors]]\nname = 'waits'\ntransactions = 1\nstart = '6s'\nsteps = [{ insert = { table = 't' } }]\n\
        [[actors]]\nname = 'ends'\ntransactions = 1\nstart = '9s'\nsteps = [{ END = { gid = 'p' } }]\n";
    for (version, end) in PgVersion::ALL.into_iter().zip(["commit_prepared", "rollback_prepared"].into_iter().cycle()) {
        let run = play(version, &sections.replace("END", end), None);
        let (prepared, inserted) = (&run.truths[1], &run.truths[2]);
        assert_eq!((prepared.gid.as_deref(), inserted.actor.as_str()), (Some("p"), "waits"), "{version}");
        let clock = |truth: &TransactionTruth| truth.time.0 - run.truths[0].time.0;
        assert_eq!((clock(prepared), clock(inserted)), (9_000_000, 9_000_000), "{version}: it waited for three seconds");
        let crash = stopped_at(&run);
        let told = run.records[crash..].iter().find_map(|r| match &r.body {
            RecordBody::StandbyLocks(locks) => Some(locks.clone()),
            _ => None,
        });
        let holders: Vec<Xid> = told.unwrap().iter().map(|lock| lock.xid).collect();
        assert!(
            holders.iter().all(|holder| *holder == run.truths[0].xid),
            "{version}: the first list tells whose locks are held"
        );
    }
}

#[test]
fn a_full_disk_puts_everything_off_and_consumers_go_on() {
    let consumer = "[[consumers]]\nslot = 'slow'\nbytes_per_second = 500\n";
    let run = |fault: &str| play(PgVersion::V18, &format!("{fault}{consumer}{WRITER}"), None);
    let steady = run("");
    let full = run("[[faults]]\nat = '4500ms'\nkind = 'disk_full'\nfor = '2500ms'\n");
    let bodies = |run: &Run| run.records.iter().filter(|r| matches!(r.body, RecordBody::Insert(_))).count();
    assert_eq!(bodies(&steady), bodies(&full), "nothing is lost");
    let times: Vec<i64> = full.truths.iter().map(|truth| truth.time.0 - full.truths[0].time.0).collect();
    let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!((3_000_000..=3_100_000).contains(&longest), "from the barrier at 5 s to that at 8 s: {longest}");
    assert_eq!(full.barriers[4..8].windows(2).filter(|pair| pair[0] == pair[1]).count(), 3, "{:?}", full.barriers);
    let behind = |run: &Run| run.summary.end_lsn.0 - run.summary.consumers[0].flushed.0;
    assert!(behind(&full) < behind(&steady), "it read on meanwhile");
    assert_eq!(run("[[faults]]\nat = '4500ms'\nkind = 'disk_full'\nfor = '2500ms'\n").records, full.records, "and again");

    // A server that panics of it comes up when there is room, and before anybody goes on.
    let faults = "[[faults]]\nat = '5s'\nkind = 'disk_full'\nfor = '3s'\n[[faults]]\nat = '5s'\nkind = 'crash'\n";
    let panicked = play(PgVersion::V18, &format!("{faults}{LOAD}"), None);
    let RecordBody::Checkpoint(up) = &panicked.records[stopped_at(&panicked)].body else { unreachable!() };
    let RecordBody::Checkpoint(first) = &panicked.records[0].body else { panic!("a log begins with a checkpoint") };
    assert_eq!((up.time - first.time, panicked.summary.vanished), (8, 1));
}

#[test]
fn faults_with_wrong_words_are_refused() {
    let cases = [
        ("kind = 'disk_full'", "disk_full needs 'for'"),
        ("kind = 'restart'\nfor = '1s'", "crash and restart nothing but 'at'"),
        ("kind = 'crash'\nback = '1s'", "crash and restart nothing but 'at'"),
        ("kind = 'disk_ful'\nfor = '1s'", "did you mean 'disk_full'"),
        ("kind = 'disk_full'\nfro = '1s'", "did you mean 'for'"),
    ];
    for (fault, says) in cases {
        let text = format!("name = 'test'\nstory = 'A test.'\nseed = 1\nactors = []\n[[faults]]\nat = '1s'\n{fault}\n");
        let error = Scenario::parse("test", &text).and_then(|scenario| scenario.plan(&Overrides::new())).unwrap_err();
        assert!(error.to_string().contains(says), "{fault}: {error}");
        assert!(error.line >= 6, "{error}");
    }
}
