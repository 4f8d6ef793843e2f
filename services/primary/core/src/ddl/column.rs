//! A column as a scenario writes it: `id serial primary key`, `a int`, `b text not null`, `c timestamptz default now()`.

use std::sync::Arc;

use crate::catalog::Attribute;

/// Types that a column may have: name, bytes of a value on average, whether long values go to a TOAST table.
const TYPES: [(&str, u32, bool); 14] = [
    ("smallint", 2, false),
    ("int", 4, false),
    ("integer", 4, false),
    ("bigint", 8, false),
    ("serial", 4, false),
    ("bigserial", 8, false),
    ("bool", 1, false),
    ("date", 4, false),
    ("timestamptz", 8, false),
    ("uuid", 16, false),
    ("numeric", 8, true),
    ("text", 16, true),
    ("bytea", 32, true),
    ("jsonb", 64, true),
];

/// Bytes of an array on average.
const ARRAY_WIDTH: u32 = 32;
/// Bytes of a value of a type that a statement makes, on average.
const MADE_WIDTH: u32 = 4;

/// Names of the types that are there without being made.
#[must_use]
pub(crate) fn known_types() -> [&'static str; TYPES.len()] {
    TYPES.map(|(name, ..)| name)
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: Arc<str>,
    /// Its type's name.
    pub type_name: Arc<str>,
    /// Its type is one that a statement makes: its name, without `[]`.
    pub made_type: Option<Arc<str>>,
    /// Bytes of a value on average.
    pub width: u32,
    /// Its table needs a TOAST table.
    pub toastable: bool,
    /// It gets its values from a sequence of its own.
    pub serial: bool,
    /// It has a default (a serial column has one, too).
    pub default: bool,
    /// NOT NULL (a primary key and a serial column are so without saying it).
    pub not_null: bool,
    /// It is the primary key.
    pub primary_key: bool,
}

impl Column {
    /// Reads a column's definition.
    ///
    /// # Errors
    /// A sentence that says what is wrong and what would be right.
    pub fn parse(definition: &str) -> Result<Column, String> {
        let mut words = definition.split_whitespace();
        let (Some(name), Some(type_name)) = (words.next(), words.next()) else {
            return Err(format!("'{definition}' is no column: write a name and a type, as in 'a int'"));
        };
        if name.len() > 63 || name.chars().any(char::is_control) {
            return Err(format!("column name '{}' is longer than 63 bytes or has control characters", name.escape_debug()));
        }
        let element = type_name.strip_suffix("[]");
        let known = TYPES.iter().find(|(known, _, _)| known.eq_ignore_ascii_case(element.unwrap_or(type_name)));
        let (known_type, width, toastable) = match (known, element) {
            (Some((known, width, toastable)), None) => ((*known).into(), *width, *toastable),
            (Some((known, ..)), Some(_)) => (format!("{known}[]").into(), ARRAY_WIDTH, true),
            (None, Some(_)) => (Arc::from(type_name), ARRAY_WIDTH, true),
            (None, None) => (Arc::from(type_name), MADE_WIDTH, false),
        };
        let made_type = known.is_none().then(|| Arc::from(element.unwrap_or(type_name)));
        let rest = words.collect::<Vec<_>>().join(" ").to_ascii_lowercase();
        let serial = type_name.to_ascii_lowercase().ends_with("serial");
        let (clauses, default) = match rest.split_once("default ") {
            Some((before, _)) => (before.trim().to_owned(), true),
            None => (rest, false),
        };
        let primary_key = clauses.contains("primary key");
        let not_null = clauses.contains("not null");
        let left = clauses.replace("primary key", "").replace("not null", "");
        if !left.trim().is_empty() {
            return Err(format!(
                "'{}' is not understood: after its type a column may say 'not null', 'primary key' and, last, 'default …'",
                left.trim()
            ));
        }
        Ok(Column {
            name: name.into(),
            type_name: known_type,
            made_type,
            width,
            toastable,
            serial,
            default: default || serial,
            not_null: not_null || primary_key || serial,
            primary_key,
        })
    }

    /// What the catalog keeps of it.
    #[must_use]
    pub(crate) fn attribute(&self) -> Attribute {
        Attribute {
            name: Arc::clone(&self.name),
            type_name: Arc::clone(&self.type_name),
            type_oid: None,
            width: self.width,
            toastable: self.toastable,
            not_null: self.not_null,
            missing: false,
            dropped: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_are_understood() {
        let id = Column::parse("id serial primary key").unwrap();
        assert!(id.serial && id.default && id.not_null && id.primary_key && !id.toastable);
        let c = Column::parse("c timestamptz default now()").unwrap();
        assert!(c.default && !c.not_null && !c.serial);
        assert!(Column::parse("b TEXT NOT NULL").unwrap().toastable);
        assert_eq!(Attribute::row_len(&[id.attribute(), c.attribute()]), 18);
        let made = |text: &str| Column::parse(text).unwrap().made_type;
        assert_eq!((made("m mood"), made("m mood[]")), (Some("mood".into()), Some("mood".into())));
        assert_eq!((made("m int"), made("m int[]")), (None, None));
    }

    #[test]
    fn errors_say_what_would_be_right() {
        let errors = [("a", "a name and a type"), ("a int unique", "may say 'not null'")];
        for (definition, expected) in errors {
            let error = Column::parse(definition).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
