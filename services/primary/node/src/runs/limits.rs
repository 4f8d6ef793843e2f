//! What clients may ask runs to be: a scenario from outside must not fill the disk or keep the primary busy for ever.

use std::time::Duration;

use primary_core::scenario::PlanSize;
use serde::{Deserialize, Serialize};

use super::file::Bounds;
use crate::error::{Error, Result};

/// The table `[runs]`: limits on runs. What follows from the scenario is checked before anything is played; the length of simulated
/// time and the bytes of WAL are looked at while it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunsConfig {
    /// Runs that are kept on disk, ended ones included.
    pub kept_max: u64,
    /// Bytes of a scenario's text.
    pub text_bytes_max: u64,
    /// Tables that are there before a run, partitions included.
    pub tables_max: u64,
    /// Rows: those that are there before, and those that transactions touch.
    pub rows_max: u64,
    /// Bytes in logical messages.
    pub message_bytes_max: u64,
    /// Invalidation messages in commit records.
    pub messages_max: u64,
    /// Sessions.
    pub sessions_max: u64,
    /// Statements, ends of transactions included.
    pub statements_max: u64,
    /// Points of a sweep.
    pub sweep_points_max: u64,
    /// Simulated time of a run, or of a point of its sweep.
    #[serde(with = "humantime_serde")]
    pub duration_max: Duration,
    /// Bytes of WAL of a run.
    pub wal_bytes_max: u64,
}

impl Default for RunsConfig {
    fn default() -> Self {
        Self {
            kept_max: 1000,
            text_bytes_max: 256 << 10,
            tables_max: 100_000,
            rows_max: 100_000_000,
            message_bytes_max: 1 << 30,
            messages_max: 100_000_000,
            sessions_max: 10_000,
            statements_max: 100_000_000,
            sweep_points_max: 100,
            duration_max: Duration::from_secs(24 * 3600),
            wal_bytes_max: 16 << 30,
        }
    }
}

impl RunsConfig {
    /// Whether a text is short enough to be read.
    ///
    /// # Errors
    /// [`Error::RunLimit`].
    pub(crate) fn check_text(&self, text: &str) -> Result<()> {
        limit("bytes of text", "runs.text_bytes_max", text.len() as u64, self.text_bytes_max)
    }

    /// Whether a sweep has few enough points.
    ///
    /// # Errors
    /// [`Error::RunLimit`].
    pub(crate) fn check_points(&self, points: u64) -> Result<()> {
        limit("points of the sweep", "runs.sweep_points_max", points, self.sweep_points_max)
    }

    /// Whether a plan is small enough to be played.
    ///
    /// # Errors
    /// [`Error::RunLimit`].
    pub(crate) fn check_size(&self, size: &PlanSize) -> Result<()> {
        limit("tables", "runs.tables_max", size.tables, self.tables_max)?;
        limit("rows", "runs.rows_max", size.rows, self.rows_max)?;
        limit("bytes of logical messages", "runs.message_bytes_max", size.message_bytes, self.message_bytes_max)?;
        limit("sessions", "runs.sessions_max", size.sessions, self.sessions_max)?;
        limit("statements", "runs.statements_max", size.statements, self.statements_max)?;
        let duration_max = self.bounds().duration_us;
        limit("microseconds of simulated time", "runs.duration_max", size.duration_us.unwrap_or(0), duration_max)
    }

    /// Whether one more run may be kept.
    ///
    /// # Errors
    /// [`Error::RunLimit`].
    pub(crate) fn check_kept(&self, kept: usize) -> Result<()> {
        limit("kept runs (delete some with DeleteRun)", "runs.kept_max", kept as u64 + 1, self.kept_max)
    }

    /// The bounds that are looked at while a run is played.
    pub(crate) fn bounds(&self) -> Bounds {
        Bounds {
            duration_us: u64::try_from(self.duration_max.as_micros()).unwrap_or(u64::MAX),
            wal_bytes: self.wal_bytes_max,
            messages: self.messages_max,
        }
    }
}

/// An error if `asked` is more than `max`.
fn limit(what: &'static str, key: &'static str, asked: u64, max: u64) -> Result<()> {
    if asked <= max { Ok(()) } else { Err(Error::RunLimit { what, key, asked, max }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_says_which_setting_raises_it() {
        let config = RunsConfig::default();
        let size = PlanSize { sessions: 1, ..PlanSize::default() };
        config.check_size(&size).unwrap();
        let refused = |size: PlanSize| config.check_size(&size).unwrap_err().to_string();
        for (size, key) in [
            (PlanSize { tables: u64::MAX, ..size }, "runs.tables_max"),
            (PlanSize { rows: u64::MAX, ..size }, "runs.rows_max"),
            (PlanSize { message_bytes: u64::MAX, ..size }, "runs.message_bytes_max"),
            (PlanSize { sessions: 10_001, ..size }, "runs.sessions_max"),
            (PlanSize { statements: u64::MAX, ..size }, "runs.statements_max"),
            (PlanSize { duration_us: Some(u64::MAX), ..size }, "runs.duration_max"),
        ] {
            assert!(refused(size).contains(key), "{key}");
        }
        assert!(config.check_text(&"x".repeat(300 << 10)).unwrap_err().to_string().contains("runs.text_bytes_max"));
        assert!(config.check_points(101).unwrap_err().to_string().contains("runs.sweep_points_max"));
        assert!(config.check_kept(1000).unwrap_err().to_string().contains("runs.kept_max"));
        config.check_kept(999).unwrap();
    }
}
