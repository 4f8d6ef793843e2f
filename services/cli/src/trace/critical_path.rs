//! `walstorm trace critical-path`: shares of stages over all transactions, or the path of one.

use std::io::Write;
use std::process::ExitCode;

use serde_json::{Value as Json, json};
use trace_analysis::critical_path::{Path, Stage, Walker};
use trace_analysis::stages::{PathCounts, PathOptions, QUANTILES, Stages, Times};
use trace_analysis::tree::Tree;
use trace_analysis::{TraceId, TraceStore, explain, skew};

use super::columns;
use super::input::{HoldArgs, Input, InputArgs, ShortNames, tell_report, tell_shifts};
use crate::notes::note;
use crate::run::paint::{Column, Paint, Text, Tone, bar, table};
use crate::run::text::{count, harmless_cut, nanos, percent};

/// Name of the spans that open a transaction's trace.
const TRANSACTION: &str = "transaction";

/// Arguments of `walstorm trace critical-path`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = AFTER_HELP)]
pub(super) struct Args {
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    hold: HoldArgs,
    #[command(flatten)]
    paths: PathArgs,
    /// Only this trace, part by part.
    #[arg(long, value_name = "ID")]
    trace: Option<TraceId>,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// Which paths are walked.
#[derive(Debug, clap::Args)]
pub(super) struct PathArgs {
    /// Only traces with a span of this name; default: transaction if there are such spans, else all.
    #[arg(long, value_name = "NAME")]
    root: Option<String>,
    /// Up to the last span of this service, as walstorm-decoder; default: to the last span of all.
    #[arg(long, value_name = "SERVICE")]
    to: Option<String>,
}

/// What the help adds.
const AFTER_HELP: &str = "\
The path is walked back from the end of a trace's last span: inside a span through the child that ends last, at its begin to what led to
it: its parent, what it links to, or the batch of the same node that links to the trace and was running then (of a batch that left links
out, the only one that was running). The time between is a stage of its own, \"waiting for\" the later span. Attributes that end in
_wait_ns are stages too. More than a minute between two steps is a log that was replayed with its own times: the path begins behind it.
The stages of a path share out its length exactly.

With --json: transactions, total and stages; of each stage kind (own, wait, waiting_for), service, span, count, share, sum_ns, p50_ns,
p95_ns, p99_ns, max_ns, and bands: its share among transactions up to the median, to p95, to p99, and above.";

impl PathArgs {
    /// The options for a store.
    pub(super) fn options(&self, store: &TraceStore) -> anyhow::Result<PathOptions> {
        let services = store.services();
        if let Some(to) = self.to.as_ref().filter(|to| !services.contains(&to.as_str())) {
            anyhow::bail!("--to {to}: no span is of this service; there are {}", services.join(", "));
        }
        let has = |name: &str| store.records().iter().any(|record| store.name(record) == name);
        if let Some(root) = self.root.as_ref().filter(|root| !has(root)) {
            anyhow::bail!("--root {root}: no span has this name; `walstorm trace top` shows names");
        }
        let root = self.root.clone().or_else(|| has(TRANSACTION).then(|| TRANSACTION.to_owned()));
        Ok(PathOptions { root, to: self.to.clone() })
    }
}

/// Runs the command.
pub(super) fn run(args: &Args, out: &mut dyn Write, notes: &mut dyn Write) -> anyhow::Result<ExitCode> {
    if let Some(trace) = args.trace {
        return one(args, trace, out, notes);
    }
    let store = args.input.open(false)?.store(&args.hold, &[], notes)?;
    let stages = Stages::of(&store, &args.paths.options(&store)?, &mut |_, _| ());
    tell_counts(&stages.counts, notes);
    if args.json {
        writeln!(out, "{}", to_json(&store, &stages))?;
    } else {
        write_tables(out, &store, &stages)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Says what paths went by.
pub(super) fn tell_counts(counts: &PathCounts, notes: &mut dyn Write) {
    let remarks = [
        (counts.others, "traces have no span where a path begins or ends: left out"),
        (counts.replayed, "paths begin behind the commit: the log was replayed, its times are over a minute from the nodes'"),
        (counts.joined, "paths go through a batch that was found by time, since it had left links out"),
        (counts.negative_gaps, "gaps were negative, and count as 0"),
        (counts.cycles, "paths came back to where they had been, and end there"),
    ];
    for (n, what) in remarks.iter().filter(|(n, _)| *n > 0) {
        note(notes, format!("{} {what}", count(*n)));
    }
}

/// The tables for people.
fn write_tables(out: &mut dyn Write, store: &TraceStore, stages: &Stages) -> anyhow::Result<()> {
    let (paint, names) = (Paint::for_stdout(), ShortNames::of(store));
    let (rows, total) = (stages.rows(), &stages.total);
    let transactions = count(stages.counts.transactions);
    let quantiles = |times: &Times| QUANTILES.map(|quantile| Text::from(nanos(times.quantile_ns(quantile))));
    let label = |stage: Stage| Text::from(harmless_cut(&names.short(&stage.label(store)), 42));
    writeln!(out, "{transactions} transactions, critical path of each")?;
    let head: Vec<(&str, Column)> = [("stage", Column::Left), ("count", Column::Right), ("share", Column::Right)]
        .into_iter()
        .chain(["p50", "p95", "p99"].map(|name| (name, Column::Right)))
        .collect();
    let mut lines: Vec<Vec<Text>> = rows
        .iter()
        .map(|row| {
            let shared = percent(row.times.sum_ns, total.sum_ns);
            let first = [label(row.stage), count(row.times.count()).into(), Text::new(shared, Tone::Strong)];
            first.into_iter().chain(quantiles(row.times)).collect()
        })
        .collect();
    let last = [Text::new("total", Tone::Strong), transactions.into(), "".into()];
    lines.push(last.into_iter().chain(quantiles(total)).collect());
    writeln!(out, "{}\n", table(&head, &lines, paint))?;

    let [half, most, nearly] = QUANTILES.map(|quantile| nanos(total.quantile_ns(quantile)));
    writeln!(out, "What makes the slow ones slow: shares among transactions by their total time")?;
    let bands = [format!("to {half}"), format!("to {most}"), format!("to {nearly}"), "above".to_owned()];
    let head: Vec<(&str, Column)> =
        std::iter::once(("stage", Column::Left)).chain(bands.iter().map(|band| (band.as_str(), Column::Right))).collect();
    // A band without transactions has a dash.
    let whole = stages.band_counts().map(|n| if n > 0 { 1_000_000 } else { 0 });
    let mut lines: Vec<Vec<Text>> = Vec::new();
    for row in &rows {
        let shares = row.bands.iter().zip(whole).map(|(share, whole)| Text::from(percent((share * 1e6) as u64, whole)));
        lines.push(std::iter::once(label(row.stage)).chain(shares).collect());
    }
    let counts = stages.band_counts().map(|n| Text::new(count(n), Tone::Dim));
    lines.push(std::iter::once(Text::new("transactions", Tone::Dim)).chain(counts).collect());
    writeln!(out, "{}", table(&head, &lines, paint))?;
    Ok(())
}

/// Kind, service, span and attribute of a stage.
pub(super) fn stage_json(store: &TraceStore, stage: Stage) -> Json {
    let of = |kind: &str, operation: u32, attribute: Option<u32>| {
        let (service, span) = store.service_and_name(operation);
        let attribute = attribute.map(|key| store.text(key));
        json!({ "stage": stage.label(store), "kind": kind, "service": service, "span": span, "attribute": attribute })
    };
    match stage {
        Stage::Own(operation) => of("own", operation, None),
        Stage::Waited(operation, key) => of("wait", operation, Some(key)),
        Stage::WaitingFor(operation) => of("waiting_for", operation, None),
        Stage::Other => json!({ "stage": stage.label(store), "kind": "other" }),
    }
}

/// Adds keys to an object.
pub(super) fn with_keys(mut object: Json, more: Json) -> Json {
    if let (Json::Object(object), Json::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}

/// The object for programs.
fn to_json(store: &TraceStore, stages: &Stages) -> Json {
    let times = |times: &Times| {
        let [p50, p95, p99] = QUANTILES.map(|quantile| times.quantile_ns(quantile));
        let (n, sum, max) = (times.count(), times.sum_ns, times.max_ns());
        json!({ "count": n, "sum_ns": sum, "p50_ns": p50, "p95_ns": p95, "p99_ns": p99, "max_ns": max })
    };
    let row = |row: &trace_analysis::stages::Row<'_>| {
        let stage = with_keys(stage_json(store, row.stage), times(row.times));
        with_keys(stage, json!({ "share": row.share, "bands": row.bands }))
    };
    let counts = &stages.counts;
    json!({
        "transactions": counts.transactions, "batches": counts.batches, "left_out": counts.others, "replayed": counts.replayed,
        "joined_by_time": counts.joined, "negative_gaps": counts.negative_gaps, "cycles": counts.cycles,
        "total": times(&stages.total), "band_transactions": stages.band_counts(),
        "stages": stages.rows().iter().map(row).collect::<Vec<_>>(),
    })
}

/// The path of one trace.
fn one(args: &Args, trace: TraceId, out: &mut dyn Write, notes: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let input = args.input.open(false)?;
    let store = load(&input, trace, &args.hold, notes)?;
    let mut tree = Tree::default();
    tree.fill(&store, trace);
    if tree.spans().is_empty() {
        anyhow::bail!("no span of trace {trace} is in the input; `walstorm trace top` shows traces");
    }
    let options = args.paths.options(&store)?;
    let Some(path) = Walker::new(&store).walk(&tree, options.to.as_deref()) else {
        anyhow::bail!("trace {trace} has no span of {}", options.to.unwrap_or_default());
    };
    if args.json {
        let begin = path.segments.first().map_or(0, |segment| segment.start);
        let part = |segment: &trace_analysis::critical_path::Segment| {
            let (id, took) = (store.record(segment.span).id.to_string(), segment.end - segment.start);
            let part = json!({ "span_id": id, "offset_ns": segment.start - begin, "duration_ns": took });
            with_keys(stage_json(&store, segment.stage), part)
        };
        let parts: Vec<Json> = path.segments.iter().map(part).collect();
        writeln!(
            out,
            "{}",
            json!({ "trace": trace.to_string(), "total_ns": path.total_ns(), "replayed": path.replayed, "parts": parts })
        )?;
    } else {
        write_path(out, &store, &path)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a trace and the batches that carried it, and sets clocks right.
pub(super) fn load(input: &Input, trace: TraceId, hold: &HoldArgs, notes: &mut dyn Write) -> anyhow::Result<TraceStore> {
    let (mut store, report) = input
        .with_bar("reading its trace", |source, progress| explain::load(source, trace, hold.memory_mib << 20, progress))?;
    tell_report(&report, notes);
    let shifts = skew::correct(&mut store, !hold.no_skew_correction);
    tell_shifts(&shifts, hold.no_skew_correction, notes);
    Ok(store)
}

/// The parts of a path, the first in time in front.
pub(super) fn write_path(out: &mut dyn Write, store: &TraceStore, path: &Path) -> anyhow::Result<()> {
    let (paint, names, total) = (Paint::for_stdout(), ShortNames::of(store), path.total_ns());
    let begin = path.segments.first().map_or(0, |segment| segment.start);
    let head =
        [("at", Column::Right), ("time", Column::Right), ("share", Column::Right), ("stage", Column::Left), ("", Column::Left)];
    let wide = columns().saturating_sub(76);
    let lines: Vec<Vec<Text>> = path
        .segments
        .iter()
        .map(|segment| {
            let took = segment.end - segment.start;
            vec![
                format!("+{}", nanos(segment.start - begin)).into(),
                nanos(took).into(),
                Text::new(percent(took, total), Tone::Strong),
                harmless_cut(&names.short(&segment.stage.label(store)), 42).into(),
                bar(took, total, wide).into(),
            ]
        })
        .collect();
    writeln!(out, "Critical path, {}", nanos(total))?;
    writeln!(out, "{}", table(&head, &lines, paint))?;
    if path.replayed {
        writeln!(out, "  It begins behind the commit: the log was replayed, its times are over a minute from the nodes'.")?;
    }
    Ok(())
}
