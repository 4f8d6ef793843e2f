//! One JSON object a line: what the tables show, and all that they leave out.

use serde::Serialize;
use serde_json::{Value, json};

use crate::run::report::{Report, SourceReport, SourceTimings, Timings};

/// The report as lines.
///
/// # Errors
/// A value cannot be written as JSON; that is a defect.
pub fn json(report: &Report, timings: &Timings) -> serde_json::Result<String> {
    let mut text = String::new();
    for (source, timed) in report.sources.iter().zip(&timings.sources) {
        for line in lines(source, timed)? {
            text.push_str(&serde_json::to_string(&line)?);
            text.push('\n');
        }
    }
    Ok(text)
}

/// The lines of one source.
fn lines(source: &SourceReport, timed: &SourceTimings) -> serde_json::Result<Vec<Value>> {
    let name = &source.source;
    let mut lines = vec![json!({
        "kind": "source",
        "source": name,
        "consumer": source.consumer,
        "about": source.about,
        "seed": source.seed,
        "parameters": source.parameters,
        "scale": source.scale,
        "version": source.wal.version,
        "records": source.wal.records,
        "bytes": source.wal.bytes,
        "commits": source.wal.commits,
        "aborts": source.wal.aborts,
        "messages": source.wal.messages,
        "decoded": source.pipeline.transactions_decoded,
        "before_commit": source.pipeline.before_commit,
        "replayed": source.pipeline.transactions_replayed,
        "stopped": source.pipeline.stopped,
        "missing_publications": source.missing_publications,
        "pipeline_wall_ns": timed.pipeline_wall_ns,
    })];
    for (i, transaction) in source.costliest.iter().enumerate() {
        lines.push(object("transaction", name, transaction, &[("consumer", json!(source.consumer)), ("rank", json!(i + 1))])?);
    }
    for (profile, measured) in source.decoder_profiles.iter().zip(&timed.decoder_profiles) {
        let measured = [("cpu_ns", json!(measured.functions_cpu_ns)), ("wall_ns", json!(measured.wall_ns))];
        lines.push(object("decoder", name, profile, &measured)?);
    }
    for (profile, measured) in source.standby_profiles.iter().zip(&timed.standby_profiles) {
        let (snapshots, replay) = (json!(measured.snapshot_cpu_ns), json!(measured.replay_cpu_ns));
        lines.push(object("standby", name, profile, &[("snapshot_cpu_ns", snapshots), ("replay_cpu_ns", replay)])?);
    }
    Ok(lines)
}

/// An object with its kind and source before its own keys, and `more` after them.
fn object(kind: &str, source: &str, value: &impl Serialize, more: &[(&str, Value)]) -> serde_json::Result<Value> {
    let mut object = json!({ "kind": kind, "source": source });
    if let (Value::Object(object), Value::Object(fields)) = (&mut object, serde_json::to_value(value)?) {
        object.extend(fields);
        object.extend(more.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    }
    Ok(object)
}
