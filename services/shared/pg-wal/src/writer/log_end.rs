//! Where an existing log ends, so that it can be continued (`ReadRecord` in `access/transam/xlogrecovery.c`,
//! `XLogDecodeNextRecord` in `access/transam/xlogreader.c`: `abortedRecPtr`, `missingContrecPtr`).

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use pg_types::Lsn;

use super::segment_file::is_unwritten;
use super::{WalSync, WriteError, WriterConfig};
use crate::dir::WalDir;
use crate::end::{EndReason, WalEnd};
use crate::error::WalError;
use crate::page::{LONG_HEADER_LEN, page_start, record_end};
use crate::reader::WalReader;
use crate::segment::SegmentName;

/// Where a log goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// First byte after the last valid record (its `end_lsn`).
    pub end: Lsn,
    /// Start of that record; invalid if there is none.
    pub prev: Lsn,
}

/// The last valid record of a log, and what follows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogTail {
    /// First byte after the last valid record.
    pub end: Lsn,
    /// Start of that record; none if no record starts in any segment.
    pub prev: Option<Lsn>,
    /// What follows it.
    pub reason: WalEnd,
    /// A record starts behind the last valid one and its rest is missing: the page on which reading it came to its end.
    pub lost_page: Option<Lsn>,
}

impl LogTail {
    /// The tail of the log in `dir`; nothing if there is no segment, or one that a crash left before its first page was written.
    ///
    /// # Errors
    /// [`WalError`] if the files cannot be read or are no WAL.
    pub fn find(dir: &Path) -> Result<Option<LogTail>, WalError> {
        match WalDir::open(dir, None) {
            Ok(wal) => LogTail::of(&wal).map(Some),
            Err(WalError::NoSegments { .. }) => Ok(None),
            Err(WalError::NotWal { path, .. }) if is_unwritten(&path) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The tail of `wal`. Reads the last segment in which a record starts, and the one before it if a record goes on from there.
    /// Damage before that is not looked for: a segment is on disk before the next is begun.
    ///
    /// # Errors
    /// As [`LogTail::find`].
    pub fn of(wal: &WalDir) -> Result<LogTail, WalError> {
        let (mut last, mut empty) = (None, None);
        for (start, _) in wal.segments().rev() {
            let (first, tail) = LogTail::read_from(wal, start)?;
            let Some(first) = first else {
                empty = Some(tail);
                continue;
            };
            if let Some(last) = last {
                // The record that goes on over the border may be what a crash tore, though a later one is whole.
                let border = Lsn(start.0 + u64::from(wal.identity().segment_size));
                return Ok(if tail.lost_page.is_some_and(|page| page >= border) { tail } else { last });
            }
            if first.0 <= start.0 + u64::from(LONG_HEADER_LEN) {
                return Ok(tail);
            }
            last = Some(tail);
        }
        last.or(empty).ok_or_else(|| WalError::NoSegments { path: wal.path().to_owned() })
    }

    /// The first record from `start` on, and the tail, read from there.
    fn read_from(wal: &WalDir, start: Lsn) -> Result<(Option<Lsn>, LogTail), WalError> {
        let mut reader = WalReader::open(wal, Some(start))?;
        let (mut first, mut prev) = (None, None);
        while let Some(record) = reader.next()? {
            first = first.or(Some(record.lsn));
            prev = Some(record.lsn);
        }
        let end = reader.position();
        let zeroes = || WalEnd { lsn: end, file: wal.path().to_owned(), reason: EndReason::ZeroedTail };
        let reason = reader.end().cloned().unwrap_or_else(zeroes);
        let lost_page = match &reason.reason {
            EndReason::TornRecord { at, .. } => Some(page_start(*at)),
            // A checksum is looked at once the last page is there.
            EndReason::BadCrc { .. } => last_page(&reason, wal.identity().segment_size)?,
            _ => None,
        };
        Ok((first, LogTail { end, prev, reason, lost_page }))
    }
}

/// The page on which the record at an end would end by its own length, if it is another one than that on which it starts.
fn last_page(end: &WalEnd, segment_size: u32) -> Result<Option<Lsn>, WalError> {
    let mut len = [0; 4];
    let offset = end.lsn.0 % u64::from(segment_size);
    let read = File::open(&end.file).and_then(|file| file.read_exact_at(&mut len, offset));
    read.map_err(|source| WalError::Io { path: end.file.clone(), source })?;
    let last = record_end(end.lsn, u32::from_le_bytes(len), segment_size).0.saturating_sub(1);
    Ok(Some(page_start(Lsn(last))).filter(|last| *last > page_start(end.lsn)))
}

/// Removes segments that lie wholly behind `end`: a crash left them there, and nothing in them counts.
pub(super) fn remove_segments_after(dir: &Path, config: &WriterConfig, end: Lsn) -> Result<(), WriteError> {
    let io = |action, path: &Path| {
        let path = path.to_owned();
        move |source| WriteError::Io { action, path, source }
    };
    let mut removed = false;
    for entry in fs::read_dir(dir).map_err(io("list", dir))? {
        let path = entry.map_err(io("list", dir))?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let Some((name, false)) = SegmentName::parse(&name) else { continue };
        if name.timeline == config.timeline && name.start(config.segment_size).is_some_and(|start| start >= end) {
            fs::remove_file(&path).map_err(io("remove", &path))?;
            removed = true;
        }
    }
    if removed && config.sync != WalSync::Off {
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(io("sync", dir))?;
    }
    Ok(())
}
