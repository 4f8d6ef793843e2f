//! Objects that are no relations: one catalog each, whose rows say how many were created, altered or dropped.

use pg_types::Oid;
use pg_types::catalog as c;

use super::{Fate, Teller, several};

/// What the rows of a catalog are.
struct Object {
    /// The catalog.
    catalog: Oid,
    /// A row in words.
    noun: &'static str,
    /// Statements that insert one.
    create: &'static [&'static str],
    /// Statements that change one.
    alter: &'static [&'static str],
    /// Statements that delete one.
    drop: &'static [&'static str],
    /// Catalogs whose rows come and go with it.
    with: &'static [Oid],
}

/// One row of [`OBJECTS`].
const fn object(
    catalog: Oid,
    noun: &'static str,
    [create, alter, drop]: [&'static [&'static str]; 3],
    with: &'static [Oid],
) -> Object {
    Object { catalog, noun, create, alter, drop, with }
}

/// All of them; what contains others stands before them.
#[rustfmt::skip]
const OBJECTS: &[Object] = &[
    object(c::EXTENSION, "extension", [&["CREATE EXTENSION"], &["ALTER EXTENSION"], &["DROP EXTENSION"]], &[
        c::PROC, c::OPERATOR, c::OPCLASS, c::OPFAMILY, c::AMOP, c::AMPROC, c::AM, c::CAST, c::LANGUAGE, c::AGGREGATE,
        c::FOREIGN_DATA_WRAPPER, c::TYPE, c::INIT_PRIVS,
    ]),
    object(c::DATABASE, "database", [&["CREATE DATABASE"], &["ALTER DATABASE", "GRANT", "REVOKE"], &["DROP DATABASE"]], &[]),
    object(c::TABLESPACE, "tablespace",
        [&["CREATE TABLESPACE"], &["ALTER TABLESPACE", "GRANT", "REVOKE"], &["DROP TABLESPACE"]], &[]),
    object(c::NAMESPACE, "schema", [&["CREATE SCHEMA"], &["ALTER SCHEMA", "GRANT", "REVOKE"], &["DROP SCHEMA", "DROP OWNED"]],
        &[]),
    object(c::AUTHID, "role", [&["CREATE ROLE"], &["ALTER ROLE"], &["DROP ROLE"]], &[c::AUTH_MEMBERS]),
    object(c::AUTH_MEMBERS, "membership in a role",
        [&["GRANT ROLE", "CREATE ROLE", "ALTER ROLE"], &["GRANT ROLE", "REVOKE ROLE"], &["REVOKE ROLE", "DROP OWNED"]], &[]),
    object(c::PUBLICATION, "publication", [&["CREATE PUBLICATION"], &["ALTER PUBLICATION"], &["DROP PUBLICATION"]],
        &[c::PUBLICATION_REL, c::PUBLICATION_NAMESPACE]),
    object(c::PUBLICATION_REL, "table of a publication", [PUBLICATION, PUBLICATION, PUBLICATION], &[]),
    object(c::PUBLICATION_NAMESPACE, "schema of a publication", [PUBLICATION, PUBLICATION, PUBLICATION], &[]),
    object(c::SUBSCRIPTION, "subscription", [&["CREATE SUBSCRIPTION"], &["ALTER SUBSCRIPTION"], &["DROP SUBSCRIPTION"]],
        &[c::SUBSCRIPTION_REL]),
    object(c::PROC, "function", [
        &["CREATE FUNCTION", "CREATE PROCEDURE", "CREATE AGGREGATE"],
        &["CREATE FUNCTION", "CREATE PROCEDURE", "CREATE AGGREGATE", "ALTER FUNCTION", "ALTER PROCEDURE", "GRANT", "REVOKE"],
        &["DROP FUNCTION", "DROP PROCEDURE", "DROP AGGREGATE", "DROP OWNED", "DROP SCHEMA"],
    ], &[c::AGGREGATE]),
    object(c::REWRITE, "rule", [&["CREATE RULE"], &["CREATE VIEW", "CREATE RULE", "ALTER RULE", "ALTER TABLE"],
        &["DROP RULE"]], &[]),
    object(c::POLICY, "policy", [&["CREATE POLICY"], &["ALTER POLICY"], &["DROP POLICY", "DROP OWNED"]], &[]),
    object(c::STATISTIC_EXT, "extended statistics object",
        [&["CREATE STATISTICS"], &["ALTER STATISTICS"], &["DROP STATISTICS"]], &[c::STATISTIC_EXT_DATA]),
    object(c::EVENT_TRIGGER, "event trigger",
        [&["CREATE EVENT TRIGGER"], &["ALTER EVENT TRIGGER"], &["DROP EVENT TRIGGER"]], &[]),
    object(c::LANGUAGE, "language", [&["CREATE LANGUAGE"], &["ALTER LANGUAGE", "GRANT", "REVOKE"], &["DROP LANGUAGE"]], &[]),
    object(c::CAST, "cast", [&["CREATE CAST"], &[], &["DROP CAST"]], &[]),
    object(c::COLLATION, "collation", [&["CREATE COLLATION"], &["ALTER COLLATION"], &["DROP COLLATION"]], &[]),
    object(c::CONVERSION, "conversion", [&["CREATE CONVERSION"], &["ALTER CONVERSION"], &["DROP CONVERSION"]], &[]),
    object(c::OPCLASS, "operator class",
        [&["CREATE OPERATOR CLASS"], &["ALTER OPERATOR CLASS"], &["DROP OPERATOR CLASS"]], &[c::OPFAMILY, c::AMOP, c::AMPROC]),
    object(c::OPFAMILY, "operator family",
        [&["CREATE OPERATOR FAMILY"], &["ALTER OPERATOR FAMILY"], &["DROP OPERATOR FAMILY"]], &[c::AMOP, c::AMPROC]),
    object(c::OPERATOR, "operator", [&["CREATE OPERATOR"], &["ALTER OPERATOR", "CREATE OPERATOR"], &["DROP OPERATOR"]], &[]),
    object(c::AM, "access method", [&["CREATE ACCESS METHOD"], &[], &["DROP ACCESS METHOD"]], &[]),
    object(c::FOREIGN_DATA_WRAPPER, "foreign-data wrapper",
        [&["CREATE FOREIGN DATA WRAPPER"], &["ALTER FOREIGN DATA WRAPPER", "GRANT", "REVOKE"], &["DROP FOREIGN DATA WRAPPER"]], &[]),
    object(c::FOREIGN_SERVER, "foreign server", [&["CREATE SERVER"], &["ALTER SERVER", "GRANT", "REVOKE"], &["DROP SERVER"]], &[]),
    object(c::USER_MAPPING, "user mapping", [&["CREATE USER MAPPING"], &["ALTER USER MAPPING"], &["DROP USER MAPPING"]], &[]),
    object(c::TRANSFORM, "transform", [&["CREATE TRANSFORM"], &["CREATE TRANSFORM"], &["DROP TRANSFORM"]], &[]),
    object(c::TS_CONFIG, "text search configuration", [&["CREATE TEXT SEARCH CONFIGURATION"],
        &["ALTER TEXT SEARCH CONFIGURATION"], &["DROP TEXT SEARCH CONFIGURATION"]], &[c::TS_CONFIG_MAP]),
    object(c::TS_DICT, "text search dictionary", [&["CREATE TEXT SEARCH DICTIONARY"], &["ALTER TEXT SEARCH DICTIONARY"],
        &["DROP TEXT SEARCH DICTIONARY"]], &[]),
    object(c::DEFAULT_ACL, "default privilege", [DEFAULT_ACL, DEFAULT_ACL, DEFAULT_ACL], &[]),
    object(c::DB_ROLE_SETTING, "setting of a role or database", [SETTING, SETTING, SETTING], &[]),
    object(c::DESCRIPTION, "comment", [COMMENT, COMMENT, COMMENT], &[]),
    object(c::SHDESCRIPTION, "comment", [COMMENT, COMMENT, COMMENT], &[]),
    object(c::SECLABEL, "security label", [SECURITY_LABEL, SECURITY_LABEL, SECURITY_LABEL], &[]),
    object(c::SHSECLABEL, "security label", [SECURITY_LABEL, SECURITY_LABEL, SECURITY_LABEL], &[]),
    object(c::PARAMETER_ACL, "privilege on a setting", [GRANT, GRANT, GRANT], &[]),
    object(c::REPLICATION_ORIGIN, "replication origin", [&["SELECT", "CREATE SUBSCRIPTION"], &[],
        &["SELECT", "DROP SUBSCRIPTION"]], &[]),
    object(c::LARGEOBJECT_METADATA, "large object", [&["SELECT"], &["ALTER LARGE OBJECT", "GRANT", "REVOKE"], &["SELECT"]],
        &[c::LARGEOBJECT]),
];

/// Statements of one change that are named one by one.
const STATEMENTS_NAMED_MAX: usize = 4;

/// ALTER PUBLICATION.
const PUBLICATION: &[&str] = &["ALTER PUBLICATION"];
/// ALTER DEFAULT PRIVILEGES.
const DEFAULT_ACL: &[&str] = &["ALTER DEFAULT PRIVILEGES", "DROP OWNED"];
/// SET of a role or a database.
const SETTING: &[&str] = &["ALTER ROLE", "ALTER DATABASE"];
/// COMMENT.
const COMMENT: &[&str] = &["COMMENT"];
/// SECURITY LABEL.
const SECURITY_LABEL: &[&str] = &["SECURITY LABEL"];
/// Privileges.
const GRANT: &[&str] = &["GRANT", "REVOKE"];

impl Teller<'_> {
    /// All of it.
    pub(super) fn objects(&mut self) {
        for object in OBJECTS {
            for (fate, statements) in Fate::ALL.into_iter().zip([object.create, object.alter, object.drop]) {
                let n = self.left(fate, object.catalog);
                if n > 0 {
                    self.object(object, fate, n, statements);
                }
            }
        }
        self.statistics();
        self.labels();
    }

    /// `n` rows of one catalog.
    fn object(&mut self, object: &Object, fate: Fate, n: u64, statements: &[&'static str]) {
        let what = several(n, object.noun);
        match statements {
            [] => self.tell(format!("{what} changed"), &[]),
            [only] => self.tell(format!("{only}, {what}"), statements),
            // When more statements do it, what happened says more.
            [others @ .., last] if others.len() < STATEMENTS_NAMED_MAX => {
                self.tell(format!("{} or {last}, {what}", others.join(", ")), statements);
            }
            _ => {
                let happened = ["CREATE of", "CREATE OR REPLACE, ALTER or GRANT of", "DROP of"][fate as usize];
                self.tell(format!("{happened} {what}"), statements);
            }
        }
        self.explain(fate, &[object.catalog]);
        self.explain(fate, &[c::DEPEND, c::SHDEPEND]);
        for with in object.with {
            Fate::ALL.into_iter().for_each(|fate| self.explain(fate, &[*with]));
        }
        if object.catalog == c::REWRITE {
            self.explain(Fate::Changed, &[c::CLASS]);
        }
    }

    /// What ANALYZE gathers.
    fn statistics(&mut self) {
        let columns = self.left(Fate::New, c::STATISTIC) + self.left(Fate::Changed, c::STATISTIC);
        if columns > 0 {
            let text = format!("ANALYZE, by hand or by autovacuum, {}", several(columns, "column"));
            self.tell(text, &["ANALYZE", "VACUUM"]);
            Fate::ALL.into_iter().for_each(|fate| self.explain(fate, &[c::STATISTIC, c::STATISTIC_EXT_DATA]));
            self.explain(Fate::Changed, &[c::CLASS]);
        }
    }

    /// Labels of enums that were there before.
    fn labels(&mut self) {
        let labels = self.left(Fate::New, c::ENUM) + self.left(Fate::Changed, c::ENUM);
        if labels > 0 {
            self.tell(format!("ALTER TYPE ADD VALUE or RENAME VALUE, {}", several(labels, "label")), &["ALTER TYPE"]);
            Fate::ALL.into_iter().for_each(|fate| self.explain(fate, &[c::ENUM]));
        }
    }
}
