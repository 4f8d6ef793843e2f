//! Records in order, from segment files (`XLogReadRecord` in `access/transam/xlogreader.c`).
//!
//! A record is a run of bytes at an 8-byte boundary that goes on over page and segment ends. The reader finds the first whole
//! record at or after a position, checks every page header, header, back link and checksum on the way, and stops at the first
//! thing that cannot be, with the reason. A log that grows is followed by calling [`WalReader::next`] again after an end.
//!
//! Invariants:
//! - I1: a returned record's checksum is right and its `prev` is the record returned before it (for the first one: lies before
//!   the page on which reading began).
//! - I2: no allocation is sized by a length field: a record over several pages grows its buffer page by page.
//! - I3: after an end, `position` is where the next record is expected, and `next` looks there again.
//!
//! Cost: a record inside a page is a checksum and a dozen comparisons on bytes in the read buffer, not copied; one that spans
//! pages is copied once into a buffer that is reused. Per page one header check, per 256 KiB one system call.
//!
//! Different from PostgreSQL: a back link is checked for the first record too; a zero length is an end only if zeroes follow to
//! the segment's end; an overwritten contrecord must be followed by the record that names it.

mod ends;
mod pages;

use std::path::PathBuf;

use pg_types::{Lsn, WalIdentity};

use crate::dir::WalDir;
use crate::end::{EndReason, WalEnd};
use crate::error::WalError;
use crate::page::{FIRST_IS_CONTRECORD, FIRST_IS_OVERWRITE_CONTRECORD, PAGE_SIZE, page_start, segment_end};
use crate::profile::WalProfile;
use crate::record::{CrcBuffer, RECORD_HEADER_LEN, RawRecord, RecordHeader, record_crc};
use crate::rmgr;
use crate::window::Window;
use pages::{CheckedPage, PageFault};

/// Bytes of a page.
const PAGE: usize = PAGE_SIZE as usize;

/// What a record's back link must be.
#[derive(Clone, Copy, Debug)]
enum Prev {
    /// Reading began on the page at this position: the record before starts before it.
    Before(Lsn),
    /// Exactly the record read before.
    Is(Lsn),
}

/// Where a record's bytes are.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// In the window, at this offset.
    Window(usize),
    /// In the buffer of assembled records.
    Assembled,
}

/// A record that was found and checked.
#[derive(Clone, Copy, Debug)]
struct Found {
    /// First byte.
    lsn: Lsn,
    /// First byte after it, not aligned.
    last: Lsn,
    /// End of the record, aligned.
    end: Lsn,
    /// Its header.
    header: RecordHeader,
    /// Its bytes.
    place: Place,
}

/// What one look at the next position gave.
enum Step {
    /// A record.
    Record(Found),
    /// A record that was lost half written; WAL goes on elsewhere.
    Overwritten,
    /// Nothing more.
    End(WalEnd),
}

/// Reads the records of a [`WalDir`] in order.
#[derive(Debug)]
pub struct WalReader {
    /// The files.
    dir: WalDir,
    /// What the version writes.
    profile: &'static WalProfile,
    /// Pages in memory.
    window: Window,
    /// The page that was checked last.
    page: Option<CheckedPage>,
    /// Newest timeline seen on a page; it must not go back.
    timeline: u32,
    /// Where the next record is expected; perhaps a page's first byte.
    pos: Lsn,
    /// Set until the first whole record is found: bytes of the record to skip that are still to come, if known.
    syncing: Option<Option<u32>>,
    /// Records before this position are read but not returned.
    start: Lsn,
    /// Records that end after this position are not returned.
    limit: Option<Lsn>,
    /// What the next record must link back to.
    prev: Prev,
    /// The last record was a switch.
    after_switch: bool,
    /// A record that was lost half written, until the record that says so has been seen.
    overwritten: Option<Lsn>,
    /// Space for checksums.
    crc_buffer: CrcBuffer,
    /// Bytes of the record that spans pages.
    assembled: Vec<u8>,
    /// The record returned last was no switch, and there was no end since.
    plain: bool,
    /// Why reading stopped.
    end: Option<WalEnd>,
    /// The end before, so that looking again at the same one is cheap.
    last_end: Option<WalEnd>,
    /// The segment whose tail was seen to be all zeroes.
    zero_segment: Option<Lsn>,
    /// The bad end that was found is being looked at again, from the file: a writer may have been at it.
    retrying: bool,
}

impl WalReader {
    /// A reader that gives the first whole record at or after `start`, or the first whole record in the directory.
    ///
    /// # Errors
    /// [`WalError::StartOutside`] if `start` is in no segment and is not the end of the last one.
    pub fn open(dir: &WalDir, start: Option<Lsn>) -> Result<Self, WalError> {
        let start = start.unwrap_or(dir.first());
        let segment = Lsn(start.0 & !(u64::from(dir.identity().segment_size) - 1));
        // A start where the WAL goes on later: right behind a segment that is there, which the listing of `dir` may not know yet.
        let behind =
            start == segment && dir.find(Lsn(start.0.saturating_sub(u64::from(dir.identity().segment_size)))).is_some();
        if !behind && dir.find(segment).is_none() {
            let (first, end) = (dir.first(), dir.end());
            return Err(WalError::StartOutside { path: dir.path().to_path_buf(), start, first, end });
        }
        Ok(Self {
            dir: dir.clone(),
            profile: dir.profile(),
            window: Window::new(),
            page: None,
            timeline: 0,
            pos: page_start(start),
            syncing: Some(None),
            start,
            limit: None,
            prev: Prev::Before(page_start(start)),
            after_switch: false,
            overwritten: None,
            crc_buffer: CrcBuffer::new(),
            assembled: Vec::new(),
            plain: false,
            end: None,
            last_end: None,
            zero_segment: None,
            retrying: false,
        })
    }

    /// Version, cluster, timeline and segment size.
    #[must_use]
    pub fn identity(&self) -> WalIdentity {
        self.dir.identity()
    }

    /// What the version writes.
    #[must_use]
    pub fn profile(&self) -> &'static WalProfile {
        self.profile
    }

    /// Where the next record is expected: the end of the last one, aligned; on a page boundary the page header comes first.
    #[must_use]
    pub fn position(&self) -> Lsn {
        self.pos
    }

    /// From now on no record is returned of which a byte lies at or after `limit`. Reading past an earlier limit goes on.
    pub fn set_limit(&mut self, limit: Lsn) {
        self.limit = Some(limit);
    }

    /// Why the last call of [`WalReader::next`] gave nothing; nothing if it gave a record or was never called.
    #[must_use]
    pub fn end(&self) -> Option<&WalEnd> {
        self.end.as_ref()
    }

    /// The next record, or nothing at an [`WalReader::end`]. After an end it looks again, so a log that grows can be followed.
    ///
    /// # Errors
    /// [`WalError::Io`] if a file that is there cannot be read.
    #[allow(clippy::should_implement_trait, reason = "it lends")]
    pub fn next(&mut self) -> Result<Option<RawRecord<'_>>, WalError> {
        let found = match self.next_in_page() {
            Some(found) => found,
            None => match self.advance()? {
                Some(found) => found,
                None => return Ok(None),
            },
        };
        let bytes = match found.place {
            Place::Window(offset) => self.window.bytes(offset, found.header.total_len as usize),
            Place::Assembled => &self.assembled,
        };
        Ok(Some(RawRecord { lsn: found.lsn, end_lsn: found.end, header: found.header, bytes }))
    }

    /// The next record if it lies in the current page and nothing is unusual. Anything else is left to [`WalReader::advance`],
    /// which makes the same checks and says what is wrong.
    #[inline]
    fn next_in_page(&mut self) -> Option<Found> {
        let (page, Prev::Is(prev), true) = (self.page?, self.prev, self.plain) else { return None };
        let (lsn, in_page) = (self.pos, self.pos.0.wrapping_sub(page.start.0) as usize);
        if in_page == 0 || in_page >= PAGE {
            return None;
        }
        let offset = page.offset + in_page;
        let room = self.window.bytes(offset, PAGE - in_page);
        let header = RecordHeader::read(room).ok()?;
        let bytes = room.get(..header.total_len as usize)?;
        let last = Lsn(lsn.0 + u64::from(header.total_len));
        let usual = bytes.len() >= RECORD_HEADER_LEN
            && header.prev == prev
            && rmgr::is_valid(self.profile, header.rmid)
            && !rmgr::is_switch(&header)
            && self.limit.is_none_or(|limit| last <= limit)
            && self.crc_buffer.record_crc(bytes) == header.crc;
        if !usual {
            return None;
        }
        self.pos = last.align();
        self.prev = Prev::Is(lsn);
        Some(Found { lsn, last, end: self.pos, header, place: Place::Window(offset) })
    }

    /// Finds the next record to return and moves behind it.
    fn advance(&mut self) -> Result<Option<Found>, WalError> {
        self.plain = false;
        if let Some(end) = self.end.take() {
            self.last_end = Some(end);
            self.forget();
        }
        loop {
            match self.step()? {
                Step::Record(found) => {
                    self.pos = found.end;
                    self.prev = Prev::Is(found.lsn);
                    self.after_switch = rmgr::is_switch(&found.header);
                    self.retrying = false;
                    if found.lsn >= self.start {
                        self.plain = !self.after_switch;
                        return Ok(Some(found));
                    }
                }
                Step::Overwritten => {}
                Step::End(end) if end.is_complete() || self.retrying => {
                    self.retrying = false;
                    self.end = Some(end);
                    return Ok(None);
                }
                Step::End(_) => {
                    self.retrying = true;
                    self.forget();
                }
            }
        }
    }

    /// Forgets pages in memory, because files may have changed.
    fn forget(&mut self) {
        self.window.forget();
        self.page = None;
    }

    /// One look at the next position.
    fn step(&mut self) -> Result<Step, WalError> {
        if let (Some(_), Some(limit)) = (self.syncing, self.limit)
            && self.start >= limit
        {
            return Ok(Step::End(self.end_at(self.start, EndReason::Limit(limit))));
        }
        if self.syncing.is_some()
            && let Some(end) = self.sync()?
        {
            return Ok(Step::End(end));
        }
        if let Some(limit) = self.limit
            && self.pos >= limit
        {
            return Ok(Step::End(self.end_at(self.pos, EndReason::Limit(limit))));
        }
        let page = match self.enter(page_start(self.pos))? {
            Ok(page) => page,
            Err(fault) => return self.fault_end(fault).map(Step::End),
        };
        let mut lsn = self.pos;
        if lsn == page.start {
            if page.header.info & FIRST_IS_CONTRECORD != 0 {
                let why = "it continues a record, but the record before it has ended".to_owned();
                return Ok(Step::End(self.end_at(lsn, EndReason::BadPage { page: page.start, why })));
            }
            lsn = Lsn(lsn.0 + u64::from(page.header.len()));
        }
        let step = self.read_record(lsn, page)?;
        if let (Step::Record(found), Some(limit)) = (&step, self.limit)
            && found.last > limit
        {
            return Ok(Step::End(self.end_at(found.lsn, EndReason::Limit(limit))));
        }
        Ok(step)
    }

    /// Moves from the start of a page to its first whole record, over pages that only continue one (`XLogFindNextRecord`).
    fn sync(&mut self) -> Result<Option<WalEnd>, WalError> {
        while let Some(expected) = self.syncing {
            let page = match self.enter(self.pos)? {
                Ok(page) => page,
                Err(fault) => return self.fault_end(fault).map(Some),
            };
            let header = page.header;
            let continues = header.info & FIRST_IS_CONTRECORD != 0;
            if header.info & FIRST_IS_OVERWRITE_CONTRECORD == 0
                && let Some(expected) = expected
                && (!continues || header.rem_len != expected)
            {
                let why = format!("it should continue a record with {expected} bytes, and says {}", header.rem_len);
                return Ok(Some(self.end_at(page.start, EndReason::BadPage { page: page.start, why })));
            }
            let room = PAGE_SIZE - header.len();
            if !continues {
                self.syncing = None;
            } else if header.rem_len > room {
                self.syncing = Some(Some(header.rem_len - room));
                self.pos = Lsn(page.start.0.saturating_add(u64::from(PAGE_SIZE)));
            } else {
                self.syncing = None;
                self.pos = Lsn(page.start.0 + u64::from(header.len()) + u64::from(header.rem_len).next_multiple_of(8));
            }
        }
        Ok(None)
    }

    /// Reads the record that starts at `lsn` on `page`.
    #[inline]
    fn read_record(&mut self, lsn: Lsn, page: CheckedPage) -> Result<Step, WalError> {
        let in_page = (lsn.0 - page.start.0) as usize;
        let offset = page.offset + in_page;
        let room = self.window.bytes(offset, PAGE - in_page);
        let Some(len) = room.first_chunk().map(|b| u32::from_le_bytes(*b)) else {
            return Ok(Step::End(self.end_at(lsn, EndReason::BadRecord("the page has no room for a length".to_owned()))));
        };
        if len == 0 {
            return self.zero_length(lsn, page).map(Step::End);
        }
        if (len as usize) < RECORD_HEADER_LEN || len > self.profile.record_len_max {
            let why = format!("its length is {len}, and must be {RECORD_HEADER_LEN} to {}", self.profile.record_len_max);
            return Ok(Step::End(self.end_at(lsn, EndReason::BadRecord(why))));
        }
        if let Ok(header) = RecordHeader::read(room) {
            if let Some(why) = self.header_fault(lsn, &header) {
                return Ok(Step::End(self.end_at(lsn, EndReason::BadRecord(why))));
            }
            if let Some(bytes) = room.get(..len as usize) {
                let computed = record_crc(bytes);
                let last = Lsn(lsn.0 + u64::from(len));
                return self.found(Found { lsn, last, end: last.align(), header, place: Place::Window(offset) }, computed);
            }
        }
        self.read_spanning(lsn, len, offset, PAGE - in_page)
    }

    /// Reads a record of `len` bytes whose first `room` bytes end a page.
    fn read_spanning(&mut self, lsn: Lsn, len: u32, offset: usize, room: usize) -> Result<Step, WalError> {
        self.assembled.clear();
        self.assembled.extend_from_slice(self.window.bytes(offset, room));
        let mut at = Lsn(lsn.0 + room as u64);
        loop {
            let left = len - self.assembled.len() as u32;
            let page = match self.enter(at)? {
                Ok(page) => page,
                Err(fault) => {
                    let why = self.describe_fault(at, &fault)?;
                    let missing = matches!(fault, PageFault::Missing);
                    return Ok(Step::End(self.end_at(lsn, EndReason::TornRecord { at, why, missing })));
                }
            };
            let header = page.header;
            if header.info & FIRST_IS_OVERWRITE_CONTRECORD != 0 {
                self.overwritten = Some(lsn);
                self.pos = at;
                return Ok(Step::Overwritten);
            }
            if header.info & FIRST_IS_CONTRECORD == 0 || header.rem_len != left {
                let why = format!("a page continues with {} bytes where {left} are due", header.rem_len);
                let why = if header.info & FIRST_IS_CONTRECORD == 0 { "a page does not continue it".to_owned() } else { why };
                return Ok(Step::End(self.end_at(lsn, EndReason::TornRecord { at, why, missing: false })));
            }
            let header_len = header.len() as usize;
            let take = (left as usize).min(PAGE - header_len);
            self.assembled.extend_from_slice(self.window.bytes(page.offset + header_len, take));
            if take == left as usize {
                let last = Lsn(at.0 + (header_len + take) as u64);
                return self.found_spanning(lsn, last);
            }
            at = Lsn(at.0.saturating_add(PAGE as u64));
        }
    }

    /// Checks an assembled record.
    fn found_spanning(&mut self, lsn: Lsn, last: Lsn) -> Result<Step, WalError> {
        let header = RecordHeader::read(&self.assembled).unwrap_or_default();
        if let Some(why) = self.header_fault(lsn, &header) {
            return Ok(Step::End(self.end_at(lsn, EndReason::BadRecord(why))));
        }
        let computed = record_crc(&self.assembled);
        self.found(Found { lsn, last, end: last.align(), header, place: Place::Assembled }, computed)
    }

    /// What is wrong with a record's header (`ValidXLogRecordHeader`).
    #[inline]
    fn header_fault(&self, lsn: Lsn, header: &RecordHeader) -> Option<String> {
        if !rmgr::is_valid(self.profile, header.rmid) {
            return Some(format!("resource manager {} does not exist", header.rmid));
        }
        match self.prev {
            Prev::Is(prev) if header.prev != prev => Some(format!("it links back to {}, not to {prev}", header.prev)),
            Prev::Before(page) if header.prev >= page => {
                Some(format!("it links back to {}, which is not before {page}, where reading began at {lsn}", header.prev))
            }
            _ => None,
        }
    }

    /// Makes a step of a record, or of what is wrong with its checksum or meaning.
    #[inline]
    fn found(&mut self, mut found: Found, computed: u32) -> Result<Step, WalError> {
        let said = found.header.crc;
        if computed != said {
            return Ok(Step::End(self.end_at(found.lsn, EndReason::BadCrc { computed, said })));
        }
        if rmgr::is_switch(&found.header) {
            found.end = segment_end(found.end, self.identity().segment_size);
        }
        if let Some(lost) = self.overwritten {
            let bytes = match found.place {
                Place::Window(offset) => self.window.bytes(offset, found.header.total_len as usize),
                Place::Assembled => &self.assembled,
            };
            if rmgr::xlog::overwritten_lsn(&found.header, bytes, self.profile) != Some(lost) {
                let why = format!("the record at {lost} was overwritten, and this one does not say so");
                return Ok(Step::End(self.end_at(found.lsn, EndReason::BadRecord(why))));
            }
            self.overwritten = None;
        }
        Ok(Step::Record(found))
    }

    /// An end.
    fn end_at(&self, lsn: Lsn, reason: EndReason) -> WalEnd {
        WalEnd { lsn, file: self.file_of(lsn), reason }
    }

    /// The file that holds a position, or would.
    fn file_of(&self, lsn: Lsn) -> PathBuf {
        let segment = self.segment_of(lsn);
        self.dir.find(segment).map_or_else(|| self.dir.path().join(self.dir.expected_name(segment)), |s| s.path)
    }

    /// First position of the segment that holds `lsn`.
    fn segment_of(&self, lsn: Lsn) -> Lsn {
        Lsn(lsn.0 & !(u64::from(self.identity().segment_size) - 1))
    }
}
