//! The bounded queue between those who make spans and the task that exports them.
//!
//! Handing over never waits: a full queue drops the span and counts it. One task per role collects batches and exports them; it is
//! ended by its [`super::Guard`], which exports what is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Spans in a queue or a batch at most, whatever is configured.
const SPANS_MAX: usize = 1 << 20;

/// See [`lost_spans`].
static LOST: AtomicU64 = AtomicU64::new(0);

/// Spans of all roles of this process that were dropped or that nobody took: traces without them are not whole.
#[must_use]
pub fn lost_spans() -> u64 {
    LOST.load(Ordering::Relaxed)
}

/// What became of the spans of one role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpanCounts {
    /// Handed over to file or collector.
    pub exported: u64,
    /// Dropped because the queue was full or closed.
    pub dropped: u64,
    /// Lost because file or collector did not take them.
    pub failed: u64,
}

/// The counters behind [`SpanCounts`].
#[derive(Debug, Default)]
struct Counters {
    exported: AtomicU64,
    dropped: AtomicU64,
    failed: AtomicU64,
}

impl Counters {
    fn read(&self) -> SpanCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        SpanCounts { exported: load(&self.exported), dropped: load(&self.dropped), failed: load(&self.failed) }
    }
}

/// The near end: takes spans.
#[derive(Debug)]
pub(super) struct Queue {
    tx: mpsc::Sender<SpanData>,
    counters: Arc<Counters>,
}

/// How batches are built.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batching {
    /// Spans in the queue at most.
    pub(super) queue_spans: usize,
    /// Spans in a batch at most.
    pub(super) batch_spans: usize,
    /// How long a batch waits to fill up.
    pub(super) interval: Duration,
}

/// The far end: the task that exports.
#[derive(Debug)]
pub(super) struct Exporting {
    task: tokio::task::JoinHandle<()>,
    closing: CancellationToken,
    counters: Arc<Counters>,
}

impl Queue {
    /// Hands a span over, or drops it.
    pub(super) fn push(&self, span: SpanData) {
        if self.tx.try_send(span).is_err() {
            self.counters.dropped.fetch_add(1, Ordering::Relaxed);
            LOST.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What became of the spans so far.
    pub(super) fn counts(&self) -> SpanCounts {
        self.counters.read()
    }
}

impl Exporting {
    /// Starts the task; must be called within a tokio runtime.
    pub(super) fn start<E: SpanExporter + 'static>(exporter: E, batching: Batching) -> (Queue, Self) {
        let (tx, rx) = mpsc::channel(batching.queue_spans.clamp(1, SPANS_MAX));
        let (counters, closing) = (Arc::new(Counters::default()), CancellationToken::new());
        let task = tokio::spawn(run(exporter, rx, batching, closing.clone(), Arc::clone(&counters)));
        let queue = Queue { tx, counters: Arc::clone(&counters) };
        (queue, Self { task, closing, counters })
    }

    /// Takes no more spans, exports the waiting ones for at most `limit`, and says what became of all.
    pub(super) async fn finish(mut self, limit: Duration) -> SpanCounts {
        self.closing.cancel();
        if tokio::time::timeout(limit, &mut self.task).await.is_err() {
            self.task.abort();
            tracing::warn!(?limit, "spans that were waiting for export are lost: the collector does not answer");
        }
        self.counters.read()
    }
}

/// Collects and exports until the queue is closed and empty.
async fn run<E: SpanExporter>(
    exporter: E,
    mut rx: mpsc::Receiver<SpanData>,
    batching: Batching,
    closing: CancellationToken,
    counters: Arc<Counters>,
) {
    let mut failing = false;
    loop {
        let batch = collect(&mut rx, batching, &closing).await;
        if batch.is_empty() {
            break;
        }
        let size = batch.len() as u64;
        match exporter.export(batch).await {
            Ok(()) => {
                counters.exported.fetch_add(size, Ordering::Relaxed);
                if std::mem::take(&mut failing) {
                    tracing::info!("spans are exported again");
                }
            }
            Err(error) => {
                counters.failed.fetch_add(size, Ordering::Relaxed);
                LOST.fetch_add(size, Ordering::Relaxed);
                if !std::mem::replace(&mut failing, true) {
                    tracing::warn!(%error, "spans cannot be exported; they are counted and lost until this is mended");
                }
            }
        }
    }
    if let Err(error) = exporter.shutdown() {
        tracing::debug!(%error, "exporter shutdown");
    }
}

/// The next batch: full, or what came within the interval after its first span; empty when the queue is closed and empty.
async fn collect(rx: &mut mpsc::Receiver<SpanData>, batching: Batching, closing: &CancellationToken) -> Vec<SpanData> {
    let max = batching.batch_spans.clamp(1, SPANS_MAX);
    let mut batch = Vec::new();
    let deadline = tokio::time::sleep(batching.interval);
    tokio::pin!(deadline);
    while batch.len() < max {
        let first = batch.is_empty();
        let room = max - batch.len();
        tokio::select! {
            received = rx.recv_many(&mut batch, room) => {
                if received == 0 {
                    break;
                }
                if first {
                    deadline.as_mut().reset(tokio::time::Instant::now() + batching.interval);
                }
            }
            () = &mut deadline, if !first => break,
            () = closing.cancelled(), if !rx.is_closed() => rx.close(),
        }
    }
    batch
}
