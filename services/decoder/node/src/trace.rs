//! Spans of the decoder: one a batch, and for sampled transactions one each, in the transaction's own trace.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::SystemTime;

use decoder_core::output::DecodedTransaction;
use opentelemetry::trace::SpanContext;
use pg_types::Lsn;
use service_kit::Clock;
use service_kit::telemetry::{ActiveSpan, Tracer, names};

/// Makes the spans of transactions on the decoding thread.
#[derive(Debug)]
pub(crate) struct TransactionSpans {
    /// The node's tracer.
    tracer: Tracer,
    /// Times of spans.
    clock: Arc<dyn Clock>,
    /// The profile, as attribute.
    profile: String,
    /// Sampled transactions that commit in the batch at hand, by the start of their commit record, in order.
    contexts: VecDeque<(Lsn, SpanContext)>,
    /// The sampled transaction that is being given out.
    current: Option<Current>,
}

/// A sampled transaction that is being given out.
#[derive(Debug)]
struct Current {
    /// Its context.
    context: SpanContext,
    /// When it began to be given out.
    start: SystemTime,
    /// Its span, unless the tracer is off.
    span: Option<ActiveSpan>,
}

impl TransactionSpans {
    /// Spans by `tracer`, with times of `clock`.
    #[must_use]
    pub(crate) fn new(tracer: Tracer, clock: Arc<dyn Clock>, profile: &str) -> Self {
        Self { tracer, clock, profile: profile.to_owned(), contexts: VecDeque::new(), current: None }
    }

    /// Spans of a batch in which these transactions commit; gives the batch's own, begun now.
    pub(crate) fn batch(
        &mut self,
        sender: Option<&SpanContext>,
        contexts: impl IntoIterator<Item = (Lsn, SpanContext)>,
    ) -> Option<ActiveSpan> {
        self.contexts.clear();
        self.contexts.extend(contexts);
        if self.contexts.is_empty() {
            return None;
        }
        self.tracer.process_wal(sender, self.contexts.iter().map(|(_, context)| context), self.clock.now())
    }

    /// The batch is processed.
    pub(crate) fn end_batch(&mut self, span: Option<ActiveSpan>) {
        if let Some(span) = span {
            span.end(self.clock.now());
        }
    }

    /// A transaction begins to be given out.
    pub(crate) fn begin(&mut self, commit_lsn: Lsn) {
        self.current = None;
        while self.contexts.front().is_some_and(|(lsn, _)| *lsn < commit_lsn) {
            self.contexts.pop_front();
        }
        if let Some((_, context)) = self.contexts.pop_front_if(|(lsn, _)| *lsn == commit_lsn) {
            let start = self.clock.now();
            let span = self.tracer.decode_transaction(&context, start);
            self.current = Some(Current { context, start, span });
        }
    }

    /// It is complete. Gives the context for its subscribers: that of the span `decode transaction`, if it is sampled.
    pub(crate) fn commit(&mut self, transaction: &DecodedTransaction) -> Option<SpanContext> {
        let Current { context, start, span } = self.current.take()?;
        let Some(mut span) = span else { return Some(context) };
        let end = self.clock.now();
        span.number(names::XID, u64::from(transaction.xid.0))
            .lsn(names::FIRST_LSN, transaction.first_lsn.0)
            .lsn(names::COMMIT_LSN, transaction.commit_lsn.0)
            .number(names::SUBXIDS, transaction.subxids.len() as u64)
            .number(names::CHANGES, transaction.changes())
            .number(names::MESSAGES, transaction.messages.invalidations())
            .number(names::MESSAGES_EXECUTED, transaction.work.messages_executed)
            .text(names::PROFILE, &self.profile);
        let own = span.context().clone();
        if transaction.work.messages_executed > 0
            && let Some(mut inner) = self.tracer.execute_invalidations(&own, start)
        {
            inner.number(names::MESSAGES_EXECUTED, transaction.work.messages_executed);
            inner.end(end);
        }
        span.end(end);
        Some(own)
    }
}
