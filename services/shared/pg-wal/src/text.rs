//! Text in pg_waldump's manner, without `core::fmt`: a dump is bound by formatting, not by reading.

use pg_types::{Lsn, RelFileLocator, Timestamp};

/// `00` to `99`.
const PAIRS: &[u8; 200] = b"0001020304050607080910111213141516171819\
    2021222324252627282930313233343536373839\
    4041424344454647484950515253545556575859\
    6061626364656667686970717273747576777879\
    8081828384858687888990919293949596979899";
/// Hexadecimal digits.
const HEX: &[u8; 16] = b"0123456789ABCDEF";
/// Microseconds of a second.
const SECOND: i64 = 1_000_000;
/// Seconds of a day.
const DAY: i64 = 86_400;
/// Days from 1970-01-01 to 2000-01-01, where PostgreSQL's time begins.
const EPOCH_DAYS: i64 = 10_957;

/// Bytes of text that grow.
#[derive(Clone, Debug, Default)]
pub struct Text {
    /// What was written.
    buf: Vec<u8>,
}

impl Text {
    /// An empty text.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What was written. It is UTF-8: nothing else is ever put in.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.buf
    }

    /// What was written, from a byte on that an earlier [`Text::len`] gave.
    #[must_use]
    pub fn since(&self, start: usize) -> &str {
        std::str::from_utf8(self.buf.get(start..).unwrap_or_default()).unwrap_or_default()
    }

    /// How many bytes were written.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buf.len()
    }

    /// Nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buf.is_empty()
    }

    /// Forgets what was written and keeps the memory.
    pub fn clear(&mut self) {
        self.buf.clear();
    }

    /// Forgets what was written after the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.buf.truncate(len);
    }

    /// A string.
    #[inline]
    pub fn str(&mut self, text: &str) -> &mut Self {
        self.buf.extend_from_slice(text.as_bytes());
        self
    }

    /// A decimal number.
    #[inline]
    pub fn dec(&mut self, number: u32) -> &mut Self {
        let mut digits = [0u8; 10];
        let start = decimal(number, &mut digits);
        self.buf.extend_from_slice(digits.get(start..).unwrap_or_default());
        self
    }

    /// A decimal number, filled up with blanks on the left to `width` (at most 16).
    #[inline]
    pub fn dec_right(&mut self, number: u32, width: usize) -> &mut Self {
        let mut cell = [b' '; 16];
        let mut digits = [0u8; 10];
        let start = decimal(number, &mut digits);
        let digits = digits.get(start..).unwrap_or_default();
        let width = width.clamp(digits.len(), cell.len());
        if let Some(end) = cell.get_mut(width - digits.len()..width) {
            end.copy_from_slice(digits);
        }
        self.buf.extend_from_slice(cell.get(..width).unwrap_or_default());
        self
    }

    /// A decimal number of 64 bits.
    pub fn dec64(&mut self, number: u64) -> &mut Self {
        match u32::try_from(number) {
            Ok(small) => self.dec(small),
            Err(_) => self.str(&number.to_string()),
        }
    }

    /// A signed decimal number.
    pub fn signed(&mut self, number: i32) -> &mut Self {
        if number < 0 {
            self.buf.push(b'-');
        }
        self.dec(number.unsigned_abs())
    }

    /// A number in upper-case hexadecimal digits, at least `width` of them (at most 16).
    #[inline]
    pub fn hex(&mut self, number: u64, width: usize) -> &mut Self {
        let mut digits = [0u8; 16];
        let mut rest = number;
        for digit in digits.iter_mut().rev() {
            *digit = hex_digit(rest as u8);
            rest >>= 4;
        }
        let significant = (67 - number.leading_zeros() as usize) / 4;
        let width = significant.max(width).clamp(1, 16);
        self.buf.extend_from_slice(digits.get(16 - width..).unwrap_or_default());
        self
    }

    /// A position as `0/A00028`.
    #[inline]
    pub fn lsn(&mut self, lsn: Lsn) -> &mut Self {
        self.hex(lsn.0 >> 32, 1).str("/").hex(lsn.0 & 0xFFFF_FFFF, 1)
    }

    /// A position as in the columns of pg_waldump: `0/00A00028`.
    #[inline]
    pub fn lsn_padded(&mut self, lsn: Lsn) -> &mut Self {
        self.hex(lsn.0 >> 32, 1).str("/").hex(lsn.0 & 0xFFFF_FFFF, 8)
    }

    /// A file as `1663/5/16396`.
    #[inline]
    pub fn locator(&mut self, locator: RelFileLocator) -> &mut Self {
        self.dec(locator.spc.0).str("/").dec(locator.db.0).str("/").dec(locator.rel)
    }

    /// A time as `2026-11-30 08:32:10.843454 UTC`.
    pub fn timestamp(&mut self, time: Timestamp) -> &mut Self {
        let (seconds, micros) = (time.0.div_euclid(SECOND), time.0.rem_euclid(SECOND));
        let (days, second) = (seconds.div_euclid(DAY) + EPOCH_DAYS, seconds.rem_euclid(DAY) as u32);
        let (year, month, day) = civil_date(days);
        if year < 0 {
            self.buf.push(b'-');
        }
        let year = year.unsigned_abs();
        self.pair((year / 100 % 100) as u32, year / 10_000).pair((year % 100) as u32, 0).str("-");
        self.pair(month, 0).str("-").pair(day, 0).str(" ");
        self.pair(second / 3600, 0).str(":").pair(second / 60 % 60, 0).str(":").pair(second % 60, 0).str(".");
        let micros = micros as u32;
        self.pair(micros / 10_000, 0).pair(micros / 100 % 100, 0).pair(micros % 100, 0).str(" UTC")
    }

    /// Two digits, behind `above` if that is not 0.
    fn pair(&mut self, number: u32, above: u64) -> &mut Self {
        if above > 0 {
            self.dec64(above);
        }
        let at = (number % 100) as usize * 2;
        self.buf.extend_from_slice(PAIRS.get(at..at + 2).unwrap_or_default());
        self
    }

    /// Text from outside: what a terminal could act on (control characters, marks that turn the direction of writing) and what
    /// is no UTF-8 is shown as `\xNN`.
    pub fn untrusted(&mut self, bytes: &[u8]) -> &mut Self {
        for chunk in bytes.utf8_chunks() {
            for c in chunk.valid().chars() {
                let mut utf8 = [0; 4];
                let encoded = c.encode_utf8(&mut utf8);
                if is_harmless(c) {
                    self.str(encoded)
                } else {
                    self.escaped(encoded.as_bytes())
                };
            }
            self.escaped(chunk.invalid());
        }
        self
    }

    /// Bytes as `\xNN`.
    fn escaped(&mut self, bytes: &[u8]) -> &mut Self {
        for byte in bytes {
            self.str("\\x").hex(u64::from(*byte), 2);
        }
        self
    }

    /// Bytes as `6E 6F`.
    pub fn hex_bytes(&mut self, bytes: &[u8]) -> &mut Self {
        for (i, byte) in bytes.iter().enumerate() {
            self.str(if i == 0 { "" } else { " " }).hex(u64::from(*byte), 2);
        }
        self
    }
}

/// Nothing in a terminal acts on it.
fn is_harmless(c: char) -> bool {
    let turns_direction = matches!(c, '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}');
    !c.is_control() && !turns_direction
}

/// The hexadecimal digit of the low four bits.
#[inline]
fn hex_digit(bits: u8) -> u8 {
    HEX.get(usize::from(bits & 0xF)).copied().unwrap_or_default()
}

/// Writes a number's digits to the end of `digits` and returns where they start.
#[inline]
fn decimal(number: u32, digits: &mut [u8; 10]) -> usize {
    let mut rest = number;
    let mut at = digits.len();
    for pair in digits.as_chunks_mut::<2>().0.iter_mut().rev() {
        let low = (rest % 100) as usize * 2;
        if let Some(text) = PAIRS.get(low..low + 2) {
            pair.copy_from_slice(text);
        }
        at -= 2;
        rest /= 100;
        if rest == 0 {
            return if low < 20 { at + 1 } else { at };
        }
    }
    at
}

/// Year, month and day of a number of days since 1970-01-01 in the Gregorian calendar, extended to both sides.
fn civil_date(days: i64) -> (i64, u32, u32) {
    // Count from 0000-03-01, so that the leap day is the last one of its year; 400 years always have the same days.
    const ERA_DAYS: i64 = 146_097;
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted.div_euclid(ERA_DAYS), shifted.rem_euclid(ERA_DAYS));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month as u32, day as u32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(write: impl FnOnce(&mut Text)) -> String {
        let mut text = Text::new();
        write(&mut text);
        text.since(0).to_owned()
    }

    proptest! {
        #[test]
        fn numbers_are_as_the_standard_library_writes_them(n: u32, m: u64, width in 0usize..16) {
            prop_assert_eq!(text(|t| _ = t.dec(n)), n.to_string());
            prop_assert_eq!(text(|t| _ = t.dec_right(n, width)), format!("{n:width$}"));
            prop_assert_eq!(text(|t| _ = t.hex(m, width)), format!("{m:0width$X}"));
            prop_assert_eq!(text(|t| _ = t.lsn(Lsn(m))), Lsn(m).to_string());
        }

        #[test]
        fn any_time_is_written(t: i64) {
            prop_assert!(text(|out| _ = out.timestamp(Timestamp(t))).ends_with(" UTC"));
        }
    }

    #[test]
    fn small_numbers() {
        for n in (0..1100).chain([9_999, 10_000, 99_999, u32::MAX]) {
            assert_eq!(text(|t| _ = t.dec(n)), n.to_string());
        }
        assert_eq!(text(|t| _ = t.hex(0, 0)), "0");
        assert_eq!(text(|t| _ = t.signed(-5)), "-5");
    }

    #[test]
    fn times() {
        let cases = [
            (0, "2000-01-01 00:00:00.000000 UTC"),
            (-1, "1999-12-31 23:59:59.999999 UTC"),
            (849_342_730_843_454, "2026-11-30 08:32:10.843454 UTC"),
            (5_097_599_999_999, "2000-02-28 23:59:59.999999 UTC"),
            (5_097_600_000_000, "2000-02-29 00:00:00.000000 UTC"),
        ];
        for (micros, expected) in cases {
            assert_eq!(text(|t| _ = t.timestamp(Timestamp(micros))), expected);
        }
    }

    #[test]
    fn names_from_outside_cannot_move_the_cursor() {
        let shown = text(|t| _ = t.untrusted("a\u{1b}[2J\n\u{9b}ü\u{202e}".as_bytes()));
        assert_eq!(shown, r"a\x1B[2J\x0A\xC2\x9Bü\xE2\x80\xAE");
        assert_eq!(text(|t| _ = t.untrusted(b"x\xff\xfey")), r"x\xFF\xFEy");
    }
}
