//! What every node needs around its core: configuration layers, a gRPC server with health, reflection and drain, status details, a
//! client, clocks, logs and telemetry. Knows nothing about PostgreSQL.

pub mod blocking;
pub mod client;
pub mod clock;
pub mod config;
pub mod cpu;
pub mod drain;
pub mod health;
pub mod logs;
pub mod printable;
pub mod server;
pub mod status;
pub mod telemetry;

pub use clock::{Clock, ManualClock, SystemClock};
pub use drain::{Drain, StreamGuard};
pub use health::Health;
pub use printable::{error_text, printable, printable_bytes};
