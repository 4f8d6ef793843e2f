//! What does a snapshot cost, and what do adds and removals, by layout? `cargo bench -p standby-core`
//!
//! The layouts run side by side on the same history: `plain` and `skip_offset` walk an array that is as full of gaps as it can be,
//! `counted` one that the rule of current minors compresses, `segments` keeps live xids alone. What the figures of these and of
//! layouts that lost were is in `src/known_assigned_xids/README.md`.

mod shuffle;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use pg_types::{Lsn, Xid};
use standby_core::known_assigned_xids::{KnownAssignedView, KnownAssignedXids};
use standby_core::{CompressionRule, KnownAssignedLayout, ScanStrategy};

/// First xid.
const FIRST: u32 = 1_000;

/// A layout and its walk.
type Kind = (KnownAssignedLayout, ScanStrategy);
/// Every slot of an array that is never compressed.
const PLAIN: Kind = (KnownAssignedLayout::Array(CompressionRule::Span), ScanStrategy::Plain);
/// The same array with skip offsets.
const SKIP_OFFSET: Kind = (KnownAssignedLayout::Array(CompressionRule::Span), ScanStrategy::SkipOffset);
/// The array of current minors.
const COUNTED: Kind = (KnownAssignedLayout::Array(CompressionRule::Counted), ScanStrategy::Plain);
/// The layout of profile `indexed`.
const SEGMENTS: Kind = (KnownAssignedLayout::Segments, ScanStrategy::Plain);

/// Span, and of how many xids one runs.
const SHAPES: [(u32, u32); 8] =
    [(100, 100), (10_000, 1), (10_000, 100), (325_000, 1), (325_000, 2), (325_000, 100), (325_000, 1000), (1_000_000, 10_000)];

fn main() {
    divan::main();
}

/// Xids of which every `stride`-th runs, after the others ended oldest first, newest and middle in turns, or at random.
fn ended(span: u32, stride: u32, order: &str) -> Vec<Xid> {
    let mut gone: Vec<Xid> = (0..span).filter(|n| n % stride != 0).map(|n| Xid(FIRST + n)).collect();
    match order {
        "random" => shuffle::shuffle(&mut gone),
        "interleaved" => {
            let newer = gone.split_off(gone.len() / 2);
            gone = newer.iter().zip(&gone).flat_map(|(a, b)| [*a, *b]).chain(newer.last().copied()).collect();
        }
        _ => {}
    }
    gone
}

/// `span` xids added, none ended.
fn full((layout, _): Kind, span: u32) -> KnownAssignedXids {
    let mut xids = KnownAssignedXids::new(span + 1024, u32::MAX, layout);
    add(&mut xids, FIRST, FIRST + span - 1);
    xids
}

/// Adds a range that fits.
fn add(xids: &mut KnownAssignedXids, from: u32, to: u32) {
    if let Err(error) = xids.add(Xid(from), Xid(to), Lsn(1)) {
        panic!("{error}");
    }
}

/// Walks a whole view.
fn walk(view: &KnownAssignedView, scan: ScanStrategy, out: &mut Vec<Xid>) -> u64 {
    out.clear();
    view.live_below(Xid(FIRST + 2_000_000), scan, out).visited
}

/// One walk per iteration and thread, after one that lets skip offsets be learnt.
fn bench_walk(bencher: Bencher<'_, '_>, kind: Kind, (span, stride): (u32, u32)) {
    let mut xids = full(kind, span);
    for xid in ended(span, stride, "random") {
        xids.remove_tree(xid, &[]);
    }
    let view = xids.view();
    walk(&view, kind.1, &mut Vec::new());
    bencher.with_inputs(|| Vec::with_capacity(span as usize)).bench_refs(|out| walk(black_box(&view), kind.1, out));
}

/// Snapshots of one reader.
mod snapshot {
    use super::{Bencher, COUNTED, PLAIN, SEGMENTS, SHAPES, SKIP_OFFSET, bench_walk};

    #[divan::bench(args = SHAPES)]
    fn plain(bencher: Bencher<'_, '_>, shape: (u32, u32)) {
        bench_walk(bencher, PLAIN, shape);
    }

    #[divan::bench(args = SHAPES)]
    fn skip_offset(bencher: Bencher<'_, '_>, shape: (u32, u32)) {
        bench_walk(bencher, SKIP_OFFSET, shape);
    }

    #[divan::bench(args = SHAPES)]
    fn counted(bencher: Bencher<'_, '_>, shape: (u32, u32)) {
        bench_walk(bencher, COUNTED, shape);
    }

    #[divan::bench(args = SHAPES)]
    fn segments(bencher: Bencher<'_, '_>, shape: (u32, u32)) {
        bench_walk(bencher, SEGMENTS, shape);
    }
}

/// Snapshots of several readers at once, 1 % live.
#[divan::bench(threads = [1, 4, 16], args = [("skip_offset", SKIP_OFFSET), ("counted", COUNTED), ("segments", SEGMENTS)])]
fn readers(bencher: Bencher<'_, '_>, (_, kind): &(&str, Kind)) {
    bench_walk(bencher, *kind, (325_000, 100));
}

/// Removals down to 1 % live, each published as replay does.
#[divan::bench(args = ["in order", "random", "interleaved"], consts = [0, 1], sample_count = 5)]
fn remove<const SEGMENTED: usize>(bencher: Bencher<'_, '_>, order: &str) {
    const SPAN: u32 = 100_000;
    let kind = [COUNTED, SEGMENTS][SEGMENTED];
    let gone = ended(SPAN, 100, order);
    bencher.counter(ItemsCount::new(gone.len())).with_inputs(|| full(kind, SPAN)).bench_refs(|xids| {
        let mut published = xids.view();
        for &xid in &gone {
            xids.remove_tree(xid, &[]);
            xids.clear_calls();
            published = xids.view();
        }
        black_box(published.live)
    });
}

/// Transactions that begin and end among `live` others, each step published.
#[divan::bench(args = [16, 1000], consts = [0, 1])]
fn add_remove<const SEGMENTED: usize>(bencher: Bencher<'_, '_>, live: u32) {
    const ROUND: u32 = 10_000;
    let mut xids = KnownAssignedXids::new(325_000, 5022, [COUNTED, SEGMENTS][SEGMENTED].0);
    let mut next = FIRST;
    add(&mut xids, next, next + live - 1);
    next += live;
    let mut published = xids.view();
    bencher.counter(ItemsCount::new(ROUND)).bench_local(|| {
        for _ in 0..ROUND {
            add(&mut xids, next, next);
            published = xids.view();
            xids.remove_tree(Xid(next - live / 2), &[]);
            xids.clear_calls();
            published = xids.view();
            next += 1;
        }
        black_box(published.live)
    });
}
