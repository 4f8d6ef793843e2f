//! Comparisons, rules and flame graphs on traces made up.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod support;

use support::{span, store, transaction, with};
use trace_analysis::checking::check;
use trace_analysis::diff::{SAMPLE, Side, TOTAL, Verdict, compare};
use trace_analysis::flame::Flame;
use trace_analysis::rules::Rules;
use trace_analysis::stages::PathOptions;
use trace_analysis::{Span, TraceStore};

/// Paths of transactions.
fn options() -> PathOptions {
    PathOptions { root: Some("transaction".to_owned()), to: None }
}

/// Transactions whose decoding takes `more_us` longer, each another little.
fn decoded(numbers: std::ops::Range<u64>, more_us: u64) -> TraceStore {
    let of = |n: u64| -> Vec<Span<'static>> {
        let mut spans = transaction(n);
        spans[3].end += more_us * 1000 + n * 7 % 13 * 100;
        spans
    };
    store(&numbers.flat_map(of).collect::<Vec<_>>())
}

#[test]
fn the_stage_that_got_slower_is_named_and_no_other() {
    let (before, after) = (decoded(0..200, 0), decoded(300..500, 3));
    let changes = compare(&Side::of(&before, &options()), &Side::of(&after, &options()));
    let found: Vec<(&str, Verdict)> = changes.iter().map(|change| (change.stage.as_str(), change.verdict(0.01))).collect();
    assert_eq!(found[..2], [(TOTAL, Verdict::Slower), ("decoder: decode transaction", Verdict::Slower)]);
    assert!(found[2..].iter().all(|(_, verdict)| *verdict == Verdict::NotSignificant), "{found:?}");
    let differences: f64 = changes[1..].iter().map(|change| change.after_ns - change.before_ns).sum();
    let total = changes[0].after_ns - changes[0].before_ns;
    assert!((differences - total).abs() < 1e-6 && (2_900.0..3_100.0).contains(&total), "{differences} of {total}");
    let back = compare(&Side::of(&after, &options()), &Side::of(&before, &options()));
    assert_eq!(back[1].verdict(0.01), Verdict::Faster);
}

#[test]
fn chance_is_called_chance() {
    let (before, after) = (decoded(0..200, 0), decoded(1000..1200, 0));
    let changes = compare(&Side::of(&before, &options()), &Side::of(&after, &options()));
    assert!(changes.iter().all(|change| change.verdict(0.01) == Verdict::NotSignificant), "{changes:?}");
    assert!(changes.iter().any(|change| change.before_ns != change.after_ns), "there is a difference");
}

#[test]
fn of_many_transactions_a_sample_is_tested_whatever_their_order() {
    let spans: Vec<_> = (0..SAMPLE as u64 + 500).flat_map(transaction).collect();
    let reversed: Vec<_> = spans.iter().rev().cloned().collect();
    let sides = [&spans, &reversed].map(|spans| Side::of(&store(spans), &options()));
    assert_eq!(sides.each_ref().map(Side::sampled), [SAMPLE; 2]);
    assert_eq!(sides[0].counts.transactions, SAMPLE as u64 + 500);
    let changes = compare(&sides[0], &sides[1]);
    assert!(changes.iter().all(|change| change.comparison.delta == 0.0 && change.before_ns == change.after_ns), "{changes:?}");
}

/// Checks rules; gives whether each holds, and the first example or reason.
fn outcomes(store: &TraceStore, rules: &str) -> Vec<(bool, u64, String)> {
    let checked = check(store, &Rules::parse(rules, "rules").unwrap(), &options());
    let word = |outcome: &trace_analysis::checking::Outcome| {
        let example = outcome.examples.first().map(|example| format!("{} {}", example.trace, example.why));
        outcome.why.clone().or(example).unwrap_or_default()
    };
    checked.iter().map(|outcome| (outcome.holds(), outcome.broken, word(outcome))).collect()
}

#[test]
fn counts_hold_and_are_broken() {
    let rule = "[[count]]\nname = 'x'\nper = 'transaction'\nspan = 'decoder: decode transaction'\n";
    let mut spans: Vec<_> = (0..3).flat_map(transaction).collect();
    assert_eq!(outcomes(&store(&spans), &format!("{rule}exactly = 1")), [(true, 0, String::new())]);
    let mut second = spans[3].clone();
    second.id = trace_analysis::SpanId(77);
    spans.push(second);
    let twice = outcomes(&store(&spans), &format!("{rule}at_most = 1"));
    assert_eq!(twice, [(false, 1, format!("{:032x} 2 of decoder: decode transaction", 1000))]);
    assert!(outcomes(&store(&spans), &format!("{rule}at_least = 1"))[0].0);
    let typing_error = rule.replace("'transaction'", "'transactoin'") + "exactly = 1";
    assert!(outcomes(&store(&spans), &typing_error)[0].2.contains("nothing to check"));
    assert!(outcomes(&store(&spans), &format!("{typing_error}\nmay_be_absent = true"))[0].0);
}

#[test]
fn forbidden_spans_are_found_by_attributes() {
    let spans =
        [with(span("d", "decode transaction", 1, 1, 0, 5, 9), "rebuilds", 2), span("d", "decode transaction", 2, 1, 0, 5, 9)];
    let spans = store(&spans);
    for (condition, broken) in [
        ("where = { rebuilds = 2 }", 1),
        ("where = { rebuilds = '2' }", 1),
        ("where = { rebuilds = 3 }", 0),
        ("above = { rebuilds = 1.5 }", 1),
        ("above = { rebuilds = 2 }", 0),
        ("span = 'd: decode transaction'", 2),
        ("span = 'e: decode transaction'", 0),
    ] {
        let found = outcomes(&spans, &format!("[[forbid]]\nname = 'x'\n{condition}"));
        assert_eq!((found[0].0, found[0].1), (broken == 0, broken), "{condition}: {found:?}");
    }
}

#[test]
fn limits_are_of_stages_of_spans_and_of_the_whole() {
    let store = store(&(0..20).flat_map(transaction).collect::<Vec<_>>());
    for (limit, holds) in [
        ("stage = 'total'\np50_max = '26us'", true),
        ("stage = 'total'\np50_max = '24us'", false),
        ("stage = 'waiting for decoder: process wal'\nmax = '4us'", true),
        ("stage = 'waiting for decoder: process wal'\nmax = '2us'", false),
        ("span = 'process wal'\np99_max = '16us'", true),
        ("span = 'process wal'\np99_max = '14us'", false),
        ("stage = 'decoder: process whale'\np99_max = '1h'", false),
        ("stage = 'decoder: process whale'\np99_max = '1h'\nmay_be_absent = true", true),
    ] {
        let found = outcomes(&store, &format!("[[limit]]\nname = 'x'\n{limit}"));
        assert_eq!(found[0].0, holds, "{limit}: {found:?}");
    }
}

#[test]
fn structure_is_checked() {
    let mut spans = transaction(1);
    spans.push(span("x", "orphan", 50, 1, 77, 5, 9));
    let rules = "[structure]\norphans_max = 0\ncycles_max = 0\nunresolved_links_max = 0";
    let found = outcomes(&store(&spans), rules);
    assert_eq!(found.iter().map(|(holds, _, _)| *holds).collect::<Vec<_>>(), [false, true, true]);
    assert!(outcomes(&store(&spans), "[structure]\norphans_max = 1")[0].0);
}

#[test]
fn own_time_is_folded_by_path() {
    let mut spans: Vec<_> = (0..3).flat_map(transaction).collect();
    spans.push(span("decoder", "a;b", 1001, 5, 2, spans[7].start + 1000, spans[7].start + 2500));
    let store = store(&spans);
    let folded = Flame::of(&store).folded(&store);
    let expected = [
        "primary: send wal 6000",
        "primary: send wal;decoder: process wal 45000",
        "primary: transaction;decoder: decode transaction 13500",
        "primary: transaction;decoder: decode transaction;decoder: a,b 1500",
    ];
    assert_eq!(folded, expected);
}

#[test]
fn a_chain_deeper_than_any_stack_is_walked() {
    let deep: Vec<_> = (1..100_000).map(|n| span("s", "x", 1, n, n - 1, 0, 1_000_000 - n)).collect();
    let store = store(&deep);
    let folded = Flame::of(&store).folded(&store);
    let sum: u64 = folded.iter().filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum();
    assert_eq!(sum, 999_999);
    let mut total = 0;
    trace_analysis::stages::Stages::of(&store, &PathOptions::default(), &mut |_, path| total = path.total_ns());
    assert_eq!(total, 999_999);
}
