//! The state of all slots in memory: a plain state machine without clock, lock or file.

use std::collections::BTreeMap;

use pg_types::Lsn;

use super::file::SlotFile;
use crate::error::{Error, Result};

/// Longest slot name in bytes (`NAMEDATALEN` − 1).
const NAME_BYTES_MAX: usize = 63;

/// How long a slot lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotKind {
    /// Until it is deleted; it is on disk.
    Permanent,
    /// Until the stream that holds it ends; in memory only.
    Ephemeral,
}

/// A slot.
#[derive(Clone, Debug)]
pub struct Slot {
    /// How long it lives.
    pub kind: SlotKind,
    /// What is stored of it.
    pub state: SlotFile,
    /// The stream that holds it.
    pub active: Option<Active>,
    /// `restart_lsn` on disk; WAL from here on is kept. Unset until it was stored once.
    pub saved_lsn: Option<Lsn>,
}

impl Slot {
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
    /// Oldest xid that the client's readers need, and the same for catalogs; 0 if none.
    pub xmins: (u32, u32),
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
    slots: BTreeMap<String, Slot>,
    /// Most slots there may be (`max_replication_slots`).
    max_slots: usize,
    /// Number of the next stream.
    next_session: u64,
}

impl SlotTable {
    /// An empty table for at most `max_slots` slots.
    #[must_use]
    pub fn new(max_slots: usize) -> Self {
        Self { slots: BTreeMap::new(), max_slots, next_session: 1 }
    }

    /// Adds a slot that was read from disk.
    pub(super) fn restore(&mut self, state: SlotFile) {
        let saved_lsn = Some(state.restart_lsn);
        self.slots.insert(state.name.clone(), Slot { kind: SlotKind::Permanent, state, active: None, saved_lsn });
    }

    /// Adds a new slot. The names of ephemeral ones are not for clients to choose, so they are not checked.
    ///
    /// # Errors
    /// The name is wrong or taken, or the limit is reached.
    pub fn create(&mut self, state: SlotFile, kind: SlotKind) -> Result<Slot> {
        if kind == SlotKind::Permanent {
            validate_name(&state.name)?;
        }
        if self.slots.contains_key(&state.name) {
            return Err(Error::SlotExists { name: state.name });
        }
        if self.slots.len() >= self.max_slots {
            return Err(Error::TooManySlots { limit: self.max_slots });
        }
        let slot = Slot { kind, state, active: None, saved_lsn: None };
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
    /// No such slot; in use and not `force`; changed since `etag` (empty: whatever its state).
    pub fn delete(&mut self, name: &str, etag: &str, force: bool) -> Result<Option<u64>> {
        let slot = self.get(name)?;
        if !etag.is_empty() && etag != slot.etag() {
            return Err(Error::SlotChanged { name: name.to_owned(), etag: slot.etag() });
        }
        if let (Some(active), false) = (&slot.active, force) {
            return Err(slot_active(name, active));
        }
        self.slots.remove(name);
        Ok(slot.active.map(|active| active.session))
    }

    /// Makes an ephemeral slot for a stream and gives it to it. Its name cannot be one of a permanent slot.
    ///
    /// # Errors
    /// The limit is reached.
    pub fn acquire_ephemeral(&mut self, mut state: SlotFile, client_id: &str, now_ms: u64) -> Result<Lease> {
        state.name = format!("ephemeral-{}", self.next_session);
        let slot = self.create(state, SlotKind::Ephemeral)?;
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
    /// No such slot, lost for good, or held by another client.
    pub fn acquire(&mut self, name: &str, client_id: &str, now_ms: u64) -> Result<(Lease, Option<u64>)> {
        let slot = self.slots.get_mut(name).ok_or_else(|| not_found(name))?;
        if let Some(cause) = &slot.state.invalidated {
            return Err(Error::SlotInvalidated { name: name.to_owned(), cause: cause.clone() });
        }
        let replaced = match &slot.active {
            None => None,
            Some(active) if !client_id.is_empty() && active.client_id == client_id => Some(active.session),
            Some(active) => return Err(slot_active(name, active)),
        };
        let session = self.next_session;
        self.next_session += 1;
        let client_id = client_id.to_owned();
        slot.active = Some(Active { client_id, since_ms: now_ms, session, received: Lsn(0), applied: Lsn(0), xmins: (0, 0) });
        Ok((Lease { name: name.to_owned(), session }, replaced))
    }

    /// True while `lease` holds its slot.
    #[must_use]
    pub fn holds(&self, lease: &Lease) -> bool {
        let active = self.slots.get(&lease.name).and_then(|s| s.active.as_ref());
        active.is_some_and(|a| a.session == lease.session)
    }

    /// Ends a hold; nothing happens if it is void. An ephemeral slot ends too.
    pub fn release(&mut self, lease: &Lease) {
        if !self.holds(lease) {
            return;
        }
        if let Some(slot) = self.slots.get_mut(&lease.name) {
            slot.active = None;
            if slot.kind == SlotKind::Ephemeral {
                self.slots.remove(&lease.name);
            }
        }
    }

    /// Moves the held slot to `flushed`; the caller has checked that so much was sent. False if nothing moved: the position
    /// is not newer (I1) or the hold is void (I2).
    pub fn confirm(&mut self, lease: &Lease, flushed: Lsn) -> bool {
        if !self.holds(lease) {
            return false;
        }
        match self.slots.get_mut(&lease.name) {
            Some(slot) if flushed > slot.state.confirmed_flush_lsn => {
                move_to(slot, flushed);
                true
            }
            _ => false,
        }
    }

    /// What the holder has told besides its flushed position, for people to look at.
    pub fn report(&mut self, lease: &Lease, received: Lsn, applied: Lsn, xmins: Option<(u32, u32)>) {
        let active = self.slots.get_mut(&lease.name).and_then(|s| s.active.as_mut());
        if let Some(active) = active.filter(|a| a.session == lease.session) {
            active.received = received;
            active.applied = applied;
            active.xmins = xmins.unwrap_or(active.xmins);
        }
    }

    /// Marks slots that need WAL before `oldest` as lost and returns their names and the streams that held them.
    pub fn invalidate_before(&mut self, oldest: Lsn, cause: &str) -> Vec<(String, Option<u64>)> {
        let mut lost = Vec::new();
        for (name, slot) in &mut self.slots {
            if slot.state.restart_lsn < oldest && slot.state.invalidated.is_none() {
                slot.state.invalidated = Some(cause.to_owned());
                slot.saved_lsn = None;
                lost.push((name.clone(), slot.active.take().map(|a| a.session)));
            }
        }
        lost
    }

    /// States that differ from what is on disk.
    #[must_use]
    pub fn dirty(&self) -> Vec<SlotFile> {
        let differs = |slot: &&Slot| slot.kind == SlotKind::Permanent && slot.saved_lsn != Some(slot.state.restart_lsn);
        self.slots.values().filter(differs).map(|slot| slot.state.clone()).collect()
    }

    /// Notes that `name` is on disk with position `lsn`.
    pub fn mark_saved(&mut self, name: &str, lsn: Lsn) {
        if let Some(slot) = self.slots.get_mut(name) {
            slot.saved_lsn = Some(lsn);
        }
    }

    /// The oldest WAL that some slot needs, going by what is on disk (I3); lost slots need none.
    #[must_use]
    pub fn oldest_saved(&self) -> Option<Lsn> {
        let needed = |slot: &Slot| match (slot.saved_lsn, &slot.state.invalidated) {
            (_, Some(_)) => None,
            (Some(saved), None) => Some(saved),
            // Ephemeral, or not stored yet: what it starts with.
            (None, None) => Some(slot.state.restart_lsn),
        };
        self.slots.values().filter_map(needed).min()
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

/// The position of a slot moves; `restart_lsn` with it, as for a physical slot (`PhysicalConfirmReceivedLocation`).
fn move_to(slot: &mut Slot, lsn: Lsn) {
    slot.state.confirmed_flush_lsn = lsn;
    slot.state.restart_lsn = lsn;
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
mod tests {
    use pg_types::{PgVersion, WalIdentity};
    use proptest::prelude::*;

    use super::*;

    const IDENTITY: WalIdentity = WalIdentity { version: PgVersion::V18, system_id: 1, timeline: 1, segment_size: 1 << 24 };

    fn table(names: &[&str]) -> SlotTable {
        let mut table = SlotTable::new(8);
        for name in names {
            table.create(SlotFile::new(name, &IDENTITY, Lsn(100), 0), SlotKind::Permanent).unwrap();
            table.mark_saved(name, Lsn(100));
        }
        table
    }

    #[test]
    fn names_are_postgresqls() {
        for good in ["a", "0", "_", &"x".repeat(63), "walstorm_decoder_1"] {
            validate_name(good).unwrap();
        }
        for bad in ["", "A", "a-b", "a.b", "../a", "é", "a b", "\u{1b}[31m", &"x".repeat(64)] {
            assert!(validate_name(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn only_the_same_named_client_takes_over() {
        let mut t = table(&["s"]);
        let (first, replaced) = t.acquire("s", "alice", 5).unwrap();
        assert_eq!(replaced, None);
        for other in ["bob", ""] {
            match t.acquire("s", other, 6) {
                Err(Error::SlotActive { holder, since_ms, .. }) => assert_eq!((holder.as_str(), since_ms), ("alice", 5)),
                result => panic!("{result:?}"),
            }
        }
        let (second, replaced) = t.acquire("s", "alice", 7).unwrap();
        assert_eq!(replaced, Some(first.session));
        assert!(!t.confirm(&first, Lsn(200)), "a stream that lost the slot moves it no more (I2)");
        t.release(&first);
        assert!(t.holds(&second));
        assert!(t.confirm(&second, Lsn(150)));
        t.release(&second);
        t.acquire("s", "bob", 8).unwrap();
    }

    #[test]
    fn unnamed_clients_do_not_take_over_each_other() {
        let mut t = table(&["s"]);
        t.acquire("s", "", 0).unwrap();
        assert!(matches!(t.acquire("s", "", 1), Err(Error::SlotActive { .. })));
    }

    #[test]
    fn lost_slots_hold_no_wal_and_say_why() {
        let mut t = table(&["old", "new"]);
        let (lease, _) = t.acquire("new", "c", 0).unwrap();
        assert!(t.confirm(&lease, Lsn(500)));
        assert_eq!(t.dirty().len(), 1);
        assert_eq!(t.invalidate_before(Lsn(300), "removed"), [("old".to_owned(), None)]);
        assert_eq!(t.dirty().len(), 2, "the loss is stored too");
        t.mark_saved("old", Lsn(100));
        t.mark_saved("new", Lsn(500));
        assert_eq!(t.oldest_saved(), Some(Lsn(500)));
        assert!(matches!(t.acquire("old", "c", 0), Err(Error::SlotInvalidated { .. })));
        assert!(t.invalidate_before(Lsn(300), "removed").is_empty(), "told once");
    }

    #[test]
    fn ephemeral_slots_end_with_their_stream_and_are_never_stored() {
        let mut t = table(&["s"]);
        let lease = t.acquire_ephemeral(SlotFile::new("", &IDENTITY, Lsn(50), 0), "c", 0).unwrap();
        assert_eq!(t.oldest_saved(), Some(Lsn(50)), "it keeps WAL while its stream lives");
        assert!(t.confirm(&lease, Lsn(60)));
        assert_eq!(t.oldest_saved(), Some(Lsn(60)));
        assert!(t.dirty().is_empty());
        assert!(validate_name(&lease.name).is_err(), "no permanent slot can have its name");
        t.release(&lease);
        assert!(t.get(&lease.name).is_err());
    }

    #[test]
    fn limits_and_etags_are_kept() {
        let mut t = SlotTable::new(1);
        let new = |name| SlotFile::new(name, &IDENTITY, Lsn(1), 0);
        let slot = t.create(new("a"), SlotKind::Permanent).unwrap();
        assert!(matches!(t.create(new("b"), SlotKind::Permanent), Err(Error::TooManySlots { limit: 1 })));
        assert!(matches!(t.acquire_ephemeral(new(""), "c", 0), Err(Error::TooManySlots { limit: 1 })));
        let (lease, _) = t.acquire("a", "c", 0).unwrap();
        assert!(matches!(t.delete("a", &slot.etag(), true), Err(Error::SlotChanged { .. })));
        let held = t.get("a").unwrap().etag();
        assert!(t.confirm(&lease, Lsn(2)));
        assert_eq!(t.get("a").unwrap().etag(), held, "progress is no change");
        t.release(&lease);
        let now = t.get("a").unwrap().etag();
        t.delete("a", &now, false).unwrap();
    }

    proptest! {
        /// I1, I2 and I3 against a model: the position is the greatest confirmed by the stream that held the slot.
        #[test]
        fn i1_i2_i3_positions_only_move_forward_and_only_by_the_holder(
            steps in proptest::collection::vec((0u8..5, 0usize..3, 0u64..300), 1..60)
        ) {
            let mut t = table(&["s"]);
            let mut leases: Vec<Lease> = Vec::new();
            let (mut model, mut saved) = (100u64, 100u64);
            for (op, who, lsn) in steps {
                match op {
                    0 => if let Ok((lease, _)) = t.acquire("s", ["a", "b", ""][who], lsn) { leases.push(lease) },
                    1 => if let Some(lease) = leases.get(who) { t.release(lease) },
                    2 | 3 => if let Some(lease) = leases.iter().rev().nth(who) {
                        let holds = t.holds(lease);
                        let moved = t.confirm(lease, Lsn(lsn));
                        prop_assert_eq!(moved, holds && lsn > model);
                        if moved { model = lsn }
                    },
                    _ => for state in t.dirty() {
                        saved = state.restart_lsn.0;
                        t.mark_saved("s", state.restart_lsn);
                    },
                }
                prop_assert_eq!(t.get("s").unwrap().state.confirmed_flush_lsn, Lsn(model));
                prop_assert_eq!(t.oldest_saved(), Some(Lsn(saved)));
                prop_assert!(saved <= model);
                prop_assert!(leases.iter().filter(|l| t.holds(l)).count() <= 1);
            }
        }
    }
}
