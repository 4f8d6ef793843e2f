//! `walstorm trace explain`: one transaction, found by its trace, its xid or a position in the log.

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::bail;
use trace_analysis::critical_path::Walker;
use trace_analysis::explain::{Choice, Wanted, find};
use trace_analysis::tree::Tree;
use trace_analysis::{TraceId, TraceStore};

use super::critical_path::{load, write_path};
use super::input::{HoldArgs, Input, InputArgs, ShortNames, tell_report};
use super::{story, waterfall};
use crate::run::paint::Paint;

/// Arguments of `walstorm trace explain`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "\
A line of the waterfall is a span: those of the trace, and the batches that carried it, as they began. * marks the critical path. The input
is read twice, and only the trace and the batches are held.")]
pub(super) struct Args {
    /// A trace's id (32 hexadecimal digits), an xid (763), or a position in the log that the transaction covers (0/A05360).
    #[arg(value_name = "TRACE|XID|LSN")]
    wanted: Wanted,
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    hold: HoldArgs,
    /// Shows the attributes of each span, too.
    #[arg(long)]
    attributes: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args, out: &mut dyn Write, notes: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let input = args.input.open(true)?;
    let trace = chosen(args.wanted, &input, notes)?;
    let store = load(&input, trace, &args.hold, notes)?;
    let mut tree = Tree::default();
    tree.fill(&store, trace);
    let Some(path) = Walker::new(&store).walk(&tree, None) else { bail!("no span of trace {trace} is in the input") };
    let (paint, names) = (Paint::for_stdout(), ShortNames::of(&store));
    writeln!(out, "{}", paint.strong(&story::title(&store, &tree)))?;
    writeln!(out, "{}\n", paint.dim(&format!("trace {trace}")))?;
    waterfall::write(out, &store, &tree, &path, names)?;
    if args.attributes {
        write_attributes(out, &store, &tree, &path.spans, names)?;
    }
    writeln!(out)?;
    write_path(out, &store, &path)?;
    writeln!(out)?;
    story::write(out, &store, &tree, &path, names)?;
    Ok(ExitCode::SUCCESS)
}

/// The trace that is wanted.
fn chosen(wanted: Wanted, input: &Input, notes: &mut dyn Write) -> anyhow::Result<TraceId> {
    let (choices, report) = input.with_bar("looking for it", |source, progress| find(source, wanted, progress))?;
    tell_report(&report, notes);
    let what = match wanted {
        Wanted::Trace(trace) => format!("trace {trace}"),
        Wanted::Xid(xid) => format!("transaction {xid}"),
        Wanted::Lsn(lsn) => format!("transaction at {:X}/{:X}", lsn >> 32, lsn & 0xFFFF_FFFF),
    };
    match choices.as_slice() {
        [] => bail!(
            "no span of {what} is among {} in the input: was it traced? `walstorm run --sampling 1` traces all",
            report.spans
        ),
        [only] => Ok(only.trace),
        several => {
            let lines: Vec<String> = several.iter().map(line).collect();
            bail!("{what} may be one of {} traces; give the id of the one that is meant:\n{}", several.len(), lines.join("\n"))
        }
    }
}

/// A trace to choose.
fn line(choice: &Choice) -> String {
    let text = |of: &Option<String>| of.clone().unwrap_or_else(|| "?".to_owned());
    let time = humantime::format_rfc3339_micros(UNIX_EPOCH + Duration::from_nanos(choice.start));
    format!("  {}  xid {}, commit {}, {time}", choice.trace, text(&choice.xid), text(&choice.commit_lsn))
}

/// The attributes of the spans of a trace, and of the batches on its path.
fn write_attributes(
    out: &mut dyn Write,
    store: &TraceStore,
    tree: &Tree,
    on_path: &[u32],
    names: ShortNames,
) -> anyhow::Result<()> {
    let batches = on_path.iter().rev().copied().filter(|span| !tree.has(*span));
    for span in tree.spans().chain(batches) {
        let record = store.record(span);
        writeln!(out, "\n  {}", service_kit::printable(&names.short(&store.label(record.operation))))?;
        for (key, _) in store.values(record) {
            let key = store.text(*key);
            let value = store.value(record, key).map_or(String::new(), |value| value.to_string());
            writeln!(out, "    {} = {}", service_kit::printable(key), service_kit::printable(&value))?;
        }
    }
    Ok(())
}
