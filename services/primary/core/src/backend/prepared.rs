//! PREPARE TRANSACTION, COMMIT PREPARED and ROLLBACK PREPARED (`access/transam/xact.c`: `PrepareTransaction`;
//! `access/transam/twophase.c`: `StartPrepare`, `FinishPreparedTransaction`, `RecordTransactionCommitPrepared`).

use pg_types::record::{AbortRecord, CommitRecord, PrepareRecord, xinfo};
use pg_types::{Oid, RecordBody};

use super::end::{Ended, newest_first, with_abort_flags, with_commit_flags};
use super::{Backend, Result, StatementError};
use crate::catalog::DATABASE;
use crate::twophase::{GlobalTransaction, PrepareError};

/// `BOOTSTRAP_SUPERUSERID`: who owns everything here.
const OWNER: Oid = Oid(10);

impl Backend<'_> {
    /// PREPARE TRANSACTION. The session has no transaction afterwards; the dummy proc that goes on with its locks comes back.
    pub(crate) fn prepare_transaction(&mut self, gid: &str) -> Result<(Ended, usize)> {
        let dummy_proc = self.cluster.twophase.reserve(gid).map_err(|error| refused(gid, error))?;
        if self.xact.used_temp {
            return Err(StatementError::Refused(
                "a transaction that used temporary tables cannot be prepared: leave them out, or commit".to_owned(),
            ));
        }
        // Even one that wrote nothing gets an xid, of the top level.
        if !self.xact.top_xid().is_valid() {
            self.xact.levels[0].xid = self.cluster.procs.begin(self.xact.session);
        }
        let top = self.finish_statements()?;
        let messages = top.queue.committed(self.cluster.catalog.traits.message_order);
        let dropped_stats = self.cluster.stats_dropped_by(&top);
        let record = PrepareRecord {
            time: self.now,
            db: DATABASE,
            owner: OWNER,
            gid: gid.as_bytes().to_vec(),
            subxids: top.children.clone(),
            messages: messages.clone(),
            commit_locators: newest_first(&top.drop_at_commit),
            abort_locators: newest_first(&top.drop_at_abort),
            commit_stats: dropped_stats.0,
            abort_stats: dropped_stats.1,
            origin: self.told_origin(),
        };
        self.xact.level().xid = top.xid;
        let placed = self.insert(&RecordBody::Prepare(Box::new(record)))?;
        self.cluster.procs.prepare(self.xact.session, dummy_proc, &top.children);
        if let Some(held) = self.cluster.exclusive_locks.remove(&self.xact.session) {
            self.cluster.exclusive_locks.insert(dummy_proc, held);
        }
        let ended = Ended {
            committed: false,
            xid: top.xid,
            subxids: top.children.len(),
            messages: messages.len(),
            rows: Vec::new(),
            placed: Some(placed),
        };
        let gxact = GlobalTransaction {
            dummy_proc,
            xid: top.xid,
            level: top,
            messages,
            dropped_stats,
            commands: self.xact.command_id.0,
            records: self.xact.records,
            did: std::mem::take(&mut self.xact.did),
        };
        self.cluster.twophase.insert(gid, gxact);
        Ok((ended, dummy_proc))
    }

    /// COMMIT PREPARED or ROLLBACK PREPARED by a session without a transaction. What was prepared comes back with its end.
    pub(crate) fn finish_prepared(&mut self, gid: &str, commit: bool) -> Result<(Ended, GlobalTransaction)> {
        let missing =
            || StatementError::Refused(format!("no transaction is prepared as '{gid}': say if_exists to pass over it"));
        let mut gxact = self.cluster.twophase.remove(gid).ok_or_else(missing)?;
        let level = std::mem::take(&mut gxact.level);
        let (messages, subxids) = (gxact.messages.len(), level.children.len());
        // Nobody remembers whether it took AccessExclusive locks, so that its end says that it may have.
        let flags = xinfo::HAS_AE_LOCKS;
        let body = if commit {
            RecordBody::Commit(Box::new(with_commit_flags(CommitRecord {
                prepared_xid: gxact.xid,
                gid: gid.as_bytes().to_vec(),
                xinfo: flags,
                messages: std::mem::take(&mut gxact.messages),
                dropped_stats: gxact.dropped_stats.0,
                ..self.commit_record(&level)
            })))
        } else {
            RecordBody::Abort(Box::new(with_abort_flags(AbortRecord {
                prepared_xid: gxact.xid,
                gid: gid.as_bytes().to_vec(),
                xinfo: flags,
                db: DATABASE,
                spc: Oid::DEFAULT_TABLESPACE,
                dropped_stats: gxact.dropped_stats.1,
                origin: self.told_origin(),
                ..self.abort_record(&level)
            })))
        };
        let placed = Some(self.insert(&body)?);
        let rows = if commit { level.rows.clone() } else { Vec::new() };
        if commit {
            self.cluster.after_commit(gxact.dummy_proc, &level);
        } else {
            self.cluster.after_abort(gxact.dummy_proc, level);
        }
        let messages = if commit { messages } else { 0 };
        Ok((Ended { committed: commit, xid: gxact.xid, subxids, messages, rows, placed }, gxact))
    }
}

/// Why a name cannot be prepared, in words.
fn refused(gid: &str, error: PrepareError) -> StatementError {
    StatementError::Refused(match error {
        PrepareError::NameInUse => format!("a transaction is prepared as '{gid}' already: put a blank as {{n}} into its name"),
        PrepareError::TooMany(0) => {
            "prepared transactions are disabled: set max_prepared_transactions under [server]".to_owned()
        }
        PrepareError::TooMany(max) => {
            format!("max_prepared_transactions = {max} are prepared already: raise it, or commit some")
        }
    })
}
