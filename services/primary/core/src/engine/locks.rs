//! Relation locks, as far as statements need them to keep out of each other's way (`storage/lmgr`): shared for those that change
//! rows, exclusive for those that change the relation, one between for those that let rows change meanwhile. A statement takes all its locks at once or waits for all of them.

use std::collections::{BTreeMap, BTreeSet};

use pg_types::Oid;

/// How a relation is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LockMode {
    /// Rows change.
    Shared,
    /// Something is done to the relation while rows change (`ShareUpdateExclusiveLock`).
    ShareUpdateExclusive,
    /// The relation changes.
    Exclusive,
}

/// Locks on one relation.
#[derive(Debug, Default)]
struct Held {
    /// Session with the exclusive lock.
    exclusive: Option<usize>,
    /// Session with the lock that lets rows change.
    share_update: Option<usize>,
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
                LockMode::ShareUpdateExclusive => held.share_update = Some(session),
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
            for holder in [&mut held.exclusive, &mut held.share_update] {
                if *holder == Some(from) {
                    *holder = Some(to);
                }
            }
        }
    }

    /// Releases everything that a session holds. O(locked relations).
    pub(super) fn release(&mut self, session: usize) {
        self.0.retain(|_, held| {
            held.shared.remove(&session);
            for holder in [&mut held.exclusive, &mut held.share_update] {
                holder.take_if(|holder| *holder == session);
            }
            held.exclusive.is_some() || held.share_update.is_some() || !held.shared.is_empty()
        });
    }

    /// Whoever else holds one of these relations in any way (`GetLockConflicts`).
    pub(super) fn others_on(&self, session: usize, wanted: &[(Oid, LockMode)]) -> BTreeSet<usize> {
        let held = wanted.iter().filter_map(|(rel, _)| self.0.get(rel));
        let holders = held.flat_map(|held| held.shared.iter().copied().chain(held.exclusive).chain(held.share_update));
        holders.filter(|holder| *holder != session).collect()
    }

    /// Whether nobody else stands in the way.
    fn is_free(&self, session: usize, rel: Oid, mode: LockMode) -> bool {
        let Some(held) = self.0.get(&rel) else { return true };
        let elsewhere = |holder: Option<usize>| holder.is_some_and(|holder| holder != session);
        let shared_elsewhere = held.shared.iter().any(|holder| *holder != session);
        !elsewhere(held.exclusive)
            && match mode {
                LockMode::Shared => true,
                LockMode::ShareUpdateExclusive => !elsewhere(held.share_update),
                LockMode::Exclusive => !elsewhere(held.share_update) && !shared_elsewhere,
            }
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

    #[test]
    fn rows_change_under_a_share_update_lock_that_one_has() {
        let (mut locks, a) = (LockTable::default(), Oid(1));
        assert!(locks.try_lock(0, &[(a, LockMode::ShareUpdateExclusive)]) && locks.try_lock(1, &[(a, LockMode::Shared)]));
        assert!(!locks.try_lock(1, &[(a, LockMode::ShareUpdateExclusive)]) && !locks.try_lock(1, &[(a, LockMode::Exclusive)]));
        assert_eq!(locks.others_on(0, &[(a, LockMode::ShareUpdateExclusive)]), BTreeSet::from([1]));
        locks.transfer(0, 2);
        locks.release(2);
        assert!(locks.try_lock(1, &[(a, LockMode::Exclusive)]));
    }
}
