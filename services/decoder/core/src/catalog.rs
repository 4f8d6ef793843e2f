//! What the decoder knows of relations beside the WAL: names, and which of them are catalogs.
//!
//! WAL names files, not tables. PostgreSQL reads the catalogs as they were when the change was made; walstorm reads a copy
//! that somebody took ([`crate::catalog_csv`]) or does without one: then a relation is shown by its file, and its oid is taken
//! to be its file number, as it is until the first rewrite. Only work counters depend on that guess.

use std::fmt;
use std::sync::Arc;

use pg_types::{CatalogRow, Oid, RelFileLocator, Tid};

/// A relation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationInfo {
    /// Its oid.
    pub oid: Oid,
    /// Its schema, as far as known; [`Oid::INVALID`] if not.
    pub namespace: Oid,
    /// `schema.name`, each part quoted where SQL needs it.
    pub name: Arc<str>,
    /// Rows of it are decoded (`RelationIsLogicallyLogged`): no catalog, no TOAST table, no sequence.
    pub logged: bool,
}

/// A copy of the catalogs.
pub trait Catalog: fmt::Debug + Send + Sync {
    /// The relation that has, or had, this file.
    fn by_file(&self, file: RelFileLocator) -> Option<RelationInfo>;
    /// The relation with this oid.
    fn by_oid(&self, oid: Oid) -> Option<RelationInfo>;

    /// A relation's `relkind`, if it is known.
    fn kind(&self, oid: Oid) -> Option<char> {
        let _ = oid;
        None
    }

    /// Rows that say what is published, as they were before the WAL, each with its place (`ctid`) if that is known: otherwise nobody can tell
    /// when it goes.
    fn publication_rows(&self) -> Vec<(Option<Tid>, CatalogRow)> {
        Vec::new()
    }
}

/// No copy at all: every relation is shown by its file.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCatalog;

impl Catalog for NoCatalog {
    fn by_file(&self, _: RelFileLocator) -> Option<RelationInfo> {
        None
    }

    fn by_oid(&self, _: Oid) -> Option<RelationInfo> {
        None
    }
}

/// Words that are quoted as identifiers: every keyword of 13 to 18 that is not "unreserved" (`quote_identifier`).
const QUOTED_WORDS: &str = " all analyse analyze and any array as asc asymmetric authorization between bigint binary bit boolean both \
case cast char character check coalesce collate collation column concurrently constraint create cross current_catalog \
current_date current_role current_schema current_time current_timestamp current_user dec decimal default deferrable desc \
distinct do else end except exists extract false fetch float for foreign freeze from full grant greatest group grouping having \
ilike in initially inner inout int integer intersect interval into is isnull join json json_array json_arrayagg json_exists \
json_object json_objectagg json_query json_scalar json_serialize json_table json_value lateral leading least left like limit \
localtime localtimestamp merge_action national natural nchar none normalize not notnull null nullif numeric offset on only or \
order out outer overlaps overlay placing position precision primary real references returning right row select session_user \
setof similar smallint some substring symmetric system_user table tablesample then time timestamp to trailing treat trim true \
union unique user using values varchar variadic verbose when where window with xmlattributes xmlconcat xmlelement xmlexists \
xmlforest xmlnamespaces xmlparse xmlpi xmlroot xmlserialize xmltable ";

/// `quote_identifier` (`utils/adt/ruleutils.c`): double quotes where an identifier needs them to be read back.
#[must_use]
pub fn quote_identifier(name: &str) -> String {
    let first_is_safe = name.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
    let all_safe = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if first_is_safe && all_safe && !QUOTED_WORDS.contains(&format!(" {name} ")) {
        name.to_owned()
    } else {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}

/// `quote_qualified_identifier`: schema and name.
#[must_use]
pub fn quote_qualified_identifier(schema: &str, name: &str) -> String {
    format!("{}.{}", quote_identifier(schema), quote_identifier(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_quoted_as_postgresql_does() {
        for (name, quoted) in [
            ("accounts", "accounts"),
            ("_a1", "_a1"),
            ("1a", "\"1a\""),
            ("Tab", "\"Tab\""),
            ("a b", "\"a b\""),
            ("a\"b", "\"a\"\"b\""),
            ("order", "\"order\""),
            ("user", "\"user\""),
            ("int", "\"int\""),
            ("name", "name"),
            ("a$b", "\"a$b\""),
            ("größe", "\"größe\""),
            ("", "\"\""),
        ] {
            assert_eq!(quote_identifier(name), quoted);
        }
        assert_eq!(quote_qualified_identifier("public", "Order"), "public.\"Order\"");
    }
}
