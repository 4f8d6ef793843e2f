//! `walstorm wal`: look at WAL as it is, records or statistics.
//!
//! Both commands read a directory (or a data directory, or one segment) from its first whole record to its end and exit with 0
//! only if nothing is missing there; see [`ending`].

mod dump;
mod select;
mod stats;

use std::process::ExitCode;

use pg_wal::{DecodeError, WalReader};

use crate::notes::note;

/// Exit code for a log that was read as far as possible and ends in something else than its end.
const EXIT_INCOMPLETE: u8 = 3;

/// How the commands exit, for their help.
const EXIT_HELP: &str = "Exit codes:\n  \
    0  the WAL ends at a switch, in zeroes, or at --end\n  \
    1  it cannot be read at all\n  \
    3  it ends in anything else (missing or truncated segment, torn record, wrong checksum, …); standard error says\n     \
    where and why, and what came before was printed";

/// Arguments of `walstorm wal`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Print a line per record, in the manner of pg_waldump.
    ///
    /// With --json an object per line with the keys lsn, prev, rmgr, total_len, xid, desc; positions as text like 0/A00028.
    #[command(after_help = EXIT_HELP)]
    Dump(dump::Args),
    /// Print counts and sizes per kind of record, as the table of pg_waldump --stats=record.
    ///
    /// With --json an object per line with the keys type, count, record_len, fpi_len, total_len; the last one's type is Total.
    #[command(after_help = EXIT_HELP)]
    Stats(stats::Args),
}

/// Runs the command.
///
/// # Errors
/// If the WAL cannot be opened or a file cannot be read, or the output cannot be written.
pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Dump(args) => dump::main(&args),
        Command::Stats(args) => stats::main(&args),
    }
}

/// Says how a log that was read ended: nothing for a complete end, else the position and the reason on standard error.
fn ending(reader: &WalReader, malformed: Option<DecodeError>) -> ExitCode {
    let complaint = match (malformed, reader.end()) {
        (Some(error), _) => error.to_string(),
        (None, Some(end)) if !end.is_complete() => end.to_string(),
        (None, _) => return ExitCode::SUCCESS,
    };
    note(&mut std::io::stderr(), complaint);
    ExitCode::from(EXIT_INCOMPLETE)
}
