//! What keeps a scenario from running.

use crate::scenario::ScenarioError;
use crate::sink::SinkError;

/// The primary's core cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrimaryError {
    /// The log refused a record.
    #[error("append to the log: {0}")]
    Sink(#[source] SinkError),
    /// The scenario is wrong.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A statement cannot be run.
    #[error("actor '{actor}' cannot run {statement}{}: {why}", in_line(*line))]
    Statement {
        /// Whose statement.
        actor: String,
        /// Which.
        statement: String,
        /// The line of its step in the scenario, from 1; 0 if it is in none.
        line: usize,
        /// Why not, and what to do.
        why: String,
    },
    /// Every session waits for another one.
    #[error("sessions of {actors} wait for each other's locks for ever: let them lock their tables in one order")]
    Deadlock {
        /// The actors that wait, with commas.
        actors: String,
    },
}

impl PrimaryError {
    /// The same with the line of the step that is to blame.
    pub(crate) fn in_line(mut self, step_line: usize) -> Self {
        if let PrimaryError::Statement { line, .. } = &mut self {
            *line = step_line;
        }
        self
    }
}

/// A line for people; none if there is none.
fn in_line(line: usize) -> String {
    if line == 0 { String::new() } else { format!(" in line {line}") }
}
