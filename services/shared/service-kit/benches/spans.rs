//! What tracing costs a transaction: `cargo bench -p service-kit`.

use std::time::{Duration, SystemTime};

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use opentelemetry::trace::SpanContext;
use service_kit::telemetry::sampling::CommitCost;
use service_kit::telemetry::{
    self, Export, Guard, Role, Sampler, SamplingConfig, SpanFile, TelemetryConfig, Tracer, WalId, names,
};

const WAL: WalId = WalId { system_id: 42, timeline: 1 };
const TRANSACTIONS: u64 = 10_000;

fn main() {
    divan::main();
}

/// A runtime and a tracer that writes to a file; the queue holds one round of spans.
fn tracer() -> (tokio::runtime::Runtime, Tracer, Guard, tempfile::TempDir) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let export = Export::File(SpanFile::open(&dir.path().join("traces.jsonl")).expect("ours"));
    let role = Role { service_name: "walstorm-decoder".to_owned(), instance_id: "0".to_owned() };
    let config = TelemetryConfig { queue_spans: TRANSACTIONS as usize, ..TelemetryConfig::default() };
    let (tracer, guard) = runtime.block_on(async { telemetry::start(&role, &config, export) }).expect("started");
    (runtime, tracer, guard, dir)
}

/// Deriving the ids and deciding.
#[divan::bench]
fn decide(bencher: Bencher<'_, '_>) {
    let sampler = Sampler::new(&SamplingConfig::default()).expect("a ratio");
    bencher.counter(ItemsCount::new(TRANSACTIONS)).bench(|| {
        (0..TRANSACTIONS)
            .filter(|i| sampler.decide(WAL.transaction_ids(i * 272).0, CommitCost::default(), false, Duration::ZERO))
            .count()
    });
}

/// A decode span per transaction, for a share of all in per mille.
#[divan::bench(args = [0, 10, 1000])]
fn decode_spans(bencher: Bencher<'_, '_>, per_mille: u64) {
    let (_runtime, tracer, _guard, _dir) = tracer();
    let now = SystemTime::now();
    let contexts: Vec<SpanContext> =
        (0..TRANSACTIONS).map(|i| WAL.transaction_context(i * 272, i % 1000 < per_mille)).collect();
    bencher.counter(ItemsCount::new(TRANSACTIONS)).bench(|| {
        for context in &contexts {
            if let Some(mut span) = tracer.decode_transaction(black_box(context), now) {
                span.number(names::XID, 742).lsn(names::COMMIT_LSN, 0x1000).number(names::MESSAGES, 3);
                span.end(now);
            }
        }
    });
}

/// A context into a batch and out of it.
#[divan::bench]
fn context_round_trip(bencher: Bencher<'_, '_>) {
    let context = WAL.transaction_context(0x1000, true);
    bencher.bench(|| {
        let message = telemetry::context::to_message(742, 0x1000, black_box(&context));
        telemetry::context::from_message(&message)
    });
}
