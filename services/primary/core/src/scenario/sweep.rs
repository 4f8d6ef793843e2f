//! Points of a sweep: combinations of parameters and seeds at which a scenario is to be played.

use super::file::{ScenarioFile, SweepRangeFile, SweepValuesFile};
use super::nearest::suggest;
use super::{Overrides, ParameterValue};

/// Most points of a sweep.
pub(super) const POINTS_MAX: usize = 1_000;

/// One point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SweepPoint {
    /// The seed.
    pub seed: u64,
    /// Parameters that replace the file's.
    pub overrides: Overrides,
}

/// All points, seeds innermost; one with nothing replaced if the file has no sweep.
///
/// # Errors
/// A sentence: an unknown parameter, a range that has no end, too many points.
pub(super) fn points(file: &ScenarioFile) -> Result<Vec<SweepPoint>, String> {
    let Some(sweep) = file.sweep.as_ref().map(|sweep| sweep.get_ref()) else {
        return Ok(vec![SweepPoint { seed: file.seed, overrides: Overrides::new() }]);
    };
    let mut all = vec![Overrides::new()];
    for (name, values) in &sweep.parameters {
        if !file.parameters.contains_key(name) {
            let near = suggest(name, file.parameters.keys().map(String::as_str));
            return Err(format!("there is no parameter '{}' to sweep over{near}", name.escape_debug()));
        }
        let values = match values {
            SweepValuesFile::List(values) => values.clone(),
            SweepValuesFile::Range(range) => range_values(name, range)?,
        };
        check_count(all.len().saturating_mul(values.len()))?;
        let with = |point: &Overrides, value: &ParameterValue| {
            let mut point = point.clone();
            point.insert(name.clone(), value.clone());
            point
        };
        all = all.iter().flat_map(|point| values.iter().map(move |value| with(point, value))).collect();
    }
    let seeds = if sweep.seeds.is_empty() { std::slice::from_ref(&file.seed) } else { &sweep.seeds };
    check_count(all.len().saturating_mul(seeds.len()))?;
    let points =
        all.iter().flat_map(|overrides| seeds.iter().map(|seed| SweepPoint { seed: *seed, overrides: overrides.clone() }));
    Ok(points.collect())
}

/// There are some points, and not too many.
fn check_count(count: usize) -> Result<(), String> {
    match count {
        0 => Err("a sweep over no value at all has no points".to_owned()),
        1..=POINTS_MAX => Ok(()),
        _ => Err(format!("{count} points of a sweep are too many: at most {POINTS_MAX}")),
    }
}

/// The numbers of a range.
fn range_values(name: &str, range: &SweepRangeFile) -> Result<Vec<ParameterValue>, String> {
    let next: Box<dyn Fn(u64) -> Option<u64>> = match (range.step, range.times) {
        (Some(step), None) if step > 0 => Box::new(move |value| value.checked_add(step)),
        (None, Some(times)) if times > 1 && range.from > 0 => Box::new(move |value| value.checked_mul(times)),
        _ => {
            let name = name.escape_debug();
            return Err(format!("the range of '{name}' needs 'step' above 0, or 'times' above 1 and 'from' above 0"));
        }
    };
    let values = std::iter::successors(Some(range.from), |value| next(*value)).take_while(|value| *value <= range.to);
    Ok(values.take(POINTS_MAX + 1).map(ParameterValue::Number).collect())
}
