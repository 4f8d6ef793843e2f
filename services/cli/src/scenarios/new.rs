//! `walstorm scenarios new`: a file to begin with.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use primary_core::Scenario;

use crate::notes::note;

/// What is written; `NAME` is replaced.
const SKELETON: &str = include_str!("skeleton.toml");

/// Writes a scenario named `name` to `file`, or `name.toml`.
///
/// # Errors
/// The name is none, or the file is there already or cannot be written.
pub fn write(name: &str, file: Option<&Path>, notes: &mut dyn Write) -> anyhow::Result<()> {
    let text = SKELETON.replace("NAME", name);
    Scenario::parse(name, &text)?;
    let path = file.map_or_else(|| PathBuf::from(format!("{name}.toml")), Path::to_owned);
    let mut created =
        OpenOptions::new().write(true).create_new(true).open(&path).with_context(|| format!("make {}", path.display()))?;
    created.write_all(text.as_bytes()).with_context(|| format!("write {}", path.display()))?;
    let shown = path.display();
    note(notes, format!("{shown} is there; next: walstorm scenarios validate {shown}, walstorm scenarios check {shown}"));
    Ok(())
}
