//! STANDBY (`storage/standbydefs.h`).

use pg_types::record::{RunningXactsRecord, StandbyInvalidationsRecord, StandbyLock};
use pg_types::{InvalidationMessage, RecordBody};

use super::assemble::{Put, RmgrOp, count};
use super::{EncodeError, Encoder};
use crate::message::write_message;

/// `RM_STANDBY_ID`.
const STANDBY: u8 = 8;

/// Messages, one after the other.
pub(super) fn put_messages(messages: &[InvalidationMessage], out: &mut Vec<u8>) {
    messages.iter().for_each(|message| out.extend_from_slice(&write_message(message)));
}

impl Encoder {
    /// Any STANDBY record.
    pub(super) fn standby(&mut self, body: &RecordBody) -> Result<RmgrOp, EncodeError> {
        let info = match body {
            RecordBody::StandbyLocks(locks) => self.standby_locks(locks).map(|()| 0x00),
            RecordBody::RunningXacts(r) => self.running_xacts(r).map(|()| 0x10),
            RecordBody::StandbyInvalidations(r) => self.standby_invalidations(r).map(|()| 0x20),
            _ => Err(EncodeError::Opaque { rmid: STANDBY, info: 0 }),
        }?;
        Ok(RmgrOp { rmid: STANDBY, info })
    }

    /// `LogAccessExclusiveLocks`.
    fn standby_locks(&mut self, locks: &[StandbyLock]) -> Result<(), EncodeError> {
        let n = count("locks", locks.len())?;
        let main = self.main();
        main.u32(n);
        for lock in locks {
            main.u32(lock.xid.0);
            main.db_and_spc(lock.db, lock.rel);
        }
        Ok(())
    }

    /// `LogCurrentRunningXacts`.
    fn running_xacts(&mut self, r: &RunningXactsRecord) -> Result<(), EncodeError> {
        let (xcnt, subxcnt) = (count("running xids", r.xids.len())?, count("running subxids", r.subxids.len())?);
        let main = self.main();
        main.u32(xcnt);
        main.u32(subxcnt);
        main.u8(u8::from(r.subxid_overflow));
        main.pad_to(0, 12);
        [r.next_xid, r.oldest_running_xid, r.latest_completed_xid].into_iter().for_each(|xid| main.u32(xid.0));
        r.xids.iter().chain(&r.subxids).for_each(|xid| main.u32(xid.0));
        Ok(())
    }

    /// `LogStandbyInvalidations`.
    fn standby_invalidations(&mut self, r: &StandbyInvalidationsRecord) -> Result<(), EncodeError> {
        let n = count("messages", r.messages.len())?;
        let main = self.main();
        main.db_and_spc(r.db, r.spc);
        main.u8(u8::from(r.relcache_init_file_inval));
        main.pad_to(0, 12);
        main.u32(n);
        put_messages(&r.messages, main);
        Ok(())
    }
}
