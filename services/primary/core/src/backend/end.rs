//! The end of transactions and subtransactions (`access/transam/xact.c`: `RecordTransactionCommit`, `RecordTransactionAbort`).

use pg_types::record::{AbortRecord, CommitRecord, StandbyInvalidationsRecord, xinfo};
use pg_types::{Lsn, Oid, RecordBody, RelFileLocator, Xid};

use super::{Backend, Result, StatementError};
use crate::catalog::DATABASE;
use crate::sink::Placed;
use crate::xact::Level;

/// How a transaction ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ended {
    /// It committed.
    pub(crate) committed: bool,
    /// Its xid, invalid if it wrote nothing that needs one.
    pub(crate) xid: Xid,
    /// Its committed subtransactions.
    pub(crate) subxids: usize,
    /// Messages in its commit record.
    pub(crate) messages: usize,
    /// Where its last record lies, if it wrote one.
    pub(crate) placed: Option<Placed>,
}

impl Ended {
    /// Position of the commit or abort record, [`Lsn::INVALID`] if there is none.
    #[must_use]
    pub(crate) fn lsn(&self) -> Lsn {
        self.placed.map_or(Lsn::INVALID, |placed| placed.start)
    }
}

impl Backend<'_> {
    /// COMMIT. Open savepoints are released first. The transaction is over afterwards.
    pub(crate) fn commit(&mut self) -> Result<Ended> {
        self.command_counter_increment()?;
        while self.xact.levels.len() > 1 {
            self.release_top();
        }
        let top = std::mem::take(self.xact.level());
        let messages = top.queue.committed(self.cluster.catalog.traits.message_order);
        let count = messages.len();
        if !top.xid.is_valid() {
            let placed = if messages.is_empty() { None } else { Some(self.standby_invalidations(messages)?) };
            return Ok(Ended { committed: true, xid: Xid::INVALID, subxids: 0, messages: count, placed });
        }
        let newest = newest(top.xid, &top.children);
        let subxids = top.children.len();
        let body = RecordBody::Commit(Box::new(CommitRecord {
            time: self.now,
            xinfo: if self.xact.access_exclusive { xinfo::HAS_AE_LOCKS } else { 0 } | self.commit_chunks(&top, count),
            db: DATABASE,
            spc: Oid::DEFAULT_TABLESPACE,
            subxids: top.children,
            dropped_locators: newest_first(&top.drop_at_commit),
            messages,
            ..CommitRecord::default()
        }));
        self.xact.level().xid = top.xid;
        let placed = self.insert(&body)?;
        self.cluster.procs.end(self.xact.session, newest);
        for file in &top.drop_at_commit {
            self.cluster.catalog.drop_file(file.rel);
        }
        for row in top.rows {
            if let Some(tid) = row.at_commit {
                self.cluster.catalog.rows(row.filenode).publish(tid);
            }
        }
        Ok(Ended { committed: true, xid: top.xid, subxids, messages: count, placed: Some(placed) })
    }

    /// ROLLBACK. Every open subtransaction is aborted on its own first. The transaction is over afterwards.
    pub(crate) fn abort(&mut self) -> Result<Ended> {
        while self.xact.levels.len() > 1 {
            self.abort_top()?;
        }
        let placed = self.abort_top()?;
        let xid = self.xact.top_xid();
        Ok(Ended { committed: false, xid, subxids: 0, messages: 0, placed })
    }

    /// RELEASE SAVEPOINT: it and the savepoints inside it become part of what is around them.
    pub(crate) fn release_savepoint(&mut self, name: &str) -> Result<()> {
        let depth = self.savepoint_depth(name)?;
        while self.xact.levels.len() > depth {
            self.release_top();
        }
        Ok(())
    }

    /// ROLLBACK TO SAVEPOINT: what was done since is undone, and the savepoint opens anew.
    pub(crate) fn rollback_to_savepoint(&mut self, name: &str) -> Result<()> {
        let depth = self.savepoint_depth(name)?;
        while self.xact.levels.len() > depth {
            self.abort_top()?;
        }
        self.xact.push_savepoint(name);
        Ok(())
    }

    /// Stack index of a savepoint, which must be open.
    fn savepoint_depth(&self, name: &str) -> Result<usize> {
        self.xact.savepoint(name).ok_or_else(|| StatementError::Refused(format!("no savepoint named '{name}' is open")))
    }

    /// `CommitSubTransaction` of the innermost level: everything it owes is its parent's.
    fn release_top(&mut self) {
        let Some(mut child) = self.xact.levels.pop() else { return };
        let parent = self.xact.level();
        if child.xid.is_valid() {
            parent.children.push(child.xid);
        }
        parent.children.append(&mut child.children);
        parent.undo.append(&mut child.undo);
        parent.drop_at_commit.append(&mut child.drop_at_commit);
        parent.drop_at_abort.append(&mut child.drop_at_abort);
        parent.rows.append(&mut child.rows);
        parent.queue.merge_committed(child.queue);
    }

    /// Aborts the innermost level: an abort record if it has an xid, then everything is undone. The top level stays as an
    /// empty one with its xid.
    fn abort_top(&mut self) -> Result<Option<Placed>> {
        let is_sub = self.xact.levels.len() > 1;
        let level = std::mem::take(self.xact.level());
        let placed = if level.xid.is_valid() {
            let body = self.abort_record(&level);
            let current = self.xact.level();
            (current.xid, current.top_xid_logged) = (level.xid, level.top_xid_logged);
            Some(self.insert(&body)?)
        } else {
            None
        };
        if is_sub {
            self.xact.levels.pop();
        }
        if level.xid.is_valid() {
            let mut xids = level.children.clone();
            xids.push(level.xid);
            self.xact.unreported.retain(|xid| !xids.contains(xid));
            if is_sub {
                self.cluster.procs.abort_sub(self.xact.session, &xids);
            } else {
                self.cluster.procs.end(self.xact.session, newest(level.xid, &level.children));
            }
        }
        level.undo.into_iter().rev().for_each(|undo| self.cluster.catalog.undo(undo));
        level.drop_at_abort.iter().for_each(|file| self.cluster.catalog.drop_file(file.rel));
        for row in level.rows.iter().rev() {
            if let Some(tid) = row.at_abort {
                self.cluster.catalog.rows(row.filenode).publish(tid);
            }
        }
        Ok(placed)
    }

    /// `XactLogAbortRecord`. Unlike a commit record it does not tell the database.
    fn abort_record(&self, level: &Level) -> RecordBody {
        let dropped = newest_first(&level.drop_at_abort);
        let stats = if self.cluster.catalog.traits.dropped_stats { dropped.len() as u32 } else { 0 };
        let chunks = [
            (!level.children.is_empty(), xinfo::HAS_SUBXACTS),
            (!dropped.is_empty(), xinfo::HAS_RELFILELOCATORS),
            (stats > 0, xinfo::HAS_DROPPED_STATS),
            (self.xact.access_exclusive, xinfo::HAS_AE_LOCKS),
        ];
        RecordBody::Abort(Box::new(AbortRecord {
            time: self.now,
            xinfo: flags(&chunks),
            subxids: level.children.clone(),
            dropped_locators: dropped,
            dropped_stats: stats,
            ..AbortRecord::default()
        }))
    }

    /// Flags of the chunks that a commit record will have. With wal_level = logical the database is always told.
    fn commit_chunks(&self, top: &Level, messages: usize) -> u32 {
        let chunks = [
            (!top.children.is_empty(), xinfo::HAS_SUBXACTS),
            (!top.drop_at_commit.is_empty(), xinfo::HAS_RELFILELOCATORS),
            (messages > 0, xinfo::HAS_INVALS),
        ];
        flags(&chunks) | xinfo::HAS_DBINFO
    }

    /// `LogStandbyInvalidations`: messages of a commit without xid.
    fn standby_invalidations(&mut self, messages: Vec<pg_types::InvalidationMessage>) -> Result<Placed> {
        self.insert(&RecordBody::StandbyInvalidations(Box::new(StandbyInvalidationsRecord {
            db: DATABASE,
            spc: Oid::DEFAULT_TABLESPACE,
            relcache_init_file_inval: false,
            messages,
        })))
    }
}

/// Flags from conditions.
fn flags(bits: &[(bool, u32)]) -> u32 {
    bits.iter().filter(|(on, _)| *on).fold(0, |sum, (_, bit)| sum | bit)
}

/// The newest of a transaction's xids (`TransactionIdLatest`).
fn newest(xid: Xid, children: &[Xid]) -> Xid {
    children.iter().fold(xid, |newest, child| if newest.precedes(*child) { *child } else { newest })
}

/// Pending deletes are kept newest first.
fn newest_first(files: &[RelFileLocator]) -> Vec<RelFileLocator> {
    files.iter().rev().copied().collect()
}
