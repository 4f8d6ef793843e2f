//! Traces, read from any OTLP source and asked where time goes.
//!
//! ```text
//!  Source ──spans, one at a time──► top (a heap)                          nothing else is held
//!                               └─► TraceStore (56 bytes a span) ─► skew ─► Tree, Walker ─► Stages, Diff, Flame, Rules
//! ```
//!
//! **Memory.** A span costs 56 bytes; one with links or kept attributes 16 more, and 32 for each link, 24 for each attribute. Names are held
//! once, at most 50,000 of them. `StoreConfig::bytes_max` bounds the whole; what is summed up does not grow with the number of spans.
//! Where a trace is asked for (`explain`), only it and the batches are held.
//!
//! **What bad input does.** Spans may come in any order, twice, without parents, in cycles, ending before they begin, with clocks that go
//! apart: each is counted, told, and handled by the rule that stands where it is handled ([`store::Damage`], [`skew`], [`critical_path`]).

pub mod checking;
pub mod config;
pub mod critical_path;
pub mod diff;
pub mod error;
pub mod explain;
pub mod flame;
mod names;
pub mod read;
pub mod rules;
pub mod significance;
pub mod skew;
pub mod span;
pub mod stages;
pub mod store;
pub mod top;
pub mod tree;

pub use error::{Result, TraceError};
pub use read::{ReadReport, Source};
pub use span::{Link, Span, SpanId, TraceId, Value};
pub use store::{StoreConfig, TraceStore};
