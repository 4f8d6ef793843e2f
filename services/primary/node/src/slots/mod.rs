//! Replication slots: named positions of consumers that survive them and us (`replication/slot.c`).
//!
//! A slot remembers up to where its consumer has safely stored the stream, and keeps the WAL that it needs from being removed.
//! [`table`] is the state machine (who holds which slot, which position moved), [`creation`] finds where a logical slot can begin,
//! [`mod@file`] is their form on disk, and [`Slots`] here joins them: the table behind a lock, and one saver that writes what
//! moved.
//!
//! Invariants:
//! * I1 A slot's position never moves back, and never beyond what was sent to its holder.
//! * I2 At most one stream holds a slot; a stream that was taken over can no longer move it.
//! * I3 WAL is released by the position that is on disk, not by the one in memory: after a crash everything from the slot's
//!   position on is still there.
//! * I4 A file is either the old state in whole or the new one in whole.

mod builder;
mod consumers;
mod creation;
mod file;
mod horizon;
pub(crate) mod restart_decoding;
mod table;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pg_types::{Lsn, WalIdentity, Xid};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

pub(crate) use builder::SlotBuilder;
pub(crate) use consumers::{ConsumerRun, SCENARIO};
pub use creation::{BuildState, CreationReport, RunningTransaction, SlotCreation};
pub(crate) use file::create_private_dir;
pub use file::{SlotFile, SlotKind};
pub(crate) use horizon::Horizon;
pub use restart_decoding::RestartPoint;
pub use table::{Active, Confirmation, Lease, Persistency, Slot, SlotTable, validate_name};

use crate::error::{Error, Result};
use crate::retention::Removal;

/// The slots of one primary. Cloned handles share them.
#[derive(Clone, Debug)]
pub struct Slots {
    /// Shared by streams, the admin service and the saver.
    inner: Arc<Inner>,
}

/// What the handles share.
#[derive(Debug)]
struct Inner {
    /// `slots` below the data directory.
    dir: PathBuf,
    /// State of all slots. Held for short, never across I/O or an await.
    table: Mutex<SlotTable>,
    /// How to end the streams that hold slots, by session. Taken after `table`, never before.
    streams: Mutex<HashMap<u64, CancellationToken>>,
    /// Held while files change, so that a late save cannot bring a deleted slot back. Taken before `table`.
    io: Mutex<()>,
    /// Rung when some position moved.
    moved: Notify,
    /// Changes when the creation of some slot got further or ended.
    built: watch::Sender<()>,
    /// A list of running transactions in WAL would help a slot that is being built.
    running_xacts_wish: AtomicBool,
}

impl Slots {
    /// Reads the slots below `data_dir` (made if missing), for WAL of `identity`.
    ///
    /// # Errors
    /// A damaged slot file, one of another cluster, or what the system says.
    pub fn open(data_dir: &Path, identity: &WalIdentity, max_slots: usize) -> Result<Self> {
        let dir = data_dir.join("slots");
        file::create_private_dir(&dir)?;
        let mut table = SlotTable::new(max_slots);
        for loaded in file::load_all(&dir)? {
            if loaded.system_id != identity.system_id {
                return Err(Error::SlotForeign {
                    path: file::path_of(&dir, &loaded.name),
                    slot_system_id: loaded.system_id,
                    wal_system_id: identity.system_id,
                });
            }
            table.restore(loaded);
        }
        let inner = Inner {
            dir,
            table: Mutex::new(table),
            streams: Mutex::default(),
            io: Mutex::new(()),
            moved: Notify::new(),
            built: watch::Sender::new(()),
            running_xacts_wish: AtomicBool::new(false),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The state machine; the guard must not live across an await.
    pub fn table(&self) -> MutexGuard<'_, SlotTable> {
        self.inner.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a slot with a name, and stores it if it is persistent. Blocks on the disk.
    ///
    /// # Errors
    /// The name is wrong or taken, the limit is reached, or the file cannot be written.
    pub fn create(&self, new: SlotFile, persistency: Persistency) -> Result<Slot> {
        self.add(|table| table.create(new, persistency))
    }

    /// Makes a slot like another one. Blocks on the disk.
    ///
    /// # Errors
    /// As [`SlotTable::copy`], or the file cannot be written.
    pub fn copy(&self, source: &str, name: &str, persistency: Persistency, now_ms: u64) -> Result<Slot> {
        self.add(|table| table.copy(source, name, persistency, now_ms))
    }

    /// Adds a slot to the table and the disk, or to neither.
    fn add(&self, add: impl FnOnce(&mut SlotTable) -> Result<Slot>) -> Result<Slot> {
        let _io = self.lock_io();
        let slot = add(&mut self.table())?;
        if let Err(error) = self.store(&slot) {
            self.table().forget(&slot.state.name);
            return Err(error);
        }
        Ok(slot)
    }

    /// Moves a slot that nobody holds; the new position is on disk then. Of a logical one `find` tells, by its restart position,
    /// from where a decoder may begin then. Blocks on the disk.
    ///
    /// # Errors
    /// As [`SlotTable::advance`], those of `find`, or the file cannot be written: the slot has moved then, and is stored later.
    pub fn advance(
        &self,
        name: &str,
        target: Lsn,
        etag: &str,
        find: impl FnOnce(Lsn) -> Result<Option<RestartPoint>>,
    ) -> Result<Slot> {
        let before = self.table().advanceable(name, target, etag)?.clone();
        // The slot is free meanwhile, so what was found holds for whatever becomes of it, or it is refused.
        let point = if before.state.kind == SlotKind::Logical { find(before.state.restart_lsn)? } else { None };
        let _io = self.lock_io();
        let slot = self.table().advance(name, target, etag, point)?;
        self.store(&slot)?;
        Ok(slot)
    }

    /// Stores a slot if it is persistent. The caller holds the lock of the files.
    fn store(&self, slot: &Slot) -> Result<()> {
        if slot.persistency == Persistency::Persistent {
            file::store(&self.inner.dir, &slot.state)?;
            self.table().mark_saved(slot.state.clone());
        }
        Ok(())
    }

    /// Removes a temporary slot that no stream has taken; true if there was one.
    pub fn expire(&self, name: &str, created_at_ms: u64) -> bool {
        self.table().expire(name, created_at_ms)
    }

    /// Notes how far the creation of a slot is; false if it is of no use any more.
    pub(crate) fn report_creation(&self, name: &str, created_at_ms: u64, report: &Arc<CreationReport>) -> bool {
        let goes_on = self.table().report_creation(name, created_at_ms, report);
        self.inner.built.send_replace(());
        self.inner.moved.notify_one();
        goes_on
    }

    /// Asks whoever writes the log for a list of running transactions (`LogStandbySnapshot`).
    pub(crate) fn wish_running_xacts(&self) {
        self.inner.running_xacts_wish.store(true, Ordering::Relaxed);
    }

    /// Whether a list was asked for since the last call.
    pub(crate) fn take_running_xacts_wish(&self) -> bool {
        self.inner.running_xacts_wish.swap(false, Ordering::Relaxed)
    }

    /// Tells when the creation of some slot got further or ended.
    #[must_use]
    pub fn built(&self) -> watch::Receiver<()> {
        self.inner.built.subscribe()
    }

    /// Deletes a slot and its file. Blocks on the disk.
    ///
    /// # Errors
    /// No such slot, in use (unless `force`, which ends the stream that holds it), or changed since `etag`.
    pub fn delete(&self, name: &str, etag: &str, force: bool) -> Result<()> {
        let _io = self.lock_io();
        let holder = self.table().delete(name, etag, force)?;
        self.end_stream(holder);
        self.inner.built.send_replace(());
        file::remove(&self.inner.dir, name)
    }

    /// Gives a slot to a stream of `client_id`, and ends the half-open stream of the same client that held it.
    ///
    /// # Errors
    /// No such slot, lost for good, or held by another client.
    pub fn hold(&self, name: &str, client_id: &str, now_ms: u64) -> Result<Held> {
        let (lease, replaced) = self.table().acquire(name, client_id, now_ms)?;
        self.end_stream(replaced);
        Ok(self.held(lease))
    }

    /// Makes an ephemeral slot at the position of `state` for a stream of `client_id`.
    ///
    /// # Errors
    /// As [`SlotTable::acquire_ephemeral`].
    pub fn hold_ephemeral(&self, state: SlotFile, client_id: &str, now_ms: u64) -> Result<Held> {
        let lease = self.table().acquire_ephemeral(state, client_id, now_ms)?;
        Ok(self.held(lease))
    }

    /// Marks slots that need WAL before `oldest` as lost, ends their streams and returns their names.
    pub fn invalidate_before(&self, oldest: Lsn, cause: &str) -> Vec<String> {
        let lost = self.table().invalidate_before(oldest, cause);
        let names = lost.iter().map(|(name, _)| name.clone()).collect();
        lost.into_iter().for_each(|(_, holder)| self.end_stream(holder));
        self.inner.moved.notify_one();
        names
    }

    /// Decides by `policy`, which is told the oldest WAL that slots need, what may be removed; marks slots as lost that it does not
    /// spare, and gives their names. From then on no slot can begin in what will be removed.
    pub fn plan_removal(
        &self,
        segment_size: u32,
        cause: &str,
        policy: impl FnOnce(Option<Lsn>) -> Removal,
    ) -> (Removal, Vec<String>) {
        let mut table = self.table();
        let mut removal = policy(table.oldest_saved());
        // What a scenario's consumer may keep is the scenario's to say.
        removal.remove_before =
            table.oldest_saved_of_scenario().map_or(removal.remove_before, |lsn| lsn.min(removal.remove_before));
        // Segments go in whole.
        let floor = removal.remove_before.0 - removal.remove_before.0 % u64::from(segment_size);
        table.raise_floor(Lsn(floor));
        drop(table);
        (removal, self.invalidate_before(removal.slots_lost_before, cause))
    }

    /// A hold that ends when it is dropped.
    fn held(&self, lease: Lease) -> Held {
        let ended = CancellationToken::new();
        self.streams().insert(lease.session, ended.clone());
        Held { slots: self.clone(), lease, ended }
    }

    /// Tells a stream that it lost its slot.
    fn end_stream(&self, session: Option<u64>) {
        if let Some(ended) = session.and_then(|s| self.streams().remove(&s)) {
            ended.cancel();
        }
    }

    /// The streams that hold slots.
    fn streams(&self) -> MutexGuard<'_, HashMap<u64, CancellationToken>> {
        self.inner.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores every slot that moved since it was stored. Blocks on the disk.
    ///
    /// # Errors
    /// The first file that could not be written; the others are tried too, and all are tried again at the next save.
    pub fn save_moved(&self) -> Result<()> {
        let _io = self.lock_io();
        let dirty = self.table().dirty();
        let mut result = Ok(());
        for state in dirty {
            match file::store(&self.inner.dir, &state) {
                Ok(()) => self.table().mark_saved(state),
                Err(error) => result = result.and(Err(error)),
            }
        }
        result
    }

    /// Waits until some slot moved or was released.
    pub async fn moved(&self) {
        self.inner.moved.notified().await;
    }

    /// Makes the saver try again.
    pub fn retry(&self) {
        self.inner.moved.notify_one();
    }

    /// The lock of the files.
    fn lock_io(&self) -> MutexGuard<'_, ()> {
        self.inner.io.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream's hold on a slot; dropping it lets go. An ephemeral slot ends with it.
#[derive(Debug)]
pub struct Held {
    /// Where the slot is.
    slots: Slots,
    /// The hold; void once another stream took the slot over.
    lease: Lease,
    /// Cancelled when the hold is void.
    ended: CancellationToken,
}

impl Held {
    /// The slot's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.lease.name
    }

    /// Notes how far the holder has confirmed; the saver stores it soon.
    pub fn confirm(&self, told: Confirmation) {
        if self.slots.table().confirm(&self.lease, told) {
            self.slots.inner.moved.notify_one();
        }
    }

    /// Notes what the holder has told besides: received and applied.
    pub fn report(&self, received: Lsn, applied: Lsn) {
        self.slots.table().report(&self.lease, received, applied);
    }

    /// Notes the oldest xids that the holder's readers need, invalid if none; the saver stores them soon.
    pub fn report_xmins(&self, xmin: Xid, catalog_xmin: Xid) {
        if self.slots.table().report_xmins(&self.lease, xmin, catalog_xmin) {
            self.slots.inner.moved.notify_one();
        }
    }

    /// Waits until the hold is void, and says why.
    pub async fn lost(&self) -> Error {
        self.ended.cancelled().await;
        self.cause()
    }

    /// Why the hold is void; none if it is not.
    #[must_use]
    pub fn why_void(&self) -> Option<Error> {
        self.ended.is_cancelled().then(|| self.cause())
    }

    /// What became of the slot.
    fn cause(&self) -> Error {
        let name = self.lease.name.clone();
        match self.slots.table().get(&name) {
            Err(error) => error,
            Ok(Slot { state: SlotFile { invalidated: Some(cause), .. }, .. }) => Error::SlotInvalidated { name, cause },
            Ok(_) => Error::SlotTakenOver { name },
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.slots.table().release(&self.lease);
        self.slots.streams().remove(&self.lease.session);
        self.slots.inner.moved.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use pg_types::PgVersion;

    use super::*;

    const IDENTITY: WalIdentity = WalIdentity { version: PgVersion::V18, system_id: 77, timeline: 1, segment_size: 1 << 20 };

    fn new(name: &str, lsn: u64) -> SlotFile {
        SlotFile::new(name, &IDENTITY, Lsn(lsn), 5)
    }

    fn to(flushed: u64) -> Confirmation {
        Confirmation { flushed: Lsn(flushed), restart: Lsn::INVALID }
    }

    #[test]
    fn a_position_survives_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let slots = Slots::open(dir.path(), &IDENTITY, 10).unwrap();
        slots.create(new("orders", 0x100), Persistency::Persistent).unwrap();
        let held = slots.hold("orders", "c", 1).unwrap();
        held.confirm(to(0x200));
        held.report_xmins(Xid(700), Xid(650));
        assert_eq!(slots.table().oldest_saved(), Some(Lsn(0x100)), "not released before it is on disk (I3)");
        slots.save_moved().unwrap();
        assert_eq!(slots.table().oldest_saved(), Some(Lsn(0x200)));

        let again = Slots::open(dir.path(), &IDENTITY, 10).unwrap();
        let slot = again.table().get("orders").unwrap();
        assert_eq!(slot.state.confirmed_flush_lsn, Lsn(0x200));
        assert!(slot.active.is_none());
        assert_eq!((slot.state.xmin, slot.state.catalog_xmin), (700, 650));
    }

    #[test]
    fn slots_of_another_cluster_are_refused_with_file_and_remedy() {
        let dir = tempfile::tempdir().unwrap();
        Slots::open(dir.path(), &IDENTITY, 10).unwrap().create(new("orders", 1), Persistency::Persistent).unwrap();
        let error = Slots::open(dir.path(), &WalIdentity { system_id: 78, ..IDENTITY }, 10).unwrap_err().to_string();
        assert!(error.contains("orders.slot") && error.contains("77") && error.contains("78"), "{error}");
    }

    #[test]
    fn a_deleted_slot_does_not_come_back_with_a_late_save() {
        let dir = tempfile::tempdir().unwrap();
        let slots = Slots::open(dir.path(), &IDENTITY, 10).unwrap();
        slots.create(new("orders", 1), Persistency::Persistent).unwrap();
        let held = slots.hold("orders", "c", 1).unwrap();
        held.confirm(to(9));
        assert!(matches!(slots.delete("orders", "", false), Err(Error::SlotActive { .. })));
        slots.delete("orders", "", true).unwrap();
        held.confirm(to(10));
        slots.save_moved().unwrap();
        assert_eq!(std::fs::read_dir(dir.path().join("slots")).unwrap().count(), 0);
    }

    #[test]
    fn copies_and_advances_are_on_disk_when_the_call_returns_and_temporary_slots_never() {
        let dir = tempfile::tempdir().unwrap();
        let slots = Slots::open(dir.path(), &IDENTITY, 10).unwrap();
        slots.create(new("orders", 0x100), Persistency::Persistent).unwrap();
        slots.advance("orders", Lsn(0x200), "", |_| panic!("it is physical")).unwrap();
        slots.copy("orders", "copy", Persistency::Persistent, 6).unwrap();
        slots.copy("orders", "temporary", Persistency::Temporary, 6).unwrap();
        let again = Slots::open(dir.path(), &IDENTITY, 10).unwrap();
        let found: Vec<_> = again.table().list().map(|s| (s.state.name.clone(), s.state.restart_lsn.0)).collect();
        assert_eq!(found, [("copy".to_owned(), 0x200), ("orders".to_owned(), 0x200)]);
        std::fs::remove_dir_all(dir.path().join("slots")).unwrap();
        slots.copy("orders", "third", Persistency::Persistent, 7).expect_err("there is no directory");
        assert!(matches!(slots.table().get("third"), Err(Error::SlotNotFound { .. })), "on neither side");
    }

    #[tokio::test]
    async fn a_stream_that_loses_its_slot_is_told_why() {
        let dir = tempfile::tempdir().unwrap();
        let slots = Slots::open(dir.path(), &IDENTITY, 10).unwrap();
        for name in ["a", "b", "c"] {
            slots.create(new(name, 1), Persistency::Persistent).unwrap();
        }
        let (a, b, c) = (slots.hold("a", "x", 1).unwrap(), slots.hold("b", "x", 1).unwrap(), slots.hold("c", "x", 1).unwrap());
        let newer = slots.hold("a", "x", 2).unwrap();
        assert!(matches!(a.lost().await, Error::SlotTakenOver { .. }));
        drop(a);
        assert!(matches!(slots.hold("a", "y", 3), Err(Error::SlotActive { .. })), "the old stream's end frees nothing");
        drop(newer);
        slots.delete("b", "", true).unwrap();
        assert!(matches!(b.lost().await, Error::SlotNotFound { .. }));
        c.confirm(to(5));
        assert_eq!(slots.invalidate_before(Lsn(6), "WAL removed"), ["a", "c"]);
        assert!(matches!(c.lost().await, Error::SlotInvalidated { .. }));
        slots.save_moved().unwrap();
        let again = Slots::open(dir.path(), &IDENTITY, 10).unwrap();
        assert!(matches!(again.hold("c", "x", 1), Err(Error::SlotInvalidated { .. })), "the loss is stored");
    }
}
