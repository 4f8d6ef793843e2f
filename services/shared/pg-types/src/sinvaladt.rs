//! The shared queue of invalidation messages: `storage/ipc/sinvaladt.c` and `sinval.c`.
//!
//! A backend that commits puts its messages into a ring that all backends read. Who lags behind by a whole ring loses messages;
//! it is not told which, but that it must drop everything. On a standby the startup process puts in what commits say, and sessions
//! read; a walsender is a reader too.
//!
//! ```text
//!   commit ─► insert, ≤ 64 at a time ─► [ring of 4096] ─► read, 32 at a time ─► execute
//!                    └ cleanup from 2048 on, every 256: who is a ring behind is reset, who is 2048 behind is signalled
//! ```
//!
//! Invariants: I1 between two readings a reader gets either everything that was inserted, in order, or a reset; I2 the ring
//! never holds more than 4096; I3 who is reset holds nobody up.
//!
//! | operation (R readers) | cost |
//! |---|---|
//! | insert n | O(n), and a cleanup each 256 from 2048 on |
//! | cleanup | O(R) |
//! | read n | O(n) |
//!
//! Differences from PostgreSQL: message numbers do not wrap around. A signal is counted; whoever answers it reads on and calls
//! [`SharedInvalQueue::caught_up`], which signals the next, so that they come one after the other.

use std::collections::{BTreeMap, VecDeque};

use crate::invalidation::InvalidationMessage;

/// `MAXNUMMESSAGES`: messages that the ring holds.
pub const MAXNUMMESSAGES: u64 = 4096;

/// `CLEANUP_MIN`: messages in the ring from which on writers look for laggards.
const CLEANUP_MIN: u64 = MAXNUMMESSAGES / 2;

/// `CLEANUP_QUANTUM`: they look again when so many more are in.
const CLEANUP_QUANTUM: u64 = MAXNUMMESSAGES / 16;

/// `SIG_THRESHOLD`: who is further behind gets a signal.
const SIG_THRESHOLD: u64 = MAXNUMMESSAGES / 2;

/// `WRITE_QUANTUM`: messages that a writer inserts under one lock.
const WRITE_QUANTUM: usize = 64;

/// `MAXINVALMSGS`: messages that a reader takes under one lock.
pub const MAXINVALMSGS: usize = 32;

/// What the queue did to a reader so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Messages read.
    pub messages: u64,
    /// Resets, each because messages were lost.
    pub resets: u64,
    /// Catch-up signals sent to it (`PROCSIG_CATCHUP_INTERRUPT`).
    pub signals: u64,
}

/// What a reader got (`SIGetDataEntries`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Got {
    /// Messages, fewer than asked for if there are no more.
    Messages(usize),
    /// Some were lost: everything must be dropped.
    Reset,
}

/// Names a reader of one queue. Never used again after it is detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueReader(u64);

/// A reader (`ProcState`).
#[derive(Clone, Copy, Debug, Default)]
struct ProcState {
    /// Number of the next message for it (`nextMsgNum`).
    next: u64,
    /// It has lost some (`resetState`).
    reset: bool,
    /// It was signalled and has not caught up since (`signaled`).
    signaled: bool,
    /// What happened to it so far.
    counts: QueueCounts,
}

/// The ring (`SISeg`) and its readers.
#[derive(Debug)]
pub struct SharedInvalQueue {
    /// The messages from `min` on.
    buffer: VecDeque<InvalidationMessage>,
    /// Number of the oldest that is needed (`minMsgNum`).
    min: u64,
    /// One past the newest (`maxMsgNum`).
    max: u64,
    /// Messages in the ring from which on a writer cleans up (`nextThreshold`).
    next_threshold: u64,
    /// The readers.
    readers: BTreeMap<QueueReader, ProcState>,
    /// Readers there have been.
    attached: u64,
}

impl Default for SharedInvalQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl SharedInvalQueue {
    /// An empty ring without readers.
    #[must_use]
    pub fn new() -> Self {
        let (buffer, readers) = (VecDeque::new(), BTreeMap::new());
        Self { buffer, min: 0, max: 0, next_threshold: CLEANUP_MIN, readers, attached: 0 }
    }

    /// `SharedInvalBackendInit`: a reader of what comes from now on.
    pub fn attach(&mut self) -> QueueReader {
        let reader = QueueReader(self.attached);
        self.attached += 1;
        self.readers.insert(reader, ProcState { next: self.max, ..ProcState::default() });
        reader
    }

    /// `CleanupInvalidationState`: it reads no more and holds nobody up.
    pub fn detach(&mut self, reader: QueueReader) {
        self.readers.remove(&reader);
    }

    /// Readers there are.
    #[must_use]
    pub fn reader_count(&self) -> usize {
        self.readers.len()
    }

    /// What happened to a reader so far; nothing if it is detached.
    #[must_use]
    pub fn counts(&self, reader: QueueReader) -> QueueCounts {
        self.readers.get(&reader).map(|state| state.counts).unwrap_or_default()
    }

    /// Messages that the ring must keep.
    fn pending(&self) -> u64 {
        self.max - self.min
    }

    /// `SIInsertDataEntries`.
    pub fn insert(&mut self, messages: &[InvalidationMessage]) {
        for quantum in messages.chunks(WRITE_QUANTUM) {
            let n = quantum.len() as u64;
            while self.pending() + n > MAXNUMMESSAGES || self.pending() >= self.next_threshold {
                self.cleanup(n);
            }
            self.buffer.extend(quantum);
            self.max += n;
        }
    }

    /// `SICleanupQueue`: makes room for `min_free` messages, at the readers' cost if need be, and signals the one furthest behind.
    fn cleanup(&mut self, min_free: u64) {
        let low_bound = (self.max + min_free).saturating_sub(MAXNUMMESSAGES);
        let mut min = self.max;
        let mut furthest = self.max.saturating_sub(SIG_THRESHOLD);
        let mut to_signal = None;
        for (&reader, state) in self.readers.iter_mut().filter(|(_, state)| !state.reset) {
            if state.next < low_bound {
                state.reset = true;
                continue;
            }
            min = min.min(state.next);
            if state.next < furthest && !state.signaled {
                furthest = state.next;
                to_signal = Some(reader);
            }
        }
        if let Some(state) = to_signal.and_then(|reader| self.readers.get_mut(&reader)) {
            state.signaled = true;
            state.counts.signals += 1;
        }
        self.buffer.drain(..(min - self.min) as usize);
        self.min = min;
        let left = self.pending();
        self.next_threshold = if left < CLEANUP_MIN { CLEANUP_MIN } else { (left / CLEANUP_QUANTUM + 1) * CLEANUP_QUANTUM };
    }

    /// `SIGetDataEntries`: the next messages, at most [`MAXINVALMSGS`], appended to `to`. None for who is detached.
    pub fn get(&mut self, reader: QueueReader, to: &mut Vec<InvalidationMessage>) -> Got {
        let Some(state) = self.readers.get_mut(&reader) else { return Got::Messages(0) };
        if state.reset {
            (state.next, state.reset, state.signaled) = (self.max, false, false);
            state.counts.resets += 1;
            return Got::Reset;
        }
        let before = to.len();
        to.extend(self.buffer.iter().skip((state.next - self.min) as usize).take(MAXINVALMSGS));
        let n = to.len() - before;
        state.next += n as u64;
        state.signaled &= state.next < self.max;
        state.counts.messages += n as u64;
        Got::Messages(n)
    }

    /// Makes all readers drop everything: what they read before does not hold any more.
    pub fn reset_all(&mut self) {
        self.readers.values_mut().for_each(|state| state.reset = true);
    }

    /// Whether a signal waits for an answer.
    #[must_use]
    pub fn is_signaled(&self, reader: QueueReader) -> bool {
        self.readers.get(&reader).is_some_and(|state| state.signaled)
    }

    /// The end of `ReceiveSharedInvalidMessages` for who was signalled: the next one that is far behind gets the signal.
    pub fn caught_up(&mut self) {
        self.cleanup(0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Oid;

    /// Messages numbered from `from` on.
    fn numbered(from: u64, n: u64) -> Vec<InvalidationMessage> {
        (from..from + n).map(|i| InvalidationMessage::Relcache { db: Oid(5), rel: Oid(i as u32 + 1) }).collect()
    }

    /// Everything that waits, or [`None`] after a reset.
    fn read_all(queue: &mut SharedInvalQueue, reader: QueueReader) -> Option<Vec<InvalidationMessage>> {
        let mut read = Vec::new();
        while let Got::Messages(n) = queue.get(reader, &mut read) {
            if n < MAXINVALMSGS {
                return Some(read);
            }
        }
        None
    }

    #[test]
    fn a_ring_is_kept_whole_and_one_message_more_resets() {
        for (n, kept) in [(4095, true), (4096, true), (4097, false), (10_000, false)] {
            let mut queue = SharedInvalQueue::new();
            let reader = queue.attach();
            queue.insert(&numbered(0, n));
            let read = read_all(&mut queue, reader);
            assert_eq!(read.is_some(), kept, "{n}");
            assert_eq!(read.unwrap_or_default(), if kept { numbered(0, n) } else { vec![] });
            queue.insert(&numbered(n, 10));
            assert_eq!(read_all(&mut queue, reader), Some(numbered(n, 10)), "after a reset it reads on");
            assert_eq!(queue.counts(reader).resets, u64::from(!kept));
        }
    }

    #[test]
    fn who_is_half_a_ring_behind_is_signalled_once() {
        let mut queue = SharedInvalQueue::new();
        let reader = queue.attach();
        queue.insert(&numbered(0, 2048 + 64));
        assert_eq!(queue.counts(reader).signals, 0, "looked at with 2048 in the ring, which is not more than 2048");
        queue.insert(&numbered(0, 256));
        assert_eq!(queue.counts(reader).signals, 1, "256 later it is");
        queue.insert(&numbered(0, 1024));
        assert_eq!(queue.counts(reader).signals, 1);
        assert!(read_all(&mut queue, reader).is_some());
        queue.insert(&numbered(0, 3000));
        assert_eq!(queue.counts(reader).signals, 2, "caught up in between");
    }

    #[test]
    fn laggards_are_signalled_one_after_the_other_the_furthest_behind_first() {
        let mut queue = SharedInvalQueue::new();
        let first = queue.attach();
        queue.insert(&numbered(0, 10));
        let second = queue.attach();
        queue.insert(&numbered(10, 2600));
        let signals = |queue: &SharedInvalQueue| (queue.is_signaled(first), queue.is_signaled(second));
        assert_eq!(signals(&queue), (true, true), "a cleanup each 256 signals one each");
        let mut queue = SharedInvalQueue::new();
        let (first, second) = (queue.attach(), queue.attach());
        queue.insert(&numbered(0, 2048 + 256 + 64));
        assert_eq!((queue.is_signaled(first), queue.is_signaled(second)), (true, false));
        assert!(read_all(&mut queue, first).is_some());
        queue.caught_up();
        assert_eq!((queue.is_signaled(first), queue.is_signaled(second)), (false, true), "the next, without a message more");
        queue.detach(second);
        queue.insert(&numbered(0, 5000));
        assert_eq!((queue.reader_count(), queue.counts(second)), (1, QueueCounts::default()));
    }

    proptest! {
        #[test]
        fn i1_each_reader_gets_all_or_a_reset(steps in prop::collection::vec(
            prop_oneof![
                3 => (0u64..600).prop_map(|n| (n, 0)),
                1 => (2000u64..5000).prop_map(|n| (n, 0)),
                4 => (0usize..3).prop_map(|reader| (0, reader + 1)),
                1 => (0usize..3).prop_map(|reader| (0, reader + 4)),
            ],
            1..80,
        )) {
            let mut queue = SharedInvalQueue::new();
            let mut readers: Vec<(QueueReader, Vec<InvalidationMessage>)> = (0..3).map(|_| (queue.attach(), vec![])).collect();
            let mut inserted = 0;
            for (n, reader) in steps {
                match reader {
                    0 => {
                        queue.insert(&numbered(inserted, n));
                        readers.iter_mut().for_each(|(_, waiting)| waiting.extend(numbered(inserted, n)));
                        inserted += n;
                        prop_assert!(queue.buffer.len() as u64 == queue.pending() && queue.pending() <= MAXNUMMESSAGES, "I2");
                    }
                    1..=3 => {
                        let (reader, waiting) = &mut readers[reader - 1];
                        let read = read_all(&mut queue, *reader);
                        let wanted = (waiting.len() as u64 <= MAXNUMMESSAGES).then_some(&*waiting);
                        prop_assert_eq!(read.as_ref(), wanted, "I1");
                        waiting.clear();
                    }
                    _ => {
                        let old = std::mem::replace(&mut readers[reader - 4], (queue.attach(), vec![]));
                        queue.detach(old.0);
                    }
                }
            }
        }
    }
}
