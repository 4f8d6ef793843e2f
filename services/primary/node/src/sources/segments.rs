//! A directory of segments that somebody else wrote: served as it is, or followed while it grows.

use std::path::Path;
use std::time::Duration;

use service_kit::Drain;

use crate::config::SourceConfig;
use crate::error::{Error, Result};
use crate::wal_log::{LogSource, WalLog};

/// Opens the directory.
///
/// # Errors
/// There is no WAL in it, or none of a version that is read.
pub(super) fn open(dir: &Path, config: &SourceConfig) -> Result<WalLog> {
    WalLog::open(dir, config.timeline, LogSource::Segments, !config.follow)
}

/// Looks for new WAL every `interval` until the node stops. What a copying program has not finished yet is not published.
pub(super) async fn follow(log: WalLog, interval: Duration, drain: Drain) -> Result<()> {
    loop {
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            () = drain.draining() => return Ok(()),
        }
        let looked = log.clone();
        let end = service_kit::blocking::spawn(move || looked.refresh()).await;
        match end.map_err(|e| Error::Internal(e.to_string()))? {
            Ok(end) => log.publish(end),
            Err(error) => tracing::warn!(%error, "cannot look for new WAL; trying again"),
        }
    }
}
