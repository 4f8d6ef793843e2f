//! `walstorm bench`: load for a node, and how it bears it.

use std::process::ExitCode;

use clap::Subcommand;

pub mod standby;

/// Arguments of `walstorm bench`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which node.
    #[command(subcommand)]
    node: Node,
}

/// The nodes that there is load for.
#[derive(Debug, Subcommand)]
enum Node {
    /// Sessions of a standby: snapshots a second, latencies, and what share of its CPU snapshots take.
    Standby(standby::Args),
}

/// Runs the command.
///
/// # Errors
/// As those of the node.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.node {
        Node::Standby(args) => standby::main(args),
    }
}
