//! The state of all slots in memory: a plain state machine without clock, lock or file.

use std::collections::BTreeMap;
use std::sync::Arc;

use pg_types::{Lsn, Xid};

use super::creation::CreationReport;
use super::file::{SlotFile, SlotKind};
use super::restart_decoding::RestartPoint;
use crate::error::{Error, Result};

/// Longest slot name in bytes (`NAMEDATALEN` − 1).
const NAME_BYTES_MAX: usize = 63;

/// How long a slot lives (`ReplicationSlotPersistency`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Persistency {
    /// Until it is deleted; it is on disk.
    Persistent,
    /// Until the first stream that held it ends; in memory only.
    Temporary,
    /// As temporary, but made for one stream that named no slot. It does not count against the limit of slots: the limit of
    /// streams bounds it.
    Ephemeral,
}

/// What a holder reports of its positions; [`Lsn::INVALID`] means "not told".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Confirmation {
    /// Everything before is durable at the consumer, or of no use to it.
    pub flushed: Lsn,
    /// Oldest position that it may ask for again; not told: `flushed`.
    pub restart: Lsn,
}

/// A slot.
#[derive(Clone, Debug)]
pub struct Slot {
    /// How long it lives.
    pub persistency: Persistency,
    /// What is stored of it, or would be.
    pub state: SlotFile,
    /// The stream that holds it.
    pub active: Option<Active>,
    /// What is on disk; WAL from its `restart_lsn` on is kept. Unset until it was stored once.
    pub saved: Option<SlotFile>,
    /// How far its creation is, while it is being built.
    pub creation: Option<Arc<CreationReport>>,
}

impl Slot {
    /// Whether its holder has applied everything before `lsn`, or an earlier one has and was confirmed so far.
    pub(crate) fn has_applied(&self, lsn: Lsn) -> bool {
        let applied = self.active.as_ref().map_or(Lsn::INVALID, |active| active.applied);
        applied.max(self.state.confirmed_flush_lsn) >= lsn
    }

    /// Whether it is a scenario's consumer's, and no client's.
    #[must_use]
    pub fn is_of_scenario(&self) -> bool {
        self.state.run_start_lsn.is_valid()
    }

    /// Changes whenever the slot does in more than its position, for optimistic deletes.
    #[must_use]
    pub fn etag(&self) -> String {
        let session = self.active.as_ref().map_or(0, |a| a.session);
        let lost = if self.state.invalidated.is_some() { "-lost" } else { "" };
        format!("{:x}-{session:x}{lost}", self.state.created_at_ms)
    }
}

/// The stream that holds a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Active {
    /// What the client calls itself; empty if it has no name.
    pub client_id: String,
    /// Since when, in milliseconds since 1970.
    pub since_ms: u64,
    /// Number of the stream, never used twice in a process.
    pub session: u64,
    /// Last position reported as received.
    pub received: Lsn,
    /// Last position reported as applied.
    pub applied: Lsn,
}

/// A stream's hold on a slot. It is void once another stream took the slot over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The slot.
    pub name: String,
    /// The stream.
    pub session: u64,
}

/// All slots.
#[derive(Debug)]
pub struct SlotTable {
    /// By name.
    pub(super) slots: BTreeMap<String, Slot>,
    /// Most slots with a name there may be (`max_replication_slots`).
    max_slots: usize,
    /// Number of the next stream.
    pub(super) next_session: u64,
    /// WAL before this is being removed: no slot may begin there.
    floor: Lsn,
}

impl SlotTable {
    /// An empty table for at most `max_slots` slots.
    #[must_use]
    pub fn new(max_slots: usize) -> Self {
        Self { slots: BTreeMap::new(), max_slots, next_session: 1, floor: Lsn(0) }
    }

    /// Adds a slot that was read from disk.
    pub(super) fn restore(&mut self, state: SlotFile) {
        let (persistency, saved) = (Persistency::Persistent, Some(state.clone()));
        self.slots.insert(state.name.clone(), Slot { persistency, state, active: None, saved, creation: None });
    }

    /// Adds a new slot. The names of ephemeral ones are not for clients to choose, so they are not checked.
    ///
    /// # Errors
    /// The name is wrong or taken, or the limit is reached.
    pub fn create(&mut self, state: SlotFile, persistency: Persistency) -> Result<Slot> {
        if self.slots.contains_key(&state.name) {
            return Err(Error::SlotExists { name: state.name });
        }
        if state.restart_lsn < self.floor {
            return Err(Error::LsnRemoved { requested: state.restart_lsn, oldest: self.floor });
        }
        if persistency != Persistency::Ephemeral {
            validate_name(&state.name)?;
            let named = self.slots.values().filter(|slot| slot.persistency != Persistency::Ephemeral).count();
            if named >= self.max_slots {
                return Err(Error::TooManySlots { limit: self.max_slots });
            }
        }
        let slot = Slot { persistency, state, active: None, saved: None, creation: None };
        self.slots.insert(slot.state.name.clone(), slot.clone());
        Ok(slot)
    }

    /// Undoes a [`SlotTable::create`] whose file could not be written.
    pub(super) fn forget(&mut self, name: &str) {
        self.slots.remove(name);
    }

    /// Removes a slot and returns the stream that held it; the caller removes its file.
    ///
    /// # Errors
    /// No such slot; a scenario's; in use and not `force`; changed since `etag` (empty: whatever its state).
    pub fn delete(&mut self, name: &str, etag: &str, force: bool) -> Result<Option<u64>> {
        let slot = self.get(name)?;
        check_is_clients(&slot)?;
        check_etag(&slot, etag)?;
        if let (Some(active), false) = (&slot.active, force) {
            return Err(slot_active(name, active));
        }
        self.slots.remove(name);
        Ok(slot.active.map(|active| active.session))
    }

    /// Makes a slot like `source`, at the same positions and with the same xmins (`copy_replication_slot`).
    ///
    /// # Errors
    /// No such slot, being built or lost; the new name is wrong or taken, or the limit is reached.
    pub fn copy(&mut self, source: &str, name: &str, persistency: Persistency, now_ms: u64) -> Result<Slot> {
        let source = self.usable(source)?;
        let state = source.state.clone();
        let state = SlotFile { name: name.to_owned(), created_at_ms: now_ms, run_start_lsn: Lsn::INVALID, ..state };
        self.create(state, persistency)
    }

    /// Moves a slot that nobody holds to `target` (`pg_replication_slot_advance`). The restart position of a logical one goes to
    /// `point`, from where a decoder may begin then, and so does its `catalog_xmin` if it has one; nothing goes back (I1).
    ///
    /// # Errors
    /// As [`SlotTable::advanceable`].
    pub fn advance(&mut self, name: &str, target: Lsn, etag: &str, point: Option<RestartPoint>) -> Result<Slot> {
        let slot = self.advanceable(name, target, etag)?;
        let state = &mut slot.state;
        state.confirmed_flush_lsn = target;
        if state.kind == SlotKind::Physical {
            state.restart_lsn = target;
        } else if let Some(point) = point {
            state.restart_lsn = state.restart_lsn.max(point.restart_lsn.min(target));
            if Xid(state.catalog_xmin).is_normal() && point.catalog_xmin.follows(Xid(state.catalog_xmin)) {
                state.catalog_xmin = point.catalog_xmin.0;
            }
        }
        Ok(slot.clone())
    }

    /// A slot that may be moved to `target`.
    ///
    /// # Errors
    /// No such slot, being built, lost, held, or changed since `etag` (empty: whatever its state); the target lies before its
    /// position (I1). The caller has checked that WAL reaches so far.
    pub(super) fn advanceable(&mut self, name: &str, target: Lsn, etag: &str) -> Result<&mut Slot> {
        let slot = self.usable(name)?;
        check_is_clients(slot)?;
        check_etag(slot, etag)?;
        if let Some(active) = &slot.active {
            return Err(slot_active(name, active));
        }
        let at = slot.state.confirmed_flush_lsn;
        if target < at {
            let text = format!("{target} lies before the slot's position {at}, and a slot never goes back");
            return Err(Error::field("target_lsn", text));
        }
        Ok(slot)
    }

    /// A slot that is whole: neither being built nor lost.
    fn usable(&mut self, name: &str) -> Result<&mut Slot> {
        let slot = self.slots.get_mut(name).ok_or_else(|| not_found(name))?;
        if let Some(cause) = &slot.state.invalidated {
            return Err(Error::SlotInvalidated { name: name.to_owned(), cause: cause.clone() });
        }
        if slot.state.building {
            let report = slot.creation.as_deref();
            return Err(Error::SlotBuilding {
                name: name.to_owned(),
                state: report.map_or("START", |r| r.state.name()),
                waits_for: report.map_or(Xid::INVALID, |r| r.waits_for),
                running: report.map_or(0, |r| r.running_count),
            });
        }
        Ok(slot)
    }

    /// Makes an ephemeral slot for a stream and gives it to it. Its name cannot be one of a persistent slot.
    ///
    /// # Errors
    /// None that its own name does not exclude.
    pub fn acquire_ephemeral(&mut self, mut state: SlotFile, client_id: &str, now_ms: u64) -> Result<Lease> {
        state.name = format!("ephemeral-{}", self.next_session);
        let slot = self.create(state, Persistency::Ephemeral)?;
        self.acquire(&slot.state.name, client_id, now_ms).map(|(lease, _)| lease)
    }

    /// The slot called `name`.
    ///
    /// # Errors
    /// There is none.
    pub fn get(&self, name: &str) -> Result<Slot> {
        self.slots.get(name).cloned().ok_or_else(|| not_found(name))
    }

    /// All slots by name.
    pub fn list(&self) -> impl Iterator<Item = &Slot> {
        self.slots.values()
    }

    /// Gives the slot to a new stream of `client_id`. The second value is the stream that lost it: one of the same (named)
    /// client, which is taken for half-open.
    ///
    /// # Errors
    /// No such slot, being built, lost for good, or held by another client.
    pub fn acquire(&mut self, name: &str, client_id: &str, now_ms: u64) -> Result<(Lease, Option<u64>)> {
        let session = self.next_session;
        let slot = self.usable(name)?;
        check_is_clients(slot)?;
        let replaced = match &slot.active {
            None => None,
            Some(active) if !client_id.is_empty() && active.client_id == client_id => Some(active.session),
            Some(active) => return Err(slot_active(name, active)),
        };
        let client_id = client_id.to_owned();
        slot.active = Some(Active { client_id, since_ms: now_ms, session, received: Lsn(0), applied: Lsn(0) });
        self.next_session += 1;
        Ok((Lease { name: name.to_owned(), session }, replaced))
    }

    /// True while `lease` holds its slot.
    #[must_use]
    pub fn holds(&self, lease: &Lease) -> bool {
        let active = self.slots.get(&lease.name).and_then(|s| s.active.as_ref());
        active.is_some_and(|a| a.session == lease.session)
    }

    /// Ends a hold; nothing happens if it is void. A slot that is not persistent ends too.
    pub fn release(&mut self, lease: &Lease) {
        if !self.holds(lease) {
            return;
        }
        if let Some(slot) = self.slots.get_mut(&lease.name) {
            slot.active = None;
            if slot.persistency != Persistency::Persistent {
                self.slots.remove(&lease.name);
            }
        }
    }

    /// Moves the held slot to what its holder confirmed; the caller has checked that so much was sent. False if nothing moved: no
    /// position is newer (I1) or the hold is void (I2).
    pub fn confirm(&mut self, lease: &Lease, told: Confirmation) -> bool {
        let Some(slot) = self.held(lease) else { return false };
        let restart = if told.restart.is_valid() { told.restart.min(told.flushed) } else { told.flushed };
        let moved = told.flushed > slot.state.confirmed_flush_lsn || restart > slot.state.restart_lsn;
        slot.state.confirmed_flush_lsn = slot.state.confirmed_flush_lsn.max(told.flushed);
        slot.state.restart_lsn = slot.state.restart_lsn.max(restart);
        moved
    }

    /// What the holder has told besides its confirmed positions, for people to look at.
    pub fn report(&mut self, lease: &Lease, received: Lsn, applied: Lsn) {
        if let Some(active) = self.held(lease).and_then(|slot| slot.active.as_mut()) {
            (active.received, active.applied) = (received, applied);
        }
    }

    /// Hot-standby feedback: the oldest xids that the holder's readers need, invalid if none. They stay with the slot when the
    /// holder goes, and never go back, unless they are withdrawn (`PhysicalReplicationSlotNewXmin`). True if one moved.
    pub fn report_xmins(&mut self, lease: &Lease, xmin: Xid, catalog_xmin: Xid) -> bool {
        let Some(slot) = self.held(lease) else { return false };
        let moved = |before: u32, told: Xid| {
            let told = if told.is_normal() { told } else { Xid::INVALID };
            let back = Xid(before).is_normal() && told.is_normal() && told.precedes(Xid(before));
            if back { before } else { told.0 }
        };
        let before = (slot.state.xmin, slot.state.catalog_xmin);
        slot.state.xmin = moved(before.0, xmin);
        slot.state.catalog_xmin = moved(before.1, catalog_xmin);
        before != (slot.state.xmin, slot.state.catalog_xmin)
    }

    /// The slot that `lease` holds.
    fn held(&mut self, lease: &Lease) -> Option<&mut Slot> {
        self.slots.get_mut(&lease.name).filter(|slot| slot.active.as_ref().is_some_and(|a| a.session == lease.session))
    }

    /// The slots that are being built, with the position from which they are.
    pub fn unfinished(&self) -> impl Iterator<Item = &SlotFile> {
        self.slots.values().map(|slot| &slot.state).filter(|state| state.building && state.invalidated.is_none())
    }

    /// Notes how far the creation of a slot is; at its end the slot gets the positions that were found. False if the slot is gone
    /// or lost, or is another one of that name.
    pub fn report_creation(&mut self, name: &str, created_at_ms: u64, report: &Arc<CreationReport>) -> bool {
        let same = |slot: &&mut Slot| slot.state.building && slot.state.created_at_ms == created_at_ms;
        let Some(slot) = self.slots.get_mut(name).filter(same).filter(|s| s.state.invalidated.is_none()) else { return false };
        slot.state.restart_lsn = slot.state.restart_lsn.max(report.restart_lsn);
        slot.state.confirmed_flush_lsn = slot.state.confirmed_flush_lsn.max(slot.state.restart_lsn);
        slot.creation = Some(Arc::clone(report));
        if let Some(consistent) = report.consistent_lsn {
            slot.state.confirmed_flush_lsn = slot.state.confirmed_flush_lsn.max(consistent);
            (slot.state.building, slot.creation) = (false, None);
        }
        true
    }

    /// Removes a temporary slot made at `created_at_ms` that no stream has taken.
    pub fn expire(&mut self, name: &str, created_at_ms: u64) -> bool {
        let unheld = |slot: &Slot| {
            slot.persistency == Persistency::Temporary && slot.active.is_none() && slot.state.created_at_ms == created_at_ms
        };
        self.slots.get(name).is_some_and(unheld) && self.slots.remove(name).is_some()
    }

    /// Marks clients' slots that need WAL before `oldest` as lost and returns their names and the streams that held them.
    pub fn invalidate_before(&mut self, oldest: Lsn, cause: &str) -> Vec<(String, Option<u64>)> {
        let mut lost = Vec::new();
        for (name, slot) in &mut self.slots {
            if slot.state.restart_lsn < oldest && slot.state.invalidated.is_none() && !slot.is_of_scenario() {
                slot.state.invalidated = Some(cause.to_owned());
                slot.creation = None;
                lost.push((name.clone(), slot.active.take().map(|a| a.session)));
            }
        }
        lost
    }

    /// Notes that WAL before `floor` is being removed.
    pub(super) fn raise_floor(&mut self, floor: Lsn) {
        self.floor = self.floor.max(floor);
    }

    /// States that differ from what is on disk.
    #[must_use]
    pub fn dirty(&self) -> Vec<SlotFile> {
        let persistent = self.slots.values().filter(|slot| slot.persistency == Persistency::Persistent);
        persistent.filter(|slot| slot.saved.as_ref() != Some(&slot.state)).map(|slot| slot.state.clone()).collect()
    }

    /// Notes that `state` is on disk.
    pub fn mark_saved(&mut self, state: SlotFile) {
        if let Some(slot) = self.slots.get_mut(&state.name) {
            slot.saved = Some(state);
        }
    }

    /// The client's slot whose consumer has confirmed most, and up to where.
    #[must_use]
    pub fn furthest_confirmed(&self) -> Option<(&str, Lsn)> {
        let valid = self.slots.values().filter(|slot| slot.state.invalidated.is_none() && !slot.is_of_scenario());
        valid.map(|slot| (slot.state.name.as_str(), slot.state.confirmed_flush_lsn)).max_by_key(|(_, lsn)| *lsn)
    }

    /// The oldest WAL that a client's slot needs, going by what is on disk (I3); lost slots need none.
    #[must_use]
    pub fn oldest_saved(&self) -> Option<Lsn> {
        self.oldest_saved_of(|slot| !slot.is_of_scenario())
    }

    /// The same of slots of a scenario's consumers.
    #[must_use]
    pub fn oldest_saved_of_scenario(&self) -> Option<Lsn> {
        self.oldest_saved_of(Slot::is_of_scenario)
    }

    /// The same of some slots.
    fn oldest_saved_of(&self, which: impl Fn(&Slot) -> bool) -> Option<Lsn> {
        let kept = self.slots.values().filter(|slot| slot.state.invalidated.is_none() && which(slot));
        // Not persistent, or not stored yet: what it starts with.
        kept.map(|slot| slot.saved.as_ref().unwrap_or(&slot.state).restart_lsn).min()
    }
}

/// Checks a slot's name: `[a-z0-9_]{1,63}`, PostgreSQL's rule.
///
/// # Errors
/// What is wrong with it.
pub fn validate_name(name: &str) -> Result<()> {
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(good) {
        return Err(Error::field("slot", "a slot's name has 1 to 63 of the characters a-z, 0-9 and _"));
    }
    Ok(())
}

/// Refuses a slot that is a scenario's.
fn check_is_clients(slot: &Slot) -> Result<()> {
    if slot.is_of_scenario() { Err(Error::SlotOfScenario { name: slot.state.name.clone() }) } else { Ok(()) }
}

/// Refuses if the slot is no longer as `etag` says; empty: it may be in any state.
fn check_etag(slot: &Slot, etag: &str) -> Result<()> {
    if etag.is_empty() || etag == slot.etag() {
        return Ok(());
    }
    Err(Error::SlotChanged { name: slot.state.name.clone(), etag: slot.etag() })
}

/// The error of a missing slot.
fn not_found(name: &str) -> Error {
    Error::SlotNotFound { name: name.to_owned() }
}

/// The error of a slot in use.
fn slot_active(name: &str, active: &Active) -> Error {
    Error::SlotActive { name: name.to_owned(), holder: active.client_id.clone(), since_ms: active.since_ms }
}

#[cfg(test)]
mod tests;
