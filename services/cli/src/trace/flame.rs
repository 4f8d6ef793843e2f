//! `walstorm trace flame`: own time of spans as a flame graph.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use trace_analysis::flame::Flame;

use super::input::{HoldArgs, InputArgs};
use crate::profile::flame_graph::draw;

/// Arguments of `walstorm trace flame`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
A frame is a span by service and name, as wide as the time of all such spans below the same parents in which none of their children ran.
Batches stand beside the transactions that they carry.")]
pub(super) struct Args {
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    hold: HoldArgs,
    /// Writes the picture there, to look at with a browser; default: standard output.
    #[arg(short, long, value_name = "FILE.svg")]
    output: Option<PathBuf>,
    /// Prints lines `service: name;service: name 123` instead, own nanoseconds behind each path, for other programs.
    #[arg(long, conflicts_with = "output")]
    folded: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args, out: &mut dyn Write, notes: &mut dyn Write) -> anyhow::Result<ExitCode> {
    if args.output.is_none() && !args.folded && std::io::stdout().is_terminal() {
        bail!("a picture is nothing for a terminal: give -o FILE.svg, or --folded for text");
    }
    if let Some(path) = args.output.as_ref().filter(|path| path.exists()) {
        bail!("-o: {} is there already: remove it, or name another file", path.display());
    }
    let store = args.input.open(false)?.store(&args.hold, &[], notes)?;
    let lines = Flame::of(&store).folded(&store);
    if args.folded {
        lines.iter().try_for_each(|line| writeln!(out, "{}", service_kit::printable(line)))?;
        return Ok(ExitCode::SUCCESS);
    }
    if lines.is_empty() {
        bail!("no span took any time, so there is nothing to draw");
    }
    let svg = draw("Own time of spans", "ns", "Span:", &lines)?;
    match &args.output {
        Some(path) => {
            let written = std::fs::File::create_new(path).and_then(|mut file| file.write_all(&svg));
            written.with_context(|| format!("-o: write {}: name a file in a folder that is there", path.display()))?;
        }
        None => out.write_all(&svg)?,
    }
    Ok(ExitCode::SUCCESS)
}
