//! Spans from files of OTLP JSON lines.

use std::path::Path;

use anyhow::Context;
use serde_json::Value;

/// One span, as far as tests ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// `service.name`.
    pub service: String,
    /// Name.
    pub name: String,
    /// Trace id, 32 hexadecimal digits.
    pub trace_id: String,
    /// Span id, 16 hexadecimal digits.
    pub span_id: String,
    /// Parent's span id, empty for a root.
    pub parent: String,
    /// When it began, in nanoseconds since 1970.
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Trace and span ids of its links.
    pub links: Vec<(String, String)>,
    /// Attributes as text.
    pub attributes: Vec<(String, String)>,
}

impl Span {
    /// An attribute's value, empty if it has none.
    #[must_use]
    pub fn attribute(&self, key: &str) -> &str {
        self.attributes.iter().find(|(name, _)| name == key).map_or("", |(_, value)| value)
    }
}

/// All spans in a file.
///
/// # Errors
/// The file cannot be read, or is no OTLP.
pub fn read(path: &Path) -> anyhow::Result<Vec<Span>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let mut spans = Vec::new();
    for line in text.lines() {
        let request: Value = serde_json::from_str(line)?;
        for resource in array(&request["resourceSpans"]) {
            let service = attributes(&resource["resource"]["attributes"]);
            let service = service.into_iter().find(|(key, _)| key == "service.name").map(|(_, value)| value);
            let service = service.context("spans without service.name")?;
            for span in array(&resource["scopeSpans"]).iter().flat_map(|scope| array(&scope["spans"])) {
                spans.push(Span {
                    service: service.clone(),
                    name: text_of(&span["name"]),
                    trace_id: text_of(&span["traceId"]),
                    span_id: text_of(&span["spanId"]),
                    parent: text_of(&span["parentSpanId"]),
                    start_ns: text_of(&span["startTimeUnixNano"]).parse()?,
                    end_ns: text_of(&span["endTimeUnixNano"]).parse()?,
                    links: array(&span["links"]).iter().map(|l| (text_of(&l["traceId"]), text_of(&l["spanId"]))).collect(),
                    attributes: attributes(&span["attributes"]),
                });
            }
        }
    }
    Ok(spans)
}

/// The elements, none if it is no array.
fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A string, empty if it is none.
fn text_of(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Attributes with their values as text, whatever their type.
fn attributes(value: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| match value.as_object().and_then(|object| object.values().next()) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    array(value).iter().map(|attribute| (text_of(&attribute["key"]), text(&attribute["value"]))).collect()
}
