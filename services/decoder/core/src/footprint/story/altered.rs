//! Changes of relations that were there before and still are: mostly ALTER TABLE, and GRANT, which writes the same rows.

use pg_types::catalog as c;

use super::{Fate, Teller, several};

/// Statements that change rows of pg_class and pg_attribute.
const ALTER: [&str; 7] = [
    "ALTER TABLE",
    "ALTER VIEW",
    "ALTER MATERIALIZED VIEW",
    "ALTER INDEX",
    "ALTER SEQUENCE",
    "ALTER FOREIGN TABLE",
    "ALTER TYPE",
];

/// Statements that change privileges.
const GRANT: [&str; 2] = ["GRANT", "REVOKE"];

/// Relations changed by one command that takes no lock: with so many it is no ALTER, which names one relation and its TOAST table.
const GRANTED_TOGETHER_MIN: u64 = 3;

impl Teller<'_> {
    /// All of it.
    pub(super) fn altered(&mut self) {
        self.parents();
        self.constraints();
        self.triggers();
        self.defaults();
        self.altered_sequences();
        self.altered_indexes();
        self.altered_relations();
        self.altered_columns();
        self.altered_types();
    }

    /// ATTACH and DETACH PARTITION, INHERIT and NO INHERIT.
    fn parents(&mut self) {
        for (fate, text) in [(Fate::New, "ATTACH PARTITION or INHERIT"), (Fate::Gone, "DETACH PARTITION or NO INHERIT")] {
            if self.left(fate, c::INHERITS) > 0 {
                self.tell(format!("ALTER TABLE {text}"), &["ALTER TABLE", "ALTER INDEX"]);
                self.explain(fate, &[c::INHERITS, c::TRIGGER, c::CONSTRAINT, c::DEPEND]);
                self.explain(Fate::Changed, &[c::CLASS, c::ATTRIBUTE, c::CONSTRAINT]);
            }
        }
    }

    /// Constraints without an index.
    fn constraints(&mut self) {
        for (fate, verb) in [(Fate::New, "ADD"), (Fate::Gone, "DROP")] {
            let n = self.left(fate, c::CONSTRAINT);
            if n == 0 {
                continue;
            }
            let constraints = several(n, "constraint");
            let (triggers, columns) = (self.left(fate, c::TRIGGER), self.left(Fate::Changed, c::ATTRIBUTE));
            if triggers > 0 {
                self.tell(format!("ALTER TABLE {verb} CONSTRAINT, a foreign key, {constraints}"), &["ALTER TABLE"]);
            } else if columns > 0 {
                let not_null = if fate == Fate::New { "SET NOT NULL" } else { "DROP NOT NULL" };
                self.tell(format!("ALTER TABLE {not_null} or {verb} CONSTRAINT, {constraints}"), &["ALTER TABLE"]);
            } else if self.left(Fate::Changed, c::CLASS) > 0 {
                self.tell(format!("ALTER TABLE {verb} CONSTRAINT, {constraints}"), &["ALTER TABLE", "ALTER DOMAIN"]);
            } else {
                let text = format!("ALTER TABLE or DOMAIN {verb} CONSTRAINT, {constraints}");
                self.tell(text, &["ALTER TABLE", "ALTER DOMAIN"]);
            }
            self.explain(fate, &[c::CONSTRAINT, c::TRIGGER, c::DEPEND]);
            self.explain(Fate::Changed, &[c::CLASS, c::ATTRIBUTE]);
        }
        let n = self.left(Fate::Changed, c::CONSTRAINT);
        let swapped = self.left(Fate::Changed, c::INDEX) > 0;
        if n > 0 && !swapped && self.left(Fate::Changed, c::TYPE) == 0 {
            let text = format!("ALTER of {} (VALIDATE, RENAME, SET SCHEMA)", several(n, "constraint"));
            self.tell(text, &["ALTER TABLE", "ALTER INDEX", "ALTER DOMAIN"]);
            self.explain(Fate::Changed, &[c::CONSTRAINT, c::CLASS, c::TYPE, c::DEPEND]);
        }
    }

    /// Triggers that belong to no constraint.
    fn triggers(&mut self) {
        let verbs: [(Fate, &str, &[&'static str]); 3] = [
            (Fate::New, "CREATE TRIGGER", &["CREATE TRIGGER"]),
            (
                Fate::Changed,
                "ENABLE, DISABLE, RENAME or CREATE OR REPLACE TRIGGER",
                &["ALTER TABLE", "ALTER TRIGGER", "CREATE TRIGGER"],
            ),
            (Fate::Gone, "DROP TRIGGER", &["DROP TRIGGER"]),
        ];
        for (fate, text, statements) in verbs {
            let n = self.left(fate, c::TRIGGER);
            if n > 0 {
                self.tell(format!("{text}, {}", several(n, "trigger")), statements);
                self.explain(fate, &[c::TRIGGER, c::DEPEND]);
                self.explain(Fate::Changed, &[c::CLASS]);
            }
        }
    }

    /// Defaults of columns.
    fn defaults(&mut self) {
        let (new, gone) = (self.left(Fate::New, c::ATTRDEF), self.left(Fate::Gone, c::ATTRDEF));
        if new + gone > 0 {
            let (verb, n) = if new > 0 { ("SET", new) } else { ("DROP", gone) };
            self.tell(
                format!("ALTER TABLE ALTER COLUMN {verb} DEFAULT, {}", several(n, "column")),
                &["ALTER TABLE", "ALTER VIEW"],
            );
            self.explain(Fate::New, &[c::ATTRDEF]);
            self.explain(Fate::Gone, &[c::ATTRDEF]);
            self.explain(Fate::Changed, &[c::ATTRIBUTE]);
        }
    }

    /// Sequences.
    fn altered_sequences(&mut self) {
        let n = self.left(Fate::Changed, c::SEQUENCE);
        if n > 0 {
            self.tell(format!("ALTER SEQUENCE, {}", several(n, "sequence")), &["ALTER SEQUENCE", "ALTER TABLE"]);
            self.explain(Fate::Changed, &[c::SEQUENCE, c::CLASS]);
        }
    }

    /// Flags of indexes.
    fn altered_indexes(&mut self) {
        let (indexes, relations) = (self.left(Fate::Changed, c::INDEX), self.left(Fate::Changed, c::CLASS));
        if indexes == 0 {
            return;
        }
        let words = several(indexes, "index");
        if indexes >= 2 && relations >= indexes && self.all(Fate::Changed, c::DEPEND) > 0 {
            self.tell(format!("REINDEX CONCURRENTLY swaps {}", several(indexes / 2, "index")), &["REINDEX"]);
            self.explain(Fate::Changed, &[c::CONSTRAINT, c::DEPEND]);
        } else if relations > 0 {
            self.tell(format!("ALTER TABLE REPLICA IDENTITY, {words}"), &["ALTER TABLE"]);
        } else {
            let text = format!("a phase of CREATE, REINDEX or DROP INDEX CONCURRENTLY, {words}, or ALTER TABLE CLUSTER ON");
            self.tell(text, &["CREATE INDEX", "REINDEX", "DROP INDEX", "ALTER TABLE"]);
        }
        self.explain(Fate::Changed, &[c::INDEX, c::CLASS]);
    }

    /// Rows of pg_class.
    fn altered_relations(&mut self) {
        let n = self.left(Fate::Changed, c::CLASS);
        if n == 0 {
            return;
        }
        let relations = several(n, "relation");
        let (types, acl) = (self.left(Fate::Changed, c::TYPE), self.any_left(c::SHDEPEND));
        let (locks, commands) = (self.footprint.locks, self.footprint.commands);
        let together = n >= GRANTED_TOGETHER_MIN && commands <= 1;
        let both = [&GRANT[..], &ALTER[..]].concat();
        if types > 0 {
            let what = match (acl > 0, self.left(Fate::Changed, c::DEPEND) > 0) {
                (true, _) => "OWNER TO",
                (false, true) => "SET SCHEMA",
                (false, false) => "RENAME TO, OWNER TO",
            };
            self.tell(format!("ALTER of {relations}: {what}"), &ALTER);
        } else if locks == 0 && (acl > 0 || together) {
            self.tell(format!("GRANT or REVOKE on {relations}"), &GRANT);
        } else if acl > 0 {
            self.tell(format!("GRANT, REVOKE or ALTER OWNER TO on {relations}"), &both);
        } else if locks > 0 {
            let text = format!("ALTER of {relations} (RENAME, SET, REPLICA IDENTITY, ROW LEVEL SECURITY, …)");
            self.tell(text, &[&ALTER[..], &["GRANT", "REVOKE", "LOCK TABLE"]].concat());
        } else {
            self.tell(format!("GRANT, REVOKE or ALTER on {relations}"), &both);
        }
        self.explain(Fate::Changed, &[c::CLASS, c::TYPE, c::CONSTRAINT, c::DEPEND]);
        Fate::ALL.into_iter().for_each(|fate| self.explain(fate, &[c::SHDEPEND]));
    }

    /// Rows of pg_attribute.
    fn altered_columns(&mut self) {
        let n = self.left(Fate::Changed, c::ATTRIBUTE);
        if n == 0 {
            return;
        }
        let columns = several(n, "column");
        let (acl, locks) = (self.any_left(c::SHDEPEND), self.footprint.locks);
        if locks > 0 {
            let text = format!("ALTER of {columns} (DROP, RENAME, TYPE, NOT NULL, STORAGE, …)");
            self.tell(text, &[&ALTER[..], &GRANT[..]].concat());
        } else if acl > 0 {
            self.tell(format!("GRANT or REVOKE on {columns}"), &GRANT);
        } else {
            self.tell(
                format!("ALTER of {columns} (STATISTICS, …), or GRANT or REVOKE on them"),
                &[&ALTER[..], &GRANT[..]].concat(),
            );
        }
        self.explain(Fate::Changed, &[c::ATTRIBUTE]);
        Fate::ALL.into_iter().for_each(|fate| self.explain(fate, &[c::SHDEPEND]));
    }

    /// Types that are no relation's.
    fn altered_types(&mut self) {
        let n = self.left(Fate::Changed, c::TYPE);
        if n > 0 {
            let statements = ["ALTER TYPE", "ALTER DOMAIN", "GRANT", "REVOKE", "CREATE TYPE"];
            self.tell(format!("ALTER TYPE or DOMAIN, or GRANT or REVOKE on it, {}", several(n, "type")), &statements);
            self.explain(Fate::Changed, &[c::TYPE]);
        }
    }
}
