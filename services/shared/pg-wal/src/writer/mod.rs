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
//! - I3: an existing segment file is never opened for writing, but by [`WalWriter::resume`] at its stated end; a file with a
//!   segment's name has a segment's length.
//! - I4: a disk without room loses nothing: a record is either in the buffer or was refused before it got a place, and the buffer is
//!   written again by the next call. After any other failed write, and after a failed sync, nothing more is accepted: what the file
//!   holds is unknown (the server would stop).
//!
//! Cost: a record is encoded once and copied once; a file is written in pieces of [`BUFFER_LEN`] or at [`WalWriter::flush`].
//!
//! Differences from PostgreSQL: one inserter, so no insertion locks; old segments are not recycled; without fsync segments are
//! made by `ftruncate`, not filled with zeroes; pages behind a switch record are zeroes without headers.

mod config;
mod log_end;
mod page_buffer;
mod placer;
mod segment_file;

use std::path::PathBuf;

use pg_types::{Lsn, RecordBody, Xid};

use crate::segment::SegmentName;

pub use config::{WalSync, WriteError, WriterConfig};
pub use log_end::{LogEnd, LogTail};
pub use placer::{PlacedRecord, RecordPlacer};

use page_buffer::PageBuffer;
use segment_file::SegmentFile;

/// Bytes kept back before they go to the file on their own.
pub const BUFFER_LEN: usize = 256 * 1024;

/// What a writer has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterCounters {
    /// Records placed.
    pub records: u64,
    /// Bytes written to files, page headers counted in.
    pub bytes: u64,
    /// Writes to files.
    pub writes: u64,
    /// Times that the disk was waited for (`fdatasync`, `fsync`), those of new segments left out.
    pub syncs: u64,
    /// Segments begun.
    pub segments: u64,
}

/// The open log.
#[derive(Debug)]
pub struct WalWriter {
    /// Where the segments are.
    dir: PathBuf,
    /// Checked configuration.
    config: WriterConfig,
    /// Makes and places records.
    placer: RecordPlacer,
    /// Bytes that are not in a file yet.
    buffer: PageBuffer,
    /// The last record is a switch: behind the buffer zeroes follow, up to the segment's end.
    switched: bool,
    /// The segment that holds the buffer's start; none before its first byte.
    segment: Option<SegmentFile>,
    /// Everything before is flushed.
    flushed: Lsn,
    /// A write failed for good (I4).
    failed: bool,
    /// What was done.
    counters: WriterCounters,
}

impl WalWriter {
    /// Begins a log in `dir`, which must exist. The first file appears with the first bytes written.
    ///
    /// # Errors
    /// [`WriteError::BadConfig`]; [`WriteError::Io`].
    pub fn create(dir: impl Into<PathBuf>, config: WriterConfig) -> Result<WalWriter, WriteError> {
        let config = config.checked()?;
        WalWriter::at(dir.into(), config, LogEnd { end: config.start, prev: Lsn::INVALID }, false)
    }

    /// Continues the log in `dir` as a server does after a crash, or begins one if the directory has no segments.
    ///
    /// Whatever cannot be the next record ends the log, and what lies behind it is erased. Where a record goes on over a page's end
    /// and its rest is missing, its first part stays (it may have been copied), and the log goes on with the page on which the rest
    /// should be: that page says so, and so does the record that is written there (`CreateOverwriteContrecordRecord`).
    ///
    /// # Errors
    /// As [`WalWriter::resume`], and [`WriteError::Unreadable`].
    pub fn open(dir: impl Into<PathBuf>, config: WriterConfig) -> Result<WalWriter, WriteError> {
        let dir = dir.into();
        let found = LogTail::find(&dir);
        let Some(tail) = found.map_err(|error| WriteError::Unreadable { dir: dir.clone(), what: error.to_string() })? else {
            return WalWriter::create(dir, config);
        };
        let Some(prev) = tail.prev.or((tail.end == config.start).then_some(Lsn::INVALID)) else {
            let what = format!("no record starts in any of its segments ({})", tail.reason);
            return Err(WriteError::Unreadable { dir, what });
        };
        let Some(page) = tail.lost_page else { return WalWriter::resume(dir, config, LogEnd { end: tail.end, prev }) };
        let mut writer = WalWriter::resume_at(dir, config, LogEnd { end: page, prev }, true)?;
        writer.append(Xid::INVALID, Xid::INVALID, 0, &RecordBody::OverwriteContrecord(tail.reason.lsn))?;
        writer.flush()?;
        Ok(writer)
    }

    /// Continues the log in `dir` behind its last valid record. What lies behind it is erased, in its segment and in later ones.
    ///
    /// Where a log ends is a reader's finding; a torn tail is not looked into here.
    ///
    /// # Errors
    /// [`WriteError::BadConfig`]; [`WriteError::WrongSegment`] if the segment is of another log or too short; [`WriteError::Io`].
    pub fn resume(dir: impl Into<PathBuf>, config: WriterConfig, at: LogEnd) -> Result<WalWriter, WriteError> {
        WalWriter::resume_at(dir.into(), config, LogEnd { end: at.end.align(), prev: at.prev }, false)
    }

    /// Continues the log at `at`; `overwrites` if a lost record should have gone on there.
    fn resume_at(dir: PathBuf, config: WriterConfig, at: LogEnd, overwrites: bool) -> Result<WalWriter, WriteError> {
        let config = config.checked()?;
        log_end::remove_segments_after(&dir, &config, at.end)?;
        let mut writer = WalWriter::at(dir, config, at, overwrites)?;
        let offset = writer.segment_offset(at.end);
        if offset > 0 {
            writer.segment = Some(SegmentFile::reopen(writer.segment_path(at.end), &config, offset)?);
        }
        Ok(writer)
    }

    /// A writer at a position, without a file.
    fn at(dir: PathBuf, config: WriterConfig, at: LogEnd, overwrites: bool) -> Result<WalWriter, WriteError> {
        segment_file::remove_temporaries(&dir)?;
        Ok(WalWriter {
            dir,
            config,
            placer: RecordPlacer::new(config.version, config.segment_size, at),
            buffer: PageBuffer::new(&config, at.end, overwrites),
            switched: false,
            segment: None,
            flushed: at.end,
            failed: false,
            counters: WriterCounters::default(),
        })
    }

    /// Where the next record will start.
    #[must_use]
    pub fn next_lsn(&self) -> Lsn {
        self.placer.next_lsn()
    }

    /// First byte after the last record, aligned; at a page's end the page's end.
    #[must_use]
    pub fn end_lsn(&self) -> Lsn {
        self.placer.end().end
    }

    /// Behind the last record.
    #[must_use]
    pub fn log_end(&self) -> LogEnd {
        self.placer.end()
    }

    /// Everything before this position was flushed.
    #[must_use]
    pub fn flushed_lsn(&self) -> Lsn {
        self.flushed
    }

    /// The configuration of the log.
    #[must_use]
    pub fn config(&self) -> &WriterConfig {
        &self.config
    }

    /// What was done since it was opened.
    #[must_use]
    pub fn counters(&self) -> WriterCounters {
        self.counters
    }

    /// Appends one record; its first byte and the first byte after it, aligned, come back.
    ///
    /// A [`RecordBody::Switch`] also ends its segment, and the end that comes back is the segment's; at the very start of a
    /// segment there is nothing to end, so nothing is written and both positions are that start.
    ///
    /// # Errors
    /// The record has no place then: [`WriteError::Encode`] if it cannot be written at all; what keeps *earlier* records from being
    /// written, see [`WriteError::is_no_space`]; [`WriteError::Closed`] after any other failed write.
    pub fn append(&mut self, xid: Xid, top_xid: Xid, origin: u16, body: &RecordBody) -> Result<(Lsn, Lsn), WriteError> {
        self.check_open()?;
        if self.switched || self.buffer.bytes().len() >= BUFFER_LEN {
            self.write_buffer()?;
        }
        let placed = self.placer.place(xid, top_xid, origin, body)?;
        let (start, end) = (placed.start, placed.end);
        if start < end {
            self.buffer.push(placed.bytes);
            self.switched = matches!(body, RecordBody::Switch);
            self.counters.records += 1;
        }
        Ok((start, end))
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
    /// [`WriteError::Io`], see [`WriteError::is_no_space`]; [`WriteError::Closed`] after any other failed write.
    pub fn flush(&mut self) -> Result<Lsn, WriteError> {
        self.check_open()?;
        if self.flushed < self.end_lsn() {
            self.write_buffer()?;
            self.sync_segment()?;
            self.flushed = self.end_lsn();
        }
        Ok(self.flushed)
    }

    /// Flushes to disk and closes. The last segment keeps a zeroed tail.
    ///
    /// # Errors
    /// As [`WalWriter::flush`].
    pub fn finish(mut self) -> Result<Lsn, WriteError> {
        self.check_open()?;
        self.write_buffer()?;
        if let Some(segment) = &mut self.segment {
            segment.sync_from_now_on();
        }
        self.sync_segment()?;
        Ok(self.end_lsn())
    }

    /// I4.
    fn check_open(&self) -> Result<(), WriteError> {
        if self.failed { Err(WriteError::Closed { dir: self.dir.clone() }) } else { Ok(()) }
    }

    /// Passes a result on, and closes the log if nothing more may be written after it (I4).
    fn checked<T>(&mut self, result: Result<T, WriteError>) -> Result<T, WriteError> {
        self.failed |= result.as_ref().is_err_and(|error| !error.is_no_space());
        result
    }

    /// Writes the buffer into segments; what could not be written stays in it.
    fn write_buffer(&mut self) -> Result<(), WriteError> {
        while !self.buffer.bytes().is_empty() {
            let offset = self.segment_offset(self.buffer.start());
            if offset == 0 {
                self.sync_segment()?;
                self.segment = None;
            }
            let room = u64::from(self.config.segment_size) - offset;
            let len = self.buffer.bytes().len().min(room as usize);
            let written = self.write_piece(len, offset);
            self.checked(written)?;
            self.buffer.consume(len);
            self.counters.writes += 1;
            self.counters.bytes += len as u64;
        }
        if std::mem::take(&mut self.switched) {
            self.buffer.skip_to(self.end_lsn());
        }
        Ok(())
    }

    /// Writes the first `len` bytes of the buffer at `offset` of their segment, which is made if it is not there.
    fn write_piece(&mut self, len: usize, offset: u64) -> Result<(), WriteError> {
        if self.segment.is_none() {
            self.segment = Some(SegmentFile::create(self.segment_path(self.buffer.start()), &self.config)?);
            self.counters.segments += 1;
        }
        let bytes = self.buffer.bytes().get(..len).unwrap_or_default();
        self.segment.as_ref().map_or(Ok(()), |segment| segment.write(bytes, offset))
    }

    /// Waits until the open segment is on disk.
    fn sync_segment(&mut self) -> Result<(), WriteError> {
        let Some(segment) = &self.segment else { return Ok(()) };
        let synced = segment.sync();
        self.counters.syncs += u64::from(self.checked(synced)?);
        Ok(())
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
