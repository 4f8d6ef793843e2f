//! Rules that traces must keep, from a TOML file: for CI.
//!
//! ```toml
//! [[count]]                    # how many spans of a name there are in each trace that has another
//! name = "every committed transaction is decoded once"
//! per = "transaction"          # a span's name, or service: name
//! span = "walstorm-decoder: decode transaction"
//! exactly = 1                  # or at_least, at_most
//!
//! [[forbid]]                   # spans that must not be
//! name = "nothing is executed under indexed that nobody has cached"
//! span = "decode transaction"
//! where = { "walstorm.profile" = "indexed" }       # attributes that have these values
//! above = { "walstorm.messages_executed" = 0 }     # attributes that are greater
//!
//! [[limit]]                    # how long something takes
//! name = "decoding is quick"
//! stage = "walstorm-decoder: decode transaction"   # a stage of critical paths, or total; or span = for all of a name
//! p99_max = "5ms"              # or p50_max, p95_max, max
//!
//! [structure]                  # what may be wrong with spans as such
//! orphans_max = 0              # unresolved_links_max, cycles_max, duplicates_max, backwards_max
//! ```
//!
//! A rule that finds nothing to check is broken, unless it says `may_be_absent = true`: else a name with a typing error would always hold.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use serde::Deserialize;

use crate::error::{Result, TraceError};

/// Bytes of a file of rules at most.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A file of rules.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rules {
    /// How many.
    pub count: Vec<CountRule>,
    /// None at all.
    pub forbid: Vec<ForbidRule>,
    /// How long.
    pub limit: Vec<LimitRule>,
    /// What may be wrong.
    pub structure: Option<StructureRule>,
}

/// How many spans of a name a trace has.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CountRule {
    /// What it demands, in words.
    pub name: String,
    /// Traces with a span of this name are checked.
    pub per: String,
    /// Which spans are counted.
    pub span: String,
    /// So many.
    pub exactly: Option<u64>,
    /// So many or more.
    pub at_least: Option<u64>,
    /// So many or fewer.
    pub at_most: Option<u64>,
    /// It holds too if nothing is there to check.
    #[serde(default)]
    pub may_be_absent: bool,
}

/// Spans that must not be.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForbidRule {
    /// What it demands, in words.
    pub name: String,
    /// Spans of this name; of any if it is left out.
    pub span: Option<String>,
    /// Attributes with these values.
    #[serde(default, rename = "where")]
    pub equal: BTreeMap<String, toml::Value>,
    /// Attributes above these.
    #[serde(default)]
    pub above: BTreeMap<String, f64>,
}

/// How long something takes.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimitRule {
    /// What it demands, in words.
    pub name: String,
    /// A stage of critical paths, as `critical-path` prints it with services in full, or `total`.
    pub stage: Option<String>,
    /// Or spans of a name.
    pub span: Option<String>,
    /// The median.
    #[serde(default)]
    pub p50_max: Option<Time>,
    /// Of 95 in a hundred.
    #[serde(default)]
    pub p95_max: Option<Time>,
    /// Of 99 in a hundred.
    #[serde(default)]
    pub p99_max: Option<Time>,
    /// Of all.
    #[serde(default)]
    pub max: Option<Time>,
    /// It holds too if nothing is there to check.
    #[serde(default)]
    pub may_be_absent: bool,
}

/// What may be wrong with spans as such.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StructureRule {
    /// Spans without their parents.
    pub orphans_max: Option<u64>,
    /// Links to spans that are not there.
    pub unresolved_links_max: Option<u64>,
    /// Spans that are their own ancestors.
    pub cycles_max: Option<u64>,
    /// Spans that came more than once.
    pub duplicates_max: Option<u64>,
    /// Spans that end before they begin.
    pub backwards_max: Option<u64>,
}

/// A time as people write it: `5ms`, `1s 200ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(pub Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let parsed = humantime::parse_duration(&text);
        parsed
            .map(Time)
            .map_err(|error| serde::de::Error::custom(format!("'{text}' is no time ({error}); write 5ms or 1s 200ms")))
    }
}

impl Rules {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, has keys that are not known, or a rule that demands nothing; with its line.
    pub fn load(path: &Path) -> Result<Self> {
        let place = path.display().to_string();
        let read = std::fs::metadata(path)
            .and_then(|found| if found.len() > FILE_BYTES_MAX { Ok(None) } else { std::fs::read_to_string(path).map(Some) });
        match read.map_err(|source| TraceError::Read { place: place.clone(), source })? {
            Some(text) => Self::parse(&text, &place),
            None => Err(TraceError::TooLarge { place, what: "a file of rules", max: 1 }),
        }
    }

    /// Reads rules that `place` holds.
    ///
    /// # Errors
    /// As [`Rules::load`].
    pub fn parse(text: &str, place: &str) -> Result<Self> {
        let wrong = |what: String| TraceError::Rules { place: place.to_owned(), what };
        let rules: Self = toml::from_str(text).map_err(|error| {
            wrong(format!("{}; `walstorm trace assert --help` shows what a rule may have", error.to_string().trim_end()))
        })?;
        rules.check().map_err(wrong)?;
        Ok(rules)
    }

    /// What is wrong with rules that can be read.
    fn check(&self) -> std::result::Result<(), String> {
        let structure =
            self.structure.as_ref().is_some_and(|structure| structure.limits().iter().any(|(_, max)| max.is_some()));
        if self.count.is_empty() && self.forbid.is_empty() && self.limit.is_empty() && !structure {
            return Err("there is no rule in it; give [[count]], [[forbid]], [[limit]] or [structure]".to_owned());
        }
        for rule in &self.count {
            let bounds = (rule.exactly, rule.at_least, rule.at_most);
            if !matches!(bounds, (Some(_), None, None) | (None, Some(_), _) | (None, _, Some(_))) {
                return Err(format!("count '{}': give exactly, or at_least and at_most, or one of them", rule.name));
            }
        }
        for rule in &self.forbid {
            if rule.span.is_none() && rule.equal.is_empty() && rule.above.is_empty() {
                return Err(format!("forbid '{}': give span, where or above; without, it forbids every span", rule.name));
            }
            if let Some((key, _)) =
                rule.equal.iter().find(|(_, value)| value.is_array() || value.is_table() || value.is_datetime())
            {
                return Err(format!("forbid '{}': where.{key:?} must be text, a number or a flag", rule.name));
            }
        }
        for rule in &self.limit {
            if rule.stage.is_some() == rule.span.is_some() {
                return Err(format!("limit '{}': give one of stage and span", rule.name));
            }
            if rule.limits().is_empty() {
                return Err(format!("limit '{}': give p50_max, p95_max, p99_max or max", rule.name));
            }
        }
        Ok(())
    }

    /// The attributes that they ask for.
    #[must_use]
    pub fn attributes(&self) -> Vec<&str> {
        let keys = self.forbid.iter().flat_map(|rule| rule.equal.keys().chain(rule.above.keys()));
        keys.map(String::as_str).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

impl LimitRule {
    /// Name, quantile and nanoseconds of each limit.
    pub(crate) fn limits(&self) -> Vec<(&'static str, f64, u64)> {
        let all =
            [("p50", 0.5, self.p50_max), ("p95", 0.95, self.p95_max), ("p99", 0.99, self.p99_max), ("max", 1.0, self.max)];
        let ns = |time: Time| u64::try_from(time.0.as_nanos()).unwrap_or(u64::MAX);
        all.into_iter().filter_map(|(name, quantile, max)| Some((name, quantile, ns(max?)))).collect()
    }
}

impl StructureRule {
    /// What each limit is of.
    pub(crate) fn limits(&self) -> [(&'static str, Option<u64>); 5] {
        [
            ("spans without their parents", self.orphans_max),
            ("links to spans that are not there", self.unresolved_links_max),
            ("spans that are their own ancestors", self.cycles_max),
            ("spans that came more than once", self.duplicates_max),
            ("spans that end before they begin", self.backwards_max),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_documentation_is_right() {
        let docs = include_str!("rules.rs");
        let example: Vec<&str> = docs
            .lines()
            .map_while(|line| line.strip_prefix("//!"))
            .skip_while(|line| !line.contains("```toml"))
            .skip(1)
            .take_while(|line| !line.contains("```"))
            .collect();
        let rules = Rules::parse(&example.join("\n"), "example").unwrap();
        assert_eq!((rules.count.len(), rules.forbid.len(), rules.limit.len()), (1, 1, 1));
        assert_eq!(rules.attributes(), ["walstorm.messages_executed", "walstorm.profile"]);
        assert_eq!(rules.limit[0].limits(), [("p99", 0.99, 5_000_000)]);
    }

    #[test]
    fn wrong_rules_are_refused_with_place_and_remedy() {
        let cases = [
            ("", "there is no rule"),
            ("[structure]\norphan_max = 0", "unknown field `orphan_max`"),
            ("[[count]]\nname='x'\nper='a'\nspan='b'", "give exactly"),
            ("[[count]]\nname='x'\nper='a'\nspan='b'\nexactly=1\nat_least=1", "give exactly"),
            ("[[count]]\nname='x'\nper='a'\nspan='b'\nexactly=-1", "line 5"),
            ("[[forbid]]\nname='x'", "give span, where or above"),
            ("[[forbid]]\nname='x'\nwhere={a=[1]}", "must be text"),
            ("[[limit]]\nname='x'\nmax='5ms'", "one of stage and span"),
            ("[[limit]]\nname='x'\nstage='total'", "give p50_max"),
            ("[[limit]]\nname='x'\nstage='total'\nmax='fast'", "'fast' is no time"),
            ("[[limits]]\n", "unknown field `limits`"),
            ("not toml", "line 1"),
        ];
        for (text, expected) in cases {
            let error = Rules::parse(text, "rules.toml").unwrap_err().to_string();
            assert!(error.starts_with("rules.toml: ") && error.contains(expected), "{text}: {error}");
        }
    }
}
