//! Which backend a session is (`storage/ipc/sinvaladt.c`: `SharedInvalBackendInit` up to 16; `storage/lmgr/proc.c`: `InitProcess`
//! from 17 on): the number that temporary schemas are named by.
//!
//! A session that connects takes a free number and gives it back when it leaves, so that a later one finds the schemas
//! `pg_temp_N` and `pg_toast_temp_N` that an earlier one made. How soon depends on the version: the lowest free number is
//! taken, or the one that was free for longest.
//!
//! **Invariant** I1: a number is free or some session's, never both, and there are `max_connections` of them.
//!
//! Cost: O(log `max_connections`). Difference from PostgreSQL: numbers begin at 1 in every version, and neither the server's own
//! processes nor prepared transactions have any.

use std::collections::{BTreeMap, BTreeSet};

/// The numbers of all sessions.
#[derive(Debug, Default)]
pub(crate) struct BackendNumbers {
    /// Free numbers behind the order in which they are taken.
    free: BTreeSet<(u64, u32)>,
    /// Numbers in use by session.
    taken: BTreeMap<usize, u32>,
    /// Place of the next number that is given back, if they are taken in turn.
    turn: Option<u64>,
}

impl BackendNumbers {
    /// All numbers are free; taken in turn, or the lowest first.
    pub(crate) fn new(max_connections: u32, in_turn: bool) -> BackendNumbers {
        let free = (1..=max_connections).map(|number| (u64::from(number), number)).collect();
        BackendNumbers { free, taken: BTreeMap::new(), turn: in_turn.then_some(u64::from(max_connections)) }
    }

    /// A session connects. False if there are `max_connections` of them already.
    pub(crate) fn connect(&mut self, session: usize) -> bool {
        if self.taken.contains_key(&session) {
            return true;
        }
        let Some((_, number)) = self.free.pop_first() else { return false };
        self.taken.insert(session, number);
        true
    }

    /// A session leaves; nothing happens if it was not there.
    pub(crate) fn disconnect(&mut self, session: usize) {
        let Some(number) = self.taken.remove(&session) else { return };
        let place = match &mut self.turn {
            Some(turn) => {
                *turn += 1;
                *turn
            }
            None => u64::from(number),
        };
        self.free.insert((place, number));
    }

    /// The server was started anew: nobody is connected, and numbers are given as they were at first.
    pub(crate) fn restarted(&mut self) {
        let all = self.free.len() + self.taken.len();
        *self = BackendNumbers::new(u32::try_from(all).unwrap_or(u32::MAX), self.turn.is_some());
    }

    /// A session's number, if it is connected.
    pub(crate) fn of(&self, session: usize) -> Option<u32> {
        self.taken.get(&session).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers of sessions that come after 1 of 3 left.
    fn after_one_left(in_turn: bool) -> Vec<Option<u32>> {
        let mut numbers = BackendNumbers::new(3, in_turn);
        assert!(numbers.connect(10) && numbers.connect(11) && numbers.connect(11));
        numbers.disconnect(10);
        assert!(numbers.connect(12) && numbers.connect(13) && !numbers.connect(14), "I1");
        [10, 11, 12, 13, 14].map(|session| numbers.of(session)).into()
    }

    #[test]
    fn i1_free_numbers_come_again() {
        assert_eq!(after_one_left(false), [None, Some(2), Some(1), Some(3), None]);
        assert_eq!(after_one_left(true), [None, Some(2), Some(3), Some(1), None]);
    }

    #[test]
    fn a_start_gives_numbers_as_the_first_one_did() {
        for in_turn in [false, true] {
            let mut numbers = BackendNumbers::new(3, in_turn);
            assert!(numbers.connect(10) && numbers.connect(11));
            numbers.disconnect(10);
            numbers.restarted();
            assert_eq!(numbers.of(11), None);
            assert!(numbers.connect(12) && numbers.connect(13) && numbers.connect(14) && !numbers.connect(15), "I1");
            assert_eq!([12, 13, 14].map(|session| numbers.of(session)), [Some(1), Some(2), Some(3)]);
        }
    }
}
