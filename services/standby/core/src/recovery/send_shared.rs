//! What replay tells the sessions' caches (`ProcessCommittedInvalidationMessages`, `CacheInvalidateSmgr`, `CacheInvalidateRelmap`).
//!
//! After the record's effect is published (C2 of [`crate::catalog_session`]): who reads the messages sees what they are about.

use pg_types::{InvalidationMessage, RecordBody, RelFileLocator};

use super::RecoveryWriter;

impl RecoveryWriter {
    /// Puts the messages of a record into the shared queue, then those of the files that it drops.
    pub(super) fn send_shared(&self, body: &RecordBody) {
        let (messages, dropped): (&[InvalidationMessage], &[RelFileLocator]) = match body {
            RecordBody::Commit(commit) => (&commit.messages, &commit.dropped_locators),
            RecordBody::Abort(abort) => (&[], &abort.dropped_locators),
            RecordBody::StandbyInvalidations(invalidations) => (&invalidations.messages, &[]),
            RecordBody::Inplace(inplace) => (&inplace.messages, &[]),
            RecordBody::Relmap(relmap) => return self.send_one(InvalidationMessage::Relmap { db: relmap.db }),
            RecordBody::SmgrTruncate { target, .. } => return self.send_one(smgr(*target)),
            // Those of single commands (14 and later) come again with the commit.
            _ => return,
        };
        if messages.is_empty() && dropped.is_empty() {
            return;
        }
        let mut queue = self.shared.queue();
        queue.insert(messages);
        for &locator in dropped {
            queue.insert(&[smgr(locator)]);
        }
    }

    /// Puts one message into the shared queue.
    fn send_one(&self, message: InvalidationMessage) {
        self.shared.queue().insert(&[message]);
    }
}

/// A file of a permanent relation is gone or shorter.
fn smgr(locator: RelFileLocator) -> InvalidationMessage {
    InvalidationMessage::Smgr { backend: -1, locator }
}
