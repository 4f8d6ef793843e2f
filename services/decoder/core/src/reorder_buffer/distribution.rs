//! What a catalog-changing commit hands to the transactions still running: `SnapBuildDistributeSnapshotAndInval` of
//! `replication/logical/snapbuild.c`, and walstorm's way of handing it out on demand.
//!
//! A transaction that began before a schema change and writes after it must be decoded with the new catalogs from there on, so
//! it needs the new snapshot and must drop what it cached. PostgreSQL gives both to every running transaction at once: a
//! snapshot of growing size per commit and victim, and a copy of all messages. Since early 2025 messages a transaction had
//! been given were given on as well, which doubled them at each step; since June 2025 they are kept apart and capped. From 14 on they are
//! executed where the commit stands and at the end, in 13 at the end alone: up to there 13.23 still shows a type's old name.
//!
//! On demand: commits are numbered and logged once; a transaction that is about to queue a change notes how far it must catch
//! up. One that writes nothing more costs nothing, and one that does gets one snapshot for all commits in between. Before it is given out
//! it drops what those commits changed, since whoever came between may have loaded it.
//!
//! Invariants: I1 a transaction is handed a commit's messages iff it had a base snapshot when that commit came; I2 the log
//! holds at most [`DISTRIBUTED_MESSAGES_MAX`] messages; what it had to forget is replayed as a full reset.
//!
//! | strategy | a commit with m messages, T running transactions |
//! |---|---|
//! | at once | T visits, T snapshots of header + 4·committed bytes, T·m messages |
//! | on demand | O(m), and O(1) at the next change of each |
//!
//! Differences from PostgreSQL: messages are shared by reference; they are counted as if copied.

use std::collections::VecDeque;
use std::sync::Arc;

use pg_types::{InvalidationMessage, Lsn};

use crate::DecodeError;
use crate::profile::Distribution;
use crate::reorder_buffer::ReorderBuffer;
use crate::reorder_buffer::change::ChangeKind;
use crate::reorder_buffer::change_size;
use crate::reorder_buffer::streaming::Room;
use crate::reorder_buffer::txn::Inherited;

/// Messages a transaction may be handed before it resets everything instead (`MAX_DISTR_INVAL_MSG_PER_TXN`: 8 MiB).
pub const DISTRIBUTED_MESSAGES_MAX: u64 = 524_288;

/// Messages that fit an allocation of PostgreSQL (`MaxAllocSize`, 1 GiB − 1, of 16 bytes each).
pub const ALLOCATED_MESSAGES_MAX: u64 = 0x3fff_ffff / 16;

/// One logged commit.
#[derive(Debug)]
struct CatalogCommit {
    /// Where its record starts.
    lsn: Lsn,
    /// Its own messages; [`None`] if they had to be forgotten.
    messages: Option<Arc<[InvalidationMessage]>>,
}

/// Catalog-changing commits that some running transaction may have to catch up with.
#[derive(Debug, Default)]
pub(crate) struct CatalogCommits {
    /// Oldest first.
    log: VecDeque<CatalogCommit>,
    /// Number of the newest; the first commit is number 1.
    newest: u32,
    /// Messages kept.
    messages: u64,
}

impl CatalogCommits {
    /// Number of the newest commit.
    pub(crate) fn newest(&self) -> u32 {
        self.newest
    }

    /// Commits kept.
    pub(crate) fn len(&self) -> usize {
        self.log.len()
    }

    /// Logs one, and forgets the messages of the oldest if they are too many (I2).
    pub(crate) fn push(&mut self, lsn: Lsn, messages: Arc<[InvalidationMessage]>) {
        self.newest += 1;
        self.messages += messages.len() as u64;
        self.log.push_back(CatalogCommit { lsn, messages: Some(messages) });
        let mut oldest = self.log.iter_mut();
        while self.messages >= DISTRIBUTED_MESSAGES_MAX {
            let Some(commit) = oldest.next() else { break };
            self.messages -= commit.messages.take().map_or(0, |m| m.len() as u64);
        }
    }

    /// Forgets commits before `oldest_lsn`, where the oldest running transaction began: nobody needs them.
    pub(crate) fn trim(&mut self, oldest_lsn: Lsn) {
        while let Some(commit) = self.log.pop_front_if(|commit| commit.lsn < oldest_lsn) {
            self.messages -= commit.messages.map_or(0, |m| m.len() as u64);
        }
    }

    /// Messages of the commits after `from` up to `to`; [`None`] for one whose messages are forgotten.
    pub(crate) fn between(&self, from: u32, to: u32) -> impl Iterator<Item = Option<&[InvalidationMessage]>> {
        let first = self.newest as usize - self.log.len();
        let (from, to) = ((from as usize).max(first) - first, (to as usize).max(first) - first);
        self.log.range(from.min(to)..to).map(|commit| commit.messages.as_deref())
    }
}

/// The commit that hands something out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Committing {
    /// Its slot.
    pub(crate) at: u32,
    /// Where its record starts.
    pub(crate) lsn: Lsn,
    /// Bytes of the new snapshot in a spill file.
    pub(crate) snapshot_bytes: u64,
}

/// Hands snapshot and messages of a catalog-changing commit to the running transactions at once, as `strategy` wants it.
///
/// # Errors
/// [`DecodeError::AllocTooLarge`] where PostgreSQL could not have allocated a victim's messages.
pub(crate) fn distribute(
    rb: &mut ReorderBuffer,
    strategy: Distribution,
    by: Committing,
    commit_messages: &[InvalidationMessage],
    room: &mut dyn Room,
) -> Result<(), DecodeError> {
    let committing = rb.get(by.at);
    let own = if committing.messages.is_empty() { commit_messages } else { &committing.messages };
    let fed_back = if strategy == Distribution::FedBack { committing.inherited.clone() } else { Vec::new() };
    let total = own.len() as u64 + fed_back.iter().map(|i| i.total).sum::<u64>();
    let victims: Vec<u32> = rb.toplevel().collect();
    let alone = victims.len() < 2 || strategy == Distribution::SnapshotOnly || total == 0;
    let inherited = (!alone).then(|| Arc::new(Inherited { own: own.into(), fed_back, total }));
    for victim in victims {
        room.work().transactions_visited += 1;
        // What is prepared already does not see the new catalogs.
        if !rb.get(victim).has_base_snapshot() || rb.get(victim).prepared.is_some() {
            continue;
        }
        room.work().snapshots_distributed += 1;
        room.work().snapshot_bytes += by.snapshot_bytes;
        rb.queue(victim, by.lsn, ChangeKind::Snapshot, change_size::snapshot(by.snapshot_bytes), room)?;
        if let Some(inherited) = inherited.as_ref().filter(|_| victim != by.at) {
            hand_over(rb, victim, by.lsn, strategy, inherited, room)?;
        }
    }
    Ok(())
}

/// `ReorderBufferAddDistributedInvalidations` for one running transaction.
fn hand_over(
    rb: &mut ReorderBuffer,
    victim: u32,
    lsn: Lsn,
    strategy: Distribution,
    inherited: &Arc<Inherited>,
    room: &mut dyn Room,
) -> Result<(), DecodeError> {
    let index = rb.get(victim).inherited.len() as u32;
    // First, since the change may be given out as soon as it is queued.
    rb.get_mut(victim).inherited.push(Arc::clone(inherited));
    rb.queue(victim, lsn, ChangeKind::Inherited(index), change_size::invalidations(inherited.total), room)?;
    let txn = rb.get_mut(victim);
    if strategy == Distribution::FedBack {
        txn.inherited_total += inherited.total;
        let all = txn.inherited_total + txn.messages.len() as u64;
        if all > ALLOCATED_MESSAGES_MAX {
            return Err(DecodeError::AllocTooLarge { xid: txn.xid, lsn, bytes: all.saturating_mul(16) });
        }
    } else if !txn.inherited_overflowed {
        txn.inherited_total += inherited.total;
        if txn.inherited_total >= DISTRIBUTED_MESSAGES_MAX {
            (txn.inherited_overflowed, txn.inherited_total) = (true, 0);
        }
    }
    Ok(())
}

/// On demand: notes before a change of `at` that its transaction must catch up with commit number `newest` first, and counts the
/// snapshot it gets.
///
/// # Errors
/// Changes could not be written out.
pub(crate) fn catch_up(
    rb: &mut ReorderBuffer,
    newest: u32,
    at: u32,
    lsn: Lsn,
    snapshot_bytes: u64,
    room: &mut dyn Room,
) -> Result<(), DecodeError> {
    let top = rb.top_of(at);
    if rb.get(top).caught_up == newest {
        return Ok(());
    }
    rb.get_mut(top).caught_up = newest;
    room.work().snapshots_distributed += 1;
    room.work().snapshot_bytes += snapshot_bytes;
    // Not with the subtransaction, which may be rolled back.
    Ok(rb.queue(top, lsn, ChangeKind::CatchUp(newest), change_size::snapshot(snapshot_bytes), room)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pg_types::{Oid, Work, Xid};

    /// `n` transactions with base snapshots.
    fn running(n: u32) -> ReorderBuffer {
        let mut rb = ReorderBuffer::default();
        for i in 0..n {
            let at = rb.find_or_begin(Xid(100 + i), Lsn(10 + u64::from(i)));
            rb.get_mut(at).base_snapshot_lsn = Some(Lsn(10 + u64::from(i)));
        }
        rb
    }

    fn messages(n: usize) -> Vec<InvalidationMessage> {
        vec![InvalidationMessage::Relcache { db: Oid(5), rel: Oid(16384) }; n]
    }

    /// Lets K overlapping transactions with m messages each commit one after another; gives what the last was handed.
    fn feedback(k: u32, m: usize, strategy: Distribution) -> Result<(u64, bool), DecodeError> {
        let (mut rb, mut work, mut tree) = (running(k), Work::default(), Vec::new());
        for i in 0..k {
            let xid = Xid(100 + i);
            let at = rb.find(xid).unwrap();
            let by = Committing { at, lsn: Lsn(1000 + u64::from(i)), snapshot_bytes: 192 };
            if i + 1 == k {
                return Ok((rb.get(at).inherited_total, rb.get(at).inherited_overflowed));
            }
            distribute(&mut rb, strategy, by, &messages(m), &mut work)?;
            rb.abort(xid, &mut tree).unwrap();
        }
        unreachable!("k is at least 1")
    }

    #[test]
    fn fed_back_messages_double_at_each_step() {
        for (k, m) in [(1, 3), (2, 3), (5, 7), (10, 11)] {
            assert_eq!(feedback(k, m, Distribution::FedBack).unwrap().0, m as u64 * ((1 << (k - 1)) - 1));
            assert_eq!(feedback(k, m, Distribution::KeptApart).unwrap().0, m as u64 * u64::from(k - 1));
            assert_eq!(feedback(k, m, Distribution::SnapshotOnly).unwrap().0, 0);
        }
    }

    #[test]
    fn what_cannot_be_allocated_is_refused_with_xid_and_lsn() {
        // The last of 27 has been handed 2^26 − 1, which is as many as an allocation of 1 GiB − 1 holds.
        assert_eq!(feedback(27, 1, Distribution::FedBack).unwrap().0, ALLOCATED_MESSAGES_MAX);
        let error = feedback(28, 1, Distribution::FedBack).unwrap_err().to_string();
        assert!(error.contains("xid 127") && error.contains("0/402") && error.contains("2147483632 bytes"), "{error}");
    }

    #[test]
    fn too_many_kept_apart_overflow() {
        assert_eq!(feedback(3, 262_144, Distribution::KeptApart).unwrap(), (0, true));
        assert_eq!(feedback(3, 262_143, Distribution::KeptApart).unwrap(), (524_286, false));
    }

    #[test]
    fn i2_the_log_forgets_messages_but_not_commits() {
        let mut commits = CatalogCommits::default();
        for lsn in 1..=4 {
            commits.push(Lsn(lsn), messages(200_000).into());
        }
        let kept: Vec<bool> = commits.between(0, 4).map(|m| m.is_some()).collect();
        assert_eq!(kept, [false, false, true, true]);
        assert_eq!(commits.between(2, 3).count(), 1);
        commits.trim(Lsn(4));
        assert_eq!((commits.len(), commits.between(0, 4).count(), commits.between(4, 4).count()), (1, 1, 0));
        assert_eq!(commits.messages, 200_000);
    }
}
