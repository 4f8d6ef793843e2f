//! Runs a plan: sessions on the clock, one small step at a time (`tcop/postgres.c` writ small).
//!
//! A scenario has many sessions that act at the same simulated time, and one log that puts what they do into one order. The
//! engine keeps a queue of what is due; a step takes the first, lets time pass to it, and runs one statement (or the end of a
//! transaction, or something that the server does on its own). Whoever steps decides how fast simulated time goes by: at once
//! with a [`crate::clock::VirtualClock`], or waiting for [`Engine::next_due`] on a real one.
//!
//! **Invariants**
//! - I1: events run in order of (due time, order of scheduling): nothing else orders sessions, so a seed repeats a run.
//! - I2: a session is in exactly one place: scheduled, waiting for a lock, waiting for an actor, or finished.
//! - I3: the first records are a shutdown checkpoint and running transactions with nothing running; the last one is a switch.
//!
//! Cost: a step O(log sessions) and the statement's records. Nothing is kept per record; a transaction's truth is handed out
//! with its last step.
//!
//! Differences from PostgreSQL: a statement takes no simulated time; waits are written into the scenario.

mod background;
mod barrier;
mod bootstrap;
mod concurrently;
mod connection;
mod control;
mod early_end;
mod faults;
mod locks;
mod rate;
mod row_statement;
mod session;
mod statement;
mod tally;
mod truth;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use pg_types::{Lsn, PgVersion, RecordBody, Timestamp, Xid};

pub use tally::Tally;
pub use truth::{Continuation, RowCounts, RunSummary, TransactionEnd, TransactionTruth};

use crate::backend::{Cluster, StatementError};
use crate::catalog::Catalog;
use crate::clock::Clock;
use crate::consumer::Consumers;
use crate::error::PrimaryError;
use crate::rng::Rng;
use crate::scenario::Plan;
use crate::sink::WalSink;
use faults::FullDisk;
use locks::LockTable;
use rate::RateLimit;
use session::{Progress, Session};
use tally::CountingSink;

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A session goes on.
    Session(usize),
    /// Running transactions are logged.
    RunningXacts,
    /// A checkpoint.
    Checkpoint,
    /// A reader on a standby takes a snapshot.
    Snapshot,
    /// Consumers move, faults happen.
    Barrier,
}

/// What a step did.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Something small: a statement, a checkpoint, nothing.
    Worked,
    /// A transaction ended.
    Ended(Box<TransactionTruth>),
    /// A reader on a standby is to take a snapshot once it has replayed everything before this position.
    Snapshot(Lsn),
    /// A barrier: consumers have moved in a log that ends at this position. Whoever steps may tell now what others need
    /// ([`Engine::set_horizon`]).
    Barrier(Lsn),
    /// There is nothing left to do; the log ended with a switch. Consumers have moved once more.
    Done,
}

/// A running scenario.
#[derive(Debug)]
pub struct Engine {
    /// What to do.
    plan: Plan,
    /// The simulated server.
    cluster: Cluster,
    /// Who does it.
    sessions: Vec<Session>,
    /// Sessions of each actor that have not finished.
    unfinished: Vec<u64>,
    /// Transactions that each actor began.
    begun: Vec<u64>,
    /// Who holds which relation.
    locks: LockTable,
    /// Sessions that wait for a lock, first come first.
    blocked: Vec<usize>,
    /// What is due when: microseconds from the start, order of scheduling, event.
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Number of the next scheduling.
    scheduled: u64,
    /// Session events in the queue.
    active: usize,
    /// Simulated microseconds since the start.
    elapsed_us: u64,
    /// The clock at the first step.
    started: Option<Timestamp>,
    /// When transactions may begin.
    rate: RateLimit,
    /// The switch is written.
    finished: bool,
    /// The run in numbers so far.
    summary: RunSummary,
    /// What each actor wrote, and last what the server wrote on its own.
    tallies: Vec<Tally>,
    /// Who reads the log.
    consumers: Consumers,
    /// Whoever steps wants barriers, whether or not the plan needs any.
    barriers_wanted: bool,
    /// The oldest xid that others than the plan's consumers need; invalid if none.
    told_xmin: Xid,
    /// The same for rows of catalogs.
    told_catalog_xmin: Xid,
    /// Faults that have happened.
    faults_done: usize,
    /// The server stops, and this session is the next to end.
    stopping: Option<usize>,
    /// The disk of the log has no room.
    full_disk: Option<FullDisk>,
    /// How far the clock that stamps commits is ahead of simulated time, in microseconds.
    clock_jump_us: i64,
}

impl Engine {
    /// A scenario that is about to begin a log, for a log in the format of `version`.
    ///
    /// # Errors
    /// [`PrimaryError::Statement`] if its tables cannot be made.
    pub fn new(plan: Plan, version: PgVersion) -> Result<Engine, PrimaryError> {
        Engine::starting(plan, version, None)
    }

    /// A scenario that goes on in a log where others ran: its xids and oids follow theirs. Their tables are gone.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn continuing(plan: Plan, version: PgVersion, from: Continuation) -> Result<Engine, PrimaryError> {
        Engine::starting(plan, version, Some(from))
    }

    /// Tables and sessions; nothing is scheduled before the first step.
    fn starting(plan: Plan, version: PgVersion, from: Option<Continuation>) -> Result<Engine, PrimaryError> {
        let cluster = bootstrap::bootstrap(&plan, version, from)?;
        let actors = plan.actors.iter().enumerate();
        let sessions = actors.flat_map(|(actor, plan)| (1..=plan.sessions).map(move |number| Session::new(actor, number)));
        Ok(Engine {
            sessions: sessions.collect(),
            unfinished: plan.actors.iter().map(|actor| actor.sessions).collect(),
            begun: vec![0; plan.actors.len()],
            tallies: vec![Tally::default(); plan.actors.len() + 1],
            consumers: Consumers::new(&plan.consumers),
            barriers_wanted: false,
            told_xmin: Xid::INVALID,
            told_catalog_xmin: Xid::INVALID,
            faults_done: 0,
            stopping: None,
            full_disk: None,
            clock_jump_us: 0,
            plan,
            cluster,
            locks: LockTable::default(),
            blocked: Vec::new(),
            queue: BinaryHeap::new(),
            scheduled: 0,
            active: 0,
            elapsed_us: 0,
            started: None,
            rate: RateLimit::default(),
            finished: false,
            summary: RunSummary::default(),
        })
    }

    /// Lets at most so many transactions begin in a second of simulated time; 0: as many as the scenario has.
    pub fn limit_rate(&mut self, transactions_per_second: u32) {
        self.rate = RateLimit::new(transactions_per_second);
    }

    /// The plan that is run.
    #[must_use]
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The catalog as it is now (with what running transactions have changed): names, oids, files.
    #[must_use]
    pub fn catalog(&self) -> &Catalog {
        &self.cluster.catalog
    }

    /// The run in numbers so far.
    #[must_use]
    pub fn summary(&self) -> &RunSummary {
        &self.summary
    }

    /// What an actor wrote so far, by its name, or everybody and the server itself; [`None`] if there is no such actor.
    #[must_use]
    pub fn tally(&self, actor: Option<&str>) -> Option<Tally> {
        if let Some(name) = actor {
            let index = self.plan.actors.iter().position(|actor| actor.name == name)?;
            return self.tallies.get(index).cloned();
        }
        let mut all = Tally::default();
        self.tallies.iter().for_each(|tally| all += tally);
        Some(all)
    }

    /// Consumers of the log told which transactions they still need to see as running (`hot_standby_feedback`, slots): VACUUM
    /// leaves rows that a transaction from `xmin` on deleted. Invalid for none. Tell it at the same simulated times in every run,
    /// as at barriers. The scenario's own consumers are known without.
    pub fn set_horizon(&mut self, xmin: Xid) {
        self.told_xmin = xmin;
        self.feed_horizon();
    }

    /// The same of consumers that need rows of catalogs alone, as decoders do.
    pub fn set_catalog_horizon(&mut self, catalog_xmin: Xid) {
        self.told_catalog_xmin = catalog_xmin;
        self.feed_horizon();
    }

    /// Where a later scenario in the same log must go on.
    #[must_use]
    pub fn continuation(&self) -> Continuation {
        Continuation { next_xid: self.cluster.procs.next_xid(), next_oid: self.cluster.catalog.next_oid }
    }

    /// When the next step is due; [`None`] before the first step (which is due at once) and after the last. Once every session
    /// has finished the last step is due at once: nobody waits for what the server would have done on its own.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        let started = self.started?;
        if !self.finished && (self.stopping.is_some() || self.is_over()) {
            return Some(after(started, self.elapsed_us));
        }
        let Reverse((due, _, _)) = self.queue.peek().filter(|_| !self.finished)?;
        Some(after(started, *due))
    }

    /// Does the next thing. After [`Step::Done`] every step is [`Step::Done`].
    ///
    /// # Errors
    /// [`PrimaryError`]; the run cannot go on then.
    pub fn step(&mut self, clock: &mut dyn Clock, rng: &mut dyn Rng, sink: &mut dyn WalSink) -> Result<Step, PrimaryError> {
        let Some(started) = self.started else {
            self.start(clock.now(), rng, sink)?;
            return Ok(Step::Worked);
        };
        if self.finished {
            return Ok(Step::Done);
        }
        if self.stopping.is_some() {
            return self.stop(clock, sink);
        }
        if self.is_over() {
            return self.finish(self.stamp(clock), sink);
        }
        if self.active == 0 && !self.blocked.is_empty() {
            return Err(self.deadlock());
        }
        let Some(Reverse((due, _, event))) = self.queue.pop() else { return self.finish(self.stamp(clock), sink) };
        clock.advance_to(after(started, due));
        self.elapsed_us = due;
        self.summary.simulated_us = due;
        let now = self.stamp(clock);
        if self.waits_for_room(event) {
            return Ok(Step::Worked);
        }
        match event {
            Event::Barrier => self.barrier(clock, sink),
            Event::Session(session) => self.run_session(session, now, rng, sink),
            _ => self.run_background(event, now, sink),
        }
    }

    /// Whether nobody has anything left to do, and the log can be ended.
    fn is_over(&self) -> bool {
        self.full_disk.is_none() && self.unfinished.iter().all(|sessions| *sessions == 0)
    }

    /// I3: the first records; then everything is scheduled.
    fn start(&mut self, now: Timestamp, rng: &mut dyn Rng, sink: &mut dyn WalSink) -> Result<(), PrimaryError> {
        self.started = Some(now);
        let own = self.plan.actors.len();
        let mut sink = CountingSink { inner: sink, summary: &mut self.summary, tally: &mut self.tallies[own] };
        self.cluster.start_up(&self.plan.server, now, &mut sink)?;
        for session in 0..self.sessions.len() {
            if self.plan.actors[self.sessions[session].actor].after.is_empty() {
                self.schedule_first(session, rng);
            }
        }
        // An actor that waits for none may have nothing to do.
        self.schedule(self.plan.server.running_xacts_every_us, Event::RunningXacts);
        self.schedule(self.plan.server.checkpoint_every_us, Event::Checkpoint);
        if let Some(gap) = self.snapshot_gap_us() {
            self.schedule(gap, Event::Snapshot);
        }
        self.begin_barriers();
        Ok(())
    }

    /// I3: that nothing runs, and the switch.
    fn finish(&mut self, now: Timestamp, sink: &mut dyn WalSink) -> Result<Step, PrimaryError> {
        self.roll_back_prepared(now, sink)?;
        let own = self.plan.actors.len();
        let mut sink = CountingSink { inner: sink, summary: &mut self.summary, tally: &mut self.tallies[own] };
        self.cluster.log_running_xacts(&mut sink)?;
        sink.append(Xid::INVALID, Xid::INVALID, 0, &RecordBody::Switch).map_err(PrimaryError::Sink)?;
        self.finished = true;
        self.move_consumers();
        Ok(Step::Done)
    }

    /// Logs the running transactions now, because somebody waits for the list (`LogStandbySnapshot` when a logical slot is made).
    /// Nothing happens before the first step, after the last, and while the disk has no room.
    ///
    /// # Errors
    /// The sink's.
    pub fn log_running_xacts(&mut self, sink: &mut dyn WalSink) -> Result<(), PrimaryError> {
        if self.started.is_none() || self.finished || self.is_out_of_room() {
            return Ok(());
        }
        let own = self.plan.actors.len();
        let mut sink = CountingSink { inner: sink, summary: &mut self.summary, tally: &mut self.tallies[own] };
        self.cluster.log_running_xacts(&mut sink)
    }

    /// Checkpoints, running transactions, readers; each schedules its next.
    fn run_background(&mut self, event: Event, now: Timestamp, sink: &mut dyn WalSink) -> Result<Step, PrimaryError> {
        let own = self.plan.actors.len();
        let mut sink = CountingSink { inner: sink, summary: &mut self.summary, tally: &mut self.tallies[own] };
        let (gap, step) = match event {
            Event::Checkpoint => {
                self.cluster.online_checkpoint(now, &mut sink)?;
                (self.plan.server.checkpoint_every_us, Step::Worked)
            }
            Event::Snapshot => {
                self.summary.snapshots += 1;
                self.tallies[own].reader_snapshots += 1;
                (self.snapshot_gap_us().unwrap_or(u64::MAX), Step::Snapshot(self.summary.end_lsn))
            }
            Event::RunningXacts | Event::Session(_) | Event::Barrier => {
                self.cluster.running_xacts_if_due(&mut sink)?;
                (self.plan.server.running_xacts_every_us, Step::Worked)
            }
        };
        self.schedule(self.elapsed_us.saturating_add(gap), event);
        Ok(step)
    }

    /// One statement, or the end of the transaction.
    fn run_session(
        &mut self,
        index: usize,
        now: Timestamp,
        rng: &mut dyn Rng,
        sink: &mut dyn WalSink,
    ) -> Result<Step, PrimaryError> {
        self.active -= 1;
        let actor = self.sessions[index].actor;
        if self.leaves(index) {
            return self.run_disconnect(index, now, sink);
        }
        if self.sessions[index].is_over(&self.plan, self.elapsed_us) {
            self.session_finished(actor, rng);
            return Ok(Step::Worked);
        }
        if !self.sessions[index].is_running()
            && let Some(due) = self.rate.wait_until(index, self.elapsed_us)
        {
            self.schedule(due, Event::Session(index));
            return Ok(Step::Worked);
        }
        self.connect(index)?;
        let (session, context, counts) = self.acting(index, now);
        match session.step(context, rng, &mut counts.of(sink))? {
            Progress::At(due) => self.schedule_next(index, due),
            Progress::Blocked => self.blocked.push(index),
            Progress::Ended(truth, next) => {
                self.count(actor, &truth);
                self.locks.release(index);
                self.sessions[index].keep_locks(index, &mut self.locks);
                for waiting in std::mem::take(&mut self.blocked) {
                    self.schedule(self.elapsed_us, Event::Session(waiting));
                }
                self.schedule_next(index, next);
                return Ok(Step::Ended(truth));
            }
        }
        Ok(Step::Worked)
    }

    /// Adds an ended transaction to the summary.
    fn count(&mut self, actor: usize, truth: &TransactionTruth) {
        self.tallies[actor].ended(truth);
        match truth.end {
            TransactionEnd::Prepare => self.summary.prepared += 1,
            TransactionEnd::Commit | TransactionEnd::CommitPrepared if truth.lsn.is_valid() => self.summary.committed += 1,
            TransactionEnd::Commit | TransactionEnd::CommitPrepared => {}
            TransactionEnd::Rollback | TransactionEnd::RollbackPrepared => self.summary.rolled_back += 1,
        }
        if truth.committed {
            self.summary.messages += truth.messages as u64;
        }
    }

    /// A session has nothing left to do; actors that waited for its actor may start.
    fn session_finished(&mut self, actor: usize, rng: &mut dyn Rng) {
        self.unfinished[actor] -= 1;
        if self.unfinished[actor] > 0 {
            return;
        }
        for session in 0..self.sessions.len() {
            let after = &self.plan.actors[self.sessions[session].actor].after;
            if after.contains(&actor) && after.iter().all(|other| self.unfinished[*other] == 0) {
                self.schedule_first(session, rng);
            }
        }
    }

    /// Schedules a session's first transaction.
    fn schedule_first(&mut self, session: usize, rng: &mut dyn Rng) {
        let actor = &self.plan.actors[self.sessions[session].actor];
        let stagger = actor.stagger_us.saturating_mul(self.sessions[session].number - 1);
        let delay = actor.start.draw(rng).saturating_add(stagger);
        self.schedule(self.elapsed_us.saturating_add(delay), Event::Session(session));
    }

    /// Puts an event into the queue.
    fn schedule(&mut self, due: u64, event: Event) {
        self.active += usize::from(matches!(event, Event::Session(_)));
        self.push(due, event);
    }

    /// Puts an event into the queue behind those that are due at the same time.
    fn push(&mut self, due: u64, event: Event) {
        self.queue.push(Reverse((due, self.scheduled, event)));
        self.scheduled += 1;
    }

    /// Simulated time from one snapshot to the next.
    fn snapshot_gap_us(&self) -> Option<u64> {
        1_000_000u64.checked_div(self.plan.snapshots_per_second).map(|gap| gap.max(1))
    }

    /// Everybody waits.
    fn deadlock(&self) -> PrimaryError {
        let mut actors: Vec<&str> =
            self.blocked.iter().map(|session| self.plan.actors[self.sessions[*session].actor].name.as_str()).collect();
        actors.dedup();
        PrimaryError::Deadlock { actors: actors.join(", ") }
    }
}

/// A position in time.
fn after(start: Timestamp, us: u64) -> Timestamp {
    Timestamp(start.0.saturating_add(i64::try_from(us).unwrap_or(i64::MAX)))
}

/// A statement's error with who ran what.
fn named(actor: &str, statement: &str, error: StatementError) -> PrimaryError {
    match error {
        StatementError::Primary(error) => error,
        StatementError::Refused(why) => {
            PrimaryError::Statement { actor: actor.to_owned(), statement: statement.to_owned(), line: 0, why }
        }
    }
}
