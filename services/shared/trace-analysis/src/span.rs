//! A span as readers hand it on: borrowed from the input, so that what nobody asks for is never copied.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

/// A trace's id, 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId {
    /// The first eight bytes.
    pub high: u64,
    /// The last eight bytes.
    pub low: u64,
}

impl TraceId {
    /// The id that OTLP calls invalid.
    pub const ZERO: Self = Self { high: 0, low: 0 };

    /// From bytes; none unless there are sixteen.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(u128::from_be_bytes(bytes.try_into().ok()?).into())
    }
}

impl From<u128> for TraceId {
    fn from(id: u128) -> Self {
        Self { high: (id >> 64) as u64, low: id as u64 }
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.high, self.low)
    }
}

impl FromStr for TraceId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        hexadecimal(text, 32).map(Self::from).ok_or(NotAnId)
    }
}

/// A span's id, 8 bytes; zero is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(pub u64);

impl SpanId {
    /// From bytes; none unless there are eight.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Some(Self(u64::from_be_bytes(bytes.try_into().ok()?)))
    }

    /// Whether it is the id that OTLP calls invalid.
    #[must_use]
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for SpanId {
    type Err = NotAnId;

    fn from_str(text: &str) -> Result<Self, NotAnId> {
        hexadecimal(text, 16).map(|id| Self(id as u64)).ok_or(NotAnId)
    }
}

/// Text that is no id of a trace or span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no hexadecimal id")]
pub struct NotAnId;

/// A number of at most so many hexadecimal digits. Jaeger leaves leading zeroes out.
fn hexadecimal(text: &str, digits_max: usize) -> Option<u128> {
    let whole = !text.is_empty() && text.len() <= digits_max && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if whole { u128::from_str_radix(text, 16).ok() } else { None }
}

/// What an attribute says.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// A whole number.
    Int(i64),
    /// Another number.
    Float(f64),
    /// A flag.
    Bool(bool),
    /// Text.
    Text(Cow<'a, str>),
    /// A list, a map or bytes: not looked into.
    Other,
}

impl Value<'_> {
    /// It as a number, if it is one or reads as one.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            Value::Int(n) => Some(*n as f64),
            Value::Float(n) => Some(*n).filter(|n| n.is_finite()),
            Value::Text(text) => text.parse().ok().filter(|n: &f64| n.is_finite()),
            Value::Bool(_) | Value::Other => None,
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Int(n) => n.fmt(f),
            Value::Float(n) => n.fmt(f),
            Value::Bool(flag) => flag.fmt(f),
            Value::Text(text) => text.fmt(f),
            Value::Other => "…".fmt(f),
        }
    }
}

/// A link to another span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Its trace.
    pub trace: TraceId,
    /// Its id.
    pub span: SpanId,
}

/// One span.
#[derive(Clone, Debug)]
pub struct Span<'a> {
    /// `service.name`.
    pub service: &'a str,
    /// `service.instance.id`, empty if it has none: clocks belong to instances.
    pub instance: &'a str,
    /// Its name.
    pub name: Cow<'a, str>,
    /// Its trace.
    pub trace: TraceId,
    /// Its id.
    pub id: SpanId,
    /// Its parent's id, zero if it has none.
    pub parent: SpanId,
    /// Begin, in nanoseconds since 1970.
    pub start: u64,
    /// End, likewise.
    pub end: u64,
    /// Attributes.
    pub attributes: Vec<(Cow<'a, str>, Value<'a>)>,
    /// Links.
    pub links: Vec<Link>,
    /// Links that it had and that its maker left out.
    pub links_dropped: u32,
    /// Why it failed, if it did; may be empty.
    pub error: Option<Cow<'a, str>>,
}

impl Span<'_> {
    /// An attribute's value.
    #[must_use]
    pub fn attribute(&self, key: &str) -> Option<&Value<'_>> {
        self.attributes.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// How long it took; 0 if it ends before it begins.
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_hexadecimal_and_may_be_short() {
        let id: TraceId = "1cde9c47b7a6874a1a80ed9acc583a86".parse().unwrap();
        assert_eq!(id.to_string(), "1cde9c47b7a6874a1a80ed9acc583a86");
        assert_eq!("ff".parse::<SpanId>().unwrap().to_string(), "00000000000000ff");
        for wrong in ["", "xyz", "+1", "1cde9c47b7a6874a1a80ed9acc583a861"] {
            assert_eq!(wrong.parse::<TraceId>(), Err(NotAnId), "{wrong}");
        }
        assert_eq!(TraceId::from_bytes(&[0; 15]), None);
    }
}
