//! Where an existing log ends, so that it can be continued.

use std::path::Path;

use pg_types::Lsn;

use super::WriteError;
use crate::dir::WalDir;
use crate::error::WalError;
use crate::reader::WalReader;

/// Where an existing log ends, as a reader found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// First byte after the last valid record (its `end_lsn`).
    pub end: Lsn,
    /// Start of that record.
    pub prev: Lsn,
}

/// The end of the log in `dir`; nothing if there is none. Reads the last segment, and those before it only if no record starts
/// in it.
pub(super) fn find_end(dir: &Path) -> Result<Option<LogEnd>, WriteError> {
    let unreadable = |what: String| WriteError::Unreadable { dir: dir.to_owned(), what };
    let wal = match WalDir::open(dir, None) {
        Ok(wal) => wal,
        Err(WalError::NoSegments { .. }) => return Ok(None),
        Err(error) => return Err(unreadable(error.to_string())),
    };
    for (start, _) in wal.segments().rev() {
        let mut reader = WalReader::open(&wal, Some(start)).map_err(|error| unreadable(error.to_string()))?;
        let mut prev = None;
        while let Some(record) = reader.next().map_err(|error| unreadable(error.to_string()))? {
            prev = Some(record.lsn);
        }
        match (prev, reader.end()) {
            (_, Some(end)) if !end.is_complete() => return Err(unreadable(end.to_string())),
            (Some(prev), Some(_)) => return Ok(Some(LogEnd { end: reader.position(), prev })),
            _ => {}
        }
    }
    Err(unreadable("no record starts in any of its segments".to_owned()))
}
