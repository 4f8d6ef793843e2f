//! Between our types and those of the contract.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use decoder_core::output::DecodedTransaction;
use decoder_core::{SnapBuildState, Summary};
use opentelemetry::trace::SpanContext;
use pg_types::syscache_id::SysCacheTable;
use pg_types::{InvalidationKind, Lsn, PgVersion, RelFileLocator, Timestamp, Work, Xid};
use service_kit::status::invalid_field;
use service_kit::telemetry::context;
use tonic::Status;
use walstorm_proto::decoder::v1 as pb;
use walstorm_proto::wal::v1 as wal;

use crate::attribution::{Mark, Page, Row};
use crate::costliest::TransactionCost;
use crate::state::NodeState;

/// Most transactions that are named of those that the snapshot builder waits for.
const WAITING_MAX: usize = 1000;

/// Seconds from 1970 to 2000, where PostgreSQL's time begins.
const POSTGRES_EPOCH_S: i64 = 946_684_800;

/// PostgreSQL's time as protobuf's. Infinite times become the ends of protobuf's range.
#[must_use]
pub(crate) fn timestamp(time: Timestamp) -> prost_types::Timestamp {
    let (min, max) = (-62_135_596_800, 253_402_300_799);
    let seconds = time.0.div_euclid(1_000_000).saturating_add(POSTGRES_EPOCH_S).clamp(min, max);
    let nanos = time.0.rem_euclid(1_000_000) as i32 * 1000;
    prost_types::Timestamp { seconds, nanos }
}

/// A wall time as protobuf's.
#[must_use]
pub(crate) fn wall_time(time: SystemTime) -> prost_types::Timestamp {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    prost_types::Timestamp { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() as i32 }
}

/// A duration that a client may leave out, within bounds.
///
/// # Errors
///
/// It is none, or out of bounds; the error names `field`.
pub(crate) fn duration(
    field: &str,
    value: Option<prost_types::Duration>,
    default: Duration,
    bounds: (Duration, Duration),
) -> Result<Duration, Status> {
    let Some(value) = value else { return Ok(default) };
    let (min, max) = bounds;
    // Not by prost's conversion, which overflows at the most negative number of seconds.
    let nanos = u32::try_from(value.nanos).ok().filter(|nanos| *nanos < 1_000_000_000);
    let duration = u64::try_from(value.seconds).ok().zip(nanos).map(|(seconds, nanos)| Duration::new(seconds, nanos));
    duration
        .filter(|duration| (min..=max).contains(duration))
        .ok_or_else(|| invalid_field(field, format!("must be between {min:?} and {max:?}")).into_status())
}

/// A duration as protobuf's.
#[must_use]
pub(crate) fn to_duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration { seconds: duration.as_secs() as i64, nanos: duration.subsec_nanos() as i32 }
}

/// A file's place.
#[must_use]
pub(crate) fn locator(file: RelFileLocator) -> wal::RelFileLocator {
    wal::RelFileLocator { tablespace_oid: file.spc.0, database_oid: file.db.0, file_number: file.rel }
}

/// Counters of work.
#[must_use]
pub(crate) fn work(work: &Work) -> wal::Work {
    wal::Work {
        messages_executed: work.messages_executed,
        caches_searched: work.caches_searched,
        catcache_entries_visited: work.catcache_entries_visited,
        entries_dropped: work.entries_dropped,
        callbacks_visited: work.callbacks_visited,
        callbacks_called: work.callbacks_called,
        map_slots_visited: work.map_slots_visited,
        map_entries_dropped: work.map_entries_dropped,
        relations_loaded: work.relations_loaded,
        catalog_scans: work.catalog_scans,
        snapshots_distributed: work.snapshots_distributed,
        snapshot_bytes: work.snapshot_bytes,
        transactions_visited: work.transactions_visited,
        evictions: work.evictions,
        spill_bytes: work.spill_bytes,
        spill_txns: work.spill_txns,
        spill_count: work.spill_count,
        changes_restored: work.changes_restored,
        xid_slots_visited: work.xid_slots_visited,
        xid_slots_skipped: work.xid_slots_skipped,
        stream_txns: work.stream_txns,
        stream_count: work.stream_count,
        stream_bytes: work.stream_bytes,
        map_hits: work.map_hits,
        map_misses: work.map_misses,
        relcache_hits: work.relcache_hits,
        relcache_misses: work.relcache_misses,
        relations_rebuilt: work.relations_rebuilt,
        catalogs_loaded: work.catalogs_loaded,
        catcache_hits: work.catcache_hits,
        catcache_misses: work.catcache_misses,
        tuple_cid_lookups: work.tuple_cid_lookups,
        historic_scans: work.historic_scans,
        catalog_snapshots_taken: work.catalog_snapshots_taken,
        catalog_snapshots_reused: work.catalog_snapshots_reused,
        rows_filtered: work.rows_filtered,
        origin_skips: work.origin_skips,
    }
}

/// Where a transaction was made, unless here.
pub(crate) fn origin(origin: decoder_core::output::Origin) -> Option<pb::Origin> {
    (origin.id != 0).then(|| pb::Origin { origin_id: origin.id.into(), lsn: origin.lsn.0 })
}

/// Numbers of messages by kind, in the order of `InvalidationKind::ALL`.
fn counts(kinds: &[u64; InvalidationKind::ALL.len()]) -> wal::InvalidationCounts {
    let [catcache, catalog, relcache, smgr, relmap, snapshot, relsync] = *kinds;
    wal::InvalidationCounts { catcache, catalog, relcache, smgr, relmap, snapshot, relsync }
}

/// Numbers of a transaction's messages; `None` if it has none.
#[must_use]
pub(crate) fn invalidation_counts(transaction: &DecodedTransaction) -> Option<wal::InvalidationCounts> {
    let kinds = InvalidationKind::ALL.map(|kind| transaction.messages.of(kind));
    (transaction.messages.invalidations() > 0).then(|| counts(&kinds))
}

/// A transaction's context for subscribers.
#[must_use]
pub(crate) fn transaction_context(xid: Xid, commit_lsn: Lsn, context: &SpanContext) -> wal::TransactionContext {
    context::to_message(xid.0, commit_lsn.0, context)
}

/// A transaction for the list of costliest ones.
#[must_use]
pub(crate) fn transaction_cost(
    transaction: &DecodedTransaction,
    row_count: u64,
    cpu_ns: u64,
    trace_id: Option<u128>,
) -> TransactionCost {
    TransactionCost {
        xid: transaction.xid,
        commit_lsn: transaction.commit_lsn,
        end_lsn: transaction.end_lsn,
        commit_time: transaction.commit_time,
        subxid_count: u32::try_from(transaction.subxids.len()).unwrap_or(u32::MAX),
        row_count,
        messages: InvalidationKind::ALL.map(|kind| transaction.messages.of(kind)),
        summary: Arc::new(transaction.summary()),
        work: transaction.work,
        cpu_ns,
        trace_id,
    }
}

/// A transaction of that list for clients.
#[must_use]
pub(crate) fn to_transaction_cost(cost: &TransactionCost, version: Option<PgVersion>) -> pb::TransactionCost {
    pb::TransactionCost {
        xid: cost.xid.0,
        commit_lsn: cost.commit_lsn.0,
        end_lsn: cost.end_lsn.0,
        commit_time: Some(timestamp(cost.commit_time)),
        subxid_count: cost.subxid_count,
        row_count: cost.row_count,
        messages: Some(counts(&cost.messages)),
        caches: caches(&cost.summary, version),
        work: Some(work(&cost.work)),
        cpu_ns: cost.cpu_ns,
        trace_id: cost.trace_id.map(|id| format!("{id:032x}")).unwrap_or_default(),
    }
}

/// Catcache messages by cache, greatest count first.
fn caches(summary: &Summary, version: Option<PgVersion>) -> Vec<pb::CacheMessages> {
    let counted = summary.footprint.iter().flat_map(|footprint| footprint.caches());
    let mut counted: Vec<(u8, u64)> = counted.collect();
    counted.sort_by_key(|(id, count)| (std::cmp::Reverse(*count), *id));
    counted.into_iter().map(|(id, count)| cache_messages(id.into(), count, version)).collect()
}

/// Messages of one catcache, with its name in `version`.
fn cache_messages(cache_id: u32, count: u64, version: Option<PgVersion>) -> pb::CacheMessages {
    let mut caches = version.into_iter().flat_map(|version| SysCacheTable::of(version).iter());
    let name = caches.find(|(id, _)| id.index() == cache_id as usize).map_or("", |(_, cache)| cache.name);
    pb::CacheMessages { cache_id, cache_name: name.to_owned(), count }
}

/// A page of shared-out work for clients.
#[must_use]
pub(crate) fn attribution_page(page: &Page) -> pb::GetAttributionResponse {
    let row = |row: &Row| pb::AttributionRow {
        name: row.name.to_string(),
        oid: row.oid.0,
        xid: row.xid.0,
        commit_lsn: row.commit_lsn.0,
        work: Some(work(&row.work)),
        cpu_ns: row.cpu_ns,
    };
    pb::GetAttributionResponse {
        rows: page.rows.iter().map(row).collect(),
        rest: Some(work(&page.rest)),
        total: Some(work(&page.total)),
        next_page_token: page.end.as_ref().map(Mark::token).unwrap_or_default(),
        ..pb::GetAttributionResponse::default()
    }
}

/// The node's state for clients.
#[must_use]
pub(crate) fn decoder_state(state: &NodeState, profile: &str, subscriptions: usize) -> pb::GetDecoderStateResponse {
    let sizes = &state.sizes;
    pb::GetDecoderStateResponse {
        profile: profile.to_owned(),
        received_lsn: state.received_lsn.0,
        decoded_lsn: state.decoded_lsn.0,
        flushed_lsn: state.flushed_lsn.0,
        catalog_xmin: state.catalog_xmin.0,
        wal_end_lsn: state.wal_end_lsn.0,
        connected: state.connected,
        last_error: state.last_error.clone(),
        buffered_transactions: sizes.transactions as u64,
        catcache_entries: sizes.caches.catcache_entries as u64,
        relcache_entries: sizes.caches.relcache_entries as u64,
        map_entries: sizes.caches.map_entries as u64,
        map_buckets: sizes.caches.map_buckets as u64,
        subscriptions: u32::try_from(subscriptions).unwrap_or(u32::MAX),
        transactions_decoded: state.transactions,
        work: Some(work(&state.work)),
        snapshot_state: snapshot_state(state.snapshot).into(),
        waits_for_xid: state.waits_for.0,
        waiting_xids: state.waiting.iter().take(WAITING_MAX).map(|xid| xid.0).collect(),
        waiting_count: u32::try_from(state.waiting.len()).unwrap_or(u32::MAX),
        ..pb::GetDecoderStateResponse::default()
    }
}

/// A snapshot builder's state.
fn snapshot_state(state: SnapBuildState) -> pb::SnapshotState {
    match state {
        SnapBuildState::Start => pb::SnapshotState::Start,
        SnapBuildState::Building => pb::SnapshotState::Building,
        SnapBuildState::FullSnapshot => pb::SnapshotState::Full,
        SnapBuildState::Consistent => pb::SnapshotState::Consistent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_microseconds_and_stay_in_range() {
        assert_eq!(timestamp(Timestamp(0)), prost_types::Timestamp { seconds: 946_684_800, nanos: 0 });
        assert_eq!(timestamp(Timestamp(-1)), prost_types::Timestamp { seconds: 946_684_799, nanos: 999_999_000 });
        for extreme in [i64::MIN, i64::MAX] {
            assert!((-62_135_596_800..=253_402_300_799).contains(&timestamp(Timestamp(extreme)).seconds));
        }
    }

    #[test]
    fn work_keeps_every_counter() {
        let entries: Vec<_> = Work::KEYS.iter().zip(1..).map(|(key, n)| (*key, n)).collect();
        let original = Work::from_entries(entries);
        let converted = format!("{:?}", work(&original));
        for (key, n) in original.entries() {
            assert!(converted.contains(&format!("{key}: {n}")), "{key} in {converted}");
        }
    }

    #[test]
    fn durations_are_checked_by_name() {
        let bounds = (Duration::from_millis(10), Duration::from_secs(10));
        let given = |seconds, nanos| {
            let value = Some(prost_types::Duration { seconds, nanos });
            duration("start.x", value, bounds.0, bounds)
        };
        assert_eq!(given(2, 500_000_000).unwrap(), Duration::from_millis(2500));
        assert_eq!(duration("start.x", None, bounds.1, bounds).unwrap(), bounds.1);
        for (seconds, nanos) in [(0, 1), (11, 0), (-1, 0), (i64::MIN, -1)] {
            let status = given(seconds, nanos).unwrap_err();
            assert!(status.message().contains("start.x"), "{status:?}");
        }
    }
}
