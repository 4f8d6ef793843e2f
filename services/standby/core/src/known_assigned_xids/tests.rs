//! Both layouts against a `BTreeSet`: every operation, both compression rules, all walks, across the 32-bit wraparound.

use std::collections::BTreeSet;

use pg_types::FullXid;
use proptest::prelude::*;

use super::array::KnownAssignedArray;
use super::skip_offset::{ScanStrategy, SlotCount, live_below};
use super::view::ArrayView;
use super::*;

/// Slots of the array under test: few, so that it fills up.
const MAX: u32 = 48;
/// So many processes that the span rule never compresses.
const NEVER: u32 = 1 << 20;
/// All layouts.
const LAYOUTS: &[KnownAssignedLayout] = &[
    KnownAssignedLayout::Array(CompressionRule::Span),
    KnownAssignedLayout::Array(CompressionRule::Counted),
    KnownAssignedLayout::Segments,
];
/// The first xid: ten before the 32-bit wraparound.
const START: FullXid = FullXid((7 << 32) - 10);

/// An operation. Numbers choose among what there is, so that shrinking keeps meaning.
#[derive(Clone, Debug)]
enum Op {
    /// Add this many.
    Add(u64),
    /// Remove a tree of the n-th ids since the start, known or not.
    RemoveTree(Vec<usize>),
    /// Remove without a top-level id, as an assignment does.
    RemoveSubs(Vec<usize>),
    /// Prune up to the n-th id; those divisible by 5 are prepared.
    Prune(usize),
    /// Let it idle for some milliseconds.
    Idle(u64),
    /// Empty it.
    Reset,
    /// Keep the view, to be looked at again later.
    Keep,
    /// Walk with skip offsets over a kept view, or the present one, up to the n-th id.
    Scan(usize, usize),
}

fn op() -> impl Strategy<Value = Op> {
    let ids = || prop::collection::vec(any::<prop::sample::Index>().prop_map(|i| i.index(400)), 1..6);
    prop_oneof![
        6 => (1u64..9).prop_map(Op::Add),
        8 => ids().prop_map(Op::RemoveTree),
        2 => ids().prop_map(Op::RemoveSubs),
        1 => (0usize..400).prop_map(Op::Prune),
        1 => (0u64..1500).prop_map(Op::Idle),
        1 => Just(Op::Reset),
        3 => Just(Op::Keep),
        6 => (0usize..8, 0usize..400).prop_map(|(view, id)| Op::Scan(view, id)),
    ]
}

/// The array, the model, and views with what they must show for ever.
struct Pair {
    ours: KnownAssignedXids,
    /// Live xids.
    live: BTreeSet<FullXid>,
    /// Ids added so far, all of them.
    ids: Vec<FullXid>,
    next: FullXid,
    now_ms: u64,
    kept: Vec<(KnownAssignedView, Vec<Xid>)>,
}

impl Pair {
    fn new(layout: KnownAssignedLayout) -> Self {
        let ours = KnownAssignedXids::new(MAX, 3, layout);
        Self { ours, live: BTreeSet::new(), ids: Vec::new(), next: START, now_ms: 0, kept: Vec::new() }
    }

    /// The n-th id so far, or one that was never added.
    fn id(&self, n: usize) -> FullXid {
        self.ids.get(n % (self.ids.len() + 2)).copied().unwrap_or(self.next)
    }

    fn live_xids(&self) -> Vec<Xid> {
        self.live.iter().map(|x| x.xid()).collect()
    }

    fn run(&mut self, op: &Op) {
        match op {
            Op::Add(n) => self.add(*n),
            Op::RemoveTree(ids) | Op::RemoveSubs(ids) => {
                let ids: Vec<FullXid> = ids.iter().map(|&n| self.id(n)).collect();
                let xids: Vec<Xid> = ids.iter().map(|x| x.xid()).collect();
                match op {
                    Op::RemoveTree(_) => self.ours.remove_tree(xids[0], &xids[1..]),
                    _ => self.ours.remove_tree(Xid::INVALID, &xids),
                }
                self.live.retain(|x| !ids.contains(x));
            }
            Op::Prune(n) => {
                let limit = self.id(*n);
                self.ours.prune(limit.xid(), |xid| xid.numeric() % 5 == 0);
                self.live.retain(|x| *x >= limit || x.xid().numeric() % 5 == 0);
            }
            Op::Idle(ms) => {
                self.now_ms += ms;
                self.ours.set_now(self.now_ms);
                self.ours.idle();
            }
            Op::Reset => {
                self.ours.reset();
                self.live.clear();
            }
            Op::Keep => self.kept.push((self.ours.view(), self.live_xids())),
            Op::Scan(view, n) => {
                let (view, live) = match self.kept.get(*view) {
                    Some((view, live)) => (view.clone(), live.clone()),
                    None => (self.ours.view(), self.live_xids()),
                };
                all_walks_give_the_model(&view, &live, self.id(*n).xid());
            }
        }
    }

    fn add(&mut self, n: u64) {
        let added: Vec<FullXid> = std::iter::successors(Some(self.next), |x| Some(x.next())).take(n as usize).collect();
        let last = added[added.len() - 1];
        let result = self.ours.add(self.next.xid(), last.xid(), Lsn(1));
        if self.live.len() as u64 + n > u64::from(MAX) {
            let live = self.live.len() as u32;
            assert_eq!(result, Err(RecoveryError::TooManyKnownAssignedXids { lsn: Lsn(1), live, wanted: n, max: MAX }));
        } else {
            assert_eq!(result, Ok(()), "compression makes room for what fits");
            self.live.extend(&added);
            self.ids.extend(&added);
            self.next = last.next();
        }
    }
}

/// I6, and that all walks give what the model says, at what they say it costs.
fn all_walks_give_the_model(view: &KnownAssignedView, live: &[Xid], xmax: Xid) {
    let want: Vec<Xid> = live.iter().copied().filter(|x| x.precedes(xmax)).collect();
    for scan in [ScanStrategy::Plain, ScanStrategy::SkipOffset, ScanStrategy::SkipOffset] {
        let mut got = Vec::new();
        let SlotCount { visited, skipped } = view.live_below(xmax, scan, &mut got);
        assert_eq!(got, want, "{scan:?} of {view:?} below {xmax}");
        assert!(visited + skipped <= u64::from(view.span()), "no slot counts twice");
        // A walk may stop at the first xid past xmax, live or not.
        if view.newest().is_some_and(|newest| newest.precedes(xmax)) {
            assert_eq!(visited + skipped, u64::from(view.span()), "all of the span was walked or jumped");
        }
        assert!(scan == ScanStrategy::SkipOffset || skipped == 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// I1 to I4 and S1 to S4 are checked inside, after each operation; I5 and S5 here: a view shows for ever what it showed first.
    #[test]
    fn i5_s5_views_never_change_and_all_operations_match_a_set(
        ops in prop::collection::vec(op(), 1..250),
        layout in prop::sample::select(LAYOUTS),
    ) {
        let mut pair = Pair::new(layout);
        for op in &ops {
            pair.run(op);
            prop_assert_eq!(pair.ours.view().live_xids(), pair.live_xids(), "after {:?}", op);
            prop_assert_eq!(pair.ours.view().live as usize, pair.live.len());
        }
        // Newest first, so that the offsets of newer readers lie in the way of older ones.
        for (view, live) in pair.kept.iter().rev() {
            prop_assert_eq!(&view.live_xids(), live);
            all_walks_give_the_model(view, live, pair.next.xid());
        }
    }
}

#[test]
fn i4_s4_ids_stay_sorted_so_an_old_one_is_refused() {
    for &layout in LAYOUTS {
        let mut xids = KnownAssignedXids::new(MAX, 3, layout);
        xids.add(Xid(10), Xid(12), Lsn(1)).unwrap();
        xids.remove_tree(Xid(12), &[]);
        let err = xids.add(Xid(12), Xid(13), Lsn(9)).unwrap_err();
        assert_eq!(err, RecoveryError::OutOfOrderXid { lsn: Lsn(9), xid: Xid(12), last: Xid(12) }, "{layout:?}");
        assert_eq!(xids.view().live_xids(), [Xid(10), Xid(11)], "{layout:?}: what was there is as it was");
        xids.remove_tree(Xid(10), &[Xid(11)]);
        let empty = xids.view();
        assert_eq!((empty.tail, empty.head), (0, 0), "{layout:?}: an empty array starts at 0");
        xids.add(Xid(5), Xid(5), Lsn(2)).unwrap();
    }
}

#[test]
fn a_huge_gap_is_refused_before_anything_is_allocated() {
    for &layout in LAYOUTS {
        let mut xids = KnownAssignedXids::new(MAX, 3, layout);
        xids.add(Xid(u32::MAX - 1), Xid(u32::MAX - 1), Lsn(1)).unwrap();
        let before = xids.view().memory_bytes();
        let err = xids.add(Xid(u32::MAX), Xid(1 << 30), Lsn(2)).unwrap_err();
        let wanted = (1 << 30) - 1;
        assert_eq!(err, RecoveryError::TooManyKnownAssignedXids { lsn: Lsn(2), live: 1, wanted, max: MAX }, "{layout:?}");
        assert_eq!(xids.view().memory_bytes(), before, "{layout:?}");
    }
}

#[test]
fn an_older_reader_does_not_jump_over_what_runs_for_it() {
    let mut a = KnownAssignedArray::new(MAX, NEVER, CompressionRule::Span);
    a.add(Xid(100), Xid(109), Lsn(1)).unwrap();
    let old = a.view().clone();
    a.remove_tree(Xid(104), &[Xid(101), Xid(102), Xid(103), Xid(105)]);
    let mid = a.view().clone();
    a.remove_tree(Xid(106), &[Xid(107)]);
    let walk = |view: &ArrayView| {
        let mut out = Vec::new();
        let count = live_below(view, Xid(200), ScanStrategy::SkipOffset, &mut out);
        (out.iter().map(|x| x.0).collect::<Vec<_>>(), count)
    };
    // The newest reader learns that 101 to 107 are gone.
    let newest = a.view().clone();
    assert_eq!(walk(&newest), (vec![100, 108, 109], SlotCount { visited: 10, skipped: 0 }));
    assert_eq!(walk(&newest), (vec![100, 108, 109], SlotCount { visited: 4, skipped: 6 }));
    // That is not so for the others, and they do not spoil it.
    assert_eq!(walk(&mid).0, [100, 106, 107, 108, 109]);
    assert_eq!(walk(&old).0, (100..110).collect::<Vec<_>>());
    assert_eq!(walk(&newest).1, SlotCount { visited: 4, skipped: 6 });
}

#[test]
fn a_snapshot_costs_live_plus_gaps_plus_removals_since_the_last() {
    let mut a = KnownAssignedArray::new(10_000, NEVER, CompressionRule::Span);
    a.add(Xid(1000), Xid(8999), Lsn(1)).unwrap();
    let gone: Vec<Xid> = (1000..9000).filter(|x| x % 100 != 0 && x % 100 < 90).map(Xid).collect();
    a.remove_tree(Xid::INVALID, &gone);
    let span = u64::from(a.view().span());
    let mut out = Vec::new();
    let first = live_below(a.view(), Xid(9999), ScanStrategy::SkipOffset, &mut out);
    assert_eq!(first, SlotCount { visited: span, skipped: 0 });
    a.remove_tree(Xid(1200), &[Xid(1300), Xid(4295)]);
    out.clear();
    let second = live_below(a.view(), Xid(9999), ScanStrategy::SkipOffset, &mut out);
    let gaps = 80;
    assert!(second.visited <= out.len() as u64 + gaps + 3, "{second:?} for {} live", out.len());
    assert_eq!(second.visited + second.skipped, span);
}

#[test]
fn at_one_percent_live_skip_offsets_look_at_ninety_times_fewer_slots() {
    let span = 65 * 5000;
    let mut a = KnownAssignedArray::new(span, NEVER, CompressionRule::Span);
    a.add(Xid(1000), Xid(999 + span), Lsn(1)).unwrap();
    let gone: Vec<Xid> = (0..span).filter(|n| n % 100 != 0).map(|n| Xid(1000 + n)).collect();
    a.remove_tree(Xid::INVALID, &gone);
    let visited = |scan| {
        let mut out = Vec::new();
        let count = live_below(a.view(), Xid(1000 + span), scan, &mut out);
        assert_eq!(out.len() as u32, span / 100);
        count.visited
    };
    let first = visited(ScanStrategy::SkipOffset);
    assert_eq!((first, visited(ScanStrategy::Plain)), (u64::from(span), u64::from(span)), "the first walk pays the span");
    assert!(90 * visited(ScanStrategy::SkipOffset) <= first);
}

#[test]
fn chunks_behind_the_tail_are_let_go() {
    let mut a = KnownAssignedArray::new(3000, 3, CompressionRule::Counted);
    let mut next = Xid(3);
    for _ in 0..40 {
        let last = Xid(next.0 + 999);
        a.add(next, last, Lsn(1)).unwrap();
        for xid in next.0..last.0 {
            a.remove_tree(Xid(xid), &[]);
        }
        next = last.next();
    }
    // 40,000 ids passed; the array never held more than 3,000 slots and neither did memory, beyond a chunk at each end.
    let bytes = a.view().log.memory_bytes();
    assert!(bytes <= 5 * (size_of::<slots::Chunk>() + 8), "{bytes}");
}

#[test]
fn segments_visit_what_runs_and_nothing_else() {
    let span = 65 * 5000;
    let mut s = KnownAssignedXids::new(span, 3, KnownAssignedLayout::Segments);
    s.add(Xid(1000), Xid(999 + span), Lsn(1)).unwrap();
    let full = s.view();
    let gone: Vec<Xid> = (0..span).filter(|n| n % 100 != 0).map(|n| Xid(1000 + n)).collect();
    s.remove_tree(Xid::INVALID, &gone);
    let mut out = Vec::new();
    let count = s.view().live_below(Xid(1000 + span), ScanStrategy::Plain, &mut out);
    assert_eq!((count, out.len() as u32), (SlotCount { visited: u64::from(span / 100), skipped: 0 }, span / 100));
    // S4: half-full segments at worst, each with its pointers.
    assert!(s.view().memory_bytes() < full.memory_bytes() / 25, "{} of {}", s.view().memory_bytes(), full.memory_bytes());
    assert_eq!((full.live, full.live_xids().len() as u32), (span, span), "S5");
}

#[test]
fn a_full_layout_says_so_whatever_it_is() {
    for &layout in LAYOUTS {
        let mut a = KnownAssignedXids::new(MAX, 3, layout);
        a.add(Xid(100), Xid(99 + MAX), Lsn(1)).unwrap();
        let err = a.add(Xid(100 + MAX), Xid(100 + MAX), Lsn(2)).unwrap_err();
        assert_eq!(err, RecoveryError::TooManyKnownAssignedXids { lsn: Lsn(2), live: MAX, wanted: 1, max: MAX });
        // Two end in the middle: an array is compressed by force.
        a.remove_tree(Xid(110), &[Xid(120)]);
        a.add(Xid(100 + MAX), Xid(101 + MAX), Lsn(2)).unwrap();
        assert_eq!((a.view().live, a.view().head), (MAX, MAX), "{layout:?}");
        let forced = a.calls().iter().any(|call| call.reason == compress::CompressReason::NoSpace && call.compressed);
        assert_eq!(forced, layout != KnownAssignedLayout::Segments, "{layout:?}");
    }
}
