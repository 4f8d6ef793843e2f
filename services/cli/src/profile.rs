//! `walstorm profile`: where a decoder's CPU time goes, by PostgreSQL's function names, as a table like perf's and as a flame graph.

pub(crate) mod flame_graph;
pub mod lines;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use comfy_table::{CellAlignment, Table, presets};
use decoder_core::{Consumer, Function, Profile, WorkMem};
use serde_json::json;

use crate::compare::{self, Row};
use crate::notes::{Stdout, note};
use crate::scenario_log::ScenarioLog;
use crate::wal_input::{Decoding, WalInput};

/// Exit code when the WAL ends in anything but a complete end.
const TORN: u8 = 3;

/// Arguments of `walstorm profile`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A thread looks some ten thousand times a second at which functions the decoder is in. A row of the table is a function of PostgreSQL
that this part of the decoder stands for, the one with the largest share first: its share of the looks, without the functions that it
calls, how many they were, and, where the counted steps say so, its share of the 64-byte lines of memory that PostgreSQL's structures
take in them: the same on every machine.

With --json a line is an object with the keys profile, consumer, function, share, samples and lines (0 where nothing is counted).

Exit code: 0, or 3 if the WAL ends in anything but a switch or a zeroed tail; 1 on errors.")]
pub struct Args {
    /// A directory with WAL, a scenario file, or the name of a scenario.
    #[arg(value_name = "SOURCE")]
    source: String,
    /// Profiles, separated by commas: pg96, pg10, pg13, pg14 ... indexed, each with +switches.
    #[arg(long = "profile", value_name = "P,P,...", value_delimiter = ',', default_value = "pg18")]
    profiles: Vec<Profile>,
    /// Writes a flame graph there, to look at with a browser; of one profile.
    #[arg(long, value_name = "FILE.svg")]
    flamegraph: Option<PathBuf>,
    /// So many times it is decoded; a short one needs some for its samples to mean something.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Database to decode; default the one with the most row changes.
    #[arg(long, value_name = "OID")]
    database: Option<u32>,
    /// Seed of a scenario; default the one in its file.
    #[arg(long)]
    seed: Option<u64>,
    /// What changes in memory may count for before some are written out (logical_decoding_work_mem), as 64kB, 64MB or 1GB.
    /// Default: what the scenario says, or 64MB.
    #[arg(long, value_name = "SIZE")]
    work_mem: Option<WorkMem>,
    /// Who decodes: live reads the shared invalidation queue too and is reset when it lags, catch-up does not.
    #[arg(long, value_name = "live|catch-up")]
    consumer: Option<Consumer>,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// The input cannot be read or decoded, or the flame graph cannot be written.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    run(args, &mut Stdout::new(), &mut io::stderr())
}

/// The command with its outputs given: tables to `out`, remarks to `notes`.
///
/// # Errors
/// As [`main`].
pub fn run(args: &Args, out: &mut dyn Write, notes: &mut dyn Write) -> anyhow::Result<ExitCode> {
    if args.flamegraph.is_some() && args.profiles.len() > 1 {
        anyhow::bail!("--flamegraph shows one profile, but {} are named: run it once for each", args.profiles.len());
    }
    if let Some(path) = args.flamegraph.as_ref().filter(|path| path.exists()) {
        anyhow::bail!("--flamegraph: {} is there already: remove it, or name another file", path.display());
    }
    let folder = args.flamegraph.as_ref().and_then(|path| path.parent()).filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        anyhow::bail!("--flamegraph: {} is no folder: make it, or name a file elsewhere", folder.display());
    }
    let log = if Path::new(&args.source).is_dir() { None } else { ScenarioLog::of(&args.source, args.seed, &args.profiles)? };
    if log.is_none() && args.seed.is_some() {
        anyhow::bail!("--seed is for scenarios, but {} is WAL: leave it out", args.source);
    }
    let dir = log.as_ref().map_or(Path::new(&args.source), ScenarioLog::dir);
    let mut input = WalInput::open(dir, None, args.database.map(pg_types::Oid))?;
    let decoder = log.as_ref().map(ScenarioLog::decoder).unwrap_or_default();
    input.callbacks = decoder.callbacks;
    input.notes.iter().for_each(|text| note(notes, text));
    let mut complete = true;
    for profile in &args.profiles {
        let profile = profile.clone().consumed_by(decoder.consumer(args.consumer));
        let decoding = Decoding::at_commit(&profile, args.work_mem.or(decoder.work_mem).unwrap_or_default());
        let (mut row, _, end) = compare::measure(&input, &decoding, None, &mut |_| ())?;
        for _ in 1..args.runs {
            row.cpu.merge(&compare::measure(&input, &decoding, None, &mut |_| ())?.0.cpu);
        }
        if args.json {
            write_json(out, &row)?;
        } else {
            write_table(out, &row)?;
        }
        if let Some(path) = &args.flamegraph {
            let title = format!("{} under {}, {}", args.source, profile.name, profile.consumer);
            let svg = flame_graph::render(&title, row.cpu.stacks())?;
            let written = std::fs::File::create_new(path).and_then(|mut file| file.write_all(&svg));
            written
                .with_context(|| format!("--flamegraph: write {}: name a file in a folder that is there", path.display()))?;
        }
        if !end.is_complete() && complete {
            note(notes, &end);
            complete = false;
        }
    }
    out.flush()?;
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::from(TORN) })
}

/// One function of a profile.
struct Entry {
    /// Which.
    function: Function,
    /// Looks that found it, and it alone.
    samples: u64,
    /// Lines of memory by the counted steps.
    lines: u64,
}

/// The functions of a profile, those with the most samples first.
fn entries(row: &Row) -> Vec<Entry> {
    let (looks, lines) = (row.cpu.looks(), lines::lines(&row.attribution));
    let of = |function: &Function| Entry {
        function: *function,
        samples: looks.get(function).copied().unwrap_or(0),
        lines: lines.iter().find(|(counted, _)| counted == function).map_or(0, |(_, lines)| *lines),
    };
    let mut entries: Vec<Entry> = Function::ALL.iter().map(of).filter(|entry| entry.samples + entry.lines > 0).collect();
    entries.sort_by_key(|entry| std::cmp::Reverse((entry.samples, entry.lines)));
    entries
}

/// A part of a whole in per cent; 0 of nothing.
fn share(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// The table for people.
fn write_table(out: &mut dyn Write, row: &Row) -> anyhow::Result<()> {
    let entries = entries(row);
    let samples: u64 = entries.iter().map(|entry| entry.samples).sum();
    let lines: u64 = entries.iter().map(|entry| entry.lines).sum();
    writeln!(
        out,
        "{}, {}: {samples} samples, {:.1} ms of CPU a run, {} messages executed",
        row.outcome.profile.name,
        row.outcome.profile.consumer,
        row.cpu.total_ns() as f64 / 1e6,
        row.outcome.work.messages_executed
    )?;
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["share", "samples", "by lines", "function"]);
    for entry in &entries {
        let by_lines = if entry.lines > 0 { format!("{:.2} %", share(entry.lines, lines)) } else { String::new() };
        table.add_row([
            format!("{:.2} %", share(entry.samples, samples)),
            entry.samples.to_string(),
            by_lines,
            entry.function.name().to_owned(),
        ]);
    }
    for column in table.column_iter_mut().take(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.lines().try_for_each(|line| writeln!(out, "{}", line.trim_end()))?;
    writeln!(out)?;
    Ok(())
}

/// One JSON object a function.
fn write_json(out: &mut dyn Write, row: &Row) -> anyhow::Result<()> {
    let entries = entries(row);
    let samples: u64 = entries.iter().map(|entry| entry.samples).sum();
    for entry in entries {
        let line = json!({
            "profile": row.outcome.profile.name, "consumer": row.outcome.profile.consumer.to_string(), "function": entry.function.name(),
            "share": share(entry.samples, samples), "samples": entry.samples, "lines": entry.lines,
        });
        writeln!(out, "{line}")?;
    }
    Ok(())
}
