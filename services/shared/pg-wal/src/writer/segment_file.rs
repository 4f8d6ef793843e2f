//! One segment file that is written (`XLogFileInit`, `XLogWrite`, `issue_xlog_fsync` in `access/transam/xlog.c`).
//!
//! A file must never have a segment's name and half of its bytes: it is made under another name, filled, put on disk and then
//! renamed, and the directory is put on disk too. Where flushes wait for the disk the file is filled with zeroes, so that its
//! blocks are there (a full disk is found now, not in the middle of a record) and a flush has only bytes to put on disk, no
//! blocks to allocate. Otherwise it is a hole of the right length.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::WriterConfig;
use super::config::{WalSync, WriteError};
use crate::dir::open_regular;
use crate::page::{LONG_HEADER_LEN, PageHeader};
use crate::profile::WalProfile;
use crate::window::first_nonzero;

/// First part of the name of a file that is no segment yet; the process id follows.
const TEMPORARY: &str = "xlogtemp.";
/// Zeroes, as many as are written at once.
static ZEROES: [u8; 128 << 10] = [0; 128 << 10];

/// An open segment file.
#[derive(Debug)]
pub(super) struct SegmentFile {
    /// The file.
    file: File,
    /// Its path, for errors.
    path: PathBuf,
    /// How it is put on disk.
    sync: WalSync,
}

/// What the system said about `path`; for `map_err`.
fn io_error(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> WriteError {
    let path = path.to_owned();
    move |source| WriteError::Io { action, path, source }
}

impl SegmentFile {
    /// A new segment at `path`, all zeroes, readable by its owner only. One that a crash left before anything was written to it is
    /// replaced.
    pub(super) fn create(path: PathBuf, config: &WriterConfig) -> Result<Self, WriteError> {
        if path.exists() && !is_unwritten(&path) {
            return Err(WriteError::SegmentExists { path });
        }
        let dir = path.parent().unwrap_or(Path::new(".")).to_owned();
        let temporary = dir.join(format!("{TEMPORARY}{}", std::process::id()));
        let opened = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(&temporary);
        let file = opened.map_err(io_error("create", &temporary))?;
        let this = Self { file, path, sync: config.sync };
        match this.fill_and_rename(&temporary, &dir, u64::from(config.segment_size)) {
            Ok(()) => Ok(this),
            Err(error) => {
                // Its blocks may be what somebody else needs to go on.
                let _ = fs::remove_file(&temporary);
                Err(error)
            }
        }
    }

    /// Gives a temporary file its length, its blocks and its name.
    fn fill_and_rename(&self, temporary: &Path, dir: &Path, size: u64) -> Result<(), WriteError> {
        if self.sync == WalSync::Off {
            self.file.set_len(size).map_err(io_error("size", temporary))?;
        } else {
            fill(&self.file, 0, size).map_err(io_error("fill", temporary))?;
            self.file.sync_all().map_err(io_error("sync", temporary))?;
        }
        fs::rename(temporary, &self.path).map_err(io_error("rename", temporary))?;
        if self.sync != WalSync::Off {
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(io_error("sync", dir))?;
        }
        Ok(())
    }

    /// The segment file at `path` to be continued at `offset`: checked against the configuration and zeroed from there on. It is
    /// never shorter meanwhile: others may be reading what is before.
    pub(super) fn reopen(path: PathBuf, config: &WriterConfig, offset: u64) -> Result<Self, WriteError> {
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(io_error("open", &path))?;
        let mut page = [0; LONG_HEADER_LEN as usize];
        file.read_exact_at(&mut page, 0).map_err(io_error("read", &path))?;
        let wrong = |what: String| WriteError::WrongSegment { path: path.clone(), what };
        let header = PageHeader::read(&page).map_err(|malformed| wrong(malformed.to_string()))?;
        let found = (header.magic, header.timeline, header.long.map(|long| (long.system_id, long.segment_size)));
        let magic = WalProfile::of(config.version).page_magic;
        let expected = (magic, config.timeline, Some((config.system_id, config.segment_size)));
        if found != expected {
            return Err(wrong(format!(
                "its page magic, timeline, (system identifier, segment size) are {found:X?}, expected {expected:X?}"
            )));
        }
        let len = file.metadata().map_err(io_error("stat", &path))?.len();
        if len < offset {
            return Err(wrong(format!("it has {len} bytes, but the log is said to end at byte {offset} of it")));
        }
        let size = u64::from(config.segment_size);
        if config.sync == WalSync::Off {
            erase(&file, offset, size).map_err(io_error("erase", &path))?;
            file.set_len(size).map_err(io_error("size", &path))?;
        } else {
            fill(&file, offset, size).map_err(io_error("fill", &path))?;
            file.set_len(size).and_then(|()| file.sync_all()).map_err(io_error("sync", &path))?;
        }
        Ok(Self { file, path, sync: config.sync })
    }

    /// Writes bytes at an offset. May be repeated after an error.
    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> Result<(), WriteError> {
        self.file.write_all_at(bytes, offset).map_err(io_error("write", &self.path))
    }

    /// Waits until everything written is on disk, if that is wanted. True if it waited.
    pub(super) fn sync(&self) -> Result<bool, WriteError> {
        let synced = match self.sync {
            WalSync::Off => return Ok(false),
            WalSync::Fdatasync => self.file.sync_data(),
            WalSync::Fsync => self.file.sync_all(),
        };
        synced.map(|()| true).map_err(io_error("sync", &self.path))
    }

    /// From now on flushes wait for the disk.
    pub(super) fn sync_from_now_on(&mut self) {
        if self.sync == WalSync::Off {
            self.sync = WalSync::Fdatasync;
        }
    }
}

/// Whether a file can be read and holds nothing but zeroes.
pub(super) fn is_unwritten(path: &Path) -> bool {
    let Ok(mut file) = open_regular(path) else { return false };
    let mut piece = vec![0; ZEROES.len()];
    loop {
        match file.read(&mut piece) {
            Ok(0) => return true,
            Ok(len) if first_nonzero(piece.get(..len).unwrap_or_default()).is_none() => {}
            Ok(_) => return false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
}

/// Zeroes from `from` to `to`.
fn fill(file: &File, from: u64, to: u64) -> io::Result<()> {
    let mut at = from;
    while at < to {
        let len = (to - at).min(ZEROES.len() as u64);
        file.write_all_at(ZEROES.get(..len as usize).unwrap_or_default(), at)?;
        at += len;
    }
    Ok(())
}

/// Makes everything from `from` to `to` zero; holes stay holes.
fn erase(file: &File, from: u64, to: u64) -> io::Result<()> {
    let mut piece = vec![0; ZEROES.len()];
    let mut at = from;
    while at < to {
        let want = (to - at).min(piece.len() as u64) as usize;
        let len = match file.read_at(piece.get_mut(..want).unwrap_or_default(), at) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if first_nonzero(piece.get(..len).unwrap_or_default()).is_some() {
            fill(file, at, at + len as u64)?;
        }
        at += len as u64;
    }
    Ok(())
}

/// Removes what a writer that was killed left half made (`RemoveTempXlogFiles`).
pub(super) fn remove_temporaries(dir: &Path) -> Result<(), WriteError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("list", dir)(error)),
    };
    for entry in entries {
        let path = entry.map_err(io_error("list", dir))?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(TEMPORARY)) {
            fs::remove_file(&path).map_err(io_error("remove", &path))?;
        }
    }
    Ok(())
}
