//! Texts that are nearly scenarios: whatever is changed in one that ships, reading it never panics, takes no unbounded work, and
//! every error has a place in the text.

use primary_core::{Overrides, Scenario};
use proptest::prelude::*;

/// What is put into a text.
const PIECES: &[&str] = &[
    "",
    "\n",
    "=",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "'",
    "$",
    "$x",
    "-1",
    "0",
    "9223372036854775807",
    "99999999999999999999",
    "1e9",
    "nan",
    "true",
    "1979-05-27",
    "\u{1b}[31m",
    "é",
    "{i}",
    "{n}",
    "{1..9}",
    "{1..$tables}",
    "{0..18446744073709551615}",
    "{random:0}",
    "{zipf:3,9}",
    "{ from = \"1s\", to = \"2s\" }",
    "\"5ms\"",
    "\"$partitions\"",
    "[[actors]]\n",
    "[[expect]]\n",
    "[[faults]]\n",
    "[sweep]\n",
    "that = \"records == 1\"\n",
    "steps = []",
    "repeat = { times = 3, steps = [] }",
    "every",
    "rate = \"5/s\"\n",
    "(",
    ")",
    "^",
    "# ",
    "\0",
    ",",
    "kind = \"crash\"\n",
    "[small]\n",
    "[[consumers]]\nslot = \"a\"\n",
    "after = [\"x\"]\n",
];

/// A change of a text: where (as a share of its length), how many characters go, what comes.
fn change() -> impl Strategy<Value = (f64, usize, usize)> {
    (0.0..1.0f64, prop_oneof![Just(0), Just(1), 0..12usize, 0..80usize], 0..PIECES.len())
}

/// Applies changes, at bounds of characters.
fn mutate(text: &str, changes: &[(f64, usize, usize)]) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    for (place, gone, piece) in changes {
        let start = (chars.len() as f64 * place) as usize;
        let end = (start + gone).min(chars.len());
        chars.splice(start..end, PIECES[*piece].chars());
    }
    chars.into_iter().collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn errors_have_places_and_nothing_panics(which in any::<prop::sample::Index>(), changes in prop::collection::vec(change(), 1..4)) {
        let names: Vec<&str> = Scenario::names().collect();
        let shipped = Scenario::load(which.get::<&str>(&names)).unwrap();
        let text = mutate(shipped.text(), &changes);
        match Scenario::check("mutated", &text) {
            Ok(scenario) => {
                scenario.plan(&Overrides::new()).unwrap();
                scenario.sweep().unwrap();
                let _ = scenario.plan(scenario.small());
            }
            Err(errors) => {
                prop_assert!((1..=100).contains(&errors.len()), "{}", errors.len());
                let lines: Vec<&str> = text.split('\n').collect();
                for error in errors {
                    prop_assert!(error.line >= 1 && error.line <= lines.len(), "{error}");
                    let width = lines[error.line - 1].chars().count();
                    prop_assert!(error.column >= 1 && error.column <= width + 2, "{error} in a line of {width}");
                    prop_assert!(!error.to_string().chars().any(char::is_control), "{error:?}");
                    prop_assert!(error.to_string().len() < 5000, "{error}");
                }
            }
        }
    }
}
