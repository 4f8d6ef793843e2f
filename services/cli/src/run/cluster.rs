//! A primary, a decoder and a standby in this process, talking gRPC on loopback. `walstorm run` and the tests start one a source.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use decoder_core::PluginOptions;
use decoder_node::{DecoderConfig, DecoderNode, NodeParts, ScenarioDecoder};
use pg_types::Lsn;
use primary_node::{PrimaryConfig, PrimaryNode};
use service_kit::telemetry::{self, Export, Guard, Role, SamplingConfig, TelemetryConfig, Tracer};
use service_kit::{Clock, Drain, SystemClock};
use standby_node::StandbyNode;
use tokio::time::{Duration, timeout};

/// Any free port of loopback.
const ANY_PORT: &str = "127.0.0.1:0";

/// How long the nodes may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Which nodes to start, and how.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Where the primary's WAL comes from.
    pub source: primary_node::config::SourceConfig,
    /// Folder for what the nodes keep: `primary`, `decoder` and `standby` are made in it.
    pub data_dir: PathBuf,
    /// Profile of the decoder.
    pub decoder_profile: String,
    /// Profile of the standby; none for that of the WAL's version.
    pub standby_profile: Option<String>,
    /// Settings that size the standby's array.
    pub standby_settings: standby_node::config::SizeSettings,
    /// Folder with csv files that name the relations.
    pub catalog: Option<PathBuf>,
    /// What the decoder's output plugin is asked for.
    pub options: PluginOptions,
    /// Which transactions are traced.
    pub sampling: SamplingConfig,
    /// Where spans go.
    pub export: Export,
}

/// Three nodes that run, and what traces those that use them.
#[derive(Debug)]
pub struct Cluster {
    /// Traces a subscriber of the decoder.
    pub subscriber: Tracer,
    /// Traces readers of the standby.
    pub reader: Tracer,
    /// Exports the last spans of both.
    guards: [Guard; 2],
    /// Serves the WAL.
    pub primary: PrimaryNode,
    /// Decodes it.
    pub decoder: DecoderNode,
    /// Replays it.
    pub standby: StandbyNode,
}

/// What the nodes reached.
#[derive(Clone, Debug)]
pub struct Reached {
    /// End of the primary's WAL.
    pub end: Lsn,
    /// Why the decoder or the standby did not get there, each in a sentence; empty if both did.
    pub stopped: Vec<String>,
}

impl Cluster {
    /// Starts the nodes, each with the addresses of those that it talks to.
    ///
    /// # Errors
    /// A node does not start.
    pub async fn start(config: ClusterConfig) -> anyhow::Result<Self> {
        Self::start_with(config, ScenarioDecoder::default()).await
    }

    /// The same; the decoder has the memory limit of `set_up`, and gives out before the commit what that says.
    ///
    /// # Errors
    /// A node does not start.
    pub async fn start_with(config: ClusterConfig, set_up: ScenarioDecoder) -> anyhow::Result<Self> {
        let telemetry = TelemetryConfig { sampling: config.sampling.clone(), ..TelemetryConfig::default() };
        let (subscriber, of_subscriber) = consumer("walstorm-subscriber", &telemetry, &config.export)?;
        let (reader, of_reader) = consumer("walstorm-reader", &telemetry, &config.export)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let mut primary_config = PrimaryConfig {
            data_dir: config.data_dir.join("primary"),
            source: config.source,
            telemetry: telemetry.clone(),
            ..PrimaryConfig::default()
        };
        primary_config.server.listen = ANY_PORT.to_owned();
        let primary = PrimaryNode::start_with(primary_config, config.export.clone(), Arc::clone(&clock), Drain::new())
            .await
            .context("start the primary")?;
        let endpoint = format!("http://{}", primary.addr());

        let mut decoder_config = DecoderConfig {
            data_dir: config.data_dir.join("decoder"),
            profile: config.decoder_profile,
            catalog: config.catalog,
            telemetry: telemetry.clone(),
            work_mem: set_up.work_mem.unwrap_or_default().to_string(),
            streaming: set_up.streaming,
            two_phase: set_up.two_phase,
            publications: config.options.publication_names,
            origin: config.options.origin.to_string(),
            ..DecoderConfig::default()
        };
        decoder_config.server.listen = ANY_PORT.to_owned();
        decoder_config.primary.endpoint.clone_from(&endpoint);
        let parts = NodeParts { clock: Arc::clone(&clock), export: Some(config.export.clone()) };
        let decoder = DecoderNode::start_with(decoder_config, parts, Drain::new()).await.context("start the decoder")?;

        let mut standby_config = standby_node::Config {
            data_dir: Some(config.data_dir.join("standby")),
            profile: config.standby_profile,
            settings: config.standby_settings,
            telemetry,
            // Compressions by the wall clock would make two runs of one seed differ.
            idle_compression: false,
            ..standby_node::Config::default()
        };
        standby_config.server.listen = ANY_PORT.to_owned();
        standby_config.primary.endpoint = endpoint;
        let standby =
            StandbyNode::start_with(standby_config, config.export, clock, Drain::new()).await.context("start the standby")?;
        Ok(Self { subscriber, reader, guards: [of_subscriber, of_reader], primary, decoder, standby })
    }

    /// Waits until the primary's source has ended and both followers have all of it, or have stopped on the way.
    ///
    /// # Errors
    /// A node is gone, or the primary's source failed: what [`Cluster::shutdown`] says then is why.
    pub async fn finished(&self) -> anyhow::Result<Reached> {
        tokio::select! {
            reached = self.reached() => reached,
            () = self.primary.drain().draining() => bail!("the primary stopped"),
        }
    }

    /// The same, as long as the primary's source is well.
    async fn reached(&self) -> anyhow::Result<Reached> {
        let mut log = self.primary.log().subscribe();
        let end = *log.wait_for(|end| end.closed).await.context("the primary is gone")?;
        let mut stopped = Vec::new();
        let mut decoder = self.decoder.state();
        let decoded = decoder.wait_for(|s| s.halted || s.decoded_lsn >= end.lsn && s.applied_lsn >= end.lsn).await;
        let decoded = decoded.context("the decoder is gone")?.clone();
        if decoded.halted {
            stopped.push(format!("the decoder stopped at {}: {}", decoded.decoded_lsn, decoded.last_error));
        }
        let mut standby = self.standby.progress();
        let replayed = standby.wait_for(|p| p.halt.is_some() || p.replay_lsn >= end.lsn).await;
        if let Some(halt) = &replayed.context("the standby is gone")?.halt {
            stopped.push(format!("the standby: {halt}"));
        }
        Ok(Reached { end: end.lsn, stopped })
    }

    /// Stops the nodes, consumers first, and exports the last spans.
    ///
    /// # Errors
    /// A node failed, or does not stop.
    pub async fn shutdown(self) -> anyhow::Result<()> {
        let Self { primary, decoder, standby, guards, .. } = self;
        let stopping = async {
            for guard in guards {
                guard.shutdown().await;
            }
            standby.shutdown().await.context("stop the standby")?;
            decoder.shutdown().await.context("stop the decoder")?;
            primary.shutdown().await.context("stop the primary")?;
            Ok(())
        };
        match timeout(STOP_LIMIT, stopping).await {
            Ok(stopped) => stopped,
            Err(_) => bail!("the nodes did not stop within {STOP_LIMIT:?}"),
        }
    }
}

/// What traces somebody who uses the nodes.
fn consumer(service_name: &str, config: &TelemetryConfig, export: &Export) -> anyhow::Result<(Tracer, Guard)> {
    let role = Role { service_name: service_name.to_owned(), instance_id: service_name.to_owned() };
    telemetry::start(&role, config, export.clone()).with_context(|| format!("trace {service_name}"))
}
