//! Where a standby without restart point begins: the first record that tells which transactions run.
//!
//! A server begins at the redo position of the checkpoint that its base backup names. A stream begins anywhere, so this watches
//! the records pass until one comes that replay can begin at, and remembers which transactions ended meanwhile: a
//! running-transactions record may still list a transaction whose commit was logged just before it, for the list is drawn up
//! before the record is written (`LogStandbySnapshot`), and a server would find that commit in its commit log.

use std::collections::{BTreeSet, VecDeque};

use pg_types::record::{CheckpointRecord, RunningXactsRecord};
use pg_types::{FullXid, Lsn, RecordBody, WalRecord, Xid};

use crate::config::StartAt;

/// Ended xids that are remembered before the beginning. Only those whose commit lies within the moments between drawing up a list
/// and logging it matter.
const ENDED_MAX: usize = 65_536;

/// What replay begins at.
#[derive(Clone, Debug, PartialEq)]
pub struct Beginning {
    /// The checkpoint, or one made of a running-transactions record.
    pub checkpoint: CheckpointRecord,
    /// The position given to the core as redo.
    pub lsn: Lsn,
    /// The record to replay first.
    pub first: WalRecord,
}

/// Watches records until one is a beginning.
#[derive(Debug)]
pub struct BeginSearch {
    /// What was asked for.
    start: StartAt,
    /// Xids that ended, oldest first.
    ended: VecDeque<Xid>,
}

impl BeginSearch {
    /// A search for the beginning that `start` describes.
    #[must_use]
    pub fn new(start: StartAt) -> Self {
        Self { start, ended: VecDeque::new() }
    }

    /// Looks at the next record of the stream.
    pub fn look(&mut self, record: &WalRecord) -> Option<Beginning> {
        let early = matches!(self.start, StartAt::Lsn(lsn) if record.lsn < lsn);
        match &record.body {
            RecordBody::Checkpoint(checkpoint) if !early => {
                Some(Beginning { checkpoint: (**checkpoint).clone(), lsn: record.lsn, first: record.clone() })
            }
            RecordBody::RunningXacts(running) if !early && self.start != StartAt::Checkpoint => {
                Some(self.at_running_xacts(record, running))
            }
            RecordBody::Commit(commit) => {
                self.remember(record.xid, commit.prepared_xid, &commit.subxids);
                None
            }
            RecordBody::Abort(abort) => {
                self.remember(record.xid, abort.prepared_xid, &abort.subxids);
                None
            }
            _ => None,
        }
    }

    /// A running-transactions record says what a checkpoint would: which xid comes next.
    fn at_running_xacts(&self, record: &WalRecord, running: &RunningXactsRecord) -> Beginning {
        let ended: BTreeSet<u32> = self.ended.iter().map(|xid| xid.numeric()).collect();
        let mut running = running.clone();
        running.xids.retain(|xid| !ended.contains(&xid.numeric()));
        running.subxids.retain(|xid| !ended.contains(&xid.numeric()));
        let checkpoint = CheckpointRecord {
            redo: record.lsn,
            // The record has no epoch; the next checkpoint has. Who compares epochs until then knows that it may be too low.
            next_xid: FullXid(u64::from(running.next_xid.numeric())),
            oldest_active_xid: running.oldest_running_xid,
            ..CheckpointRecord::default()
        };
        let first = WalRecord { body: RecordBody::RunningXacts(Box::new(running)), ..record.clone() };
        Beginning { checkpoint, lsn: record.lsn, first }
    }

    /// Notes the end of a transaction and its subtransactions.
    fn remember(&mut self, xid: Xid, prepared_xid: Xid, subxids: &[Xid]) {
        let top = if prepared_xid.is_valid() { prepared_xid } else { xid };
        for &xid in subxids.iter().chain([&top]) {
            if self.ended.len() == ENDED_MAX {
                self.ended.pop_front();
            }
            self.ended.push_back(xid);
        }
    }
}

#[cfg(test)]
mod tests {
    use pg_types::record::{AbortRecord, CommitRecord};

    use super::*;

    fn record(lsn: u64, xid: u32, body: RecordBody) -> WalRecord {
        let lsn = Lsn(lsn);
        WalRecord { lsn, end_lsn: Lsn(lsn.0 + 8), xid: Xid(xid), top_xid: Xid::INVALID, origin: 0, body }
    }

    fn checkpoint(lsn: u64) -> WalRecord {
        record(lsn, 0, RecordBody::Checkpoint(Box::new(CheckpointRecord { next_xid: FullXid(20), ..Default::default() })))
    }

    fn running(lsn: u64, xids: &[u32], subxids: &[u32]) -> WalRecord {
        let list = |xids: &[u32]| xids.iter().copied().map(Xid).collect();
        let body = RunningXactsRecord {
            next_xid: Xid(20),
            oldest_running_xid: Xid(10),
            xids: list(xids),
            subxids: list(subxids),
            ..Default::default()
        };
        record(lsn, 0, RecordBody::RunningXacts(Box::new(body)))
    }

    #[test]
    fn the_start_decides_which_record_is_the_beginning() {
        let stream = [running(8, &[], &[]), checkpoint(16), running(24, &[], &[]), checkpoint(32)];
        let begins_at = |start: StartAt| {
            let mut search = BeginSearch::new(start);
            stream.iter().find_map(|record| search.look(record)).map(|b| b.lsn.0)
        };
        assert_eq!(begins_at(StartAt::RunningXacts), Some(8));
        assert_eq!(begins_at(StartAt::Checkpoint), Some(16));
        assert_eq!(begins_at(StartAt::Lsn(Lsn(17))), Some(24));
        assert_eq!(begins_at(StartAt::Lsn(Lsn(33))), None);
    }

    #[test]
    fn transactions_that_ended_just_before_the_list_are_not_taken_from_it() {
        let mut search = BeginSearch::new(StartAt::RunningXacts);
        let commit = CommitRecord { subxids: vec![Xid(11)], ..Default::default() };
        assert_eq!(search.look(&record(8, 10, RecordBody::Commit(Box::new(commit)))), None);
        let abort = AbortRecord { prepared_xid: Xid(13), ..Default::default() };
        assert_eq!(search.look(&record(16, 0, RecordBody::Abort(Box::new(abort)))), None);
        let beginning = search.look(&running(24, &[10, 12, 13], &[11, 14])).unwrap();
        let RecordBody::RunningXacts(list) = beginning.first.body else { panic!("another record") };
        assert_eq!((list.xids, list.subxids), (vec![Xid(12)], vec![Xid(14)]));
        assert_eq!(beginning.checkpoint.next_xid, FullXid(20));
    }

    #[test]
    fn memory_before_the_beginning_is_bounded() {
        let mut search = BeginSearch::new(StartAt::Checkpoint);
        for i in 0..2 * ENDED_MAX as u32 {
            search.look(&record(8, 100 + i, RecordBody::Commit(Box::default())));
        }
        assert_eq!(search.ended.len(), ENDED_MAX);
    }
}
