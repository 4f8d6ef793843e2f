//! Barriers: moments of simulated time at which what lies outside of the server has its effect on it: consumers move, and what
//! they need holds VACUUM back; the server crashes, or its clock jumps.
//!
//! Whoever steps the engine hears of each barrier and exchanges there, and only there, with consumers of its own: so what the
//! server does never depends on how fast they happen to be.
//!
//! A crash (`access/transam/xlog.c`: `StartupXLOG`) takes open transactions away without a record: a reader of the log learns it
//! from the next list of running transactions. Rows and catalogs are as if they had rolled back. Everything that was logged is
//! taken as flushed.

use pg_types::{Lsn, Timestamp};

use super::{CountingSink, Engine, Event, RunSummary, Step, Tally, session};
use crate::clock::Clock;
use crate::consumer::{ConsumerSummary, LogMark, oldest};
use crate::error::PrimaryError;
use crate::scenario::FaultKind;
use crate::sink::{NullSink, WalSink};

impl Engine {
    /// Asks for barriers even if the scenario has no consumers and faults. To be called before the first step.
    pub fn want_barriers(&mut self) {
        self.barriers_wanted = true;
    }

    /// Where the scenario's consumers were at the last barrier, by the order of the scenario.
    #[must_use]
    pub fn consumers(&self) -> &[ConsumerSummary] {
        &self.summary.consumers
    }

    /// The scenario's consumers that need WAL before `oldest` have lost it; gives the names of their slots. To be called at a
    /// barrier, with a position that follows from the barrier's.
    pub fn lose_consumers_before(&mut self, oldest: Lsn) -> Vec<String> {
        let lost = self.consumers.lose_before(oldest, self.summary.end_lsn);
        if !lost.is_empty() {
            self.tell_consumers();
        }
        lost
    }

    /// The time that the server's clock shows.
    pub(super) fn stamp(&self, clock: &dyn Clock) -> Timestamp {
        Timestamp(clock.now().0.saturating_add(self.clock_jump_us))
    }

    /// The first barrier, if any is needed; consumers begin where the log does.
    pub(super) fn begin_barriers(&mut self) {
        if !self.consumers.is_empty() {
            let mark = self.mark();
            self.consumers.begin(mark);
            self.tell_consumers();
        }
        if self.barriers_wanted || !self.consumers.is_empty() || !self.plan.faults.is_empty() {
            self.schedule(self.plan.server.barrier_every_us, Event::Barrier);
        }
    }

    /// A barrier: faults that are due, then consumers.
    pub(super) fn barrier(&mut self, clock: &dyn Clock, sink: &mut dyn WalSink) -> Result<Step, PrimaryError> {
        while let Some(fault) = self.plan.faults.get(self.faults_done).copied().filter(|fault| fault.at_us <= self.elapsed_us) {
            self.faults_done += 1;
            match fault.kind {
                FaultKind::Crash => self.crash(self.stamp(clock), sink)?,
                FaultKind::ClockJump { by_us } => self.clock_jump_us = self.clock_jump_us.saturating_add(by_us),
            }
        }
        self.move_consumers();
        self.schedule(self.elapsed_us.saturating_add(self.plan.server.barrier_every_us), Event::Barrier);
        Ok(Step::Barrier(self.summary.end_lsn))
    }

    /// Moves all consumers to now.
    pub(super) fn move_consumers(&mut self) {
        if !self.consumers.is_empty() {
            let mark = self.mark();
            self.consumers.barrier(self.elapsed_us, mark);
            self.tell_consumers();
        }
    }

    /// VACUUM heeds the oldest of what the scenario's consumers and others need.
    pub(super) fn feed_horizon(&mut self) {
        self.cluster.consumers_xmin = oldest(self.told_xmin, self.consumers.xmin());
    }

    /// Tells where consumers are: to VACUUM, and in the summary.
    fn tell_consumers(&mut self) {
        self.feed_horizon();
        self.summary.consumers = self.consumers.summaries();
        let live = self.summary.consumers.iter().filter(|consumer| consumer.lost_at.is_none());
        let kept = live.map(|consumer| self.summary.end_lsn.0.saturating_sub(consumer.restart.0)).max().unwrap_or(0);
        let own = self.plan.actors.len();
        self.tallies[own].most_kept_bytes = self.tallies[own].most_kept_bytes.max(kept);
    }

    /// The log as it is now.
    fn mark(&self) -> LogMark {
        let procs = &self.cluster.procs;
        LogMark { lsn: self.summary.end_lsn, oldest_running: procs.oldest_running(), next_xid: procs.next_xid().xid() }
    }

    /// The server crashes and recovers. Sessions find out when they next do something, and connect again; those that waited for
    /// a lock do so at once. What they had begun is not begun anew.
    fn crash(&mut self, now: Timestamp, sink: &mut dyn WalSink) -> Result<(), PrimaryError> {
        let (mut nothing, mut summary, mut tally) = (NullSink(sink.version()), RunSummary::default(), Tally::default());
        let own = self.plan.actors.len();
        for index in 0..self.sessions.len() {
            let actor = self.sessions[index].actor;
            let mut silent = CountingSink { inner: &mut nothing, summary: &mut summary, tally: &mut tally };
            let context = session::Context {
                plan: &self.plan.actors[actor],
                index,
                begun: &mut self.begun[actor],
                cluster: &mut self.cluster,
                locks: &mut self.locks,
                elapsed_us: self.elapsed_us,
                now,
            };
            // As if it had rolled back, but for the records.
            let vanished = self.sessions[index].abort(context, &mut silent)?;
            let count = u64::from(vanished.is_some_and(|truth| truth.xid.is_valid()));
            self.summary.vanished += count;
            self.tallies[actor].vanished += count;
            self.locks.release(index);
            self.sessions[index].lose_connection();
            self.cluster.backends.disconnect(index);
        }
        for waiting in std::mem::take(&mut self.blocked) {
            self.schedule(self.elapsed_us, Event::Session(waiting));
        }
        self.summary.crashes += 1;
        self.tallies[own].crashes += 1;
        let mut sink = CountingSink { inner: sink, summary: &mut self.summary, tally: &mut self.tallies[own] };
        self.cluster.recover(now, &mut sink)
    }
}
