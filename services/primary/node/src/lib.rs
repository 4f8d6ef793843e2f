//! The primary: WAL log on disk, sources, slots and the gRPC server.
//!
//! ```text
//!  sources ──► wal_log ──► server::batch_reader ──► server::stream_wal ──► consumers
//!                │ retention       │ contexts            │ wal_sender
//!                └──────────────── slots ◄───────────────┘ flushed
//! ```
//!
//! Synchronous state machines ([`wal_sender`], [`slots`]' table, [`retention`], [`contexts`]) know no clock, task or socket; the
//! rest is the shell around them.

pub mod config;
pub mod contexts;
pub mod error;
pub mod node;
pub mod retention;
pub mod runs;
mod server;
pub mod slots;
mod sources;
mod state_file;
pub mod wal_log;
pub mod wal_sender;

pub use config::PrimaryConfig;
pub use error::{Error, Result};
pub use node::PrimaryNode;
