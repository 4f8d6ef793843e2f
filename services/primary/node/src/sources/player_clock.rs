//! What time it is for a scenario, in each of the three modes.
//!
//! Two questions have different answers on a real clock. *When is the next step due* is answered by a monotonic clock: somebody
//! who sets the wall clock back must not make a run stand still for an hour, nor make it do an hour's work at once when it is set
//! forward. *What time does a commit record bear* is answered by the wall clock, jumps and all, as in PostgreSQL
//! (`GetCurrentTimestamp`): there too the times of successive commits may go back.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use pg_types::Timestamp;
use primary_core::{Clock, VirtualClock};

use crate::config::ClockMode;

/// Seconds from 1970 to 2000.
const POSTGRES_EPOCH_S: u64 = 946_684_800;

/// A scenario's clock.
#[derive(Debug)]
pub(super) struct PlayerClock {
    /// The system's clocks.
    system: Arc<dyn service_kit::Clock>,
    /// How time passes.
    mode: Mode,
}

/// How time passes.
#[derive(Debug)]
enum Mode {
    /// Simulated times; nobody waits.
    Virtual(VirtualClock),
    /// The wall clock's times; steps wait until they are due.
    Real {
        /// The wall clock's time when the run began.
        started: Timestamp,
        /// The monotonic clock's time then.
        origin: Duration,
        /// How far the run was already when it began anew, in microseconds.
        ahead_us: i64,
    },
    /// The wall clock's times; nobody waits.
    Max,
}

impl PlayerClock {
    /// A clock of a run that begins now.
    pub(super) fn new(mode: ClockMode, system: Arc<dyn service_kit::Clock>) -> Self {
        let mode = match mode {
            ClockMode::Virtual => Mode::Virtual(VirtualClock::default()),
            ClockMode::Real => Mode::Real { started: wall_clock(system.as_ref()), origin: system.monotonic(), ahead_us: 0 },
            ClockMode::Max => Mode::Max,
        };
        Self { system, mode }
    }

    /// A clock of a run that follows another: simulated time goes on at `from`.
    pub(super) fn following(mode: ClockMode, system: Arc<dyn service_kit::Clock>, from: Timestamp) -> Self {
        let mut clock = Self::new(mode, system);
        clock.advance_to(from);
        clock
    }

    /// Time that never goes back, since any moment; for intervals.
    pub(super) fn monotonic(&self) -> Duration {
        self.system.monotonic()
    }

    /// How long to wait for what is due at `due`; zero if it may run.
    pub(super) fn until(&self, due: Timestamp) -> Duration {
        let Mode::Real { started, origin, ahead_us } = &self.mode else { return Duration::ZERO };
        let passed = i64::try_from(self.system.monotonic().saturating_sub(*origin).as_micros()).unwrap_or(i64::MAX);
        let pace = started.0.saturating_add(passed).saturating_add(*ahead_us);
        Duration::from_micros(u64::try_from(due.0.saturating_sub(pace)).unwrap_or(0))
    }

    /// Whether what is due then may run.
    pub(super) fn is_due(&self, due: Timestamp) -> bool {
        self.until(due).is_zero()
    }

    /// Makes `due` due, without waiting: a run that was cut off goes on from there.
    pub(super) fn skip_to(&mut self, due: Timestamp) {
        let missing = i64::try_from(self.until(due).as_micros()).unwrap_or(i64::MAX);
        if let Mode::Real { ahead_us, .. } = &mut self.mode {
            *ahead_us = ahead_us.saturating_add(missing);
        }
    }
}

/// The time of the system.
fn wall_clock(system: &dyn service_kit::Clock) -> Timestamp {
    let epoch = UNIX_EPOCH + Duration::from_secs(POSTGRES_EPOCH_S);
    let us = |span: Duration| i64::try_from(span.as_micros()).unwrap_or(i64::MAX);
    // A clock may well stand before 2000, where none was set.
    Timestamp(system.now().duration_since(epoch).map_or_else(|before| -us(before.duration()), us))
}

impl Clock for PlayerClock {
    fn now(&self) -> Timestamp {
        match &self.mode {
            Mode::Virtual(clock) => clock.now(),
            Mode::Real { .. } | Mode::Max => wall_clock(self.system.as_ref()),
        }
    }

    fn advance_to(&mut self, due: Timestamp) {
        if let Mode::Virtual(clock) = &mut self.mode {
            clock.advance_to(due);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::SystemTime;

    use super::*;

    /// A clock whose two times are moved apart.
    #[derive(Debug)]
    struct Jumping(Mutex<(SystemTime, Duration)>);

    impl Jumping {
        fn new() -> Arc<Self> {
            Arc::new(Self(Mutex::new((UNIX_EPOCH + Duration::from_secs(POSTGRES_EPOCH_S + 1000), Duration::from_secs(7)))))
        }

        fn pass(&self, span: Duration) {
            let mut now = self.0.lock().unwrap();
            *now = (now.0 + span, now.1 + span);
        }

        fn set_wall(&self, seconds_since_2000: u64) {
            self.0.lock().unwrap().0 = UNIX_EPOCH + Duration::from_secs(POSTGRES_EPOCH_S + seconds_since_2000);
        }
    }

    impl service_kit::Clock for Jumping {
        fn now(&self) -> SystemTime {
            self.0.lock().unwrap().0
        }

        fn monotonic(&self) -> Duration {
            self.0.lock().unwrap().1
        }
    }

    fn s(seconds: i64) -> Timestamp {
        Timestamp(seconds * 1_000_000)
    }

    #[test]
    fn a_wall_clock_that_jumps_changes_times_and_not_the_pace() {
        let system = Jumping::new();
        let clock = PlayerClock::new(ClockMode::Real, Arc::clone(&system) as Arc<dyn service_kit::Clock>);
        let started = clock.now();
        assert_eq!(started, s(1000));
        let due = Timestamp(started.0 + 10_000_000);
        assert_eq!(clock.until(due), Duration::from_secs(10));
        system.pass(Duration::from_secs(4));
        system.set_wall(90_000);
        assert_eq!((clock.now(), clock.until(due)), (s(90_000), Duration::from_secs(6)), "set forward: no storm");
        system.set_wall(1);
        assert_eq!((clock.now(), clock.until(due)), (s(1), Duration::from_secs(6)), "set back: no stall");
        system.pass(Duration::from_secs(6));
        assert!(clock.is_due(due) && !clock.is_due(Timestamp(due.0 + 1)));
    }

    #[test]
    fn a_run_that_goes_on_keeps_its_pace_and_bears_the_wall_clocks_times() {
        let system = Jumping::new();
        let mut clock = PlayerClock::new(ClockMode::Real, Arc::clone(&system) as Arc<dyn service_kit::Clock>);
        let reached = Timestamp(clock.now().0 + 3_600_000_000);
        clock.skip_to(reached);
        assert!(clock.is_due(reached));
        assert_eq!(clock.until(Timestamp(reached.0 + 5)), Duration::from_micros(5));
        assert_eq!(clock.now(), s(1000), "an hour that was played before is no hour on the clock");
    }

    #[test]
    fn only_a_real_clock_waits() {
        for mode in [ClockMode::Virtual, ClockMode::Max] {
            let clock = PlayerClock::new(mode, Jumping::new());
            assert!(clock.is_due(Timestamp(i64::MAX)));
        }
    }

    #[test]
    fn a_clock_before_2000_gives_times_before_2000() {
        let system = Jumping::new();
        system.0.lock().unwrap().0 = UNIX_EPOCH;
        let clock = PlayerClock::new(ClockMode::Max, system);
        assert_eq!(clock.now(), s(-(POSTGRES_EPOCH_S as i64)));
    }
}
