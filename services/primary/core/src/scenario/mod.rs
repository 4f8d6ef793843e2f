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
mod file;
mod plan;
mod resolve;
mod resolve_step;
mod statement;
mod step;
mod template;

use std::collections::BTreeMap;

use rand::Rng;

pub use file::ParameterValue;
pub use plan::{ActorPlan, DecoderHints, Pause, Plan, ServerPlan, TablePlan};
pub use statement::{StatementPlan, Target};
pub use template::{Blanks, Template};

use crate::clock::Clock;
use crate::engine::{Engine, RunSummary, Step};
use crate::error::PrimaryError;
use crate::sink::WalSink;
use file::ScenarioFile;

/// The scenarios that ship, by name.
const SHIPPED: [(&str, &str); 3] = [
    ("catalog-churn", include_str!("../../../scenarios/catalog-churn.toml")),
    ("standby-gaps", include_str!("../../../scenarios/standby-gaps.toml")),
    ("truncate-partitions", include_str!("../../../scenarios/truncate-partitions.toml")),
];

/// A scenario file is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("scenario '{scenario}', line {line}, column {column}: {message}")]
pub struct ScenarioError {
    /// The scenario's name, or how its text was called.
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
    /// Its text, for places in errors.
    text: String,
    /// What it says.
    file: ScenarioFile,
}

impl Scenario {
    /// Names of the scenarios that ship.
    pub fn names() -> impl Iterator<Item = &'static str> {
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
        let names: Vec<&str> = Scenario::names().collect();
        Err(ScenarioError {
            scenario: name_or_text.escape_debug().to_string(),
            line: 0,
            column: 0,
            message: format!("no scenario has this name; there are {}", names.join(", ")),
        })
    }

    /// Reads a scenario's text; `source` is what errors call it until its own name is known.
    ///
    /// # Errors
    /// [`ScenarioError`] with the place of the first thing that is wrong.
    pub fn parse(source: &str, text: &str) -> Result<Scenario, ScenarioError> {
        let file: ScenarioFile = toml::from_str(text).map_err(|error| {
            let (line, column) = position(text, error.span().map_or(0, |span| span.start));
            ScenarioError { scenario: source.to_owned(), line, column, message: error.message().to_owned() }
        })?;
        let scenario = Scenario { text: text.to_owned(), file };
        scenario.plan(&Overrides::new())?;
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

    /// Everything with its numbers.
    ///
    /// # Errors
    /// [`ScenarioError`]: an override of a parameter that the file does not have, or a value that makes no sense where it is used.
    pub fn plan(&self, overrides: &Overrides) -> Result<Plan, ScenarioError> {
        resolve::plan(&self.file, &self.text, overrides)
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

/// Line and column of a byte offset, from 1.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    (line, column)
}
