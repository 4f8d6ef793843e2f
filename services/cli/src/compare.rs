//! `walstorm compare`.

use std::process::ExitCode;

/// Arguments of `walstorm compare`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the command.
///
/// # Errors
/// Not built yet.
pub fn main(_args: Args) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not built yet")
}
