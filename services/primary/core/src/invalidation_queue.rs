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
//! - I3: the order of a commit record is prior catcache, current catcache, prior relcache, current relcache (15 and later; for
//!   the order before see [`MessageOrder`]).
//!
//! Cost: registering is O(1) for catcache and O(messages of that kind in the current command) for the others, as in the server.

use pg_types::{InvalidationMessage, Oid};

/// In which order a version reads its lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageOrder {
    /// Arrays (15 and later): as they were registered.
    OldestFirst,
    /// Chains of chunks with the newest in front (14 and before): every command's messages, and within a command every chunk,
    /// come before the older ones; and the current command comes before the prior ones.
    NewestChunkFirst,
}

/// Messages of a chunk (`InvalidationChunk` up to 14); only [`MessageOrder::NewestChunkFirst`] can tell.
#[derive(Clone, Debug, PartialEq)]
struct Chunk {
    /// In the order of registering.
    messages: Vec<InvalidationMessage>,
    /// `maxitems`: when it is full a chunk of twice the size follows.
    max: usize,
}

/// `FIRSTCHUNKSIZE`.
const FIRST_CHUNK: usize = 32;

/// A list of messages, oldest chunk first.
#[derive(Clone, Debug, Default, PartialEq)]
struct MessageList(Vec<Chunk>);

impl MessageList {
    /// `AddInvalidationMessage`.
    fn push(&mut self, message: InvalidationMessage) {
        let max = match self.0.last() {
            Some(chunk) if chunk.messages.len() < chunk.max => None,
            Some(chunk) => Some(chunk.max * 2),
            None => Some(FIRST_CHUNK),
        };
        if let Some(max) = max {
            self.0.push(Chunk { messages: Vec::new(), max });
        }
        if let Some(chunk) = self.0.last_mut() {
            chunk.messages.push(message);
        }
    }

    /// All messages in the order of registering.
    fn iter(&self) -> impl Iterator<Item = &InvalidationMessage> {
        self.0.iter().flat_map(|chunk| &chunk.messages)
    }

    /// Copies all messages in a version's order.
    fn read(&self, order: MessageOrder, into: &mut Vec<InvalidationMessage>) {
        match order {
            MessageOrder::OldestFirst => into.extend(self.iter()),
            MessageOrder::NewestChunkFirst => into.extend(self.0.iter().rev().flat_map(|chunk| &chunk.messages)),
        }
    }
}

/// Messages of one stage (`InvalidationMsgsGroup`).
#[derive(Clone, Debug, Default, PartialEq)]
struct MessageGroup {
    /// Catcache and catalog messages.
    catcache: MessageList,
    /// Relcache, relsync and snapshot messages.
    relcache: MessageList,
}

impl MessageGroup {
    /// `AppendInvalidationMessages`.
    fn append(&mut self, later: &mut MessageGroup) {
        self.catcache.0.append(&mut later.catcache.0);
        self.relcache.0.append(&mut later.relcache.0);
    }
}

/// The messages of one (sub)transaction.
#[derive(Clone, Debug, Default)]
pub struct InvalidationQueue {
    /// Of the command that runs.
    current: MessageGroup,
    /// Of the commands before it.
    prior: MessageGroup,
    /// The relcache init file must go at commit.
    init_file: bool,
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
        self.init_file |= !rel.is_valid();
    }

    /// A relation that the relcache init file has was touched (`RelationIdIsInInitFile`).
    pub fn touch_init_file(&mut self) {
        self.init_file = true;
    }

    /// Whether the relcache init file must go at commit (`RelcacheInitFileInval`).
    #[must_use]
    pub fn init_file(&self) -> bool {
        self.init_file
    }

    /// `RegisterRelsyncInvalidation`. An "all" entry absorbs those that follow it.
    pub fn register_relsync(&mut self, db: Oid, rel: Oid) {
        let known = self.current.relcache.iter().any(|m| match m {
            InvalidationMessage::Relsync { rel: known, .. } => *known == rel || !known.is_valid(),
            _ => false,
        });
        if !known {
            self.current.relcache.push(InvalidationMessage::Relsync { db, rel });
        }
    }

    /// `RegisterCatalogInvalidation`: every cache on a catalog.
    pub fn register_catalog(&mut self, db: Oid, catalog: Oid) {
        self.current.catcache.push(InvalidationMessage::Catalog { db, catalog });
    }

    /// `RegisterSnapshotInvalidation`.
    pub fn register_snapshot(&mut self, db: Oid, catalog: Oid) {
        let message = InvalidationMessage::Snapshot { db, rel: catalog };
        if !self.current.relcache.iter().any(|known| *known == message) {
            self.current.relcache.push(message);
        }
    }

    /// The messages of the command that runs, in the order of their WAL record.
    #[must_use]
    pub fn command_messages(&self, order: MessageOrder) -> Vec<InvalidationMessage> {
        let mut messages = Vec::new();
        self.current.catcache.read(order, &mut messages);
        self.current.relcache.read(order, &mut messages);
        messages
    }

    /// `CommandEndInvalidationMessages`: the command's messages become prior.
    pub fn command_end(&mut self) {
        self.prior.append(&mut self.current);
    }

    /// `AtEOSubXact_Inval` of a committed subtransaction: its messages become its parent's.
    pub fn merge_committed(&mut self, mut child: InvalidationQueue) {
        child.prior.append(&mut child.current);
        self.prior.append(&mut child.prior);
        self.init_file |= child.init_file;
    }

    /// `xactGetCommittedInvalidationMessages`: all, in the order of the commit record (I3).
    #[must_use]
    pub fn committed(&self, order: MessageOrder) -> Vec<InvalidationMessage> {
        let (prior, current) = (&self.prior, &self.current);
        let lists = match order {
            MessageOrder::OldestFirst => [&prior.catcache, &current.catcache, &prior.relcache, &current.relcache],
            MessageOrder::NewestChunkFirst => [&current.catcache, &current.relcache, &prior.catcache, &prior.relcache],
        };
        let mut messages = Vec::new();
        lists.into_iter().for_each(|list| list.read(order, &mut messages));
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DB: Oid = Oid(5);

    /// A command's end, and what it logs.
    fn end(queue: &mut InvalidationQueue, order: MessageOrder) -> Vec<InvalidationMessage> {
        let messages = queue.command_messages(order);
        queue.command_end();
        messages
    }

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
        assert_eq!(
            end(&mut queue, MessageOrder::OldestFirst),
            [relcache(1), InvalidationMessage::Snapshot { db: DB, rel: Oid(2608) }]
        );
        queue.register_relcache(DB, Oid(1));
        assert_eq!(end(&mut queue, MessageOrder::OldestFirst), [relcache(1)], "the next command says it again");
    }

    #[test]
    fn i1_all_absorbs_what_follows() {
        let mut queue = InvalidationQueue::default();
        queue.register_relcache(DB, Oid::INVALID);
        queue.register_relcache(DB, Oid(1));
        assert_eq!(end(&mut queue, MessageOrder::OldestFirst), [relcache(0)]);
    }

    #[test]
    fn i2_catcache_messages_repeat() {
        let mut queue = InvalidationQueue::default();
        queue.register_catcache(57, DB, 1);
        queue.register_catcache(57, DB, 1);
        assert_eq!(end(&mut queue, MessageOrder::OldestFirst), [catcache(1), catcache(1)]);
    }

    #[test]
    fn i3_order_of_the_commit_record() {
        let mut queue = InvalidationQueue::default();
        queue.register_relcache(DB, Oid(1));
        queue.register_catcache(57, DB, 1);
        assert_eq!(end(&mut queue, MessageOrder::OldestFirst), [catcache(1), relcache(1)]);
        queue.register_relcache(DB, Oid(2));
        queue.register_catcache(57, DB, 2);
        assert_eq!(queue.committed(MessageOrder::OldestFirst), [catcache(1), catcache(2), relcache(1), relcache(2)]);
    }

    #[test]
    fn a_committed_child_comes_before_what_the_parent_does_next() {
        let mut parent = InvalidationQueue::default();
        parent.register_catcache(57, DB, 1);
        end(&mut parent, MessageOrder::OldestFirst);
        let mut child = InvalidationQueue::default();
        child.register_catcache(57, DB, 2);
        parent.merge_committed(child);
        parent.register_catcache(57, DB, 3);
        assert_eq!(parent.committed(MessageOrder::OldestFirst), [catcache(1), catcache(2), catcache(3)]);
    }

    #[test]
    fn i3_chained_chunks_come_newest_first() {
        let order = MessageOrder::NewestChunkFirst;
        let mut queue = InvalidationQueue::default();
        // Chunks of 32, 64 and what is left.
        (0..100).for_each(|hash| queue.register_catcache(57, DB, hash));
        let expected: Vec<_> = (96..100).chain(32..96).chain(0..32).map(catcache).collect();
        assert_eq!(end(&mut queue, order), expected);
        queue.register_catcache(57, DB, 100);
        end(&mut queue, order);
        queue.register_catcache(57, DB, 101);
        assert_eq!(queue.committed(order)[..3], [catcache(101), catcache(100), catcache(96)]);
    }
}
