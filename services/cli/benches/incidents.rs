//! The decoder's scenarios at their published sizes, under the profiles that they tell apart: from the bytes of their WAL to transactions. Each is
//! decoded once.
//!
//! `cargo bench -p walstorm-cli --bench incidents [PART]`. Reading and the check of every CRC are in the time; `rolled-back-bulk` is elsewhere, its
//! 10 GB are those of the benchmark `large_transaction`.

#![allow(clippy::unwrap_used, missing_docs, reason = "a benchmark may stop at a defect; its functions are their questions")]

use decoder_core::{DecodedTransaction, OutputSink, Profile, TwoPhase, WorkMem};
use divan::Bencher;
use divan::counter::BytesCount;
use pg_types::PgVersion;
use primary_core::{ParameterValue, Scenario};
use walstorm_cli::scenario_log::ScenarioLog;
use walstorm_cli::wal_input::{Decoding, WalInput};

fn main() {
    divan::main();
}

/// Drops what it is given.
struct Nowhere;

impl OutputSink for Nowhere {
    fn commit(&mut self, _: &DecodedTransaction) {}
}

/// Plays a scenario and gives it with what its decoder is set up with: `parameters` are `name=number`, but `publication=name`, of which the rows are
/// asked for, and `two_phase`.
fn play(text: &str, parameters: &str, version: PgVersion) -> (ScenarioLog, WalInput, bool) {
    let scenario = Scenario::load(text).unwrap();
    let (mut overrides, mut publications, mut two_phase) = (primary_core::Overrides::new(), Vec::new(), false);
    for word in parameters.split_whitespace() {
        match word.split_once('=') {
            Some(("publication", name)) => publications.push(name.to_owned()),
            Some((name, number)) => drop(overrides.insert(name.to_owned(), ParameterValue::Number(number.parse().unwrap()))),
            None => two_phase = word == "two_phase",
        }
    }
    let log = ScenarioLog::play(&scenario, &overrides, scenario.seed(), version).unwrap();
    let catalog = log.engine().catalog();
    let folder = tempfile::tempdir().unwrap();
    for (name, csv) in catalog.published_csv().into_iter().chain([("pg_class", catalog.pg_class_csv())]) {
        std::fs::write(folder.path().join(format!("{name}_start.csv")), csv).unwrap();
    }
    let named = (!publications.is_empty()).then(|| folder.path());
    let mut input = WalInput::open(log.dir(), named, None).unwrap();
    input.callbacks = log.callbacks();
    input.options.publication_names = publications;
    (log, input, two_phase)
}

/// Measures the decoding of a scenario's log; `refused`: of one that ends in an error.
fn measure(bencher: Bencher, text: &str, parameters: &str, profile: &str, refused: bool) {
    let profile: Profile = profile.parse().unwrap();
    let (log, input, two_phase) = play(text, parameters, profile.wal_version);
    let bytes: u64 = std::fs::read_dir(log.dir()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    let two_phase = two_phase.then(TwoPhase::default);
    bencher.counter(BytesCount::new(bytes)).bench_local(|| {
        let decoding = Decoding { two_phase: two_phase.clone(), ..Decoding::at_commit(&profile, WorkMem::default()) };
        let mut decoder = input.decoder(decoding).unwrap();
        assert_eq!(input.decode(&mut decoder, &mut Nowhere).is_err(), refused);
    });
}

#[divan::bench(args = [
    ("truncate-partitions", "", "pg13"), ("truncate-partitions", "", "pg14"), ("truncate-partitions", "", "pg18"),
    ("truncate-partitions", "", "indexed"),
    ("catalog-churn", "", "pg96"), ("catalog-churn", "", "pg96+direct-syscache"), ("catalog-churn", "", "pg96+direct-syscache+small-map"),
    ("catalog-churn", "", "pg96+direct-syscache+small-map+callback-chains"), ("catalog-churn", "", "indexed"),
    ("schema-storm", "", "pg13"), ("schema-storm", "", "pg14"), ("schema-storm", "", "pg18"), ("schema-storm", "", "indexed"),
    ("alter-many", "", "pg18"), ("alter-many", "", "indexed"),
    ("grant-all", "", "pg18"), ("grant-all", "callbacks=4 entries=20000", "pg18"), ("grant-all", "", "indexed"),
    ("long-writer-ddl", "", "pg18"), ("long-writer-ddl", "", "indexed"),
    ("inval-feedback", "", "pg17.5"), ("inval-feedback", "", "pg17.6"), ("inval-feedback", "", "indexed"),
    ("inval-feedback", "transactions=80 columns=1400", "pg17.6"), ("inval-feedback", "transactions=80 columns=1400", "indexed"),
    ("subxact-eviction", "", "pg16"), ("subxact-eviction", "", "pg17"),
    ("sinval-lap", "", "pg18+live"), ("sinval-lap", "", "indexed+live"),
    ("publication-churn", "", "pg17+pgoutput"), ("publication-churn", "", "pg18+pgoutput"), ("publication-churn", "", "indexed+pgoutput"),
    ("unpublished-flood", "", "pg18"), ("unpublished-flood", "publication=pub", "pg18"),
    ("matview-refresh", "", "pg18"), ("temp-table-churn", "", "pg18"), ("slot-creation-wait", "", "pg18"),
    ("prepared", "", "pg18"), ("prepared", "two_phase", "pg18"),
], sample_count = 1, sample_size = 1)]
fn published(bencher: Bencher, (scenario, parameters, profile): (&str, &str, &str)) {
    measure(bencher, scenario, parameters, profile, false);
}

/// `grant-all` with as many tables as were reported, 100,000 of them in the map: with a walsender's callbacks, and with one more that walks over a
/// map as large.
#[divan::bench(args = [("", "pg18"), ("callbacks=4 entries=100000", "pg18"), ("callbacks=4 entries=100000", "indexed")], sample_count = 1, sample_size = 1)]
fn grant_on_100_000_tables(bencher: Bencher, (parameters, profile): (&str, &str)) {
    measure(bencher, "grant-all", &format!("tables=100000 {parameters}"), profile, false);
}

/// Fifteen transactions of 7,000 messages each that feed back: the last one's would be more than 67,108,863, and the decoder of April 2025 gives up.
#[divan::bench(sample_count = 1, sample_size = 1)]
fn inval_feedback_is_refused(bencher: Bencher) {
    measure(bencher, "inval-feedback", "transactions=15 columns=1400", "pg17.5", true);
}

/// The proposal of June 2026, which measured each half of `alter-many` by itself: before (`pg18`) and after.
#[divan::bench(args = [
    ("together", 1_000, "pg18"), ("together", 1_000, "indexed"), ("together", 5_000, "pg18"), ("together", 5_000, "indexed"),
    ("together", 10_000, "pg18"), ("together", 10_000, "indexed"), ("separately", 1_000, "pg18"), ("separately", 1_000, "indexed"),
    ("separately", 5_000, "pg18"), ("separately", 5_000, "indexed"), ("separately", 10_000, "pg18"), ("separately", 10_000, "indexed"),
    ("separately", 50_000, "pg18"), ("separately", 50_000, "indexed"),
], sample_count = 1, sample_size = 1)]
fn alter_many(bencher: Bencher, (half, tables, profile): (&str, u32, &str)) {
    let (half, other) = if half == "together" { (half, "separately") } else { (half, "together") };
    let text = Scenario::load("alter-many").unwrap().text().to_owned();
    let at = text.find(&format!("name = \"{other}\"")).unwrap_or_else(|| panic!("alter-many has no {other} beside {half}"));
    let (before, actor) = text.split_at(at);
    let (said, rest) = actor.split_once("transactions = ").unwrap();
    let (_, rest) = rest.split_once('\n').unwrap();
    let text = format!("{before}{said}transactions = 0\n{rest}");
    measure(bencher, &text, &format!("tables={tables}"), profile, false);
}
