//! Heaps that a rewrite fills (`relrewrite` of pg_class): their rows are not given out.
//!
//! PostgreSQL reads in pg_class whether a file's relation is such a heap. A copy of the catalogs knows the file as that of the rewritten
//! table, as it is from the swap on, so where in the transaction the swap is must be told by messages:
//!
//! ```text
//!   heap made ─► [its oid, the number of the file] ─► rows: not given out ─► files swapped ─► [the table, the heap] ─► rows: the table's
//! ```
//!
//! Up to 13 no record tells messages before the commit. Then a file of a heap is taken to be filled in the command in which its first row
//! comes. So the first rows of a table that was empty when it was rewritten, in the same transaction, are not given out.

use std::ops::Range;

use pg_types::{InvalidationMessage, Oid, RelFileLocator};
use rustc_hash::FxHashMap;

use super::Replay;
use crate::reorder_buffer::txn::Txn;

/// Files of a transaction that may be such heaps.
#[derive(Debug, Default)]
pub(crate) struct TransientHeaps {
    /// Files that rows were in: where it was found out that a rewrite is filling it, by command id and records that had told messages; none if
    /// it does not, and it never will: its heap is made before its rows.
    files: FxHashMap<RelFileLocator, Option<(u32, usize)>>,
    /// Relations that the messages of earlier blocks name, in their order.
    named: Vec<Oid>,
}

impl TransientHeaps {
    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.files.clear();
        self.named.clear();
    }
}

impl Replay<'_> {
    /// Whether `file`, that of the relation `oid` in the end, is being filled by a rewrite at the change at hand, of a transaction of `tree`.
    pub(super) fn is_transient(&mut self, file: RelFileLocator, oid: Oid, tree: &[Txn]) -> bool {
        let own = &tree[0].messages;
        if own.is_empty() && self.messages.is_empty() {
            return false;
        }
        let at = (self.command_id, self.with.buffers.told.len());
        let before = self.with.buffers.heaps.files.get(&file).copied();
        if let Some(found) = before.filter(|found| found.is_none_or(|found| found == at)) {
            return found.is_some();
        }
        let heap = Oid(file.rel);
        let transient = if own.is_empty() {
            before.is_none() && named(self.messages).any(|rel| rel == heap)
        } else {
            let mut since = self.named_before(tree).skip_while(|rel| *rel != heap).peekable();
            since.peek().is_some() && since.all(|rel| rel != oid)
        };
        self.with.buffers.heaps.files.insert(file, transient.then_some(at));
        transient
    }

    /// The relations that own messages have named so far, in their order.
    fn named_before<'t>(&'t self, tree: &'t [Txn]) -> impl Iterator<Item = Oid> + 't {
        self.with.buffers.heaps.named.iter().copied().chain(named_here(&self.with.buffers.told, tree))
    }

    /// What the next block must know.
    pub(super) fn end_of_heaps(&mut self, tree: &[Txn]) -> TransientHeaps {
        let mut heaps = std::mem::take(&mut self.with.buffers.heaps);
        heaps.named.extend(named_here(&self.with.buffers.told, tree));
        // Records are counted anew there.
        heaps.files.clear();
        heaps
    }
}

/// The relations that messages name of which this replay's records told, by place in `tree` and among its messages.
fn named_here<'t>(told: &'t [(usize, Range<usize>)], tree: &'t [Txn]) -> impl Iterator<Item = Oid> + 't {
    told.iter().flat_map(|(place, range)| named(&tree[*place].messages[range.clone()]))
}

/// The relations that messages name.
fn named(messages: &[InvalidationMessage]) -> impl Iterator<Item = Oid> {
    messages.iter().filter_map(|message| match message {
        InvalidationMessage::Relcache { rel, .. } => Some(*rel),
        _ => None,
    })
}
