//! What the parts of the node tell each other, and an in-process owner of the node: how far replay and the stream are.

use std::time::Duration;

use pg_types::{Lsn, Timestamp, Work, Xid};
use standby_core::StandbyState;

use crate::error::Halt;
use crate::lag::{ReplayLag, ReplayRate};

/// How far replay is. Published once a batch, so a value may lag behind what a snapshot shows, never run ahead of it.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// State of recovery; none while replay waits for a record that it can begin at.
    pub state: Option<StandbyState>,
    /// Every record before it is replayed, or lies before the beginning.
    pub replay_lsn: Lsn,
    /// Everything before it may be forgotten by the primary: a restart begins here, or at `replay_lsn` if nothing is kept.
    pub flushed_lsn: Lsn,
    /// While pending: ready when the oldest running xid has passed this one.
    pub pending_xmin: Xid,
    /// Newest xid that may have subtransactions which are not listed.
    pub last_overflowed_xid: Xid,
    /// Newest completed xid.
    pub latest_completed_xid: Xid,
    /// Records replayed since the start of the process.
    pub records_replayed: u64,
    /// Transactions ended since the start of the process.
    pub transactions_ended: u64,
    /// Name of the profile; empty until the primary's version is known.
    pub profile: String,
    /// Slots of the known-assigned array.
    pub array_size: u32,
    /// One past its last slot in use.
    pub array_head: u32,
    /// Its first slot in use.
    pub array_tail: u32,
    /// Live entries in it.
    pub array_live: u32,
    /// Compressions since the start of the process, by reason, in the order of their first.
    pub compressions: Vec<(&'static str, u64)>,
    /// Readers that replay waits for, because a record conflicts with them.
    pub waits_for_readers: usize,
    /// Oldest xid that the primary's readers or ours need, if the primary shall know it; else invalid.
    pub feedback_xmin: Xid,
    /// What replay did; snapshots are not in it.
    pub work: Work,
    /// When the last replayed transaction ended, by the primary's clock; none before the first.
    pub last_transaction_time: Option<Timestamp>,
    /// How late WAL was.
    pub lag: ReplayLag,
    /// How fast it was replayed.
    pub rate: ReplayRate,
    /// Why replay stopped for good, if it did.
    pub halt: Option<Halt>,
}

impl Progress {
    /// Snapshots can be taken.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.state == Some(StandbyState::SnapshotReady) && self.halt.is_none()
    }

    /// What a reader waits for, for people.
    #[must_use]
    pub fn waits_for(&self) -> String {
        if let Some(halt) = &self.halt {
            return halt.to_string();
        }
        match self.state {
            None => "no checkpoint or running-transactions record has come yet: replay cannot begin before one".to_owned(),
            Some(StandbyState::SnapshotPending) => format!(
                "the running transactions were recorded without all subtransactions: ready when the oldest running one has \
                 passed {}",
                self.pending_xmin
            ),
            Some(StandbyState::SnapshotReady) => "nothing".to_owned(),
            Some(StandbyState::Initialized) => {
                "no running-transactions record has come yet: the primary writes one at each checkpoint".to_owned()
            }
        }
    }
}

/// How the stream from the primary is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Upstream {
    /// The stream is open.
    pub connected: bool,
    /// Everything before it has arrived.
    pub received_lsn: Lsn,
    /// End of WAL at the primary, as last heard.
    pub wal_end_lsn: Lsn,
    /// Why the last stream ended; empty if none did.
    pub last_error: String,
    /// When the primary was last heard of, by the node's clock; none if it never was.
    pub heard: Option<Duration>,
    /// From the primary's sending to our receiving, of the last message that told when it was sent.
    pub transport_lag: Option<Duration>,
}

impl Upstream {
    /// Time since the primary was last heard of; none if it never was.
    #[must_use]
    pub fn silence(&self, now: Duration) -> Option<Duration> {
        self.heard.map(|heard| now.saturating_sub(heard))
    }
}
