//! `walstorm compare`: one input under several profiles, what each costs, and whether all decode the same.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context;
use comfy_table::{CellAlignment, Table, presets};
use decoder_core::{
    Attribution, CallbackCounts, Consumer, Contender, DecodedTransaction, Outcome, Profile, QueueCounts, RelsyncCounts,
    SnapBuildCounts, WorkMem,
};
use pg_types::WalRecord;
use pg_types::catalog_row::CatalogRowChange;
use pg_wal::WalEnd;
use serde::Serialize;

use crate::cpu_sampler::{CpuShares, sample};
use crate::decode::Counts;
use crate::notes::{Stdout, note};
use crate::scenario_log::ScenarioLog;
use crate::wal_input::{Decoding, WalInput};

/// Exit code when the WAL ends in anything but a complete end.
const TORN: u8 = 3;

/// Arguments of `walstorm compare`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each profile decodes the same WAL once. With --json a line is an object with the keys profile, consumer (live or
catch-up), shared_queue (messages read, resets, signals; of live ones), pgoutput (entries built and flushed, slots visited;
with +pgoutput), syscache_callbacks and relcache_callbacks (called ones by cost: constant, bucket, walk; and walked, the entries
that those walked over), snapshots (built, xids copied, chunks of xids shared, xids compared, moved), work (counters, the same
on every machine), cpu_ns (CPU time by PostgreSQL's function names, sampled), wall_ns and identical_output (the decoded
transactions equal those of the first profile).

Exit code: 0, or 3 if the WAL ends in anything but a switch or a zeroed tail; 1 on errors and if two profiles decode differently.")]
pub struct Args {
    /// A directory with WAL, a scenario file, or the name of a scenario.
    #[arg(value_name = "SOURCE")]
    source: String,
    /// Profiles, separated by commas: pg96, pg10, pg13, pg14 ... indexed, each with +switches.
    #[arg(long, value_name = "P,P,...", value_delimiter = ',', default_value = "pg13,pg14,pg18,indexed")]
    profiles: Vec<Profile>,
    /// Folder with pg_class.csv and pg_class_start.csv for names.
    #[arg(long, value_name = "DIR")]
    catalog: Option<std::path::PathBuf>,
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

/// What one profile cost.
#[derive(Debug)]
pub struct Row {
    /// What it came to: counters, the same on every machine.
    pub outcome: Outcome,
    /// For what the work was done.
    pub attribution: Attribution,
    /// CPU time by function.
    pub cpu: CpuShares,
    /// Time from the first record to the last, in nanoseconds.
    pub wall_ns: u64,
    /// What was decoded equals what the first profile decoded.
    pub identical_output: bool,
    /// Publications that were asked for and are not there.
    pub missing_publications: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// The input cannot be read or decoded.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    run(args, &mut Stdout::new(), &mut io::stderr())
}

/// The command with its outputs given: rows to `out`, remarks to `notes`.
///
/// # Errors
/// As [`main`].
pub fn run(args: &Args, out: &mut dyn Write, notes: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let log = if Path::new(&args.source).is_dir() { None } else { ScenarioLog::of(&args.source, args.seed, &args.profiles)? };
    if log.is_none() && args.seed.is_some() {
        anyhow::bail!("--seed is for scenarios, but {} is WAL: leave it out", args.source);
    }
    let dir = log.as_ref().map_or(Path::new(&args.source), ScenarioLog::dir);
    let mut input = WalInput::open(dir, args.catalog.as_deref(), args.database.map(pg_types::Oid))?;
    let decoder = log.as_ref().map(ScenarioLog::decoder).unwrap_or_default();
    input.callbacks = decoder.callbacks;
    input.notes.iter().for_each(|text| note(notes, text));
    let consumer = decoder.consumer(args.consumer);
    let profiles: Vec<Profile> = args.profiles.iter().map(|profile| profile.clone().consumed_by(consumer)).collect();
    let work_mem = args.work_mem.or(decoder.work_mem).unwrap_or_default();
    let (rows, end) = compare(&input, &profiles, work_mem)?;
    if args.json {
        rows.iter().try_for_each(|row| write_json(out, row))?;
    } else {
        writeln!(out, "{}", table(&rows))?;
    }
    out.flush()?;
    if !end.is_complete() {
        note(notes, end);
        return Ok(ExitCode::from(TORN));
    }
    if let Some(row) = rows.iter().find(|row| !row.identical_output) {
        anyhow::bail!(
            "{} decodes something else than {}: this is a defect of walstorm",
            row.outcome.profile,
            rows[0].outcome.profile
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Decodes `input` once under each profile.
///
/// # Errors
/// The input cannot be read, or a profile cannot decode it.
pub fn compare(input: &WalInput, profiles: &[Profile], work_mem: WorkMem) -> anyhow::Result<(Vec<Row>, WalEnd)> {
    let mut rows: Vec<Row> = Vec::new();
    let mut reference = None;
    let mut end = None;
    for profile in profiles {
        let (row, digest, ended) = measure(input, &Decoding::at_commit(profile, work_mem), reference, &mut |_| ())?;
        reference.get_or_insert(digest);
        end = Some(ended);
        rows.push(row);
    }
    Ok((rows, end.context("no profile was named: --profiles P,P,...")?))
}

/// Decodes `input` once. `observe` sees every transaction. Gives what it cost, a digest of what was decoded, and how
/// the WAL ended; the output is identical if the digest equals `reference`, or if there is none.
///
/// # Errors
/// The input cannot be read or decoded.
pub fn measure(
    input: &WalInput,
    decoding: &Decoding,
    reference: Option<u64>,
    observe: &mut dyn FnMut(&DecodedTransaction),
) -> anyhow::Result<(Row, u64, WalEnd)> {
    let mut contender = Contender::new(input.decoder(decoding.clone())?);
    let start = Instant::now();
    let marker = contender.decoder().current_function();
    let feed = |record: &WalRecord, change: Option<CatalogRowChange>| {
        if let Some(change) = change {
            contender.catalog_row(record.xid, change);
        }
        Ok(contender.process_seen(record, observe)?)
    };
    let (decoded, cpu) = sample(&marker, || input.each_record(&marker, feed));
    let wall_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let end = decoded.with_context(|| format!("decode under profile {}", decoding.profile))?;
    let outcome = contender.outcome();
    let digest = outcome.digest;
    let attribution = contender.decoder().attribution();
    let missing_publications = contender.decoder().missing_publications();
    let identical_output = reference.unwrap_or(digest) == digest;
    let row = Row { outcome, attribution, cpu, wall_ns, identical_output, missing_publications };
    Ok((row, digest, end))
}

/// One row as the documented JSON object.
fn write_json(out: &mut dyn Write, row: &Row) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct JsonRow<'a> {
        profile: &'a str,
        consumer: String,
        shared_queue: Counts,
        pgoutput: Counts,
        syscache_callbacks: Counts,
        relcache_callbacks: Counts,
        snapshots: Counts,
        work: Counts,
        cpu_ns: Counts,
        wall_ns: u64,
        identical_output: bool,
    }
    let outcome = &row.outcome;
    let QueueCounts { messages, resets, signals } = outcome.queue;
    let by_cost = |counts: CallbackCounts| {
        let CallbackCounts { constant, bucket, walk, walked } = counts;
        Counts(vec![("constant", constant), ("bucket", bucket), ("walk", walk), ("walked", walked)])
    };
    let RelsyncCounts { built, flushed, visited } = outcome.relsync;
    let SnapBuildCounts { built: snapshots, copied, shared, compared, moved, .. } = outcome.snap_build;
    let row = JsonRow {
        profile: &outcome.profile.name,
        consumer: outcome.profile.consumer.to_string(),
        shared_queue: Counts(vec![("messages", messages), ("resets", resets), ("signals", signals)]),
        pgoutput: Counts(vec![("built", built), ("flushed", flushed), ("visited", visited)]),
        syscache_callbacks: by_cost(outcome.callbacks),
        relcache_callbacks: by_cost(outcome.relcache_callbacks),
        snapshots: Counts(vec![
            ("built", snapshots),
            ("copied", copied),
            ("shared", shared),
            ("compared", compared),
            ("moved", moved),
        ]),
        work: Counts(outcome.work.entries().collect()),
        cpu_ns: Counts(row.cpu.by_function().collect()),
        wall_ns: row.wall_ns,
        identical_output: row.identical_output,
    };
    serde_json::to_writer(&mut *out, &row)?;
    writeln!(out)?;
    Ok(())
}

/// The rows for people.
fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "profile",
        "consumer",
        "cpu ms",
        "wall ms",
        "messages",
        "caches searched",
        "callbacks visited",
        "map slots",
        "loads",
        "misses",
        "catalog scans",
        "snapshots",
        "queue resets",
        "evictions",
        "spilled kB",
        "leading functions",
        "same output",
    ]);
    for row in rows {
        let w = &row.outcome.work;
        let leading = row.cpu.leading(3).map(|(name, share)| format!("{name} {share:.0} %")).collect::<Vec<_>>().join(", ");
        table.add_row([
            row.outcome.profile.name.clone(),
            row.outcome.profile.consumer.to_string(),
            format!("{:.1}", row.cpu.total_ns() as f64 / 1e6),
            format!("{:.1}", row.wall_ns as f64 / 1e6),
            w.messages_executed.to_string(),
            w.caches_searched.to_string(),
            w.callbacks_visited.to_string(),
            w.map_slots_visited.to_string(),
            w.relations_loaded.to_string(),
            w.cache_misses().to_string(),
            w.catalog_scans.to_string(),
            w.snapshots_distributed.to_string(),
            row.outcome.queue.resets.to_string(),
            w.evictions.to_string(),
            w.spill_bytes.div_ceil(1024).to_string(),
            leading,
            if row.identical_output { "yes" } else { "NO" }.to_owned(),
        ]);
    }
    for column in table.column_iter_mut().skip(2).take(13) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}
