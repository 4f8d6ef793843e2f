//! Spans as OTLP JSON lines: each line is one `ExportTraceServiceRequest` in OTLP's JSON encoding (ids in hexadecimal, lowerCamel
//! names, 64-bit numbers as text), as OpenTelemetry's file exporter specification has it. Collectors read such files.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_proto::transform::trace::tonic::group_spans_by_resource_and_scope;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SpanData, SpanExporter};

/// A file that several roles of one process write to. Lines are whole: each is appended with one write under a lock, and other
/// processes that append to the same file do not tear them either.
#[derive(Clone, Debug)]
pub struct SpanFile {
    path: PathBuf,
    file: Arc<Mutex<File>>,
}

impl SpanFile {
    /// Opens `path` for appending; a new file is readable by its owner only.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn open(path: &Path) -> io::Result<Self> {
        use std::os::unix::fs::OpenOptionsExt;
        let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
        Ok(Self { path: path.to_owned(), file: Arc::new(Mutex::new(file)) })
    }

    /// Appends one line.
    fn append(&self, line: &[u8]) -> io::Result<()> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner).write_all(line)
    }
}

/// Writes the spans of one role to a [`SpanFile`].
#[derive(Clone, Debug)]
pub(super) struct FileExporter {
    file: SpanFile,
    resource: Arc<ResourceAttributesWithSchema>,
}

impl FileExporter {
    /// An exporter for the role that `resource` describes.
    pub(super) fn new(file: SpanFile, resource: &Resource) -> Self {
        Self { file, resource: Arc::new(resource.into()) }
    }

    /// Encodes and appends.
    fn write(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let failed = |what: String| OTelSdkError::InternalFailure(format!("{}: {what}", self.file.path.display()));
        let request = ExportTraceServiceRequest { resource_spans: group_spans_by_resource_and_scope(batch, &self.resource) };
        let mut line = serde_json::to_vec(&request).map_err(|e| failed(e.to_string()))?;
        line.push(b'\n');
        self.file.append(&line).map_err(|e| failed(e.to_string()))
    }
}

impl SpanExporter for FileExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        // Encoding and writing would hold up a thread that serves streams.
        let exporter = self.clone();
        tokio::task::spawn_blocking(move || exporter.write(batch))
            .await
            .unwrap_or_else(|e| Err(OTelSdkError::InternalFailure(e.to_string())))
    }
}
