//! Values that are too long for their row (`access/common/toast_internals.c`: `toast_save_datum`, `toast_delete_datum`): chunks in
//! the table's TOAST table, before the row that points to them.
//!
//! A row's chunks go with it: an update that changes the value stores new chunks and deletes the old ones, a delete deletes them,
//! an update of other columns leaves them to the new version. Differences from PostgreSQL: values are not compressed, and which
//! rows have chunks is known of those rows only whose table was written by these statements.

use pg_types::record::{HeapDelete, HeapInsert};
use pg_types::{Oid, RecordBody, Tid, Xid};

use crate::backend::{Backend, Result, StatementError};
use crate::catalog::user_locator;
use crate::rng::Rng;
use crate::xact::{RowChange, Told};

/// `TOAST_MAX_CHUNK_SIZE`.
const CHUNK_BYTES: u64 = 1996;
/// Bytes of a chunk's row in a record besides its data: headers and keys.
const CHUNK_ROW_MORE: u32 = 23;

impl Backend<'_> {
    /// INSERT of `rows` rows with one value of `bytes` bytes each, outside of the row.
    pub(crate) fn insert_toasted(&mut self, table: Oid, rows: u64, bytes: u64) -> Result<()> {
        self.xact.command_id_used = true;
        for _ in 0..rows {
            let chunks = self.save_datum(table, bytes)?;
            let (filenode, tuple_len) = self.heap_of(table)?;
            let (tid, init_page) = self.cluster.catalog.heap(filenode).place(tuple_len);
            let target = user_locator(filenode);
            let insert = HeapInsert { target, tid, logical: true, init_page, tuple_len, ..HeapInsert::default() };
            self.log(&RecordBody::Insert(insert))?;
            self.insert_index_entries(table)?;
            self.note_insert(filenode, tuple_len, tid);
            self.cluster.toasted.insert((filenode, tid), chunks);
        }
        Ok(())
    }

    /// UPDATE of `rows` rows drawn at random, each with a new value of `bytes` bytes. Gives how many there were.
    pub(crate) fn update_toasted(&mut self, table: Oid, rows: u64, bytes: u64, rng: &mut dyn Rng) -> Result<u64> {
        let (filenode, _) = self.heap_of(table)?;
        self.xact.command_id_used = true;
        for done in 0..rows {
            let Some(tid) = self.take_row(filenode, rng)? else { return Ok(done) };
            self.lock_old_row(filenode, tid)?;
            let chunks = self.save_datum(table, bytes)?;
            self.delete_datum(table, tid)?;
            let new_tid = self.update_row(table, tid, Xid::INVALID)?;
            self.cluster.toasted.insert((filenode, new_tid), chunks);
        }
        Ok(rows)
    }

    /// `toast_save_datum`: where the chunks lie.
    fn save_datum(&mut self, table: Oid, bytes: u64) -> Result<Vec<Tid>> {
        let toast_file = self.toast_file(table)?;
        let toast = self.relation(table)?.toast.unwrap_or_default();
        let target = user_locator(toast_file);
        let mut chunks = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let chunk = left.min(CHUNK_BYTES);
            left -= chunk;
            let tuple_len = chunk as u32 + CHUNK_ROW_MORE;
            let (tid, init_page) = self.cluster.catalog.heap(toast_file).place(tuple_len);
            let told = self.cluster.catalog.traits.toast_inserts_told;
            let insert = HeapInsert { target, tid, logical: true, toast: told, init_page, tuple_len, ..HeapInsert::default() };
            self.log(&RecordBody::Insert(insert))?;
            self.insert_index_entries(toast)?;
            self.note_insert(toast_file, tuple_len, tid);
            chunks.push(tid);
        }
        Ok(chunks)
    }

    /// `toast_delete_datum` of a row's chunks, if it has any.
    pub(super) fn delete_datum(&mut self, table: Oid, tid: Tid) -> Result<()> {
        let (filenode, _) = self.heap_of(table)?;
        let Some(chunks) = self.cluster.toasted.get(&(filenode, tid)).cloned() else { return Ok(()) };
        let toast_file = self.toast_file(table)?;
        for tid in chunks {
            let xmax = self.xid()?;
            let delete = HeapDelete { target: user_locator(toast_file), tid, xmax, ..HeapDelete::default() };
            self.log(&RecordBody::Delete(delete))?;
            let len = CHUNK_BYTES as u32 + CHUNK_ROW_MORE;
            let (at_commit, at_abort) = (None, Some(tid));
            self.note_row(RowChange {
                filenode: toast_file,
                len,
                xid: xmax,
                hot: false,
                at_commit,
                at_abort,
                told: Told::Everybody,
            });
        }
        Ok(())
    }

    /// The file of a table's TOAST table.
    fn toast_file(&self, table: Oid) -> Result<u32> {
        let relation = self.relation(table)?;
        let missing =
            || StatementError::Refused(format!("'{}' has no column whose values could be long, as text", relation.name));
        Ok(self.relation(relation.toast.ok_or_else(missing)?)?.filenode)
    }
}
