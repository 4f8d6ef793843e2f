//! Traces: one span per unit of work, never one per stream.
//!
//! A stream carries metadata once, but thousands of transactions; so the context of each travels inside the batches
//! (`context.rs`), its ids follow from where it committed (`ids.rs`), and batches point at transactions by links (`spans.rs`).
//!
//! ```text
//!  primary   transaction (root, derived ids) ◄──link── send wal (PRODUCER, per batch)
//!                 ▲        ▲                                 ▲ parent
//!  decoder        │        └─── decode transaction      process wal (CONSUMER, per batch) ──link──► transactions
//!                 │                    ├ execute invalidations
//!                 │                    └ publish transaction (PRODUCER) ◄── receive transaction (CONSUMER), a subscriber
//!  standby        └──────────── apply ;  take snapshot (SERVER; child of the reader's call, if it sent a context)
//! ```
//!
//! Spans are built as plain data with ids, times and links of our choice, go into a bounded queue that never blocks (`queue.rs`), and
//! leave as OTLP over gRPC or as OTLP JSON lines (`otlp_file.rs`). Each role has its own [`Tracer`], so that several roles can live
//! in one process. What is not sampled costs one comparison: no span, no allocation.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub mod context;
pub mod ids;
pub mod names;
pub(crate) mod otel_env;
pub mod otlp_file;
mod providers;
mod queue;
mod resource;
pub mod sampling;
mod spans;

pub use ids::WalId;
pub use otlp_file::SpanFile;
pub use providers::{Export, Guard, Role, TelemetryError, choose_export, start};
pub use queue::{SpanCounts, lost_spans};
pub use sampling::{Sampler, SamplingConfig};
pub use spans::{ActiveSpan, Tracer};

/// How spans go to a collector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Protocol {
    /// OTLP over gRPC, port 4317 at most collectors.
    #[default]
    #[serde(rename = "grpc")]
    Grpc,
    /// OTLP over HTTP in protobuf, port 4318; without TLS.
    #[serde(rename = "http/protobuf")]
    HttpProtobuf,
}

/// Settings of tracing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TelemetryConfig {
    /// Spans are made, if there is somewhere to send them to (OTEL_SDK_DISABLED, OTEL_TRACES_EXPORTER).
    pub enabled: bool,
    /// `service.name`, instead of the role's (OTEL_SERVICE_NAME).
    pub service_name: Option<String>,
    /// OTLP endpoint, as `http://127.0.0.1:4317`. Unset: the variables OTEL_EXPORTER_OTLP_TRACES_ENDPOINT and
    /// OTEL_EXPORTER_OTLP_ENDPOINT, then `file`, then no traces.
    pub endpoint: Option<String>,
    /// How spans go there (OTEL_EXPORTER_OTLP_PROTOCOL).
    pub protocol: Protocol,
    /// File for OTLP JSON lines, if there is no endpoint.
    pub file: Option<PathBuf>,
    /// Which transactions are traced.
    pub sampling: SamplingConfig,
    /// Spans that wait for export at most; more are dropped and counted.
    pub queue_spans: usize,
    /// Spans per export at most.
    pub batch_spans: usize,
    /// How long a batch waits to fill up.
    #[serde(with = "humantime_serde")]
    pub export_interval: Duration,
    /// Limit of the last export when the node stops.
    #[serde(with = "humantime_serde")]
    pub shutdown_timeout: Duration,
}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            service_name: None,
            endpoint: None,
            protocol: Protocol::Grpc,
            file: None,
            sampling: SamplingConfig::default(),
            queue_spans: 16_384,
            batch_spans: 512,
            export_interval: Duration::from_millis(500),
            shutdown_timeout: Duration::from_secs(1),
        }
    }
}
