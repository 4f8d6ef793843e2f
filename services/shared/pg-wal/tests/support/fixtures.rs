//! The recorded logs of real servers, unpacked, and what their own pg_waldump said of them.

use std::path::{Path, PathBuf};

use pg_types::{Lsn, PgVersion};

/// Versions with a recorded log.
pub(crate) const RECORDED: [PgVersion; 4] = [PgVersion::V13, PgVersion::V15, PgVersion::V16, PgVersion::V18];

/// Folder of a version's fixtures.
pub(crate) fn folder(version: PgVersion) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/pg{version}"))
}

/// Unpacks a version's segments; the folder lives as long as what is returned.
pub(crate) fn unpack(version: PgVersion) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("make a folder");
    let file = std::fs::File::open(folder(version).join("wal.tar.zst")).expect("open the archive");
    let unpacked = zstd::Decoder::new(file).and_then(|tar| tar::Archive::new(tar).unpack(dir.path()));
    unpacked.expect("unpack the archive");
    dir
}

/// pg_waldump's text, a line a record.
pub(crate) fn waldump(version: PgVersion) -> String {
    let file = std::fs::File::open(folder(version).join("waldump.txt.zst")).expect("open pg_waldump's text");
    let bytes = zstd::decode_all(file).expect("unpack pg_waldump's text");
    String::from_utf8(bytes).expect("pg_waldump writes UTF-8")
}

/// What one line of pg_waldump says before the description.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// Resource manager.
    pub(crate) rmgr: &'a str,
    /// Bytes without images, and all bytes.
    pub(crate) len: (u32, u32),
    /// Transaction.
    pub(crate) xid: u32,
    /// Position.
    pub(crate) lsn: Lsn,
    /// The record before.
    pub(crate) prev: Lsn,
    /// Operation, description and block references.
    pub(crate) desc: &'a str,
}

/// Reads a line: `rmgr: Heap        len (rec/tot):     54/    54, tx:        765, lsn: 0/00A04638, prev 0/00A02668, desc: …`.
pub(crate) fn parse(line: &str) -> Line<'_> {
    let (head, desc) = line.split_once(", desc: ").expect("a description");
    let mut fields = head.split(", ");
    let mut field = |label: &str| {
        let text = fields.next().and_then(|f| f.trim().strip_prefix(label));
        text.unwrap_or_else(|| panic!("{label} in {line}")).trim()
    };
    let (rmgr, len) = field("rmgr: ").split_once("len (rec/tot):").expect("lengths");
    let (rec, tot) = len.split_once('/').expect("two lengths");
    let number = |t: &str| t.trim().parse().expect("a number");
    Line {
        rmgr: rmgr.trim(),
        len: (number(rec), number(tot)),
        xid: number(field("tx:")),
        lsn: field("lsn: ").parse().expect("an LSN"),
        prev: field("prev ").parse().expect("an LSN"),
        desc,
    }
}
