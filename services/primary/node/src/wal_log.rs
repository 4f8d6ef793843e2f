//! The primary's log: a directory of PostgreSQL's WAL segments, served as it is or written by the simulated source.
//!
//! Every stream reads the files itself and is told by a watch channel how far they are good. A directory that was given by the
//! user is never written to. Everything that a log gives out ends at or before its published end; damage in the middle is found
//! by the stream that reads it, and damage at the end is where the log ends.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use pg_types::{Lsn, WalIdentity};
use pg_wal::page::{LONG_HEADER_LEN, PageHeader};
use pg_wal::writer::{LogTail, WriterCounters};
use pg_wal::{SegmentName, WalDir, WalEnd, WalError, WalReader};
use tokio::sync::watch;

use crate::error::{Error, Result};

/// How far a log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// End of the last record that is durable.
    pub lsn: Lsn,
    /// Nothing more will come: the directory is not followed, or the scenario is over.
    pub closed: bool,
    /// The log ends in something that is no end of WAL, so streams read on and tell what it is. So only for a directory that
    /// somebody else wrote: a torn end of our own log is what a crash leaves, and nothing that was published is lost with it.
    pub damaged: bool,
}

impl LogEnd {
    /// Up to where streams may read.
    #[must_use]
    pub fn read_limit(&self) -> Lsn {
        if self.damaged { Lsn(u64::MAX) } else { self.lsn }
    }
}

/// Where a log's WAL comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogSource {
    /// A directory that somebody else wrote, or writes.
    Segments,
    /// An archive in a store.
    Archive,
    /// The simulated source.
    Simulated,
}

/// A log; clones are handles on the same one.
#[derive(Clone, Debug)]
pub struct WalLog {
    /// Shared by streams, the source and the retention task.
    inner: Arc<Inner>,
}

/// What the handles share.
#[derive(Debug)]
struct Inner {
    /// Where the segments are.
    path: PathBuf,
    /// The timeline that was asked for.
    timeline: Option<u32>,
    /// What they say of their cluster.
    identity: WalIdentity,
    /// Who writes.
    source: LogSource,
    /// The newest look at the directory. Held only to copy or replace it.
    dir: Mutex<Arc<WalDir>>,
    /// The published end. Never goes back.
    end: watch::Sender<LogEnd>,
    /// How writing goes, if it is ours.
    writer: OnceLock<watch::Receiver<WriterState>>,
}

/// How writing of a log that is ours goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriterState {
    /// What the writer has done since this program took over.
    pub counters: WriterCounters,
    /// Commit records among it.
    pub commits: u64,
    /// Groups of records that were flushed together: `commits / flushes` is the size of a group commit.
    pub flushes: u64,
    /// Why nothing can be written now.
    pub fault: Option<String>,
}

impl WalLog {
    /// Opens a directory of segments, a data directory or one segment. Unless it is followed, its end is final.
    ///
    /// Reads the last segments to find the end; blocks on the disk.
    ///
    /// # Errors
    /// There is no WAL, or none of a version that is read.
    pub fn open(path: &Path, timeline: Option<u32>, source: LogSource, closed: bool) -> Result<Self> {
        let dir = WalDir::open(path, timeline).map_err(|e| directory_error(path, e))?;
        let LogTail { end, reason, .. } = LogTail::of(&dir).map_err(|e| directory_error(path, e))?;
        if !reason.is_complete() {
            tracing::warn!(end = %reason, "the last segment does not end as WAL should; what is before is served");
        }
        for file in dir.left_out() {
            tracing::warn!(file = %file.display(), "not part of the WAL that is served");
        }
        let damaged = !reason.is_complete() && closed && source == LogSource::Segments;
        let (end, _) = watch::channel(LogEnd { lsn: end, closed, damaged });
        let inner = Inner {
            path: path.to_owned(),
            timeline,
            identity: dir.identity(),
            source,
            dir: Mutex::new(Arc::new(dir)),
            end,
            writer: OnceLock::new(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// An archive, whose segments come from a store.
    pub(crate) fn of_archive(dir: WalDir, end: LogEnd) -> Self {
        let (path, identity) = (dir.path().to_owned(), dir.identity());
        let (end, _) = watch::channel(end);
        let (timeline, source) = (None, LogSource::Archive);
        Self {
            inner: Arc::new(Inner {
                path,
                timeline,
                identity,
                source,
                dir: Mutex::new(Arc::new(dir)),
                end,
                writer: OnceLock::new(),
            }),
        }
    }

    /// Takes over a newer look at an archive.
    pub(crate) fn renew(&self, dir: WalDir) {
        debug_assert_eq!(dir.identity(), self.inner.identity);
        self.replace_dir(dir);
    }

    /// The log with what tells how writing it goes.
    #[must_use]
    pub fn with_writer(self, writer: watch::Receiver<WriterState>) -> Self {
        // It is set once, by who made the log.
        let _ = self.inner.writer.set(writer);
        self
    }

    /// Tells how writing goes, if the log is ours.
    #[must_use]
    pub fn writer(&self) -> Option<watch::Receiver<WriterState>> {
        self.inner.writer.get().cloned()
    }

    /// Version, cluster, timeline, segment size.
    #[must_use]
    pub fn identity(&self) -> WalIdentity {
        self.inner.identity
    }

    /// Who writes.
    #[must_use]
    pub fn source(&self) -> LogSource {
        self.inner.source
    }

    /// Start of the oldest segment that is kept.
    #[must_use]
    pub fn oldest(&self) -> Lsn {
        self.dir().first()
    }

    /// How far the log is now.
    #[must_use]
    pub fn end(&self) -> LogEnd {
        *self.inner.end.borrow()
    }

    /// Tells when the end moves.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<LogEnd> {
        self.inner.end.subscribe()
    }

    /// Whether a stream can begin at `from`.
    ///
    /// # Errors
    /// [`Error::LsnRemoved`] before the oldest WAL, [`Error::LsnAhead`] beyond the end.
    pub fn check_start(&self, from: Lsn) -> Result<()> {
        let (oldest, end) = (self.oldest(), self.end().lsn);
        if from < oldest {
            Err(Error::LsnRemoved { requested: from, oldest })
        } else if from > end {
            Err(Error::LsnAhead { requested: from, end })
        } else {
            Ok(())
        }
    }

    /// A reader of the first whole record at or after `from`. Blocks on the disk.
    ///
    /// # Errors
    /// The segment is gone.
    pub fn reader(&self, from: Lsn) -> Result<WalReader> {
        let dir = self.dir();
        WalReader::open(&dir, Some(from)).map_err(|error| match error {
            WalError::StartOutside { start, first, .. } if start < first => {
                Error::LsnRemoved { requested: start, oldest: first }
            }
            WalError::StartOutside { start, .. } => {
                let file = dir.path().join(dir.expected_name(segment_start(&dir.identity(), start))).display().to_string();
                Error::DataLoss { lsn: start, file, reason: format!("the segment is missing; {MISSING_REMEDY}") }
            }
            error => directory_error(&self.inner.path, error),
        })
    }

    /// Publishes that everything before `lsn` is durable.
    pub fn publish(&self, lsn: Lsn) {
        self.inner.end.send_if_modified(|end| {
            let moved = lsn > end.lsn;
            end.lsn = end.lsn.max(lsn);
            moved
        });
    }

    /// Publishes that nothing more will come.
    pub fn close(&self) {
        self.inner.end.send_modify(|end| end.closed = true);
    }

    /// Looks at the directory again, for segments that came or went, and at where it ends now. Blocks on the disk.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn refresh(&self) -> Result<Lsn> {
        let path = &self.inner.path;
        let dir = WalDir::open(path, self.inner.timeline).map_err(|e| directory_error(path, e))?;
        if dir.identity() != self.inner.identity {
            let reason = format!("timeline {} appeared: start the primary again to serve it", dir.identity().timeline);
            return Err(Error::WalDirectory { dir: path.clone(), reason });
        }
        let end = LogTail::of(&dir).map_err(|e| directory_error(path, e))?;
        self.replace_dir(dir);
        Ok(end.end)
    }

    /// Removes the segments that end at or before `before`, of a log that is ours. Blocks on the disk.
    ///
    /// # Errors
    /// A file cannot be removed.
    pub fn remove_before(&self, before: Lsn) -> Result<usize> {
        if self.inner.source != LogSource::Simulated {
            return Ok(0);
        }
        let size = u64::from(self.inner.identity.segment_size);
        let mut removed = 0;
        let dir = self.dir();
        for (start, segment) in dir.segments() {
            if start.0 + size > before.0 {
                break;
            }
            std::fs::remove_file(&segment.path).map_err(Error::io("remove", &segment.path))?;
            removed += 1;
        }
        if removed > 0 {
            let path = &self.inner.path;
            let dir = WalDir::open(path, self.inner.timeline).map_err(|e| directory_error(path, e))?;
            self.replace_dir(dir);
        }
        Ok(removed)
    }

    /// The newest look at the directory.
    fn dir(&self) -> Arc<WalDir> {
        Arc::clone(&self.inner.dir.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes a newer look.
    fn replace_dir(&self, dir: WalDir) {
        *self.inner.dir.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(dir);
    }
}

/// Where the WAL of a directory ends, before `limit`: read from the last segment in which a record starts.
pub(crate) fn find_end(dir: &WalDir, limit: Option<Lsn>) -> Result<WalEnd, WalError> {
    let mut found = None;
    for (start, _) in dir.segments().rev() {
        let mut reader = WalReader::open(dir, Some(start))?;
        if let Some(limit) = limit {
            reader.set_limit(limit);
        }
        let mut records = 0u64;
        while reader.next()?.is_some() {
            records += 1;
        }
        let end = reader.end().cloned();
        if records > 0 || found.is_none() {
            found = end;
        }
        if records > 0 {
            break;
        }
    }
    found.ok_or_else(|| WalError::NoSegments { path: dir.path().to_owned() })
}

/// Where the WAL of a directory ends, before `limit`, read from `from` on.
pub(crate) fn find_end_from(dir: &WalDir, from: Lsn, limit: Option<Lsn>) -> Result<WalEnd, WalError> {
    let mut reader = WalReader::open(dir, Some(from))?;
    if let Some(limit) = limit {
        reader.set_limit(limit);
    }
    while reader.next()?.is_some() {}
    reader.end().cloned().ok_or_else(|| WalError::NoSegments { path: dir.path().to_owned() })
}

/// An error of the directory in whole.
pub(crate) fn directory_error(path: &Path, error: WalError) -> Error {
    match error {
        WalError::UnsupportedVersion { path, magic, .. } => magic_error(&path, magic),
        WalError::Io { path, source } => io_error(path, source),
        error => Error::WalDirectory { dir: path.to_owned(), reason: error.to_string() },
    }
}

/// An error of reading a file. That of an archive was wrapped for the reader, and is taken out again.
fn io_error(path: PathBuf, source: std::io::Error) -> Error {
    match source.get_ref().and_then(|wrapped| wrapped.downcast_ref::<Arc<Error>>()).map(|error| &**error) {
        Some(Error::ArchiveUnavailable { object, reason }) => {
            Error::ArchiveUnavailable { object: object.clone(), reason: reason.clone() }
        }
        Some(Error::ArchiveUnreadable { object, reason }) => {
            Error::ArchiveUnreadable { object: object.clone(), reason: reason.clone() }
        }
        _ => Error::Io { action: "read", path, source },
    }
}

/// The error of a magic that is not read.
fn magic_error(file: &Path, magic: u16) -> Error {
    let known: Vec<String> = pg_types::PgVersion::ALL
        .into_iter()
        .map(|version| format!("{:04X} ({version})", pg_wal::WalProfile::of(version).page_magic))
        .collect();
    Error::WalMagicUnknown { file: file.display().to_string(), magic, known: known.join(", ") }
}

/// What a stream of WAL of `identity` is told that came to an end that is none.
#[must_use]
pub fn end_error(end: &WalEnd, identity: &WalIdentity) -> Error {
    // A segment of a version that is not read looks like a damaged page to the reader of another; its first page tells. It is of
    // another cluster then, for an upgrade makes a new one; the same cluster with another magic is damage.
    if let Err(WalError::UnsupportedVersion { path, magic, .. }) = WalDir::open(&end.file, None)
        && system_id_of(&path).is_some_and(|id| id != identity.system_id)
    {
        return magic_error(&path, magic);
    }
    let mut reason = end.reason.to_string();
    if end.is_missing_segment() {
        reason.push_str("; ");
        reason.push_str(MISSING_REMEDY);
    }
    Error::DataLoss { lsn: end.lsn, file: end.file.display().to_string(), reason }
}

/// What to do about a missing segment.
const MISSING_REMEDY: &str = "put it back, or start behind the gap";

/// First position of the segment that holds `lsn`.
fn segment_start(identity: &WalIdentity, lsn: Lsn) -> Lsn {
    Lsn(lsn.0 & !(u64::from(identity.segment_size) - 1))
}

/// The system identifier on a segment's first page, whatever its version.
fn system_id_of(segment: &Path) -> Option<u64> {
    let mut head = Vec::new();
    std::fs::File::open(segment).ok()?.take(u64::from(LONG_HEADER_LEN)).read_to_end(&mut head).ok()?;
    Some(PageHeader::read(&head).ok()?.long?.system_id)
}

/// An error while reading.
#[must_use]
pub fn read_error(error: WalError) -> Error {
    match error {
        WalError::Io { path, source } => io_error(path, source),
        error => Error::Internal(error.to_string()),
    }
}

/// The name of the file that holds `lsn`.
#[must_use]
pub fn segment_file(identity: &WalIdentity, lsn: Lsn) -> String {
    SegmentName::of(identity.timeline, lsn, identity.segment_size).to_string()
}
