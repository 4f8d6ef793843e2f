//! The schema of scenario files: published as JSON, and what a text is checked against first.
//!
//! The schema is derived from the structures that serde reads, so the two cannot drift; a property test compares their verdicts.
//! Checking against it finds every unknown key, missing field and wrong type of a text, where serde stops at the first.

use std::borrow::Cow;
use std::sync::LazyLock;

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::file::ScenarioFile;
use super::nearest::{nearest, suggest};

/// Most errors that are found.
const ERRORS_MAX: usize = 100;
/// Longest text in a document that an error repeats.
const SHOWN_CHARS_MAX: usize = 64;

/// The schema.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let mut schema = SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<ScenarioFile>().to_value();
    without_null(&mut schema);
    if let Value::Object(root) = &mut schema {
        root.insert("title".to_owned(), "walstorm scenario".into());
        root.insert("description".to_owned(), "What happens on a simulated primary, when, and how large.".into());
    }
    schema
});

/// The schema of scenario files, as JSON (draft 2020-12).
#[must_use]
pub fn schema() -> &'static Value {
    &SCHEMA
}

/// TOML has no null: what may be left out is left out.
fn without_null(schema: &mut Value) {
    match schema {
        Value::Array(values) => values.iter_mut().for_each(without_null),
        Value::Object(object) => {
            if let Some(Value::Array(branches)) = object.get_mut("anyOf") {
                branches.retain(|branch| branch.get("type").and_then(Value::as_str) != Some("null"));
                if let [Value::Object(only)] = &mut branches[..] {
                    let only = std::mem::take(only);
                    object.remove("anyOf");
                    object.extend(only.into_iter().filter(|(key, _)| key != "description"));
                }
            }
            if let Some(Value::Array(types)) = object.get("type") {
                let types: Vec<Value> = types.iter().filter(|name| name.as_str() != Some("null")).cloned().collect();
                let only = if types.len() == 1 { types[0].clone() } else { Value::Array(types) };
                object.insert("type".to_owned(), only);
            }
            if object.get("default").is_some_and(Value::is_null) {
                object.remove("default");
            }
            object.values_mut().for_each(without_null);
        }
        _ => {}
    }
}

/// Everything in a document that the schema does not allow: byte offset, and what is wrong.
pub(super) fn check(document: &Spanned<DeTable<'_>>) -> Vec<(usize, String)> {
    let mut checker = Checker { errors: Vec::new() };
    checker.table(schema(), document.get_ref(), document.span().start);
    checker.errors.truncate(ERRORS_MAX);
    checker.errors
}

/// Collects errors.
struct Checker {
    /// Byte offset and what is wrong.
    errors: Vec<(usize, String)>,
}

impl Checker {
    /// Notes an error.
    fn error(&mut self, at: usize, message: String) {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push((at, message));
        }
    }

    /// Checks a value.
    fn value(&mut self, schema: &'static Value, value: &Spanned<DeValue<'_>>) {
        let schema = resolved(schema);
        if let Some(branches) = schema.get("oneOf").or_else(|| schema.get("anyOf")).and_then(Value::as_array) {
            return self.choice(branches, value);
        }
        let at = value.span().start;
        match value.get_ref() {
            _ if !has_type(schema, value.get_ref()) => {
                self.error(at, format!("{} where {} belongs", kind(value.get_ref()), wanted(schema)));
            }
            DeValue::Table(table) => self.table(schema, table, at),
            DeValue::Array(items) => {
                if let Some(item) = schema.get("items") {
                    items.iter().for_each(|value| self.value(item, value));
                }
            }
            DeValue::Integer(number)
                if schema.get("minimum").is_some() && u64::from_str_radix(number.as_str(), number.radix()).is_err() =>
            {
                self.error(at, format!("{} is negative or too large", shown(number.as_str())));
            }
            _ => {}
        }
    }

    /// Checks a value that may have one of several forms.
    fn choice(&mut self, branches: &'static [Value], value: &Spanned<DeValue<'_>>) {
        let at = value.span().start;
        // Words: each form is a constant.
        let words: Vec<&str> = branches.iter().filter_map(|branch| branch.get("const").and_then(Value::as_str)).collect();
        if words.len() == branches.len() {
            let Some(word) = value.get_ref().as_str() else {
                return self.error(at, format!("{} where one of {} belongs", kind(value.get_ref()), words.join(", ")));
            };
            if !words.contains(&word) {
                self.error(at, format!("'{}' is unknown here{}", shown(word), suggest(word, words.iter().copied())));
            }
            return;
        }
        // Tables with one key that says which form it is, as steps.
        let tagged = |branch: &'static Value| {
            let properties = branch.get("properties").and_then(Value::as_object);
            properties.filter(|properties| properties.len() == 1).and_then(|properties| properties.iter().next())
        };
        let tags: Vec<(&'static String, &'static Value)> = branches.iter().filter_map(tagged).collect();
        if tags.len() == branches.len() {
            return self.tagged(&tags, value);
        }
        // Otherwise the form is known by its type.
        match branches.iter().map(resolved).find(|branch| has_type(branch, value.get_ref())) {
            Some(branch) => self.value(branch, value),
            None => {
                let wanted: Vec<String> = branches.iter().map(|branch| wanted(resolved(branch))).collect();
                self.error(at, format!("{} where {} belongs", kind(value.get_ref()), wanted.join(" or ")));
            }
        }
    }

    /// Checks a table whose one key says what it is.
    fn tagged(&mut self, tags: &[(&'static String, &'static Value)], value: &Spanned<DeValue<'_>>) {
        let at = value.span().start;
        let words = || tags.iter().map(|(tag, _)| tag.as_str());
        let DeValue::Table(table) = value.get_ref() else {
            return self.error(at, format!("{} where a table as {{ {} = … }} belongs", kind(value.get_ref()), tags[0].0));
        };
        if table.len() != 1 {
            let count = table.len();
            self.error(at, format!("this table must have one key, which says what it is; it has {count}"));
        }
        for (key, value) in table.iter() {
            match tags.iter().find(|(tag, _)| tag.as_str() == key.get_ref().as_ref()) {
                Some((_, schema)) => self.value(schema, value),
                None => {
                    let word = key.get_ref();
                    self.error(key.span().start, format!("'{}' is unknown here{}", shown(word), suggest(word, words())));
                }
            }
        }
    }

    /// Checks a table's keys.
    fn table(&mut self, schema: &'static Value, table: &DeTable<'_>, at: usize) {
        let properties = schema.get("properties").and_then(Value::as_object);
        let further = schema.get("additionalProperties");
        let mut unknown = Vec::new();
        for (key, value) in table.iter() {
            let word: &Cow<'_, str> = key.get_ref();
            match properties.and_then(|known| known.get(word.as_ref())).or(further.filter(|further| further.is_object())) {
                Some(schema) => self.value(schema, value),
                None => {
                    unknown.push(word);
                    let near = suggest(word, properties.into_iter().flat_map(Map::keys).map(String::as_str));
                    self.error(key.span().start, format!("there is no key '{}' here{near}", shown(word)));
                }
            }
        }
        let required = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
        for missing in required.filter(|key| table.get(*key).is_none()) {
            // A word that is nearly this one was told already.
            if !unknown.iter().any(|word| nearest(word, std::iter::once(missing)).is_some()) {
                self.error(at, format!("the key '{missing}' is missing here"));
            }
        }
    }
}

/// What a reference refers to.
fn resolved(schema: &'static Value) -> &'static Value {
    let name = schema.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix("#/$defs/"));
    name.and_then(|name| SCHEMA.get("$defs")?.get(name)).unwrap_or(schema)
}

/// Whether a schema asks for one of some words.
fn is_word(schema: &Value) -> bool {
    let words = schema.get("oneOf").and_then(Value::as_array);
    words.is_some_and(|words| words.iter().all(|word| word.get("const").is_some_and(Value::is_string)))
}

/// Whether a value is of the type that a schema asks for.
fn has_type(schema: &Value, value: &DeValue<'_>) -> bool {
    match schema.get("type").and_then(Value::as_str) {
        Some("object") => matches!(value, DeValue::Table(_)),
        Some("array") => matches!(value, DeValue::Array(_)),
        Some("string") => matches!(value, DeValue::String(_)),
        Some("integer") => matches!(value, DeValue::Integer(_)),
        Some("number") => matches!(value, DeValue::Integer(_) | DeValue::Float(_)),
        Some("boolean") => matches!(value, DeValue::Boolean(_)),
        None if is_word(schema) => matches!(value, DeValue::String(_)),
        _ => true,
    }
}

/// What a schema asks for, in words.
fn wanted(schema: &Value) -> String {
    match schema.get("type").and_then(Value::as_str) {
        Some("object") => "a table",
        Some("array") => "a list",
        Some("string") => "a text",
        Some("integer") => "a whole number",
        Some("number") => "a number",
        None if is_word(schema) => "a text",
        _ => "something else",
    }
    .to_owned()
}

/// What a value is, in words.
fn kind(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a point",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time of day",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}

/// A word from outside, as far as an error repeats it.
fn shown(word: &str) -> String {
    word.chars().take(SHOWN_CHARS_MAX).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Lines that are right or wrong in many ways.
    const LINES: &[&str] = &[
        "name = 'x'",
        "story = 'x'",
        "seed = 1",
        "seed = -1",
        "seed = 1.5",
        "seed = 18446744073709551615",
        "sed = 1",
        "published = ['a', 'b']",
        "published = 'a'",
        "duration = '5s'",
        "duration = 5",
        "duration = -5",
        "duration = 1.0",
        "[parameters]",
        "a = 1",
        "a = '5s'",
        "a = [1]",
        "a = { from = 1, to = 2, step = 1 }",
        "a = { from = 1 }",
        "a = true",
        "[small]",
        "[sweep]",
        "seeds = [1, 2]",
        "[sweep.parameters]",
        "[server]",
        "max_connections = 5",
        "max_connection = 5",
        "[readers]",
        "[[tables]]",
        "columns = ['a int']",
        "columns = [5]",
        "rows = 5",
        "[[actors]]",
        "every = '5ms'",
        "every = { from = '1s', to = '2s' }",
        "every = { pareto = '1s', shape = 2 }",
        "every = { pareto = 1.5 }",
        "every = []",
        "rate = '5/s'",
        "rate = { poisson = 5 }",
        "rate = { poison = 5 }",
        "steps = []",
        "steps = [{ wait = '1s' }]",
        "mix = []",
        "steps = [{ insert = { table = 'a', rows = 5 } }]",
        "steps = [{ insert = { tabel = 'a' } }]",
        "steps = [{ savepoint = 's' }]",
        "steps = [{ savepoint = 's', release = 's' }]",
        "steps = ['wait']",
        "steps = [{}]",
        "steps = [{ unknown = 1 }]",
        "steps = [{ repeat = { times = 2, steps = [{ wait = 5 }] } }]",
        "steps = [{ repeat = { times = 2, steps = [5] } }]",
        "[[actors.mix]]",
        "weight = 3",
        "[[consumers]]",
        "slot = 'a'",
        "paused = [{ from = '1s', to = '2s' }]",
        "paused = [{ from = '1s' }]",
        "[[faults]]",
        "kind = 'crash'",
        "kind = 'logical'",
        "kind = 'crush'",
        "kind = 5",
        "at = '1s'",
        "[[expect]]",
        "that = '1 == 1'",
        "from_version = 13",
        "from_version = '13'",
        "actors = []",
        "tables = 5",
        "parameters = 5",
        "when = 2026-01-01",
        "[actors]",
    ];

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

        #[test]
        fn the_schema_and_serde_give_the_same_verdict(lines in prop::collection::vec(0..LINES.len(), 0..9)) {
            let head = "name = 'x'\nstory = 'x'\nseed = 1\n";
            let rest: Vec<&str> = lines.iter().map(|line| LINES[*line]).collect();
            for text in [rest.join("\n"), format!("{head}actors = []\n{}", rest.join("\n")), format!("{head}{}", rest.join("\n"))] {
                let Ok(document) = DeTable::parse(&text) else { continue };
                let errors = check(&document);
                let serde = toml::from_str::<ScenarioFile>(&text).map(|_| ());
                prop_assert_eq!(errors.is_empty(), serde.is_ok(), "{}\n{:?}\n{:?}", text, errors, serde);
            }
        }
    }
}
