//! Consumers and faults of a scenario, at barriers of simulated time.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

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
    let text = format!(
        "name = 'test'\nstory = 'A test.'\nseed = 1\n[server]\nmax_prepared_transactions = 5\n\
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
            Step::Barrier(lsn) => {
                barriers.push(lsn);
                if let Some(keep) = keep {
                    engine.lose_consumers_before(Lsn(lsn.0.saturating_sub(keep)));
                }
            }
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
        let RecordBody::RunningXacts(running) = &run.records[crash + 1].body else { panic!("what runs follows") };
        let prepared = run.truths.iter().find(|truth| truth.gid.as_deref() == Some("p")).unwrap().xid;
        assert_eq!((running.xids.as_slice(), running.oldest_running_xid), (&[prepared][..], prepared), "{version}");
        assert_eq!(running.latest_completed_xid.next(), running.next_xid);
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
