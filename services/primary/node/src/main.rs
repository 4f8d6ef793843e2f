//! The `walstorm-primary` program.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use primary_node::PrimaryNode;
use primary_node::config::{ClockMode, PrimaryConfig};
use serde::Serialize;
use service_kit::config::Layers;
use service_kit::{Drain, SystemClock, logs, telemetry};

/// Serves PostgreSQL WAL over gRPC: a directory or an archive of segments, or a scenario that is played.
///
/// Settings come from built-in defaults, then the configuration file, then the environment (WALSTORM_PRIMARY__SERVER__LISTEN for
/// `listen` in the table `[server]`), then these flags. Prints `listening on ADDRESS:PORT` when it answers; SIGTERM drains it.
#[derive(Debug, Parser)]
#[command(name = "walstorm-primary", version)]
struct Arguments {
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Flags that are settings.
    #[command(flatten)]
    settings: Settings,
}

/// Flags that stand for settings of the same name.
#[derive(Debug, clap::Args, Serialize)]
struct Settings {
    /// Where slots, and the WAL of a scenario, are kept.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Address and port to listen on; port 0 takes any free one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    #[serde(rename = "server.listen")]
    listen: Option<String>,
    /// WAL segments to serve: a directory, a data directory, or one segment. It is only read.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["archive", "scenario"])]
    #[serde(rename = "source.wal_dir")]
    wal_dir: Option<PathBuf>,
    /// Archive of WAL segments to serve: file:///folder, s3://bucket/folder, gs://bucket/folder or az://container/folder. It is
    /// only read. Credentials come from the environment (AWS_…, GOOGLE_…, AZURE_…).
    #[arg(long, value_name = "URL", conflicts_with = "scenario")]
    #[serde(rename = "source.archive")]
    archive: Option<String>,
    /// Timeline to serve; the newest without it.
    #[arg(long, value_name = "NUMBER")]
    #[serde(rename = "source.timeline")]
    timeline: Option<u32>,
    /// Go on looking for new WAL in the directory or archive.
    #[arg(long)]
    #[serde(rename = "source.follow", skip_serializing_if = "std::ops::Not::not")]
    follow: bool,
    /// Scenario to play: a name or a file.
    #[arg(long, value_name = "SCENARIO")]
    #[serde(rename = "source.scenario")]
    scenario: Option<String>,
    /// Slots, as of decoders and standbys, that must be there before the scenario begins, separated by commas.
    #[arg(long, value_name = "SLOT,SLOT,...", value_delimiter = ',')]
    #[serde(rename = "source.wait_for_slots", skip_serializing_if = "Vec::is_empty")]
    wait_for_slots: Vec<String>,
    /// Let VACUUM of a scenario heed the xids that clients' slots need [default: unless the clock is virtual].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    #[serde(rename = "source.heed_slots", skip_serializing_if = "Option::is_none")]
    heed_slots: Option<bool>,
    /// Wait for runs that clients ask for with RunScenario.
    #[arg(long, conflicts_with_all = ["wal_dir", "archive", "scenario"])]
    #[serde(rename = "source.runs", skip_serializing_if = "std::ops::Not::not")]
    runs: bool,
    /// Seed of the scenario.
    #[arg(long, value_name = "NUMBER")]
    #[serde(rename = "source.seed")]
    seed: Option<u64>,
    /// How the scenario's time passes.
    #[arg(long, value_enum)]
    #[serde(rename = "source.clock")]
    clock: Option<ClockMode>,
    /// OTLP endpoint for traces.
    #[arg(long, value_name = "URL")]
    #[serde(rename = "telemetry.endpoint")]
    otlp_endpoint: Option<String>,
    /// Which log lines: a level, or directives.
    #[arg(long, value_name = "FILTER")]
    #[serde(rename = "log.filter")]
    log_filter: Option<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Two workers at least: one that waits must not keep telemetry from its export.
    let workers = std::thread::available_parallelism().map_or(2, |n| n.get().max(2));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build();
    let ran = runtime.context("start the runtime").and_then(|runtime| {
        let ran = runtime.block_on(run(&arguments));
        // Blocking reads that still run end with the process.
        runtime.shutdown_background();
        ran
    });
    match ran {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody may read it; the exit code says it, too.
            let _ = writeln!(std::io::stderr(), "walstorm-primary: {}", service_kit::error_text(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Runs a primary until it is told to stop.
async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let effective = Layers::new("primary")
        .opentelemetry(|name| std::env::var(name).ok())?
        .file(arguments.config.as_deref())?
        .environment(std::env::vars_os())?
        .flags(&arguments.settings)?
        .load::<PrimaryConfig>()?;
    logs::init(&effective.value.log)?;
    effective.log();
    let config = effective.value;
    let drain = Drain::new();
    drain.on_signals(config.server.grace).context("listen to signals")?;
    let export = telemetry::choose_export(&config.telemetry, |name| std::env::var(name).ok())?;
    let clock = std::sync::Arc::new(SystemClock::new());
    let node = PrimaryNode::start_with(config, export, clock, drain).await?;
    node.announce();
    node.joined().await?;
    Ok(())
}
