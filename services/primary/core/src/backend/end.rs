//! The end of transactions and subtransactions (`access/transam/xact.c`: `RecordTransactionCommit`, `RecordTransactionAbort`).

use std::collections::BTreeSet;

use pg_types::record::{AbortRecord, CommitRecord, RelmapRecord, StandbyInvalidationsRecord, xinfo};
use pg_types::{InvalidationMessage, Lsn, Oid, RecordBody, RelFileLocator, Tid, Timestamp, Xid, catalog};

use super::{Backend, Cluster, Result, StatementError};
use crate::catalog::{DATABASE, Undo};
use crate::sink::Placed;
use crate::xact::{Level, RowChange, Told};

/// How a transaction ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Ended {
    /// What it did is there for everybody.
    pub(crate) committed: bool,
    /// Its xid, invalid if it wrote nothing that needs one.
    pub(crate) xid: Xid,
    /// Its committed subtransactions.
    pub(crate) subxids: usize,
    /// Messages in its commit record (or in the record that prepared it).
    pub(crate) messages: usize,
    /// Rows of user tables that it changed, without what it took back.
    pub(crate) rows: Vec<RowChange>,
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
        let top = self.finish_statements()?;
        let messages = top.queue.committed(self.cluster.catalog.traits.message_order);
        let count = messages.len();
        if !top.xid.is_valid() {
            let init_file = top.queue.init_file();
            let placed = if messages.is_empty() { None } else { Some(self.standby_invalidations(messages, init_file)?) };
            self.cluster.exclusive_locks.remove(&self.xact.session);
            return Ok(Ended { committed: true, xid: Xid::INVALID, subxids: 0, messages: count, rows: top.rows, placed });
        }
        self.xact.level().xid = top.xid;
        if top.relation_map_changed {
            self.log_relation_map()?;
        }
        let subxids = top.children.len();
        let record = CommitRecord {
            xinfo: self.commit_completion(&top),
            dropped_stats: self.cluster.stats_dropped_by(&top).0,
            messages,
            ..self.commit_record(&top)
        };
        let body = RecordBody::Commit(Box::new(with_commit_flags(record)));
        let placed = self.insert(&body)?;
        let mut rows = top.rows.clone();
        rows.retain(|row| !self.cluster.catalog.is_temp_file(row.filenode));
        self.cluster.after_commit(self.xact.session, &top);
        Ok(Ended { committed: true, xid: top.xid, subxids, messages: count, rows, placed: Some(placed) })
    }

    /// `write_relmap_file`: where mapped catalogs and indexes are from now on.
    fn log_relation_map(&mut self) -> Result<()> {
        let mappings = self.cluster.catalog.relation_map();
        let record = RelmapRecord { db: DATABASE, spc: Oid::DEFAULT_TABLESPACE, mappings };
        self.insert(&RecordBody::Relmap(Box::new(record))).map(drop)
    }

    /// Flags of a commit record that stand for themselves.
    fn commit_completion(&self, top: &Level) -> u32 {
        flags(&[(self.xact.access_exclusive, xinfo::HAS_AE_LOCKS), (top.queue.init_file(), xinfo::UPDATE_RELCACHE_FILE)])
    }

    /// ROLLBACK. Every open subtransaction is aborted on its own first. The transaction is over afterwards.
    pub(crate) fn abort(&mut self) -> Result<Ended> {
        while self.xact.levels.len() > 1 {
            self.abort_top()?;
        }
        let placed = self.abort_top()?;
        let xid = self.xact.top_xid();
        Ok(Ended { committed: false, xid, subxids: 0, messages: 0, rows: Vec::new(), placed })
    }

    /// What precedes COMMIT and PREPARE: the last command ends, open savepoints are released. Gives what the transaction owes.
    pub(super) fn finish_statements(&mut self) -> Result<Level> {
        self.log_logical_invalidations()?;
        while self.xact.levels.len() > 1 {
            self.release_top();
        }
        self.on_commit_actions()?;
        Ok(std::mem::take(self.xact.level()))
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
        parent.exclusive_locks.append(&mut child.exclusive_locks);
        parent.locked_rows.append(&mut child.locked_rows);
        parent.rows.append(&mut child.rows);
        parent.catalog_rows.append(&mut child.catalog_rows);
        parent.queue.merge_committed(child.queue);
        parent.relation_map_changed |= child.relation_map_changed;
    }

    /// Aborts the innermost level: an abort record if it has an xid, then everything is undone. The top level stays as an
    /// empty one with its xid.
    fn abort_top(&mut self) -> Result<Option<Placed>> {
        let is_sub = self.xact.levels.len() > 1;
        let level = std::mem::take(self.xact.level());
        let placed = if level.xid.is_valid() {
            let xinfo = if self.xact.access_exclusive { xinfo::HAS_AE_LOCKS } else { 0 };
            let record =
                AbortRecord { xinfo, dropped_stats: self.cluster.stats_dropped_by(&level).1, ..self.abort_record(&level) };
            let body = RecordBody::Abort(Box::new(with_abort_flags(record)));
            let current = self.xact.level();
            (current.xid, current.top_xid_logged) = (level.xid, level.top_xid_logged);
            Some(self.insert(&body)?)
        } else {
            None
        };
        if is_sub {
            self.xact.levels.pop();
            let mut xids = level.children.clone();
            xids.extend(Some(level.xid).filter(|xid| xid.is_valid()));
            self.xact.unreported.retain(|xid| !xids.contains(xid));
            self.cluster.procs.abort_sub(self.xact.session, &xids);
            if let Some(held) = self.cluster.exclusive_locks.get_mut(&self.xact.session) {
                held.retain(|rel| !level.exclusive_locks.contains(rel));
            }
            self.cluster.undo(level);
        } else {
            self.cluster.after_abort(self.xact.session, level);
        }
        Ok(placed)
    }

    /// What commit records of all kinds have in common. With wal_level = logical the database is always told.
    pub(super) fn commit_record(&self, top: &Level) -> CommitRecord {
        CommitRecord {
            time: self.now,
            db: DATABASE,
            spc: Oid::DEFAULT_TABLESPACE,
            subxids: top.children.clone(),
            dropped_locators: self.cluster.logged_newest_first(&top.drop_at_commit),
            origin: self.told_origin(),
            ..CommitRecord::default()
        }
    }

    /// What abort records of all kinds have in common. Unlike a commit record a plain one does not tell the database.
    pub(super) fn abort_record(&self, level: &Level) -> AbortRecord {
        AbortRecord {
            time: self.now,
            subxids: level.children.clone(),
            dropped_locators: self.cluster.logged_newest_first(&level.drop_at_abort),
            origin: self.told_origin().filter(|_| self.cluster.catalog.traits.abort_tells_origin),
            ..AbortRecord::default()
        }
    }

    /// Position and time of the commit at the origin.
    pub(super) fn told_origin(&self) -> Option<(Lsn, Timestamp)> {
        self.xact.origin.map(|origin| (origin.lsn, origin.time))
    }

    /// `LogStandbyInvalidations`: messages of a commit without xid.
    fn standby_invalidations(&mut self, messages: Vec<InvalidationMessage>, init_file: bool) -> Result<Placed> {
        self.insert(&RecordBody::StandbyInvalidations(Box::new(StandbyInvalidationsRecord {
            db: DATABASE,
            spc: Oid::DEFAULT_TABLESPACE,
            relcache_init_file_inval: init_file,
            messages,
        })))
    }
}

impl Cluster {
    /// What follows a commit record: nobody waits for the transaction any more, files go, rows are there for everybody.
    pub(super) fn after_commit(&mut self, proc: usize, top: &Level) {
        self.procs.end(proc, newest(top.xid, &top.children));
        self.exclusive_locks.remove(&proc);
        let dropped: BTreeSet<u32> = top.drop_at_commit.iter().map(|file| file.rel).collect();
        dropped.iter().for_each(|file| self.catalog.drop_file(*file));
        let stays = |row: &&RowChange| row.told != Told::Decoders && !dropped.contains(&row.filenode);
        for row in top.rows.iter().filter(stays) {
            if let Some(tid) = row.at_commit {
                self.catalog.rows(row.filenode).publish(tid);
            }
            if let Some(tid) = row.at_abort {
                self.toasted.remove(&(row.filenode, tid));
            }
        }
        for row in top.rows.iter().chain(&top.catalog_rows).filter(stays) {
            let heap = self.catalog.heap(row.filenode);
            row.at_commit.into_iter().for_each(|tid| heap.insert_committed(tid, row.xid));
            row.at_abort.into_iter().for_each(|tid| heap.kill(tid, row.len, row.xid));
        }
        self.unlock_rows(&top.locked_rows, &dropped);
    }

    /// What follows an abort record: nobody waits any more, everything is undone.
    pub(super) fn after_abort(&mut self, proc: usize, top: Level) {
        if top.xid.is_valid() {
            self.procs.end(proc, newest(top.xid, &top.children));
        }
        self.exclusive_locks.remove(&proc);
        self.undo(top);
    }

    /// Takes back what a level did.
    fn undo(&mut self, level: Level) {
        level.undo.into_iter().rev().for_each(|undo| self.catalog.undo(undo));
        let dropped: BTreeSet<u32> = level.drop_at_abort.iter().map(|file| file.rel).collect();
        dropped.iter().for_each(|file| self.catalog.drop_file(*file));
        let stays = |row: &&RowChange| row.told != Told::Decoders && !dropped.contains(&row.filenode);
        for row in level.rows.iter().rev().filter(stays) {
            if let Some(tid) = row.at_abort {
                self.catalog.rows(row.filenode).publish(tid);
            }
            if let Some(tid) = row.at_commit {
                self.toasted.remove(&(row.filenode, tid));
            }
        }
        for row in level.rows.iter().chain(&level.catalog_rows).rev().filter(stays) {
            let heap = self.catalog.heap(row.filenode);
            row.at_commit.into_iter().for_each(|tid| heap.kill(tid, row.len, Xid::INVALID));
        }
        self.unlock_rows(&level.locked_rows, &dropped);
    }

    /// Rows that were only locked are anybody's again.
    fn unlock_rows(&mut self, rows: &[(u32, Tid)], dropped: &BTreeSet<u32>) {
        for (filenode, tid) in rows.iter().filter(|(filenode, _)| !dropped.contains(filenode)) {
            self.catalog.rows(*filenode).publish(*tid);
        }
    }

    /// Statistics entries that a level's commit and its abort drop (`utils/activity/pgstat_xact.c`): of relations and
    /// functions that it dropped, and of those that it made.
    pub(super) fn stats_dropped_by(&self, level: &Level) -> (u32, u32) {
        if !self.catalog.traits.dropped_stats {
            return (0, 0);
        }
        let (mut dropped, mut made) = (BTreeSet::new(), 0);
        for undo in &level.undo {
            let (oid, gone) = match undo {
                Undo::Relation(oid, before) => {
                    made += u32::from(before.is_none());
                    (*oid, self.catalog.relation(*oid).is_none())
                }
                Undo::Name(catalog::PROC, name, before) => {
                    made += u32::from(before.is_none());
                    (before.unwrap_or_default(), before.is_some() && self.catalog.object_named(catalog::PROC, name).is_none())
                }
                _ => continue,
            };
            if gone {
                dropped.insert(oid);
            }
        }
        (dropped.len() as u32, made)
    }
}

/// Sets the flags of the chunks that a commit record has.
pub(super) fn with_commit_flags(mut r: CommitRecord) -> CommitRecord {
    r.xinfo |= flags(&[
        (true, xinfo::HAS_DBINFO),
        (!r.subxids.is_empty(), xinfo::HAS_SUBXACTS),
        (!r.dropped_locators.is_empty(), xinfo::HAS_RELFILELOCATORS),
        (r.dropped_stats > 0, xinfo::HAS_DROPPED_STATS),
        (!r.messages.is_empty(), xinfo::HAS_INVALS),
        (r.prepared_xid.is_valid(), xinfo::HAS_TWOPHASE | xinfo::HAS_GID),
        (r.origin.is_some(), xinfo::HAS_ORIGIN),
    ]);
    r
}

/// Sets the flags of the chunks that an abort record has.
pub(super) fn with_abort_flags(mut r: AbortRecord) -> AbortRecord {
    r.xinfo |= flags(&[
        (r.db.is_valid(), xinfo::HAS_DBINFO),
        (!r.subxids.is_empty(), xinfo::HAS_SUBXACTS),
        (!r.dropped_locators.is_empty(), xinfo::HAS_RELFILELOCATORS),
        (r.dropped_stats > 0, xinfo::HAS_DROPPED_STATS),
        (r.prepared_xid.is_valid(), xinfo::HAS_TWOPHASE | xinfo::HAS_GID),
        (r.origin.is_some(), xinfo::HAS_ORIGIN),
    ]);
    r
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
pub(super) fn newest_first(files: &[RelFileLocator]) -> Vec<RelFileLocator> {
    files.iter().rev().copied().collect()
}
