//! Where serialised snapshots are: the seam between the snapshot builder, which owns no file, and its shell.
//!
//! PostgreSQL writes a file per position into `pg_logical/snapshots` (`SnapBuildSerialize`), and each checkpoint removes those
//! that no slot will begin with any more (`CheckPointSnapBuild`). A [`SnapshotStore`] keeps such files as bytes; what they mean, and
//! whether they came back undamaged, is the builder's business, and removing them the shell's, which knows what it has stored.
//!
//! Invariants: I1 a file is there whole or not at all, whatever a crash did; I2 what was written is durable when [`SnapshotStore::write`]
//! returns.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use pg_types::Lsn;

/// The name of the snapshot at `lsn`, as in `pg_logical/snapshots`: `%X-%X.snap`.
#[must_use]
pub fn snapshot_file_name(lsn: Lsn) -> String {
    format!("{:X}-{:X}.snap", lsn.0 >> 32, lsn.0 & 0xffff_ffff)
}

/// Why a serialised snapshot failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotFailure {
    /// The disk is full.
    DiskFull,
    /// What was read is not what was written.
    Damaged,
    /// Decoding must begin with it, and it is not there.
    Missing,
    /// The operating system refused.
    Io,
}

/// A serialised snapshot could not be written or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{action} serialised snapshot {file}: {reason}{}", remedy(*failure))]
pub struct SnapshotError {
    /// What was tried, as a verb.
    pub action: &'static str,
    /// On which file: its path or its name.
    pub file: String,
    /// What happened.
    pub reason: String,
    /// Of which kind that is.
    pub failure: SnapshotFailure,
}

/// What to do about it.
fn remedy(failure: SnapshotFailure) -> &'static str {
    match failure {
        SnapshotFailure::DiskFull => "; free space on that disk",
        SnapshotFailure::Damaged | SnapshotFailure::Missing => {
            "; without it transactions would be lost: restore data_dir as a whole from a backup, or move it away, drop the slot and \
             start anew"
        }
        SnapshotFailure::Io => "",
    }
}

/// Keeps serialised snapshots.
pub trait SnapshotStore: fmt::Debug + Send {
    /// Keeps `bytes` as the snapshot at `lsn` (I1, I2). If there is one already, it stays: whoever wrote it had read from as far back, or
    /// further. Gives whether there is one now: a store that has too many takes no more, and decoding will begin earlier.
    ///
    /// # Errors
    /// The disk or the operating system forbids it.
    fn write(&mut self, lsn: Lsn, bytes: &[u8]) -> Result<bool, SnapshotError>;

    /// The snapshot at `lsn`; [`None`] if there is none.
    ///
    /// # Errors
    /// It cannot be read.
    fn read(&mut self, lsn: Lsn) -> Result<Option<Vec<u8>>, SnapshotError>;

    /// The path or name of the snapshot at `lsn`, for messages.
    fn name(&self, lsn: Lsn) -> String {
        snapshot_file_name(lsn)
    }
}

/// Keeps them in memory, for whoever has a clone: what one decoder wrote, another may begin with.
#[derive(Clone, Debug, Default)]
pub struct MemorySnapshots {
    /// The files.
    pub files: Arc<Mutex<BTreeMap<Lsn, Vec<u8>>>>,
}

impl SnapshotStore for MemorySnapshots {
    fn write(&mut self, lsn: Lsn, bytes: &[u8]) -> Result<bool, SnapshotError> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).entry(lsn).or_insert_with(|| bytes.to_vec());
        Ok(true)
    }

    fn read(&mut self, lsn: Lsn) -> Result<Option<Vec<u8>>, SnapshotError> {
        Ok(self.files.lock().unwrap_or_else(PoisonError::into_inner).get(&lsn).cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_as_in_pg_logical_snapshots_and_stay_as_they_were_written() {
        assert_eq!(snapshot_file_name(Lsn(0x0000_0012_0151_E400)), "12-151E400.snap");
        let mut store = MemorySnapshots::default();
        assert_eq!(store.read(Lsn(7)), Ok(None));
        assert_eq!((store.write(Lsn(7), b"first"), store.write(Lsn(7), b"later")), (Ok(true), Ok(true)));
        assert_eq!(store.clone().read(Lsn(7)), Ok(Some(b"first".to_vec())));
    }
}
