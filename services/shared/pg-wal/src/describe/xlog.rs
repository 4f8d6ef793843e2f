//! XLOG (`access/rmgrdesc/xlogdesc.c`).

use pg_types::{Lsn, Timestamp};

use crate::cursor::Cursor;
use crate::error::Malformed;
use crate::profile::WalProfile;
use crate::record::RecordHeader;
use crate::rmgr::xlog::{self, EndOfRecovery, OverwriteContrecord, RestorePoint};
use crate::text::Text;

/// `get_wal_level_string`.
fn wal_level(level: u32) -> &'static str {
    match level {
        0 => "minimal",
        1 => "replica",
        2 => "logical",
        _ => "?",
    }
}

/// `on` or `off`.
fn switch(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Writes an XLOG record's description.
pub(super) fn describe(header: &RecordHeader, main: &[u8], profile: &WalProfile, out: &mut Text) -> Result<(), Malformed> {
    match header.operation() {
        op @ (xlog::CHECKPOINT_SHUTDOWN | xlog::CHECKPOINT_ONLINE) => {
            checkpoint(main, op == xlog::CHECKPOINT_SHUTDOWN, profile, out)?;
        }
        xlog::NEXTOID => _ = out.dec(Cursor::new(main).u32()?),
        xlog::RESTORE_POINT => _ = out.untrusted(RestorePoint::read(main)?.name),
        xlog::BACKUP_END => _ = out.lsn(Lsn(Cursor::new(main).u64()?)),
        xlog::PARAMETER_CHANGE => parameter_change(main, out)?,
        xlog::FPW_CHANGE => _ = out.str(if Cursor::new(main).bool()? { "true" } else { "false" }),
        xlog::END_OF_RECOVERY => end_of_recovery(main, profile, out)?,
        xlog::OVERWRITE_CONTRECORD => {
            let OverwriteContrecord { lsn, time } = OverwriteContrecord::read(main)?;
            out.str("lsn ").lsn(lsn).str("; time ").timestamp(time);
        }
        xlog::CHECKPOINT_REDO if profile.has_checkpoint_wal_level => {
            out.str("wal_level ").str(wal_level(Cursor::new(main).u32()?));
        }
        _ => {}
    }
    Ok(())
}

/// A checkpoint.
fn checkpoint(main: &[u8], shutdown: bool, profile: &WalProfile, out: &mut Text) -> Result<(), Malformed> {
    let c = xlog::checkpoint(main, shutdown, profile)?;
    out.str("redo ").lsn(c.redo).str("; tli ").dec(c.this_timeline).str("; prev tli ").dec(c.prev_timeline);
    out.str("; fpw ").str(if c.full_page_writes { "true" } else { "false" });
    if profile.has_checkpoint_wal_level {
        out.str("; wal_level ").str(wal_level(c.wal_level));
    }
    out.str("; xid ").dec(c.next_xid.epoch()).str(":").dec(c.next_xid.xid().0);
    out.str("; oid ").dec(c.next_oid.0).str("; multi ").dec(c.next_multi).str("; offset ").dec(c.next_multi_offset);
    out.str("; oldest xid ").dec(c.oldest_xid.0).str(" in DB ").dec(c.oldest_xid_db.0);
    out.str("; oldest multi ").dec(c.oldest_multi).str(" in DB ").dec(c.oldest_multi_db.0);
    out.str("; oldest/newest commit timestamp xid: ").dec(c.oldest_commit_ts_xid.0);
    out.str("/").dec(c.newest_commit_ts_xid.0);
    out.str("; oldest running xid ").dec(c.oldest_active_xid.0);
    out.str(if shutdown { "; shutdown" } else { "; online" });
    Ok(())
}

/// Settings that a standby needs.
fn parameter_change(main: &[u8], out: &mut Text) -> Result<(), Malformed> {
    let p = xlog::parameter_change(main)?;
    out.str("max_connections=").signed(p.max_connections);
    out.str(" max_worker_processes=").signed(p.max_worker_processes);
    out.str(" max_wal_senders=").signed(p.max_wal_senders);
    out.str(" max_prepared_xacts=").signed(p.max_prepared_xacts);
    out.str(" max_locks_per_xact=").signed(p.max_locks_per_xact);
    out.str(" wal_level=").str(wal_level(u32::try_from(p.wal_level).unwrap_or(u32::MAX)));
    out.str(" wal_log_hints=").str(switch(p.wal_log_hints));
    out.str(" track_commit_timestamp=").str(switch(p.track_commit_timestamp));
    Ok(())
}

/// The end of recovery.
fn end_of_recovery(main: &[u8], profile: &WalProfile, out: &mut Text) -> Result<(), Malformed> {
    let end = EndOfRecovery::read(main, profile)?;
    out.str("tli ").dec(end.this_timeline).str("; prev tli ").dec(end.prev_timeline);
    out.str("; time ").timestamp(Timestamp(end.time.0));
    if let Some(level) = end.wal_level {
        out.str("; wal_level ").str(wal_level(u32::try_from(level).unwrap_or(u32::MAX)));
    }
    Ok(())
}
