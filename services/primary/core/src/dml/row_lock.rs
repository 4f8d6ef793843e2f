//! SELECT … FOR UPDATE and its weaker sisters (`access/heap/heapam.c`: `heap_lock_tuple`): a record for each row, which takes an
//! xid.
//!
//! Difference from PostgreSQL: a locked row is nobody else's until the transaction ends, so that two lockers never share one and
//! no multixact is made.

use pg_types::record::HeapLock;
use pg_types::{Oid, RecordBody};

use crate::backend::{Backend, Result};
use crate::catalog::user_locator;
use crate::rng::Rng;

/// `XLHL_XMAX_LOCK_ONLY`.
const LOCK_ONLY: u8 = 0x02;
/// `XLHL_XMAX_EXCL_LOCK`.
const EXCL_LOCK: u8 = 0x04;
/// `XLHL_XMAX_KEYSHR_LOCK`.
const KEYSHR_LOCK: u8 = 0x08;
/// `XLHL_KEYS_UPDATED`.
const KEYS_UPDATED: u8 = 0x10;

/// How strongly rows are locked (`LockTupleMode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowLock {
    /// FOR UPDATE.
    Update,
    /// FOR NO KEY UPDATE.
    NoKeyUpdate,
    /// FOR SHARE.
    Share,
    /// FOR KEY SHARE.
    KeyShare,
}

impl RowLock {
    /// `compute_infobits` of a row that is only locked.
    pub(super) fn infobits(self) -> u8 {
        LOCK_ONLY
            | match self {
                RowLock::Update => EXCL_LOCK | KEYS_UPDATED,
                RowLock::NoKeyUpdate => EXCL_LOCK,
                RowLock::Share => EXCL_LOCK | KEYSHR_LOCK,
                RowLock::KeyShare => KEYSHR_LOCK,
            }
    }

    /// Its words in SQL.
    #[must_use]
    pub fn sql(self) -> &'static str {
        match self {
            RowLock::Update => "FOR UPDATE",
            RowLock::NoKeyUpdate => "FOR NO KEY UPDATE",
            RowLock::Share => "FOR SHARE",
            RowLock::KeyShare => "FOR KEY SHARE",
        }
    }
}

impl Backend<'_> {
    /// Locks `rows` rows drawn at random; fewer if fewer are to be seen. Gives how many there were.
    pub(crate) fn lock_rows(&mut self, table: Oid, rows: u64, lock: RowLock, rng: &mut dyn Rng) -> Result<u64> {
        let (filenode, _) = self.heap_of(table)?;
        self.xact.command_id_used = true;
        for done in 0..rows {
            let Some(tid) = self.take_row(filenode, rng)? else { return Ok(done) };
            let xmax = self.xid()?;
            let record = HeapLock { target: user_locator(filenode), tid, xmax, infobits: lock.infobits() };
            self.log(&RecordBody::Lock(record))?;
            self.xact.level().locked_rows.push((filenode, tid));
        }
        Ok(rows)
    }
}
