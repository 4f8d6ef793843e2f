//! XACT (`access/rmgrdesc/xactdesc.c`).

use pg_types::{Lsn, Timestamp};

use super::other::{invalidations, path};
use crate::blocks::RecordParts;
use crate::error::Malformed;
use crate::profile::WalProfile;
use crate::record::RecordHeader;
use crate::rmgr::standby::{Invalidations, RawXids, xids};
use crate::rmgr::xact::{self, DroppedStats, Prepare, RawLocators, TransactionEnd, locators};
use crate::text::Text;

/// Writes an XACT record's description.
pub(super) fn describe(
    header: &RecordHeader,
    parts: &RecordParts<'_>,
    profile: &WalProfile,
    out: &mut Text,
) -> Result<(), Malformed> {
    let main = parts.main;
    match header.info & xact::OPMASK {
        xact::COMMIT | xact::COMMIT_PREPARED => {
            let end = TransactionEnd::read(header, main, profile)?;
            head(&end, profile, out);
            stats("", &end.stats, out);
            let init_file = end.xinfo & xact::XINFO_UPDATE_RELCACHE_FILE != 0;
            invalidations(&Invalidations { db: end.db, spc: end.spc, init_file, messages: end.messages }, out);
            if end.xinfo & xact::XINFO_FORCE_SYNC_COMMIT != 0 {
                out.str("; sync");
            }
            if let Some((lsn, time)) = end.origin {
                origin(parts.origin, lsn, time, out);
            }
        }
        xact::ABORT | xact::ABORT_PREPARED => {
            let end = TransactionEnd::read(header, main, profile)?;
            head(&end, profile, out);
            if let Some((lsn, time)) = end.origin {
                origin(parts.origin, lsn, time, out);
            }
            stats("", &end.stats, out);
        }
        xact::PREPARE => prepare(parts, profile, out)?,
        xact::ASSIGNMENT => {
            let (top, subxids) = xact::assignment(main)?;
            out.str("xtop ").dec(top.0).str(": subxacts:");
            xid_list(subxids, out);
        }
        xact::INVALIDATIONS if profile.has_xact_invalidations => {
            let messages = xact::invalidations(main)?;
            invalidations(&Invalidations { messages, ..Invalidations::default() }, out);
        }
        _ => {}
    }
    Ok(())
}

/// What commit and abort begin with.
fn head(end: &TransactionEnd<'_>, profile: &WalProfile, out: &mut Text) {
    if end.prepared_xid.is_valid() {
        out.dec(end.prepared_xid.0).str(": ");
    }
    out.timestamp(end.time);
    relations("rels", end.locators, profile, out);
    subxacts(end.subxids, out);
}

/// A prepare.
fn prepare(parts: &RecordParts<'_>, profile: &WalProfile, out: &mut Text) -> Result<(), Malformed> {
    let p = Prepare::read(parts.main, profile)?;
    out.str("gid ").untrusted(p.gid).str(": ").timestamp(p.time);
    relations("rels(commit)", p.commit_locators, profile, out);
    relations("rels(abort)", p.abort_locators, profile, out);
    stats("commit ", &p.commit_stats, out);
    stats("abort ", &p.abort_stats, out);
    subxacts(p.subxids, out);
    invalidations(&Invalidations { db: p.db, init_file: p.init_file, messages: p.messages, ..Invalidations::default() }, out);
    if parts.origin != 0 {
        origin(parts.origin, p.origin.0, p.origin.1, out);
    }
    Ok(())
}

/// `xact_desc_relations`.
fn relations(label: &str, raw: RawLocators<'_>, profile: &WalProfile, out: &mut Text) {
    if raw.is_empty() {
        return;
    }
    out.str("; ").str(label).str(":");
    for locator in locators(raw) {
        out.str(" ");
        path(locator, 0, profile, out);
    }
}

/// `xact_desc_subxacts`.
fn subxacts(raw: RawXids<'_>, out: &mut Text) {
    if !raw.is_empty() {
        out.str("; subxacts:");
        xid_list(raw, out);
    }
}

/// Transaction ids, a blank before each.
pub(super) fn xid_list(raw: RawXids<'_>, out: &mut Text) {
    for xid in xids(raw) {
        out.str(" ").dec(xid.0);
    }
}

/// `xact_desc_stats`.
fn stats(label: &str, stats: &DroppedStats<'_>, out: &mut Text) {
    if stats.count == 0 {
        return;
    }
    out.str("; ").str(label).str("dropped stats:");
    for (kind, db, object) in stats.items() {
        out.str(" ").signed(kind).str("/").dec(db).str("/").dec64(object);
    }
}

/// Where a transaction came from.
fn origin(node: u16, lsn: Lsn, time: Timestamp, out: &mut Text) {
    out.str("; origin: node ").dec(u32::from(node)).str(", lsn ").lsn(lsn).str(", at ").timestamp(time);
}
