//! Writes a log as PostgreSQL does: segments, page headers, contrecords (`access/transam/xlog.c`: `ReserveXLogInsertLocation`,
//! `CopyXLogRecordToWAL`, `XLogWrite`; `access/xlog_internal.h`).
//!
//! A log is one stream of bytes, cut into pages of 8 kB and segment files. Every page starts with a header, so a record that
//! crosses into the next page is interrupted by one, and the header says how many of the record's bytes still follow. Every
//! record starts at an 8-byte boundary and points back to the record before it, so a reader can tell a record from old bytes.
//!
//! **Invariants**
//! - I1: [`WalWriter::next_lsn`] is where the next record starts: 8-aligned, never inside a page header.
//! - I2: bytes before the flushed position never change again; bytes after the last record in its segment are 0.
//! - I3: an existing segment file is never opened for writing, but by [`WalWriter::resume`] at its stated end.
//! - I4: after a failed write nothing more is accepted: what the file holds is unknown (the server would stop).
//!
//! Cost: a record is encoded once and copied once; a file is written in pieces of [`BUFFER_LEN`] or at [`WalWriter::flush`].
//!
//! Differences from PostgreSQL: one inserter, so no insertion locks; segments are made by `ftruncate`, not filled with zeroes;
//! pages behind a switch record are holes.

mod config;
mod log_end;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use pg_types::{Lsn, RecordBody, Xid};

use crate::encode::{Encoder, seal};
use crate::page::{FIRST_IS_CONTRECORD, LONG_HEADER, LONG_HEADER_LEN, PAGE_SIZE, PageHeader, next_record_start};
use crate::profile::WalProfile;
use crate::segment::SegmentName;

pub use config::{WriteError, WriterConfig};
pub use log_end::LogEnd;

use log_end::find_end;

/// Bytes of a page.
const PAGE_LEN: u64 = PAGE_SIZE as u64;
/// Bytes kept back before they go to the file on their own.
pub const BUFFER_LEN: usize = 256 * 1024;

/// The open log.
#[derive(Debug)]
pub struct WalWriter {
    /// Where the segments are.
    dir: PathBuf,
    /// Checked configuration.
    config: WriterConfig,
    /// Makes the bytes of records.
    encoder: Encoder,
    /// The record being written.
    record: Vec<u8>,
    /// Bytes that are not in a file yet. They lie in one segment.
    buffer: Vec<u8>,
    /// Position of the buffer's first byte.
    buffer_start: Lsn,
    /// The segment that holds `buffer_start`; none before its first byte.
    segment: Option<Segment>,
    /// Start of the last record, 0 before the first.
    prev: Lsn,
    /// Everything before is in files (not necessarily on disk).
    flushed: Lsn,
    /// A write failed (I4).
    failed: bool,
}

/// An open segment file.
#[derive(Debug)]
struct Segment {
    /// The file.
    file: File,
    /// Its path, for errors.
    path: PathBuf,
}

impl WalWriter {
    /// Begins a log in `dir`, which must exist. The first file appears with the first record.
    ///
    /// # Errors
    /// [`WriteError::BadConfig`].
    pub fn create(dir: impl Into<PathBuf>, config: WriterConfig) -> Result<WalWriter, WriteError> {
        let config = config.checked()?;
        Ok(WalWriter::at(dir.into(), config, LogEnd { end: config.start, prev: Lsn::INVALID }))
    }

    /// Continues the log in `dir`, or begins one if the directory has no segments.
    ///
    /// The log must end properly (at a switch or in zeroes); what a crash may leave behind is not mended here.
    ///
    /// # Errors
    /// As [`WalWriter::resume`], and [`WriteError::Unreadable`].
    pub fn open(dir: impl Into<PathBuf>, config: WriterConfig) -> Result<WalWriter, WriteError> {
        let dir = dir.into();
        match find_end(&dir)? {
            Some(end) => WalWriter::resume(dir, config, end),
            None => WalWriter::create(dir, config),
        }
    }

    /// Continues the log in `dir` behind its last valid record. What lies behind it in its segment is erased.
    ///
    /// Where a log ends is a reader's finding; a torn tail is not looked into here.
    ///
    /// # Errors
    /// [`WriteError::BadConfig`]; [`WriteError::WrongSegment`] if the segment is of another log or too short; [`WriteError::Io`].
    pub fn resume(dir: impl Into<PathBuf>, config: WriterConfig, at: LogEnd) -> Result<WalWriter, WriteError> {
        let config = config.checked()?;
        let mut writer = WalWriter::at(dir.into(), config, LogEnd { end: at.end.align(), prev: at.prev });
        let offset = writer.segment_offset(writer.buffer_start);
        if offset > 0 {
            writer.segment = Some(writer.reopen_segment(offset)?);
        }
        Ok(writer)
    }

    /// A writer at a position, without a file.
    fn at(dir: PathBuf, config: WriterConfig, at: LogEnd) -> WalWriter {
        WalWriter {
            dir,
            config,
            encoder: Encoder::new(config.version),
            record: Vec::new(),
            buffer: Vec::new(),
            buffer_start: at.end,
            segment: None,
            prev: at.prev,
            flushed: at.end,
            failed: false,
        }
    }

    /// Where the next record will start.
    #[must_use]
    pub fn next_lsn(&self) -> Lsn {
        next_record_start(self.end_lsn(), self.config.segment_size)
    }

    /// First byte after the last record, aligned; at a page's end the page's end.
    #[must_use]
    pub fn end_lsn(&self) -> Lsn {
        Lsn(self.buffer_start.0 + self.buffer.len() as u64)
    }

    /// Everything before this position is in files.
    #[must_use]
    pub fn flushed_lsn(&self) -> Lsn {
        self.flushed
    }

    /// The configuration of the log.
    #[must_use]
    pub fn config(&self) -> &WriterConfig {
        &self.config
    }

    /// Appends one record; its first byte and the first byte after it, aligned, come back.
    ///
    /// A [`RecordBody::Switch`] also ends its segment, and the end that comes back is the segment's; at the very start of a
    /// segment there is nothing to end, so nothing is written and both positions are that start.
    ///
    /// # Errors
    /// [`WriteError::Encode`] leaves the log as it was; after any other error it is closed.
    pub fn append(&mut self, xid: Xid, top_xid: Xid, origin: u16, body: &RecordBody) -> Result<(Lsn, Lsn), WriteError> {
        self.check_open()?;
        let switch = matches!(body, RecordBody::Switch);
        if switch && self.segment_offset(self.end_lsn()) == 0 {
            return Ok((self.end_lsn(), self.end_lsn()));
        }
        let mut record = std::mem::take(&mut self.record);
        let result = self.encoder.encode(xid, top_xid, origin, body, &mut record).map_err(WriteError::from).and_then(|()| {
            let start = self.next_lsn();
            seal(&mut record, self.prev);
            self.prev = start;
            self.failing(|w| w.copy(&record).and_then(|()| if switch { w.end_segment() } else { Ok(()) }))?;
            Ok((start, self.end_lsn()))
        });
        self.record = record;
        result
    }

    /// Ends the segment by a switch record, so that the next record starts a new file (`RequestXLogSwitch`).
    ///
    /// # Errors
    /// As [`WalWriter::append`].
    pub fn switch(&mut self) -> Result<(Lsn, Lsn), WriteError> {
        self.append(Xid::INVALID, Xid::INVALID, 0, &RecordBody::Switch)
    }

    /// Puts everything into files, and on disk if so configured. Gives the position up to which that is true.
    ///
    /// # Errors
    /// [`WriteError::Io`]; [`WriteError::Closed`].
    pub fn flush(&mut self) -> Result<Lsn, WriteError> {
        self.check_open()?;
        self.failing(WalWriter::write_buffer)?;
        if self.config.sync {
            self.failing(WalWriter::sync_segment)?;
        }
        Ok(self.flushed)
    }

    /// Flushes to disk and closes. The last segment keeps a zeroed tail.
    ///
    /// # Errors
    /// As [`WalWriter::flush`].
    pub fn finish(mut self) -> Result<Lsn, WriteError> {
        self.config.sync = true;
        self.flush()
    }

    /// I4.
    fn check_open(&self) -> Result<(), WriteError> {
        if self.failed { Err(WriteError::Closed { dir: self.dir.clone() }) } else { Ok(()) }
    }

    /// Runs `op` and closes the log if it fails (I4).
    fn failing(&mut self, op: impl FnOnce(&mut WalWriter) -> Result<(), WriteError>) -> Result<(), WriteError> {
        let result = op(self);
        self.failed |= result.is_err();
        result
    }

    /// `CopyXLogRecordToWAL`: copies the record, with a header wherever a page starts, and pads it to 8 bytes.
    fn copy(&mut self, record: &[u8]) -> Result<(), WriteError> {
        let mut rest = record;
        while !rest.is_empty() {
            if self.end_lsn().0.is_multiple_of(PAGE_LEN) {
                let remaining = if rest.len() < record.len() { rest.len() as u32 } else { 0 };
                self.start_page(remaining)?;
            }
            let room = (PAGE_LEN - self.end_lsn().0 % PAGE_LEN) as usize;
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.buffer.extend_from_slice(now);
            rest = later;
        }
        let padding = self.end_lsn().align().0 - self.end_lsn().0;
        self.buffer.resize(self.buffer.len() + padding as usize, 0);
        Ok(())
    }

    /// Writes a page header; `remaining` bytes of an interrupted record follow it.
    fn start_page(&mut self, remaining: u32) -> Result<(), WriteError> {
        let at = self.end_lsn();
        let first = self.segment_offset(at) == 0;
        if first {
            self.write_buffer()?;
            self.sync_segment()?;
            self.segment = Some(self.create_segment(at)?);
        } else if self.buffer.len() >= BUFFER_LEN {
            self.write_buffer()?;
        }
        let info = if remaining > 0 { FIRST_IS_CONTRECORD } else { 0 } | if first { LONG_HEADER } else { 0 };
        let buffer = &mut self.buffer;
        buffer.extend_from_slice(&WalProfile::of(self.config.version).page_magic.to_le_bytes());
        buffer.extend_from_slice(&info.to_le_bytes());
        buffer.extend_from_slice(&self.config.timeline.to_le_bytes());
        buffer.extend_from_slice(&at.0.to_le_bytes());
        buffer.extend_from_slice(&remaining.to_le_bytes());
        buffer.extend_from_slice(&[0; 4]);
        if first {
            buffer.extend_from_slice(&self.config.system_id.to_le_bytes());
            buffer.extend_from_slice(&self.config.segment_size.to_le_bytes());
            buffer.extend_from_slice(&(PAGE_LEN as u32).to_le_bytes());
        }
        Ok(())
    }

    /// Skips to the end of the segment; what is skipped stays 0.
    fn end_segment(&mut self) -> Result<(), WriteError> {
        self.write_buffer()?;
        let size = u64::from(self.config.segment_size);
        self.buffer_start = Lsn(self.buffer_start.0.next_multiple_of(size));
        self.flushed = self.buffer_start;
        Ok(())
    }

    /// Writes the buffer to its segment.
    fn write_buffer(&mut self) -> Result<(), WriteError> {
        if let (false, Some(segment)) = (self.buffer.is_empty(), &self.segment) {
            let offset = self.segment_offset(self.buffer_start);
            let written = segment.file.write_all_at(&self.buffer, offset);
            written.map_err(|source| WriteError::Io { action: "write", path: segment.path.clone(), source })?;
        }
        self.buffer_start = self.end_lsn();
        self.buffer.clear();
        self.flushed = self.buffer_start;
        Ok(())
    }

    /// Waits until the open segment is on disk.
    fn sync_segment(&mut self) -> Result<(), WriteError> {
        match &self.segment {
            Some(segment) if self.config.sync => {
                let synced = segment.file.sync_data();
                synced.map_err(|source| WriteError::Io { action: "sync", path: segment.path.clone(), source })
            }
            _ => Ok(()),
        }
    }

    /// A new segment file that starts at `at`, all zeroes, readable by its owner only.
    fn create_segment(&self, at: Lsn) -> Result<Segment, WriteError> {
        let path = self.segment_path(at);
        let opened = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = opened.map_err(|source| match source.kind() {
            io::ErrorKind::AlreadyExists => WriteError::SegmentExists { path: path.clone() },
            _ => WriteError::Io { action: "create", path: path.clone(), source },
        })?;
        let sized = file.set_len(u64::from(self.config.segment_size));
        sized.map_err(|source| WriteError::Io { action: "size", path: path.clone(), source })?;
        if self.config.sync {
            let synced = File::open(&self.dir).and_then(|dir| dir.sync_all());
            synced.map_err(|source| WriteError::Io { action: "sync", path: self.dir.clone(), source })?;
        }
        Ok(Segment { file, path })
    }

    /// The segment file to continue at `offset`: checked against the configuration and erased from there on.
    fn reopen_segment(&self, offset: u64) -> Result<Segment, WriteError> {
        let path = self.segment_path(self.buffer_start);
        let io_error = |action| {
            let path = path.clone();
            move |source| WriteError::Io { action, path, source }
        };
        let file = OpenOptions::new().read(true).write(true).open(&path).map_err(io_error("open"))?;
        let mut page = [0; LONG_HEADER_LEN as usize];
        file.read_exact_at(&mut page, 0).map_err(io_error("read"))?;
        let header = PageHeader::read(&page).map_err(|malformed| self.wrong_segment(&path, malformed.to_string()))?;
        let config = &self.config;
        let found = (header.magic, header.timeline, header.long.map(|long| (long.system_id, long.segment_size)));
        let magic = WalProfile::of(config.version).page_magic;
        let expected = (magic, config.timeline, Some((config.system_id, config.segment_size)));
        if found != expected {
            let what =
                format!("its page magic, timeline, (system identifier, segment size) are {found:X?}, expected {expected:X?}");
            return Err(self.wrong_segment(&path, what));
        }
        let len = file.metadata().map_err(io_error("stat"))?.len();
        if len < offset {
            let what = format!("it has {len} bytes, but the log is said to end at byte {offset} of it");
            return Err(self.wrong_segment(&path, what));
        }
        file.set_len(offset).map_err(io_error("truncate"))?;
        file.set_len(u64::from(config.segment_size)).map_err(io_error("size"))?;
        Ok(Segment { file, path })
    }

    /// The error for a segment of another log.
    fn wrong_segment(&self, path: &Path, what: String) -> WriteError {
        WriteError::WrongSegment { path: path.to_owned(), what }
    }

    /// Offset of a position in its segment.
    fn segment_offset(&self, lsn: Lsn) -> u64 {
        lsn.0 % u64::from(self.config.segment_size)
    }

    /// Path of the segment that holds `lsn`.
    fn segment_path(&self, lsn: Lsn) -> PathBuf {
        self.dir.join(SegmentName::of(self.config.timeline, lsn, self.config.segment_size).to_string())
    }
}
