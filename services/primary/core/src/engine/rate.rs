//! How many transactions may begin in a second of simulated time: they are spread evenly, and whoever comes too early is told
//! when to come back. O(log sessions) for each transaction.

use std::collections::BTreeSet;

/// Microseconds of a second.
const SECOND_US: u64 = 1_000_000;

/// When transactions may begin.
#[derive(Debug, Default)]
pub(super) struct RateLimit {
    /// Transactions in a second; 0: no limit.
    per_second: u64,
    /// When the first transaction of a row without a pause began, in microseconds from the start.
    since_us: u64,
    /// Transactions of that row.
    begun: u64,
    /// Sessions that have a time to begin at.
    booked: BTreeSet<usize>,
}

impl RateLimit {
    /// So many in a second; 0: no limit.
    pub(super) fn new(per_second: u32) -> RateLimit {
        RateLimit { per_second: u64::from(per_second), ..RateLimit::default() }
    }

    /// None if `session` may begin a transaction at `now_us`; else when it is to come back, and it may begin then.
    pub(super) fn wait_until(&mut self, session: usize, now_us: u64) -> Option<u64> {
        if self.per_second == 0 || self.booked.remove(&session) {
            return None;
        }
        // Transaction i of a row may begin i / per_second after its first: no rounding error adds up.
        let mut due = self.since_us.saturating_add(self.begun.saturating_mul(SECOND_US).div_ceil(self.per_second));
        if now_us >= due {
            // Time without transactions is not made up for.
            (self.since_us, self.begun, due) = (now_us, 0, now_us);
        }
        self.begun += 1;
        if due > now_us {
            self.booked.insert(session);
            return Some(due);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_second_has_more_than_the_limit_and_a_busy_one_has_all_of_it() {
        for per_second in [1, 3, 7, 1000, 333_333] {
            let mut limit = RateLimit::new(per_second);
            // Sessions that all come at the same moment, and come back when they are told to.
            let begun: Vec<u64> = (0..3000).map(|session| limit.wait_until(session, 17).unwrap_or(17)).collect();
            assert!((1..3000).all(|session| limit.wait_until(session, begun[session]).is_none()));
            for (i, at) in begun.iter().enumerate() {
                let window = begun[i..].iter().take_while(|later| **later < at + SECOND_US).count() as u32;
                assert_eq!(window, per_second.min((begun.len() - i) as u32), "from {at}");
            }
        }
        let mut none = RateLimit::new(0);
        assert!((0..100).all(|session| none.wait_until(session, 5).is_none()));
    }

    #[test]
    fn time_without_transactions_is_not_made_up_for() {
        let mut limit = RateLimit::new(10);
        assert_eq!(limit.wait_until(0, 0), None);
        assert_eq!(limit.wait_until(0, 0), Some(100_000));
        assert_eq!(limit.wait_until(0, 100_000), None);
        assert_eq!(limit.wait_until(0, 60_000_000), None);
        assert_eq!(limit.wait_until(0, 60_000_000), Some(60_100_000));
    }
}
