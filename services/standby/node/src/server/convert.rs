//! Domain types to messages of the contract: the only place where the two meet.

use std::time::Duration;

use pg_types::{Lsn, Oid, Timestamp, Work};
use service_kit::status::invalid_field;
use standby_core::catalog_session::{CacheKey, CatalogScan, CatalogSnapshotRule, DropReason};
use standby_core::held::Visibility;
use standby_core::slru::SlruCounts;
use standby_core::{ReplayedState, StandbyState, TakenSnapshot};
use tonic::Status;
use walstorm_proto::standby::v1::{
    self as pb, CacheLookup, CompressionCount, GetRecoveryStateResponse, OpenCatalogSessionResponse, RecoveryState,
    TakeSnapshotRequest, TakeSnapshotResponse,
};
use walstorm_proto::wal;

use crate::progress::{Progress, Upstream};

/// 2000-01-01 in Unix time, in seconds.
const POSTGRES_EPOCH_S: i64 = 946_684_800;

/// Most running xids in one response: below 1 MiB with any xids.
pub(super) const XIP_MAX: u32 = 100_000;

/// A snapshot. Everything before `min_lsn` is replayed, so where no record lies between, `min_lsn` is the position.
pub(super) fn snapshot(
    state: &ReplayedState,
    taken: &TakenSnapshot,
    min_lsn: Lsn,
    request: &TakeSnapshotRequest,
) -> TakeSnapshotResponse {
    let snapshot = &taken.snapshot;
    let wanted = if request.max_xip == 0 { XIP_MAX } else { request.max_xip.min(XIP_MAX) };
    let wanted = if request.include_xip { wanted as usize } else { 0 };
    TakeSnapshotResponse {
        replay_lsn: snapshot.replay_lsn.max(min_lsn).0,
        xmin: snapshot.xmin.numeric(),
        xmax: snapshot.xmax.numeric(),
        xip_count: u32::try_from(snapshot.xip.len()).unwrap_or(u32::MAX),
        xip: snapshot.xip.iter().take(wanted).map(|xid| xid.numeric()).collect(),
        suboverflowed: snapshot.suboverflowed,
        last_overflowed_xid: state.last_overflowed_xid.numeric(),
        array_head: state.known_assigned.head,
        array_tail: state.known_assigned.tail,
        array_live: state.known_assigned.live,
        slots_visited: taken.slots.visited,
        slots_skipped: taken.slots.skipped,
        reused: taken.reused,
        ..TakeSnapshotResponse::default()
    }
}

/// What a session's scan came to.
pub(super) fn scanned(scan: CatalogScan) -> OpenCatalogSessionResponse {
    let CatalogScan { snapshots, reason, replay_lsn, accepted, slots } = scan;
    OpenCatalogSessionResponse {
        snapshots,
        reason: drop_reason(reason).into(),
        replay_lsn: replay_lsn.0,
        messages: accepted.messages,
        reset: accepted.reset,
        slots_visited: slots.visited,
        slots_skipped: slots.skipped,
        ..OpenCatalogSessionResponse::default()
    }
}

/// What a session looks up.
pub(super) fn cache_key(lookup: CacheLookup) -> Result<CacheKey, Status> {
    match lookup.key {
        Some(pb::cache_lookup::Key::Relation(rel)) => Ok(CacheKey::Relcache { rel: Oid(rel) }),
        Some(pb::cache_lookup::Key::Syscache(pb::SyscacheKey { cache_id, hash })) => {
            let known =
                i8::try_from(cache_id).map_err(|_| invalid_field("lookup.syscache.cache_id", "no syscache has this number"))?;
            Ok(CacheKey::Catcache { cache_id: known, hash })
        }
        None => Err(invalid_field("lookup.key", "must be a row of a syscache or a relation").into()),
    }
}

/// A time of the primary's.
pub(super) fn timestamp(time: Timestamp) -> prost_types::Timestamp {
    let seconds = POSTGRES_EPOCH_S + time.0.div_euclid(1_000_000);
    prost_types::Timestamp { seconds, nanos: (time.0.rem_euclid(1_000_000) * 1000) as i32 }
}

/// A duration, none if it is so many years that it does not fit.
pub(super) fn duration(duration: Duration) -> Option<prost_types::Duration> {
    duration.try_into().ok()
}

/// Where WAL was late.
fn lag(progress: &Progress, upstream: &Upstream, now: Duration) -> pb::ReplayLag {
    pb::ReplayLag {
        transport: upstream.transport_lag.and_then(duration),
        queue: progress.lag.queue.and_then(duration),
        replay: progress.lag.replay_at(now).and_then(duration),
    }
}

/// How fast it was replayed.
fn rate(progress: &Progress, now: Duration) -> pb::ReplayRate {
    let per_second = progress.rate.per_second(now);
    pb::ReplayRate { bytes_per_second: per_second.bytes, records_per_second: per_second.records }
}

/// When a session keeps its catalog snapshot.
pub(super) fn catalog_snapshot_rule(rule: i32) -> Result<CatalogSnapshotRule, Status> {
    match pb::CatalogSnapshotRule::try_from(rule) {
        Ok(pb::CatalogSnapshotRule::Unspecified | pb::CatalogSnapshotRule::Today) => Ok(CatalogSnapshotRule::TODAY),
        Ok(pb::CatalogSnapshotRule::Mail2013) => Ok(CatalogSnapshotRule::MAIL_2013),
        Ok(pb::CatalogSnapshotRule::KeptAtConnect) => Ok(CatalogSnapshotRule::KEPT_AT_CONNECT),
        Ok(pb::CatalogSnapshotRule::AlwaysNew) => Ok(CatalogSnapshotRule::ALWAYS_NEW),
        Err(_) => Err(invalid_field("start.rule", "must be one of the rules that this version knows").into()),
    }
}

/// Why a scan took a snapshot.
pub(super) fn drop_reason(reason: Option<DropReason>) -> pb::CatalogSnapshotDropReason {
    use pb::CatalogSnapshotDropReason as Pb;
    match reason {
        None => Pb::Unspecified,
        Some(DropReason::First) => Pb::First,
        Some(DropReason::CatalogChanged) => Pb::CatalogChanged,
        Some(DropReason::SnapshotMessage) => Pb::SnapshotMessage,
        Some(DropReason::QueueReset) => Pb::QueueReset,
        Some(DropReason::Connected) => Pb::Connected,
        Some(DropReason::TransactionSnapshot) => Pb::TransactionSnapshot,
        Some(DropReason::TransactionEnd) => Pb::TransactionEnd,
        Some(DropReason::Idle) => Pb::Idle,
        Some(DropReason::NoMessages) => Pb::NoMessages,
        Some(DropReason::AlwaysNew) => Pb::AlwaysNew,
    }
}

/// How far recovery is.
pub(super) fn recovery_state(progress: &Progress, upstream: &Upstream, work: &Work, now: Duration) -> GetRecoveryStateResponse {
    let state = match progress.state {
        None | Some(StandbyState::Initialized) => RecoveryState::Initialized,
        Some(StandbyState::SnapshotPending) => RecoveryState::Pending,
        Some(StandbyState::SnapshotReady) => RecoveryState::Ready,
    };
    let compression = |&(reason, count): &(&'static str, u64)| CompressionCount { reason: reason.to_owned(), count };
    GetRecoveryStateResponse {
        state: state.into(),
        pending_xmin: progress.pending_xmin.numeric(),
        last_overflowed_xid: progress.last_overflowed_xid.numeric(),
        latest_completed_xid: progress.latest_completed_xid.numeric(),
        replay_lsn: progress.replay_lsn.0,
        received_lsn: upstream.received_lsn.0,
        wal_end_lsn: upstream.wal_end_lsn.0,
        connected: upstream.connected,
        last_error: progress.halt.as_ref().map_or_else(|| upstream.last_error.clone(), ToString::to_string),
        records_replayed: progress.records_replayed,
        transactions_ended: progress.transactions_ended,
        profile: progress.profile.clone(),
        array_size: progress.array_size,
        array_head: progress.array_head,
        array_tail: progress.array_tail,
        array_live: progress.array_live,
        compressions: progress.compressions.iter().map(compression).collect(),
        work: Some(work_message(work)),
        cpu_time: None,
        xids_bytes: 0,
        primary_silence: upstream.silence(now).and_then(duration),
        last_transaction_time: progress.last_transaction_time.map(timestamp),
        not_serving: String::new(),
        lag: Some(lag(progress, upstream, now)),
        replay_rate: Some(rate(progress, now)),
        subtrans_pages: None,
    }
}

/// CPU time of the threads that serve, and in it of snapshots and of their walks.
pub(super) fn cpu_time(serving: Duration, [snapshots, walks]: [Duration; 2]) -> pb::CpuTime {
    pb::CpuTime { serving: duration(serving), snapshots: duration(snapshots), walks: duration(walks) }
}

/// How `pg_subtrans` is buffered.
pub(super) fn subtrans_pages((counts, buffers): (SlruCounts, usize)) -> pb::SubtransPages {
    let SlruCounts { hits, misses } = counts;
    pb::SubtransPages { buffers: u32::try_from(buffers).unwrap_or(u32::MAX), hits, misses }
}

/// What runs for a snapshot.
pub(super) fn visibility(visibility: Visibility) -> pb::VisibilityResult {
    let Visibility { running, lookups } = visibility;
    pb::VisibilityResult { running, lookups: lookups.lookups(), hits: lookups.hits, misses: lookups.misses }
}

/// The counters that a standby has.
fn work_message(work: &Work) -> wal::v1::Work {
    wal::v1::Work {
        xid_slots_visited: work.xid_slots_visited,
        xid_slots_skipped: work.xid_slots_skipped,
        ..wal::v1::Work::default()
    }
}
