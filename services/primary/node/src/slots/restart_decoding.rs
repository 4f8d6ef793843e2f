//! How far a logical slot's restart position may follow when its confirmed one is moved without a decoder
//! (`pg_replication_slot_advance`: `LogicalSlotAdvanceAndCheckSnapState` and `LogicalIncreaseRestartDecodingForSlot` in
//! `replication/logical/logical.c`, `SnapBuildProcessRunningXacts` in `snapbuild.c`).
//!
//! A decoder that begins at the restart position must be consistent where the slot is confirmed: then it decodes every commit
//! behind that in whole. It can begin at any list of running transactions, and is consistent two generations of transactions later,
//! or at once where nothing runs (`creation.rs`). So WAL is read up to the confirmed position, and each list in it is a candidate:
//!
//! ```text
//!   list ──► building ──all that ran then ended──► full ──the same again──► consistent: may be the restart position
//! ```
//!
//! Invariants:
//! * I1 The creation of a slot that begins at the position found ends by the confirmed position, and that of one which begins at
//!   any later list does not, unless I2 left that list out.
//! * I2 At most [`CANDIDATES_MAX`] lists wait in each state; of more, later ones are left out, and the position stays further back.
//!
//! Cost: O(1) a list, over all.
//!
//! Differences from PostgreSQL: it finds the first position that becomes possible and, having stored snapshots, none of the
//! generations before it; here it is the last one. `catalog_xmin` follows to the oldest transaction that ran at that list, which is
//! never later than where PostgreSQL's would be for the same position.

use std::collections::VecDeque;

use pg_types::record::RunningXactsRecord;
use pg_types::{Lsn, RecordBody, Xid};
use pg_wal::{RecordClass, WalProfile};
use service_kit::Drain;

use crate::error::{Error, Result};
use crate::wal_log::{WalLog, end_error, read_error, segment_file};

/// Most lists that are candidates at a time, in each state.
const CANDIDATES_MAX: usize = 65_536;
/// Records between two looks at whether the node stops.
const RECORDS_PER_LOOK: u64 = 65_536;

/// From where a decoder may begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestartPoint {
    /// Start of a list of running transactions.
    pub restart_lsn: Lsn,
    /// The oldest transaction that ran then: catalog rows that it sees are needed.
    pub catalog_xmin: Xid,
}

/// A list from which a decoder might begin.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Where.
    point: RestartPoint,
    /// It gets further when no older transaction runs.
    boundary: Xid,
}

/// The lists that were read.
#[derive(Debug, Default)]
struct RestartDecoding {
    /// Those whose transactions run, in order.
    building: VecDeque<Candidate>,
    /// Those that wait for the next generation, in order.
    full: VecDeque<Candidate>,
    /// The last one from which a decoder is consistent by now.
    found: Option<RestartPoint>,
}

impl RestartDecoding {
    /// Takes the next list.
    fn running_xacts(&mut self, lsn: Lsn, running: &RunningXactsRecord) {
        let (oldest, next) = (running.oldest_running_xid, running.next_xid);
        let point = RestartPoint { restart_lsn: lsn, catalog_xmin: oldest };
        if oldest == next {
            *self = Self { found: Some(point), ..Self::default() };
            return;
        }
        let passed = |candidate: &mut Candidate| candidate.boundary.precedes_or_equals(oldest);
        while let Some(consistent) = self.full.pop_front_if(passed) {
            self.found = Some(consistent.point);
        }
        let mut full = None;
        while let Some(candidate) = self.building.pop_front_if(passed) {
            // They wait for the same from here on, so the last of them is as good as all.
            full = Some(Candidate { boundary: next, ..candidate });
        }
        push(&mut self.full, full);
        push(&mut self.building, Some(Candidate { point, boundary: next }));
    }
}

/// Adds a candidate if there is room (I2).
fn push(candidates: &mut VecDeque<Candidate>, candidate: Option<Candidate>) {
    if candidates.len() < CANDIDATES_MAX {
        candidates.extend(candidate);
    }
}

/// From where a decoder may begin to decode every commit after `confirmed`, by the WAL from `restart` on; none if nothing is better
/// than that. Blocks on the disk.
///
/// # Errors
/// The WAL is gone or damaged, or the node stops.
pub(crate) fn find(log: &WalLog, restart: Lsn, confirmed: Lsn, drain: &Drain) -> Result<Option<RestartPoint>> {
    let identity = log.identity();
    let profile = WalProfile::of(identity.version);
    let mut reader = log.reader(restart)?;
    reader.set_limit(confirmed);
    let (mut lists, mut records) = (RestartDecoding::default(), 0u64);
    while let Some(record) = reader.next().map_err(read_error)? {
        records += 1;
        if records.is_multiple_of(RECORDS_PER_LOOK) && drain.is_draining() {
            return Err(Error::Draining);
        }
        if record.class() != RecordClass::RunningXacts {
            continue;
        }
        let decoded = record.decode(profile).map_err(|error| {
            let file = segment_file(&identity, error.lsn);
            Error::DataLoss { lsn: error.lsn, file, reason: error.to_string() }
        })?;
        if let RecordBody::RunningXacts(running) = &decoded.body {
            lists.running_xacts(record.lsn, running);
        }
    }
    match reader.end().filter(|end| !end.is_complete()) {
        Some(end) => Err(end_error(end, &identity)),
        None => Ok(lists.found),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::creation::SlotCreation;
    use super::*;

    fn list(oldest: u32, next: u32) -> RunningXactsRecord {
        RunningXactsRecord { oldest_running_xid: Xid(oldest), next_xid: Xid(next), ..RunningXactsRecord::default() }
    }

    /// What is found after some lists, the first at 100, eight bytes apart.
    fn found(lists: &[(u32, u32)]) -> Option<(u64, u32)> {
        let mut decoding = RestartDecoding::default();
        for (i, (oldest, next)) in lists.iter().enumerate() {
            decoding.running_xacts(Lsn(100 + 8 * i as u64), &list(*oldest, *next));
        }
        decoding.found.map(|point| (point.restart_lsn.0, point.catalog_xmin.0))
    }

    #[test]
    fn two_generations_must_have_ended_since() {
        let lists = [(690, 700), (695, 705), (701, 710), (705, 720), (712, 730), (725, 735)];
        let expected = [None, None, None, None, Some((100, 690)), Some((108, 695))];
        for (count, expected) in (1..).zip(expected) {
            assert_eq!(found(&lists[..count]), expected, "after {count}");
        }
        assert_eq!(found(&[(690, 700), (700, 700)]), Some((108, 700)), "nothing runs");
        assert_eq!(found(&[(690, 700), (700, 700), (702, 710)]), Some((108, 700)));
        let wrapped = [(u32::MAX - 1, u32::MAX), (3, 9), (9, 20), (20, 30)];
        assert_eq!(found(&wrapped), Some((108, 3)));
    }

    #[test]
    fn i2_no_more_lists_are_remembered() {
        let mut decoding = RestartDecoding::default();
        for i in 0..2 * CANDIDATES_MAX as u32 {
            decoding.running_xacts(Lsn(100 + u64::from(i)), &list(690, 700 + i));
        }
        assert_eq!(decoding.building.len(), CANDIDATES_MAX);
        decoding.running_xacts(Lsn(1 << 30), &list(1 << 20, 1 << 21));
        decoding.running_xacts(Lsn(1 << 31), &list(1 << 21, 1 << 22));
        let last = Lsn(100 + CANDIDATES_MAX as u64 - 1);
        assert_eq!(decoding.found.map(|point| point.restart_lsn), Some(last), "the last that was remembered");
    }

    proptest! {
        /// I1 against slots that are made at each list.
        #[test]
        fn i1_it_is_the_last_list_whose_decoder_is_consistent_in_time(
            steps in proptest::collection::vec((0u32..9, 0u32..30), 1..40)
        ) {
            let (mut oldest, mut next) = (u32::MAX - 60, u32::MAX - 50);
            let mut lists = Vec::new();
            for (ahead, span) in steps {
                oldest = oldest.wrapping_add(ahead).max(3);
                next = if Xid(next).precedes(Xid(oldest.wrapping_add(span))) { oldest.wrapping_add(span).max(3) } else { next };
                lists.push((if Xid(next).precedes(Xid(oldest)) { next } else { oldest }, next));
            }
            let is_consistent = |from: usize| {
                let mut creation = SlotCreation::new(Lsn(100 + 8 * from as u64));
                for (i, (oldest, next)) in lists.iter().enumerate().skip(from) {
                    creation.running_xacts(Lsn(100 + 8 * i as u64), Lsn(108 + 8 * i as u64), &list(*oldest, *next));
                }
                // One that begins before is consistent by a later list alone.
                let report = creation.report();
                report.consistent_lsn.is_some() && report.restart_lsn == Lsn(100 + 8 * from as u64)
            };
            let expected = (0..lists.len()).rev().find(|from| is_consistent(*from)).map(|from| (100 + 8 * from as u64, lists[from].0));
            prop_assert_eq!(found(&lists), expected);
        }
    }
}
