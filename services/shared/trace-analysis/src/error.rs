//! What can go wrong, each with its place and its remedy.

use std::io;

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A file or stream cannot be read.
    #[error("read {place}: {source}")]
    Read {
        /// Which.
        place: String,
        /// Why.
        source: io::Error,
    },
    /// It is something else.
    #[error("{place}: {what}; give OTLP (JSON lines, one JSON document or protobuf) or what Jaeger's API answers")]
    NoTraces {
        /// Which.
        place: String,
        /// What is there.
        what: String,
    },
    /// One part is larger than what is read at once.
    #[error("{place}: {what} is longer than {max} MiB; let its writer send smaller batches")]
    TooLarge {
        /// Where.
        place: String,
        /// What.
        what: &'static str,
        /// The most that is read at once.
        max: usize,
    },
    /// There is no file in a folder.
    #[error(
        "{0}: no file of traces in this folder (*.jsonl, *.pb, *.binpb, *trace*.json, *span*.json, or these with .zst or .gz); name a file"
    )]
    EmptyFolder(String),
    /// More spans than memory is allowed for.
    #[error(
        "{spans} spans fill the {max_mib} MiB that may be held; give a larger --memory-mib, or --sample 0.1 for a tenth of the traces"
    )]
    TooMany {
        /// How many were read.
        spans: u64,
        /// The most, in MiB.
        max_mib: u64,
    },
    /// An API does not answer as it should.
    #[error("{url}: {what}")]
    Api {
        /// What was asked.
        url: String,
        /// What came.
        what: String,
    },
    /// A file of rules is wrong.
    #[error("{place}: {what}")]
    Rules {
        /// The file.
        place: String,
        /// What is wrong, with its line and the remedy.
        what: String,
    },
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, TraceError>;
