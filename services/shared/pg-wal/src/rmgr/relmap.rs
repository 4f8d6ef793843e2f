//! RELMAP records: a whole map file of mapped catalogs (`utils/relmapper.h`, `utils/cache/relmapper.c`).

use pg_types::record::RelmapRecord;
use pg_types::{Oid, RecordBody};

use crate::blocks::RecordParts;
use crate::cursor::Cursor;
use crate::error::Malformed;
use crate::profile::WalProfile;
use crate::record::RecordHeader;

/// `XLOG_RELMAP_UPDATE`.
pub const UPDATE: u8 = 0x00;

/// `xl_relmap_update`, and the map file that follows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RelmapUpdate<'a> {
    /// Database, 0 for the shared map.
    pub(crate) db: Oid,
    /// Tablespace.
    pub(crate) spc: Oid,
    /// Bytes of the file, as the record says.
    pub(crate) size: i32,
    /// The file.
    pub(crate) file: &'a [u8],
}

impl<'a> RelmapUpdate<'a> {
    /// Reads one.
    pub(crate) fn read(main: &'a [u8]) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        let (db, spc, size) = (Oid(c.u32()?), Oid(c.u32()?), c.i32()?);
        let file = c.items::<1>(i64::from(size))?.as_flattened();
        Ok(Self { db, spc, size, file })
    }
}

/// Decodes a RELMAP record. The file: magic, number of mappings, then pairs of catalog and file number.
pub(super) fn decode(header: &RecordHeader, parts: &RecordParts<'_>, profile: &WalProfile) -> Result<RecordBody, Malformed> {
    if header.operation() != UPDATE {
        return Ok(super::other(header));
    }
    let update = RelmapUpdate::read(parts.main)?;
    let mut c = Cursor::new(update.file);
    c.take(4)?;
    let count = i64::from(c.i32()?);
    if count > i64::from(profile.relmap_entries_max) {
        return Err(Malformed::Count { count, size: 8, left: c.left() });
    }
    let pair = |&[a, b, c, d, e, f, g, h]: &[u8; 8]| (Oid(u32::from_le_bytes([a, b, c, d])), u32::from_le_bytes([e, f, g, h]));
    let mappings = c.items::<8>(count)?.iter().map(pair).collect();
    Ok(RecordBody::Relmap(Box::new(RelmapRecord { db: update.db, spc: update.spc, mappings })))
}
