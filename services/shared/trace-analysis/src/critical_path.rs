//! The critical path of a transaction: what its end waited for, from the end back to the beginning, through parents **and links**.
//!
//! ```text
//!  primary   transaction│······gap······┌send wal┐
//!                                       └────────┘··gap··┌───────process wal──────┐          (a trace of its own, linked)
//!  decoder                                                   ┌decode transaction┐            (child of transaction)
//!  path      ├─waiting for send wal─────┼─send wal┼─waiting┼─┼─decode transaction┤
//! ```
//!
//! **Rule.** The walk begins at the end of the span of the trace that ends last (`--to`: of that service). A cursor goes back in time:
//!
//! 1. *Inside a span*, the child that ends last at or before the cursor is walked through, the time behind it is the span's own; then the
//!    one that ends last before that child's begin, and so on down to the span's begin.
//! 2. *At a span's begin*, the walk goes on in what led to it: its parent; what it links to in this trace; and the batch of the same
//!    instance that links to this trace and is being processed at that moment. Of these, the one that ends last (at the latest now) is taken,
//!    among equals the one that begins last. If it ended before, the time between is a stage of its own, *waiting for* the later span.
//! 3. A batch that left links out (`dropped_links_count`) may carry more than it says: a span without a linking batch is taken to be in the
//!    one such batch of its instance that was running when it began; if there are several, in none.
//! 4. More than a minute between a span and what led to it, in either direction, is another time line (a log that is replayed with its own
//!    times): the path begins at the later span. Shorter negative gaps count as zero.
//! 5. A span's own time counts first for what it says it waited for (attributes ending in `_wait_ns`), as stages of their own.
//!
//! No span is entered twice, so that cycles end the walk. The stages of a path share out its length exactly.

use rustc_hash::FxHashSet;

use crate::skew::TIMELINE_NS;
use crate::store::{Record, Stored, TraceStore, WAIT_SUFFIX};
use crate::tree::Tree;

/// Spans of a foreign trace that are looked through for children of a batch.
const FOREIGN_SPANS_MAX: u32 = 4096;

/// A stage of a path; operations are numbers of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// A span's own time.
    Own(u32),
    /// What an operation's span says it waited for: the number of the attribute's key.
    Waited(u32, u32),
    /// Between a span and what led to it.
    WaitingFor(u32),
    /// One of more stages than are told apart.
    Other,
}

impl Stage {
    /// The stage in words, its service as `service` has it.
    #[must_use]
    pub fn label(self, store: &TraceStore) -> String {
        match self {
            Stage::Own(operation) => store.label(operation),
            Stage::Waited(operation, key) => {
                let key = store.text(key);
                let short = key.strip_suffix(WAIT_SUFFIX).unwrap_or(key);
                format!("{}, {}", store.label(operation), short.rsplit('.').next().unwrap_or(short).replace('_', " ") + " wait")
            }
            Stage::Other => "(more stages)".to_owned(),
            Stage::WaitingFor(operation) => format!("waiting for {}", store.label(operation)),
        }
    }
}

/// A part of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Which stage it belongs to.
    pub stage: Stage,
    /// Number of the span.
    pub span: u32,
    /// Begin.
    pub start: u64,
    /// End, after the begin.
    pub end: u64,
}

/// A critical path.
#[derive(Clone, Debug, Default)]
pub struct Path {
    /// Its parts, the first in time in front.
    pub segments: Vec<Segment>,
    /// The spans on it, in the order of the walk: from the end.
    pub spans: Vec<u32>,
    /// The log was replayed: the path begins at the span that another time line led to.
    pub replayed: bool,
    /// A batch was found by time alone, since it left links out.
    pub joined: bool,
    /// Gaps below zero, counted as zero.
    pub negative_gaps: u32,
    /// The walk came back to where it had been, and ended.
    pub cycle: bool,
}

impl Path {
    /// Its length.
    #[must_use]
    pub fn total_ns(&self) -> u64 {
        self.segments.iter().map(|segment| segment.end - segment.start).sum()
    }
}

/// Batches that left links out, by instance and begin.
#[derive(Debug)]
struct DroppedLinks {
    /// Service, instance, begin, end, number.
    batches: Vec<(u32, u32, u64, u64, u32)>,
    /// The longest of them, which bounds how far back to look.
    longest_ns: u64,
}

/// Walks critical paths. One for a store: its memory is used again for each walk.
#[derive(Debug)]
pub struct Walker<'s> {
    /// The spans.
    store: &'s TraceStore,
    /// Batches that left links out.
    dropped: DroppedLinks,
    /// The path at hand, from its end.
    path: Path,
    /// Spans that were entered.
    entered: FxHashSet<u32>,
    /// Spans that link to the trace at hand, and what they link to.
    linking: Vec<(u32, u32)>,
}

impl<'s> Walker<'s> {
    /// Over a store that is finished.
    #[must_use]
    pub fn new(store: &'s TraceStore) -> Self {
        let mut batches: Vec<_> = store
            .with_dropped_links()
            .map(|number| {
                let record = store.record(number);
                let operation = store.operation_of(record.operation);
                (operation.service, operation.instance, record.start, record.end, number)
            })
            .collect();
        batches.sort_unstable();
        let longest_ns = batches.iter().map(|(_, _, start, end, _)| end - start).max().unwrap_or(0);
        let dropped = DroppedLinks { batches, longest_ns };
        Self { store, dropped, path: Path::default(), entered: FxHashSet::default(), linking: Vec::new() }
    }

    /// The path of a trace, to its last end or that of a service; none if it has no span of it.
    pub fn walk(&mut self, tree: &Tree, to: Option<&str>) -> Option<Path> {
        let store = self.store;
        // A span of another time line, whose children began long before it, is no end.
        let after_children = |span: u32| {
            let early = store.record(span).start.saturating_sub(TIMELINE_NS);
            tree.children(span).iter().any(|child| store.record(*child).start < early)
        };
        let of_service = |span: u32| to.is_none_or(|service| store.service(store.record(span)) == service);
        let wanted = |span: &u32| of_service(*span) && !after_children(*span);
        let last = tree.spans().filter(wanted).max_by_key(|span| {
            let record = store.record(*span);
            (record.end, record.start, *span)
        })?;
        let trace = store.record(last).trace;
        self.linking.clear();
        let linking = store.linking_to(trace).filter(|(from, _)| !tree.has(*from));
        self.linking.extend(linking.filter_map(|(from, to)| Some((from, store.find(trace, to)?))));
        self.path = Path::default();
        self.entered.clear();
        let (mut span, mut at) = (last, store.record(last).end);
        loop {
            self.entered.insert(span);
            self.through(tree, span, at);
            let record = store.record(span);
            at = at.min(record.start);
            let Some(before) = self.before(tree, span) else { break };
            let led = store.record(before);
            if led.end.saturating_add(TIMELINE_NS) < record.start || led.start > record.start.saturating_add(TIMELINE_NS) {
                self.path.replayed = true;
                break;
            }
            self.gap(span, led.end, at);
            at = at.min(led.end);
            span = before;
        }
        let mut path = std::mem::take(&mut self.path);
        path.segments.reverse();
        Some(path)
    }

    /// Walks from `at` back to the begin of a span, through its children (rule 1).
    fn through(&mut self, tree: &Tree, span: u32, at: u64) {
        struct Frame {
            span: u32,
            floor: u64,
            at: u64,
            children: Vec<u32>,
        }
        let floor = self.store.record(span).start;
        let mut frames = vec![Frame { span, floor, at, children: self.children(tree, span) }];
        self.path.spans.push(span);
        while let Some(frame) = frames.last_mut() {
            let Some(child) = frame.children.pop() else {
                let Frame { span, floor, at, .. } = *frame;
                self.own(span, floor, at);
                frames.pop();
                continue;
            };
            let record = self.store.record(child);
            if record.end > frame.at || record.end <= frame.floor || record.start == record.end || !self.entered.insert(child) {
                continue;
            }
            let (parent, until) = (frame.span, frame.at);
            let floor = record.start.max(frame.floor);
            frame.at = floor;
            self.own(parent, record.end, until);
            self.path.spans.push(child);
            frames.push(Frame { span: child, floor, at: record.end, children: self.children(tree, child) });
        }
    }

    /// The children of a span, those that end last at the back.
    fn children(&self, tree: &Tree, span: u32) -> Vec<u32> {
        if tree.has(span) {
            return tree.children(span).to_vec();
        }
        let record = self.store.record(span);
        let range = self.store.trace_range(record.trace);
        if range.len() as u32 > FOREIGN_SPANS_MAX {
            return Vec::new();
        }
        // Who receives a batch is no part of sending it.
        let is_part = |other: &u32| {
            let other = self.store.record(*other);
            other.parent == record.id && self.instance(other) == self.instance(record)
        };
        let mut children: Vec<u32> = range.filter(|other| *other != span && is_part(other)).collect();
        children.sort_unstable_by_key(|child| self.store.record(*child).end);
        children
    }

    /// Service and instance of a span.
    fn instance(&self, record: &Record) -> (u32, u32) {
        let operation = self.store.operation_of(record.operation);
        (operation.service, operation.instance)
    }

    /// What led to a span (rules 2 and 3).
    fn before(&mut self, tree: &Tree, span: u32) -> Option<u32> {
        let store = self.store;
        let record = store.record(span);
        let instance = self.instance(record);
        let mut candidates = Vec::new();
        if tree.has(span) {
            candidates.extend(tree.parent(span));
            let running = |other: &Record| other.start <= record.start && record.start <= other.end;
            let batches = self.linking.iter().map(|(from, _)| *from).filter(|from| {
                let batch = store.record(*from);
                self.instance(batch) == instance && running(batch)
            });
            let known = candidates.len();
            candidates.extend(batches);
            if candidates.len() == known
                && let Some(batch) = self.batch_at(instance, record.start)
                && tree.parent(span).is_some_and(|parent| self.instance(store.record(parent)) != instance)
            {
                self.path.joined = true;
                candidates.push(batch);
            }
        } else {
            candidates.extend(store.find(record.trace, record.parent).filter(|_| !record.parent.is_zero()));
            let target = self.linking.iter().find(|(from, _)| *from == span).map(|(_, to)| *to);
            // It carried this transaction without saying so.
            candidates.extend(target.or_else(|| tree.roots().next()));
        }
        let negative = |before: &u32| (1..=TIMELINE_NS).contains(&store.record(*before).start.saturating_sub(record.start));
        self.path.negative_gaps += u32::from(candidates.iter().any(negative));
        let revisited = candidates.iter().any(|before| self.entered.contains(before));
        let order = |before: &u32| {
            let led = store.record(*before);
            (led.start <= record.start, led.end.min(record.start), led.start)
        };
        let next = candidates.into_iter().filter(|before| !self.entered.contains(before)).max_by_key(order);
        self.path.cycle |= next.is_none() && revisited;
        next
    }

    /// The one batch of an instance that left links out and was running at a time; none if there are several.
    fn batch_at(&self, (service, instance): (u32, u32), at: u64) -> Option<u32> {
        let batches = &self.dropped.batches;
        let end = batches.partition_point(|(s, i, start, _, _)| (*s, *i, *start) <= (service, instance, at));
        let oldest = at.saturating_sub(self.dropped.longest_ns);
        let near = batches
            .get(..end)?
            .iter()
            .rev()
            .take_while(|(s, i, start, _, _)| (*s, *i) == (service, instance) && *start >= oldest);
        let mut running = near.filter(|(_, _, _, end, _)| *end >= at);
        let (_, _, _, _, number) = running.next()?;
        if running.next().is_some() { None } else { Some(*number) }
    }

    /// A span's own time, its waits first (rule 5).
    fn own(&mut self, span: u32, start: u64, end: u64) {
        let record = self.store.record(span);
        let operation = self.store.canonical(record.operation);
        let mut end = end;
        for (key, value) in self.store.values(record) {
            let Stored::Int(waited) = value else { continue };
            if !self.store.text(*key).ends_with(WAIT_SUFFIX) || end <= start {
                continue;
            }
            let from = end.saturating_sub(u64::try_from(*waited).unwrap_or(0)).max(start);
            self.segment(Stage::Waited(operation, *key), span, from, end);
            end = from;
        }
        self.segment(Stage::Own(operation), span, start, end);
    }

    /// The time between a span and what led to it.
    fn gap(&mut self, span: u32, start: u64, end: u64) {
        let operation = self.store.canonical(self.store.record(span).operation);
        self.segment(Stage::WaitingFor(operation), span, start, end);
    }

    /// A part of the path, unless it takes no time.
    fn segment(&mut self, stage: Stage, span: u32, start: u64, end: u64) {
        if start < end {
            self.path.segments.push(Segment { stage, span, start, end });
        }
    }
}

/// Whether a trace is that of a batch: a root of it links to another trace. Batches are walked with the transactions that they carry.
#[must_use]
pub fn is_batch(store: &TraceStore, tree: &Tree) -> bool {
    tree.roots().any(|root| store.has_links(store.record(root)))
}
