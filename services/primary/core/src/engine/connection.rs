//! Sessions that connect and leave (`tcop/postgres.c`: `PostgresMain`; `storage/ipc/ipc.c`: `proc_exit`).
//!
//! A session connects when its first transaction is due. It leaves when nothing is left for it to do, or when its connection has
//! had all of its transactions; then it connects anew for the next. What it leaves behind, its temporary relations, it drops
//! itself on the way out.

use pg_types::Timestamp;

use super::tally::Counts;
use super::{Engine, Event, Session, Step, session};
use crate::error::PrimaryError;
use crate::sink::WalSink;

use super::truth::TransactionTruth;

impl Engine {
    /// Connects a session that is not. The plan has no more sessions than connections, so there is one for it.
    pub(super) fn connect(&mut self, index: usize) -> Result<(), PrimaryError> {
        let session = &mut self.sessions[index];
        if session.is_connected() {
            return Ok(());
        }
        let actor = session.actor;
        if !self.cluster.backends.connect(index) {
            return Err(PrimaryError::Statement {
                actor: self.plan.actors[actor].name.clone(),
                statement: "connect".to_owned(),
                line: 0,
                why: format!("sorry, too many clients already: raise max_connections = {}", self.plan.server.max_connections),
            });
        }
        session.connect();
        self.summary.connections += 1;
        self.tallies[actor].connections += 1;
        Ok(())
    }

    /// Whether a session that is due leaves now.
    pub(super) fn leaves(&self, index: usize) -> bool {
        let session = &self.sessions[index];
        let plan = &self.plan.actors[session.actor];
        session.is_connected() && (session.has_used_its_connection(plan) || session.is_over(&self.plan, self.elapsed_us))
    }

    /// Schedules what a session does next: to leave at once, if its connection has had all of its transactions.
    pub(super) fn schedule_next(&mut self, index: usize, due: u64) {
        let session = &mut self.sessions[index];
        let leaves = session.has_used_its_connection(&self.plan.actors[session.actor]);
        if leaves {
            session.resumes_us = due;
        }
        self.schedule(if leaves { self.elapsed_us } else { due }, Event::Session(index));
    }

    /// A session leaves; it goes on, or finds that it is over, when its next transaction would begin.
    pub(super) fn run_disconnect(
        &mut self,
        index: usize,
        now: Timestamp,
        sink: &mut dyn WalSink,
    ) -> Result<Step, PrimaryError> {
        let truth = self.disconnect(index, now, sink)?;
        let resumes = self.sessions[index].resumes_us.max(self.elapsed_us);
        self.schedule(resumes, Event::Session(index));
        let Some(truth) = truth else { return Ok(Step::Worked) };
        self.count(self.sessions[index].actor, &truth);
        Ok(Step::Ended(truth))
    }

    /// A session, the server that it acts on, and where its records are counted.
    pub(super) fn acting(&mut self, index: usize, now: Timestamp) -> (&mut Session, session::Context<'_>, Counts<'_>) {
        let session = &mut self.sessions[index];
        let actor = session.actor;
        let context = session::Context {
            plan: &self.plan.actors[actor],
            index,
            begun: &mut self.begun[actor],
            cluster: &mut self.cluster,
            locks: &mut self.locks,
            elapsed_us: self.elapsed_us,
            now,
        };
        (session, context, Counts { summary: &mut self.summary, tally: &mut self.tallies[actor] })
    }

    /// Takes a session's connection away, if it has one. Gives the transaction that dropped its temporary relations.
    pub(super) fn disconnect(
        &mut self,
        index: usize,
        now: Timestamp,
        sink: &mut dyn WalSink,
    ) -> Result<Option<Box<TransactionTruth>>, PrimaryError> {
        if !self.sessions[index].is_connected() {
            return Ok(None);
        }
        let (session, mut context, counts) = self.acting(index, now);
        session.leave(&mut context, &mut counts.of(sink))
    }
}
