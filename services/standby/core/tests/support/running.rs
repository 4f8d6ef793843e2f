//! What runs for a snapshot, whether or not the snapshot lists it.

use std::collections::HashSet;

use pg_types::{Snapshot, Xid};
use standby_core::RecoveryWriter;
use standby_core::visibility::xid_in_mvcc_snapshot;

/// Every xid that runs for a snapshot, found through `pg_subtrans` where the snapshot lacks it. What was rolled back is left out: a
/// snapshot that lacks it asks for its parent, one that had it knows that it ended, and the commit log tells a server the same.
pub(crate) fn running(writer: &RecoveryWriter, snapshot: &Snapshot, aborted: &HashSet<Xid>) -> Vec<Xid> {
    let state = writer.state();
    let runs = |xid: &Xid| xid_in_mvcc_snapshot(*xid, snapshot, &state.subtrans, &mut |_| ());
    let xids = std::iter::successors(Some(snapshot.xmin), |xid| Some(xid.next()));
    xids.take_while(|xid| xid.precedes(snapshot.xmax)).filter(|xid| runs(xid) && !aborted.contains(xid)).collect()
}
