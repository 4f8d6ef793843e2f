//! The seam to time: a scenario says *when* things happen, a [`Clock`] says what that means.
//!
//! Simulated time counts microseconds as the server does. With [`VirtualClock`] it jumps from event to event, so that the same
//! scenario and seed give the same bytes; a node with a real clock waits until an event is due and reports the time it is.

use pg_types::Timestamp;

/// Gives the time to commit records, and lets time pass.
pub trait Clock {
    /// The time now.
    fn now(&self) -> Timestamp;

    /// The engine is about to run what is due at `due`. A virtual clock jumps there. A real one does nothing, since whoever
    /// steps the engine has waited. Time never goes back.
    fn advance_to(&mut self, due: Timestamp);
}

/// A clock that is wherever the scenario is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualClock {
    /// Where it is.
    now: Timestamp,
}

impl VirtualClock {
    /// Midnight of 2026-01-01 UTC: where simulations begin if nobody says otherwise.
    pub const EPOCH: Timestamp = Timestamp(9_497 * 86_400 * 1_000_000);

    /// A clock that starts at `start`.
    #[must_use]
    pub fn new(start: Timestamp) -> VirtualClock {
        VirtualClock { now: start }
    }
}

impl Default for VirtualClock {
    fn default() -> VirtualClock {
        VirtualClock::new(VirtualClock::EPOCH)
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        self.now
    }

    fn advance_to(&mut self, due: Timestamp) {
        self.now = self.now.max(due);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_goes_back() {
        let mut clock = VirtualClock::default();
        let start = clock.now();
        clock.advance_to(Timestamp(start.0 + 5));
        clock.advance_to(start);
        assert_eq!(clock.now(), Timestamp(start.0 + 5));
    }
}
