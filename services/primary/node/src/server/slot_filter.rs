//! The filter of `ListSlots`: a subset of AIP-160.
//!
//! ```text
//! filter     = [ comparison { "AND" comparison } ]
//! comparison = field ( "=" | "!=" ) value
//! value      = word | '"' any characters, with \" and \\ '"'
//! ```
//!
//! Everything is checked before the first slot is looked at; errors name the column.

use walstorm_proto::admin::v1 as pb;

use crate::error::{Error, Result};

/// Longest filter in bytes; what a person writes has a hundred.
const FILTER_BYTES_MAX: usize = 4096;
/// The fields there are, for errors.
const FIELDS: &str = "name, state, kind, temporary, active_client_id";

/// A filter that was understood: all comparisons must hold.
#[derive(Debug, PartialEq)]
pub(super) struct SlotFilter {
    /// The comparisons.
    comparisons: Vec<Comparison>,
}

/// One comparison.
#[derive(Debug, PartialEq)]
struct Comparison {
    /// Of what with what.
    operand: Operand,
    /// `!=`.
    negated: bool,
}

/// A field and the value that it is compared with.
#[derive(Debug, PartialEq)]
enum Operand {
    /// The last part of the name.
    Name(String),
    /// Names that begin so.
    NamePrefix(String),
    /// State.
    State(pb::SlotState),
    /// Kind.
    Kind(pb::SlotKind),
    /// Whether it is temporary.
    Temporary(bool),
    /// Holder.
    ActiveClientId(String),
}

impl SlotFilter {
    /// Understands a filter; the empty one takes every slot.
    ///
    /// # Errors
    /// What is wrong, at which column, and what could stand there.
    pub(super) fn parse(text: &str) -> Result<Self> {
        if text.len() > FILTER_BYTES_MAX {
            return Err(Error::field("filter", format!("must have at most {FILTER_BYTES_MAX} bytes")));
        }
        let mut rest = Tokens::new(text);
        let mut comparisons = Vec::new();
        while let Some(field) = rest.next()? {
            if !comparisons.is_empty() {
                if field.text != "AND" || field.quoted {
                    return Err(wrong(field.column, "expected AND: comparisons are joined by nothing else"));
                }
                comparisons.push(rest.comparison(None)?);
            } else {
                comparisons.push(rest.comparison(Some(field))?);
            }
        }
        Ok(Self { comparisons })
    }

    /// Whether the filter takes `slot`.
    pub(super) fn takes(&self, slot: &pb::Slot) -> bool {
        let name = slot.name.strip_prefix("slots/").unwrap_or(&slot.name);
        self.comparisons.iter().all(|comparison| {
            let equal = match &comparison.operand {
                Operand::Name(wanted) => name == wanted,
                Operand::NamePrefix(wanted) => name.starts_with(wanted.as_str()),
                Operand::State(wanted) => slot.state() == *wanted,
                Operand::Kind(wanted) => slot.kind() == *wanted,
                Operand::Temporary(wanted) => slot.temporary == *wanted,
                Operand::ActiveClientId(wanted) => slot.active_client_id == *wanted,
            };
            equal != comparison.negated
        })
    }
}

/// A word, sign or string of a filter.
#[derive(Debug)]
struct Token {
    /// Its text, without quotes and escapes.
    text: String,
    /// It stood in quotes.
    quoted: bool,
    /// Where, from 1.
    column: usize,
}

/// What is left of a filter.
struct Tokens<'a> {
    /// Characters and their columns, from 0.
    characters: std::iter::Peekable<std::iter::Enumerate<std::str::Chars<'a>>>,
    /// Column behind the last one, from 1.
    end: usize,
}

impl<'a> Tokens<'a> {
    /// Of all of it.
    fn new(text: &'a str) -> Self {
        Self { characters: text.chars().enumerate().peekable(), end: text.chars().count() + 1 }
    }

    /// The next token, if there is one.
    fn next(&mut self) -> Result<Option<Token>> {
        while self.characters.next_if(|(_, c)| c.is_whitespace()).is_some() {}
        let Some((at, first)) = self.characters.next() else { return Ok(None) };
        let column = at + 1;
        let mut token = Token { text: String::new(), quoted: false, column };
        match first {
            '"' => {
                token.quoted = true;
                loop {
                    match self.characters.next() {
                        Some((_, '"')) => break,
                        Some((_, '\\')) => token.text.extend(self.characters.next().map(|(_, c)| c)),
                        Some((_, c)) => token.text.push(c),
                        None => return Err(wrong(column, "the string that begins here is not closed")),
                    }
                }
            }
            '=' => token.text.push('='),
            '!' => {
                token.text.push('!');
                token.text.extend(self.characters.next_if(|(_, c)| *c == '=').map(|(_, c)| c));
            }
            _ => {
                token.text.push(first);
                let in_word = |c: char| !c.is_whitespace() && !matches!(c, '=' | '!' | '"');
                while let Some((_, c)) = self.characters.next_if(|(_, c)| in_word(*c)) {
                    token.text.push(c);
                }
            }
        }
        Ok(Some(token))
    }

    /// The next token, which must be there.
    fn expect(&mut self, what: &str) -> Result<Token> {
        let end = self.end;
        self.next()?.ok_or_else(|| wrong(end, &format!("the filter ends where {what} is expected")))
    }

    /// A comparison, of which `field` may have been read.
    fn comparison(&mut self, field: Option<Token>) -> Result<Comparison> {
        let field = match field {
            Some(field) => field,
            None => self.expect(&format!("a field ({FIELDS})"))?,
        };
        if !matches!(field.text.as_str(), "name" | "state" | "kind" | "temporary" | "active_client_id") || field.quoted {
            return Err(wrong(field.column, &format!("unknown field; there are {FIELDS}")));
        }
        let sign = self.expect("= or !=")?;
        let negated = match sign.text.as_str() {
            "=" if !sign.quoted => false,
            "!=" if !sign.quoted => true,
            _ => return Err(wrong(sign.column, "expected = or !=")),
        };
        let value = self.expect("a value")?;
        if !value.quoted && matches!(value.text.as_str(), "=" | "!=" | "!" | "AND") {
            return Err(wrong(value.column, "expected a value; one that is a sign or AND needs double quotes"));
        }
        Ok(Comparison { operand: operand(&field.text, value)?, negated })
    }
}

/// A field and its value.
fn operand(field: &str, value: Token) -> Result<Operand> {
    let Token { text, column, .. } = value;
    Ok(match field {
        "state" => Operand::State(
            enum_value(&text, "SLOT_STATE_", pb::SlotState::from_str_name)
                .ok_or_else(|| wrong(column, "a state is FREE, ACTIVE, BUILDING or INVALIDATED"))?,
        ),
        "kind" => {
            let kind = enum_value(&text, "SLOT_KIND_", pb::SlotKind::from_str_name);
            Operand::Kind(kind.ok_or_else(|| wrong(column, "a kind is PHYSICAL or LOGICAL"))?)
        }
        "temporary" => Operand::Temporary(text.parse().map_err(|_| wrong(column, "temporary is true or false"))?),
        "active_client_id" => Operand::ActiveClientId(text),
        _ => {
            let name = text.strip_prefix("slots/").unwrap_or(&text);
            match name.strip_suffix('*') {
                Some(prefix) if prefix.contains('*') => return Err(wrong(column, "a * may stand at the end of a name only")),
                Some(prefix) => Operand::NamePrefix(prefix.to_owned()),
                None if name.contains('*') => return Err(wrong(column, "a * may stand at the end of a name only")),
                None => Operand::Name(name.to_owned()),
            }
        }
    })
}

/// A value of an enum by its name, with or without the prefix that all its values have. The unspecified one is none.
fn enum_value<E: Into<i32> + Copy>(text: &str, prefix: &str, by_name: fn(&str) -> Option<E>) -> Option<E> {
    let name = if text.starts_with(prefix) { text.to_owned() } else { format!("{prefix}{text}") };
    by_name(&name).filter(|value| (*value).into() != 0)
}

/// The error of a filter.
fn wrong(column: usize, text: &str) -> Error {
    Error::field("filter", format!("column {column}: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(name: &str, state: pb::SlotState) -> pb::Slot {
        pb::Slot {
            name: format!("slots/{name}"),
            state: state.into(),
            kind: pb::SlotKind::Physical.into(),
            active_client_id: if state == pb::SlotState::Active { "c 1".to_owned() } else { String::new() },
            ..pb::Slot::default()
        }
    }

    fn taken(filter: &str) -> Vec<String> {
        let slots = [
            slot("orders", pb::SlotState::Active),
            slot("order_items", pb::SlotState::Free),
            slot("users", pb::SlotState::Invalidated),
        ];
        let filter = SlotFilter::parse(filter).unwrap();
        slots.into_iter().filter(|s| filter.takes(s)).map(|s| s.name.replacen("slots/", "", 1)).collect()
    }

    #[test]
    fn comparisons_are_joined_by_and() {
        assert_eq!(taken("").len(), 3);
        assert_eq!(taken("  ").len(), 3);
        assert_eq!(taken("state = ACTIVE"), ["orders"]);
        assert_eq!(taken("state=SLOT_STATE_ACTIVE"), ["orders"]);
        assert_eq!(taken(r#"name = "order*""#), ["orders", "order_items"]);
        assert_eq!(taken("name = slots/order* AND state != ACTIVE"), ["order_items"]);
        assert_eq!(taken("name = users"), ["users"]);
        assert_eq!(taken(r#"active_client_id = "c 1""#), ["orders"]);
        assert_eq!(taken(r#"kind=PHYSICAL AND temporary=false AND name!="users""#), ["orders", "order_items"]);
        assert_eq!(taken(r#"name = *"#).len(), 3);
        assert_eq!(taken(r#"active_client_id = "a\"b\\""#).len(), 0);
    }

    #[test]
    fn errors_name_the_column_and_what_could_stand_there() {
        for (filter, column, says) in [
            ("stat = ACTIVE", 1, "state"),
            ("state", 6, "= or !="),
            ("state =", 8, "a value"),
            ("state = RUNNING", 9, "BUILDING"),
            ("state = UNSPECIFIED", 9, "BUILDING"),
            ("state > ACTIVE", 7, "= or !="),
            ("state = ACTIVE OR name = a", 16, "AND"),
            ("state = ACTIVE AND", 19, "a field"),
            ("state = AND", 9, "double quotes"),
            ("name = \"ord", 8, "not closed"),
            ("name = a*b", 8, "end of a name"),
            ("name = *a*", 8, "end of a name"),
            ("temporary = yes", 13, "true or false"),
            ("kind = \"a kind\"", 8, "LOGICAL"),
            ("\"state\" = ACTIVE", 1, "unknown field"),
            ("name ! a", 6, "= or !="),
        ] {
            let error = SlotFilter::parse(filter).expect_err(filter).to_string();
            assert!(error.starts_with(&format!("filter: column {column}: ")) && error.contains(says), "{filter}: {error}");
        }
        assert!(SlotFilter::parse(&"x".repeat(5000)).unwrap_err().to_string().contains("4096"));
    }
}
