//! The parts of a record: block references with images and data, origin, top-level transaction, main data
//! (`DecodeXLogRecord` in `access/transam/xlogreader.c`).
//!
//! All headers come first, then the data they announce in the same order. [`RecordParts::parse`] walks the headers once and checks
//! them against the record's length; [`RecordParts::blocks`] walks them again. Nothing is stored per block, so a record costs no
//! allocation however many blocks it has. Images are located and measured, not restored.

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

/// A record taken apart. What it says of the record's bytes has been checked.
#[derive(Clone, Copy, Debug)]
pub struct RecordParts<'a> {
    /// All headers.
    headers: Cursor<'a>,
    /// The data of all blocks in their order, and what follows it.
    data: Cursor<'a>,
    /// What the version writes.
    profile: &'static WalProfile,
    /// What belongs to no block.
    pub main: &'a [u8],
    /// Replication origin, 0 if none.
    pub origin: u16,
    /// Top-level transaction, if the record says so.
    pub top_xid: Xid,
    /// Bytes of all page images in the record.
    pub images_len: u32,
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

/// What one block header says (`XLogRecordBlockHeader` and what follows it).
#[derive(Clone, Copy)]
struct BlockHeader {
    /// Its number.
    id: u8,
    /// Fork and flags.
    flags: u8,
    /// Bytes of data.
    data_len: u16,
    /// The image.
    image: Option<ImageHeader>,
    /// The file.
    locator: RelFileLocator,
    /// The block in it.
    block: u32,
}

impl<'a> RecordParts<'a> {
    /// Takes a whole record apart.
    ///
    /// # Errors
    /// If its inner headers contradict each other or its length.
    pub fn parse(record: &'a [u8], profile: &'static WalProfile) -> Result<Self, Malformed> {
        Self::walk(record, profile)
    }

    /// Bytes of all page images in a whole record; checks as much as [`RecordParts::parse`].
    ///
    /// # Errors
    /// The same.
    pub fn images_len_of(record: &'a [u8], profile: &'static WalProfile) -> Result<u32, Malformed> {
        Self::walk(record, profile).map(|parts| parts.images_len)
    }

    /// Walks the headers. In line, so that what a caller does not use is not computed.
    #[inline(always)]
    pub(crate) fn walk(record: &'a [u8], profile: &'static WalProfile) -> Result<Self, Malformed> {
        let rest = record.get(RECORD_HEADER_LEN..).unwrap_or_default();
        let mut c = Cursor::new(rest);
        let (mut blocks_len, mut images_len, mut main_len) = (0usize, 0u32, 0usize);
        let (mut origin, mut top_xid) = (0, Xid::INVALID);
        let mut last = None;
        while c.left() > blocks_len {
            match c.u8()? {
                DATA_SHORT => {
                    main_len = usize::from(c.u8()?);
                    break;
                }
                DATA_LONG => {
                    main_len = c.u32()? as usize;
                    break;
                }
                ORIGIN => origin = c.u16()?,
                TOPLEVEL_XID if profile.has_top_xid => top_xid = Xid(c.u32()?),
                id => {
                    let header = BlockHeader::read(id, &mut c, last.as_ref(), profile)?;
                    let image_len = header.image.map_or(0, |i| u32::from(i.len));
                    images_len += image_len;
                    blocks_len += usize::from(header.data_len) + image_len as usize;
                    last = Some(header);
                }
            }
        }
        let described = blocks_len.saturating_add(main_len);
        if c.left() != described {
            return Err(Malformed::Length { described, present: c.left() });
        }
        let headers = Cursor::new(rest.get(..rest.len() - described).unwrap_or_default());
        let data = c;
        c.take(blocks_len)?;
        Ok(Self { headers, data, profile, main: c.take(main_len)?, origin, top_xid, images_len })
    }

    /// The block references, in the order of their ids.
    #[must_use]
    #[inline]
    pub fn blocks(&self) -> Blocks<'a> {
        Blocks { headers: self.headers, data: self.data, last: None, profile: self.profile }
    }

    /// The block reference with this id.
    ///
    /// # Errors
    /// [`Malformed::NoBlock`] if the record has none.
    #[inline]
    pub fn block(&self, id: u8) -> Result<BlockRef<'a>, Malformed> {
        self.blocks().find(|b| b.id == id).ok_or(Malformed::NoBlock(id))
    }
}

/// The block references of a record.
#[derive(Clone)]
pub struct Blocks<'a> {
    /// Headers not yet read.
    headers: Cursor<'a>,
    /// Data not yet given.
    data: Cursor<'a>,
    /// The header read last.
    last: Option<BlockHeader>,
    /// What the version writes.
    profile: &'static WalProfile,
}

impl std::fmt::Debug for Blocks<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

impl<'a> Iterator for Blocks<'a> {
    type Item = BlockRef<'a>;

    /// Nothing can fail here: [`RecordParts::parse`] read the same headers.
    #[inline(always)]
    fn next(&mut self) -> Option<BlockRef<'a>> {
        while let Ok(id) = self.headers.u8() {
            match id {
                DATA_SHORT | DATA_LONG => break,
                ORIGIN => _ = self.headers.u16().ok()?,
                TOPLEVEL_XID => _ = self.headers.u32().ok()?,
                id => {
                    let header = BlockHeader::read(id, &mut self.headers, self.last.as_ref(), self.profile).ok()?;
                    self.last = Some(header);
                    return header.with_data(&mut self.data);
                }
            }
        }
        None
    }
}

impl BlockHeader {
    /// Reads one whose id was read already and checks what `DecodeXLogRecord` checks.
    #[inline(always)]
    fn read(id: u8, c: &mut Cursor<'_>, last: Option<&Self>, profile: &WalProfile) -> Result<Self, Malformed> {
        if id > MAX_BLOCK_ID || last.is_some_and(|last| id <= last.id) {
            return Err(Malformed::BlockId(id));
        }
        let flags = c.u8()?;
        let data_len = c.u16()?;
        if (flags & HAS_DATA != 0) != (data_len > 0) {
            return Err(Malformed::BlockData(id));
        }
        let image = if flags & HAS_IMAGE == 0 { None } else { Some(ImageHeader::read(id, c, profile)?) };
        let locator = if flags & SAME_REL == 0 {
            read_locator(c)?
        } else {
            last.map(|last| last.locator).ok_or(Malformed::NoRelation(id))?
        };
        Ok(Self { id, flags, data_len, image, locator, block: c.u32()? })
    }

    /// The reference, with its image and data taken from where they stand.
    #[inline]
    fn with_data<'a>(self, data: &mut Cursor<'a>) -> Option<BlockRef<'a>> {
        let image = match self.image {
            None => None,
            Some(header) => Some(BlockImage {
                bytes: data.take(usize::from(header.len)).ok()?,
                hole_offset: header.hole_offset,
                hole_len: header.hole_len,
                compression: header.compression,
                apply: header.apply,
            }),
        };
        Some(BlockRef {
            id: self.id,
            fork: self.flags & FORK_MASK,
            will_init: self.flags & WILL_INIT != 0,
            locator: self.locator,
            block: self.block,
            image,
            data: data.take(usize::from(self.data_len)).ok()?,
            has_data: self.flags & HAS_DATA != 0,
        })
    }
}

impl ImageHeader {
    /// Reads an `XLogRecordBlockImageHeader` and checks what `DecodeXLogRecord` checks.
    fn read(id: u8, c: &mut Cursor<'_>, profile: &WalProfile) -> Result<Self, Malformed> {
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
        Ok(Self { len, hole_offset, hole_len, compression, apply: info & bits.apply != 0 })
    }
}

/// Reads a `RelFileLocator`.
#[inline(always)]
pub(crate) fn read_locator(c: &mut Cursor<'_>) -> Result<RelFileLocator, Malformed> {
    Ok(RelFileLocator { spc: Oid(c.u32()?), db: Oid(c.u32()?), rel: c.u32()? })
}
