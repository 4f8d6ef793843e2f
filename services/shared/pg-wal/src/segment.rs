//! Names of segment files (`XLogFileName` in `access/xlog_internal.h`).

use std::fmt;

use pg_types::Lsn;

/// A segment's name: timeline and number. `000000010000000000000008`, perhaps with `.partial` behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    /// Timeline, the first eight digits.
    pub timeline: u32,
    /// The next eight digits: the high half of its positions.
    pub log: u32,
    /// The last eight digits: which one in those 4 GB.
    pub seg: u32,
}

impl SegmentName {
    /// The segment that holds `lsn`.
    #[must_use]
    pub fn of(timeline: u32, lsn: Lsn, segment_size: u32) -> Self {
        let number = lsn.0 / u64::from(segment_size);
        let per_log = (1u64 << 32) / u64::from(segment_size);
        Self { timeline, log: (number / per_log) as u32, seg: (number % per_log) as u32 }
    }

    /// Reads a file name; the second value says that it ends in `.partial`.
    #[must_use]
    pub fn parse(name: &str) -> Option<(Self, bool)> {
        let (digits, partial) = match name.strip_suffix(".partial") {
            Some(digits) => (digits, true),
            None => (name, false),
        };
        let is_digit = |b: u8| b.is_ascii_digit() || (b'A'..=b'F').contains(&b);
        if digits.len() != 24 || !digits.bytes().all(is_digit) {
            return None;
        }
        let part = |from: usize| digits.get(from..from + 8).and_then(|d| u32::from_str_radix(d, 16).ok());
        Some((Self { timeline: part(0)?, log: part(8)?, seg: part(16)? }, partial))
    }

    /// Its first position, or nothing if segments of this size have no such name.
    #[must_use]
    pub fn start(&self, segment_size: u32) -> Option<Lsn> {
        let offset = u64::from(self.seg).checked_mul(u64::from(segment_size))?;
        (offset < 1 << 32).then_some(Lsn(u64::from(self.log) << 32 | offset))
    }
}

impl fmt::Display for SegmentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08X}{:08X}{:08X}", self.timeline, self.log, self.seg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let name = SegmentName::of(1, Lsn(0x16_B374_D848), 1 << 24);
        assert_eq!(name.to_string(), "0000000100000016000000B3");
        assert_eq!(SegmentName::parse("0000000100000016000000B3"), Some((name, false)));
        assert_eq!(SegmentName::parse("0000000100000016000000B3.partial"), Some((name, true)));
        assert_eq!(name.start(1 << 24), Some(Lsn(0x16_B300_0000)));
        for bad in
            ["", "0000000100000016000000b3", "00000001.history", "0000000100000016000000B3.backup", "+000000100000016000000B3"]
        {
            assert_eq!(SegmentName::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_name_can_be_impossible_for_a_size() {
        let name = SegmentName { timeline: 1, log: 0, seg: 0x100 };
        assert_eq!(name.start(1 << 24), None);
        assert_eq!(name.start(1 << 20), Some(Lsn(0x1000_0000)));
    }
}
