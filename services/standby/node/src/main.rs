//! The `walstorm-standby` program.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use serde::Serialize;
use service_kit::config::Layers;
use service_kit::{Drain, SystemClock, telemetry};
use standby_node::{Config, StandbyNode};

/// Follows a primary, replays its WAL like a PostgreSQL hot standby, and serves snapshots.
///
/// Every setting can stand in a TOML file, in the environment (WALSTORM_STANDBY__SERVER__LISTEN for `listen` in the
/// table `server`) or in a flag; later ones win. SIGTERM drains and exits with 0.
#[derive(Debug, Parser)]
#[command(name = "walstorm-standby", version, max_term_width = 120)]
struct Cli {
    /// Configuration file (TOML).
    #[arg(long, env = "WALSTORM_STANDBY_CONFIG")]
    config: Option<PathBuf>,
    /// Settings.
    #[command(flatten)]
    flags: Flags,
}

/// Settings as flags: the names are those of the file, their last part.
#[derive(Debug, Serialize, clap::Args)]
struct Flags {
    /// Address to serve on; port 0 takes a free one [file: server.listen].
    #[arg(long, value_name = "ADDRESS:PORT")]
    #[serde(rename = "server.listen")]
    listen: Option<String>,
    /// The primary, as http://127.0.0.1:5500 [file: primary.endpoint].
    #[arg(long, value_name = "URL")]
    #[serde(rename = "primary.endpoint")]
    primary: Option<String>,
    /// Slot on the primary, as NAME or slots/NAME.
    #[arg(long)]
    slot: Option<String>,
    /// Name by which the primary knows this standby.
    #[arg(long)]
    client_id: Option<String>,
    /// Directory for the restart point; without one, every start is a first one.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Behaviour to model, as pg14, pg13.6+skip-offset or indexed; default: that of the WAL's version.
    #[arg(long)]
    profile: Option<String>,
    /// Where to begin without restart point: running-xacts, checkpoint or an LSN.
    #[arg(long)]
    start: Option<String>,
    /// OTLP endpoint for traces [file: telemetry.endpoint].
    #[arg(long, value_name = "URL")]
    #[serde(rename = "telemetry.endpoint")]
    otlp_endpoint: Option<String>,
    /// Which log lines: a level, or directives [file: log.filter].
    #[arg(long, value_name = "FILTER")]
    #[serde(rename = "log.filter")]
    log_filter: Option<String>,
    /// The primary's max_connections [file: settings.max_connections].
    #[arg(long)]
    #[serde(rename = "settings.max_connections")]
    max_connections: Option<u32>,
    /// The primary's max_prepared_transactions [file: settings.max_prepared_transactions].
    #[arg(long)]
    #[serde(rename = "settings.max_prepared_transactions")]
    max_prepared_transactions: Option<u32>,
}

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build();
    let result = runtime.map_err(anyhow::Error::from).and_then(|runtime| runtime.block_on(run(Cli::parse())));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody may read it; the exit code says it, too.
            let _ = writeln!(std::io::stderr(), "walstorm-standby: {}", service_kit::error_text(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Runs the node until a signal.
async fn run(cli: Cli) -> anyhow::Result<()> {
    let layers = Layers::new("standby")
        .opentelemetry(|name| std::env::var(name).ok())?
        .file(cli.config.as_deref())?
        .environment(std::env::vars_os())?;
    let effective = layers.flags(&cli.flags)?.load::<Config>()?;
    service_kit::logs::init(&effective.value.log)?;
    effective.log();
    let config = effective.value;
    let drain = Drain::new();
    drain.on_signals(config.server.grace)?;
    let export = telemetry::choose_export(&config.telemetry, |name| std::env::var(name).ok())?;
    let node = StandbyNode::start_with(config, export, Arc::new(SystemClock::new()), drain).await?;
    node.announce();
    Ok(node.joined().await?)
}
