//! The scenario engine and the catalog model against closed forms, against what real servers wrote, and against `pg_waldump`.
//!
//! One program: linking is what the time of a build goes to. Each file is a module here.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod barriers;
mod closed_forms;
mod early_end;
mod horizon;
mod real_statements;
mod real_transactions;
mod scenario_files;
mod scenario_language;
mod scenario_logs;
mod scenario_mutations;
mod sessions;
mod statements;
mod support;
mod transaction_logs;
mod wal_level;

/// A file that is no module would be compiled by nobody and pass.
#[test]
fn every_file_is_a_module() {
    let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests")).unwrap();
    let files = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let stems: Vec<String> = files.filter_map(|name| name.strip_suffix(".rs").map(str::to_owned)).collect();
    let modules = include_str!("main.rs");
    let forgotten =
        stems.iter().filter(|stem| *stem != "main" && !modules.contains(&format!("\nmod {stem};\n"))).collect::<Vec<_>>();
    assert!(stems.len() > 1 && forgotten.is_empty(), "not in tests/main.rs: {forgotten:?}");
}
