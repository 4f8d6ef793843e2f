//! Names with blanks: `t_{n}`, `known_{random:$tables}`, `orders_{1..1000}`.

use super::ParameterValue;
use super::nearest::suggest;
use crate::rng::{Rng, seeded, uniform, zipf};

/// Most objects that a pattern names.
pub(super) const PATTERN_MAX: u64 = 1_000_000;
/// Greatest number that `{zipf:N}` draws from: far above it two neighbours are one number to the arithmetic, and no draw ends.
const ZIPF_MAX: u64 = 1_000_000_000_000;
/// Exponent of `{zipf:N}` without one.
const ZIPF_EXPONENT: f64 = 1.0;

/// One piece of a name.
#[derive(Clone, Debug, PartialEq)]
enum Piece {
    /// As it is.
    Text(String),
    /// `{n}`: the number of the transaction among all of its actor, from 1.
    Transaction,
    /// `{session}`: the number of the session among all of its actor, from 1.
    Session,
    /// `{i}`: which of several tables, or the turn of the innermost `repeat`, from 1.
    Index,
    /// `{j}`: the turn of the `repeat` around the innermost.
    Outer,
    /// `{random:N}` or `{random:A..B}`: a number in a range, drawn anew each time.
    Random(u64, u64),
    /// `{zipf:N}` or `{zipf:N,S}`: a number from 1 to N, low ones more often.
    Zipf(u64, f64),
}

/// A name that is completed when it is used.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    /// Its pieces.
    pieces: Vec<Piece>,
    /// The numbers of its pattern, if it has one: `{A..B}` is an [`Piece::Index`] that goes from A to B.
    pattern: Option<(u64, u64)>,
}

/// What the blanks stand for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Blanks {
    /// Number of the transaction.
    pub transaction: u64,
    /// Number of the session.
    pub session: u64,
    /// Number of the table, or the turn of the innermost loop.
    pub index: u64,
    /// The turn of the loop around that one.
    pub outer: u64,
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
        let mut template = Template { pieces: Vec::new(), pattern: None };
        let mut counts = false;
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (blank, after) =
                after.split_once('}').ok_or_else(|| format!("'{text}' opens a '{{' that it does not close"))?;
            if !before.is_empty() {
                template.pieces.push(Piece::Text(before.to_owned()));
            }
            let piece = piece(blank, &parameter)?;
            if let Some(range) = piece.pattern {
                if template.pattern.is_some_and(|other| other != range) {
                    return Err(format!("'{text}' has two patterns: one name counts in one way"));
                }
                template.pattern = Some(range);
            }
            counts |= piece.pattern.is_none() && piece.piece == Piece::Index;
            template.pieces.push(piece.piece);
            rest = after;
        }
        if counts && template.pattern.is_some() {
            return Err(format!("'{text}' has {{i}} and a pattern, which both count: use one of them"));
        }
        if !rest.is_empty() {
            template.pieces.push(Piece::Text(rest.to_owned()));
        }
        Ok(template)
    }

    /// Whether it has an `{i}` or a pattern.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.pieces.contains(&Piece::Index)
    }

    /// First and last number of its pattern.
    #[must_use]
    pub fn pattern(&self) -> Option<(u64, u64)> {
        self.pattern
    }

    /// The name of something that is there before the log begins. It has no random blank that would matter: whatever is drawn here
    /// is drawn from a generator of its own.
    pub(crate) fn numbered(&self, index: u64) -> String {
        self.fill(Blanks { index, ..Blanks::default() }, &mut seeded(index))
    }

    /// The name.
    pub fn fill(&self, blanks: Blanks, rng: &mut dyn Rng) -> String {
        let mut name = String::new();
        for piece in &self.pieces {
            let number = match *piece {
                Piece::Text(ref text) => {
                    name.push_str(text);
                    continue;
                }
                Piece::Transaction => blanks.transaction,
                Piece::Session => blanks.session,
                Piece::Index => blanks.index,
                Piece::Outer => blanks.outer,
                Piece::Random(from, to) => uniform(rng, from, to),
                Piece::Zipf(n, exponent) => zipf(rng, n, exponent),
            };
            name.push_str(&number.to_string());
        }
        name
    }
}

/// A blank that was read.
struct Blank {
    /// The piece.
    piece: Piece,
    /// Its range, if it is a pattern.
    pattern: Option<(u64, u64)>,
}

/// Reads what is between the braces.
fn piece<'a>(blank: &str, parameter: &impl Fn(&str) -> Option<&'a ParameterValue>) -> Result<Blank, String> {
    let piece = match blank.split_once(':') {
        None => match blank {
            "n" => Piece::Transaction,
            "session" => Piece::Session,
            "i" => Piece::Index,
            "j" => Piece::Outer,
            _ if blank.contains("..") => {
                let pattern = range(blank, parameter)?;
                let width = pattern.1 - pattern.0;
                if width >= PATTERN_MAX {
                    return Err(format!("'{{{}}}' names more than {PATTERN_MAX} objects", blank.escape_debug()));
                }
                return Ok(Blank { piece: Piece::Index, pattern: Some(pattern) });
            }
            _ => return Err(no_blank(blank)),
        },
        Some(("random", to)) if !to.contains("..") => Piece::Random(1, positive(to, parameter)?),
        Some(("random", between)) => {
            let (from, to) = range(between, parameter)?;
            Piece::Random(from, to)
        }
        Some(("zipf", law)) => {
            let (n, exponent) = match law.split_once(',') {
                None => (law, Some(ZIPF_EXPONENT)),
                Some((n, exponent)) => (n, exponent.trim().parse().ok()),
            };
            let exponent = exponent.filter(|s: &f64| (0.01..=10.0).contains(s));
            let exponent =
                exponent.ok_or_else(|| format!("the exponent of '{{{}}}' must be 0.01 to 10", blank.escape_debug()))?;
            match positive(n, parameter)? {
                n if n <= ZIPF_MAX => Piece::Zipf(n, exponent),
                n => return Err(format!("{n} is out of range for {{zipf:N}}: it must be 1 to {ZIPF_MAX}")),
            }
        }
        Some(_) => return Err(no_blank(blank)),
    };
    Ok(Blank { piece, pattern: None })
}

/// The two ends of `A..B`.
fn range<'a>(text: &str, parameter: &impl Fn(&str) -> Option<&'a ParameterValue>) -> Result<(u64, u64), String> {
    let (from, to) = text.split_once("..").ok_or_else(|| no_blank(text))?;
    let (from, to) = (number(from, parameter)?, number(to.trim_start_matches('='), parameter)?);
    if from > to { Err(format!("'{{{from}..{to}}}' goes down: the first number is the smaller one")) } else { Ok((from, to)) }
}

/// A number above 0.
fn positive<'a>(text: &str, parameter: &impl Fn(&str) -> Option<&'a ParameterValue>) -> Result<u64, String> {
    match number(text, parameter)? {
        0 => Err(format!("'{}' is 0: there is nothing to choose from", text.escape_debug())),
        number => Ok(number),
    }
}

/// A number, or the value of a `$parameter`.
fn number<'a>(text: &str, parameter: &impl Fn(&str) -> Option<&'a ParameterValue>) -> Result<u64, String> {
    let value = match text.strip_prefix('$') {
        None => text.parse().ok(),
        Some(name) => match parameter(name) {
            None => return Err(format!("there is no parameter '{}' under [parameters]", name.escape_debug())),
            Some(ParameterValue::Number(number)) => Some(*number),
            Some(ParameterValue::Text(_)) => None,
        },
    };
    value.ok_or_else(|| format!("'{}' in a name's blank is no number", text.escape_debug()))
}

/// The sentence about an unknown blank.
fn no_blank(blank: &str) -> String {
    let word = blank.split(':').next().unwrap_or(blank);
    let near = suggest(word, ["n", "session", "i", "j", "random", "zipf"].into_iter());
    let forms =
        "{n}, {session}, {i}, {j}, {A..B}, {random:N}, {random:A..B}, {zipf:N} or {zipf:N,S}; $parameter may be a number";
    format!("'{{{}}}' is no blank{near} (use {forms})", blank.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blanks_are_filled() {
        let tables = ParameterValue::Number(3);
        let parse = |text: &str| Template::parse(text, |name| (name == "tables").then_some(&tables));
        let blanks = Blanks { transaction: 7, session: 2, index: 4, outer: 5 };
        let mut rng = seeded(1);
        assert_eq!(parse("a{n}_{session}_{i}{j}z").unwrap().fill(blanks, &mut rng), "a7_2_45z");
        for text in ["k_{random:$tables}", "k_{random:1..3}", "k_{zipf:$tables}", "k_{zipf:3,0.5}"] {
            let drawn = parse(text).unwrap();
            let names: Vec<String> = (0..80).map(|_| drawn.fill(blanks, &mut rng)).collect();
            assert!(["k_1", "k_2", "k_3"].iter().all(|name| names.iter().any(|n| n == name)), "{text}: {names:?}");
            assert!(names.iter().all(|n| ["k_1", "k_2", "k_3"].contains(&n.as_str())), "{text}: {names:?}");
        }
        let pattern = parse("orders_{2..$tables}").unwrap();
        assert_eq!((pattern.pattern(), pattern.fill(blanks, &mut rng)), (Some((2, 3)), "orders_4".to_owned()));
        for exponent in ["0.01", "0.5", "1", "10"] {
            let widest = parse(&format!("{{zipf:{ZIPF_MAX},{exponent}}}")).unwrap();
            assert!((0..10).all(|_| (1..=ZIPF_MAX).contains(&widest.fill(blanks, &mut rng).parse().unwrap())), "{exponent}");
        }
        for bad in [
            "",
            "a{",
            "a{x}",
            "{random:0}",
            "{random:$other}",
            "a\u{1b}[31m",
            "{5..4}",
            "{1..2}{1..3}",
            "{1..2}{i}",
            "{1..}",
            "{0..9999999999}",
            "{zipf:3,0}",
            "{zipf:3,x}",
            "{zipf:3,nan}",
            "{zipf:18446744073709551615,0.01}",
            "{zip:3}",
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
