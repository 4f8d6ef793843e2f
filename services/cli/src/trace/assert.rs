//! `walstorm trace assert`: rules that traces must keep, for CI.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use trace_analysis::checking::{Outcome, Over, check};
use trace_analysis::rules::Rules;

use super::critical_path::PathArgs;
use super::input::{HoldArgs, InputArgs};
use crate::notes::note;
use crate::run::paint::Paint;
use crate::run::text::{count, nanos};

/// Exit code of broken rules.
const BROKEN: u8 = 1;
/// Exit code when nothing could be checked.
const BAD_INPUT: u8 = 2;

/// Arguments of `walstorm trace assert`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A file of rules (names of spans may have their service in front; unknown keys are refused):

  [[count]]                    # how many spans of a name there are in each trace that has another
  name = \"every committed transaction is decoded once\"
  per = \"transaction\"
  span = \"walstorm-decoder: decode transaction\"
  exactly = 1                  # or at_least, at_most

  [[forbid]]                   # spans that must not be: by name, attributes that are equal, attributes that are above
  name = \"indexed executes nothing that nobody has cached\"
  span = \"decode transaction\"
  where = { \"walstorm.profile\" = \"indexed\" }
  above = { \"walstorm.messages_executed\" = 0 }

  [[limit]]                    # how long something takes: a stage of critical paths, total, or (span =) all spans of a name
  name = \"decoding is quick\"
  stage = \"walstorm-decoder: decode transaction\"
  p99_max = \"5ms\"              # or p50_max, p95_max, max

  [structure]                  # what may be wrong with spans as such
  orphans_max = 0              # unresolved_links_max, cycles_max, duplicates_max, backwards_max

A count or limit that finds nothing to check is broken, unless it says may_be_absent = true.

Exit code: 0 if all rules hold, 1 if one is broken, 2 if the rules or the traces cannot be read.")]
pub(super) struct Args {
    /// The rules.
    #[arg(value_name = "RULES.toml")]
    rules: PathBuf,
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    hold: HoldArgs,
    #[command(flatten)]
    paths: PathArgs,
}

/// Runs the command.
pub(super) fn run(args: &Args, out: &mut dyn Write, notes: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let outcomes = match outcomes(args, notes) {
        Ok(outcomes) => outcomes,
        Err(error) => {
            note(notes, service_kit::error_text(error.as_ref()));
            return Ok(ExitCode::from(BAD_INPUT));
        }
    };
    for outcome in &outcomes {
        show(out, outcome)?;
    }
    let broken = outcomes.iter().filter(|outcome| !outcome.holds()).count();
    if broken == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "{broken} of {} rules broken; `walstorm trace explain TRACE` shows one of the traces", outcomes.len())?;
    Ok(ExitCode::from(BROKEN))
}

/// Checks the rules.
fn outcomes(args: &Args, notes: &mut dyn Write) -> anyhow::Result<Vec<Outcome>> {
    let rules = Rules::load(&args.rules)?;
    let store = args.input.open(false)?.store(&args.hold, &rules.attributes(), notes)?;
    let options = args.paths.options(&store)?;
    Ok(check(&store, &rules, &options))
}

/// A line for a rule, and some that break it.
fn show(out: &mut dyn Write, outcome: &Outcome) -> anyhow::Result<()> {
    let paint = Paint::for_stdout();
    let name = service_kit::printable(&outcome.name);
    if outcome.holds() {
        writeln!(out, "{}  {name}: {} checked", paint.good("holds "), count(outcome.checked))?;
        return Ok(());
    }
    let why = why(outcome);
    writeln!(out, "{}  {name}: {why}", paint.bad("BROKEN"))?;
    for example in &outcome.examples {
        writeln!(out, "          {}  {}", example.trace, service_kit::printable(&example.why))?;
    }
    let more = outcome.broken.saturating_sub(outcome.examples.len() as u64);
    if more > 0 {
        writeln!(out, "          … and {} more", count(more))?;
    }
    Ok(())
}

/// Why a rule is broken.
fn why(outcome: &Outcome) -> String {
    if let Some(why) = &outcome.why {
        return service_kit::printable(why).into_owned();
    }
    if outcome.over.is_empty() {
        return format!("{} of {} break it", count(outcome.broken), count(outcome.checked));
    }
    let over = |over: &Over| format!("{} is {}, more than {}", over.quantile, nanos(over.found_ns), nanos(over.max_ns));
    outcome.over.iter().map(over).collect::<Vec<_>>().join("; ")
}
