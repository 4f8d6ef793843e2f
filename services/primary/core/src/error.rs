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
    #[error("actor '{actor}' cannot run {statement}: {why}")]
    Statement {
        /// Whose statement.
        actor: String,
        /// Which.
        statement: String,
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
