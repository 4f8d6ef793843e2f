//! Is a transaction running for a snapshot? (`XidInMVCCSnapshot` in recovery, `utils/time/snapmgr.c`.)
//!
//! A snapshot of a standby that has all subtransactions answers by itself. One that may lack some (`suboverflowed`) asks
//! `pg_subtrans` for the top-level transaction first, each time, and that reads a page per step.

use pg_types::{Snapshot, Xid};

use crate::subtrans::{Subtrans, page_of};

/// `XidInMVCCSnapshot`: true if `xid` runs for the snapshot, which says nothing about how it ended if it does not. Lookups in
/// `subtrans`, that of the snapshot's state or a later one, are told to `read`, page by page.
#[must_use]
pub fn xid_in_mvcc_snapshot(xid: Xid, snapshot: &Snapshot, subtrans: &Subtrans, read: &mut impl FnMut(u32)) -> bool {
    if xid.precedes(snapshot.xmin) {
        return false;
    }
    if xid.follows_or_equals(snapshot.xmax) {
        return true;
    }
    let mut xid = xid;
    if snapshot.suboverflowed {
        xid = topmost_transaction(xid, snapshot.xmin, subtrans, read);
        if xid.precedes(snapshot.xmin) {
            return false;
        }
    }
    // Ascending in the circular order. PostgreSQL searches from the start.
    let at = snapshot.xip.partition_point(|x| x.precedes(xid));
    snapshot.xip.get(at) == Some(&xid)
}

/// `SubTransGetTopmostTransaction`: follows parents up to the first that has none or is older than `transaction_xmin`.
fn topmost_transaction(xid: Xid, transaction_xmin: Xid, subtrans: &Subtrans, read: &mut impl FnMut(u32)) -> Xid {
    let (mut topmost, mut next) = (xid, xid);
    while next.is_valid() {
        topmost = next;
        if next.precedes(transaction_xmin) {
            break;
        }
        read(page_of(next));
        // T1: each step leads to an older xid, so this ends.
        next = subtrans.parent(next);
    }
    topmost
}

#[cfg(test)]
mod tests {
    use pg_types::Lsn;

    use super::*;
    use crate::slru::{SUBTRANS_BUFFERS, SlruBuffers, SlruCounts};

    /// A snapshot in which 100 and 150 run, and the subtransactions of 150 that `k` others left no room for.
    fn snapshot(suboverflowed: bool) -> Snapshot {
        Snapshot { replay_lsn: Lsn(8), xmin: Xid(100), xmax: Xid(400_000), xip: vec![Xid(100), Xid(150)], suboverflowed }
    }

    /// Whether `xid` runs for it, with `buffers` to count in.
    fn is_running(xid: Xid, suboverflowed: bool, subtrans: &Subtrans, buffers: &mut SlruBuffers) -> bool {
        xid_in_mvcc_snapshot(xid, &snapshot(suboverflowed), subtrans, &mut |page| _ = buffers.read(page))
    }

    #[test]
    fn only_a_suboverflowed_snapshot_looks_parents_up() {
        let mut subtrans = Subtrans::default();
        subtrans.set_parent(Xid(160), Xid(150), Lsn(1)).unwrap();
        subtrans.set_parent(Xid(161), Xid(99), Lsn(1)).unwrap();
        let mut buffers = SlruBuffers::new(SUBTRANS_BUFFERS, false);
        for (xid, overflowed, runs, lookups) in [
            (99, true, false, 0),
            (400_000, true, true, 0),
            (160, false, false, 0),
            (160, true, true, 2),
            (150, true, true, 1),
            (161, true, false, 1),
            (162, true, false, 1),
        ] {
            let before = buffers.counts().lookups();
            assert_eq!(is_running(Xid(xid), overflowed, &subtrans, &mut buffers), runs, "{xid}");
            assert_eq!(buffers.counts().lookups() - before, lookups, "{xid}");
        }
    }

    #[test]
    fn pages_are_missed_again_and_again_past_65536_xids() {
        // One page more than there are buffers: 32 × 2,048 xids.
        for (xids, misses) in [(32 * 2048, 32), (33 * 2048, 3 * 33)] {
            let mut buffers = SlruBuffers::new(SUBTRANS_BUFFERS, false);
            let (subtrans, first) = (Subtrans::default(), 2048);
            for _ in 0..3 {
                for xid in (first..first + xids).step_by(64) {
                    assert!(!is_running(Xid(xid), true, &subtrans, &mut buffers));
                }
            }
            let lookups = u64::from(3 * xids / 64);
            assert_eq!(buffers.counts(), SlruCounts { hits: lookups - misses, misses }, "{xids}");
        }
    }
}
