//! From the file to the plan: parameters become numbers, names are checked, limits are kept.
//!
//! A scenario may come from outside, so everything that sizes memory or work has a limit; a larger value is an error that names
//! it, never a slow death.

use std::ops::Range;

use toml::Spanned;

use super::amount::{Amount, PauseFile, parse_duration};
use super::file::{ActorFile, ScenarioFile, TableFile};
use super::plan::{ActorPlan, DecoderHints, Pause, Plan, ServerPlan, TablePlan};
use super::{Overrides, ParameterValue, ScenarioError, Template, position};
use crate::ddl::column::Column;

/// Most tables (with partitions) before the log begins.
const TABLES_MAX: u64 = 200_000;
/// Most rows of one statement or table.
pub(super) const ROWS_MAX: u64 = 10_000_000;
/// Most sessions in all: MaxBackends of the server.
const SESSIONS_MAX: u64 = 262_143;
/// Most transactions of a session.
const TRANSACTIONS_MAX: u64 = 100_000_000;
/// Longest time: a year.
const TIME_MAX_US: u64 = 366 * 86_400 * 1_000_000;
/// Longest row in a record: a page holds it.
const ROW_LEN_MAX: u64 = 8_000;

/// Reads with the file's text and the overridden parameters at hand.
pub(super) struct Resolver<'a> {
    /// The file.
    file: &'a ScenarioFile,
    /// Its text, for places.
    text: &'a str,
    /// Parameters that replace the file's.
    overrides: &'a Overrides,
}

/// Result with the sentence that an error will say; the place is added where it is known.
pub(super) type Said<T> = Result<T, String>;

/// Everything with its numbers.
pub(super) fn plan(file: &ScenarioFile, text: &str, overrides: &Overrides) -> Result<Plan, ScenarioError> {
    let resolver = Resolver { file, text, overrides };
    resolver.check_name()?;
    resolver.check_overrides()?;
    resolver.plan()
}

impl Resolver<'_> {
    /// An error at a place.
    fn error(&self, span: Range<usize>, message: String) -> ScenarioError {
        let (line, column) = position(self.text, span.start);
        ScenarioError { scenario: self.file.name.get_ref().escape_debug().to_string(), line, column, message }
    }

    /// `[a-z0-9_-]{1,63}`.
    fn check_name(&self) -> Result<(), ScenarioError> {
        let name = self.file.name.get_ref();
        let good = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'_');
        if !name.is_empty() && name.len() <= 63 && name.bytes().all(good) {
            return Ok(());
        }
        let message = "a scenario's name is 1 to 63 lower-case letters, digits, '-' and '_'".to_owned();
        Err(self.error(self.file.name.span(), message))
    }

    /// Only parameters that the file has can be overridden.
    fn check_overrides(&self) -> Result<(), ScenarioError> {
        match self.overrides.keys().find(|name| !self.file.parameters.contains_key(*name)) {
            None => Ok(()),
            Some(name) => {
                let known: Vec<&str> = self.file.parameters.keys().map(String::as_str).collect();
                let message =
                    format!("there is no parameter '{}' to override; there are: {}", name.escape_debug(), known.join(", "));
                Err(ScenarioError { line: 0, column: 0, ..self.error(0..0, message) })
            }
        }
    }

    /// The plan.
    fn plan(&self) -> Result<Plan, ScenarioError> {
        let file = self.file;
        let server = &file.server;
        let hint = |amount: &Option<Spanned<Amount>>| self.optional(amount, |a| self.number(a, 0, 10_000).map(|n| n as u32));
        let duration_us = self.optional(&file.duration, |a| self.duration(a))?;
        let plan = Plan {
            name: file.name.get_ref().clone(),
            duration_us,
            server: ServerPlan {
                max_connections: self.or(&server.max_connections, 100, |a| self.number(a, 1, SESSIONS_MAX))? as u32,
                max_prepared_transactions: self.or(&server.max_prepared_transactions, 0, |a| self.number(a, 0, SESSIONS_MAX))?
                    as u32,
                checkpoint_every_us: self.or(&server.checkpoint_every, 300_000_000, |a| self.positive_duration(a))?,
                running_xacts_every_us: self.or(&server.running_xacts_every, 15_000_000, |a| self.positive_duration(a))?,
                first_xid: self.or(&server.first_xid, 731, |a| self.number(a, 3, u64::from(u32::MAX)))?,
            },
            decoder: DecoderHints {
                syscache_callbacks: hint(&file.decoder.syscache_callbacks)?,
                relcache_callbacks: hint(&file.decoder.relcache_callbacks)?,
                caches_in_use: hint(&file.decoder.caches_in_use)?,
            },
            snapshots_per_second: self.or(&file.readers.snapshots_per_second, 0, |a| self.number(a, 0, 1_000_000))?,
            tables: file.tables.iter().map(|table| self.table(table)).collect::<Result<_, _>>()?,
            actors: (0..file.actors.len()).map(|index| self.actor(index, duration_us)).collect::<Result<_, _>>()?,
        };
        let tables: u64 = plan.tables.iter().map(|t| t.count.saturating_mul(1 + t.partitions.unwrap_or(0))).sum();
        if tables > TABLES_MAX {
            return Err(self.error(file.name.span(), format!("{tables} tables are too many: at most {TABLES_MAX}")));
        }
        let sessions: u64 = plan.actors.iter().map(|actor| actor.sessions).sum();
        if sessions > u64::from(plan.server.max_connections) {
            let message =
                format!("{sessions} sessions are more than max_connections = {}: raise it", plan.server.max_connections);
            return Err(self.error(file.name.span(), message));
        }
        Ok(plan)
    }

    /// One `[[tables]]`.
    fn table(&self, table: &TableFile) -> Result<TablePlan, ScenarioError> {
        let count = self.or(&table.count, 1, |a| self.number(a, 1, TABLES_MAX))?;
        let name = self.at(&table.name, |name| self.template(name))?;
        if count > 1 && !name.counts() {
            let message = format!("{count} tables cannot have one name: put '{{i}}' into it");
            return Err(self.error(table.name.span(), message));
        }
        let columns = table.columns.iter().map(|column| self.at(column, |text| Column::parse(text)));
        Ok(TablePlan {
            name,
            count,
            columns: columns.collect::<Result<_, _>>()?,
            partitions: self.optional(&table.partitions, |a| self.number(a, 1, TABLES_MAX))?,
            rows: self.or(&table.rows, 0, |a| self.number(a, 0, ROWS_MAX))?,
            row_len: self.optional(&table.row_bytes, |a| self.number(a, 6, ROW_LEN_MAX).map(|n| n as u32))?,
        })
    }

    /// One `[[actors]]`.
    fn actor(&self, index: usize, duration_us: Option<u64>) -> Result<ActorPlan, ScenarioError> {
        let actor: &ActorFile = &self.file.actors[index];
        let transactions = self.optional(&actor.transactions, |a| self.number(a, 0, TRANSACTIONS_MAX))?;
        if transactions.is_none() && (duration_us.is_none() || actor.every.is_none()) {
            let message = "an actor without a number of 'transactions' needs 'every', and the scenario a 'duration'".to_owned();
            return Err(self.error(actor.name.span(), message));
        }
        let after = actor.after.iter().map(|name| {
            let found = self.file.actors[..index].iter().position(|other| other.name.get_ref() == name.get_ref());
            let message = || format!("no actor above is named '{}'", name.get_ref().escape_debug());
            found.ok_or_else(|| self.error(name.span(), message()))
        });
        let every = self.optional(&actor.every, |pause| self.pause(pause))?;
        if every.is_some_and(|every| every.to_us == 0) && transactions.is_none() {
            let message = "an actor that runs for a time needs some time from one transaction to the next".to_owned();
            return Err(self.error(actor.name.span(), message));
        }
        Ok(ActorPlan {
            name: self.at(&actor.name, |name| self.template(name).map(|_| name.clone()))?,
            sessions: self.or(&actor.sessions, 1, |a| self.number(a, 1, SESSIONS_MAX))?,
            start: self.or(&actor.start, Pause { from_us: 0, to_us: 0 }, |pause| self.pause(pause))?,
            after: after.collect::<Result<_, _>>()?,
            every,
            transactions,
            rollback_percent: self.or(&actor.rollback_percent, 0, |a| self.number(a, 0, 100))?,
            statements: actor.steps.iter().map(|step| self.at(step, |s| self.statement(s))).collect::<Result<_, _>>()?,
        })
    }

    /// A name with blanks.
    pub(super) fn template(&self, text: &str) -> Said<Template> {
        Template::parse(text, |name| self.parameter(name))
    }

    /// A parameter's value, overridden or from the file.
    fn parameter(&self, name: &str) -> Option<&ParameterValue> {
        self.overrides.get(name).or_else(|| self.file.parameters.get(name))
    }

    /// An amount with parameters replaced.
    fn value(&self, amount: &Amount) -> Said<Amount> {
        let Amount::Text(text) = amount else { return Ok(amount.clone()) };
        let Some(name) = text.strip_prefix('$') else { return Ok(amount.clone()) };
        match self.parameter(name) {
            Some(ParameterValue::Number(number)) => Ok(Amount::Number(*number)),
            Some(ParameterValue::Text(text)) => Ok(Amount::Text(text.clone())),
            None => Err(format!("there is no parameter '{}' under [parameters]", name.escape_debug())),
        }
    }

    /// A number within limits.
    pub(super) fn number(&self, amount: &Amount, min: u64, max: u64) -> Said<u64> {
        match self.value(amount)? {
            Amount::Number(number) if (min..=max).contains(&number) => Ok(number),
            Amount::Number(number) => Err(format!("{number} is out of range: it must be {min} to {max}")),
            Amount::Text(text) => Err(format!("'{}' is no number", text.escape_debug())),
        }
    }

    /// A length of time in microseconds.
    pub(super) fn duration(&self, amount: &Amount) -> Said<u64> {
        let refused =
            |what: String| format!("{what} is no length of time: write a number and a unit, as \"5ms\" (us, ms, s, min, h)");
        match self.value(amount)? {
            Amount::Text(text) => match parse_duration(&text) {
                Some(us) if us <= TIME_MAX_US => Ok(us),
                Some(_) => Err(format!("'{text}' is longer than a year")),
                None => Err(refused(format!("'{}'", text.escape_debug()))),
            },
            Amount::Number(number) => Err(refused(number.to_string())),
        }
    }

    /// A length of time that is not 0.
    fn positive_duration(&self, amount: &Amount) -> Said<u64> {
        self.duration(amount).and_then(|us| if us > 0 { Ok(us) } else { Err("this must not be 0".to_owned()) })
    }

    /// A fixed or drawn length of time.
    pub(super) fn pause(&self, pause: &PauseFile) -> Said<Pause> {
        let (from_us, to_us) = (self.duration(&pause.from)?, self.duration(&pause.to)?);
        if from_us > to_us { Err("'from' is longer than 'to'".to_owned()) } else { Ok(Pause { from_us, to_us }) }
    }

    /// Puts the place to what `read` says of a field.
    fn at<T, U>(&self, field: &Spanned<T>, read: impl FnOnce(&T) -> Said<U>) -> Result<U, ScenarioError> {
        read(field.get_ref()).map_err(|message| self.error(field.span(), message))
    }

    /// The same of a field that may be missing.
    fn optional<T, U>(&self, field: &Option<Spanned<T>>, read: impl FnOnce(&T) -> Said<U>) -> Result<Option<U>, ScenarioError> {
        field.as_ref().map(|field| self.at(field, read)).transpose()
    }

    /// The same with a value for a missing field.
    fn or<T, U>(&self, field: &Option<Spanned<T>>, missing: U, read: impl FnOnce(&T) -> Said<U>) -> Result<U, ScenarioError> {
        Ok(self.optional(field, read)?.unwrap_or(missing))
    }
}
