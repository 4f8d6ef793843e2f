//! Configuration in layers: built-in defaults < OpenTelemetry's variables < TOML file < environment < flags.
//!
//! A node's configuration is one serde struct with `#[serde(deny_unknown_fields, default)]` on it and on every struct in it.
//! `server.listen` is set by `listen` in the table `[server]` of the file, by `WALSTORM_DECODER__SERVER__LISTEN`, or by a flag.
//! Every error names the layer that is wrong (file, variable or flag), the field, and the names that would be right; the
//! configuration in effect can be logged with the origin of each value.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use figment::error::{Actual, Kind};
use figment::value::{Dict, Empty, Value};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::printable::{clip, printable};

/// Fields whose name ends in one of these are shown as `***`.
const SECRETS: [&str; 3] = ["password", "secret", "token"];

/// A file that is larger is no configuration.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Built in.
    Default,
    /// The file.
    File(PathBuf),
    /// A variable.
    Environment(String),
    /// A flag of the command line.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "configuration file {}", printable(&path.to_string_lossy())),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// What is wrong with the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read configuration file {}: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The file is no TOML.
    #[error("configuration file {} is no valid TOML: {reason}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, column and cause.
        reason: String,
    },
    /// A field does not exist, has another type, or an impossible value.
    #[error("{origin}: {problem}")]
    Field {
        /// The layer.
        origin: Origin,
        /// Field and cause.
        problem: String,
    },
    /// Two layers disagree on whether something is a table.
    #[error("{origin}: field '{field}' is a table in another layer: set its fields, or none")]
    Shape {
        /// The layer that comes later.
        origin: Origin,
        /// The field.
        field: String,
    },
}

/// A configuration in effect.
#[derive(Clone, Debug)]
pub struct Effective<T> {
    /// The values.
    pub value: T,
    /// Each field with its value as text and its origin, by name.
    settings: Vec<(String, String, Origin)>,
}

impl<T> Effective<T> {
    /// Each field as `server.listen = "127.0.0.1:0" (default)`; secrets hidden.
    pub fn lines(&self) -> impl Iterator<Item = String> + '_ {
        self.settings.iter().map(|(field, value, origin)| format!("{field} = {value} ({origin})"))
    }

    /// Logs the configuration: one event a field.
    pub fn log(&self) {
        for (field, value, origin) in &self.settings {
            tracing::info!(field = %field, value = %value, origin = %origin, "configuration");
        }
    }
}

/// The layers of one node's configuration.
#[derive(Clone, Debug)]
pub struct Layers {
    /// `WALSTORM_DECODER__`.
    prefix: String,
    merged: Dict,
    origins: BTreeMap<String, Origin>,
    /// Texts of environment variables, by field: a field that wants text gets it as it was written.
    raw: BTreeMap<String, String>,
}

impl Layers {
    /// No layer yet. `role` is `primary`, `decoder` or `standby`.
    #[must_use]
    pub fn new(role: &str) -> Self {
        let prefix = format!("WALSTORM_{}__", role.to_ascii_uppercase());
        Self { prefix, merged: Dict::new(), origins: BTreeMap::new(), raw: BTreeMap::new() }
    }

    /// Adds a TOML file; none is fine.
    ///
    /// # Errors
    /// The file cannot be read, is larger than 1 MiB, or is no TOML.
    pub fn file(mut self, path: Option<&Path>) -> Result<Self, ConfigError> {
        let Some(path) = path else { return Ok(self) };
        let read = |reason: String| ConfigError::Read { path: path.to_owned(), reason };
        let text = read_text(path).map_err(|e| read(e.to_string()))?;
        let syntax = |reason: String| ConfigError::Syntax { path: path.to_owned(), reason };
        let table: toml::Table = toml::from_str(&text).map_err(|e| syntax(e.to_string().trim_end().to_owned()))?;
        let dict = dict_of(&table).map_err(syntax)?;
        self.add(dict, &mut |_| Origin::File(path.to_owned()))?;
        Ok(self)
    }

    /// Adds the variables that OpenTelemetry's specification defines, for the table `[telemetry]`; belongs before the file, since they are not of this
    /// program alone.
    ///
    /// # Errors
    /// A variable has a value that is none of its.
    pub fn opentelemetry(mut self, var: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let settings = crate::telemetry::otel_env::settings(var).map_err(|wrong| ConfigError::Field {
            origin: Origin::Environment(wrong.name.to_owned()),
            problem: format!("it must be {}", wrong.expected),
        })?;
        for (variable, (field, value)) in settings {
            let parts: Vec<String> = field.split('.').map(str::to_owned).collect();
            let Ok(parsed) = value.parse::<Value>();
            self.raw.insert(field.to_owned(), value);
            self.add(nest(&parts, parsed), &mut |_| Origin::Environment(variable.to_owned()))?;
        }
        Ok(self)
    }

    /// Adds the variables among `vars` that begin with the role's prefix: `WALSTORM_DECODER__SERVER__LISTEN`.
    ///
    /// # Errors
    /// A variable is not UTF-8, has an empty part in its name, or one underscore behind the role where two belong.
    pub fn environment(mut self, vars: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Self, ConfigError> {
        for (name, value) in vars {
            let origin = Origin::Environment(printable(&name.to_string_lossy()).into_owned());
            let wrong = |problem: &str| ConfigError::Field { origin: origin.clone(), problem: problem.to_owned() };
            let Some(rest) = name.to_str().and_then(|n| n.strip_prefix(&self.prefix)) else {
                match name.to_str().and_then(|n| self.nearly(n)) {
                    Some(meant) => {
                        return Err(wrong(&format!("two underscores belong behind the role: {}", printable(&meant))));
                    }
                    None => continue,
                }
            };
            let value = value.into_string().map_err(|_| wrong("the value is not UTF-8"))?;
            let parts: Vec<String> = rest.split("__").map(str::to_ascii_lowercase).collect();
            if parts.iter().any(String::is_empty) {
                return Err(wrong("the name has an empty part: write two underscores between the names of table and field"));
            }
            // Parsing a value cannot fail: what is nothing else is text.
            let Ok(parsed) = value.parse::<Value>();
            self.raw.insert(parts.join("."), value);
            self.add(nest(&parts, parsed), &mut |_| origin.clone())?;
        }
        Ok(self)
    }

    /// What was meant by a variable with one underscore behind the role. Those that Kubernetes makes of a service's name
    /// (`WALSTORM_DECODER_SERVICE_HOST`) have no two underscores anywhere.
    fn nearly(&self, name: &str) -> Option<String> {
        let rest = name.strip_prefix(self.prefix.strip_suffix('_')?)?;
        rest.contains("__").then(|| format!("{}{rest}", self.prefix))
    }

    /// Adds the flags that were given: a struct of options, none of which means "not given". A name may lead into a table
    /// (`#[serde(rename = "server.listen")]`); the flag's own name is then `--listen`, the last part.
    ///
    /// # Errors
    /// The struct is none, or a flag does not fit to what another layer says.
    pub fn flags(mut self, flags: &impl Serialize) -> Result<Self, ConfigError> {
        let defect = |problem: String| ConfigError::Field { origin: Origin::Flag("--".to_owned()), problem };
        let dict = dict_of(flags).map_err(defect)?;
        for (name, value) in dict {
            if is_unset(&value) {
                continue;
            }
            let parts: Vec<String> = name.split('.').map(str::to_owned).collect();
            let flag = format!("--{}", parts.last().map_or("", String::as_str).replace('_', "-"));
            self.add(nest(&parts, value), &mut |_| Origin::Flag(flag.clone()))?;
        }
        Ok(self)
    }

    /// Puts the layers over the defaults.
    ///
    /// # Errors
    /// An unknown field, another type, an impossible value: the error names layer and field.
    pub fn load<T: DeserializeOwned + Serialize + Default>(self) -> Result<Effective<T>, ConfigError> {
        let defect = |problem: String| ConfigError::Field { origin: Origin::Default, problem };
        let mut all = Self { merged: Dict::new(), origins: BTreeMap::new(), ..self.clone() };
        all.add(dict_of(&T::default()).map_err(defect)?, &mut |_| Origin::Default)?;
        let Self { merged, origins, .. } = self;
        all.add(merged, &mut |field| origins.get(field).cloned().unwrap_or(Origin::Default))?;

        let mut retried = std::collections::BTreeSet::new();
        loop {
            let error = match Value::from(all.merged.clone()).deserialize::<T>() {
                Ok(value) => return Ok(Effective { value, settings: all.settings() }),
                Err(error) => error,
            };
            // `SLOT=123` was read as a number; if the field wants text, it gets the text.
            let field = error.path.join(".");
            let not_text = !matches!(&error.kind, Kind::InvalidType(Actual::Str(_), _));
            match all.raw.get(&field) {
                Some(raw) if not_text && is_type_error(&error.kind) && retried.insert(field.clone()) => {
                    let text = Value::from(raw.clone());
                    merge_at(&mut all.merged, &error.path, text);
                }
                _ => return Err(all.explain(&error)),
            }
        }
    }

    /// Merges `dict` over what is there.
    fn add(&mut self, dict: Dict, origin: &mut dyn FnMut(&str) -> Origin) -> Result<(), ConfigError> {
        merge(&mut self.merged, dict, "", &mut self.origins, origin)
    }

    /// The error of one field, with its layer.
    fn explain(&self, error: &figment::Error) -> ConfigError {
        let mut path = error.path.clone();
        let problem = match &error.kind {
            Kind::UnknownField(name, expected) => {
                if path.last() != Some(name) {
                    path.push(name.clone());
                }
                let names = if expected.is_empty() { "none".to_owned() } else { expected.join(", ") };
                format!("unknown field '{}'; valid names here: {names}", printable(&path.join(".")))
            }
            Kind::UnknownVariant(name, expected) => {
                let name = printable(name).into_owned();
                format!("field '{}': '{name}' is unknown; valid values: {}", path.join("."), expected.join(", "))
            }
            Kind::InvalidType(found, expected) | Kind::InvalidValue(found, expected) => {
                let found = printable(&found.to_string()).into_owned();
                format!("field '{}' must be {expected}, but is {}", path.join("."), clip(&found, 200))
            }
            kind => format!("field '{}': {}", path.join("."), printable(&kind.to_string())),
        };
        ConfigError::Field { origin: self.origin_of(&path), problem }
    }

    /// The layer that set `path`, or something in it, or the table around it.
    fn origin_of(&self, path: &[String]) -> Origin {
        let field = path.join(".");
        let inside = format!("{field}.");
        let found = self.origins.get(&field).or_else(|| {
            let within = self.origins.iter().filter(|(name, origin)| name.starts_with(&inside) && **origin != Origin::Default);
            within.map(|(_, origin)| origin).next()
        });
        match (found, path.split_last()) {
            (Some(origin), _) => origin.clone(),
            (None, Some((_, outer))) if !outer.is_empty() => self.origin_of(outer),
            _ => Origin::Default,
        }
    }

    /// Every field with its value as text.
    fn settings(&self) -> Vec<(String, String, Origin)> {
        let mut settings = Vec::new();
        leaves(&self.merged, "", &mut |field, value| {
            let origin = self.origins.get(field).cloned().unwrap_or(Origin::Default);
            let text = if SECRETS.iter().any(|s| field.ends_with(s)) { "***".to_owned() } else { show(value) };
            settings.push((field.to_owned(), text, origin));
        });
        settings
    }
}

/// Reads a file that a person wrote: a configuration, a scenario.
///
/// # Errors
/// What the system says; also a pipe or a device, which may have no end, a file of more than 1 MiB, and one that is not UTF-8.
pub fn read_text(path: &Path) -> io::Result<String> {
    let found = std::fs::metadata(path)?;
    if found.is_dir() {
        return Err(io::Error::new(io::ErrorKind::IsADirectory, "it is a directory, and a file is needed: name the file"));
    }
    if !found.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if found.len() > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("{} bytes are too many (1 MiB at most)", found.len())));
    }
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// `value` as a table.
fn dict_of(value: &impl Serialize) -> Result<Dict, String> {
    match Value::serialize(value).map_err(|e| e.to_string())? {
        Value::Dict(_, dict) => Ok(dict),
        other => Err(format!("a table is expected, but this is {}", other.to_actual())),
    }
}

/// `value` below tables named `parts`.
fn nest(parts: &[String], value: Value) -> Dict {
    let nested = parts.iter().rev().fold(value, |value, part| Value::from(Dict::from([(part.clone(), value)])));
    nested.into_dict().unwrap_or_default()
}

/// No value: an option that is none.
fn is_unset(value: &Value) -> bool {
    matches!(value, Value::Empty(_, Empty::None | Empty::Unit))
}

/// The field holds something of another type.
fn is_type_error(kind: &Kind) -> bool {
    matches!(kind, Kind::InvalidType(..) | Kind::InvalidValue(..))
}

/// Puts `from` over `into`: tables field by field, everything else as a whole.
fn merge(
    into: &mut Dict,
    from: Dict,
    prefix: &str,
    origins: &mut BTreeMap<String, Origin>,
    origin: &mut dyn FnMut(&str) -> Origin,
) -> Result<(), ConfigError> {
    for (name, value) in from {
        let field = format!("{prefix}{name}");
        match (into.get_mut(&name), value) {
            (Some(Value::Dict(_, inner)), Value::Dict(_, value)) => {
                merge(inner, value, &format!("{field}."), origins, origin)?;
            }
            (Some(Value::Dict(..)), _) => return Err(ConfigError::Shape { origin: origin(&field), field }),
            (_, Value::Dict(tag, value)) => {
                let mut inner = Dict::new();
                merge(&mut inner, value, &format!("{field}."), origins, origin)?;
                into.insert(name, Value::Dict(tag, inner));
                origins.remove(&field);
            }
            (_, value) => {
                origins.insert(field.clone(), origin(&field));
                into.insert(name, value);
            }
        }
    }
    Ok(())
}

/// Replaces the value at `path`, which exists.
fn merge_at(dict: &mut Dict, path: &[String], value: Value) {
    match path {
        [name] => {
            dict.insert(name.clone(), value);
        }
        [name, rest @ ..] => {
            if let Some(Value::Dict(_, inner)) = dict.get_mut(name) {
                merge_at(inner, rest, value);
            }
        }
        [] => {}
    }
}

/// Calls `each` for every field that is no table.
fn leaves(dict: &Dict, prefix: &str, each: &mut dyn FnMut(&str, &Value)) {
    for (name, value) in dict {
        let field = format!("{prefix}{name}");
        match value {
            Value::Dict(_, inner) => leaves(inner, &format!("{field}."), each),
            value => each(&field, value),
        }
    }
}

/// A value as people write it.
fn show(value: &Value) -> String {
    let text = match value {
        value if is_unset(value) => "unset".to_owned(),
        value => serde_json::to_string(value).unwrap_or_else(|_| "?".to_owned()),
    };
    printable(&text).into_owned()
}

#[cfg(test)]
mod tests;
