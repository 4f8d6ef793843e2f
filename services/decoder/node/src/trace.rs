//! Spans of the decoder: one a batch, and for sampled transactions one each, in the transaction's own trace.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

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
    /// Sampled transactions that were given out and are not in the output log yet.
    publishing: Vec<ActiveSpan>,
    /// So many of them are in entries that are finished.
    in_entries: usize,
    /// Time that spill files took, in nanoseconds.
    spill_io_ns: Arc<AtomicU64>,
    /// That when the batch began.
    batch_io_ns: u64,
}

/// A sampled transaction that is being given out.
#[derive(Debug)]
struct Current {
    /// Its context.
    context: SpanContext,
    /// When it began to be given out.
    start: SystemTime,
    /// Time that spill files had taken before.
    io_ns: u64,
    /// Its span, unless the tracer is off.
    span: Option<ActiveSpan>,
}

impl TransactionSpans {
    /// Spans by `tracer`, with times of `clock`.
    #[must_use]
    pub(crate) fn new(tracer: Tracer, clock: Arc<dyn Clock>, profile: &str) -> Self {
        Self {
            tracer,
            clock,
            profile: profile.to_owned(),
            contexts: VecDeque::new(),
            current: None,
            publishing: Vec::new(),
            in_entries: 0,
            spill_io_ns: Arc::default(),
            batch_io_ns: 0,
        }
    }

    /// Spill files count on in `io_ns` what time they take.
    pub(crate) fn count_spill_io(&mut self, io_ns: Arc<AtomicU64>) {
        self.spill_io_ns = io_ns;
    }

    /// What they have taken.
    fn io_ns(&self) -> u64 {
        self.spill_io_ns.load(Ordering::Relaxed)
    }

    /// Spans of a batch in which these transactions commit; gives the batch's own, begun when it arrived: it has `waited` since.
    pub(crate) fn batch(
        &mut self,
        sender: Option<&SpanContext>,
        contexts: impl IntoIterator<Item = (Lsn, SpanContext)>,
        waited: Duration,
    ) -> Option<ActiveSpan> {
        self.contexts.clear();
        self.contexts.extend(contexts);
        if self.contexts.is_empty() {
            return None;
        }
        self.batch_io_ns = self.io_ns();
        let now = self.clock.now();
        let commits = self.contexts.iter().map(|(_, context)| context);
        let mut span = self.tracer.process_wal(sender, commits, now.checked_sub(waited).unwrap_or(now))?;
        span.number(names::QUEUE_TIME, u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX));
        Some(span)
    }

    /// The batch is processed.
    pub(crate) fn end_batch(&mut self, span: Option<ActiveSpan>) {
        if let Some(mut span) = span {
            span.number(names::SPILL_IO_TIME, self.io_ns() - self.batch_io_ns);
            span.end(self.clock.now());
        }
    }

    /// The entry that was being filled is finished: what was given out since the last one is in it, or in those before.
    pub(crate) fn entry_finished(&mut self) {
        self.in_entries = self.publishing.len();
    }

    /// All entries that are finished are in the output log.
    pub(crate) fn written(&mut self) {
        if self.in_entries > 0 {
            let now = self.clock.now();
            self.publishing.drain(..std::mem::take(&mut self.in_entries)).for_each(|span| span.end(now));
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
            self.current = Some(Current { context, start, io_ns: self.io_ns(), span });
        }
    }

    /// It is complete, and took so much CPU time. Gives the context for its subscribers: that of the span `publish transaction`, if it is
    /// sampled.
    pub(crate) fn commit(&mut self, transaction: &DecodedTransaction, cpu_ns: u64) -> Option<SpanContext> {
        let Current { context, start, io_ns, span } = self.current.take()?;
        let Some(mut span) = span else { return Some(context) };
        let end = self.clock.now();
        span.number(names::XID, u64::from(transaction.xid.0))
            .lsn(names::FIRST_LSN, transaction.first_lsn.0)
            .lsn(names::COMMIT_LSN, transaction.commit_lsn.0)
            .number(names::SUBXIDS, transaction.subxids.len() as u64)
            .number(names::CHANGES, transaction.changes())
            .number(names::MESSAGES, transaction.messages.invalidations())
            .number(names::MESSAGES_EXECUTED, transaction.work.messages_executed)
            .number(names::RELATIONS_LOADED, transaction.work.relations_loaded)
            .number(names::RELATIONS_REBUILT, transaction.work.relations_rebuilt)
            .number(names::CATALOG_SCANS, transaction.work.catalog_scans)
            .number(names::SPILL_BYTES, transaction.work.spill_bytes)
            .number(names::SPILL_IO_TIME, self.io_ns() - io_ns)
            .number(names::CPU_TIME, cpu_ns)
            .text(names::PROFILE, &self.profile);
        let own = span.context().clone();
        if transaction.work.messages_executed > 0
            && let Some(mut inner) = self.tracer.execute_invalidations(&own, start)
        {
            inner.number(names::MESSAGES_EXECUTED, transaction.work.messages_executed);
            inner.end(end);
        }
        span.end(end);
        let published = self.tracer.publish_transaction(&own, end)?;
        let context = published.context().clone();
        self.publishing.push(published);
        Some(context)
    }
}
