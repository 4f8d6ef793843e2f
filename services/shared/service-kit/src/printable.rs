//! Text from outside, made harmless for terminals and logs: relation names, gids, message prefixes, client ids may hold anything,
//! escape sequences and direction marks included.

use std::borrow::Cow;
use std::fmt::Write;

/// `text` with every character that could move the cursor, change colours or reorder what people see written as an escape
/// (`\n`, `\u{1b}`). Text without such characters is returned as it is.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_harmful(c) { out.extend(c.escape_default()) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// The same for bytes in no known encoding: what is not UTF-8 becomes `\xNN`.
#[must_use]
pub fn printable_bytes(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return printable(text);
    }
    let mut out = String::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        out.push_str(&printable(chunk.valid()));
        for byte in chunk.invalid() {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    Cow::Owned(out)
}

/// An error with its causes, each said once: a message that already holds its cause's text does not get it again. Every line is
/// [`printable`]; line ends stay, since parsers point at columns below the line that they quote.
#[must_use]
pub fn error_text(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let more = source.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = source.source();
    }
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// At most `max` bytes of `text`, cut at a character's end; a cut is shown by `…`.
#[must_use]
pub fn clip(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max {
        return Cow::Borrowed(text);
    }
    let end = (0..=max).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    Cow::Owned(format!("{}…", text.get(..end).unwrap_or_default()))
}

/// Controls (C0, DEL, C1), line and paragraph separators, zero-width characters and marks that change the reading direction.
fn is_harmful(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{61c}')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn harmless_text_is_not_copied() {
        assert!(matches!(printable("público.größe 表"), Cow::Borrowed(_)));
    }

    #[test]
    fn escapes_are_readable() {
        assert_eq!(printable("a\u{1b}[2Jb\nc\u{202e}d\u{9b}"), "a\\u{1b}[2Jb\\nc\\u{202e}d\\u{9b}");
        assert_eq!(printable_bytes(b"gid\xff\xfe\x07"), "gid\\xff\\xfe\\u{7}");
    }

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Failed {
        text: &'static str,
        source: Option<std::io::Error>,
    }

    #[test]
    fn causes_are_said_once_and_cannot_write_to_the_terminal() {
        let failed = |text, cause: &str| error_text(&Failed { text, source: Some(std::io::Error::other(cause.to_owned())) });
        assert_eq!(failed("cannot read x: denied", "denied"), "cannot read x: denied");
        assert_eq!(failed("make the directory x", "denied"), "make the directory x: denied");
        assert_eq!(failed("line 3\n  ^ here\u{1b}[2J", "a\u{9b}b"), "line 3\n  ^ here\\u{1b}[2J: a\\u{9b}b");
        assert_eq!(error_text(&Failed { text: "alone", source: None }), "alone");
    }

    #[test]
    fn clipping_keeps_characters_whole() {
        assert_eq!(clip("größe", 3), "gr…");
        assert_eq!(clip("größe", 4), "grö…");
        assert_eq!(clip("größe", 7), "größe");
    }

    proptest! {
        #[test]
        fn nothing_harmful_is_left(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(!printable_bytes(&bytes).chars().any(is_harmful));
            prop_assert!(!printable(&String::from_utf8_lossy(&bytes)).chars().any(is_harmful));
        }

        #[test]
        fn clipped_text_fits(text in ".{0,80}", max in 0usize..100) {
            prop_assert!(clip(&text, max).len() <= max.max(text.len().min(max)) + '…'.len_utf8());
        }
    }
}
