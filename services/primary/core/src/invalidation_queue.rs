//! The messages that a transaction owes everybody else (`utils/cache/inval.c`: `TransInvalidationInfo`).
//!
//! A message is owed from the moment a catalog tuple changes, but others may see it only once the change is committed, and the
//! transaction itself only from its next command on. So messages wait in two stages, *current command* and *prior commands*,
//! one pair for each level of nested subtransactions; and within a stage in two groups, because catcache entries must go before
//! relcache entries are rebuilt from them.
//!
//! ```text
//!   register ──► current ──command_end──► prior ──commit──► commit record
//!                   │                       │  └─sub-commit──► parent's prior
//!                   └─logged at command_end └──abort──► dropped (executed locally by the server)
//! ```
//!
//! **Invariants**
//! - I1: within one command group a relation has at most one relcache message, a catalog at most one snapshot message.
//! - I2: catcache messages are never deduplicated.
//! - I3: the order of a commit record is prior catcache, current catcache, prior relcache, current relcache.
//!
//! Cost: registering is O(1) for catcache and O(messages of that kind in the current command) for the others, as in the server.

use pg_types::{InvalidationMessage, Oid};

/// Messages of one stage (`InvalidationMsgsGroup`).
#[derive(Clone, Debug, Default, PartialEq)]
struct MessageGroup {
    /// Catcache and catalog messages.
    catcache: Vec<InvalidationMessage>,
    /// Relcache, relsync and snapshot messages.
    relcache: Vec<InvalidationMessage>,
}

impl MessageGroup {
    /// `AppendInvalidationMessages`.
    fn append(&mut self, later: &mut MessageGroup) {
        self.catcache.append(&mut later.catcache);
        self.relcache.append(&mut later.relcache);
    }
}

/// The messages of one (sub)transaction.
#[derive(Clone, Debug, Default)]
pub struct InvalidationQueue {
    /// Of the command that runs.
    current: MessageGroup,
    /// Of the commands before it.
    prior: MessageGroup,
}

impl InvalidationQueue {
    /// `RegisterCatcacheInvalidation`.
    pub fn register_catcache(&mut self, cache_id: i8, db: Oid, hash: u32) {
        self.current.catcache.push(InvalidationMessage::Catcache { cache_id, db, hash });
    }

    /// `RegisterRelcacheInvalidation`, without its side effect on the command id, which is the caller's. An "all" entry
    /// ([`Oid::INVALID`]) absorbs those that follow it.
    pub fn register_relcache(&mut self, db: Oid, rel: Oid) {
        let known = self.current.relcache.iter().any(|m| match m {
            InvalidationMessage::Relcache { rel: known, .. } => *known == rel || !known.is_valid(),
            _ => false,
        });
        if !known {
            self.current.relcache.push(InvalidationMessage::Relcache { db, rel });
        }
    }

    /// `RegisterSnapshotInvalidation`.
    pub fn register_snapshot(&mut self, db: Oid, catalog: Oid) {
        let message = InvalidationMessage::Snapshot { db, rel: catalog };
        if !self.current.relcache.contains(&message) {
            self.current.relcache.push(message);
        }
    }

    /// `CommandEndInvalidationMessages`: gives the command's messages in the order of their WAL record and makes them prior.
    pub fn command_end(&mut self) -> Vec<InvalidationMessage> {
        let messages = self.current.catcache.iter().chain(&self.current.relcache).copied().collect();
        self.prior.append(&mut self.current);
        messages
    }

    /// `AtEOSubXact_Inval` of a committed subtransaction: its messages become its parent's.
    pub fn merge_committed(&mut self, mut child: InvalidationQueue) {
        child.command_end();
        self.prior.append(&mut child.prior);
    }

    /// `xactGetCommittedInvalidationMessages`: all, in the order of the commit record (I3).
    #[must_use]
    pub fn committed(&self) -> Vec<InvalidationMessage> {
        let groups = [&self.prior.catcache, &self.current.catcache, &self.prior.relcache, &self.current.relcache];
        groups.into_iter().flatten().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DB: Oid = Oid(5);

    fn relcache(rel: u32) -> InvalidationMessage {
        InvalidationMessage::Relcache { db: DB, rel: Oid(rel) }
    }

    fn catcache(hash: u32) -> InvalidationMessage {
        InvalidationMessage::Catcache { cache_id: 57, db: DB, hash }
    }

    #[test]
    fn i1_one_relcache_and_one_snapshot_message_a_command() {
        let mut queue = InvalidationQueue::default();
        for _ in 0..2 {
            queue.register_relcache(DB, Oid(1));
            queue.register_snapshot(DB, Oid(2608));
        }
        assert_eq!(queue.command_end(), [relcache(1), InvalidationMessage::Snapshot { db: DB, rel: Oid(2608) }]);
        queue.register_relcache(DB, Oid(1));
        assert_eq!(queue.command_end(), [relcache(1)], "the next command says it again");
    }

    #[test]
    fn i1_all_absorbs_what_follows() {
        let mut queue = InvalidationQueue::default();
        queue.register_relcache(DB, Oid::INVALID);
        queue.register_relcache(DB, Oid(1));
        assert_eq!(queue.command_end(), [relcache(0)]);
    }

    #[test]
    fn i2_catcache_messages_repeat() {
        let mut queue = InvalidationQueue::default();
        queue.register_catcache(57, DB, 1);
        queue.register_catcache(57, DB, 1);
        assert_eq!(queue.command_end(), [catcache(1), catcache(1)]);
    }

    #[test]
    fn i3_order_of_the_commit_record() {
        let mut queue = InvalidationQueue::default();
        queue.register_relcache(DB, Oid(1));
        queue.register_catcache(57, DB, 1);
        assert_eq!(queue.command_end(), [catcache(1), relcache(1)]);
        queue.register_relcache(DB, Oid(2));
        queue.register_catcache(57, DB, 2);
        assert_eq!(queue.committed(), [catcache(1), catcache(2), relcache(1), relcache(2)]);
    }

    #[test]
    fn a_committed_child_comes_before_what_the_parent_does_next() {
        let mut parent = InvalidationQueue::default();
        parent.register_catcache(57, DB, 1);
        parent.command_end();
        let mut child = InvalidationQueue::default();
        child.register_catcache(57, DB, 2);
        parent.merge_committed(child);
        parent.register_catcache(57, DB, 3);
        assert_eq!(parent.committed(), [catcache(1), catcache(2), catcache(3)]);
    }
}
