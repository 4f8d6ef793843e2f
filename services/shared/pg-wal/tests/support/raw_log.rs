//! Logs made byte by byte, so that a test can break them where it wants. Knows pages, records and checksums on its own.

use std::path::Path;

use pg_types::Lsn;

/// Bytes of a segment.
pub(crate) const SEGMENT: u64 = 1 << 20;
/// Bytes of a page.
pub(crate) const PAGE: u64 = 8192;
/// The cluster.
pub(crate) const SYSTEM_ID: u64 = 0x1122_3344_5566_7788;
/// The magic of PostgreSQL 18.
pub(crate) const MAGIC: u16 = 0xD118;

/// A log that is being made, from the first page of segment 1 on.
#[derive(Clone)]
pub(crate) struct RawLog {
    /// All bytes from the start of segment 1 on.
    pub(crate) bytes: Vec<u8>,
    /// Timeline on pages.
    pub(crate) timeline: u32,
    /// The record before.
    pub(crate) prev: Lsn,
    /// Magic on pages.
    pub(crate) magic: u16,
    /// Cluster on pages.
    pub(crate) system_id: u64,
}

impl RawLog {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self { bytes: Vec::new(), timeline: 1, prev: Lsn(0), magic: MAGIC, system_id: SYSTEM_ID }
    }

    /// Where the next byte goes.
    pub(crate) fn position(&self) -> Lsn {
        Lsn(SEGMENT + self.bytes.len() as u64)
    }

    /// Bytes since the last multiple of `size`.
    fn over(&self, size: u64) -> u64 {
        self.bytes.len() as u64 % size
    }

    /// Writes a page header.
    pub(crate) fn page(&mut self, flags: u16, rem_len: u32) {
        assert_eq!(self.over(PAGE), 0);
        let address = self.position();
        let long = self.over(SEGMENT) == 0;
        self.bytes.extend(self.magic.to_le_bytes());
        self.bytes.extend((flags | if long { 2 } else { 0 }).to_le_bytes());
        self.bytes.extend(self.timeline.to_le_bytes());
        self.bytes.extend(address.0.to_le_bytes());
        self.bytes.extend(rem_len.to_le_bytes());
        self.bytes.extend([0; 4]);
        if long {
            self.bytes.extend(self.system_id.to_le_bytes());
            self.bytes.extend((SEGMENT as u32).to_le_bytes());
            self.bytes.extend((PAGE as u32).to_le_bytes());
        }
    }

    /// Appends a record and returns its position.
    pub(crate) fn append(&mut self, rmid: u8, info: u8, main: &[u8]) -> Lsn {
        if self.over(PAGE) == 0 {
            self.page(0, 0);
        }
        let lsn = self.position();
        let record = record(self.prev, rmid, info, main);
        self.put(&record);
        self.prev = lsn;
        while self.over(8) != 0 {
            self.bytes.push(0);
        }
        lsn
    }

    /// Writes a record's bytes over pages.
    fn put(&mut self, record: &[u8]) {
        let mut left = record;
        while !left.is_empty() {
            if self.over(PAGE) == 0 {
                self.page(1, left.len() as u32);
            }
            let room = (PAGE - self.over(PAGE)) as usize;
            let (now, later) = left.split_at(room.min(left.len()));
            self.bytes.extend(now);
            left = later;
        }
    }

    /// A logical message of `len` bytes: a record of any length.
    pub(crate) fn message(&mut self, len: usize) -> Lsn {
        let mut main = Vec::new();
        main.extend([5, 0, 0, 0, 0, 0, 0, 0]);
        main.extend(2u64.to_le_bytes());
        main.extend((len as u64).to_le_bytes());
        main.extend(b"p\0");
        main.extend((0..len).map(|i| i as u8));
        self.append(21, 0, &main)
    }

    /// A switch, and zeroes to the end of the segment.
    pub(crate) fn switch(&mut self) -> Lsn {
        let lsn = self.append(0, 0x40, &[]);
        while self.over(SEGMENT) != 0 {
            if self.over(PAGE) == 0 {
                self.page(0, 0);
            }
            let room = PAGE - self.over(PAGE);
            self.bytes.extend(vec![0; room as usize]);
        }
        lsn
    }

    /// Cuts the log at a page boundary inside the record written last, as a crash does, and lets it go on with the record
    /// that says so.
    pub(crate) fn overwrite(&mut self, prev: Lsn, at_page: Lsn, says: Option<Lsn>) -> Lsn {
        self.bytes.truncate((at_page.0 - SEGMENT) as usize);
        self.page(8, 0);
        self.prev = prev;
        match says {
            Some(lsn) => self.append(0, 0xD0, &[&lsn.0.to_le_bytes()[..], &[0; 8]].concat()),
            None => self.append(0, 0x20, &[]),
        }
    }

    /// Writes the segments, zero-filled.
    pub(crate) fn write(&self, dir: &Path) {
        for (i, segment) in self.bytes.chunks(SEGMENT as usize).enumerate() {
            let mut segment = segment.to_vec();
            segment.resize(SEGMENT as usize, 0);
            std::fs::write(dir.join(name(self.timeline, i as u64 + 1)), segment).expect("write a segment");
        }
    }
}

/// A segment's name.
pub(crate) fn name(timeline: u32, number: u64) -> String {
    format!("{timeline:08X}{:08X}{:08X}", number / 4096, number % 4096)
}

/// A record with only main data.
pub(crate) fn record(prev: Lsn, rmid: u8, info: u8, main: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    match main.len() {
        0 => {}
        short @ 1..=255 => body.extend([255, short as u8]),
        long => {
            body.push(254);
            body.extend((long as u32).to_le_bytes());
        }
    }
    body.extend(main);
    let mut head = Vec::new();
    head.extend((24 + body.len() as u32).to_le_bytes());
    head.extend(7u32.to_le_bytes());
    head.extend(prev.0.to_le_bytes());
    head.extend([info, rmid, 0, 0]);
    let crc = crc32c::crc32c_append(crc32c::crc32c(&body), &head);
    head.extend(crc.to_le_bytes());
    head.extend(body);
    head
}
