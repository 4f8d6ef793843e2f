//! Random scenarios of every kind of transaction: a decoder gives out exactly what committed, in the order of commits, and a standby
//! knows who runs. Their logs are what the simulated primary wrote, their truth is what it did.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use decoder_core::catalog::NoCatalog;
use decoder_core::output::{DecodedTransaction, OutputSink};
use decoder_core::{Decoder, DecoderConfig, Profile};
use pg_types::{Lsn, Oid, PgVersion, RecordBody, WalRecord, Xid};
use primary_core::catalog::RelKind;
use primary_core::rng::seeded;
use primary_core::{MemorySink, Overrides, RowCounts, Scenario, Step, TransactionTruth, VirtualClock};
use proptest::prelude::*;
use standby_core::{RecoveryWriter, StandbyProfile, StandbySettings};

/// Steps inside of a transaction that need no others. No two tables are ever locked exclusively, so nobody waits for ever.
const PLAIN: [&str; 16] = [
    "{ insert = { table = 't', rows = 2 } }",
    "{ insert = { table = 'k' } }",
    "{ copy = { table = 't', rows = 5 } }",
    "{ update = { table = 'k', rows = 2 } }",
    "{ update = { table = 't', rows = 3 } }",
    "{ delete = { table = 't' } }",
    "{ delete = { table = 'k' } }",
    "{ insert_on_conflict = { table = 'k', rows = 2, conflicts = 1 } }",
    "{ insert_long = { table = 'k', bytes = 5000 } }",
    "{ update_long = { table = 'k', bytes = 3000 } }",
    "{ lock_rows = { table = 't', rows = 2, mode = 'share' } }",
    "{ message = { prefix = 'p', bytes = 9 } }",
    "{ message = { prefix = 'p', bytes = 9, transactional = false } }",
    "{ grant = { table = 'g', role = 'r' } }",
    "{ analyze = { table = 'k' } }",
    "{ wait = { from = '0ms', to = '4ms' } }",
];

/// Steps that go anywhere.
const SERVER: [&str; 2] = ["{ checkpoint = {} }", "{ log_standby_snapshot = {} }"];

/// What an actor does next.
#[derive(Clone, Debug)]
enum Block {
    /// A step.
    Plain(usize),
    /// A table of its own, by a number.
    Create,
    /// A savepoint with what is done in it: rolled back to, released, or left open.
    Sub(Vec<Block>, u8),
    /// More subtransactions than a slot holds.
    Overflow,
    /// COMMIT or ROLLBACK.
    End(bool),
    /// PREPARE, then COMMIT PREPARED or ROLLBACK PREPARED after a while.
    Prepared(bool),
    /// COMMIT, then VACUUM, perhaps with FREEZE and ANALYZE.
    Vacuum(bool, bool),
    /// The server is asked for something.
    Server(usize),
}

/// Blocks with savepoints up to a depth.
fn block() -> impl Strategy<Value = Block> {
    let leaf = prop_oneof![
        12 => (0..PLAIN.len()).prop_map(Block::Plain),
        2 => Just(Block::Create),
        1 => Just(Block::Overflow),
        2 => (0..SERVER.len()).prop_map(Block::Server),
    ];
    let nested = leaf.prop_recursive(3, 12, 4, |inner| {
        (proptest::collection::vec(inner, 1..4), 0..3u8).prop_map(|(blocks, end)| Block::Sub(blocks, end))
    });
    prop_oneof![
        10 => nested,
        1 => any::<bool>().prop_map(Block::End),
        2 => any::<bool>().prop_map(Block::Prepared),
        1 => (any::<bool>(), any::<bool>()).prop_map(|(freeze, analyze)| Block::Vacuum(freeze, analyze)),
    ]
}

/// Writes blocks as steps; `next` numbers names.
fn steps(blocks: &[Block], actor: usize, next: &mut u32, out: &mut Vec<String>) {
    for block in blocks {
        *next += 1;
        let n = *next;
        match block {
            Block::Plain(index) => out.push(PLAIN[*index].to_owned()),
            Block::Server(index) => out.push(SERVER[*index].to_owned()),
            Block::Create => {
                let name = format!("made_{actor}_{n}_{{n}}");
                out.push(format!("{{ create_table = {{ table = '{name}', columns = ['id serial primary key', 'a text'] }} }}"));
                out.push(format!("{{ insert = {{ table = '{name}' }} }}"));
            }
            Block::Sub(inner, end) => {
                out.push(format!("{{ savepoint = 's{n}' }}"));
                steps(inner, actor, next, out);
                match end {
                    0 => out.push(format!("{{ rollback_to = 's{n}' }}")),
                    1 => out.push(format!("{{ release = 's{n}' }}")),
                    _ => {}
                }
            }
            Block::Overflow => out.push(
                "{ repeat = { times = 70, steps = [{ savepoint = 'o' }, { insert = { table = 't' } }, { release = 'o' }] } }"
                    .to_owned(),
            ),
            Block::End(commit) => out.push(format!("{{ {} = {{}} }}", if *commit { "commit" } else { "rollback" })),
            Block::Prepared(commit) => {
                let gid = format!("gid = 'g_{actor}_{n}_{{n}}'");
                out.push(format!("{{ prepare = {{ {gid} }} }}"));
                out.push("{ wait = { from = '0ms', to = '9ms' } }".to_owned());
                let finish = if *commit { "commit_prepared" } else { "rollback_prepared" };
                out.push(format!("{{ {finish} = {{ {gid} }} }}"));
            }
            Block::Vacuum(freeze, analyze) => {
                out.push("{ commit = {} }".to_owned());
                out.push(format!("{{ vacuum = {{ table = 'k', freeze = {freeze}, analyze = {analyze} }} }}"));
            }
        }
    }
}

/// One actor: sessions, transactions of each, percent rolled back, origin, what it does.
type Actor = (u8, u8, bool, bool, Vec<Block>);

fn actor() -> impl Strategy<Value = Actor> {
    (1..4u8, 1..5u8, any::<bool>(), any::<bool>(), proptest::collection::vec(block(), 1..8))
}

/// The scenario's text.
fn scenario(actors: &[Actor], first_xid: u64) -> String {
    let mut text = format!(
        "name = 'random'\nstory = 'Random.'\nseed = 1\n[server]\nmax_prepared_transactions = 60\nrunning_xacts_every = '5ms'\n\
         checkpoint_every = '11ms'\nfirst_xid = {first_xid}\n\
         [[tables]]\nname = 't'\ncolumns = ['id int', 'note text']\nrows = 50\n\
         [[tables]]\nname = 'k'\ncolumns = ['id int primary key', 'note text']\nrows = 50\n\
         [[tables]]\nname = 'g'\ncolumns = ['id int']\n"
    );
    for (index, (sessions, transactions, rolls_back, replicated, blocks)) in actors.iter().enumerate() {
        let mut does = Vec::new();
        steps(blocks, index, &mut 0, &mut does);
        let percent = if *rolls_back { 30 } else { 0 };
        let origin = if *replicated { format!("origin = {}\n", index + 1) } else { String::new() };
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "[[actors]]\nname = 'a{index}'\nsessions = {sessions}\ntransactions = {transactions}\nevery = '3ms'\n\
             rollback_percent = {percent}\n{origin}steps = [{}]\n",
            does.join(", ")
        );
    }
    text
}

/// Rows of user tables by file.
type Rows = BTreeMap<u32, RowCounts>;

/// What a run wrote and did.
struct Run {
    records: Vec<WalRecord>,
    truths: Vec<TransactionTruth>,
    /// Files of the plain tables that are there at the end.
    tables: BTreeSet<u32>,
}

fn run(version: PgVersion, text: &str, seed: u64) -> Run {
    let mut sink = MemorySink::new(version);
    let (mut truths, mut tables) = (Vec::new(), BTreeSet::new());
    let after_step = |engine: &primary_core::Engine, step: &Step| match step {
        Step::Ended(truth) => truths.push((**truth).clone()),
        Step::Done => {
            let plain = engine.catalog().relations().filter(|relation| relation.kind == RelKind::Table);
            tables = plain.map(|relation| relation.filenode).collect();
        }
        _ => {}
    };
    let scenario = Scenario::parse("random", text).unwrap();
    scenario.run(&Overrides::new(), &mut VirtualClock::default(), &mut seeded(seed), &mut sink, after_step).unwrap();
    Run { records: sink.records, truths, tables }
}

/// Collects what a decoder gives out.
#[derive(Default)]
struct Collected(Vec<(Xid, Lsn, Rows, usize)>);

impl OutputSink for Collected {
    fn commit(&mut self, transaction: &DecodedTransaction) {
        let counts = |r: &decoder_core::output::RelationChanges| {
            (r.oid.0, RowCounts { inserted: r.insert, updated: r.update, deleted: r.delete })
        };
        let rows = transaction.relations.iter().map(counts).collect();
        self.0.push((transaction.xid, transaction.commit_lsn, rows, transaction.subxids.len()));
    }
}

/// Decodes a run and compares it with its truth.
fn check_decoder(version: PgVersion, run: &Run) -> Result<(), TestCaseError> {
    let profile: Profile = format!("pg{version}").parse().unwrap();
    let config = DecoderConfig {
        version,
        profile,
        database: Oid(5),
        confirmed_lsn: Lsn::INVALID,
        work_mem: decoder_core::WorkMem::default(),
        streaming: false,
    };
    let mut decoder = Decoder::new(config, Arc::new(NoCatalog));
    let mut collected = Collected::default();
    for record in &run.records {
        decoder.process(record, &mut collected).unwrap();
    }
    let of_tables = |rows: &Rows| -> Rows {
        rows.iter().filter(|(file, _)| run.tables.contains(file)).map(|(file, count)| (*file, *count)).collect()
    };
    let decoded: Vec<_> = collected.0.iter().map(|(xid, lsn, rows, subs)| (*xid, *lsn, of_tables(rows), *subs)).collect();
    let committed = run.truths.iter().filter(|truth| truth.committed && truth.xid.is_valid());
    let expected: Vec<_> = committed.map(|truth| (truth.xid, truth.lsn, of_tables(&truth.rows), truth.subxids)).collect();
    let with_rows = |all: &[(Xid, Lsn, Rows, usize)]| -> Vec<_> {
        all.iter().filter(|(_, _, rows, _)| !rows.is_empty()).cloned().collect()
    };
    prop_assert_eq!(with_rows(&decoded), with_rows(&expected), "PostgreSQL {}", version);
    let xids: BTreeSet<u32> = expected.iter().map(|(xid, ..)| xid.0).collect();
    for (xid, ..) in &decoded {
        prop_assert!(xids.contains(&xid.0), "PostgreSQL {}: {} was given out and did not commit", version, xid.0);
    }
    prop_assert_eq!(decoder.sizes().transactions, 0, "nothing is left unfinished");
    Ok(())
}

/// Replays a run: whoever is told to run is in every snapshot, and in the end nobody runs.
fn check_standby(version: PgVersion, run: &Run) -> Result<(), TestCaseError> {
    let settings = StandbySettings { max_prepared_transactions: 60, ..StandbySettings::default() };
    let mut recovery = RecoveryWriter::new(&settings, StandbyProfile::of_version(version)).unwrap();
    let RecordBody::Checkpoint(checkpoint) = &run.records[0].body else { panic!("a log begins with a checkpoint") };
    recovery.start_at_checkpoint(checkpoint, checkpoint.redo).unwrap();
    for record in &run.records {
        recovery.apply(record).unwrap();
        let RecordBody::RunningXacts(running) = &record.body else { continue };
        let Ok(taken) = recovery.reader().snapshot() else { continue };
        for xid in &running.xids {
            let in_progress = taken.snapshot.xip.contains(xid) || !xid.precedes(taken.snapshot.xmax);
            prop_assert!(in_progress, "PostgreSQL {}: {} runs at {}", version, xid.0, record.lsn);
        }
    }
    let snapshot = recovery.reader().snapshot().unwrap().snapshot;
    prop_assert!(snapshot.xip.is_empty() && snapshot.xmin == snapshot.xmax, "PostgreSQL {}: {:?}", version, snapshot);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn what_committed_is_decoded_and_nobody_runs_in_the_end(
        actors in proptest::collection::vec(actor(), 1..4), seed: u64, near_wraparound: bool,
    ) {
        let first_xid = if near_wraparound { u64::from(u32::MAX) - 20 } else { 731 };
        let text = scenario(&actors, first_xid);
        for version in PgVersion::ALL {
            let run = run(version, &text, seed);
            check_decoder(version, &run)?;
            check_standby(version, &run)?;
        }
    }
}
