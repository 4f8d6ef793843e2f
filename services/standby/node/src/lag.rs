//! Where WAL is late, and how fast it is replayed: what `GetRecoveryState` says of time.
//!
//! ```text
//!  primary sends ──transport──► received ──queue──► taken by replay ──replay──► applied
//! ```
//!
//! Times are those of the node's clock, but for the sending, which is the primary's.

use std::time::Duration;

/// Half of what [`ReplayRate`] looks back on at least, all of it at most twice: rates over less jump from batch to batch.
const WINDOW: Duration = Duration::from_secs(10);

/// How late the last batch was, by the part of its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayLag {
    /// From receiving to being taken by replay; none before the first batch.
    pub queue: Option<Duration>,
    /// From being taken to having been applied; none before the first batch.
    pub replay: Option<Duration>,
    /// When the batch in work was taken, by the node's clock; none if there is none.
    pub in_work_since: Option<Duration>,
}

impl ReplayLag {
    /// A batch that was received at `received` is taken.
    pub fn taken(&mut self, received: Duration, now: Duration) {
        self.queue = Some(now.saturating_sub(received));
        self.in_work_since = Some(now);
    }

    /// It is applied.
    pub fn applied(&mut self, now: Duration) {
        self.replay = self.in_work_since.take().map(|taken| now.saturating_sub(taken)).or(self.replay);
    }

    /// From being taken to having been applied, or to now for a batch that takes longer than the last one did.
    #[must_use]
    pub fn replay_at(&self, now: Duration) -> Option<Duration> {
        self.replay.max(self.in_work_since.map(|taken| now.saturating_sub(taken)))
    }
}

/// What was replayed in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Bytes of records.
    pub bytes: u64,
    /// Records.
    pub records: u64,
}

/// Counts what is replayed in windows of ten seconds; the rate is that of the last ten, taking the last whole window as even.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayRate {
    /// Number of the present window since the clock's beginning.
    window: u128,
    /// In it.
    current: Replayed,
    /// In the one before.
    previous: Replayed,
}

impl ReplayRate {
    /// Something was replayed.
    pub fn add(&mut self, now: Duration, replayed: Replayed) {
        self.roll(now);
        self.current.bytes += replayed.bytes;
        self.current.records += replayed.records;
    }

    /// What was replayed a second, over the last ten.
    #[must_use]
    pub fn per_second(mut self, now: Duration) -> Replayed {
        self.roll(now);
        let window = WINDOW.as_nanos();
        let rest = window - now.as_nanos() % window;
        let rate = |current: u64, previous: u64| {
            let in_window = u128::from(current) * window + u128::from(previous) * rest;
            u64::try_from(in_window / window / u128::from(WINDOW.as_secs())).unwrap_or(u64::MAX)
        };
        Replayed {
            bytes: rate(self.current.bytes, self.previous.bytes),
            records: rate(self.current.records, self.previous.records),
        }
    }

    /// Goes on to the window of `now`.
    fn roll(&mut self, now: Duration) {
        let window = now.as_nanos() / WINDOW.as_nanos();
        if window > self.window {
            let follows = window == self.window + 1;
            self.previous = if follows { self.current } else { Replayed::default() };
            (self.window, self.current) = (window, Replayed::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn lags_are_of_the_last_batch_or_of_one_that_takes_longer() {
        let mut lag = ReplayLag::default();
        assert_eq!((lag.queue, lag.replay_at(s(100))), (None, None));
        lag.taken(s(100), s(103));
        assert_eq!((lag.queue, lag.replay, lag.replay_at(s(105))), (Some(s(3)), None, Some(s(2))));
        lag.applied(s(110));
        assert_eq!(lag.replay_at(s(500)), Some(s(7)), "nothing is in work");
        lag.taken(s(500), s(500));
        assert_eq!((lag.queue, lag.replay_at(s(501)), lag.replay_at(s(520))), (Some(s(0)), Some(s(7)), Some(s(20))));
        lag.applied(s(501));
        assert_eq!(lag.replay_at(s(501)), Some(s(1)));
    }

    #[test]
    fn the_rate_is_of_the_last_ten_seconds() {
        let mut rate = ReplayRate::default();
        let of = |rate: ReplayRate, now| (rate.per_second(now).bytes, rate.per_second(now).records);
        rate.add(s(1000), Replayed { bytes: 5000, records: 50 });
        rate.add(s(1004), Replayed { bytes: 5000, records: 50 });
        assert_eq!(of(rate, s(1005)), (1000, 10));
        assert_eq!(of(rate, s(1012)), (800, 8), "eight seconds of the window before count");
        rate.add(s(1012), Replayed { bytes: 2000, records: 20 });
        assert_eq!(of(rate, s(1012)), (1000, 10));
        assert_eq!(of(rate, s(1025)), (100, 1));
        assert_eq!(of(rate, s(1030)), (0, 0), "an idle standby");
    }
}
