//! Numbers, durations and pauses as a file writes them: a value, or `"$parameter"`.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

/// A number or a text; a text may name a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    /// A number as it is.
    Number(u64),
    /// `"$name"`, or a duration.
    Text(String),
}

/// A length of time, or one drawn anew each time between two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PauseFile {
    /// The least.
    pub(super) from: Amount,
    /// The greatest.
    pub(super) to: Amount,
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

/// Accepts a duration, or a table with `from` and `to`.
struct PauseVisitor;

impl<'de> Visitor<'de> for PauseVisitor {
    type Value = PauseFile;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration as \"5ms\", a parameter as \"$name\", or { from = \"0s\", to = \"60s\" }")
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<PauseFile, E> {
        let fixed = Amount::Text(value.to_owned());
        Ok(PauseFile { from: fixed.clone(), to: fixed })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<PauseFile, A::Error> {
        let (mut from, mut to) = (None, None);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "from" => from = Some(map.next_value()?),
                "to" => to = Some(map.next_value()?),
                _ => return Err(A::Error::unknown_field(&key, &["from", "to"])),
            }
        }
        match (from, to) {
            (Some(from), Some(to)) => Ok(PauseFile { from, to }),
            _ => Err(A::Error::custom("a range of time needs both 'from' and 'to'")),
        }
    }
}

impl<'de> Deserialize<'de> for PauseFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PauseFile, D::Error> {
        deserializer.deserialize_any(PauseVisitor)
    }
}

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
