//! One transaction: found by its trace's id, its xid or a position in the log, and held with the batches that carried it.

use crate::error::Result;
use crate::read::{ReadReport, Source};
use crate::span::{Span, TraceId, Value};
use crate::store::{Attributes, StoreConfig, TraceStore};

/// Traces that are named when several fit.
const CHOICES_MAX: usize = 10;
/// Attributes with positions in the log between which a transaction lies: its begin, or its commit, and its end.
const FIRST: [&str; 2] = ["walstorm.first_lsn", "walstorm.commit_lsn"];
/// See [`FIRST`].
const LAST: [&str; 2] = ["walstorm.end_lsn", "walstorm.commit_lsn"];

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A trace.
    Trace(TraceId),
    /// A transaction id.
    Xid(i64),
    /// A position in the log, as a number.
    Lsn(u64),
}

impl std::str::FromStr for Wanted {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        if let Some(lsn) = lsn(text) {
            return Ok(Wanted::Lsn(lsn));
        }
        if text.len() <= 10
            && let Ok(xid) = text.parse()
        {
            return Ok(Wanted::Xid(xid));
        }
        let id =
            text.parse().map_err(|_| "give a trace's id (32 hexadecimal digits), an xid (763) or a position (0/A05360)")?;
        Ok(Wanted::Trace(id))
    }
}

/// A position as PostgreSQL writes it: `0/A05360`.
fn lsn(text: &str) -> Option<u64> {
    let (high, low) = text.split_once('/')?;
    let part = |digits: &str| u32::from_str_radix(digits, 16).ok();
    Some(u64::from(part(high)?) << 32 | u64::from(part(low)?))
}

/// A trace that fits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its id.
    pub trace: TraceId,
    /// Its xid, if a span says it.
    pub xid: Option<String>,
    /// Its commit's position, likewise.
    pub commit_lsn: Option<String>,
    /// Begin of the span that fits.
    pub start: u64,
}

/// The traces that fit, at most ten of them, and whether there are more.
///
/// # Errors
/// The source cannot be read.
pub fn find(source: &Source, wanted: Wanted, progress: &dyn Fn(u64)) -> Result<(Vec<Choice>, ReadReport)> {
    let mut choices: Vec<Choice> = Vec::new();
    let report = source.read(progress, &mut |span| {
        if fits(span, wanted) && choices.len() <= CHOICES_MAX && choices.iter().all(|choice| choice.trace != span.trace) {
            let text = |key: &str| span.attribute(key).map(ToString::to_string);
            let (xid, commit_lsn) = (text("walstorm.xid"), text("walstorm.commit_lsn"));
            choices.push(Choice { trace: span.trace, xid, commit_lsn, start: span.start });
        }
        Ok(())
    })?;
    // A position in the log is often within several transactions, but only one has its commit there.
    let commits = |choice: &Choice| matches!(wanted, Wanted::Lsn(at) if choice.commit_lsn.as_deref().and_then(lsn) == Some(at));
    if choices.iter().any(commits) {
        choices.retain(commits);
    }
    choices.sort_by_key(|choice| (choice.start, choice.trace));
    Ok((choices, report))
}

/// Whether a span is of what is looked for. Of positions, only spans with an xid tell: batches hold many transactions.
fn fits(span: &Span<'_>, wanted: Wanted) -> bool {
    match wanted {
        Wanted::Trace(trace) => span.trace == trace,
        Wanted::Xid(xid) => span.attribute("walstorm.xid").is_some_and(|value| *value == Value::Int(xid)),
        Wanted::Lsn(at) => {
            let position = |keys: [&str; 2]| {
                keys.iter().find_map(|key| match span.attribute(key) {
                    Some(Value::Text(text)) => lsn(text),
                    _ => None,
                })
            };
            let within = || Some((position(FIRST)?..=position(LAST)?).contains(&at));
            span.attribute("walstorm.xid").is_some() && within().unwrap_or(false)
        }
    }
}

/// Reads a trace, with all attributes, and the batches that carried it or may have.
///
/// # Errors
/// The source cannot be read, or more is to be held than may be.
pub fn load(source: &Source, trace: TraceId, bytes_max: u64, progress: &dyn Fn(u64)) -> Result<(TraceStore, ReadReport)> {
    let mut store = TraceStore::new(StoreConfig { bytes_max, attributes: Attributes::All, share: 1.0 });
    let report = source.read(progress, &mut |span| {
        let carries = || span.links_dropped > 0 || span.links.iter().any(|link| link.trace == trace);
        if span.trace == trace || carries() { store.push(span) } else { Ok(()) }
    })?;
    store.finish();
    Ok((store, report))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_looked_for_is_told_by_its_form() {
        assert_eq!("763".parse(), Ok(Wanted::Xid(763)));
        assert_eq!("1/A05360".parse(), Ok(Wanted::Lsn(0x1_00A0_5360)));
        let id = "1cde9c47b7a6874a1a80ed9acc583a86";
        assert_eq!(id.parse(), Ok(Wanted::Trace(id.parse().unwrap())));
        assert!("my transaction".parse::<Wanted>().is_err());
    }
}
