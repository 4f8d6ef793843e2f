//! Ids of traces and spans. Those of a transaction follow from its place in the WAL; all others are random.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// The step of SplitMix64: 2⁶⁴ divided by the golden ratio, odd.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The finaliser of SplitMix64: a bijection whose output bits all depend on all input bits.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// 0 is no id.
fn nonzero(x: u64) -> u64 {
    x.max(1)
}

/// Which WAL: a cluster and one of its timelines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WalId {
    /// system_identifier.
    pub system_id: u64,
    /// Timeline.
    pub timeline: u32,
}

impl WalId {
    /// Trace id and id of the span `transaction` of the transaction whose commit record starts at `commit_lsn`; the formula is in the
    /// README of the contract. Within one WAL no two commits share a trace id.
    #[must_use]
    pub fn transaction_ids(self, commit_lsn: u64) -> (TraceId, SpanId) {
        let wal = mix(mix(self.system_id.wrapping_add(GOLDEN)).wrapping_add(u64::from(self.timeline)));
        let high = mix(wal.wrapping_add(commit_lsn));
        let low = mix(high.wrapping_add(GOLDEN));
        let span = mix(low.wrapping_add(GOLDEN));
        let trace = u128::from(nonzero(high)) << 64 | u128::from(nonzero(low));
        (TraceId::from(trace), SpanId::from(nonzero(span)))
    }

    /// The context of that transaction's root span.
    #[must_use]
    pub fn transaction_context(self, commit_lsn: u64, sampled: bool) -> SpanContext {
        let (trace_id, span_id) = self.transaction_ids(commit_lsn);
        let flags = if sampled { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
        SpanContext::new(trace_id, span_id, flags, true, TraceState::NONE)
    }

    /// The context of a transaction that continues the trace of the application that ran it: its trace id, our span id.
    #[must_use]
    pub fn continued_context(self, commit_lsn: u64, application: &SpanContext, sampled: bool) -> SpanContext {
        let (_, span_id) = self.transaction_ids(commit_lsn);
        let flags = if sampled { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
        SpanContext::new(application.trace_id(), span_id, flags, true, application.trace_state().clone())
    }
}

/// A source of random ids, shared by threads without a lock.
#[derive(Debug)]
pub(super) struct RandomIds {
    state: AtomicU64,
}

impl RandomIds {
    /// Seeded by the standard library's random keys, which the operating system provides.
    pub(super) fn new() -> Self {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u32(std::process::id());
        Self { state: AtomicU64::new(hasher.finish()) }
    }

    /// The next number.
    fn next(&self) -> u64 {
        nonzero(mix(self.state.fetch_add(GOLDEN, Ordering::Relaxed)))
    }

    /// A new trace id.
    pub(super) fn trace_id(&self) -> TraceId {
        TraceId::from(u128::from(self.next()) << 64 | u128::from(self.next()))
    }

    /// A new span id.
    pub(super) fn span_id(&self) -> SpanId {
        SpanId::from(self.next())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const WAL: WalId = WalId { system_id: 7_234_567_890_123_456_789, timeline: 1 };

    #[test]
    fn a_transactions_ids_are_fixed_for_good() {
        // Changing these numbers breaks the contract: other implementations derive the same.
        let (trace, span) = WAL.transaction_ids(0x16_B374_D848);
        assert_eq!((trace.to_string().as_str(), span.to_string().as_str()), (TRACE, SPAN));
    }

    /// What the formula gives, computed by a second implementation (Python's integers).
    const TRACE: &str = "2d3ca0ddd317c947016a4fa9535100bd";
    /// The same for the span.
    const SPAN: &str = "99a210e7168a203c";

    #[test]
    fn ids_differ_by_place_timeline_and_cluster() {
        let wals = [WAL, WalId { timeline: 2, ..WAL }, WalId { system_id: 1, ..WAL }];
        let ids: HashSet<_> = wals.iter().flat_map(|w| (0..10_000).map(|lsn| w.transaction_ids(lsn * 8).0)).collect();
        assert_eq!(ids.len(), 30_000);
    }

    #[test]
    fn random_ids_do_not_repeat() {
        let ids = RandomIds::new();
        let spans: HashSet<_> = (0..10_000).map(|_| ids.span_id()).collect();
        assert_eq!(spans.len(), 10_000);
        assert_ne!(RandomIds::new().trace_id(), RandomIds::new().trace_id());
    }
}
