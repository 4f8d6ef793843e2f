//! Statements that change rows of user tables (`access/heap/heapam.c`), with what logical decoding needs (wal_level = logical).
//! Each uses up its command id, whether it finds rows or not (`standard_ExecutorStart`).

mod index;
mod on_conflict;
pub(crate) mod row_lock;
mod toast;

use pg_types::record::{
    HeapDelete, HeapInsert, HeapLock, HeapMultiInsert, HeapUpdate, LogicalMessageRecord, PruneReason, PruneRecord,
};
use pg_types::{Oid, RecordBody, Tid, Xid};

use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{DATABASE, Pruned, RelKind, user_locator};
use crate::rng::{Rng, uniform};
use crate::xact::{RowChange, Told};
use row_lock::RowLock;

/// `MAX_BUFFERED_TUPLES`: so many rows COPY collects before it inserts them page by page.
const COPY_ROWS: u64 = 1000;

impl Backend<'_> {
    /// INSERT of `rows` rows, one record each.
    pub(crate) fn insert_rows(&mut self, table: Oid, rows: u64) -> Result<()> {
        let (filenode, tuple_len) = self.heap_of(table)?;
        self.xact.command_id_used = true;
        for _ in 0..rows {
            let (tid, init_page) = self.cluster.catalog.heap(filenode).place(tuple_len);
            let target = user_locator(filenode);
            let insert = HeapInsert { target, tid, logical: true, init_page, tuple_len, ..HeapInsert::default() };
            self.log(&RecordBody::Insert(insert))?;
            self.insert_index_entries(table)?;
            self.note_insert(filenode, tuple_len, tid);
        }
        Ok(())
    }

    /// COPY of `rows` rows: one record for each page that a batch touches.
    pub(crate) fn copy_rows(&mut self, table: Oid, rows: u64) -> Result<()> {
        let (filenode, tuple_len) = self.heap_of(table)?;
        self.xact.command_id_used = true;
        let mut left = rows;
        while left > 0 {
            let batch = left.min(COPY_ROWS);
            left -= batch;
            let placed: Vec<_> = (0..batch).map(|_| self.cluster.catalog.heap(filenode).place(tuple_len)).collect();
            let last_block = placed.last().map(|(tid, _)| tid.block);
            for page in placed.chunk_by(|a, b| a.0.block == b.0.block) {
                let Some((tid, init_page)) = page.first() else { continue };
                let multi = HeapMultiInsert {
                    target: user_locator(filenode),
                    block: tid.block,
                    ntuples: page.len() as u16,
                    logical: true,
                    last_in_multi: Some(tid.block) == last_block,
                    init_page: *init_page,
                    tuples_len: (tuple_len + 2).next_multiple_of(2) * page.len() as u32,
                    ..HeapMultiInsert::default()
                };
                self.log(&RecordBody::MultiInsert(multi))?;
            }
            for (tid, _) in placed {
                self.insert_index_entries(table)?;
                self.note_insert(filenode, tuple_len, tid);
            }
        }
        Ok(())
    }

    /// UPDATE of `rows` rows drawn at random; fewer if fewer are to be seen. Gives how many there were.
    pub(crate) fn update_rows(&mut self, table: Oid, rows: u64, rng: &mut dyn Rng) -> Result<u64> {
        let (filenode, _) = self.heap_of(table)?;
        self.xact.command_id_used = true;
        for done in 0..rows {
            let Some(old_tid) = self.take_row(filenode, rng)? else { return Ok(done) };
            if self.cluster.toasted.contains_key(&(filenode, old_tid)) {
                self.lock_old_row(filenode, old_tid)?;
            }
            self.update_row(table, old_tid, Xid::INVALID)?;
        }
        Ok(rows)
    }

    /// A row drawn at random, if there is one to be seen, that nobody else can take before the transaction ends. Its page is pruned
    /// first if it is short of room.
    fn take_row(&mut self, filenode: u32, rng: &mut dyn Rng) -> Result<Option<Tid>> {
        let Some(tid) = self.cluster.catalog.rows(filenode).take(uniform(rng, 0, u64::MAX)) else { return Ok(None) };
        self.prune_on_access(filenode, tid.block)?;
        Ok(Some(tid))
    }

    /// `heap_page_prune_opt`.
    fn prune_on_access(&mut self, filenode: u32, block: u32) -> Result<()> {
        let horizon = self.cluster.oldest_xmin(false);
        if let Some((pruned, conflict_horizon)) = self.cluster.catalog.heap(filenode).prune_on_access(block, horizon) {
            let Pruned { redirected, dead, unused } = pruned;
            let (target, reason) = (user_locator(filenode), PruneReason::OnAccess);
            let record =
                PruneRecord { target, block, conflict_horizon, reason, redirected, dead, unused, ..PruneRecord::default() };
            self.insert(&RecordBody::Prune(record))?;
        }
        Ok(())
    }

    /// The old row is locked while its page is left alone: for a new version on another page, or to store a value outside.
    fn lock_old_row(&mut self, filenode: u32, tid: Tid) -> Result<()> {
        let xmax = self.xid()?;
        let infobits = RowLock::NoKeyUpdate.infobits();
        self.log(&RecordBody::Lock(HeapLock { target: user_locator(filenode), tid, xmax, infobits }))?;
        Ok(())
    }

    /// `heap_update` of a row that nobody else can take. `locker` is our xid if we locked the row before. Gives the new version.
    fn update_row(&mut self, table: Oid, old_tid: Tid, locker: Xid) -> Result<Tid> {
        let (filenode, tuple_len) = self.heap_of(table)?;
        let xid = self.xid()?;
        let heap = self.cluster.catalog.heap(filenode);
        let beside = heap.place_beside(old_tid, tuple_len);
        let (new_tid, init_page) = beside.map_or_else(|| heap.place(tuple_len), |tid| (tid, false));
        if beside.is_none() && !locker.is_valid() {
            self.lock_old_row(filenode, old_tid)?;
        }
        let update = HeapUpdate {
            target: user_locator(filenode),
            old_tid,
            new_tid,
            old_xmax: xid,
            new_xmax: locker,
            hot: beside.is_some(),
            logical: true,
            init_page,
            tuple_len,
            ..HeapUpdate::default()
        };
        self.log(&RecordBody::Update(update))?;
        if beside.is_none() {
            self.insert_index_entries(table)?;
        }
        if let Some(chunks) = self.cluster.toasted.get(&(filenode, old_tid)).cloned() {
            self.cluster.toasted.insert((filenode, new_tid), chunks);
        }
        self.note_row(RowChange {
            filenode,
            len: tuple_len,
            xid,
            hot: beside.is_some(),
            at_commit: Some(new_tid),
            at_abort: Some(old_tid),
            told: Told::Everybody,
        });
        Ok(new_tid)
    }

    /// DELETE of `rows` rows drawn at random; fewer if fewer are to be seen. Gives how many there were.
    pub(crate) fn delete_rows(&mut self, table: Oid, rows: u64, rng: &mut dyn Rng) -> Result<u64> {
        let (filenode, tuple_len) = self.heap_of(table)?;
        self.xact.command_id_used = true;
        let keyed = !self.relation(table)?.indexes.is_empty();
        for done in 0..rows {
            let Some(tid) = self.take_row(filenode, rng)? else { return Ok(done) };
            let xmax = self.xid()?;
            let old = if keyed { pg_types::record::OldTuple::Key } else { pg_types::record::OldTuple::None };
            let delete = HeapDelete { target: user_locator(filenode), tid, xmax, old, ..HeapDelete::default() };
            self.log(&RecordBody::Delete(delete))?;
            let (at_commit, at_abort) = (None, Some(tid));
            self.note_row(RowChange {
                filenode,
                len: tuple_len,
                xid: xmax,
                hot: false,
                at_commit,
                at_abort,
                told: Told::Everybody,
            });
            self.delete_datum(table, tid)?;
        }
        Ok(rows)
    }

    /// `pg_logical_emit_message`, as part of the transaction or not (then with its xid only if it has one anyway).
    pub(crate) fn emit_message(&mut self, prefix: &str, message: Vec<u8>, transactional: bool) -> Result<()> {
        let prefix = prefix.as_bytes().to_vec();
        let record = LogicalMessageRecord { db: DATABASE, transactional, prefix, message };
        if transactional {
            self.xid()?;
        }
        self.insert(&RecordBody::LogicalMessage(Box::new(record)))?;
        Ok(())
    }

    /// A new row, counted.
    pub(crate) fn note_insert(&mut self, filenode: u32, len: u32, tid: Tid) {
        self.cluster.catalog.rows(filenode).count += 1;
        let xid = self.xact.current_xid();
        self.note_row(RowChange {
            filenode,
            len,
            xid,
            hot: false,
            at_commit: Some(tid),
            at_abort: None,
            told: Told::Everybody,
        });
    }

    /// A changed row: its pages are touched, and what becomes of it is known at the end.
    fn note_row(&mut self, change: RowChange) {
        self.cluster.catalog.heap(change.filenode).touch_row(&change);
        self.xact.level().rows.push(change);
    }

    /// The file and the row length of a table that has rows of its own.
    fn heap_of(&self, table: Oid) -> Result<(u32, u32)> {
        let relation = self.relation(table)?;
        if relation.kind == RelKind::Table {
            Ok((relation.filenode, relation.row_len))
        } else {
            Err(StatementError::Refused(format!("'{}' is no plain table", relation.name)))
        }
    }
}
