//! Where spans go, and who says they come from: one provider per role.

use std::path::PathBuf;
use std::time::Duration;

use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SpanExporter as _;

use super::TelemetryConfig;
use super::otlp_file::{FileExporter, SpanFile};
use super::queue::{Batching, Exporting, SpanCounts};
use super::spans::Tracer;
use crate::printable::printable;

/// The variables that OpenTelemetry defines for the endpoint, the specific one first.
const ENDPOINT_VARIABLES: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

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
    /// To a collector, OTLP over gRPC.
    Collector {
        /// Its endpoint.
        endpoint: String,
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
    let from_variables = || ENDPOINT_VARIABLES.iter().filter_map(|name| var(name)).find(|value| !value.is_empty());
    if let Some(endpoint) = config.endpoint.clone().or_else(from_variables) {
        return Ok(Export::Collector { endpoint });
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
    let resource = resource(role);
    let batching =
        Batching { queue_spans: config.queue_spans, batch_spans: config.batch_spans, interval: config.export_interval };
    let (queue, exporting) = match export {
        Export::Off => return Ok((Tracer::off(), Guard { exporting: None, limit: Duration::ZERO })),
        Export::File(file) => Exporting::start(FileExporter::new(file, &resource), batching),
        Export::Collector { endpoint } => {
            check_endpoint(&endpoint)?;
            let built = opentelemetry_otlp::SpanExporter::builder().with_tonic().with_endpoint(&endpoint).build();
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

/// What describes a role: its own facts over those of OTEL_RESOURCE_ATTRIBUTES.
fn resource(role: &Role) -> Resource {
    Resource::builder()
        .with_service_name(role.service_name.clone())
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("service.instance.id", role.instance_id.clone()))
        .build()
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
            Ok(Export::Collector { endpoint }) => endpoint,
            other => panic!("{other:?}"),
        };
        let both = |name: &str| Some(format!("http://{name}:1"));
        let general = |name: &str| (name == ENDPOINT_VARIABLES[1]).then(|| "http://general:1".to_owned());
        assert_eq!(collector(choose_export(&config(Some("http://mine:1")), both)), "http://mine:1");
        assert_eq!(collector(choose_export(&config(None), both)), format!("http://{}:1", ENDPOINT_VARIABLES[0]));
        assert_eq!(collector(choose_export(&config(None), general)), "http://general:1");
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
        let export = Export::Collector { endpoint: "not a uri".to_owned() };
        let error = start(&role, &TelemetryConfig::default(), export).expect_err("wrong").to_string();
        assert!(error.contains("'not a uri'") && error.contains("http://127.0.0.1:4317"), "{error}");
    }
}
