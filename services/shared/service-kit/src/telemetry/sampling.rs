//! Which transactions are traced. Decided once, by the primary at the commit; everybody else follows the flag in the context.
//!
//! Three ways in: the transaction's trace id falls into the ratio (the same ones in every run), the transaction is costly (its messages
//! or commands pass a threshold), or the application asked for it, as long as such wishes stay under a rate.

use std::sync::Mutex;
use std::time::Duration;

use opentelemetry::trace::TraceId;
use serde::{Deserialize, Serialize};

/// Settings of sampling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SamplingConfig {
    /// Share of all transactions, 0 to 1.
    pub ratio: f64,
    /// A transaction with at least so many invalidation messages is traced anyway; 0 switches the rule off.
    pub mark_messages: u64,
    /// A transaction with at least so many catalog-changing commands is traced anyway; 0 switches the rule off.
    pub mark_commands: u64,
    /// Wishes of applications (sampled flag in their own context) that are granted in a second, at most.
    pub hints_per_second: u32,
}

impl Default for SamplingConfig {
    fn default() -> Self {
        Self { ratio: 0.01, mark_messages: 1000, mark_commands: 200, hints_per_second: 100 }
    }
}

/// The ratio is none.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("telemetry.sampling.ratio is {0}: it must be between 0 and 1")]
pub struct RatioError(f64);

/// What a transaction is known to cost at its commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitCost {
    /// Invalidation messages in its records.
    pub messages: u64,
    /// Commands that changed catalogs.
    pub commands: u64,
}

/// Decides; shared by threads.
#[derive(Debug)]
pub struct Sampler {
    /// Ids whose lower half, shifted right by one, is below this are in the sample.
    bound: u64,
    mark_messages: u64,
    mark_commands: u64,
    hints_per_second: u32,
    /// The second that is counted, and the wishes granted in it.
    hints: Mutex<(u64, u32)>,
}

impl Sampler {
    /// A sampler for `config`.
    ///
    /// # Errors
    /// The ratio is not between 0 and 1.
    pub fn new(config: &SamplingConfig) -> Result<Self, RatioError> {
        if !(0.0..=1.0).contains(&config.ratio) {
            return Err(RatioError(config.ratio));
        }
        Ok(Self {
            bound: (config.ratio * (1u64 << 63) as f64) as u64,
            mark_messages: config.mark_messages,
            mark_commands: config.mark_commands,
            hints_per_second: config.hints_per_second,
            hints: Mutex::new((0, 0)),
        })
    }

    /// Whether the trace id falls into the ratio: OpenTelemetry's TraceIdRatioBased rule.
    #[must_use]
    pub fn in_ratio(&self, trace_id: TraceId) -> bool {
        let low = u128::from_be_bytes(trace_id.to_bytes()) as u64;
        low >> 1 < self.bound
    }

    /// Whether a transaction of this cost is traced whatever its id.
    #[must_use]
    pub fn is_marked(&self, cost: CommitCost) -> bool {
        let passes = |value: u64, limit: u64| limit != 0 && value >= limit;
        passes(cost.messages, self.mark_messages) || passes(cost.commands, self.mark_commands)
    }

    /// Whether the wish of an application is granted at `now` (monotonic).
    #[must_use]
    pub fn grants_hint(&self, now: Duration) -> bool {
        // Nothing can panic while the lock is held, so it is never poisoned; if it were, the numbers would still be good.
        let mut hints = self.hints.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if hints.0 != now.as_secs() {
            *hints = (now.as_secs(), 0);
        }
        let granted = hints.1 < self.hints_per_second;
        hints.1 += u32::from(granted);
        granted
    }

    /// The decision for one transaction. `hint`: its application's context has the sampled flag.
    #[must_use]
    pub fn decide(&self, trace_id: TraceId, cost: CommitCost, hint: bool, now: Duration) -> bool {
        self.in_ratio(trace_id) || self.is_marked(cost) || hint && self.grants_hint(now)
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::SpanKind;
    use opentelemetry_sdk::trace::{Sampler as SdkSampler, SamplingDecision, ShouldSample};
    use proptest::prelude::*;

    use super::super::WalId;
    use super::*;

    fn sampler(ratio: f64) -> Sampler {
        Sampler::new(&SamplingConfig { ratio, ..SamplingConfig::default() }).expect("a ratio")
    }

    #[test]
    fn ratios_must_be_ratios() {
        for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(Sampler::new(&SamplingConfig { ratio: bad, ..SamplingConfig::default() }).is_err(), "{bad}");
        }
    }

    #[test]
    fn derived_ids_are_spread_so_that_the_ratio_holds() {
        let wal = WalId { system_id: 42, timeline: 1 };
        let sampler = sampler(0.01);
        let sampled = (0..100_000).filter(|i| sampler.in_ratio(wal.transaction_ids(i * 272).0)).count();
        assert!((850..1150).contains(&sampled), "{sampled} of 100,000 at 1 %");
    }

    #[test]
    fn costly_transactions_are_marked_and_hints_are_capped() {
        let config = SamplingConfig { ratio: 0.0, mark_messages: 10, mark_commands: 0, hints_per_second: 2 };
        let sampler = Sampler::new(&config).expect("a ratio");
        let id = TraceId::from(1u128);
        let at = Duration::from_millis;
        assert!(sampler.decide(id, CommitCost { messages: 10, commands: 0 }, false, at(0)));
        assert!(!sampler.decide(id, CommitCost { messages: 9, commands: u64::MAX }, false, at(0)));
        let granted: Vec<_> = [0, 1, 2, 999, 1000].map(|ms| sampler.decide(id, CommitCost::default(), true, at(ms))).into();
        assert_eq!(granted, [true, true, false, false, true]);
    }

    proptest! {
        #[test]
        fn the_ratio_rule_is_opentelemetrys(id in 1u128.., ratio in 0.0f64..=1.0) {
            let id = TraceId::from(id);
            let sdk = SdkSampler::TraceIdRatioBased(ratio).should_sample(None, id, "x", &SpanKind::Internal, &[], &[]);
            prop_assert_eq!(sampler(ratio).in_ratio(id), sdk.decision == SamplingDecision::RecordAndSample);
        }

        #[test]
        fn all_and_none(id in 1u128..) {
            prop_assert!(sampler(1.0).in_ratio(TraceId::from(id)));
            prop_assert!(!sampler(0.0).in_ratio(TraceId::from(id)));
        }
    }
}
