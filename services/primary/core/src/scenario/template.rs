//! Names with blanks: `t_{n}`, `known_{random:$tables}`.

use super::ParameterValue;
use crate::rng::{Rng, uniform};

/// One piece of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    /// As it is.
    Text(String),
    /// `{n}`: the number of the transaction among all of its actor, from 1.
    Transaction,
    /// `{session}`: the number of the session among all of its actor, from 1.
    Session,
    /// `{i}`: which of several tables, from 1.
    Index,
    /// `{random:N}`: a number from 1 to N, drawn anew each time.
    Random(u64),
}

/// A name that is completed when it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

/// What the blanks stand for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Blanks {
    /// Number of the transaction.
    pub transaction: u64,
    /// Number of the session.
    pub session: u64,
    /// Number of the table.
    pub index: u64,
}

impl Template {
    /// Reads a name. `parameter` gives the values of parameters.
    ///
    /// # Errors
    /// A sentence that says what is wrong and what would be right.
    pub(super) fn parse<'a>(text: &str, parameter: impl Fn(&str) -> Option<&'a ParameterValue>) -> Result<Template, String> {
        if text.is_empty() || text.len() > 63 || text.chars().any(char::is_control) {
            return Err(format!("'{}' is no name: use 1 to 63 bytes without control characters", text.escape_debug()));
        }
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (blank, after) =
                after.split_once('}').ok_or_else(|| format!("'{text}' opens a '{{' that it does not close"))?;
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            pieces.push(match blank {
                "n" => Piece::Transaction,
                "session" => Piece::Session,
                "i" => Piece::Index,
                _ => Piece::Random(random_range(blank, parameter_number(blank, &parameter))?),
            });
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(rest.to_owned()));
        }
        Ok(Template(pieces))
    }

    /// Whether it has an `{i}`.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.0.contains(&Piece::Index)
    }

    /// The name.
    pub fn fill(&self, blanks: Blanks, rng: &mut dyn Rng) -> String {
        let mut name = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => name.push_str(text),
                Piece::Transaction => name.push_str(&blanks.transaction.to_string()),
                Piece::Session => name.push_str(&blanks.session.to_string()),
                Piece::Index => name.push_str(&blanks.index.to_string()),
                Piece::Random(to) => name.push_str(&uniform(rng, 1, *to).to_string()),
            }
        }
        name
    }
}

/// The value of the parameter in `random:$name`, if it is a number.
fn parameter_number<'a>(blank: &str, parameter: impl Fn(&str) -> Option<&'a ParameterValue>) -> Option<u64> {
    match parameter(blank.strip_prefix("random:$")?)? {
        ParameterValue::Number(number) => Some(*number),
        ParameterValue::Text(_) => None,
    }
}

/// The greatest number of a `{random:…}`.
fn random_range(blank: &str, parameter: Option<u64>) -> Result<u64, String> {
    let number = blank.strip_prefix("random:").and_then(|n| n.parse().ok()).or(parameter).filter(|n| *n > 0);
    number.ok_or_else(|| {
        format!("'{{{blank}}}' is no blank: use {{n}}, {{session}}, {{i}} or {{random:N}} with a number or $parameter for N")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::seeded;

    #[test]
    fn blanks_are_filled() {
        let tables = ParameterValue::Number(3);
        let parse = |text: &str| Template::parse(text, |name| (name == "tables").then_some(&tables));
        let blanks = Blanks { transaction: 7, session: 2, index: 4 };
        let mut rng = seeded(1);
        assert_eq!(parse("a{n}_{session}_{i}z").unwrap().fill(blanks, &mut rng), "a7_2_4z");
        let drawn = parse("k_{random:$tables}").unwrap();
        assert!((0..50).map(|_| drawn.fill(blanks, &mut rng)).all(|n| ["k_1", "k_2", "k_3"].contains(&n.as_str())));
        for bad in ["", "a{", "a{x}", "{random:0}", "{random:$other}", "a\u{1b}[31m"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
