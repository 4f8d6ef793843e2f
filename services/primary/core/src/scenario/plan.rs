//! A scenario with all its numbers: what the engine runs.

use crate::ddl::column::Column;

use super::{Expectation, Pause, StatementPlan, Template};

/// A scenario with all its numbers.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// When open-ended actors stop, in microseconds from the beginning.
    pub duration_us: Option<u64>,
    /// The server.
    pub server: ServerPlan,
    /// Hints for a decoder.
    pub decoder: DecoderHints,
    /// Snapshots a second on a standby, 0 for none.
    pub snapshots_per_second: u64,
    /// Tables that are there before the log begins.
    pub tables: Vec<TablePlan>,
    /// Who does something.
    pub actors: Vec<ActorPlan>,
    /// What must come out.
    pub expect: Vec<Expectation>,
}

/// Settings of the server.
#[derive(Clone, Copy, Debug)]
pub struct ServerPlan {
    /// max_connections.
    pub max_connections: u32,
    /// max_prepared_transactions.
    pub max_prepared_transactions: u32,
    /// Time between checkpoints.
    pub checkpoint_every_us: u64,
    /// Time between records of running transactions.
    pub running_xacts_every_us: u64,
    /// The first xid.
    pub first_xid: u64,
}

/// What a decoder that plays the scenario should be set up with; all optional.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecoderHints {
    /// Syscache callbacks that are registered.
    pub syscache_callbacks: Option<u8>,
    /// Relcache callbacks that are registered.
    pub relcache_callbacks: Option<u8>,
}

/// Tables that are there before the log begins.
#[derive(Clone, Debug)]
pub struct TablePlan {
    /// Name; counts if there are several.
    pub name: Template,
    /// How many.
    pub count: u64,
    /// Number of the first.
    pub first: u64,
    /// Columns.
    pub columns: Vec<Column>,
    /// Partitions of each; [`None`] for plain tables.
    pub partitions: Option<u64>,
    /// Rows in each (in each partition).
    pub rows: u64,
    /// Bytes of a row in a record, if not what its columns take.
    pub row_len: Option<u32>,
}

/// An actor.
#[derive(Clone, Debug)]
pub struct ActorPlan {
    /// Name.
    pub name: String,
    /// Sessions.
    pub sessions: u64,
    /// When the first transaction begins.
    pub start: Pause,
    /// Indexes of the actors that must have finished before.
    pub after: Vec<usize>,
    /// How much later each session starts than the one before it.
    pub stagger_us: u64,
    /// From one transaction's begin to the next; at once if not said.
    pub every: Option<Pause>,
    /// From one transaction's end to the next one's begin, at least.
    pub think: Pause,
    /// Transactions of each session; until the scenario's duration if not said.
    pub transactions: Option<u64>,
    /// Transactions of a hundred that roll back.
    pub rollback_percent: u64,
    /// The replication origin that its transactions come from, 0 for none.
    pub origin: u16,
    /// What transactions do: one of these, by weight. There is at least one, and a weight above 0.
    pub mix: Vec<TransactionPlan>,
}

/// What one kind of transaction does.
#[derive(Clone, Debug)]
pub struct TransactionPlan {
    /// How often it is chosen, among the weights of all.
    pub weight: u64,
    /// Its statements, loops before what they repeat.
    pub statements: Vec<StatementPlan>,
}
