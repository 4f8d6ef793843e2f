//! Text in pg_waldump's manner, without `core::fmt`: a dump is bound by formatting, not by reading.

use pg_types::{Lsn, RelFileLocator, Timestamp};

/// `00` to `99`.
const PAIRS: &[u8; 200] = b"0001020304050607080910111213141516171819\
    2021222324252627282930313233343536373839\
    4041424344454647484950515253545556575859\
    6061626364656667686970717273747576777879\
    8081828384858687888990919293949596979899";
/// 10^8: numbers below it have at most eight digits.
const EIGHT_DIGITS: u32 = 100_000_000;
/// Eight blanks.
const BLANKS: u64 = 0x2020_2020_2020_2020;
/// Microseconds of a second.
const SECOND: i64 = 1_000_000;
/// Seconds of a day.
const DAY: i64 = 86_400;
/// Days from 1970-01-01 to 2000-01-01, where PostgreSQL's time begins.
const EPOCH_DAYS: i64 = 10_957;

/// Longest text of a file: three numbers of ten digits and two strokes.
const LOCATOR_LEN: usize = 32;

/// Bytes of text that grow.
#[derive(Clone, Debug, Default)]
pub struct Text {
    /// What was written.
    buf: Vec<u8>,
    /// Files written last, by the low bits of their number: few files come again and again.
    locators: [LocatorText; 4],
    /// The day written last.
    date: DateText,
}

/// A file and its text.
#[derive(Clone, Copy, Debug, Default)]
struct LocatorText {
    /// Which.
    locator: RelFileLocator,
    /// Its text and what follows it.
    text: [u8; LOCATOR_LEN],
    /// How many bytes of it count; 0 if nothing is here yet.
    len: u8,
}

/// A day and its text.
#[derive(Clone, Copy, Debug, Default)]
struct DateText {
    /// Days since 1970-01-01.
    days: i64,
    /// Year, month and day, with strokes.
    text: [u8; 10],
    /// The text is there.
    known: bool,
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

    /// The first `len` of eight bytes, low byte first. A copy of fixed size and a cut cost less than a copy of `len` bytes.
    #[inline]
    fn put(&mut self, bytes: u64, len: usize) {
        let end = self.buf.len() + len.min(8);
        self.buf.extend_from_slice(&bytes.to_le_bytes());
        self.buf.truncate(end);
    }

    /// Bytes that are ASCII, to be changed in place into others that are.
    #[inline]
    pub(crate) fn template<const N: usize>(&mut self, bytes: &[u8; N]) -> Option<&mut [u8; N]> {
        self.buf.extend_from_slice(bytes);
        self.buf.last_chunk_mut()
    }

    /// A decimal number.
    #[inline]
    pub fn dec(&mut self, number: u32) -> &mut Self {
        if number < 10 {
            self.buf.push(b'0' + number as u8);
            return self;
        }
        let (high, low) = (number / EIGHT_DIGITS, number % EIGHT_DIGITS);
        if high > 0 {
            let (digits, len) = decimal(high);
            self.put(digits >> (8 * (8 - len)), len);
            self.put(decimal(low).0, 8);
        } else {
            let (digits, len) = decimal(low);
            self.put(digits >> (8 * (8 - len)), len);
        }
        self
    }

    /// A decimal number, filled up with blanks on the left to `width`.
    #[inline]
    pub fn dec_right(&mut self, number: u32, width: usize) -> &mut Self {
        if number >= EIGHT_DIGITS {
            return self.fill(width.saturating_sub(if number < 10 * EIGHT_DIGITS { 9 } else { 10 })).dec(number);
        }
        let (digits, len) = blank_filled(number);
        let cell = width.clamp(len, 8);
        self.fill(width.saturating_sub(8)).put(digits >> (8 * (8 - cell)), cell);
        self
    }

    /// Blanks.
    #[inline]
    fn fill(&mut self, mut count: usize) -> &mut Self {
        while count > 0 {
            self.put(BLANKS, count);
            count = count.saturating_sub(8);
        }
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

    /// A number in upper-case hexadecimal digits, at least `width` of them (at most 8).
    #[inline]
    pub fn hex(&mut self, number: u32, width: usize) -> &mut Self {
        let significant = (35 - number.leading_zeros() as usize) / 4;
        let len = significant.max(width).clamp(1, 8);
        self.put(hexadecimal(number) >> (8 * (8 - len)), len);
        self
    }

    /// A position as `0/A00028`.
    #[inline]
    pub fn lsn(&mut self, lsn: Lsn) -> &mut Self {
        self.hex((lsn.0 >> 32) as u32, 1).str("/").hex(lsn.0 as u32, 1)
    }

    /// A position as in the columns of pg_waldump: `0/00A00028`.
    #[inline]
    pub fn lsn_padded(&mut self, lsn: Lsn) -> &mut Self {
        self.hex((lsn.0 >> 32) as u32, 1).str("/").hex(lsn.0 as u32, 8)
    }

    /// A file as `1663/5/16396`.
    #[inline]
    pub fn locator(&mut self, locator: RelFileLocator) -> &mut Self {
        let slot = (locator.rel & 3) as usize;
        if let Some(known) = self.locators.get(slot).filter(|k| k.locator == locator && k.len > 0) {
            let end = self.buf.len() + usize::from(known.len);
            self.buf.extend_from_slice(&known.text);
            self.buf.truncate(end);
            return self;
        }
        let start = self.buf.len();
        self.dec(locator.spc.0).str("/").dec(locator.db.0).str("/").dec(locator.rel);
        let mut text = [0; LOCATOR_LEN];
        let written = self.buf.get(start..).unwrap_or_default();
        text.iter_mut().zip(written).for_each(|(to, from)| *to = *from);
        if let Some(place) = self.locators.get_mut(slot) {
            *place = LocatorText { locator, text, len: written.len().min(LOCATOR_LEN) as u8 };
        }
        self
    }

    /// A time as `2026-11-30 08:32:10.843454 UTC`.
    pub fn timestamp(&mut self, time: Timestamp) -> &mut Self {
        let (seconds, micros) = (time.0.div_euclid(SECOND), time.0.rem_euclid(SECOND) as u32);
        let (days, second) = (seconds.div_euclid(DAY) + EPOCH_DAYS, seconds.rem_euclid(DAY) as u32);
        if !self.date.known || self.date.days != days {
            let (year, month, day) = civil_date(days);
            if !(0..10_000).contains(&year) {
                // A year that no clock shows: its last four digits follow below, and it is not kept.
                self.str(&(year / 10_000).to_string());
            }
            let last = (year.unsigned_abs() % 10_000) as u32;
            let ([y0, y1], [y2, y3], [m0, m1], [d0, d1]) = (pair(last / 100), pair(last), pair(month), pair(day));
            let text = [y0, y1, y2, y3, b'-', m0, m1, b'-', d0, d1];
            self.date = DateText { days, text, known: (0..10_000).contains(&year) };
        }
        let ([h0, h1], [m0, m1], [s0, s1]) = (pair(second / 3600), pair(second / 60 % 60), pair(second % 60));
        let ([u0, u1], [u2, u3], [u4, u5]) = (pair(micros / 10_000), pair(micros / 100), pair(micros));
        self.buf.extend_from_slice(&self.date.text);
        self.buf.extend_from_slice(&[
            b' ', h0, h1, b':', m0, m1, b':', s0, s1, b'.', u0, u1, u2, u3, u4, u5, b' ', b'U', b'T', b'C',
        ]);
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
            self.str("\\x").hex(u32::from(*byte), 2);
        }
        self
    }

    /// Bytes as `6E 6F`.
    pub fn hex_bytes(&mut self, bytes: &[u8]) -> &mut Self {
        for (i, byte) in bytes.iter().enumerate() {
            self.str(if i == 0 { "" } else { " " }).hex(u32::from(*byte), 2);
        }
        self
    }
}

/// Nothing in a terminal acts on it.
fn is_harmless(c: char) -> bool {
    let turns_direction = matches!(c, '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}');
    !c.is_control() && !turns_direction
}

/// The last two digits of a number.
#[inline]
fn pair(number: u32) -> [u8; 2] {
    PAIRS.as_chunks::<2>().0.get((number % 100) as usize).copied().unwrap_or_default()
}

/// A number below 10^8 in eight columns, blanks before it, the first one in the low byte, and how many digits it has.
#[inline]
fn blank_filled(number: u32) -> (u64, usize) {
    let (digits, len) = decimal(number);
    let blank = u64::MAX.checked_shr(8 * len as u32).unwrap_or(0);
    (digits & !blank | BLANKS & blank, len)
}

/// A number below 10^6 in six columns.
#[inline]
pub(crate) fn six_columns(number: u32) -> [u8; 6] {
    let [_, _, cell @ ..] = blank_filled(number).0.to_le_bytes();
    cell
}

/// A number in ten columns.
#[inline]
pub(crate) fn ten_columns(number: u32) -> [u8; 10] {
    let (high, low) = (number / EIGHT_DIGITS, number % EIGHT_DIGITS);
    let low = if high == 0 { blank_filled(low).0 } else { decimal(low).0 };
    let above = match high {
        0 => *b"  ",
        1..=9 => [b' ', b'0' + high as u8],
        _ => pair(high),
    };
    let mut cell = [0; 10];
    let (front, back) = cell.split_at_mut(2);
    front.copy_from_slice(&above);
    back.copy_from_slice(&low.to_le_bytes());
    cell
}

/// The last `N` hexadecimal digits of a number, at most eight.
#[inline]
pub(crate) fn zero_filled<const N: usize>(number: u32) -> [u8; N] {
    hexadecimal(number).to_le_bytes().last_chunk::<N>().copied().unwrap_or([b'0'; N])
}

/// Eight digits of a number below 10^8, the first one in the low byte, and how many of them count.
#[inline]
fn decimal(number: u32) -> (u64, usize) {
    debug_assert!(number < EIGHT_DIGITS);
    // Halves of four digits, then of two, then digits, all side by side; the factors stand for divisions by 100 and by 10.
    let fours = u64::from(number / 10_000) | u64::from(number % 10_000) << 32;
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007F_0000_007F;
    let twos = hundreds | (fours - 100 * hundreds) << 16;
    let tens = ((twos * 103) >> 10) & 0x000F_000F_000F_000F;
    let ones = tens | (twos - 10 * tens) << 8;
    let leading_zeroes = (ones.trailing_zeros() / 8).min(7);
    (ones | 0x3030_3030_3030_3030, 8 - leading_zeroes as usize)
}

/// Eight hexadecimal digits, the first one in the low byte.
#[inline]
fn hexadecimal(number: u32) -> u64 {
    // Spread the nibbles to bytes, the highest first, and move each to '0'..='9' or 'A'..='F'.
    let mut n = u64::from(number.swap_bytes());
    n = (n | n << 16) & 0x0000_FFFF_0000_FFFF;
    n = (n | n << 8) & 0x00FF_00FF_00FF_00FF;
    n = (n >> 4 | n << 8) & 0x0F0F_0F0F_0F0F_0F0F;
    let letters = ((n + 0x0606_0606_0606_0606) >> 4) & 0x0101_0101_0101_0101;
    n + 0x3030_3030_3030_3030 + letters * 7
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
        fn numbers_are_as_the_standard_library_writes_them(n: u32, m: u64, shift in 0u32..32, width in 0usize..16) {
            let n = n >> shift;
            prop_assert_eq!(text(|t| _ = t.dec(n)), n.to_string());
            prop_assert_eq!(text(|t| _ = t.dec_right(n, width)), format!("{n:width$}"));
            prop_assert_eq!(String::from_utf8(ten_columns(n).to_vec()), Ok(format!("{n:10}")));
            prop_assert_eq!(String::from_utf8(zero_filled::<8>(n).to_vec()), Ok(format!("{n:08X}")));
            let width = width.min(8);
            prop_assert_eq!(text(|t| _ = t.hex(n, width)), format!("{n:0width$X}"));
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
    fn files_written_before_are_written_again() {
        let mut rng = 1u32;
        let mut text = Text::new();
        for _ in 0..1000 {
            rng = rng.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let small = |shift: u32| rng >> shift & 3;
            let rel = if small(20) == 0 { u32::MAX - small(8) } else { small(8) };
            let locator = RelFileLocator { spc: pg_types::Oid(small(10).wrapping_neg()), db: pg_types::Oid(small(12)), rel };
            text.clear();
            text.locator(locator);
            assert_eq!(text.since(0), locator.to_string());
        }
    }

    #[test]
    fn names_from_outside_cannot_move_the_cursor() {
        let shown = text(|t| _ = t.untrusted("a\u{1b}[2J\n\u{9b}ü\u{202e}".as_bytes()));
        assert_eq!(shown, r"a\x1B[2J\x0A\xC2\x9Bü\xE2\x80\xAE");
        assert_eq!(text(|t| _ = t.untrusted(b"x\xff\xfey")), r"x\xFF\xFEy");
    }
}
