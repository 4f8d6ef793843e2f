//! The report for people and for programs: tables within 120 columns, or one JSON object a line.

mod json;
mod ladders;
mod story;
mod transactions;

use std::fmt::Write as _;
use std::path::Path;

use service_kit::printable;

pub use json::json;

use super::ladder::{Ladder, Side};
use super::paint::{COLUMNS, Paint};
use super::report::{Report, SourceReport, SourceTimings, Timings};
use super::subscriber::InProgress;
use super::text::{count, nanos, wrapped};

/// Bytes of a mebibyte.
const MEBIBYTE: f64 = 1_048_576.0;

/// The report as tables.
#[must_use]
pub fn text(report: &Report, timings: &Timings, out: &Path, paint: Paint) -> String {
    let mut text = String::new();
    let mut legend = true;
    for (source, timed) in report.sources.iter().zip(&timings.sources) {
        section(&mut text, source, timed, legend, paint);
        legend &= source.decoder_profiles.is_empty();
    }
    text.push_str(&sweep_table(report, paint));
    let seed = report.seed.map_or_else(|| "each scenario its own".to_owned(), |seed| seed.to_string());
    let sources = plural(report.sources.len() as u64, "source");
    let summary = format!("{sources} in {} · clock {} · seed {seed}", nanos(timings.wall_ns), report.clock);
    let place = printable(&out.display().to_string()).into_owned();
    let files = format!("report.json, timings.json, traces and WAL in {place}");
    let _ = writeln!(text, "\n{}\n{}", paint.dim(&wrapped(&summary, COLUMNS)), paint.dim(&wrapped(&files, COLUMNS)));
    text
}

/// One source; `legend` says whether the columns of counters are to be explained.
fn section(text: &mut String, source: &SourceReport, timed: &SourceTimings, legend: bool, paint: Paint) {
    let ladder = Ladder::of(&source.source).filter(|_| source.kind == "scenario");
    let about = ladder.map_or(source.about.as_str(), |l| l.headline);
    let about = super::text::harmless_cut(about, COLUMNS - source.source.chars().count() - 12);
    let _ = writeln!(text, "\n{}", paint.heading(&source.source, &about));
    if let Some(story) = story::story(source, timed, ladder) {
        let _ = writeln!(text, "{}", paint.strong(&wrapped(&printable(&story), COLUMNS)));
    }
    let _ = writeln!(text, "{}", wal_lines(source));
    let _ = writeln!(text, "{}", pipeline_line(source, timed));
    if timed.readers.failed > 0 {
        let failed = format!("  {} of readers of the standby failed", plural(timed.readers.failed, "call"));
        let _ = writeln!(text, "{}", paint.bad(&failed));
    }
    for stopped in &source.pipeline.stopped {
        let _ = writeln!(text, "  {}", paint.bad(&format!("stopped: {}", printable(stopped))));
    }
    if source.wal.below_logical {
        let text_of = "wal_level was below logical: a server decodes nothing of this WAL, and what a decoder shows here lacks what is \
                       not in the records; standbys are as they are";
        let _ = writeln!(text, "  {}", paint.bad(&wrapped(text_of, COLUMNS - 2)));
    }
    for name in &source.missing_publications {
        let missing = format!("there is no publication '{}', so nothing of it is given out", printable(name));
        let _ = writeln!(text, "  {}", paint.bad(&wrapped(&missing, COLUMNS - 2)));
    }
    if ladder.is_none() && !source.costliest.is_empty() {
        let _ = write!(text, "\n{}", transactions::costliest(source, paint));
    }
    if !source.decoder_profiles.is_empty() {
        let _ =
            write!(text, "\n{}", ladders::decoder(source, timed, ladder.filter(|l| l.side == Side::Decoder), legend, paint));
    }
    if !source.standby_profiles.is_empty() {
        let _ = write!(text, "\n{}", ladders::standby(source, timed, ladder.filter(|l| l.side == Side::Standby), paint));
    }
}

/// The points of sweeps beside each other: a line each, empty without sweep.
fn sweep_table(report: &Report, paint: Paint) -> String {
    let points: Vec<&SourceReport> = report.sources.iter().filter(|source| source.is_point).collect();
    if points.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{}\n", paint.heading("sweep", "the points beside each other"));
    let head = ["point", "records", "commits", "messages", "MiB of WAL", "steps"];
    let row = |cells: [&str; 6]| {
        let [name, numbers @ ..] = cells;
        numbers.iter().fold(format!("  {name:<28}"), |line, cell| format!("{line} {cell:>13}"))
    };
    let _ = writeln!(text, "{}", paint.dim(&row(head)));
    for point in points {
        let wal = &point.wal;
        let bytes = format!("{:.1}", wal.bytes as f64 / MEBIBYTE);
        let numbers = [wal.records, wal.commits, wal.messages, point.steps_all].map(count);
        let name = printable(&point.source);
        let _ = writeln!(text, "{}", row([&name, &numbers[0], &numbers[1], &numbers[2], &bytes, &numbers[3]]));
        let seed = point.seed.map(|seed| format!("seed = {seed}"));
        let set = point.parameters.iter().map(|(name, value)| format!("{name} = {value}")).chain(seed);
        let set = super::text::harmless_cut(&set.collect::<Vec<_>>().join(", "), COLUMNS - 4);
        let _ = writeln!(text, "{}", paint.dim(&format!("    {set}")));
    }
    text
}

/// What the WAL is, and at which scale it was made.
fn wal_lines(source: &SourceReport) -> String {
    let wal = &source.wal;
    let mut lines = format!(
        "  PostgreSQL {} · {:.1} MiB of WAL · {} · {} · {} · {}",
        wal.version,
        wal.bytes as f64 / MEBIBYTE,
        plural(wal.records, "record"),
        plural(wal.commits, "commit"),
        plural(wal.aborts, "rollback"),
        plural(wal.messages, "invalidation message"),
    );
    if !source.scale.is_empty() {
        let _ = write!(lines, "\n  scale: {}", source.scale);
    }
    lines
}

/// What went through the nodes.
fn pipeline_line(source: &SourceReport, timed: &SourceTimings) -> String {
    let (pipeline, readers) = (&source.pipeline, &timed.readers);
    let changes = &pipeline.subscriber;
    let latency = readers.latency_sum_ns.checked_div(readers.snapshots).unwrap_or(0);
    let line = format!(
        "over gRPC in {} · decoder: {}, {} · standby: {}, {} of {}",
        nanos(timed.pipeline_wall_ns),
        plural(pipeline.transactions_decoded, "transaction"),
        plural(changes.inserts + changes.updates + changes.deletes, "row"),
        plural(pipeline.transactions_replayed, "end"),
        plural(readers.snapshots, "snapshot"),
        nanos(latency),
    );
    let before_commit = pipeline.before_commit.map(|early| format!("\n{}", wrapped(&before_commit_line(&early), COLUMNS)));
    wrapped(&line, COLUMNS) + &before_commit.unwrap_or_default()
}

/// What went out before its commit.
fn before_commit_line(early: &InProgress) -> String {
    let mut parts = Vec::new();
    if early.prepared > 0 {
        parts.push(format!(
            "{} at PREPARE, up to {} s before the commit ({} committed, {} rolled back)",
            plural(early.prepared, "transaction"),
            count(early.ahead_s_max),
            count(early.commits_prepared),
            count(early.rollbacks_prepared),
        ));
    }
    if early.blocks > 0 {
        parts.push(format!("{} of {}", plural(early.blocks, "block"), plural(early.commits_streamed, "transaction")));
    }
    if parts.is_empty() {
        parts.push("nothing".to_owned());
    }
    format!("before the commit, to who asks for it: {}", parts.join(" · "))
}

/// `1 row`, `2 rows`.
fn plural(n: u64, what: &str) -> String {
    format!("{} {what}{}", count(n), if n == 1 { "" } else { "s" })
}
