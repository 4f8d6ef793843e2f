//! Relation locks, as far as statements need them to keep out of each other's way (`storage/lmgr`): shared for those that change
//! rows, exclusive for those that change the relation. A statement takes all its locks at once or waits for all of them.

use std::collections::{BTreeMap, BTreeSet};

use pg_types::Oid;

/// How a relation is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockMode {
    /// Rows change.
    Shared,
    /// The relation changes.
    Exclusive,
}

/// Locks on one relation.
#[derive(Debug, Default)]
struct Held {
    /// Session with the exclusive lock.
    exclusive: Option<usize>,
    /// Sessions with a shared lock.
    shared: BTreeSet<usize>,
}

/// All locks.
#[derive(Debug, Default)]
pub(super) struct LockTable(BTreeMap<Oid, Held>);

impl LockTable {
    /// Takes all locks or none.
    pub(super) fn try_lock(&mut self, session: usize, wanted: &[(Oid, LockMode)]) -> bool {
        if !wanted.iter().all(|(rel, mode)| self.is_free(session, *rel, *mode)) {
            return false;
        }
        for (rel, mode) in wanted {
            let held = self.0.entry(*rel).or_default();
            match mode {
                LockMode::Shared => drop(held.shared.insert(session)),
                LockMode::Exclusive => held.exclusive = Some(session),
            }
        }
        true
    }

    /// Hands everything that a session holds to another holder (a prepared transaction). O(locked relations).
    pub(super) fn transfer(&mut self, from: usize, to: usize) {
        for held in self.0.values_mut() {
            if held.shared.remove(&from) {
                held.shared.insert(to);
            }
            if held.exclusive == Some(from) {
                held.exclusive = Some(to);
            }
        }
    }

    /// Releases everything that a session holds. O(locked relations).
    pub(super) fn release(&mut self, session: usize) {
        self.0.retain(|_, held| {
            held.shared.remove(&session);
            if held.exclusive == Some(session) {
                held.exclusive = None;
            }
            held.exclusive.is_some() || !held.shared.is_empty()
        });
    }

    /// Whether nobody else stands in the way.
    fn is_free(&self, session: usize, rel: Oid, mode: LockMode) -> bool {
        let Some(held) = self.0.get(&rel) else { return true };
        let exclusive_elsewhere = held.exclusive.is_some_and(|holder| holder != session);
        let shared_elsewhere = held.shared.iter().any(|holder| *holder != session);
        !exclusive_elsewhere && (mode == LockMode::Shared || !shared_elsewhere)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusive_excludes_and_all_or_none_are_taken() {
        let mut locks = LockTable::default();
        let (a, b) = (Oid(1), Oid(2));
        assert!(locks.try_lock(0, &[(a, LockMode::Shared)]) && locks.try_lock(1, &[(a, LockMode::Shared)]));
        assert!(!locks.try_lock(0, &[(b, LockMode::Exclusive), (a, LockMode::Exclusive)]), "1 has a share of a");
        assert!(locks.try_lock(1, &[(b, LockMode::Exclusive)]), "nothing was taken of b");
        locks.release(1);
        assert!(locks.try_lock(0, &[(b, LockMode::Exclusive), (a, LockMode::Exclusive)]), "one's own share is no hindrance");
        assert!(!locks.try_lock(1, &[(a, LockMode::Shared)]));
    }
}
