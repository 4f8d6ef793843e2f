//! The parts of a record: block references with images and data, origin, top-level transaction, main data
//! (`DecodeXLogRecord` in `access/transam/xlogreader.c`).
//!
//! All headers come first, then the data they announce in the same order. Images are located and measured, not restored.

use pg_types::{Oid, RelFileLocator, Xid};

use crate::cursor::Cursor;
use crate::error::Malformed;
use crate::page::PAGE_SIZE;
use crate::profile::WalProfile;
use crate::record::RECORD_HEADER_LEN;

/// `XLR_MAX_BLOCK_ID`.
const MAX_BLOCK_ID: u8 = 32;
/// `XLR_BLOCK_ID_DATA_SHORT`.
const DATA_SHORT: u8 = 255;
/// `XLR_BLOCK_ID_DATA_LONG`.
const DATA_LONG: u8 = 254;
/// `XLR_BLOCK_ID_ORIGIN`.
const ORIGIN: u8 = 253;
/// `XLR_BLOCK_ID_TOPLEVEL_XID`, 14 and later.
const TOPLEVEL_XID: u8 = 252;

/// `BKPBLOCK_FORK_MASK`.
const FORK_MASK: u8 = 0x0F;
/// `BKPBLOCK_HAS_IMAGE`.
const HAS_IMAGE: u8 = 0x10;
/// `BKPBLOCK_HAS_DATA`.
const HAS_DATA: u8 = 0x20;
/// `BKPBLOCK_WILL_INIT`.
const WILL_INIT: u8 = 0x40;
/// `BKPBLOCK_SAME_REL`.
const SAME_REL: u8 = 0x80;
/// `BKPIMAGE_HAS_HOLE`.
const HAS_HOLE: u8 = 0x01;

/// How an image is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// PostgreSQL's own method.
    Pglz,
    /// LZ4 (15 and later).
    Lz4,
    /// Zstandard (15 and later).
    Zstd,
}

/// A page image as it stands in the record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockImage<'a> {
    /// Its bytes, compressed or not, without the hole.
    pub bytes: &'a [u8],
    /// Where the hole is.
    pub hole_offset: u16,
    /// Bytes of the hole, 0 if none.
    pub hole_len: u16,
    /// How it is compressed.
    pub compression: Compression,
    /// Replay restores it; otherwise it is there only to be compared (`wal_consistency_checking`).
    pub apply: bool,
}

/// A reference to a block that the record changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockRef<'a> {
    /// Its number in the record.
    pub id: u8,
    /// 0 main, 1 fsm, 2 vm, 3 init.
    pub fork: u8,
    /// Replay initialises the page.
    pub will_init: bool,
    /// The file.
    pub locator: RelFileLocator,
    /// The block in it.
    pub block: u32,
    /// The page image, if there is one.
    pub image: Option<BlockImage<'a>>,
    /// What the operation stores with it.
    pub data: &'a [u8],
    /// There is data, were it empty.
    pub has_data: bool,
}

/// Block references kept without allocation; nearly all records have fewer.
const INLINE_BLOCKS: usize = 3;

/// A record taken apart.
#[derive(Clone, Debug, Default)]
pub struct RecordParts<'a> {
    /// The first references.
    inline: [BlockRef<'a>; INLINE_BLOCKS],
    /// How many of `inline` are used.
    inline_len: usize,
    /// The rest.
    more: Vec<BlockRef<'a>>,
    /// What belongs to no block.
    pub main: &'a [u8],
    /// Replication origin, 0 if none.
    pub origin: u16,
    /// Top-level transaction, if the record says so.
    pub top_xid: Xid,
}

/// What one image header announces.
#[derive(Clone, Copy)]
struct ImageHeader {
    /// Bytes in the record.
    len: u16,
    /// Where the hole is.
    hole_offset: u16,
    /// Bytes of the hole.
    hole_len: u16,
    /// How it is compressed.
    compression: Compression,
    /// Replay restores it.
    apply: bool,
}

impl<'a> RecordParts<'a> {
    /// Takes a whole record apart.
    ///
    /// # Errors
    /// If its inner headers contradict each other or its length.
    #[inline]
    pub fn parse(record: &'a [u8], profile: &WalProfile) -> Result<Self, Malformed> {
        let mut parts = Self::default();
        let mut headers = Cursor::new(record.get(RECORD_HEADER_LEN..).unwrap_or_default());
        // The data stands behind all headers; its start is known only when they have been read. Until then the references hold
        // lengths, as slices of the record's own start.
        let mut announced = 0usize;
        let mut main_len = 0usize;
        while headers.left() > announced {
            match headers.u8()? {
                DATA_SHORT => {
                    main_len = usize::from(headers.u8()?);
                    announced += main_len;
                    break;
                }
                DATA_LONG => {
                    main_len = headers.u32()? as usize;
                    announced = announced.saturating_add(main_len);
                    break;
                }
                ORIGIN => parts.origin = headers.u16()?,
                TOPLEVEL_XID if profile.has_top_xid => parts.top_xid = Xid(headers.u32()?),
                id if id <= MAX_BLOCK_ID => announced += parts.read_block(id, &mut headers, record, profile)?,
                id => return Err(Malformed::BlockId(id)),
            }
        }
        if headers.left() != announced {
            return Err(Malformed::Length { described: announced, present: headers.left() });
        }
        let mut data = headers;
        for block in parts.inline.iter_mut().take(parts.inline_len).chain(&mut parts.more) {
            if let Some(image) = &mut block.image {
                image.bytes = data.take(image.bytes.len())?;
            }
            block.data = data.take(block.data.len())?;
        }
        parts.main = data.take(main_len)?;
        Ok(parts)
    }

    /// Reads one block header and stores the reference, its lengths as slices of `record`. Returns the bytes of data it
    /// announces.
    #[inline]
    fn read_block(&mut self, id: u8, c: &mut Cursor<'a>, record: &'a [u8], profile: &WalProfile) -> Result<usize, Malformed> {
        let last = self.last();
        if last.is_some_and(|last| id <= last.id) {
            return Err(Malformed::BlockId(id));
        }
        let flags = c.u8()?;
        let data_len = usize::from(c.u16()?);
        let has_data = flags & HAS_DATA != 0;
        if has_data != (data_len > 0) {
            return Err(Malformed::BlockData(id));
        }
        let mut announced = data_len;
        let mut image = None;
        if flags & HAS_IMAGE != 0 {
            let header = read_image_header(id, c, profile)?;
            announced += usize::from(header.len);
            image = Some(BlockImage {
                bytes: placeholder(record, usize::from(header.len))?,
                hole_offset: header.hole_offset,
                hole_len: header.hole_len,
                compression: header.compression,
                apply: header.apply,
            });
        }
        let locator = if flags & SAME_REL == 0 {
            read_locator(c)?
        } else {
            last.map(|last| last.locator).ok_or(Malformed::NoRelation(id))?
        };
        let block = BlockRef {
            id,
            fork: flags & FORK_MASK,
            will_init: flags & WILL_INIT != 0,
            locator,
            block: c.u32()?,
            image,
            data: placeholder(record, data_len)?,
            has_data,
        };
        match self.inline.get_mut(self.inline_len) {
            Some(slot) => {
                *slot = block;
                self.inline_len += 1;
            }
            None => self.more.push(block),
        }
        Ok(announced)
    }

    /// The reference read last.
    fn last(&self) -> Option<&BlockRef<'a>> {
        self.more.last().or_else(|| self.inline.get(self.inline_len.checked_sub(1)?))
    }

    /// The block references, in the order of their ids.
    pub fn blocks(&self) -> impl Iterator<Item = &BlockRef<'a>> {
        self.inline.iter().take(self.inline_len).chain(&self.more)
    }

    /// The block reference with this id.
    ///
    /// # Errors
    /// [`Malformed::NoBlock`] if the record has none.
    #[inline]
    pub fn block(&self, id: u8) -> Result<&BlockRef<'a>, Malformed> {
        self.blocks().find(|b| b.id == id).ok_or(Malformed::NoBlock(id))
    }

    /// Bytes of all page images in the record.
    #[must_use]
    pub fn images_len(&self) -> u32 {
        self.blocks().filter_map(|b| b.image.as_ref()).map(|i| i.bytes.len() as u32).sum()
    }
}

/// A slice that stands for a length until the data's place is known.
fn placeholder(record: &[u8], len: usize) -> Result<&[u8], Malformed> {
    record.get(..len).ok_or(Malformed::Short { needed: len, left: record.len() })
}

/// Reads a `RelFileLocator`.
#[inline]
pub(crate) fn read_locator(c: &mut Cursor<'_>) -> Result<RelFileLocator, Malformed> {
    Ok(RelFileLocator { spc: Oid(c.u32()?), db: Oid(c.u32()?), rel: c.u32()? })
}

/// Reads an `XLogRecordBlockImageHeader` and checks what `DecodeXLogRecord` checks.
fn read_image_header(id: u8, c: &mut Cursor<'_>, profile: &WalProfile) -> Result<ImageHeader, Malformed> {
    let page_size = PAGE_SIZE as u16;
    let (len, hole_offset, info) = (c.u16()?, c.u16()?, c.u8()?);
    let bits = profile.image_bits;
    let compression = match info & (bits.pglz | bits.lz4 | bits.zstd) {
        0 => Compression::None,
        b if b == bits.pglz => Compression::Pglz,
        b if b == bits.lz4 => Compression::Lz4,
        b if b == bits.zstd => Compression::Zstd,
        _ => return Err(Malformed::BlockImage(id)),
    };
    let has_hole = info & HAS_HOLE != 0;
    let compressed = compression != Compression::None;
    let hole_len = match (compressed, has_hole) {
        (true, true) => c.u16()?,
        (true, false) => 0,
        (false, _) => page_size.checked_sub(len).ok_or(Malformed::BlockImage(id))?,
    };
    let hole_is_right = if has_hole {
        hole_offset > 0 && hole_len > 0 && len < page_size && u32::from(hole_offset) + u32::from(hole_len) <= PAGE_SIZE
    } else {
        hole_offset == 0 && hole_len == 0
    };
    let len_is_right = if compressed { len < page_size } else { has_hole || len == page_size };
    if !hole_is_right || !len_is_right {
        return Err(Malformed::BlockImage(id));
    }
    Ok(ImageHeader { len, hole_offset, hole_len, compression, apply: info & bits.apply != 0 })
}
