//! Brings one object into a file: unpacked, never larger than a segment, and told apart from what only half came.
//!
//! ```text
//!   store ──chunks──► channel of 4 ──► unpack by the first bytes ──► file      (a blocking task)
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use bytes::{Buf, Bytes};
use futures_util::TryStreamExt;
use object_store::{ObjectStore, ObjectStoreExt};
use tokio::sync::mpsc;

use super::remote::{Object, is_transient};

/// Chunks that wait for the disk.
const CHUNKS_MAX: usize = 4;
/// Bytes that are written at once.
const WRITE_BYTES: usize = 256 << 10;
/// Bytes by which a format is recognised.
const MAGIC_BYTES: usize = 6;

/// Why an object is not in its file.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It is not there any more.
    Gone,
    /// The store did not give it; another attempt may help.
    Transient(String),
    /// The store refuses.
    Refused(String),
    /// It came whole, and cannot be unpacked.
    Damaged(String),
    /// The file cannot be written; another attempt may help once there is space.
    Disk(io::Error),
}

/// A file with a segment's bytes.
#[derive(Debug)]
pub(super) struct Downloaded {
    /// The file, open to be read.
    pub(super) file: File,
    /// Its bytes.
    pub(super) bytes: u64,
}

/// Brings `object` into the file `to`, which is made anew. At most `bytes_max` are written, whatever the object unpacks to.
///
/// # Errors
/// See [`Trouble`]. The file is then of no use.
pub(super) async fn download(
    store: &dyn ObjectStore,
    object: &Object,
    to: &Path,
    bytes_max: u64,
) -> Result<Downloaded, Trouble> {
    let got = store.get(&object.path).await.map_err(|e| store_trouble(&e))?;
    let expected = got.range.end - got.range.start;
    let mut chunks = got.into_stream();
    let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
    let to = to.to_owned();
    let writer =
        tokio::task::spawn_blocking(move || write(ChunkReader { chunks: receiver, left: Bytes::new() }, &to, bytes_max));
    let mut received = 0;
    let broken = loop {
        match chunks.try_next().await {
            Ok(Some(chunk)) => {
                received += chunk.len() as u64;
                if sender.send(chunk).await.is_err() {
                    // The writer is done, or has failed and says why.
                    received = expected;
                    break None;
                }
            }
            Ok(None) => break None,
            Err(error) => break Some(store_trouble(&error)),
        }
    };
    drop(sender);
    let written = writer.await.map_err(|e| Trouble::Transient(format!("the writer failed: {e}")))?;
    match broken {
        Some(trouble) => Err(trouble),
        None if received != expected => Err(Trouble::Transient(format!("only {received} of {expected} bytes came"))),
        None => written,
    }
}

/// What an error of the store means.
fn store_trouble(error: &object_store::Error) -> Trouble {
    let text = service_kit::error_text(error);
    match error {
        object_store::Error::NotFound { .. } => Trouble::Gone,
        error if is_transient(error) => Trouble::Transient(text),
        // It was replaced while it was read.
        object_store::Error::Precondition { .. } | object_store::Error::NotModified { .. } => Trouble::Transient(text),
        _ => Trouble::Refused(text),
    }
}

/// Unpacks into the file.
fn write(packed: ChunkReader, to: &Path, bytes_max: u64) -> Result<Downloaded, Trouble> {
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(true).mode(0o600).open(to);
    let file = open.map_err(Trouble::Disk)?;
    let mut out = BufWriter::with_capacity(WRITE_BYTES, &file);
    let bytes = unpack(packed, bytes_max, |bytes| out.write_all(bytes).map_err(Trouble::Disk))?;
    out.flush().map_err(Trouble::Disk)?;
    drop(out);
    Ok(Downloaded { file, bytes })
}

/// Unpacks by what the first bytes say; the name may not tell (barman compresses without a suffix).
fn unpack(mut packed: impl Read, bytes_max: u64, mut out: impl FnMut(&[u8]) -> Result<(), Trouble>) -> Result<u64, Trouble> {
    let mut head = Vec::with_capacity(MAGIC_BYTES);
    packed.by_ref().take(MAGIC_BYTES as u64).read_to_end(&mut head).map_err(|e| Trouble::Transient(e.to_string()))?;
    let format = Format::of(&head);
    let packed = Read::chain(io::Cursor::new(head), packed);
    let damaged = |e: &io::Error| Trouble::Damaged(format!("its {} cannot be unpacked: {e}", format.name()));
    let mut unpacked: Box<dyn Read> = match format {
        Format::Plain => Box::new(packed),
        Format::Gzip => Box::new(flate2::read::MultiGzDecoder::new(packed)),
        Format::Zstd => Box::new(zstd::Decoder::new(packed).map_err(|e| damaged(&e))?),
        Format::Lz4 => Box::new(lz4_flex::frame::FrameDecoder::new(packed)),
        Format::Bzip2 | Format::Xz => {
            return Err(Trouble::Damaged(format!(
                "it is packed as {}, which is not read: use zstd, gzip or lz4",
                format.name()
            )));
        }
    };
    let mut buffer = vec![0; WRITE_BYTES];
    let mut bytes = 0;
    loop {
        let got = match unpacked.read(&mut buffer) {
            Ok(0) => return Ok(bytes),
            Ok(got) => got,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(damaged(&e)),
        };
        bytes += got as u64;
        if bytes > bytes_max {
            return Err(Trouble::Damaged(format!("it holds more than the {bytes_max} bytes of a segment")));
        }
        out(buffer.get(..got).unwrap_or_default())?;
    }
}

/// The text of a history file, unpacked.
pub(super) fn history_text(bytes: &[u8], bytes_max: u64) -> Result<String, String> {
    let mut text = Vec::new();
    let unpacked = unpack(bytes, bytes_max, |bytes| {
        text.extend_from_slice(bytes);
        Ok(())
    });
    match unpacked {
        Ok(_) => String::from_utf8(text).map_err(|_| "it is no text".to_owned()),
        Err(Trouble::Damaged(reason)) => Err(reason),
        Err(trouble) => Err(format!("{trouble:?}")),
    }
}

/// How an object is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// Not at all.
    Plain,
    /// RFC 1952; also several members one behind the other, as parallel packers write.
    Gzip,
    /// RFC 8878.
    Zstd,
    /// The LZ4 frame format.
    Lz4,
    /// Known by its magic, and not read.
    Bzip2,
    /// Known by its magic, and not read.
    Xz,
}

impl Format {
    /// The format of what begins so. No page of WAL begins like any of them: its magic is D1xx, the low byte first.
    fn of(head: &[u8]) -> Self {
        match head {
            [0x1f, 0x8b, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            [0x04, 0x22, 0x4d, 0x18, ..] => Self::Lz4,
            [b'B', b'Z', b'h', ..] => Self::Bzip2,
            [0xfd, b'7', b'z', b'X', b'Z', 0] => Self::Xz,
            _ => Self::Plain,
        }
    }

    /// For messages.
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "content",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
            Self::Lz4 => "lz4",
            Self::Bzip2 => "bzip2",
            Self::Xz => "xz",
        }
    }
}

/// Reads what comes through a channel; its end is the end of the chunks.
struct ChunkReader {
    /// Chunks of the object.
    chunks: mpsc::Receiver<Bytes>,
    /// What is left of the last one.
    left: Bytes,
}

impl Read for ChunkReader {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        while self.left.is_empty() {
            match self.chunks.blocking_recv() {
                Some(chunk) => self.left = chunk,
                None => return Ok(0),
            }
        }
        let take = self.left.len().min(room.len());
        self.left.copy_to_slice(room.get_mut(..take).unwrap_or_default());
        Ok(take)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unpacked(packed: &[u8], bytes_max: u64) -> Result<Vec<u8>, Trouble> {
        let mut out = Vec::new();
        unpack(packed, bytes_max, |bytes| {
            out.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(out)
    }

    /// `bytes` in each format that is read.
    fn packed(bytes: &[u8]) -> [Vec<u8>; 4] {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(bytes).unwrap();
        let mut lz4 = lz4_flex::frame::FrameEncoder::new(Vec::new());
        lz4.write_all(bytes).unwrap();
        [bytes.to_vec(), gzip.finish().unwrap(), zstd::encode_all(bytes, 1).unwrap(), lz4.finish().unwrap()]
    }

    #[test]
    fn formats_are_recognised_by_their_bytes_and_bounded() {
        let bytes: Vec<u8> = (0..100_000u32).flat_map(u32::to_le_bytes).collect();
        for packed in packed(&bytes) {
            assert_eq!(unpacked(&packed, bytes.len() as u64).unwrap(), bytes);
            let error = unpacked(&packed, bytes.len() as u64 - 1).unwrap_err();
            assert!(matches!(error, Trouble::Damaged(reason) if reason.contains("more than the 399999 bytes")));
        }
        let [_, gzip, ..] = packed(b"one");
        assert_eq!(unpacked(&[gzip.clone(), gzip].concat(), 6).unwrap(), b"oneone", "members one behind the other");
        assert_eq!(unpacked(b"", 6).unwrap(), b"");
    }

    #[test]
    fn what_is_cut_or_not_read_is_named() {
        let [_, gzip, zstd, lz4] = packed(&[7; 100_000]);
        for (bytes, name) in [(gzip, "gzip"), (zstd, "zstd"), (lz4, "lz4")] {
            let error = unpacked(&bytes[..bytes.len() / 2], 1 << 20).unwrap_err();
            assert!(matches!(&error, Trouble::Damaged(reason) if reason.contains(name)), "{error:?}");
        }
        for (bytes, name) in [(&b"BZh91AY"[..], "bzip2"), (&b"\xfd7zXZ\0\0"[..], "xz")] {
            let error = unpacked(bytes, 1 << 20).unwrap_err();
            assert!(
                matches!(&error, Trouble::Damaged(reason) if reason.contains(name) && reason.contains("use zstd")),
                "{error:?}"
            );
        }
    }
}
