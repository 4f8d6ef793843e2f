//! The `walstorm` command, as a library so that tests can call its parts. One file per subcommand.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

pub mod bench;
pub mod compare;
pub mod cpu_sampler;
pub mod decode;
pub mod explain;
pub mod notes;
pub mod plugin_args;
pub mod profile;
pub mod run;
pub mod scenario_log;
pub mod scenarios;
pub mod snapshot;
pub mod trace;
pub mod trace_ui;
pub mod wal;
pub mod wal_input;

/// A flight simulator and analyser for PostgreSQL's replication hot paths.
#[derive(Debug, Parser)]
#[command(name = "walstorm", version, about, max_term_width = 120)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Play WAL directories and scenarios through primary, decoder and standby, and print what they cost.
    Run(run::Args),
    /// Look at WAL: records or statistics.
    Wal(wal::Args),
    /// Decode a WAL directory: a line per committed transaction.
    Decode(decode::Args),
    /// The snapshots that a standby gives at positions in a WAL directory.
    Snapshot(snapshot::Args),
    /// Run one input under several profiles and show what each costs.
    Compare(compare::Args),
    /// What one transaction of a WAL directory is, and what each profile does to it.
    Explain(explain::Args),
    /// Where CPU time goes when one input is decoded: a table by PostgreSQL's function names, a flame graph.
    Profile(profile::Args),
    /// Load a node, and show how it bears it.
    Bench(bench::Args),
    /// Scenarios: what ships, what is in them, whether a file is right, whether what must come out does.
    Scenarios(scenarios::Args),
    /// Ask traces where time goes: critical paths, comparisons, one transaction's story, rules for CI.
    Trace(trace::Args),
}

/// Runs the command and says how the process must exit.
///
/// # Errors
/// Whatever the command could not do, with the place and the remedy in its message.
pub fn main(cli: Cli) -> anyhow::Result<ExitCode> {
    let done = match cli.command {
        Command::Run(args) => run::main(&args),
        Command::Wal(args) => wal::main(args),
        Command::Decode(args) => decode::main(&args),
        Command::Snapshot(args) => snapshot::main(&args),
        Command::Compare(args) => compare::main(&args),
        Command::Explain(args) => explain::main(&args),
        Command::Profile(args) => profile::main(&args),
        Command::Bench(args) => bench::main(&args),
        Command::Scenarios(args) => scenarios::main(&args),
        Command::Trace(args) => trace::main(&args),
    };
    match done {
        Err(error) if notes::reader_is_gone(&error) => Ok(ExitCode::SUCCESS),
        done => done,
    }
}
