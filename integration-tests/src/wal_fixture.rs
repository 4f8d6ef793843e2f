//! WAL of real servers, as the tests of `pg-wal` have it: 200 transactions of 4 sessions, then DDL of every kind.

use std::path::{Path, PathBuf};

use anyhow::Context;
use pg_types::{Lsn, RecordBody, Xid};
use pg_wal::{WalDir, WalReader};

/// The versions there are.
pub const VERSIONS: [&str; 4] = ["pg13", "pg15", "pg16", "pg18"];

/// A fixture, unpacked.
#[derive(Debug)]
pub struct WalFixture {
    /// Holds the files; they go with it.
    folder: tempfile::TempDir,
}

impl WalFixture {
    /// Unpacks the fixture of a version: `pg13`, `pg15`, `pg16` or `pg18`.
    ///
    /// # Errors
    /// There is none, or it cannot be written.
    pub fn unpack(version: &str) -> anyhow::Result<Self> {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../services/shared/pg-wal/tests/fixtures").join(version);
        let folder = tempfile::tempdir()?;
        let archive = from.join("wal.tar.zst");
        let packed = std::fs::File::open(&archive).with_context(|| format!("open {}", archive.display()))?;
        tar::Archive::new(zstd::Decoder::new(packed)?).unpack(folder.path().join("wal"))?;
        let catalog = folder.path().join("catalog");
        std::fs::create_dir(&catalog)?;
        for name in ["pg_class.csv", "pg_class_start.csv"] {
            let packed = std::fs::File::open(from.join(format!("{name}.zst"))).with_context(|| format!("open {name}.zst"))?;
            std::fs::write(catalog.join(name), zstd::decode_all(packed)?)?;
        }
        Ok(Self { folder })
    }

    /// The segments.
    #[must_use]
    pub fn wal(&self) -> PathBuf {
        self.folder.path().join("wal")
    }

    /// The relations' names.
    #[must_use]
    pub fn catalog(&self) -> PathBuf {
        self.folder.path().join("catalog")
    }

    /// A folder for what nodes keep.
    #[must_use]
    pub fn scratch(&self) -> PathBuf {
        self.folder.path().join("nodes")
    }
}

/// One end of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct End {
    /// Start of its record.
    pub lsn: Lsn,
    /// It committed.
    pub committed: bool,
    /// Top-level xid, that of the prepared transaction if it was one.
    pub xid: u32,
}

/// All ends of transactions in a directory of WAL, in order.
///
/// # Errors
/// The WAL cannot be read.
pub fn ends(wal: &Path) -> anyhow::Result<Vec<End>> {
    let dir = WalDir::open(wal, None)?;
    let mut reader = WalReader::open(&dir, None)?;
    let mut ends = Vec::new();
    while let Some(raw) = reader.next()? {
        let record = raw.decode(dir.profile())?;
        let top = |prepared: Xid| if prepared.is_valid() { prepared } else { record.xid };
        let (committed, xid) = match &record.body {
            RecordBody::Commit(commit) => (true, top(commit.prepared_xid)),
            RecordBody::Abort(abort) => (false, top(abort.prepared_xid)),
            _ => continue,
        };
        ends.push(End { lsn: record.lsn, committed, xid: xid.numeric() });
    }
    Ok(ends)
}
