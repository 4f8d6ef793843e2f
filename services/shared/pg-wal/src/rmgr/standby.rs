//! STANDBY records: locks, running transactions, invalidations of commits without xid (`storage/standbydefs.h`).

use pg_types::record::{RunningXactsRecord, StandbyInvalidationsRecord, StandbyLock};
use pg_types::{InvalidationMessage, Oid, RecordBody, Xid};

use crate::blocks::RecordParts;
use crate::cursor::Cursor;
use crate::error::Malformed;
use crate::message::{MESSAGE_LEN, TAG_RELSYNC, read_message};
use crate::profile::WalProfile;
use crate::record::RecordHeader;

/// `XLOG_STANDBY_LOCK`.
pub const LOCK: u8 = 0x00;
/// `XLOG_RUNNING_XACTS`.
pub const RUNNING_XACTS: u8 = 0x10;
/// `XLOG_INVALIDATIONS`.
pub const INVALIDATIONS: u8 = 0x20;

/// Transaction ids as they stand in a record.
pub(crate) type RawXids<'a> = &'a [[u8; 4]];
/// Messages as they stand in a record.
pub(crate) type RawMessages<'a> = &'a [[u8; MESSAGE_LEN]];

/// Transaction ids from their bytes.
pub(crate) fn xids(raw: RawXids<'_>) -> impl Iterator<Item = Xid> {
    raw.iter().map(|b| Xid(u32::from_le_bytes(*b)))
}

/// Reads messages; of a kind that the version does not have, none is read.
pub(crate) fn messages(raw: RawMessages<'_>, profile: &WalProfile) -> Result<Vec<InvalidationMessage>, Malformed> {
    raw.iter().map(|bytes| message(bytes, profile)).collect()
}

/// Reads one message of a version.
pub(crate) fn message(bytes: &[u8; MESSAGE_LEN], profile: &WalProfile) -> Result<InvalidationMessage, Malformed> {
    match read_message(bytes) {
        Ok(InvalidationMessage::Relsync { .. }) if !profile.has_relsync_messages => Err(Malformed::MessageTag(TAG_RELSYNC)),
        Ok(message) => Ok(message),
        Err(unknown) => Err(Malformed::MessageTag(unknown.0)),
    }
}

/// `xl_running_xacts`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningXacts<'a> {
    /// Subtransactions are missing.
    pub(crate) subxid_overflow: bool,
    /// Next xid to be given.
    pub(crate) next_xid: Xid,
    /// Oldest running one.
    pub(crate) oldest_running_xid: Xid,
    /// Newest completed one.
    pub(crate) latest_completed_xid: Xid,
    /// Top-level transactions.
    pub(crate) xids: RawXids<'a>,
    /// Subtransactions.
    pub(crate) subxids: RawXids<'a>,
}

impl<'a> RunningXacts<'a> {
    /// Reads one.
    pub(crate) fn read(main: &'a [u8]) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        let (xcnt, subxcnt) = (i64::from(c.i32()?), i64::from(c.i32()?));
        let subxid_overflow = c.bool()?;
        c.take(3)?;
        let next_xid = Xid(c.u32()?);
        let (oldest_running_xid, latest_completed_xid) = (Xid(c.u32()?), Xid(c.u32()?));
        let (xids, subxids) = (c.items::<4>(xcnt)?, c.items::<4>(subxcnt)?);
        Ok(Self { subxid_overflow, next_xid, oldest_running_xid, latest_completed_xid, xids, subxids })
    }
}

/// `xl_invalidations`; also how HEAP INPLACE of 18 carries messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Invalidations<'a> {
    /// Database.
    pub(crate) db: Oid,
    /// Tablespace.
    pub(crate) spc: Oid,
    /// The relcache init file must go.
    pub(crate) init_file: bool,
    /// The messages.
    pub(crate) messages: RawMessages<'a>,
}

impl<'a> Invalidations<'a> {
    /// Reads one.
    pub(crate) fn read(c: &mut Cursor<'a>) -> Result<Self, Malformed> {
        let (db, spc, init_file) = (Oid(c.u32()?), Oid(c.u32()?), c.bool()?);
        c.take(3)?;
        let count = i64::from(c.i32()?);
        Ok(Self { db, spc, init_file, messages: c.items(count)? })
    }
}

/// `xl_standby_locks`: 12 bytes a lock.
pub(crate) fn locks(main: &[u8]) -> Result<impl Iterator<Item = StandbyLock>, Malformed> {
    let mut c = Cursor::new(main);
    let count = i64::from(c.i32()?);
    let word = |b: &[u8; 12], i: usize| b.as_chunks::<4>().0.get(i).map_or(0, |w| u32::from_le_bytes(*w));
    let lock = move |b| StandbyLock { xid: Xid(word(b, 0)), db: Oid(word(b, 1)), rel: Oid(word(b, 2)) };
    Ok(c.items::<12>(count)?.iter().map(lock))
}

/// Decodes a STANDBY record.
pub(super) fn decode(header: &RecordHeader, parts: &RecordParts<'_>, profile: &WalProfile) -> Result<RecordBody, Malformed> {
    Ok(match header.operation() {
        LOCK => RecordBody::StandbyLocks(locks(parts.main)?.collect()),
        RUNNING_XACTS => {
            let running = RunningXacts::read(parts.main)?;
            RecordBody::RunningXacts(Box::new(RunningXactsRecord {
                next_xid: running.next_xid,
                oldest_running_xid: running.oldest_running_xid,
                latest_completed_xid: running.latest_completed_xid,
                subxid_overflow: running.subxid_overflow,
                xids: xids(running.xids).collect(),
                subxids: xids(running.subxids).collect(),
            }))
        }
        INVALIDATIONS => {
            let inval = Invalidations::read(&mut Cursor::new(parts.main))?;
            RecordBody::StandbyInvalidations(Box::new(StandbyInvalidationsRecord {
                db: inval.db,
                spc: inval.spc,
                relcache_init_file_inval: inval.init_file,
                messages: messages(inval.messages, profile)?,
            }))
        }
        _ => return Ok(super::other(header)),
    })
}

#[cfg(test)]
mod tests {
    use pg_types::PgVersion;

    use super::*;
    use crate::message::write_message;

    #[test]
    fn messages_of_no_kind_or_of_a_later_version_are_refused_and_none_is_read() {
        let relcache = write_message(&InvalidationMessage::Relcache { db: Oid(5), rel: Oid(16_384) });
        let relsync = write_message(&InvalidationMessage::Relsync { db: Oid(5), rel: Oid(16_384) });
        let mut unknown = relcache;
        unknown[0] = 0xF9;
        for version in PgVersion::ALL {
            let profile = WalProfile::of(version);
            assert_eq!(messages(&[relcache, unknown], profile), Err(Malformed::MessageTag(-7)), "{version}");
            let of_18 = messages(&[relcache, relsync], profile);
            assert_eq!(of_18.is_ok(), version == PgVersion::V18, "{version}: {of_18:?}");
        }
    }
}
