//! A primary that plays the source, and a standby with threads of its own, so that their CPU time can be told from that of the load.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use primary_node::config::SourceConfig;
use primary_node::{PrimaryConfig, PrimaryNode};
use service_kit::telemetry::Export;
use service_kit::{Clock, Drain, SystemClock};
use standby_node::StandbyNode;
use standby_node::config::SizeSettings;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

/// Any free port of loopback.
const ANY_PORT: &str = "127.0.0.1:0";

/// Threads that the standby serves on, as `walstorm-standby` has.
const STANDBY_THREADS: usize = 2;

/// Their name.
const STANDBY_NAME: &str = "bench-standby";

/// How long a standby may take until it gives snapshots.
const READY_LIMIT: Duration = Duration::from_secs(60);

/// How long the nodes may take to stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// A runtime that may be dropped on another's threads: it does not wait for its own.
#[derive(Debug)]
struct Threads(Option<Runtime>);

impl Threads {
    /// Runs a future on them.
    async fn run<F>(&self, future: F) -> anyhow::Result<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let threads = self.0.as_ref().context("the standby's threads have ended")?;
        threads.spawn(future).await.context("the standby panicked")
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(threads) = self.0.take() {
            threads.shutdown_background();
        }
    }
}

/// Two nodes that run.
#[derive(Debug)]
pub struct Nodes {
    /// Plays the source.
    primary: PrimaryNode,
    /// Replays it.
    standby: StandbyNode,
    /// The standby's threads.
    threads: Threads,
    /// What the primary keeps; deleted afterwards.
    _folder: TempDir,
}

impl Nodes {
    /// Starts them, and waits until the standby gives snapshots.
    ///
    /// # Errors
    /// A node does not start, or there is no snapshot within [`READY_LIMIT`].
    pub async fn start(source: SourceConfig, profile: &str, settings: SizeSettings) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("make a folder for the primary's WAL")?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let mut config = PrimaryConfig { data_dir: folder.path().join("primary"), source, ..PrimaryConfig::default() };
        config.server.listen = ANY_PORT.to_owned();
        let primary = PrimaryNode::start_with(config, Export::Off, Arc::clone(&clock), Drain::new()).await;
        let primary = primary.context("start the primary")?;
        let mut config =
            standby_node::Config { profile: Some(profile.to_owned()), settings, ..standby_node::Config::default() };
        config.server.listen = ANY_PORT.to_owned();
        config.primary.endpoint = format!("http://{}", primary.addr());
        let mut threads = Builder::new_multi_thread();
        threads.worker_threads(STANDBY_THREADS).thread_name(STANDBY_NAME).enable_all();
        let threads = Threads(Some(threads.build()?));
        let standby = threads.run(StandbyNode::start_with(config, Export::Off, clock, Drain::new())).await?;
        let nodes = Self { primary, standby: standby.context("start the standby")?, threads, _folder: folder };
        nodes.ready().await?;
        Ok(nodes)
    }

    /// Waits until the standby gives snapshots.
    async fn ready(&self) -> anyhow::Result<()> {
        let mut progress = self.standby.progress();
        let waited = timeout(READY_LIMIT, progress.wait_for(|p| p.is_ready() || p.halt.is_some())).await;
        let seen = match waited {
            Ok(seen) => seen.context("the standby is gone")?.clone(),
            Err(_) => self.standby.progress().borrow().clone(),
        };
        if !seen.is_ready() {
            bail!("the standby gives no snapshots: {}", seen.waits_for());
        }
        Ok(())
    }

    /// Where the standby is.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.standby.addr())
    }

    /// Stops both.
    ///
    /// # Errors
    /// A node failed, or does not stop.
    pub async fn stop(self) -> anyhow::Result<()> {
        let Self { primary, standby, threads, _folder } = self;
        let stopping = async {
            threads.run(standby.shutdown()).await?.context("stop the standby")?;
            primary.shutdown().await.context("stop the primary").map(drop)
        };
        timeout(STOP_LIMIT, stopping).await.with_context(|| format!("the nodes did not stop within {STOP_LIMIT:?}"))?
    }
}
