//! Pages that are not in a file yet (`CopyXLogRecordToWAL`, `AdvanceXLInsertBuffer` in `access/transam/xlog.c`).

use pg_types::Lsn;

use super::WriterConfig;
use crate::page::{FIRST_IS_CONTRECORD, FIRST_IS_OVERWRITE_CONTRECORD, LONG_HEADER, PAGE_SIZE};
use crate::profile::WalProfile;

/// Bytes of a page.
const PAGE: u64 = PAGE_SIZE as u64;

/// A run of WAL bytes with page headers wherever a page starts.
#[derive(Debug)]
pub(super) struct PageBuffer {
    /// The bytes.
    bytes: Vec<u8>,
    /// Position of the first.
    start: Lsn,
    /// `xlp_magic`.
    magic: u16,
    /// `xlp_tli`.
    timeline: u32,
    /// `xlp_sysid`.
    system_id: u64,
    /// `xlp_seg_size`.
    segment_size: u32,
    /// The next page starts where an older record should have gone on.
    overwrites: bool,
}

impl PageBuffer {
    /// An empty buffer at `start`; `overwrites` marks its first page as one where a lost record should have gone on.
    pub(super) fn new(config: &WriterConfig, start: Lsn, overwrites: bool) -> Self {
        Self {
            bytes: Vec::new(),
            start,
            magic: WalProfile::of(config.version).page_magic,
            timeline: config.timeline,
            system_id: config.system_id,
            segment_size: config.segment_size,
            overwrites,
        }
    }

    /// Position of the first byte.
    pub(super) fn start(&self) -> Lsn {
        self.start
    }

    /// Position after the last byte.
    pub(super) fn end(&self) -> Lsn {
        Lsn(self.start.0 + self.bytes.len() as u64)
    }

    /// The bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets the first `count` bytes, which are in a file.
    pub(super) fn consume(&mut self, count: usize) {
        self.start = Lsn(self.start.0 + count as u64);
        self.bytes.drain(..count);
    }

    /// Skips from the end of an empty buffer to `start`, behind the zeroes that follow a switch.
    pub(super) fn skip_to(&mut self, start: Lsn) {
        debug_assert!(self.bytes.is_empty());
        self.start = start;
    }

    /// Adds a record, with a header wherever a page starts, and pads it to 8 bytes.
    pub(super) fn push(&mut self, record: &[u8]) {
        let mut rest = record;
        while !rest.is_empty() {
            let mut room = (PAGE - self.end().0 % PAGE) as usize;
            if room == PAGE as usize {
                let remaining = if rest.len() < record.len() { rest.len() as u32 } else { 0 };
                room -= self.start_page(remaining);
            }
            let (now, later) = rest.split_at(room.min(rest.len()));
            self.bytes.extend_from_slice(now);
            rest = later;
        }
        let padding = self.end().align().0 - self.end().0;
        self.bytes.resize(self.bytes.len() + padding as usize, 0);
    }

    /// Adds a page header; `remaining` bytes of an interrupted record follow it. Gives its length.
    fn start_page(&mut self, remaining: u32) -> usize {
        let at = self.end();
        let long = at.0.is_multiple_of(u64::from(self.segment_size));
        let mut info = if remaining > 0 { FIRST_IS_CONTRECORD } else { 0 };
        info |= if long { LONG_HEADER } else { 0 };
        info |= if std::mem::take(&mut self.overwrites) { FIRST_IS_OVERWRITE_CONTRECORD } else { 0 };
        let before = self.bytes.len();
        let bytes = &mut self.bytes;
        bytes.extend_from_slice(&self.magic.to_le_bytes());
        bytes.extend_from_slice(&info.to_le_bytes());
        bytes.extend_from_slice(&self.timeline.to_le_bytes());
        bytes.extend_from_slice(&at.0.to_le_bytes());
        bytes.extend_from_slice(&remaining.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        if long {
            bytes.extend_from_slice(&self.system_id.to_le_bytes());
            bytes.extend_from_slice(&self.segment_size.to_le_bytes());
            bytes.extend_from_slice(&PAGE_SIZE.to_le_bytes());
        }
        bytes.len() - before
    }
}
