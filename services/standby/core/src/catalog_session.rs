//! A session's catalog snapshot and caches on a standby (`storage/ipc/sinval.c`, `utils/cache/inval.c`).
//!
//! When a catalog snapshot is kept and when it is dropped, [`pg_types::catalog_snapshot`] says. A session adds to that:
//!
//! - one that does not know its database yet ignores what is meant for that database alone: what it has is dropped once, when it
//!   connects;
//! - the snapshot is never older than the transaction's, never kept while idle.
//!
//! ```text
//!   replay ─► publish state ─► shared queue ─► accept (a lock is taken) ─► drop snapshot, cache entries
//!                                                    │ lagged by a ring: drop everything
//!   scan:  accept ─► reuse the snapshot, or take one
//! ```
//!
//! **Invariants**
//! - C1 after messages were accepted, nothing that the session has is older than the changes replayed before.
//! - C2 a state is published before its messages are sent; so who has read the messages sees the state.
//!
//! | operation | cost |
//! |---|---|
//! | scan | O(messages that wait), and a snapshot or none |
//! | lookup | O(log entries), or a scan |
//!
//! **Differences from PostgreSQL.** Locks are not held: each scan takes one and accepts messages. The caches hold no rows but the
//! position that an entry was read at. The queue's two locks are one mutex, which no snapshot ever takes.

pub mod startup;

use std::collections::BTreeMap;

use pg_types::sinvaladt::{Got, MAXINVALMSGS, QueueReader};
use pg_types::{
    CatalogSnapshot, InvalidationMessage, Lsn, Oid, PgVersion, QueueCounts, SharedInvalQueue, SysCacheTable, catalog,
};
pub use pg_types::{CatalogSnapshotRule, DropReason};

use crate::error::RecoveryError;
use crate::known_assigned_xids::skip_offset::SlotCount;
use crate::snapshot::{RecoveryReader, TakenSnapshot};
use crate::sync::MutexGuard;

/// Cache entries of a session at most; beyond, it drops all.
pub const SESSION_ENTRIES_MAX: usize = 65_536;

/// What a scan, or several with one snapshot, came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatalogScan {
    /// Snapshots taken; 0 if one was reused.
    pub snapshots: u32,
    /// Why the last one was dropped before, if one had to be taken.
    pub reason: Option<DropReason>,
    /// Position that the scan sees.
    pub replay_lsn: Lsn,
    /// What accepting messages came to.
    pub accepted: Accepted,
    /// Slots that its snapshots looked at and jumped over.
    pub slots: SlotCount,
}

/// What a session got from the shared queue at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accepted {
    /// Messages read, of any database.
    pub messages: u64,
    /// Some were lost: everything was dropped.
    pub reset: bool,
}

/// What a cache entry is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CacheKey {
    /// A tuple of a syscache.
    Catcache {
        /// The syscache's id in messages.
        cache_id: i8,
        /// Hash of the key.
        hash: u32,
    },
    /// A relation.
    Relcache {
        /// Its oid.
        rel: Oid,
    },
}

/// A backend that reads catalogs. Leaves the queue when it is dropped.
#[derive(Debug)]
pub struct CatalogSession {
    /// The standby.
    reader: RecoveryReader,
    /// Its place in the queue.
    place: QueueReader,
    /// Its syscaches.
    syscaches: &'static SysCacheTable,
    /// `MyDatabaseId`; 0 until it connects.
    database: Oid,
    /// Its catalog snapshot.
    snapshot: CatalogSnapshot<TakenSnapshot>,
    /// The last snapshot taken, to be reused while nothing completes (14 and later).
    last: Option<TakenSnapshot>,
    /// What is cached, with the position that it was read at.
    entries: BTreeMap<CacheKey, Lsn>,
    /// Snapshots taken.
    snapshots: u64,
}

impl RecoveryReader {
    /// A new session of `version`, not connected to a database yet (`SharedInvalBackendInit`).
    ///
    /// # Errors
    /// [`RecoveryError::TooManySessions`] if there are as many as the settings have room for.
    pub fn open_session(&self, version: PgVersion, rule: CatalogSnapshotRule) -> Result<CatalogSession, RecoveryError> {
        let max = self.shared.max_sessions;
        let mut queue = self.queue();
        if queue.reader_count() >= max as usize {
            return Err(RecoveryError::TooManySessions { max });
        }
        let place = queue.attach();
        drop(queue);
        Ok(CatalogSession {
            reader: self.clone(),
            place,
            syscaches: SysCacheTable::of(version),
            database: Oid::INVALID,
            snapshot: CatalogSnapshot::new(rule),
            last: None,
            entries: BTreeMap::new(),
            snapshots: 0,
        })
    }

    /// The shared queue.
    fn queue(&self) -> MutexGuard<'_, SharedInvalQueue> {
        self.shared.queue()
    }
}

impl Drop for CatalogSession {
    fn drop(&mut self) {
        self.reader.queue().detach(self.place);
    }
}

impl CatalogSession {
    /// `InitPostgres`: the database is known from now on.
    pub fn connect(&mut self, database: Oid) {
        self.database = database;
        if self.snapshot.rule().dropped_at_connect {
            self.snapshot.invalidate(DropReason::Connected);
        }
    }

    /// `GetTransactionSnapshot`: a new one; the catalog snapshot must not be older.
    ///
    /// # Errors
    /// [`RecoveryError::NotReady`].
    pub fn transaction_snapshot(&mut self) -> Result<TakenSnapshot, RecoveryError> {
        self.snapshot.invalidate(DropReason::TransactionSnapshot);
        take(&self.reader, &mut self.last, &mut self.snapshots)
    }

    /// The transaction ends.
    pub fn end_transaction(&mut self) {
        self.snapshot.invalidate(DropReason::TransactionEnd);
    }

    /// The session waits for its client.
    pub fn idle(&mut self) {
        self.snapshot.invalidate(DropReason::Idle);
    }

    /// `ProcessCatchupInterrupt`: an idle session that was told that it is far behind reads its messages.
    pub fn answer_signal(&mut self) -> Accepted {
        let signaled = self.reader.queue().is_signaled(self.place);
        if signaled { self.accept_invalidation_messages() } else { Accepted::default() }
    }

    /// `AcceptInvalidationMessages`, as at each lock taken and each start of a transaction.
    pub fn accept_invalidation_messages(&mut self) -> Accepted {
        let mut accepted = Accepted::default();
        let mut messages = Vec::with_capacity(MAXINVALMSGS);
        let signaled = self.reader.queue().is_signaled(self.place);
        loop {
            messages.clear();
            let got = self.reader.queue().get(self.place, &mut messages);
            match got {
                Got::Reset => {
                    accepted.reset = true;
                    self.invalidate_system_caches();
                }
                Got::Messages(n) => accepted.messages += n as u64,
            }
            messages.iter().for_each(|message| self.execute(message));
            if messages.len() < MAXINVALMSGS {
                break;
            }
        }
        if signaled {
            self.reader.queue().caught_up();
        }
        accepted
    }

    /// A scan of `relation`.
    ///
    /// # Errors
    /// [`RecoveryError::NotReady`].
    pub fn scan(&mut self, relation: Oid) -> Result<CatalogScan, RecoveryError> {
        self.scan_together(relation, 1)
    }

    /// So many scans of `relation` that share a snapshot, as the four of `pg_db_role_setting` at a session's start do
    /// (`process_settings`); the rule that always takes a new one takes one for each.
    ///
    /// # Errors
    /// [`RecoveryError::NotReady`].
    pub fn scan_together(&mut self, relation: Oid, scans: u32) -> Result<CatalogScan, RecoveryError> {
        let accepted = self.accept_invalidation_messages();
        let Self { snapshot, syscaches, reader, last, snapshots, .. } = self;
        let mut slots = SlotCount::default();
        let (taken, reason) = snapshot.scan(relation, scans, syscaches, || {
            let taken = take(reader, last, snapshots)?;
            slots.visited += taken.slots.visited;
            slots.skipped += taken.slots.skipped;
            Ok(taken)
        })?;
        let replay_lsn = snapshot.get().map_or(Lsn::INVALID, |taken| taken.snapshot.replay_lsn);
        Ok(CatalogScan { snapshots: taken, reason, replay_lsn, accepted, slots })
    }

    /// Looks an entry up; what is missing is read by a scan of its catalog. Gives the position it was read at, and the scan.
    ///
    /// # Errors
    /// [`RecoveryError::NotReady`]; [`RecoveryError::UnknownSysCache`].
    pub fn lookup(&mut self, key: CacheKey) -> Result<(Lsn, Option<CatalogScan>), RecoveryError> {
        if let Some(&read_at) = self.entries.get(&key) {
            return Ok((read_at, None));
        }
        let relation = match key {
            CacheKey::Catcache { cache_id, .. } => {
                let id = self.syscaches.id(cache_id).ok_or(RecoveryError::UnknownSysCache { id: cache_id })?;
                self.syscaches.cache(id).catalog
            }
            CacheKey::Relcache { .. } => catalog::CLASS,
        };
        let scan = self.scan(relation)?;
        if self.entries.len() >= SESSION_ENTRIES_MAX {
            self.entries.clear();
        }
        self.entries.insert(key, scan.replay_lsn);
        Ok((scan.replay_lsn, Some(scan)))
    }

    /// Snapshots taken so far, for catalogs and transactions.
    #[must_use]
    pub fn snapshots_taken(&self) -> u64 {
        self.snapshots
    }

    /// Entries cached.
    #[must_use]
    pub fn entry_count(&self) -> usize {
        self.entries.len()
    }

    /// What the shared queue did to this session.
    #[must_use]
    pub fn queue_counts(&self) -> QueueCounts {
        self.reader.queue().counts(self.place)
    }

    /// `InvalidateSystemCaches`.
    fn invalidate_system_caches(&mut self) {
        self.snapshot.invalidate(DropReason::QueueReset);
        self.entries.clear();
    }

    /// `LocalExecuteInvalidationMessage`.
    fn execute(&mut self, message: &InvalidationMessage) {
        if !message.concerns(self.database) {
            return;
        }
        self.snapshot.execute(message);
        match *message {
            InvalidationMessage::Catcache { cache_id, hash, .. } => {
                self.entries.remove(&CacheKey::Catcache { cache_id, hash });
            }
            InvalidationMessage::Catalog { catalog, .. } => {
                let on_it: Vec<i8> = self.syscaches.caches_on(catalog).iter().map(|id| id.message_id()).collect();
                self.entries.retain(|key, _| !matches!(key, CacheKey::Catcache { cache_id, .. } if on_it.contains(cache_id)));
            }
            InvalidationMessage::Relcache { rel, .. } if rel.is_valid() => {
                self.entries.remove(&CacheKey::Relcache { rel });
            }
            InvalidationMessage::Relcache { .. } => self.entries.retain(|key, _| !matches!(key, CacheKey::Relcache { .. })),
            InvalidationMessage::Smgr { .. }
            | InvalidationMessage::Relmap { .. }
            | InvalidationMessage::Snapshot { .. }
            | InvalidationMessage::Relsync { .. } => {}
        }
    }
}

/// `GetSnapshotData`: takes one from `reader`, or `last` again while nothing completed, and counts it in `snapshots`.
fn take(
    reader: &RecoveryReader,
    last: &mut Option<TakenSnapshot>,
    snapshots: &mut u64,
) -> Result<TakenSnapshot, RecoveryError> {
    let taken = reader.snapshot_or_reuse(last.take())?;
    *snapshots += 1;
    *last = Some(taken.clone());
    Ok(taken)
}

#[cfg(test)]
mod tests;
