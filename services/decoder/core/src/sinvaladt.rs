//! The shared queue of invalidation messages and its one reader here: `storage/ipc/sinvaladt.c` and `sinval.c`.
//!
//! A backend that commits puts its messages into a ring that all backends read. Who lags behind by a whole ring loses messages;
//! it is not told which, but that it must drop everything. A walsender reads the ring when a replay begins a transaction
//! (`StartTransactionCommand`), so what committed since its last replay waits there; a decoder that catches up with old WAL
//! ([`crate::profile::Consumer::CatchUp`]) finds nothing in it.
//!
//! ```text
//!   commit ─► insert, ≤ 64 at a time ─► [ring of 4096] ─► read, 32 at a time ─► execute
//!                    └ cleanup from 2048 on, every 256: who is a ring behind is reset, who is 2048 behind is signalled
//! ```
//!
//! Invariants: I1 between two readings the reader gets either everything that was inserted, in order, or a reset; I2 the ring
//! never holds more than 4096; I3 who is reset holds nobody up.
//!
//! | operation | cost |
//! |---|---|
//! | insert n | O(n), and a cleanup each 256 from 2048 on |
//! | read n | O(n) |
//!
//! Differences from PostgreSQL: message numbers do not wrap around. All other backends keep up, so that the decoder is the
//! furthest behind. The signal is counted and not answered: a walsender that waits for WAL is not reading a command, and only
//! there would it be.

use std::collections::VecDeque;

use pg_types::InvalidationMessage;

/// `MAXNUMMESSAGES`: messages that the ring holds.
pub(crate) const MAXNUMMESSAGES: u64 = 4096;

/// `CLEANUP_MIN`: messages in the ring from which on writers look for laggards.
const CLEANUP_MIN: u64 = MAXNUMMESSAGES / 2;

/// `CLEANUP_QUANTUM`: they look again when so many more are in.
const CLEANUP_QUANTUM: u64 = MAXNUMMESSAGES / 16;

/// `SIG_THRESHOLD`: who is further behind gets a signal.
const SIG_THRESHOLD: u64 = MAXNUMMESSAGES / 2;

/// `WRITE_QUANTUM`: messages that a writer inserts under one lock.
const WRITE_QUANTUM: usize = 64;

/// `MAXINVALMSGS`: messages that a reader takes under one lock.
pub(crate) const MAXINVALMSGS: usize = 32;

/// What the queue did to its reader so far.
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
pub(crate) enum Got {
    /// Messages, fewer than asked for if there are no more.
    Messages(usize),
    /// Some were lost: everything must be dropped.
    Reset,
}

/// The ring (`SISeg`) and its reader (`ProcState`).
#[derive(Debug, Default)]
pub(crate) struct SharedInvalQueue {
    /// The messages from `min` on.
    buffer: VecDeque<InvalidationMessage>,
    /// Number of the oldest that is needed (`minMsgNum`).
    min: u64,
    /// One past the newest (`maxMsgNum`).
    max: u64,
    /// Messages in the ring from which on a writer cleans up (`nextThreshold`).
    next_threshold: u64,
    /// Number of the next one for the reader (`nextMsgNum`).
    next: u64,
    /// The reader has lost some (`resetState`).
    reset: bool,
    /// It was signalled and has not caught up since (`signaled`).
    signaled: bool,
    /// What happened so far.
    pub(crate) counts: QueueCounts,
}

impl SharedInvalQueue {
    /// An empty ring whose reader has everything.
    pub(crate) fn new() -> Self {
        Self { next_threshold: CLEANUP_MIN, ..Self::default() }
    }

    /// Messages that the ring must keep.
    fn pending(&self) -> u64 {
        self.max - self.min
    }

    /// `SIInsertDataEntries`.
    pub(crate) fn insert(&mut self, messages: &[InvalidationMessage]) {
        for quantum in messages.chunks(WRITE_QUANTUM) {
            let n = quantum.len() as u64;
            while self.pending() + n > MAXNUMMESSAGES || self.pending() >= self.next_threshold {
                self.cleanup(n);
            }
            self.buffer.extend(quantum);
            self.max += n;
        }
    }

    /// `SICleanupQueue`: makes room for `min_free` messages, at the reader's cost if need be.
    fn cleanup(&mut self, min_free: u64) {
        let low_bound = (self.max + min_free).saturating_sub(MAXNUMMESSAGES);
        if !self.reset {
            self.reset = self.next < low_bound;
        }
        let min = if self.reset { self.max } else { self.next };
        if !self.reset && !self.signaled && self.next < self.max.saturating_sub(SIG_THRESHOLD) {
            self.signaled = true;
            self.counts.signals += 1;
        }
        self.buffer.drain(..(min - self.min) as usize);
        self.min = min;
        let left = self.pending();
        self.next_threshold = if left < CLEANUP_MIN { CLEANUP_MIN } else { (left / CLEANUP_QUANTUM + 1) * CLEANUP_QUANTUM };
    }

    /// `SIGetDataEntries`: the next messages, at most [`MAXINVALMSGS`], appended to `to`.
    pub(crate) fn get(&mut self, to: &mut Vec<InvalidationMessage>) -> Got {
        if self.reset {
            (self.next, self.reset, self.signaled) = (self.max, false, false);
            self.counts.resets += 1;
            return Got::Reset;
        }
        let before = to.len();
        to.extend(self.buffer.iter().skip((self.next - self.min) as usize).take(MAXINVALMSGS));
        let n = to.len() - before;
        self.next += n as u64;
        self.signaled &= self.next < self.max;
        self.counts.messages += n as u64;
        Got::Messages(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pg_types::Oid;
    use proptest::prelude::*;

    /// Messages numbered from `from` on.
    fn numbered(from: u64, n: u64) -> Vec<InvalidationMessage> {
        (from..from + n).map(|i| InvalidationMessage::Relcache { db: Oid(5), rel: Oid(i as u32 + 1) }).collect()
    }

    /// Everything that waits, or [`None`] after a reset.
    fn read_all(queue: &mut SharedInvalQueue) -> Option<Vec<InvalidationMessage>> {
        let mut read = Vec::new();
        while let Got::Messages(n) = queue.get(&mut read) {
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
            queue.insert(&numbered(0, n));
            let read = read_all(&mut queue);
            assert_eq!(read.is_some(), kept, "{n}");
            assert_eq!(read.unwrap_or_default(), if kept { numbered(0, n) } else { vec![] });
            queue.insert(&numbered(n, 10));
            assert_eq!(read_all(&mut queue), Some(numbered(n, 10)), "after a reset it reads on");
            assert_eq!(queue.counts.resets, u64::from(!kept));
        }
    }

    #[test]
    fn who_is_half_a_ring_behind_is_signalled_once() {
        let mut queue = SharedInvalQueue::new();
        queue.insert(&numbered(0, 2048 + 64));
        assert_eq!(queue.counts.signals, 0, "looked at with 2048 in the ring, which is not more than 2048");
        queue.insert(&numbered(0, 256));
        assert_eq!(queue.counts.signals, 1, "256 later it is");
        queue.insert(&numbered(0, 1024));
        assert_eq!(queue.counts.signals, 1);
        assert!(read_all(&mut queue).is_some());
        queue.insert(&numbered(0, 3000));
        assert_eq!(queue.counts.signals, 2, "caught up in between");
    }

    proptest! {
        #[test]
        fn i1_all_or_a_reset(steps in prop::collection::vec(prop_oneof![(0u64..600).prop_map(Some), (2000u64..5000).prop_map(Some), Just(None)], 1..60)) {
            let (mut queue, mut waiting, mut inserted) = (SharedInvalQueue::new(), Vec::new(), 0);
            for step in steps {
                if let Some(n) = step {
                    queue.insert(&numbered(inserted, n));
                    waiting.extend(numbered(inserted, n));
                    inserted += n;
                    prop_assert!(queue.buffer.len() as u64 == queue.pending() && queue.pending() <= MAXNUMMESSAGES, "I2");
                } else {
                    let read = read_all(&mut queue);
                    let wanted = (waiting.len() as u64 <= MAXNUMMESSAGES).then_some(&waiting);
                    prop_assert_eq!(read.as_ref(), wanted, "I1");
                    waiting.clear();
                }
            }
        }
    }
}
