//! Logs: one line an event on standard error, for people on a terminal and as JSON elsewhere.

use std::io::{IsTerminal, Stderr, Write};

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Human on a terminal, JSON otherwise.
    #[default]
    Auto,
    /// For people.
    Human,
    /// One JSON object a line.
    Json,
}

/// Settings of logging.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// How lines look.
    pub format: LogFormat,
    /// Which lines: a level, or directives as `info,service_kit=debug`.
    pub filter: String,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Auto, filter: "info".to_owned() }
    }
}

/// Why logging does not start.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter cannot be read.
    #[error(
        "log.filter '{filter}' is wrong: {source}; write a level (error, warn, info, debug, trace) or directives as info,tonic=warn"
    )]
    Filter {
        /// As configured.
        filter: String,
        /// What is wrong.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Logging was started before.
    #[error("logging is already started in this process")]
    Started,
}

/// Starts logging for the whole process; once. Control characters in messages are escaped.
///
/// # Errors
/// The filter is wrong, or logging was started before.
pub fn init(config: &LogConfig) -> Result<(), LogError> {
    let filter = filter(&config.filter)?;
    let json = match config.format {
        LogFormat::Auto => !std::io::stderr().is_terminal(),
        LogFormat::Human => false,
        LogFormat::Json => true,
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Unfailing(std::io::stderr()));
    let started = if json {
        builder.json().flatten_event(true).with_current_span(false).with_span_list(false).try_init()
    } else {
        builder.with_ansi(std::io::stderr().is_terminal()).try_init()
    };
    started.map_err(|_| LogError::Started)
}

/// Standard error, while somebody reads it. A line that cannot be written is lost: a node whose log nobody reads any more goes on.
struct Unfailing(Stderr);

impl Write for Unfailing {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let _ = self.0.write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let _ = self.0.flush();
        Ok(())
    }
}

/// The filter, parsed strictly.
fn filter(text: &str) -> Result<EnvFilter, LogError> {
    EnvFilter::builder().parse(text).map_err(|source| LogError::Filter { filter: text.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_filters_are_refused_with_a_remedy() {
        assert!(filter("info,service_kit=debug").is_ok());
        let error = filter("info,service_kit=loud").expect_err("no such level");
        assert!(error.to_string().contains("write a level"), "{error}");
    }
}
