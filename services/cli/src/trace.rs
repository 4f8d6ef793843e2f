//! `walstorm trace`: questions to traces, from files, standard input, Jaeger or Tempo. What is computed is in the crate `trace-analysis`;
//! here is how it is asked and shown.

mod assert;
mod critical_path;
mod diff;
mod explain;
mod flame;
mod input;
mod story;
mod top;
mod waterfall;

use std::io::{self, Write};
use std::process::ExitCode;

use crate::notes::Stdout;

/// Arguments of `walstorm trace`.
#[derive(Debug, clap::Args)]
#[command(after_help = input::INPUT_HELP)]
pub struct Args {
    /// What to ask.
    #[command(subcommand)]
    command: Command,
}

/// The questions.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// What the end of transactions waited for, through parents and links: shares of each stage, and what makes the slow ones slow.
    CriticalPath(critical_path::Args),
    /// The costliest spans or transactions by duration, own time or any attribute.
    Top(top::Args),
    /// One transaction: a waterfall, and its story in words.
    Explain(explain::Args),
    /// Which stage of the critical path got slower or faster from one input to another, and whether that may be chance.
    Diff(diff::Args),
    /// Checks rules from a TOML file; the exit code is for CI.
    Assert(assert::Args),
    /// Own time of spans as a flame graph.
    Flame(flame::Args),
}

/// Runs the command.
///
/// # Errors
/// The input cannot be read or holds no traces, what is looked for is not there, or the output cannot be written.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    run(args, &mut Stdout::new(), &mut io::stderr())
}

/// The command with its outputs given: answers to `out`, remarks to `notes`.
///
/// # Errors
/// As [`main`].
pub fn run(args: &Args, out: &mut dyn Write, notes: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let code = match &args.command {
        Command::CriticalPath(args) => critical_path::run(args, out, notes)?,
        Command::Top(args) => top::run(args, out, notes)?,
        Command::Explain(args) => explain::run(args, out, notes)?,
        Command::Diff(args) => diff::run(args, out, notes)?,
        Command::Assert(args) => assert::run(args, out, notes)?,
        Command::Flame(args) => flame::run(args, out, notes)?,
    };
    out.flush()?;
    Ok(code)
}

/// Columns of the terminal that output goes to, between what is legible at all and what an eye follows; 100 if there is none.
fn columns() -> usize {
    let columns = terminal_size::terminal_size_of(io::stdout()).map_or(100, |(width, _)| usize::from(width.0));
    columns.clamp(80, 130)
}
