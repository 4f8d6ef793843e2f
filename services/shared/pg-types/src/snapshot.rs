//! Snapshots as a standby gives them (`utils/snapshot.h`, `GetSnapshotData` in recovery).

use crate::lsn::Lsn;
use crate::xid::Xid;

/// What a reader sees: everything before `xmin`, nothing from `xmax` on, in between nothing in `xip`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The one replay position whose state this is.
    pub replay_lsn: Lsn,
    /// Oldest running transaction, `xmax` if none.
    pub xmin: Xid,
    /// One past the newest completed transaction.
    pub xmax: Xid,
    /// Running transactions and subtransactions below `xmax`, oldest first (a standby keeps all in `subxip`).
    pub xip: Vec<Xid>,
    /// `xip` may lack subtransactions: look parents up.
    pub suboverflowed: bool,
}
