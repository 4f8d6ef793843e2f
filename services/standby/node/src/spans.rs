//! The standby's spans: `process wal` for a batch, `apply` for a transaction's end, `take snapshot` for a call. What is not sampled
//! costs one comparison.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use pg_types::{Lsn, RecordBody, WalRecord};
use service_kit::Clock;
use service_kit::cpu::thread_cpu_ns;
use service_kit::telemetry::context::{from_message, from_metadata, parse_context};
use service_kit::telemetry::{ActiveSpan, Tracer, names};
use tonic::metadata::MetadataMap;
use walstorm_proto::standby::v1::TakeSnapshotResponse;
use walstorm_proto::wal::v1::TransactionContext;

use crate::batch::Batch;

/// Makes the spans of a standby. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Spans {
    /// Of the role.
    tracer: Tracer,
    /// Their times.
    clock: Arc<dyn Clock>,
}

impl Spans {
    /// Spans of `tracer` with times of `clock`.
    #[must_use]
    pub fn new(tracer: Tracer, clock: Arc<dyn Clock>) -> Self {
        Self { tracer, clock }
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> SystemTime {
        self.clock.now()
    }

    /// A batch begins to be replayed, which has `waited` since it arrived; no span if no sampled transaction commits in it.
    #[must_use]
    pub fn process_wal(&self, batch: &Batch, waited: Duration) -> Option<ActiveSpan> {
        if !self.tracer.is_on() || batch.contexts.is_empty() {
            return None;
        }
        let sender = parse_context(&batch.traceparent, "").ok();
        let commits: Vec<_> = batch.contexts.iter().filter_map(|context| from_message(context).ok()).collect();
        let now = self.now();
        let mut span = self.tracer.process_wal(sender.as_ref(), &commits, now.checked_sub(waited).unwrap_or(now))?;
        let start = batch.records.first().map_or(batch.end_lsn, |record| record.lsn);
        span.lsn(names::START_LSN, start.0)
            .lsn(names::END_LSN, batch.end_lsn.0)
            .number(names::RECORDS, batch.records.len() as u64)
            .number(names::BYTES, batch.bytes as u64)
            .number(names::TRANSACTIONS, batch.contexts.len() as u64)
            .number(names::MESSAGING_BATCH_COUNT, batch.records.len() as u64)
            .number(names::QUEUE_TIME, nanos(waited));
        Some(span)
    }

    /// Ends a span now.
    pub fn end(&self, span: Option<ActiveSpan>) {
        if let Some(span) = span {
            span.end(self.now());
        }
    }

    /// The end of a sampled transaction begins to be replayed.
    #[must_use]
    pub fn apply(&self, context: &TransactionContext) -> Option<Applying> {
        let span = self.tracer.apply(&from_message(context).ok()?, self.now())?;
        Some(Applying { span, cpu_ns: thread_cpu_ns() })
    }

    /// It was replayed, after it had `waited` for readers.
    pub fn applied(&self, applying: Applying, record: &WalRecord, waited: Duration) {
        let Applying { mut span, cpu_ns } = applying;
        let (xid, subxids) = match &record.body {
            RecordBody::Commit(commit) if commit.prepared_xid.is_valid() => (commit.prepared_xid, commit.subxids.len()),
            RecordBody::Commit(commit) => (record.xid, commit.subxids.len()),
            _ => (record.xid, 0),
        };
        span.number(names::XID, u64::from(xid.numeric()))
            .lsn(names::COMMIT_LSN, record.lsn.0)
            .lsn(names::END_LSN, record.end_lsn.0)
            .number(names::SUBXIDS, subxids as u64)
            .number(names::READER_WAIT, nanos(waited))
            .number(names::CPU_TIME, thread_cpu_ns().saturating_sub(cpu_ns));
        span.end(self.now());
    }

    /// A snapshot was taken for a caller; no span unless the caller sent a sampled context.
    pub fn take_snapshot(&self, metadata: &MetadataMap, begun: SystemTime, response: &TakeSnapshotResponse) {
        let caller = from_metadata(metadata);
        let Some(mut span) = self.tracer.take_snapshot(caller.as_ref(), begun) else { return };
        span.lsn(names::REPLAY_LSN, Lsn(response.replay_lsn).0)
            .number(names::XMIN, u64::from(response.xmin))
            .number(names::XMAX, u64::from(response.xmax))
            .number(names::XIP, u64::from(response.xip_count))
            .number(names::SLOTS_VISITED, response.slots_visited)
            .text(names::RPC_STATUS, "OK");
        span.end(self.now());
    }
}

/// The end of a transaction that is being replayed.
#[derive(Debug)]
#[must_use = "a span that is not ended is lost"]
pub struct Applying {
    /// Its span.
    span: ActiveSpan,
    /// CPU time that the thread had used before.
    cpu_ns: u64,
}

/// A time in nanoseconds.
fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
