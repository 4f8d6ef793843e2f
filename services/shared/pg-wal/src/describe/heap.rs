//! HEAP (`access/rmgrdesc/heapdesc.c`).

use pg_types::Xid;

use super::array;
use super::other::invalidations;
use crate::error::Malformed;
use crate::profile::WalProfile;
use crate::record::RecordHeader;
use crate::rmgr::heap::{self, XlHeapDelete, XlHeapInplace, XlHeapInsert, XlHeapLock, XlHeapTruncate, XlHeapUpdate};
use crate::text::Text;

/// Names of `XLHL_*`, by bit.
const INFOBITS: [&str; 5] = ["IS_MULTI", "LOCK_ONLY", "EXCL_LOCK", "KEYSHR_LOCK", "KEYS_UPDATED"];
/// Names of `XLH_TRUNCATE_*`, by bit.
const TRUNCATE_FLAGS: [&str; 2] = ["CASCADE", "RESTART_SEQS"];

/// The names of the bits that are set.
fn names<'a>(bits: u8, table: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    table.iter().enumerate().filter(move |(bit, _)| bits & (1 << bit) != 0).map(|(_, name)| *name)
}

/// `infobits_desc`: `old_infobits: [LOCK_ONLY, EXCL_LOCK]`.
fn infobits_keyed(label: &str, bits: u8, out: &mut Text) {
    out.str(label).str(":");
    array(names(bits, &INFOBITS), out, |name, out| _ = out.str(name));
}

/// The older `out_infobits`: each with a blank behind.
fn infobits_plain(bits: u8, out: &mut Text) {
    for name in names(bits, &INFOBITS) {
        out.str(name).str(" ");
    }
}

/// `0x` and two digits.
fn flags(flags: u8, out: &mut Text) {
    out.str("0x").hex(u32::from(flags), 2);
}

/// Writes a HEAP record's description.
pub(super) fn describe(header: &RecordHeader, main: &[u8], profile: &WalProfile, out: &mut Text) -> Result<(), Malformed> {
    let keyed = profile.text.keyed_heap;
    match header.info & heap::OPMASK {
        heap::INSERT => {
            let xl = XlHeapInsert::read(main)?;
            out.str(if keyed { "off: " } else { "off " }).dec(u32::from(xl.offnum));
            out.str(if keyed { ", flags: " } else { " flags " });
            flags(xl.flags, out);
        }
        heap::DELETE => delete(&XlHeapDelete::read(main)?, keyed, out),
        heap::UPDATE | heap::HOT_UPDATE => update(&XlHeapUpdate::read(main)?, keyed, out),
        heap::TRUNCATE => truncate(&XlHeapTruncate::read(main)?, keyed, out),
        heap::CONFIRM => _ = out.str(if keyed { "off: " } else { "off " }).dec(u32::from(heap::offnum(main)?)),
        heap::LOCK => {
            let xl = XlHeapLock::read(main)?;
            if keyed { lock_keyed(&xl, out) } else { lock_plain("xid", &xl, out) }
        }
        _ => {
            let xl = XlHeapInplace::read(main, profile)?;
            out.str(if keyed { "off: " } else { "off " }).dec(u32::from(xl.offnum));
            invalidations(&xl.inval, out);
        }
    }
    Ok(())
}

/// A delete.
fn delete(xl: &XlHeapDelete, keyed: bool, out: &mut Text) {
    if keyed {
        out.str("xmax: ").dec(xl.xmax.0).str(", off: ").dec(u32::from(xl.offnum)).str(", ");
        infobits_keyed("infobits", xl.infobits, out);
        out.str(", flags: ");
        flags(xl.flags, out);
    } else {
        out.str("off ").dec(u32::from(xl.offnum)).str(" flags ");
        flags(xl.flags, out);
        out.str(" ");
        infobits_plain(xl.infobits, out);
    }
}

/// An update.
fn update(xl: &XlHeapUpdate, keyed: bool, out: &mut Text) {
    let (old, new) = (u32::from(xl.old_offnum), u32::from(xl.new_offnum));
    let (Xid(old_xmax), Xid(new_xmax)) = (xl.old_xmax, xl.new_xmax);
    if keyed {
        out.str("old_xmax: ").dec(old_xmax).str(", old_off: ").dec(old).str(", ");
        infobits_keyed("old_infobits", xl.old_infobits, out);
        out.str(", flags: ");
        flags(xl.flags, out);
        out.str(", new_xmax: ").dec(new_xmax).str(", new_off: ").dec(new);
    } else {
        out.str("off ").dec(old).str(" xmax ").dec(old_xmax).str(" flags ");
        flags(xl.flags, out);
        out.str(" ");
        infobits_plain(xl.old_infobits, out);
        out.str("; new off ").dec(new).str(" xmax ").dec(new_xmax);
    }
}

/// A TRUNCATE.
fn truncate(xl: &XlHeapTruncate<'_>, keyed: bool, out: &mut Text) {
    let number = |b: &[u8; 4]| u32::from_le_bytes(*b);
    if keyed {
        out.str("flags:");
        array(names(xl.flags, &TRUNCATE_FLAGS), out, |name, out| _ = out.str(name));
        out.str(", nrelids: ").dec(xl.relids.len() as u32).str(", relids:");
        array(xl.relids, out, |relid, out| _ = out.dec(number(relid)));
        return;
    }
    if xl.flags & heap::TRUNCATE_CASCADE != 0 {
        out.str("cascade ");
    }
    if xl.flags & heap::TRUNCATE_RESTART_SEQS != 0 {
        out.str("restart_seqs ");
    }
    out.str("nrelids ").dec(xl.relids.len() as u32).str(" relids");
    for relid in xl.relids {
        out.str(" ").dec(number(relid));
    }
}

/// A row lock, from 16 on.
pub(super) fn lock_keyed(xl: &XlHeapLock, out: &mut Text) {
    out.str("xmax: ").dec(xl.xmax.0).str(", off: ").dec(u32::from(xl.offnum)).str(", ");
    infobits_keyed("infobits", xl.infobits, out);
    out.str(", flags: ");
    flags(xl.flags, out);
}

/// A row lock, up to 15; the locker was called `xid` in one operation and `xmax` in the other.
pub(super) fn lock_plain(label: &str, xl: &XlHeapLock, out: &mut Text) {
    out.str("off ").dec(u32::from(xl.offnum)).str(": ").str(label).str(" ").dec(xl.xmax.0).str(": flags ");
    flags(xl.flags, out);
    out.str(" ");
    infobits_plain(xl.infobits, out);
}
