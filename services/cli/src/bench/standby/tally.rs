//! What sessions did, and how long it took.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;
use walstorm_proto::standby::v1::OpenCatalogSessionResponse;

/// Longest latency that is told from longer ones, in nanoseconds: a minute.
const LATENCY_MAX_NS: u64 = 60_000_000_000;

/// Digits of a latency that are kept.
const DIGITS: u8 = 3;

/// What one session did, or all of them.
#[derive(Clone, Debug)]
pub struct Tally {
    /// Latencies of what was done, in nanoseconds.
    latencies: Histogram<u64>,
    /// Counts.
    pub counts: Counts,
    /// What failed first, if anything did.
    pub failure: Option<String>,
}

/// Counts of sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Steps of the workload that were done: transactions, or sessions that came and left.
    pub done: u64,
    /// Steps that failed.
    pub failed: u64,
    /// Snapshots taken, for transactions and catalogs.
    pub snapshots: u64,
    /// Of those for transactions, earlier ones that were given again.
    pub reused: u64,
    /// Scans of catalogs.
    pub scans: u64,
    /// Slots that snapshots for transactions looked at.
    pub slots_visited: u64,
    /// Slots that they jumped over.
    pub slots_skipped: u64,
    /// Invalidation messages read.
    pub messages: u64,
    /// Times that messages were lost, and everything was dropped.
    pub resets: u64,
}

impl Counts {
    /// Adds an answer of a session.
    pub fn add(&mut self, answer: &OpenCatalogSessionResponse) {
        self.snapshots += u64::from(answer.snapshots);
        self.reused += u64::from(answer.reused);
        self.slots_visited += answer.slots_visited;
        self.slots_skipped += answer.slots_skipped;
        self.messages += answer.messages;
        self.resets += u64::from(answer.reset);
    }

    /// Adds the counts of others.
    fn merge(&mut self, other: &Self) {
        self.done += other.done;
        self.failed += other.failed;
        self.snapshots += other.snapshots;
        self.reused += other.reused;
        self.scans += other.scans;
        self.slots_visited += other.slots_visited;
        self.slots_skipped += other.slots_skipped;
        self.messages += other.messages;
        self.resets += other.resets;
    }
}

/// Latencies, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Latencies {
    /// Half are no longer.
    pub p50: u64,
    /// 95 of 100 are no longer.
    pub p95: u64,
    /// 99 of 100 are no longer.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

impl Tally {
    /// Nothing yet.
    ///
    /// # Errors
    /// None with these bounds.
    pub fn new() -> anyhow::Result<Self> {
        let latencies = Histogram::new_with_bounds(1, LATENCY_MAX_NS, DIGITS)?;
        Ok(Self { latencies, counts: Counts::default(), failure: None })
    }

    /// A step was done within `latency`; `counts` is what it came to.
    pub fn done(&mut self, latency: Duration, counts: &Counts) {
        self.latencies.saturating_record(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
        self.counts.merge(&Counts { done: 1, ..*counts });
    }

    /// A step failed.
    pub fn failed(&mut self, why: String) {
        self.counts.failed += 1;
        self.failure.get_or_insert(why);
    }

    /// Takes another session's in.
    ///
    /// # Errors
    /// None with these bounds.
    pub fn merge(&mut self, other: Self) -> anyhow::Result<()> {
        self.latencies.add(other.latencies)?;
        self.counts.merge(&other.counts);
        self.failure = self.failure.take().or(other.failure);
        Ok(())
    }

    /// The latencies of what was done.
    #[must_use]
    pub fn latencies(&self) -> Latencies {
        let at = |quantile| self.latencies.value_at_quantile(quantile);
        Latencies { p50: at(0.5), p95: at(0.95), p99: at(0.99), max: self.latencies.max() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_add_up_and_percentiles_are_of_all() {
        let mut all = Tally::new().unwrap();
        for session in 0..2_u64 {
            let mut one = Tally::new().unwrap();
            for n in 1..=50 {
                let counts = Counts { snapshots: 2, slots_visited: n, ..Counts::default() };
                one.done(Duration::from_micros(session * 50 + n), &counts);
            }
            all.merge(one).unwrap();
        }
        assert_eq!((all.counts.done, all.counts.snapshots, all.counts.slots_visited), (100, 200, 2 * 1275));
        let micros = |ns: u64| (ns as f64 / 1000.0).round() as u64;
        let latencies = all.latencies();
        assert_eq!([latencies.p50, latencies.p95, latencies.p99, latencies.max].map(micros), [50, 95, 99, 100]);
    }

    #[test]
    fn the_first_failure_is_kept_and_a_day_is_a_minute() {
        let mut all = Tally::new().unwrap();
        all.failed("first".to_owned());
        let mut other = Tally::new().unwrap();
        other.failed("second".to_owned());
        other.done(Duration::from_secs(86_400), &Counts::default());
        all.merge(other).unwrap();
        assert_eq!((all.failure.as_deref(), all.counts.failed, all.counts.done), (Some("first"), 2, 1));
        assert!(all.latencies().max >= 59_000_000_000);
    }
}
