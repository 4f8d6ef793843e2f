//! What a decoder tells of itself: where it is and must begin again, and what it counted. Nothing here decodes.

use pg_types::{CatalogSnapshotCounts, Lsn, QueueCounts, Work, Xid};

use super::{Decoder, DecoderConfig, DecoderSizes};
use crate::attribution::Attribution;
use crate::invalidation::{CacheContents, RegisteredCallbacks};
use crate::publications::{Moment, Publications};
use crate::relcache::RelcacheCounts;
use crate::relsync::RelsyncCounts;
use crate::reorder_buffer::tuple_cids::{TupleCidCounts, TupleCidHash};
use crate::sampling::CurrentFunction;
use crate::snap_build::{HistoricSnapshot, SnapBuildCounts, SnapBuildState};
use crate::syscache_callbacks::{CallbackCounts, TooManyCallbacks};

impl Decoder {
    /// The `catalog_xmin` of a slot whose consumer has what was given out so far: the oldest xid whose catalog rows this decoder, or one that
    /// begins at [`Decoder::restart_lsn`], may still look at. Invalid before the first list of running transactions; never goes back.
    #[must_use]
    pub fn catalog_xmin(&self) -> Xid {
        self.catalog_xmin
    }

    /// Where WAL must be read from by a decoder that goes on now. With a store: a serialised snapshot older than every unfinished
    /// transaction, which that one [`Decoder::restore`]s, or, if this does not [`Decoder::restarts_from_snapshot`] yet, its first record,
    /// from which another finds the same consistent point. Without: the start of the oldest unfinished transaction, or the end of what
    /// was processed, where that one [`Decoder::resume`]s; before this decoder is consistent, its first record.
    #[must_use]
    pub fn restart_lsn(&self) -> Lsn {
        if self.restarts_from_snapshot() {
            return self.restart_lsn;
        }
        if self.snapshots.is_some() || self.snap_build.state() < SnapBuildState::Consistent {
            return self.first_lsn;
        }
        let unfinished = self.reorder_buffer.toplevel().map(|at| self.reorder_buffer.get(at).oldest_lsn).min();
        unfinished.unwrap_or(self.end_lsn)
    }

    /// Whether [`Decoder::restart_lsn`] has a serialised snapshot.
    #[must_use]
    pub fn restarts_from_snapshot(&self) -> bool {
        self.restart_lsn.is_valid()
    }

    /// End of the last record processed.
    #[must_use]
    pub fn end_lsn(&self) -> Lsn {
        self.end_lsn
    }

    /// How far the snapshot builder is.
    #[must_use]
    pub fn state(&self) -> SnapBuildState {
        self.snap_build.state()
    }

    /// Before it is consistent: the xid that the oldest running transaction must reach for the next state.
    #[must_use]
    pub fn waits_for(&self) -> Option<Xid> {
        self.snap_build.waits_for()
    }

    /// Before it is consistent: the transactions that it waits for, as far as the last list tells, oldest first. None: the next
    /// RUNNING_XACTS record decides.
    #[must_use]
    pub fn waiting(&self) -> &[Xid] {
        self.snap_build.waiting()
    }

    /// The snapshot that a transaction beginning now would get, built for the asker alone. O(n log n).
    #[must_use]
    pub fn historic_snapshot(&self) -> HistoricSnapshot {
        self.snap_build.would_be()
    }

    /// All work so far, that of skipped and rolled-back transactions included.
    #[must_use]
    pub fn work(&self) -> Work {
        self.replayer.caches.work
    }

    /// All work so far by cache, by relation and by callback.
    #[must_use]
    pub fn attribution(&self) -> Attribution {
        self.replayer.caches.attribution(&self.replayer.relations)
    }

    /// What the shared invalidation queue did to it: nothing unless it follows live ([`crate::Consumer`]).
    #[must_use]
    pub fn queue_counts(&self) -> QueueCounts {
        self.replayer.caches.queue_counts()
    }

    /// What `pgoutput` did: nothing unless rows are given to it ([`crate::profile::OutputPlugin`]).
    #[must_use]
    pub fn relsync_counts(&self) -> RelsyncCounts {
        self.replayer.caches.relsync_counts()
    }

    /// What relations took beside being loaded.
    #[must_use]
    pub fn relcache_counts(&self) -> RelcacheCounts {
        self.replayer.caches.relcache_counts()
    }

    /// Which snapshots catalogs were read with, and why those of now were dropped.
    #[must_use]
    pub fn catalog_snapshot_counts(&self) -> CatalogSnapshotCounts {
        self.replayer.caches.catalog_snapshot_counts()
    }

    /// What catalog rows of transactions that change catalogs cost.
    #[must_use]
    pub fn tuple_cid_counts(&self) -> TupleCidCounts {
        self.replayer.caches.tuple_cids
    }

    /// Syscache callbacks called so far, by what each costs.
    #[must_use]
    pub fn callback_counts(&self) -> CallbackCounts {
        self.replayer.caches.callback_counts()
    }

    /// Relcache callbacks called so far, by what each costs.
    #[must_use]
    pub fn relcache_callback_counts(&self) -> CallbackCounts {
        self.replayer.caches.relcache_callback_counts()
    }

    /// What building snapshots took.
    #[must_use]
    pub fn snap_build_counts(&self) -> SnapBuildCounts {
        self.snap_build.counts()
    }

    /// How full it is.
    #[must_use]
    pub fn sizes(&self) -> DecoderSizes {
        DecoderSizes {
            transactions: self.reorder_buffer.len(),
            committed_xids: self.snap_build.committed_len(),
            catalog_commits: self.replayer.commits.len(),
            memory_bytes: self.reorder_buffer.memory.total,
            memory_bytes_peak: self.reorder_buffer.memory.peak,
            spill_file_bytes: self.reorder_buffer.memory.store.bytes(),
            caches: self.replayer.caches.sizes(),
        }
    }

    /// What the caches hold, for comparing decoders. O(n log n).
    #[must_use]
    pub fn cache_contents(&self) -> CacheContents {
        self.replayer.caches.contents()
    }

    /// Registers so many callbacks; before anything is decoded.
    ///
    /// # Errors
    /// A server of this profile has no room for so many.
    pub fn register_callbacks(&mut self, registered: RegisteredCallbacks) -> Result<(), TooManyCallbacks> {
        self.replayer.caches.register(registered, &self.config.profile)
    }

    /// The byte that says which function runs; a sampler may read it from another thread.
    #[must_use]
    pub fn current_function(&self) -> CurrentFunction {
        self.replayer.caches.marker.clone()
    }

    /// Publications that are asked for and not there now.
    #[must_use]
    pub fn missing_publications(&self) -> Vec<String> {
        let (lsn, own) = (Lsn(u64::MAX), &TupleCidHash::default());
        let missing = |publications: &Publications| publications.missing(Moment { lsn, own, command_id: 0 });
        self.replayer.publications.as_ref().map(missing).unwrap_or_default()
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &DecoderConfig {
        &self.config
    }
}
