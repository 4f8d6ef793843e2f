//! Where changes go that do not fit the memory: the seam between the decoder, which owns no file, and its shell.
//!
//! PostgreSQL writes a file per transaction and WAL segment into the slot's folder (`ReorderBufferSerializedPath`). A
//! [`SpillStore`] keeps such files as bytes that are only ever appended to, read from an offset and removed; what the bytes
//! mean, and whether they came back undamaged, is the decoder's business.
//!
//! Invariants: I1 the decoder appends to a transaction's newest file only, and removes every file that it made when the
//! transaction ends; I2 nothing survives a restart: a store is empty when a decoder begins, whatever a crash left behind.
//!
//! Differences from PostgreSQL: WAL segments count as 16 MiB, whatever the server's; rows are not written, only where they are.

use std::fmt;

use pg_types::{Lsn, Xid};
use rustc_hash::FxHashMap;

/// Bytes of WAL whose changes share a file.
pub const SPILL_SEGMENT_BYTES: u64 = 16 << 20;

/// Names a spill file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpillFile {
    /// The transaction or subtransaction.
    pub xid: Xid,
    /// Start of the WAL segment.
    pub segment: Lsn,
}

impl SpillFile {
    /// The file for a change of `xid` at `lsn`.
    #[must_use]
    pub fn of(xid: Xid, lsn: Lsn) -> Self {
        Self { xid, segment: Lsn(lsn.0 - lsn.0 % SPILL_SEGMENT_BYTES) }
    }
}

impl fmt::Display for SpillFile {
    /// The name as in a slot's folder: `xid-%u-lsn-%X-%X.spill`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "xid-{}-lsn-{:X}-{:X}.spill", self.xid, self.segment.0 >> 32, self.segment.0 & 0xffff_ffff)
    }
}

/// Why a spill file failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpillFailure {
    /// All files together may not grow further.
    Limit {
        /// Bytes that they may have.
        bytes_max: u64,
    },
    /// The disk is full.
    DiskFull,
    /// What was read is not what was written.
    Damaged,
    /// The operating system refused.
    Io,
}

/// A spill file could not be written, read or removed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{action} spill file {file}: {reason}{}", remedy(*failure))]
pub struct SpillError {
    /// What was tried, as a verb.
    pub action: &'static str,
    /// On which file: its path or its name.
    pub file: String,
    /// What happened.
    pub reason: String,
    /// Of which kind that is.
    pub failure: SpillFailure,
}

/// What to do about it.
fn remedy(failure: SpillFailure) -> &'static str {
    match failure {
        SpillFailure::Limit { .. } => "; raise the limit of spill files, or work_mem, or end the transactions that fill them",
        SpillFailure::DiskFull => "; free space on that disk",
        SpillFailure::Damaged => "; decode again from the last checkpoint, and look after the disk",
        SpillFailure::Io => "",
    }
}

/// Keeps spill files.
pub trait SpillStore: fmt::Debug + Send {
    /// Appends `bytes` to `file`, which is made if it is not there.
    ///
    /// # Errors
    /// The limit, the disk or the operating system forbids it. The file's end is then undefined.
    fn append(&mut self, file: SpillFile, bytes: &[u8]) -> Result<(), SpillError>;

    /// Reads from `offset` into `into` and gives how many bytes that were; fewer than fit only at the end of the file.
    ///
    /// # Errors
    /// There is no such file, or it cannot be read.
    fn read(&mut self, file: SpillFile, offset: u64, into: &mut [u8]) -> Result<usize, SpillError>;

    /// Removes `file`.
    ///
    /// # Errors
    /// It cannot be removed. That there is none is no error.
    fn remove(&mut self, file: SpillFile) -> Result<(), SpillError>;

    /// Bytes of all files.
    fn bytes(&self) -> u64;

    /// The path or name of a file, for messages.
    fn name(&self, file: SpillFile) -> String {
        file.to_string()
    }
}

/// Keeps them in memory: for a decoder whose shell has no disk for it.
#[derive(Debug, Default)]
pub struct MemorySpill {
    /// The files.
    files: FxHashMap<SpillFile, Vec<u8>>,
    /// Bytes of all.
    bytes: u64,
}

impl SpillStore for MemorySpill {
    fn append(&mut self, file: SpillFile, bytes: &[u8]) -> Result<(), SpillError> {
        self.files.entry(file).or_default().extend_from_slice(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    fn read(&mut self, file: SpillFile, offset: u64, into: &mut [u8]) -> Result<usize, SpillError> {
        let Some(contents) = self.files.get(&file) else {
            let reason = "it is not there".to_owned();
            return Err(SpillError { action: "read", file: file.to_string(), reason, failure: SpillFailure::Io });
        };
        let rest = usize::try_from(offset).ok().and_then(|offset| contents.get(offset..)).unwrap_or_default();
        let n = rest.len().min(into.len());
        into[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn remove(&mut self, file: SpillFile) -> Result<(), SpillError> {
        self.bytes -= self.files.remove(&file).map_or(0, |contents| contents.len() as u64);
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// What is known of a transaction beside the WAL that was decoded so far (`TransactionIdIsInProgress`, `TransactionIdDidCommit`).
///
/// A server asks its commit log, which knows of transactions that ended after the place that is being decoded. A decoder that
/// catches up, or replays finished WAL, therefore knows of most rollbacks in advance, one that follows live of none.
pub trait TransactionStatus: fmt::Debug + Send {
    /// Whether `xid` is known to be rolled back, at a place behind `lsn`. What cannot be found out counts as running.
    fn is_aborted(&mut self, xid: Xid, lsn: Lsn) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_as_in_a_slot_s_folder() {
        let file = SpillFile::of(Xid(742), Lsn(0x12_abcd_ef01));
        assert_eq!(file.to_string(), "xid-742-lsn-12-AB000000.spill");
        assert_eq!(SpillFile::of(Xid(742), Lsn(0x12_ab00_0000)), file);
        assert_ne!(SpillFile::of(Xid(742), Lsn(0x12_ac00_0000)), file);
    }

    #[test]
    fn memory_keeps_gives_and_forgets() {
        let (mut store, file) = (MemorySpill::default(), SpillFile::of(Xid(7), Lsn(1)));
        store.append(file, b"some").unwrap();
        store.append(file, b" bytes").unwrap();
        let mut into = [0; 8];
        assert_eq!((store.read(file, 2, &mut into).unwrap(), &into), (8, b"me bytes"));
        assert_eq!(store.read(file, 9, &mut into).unwrap(), 1);
        assert_eq!(store.read(file, u64::MAX, &mut into).unwrap(), 0);
        assert_eq!(store.bytes(), 10);
        store.remove(file).unwrap();
        store.remove(file).unwrap();
        assert_eq!(store.bytes(), 0);
        let error = store.read(file, 0, &mut into).unwrap_err().to_string();
        assert_eq!(error, "read spill file xid-7-lsn-0-0.spill: it is not there");
    }
}
