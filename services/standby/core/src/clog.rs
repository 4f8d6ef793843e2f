//! Which transactions are known to have ended since replay started (`access/transam/clog.c`, as far as recovery asks it).
//!
//! A running-transactions record may list transactions whose commit or abort was logged before it; the server asks the commit
//! log for them (`TransactionIdDidCommit`, `TransactionIdDidAbort`). Replay has no commit log from before its start, so this
//! keeps the ends that it saw itself, as ranges: the ids between that are still open make the only gaps, so memory follows the
//! number of open transactions, not of ended ones. Needed only until the first snapshot is complete.
//!
//! Difference from PostgreSQL: an id listed as running whose end was logged *before* the redo position counts as running until a
//! later running-transactions record passes it.

use std::collections::BTreeMap;

use pg_types::FullXid;

/// The ended transactions, as inclusive ranges `first → last` that neither touch nor overlap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompletedXids {
    ranges: BTreeMap<u64, u64>,
}

impl CompletedXids {
    /// Notes that `xid` has ended. O(log ranges).
    pub fn insert(&mut self, xid: FullXid) {
        let x = xid.0;
        if self.contains(xid) {
            return;
        }
        let mut first = x;
        let mut last = x;
        if let Some((&before, &end)) = self.ranges.range(..x).next_back()
            && end.checked_add(1) == Some(x)
        {
            first = before;
        }
        if let Some(&end) = x.checked_add(1).and_then(|next| self.ranges.get(&next)) {
            self.ranges.remove(&(x + 1));
            last = end;
        }
        self.ranges.insert(first, last);
    }

    /// True if the end of `xid` was seen.
    #[must_use]
    pub fn contains(&self, xid: FullXid) -> bool {
        self.ranges.range(..=xid.0).next_back().is_some_and(|(_, &last)| xid.0 <= last)
    }

    /// Forgets everything before `limit`: nobody will ask for it.
    pub fn forget_before(&mut self, limit: FullXid) {
        let mut kept = self.ranges.split_off(&limit.0);
        if let Some((_, &last)) = self.ranges.last_key_value()
            && last >= limit.0
        {
            kept.insert(limit.0, last);
        }
        self.ranges = kept;
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }

    /// Ranges held.
    #[must_use]
    pub fn range_count(&self) -> usize {
        self.ranges.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn answers_as_a_set_does(ops in prop::collection::vec((0u64..40, prop::bool::weighted(0.1)), 0..120)) {
            let (mut ours, mut model) = (CompletedXids::default(), BTreeSet::new());
            for (x, forget) in ops {
                if forget {
                    ours.forget_before(FullXid(x));
                    model = model.split_off(&x);
                } else {
                    ours.insert(FullXid(x));
                    model.insert(x);
                }
                for y in 0..41 {
                    prop_assert_eq!(ours.contains(FullXid(y)), model.contains(&y));
                }
                let gaps = model.iter().filter(|&&y| y == 0 || !model.contains(&(y - 1))).count();
                prop_assert_eq!(ours.range_count(), gaps);
            }
        }
    }

    #[test]
    fn the_last_number_does_not_overflow() {
        let mut ours = CompletedXids::default();
        ours.insert(FullXid(u64::MAX));
        ours.insert(FullXid(u64::MAX - 1));
        assert!(ours.contains(FullXid(u64::MAX)) && ours.range_count() == 1);
    }
}
