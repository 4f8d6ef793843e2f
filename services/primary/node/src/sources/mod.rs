//! Where the log's WAL comes from.

mod segments;

use std::time::Duration;

use service_kit::Drain;
use tokio::task::JoinHandle;

use crate::config::PrimaryConfig;
use crate::error::{Error, Result};
use crate::wal_log::WalLog;

/// What goes on at a log after it was opened.
pub(crate) enum Source {
    /// Nothing: the directory is what it is.
    Still,
    /// The directory is followed.
    Followed(Duration),
}

impl Source {
    /// Starts it; it ends by itself or when the node stops.
    pub(crate) fn spawn(self, log: WalLog, drain: Drain) -> JoinHandle<Result<()>> {
        match self {
            Self::Still => tokio::spawn(async { Ok(()) }),
            Self::Followed(interval) => tokio::spawn(segments::follow(log, interval, drain)),
        }
    }
}

/// Opens the log that `config` names. Blocks on the disk.
///
/// # Errors
/// No WAL, or a scenario that cannot be played.
pub(crate) fn open(config: &PrimaryConfig) -> Result<(WalLog, Source)> {
    let source = &config.source;
    match (&source.wal_dir, &source.scenario) {
        (Some(dir), _) => {
            let still = if source.follow { Source::Followed(source.follow_interval) } else { Source::Still };
            Ok((segments::open(dir, source)?, still))
        }
        (None, Some(name)) => Err(Error::Scenario(format!("this build plays none, so not \"{name}\"; serve a WAL directory"))),
        (None, None) => Err(Error::Config("nothing to serve".to_owned())),
    }
}
