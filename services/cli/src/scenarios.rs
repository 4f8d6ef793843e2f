//! `walstorm scenarios`: what ships, what is in them, whether a file is right, whether what must come out of one does.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use primary_core::{Overrides, ParameterValue, Scenario};

use crate::notes::Stdout;
use crate::scenario_log::scenario_of;

pub mod check;
pub mod list;
pub mod new;
pub mod show;
pub mod validate;

/// Arguments of `walstorm scenarios`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// The scenarios that ship: the first line of each story, and the parameters.
    #[command(after_help = "With --json a line is an object with the keys name, story, published, parameters, small.")]
    List {
        /// One JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// A scenario's text, and how large it is with its parameters put in.
    #[command(after_help = "\
With --json one object: name, story, seed, published, parameters, small, size (tables, rows, message_bytes, sessions, transactions,
statements: at most), sweep_points, expect, text.")]
    Show(Of),
    /// Checks scenario files and finds everything that is wrong with them.
    #[command(after_help = "\
With --json a line is an object with the keys file, and ok or line, column and message (line 0 if no place is to blame).

Exit code: 0 if all files are right, 1 if one is not.")]
    Validate {
        /// Files, or names of scenarios that ship.
        #[arg(value_name = "FILE", required = true)]
        files: Vec<String>,
        /// One JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Writes a file with comments to begin a scenario of one's own with.
    New {
        /// Name of the scenario: lower-case letters, digits, '-' and '_'.
        name: String,
        /// Where to; default NAME.toml. A file that is there stays.
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Plays a scenario, and all points of its sweep, and says whether what it expects has come out.
    #[command(after_help = "\
With --json a line is an object with the keys scenario, seed, parameters, version, that, left, right, holds.

Exit code: 0 if everything came out as expected, 3 if something did not, 1 on errors.")]
    Check {
        /// What to play.
        #[command(flatten)]
        of: Of,
        /// Version of PostgreSQL whose WAL it writes, 13 to 18.
        #[arg(long, value_name = "VERSION", default_value_t = 18)]
        pg_version: u32,
        /// Seed; default those of the sweep, else the one in the file.
        #[arg(long)]
        seed: Option<u64>,
    },
    /// The JSON schema of scenario files.
    Schema,
}

/// A scenario with parameters.
#[derive(Debug, clap::Args)]
pub struct Of {
    /// A scenario file, or the name of a scenario that ships.
    #[arg(value_name = "SCENARIO")]
    scenario: String,
    /// A parameter's value instead of the file's; may be given several times.
    #[arg(long = "set", value_name = "PARAMETER=VALUE")]
    set: Vec<String>,
    /// The small size that the file gives, instead of the published one.
    #[arg(long)]
    small: bool,
    /// JSON instead of text.
    #[arg(long)]
    json: bool,
}

impl Of {
    /// Reads the scenario and the parameters.
    ///
    /// # Errors
    /// No such scenario, a wrong one, or no `PARAMETER=VALUE`.
    fn read(&self) -> anyhow::Result<(Scenario, Overrides)> {
        let scenario = scenario_of(&self.scenario)?;
        let scenario =
            scenario.with_context(|| format!("{} is no scenario file: they end in .toml", self.scenario.escape_debug()))?;
        let mut overrides = if self.small { scenario.small().clone() } else { Overrides::new() };
        for set in &self.set {
            let Some((name, value)) = set.split_once('=') else {
                bail!("'{}' sets nothing: write --set PARAMETER=VALUE", set.escape_debug());
            };
            overrides.insert(name.to_owned(), ParameterValue::from(value));
        }
        Ok((scenario, overrides))
    }
}

/// Runs the command.
///
/// # Errors
/// A scenario cannot be read or played, or a file cannot be written.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    run(args, &mut Stdout::new(), &mut io::stderr())
}

/// The command with its outputs given: results to `out`, remarks to `notes`.
///
/// # Errors
/// As [`main`].
pub fn run(args: &Args, out: &mut dyn Write, notes: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let code = match &args.command {
        Command::List { json } => list::list(*json, out).map(|()| ExitCode::SUCCESS),
        Command::Show(of) => show::show(of, out).map(|()| ExitCode::SUCCESS),
        Command::Validate { files, json } => validate::validate(files, *json, out),
        Command::New { name, out: file } => new::write(name, file.as_deref(), notes).map(|()| ExitCode::SUCCESS),
        Command::Check { of, pg_version, seed } => check::run(of, *pg_version, *seed, out),
        Command::Schema => {
            serde_json::to_writer_pretty(&mut *out, primary_core::scenario::schema())?;
            writeln!(out).map(|()| ExitCode::SUCCESS).map_err(anyhow::Error::from)
        }
    }?;
    out.flush()?;
    Ok(code)
}
