//! Numbers, times and rates with parameters put in.

use super::ParameterValue;
use super::amount::{Amount, DrawnFile, PauseFile, RateFile, parse_duration, parse_rate};
use super::nearest::suggest;
use super::pause::{Pause, TIME_MAX_US};
use super::resolve::{Resolver, Said};

/// Fastest rate: a transaction every microsecond for each of very many sessions.
const RATE_MAX: u64 = 1_000_000_000;

impl Resolver<'_> {
    /// An amount with parameters replaced.
    fn value(&self, amount: &Amount) -> Said<Amount> {
        let Amount::Text(text) = amount else { return Ok(amount.clone()) };
        let Some(name) = text.strip_prefix('$') else { return Ok(amount.clone()) };
        match self.parameter(name) {
            Some(ParameterValue::Number(number)) => Ok(Amount::Number(*number)),
            Some(ParameterValue::Text(text)) => Ok(Amount::Text(text.clone())),
            None => {
                let near = suggest(name, self.file.parameters.keys().map(String::as_str));
                Err(format!("there is no parameter '{}' under [parameters]{near}", name.escape_debug()))
            }
        }
    }

    /// A number within limits.
    pub(super) fn number(&self, amount: &Amount, min: u64, max: u64) -> Said<u64> {
        match self.value(amount)? {
            Amount::Number(number) if (min..=max).contains(&number) => Ok(number),
            Amount::Number(number) => Err(format!("{number} is out of range: it must be {min} to {max}")),
            Amount::Text(text) => Err(format!("'{}' is no number", text.escape_debug())),
        }
    }

    /// A length of time in microseconds.
    pub(super) fn duration(&self, amount: &Amount) -> Said<u64> {
        let refused =
            |what: String| format!("{what} is no length of time: write a number and a unit, as \"5ms\" (us, ms, s, min, h)");
        match self.value(amount)? {
            Amount::Text(text) => match parse_duration(&text) {
                Some(us) if us <= TIME_MAX_US => Ok(us),
                Some(_) => Err(format!("'{text}' is longer than a year")),
                None => Err(refused(format!("'{}'", text.escape_debug()))),
            },
            Amount::Number(number) => Err(refused(number.to_string())),
        }
    }

    /// A length of time that is not 0.
    pub(super) fn positive_duration(&self, amount: &Amount) -> Said<u64> {
        self.duration(amount).and_then(|us| if us > 0 { Ok(us) } else { Err("this must not be 0".to_owned()) })
    }

    /// A fixed or drawn length of time.
    pub(super) fn pause(&self, pause: &PauseFile) -> Said<Pause> {
        match pause {
            PauseFile::Fixed(amount) => self.duration(amount).map(Pause::Fixed),
            PauseFile::Drawn(drawn) => self.drawn(drawn),
        }
    }

    /// A distribution.
    fn drawn(&self, file: &DrawnFile) -> Said<Pause> {
        let at_most_us = file.at_most.as_ref().map_or(Ok(TIME_MAX_US), |amount| self.duration(amount))?;
        let pause = match file {
            DrawnFile {
                from: Some(from),
                to: Some(to),
                exponential: None,
                normal: None,
                deviation: None,
                pareto: None,
                shape: None,
                at_most: None,
            } => {
                let (from_us, to_us) = (self.duration(from)?, self.duration(to)?);
                if from_us > to_us {
                    return Err("'from' is longer than 'to'".to_owned());
                }
                Pause::Uniform { from_us, to_us }
            }
            DrawnFile {
                exponential: Some(mean),
                from: None,
                to: None,
                normal: None,
                deviation: None,
                pareto: None,
                shape: None,
                ..
            } => Pause::Exponential { mean_us: self.duration(mean)?, at_most_us },
            DrawnFile {
                normal: Some(mean),
                deviation: Some(deviation),
                from: None,
                to: None,
                exponential: None,
                pareto: None,
                shape: None,
                ..
            } => Pause::Normal { mean_us: self.duration(mean)?, deviation_us: self.duration(deviation)?, at_most_us },
            DrawnFile {
                pareto: Some(least),
                shape: Some(shape),
                from: None,
                to: None,
                exponential: None,
                normal: None,
                deviation: None,
                ..
            } => {
                if !(0.01..=100.0).contains(shape) {
                    return Err(format!("the shape {shape} is out of range: it must be 0.01 to 100"));
                }
                Pause::Pareto { least_us: self.duration(least)?, shape: *shape, at_most_us }
            }
            _ => {
                return Err(
                    "a distribution is { from, to }, { exponential }, { normal, deviation } or { pareto, shape }; the last \
                            three may have 'at_most'"
                        .to_owned(),
                );
            }
        };
        Ok(pause)
    }

    /// Transactions in a length of time, as the gaps of one of so many sessions and the gap between two of all of them.
    pub(super) fn rate(&self, rate: &RateFile, sessions: u64) -> Said<(Pause, u64)> {
        let (amount, poisson) = match rate {
            RateFile::Even(amount) => (amount, false),
            RateFile::Poisson(amount) => (amount, true),
        };
        let value = self.value(amount)?;
        let parsed = match &value {
            Amount::Number(times) => Some((*times, 1_000_000)),
            Amount::Text(text) => parse_rate(text),
        };
        let Some((times, us)) = parsed.filter(|(times, _)| (1..=RATE_MAX).contains(times)) else {
            let what = match value {
                Amount::Number(number) => number.to_string(),
                Amount::Text(text) => text.escape_debug().to_string(),
            };
            return Err(format!(
                "'{what}' is no rate: write times and a unit, as \"200/s\" (/s, /min, /h), at most {RATE_MAX}"
            ));
        };
        let gap = (us.saturating_mul(sessions) / times).clamp(1, TIME_MAX_US);
        let every = if poisson { Pause::Exponential { mean_us: gap, at_most_us: TIME_MAX_US } } else { Pause::Fixed(gap) };
        Ok((every, if poisson { 0 } else { us / times }))
    }
}
