//! Sampled stacks as a flame graph, drawn by `inferno`, which escapes what is in it.

use anyhow::Context;
use decoder_core::{Function, Stack};
use inferno::flamegraph::{Options, from_lines};
use service_kit::printable;

/// The root of all stacks: who decodes.
const ROOT: &str = "walsender";

/// An SVG of the stacks, each with how many samples found it, under a title.
///
/// # Errors
/// There is no sample.
pub(super) fn render(title: &str, stacks: impl Iterator<Item = (Stack, u64)>) -> anyhow::Result<Vec<u8>> {
    let lines: Vec<String> = stacks.map(|(stack, samples)| line(stack, samples)).collect();
    anyhow::ensure!(!lines.is_empty(), "no sample was taken, it was over too soon: give --runs a larger number");
    draw(title, "samples", "PostgreSQL's function:", &lines)
}

/// An SVG of stacks in the folded form. `count_name` is what is counted, `name_type` what the names are of.
///
/// # Errors
/// The library cannot draw it.
pub(crate) fn draw(title: &str, count_name: &str, name_type: &str, lines: &[String]) -> anyhow::Result<Vec<u8>> {
    let mut options = Options::default();
    options.title = printable(title).into_owned();
    options.count_name = count_name.to_owned();
    options.name_type = name_type.to_owned();
    options.deterministic = true;
    let mut svg = Vec::new();
    from_lines(&mut options, lines.iter().map(String::as_str), &mut svg).context("draw the flame graph")?;
    Ok(svg)
}

/// A stack in the folded form: names from the outside in, then the number.
fn line(stack: Stack, samples: u64) -> String {
    let names = std::iter::once(ROOT).chain(stack.functions().map(Function::name));
    format!("{} {samples}", names.collect::<Vec<_>>().join(";"))
}

#[cfg(test)]
mod tests {
    use decoder_core::CurrentFunction;

    use super::*;

    /// The stack of these functions.
    fn stack(functions: &[Function]) -> Stack {
        let marker = CurrentFunction::default();
        for function in functions {
            let _ = marker.enter(*function);
        }
        marker.get()
    }

    #[test]
    fn a_title_from_outside_stays_text() {
        let of = stack(&[Function::ReorderBufferProcessTxn, Function::HashSeqSearch]);
        let svg = render("<script>alert(1)</script>\u{1b}[31m & \"quoted\"", [(of, 3)].into_iter()).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        assert!(!svg.contains("<script>alert") && svg.contains("&lt;script&gt;alert(1)"), "{svg}");
        assert!(!svg.contains('\u{1b}'), "{svg}");
    }

    #[test]
    fn stacks_are_folded_from_the_outside_in() {
        let of = stack(&[Function::ReorderBufferProcessTxn, Function::HashSeqSearch]);
        assert_eq!(line(of, 3), "walsender;ReorderBufferProcessTXN;hash_seq_search 3");
        let error = render("t", std::iter::empty()).unwrap_err().to_string();
        assert!(error.contains("--runs"), "{error}");
    }
}
