//! Block references, data headers and the record header (`XLogRecordAssemble`, `access/xlogrecord.h`).
//!
//! ```text
//! XLogRecord | block headers | [origin] | [top xid] | [main data header] | block data | main data
//! ```

use pg_types::{Lsn, Oid, RelFileLocator, Tid, Xid};

use super::EncodeError;
use crate::profile::WalProfile;

/// `SizeOfXLogRecord`.
const RECORD_HEADER_LEN: usize = 24;
/// Offset of `xl_prev`.
const PREV_AT: usize = 8;
/// Offset of `xl_crc`, and the bytes of the header that the CRC covers.
const CRC_AT: usize = 20;

/// `XLR_BLOCK_ID_DATA_SHORT`.
const ID_DATA_SHORT: u8 = 255;
/// `XLR_BLOCK_ID_DATA_LONG`.
const ID_DATA_LONG: u8 = 254;
/// `XLR_BLOCK_ID_ORIGIN`.
const ID_ORIGIN: u8 = 253;
/// `XLR_BLOCK_ID_TOPLEVEL_XID`, 14 and later.
const ID_TOP_XID: u8 = 252;

/// `BKPBLOCK_HAS_DATA`.
const HAS_DATA: u8 = 0x20;
/// `BKPBLOCK_WILL_INIT`.
const WILL_INIT: u8 = 0x40;
/// `BKPBLOCK_SAME_REL`.
const SAME_REL: u8 = 0x80;

/// A resource manager id and its operation (the high half of `xl_info`).
#[derive(Clone, Copy, Debug)]
pub(super) struct RmgrOp {
    /// Resource manager.
    pub(super) rmid: u8,
    /// Operation and its flags.
    pub(super) info: u8,
}

/// A page that a record touches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    /// File.
    pub(super) rel: RelFileLocator,
    /// 0 main, 1 fsm, 2 vm, 3 init.
    pub(super) fork: u8,
    /// Block number.
    pub(super) block: u32,
    /// Replay makes the page from nothing.
    pub(super) will_init: bool,
}

/// The record under construction.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    /// Block headers.
    heads: Vec<u8>,
    /// Data of all blocks, in the order of their headers.
    data: Vec<u8>,
    /// Main data, without its header.
    pub(super) main: Vec<u8>,
    /// Id of the next block.
    next_block: u8,
    /// File of the block before, which the next header may leave out.
    last_rel: Option<RelFileLocator>,
}

impl Assembler {
    /// `XLogBeginInsert`: forgets what a record before (perhaps given up half-way) left.
    pub(super) fn begin(&mut self) {
        self.heads.clear();
        self.data.clear();
        self.main.clear();
        self.next_block = 0;
        self.last_rel = None;
    }

    /// `XLogRegisterBuffer` and `XLogRegisterBufData`: a block with what `fill` writes as its data.
    pub(super) fn block(
        &mut self,
        block: Block,
        fill: impl FnOnce(&mut Vec<u8>) -> Result<(), EncodeError>,
    ) -> Result<(), EncodeError> {
        let before = self.data.len();
        fill(&mut self.data)?;
        let len = self.data.len() - before;
        let len16 = u16::try_from(len).map_err(|_| EncodeError::TooLarge { what: "a block's data", len, max: 65_535 })?;
        let same = self.last_rel == Some(block.rel);
        let mut flags = block.fork & 0x0F;
        flags |= if len > 0 { HAS_DATA } else { 0 };
        flags |= if block.will_init { WILL_INIT } else { 0 };
        flags |= if same { SAME_REL } else { 0 };
        self.heads.extend_from_slice(&[self.next_block, flags]);
        self.heads.extend_from_slice(&len16.to_le_bytes());
        if !same {
            self.heads.locator(block.rel);
        }
        self.heads.u32(block.block);
        self.next_block += 1;
        self.last_rel = Some(block.rel);
        Ok(())
    }

    /// `XLogRecordAssemble`: puts the parts together, with 0 for `xl_prev` and the CRC.
    pub(super) fn finish(
        &self,
        profile: &WalProfile,
        op: RmgrOp,
        (xid, top_xid, origin): (Xid, Xid, u16),
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let len = RECORD_HEADER_LEN + self.heads.len() + self.data.len() + self.main.len();
        let max = profile.record_len_max as usize;
        if len > max {
            return Err(EncodeError::TooLarge { what: "a WAL record", len, max });
        }
        out.u32(0);
        out.u32(xid.0);
        out.u64(0);
        out.extend_from_slice(&[op.info, op.rmid, 0, 0]);
        out.u32(0);
        out.extend_from_slice(&self.heads);
        if origin != 0 {
            out.push(ID_ORIGIN);
            out.u16(origin);
        }
        if top_xid.is_valid() {
            out.push(ID_TOP_XID);
            out.u32(top_xid.0);
        }
        match u8::try_from(self.main.len()) {
            Ok(0) => {}
            Ok(short) => out.extend_from_slice(&[ID_DATA_SHORT, short]),
            Err(_) => {
                out.push(ID_DATA_LONG);
                out.u32(self.main.len() as u32);
            }
        }
        out.extend_from_slice(&self.data);
        out.extend_from_slice(&self.main);
        let total = (out.len() as u32).to_le_bytes();
        out.splice(..4, total);
        Ok(())
    }
}

/// Gives an assembled record its place: `xl_prev` and then the CRC-32C, which covers the data first and the header last.
pub(crate) fn seal(record: &mut [u8], prev: Lsn) {
    if let Some(field) = record.get_mut(PREV_AT..PREV_AT + 8) {
        field.copy_from_slice(&prev.0.to_le_bytes());
    }
    let crc = match (record.get(RECORD_HEADER_LEN..), record.get(..CRC_AT)) {
        (Some(data), Some(header)) => crc32c::crc32c_append(crc32c::crc32c(data), header),
        _ => 0,
    };
    if let Some(field) = record.get_mut(CRC_AT..CRC_AT + 4) {
        field.copy_from_slice(&crc.to_le_bytes());
    }
}

/// Little-endian fields at the end of a buffer.
pub(super) trait Put {
    /// One byte.
    fn u8(&mut self, value: u8);
    /// Two bytes.
    fn u16(&mut self, value: u16);
    /// Four bytes.
    fn u32(&mut self, value: u32);
    /// Eight bytes.
    fn u64(&mut self, value: u64);
    /// A file: tablespace, database, number.
    fn locator(&mut self, rel: RelFileLocator);
    /// A tuple address: the block number in two halves, high first, then the line pointer (`ItemPointerData`).
    fn tid(&mut self, tid: Tid);
    /// Database and tablespace.
    fn db_and_spc(&mut self, db: Oid, spc: Oid);
    /// Zeroes up to `offset` from `start`, as a C compiler pads a struct.
    fn pad_to(&mut self, start: usize, offset: usize);
}

impl Put for Vec<u8> {
    fn u8(&mut self, value: u8) {
        self.push(value);
    }

    fn u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    fn locator(&mut self, rel: RelFileLocator) {
        self.u32(rel.spc.0);
        self.u32(rel.db.0);
        self.u32(rel.rel);
    }

    fn tid(&mut self, tid: Tid) {
        self.u16((tid.block >> 16) as u16);
        self.u16(tid.block as u16);
        self.u16(tid.offset);
    }

    fn db_and_spc(&mut self, db: Oid, spc: Oid) {
        self.u32(db.0);
        self.u32(spc.0);
    }

    fn pad_to(&mut self, start: usize, offset: usize) {
        debug_assert!(self.len() <= start + offset, "struct is longer than its next field's offset");
        self.resize((start + offset).max(self.len()), 0);
    }
}

/// A count as C's `int`.
pub(super) fn count(what: &'static str, len: usize) -> Result<u32, EncodeError> {
    const MAX: usize = i32::MAX as usize;
    if len > MAX { Err(EncodeError::TooLarge { what, len, max: MAX }) } else { Ok(len as u32) }
}
