//! The recorded logs of real servers, unpacked for a test.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::fs::File;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// The servers whose logs are recorded.
pub(crate) const FIXTURES: [&str; 4] = ["pg13", "pg15", "pg16", "pg18"];

/// A recorded log.
pub(crate) struct Fixture {
    /// Its name, `pg18`.
    pub(crate) name: &'static str,
    /// Where it is unpacked.
    folder: TempDir,
}

impl Fixture {
    /// Unpacks one.
    pub(crate) fn unpack(name: &'static str) -> Fixture {
        let folder = tempfile::tempdir().unwrap();
        let wal = folder.path().join("wal");
        std::fs::create_dir(&wal).unwrap();
        let packed = File::open(source(name).join("wal.tar.zst")).unwrap();
        tar::Archive::new(zstd::Decoder::new(packed).unwrap()).unpack(&wal).unwrap();
        let catalog = folder.path().join("catalog");
        std::fs::create_dir(&catalog).unwrap();
        for file in ["pg_class.csv", "pg_class_start.csv"] {
            std::fs::write(catalog.join(file), text(name, file)).unwrap();
        }
        Fixture { name, folder }
    }

    /// The folder with its segments.
    pub(crate) fn wal(&self) -> PathBuf {
        self.folder.path().join("wal")
    }

    /// The folder with its catalog copies.
    pub(crate) fn catalog(&self) -> PathBuf {
        self.folder.path().join("catalog")
    }

    /// What test_decoding said of it.
    pub(crate) fn test_decoding(&self) -> String {
        String::from_utf8(text(self.name, "test_decoding.txt")).unwrap()
    }
}

/// Where a fixture is kept.
fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/pg-wal/tests/fixtures").join(name)
}

/// One of its packed text files.
fn text(name: &str, file: &str) -> Vec<u8> {
    zstd::decode_all(File::open(source(name).join(format!("{file}.zst"))).unwrap()).unwrap()
}
