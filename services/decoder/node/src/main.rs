//! The `walstorm-decoder` program: file < environment (`WALSTORM_DECODER__…`) < flags.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use decoder_node::{DecoderConfig, DecoderNode, NodeParts};
use serde::Serialize;
use service_kit::Drain;
use service_kit::config::Layers;

/// Follows a primary, decodes its WAL like a PostgreSQL walsender, and serves committed transactions to subscribers.
///
/// Settings come from built-in defaults, then the configuration file, then the environment (WALSTORM_DECODER__SERVER__LISTEN for
/// `listen` in the table `[server]`), then these flags. Prints `listening on ADDRESS:PORT` when it answers; SIGTERM drains it.
#[derive(Debug, Parser)]
#[command(name = "walstorm-decoder", version)]
struct Arguments {
    /// Configuration file (TOML).
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Prints the configuration in effect, with the origin of each value, and exits.
    #[arg(long)]
    print_config: bool,
    /// Flags that are settings.
    #[command(flatten)]
    flags: Flags,
}

/// Settings that have flags; the names lead into the tables of the file.
#[derive(Debug, clap::Args, Serialize)]
struct Flags {
    /// Address and port to listen on; port 0 takes any free one.
    #[arg(long)]
    #[serde(rename = "server.listen")]
    listen: Option<String>,
    /// The primary, as http://127.0.0.1:5500.
    #[arg(long = "primary", value_name = "URL")]
    #[serde(rename = "primary.endpoint")]
    endpoint: Option<String>,
    /// Slot at the primary, without "slots/".
    #[arg(long)]
    slot: Option<String>,
    /// Names this node at the primary.
    #[arg(long)]
    client_id: Option<String>,
    /// Profile: indexed, pg18, pg13, pg96+small-map, …
    #[arg(long)]
    profile: Option<String>,
    /// Who decodes: catch-up, or live, which reads the shared invalidation queue too and is reset when it lags.
    #[arg(long)]
    consumer: Option<String>,
    /// Folder with pg_class.csv, for the names of relations.
    #[arg(long)]
    catalog: Option<PathBuf>,
    /// Oid of the database that is decoded; 0: that of the first change.
    #[arg(long)]
    database: Option<u32>,
    /// Gives large transactions out in blocks while they are in progress; `--streaming=false` switches it off.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    streaming: Option<bool>,
    /// Gives prepared transactions out when they are prepared; `--two-phase=false` switches it off.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "BOOL")]
    two_phase: Option<bool>,
    /// Gives out only what this publication has; may be given several times.
    #[arg(long = "publication", value_name = "NAME")]
    publications: Option<Vec<String>>,
    /// Changes from where are decoded: any, or none (what was made on the primary).
    #[arg(long)]
    origin: Option<String>,
    /// Folder for output log, checkpoint and positions.
    #[arg(long)]
    data_dir: Option<PathBuf>,
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
            let _ = writeln!(std::io::stderr(), "walstorm-decoder: {}", service_kit::error_text(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

/// Loads the configuration and runs the node until it is told to stop.
async fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let layers = Layers::new("decoder")
        .opentelemetry(|name| std::env::var(name).ok())?
        .file(arguments.config.as_deref())?
        .environment(std::env::vars_os())?;
    let config = layers.flags(&arguments.flags)?.load::<DecoderConfig>()?;
    if arguments.print_config {
        config.lines().for_each(|line| println!("{line}"));
        return Ok(());
    }
    service_kit::logs::init(&config.value.log)?;
    config.log();
    let drain = Drain::new();
    drain.on_signals(config.value.server.grace).context("listen to signals")?;
    let node = DecoderNode::start_with(config.value, NodeParts::default(), drain).await?;
    node.announce();
    node.join().await?;
    Ok(())
}
