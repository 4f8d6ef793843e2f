//! `walstorm trace top`: the costliest spans or transactions.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;

use serde_json::json;
use trace_analysis::stages::{PathOptions, Stages};
use trace_analysis::store::WAIT_SUFFIX;
use trace_analysis::top::{By, Leader, Ranking, Top, by_self_time, by_trace_sum};
use trace_analysis::{Span, SpanId, TraceId, TraceStore, Value};

use super::columns;
use super::input::{HoldArgs, InputArgs};
use crate::run::paint::{Column, Paint, Text, Tone, table};
use crate::run::text::{count, harmless_cut, nanos};

/// Names of attributes that are told when the one that was asked for is nowhere.
const KEYS_TOLD_MAX: usize = 20;

/// Arguments of `walstorm trace top`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
By duration and by attributes, spans are read once, and only those that lead are held; by own time (self), and per transaction, all are held.
A transaction's duration is the length of its critical path; its value of an attribute the sum over the spans of its trace.

With --json a line is an object with the keys value, service, span, trace_id, span_id, duration_ns and attributes.")]
pub(super) struct Args {
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    hold: HoldArgs,
    /// What to rank by: duration, self (duration without that of children), or an attribute, as walstorm.messages.
    #[arg(long, value_name = "ATTRIBUTE|duration|self", default_value = "duration")]
    by: By,
    /// What is ranked.
    #[arg(long, value_enum, default_value_t = Per::Span)]
    per: Per,
    /// Only spans of this name.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// How many are shown.
    #[arg(short, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    n: u32,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

/// What is ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Per {
    /// Each span.
    Span,
    /// Each trace.
    Transaction,
}

/// Runs the command.
pub(super) fn run(args: &Args, out: &mut dyn Write, notes: &mut dyn Write) -> anyhow::Result<ExitCode> {
    if args.by == By::SelfTime && args.per == Per::Transaction {
        anyhow::bail!("--by self is of spans: leave out --per transaction, or take --by duration");
    }
    let leaders = match (&args.by, args.per) {
        (By::Duration | By::Attribute(_), Per::Span) => streamed(args, notes)?,
        _ => held(args, notes)?,
    };
    for leader in leaders.iter().filter(|_| args.json) {
        let attributes: BTreeMap<_, _> = leader.attributes.iter().cloned().collect();
        let line = json!({
            "value": leader.value, "service": leader.service, "span": leader.name, "trace_id": leader.trace.to_string(),
            "span_id": leader.span.to_string(), "duration_ns": leader.duration_ns, "attributes": attributes,
        });
        writeln!(out, "{line}")?;
    }
    if !args.json {
        write_table(out, args, &leaders)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Ranks while reading.
fn streamed(args: &Args, notes: &mut dyn Write) -> anyhow::Result<Vec<Leader>> {
    let mut top = Top::new(args.n as usize);
    let mut keys: BTreeMap<String, u64> = BTreeMap::new();
    let mut sink = |span: &Span<'_>| {
        if args.name.as_ref().is_some_and(|name| *name != span.name) {
            return Ok(());
        }
        match &args.by {
            By::Attribute(key) => match span.attribute(key).and_then(Value::number) {
                Some(value) => top.offer(value, span),
                None if top.offered() == 0 => note_numbers(&mut keys, span),
                None => {}
            },
            By::Duration | By::SelfTime => top.offer(span.duration_ns() as f64, span),
        }
        Ok(())
    };
    args.input.open(false)?.read(&mut sink, notes)?;
    if top.offered() == 0 {
        nothing_ranked(args, &keys)?;
    }
    Ok(top.leaders())
}

/// Remembers which attributes are numbers, for who asks for one that is not there.
fn note_numbers(keys: &mut BTreeMap<String, u64>, span: &Span<'_>) {
    for (key, value) in span.attributes.iter().filter(|(_, value)| value.number().is_some()) {
        if keys.len() < KEYS_TOLD_MAX || keys.contains_key(&**key) {
            *keys.entry(key.clone().into_owned()).or_default() += u64::from(value.number().is_some());
        }
    }
}

/// Says that nothing has what is ranked by.
fn nothing_ranked(args: &Args, keys: &BTreeMap<String, u64>) -> anyhow::Result<()> {
    let of = args.name.as_ref().map_or(String::new(), |name| format!(" named {name}"));
    match &args.by {
        By::Attribute(key) => {
            let there: Vec<&str> = keys.keys().map(String::as_str).collect();
            let there =
                if there.is_empty() { "no attribute is one".to_owned() } else { format!("these are: {}", there.join(", ")) };
            anyhow::bail!("--by {key}: no span{of} has this attribute as a number; {there}")
        }
        By::Duration | By::SelfTime => anyhow::bail!("there is no span{of} in the input"),
    }
}

/// Ranks what must be held for it, then reads again for what is shown of the leaders.
fn held(args: &Args, notes: &mut dyn Write) -> anyhow::Result<Vec<Leader>> {
    let input = args.input.open(true)?;
    let key = match &args.by {
        By::Attribute(key) => Some(key.as_str()),
        By::Duration | By::SelfTime => None,
    };
    let store = input.store(&args.hold, key.as_slice(), notes)?;
    let n = args.n as usize;
    let ranking = match key {
        Some(key) => by_trace_sum(&store, n, key),
        None if args.per == Per::Transaction => by_path(&store, n),
        None => by_self_time(&store, n, &|record| args.name.as_ref().is_none_or(|name| store.name(record) == name)),
    };
    if ranking.offered == 0 {
        nothing_ranked(args, &BTreeMap::new())?;
    }
    let places: Vec<(f64, (TraceId, SpanId))> = ranking.leaders().collect();
    drop(store);
    let mut top = Top::new(n);
    input.with_bar("reading what leads", |source, progress| {
        source.read(progress, &mut |span| {
            if let Some((value, _)) = places.iter().find(|(_, ids)| *ids == (span.trace, span.id)) {
                top.offer(*value, span);
            }
            Ok(())
        })
    })?;
    Ok(top.leaders())
}

/// Ranks transactions by the length of their critical paths.
fn by_path(store: &TraceStore, n: usize) -> Ranking {
    let mut ranking = Ranking::new(n);
    Stages::of(store, &PathOptions::default(), &mut |tree, path| {
        if let Some(root) = tree.first_root(store) {
            let record = store.record(root);
            ranking.offer(path.total_ns() as f64, (record.trace, record.id));
        }
    });
    ranking
}

/// The table for people.
fn write_table(out: &mut dyn Write, args: &Args, leaders: &[Leader]) -> anyhow::Result<()> {
    let title = match &args.by {
        By::Duration => "duration",
        By::SelfTime => "own time",
        By::Attribute(key) => key.rsplit('.').next().unwrap_or(key),
    };
    let is_time = !matches!(&args.by, By::Attribute(key) if !(key.ends_with("_ns") || key.ends_with(WAIT_SUFFIX)));
    let value = |leader: &Leader| if is_time { nanos(leader.value as u64) } else { number(leader.value) };
    let wide = columns() >= 110;
    let mut head = vec![(title, Column::Right), ("span", Column::Left), ("xid", Column::Right)];
    if wide {
        head.extend([("commit", Column::Left), ("took", Column::Right)]);
    }
    head.push(("trace", Column::Left));
    let cut = columns().saturating_sub(if wide { 96 } else { 60 });
    let rows: Vec<Vec<Text>> = leaders
        .iter()
        .map(|leader| {
            let attribute = |key: &str| harmless_cut(leader.attribute(key).unwrap_or("–"), 12);
            let service = leader.service.strip_prefix("walstorm-").unwrap_or(&leader.service);
            let label = harmless_cut(&format!("{service}: {}", leader.name), cut);
            let mut row = vec![Text::new(value(leader), Tone::Strong), label.into(), attribute("walstorm.xid").into()];
            if wide {
                row.extend([attribute("walstorm.commit_lsn").into(), nanos(leader.duration_ns).into()]);
            }
            row.push(leader.trace.to_string().into());
            row
        })
        .collect();
    writeln!(out, "{}", table(&head, &rows, Paint::for_stdout()))?;
    Ok(())
}

/// A number, whole if it is.
fn number(value: f64) -> String {
    if value >= 0.0 && value.fract() == 0.0 && value < 1e18 { count(value as u64) } else { format!("{value:.3}") }
}
