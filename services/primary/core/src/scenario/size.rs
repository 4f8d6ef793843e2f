//! How large a plan is, at most: what those who take scenarios from others put limits on before anything is played.
//!
//! Sizes are counted from the plan alone, with arithmetic that stops at the largest number, so that no plan is too large to be
//! counted. Draws count with their mean: a scenario that draws its pauses is as large as one that has them fixed.

use super::plan::{ActorPlan, Plan, TransactionPlan};
use super::statement::{StatementPlan, Target};

/// How large a plan is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanSize {
    /// Tables that are there before, partitions included.
    pub tables: u64,
    /// Rows that are there before, and rows that transactions touch.
    pub rows: u64,
    /// Bytes in logical messages.
    pub message_bytes: u64,
    /// Sessions.
    pub sessions: u64,
    /// Transactions.
    pub transactions: u64,
    /// Statements, ends of transactions included.
    pub statements: u64,
    /// When open-ended actors stop, in microseconds.
    pub duration_us: Option<u64>,
}

impl Plan {
    /// How large it is, at most.
    #[must_use]
    pub fn size(&self) -> PlanSize {
        let mut size = PlanSize { duration_us: self.duration_us, ..PlanSize::default() };
        for table in &self.tables {
            let files = table.count.saturating_mul(table.partitions.unwrap_or(1));
            let parents = if table.partitions.is_some() { table.count } else { 0 };
            size.tables = size.tables.saturating_add(files).saturating_add(parents);
            size.rows = size.rows.saturating_add(files.saturating_mul(table.rows));
        }
        let partitions = self.tables.iter().filter_map(|table| table.partitions).max().unwrap_or(1);
        for actor in &self.actors {
            let transactions = self.transactions(actor);
            size.sessions = size.sessions.saturating_add(actor.sessions);
            size.transactions = size.transactions.saturating_add(transactions);
            let worst = actor.mix.iter().map(|kind| amounts(kind, partitions)).fold(Amounts::default(), Amounts::larger);
            size.statements = size.statements.saturating_add(transactions.saturating_mul(worst.statements.saturating_add(1)));
            size.rows = size.rows.saturating_add(transactions.saturating_mul(worst.rows));
            size.message_bytes = size.message_bytes.saturating_add(transactions.saturating_mul(worst.message_bytes));
        }
        size
    }

    /// Transactions of all sessions of an actor.
    fn transactions(&self, actor: &ActorPlan) -> u64 {
        let gap_us = actor.every.map_or(0, |every| every.mean_us()).max(actor.think.mean_us());
        // Without a gap no time passes, so time ends nothing.
        let by_time = self.duration_us.and_then(|duration| duration.checked_div(gap_us)).map(|n| n.saturating_add(1));
        let each = match (actor.transactions, by_time) {
            (Some(said), Some(by_time)) => said.min(by_time),
            (Some(said), None) => said,
            (None, by_time) => by_time.unwrap_or(u64::MAX),
        };
        each.saturating_mul(actor.sessions)
    }
}

/// What one transaction does.
#[derive(Clone, Copy, Debug, Default)]
struct Amounts {
    /// Rows.
    rows: u64,
    /// Bytes in logical messages.
    message_bytes: u64,
    /// Statements.
    statements: u64,
}

impl Amounts {
    /// The larger of each.
    fn larger(self, other: Amounts) -> Amounts {
        Amounts {
            rows: self.rows.max(other.rows),
            message_bytes: self.message_bytes.max(other.message_bytes),
            statements: self.statements.max(other.statements),
        }
    }
}

/// What a kind of transaction does where a partitioned table has so many partitions.
fn amounts(kind: &TransactionPlan, partitions: u64) -> Amounts {
    let of = |target: &Target, rows: u64| match target {
        Target::Table(_) => rows,
        Target::PartitionsOf(_) => rows.saturating_mul(partitions),
    };
    let mut sum = Amounts::default();
    // Ends and turns of the loops around a statement.
    let mut loops: Vec<(usize, u64)> = Vec::new();
    for (at, statement) in kind.statements.iter().enumerate() {
        loops.retain(|(end, _)| *end > at);
        if let StatementPlan::Repeat { first, last, statements } = statement {
            loops.push((at + 1 + statements, last.saturating_add(1).saturating_sub(*first)));
            continue;
        }
        let turns = loops.iter().fold(1u64, |turns, (_, more)| turns.saturating_mul(*more));
        let (rows, bytes) = match statement {
            StatementPlan::Insert(target, rows)
            | StatementPlan::Copy(target, rows)
            | StatementPlan::Update(target, rows)
            | StatementPlan::Delete(target, rows) => (of(target, *rows), 0),
            StatementPlan::InsertLong(_, rows, bytes) | StatementPlan::UpdateLong(_, rows, bytes) => {
                (*rows, rows.saturating_mul(*bytes))
            }
            StatementPlan::InsertOnConflict(_, rows, _)
            | StatementPlan::LockRows(_, rows, _)
            | StatementPlan::Nextval(_, rows) => (*rows, 0),
            StatementPlan::Message(_, bytes, _) => (0, *bytes),
            _ => (0, 0),
        };
        sum.statements = sum.statements.saturating_add(turns);
        sum.rows = sum.rows.saturating_add(turns.saturating_mul(rows));
        sum.message_bytes = sum.message_bytes.saturating_add(turns.saturating_mul(bytes));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Overrides, Scenario};

    fn size(text: &str) -> PlanSize {
        Scenario::parse("text", text).unwrap().plan(&Overrides::new()).unwrap().size()
    }

    #[test]
    fn everything_counts_and_nothing_overflows() {
        let text = r#"
name = "sized"
story = "s"
seed = 1
duration = "10s"
[[tables]]
name = "t"
columns = ["id int"]
partitions = 4
rows = 10
[[actors]]
name = "a"
sessions = 2
transactions = 5
steps = [
    { insert = { partitions_of = "t", rows = 3 } },
    { repeat = { times = 3, steps = [{ savepoint = "s" }, { message = { prefix = "p", bytes = 100 } }] } },
]
[[actors]]
name = "b"
every = { from = "0s", to = "2s" }
steps = [{ insert = { table = "t_1", rows = 7 } }]
"#;
        let expected = PlanSize {
            tables: 5,
            rows: 40 + 10 * 12 + 11 * 7,
            message_bytes: 3000,
            sessions: 3,
            transactions: 21,
            statements: 10 * 8 + 22,
            duration_us: Some(10_000_000),
        };
        assert_eq!(size(text), expected);
        let huge = text.replace("transactions = 5", "transactions = 100000000").replace("bytes = 100", "bytes = 60000000");
        assert_eq!(size(&huge).message_bytes, 200_000_000 * 60_000_000 * 3);
    }
}
