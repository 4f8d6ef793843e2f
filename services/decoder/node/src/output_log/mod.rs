//! The output log: what was decoded, durable and in commit order, for subscribers to read at their own pace.
//!
//! The decoder decodes once; any number of subscribers read. An entry holds events as they go over the wire, so that serving
//! copies bytes and encodes nothing. One writer appends, one flusher makes durable, readers share the rest.
//!
//! # Invariants
//!
//! * **I1** Entries' ordinals count up by one, and each begins (`prev_end`) where the one before ended (`end`).
//! * **I2** Readers see complete transactions only: entries of one that is not complete stay invisible until its last entry is.
//! * **I3** A segment begins between transactions, and with the list of those of which earlier ones hold a part.
//! * **I4** What [`LogWriter::sync_point`] said was durable is there after any crash; if not, opening fails.
//! * **I5** Of what a named subscriber has not read, and of transactions that go on, all parts are kept ([`OpenTransactions`]), but for what is
//!   beyond the size limit.
//!
//! | operation | cost |
//! |---|---|
//! | append | one write of the entry |
//! | read at the end | a shared slice of memory |
//! | read behind | index step, then at most 64 KiB of entries passed over, then one read an entry |
//! | open | one pass over the last segment |

mod entry;
mod open;
mod segment;
mod writer;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pg_types::Lsn;

pub use entry::{ENTRY_HEADER_LEN, Entry, EntryBuffer, PAYLOAD_LEN_MAX};
pub use open::{Mark, OpenTransactions, Streamed, end_of};
use segment::{Read, Segment};
pub use writer::{LogWriter, SyncPoint};

/// Where the log is and how large its parts may be.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// Folder of the segments; made if missing.
    pub dir: PathBuf,
    /// A segment that is this long, in bytes, is followed by a new one at the next boundary between transactions.
    pub segment_bytes: u64,
    /// Newest entries kept in memory, in bytes.
    pub memory_bytes: usize,
    /// Kept for new subscribers even when every named one has read it, in bytes.
    pub keep_bytes: u64,
    /// Never more than this (and the segment being written), in bytes: older segments go even if a named subscriber needs them.
    pub bytes_max: u64,
}

/// The log could not be opened, written or read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The operating system refused.
    #[error("{action} {path}: {source}")]
    Io {
        /// What was tried, as a verb.
        action: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// There is no room for the next entry.
    #[error("no room to write {path}: {source}; free space on that file system or lower output_log.bytes_max")]
    Full {
        /// The segment.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// A segment is not what was written.
    #[error("{path} is damaged at byte {offset}: {reason}; {remedy}")]
    Damaged {
        /// The segment.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        reason: &'static str,
        /// What to do.
        remedy: &'static str,
    },
    /// A segment is of a format that is not known here.
    #[error(
        "{path} is of format '{}', which another version of walstorm wrote: start that one, or {remedy}",
        found.escape_default()
    )]
    Format {
        /// The segment.
        path: PathBuf,
        /// Its format.
        found: char,
        /// What to do otherwise.
        remedy: &'static str,
    },
    /// The folder belongs to another cluster.
    #[error(
        "{path} holds output of the cluster with system id {found}, but the primary serves {expected}: use another data_dir"
    )]
    OtherCluster {
        /// The segment.
        path: PathBuf,
        /// Its system id.
        found: u64,
        /// The primary's.
        expected: u64,
    },
    /// An entry is too large to be served.
    #[error("an entry of {0} bytes exceeds the limit of an output log entry")]
    TooLarge(usize),
    /// What the reader wants was removed.
    #[error("output up to {requested} is no longer kept: the oldest position is {oldest}")]
    Removed {
        /// The reader's position.
        requested: Lsn,
        /// The oldest position that can be read from.
        oldest: Lsn,
    },
    /// A checkpoint tells of output, but there is none.
    #[error("the output log in {dir} has no segment, but output up to {synced} was durable: {remedy}")]
    Gone {
        /// The log's folder.
        dir: PathBuf,
        /// Where it should end.
        synced: Lsn,
        /// What to do.
        remedy: &'static str,
    },
    /// The log does not reach a position that was reported as durable.
    #[error("the output log in {dir} ends at {end}, but {synced} was durable: {remedy}")]
    Short {
        /// The log's folder.
        dir: PathBuf,
        /// Where it ends.
        end: Lsn,
        /// Where it should.
        synced: Lsn,
        /// What to do.
        remedy: &'static str,
    },
}

impl LogError {
    /// Classifies a failed write.
    fn write(path: &Path, source: io::Error) -> Self {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        let path = path.to_owned();
        match source.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => Self::Full { path, source },
            _ => Self::Io { action: "write", path, source },
        }
    }
}

/// Advice for a log that lost what was durable.
pub(crate) const REBUILD_REMEDY: &str = "stop the decoder, move its data_dir away, drop its slot and start again; subscribers then \
     resume from what the primary still keeps";

/// The part that readers share with the writer.
#[derive(Debug)]
struct Shared {
    /// All segments, oldest first; never empty.
    segments: VecDeque<Arc<Segment>>,
    /// The newest visible entries, oldest first, without gap up to the visible end.
    recent: VecDeque<Entry>,
    /// Bytes of payload in `recent`.
    recent_bytes: usize,
    /// Ordinal of the first entry that readers do not see yet.
    visible: u64,
    /// Complete and visible up to here.
    end: Lsn,
    /// After which position all parts came of the transactions that go on there; [`None`] if there are none.
    open_start: Option<Lsn>,
    /// Bytes in all segments.
    bytes: u64,
}

/// The log as readers see it.
#[derive(Debug)]
pub struct OutputLog {
    /// Limits.
    config: LogConfig,
    /// Held for moments only, never while reading or writing a file.
    shared: Mutex<Shared>,
}

/// A reader's place: which entry comes next. Each subscriber owns one.
#[derive(Clone, Debug)]
pub struct Cursor {
    /// Ordinal of the next entry.
    next: u64,
    /// Everything at or below this was passed.
    prev_end: Lsn,
    /// Where the entry is, if it was read from a file last time.
    place: Option<(Arc<Segment>, u64)>,
}

impl Cursor {
    /// Ordinal of the next entry.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Everything at or below this was passed.
    #[must_use]
    pub fn position(&self) -> Lsn {
        self.prev_end
    }
}

/// What [`OutputLog::recent`] says.
#[derive(Debug)]
pub enum Recent {
    /// Entries from memory; empty if the reader is at the end.
    Entries(Vec<Entry>),
    /// The next entry is in files only: call [`OutputLog::read`] where blocking is allowed.
    OnDisk,
}

impl OutputLog {
    /// Opens the log in `config.dir`, or begins one at `begin`. A torn tail, as a crash leaves it, is cut off and told in the log.
    ///
    /// `synced` is what a checkpoint says was durable: a log that ends before it, or is not there, is damaged. Without a checkpoint
    /// the log may not have begun.
    ///
    /// # Errors
    ///
    /// Any [`LogError`] but `Removed`.
    pub fn open(
        config: LogConfig,
        system_id: u64,
        begin: Lsn,
        synced: Option<Lsn>,
    ) -> Result<(LogWriter, Arc<Self>), LogError> {
        writer::open(config, system_id, begin, synced)
    }

    /// The visible end: everything that ends at or below it can be read.
    #[must_use]
    pub fn end(&self) -> Lsn {
        self.lock().end
    }

    /// The oldest position from which one can read.
    #[must_use]
    pub fn oldest(&self) -> Lsn {
        self.lock().segments.front().map_or(Lsn::INVALID, |s| s.base)
    }

    /// Bytes on disk.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// A cursor at the first entry that has something after `position`; that entry may begin with things before it.
    ///
    /// # Errors
    ///
    /// [`LogError::Removed`], or a segment that cannot be read.
    pub fn seek(&self, position: Lsn) -> Result<Cursor, LogError> {
        let segment = {
            let shared = self.lock();
            let oldest = shared.segments.front().map_or(Lsn::INVALID, |s| s.base);
            if position < oldest {
                return Err(LogError::Removed { requested: position, oldest });
            }
            if let Some(cursor) = shared.seek_recent(position) {
                return Ok(cursor);
            }
            let i = shared.segments.partition_point(|s| s.base <= position);
            i.checked_sub(1).and_then(|i| shared.segments.get(i)).cloned()
        };
        let Some(segment) = segment else { return Err(LogError::Removed { requested: position, oldest: self.oldest() }) };
        let walk = self.walk(&segment, |_, prev_end| prev_end <= position, |entry| entry.end <= position)?;
        Ok(walk.transaction)
    }

    /// The next entries after `cursor`, if memory has them, up to `bytes_max` of payload but at least one; moves the cursor.
    pub fn recent(&self, cursor: &mut Cursor, bytes_max: usize) -> Recent {
        let shared = self.lock();
        if cursor.next >= shared.visible {
            return Recent::Entries(Vec::new());
        }
        let Some(skip) = shared.recent.front().and_then(|first| cursor.next.checked_sub(first.ordinal)) else {
            return Recent::OnDisk;
        };
        let mut bytes = 0;
        let mut entries = Vec::new();
        for entry in shared.recent.iter().skip(usize::try_from(skip).unwrap_or(usize::MAX)) {
            bytes += entry.payload.len();
            if !entries.is_empty() && bytes > bytes_max {
                break;
            }
            entries.push(entry.clone());
        }
        if let Some(last) = entries.last() {
            *cursor = Cursor { next: last.ordinal + 1, prev_end: last.end, place: None };
        }
        Recent::Entries(entries)
    }

    /// The next entries after `cursor`, from files; like [`OutputLog::recent`] otherwise. Blocks.
    ///
    /// # Errors
    ///
    /// [`LogError::Removed`] when the reader fell behind what is kept; [`LogError::Damaged`] or [`LogError::Io`].
    pub fn read(&self, cursor: &mut Cursor, bytes_max: usize) -> Result<Vec<Entry>, LogError> {
        let visible = self.lock().visible;
        let mut entries = Vec::new();
        let mut bytes = 0;
        while cursor.next < visible {
            let (entry, segment, offset) = match self.read_one(cursor) {
                Ok(read) => read,
                // What was read goes out first; who comes for more is told.
                Err(_) if !entries.is_empty() => break,
                Err(error) => return Err(error),
            };
            bytes += entry.payload.len();
            if !entries.is_empty() && bytes > bytes_max {
                break;
            }
            let after = offset + (ENTRY_HEADER_LEN + entry.payload.len()) as u64;
            *cursor = Cursor { next: entry.ordinal + 1, prev_end: entry.end, place: Some((segment, after)) };
            entries.push(entry);
        }
        Ok(entries)
    }

    /// The entry after `cursor`, from its file; with its segment and its offset there.
    fn read_one(&self, cursor: &Cursor) -> Result<(Entry, Arc<Segment>, u64), LogError> {
        let (segment, offset) = self.place(cursor)?;
        match segment.read_entry(offset, cursor.next, cursor.prev_end)? {
            Read::Entry(entry) => Ok((entry, segment, offset)),
            Read::Nothing => Err(damaged(&segment, offset, "an entry is missing")),
            Read::Bad(reason) => Err(damaged(&segment, offset, reason)),
        }
    }

    /// Transactions that the log holds a part of at `position`, and what it holds of them. Blocks.
    ///
    /// # Errors
    ///
    /// [`LogError::Removed`], or a segment that cannot be read.
    pub fn open_at(&self, position: Lsn) -> Result<OpenTransactions, LogError> {
        let (segment, visible) = {
            let shared = self.lock();
            let i = shared.segments.partition_point(|s| s.base <= position);
            (i.checked_sub(1).and_then(|i| shared.segments.get(i)).cloned(), shared.visible)
        };
        let Some(segment) = segment else { return Err(LogError::Removed { requested: position, oldest: self.oldest() }) };
        let (mut open, mut marks) = (segment.open.clone(), Vec::new());
        let (mut offset, mut next, mut prev_end) = (segment.header_len, segment.first_ordinal, segment.base);
        while next < visible && prev_end < position {
            let Read::Entry(entry) = segment.read_entry(offset, next, prev_end)? else { break };
            // What a part before began may end in an entry that has nothing of its own in progress.
            if entry.in_progress || !marks.is_empty() {
                let read = open.read(&mut marks, &entry, position);
                read.map_err(|_| damaged(&segment, offset, "its payload is none"))?;
            }
            offset += (ENTRY_HEADER_LEN + entry.payload.len()) as u64;
            (next, prev_end) = (entry.ordinal + 1, entry.end);
        }
        Ok(open)
    }

    /// Removes segments that nobody needs, given the oldest position that a named subscriber still has to read from, and those
    /// beyond the size limit. Tells how many went.
    ///
    /// # Errors
    ///
    /// [`LogError::Io`] when a file could not be removed.
    pub fn trim(&self, needed: Option<Lsn>) -> Result<usize, LogError> {
        let mut removed = 0;
        loop {
            let first = {
                let mut shared = self.lock();
                let Some(next_base) = shared.segments.get(1).map(|s| s.base) else { return Ok(removed) };
                let unneeded = shared.is_unneeded(next_base, needed) && shared.bytes > self.config.keep_bytes;
                if !unneeded && shared.bytes <= self.config.bytes_max {
                    return Ok(removed);
                }
                let Some(first) = shared.segments.pop_front() else { return Ok(removed) };
                shared.bytes = shared.bytes.saturating_sub(first.file.metadata().map_or(0, |m| m.len()));
                first
            };
            let io = |source| LogError::Io { action: "remove", path: first.path.clone(), source };
            std::fs::remove_file(&first.path).map_err(io)?;
            removed += 1;
        }
    }

    /// The segment and offset of the cursor's entry.
    fn place(&self, cursor: &Cursor) -> Result<(Arc<Segment>, u64), LogError> {
        let segment = {
            let shared = self.lock();
            let i = shared.segments.partition_point(|s| s.first_ordinal <= cursor.next);
            i.checked_sub(1).and_then(|i| shared.segments.get(i)).cloned()
        };
        let Some(segment) = segment else {
            return Err(LogError::Removed { requested: cursor.prev_end, oldest: self.oldest() });
        };
        if let Some((known, offset)) = cursor.place.as_ref().filter(|(known, _)| Arc::ptr_eq(known, &segment)) {
            return Ok((Arc::clone(known), *offset));
        }
        let next = cursor.next;
        let walk = self.walk(&segment, |ordinal, _| ordinal <= next, |entry| entry.ordinal < next)?;
        walk.entry.place.ok_or(LogError::Removed { requested: cursor.prev_end, oldest: self.oldest() })
    }

    /// Walks to the first visible entry of `segment` that is not `passed`, from where the index says.
    fn walk(
        &self,
        segment: &Arc<Segment>,
        before: impl Fn(u64, Lsn) -> bool,
        passed: impl Fn(&Entry) -> bool,
    ) -> Result<Walk, LogError> {
        let visible = self.lock().visible;
        let (mut offset, mut next, mut prev_end) = segment.seek(before);
        let mut transaction = (offset, next, prev_end);
        while next < visible {
            match segment.read_entry(offset, next, prev_end)? {
                Read::Entry(entry) if passed(&entry) => {
                    if next == transaction.1 {
                        segment.note(&entry, offset);
                    }
                    offset += (ENTRY_HEADER_LEN + entry.payload.len()) as u64;
                    next += 1;
                    prev_end = entry.end;
                    if !entry.is_fragment() {
                        transaction = (offset, next, prev_end);
                    }
                }
                // The end of a segment that has a successor: the cursor's entry is that one's first.
                Read::Entry(_) | Read::Nothing => break,
                Read::Bad(reason) => return Err(damaged(segment, offset, reason)),
            }
        }
        let cursor = |(offset, next, prev_end)| Cursor { next, prev_end, place: Some((Arc::clone(segment), offset)) };
        Ok(Walk { entry: cursor((offset, next, prev_end)), transaction: cursor(transaction) })
    }

    /// The shared part. Nothing in here panics while holding it; if something did, the data are still whole.
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a walk ended.
#[derive(Debug)]
struct Walk {
    /// At the first entry that was not passed.
    entry: Cursor,
    /// At the first entry of that entry's transaction, which differs for a transaction of several entries.
    transaction: Cursor,
}

impl Shared {
    /// A cursor at the first entry of the first transaction that ends after `position`, if memory has all from there on.
    fn seek_recent(&self, position: Lsn) -> Option<Cursor> {
        let first = self.recent.front().filter(|first| first.prev_end <= position)?;
        let mut at = self.recent.partition_point(|e| e.end <= position);
        while at > 0 && self.recent.get(at - 1).is_some_and(Entry::is_fragment) {
            at -= 1;
        }
        let prev_end = self.recent.get(at).map_or(self.end, |e| e.prev_end);
        Some(Cursor { next: first.ordinal + at as u64, prev_end, place: None })
    }

    /// Whether what ends before `next_base` is needed neither by who reads on from `needed`, nor by who will read the end of a
    /// transaction that goes on.
    fn is_unneeded(&self, next_base: Lsn, needed: Option<Lsn>) -> bool {
        let behind = needed.filter(|needed| *needed < self.end);
        let parts = behind.and_then(|needed| {
            let i = self.segments.partition_point(|s| s.base <= needed);
            i.checked_sub(1).and_then(|i| self.segments.get(i)).and_then(|s| s.open.start())
        });
        [needed, parts, self.open_start].into_iter().flatten().all(|start| next_base <= start)
    }

    /// Takes entries that readers may see now; drops the oldest from memory beyond `bytes_max`, whole transactions at a time.
    fn publish(&mut self, entries: impl IntoIterator<Item = Entry>, bytes_max: usize) {
        for entry in entries {
            self.visible = entry.ordinal + 1;
            self.end = entry.end;
            self.recent_bytes += entry.payload.len();
            self.recent.push_back(entry);
        }
        let mut inside = false;
        while inside || self.recent_bytes > bytes_max {
            let Some(dropped) = self.recent.pop_front() else { break };
            self.recent_bytes -= dropped.payload.len();
            inside = dropped.is_fragment();
        }
    }
}

/// Damage inside a segment.
fn damaged(segment: &Segment, offset: u64, reason: &'static str) -> LogError {
    LogError::Damaged { path: segment.path.clone(), offset, reason, remedy: REBUILD_REMEDY }
}

#[cfg(test)]
mod tests;
