//! OTLP's JSON encoding: lines of requests, or documents over several lines. Spans are handed on while a document is still being read.

use std::cell::Cell;
use std::fmt;
use std::io::{self, BufRead, Read};
use std::rc::Rc;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::raw::{RawResource, RawSpan, Resource, Text};
use super::{Emitter, PART_BYTES_MAX, jaeger, read_error};
use crate::error::{Result, TraceError};

/// Reads lines of documents; if the first line is no whole document, documents over several lines.
pub(super) fn read(reader: &mut dyn BufRead, place: &str, out: &mut Emitter<'_>) -> Result<()> {
    let (mut line, mut number, mut any) = (Vec::new(), 0u64, false);
    loop {
        line.clear();
        let mut limited = Read::take(&mut *reader, PART_BYTES_MAX as u64 + 1);
        match limited.read_until(b'\n', &mut line) {
            Ok(0) => return Ok(()),
            Ok(_) => number += 1,
            // What a decompressor says of a file that was cut off.
            Err(error) if any || out.report.spans > 0 => {
                out.report.note(format!("{place} ends behind line {number} ({error}): what comes before was read"));
                return Ok(());
            }
            Err(source) => return Err(read_error(place, source)),
        }
        if line.len() > PART_BYTES_MAX {
            let (place, max) = (format!("{place}:{number}"), PART_BYTES_MAX >> 20);
            return Err(TraceError::TooLarge { place, what: "the line", max });
        }
        let text = line.strip_prefix(&[0xEF, 0xBB, 0xBF]).unwrap_or(&line).trim_ascii();
        if text.is_empty() {
            continue;
        }
        let before = out.report.spans;
        let mut parser = serde_json::Deserializer::from_slice(text);
        let parsed = Document { out }.deserialize(&mut parser).and_then(|()| parser.end());
        if let Some(error) = out.failed.take() {
            return Err(error);
        }
        let Err(error) = parsed else {
            any = true;
            continue;
        };
        let last = reader.fill_buf().map_or(true, <[u8]>::is_empty);
        if error.is_eof() && !last && !any {
            out.skip = out.report.spans - before;
            return read_documents(text.chain(&b"\n"[..]).chain(reader), place, out);
        }
        if error.is_eof() && last {
            out.report.note(format!(
                "{place}:{number}: the last line is cut off at column {}: what comes before was read, {} of it spans of this line",
                error.column(),
                out.report.spans - before
            ));
        } else if any || out.report.spans > before {
            out.report.note(format!("{place}:{number}: {}, so the rest of the line was left out", without_line(&error)));
        } else {
            return Err(TraceError::NoTraces { place: format!("{place}:{number}"), what: without_line(&error) });
        }
        any = true;
    }
}

/// A reader that fails when a document goes on for too long without a span: its parser holds what it has begun to read.
struct Bounded<R> {
    /// What is read.
    reader: R,
    /// Bytes since the last span; who takes spans sets it back.
    unspent: Rc<Cell<u64>>,
    /// How many there may be.
    max: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.unspent.get() > self.max {
            let what = format!("more than {} MiB without a span; let its writer make lines of smaller batches", self.max >> 20);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        let n = self.reader.read(buffer)?;
        self.unspent.set(self.unspent.get() + n as u64);
        Ok(n)
    }
}

/// Reads documents over several lines, one behind the other.
fn read_documents(reader: impl Read, place: &str, out: &mut Emitter<'_>) -> Result<()> {
    out.unspent.set(0);
    let mut parser =
        serde_json::Deserializer::from_reader(Bounded { reader, unspent: Rc::clone(&out.unspent), max: PART_BYTES_MAX as u64 });
    loop {
        let parsed = Document { out }.deserialize(&mut parser);
        if let Some(error) = out.failed.take() {
            return Err(error);
        }
        match parsed {
            Ok(()) if parser.end().is_ok() => return Ok(()),
            Ok(()) => {}
            Err(error) if error.is_io() => return Err(read_error(place, error.into())),
            Err(error) if out.report.spans == 0 => {
                return Err(TraceError::NoTraces { place: format!("{place}:{}", error.line()), what: without_line(&error) });
            }
            Err(error) => {
                let what = if error.is_eof() { "the document is cut off here".to_owned() } else { without_line(&error) };
                out.report.note(format!("{place}:{}: {what}: what comes before was read", error.line()));
                return Ok(());
            }
        }
    }
}

/// What a parser says, without the place, which counts from the beginning of the part.
fn without_line(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(at) => format!("{} (column {})", text.get(..at).unwrap_or_default(), error.column()),
        None => text,
    }
}

/// The error with which a parser is left because no more spans are wanted.
fn stopped<E: serde::de::Error>() -> E {
    E::custom("stopped")
}

/// A request, or an answer of an API that holds one.
struct Document<'e, 'f> {
    /// Who takes the spans.
    out: &'e mut Emitter<'f>,
}

impl<'de> DeserializeSeed<'de> for Document<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Document<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with resourceSpans")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        let (mut keys, mut known) = (0, false);
        while let Some(key) = map.next_key::<Text<'de>>()? {
            keys += 1;
            match &*key.0 {
                "resourceSpans" | "resource_spans" | "batches" => map.next_value_seed(Each(ResourceSpans { out: self.out }))?,
                "trace" => map.next_value_seed(Document { out: self.out })?,
                "data" => map.next_value_seed(Each(jaeger::Trace { out: self.out }))?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            }
            known = true;
        }
        if keys > 0 && !known {
            return Err(A::Error::custom("JSON without traces: neither resourceSpans nor data"));
        }
        Ok(())
    }
}

/// An element that is read again and again.
pub(super) trait Element<'de> {
    /// Reads one.
    fn element<A: SeqAccess<'de>>(&mut self, seq: &mut A) -> std::result::Result<bool, A::Error>;
}

/// A list, or nothing.
pub(super) struct Each<T>(pub(super) T);

impl<'de, T: Element<'de>> DeserializeSeed<'de> for Each<T> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T: Element<'de>> Visitor<'de> for Each<T> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_unit<E>(self) -> std::result::Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> std::result::Result<(), A::Error> {
        while self.0.element(&mut seq)? {}
        Ok(())
    }
}

/// `ResourceSpans`.
struct ResourceSpans<'e, 'f> {
    /// Who takes the spans.
    out: &'e mut Emitter<'f>,
}

impl<'de> Element<'de> for ResourceSpans<'_, '_> {
    fn element<A: SeqAccess<'de>>(&mut self, seq: &mut A) -> std::result::Result<bool, A::Error> {
        Ok(seq.next_element_seed(OneResource { out: self.out })?.is_some())
    }
}

/// One of them. Its resource mostly comes first; if not, its spans wait for it.
struct OneResource<'e, 'f> {
    /// Who takes the spans.
    out: &'e mut Emitter<'f>,
}

impl<'de> DeserializeSeed<'de> for OneResource<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OneResource<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("spans of a resource")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        let (mut resource, mut waiting) = (None, Vec::new());
        while let Some(key) = map.next_key::<Text<'de>>()? {
            match &*key.0 {
                "resource" => {
                    let raw: RawResource<'de> = map.next_value()?;
                    resource = Some(raw.resource());
                }
                "scopeSpans" | "scope_spans" | "instrumentationLibrarySpans" => {
                    map.next_value_seed(Each(Scopes { out: self.out, resource: resource.as_ref(), waiting: &mut waiting }))?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let resource = resource.unwrap_or_else(|| Resource::of(std::iter::empty()));
        for raw in waiting {
            if !self.out.emit(&raw.span(&resource)) {
                return Err(stopped());
            }
        }
        Ok(())
    }
}

/// `ScopeSpans`, and the spans in it.
struct Scopes<'e, 'f, 'de> {
    /// Who takes the spans.
    out: &'e mut Emitter<'f>,
    /// Who made them, if that is known yet.
    resource: Option<&'e Resource>,
    /// Spans of which it is not.
    waiting: &'e mut Vec<RawSpan<'de>>,
}

impl<'de> Element<'de> for Scopes<'_, '_, 'de> {
    fn element<A: SeqAccess<'de>>(&mut self, seq: &mut A) -> std::result::Result<bool, A::Error> {
        Ok(seq.next_element_seed(Scope(self))?.is_some())
    }
}

/// One scope.
struct Scope<'s, 'e, 'f, 'de>(&'s mut Scopes<'e, 'f, 'de>);

impl<'de> DeserializeSeed<'de> for Scope<'_, '_, '_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Scope<'_, '_, '_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("spans of a scope")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<(), A::Error> {
        while let Some(key) = map.next_key::<Text<'de>>()? {
            if key.0 == "spans" {
                map.next_value_seed(Each(&mut *self.0))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

impl<'de> Element<'de> for &mut Scopes<'_, '_, 'de> {
    fn element<A: SeqAccess<'de>>(&mut self, seq: &mut A) -> std::result::Result<bool, A::Error> {
        let Some(raw) = seq.next_element::<RawSpan<'de>>()? else { return Ok(false) };
        let Some(resource) = self.resource else {
            self.waiting.push(raw);
            return Ok(true);
        };
        if self.out.emit(&raw.span(resource)) { Ok(true) } else { Err(stopped()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_without_spans_is_not_read_for_ever() {
        let unspent = Rc::new(Cell::new(0));
        let mut reader = Bounded { reader: io::repeat(b' '), unspent: Rc::clone(&unspent), max: 5000 };
        let mut buffer = [0; 1000];
        let mut reads = || (0..1000).take_while(|_| reader.read(&mut buffer).is_ok()).count();
        assert_eq!(reads(), 6);
        unspent.set(0);
        assert_eq!(reads(), 6);
    }
}
