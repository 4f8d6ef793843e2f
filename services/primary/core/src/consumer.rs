//! Consumers of the log that a scenario has: each reads by a slot of its own, at a pace that simulated time sets.
//!
//! They model what a walreceiver or a decoder's client does to the primary, not what it does with the log: its confirmed position
//! keeps WAL (`replication/slot.c`: `restart_lsn`), and the oldest xid that it may still see as running holds VACUUM back
//! (`replication/walreceiver.c`: `XLogWalRcvSendHSFeedback` for physical slots; `replication/logical/logical.c`:
//! `LogicalIncreaseXminForSlot` for logical ones). If they moved whenever their messages happened to arrive, a run could not be
//! repeated; so all of them move together, at barriers that are due at fixed simulated times.
//!
//! **Invariants**
//! - I1: no position of a consumer goes back, and none is beyond the end of the log at the last barrier.
//! - I2: a confirmed position is the end of a record; the horizon is what was running there, or earlier, never later.
//! - I3: a consumer that is lost, or dead, never moves again; a lost one keeps nothing.
//!
//! Cost: a barrier O(consumers × log marks). There are at most [`MARKS_MAX`] marks: when more are needed, for a consumer that is
//! far behind, every second one is forgotten, so that positions and horizons are told more coarsely (and so later).
//!
//! Differences from PostgreSQL: a consumer confirms at barriers only, and a logical one at any record's end.

use std::collections::VecDeque;

use pg_types::{Lsn, Xid};

use crate::scenario::{ConsumerKind, ConsumerPlan};

/// Most marks that are kept.
const MARKS_MAX: usize = 8_192;
/// Microseconds of a second.
const SECOND_US: u128 = 1_000_000;

/// The log as it was at a barrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogMark {
    /// First byte after the last record.
    pub lsn: Lsn,
    /// The oldest running xid, the next one if nothing ran.
    pub oldest_running: Xid,
    /// The next xid.
    pub next_xid: Xid,
}

/// Where a consumer is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsumerSummary {
    /// Its slot.
    pub slot: String,
    /// What its slot is for.
    pub kind: ConsumerKind,
    /// Everything before is confirmed.
    pub flushed: Lsn,
    /// Oldest WAL that it needs again.
    pub restart: Lsn,
    /// Oldest xid whose rows it needs; invalid for a logical slot and a lost one.
    pub xmin: Xid,
    /// The same for rows of catalogs; invalid for a physical slot and a lost one.
    pub catalog_xmin: Xid,
    /// It is connected, if only to stay silent.
    pub connected: bool,
    /// Where the log ended when it lost its right to WAL.
    pub lost_at: Option<Lsn>,
}

/// A consumer.
#[derive(Debug)]
struct Consumer {
    /// What it does.
    plan: ConsumerPlan,
    /// Bytes before are received.
    read: Lsn,
    /// What it may still read, in bytes × microseconds a second.
    credit: u128,
    /// The mark that it has confirmed.
    at: LogMark,
    /// Oldest WAL that it needs again.
    restart: Lsn,
    /// It is not dead.
    connected: bool,
    /// Where the log ended when it was lost.
    lost_at: Option<Lsn>,
}

/// All consumers of a run.
#[derive(Debug, Default)]
pub(crate) struct Consumers {
    /// By the order of the scenario.
    all: Vec<Consumer>,
    /// The log at barriers, oldest first; from the oldest on that somebody needs.
    marks: VecDeque<LogMark>,
    /// Simulated microseconds at the last barrier.
    moved_us: u64,
}

impl Consumers {
    /// Consumers that are to begin with the log.
    pub(crate) fn new(plans: &[ConsumerPlan]) -> Consumers {
        let consumer = |plan: &ConsumerPlan| Consumer {
            plan: plan.clone(),
            read: Lsn::INVALID,
            credit: 0,
            at: LogMark::default(),
            restart: Lsn::INVALID,
            connected: true,
            lost_at: None,
        };
        Consumers { all: plans.iter().map(consumer).collect(), ..Consumers::default() }
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Puts all of them where the log begins.
    pub(crate) fn begin(&mut self, mark: LogMark) {
        self.marks = VecDeque::from([mark]);
        for consumer in &mut self.all {
            (consumer.read, consumer.restart, consumer.at) = (mark.lsn, mark.lsn, mark);
        }
    }

    /// Moves all of them to `now_us` in a log that is as `mark` tells.
    pub(crate) fn barrier(&mut self, now_us: u64, mark: LogMark) {
        if self.all.is_empty() {
            return;
        }
        if self.marks.back().is_none_or(|last| last.lsn < mark.lsn) {
            self.marks.push_back(mark);
        }
        for consumer in self.all.iter_mut().filter(|consumer| consumer.lost_at.is_none()) {
            consumer.read_on(self.moved_us, now_us, mark.lsn);
            consumer.confirm(&self.marks);
        }
        self.moved_us = now_us;
        self.forget();
    }

    /// Those that need WAL before `oldest` are lost in a log that ends at `end`.
    pub(crate) fn lose_before(&mut self, oldest: Lsn, end: Lsn) {
        for consumer in self.all.iter_mut().filter(|consumer| consumer.lost_at.is_none() && consumer.restart < oldest) {
            (consumer.lost_at, consumer.connected) = (Some(end), false);
        }
    }

    /// The oldest xid whose rows somebody needs; invalid if nobody needs any.
    pub(crate) fn xmin(&self) -> Xid {
        self.all.iter().map(|consumer| consumer.summary().xmin).fold(Xid::INVALID, oldest)
    }

    /// The same for rows of catalogs.
    pub(crate) fn catalog_xmin(&self) -> Xid {
        self.all.iter().map(|consumer| consumer.summary().catalog_xmin).fold(Xid::INVALID, oldest)
    }

    /// Where they are.
    pub(crate) fn summaries(&self) -> Vec<ConsumerSummary> {
        self.all.iter().map(Consumer::summary).collect()
    }

    /// Forgets marks that nobody needs, and every second one if there are too many.
    fn forget(&mut self) {
        let live = self.all.iter().filter(|consumer| consumer.lost_at.is_none());
        let needed = live.map(|consumer| consumer.restart).min().unwrap_or(Lsn(u64::MAX));
        while self.marks.len() > 1 && self.marks.front().is_some_and(|mark| mark.lsn < needed) {
            self.marks.pop_front();
        }
        if self.marks.len() > MARKS_MAX {
            // The newest stays: it is what those that keep up have confirmed.
            let keep = self.marks.len() % 2;
            let mut index = 0;
            self.marks.retain(|_| {
                index += 1;
                index % 2 == keep
            });
        }
    }
}

impl Consumer {
    /// Reads from one barrier to the next.
    fn read_on(&mut self, from_us: u64, to_us: u64, end: Lsn) {
        self.connected = self.plan.dead_at_us.is_none_or(|dead| to_us < dead);
        let Some(bytes_per_second) = self.plan.bytes_per_second else {
            if self.plan.is_reading(to_us) {
                self.read = end;
            }
            return;
        };
        let credit = u128::from(self.plan.reading_us(from_us, to_us)) * u128::from(bytes_per_second);
        self.credit = self.credit.saturating_add(credit);
        let there = end.0.saturating_sub(self.read.0);
        let bytes = u64::try_from(self.credit / SECOND_US).unwrap_or(u64::MAX).min(there);
        self.read = Lsn(self.read.0 + bytes);
        // What could have been read while there was nothing is not made up for later.
        self.credit = if bytes == there { 0 } else { self.credit - u128::from(bytes) * SECOND_US };
    }

    /// Confirms the newest record's end that it has read (I2). A decoder needs again what the oldest transaction that ran there
    /// wrote: that one had no xid where the next xid was not newer.
    fn confirm(&mut self, marks: &VecDeque<LogMark>) {
        let newest = marks.partition_point(|mark| mark.lsn <= self.read).checked_sub(1).and_then(|index| marks.get(index));
        let Some(mark) = newest.filter(|mark| mark.lsn > self.at.lsn) else { return };
        self.at = *mark;
        self.restart = match self.plan.kind {
            ConsumerKind::Physical => mark.lsn,
            ConsumerKind::Logical => {
                let before = |earlier: &&LogMark| earlier.lsn <= mark.lsn && !mark.oldest_running.precedes(earlier.next_xid);
                marks.iter().rev().find(before).map_or(self.restart, |earlier| self.restart.max(earlier.lsn))
            }
        };
    }

    /// Where it is.
    fn summary(&self) -> ConsumerSummary {
        let holds = |kind| if self.plan.kind == kind && self.lost_at.is_none() { self.at.oldest_running } else { Xid::INVALID };
        ConsumerSummary {
            slot: self.plan.slot.clone(),
            kind: self.plan.kind,
            flushed: self.at.lsn,
            restart: self.restart,
            xmin: holds(ConsumerKind::Physical),
            catalog_xmin: holds(ConsumerKind::Logical),
            connected: self.connected,
            lost_at: self.lost_at,
        }
    }
}

impl ConsumerPlan {
    /// Whether it reads at a time.
    fn is_reading(&self, at_us: u64) -> bool {
        let alive = self.dead_at_us.is_none_or(|dead| at_us < dead);
        alive && !self.paused.iter().any(|pause| (pause.from_us..pause.to_us).contains(&at_us))
    }

    /// How long it reads between two times.
    fn reading_us(&self, from_us: u64, to_us: u64) -> u64 {
        let to_us = self.dead_at_us.map_or(to_us, |dead| dead.min(to_us));
        let overlap = |from: u64, to: u64| to.min(to_us).saturating_sub(from.max(from_us));
        let paused: u64 = self.paused.iter().map(|pause| overlap(pause.from_us, pause.to_us)).sum();
        to_us.saturating_sub(from_us).saturating_sub(paused)
    }
}

/// The older of two xids, of which an invalid one counts for nothing.
#[must_use]
pub fn oldest(a: Xid, b: Xid) -> Xid {
    match (a.is_valid(), b.is_valid()) {
        (true, true) if b.precedes(a) => b,
        (true, _) => a,
        (false, _) => b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::PausedPlan;

    const S: u64 = 1_000_000;

    fn plan(slot: &str) -> ConsumerPlan {
        ConsumerPlan { slot: slot.to_owned(), ..ConsumerPlan::default() }
    }

    fn mark(lsn: u64, oldest: u32, next: u32) -> LogMark {
        LogMark { lsn: Lsn(lsn), oldest_running: Xid(oldest), next_xid: Xid(next) }
    }

    /// Flushed positions at barriers a second apart in a log that grows by 1000 bytes and one xid a second.
    fn positions(plan: ConsumerPlan, seconds: u64) -> Vec<u64> {
        let mut consumers = Consumers::new(&[plan]);
        consumers.begin(mark(1000, 700, 700));
        let at = |second: u64| {
            consumers.barrier(second * S, mark(1000 + 1000 * second, 700 + second as u32, 700 + second as u32));
            let summary = consumers.summaries().remove(0);
            assert_eq!(u64::from(summary.xmin.0) - 700, (summary.flushed.0 - 1000) / 1000, "I2");
            summary.flushed.0
        };
        (1..=seconds).map(at).collect()
    }

    #[test]
    fn each_behaviour_moves_as_it_says() {
        assert_eq!(positions(plan("a"), 3), [2000, 3000, 4000]);
        let slow = ConsumerPlan { bytes_per_second: Some(500), ..plan("a") };
        assert_eq!(positions(slow, 5), [1000, 2000, 2000, 3000, 3000], "records' ends only");
        let paused = ConsumerPlan { paused: vec![PausedPlan { from_us: 2 * S, to_us: 4 * S }], ..plan("a") };
        assert_eq!(positions(paused.clone(), 5), [2000, 2000, 2000, 5000, 6000]);
        let both = ConsumerPlan { bytes_per_second: Some(2000), ..paused };
        assert_eq!(positions(both, 6), [2000, 3000, 3000, 3000, 5000, 7000], "two thousand bytes a second that it reads");
        let dead = ConsumerPlan { dead_at_us: Some(2 * S), ..plan("a") };
        assert_eq!(positions(dead, 3), [2000, 2000, 2000], "I3");
    }

    #[test]
    fn a_logical_consumer_needs_again_what_ran_where_it_is() {
        let logical = ConsumerPlan { kind: ConsumerKind::Logical, ..plan("a") };
        let mut consumers = Consumers::new(&[logical]);
        consumers.begin(mark(1000, 700, 700));
        consumers.barrier(S, mark(2000, 701, 702));
        consumers.barrier(2 * S, mark(3000, 701, 705));
        let summary = consumers.summaries().remove(0);
        assert_eq!((summary.flushed, summary.restart), (Lsn(3000), Lsn(1000)), "701 began behind the first mark");
        assert_eq!((summary.xmin, summary.catalog_xmin), (Xid::INVALID, Xid(701)));
        assert_eq!(consumers.xmin(), Xid::INVALID, "rows of users' tables are not held");
        assert_eq!(consumers.catalog_xmin(), Xid(701), "those of catalogs are");
        consumers.barrier(3 * S, mark(4000, 705, 705));
        assert_eq!(consumers.summaries()[0].restart, Lsn(4000));
    }

    #[test]
    fn a_lost_one_holds_nothing_and_stays() {
        let mut consumers = Consumers::new(&[ConsumerPlan { dead_at_us: Some(S), ..plan("dead") }, plan("alive")]);
        consumers.begin(mark(1000, 700, 700));
        consumers.barrier(2 * S, mark(9000, 705, 705));
        assert_eq!(consumers.xmin(), Xid(700));
        let lost = |consumers: &Consumers| [0, 1].map(|index| consumers.summaries()[index].lost_at);
        consumers.lose_before(Lsn(1000), Lsn(9000));
        assert_eq!(lost(&consumers), [None, None]);
        consumers.lose_before(Lsn(1001), Lsn(9000));
        consumers.lose_before(Lsn(1001), Lsn(9999));
        assert_eq!(lost(&consumers), [Some(Lsn(9000)), None], "once");
        assert_eq!(consumers.xmin(), Xid(705));
    }

    #[test]
    fn marks_are_bounded_and_only_get_coarser() {
        let slow = ConsumerPlan { bytes_per_second: Some(1), ..plan("slow") };
        let mut consumers = Consumers::new(&[slow, plan("fast")]);
        consumers.begin(mark(1000, 700, 700));
        for second in 1..=3 * MARKS_MAX as u64 {
            consumers.barrier(second * S, mark(1000 + 10 * second, 700 + second as u32, 700 + second as u32));
            assert!(consumers.marks.len() <= MARKS_MAX);
            let [slow, fast] = [0, 1].map(|index| consumers.summaries()[index].clone());
            assert_eq!(fast.flushed.0, 1000 + 10 * second);
            assert!(slow.flushed.0 <= 1000 + second && slow.flushed.0 + 1000 > 1000 + second, "{slow:?}");
            assert!(u64::from(slow.xmin.0) - 700 <= (slow.flushed.0 - 1000) / 10, "I2");
        }
    }
}
