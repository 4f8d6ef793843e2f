//! XACT (`access/xact.h`): commits and aborts with their chunks, assignments, invalidations of a command.

use pg_types::record::{AbortRecord, AssignmentRecord, CommitRecord, xinfo};
use pg_types::{InvalidationMessage, Lsn, Oid, RecordBody, RelFileLocator, Timestamp, Xid};

use super::assemble::{Put, RmgrOp, count};
use super::standby::put_messages;
use super::{EncodeError, Encoder};

/// `RM_XACT_ID`.
const XACT: u8 = 1;
/// `XLOG_XACT_HAS_INFO`.
const HAS_INFO: u8 = 0x80;
/// `PGSTAT_KIND_RELATION`.
const STATS_KIND_RELATION: u32 = 2;

/// What commit and abort records have in common.
struct Chunks<'a> {
    /// When.
    time: Timestamp,
    /// Flags that are no chunk's (locks, completion), and `HAS_DBINFO` where a server writes the database without need.
    xinfo: u32,
    /// Database and tablespace.
    db_and_spc: (Oid, Oid),
    /// Subtransactions.
    subxids: &'a [Xid],
    /// Files to drop.
    dropped_locators: &'a [RelFileLocator],
    /// Statistics entries to drop.
    dropped_stats: u32,
    /// Messages (commits only).
    messages: &'a [InvalidationMessage],
    /// The prepared transaction that this ends.
    prepared_xid: Xid,
    /// Its name.
    gid: &'a [u8],
    /// Origin's position and time.
    origin: Option<(Lsn, Timestamp)>,
}

impl Encoder {
    /// Any XACT record.
    pub(super) fn xact(&mut self, xid: Xid, body: &RecordBody) -> Result<RmgrOp, EncodeError> {
        let info = match body {
            RecordBody::Commit(r) => self.commit(r),
            RecordBody::Abort(r) => self.abort(r),
            RecordBody::Prepare(r) => self.prepare(xid, r).map(|()| 0x10),
            RecordBody::Assignment(r) => self.assignment(r).map(|()| 0x50),
            RecordBody::XactInvalidations(messages) => self.xact_invalidations(messages).map(|()| 0x60),
            _ => Err(EncodeError::Opaque { rmid: XACT, info: 0 }),
        }?;
        Ok(RmgrOp { rmid: XACT, info })
    }

    /// `XactLogCommitRecord`.
    fn commit(&mut self, r: &CommitRecord) -> Result<u8, EncodeError> {
        let has_info = self.chunks(&Chunks {
            time: r.time,
            xinfo: r.xinfo,
            db_and_spc: (r.db, r.spc),
            subxids: &r.subxids,
            dropped_locators: &r.dropped_locators,
            dropped_stats: r.dropped_stats,
            messages: &r.messages,
            prepared_xid: r.prepared_xid,
            gid: &r.gid,
            origin: r.origin,
        })?;
        Ok(has_info | if r.prepared_xid.is_valid() { 0x30 } else { 0x00 })
    }

    /// `XactLogAbortRecord`.
    fn abort(&mut self, r: &AbortRecord) -> Result<u8, EncodeError> {
        let has_info = self.chunks(&Chunks {
            time: r.time,
            xinfo: r.xinfo,
            db_and_spc: (r.db, r.spc),
            subxids: &r.subxids,
            dropped_locators: &r.dropped_locators,
            dropped_stats: r.dropped_stats,
            messages: &[],
            prepared_xid: r.prepared_xid,
            gid: &r.gid,
            origin: r.origin,
        })?;
        Ok(has_info | if r.prepared_xid.is_valid() { 0x40 } else { 0x20 })
    }

    /// The time, then the chunks that are there in their fixed order. Gives the flag for `xl_info`.
    fn chunks(&mut self, c: &Chunks<'_>) -> Result<u8, EncodeError> {
        if c.dropped_stats > 0 && self.profile.dropped_stats_item_len == 0 {
            return Err(self.not_in_version("dropped statistics entries"));
        }
        let flags = chunk_flags(c);
        let stats_item_words = self.profile.dropped_stats_item_len / 4;
        let main = self.main();
        main.u64(c.time.0 as u64);
        if flags == 0 {
            return Ok(0);
        }
        main.u32(flags);
        if flags & xinfo::HAS_DBINFO != 0 {
            main.db_and_spc(c.db_and_spc.0, c.db_and_spc.1);
        }
        if !c.subxids.is_empty() {
            main.u32(count("subtransactions", c.subxids.len())?);
            c.subxids.iter().for_each(|xid| main.u32(xid.0));
        }
        if !c.dropped_locators.is_empty() {
            main.u32(count("dropped files", c.dropped_locators.len())?);
            c.dropped_locators.iter().for_each(|rel| main.locator(*rel));
        }
        if c.dropped_stats > 0 {
            main.u32(count("dropped statistics", c.dropped_stats as usize)?);
            put_stats_items(c.db_and_spc.0, c.dropped_locators, c.dropped_stats, stats_item_words, main);
        }
        if !c.messages.is_empty() {
            main.u32(count("messages", c.messages.len())?);
            put_messages(c.messages, main);
        }
        if c.prepared_xid.is_valid() {
            main.u32(c.prepared_xid.0);
        }
        if !c.gid.is_empty() {
            main.extend_from_slice(c.gid);
            main.u8(0);
        }
        if let Some((lsn, time)) = c.origin {
            main.u64(lsn.0);
            main.u64(time.0 as u64);
        }
        Ok(HAS_INFO)
    }

    /// `AssignTransactionId`.
    fn assignment(&mut self, r: &AssignmentRecord) -> Result<(), EncodeError> {
        let n = count("subtransactions", r.subxids.len())?;
        let main = self.main();
        main.u32(r.top_xid.0);
        main.u32(n);
        r.subxids.iter().for_each(|xid| main.u32(xid.0));
        Ok(())
    }

    /// `LogLogicalInvalidations`.
    fn xact_invalidations(&mut self, messages: &[InvalidationMessage]) -> Result<(), EncodeError> {
        if !self.profile.has_xact_invalidations {
            return Err(self.not_in_version("the messages of one command"));
        }
        let n = count("messages", messages.len())?;
        let main = self.main();
        main.u32(n);
        put_messages(messages, main);
        Ok(())
    }
}

/// `xinfo`: the given flags, with those of chunks replaced by what is there.
fn chunk_flags(c: &Chunks<'_>) -> u32 {
    let there = [
        (c.db_and_spc != (Oid::INVALID, Oid::INVALID) || c.xinfo & xinfo::HAS_DBINFO != 0, xinfo::HAS_DBINFO),
        (!c.subxids.is_empty(), xinfo::HAS_SUBXACTS),
        (!c.dropped_locators.is_empty(), xinfo::HAS_RELFILELOCATORS),
        (!c.messages.is_empty(), xinfo::HAS_INVALS),
        (c.prepared_xid.is_valid(), xinfo::HAS_TWOPHASE),
        (c.origin.is_some(), xinfo::HAS_ORIGIN),
        (!c.gid.is_empty(), xinfo::HAS_GID),
        (c.dropped_stats > 0, xinfo::HAS_DROPPED_STATS),
    ];
    there.iter().fold(c.xinfo & !xinfo::CHUNKS, |flags, (on, bit)| if *on { flags | bit } else { flags })
}

/// Statistics entries of the dropped files, which are told newest first and the entries oldest first; a typed record keeps
/// their number only.
pub(super) fn put_stats_items(db: Oid, files: &[RelFileLocator], n: u32, words: usize, out: &mut Vec<u8>) {
    for i in 0..n as usize {
        out.u32(STATS_KIND_RELATION);
        out.u32(db.0);
        out.u32(files.iter().rev().nth(i).map_or(0, |rel| rel.rel));
        (3..words).for_each(|_| out.u32(0));
    }
}
