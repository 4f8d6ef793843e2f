//! The streams of WAL that are open, for `ListStreams` (`pg_stat_replication`).
//!
//! Each stream writes its own numbers, without a lock; whoever lists reads them as they are. The entry goes with the stream.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a stream waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocked {
    /// WAL.
    Source = 0,
    /// The client's feedback.
    Credit = 1,
    /// The connection.
    Window = 2,
}

/// One stream in numbers.
#[derive(Debug)]
pub(super) struct StreamStats {
    /// Number of the stream.
    pub(super) id: u64,
    /// What the client calls itself.
    pub(super) client_id: String,
    /// Resource name of its slot; empty if it named none.
    pub(super) slot: String,
    /// When it began, in milliseconds since 1970.
    pub(super) start_ms: u64,
    /// Everything before was handed to the connection.
    pub(super) sent: AtomicU64,
    /// As reported.
    pub(super) received: AtomicU64,
    /// As reported.
    pub(super) flushed: AtomicU64,
    /// As reported.
    pub(super) applied: AtomicU64,
    /// Bytes sent and not flushed.
    pub(super) outstanding_bytes: AtomicU64,
    /// Bytes of batches that were read and are not handed to the connection.
    pub(super) ready_bytes: AtomicU64,
    /// Bytes of batches that wait for the connection; counted by the queue.
    queued_bytes: Arc<AtomicU64>,
    /// A [`Blocked`].
    blocked: AtomicU8,
}

impl StreamStats {
    /// Notes what it waits for.
    pub(super) fn set_blocked(&self, on: Blocked) {
        self.blocked.store(on as u8, Ordering::Relaxed);
    }

    /// What it waits for.
    pub(super) fn blocked(&self) -> Blocked {
        match self.blocked.load(Ordering::Relaxed) {
            1 => Blocked::Credit,
            2 => Blocked::Window,
            _ => Blocked::Source,
        }
    }

    /// Bytes of batches that the server holds for it.
    pub(super) fn buffered_bytes(&self) -> u64 {
        self.ready_bytes.load(Ordering::Relaxed) + self.queued_bytes.load(Ordering::Relaxed)
    }
}

/// All streams.
#[derive(Debug, Default)]
pub(super) struct StreamRegistry {
    /// By number, and the next number.
    streams: Mutex<(BTreeMap<u64, Arc<StreamStats>>, u64)>,
}

impl StreamRegistry {
    /// Adds a stream.
    pub(super) fn open(
        self: &Arc<Self>,
        client_id: &str,
        slot: &str,
        start_ms: u64,
        queued_bytes: &Arc<AtomicU64>,
    ) -> OpenStream {
        let mut streams = self.lock();
        streams.1 += 1;
        let stats = Arc::new(StreamStats {
            id: streams.1,
            client_id: client_id.to_owned(),
            slot: slot.to_owned(),
            start_ms,
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            outstanding_bytes: AtomicU64::new(0),
            ready_bytes: AtomicU64::new(0),
            queued_bytes: Arc::clone(queued_bytes),
            blocked: AtomicU8::new(Blocked::Source as u8),
        });
        streams.0.insert(stats.id, Arc::clone(&stats));
        OpenStream { registry: Arc::clone(self), stats }
    }

    /// Streams with numbers after `after`, at most `count`, and the bytes that all hold.
    pub(super) fn list(&self, after: u64, count: usize) -> (Vec<Arc<StreamStats>>, u64) {
        let streams = self.lock();
        let page = streams.0.range(after.saturating_add(1)..).take(count).map(|(_, stats)| Arc::clone(stats)).collect();
        (page, streams.0.values().map(|stats| stats.buffered_bytes()).sum())
    }

    /// The map.
    fn lock(&self) -> MutexGuard<'_, (BTreeMap<u64, Arc<StreamStats>>, u64)> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream's entry; it goes when this is dropped.
#[derive(Debug)]
pub(super) struct OpenStream {
    /// Where the entry is.
    registry: Arc<StreamRegistry>,
    /// Its numbers.
    pub(super) stats: Arc<StreamStats>,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.registry.lock().0.remove(&self.stats.id);
    }
}
