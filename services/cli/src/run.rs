//! `walstorm run`: real WAL and scenarios through a primary, a decoder and a standby that talk gRPC, and what each costs.
//!
//! ```text
//!  source ──► primary ──StreamWal──► decoder ──Subscribe──► a subscriber that counts
//!                 └─────StreamWal──► standby ◄─TakeSnapshot── readers
//!  the WAL that was played ──► the decoder's core, and the standby's, once under each profile ──► ladders
//! ```
//!
//! Reading order: [`play`] is one source; [`cluster`], [`subscriber`], [`readers`] are the pipeline, [`profiles`] and
//! [`standby_profiles`] the comparison, [`ladder`] the published figures, [`report`] and [`show`] what comes out.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use decoder_core::{Consumer, PluginOptions};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use primary_core::Overrides;
use primary_node::config::ClockMode;
use service_kit::telemetry::{Export, TelemetryConfig, choose_export, lost_spans};
use tokio::signal::unix::{SignalKind, signal};

pub mod cluster;
pub mod ladder;
pub mod out_dir;
pub mod paint;
pub mod play;
pub mod profiles;
pub mod readers;
pub mod report;
pub mod sample_wal;
pub mod show;
pub mod source;
pub mod standby_profiles;
pub mod subscriber;
pub mod text;

use crate::notes::{Stdout, note};
use crate::plugin_args::PluginArgs;
use crate::trace_ui::TraceUi;
use ladder::Rung;
use out_dir::OutDir;
use paint::Paint;
use report::{FORMAT, Report, Timings};

/// Exit code when a node stopped before the WAL's end, or two profiles disagree.
const STOPPED: u8 = 3;

/// Worker threads at least: one that waits must not keep telemetry from its export.
const WORKERS_MIN: usize = 2;

/// Arguments of `walstorm run`.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// What to play: names of scenarios, scenario files (*.toml), directories of WAL or single segments; none: the sample WAL and every scenario with a ladder of published figures.
    #[arg(value_name = "SOURCE")]
    sources: Vec<String>,
    /// Profiles to compare, separated by commas: pg96, pg10, pg13.6, pg13 ... pg18, indexed, each with +switches. Default: those of
    /// the ladder for scenarios; pg96, pg10, pg13, pg14, the WAL's own and indexed for WAL.
    #[arg(long, value_name = "P,P,...", value_delimiter = ',')]
    profiles: Vec<String>,
    /// Who decodes: live reads the shared invalidation queue too and is reset when it lags, catch-up does not.
    #[arg(long, value_name = "live|catch-up")]
    consumer: Option<Consumer>,
    /// What is asked for.
    #[command(flatten)]
    plugin: PluginArgs,
    /// How scenarios are played.
    #[command(flatten)]
    scenario: ScenarioArgs,
    /// Play every point of the scenarios' sweeps, each as a source of its own, and print a table of them.
    #[arg(long)]
    sweep: bool,
    /// How a scenario's time passes: virtual (as fast as it goes, the same WAL each time), real, max (as fast, with real times).
    #[arg(long, alias = "time-mode", value_enum, default_value = "virtual")]
    clock: ClockMode,
    /// Folder for the report; made if missing. One that is there must be empty or an earlier report, which is replaced.
    #[arg(long, value_name = "DIR", default_value = "walstorm-report")]
    out: PathBuf,
    /// Share of transactions that are traced, 0 to 1; those with 50 invalidation messages or more are traced in any case.
    #[arg(long, value_name = "RATIO", default_value_t = 0.01)]
    sampling: f64,
    /// OTLP endpoint for traces; default OTEL_EXPORTER_OTLP_ENDPOINT, else traces.jsonl in the report's folder.
    #[arg(long, value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// Keep the traces in memory and serve them as a page of Jaeger on this machine, during the run and after it, until Ctrl-C.
    #[arg(long, conflicts_with = "otlp_endpoint")]
    ui: bool,
    /// Port of that page; 0: one that is free.
    #[arg(long, value_name = "PORT", default_value_t = 0, requires = "ui")]
    ui_port: u16,
    /// Folder with pg_class.csv and pg_class_start.csv that name the relations of the WAL directories.
    #[arg(long, value_name = "DIR")]
    catalog: Option<PathBuf>,
    /// One JSON object a line instead of tables.
    #[arg(long)]
    json: bool,
}

/// How scenarios are played, of every command that plays them.
#[derive(Debug, clap::Args)]
pub struct ScenarioArgs {
    /// Seed of the scenarios; default: each its own.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Value of a parameter for the scenarios that have it, instead of their own; may be given several times.
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
    /// Play scenarios at their small sizes, which take a second or two.
    #[arg(long)]
    pub small: bool,
}

/// Help after the options.
const AFTER_HELP: &str = "\
DIR then holds report.json (depends on sources and seed alone: the same bytes each time with --clock virtual), timings.json (what was
measured), traces.jsonl (OTLP JSON lines, unless they go to an endpoint or to --ui), and per source a folder with the primary's WAL.

With --json a line is an object with the key `kind`:
  source       source, consumer, about, scale, seed, parameters, version, records, bytes, commits, aborts, messages, decoded, before_commit (with two_phase or streaming), replayed, stopped, missing_publications, pipeline_wall_ns
  transaction  source, consumer, rank, xid, commit_lsn, looks_like, rows, messages (by kind), caches (by cache), work (by profile)
  decoder      source, profile, consumer, published, real_server, work, snapshots, cpu_ns (by function), wall_ns, identical_output
  standby      source, profile, published, real_server, snapshots, span_max, live_max, compressions, work, snapshot_cpu_ns,
               replay_cpu_ns, identical_snapshots
The keys of `work` are those of every walstorm command.

Exit code: 0; 3 if a node stopped before the end of its WAL or two profiles decode differently; 1 on errors.";

/// Arguments that were checked.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Profiles asked for, empty for the defaults.
    pub profiles: Vec<String>,
    /// Consumer mode asked for.
    pub consumer: Option<Consumer>,
    /// Seed asked for.
    pub seed: Option<u64>,
    /// Parameters asked for.
    pub set: Overrides,
    /// Scenarios are played at their small sizes.
    pub small: bool,
    /// How time passes.
    pub clock: ClockMode,
    /// Share of transactions that are traced.
    pub sampling: f64,
    /// Names for WAL directories.
    pub catalog: Option<PathBuf>,
    /// What the output plugin is asked for.
    pub options: PluginOptions,
}

impl Settings {
    /// Decoder profiles of a source: those asked for that are decoder profiles, or the ladder's, or the defaults and the WAL's own.
    #[must_use]
    pub fn decoder_profiles(&self, ladder: Option<&[Rung]>, own: &str, defaults: &[&str]) -> Vec<String> {
        self.chosen(ladder, own, defaults, |name| name.parse::<decoder_core::Profile>().is_ok())
    }

    /// The same for readers of a standby.
    #[must_use]
    pub fn standby_profiles(&self, ladder: Option<&[Rung]>, own: &str, defaults: &[&str]) -> Vec<String> {
        self.chosen(ladder, own, defaults, |name| name.parse::<standby_core::StandbyProfile>().is_ok())
    }

    /// See above; the WAL's own profile comes before `indexed`.
    fn chosen(&self, ladder: Option<&[Rung]>, own: &str, defaults: &[&str], fits: impl Fn(&str) -> bool) -> Vec<String> {
        let asked: Vec<String> = self.profiles.iter().filter(|name| fits(name)).cloned().collect();
        if !asked.is_empty() {
            return asked;
        }
        if let Some(rungs) = ladder {
            return rungs.iter().map(|rung| rung.profile.to_owned()).collect();
        }
        let mut names: Vec<String> = defaults.iter().map(|name| (*name).to_owned()).collect();
        if !names.iter().any(|name| name == own) {
            let last = names.len().saturating_sub(1);
            names.insert(last, own.to_owned());
        }
        names
    }
}

/// Runs the command.
///
/// # Errors
/// An argument is wrong, the folder cannot be used, a node does not start, or a source cannot be read.
pub fn main(args: &Args) -> anyhow::Result<ExitCode> {
    let settings = check(args)?;
    let mut sources = source::resolve(&args.sources)?;
    source::check_parameters(&sources, &settings.set)?;
    if args.sweep {
        sources = source::sweep(sources, settings.seed)?;
    }
    let mut out = OutDir::take(&args.out)?;
    let workers = std::thread::available_parallelism().map_or(WORKERS_MIN, |n| n.get().max(WORKERS_MIN));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build()?;
    let ui = if args.ui { Some(runtime.block_on(TraceUi::start(args.ui_port))?) } else { None };
    if let Some(ui) = &ui {
        note(&mut std::io::stderr(), format_args!("traces: {} (send yours to {})", ui.url(), ui.endpoint()));
    }
    let result = runtime.block_on(run(args, &settings, &sources, ui.as_ref(), &mut out));
    let done = finish(args, &mut out, result);
    if let (Some(ui), Ok(_)) = (&ui, &done) {
        note(&mut std::io::stderr(), format_args!("traces are served at {} until Ctrl-C", ui.url()));
        runtime.block_on(interrupted())?;
    }
    runtime.shutdown_timeout(Duration::from_secs(1));
    done
}

/// Waits for Ctrl-C or SIGTERM.
async fn interrupted() -> anyhow::Result<()> {
    let mut terminated = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result.context("wait for Ctrl-C"),
        _ = terminated.recv() => Ok(()),
    }
}

/// Writes and prints what a run came to, and gives its exit code.
fn finish(args: &Args, out: &mut OutDir, result: anyhow::Result<(Report, Timings)>) -> anyhow::Result<ExitCode> {
    let (report, timings) = result?;
    out.write("report.json", &pretty(&report)?)?;
    out.write("timings.json", &pretty(&timings)?)?;
    let shown =
        if args.json { show::json(&report, &timings)? } else { show::text(&report, &timings, &args.out, Paint::for_stdout()) };
    let lost = lost_spans();
    if lost > 0 {
        let why = "they came faster than they could be written, or the collector did not take them";
        let remedy = "trace fewer with --sampling, or see to the collector";
        note(&mut std::io::stderr(), format_args!("{lost} spans are lost, so that not all traces are whole: {why}; {remedy}"));
    }
    let mut stdout = Stdout::new();
    match stdout.write_all(shown.as_bytes()).and_then(|()| stdout.flush()) {
        // Whoever reads wants no more, as in `walstorm run | head`; the exit code still counts.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
        written => written?,
    }
    let sound = report.sources.iter().all(|s| {
        s.pipeline.stopped.is_empty()
            && s.decoder_profiles.iter().all(|p| p.identical_output)
            && s.standby_profiles.iter().all(|p| p.identical_snapshots)
    });
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::from(STOPPED) })
}

/// Checks the arguments that types alone do not.
fn check(args: &Args) -> anyhow::Result<Settings> {
    for name in &args.profiles {
        let decoder = name.parse::<decoder_core::Profile>();
        if let (Err(error), Err(_)) = (decoder, name.parse::<standby_core::StandbyProfile>()) {
            return Err(error.into());
        }
    }
    if !(0.0..=1.0).contains(&args.sampling) {
        bail!("--sampling is {}: it must be between 0 and 1", args.sampling);
    }
    if let Some(dir) = args.catalog.as_deref().filter(|dir| !dir.is_dir()) {
        bail!("--catalog {}: no such folder; it must hold pg_class.csv", service_kit::printable(&dir.display().to_string()));
    }
    Ok(Settings {
        profiles: args.profiles.clone(),
        consumer: args.consumer,
        seed: args.scenario.seed,
        set: parameters(&args.scenario.set)?,
        small: args.scenario.small,
        clock: args.clock,
        sampling: args.sampling,
        catalog: args.catalog.clone(),
        options: args.plugin.options(),
    })
}

/// The parameters of `--set`.
pub(crate) fn parameters(set: &[String]) -> anyhow::Result<Overrides> {
    let pair = |text: &String| match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.into())),
        _ => bail!("--set {}: write a parameter's name, '=' and its value", service_kit::printable(text)),
    };
    set.iter().map(pair).collect()
}

/// Plays every source.
async fn run(
    args: &Args,
    settings: &Settings,
    sources: &[source::Source],
    ui: Option<&TraceUi>,
    out: &mut OutDir,
) -> anyhow::Result<(Report, Timings)> {
    let begun = Instant::now();
    let telemetry = TelemetryConfig {
        endpoint: ui.map(TraceUi::endpoint).or_else(|| args.otlp_endpoint.clone()),
        file: Some(out.entry("traces.jsonl")?),
        ..TelemetryConfig::default()
    };
    let export: Export = choose_export(&telemetry, |name| std::env::var(name).ok())?;
    let bar = progress_bar();
    let mut report = Report {
        format: FORMAT,
        walstorm: env!("CARGO_PKG_VERSION"),
        seed: settings.seed,
        clock: match settings.clock {
            ClockMode::Virtual => "virtual",
            ClockMode::Real => "real",
            ClockMode::Max => "max",
        },
        sources: Vec::new(),
    };
    let mut timings = Timings { format: FORMAT, wall_ns: 0, sources: Vec::new() };
    for source in sources {
        let folder = out.entry(&source.name)?;
        out_dir::make_dir(&folder)?;
        let played = play::play(source, settings, &folder, export.clone(), &bar).await;
        let (played, timed) = played.with_context(|| format!("play {}", source.name))?;
        report.sources.push(played);
        timings.sources.push(timed);
    }
    bar.finish_and_clear();
    timings.wall_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    Ok((report, timings))
}

/// A bar on standard error; none unless that is a terminal.
pub(crate) fn progress_bar() -> ProgressBar {
    let target = if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(Some(1), target);
    if let Ok(style) = ProgressStyle::with_template("  {spinner} {bar:30} {percent:>3} %  {elapsed:>4}  {wide_msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// An object as indented JSON with a newline at its end.
fn pretty(value: &impl serde::Serialize) -> anyhow::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value)?;
    text.push(b'\n');
    Ok(text)
}
