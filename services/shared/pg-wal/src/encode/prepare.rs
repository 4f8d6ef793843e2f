//! The state of a prepared transaction as its PREPARE record carries it (`access/transam/twophase.c`).

use pg_types::Xid;
use pg_types::record::PrepareRecord;

use super::assemble::{Put, count};
use super::standby::put_messages;
use super::xact::put_stats_items;
use super::{EncodeError, Encoder};

/// `TWOPHASE_MAGIC`.
const MAGIC: u32 = 0x57F9_4534;
/// `GIDSIZE` − 1.
const GID_LEN_MAX: usize = 199;
/// A `TwoPhaseRecordOnDisk` without data that ends the list: length 0, `TWOPHASE_RM_END_ID`, info 0.
const END_RECORD_LEN: usize = 8;
/// The checksum that the state file has and the record has not.
const CRC_LEN: usize = 4;

impl Encoder {
    /// `StartPrepare` to `EndPrepare`, without lock and predicate-lock state. Its xid is the record's.
    pub(super) fn prepare(&mut self, xid: Xid, r: &PrepareRecord) -> Result<(), EncodeError> {
        if r.gid.len() > GID_LEN_MAX {
            return Err(EncodeError::TooLarge { what: "a prepared transaction's name", len: r.gid.len(), max: GID_LEN_MAX });
        }
        let stats_words = self.profile.dropped_stats_item_len / 4;
        if stats_words == 0 && (r.commit_stats > 0 || r.abort_stats > 0) {
            return Err(self.not_in_version("statistics entries that a prepared transaction drops"));
        }
        let (origin_lsn, origin_time) = r.origin.unwrap_or_default();
        let main = self.main();
        main.u32(MAGIC);
        main.u32(0); // total_len, below
        main.u32(xid.0);
        main.u32(r.db.0);
        main.u64(r.time.0 as u64);
        main.u32(r.owner.0);
        main.u32(count("subtransactions", r.subxids.len())?);
        main.u32(count("files dropped at commit", r.commit_locators.len())?);
        main.u32(count("files dropped at abort", r.abort_locators.len())?);
        if stats_words > 0 {
            main.u32(count("statistics dropped at commit", r.commit_stats as usize)?);
            main.u32(count("statistics dropped at abort", r.abort_stats as usize)?);
        }
        main.u32(count("messages", r.messages.len())?);
        main.u8(0);
        main.pad_to(0, main.len().next_multiple_of(2));
        main.u16(r.gid.len() as u16 + 1);
        main.pad_to(0, main.len().next_multiple_of(8));
        main.u64(origin_lsn.0);
        main.u64(origin_time.0 as u64);
        main.extend_from_slice(&r.gid);
        main.u8(0);
        align(main);
        r.subxids.iter().for_each(|xid| main.u32(xid.0));
        align(main);
        r.commit_locators.iter().for_each(|rel| main.locator(*rel));
        align(main);
        r.abort_locators.iter().for_each(|rel| main.locator(*rel));
        align(main);
        for (files, n) in [(&r.commit_locators, r.commit_stats), (&r.abort_locators, r.abort_stats)] {
            put_stats_items(r.db, files, n, stats_words, main);
            align(main);
        }
        put_messages(&r.messages, main);
        main.resize(main.len() + END_RECORD_LEN, 0);
        let total = ((main.len() + CRC_LEN) as u32).to_le_bytes();
        main.splice(4..8, total);
        Ok(())
    }
}

/// Each part of the state starts at an 8-byte boundary (`save_state_data`).
fn align(main: &mut Vec<u8>) {
    main.resize(main.len().next_multiple_of(8), 0);
}
