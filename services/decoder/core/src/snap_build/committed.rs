//! The catalog-changing transactions that committed (`committed.xip`), and what a snapshot takes of them.
//!
//! PostgreSQL appends each to an array, and copies and sorts all of it for each snapshot: with a transaction that holds `xmin` back, the
//! n-th schema change costs n. Kept sorted they lie in chunks that snapshots share: a snapshot takes a pointer for each chunk, and the
//! next xid copies the one chunk that it goes into.
//!
//! Invariants: C1 kept sorted, the chunks one after the other are in plain numeric order, and none is empty or longer than
//! [`CHUNK_XIDS`]; C2 what a snapshot shares never changes.

use std::sync::Arc;

use pg_types::Xid;

use super::SnapBuildCounts;
use crate::profile::CommittedOrder;

/// Xids of a chunk at most: 1 kB to copy for a commit, and 200 pointers for a snapshot of 50,000.
const CHUNK_XIDS: usize = 256;

/// Xids that several own.
type Chunk = Arc<Vec<Xid>>;

/// The xids.
#[derive(Debug)]
pub(super) enum Committed {
    /// In the order of commits.
    InOrderOfCommits(Vec<Xid>),
    /// In plain numeric order.
    KeptSorted(Vec<Chunk>),
}

/// What a snapshot has of them, in plain numeric order.
#[derive(Clone, Debug)]
pub(super) enum CommittedXids {
    /// A sorted copy.
    Copied(Vec<Xid>),
    /// Chunks that it shares.
    Shared(Vec<Chunk>),
}

impl CommittedXids {
    /// All of them.
    pub(super) fn to_vec(&self) -> Vec<Xid> {
        match self {
            Self::Copied(xids) => xids.clone(),
            Self::Shared(chunks) => chunks.iter().flat_map(|chunk| chunk.iter().copied()).collect(),
        }
    }
}

impl Committed {
    /// None yet.
    pub(super) fn new(order: CommittedOrder) -> Self {
        match order {
            CommittedOrder::SortedEachTime => Self::InOrderOfCommits(Vec::new()),
            CommittedOrder::KeptSorted => Self::KeptSorted(Vec::new()),
        }
    }

    /// These, in any order.
    pub(super) fn of(order: CommittedOrder, mut xids: Vec<Xid>) -> Self {
        match order {
            CommittedOrder::SortedEachTime => Self::InOrderOfCommits(xids),
            CommittedOrder::KeptSorted => {
                xids.sort_unstable_by_key(|xid| xid.numeric());
                Self::KeptSorted(xids.chunks(CHUNK_XIDS).map(|chunk| Arc::new(chunk.to_vec())).collect())
            }
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::InOrderOfCommits(xids) => xids.len(),
            Self::KeptSorted(chunks) => chunks.iter().map(|chunk| chunk.len()).sum(),
        }
    }

    /// All of them, as they are kept.
    pub(super) fn to_vec(&self) -> Vec<Xid> {
        match self {
            Self::InOrderOfCommits(xids) => xids.clone(),
            Self::KeptSorted(chunks) => CommittedXids::Shared(chunks.clone()).to_vec(),
        }
    }

    /// `SnapBuildAddCommittedTxn`: at the end, or in its place.
    pub(super) fn add(&mut self, xid: Xid, counts: &mut SnapBuildCounts) {
        let chunks = match self {
            Self::InOrderOfCommits(xids) => return xids.push(xid),
            Self::KeptSorted(chunks) => chunks,
        };
        let mut before = |other: &Xid| {
            counts.compared += 1;
            other.numeric() <= xid.numeric()
        };
        let after = chunks.partition_point(|chunk| chunk.last().is_some_and(&mut before));
        // Behind all, it goes into the last chunk, if there is room.
        let at =
            if after == chunks.len() && chunks.last().is_some_and(|last| last.len() < CHUNK_XIDS) { after - 1 } else { after };
        if at == chunks.len() {
            return chunks.push(Arc::new(vec![xid]));
        }
        if chunks[at].len() == CHUNK_XIDS {
            let newer = chunks[at][CHUNK_XIDS / 2..].to_vec();
            Arc::make_mut(&mut chunks[at]).truncate(CHUNK_XIDS / 2);
            chunks.insert(at + 1, Arc::new(newer));
            return self.add(xid, counts);
        }
        let place = if at == after { chunks[at].partition_point(before) } else { chunks[at].len() };
        let chunk = Arc::make_mut(&mut chunks[at]);
        counts.moved += (chunk.len() - place) as u64;
        chunk.insert(place, xid);
    }

    /// Forgets those that are not wanted; gives how many.
    pub(super) fn retain(&mut self, wanted: impl Fn(&Xid) -> bool) -> usize {
        let before = self.len();
        match self {
            Self::InOrderOfCommits(xids) => xids.retain(wanted),
            Self::KeptSorted(chunks) => {
                for chunk in chunks.iter_mut().filter(|chunk| !chunk.iter().all(&wanted)) {
                    *chunk = Arc::new(chunk.iter().copied().filter(&wanted).collect());
                }
                chunks.retain(|chunk| !chunk.is_empty());
            }
        }
        before - self.len()
    }

    /// What a snapshot of now has (`SnapBuildBuildSnapshot`).
    pub(super) fn snapshot(&self, counts: &mut SnapBuildCounts) -> CommittedXids {
        counts.built += 1;
        match self {
            Self::InOrderOfCommits(xids) => {
                let mut xids = xids.clone();
                counts.copied += xids.len() as u64;
                xids.sort_unstable_by(|a, b| {
                    counts.compared += 1;
                    a.numeric().cmp(&b.numeric())
                });
                CommittedXids::Copied(xids)
            }
            Self::KeptSorted(chunks) => {
                counts.shared += chunks.len() as u64;
                CommittedXids::Shared(chunks.clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a plain vector: C1 after each operation, C2 of each snapshot at the end.
        #[test]
        fn c1_c2_sorted_ones_are_those_of_a_vector_and_snapshots_stay(
            ops in prop::collection::vec((3u32..5000, any::<bool>(), prop::option::weighted(0.01, 3u32..5000)), 1..1500),
        ) {
            let (mut sorted, mut counts) = (Committed::new(CommittedOrder::KeptSorted), SnapBuildCounts::default());
            let (mut model, mut taken) = (Vec::<Xid>::new(), Vec::new());
            for (n, (xid, in_order, oldest)) in ops.into_iter().enumerate() {
                let xid = if in_order { Xid(5000 + n as u32) } else { Xid(xid) };
                sorted.add(xid, &mut counts);
                model.push(xid);
                if let Some(oldest) = oldest {
                    let wanted = |xid: &Xid| xid.numeric() >= oldest;
                    let before = model.len();
                    model.retain(wanted);
                    prop_assert_eq!(sorted.retain(wanted), before - model.len());
                }
                model.sort_unstable_by_key(|xid| xid.numeric());
                prop_assert_eq!(sorted.len(), model.len());
                let Committed::KeptSorted(chunks) = &sorted else { unreachable!() };
                prop_assert!(chunks.iter().all(|chunk| (1..=CHUNK_XIDS).contains(&chunk.len())), "C1");
                if n % 50 == 0 {
                    prop_assert_eq!(&sorted.to_vec(), &model, "C1");
                    taken.push((sorted.snapshot(&mut counts), model.clone()));
                }
            }
            for (snapshot, then) in taken {
                prop_assert_eq!(snapshot.to_vec(), then, "C2");
            }
        }
    }
}
