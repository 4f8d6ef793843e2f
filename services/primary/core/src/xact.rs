//! The state of one running transaction (`access/transam/xact.c`: `TransactionStateData`).
//!
//! A transaction is a stack of levels: the top and one for each open savepoint. A level gets an xid when it first writes, its
//! parents before it. What it owes at its end waits here: subtransactions, files to drop, messages, undo.
//!
//! **Invariants**
//! - I1: if a level has an xid, all levels below it in the stack have one, and theirs are older.
//! - I2: the command id rises at a command's end if and only if the command changed something (or asked a relcache entry to go).
//!
//! This file is state only; the acts are in [`crate::backend`].

use std::collections::BTreeMap;
use std::sync::Arc;

use pg_types::{CommandId, Lsn, Oid, RelFileLocator, Tid, Timestamp, Xid};

use crate::catalog::Undo;
use crate::invalidation_queue::InvalidationQueue;

/// A row that appears or disappears with its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowChange {
    /// The table's or catalog's file.
    pub(crate) filenode: u32,
    /// Bytes of the row in a record.
    pub(crate) len: u32,
    /// Who changed it.
    pub(crate) xid: Xid,
    /// The new version is a heap-only row beside the old one.
    pub(crate) hot: bool,
    /// The row that everybody sees if the transaction commits.
    pub(crate) at_commit: Option<Tid>,
    /// The row that everybody sees if it does not.
    pub(crate) at_abort: Option<Tid>,
    /// Who is told of it.
    pub(crate) told: Told,
}

/// Who is told of a row that changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Told {
    /// Whoever reads the table or decodes the log.
    #[default]
    Everybody,
    /// Decoders, but nobody ever sees it: its file was emptied since (TRUNCATE of what was made here).
    Decoders,
    /// Readers: the table was written anew, which decoders are not told.
    Readers,
}

/// Where a replicated transaction comes from (`replication/logical/origin.c`: `replorigin_session_origin` and its two mates).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    /// The origin's id, which its records carry.
    pub(crate) id: u16,
    /// Position of the commit there.
    pub(crate) lsn: Lsn,
    /// Time of the commit there.
    pub(crate) time: Timestamp,
}

/// One level: the transaction itself or a savepoint.
#[derive(Debug, Default)]
pub(crate) struct Level {
    /// The savepoint's name; none at the top.
    pub(crate) savepoint: Option<Arc<str>>,
    /// Its xid, invalid until it writes.
    pub(crate) xid: Xid,
    /// A record of this subtransaction has told the top-level xid.
    pub(crate) top_xid_logged: bool,
    /// Xids of its committed subtransactions, oldest first.
    pub(crate) children: Vec<Xid>,
    /// What to take back at abort, oldest first.
    pub(crate) undo: Vec<Undo>,
    /// Files to drop at commit.
    pub(crate) drop_at_commit: Vec<RelFileLocator>,
    /// Files made here, to drop at abort.
    pub(crate) drop_at_abort: Vec<RelFileLocator>,
    /// Relations whose AccessExclusive lock it was the first to take.
    pub(crate) exclusive_locks: Vec<Oid>,
    /// Rows (by file) that are locked and not changed.
    pub(crate) locked_rows: Vec<(u32, Tid)>,
    /// Rows of user tables.
    pub(crate) rows: Vec<RowChange>,
    /// Rows of catalogs.
    pub(crate) catalog_rows: Vec<RowChange>,
    /// Messages owed.
    pub(crate) queue: InvalidationQueue,
    /// A mapped catalog or index has a new file, which the map must say at commit.
    pub(crate) relation_map_changed: bool,
}

/// A running transaction.
#[derive(Debug)]
pub(crate) struct Transaction {
    /// Slot in the proc array.
    pub(crate) session: usize,
    /// The top and the open savepoints.
    pub(crate) levels: Vec<Level>,
    /// `currentCommandId`.
    pub(crate) command_id: CommandId,
    /// `currentCommandIdUsed`.
    pub(crate) command_id_used: bool,
    /// Combo command ids by (cmin, cmax), numbered from 0 (`utils/time/combocid.c`).
    pub(crate) combos: BTreeMap<(CommandId, CommandId), u32>,
    /// Subtransactions that no assignment record named yet.
    pub(crate) unreported: Vec<Xid>,
    /// A record with the top-level xid was written (`didLogXid` of the top), or an assignment that names it.
    pub(crate) top_logged: bool,
    /// It took an AccessExclusive lock.
    pub(crate) access_exclusive: bool,
    /// It used a temporary table, which keeps it from being prepared (`XACT_FLAGS_ACCESSEDTEMPNAMESPACE`).
    pub(crate) used_temp: bool,
    /// Where it comes from, if from elsewhere.
    pub(crate) origin: Option<Origin>,
    /// Records written.
    pub(crate) records: u64,
    /// What it did, in words.
    pub(crate) did: Vec<String>,
}

impl Transaction {
    /// A transaction that did nothing yet.
    pub(crate) fn new(session: usize) -> Transaction {
        Transaction {
            session,
            levels: vec![Level::default()],
            command_id: CommandId::FIRST,
            command_id_used: false,
            combos: BTreeMap::new(),
            unreported: Vec::new(),
            top_logged: false,
            access_exclusive: false,
            used_temp: false,
            origin: None,
            records: 0,
            did: Vec::new(),
        }
    }

    /// The top-level xid, invalid if it has none.
    pub(crate) fn top_xid(&self) -> Xid {
        self.levels.first().map_or(Xid::INVALID, |top| top.xid)
    }

    /// The innermost level. There is always one.
    pub(crate) fn level(&mut self) -> &mut Level {
        if self.levels.is_empty() {
            self.levels.push(Level::default());
        }
        let last = self.levels.len() - 1;
        &mut self.levels[last]
    }

    /// The xid of the innermost level, invalid if it has none (`GetCurrentTransactionIdIfAny`).
    pub(crate) fn current_xid(&self) -> Xid {
        self.levels.last().map_or(Xid::INVALID, |level| level.xid)
    }

    /// The combo command id of a row that this transaction inserted at `cmin` and deletes at `cmax` (`GetComboCommandId`).
    pub(crate) fn combo(&mut self, cmin: CommandId, cmax: CommandId) -> CommandId {
        let next = self.combos.len() as u32;
        CommandId(*self.combos.entry((cmin, cmax)).or_insert(next))
    }

    /// Opens a savepoint.
    pub(crate) fn push_savepoint(&mut self, name: &str) {
        self.levels.push(Level { savepoint: Some(name.into()), ..Level::default() });
    }

    /// The stack index of the innermost savepoint of that name.
    pub(crate) fn savepoint(&self, name: &str) -> Option<usize> {
        self.levels.iter().rposition(|level| level.savepoint.as_deref() == Some(name))
    }
}
