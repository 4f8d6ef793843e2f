//! WAL page headers and arithmetic over pages and segments (`access/xlog_internal.h`).
//!
//! A page of 8192 bytes starts with a header of 24 bytes, the first page of a segment with one of 40. Records are aligned to 8
//! bytes and run over page and segment ends; a page on which a record continues says how many of its bytes are still to come.

use pg_types::Lsn;

use crate::cursor::Cursor;
use crate::error::Malformed;

/// `XLOG_BLCKSZ`, the default and the only one that walstorm reads.
pub const PAGE_SIZE: u32 = 8192;
/// Bytes of a page header (`SizeOfXLogShortPHD`).
pub const SHORT_HEADER_LEN: u32 = 24;
/// Bytes of the header of a segment's first page (`SizeOfXLogLongPHD`).
pub const LONG_HEADER_LEN: u32 = 40;

/// The page starts with the rest of a record (`XLP_FIRST_IS_CONTRECORD`).
pub const FIRST_IS_CONTRECORD: u16 = 0x0001;
/// The header is a long one (`XLP_LONG_HEADER`).
pub const LONG_HEADER: u16 = 0x0002;
/// Backup blocks starting here are optional (`XLP_BKP_REMOVABLE`).
pub const BKP_REMOVABLE: u16 = 0x0004;
/// The record that should have continued here was lost in a crash; WAL goes on with this page's first record
/// (`XLP_FIRST_IS_OVERWRITE_CONTRECORD`; 14 and later, and late minors of 13).
pub const FIRST_IS_OVERWRITE_CONTRECORD: u16 = 0x0008;
/// All flags that exist (`XLP_ALL_FLAGS`).
pub const ALL_FLAGS: u16 = 0x000F;

/// `WalSegMinSize`.
pub const MIN_SEGMENT_SIZE: u32 = 1 << 20;
/// `WalSegMaxSize`.
pub const MAX_SEGMENT_SIZE: u32 = 1 << 30;

/// `IsValidWalSegSize`: a power of two from 1 MB to 1 GB.
#[must_use]
pub fn is_valid_segment_size(size: u32) -> bool {
    size.is_power_of_two() && (MIN_SEGMENT_SIZE..=MAX_SEGMENT_SIZE).contains(&size)
}

/// `XLogPageHeaderData`, with what a long one adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageHeader {
    /// Names the version.
    pub magic: u16,
    /// Flags.
    pub info: u16,
    /// Timeline of the page's first record.
    pub timeline: u32,
    /// The page's position.
    pub address: Lsn,
    /// Bytes of the continued record that are on this page and later ones.
    pub rem_len: u32,
    /// What only the first page of a segment says.
    pub long: Option<LongPageHeader>,
}

/// The part of `XLogLongPageHeaderData` that follows the short header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongPageHeader {
    /// The cluster.
    pub system_id: u64,
    /// Bytes of a segment.
    pub segment_size: u32,
    /// Bytes of a page.
    pub page_size: u32,
}

impl PageHeader {
    /// Reads a header.
    ///
    /// # Errors
    /// [`Malformed::Short`] if `page` ends inside it.
    #[inline]
    pub fn read(page: &[u8]) -> Result<Self, Malformed> {
        let mut c = Cursor::new(page);
        let (magic, info, timeline) = (c.u16()?, c.u16()?, c.u32()?);
        let (address, rem_len) = (Lsn(c.u64()?), c.u32()?);
        c.take(4)?;
        let long = if info & LONG_HEADER == 0 {
            None
        } else {
            Some(LongPageHeader { system_id: c.u64()?, segment_size: c.u32()?, page_size: c.u32()? })
        };
        Ok(Self { magic, info, timeline, address, rem_len, long })
    }

    /// Bytes of this header.
    #[must_use]
    pub fn len(&self) -> u32 {
        if self.long.is_some() { LONG_HEADER_LEN } else { SHORT_HEADER_LEN }
    }

    /// A header is never empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }
}

/// The page that holds a position.
#[must_use]
pub fn page_start(lsn: Lsn) -> Lsn {
    Lsn(lsn.0 & !u64::from(PAGE_SIZE - 1))
}

/// Bytes of the header of the page that starts at `page`.
#[must_use]
pub fn header_len(page: Lsn, segment_size: u32) -> u32 {
    if page.0 & (u64::from(segment_size) - 1) == 0 { LONG_HEADER_LEN } else { SHORT_HEADER_LEN }
}

/// Where a record starts that is written at `end`, the end of the one before: behind the header if a page starts there.
#[must_use]
pub fn next_record_start(end: Lsn, segment_size: u32) -> Lsn {
    if end == page_start(end) { Lsn(end.0.saturating_add(u64::from(header_len(end, segment_size)))) } else { end }
}

/// Where a record of `total_len` bytes at `lsn` ends (`EndRecPtr`): aligned, page headers counted in; on a page boundary if it
/// ends with its page. A switch record ends with its segment instead: see [`segment_end`]. Saturates at the end of all WAL.
#[must_use]
pub fn record_end(lsn: Lsn, total_len: u32, segment_size: u32) -> Lsn {
    let page_size = u64::from(PAGE_SIZE);
    let mut left = u64::from(total_len).next_multiple_of(8);
    let mut at = lsn.0;
    loop {
        let room = page_size - at % page_size;
        if left <= room {
            return Lsn(at.saturating_add(left));
        }
        left -= room;
        let Some(page) = at.checked_add(room) else { return Lsn(!7) };
        at = next_record_start(Lsn(page), segment_size).0;
    }
}

/// The end of the segment that holds the byte before `lsn`: where a switch record that ends at `lsn` sends the reader.
#[must_use]
pub fn segment_end(lsn: Lsn, segment_size: u32) -> Lsn {
    let mask = u64::from(segment_size) - 1;
    Lsn(lsn.0.checked_add(mask).map_or(!mask, |l| l & !mask))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEG: u32 = 1 << 20;

    #[test]
    fn records_run_over_headers() {
        // Fits; ends with the page; one byte more goes behind the next header; over a segment end the header is long.
        assert_eq!(record_end(Lsn(0x10_0028), 30, SEG), Lsn(0x10_0028 + 32));
        assert_eq!(record_end(Lsn(0x10_1FE0), 32, SEG), Lsn(0x10_2000));
        assert_eq!(record_end(Lsn(0x10_1FE0), 33, SEG), Lsn(0x10_2000 + 24 + 8));
        assert_eq!(record_end(Lsn(0x1F_FFE0), 33, SEG), Lsn(0x20_0000 + 40 + 8));
        assert_eq!(next_record_start(Lsn(0x20_0000), SEG), Lsn(0x20_0028));
        assert_eq!(next_record_start(Lsn(0x20_2000), SEG), Lsn(0x20_2018));
        assert_eq!(next_record_start(Lsn(0x20_2020), SEG), Lsn(0x20_2020));
    }

    #[test]
    fn long_records_count_every_header() {
        // 3 whole segments' worth of data: 128 headers a segment, one of them long.
        let payload = u64::from(SEG) - 127 * 24 - 40;
        assert_eq!(record_end(Lsn(0x10_0028), (3 * payload) as u32, SEG), Lsn(0x40_0000));
        assert_eq!(record_end(Lsn(!7), 100, SEG), Lsn(!7));
    }

    #[test]
    fn switch_goes_to_the_segment_end() {
        assert_eq!(segment_end(Lsn(0x10_0040), SEG), Lsn(0x20_0000));
        assert_eq!(segment_end(Lsn(0x20_0000), SEG), Lsn(0x20_0000));
    }

    #[test]
    fn segment_sizes() {
        for (size, valid) in [(1 << 20, true), (1 << 24, true), (1 << 30, true), (1 << 19, false), (3 << 20, false), (0, false)]
        {
            assert_eq!(is_valid_segment_size(size), valid, "{size}");
        }
    }
}
