//! Prepared transactions (`access/transam/twophase.c`: `TwoPhaseStateData`, `GlobalTransactionData`).
//!
//! PREPARE TRANSACTION takes a transaction away from its session: it goes on to hold its xid, its locks and what it owes at its
//! end, under a name, until some session commits it or rolls it back. In the proc array it is a *dummy proc*: a slot behind those
//! of all sessions, so that records of running transactions go on to tell of it.
//!
//! **Invariants**
//! - I1: a name is used once at a time; there are at most `max_prepared_transactions`.
//! - I2: every prepared transaction has an xid, and a dummy proc that no other has.
//!
//! Cost: a name O(log prepared), a dummy proc O(prepared). Difference from PostgreSQL: nothing is written to `pg_twophase`; a crash
//! leaves them as they are.

use std::collections::{BTreeMap, BTreeSet};

use pg_types::{InvalidationMessage, Xid};

use crate::xact::Level;

/// Number of the first dummy proc: above every session's slot.
const FIRST_DUMMY_PROC: usize = 1 << 20;

/// One prepared transaction.
#[derive(Debug)]
pub(crate) struct GlobalTransaction {
    /// Its slot in the proc array.
    pub(crate) dummy_proc: usize,
    /// Its xid.
    pub(crate) xid: Xid,
    /// What it owes at its end.
    pub(crate) level: Level,
    /// Messages that its commit will send.
    pub(crate) messages: Vec<InvalidationMessage>,
    /// Statistics entries that its commit and its abort will drop.
    pub(crate) dropped_stats: (u32, u32),
    /// Times that its command id rose.
    pub(crate) commands: u32,
    /// Records that it wrote, with the one that prepared it.
    pub(crate) records: u64,
    /// What it did, in words.
    pub(crate) did: Vec<String>,
}

/// Why a transaction cannot be prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrepareError {
    /// The name is in use.
    NameInUse,
    /// As many are prepared as the setting allows.
    TooMany(u32),
}

/// All prepared transactions.
#[derive(Debug, Default)]
pub(crate) struct TwoPhaseState {
    /// By name.
    prepared: BTreeMap<String, GlobalTransaction>,
    /// Dummy procs in use.
    procs: BTreeSet<usize>,
    /// `max_prepared_transactions`.
    max: u32,
}

impl TwoPhaseState {
    /// None prepared.
    pub(crate) fn new(max: u32) -> TwoPhaseState {
        TwoPhaseState { max, ..TwoPhaseState::default() }
    }

    /// `MarkAsPreparing`: a dummy proc for a new name.
    pub(crate) fn reserve(&self, gid: &str) -> Result<usize, PrepareError> {
        if self.prepared.contains_key(gid) {
            return Err(PrepareError::NameInUse);
        }
        if self.prepared.len() >= self.max as usize {
            return Err(PrepareError::TooMany(self.max));
        }
        let taken = (FIRST_DUMMY_PROC..).zip(&self.procs).take_while(|(free, taken)| free == *taken).count();
        Ok(FIRST_DUMMY_PROC + taken)
    }

    /// Keeps a prepared transaction.
    pub(crate) fn insert(&mut self, gid: &str, gxact: GlobalTransaction) {
        debug_assert!(gxact.xid.is_valid(), "I2");
        self.procs.insert(gxact.dummy_proc);
        let before = self.prepared.insert(gid.to_owned(), gxact);
        debug_assert!(before.is_none(), "I1");
    }

    /// `LockGXact` and `RemoveGXact`: takes a prepared transaction out to end it.
    pub(crate) fn remove(&mut self, gid: &str) -> Option<GlobalTransaction> {
        let gxact = self.prepared.remove(gid)?;
        self.procs.remove(&gxact.dummy_proc);
        Some(gxact)
    }

    /// All names, in their order.
    pub(crate) fn gids(&self) -> Vec<String> {
        self.prepared.keys().cloned().collect()
    }

    /// Whether a name is prepared.
    pub(crate) fn contains(&self, gid: &str) -> bool {
        self.prepared.contains_key(gid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gxact(dummy_proc: usize) -> GlobalTransaction {
        GlobalTransaction {
            dummy_proc,
            xid: Xid(700),
            level: Level::default(),
            messages: Vec::new(),
            dropped_stats: (0, 0),
            commands: 0,
            records: 0,
            did: Vec::new(),
        }
    }

    #[test]
    fn i1_names_are_used_once_and_the_setting_limits_them() {
        let mut state = TwoPhaseState::new(2);
        let first = state.reserve("a").expect("room for one");
        state.insert("a", gxact(first));
        assert_eq!(state.reserve("a"), Err(PrepareError::NameInUse));
        let second = state.reserve("b").expect("room for two");
        assert_ne!(first, second, "I2");
        state.insert("b", gxact(second));
        assert_eq!(state.reserve("c"), Err(PrepareError::TooMany(2)));
        assert!(state.remove("a").is_some() && state.remove("a").is_none());
        assert_eq!(state.reserve("c"), Ok(first), "a free dummy proc is used again");
        assert_eq!(TwoPhaseState::default().reserve("a"), Err(PrepareError::TooMany(0)));
    }
}
