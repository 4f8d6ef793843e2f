//! The real WAL that is played when nobody names one: three segments of a PostgreSQL 18 server, in the program itself.
//!
//! Two hundred transactions of four sessions (savepoints, prepared transactions, rollbacks), then DDL of every kind; the same
//! files that the tests of `pg-wal` compare with `pg_waldump`. It is kept compressed and unpacked into the report's folder.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, bail, ensure};

use super::out_dir::{create_private, make_dir};

/// What the sample is called as a source.
pub const NAME: &str = "sample-wal";

/// One line about it.
pub const ABOUT: &str = "PostgreSQL 18.4: 200 transactions of 4 sessions, then DDL of every kind";

/// The segments, as `tar` compressed with zstd.
const ARCHIVE: &[u8] = include_bytes!("../../../shared/pg-wal/tests/fixtures/pg18/wal.tar.zst");

/// Its relations' names at the start and at the end, compressed with zstd.
const CATALOG: [(&str, &[u8]); 2] = [
    ("pg_class_start.csv", include_bytes!("../../../shared/pg-wal/tests/fixtures/pg18/pg_class_start.csv.zst")),
    ("pg_class.csv", include_bytes!("../../../shared/pg-wal/tests/fixtures/pg18/pg_class.csv.zst")),
];

/// Most bytes that are unpacked, in all; the sample has three segments of 1 MiB.
const UNPACKED_BYTES_MAX: u64 = 64 << 20;

/// Unpacks the sample's segments into one folder and its relations' names into another; both are made.
///
/// # Errors
/// The file system refuses, or the program's own copy is damaged.
pub fn unpack(dir: &Path, catalog: &Path) -> anyhow::Result<()> {
    make_dir(dir)?;
    make_dir(catalog)?;
    for (name, packed) in CATALOG {
        let plain = zstd::stream::read::Decoder::new(packed).context("decompress the sample's catalog")?;
        let mut file = create_private(&catalog.join(name))?;
        std::io::copy(&mut plain.take(UNPACKED_BYTES_MAX), &mut file)
            .with_context(|| format!("unpack the sample's catalog into {}", catalog.display()))?;
    }
    let plain = zstd::stream::read::Decoder::new(ARCHIVE).context("decompress the sample WAL")?.take(UNPACKED_BYTES_MAX);
    let mut archive = tar::Archive::new(plain);
    let mut segments = 0;
    for entry in archive.entries().context("read the sample WAL")? {
        let mut entry = entry.context("read the sample WAL")?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = entry.path().context("read the sample WAL")?.into_owned();
        let Some(name) = path.file_name() else { bail!("the sample WAL has an entry without a name") };
        let mut file = create_private(&dir.join(name))?;
        std::io::copy(&mut entry, &mut file).with_context(|| format!("unpack the sample WAL into {}", dir.display()))?;
        segments += 1;
    }
    ensure!(segments > 0, "the sample WAL is empty");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_is_three_whole_segments() {
        let dir = tempfile::tempdir().unwrap();
        unpack(&dir.path().join("wal"), &dir.path().join("catalog")).unwrap();
        assert!(dir.path().join("catalog/pg_class.csv").is_file());
        let mut files: Vec<(String, u64)> = std::fs::read_dir(dir.path().join("wal"))
            .unwrap()
            .map(|e| e.unwrap())
            .map(|e| (e.file_name().into_string().unwrap(), e.metadata().unwrap().len()))
            .collect();
        files.sort();
        assert_eq!(files.len(), 3);
        assert_eq!(files[0], ("00000001000000000000000A".to_owned(), 1 << 20));
    }
}
