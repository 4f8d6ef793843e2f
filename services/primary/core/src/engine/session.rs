//! One session: transaction after transaction, each a list of statements.

use pg_types::{Lsn, Timestamp};

use super::concurrently::Stages;
use super::locks::{LockMode, LockTable};
use super::named;
use super::statement::{Resolved, Seen, counted, resolve};
use super::tally::CountingSink;
use super::truth::{TransactionEnd, TransactionTruth};
use crate::backend::{Backend, Cluster, StatementError};
use crate::error::PrimaryError;
use crate::rng::{Rng, uniform};
use crate::scenario::{ActorPlan, Blanks, Plan, Scope, StatementPlan, TransactionPlan};
use crate::xact::{Origin, Transaction};

/// Position of the first commit at an origin.
const ORIGIN_START: u64 = 0x100_0000;
/// Bytes from one commit there to the next.
const ORIGIN_STEP: u64 = 0x400;

/// A session.
#[derive(Debug)]
pub(super) struct Session {
    /// Whose it is.
    pub(super) actor: usize,
    /// Its number among the actor's, from 1.
    pub(super) number: u64,
    /// Transactions that it began.
    begun: u64,
    /// Transactions that it began since it connected; none if it is not connected.
    connection: Option<u64>,
    /// When its next transaction begins, if it leaves before that: microseconds from the start.
    pub(super) resumes_us: u64,
    /// The running one.
    running: Option<Running>,
}

/// A session's running unit of statements: one transaction, or several that its statements end themselves.
#[derive(Debug)]
pub(super) struct Running {
    /// The transaction.
    pub(super) xact: Transaction,
    /// Simulated microseconds at its begin.
    begun_us: u64,
    /// Its number among the actor's, from 1.
    pub(super) number: u64,
    /// It will roll back.
    pub(super) rolls_back: bool,
    /// Which of the actor's kinds of transactions it is.
    kind: usize,
    /// The next statement.
    pub(super) next: usize,
    /// A statement ran in the transaction.
    pub(super) in_transaction: bool,
    /// A transaction of the unit ended by a statement.
    pub(super) ended: bool,
    /// The loops that it is in, innermost last.
    loops: Vec<Turns>,
    /// The next statement with its names drawn, if it waits for locks or is not done yet.
    pub(super) resolved: Option<Resolved>,
    /// Transactions of the next statement that are done, if it has several.
    pub(super) phase: usize,
    /// What the next statement has before it, if it is several transactions that let others write.
    pub(super) stages: Stages,
}

/// A loop that a transaction is in.
#[derive(Clone, Copy, Debug)]
struct Turns {
    /// Its first statement.
    begin: usize,
    /// The statement after its last.
    end: usize,
    /// Number of this turn.
    turn: u64,
    /// Number of the last turn.
    last: u64,
}

/// What a session works with during a step.
pub(super) struct Context<'a> {
    /// The actor's plan.
    pub(super) plan: &'a ActorPlan,
    /// The session's slot in the proc array.
    pub(super) index: usize,
    /// Transactions that all sessions of the actor began.
    pub(super) begun: &'a mut u64,
    /// The server.
    pub(super) cluster: &'a mut Cluster,
    /// Relation locks.
    pub(super) locks: &'a mut LockTable,
    /// Simulated microseconds since the start.
    pub(super) elapsed_us: u64,
    /// The clock.
    pub(super) now: Timestamp,
}

/// How a session goes on.
pub(super) enum Progress {
    /// At this simulated microsecond.
    At(u64),
    /// When some transaction has ended.
    Blocked,
    /// Its transaction ended; the next one begins at this microsecond.
    Ended(Box<TransactionTruth>, u64),
}

impl Session {
    /// A session that did nothing yet.
    pub(super) fn new(actor: usize, number: u64) -> Session {
        Session { actor, number, begun: 0, connection: None, resumes_us: 0, running: None }
    }

    /// Whether it has no further transaction to begin.
    pub(super) fn is_over(&self, plan: &Plan, elapsed_us: u64) -> bool {
        if self.running.is_some() {
            return false;
        }
        let all_begun = plan.actors[self.actor].transactions.is_some_and(|transactions| self.begun >= transactions);
        all_begun || plan.duration_us.is_some_and(|duration| elapsed_us >= duration)
    }

    /// The next statement, or the end of the transaction.
    pub(super) fn step(
        &mut self,
        mut context: Context<'_>,
        rng: &mut dyn Rng,
        sink: &mut CountingSink<'_>,
    ) -> Result<Progress, PrimaryError> {
        let mut running = match self.running.take() {
            Some(running) => running,
            None => self.begin(&mut context, rng),
        };
        let kind = context.plan.mix.get(running.kind);
        let statements = kind.map_or(&[][..], |kind| kind.statements.as_slice());
        running.turn(statements);
        let Some(statement) = statements.get(running.next) else {
            if running.ended && !running.in_transaction {
                return Ok(Progress::At(context.next_unit(&running, rng)));
            }
            let end = if running.rolls_back { TransactionEnd::Rollback } else { TransactionEnd::Commit };
            let truth = running.end(end, &mut context, sink)?;
            return Ok(Progress::Ended(truth, context.next_unit(&running, rng)));
        };
        let line = kind.and_then(|kind| kind.lines.get(running.next)).copied().unwrap_or_default();
        // Kept whatever comes of it: a transaction whose statement was refused is still open.
        let progress = self.statement(statement, &mut running, &mut context, rng, sink).map_err(|error| error.in_line(line));
        self.running = Some(running);
        progress
    }

    /// The next statement.
    fn statement(
        &self,
        statement: &StatementPlan,
        running: &mut Running,
        context: &mut Context<'_>,
        rng: &mut dyn Rng,
        sink: &mut CountingSink<'_>,
    ) -> Result<Progress, PrimaryError> {
        if let StatementPlan::Wait(pause) = statement {
            running.next += 1;
            return Ok(Progress::At(context.elapsed_us.saturating_add(pause.draw(rng))));
        }
        let fail = |error| named(&context.plan.name, statement.name(), error);
        let turn = |nth: usize| running.loops.iter().rev().nth(nth).map_or(0, |turns| turns.turn);
        let blanks = Blanks { transaction: running.number, session: self.number, index: turn(0), outer: turn(1) };
        let resolved = match running.resolved.take() {
            Some(resolved) => resolved,
            None => {
                let seen = Seen { cluster: context.cluster, session: context.index };
                resolve(statement, seen, blanks, rng).map_err(fail)?
            }
        };
        if statement.scope() == Scope::Alone && running.in_transaction {
            return Err(fail(StatementError::Refused("it cannot run inside a transaction".to_owned())));
        }
        if !context.locks.try_lock(context.index, &resolved.locks) {
            running.resolved = Some(resolved);
            return Ok(Progress::Blocked);
        }
        if let StatementPlan::Vacuum(plan) = statement {
            return running.vacuum(plan, resolved, context, sink).map_err(|error| match error {
                StatementError::Primary(error) => error,
                refused => fail(refused),
            });
        }
        if let StatementPlan::Object(plan) = statement
            && plan.is_concurrent()
        {
            return running.concurrently(resolved, context, sink).map_err(fail);
        }
        if statement.scope() != Scope::Inside {
            running.next += 1;
            return running.control(statement, &resolved.name, context, sink);
        }
        let mut backend = Backend { cluster: context.cluster, xact: &mut running.xact, sink, now: context.now };
        if let Some(made) = backend.run(statement, &resolved, rng).map_err(fail)? {
            // Nobody else knows the new relation yet, so this always succeeds.
            context.locks.try_lock(context.index, &[(made, LockMode::Exclusive)]);
        }
        running.next += 1;
        running.in_transaction = true;
        Ok(Progress::At(context.elapsed_us))
    }

    /// A statement that is not done keeps its locks although a transaction of its ended (`LockRelationIdForSession`).
    pub(super) fn keep_locks(&self, index: usize, locks: &mut LockTable) {
        if let Some(running) = self.running.as_ref().filter(|running| running.stages.is_begun())
            && let Some(resolved) = &running.resolved
        {
            locks.try_lock(index, &resolved.locks);
        }
    }

    /// Whether a transaction is open.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether it is connected.
    pub(super) fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    /// Connects.
    pub(super) fn connect(&mut self) {
        self.connection = Some(0);
    }

    /// Its connection is gone; nothing that it would do on the way out happens.
    pub(super) fn lose_connection(&mut self) {
        self.connection = None;
    }

    /// Whether all transactions of its connection are done.
    pub(super) fn has_used_its_connection(&self, plan: &ActorPlan) -> bool {
        let begun = self.connection.zip(plan.transactions_per_connection);
        self.running.is_none() && begun.is_some_and(|(begun, most)| begun >= most)
    }

    /// Leaves: its temporary relations go (`RemoveTempRelationsCallback`). Gives the transaction that dropped some.
    pub(super) fn leave(
        &mut self,
        context: &mut Context<'_>,
        sink: &mut CountingSink<'_>,
    ) -> Result<Option<Box<TransactionTruth>>, PrimaryError> {
        self.connection = None;
        let mut xact = Transaction::new(context.index);
        let mut backend = Backend { cluster: context.cluster, xact: &mut xact, sink, now: context.now };
        let fail = |error| named(&context.plan.name, "the end of its session", error);
        let tables = backend.remove_temp_relations().map_err(fail)?;
        if tables > 0 {
            backend.xact.did.push(format!("DROP of {} at the session's end", counted(tables as u64, "temporary table")));
        }
        let ended = backend.commit().map_err(fail)?;
        let truth = context.truth(TransactionEnd::Commit, &ended, &xact);
        context.cluster.backends.disconnect(context.index);
        Ok(Some(truth).filter(|truth| truth.xid.is_valid()))
    }

    /// Rolls the open transaction back, if there is one.
    pub(super) fn abort(
        &mut self,
        mut context: Context<'_>,
        sink: &mut CountingSink<'_>,
    ) -> Result<Option<Box<TransactionTruth>>, PrimaryError> {
        // Behind COMMIT there is nothing to roll back, although steps may follow.
        match self.running.take().filter(|running| running.in_transaction || !running.ended) {
            Some(mut running) => running.end(TransactionEnd::Rollback, &mut context, sink).map(Some),
            None => Ok(None),
        }
    }

    /// Begins a transaction.
    fn begin(&mut self, context: &mut Context<'_>, rng: &mut dyn Rng) -> Running {
        self.begun += 1;
        *context.begun += 1;
        self.connection = self.connection.map(|begun| begun + 1);
        let percent = context.plan.rollback_percent;
        let number = *context.begun;
        Running {
            xact: context.transaction(number, 0),
            begun_us: context.elapsed_us,
            number,
            rolls_back: percent > 0 && uniform(rng, 1, 100) <= percent,
            kind: choose(&context.plan.mix, rng),
            next: 0,
            in_transaction: false,
            ended: false,
            loops: Vec::new(),
            resolved: None,
            phase: 0,
            stages: Stages::default(),
        }
    }
}

impl Running {
    /// Goes from the end of a loop to its next turn or beyond it, and into loops that begin here.
    fn turn(&mut self, statements: &[StatementPlan]) {
        loop {
            if let Some(turns) = self.loops.last_mut().filter(|turns| turns.end == self.next) {
                if turns.turn < turns.last {
                    turns.turn += 1;
                    self.next = turns.begin;
                } else {
                    self.loops.pop();
                }
                continue;
            }
            let Some(StatementPlan::Repeat { first, last, statements }) = statements.get(self.next) else { return };
            let (begin, end) = (self.next + 1, self.next + 1 + statements);
            if first > last || begin == end {
                self.next = end;
            } else {
                self.loops.push(Turns { begin, end, turn: *first, last: *last });
                self.next = begin;
            }
        }
    }
}

/// One of several kinds of transactions, by weight. Nothing is drawn if there is one.
fn choose(mix: &[TransactionPlan], rng: &mut dyn Rng) -> usize {
    let all: u64 = mix.iter().map(|kind| kind.weight).sum();
    if mix.len() <= 1 || all == 0 {
        return 0;
    }
    let mut drawn = uniform(rng, 1, all);
    mix.iter()
        .position(|kind| {
            let chosen = drawn <= kind.weight;
            drawn = drawn.saturating_sub(kind.weight);
            chosen
        })
        .unwrap_or(0)
}

impl Context<'_> {
    /// A transaction that did nothing yet. One that comes from an origin has its place in the order of commits there.
    pub(super) fn transaction(&self, number: u64, next: usize) -> Transaction {
        let mut xact = Transaction::new(self.index);
        if self.plan.origin != 0 {
            let lsn = Lsn(ORIGIN_START.saturating_add(number.saturating_mul(ORIGIN_STEP)).saturating_add(next as u64));
            xact.origin = Some(Origin { id: self.plan.origin, lsn, time: self.now });
        }
        xact
    }

    /// When the session's next unit begins.
    fn next_unit(&self, running: &Running, rng: &mut dyn Rng) -> u64 {
        let every = self.plan.every.map_or(0, |every| every.draw(rng));
        let think = self.plan.think.draw(rng);
        running.begun_us.saturating_add(every).max(self.elapsed_us.saturating_add(think))
    }
}
