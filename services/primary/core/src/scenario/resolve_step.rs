//! From the file's steps to statements: one arm each.

use super::resolve::{ROWS_MAX, Resolver, Said};
use super::statement::{StatementPlan, Target};
use super::step::{RowsFile, StepFile};
use crate::ddl::column::Column;

/// Longest content of a logical message.
const MESSAGE_MAX: u64 = 64 << 20;

impl Resolver<'_> {
    /// One step.
    pub(super) fn statement(&self, step: &StepFile) -> Said<StatementPlan> {
        Ok(match step {
            StepFile::Insert(rows) => StatementPlan::Insert(self.target(rows)?, self.rows(rows)?),
            StepFile::Copy(rows) => StatementPlan::Copy(self.target(rows)?, self.rows(rows)?),
            StepFile::Update(rows) => StatementPlan::Update(self.target(rows)?, self.rows(rows)?),
            StepFile::Delete(rows) => StatementPlan::Delete(self.target(rows)?, self.rows(rows)?),
            StepFile::Truncate(on) => StatementPlan::Truncate(self.template(&on.table)?),
            StepFile::CreateTable(create) => {
                let columns = create.columns.iter().map(|text| Column::parse(text)).collect::<Said<_>>()?;
                let parent = create.partition_of.as_ref().map(|parent| self.template(parent)).transpose()?;
                StatementPlan::CreateTable(self.template(&create.table)?, columns, parent)
            }
            StepFile::CreateIndex(create) => StatementPlan::CreateIndex(self.template(&create.table)?, name(&create.column)?),
            StepFile::AddColumn(add) => StatementPlan::AddColumn(self.template(&add.table)?, Column::parse(&add.column)?),
            StepFile::Grant(grant) => StatementPlan::Grant(self.template(&grant.table)?, name(&grant.role)?),
            StepFile::Savepoint(savepoint) => StatementPlan::Savepoint(name(savepoint)?),
            StepFile::Release(savepoint) => StatementPlan::Release(name(savepoint)?),
            StepFile::RollbackTo(savepoint) => StatementPlan::RollbackTo(name(savepoint)?),
            StepFile::Message(message) => {
                let bytes = message.bytes.as_ref().map_or(Ok(0), |bytes| self.number(bytes, 0, MESSAGE_MAX))?;
                StatementPlan::Message(name(&message.prefix)?, bytes)
            }
            StepFile::Wait(pause) => StatementPlan::Wait(self.pause(pause)?),
        })
    }

    /// Which tables rows are in.
    fn target(&self, rows: &RowsFile) -> Said<Target> {
        match (&rows.table, &rows.partitions_of) {
            (Some(table), None) => self.template(table).map(Target::Table),
            (None, Some(parent)) => self.template(parent).map(Target::PartitionsOf),
            _ => Err("say either 'table' or 'partitions_of'".to_owned()),
        }
    }

    /// How many rows.
    fn rows(&self, rows: &RowsFile) -> Said<u64> {
        rows.rows.as_ref().map_or(Ok(1), |amount| self.number(amount, 0, ROWS_MAX))
    }
}

/// A name without blanks.
fn name(text: &str) -> Said<String> {
    if text.is_empty() || text.len() > 63 || text.chars().any(char::is_control) {
        return Err(format!("'{}' is no name: use 1 to 63 bytes without control characters", text.escape_debug()));
    }
    Ok(text.to_owned())
}
