//! What does a snapshot cost, and what do adds and removals? `cargo bench -p standby-core`
//!
//! The span is that of a standby with max_connections 5000 whose array is as full of gaps as it can be. `plain` and `skip_offset` run
//! side by side on the same array; `no_gaps` shows what looking for skip offsets costs where there are none.

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use pg_types::{Lsn, Xid};
use standby_core::known_assigned_xids::{KnownAssignedView, KnownAssignedXids};
use standby_core::{CompressionRule, ScanStrategy};

/// Slots from tail to head.
const SPAN: u32 = 325_000;
/// First xid.
const FIRST: u32 = 1_000;

fn main() {
    divan::main();
}

/// An array of [`SPAN`] slots of which every `stride`-th runs, never compressed.
fn array(stride: u32) -> KnownAssignedXids {
    let mut array = KnownAssignedXids::new(SPAN + 1024, u32::MAX, CompressionRule::Span);
    add(&mut array, FIRST, FIRST + SPAN - 1);
    let gone: Vec<Xid> = (0..SPAN).filter(|n| n % stride != 0).map(|n| Xid(FIRST + n)).collect();
    array.remove_tree(Xid::INVALID, &gone);
    array
}

/// Adds a range that fits.
fn add(array: &mut KnownAssignedXids, from: u32, to: u32) {
    if let Err(error) = array.add(Xid(from), Xid(to), Lsn(1)) {
        panic!("{error}");
    }
}

/// Walks a whole view.
fn walk(view: &KnownAssignedView, scan: ScanStrategy, out: &mut Vec<Xid>) -> u64 {
    out.clear();
    view.live_below(Xid(FIRST + SPAN), scan, out).visited
}

/// One walk per iteration, after one that lets skip offsets be learnt.
fn bench_walk(bencher: Bencher<'_, '_>, stride: u32, scan: ScanStrategy) {
    let view = array(stride).view().clone();
    let mut out = Vec::with_capacity(SPAN as usize);
    walk(&view, scan, &mut out);
    bencher.bench_local(|| walk(black_box(&view), scan, &mut out));
}

/// Snapshots: one live slot in 100 (1 %), in 1000 (0.1 %), all (no gaps).
mod snapshot {
    use super::{Bencher, ScanStrategy, bench_walk};

    #[divan::bench(args = [100, 1000])]
    fn plain(bencher: Bencher<'_, '_>, stride: u32) {
        bench_walk(bencher, stride, ScanStrategy::Plain);
    }

    #[divan::bench(args = [100, 1000])]
    fn skip_offset(bencher: Bencher<'_, '_>, stride: u32) {
        bench_walk(bencher, stride, ScanStrategy::SkipOffset);
    }

    #[divan::bench]
    fn no_gaps_plain(bencher: Bencher<'_, '_>) {
        bench_walk(bencher, 1, ScanStrategy::Plain);
    }

    #[divan::bench]
    fn no_gaps_skip_offset(bencher: Bencher<'_, '_>) {
        bench_walk(bencher, 1, ScanStrategy::SkipOffset);
    }
}

/// Transactions that begin and end among `live` others; the counted rule keeps the array short.
#[divan::bench(args = [16, 1000])]
fn add_remove(bencher: Bencher<'_, '_>, live: u32) {
    const ROUND: u32 = 10_000;
    let mut array = KnownAssignedXids::new(SPAN, 5022, CompressionRule::Counted);
    let mut next = FIRST;
    add(&mut array, next, next + live - 1);
    next += live;
    bencher.counter(ItemsCount::new(ROUND)).bench_local(|| {
        for _ in 0..ROUND {
            add(&mut array, next, next);
            array.remove_tree(Xid(next - live / 2), &[]);
            array.clear_calls();
            next += 1;
        }
        black_box(array.view().live)
    });
}
