//! Random scenarios of every kind of transaction, most with crashes and restarts: a decoder gives out exactly what committed, in the
//! order of commits, and a standby knows who runs. Their logs are what the simulated primary wrote, their truth is what it did.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod kinds;
mod steps;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

use decoder_core::catalog::{Catalog, RelationInfo};
use decoder_core::output::{DecodedTransaction, OutputSink};
use decoder_core::{Decoder, DecoderConfig, Profile};
use pg_types::record::LogicalMessageRecord;
use pg_types::{Lsn, Oid, PgVersion, RecordBody, RelFileLocator, WalRecord, Xid};
use primary_core::catalog::{OnCommit, RelKind, Relation};
use primary_core::rng::seeded;
use primary_core::{Engine, MemorySink, Overrides, RowCounts, RunSummary, Scenario, Step, TransactionTruth, VirtualClock};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use standby_core::{RecoveryWriter, StandbyProfile, StandbySettings};

use kinds::Kinds;

/// Histories that are played, each in every version.
const CASES: u32 = 64;
/// Most rounds of them, until everything has happened.
const ROUNDS: u64 = 8;

/// Rows of user tables by oid.
type Rows = BTreeMap<u32, RowCounts>;

/// Every relation that there ever was, by oid and by each of its files.
#[derive(Clone, Debug, Default)]
struct Known {
    relations: BTreeMap<Oid, RelationInfo>,
    files: BTreeMap<u32, Oid>,
    /// Temporary tables, those that go at commit.
    temporary: BTreeSet<Oid>,
    dropped_at_commit: BTreeSet<Oid>,
    toast: BTreeSet<u32>,
}

impl Known {
    /// Takes in what the server has now.
    fn note(&mut self, relation: &Relation) {
        // Decoded are plain tables and partitioned ones.
        let logged = relation.kind.is_table() && !relation.temporary;
        let (oid, name) = (relation.oid, Arc::clone(&relation.name));
        self.relations.entry(oid).or_insert(RelationInfo { oid, namespace: relation.namespace, name, logged });
        if relation.temporary && relation.kind == RelKind::Table {
            let tables = if relation.on_commit == OnCommit::Drop { &mut self.dropped_at_commit } else { &mut self.temporary };
            tables.insert(oid);
        }
        if relation.kind == RelKind::Toast {
            self.toast.insert(relation.filenode);
        }
        if relation.kind.has_storage() {
            self.files.entry(relation.filenode).or_insert(oid);
        }
    }

    /// Rows by the oid of their table, without those of TOAST tables.
    fn rows_by_oid(&self, rows: &BTreeMap<u32, RowCounts>) -> Rows {
        let mut sums = Rows::new();
        for (file, count) in rows {
            let oid = self.files[file];
            if self.relations[&oid].logged {
                let sum = sums.entry(oid.0).or_default();
                sum.inserted += count.inserted;
                sum.updated += count.updated;
                sum.deleted += count.deleted;
            }
        }
        sums
    }
}

impl Catalog for Known {
    fn by_file(&self, file: RelFileLocator) -> Option<RelationInfo> {
        if file.rel < Oid::FIRST_NORMAL.0 {
            let name = file.to_string().into();
            return Some(RelationInfo { oid: Oid(file.rel), namespace: Oid(11), name, logged: false });
        }
        self.by_oid(*self.files.get(&file.rel)?)
    }

    fn by_oid(&self, oid: Oid) -> Option<RelationInfo> {
        self.relations.get(&oid).cloned()
    }
}

/// What a run wrote and did.
struct Run {
    records: Vec<WalRecord>,
    truths: Vec<TransactionTruth>,
    known: Known,
    sessions: u64,
    summary: RunSummary,
}

fn run(version: PgVersion, text: &str, seed: u64) -> Run {
    let mut sink = MemorySink::new(version);
    let (mut truths, mut known, mut sessions) = (Vec::new(), Known::default(), 0);
    let after_step = |engine: &Engine, step: &Step| {
        engine.catalog().relations().for_each(|relation| known.note(relation));
        sessions = engine.plan().actors.iter().map(|actor| actor.sessions).sum();
        if let Step::Ended(truth) = step {
            truths.push((**truth).clone());
        }
    };
    let scenario = Scenario::parse("random", text).unwrap();
    let summary =
        scenario.run(&Overrides::new(), &mut VirtualClock::default(), &mut seeded(seed), &mut sink, after_step).unwrap();
    Run { records: sink.records, truths, known, sessions, summary }
}

/// Collects what a decoder gives out.
#[derive(Default)]
struct Collected {
    /// Transactions: xid, position, rows by oid, subtransactions.
    transactions: Vec<(Xid, Lsn, Rows, usize)>,
    /// Times that a table was truncated.
    truncated: BTreeMap<u32, u64>,
    /// Positions of logical messages.
    messages: BTreeSet<Lsn>,
}

impl OutputSink for Collected {
    fn message(&mut self, lsn: Lsn, _: Xid, _: &LogicalMessageRecord) {
        self.messages.insert(lsn);
    }

    fn commit(&mut self, transaction: &DecodedTransaction) {
        let mut rows = Rows::new();
        for r in &transaction.relations {
            if r.truncate > 0 {
                *self.truncated.entry(r.oid.0).or_default() += r.truncate;
            }
            if r.insert + r.update + r.delete > 0 {
                rows.insert(r.oid.0, RowCounts { inserted: r.insert, updated: r.update, deleted: r.delete });
            }
        }
        self.transactions.push((transaction.xid, transaction.commit_lsn, rows, transaction.subxids.len()));
    }
}

/// Decodes a run and compares it with its truth.
fn check_decoder(version: PgVersion, run: &Run) -> Result<(), TestCaseError> {
    let profile: Profile = format!("pg{version}").parse().unwrap();
    let config = DecoderConfig::new(version, profile, Oid(5));
    let mut decoder = Decoder::new(config, Arc::new(run.known.clone()));
    let mut decoded = Collected::default();
    for record in &run.records {
        decoder.process(record, &mut decoded).unwrap();
    }
    let committed = run.truths.iter().filter(|truth| truth.committed && truth.xid.is_valid());
    let expected: Vec<_> =
        committed.map(|truth| (truth.xid, truth.lsn, run.known.rows_by_oid(&truth.rows), truth.subxids)).collect();
    let with_rows = |all: &[(Xid, Lsn, Rows, usize)]| -> Vec<_> {
        all.iter().filter(|(_, _, rows, _)| !rows.is_empty()).cloned().collect()
    };
    prop_assert_eq!(with_rows(&decoded.transactions), with_rows(&expected), "PostgreSQL {}", version);
    let xids: BTreeSet<u32> = expected.iter().map(|(xid, ..)| xid.0).collect();
    for (xid, ..) in &decoded.transactions {
        prop_assert!(xids.contains(&xid.0), "PostgreSQL {}: {} was given out and did not commit", version, xid.0);
    }
    prop_assert_eq!(decoder.sizes().transactions, 0, "nothing is left unfinished");
    check_truncates_and_messages(version, run, &decoded)
}

/// TRUNCATEs and messages come out if they committed: what the log tells without any order, xid by xid.
fn check_truncates_and_messages(version: PgVersion, run: &Run, decoded: &Collected) -> Result<(), TestCaseError> {
    let mut committed = BTreeSet::new();
    for record in &run.records {
        if let RecordBody::Commit(commit) = &record.body {
            let own = if commit.prepared_xid.is_valid() { commit.prepared_xid } else { record.xid };
            committed.extend(commit.subxids.iter().chain([&own]).map(|xid| xid.0));
        }
    }
    let (mut truncated, mut messages) = (BTreeMap::new(), BTreeSet::new());
    for record in &run.records {
        let stays = committed.contains(&record.xid.0);
        match &record.body {
            RecordBody::Truncate(truncate) if stays => {
                truncate.relids.iter().for_each(|rel| *truncated.entry(rel.0).or_default() += 1);
            }
            RecordBody::LogicalMessage(message) if stays || !message.transactional => drop(messages.insert(record.lsn)),
            _ => {}
        }
    }
    prop_assert_eq!(&decoded.truncated, &truncated, "PostgreSQL {}: TRUNCATE by oid", version);
    prop_assert_eq!(&decoded.messages, &messages, "PostgreSQL {}: logical messages", version);
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

/// The seed that the histories are drawn with: `PROPTEST_RNG_SEED`, or another one each time.
fn drawn_seed() -> u64 {
    let given = std::env::var("PROPTEST_RNG_SEED").ok().map(|seed| seed.parse().expect("PROPTEST_RNG_SEED is a number"));
    given.unwrap_or_else(|| RandomState::new().build_hasher().finish())
}

/// Plays [`CASES`] histories of a seed, and counts what was in them.
fn play(seed: u64, kinds: &RefCell<Kinds>) {
    let config =
        ProptestConfig { rng_seed: RngSeed::Fixed(seed), failure_persistence: None, ..ProptestConfig::with_cases(CASES) };
    let histories = (proptest::collection::vec(steps::actor(), 1..4), steps::faults(), any::<u64>(), any::<bool>());
    let played = TestRunner::new(config).run(&histories, |(actors, faults, seed, near_wraparound)| {
        let first_xid = if near_wraparound { u64::from(u32::MAX) - 20 } else { 731 };
        let text = steps::scenario(&actors, &faults, first_xid);
        for version in PgVersion::ALL {
            let run = run(version, &text, seed);
            kinds.borrow_mut().count(&run);
            check_decoder(version, &run)?;
            check_standby(version, &run)?;
        }
        Ok(())
    });
    let again = format!("PROPTEST_RNG_SEED={seed} cargo nextest run -p integration-tests -E 'binary(random_transactions)'");
    played.unwrap_or_else(|failure| panic!("{failure}\nto see it again: {again}"));
}

#[test]
fn what_committed_is_decoded_and_nobody_runs_in_the_end() {
    let (seed, kinds) = (drawn_seed(), RefCell::new(Kinds::default()));
    // What is rare may be missing in one round of draws, not in all of them.
    for round in 0..ROUNDS {
        play(seed.wrapping_add(round), &kinds);
        if kinds.borrow().missing().is_empty() {
            return;
        }
    }
    panic!("{ROUNDS} times {CASES} histories, from seed {seed} on, had none of: {:?}", kinds.borrow().missing());
}
