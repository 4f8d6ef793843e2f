//! Checking rules: what holds, and which traces break what does not.

use crate::rules::{CountRule, ForbidRule, LimitRule, Rules};
use crate::span::{TraceId, Value};
use crate::stages::{PathOptions, Stages, Times};
use crate::store::{Record, TraceStore};
use crate::tree::{Tree, each_tree};

/// Traces that are named of those that break a rule.
const EXAMPLES_MAX: usize = 5;
/// Stages that are named when one is not there.
const STAGES_TOLD_MAX: usize = 20;

/// A trace that breaks a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// Which.
    pub trace: TraceId,
    /// In what.
    pub why: String,
}

/// A time that is over its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// `p50`, `p95`, `p99` or `max`.
    pub quantile: &'static str,
    /// What was found.
    pub found_ns: u64,
    /// What may be.
    pub max_ns: u64,
}

/// What came of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The rule, in words.
    pub name: String,
    /// Traces or spans that were looked at.
    pub checked: u64,
    /// Those that break it.
    pub broken: u64,
    /// Some of them.
    pub examples: Vec<Example>,
    /// Times over their limits.
    pub over: Vec<Over>,
    /// Why it is broken as a whole, if it is for another reason.
    pub why: Option<String>,
}

impl Outcome {
    /// Of a rule, before anything was looked at.
    fn of(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Whether it holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.broken == 0 && self.over.is_empty() && self.why.is_none()
    }

    /// A trace breaks it.
    fn broken_by(&mut self, trace: TraceId, why: impl FnOnce() -> String) {
        self.broken += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(Example { trace, why: why() });
        }
    }
}

/// Checks all rules, in the order of the file.
#[must_use]
pub fn check(store: &TraceStore, rules: &Rules, options: &PathOptions) -> Vec<Outcome> {
    let mut outcomes: Vec<Outcome> = rules.count.iter().map(|rule| count(store, rule)).collect();
    outcomes.extend(rules.forbid.iter().map(|rule| forbid(store, rule)));
    if !rules.limit.is_empty() {
        let stages = Stages::of(store, options, &mut |_, _| ());
        outcomes.extend(rules.limit.iter().map(|rule| limit(store, rule, &stages)));
    }
    outcomes.extend(structure(store, rules));
    outcomes
}

/// Whether a span has a name, which may be given with its service. Names are compared once an operation, not once a span.
fn named(store: &TraceStore, wanted: &str) -> Vec<bool> {
    let is_it = |operation: u32| {
        let (service, name) = store.service_and_name(operation);
        name == wanted || wanted.strip_prefix(service).and_then(|rest| rest.strip_prefix(": ")) == Some(name)
    };
    (0..store.operations().len() as u32).map(is_it).collect()
}

/// Counts spans in each trace.
fn count(store: &TraceStore, rule: &CountRule) -> Outcome {
    let mut outcome = Outcome::of(&rule.name);
    let (per, counted) = (named(store, &rule.per), named(store, &rule.span));
    let least = rule.exactly.or(rule.at_least).unwrap_or(0);
    let most = rule.exactly.or(rule.at_most).unwrap_or(u64::MAX);
    each_tree(store, &mut |tree: &Tree| {
        let of = |names: &[bool]| tree.spans().filter(|span| names[store.record(*span).operation as usize]).count() as u64;
        let Some(first) = tree.spans().next().filter(|_| of(&per) > 0) else { return };
        outcome.checked += 1;
        let n = of(&counted);
        if !(least..=most).contains(&n) {
            outcome.broken_by(store.record(first).trace, || format!("{n} of {}", rule.span));
        }
    });
    if outcome.checked == 0 && !rule.may_be_absent {
        outcome.why = Some(format!("nothing to check: no span is named {}", rule.per));
    }
    outcome
}

/// Looks for spans that must not be.
fn forbid(store: &TraceStore, rule: &ForbidRule) -> Outcome {
    let mut outcome = Outcome::of(&rule.name);
    let names = rule.span.as_ref().map(|span| named(store, span));
    for record in store.records() {
        if names.as_ref().is_some_and(|names| !names[record.operation as usize]) {
            continue;
        }
        outcome.checked += 1;
        let equal =
            rule.equal.iter().all(|(key, wanted)| store.value(record, key).is_some_and(|value| is_equal(&value, wanted)));
        let above = rule.above.iter().all(|(key, limit)| store.number(record, key).is_some_and(|value| value > *limit));
        if equal && above {
            outcome.broken_by(record.trace, || described(store, record, rule));
        }
    }
    outcome
}

/// Whether an attribute has the value that a rule names.
fn is_equal(value: &Value<'_>, wanted: &toml::Value) -> bool {
    match wanted {
        toml::Value::String(text) => value.to_string() == *text,
        toml::Value::Boolean(flag) => *value == Value::Bool(*flag),
        toml::Value::Integer(n) => value.number() == Some(*n as f64),
        toml::Value::Float(n) => value.number() == Some(*n),
        _ => false,
    }
}

/// A forbidden span in words: what the rule does not say itself.
fn described(store: &TraceStore, record: &Record, rule: &ForbidRule) -> String {
    let of = |key: &String| store.value(record, key).map(|value| format!(", {key} = {value}"));
    let attributes: String = rule.above.keys().filter_map(of).collect();
    format!("{}{attributes}", store.label(record.operation))
}

/// Measures a stage, or spans of a name.
fn limit(store: &TraceStore, rule: &LimitRule, stages: &Stages) -> Outcome {
    let mut outcome = Outcome::of(&rule.name);
    let rows = stages.rows();
    let mut of_spans = Times::default();
    let times = match (&rule.stage, &rule.span) {
        (Some(stage), _) if stage == crate::diff::TOTAL => Some(&stages.total),
        (Some(stage), _) => rows.iter().find(|row| row.stage.label(store) == *stage).map(|row| row.times),
        (None, span) => {
            let names = named(store, span.as_deref().unwrap_or_default());
            let spans = store.records().iter().filter(|record| names[record.operation as usize]);
            spans.for_each(|record| of_spans.add(record.duration_ns()));
            Some(&of_spans).filter(|times| times.count() > 0)
        }
    };
    let Some(times) = times else {
        if !rule.may_be_absent {
            let there: Vec<String> = rows.iter().take(STAGES_TOLD_MAX).map(|row| row.stage.label(store)).collect();
            let what = rule.stage.as_ref().or(rule.span.as_ref()).cloned().unwrap_or_default();
            outcome.why = Some(format!("nothing to check: there is no {what}; stages are: {}", there.join("; ")));
        }
        return outcome;
    };
    outcome.checked = times.count();
    outcome.over = rule
        .limits()
        .into_iter()
        .filter_map(|(name, quantile, max_ns)| {
            let found_ns = if quantile < 1.0 { times.quantile_ns(quantile) } else { times.max_ns() };
            (found_ns > max_ns).then_some(Over { quantile: name, found_ns, max_ns })
        })
        .collect();
    outcome
}

/// Compares what is wrong with what may be.
fn structure(store: &TraceStore, rules: &Rules) -> Vec<Outcome> {
    let damage = store.damage;
    let found = [damage.orphans, damage.unresolved_links, damage.cycles, damage.duplicates, damage.backwards];
    let limits = rules.structure.as_ref().map(|structure| structure.limits()).unwrap_or_default();
    let mut outcomes = Vec::new();
    for (at, ((what, max), found)) in limits.into_iter().zip(found).enumerate() {
        let Some(max) = max else { continue };
        let mut outcome = Outcome { checked: store.records().len() as u64, ..Outcome::of(&format!("at most {max} {what}")) };
        if found > max {
            outcome.why = Some(format!("there are {found}"));
            outcome.examples = if at == 0 { orphans(store) } else { Vec::new() };
        }
        outcomes.push(outcome);
    }
    outcomes
}

/// Some spans without their parents.
fn orphans(store: &TraceStore) -> Vec<Example> {
    let is_orphan = |record: &&Record| !record.parent.is_zero() && store.find(record.trace, record.parent).is_none();
    let described = |record: &Record| {
        let why = format!("{} {} has parent {}", store.label(record.operation), record.id, record.parent);
        Example { trace: record.trace, why }
    };
    store.records().iter().filter(is_orphan).take(EXAMPLES_MAX).map(described).collect()
}
