//! CPU time of a transaction, cheaply: a short one's is what the clock says, since reading the thread's CPU time would cost as
//! much as decoding it; a long one's is what its thread used, since it may have been waiting for a CPU.

use std::time::{Duration, Instant};

use service_kit::cpu::thread_cpu_time;

/// Transactions that took at least so long are worth a look at the thread's CPU time.
const LONG: Duration = Duration::from_micros(50);

/// Measures one transaction after the other on the decoding thread.
#[derive(Debug)]
pub(crate) struct Meter {
    /// When the transaction began.
    began: Instant,
    /// The thread's CPU time when it was last read.
    cpu_read: Duration,
}

impl Default for Meter {
    fn default() -> Self {
        Self { began: Instant::now(), cpu_read: thread_cpu_time() }
    }
}

impl Meter {
    /// A transaction begins.
    pub(crate) fn begin(&mut self) {
        self.began = Instant::now();
    }

    /// It is complete: its CPU time in nanoseconds.
    pub(crate) fn end(&mut self) -> u64 {
        let mut took = self.began.elapsed();
        if took >= LONG {
            let now = thread_cpu_time();
            // What was used since the last look bounds what this transaction used.
            took = took.min(now.saturating_sub(self.cpu_read));
            self.cpu_read = now;
        }
        u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_that_waits_uses_no_cpu_and_one_that_works_does() {
        let mut meter = Meter::default();
        meter.begin();
        std::thread::sleep(Duration::from_millis(30));
        let waited = meter.end();
        meter.begin();
        let before = thread_cpu_time();
        while thread_cpu_time() - before < Duration::from_millis(5) {}
        let worked = meter.end();
        assert!(waited < 5_000_000 && worked >= 5_000_000, "{waited} ns while asleep, {worked} ns of work");
    }
}
