//! XACT records: commit, abort, prepare, assignment, invalidations (`access/xact.h`, `access/rmgrdesc/xactdesc.c`).
//!
//! A commit or abort is a time and a row of chunks, each there if its bit in `xinfo` is set. A prepare is the state file of a
//! prepared transaction (`access/transam/twophase.c`): a header with counts, then arrays padded to eight bytes.

use pg_types::record::{AbortRecord, AssignmentRecord, CommitRecord, PrepareRecord};
use pg_types::{Lsn, Oid, RecordBody, RelFileLocator, Timestamp, Xid};

use super::standby::{RawMessages, RawXids, messages, xids};
use crate::blocks::{RecordParts, read_locator};
use crate::cursor::Cursor;
use crate::error::Malformed;
use crate::profile::WalProfile;
use crate::record::RecordHeader;

/// `XLOG_XACT_COMMIT`.
pub const COMMIT: u8 = 0x00;
/// `XLOG_XACT_PREPARE`.
pub const PREPARE: u8 = 0x10;
/// `XLOG_XACT_ABORT`.
pub const ABORT: u8 = 0x20;
/// `XLOG_XACT_COMMIT_PREPARED`.
pub const COMMIT_PREPARED: u8 = 0x30;
/// `XLOG_XACT_ABORT_PREPARED`.
pub const ABORT_PREPARED: u8 = 0x40;
/// `XLOG_XACT_ASSIGNMENT`.
pub const ASSIGNMENT: u8 = 0x50;
/// `XLOG_XACT_INVALIDATIONS`, 14 and later.
pub const INVALIDATIONS: u8 = 0x60;
/// `XLOG_XACT_OPMASK`.
pub const OPMASK: u8 = 0x70;
/// `XLOG_XACT_HAS_INFO`: `xinfo` follows the time.
pub const HAS_INFO: u8 = 0x80;

/// `XACT_XINFO_HAS_DBINFO`.
pub const XINFO_HAS_DBINFO: u32 = 1 << 0;
/// `XACT_XINFO_HAS_SUBXACTS`.
pub const XINFO_HAS_SUBXACTS: u32 = 1 << 1;
/// `XACT_XINFO_HAS_RELFILELOCATORS`.
pub const XINFO_HAS_RELFILELOCATORS: u32 = 1 << 2;
/// `XACT_XINFO_HAS_INVALS`.
pub const XINFO_HAS_INVALS: u32 = 1 << 3;
/// `XACT_XINFO_HAS_TWOPHASE`.
pub const XINFO_HAS_TWOPHASE: u32 = 1 << 4;
/// `XACT_XINFO_HAS_ORIGIN`.
pub const XINFO_HAS_ORIGIN: u32 = 1 << 5;
/// `XACT_XINFO_HAS_AE_LOCKS`.
pub const XINFO_HAS_AE_LOCKS: u32 = 1 << 6;
/// `XACT_XINFO_HAS_GID`.
pub const XINFO_HAS_GID: u32 = 1 << 7;
/// `XACT_XINFO_HAS_DROPPED_STATS`, 15 and later.
pub const XINFO_HAS_DROPPED_STATS: u32 = 1 << 8;
/// `XACT_COMPLETION_UPDATE_RELCACHE_FILE`: the relcache init file must go.
pub const XINFO_UPDATE_RELCACHE_FILE: u32 = 1 << 30;
/// `XACT_COMPLETION_FORCE_SYNC_COMMIT`.
pub const XINFO_FORCE_SYNC_COMMIT: u32 = 1 << 31;

/// File locators as they stand in a record.
pub(crate) type RawLocators<'a> = &'a [[u8; 12]];

/// File locators from their bytes.
pub(crate) fn locators(raw: RawLocators<'_>) -> impl Iterator<Item = RelFileLocator> {
    raw.iter().filter_map(|bytes| read_locator(&mut Cursor::new(bytes)).ok())
}

/// Statistics entries of dropped objects (`xl_xact_stats_items`), in the width of their version.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DroppedStats<'a> {
    /// How many.
    pub(crate) count: u32,
    /// Their bytes.
    bytes: &'a [u8],
    /// Bytes of one.
    item_len: usize,
}

impl<'a> DroppedStats<'a> {
    /// Reads `count` of them.
    fn read(c: &mut Cursor<'a>, count: i32, profile: &WalProfile) -> Result<Self, Malformed> {
        let item_len = profile.dropped_stats_item_len;
        let wrong = Malformed::Count { count: i64::from(count), size: item_len, left: c.left() };
        let count = u32::try_from(count).map_err(|_| wrong)?;
        let len = (count as usize).checked_mul(item_len).filter(|_| item_len > 0).ok_or(wrong)?;
        Ok(Self { count, bytes: c.take(len).map_err(|_| wrong)?, item_len })
    }

    /// Kind, database and object of each; the object's id has 64 bits from 18 on.
    pub(crate) fn items(&self) -> impl Iterator<Item = (i32, u32, u64)> {
        self.bytes.chunks_exact(self.item_len.max(1)).map_while(|item| {
            let mut c = Cursor::new(item);
            let (kind, db, low) = (c.i32().ok()?, c.u32().ok()?, c.u32().ok()?);
            Some((kind, db, u64::from(low) | u64::from(c.u32().unwrap_or(0)) << 32))
        })
    }
}

/// `xl_xact_parsed_commit`, which an abort shares but for its messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TransactionEnd<'a> {
    /// When.
    pub(crate) time: Timestamp,
    /// Flags.
    pub(crate) xinfo: u32,
    /// Database.
    pub(crate) db: Oid,
    /// Tablespace.
    pub(crate) spc: Oid,
    /// Subtransactions.
    pub(crate) subxids: RawXids<'a>,
    /// Dropped files.
    pub(crate) locators: RawLocators<'a>,
    /// Dropped statistics entries.
    pub(crate) stats: DroppedStats<'a>,
    /// Invalidation messages.
    pub(crate) messages: RawMessages<'a>,
    /// The prepared transaction.
    pub(crate) prepared_xid: Xid,
    /// Its name.
    pub(crate) gid: &'a [u8],
    /// Origin's position and time.
    pub(crate) origin: Option<(Lsn, Timestamp)>,
}

impl<'a> TransactionEnd<'a> {
    /// Reads a commit or an abort (`ParseCommitRecord`, `ParseAbortRecord`).
    pub(crate) fn read(header: &RecordHeader, main: &'a [u8], profile: &WalProfile) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        let mut end = Self { time: Timestamp(c.i64()?), ..Self::default() };
        if header.info & HAS_INFO == 0 {
            return Ok(end);
        }
        end.xinfo = c.u32()?;
        let has = |flag| end.xinfo & flag != 0;
        let is_commit = matches!(header.info & OPMASK, COMMIT | COMMIT_PREPARED);
        if has(XINFO_HAS_DBINFO) {
            (end.db, end.spc) = (Oid(c.u32()?), Oid(c.u32()?));
        }
        if has(XINFO_HAS_SUBXACTS) {
            let count = c.i32()?;
            end.subxids = c.items(i64::from(count))?;
        }
        if has(XINFO_HAS_RELFILELOCATORS) {
            let count = c.i32()?;
            end.locators = c.items(i64::from(count))?;
        }
        if has(XINFO_HAS_DROPPED_STATS) && profile.dropped_stats_item_len > 0 {
            let count = c.i32()?;
            end.stats = DroppedStats::read(&mut c, count, profile)?;
        }
        if is_commit && has(XINFO_HAS_INVALS) {
            let count = c.i32()?;
            end.messages = c.items(i64::from(count))?;
        }
        if has(XINFO_HAS_TWOPHASE) {
            end.prepared_xid = Xid(c.u32()?);
            if has(XINFO_HAS_GID) {
                end.gid = c.c_string()?;
            }
        }
        if has(XINFO_HAS_ORIGIN) {
            end.origin = Some((Lsn(c.u64()?), Timestamp(c.i64()?)));
        }
        Ok(end)
    }
}

/// `xl_xact_prepare` and the arrays behind it (`ParsePrepareRecord`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prepare<'a> {
    /// Database.
    pub(crate) db: Oid,
    /// When.
    pub(crate) time: Timestamp,
    /// Role.
    pub(crate) owner: Oid,
    /// The relcache init file must go at its commit.
    pub(crate) init_file: bool,
    /// Name.
    pub(crate) gid: &'a [u8],
    /// Origin's position and time.
    pub(crate) origin: (Lsn, Timestamp),
    /// Subtransactions.
    pub(crate) subxids: RawXids<'a>,
    /// Files that its commit drops.
    pub(crate) commit_locators: RawLocators<'a>,
    /// Files that its abort drops.
    pub(crate) abort_locators: RawLocators<'a>,
    /// Statistics entries that its commit drops.
    pub(crate) commit_stats: DroppedStats<'a>,
    /// Statistics entries that its abort drops.
    pub(crate) abort_stats: DroppedStats<'a>,
    /// Messages that its commit sends.
    pub(crate) messages: RawMessages<'a>,
}

impl<'a> Prepare<'a> {
    /// Reads one.
    pub(crate) fn read(main: &'a [u8], profile: &WalProfile) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        c.take(12)?; // magic and length of the state file, and its transaction, which is the record's
        let (db, time, owner) = (Oid(c.u32()?), Timestamp(c.i64()?), Oid(c.u32()?));
        let (subxacts, commit_rels, abort_rels) = (c.i32()?, c.i32()?, c.i32()?);
        let has_stats = profile.dropped_stats_item_len > 0;
        let (commit_stats, abort_stats) = if has_stats { (c.i32()?, c.i32()?) } else { (0, 0) };
        let (message_count, init_file, _pad, gid_len) = (c.i32()?, c.bool()?, c.u8()?, c.u16()?);
        let origin = (Lsn(c.u64()?), Timestamp(c.i64()?));
        let gid = c.take(usize::from(gid_len))?;
        c.align8(gid.len());
        let gid = gid.strip_suffix(&[0]).ok_or(Malformed::NoNul)?;
        let subxids: RawXids<'a> = padded(&mut c, subxacts)?;
        let commit_locators: RawLocators<'a> = padded(&mut c, commit_rels)?;
        let abort_locators: RawLocators<'a> = padded(&mut c, abort_rels)?;
        let commit_stats = Self::stats(&mut c, commit_stats, profile)?;
        let abort_stats = Self::stats(&mut c, abort_stats, profile)?;
        Ok(Self {
            db,
            time,
            owner,
            init_file,
            gid,
            origin,
            subxids,
            commit_locators,
            abort_locators,
            commit_stats,
            abort_stats,
            messages: padded(&mut c, message_count)?,
        })
    }

    /// Reads an array of statistics entries and what pads it; the version may have none.
    fn stats(c: &mut Cursor<'a>, count: i32, profile: &WalProfile) -> Result<DroppedStats<'a>, Malformed> {
        if count == 0 {
            return Ok(DroppedStats::default());
        }
        let stats = DroppedStats::read(c, count, profile)?;
        c.align8(stats.bytes.len());
        Ok(stats)
    }
}

/// Reads `count` items and what pads them to eight bytes.
fn padded<'a, const N: usize>(c: &mut Cursor<'a>, count: i32) -> Result<&'a [[u8; N]], Malformed> {
    let items = c.items::<N>(i64::from(count))?;
    c.align8(items.len() * N);
    Ok(items)
}

/// `xl_xact_assignment`: the top-level transaction and its subtransactions.
pub(crate) fn assignment(main: &[u8]) -> Result<(Xid, RawXids<'_>), Malformed> {
    let mut c = Cursor::new(main);
    let (top, count) = (Xid(c.u32()?), c.i32()?);
    Ok((top, c.items(i64::from(count))?))
}

/// `xl_xact_invals`.
pub(crate) fn invalidations(main: &[u8]) -> Result<RawMessages<'_>, Malformed> {
    let mut c = Cursor::new(main);
    let count = c.i32()?;
    c.items(i64::from(count))
}

/// Decodes an XACT record.
pub(super) fn decode(header: &RecordHeader, parts: &RecordParts<'_>, profile: &WalProfile) -> Result<RecordBody, Malformed> {
    let main = parts.main;
    Ok(match header.info & OPMASK {
        COMMIT | COMMIT_PREPARED => RecordBody::Commit(Box::new(commit(header, main, profile)?)),
        ABORT | ABORT_PREPARED => RecordBody::Abort(Box::new(abort(header, main, profile)?)),
        PREPARE => RecordBody::Prepare(Box::new(prepare(main, profile)?)),
        ASSIGNMENT => {
            let (top_xid, subxids) = assignment(main)?;
            RecordBody::Assignment(Box::new(AssignmentRecord { top_xid, subxids: xids(subxids).collect() }))
        }
        INVALIDATIONS if profile.has_xact_invalidations => {
            RecordBody::XactInvalidations(messages(invalidations(main)?, profile)?)
        }
        _ => return Ok(super::other(header)),
    })
}

/// Decodes a commit.
fn commit(header: &RecordHeader, main: &[u8], profile: &WalProfile) -> Result<CommitRecord, Malformed> {
    let end = TransactionEnd::read(header, main, profile)?;
    Ok(CommitRecord {
        time: end.time,
        prepared_xid: end.prepared_xid,
        xinfo: end.xinfo,
        db: end.db,
        spc: end.spc,
        subxids: xids(end.subxids).collect(),
        dropped_locators: locators(end.locators).collect(),
        dropped_stats: end.stats.count,
        messages: messages(end.messages, profile)?,
        gid: end.gid.to_vec(),
        origin: end.origin,
    })
}

/// Decodes an abort.
fn abort(header: &RecordHeader, main: &[u8], profile: &WalProfile) -> Result<AbortRecord, Malformed> {
    let end = TransactionEnd::read(header, main, profile)?;
    Ok(AbortRecord {
        time: end.time,
        prepared_xid: end.prepared_xid,
        xinfo: end.xinfo,
        db: end.db,
        spc: end.spc,
        subxids: xids(end.subxids).collect(),
        dropped_locators: locators(end.locators).collect(),
        dropped_stats: end.stats.count,
        gid: end.gid.to_vec(),
        origin: end.origin,
    })
}

/// Decodes a prepare.
fn prepare(main: &[u8], profile: &WalProfile) -> Result<PrepareRecord, Malformed> {
    let prepare = Prepare::read(main, profile)?;
    Ok(PrepareRecord {
        time: prepare.time,
        db: prepare.db,
        owner: prepare.owner,
        gid: prepare.gid.to_vec(),
        subxids: xids(prepare.subxids).collect(),
        messages: messages(prepare.messages, profile)?,
        commit_locators: locators(prepare.commit_locators).collect(),
        abort_locators: locators(prepare.abort_locators).collect(),
        commit_stats: prepare.commit_stats.count,
        abort_stats: prepare.abort_stats.count,
        origin: Some(prepare.origin).filter(|(lsn, time)| lsn.is_valid() || time.0 != 0),
    })
}
