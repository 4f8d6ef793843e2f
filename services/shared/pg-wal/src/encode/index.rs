//! BTREE and SEQUENCE, as far as a simulated server writes them (`access/nbtxlog.h`, `commands/sequence.h`). They are read as opaque
//! records: nothing that we model follows from them, but a log is as large with them as a server's.

use pg_types::RelFileLocator;
use pg_types::record::IndexInsert;

use super::assemble::{Block, Put, RmgrOp};
use super::{EncodeError, Encoder};

/// `RM_BTREE_ID`.
const BTREE: u8 = 11;
/// `RM_SEQ_ID`.
const SEQUENCE: u8 = 15;
/// A sequence's only row with its header: last value, values logged ahead, whether it was called.
const SEQUENCE_TUPLE_LEN: usize = 41;

impl Encoder {
    /// `_bt_insertonpg` on a leaf page: `XLOG_BTREE_INSERT_LEAF`.
    pub(super) fn index_insert(&mut self, r: &IndexInsert) -> Result<RmgrOp, EncodeError> {
        self.main().u16(r.tid.offset);
        let page = Block { rel: r.target, fork: 0, block: r.tid.block, will_init: false };
        self.assembler.block(page, |data| {
            data.resize(data.len() + usize::from(r.tuple_len), 0);
            Ok(())
        })?;
        Ok(RmgrOp { rmid: BTREE, info: 0x00 })
    }

    /// `nextval_internal`: `XLOG_SEQ_LOG`.
    pub(super) fn sequence_log(&mut self, target: RelFileLocator) -> Result<RmgrOp, EncodeError> {
        let main = self.main();
        main.locator(target);
        main.resize(main.len() + SEQUENCE_TUPLE_LEN, 0);
        self.assembler.block(Block { rel: target, fork: 0, block: 0, will_init: true }, |_| Ok(()))?;
        Ok(RmgrOp { rmid: SEQUENCE, info: 0x00 })
    }
}
