//! What a transaction went through, in words: what the nodes' attributes say, as far as they are there.

use std::io::Write;
use std::time::{Duration, UNIX_EPOCH};

use trace_analysis::critical_path::Path;
use trace_analysis::skew::TIMELINE_NS;
use trace_analysis::stages::by_stage;
use trace_analysis::store::{Record, STATUS};
use trace_analysis::tree::Tree;
use trace_analysis::{TraceStore, Value};

use super::columns;
use super::input::ShortNames;
use crate::run::text::{count, nanos, percent, wrapped};

/// Sentences at most.
const SENTENCES_MAX: usize = 40;
/// Stages that are named as where the time went.
const STAGES_NAMED: usize = 3;

/// A span with what its attributes say.
#[derive(Clone, Copy)]
struct Told<'s> {
    /// All spans.
    store: &'s TraceStore,
    /// The span.
    record: &'s Record,
}

impl<'s> Told<'s> {
    /// A text.
    fn text(self, key: &str) -> Option<String> {
        self.store.value(self.record, key).map(|value| service_kit::printable(&value.to_string()).into_owned())
    }

    /// A count.
    fn number(self, key: &str) -> Option<u64> {
        match self.store.value(self.record, key)? {
            Value::Int(n) => u64::try_from(n).ok(),
            _ => None,
        }
    }

    /// `3 changes`, `1 change`; nothing if it has no such attribute, or if that is 0.
    fn counted(self, key: &str, one: &str, many: &str) -> Option<String> {
        let n = self.number(key).filter(|n| *n > 0)?;
        Some(format!("{} {}", count(n), if n == 1 { one } else { many }))
    }

    /// Its name.
    fn name(self) -> &'s str {
        self.store.name(self.record)
    }
}

/// What the trace is of.
pub(super) fn title(store: &TraceStore, tree: &Tree) -> String {
    let told = || tree.spans().map(|span| Told { store, record: store.record(span) });
    let xid = told().find_map(|span| span.text("walstorm.xid"));
    let commit = told().find_map(|span| span.text("walstorm.commit_lsn"));
    match (xid, commit) {
        (Some(xid), Some(commit)) => format!("Transaction {xid}, commit at {commit}"),
        (Some(xid), None) => format!("Transaction {xid}"),
        (None, _) => {
            let root = tree.first_root(store).map(|root| store.label(store.record(root).operation));
            service_kit::printable(&root.unwrap_or_default()).into_owned()
        }
    }
}

/// Writes the story.
pub(super) fn write(
    out: &mut dyn Write,
    store: &TraceStore,
    tree: &Tree,
    path: &Path,
    names: ShortNames,
) -> anyhow::Result<()> {
    let mut spans: Vec<u32> = tree.spans().collect();
    spans.sort_by_key(|span| (store.record(*span).start, *span));
    let told = |span: u32| Told { store, record: store.record(span) };
    let commit = spans.iter().map(|span| told(*span)).find(|span| span.name() == "transaction");
    let mut sentences: Vec<String> = Vec::new();
    for span in spans.into_iter().filter(|span| tree.parent(*span).is_none_or(|parent| tree.parent(parent).is_none())) {
        sentences.extend(sentence(told(span), commit, names));
        if let Some(why) = told(span).text(STATUS) {
            sentences.push(format!("{} failed: {why}.", names.short(&store.label(store.record(span).operation))));
        }
    }
    for span in path.spans.iter().rev().filter(|span| !tree.has(**span)) {
        sentences.extend(batch(told(*span), names));
    }
    sentences.extend(where_time_went(store, path, names));
    sentences.truncate(SENTENCES_MAX);
    for sentence in sentences {
        writeln!(out, "{}", wrapped(&sentence, columns()))?;
    }
    Ok(())
}

/// What one span of the trace says.
fn sentence(span: Told<'_>, commit: Option<Told<'_>>, names: ShortNames) -> Option<String> {
    let service = names.short(&service_kit::printable(span.store.service(span.record)));
    let since = commit.map(|commit| span.record.start.abs_diff(commit.record.end)).filter(|ns| *ns <= TIMELINE_NS);
    let since = since.map_or(String::new(), |ns| format!(" {} after its commit", nanos(ns)));
    let took = nanos(span.record.duration_ns());
    let parts: Vec<String> = match span.name() {
        "transaction" => {
            let time = humantime::format_rfc3339_micros(UNIX_EPOCH + Duration::from_nanos(span.record.end));
            let parts = [
                Some(format!("It committed on {service} at {time}")),
                span.counted("walstorm.messages", "invalidation message", "invalidation messages").map(|n| format!("with {n}")),
                span.counted("walstorm.subxids", "subtransaction", "subtransactions"),
                span.text("walstorm.application_trace").map(|_| "in a trace that the application began".to_owned()),
                span.text("walstorm.marked").map(|_| "traced because of what it costs".to_owned()),
            ];
            parts.into_iter().flatten().collect()
        }
        "decode transaction" => {
            let executed = span.number("walstorm.messages_executed");
            let parts = [
                Some(format!("The {service} began to decode it{since} and took {took}")),
                span.counted("walstorm.changes", "change", "changes"),
                span.counted("walstorm.messages", "invalidation message", "invalidation messages"),
                executed.filter(|n| *n > 0).map(|n| format!("{} of them executed", count(n))),
                span.text("walstorm.profile").map(|profile| format!("under profile {profile}")),
                span.number("walstorm.cpu_ns").map(|ns| format!("{} of CPU time", nanos(ns))),
            ];
            parts.into_iter().flatten().collect()
        }
        "apply" => vec![format!("The {service} replayed its end{since}, in {took}")],
        name => vec![format!("{service}: {}{since}, for {took}", service_kit::printable(name))],
    };
    Some(format!("{}.", parts.join(", ")))
}

/// What a batch on the path says.
fn batch(span: Told<'_>, names: ShortNames) -> Option<String> {
    let transactions = span.number("walstorm.transactions")?;
    let service = names.short(&service_kit::printable(span.store.service(span.record)));
    let alone = match transactions {
        0 | 1 => "alone".to_owned(),
        2 => "with 1 other".to_owned(),
        n => format!("with {} others", count(n - 1)),
    };
    let what = match span.name() {
        "send wal" => format!("The {service} sent it {alone} in a batch"),
        "process wal" => {
            format!("The {service} took {} for the batch in which it came {alone}", nanos(span.record.duration_ns()))
        }
        name => format!("{service}: {} carried it {alone}", service_kit::printable(name)),
    };
    let parts = [
        Some(what),
        span.counted("walstorm.records", "record", "records"),
        span.number("walstorm.bytes").map(|n| format!("{} bytes", count(n))),
        span.number("walstorm.credit_wait_ns").filter(|ns| *ns > 0).map(|ns| format!("which waited {} to be sent", nanos(ns))),
    ];
    Some(format!("{}.", parts.into_iter().flatten().collect::<Vec<_>>().join(", ")))
}

/// The largest stages.
fn where_time_went(store: &TraceStore, path: &Path, names: ShortNames) -> Option<String> {
    let mut stages = by_stage(path);
    stages.sort_by_key(|(stage, ns)| (std::cmp::Reverse(*ns), *stage));
    let total = path.total_ns();
    let stages: Vec<String> = stages
        .iter()
        .take(STAGES_NAMED)
        .map(|(stage, ns)| format!("{} ({}, {})", names.short(&stage.label(store)), nanos(*ns), percent(*ns, total)))
        .collect();
    let begin = if path.replayed { "From the batch's sending" } else { "From the first to the last moment" };
    (!stages.is_empty()).then(|| format!("{begin} it took {}, most of it: {}.", nanos(total), stages.join(", ")))
}
