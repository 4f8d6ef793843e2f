//! The reader and the writer of WAL against what real servers wrote, against damage, and against `pg_waldump`.
//!
//! One program: linking is what the time of a build goes to. Each file is a module here.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod directories;
mod flips;
mod fuzz_smoke;
mod golden;
mod golden_facts;
mod index_prune;
mod other_versions;
mod reader;
mod recovery;
mod round_trip;
mod support;
mod writer;
mod writer_waldump;

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
