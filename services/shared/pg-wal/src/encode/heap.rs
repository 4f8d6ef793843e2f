//! HEAP and HEAP2 (`access/heapam_xlog.h`).

use pg_types::record::{
    HeapDelete, HeapInsert, HeapLock, HeapMultiInsert, HeapPlace, HeapUpdate, InplaceRecord, NewCidRecord, OldTuple,
    RewriteRecord, TruncateRecord,
};
use pg_types::{RecordBody, RelFileLocator};

use super::assemble::{Block, Put, RmgrOp, count};
use super::standby::put_messages;
use super::tuple::{put_multi_insert_tuples, put_tuple};
use super::{EncodeError, Encoder};

/// `RM_HEAP2_ID`.
const HEAP2: u8 = 9;
/// `RM_HEAP_ID`.
const HEAP: u8 = 10;
/// `XLOG_HEAP_INIT_PAGE`.
const INIT_PAGE: u8 = 0x80;
/// `XLHL_KEYS_UPDATED`: a delete always says so.
const KEYS_UPDATED: u8 = 0x10;
/// Bytes of an old row or key that a record keeps: a typed record does not say how long it was.
const OLD_TUPLE_LEN: usize = 14;
/// Bytes of the row that an in-place update carries: the fixed part of a pg_class row without null bitmap.
const INPLACE_TUPLE_LEN: usize = 144;
/// `LogicalRewriteMappingData`.
const REWRITE_MAPPING_LEN: usize = 36;

/// A flag byte from conditions.
pub(super) fn flags(bits: &[(bool, u8)]) -> u8 {
    bits.iter().filter(|(on, _)| *on).fold(0, |sum, (_, bit)| sum | bit)
}

/// One page of a table.
pub(super) fn heap_block(rel: RelFileLocator, block: u32, will_init: bool) -> Block {
    Block { rel, fork: 0, block, will_init }
}

/// A HEAP operation.
fn heap_op(info: u8) -> RmgrOp {
    RmgrOp { rmid: HEAP, info }
}

/// A HEAP2 operation.
pub(super) fn heap2_op(info: u8) -> RmgrOp {
    RmgrOp { rmid: HEAP2, info }
}

impl Encoder {
    /// Any HEAP or HEAP2 record.
    pub(super) fn heap(&mut self, body: &RecordBody) -> Result<RmgrOp, EncodeError> {
        match body {
            RecordBody::Insert(r) => self.insert(r),
            RecordBody::MultiInsert(r) => self.multi_insert(r),
            RecordBody::Delete(r) => self.delete(r),
            RecordBody::Update(r) => self.update(r),
            RecordBody::Truncate(r) => self.truncate(r),
            RecordBody::Confirm(r) => self.confirm(r),
            RecordBody::Lock(r) => self.lock(r).map(|()| heap_op(0x60)),
            RecordBody::LockUpdated(r) => self.lock(r).map(|()| heap2_op(0x60)),
            RecordBody::Inplace(r) => self.inplace(r),
            RecordBody::NewCid(r) => Ok(self.new_cid(r)),
            RecordBody::Prune(r) => self.prune(r),
            RecordBody::Visible(r) => self.visible(r),
            RecordBody::Rewrite(r) => self.rewrite(r),
            _ => Err(EncodeError::Opaque { rmid: HEAP, info: 0 }),
        }
    }

    /// `log_heap_insert`.
    fn insert(&mut self, r: &HeapInsert) -> Result<RmgrOp, EncodeError> {
        let bits = flags(&[(r.speculative, 1 << 2), (r.logical, 1 << 3), (r.toast, 1 << 4)]);
        if r.toast && !self.profile.has_toast_flag {
            return Err(self.not_in_version("the mark of an insert into a TOAST table"));
        }
        self.main().u16(r.tid.offset);
        self.main().u8(bits);
        self.assembler.block(heap_block(r.target, r.tid.block, r.init_page), |data| {
            put_tuple("an inserted row", r.tuple_len as usize, data)
        })?;
        Ok(heap_op(if r.init_page { INIT_PAGE } else { 0 }))
    }

    /// `heap_multi_insert`. Typed records do not tell the line pointers, so they count from 1.
    fn multi_insert(&mut self, r: &HeapMultiInsert) -> Result<RmgrOp, EncodeError> {
        if r.toast && !self.profile.has_toast_flag {
            return Err(self.not_in_version("the mark of an insert into a TOAST table"));
        }
        let bits = flags(&[(r.last_in_multi, 1 << 1), (r.logical, 1 << 3), (r.toast, 1 << 4)]);
        self.main().extend_from_slice(&[bits, 0]);
        self.main().u16(r.ntuples);
        if !r.init_page {
            for offset in 1..=r.ntuples {
                self.main().u16(offset);
            }
        }
        self.assembler.block(heap_block(r.target, r.block, r.init_page), |data| {
            put_multi_insert_tuples(r.ntuples, r.tuples_len as usize, data)
        })?;
        Ok(heap2_op(0x50 | if r.init_page { INIT_PAGE } else { 0 }))
    }

    /// `heap_delete`.
    fn delete(&mut self, r: &HeapDelete) -> Result<RmgrOp, EncodeError> {
        if r.no_logical {
            return Err(self.not_in_version("a delete that is not to be decoded"));
        }
        let bits = flags(&[
            (r.old == OldTuple::Full, 1 << 1),
            (r.old == OldTuple::Key, 1 << 2),
            (r.super_deletion, 1 << 3),
            (r.partition_move, 1 << 4),
        ]);
        self.main().u32(r.xmax.0);
        self.main().u16(r.tid.offset);
        self.main().extend_from_slice(&[KEYS_UPDATED, bits]);
        self.old_tuple(r.old, r.old_len as usize)?;
        self.assembler.block(heap_block(r.target, r.tid.block, false), |_| Ok(()))?;
        Ok(heap_op(0x10))
    }

    /// `log_heap_update`: block 0 is the new version's page, block 1 the old one's if it is another.
    fn update(&mut self, r: &HeapUpdate) -> Result<RmgrOp, EncodeError> {
        let bits = flags(&[(r.old == OldTuple::Full, 1 << 2), (r.old == OldTuple::Key, 1 << 3), (r.logical, 1 << 4)]);
        self.main().u32(r.old_xmax.0);
        self.main().u16(r.old_tid.offset);
        self.main().extend_from_slice(&[0, bits]);
        self.main().u32(r.new_xmax.0);
        self.main().u16(r.new_tid.offset);
        self.old_tuple(r.old, r.old_len as usize)?;
        self.assembler.block(heap_block(r.target, r.new_tid.block, r.init_page), |data| {
            put_tuple("an updated row", r.tuple_len as usize, data)
        })?;
        if r.old_tid.block != r.new_tid.block {
            self.assembler.block(heap_block(r.target, r.old_tid.block, false), |_| Ok(()))?;
        }
        let op = if r.hot { 0x40 } else { 0x20 };
        Ok(heap_op(op | if r.init_page { INIT_PAGE } else { 0 }))
    }

    /// The old row or key behind the main data of a delete or update.
    fn old_tuple(&mut self, old: OldTuple, len: usize) -> Result<(), EncodeError> {
        match old {
            OldTuple::None => Ok(()),
            OldTuple::Key | OldTuple::Full => put_tuple("an old row", if len == 0 { OLD_TUPLE_LEN } else { len }, self.main()),
        }
    }

    /// `ExecuteTruncateGuts`.
    fn truncate(&mut self, r: &TruncateRecord) -> Result<RmgrOp, EncodeError> {
        let n = count("a TRUNCATE's list of relations", r.relids.len())?;
        let main = self.main();
        main.u32(r.db.0);
        main.u32(n);
        main.u8(flags(&[(r.cascade, 1), (r.restart_seqs, 2)]));
        main.pad_to(0, 12);
        r.relids.iter().for_each(|oid| main.u32(oid.0));
        Ok(heap_op(0x30))
    }

    /// `heap_finish_speculative`.
    fn confirm(&mut self, r: &HeapPlace) -> Result<RmgrOp, EncodeError> {
        self.main().u16(r.tid.offset);
        self.assembler.block(heap_block(r.target, r.tid.block, false), |_| Ok(()))?;
        Ok(heap_op(0x50))
    }

    /// `heap_lock_tuple` and `heap_lock_updated_tuple_rec`: one layout.
    fn lock(&mut self, r: &HeapLock) -> Result<(), EncodeError> {
        self.main().u32(r.xmax.0);
        self.main().u16(r.tid.offset);
        self.main().extend_from_slice(&[r.infobits, 0]);
        self.assembler.block(heap_block(r.target, r.tid.block, false), |_| Ok(()))
    }

    /// `heap_inplace_update_and_unlock` (`heap_inplace_update` up to 16).
    fn inplace(&mut self, r: &InplaceRecord) -> Result<RmgrOp, EncodeError> {
        self.main().u16(r.tid.offset);
        if self.profile.has_inplace_messages {
            let n = count("messages", r.messages.len())?;
            let main = self.main();
            main.pad_to(0, 4);
            main.db_and_spc(r.db, r.spc);
            main.u8(u8::from(r.relcache_init_file_inval));
            main.pad_to(0, 16);
            main.u32(n);
            put_messages(&r.messages, main);
        } else if !r.messages.is_empty() {
            return Err(self.not_in_version("the messages of an in-place update"));
        }
        self.assembler.block(heap_block(r.target, r.tid.block, false), |data| {
            data.resize(data.len() + INPLACE_TUPLE_LEN, 0);
            Ok(())
        })?;
        Ok(heap_op(0x70))
    }

    /// `log_heap_new_cid`.
    fn new_cid(&mut self, r: &NewCidRecord) -> RmgrOp {
        let main = self.main();
        [r.top_xid.0, r.cmin.0, r.cmax.0, r.combocid.0].into_iter().for_each(|word| main.u32(word));
        main.locator(r.target);
        main.tid(r.tid);
        heap2_op(0x70)
    }

    /// `logical_heap_rewrite_flush_mappings`; the mappings themselves are zeroes.
    fn rewrite(&mut self, r: &RewriteRecord) -> Result<RmgrOp, EncodeError> {
        let bytes = (r.num_mappings as usize).saturating_mul(REWRITE_MAPPING_LEN);
        let max = self.profile.record_len_max as usize;
        if bytes > max {
            return Err(EncodeError::TooLarge { what: "a rewrite's mappings", len: bytes, max });
        }
        let main = self.main();
        [r.mapped_xid.0, r.mapped_db.0, r.mapped_rel.0].into_iter().for_each(|word| main.u32(word));
        main.pad_to(0, 16);
        main.u64(r.offset);
        main.u32(r.num_mappings);
        main.pad_to(0, 32);
        main.u64(r.start_lsn.0);
        main.resize(main.len() + bytes, 0);
        Ok(heap2_op(0x00))
    }
}
