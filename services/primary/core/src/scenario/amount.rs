//! Numbers, durations and pauses as a file writes them: a value, or `"$parameter"`.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Visitor};

/// A number or a text; a text may name a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    /// A number as it is.
    Number(u64),
    /// `"$name"`, or a duration.
    Text(String),
}

/// A length of time, or how to draw one anew each time.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PauseFile {
    /// Always the same.
    Fixed(Amount),
    /// Drawn.
    Drawn(DrawnFile),
}

/// How a length of time is drawn: `from` and `to`, `exponential`, `normal` with `deviation`, or `pareto` with `shape`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct DrawnFile {
    /// Uniform: the least.
    pub(super) from: Option<Amount>,
    /// Uniform: the greatest.
    pub(super) to: Option<Amount>,
    /// Exponential, as between the arrivals of a Poisson process: the mean.
    pub(super) exponential: Option<Amount>,
    /// Normal: the mean.
    pub(super) normal: Option<Amount>,
    /// Normal: the standard deviation.
    pub(super) deviation: Option<Amount>,
    /// Pareto: the least.
    pub(super) pareto: Option<Amount>,
    /// Pareto: the exponent, above 0; the smaller, the longer the tail.
    pub(super) shape: Option<f64>,
    /// Longer draws are cut to this.
    pub(super) at_most: Option<Amount>,
}

/// Transactions in a length of time: evenly spaced, or by chance.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RateFile {
    /// Evenly spaced.
    Even(Amount),
    /// Poisson: the same on average, with exponential gaps.
    Poisson(Amount),
}

/// A rate by chance.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PoissonFile {
    /// The mean rate, as "200/s".
    poisson: Amount,
}

/// Accepts numbers and strings.
struct AmountVisitor;

impl Visitor<'_> for AmountVisitor {
    type Value = Amount;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number that is not negative, a duration as \"5ms\", or a parameter as \"$name\"")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Amount, E> {
        u64::try_from(value).map(Amount::Number).map_err(|_| E::custom(format!("{value} is negative")))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Amount, E> {
        Ok(Amount::Number(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Amount, E> {
        Ok(Amount::Text(value.to_owned()))
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Amount, D::Error> {
        deserializer.deserialize_any(AmountVisitor)
    }
}

impl JsonSchema for Amount {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "integer", "minimum": 0 }, { "type": "string" }] })
    }
}

/// A value that is a text or a table: how serde reads it, and its schema.
macro_rules! text_or_table {
    ($name:ident, $visitor:ident, $table:ty, $expecting:literal, $text:expr, $map:expr) => {
        /// Accepts a text, or a table.
        struct $visitor;

        impl<'de> Visitor<'de> for $visitor {
            type Value = $name;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str($expecting)
            }

            fn visit_str<E: Error>(self, value: &str) -> Result<$name, E> {
                Ok($text(Amount::Text(value.to_owned())))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<$name, A::Error> {
                <$table>::deserialize(MapAccessDeserializer::new(map)).map($map)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                deserializer.deserialize_any($visitor)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                let table = generator.subschema_for::<$table>();
                json_schema!({ "description": $expecting, "anyOf": [{ "type": "string" }, table] })
            }
        }
    };
}

text_or_table!(
    PauseFile,
    PauseVisitor,
    DrawnFile,
    "a duration as \"5ms\", a parameter as \"$name\", or a distribution as { from = \"0s\", to = \"60s\" }",
    PauseFile::Fixed,
    PauseFile::Drawn
);

text_or_table!(
    RateFile,
    RateVisitor,
    PoissonFile,
    "a rate as \"200/s\", a parameter as \"$name\", or { poisson = \"200/s\" }",
    RateFile::Even,
    |rate: PoissonFile| RateFile::Poisson(rate.poisson)
);

/// Microseconds of `"5us"`, `"5ms"`, `"5s"`, `"5min"` or `"1h"`; whole numbers only.
pub(super) fn parse_duration(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at_checked(digits)?;
    let micros = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "min" => 60_000_000,
        "h" => 3_600_000_000,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(micros)
}

/// Times in microseconds of `"200/s"`, `"30/min"` or `"5/h"`: how often, and in how many microseconds.
pub(super) fn parse_rate(text: &str) -> Option<(u64, u64)> {
    let (times, unit) = text.split_once('/')?;
    let times = times.parse().ok()?;
    Some((times, parse_duration(&format!("1{unit}"))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(parse_duration("15s"), Some(15_000_000));
        assert_eq!(parse_duration("250us"), Some(250));
        assert_eq!(parse_duration("2min"), Some(120_000_000));
        for bad in ["", "5", "s", "-5s", "5 s", "1.5s", "5d", "99999999999999999999s", "9999999999999999h"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
