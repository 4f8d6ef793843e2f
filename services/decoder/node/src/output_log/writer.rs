//! Opening, recovering and appending: the writer's side of the output log.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use pg_types::Lsn;

use super::entry::{Entry, EntryBuffer, PAYLOAD_LEN_MAX};
use super::open::{Mark, OpenTransactions};
use super::segment::{FORMAT, Segment};
use super::{LogConfig, LogError, OutputLog, REBUILD_REMEDY, Shared};
use crate::durable_file::sync_dir;

/// Appends to the log; there is one. Made and used on the decoding thread.
#[derive(Debug)]
pub struct LogWriter {
    /// What readers see.
    log: Arc<OutputLog>,
    /// The last segment.
    segment: Arc<Segment>,
    /// Where the next entry goes in it.
    offset: u64,
    /// The next entry's ordinal.
    next_ordinal: u64,
    /// Complete up to here.
    end: Lsn,
    /// Written entries of a transaction that is not complete.
    pending: Vec<Entry>,
    /// Where those begin: the offset to go back to when they are given up.
    pending_offset: u64,
    /// Transactions that the log holds a part of, up to `end`.
    open: OpenTransactions,
    /// Marks of `pending`.
    pending_marks: Vec<Mark>,
    /// The cluster whose output this is.
    system_id: u64,
}

/// A state of the log that can be made durable while the writer goes on.
#[derive(Clone, Debug)]
pub struct SyncPoint {
    /// The segment that was last when the point was taken; all before it are durable already.
    segment: Arc<Segment>,
    /// What is durable once [`SyncPoint::sync`] returned.
    pub end: Lsn,
}

impl SyncPoint {
    /// Flushes to the disk. Blocks.
    ///
    /// # Errors
    ///
    /// [`LogError::Io`] or [`LogError::Full`]. The state of the file is then unknown: the log has to be opened anew.
    pub fn sync(&self) -> Result<(), LogError> {
        self.segment.file.sync_data().map_err(|e| LogError::write(&self.segment.path, e))
    }
}

impl LogWriter {
    /// Appends an entry that completes everything up to `end`, and shows it and the fragments before it to readers.
    ///
    /// # Errors
    ///
    /// [`LogError::Full`], [`LogError::Io`], [`LogError::TooLarge`]; readers then see nothing of it, and the same entry may be
    /// appended again.
    ///
    /// # Panics
    ///
    /// If `end` does not lie after the log's end: the caller's order of commits is wrong.
    pub fn append(&mut self, buffer: EntryBuffer, end: Lsn, items: u32) -> Result<(), LogError> {
        assert!(end > self.end, "an entry ending at {end} cannot follow the log's end {}", self.end);
        if self.is_full() {
            self.rotate()?;
        }
        let marks = buffer.marks();
        let entry = self.write(buffer, end, items)?;
        for mark in self.pending_marks.drain(..).chain(marks) {
            self.open.apply(mark, self.end);
        }
        self.end = end;
        let fragments = std::mem::take(&mut self.pending);
        self.pending_offset = self.offset;
        let mut shared = self.log.lock();
        shared.open_start = self.open.start();
        shared.publish(fragments.into_iter().chain([entry]), self.log.config.memory_bytes);
        Ok(())
    }

    /// Appends a part of one transaction that goes on in the next entry; readers do not see it until the rest is there.
    ///
    /// # Errors
    ///
    /// As [`LogWriter::append`].
    pub fn append_fragment(&mut self, buffer: EntryBuffer) -> Result<(), LogError> {
        if self.is_full() {
            self.rotate()?;
        }
        let marks = buffer.marks();
        let entry = self.write(buffer, self.end, 0)?;
        self.pending_marks.extend(marks);
        self.pending.push(entry);
        Ok(())
    }

    /// Gives up the fragments of a transaction that will not be completed.
    pub fn discard_fragments(&mut self) {
        self.next_ordinal -= self.pending.len() as u64;
        self.pending.clear();
        self.pending_marks.clear();
        self.log.lock().bytes -= self.offset - self.pending_offset;
        self.offset = self.pending_offset;
        // Best effort: recovery cuts debris off as well.
        drop(self.segment.file.set_len(self.offset));
    }

    /// Complete up to here.
    #[must_use]
    pub fn end(&self) -> Lsn {
        self.end
    }

    /// Transactions that the log holds a part of.
    #[must_use]
    pub fn open_transactions(&self) -> &OpenTransactions {
        &self.open
    }

    /// What to flush so that everything appended so far is durable.
    #[must_use]
    pub fn sync_point(&self) -> SyncPoint {
        SyncPoint { segment: Arc::clone(&self.segment), end: self.end }
    }

    /// Writes one entry at the offset. On failure the offset stays, so that a later entry overwrites the debris.
    fn write(&mut self, buffer: EntryBuffer, end: Lsn, items: u32) -> Result<Entry, LogError> {
        use std::os::unix::fs::FileExt;
        if buffer.payload_len() > PAYLOAD_LEN_MAX {
            return Err(LogError::TooLarge(buffer.payload_len()));
        }
        let (whole, entry) = buffer.seal(self.next_ordinal, self.end, end, items);
        if let Err(source) = self.segment.file.write_all_at(&whole, self.offset) {
            // Best effort: recovery cuts debris off as well.
            drop(self.segment.file.set_len(self.offset));
            return Err(LogError::write(&self.segment.path, source));
        }
        if self.pending.is_empty() {
            self.segment.note(&entry, self.offset);
        }
        self.offset += whole.len() as u64;
        self.next_ordinal += 1;
        self.log.lock().bytes += whole.len() as u64;
        Ok(entry)
    }

    /// Whether the next unit begins a segment: the last one is full, or of an older format. An empty one of that is filled all the same,
    /// since its name is that of the next.
    fn is_full(&self) -> bool {
        let begun = self.next_ordinal > self.segment.first_ordinal;
        let old = begun && self.segment.format != FORMAT;
        self.pending.is_empty() && (old || self.offset >= self.log.config.segment_bytes)
    }

    /// Makes the last segment durable and begins the next one.
    fn rotate(&mut self) -> Result<(), LogError> {
        self.sync_point().sync()?;
        let dir = &self.log.config.dir;
        self.segment = create_segment(dir, self.system_id, self.next_ordinal, self.end, self.open.clone())?;
        self.offset = self.segment.header_len;
        self.pending_offset = self.offset;
        let mut shared = self.log.lock();
        shared.bytes += self.offset;
        shared.segments.push_back(Arc::clone(&self.segment));
        Ok(())
    }
}

/// See [`OutputLog::open`].
pub(super) fn open(
    config: LogConfig,
    system_id: u64,
    begin: Lsn,
    synced: Option<Lsn>,
) -> Result<(LogWriter, Arc<OutputLog>), LogError> {
    let dir = config.dir.clone();
    DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(|e| io_at("create", &dir, e))?;
    let mut segments = open_segments(&dir, system_id, synced.is_some())?;
    let last = match (segments.back(), synced) {
        (Some(last), _) => Arc::clone(last),
        // A log is begun before the first checkpoint is written.
        (None, Some(synced)) => return Err(LogError::Gone { dir, synced, remedy: REBUILD_REMEDY }),
        (None, None) => {
            let first = create_segment(&dir, system_id, 0, begin, OpenTransactions::default())?;
            segments.push_back(Arc::clone(&first));
            first
        }
    };
    let scan = last.scan()?;
    if let Some(synced) = synced
        && scan.end < synced
    {
        return Err(LogError::Short { dir, end: scan.end, synced, remedy: REBUILD_REMEDY });
    }
    if let Some(reason) = scan.bad {
        let (file, at) = (last.path.display(), scan.good_len);
        tracing::warn!("cut the output log {file} at byte {at}, where {reason}; its end is now {}", scan.end);
        let cut = last.file.set_len(scan.good_len).and_then(|()| last.file.sync_all());
        cut.map_err(|e| io_at("cut", &last.path, e))?;
    }
    let bytes = segments.iter().map(|s| s.file.metadata().map_or(0, |m| m.len())).sum();
    let (visible, end, open_start) = (scan.next_ordinal, scan.end, scan.open.start());
    let shared = Shared { segments, recent: VecDeque::new(), recent_bytes: 0, visible, end, open_start, bytes };
    let log = Arc::new(OutputLog { config, shared: Mutex::new(shared) });
    let writer = LogWriter {
        log: Arc::clone(&log),
        segment: last,
        offset: scan.good_len,
        next_ordinal: visible,
        end,
        pending: Vec::new(),
        pending_offset: scan.good_len,
        open: scan.open,
        pending_marks: Vec::new(),
        system_id,
    };
    Ok((writer, log))
}

/// Opens the segments of `dir` in order. A last one with a torn header, as a crash while making it leaves, is removed; but not if the
/// log has `begun` and the file holds more than a header: that was output.
fn open_segments(dir: &Path, system_id: u64, begun: bool) -> Result<VecDeque<Arc<Segment>>, LogError> {
    let mut paths = Vec::new();
    for item in fs::read_dir(dir).map_err(|e| io_at("list", dir, e))? {
        let path = item.map_err(|e| io_at("list", dir, e))?.path();
        if Segment::ordinal_of(&path).is_some() {
            paths.push(path);
        }
    }
    paths.sort();
    let mut segments: VecDeque<Arc<Segment>> = VecDeque::with_capacity(paths.len());
    for (i, path) in paths.iter().enumerate() {
        match Segment::open(path, system_id)? {
            Some(segment) => segments.push_back(Arc::new(segment)),
            None if i + 1 == paths.len() && (!begun || file_len(path)? <= header_len(path)?) => {
                tracing::warn!("removed {}, whose header is torn: it was being made at a crash", path.display());
                fs::remove_file(path).map_err(|e| io_at("remove", path, e))?;
            }
            None => {
                let (path, reason) = (path.clone(), "its header is no segment header");
                return Err(LogError::Damaged { path, offset: 0, reason, remedy: REBUILD_REMEDY });
            }
        }
    }
    Ok(segments)
}

/// Bytes of a file.
fn file_len(path: &Path) -> Result<u64, LogError> {
    fs::metadata(path).map(|found| found.len()).map_err(|e| io_at("look at", path, e))
}

/// Bytes of its header, as far as the file tells.
fn header_len(path: &Path) -> Result<u64, LogError> {
    Segment::header_len_of(path).map_err(|e| io_at("read", path, e))
}

/// Makes a segment that survives a crash.
fn create_segment(
    dir: &Path,
    system_id: u64,
    first_ordinal: u64,
    base: Lsn,
    open: OpenTransactions,
) -> Result<Arc<Segment>, LogError> {
    let create = || -> io::Result<Segment> {
        let segment = Segment::create(dir, system_id, first_ordinal, base, open)?;
        segment.file.sync_all()?;
        sync_dir(dir)?;
        Ok(segment)
    };
    let path: PathBuf = Segment::path_of(dir, first_ordinal);
    create().map(Arc::new).map_err(|e| LogError::write(&path, e))
}

/// An I/O error with what was tried and where.
fn io_at(action: &'static str, path: &Path, source: io::Error) -> LogError {
    LogError::Io { action, path: path.to_owned(), source }
}
