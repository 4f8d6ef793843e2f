//! `walstorm trace diff`: which stage got slower.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::json;
use trace_analysis::diff::{Change, Side, Verdict, compare};
use trace_analysis::significance::Effect;

use super::columns;
use super::critical_path::{PathArgs, tell_counts};
use super::input::{HoldArgs, Input, ShortNames};
use crate::run::paint::{Column, Paint, Text, Tone, table};
use crate::run::text::{count, harmless_cut, nanos};

/// Columns from which on there is room for p.
const WITH_P_COLUMNS: usize = 90;

/// Arguments of `walstorm trace diff`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
A transaction counts with its time in each stage of its critical path, 0 if it has none, so that the changes of the stages add up to that of
the total. Whether a change may be chance is told by the Mann-Whitney test (two-sided, normal approximation with ties), over at most 20,000
transactions of each input, with Holm's correction for the number of stages. The effect is Cliff's delta: how much more often a transaction
of AFTER takes longer than one of BEFORE than the other way round. Transactions of one batch wait together, so p is rather too small than
too large: look at the effect, too.

With --json a line is an object with the keys stage, before_ns, after_ns (means), p, delta, effect, verdict, and mixed: the mean went
the other way than most transactions.")]
pub(super) struct Args {
    /// File or folder with traces of before.
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// File or folder with traces of after.
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    #[command(flatten)]
    hold: HoldArgs,
    #[command(flatten)]
    paths: PathArgs,
    /// A p of up to that is no chance.
    #[arg(long, value_name = "P", default_value_t = 0.01, value_parser = probability)]
    alpha: f64,
    /// One JSON object a line.
    #[arg(long)]
    json: bool,
}

/// A probability between 0 and 1.
fn probability(text: &str) -> Result<f64, String> {
    let p: f64 = text.parse().map_err(|_| "is no number".to_owned())?;
    if p > 0.0 && p < 1.0 { Ok(p) } else { Err("must be between 0 and 1".to_owned()) }
}

/// Runs the command.
pub(super) fn run(args: &Args, out: &mut dyn Write, notes: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let mut short = None;
    let mut side = |path: &PathBuf| -> anyhow::Result<Side> {
        let store = Input::file(path)?.store(&args.hold, &[], notes)?;
        short.get_or_insert(ShortNames::of(&store));
        let side = Side::of(&store, &args.paths.options(&store)?);
        tell_counts(&side.counts, notes);
        anyhow::ensure!(side.counts.transactions > 0, "{}: there is no transaction to compare", path.display());
        Ok(side)
    };
    let (before, after) = (side(&args.before)?, side(&args.after)?);
    let changes = compare(&before, &after);
    if args.json {
        for change in &changes {
            writeln!(out, "{}", to_json(change, args.alpha))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let (n, m) = (before.counts.transactions, after.counts.transactions);
    let (sampled, all) = (before.sampled().max(after.sampled()) as u64, n.max(m));
    let tested = if sampled < all { format!(", {} of each tested at most", count(sampled)) } else { String::new() };
    writeln!(out, "{} transactions before, {} after{tested}; mean time of each in a stage", count(n), count(m))?;
    write_table(out, &changes, args.alpha, |text| short.map_or(text.to_owned(), |names| names.short(text)))?;
    Ok(ExitCode::SUCCESS)
}

/// How large an effect is, in a word.
fn effect(change: &Change) -> &'static str {
    match change.comparison.effect() {
        Effect::Negligible => "negligible",
        Effect::Small => "small",
        Effect::Medium => "medium",
        Effect::Large => "large",
    }
}

/// What came of a stage, in words.
fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Slower => "slower",
        Verdict::Faster => "faster",
        Verdict::NotSignificant => "not significant",
    }
}

/// The object for programs.
fn to_json(change: &Change, alpha: f64) -> serde_json::Value {
    json!({
        "stage": change.stage, "before_ns": change.before_ns, "after_ns": change.after_ns, "p": change.comparison.p,
        "delta": change.comparison.delta, "effect": effect(change), "verdict": verdict(change.verdict(alpha)),
        "mixed": change.is_mixed(),
    })
}

/// The table for people.
fn write_table(out: &mut dyn Write, changes: &[Change], alpha: f64, short: impl Fn(&str) -> String) -> anyhow::Result<()> {
    let mut head =
        vec![("stage", Column::Left), ("before", Column::Right), ("after", Column::Right), ("change", Column::Right)];
    let wide = columns() >= WITH_P_COLUMNS;
    if wide {
        head.push(("p", Column::Right));
    }
    head.push(("verdict", Column::Left));
    let rows: Vec<Vec<Text>> = changes
        .iter()
        .map(|change| {
            let difference = change.after_ns - change.before_ns;
            let sign = if difference < 0.0 { '−' } else { '+' };
            let found = change.verdict(alpha);
            let (words, tone) = match found {
                Verdict::NotSignificant => (verdict(found).to_owned(), Tone::Dim),
                Verdict::Slower | Verdict::Faster if change.is_mixed() => ("mixed".to_owned(), Tone::Plain),
                Verdict::Slower => (format!("{}, {}", verdict(found), effect(change)), Tone::Bad),
                Verdict::Faster => (format!("{}, {}", verdict(found), effect(change)), Tone::Good),
            };
            let mut row: Vec<Text> = vec![
                harmless_cut(&short(&change.stage), 34).into(),
                nanos(change.before_ns as u64).into(),
                nanos(change.after_ns as u64).into(),
                format!("{sign}{}", nanos(difference.abs() as u64)).into(),
            ];
            if wide {
                row.push(p_text(change.comparison.p).into());
            }
            row.push(Text::new(words, tone));
            row
        })
        .collect();
    writeln!(out, "{}", table(&head, &rows, Paint::for_stdout()))?;
    if changes.iter().any(|change| change.is_mixed() && change.verdict(alpha) != Verdict::NotSignificant) {
        writeln!(out, "  mixed: most transactions went one way, the mean the other")?;
    }
    Ok(())
}

/// A probability in few columns.
fn p_text(p: f64) -> String {
    if p < 0.0001 { "<0.0001".to_owned() } else { format!("{p:.4}") }
}
