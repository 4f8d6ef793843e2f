//! From the file to the plan: parameters become numbers, names are checked, limits are kept.
//!
//! A scenario may come from outside, so everything that sizes memory or work has a limit; a larger value is an error that names
//! it, never a slow death. All errors of a file are found: a field that is wrong is noted and stands for a harmless value.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;

use super::amount::Amount;
use super::at::At;
use super::file::{DecoderConsumerFile, ScenarioFile, TableFile, WalLevelFile};
use super::nearest::suggest;
use super::plan::{DecoderConsumer, DecoderHints, Plan, ServerPlan, TablePlan, WalLevel};
use super::{Overrides, ParameterValue, ScenarioError, Template, position};
use crate::ddl::column::{Column, known_types};

/// Most tables (with partitions) before the log begins.
const TABLES_MAX: u64 = 200_000;
/// Most rows of one statement or table.
pub(super) const ROWS_MAX: u64 = 10_000_000;
/// Most sessions in all: MaxBackends of the server.
pub(super) const SESSIONS_MAX: u64 = 262_143;
/// Longest row in a record: a page holds it.
const ROW_LEN_MAX: u64 = 8_000;
/// `MAX_SYSCACHE_CALLBACKS`.
const SYSCACHE_CALLBACKS_MAX: u64 = 64;
/// `MAX_RELCACHE_CALLBACKS`.
const RELCACHE_CALLBACKS_MAX: u64 = 10;
/// Entries of a callback's map.
const CALLBACK_ENTRIES_MAX: u64 = 1_000_000;
/// Bounds of `logical_decoding_work_mem`, in bytes.
const WORK_MEM_MIN: u64 = 64 << 10;
/// See [`WORK_MEM_MIN`].
const WORK_MEM_MAX: u64 = (i32::MAX as u64) << 10;
/// Most actors, consumers, faults, groups of tables and of publications, each.
const SECTIONS_MAX: usize = 1_000;
/// Largest `max_slot_wal_keep_size`, 2^53 bytes.
const WAL_BYTES_MAX: u64 = 1 << 53;
/// Most errors that are told.
const ERRORS_MAX: usize = 100;

/// Reads with the file's text and the overridden parameters at hand.
pub(super) struct Resolver<'a> {
    /// The file.
    pub(super) file: &'a ScenarioFile,
    /// Its text, for places.
    pub(super) text: &'a str,
    /// Offsets of its ends of lines.
    line_ends: Vec<usize>,
    /// What errors call it.
    source: &'a str,
    /// Parameters that replace the file's.
    overrides: &'a Overrides,
    /// What is wrong.
    errors: RefCell<Vec<ScenarioError>>,
    /// The pattern of the names in the step that is read.
    pub(super) pattern: Cell<Option<(u64, u64)>>,
    /// Names of relations that there are or will be.
    pub(super) known: RefCell<Vec<String>>,
    /// Names of relations that steps refer to, with their places.
    referred: RefCell<Vec<(String, &'static str, Range<usize>)>>,
    /// The steps that were read leave a transaction open.
    pub(super) in_transaction: Cell<bool>,
    /// Place of the step that is read.
    pub(super) step: RefCell<Range<usize>>,
}

/// Result with the sentence that an error will say; the place is added where it is known.
pub(super) type Said<T> = Result<T, String>;

/// Everything with its numbers, or everything that is wrong.
pub(super) fn plan(file: &ScenarioFile, source: &str, text: &str, overrides: &Overrides) -> Result<Plan, Vec<ScenarioError>> {
    let resolver = Resolver {
        file,
        text,
        line_ends: text.match_indices('\n').map(|(end, _)| end).collect(),
        source,
        overrides,
        errors: RefCell::default(),
        pattern: Cell::new(None),
        known: RefCell::default(),
        referred: RefCell::default(),
        in_transaction: Cell::new(false),
        step: RefCell::new(0..0),
    };
    resolver.check_name();
    resolver.check_overrides();
    let plan = resolver.plan();
    resolver.check_references();
    let mut errors = resolver.errors.into_inner();
    errors.sort_by_key(|error| (error.line, error.column));
    if errors.is_empty() { Ok(plan) } else { Err(errors) }
}

impl Resolver<'_> {
    /// Notes an error at a place.
    pub(super) fn error(&self, span: Range<usize>, message: impl Into<String>) {
        let (line, column) = position(self.text, span.start);
        self.note(ScenarioError { scenario: self.source.to_owned(), line, column, message: message.into() });
    }

    /// The line of a byte offset, from 1.
    pub(super) fn line(&self, offset: usize) -> usize {
        self.line_ends.partition_point(|end| *end < offset) + 1
    }

    /// Notes an error.
    fn note(&self, error: ScenarioError) {
        let mut errors = self.errors.borrow_mut();
        if errors.len() < ERRORS_MAX {
            errors.push(error);
        }
    }

    /// `[a-z0-9_-]{1,63}`.
    fn check_name(&self) {
        let name = self.file.name.get_ref();
        let good = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'-' | b'_');
        if name.is_empty() || name.len() > 63 || !name.bytes().all(good) {
            self.error(self.file.name.span(), "a scenario's name is 1 to 63 lower-case letters, digits, '-' and '_'");
        }
    }

    /// Only parameters that the file has can be overridden.
    fn check_overrides(&self) {
        for name in self.overrides.keys().filter(|name| !self.file.parameters.contains_key(*name)) {
            let near = suggest(name, self.file.parameters.keys().map(String::as_str));
            let message = format!("there is no parameter '{}' to override{near}", name.escape_debug());
            self.note(ScenarioError { scenario: self.source.to_owned(), line: 0, column: 0, message });
        }
    }

    /// The plan.
    fn plan(&self) -> Plan {
        let file = self.file;
        let server = &file.server;
        let hint = |amount: &Option<At<Amount>>, most| self.optional(amount, |a| self.number(a, 0, most).map(|n| n as u8));
        let duration_us = self.optional(&file.duration, |a| self.duration(a));
        for (what, count) in [
            ("groups of tables", file.tables.len()),
            ("groups of publications", file.publications.len()),
            ("actors", file.actors.len()),
            ("consumers", file.consumers.len()),
            ("faults", file.faults.len()),
        ] {
            if count > SECTIONS_MAX {
                self.error(file.name.span(), format!("{count} {what} are too many: at most {SECTIONS_MAX}"));
            }
        }
        let plan = Plan {
            name: file.name.get_ref().clone(),
            duration_us,
            server: ServerPlan {
                wal_level: server.wal_level.as_ref().map_or(WalLevel::Logical, |level| match level.get_ref() {
                    WalLevelFile::Replica => WalLevel::Replica,
                    WalLevelFile::Logical => WalLevel::Logical,
                }),
                max_connections: self.or(&server.max_connections, 100, |a| self.number(a, 1, SESSIONS_MAX)) as u32,
                autovacuum: server.autovacuum.unwrap_or(true),
                max_prepared_transactions: self.or(&server.max_prepared_transactions, 0, |a| self.number(a, 0, SESSIONS_MAX))
                    as u32,
                checkpoint_every_us: self.or(&server.checkpoint_every, 300_000_000, |a| self.positive_duration(a)),
                running_xacts_every_us: self.or(&server.running_xacts_every, 15_000_000, |a| self.positive_duration(a)),
                max_slot_wal_keep_size: self.optional(&server.max_slot_wal_keep_size, |a| self.number(a, 1, WAL_BYTES_MAX)),
                barrier_every_us: self.or(&server.barrier_every, 1_000_000, |a| self.positive_duration(a)),
                first_xid: self.or(&server.first_xid, 731, |a| self.number(a, 3, u64::from(u32::MAX))),
            },
            decoder: DecoderHints {
                syscache_callbacks: hint(&file.decoder.syscache_callbacks, SYSCACHE_CALLBACKS_MAX),
                relcache_callbacks: hint(&file.decoder.relcache_callbacks, RELCACHE_CALLBACKS_MAX),
                callback_entries: self.or(&file.decoder.callback_entries, 0, |a| self.number(a, 0, CALLBACK_ENTRIES_MAX))
                    as u32,
                consumer: file.decoder.consumer.map(|consumer| match consumer {
                    DecoderConsumerFile::Live => DecoderConsumer::Live,
                    DecoderConsumerFile::CatchUp => DecoderConsumer::CatchUp,
                }),
                work_mem: self.optional(&file.decoder.work_mem, |a| self.number(a, WORK_MEM_MIN, WORK_MEM_MAX)),
                streaming: file.decoder.streaming.unwrap_or(false),
                two_phase: file.decoder.two_phase.unwrap_or(false),
            },
            snapshots_per_second: self.or(&file.readers.snapshots_per_second, 0, |a| self.number(a, 0, 1_000_000)),
            tables: file.tables.iter().take(SECTIONS_MAX).filter_map(|table| self.table(table)).collect(),
            publications: file.publications.iter().take(SECTIONS_MAX).filter_map(|one| self.publications(one)).collect(),
            actors: (0..file.actors.len().min(SECTIONS_MAX)).map(|index| self.actor(index, duration_us)).collect(),
            consumers: self.consumers(),
            faults: self.faults(),
            expect: self.expectations(),
        };
        self.check_sizes(&plan);
        self.check_table_names(&plan);
        plan
    }

    /// Limits on all tables and sessions together.
    fn check_sizes(&self, plan: &Plan) {
        let tables = plan.tables.iter().map(|t| t.count.saturating_mul(1 + t.partitions.unwrap_or(0)));
        let tables = tables.fold(0, u64::saturating_add);
        if tables > TABLES_MAX {
            self.error(self.file.name.span(), format!("{tables} tables are too many: at most {TABLES_MAX}"));
        }
        let rows = plan.tables.iter().map(|t| t.count.saturating_mul(t.partitions.unwrap_or(1)).saturating_mul(t.rows));
        let rows = rows.fold(0, u64::saturating_add);
        if rows > ROWS_MAX {
            let message = format!("{rows} rows before the log begins are too many: at most {ROWS_MAX} in all tables");
            self.error(self.file.name.span(), message);
        }
        let (most, mut sessions) = (u64::from(plan.server.max_connections), 0);
        for (actor, file) in plan.actors.iter().zip(&self.file.actors) {
            sessions += actor.sessions;
            if sessions > most {
                let name = &actor.name;
                let message = format!(
                    "too many clients: with those of actor '{name}' {sessions} sessions are more than max_connections = {most}: \
                     raise it under [server], or give the actor fewer sessions"
                );
                return self.error(file.name.span(), message);
            }
        }
    }

    /// No two tables, partitions included, have one name. Within one `[[tables]]` numbers keep them apart.
    fn check_table_names(&self, plan: &Plan) {
        if plan.tables.len() < 2 || !self.errors.borrow().is_empty() {
            return;
        }
        let mut names = BTreeSet::new();
        for (table, file) in plan.tables.iter().zip(&self.file.tables) {
            let parents = (0..table.count).map(|n| table.name_of(table.first.saturating_add(n)));
            let mut all = parents.flat_map(|name| {
                let partitions: Vec<String> = (1..=table.partitions.unwrap_or(0)).map(|n| format!("{name}_{n}")).collect();
                std::iter::once(name).chain(partitions)
            });
            if let Some(twice) = all.find(|name| !names.insert(name.clone())) {
                let twice = twice.escape_debug();
                self.error(
                    file.name.span(),
                    format!("there is a table named '{twice}' above: use another name or other numbers"),
                );
            }
        }
    }

    /// One `[[tables]]`.
    fn table(&self, table: &TableFile) -> Option<TablePlan> {
        let name = self.at(&table.name, |name| self.template(name))?;
        let count = self.or(&table.count, 1, |a| self.number(a, 1, TABLES_MAX));
        let (first, count) = match name.pattern() {
            Some(_) if table.count.is_some() => {
                self.error(table.name.span(), "a pattern says how many tables there are: leave out 'count', or write {i}");
                (1, count)
            }
            Some((first, last)) => (first, (last - first).saturating_add(1)),
            None => (1, count),
        };
        if count > TABLES_MAX {
            self.error(table.name.span(), format!("{count} tables are too many: at most {TABLES_MAX}"));
        }
        if count > 1 && !name.counts() {
            self.error(table.name.span(), format!("{count} tables cannot have one name: put '{{i}}' into it"));
        }
        let columns: Vec<Column> = table.columns.iter().filter_map(|column| self.at(column, |text| old_column(text))).collect();
        self.know_parts_of(table.name.get_ref(), &columns);
        let partitions = self.optional(&table.partitions, |a| self.number(a, 1, TABLES_MAX));
        if partitions.is_some() {
            self.known.borrow_mut().push(format!("{}_1", table.name.get_ref()));
        }
        Some(TablePlan {
            name,
            count: count.min(TABLES_MAX),
            first,
            columns,
            partitions,
            rows: self.or(&table.rows, 0, |a| self.number(a, 0, ROWS_MAX)),
            row_len: self.optional(&table.row_bytes, |a| self.number(a, 6, ROW_LEN_MAX).map(|n| n as u32)),
        })
    }

    /// A name with blanks of something that is there or will be made.
    pub(super) fn template(&self, text: &str) -> Said<Template> {
        self.known.borrow_mut().push(text.to_owned());
        self.blanks(text)
    }

    /// A name with blanks of a relation that must be there: the nearest known one is named if there cannot be one.
    pub(super) fn relation(&self, text: &str) -> Said<Template> {
        self.refer(text, "relation");
        self.blanks(text)
    }

    /// Something is referred to by name, which must be there.
    pub(super) fn refer(&self, text: &str, what: &'static str) {
        self.referred.borrow_mut().push((text.to_owned(), what, self.step.borrow().clone()));
    }

    /// Reads a name; a pattern in it counts for the whole step.
    pub(super) fn blanks(&self, text: &str) -> Said<Template> {
        let template = Template::parse(text, |name| self.parameter(name))?;
        if let Some(pattern) = template.pattern() {
            if self.pattern.get().is_some_and(|other| other != pattern) {
                return Err(format!(
                    "the pattern of '{text}' differs from that of the other names: one step counts in one way"
                ));
            }
            self.pattern.set(Some(pattern));
        }
        Ok(template)
    }

    /// Relations that steps refer to and that nothing makes. Numbers and blanks are alike: which numbers there are is known when
    /// it runs.
    fn check_references(&self) {
        let known = self.known.borrow();
        let shapes: BTreeSet<String> = known.iter().map(|name| shape(name)).collect();
        for (name, what, span) in self.referred.borrow().iter() {
            if !shapes.contains(&shape(name)) && !name.starts_with("pg_") {
                let mut names: BTreeSet<&str> = known.iter().map(String::as_str).collect();
                let types = if *what == "type" { &known_types()[..] } else { &[] };
                names.extend(types);
                let near = suggest(name, names.iter().copied());
                let mut message = format!("nothing here makes a {what} named '{}'{near}", name.escape_debug());
                if !types.is_empty() {
                    message.push_str(&format!("; there are {}", types.join(", ")));
                }
                self.error(span.clone(), message);
            }
        }
    }

    /// Puts the place to what `read` says of a field; nothing if it is wrong.
    pub(super) fn at<T, U>(&self, field: &At<T>, read: impl FnOnce(&T) -> Said<U>) -> Option<U> {
        self.pattern.set(None);
        read(field.get_ref()).map_err(|message| self.error(field.span(), message)).ok()
    }

    /// The same of a field that may be missing.
    pub(super) fn optional<T, U>(&self, field: &Option<At<T>>, read: impl FnOnce(&T) -> Said<U>) -> Option<U> {
        field.as_ref().and_then(|field| self.at(field, read))
    }

    /// The same with a value for a missing or wrong field.
    pub(super) fn or<T, U>(&self, field: &Option<At<T>>, missing: U, read: impl FnOnce(&T) -> Said<U>) -> U {
        self.optional(field, read).unwrap_or(missing)
    }

    /// A parameter's value, overridden or from the file.
    pub(super) fn parameter(&self, name: &str) -> Option<&ParameterValue> {
        self.overrides.get(name).or_else(|| self.file.parameters.get(name))
    }
}

/// A column of a table that is there before the log begins.
fn old_column(text: &str) -> Said<Column> {
    let column = Column::parse(text)?;
    match &column.made_type {
        Some(made) => {
            let known = known_types().join(", ");
            Err(format!("'{made}' is no type that a column can have before a step makes it: use one of {known}"))
        }
        None => Ok(column),
    }
}

/// A name without its numbers and blanks.
fn shape(name: &str) -> String {
    let mut shape = String::new();
    let mut inside = false;
    for c in name.chars() {
        match c {
            '{' => inside = true,
            '}' => inside = false,
            _ if inside => continue,
            _ => {}
        }
        let plain = !matches!(c, '{' | '}') && !c.is_ascii_digit();
        if plain {
            shape.push(c);
        } else if !shape.ends_with('#') {
            shape.push('#');
        }
    }
    shape
}

/// A name without blanks.
pub(super) fn name(text: &str) -> Said<String> {
    if text.is_empty() || text.len() > 63 || text.chars().any(char::is_control) {
        return Err(format!("'{}' is no name: use 1 to 63 bytes without control characters", text.escape_debug()));
    }
    Ok(text.to_owned())
}
