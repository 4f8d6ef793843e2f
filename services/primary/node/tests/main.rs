//! The primary over its RPCs and as a program; what the tests share is in `support`.
//!
//! One program: linking is what the time of a build goes to. Each file is a module here.

#![allow(clippy::unwrap_used, reason = "in a test a panic is the report")]

mod admin;
mod archive;
mod disk_full;
mod follow;
mod heed_slots;
mod kill_loop;
mod large_records;
mod logical_slots;
mod paused_consumer;
mod program;
mod retention;
mod runs;
mod runs_process;
mod simulated;
mod slow_clients;
mod stream_invalidations;
mod stream_wal;
mod support;
mod traces;
mod typed;

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
