//! The primary as a simulation: scenarios that write the WAL a real server would write. Pure: no clock, socket, file or task.
//!
//! ```text
//! Scenario ──plan──► Engine ──step──► Backend ──► catalog rows ──► messages, command ids
//!                      │ Clock, Rng      └──────────────┴──► typed records ──► WalSink
//! ```
//!
//! A scenario's statements change rows of system catalogs; invalidation messages, NEW_CID records and command ids follow from
//! those changes and from the version's tables, as they do in the server. Nothing writes message lists by hand.
//!
//! Reading order: [`scenario`], [`engine`], [`catalog`], `backend`, `ddl`.

mod backend;
mod backend_numbers;
pub mod catalog;
pub mod clock;
pub mod consumer;
mod ddl;
mod dml;
pub mod engine;
mod error;
pub mod invalidation_queue;
pub mod proc_array;
pub mod rng;
pub mod scenario;
pub mod sink;
mod twophase;
mod xact;

pub use clock::{Clock, VirtualClock};
pub use consumer::ConsumerSummary;
pub use ddl::column::Column;
pub use engine::{Continuation, Engine, RowCounts, RunSummary, Step, Tally, TransactionEnd, TransactionTruth};
pub use error::PrimaryError;
pub use scenario::{Overrides, ParameterValue, Scenario, ScenarioError};
pub use sink::{MemorySink, Placed, SinkError, WalSink};
