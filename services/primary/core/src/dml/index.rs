//! Index entries of new rows (`access/nbtree/nbtinsert.c`: `_bt_doinsert`) and values of sequences (`commands/sequence.c`:
//! `nextval_internal`).
//!
//! Every new row version that is not heap-only gets an entry in each index of its table. Differences from PostgreSQL: entries go to
//! the newest leaf page, as with rising keys, and pages are not split; indexes of catalogs write nothing.

use pg_types::record::IndexInsert;
use pg_types::{Oid, RecordBody};

use crate::backend::{Backend, Result, StatementError};
use crate::catalog::{RelKind, user_locator};

/// Bytes of an index entry with a key of up to eight bytes: its header and the key.
const ENTRY_LEN: u16 = 16;
/// An entry takes as much of its page as the shortest row: there are some 290 on a page, as on a leaf that rising keys filled.
const PLACED_AS: u32 = 6;
/// `SEQ_LOG_VALS`: values that one record reserves.
const LOGGED_AHEAD: u64 = 32;

impl Backend<'_> {
    /// `ExecInsertIndexTuples` for one row.
    pub(super) fn insert_index_entries(&mut self, table: Oid) -> Result<()> {
        for index in self.relation(table)?.indexes.clone() {
            let relation = self.relation(index)?;
            if relation.index.as_ref().is_some_and(|info| info.unready) {
                continue;
            }
            let filenode = relation.filenode;
            let (tid, _) = self.cluster.catalog.heap(filenode).place(PLACED_AS);
            let record = IndexInsert { target: user_locator(filenode), tid, tuple_len: ENTRY_LEN };
            self.log(&RecordBody::IndexInsert(record))?;
        }
        Ok(())
    }

    /// `nextval` so many times: one record reserves 32 values ahead, in the transaction that needs the first of them.
    pub(crate) fn nextval(&mut self, sequence: Oid, times: u64) -> Result<()> {
        let relation = self.relation(sequence)?;
        if relation.kind != RelKind::Sequence {
            return Err(StatementError::Refused(format!("'{}' is no sequence", relation.name)));
        }
        let (target, temporary) = (user_locator(relation.filenode), relation.temporary);
        self.xact.command_id_used = true;
        if temporary {
            return Ok(());
        }
        for _ in 0..times {
            let reserved = self.cluster.sequence_values.entry(sequence).or_default();
            if *reserved > 0 {
                *reserved -= 1;
                continue;
            }
            *reserved = LOGGED_AHEAD;
            self.log(&RecordBody::SequenceLog(target))?;
        }
        Ok(())
    }
}
