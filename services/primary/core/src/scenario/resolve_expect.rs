//! Expectations, small sizes and sweeps with parameters put in.

use super::amount::parse_duration;
use super::at::At;
use super::expect::{Expectation, Names};
use super::file::ExpectFile;
use super::nearest::suggest;
use super::resolve::Resolver;
use super::sweep;
use super::{ParameterValue, position};

/// Most expectations of a scenario.
const EXPECTATIONS_MAX: usize = 1_000;
/// Versions of PostgreSQL whose WAL there is.
const VERSIONS: (u64, u64) = (13, 18);

impl Resolver<'_> {
    /// All `[[expect]]`; `[small]` and `[sweep]` are checked on the way, since they are about the same parameters.
    pub(super) fn expectations(&self) -> Vec<Expectation> {
        for name in self.file.small.keys().filter(|name| !self.file.parameters.contains_key(*name)) {
            let near = suggest(name, self.file.parameters.keys().map(String::as_str));
            let message = format!("[small] names the parameter '{}', which there is not{near}", name.escape_debug());
            self.error(self.file.name.span(), message);
        }
        if let (Some(sweep), Err(message)) = (&self.file.sweep, sweep::points(self.file)) {
            self.error(sweep.span(), message);
        }
        let parameters = self.file.parameters.keys().filter_map(|name| Some((name.as_str(), self.parameter_number(name)?)));
        let actors = self.file.actors.iter().map(|actor| actor.name.get_ref().as_str());
        let names = Names { parameters: parameters.collect(), actors: actors.collect() };
        if self.file.expect.len() > EXPECTATIONS_MAX {
            self.error(self.file.name.span(), format!("too many expectations: at most {EXPECTATIONS_MAX}"));
        }
        self.file.expect.iter().take(EXPECTATIONS_MAX).filter_map(|expect| self.expectation(expect, &names)).collect()
    }

    /// One of them.
    fn expectation(&self, expect: &ExpectFile, names: &Names<'_>) -> Option<Expectation> {
        let version = |field: &Option<At<u64>>, missing| {
            self.or(field, missing, |version| match version {
                version if (VERSIONS.0..=VERSIONS.1).contains(version) => Ok(*version),
                _ => Err(format!("{version} is out of range: it must be {} to {}", VERSIONS.0, VERSIONS.1)),
            })
        };
        let versions = (version(&expect.from_version, VERSIONS.0), version(&expect.to_version, VERSIONS.1));
        if versions.0 > versions.1 {
            self.error(expect.that.span(), "'from_version' is above 'to_version': it would be about no version at all");
        }
        let parsed = Expectation::parse(expect.that.get_ref(), versions, names);
        // The text begins after its quotes. Where escapes make it another than that of the file, there is one place for all of it.
        let (span, that) = (expect.that.span(), expect.that.get_ref());
        let found = self.text.get(span.clone()).and_then(|written| written.find(that.as_str()));
        let start = span.start + found.unwrap_or(0);
        let place = |at: usize| if found.is_some() { start + at } else { start };
        let mut expectation = parsed.map_err(|(at, message)| self.error(place(at)..place(at), message)).ok()?;
        (expectation.line, expectation.column) = position(self.text, start);
        Some(expectation)
    }

    /// A parameter's value as a number; times in seconds.
    fn parameter_number(&self, name: &str) -> Option<f64> {
        match self.parameter(name)? {
            ParameterValue::Number(number) => Some(*number as f64),
            ParameterValue::Text(text) => parse_duration(text).map(|us| us as f64 / 1e6),
        }
    }
}
