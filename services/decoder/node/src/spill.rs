//! Spill files on disk: where changes of large transactions wait for their commit (`pg_replslot/NAME/xid-*.spill`).
//!
//! The files are the decoder's scratch: never flushed, removed when the transaction ends, and all removed when a decoder begins,
//! since it reads the WAL of every unfinished transaction again. They have a limit together, so that one transaction cannot fill
//! the disk of the output log.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use decoder_core::{SpillError, SpillFailure, SpillFile, SpillStore};
use rustc_hash::FxHashMap;

use crate::durable_file::{self, PRIVATE_MODE};
use crate::error::NodeError;

/// Where spill files are, and how large they may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpillSettings {
    /// Their folder.
    pub(crate) dir: PathBuf,
    /// Bytes of all.
    pub(crate) bytes_max: u64,
}

/// The folder.
#[derive(Debug)]
pub(crate) struct FileSpill {
    /// Settings.
    settings: SpillSettings,
    /// Lengths of the files that are there.
    lengths: FxHashMap<SpillFile, u64>,
    /// Bytes of all.
    bytes: u64,
    /// The file used last, kept open: appends and reads come in runs.
    open: Option<(SpillFile, File)>,
    /// Time that writing and reading took, in nanoseconds.
    io_ns: Arc<AtomicU64>,
}

impl FileSpill {
    /// Makes the folder, or empties it of the spill files that a crash left behind.
    ///
    /// # Errors
    ///
    /// [`NodeError::Io`] naming the file.
    pub(crate) fn open(settings: SpillSettings) -> Result<Self, NodeError> {
        let io = |action, path: &Path| {
            let path = path.to_owned();
            move |source| NodeError::Io { action, path, source }
        };
        let dir = &settings.dir;
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io("create", dir))?;
        for entry in fs::read_dir(dir).map_err(io("list", dir))? {
            let path = entry.map_err(io("list", dir))?.path();
            if path.extension().is_some_and(|extension| extension == "spill") {
                fs::remove_file(&path).map_err(io("remove", &path))?;
            }
        }
        Ok(Self { settings, lengths: FxHashMap::default(), bytes: 0, open: None, io_ns: Arc::default() })
    }

    /// Time that writing and reading takes, counted on, in nanoseconds.
    pub(crate) fn io_ns(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.io_ns)
    }

    /// Adds the time since `began`.
    fn took(&self, began: Instant) {
        let ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.io_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// A file's path.
    fn path(&self, file: SpillFile) -> PathBuf {
        self.settings.dir.join(file.to_string())
    }

    /// The file, opened for reading and appending; made if `create`.
    fn handle(&mut self, file: SpillFile, create: bool) -> io::Result<&mut File> {
        let open = match self.open.take() {
            Some(open) if open.0 == file => open,
            _ => {
                let mut options = OpenOptions::new();
                options.read(true).append(true).create(create).mode(PRIVATE_MODE);
                (file, options.open(self.path(file))?)
            }
        };
        Ok(&mut self.open.insert(open).1)
    }

    /// A failure of the operating system.
    fn failed(&self, action: &'static str, file: SpillFile, source: &io::Error) -> SpillError {
        let failure = match source.kind() {
            _ if durable_file::is_full(source) => SpillFailure::DiskFull,
            // Somebody removed it.
            io::ErrorKind::NotFound => SpillFailure::Damaged,
            _ => SpillFailure::Io,
        };
        SpillError { action, file: self.path(file).display().to_string(), reason: source.to_string(), failure }
    }
}

impl SpillStore for FileSpill {
    fn append(&mut self, file: SpillFile, bytes: &[u8]) -> Result<(), SpillError> {
        let (len, bytes_max) = (bytes.len() as u64, self.settings.bytes_max);
        if self.bytes + len > bytes_max {
            let reason = format!(
                "all spill files have {} bytes, and with {len} more than the {bytes_max} of spill.bytes_max",
                self.bytes
            );
            let (file, failure) = (self.path(file).display().to_string(), SpillFailure::Limit { bytes_max });
            return Err(SpillError { action: "write", file, reason, failure });
        }
        let began = Instant::now();
        let written = self.handle(file, true).and_then(|handle| handle.write_all(bytes));
        self.took(began);
        written.map_err(|source| self.failed("write", file, &source))?;
        *self.lengths.entry(file).or_default() += len;
        self.bytes += len;
        Ok(())
    }

    fn read(&mut self, file: SpillFile, offset: u64, into: &mut [u8]) -> Result<usize, SpillError> {
        let began = Instant::now();
        let read = self.handle(file, false).and_then(|handle| {
            let mut filled = 0;
            while filled < into.len() {
                match handle.read_at(&mut into[filled..], offset + filled as u64) {
                    Ok(0) => break,
                    Ok(n) => filled += n,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(filled)
        });
        self.took(began);
        read.map_err(|source| self.failed("read", file, &source))
    }

    fn remove(&mut self, file: SpillFile) -> Result<(), SpillError> {
        self.open.take_if(|(open, _)| *open == file);
        self.bytes -= self.lengths.remove(&file).unwrap_or(0);
        match fs::remove_file(self.path(file)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(self.failed("remove", file, &source)),
            _ => Ok(()),
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn name(&self, file: SpillFile) -> String {
        self.path(file).display().to_string()
    }
}

impl Drop for FileSpill {
    /// Removes what is left: nobody will read it.
    fn drop(&mut self) {
        for file in self.lengths.keys() {
            let _ = fs::remove_file(self.path(*file));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use pg_types::{Lsn, Xid};

    use super::*;

    fn files(dir: &Path) -> Vec<String> {
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn files_are_private_have_a_limit_and_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let settings = SpillSettings { dir: dir.path().join("spill"), bytes_max: 20 };
        let mut store = FileSpill::open(settings.clone()).unwrap();
        let (a, b) = (SpillFile::of(Xid(700), Lsn(1)), SpillFile::of(Xid(701), Lsn(1 << 40)));
        store.append(a, b"first").unwrap();
        store.append(b, b"other").unwrap();
        store.append(a, b" and more").unwrap();
        let error = store.append(b, b"xx").unwrap_err();
        assert_eq!(error.failure, SpillFailure::Limit { bytes_max: 20 });
        assert!(error.to_string().contains("xid-701-lsn-100-0.spill: all spill files have 19 bytes"), "{error}");
        let mode = fs::metadata(settings.dir.join("xid-700-lsn-0-0.spill")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut into = [0; 30];
        assert_eq!(store.read(a, 6, &mut into).unwrap(), 8);
        assert_eq!(&into[..8], b"and more");
        store.remove(a).unwrap();
        store.remove(a).unwrap();
        assert_eq!((store.bytes(), files(&settings.dir)), (5, vec!["xid-701-lsn-100-0.spill".to_owned()]));
        assert!(store.read(a, 0, &mut into).unwrap_err().to_string().contains("xid-700-lsn-0-0.spill: No such file"));
        drop(store);
        assert!(files(&settings.dir).is_empty());
    }

    #[test]
    fn what_a_crash_left_behind_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["xid-7-lsn-0-1000000.spill", "broken.spill", "notes.txt"] {
            fs::write(dir.path().join(name), b"whatever").unwrap();
        }
        let store = FileSpill::open(SpillSettings { dir: dir.path().to_owned(), bytes_max: 1 }).unwrap();
        assert_eq!((store.bytes(), files(dir.path())), (0, vec!["notes.txt".to_owned()]));
    }

    #[test]
    fn a_full_disk_is_told_from_other_failures() {
        let store = FileSpill::open(SpillSettings { dir: tempfile::tempdir().unwrap().keep(), bytes_max: 1 }).unwrap();
        let file = SpillFile::of(Xid(7), Lsn(1));
        let failure = |kind| store.failed("write", file, &io::Error::from(kind)).failure;
        assert_eq!(failure(io::ErrorKind::StorageFull), SpillFailure::DiskFull);
        assert_eq!(failure(io::ErrorKind::PermissionDenied), SpillFailure::Io);
        fs::remove_dir(&store.settings.dir).unwrap();
    }
}
