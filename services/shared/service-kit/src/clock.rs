//! Where time comes from. A node takes a [`Clock`] as an argument and never asks the operating system itself, so that tests and
//! simulated runs decide what time it is.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// A source of time.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Wall time: for people, spans and messages. It may jump.
    fn now(&self) -> SystemTime;

    /// Time since an arbitrary moment that never goes back: for timeouts and durations.
    fn monotonic(&self) -> Duration;
}

/// The operating system's clocks.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    /// The moment that [`Clock::monotonic`] counts from.
    origin: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn monotonic(&self) -> Duration {
        self.origin.elapsed()
    }
}

/// A clock that stands still until it is moved. Shared by reference; any thread may move it.
#[derive(Debug)]
pub struct ManualClock {
    /// Wall time at the start.
    start: SystemTime,
    /// Nanoseconds since.
    elapsed_ns: AtomicU64,
}

impl ManualClock {
    /// A clock that shows `start`, with monotonic time 0.
    #[must_use]
    pub fn new(start: SystemTime) -> Self {
        Self { start, elapsed_ns: AtomicU64::new(0) }
    }

    /// Moves both times forward by `step`. Times beyond 584 years from the start are not kept apart.
    pub fn advance(&self, step: Duration) {
        let step = u64::try_from(step.as_nanos()).unwrap_or(u64::MAX);
        let add = |elapsed: u64| Some(elapsed.saturating_add(step));
        // The closure always gives a value, so there is no error to handle.
        let _ = self.elapsed_ns.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> SystemTime {
        self.start.checked_add(self.monotonic()).unwrap_or(self.start)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.elapsed_ns.load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told_and_both_times_together() {
        let clock = ManualClock::new(SystemTime::UNIX_EPOCH);
        assert_eq!((clock.now(), clock.monotonic()), (SystemTime::UNIX_EPOCH, Duration::ZERO));
        clock.advance(Duration::from_millis(1500));
        clock.advance(Duration::from_millis(500));
        assert_eq!(clock.monotonic(), Duration::from_secs(2));
        assert_eq!(clock.now(), SystemTime::UNIX_EPOCH + Duration::from_secs(2));
    }

    #[test]
    fn a_manual_clock_saturates() {
        let clock = ManualClock::new(SystemTime::UNIX_EPOCH);
        clock.advance(Duration::MAX);
        clock.advance(Duration::from_secs(1));
        assert_eq!(clock.monotonic(), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn the_system_clock_never_goes_back() {
        let clock = SystemClock::new();
        let first = clock.monotonic();
        assert!(clock.monotonic() >= first);
    }
}
