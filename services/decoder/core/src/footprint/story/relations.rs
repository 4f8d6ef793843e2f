//! Relations that were truncated, rewritten, created or dropped.
//!
//! Rows of pg_class say how many relations came and went; rows of other catalogs, which of them are indexes, sequences, views,
//! partitioned. A relation with a row type of its own has two rows in pg_type, that and its array's; a TOAST table has none (up to 13
//! it and a sequence have one). What a rewrite fills is a relation that comes and goes: its file is given to the old one.

use pg_types::catalog as c;
use pg_types::{Oid, catalog};

use super::{Fate, Teller, several};

/// Catalogs that CREATE TABLE and its like fill, and DROP TABLE empties.
const OF_RELATIONS: &[Oid] = &[
    c::CLASS,
    c::ATTRIBUTE,
    c::ATTRDEF,
    c::TYPE,
    c::DEPEND,
    c::SHDEPEND,
    c::INDEX,
    c::SEQUENCE,
    c::CONSTRAINT,
    c::INHERITS,
    c::PARTITIONED_TABLE,
    c::REWRITE,
    c::TRIGGER,
    c::FOREIGN_TABLE,
];

/// What goes with a dropped relation beside these.
const OF_DROPPED: &[Oid] = &[
    c::DESCRIPTION,
    c::POLICY,
    c::PUBLICATION_REL,
    c::SECLABEL,
    c::STATISTIC,
    c::STATISTIC_EXT,
    c::STATISTIC_EXT_DATA,
    c::SUBSCRIPTION_REL,
];

/// Columns that every table has beside its own.
const SYSTEM_COLUMNS: u64 = 6;

/// Columns of a TOAST table and its index.
const TOAST_COLUMNS: u64 = 11;

/// Relations with one fate, by kind.
#[derive(Clone, Copy, Debug, Default)]
struct Kinds {
    /// Those with a row type: tables, views, composite types.
    typed: u64,
    /// TOAST tables.
    toast: u64,
    /// Indexes of other than TOAST tables.
    indexes: u64,
    /// Sequences.
    sequences: u64,
    /// Types that belong to none of them: rows of pg_type.
    types: u64,
}

impl Teller<'_> {
    /// All of it.
    pub(super) fn relations(&mut self) {
        self.truncated();
        let rewritten = self.rewritten();
        let (new, gone) = (self.kinds(Fate::New), self.kinds(Fate::Gone));
        if !rewritten {
            self.came_and_went();
        }
        self.created(new);
        if new.typed == 0 && !rewritten {
            self.storage(new);
        }
        self.columns(new);
        self.dropped(gone, rewritten);
        self.types(new.types, gone.types);
    }

    /// Relations by kind.
    fn kinds(&self, fate: Fate) -> Kinds {
        let of = |catalog| self.left(fate, catalog);
        let (relations, indexes, sequences, rows) = (of(c::CLASS), of(c::INDEX), of(c::SEQUENCE), of(c::TYPE));
        let others = relations.saturating_sub(indexes + sequences);
        let typed = match self.footprint.storage_types {
            true => rows.saturating_sub(sequences + others),
            false => rows / 2,
        };
        let typed = typed.min(others);
        let toast = others - typed;
        let of_storage = if self.footprint.storage_types { toast + sequences } else { 0 };
        let types = rows.saturating_sub(2 * typed + of_storage);
        Kinds { typed, toast, indexes: indexes.saturating_sub(toast), sequences, types }
    }

    /// TRUNCATE, which has a record of its own.
    fn truncated(&mut self) {
        let footprint = self.footprint;
        if footprint.truncated == 0 {
            return;
        }
        let cascade = if footprint.truncate_cascade { ", CASCADE" } else { "" };
        let restart = if footprint.truncate_restart { ", RESTART IDENTITY" } else { "" };
        let relations = several(footprint.truncated, "table");
        self.tell(format!("TRUNCATE of {relations}{cascade}{restart}"), &["TRUNCATE TABLE"]);
        self.explain(Fate::Changed, &[c::CLASS, c::SEQUENCE]);
    }

    /// A table was written anew. True if one was.
    fn rewritten(&mut self) -> bool {
        let (class, index) = (self.footprint.of(c::CLASS), self.footprint.of(c::INDEX));
        // Each TOAST table that came and went had one index.
        let heaps = class.came_and_went().saturating_sub(2 * index.came_and_went());
        let mapped: Vec<&str> = self.remapped_catalogs();
        let swapped = class.updated >= 2 * heaps || !mapped.is_empty();
        // A materialized view is filled so when it is created.
        let in_creation = self.all(Fate::New, c::REWRITE) > 0;
        if heaps == 0 || !swapped || in_creation {
            return false;
        }
        let tables = several(heaps, "table");
        let columns = self.all(Fate::Changed, c::ATTRIBUTE) + self.all(Fate::New, c::ATTRDEF);
        let added = self.all(Fate::New, c::ATTRIBUTE) > TOAST_COLUMNS * self.kinds(Fate::New).toast;
        if !mapped.is_empty() {
            self.tell(format!("VACUUM FULL or CLUSTER of {}", mapped.join(", ")), &["VACUUM", "CLUSTER"]);
        } else if columns > 0 || added {
            let text = format!("ALTER TABLE that writes {tables} anew (type of a column, default of a new one)");
            self.tell(text, &["ALTER TABLE"]);
        } else if self.footprint.rows_into_created > 0 {
            let text = format!("REFRESH MATERIALIZED VIEW, or ALTER TABLE that writes {tables} anew");
            self.tell(text, &["REFRESH MATERIALIZED VIEW", "ALTER TABLE"]);
        } else {
            let statements = ["VACUUM", "CLUSTER", "REFRESH MATERIALIZED VIEW", "ALTER TABLE"];
            self.tell(format!("VACUUM FULL or CLUSTER of {tables}, or another rewrite without rows"), &statements);
        }
        self.explain(Fate::Changed, &[c::CLASS, c::ATTRIBUTE, c::INDEX, c::TYPE, c::CONSTRAINT, c::DEPEND]);
        if self.kinds(Fate::New).typed == 0 {
            // Indexes and TOAST tables that are made anew, and what the column had.
            self.explain(Fate::New, OF_RELATIONS);
            self.explain(Fate::Gone, &[c::ATTRDEF]);
        }
        // What was written into the new file of a catalog.
        let made: Vec<Oid> =
            self.footprint.catalogs().iter().map(|rows| rows.catalog).filter(|oid| *oid >= Oid::FIRST_NORMAL).collect();
        Fate::ALL.into_iter().for_each(|fate| self.explain(fate, &made));
        true
    }

    /// Mapped catalogs, not their indexes, that got new files.
    fn remapped_catalogs(&self) -> Vec<&'static str> {
        let name = |oid: &Oid| catalog::NAMES.iter().find(|(_, known)| known == oid).map(|(name, _)| *name);
        self.footprint.remapped.iter().filter_map(name).collect()
    }

    /// Relations that were created and dropped again.
    fn came_and_went(&mut self) {
        let (class, index, types) = (self.footprint.of(c::CLASS), self.footprint.of(c::INDEX), self.footprint.of(c::TYPE));
        let n = class.came_and_went().saturating_sub(index.came_and_went());
        let in_creation = self.all(Fate::New, c::REWRITE) > 0 && class.came() > 0;
        if n == 0 || types.came_and_went() == 0 || in_creation {
            return;
        }
        let with_files = self.footprint.created_and_dropped > 0;
        let what = if with_files { "created and dropped" } else { "created and dropped, temporary or without storage" };
        self.tell(format!("{} {what}", several(n, "relation")), &[]);
    }

    /// Tables, views, composite types.
    fn created(&mut self, new: Kinds) {
        let n = new.typed;
        if n == 0 {
            return;
        }
        let of = |teller: &Self, catalog| teller.all(Fate::New, catalog);
        let (partitioned, rules) = (of(self, c::PARTITIONED_TABLE), of(self, c::REWRITE));
        let files = self.footprint.files_created;
        let tables = several(n, "table");
        let create = ["CREATE TABLE", "CREATE TABLE AS", "SELECT INTO"];
        let few_columns = of(self, c::ATTRIBUTE) < SYSTEM_COLUMNS * n;
        let (what, statements): (String, Vec<&'static str>) = match () {
            () if rules > 0 && files == 0 && rules == n => {
                (format!("CREATE VIEW, {}", several(n, "view")), vec!["CREATE VIEW"])
            }
            () if rules > 0 && n == 1 => (
                "CREATE MATERIALIZED VIEW, or CREATE TABLE and CREATE RULE".to_owned(),
                vec!["CREATE MATERIALIZED VIEW", "CREATE TABLE", "CREATE TABLE AS"],
            ),
            () if rules > 0 => {
                let more = ["CREATE VIEW", "CREATE MATERIALIZED VIEW", "CREATE TYPE"];
                (format!("CREATE of {n} tables, views or types"), [&create[..], &more[..]].concat())
            }
            () if of(self, c::FOREIGN_TABLE) == n => (format!("CREATE FOREIGN TABLE, {tables}"), vec!["CREATE FOREIGN TABLE"]),
            () if partitioned == n => (format!("CREATE TABLE, {tables} to be partitioned"), vec!["CREATE TABLE"]),
            () if files == 0 && partitioned == 0 && few_columns => {
                (format!("CREATE TYPE, {}", several(n, "composite type")), vec!["CREATE TYPE"])
            }
            () if files == 0 && partitioned == 0 => {
                let text = format!("CREATE TABLE, {} without storage: temporary, or a composite type", several(n, "table"));
                (text, [&create[..], &["CREATE FOREIGN TABLE", "CREATE TYPE"]].concat())
            }
            () => (format!("CREATE TABLE, {tables}"), create.to_vec()),
        };
        let text = what + &self.created_with(new);
        self.tell(text, &statements);
        self.explain(Fate::New, OF_RELATIONS);
        self.explain(Fate::Changed, &[c::CLASS, c::ATTRIBUTE, c::SEQUENCE, c::DEPEND]);
    }

    /// What new tables have.
    fn created_with(&self, new: Kinds) -> String {
        let mut with = Vec::new();
        if new.sequences > 0 && self.all(Fate::New, c::ATTRDEF) > 0 {
            with.push(several(new.sequences, "serial column"));
        } else if new.sequences > 0 {
            with.push(several(new.sequences, "sequence"));
        }
        let counted = [(new.indexes, "index"), (self.all(Fate::New, c::CONSTRAINT), "constraint"), (new.toast, "TOAST table")];
        with.extend(counted.iter().filter(|(n, _)| *n > 0).map(|(n, what)| several(*n, what)));
        let parent = if self.all(Fate::New, c::INHERITS) >= new.typed { " of a parent" } else { "" };
        let with = if with.is_empty() { String::new() } else { format!(" with {}", with.join(", ")) };
        let rows = match self.footprint.rows_into_created {
            0 => String::new(),
            n => format!(", filled with {}", several(n, "row")),
        };
        format!("{parent}{with}{rows}")
    }

    /// Indexes, sequences and new files of relations that were there before.
    fn storage(&mut self, new: Kinds) {
        if new.indexes > 0 {
            self.indexes(new.indexes);
        }
        if new.sequences > 0 {
            self.tell(format!("CREATE SEQUENCE, {}", several(new.sequences, "sequence")), &["CREATE SEQUENCE"]);
            self.explain(Fate::New, &[c::CLASS, c::ATTRIBUTE, c::SEQUENCE, c::DEPEND, c::TYPE]);
        }
        if new.indexes + new.sequences + new.toast + self.footprint.truncated > 0 || self.footprint.files_created == 0 {
            return;
        }
        let (files, class) = (several(self.footprint.files_created, "new file"), self.footprint.of(c::CLASS));
        if self.left(Fate::Changed, c::SEQUENCE) > 0 {
            self.tell("ALTER SEQUENCE", &["ALTER SEQUENCE"]);
            self.explain(Fate::Changed, &[c::CLASS, c::SEQUENCE]);
        } else if class.in_place > 0 {
            let mapped = if self.footprint.relmap { " of a mapped catalog" } else { "" };
            self.tell(format!("REINDEX{mapped}, {files}"), &["REINDEX"]);
            self.explain(Fate::Changed, &[c::CLASS]);
        } else if class.updated > 0 {
            let text = format!("{files} for relations: TRUNCATE of what is not decoded, SET TABLESPACE or REINDEX");
            self.tell(text, &["TRUNCATE TABLE", "ALTER TABLE", "ALTER INDEX", "REINDEX"]);
            self.explain(Fate::Changed, &[c::CLASS]);
        }
    }

    /// Indexes of tables that were there before.
    fn indexes(&mut self, n: u64) {
        let (inherits, columns) = (self.all(Fate::New, c::INHERITS), self.all(Fate::Changed, c::ATTRIBUTE));
        let indexes = several(n, "index");
        if inherits > n && columns > 0 {
            self.tell(format!("ALTER TABLE ATTACH PARTITION, {indexes}"), &["ALTER TABLE"]);
            self.explain(Fate::New, &[c::CONSTRAINT, c::TRIGGER]);
        } else if self.all(Fate::New, c::CONSTRAINT) > 0 {
            self.tell(format!("ALTER TABLE ADD CONSTRAINT (a key), {indexes}"), &["ALTER TABLE"]);
            self.explain(Fate::New, &[c::CONSTRAINT]);
        } else if inherits > 0 || self.footprint.of(c::CLASS).in_place > n {
            self.tell(format!("CREATE INDEX, {indexes}"), &["CREATE INDEX"]);
        } else {
            let text = format!("CREATE INDEX, or the first phase of CREATE or REINDEX INDEX CONCURRENTLY, {indexes}");
            self.tell(text, &["CREATE INDEX", "REINDEX"]);
        }
        self.explain(Fate::New, &[c::CLASS, c::ATTRIBUTE, c::INDEX, c::INHERITS, c::DEPEND]);
        self.explain(Fate::Changed, &[c::CLASS, c::ATTRIBUTE]);
    }

    /// Columns that were added to relations.
    fn columns(&mut self, new: Kinds) {
        let added = self.left(Fate::New, c::ATTRIBUTE).saturating_sub(TOAST_COLUMNS * new.toast);
        if added == 0 || new.indexes + new.sequences > 0 {
            return;
        }
        self.tell(format!("ALTER TABLE ADD COLUMN, {}", several(added, "column")), &["ALTER TABLE", "ALTER TYPE"]);
        self.explain(Fate::New, &[c::CLASS, c::ATTRIBUTE, c::ATTRDEF, c::INDEX, c::CONSTRAINT, c::DEPEND]);
        self.explain(Fate::Changed, &[c::CLASS, c::ATTRIBUTE]);
    }

    /// Relations that are gone.
    fn dropped(&mut self, gone: Kinds, rewritten: bool) {
        if gone.typed > 0 {
            self.dropped_typed(gone);
        } else if rewritten {
            self.explain(Fate::Gone, &[c::CLASS, c::ATTRIBUTE, c::INDEX, c::ATTRDEF, c::INHERITS, c::CONSTRAINT]);
        } else if gone.indexes > 0 {
            self.dropped_indexes(gone.indexes);
        } else if gone.sequences > 0 {
            self.tell(
                format!("DROP of {}", several(gone.sequences, "sequence")),
                &["DROP SEQUENCE", "DROP OWNED", "ALTER TABLE"],
            );
            self.explain(Fate::Gone, OF_RELATIONS);
        }
    }

    /// Tables, views, composite types.
    fn dropped_typed(&mut self, gone: Kinds) {
        let n = gone.typed;
        let rules = self.all(Fate::Gone, c::REWRITE);
        let files = self.footprint.files_dropped - self.footprint.created_and_dropped;
        let partitioned = self.all(Fate::Gone, c::PARTITIONED_TABLE);
        let few_columns = self.all(Fate::Gone, c::ATTRIBUTE) < SYSTEM_COLUMNS * n;
        let everything = ["DROP TABLE", "DROP VIEW", "DROP MATERIALIZED VIEW", "DROP TYPE", "DROP FOREIGN TABLE"];
        let (what, statements): (&str, &[&'static str]) = match () {
            () if rules == n && files == 0 => ("view", &["DROP VIEW"]),
            () if rules > 0 && n == 1 => ("materialized view or table", &["DROP MATERIALIZED VIEW", "DROP TABLE"]),
            () if rules > 0 => ("table or view", &everything),
            () if files == 0 && partitioned == 0 && few_columns => ("composite type", &["DROP TYPE"]),
            () if files == 0 && partitioned < n => ("relation", &everything),
            () => ("table", &["DROP TABLE"]),
        };
        // A schema, an owner or an extension takes its relations along.
        let with_owner = ["DROP OWNED", "DROP SCHEMA", "DROP EXTENSION"];
        let what = if n > 1 && rules > 0 && what == "table or view" { "relation" } else { what };
        let temporary = if what == "relation" && files == 0 { ", temporary or without storage" } else { "" };
        let text = format!("DROP of {}{temporary}", several(n, what)) + &dropped_with(gone);
        self.tell(text, &[statements, &with_owner[..]].concat());
        self.explain(Fate::Gone, OF_RELATIONS);
        self.explain(Fate::Gone, OF_DROPPED);
        self.explain(Fate::Changed, &[c::CLASS, c::ATTRIBUTE]);
    }

    /// Indexes alone.
    fn dropped_indexes(&mut self, n: u64) {
        let indexes = several(n, "index");
        let (constraints, columns) = (self.all(Fate::Gone, c::CONSTRAINT), self.all(Fate::Changed, c::ATTRIBUTE));
        if constraints + columns > 0 {
            let what = if columns == 0 { "DROP CONSTRAINT" } else { "DROP COLUMN or DROP CONSTRAINT" };
            self.tell(format!("ALTER TABLE {what}, {indexes}"), &["ALTER TABLE"]);
            self.explain(Fate::Gone, &[c::CONSTRAINT, c::TRIGGER, c::ATTRDEF, c::STATISTIC]);
            self.explain(Fate::Changed, &[c::CLASS, c::ATTRIBUTE]);
        } else if self.footprint.locks > n {
            self.tell(format!("DROP of {indexes}"), &["DROP INDEX", "DROP OWNED"]);
        } else {
            let text = format!("DROP of {indexes}: DROP INDEX, or the last phase of DROP or REINDEX INDEX CONCURRENTLY");
            self.tell(text, &["DROP INDEX", "REINDEX"]);
        }
        self.explain(Fate::Gone, &[c::CLASS, c::ATTRIBUTE, c::INDEX, c::INHERITS, c::DEPEND]);
    }

    /// Types that are no relation's.
    fn types(&mut self, new: u64, gone: u64) {
        if new > 0 {
            let (labels, ranges) = (self.all(Fate::New, c::ENUM), self.all(Fate::New, c::RANGE));
            if labels > 0 {
                self.tell(format!("CREATE TYPE AS ENUM, {}", several(labels, "label")), &["CREATE TYPE"]);
            } else if ranges > 0 {
                self.tell("CREATE TYPE AS RANGE", &["CREATE TYPE"]);
                self.explain(Fate::New, &[c::PROC, c::CAST]);
            } else {
                self.tell("CREATE DOMAIN or CREATE TYPE", &["CREATE DOMAIN", "CREATE TYPE"]);
            }
            self.explain(Fate::New, &[c::TYPE, c::ENUM, c::RANGE, c::CONSTRAINT, c::DEPEND]);
        }
        if gone > 0 {
            let labels = self.all(Fate::Gone, c::ENUM);
            let (text, statements): (&str, &[&'static str]) = match labels {
                0 => ("DROP DOMAIN or DROP TYPE", &["DROP DOMAIN", "DROP TYPE", "DROP OWNED", "DROP SCHEMA"]),
                _ => ("DROP TYPE, of an enum", &["DROP TYPE", "DROP OWNED", "DROP SCHEMA"]),
            };
            self.tell(text, statements);
            self.explain(Fate::Gone, &[c::TYPE, c::ENUM, c::RANGE, c::CONSTRAINT, c::DEPEND]);
        }
    }
}

/// What went with tables.
fn dropped_with(gone: Kinds) -> String {
    let counted = [(gone.indexes, "index"), (gone.sequences, "sequence"), (gone.toast, "TOAST table")];
    let with: Vec<String> = counted.iter().filter(|(n, _)| *n > 0).map(|(n, what)| several(*n, what)).collect();
    if with.is_empty() { String::new() } else { format!(" with {}", with.join(", ")) }
}
