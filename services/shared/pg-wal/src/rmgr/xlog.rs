//! XLOG records: checkpoints, switches, parameters (`catalog/pg_control.h`, `access/xlog_internal.h`).

use pg_types::record::{CheckpointRecord, ParameterChangeRecord};
use pg_types::{FullXid, Lsn, Oid, RecordBody, Timestamp, Xid};

use super::RM_XLOG;
use crate::blocks::RecordParts;
use crate::cursor::Cursor;
use crate::error::Malformed;
use crate::profile::WalProfile;
use crate::record::RecordHeader;

/// `XLOG_CHECKPOINT_SHUTDOWN`.
pub const CHECKPOINT_SHUTDOWN: u8 = 0x00;
/// `XLOG_CHECKPOINT_ONLINE`.
pub const CHECKPOINT_ONLINE: u8 = 0x10;
/// `XLOG_NOOP`.
pub const NOOP: u8 = 0x20;
/// `XLOG_NEXTOID`.
pub const NEXTOID: u8 = 0x30;
/// `XLOG_SWITCH`.
pub const SWITCH: u8 = 0x40;
/// `XLOG_BACKUP_END`.
pub const BACKUP_END: u8 = 0x50;
/// `XLOG_PARAMETER_CHANGE`.
pub const PARAMETER_CHANGE: u8 = 0x60;
/// `XLOG_RESTORE_POINT`.
pub const RESTORE_POINT: u8 = 0x70;
/// `XLOG_FPW_CHANGE`.
pub const FPW_CHANGE: u8 = 0x80;
/// `XLOG_END_OF_RECOVERY`.
pub const END_OF_RECOVERY: u8 = 0x90;
/// `XLOG_FPI_FOR_HINT`.
pub const FPI_FOR_HINT: u8 = 0xA0;
/// `XLOG_FPI`.
pub const FPI: u8 = 0xB0;
/// `XLOG_OVERWRITE_CONTRECORD`.
pub const OVERWRITE_CONTRECORD: u8 = 0xD0;
/// `XLOG_CHECKPOINT_REDO`, 17 and later.
pub const CHECKPOINT_REDO: u8 = 0xE0;

/// `xl_end_of_recovery`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndOfRecovery {
    /// When.
    pub(crate) time: Timestamp,
    /// New timeline.
    pub(crate) this_timeline: u32,
    /// Timeline before.
    pub(crate) prev_timeline: u32,
    /// wal_level, where the version says so.
    pub(crate) wal_level: Option<i32>,
}

/// `xl_overwrite_contrecord`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OverwriteContrecord {
    /// The record that was lost.
    pub(crate) lsn: Lsn,
    /// When that was noticed.
    pub(crate) time: Timestamp,
}

/// `xl_restore_point`: the name has 64 bytes (`MAXFNAMELEN`), NUL-terminated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RestorePoint<'a> {
    /// Its name.
    pub(crate) name: &'a [u8],
}

/// Reads a `CheckPoint`: the fields are the same everywhere, but 17 put wal_level into padding before the xid.
pub(crate) fn checkpoint(main: &[u8], shutdown: bool, profile: &WalProfile) -> Result<CheckpointRecord, Malformed> {
    let mut c = Cursor::new(main);
    let redo = Lsn(c.u64()?);
    let (this_timeline, prev_timeline) = (c.u32()?, c.u32()?);
    let full_page_writes = c.bool()?;
    c.take(3)?;
    let level = c.u32()?;
    let next_xid = FullXid(c.u64()?);
    let (next_oid, next_multi, next_multi_offset) = (Oid(c.u32()?), c.u32()?, c.u32()?);
    let (oldest_xid, oldest_xid_db) = (Xid(c.u32()?), Oid(c.u32()?));
    let (oldest_multi, oldest_multi_db) = (c.u32()?, Oid(c.u32()?));
    c.take(4)?;
    let time = c.i64()?;
    Ok(CheckpointRecord {
        shutdown,
        redo,
        this_timeline,
        prev_timeline,
        full_page_writes,
        wal_level: if profile.has_checkpoint_wal_level { level } else { 0 },
        next_xid,
        next_oid,
        next_multi,
        next_multi_offset,
        oldest_xid,
        oldest_xid_db,
        oldest_multi,
        oldest_multi_db,
        time,
        oldest_commit_ts_xid: Xid(c.u32()?),
        newest_commit_ts_xid: Xid(c.u32()?),
        oldest_active_xid: Xid(c.u32()?),
    })
}

/// Reads an `xl_parameter_change`.
pub(crate) fn parameter_change(main: &[u8]) -> Result<ParameterChangeRecord, Malformed> {
    let mut c = Cursor::new(main);
    Ok(ParameterChangeRecord {
        max_connections: c.i32()?,
        max_worker_processes: c.i32()?,
        max_wal_senders: c.i32()?,
        max_prepared_xacts: c.i32()?,
        max_locks_per_xact: c.i32()?,
        wal_level: c.i32()?,
        wal_log_hints: c.bool()?,
        track_commit_timestamp: c.bool()?,
    })
}

impl EndOfRecovery {
    /// Reads one.
    pub(crate) fn read(main: &[u8], profile: &WalProfile) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        let time = Timestamp(c.i64()?);
        let (this_timeline, prev_timeline) = (c.u32()?, c.u32()?);
        let wal_level = if profile.has_checkpoint_wal_level { Some(c.i32()?) } else { None };
        Ok(Self { time, this_timeline, prev_timeline, wal_level })
    }
}

impl OverwriteContrecord {
    /// Reads one.
    pub(crate) fn read(main: &[u8]) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        Ok(Self { lsn: Lsn(c.u64()?), time: Timestamp(c.i64()?) })
    }
}

impl<'a> RestorePoint<'a> {
    /// Reads one.
    pub(crate) fn read(main: &'a [u8]) -> Result<Self, Malformed> {
        let mut c = Cursor::new(main);
        c.take(8)?;
        let name = c.rest().split(|&b| b == 0).next().unwrap_or_default();
        Ok(Self { name })
    }
}

/// The record that a record declares lost, if it is one that does.
pub(crate) fn overwritten_lsn(header: &RecordHeader, bytes: &[u8], profile: &'static WalProfile) -> Option<Lsn> {
    if header.rmid != RM_XLOG || header.operation() != OVERWRITE_CONTRECORD {
        return None;
    }
    let parts = RecordParts::parse(bytes, profile).ok()?;
    OverwriteContrecord::read(parts.main).ok().map(|o| o.lsn)
}

/// Decodes an XLOG record.
pub(super) fn decode(header: &RecordHeader, parts: &RecordParts<'_>, profile: &WalProfile) -> Result<RecordBody, Malformed> {
    let main = parts.main;
    Ok(match header.operation() {
        op @ (CHECKPOINT_SHUTDOWN | CHECKPOINT_ONLINE) => {
            RecordBody::Checkpoint(Box::new(checkpoint(main, op == CHECKPOINT_SHUTDOWN, profile)?))
        }
        NEXTOID => RecordBody::NextOid(Oid(Cursor::new(main).u32()?)),
        SWITCH => RecordBody::Switch,
        BACKUP_END => RecordBody::BackupEnd(Lsn(Cursor::new(main).u64()?)),
        PARAMETER_CHANGE => RecordBody::ParameterChange(Box::new(parameter_change(main)?)),
        END_OF_RECOVERY => {
            let end = EndOfRecovery::read(main, profile)?;
            RecordBody::EndOfRecovery { this_timeline: end.this_timeline, prev_timeline: end.prev_timeline }
        }
        OVERWRITE_CONTRECORD => RecordBody::OverwriteContrecord(OverwriteContrecord::read(main)?.lsn),
        CHECKPOINT_REDO if profile.has_checkpoint_wal_level => RecordBody::CheckpointRedo,
        NOOP | RESTORE_POINT | FPW_CHANGE | FPI_FOR_HINT | FPI => RecordBody::XlogOther,
        _ => return Ok(super::other(header)),
    })
}
