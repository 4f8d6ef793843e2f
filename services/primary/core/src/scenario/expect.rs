//! Oracles: what must come out of a scenario, as a comparison of two expressions over parameters and counters.
//!
//! ```text
//! messages_executed("pg13") == (3 * partitions + 1) * 11 * partitions
//! ```
//!
//! Parameters are put in when the plan is made; counters are asked for when it has run, from whoever knows them: those of the
//! primary from the engine's [`Tally`], work of a decoder or a standby from a run under the profile that the call names.
//! Numbers are `f64`, exact up to 2⁵³; `~` means within 5 per cent. What is no number or infinite (`1 / 0`) compares with nothing:
//! an expectation that divides by a counter fails where that is 0.

use super::nearest::suggest;
use crate::engine::Tally;

/// Most bytes of an expectation.
const TEXT_BYTES_MAX: usize = 1_000;
/// Most parentheses and calls in each other.
const DEPTH_MAX: usize = 32;
/// How far `~` lets the two sides be apart, as a share of the right one.
const ABOUT: f64 = 0.05;
/// What a standby under a profile is asked for, beside the counters of [`pg_types::Work`] that are its own.
pub const STANDBY_COUNTERS: &[&str] = &[
    "xid_slots_visited",
    "xid_slots_skipped",
    "snapshots_taken",
    "span_max",
    "live_max",
    "compressions",
    "snapshots_suboverflowed",
];
/// What a decoder under a profile is asked for, beside its counters of [`pg_types::Work`].
pub const DECODER_COUNTERS: &[&str] = &["given_at_commit", "given_at_prepare"];
/// Functions of numbers, with how many they take.
const FUNCTIONS: &[(&str, usize)] = &[("min", 2), ("max", 2), ("floor", 1), ("ceil", 1), ("abs", 1), ("log2", 1), ("sqrt", 1)];

/// A counter that an expectation asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Counter {
    /// Its name.
    pub name: String,
    /// The actor, or the profile; none for the whole run.
    pub of: Option<String>,
}

/// Who knows a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterSource {
    /// The primary: of an actor, or of the whole run.
    Primary,
    /// A decoder under the profile that is named.
    Decoder,
    /// A standby under the profile that is named.
    Standby,
}

impl Counter {
    /// Who knows it.
    #[must_use]
    pub fn source(&self) -> CounterSource {
        if STANDBY_COUNTERS.contains(&self.name.as_str()) {
            CounterSource::Standby
        } else if pg_types::Work::KEYS.iter().chain(DECODER_COUNTERS).any(|key| *key == self.name) {
            CounterSource::Decoder
        } else {
            CounterSource::Primary
        }
    }
}

/// What must come out.
#[derive(Clone, Debug, PartialEq)]
pub struct Expectation {
    /// As it is written.
    pub text: String,
    /// Line of its text in the file, from 1.
    pub line: usize,
    /// Column of its text, from 1.
    pub column: usize,
    /// First and last version of PostgreSQL whose WAL it is about.
    pub versions: (u64, u64),
    /// The left side.
    left: Expression,
    /// How the sides compare.
    comparison: Comparison,
    /// The right side.
    right: Expression,
}

/// What came out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// The left side.
    pub left: f64,
    /// The right side.
    pub right: f64,
    /// They compare as expected.
    pub holds: bool,
}

/// How two sides compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    /// `==`
    Equal,
    /// `!=`
    Different,
    /// `<=`
    AtMost,
    /// `>=`
    AtLeast,
    /// `<`
    Less,
    /// `>`
    Greater,
    /// `~`
    About,
}

/// One side.
#[derive(Clone, Debug, PartialEq)]
enum Expression {
    /// A number, or a parameter's value.
    Number(f64),
    /// `version`: the major version of the WAL.
    Version,
    /// A counter.
    Counter(Counter),
    /// An operator or function by its name.
    Apply(&'static str, Vec<Expression>),
}

impl Expectation {
    /// Reads an expectation; `parameter` gives the values of parameters, `actors` are the known ones.
    ///
    /// # Errors
    /// Byte offset in `text`, and what is wrong there.
    pub(super) fn parse(text: &str, versions: (u64, u64), names: &Names<'_>) -> Result<Expectation, (usize, String)> {
        if text.len() > TEXT_BYTES_MAX {
            return Err((0, format!("an expectation has at most {TEXT_BYTES_MAX} bytes")));
        }
        let mut parser = Parser { text, at: 0, names, depth: 0 };
        let left = parser.sum()?;
        let comparison = parser.comparison()?;
        let right = parser.sum()?;
        parser.space();
        if parser.at < text.len() {
            return Err((parser.at, "there is something after the end of the comparison".to_owned()));
        }
        Ok(Expectation { text: text.to_owned(), line: 0, column: 0, versions, left, comparison, right })
    }

    /// The counters that must be known.
    #[must_use]
    pub fn counters(&self) -> Vec<&Counter> {
        let mut counters = Vec::new();
        self.left.counters(&mut counters);
        self.right.counters(&mut counters);
        counters
    }

    /// Whether it is about WAL of this major version.
    #[must_use]
    pub fn is_about(&self, version: u64) -> bool {
        (self.versions.0..=self.versions.1).contains(&version)
    }

    /// Compares; `counter` gives the counters' values.
    ///
    /// # Errors
    /// The counter that is not known.
    pub fn evaluate(&self, version: u64, counter: &mut dyn FnMut(&Counter) -> Option<f64>) -> Result<Verdict, Counter> {
        let left = self.left.value(version, counter)?;
        let right = self.right.value(version, counter)?;
        let holds = match self.comparison {
            Comparison::Equal => left == right,
            Comparison::Different => left != right,
            Comparison::AtMost => left <= right,
            Comparison::AtLeast => left >= right,
            Comparison::Less => left < right,
            Comparison::Greater => left > right,
            Comparison::About => (left - right).abs() <= ABOUT * right.abs(),
        };
        Ok(Verdict { left, right, holds: holds && left.is_finite() && right.is_finite() })
    }
}

impl Expression {
    /// The counters in it.
    fn counters<'a>(&'a self, to: &mut Vec<&'a Counter>) {
        match self {
            Expression::Counter(counter) => to.push(counter),
            Expression::Apply(_, arguments) => arguments.iter().for_each(|argument| argument.counters(to)),
            Expression::Number(_) | Expression::Version => {}
        }
    }

    /// Its value.
    fn value(&self, version: u64, counter: &mut dyn FnMut(&Counter) -> Option<f64>) -> Result<f64, Counter> {
        let (name, arguments) = match self {
            Expression::Number(number) => return Ok(*number),
            Expression::Version => return Ok(version as f64),
            Expression::Counter(wanted) => return counter(wanted).ok_or_else(|| wanted.clone()),
            Expression::Apply(name, arguments) => (*name, arguments),
        };
        let mut values = [0.0; 2];
        for (value, argument) in values.iter_mut().zip(arguments) {
            *value = argument.value(version, counter)?;
        }
        let [a, b] = values;
        Ok(match name {
            "+" => a + b,
            "-" => a - b,
            "*" => a * b,
            "/" => a / b,
            "%" => a % b,
            "^" => libm::pow(a, b),
            "negative" => -a,
            "min" => a.min(b),
            "max" => a.max(b),
            "floor" => a.floor(),
            "ceil" => a.ceil(),
            "abs" => a.abs(),
            "log2" => libm::log2(a),
            _ => libm::sqrt(a),
        })
    }
}

/// The words that an expectation may use.
pub(super) struct Names<'a> {
    /// Parameters with their values; times in seconds.
    pub(super) parameters: Vec<(&'a str, f64)>,
    /// Actors.
    pub(super) actors: Vec<&'a str>,
}

/// Reads from left to right.
struct Parser<'a> {
    /// The text.
    text: &'a str,
    /// Byte offset of what comes next.
    at: usize,
    /// Known words.
    names: &'a Names<'a>,
    /// Parentheses and calls that are open.
    depth: usize,
}

/// A part that was read, or where and why not.
type Read<T> = Result<T, (usize, String)>;

impl<'a> Parser<'a> {
    /// What comes next.
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    /// Skips space.
    fn space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Takes `token` if it comes next.
    fn take(&mut self, token: &str) -> bool {
        self.space();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    /// Takes characters as long as they fit.
    fn take_while(&mut self, fits: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let taken = &rest[..rest.find(|c| !fits(c)).unwrap_or(rest.len())];
        self.at += taken.len();
        taken
    }

    /// An error where the parser is.
    fn wrong<T>(&self, message: impl Into<String>) -> Read<T> {
        Err((self.at, message.into()))
    }

    /// The comparison in the middle.
    fn comparison(&mut self) -> Read<Comparison> {
        let all = [
            ("==", Comparison::Equal),
            ("!=", Comparison::Different),
            ("<=", Comparison::AtMost),
            (">=", Comparison::AtLeast),
            ("<", Comparison::Less),
            (">", Comparison::Greater),
            ("~", Comparison::About),
        ];
        for (token, comparison) in all {
            if self.take(token) {
                return Ok(comparison);
            }
        }
        self.wrong("here must be ==, !=, <=, >=, <, > or ~ (within 5 %)")
    }

    /// Terms.
    fn sum(&mut self) -> Read<Expression> {
        self.operators(&["+", "-"], Parser::product)
    }

    /// Factors.
    fn product(&mut self) -> Read<Expression> {
        self.operators(&["*", "/", "%"], Parser::power)
    }

    /// Operands with operators of one rank between them, from left to right.
    fn operators(&mut self, tokens: &[&'static str], operand: fn(&mut Self) -> Read<Expression>) -> Read<Expression> {
        let mut left = operand(self)?;
        while let Some(token) = tokens.iter().find(|token| self.take(token)) {
            left = Expression::Apply(token, vec![left, operand(self)?]);
        }
        Ok(left)
    }

    /// An atom, perhaps raised to a power; powers go from right to left.
    fn power(&mut self) -> Read<Expression> {
        if self.take("-") {
            return self.nested(|parser| Ok(Expression::Apply("negative", vec![parser.power()?])));
        }
        let base = self.atom()?;
        if !self.take("^") {
            return Ok(base);
        }
        self.nested(|parser| Ok(Expression::Apply("^", vec![base, parser.power()?])))
    }

    /// Something inside of something.
    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Read<T>) -> Read<T> {
        if self.depth == DEPTH_MAX {
            return self.wrong(format!("this is nested too deeply: at most {DEPTH_MAX} times"));
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    /// A number, a name, a call, or something in parentheses.
    fn atom(&mut self) -> Read<Expression> {
        if self.take("(") {
            let inner = self.nested(Parser::sum)?;
            return if self.take(")") { Ok(inner) } else { self.wrong("a ')' is missing here") };
        }
        self.space();
        let start = self.at;
        let digits = self.take_while(|c| c.is_ascii_digit() || matches!(c, '_' | '.'));
        if digits.starts_with(|c: char| c.is_ascii_digit()) {
            let number = digits.replace('_', "").parse();
            return number.map(Expression::Number).map_err(|_| (start, format!("'{digits}' is no number")));
        }
        self.at = start;
        let name = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_');
        if name.is_empty() {
            return self.wrong("here must be a number, a parameter, a counter or '('");
        }
        self.named(start, name)
    }

    /// What a name stands for.
    fn named(&mut self, start: usize, name: &str) -> Read<Expression> {
        let call = self.take("(");
        if let Some((function, arguments)) = FUNCTIONS.iter().find(|(function, _)| *function == name).filter(|_| call) {
            return self.nested(|parser| parser.arguments(function, *arguments));
        }
        if call {
            let of = self.quoted()?;
            return self.counter(start, name, Some(of));
        }
        if let Some((_, value)) = self.names.parameters.iter().find(|(parameter, _)| *parameter == name) {
            return Ok(Expression::Number(*value));
        }
        if name == "version" {
            return Ok(Expression::Version);
        }
        self.counter(start, name, None)
    }

    /// The arguments of a function.
    fn arguments(&mut self, function: &'static str, count: usize) -> Read<Expression> {
        let mut arguments = vec![self.sum()?];
        while arguments.len() < count {
            if !self.take(",") {
                return self.wrong(format!("'{function}' takes {count} numbers: a ',' is missing here"));
            }
            arguments.push(self.sum()?);
        }
        if self.take(")") { Ok(Expression::Apply(function, arguments)) } else { self.wrong("a ')' is missing here") }
    }

    /// A text in quotes, and the parenthesis after it.
    fn quoted(&mut self) -> Read<String> {
        let quote = ['"', '\''].into_iter().find(|quote| self.take(&quote.to_string()));
        let Some(quote) = quote else { return self.wrong("here must be an actor or a profile in quotes") };
        let text = self.take_while(|c| c != quote).to_owned();
        if !self.take(&quote.to_string()) {
            return self.wrong("the quote does not end");
        }
        if self.take(")") { Ok(text) } else { self.wrong("a ')' is missing here") }
    }

    /// A counter that exists, of an actor that exists.
    fn counter(&self, start: usize, name: &str, of: Option<String>) -> Read<Expression> {
        let counter = Counter { name: name.to_owned(), of };
        let known = Tally::KEYS.iter().chain(pg_types::Work::KEYS).chain(DECODER_COUNTERS).chain(STANDBY_COUNTERS).copied();
        if !known.clone().any(|key| key == name) {
            let parameters = self.names.parameters.iter().map(|(parameter, _)| *parameter);
            let words: Vec<&str> =
                parameters.chain(known).chain(FUNCTIONS.iter().map(|(f, _)| *f)).chain(["version"]).collect();
            let near = suggest(name, words.iter().copied());
            return Err((start, format!("nothing is called '{}'{near}", name.escape_debug())));
        }
        match (counter.source(), &counter.of) {
            (CounterSource::Primary, Some(actor)) if !self.names.actors.contains(&actor.as_str()) => {
                let near = suggest(actor, self.names.actors.iter().copied());
                Err((start, format!("no actor is named '{}'{near}", actor.escape_debug())))
            }
            (CounterSource::Decoder | CounterSource::Standby, None) => {
                Err((start, format!("'{name}' depends on a profile: write {name}(\"pg14\")")))
            }
            _ => Ok(Expression::Counter(counter)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evaluates with every counter 1000 and parameters n = 5 and k = 3.
    fn holds(text: &str) -> Result<bool, (usize, String)> {
        let names = Names { parameters: vec![("n", 5.0), ("k", 3.0)], actors: vec!["a", "b"] };
        let expectation = Expectation::parse(text, (13, 18), &names)?;
        Ok(expectation.evaluate(18, &mut |_| Some(1000.0)).unwrap().holds)
    }

    #[test]
    fn closed_forms_are_evaluated() {
        for text in [
            "records == 1000",
            "messages(\"a\") == 8 * (n ^ k)",
            "(3*n+1)*13*n == 1040",
            "2^k^2 == 512",
            "-n + 6 == 1",
            "7 - 2 - 1 == 4",
            "-2^2 == -4",
            "n % k == 2",
            "messages_executed(\"pg13\") ~ 960",
            "records < 1_001",
            "max(n, k) == 5",
            "min(n, k) + abs(-1) == 4",
            "floor(n / 2) == 2",
            "ceil(n / 2) == 3",
            "log2(8) == k",
            "version >= 18",
            "records != 3",
            "sqrt(n * n) == n",
            "xid_slots_visited('pg13.6') > 3",
        ] {
            assert_eq!(holds(text), Ok(true), "{text}");
        }
        for text in ["records == 999", "records ~ 800", "n > n", "messages_executed(\"pg13\") <= 999"] {
            assert_eq!(holds(text), Ok(false), "{text}");
        }
        for text in ["n / 0 > 1", "n / 0 == k / 0", "0 / 0 != n", "n % 0 != n", "sqrt(-n) != n", "log2(0) < n", "10 ^ 999 > n"]
        {
            assert_eq!(holds(text), Ok(false), "{text}");
        }
    }

    #[test]
    fn errors_say_where() {
        let deep = "(".repeat(100);
        for (text, at, expected) in [
            ("record == 1", 0, "did you mean 'records'?"),
            ("1 == messages(\"c\")", 5, "no actor is named 'c'; did you mean"),
            ("messages_executed == 1", 0, "depends on a profile"),
            ("1 + == 2", 4, "here must be a number"),
            ("1 2", 2, "here must be =="),
            ("1 == 2 3", 7, "after the end"),
            ("(1 == 2", 3, "')' is missing"),
            ("min(1) == 2", 5, "',' is missing"),
            ("messages(a) == 2", 9, "in quotes"),
            ("messages(\"a == 2", 16, "does not end"),
            ("1.2.3 == 2", 0, "no number"),
            ("é == 2", 0, "here must be a number"),
            (&deep, 33, "too deeply"),
        ] {
            let (place, message) = holds(text).unwrap_err();
            assert!(place == at && message.contains(expected), "{text}: {place}: {message}");
        }
    }
}
