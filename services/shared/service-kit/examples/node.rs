//! The frame of a node's program: configuration in layers, logs, traces, a server with health and reflection, signals, the end.
//!
//!     cargo run -p service-kit --example node -- --listen 127.0.0.1:0

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use serde::{Deserialize, Serialize};
use service_kit::config::Layers;
use service_kit::logs::{self, LogConfig, LogFormat};
use service_kit::server::{self, ServerConfig};
use service_kit::telemetry::{self, Role, TelemetryConfig};
use service_kit::{Drain, Health};

/// What the node can be told.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Config {
    server: ServerConfig,
    log: LogConfig,
    telemetry: TelemetryConfig,
}

/// Flags; what is not given is left to the other layers.
#[derive(Parser, Serialize)]
struct Args {
    /// Configuration file (TOML).
    #[arg(long, env = "WALSTORM_EXAMPLE_CONFIG")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Address and port to listen on; port 0 takes any free one.
    #[arg(long)]
    #[serde(rename = "server.listen")]
    listen: Option<String>,
    /// How log lines look.
    #[arg(long)]
    #[serde(rename = "log.format")]
    log_format: Option<LogFormat>,
    /// Never return after the server ended: shows what ends a program that hangs.
    #[arg(long, hide = true)]
    #[serde(skip)]
    hang: bool,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("node: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The node's life.
#[tokio::main]
async fn run(args: &Args) -> anyhow::Result<()> {
    let layers = Layers::new("example").file(args.config.as_deref())?.environment(std::env::vars_os())?.flags(args)?;
    let effective = layers.load::<Config>()?;
    let config = &effective.value;
    logs::init(&config.log)?;
    effective.log();

    let bound = server::bind(&config.server).await?;
    let role = Role { service_name: "walstorm-example".to_owned(), instance_id: bound.addr().to_string() };
    let export = telemetry::choose_export(&config.telemetry, |name| std::env::var(name).ok())?;
    let (_tracer, guard) = telemetry::start(&role, &config.telemetry, export)?;
    let (drain, health) = (Drain::new(), Health::new(&[]).await);
    drain.on_signals(config.server.grace)?;

    let routes = server::base_routes(&config.server, &health, &[])?;
    health.serving().await;
    bound.announce();
    let outcome = server::serve(bound, &config.server, routes, health, drain).await;
    guard.shutdown().await;
    if args.hang {
        std::future::pending::<()>().await;
    }
    outcome?;
    Ok(())
}
