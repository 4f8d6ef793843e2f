//! What goes wrong: the server crashes or is restarted, its log's disk is full, its clock jumps. Everything at barriers.
//!
//! | fault | open transactions | temporary tables | log |
//! |---|---|---|---|
//! | crash (`access/transam/xlog.c`: `StartupXLOG`) | vanish without a record | stay as orphans | a shutdown checkpoint |
//! | restart (`postmaster/postmaster.c`: fast shutdown) | roll back | their sessions drop them | a shutdown checkpoint |
//! | full disk | wait | stay | nothing |
//!
//! What a crash took away a reader of the log learns from the next list of running transactions, or a standby from the checkpoint.
//! Rows and catalogs are as if the transactions had rolled back. Everything that was logged is taken as flushed. After either start
//! the lists and checkpoints that the server writes on its own come as late as they do after its first. Prepared transactions stay,
//! with their locks.
//!
//! Difference from PostgreSQL: where a record finds no room, a server panics and does not come up before there is some. Here it
//! waits, as this program's own log does, and whoever wants the panic says a crash at the same time: it comes up, or restarts, when
//! there is room.

use std::cmp::Reverse;

use pg_types::Timestamp;

use super::tally::{CountingSink, Tally};
use super::{Engine, Event, RunSummary, Step};
use crate::clock::Clock;
use crate::error::PrimaryError;
use crate::scenario::FaultKind;
use crate::sink::{NullSink, WalSink};

/// A disk without room.
#[derive(Debug)]
pub(super) struct FullDisk {
    /// It gets some at the first barrier from this microsecond on.
    until_us: u64,
    /// Since this microsecond.
    since_us: u64,
    /// What is put off until then, in its order.
    waiting: Vec<Event>,
}

impl Engine {
    /// Whether the disk of the simulated server's log has no room now: nothing is written until simulated time has passed.
    #[must_use]
    pub fn is_out_of_room(&self) -> bool {
        self.full_disk.is_some()
    }

    /// Faults that are due, in their order; the step that one of them takes, if it takes several.
    pub(super) fn faults(&mut self, clock: &dyn Clock, sink: &mut dyn WalSink) -> Result<Option<Step>, PrimaryError> {
        if self.full_disk.as_ref().is_some_and(|full| full.until_us <= self.elapsed_us) {
            self.disk_has_room();
        }
        while let Some(fault) = self.plan.faults.get(self.faults_done).copied().filter(|fault| fault.at_us <= self.elapsed_us) {
            let writes = matches!(fault.kind, FaultKind::Crash | FaultKind::Restart);
            if writes && self.is_out_of_room() {
                break;
            }
            self.faults_done += 1;
            match fault.kind {
                FaultKind::Crash => self.crash(self.stamp(clock), sink)?,
                FaultKind::Restart => {
                    self.stopping = Some(0);
                    return self.stop(clock, sink).map(Some);
                }
                FaultKind::DiskFull { for_us } => self.disk_is_full(for_us),
                FaultKind::ClockJump { by_us } => self.clock_jump_us = self.clock_jump_us.saturating_add(by_us),
            }
        }
        Ok(None)
    }

    /// Puts an event off if it might write and the disk has no room; true if it was put off.
    pub(super) fn waits_for_room(&mut self, event: Event) -> bool {
        let Some(full) = self.full_disk.as_mut().filter(|_| !matches!(event, Event::Barrier | Event::Snapshot)) else {
            return false;
        };
        full.waiting.push(event);
        true
    }

    /// The disk has no room from now on. One that has none already has none for longer.
    fn disk_is_full(&mut self, for_us: u64) {
        let until_us = self.elapsed_us.saturating_add(for_us);
        let since_us = self.elapsed_us;
        let full = self.full_disk.get_or_insert(FullDisk { until_us, since_us, waiting: Vec::new() });
        full.until_us = full.until_us.max(until_us);
    }

    /// The disk has room again: what was put off goes on now, in its order.
    pub(super) fn disk_has_room(&mut self) {
        let Some(full) = self.full_disk.take() else { return };
        let own = self.plan.actors.len();
        self.tallies[own].out_of_room_us += self.elapsed_us - full.since_us;
        for event in full.waiting {
            self.push(self.elapsed_us, event);
        }
    }

    /// The server crashes and recovers. Sessions find out when they next do something, and connect again; those that waited for
    /// a lock do so at once. What they had begun is not begun anew.
    fn crash(&mut self, now: Timestamp, sink: &mut dyn WalSink) -> Result<(), PrimaryError> {
        let (mut nothing, mut summary, mut tally) = (NullSink(sink.version()), RunSummary::default(), Tally::default());
        let own = self.plan.actors.len();
        for index in 0..self.sessions.len() {
            let actor = self.sessions[index].actor;
            let (session, context, _) = self.acting(index, now);
            let mut silent = CountingSink { inner: &mut nothing, summary: &mut summary, tally: &mut tally };
            // As if it had rolled back, but for the records.
            let vanished = session.abort(context, &mut silent)?;
            let count = u64::from(vanished.is_some_and(|truth| truth.xid.is_valid()));
            self.summary.vanished += count;
            self.tallies[actor].vanished += count;
            self.locks.release(index);
            self.sessions[index].lose_connection();
            self.cluster.catalog.forget_temp_use(index);
        }
        self.summary.crashes += 1;
        self.tallies[own].crashes += 1;
        let mut sink = CountingSink { inner: sink, summary: &mut self.summary, tally: &mut self.tallies[own] };
        self.cluster.recover(now, &mut sink)?;
        self.started_anew();
        Ok(())
    }

    /// The next step of a restart: a session rolls back, or leaves, in the order of their numbers; then the server stops, starts,
    /// and the barrier goes on.
    pub(super) fn stop(&mut self, clock: &dyn Clock, sink: &mut dyn WalSink) -> Result<Step, PrimaryError> {
        let now = self.stamp(clock);
        while let Some(index) = self.stopping.filter(|index| *index < self.sessions.len()) {
            let actor = self.sessions[index].actor;
            let truth = match self.roll_back(index, now, sink)? {
                Some(truth) => Some(truth),
                None => {
                    self.stopping = Some(index + 1);
                    self.disconnect(index, now, sink)?
                }
            };
            if let Some(truth) = truth {
                self.count(actor, &truth);
                return Ok(Step::Ended(truth));
            }
        }
        self.stopping = None;
        let own = self.plan.actors.len();
        self.summary.restarts += 1;
        self.tallies[own].restarts += 1;
        let mut counting = CountingSink { inner: sink, summary: &mut self.summary, tally: &mut self.tallies[own] };
        self.cluster.shut_down(now, &mut counting)?;
        self.started_anew();
        self.barrier(clock, sink)
    }

    /// The server has started: whoever waited for a lock tries again, and what the server does at intervals begins with a whole
    /// one.
    fn started_anew(&mut self) {
        for waiting in std::mem::take(&mut self.blocked) {
            self.schedule(self.elapsed_us, Event::Session(waiting));
        }
        self.queue.retain(|Reverse((_, _, event))| !matches!(event, Event::RunningXacts | Event::Checkpoint));
        self.schedule(self.elapsed_us.saturating_add(self.plan.server.running_xacts_every_us), Event::RunningXacts);
        self.schedule(self.elapsed_us.saturating_add(self.plan.server.checkpoint_every_us), Event::Checkpoint);
    }
}
