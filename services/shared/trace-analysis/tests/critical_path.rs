//! Critical paths: through links, of broken traces, and against a naive algorithm.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod support;

use std::collections::BTreeMap;

use proptest::prelude::*;
use support::{linked, span, store, transaction, with};
use trace_analysis::critical_path::{Path, Walker};
use trace_analysis::stages::{PathOptions, Stages, by_stage};
use trace_analysis::tree::Tree;
use trace_analysis::{Span, TraceId, TraceStore, skew};

/// The path of a trace.
fn path_of(store: &TraceStore, trace: u64, to: Option<&str>) -> Option<Path> {
    let mut tree = Tree::default();
    tree.fill(store, TraceId { high: 0, low: trace });
    Walker::new(store).walk(&tree, to)
}

/// The parts of a path in words, in microseconds.
fn parts(store: &TraceStore, path: &Path) -> Vec<(String, u64)> {
    path.segments.iter().map(|part| (part.stage.label(store), (part.end - part.start) / 1000)).collect()
}

/// Parts as they are expected.
fn expected(parts: &[(&str, u64)]) -> Vec<(String, u64)> {
    parts.iter().map(|(stage, us)| ((*stage).to_owned(), *us)).collect()
}

#[test]
fn a_path_goes_from_the_commit_through_both_batches() {
    let store = store(&transaction(7));
    let path = path_of(&store, 1007, None).unwrap();
    let stages = [
        ("waiting for primary: send wal", 10),
        ("primary: send wal, credit wait", 2),
        ("waiting for decoder: process wal", 3),
        ("decoder: process wal", 5),
        ("decoder: decode transaction", 5),
    ];
    assert_eq!(parts(&store, &path), expected(&stages));
    let (replayed, joined, cycle) = (path.replayed, path.joined, path.cycle);
    assert_eq!((replayed, joined, cycle, path.negative_gaps), (false, false, false, 0));
    assert_eq!(path_of(&store, 1007, Some("primary")).unwrap().total_ns(), 0);
    assert!(path_of(&store, 1007, Some("nobody")).is_none());
}

#[test]
fn a_batch_that_left_links_out_is_found_by_time_unless_two_fit() {
    let mut spans = transaction(7);
    for batch in &mut spans[1..3] {
        batch.links.clear();
        batch.links_dropped = 3;
    }
    let whole = store(&spans);
    let path = path_of(&whole, 1007, None).unwrap();
    assert!(path.joined);
    assert_eq!(parts(&whole, &path), parts(&store(&transaction(7)), &path_of(&store(&transaction(7)), 1007, None).unwrap()));

    let mut second = spans[2].clone();
    (second.trace, second.id) = (TraceId { high: 0, low: 5 }, trace_analysis::SpanId(9));
    spans.push(second);
    let ambiguous = store(&spans);
    let path = path_of(&ambiguous, 1007, None).unwrap();
    assert!(!path.joined);
    let direct = [("waiting for decoder: decode transaction", 20), ("decoder: decode transaction", 5)];
    assert_eq!(parts(&ambiguous, &path), expected(&direct));
}

#[test]
fn a_log_that_is_replayed_begins_at_its_batch() {
    let mut spans = transaction(7);
    (spans[0].start, spans[0].end) = (5, 5);
    for span in &mut spans[1..] {
        (span.start, span.end) = (span.start + 90_000_000_000, span.end + 90_000_000_000);
    }
    let past = store(&spans);
    let path = path_of(&past, 1007, None).unwrap();
    assert!(path.replayed);
    assert_eq!(path.total_ns(), 15_000);

    // And a commit that lies in the future, as a simulated clock may have it.
    (spans[0].start, spans[0].end) = (1 << 60, 1 << 60);
    let future = store(&spans);
    let path = path_of(&future, 1007, None).unwrap();
    assert_eq!((path.replayed, path.total_ns()), (true, 15_000));
}

#[test]
fn cycles_of_parents_and_of_links_end() {
    let looped = [
        span("a", "x", 1, 1, 3, 0, 10),
        span("a", "y", 1, 2, 1, 0, 9),
        span("a", "z", 1, 3, 2, 0, 8),
        span("a", "me", 1, 4, 4, 0, 7),
    ];
    let of_parents = store(&looped);
    assert_eq!((of_parents.damage.cycles, of_parents.damage.orphans), (2, 0));
    assert_eq!(path_of(&of_parents, 1, None).unwrap().total_ns(), 10);

    // Two batches, each begun by the other, that both carry the transaction.
    let batch = |trace: u64, id: u64, parent: u64| linked(span("n", "batch", trace, id, parent, 3000, 9000), &[(1, 1)]);
    let spans =
        [span("p", "transaction", 1, 1, 0, 0, 0), span("n", "work", 1, 2, 1, 5000, 8000), batch(2, 5, 6), batch(2, 6, 5)];
    let of_links = store(&spans);
    assert_eq!(of_links.damage.cycles, 1);
    let path = path_of(&of_links, 1, None).unwrap();
    assert_eq!(path.total_ns(), 8000);

    let links = [linked(span("n", "a", 1, 1, 0, 0, 5), &[(2, 1)]), linked(span("n", "b", 2, 1, 0, 0, 5), &[(1, 1)])];
    let each_other = store(&links);
    let path = path_of(&each_other, 1, None).unwrap();
    assert!(path.cycle);
    assert_eq!(path.total_ns(), 5);
}

#[test]
fn damage_is_counted_and_told() {
    let mut spans = [transaction(1), transaction(2)].concat();
    let mut longer = spans[3].clone();
    longer.end += 1000;
    spans.push(longer);
    spans.push(span("x", "orphan", 50, 1, 77, 5, 9));
    spans.push(span("x", "backwards", 51, 1, 0, 9, 5));
    spans.push(linked(span("x", "loose", 52, 1, 0, 5, 9), &[(99, 1)]));
    let held = store(&spans);
    let damage = held.damage;
    assert_eq!((damage.duplicates, damage.orphans, damage.backwards, damage.unresolved_links), (1, 1, 1, 1));
    assert_eq!(path_of(&held, 1001, None).unwrap().total_ns(), 26_000, "the version that ends last counts");
    assert_eq!(path_of(&held, 51, None).unwrap().total_ns(), 0);
}

#[test]
fn a_clock_that_is_behind_is_set_forward_by_the_least_that_mends_it() {
    let behind = |spans: Vec<Span<'static>>, by: u64| -> Vec<Span<'static>> {
        let moved = |mut span: Span<'static>| {
            if span.service == "decoder" {
                (span.start, span.end) = (span.start - by, span.end - by);
            }
            span
        };
        spans.into_iter().map(moved).collect()
    };
    let spans: Vec<_> = (0..5).flat_map(|n| behind(transaction(n), 9_000)).collect();
    let mut held = store(&spans);
    let left = skew::correct(&mut held, false);
    assert!(left.iter().all(|shift| !shift.corrected), "{left:?}");
    assert_eq!(path_of(&held, 1003, None).unwrap().negative_gaps, 1);
    let shifts = skew::correct(&mut held, true);
    let [shift] = shifts.as_slice() else { panic!("{shifts:?}") };
    // It is received at 15, 5 after the sending began: 9 behind, 4 are seen.
    let (before, after) = (shift.before.as_str(), shift.after.as_str());
    assert_eq!((before, after, shift.shift_ns, shift.pairs, shift.corrected), ("primary", "decoder", 4_000, 5, true));
    let path = path_of(&held, 1003, None).unwrap();
    assert_eq!((path.negative_gaps, path.total_ns()), (0, 20_000));
    assert!(skew::correct(&mut held, true).is_empty());
}

#[test]
fn clocks_that_contradict_each_other_and_other_time_lines_are_left_alone() {
    let spans = [
        span("a", "x", 1, 1, 0, 1000, 9000),
        span("b", "y", 1, 2, 1, 500, 8000),
        span("b", "x", 2, 1, 0, 1000, 9000),
        span("a", "y", 2, 2, 1, 400, 8000),
        span("a", "x", 3, 1, 0, 500_000_000_000, 500_000_000_001),
        span("c", "y", 3, 2, 1, 1000, 2000),
    ];
    let mut held = store(&spans);
    let shifts = skew::correct(&mut held, true);
    assert_eq!(shifts.len(), 2);
    assert!(shifts.iter().all(|shift| !shift.corrected), "{shifts:?}");
    assert_eq!(held.records()[1].start, 500);
}

#[test]
fn batches_are_no_transactions_and_shares_are_whole() {
    let spans: Vec<_> = (0..50).flat_map(transaction).collect();
    let held = store(&spans);
    let stages = Stages::of(&held, &PathOptions { root: Some("transaction".to_owned()), to: None }, &mut |_, _| ());
    assert_eq!((stages.counts.transactions, stages.counts.batches, stages.counts.others), (50, 50, 0));
    let rows = stages.rows();
    assert_eq!(rows.len(), 5);
    assert!((rows[0].share - 0.4).abs() < 1e-9 && rows[0].times.count() == 50);
    assert!((9_990..=10_010).contains(&rows[0].times.quantile_ns(0.5)));
    assert_eq!(stages.band_counts().iter().sum::<u64>(), 50);
}

#[test]
fn what_is_held_is_counted_and_bounded() {
    use trace_analysis::{StoreConfig, TraceError};
    let config = StoreConfig { bytes_max: 100_000, ..StoreConfig::default() };
    let mut held = TraceStore::new(config);
    let error = (0..10_000).flat_map(transaction).find_map(|span| held.push(&span).err()).unwrap();
    assert!(matches!(error, TraceError::TooMany { .. }) && error.to_string().contains("--sample"), "{error}");
    assert!(held.bytes() < 100_200);
    // Four spans more, with the same names: 56 bytes each, two of them 16 more, each for a link of 32, and one for a wait of 24; the xid is
    // not held.
    let mut more = TraceStore::new(StoreConfig::default());
    transaction(1).iter().for_each(|span| more.push(span).unwrap());
    let before = more.bytes();
    transaction(2).iter().for_each(|span| more.push(span).unwrap());
    assert_eq!(more.bytes() - before, 4 * 56 + 2 * 16 + 2 * 32 + 24);
    // Names without end are not held, nor are services and instances.
    let (mut named, names) = (TraceStore::new(StoreConfig::default()), (0..120_000u64).map(|n| n.to_string()));
    for (n, name) in (1..).zip(names) {
        let instance = if n % 2 == 0 { name.as_str() } else { "" };
        named.push(&Span { name: name.as_str().into(), instance, ..span("s", "", 1, n, n - 1, n, n + 9) }).unwrap();
    }
    named.finish();
    assert!(named.bytes() < 120_000 * 56 + 20_000_000, "{}", named.bytes());
    assert_eq!(named.name(named.records().last().unwrap()), "(more names)");
    assert!(skew::correct(&mut named, true).is_empty());
    let mut tenth = TraceStore::new(StoreConfig { share: 0.1, ..StoreConfig::default() });
    (0..1000).flat_map(transaction).for_each(|span| tenth.push(&span).unwrap());
    tenth.finish();
    let kept = tenth.records().iter().filter(|record| tenth.name(record) == "decode transaction").count();
    assert!((50..200).contains(&kept), "{kept} of 1000");
}

/// Children that neither overlap nor leave gaps unless they say so: each span is cut into parts, some of which are children.
fn tree_spans() -> impl Strategy<Value = Vec<Span<'static>>> {
    proptest::collection::vec((0usize..100, 0u64..40, 1u64..30, 0usize..3), 0..25).prop_map(|shapes| {
        let mut spans = vec![span("a", "root", 1, 1, 0, 1000, 2000)];
        for (n, (parent, gap, len, service)) in shapes.into_iter().enumerate() {
            let parent = parent % spans.len();
            let (parent_id, floor, end) = (spans[parent].id, spans[parent].start, spans[parent].end);
            let last = spans.iter().filter(|other| other.parent == parent_id).map(|other| other.end).max().unwrap_or(floor);
            let start = (last + gap).min(end);
            let name = ["a", "b", "c"][service];
            spans.push(span(name, "work", 1, n as u64 + 2, parent_id.0, start, (start + len).min(end)));
        }
        spans
    })
}

/// The naive algorithm for trees whose children follow each other: at each nanosecond the deepest running span.
fn naive(spans: &[Span<'_>]) -> BTreeMap<String, u64> {
    let depth =
        |span: &Span<'_>| std::iter::successors(Some(span), |of| spans.iter().find(|other| other.id == of.parent)).count();
    let mut sums = BTreeMap::new();
    for at in 1000..2000 {
        let running = spans.iter().filter(|span| span.start <= at && at < span.end);
        let deepest = running.max_by_key(|span| depth(span)).unwrap();
        *sums.entry(format!("{}: {}", deepest.service, deepest.name)).or_default() += 1;
    }
    sums
}

proptest! {
    /// Against the naive algorithm, in whatever order the spans come.
    #[test]
    fn of_a_tree_every_moment_belongs_to_the_deepest_span(spans in tree_spans(), turn in 0usize..25) {
        let mut turned = spans.clone();
        let len = turned.len();
        turned.rotate_left(turn % len);
        let held = store(&turned);
        let path = path_of(&held, 1, None).unwrap();
        let sums: BTreeMap<String, u64> = by_stage(&path).into_iter().map(|(stage, ns)| (stage.label(&held), ns)).collect();
        prop_assert_eq!(sums, naive(&spans));
    }

    /// Whatever parents, links and times: walks end, parts follow each other without overlap, and shares sum to 1.
    #[test]
    fn paths_of_anything_are_whole(
        shapes in proptest::collection::vec((0u64..4, 1u64..12, 0u64..12, 0u64..200, 0u64..60, 0u64..4, 0u64..12), 1..40)
    ) {
        let spans: Vec<_> = shapes.into_iter().map(|(trace, id, parent, start, len, to, target)| {
            let of = span(["a", "b"][(id % 2) as usize], "work", trace + 1, id, parent, start, start + len);
            let of = if target % 3 == 0 { linked(of, &[(to + 1, target + 1)]) } else { of };
            with(of, "x_wait_ns", (len / 3) as i64)
        }).collect();
        let mut held = store(&spans);
        let shifts = skew::correct(&mut held, true);
        prop_assert!(shifts.iter().all(|shift| shift.shift_ns > 0));
        let mut paths = 0;
        let stages = Stages::of(&held, &PathOptions::default(), &mut |_, path| {
            paths += 1;
            let follow = path.segments.windows(2).all(|two| two[0].end <= two[1].start);
            assert!(follow && path.segments.iter().all(|part| part.start < part.end), "{path:?}");
            let spanned = path.segments.last().map_or(0, |last| last.end - path.segments[0].start);
            assert_eq!(path.total_ns(), spanned, "{path:?}");
        });
        prop_assert_eq!(stages.counts.transactions, paths);
        let rows = stages.rows();
        let sum: f64 = rows.iter().map(|row| row.share).sum();
        prop_assert!(stages.total.sum_ns == 0 || (sum - 1.0).abs() < 1e-9, "{}", sum);
        for band in 0..4 {
            let sum: f64 = rows.iter().map(|row| row.bands[band]).sum();
            prop_assert!(sum == 0.0 || (sum - 1.0).abs() < 1e-9, "band {}: {}", band, sum);
        }
    }
}
