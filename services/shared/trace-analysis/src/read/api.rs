//! The APIs of Jaeger and Tempo. What they answer is kept in a temporary file, a line an answer, and read from there like any other file.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::{PART_BYTES_MAX, Source, read_error};
use crate::error::{Result, TraceError};

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How much of an answer that is none is shown.
const SHOWN_BYTES: usize = 80;

/// Which API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Api {
    /// `/api/services`, `/api/traces?service=…`.
    Jaeger,
    /// `/api/search`, `/api/traces/{id}`.
    Tempo,
}

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Query {
    /// Which API.
    pub api: Api,
    /// Where it is: `http://host:16686`.
    pub url: String,
    /// Only traces of this service; all services if none.
    pub service: Option<String>,
    /// Traces at most, of each service.
    pub limit: u32,
}

impl Source {
    /// Asks an API. `progress` is told how many bytes were received.
    ///
    /// # Errors
    /// It cannot be reached, or answers anything else than it should.
    pub fn api(query: &Query, progress: &dyn Fn(u64)) -> Result<Self> {
        let base = query.url.trim_end_matches('/').to_owned();
        if !(base.starts_with("http://") || base.starts_with("https://")) {
            return Err(TraceError::Api {
                url: query.url.clone(),
                what: "is no URL; give one like http://127.0.0.1:16686".to_owned(),
            });
        }
        let file = tempfile::tempfile().map_err(|source| read_error("a temporary file", source))?;
        let mut client = Client { agent: agent(), api: query.api, file, bytes: 0, progress };
        match query.api {
            Api::Jaeger => client.jaeger(&base, query)?,
            Api::Tempo => client.tempo(&base, query)?,
        }
        Ok(Source::spooled(base, client.file))
    }
}

/// A client that needs no default provider of cryptography.
fn agent() -> ureq::Agent {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ureq::tls::TlsConfig::builder()
        .root_certs(ureq::tls::RootCerts::PlatformVerifier)
        .unversioned_rustls_crypto_provider(provider)
        .build();
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .http_status_as_error(false)
        .user_agent("walstorm")
        .tls_config(tls);
    config.build().into()
}

/// Asks, and keeps what is answered.
struct Client<'p> {
    /// Makes connections.
    agent: ureq::Agent,
    /// Which API.
    api: Api,
    /// What was answered.
    file: File,
    /// Bytes so far.
    bytes: u64,
    /// Who is told.
    progress: &'p dyn Fn(u64),
}

/// Jaeger's answer to `/api/services`.
#[derive(Deserialize)]
struct Services {
    /// Their names.
    data: Option<Vec<String>>,
}

/// Tempo's answer to `/api/search`.
#[derive(Deserialize)]
struct Found {
    /// The traces; may be left out if there are none.
    traces: Option<Vec<FoundTrace>>,
    /// How it searched.
    metrics: Option<serde::de::IgnoredAny>,
}

/// A trace that was found.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FoundTrace {
    /// Its id.
    #[serde(rename = "traceID")]
    trace_id: String,
}

impl Client<'_> {
    /// The newest traces of each service. A trace of two services comes twice; its spans are told apart by their ids.
    fn jaeger(&mut self, base: &str, query: &Query) -> Result<()> {
        let services = match &query.service {
            Some(service) => vec![service.clone()],
            None => {
                let url = format!("{base}/api/services");
                let answer = self.get(&url)?;
                self.parse::<Services>(&url, &answer)?.data.unwrap_or_default()
            }
        };
        for service in services {
            let url = format!("{base}/api/traces?service={}&limit={}", escaped(&service), query.limit);
            let answer = self.get(&url)?;
            self.keep(&answer)?;
        }
        Ok(())
    }

    /// The traces that a search finds, one by one.
    fn tempo(&mut self, base: &str, query: &Query) -> Result<()> {
        let tags = query.service.as_ref().map(|service| format!("&tags={}", escaped(&format!("service.name=\"{service}\""))));
        let url = format!("{base}/api/search?limit={}{}", query.limit, tags.unwrap_or_default());
        let answer = self.get(&url)?;
        let found: Found = self.parse(&url, &answer)?;
        if found.traces.is_none() && found.metrics.is_none() {
            return Err(TraceError::Api { url, what: format!("answers something else than a search does; {}", self.remedy()) });
        }
        for trace in found.traces.unwrap_or_default() {
            let answer = self.get(&format!("{base}/api/traces/{}", escaped(&trace.trace_id)))?;
            self.keep(&answer)?;
        }
        Ok(())
    }

    /// Asks for one thing, and gives the answer if it is JSON and not too large.
    fn get(&mut self, url: &str) -> Result<Vec<u8>> {
        let failed = |what: String| TraceError::Api { url: url.to_owned(), what };
        let asked = self.agent.get(url).header("Accept", "application/json").call();
        let answer = asked.map_err(|error| failed(format!("no answer ({error}); is it running, and is this its address?")))?;
        let status = answer.status();
        let mut body = Vec::new();
        let mut reader = answer.into_body().into_reader().take(PART_BYTES_MAX as u64 + 1);
        reader.read_to_end(&mut body).map_err(|error| failed(format!("the answer broke off: {error}; ask again")))?;
        if !status.is_success() {
            let remedy = self.remedy();
            return Err(failed(format!("answers {status}: {}; {remedy}", shown(&body))));
        }
        if body.len() > PART_BYTES_MAX {
            return Err(failed(format!("answers more than {} MiB at once; give a smaller --limit", PART_BYTES_MAX >> 20)));
        }
        if body.trim_ascii_start().first() != Some(&b'{') {
            let remedy = self.remedy();
            return Err(failed(format!("answers no JSON, but {}; {remedy}", shown(&body))));
        }
        self.bytes += body.len() as u64;
        (self.progress)(self.bytes);
        Ok(body)
    }

    /// What to do if something else answers.
    fn remedy(&self) -> &'static str {
        match self.api {
            Api::Jaeger => {
                "give the address of Jaeger's query service, as http://127.0.0.1:16686, with its base path if it has one"
            }
            Api::Tempo => "give the address of Tempo's HTTP API, as http://127.0.0.1:3200",
        }
    }

    /// An answer of which only a part is needed.
    fn parse<T: for<'de> Deserialize<'de>>(&self, url: &str, answer: &[u8]) -> Result<T> {
        let what = |error: serde_json::Error| {
            format!("answers something else than a list of services or traces ({error}); {}", self.remedy())
        };
        serde_json::from_slice(answer).map_err(|error| TraceError::Api { url: url.to_owned(), what: what(error) })
    }

    /// Keeps an answer as one line: line feeds in JSON stand between words only.
    fn keep(&mut self, answer: &[u8]) -> Result<()> {
        let mut line = answer.to_vec();
        line.iter_mut().filter(|byte| **byte == b'\n').for_each(|byte| *byte = b' ');
        line.push(b'\n');
        let kept = self.file.seek(SeekFrom::End(0)).and_then(|_| self.file.write_all(&line));
        kept.map_err(|source| read_error("a temporary file", source))
    }
}

/// The beginning of an answer.
fn shown(body: &[u8]) -> String {
    let start = body.get(..SHOWN_BYTES).unwrap_or(body);
    let text = String::from_utf8_lossy(start).split_whitespace().collect::<Vec<_>>().join(" ");
    let more = if body.len() > SHOWN_BYTES { "…" } else { "" };
    if text.is_empty() { "nothing".to_owned() } else { format!("'{text}{more}'") }
}

/// A part of a URL.
fn escaped(text: &str) -> String {
    let keep = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if keep(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}
