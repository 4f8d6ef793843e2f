//! The table of runs, and the same as JSON lines.

use serde_json::json;

use super::load::Workload;
use super::{Args, Row, Rule};
use crate::run::ladder::{Ladder, Side};
use crate::run::paint::{COLUMNS, Column, Paint, Text, Tone, table};
use crate::run::text::{count, nanos, wrapped};

/// A value of an argument as it is written.
fn written<T: clap::ValueEnum>(value: &T) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

/// Records that the standby replayed in a second, the mean of all runs.
fn replayed_per_second(rows: &[Row]) -> u64 {
    let records: u64 = rows.iter().map(|row| row.standby.records_replayed).sum();
    let seconds: f64 = rows.iter().map(|row| row.measured.as_secs_f64()).sum();
    (records as f64 / seconds.max(f64::MIN_POSITIVE)).round() as u64
}

/// What was done in a second.
pub fn per_second(row: &Row) -> f64 {
    row.tally.counts.done as f64 / row.measured.as_secs_f64().max(f64::MIN_POSITIVE)
}

/// A mean of the steps.
fn mean(n: u64, done: u64) -> String {
    let mean = n as f64 / done.max(1) as f64;
    if mean >= 100.0 { count(mean.round() as u64) } else { format!("{mean:.1}") }
}

/// The table for people, with what it is of above and what failed below.
pub(super) fn text(args: &Args, source: &str, rows: &[Row], paint: Paint) -> String {
    let measured = rows.first().map_or(0.0, |row| row.measured.as_secs_f64());
    let title = format!(
        "{}: {} sessions, {}, {measured:.1} s each; {} records replayed a second",
        service_kit::printable(source),
        args.sessions,
        written(&args.workload),
        count(replayed_per_second(rows)),
    );
    let body = match args.workload {
        Workload::Snapshots => snapshots(args, source, rows, paint),
        Workload::CatalogScans | Workload::ConnectionStorm => catalogs(args, rows, paint),
    };
    let mut text = format!("{}\n{body}\n", paint.strong(&title));
    for row in rows.iter().filter(|row| row.tally.counts.failed > 0) {
        let why = row.tally.failure.as_deref().unwrap_or_default();
        let failed = count(row.tally.counts.failed);
        text.push_str(&format!("{}\n", paint.bad(&format!("{}, {}: {failed} failed: {why}", row.profile, written(&row.rule)))));
    }
    text
}

/// Columns that every workload has.
const TIMES: [(&str, Column); 3] = [("a second", Column::Right), ("p50", Column::Right), ("p99", Column::Right)];

/// What stands in them.
fn times(row: &Row) -> [Text; 3] {
    let latencies = row.tally.latencies();
    let [p50, p99] = [latencies.p50, latencies.p99].map(|ns| Text::from(nanos(ns)));
    [Text::new(count(per_second(row).round() as u64), Tone::Strong), p50, p99]
}

/// Columns of shares.
const SHARES: [(&str, Column); 2] = [("walks", Column::Right), ("taking", Column::Right)];

/// What stands in them: of the serving threads' CPU time, what walks took and what snapshots did, in per cent; a dash where it is not known.
fn shares(row: &Row) -> [Text; 2] {
    let share = |part: Option<u64>| {
        let (serving, part) = row.standby.cpu_serving_ns.zip(part)?;
        Some(format!("{:.2} %", 100.0 * part as f64 / serving.max(1) as f64))
    };
    let text = |part, tone| Text::new(share(part).unwrap_or("–".to_owned()), tone);
    [text(row.standby.cpu_walks_ns, Tone::Strong), text(row.standby.cpu_snapshots_ns, Tone::Plain)]
}

/// Profiles beside each other, in the manner of the message of 2021.
fn snapshots(args: &Args, source: &str, rows: &[Row], paint: Paint) -> String {
    let ladder = Ladder::of(source).filter(|ladder| args.standby.is_none() && ladder.side == Side::Standby);
    let mut head = vec![("standby as", Column::Left)];
    head.extend(SHARES);
    if ladder.is_some() {
        head.extend([("published", Column::Right), ("real server", Column::Right)]);
    }
    head.extend(TIMES);
    head.extend([("visited", Column::Right), ("jumped", Column::Right), ("reused", Column::Right), ("span", Column::Right)]);
    head.push(("live", Column::Right));
    let cells = |row: &Row| {
        let counts = &row.tally.counts;
        let mut cells = vec![Text::new(row.profile.clone(), Tone::Strong)];
        cells.extend(shares(row));
        if let Some(ladder) = ladder {
            let rung = ladder.rung(&row.profile);
            cells.extend([rung.map_or("", |rung| rung.published).into(), rung.map_or("", |rung| rung.real_server).into()]);
        }
        cells.extend(times(row));
        let reused = format!("{:.0} %", 100.0 * counts.reused as f64 / counts.done.max(1) as f64);
        cells
            .extend([mean(counts.slots_visited, counts.done), mean(counts.slots_skipped, counts.done), reused].map(Text::from));
        cells.extend([row.standby.span_max, row.standby.live_max].map(|n| count(u64::from(n)).into()));
        cells
    };
    let legend = "walks, taking: the share of KnownAssignedXidsGetAndSetXmin, and of all of GetSnapshotData, in the CPU time of the \
                  threads that serve; slots visited and jumped: means of a snapshot, those that were reused included; span and live: \
                  the most";
    with_legend(&table(&head, &rows.iter().map(cells).collect::<Vec<_>>(), paint), legend, paint)
}

/// Rules beside each other, in the manner of the message of 2013.
fn catalogs(args: &Args, rows: &[Row], paint: Paint) -> String {
    let mut head = vec![("catalog snapshot", Column::Left), ("standby as", Column::Left)];
    head.extend(TIMES);
    head.extend([("to always-new", Column::Right), ("snapshots", Column::Right), ("scans", Column::Right)]);
    head.extend([("visited", Column::Right), ("messages", Column::Right), ("resets", Column::Right)]);
    head.extend(SHARES);
    let cells = |row: &Row| {
        let counts = &row.tally.counts;
        let new = rows.iter().find(|other| other.rule == Rule::AlwaysNew && other.profile == row.profile);
        let ratio = new.map(|new| format!("{:.2} ×", per_second(row) / per_second(new).max(f64::MIN_POSITIVE)));
        let mut cells = vec![Text::new(written(&row.rule), Tone::Strong), row.profile.clone().into()];
        cells.extend(times(row));
        let means = [counts.snapshots, counts.scans, counts.slots_visited, counts.messages].map(|n| mean(n, counts.done));
        cells.push(ratio.unwrap_or_default().into());
        cells.extend(means.map(Text::from));
        cells.push(count(counts.resets).into());
        cells.extend(shares(row));
        cells
    };
    let step = if args.workload == Workload::ConnectionStorm { "session" } else { "transaction" };
    let legend = format!(
        "snapshots, scans, slots visited and messages: means of a {step}; one of the snapshots is the transaction's. walks, taking: the \
         share of KnownAssignedXidsGetAndSetXmin, and of all of GetSnapshotData, in the CPU time of the threads that serve"
    );
    with_legend(&table(&head, &rows.iter().map(cells).collect::<Vec<_>>(), paint), &legend, paint)
}

/// A table and what its columns are.
fn with_legend(table: &str, legend: &str, paint: Paint) -> String {
    format!("{table}\n{}", paint.dim(&wrapped(legend, COLUMNS)))
}

/// One JSON object a run.
///
/// # Errors
/// None that is known.
pub(super) fn json(args: &Args, source: &str, rows: &[Row]) -> anyhow::Result<String> {
    let mut lines = String::new();
    for row in rows {
        let mut line = json!({
            "source": source, "profile": row.profile, "rule": written(&row.rule), "workload": written(&args.workload),
            "sessions": args.sessions, "measured_s": row.measured.as_secs_f64(), "per_s": per_second(row),
            "latency_ns": row.tally.latencies(), "span_max": row.standby.span_max, "live_max": row.standby.live_max,
            "records_replayed": row.standby.records_replayed, "cpu_serving_ns": row.standby.cpu_serving_ns,
            "cpu_snapshots_ns": row.standby.cpu_snapshots_ns, "cpu_walks_ns": row.standby.cpu_walks_ns,
            "xids_bytes_max": row.standby.xids_bytes_max,
        });
        if let (Some(line), serde_json::Value::Object(counts)) = (line.as_object_mut(), serde_json::to_value(row.tally.counts)?)
        {
            line.extend(counts);
        }
        lines.push_str(&format!("{line}\n"));
    }
    Ok(lines)
}
