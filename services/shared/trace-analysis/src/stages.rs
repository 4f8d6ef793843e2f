//! Critical paths of many transactions, summed up by stage in memory that does not grow with their number.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use rustc_hash::FxHashMap;

use crate::critical_path::{Path, Stage, Walker, is_batch};
use crate::store::TraceStore;
use crate::tree::{Tree, each_tree};

/// Quantiles that are shown.
pub const QUANTILES: [f64; 3] = [0.5, 0.95, 0.99];
/// Buckets of total times for each doubling: bands end within 1.6 % of the quantile.
const BUCKETS_PER_DOUBLING: u64 = 64;
/// Digits of quantiles.
const DIGITS: u8 = 3;
/// The most stages; later ones are one.
const STAGES_MAX: usize = 250;
/// The longest time that is told from longer ones: 30 years.
const LONGEST_NS: u64 = 1 << 60;

/// Which paths are walked.
#[derive(Clone, Debug, Default)]
pub struct PathOptions {
    /// Only traces with a span of this name.
    pub root: Option<String>,
    /// Up to the last end of this service.
    pub to: Option<String>,
}

/// Times of one stage, or of all together.
#[derive(Debug)]
pub struct Times {
    /// Nanoseconds on all paths.
    pub sum_ns: u64,
    /// By transaction that has it.
    histogram: Histogram<u64>,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            sum_ns: 0,
            histogram: Histogram::new(DIGITS).unwrap_or_else(|_| unreachable!("the library takes 0 to 5 digits")),
        }
    }
}

impl Times {
    /// Adds one.
    pub(crate) fn add(&mut self, ns: u64) {
        self.sum_ns = self.sum_ns.saturating_add(ns);
        // It grows with what is recorded; up to the longest time it always can.
        let _ = self.histogram.record(ns.clamp(1, LONGEST_NS));
    }

    /// Transactions that have it.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// A quantile over the transactions that have it.
    #[must_use]
    pub fn quantile_ns(&self, quantile: f64) -> u64 {
        self.histogram.value_at_quantile(quantile)
    }

    /// The longest.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.histogram.max()
    }
}

/// Transactions of about one total time.
#[derive(Debug, Default)]
struct Bucket {
    /// How many.
    count: u64,
    /// Their times together.
    sum_ns: u64,
    /// Their times by stage, by position in [`Stages::order`].
    stages: Vec<u64>,
}

/// What paths went by that is worth a remark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounts {
    /// Paths.
    pub transactions: u64,
    /// Traces of batches: walked with the transactions that they carry.
    pub batches: u64,
    /// Traces of another sort than was asked for.
    pub others: u64,
    /// Paths that begin behind the commit, since the log was replayed.
    pub replayed: u64,
    /// Paths with a batch that was found by time alone.
    pub joined: u64,
    /// Gaps below zero.
    pub negative_gaps: u64,
    /// Walks that came back to where they had been.
    pub cycles: u64,
}

/// The sum.
#[derive(Debug, Default)]
pub struct Stages {
    /// Times by stage.
    times: FxHashMap<Stage, (usize, Times)>,
    /// Stages in the order in which they were first met.
    order: Vec<Stage>,
    /// Times of whole paths.
    pub total: Times,
    /// By total time.
    buckets: BTreeMap<u64, Bucket>,
    /// Remarks.
    pub counts: PathCounts,
}

/// A row of the sum.
#[derive(Debug)]
pub struct Row<'s> {
    /// The stage.
    pub stage: Stage,
    /// Its times.
    pub times: &'s Times,
    /// Its share of all time.
    pub share: f64,
    /// Its share of the time of transactions up to the median, from there to p95, from there to p99, and above.
    pub bands: [f64; 4],
}

impl Stages {
    /// Walks every transaction of a store; `each` sees its path too, with the trace's number of transactions so far.
    pub fn of(store: &TraceStore, options: &PathOptions, each: &mut dyn FnMut(&Tree, &Path)) -> Self {
        let mut stages = Self::default();
        let mut walker = Walker::new(store);
        each_tree(store, &mut |tree| {
            if is_batch(store, tree) {
                stages.counts.batches += 1;
                return;
            }
            let has = |name: &String| tree.spans().any(|span| store.name(store.record(span)) == name);
            let path = if options.root.as_ref().is_none_or(has) { walker.walk(tree, options.to.as_deref()) } else { None };
            match path {
                Some(path) => {
                    stages.add(&path);
                    each(tree, &path);
                }
                None => stages.counts.others += 1,
            }
        });
        stages
    }

    /// Adds a path.
    fn add(&mut self, path: &Path) {
        self.counts.transactions += 1;
        self.counts.replayed += u64::from(path.replayed);
        self.counts.joined += u64::from(path.joined);
        self.counts.negative_gaps += u64::from(path.negative_gaps);
        self.counts.cycles += u64::from(path.cycle);
        let total = path.total_ns();
        self.total.add(total);
        let bucket = self.buckets.entry(bucket_of(total)).or_default();
        bucket.count += 1;
        bucket.sum_ns = bucket.sum_ns.saturating_add(total);
        for (stage, ns) in by_stage(path) {
            let known = self.order.len() < STAGES_MAX || self.times.contains_key(&stage);
            let stage = if known { stage } else { Stage::Other };
            let position = self.order.len();
            let (position, times) = self.times.entry(stage).or_insert_with(|| (position, Times::default()));
            times.add(ns);
            if *position == self.order.len() {
                self.order.push(stage);
            }
            if bucket.stages.len() <= *position {
                bucket.stages.resize(*position + 1, 0);
            }
            bucket.stages[*position] += ns;
        }
    }

    /// The rows, in the order of time on the median path as far as the first paths tell it.
    #[must_use]
    pub fn rows(&self) -> Vec<Row<'_>> {
        let bands = self.bands();
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let mut rows: Vec<Row<'_>> = Vec::new();
        for (position, stage) in self.order.iter().enumerate() {
            let Some((_, times)) = self.times.get(stage) else { continue };
            let of_band = |band: &Bucket| share(band.stages.get(position).copied().unwrap_or(0), band.sum_ns);
            let bands = [of_band(&bands[0]), of_band(&bands[1]), of_band(&bands[2]), of_band(&bands[3])];
            rows.push(Row { stage: *stage, times, share: share(times.sum_ns, self.total.sum_ns), bands });
        }
        rows.sort_by_key(|row| std::cmp::Reverse(row.times.sum_ns));
        rows
    }

    /// Transactions in each band.
    #[must_use]
    pub fn band_counts(&self) -> [u64; 4] {
        self.bands().map(|band| band.count)
    }

    /// The buckets up to each quantile together, and those above.
    fn bands(&self) -> [Bucket; 4] {
        let ends = QUANTILES.map(|quantile| (quantile * self.counts.transactions as f64).ceil() as u64);
        let mut bands = [const { Bucket { count: 0, sum_ns: 0, stages: Vec::new() } }; 4];
        let mut before = 0;
        for bucket in self.buckets.values() {
            let band = ends.iter().position(|end| before < *end).unwrap_or(3);
            before += bucket.count;
            let band = &mut bands[band];
            band.count += bucket.count;
            band.sum_ns = band.sum_ns.saturating_add(bucket.sum_ns);
            band.stages.resize(band.stages.len().max(bucket.stages.len()), 0);
            band.stages.iter_mut().zip(&bucket.stages).for_each(|(sum, ns)| *sum += ns);
        }
        bands
    }
}

/// A path's time by stage, each stage once.
#[must_use]
pub fn by_stage(path: &Path) -> Vec<(Stage, u64)> {
    let mut stages: Vec<(Stage, u64)> = Vec::with_capacity(path.segments.len());
    for segment in &path.segments {
        let ns = segment.end - segment.start;
        match stages.iter_mut().find(|(stage, _)| *stage == segment.stage) {
            Some((_, sum)) => *sum += ns,
            None => stages.push((segment.stage, ns)),
        }
    }
    stages
}

/// The number of a total's bucket; greater times have greater numbers.
fn bucket_of(ns: u64) -> u64 {
    if ns < BUCKETS_PER_DOUBLING {
        return ns;
    }
    let doublings = u64::from(ns.ilog2()) - u64::from(BUCKETS_PER_DOUBLING.ilog2());
    (doublings + 1) * BUCKETS_PER_DOUBLING + ((ns >> doublings) - BUCKETS_PER_DOUBLING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_narrow() {
        let mut before = 0;
        for ns in (0..5000).chain([1 << 40, (1 << 40) + (1 << 34), u64::MAX]) {
            assert!(bucket_of(ns) >= before, "{ns}");
            before = bucket_of(ns);
        }
        assert_eq!(bucket_of(63) + 1, bucket_of(64));
        assert_eq!(bucket_of(128), bucket_of(129));
        assert_ne!(bucket_of(1000), bucket_of(1017));
    }
}
