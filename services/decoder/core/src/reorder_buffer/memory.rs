//! Memory of the reorder buffer: what changes count for, and what is written out when they are too many
//! (`ReorderBufferChangeMemoryUpdate`, `ReorderBufferCheckMemoryLimit`, `ReorderBufferSerializeTXN`, `ReorderBufferRestoreChanges`).
//!
//! A transaction may be larger than the memory. So the bytes of all changes are added up, and when they reach the limit the
//! largest (sub)transaction is written to spill files and its memory is free again. When it commits, its changes are read back
//! a part at a time, merged with those of its subtransactions.
//!
//! ```text
//!   queue ─► size, total ─► total ≥ work_mem? ─► largest ─┬─► write_out ─► files per (xid, segment) ─► restore, a part at a time
//!                                                         └─► dropped, if it is known to be rolled back
//! ```
//!
//! Invariants: I1 `total` is the sum of all transactions' sizes, those being replayed included; I2 after each queued change
//! `total` is below the limit (unless eviction goes by number of changes); I3 parts read back take at most 8 MiB together, or one
//! change each; so no transaction, however large, needs more than the limit and that; I4 a top-level transaction's total size is the
//! sum of its and its subtransactions' sizes.
//!
//! | operation | cost |
//! |---|---|
//! | queue a change | O(1), and with a heap its upkeep |
//! | find a victim | all transactions, or O(log n) |
//! | write out, restore n changes | O(n) |
//!
//! Counted are the transactions that a scan looks at, and those that the heap compares when a victim leaves it; not its upkeep
//! between evictions, which is a comparison a change as a rule.
//!
//! Differences from PostgreSQL: of several rows in one record each counts for the mean of them; parts end at 4096 changes as
//! there, but also where 8 MiB divided by the number of streams is reached; invalidation messages stay in memory, since the
//! end of the transaction needs all of them, and count only as long as their change does.

use pg_types::record::{LogicalMessageRecord, TruncateRecord};
use pg_types::{Lsn, Work};

use crate::profile::{AbortedVictims, Eviction, Profile, StreamVictim};
use crate::reorder_buffer::ReorderBuffer;
use crate::reorder_buffer::change::ChangeKind;
use crate::reorder_buffer::change_size;
use crate::reorder_buffer::spill_format::{self, FRAME_HEADER_LEN};
use crate::reorder_buffer::streaming::Room;
use crate::reorder_buffer::txn::Txn;
use crate::reorder_buffer::txn_heap::TxnHeap;
use crate::spill::{MemorySpill, SpillError, SpillFailure, SpillFile, SpillStore, TransactionStatus};
use crate::work_mem::WorkMem;

/// Changes that are written out together up to 12, and read back at a time (`max_changes_in_memory`).
pub(crate) const CHANGES_IN_MEMORY_MAX: u64 = 4096;

/// Bytes of a spill file that are written or read at a time, unless a change is larger.
const IO_BYTES: usize = 256 << 10;

/// Bytes that all parts read back in a replay may count for together, unless they are single changes.
const PARTS_BYTES_MAX: u64 = 8 << 20;

/// Fewer are not worth a read.
const IO_BYTES_MIN: u64 = 4096;

/// Buckets of the table of transactions (`by_txn`, made for 1000), as long as not more are live.
const BY_TXN_BUCKETS: u32 = 1024;

/// `hash_bytes_uint32` (`common/hashfn.c`): the hash of an xid in that table.
fn hash_uint32(key: u32) -> u32 {
    let seed = 0x9e37_79b9u32.wrapping_add(4).wrapping_add(3_923_095);
    let (mut a, mut b, mut c) = (seed.wrapping_add(key), seed, seed);
    let mix = |x: &mut u32, with: u32, rotate: u32| *x = (*x ^ with).wrapping_sub(with.rotate_left(rotate));
    mix(&mut c, b, 14);
    mix(&mut a, c, 11);
    mix(&mut b, a, 25);
    mix(&mut c, b, 16);
    mix(&mut a, c, 4);
    mix(&mut b, a, 14);
    mix(&mut c, b, 24);
    c
}

/// The memory.
#[derive(Debug)]
pub(crate) struct Memory {
    /// The limit, in bytes.
    limit: u64,
    /// When transactions leave.
    eviction: Eviction,
    /// What becomes of rolled-back ones.
    aborted_victims: AbortedVictims,
    /// Bytes of all changes in memory.
    pub(crate) total: u64,
    /// The highest that `total` ever was.
    pub(crate) peak: u64,
    /// Transactions by size, if the profile keeps them so.
    heap: TxnHeap,
    /// The files.
    pub(crate) store: Box<dyn SpillStore>,
    /// What is known of transactions' ends.
    pub(crate) status: Option<Box<dyn TransactionStatus>>,
    /// All work that was noted with some transaction.
    pub(crate) noted: Work,
    /// Which transaction is given out in part.
    stream_victim: StreamVictim,
    /// Bytes that a part read back may count for, during the replay at hand.
    part_bytes: u64,
    /// Reused: bytes to be written, or read.
    bytes: Vec<u8>,
}

impl Default for Memory {
    fn default() -> Self {
        Self::new(WorkMem::default(), &Profile::indexed())
    }
}

impl Memory {
    /// An empty one.
    pub(crate) fn new(work_mem: WorkMem, profile: &Profile) -> Self {
        Self {
            limit: work_mem.bytes(),
            eviction: profile.eviction,
            aborted_victims: profile.aborted_victims,
            total: 0,
            peak: 0,
            heap: TxnHeap::default(),
            store: Box::<MemorySpill>::default(),
            status: None,
            noted: Work::default(),
            stream_victim: profile.stream_victim,
            part_bytes: 0,
            bytes: Vec::new(),
        }
    }

    /// `ReorderBufferChangeMemoryUpdate`: the transaction in slot `at` has `size` bytes now; `total` knows already. Gives how
    /// many others the heap looked at.
    fn resize(&mut self, at: u32, size: u64) -> u64 {
        self.peak = self.peak.max(self.total);
        if self.eviction == Eviction::LargestByHeap { self.heap.set(at, size) } else { 0 }
    }

    /// The transaction in slot `at` is taken out to be replayed or forgotten; its bytes still count.
    pub(crate) fn leave(&mut self, at: u32) {
        if self.eviction == Eviction::LargestByHeap {
            self.heap.set(at, 0);
        }
    }

    /// Counts work, and notes it with its transaction and with the sum.
    fn note(&mut self, txn: &mut Txn, done: Work, work: &mut Work) {
        txn.noted += done;
        self.noted += done;
        *work += done;
    }

    /// `ReorderBufferSerializeTXN` for one transaction: its changes go to the files.
    fn write_out(&mut self, txn: &mut Txn, work: &mut Work) -> Result<(), SpillError> {
        txn.serialized = true;
        if txn.changes.is_empty() {
            return Ok(());
        }
        let first = !std::mem::replace(&mut txn.ever_serialized, true);
        let mut file = SpillFile::of(txn.xid, txn.changes[0].lsn);
        self.bytes.clear();
        for i in 0..txn.changes.len() {
            let change = txn.changes[i];
            let next = SpillFile::of(txn.xid, change.lsn);
            if next != file || self.bytes.len() >= IO_BYTES {
                self.append(txn, file)?;
                file = next;
            }
            spill_format::write(txn, &change, &mut self.bytes);
        }
        self.append(txn, file)?;
        let done = Work { spill_txns: u64::from(first), spill_count: 1, spill_bytes: txn.size, ..Work::default() };
        self.note(txn, done, work);
        self.empty(txn);
        Ok(())
    }

    /// Appends the collected bytes to a file of `txn`.
    fn append(&mut self, txn: &mut Txn, file: SpillFile) -> Result<(), SpillError> {
        if txn.files.last().is_none_or(|(last, _)| *last != file) {
            txn.files.push((file, 0));
        }
        self.store.append(file, &self.bytes)?;
        if let Some((_, len)) = txn.files.last_mut() {
            *len += self.bytes.len() as u64;
        }
        self.bytes.clear();
        Ok(())
    }

    /// Takes a transaction's changes out of the memory.
    fn empty(&mut self, txn: &mut Txn) {
        self.total -= std::mem::take(&mut txn.size);
        txn.clear_changes();
    }

    /// Forgets everything that a transaction keeps here: it is over, or known to be rolled back.
    pub(crate) fn forget(&mut self, txn: &mut Txn) -> Result<(), SpillError> {
        self.empty(txn);
        (txn.entries, txn.serialized, txn.cursor, txn.restored) = (0, false, (0, 0), 0);
        txn.files.drain(..).try_for_each(|(file, _)| self.store.remove(file))
    }

    /// `ReorderBufferIterTXNInit`: what is left in memory of transactions that were written out follows them, and the first
    /// part of each is read back. `tree` begins with the top-level one.
    pub(crate) fn begin_replay(&mut self, tree: &mut [Txn], work: &mut Work) -> Result<(), SpillError> {
        let Some((top, subtxns)) = tree.split_first_mut() else { return Ok(()) };
        if top.serialized && top.entries > 0 {
            subtxns.iter_mut().try_for_each(|sub| self.write_out(sub, work))?;
            self.write_out(top, work)?;
        }
        let streams = tree.iter().filter(|txn| txn.serialized && txn.entries > 0).count() as u64;
        self.part_bytes = self.limit.min(PARTS_BYTES_MAX) / streams.max(1);
        for txn in tree.iter_mut().filter(|txn| txn.serialized && txn.entries > 0) {
            self.write_out(txn, work)?;
            self.restore(txn, work)?;
        }
        Ok(())
    }

    /// `ReorderBufferRestoreChanges`: replaces the changes in memory by the next part of a transaction's files. Gives whether
    /// there was one.
    pub(crate) fn restore(&mut self, txn: &mut Txn, work: &mut Work) -> Result<bool, SpillError> {
        self.empty(txn);
        let (mut entries, before) = (0, txn.restored);
        while let Some((file, len)) = txn.files.get(txn.cursor.0).copied() {
            if txn.cursor.1 >= len {
                txn.cursor = (txn.cursor.0 + 1, 0);
                continue;
            }
            if entries >= CHANGES_IN_MEMORY_MAX || (entries > 0 && txn.size >= self.part_bytes) {
                break;
            }
            entries += self.restore_from(txn, file, len, entries)?;
        }
        if txn.cursor.0 >= txn.files.len() && before + entries != txn.entries {
            let reason = format!("all files hold {} changes instead of {}", before + entries, txn.entries);
            let file = txn.files.last().map(|(file, _)| self.store.name(*file)).unwrap_or_default();
            return Err(SpillError { action: "read", file, reason, failure: SpillFailure::Damaged });
        }
        txn.restored += entries;
        work.changes_restored += entries;
        self.peak = self.peak.max(self.total);
        Ok(entries > 0)
    }

    /// One read of a file, as far as the part allows; `before` entries are in the part already. Gives how many it added.
    fn restore_from(&mut self, txn: &mut Txn, file: SpillFile, len: u64, before: u64) -> Result<u64, SpillError> {
        let start = txn.cursor.1;
        let name = self.store.name(file);
        let damaged = |offset: u64, reason: String| SpillError {
            action: "read",
            file: name.clone(),
            reason: format!("the change at byte {offset} is damaged: {reason}"),
            failure: SpillFailure::Damaged,
        };
        let want = self.part_bytes.clamp(IO_BYTES_MIN, IO_BYTES as u64).min(len - start);
        self.fill(file, start, want as usize)?;
        if let Some(frame) = spill_format::frame_len(&self.bytes).filter(|frame| *frame > self.bytes.len()) {
            if frame as u64 > len - start {
                return Err(damaged(start, "its length reaches beyond the end of the file".to_owned()));
            }
            self.fill(file, start, frame)?;
        }
        let (mut entries, mut at) = (0, 0);
        while before + entries < CHANGES_IN_MEMORY_MAX && (before + entries == 0 || txn.size < self.part_bytes) {
            let rest = &self.bytes[at..];
            let Some(frame) = spill_format::frame_len(rest).and_then(|n| rest.get(..n)) else { break };
            let change = spill_format::read(frame, txn).map_err(|reason| damaged(start + at as u64, reason.to_owned()))?;
            at += frame.len();
            (txn.size, self.total) = (txn.size + u64::from(change.bytes), self.total + u64::from(change.bytes));
            entries += u64::from(change.kind.entries());
        }
        if at == 0 {
            return Err(damaged(start, format!("{} bytes are too few for it", self.bytes.len())));
        }
        txn.cursor.1 += at as u64;
        Ok(entries)
    }

    /// Reads `want` bytes, or as many as there are.
    fn fill(&mut self, file: SpillFile, offset: u64, want: usize) -> Result<(), SpillError> {
        self.bytes.resize(want.max(FRAME_HEADER_LEN), 0);
        let n = self.store.read(file, offset, &mut self.bytes)?;
        self.bytes.truncate(n);
        Ok(())
    }
}

impl ReorderBuffer {
    /// `ReorderBufferQueueChange`: appends a change that counts for `bytes` to the transaction in slot `at`, then makes room if
    /// there is too much.
    ///
    /// # Errors
    /// Changes could not be written out.
    pub(crate) fn queue(
        &mut self,
        at: u32,
        lsn: Lsn,
        kind: ChangeKind,
        bytes: u64,
        room: &mut dyn Room,
    ) -> Result<(), SpillError> {
        let (txn, memory) = (&mut self.txns[at as usize], &mut self.memory);
        if txn.aborted {
            return Ok(());
        }
        let before = txn.size;
        txn.push(lsn, kind, bytes);
        let (size, added) = (txn.size, txn.size - before);
        memory.total += added;
        memory.resize(at, size);
        let top = self.top_of(at);
        let head = &mut self.txns[top as usize];
        head.total_size += added;
        head.streaming.queued(kind);
        if self.memory.eviction == Eviction::AtChanges {
            if self.get(at).entries_in_memory >= CHANGES_IN_MEMORY_MAX {
                self.evict(at, lsn, room.work())?;
            }
            return Ok(());
        }
        // What could not be given out when it was too much is, as soon as it is complete.
        if room.may_start() && self.get(at).serialized && self.is_streamable(top) {
            room.stream(self, top)?;
        }
        self.make_room(lsn, room)
    }

    /// `ReorderBufferCheckMemoryLimit`: until there is less than the limit, the largest transaction in progress is given out or, if
    /// none can be, the largest (sub)transaction is written out.
    fn make_room(&mut self, lsn: Lsn, room: &mut dyn Room) -> Result<(), SpillError> {
        while self.memory.total >= self.memory.limit {
            if let Some(top) = room.may_start().then(|| self.largest_streamable(room.work())).flatten() {
                match self.is_known_aborted(top, lsn) {
                    true => self.evict(top, lsn, room.work())?,
                    false => room.stream(self, top)?,
                }
                continue;
            }
            let Some(largest) = self.largest(room.work()) else { return Ok(()) };
            self.evict(largest, lsn, room.work())?;
        }
        Ok(())
    }

    /// Whether a top-level transaction may be given out as far as it is, however small.
    fn is_streamable(&self, top: u32) -> bool {
        let txn = self.get(top);
        let shows = match self.memory.stream_victim {
            StreamVictim::Never => false,
            StreamVictim::Largest => true,
            StreamVictim::LargestWithRows => txn.streaming.streamable,
        };
        shows && txn.has_base_snapshot() && !txn.streaming.partial && !txn.aborted
    }

    /// `ReorderBufferLargestStreamableTopTXN`: the one with most bytes in memory, the first of equals.
    fn largest_streamable(&self, work: &mut Work) -> Option<u32> {
        let mut largest: Option<u32> = None;
        for at in self.toplevel() {
            work.transactions_visited += 1;
            let size = self.get(at).total_size;
            if size > largest.map_or(0, |largest| self.get(largest).total_size) && self.is_streamable(at) {
                largest = Some(at);
            }
        }
        largest
    }

    /// Whether a victim is known to be rolled back, and the profile asks.
    fn is_known_aborted(&mut self, at: u32, lsn: Lsn) -> bool {
        let xid = self.get(at).xid;
        let asks = self.memory.aborted_victims == AbortedVictims::Dropped;
        asks && self.memory.status.as_mut().is_some_and(|status| status.is_aborted(xid, lsn))
    }

    /// Of so many rows of one record, together `bytes`: how many can be queued until the limit is reached, and their bytes; none
    /// if all can.
    pub(crate) fn rows_that_fit(&self, at: u32, rows: u16, bytes: u64) -> Option<(u16, u64)> {
        let (txn, memory) = (self.get(at), &self.memory);
        let each = bytes / u64::from(rows.max(1));
        let fit = match memory.eviction {
            Eviction::AtChanges => CHANGES_IN_MEMORY_MAX - txn.entries_in_memory,
            _ => memory.limit.saturating_sub(memory.total).div_ceil(each.max(1)),
        };
        let fit = u16::try_from(fit).ok().filter(|fit| (1..rows).contains(fit) && !txn.aborted)?;
        Some((fit, each * u64::from(fit)))
    }

    /// Queues a TRUNCATE.
    ///
    /// # Errors
    /// As [`ReorderBuffer::queue`].
    pub(crate) fn queue_truncate(
        &mut self,
        at: u32,
        lsn: Lsn,
        truncate: &TruncateRecord,
        room: &mut dyn Room,
    ) -> Result<(), SpillError> {
        let txn = &mut self.txns[at as usize];
        let index = txn.truncates.len() as u32;
        if !txn.aborted {
            txn.truncates.push(truncate.clone());
        }
        self.queue(at, lsn, ChangeKind::Truncate(index), change_size::truncate(truncate.relids.len()), room)
    }

    /// Queues a logical message (`ReorderBufferQueueMessage`).
    ///
    /// # Errors
    /// As [`ReorderBuffer::queue`].
    pub(crate) fn queue_message(
        &mut self,
        at: u32,
        lsn: Lsn,
        message: &LogicalMessageRecord,
        room: &mut dyn Room,
    ) -> Result<(), SpillError> {
        let txn = &mut self.txns[at as usize];
        let index = txn.logical.len() as u32;
        if !txn.aborted {
            txn.logical.push(message.clone());
        }
        self.queue(at, lsn, ChangeKind::Message(index), change_size::message(message), room)
    }

    /// `ReorderBufferLargestTXN`: the (sub)transaction with most bytes in memory.
    ///
    /// Among equals a scan takes the one it meets first, which is a matter of their hash.
    fn largest(&self, work: &mut Work) -> Option<u32> {
        if self.memory.eviction == Eviction::LargestByHeap {
            work.transactions_visited += 1;
            return self.memory.heap.largest();
        }
        work.transactions_visited += self.len() as u64;
        let (mut largest, mut ties) = (0, 0);
        let mut found = None;
        for (at, txn) in self.txns.iter().enumerate() {
            if txn.size < largest.max(1) {
                continue;
            }
            let bucket = hash_uint32(txn.xid.0) & (BY_TXN_BUCKETS - 1);
            if txn.size > largest || bucket < ties {
                (largest, ties, found) = (txn.size, bucket, Some(at as u32));
            }
        }
        found
    }

    /// Takes a transaction's changes out of the memory: to the files, or away if it is known to be rolled back.
    fn evict(&mut self, at: u32, lsn: Lsn, work: &mut Work) -> Result<(), SpillError> {
        let aborted = self.is_known_aborted(at, lsn);
        let done = Work { evictions: 1, ..Work::default() };
        self.memory.note(&mut self.txns[at as usize], done, work);
        for i in 0..self.txns[at as usize].subtxns.len() {
            let (sub, sub_xid) = self.txns[at as usize].subtxns[i];
            if self.txns[sub as usize].xid == sub_xid && self.txns[sub as usize].top == Some(at) {
                self.evict_one(sub, aborted, work)?;
            }
        }
        self.evict_one(at, aborted, work)?;
        self.txns[at as usize].aborted = aborted;
        Ok(())
    }

    /// The same for it alone (`ReorderBufferSerializeTXN` or `ReorderBufferTruncateTXN`).
    fn evict_one(&mut self, at: u32, aborted: bool, work: &mut Work) -> Result<(), SpillError> {
        let (txn, memory) = (&mut self.txns[at as usize], &mut self.memory);
        let freed = txn.size;
        if aborted {
            memory.forget(txn)?;
        } else {
            memory.write_out(txn, work)?;
        }
        work.transactions_visited += memory.resize(at, 0);
        let top = self.top_of(at);
        self.txns[top as usize].total_size -= freed;
        Ok(())
    }

    /// Checks I1 and the heap.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn check_memory(&self) {
        let sum: u64 = self.txns.iter().map(|txn| txn.size).sum();
        assert_eq!(sum, self.memory.total, "I1");
        for (at, txn) in self.txns.iter().enumerate() {
            let counted: u64 = txn.changes.iter().map(|change| u64::from(change.bytes)).sum();
            assert_eq!(counted, txn.size, "I1");
            if self.memory.eviction == Eviction::LargestByHeap {
                assert_eq!(self.memory.heap.size_of(at as u32), txn.size, "the heap knows every size");
            }
            if txn.top.is_none() && txn.xid.is_valid() {
                let sum: u64 = self.slots_of(at as u32).iter().map(|at| self.get(*at).size).sum();
                assert_eq!(sum, txn.total_size, "I4");
            }
        }
    }
}
