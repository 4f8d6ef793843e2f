//! Spans held in little memory: 56 bytes each, 16 more for one with links or attributes, 32 for each link and 24 for each
//! attribute that was asked for.
//!
//! Names, services, keys and texts are held once. Records are sorted by trace and id when all are there, so that finding a span, or the
//! spans of a trace, needs no index beside them; links are sorted by what they lead to.

use std::borrow::Cow;

use rustc_hash::FxHashMap;

pub use crate::config::{Attributes, STATUS, StoreConfig, WAIT_SUFFIX};
use crate::error::{Result, TraceError};
use crate::names::{MORE, NAMES_MAX, Names};
use crate::span::{Link, Span, SpanId, TraceId, Value};

/// Number of a record's missing part.
pub(crate) const NONE: u32 = u32::MAX;
/// One span.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Its trace.
    pub trace: TraceId,
    /// Its id.
    pub id: SpanId,
    /// Its parent's id, zero if it has none.
    pub parent: SpanId,
    /// Begin, in nanoseconds since 1970.
    pub start: u64,
    /// End; never before the begin.
    pub end: u64,
    /// Number of its [`Operation`].
    pub operation: u32,
    /// Number of its [`Extra`], if it has links or attributes.
    extra: u32,
}

impl Record {
    /// How long it took.
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        self.end - self.start
    }
}

/// What few spans have.
#[derive(Clone, Copy, Debug)]
struct Extra {
    /// Number of its record, once they are sorted.
    record: u32,
    /// Number of its first value.
    values_first: u32,
    /// How many values it has.
    values: u16,
    /// How many links it has.
    links: u16,
    /// Links that its maker left out.
    links_dropped: u32,
}

/// A link, by what it leads to.
#[derive(Clone, Copy, Debug)]
struct StoredLink {
    /// Where it leads.
    to: Link,
    /// Number of its span's [`Extra`].
    extra: u32,
}

/// Who does what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation {
    /// Number of the service's name.
    pub service: u32,
    /// Number of the instance's name: whose clock it is.
    pub instance: u32,
    /// Number of the span's name.
    pub name: u32,
}

/// An attribute's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stored {
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// A flag.
    Bool(bool),
    /// Number of a text.
    Text(u32),
}

/// What is wrong with spans as such.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// Spans that came more than once; the one that ends last was kept.
    pub duplicates: u64,
    /// Spans that end before they begin; taken as ending there.
    pub backwards: u64,
    /// Spans whose parent is not there; taken as roots.
    pub orphans: u64,
    /// Spans that are their own ancestors; cut loose and taken as roots.
    pub cycles: u64,
    /// Links to spans that are not there.
    pub unresolved_links: u64,
}

/// All spans of an input.
#[derive(Debug)]
pub struct TraceStore {
    /// How much is held.
    config: StoreConfig,
    /// Sorted by trace and id once [`TraceStore::finish`] was called.
    records: Vec<Record>,
    /// Links and values of some.
    extras: Vec<Extra>,
    /// Sorted by what they lead to.
    links: Vec<StoredLink>,
    /// Values with the numbers of their keys.
    values: Vec<(u32, Stored)>,
    /// Names of all sorts.
    names: Names,
    /// Values that are text.
    texts: Names,
    /// Who does what, by number.
    operations: Vec<Operation>,
    /// The other way round.
    operation_numbers: FxHashMap<Operation, u32>,
    /// The same operation of a service's first instance, by number.
    canonical: Vec<u32>,
    /// The first instance's operation, by service and name.
    first_of: FxHashMap<(u32, u32), u32>,
    /// What is wrong.
    pub damage: Damage,
}

impl TraceStore {
    /// An empty one.
    #[must_use]
    pub fn new(config: StoreConfig) -> Self {
        Self {
            config,
            records: Vec::new(),
            extras: Vec::new(),
            links: Vec::new(),
            values: Vec::new(),
            names: Names::of_names(),
            texts: Names::of_values(),
            operations: Vec::new(),
            operation_numbers: FxHashMap::default(),
            canonical: Vec::new(),
            first_of: FxHashMap::default(),
            damage: Damage::default(),
        }
    }

    /// Takes a span.
    ///
    /// # Errors
    /// More would be held than may be.
    pub fn push(&mut self, span: &Span<'_>) -> Result<()> {
        if !self.is_wanted(span) {
            return Ok(());
        }
        if self.bytes() >= self.config.bytes_max || self.records.len() >= NONE as usize {
            let max_mib = self.config.bytes_max >> 20;
            return Err(TraceError::TooMany { spans: self.records.len() as u64, max_mib });
        }
        if span.end < span.start {
            self.damage.backwards += 1;
        }
        let operation = self.operation(span);
        let extra = self.extra(span);
        let (start, end) = (span.start, span.end.max(span.start));
        self.records.push(Record { trace: span.trace, id: span.id, parent: span.parent, start, end, operation, extra });
        Ok(())
    }

    /// Whether the span's trace is in the share that is kept. Who links to one that is, is kept too.
    fn is_wanted(&self, span: &Span<'_>) -> bool {
        let kept = |trace: TraceId| {
            // The low half is mixed, since not all ids are random.
            let mixed = (trace.low ^ trace.high).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 11;
            (mixed as f64) < self.config.share * (1u64 << 53) as f64
        };
        self.config.share >= 1.0 || kept(span.trace) || !span.links.is_empty() || span.links_dropped > 0
    }

    /// Number of the span's operation. Beyond so many there is one for all.
    fn operation(&mut self, span: &Span<'_>) -> u32 {
        let full = self.operations.len() >= NAMES_MAX;
        let mut operation = Operation {
            service: self.names.number(span.service),
            instance: self.names.number(span.instance),
            name: self.names.number(&span.name),
        };
        if full && !self.operation_numbers.contains_key(&operation) {
            let more = self.names.number(MORE);
            operation = Operation { service: more, instance: more, name: more };
        }
        if let Some(number) = self.operation_numbers.get(&operation) {
            return *number;
        }
        let number = self.operations.len() as u32;
        self.operations.push(operation);
        self.canonical.push(*self.first_of.entry((operation.service, operation.name)).or_insert(number));
        self.operation_numbers.insert(operation, number);
        number
    }

    /// Links and values of a span, if it has any.
    fn extra(&mut self, span: &Span<'_>) -> u32 {
        let values_first = self.values.len() as u32;
        for (key, value) in &span.attributes {
            if !self.config.attributes.has(key) {
                continue;
            }
            let stored = match value {
                Value::Int(n) => Stored::Int(*n),
                Value::Float(n) => Stored::Float(*n),
                Value::Bool(flag) => Stored::Bool(*flag),
                Value::Text(text) => Stored::Text(self.texts.number(text)),
                Value::Other => continue,
            };
            self.values.push((self.names.number(key), stored));
        }
        if let (Some(why), Attributes::All) = (&span.error, &self.config.attributes) {
            let stored = Stored::Text(self.texts.number(if why.is_empty() { "error" } else { why }));
            self.values.push((self.names.number(STATUS), stored));
        }
        let values = self.values.len() as u32 - values_first;
        if values == 0 && span.links.is_empty() && span.links_dropped == 0 {
            return NONE;
        }
        let extra = self.extras.len() as u32;
        self.links.extend(span.links.iter().map(|to| StoredLink { to: *to, extra }));
        self.extras.push(Extra {
            record: NONE,
            values_first,
            values: u16::try_from(values).unwrap_or(u16::MAX),
            links: u16::try_from(span.links.len()).unwrap_or(u16::MAX),
            links_dropped: span.links_dropped,
        });
        extra
    }

    /// Sorts, throws duplicates away, and counts what is wrong.
    pub fn finish(&mut self) {
        // Of spans with one id the one that ends last comes first, and stays.
        self.records.sort_unstable_by_key(|r| (r.trace, r.id, std::cmp::Reverse(r.end), r.start, r.extra));
        let before = self.records.len();
        self.records.dedup_by_key(|record| (record.trace, record.id));
        self.damage.duplicates = (before - self.records.len()) as u64;
        for (at, record) in self.records.iter().enumerate() {
            if let Some(extra) = self.extras.get_mut(record.extra as usize) {
                extra.record = at as u32;
            }
        }
        let extras = &self.extras;
        self.links.retain(|link| extras.get(link.extra as usize).is_some_and(|extra| extra.record != NONE));
        self.links.sort_unstable_by_key(|link| (link.to.trace, link.to.span, link.extra));
        self.damage.unresolved_links =
            self.links.iter().filter(|link| self.find(link.to.trace, link.to.span).is_none()).count() as u64;
    }

    /// Bytes of spans, links, values and names that are held.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let of = |n: usize, size: usize| (n * size) as u64;
        of(self.records.len(), size_of::<Record>())
            + of(self.extras.len(), size_of::<Extra>())
            + of(self.links.len(), size_of::<StoredLink>())
            + of(self.values.len(), size_of::<(u32, Stored)>())
            + self.names.bytes()
            + self.texts.bytes()
    }

    /// All records, by trace and id.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// A record that a tree or a path names.
    ///
    /// # Panics
    /// The number is of another store.
    #[must_use]
    pub fn record(&self, number: u32) -> &Record {
        &self.records[number as usize]
    }

    /// A record, to correct its clock.
    pub(crate) fn records_mut(&mut self) -> &mut [Record] {
        &mut self.records
    }

    /// Number of a span.
    #[must_use]
    pub fn find(&self, trace: TraceId, id: SpanId) -> Option<u32> {
        self.records.binary_search_by_key(&(trace, id), |record| (record.trace, record.id)).ok().map(|at| at as u32)
    }

    /// Numbers of the spans of a trace.
    #[must_use]
    pub fn trace_range(&self, trace: TraceId) -> std::ops::Range<u32> {
        let first = self.records.partition_point(|record| record.trace < trace);
        let len = self.records.get(first..).unwrap_or_default().partition_point(|record| record.trace == trace);
        first as u32..(first + len) as u32
    }

    /// The spans with links into a trace, and what those lead to.
    pub(crate) fn linking_to(&self, trace: TraceId) -> impl Iterator<Item = (u32, SpanId)> {
        let first = self.links.partition_point(|link| link.to.trace < trace);
        let of_trace = self.links.get(first..).unwrap_or_default().iter().take_while(move |link| link.to.trace == trace);
        of_trace.filter_map(|link| Some((self.extras.get(link.extra as usize)?.record, link.to.span)))
    }

    /// The spans that link to a trace.
    pub fn carriers_of(&self, trace: TraceId) -> impl Iterator<Item = u32> {
        self.linking_to(trace).map(|(from, _)| from)
    }

    /// All links, with the spans that have them.
    pub(crate) fn linkers(&self) -> impl Iterator<Item = (u32, Link)> {
        self.links.iter().filter_map(|link| Some((self.extras.get(link.extra as usize)?.record, link.to)))
    }

    /// Spans whose maker left links out.
    pub(crate) fn with_dropped_links(&self) -> impl Iterator<Item = u32> {
        self.extras.iter().filter(|extra| extra.links_dropped > 0 && extra.record != NONE).map(|extra| extra.record)
    }

    /// Whether a span has, or had, links.
    #[must_use]
    pub fn has_links(&self, record: &Record) -> bool {
        self.extras.get(record.extra as usize).is_some_and(|extra| extra.links > 0 || extra.links_dropped > 0)
    }

    /// The kept attributes of a span, with the numbers of their keys.
    pub fn values(&self, record: &Record) -> &[(u32, Stored)] {
        let of = |extra: &Extra| {
            let first = extra.values_first as usize;
            self.values.get(first..first + extra.values as usize)
        };
        self.extras.get(record.extra as usize).and_then(of).unwrap_or_default()
    }

    /// A kept attribute as a number.
    #[must_use]
    pub fn number(&self, record: &Record, key: &str) -> Option<f64> {
        self.value(record, key)?.number()
    }

    /// A kept attribute.
    #[must_use]
    pub fn value(&self, record: &Record, key: &str) -> Option<Value<'_>> {
        let (_, stored) = self.values(record).iter().find(|(number, _)| self.text(*number) == key)?;
        Some(match stored {
            Stored::Int(n) => Value::Int(*n),
            Stored::Float(n) => Value::Float(*n),
            Stored::Bool(flag) => Value::Bool(*flag),
            Stored::Text(number) => Value::Text(Cow::Borrowed(self.texts.text(*number))),
        })
    }

    /// A name by its number.
    #[must_use]
    pub fn text(&self, number: u32) -> &str {
        self.names.text(number)
    }

    /// An operation by its number.
    pub(crate) fn operation_of(&self, number: u32) -> Operation {
        self.operations[number as usize]
    }

    /// The same operation of the first instance: what is summed up by service and name.
    pub(crate) fn canonical(&self, operation: u32) -> u32 {
        self.canonical[operation as usize]
    }

    /// `service: name` of an operation.
    #[must_use]
    pub fn label(&self, operation: u32) -> String {
        let Operation { service, name, .. } = self.operation_of(operation);
        format!("{}: {}", self.text(service), self.text(name))
    }

    /// Service and name of an operation.
    #[must_use]
    pub fn service_and_name(&self, operation: u32) -> (&str, &str) {
        let Operation { service, name, .. } = self.operation_of(operation);
        (self.text(service), self.text(name))
    }

    /// A service's name.
    #[must_use]
    pub fn service(&self, record: &Record) -> &str {
        self.text(self.operation_of(record.operation).service)
    }

    /// A span's name.
    #[must_use]
    pub fn name(&self, record: &Record) -> &str {
        self.text(self.operation_of(record.operation).name)
    }

    /// All services' names, each once.
    #[must_use]
    pub fn services(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.operations.iter().map(|operation| self.text(operation.service)).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Who does what.
    pub(crate) fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// The ids of all traces, in order.
    pub fn trace_ids(&self) -> impl Iterator<Item = TraceId> {
        self.records.chunk_by(|a, b| a.trace == b.trace).filter_map(|of_trace| Some(of_trace.first()?.trace))
    }
}
