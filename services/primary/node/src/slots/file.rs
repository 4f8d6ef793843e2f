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

/// Format of the file; another one is refused.
const FORMAT: u32 = 1;
/// A slot file is a few hundred bytes; a larger one is none.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// What is stored of a slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlotFile {
    /// [`FORMAT`].
    format: u32,
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
        }
    }

    /// The file's bytes.
    fn encode(&self) -> String {
        // A struct of numbers and strings always has a JSON form.
        let json = serde_json::to_string(self).unwrap_or_default();
        let crc = crc32c::crc32c(json.as_bytes());
        format!("{json}\n{crc:08x}\n")
    }

    /// The slot in a file's bytes, or why there is none.
    fn decode(text: &str) -> Result<Self, String> {
        let (json, crc) = text.split_once('\n').ok_or("it is cut short")?;
        let stored = u32::from_str_radix(crc.trim_end(), 16).map_err(|_| "its checksum line is missing".to_owned())?;
        if stored != crc32c::crc32c(json.as_bytes()) {
            return Err("its checksum does not match its contents".to_owned());
        }
        let slot: Self = serde_json::from_str(json).map_err(|e| e.to_string())?;
        if slot.format != FORMAT {
            return Err(format!("it has format {}, this program reads {FORMAT}", slot.format));
        }
        Ok(slot)
    }
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

    proptest! {
        #[test]
        fn any_damage_is_an_error_that_names_the_file(at in 0usize..400, bit in 0u8..8, cut in any::<bool>()) {
            let dir = tempfile::tempdir().unwrap();
            let path = path_of(dir.path(), "a");
            let mut bytes = slot("a").encode().into_bytes();
            // The last byte is the line end after the checksum; without it the file says the same.
            let at = at % (bytes.len() - 1);
            if cut { bytes.truncate(at) } else { bytes[at] ^= 1 << bit }
            fs::write(&path, &bytes).unwrap();
            match load_all(dir.path()) {
                // An upper-case digit of the checksum is the same digit.
                Ok(slots) => prop_assert_eq!(slots, [slot("a")]),
                Err(error) => prop_assert!(error.to_string().contains("a.slot"), "{}", error),
            }
        }
    }
}
