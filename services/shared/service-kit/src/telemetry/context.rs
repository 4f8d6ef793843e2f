//! W3C trace context: reading what came from outside, writing what we send.
//!
//! A context may come from an application (through a logical message in the WAL), from a caller's metadata or from another node. It is
//! outside input: its grammar is checked, its tracestate is limited, and its sampled flag is a hint (`sampling.rs`).

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use tonic::metadata::MetadataMap;
use walstorm_proto::wal::v1::TransactionContext;

/// Bytes of a tracestate at most; a longer one is dropped, as the specification allows.
pub const TRACESTATE_BYTES_MAX: usize = 512;

/// Members of a tracestate at most.
const TRACESTATE_MEMBERS_MAX: usize = 32;

/// Bytes of a traceparent of version 00.
const TRACEPARENT_BYTES: usize = 55;

/// Why a context was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContextError {
    /// Not `version-traceid-parentid-flags` in lower-case hexadecimal digits.
    #[error("the traceparent is malformed: it must look like 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")]
    Malformed,
    /// Version ff is forbidden.
    #[error("the traceparent has the forbidden version ff")]
    Version,
    /// Trace id or parent id is all zeros.
    #[error("the traceparent has an id of zeros")]
    Zero,
}

/// Reads a traceparent with its tracestate. A tracestate that is malformed or too long is dropped; the rest holds without it.
///
/// # Errors
/// The traceparent breaks the grammar.
pub fn parse_context(traceparent: &str, tracestate: &str) -> Result<SpanContext, ContextError> {
    let (trace_id, span_id, flags) = parse_traceparent(traceparent)?;
    Ok(SpanContext::new(trace_id, span_id, flags, true, parse_tracestate(tracestate)))
}

/// The three parts of a traceparent. Of the flags only "sampled" is kept.
fn parse_traceparent(text: &str) -> Result<(TraceId, SpanId, TraceFlags), ContextError> {
    let bytes = text.as_bytes();
    let (fixed, rest) = bytes.split_at_checked(TRACEPARENT_BYTES).ok_or(ContextError::Malformed)?;
    let version = hex(fixed.get(..2))? as u8;
    if version == 0xff {
        return Err(ContextError::Version);
    }
    // Later versions may add parts, with a dash before.
    if !(rest.is_empty() || version != 0 && rest.first() == Some(&b'-')) {
        return Err(ContextError::Malformed);
    }
    if [2, 35, 52].iter().any(|&i| fixed.get(i) != Some(&b'-')) {
        return Err(ContextError::Malformed);
    }
    let trace_id = u128::from(hex(fixed.get(3..19))?) << 64 | u128::from(hex(fixed.get(19..35))?);
    let span_id = hex(fixed.get(36..52))?;
    let flags = TraceFlags::new(hex(fixed.get(53..55))? as u8) & TraceFlags::SAMPLED;
    if trace_id == 0 || span_id == 0 {
        return Err(ContextError::Zero);
    }
    Ok((TraceId::from(trace_id), SpanId::from(span_id), flags))
}

/// The number of up to 16 lower-case hexadecimal digits.
fn hex(digits: Option<&[u8]>) -> Result<u64, ContextError> {
    let mut number = 0;
    for &digit in digits.ok_or(ContextError::Malformed)? {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return Err(ContextError::Malformed),
        };
        number = number << 4 | u64::from(value);
    }
    Ok(number)
}

/// A tracestate, empty if it breaks grammar or limits.
fn parse_tracestate(text: &str) -> TraceState {
    let text = text.trim_matches([' ', '\t']);
    if text.is_empty() || text.len() > TRACESTATE_BYTES_MAX {
        return TraceState::NONE;
    }
    let mut members: Vec<(&str, &str)> = Vec::new();
    for member in text.split(',').map(|m| m.trim_matches([' ', '\t'])).filter(|m| !m.is_empty()) {
        match member.split_once('=') {
            Some((key, value))
                if is_key(key)
                    && is_value(value)
                    && members.len() < TRACESTATE_MEMBERS_MAX
                    && members.iter().all(|(k, _)| *k != key) =>
            {
                members.push((key, value));
            }
            _ => return TraceState::NONE,
        }
    }
    // What passed our checks passes those of the library; if not, it is dropped like any other.
    TraceState::from_key_value(members).unwrap_or(TraceState::NONE)
}

/// A key: begins with a letter or digit, `[a-z0-9_\-*/@]`, at most 256.
fn is_key(key: &str) -> bool {
    let head = key.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let rest = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-*/@".contains(&b);
    head && key.len() <= 256 && key.bytes().all(rest)
}

/// A value: printable ASCII without comma and equals sign, no space at its end, at most 256.
fn is_value(value: &str) -> bool {
    let good = |b: u8| (0x20..=0x7e).contains(&b) && b != b',' && b != b'=';
    !value.is_empty() && value.len() <= 256 && !value.ends_with(' ') && value.bytes().all(good)
}

/// The traceparent of `context`, version 00.
#[must_use]
pub fn format_traceparent(context: &SpanContext) -> String {
    const DIGITS: [u8; 16] = *b"0123456789abcdef";
    let mut text = String::with_capacity(TRACEPARENT_BYTES);
    let mut push = |bytes: &[u8]| {
        for byte in bytes {
            for nibble in [byte >> 4, byte & 15] {
                text.push(char::from(DIGITS.get(usize::from(nibble)).copied().unwrap_or(b'0')));
            }
        }
    };
    push(&[0]);
    push(&context.trace_id().to_bytes());
    push(&context.span_id().to_bytes());
    push(&[u8::from(context.is_sampled())]);
    for at in [2, 35, 52] {
        text.insert(at, '-');
    }
    text
}

/// The message for a batch.
#[must_use]
pub fn to_message(xid: u32, commit_lsn: u64, context: &SpanContext) -> TransactionContext {
    let tracestate = context.trace_state().header();
    TransactionContext { xid, commit_lsn, traceparent: format_traceparent(context), tracestate }
}

/// The context in a message from another node.
///
/// # Errors
/// The traceparent breaks the grammar.
pub fn from_message(message: &TransactionContext) -> Result<SpanContext, ContextError> {
    parse_context(&message.traceparent, &message.tracestate)
}

/// The context that a caller sent with its call; none if there is none, or a malformed one.
#[must_use]
pub fn from_metadata(metadata: &MetadataMap) -> Option<SpanContext> {
    let text = |name| metadata.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    parse_context(text("traceparent"), text("tracestate")).ok()
}

/// Sends a context with a call.
pub fn to_metadata(context: &SpanContext, metadata: &mut MetadataMap) {
    // Both are printable ASCII.
    for (name, text) in [("traceparent", format_traceparent(context)), ("tracestate", context.trace_state().header())] {
        if let (Ok(value), false) = (text.parse(), text.is_empty()) {
            metadata.insert(name, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn good_contexts_are_read_and_written() {
        let context = parse_context(GOOD, " rojo=00f067aa0ba902b7 , congo=t61rcWkgMzE,,a@b=1 ").expect("good");
        assert_eq!(format_traceparent(&context), GOOD);
        assert!(context.is_sampled() && context.is_remote());
        assert_eq!(context.trace_state().header(), "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE,a@b=1");
        let message = to_message(742, 0x100, &context);
        assert_eq!(from_message(&message).expect("ours"), context);
    }

    #[test]
    fn later_versions_may_be_longer_and_unknown_flags_are_dropped() {
        let later = GOOD.replacen("00", "cc", 1);
        let context = parse_context(&format!("{later}-what-the-future-will-be-like"), "").expect("a later version");
        assert_eq!(format_traceparent(&context), GOOD);
        let context = parse_context(&GOOD.replace("-01", "-02"), "").expect("random flag");
        assert!(!context.is_sampled());
    }

    #[test]
    fn malformed_traceparents_are_refused() {
        let upper = GOOD.to_uppercase();
        let cases = [
            "",
            "00",
            &GOOD[..54],
            &format!("{GOOD}-00"),
            &format!("{GOOD}."),
            &format!("{}.x", GOOD.replacen("00", "cc", 1)),
            &GOOD.replace('-', "_"),
            &upper,
            &GOOD.replacen('0', "ö", 1),
            &format!(" {GOOD}"),
        ];
        for case in cases {
            assert_eq!(parse_context(case, ""), Err(ContextError::Malformed), "{case}");
        }
        assert_eq!(parse_context(&GOOD.replacen("00", "ff", 1), ""), Err(ContextError::Version));
        assert_eq!(parse_context(&format!("00-{}-b7ad6b7169203331-01", "0".repeat(32)), ""), Err(ContextError::Zero));
        assert_eq!(
            parse_context(&format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16)), ""),
            Err(ContextError::Zero)
        );
    }

    #[test]
    fn bad_tracestates_are_dropped_alone() {
        let many: Vec<_> = (0..33).map(|i| format!("k{i}=v")).collect();
        let long = format!("k={}", "v".repeat(511));
        for bad in ["a", "a=b,a=c", "A=b", "=b", "a=", "a=b\u{1b}", "a=b=c", "ä=b", &many.join(","), &long] {
            let context = parse_context(GOOD, bad).expect("the traceparent is good");
            assert_eq!(context.trace_state().header(), "", "{bad:?}");
        }
    }

    #[test]
    fn a_callers_metadata_is_read_if_it_is_good() {
        let mut metadata = MetadataMap::new();
        assert!(from_metadata(&metadata).is_none());
        metadata.insert("traceparent", GOOD.parse().expect("ascii"));
        assert_eq!(from_metadata(&metadata).map(|c| format_traceparent(&c)).as_deref(), Some(GOOD));
        metadata.insert("traceparent", "nonsense".parse().expect("ascii"));
        assert!(from_metadata(&metadata).is_none());
    }

    proptest! {
        #[test]
        fn any_text_gives_a_context_or_an_error_and_what_is_taken_is_written_alike(text in ".{0,80}", state in ".{0,600}") {
            if let Ok(context) = parse_context(&text, &state) {
                prop_assert!(context.is_valid());
                let again = parse_context(&format_traceparent(&context), &context.trace_state().header());
                prop_assert_eq!(again, Ok(context));
            }
        }

        #[test]
        fn one_wrong_byte_is_noticed_or_changes_the_value(at in 0usize..55, byte in any::<u8>().prop_filter("other", |b| b.is_ascii())) {
            let mut bytes = GOOD.as_bytes().to_vec();
            let before = bytes[at];
            bytes[at] = byte;
            let text = String::from_utf8(bytes).expect("ascii");
            let original = parse_context(GOOD, "").expect("good");
            // The version and the flags we do not know may differ without changing the value.
            let ignored = !(2..53).contains(&at);
            match parse_context(&text, "") {
                Ok(context) if context == original => prop_assert!(byte == before || ignored),
                Ok(_) => prop_assert!(byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase()),
                Err(_) => prop_assert_ne!(byte, before),
            }
        }

        #[test]
        fn every_context_of_ours_round_trips(trace in 1u128.., span in 1u64.., sampled: bool) {
            let flags = if sampled { TraceFlags::SAMPLED } else { TraceFlags::NOT_SAMPLED };
            let context = SpanContext::new(TraceId::from(trace), SpanId::from(span), flags, true, TraceState::NONE);
            prop_assert_eq!(parse_context(&format_traceparent(&context), ""), Ok(context));
        }
    }
}
