//! Compiles the `.proto` files with protox, so that no protoc is needed, and generates messages, clients and servers.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Message fields of a decoded commit that are rare or large: boxed, as are other large parts of rare events, so that the enum around
/// all events stays small.
const BOXED: [&str; 3] = ["work", "messages", "context"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=walstorm");
    let mut files = Vec::new();
    find_protos(Path::new("walstorm"), &mut files)?;
    files.sort();

    let mut compiler = protox::Compiler::new(["."])?;
    compiler.include_imports(true).include_source_info(true).open_files(&files)?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("walstorm.binpb"), compiler.encode_file_descriptor_set())?;

    let mut builder = tonic_prost_build::configure().bytes(".").include_file("walstorm.rs").emit_rerun_if_changed(false);
    // Relayed as it was stored, by a type of ours.
    builder = builder.extern_path(".walstorm.decoder.v1.EventBatch", "crate::EventBatch");
    for field in BOXED {
        builder = builder.boxed(format!(".walstorm.decoder.v1.Commit.{field}"));
    }
    for field in ["StreamCommit.commit", "Prepare.transaction", "Event.kind.commit_prepared"] {
        builder = builder.boxed(format!(".walstorm.decoder.v1.{field}"));
    }
    builder.compile_fds(compiler.file_descriptor_set())?;
    Ok(())
}

/// All `.proto` files below `dir`.
fn find_protos(dir: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            find_protos(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "proto") {
            files.push(path);
        }
    }
    Ok(())
}
