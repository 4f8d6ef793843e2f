//! Transactions that are not traced cost no allocation: at 20,000 a second and one per cent sampled, they are nearly all.
#![allow(unsafe_code, reason = "a global allocator that counts cannot be written without")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, SystemTime};

use service_kit::telemetry::sampling::CommitCost;
use service_kit::telemetry::{self, Export, Role, Sampler, SamplingConfig, SpanFile, TelemetryConfig, WalId};

thread_local! {
    /// Allocations of this thread.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counted.
struct Counting;

// SAFETY: every call goes to the system's allocator unchanged; counting does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[tokio::test]
async fn a_transaction_that_is_not_sampled_allocates_nothing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let export = Export::File(SpanFile::open(&dir.path().join("traces.jsonl")).expect("ours"));
    let role = Role { service_name: "walstorm-primary".to_owned(), instance_id: "0".to_owned() };
    let (tracer, guard) = telemetry::start(&role, &TelemetryConfig::default(), export).expect("started");
    let sampler = Sampler::new(&SamplingConfig { ratio: 0.01, ..SamplingConfig::default() }).expect("a ratio");
    let wal = WalId { system_id: 42, timeline: 1 };
    let (now, mut sampled, mut allocations) = (SystemTime::UNIX_EPOCH, 0, 0);
    for lsn in (0..10_000).map(|i| 0x1000 + i * 272) {
        let before = COUNT.with(Cell::get);
        let cost = CommitCost { messages: 3, commands: 1 };
        let decision = sampler.decide(wal.transaction_ids(lsn).0, cost, false, Duration::ZERO);
        let context = wal.transaction_context(lsn, decision);
        let spans = (
            tracer.transaction(&context, None, now),
            tracer.send_wal([&context], now),
            tracer.process_wal(None, [&context], now),
            tracer.decode_transaction(&context, now),
            tracer.apply(&context, now),
        );
        let used = COUNT.with(Cell::get) - before;
        if decision {
            sampled += 1;
            assert!(used > 0 && spans.0.is_some(), "the counter works");
        } else {
            allocations += used;
        }
    }
    assert_eq!(allocations, 0);
    assert!((50..200).contains(&sampled), "{sampled} of 10,000");
    guard.shutdown().await;
}
