//! `walstorm scenarios validate`.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use primary_core::scenario::{CounterSource, Plan};
use primary_core::{Overrides, Scenario, ScenarioError};
use serde_json::json;
use service_kit::printable;

/// Checks each file and writes everything that is wrong.
///
/// # Errors
/// The output cannot be written. A file that cannot be read counts as wrong.
pub fn validate(files: &[String], json: bool, out: &mut dyn Write) -> anyhow::Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for file in files {
        let errors = errors_of(file);
        if errors.is_empty() {
            match json {
                true => writeln!(out, "{}", json!({ "file": file, "ok": true }))?,
                false => writeln!(out, "{}: ok", printable(file))?,
            }
            continue;
        }
        code = ExitCode::FAILURE;
        for error in errors {
            let ScenarioError { line, column, message, .. } = error;
            if json {
                writeln!(out, "{}", json!({ "file": file, "line": line, "column": column, "message": message }))?;
            } else if line == 0 {
                writeln!(out, "{}: {}", printable(file), printable(&message))?;
            } else {
                writeln!(out, "{}:{line}:{column}: {}", printable(file), printable(&message))?;
            }
        }
    }
    Ok(code)
}

/// Everything that is wrong with a file or a shipped scenario.
fn errors_of(file: &str) -> Vec<ScenarioError> {
    let scenario = match Path::new(file).exists() {
        false => Scenario::load(file).map_err(|error| vec![error]),
        true => match service_kit::config::read_text(Path::new(file)) {
            Ok(text) => Scenario::check(file, &text),
            Err(error) => {
                let message = service_kit::error_text(&error);
                Err(vec![ScenarioError { scenario: file.to_owned(), line: 0, column: 0, message }])
            }
        },
    };
    let whole = scenario.and_then(|scenario| {
        let plan = scenario.plan(&Overrides::new()).map_err(|error| vec![error])?;
        scenario.plan(scenario.small()).map_err(|error| vec![small(error)])?;
        Ok(plan)
    });
    match whole {
        Ok(plan) => unknown_profiles(file, &plan),
        Err(errors) => errors,
    }
}

/// An error that only the small size makes.
fn small(error: ScenarioError) -> ScenarioError {
    ScenarioError { message: format!("with [small]: {}", error.message), ..error }
}

/// Expectations that name a profile which there is not: only who has the decoder and the standby at hand can know.
fn unknown_profiles(file: &str, plan: &Plan) -> Vec<ScenarioError> {
    let mut errors = Vec::new();
    for expectation in &plan.expect {
        for counter in expectation.counters() {
            let profile = counter.of.as_deref().unwrap_or("");
            let wrong = match counter.source() {
                CounterSource::Primary => continue,
                CounterSource::Decoder => profile.parse::<decoder_core::Profile>().err().map(|error| error.to_string()),
                CounterSource::Standby => profile.parse::<standby_core::StandbyProfile>().err().map(|error| error.to_string()),
            };
            errors.extend(wrong.map(|why| ScenarioError {
                scenario: file.to_owned(),
                line: expectation.line,
                column: expectation.column,
                message: format!("{}: {why}", expectation.text.escape_debug()),
            }));
        }
    }
    errors
}
