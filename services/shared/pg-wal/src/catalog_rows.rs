//! Rows of catalogs as heap records hold them (`access/heapam_xlog.h`, `catalog/pg_publication.h` and its like): what decides which changes a
//! subscriber gets.
//!
//! An update may leave out what the new row has in common with the old one, at its begin and at its end. So the rows met are kept, by their
//! place; those from before the WAL can be told ([`CatalogRows::seed`]), and a page image shows all rows of its page.
//!
//! Invariants: I1 a row is given only if all its columns are known; I2 nothing is kept of other relations.
//!
//! | record | cost |
//! |---|---|
//! | of another relation | O(1) |
//! | of these | the row, and the page if there is an image |
//!
//! Differences from PostgreSQL: what an update leaves out of a row that is not known is not known; catalogs are known by their first file, so that after VACUUM FULL of one of them its changes are not seen;
//! compressed page images are not read.

use std::collections::BTreeMap;

use pg_types::catalog_row::{CatalogRowChange, RowPlace};
use pg_types::{CatalogRow, Oid, PublicationRow, RelFileLocator, Tid, catalog};

use crate::blocks::{BlockImage, BlockRef, Compression, RecordParts};
use crate::cursor::Cursor;
use crate::error::{DecodeError, Malformed};
use crate::page::PAGE_SIZE;
use crate::profile::WalProfile;
use crate::record::RawRecord;
use crate::rmgr::heap::{XlHeapDelete, XlHeapInsert, XlHeapUpdate};
use crate::rmgr::{self, heap};

/// Rows that are kept at most; those that come later are taken as they are, without what an update leaves out.
const KEPT_MAX: usize = 1 << 20;
/// `XLH_UPDATE_PREFIX_FROM_OLD`.
const PREFIX_FROM_OLD: u8 = 1 << 5;
/// `XLH_UPDATE_SUFFIX_FROM_OLD`.
const SUFFIX_FROM_OLD: u8 = 1 << 6;
/// `SizeofHeapTupleHeader`.
const TUPLE_HEADER_LEN: usize = 23;
/// Where a tuple's header says where its data begins (`t_hoff`).
const HOFF_AT: usize = 22;
/// `NAMEDATALEN`.
const NAME_LEN: usize = 64;
/// `SizeOfPageHeaderData`: line pointers begin there.
const PAGE_HEADER_LEN: usize = 24;
/// Bytes of a line pointer.
const LINE_POINTER_LEN: usize = 4;
/// `LP_NORMAL`.
const LP_NORMAL: u32 = 1;

/// The catalogs.
const CATALOGS: [Oid; 4] = [catalog::PUBLICATION, catalog::PUBLICATION_REL, catalog::PUBLICATION_NAMESPACE, catalog::INHERITS];

/// Reads them, record after record.
#[derive(Debug, Default)]
pub struct CatalogRows {
    /// Data of the rows met: all behind the tuple's header.
    kept: BTreeMap<(u32, u32, u16), Vec<u8>>,
}

impl CatalogRows {
    /// Nothing met.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Tells of a row from before the WAL.
    pub fn seed(&mut self, place: RowPlace, row: &CatalogRow) {
        self.keep(place, write(row));
    }

    /// What a record does to a row of one of these catalogs, if anything.
    ///
    /// # Errors
    /// The record contradicts the layout of its kind.
    pub fn read(&mut self, raw: &RawRecord<'_>, profile: &'static WalProfile) -> Result<Option<CatalogRowChange>, DecodeError> {
        let operation = match raw.header.rmid {
            rmgr::RM_HEAP => Some(raw.header.info & heap::OPMASK),
            // Page images, whoever needed them.
            rmgr::RM_HEAP2 | rmgr::RM_XLOG => None,
            _ => return Ok(None),
        };
        let parts = RecordParts::walk(raw.bytes, profile).map_err(|reason| raw.decode_error(profile, reason))?;
        self.change(operation, &parts).map_err(|reason| raw.decode_error(profile, reason))
    }

    /// The same of a record taken apart.
    fn change(&mut self, operation: Option<u8>, parts: &RecordParts<'_>) -> Result<Option<CatalogRowChange>, Malformed> {
        let Ok(block) = parts.block(0) else { return Ok(None) };
        if !CATALOGS.iter().any(|catalog| catalog.0 == block.locator.rel) {
            return Ok(None);
        }
        parts.blocks().for_each(|block| self.learn(&block));
        match operation {
            Some(heap::INSERT) => {
                let place = place_in(&block, XlHeapInsert::read(parts.main)?.offnum);
                if !block.data.is_empty() {
                    let (_, data) = split(block.data)?;
                    self.keep(place, data.to_vec());
                }
                Ok(Some(CatalogRowChange { old: None, new: Some(place), row: self.row_at(place) }))
            }
            Some(heap::DELETE) => {
                let place = place_in(&block, XlHeapDelete::read(parts.main)?.offnum);
                Ok(Some(CatalogRowChange { old: Some(place), new: None, row: None }))
            }
            Some(heap::UPDATE | heap::HOT_UPDATE) => self.update(&block, parts).map(Some),
            _ => Ok(None),
        }
    }

    /// An update.
    fn update(&mut self, block: &BlockRef<'_>, parts: &RecordParts<'_>) -> Result<CatalogRowChange, Malformed> {
        let xl = XlHeapUpdate::read(parts.main)?;
        let old = place_in(&parts.block(1).unwrap_or(*block), xl.old_offnum);
        let new = place_in(block, xl.new_offnum);
        if !block.data.is_empty() {
            let mut c = Cursor::new(block.data);
            let prefix = if xl.flags & PREFIX_FROM_OLD != 0 { usize::from(c.u16()?) } else { 0 };
            let suffix = if xl.flags & SUFFIX_FROM_OLD != 0 { usize::from(c.u16()?) } else { 0 };
            let (_, middle) = split(c.take(c.left())?)?;
            let of_old = self.kept.get(&key(old)).map(Vec::as_slice);
            // What is changed here is as long as it was, and a row that was told may lack its last columns: the end counts from the begin.
            let end_at = prefix + middle.len();
            let of_old =
                of_old.and_then(|old| Some((old.get(..prefix)?, old.get(end_at..).filter(|_| suffix > 0).unwrap_or_default())));
            match of_old {
                Some((begin, end)) => {
                    let data = [begin, middle, end].concat();
                    self.keep(new, data);
                }
                None if prefix + suffix == 0 => self.keep(new, middle.to_vec()),
                None => drop(self.kept.remove(&key(new))),
            }
        }
        Ok(CatalogRowChange { old: Some(old), new: Some(new), row: self.row_at(new) })
    }

    /// Keeps the data of a row.
    fn keep(&mut self, place: RowPlace, data: Vec<u8>) {
        if self.kept.len() < KEPT_MAX {
            self.kept.insert(key(place), data);
        }
    }

    /// All rows of a page that stands in the record as it is after it.
    fn learn(&mut self, block: &BlockRef<'_>) {
        let Some(page) = block.image.as_ref().and_then(restored) else { return };
        let number = |at: usize, len: usize| page.get(at..at + len);
        let lower = number(12, 2).and_then(|b| b.first_chunk()).map_or(0, |b| usize::from(u16::from_le_bytes(*b)));
        let pointers = lower.saturating_sub(PAGE_HEADER_LEN) / LINE_POINTER_LEN;
        for offset in 1..=pointers.min(usize::from(u16::MAX)) {
            let Some(bytes) = number(PAGE_HEADER_LEN + LINE_POINTER_LEN * (offset - 1), LINE_POINTER_LEN) else { return };
            let pointer = bytes.first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
            let (at, flags, len) = ((pointer & 0x7FFF) as usize, pointer >> 15 & 3, (pointer >> 17) as usize);
            let Some(tuple) = number(at, len).filter(|_| flags == LP_NORMAL) else { continue };
            let data = tuple.get(HOFF_AT).and_then(|hoff| tuple.get(usize::from(*hoff)..));
            if let Some(data) = data {
                self.keep(place_in(block, offset as u16), data.to_vec());
            }
        }
    }

    /// The row at a place, if it is known whole (I1).
    fn row_at(&self, place: RowPlace) -> Option<CatalogRow> {
        read(Oid(place.0.rel), self.kept.get(&key(place))?).ok()
    }
}

/// By what a row is kept.
fn key((file, tid): RowPlace) -> (u32, u32, u16) {
    (file.rel, tid.block, tid.offset)
}

/// A row's place in a block.
fn place_in(block: &BlockRef<'_>, offset: u16) -> RowPlace {
    let file: RelFileLocator = block.locator;
    (file, Tid { block: block.block, offset })
}

/// The page of an image that is not compressed.
fn restored(image: &BlockImage<'_>) -> Option<Vec<u8>> {
    if image.compression != Compression::None {
        return None;
    }
    let hole_at = usize::from(image.hole_offset);
    let (before, behind) = image.bytes.split_at_checked(if image.hole_len == 0 { image.bytes.len() } else { hole_at })?;
    let mut page = before.to_vec();
    page.resize(page.len() + usize::from(image.hole_len), 0);
    page.extend_from_slice(behind);
    (page.len() == PAGE_SIZE as usize).then_some(page)
}

/// `xl_heap_header` and what follows it: where data begins in the tuple, and the data.
fn split(bytes: &[u8]) -> Result<(usize, &[u8]), Malformed> {
    let mut c = Cursor::new(bytes);
    c.take(4)?;
    let hoff = usize::from(c.u8()?);
    c.take(hoff.saturating_sub(TUPLE_HEADER_LEN))?;
    Ok((hoff, c.take(c.left())?))
}

/// A row of its data.
fn read(catalog: Oid, data: &[u8]) -> Result<CatalogRow, Malformed> {
    let mut c = Cursor::new(data);
    if catalog == catalog::PUBLICATION {
        let (oid, name, _owner) = (Oid(c.u32()?), c.take(NAME_LEN)?, c.u32()?);
        let name = name.split(|b| *b == 0).next().unwrap_or_default();
        let mut flag = || c.u8().map(|byte| byte != 0);
        return Ok(CatalogRow::Publication(PublicationRow {
            oid,
            name: String::from_utf8_lossy(name).into(),
            all_tables: flag()?,
            actions: [flag()?, flag()?, flag()?, flag()?],
            via_root: flag()?,
        }));
    }
    let (first, second) = (Oid(c.u32()?), Oid(c.u32()?));
    Ok(match catalog {
        catalog::INHERITS => CatalogRow::Inherits { child: first, parent: second },
        catalog::PUBLICATION_REL => CatalogRow::PublicationRel { publication: second, rel: Oid(c.u32()?) },
        _ => CatalogRow::PublicationNamespace { publication: second, namespace: Oid(c.u32()?) },
    })
}

/// Data of a row, as far as it is known: columns that are not are 0.
fn write(row: &CatalogRow) -> Vec<u8> {
    let oids = |oids: [Oid; 3]| oids.iter().flat_map(|oid| oid.0.to_le_bytes()).collect();
    match row {
        CatalogRow::Publication(publication) => {
            let mut data = publication.oid.0.to_le_bytes().to_vec();
            data.extend(publication.name.bytes().take(NAME_LEN));
            data.resize(4 + NAME_LEN + 4, 0);
            data.push(publication.all_tables.into());
            data.extend(publication.actions.map(u8::from));
            data.push(publication.via_root.into());
            data
        }
        CatalogRow::PublicationRel { publication, rel } => oids([Oid::INVALID, *publication, *rel]),
        CatalogRow::PublicationNamespace { publication, namespace } => oids([Oid::INVALID, *publication, *namespace]),
        CatalogRow::Inherits { child, parent } => oids([*child, *parent, Oid::INVALID]),
    }
}
