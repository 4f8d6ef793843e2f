//! INSERT … ON CONFLICT DO UPDATE (`executor/nodeModifyTable.c`: `ExecInsert`, `ExecOnConflictUpdate`): a row that is new is
//! inserted speculatively, so that it can be taken back should another session be quicker, and confirmed once its index entries are
//! in; a row that is there is locked and updated.

use pg_types::record::{HeapInsert, HeapPlace};
use pg_types::{Oid, RecordBody, Tid};

use crate::backend::{Backend, Result, StatementError};
use crate::catalog::user_locator;
use crate::rng::Rng;

impl Backend<'_> {
    /// Inserts `rows` rows, of which `conflicts` are there already (fewer if fewer are to be seen; the others are new then).
    /// Gives how many were updated.
    pub(crate) fn insert_on_conflict(&mut self, table: Oid, rows: u64, conflicts: u64, rng: &mut dyn Rng) -> Result<u64> {
        let (filenode, _) = self.heap_of(table)?;
        if self.relation(table)?.indexes.is_empty() {
            let name = &self.relation(table)?.name;
            return Err(StatementError::Refused(format!(
                "'{name}' has no key that a row could conflict in: give it a primary key"
            )));
        }
        self.xact.command_id_used = true;
        let mut updated = 0;
        for row in 0..rows {
            let there = if row < conflicts { self.take_row(filenode, rng)? } else { None };
            match there {
                Some(tid) => {
                    self.update_locked(table, tid)?;
                    updated += 1;
                }
                None => self.insert_speculatively(table)?,
            }
        }
        Ok(updated)
    }

    /// `heap_insert` with `HEAP_INSERT_SPECULATIVE`, then `heap_finish_speculative`.
    fn insert_speculatively(&mut self, table: Oid) -> Result<()> {
        let (filenode, tuple_len) = self.heap_of(table)?;
        let target = user_locator(filenode);
        let (tid, init_page) = self.cluster.catalog.heap(filenode).place(tuple_len);
        let insert =
            HeapInsert { target, tid, logical: true, speculative: true, init_page, tuple_len, ..HeapInsert::default() };
        self.log(&RecordBody::Insert(insert))?;
        self.insert_index_entries(table)?;
        self.log(&RecordBody::Confirm(HeapPlace { target, tid }))?;
        self.note_insert(filenode, tuple_len, tid);
        Ok(())
    }

    /// `ExecOnConflictLockRow`, then the update, which keeps the lock.
    fn update_locked(&mut self, table: Oid, tid: Tid) -> Result<()> {
        let (filenode, _) = self.heap_of(table)?;
        self.lock_old_row(filenode, tid)?;
        let locker = self.xid()?;
        self.update_row(table, tid, locker).map(drop)
    }
}
