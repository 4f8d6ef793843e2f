//! Text for people: names from outside made harmless, numbers made readable.

use service_kit::printable;

/// Text from outside made harmless, and cut to `columns_max` characters with an ellipsis.
#[must_use]
pub fn harmless_cut(text: &str, columns_max: usize) -> String {
    let shown = printable(text);
    if shown.chars().count() <= columns_max {
        return shown.into_owned();
    }
    let mut cut: String = shown.chars().take(columns_max.saturating_sub(1)).collect();
    cut.push('…');
    cut
}

/// A count with its thousands set apart: `12,345,678`.
#[must_use]
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut shown = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// A count in at most six columns: exact below 100,000, then with three significant digits: `278 k`, `13.1 M`, `2.04 G`.
#[must_use]
pub fn short_count(n: u64) -> String {
    if n < 100_000 {
        return count(n);
    }
    // Each unit up to where its three digits would round up to a thousand of it.
    let units = [(999_500, 1e3, "k"), (999_500_000, 1e6, "M"), (999_500_000_000, 1e9, "G"), (u64::MAX, 1e12, "T")];
    let (_, size, unit) = units.into_iter().find(|(end, _, _)| n < *end).unwrap_or((u64::MAX, 1e12, "T"));
    let value = n as f64 / size;
    let decimals = if value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.decimals$} {unit}")
}

/// A time with three significant digits in the unit that suits it: `1.23 s`, `45.6 ms`, `789 µs`, `12 ns`.
#[must_use]
pub fn nanos(ns: u64) -> String {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
    for (size, unit) in units {
        let value = ns as f64 / size;
        if value >= 0.9995 {
            let decimals = if value >= 99.95 {
                0
            } else if value >= 9.995 {
                1
            } else {
                2
            };
            return format!("{value:.decimals$} {unit}");
        }
    }
    format!("{ns} ns")
}

/// Words in lines of at most `columns`, each set in by two.
#[must_use]
pub fn wrapped(words: &str, columns: usize) -> String {
    let mut text = String::from(" ");
    let mut used = 1;
    for word in words.split_whitespace() {
        let len = word.chars().count();
        if used + 1 + len > columns && used > 1 {
            text.push_str("\n ");
            used = 1;
        }
        text.push(' ');
        text.push_str(word);
        used += 1 + len;
    }
    text
}

/// A ratio as people say it: `3.4×`, `120×`, `8,700×`; a dash where there is nothing to compare with.
#[must_use]
pub fn times(part: f64, whole: f64) -> String {
    if part <= 0.0 || !part.is_finite() || !whole.is_finite() {
        return "–".to_owned();
    }
    let ratio = whole / part;
    if ratio < 9.95 { format!("{ratio:.1}×") } else { format!("{}×", count(ratio.round() as u64)) }
}

/// A share in per cent: `53 %`, `0.8 %`.
#[must_use]
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "–".to_owned();
    }
    let share = part as f64 * 100.0 / whole as f64;
    if share >= 9.95 { format!("{share:.0} %") } else { format!("{share:.1} %") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_text_is_harmless_first() {
        assert_eq!(harmless_cut("a\u{1b}b", 20), "a\\u{1b}b");
        assert_eq!(harmless_cut("größer", 4), "grö…");
        assert_eq!(harmless_cut("abcd", 4), "abcd");
    }

    #[test]
    fn words_are_wrapped_at_the_width() {
        assert_eq!(wrapped("one two three", 9), "  one two\n  three");
        assert_eq!(wrapped("incomprehensibilities", 9), "  incomprehensibilities");
    }

    #[test]
    fn numbers_are_grouped_and_scaled() {
        assert_eq!(["0", "999", "1,000", "1,234,567"].map(str::to_owned), [0, 999, 1000, 1_234_567].map(count));
        assert_eq!(short_count(99_999), "99,999");
        assert_eq!(short_count(277_800), "278 k");
        assert_eq!(short_count(999_500), "1.00 M");
        assert_eq!(short_count(13_074_550), "13.1 M");
        assert_eq!(short_count(705_155_875), "705 M");
        assert_eq!(short_count(2_040_000_000), "2.04 G");
        assert_eq!(nanos(0), "0 ns");
        assert_eq!(nanos(789_000), "789 µs");
        assert_eq!(nanos(45_600_000), "45.6 ms");
        assert_eq!(nanos(1_234_000_000), "1.23 s");
        assert_eq!(nanos(999_999), "1.00 ms");
        assert_eq!(times(1.0, 222.0), "222×");
        assert_eq!(times(2.0, 7.0), "3.5×");
        assert_eq!(times(0.0, 7.0), "–");
        assert_eq!(percent(76, 10_000), "0.8 %");
        assert_eq!(percent(23, 100), "23 %");
        assert_eq!(percent(1, 0), "–");
    }
}
