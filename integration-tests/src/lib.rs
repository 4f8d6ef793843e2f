//! The harness: three nodes in one process over a real server's WAL, and what tests ask of their traces.
//!
//! [`Cluster`] is the one that `walstorm run` starts; [`wal_fixture`] unpacks WAL, [`otlp`] reads spans.

pub mod otlp;
pub mod wal_fixture;

pub use walstorm_cli::run::cluster::{Cluster, ClusterConfig, Reached};
pub use walstorm_cli::run::subscriber::Subscriber;
