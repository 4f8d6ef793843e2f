//! What the caches serve is what a naive model reads in the catalogs as of the same snapshot, after every step.
//!
//! Some servers serve other things, and so do their profiles, in three ways and no other:
//!
//! - Before April 2025 a commit handed its messages to nobody. A transaction that does not see it yet loads what it changed, and nothing
//!   drops that any more: [`Stale::FromThePast`], loaded after the change had committed. On 15.1 `test_decoding` shows a type's old name
//!   in rows inserted after ALTER TYPE … RENAME, on 13.23, which executes messages that it was handed at the end alone, up to there.
//! - A transaction begins with an older snapshot than what earlier replays have loaded: [`Stale::FromTheFuture`]. Locks keep that from
//!   files and columns of what it writes, but not from names, types and publications. On 13.23, 14.23, 15, 16.14 and 17.10 `test_decoding`
//!   shows a row with a type's new name that was inserted before ALTER TYPE … RENAME, if after that another transaction has inserted one
//!   and committed first; without that one it shows the old name.
//!
//! - Where transactions are given out in blocks, others load between two of them what lacks the changes of the first:
//!   [`Stale::WithoutOwn`].
//!
//! `indexed`, and any profile that hands commits out on demand, serves neither.

use std::sync::Arc;

use decoder_core::profile::{Distribution, EndMessages, MessageRule, Profile, PublicationFlush};
use decoder_core::{Decoder, DecoderConfig, TwoPhase, WorkMem};
use pg_types::PgVersion;
use proptest::prelude::*;

use super::support::catalog_history::{Ddl, Move, histories, write};
use super::support::history::Step;
use super::support::versioned_catalog::{Fault, Stale, VersionedCatalog, Versions};
use super::support::{Log, Remember, config};

/// Histories of one run; more by PROPTEST_CASES.
const HISTORIES: u32 = 2000;

/// What a decoder gave out and served.
struct Decoded {
    stream: Vec<String>,
    faults: Vec<Fault>,
    /// Entries compared.
    compared: u64,
}

/// Decodes a log with catalogs that know what they were.
fn decode(log: &Log, versions: &Versions, config: DecoderConfig) -> Decoded {
    // Up to 15 a schema that is renamed flushes nothing.
    let schema_published = config.profile.publication_flush != PublicationFlush::WholeButSchemas;
    let catalog = Arc::new(VersionedCatalog::new(versions.clone(), config.version, schema_published));
    let mut decoder =
        Decoder::new(config, Arc::<VersionedCatalog>::clone(&catalog)).read_historic(Arc::<VersionedCatalog>::clone(&catalog));
    let mut sink = Remember::default();
    for record in &log.records {
        catalog.arrive(record.lsn);
        decoder.process(record, &mut sink).unwrap();
    }
    let (faults, compared) = catalog.found();
    Decoded { stream: sink.stream, faults, compared }
}

/// Whether a server of this profile serves that too; blocks of transactions in progress are given out or not.
fn is_known(profile: &Profile, fault: &Fault, streaming: bool) -> bool {
    match fault.stale {
        Stale::FromTheFuture => profile.distribution != Distribution::OnDemand,
        Stale::WithoutOwn => streaming && profile.end_messages == EndMessages::All,
        Stale::FromThePast => {
            let at_end = profile.message_rule == MessageRule::AtEachCommand && fault.in_replay;
            match profile.distribution {
                Distribution::SnapshotOnly => fault.loaded_after_the_change,
                Distribution::FedBack | Distribution::KeptApart => at_end && fault.loaded_after_the_change,
                Distribution::OnDemand => false,
            }
        }
    }
}

/// All rows, `indexed` and 18 with each switch, and older ones with another output plugin or a consumer that is live.
fn all_profiles() -> Vec<String> {
    const OLDER: [&str; 8] = [
        "pg96+live",
        "pg13+pgoutput",
        "pg15+pgoutput",
        "pg17+pgoutput",
        "pg17+relsync+pgoutput",
        "pg17.5+reverse-index",
        "pg13+reverse-index",
        "pg14.5+collapse-messages",
    ];
    // What discards everything is the reference.
    let switches = || Profile::switches().filter(|switch| *switch != "discard-caches");
    let switched = ["indexed", "pg18"].into_iter().flat_map(|base| switches().map(move |switch| format!("{base}+{switch}")));
    Profile::names().map(str::to_owned).chain(switched).chain(OLDER.map(str::to_owned)).collect()
}

/// Every fourth of them, `indexed` among each: four tests share the work between the cores.
fn every_fourth_profile(from: usize) -> Vec<String> {
    all_profiles().into_iter().skip(from).step_by(4).chain(["indexed".to_owned()]).collect()
}

/// Whether WAL of a version has what a profile needs: single commands' messages are not in that of 13, where ours do without.
fn reads_wal_of(profile: &str, version: PgVersion) -> bool {
    let profile: Profile = profile.parse().unwrap();
    let ours = profile.end_messages == EndMessages::OfLoaded;
    version != PgVersion::V13 || profile.message_rule == MessageRule::AtEachCommand || ours
}

/// What differs first, if anything.
fn difference<'a>(given: &'a [String], wanted: &'a [String]) -> Option<(Option<&'a String>, Option<&'a String>)> {
    let longest = given.len().max(wanted.len());
    (0..longest).map(|at| (given.get(at), wanted.get(at))).find(|(given, wanted)| given != wanted)
}

/// Wants the same stream as with caches that are dropped everywhere, and nothing stale but what is known.
fn agree(log: &Log, versions: &Versions, version: PgVersion, profiles: &[String]) -> Result<(), TestCaseError> {
    let reference = decode(log, versions, config(version, "indexed+discard-caches", WorkMem::default()));
    for profile in profiles.iter().filter(|profile| reads_wal_of(profile, version)) {
        let discards = decode(log, versions, config(version, &format!("{profile}+discard-caches"), WorkMem::default()));
        prop_assert_eq!(difference(&discards.stream, &reference.stream), None, "{} that discards, on {}", profile, version);
        let config = config(version, profile, WorkMem::default());
        let Decoded { stream, faults, .. } = decode(log, versions, config.clone());
        prop_assert_eq!(difference(&stream, &reference.stream), None, "{} on {}", profile, version);
        let unknown = faults.iter().find(|fault| !is_known(&config.profile, fault, false));
        prop_assert!(unknown.is_none(), "{} on {}: {:#?}", profile, version, unknown);
    }
    Ok(())
}

/// The same where transactions do not fit the memory, or are given out before their commit, in blocks or when they are prepared.
fn agree_before_commit(log: &Log, versions: &Versions, version: PgVersion, how: (bool, bool)) -> Result<(), TestCaseError> {
    let (streaming, prepared) = how;
    let work_mem = if prepared && !streaming { WorkMem::default() } else { WorkMem::from_bytes(1000) };
    let profiles = ["indexed", "indexed+pgoutput", "pg18", "pg14.5"].into_iter();
    for profile in profiles.filter(|profile| reads_wal_of(profile, version)) {
        let run = |profile: &str| {
            let two_phase = prepared.then(TwoPhase::default);
            decode(log, versions, DecoderConfig { streaming, two_phase, ..config(version, profile, work_mem) })
        };
        let (given, reference) = (run(profile), run(&format!("{profile}+discard-caches")));
        prop_assert_eq!(
            difference(&given.stream, &reference.stream),
            None,
            "{} on {} before commits, {:?}",
            profile,
            version,
            how
        );
        let profile: Profile = profile.parse().unwrap();
        let unknown = given.faults.iter().find(|fault| !is_known(&profile, fault, streaming));
        prop_assert!(unknown.is_none(), "{} on {} before commits, {:?}: {:#?}", profile, version, how, unknown);
    }
    Ok(())
}

/// A history, and the version of the server that writes it.
fn any_history() -> impl Strategy<Value = (Vec<Move>, PgVersion)> {
    (histories(), prop::sample::select(&PgVersion::ALL[..]))
}

/// [`agree`] of a history under a fourth of the profiles.
fn agree_in((moves, version): &(Vec<Move>, PgVersion), fourth: usize) -> Result<(), TestCaseError> {
    let (log, versions) = write(moves, *version);
    agree(&log, &versions, *version, &every_fourth_profile(fourth))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: cases(HISTORIES), ..ProptestConfig::default() })]

    #[test]
    fn what_is_served_is_what_a_fresh_reading_gives(history in any_history()) {
        agree_in(&history, 0)?;
    }

    #[test]
    fn what_is_served_is_what_a_fresh_reading_gives_under_the_second_fourth_of_profiles(history in any_history()) {
        agree_in(&history, 1)?;
    }

    #[test]
    fn what_is_served_is_what_a_fresh_reading_gives_under_the_third_fourth_of_profiles(history in any_history()) {
        agree_in(&history, 2)?;
    }

    #[test]
    fn what_is_served_is_what_a_fresh_reading_gives_under_the_last_fourth_of_profiles(history in any_history()) {
        agree_in(&history, 3)?;
    }

    #[test]
    fn what_is_served_before_commits_is_what_a_fresh_reading_gives(history in any_history(), how in any::<(bool, bool)>()) {
        let (moves, version) = history;
        let (log, versions) = write(&moves, version);
        agree_before_commit(&log, &versions, version, how)?;
    }
}

/// So many cases, or as PROPTEST_CASES says.
fn cases(usual: u32) -> u32 {
    if std::env::var_os("PROPTEST_CASES").is_some() { ProptestConfig::default().cases } else { usual }
}

/// The kinds of what a profile serves that is stale.
fn stale(moves: &[Move], config: &DecoderConfig) -> Vec<Stale> {
    let (log, versions) = write(moves, config.version);
    let decoded = decode(&log, &versions, config.clone());
    assert!(decoded.compared > 20, "entries were compared");
    let unknown = decoded.faults.iter().find(|fault| !is_known(&config.profile, fault, config.streaming));
    assert!(unknown.is_none(), "{unknown:#?}");
    let mut kinds: Vec<Stale> = decoded.faults.iter().map(|fault| fault.stale).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// A transaction that chooses itself among the open ones.
const BEGIN: Move = Move::Control(Step::Begin);

/// A row written by the transaction in a place, which began with the first write.
fn write_row(place: u8) -> Move {
    Move::Dml(place, 0, 0)
}

fn commit(place: u8) -> Move {
    Move::Control(Step::Commit(place))
}

/// GRANT on relation 0, which no lock keeps from who writes rows of it.
fn grant(place: u8) -> Move {
    Move::Ddl(place, 0, Ddl::Grant)
}

#[test]
fn a_commit_that_is_handed_to_nobody_leaves_what_is_loaded_of_before() {
    // One writes before and after the other's GRANT; a third one finds what it left.
    let moves = [BEGIN, BEGIN, write_row(0), grant(1), commit(1), write_row(0), commit(0), BEGIN, write_row(0), commit(0)];
    for (version, old, new) in
        [(PgVersion::V13, "pg13.6", "pg13"), (PgVersion::V14, "pg14.5", "pg14"), (PgVersion::V18, "pg96", "pg18")]
    {
        let stale = |profile| stale(&moves, &config(version, profile, WorkMem::default()));
        assert_eq!(stale(old), [Stale::FromThePast], "{old}");
        // 13 executes what it was handed at the end alone: until then its own rows are decoded so.
        let at_end = |profile: &str| match profile.parse::<Profile>().unwrap().message_rule {
            MessageRule::AtEachCommand => vec![Stale::FromThePast],
            MessageRule::PerRecord => vec![],
        };
        let distributed = format!("{old}+distribute-messages");
        assert_eq!((stale(new), stale(&distributed)), (at_end(new), at_end(&distributed)), "{new}");
        assert_eq!(stale("indexed"), [], "{new}");
    }
}

#[test]
fn an_older_snapshot_finds_what_a_later_one_has_loaded() {
    // The second transaction's GRANT is loaded by the third, before the first is given out, which wrote before it.
    let moves = [BEGIN, BEGIN, write_row(0), grant(1), commit(1), BEGIN, write_row(1), commit(1), commit(0)];
    for (version, profile) in [(PgVersion::V13, "pg13"), (PgVersion::V17, "pg17"), (PgVersion::V18, "pg18")] {
        let stale = |profile| stale(&moves, &config(version, profile, WorkMem::default()));
        assert_eq!(stale(profile), [Stale::FromTheFuture], "{profile}");
        assert_eq!((stale("indexed"), stale(&format!("{profile}+on-demand-snapshots"))), (vec![], vec![]));
    }
}

#[test]
fn a_later_block_finds_what_others_have_loaded_without_its_changes() {
    let many = |place| std::iter::repeat_n(write_row(place), 10);
    let begun = [BEGIN, BEGIN, grant(0)].into_iter().chain(many(0));
    let moves: Vec<Move> = begun.chain([write_row(1), commit(1)]).chain(many(0)).chain([commit(0)]).collect();
    for (version, profile) in [(PgVersion::V14, "pg14"), (PgVersion::V17, "pg17"), (PgVersion::V18, "pg18")] {
        let in_blocks = |profile| DecoderConfig { streaming: true, ..config(version, profile, WorkMem::from_bytes(1000)) };
        assert_eq!(stale(&moves, &in_blocks(profile)), [Stale::WithoutOwn], "{profile}");
        assert_eq!(stale(&moves, &in_blocks("indexed")), []);
        assert_eq!(stale(&moves, &config(version, profile, WorkMem::default())), [], "{profile} when it commits");
    }
}

/// Wants a row of relation 4, which another transaction has created meanwhile, from every profile.
fn sees_the_new_table(moves: &[Move]) {
    for version in PgVersion::ALL {
        let (log, versions) = write(moves, version);
        for profile in Profile::names().filter(|profile| reads_wal_of(profile, version)) {
            let stream = decode(&log, &versions, config(version, profile, WorkMem::default())).stream;
            assert!(stream.iter().any(|line| line.ends_with("Insert r20004 x1")), "{profile} on {version}: {stream:?}");
        }
    }
}

/// A savepoint of the first transaction, and a table that the second one creates.
const SAVEPOINT: Move = Move::Control(Step::Savepoint(0));
const CREATE: Move = Move::Ddl(1, 4, Ddl::Create);

#[test]
fn what_a_rolled_back_savepoint_caught_up_with_stays_caught_up() {
    // Its first row after the other's commit is of a savepoint that is rolled back.
    let rolled_back = Move::Control(Step::RollbackTo(0));
    let row = Move::Dml(0, 4, 0);
    sees_the_new_table(&[BEGIN, BEGIN, write_row(0), SAVEPOINT, CREATE, commit(1), write_row(0), rolled_back, row, commit(0)]);
}

#[test]
fn a_savepoint_that_no_record_assigns_brings_its_later_snapshot() {
    // With an odd xid, up to 13 only the commit tells whose subtransaction it is.
    sees_the_new_table(&[BEGIN, BEGIN, BEGIN, write_row(0), SAVEPOINT, CREATE, commit(1), Move::Dml(0, 4, 0), commit(0)]);
}
