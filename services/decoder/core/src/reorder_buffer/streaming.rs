//! Gives out transactions in blocks before their end is known: `ReorderBufferStreamTXN` of `replication/logical/reorderbuffer.c`.
//!
//! A consumer that takes transactions in progress (`streaming` of CREATE SUBSCRIPTION, `stream-changes` of test_decoding) lets a
//! large one go when the memory is full, instead of writing it out. Its end comes later: commit, or abort of it or of
//! a subtransaction, whose changes the consumer then forgets.
//!
//! ```text
//!   queue ─► total ≥ work_mem ─► largest complete top-level one ─► block: start, changes, stop ─► again …  ─► block ─► commit
//!                                  └ none ─► written out ─► block as soon as it is complete                  └► abort
//! ```
//!
//! Invariants: I1 blocks, less the changes of subtransactions that were rolled back, are what the transaction gives out at
//! its commit otherwise; I2 no block ends between TOAST chunks and their row, nor between a speculative insert and its end;
//! I3 after a block no cached entry is named by a message of the transaction, as after a replay.
//!
//! | operation | cost |
//! |---|---|
//! | find a victim | all top-level transactions |
//! | a block | its changes, and all messages of the transaction so far (`indexed`: those of what is loaded, if the block loaded anything) |
//!
//! Differences from PostgreSQL: a subtransaction is told to be rolled back if any of its changes was in a block, PostgreSQL
//! leaves that out after more than 4096 spilled ones. A block goes on behind the changes of a subtransaction of which it is found that
//! it was rolled back meanwhile; PostgreSQL ends it there, and forgets what others changed behind. A decoder that goes on for another can be told what that one gave out
//! ([`crate::Decoder::streamed_before`]); a walsender begins each transaction in progress anew.

use std::collections::BTreeMap;

use pg_types::{Lsn, Work};

use crate::invalidation::Caches;
use crate::output::OutputSink;
use crate::profile::{EndMessages, MessageRule, Profile, RepeatedMessages};
use crate::publications::Publications;
use crate::relations::Relations;
use crate::reorder_buffer::ReorderBuffer;
use crate::reorder_buffer::change::{ChangeKind, Completeness};
use crate::reorder_buffer::distribution::CatalogCommits;
use crate::reorder_buffer::replay::{Replay, ReplayBuffers, TransientHeaps};
use crate::spill::SpillError;

/// What was given out of a transaction so far, and with what the next block begins.
#[derive(Debug, Default)]
pub(crate) struct StreamState {
    /// Anything was (`RBTXN_IS_STREAMED`).
    pub(crate) streamed: bool,
    /// The last change that a decoder before this one gave out; told of the top-level transaction.
    pub(crate) streamed_before: Lsn,
    /// Something must follow before more can be (`RBTXN_HAS_PARTIAL_CHANGE`); told of the top-level transaction.
    pub(crate) partial: bool,
    /// There is something to show (`RBTXN_HAS_STREAMABLE_CHANGE`); told of the top-level transaction.
    pub(crate) streamable: bool,
    /// The command id of the last block's end (`command_id`).
    pub(crate) command_id: u32,
    /// Where the snapshot of the last block's end was made (`snapshot_now`).
    pub(crate) snapshot_lsn: Lsn,
    /// What nothing was cached of any more at the last block's end.
    pub(crate) dropped: Dropped,
    /// Heaps that a rewrite fills.
    pub(crate) heaps: TransientHeaps,
    /// What was done to each relation, by its number.
    pub(crate) shown: BTreeMap<u32, Shown>,
    /// Logical messages shown.
    pub(crate) logical: u64,
}

impl StreamState {
    /// A change was queued (`ReorderBufferProcessPartialChange`).
    pub(crate) fn queued(&mut self, kind: ChangeKind) {
        self.streamable |= kind.is_streamable();
        match kind.completeness() {
            Completeness::Partial => self.partial = true,
            Completeness::Completes => self.partial = false,
            Completeness::Neutral => {}
        }
    }
}

/// Messages of which nothing that they name was cached at some time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Dropped {
    /// So many of the transaction's own.
    pub(crate) own: usize,
    /// On demand: those of commits up to this number.
    pub(crate) commits: u32,
    /// What had been loaded until then.
    pub(crate) loads: u64,
}

/// What was shown of one relation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shown {
    /// Where it was met first, and as which of its block.
    pub(crate) first: (Lsn, usize),
    /// Inserts, updates, deletes, truncates.
    pub(crate) counts: [u64; 4],
}

impl Shown {
    /// Adds what came later.
    pub(crate) fn add(&mut self, later: Shown) {
        self.counts.iter_mut().zip(later.counts).for_each(|(sum, n)| *sum += n);
    }
}

/// What replays use, one after another.
#[derive(Debug)]
pub(crate) struct Replayer {
    /// What decoding looks up and messages drop.
    pub(crate) caches: Caches,
    /// Names.
    pub(crate) relations: Relations,
    /// What the subscriber wants, if it asked for publications.
    pub(crate) publications: Option<Publications>,
    /// On demand: commits to catch up with.
    pub(crate) commits: CatalogCommits,
    /// When messages are executed.
    pub(crate) rule: MessageRule,
    /// Whether repeated ones are.
    pub(crate) repeated: RepeatedMessages,
    /// Which are at the end.
    pub(crate) at_end: EndMessages,
    /// Reused memory.
    pub(crate) buffers: ReplayBuffers,
    /// Transactions in progress may be given out now (`ReorderBufferCanStartStreaming`).
    pub(crate) may_start: bool,
}

impl Replayer {
    /// With empty caches.
    pub(crate) fn new(caches: Caches, relations: Relations, profile: &Profile) -> Self {
        Self {
            caches,
            relations,
            publications: None,
            commits: CatalogCommits::default(),
            rule: profile.message_rule,
            repeated: profile.repeated_messages,
            at_end: profile.end_messages,
            buffers: ReplayBuffers::default(),
            may_start: false,
        }
    }

    /// Room for changes, made by giving transactions to `sink`.
    pub(crate) fn room<'a>(&'a mut self, sink: &'a mut dyn OutputSink) -> Streamer<'a> {
        Streamer { replayer: self, sink }
    }
}

/// Makes room in the memory.
pub(crate) trait Room {
    /// Where work is counted.
    fn work(&mut self) -> &mut Work;

    /// Transactions in progress may be given out now.
    fn may_start(&self) -> bool {
        false
    }

    /// Gives out what there is of the top-level transaction in slot `top`, if it may.
    ///
    /// # Errors
    /// What had been written out could not be read back.
    fn stream(&mut self, rb: &mut ReorderBuffer, top: u32) -> Result<(), SpillError> {
        let _ = (rb, top);
        Ok(())
    }
}

/// Counts only.
impl Room for Work {
    fn work(&mut self) -> &mut Work {
        self
    }
}

/// Gives transactions out.
pub(crate) struct Streamer<'a> {
    /// With what.
    replayer: &'a mut Replayer,
    /// To whom.
    sink: &'a mut dyn OutputSink,
}

impl Room for Streamer<'_> {
    fn work(&mut self) -> &mut Work {
        &mut self.replayer.caches.work
    }

    fn may_start(&self) -> bool {
        self.replayer.may_start
    }

    fn stream(&mut self, rb: &mut ReorderBuffer, top: u32) -> Result<(), SpillError> {
        let mut lent = rb.lend(top);
        let newest = self.replayer.commits.newest();
        let done = Replay::new(self.replayer, self.sink, &[], newest).block(&mut lent.tree, &mut rb.memory);
        rb.take_back(lent);
        done
    }
}
