//! STANDBY, SMGR, RELMAP and LOGICALMSG (`standbydesc.c`, `smgrdesc.c`, `relmapdesc.c`, `logicalmsgdesc.c`).

use pg_types::{InvalidationMessage, Oid, RelFileLocator};

use super::fork;
use super::xact::xid_list;
use crate::cursor::Cursor;
use crate::error::Malformed;
use crate::message::read_message;
use crate::profile::WalProfile;
use crate::record::RecordHeader;
use crate::rmgr::logicalmsg::{self, LogicalMessage};
use crate::rmgr::relmap::{self, RelmapUpdate};
use crate::rmgr::smgr::{self, SmgrCreate, SmgrTruncate};
use crate::rmgr::standby::{self, Invalidations, RunningXacts};
use crate::text::Text;

/// Writes a STANDBY record's description.
pub(super) fn standby(header: &RecordHeader, main: &[u8], profile: &WalProfile, out: &mut Text) -> Result<(), Malformed> {
    match header.operation() {
        standby::LOCK => {
            for lock in standby::locks(main)? {
                out.str("xid ").dec(lock.xid.0).str(" db ").dec(lock.db.0).str(" rel ").dec(lock.rel.0).str(" ");
            }
        }
        standby::RUNNING_XACTS => running_xacts(&RunningXacts::read(main)?, profile, out),
        standby::INVALIDATIONS => invalidations(&Invalidations::read(&mut Cursor::new(main))?, out),
        _ => {}
    }
    Ok(())
}

/// `standby_desc_running_xacts`.
fn running_xacts(running: &RunningXacts<'_>, profile: &WalProfile, out: &mut Text) {
    out.str("nextXid ").dec(running.next_xid.0);
    out.str(" latestCompletedXid ").dec(running.latest_completed_xid.0);
    out.str(" oldestRunningXid ").dec(running.oldest_running_xid.0);
    if !running.xids.is_empty() {
        out.str("; ").dec(running.xids.len() as u32).str(" xacts:");
        xid_list(running.xids, out);
    }
    let style = profile.text;
    if running.subxid_overflow {
        out.str(if style.running_subxacts { "; subxid overflowed" } else { "; subxid ovf" });
    }
    if style.running_subxacts && !running.subxids.is_empty() {
        out.str("; ").dec(running.subxids.len() as u32).str(" subxacts:");
        xid_list(running.subxids, out);
    }
}

/// `standby_desc_invalidations`.
pub(super) fn invalidations(inval: &Invalidations<'_>, out: &mut Text) {
    if inval.messages.is_empty() {
        return;
    }
    if inval.init_file {
        out.str("; relcache init file inval dbid ").dec(inval.db.0).str(" tsid ").dec(inval.spc.0);
    }
    out.str("; inval msgs:");
    for bytes in inval.messages {
        match read_message(bytes) {
            Ok(InvalidationMessage::Catcache { cache_id, .. }) => out.str(" catcache ").dec(cache_id.unsigned_abs().into()),
            Ok(InvalidationMessage::Catalog { catalog, .. }) => out.str(" catalog ").dec(catalog.0),
            Ok(InvalidationMessage::Relcache { rel, .. }) => out.str(" relcache ").dec(rel.0),
            Ok(InvalidationMessage::Smgr { .. }) => out.str(" smgr"),
            Ok(InvalidationMessage::Relmap { db }) => out.str(" relmap db ").dec(db.0),
            Ok(InvalidationMessage::Snapshot { rel, .. }) => out.str(" snapshot ").dec(rel.0),
            Ok(InvalidationMessage::Relsync { rel, .. }) => out.str(" relsync ").dec(rel.0),
            Err(unknown) => out.str(" unrecognized id ").signed(unknown.0.into()),
        };
    }
}

/// Writes an SMGR record's description.
pub(super) fn smgr(header: &RecordHeader, main: &[u8], profile: &WalProfile, out: &mut Text) -> Result<(), Malformed> {
    match header.operation() {
        smgr::CREATE => {
            let create = SmgrCreate::read(main)?;
            path(create.target, create.fork, profile, out);
        }
        smgr::TRUNCATE => {
            let truncate = SmgrTruncate::read(main)?;
            path(truncate.target, 0, profile, out);
            out.str(" to ").dec(truncate.blocks).str(" blocks flags ").signed(truncate.flags.cast_signed());
        }
        _ => {}
    }
    Ok(())
}

/// Writes a RELMAP record's description.
pub(super) fn relmap(header: &RecordHeader, main: &[u8], out: &mut Text) -> Result<(), Malformed> {
    if header.operation() == relmap::UPDATE {
        let update = RelmapUpdate::read(main)?;
        out.str("database ").dec(update.db.0).str(" tablespace ").dec(update.spc.0).str(" size ").signed(update.size);
    }
    Ok(())
}

/// Writes a LOGICALMSG record's description.
pub(super) fn logical_message(
    header: &RecordHeader,
    main: &[u8],
    profile: &WalProfile,
    out: &mut Text,
) -> Result<(), Malformed> {
    if header.operation() != logicalmsg::MESSAGE {
        return Ok(());
    }
    let message = LogicalMessage::read(main)?;
    let len = message.message.len() as u32;
    if profile.text.message_payload {
        out.str(if message.transactional { "transactional" } else { "non-transactional" });
        out.str(", prefix \"").untrusted(message.prefix).str("\"; payload (").dec(len).str(" bytes): ");
        out.hex_bytes(message.message);
    } else {
        out.str(if message.transactional { "transactional" } else { "nontransactional" });
        out.str(" message size ").dec(len).str(" bytes");
    }
    Ok(())
}

/// A file's path in the data directory (`GetRelationPath`).
pub(super) fn path(locator: RelFileLocator, fork_number: u32, profile: &WalProfile, out: &mut Text) {
    match locator.spc {
        Oid::GLOBAL_TABLESPACE => out.str("global/").dec(locator.rel),
        Oid::DEFAULT_TABLESPACE => out.str("base/").dec(locator.db.0).str("/").dec(locator.rel),
        spc => {
            out.str("pg_tblspc/").dec(spc.0).str("/PG_").dec(profile.version.major()).str("_").dec(profile.catalog_version);
            out.str("/").dec(locator.db.0).str("/").dec(locator.rel)
        }
    };
    if fork_number != 0 {
        out.str("_");
        fork(fork_number, out);
    }
}
