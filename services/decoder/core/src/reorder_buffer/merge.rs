//! The changes of a transaction and its subtransactions in one LSN order (`ReorderBufferIterTXNNext`): a k-way merge by a heap.
//!
//! Invariant: I1 LSNs never go down; changes with one LSN come in the order of the streams, the top-level transaction first.
//! Cost: O(1) per change for a transaction without subtransactions, O(log streams) otherwise.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use pg_types::{Lsn, Work};

use crate::reorder_buffer::change::Change;
use crate::reorder_buffer::memory::Memory;
use crate::reorder_buffer::txn::Txn;
use crate::spill::SpillError;

/// The merge over a tree of transactions, whose first is the top-level one.
#[derive(Debug)]
pub(crate) struct MergedChanges {
    /// The stream that is read now, and the position in it of what was given last.
    current: Option<(usize, usize)>,
    /// Up to here the current stream is ahead of all others.
    until: Lsn,
    /// Next change of each other stream that has one: (LSN, stream, position).
    heap: BinaryHeap<Reverse<(Lsn, usize, usize)>>,
}

impl MergedChanges {
    /// Starts before the first change; `tree` is the same at each call.
    pub(crate) fn new(tree: &[Txn]) -> Self {
        let heads = tree.iter().enumerate().filter_map(|(i, txn)| Some(Reverse((txn.changes.first()?.lsn, i, 0))));
        Self { current: None, until: Lsn::INVALID, heap: heads.collect() }
    }

    /// The next change and the place of its transaction in `tree`. Its lists are in memory until the next call.
    ///
    /// # Errors
    /// The transaction's next part could not be read back.
    pub(crate) fn next(
        &mut self,
        tree: &mut [Txn],
        memory: &mut Memory,
        work: &mut Work,
    ) -> Result<Option<(usize, Change)>, SpillError> {
        if let Some((stream, position)) = self.current {
            let txn = &mut tree[stream];
            let mut position = position + 1;
            if position >= txn.changes.len() && txn.serialized && memory.restore(txn, work)? {
                position = 0;
            }
            match txn.changes.get(position) {
                Some(next) if next.lsn < self.until => {
                    self.current = Some((stream, position));
                    return Ok(Some((stream, *next)));
                }
                Some(next) => self.heap.push(Reverse((next.lsn, stream, position))),
                None => {}
            }
        }
        // Turns to the stream with the lowest next LSN.
        self.current = self.heap.pop().map(|Reverse((_, stream, position))| (stream, position));
        self.until = self.heap.peek().map_or(Lsn(u64::MAX), |Reverse((lsn, ..))| *lsn);
        Ok(self.current.and_then(|(stream, position)| Some((stream, *tree[stream].changes.get(position)?))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reorder_buffer::change::ChangeKind;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn i1_equals_a_stable_sort(streams in prop::collection::vec(prop::collection::vec(1..60u64, 0..20), 1..6)) {
            let mut tree: Vec<Txn> = Vec::new();
            for stream in &streams {
                let mut txn = Txn::default();
                let mut lsns = stream.clone();
                lsns.sort_unstable();
                lsns.into_iter().for_each(|lsn| txn.push(Lsn(lsn), ChangeKind::CommandId(tree.len() as u32), 80));
                tree.push(txn);
            }
            let mut expected: Vec<Change> = tree.iter().flat_map(|t| t.changes.iter().copied()).collect();
            expected.sort_by_key(|c| c.lsn);
            let (mut merged, mut memory, mut work) = (MergedChanges::new(&tree), Memory::default(), Work::default());
            let mut got = Vec::new();
            while let Some((stream, change)) = merged.next(&mut tree, &mut memory, &mut work).unwrap() {
                prop_assert_eq!(change.kind, ChangeKind::CommandId(stream as u32));
                got.push(change);
            }
            prop_assert_eq!(got, expected);
        }
    }
}
