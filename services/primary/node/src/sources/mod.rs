//! Where the log's WAL comes from.

pub(crate) mod archive;
mod log_sink;
mod outside;
mod player;
mod player_clock;
mod runs;
mod segments;
mod simulated;

use std::sync::Arc;
use std::time::Duration;

use primary_core::RunSummary;
use service_kit::{Clock, Drain};
use tokio::sync::watch;

use crate::config::PrimaryConfig;
use crate::error::{Error, Result};
use crate::runs::Runs;
use crate::slots::Slots;
use crate::wal_log::WalLog;

/// What goes on at a log after it was opened.
pub(crate) enum Source {
    /// Nothing: the directory is what it is.
    Still,
    /// The directory is followed.
    Followed(Duration),
    /// An archive is followed.
    Archive(Box<archive::Archive>, Duration),
    /// A scenario is played.
    Simulated(Box<simulated::Simulated>),
    /// Runs are waited for and played.
    Runs(Box<runs::RunsSource>),
}

impl Source {
    /// How far the scenario is; none for a directory.
    pub(crate) fn summary(&self) -> Option<watch::Receiver<RunSummary>> {
        match self {
            Self::Simulated(player) => Some(player.summary()),
            Self::Still | Self::Followed(_) | Self::Archive(..) | Self::Runs(_) => None,
        }
    }

    /// Makes the slots of the consumers that its scenario has. Those of runs come with them. Blocks on the disk.
    ///
    /// # Errors
    /// A client has a slot of that name, there are too many, or one cannot be stored.
    pub(crate) fn adopt_consumers(&self, log: &WalLog, slots: &Slots, clock: &dyn Clock) -> Result<()> {
        match self {
            Self::Simulated(player) => player.adopt_consumers(log, slots, clock),
            Self::Still | Self::Followed(_) | Self::Archive(..) | Self::Runs(_) => Ok(()),
        }
    }

    /// Runs it until it ends by itself or the node stops. Without its source a node is of no use, so an error stops it.
    pub(crate) async fn run(self, log: WalLog, slots: Slots, drain: Drain) -> Result<()> {
        let ran = match self {
            Self::Still => Ok(()),
            Self::Followed(interval) => segments::follow(log, interval, drain.clone()).await,
            Self::Archive(archive, interval) => archive.follow(log, interval, drain.clone()).await,
            Self::Simulated(player) => {
                let stop = drain.clone();
                let played = tokio::task::spawn_blocking(move || player.play(&log, &slots, &stop)).await;
                played.unwrap_or_else(|e| Err(Error::Internal(format!("the scenario failed: {e}"))))
            }
            Self::Runs(runs) => {
                let stop = drain.clone();
                // A thread of its own: it waits for runs as long as the node lives, and a runtime waits for its blocking tasks.
                let (done, played) = tokio::sync::oneshot::channel();
                let work = move || drop(done.send(runs.play(&log, &slots, &stop)));
                match std::thread::Builder::new().name("runs".to_owned()).spawn(work) {
                    Ok(_) => {
                        played.await.unwrap_or_else(|_| Err(Error::Internal("the thread that plays runs died".to_owned())))
                    }
                    Err(error) => Err(Error::Internal(format!("cannot start the thread that plays runs: {error}"))),
                }
            }
        };
        if let Err(error) = &ran {
            tracing::error!(%error, "the source of WAL failed; stopping");
            drain.start();
        }
        ran
    }
}

/// What was opened: the log, what goes on at it, and the runs that clients may ask for.
type Opened = (WalLog, Source, Option<Runs>);

/// Opens the log that `config` names; `clock` is what a scenario's time follows. Blocks on the disk and on an archive's store.
///
/// # Errors
/// No WAL, or a scenario that cannot be played.
pub(crate) fn open(config: &PrimaryConfig, clock: Arc<dyn Clock>, drain: &Drain) -> Result<Opened> {
    let source = &config.source;
    if source.runs {
        let (log, runs, player) = runs::open(config, clock)?;
        return Ok((log, Source::Runs(Box::new(player)), Some(runs)));
    }
    if let Some(url) = &source.archive {
        let (log, archive) = archive::open(config, url, drain)?;
        let still = if source.follow { Source::Archive(Box::new(archive), source.follow_interval) } else { Source::Still };
        return Ok((log, still, None));
    }
    match (&source.wal_dir, &source.scenario) {
        (Some(dir), _) => {
            let still = if source.follow { Source::Followed(source.follow_interval) } else { Source::Still };
            Ok((segments::open(dir, source)?, still, None))
        }
        (None, Some(scenario)) => {
            let (log, player) = simulated::open(&config.data_dir, scenario, source, clock)?;
            Ok((log, Source::Simulated(Box::new(player)), None))
        }
        (None, None) => Err(Error::Config("nothing to serve".to_owned())),
    }
}
