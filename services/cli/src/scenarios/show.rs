//! `walstorm scenarios show`.

use std::io::Write;

use primary_core::Overrides;
use serde_json::json;
use service_kit::printable;

use super::Of;
use super::list::values;

/// Writes a scenario's text and size.
///
/// # Errors
/// The scenario cannot be read, or a parameter makes no sense.
pub fn show(of: &Of, out: &mut dyn Write) -> anyhow::Result<()> {
    let (scenario, overrides) = of.read()?;
    let plan = scenario.plan(&overrides)?;
    let size = plan.size();
    let mut parameters: Overrides = scenario.parameters().clone();
    parameters.extend(overrides);
    let points = scenario.sweep()?.len();
    let expect: Vec<&str> = plan.expect.iter().map(|expectation| expectation.text.as_str()).collect();
    if of.json {
        let object = json!({
            "name": scenario.name(),
            "story": scenario.story(),
            "seed": scenario.seed(),
            "published": scenario.published(),
            "parameters": parameters,
            "small": scenario.small(),
            "size": {
                "tables": size.tables,
                "rows": size.rows,
                "message_bytes": size.message_bytes,
                "sessions": size.sessions,
                "transactions": size.transactions,
                "statements": size.statements,
            },
            "sweep_points": points,
            "expect": expect,
            "text": scenario.text(),
        });
        return Ok(writeln!(out, "{object}")?);
    }
    for line in scenario.text().trim_end().lines() {
        writeln!(out, "{}", printable(line))?;
    }
    let at_most = |n: u64| if n == u64::MAX { "without bound".to_owned() } else { n.to_string() };
    writeln!(out, "\n# with {}", printable(&values(&parameters)))?;
    writeln!(
        out,
        "# at most: {} tables, {} sessions, {} transactions, {} statements, {} rows, {} bytes of messages",
        at_most(size.tables),
        at_most(size.sessions),
        at_most(size.transactions),
        at_most(size.statements),
        at_most(size.rows),
        at_most(size.message_bytes),
    )?;
    writeln!(out, "# {} point(s) of a sweep, {} expectation(s)", points, expect.len())?;
    Ok(())
}
