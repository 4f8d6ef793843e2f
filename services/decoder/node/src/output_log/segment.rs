//! One segment file of the output log: a header that names cluster and place, then entries.
//!
//! ```text
//! 0 magic and format   8 CRC-32C of the format and all that follows   12 bytes of the list   16 system id   24 first ordinal   32 complete before
//! 40 list of transactions that earlier segments hold a part of, as a rule empty …
//! ```

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use pg_types::Lsn;

use super::entry::{ENTRY_HEADER_LEN, Entry, EntryHeader};
use super::open::OpenTransactions;
use super::{LogError, REBUILD_REMEDY};
use crate::durable_file::PRIVATE_MODE;

/// Bytes of a segment's header before the list.
pub(super) const SEGMENT_HEADER_LEN: usize = 40;

/// Bytes of the list at most: a hundred times as many transactions as a server runs.
const LIST_LEN_MAX: usize = 64 << 20;

/// First bytes of a segment; the byte behind them is the format.
const MAGIC: [u8; 7] = *b"WSOUTLG";

/// The format that is written: events tell the origin of a transaction.
pub(super) const FORMAT: u8 = b'2';

/// Formats that are read. The first tells no origins, so that what was made elsewhere looks as if it was made here.
const FORMATS: [u8; 2] = [b'1', FORMAT];

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
    /// Its format.
    pub(super) format: u8,
    /// Ordinal of its first entry; also its name.
    pub(super) first_ordinal: u64,
    /// Everything that ends at or below this is in earlier segments.
    pub(super) base: Lsn,
    /// Transactions that earlier segments hold a part of.
    pub(super) open: OpenTransactions,
    /// Bytes of its header and list.
    pub(super) header_len: u64,
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
    /// Transactions that the log holds a part of there.
    pub(super) open: OpenTransactions,
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
    pub(super) fn create(
        dir: &Path,
        system_id: u64,
        first_ordinal: u64,
        base: Lsn,
        open: OpenTransactions,
    ) -> io::Result<Self> {
        let path = Self::path_of(dir, first_ordinal);
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(PRIVATE_MODE).open(&path)?;
        let list = open.encode();
        let mut header = vec![0; SEGMENT_HEADER_LEN];
        header[..7].copy_from_slice(&MAGIC);
        header[7] = FORMAT;
        header[12..16].copy_from_slice(&(list.len() as u32).to_le_bytes());
        header[16..24].copy_from_slice(&system_id.to_le_bytes());
        header[24..32].copy_from_slice(&first_ordinal.to_le_bytes());
        header[32..40].copy_from_slice(&base.0.to_le_bytes());
        header.extend_from_slice(&list);
        let crc = header_crc(FORMAT, &header[12..]);
        header[8..12].copy_from_slice(&crc.to_le_bytes());
        file.write_all_at(&header, 0)?;
        Ok(Self {
            path,
            file,
            format: FORMAT,
            first_ordinal,
            base,
            open,
            header_len: header.len() as u64,
            index: Mutex::default(),
        })
    }

    /// Bytes that the header and the list of a segment file should have, as far as it tells.
    pub(super) fn header_len_of(path: &Path) -> io::Result<u64> {
        let mut header = [0; SEGMENT_HEADER_LEN];
        let whole = read_fully(&File::open(path)?, &mut header, 0)?;
        let list = header[12..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b) as usize);
        let told = whole && header[..7] == MAGIC && list <= LIST_LEN_MAX;
        Ok((SEGMENT_HEADER_LEN + if told { list } else { 0 }) as u64)
    }

    /// Opens an existing segment. `Ok(None)`: its header is torn or damaged.
    pub(super) fn open(path: &Path, system_id: u64) -> Result<Option<Self>, LogError> {
        let io = |source| LogError::Io { action: "open", path: path.to_owned(), source };
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(io)?;
        let mut header = [0; SEGMENT_HEADER_LEN];
        if !read_fully(&file, &mut header, 0).map_err(io)? {
            return Ok(None);
        }
        let u32_at = |at: usize| header[at..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
        let u64_at = |at: usize| header[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        let (crc, first_ordinal, list_len) = (u32_at(8), u64_at(24), u32_at(12) as usize);
        if header[..7] != MAGIC || list_len > LIST_LEN_MAX || Self::ordinal_of(path) != Some(first_ordinal) {
            return Ok(None);
        }
        let mut list = vec![0; list_len];
        let whole = read_fully(&file, &mut list, SEGMENT_HEADER_LEN as u64).map_err(io)?;
        let format = header[7];
        if !whole || crc != crc32c::crc32c_append(header_crc(format, &header[12..]), &list) {
            return Ok(None);
        }
        if !FORMATS.contains(&format) {
            return Err(LogError::Format { path: path.to_owned(), found: char::from(format), remedy: REBUILD_REMEDY });
        }
        let Some(open) = OpenTransactions::decode(&list) else { return Ok(None) };
        if u64_at(16) != system_id {
            let (found, expected) = (u64_at(16), system_id);
            return Err(LogError::OtherCluster { path: path.to_owned(), found, expected });
        }
        let base = Lsn(u64_at(32));
        let header_len = (SEGMENT_HEADER_LEN + list_len) as u64;
        Ok(Some(Self { path: path.to_owned(), file, format, first_ordinal, base, open, header_len, index: Mutex::default() }))
    }

    /// Reads and checks every entry, filling the index; stops at the first bad one.
    pub(super) fn scan(&self) -> Result<Scan, LogError> {
        let mut at = self.header_len;
        let (mut open, mut marks) = (self.open.clone(), Vec::new());
        let mut scan = Scan { good_len: at, next_ordinal: self.first_ordinal, end: self.base, open: open.clone(), bad: None };
        let mut ordinal = self.first_ordinal;
        loop {
            match self.read_entry(at, ordinal, scan.end)? {
                Read::Entry(entry) => {
                    if ordinal == scan.next_ordinal {
                        self.note(&entry, at);
                    }
                    if (entry.in_progress || !marks.is_empty()) && open.read(&mut marks, &entry, Lsn(u64::MAX)).is_err() {
                        return Ok(Scan { bad: Some("its payload is none"), ..scan });
                    }
                    at += (ENTRY_HEADER_LEN + entry.payload.len()) as u64;
                    ordinal += 1;
                    if !entry.is_fragment() {
                        (scan.good_len, scan.next_ordinal, scan.end) = (at, ordinal, entry.end);
                        scan.open.clone_from(&open);
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
        let EntryHeader { ordinal, prev_end, end, items, in_progress, .. } = parsed;
        Ok(Read::Entry(Entry { ordinal, prev_end, end, items, in_progress, payload: Bytes::from(payload) }))
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
        let start = (self.header_len, self.first_ordinal, self.base);
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

/// The checksum of a header of this format, whose part behind it is `rest`; the first format is not covered itself.
fn header_crc(format: u8, rest: &[u8]) -> u32 {
    let covered: &[u8] = if format == FORMATS[0] { &[] } else { &[format] };
    crc32c::crc32c_append(crc32c::crc32c(covered), rest)
}

/// Fills `buf` from `offset`; false if the file ends before.
fn read_fully(file: &File, buf: &mut [u8], offset: u64) -> io::Result<bool> {
    match file.read_exact_at(buf, offset) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(e),
    }
}
