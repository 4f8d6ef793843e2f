//! Serialised snapshots on disk (`pg_logical/snapshots/%X-%X.snap`): with which of them a restarted decoder begins.
//!
//! Each is written beside its place, flushed, renamed, and the folder is flushed too, before the checkpoint that names it. Two threads
//! use the folder: the decoding one writes and reads, the flusher removes what lies before the restart position of the checkpoint
//! that it has stored, as a server's checkpointer does (`CheckPointSnapBuild`).
//!
//! # Invariants
//!
//! * **I1** A file that is there stays as it is until it is removed: it was written by a decoder that had read from further back than one
//!   that comes to the same position later.
//! * **I2** There are at most [`FILES_MAX`]; when there are, no more are written, and a restart reads more WAL again.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use decoder_core::{SnapshotError, SnapshotFailure, SnapshotStore, snapshot_file_name};
use pg_types::Lsn;

use crate::durable_file;
use crate::error::NodeError;

/// Most files; a server writes one every 15 s, so that this is more than two days beside one open transaction.
const FILES_MAX: usize = 16_384;

/// Largest file that is read back, in bytes: sixteen million xids.
const FILE_LEN_MAX: u64 = 64 << 20;

/// The folder.
#[derive(Clone, Debug)]
pub(crate) struct FileSnapshots {
    /// Where it is.
    dir: PathBuf,
    /// How many snapshots are in it.
    count: Arc<AtomicUsize>,
}

impl FileSnapshots {
    /// Makes the folder, or removes what a crash left half done; without `keep` everything, for a decoder that begins anew.
    ///
    /// # Errors
    ///
    /// [`NodeError::Io`] naming the file.
    pub(crate) fn open(dir: PathBuf, keep: bool) -> Result<Self, NodeError> {
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(failed("create", &dir))?;
        let mut count = 0;
        for (path, lsn) in list(&dir)? {
            match lsn {
                Some(_) if keep => count += 1,
                _ => fs::remove_file(&path).map_err(failed("remove", &path))?,
            }
        }
        Ok(Self { dir, count: Arc::new(AtomicUsize::new(count)) })
    }

    /// Removes the snapshots before `restart_lsn`: nothing begins there any more.
    ///
    /// # Errors
    ///
    /// [`NodeError::Io`] naming the file.
    pub(crate) fn remove_before(&self, restart_lsn: Lsn) -> Result<(), NodeError> {
        if self.count.load(Ordering::Relaxed) == 0 {
            return Ok(());
        }
        for (path, lsn) in list(&self.dir)? {
            if lsn.is_some_and(|lsn| lsn < restart_lsn) {
                fs::remove_file(&path).map_err(failed("remove", &path))?;
                self.count.fetch_sub(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// The path of the snapshot at `lsn`.
    fn path(&self, lsn: Lsn) -> PathBuf {
        self.dir.join(snapshot_file_name(lsn))
    }

    /// A failure of the operating system.
    fn refused(&self, action: &'static str, lsn: Lsn, source: &io::Error) -> SnapshotError {
        let failure = if durable_file::is_full(source) { SnapshotFailure::DiskFull } else { SnapshotFailure::Io };
        SnapshotError { action, file: self.name(lsn), reason: source.to_string(), failure }
    }
}

impl SnapshotStore for FileSnapshots {
    fn write(&mut self, lsn: Lsn, bytes: &[u8]) -> Result<bool, SnapshotError> {
        let path = self.path(lsn);
        let exists = path.try_exists().map_err(|source| self.refused("write", lsn, &source))?;
        if exists || self.count.load(Ordering::Relaxed) >= FILES_MAX {
            return Ok(exists);
        }
        durable_file::replace(&path, bytes).map_err(|source| self.refused("write", lsn, &source))?;
        self.count.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    fn read(&mut self, lsn: Lsn) -> Result<Option<Vec<u8>>, SnapshotError> {
        match durable_file::read_whole(&self.path(lsn), FILE_LEN_MAX) {
            Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some).map_err(|source| self.refused("read", lsn, &source)),
        }
    }

    fn name(&self, lsn: Lsn) -> String {
        self.path(lsn).display().to_string()
    }
}

/// An error of the operating system on `path`.
fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> NodeError {
    let path = path.to_owned();
    move |source| NodeError::Io { action, path, source }
}

/// Snapshots in `dir`, each with its position, and what was to become one, without.
fn list(dir: &Path) -> Result<Vec<(PathBuf, Option<Lsn>)>, NodeError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed("list", dir))? {
        let path = entry.map_err(failed("list", dir))?.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("snap") => found.extend(position(&path).map(|lsn| (path, Some(lsn)))),
            Some("tmp") => found.push((path, None)),
            _ => {}
        }
    }
    Ok(found)
}

/// The position that a snapshot's name tells.
fn position(path: &Path) -> Option<Lsn> {
    let (high, low) = path.file_stem()?.to_str()?.split_once('-')?;
    let number = |text| u32::from_str_radix(text, 16).ok().map(u64::from);
    Some(Lsn(number(high)? << 32 | number(low)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn i1_files_stay_until_the_checkpoint_is_past_them() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = FileSnapshots::open(dir.path().join("snapshots"), true).unwrap();
        let dir = dir.path().join("snapshots");
        for lsn in [0x100, 0x1_0000_0200, 0x1_0000_0300] {
            assert_eq!(store.write(Lsn(lsn), b"first"), Ok(true));
        }
        assert_eq!(store.write(Lsn(0x100), b"later"), Ok(true));
        assert_eq!((store.read(Lsn(0x100)), store.read(Lsn(0x101))), (Ok(Some(b"first".to_vec())), Ok(None)));
        store.clone().remove_before(Lsn(0x1_0000_0300)).unwrap();
        assert_eq!(names(&dir), ["1-300.snap"]);
        assert_eq!(store.count.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn what_a_crash_left_half_done_goes_and_a_new_beginning_takes_all() {
        let dir = tempfile::tempdir().unwrap();
        let left = ["0-100.snap", "0-200.tmp", "notes.txt", "x.snap"];
        left.iter().for_each(|name| fs::write(dir.path().join(name), b"left").unwrap());
        let store = FileSnapshots::open(dir.path().to_owned(), true).unwrap();
        assert_eq!(
            (names(dir.path()), store.count.load(Ordering::Relaxed)),
            (["0-100.snap", "notes.txt", "x.snap"].map(str::to_owned).to_vec(), 1)
        );
        let store = FileSnapshots::open(dir.path().to_owned(), false).unwrap();
        assert_eq!(
            (names(dir.path()), store.count.load(Ordering::Relaxed)),
            (["notes.txt", "x.snap"].map(str::to_owned).to_vec(), 0)
        );
    }

    #[test]
    fn i2_too_many_are_not_written_and_a_lost_folder_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let mut store = FileSnapshots::open(dir.path().join("gone"), true).unwrap();
        store.count.store(FILES_MAX, Ordering::Relaxed);
        assert_eq!(store.write(Lsn(0x100), b"one too many"), Ok(false));
        store.count.store(0, Ordering::Relaxed);
        fs::remove_dir(dir.path().join("gone")).unwrap();
        let error = store.write(Lsn(0x100), b"nowhere").unwrap_err();
        assert_eq!(error.failure, SnapshotFailure::Io);
        assert!(error.to_string().contains("gone/0-100.snap: No such file"), "{error}");
    }
}
