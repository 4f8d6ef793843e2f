//! Statements on rows beyond plain INSERT, COPY, UPDATE and DELETE: what they did, in words.

use super::statement::{Resolved, counted, only};
use crate::backend::{Backend, Result};
use crate::rng::Rng;
use crate::scenario::StatementPlan;

impl Backend<'_> {
    /// Runs such a statement on the table that it names.
    pub(super) fn run_on_rows(&mut self, plan: &StatementPlan, at: &Resolved, rng: &mut dyn Rng) -> Result<String> {
        Ok(match plan {
            StatementPlan::InsertOnConflict(_, rows, conflicts) => {
                let updated = self.insert_on_conflict(only(at)?, *rows, *conflicts, rng)?;
                format!("INSERT ON CONFLICT of {} into {}, {updated} of them updated", counted(*rows, "row"), at.name)
            }
            StatementPlan::InsertLong(_, rows, bytes) => {
                self.insert_toasted(only(at)?, *rows, *bytes)?;
                format!("INSERT of {} of {} into {}", counted(*rows, "row"), counted(*bytes, "byte"), at.name)
            }
            StatementPlan::UpdateLong(_, rows, bytes) => {
                let done = self.update_toasted(only(at)?, *rows, *bytes, rng)?;
                format!("UPDATE of {} of {} in {}", counted(done, "row"), counted(*bytes, "byte"), at.name)
            }
            StatementPlan::LockRows(_, rows, lock) => {
                let done = self.lock_rows(only(at)?, *rows, *lock, rng)?;
                format!("SELECT {} of {} in {}", lock.sql(), counted(done, "row"), at.name)
            }
            StatementPlan::Nextval(_, times) => {
                self.nextval(only(at)?, *times)?;
                format!("nextval of {}, {}", at.name, counted(*times, "time"))
            }
            StatementPlan::Analyze(_) => {
                self.analyze(only(at)?)?;
                format!("ANALYZE {}", at.name)
            }
            StatementPlan::Message(prefix, bytes, transactional) => {
                self.emit_message(prefix, vec![b'm'; *bytes as usize], *transactional)?;
                format!("a message '{prefix}' of {}", counted(*bytes, "byte"))
            }
            _ => String::new(),
        })
    }
}
