//! A record in words, in the manner of its own version's pg_waldump (`access/rmgrdesc`, `bin/pg_waldump`).
//!
//! XLOG, XACT, SMGR, RELMAP, STANDBY, HEAP, HEAP2 and LOGICALMSG are described in full; of other resource managers the operation
//! and the block references. Different from pg_waldump: times are in UTC, and names from outside are shown with
//! [`Text::untrusted`].

mod heap;
mod heap2;
mod other;
mod xact;
mod xlog;

use pg_types::Lsn;

use crate::blocks::RecordParts;
use crate::error::Malformed;
use crate::profile::WalProfile;
use crate::record::RawRecord;
use crate::rmgr::{self, RM_HEAP, RM_HEAP2, RM_LOGICALMSG, RM_RELMAP, RM_SMGR, RM_STANDBY, RM_XACT, RM_XLOG};
use crate::text::{self, Text};

/// Names of forks.
const FORKS: [&str; 4] = ["main", "fsm", "vm", "init"];
/// Column of the lengths, after the longest usual name.
const RMGR_WIDTH: usize = 11;
/// Blanks to fill that column.
const BLANKS: &str = "           ";

/// Writes a record as a line of pg_waldump 18, with its line end.
///
/// # Errors
/// If the record's contents contradict the layout of their kind. What was written before is taken back.
pub fn line(record: &RawRecord<'_>, profile: &'static WalProfile, out: &mut Text) -> Result<(), Malformed> {
    let parts = RecordParts::walk(record.bytes, profile)?;
    let header = &record.header;
    let start = out.len();
    let rec_len = header.total_len.saturating_sub(parts.images_len);
    columns(&rmgr::name(header.rmid), (rec_len, header.total_len), header.xid.0, record.lsn, header.prev, out);
    let written = description(record, &parts, profile, out);
    if written.is_ok() {
        out.str("\n")
    } else {
        out.truncate(start);
        out
    };
    written
}

/// The columns of a line whose values have their usual widths; the values are put in where the blanks are.
const COLUMNS: &[u8; 104] =
    b"rmgr:             len (rec/tot):       /      , tx:           , lsn:  /        , prev  /        , desc: ";

/// Writes the columns before the description.
fn columns(name: &str, (rec_len, total_len): (u32, u32), xid: u32, lsn: Lsn, prev: Lsn, out: &mut Text) {
    let halves = |lsn: Lsn| ((lsn.0 >> 32) as u32, lsn.0 as u32);
    let ((lsn_high, lsn_low), (prev_high, prev_low)) = (halves(lsn), halves(prev));
    let usual = name.len() <= RMGR_WIDTH && total_len < 1_000_000 && lsn_high < 16 && prev_high < 16;
    if !usual {
        out.str("rmgr: ").str(name).str(BLANKS.get(name.len().min(RMGR_WIDTH)..).unwrap_or_default());
        out.str(" len (rec/tot): ").dec_right(rec_len, 6).str("/").dec_right(total_len, 6);
        out.str(", tx: ").dec_right(xid, 10);
        out.str(", lsn: ").lsn_padded(lsn).str(", prev ").lsn_padded(prev).str(", desc: ");
        return;
    }
    let Some(line) = out.template(COLUMNS) else { return };
    put(line, 6, name.as_bytes());
    put(line, 33, &text::six_columns(rec_len));
    put(line, 40, &text::six_columns(total_len));
    put(line, 52, &text::ten_columns(xid));
    put(line, 69, &text::zero_filled::<1>(lsn_high));
    put(line, 71, &text::zero_filled::<8>(lsn_low));
    put(line, 86, &text::zero_filled::<1>(prev_high));
    put(line, 88, &text::zero_filled::<8>(prev_low));
}

/// Puts a value in its place.
#[inline]
fn put(line: &mut [u8; COLUMNS.len()], at: usize, value: &[u8]) {
    if let Some(place) = line.get_mut(at..).and_then(|l| l.get_mut(..value.len())) {
        place.copy_from_slice(value);
    }
}

/// Writes a record's operation, description and block references.
///
/// # Errors
/// If the record's contents contradict the layout of their kind; what was written until then stays.
pub fn description(
    record: &RawRecord<'_>,
    parts: &RecordParts<'_>,
    profile: &WalProfile,
    out: &mut Text,
) -> Result<(), Malformed> {
    let header = &record.header;
    match rmgr::known_operation(profile, header.rmid, header.info) {
        Some(operation) => out.str(operation).str(" "),
        None => out.str(&rmgr::operation_name(profile, header.rmid, header.info)).str(" "),
    };
    match header.rmid {
        RM_XLOG => xlog::describe(header, parts.main, profile, out)?,
        RM_XACT => xact::describe(header, parts, profile, out)?,
        RM_SMGR => other::smgr(header, parts.main, profile, out)?,
        RM_RELMAP => other::relmap(header, parts.main, out)?,
        RM_STANDBY => other::standby(header, parts.main, profile, out)?,
        RM_HEAP => heap::describe(header, parts.main, profile, out)?,
        RM_HEAP2 => heap2::describe(header, parts, profile, out)?,
        RM_LOGICALMSG => other::logical_message(header, parts.main, profile, out)?,
        id if usize::from(id) >= rmgr::names().len() => _ = out.str("rmid: ").dec(u32::from(id)),
        _ => {}
    }
    block_references(parts, out);
    Ok(())
}

/// Writes `, blkref #0: rel 1663/5/16396 blk 4 FPW` for each.
fn block_references(parts: &RecordParts<'_>, out: &mut Text) {
    for block in parts.blocks() {
        out.str(", blkref #").dec(u32::from(block.id)).str(": rel ").locator(block.locator);
        if block.fork != 0 {
            out.str(" fork ");
            fork(u32::from(block.fork), out);
        }
        out.str(" blk ").dec(block.block);
        if let Some(image) = &block.image {
            out.str(if image.apply { " FPW" } else { " FPW for WAL verification" });
        }
    }
}

/// A fork's name, or the number of one that does not exist.
fn fork(number: u32, out: &mut Text) {
    match FORKS.get(number as usize) {
        Some(name) => out.str(name),
        None => out.dec(number),
    };
}

/// Writes ` [a, b]` (`array_desc`).
fn array<T>(items: impl IntoIterator<Item = T>, out: &mut Text, mut element: impl FnMut(T, &mut Text)) {
    out.str(" [");
    for (i, item) in items.into_iter().enumerate() {
        out.str(if i == 0 { "" } else { ", " });
        element(item, out);
    }
    out.str("]");
}

/// Writes line pointers as an array.
fn offsets(raw: &[[u8; 2]], out: &mut Text) {
    array(raw, out, |b, out| _ = out.dec(u32::from(u16::from_le_bytes(*b))));
}
