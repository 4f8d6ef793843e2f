//! One entry of the output log: a header and a payload that is served as it is.
//!
//! ```text
//!  0 payload length   4 CRC-32C of all that follows   8 ordinal   16 complete before   24 complete with it
//! 32 items   36 1: it holds events of transactions in progress or prepared   40 payload …
//! ```
//!
//! Little-endian. Ordinals count up by one from entry to entry through all segments, so a lost or repeated entry shows.

use bytes::{Bytes, BytesMut};
use pg_types::Lsn;

use super::open::Mark;

/// Bytes of an entry before its payload.
pub const ENTRY_HEADER_LEN: usize = 40;

/// Largest payload, in bytes: what one message of the stream may carry, with room for its frame under gRPC's 4 MiB.
pub const PAYLOAD_LEN_MAX: usize = 3 << 20;

/// Flag of [`Entry::in_progress`] in the header.
const IN_PROGRESS: u32 = 1;

/// One entry, as read back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number in the log, from 0.
    pub ordinal: u64,
    /// Everything that ends at or below this was complete before it.
    pub prev_end: Lsn,
    /// Everything that ends at or below this is complete with it; equal to `prev_end` when a transaction that goes on in the
    /// next entry fills it.
    pub end: Lsn,
    /// Things that end in it: transactions, messages outside of them, and what is given out at one record of those in progress.
    pub items: u32,
    /// It holds events of transactions that are given out before their commit, or of such a transaction's end.
    pub in_progress: bool,
    /// The payload.
    pub payload: Bytes,
}

impl Entry {
    /// True if its last transaction goes on in the next entry.
    #[must_use]
    pub fn is_fragment(&self) -> bool {
        self.end == self.prev_end
    }
}

/// The fields of an entry's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryHeader {
    /// Bytes of payload.
    pub(super) payload_len: usize,
    /// CRC-32C of the header after itself and of the payload.
    crc: u32,
    /// See [`Entry::ordinal`].
    pub(super) ordinal: u64,
    /// See [`Entry::prev_end`].
    pub(super) prev_end: Lsn,
    /// See [`Entry::end`].
    pub(super) end: Lsn,
    /// See [`Entry::items`].
    pub(super) items: u32,
    /// See [`Entry::in_progress`].
    pub(super) in_progress: bool,
}

impl EntryHeader {
    /// Reads a header; `Err` says what is wrong with it.
    pub(super) fn parse(bytes: &[u8; ENTRY_HEADER_LEN]) -> Result<Self, &'static str> {
        let u32_at = |at: usize| bytes[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        let u64_at = |at: usize| bytes[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let header = Self {
            payload_len: u32_at(0) as usize,
            crc: u32_at(4),
            ordinal: u64_at(8),
            prev_end: Lsn(u64_at(16)),
            end: Lsn(u64_at(24)),
            items: u32_at(32),
            in_progress: u32_at(36) & IN_PROGRESS != 0,
        };
        if header.payload_len > PAYLOAD_LEN_MAX {
            return Err("its length is larger than any entry");
        }
        if header.end < header.prev_end {
            return Err("its end lies before its start");
        }
        Ok(header)
    }

    /// Checks the checksum of header and payload.
    pub(super) fn verify(&self, header: &[u8; ENTRY_HEADER_LEN], payload: &[u8]) -> Result<(), &'static str> {
        let crc = crc32c::crc32c_append(crc32c::crc32c(&header[8..]), payload);
        if crc == self.crc { Ok(()) } else { Err("its checksum is wrong") }
    }
}

/// A payload being filled: the header's room is kept in front, so that an entry is written in one piece.
#[derive(Debug)]
pub struct EntryBuffer {
    /// Header room and payload.
    bytes: BytesMut,
    /// Marks of events in it, each with the offset in the payload where its event begins.
    marks: Vec<(usize, Mark)>,
}

impl Default for EntryBuffer {
    fn default() -> Self {
        Self::with_capacity(64 << 10)
    }
}

impl EntryBuffer {
    /// An empty payload with room for `capacity` bytes.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        let mut bytes = BytesMut::with_capacity(ENTRY_HEADER_LEN + capacity);
        bytes.resize(ENTRY_HEADER_LEN, 0);
        Self { bytes, marks: Vec::new() }
    }

    /// Where to append to the payload. What is there already must stay.
    pub fn tail(&mut self) -> &mut BytesMut {
        &mut self.bytes
    }

    /// The payload so far.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.bytes[ENTRY_HEADER_LEN..]
    }

    /// The event that is appended next has this mark.
    pub fn mark(&mut self, mark: Mark) {
        self.marks.push((self.payload_len(), mark));
    }

    /// Cuts the payload at `at` and appends what was behind to `next`.
    pub fn move_tail(&mut self, at: usize, next: &mut Self) {
        let to = next.payload_len();
        let marks = self.marks.partition_point(|(offset, _)| *offset < at);
        next.marks.extend(self.marks.drain(marks..).map(|(offset, mark)| (offset - at + to, mark)));
        let tail = self.bytes.split_off(ENTRY_HEADER_LEN + at);
        next.bytes.extend_from_slice(&tail);
    }

    /// The marks.
    pub(super) fn marks(&self) -> Vec<Mark> {
        self.marks.iter().map(|(_, mark)| *mark).collect()
    }

    /// Bytes of payload so far.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.bytes.len() - ENTRY_HEADER_LEN
    }

    /// Fills in the header; gives the whole entry and, sharing its memory, what readers get.
    pub(super) fn seal(mut self, ordinal: u64, prev_end: Lsn, end: Lsn, items: u32) -> (Bytes, Entry) {
        let len = u32::try_from(self.payload_len()).unwrap_or(u32::MAX);
        let mut header = [0; ENTRY_HEADER_LEN];
        header[0..4].copy_from_slice(&len.to_le_bytes());
        header[8..16].copy_from_slice(&ordinal.to_le_bytes());
        header[16..24].copy_from_slice(&prev_end.0.to_le_bytes());
        header[24..32].copy_from_slice(&end.0.to_le_bytes());
        header[32..36].copy_from_slice(&items.to_le_bytes());
        let in_progress = !self.marks.is_empty();
        header[36..40].copy_from_slice(&(u32::from(in_progress) * IN_PROGRESS).to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&header[8..]), &self.bytes[ENTRY_HEADER_LEN..]);
        header[4..8].copy_from_slice(&crc.to_le_bytes());
        self.bytes[..ENTRY_HEADER_LEN].copy_from_slice(&header);
        let whole = self.bytes.freeze();
        let payload = whole.slice(ENTRY_HEADER_LEN..);
        (whole, Entry { ordinal, prev_end, end, items, in_progress, payload })
    }
}
