//! The messages of OTLP's JSON encoding below a resource, as far as they are read. Keys may be in lower camel case or as in the .proto
//! files, 64-bit numbers text or not, ids hexadecimal or (Tempo) base64.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

use crate::span::{Link, Span, SpanId, TraceId, Value};

/// Text, borrowed if it needs no unescaping.
#[derive(Clone, Debug, Default)]
pub(super) struct Text<'a>(pub(super) Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> std::result::Result<Text<'de>, E> {
                Ok(Text(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> std::result::Result<Text<'de>, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }
            fn visit_unit<E>(self) -> std::result::Result<Text<'de>, E> {
                Ok(Text::default())
            }
        }
        deserializer.deserialize_any(TextVisitor)
    }
}

/// A number, or text that is one: 64-bit numbers are text in protobuf's JSON.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    /// Whole.
    Int(i64),
    /// Whole, too large for the other.
    Large(u64),
    /// Not whole.
    Float(f64),
}

impl Default for Number {
    fn default() -> Self {
        Number::Int(0)
    }
}

impl Number {
    /// As a time; below 0 is 0.
    pub(super) fn as_u64(self) -> u64 {
        match self {
            Number::Int(n) => u64::try_from(n).unwrap_or(0),
            Number::Large(n) => n,
            Number::Float(n) => n as u64,
        }
    }

    /// As a value.
    pub(super) fn value(self) -> Value<'static> {
        match self {
            Number::Int(n) => Value::Int(n),
            Number::Large(n) => Value::Float(n as f64),
            Number::Float(n) => Value::Float(n),
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct NumberVisitor;
        impl Visitor<'_> for NumberVisitor {
            type Value = Number;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }
            fn visit_i64<E>(self, n: i64) -> std::result::Result<Number, E> {
                Ok(Number::Int(n))
            }
            fn visit_u64<E>(self, n: u64) -> std::result::Result<Number, E> {
                Ok(i64::try_from(n).map_or(Number::Large(n), Number::Int))
            }
            fn visit_f64<E>(self, n: f64) -> std::result::Result<Number, E> {
                Ok(Number::Float(n))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<Number, E> {
                let whole = text.parse().map(Number::Int).or_else(|_| text.parse().map(Number::Large));
                whole.or_else(|_| text.parse().map(Number::Float)).map_err(|_| E::custom("text that is no number"))
            }
        }
        deserializer.deserialize_any(NumberVisitor)
    }
}

/// `AnyValue`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawValue<'a> {
    /// Text.
    #[serde(borrow)]
    string_value: Option<Text<'a>>,
    /// A whole number.
    int_value: Option<Number>,
    /// A number.
    double_value: Option<Number>,
    /// A flag.
    bool_value: Option<bool>,
}

impl<'a> RawValue<'a> {
    /// The value.
    fn value(self) -> Value<'a> {
        if let Some(text) = self.string_value {
            return Value::Text(text.0);
        }
        let number = self.int_value.or(self.double_value).map(Number::value);
        number.or(self.bool_value.map(Value::Bool)).unwrap_or(Value::Other)
    }
}

/// `KeyValue`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawAttribute<'a> {
    /// The key.
    #[serde(borrow)]
    key: Text<'a>,
    /// The value.
    #[serde(borrow)]
    value: RawValue<'a>,
}

/// `Span.Link`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawLink<'a> {
    /// Of the other span.
    #[serde(borrow, alias = "trace_id")]
    trace_id: Text<'a>,
    /// Of the other span.
    #[serde(borrow, alias = "span_id")]
    span_id: Text<'a>,
}

/// `Status`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawStatus<'a> {
    /// A number, or its name.
    #[serde(borrow)]
    code: Option<Code<'a>>,
    /// Why.
    #[serde(borrow)]
    message: Text<'a>,
}

/// The code of a status.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Code<'a> {
    /// 2 is an error.
    Number(i64),
    /// `STATUS_CODE_ERROR`.
    #[serde(borrow)]
    Name(Text<'a>),
}

/// `Span`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RawSpan<'a> {
    /// In hexadecimal, or in base64.
    #[serde(borrow, alias = "trace_id")]
    trace_id: Text<'a>,
    /// Likewise.
    #[serde(borrow, alias = "span_id")]
    span_id: Text<'a>,
    /// Likewise; empty if it has none.
    #[serde(borrow, alias = "parent_span_id")]
    parent_span_id: Text<'a>,
    /// Name.
    #[serde(borrow)]
    name: Text<'a>,
    /// Begin.
    #[serde(alias = "start_time_unix_nano")]
    start_time_unix_nano: Number,
    /// End.
    #[serde(alias = "end_time_unix_nano")]
    end_time_unix_nano: Number,
    /// Attributes.
    #[serde(borrow)]
    attributes: Option<Vec<RawAttribute<'a>>>,
    /// Links.
    #[serde(borrow)]
    links: Option<Vec<RawLink<'a>>>,
    /// Links left out.
    #[serde(alias = "dropped_links_count")]
    dropped_links_count: u32,
    /// How it ended.
    #[serde(borrow)]
    status: Option<RawStatus<'a>>,
}

impl<'a> RawSpan<'a> {
    /// The span of this resource. An id that is none becomes zero, and is counted as such.
    pub(super) fn span<'b>(self, resource: &'b Resource) -> Span<'b>
    where
        'a: 'b,
    {
        let link = |link: RawLink<'_>| Link { trace: trace_id(&link.trace_id.0), span: span_id(&link.span_id.0) };
        let failed = self.status.filter(|status| match &status.code {
            Some(Code::Number(code)) => *code == 2,
            Some(Code::Name(name)) => name.0 == "STATUS_CODE_ERROR",
            None => false,
        });
        let attributes = self.attributes.unwrap_or_default().into_iter();
        Span {
            service: &resource.service,
            instance: &resource.instance,
            name: self.name.0,
            trace: trace_id(&self.trace_id.0),
            id: span_id(&self.span_id.0),
            parent: span_id(&self.parent_span_id.0),
            start: self.start_time_unix_nano.as_u64(),
            end: self.end_time_unix_nano.as_u64(),
            attributes: attributes.map(|attribute| (attribute.key.0, attribute.value.value())).collect(),
            links: self.links.unwrap_or_default().into_iter().map(link).collect(),
            links_dropped: self.dropped_links_count,
            error: failed.map(|status| status.message.0),
        }
    }
}

/// A trace's id in hexadecimal or, as Tempo writes it, base64; zero if it is neither.
fn trace_id(text: &str) -> TraceId {
    text.parse().ok().or_else(|| TraceId::from_bytes(&base64(text)?)).unwrap_or_default()
}

/// A span's id, likewise.
fn span_id(text: &str) -> SpanId {
    text.parse().ok().or_else(|| SpanId::from_bytes(&base64(text)?)).unwrap_or_default()
}

/// The bytes of a base64 text with padding, as ids of 8 and 16 bytes have it.
fn base64(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_suffix("==").or_else(|| text.strip_suffix('='))?;
    let (mut bits, mut held, mut bytes) = (0u32, 0u32, Vec::with_capacity(16));
    for byte in digits.bytes().take(32) {
        let digit = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        bits = (bits << 6) | u32::from(digit);
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    Some(bytes)
}

/// Who made the spans.
#[derive(Clone, Debug, Default)]
pub(super) struct Resource {
    /// `service.name`.
    pub(super) service: String,
    /// `service.instance.id`.
    pub(super) instance: String,
}

impl Resource {
    /// By attributes.
    pub(super) fn of<'a>(attributes: impl Iterator<Item = (Cow<'a, str>, Value<'a>)>) -> Self {
        let mut resource = Self { service: "unknown_service".to_owned(), instance: String::new() };
        for (key, value) in attributes {
            match &*key {
                "service.name" => resource.service = value.to_string(),
                "service.instance.id" => resource.instance = value.to_string(),
                _ => {}
            }
        }
        resource
    }
}

/// `Resource`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawResource<'a> {
    /// What it says of itself.
    #[serde(borrow)]
    attributes: Vec<RawAttribute<'a>>,
}

impl RawResource<'_> {
    /// Who it is.
    pub(super) fn resource(self) -> Resource {
        Resource::of(self.attributes.into_iter().map(|attribute| (attribute.key.0, attribute.value.value())))
    }
}
