//! Spans from a store with Jaeger's query API.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, ensure};
use serde_json::Value;

/// One span, as far as tests ask.
#[derive(Debug)]
pub struct Span {
    /// Its trace.
    pub trace: String,
    /// `service.name`.
    pub service: String,
    /// Name.
    pub name: String,
    /// Its kind, as `producer`; empty if the store does not tell.
    pub kind: String,
    /// Its parent.
    pub parent: Option<String>,
    /// The spans that it links to.
    pub links: Vec<String>,
}

/// Sends a request to the store at `url` and gives status line and body.
///
/// # Errors
/// It does not answer.
pub fn ask(url: &str, request: &str, headers: &str, body: &[u8]) -> anyhow::Result<(String, Vec<u8>)> {
    let host = url.strip_prefix("http://").context("an address")?.trim_end_matches('/');
    let mut stream = TcpStream::connect(host).with_context(|| format!("connect to {host}"))?;
    write!(stream, "{request} HTTP/1.0\r\nhost: {host}\r\ncontent-length: {}\r\n{headers}\r\n", body.len())?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let at = answer.windows(4).position(|end| end == b"\r\n\r\n").context("an answer without an end of its head")?;
    let body = answer.split_off(at + 4);
    let head = String::from_utf8(answer)?;
    Ok((head.lines().next().unwrap_or_default().to_owned(), body))
}

/// Asks the query API.
///
/// # Errors
/// It does not answer with JSON.
pub fn get(url: &str, path: &str) -> anyhow::Result<Value> {
    let (status, body) = ask(url, &format!("GET /api/{path}"), "", b"")?;
    ensure!(status.ends_with("200 OK"), "{path}: {status}");
    Ok(serde_json::from_slice(&body)?)
}

/// All spans of all whole traces, by their ids.
///
/// # Errors
/// The store does not answer, or has a span twice.
pub fn spans(url: &str) -> anyhow::Result<BTreeMap<String, Span>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let mut all = BTreeMap::new();
    for trace in list(&get(url, "traces?limit=100000")?["data"]) {
        for span in list(&trace["spans"]) {
            let references = list(&span["references"]);
            let of =
                |kind: &str| references.iter().filter(|r| r["refType"] == kind).map(|r| text(&r["spanID"])).collect::<Vec<_>>();
            let kind = list(&span["tags"]).iter().find(|tag| tag["key"] == "span.kind").map(|tag| text(&tag["value"]));
            let found = Span {
                trace: text(&span["traceID"]),
                service: text(&trace["processes"][text(&span["processID"])]["serviceName"]),
                name: text(&span["operationName"]),
                kind: kind.unwrap_or_default(),
                parent: of("CHILD_OF").pop(),
                links: of("FOLLOWS_FROM"),
            };
            let twice = all.insert(text(&span["spanID"]), found);
            ensure!(twice.is_none(), "{twice:?} is there twice");
        }
    }
    Ok(all)
}

/// How many spans of a service have a name.
#[must_use]
pub fn count(spans: &BTreeMap<String, Span>, service: &str, name: &str) -> usize {
    spans.values().filter(|span| span.service == service && span.name == name).count()
}
