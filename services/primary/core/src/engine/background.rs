//! What the server writes on its own: start, checkpoints, running transactions (`access/transam/xlog.c`: `StartupXLOG`,
//! `CreateCheckPoint`; `storage/ipc/standby.c`: `LogStandbySnapshot`; `postmaster/bgwriter.c`).

use pg_types::record::{CheckpointRecord, ParameterChangeRecord, StandbyLock};
use pg_types::{Lsn, Oid, RecordBody, Timestamp, Xid};

use crate::backend::Cluster;
use crate::catalog::DATABASE;
use crate::error::PrimaryError;
use crate::scenario::{ServerPlan, StatementPlan};
use crate::sink::WalSink;

/// Seconds from 1970 to 2000.
const EPOCH_2000: i64 = 946_684_800;

/// Appends a record that no transaction writes.
fn append(sink: &mut dyn WalSink, body: &RecordBody) -> Result<Lsn, PrimaryError> {
    sink.append(Xid::INVALID, Xid::INVALID, 0, body).map(|placed| placed.start).map_err(PrimaryError::Sink)
}

impl Cluster {
    /// The first records of a log: a shutdown checkpoint, the settings that a standby needs, and that nothing runs, so that a
    /// decoder is consistent at once.
    pub(super) fn start_up(&mut self, server: &ServerPlan, now: Timestamp, sink: &mut dyn WalSink) -> Result<(), PrimaryError> {
        let redo = sink.next_lsn();
        append(sink, &RecordBody::Checkpoint(Box::new(self.checkpoint(true, redo, now))))?;
        let parameters = ParameterChangeRecord {
            max_connections: i32::try_from(server.max_connections).unwrap_or(i32::MAX),
            max_worker_processes: 8,
            max_wal_senders: 10,
            max_prepared_xacts: i32::try_from(server.max_prepared_transactions).unwrap_or(i32::MAX),
            max_locks_per_xact: 64,
            wal_level: self.wal_level as i32,
            wal_log_hints: false,
            track_commit_timestamp: false,
        };
        append(sink, &RecordBody::ParameterChange(Box::new(parameters)))?;
        self.log_running_xacts(sink)
    }

    /// What the end of crash recovery writes: a shutdown checkpoint in every version, and no more (`CHECKPOINT_END_OF_RECOVERY`;
    /// the record `END_OF_RECOVERY` is for standbys that are promoted). The first list of running transactions comes when it is
    /// due.
    pub(super) fn recover(&mut self, now: Timestamp, sink: &mut dyn WalSink) -> Result<(), PrimaryError> {
        self.forget_at_crash();
        self.shut_down(now, sink)
    }

    /// What a server in order writes last, and after which it starts without another word (`ShutdownXLOG`).
    pub(super) fn shut_down(&mut self, now: Timestamp, sink: &mut dyn WalSink) -> Result<(), PrimaryError> {
        self.forget_at_start();
        let redo = sink.next_lsn();
        append(sink, &RecordBody::Checkpoint(Box::new(self.checkpoint(true, redo, now)))).map(drop)
    }

    /// What a session asks the server for: CHECKPOINT, `pg_log_standby_snapshot()`, `pg_switch_wal()`.
    pub(super) fn on_demand(
        &mut self,
        statement: &StatementPlan,
        now: Timestamp,
        sink: &mut dyn WalSink,
    ) -> Result<(), PrimaryError> {
        match statement {
            StatementPlan::Checkpoint => self.log_checkpoint(now, sink),
            StatementPlan::SwitchWal => append(sink, &RecordBody::Switch).map(|_| ()),
            _ => self.log_running_xacts(sink),
        }
    }

    /// An online checkpoint, unless nothing was logged since the last record of running transactions.
    pub(super) fn online_checkpoint(&mut self, now: Timestamp, sink: &mut dyn WalSink) -> Result<(), PrimaryError> {
        if !self.wrote_since_snapshot {
            return Ok(());
        }
        self.log_checkpoint(now, sink)
    }

    /// `CreateCheckPoint`, online.
    fn log_checkpoint(&mut self, now: Timestamp, sink: &mut dyn WalSink) -> Result<(), PrimaryError> {
        let redo = sink.next_lsn();
        if self.catalog.traits.checkpoint_redo {
            append(sink, &RecordBody::CheckpointRedo)?;
        }
        self.log_running_xacts(sink)?;
        append(sink, &RecordBody::Checkpoint(Box::new(self.checkpoint(false, redo, now))))?;
        Ok(())
    }

    /// Running transactions, unless nothing was logged since the last time.
    pub(super) fn running_xacts_if_due(&mut self, sink: &mut dyn WalSink) -> Result<(), PrimaryError> {
        if self.wrote_since_snapshot { self.log_running_xacts(sink) } else { Ok(()) }
    }

    /// `LogStandbySnapshot`: AccessExclusive locks that are held, then running transactions.
    pub(super) fn log_running_xacts(&mut self, sink: &mut dyn WalSink) -> Result<(), PrimaryError> {
        let held = self.exclusive_locks.iter().flat_map(|(proc, rels)| rels.iter().map(move |rel| (*proc, *rel)));
        let locks: Vec<StandbyLock> = held
            .map(|(proc, rel)| StandbyLock { xid: self.procs.xid_of(proc), db: DATABASE, rel })
            .filter(|lock| lock.xid.is_valid())
            .collect();
        if !locks.is_empty() {
            append(sink, &RecordBody::StandbyLocks(locks))?;
        }
        append(sink, &RecordBody::RunningXacts(Box::new(self.procs.running_xacts())))?;
        self.wrote_since_snapshot = false;
        Ok(())
    }

    /// A checkpoint's contents.
    fn checkpoint(&self, shutdown: bool, redo: Lsn, now: Timestamp) -> CheckpointRecord {
        CheckpointRecord {
            shutdown,
            redo,
            this_timeline: 1,
            prev_timeline: 1,
            full_page_writes: true,
            wal_level: if self.catalog.traits.checkpoint_redo { self.wal_level as u32 } else { 0 },
            next_xid: self.procs.next_xid(),
            next_oid: self.catalog.next_oid,
            next_multi: 1,
            next_multi_offset: 0,
            oldest_xid: Xid(3),
            oldest_xid_db: Oid(1),
            oldest_multi: 1,
            oldest_multi_db: Oid(1),
            time: now.0.div_euclid(1_000_000) + EPOCH_2000,
            oldest_commit_ts_xid: Xid::INVALID,
            newest_commit_ts_xid: Xid::INVALID,
            oldest_active_xid: if shutdown { Xid::INVALID } else { self.procs.oldest_running() },
        }
    }
}
