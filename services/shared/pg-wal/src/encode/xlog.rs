//! XLOG (`catalog/pg_control.h`, `access/xlog_internal.h`).

use pg_types::RecordBody;
use pg_types::record::{CheckpointRecord, ParameterChangeRecord};

use super::assemble::{Put, RmgrOp};
use super::{EncodeError, Encoder};

/// `RM_XLOG_ID`.
const XLOG: u8 = 0;
/// `WAL_LEVEL_LOGICAL`.
const WAL_LEVEL_LOGICAL: u32 = 2;

impl Encoder {
    /// Any XLOG record.
    pub(super) fn xlog(&mut self, body: &RecordBody) -> Result<RmgrOp, EncodeError> {
        let info = match body {
            RecordBody::Checkpoint(r) => {
                if r.wal_level != 0 && !self.profile.has_checkpoint_wal_level {
                    return Err(self.not_in_version("a checkpoint's wal_level"));
                }
                self.checkpoint(r);
                if r.shutdown { 0x00 } else { 0x10 }
            }
            RecordBody::XlogOther => 0x20,
            RecordBody::NextOid(oid) => {
                self.main().u32(oid.0);
                0x30
            }
            RecordBody::Switch => 0x40,
            RecordBody::BackupEnd(start) => {
                self.main().u64(start.0);
                0x50
            }
            RecordBody::ParameterChange(r) => {
                self.parameter_change(r);
                0x60
            }
            RecordBody::EndOfRecovery { this_timeline, prev_timeline } => {
                self.end_of_recovery(*this_timeline, *prev_timeline);
                0x90
            }
            RecordBody::OverwriteContrecord(missing) => {
                self.main().u64(missing.0);
                self.main().u64(0);
                0xD0
            }
            RecordBody::CheckpointRedo => {
                if !self.profile.has_checkpoint_wal_level {
                    return Err(self.not_in_version("a record where a checkpoint's redo starts"));
                }
                self.main().u32(WAL_LEVEL_LOGICAL);
                0xE0
            }
            _ => return Err(EncodeError::Opaque { rmid: XLOG, info: 0 }),
        };
        Ok(RmgrOp { rmid: XLOG, info })
    }

    /// `CreateCheckPoint`: struct `CheckPoint`. wal_level fills what was padding up to 16.
    fn checkpoint(&mut self, r: &CheckpointRecord) {
        let main = self.main();
        main.u64(r.redo.0);
        main.u32(r.this_timeline);
        main.u32(r.prev_timeline);
        main.u8(u8::from(r.full_page_writes));
        main.pad_to(0, 20);
        main.u32(r.wal_level);
        main.u64(r.next_xid.0);
        let words = [
            r.next_oid.0,
            r.next_multi,
            r.next_multi_offset,
            r.oldest_xid.0,
            r.oldest_xid_db.0,
            r.oldest_multi,
            r.oldest_multi_db.0,
            0,
        ];
        words.into_iter().for_each(|word| main.u32(word));
        main.u64(r.time as u64);
        [r.oldest_commit_ts_xid.0, r.newest_commit_ts_xid.0, r.oldest_active_xid.0, 0]
            .into_iter()
            .for_each(|word| main.u32(word));
    }

    /// `XLogReportParameters`.
    fn parameter_change(&mut self, r: &ParameterChangeRecord) {
        let main = self.main();
        let words = [
            r.max_connections,
            r.max_worker_processes,
            r.max_wal_senders,
            r.max_prepared_xacts,
            r.max_locks_per_xact,
            r.wal_level,
        ];
        words.into_iter().for_each(|word| main.u32(word as u32));
        main.extend_from_slice(&[u8::from(r.wal_log_hints), u8::from(r.track_commit_timestamp), 0, 0]);
    }

    /// `CreateEndOfRecoveryRecord`; it tells wal_level from 17 on.
    fn end_of_recovery(&mut self, this_timeline: u32, prev_timeline: u32) {
        let tells_wal_level = self.profile.has_checkpoint_wal_level;
        let main = self.main();
        main.u64(0);
        main.u32(this_timeline);
        main.u32(prev_timeline);
        if tells_wal_level {
            main.u32(WAL_LEVEL_LOGICAL);
            main.u32(0);
        }
    }
}
