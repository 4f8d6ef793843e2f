//! What Jaeger's query API answers to `/api/traces`. Its times are microseconds.

use serde::de::SeqAccess;
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::collections::BTreeMap;

use super::Emitter;
use super::json::Element;
use super::raw::{Number, Resource, Text};
use crate::span::{Link, Span, SpanId, TraceId, Value};

/// A trace of `data`.
pub(super) struct Trace<'e, 'f> {
    /// Who takes the spans.
    pub(super) out: &'e mut Emitter<'f>,
}

/// The trace.
#[derive(Debug, Deserialize)]
struct RawTrace<'a> {
    /// Its spans.
    #[serde(borrow)]
    spans: Vec<RawSpan<'a>>,
    /// Who made them, by a short name.
    #[serde(borrow, default)]
    processes: BTreeMap<String, RawProcess<'a>>,
}

/// Who made spans.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawProcess<'a> {
    /// `service.name`.
    #[serde(borrow)]
    service_name: Text<'a>,
    /// Its other attributes.
    #[serde(borrow, default)]
    tags: Vec<RawTag<'a>>,
}

/// An attribute.
#[derive(Debug, Deserialize)]
struct RawTag<'a> {
    /// The key.
    #[serde(borrow)]
    key: Text<'a>,
    /// The value.
    #[serde(borrow)]
    value: RawValue<'a>,
}

/// A value.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum RawValue<'a> {
    /// A flag.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// Text.
    #[serde(borrow)]
    Text(Text<'a>),
    /// `null`.
    Nothing(()),
}

/// Some stores write `null` for a list without elements.
fn or_null<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

impl<'a> RawTag<'a> {
    /// Key and value.
    fn attribute(self) -> (Cow<'a, str>, Value<'a>) {
        let value = match self.value {
            RawValue::Bool(flag) => Value::Bool(flag),
            RawValue::Int(n) => Value::Int(n),
            RawValue::Float(n) => Value::Float(n),
            RawValue::Text(text) => Value::Text(text.0),
            RawValue::Nothing(()) => Value::Other,
        };
        (self.key.0, value)
    }
}

/// Another span that one refers to.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawReference<'a> {
    /// `CHILD_OF` or `FOLLOWS_FROM`.
    #[serde(borrow, default)]
    ref_type: Text<'a>,
    /// Its trace.
    #[serde(borrow, rename = "traceID")]
    trace_id: Text<'a>,
    /// Its id.
    #[serde(borrow, rename = "spanID")]
    span_id: Text<'a>,
}

/// A span.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSpan<'a> {
    /// Its trace.
    #[serde(borrow, rename = "traceID")]
    trace_id: Text<'a>,
    /// Its id.
    #[serde(borrow, rename = "spanID")]
    span_id: Text<'a>,
    /// Its name.
    #[serde(borrow)]
    operation_name: Text<'a>,
    /// Parent and links.
    #[serde(borrow, default, deserialize_with = "or_null")]
    references: Vec<RawReference<'a>>,
    /// Microseconds since 1970.
    start_time: Number,
    /// Microseconds.
    #[serde(default)]
    duration: Number,
    /// Attributes.
    #[serde(borrow, default, deserialize_with = "or_null")]
    tags: Vec<RawTag<'a>>,
    /// Who made it.
    #[serde(borrow, rename = "processID", default)]
    process_id: Text<'a>,
}

impl<'a> RawSpan<'a> {
    /// The span. Its parent is the first reference into its own trace, a child's before another; all others are links.
    fn span<'b>(self, resource: &'b Resource) -> Span<'b>
    where
        'a: 'b,
    {
        let trace: TraceId = self.trace_id.0.parse().unwrap_or_default();
        let references: Vec<(bool, Link)> = self.references.iter().map(RawReference::link).collect();
        let own = |wants_child: bool| references.iter().position(|(child, to)| *child == wants_child && to.trace == trace);
        let parent = own(true).or_else(|| own(false));
        let links = references.iter().enumerate().filter(|(i, _)| Some(*i) != parent).map(|(_, (_, link))| *link).collect();
        let start = self.start_time.as_u64().saturating_mul(1000);
        let attributes: Vec<_> = self.tags.into_iter().map(RawTag::attribute).collect();
        let failed = attributes.iter().any(|(key, value)| key == "error" && *value == Value::Bool(true));
        Span {
            service: &resource.service,
            instance: &resource.instance,
            name: self.operation_name.0,
            trace,
            id: self.span_id.0.parse().unwrap_or_default(),
            parent: parent.and_then(|at| references.get(at)).map_or(SpanId::default(), |(_, link)| link.span),
            start,
            end: start.saturating_add(self.duration.as_u64().saturating_mul(1000)),
            attributes,
            links,
            links_dropped: 0,
            error: failed.then(Cow::default),
        }
    }
}

impl RawReference<'_> {
    /// Whether it is to a parent, and to which span.
    fn link(&self) -> (bool, Link) {
        let link =
            Link { trace: self.trace_id.0.parse().unwrap_or_default(), span: self.span_id.0.parse().unwrap_or_default() };
        (self.ref_type.0 == "CHILD_OF", link)
    }
}

impl<'de> Element<'de> for Trace<'_, '_> {
    fn element<A: SeqAccess<'de>>(&mut self, seq: &mut A) -> std::result::Result<bool, A::Error> {
        let Some(RawTrace { spans, processes }) = seq.next_element::<RawTrace<'de>>()? else { return Ok(false) };
        let resources: BTreeMap<String, Resource> = processes
            .into_iter()
            .map(|(id, process)| {
                let name = (Cow::Borrowed("service.name"), Value::Text(process.service_name.0));
                (id, Resource::of(process.tags.into_iter().map(RawTag::attribute).chain([name])))
            })
            .collect();
        let unknown = Resource::of(std::iter::empty());
        for raw in spans {
            let resource = resources.get(&*raw.process_id.0).unwrap_or(&unknown);
            if !self.out.emit(&raw.span(resource)) {
                return Err(serde::de::Error::custom("stopped"));
            }
        }
        Ok(true)
    }
}
