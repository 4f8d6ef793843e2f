//! Making spans. Each family has one constructor that gives none when its unit of work is not traced; times come from the caller's
//! clock, so that simulated runs have simulated times.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use opentelemetry::trace::{Link, SpanContext, SpanId, Status, TraceFlags, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::ids::RandomIds;
use super::names::{self, Attribute, SpanName};
use super::queue::{Queue, SpanCounts};
use super::sampling::Sampler;
use crate::printable::{clip, printable};

/// Links of one span at most; more are counted as dropped.
const LINKS_MAX: usize = 128;

/// Bytes of a text attribute at most.
const TEXT_BYTES_MAX: usize = 256;

/// Makes the spans of one role. Clones share the role's queue; a tracer that is off makes none.
#[derive(Clone, Debug, Default)]
pub struct Tracer {
    shared: Option<Arc<Shared>>,
}

/// What the clones of a tracer share.
#[derive(Debug)]
struct Shared {
    queue: Queue,
    ids: RandomIds,
    scope: InstrumentationScope,
}

impl Tracer {
    /// A tracer that makes no spans.
    #[must_use]
    pub fn off() -> Self {
        Self::default()
    }

    /// A tracer that hands its spans to `queue`.
    pub(super) fn new(queue: Queue, scope: InstrumentationScope) -> Self {
        Self { shared: Some(Arc::new(Shared { queue, ids: RandomIds::new(), scope })) }
    }

    /// Whether spans are made at all.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.shared.is_some()
    }

    /// What became of the spans so far.
    #[must_use]
    pub fn counts(&self) -> SpanCounts {
        self.shared.as_ref().map(|s| s.queue.counts()).unwrap_or_default()
    }

    /// Primary: the root span of a transaction, under the ids of `context` (see [`super::WalId`]), begun at `start` with its first
    /// record. `application`: the context that the application wrote into the WAL, which then is the parent.
    #[must_use]
    pub fn transaction(
        &self,
        context: &SpanContext,
        application: Option<&SpanContext>,
        start: SystemTime,
    ) -> Option<ActiveSpan> {
        if !context.is_sampled() {
            return None;
        }
        let parent = application.map_or(SpanId::INVALID, SpanContext::span_id);
        let mut span = self.span(&names::TRANSACTION, local(context), parent, start)?;
        if application.is_some() {
            span.flag(names::APPLICATION_TRACE);
        }
        Some(span)
    }

    /// Primary: a batch in which `commits` commit. None of them sampled: no span. Its [`ActiveSpan::context`] goes into the batch.
    #[must_use]
    pub fn send_wal<'a>(&self, commits: impl IntoIterator<Item = &'a SpanContext>, start: SystemTime) -> Option<ActiveSpan> {
        let shared = self.shared.as_ref()?;
        let links = links_to(commits)?;
        let context = sampled(shared.ids.trace_id(), shared.ids.span_id());
        let mut span = self.span(&names::SEND_WAL, context, SpanId::INVALID, start)?;
        span.data.links = links;
        span.messaging("send", "send");
        Some(span)
    }

    /// Decoder, standby: a batch in which `commits` commit; child of the primary's span if the batch carries its context.
    #[must_use]
    pub fn process_wal<'a>(
        &self,
        sender: Option<&SpanContext>,
        commits: impl IntoIterator<Item = &'a SpanContext>,
        start: SystemTime,
    ) -> Option<ActiveSpan> {
        let links = links_to(commits)?;
        let mut span = match sender.filter(|s| s.is_sampled()) {
            Some(sender) => self.child(&names::PROCESS_WAL, sender, start)?,
            None => {
                let ids = &self.shared.as_ref()?.ids;
                self.span(&names::PROCESS_WAL, sampled(ids.trace_id(), ids.span_id()), SpanId::INVALID, start)?
            }
        };
        span.data.links = links;
        span.messaging("process", "process").text(names::PEER_NAME, "walstorm-primary");
        Some(span)
    }

    /// Decoder: a committed transaction is decoded. `transaction` is its context from the batch.
    #[must_use]
    pub fn decode_transaction(&self, transaction: &SpanContext, start: SystemTime) -> Option<ActiveSpan> {
        self.child(&names::DECODE_TRANSACTION, transaction, start)
    }

    /// Decoder: a decoded transaction goes to the output log. `decoding` is the context of its span `decode transaction`.
    #[must_use]
    pub fn publish_transaction(&self, decoding: &SpanContext, start: SystemTime) -> Option<ActiveSpan> {
        self.child(&names::PUBLISH_TRANSACTION, decoding, start)
    }

    /// Subscriber: a transaction was received. `published` is the context that came with its commit.
    #[must_use]
    pub fn receive_transaction(&self, published: &SpanContext, start: SystemTime) -> Option<ActiveSpan> {
        let mut span = self.child(&names::RECEIVE_TRANSACTION, published, start)?;
        span.messaging("receive", "receive").text(names::PEER_NAME, "walstorm-decoder");
        Some(span)
    }

    /// Reader: a snapshot is asked for; a root, if it falls into the sampler's ratio.
    #[must_use]
    pub fn ask_for_snapshot(&self, sampler: &Sampler, start: SystemTime) -> Option<ActiveSpan> {
        let ids = &self.shared.as_ref()?.ids;
        let context = sampled(ids.trace_id(), ids.span_id());
        let mut span = sampler
            .in_ratio(context.trace_id())
            .then(|| self.span(&names::ASK_FOR_SNAPSHOT, context, SpanId::INVALID, start))??;
        span.rpc(names::ASK_FOR_SNAPSHOT.name).text(names::PEER_NAME, "walstorm-standby");
        Some(span)
    }

    /// Decoder: messages are executed. `parent` is the context of the span around it, mostly `decode transaction`.
    #[must_use]
    pub fn execute_invalidations(&self, parent: &SpanContext, start: SystemTime) -> Option<ActiveSpan> {
        self.child(&names::EXECUTE_INVALIDATIONS, parent, start)
    }

    /// Standby: the end of a transaction is replayed. `transaction` is its context from the batch.
    #[must_use]
    pub fn apply(&self, transaction: &SpanContext, start: SystemTime) -> Option<ActiveSpan> {
        self.child(&names::APPLY, transaction, start)
    }

    /// Standby: a snapshot is taken for a caller that sent a sampled context ([`super::context::from_metadata`]); others are not
    /// traced: there may be hundreds of thousands a second.
    #[must_use]
    pub fn take_snapshot(&self, caller: Option<&SpanContext>, start: SystemTime) -> Option<ActiveSpan> {
        let mut span = self.child(&names::TAKE_SNAPSHOT, caller?, start)?;
        span.rpc(names::ASK_FOR_SNAPSHOT.name);
        Some(span)
    }

    /// A span below `parent`, in its trace; none if that is not sampled.
    fn child(&self, name: &SpanName, parent: &SpanContext, start: SystemTime) -> Option<ActiveSpan> {
        if !parent.is_sampled() {
            return None;
        }
        let span_id = self.shared.as_ref()?.ids.span_id();
        let context = SpanContext::new(parent.trace_id(), span_id, TraceFlags::SAMPLED, false, parent.trace_state().clone());
        let mut span = self.span(name, context, parent.span_id(), start)?;
        span.data.parent_span_is_remote = parent.is_remote();
        Some(span)
    }

    /// A span with these ids; none if the tracer is off.
    fn span(&self, name: &SpanName, context: SpanContext, parent: SpanId, start: SystemTime) -> Option<ActiveSpan> {
        let shared = Arc::clone(self.shared.as_ref()?);
        let data = SpanData {
            span_context: context,
            parent_span_id: parent,
            parent_span_is_remote: parent != SpanId::INVALID,
            span_kind: name.kind.clone(),
            name: Cow::Borrowed(name.name),
            start_time: start,
            end_time: start,
            attributes: Vec::with_capacity(8),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: Status::Unset,
            instrumentation_scope: shared.scope.clone(),
        };
        Some(ActiveSpan { shared, data: Box::new(data) })
    }
}

/// The same context, made here.
fn local(context: &SpanContext) -> SpanContext {
    let (trace_id, span_id) = (context.trace_id(), context.span_id());
    SpanContext::new(trace_id, span_id, context.trace_flags(), false, context.trace_state().clone())
}

/// The context of a new root.
fn sampled(trace_id: opentelemetry::trace::TraceId, span_id: SpanId) -> SpanContext {
    SpanContext::new(trace_id, span_id, TraceFlags::SAMPLED, false, TraceState::NONE)
}

/// Links to the sampled ones; none if there are none.
fn links_to<'a>(contexts: impl IntoIterator<Item = &'a SpanContext>) -> Option<SpanLinks> {
    let mut links = SpanLinks::default();
    for context in contexts.into_iter().filter(|c| c.is_sampled()) {
        if links.links.len() < LINKS_MAX {
            links.links.push(Link::new(context.clone(), Vec::new(), 0));
        } else {
            links.dropped_count = links.dropped_count.saturating_add(1);
        }
    }
    if links.links.is_empty() { None } else { Some(links) }
}

/// A span that has begun. It counts only if it is ended; one that is dropped leaves no trace.
#[derive(Debug)]
#[must_use = "a span that is not ended is lost"]
pub struct ActiveSpan {
    shared: Arc<Shared>,
    data: Box<SpanData>,
}

impl ActiveSpan {
    /// Its context: for children and for messages.
    #[must_use]
    pub fn context(&self) -> &SpanContext {
        &self.data.span_context
    }

    /// Sets a number; what does not fit is the greatest that does.
    pub fn number(&mut self, attribute: Attribute, value: u64) -> &mut Self {
        self.attribute(attribute, Value::I64(i64::try_from(value).unwrap_or(i64::MAX)))
    }

    /// Sets a position, as X/Y.
    pub fn lsn(&mut self, attribute: Attribute, lsn: u64) -> &mut Self {
        self.attribute(attribute, format!("{:X}/{:X}", lsn >> 32, lsn & 0xFFFF_FFFF).into())
    }

    /// Sets text, cut to 256 bytes and made harmless.
    pub fn text(&mut self, attribute: Attribute, text: &str) -> &mut Self {
        self.attribute(attribute, printable(&clip(text, TEXT_BYTES_MAX)).into_owned().into())
    }

    /// Sets a flag.
    pub fn flag(&mut self, attribute: Attribute) -> &mut Self {
        self.attribute(attribute, Value::Bool(true))
    }

    /// What OpenTelemetry wants to know of a span that hands over messages.
    fn messaging(&mut self, name: &'static str, kind: &'static str) -> &mut Self {
        self.attribute(names::MESSAGING_SYSTEM, "walstorm".into());
        self.attribute(names::MESSAGING_OPERATION, name.into());
        self.attribute(names::MESSAGING_OPERATION_TYPE, kind.into())
    }

    /// What OpenTelemetry wants to know of a call.
    fn rpc(&mut self, method: &'static str) -> &mut Self {
        self.attribute(names::RPC_SYSTEM, "grpc".into());
        self.attribute(names::RPC_METHOD, method.into())
    }

    /// Says that the work failed, and why.
    pub fn fail(&mut self, why: &str) -> &mut Self {
        self.data.status = Status::error(printable(&clip(why, TEXT_BYTES_MAX)).into_owned());
        self
    }

    /// Ends the span at `end` and hands it over; never waits.
    pub fn end(mut self, end: SystemTime) {
        self.data.end_time = end.max(self.data.start_time);
        self.shared.queue.push(*self.data);
    }

    fn attribute(&mut self, attribute: Attribute, value: Value) -> &mut Self {
        self.data.attributes.push(KeyValue::new(attribute.key, value));
        self
    }
}
