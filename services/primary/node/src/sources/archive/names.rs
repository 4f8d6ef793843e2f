//! What an object of an archive is, by its name: archivers keep PostgreSQL's names and add to them.
//!
//! Seen in the wild: `00000001000000000000000A`, with `.gz`, `.zst` or `.lz4` behind it (wal-g, barman-cloud), with
//! `-` and a SHA-1 before that (pgBackRest), `.partial` of a timeline that was left, `00000002.history`, and
//! `00000001000000000000000A.00000028.backup`, which tells of a base backup and holds no WAL.

use pg_wal::SegmentName;

/// Suffixes of compressed objects. What the bytes really are is seen when they come (see `download`).
const COMPRESSION_SUFFIXES: [&str; 11] =
    [".gz", ".zst", ".lz4", ".bz2", ".xz", ".br", ".lzma", ".lzo", ".snappy", ".Z", ".deflate"];

/// What an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A segment of WAL.
    Segment {
        /// Its name.
        name: SegmentName,
        /// The last one of a timeline that was left: perhaps not full.
        partial: bool,
    },
    /// The history of a timeline.
    History(u32),
    /// Nothing that is needed: a backup's label, or not of PostgreSQL at all.
    Other,
}

/// What the object with this file name is.
pub(super) fn kind_of(file_name: &str) -> Kind {
    let name = COMPRESSION_SUFFIXES.iter().find_map(|suffix| file_name.strip_suffix(suffix)).unwrap_or(file_name);
    let name = without_checksum(name);
    if let Some((name, partial)) = SegmentName::parse(name) {
        return Kind::Segment { name, partial };
    }
    let history = name.strip_suffix(".history").filter(|digits| digits.len() == 8);
    let digit = |b: u8| b.is_ascii_digit() || (b'A'..=b'F').contains(&b);
    match history.filter(|digits| digits.bytes().all(digit)).and_then(|digits| u32::from_str_radix(digits, 16).ok()) {
        Some(timeline) if timeline > 0 => Kind::History(timeline),
        _ => Kind::Other,
    }
}

/// The name without the checksum that pgBackRest adds.
fn without_checksum(name: &str) -> &str {
    match name.rsplit_once('-') {
        Some((before, sum)) if sum.len() == 40 && sum.bytes().all(|b| b.is_ascii_hexdigit()) => before,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archivers_names_are_known() {
        let name = SegmentName { timeline: 1, log: 0, seg: 10 };
        let sum = "da39a3ee5e6b4b0d3255bfef95601890afd80709";
        for whole in [
            name.to_string(),
            format!("{name}.gz"),
            format!("{name}.zst"),
            format!("{name}.lz4"),
            format!("{name}-{sum}"),
            format!("{name}-{sum}.zst"),
        ] {
            assert_eq!(kind_of(&whole), Kind::Segment { name, partial: false }, "{whole}");
        }
        for partial in [format!("{name}.partial"), format!("{name}.partial.gz"), format!("{name}.partial-{sum}.gz")] {
            assert_eq!(kind_of(&partial), Kind::Segment { name, partial: true }, "{partial}");
        }
        assert_eq!(kind_of("0000000A.history"), Kind::History(10));
        assert_eq!(kind_of("00000002.history.gz"), Kind::History(2));
    }

    #[test]
    fn everything_else_is_passed_over() {
        for other in [
            "",
            "00000001000000000000000A.00000028.backup",
            "00000001000000000000000A.00000028.backup.gz",
            "00000001000000000000000A.tmp",
            "00000001000000000000000A-short.zst",
            "00000000.history",
            "0000000a.history",
            "backup.info",
            "archive.info.copy",
        ] {
            assert_eq!(kind_of(other), Kind::Other, "{other}");
        }
    }
}
