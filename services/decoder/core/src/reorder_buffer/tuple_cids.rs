//! Which commands of a transaction made and deleted the catalog rows that it wrote: `ReorderBufferAddNewTupleCids`,
//! `ReorderBufferBuildTupleCidHash` and `ResolveCminCmaxDuringDecoding` of `replication/logical/reorderbuffer.c`.
//!
//! A transaction that changes catalogs is decoded with them as they were in its middle, so that of each row that it wrote itself must be
//! known whether the command at hand sees it. Rows keep one command id for both ends, so WAL tells both (new-cid records). They are kept
//! with the top-level transaction, those of its subtransactions too, whatever becomes of these; when it is replayed, a hash by row is built
//! of them, for each block anew; and each own row that building a relation reads is looked up in it.
//!
//! Invariants: I1 one entry a row, however many commands changed it; I2 what is kept does not count for `work_mem`, as in all releases.
//!
//! | operation | cost |
//! |---|---|
//! | new-cid record | O(1) |
//! | hash of n records | O(n), in each block of a transaction in progress again |
//!
//! Differences from PostgreSQL: no row is judged, as none is read, so command ids themselves are not kept; a row is counted as looked up
//! ([`pg_types::Work::tuple_cid_lookups`]) for each scan of pg_class or pg_attribute for a relation that the transaction's own messages name,
//! since WAL does not tell how many rows a scan reads. Mappings of rewritten catalogs (`UpdateLogicalMappings`) are not read.

use pg_types::{RelFileLocator, Tid};
use rustc_hash::FxHashSet;

/// Bytes of an entry: element header and `ReorderBufferTupleCidEnt`, each aligned to 8.
const ENTRY_BYTES: u64 = 16 + 32;

/// Bytes of a bucket.
const BUCKET_BYTES: u64 = 8;

/// A catalog row: its file and place.
pub(crate) type TupleCidKey = (RelFileLocator, Tid);

/// What was done for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TupleCidCounts {
    /// New-cid records that hashes were built of.
    pub records: u64,
    /// Hashes built.
    pub hashes: u64,
    /// Their entries.
    pub entries: u64,
    /// Bytes that PostgreSQL allocates for them.
    pub hash_bytes: u64,
}

impl TupleCidCounts {
    /// `ReorderBufferBuildTupleCidHash`: counts the hash of these records (I1). `seen` is emptied and used again.
    pub(crate) fn build(&mut self, records: &[TupleCidKey], seen: &mut FxHashSet<TupleCidKey>) {
        if records.is_empty() {
            return;
        }
        seen.clear();
        seen.extend(records.iter().copied());
        let (len, entries) = (records.len() as u64, seen.len() as u64);
        self.records += len;
        self.hashes += 1;
        self.entries += entries;
        self.hash_bytes += entries * ENTRY_BYTES + len.next_power_of_two() * BUCKET_BYTES;
    }
}

#[cfg(test)]
mod tests {
    use pg_types::Oid;

    use super::*;

    #[test]
    fn i1_a_row_that_several_commands_change_is_one_entry() {
        let row = |rel, offset| (RelFileLocator { spc: Oid(1663), db: Oid(5), rel }, Tid { block: 0, offset });
        let (mut counts, mut seen) = (TupleCidCounts::default(), FxHashSet::default());
        counts.build(&[], &mut seen);
        assert_eq!(counts, TupleCidCounts::default(), "no hash for a transaction without them");
        counts.build(&[row(1259, 1), row(1259, 2), row(1249, 1), row(1259, 1), row(1259, 1)], &mut seen);
        assert_eq!((counts.records, counts.hashes, counts.entries, counts.hash_bytes), (5, 1, 3, 3 * 48 + 8 * 8));
        counts.build(&[row(1259, 1)], &mut seen);
        assert_eq!((counts.hashes, counts.entries, counts.hash_bytes), (2, 4, 3 * 48 + 8 * 8 + 48 + 8));
    }
}
