//! BTREE, HASH, GIST and SPGIST records that a standby's snapshots may be in the way of (`access/nbtxlog.h`, `access/hash_xlog.h`,
//! `access/gistxlog.h`, `access/spgxlog.h`). All other records of indexes are opaque.

use pg_types::record::IndexPruneRecord;
use pg_types::{Oid, RecordBody, RelFileLocator, Xid};

use super::{RM_BTREE, RM_GIST, RM_HASH, RM_SPGIST};
use crate::blocks::RecordParts;
use crate::cursor::Cursor;
use crate::error::Malformed;
use crate::profile::WalProfile;
use crate::record::RecordHeader;

/// `XLOG_BTREE_DELETE`.
const BTREE_DELETE: u8 = 0x70;
/// `XLOG_BTREE_REUSE_PAGE`.
const BTREE_REUSE_PAGE: u8 = 0xD0;
/// `XLOG_HASH_VACUUM_ONE_PAGE`.
const HASH_VACUUM_ONE_PAGE: u8 = 0xC0;
/// `XLOG_GIST_DELETE`.
const GIST_DELETE: u8 = 0x10;
/// `XLOG_GIST_PAGE_REUSE`.
const GIST_PAGE_REUSE: u8 = 0x20;
/// `XLOG_SPGIST_VACUUM_REDIRECT`.
const SPGIST_VACUUM_REDIRECT: u8 = 0x80;

/// Decodes a record of an index.
pub(super) fn decode(header: &RecordHeader, parts: &RecordParts<'_>, profile: &WalProfile) -> Result<RecordBody, Malformed> {
    let mut main = Cursor::new(parts.main);
    let record = match (header.rmid, header.operation()) {
        // The horizon, and two counts of 16 bits (one of 32 in 13).
        (RM_BTREE, BTREE_DELETE) => entries(&mut main, 0, 4, parts, profile)?,
        // The horizon, and one count.
        (RM_HASH, HASH_VACUUM_ONE_PAGE) | (RM_GIST, GIST_DELETE) => entries(&mut main, 0, 2, parts, profile)?,
        // Two counts, and the horizon.
        (RM_SPGIST, SPGIST_VACUUM_REDIRECT) => entries(&mut main, 4, 0, parts, profile)?,
        (RM_BTREE, BTREE_REUSE_PAGE) => page(&mut main, profile.has_full_xid_of_btree_page, profile)?,
        (RM_GIST, GIST_PAGE_REUSE) => page(&mut main, true, profile)?,
        _ => return Ok(super::other(header)),
    };
    Ok(RecordBody::IndexPrune(record))
}

/// Entries that are removed from the page that is referenced first: so many bytes before and behind the horizon.
fn entries(
    main: &mut Cursor<'_>,
    before: usize,
    behind: usize,
    parts: &RecordParts<'_>,
    profile: &WalProfile,
) -> Result<IndexPruneRecord, Malformed> {
    main.take(before)?;
    let conflict_horizon = Xid(main.u32()?);
    main.take(behind)?;
    let is_catalog = is_catalog(main, profile)?;
    Ok(IndexPruneRecord { target: parts.block(0)?.locator, conflict_horizon, horizon_epoch: None, is_catalog })
}

/// A page that is used again: file and block, and the horizon, of 64 bits or not.
fn page(main: &mut Cursor<'_>, full: bool, profile: &WalProfile) -> Result<IndexPruneRecord, Malformed> {
    let target = RelFileLocator { spc: Oid(main.u32()?), db: Oid(main.u32()?), rel: main.u32()? };
    main.take(4)?;
    let conflict_horizon = Xid(main.u32()?);
    let horizon_epoch = if full { Some(main.u32()?) } else { None };
    let is_catalog = is_catalog(main, profile)?;
    Ok(IndexPruneRecord { target, conflict_horizon, horizon_epoch, is_catalog })
}

/// `isCatalogRel`, where there is one.
fn is_catalog(main: &mut Cursor<'_>, profile: &WalProfile) -> Result<bool, Malformed> {
    Ok(profile.has_catalog_flag && main.u8()? != 0)
}
