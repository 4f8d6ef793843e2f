//! What the incidents are made of, counted: messages, NEW_CID records and command ids per statement, for every version.

use std::collections::BTreeSet;

use pg_types::{InvalidationKind, InvalidationMessage, PgVersion, RecordBody, WalRecord, Xid};
use primary_core::rng::seeded;
use primary_core::{MemorySink, Overrides, Scenario, Step, TransactionTruth, VirtualClock};

/// Plays a shipped scenario: its records, and what its transactions did.
fn play(name: &str, version: PgVersion, sizes: &[(&str, u64)]) -> (Vec<WalRecord>, Vec<TransactionTruth>) {
    let overrides: Overrides =
        sizes.iter().map(|(name, value)| ((*name).to_owned(), primary_core::ParameterValue::Number(*value))).collect();
    let mut sink = MemorySink::new(version);
    let mut truths = Vec::new();
    let ended = |_: &primary_core::Engine, step: &Step| {
        if let Step::Ended(truth) = step {
            truths.push((**truth).clone());
        }
    };
    let scenario = Scenario::load(name).unwrap();
    scenario.run(&overrides, &mut VirtualClock::default(), &mut seeded(scenario.seed()), &mut sink, ended).unwrap();
    (sink.records, truths)
}

/// One transaction in numbers.
#[derive(Debug, PartialEq)]
struct Counted {
    /// Catcache, relcache and snapshot messages of the commit record.
    commit: (usize, usize, usize),
    /// Records of a command's messages, and messages in them.
    command_records: (usize, usize),
    /// NEW_CID records.
    new_cids: usize,
    /// Different command ids in them: the increases that a decoder of a version up to 13 sees.
    command_ids: usize,
}

fn of_kind(messages: &[InvalidationMessage], kind: InvalidationKind) -> usize {
    messages.iter().filter(|message| message.kind() == kind).count()
}

/// Counts the transaction `xid`.
fn count(records: &[WalRecord], xid: Xid) -> Counted {
    let mut counted = Counted { commit: (0, 0, 0), command_records: (0, 0), new_cids: 0, command_ids: 0 };
    let mut command_ids = BTreeSet::new();
    for record in records.iter().filter(|record| record.xid == xid) {
        match &record.body {
            RecordBody::NewCid(r) => {
                counted.new_cids += 1;
                let valid = [r.cmin, r.cmax].into_iter().filter(|cid| cid.is_valid()).max();
                command_ids.insert(valid.unwrap());
            }
            RecordBody::XactInvalidations(messages) => {
                counted.command_records.0 += 1;
                counted.command_records.1 += messages.len();
            }
            RecordBody::Commit(r) => {
                let of = |kind| of_kind(&r.messages, kind);
                counted.commit =
                    (of(InvalidationKind::Catcache), of(InvalidationKind::Relcache), of(InvalidationKind::Snapshot));
            }
            _ => {}
        }
    }
    counted.command_ids = command_ids.len();
    counted
}

/// Per partition: six NEW_CID records with three command ids; up to 13 eight catcache and five relcache messages in the commit
/// record alone; from 14 on six and five, and the same eleven in four records of their own.
#[test]
fn truncate_partitions_per_partition() {
    for version in PgVersion::ALL {
        for n in [1usize, 7, 40] {
            let (records, truths) = play("truncate-partitions", version, &[("partitions", n as u64), ("rows", 2)]);
            let truncate = truths.iter().find(|truth| truth.actor == "truncater").unwrap();
            let expected = if version == PgVersion::V13 {
                Counted { commit: (8 * n, 5 * n, 0), command_records: (0, 0), new_cids: 6 * n, command_ids: 3 * n }
            } else {
                Counted { commit: (6 * n, 5 * n, 0), command_records: (4 * n, 11 * n), new_cids: 6 * n, command_ids: 3 * n }
            };
            assert_eq!(count(&records, truncate.xid), expected, "PostgreSQL {version}, {n} partitions");
            let noun = if n == 1 { "partition" } else { "partitions" };
            assert_eq!(truncate.did, [format!("TRUNCATE of {n} {noun} of measurements")]);
            assert_eq!(truncate.messages, expected.commit.0 + expected.commit.1);
            let listed = records.iter().find_map(|record| match &record.body {
                RecordBody::Truncate(r) => Some(r.relids.len()),
                _ => None,
            });
            assert_eq!(listed, Some(n + 1), "the parent and its partitions");
        }
    }
}

/// Rows are decoded in all partitions of both parents before, in one transaction.
#[test]
fn truncate_partitions_fills_the_map_first() {
    let (records, truths) = play("truncate-partitions", PgVersion::V18, &[("partitions", 9), ("rows", 4)]);
    let inserted = records.iter().filter_map(|record| match &record.body {
        RecordBody::Insert(r) if r.logical && record.xid == truths[0].xid => Some(r.target.rel),
        _ => None,
    });
    assert_eq!(inserted.collect::<BTreeSet<u32>>().len(), 18);
    assert_eq!(truths[0].records, 18 * 4 + 1);
    assert_eq!(
        truths[0].did,
        [
            "INSERT of 4 rows into each of 9 partitions of measurements",
            "INSERT of 4 rows into each of 9 partitions of readings",
        ]
    );
}

/// One CREATE TABLE with a sequence, a key, a TOAST table and two indexes, as measured on real servers.
#[test]
fn catalog_churn_per_transaction() {
    let sizes = [("tables", 20), ("transactions", 5), ("grants", 5), ("altered", 5)];
    for version in PgVersion::ALL {
        let (records, truths) = play("catalog-churn", version, &sizes);
        let measured = match version {
            PgVersion::V13 => ((113, 21, 10), 0, 77),
            PgVersion::V14 | PgVersion::V15 | PgVersion::V16 | PgVersion::V17 => ((109, 21, 9), 15, 73),
            PgVersion::V18 => ((110, 22, 10), 16, 75),
        };
        for truth in truths.iter().filter(|truth| truth.actor == "creator") {
            let counted = count(&records, truth.xid);
            let got = (counted.commit, counted.command_records.0, counted.new_cids);
            assert_eq!(got, measured, "PostgreSQL {version}: {:?}", truth.did);
        }
        // The small ones: a first grant touches pg_class and pg_shdepend, a new column pg_attribute and pg_class.
        for truth in &truths {
            let commit = count(&records, truth.xid).commit;
            match truth.actor.as_str() {
                "granter" => assert!(commit == (2, 1, 1) || commit == (2, 1, 0), "{commit:?}"),
                "alterer" => assert_eq!(commit, (4, 1, 0)),
                "writer" => assert_eq!(commit, (0, 0, 0)),
                _ => {}
            }
        }
    }
}

/// Long transactions stay among thousands of short ones, and running transactions are told.
#[test]
fn standby_gaps_has_gaps() {
    let mut overrides = Overrides::new();
    for (name, value) in [("duration", "40s"), ("longest", "30s"), ("writers", "4"), ("snapshots", "5")] {
        overrides.insert(name.to_owned(), value.into());
    }
    let mut sink = MemorySink::new(PgVersion::V18);
    let mut snapshots = 0;
    let scenario = Scenario::load("standby-gaps").unwrap();
    let counting = |_: &primary_core::Engine, step: &Step| snapshots += u64::from(matches!(step, Step::Snapshot(_)));
    let summary = scenario.run(&overrides, &mut VirtualClock::default(), &mut seeded(3), &mut sink, counting).unwrap();
    // Long ones may end up to 30 s after the scenario's duration.
    assert!((40 * 5..=70 * 5).contains(&snapshots) && summary.snapshots == snapshots, "{snapshots}");
    let running = sink.records.iter().filter_map(|record| match &record.body {
        RecordBody::RunningXacts(r) => Some(r),
        _ => None,
    });
    let running: Vec<_> = running.collect();
    assert!(running.len() >= 4, "at the start, each 15 s, at the end");
    assert_eq!((running[0].xids.len(), running[running.len() - 1].xids.len()), (0, 0));
    let middle = running[1];
    let span = middle.next_xid.0 - middle.oldest_running_xid.0;
    assert!(middle.xids.len() >= 9 && span as usize > 20 * middle.xids.len(), "{} of {span} run", middle.xids.len());
    assert!(summary.rolled_back > 0 && summary.committed > 20_000, "{summary:?}");
}

/// The first records let a decoder be consistent at once, the last one is a switch.
#[test]
fn a_log_begins_with_nothing_running() {
    for version in PgVersion::ALL {
        let (records, _) = play("truncate-partitions", version, &[("partitions", 1)]);
        let RecordBody::Checkpoint(checkpoint) = &records[0].body else { panic!("{:?}", records[0]) };
        assert!(checkpoint.shutdown && checkpoint.redo == records[0].lsn);
        assert!(matches!(&records[1].body, RecordBody::ParameterChange(p) if p.wal_level == 2));
        let RecordBody::RunningXacts(running) = &records[2].body else { panic!("{:?}", records[2]) };
        assert!(running.xids.is_empty() && running.next_xid == running.oldest_running_xid);
        assert!(matches!(records[records.len() - 1].body, RecordBody::Switch));
    }
}
