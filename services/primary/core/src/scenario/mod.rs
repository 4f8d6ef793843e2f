//! Scenario files: what happens on the primary, when, and how large (TOML).
//!
//! A file is read strictly (unknown keys are errors), with the line and column of whatever is wrong. Sizes are parameters: a
//! field says `"$partitions"`, the file gives the published size, and a caller may override it. The files that ship are in
//! `services/primary/scenarios`; their README describes the format.
//!
//! ```text
//! text ──parse──► ScenarioFile ──resolve(parameters)──► Plan ──► Engine
//! ```

mod amount;
mod at;
mod expect;
mod file;
mod nearest;
mod object_step;
mod part_step;
mod pause;
mod plan;
mod resolve;
mod resolve_actor;
mod resolve_amount;
mod resolve_expect;
mod resolve_object;
mod resolve_part;
mod resolve_publication;
mod resolve_step;
mod schema;
mod size;
mod statement;
mod step;
mod sweep;
mod template;

use std::collections::BTreeMap;

use rand::Rng;
use toml::de::DeTable;

pub use expect::{Counter, CounterSource, DECODER_COUNTERS, Expectation, STANDBY_COUNTERS, Verdict};
pub use file::ParameterValue;
pub use pause::Pause;
pub use plan::{
    ActorPlan, ConsumerKind, ConsumerPlan, DecoderConsumer, DecoderHints, FaultKind, FaultPlan, PausedPlan, Plan,
    PublicationPlan, ServerPlan, TablePlan, TransactionPlan, WalLevel,
};
pub use schema::schema;
pub use size::PlanSize;
pub use statement::{FinishPrepared, Scope, StatementPlan, Target, VacuumPlan};
pub use sweep::SweepPoint;
pub use template::{Blanks, Template};

pub use crate::dml::row_lock::RowLock;

use crate::clock::Clock;
use crate::engine::{Engine, RunSummary, Step};
use crate::error::PrimaryError;
use crate::sink::WalSink;
use file::ScenarioFile;

/// The scenarios that ship, by name.
const SHIPPED: [(&str, &str); 22] = [
    ("alter-many", include_str!("../../../scenarios/alter-many.toml")),
    ("bad-day", include_str!("../../../scenarios/bad-day.toml")),
    ("catalog-churn", include_str!("../../../scenarios/catalog-churn.toml")),
    ("connection-storm", include_str!("../../../scenarios/connection-storm.toml")),
    ("grant-all", include_str!("../../../scenarios/grant-all.toml")),
    ("inval-feedback", include_str!("../../../scenarios/inval-feedback.toml")),
    ("long-writer-ddl", include_str!("../../../scenarios/long-writer-ddl.toml")),
    ("matview-refresh", include_str!("../../../scenarios/matview-refresh.toml")),
    ("overflowed-start", include_str!("../../../scenarios/overflowed-start.toml")),
    ("paused-consumer", include_str!("../../../scenarios/paused-consumer.toml")),
    ("prepared", include_str!("../../../scenarios/prepared.toml")),
    ("publication-churn", include_str!("../../../scenarios/publication-churn.toml")),
    ("rolled-back-bulk", include_str!("../../../scenarios/rolled-back-bulk.toml")),
    ("schema-storm", include_str!("../../../scenarios/schema-storm.toml")),
    ("sinval-lap", include_str!("../../../scenarios/sinval-lap.toml")),
    ("slot-creation-wait", include_str!("../../../scenarios/slot-creation-wait.toml")),
    ("standby-gaps", include_str!("../../../scenarios/standby-gaps.toml")),
    ("subxact-cliff", include_str!("../../../scenarios/subxact-cliff.toml")),
    ("subxact-eviction", include_str!("../../../scenarios/subxact-eviction.toml")),
    ("temp-table-churn", include_str!("../../../scenarios/temp-table-churn.toml")),
    ("truncate-partitions", include_str!("../../../scenarios/truncate-partitions.toml")),
    ("unpublished-flood", include_str!("../../../scenarios/unpublished-flood.toml")),
];

/// Longest text of a scenario, in bytes.
pub const TEXT_BYTES_MAX: usize = 1 << 20;
/// So much of a name that there is not is repeated in the error.
const NAME_CHARS_SHOWN: usize = 64;

/// A scenario file is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("scenario '{}'{}: {message}", scenario.escape_debug(), place(*line, *column))]
pub struct ScenarioError {
    /// The file or the shipped scenario, or how its text was called.
    pub scenario: String,
    /// Line, from 1; 0 if no place in the text is to blame (an override, an unknown name).
    pub line: usize,
    /// Column in characters, from 1; 0 like `line`.
    pub column: usize,
    /// What is wrong and what would be right.
    pub message: String,
}

/// Values of parameters that replace the file's.
pub type Overrides = BTreeMap<String, ParameterValue>;

/// A scenario, read and checked but for its sizes.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What errors call it.
    source: String,
    /// Its text, for places in errors.
    text: String,
    /// What it says.
    file: ScenarioFile,
}

impl Scenario {
    /// Names of the scenarios that ship.
    pub fn names() -> impl Iterator<Item = &'static str> + Clone {
        SHIPPED.into_iter().map(|(name, _)| name)
    }

    /// A scenario by the name of a shipped one, or by its text.
    ///
    /// # Errors
    /// [`ScenarioError`]: no such name, or a wrong text.
    pub fn load(name_or_text: &str) -> Result<Scenario, ScenarioError> {
        if let Some((name, text)) = SHIPPED.iter().find(|(name, _)| *name == name_or_text.trim()) {
            return Scenario::parse(name, text);
        }
        if name_or_text.contains(['\n', '=']) {
            return Scenario::parse("text", name_or_text);
        }
        let message = format!("no scenario has this name{}", nearest::suggest(name_or_text.trim(), Scenario::names()));
        let scenario: String = name_or_text.chars().take(NAME_CHARS_SHOWN).collect();
        Err(ScenarioError { scenario, line: 0, column: 0, message })
    }

    /// Reads a scenario's text; `source` is what errors call it.
    ///
    /// # Errors
    /// [`ScenarioError`] with the place of the first thing that is wrong.
    pub fn parse(source: &str, text: &str) -> Result<Scenario, ScenarioError> {
        Scenario::check(source, text).map_err(first)
    }

    /// Reads a scenario's text; `source` is what errors call it.
    ///
    /// # Errors
    /// Everything that is wrong, in the order of the text.
    pub fn check(source: &str, text: &str) -> Result<Scenario, Vec<ScenarioError>> {
        let error = |line, column, message| ScenarioError { scenario: source.to_owned(), line, column, message };
        if text.len() > TEXT_BYTES_MAX {
            let message = format!("{} bytes are too many for a scenario: at most {TEXT_BYTES_MAX}", text.len());
            return Err(vec![error(0, 0, message)]);
        }
        let at = |offset: usize, message: String| {
            let (line, column) = position(text, offset);
            error(line, column, message)
        };
        let wrong = |wrong: toml::de::Error| vec![at(wrong.span().map_or(0, |span| span.start), printable(wrong.message()))];
        let errors = schema::check(&DeTable::parse(text).map_err(wrong)?);
        if !errors.is_empty() {
            let mut errors: Vec<ScenarioError> = errors.into_iter().map(|(offset, message)| at(offset, message)).collect();
            errors.sort_by_key(|error| (error.line, error.column));
            return Err(errors);
        }
        let file: ScenarioFile = toml::from_str(text).map_err(wrong)?;
        let scenario = Scenario { source: source.to_owned(), text: text.to_owned(), file };
        resolve::plan(&scenario.file, source, text, &Overrides::new())?;
        Ok(scenario)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.file.name.get_ref()
    }

    /// What it tells, in a few lines.
    #[must_use]
    pub fn story(&self) -> &str {
        self.file.story.trim()
    }

    /// The seed that the file gives.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.file.seed
    }

    /// Figures that others published about the incident.
    #[must_use]
    pub fn published(&self) -> &[String] {
        &self.file.published
    }

    /// Parameters with the file's values.
    #[must_use]
    pub fn parameters(&self) -> &BTreeMap<String, ParameterValue> {
        &self.file.parameters
    }

    /// Values of parameters at which it is played in a second or two.
    #[must_use]
    pub fn small(&self) -> &Overrides {
        &self.file.small
    }

    /// The points of its sweep; one, with nothing replaced, if it has none.
    ///
    /// # Errors
    /// [`ScenarioError`]: a range without end, too many points.
    pub fn sweep(&self) -> Result<Vec<SweepPoint>, ScenarioError> {
        sweep::points(&self.file).map_err(|message| {
            let start = self.file.sweep.as_ref().map_or(0, |sweep| sweep.span().start);
            let (line, column) = position(&self.text, start);
            ScenarioError { scenario: self.source.clone(), line, column, message }
        })
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Everything with its numbers.
    ///
    /// # Errors
    /// [`ScenarioError`]: an override of a parameter that the file does not have, or a value that makes no sense where it is used.
    pub fn plan(&self, overrides: &Overrides) -> Result<Plan, ScenarioError> {
        resolve::plan(&self.file, &self.source, &self.text, overrides).map_err(first)
    }

    /// Runs from beginning to end.
    ///
    /// `progress` is called after every step. See [`Engine`] for running step by step.
    ///
    /// # Errors
    /// [`PrimaryError`].
    pub fn run(
        &self,
        overrides: &Overrides,
        clock: &mut dyn Clock,
        rng: &mut dyn Rng,
        sink: &mut dyn WalSink,
        mut progress: impl FnMut(&Engine, &Step),
    ) -> Result<RunSummary, PrimaryError> {
        let mut engine = Engine::new(self.plan(overrides)?, sink.version())?;
        loop {
            let step = engine.step(clock, rng, sink)?;
            progress(&engine, &step);
            if matches!(step, Step::Done) {
                return Ok(engine.summary().clone());
            }
        }
    }
}

/// The first of some errors; there is one.
fn first(errors: Vec<ScenarioError>) -> ScenarioError {
    errors.into_iter().next().unwrap_or_else(|| ScenarioError {
        scenario: String::new(),
        line: 0,
        column: 0,
        message: "something is wrong with it".to_owned(),
    })
}

/// A message without control characters, which a text could have put into it.
fn printable(message: &str) -> String {
    message.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A place for people; none if there is none.
fn place(line: usize, column: usize) -> String {
    if line == 0 { String::new() } else { format!(", line {line}, column {column}") }
}

/// Line and column of a byte offset, from 1.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    (line, column)
}
