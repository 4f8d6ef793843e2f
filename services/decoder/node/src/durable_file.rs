//! Small files that are replaced as a whole: either the old contents or the new ones survive a crash, never a mixture.
//!
//! A file is magic, length, CRC-32C and payload. It is written beside its place, flushed, renamed over it, and the folder is
//! flushed too; so a damaged file means a damaged disk or a hand that edited it, and is reported, never guessed at.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Bytes before the payload: magic (8), payload length (4), CRC-32C of the payload (4).
const HEADER_LEN: usize = 16;

/// Largest payload that is read back, in bytes: these files are small, and a damaged length must not size an allocation.
const PAYLOAD_LEN_MAX: u64 = 64 << 20;

/// Mode of everything the node writes: log, checkpoint and positions speak of user data.
pub(crate) const PRIVATE_MODE: u32 = 0o600;

/// A durable file could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum DurableFileError {
    /// The operating system refused.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file is there but is not what was written.
    #[error("{path} is damaged ({reason}): {remedy}")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// What to do about it.
        remedy: &'static str,
    },
}

impl DurableFileError {
    /// Wraps an I/O error with what was tried and where.
    fn io(action: &'static str, path: &Path, source: io::Error) -> Self {
        Self::Io { action, path: path.to_owned(), source }
    }
}

/// Flushes a folder's entries, so that a file made, renamed or removed in it stays so after a crash.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Replaces the file at `path` with `payload`.
///
/// # Errors
///
/// [`DurableFileError::Io`]; the old contents are then still there.
pub fn write(path: &Path, magic: [u8; 8], payload: &[u8]) -> Result<(), DurableFileError> {
    let len = u32::try_from(payload.len()).map_err(|_| {
        DurableFileError::io("write", path, io::Error::new(io::ErrorKind::InvalidInput, "contents exceed 4 GiB"))
    })?;
    let mut bytes = Vec::with_capacity(HEADER_LEN + payload.len());
    bytes.extend_from_slice(&magic);
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(payload).to_le_bytes());
    bytes.extend_from_slice(payload);
    replace(path, &bytes).map_err(|e| DurableFileError::io("write", path, e))
}

/// Replaces the file at `path` with `bytes`, without any header.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("tmp");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(PRIVATE_MODE).open(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// The bytes of the file at `path`, at most one more than `len_max`.
pub(crate) fn read_whole(path: &Path, len_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(len_max.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether there is no room for more.
pub(crate) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// The payload of the file at `path`, or `None` if there is no file.
///
/// # Errors
///
/// [`DurableFileError::Io`], or [`DurableFileError::Damaged`] with `remedy` when the contents are not what [`write()`] wrote.
pub fn read(path: &Path, magic: [u8; 8], remedy: &'static str) -> Result<Option<Vec<u8>>, DurableFileError> {
    let bytes = match read_whole(path, HEADER_LEN as u64 + PAYLOAD_LEN_MAX) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(DurableFileError::io("read", path, e)),
    };
    let damaged = |reason: String| DurableFileError::Damaged { path: path.to_owned(), reason, remedy };
    let (header, payload) = bytes
        .split_first_chunk::<HEADER_LEN>()
        .ok_or_else(|| damaged(format!("{} bytes are too few for its header", bytes.len())))?;
    let (found_magic, rest) = header.split_at(8);
    let (len, crc) = rest.split_at(4);
    if found_magic != magic {
        return Err(damaged("it does not begin with the expected magic".to_owned()));
    }
    if len != (payload.len() as u64).to_le_bytes().split_at(4).0 {
        return Err(damaged(format!("it holds {} bytes after its header, not as many as the header says", payload.len())));
    }
    if crc != crc32c::crc32c(payload).to_le_bytes() {
        return Err(damaged("its checksum is wrong".to_owned()));
    }
    Ok(Some(payload.to_vec()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const MAGIC: [u8; 8] = *b"WSTEST01";

    #[test]
    fn contents_come_back_and_are_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert_eq!(read(&path, MAGIC, "").unwrap(), None);
        for payload in [&b"first"[..], b"", b"a longer second one"] {
            write(&path, MAGIC, payload).unwrap();
            assert_eq!(read(&path, MAGIC, "").unwrap().as_deref(), Some(payload));
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, PRIVATE_MODE);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn every_cut_and_every_flipped_bit_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        write(&path, MAGIC, b"some contents").unwrap();
        let good = fs::read(&path).unwrap();
        let check = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let error = read(&path, MAGIC, "delete the folder").unwrap_err();
            let text = error.to_string();
            assert!(text.contains("damaged") && text.contains("file") && text.contains("delete the folder"), "{text}");
        };
        for cut in 0..good.len() {
            check(&good[..cut]);
        }
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            check(&bytes);
        }
        check(&[&good[..], b"more"].concat());
    }
}
