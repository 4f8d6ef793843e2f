//! Texts held once, by number.

use std::borrow::Cow;

use rustc_hash::FxHashMap;

/// The most different names of each sort; a program that puts ids into names has no more of them. Later ones share one.
pub(crate) const NAMES_MAX: usize = 50_000;
/// Bytes of a name that are held.
const NAME_BYTES_MAX: usize = 512;
/// What is held of a text beside its two copies.
const ENTRY_BYTES: u64 = 64;
/// What later names are called.
pub(crate) const MORE: &str = "(more names)";

/// Texts by number.
#[derive(Debug)]
pub(crate) struct Names {
    /// By number.
    texts: Vec<String>,
    /// The other way round.
    numbers: FxHashMap<String, u32>,
    /// How many there may be, and how long.
    max: (usize, usize),
    /// About how many bytes they take.
    bytes: u64,
}

impl Names {
    /// Names: few and short, whoever gives them.
    pub(crate) fn of_names() -> Self {
        Self { texts: Vec::new(), numbers: FxHashMap::default(), max: (NAMES_MAX, NAME_BYTES_MAX), bytes: 0 }
    }

    /// Values of attributes, in full; their bytes count for what may be held.
    pub(crate) fn of_values() -> Self {
        Self { max: (u32::MAX as usize, usize::MAX), ..Self::of_names() }
    }

    /// Number of a text.
    pub(crate) fn number(&mut self, text: &str) -> u32 {
        let mut text = Cow::Borrowed(text);
        if text.len() > self.max.1 {
            text = Cow::Owned(text.chars().take(self.max.1 / 4).collect());
        }
        if let Some(number) = self.numbers.get(&*text) {
            return *number;
        }
        if self.texts.len() >= self.max.0 {
            text = Cow::Borrowed(MORE);
        }
        let number = self.numbers.get(&*text).copied().unwrap_or(self.texts.len() as u32);
        if number as usize == self.texts.len() {
            self.bytes += 2 * text.len() as u64 + ENTRY_BYTES;
            self.texts.push(text.clone().into_owned());
            self.numbers.insert(text.into_owned(), number);
        }
        number
    }

    /// A text.
    pub(crate) fn text(&self, number: u32) -> &str {
        self.texts.get(number as usize).map_or("", String::as_str)
    }

    /// About how many bytes they take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_few_and_short_and_values_are_whole() {
        let (mut names, mut values) = (Names::of_names(), Names::of_values());
        let long = "ä".repeat(10_000);
        assert!(names.number(&long) == names.number(&long) && names.text(0).len() <= NAME_BYTES_MAX);
        let number = values.number(&long);
        assert_eq!(values.text(number), long);
        for n in 0..NAMES_MAX + 100 {
            names.number(&n.to_string());
            values.number(&n.to_string());
        }
        let later = names.number("another");
        assert_eq!(names.text(later), MORE);
        assert!(names.bytes() < 10_000_000 && values.bytes() > names.bytes());
    }
}
