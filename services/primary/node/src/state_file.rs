//! Small files of state that survive a crash: a line of JSON and a line with its CRC-32C.
//!
//! A file is written beside the old one, synced, renamed over it, and the directory synced: after a crash it is either the old
//! state in whole or the new one in whole. A leftover temporary file is the trace of a crash in mid-write.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use pg_types::Lsn;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};

/// Ending of files that are being written.
pub(crate) const TEMPORARY: &str = "tmp";

/// The bytes of a file that holds `state`.
pub(crate) fn encode(state: &impl Serialize) -> Result<Vec<u8>> {
    let json = serde_json::to_string(state).map_err(|e| Error::Internal(format!("state that has no JSON form: {e}")))?;
    let crc = crc32c::crc32c(json.as_bytes());
    Ok(format!("{json}\n{crc:08x}\n").into_bytes())
}

/// The state in a file's bytes, or why there is none.
pub(crate) fn decode<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    let (json, crc) = text.split_once('\n').ok_or("it is cut short")?;
    let stored = u32::from_str_radix(crc.trim_end(), 16).map_err(|_| "its checksum line is missing".to_owned())?;
    if stored != crc32c::crc32c(json.as_bytes()) {
        return Err("its checksum does not match its contents".to_owned());
    }
    serde_json::from_str(json).map_err(|e| e.to_string())
}

/// Reads a file of at most `bytes_max` bytes as text. The outer error is the system's, the inner one says why it is no such file.
pub(crate) fn read(path: &Path, bytes_max: u64) -> Result<Result<String, String>> {
    let mut text = String::new();
    let file = File::open(path).map_err(Error::io("open", path))?;
    match file.take(bytes_max.saturating_add(1)).read_to_string(&mut text) {
        Ok(read) if read as u64 > bytes_max => Ok(Err(format!("it is larger than {bytes_max} bytes"))),
        Ok(_) => Ok(Ok(text)),
        Err(e) if e.kind() == ErrorKind::InvalidData => Ok(Err("it is not text".to_owned())),
        Err(source) => Err(Error::Io { action: "read", path: path.to_owned(), source }),
    }
}

/// Puts `bytes` into the place of `path`, for its owner only, so that a crash leaves the old file or the new one.
pub(crate) fn store(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(TEMPORARY);
    let temporary = Path::new(&name);
    let open = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(temporary);
    let mut file = open.map_err(Error::io("create", temporary))?;
    file.write_all(bytes).map_err(Error::io("write", temporary))?;
    file.sync_all().map_err(Error::io("sync", temporary))?;
    fs::rename(temporary, path).map_err(Error::io("rename", temporary))?;
    sync_parent(path)
}

/// Removes a file; one that is not there is no error.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Ok(()) => sync_parent(path),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        Err(source) => Err(Error::Io { action: "remove", path: path.to_owned(), source }),
    }
}

/// Makes renames and removals durable.
fn sync_parent(path: &Path) -> Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    File::open(dir).and_then(|d| d.sync_all()).map_err(Error::io("sync directory", dir))
}

/// LSNs as `X/Y`, as everywhere that people read; for serde's `with`.
pub(crate) mod lsn_text {
    use super::{Deserialize, Deserializer, Lsn, Serializer};

    /// As text.
    pub(crate) fn serialize<S: Serializer>(lsn: &Lsn, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(lsn)
    }

    /// From text.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Lsn, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_private_and_comes_back_and_damage_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.run");
        store(&path, &encode(&vec![1, 2, 3]).unwrap()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = read(&path, 100).unwrap().unwrap();
        assert_eq!(decode::<Vec<u32>>(&text), Ok(vec![1, 2, 3]));
        assert!(decode::<Vec<u32>>(&text.replace('2', "7")).unwrap_err().contains("checksum"));
        assert!(decode::<Vec<u32>>("[1]").unwrap_err().contains("cut short"));
        assert!(read(&path, 3).unwrap().unwrap_err().contains("larger"));
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
