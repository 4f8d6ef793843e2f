//! The standby: follows a primary, replays its WAL like a hot standby, and serves snapshots.
//!
//! ```text
//!             StreamWal             queue                       published state
//!  primary ─────────────► follow ─────────► replay (a thread) ─────────────────► server ◄── TakeSnapshot
//!     ▲                     │                  │                                   ▲
//!     └── feedback ─────────┘                  └── restart point (a file)          └── GetRecoveryState, health
//! ```
//!
//! Reading order: [`node`] puts the parts together; [`follow`] and [`batch`] are the walreceiver, [`replay`] and [`begin`] the
//! startup process, [`restart_point`] what survives, [`server`] the readers' side. What runs on the primary at each position is
//! the business of `standby-core`.

pub mod batch;
pub mod begin;
pub mod config;
pub mod error;
pub mod follow;
pub mod lag;
pub mod node;
pub mod progress;
pub mod readiness;
pub mod replay;
pub mod restart_point;
pub mod server;
pub mod spans;

pub use config::Config;
pub use error::{Error, Halt};
pub use node::StandbyNode;
pub use progress::{Progress, Upstream};
