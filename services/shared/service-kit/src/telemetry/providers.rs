//! Where spans go, and who says they come from: one provider per role.

use std::path::PathBuf;
use std::time::Duration;

use opentelemetry::InstrumentationScope;
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::trace::SpanExporter as _;

use super::otlp_file::{FileExporter, SpanFile};
use super::queue::{Batching, Exporting, SpanCounts};
use super::resource::resource;
use super::spans::Tracer;
use super::{Protocol, TelemetryConfig};
use crate::printable::printable;

/// The variables that OpenTelemetry defines for the endpoint, the specific one first.
const ENDPOINT_VARIABLES: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

/// Where a collector takes traces over HTTP.
const TRACES_PATH: &str = "/v1/traces";

/// Who makes the spans.
#[derive(Clone, Debug)]
pub struct Role {
    /// `service.name`, as `walstorm-decoder`.
    pub service_name: String,
    /// `service.instance.id`: tells two nodes of one role apart.
    pub instance_id: String,
}

/// Where spans go.
#[derive(Clone, Debug)]
pub enum Export {
    /// To a collector.
    Collector {
        /// Its endpoint; for HTTP with the path.
        endpoint: String,
        /// How.
        protocol: Protocol,
    },
    /// To a file, OTLP JSON lines.
    File(SpanFile),
    /// Nowhere: no span is made.
    Off,
}

/// Why tracing does not start.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The collector's endpoint is wrong.
    #[error(
        "traces cannot be sent to '{endpoint}': {reason}; the endpoint of an OTLP collector looks like http://127.0.0.1:4317"
    )]
    Endpoint {
        /// As configured.
        endpoint: String,
        /// What is wrong.
        reason: String,
    },
    /// The file cannot be opened.
    #[error("traces cannot be written to {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// Spans are exported by a task, which needs a runtime.
    #[error("tracing must be started within a tokio runtime")]
    NoRuntime,
}

/// Where spans go by `config` and the process's environment `var`: its endpoint, OpenTelemetry's variables, its file, nowhere.
///
/// # Errors
/// The file cannot be opened.
pub fn choose_export(config: &TelemetryConfig, var: impl Fn(&str) -> Option<String>) -> Result<Export, TelemetryError> {
    if !config.enabled {
        return Ok(Export::Off);
    }
    let variable = |name| var(name).filter(|value| !value.is_empty());
    let [of_traces, of_all] = ENDPOINT_VARIABLES;
    // That of traces alone is taken as it is, as the specification has it; the others are of all signals, and over HTTP each has its path.
    let base = |endpoint: String| match config.protocol {
        Protocol::Grpc => endpoint,
        Protocol::HttpProtobuf => format!("{}{TRACES_PATH}", endpoint.trim_end_matches('/')),
    };
    let configured = config.endpoint.clone().map(base);
    let endpoint = configured.or_else(|| variable(of_traces)).or_else(|| variable(of_all).map(base));
    if let Some(endpoint) = endpoint {
        return Ok(Export::Collector { endpoint, protocol: config.protocol });
    }
    let Some(path) = &config.file else { return Ok(Export::Off) };
    match SpanFile::open(path) {
        Ok(file) => Ok(Export::File(file)),
        Err(source) => Err(TelemetryError::File { path: path.clone(), source }),
    }
}

/// Starts tracing for one role: a tracer to hand out, and the guard that exports the rest when the role stops.
///
/// # Errors
/// The endpoint is wrong, or there is no runtime. A collector that does not answer is no error: spans are counted and lost.
pub fn start(role: &Role, config: &TelemetryConfig, export: Export) -> Result<(Tracer, Guard), TelemetryError> {
    if tokio::runtime::Handle::try_current().is_err() {
        return Err(TelemetryError::NoRuntime);
    }
    let service_name = config.service_name.clone().unwrap_or_else(|| role.service_name.clone());
    let resource = resource(&Role { service_name, ..role.clone() });
    let batching =
        Batching { queue_spans: config.queue_spans, batch_spans: config.batch_spans, interval: config.export_interval };
    let (queue, exporting) = match export {
        Export::Off => return Ok((Tracer::off(), Guard { exporting: None, limit: Duration::ZERO })),
        Export::File(file) => Exporting::start(FileExporter::new(file, &resource), batching),
        Export::Collector { endpoint, protocol } => {
            check_endpoint(&endpoint)?;
            let builder = opentelemetry_otlp::SpanExporter::builder();
            let built = match protocol {
                Protocol::Grpc => builder.with_tonic().with_endpoint(&endpoint).build(),
                Protocol::HttpProtobuf => builder.with_http().with_endpoint(&endpoint).build(),
            };
            let mut exporter = built.map_err(|e| TelemetryError::Endpoint { endpoint, reason: e.to_string() })?;
            exporter.set_resource(&resource);
            Exporting::start(exporter, batching)
        }
    };
    let scope = InstrumentationScope::builder("walstorm").with_version(env!("CARGO_PKG_VERSION")).build();
    Ok((Tracer::new(queue, scope), Guard { exporting: Some(exporting), limit: config.shutdown_timeout }))
}

/// That an endpoint can be one: the exporter takes any text, and its spans would be lost without a word.
fn check_endpoint(endpoint: &str) -> Result<(), TelemetryError> {
    let uri = endpoint.parse::<tonic::transport::Uri>().ok();
    match uri.filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some()) {
        Some(_) => Ok(()),
        None => {
            let reason = "it must be http://HOST:PORT or https://HOST:PORT".to_owned();
            Err(TelemetryError::Endpoint { endpoint: printable(endpoint).into_owned(), reason })
        }
    }
}

/// Keeps the export of one role going. Without [`Guard::shutdown`] the last spans may be lost.
#[derive(Debug)]
#[must_use = "spans that wait when it is dropped may be lost"]
pub struct Guard {
    exporting: Option<Exporting>,
    limit: Duration,
}

impl Guard {
    /// Exports the waiting spans, for at most the configured time, and says what became of all.
    pub async fn shutdown(self) -> SpanCounts {
        let Some(exporting) = self.exporting else { return SpanCounts::default() };
        let counts = exporting.finish(self.limit).await;
        if counts.dropped + counts.failed > 0 {
            tracing::warn!(?counts, "not all spans were exported");
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_no_collector_is_refused_before_a_span_is_lost() {
        for good in ["http://127.0.0.1:4317", "https://collector", "http://[::1]:4317/"] {
            assert!(check_endpoint(good).is_ok(), "{good}");
        }
        for bad in ["nonsense", "127.0.0.1:4317", "ftp://collector:4317", "http://", "", "http://a b"] {
            let error = check_endpoint(bad).unwrap_err().to_string();
            assert!(error.contains("http://127.0.0.1:4317"), "{error}");
        }
    }

    #[test]
    fn the_configured_endpoint_comes_first_then_the_variables_then_the_file() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("traces.jsonl");
        let config = |endpoint: Option<&str>| TelemetryConfig {
            endpoint: endpoint.map(str::to_owned),
            file: Some(path.clone()),
            ..TelemetryConfig::default()
        };
        let collector = |export| match export {
            Ok(Export::Collector { endpoint, .. }) => endpoint,
            other => panic!("{other:?}"),
        };
        let both = |name: &str| Some(format!("http://{name}:1"));
        let general = |name: &str| (name == ENDPOINT_VARIABLES[1]).then(|| "http://general:1".to_owned());
        assert_eq!(collector(choose_export(&config(Some("http://mine:1")), both)), "http://mine:1");
        assert_eq!(collector(choose_export(&config(None), both)), format!("http://{}:1", ENDPOINT_VARIABLES[0]));
        assert_eq!(collector(choose_export(&config(None), general)), "http://general:1");
        assert!(!path.exists());
        let off = TelemetryConfig { enabled: false, ..config(Some("http://mine:1")) };
        assert!(matches!(choose_export(&off, both), Ok(Export::Off)));
        // Over HTTP all but that of traces are bases, to which the path is added.
        let http = |endpoint| TelemetryConfig { protocol: Protocol::HttpProtobuf, ..config(endpoint) };
        assert_eq!(collector(choose_export(&http(Some("http://mine:1/")), both)), "http://mine:1/v1/traces");
        assert_eq!(collector(choose_export(&http(None), general)), "http://general:1/v1/traces");
        assert_eq!(collector(choose_export(&http(None), both)), format!("http://{}:1", ENDPOINT_VARIABLES[0]));
        assert!(!path.exists());
        assert!(matches!(choose_export(&config(None), |_| Some(String::new())), Ok(Export::File(_))));
        assert!(path.exists());
        assert!(matches!(choose_export(&TelemetryConfig::default(), |_| None), Ok(Export::Off)));
    }

    #[test]
    fn without_a_runtime_tracing_does_not_start() {
        let role = Role { service_name: "x".to_owned(), instance_id: "0".to_owned() };
        assert!(matches!(start(&role, &TelemetryConfig::default(), Export::Off), Err(TelemetryError::NoRuntime)));
    }

    #[tokio::test]
    async fn a_wrong_endpoint_is_named() {
        let role = Role { service_name: "x".to_owned(), instance_id: "0".to_owned() };
        let export = Export::Collector { endpoint: "not a uri".to_owned(), protocol: Protocol::Grpc };
        let error = start(&role, &TelemetryConfig::default(), export).expect_err("wrong").to_string();
        assert!(error.contains("'not a uri'") && error.contains("http://127.0.0.1:4317"), "{error}");
    }
}
