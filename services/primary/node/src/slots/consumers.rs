//! Slots of a scenario's consumers: seen, kept and kept WAL for as any others, and moved by the engine alone.
//!
//! A consumer of a scenario reads within the simulation, so that a seed repeats what it does ([`primary_core::consumer`]). Its slot
//! here follows: it has the position that the consumer had at the engine's last barrier, once the log is flushed up to there. No
//! client can hold, move or delete it.
//!
//! Invariants:
//! * I5 A position does not go back, also when a run that was cut off is played again: until the engine has reached it, the slot
//!   stays.
//! * I6 Nothing that clients or the disk do to these slots reaches the engine. What is lost is the scenario's to say.
//!
//! Life: made when the run begins (a name that a client has is refused then), found again by the run's position in the log after a
//! restart, inactive when the run is over. The slots of a scenario of the configuration stay with its log; those of a run that a
//! client asked for go with it, for the next may have the same names.

use pg_types::{Lsn, WalIdentity};
use primary_core::ConsumerSummary;
use primary_core::scenario::{ConsumerKind, ConsumerPlan};

use super::Slots;
use super::file::{self, SlotFile, SlotKind};
use super::table::{Active, Persistency, SlotTable};
use crate::error::{Error, Result};

/// What holders of these slots are called.
pub(crate) const SCENARIO: &str = "scenario";
/// Why a scenario's consumer is lost.
const LOST_CAUSE: &str = "its consumer kept more WAL than the scenario's max_slot_wal_keep_size";

/// A run whose consumers have slots.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConsumerRun {
    /// The log.
    pub(crate) identity: WalIdentity,
    /// Where the run began in it.
    pub(crate) start: Lsn,
    /// The time, in milliseconds since 1970.
    pub(crate) now_ms: u64,
}

impl Slots {
    /// Makes the slots of a run's consumers, or finds those that it had before a restart; those of other runs go. Blocks on the
    /// disk.
    ///
    /// # Errors
    /// A client has a slot of that name, there are too many, or a file cannot be written.
    pub(crate) fn adopt_consumers(&self, run: ConsumerRun, consumers: &[ConsumerPlan]) -> Result<()> {
        let _io = self.lock_io();
        for name in self.table().forget_consumers(|slot, start| start != run.start || !consumers.iter().any(|c| c.slot == slot))
        {
            file::remove(&self.inner.dir, &name)?;
        }
        for consumer in consumers {
            self.table().adopt(&run, consumer)?;
        }
        let new = self.table().dirty();
        for state in new {
            file::store(&self.inner.dir, &state)?;
            self.table().mark_saved(state);
        }
        self.inner.built.send_replace(());
        Ok(())
    }

    /// Moves the slots of consumers to where the engine says that they are; the saver stores it soon. The log must be flushed so
    /// far.
    pub(crate) fn move_consumers(&self, consumers: &[ConsumerSummary]) {
        let mut table = self.table();
        let moved = consumers.iter().filter(|consumer| table.follow(consumer)).count();
        drop(table);
        if moved > 0 {
            self.inner.moved.notify_one();
        }
    }

    /// The run is over: its consumers are gone, and their slots stay.
    pub(crate) fn release_consumers(&self) {
        let mut table = self.table();
        table.slots.values_mut().filter(|slot| slot.is_of_scenario()).for_each(|slot| slot.active = None);
    }

    /// The run is over, and its consumers' slots go. Blocks on the disk.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub(crate) fn drop_consumers(&self) -> Result<()> {
        let _io = self.lock_io();
        let names = self.table().forget_consumers(|_, _| true);
        names.iter().try_for_each(|name| file::remove(&self.inner.dir, name))
    }
}

impl SlotTable {
    /// Takes slots of consumers out of which `which`, told their names and where their runs began, says so; gives their names.
    fn forget_consumers(&mut self, which: impl Fn(&str, Lsn) -> bool) -> Vec<String> {
        let (mut names, slots) = (Vec::new(), std::mem::take(&mut self.slots));
        for (name, slot) in slots {
            if slot.is_of_scenario() && which(&name, slot.state.run_start_lsn) {
                names.push(name);
            } else {
                self.slots.insert(name, slot);
            }
        }
        names
    }

    /// Makes a consumer's slot where the run begins, unless the run has it already.
    fn adopt(&mut self, run: &ConsumerRun, consumer: &ConsumerPlan) -> Result<()> {
        match self.slots.get(&consumer.slot) {
            Some(slot) if slot.is_of_scenario() => Ok(()),
            Some(_) => Err(Error::ConsumerSlotTaken { name: consumer.slot.clone() }),
            None => {
                let kind = match consumer.kind {
                    ConsumerKind::Physical => SlotKind::Physical,
                    ConsumerKind::Logical => SlotKind::Logical,
                };
                let new = SlotFile::new(&consumer.slot, &run.identity, run.start, run.now_ms);
                self.create(SlotFile { kind, run_start_lsn: run.start, ..new }, Persistency::Persistent).map(drop)
            }
        }
    }

    /// Moves a consumer's slot. False if nothing that is stored changed: the consumer is where it was, or has yet to get there
    /// (I5).
    fn follow(&mut self, consumer: &ConsumerSummary) -> bool {
        let session = self.next_session;
        let Some(slot) = self.slots.get_mut(&consumer.slot).filter(|slot| slot.is_of_scenario()) else { return false };
        let before = slot.state.clone();
        if consumer.flushed >= slot.state.confirmed_flush_lsn && slot.state.invalidated.is_none() {
            slot.state.confirmed_flush_lsn = consumer.flushed;
            slot.state.restart_lsn = slot.state.restart_lsn.max(consumer.restart);
            (slot.state.xmin, slot.state.catalog_xmin) = (consumer.xmin.0, consumer.catalog_xmin.0);
            slot.state.invalidated = consumer.lost_at.map(|_| LOST_CAUSE.to_owned());
        }
        let here = slot.state.confirmed_flush_lsn;
        match &mut slot.active {
            _ if slot.state.invalidated.is_some() || !consumer.connected => slot.active = None,
            Some(active) => (active.received, active.applied) = (here, here),
            none => {
                let (client_id, since_ms) = (SCENARIO.to_owned(), slot.state.created_at_ms);
                *none = Some(Active { client_id, since_ms, session, received: here, applied: here });
                self.next_session += 1;
            }
        }
        slot.state != before
    }
}

#[cfg(test)]
mod tests {
    use pg_types::{PgVersion, Xid};

    use super::*;
    use crate::retention::Removal;

    const IDENTITY: WalIdentity = WalIdentity { version: PgVersion::V18, system_id: 77, timeline: 1, segment_size: 1 << 20 };

    fn run(start: u64) -> ConsumerRun {
        ConsumerRun { identity: IDENTITY, start: Lsn(start), now_ms: 5 }
    }

    fn at(flushed: u64) -> ConsumerSummary {
        ConsumerSummary {
            slot: "standby".to_owned(),
            flushed: Lsn(flushed),
            restart: Lsn(flushed),
            xmin: Xid(700),
            connected: true,
            ..ConsumerSummary::default()
        }
    }

    /// The scenario's consumers.
    fn plan(slot: &str) -> [ConsumerPlan; 1] {
        [ConsumerPlan { slot: slot.to_owned(), ..ConsumerPlan::default() }]
    }

    fn open(dir: &tempfile::TempDir) -> Slots {
        Slots::open(dir.path(), &IDENTITY, 10).unwrap()
    }

    #[test]
    fn i5_a_run_that_is_played_again_moves_no_slot_back() {
        let dir = tempfile::tempdir().unwrap();
        let slots = open(&dir);
        slots.adopt_consumers(run(0x100), &plan("standby")).unwrap();
        slots.move_consumers(&[at(0x200)]);
        slots.move_consumers(&[at(0x500)]);
        slots.save_moved().unwrap();
        let again = open(&dir);
        assert!(again.table().get("standby").unwrap().active.is_none());
        let position = || again.table().get("standby").map(|slot| (slot.state.confirmed_flush_lsn.0, slot.state.xmin)).unwrap();
        again.adopt_consumers(run(0x100), &plan("standby")).unwrap();
        again.move_consumers(&[ConsumerSummary { xmin: Xid(600), ..at(0x200) }]);
        assert_eq!(position(), (0x500, 700));
        assert!(again.table().get("standby").unwrap().active.is_some());
        again.move_consumers(&[at(0x400)]);
        assert_eq!(position(), (0x500, 700));
        again.move_consumers(&[ConsumerSummary { xmin: Xid(710), ..at(0x600) }]);
        assert_eq!(position(), (0x600, 710));
        // Of another run there is nothing to go on with.
        again.adopt_consumers(run(0x700), &plan("standby")).unwrap();
        assert_eq!(position(), (0x700, 0));
        again.adopt_consumers(run(0x800), &[]).unwrap();
        assert_eq!(std::fs::read_dir(dir.path().join("slots")).unwrap().count(), 0);
    }

    #[test]
    fn i6_clients_cannot_touch_them_but_copy_them() {
        let dir = tempfile::tempdir().unwrap();
        let slots = open(&dir);
        slots.adopt_consumers(run(0x100), &plan("standby")).unwrap();
        slots.move_consumers(&[at(0x200)]);
        let refused = |error: Error| matches!(error, Error::SlotOfScenario { .. });
        assert!(refused(slots.hold("standby", "c", 1).unwrap_err()));
        assert!(refused(slots.advance("standby", Lsn(0x300), "", |_| panic!("it is refused")).unwrap_err()));
        assert!(refused(slots.delete("standby", "", true).unwrap_err()));
        let copy = slots.copy("standby", "mine", Persistency::Persistent, 6).unwrap();
        assert!(!copy.is_of_scenario());
        slots.delete("mine", "", false).unwrap();
        slots.create(SlotFile::new("orders", &IDENTITY, Lsn(0x100), 5), Persistency::Persistent).unwrap();
        let clash = slots.adopt_consumers(run(0x100), &plan("orders"));
        let text = clash.unwrap_err().to_string();
        assert!(text.contains("\"orders\"") && text.contains("DeleteSlot"), "{text}");
    }

    #[test]
    fn i6_only_the_scenario_says_that_one_is_lost_and_until_then_it_keeps_wal() {
        let dir = tempfile::tempdir().unwrap();
        let slots = open(&dir);
        slots.adopt_consumers(run(0x100), &plan("standby")).unwrap();
        slots.move_consumers(&[at(0x200)]);
        let removes = |slots: &Slots| {
            let all = Removal { remove_before: Lsn(0x900), slots_lost_before: Lsn(0x900) };
            let (removal, lost) = slots.plan_removal(1, "removed", |clients| {
                assert_eq!(clients, None, "nobody else has slots");
                all
            });
            assert!(lost.is_empty());
            removal.remove_before
        };
        assert_eq!(removes(&slots), Lsn(0x100), "by what is on disk");
        slots.save_moved().unwrap();
        assert_eq!(removes(&slots), Lsn(0x200));
        slots.move_consumers(&[ConsumerSummary { lost_at: Some(Lsn(0x900)), connected: false, ..at(0x200) }]);
        slots.save_moved().unwrap();
        assert_eq!(removes(&slots), Lsn(0x900));
        let slot = open(&dir).table().get("standby").unwrap();
        assert!(slot.state.invalidated.unwrap().contains("max_slot_wal_keep_size"), "it is stored");
        slots.drop_consumers().unwrap();
        assert!(open(&dir).table().get("standby").is_err());
    }
}
