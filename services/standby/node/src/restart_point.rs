//! The restart point on disk: where a standby that was stopped or killed begins again.
//!
//! PostgreSQL's standby keeps it in `pg_control` (`CreateRestartPoint`, `xlog.c`): the newest checkpoint record whose redo
//! position it has replayed, and what that record said of the xids. A restart replays from the redo position with those
//! xids as its beginning. Ours is one small JSON file with a CRC-32C over everything else in it, so that a person can read it
//! and a torn or edited one is noticed.
//!
//! Invariants:
//! - I1: the file on disk is always a whole one: it is written beside, synced, renamed, and its directory synced.
//! - I2: `redo_lsn` never goes back: a primary may have removed the WAL before the position that we told it as flushed.
//! - I3: a position is told to the primary as flushed only after the file that names it is on disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use pg_types::record::CheckpointRecord;
use pg_types::{FullXid, Lsn, Xid};
use serde::{Deserialize, Serialize};
use standby_core::PreparedXact;

/// Name of the file in the standby's data directory.
pub const FILE_NAME: &str = "restart_point.json";

/// Layout number; another one is refused, never guessed at.
const FORMAT: u32 = 2;

/// Longest file that is read at all, in bytes; a real one has some 300, some 50 for each prepared transaction, and 12 for each of its
/// subtransactions.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Where replay begins again, and of which cluster: [`standby_core::RestartPoint`] as far as a start needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestartPoint {
    /// `system_identifier` of the cluster that this state belongs to.
    pub system_id: u64,
    /// Its timeline.
    pub timeline: u32,
    /// First byte of the checkpoint record.
    pub checkpoint_lsn: Lsn,
    /// Where the stream is taken up again (`CheckPoint.redo`).
    pub redo_lsn: Lsn,
    /// `CheckPoint.nextXid`.
    pub next_xid: FullXid,
    /// `CheckPoint.oldestActiveXid`; 0 if the checkpoint was a shutdown's.
    pub oldest_active_xid: u32,
    /// The checkpoint was written at shutdown: nothing ran.
    pub shutdown: bool,
    /// Transactions that were prepared before the redo position and not finished.
    pub prepared: Vec<Prepared>,
}

/// A prepared transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prepared {
    /// Its xid.
    pub xid: u32,
    /// Its subtransactions.
    pub subxids: Vec<u32>,
}

impl From<&PreparedXact> for Prepared {
    fn from(core: &PreparedXact) -> Self {
        Self { xid: core.xid.numeric(), subxids: core.subxids.iter().map(|xid| xid.numeric()).collect() }
    }
}

impl From<&Prepared> for PreparedXact {
    fn from(kept: &Prepared) -> Self {
        Self { xid: Xid(kept.xid), subxids: kept.subxids.iter().copied().map(Xid).collect() }
    }
}

impl RestartPoint {
    /// The part of a core's restart point that is kept.
    #[must_use]
    pub fn of_core(system_id: u64, timeline: u32, core: &standby_core::RestartPoint) -> Self {
        Self {
            system_id,
            timeline,
            checkpoint_lsn: core.checkpoint_lsn,
            redo_lsn: core.redo,
            next_xid: core.checkpoint.next_xid,
            oldest_active_xid: core.checkpoint.oldest_active_xid.numeric(),
            shutdown: core.checkpoint.shutdown,
            prepared: core.prepared.iter().map(Prepared::from).collect(),
        }
    }

    /// What the core starts at.
    #[must_use]
    pub fn to_core(&self) -> standby_core::RestartPoint {
        standby_core::RestartPoint {
            checkpoint_lsn: self.checkpoint_lsn,
            redo: self.redo_lsn,
            checkpoint: CheckpointRecord {
                shutdown: self.shutdown,
                redo: self.redo_lsn,
                this_timeline: self.timeline,
                prev_timeline: self.timeline,
                next_xid: self.next_xid,
                oldest_active_xid: Xid(self.oldest_active_xid),
                ..CheckpointRecord::default()
            },
            prepared: self.prepared.iter().map(PreparedXact::from).collect(),
        }
    }
}

/// Why a restart point could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RestartPointError {
    /// The file system said no.
    #[error("{action} {path}", path = path.display())]
    Io {
        /// What was tried, in the present tense.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The file is there but says nothing that can be trusted.
    #[error(
        "the restart point {path} is damaged: {reason}; remove the file to let the standby begin at the first checkpoint of the stream",
        path = path.display()
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// The file's contents: the point as people write it, and the checksum.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OnDisk {
    /// [`FORMAT`].
    format: u32,
    /// Decimal, since JSON numbers lose bits above 2^53 in many readers.
    system_id: String,
    /// Timeline.
    timeline: u32,
    /// `X/Y`.
    checkpoint_lsn: String,
    /// `X/Y`.
    redo_lsn: String,
    /// Epoch and xid as one decimal number in a string.
    next_xid: String,
    /// Xid or 0.
    oldest_active_xid: u32,
    /// Shutdown checkpoint.
    shutdown: bool,
    /// Prepared transactions.
    prepared: Vec<Prepared>,
    /// CRC-32C of the file as it is with this field 0.
    crc32c: u32,
}

impl OnDisk {
    /// The contents for a point, checksum included.
    fn new(point: &RestartPoint) -> Self {
        let mut disk = Self {
            format: FORMAT,
            system_id: point.system_id.to_string(),
            timeline: point.timeline,
            checkpoint_lsn: point.checkpoint_lsn.to_string(),
            redo_lsn: point.redo_lsn.to_string(),
            next_xid: point.next_xid.0.to_string(),
            oldest_active_xid: point.oldest_active_xid,
            shutdown: point.shutdown,
            prepared: point.prepared.clone(),
            crc32c: 0,
        };
        disk.crc32c = disk.checksum();
        disk
    }

    /// CRC-32C over all the other fields, each ended by a newline so that no two contents share their bytes.
    fn checksum(&self) -> u32 {
        let text = format!(
            "{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{:?}\n",
            self.format,
            self.system_id,
            self.timeline,
            self.checkpoint_lsn,
            self.redo_lsn,
            self.next_xid,
            self.oldest_active_xid,
            self.shutdown,
            self.prepared
        );
        crc32c::crc32c(text.as_bytes())
    }

    /// The point, if the contents hold together.
    fn point(&self) -> Result<RestartPoint, String> {
        if self.format != FORMAT {
            return Err(format!("its format is {} where this program writes {FORMAT}", self.format));
        }
        if self.crc32c != self.checksum() {
            return Err(format!("its checksum is {} where its contents give {}", self.crc32c, self.checksum()));
        }
        let number = |name: &str, text: &str| text.parse::<u64>().map_err(|e| format!("its {name} '{text}': {e}"));
        let lsn = |name: &str, text: &str| text.parse::<Lsn>().map_err(|e| format!("its {name}: {e}"));
        Ok(RestartPoint {
            system_id: number("system_id", &self.system_id)?,
            timeline: self.timeline,
            checkpoint_lsn: lsn("checkpoint_lsn", &self.checkpoint_lsn)?,
            redo_lsn: lsn("redo_lsn", &self.redo_lsn)?,
            next_xid: FullXid(number("next_xid", &self.next_xid)?),
            oldest_active_xid: self.oldest_active_xid,
            shutdown: self.shutdown,
            prepared: self.prepared.clone(),
        })
    }
}

/// Reads the restart point of a data directory; none if the standby never had one.
///
/// # Errors
/// The file cannot be read, or is damaged.
pub fn read(data_dir: &Path) -> Result<Option<RestartPoint>, RestartPointError> {
    let path = data_dir.join(FILE_NAME);
    let io_error = |source| RestartPointError::Io { action: "read", path: path.clone(), source };
    let damaged = |reason: String| RestartPointError::Damaged { path: path.clone(), reason };
    match std::fs::metadata(&path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io_error(e)),
        Ok(meta) if meta.len() > FILE_BYTES_MAX => return Err(damaged(format!("it is {} bytes long", meta.len()))),
        Ok(_) => {}
    }
    let bytes = std::fs::read(&path).map_err(io_error)?;
    parse(&bytes).map(Some).map_err(damaged)
}

/// The point that a file's contents name, or what is wrong with them.
fn parse(bytes: &[u8]) -> Result<RestartPoint, String> {
    serde_json::from_slice::<OnDisk>(bytes).map_err(|e| e.to_string())?.point()
}

/// Makes `point` the restart point of a data directory, durably (I1).
///
/// # Errors
/// The file system refuses; the older restart point then still stands.
pub fn write(data_dir: &Path, point: &RestartPoint) -> Result<(), RestartPointError> {
    let path = data_dir.join(FILE_NAME);
    let beside = data_dir.join(format!("{FILE_NAME}.new"));
    let step = |action, path: &Path, result: io::Result<()>| {
        result.map_err(|source| RestartPointError::Io { action, path: path.to_owned(), source })
    };
    let text = serde_json::to_string_pretty(&OnDisk::new(point)).unwrap_or_default() + "\n";
    let write_beside = || -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    step("write", &beside, write_beside())?;
    step("rename onto", &path, std::fs::rename(&beside, &path))?;
    step("sync", data_dir, File::open(data_dir).and_then(|dir| dir.sync_all()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    fn point() -> RestartPoint {
        RestartPoint {
            system_id: u64::MAX - 1,
            timeline: 3,
            checkpoint_lsn: Lsn(0x1_0000_0080),
            redo_lsn: Lsn(0x1_0000_0028),
            next_xid: FullXid(1 << 32 | 755),
            oldest_active_xid: 754,
            shutdown: false,
            prepared: vec![Prepared { xid: 700, subxids: vec![701, 704] }, Prepared { xid: 751, subxids: Vec::new() }],
        }
    }

    #[test]
    fn what_was_written_is_read_and_only_the_owner_may_read_it() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        write(dir.path(), &point()).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(point()));
        let newer = RestartPoint { redo_lsn: Lsn(0x2_0000_0000), shutdown: true, ..point() };
        write(dir.path(), &newer).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(newer));
        let mode = std::fs::metadata(dir.path().join(FILE_NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside the file");
    }

    #[test]
    fn a_missing_directory_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let gone = dir.path().join("gone");
        let error = write(&gone, &point()).unwrap_err();
        assert!(error.to_string().contains("gone"), "{error}");
    }

    #[test]
    fn a_damaged_file_is_reported_by_name_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &point()).unwrap();
        let path = dir.path().join(FILE_NAME);
        let text = std::fs::read_to_string(&path).unwrap().replace("\"timeline\": 3", "\"timeline\": 4");
        std::fs::write(&path, text).unwrap();
        let error = read(dir.path()).unwrap_err().to_string();
        assert!(error.contains(FILE_NAME) && error.contains("checksum") && error.contains("remove the file"), "{error}");
        std::fs::write(&path, vec![b' '; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(read(dir.path()).unwrap_err().to_string().contains("4194305 bytes"));
    }

    proptest! {
        /// Cut anywhere or with any byte changed, a file is refused or still says the same.
        #[test]
        fn damaged_contents_are_never_believed(cut in 0_usize..400, at in 0_usize..400, to in any::<u8>()) {
            let mut bytes = serde_json::to_vec_pretty(&OnDisk::new(&point())).unwrap();
            bytes.truncate(cut.max(1));
            if let Some(byte) = bytes.get_mut(at) {
                *byte = to;
            }
            if let Ok(read) = parse(&bytes) {
                prop_assert_eq!(read, point());
            }
        }
    }
}
