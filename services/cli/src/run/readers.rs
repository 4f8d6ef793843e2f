//! Readers of the standby: they take snapshots at a rate while the WAL is replayed, as sessions on a hot standby do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use service_kit::status::{Reason, reason_of};
use service_kit::telemetry::context::to_metadata;
use service_kit::telemetry::{ActiveSpan, Sampler, Tracer, names};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use walstorm_proto::standby::v1::TakeSnapshotRequest;
use walstorm_proto::standby::v1::standby_service_client::StandbyServiceClient;

/// What the readers did. Measured: where a snapshot falls depends on the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ReaderCounts {
    /// Snapshots taken.
    pub snapshots: u64,
    /// Calls answered with "not ready".
    pub not_ready: u64,
    /// Calls that failed otherwise.
    pub failed: u64,
    /// Slots that the snapshots looked at.
    pub slots_visited: u64,
    /// Slots that skip offsets jumped over.
    pub slots_skipped: u64,
    /// Their latencies added up, in nanoseconds.
    pub latency_sum_ns: u64,
    /// The longest latency, in nanoseconds.
    pub latency_max_ns: u64,
}

/// The same, shared by the readers.
#[derive(Debug, Default)]
struct Totals {
    /// See [`ReaderCounts`]; in its order.
    counters: [AtomicU64; 7],
}

impl Totals {
    /// Adds to the counter at `index`.
    fn add(&self, index: usize, n: u64) {
        if let Some(counter) = self.counters.get(index) {
            counter.fetch_add(n, Ordering::Relaxed);
        }
    }

    /// The counts so far.
    fn counts(&self) -> ReaderCounts {
        let [snapshots, not_ready, failed, slots_visited, slots_skipped, latency_sum_ns, latency_max_ns] =
            std::array::from_fn(|i| self.counters.get(i).map_or(0, |counter| counter.load(Ordering::Relaxed)));
        ReaderCounts { snapshots, not_ready, failed, slots_visited, slots_skipped, latency_sum_ns, latency_max_ns }
    }
}

/// Which calls are traced, and by whom.
#[derive(Debug)]
pub struct ReaderTrace {
    /// Makes the spans.
    pub tracer: Tracer,
    /// Chooses the calls.
    pub sampler: Sampler,
    /// Who is called.
    pub server: SocketAddr,
}

impl ReaderTrace {
    /// A call has ended, with an error or without.
    fn end(&self, mut span: ActiveSpan, error: Option<&Status>) {
        span.text(names::SERVER_ADDRESS, &self.server.ip().to_string()).number(names::SERVER_PORT, self.server.port().into());
        span.text(names::RPC_STATUS, &error.map_or_else(|| "OK".to_owned(), |status| format!("{:?}", status.code())));
        if let Some(status) = error {
            span.fail(status.message());
        }
        span.end(SystemTime::now());
    }
}

/// Readers at work; they stop when this is dropped.
#[derive(Debug)]
pub struct Readers {
    /// What they did.
    totals: Arc<Totals>,
    /// Ends them.
    stop: CancellationToken,
    /// Their tasks.
    tasks: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Starts readers of the standby at `address` that take `per_second` snapshots together; what `trace` samples is traced.
    ///
    /// # Errors
    /// No connection.
    pub async fn start(address: SocketAddr, readers: u32, per_second: u64, trace: ReaderTrace) -> anyhow::Result<Self> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true).connect().await;
        let channel = channel.context("connect to the standby")?;
        let trace = Arc::new(trace);
        let (totals, stop) = (Arc::new(Totals::default()), CancellationToken::new());
        let pause = Duration::from_secs_f64(f64::from(readers.max(1)) / per_second.max(1) as f64);
        let tasks = (0..readers)
            .map(|_| {
                let client = StandbyServiceClient::new(channel.clone());
                tokio::spawn(read(client, pause, Arc::clone(&trace), Arc::clone(&totals), stop.clone()))
            })
            .collect();
        Ok(Self { totals, stop, tasks })
    }

    /// Stops the readers; gives what they did.
    pub async fn finish(mut self) -> ReaderCounts {
        self.stop.cancel();
        for task in self.tasks.drain(..) {
            // A reader that panicked has said so on standard error.
            let _ = task.await;
        }
        self.totals.counts()
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// One reader.
async fn read(
    mut client: StandbyServiceClient<Channel>,
    pause: Duration,
    trace: Arc<ReaderTrace>,
    totals: Arc<Totals>,
    stop: CancellationToken,
) {
    let mut ticks = tokio::time::interval(pause);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let begun = Instant::now();
        let mut request = Request::new(TakeSnapshotRequest::default());
        let span = trace.tracer.ask_for_snapshot(&trace.sampler, SystemTime::now());
        if let Some(span) = &span {
            to_metadata(span.context(), request.metadata_mut());
        }
        let answer = client.take_snapshot(request).await;
        if let Some(span) = span {
            trace.end(span, answer.as_ref().err());
        }
        match answer {
            Ok(response) => {
                let snapshot = response.into_inner();
                let latency = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
                totals.add(0, 1);
                totals.add(3, snapshot.slots_visited);
                totals.add(4, snapshot.slots_skipped);
                totals.add(5, latency);
                if let Some(longest) = totals.counters.get(6) {
                    longest.fetch_max(latency, Ordering::Relaxed);
                }
            }
            Err(status) if reason_of(&status) == Some(Reason::NotReady) => totals.add(1, 1),
            Err(_) => totals.add(2, 1),
        }
    }
}
