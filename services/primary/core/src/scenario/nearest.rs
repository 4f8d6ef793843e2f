//! The valid word that is nearest to a wrong one.

/// Longest word that is compared: the cost is the product of two lengths.
const WORD_CHARS_MAX: usize = 64;
/// Most words that are listed.
const LISTED_MAX: usize = 24;

/// The nearest of `words`, if one is near: a third of its letters may differ, at least one, transposed neighbours count once.
pub(super) fn nearest<'a>(wrong: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if wrong.chars().count() > WORD_CHARS_MAX {
        return None;
    }
    let near = |word: &&str| word.len() <= WORD_CHARS_MAX;
    let measured = words.filter(near).map(|word| (strsim::damerau_levenshtein(wrong, word), word));
    let (distance, word) = measured.min_by_key(|(distance, _)| *distance)?;
    (distance <= (word.chars().count() / 3).max(1)).then_some(word)
}

/// The end of a sentence about a wrong word: the nearest valid one, or all there are.
pub(super) fn suggest<'a>(wrong: &str, words: impl Iterator<Item = &'a str> + Clone) -> String {
    if let Some(word) = nearest(wrong, words.clone()) {
        return format!("; did you mean '{}'?", word.escape_debug());
    }
    let listed: Vec<String> = words.clone().take(LISTED_MAX).map(|word| word.escape_debug().to_string()).collect();
    let more = if words.count() > listed.len() { ", …" } else { "" };
    if listed.is_empty() { "; there are none".to_owned() } else { format!("; there are: {}{more}", listed.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_offered_or_all_are_listed() {
        let words = ["insert", "update", "delete", "truncate"];
        for (wrong, right) in [("inset", "insert"), ("udpate", "update"), ("truncat", "truncate"), ("DELETE", "")] {
            let text = suggest(wrong, words.into_iter());
            let expected = if right.is_empty() {
                "; there are: insert, update, delete, truncate".to_owned()
            } else {
                format!("; did you mean '{right}'?")
            };
            assert_eq!(text, expected);
        }
        assert!(suggest(&"x".repeat(5000), words.into_iter()).starts_with("; there are: "));
        assert_eq!(suggest("x", [].into_iter()), "; there are none");
    }
}
