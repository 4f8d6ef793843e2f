//! The ends of a session's transactions (`tcop/utility.c`: `TransactionStmt`): COMMIT and ROLLBACK, what belongs to prepared
//! transactions, and what a session may ask of the server at any time.

use std::collections::BTreeMap;

use pg_types::Lsn;

use super::named;
use super::session::{Context, Progress, Running};
use super::statement::{Resolved, counted as number_of, only};
use super::tally::CountingSink;
use super::truth::{RowCounts, TransactionEnd, TransactionTruth};
use crate::backend::{Backend, Ended, StatementError};
use crate::error::PrimaryError;
use crate::scenario::{FinishPrepared, StatementPlan, VacuumPlan};
use crate::xact::{RowChange, Told, Transaction};

impl Running {
    /// A statement that is not part of a transaction. `name` is that of the prepared transaction, if it is about one.
    pub(super) fn control(
        &mut self,
        statement: &StatementPlan,
        name: &str,
        context: &mut Context<'_>,
        sink: &mut CountingSink<'_>,
    ) -> Result<Progress, PrimaryError> {
        let truth = match statement {
            StatementPlan::Commit if !self.rolls_back => self.end(TransactionEnd::Commit, context, sink)?,
            StatementPlan::Commit | StatementPlan::Rollback => self.end(TransactionEnd::Rollback, context, sink)?,
            StatementPlan::Prepare(_) if !self.rolls_back => self.prepare(name, context, sink)?,
            StatementPlan::Prepare(_) => {
                // What would follow is about a transaction that is never prepared.
                self.next = usize::MAX;
                self.end(TransactionEnd::Rollback, context, sink)?
            }
            StatementPlan::FinishPrepared(finish) => match self.finish_prepared(finish, name, context, sink)? {
                Some(truth) => truth,
                None => return Ok(Progress::At(context.elapsed_us)),
            },
            _ => {
                context.cluster.on_demand(statement, context.now, sink)?;
                return Ok(Progress::At(context.elapsed_us));
            }
        };
        self.xact = context.transaction(self.number, self.next);
        Ok(Progress::Ended(truth, context.elapsed_us))
    }

    /// COMMIT or ROLLBACK.
    pub(super) fn end(
        &mut self,
        end: TransactionEnd,
        context: &mut Context<'_>,
        sink: &mut CountingSink<'_>,
    ) -> Result<Box<TransactionTruth>, PrimaryError> {
        let mut backend = Backend { cluster: context.cluster, xact: &mut self.xact, sink, now: context.now };
        let (what, ended) = match end {
            TransactionEnd::Commit => ("COMMIT", backend.commit()),
            _ => ("ROLLBACK", backend.abort()),
        };
        let ended = ended.map_err(|error| named(&context.plan.name, what, error))?;
        self.ended();
        Ok(context.truth(end, &ended, &self.xact))
    }

    /// PREPARE TRANSACTION.
    fn prepare(
        &mut self,
        gid: &str,
        context: &mut Context<'_>,
        sink: &mut CountingSink<'_>,
    ) -> Result<Box<TransactionTruth>, PrimaryError> {
        let mut backend = Backend { cluster: context.cluster, xact: &mut self.xact, sink, now: context.now };
        let prepared = backend.prepare_transaction(gid);
        let (ended, dummy_proc) = prepared.map_err(|error| named(&context.plan.name, "PREPARE TRANSACTION", error))?;
        context.locks.transfer(context.index, dummy_proc);
        self.ended();
        let mut truth = context.truth(TransactionEnd::Prepare, &ended, &self.xact);
        truth.did = vec![format!("PREPARE TRANSACTION '{gid}'")];
        truth.gid = Some(gid.to_owned());
        Ok(truth)
    }

    /// COMMIT PREPARED or ROLLBACK PREPARED; nothing if there is none and none need be.
    fn finish_prepared(
        &mut self,
        finish: &FinishPrepared,
        gid: &str,
        context: &mut Context<'_>,
        sink: &mut CountingSink<'_>,
    ) -> Result<Option<Box<TransactionTruth>>, PrimaryError> {
        let (end, what) = if finish.commit {
            (TransactionEnd::CommitPrepared, "COMMIT PREPARED")
        } else {
            (TransactionEnd::RollbackPrepared, "ROLLBACK PREPARED")
        };
        if finish.if_exists && !context.cluster.twophase.contains(gid) {
            self.ended = true;
            return Ok(None);
        }
        let mut backend = Backend { cluster: context.cluster, xact: &mut self.xact, sink, now: context.now };
        let finished = backend.finish_prepared(gid, finish.commit);
        let (ended, gxact) = finished.map_err(|error| named(&context.plan.name, what, error))?;
        context.locks.release(gxact.dummy_proc);
        self.ended();
        let mut truth = context.truth(end, &ended, &self.xact);
        truth.commands = gxact.commands;
        truth.records += gxact.records;
        truth.did = gxact.did;
        truth.did.push(format!("{what} '{gid}'"));
        truth.gid = Some(gid.to_owned());
        Ok(Some(truth))
    }

    /// The next transaction of a VACUUM: of the table, of its TOAST table, then perhaps ANALYZE.
    pub(super) fn vacuum(
        &mut self,
        plan: &VacuumPlan,
        resolved: Resolved,
        context: &mut Context<'_>,
        sink: &mut CountingSink<'_>,
    ) -> Result<Progress, StatementError> {
        let table = only(&resolved)?;
        let toast = context.cluster.catalog.relation(table).and_then(|relation| relation.toast);
        let mut phases = vec![Some(table), toast];
        phases.retain(Option::is_some);
        let mut backend = Backend { cluster: context.cluster, xact: &mut self.xact, sink, now: context.now };
        let did = match phases.get(self.phase).copied().flatten() {
            Some(rel) => {
                let removed = backend.vacuum(rel, plan.freeze)?;
                let what = if rel == table { "VACUUM" } else { "VACUUM of the TOAST table" };
                format!("{what} of {}, {}", resolved.name, number_of(removed, "row"))
            }
            None => {
                backend.analyze(table)?;
                format!("ANALYZE {}", resolved.name)
            }
        };
        self.xact.did.push(did);
        self.phase += 1;
        if self.phase < phases.len() + usize::from(plan.analyze) {
            self.resolved = Some(resolved);
        } else {
            self.phase = 0;
            self.next += 1;
        }
        let truth = self.end(TransactionEnd::Commit, context, sink)?;
        self.xact = context.transaction(self.number, self.next);
        Ok(Progress::Ended(truth, context.elapsed_us))
    }

    /// A transaction of the unit ended.
    fn ended(&mut self) {
        (self.in_transaction, self.ended) = (false, true);
    }
}

impl Context<'_> {
    /// What happened.
    pub(super) fn truth(&self, end: TransactionEnd, ended: &Ended, xact: &Transaction) -> Box<TransactionTruth> {
        Box::new(TransactionTruth {
            actor: self.plan.name.clone(),
            end,
            gid: None,
            xid: ended.xid,
            committed: ended.committed,
            time: self.now,
            lsn: ended.lsn(),
            end_lsn: ended.placed.map_or(Lsn::INVALID, |placed| placed.end),
            subxids: ended.subxids,
            messages: ended.messages,
            commands: xact.command_id.0,
            records: xact.records,
            rows: counted(&ended.rows),
            did: xact.did.clone(),
        })
    }
}

/// Rows by file.
fn counted(rows: &[RowChange]) -> BTreeMap<u32, RowCounts> {
    let mut counts: BTreeMap<u32, RowCounts> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.told != Told::Readers) {
        let count = counts.entry(row.filenode).or_default();
        match (row.at_commit, row.at_abort) {
            (Some(_), Some(_)) => count.updated += 1,
            (Some(_), None) => count.inserted += 1,
            (None, Some(_)) => count.deleted += 1,
            (None, None) => {}
        }
    }
    counts
}
