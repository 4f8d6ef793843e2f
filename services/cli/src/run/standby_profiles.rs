//! What a WAL costs the readers of a standby, profile by profile: the WAL is replayed once under each, and snapshots are taken at
//! a rate of the WAL's own time. Counters depend on the WAL alone; CPU time is measured beside them.
//!
//! Time in WAL is the time of commits: a snapshot that is due at a time is taken after the first commit at or past it.

use pg_types::{RecordBody, Timestamp, Work};
use pg_wal::{WalDir, WalReader};
use service_kit::cpu::{thread_clock_cost_ns, thread_cpu_ns};
use standby_core::{RecoveryWriter, StandbyProfile, StandbySettings, StandbyState};
use standby_node::begin::BeginSearch;
use standby_node::config::StartAt;

/// Microseconds of a second.
const SECOND_US: i64 = 1_000_000;

/// Most snapshots for one commit: a WAL with a gap of hours in it does not ask for millions of them.
const CATCH_UP_MAX: u32 = 16;

/// What one profile came to.
#[derive(Clone, Debug, Default)]
pub struct StandbyCost {
    /// Snapshots taken.
    pub snapshots: u64,
    /// Most slots from tail to head that a snapshot found.
    pub span_max: u32,
    /// Most live xids that a snapshot found.
    pub live_max: u32,
    /// Compressions of the array.
    pub compressions: u64,
    /// Xids in all snapshots together: the same under every profile.
    pub xids_seen: u64,
    /// Snapshots that may lack subtransactions (`suboverflowed`).
    pub suboverflowed: u64,
    /// Slots looked at and jumped over by snapshots.
    pub work: Work,
    /// Measured: CPU time of the snapshots, in nanoseconds.
    pub snapshot_cpu_ns: u64,
    /// Measured: CPU time of reading and replaying, in nanoseconds.
    pub replay_cpu_ns: u64,
}

/// What a walk over a WAL is to do.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotPlan {
    /// Settings that size the array.
    pub settings: StandbySettings,
    /// Snapshots in a second of the WAL's time.
    pub per_second: u64,
}

/// Replays the WAL in `dir` under `profile`.
///
/// # Errors
/// The WAL cannot be read or replayed.
pub fn measure(dir: &WalDir, profile: StandbyProfile, plan: &SnapshotPlan) -> anyhow::Result<StandbyCost> {
    let mut writer = RecoveryWriter::new(&plan.settings, profile)?;
    let reader = writer.reader();
    let mut search = Some(BeginSearch::new(StartAt::RunningXacts));
    let mut wal = WalReader::open(dir, None)?;
    let wal_profile = dir.profile();
    let mut due = Due::new(plan.per_second);
    let mut cost = StandbyCost::default();
    let clock_ns = thread_clock_cost_ns();
    let begun = thread_cpu_ns();
    while let Some(raw) = wal.next()? {
        let record = raw.decode(wal_profile)?;
        if let Some(beginning) = search.as_mut().and_then(|search| search.look(&record)) {
            writer.start_at_checkpoint(&beginning.checkpoint, beginning.lsn)?;
            writer.apply(&beginning.first)?;
            search = None;
        } else if search.is_none() {
            writer.apply(&record)?;
        }
        cost.compressions += writer.compress_calls().iter().filter(|call| call.compressed).count() as u64;
        let RecordBody::Commit(commit) = &record.body else { continue };
        for _ in 0..due.snapshots(commit.time) {
            let state = reader.state();
            if state.standby_state != StandbyState::SnapshotReady {
                break;
            }
            let begun = thread_cpu_ns();
            let taken = reader.snapshot()?;
            cost.snapshot_cpu_ns += thread_cpu_ns().saturating_sub(begun).saturating_sub(clock_ns);
            cost.snapshots += 1;
            cost.span_max = cost.span_max.max(state.known_assigned.span());
            cost.live_max = cost.live_max.max(state.known_assigned.live);
            cost.suboverflowed += u64::from(taken.snapshot.suboverflowed);
            cost.xids_seen += taken.snapshot.xip.len() as u64;
            cost.work.xid_slots_visited += taken.slots.visited;
            cost.work.xid_slots_skipped += taken.slots.skipped;
        }
    }
    cost.replay_cpu_ns = thread_cpu_ns().saturating_sub(begun).saturating_sub(cost.snapshot_cpu_ns);
    Ok(cost)
}

/// When snapshots are due.
#[derive(Debug)]
struct Due {
    /// Microseconds from one to the next.
    every_us: i64,
    /// The next one; none before the first commit.
    next: Option<Timestamp>,
}

impl Due {
    /// `per_second` snapshots a second, none for 0.
    fn new(per_second: u64) -> Self {
        let every_us = i64::try_from(per_second).ok().filter(|n| *n > 0).map_or(i64::MAX, |n| (SECOND_US / n).max(1));
        Self { every_us, next: None }
    }

    /// How many are due at `now`; the rest of a long gap is let go.
    fn snapshots(&mut self, now: Timestamp) -> u32 {
        if self.every_us == i64::MAX {
            return 0;
        }
        let next = self.next.unwrap_or(now);
        if now < next {
            return 0;
        }
        let behind = (now.0.saturating_sub(next.0)) / self.every_us;
        self.next = Some(Timestamp(next.0.saturating_add((behind + 1).saturating_mul(self.every_us))));
        u32::try_from(behind + 1).unwrap_or(u32::MAX).min(CATCH_UP_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_due_by_the_time_of_commits() {
        let mut due = Due::new(200);
        let counts: Vec<_> = [0, 4_999, 5_000, 5_001, 17_000, 100_000_000].map(|us| due.snapshots(Timestamp(us))).into();
        assert_eq!(counts, [1, 0, 1, 0, 2, CATCH_UP_MAX]);
        assert_eq!(due.snapshots(Timestamp(100_000_001)), 0, "the rest of the gap is let go");
        assert_eq!(Due::new(0).snapshots(Timestamp(5)), 0);
    }
}
