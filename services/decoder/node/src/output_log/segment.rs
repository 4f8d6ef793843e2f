//! One segment file of the output log: a header that names cluster and place, then entries.
//!
//! ```text
//! 0 magic   8 CRC-32C of all that follows   12 zero   16 system id   24 first ordinal   32 complete before
//! ```

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use pg_types::Lsn;

use super::LogError;
use super::entry::{ENTRY_HEADER_LEN, Entry, EntryHeader};
use crate::durable_file::PRIVATE_MODE;

/// Bytes of a segment's header.
pub(super) const SEGMENT_HEADER_LEN: usize = 40;

/// First bytes of a segment: name and version of the format.
const MAGIC: [u8; 8] = *b"WSOUTLG1";

/// Ending of segment files' names.
const EXTENSION: &str = "outlog";

/// Entries get a row in a segment's index at least this many bytes apart.
const INDEX_STEP: u64 = 64 << 10;

/// Where an entry is that begins a transaction: a row of the sparse index.
#[derive(Clone, Copy, Debug)]
struct IndexRow {
    /// The entry's number.
    ordinal: u64,
    /// Complete before it.
    prev_end: Lsn,
    /// Its place in the file.
    offset: u64,
}

/// A segment, open for reading and, if it is the last one, for appending by the log's writer.
#[derive(Debug)]
pub(super) struct Segment {
    /// Its file's path, for messages and removal.
    pub(super) path: PathBuf,
    /// Shared by the writer, the flusher and all readers; all of them read and write at explicit offsets.
    pub(super) file: File,
    /// Ordinal of its first entry; also its name.
    pub(super) first_ordinal: u64,
    /// Everything that ends at or below this is in earlier segments.
    pub(super) base: Lsn,
    /// Some entries' places in ascending order. Filled by appending and by scanning; a segment of an earlier run gets its rows
    /// when the first reader comes.
    index: Mutex<Vec<IndexRow>>,
}

/// What scanning a segment for its entries found.
#[derive(Debug)]
pub(super) struct Scan {
    /// Offset behind the last entry after which no transaction is open.
    pub(super) good_len: u64,
    /// Ordinal for the next entry there.
    pub(super) next_ordinal: u64,
    /// Complete up to here.
    pub(super) end: Lsn,
    /// Why the scan stopped before the end of the file, if it did.
    pub(super) bad: Option<&'static str>,
}

impl Segment {
    /// The path of the segment in `dir` whose first entry has this ordinal.
    pub(super) fn path_of(dir: &Path, first_ordinal: u64) -> PathBuf {
        dir.join(format!("{first_ordinal:016x}.{EXTENSION}"))
    }

    /// The ordinal in a segment file's name; `None` for other files.
    pub(super) fn ordinal_of(path: &Path) -> Option<u64> {
        let stem = path.file_stem()?.to_str()?;
        let is_ours = path.extension()? == EXTENSION && stem.len() == 16;
        if is_ours { u64::from_str_radix(stem, 16).ok() } else { None }
    }

    /// Makes a new segment and writes its header; it is durable when the caller flushed file and folder.
    pub(super) fn create(dir: &Path, system_id: u64, first_ordinal: u64, base: Lsn) -> io::Result<Self> {
        let path = Self::path_of(dir, first_ordinal);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(PRIVATE_MODE).open(&path)?;
        let mut header = [0; SEGMENT_HEADER_LEN];
        header[..8].copy_from_slice(&MAGIC);
        header[16..24].copy_from_slice(&system_id.to_le_bytes());
        header[24..32].copy_from_slice(&first_ordinal.to_le_bytes());
        header[32..40].copy_from_slice(&base.0.to_le_bytes());
        let crc = crc32c::crc32c(&header[12..]);
        header[8..12].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&header, 0)?;
        Ok(Self { path, file, first_ordinal, base, index: Mutex::default() })
    }

    /// Opens an existing segment. `Ok(None)`: its header is torn or damaged.
    pub(super) fn open(path: &Path, system_id: u64) -> Result<Option<Self>, LogError> {
        let io = |source| LogError::Io { action: "open", path: path.to_owned(), source };
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(io)?;
        let mut header = [0; SEGMENT_HEADER_LEN];
        if !read_fully(&file, &mut header, 0).map_err(io)? {
            return Ok(None);
        }
        let u64_at = |at: usize| header[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let crc = header[8..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        let first_ordinal = u64_at(24);
        let right_place = Self::ordinal_of(path) == Some(first_ordinal);
        if header[..8] != MAGIC || crc != crc32c::crc32c(&header[12..]) || !right_place {
            return Ok(None);
        }
        if u64_at(16) != system_id {
            let (found, expected) = (u64_at(16), system_id);
            return Err(LogError::OtherCluster { path: path.to_owned(), found, expected });
        }
        let base = Lsn(u64_at(32));
        Ok(Some(Self { path: path.to_owned(), file, first_ordinal, base, index: Mutex::default() }))
    }

    /// Reads and checks every entry, filling the index; stops at the first bad one.
    pub(super) fn scan(&self) -> Result<Scan, LogError> {
        let mut at = SEGMENT_HEADER_LEN as u64;
        let mut scan = Scan { good_len: at, next_ordinal: self.first_ordinal, end: self.base, bad: None };
        let mut ordinal = self.first_ordinal;
        loop {
            match self.read_entry(at, ordinal, scan.end)? {
                Read::Entry(entry) => {
                    if ordinal == scan.next_ordinal {
                        self.note(&entry, at);
                    }
                    at += (ENTRY_HEADER_LEN + entry.payload.len()) as u64;
                    ordinal += 1;
                    if !entry.is_fragment() {
                        scan = Scan { good_len: at, next_ordinal: ordinal, end: entry.end, bad: None };
                    }
                }
                Read::Nothing if at == scan.good_len => return Ok(scan),
                Read::Nothing => return Ok(Scan { bad: Some("its last transaction is not complete"), ..scan }),
                Read::Bad(reason) => return Ok(Scan { bad: Some(reason), ..scan }),
            }
        }
    }

    /// Reads and checks the entry at `offset`, which must have this number and continue the log at `prev_end`.
    pub(super) fn read_entry(&self, offset: u64, ordinal: u64, prev_end: Lsn) -> Result<Read, LogError> {
        let io = |source| LogError::Io { action: "read", path: self.path.clone(), source };
        let mut header = [0; ENTRY_HEADER_LEN];
        if !read_fully(&self.file, &mut header, offset).map_err(io)? {
            let len = self.file.metadata().map_err(io)?.len();
            return Ok(if len <= offset { Read::Nothing } else { Read::Bad("it is cut off in its header") });
        }
        let parsed = match EntryHeader::parse(&header) {
            Ok(parsed) => parsed,
            Err(reason) => return Ok(Read::Bad(reason)),
        };
        if parsed.ordinal != ordinal || parsed.prev_end != prev_end {
            return Ok(Read::Bad("it does not continue the entry before it"));
        }
        let mut payload = vec![0; parsed.payload_len];
        if !read_fully(&self.file, &mut payload, offset + ENTRY_HEADER_LEN as u64).map_err(io)? {
            return Ok(Read::Bad("it is cut off"));
        }
        if let Err(reason) = parsed.verify(&header, &payload) {
            return Ok(Read::Bad(reason));
        }
        let EntryHeader { ordinal, prev_end, end, items, .. } = parsed;
        Ok(Read::Entry(Entry { ordinal, prev_end, end, items, payload: Bytes::from(payload) }))
    }

    /// Puts an entry that begins a transaction into the index if the last row is far enough away.
    pub(super) fn note(&self, entry: &Entry, offset: u64) {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        if index.last().is_none_or(|row| row.offset + INDEX_STEP <= offset) {
            index.push(IndexRow { ordinal: entry.ordinal, prev_end: entry.prev_end, offset });
        }
    }

    /// A place from which to walk to the last entry that has `before(ordinal, prev_end)`: offset, ordinal and `prev_end` there.
    pub(super) fn seek(&self, before: impl Fn(u64, Lsn) -> bool) -> (u64, u64, Lsn) {
        let index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = index.partition_point(|row| before(row.ordinal, row.prev_end));
        let start = (SEGMENT_HEADER_LEN as u64, self.first_ordinal, self.base);
        rows.checked_sub(1).and_then(|i| index.get(i)).map_or(start, |row| (row.offset, row.ordinal, row.prev_end))
    }
}

/// What is at a place of a segment.
#[derive(Debug)]
pub(super) enum Read {
    /// A good entry.
    Entry(Entry),
    /// The end of the file.
    Nothing,
    /// Something else; why it is no entry.
    Bad(&'static str),
}

/// Fills `buf` from `offset`; false if the file ends before.
fn read_fully(file: &File, buf: &mut [u8], offset: u64) -> io::Result<bool> {
    match file.read_exact_at(buf, offset) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}
