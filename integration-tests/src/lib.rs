//! The harness: three nodes in one process over a real server's WAL, and what tests ask of their traces.
//!
//! [`Cluster`] is the one that `walstorm run` starts, [`program`] starts nodes as programs; [`wal_fixture`] unpacks WAL, [`otlp`] and [`jaeger`] read
//! spans.

pub mod jaeger;
pub mod otlp;
pub mod program;
pub mod wal_fixture;

pub use walstorm_cli::run::cluster::{Cluster, ClusterConfig, Reached};
pub use walstorm_cli::run::subscriber::Subscriber;
