//! OTLP as protobuf: one request, resource by resource, or the frames that the collector's file exporter writes.

use std::borrow::Cow;
use std::io::{self, BufRead, Read};

use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span as RawSpan, Status};
use prost::Message;

use super::raw::Resource;
use super::{Emitter, PART_BYTES_MAX, read_error};
use crate::error::{Result, TraceError};
use crate::span::{Link, Span, SpanId, TraceId, Value};

/// Key of `resource_spans` in a request: field 1, with a length.
const RESOURCE_SPANS: u64 = 0x0A;

/// Reads one request: `ExportTraceServiceRequest` and `TracesData` have the same bytes.
pub(super) fn read_request(reader: &mut dyn BufRead, place: &str, out: &mut Emitter<'_>) -> Result<()> {
    let mut at = 0u64;
    loop {
        let Some(key) = varint(reader, &mut at).map_err(|source| read_error(place, source))? else { return Ok(()) };
        if key != RESOURCE_SPANS {
            return malformed(out, place, at, format!("key {key:#x} where resource_spans must come"));
        }
        let len = varint(reader, &mut at).map_err(|source| read_error(place, source))?;
        let Some(part) = part(reader, len.unwrap_or(u64::MAX), place)? else { return cut_off(out, place, at) };
        match ResourceSpans::decode(part.as_slice()) {
            Ok(spans) => emit(spans, out)?,
            Err(error) => return malformed(out, place, at, error.to_string()),
        }
        at += part.len() as u64;
    }
}

/// Reads frames: four bytes of length, greatest first, then a request, which may be compressed or JSON.
pub(super) fn read_frames(reader: &mut dyn BufRead, place: &str, out: &mut Emitter<'_>) -> Result<()> {
    let mut at = 0u64;
    loop {
        let mut head = [0; 4];
        match fill(reader, &mut head).map_err(|source| read_error(place, source))? {
            0 => return Ok(()),
            4 => {}
            _ => return cut_off(out, place, at),
        }
        let len = u32::from_be_bytes(head);
        let Some(frame) = part(reader, u64::from(len), place)? else { return cut_off(out, place, at) };
        let inner = format!("{place}, frame at byte {at}");
        let mut bytes = frame.as_slice();
        if bytes.starts_with(&[0x28, 0xB5, 0x2F, 0xFD]) {
            let decoder = zstd::Decoder::with_buffer(bytes).map_err(|source| read_error(&inner, source))?;
            super::read_plain(&mut io::BufReader::new(decoder), &inner, out)?;
        } else if bytes.first() == Some(&b'{') {
            super::json::read(&mut bytes, &inner, out)?;
        } else {
            read_request(&mut bytes, &inner, out)?;
        }
        at += 4 + u64::from(len);
    }
}

/// A part of `len` bytes; none if the input ends before. Nothing is allocated by what a length claims.
fn part(reader: &mut dyn BufRead, len: u64, place: &str) -> Result<Option<Vec<u8>>> {
    if len > PART_BYTES_MAX as u64 && len != u64::MAX {
        return Err(TraceError::TooLarge { place: place.to_owned(), what: "a group of spans", max: PART_BYTES_MAX >> 20 });
    }
    let mut bytes = Vec::new();
    Read::take(reader, len).read_to_end(&mut bytes).map_err(|source| read_error(place, source))?;
    Ok(if bytes.len() as u64 == len { Some(bytes) } else { None })
}

/// Says that the input ends in the middle of something.
fn cut_off(out: &mut Emitter<'_>, place: &str, at: u64) -> Result<()> {
    if out.report.spans == 0 {
        let what = format!("no traces: it ends in the middle of what should begin at byte {at}");
        return Err(TraceError::NoTraces { place: place.to_owned(), what });
    }
    out.report.note(format!("{place} is cut off behind byte {at}: what comes before was read"));
    Ok(())
}

/// Says that bytes are no request.
fn malformed(out: &mut Emitter<'_>, place: &str, at: u64, what: String) -> Result<()> {
    if out.report.spans == 0 {
        return Err(TraceError::NoTraces { place: format!("{place}, byte {at}"), what });
    }
    out.report.note(format!("{place}, byte {at}: {what}: what comes before was read"));
    Ok(())
}

/// Reads as much as there is.
fn fill(reader: &mut dyn BufRead, buffer: &mut [u8; 4]) -> io::Result<usize> {
    let mut bytes = Vec::with_capacity(4);
    Read::take(reader, 4).read_to_end(&mut bytes)?;
    buffer.iter_mut().zip(&bytes).for_each(|(to, from)| *to = *from);
    Ok(bytes.len())
}

/// A number of at most ten bytes; none at the end of the input. A cut or overlong one is the greatest number.
fn varint(reader: &mut dyn BufRead, at: &mut u64) -> io::Result<Option<u64>> {
    let (mut value, mut shift) = (0u64, 0);
    loop {
        let Some(byte) = reader.fill_buf()?.first().copied() else {
            return Ok(if shift == 0 { None } else { Some(u64::MAX) });
        };
        reader.consume(1);
        *at += 1;
        if shift > 63 {
            return Ok(Some(u64::MAX));
        }
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Ok(Some(value));
        }
        shift += 7;
    }
}

/// Hands on the spans of a resource.
fn emit(spans: ResourceSpans, out: &mut Emitter<'_>) -> Result<()> {
    let attributes = spans.resource.map(|resource| resource.attributes).unwrap_or_default();
    let resource = Resource::of(attributes.into_iter().map(attribute));
    for raw in spans.scope_spans.into_iter().flat_map(|scope| scope.spans) {
        if !out.emit(&span(raw, &resource)) {
            return out.failed.take().map_or(Ok(()), Err);
        }
    }
    Ok(())
}

/// A span of a resource.
fn span(raw: RawSpan, resource: &Resource) -> Span<'_> {
    let link = |trace: &[u8], span: &[u8]| Link {
        trace: TraceId::from_bytes(trace).unwrap_or_default(),
        span: SpanId::from_bytes(span).unwrap_or_default(),
    };
    let own = link(&raw.trace_id, &raw.span_id);
    let failed = raw.status.filter(|status: &Status| status.code == 2);
    Span {
        service: &resource.service,
        instance: &resource.instance,
        name: Cow::Owned(raw.name),
        trace: own.trace,
        id: own.span,
        parent: SpanId::from_bytes(&raw.parent_span_id).unwrap_or_default(),
        start: raw.start_time_unix_nano,
        end: raw.end_time_unix_nano,
        attributes: raw.attributes.into_iter().map(attribute).collect(),
        links: raw.links.iter().map(|to| link(&to.trace_id, &to.span_id)).collect(),
        links_dropped: raw.dropped_links_count,
        error: failed.map(|status| Cow::Owned(status.message)),
    }
}

/// Key and value.
fn attribute(raw: KeyValue) -> (Cow<'static, str>, Value<'static>) {
    let value = match raw.value {
        Some(AnyValue { value: Some(any_value::Value::StringValue(text)) }) => Value::Text(Cow::Owned(text)),
        Some(AnyValue { value: Some(any_value::Value::IntValue(n)) }) => Value::Int(n),
        Some(AnyValue { value: Some(any_value::Value::DoubleValue(n)) }) => Value::Float(n),
        Some(AnyValue { value: Some(any_value::Value::BoolValue(flag)) }) => Value::Bool(flag),
        _ => Value::Other,
    };
    (Cow::Owned(raw.key), value)
}
