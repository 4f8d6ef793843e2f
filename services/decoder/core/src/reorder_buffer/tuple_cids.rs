//! Which commands of a transaction made and deleted the catalog rows that it wrote: `ReorderBufferAddNewTupleCids`,
//! `ReorderBufferBuildTupleCidHash` and `ResolveCminCmaxDuringDecoding` of `replication/logical/reorderbuffer.c`.
//!
//! A transaction that changes catalogs is decoded with them as they were in its middle, so that of each row that it wrote itself must be
//! known whether the command at hand sees it. Rows keep one command id for both ends, so WAL tells both (new-cid records). They are kept
//! with the top-level transaction, those of its subtransactions too, whatever becomes of these; when it is replayed, a hash by row is built
//! of them, for each block anew; and each own row that building a relation reads is looked up in it.
//!
//! Invariants: I1 one entry a row, however many commands changed it, with the command that made it and the last that deleted it; I2 what
//! is kept does not count for `work_mem`, as in all releases.
//!
//! | operation | cost |
//! |---|---|
//! | new-cid record | O(1) |
//! | hash of n records | O(n), in each block of a transaction in progress again |
//!
//! Differences from PostgreSQL: rows that say what is published are read and judged ([`crate::publications`]); of the others a row is counted as
//! looked up ([`pg_types::Work::tuple_cid_lookups`]) for each scan of pg_class or pg_attribute for a relation that the transaction's own messages
//! name, since WAL does not tell how many rows a scan reads. Mappings of rewritten catalogs (`UpdateLogicalMappings`) are not read: own rows
//! of a catalog that is rewritten in the same transaction are not found.

use std::cell::Cell;

use pg_types::{CommandId, RelFileLocator, Tid};
use rustc_hash::FxHashMap;

/// Bytes of an entry: element header and `ReorderBufferTupleCidEnt`, each aligned to 8.
const ENTRY_BYTES: u64 = 16 + 32;

/// Bytes of a bucket.
const BUCKET_BYTES: u64 = 8;

/// A catalog row: its file and place.
pub(crate) type TupleCidKey = (RelFileLocator, Tid);

/// A new-cid record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TupleCid {
    /// The row.
    pub(crate) row: TupleCidKey,
    /// The command that made it, if this transaction did.
    pub(crate) cmin: CommandId,
    /// The command that deleted it, if this transaction did.
    pub(crate) cmax: CommandId,
}

/// Command ids by row (`tuplecid_hash`).
#[derive(Debug, Default)]
pub(crate) struct TupleCidHash {
    /// `cmin` and `cmax`.
    entries: FxHashMap<TupleCidKey, (CommandId, CommandId)>,
    /// Rows that were found when a catalog was read.
    resolved: Cell<u64>,
}

impl TupleCidHash {
    /// One record: the first tells `cmin`, the last `cmax`, which never becomes invalid again.
    pub(crate) fn add(&mut self, row: TupleCidKey, cmin: CommandId, cmax: CommandId) {
        let known = self.entries.entry(row).or_insert((cmin, cmax));
        if cmax.is_valid() {
            known.1 = cmax;
        }
    }

    /// `ResolveCminCmaxDuringDecoding`: `cmin` and `cmax` of a row that the transaction wrote.
    pub(crate) fn resolve(&self, row: TupleCidKey) -> Option<(CommandId, CommandId)> {
        let found = self.entries.get(&row).copied();
        self.resolved.set(self.resolved.get() + u64::from(found.is_some()));
        found
    }

    /// Empties it for the next transaction.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Takes the count of rows found.
    pub(crate) fn take_resolved(&mut self) -> u64 {
        self.resolved.take()
    }
}

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
    /// Rows of the transaction's own that were found in one when what is published was read.
    pub resolved: u64,
}

impl TupleCidCounts {
    /// `ReorderBufferBuildTupleCidHash`: fills `hash`, which is empty, with these records and counts it (I1).
    pub(crate) fn build(&mut self, records: &[TupleCid], hash: &mut TupleCidHash) {
        if records.is_empty() {
            return;
        }
        records.iter().for_each(|record| hash.add(record.row, record.cmin, record.cmax));
        let (len, entries) = (records.len() as u64, hash.entries.len() as u64);
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
        let row = |rel, offset| TupleCid {
            row: (RelFileLocator { spc: Oid(1663), db: Oid(5), rel }, Tid { block: 0, offset }),
            cmin: CommandId(0),
            cmax: CommandId::INVALID,
        };
        let (mut counts, mut seen) = (TupleCidCounts::default(), TupleCidHash::default());
        counts.build(&[], &mut seen);
        assert_eq!(counts, TupleCidCounts::default(), "no hash for a transaction without them");
        counts.build(&[row(1259, 1), row(1259, 2), row(1249, 1), row(1259, 1), row(1259, 1)], &mut seen);
        assert_eq!((counts.records, counts.hashes, counts.entries, counts.hash_bytes), (5, 1, 3, 3 * 48 + 8 * 8));
        seen.clear();
        counts.build(&[row(1259, 1)], &mut seen);
        assert_eq!((counts.hashes, counts.entries, counts.hash_bytes), (2, 4, 3 * 48 + 8 * 8 + 48 + 8));
    }

    #[test]
    fn i1_a_row_has_its_first_command_and_the_last_that_deleted_it() {
        let row = |offset| (RelFileLocator { spc: Oid(1663), db: Oid(5), rel: 1259 }, Tid { block: 0, offset });
        let mut hash = TupleCidHash::default();
        // Made by command 3, deleted by 5 in a subtransaction that was rolled back, and by 7; and one that was there before.
        for (offset, cmin, cmax) in [(1, Some(3), None), (1, Some(3), Some(5)), (1, Some(3), Some(7)), (2, None, Some(4))] {
            let cid = |n: Option<u32>| n.map_or(CommandId::INVALID, CommandId);
            hash.add(row(offset), cid(cmin), cid(cmax));
        }
        assert_eq!(hash.resolve(row(1)), Some((CommandId(3), CommandId(7))));
        assert_eq!(hash.resolve(row(2)), Some((CommandId::INVALID, CommandId(4))));
        assert_eq!((hash.resolve(row(3)), hash.take_resolved()), (None, 2));
        hash.clear();
        assert_eq!((hash.resolve(row(1)), hash.take_resolved()), (None, 0));
    }
}
