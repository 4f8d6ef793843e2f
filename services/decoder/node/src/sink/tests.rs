//! The sink against a model: what was given out comes back from the entries, each of which can be understood alone.

use std::collections::HashMap;
use std::sync::Arc;

use pg_types::{Oid, RelFileLocator, Timestamp};
use proptest::prelude::*;
use service_kit::SystemClock;
use service_kit::telemetry::Tracer;
use walstorm_proto::EventBatch;

use super::*;

/// Something that a transaction does.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// Changes a relation so many times.
    Change(u32, usize),
    /// Truncates so many relations from this one on.
    Truncate(u32, usize),
    /// Emits a message of so many bytes.
    Message(usize),
}

/// What a transaction did, as read back: names of relations and numbers of changes.
type Done = (u32, Vec<(String, usize)>, u64);

fn relation(i: u32) -> Relation {
    let name = format!("public.relation_with_a_rather_long_name_{i}");
    let file = RelFileLocator { spc: Oid(1663), db: Oid(5), rel: 20_000 + i };
    Relation { oid: Oid(10_000 + i), namespace: Oid(2200), file, name: name.into(), logged: Some(true) }
}

fn sink(resume_at: Lsn) -> EventSink {
    EventSink::new(
        resume_at,
        OpenTransactions::default(),
        TransactionSpans::new(Tracer::off(), Arc::new(SystemClock::new()), "indexed"),
    )
}

/// Gives out one transaction that ends at `end`; returns what it did.
fn give_out(sink: &mut EventSink, xid: u32, end: u64, steps: &[Step]) -> Done {
    let mut did = Vec::new();
    let mut lsn = Lsn(end - 1_000_000);
    sink.begin_record(Lsn(end - 40), Lsn(end), false);
    sink.begin(Xid(xid), lsn, Lsn(end - 40));
    for step in steps {
        match step {
            Step::Change(i, n) => {
                let relation = relation(*i);
                for _ in 0..*n {
                    lsn.0 += 8;
                    sink.change(&DecodedChange { lsn, xid: Xid(xid), relation: &relation, action: Action::Update, rows: 1 });
                }
                did.push((relation.name.to_string(), *n));
            }
            Step::Truncate(i, n) => {
                let relations: Vec<_> = (*i..*i + *n as u32).map(relation).collect();
                sink.truncate(lsn, Xid(xid), &relations.iter().collect::<Vec<_>>(), &TruncateRecord::default());
                did.extend(relations.iter().map(|r| (format!("truncate {}", r.name), 1)));
            }
            Step::Message(n) => {
                let message = LogicalMessageRecord { transactional: true, message: vec![7; *n], ..Default::default() };
                sink.message(lsn, Xid(xid), &message);
                did.push(("message".to_owned(), *n));
            }
        }
    }
    sink.commit(&DecodedTransaction { xid: Xid(xid), commit_lsn: Lsn(end - 40), end_lsn: Lsn(end), ..Default::default() });
    sink.end_record();
    // Runs of one relation are one.
    let mut joined: Vec<(String, usize)> = Vec::new();
    for (name, n) in did {
        match joined.last_mut() {
            Some((last, count)) if *last == name && name.starts_with("public") => *count += n,
            _ => joined.push((name, n)),
        }
    }
    (xid, joined, end)
}

/// Reads entries as a subscriber does, checking that each stands alone and is small enough to be sent.
fn read(entries: Vec<Finished>) -> Vec<Done> {
    let mut found = Vec::new();
    let mut open: Option<Done> = None;
    for Finished { buffer, end, items } in entries {
        assert!(buffer.payload_len() < 1 << 20, "{} bytes", buffer.payload_len());
        let before = found.len();
        let mut names: HashMap<u32, String> = HashMap::new();
        for event in EventBatch::from_encoded(bytes::Bytes::copy_from_slice(buffer.payload())).events() {
            match event.unwrap().kind.unwrap() {
                event::Kind::Relation(r) => drop(names.insert(r.relation_id, format!("{}.{}", r.schema, r.name))),
                event::Kind::Begin(b) => assert!(open.replace((b.xid, Vec::new(), 0)).is_none()),
                event::Kind::Change(c) => {
                    let (name, n) = (names[&c.relation_id].clone(), c.columns.unwrap().kinds.len());
                    let did = &mut open.as_mut().unwrap().1;
                    match did.last_mut() {
                        Some((last, count)) if *last == name => *count += n,
                        _ => did.push((name, n)),
                    }
                }
                event::Kind::Truncate(t) => {
                    let did = t.relation_ids.iter().map(|id| (format!("truncate {}", names[id]), 1));
                    open.as_mut().unwrap().1.extend(did);
                }
                event::Kind::Message(m) => open.as_mut().unwrap().1.push(("message".to_owned(), m.content_bytes as usize)),
                event::Kind::Commit(c) => {
                    let mut done = open.take().unwrap();
                    assert_eq!(done.0, c.xid);
                    done.2 = c.end_lsn;
                    found.push(done);
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(found.len() - before, items as usize);
        match end {
            Some(end) => assert!(open.is_none() && found.last().unwrap().2 == end.0, "I1: it ends between transactions"),
            None => assert!(open.is_some() && items == 0, "I1: a part holds nothing else"),
        }
    }
    assert!(open.is_none());
    found
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u32..50, 1usize..20).prop_map(|(i, n)| Step::Change(i, n)),
        1 => (0u32..50, 1usize..12_000).prop_map(|(i, n)| Step::Change(i, n)),
        1 => (0u32..50, 1usize..3000).prop_map(|(i, n)| Step::Truncate(i, n)),
        1 => (0usize..200_000).prop_map(Step::Message),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn what_was_given_out_comes_back(
        transactions in prop::collection::vec(prop::collection::vec(step(), 0..30), 1..12), finish_each in any::<bool>(),
    ) {
        let mut sink = sink(Lsn(1));
        let mut given = Vec::new();
        let mut entries = Vec::new();
        for (i, steps) in transactions.iter().enumerate() {
            given.push(give_out(&mut sink, i as u32 + 700, 10_000_000 + 1000 * i as u64, steps));
            if finish_each {
                sink.finish();
            }
            entries.extend(sink.take_finished());
        }
        sink.finish();
        entries.extend(sink.take_finished());
        prop_assert_eq!(read(entries), given);
    }
}

#[test]
fn a_transaction_with_very_many_relations_is_cut_and_each_part_explains_its_own() {
    let mut sink = sink(Lsn(1));
    let small = give_out(&mut sink, 700, 10_000_000, &[Step::Change(0, 1)]);
    let many: Vec<_> = (0..30_000).map(|i| Step::Change(i, 1)).chain([Step::Truncate(0, 20_000)]).collect();
    let large = give_out(&mut sink, 701, 20_000_000, &many);
    let after = give_out(&mut sink, 702, 21_000_000, &[Step::Change(0, 1)]);
    sink.finish();
    let entries = sink.take_finished();
    assert!(entries.len() > 5 && entries[0].end == Some(Lsn(10_000_000)));
    assert_eq!(read(entries), [small, large, after]);
    assert_eq!(sink.take_totals().transactions, 3);
}

#[test]
fn i2_what_the_log_has_is_not_given_out_again() {
    let mut sink = sink(Lsn(20_000_000));
    give_out(&mut sink, 700, 10_000_000, &[Step::Change(0, 5), Step::Truncate(0, 3), Step::Message(9)]);
    give_out(&mut sink, 701, 20_000_000, &[Step::Change(0, 1)]);
    let outside = LogicalMessageRecord { transactional: false, ..Default::default() };
    sink.begin_record(Lsn(19_999_000), Lsn(20_000_000), false);
    sink.message(Lsn(19_999_000), Xid::INVALID, &outside);
    sink.end_record();
    sink.finish();
    assert!(!sink.has_finished());
    let new = give_out(&mut sink, 702, 21_000_000, &[Step::Change(0, 1)]);
    sink.finish();
    assert_eq!(read(sink.take_finished()), [new]);
    sink.begin_record(Lsn(21_999_000), Lsn(22_000_000), false);
    sink.message(Lsn(21_999_000), Xid::INVALID, &outside);
    sink.end_record();
    sink.finish();
    let [Finished { end, items: 1, .. }] = &sink.take_finished()[..] else { panic!("one message") };
    assert_eq!(*end, Some(Lsn(22_000_000)));
}

#[test]
fn nothing_but_the_sums_is_kept_of_a_transaction() {
    let mut sink = sink(Lsn(1));
    give_out(&mut sink, 700, 10_000_000, &[Step::Change(3, 2)]);
    let cost = sink.costs.pop().unwrap();
    assert_eq!((cost.xid, cost.row_count), (Xid(700), 2));
    assert_eq!(*cost.summary, decoder_core::Summary::default(), "plain rows leave no footprint");
    assert_eq!(cost.commit_time, Timestamp(0));
}
