//! Barriers: moments of simulated time at which what lies outside of the server has its effect on it: consumers move, and what
//! they need holds VACUUM back; faults happen (`faults.rs`).
//!
//! Whoever steps the engine hears of each barrier and exchanges there, and only there, with consumers of its own: so what the
//! server does never depends on how fast they happen to be.

use pg_types::{Lsn, Timestamp};

use super::{Engine, Event, Step};
use crate::clock::Clock;
use crate::consumer::{ConsumerSummary, LogMark, oldest};
use crate::error::PrimaryError;
use crate::sink::WalSink;

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

    /// A barrier: faults that are due, then consumers. A restart is several steps.
    pub(super) fn barrier(&mut self, clock: &dyn Clock, sink: &mut dyn WalSink) -> Result<Step, PrimaryError> {
        if let Some(step) = self.faults(clock, sink)? {
            return Ok(step);
        }
        self.move_consumers();
        self.schedule(self.elapsed_us.saturating_add(self.plan.server.barrier_every_us), Event::Barrier);
        Ok(Step::Barrier(self.summary.end_lsn))
    }

    /// Moves all consumers to now. Those that keep too much are lost (`InvalidateObsoleteReplicationSlots`; a server looks at its
    /// checkpoints, and counts whole segments).
    pub(super) fn move_consumers(&mut self) {
        if !self.consumers.is_empty() {
            let mark = self.mark();
            self.consumers.barrier(self.elapsed_us, mark);
            if let Some(most) = self.plan.server.max_slot_wal_keep_size {
                self.consumers.lose_before(Lsn(mark.lsn.0.saturating_sub(most)), mark.lsn);
            }
            self.tell_consumers();
        }
    }

    /// VACUUM heeds the oldest of what the scenario's consumers and others need.
    pub(super) fn feed_horizon(&mut self) {
        self.cluster.consumers_xmin = oldest(self.told_xmin, self.consumers.xmin());
        self.cluster.consumers_catalog_xmin = oldest(self.told_catalog_xmin, self.consumers.catalog_xmin());
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
}
