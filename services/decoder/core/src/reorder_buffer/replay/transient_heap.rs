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

use pg_types::{InvalidationMessage, Oid, RelFileLocator};

use super::Replay;
use crate::reorder_buffer::txn::Txn;

/// Files of a transaction that may be such heaps.
#[derive(Clone, Debug, Default)]
pub(crate) struct TransientHeaps {
    /// Files that rows were in, and what was found out of each.
    files: Vec<HeapFile>,
    /// Relations that the messages of earlier blocks name, in their order.
    named: Vec<Oid>,
}

/// One file.
#[derive(Clone, Copy, Debug)]
struct HeapFile {
    /// The file.
    file: RelFileLocator,
    /// The command id, and how many records had told messages, when it was found out.
    at: (u32, usize),
    /// A rewrite is filling it.
    transient: bool,
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
        let at = (self.command_id, self.with.buffers.told.len());
        let known = self.with.buffers.heaps.files.iter().position(|known| known.file == file);
        if let Some(found) = known.map(|i| self.with.buffers.heaps.files[i]).filter(|found| found.at == at) {
            return found.transient;
        }
        let heap = Oid(file.rel);
        let transient = if tree[0].messages.is_empty() {
            known.is_none() && named(self.messages).any(|rel| rel == heap)
        } else {
            let mut since = self.named_before(tree).skip_while(|rel| *rel != heap).peekable();
            since.peek().is_some() && since.all(|rel| rel != oid)
        };
        let found = HeapFile { file, at, transient };
        match known {
            Some(i) => self.with.buffers.heaps.files[i] = found,
            None => self.with.buffers.heaps.files.push(found),
        }
        transient
    }

    /// The relations that own messages have named so far, in their order.
    fn named_before<'t>(&'t self, tree: &'t [Txn]) -> impl Iterator<Item = Oid> + 't {
        let told = &self.with.buffers.told;
        let here = told.iter().flat_map(|(place, range)| named(&tree[*place].messages[range.clone()]));
        self.with.buffers.heaps.named.iter().copied().chain(here)
    }

    /// What the next block must know.
    pub(super) fn end_of_heaps(&mut self, tree: &[Txn]) -> TransientHeaps {
        let named = self.named_before(tree).collect();
        // Records are counted anew there.
        TransientHeaps { files: Vec::new(), named }
    }
}

/// The relations that messages name.
fn named(messages: &[InvalidationMessage]) -> impl Iterator<Item = Oid> {
    messages.iter().filter_map(|message| match message {
        InvalidationMessage::Relcache { rel, .. } => Some(*rel),
        _ => None,
    })
}
