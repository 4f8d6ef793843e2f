//! SMGR, RELMAP and LOGICALMSG (`catalog/storage_xlog.h`, `utils/relmapper.h`, `replication/message.h`).

use pg_types::RecordBody;
use pg_types::record::{LogicalMessageRecord, RelmapRecord};

use super::assemble::{Put, RmgrOp};
use super::{EncodeError, Encoder};

/// `RM_SMGR_ID`.
const SMGR: u8 = 2;
/// `RM_RELMAP_ID`.
const RELMAP: u8 = 7;
/// `RM_LOGICALMSG_ID`.
const LOGICALMSG: u8 = 21;
/// `RELMAPPER_FILEMAGIC`.
const RELMAP_MAGIC: u32 = 0x0059_2717;
/// Bytes of the map's file, where its entries do not take more (16 and later).
const RELMAP_LEN_MIN: usize = 512;

impl Encoder {
    /// Any record of the three.
    pub(super) fn storage(&mut self, body: &RecordBody) -> Result<RmgrOp, EncodeError> {
        match body {
            RecordBody::SmgrCreate { target, fork } => {
                self.main().locator(*target);
                self.main().u32(*fork);
                Ok(RmgrOp { rmid: SMGR, info: 0x10 })
            }
            RecordBody::SmgrTruncate { target, blocks, flags } => {
                self.main().u32(*blocks);
                self.main().locator(*target);
                self.main().u32(*flags);
                Ok(RmgrOp { rmid: SMGR, info: 0x20 })
            }
            RecordBody::Relmap(r) => self.relmap(r),
            RecordBody::LogicalMessage(r) => Ok(self.logical_message(r)),
            _ => Err(EncodeError::Opaque { rmid: SMGR, info: 0 }),
        }
    }

    /// `write_relmap_file`: the whole map, with its checksum.
    fn relmap(&mut self, r: &RelmapRecord) -> Result<RmgrOp, EncodeError> {
        let max = self.profile.relmap_entries_max as usize;
        if r.mappings.len() > max {
            return Err(EncodeError::TooLarge { what: "a relation map", len: r.mappings.len(), max });
        }
        let mut file = Vec::with_capacity(RELMAP_LEN_MIN + 16);
        file.u32(RELMAP_MAGIC);
        file.u32(r.mappings.len() as u32);
        for (catalog, number) in &r.mappings {
            file.u32(catalog.0);
            file.u32(*number);
        }
        file.resize(8 + 8 * max, 0);
        let crc = crc32c::crc32c(&file);
        file.u32(crc);
        file.resize(file.len().max(RELMAP_LEN_MIN), 0);
        let main = self.main();
        main.db_and_spc(r.db, r.spc);
        main.u32(file.len() as u32);
        main.extend_from_slice(&file);
        Ok(RmgrOp { rmid: RELMAP, info: 0 })
    }

    /// `LogLogicalMessage`.
    fn logical_message(&mut self, r: &LogicalMessageRecord) -> RmgrOp {
        let main = self.main();
        main.u32(r.db.0);
        main.u8(u8::from(r.transactional));
        main.pad_to(0, 8);
        main.u64(r.prefix.len() as u64 + 1);
        main.u64(r.message.len() as u64);
        main.extend_from_slice(&r.prefix);
        main.u8(0);
        main.extend_from_slice(&r.message);
        RmgrOp { rmid: LOGICALMSG, info: 0 }
    }
}
