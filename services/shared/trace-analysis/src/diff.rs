//! Which stage of the critical path got slower or faster from one input to another.
//!
//! A transaction counts with its time in each stage, 0 if its path has no such stage: so the differences of the means add up to that of the
//! total. Means are of all transactions; tests are of a sample of at most [`SAMPLE`] of each input, those with the least hash of their trace's
//! id, so that the order of reading changes nothing and memory does not grow.

use std::collections::{BTreeMap, BinaryHeap};

use crate::critical_path::Stage;
use crate::significance::{Comparison, holm, mann_whitney};
use crate::span::TraceId;
use crate::stages::{PathCounts, PathOptions, Stages, by_stage};
use crate::store::TraceStore;

/// Transactions of each input that are tested.
pub const SAMPLE: usize = 20_000;
/// Name of all stages together.
pub const TOTAL: &str = "total";

/// Times of a transaction, by stage.
type Times = Vec<(u32, u64)>;

/// One input, summed up for a comparison.
#[derive(Debug, Default)]
pub struct Side {
    /// Names of stages.
    labels: Vec<String>,
    /// Nanoseconds of all transactions, by stage; of all stages as [`TOTAL`].
    sums: BTreeMap<String, u64>,
    /// The sample: hash of the id, then times.
    sample: BinaryHeap<(u64, Times)>,
    /// What paths went by.
    pub counts: PathCounts,
}

impl Side {
    /// Of a store.
    #[must_use]
    pub fn of(store: &TraceStore, options: &PathOptions) -> Self {
        let mut side = Self::default();
        let mut numbers = BTreeMap::new();
        let stages = Stages::of(store, options, &mut |tree, path| {
            let Some(span) = tree.spans().next() else { return };
            let mut number = |stage: Stage| {
                *numbers.entry(stage).or_insert_with(|| {
                    side.labels.push(stage.label(store));
                    side.labels.len() as u32 - 1
                })
            };
            let times: Times = by_stage(path).into_iter().map(|(stage, ns)| (number(stage), ns)).collect();
            side.sample.push((hash(store.record(span).trace), times));
            if side.sample.len() > SAMPLE {
                side.sample.pop();
            }
        });
        side.counts = stages.counts;
        side.sums.insert(TOTAL.to_owned(), stages.total.sum_ns);
        for row in stages.rows() {
            *side.sums.entry(row.stage.label(store)).or_default() += row.times.sum_ns;
        }
        side
    }

    /// Transactions that are tested.
    #[must_use]
    pub fn sampled(&self) -> usize {
        self.sample.len()
    }

    /// Mean nanoseconds a transaction.
    fn mean_ns(&self, stage: &str) -> f64 {
        self.sums.get(stage).copied().unwrap_or(0) as f64 / self.counts.transactions.max(1) as f64
    }

    /// Times of the sample in a stage.
    fn times(&self, stage: &str) -> Vec<f64> {
        let is_it = |number: u32| stage == TOTAL || self.labels.get(number as usize).is_some_and(|label| label == stage);
        let of = |times: &Times| times.iter().filter(|(number, _)| is_it(*number)).map(|(_, ns)| *ns as f64).sum();
        self.sample.iter().map(|(_, times)| of(times)).collect()
    }
}

/// A number that says nothing of the time of a trace.
fn hash(trace: TraceId) -> u64 {
    let mut x = trace.low ^ trace.high.rotate_left(32);
    for factor in [0xBF58_476D_1CE4_E5B9, 0x94D0_49BB_1331_11EB] {
        x = (x ^ (x >> 30)).wrapping_mul(factor);
    }
    x ^ (x >> 31)
}

/// A stage in both inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The stage; [`TOTAL`] for all together.
    pub stage: String,
    /// Mean nanoseconds a transaction in the first input.
    pub before_ns: f64,
    /// In the second.
    pub after_ns: f64,
    /// What the test says, its p corrected for the number of stages.
    pub comparison: Comparison,
}

/// What came of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It takes longer.
    Slower,
    /// It takes less.
    Faster,
    /// The difference may be chance.
    NotSignificant,
}

impl Change {
    /// Whether the mean went the other way than most transactions, as when most are faster and a few much slower.
    #[must_use]
    pub fn is_mixed(&self) -> bool {
        (self.after_ns - self.before_ns) * self.comparison.delta < 0.0
    }

    /// What came of it, if a p of up to `alpha` is no chance.
    #[must_use]
    pub fn verdict(&self, alpha: f64) -> Verdict {
        match self.comparison {
            Comparison { p, .. } if p > alpha => Verdict::NotSignificant,
            Comparison { delta, .. } if delta > 0.0 => Verdict::Slower,
            _ => Verdict::Faster,
        }
    }
}

/// Compares two inputs: the total first, then the stages whose means differ most.
#[must_use]
pub fn compare(before: &Side, after: &Side) -> Vec<Change> {
    let mut stages: Vec<&String> = before.sums.keys().chain(after.sums.keys()).collect();
    stages.sort();
    stages.dedup();
    let mut changes: Vec<Change> = stages
        .into_iter()
        .map(|stage| Change {
            stage: stage.clone(),
            before_ns: before.mean_ns(stage),
            after_ns: after.mean_ns(stage),
            comparison: mann_whitney(&before.times(stage), &after.times(stage)),
        })
        .collect();
    let corrected = holm(&changes.iter().map(|change| change.comparison.p).collect::<Vec<_>>());
    changes.iter_mut().zip(corrected).for_each(|(change, p)| change.comparison.p = p);
    let difference = |change: &Change| (change.after_ns - change.before_ns).abs();
    changes.sort_by(|a, b| (b.stage == TOTAL).cmp(&(a.stage == TOTAL)).then(difference(b).total_cmp(&difference(a))));
    changes
}
