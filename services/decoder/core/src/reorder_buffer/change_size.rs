//! What a change counts for against `logical_decoding_work_mem`: `ReorderBufferChangeSize` of `reorderbuffer.c`.
//!
//! PostgreSQL keeps a struct per change and beside it what the change brings: rows as tuples, messages, oids, a snapshot. walstorm
//! keeps no rows, but counts as if it did, so that the same log makes it write out at the same places. All numbers are those of
//! 64-bit builds and the same in 13–18; the snapshot's differ and stand in the profile.
//!
//! | change | bytes |
//! |---|---|
//! | any | 80 |
//! | + each old or new row | 24 + 23 + its data |
//! | + n invalidation messages | 16·n |
//! | + a logical message | prefix + 1 + content + 16 |
//! | + TRUNCATE of n relations | 4·n |
//! | + a snapshot of n xids | 104 + 4·n, or 120 + 4·n |
//!
//! Differences from PostgreSQL: of several rows in one record only the sum is known; where their lengths differ, the padding
//! between them is taken as half a byte each.

use pg_types::record::{HeapInsert, HeapMultiInsert, HeapUpdate, LogicalMessageRecord};

/// `sizeof(ReorderBufferChange)`.
pub(crate) const CHANGE: u64 = 80;

/// The length before each change in a spill file (`ReorderBufferDiskChange`).
const DISK_LENGTH: u64 = 8;

/// `sizeof(HeapTupleData)`.
const TUPLE: u64 = 24;

/// `SizeofHeapTupleHeader`.
const TUPLE_HEADER: u64 = 23;

/// `SizeOfHeapHeader`: what a record keeps of it.
const RECORD_HEADER: u64 = 5;

/// `SizeOfMultiInsertTuple`.
const MULTI_INSERT_HEADER: u64 = 7;

/// `sizeof(SharedInvalidationMessage)`.
const MESSAGE: u64 = 16;

/// One tuple that takes `len` bytes in its record; nothing if the record has none.
fn tuple(len: u32) -> u64 {
    if len == 0 { 0 } else { TUPLE + TUPLE_HEADER + u64::from(len).saturating_sub(RECORD_HEADER) }
}

/// An insert.
pub(crate) fn insert(insert: &HeapInsert) -> u64 {
    CHANGE + tuple(insert.tuple_len)
}

/// An update.
pub(crate) fn update(update: &HeapUpdate) -> u64 {
    let new = if update.logical { tuple(update.tuple_len) } else { 0 };
    CHANGE + new + tuple(update.old_len)
}

/// A delete that keeps `old_len` bytes.
pub(crate) fn delete(old_len: u32) -> u64 {
    CHANGE + tuple(old_len)
}

/// All rows of a multi-insert. Each starts at an even offset, so one of even length is followed by a byte of padding.
pub(crate) fn multi_insert(insert: &HeapMultiInsert) -> u64 {
    let rows = u64::from(insert.ntuples);
    let data = u64::from(insert.tuples_len).saturating_sub(rows * MULTI_INSERT_HEADER);
    let gaps = rows.saturating_sub(1);
    let equal = |padding: u64, odd: u64| {
        data >= padding && rows > 0 && (data - padding).is_multiple_of(rows) && (data - padding) / rows % 2 == odd
    };
    let padding = if equal(0, 1) {
        0
    } else if equal(gaps, 0) {
        gaps
    } else {
        gaps / 2
    };
    rows * (CHANGE + TUPLE + TUPLE_HEADER) + data.saturating_sub(padding)
}

/// Invalidation messages.
pub(crate) fn invalidations(messages: u64) -> u64 {
    CHANGE + MESSAGE.saturating_mul(messages)
}

/// A logical message.
pub(crate) fn message(message: &LogicalMessageRecord) -> u64 {
    CHANGE + message.prefix.len() as u64 + 1 + message.message.len() as u64 + 16
}

/// A TRUNCATE.
pub(crate) fn truncate(relations: usize) -> u64 {
    CHANGE + 4 * relations as u64
}

/// A snapshot that takes `disk_bytes` in a spill file.
pub(crate) fn snapshot(disk_bytes: u64) -> u64 {
    disk_bytes - DISK_LENGTH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_one_record_are_exact_if_equally_long() {
        // As `COPY` writes (integer, text of 10): data of 16 bytes, headers of 7, padding between.
        for (rows, data) in [(1u64, 16u64), (1, 15), (7, 16), (7, 17), (200, 40), (3, 1)] {
            let padding = if data % 2 == 0 { rows - 1 } else { 0 };
            let tuples_len = (rows * (7 + data) + padding) as u32;
            let record = HeapMultiInsert { ntuples: rows as u16, tuples_len, ..HeapMultiInsert::default() };
            assert_eq!(multi_insert(&record), rows * (80 + 24 + 23 + data), "{rows} rows of {data}");
        }
        assert_eq!(multi_insert(&HeapMultiInsert::default()), 0);
    }

    #[test]
    fn one_row_is_struct_tuple_header_and_data() {
        let record = HeapInsert { tuple_len: 5 + 31, ..HeapInsert::default() };
        assert_eq!(insert(&record), 80 + 24 + 23 + 31);
        let record = HeapUpdate { logical: true, tuple_len: 5 + 9, old_len: 5 + 5, ..HeapUpdate::default() };
        assert_eq!(update(&record), 80 + (24 + 23 + 9) + (24 + 23 + 5));
        assert_eq!(update(&HeapUpdate { logical: false, old_len: 0, ..record }), 80, "a catalog's row is not decoded");
        assert_eq!((delete(0), delete(10)), (80, 132));
    }
}
