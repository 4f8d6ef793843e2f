//! The client's side: a channel that waits for its server, and errors in words for people.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tonic_types::StatusExt;

use crate::drain::Drain;
use crate::printable::printable;
use crate::server::KEEPALIVE_RANGE;
use crate::status::DOMAIN;

/// Settings of a connection to another node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientConfig {
    /// Where the server is, as `http://127.0.0.1:5500`.
    pub endpoint: String,
    /// Limit of one attempt to connect.
    #[serde(with = "humantime_serde")]
    pub connect_timeout: Duration,
    /// How long to go on trying before giving up.
    #[serde(with = "humantime_serde")]
    pub wait_for_ready: Duration,
    /// Pause after the first failed attempt; it doubles with each.
    #[serde(with = "humantime_serde")]
    pub backoff_min: Duration,
    /// Longest pause.
    #[serde(with = "humantime_serde")]
    pub backoff_max: Duration,
    /// Silence after which the connection is pinged.
    #[serde(with = "humantime_serde")]
    pub keepalive_interval: Duration,
    /// Time in which a ping must be answered.
    #[serde(with = "humantime_serde")]
    pub keepalive_timeout: Duration,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            endpoint: "http://127.0.0.1:5500".to_owned(),
            connect_timeout: Duration::from_secs(2),
            wait_for_ready: Duration::from_secs(30),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(2),
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(10),
        }
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The endpoint is no URI that we can use.
    #[error("'{endpoint}' is no endpoint: write http://ADDRESS:PORT")]
    Endpoint {
        /// As configured.
        endpoint: String,
    },
    /// A setting makes no sense.
    #[error("{field} of the connection to {endpoint} must be between 100ms and 1h")]
    Setting {
        /// Where.
        endpoint: String,
        /// The field.
        field: &'static str,
    },
    /// Nobody answered in time.
    #[error("no server at {endpoint} after {attempts} attempts in {waited:?}: {cause}; is it running, and is the port right?")]
    Unreachable {
        /// Where.
        endpoint: String,
        /// How often it was tried.
        attempts: u32,
        /// How long it was tried.
        waited: Duration,
        /// The last attempt's error.
        cause: String,
    },
    /// This node stops before the other one answers.
    #[error("stopped while connecting to {endpoint}")]
    Stopped {
        /// Where.
        endpoint: String,
    },
}

/// Pauses that double from a minimum to a maximum.
#[derive(Clone, Debug)]
pub struct Backoff {
    next: Duration,
    max: Duration,
}

impl Backoff {
    /// Starts at `min`.
    #[must_use]
    pub fn new(min: Duration, max: Duration) -> Self {
        Self { next: min.min(max), max }
    }

    /// The next pause.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.next;
        self.next = self.next.saturating_mul(2).min(self.max);
        delay
    }
}

/// The endpoint of `config` with keepalive and limits set; not connected.
///
/// # Errors
/// The endpoint is no http URI, or a setting makes no sense.
pub fn endpoint(config: &ClientConfig) -> Result<Endpoint, ConnectError> {
    let bad = || ConnectError::Endpoint { endpoint: printable(&config.endpoint).into_owned() };
    let endpoint = Endpoint::from_shared(config.endpoint.clone()).map_err(|_| bad())?;
    let uri = endpoint.uri();
    if uri.scheme_str() != Some("http") || uri.port().is_none() {
        return Err(bad());
    }
    let times = [
        ("connect_timeout", config.connect_timeout),
        ("keepalive_interval", config.keepalive_interval),
        ("keepalive_timeout", config.keepalive_timeout),
    ];
    if let Some((field, _)) = times.into_iter().find(|(_, time)| !KEEPALIVE_RANGE.contains(time)) {
        return Err(ConnectError::Setting { endpoint: config.endpoint.clone(), field });
    }
    Ok(endpoint
        .connect_timeout(config.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(config.keepalive_interval)
        .keep_alive_timeout(config.keepalive_timeout)
        .keep_alive_while_idle(true))
}

/// Connects, and tries again with growing pauses until the server answers, `config.wait_for_ready` is over, or this node stops.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect(config: &ClientConfig, drain: &Drain) -> Result<Channel, ConnectError> {
    let target = endpoint(config)?;
    let name = || config.endpoint.clone();
    let mut backoff = Backoff::new(config.backoff_min, config.backoff_max);
    let start = tokio::time::Instant::now();
    let mut attempts = 0;
    loop {
        attempts += 1;
        let attempt = tokio::select! {
            attempt = target.connect() => attempt,
            () = drain.draining() => return Err(ConnectError::Stopped { endpoint: name() }),
        };
        let error = match attempt {
            Ok(channel) => return Ok(channel),
            Err(error) => error,
        };
        let delay = backoff.next_delay();
        if start.elapsed().saturating_add(delay) >= config.wait_for_ready {
            let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            return Err(ConnectError::Unreachable { endpoint: name(), attempts, waited: start.elapsed(), cause });
        }
        tracing::debug!(endpoint = %config.endpoint, attempts, ?delay, "not reachable yet");
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = drain.draining() => return Err(ConnectError::Stopped { endpoint: name() }),
        }
    }
}

/// A status with its details in one line for people. The text comes from outside and is made harmless.
#[must_use]
pub fn describe(status: &Status) -> String {
    let details = status.get_error_details();
    let mut facts = vec![format!("{:?}", status.code())];
    if let Some(info) = details.error_info() {
        let foreign = if info.domain == DOMAIN { String::new() } else { format!(" of {}", info.domain) };
        facts.push(format!("{}{foreign}", info.reason));
        let mut metadata: Vec<_> = info.metadata.iter().map(|(k, v)| format!("{k}={v}")).collect();
        metadata.sort();
        facts.extend(metadata);
    }
    if let Some(resource) = details.resource_info()
        && !resource.owner.is_empty()
    {
        facts.push(format!("{} held by {}", resource.resource_name, resource.owner));
    }
    if let Some(request) = details.bad_request() {
        facts.extend(request.field_violations.iter().map(|v| format!("field {}: {}", v.field, v.description)));
    }
    if let Some(quota) = details.quota_failure() {
        facts.extend(quota.violations.iter().map(|v| format!("limit of {}: {}", v.subject, v.description)));
    }
    if let Some(delay) = details.retry_info().and_then(|r| r.retry_delay) {
        facts.push(format!("try again after {delay:?}"));
    }
    let message = if status.message().is_empty() { "no message" } else { status.message() };
    printable(&format!("{message} ({})", facts.join(", "))).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Reason, failure, invalid_field};

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(350));
        let delays: Vec<_> = (0..4).map(|_| backoff.next_delay().as_millis()).collect();
        assert_eq!(delays, [100, 200, 350, 350]);
    }

    #[test]
    fn endpoints_must_be_http_with_a_port() {
        for bad in ["", "127.0.0.1:80", "https://h:1", "http://h", "http://", "unix:///x", "http://h:99999"] {
            let config = ClientConfig { endpoint: bad.to_owned(), ..ClientConfig::default() };
            assert!(matches!(endpoint(&config), Err(ConnectError::Endpoint { .. })), "{bad}");
        }
        assert!(endpoint(&ClientConfig::default()).is_ok());
    }

    #[test]
    fn times_that_make_no_sense_are_named() {
        for bad in [Duration::ZERO, Duration::MAX] {
            let config = ClientConfig { keepalive_interval: bad, ..ClientConfig::default() };
            let error = endpoint(&config).expect_err("no sense").to_string();
            assert!(error.starts_with("keepalive_interval of the connection to http://"), "{error}");
        }
    }

    #[test]
    fn a_status_becomes_one_harmless_line() {
        let status = failure(Reason::SlotActive, "slot slots/o is in use")
            .metadata("holder", "evil\u{1b}[2J\nname")
            .resource("slot", "slots/o", "reader")
            .retry_after(Duration::from_secs(1))
            .into_status();
        assert_eq!(
            describe(&status),
            "slot slots/o is in use (FailedPrecondition, SLOT_ACTIVE, holder=evil\\u{1b}[2J\\nname, slots/o held by reader, \
             try again after 1s)"
        );
        let status = invalid_field("start.max_outstanding_bytes", "must be greater than 0").into_status();
        assert_eq!(
            describe(&status),
            "start.max_outstanding_bytes: must be greater than 0 (InvalidArgument, REQUEST_INVALID, \
             field start.max_outstanding_bytes: must be greater than 0)"
        );
        assert_eq!(describe(&Status::unavailable("")), "no message (Unavailable)");
    }
}
