//! Texts held once, by number.

use rustc_hash::FxHashMap;

/// The most different names of each sort; a program that puts ids into names has no more of them. Later ones share one name.
const NAMES_MAX: usize = 50_000;
/// Texts by number.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// By number.
    texts: Vec<String>,
    /// The other way round.
    numbers: FxHashMap<String, u32>,
}

impl Names {
    /// Number of a text.
    pub(crate) fn number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let text = if self.texts.len() < NAMES_MAX { text } else { "(more names)" };
        let number = self.numbers.get(text).copied().unwrap_or(self.texts.len() as u32);
        if number as usize == self.texts.len() {
            self.texts.push(text.to_owned());
            self.numbers.insert(text.to_owned(), number);
        }
        number
    }

    /// A text.
    pub(crate) fn text(&self, number: u32) -> &str {
        self.texts.get(number as usize).map_or("", String::as_str)
    }
}
