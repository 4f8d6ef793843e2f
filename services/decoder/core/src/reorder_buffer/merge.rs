//! The changes of a transaction and its subtransactions in one LSN order (`ReorderBufferIterTXNNext`): a k-way merge by a heap.
//!
//! Invariant: I1 LSNs never go down; changes with one LSN come in the order of the streams, the top-level transaction first.
//! Cost: O(1) per change for a transaction without subtransactions, O(log streams) otherwise.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use pg_types::Lsn;

use crate::reorder_buffer::change::Change;
use crate::reorder_buffer::txn::Txn;

/// The merge over a tree of transactions, whose first is the top-level one.
#[derive(Debug)]
pub(crate) struct MergedChanges<'a> {
    /// The transactions.
    tree: &'a [Txn],
    /// The stream that is read now, and the position in it.
    current: (usize, usize),
    /// Up to here the current stream is ahead of all others.
    until: Lsn,
    /// Next change of each other stream that has one: (LSN, stream, position).
    heap: BinaryHeap<Reverse<(Lsn, usize, usize)>>,
}

impl<'a> MergedChanges<'a> {
    /// Starts at the first change.
    pub(crate) fn new(tree: &'a [Txn]) -> Self {
        let heads = tree.iter().enumerate().filter_map(|(i, txn)| Some(Reverse((txn.changes.first()?.lsn, i, 0))));
        let mut merged = Self { tree, current: (0, 0), until: Lsn::INVALID, heap: heads.collect() };
        merged.switch();
        merged
    }

    /// Turns to the stream with the lowest next LSN.
    fn switch(&mut self) {
        if let Some(Reverse((_, stream, position))) = self.heap.pop() {
            self.current = (stream, position);
        }
        self.until = self.heap.peek().map_or(Lsn(u64::MAX), |Reverse((lsn, ..))| *lsn);
    }
}

impl<'a> Iterator for MergedChanges<'a> {
    type Item = (&'a Txn, &'a Change);

    fn next(&mut self) -> Option<Self::Item> {
        let (stream, position) = self.current;
        let txn = self.tree.get(stream)?;
        let change = txn.changes.get(position)?;
        self.current.1 += 1;
        match txn.changes.get(position + 1) {
            Some(next) if next.lsn < self.until => {}
            Some(next) => {
                self.heap.push(Reverse((next.lsn, stream, position + 1)));
                self.switch();
            }
            None => self.switch(),
        }
        Some((txn, change))
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
                lsns.into_iter().for_each(|lsn| txn.push(Lsn(lsn), ChangeKind::CommandId(tree.len() as u32)));
                tree.push(txn);
            }
            let mut expected: Vec<Change> = tree.iter().flat_map(|t| t.changes.iter().copied()).collect();
            expected.sort_by_key(|c| c.lsn);
            let got: Vec<Change> = MergedChanges::new(&tree).map(|(_, c)| *c).collect();
            prop_assert_eq!(got, expected);
        }
    }
}
