//! Makes output durable, then the checkpoint, then tells upstream: always in this order. A thread of its own, so that decoding
//! does not wait for the disk.
//!
//! ```text
//!  decoding thread ──offer(sync point, checkpoint)──► latest one ──► fsync log ──► applied
//!                                                                  └► checkpoint file ──► older snapshots go
//!                                                                                      └► flushed ──► primary may forget WAL
//!  subscribers ──confirm──► positions ──────────────► positions file ──► log segments may go
//! ```

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::checkpoint::Checkpoint;
use crate::error::NodeError;
use crate::output_log::{OutputLog, SyncPoint};
use crate::snapshots::FileSnapshots;
use crate::state::NodeState;
use crate::subscriptions::Subscriptions;

/// A state to make durable.
#[derive(Clone, Debug)]
pub(crate) struct FlushRequest {
    /// The output.
    pub(crate) sync: SyncPoint,
    /// What belongs to it.
    pub(crate) checkpoint: Checkpoint,
}

/// What the decoding thread last offered.
#[derive(Debug, Default)]
struct Offered {
    /// The latest state; older ones that nobody took are no loss.
    request: Option<FlushRequest>,
    /// Nothing more will come.
    closed: bool,
}

/// Between the decoding thread and the flusher.
#[derive(Debug, Default)]
pub(crate) struct FlushQueue {
    /// Held for moments.
    offered: Mutex<Offered>,
    /// Rung at every change of `offered`.
    changed: Condvar,
}

impl FlushQueue {
    /// Offers a state.
    pub(crate) fn offer(&self, request: FlushRequest) {
        self.lock().request = Some(request);
        self.changed.notify_one();
    }

    /// Ends the flusher after it has flushed what was offered.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// Waits for a request until `deadline` or the end. Tells whether nothing more will come.
    fn take(&self, deadline: Instant) -> (Option<FlushRequest>, bool) {
        let mut offered = self.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if offered.request.is_some() || offered.closed || left.is_zero() {
                return (offered.request.take(), offered.closed);
            }
            let waited = self.changed.wait_timeout(offered, left);
            (offered, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Nothing panics while holding it.
    fn lock(&self) -> MutexGuard<'_, Offered> {
        self.offered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The flusher of one run of the decoder.
#[derive(Debug)]
pub(crate) struct Flusher {
    /// Where requests come from.
    pub(crate) queue: Arc<FlushQueue>,
    /// The log, for retention.
    pub(crate) log: Arc<OutputLog>,
    /// Serialised snapshots, for retention.
    pub(crate) snapshots: FileSnapshots,
    /// Positions of subscribers.
    pub(crate) subscriptions: Arc<Mutex<Subscriptions>>,
    /// The node's state: `applied_lsn`, `flushed_lsn` and `catalog_xmin` are set here.
    pub(crate) state: watch::Sender<NodeState>,
    /// The checkpoint's file.
    pub(crate) checkpoint_path: PathBuf,
    /// The positions' file.
    pub(crate) positions_path: PathBuf,
    /// Least time between two flushes of the log.
    pub(crate) flush_interval: Duration,
    /// Least time between two writings of checkpoint and positions.
    pub(crate) checkpoint_interval: Duration,
    /// The cluster.
    pub(crate) system_id: u64,
}

impl Flusher {
    /// Works until the queue is closed.
    ///
    /// # Errors
    ///
    /// What the disk says. Nothing that was not durable has been reported.
    pub(crate) fn run(self) -> Result<(), NodeError> {
        let mut pending: Option<Checkpoint> = None;
        let mut stored_at: Option<Instant> = None;
        loop {
            let (request, closed) = self.queue.take(Instant::now() + self.checkpoint_interval);
            let began = Instant::now();
            let mut due = stored_at.is_none_or(|at| at.elapsed() >= self.checkpoint_interval) || closed;
            if let Some(FlushRequest { sync, checkpoint }) = request {
                sync.sync()?;
                // Whoever sees a position applied may rely on the xid that was told with it.
                due |= checkpoint.catalog_xmin != self.state.borrow().catalog_xmin;
                if !due {
                    self.state.send_modify(|state| state.applied_lsn = checkpoint.decoded_lsn);
                }
                pending = Some(checkpoint);
            }
            if due {
                stored_at = Some(Instant::now());
                if let Some(checkpoint) = pending.take() {
                    checkpoint.store(&self.checkpoint_path)?;
                    self.snapshots.remove_before(checkpoint.restart_lsn)?;
                    self.state.send_modify(|state| {
                        state.applied_lsn = checkpoint.decoded_lsn;
                        state.flushed_lsn = checkpoint.restart_lsn;
                        state.catalog_xmin = checkpoint.catalog_xmin;
                    });
                }
                self.save_positions()?;
                self.trim()?;
            }
            if closed {
                return Ok(());
            }
            std::thread::sleep(self.flush_interval.saturating_sub(began.elapsed()));
        }
    }

    /// Writes the positions if one moved.
    fn save_positions(&self) -> Result<(), NodeError> {
        let lock = || self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner);
        let positions = lock().to_save(self.system_id);
        if let Some(positions) = positions {
            positions.store(&self.positions_path)?;
            lock().on_saved(&positions);
        }
        Ok(())
    }

    /// Removes output that nobody needs.
    fn trim(&self) -> Result<(), NodeError> {
        let needed = self.subscriptions.lock().unwrap_or_else(PoisonError::into_inner).needed();
        let removed = self.log.trim(needed)?;
        if removed > 0 {
            let oldest = self.log.oldest();
            tracing::debug!(removed, %oldest, "removed output log segments");
            if needed.is_some_and(|needed| needed < oldest) {
                tracing::warn!(%oldest, "a subscription lost output that it had not confirmed: output_log.bytes_max is reached");
            }
        }
        Ok(())
    }
}
