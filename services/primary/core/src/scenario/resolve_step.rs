//! From the file's steps to statements: one arm each.

use super::amount::Amount;
use super::at::At;
use super::plan::TransactionPlan;
use super::resolve::{ROWS_MAX, Resolver, SESSIONS_MAX, Said, name};
use super::statement::{FinishPrepared, Scope, StatementPlan, Target, VacuumPlan};
use super::step::{FinishPreparedFile, LongFile, RowLockFile, RowsFile, StepFile};
use crate::dml::row_lock::RowLock;

/// Longest content of a logical message.
const MESSAGE_MAX: u64 = 64 << 20;

/// Longest value outside of its row.
const LONG_MAX: u64 = 64 << 20;
/// Most turns of a loop.
const TURNS_MAX: u64 = 10_000_000;
/// Most statements that a transaction runs, with all turns of its loops.
const STATEMENTS_RUN_MAX: u64 = 100_000_000;
/// Most statements that a kind of transaction has in the file.
const STATEMENTS_MAX: usize = 10_000;
/// Most loops in each other.
const DEPTH_MAX: usize = 8;

impl Resolver<'_> {
    /// Steps as statements. `turns` is how often all loops around run them.
    pub(super) fn push_steps(&self, steps: &[At<StepFile>], turns: u64, depth: usize, to: &mut TransactionPlan) {
        for step in steps {
            self.step.replace(step.span());
            let line = self.line(step.span().start);
            if to.statements.len() >= STATEMENTS_MAX {
                return self.error(step.span(), format!("too many steps in one transaction: at most {STATEMENTS_MAX}"));
            }
            match step.get_ref() {
                StepFile::Repeat(repeat) => {
                    let Some(times) = self.at(step, |_| self.number(&repeat.times, 0, TURNS_MAX)) else { continue };
                    if depth == DEPTH_MAX {
                        return self.error(step.span(), format!("too many loops in each other: at most {DEPTH_MAX}"));
                    }
                    if repeat.steps.is_empty() {
                        self.error(step.span(), "there is nothing to repeat: give it 'steps'");
                    }
                    let place = to.statements.len();
                    to.push(StatementPlan::Repeat { first: 1, last: times, statements: 0 }, line);
                    self.push_steps(&repeat.steps, self.all_turns(step, turns, times), depth + 1, to);
                    let statements = to.statements.len() - place - 1;
                    to.statements[place] = StatementPlan::Repeat { first: 1, last: times, statements };
                }
                other => {
                    let Some(statement) = self.at(step, |_| self.statement(other)) else { continue };
                    if let Some((first, last)) = self.pattern.take() {
                        self.all_turns(step, turns, (last - first).saturating_add(1));
                        to.push(StatementPlan::Repeat { first, last, statements: 1 }, line);
                    }
                    self.check_place(step, &statement);
                    to.push(statement, line);
                }
            }
        }
    }

    /// Turns of a loop with those around it, within limits.
    fn all_turns(&self, step: &At<StepFile>, around: u64, times: u64) -> u64 {
        let all = around.saturating_mul(times.max(1));
        if all > STATEMENTS_RUN_MAX {
            self.error(step.span(), format!("{all} turns are too many: at most {STATEMENTS_RUN_MAX} in a transaction"));
        }
        all.min(STATEMENTS_RUN_MAX)
    }

    /// One step.
    pub(super) fn statement(&self, step: &StepFile) -> Said<StatementPlan> {
        Ok(match step {
            StepFile::Insert(rows) => StatementPlan::Insert(self.target(rows)?, self.rows(rows)?),
            StepFile::Copy(rows) => StatementPlan::Copy(self.target(rows)?, self.rows(rows)?),
            StepFile::Update(rows) => StatementPlan::Update(self.target(rows)?, self.rows(rows)?),
            StepFile::Delete(rows) => StatementPlan::Delete(self.target(rows)?, self.rows(rows)?),
            StepFile::Truncate(truncate) => self.truncate(truncate)?,
            StepFile::CreateTable(create) => self.create_table(create)?,
            StepFile::CreateIndex(create) => self.create_index(create)?,
            StepFile::AddColumn(add) => {
                let column = self.column(&add.column)?;
                let name = self.blanks(&column.name)?;
                StatementPlan::AddColumn(self.relation(&add.table)?, column, name)
            }
            StepFile::Grant(grant) if grant.column.is_none() => {
                StatementPlan::Grant(self.relation(&grant.table)?, name(&grant.role)?)
            }
            StepFile::Savepoint(savepoint) => StatementPlan::Savepoint(name(savepoint)?),
            StepFile::Release(savepoint) => StatementPlan::Release(name(savepoint)?),
            StepFile::RollbackTo(savepoint) => StatementPlan::RollbackTo(name(savepoint)?),
            StepFile::Commit(_) => StatementPlan::Commit,
            StepFile::Rollback(_) => StatementPlan::Rollback,
            StepFile::Prepare(prepare) => StatementPlan::Prepare(self.template(&prepare.gid)?),
            StepFile::CommitPrepared(finish) => self.finish_prepared(finish, true)?,
            StepFile::RollbackPrepared(finish) => self.finish_prepared(finish, false)?,
            StepFile::InsertOnConflict(insert) => {
                let rows = self.count(insert.rows.as_ref(), 1)?;
                let conflicts = self.count(insert.conflicts.as_ref(), 0)?;
                if conflicts > rows {
                    return Err(format!("{conflicts} rows cannot conflict if {rows} are inserted"));
                }
                StatementPlan::InsertOnConflict(self.relation(&insert.table)?, rows, conflicts)
            }
            StepFile::InsertLong(long) => {
                StatementPlan::InsertLong(self.relation(&long.table)?, self.count(long.rows.as_ref(), 1)?, self.long(long)?)
            }
            StepFile::UpdateLong(long) => {
                StatementPlan::UpdateLong(self.relation(&long.table)?, self.count(long.rows.as_ref(), 1)?, self.long(long)?)
            }
            StepFile::LockRows(rows) => {
                let lock = match rows.mode {
                    RowLockFile::Update => RowLock::Update,
                    RowLockFile::NoKeyUpdate => RowLock::NoKeyUpdate,
                    RowLockFile::Share => RowLock::Share,
                    RowLockFile::KeyShare => RowLock::KeyShare,
                };
                StatementPlan::LockRows(self.relation(&rows.table)?, self.count(rows.rows.as_ref(), 1)?, lock)
            }
            StepFile::Nextval(nextval) => {
                StatementPlan::Nextval(self.blanks(&nextval.sequence)?, self.count(nextval.times.as_ref(), 1)?)
            }
            StepFile::Vacuum(vacuum) => {
                let table = self.relation(&vacuum.table)?;
                StatementPlan::Vacuum(VacuumPlan { table, freeze: vacuum.freeze, analyze: vacuum.analyze })
            }
            StepFile::Analyze(on) => StatementPlan::Analyze(self.relation(&on.table)?),
            StepFile::Checkpoint(_) => StatementPlan::Checkpoint,
            StepFile::LogStandbySnapshot(_) => StatementPlan::LogStandbySnapshot,
            StepFile::SwitchWal(_) => StatementPlan::SwitchWal,
            StepFile::Message(message) => {
                let bytes = message.bytes.as_ref().map_or(Ok(0), |bytes| self.number(bytes, 0, MESSAGE_MAX))?;
                StatementPlan::Message(name(&message.prefix)?, bytes, message.transactional.unwrap_or(true))
            }
            StepFile::Wait(pause) => StatementPlan::Wait(self.pause(pause)?),
            StepFile::Repeat(_) => return Err("a loop stands beside the statements, not among them".to_owned()),
            object => StatementPlan::Object(Box::new(self.object_statement(object)?)),
        })
    }

    /// A number of rows.
    fn count(&self, rows: Option<&Amount>, missing: u64) -> Said<u64> {
        rows.map_or(Ok(missing), |amount| self.number(amount, 0, ROWS_MAX))
    }

    /// Bytes of a long value.
    fn long(&self, long: &LongFile) -> Said<u64> {
        self.number(&long.bytes, 1, LONG_MAX)
    }

    /// COMMIT PREPARED or ROLLBACK PREPARED.
    fn finish_prepared(&self, finish: &FinishPreparedFile, commit: bool) -> Said<StatementPlan> {
        let gid = self.template(&finish.gid)?;
        Ok(StatementPlan::FinishPrepared(FinishPrepared { gid, commit, if_exists: finish.if_exists }))
    }

    /// Notes what the order of a transaction's statements makes wrong.
    fn check_place(&self, step: &At<StepFile>, statement: &StatementPlan) {
        match statement.scope() {
            Scope::Inside => self.in_transaction.set(true),
            Scope::Ends => self.in_transaction.set(false),
            Scope::Alone if self.in_transaction.get() => {
                let name = statement.name();
                let why = format!("{name} cannot run inside a transaction: put it first, or 'commit = {{}}' in front of it");
                self.error(step.span(), why);
            }
            Scope::Alone | Scope::Neither => {}
        }
        let max_prepared = &self.file.server.max_prepared_transactions;
        if matches!(statement, StatementPlan::Prepare(_)) && self.or(max_prepared, 0, |a| self.number(a, 0, SESSIONS_MAX)) == 0
        {
            self.error(step.span(), "prepared transactions are disabled: set max_prepared_transactions under [server]");
        }
    }

    /// Which tables rows are in.
    fn target(&self, rows: &RowsFile) -> Said<Target> {
        match (&rows.table, &rows.partitions_of) {
            (Some(table), None) => self.relation(table).map(Target::Table),
            (None, Some(parent)) => self.relation(parent).map(Target::PartitionsOf),
            _ => Err("say either 'table' or 'partitions_of'".to_owned()),
        }
    }

    /// How many rows.
    fn rows(&self, rows: &RowsFile) -> Said<u64> {
        rows.rows.as_ref().map_or(Ok(1), |amount| self.number(amount, 0, ROWS_MAX))
    }
}
