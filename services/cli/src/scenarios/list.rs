//! `walstorm scenarios list`.

use std::io::Write;

use comfy_table::{ContentArrangement, Table, presets};
use primary_core::{Overrides, Scenario};
use serde_json::json;

/// Widest output.
const WIDTH: u16 = 120;

/// Writes a line for each scenario that ships.
///
/// # Errors
/// The output cannot be written.
pub fn list(json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
    table.set_header(["name", "story", "parameters"]);
    for name in Scenario::names() {
        let scenario = Scenario::load(name)?;
        if json {
            let line = json!({
                "name": name,
                "story": scenario.story(),
                "published": scenario.published(),
                "parameters": scenario.parameters(),
                "small": scenario.small(),
            });
            writeln!(out, "{line}")?;
        }
        table.add_row([name.to_owned(), first_line(&scenario).to_owned(), values(scenario.parameters())]);
    }
    if !json {
        writeln!(out, "{table}")?;
    }
    Ok(())
}

/// The first line of a story.
pub(super) fn first_line(scenario: &Scenario) -> &str {
    scenario.story().lines().next().unwrap_or("")
}

/// Parameters with their values.
pub(super) fn values(parameters: &Overrides) -> String {
    parameters.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}
