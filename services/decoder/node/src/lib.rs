//! The decoder: follows a primary, decodes like a walsender, serves subscribers.
//!
//! [`DecoderNode`] is the whole; README.md of this crate says how its parts fit together.

mod analysis;
pub mod attribution;
pub mod checkpoint;
pub mod config;
pub mod costliest;
pub mod durable_file;
pub mod error;
mod flusher;
mod follower;
#[cfg(test)]
mod histories;
mod measure;
mod node;
pub mod output_log;
mod pipeline;
mod received_ends;
pub mod scenario_decoder;
mod server;
mod sink;
mod snapshots;
mod spill;
pub mod state;
pub mod subscriber;
pub mod subscriptions;
mod trace;
mod upstream;

pub use config::DecoderConfig;
pub use error::NodeError;
pub use node::{DecoderNode, NodeParts};
pub use scenario_decoder::ScenarioDecoder;
pub use state::NodeState;
