//! The spans of a transaction over time, as lines of a terminal.

use std::collections::BTreeSet;
use std::io::Write;

use trace_analysis::TraceStore;
use trace_analysis::critical_path::Path;
use trace_analysis::skew::TIMELINE_NS;
use trace_analysis::tree::Tree;

use super::columns;
use super::input::ShortNames;
use crate::run::paint::Paint;
use crate::run::text::{count, harmless_cut, nanos};

/// Lines at most; of a trace with more spans those that begin first.
const LINES_MAX: usize = 200;
/// The most that spans are set in.
const DEPTH_MAX: usize = 8;
/// Columns of a span's name.
const LABEL_COLUMNS: usize = 36;
/// Columns before the picture: mark, begin, duration, name and what is between.
const BEFORE_COLUMNS: usize = 2 + 10 + 2 + 9 + 2 + LABEL_COLUMNS + 2;

/// Time from the left edge to the right.
struct Axis {
    /// At the left.
    begin: u64,
    /// At the right, after the left.
    end: u64,
    /// Columns between.
    columns: usize,
}

impl Axis {
    /// A span as columns; at least one is marked.
    fn bar(&self, start: u64, end: u64, mark: char) -> String {
        let column = |at: u64| {
            let along = at.clamp(self.begin, self.end) - self.begin;
            (along as f64 / (self.end - self.begin) as f64 * self.columns as f64) as usize
        };
        let from = column(start).min(self.columns - 1);
        let len = (column(end).saturating_sub(from)).max(1).min(self.columns - from);
        format!("{}{}", " ".repeat(from), mark.to_string().repeat(len))
    }

    /// How far from the left a time is.
    fn offset(&self, at: u64) -> String {
        if at >= self.begin { format!("+{}", nanos(at - self.begin)) } else { format!("−{}", long(self.begin - at)) }
    }
}

/// A time that may be long.
fn long(ns: u64) -> String {
    const DAY_NS: u64 = 86_400_000_000_000;
    if ns >= DAY_NS { format!("{} d", count(ns / DAY_NS)) } else { nanos(ns) }
}

/// Writes the spans of a trace and the batches that carried it.
pub(super) fn write(
    out: &mut dyn Write,
    store: &TraceStore,
    tree: &Tree,
    path: &Path,
    names: ShortNames,
) -> anyhow::Result<()> {
    let paint = Paint::for_stdout();
    let on_path: BTreeSet<u32> = path.spans.iter().copied().collect();
    let carriers = carriers(store, tree, &on_path);
    let mut spans: Vec<u32> = tree.spans().chain(carriers).collect();
    spans.sort_by_key(|span| {
        let record = store.record(*span);
        (record.start, std::cmp::Reverse(record.end), depth(tree, *span))
    });
    let left_out = spans.len().saturating_sub(LINES_MAX);
    spans.truncate(LINES_MAX);
    let axis = axis(store, tree, path);
    for span in spans {
        let record = store.record(span);
        let critical = on_path.contains(&span);
        let indent = "  ".repeat(depth(tree, span));
        let label = harmless_cut(&format!("{indent}{}", names.short(&store.label(record.operation))), LABEL_COLUMNS);
        let bar = axis.bar(record.start, record.end, if critical { '█' } else { '░' });
        let line = format!(
            "{} {:>10}  {:>9}  {label:<LABEL_COLUMNS$}  {bar}",
            if critical { '*' } else { ' ' },
            axis.offset(record.start),
            nanos(record.duration_ns()),
        );
        writeln!(out, "{}", if critical { line } else { paint.dim(&line) })?;
    }
    if left_out > 0 {
        writeln!(out, "  … and {} spans more", count(left_out as u64))?;
    }
    Ok(())
}

/// The batches that carried a transaction, as far as links say so, and those on its path.
fn carriers(store: &TraceStore, tree: &Tree, on_path: &BTreeSet<u32>) -> Vec<u32> {
    let Some(first) = tree.spans().next() else { return Vec::new() };
    let mut carriers: BTreeSet<u32> = store.carriers_of(store.record(first).trace).collect();
    carriers.extend(on_path);
    carriers.into_iter().filter(|span| !tree.has(*span)).collect()
}

/// How many parents a span has above it, up to so many as are set in.
fn depth(tree: &Tree, span: u32) -> usize {
    std::iter::successors(tree.parent(span), |parent| tree.parent(*parent)).take(DEPTH_MAX).count()
}

/// From the begin of the path, or of a span that is near it, to the last end.
fn axis(store: &TraceStore, tree: &Tree, path: &Path) -> Axis {
    let of_trace = || tree.spans().map(|span| store.record(span));
    let end = of_trace().map(|record| record.end).max().unwrap_or(0);
    let first = path.segments.first().map_or(end, |segment| segment.start);
    let near = of_trace().map(|record| record.start).filter(|start| start.abs_diff(first) < TIMELINE_NS);
    let begin = near.min().unwrap_or(first).min(first);
    Axis { begin, end: end.max(begin + 1), columns: columns().saturating_sub(BEFORE_COLUMNS).max(10) }
}
