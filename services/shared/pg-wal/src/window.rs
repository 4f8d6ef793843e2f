//! The piece of one segment file that the reader holds in memory.
//!
//! Plain positioned reads of up to 256 KiB into one buffer: it stays in the processor's cache, memory stays constant, and a file
//! that shrinks or fails under the reader gives an error where a mapping would kill the process.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use pg_types::Lsn;

use crate::dir::WalDir;
use crate::error::WalError;
use crate::page::{PAGE_SIZE, page_start};

/// Most bytes read at once.
const READ_MAX: usize = 64 << 10;
/// Bytes of a page.
const PAGE: usize = PAGE_SIZE as usize;

/// A segment file that is open.
#[derive(Debug)]
struct OpenSegment {
    /// Its first position.
    start: Lsn,
    /// Its path.
    path: PathBuf,
    /// The file.
    file: File,
}

/// Pages of one segment.
#[derive(Debug)]
pub(crate) struct Window {
    /// The bytes, as many as were read last.
    buf: Vec<u8>,
    /// Position of the first.
    start: Lsn,
    /// How many bytes to read next: one page after a jump or a refresh, then doubled, so that following a growing log is cheap.
    read_next: usize,
    /// The file read last.
    open: Option<OpenSegment>,
}

/// Whether a page could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetched {
    /// It is in the buffer at this offset.
    At(usize),
    /// Its segment's file is not there.
    Missing,
    /// Its segment's file ends before its end.
    Short {
        /// Bytes of the file.
        len: u64,
    },
}

impl Window {
    /// An empty one.
    pub(crate) fn new() -> Self {
        Self { buf: Vec::new(), start: Lsn::INVALID, read_next: PAGE, open: None }
    }

    /// Bytes of the buffer.
    #[inline]
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        self.buf.get(offset..).and_then(|b| b.get(..len)).unwrap_or_default()
    }

    /// Forgets what was read, because the file may have changed.
    pub(crate) fn forget(&mut self) {
        self.buf.clear();
        self.open = None;
        self.read_next = PAGE;
    }

    /// Path of the file read last.
    pub(crate) fn path(&self) -> Option<&PathBuf> {
        self.open.as_ref().map(|o| &o.path)
    }

    /// Brings a page into the buffer.
    pub(crate) fn fetch(&mut self, dir: &WalDir, page: Lsn) -> Result<Fetched, WalError> {
        debug_assert_eq!(page, page_start(page));
        if let Some(offset) = page.0.checked_sub(self.start.0)
            && offset.saturating_add(PAGE as u64) <= self.buf.len() as u64
        {
            return Ok(Fetched::At(offset as usize));
        }
        let segment_size = u64::from(dir.identity().segment_size);
        let offset = page.0 & (segment_size - 1);
        if !self.open_segment(dir, Lsn(page.0 - offset))? {
            return Ok(Fetched::Missing);
        }
        let want = self.read_next.min((segment_size - offset) as usize);
        self.read_next = self.read_next.saturating_mul(2).min(READ_MAX);
        let got = self.read(offset, want)?;
        self.start = page;
        // Whole pages only; a file that ends inside one is short.
        self.buf.truncate(got - got % PAGE);
        Ok(if self.buf.is_empty() { Fetched::Short { len: offset + got as u64 } } else { Fetched::At(0) })
    }

    /// Opens the segment that starts at `start`, unless it is open. False if it is not there.
    fn open_segment(&mut self, dir: &WalDir, start: Lsn) -> Result<bool, WalError> {
        if self.open.as_ref().is_some_and(|o| o.start == start) {
            return Ok(true);
        }
        self.buf.clear();
        self.open = None;
        let Some(segment) = dir.find(start) else { return Ok(false) };
        let Some(file) = dir.open_file(&segment)? else { return Ok(false) };
        self.open = Some(OpenSegment { start, path: segment.path, file });
        Ok(true)
    }

    /// Reads up to `want` bytes of the open file into the buffer and returns how many there were.
    fn read(&mut self, offset: u64, want: usize) -> Result<usize, WalError> {
        self.buf.resize(want, 0);
        let Some(open) = &self.open else { return Ok(0) };
        let mut got = 0;
        while got < want {
            let room = self.buf.get_mut(got..).unwrap_or_default();
            match open.file.read_at(room, offset + got as u64) {
                Ok(0) => break,
                Ok(n) => got += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(WalError::Io { path: open.path.clone(), source }),
            }
        }
        Ok(got)
    }

    /// The first position from `from` on, in the same segment, whose byte is not zero. Nothing if there is none up to the
    /// file's end. The buffer is not kept.
    pub(crate) fn first_nonzero(&mut self, dir: &WalDir, from: Lsn) -> Result<Option<Lsn>, WalError> {
        let segment_size = u64::from(dir.identity().segment_size);
        let segment = Lsn(from.0 & !(segment_size - 1));
        if !self.open_segment(dir, segment)? {
            return Ok(None);
        }
        let mut offset = from.0 - segment.0;
        let mut found = None;
        while offset < segment_size {
            let want = READ_MAX.min((segment_size - offset) as usize);
            let got = self.read(offset, want)?;
            let bytes = self.buf.get(..got).unwrap_or_default();
            if let Some(at) = first_nonzero(bytes) {
                found = Some(Lsn(segment.0 + offset + at as u64));
                break;
            }
            if got < want {
                break;
            }
            offset += got as u64;
        }
        self.buf.clear();
        Ok(found)
    }

    /// Bytes of the open file.
    pub(crate) fn file_len(&self) -> Result<u64, WalError> {
        let Some(open) = &self.open else { return Ok(0) };
        open.file.metadata().map(|m| m.len()).map_err(|source| WalError::Io { path: open.path.clone(), source })
    }
}

/// Index of the first byte that is not zero.
pub(crate) fn first_nonzero(bytes: &[u8]) -> Option<usize> {
    // Whole words first: this runs over up to a gigabyte.
    let words = bytes.chunks_exact(64).take_while(|c| c.iter().fold(0, |a, b| a | b) == 0).count() * 64;
    bytes.get(words..)?.iter().position(|&b| b != 0).map(|at| words + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_nonzero_finds_every_place() {
        for len in [0, 1, 63, 64, 65, 200] {
            assert_eq!(first_nonzero(&vec![0; len]), None);
            for at in 0..len {
                let mut bytes = vec![0; len];
                bytes[at] = 1;
                assert_eq!(first_nonzero(&bytes), Some(at));
            }
        }
    }
}
