//! The slots that writer and readers share: a log of chunks to which the writer only appends.
//!
//! ```text
//!  position  0 … 1023 │ 1024 … 2047 │ 2048 …            grows to the right, a position is used once
//!  chunks  [Arc<Chunk>]  [Arc<Chunk>]  [Arc<Chunk>]
//!                 ▲ base (index 0 of PostgreSQL's array)     ▲ base + head
//!                       ▲ base + tail
//! ```
//!
//! PostgreSQL's array indices are positions less `base`. Where PostgreSQL moves its contents (compression) or starts anew at 0
//! (empty array), a new `base` opens further right, and what was before stays as it was for the readers that still look at it.
//! The chunks go when the last view that needs them does.

use std::fmt;
use std::sync::Arc;

use pg_types::Xid;

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Slots of a chunk, a power of two: 16 kB.
#[cfg(not(loom))]
pub(crate) const CHUNK_SLOTS: usize = 1024;
/// Small, so that the model checker sees chunks change.
#[cfg(loom)]
pub(crate) const CHUNK_SLOTS: usize = 4;

/// A run of slots, each array in the order of their positions.
pub(crate) struct Chunk {
    /// The xid; written once, before the view that covers it is published.
    pub(crate) xid: [AtomicU32; CHUNK_SLOTS],
    /// When it ended: the view's count of ends just after; 0 while it runs. Written once.
    pub(crate) ended: [AtomicU32; CHUNK_SLOTS],
    /// What a reader learnt about the slots after this one (`skip_offset`); 0 is nothing.
    pub(crate) skip: [AtomicU64; CHUNK_SLOTS],
}

impl Chunk {
    /// A chunk of unused slots.
    fn new() -> Self {
        Self {
            xid: std::array::from_fn(|_| AtomicU32::new(0)),
            ended: std::array::from_fn(|_| AtomicU32::new(0)),
            skip: std::array::from_fn(|_| AtomicU64::new(0)),
        }
    }
}

/// A stretch of the log. Immutable itself; its slots are shared with longer and shorter stretches.
#[derive(Clone)]
pub(crate) struct SlotLog {
    /// Position of the first slot of the first chunk, a multiple of [`CHUNK_SLOTS`].
    first: u64,
    /// The chunks, without gaps.
    chunks: Vec<Arc<Chunk>>,
}

impl fmt::Debug for SlotLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotLog").field("first", &self.first).field("chunks", &self.chunks.len()).finish()
    }
}

impl SlotLog {
    /// An empty stretch at position 0.
    pub(crate) fn new() -> Self {
        Self { first: 0, chunks: Vec::new() }
    }

    /// One past the last position there is room for.
    pub(crate) fn end(&self) -> u64 {
        self.first + (self.chunks.len() * CHUNK_SLOTS) as u64
    }

    /// The stretch that begins with the chunk of `keep` and has room up to `end`; shares the chunks that both have.
    pub(crate) fn extended(&self, keep: u64, end: u64) -> Self {
        let chunk = CHUNK_SLOTS as u64;
        let first = keep / chunk * chunk;
        let dropped = ((first.saturating_sub(self.first) / chunk) as usize).min(self.chunks.len());
        let wanted = end.saturating_sub(first).div_ceil(chunk) as usize;
        let mut chunks = Vec::with_capacity(wanted);
        chunks.extend(self.chunks[dropped..].iter().cloned());
        chunks.resize_with(wanted.max(chunks.len()), || Arc::new(Chunk::new()));
        Self { first, chunks }
    }

    /// The chunk of a position and the slot in it.
    #[inline]
    pub(crate) fn at(&self, position: u64) -> (&Chunk, usize) {
        let offset = (position - self.first) as usize;
        (&self.chunks[offset / CHUNK_SLOTS], offset % CHUNK_SLOTS)
    }

    /// The xid of a slot.
    #[inline]
    pub(crate) fn xid(&self, position: u64) -> Xid {
        let (chunk, slot) = self.at(position);
        Xid(chunk.xid[slot].load(Ordering::Relaxed))
    }

    /// When a slot ended, 0 if it runs.
    #[inline]
    pub(crate) fn ended(&self, position: u64) -> u32 {
        let (chunk, slot) = self.at(position);
        chunk.ended[slot].load(Ordering::Relaxed)
    }

    /// Fills an unused slot.
    pub(crate) fn put(&self, position: u64, xid: Xid) {
        let (chunk, slot) = self.at(position);
        chunk.xid[slot].store(xid.0, Ordering::Relaxed);
    }

    /// Notes the end of a running slot.
    pub(crate) fn end_slot(&self, position: u64, stamp: u32) {
        let (chunk, slot) = self.at(position);
        debug_assert_eq!(chunk.ended[slot].load(Ordering::Relaxed), 0, "a slot ends once");
        chunk.ended[slot].store(stamp, Ordering::Relaxed);
    }

    /// Bytes of the chunks of this stretch.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.chunks.len() * (size_of::<Chunk>() + size_of::<Arc<Chunk>>())
    }
}
