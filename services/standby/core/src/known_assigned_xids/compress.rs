//! When the array is compressed (`KnownAssignedXidsCompress`): two rules, as data.

/// Why compression is considered (`KAXCompressReason`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressReason {
    /// `KAX_NO_SPACE`: xids do not fit after the head.
    NoSpace,
    /// `KAX_PRUNE`: old xids were removed for a running-transactions record.
    Prune,
    /// `KAX_TRANSACTION_END`: a transaction ended, or subtransactions were assigned to their top.
    TransactionEnd,
    /// `KAX_STARTUP_PROCESS_IDLE`: replay waits for WAL.
    StartupProcessIdle,
}

/// `KAX_COMPRESS_FREQUENCY`: transaction ends between two considerations (commit 8242752f9c).
pub const KAX_COMPRESS_FREQUENCY: u32 = 128;
/// `KAX_COMPRESS_IDLE_INTERVAL`, milliseconds (commit 8242752f9c).
pub const KAX_COMPRESS_IDLE_INTERVAL_MS: u64 = 1000;

/// The rule of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompressionRule {
    /// Up to 13.6 … 15.1: unless forced by lack of space, only when the span is at least four times the process slots and at
    /// least twice the live xids.
    Span,
    /// 16, and the minors of early 2023: every 128 ends while there are gaps, at prunes, and when idle.
    Counted,
}

/// One call of `KnownAssignedXidsCompress`: the state that it found and what it decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompressCall {
    /// Why it was called.
    pub reason: CompressReason,
    /// Live xids.
    pub live: u32,
    /// Tail at entry.
    pub tail: u32,
    /// Head at entry.
    pub head: u32,
    /// `transactionEndsCounter` at entry.
    pub counter: u32,
    /// The array was compressed.
    pub compressed: bool,
}

/// The rule with what it remembers between calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Compressor {
    rule: CompressionRule,
    /// `PROCARRAY_MAXPROCS`.
    max_procs: u32,
    /// `transactionEndsCounter`: transaction ends while there were gaps; never reset, wraps.
    pub(crate) counter: u32,
    /// `lastCompressTs` in milliseconds of the caller's clock, none before the first compression.
    last_compress_ms: Option<u64>,
}

impl Compressor {
    /// A rule for an array that serves `max_procs` processes.
    pub(crate) fn new(rule: CompressionRule, max_procs: u32) -> Self {
        Self { rule, max_procs, counter: 0, last_compress_ms: None }
    }

    /// Decides, and remembers. `span` and `live` are slots, `now_ms` the caller's time.
    pub(crate) fn decide(&mut self, reason: CompressReason, span: u32, live: u32, now_ms: u64) -> bool {
        let yes = match self.rule {
            CompressionRule::Span => self.decide_by_span(reason, span, live),
            CompressionRule::Counted => self.decide_by_count(reason, span, live, now_ms),
        };
        if yes {
            self.last_compress_ms = Some(now_ms);
        }
        yes
    }

    /// The rule up to 15.1. There was no idle maintenance.
    fn decide_by_span(&self, reason: CompressReason, span: u32, live: u32) -> bool {
        match reason {
            CompressReason::NoSpace => true,
            CompressReason::StartupProcessIdle => false,
            CompressReason::Prune | CompressReason::TransactionEnd => {
                u64::from(span) >= 4 * u64::from(self.max_procs) && u64::from(span) >= 2 * u64::from(live)
            }
        }
    }

    /// The rule of 8242752f9c. The counter is compared before it rises, and rises only while there are gaps.
    fn decide_by_count(&mut self, reason: CompressReason, span: u32, live: u32, now_ms: u64) -> bool {
        if span == live {
            return reason == CompressReason::NoSpace;
        }
        match reason {
            CompressReason::NoSpace | CompressReason::Prune => true,
            CompressReason::TransactionEnd => {
                let due = self.counter.is_multiple_of(KAX_COMPRESS_FREQUENCY);
                self.counter = self.counter.wrapping_add(1);
                due && u64::from(span) >= 2 * u64::from(live)
            }
            CompressReason::StartupProcessIdle => {
                self.last_compress_ms.is_none_or(|last| now_ms >= last.saturating_add(KAX_COMPRESS_IDLE_INTERVAL_MS))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CompressReason::{NoSpace, Prune, StartupProcessIdle, TransactionEnd};
    use super::*;

    #[test]
    fn span_rule_needs_both_bounds_unless_forced() {
        let mut c = Compressor::new(CompressionRule::Span, 72);
        for (reason, span, live, want) in [
            (TransactionEnd, 287, 0, false),
            (TransactionEnd, 288, 145, false),
            (TransactionEnd, 288, 144, true),
            (Prune, 288, 144, true),
            (NoSpace, 1, 1, true),
            (StartupProcessIdle, 5000, 1, false),
        ] {
            assert_eq!(c.decide(reason, span, live, 0), want, "{reason:?} {span} {live}");
        }
    }

    #[test]
    fn counted_rule_looks_at_the_counter_before_it_rises() {
        let mut c = Compressor::new(CompressionRule::Counted, 72);
        // 8242752f9c: the first end with gaps finds 0, a multiple of 128.
        assert!(c.decide(TransactionEnd, 4, 2, 0));
        for n in 1..128 {
            assert!(!c.decide(TransactionEnd, 400, 2, 0), "{n}");
            assert!(!c.decide(TransactionEnd, 4, 4, 0), "no gaps: the counter stays");
        }
        assert!(!c.decide(TransactionEnd, 3, 2, 0), "due, but more than half is live");
        assert_eq!(c.counter, 129);
    }

    #[test]
    fn counted_rule_waits_a_second_of_idleness() {
        let mut c = Compressor::new(CompressionRule::Counted, 72);
        assert!(!c.decide(StartupProcessIdle, 2, 2, 10), "no gaps");
        assert!(c.decide(StartupProcessIdle, 3, 2, 10), "never compressed yet");
        assert!(!c.decide(StartupProcessIdle, 3, 2, 1009));
        assert!(c.decide(StartupProcessIdle, 3, 2, 1010));
        assert!(c.decide(Prune, 3, 2, 1010) && c.decide(NoSpace, 2, 2, 1010) && !c.decide(Prune, 2, 2, 9999));
    }
}
