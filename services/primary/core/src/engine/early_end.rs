//! How a run ends before its scenario does: by somebody's wish, by a limit, or since a statement was refused.
//!
//! The log must be as good as after any other run, so that another can follow: open transactions are rolled back and sessions
//! leave, as they would when they are told to (`postmaster/postmaster.c`: smart becomes fast shutdown), prepared ones as well, then
//! it is logged that nothing runs, and the segment is switched. Sessions are asked in the order of their numbers, so the end is as
//! repeatable as the run.

use pg_types::Timestamp;

use super::tally::CountingSink;
use super::{Engine, TransactionTruth, named};
use crate::backend::Backend;
use crate::clock::Clock;
use crate::error::PrimaryError;
use crate::rng::Rng;
use crate::sink::WalSink;
use crate::xact::Transaction;

impl Engine {
    /// Ends the run here. Nothing happens to one that has ended, or that has not begun.
    ///
    /// # Errors
    /// The log refuses.
    pub fn end_early(&mut self, clock: &mut dyn Clock, _rng: &mut dyn Rng, sink: &mut dyn WalSink) -> Result<(), PrimaryError> {
        if self.finished || self.started.is_none() {
            return Ok(());
        }
        let now = self.stamp(clock);
        self.disk_has_room();
        for index in 0..self.sessions.len() {
            let actor = self.sessions[index].actor;
            if let Some(truth) = self.roll_back(index, now, sink)? {
                self.count(actor, &truth);
            }
            if let Some(truth) = self.disconnect(index, now, sink)? {
                self.count(actor, &truth);
            }
        }
        self.finish(now, sink).map(drop)
    }

    /// Rolls a session's open transaction back, if it has one.
    pub(super) fn roll_back(
        &mut self,
        index: usize,
        now: Timestamp,
        sink: &mut dyn WalSink,
    ) -> Result<Option<Box<TransactionTruth>>, PrimaryError> {
        let (session, context, counts) = self.acting(index, now);
        let truth = session.abort(context, &mut counts.of(sink))?;
        self.locks.release(index);
        Ok(truth)
    }

    /// Rolls back what is still prepared: whatever follows in the log could not end it.
    pub(super) fn roll_back_prepared(&mut self, now: Timestamp, sink: &mut dyn WalSink) -> Result<(), PrimaryError> {
        for gid in self.cluster.twophase.gids() {
            let own = self.plan.actors.len();
            let mut counting = CountingSink { inner: sink, summary: &mut self.summary, tally: &mut self.tallies[own] };
            let mut xact = Transaction::new(self.sessions.len());
            let mut backend = Backend { cluster: &mut self.cluster, xact: &mut xact, sink: &mut counting, now };
            let finished = backend.finish_prepared(&gid, false);
            finished.map_err(|error| named("the end", "ROLLBACK PREPARED", error))?;
            self.summary.rolled_back += 1;
        }
        Ok(())
    }
}
