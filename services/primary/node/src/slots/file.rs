//! One slot on disk: a line of JSON and a line with its CRC-32C, in `slots/NAME.slot` (PostgreSQL: `pg_replslot/NAME/state`).
//!
//! Written to a temporary file, synced, renamed over the old one, and the directory synced (I4). A leftover temporary file is
//! the trace of a crash in mid-write and is removed at start. Ephemeral slots have no file: they do not outlive the process.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pg_types::{Lsn, WalIdentity};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};

/// Format of the files that are written.
const FORMAT: u32 = 3;
/// Oldest format that is read: 1 has physical slots without xmins, 2 none of scenarios' consumers.
const FORMAT_MIN: u32 = 1;
/// A slot file is a few hundred bytes; a larger one is none.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// What is stored of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotFile {
    /// [`FORMAT`].
    pub(super) format: u32,
    /// Its name, also the file's.
    pub name: String,
    /// System identifier of the WAL that the position is in: a position means nothing in another cluster.
    pub system_id: u64,
    /// Timeline of that WAL when the slot was made.
    pub timeline: u32,
    /// Oldest WAL that the consumer may ask for again; WAL from here on is kept.
    #[serde(serialize_with = "lsn_to_text", deserialize_with = "lsn_from_text")]
    pub restart_lsn: Lsn,
    /// Everything before is safely stored by the consumer.
    #[serde(serialize_with = "lsn_to_text", deserialize_with = "lsn_from_text")]
    pub confirmed_flush_lsn: Lsn,
    /// When it was made, in milliseconds since 1970.
    pub created_at_ms: u64,
    /// Set once the WAL it needs is gone: why.
    pub invalidated: Option<String>,
    /// Who decodes for it.
    #[serde(default)]
    pub kind: SlotKind,
    /// Logical: the point from which decoding is possible is not found yet.
    #[serde(default)]
    pub building: bool,
    /// Oldest xid whose rows its consumer's readers need, 0 if none (`effective_xmin`).
    #[serde(default)]
    pub xmin: u32,
    /// The same for catalogs.
    #[serde(default)]
    pub catalog_xmin: u32,
    /// It is a scenario's consumer's, and this is where the run began in the log. [`Lsn::INVALID`] for a client's.
    #[serde(default, serialize_with = "lsn_to_text", deserialize_with = "lsn_from_text")]
    pub run_start_lsn: Lsn,
}

/// What a slot is for (`SlotIsLogical`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SlotKind {
    /// For consumers that take WAL as it is from any position.
    #[default]
    Physical,
    /// For decoders: it begins where a decoder that starts at its restart position can decode every commit.
    Logical,
}

impl SlotFile {
    /// A new slot at `lsn`, made at `created_at_ms`.
    #[must_use]
    pub fn new(name: &str, identity: &WalIdentity, lsn: Lsn, created_at_ms: u64) -> Self {
        Self {
            format: FORMAT,
            name: name.to_owned(),
            system_id: identity.system_id,
            timeline: identity.timeline,
            restart_lsn: lsn,
            confirmed_flush_lsn: lsn,
            created_at_ms,
            invalidated: None,
            kind: SlotKind::Physical,
            building: false,
            xmin: 0,
            catalog_xmin: 0,
            run_start_lsn: Lsn::INVALID,
        }
    }

    /// A new logical slot of which WAL is to be read from `lsn` on, until a point is found from which it can be decoded.
    #[must_use]
    pub fn new_logical(name: &str, identity: &WalIdentity, lsn: Lsn, created_at_ms: u64) -> Self {
        Self { kind: SlotKind::Logical, building: true, ..Self::new(name, identity, lsn, created_at_ms) }
    }

    /// The file's bytes.
    fn encode(&self) -> String {
        // A struct of numbers and strings always has a JSON form.
        let json = serde_json::to_string(self).unwrap_or_default();
        let checksum = checksum_line(&json);
        format!("{json}\n{checksum}")
    }

    /// The slot in a file's bytes, or why there is none.
    fn decode(text: &str) -> Result<Self, String> {
        let (json, checksum) = text.split_once('\n').ok_or("it is cut short")?;
        // Compared as it is written, so that no byte of the file is free to change.
        if checksum != checksum_line(json) {
            return Err("its checksum does not match its contents".to_owned());
        }
        let slot: Self = serde_json::from_str(json).map_err(|e| e.to_string())?;
        if !(FORMAT_MIN..=FORMAT).contains(&slot.format) {
            return Err(format!("it has format {}, this program reads {FORMAT_MIN} to {FORMAT}", slot.format));
        }
        Ok(Self { format: FORMAT, ..slot })
    }
}

/// The second line of a file whose first is `json`.
fn checksum_line(json: &str) -> String {
    format!("{:08x}\n", crc32c::crc32c(json.as_bytes()))
}

/// Where the file of slot `name` is.
pub(super) fn path_of(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}.slot"))
}

/// Makes a directory that only its owner may read, if it is missing.
pub(crate) fn create_private_dir(dir: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(Error::io("create directory", dir))
}

/// Reads all slots; removes what a crash in mid-write left.
pub(super) fn load_all(dir: &Path) -> Result<Vec<SlotFile>> {
    let mut slots = Vec::new();
    for entry in fs::read_dir(dir).map_err(Error::io("read directory", dir))? {
        let path = entry.map_err(Error::io("read directory", dir))?.path();
        match path.extension().and_then(|e| e.to_str()) {
            Some("tmp") => fs::remove_file(&path).map_err(Error::io("remove", &path))?,
            Some("slot") => slots.push(load(&path)?),
            _ => tracing::warn!(path = %path.display(), "ignoring a file that is no slot"),
        }
    }
    Ok(slots)
}

/// Reads one slot file.
fn load(path: &Path) -> Result<SlotFile> {
    let mut text = String::new();
    let file = File::open(path).map_err(Error::io("open", path))?;
    let damaged = |reason: String| Error::SlotFile { path: path.to_owned(), reason };
    match file.take(FILE_BYTES_MAX).read_to_string(&mut text) {
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::InvalidData => return Err(damaged("it is not text".to_owned())),
        Err(source) => return Err(Error::Io { action: "read", path: path.to_owned(), source }),
    }
    let slot = SlotFile::decode(&text).map_err(damaged)?;
    if path.file_stem().and_then(|s| s.to_str()) != Some(slot.name.as_str()) {
        return Err(damaged(format!("it holds slot \"{}\", which is not its file name", slot.name)));
    }
    Ok(slot)
}

/// Stores a slot so that a crash leaves either the old state or the new one.
pub(super) fn store(dir: &Path, slot: &SlotFile) -> Result<()> {
    let path = path_of(dir, &slot.name);
    let temporary = dir.join(format!("{}.slot.tmp", slot.name));
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .map_err(Error::io("create", &temporary))?;
    file.write_all(slot.encode().as_bytes()).map_err(Error::io("write", &temporary))?;
    file.sync_all().map_err(Error::io("sync", &temporary))?;
    fs::rename(&temporary, &path).map_err(Error::io("rename", &temporary))?;
    sync_dir(dir)
}

/// Removes the file of a slot; one that is not there is no error.
pub(super) fn remove(dir: &Path, name: &str) -> Result<()> {
    let path = path_of(dir, name);
    match fs::remove_file(&path) {
        Ok(()) => sync_dir(dir),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(source) => Err(Error::Io { action: "remove", path, source }),
    }
}

/// Makes renames and removals in `dir` durable.
fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir).and_then(|d| d.sync_all()).map_err(Error::io("sync directory", dir))
}

/// LSNs are `X/Y` in files, as everywhere that people read.
fn lsn_to_text<S: Serializer>(lsn: &Lsn, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(lsn)
}

/// The inverse of [`lsn_to_text`].
fn lsn_from_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Lsn, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use pg_types::PgVersion;
    use proptest::prelude::*;

    use super::*;

    const IDENTITY: WalIdentity =
        WalIdentity { version: PgVersion::V15, system_id: u64::MAX, timeline: 3, segment_size: 1 << 24 };

    fn slot(name: &str) -> SlotFile {
        SlotFile::new(name, &IDENTITY, Lsn(0x1_0000_0028), 1_700_000_000_000)
    }

    #[test]
    fn files_are_private_and_come_back() {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path(), &slot("a_1")).unwrap();
        let mode = fs::metadata(path_of(dir.path(), "a_1")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(load_all(dir.path()).unwrap(), [slot("a_1")]);
    }

    #[test]
    fn a_crash_before_the_rename_leaves_the_old_state() {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path(), &slot("a")).unwrap();
        fs::write(dir.path().join("a.slot.tmp"), b"half of").unwrap();
        assert_eq!(load_all(dir.path()).unwrap(), [slot("a")]);
        assert!(!dir.path().join("a.slot.tmp").exists());
    }

    #[test]
    fn a_renamed_file_is_not_another_slot() {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path(), &slot("a")).unwrap();
        fs::rename(path_of(dir.path(), "a"), path_of(dir.path(), "b")).unwrap();
        let error = load_all(dir.path()).unwrap_err().to_string();
        assert!(error.contains("b.slot") && error.contains("delete it"), "{error}");
    }

    #[test]
    fn files_of_format_1_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let json = r#"{"format":1,"name":"old","system_id":7,"timeline":1,"restart_lsn":"0/A0","confirmed_flush_lsn":"0/A0","created_at_ms":5,"invalidated":null}"#;
        fs::write(path_of(dir.path(), "old"), format!("{json}\n{}", checksum_line(json))).unwrap();
        let slots = load_all(dir.path()).unwrap();
        let identity = WalIdentity { system_id: 7, timeline: 1, ..IDENTITY };
        assert_eq!(slots, [SlotFile::new("old", &identity, Lsn(0xA0), 5)]);
    }

    #[test]
    fn a_flip_of_any_bit_is_an_error_that_names_the_file_and_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let path = path_of(dir.path(), "a");
        let good = slot("a").encode().into_bytes();
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bytes).unwrap();
            let error = load_all(dir.path()).expect_err(&format!("bit {bit}")).to_string();
            assert!(error.contains("a.slot") && error.contains("delete it"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_cut_or_addition_is_an_error_that_names_the_file(at in 0usize..400, more in "[ -~\n]{0,9}") {
            let dir = tempfile::tempdir().unwrap();
            let mut bytes = slot("a").encode().into_bytes();
            bytes.truncate(at % bytes.len());
            bytes.extend_from_slice(more.as_bytes());
            fs::write(path_of(dir.path(), "a"), &bytes).unwrap();
            if bytes != slot("a").encode().into_bytes() {
                let error = load_all(dir.path()).unwrap_err().to_string();
                prop_assert!(error.contains("a.slot"), "{}", error);
            }
        }
    }
}
